//! Block special files: disks by name in `/dev` and by number, and what opening one does
//! (`docs/block.md`).

mod controllers;
mod loop_control;
mod loop_device;
mod names;
mod partitions;
mod special;
mod statistics;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::block::{BlockDevice, PageCache};
pub use ::block::{SECTOR_SIZE, writeback};
use abi::errno::Errno;
pub use controllers::{NvmeController, controllers, register_controller, unregister_controller};
pub use loop_control::register_standard;
pub use names::DiskName;
use partitions::Part;
use special::OpenDisk;
use statistics::CountedDevice;
use task::Mutex;

use crate::ioctl::IoctlRequest;
use crate::poll::PollQueue;
use crate::{DeviceId, FileOps, OpenFlags, Result, devfs};

/// Permissions of a disk's node, as `devtmpfs` has them.
const NODE_MODE: u32 = 0o600;

static DISKS: Mutex<BTreeMap<DeviceId, Arc<Disk>>> = Mutex::new(BTreeMap::new());

/// Whether a device lets itself be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Writing is possible.
    ReadWrite,
    /// Writing is refused.
    ReadOnly,
}

impl Protection {
    /// [`Self::ReadOnly`] if `read_only`.
    #[must_use]
    pub const fn when(read_only: bool) -> Self {
        if read_only {
            Self::ReadOnly
        } else {
            Self::ReadWrite
        }
    }
}

/// The driver of a disk, beyond reading and writing.
pub trait DiskDriver: BlockDevice {
    /// The driver's own operations.
    ///
    /// # Errors
    /// `ENOTTY` for a request it does not know.
    fn ioctl(&self, opener: &DiskOpener<'_>, request: &IoctlRequest<'_>) -> Result<usize>;

    /// Forbids or allows changes (`BLKROSET`).
    fn protect(&self, protection: Protection);

    /// The last opening of the disk was closed. What was written is written back, and nobody opens
    /// it meanwhile.
    fn closed(&self, cache: &PageCache);
}

/// One opening of a disk, as a driver sees it.
pub struct DiskOpener<'a> {
    /// The disk.
    pub disk: &'a Disk,
    /// Whether it is open for writing.
    pub is_writable: bool,
}

#[derive(Default)]
struct Openers {
    count: usize,
    /// Whether one has the disk for itself (`O_EXCL`).
    is_claimed: bool,
    /// Whether that one is about to let go of it.
    is_leaving: bool,
    /// Whether the device is about to leave, or has left.
    is_gone: bool,
}

/// Use of a disk that keeps it from leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// File systems that are mounted from it, so many.
    Mounted(usize),
    /// Openings of it, so many.
    Open(usize),
}

/// Numbers of a disk: its own, and how many there are for it and its partitions.
#[derive(Clone, Copy, Debug)]
pub struct DiskNumbers {
    /// Number of the disk.
    pub id: DeviceId,
    /// Minor numbers from that on which are the disk's and its partitions'; 1 for a disk without a
    /// table, 0 for one whose partitions have numbers of major 259 all.
    pub minors: u32,
}

impl DiskNumbers {
    /// Numbers for a disk with a table whose kind has no major number of its own.
    #[must_use]
    pub fn further() -> Self {
        Self {
            id: further_number(),
            minors: 0,
        }
    }

    /// Whether the disk can have a table of partitions.
    const fn has_table(&self) -> bool {
        self.minors != 1
    }
}

/// Major number of disks and partitions for which other numbers do not suffice (Linux
/// `BLOCK_EXT_MAJOR`).
const FURTHER_MAJOR: u32 = 259;

/// A number of [`FURTHER_MAJOR`] that nobody had.
fn further_number() -> DeviceId {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let mut next = NEXT.lock();
    *next += 1;
    DeviceId::new(FURTHER_MAJOR, *next - 1)
}

/// A disk, or a partition of one: a device with its page cache, a name and a number.
pub struct Disk {
    name: String,
    id: DeviceId,
    minors: u32,
    driver: Arc<dyn DiskDriver>,
    /// The driver, with counts of what it did.
    counted: Arc<CountedDevice>,
    cache: Arc<PageCache>,
    openers: Mutex<Openers>,
    /// Notified when one that had the disk for itself has let go of it.
    released: PollQueue,
    /// Of a partition: which part.
    part: Option<Part>,
    /// Of a disk: its partitions, by number.
    partitions: Mutex<Vec<Arc<Self>>>,
}

impl Disk {
    /// Makes a disk known, as `/dev/<name>`, and the partitions that its table has. A table that
    /// cannot be read is none.
    ///
    /// # Errors
    /// `EEXIST` if the name or number is taken, `ENOMEM`.
    pub fn register(name: &str, place: DiskNumbers, driver: Arc<dyn DiskDriver>) -> Result<()> {
        let disk = Self::make(name, place, driver, None)?;
        if place.has_table()
            && let Err(error) = disk.scan_partitions()
        {
            log::warn!("{name}: the partitions cannot be read: {error}");
        }
        disk.cache.forget();
        Ok(())
    }

    /// Makes a disk or a partition known.
    fn make(
        name: &str,
        place: DiskNumbers,
        driver: Arc<dyn DiskDriver>,
        part: Option<Part>,
    ) -> Result<Arc<Self>> {
        let DiskNumbers { id, minors } = place;
        ::block::writeback::start()?;
        let counted = CountedDevice::new(driver.clone(), part.is_some());
        let disk = Arc::new(Self {
            name: name.into(),
            id,
            minors,
            cache: PageCache::new(counted.clone())?,
            driver,
            counted,
            openers: Mutex::default(),
            released: PollQueue::new(),
            part,
            partitions: Mutex::default(),
        });
        let mut disks = DISKS.lock();
        if disks.contains_key(&id) {
            return Err(Errno::EEXIST);
        }
        devfs::block_node(name, id, NODE_MODE)?;
        disks.insert(id, disk.clone());
        drop(disks);
        names::note_arrival();
        Ok(disk)
    }

    /// Makes the disks of some names unknown, and their partitions: their device leaves. Whoever
    /// has one open keeps it, with what its driver answers from then on. A name of no disk counts
    /// for nothing. Unless `force`, waits for file systems that are not mounted any more.
    ///
    /// # Errors
    /// [`InUse`], unless `force`; nothing was changed.
    pub fn remove(names: &[String], force: bool) -> core::result::Result<(), InUse> {
        let is_wanted = |disk: &Arc<Self>| disk.part.is_none() && names.contains(&disk.name);
        let wanted: Vec<Arc<Self>> = disks().into_iter().filter(is_wanted).collect();
        let of = |disk: &Arc<Self>| disk.partitions().into_iter().chain([disk.clone()]);
        if !force {
            for part in wanted.iter().flat_map(of) {
                // A thread of the kernel's is not interrupted.
                let _ = part.await_release();
            }
        }
        // The disks first: then no partition comes or goes.
        let set_gone = |is_gone| {
            for disk in &wanted {
                disk.openers.lock().is_gone = is_gone;
                for part in disk.partitions() {
                    part.openers.lock().is_gone = is_gone;
                }
            }
        };
        set_gone(true);
        let (mut mounted, mut open) = (0, 0);
        for part in wanted.iter().flat_map(of) {
            let openers = part.openers.lock();
            mounted += usize::from(openers.is_claimed);
            open += openers.count;
            if openers.count > 0 && !force {
                log::warn!("{} is in use, and does not leave", part.name);
            }
        }
        let in_use = match (mounted, open) {
            (0, 0) => None,
            (0, open) => Some(InUse::Open(open)),
            (mounted, _) => Some(InUse::Mounted(mounted)),
        };
        if let Some(in_use) = in_use.filter(|_| !force) {
            set_gone(false);
            return Err(in_use);
        }
        for disk in &wanted {
            let partitions = core::mem::take(&mut *disk.partitions.lock());
            partitions
                .iter()
                .chain([disk])
                .for_each(|part| part.forget());
        }
        Ok(())
    }

    /// Refuses, if its device leaves or has left.
    fn check_here(&self) -> Result<()> {
        if self.openers.lock().is_gone {
            Err(Errno::ENXIO)
        } else {
            Ok(())
        }
    }

    /// Makes a disk or a partition unknown.
    fn forget(&self) {
        DISKS.lock().remove(&self.id);
        devfs::remove_node(&self.name);
    }

    /// Name of the disk: that of its node in `/dev`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the disk.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Numbers that the disk has for itself and its partitions.
    #[must_use]
    pub fn minors(&self) -> u32 {
        self.minors
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.counted
    }

    /// Columns of `/proc/diskstats` after the name.
    #[must_use]
    pub fn statistics(&self) -> [u64; 17] {
        self.counted.columns()
    }

    /// The page cache in front of the device.
    #[must_use]
    pub fn cache(&self) -> &PageCache {
        &self.cache
    }

    /// Number of openings.
    #[must_use]
    pub fn opener_count(&self) -> usize {
        self.openers.lock().count
    }

    /// Waits until a file system that is not mounted any more has let go of the disk: somebody may
    /// be bringing back what it had of it.
    ///
    /// # Errors
    /// `ERESTARTSYS` if the wait is interrupted.
    fn await_release(&self) -> Result<()> {
        let is_free = || (!self.openers.lock().is_leaving).then_some(());
        match is_free() {
            Some(()) => Ok(()),
            None => self.released.wait(is_free),
        }
    }

    /// Adds an opener.
    fn open(&self, flags: OpenFlags) -> Result<()> {
        let mut openers = self.openers.lock();
        if openers.is_gone {
            return Err(Errno::ENXIO);
        }
        if flags.contains(OpenFlags::EXCL) {
            if openers.is_claimed {
                return Err(Errno::EBUSY);
            }
            openers.is_claimed = true;
        }
        openers.count += 1;
        Ok(())
    }

    /// Removes an opener. With the last one what is dirty is written, and the pages are given back,
    /// as on Linux: who opens the disk next may find another medium.
    fn close(&self, was_claimed: bool) {
        let mut openers = self.openers.lock();
        openers.count -= 1;
        openers.is_claimed &= !was_claimed;
        openers.is_leaving &= !was_claimed;
        if openers.count == 0 {
            self.cache.write_range(0..u64::MAX);
            self.cache.forget();
            self.driver.closed(&self.cache);
        }
        drop(openers);
        if was_claimed {
            self.released.notify();
        }
    }
}

/// All disks and partitions, by number.
#[must_use]
pub fn disks() -> Vec<Arc<Disk>> {
    DISKS.lock().values().cloned().collect()
}

/// Opens a disk by number.
///
/// # Errors
/// `ENXIO` if there is none; `EBUSY` if somebody else has it for himself.
pub fn open(id: DeviceId, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
    let disk = find(id)?;
    if flags.contains(OpenFlags::EXCL) {
        disk.await_release()?;
    }
    Ok(Arc::new(OpenDisk::new(disk, flags)?))
}

fn find(id: DeviceId) -> Result<Arc<Disk>> {
    DISKS.lock().get(&id).cloned().ok_or(Errno::ENXIO)
}

/// Waits until a file system that is not mounted any more has let go of a disk.
///
/// # Errors
/// `ENXIO` if there is no such disk; `ERESTARTSYS` if the wait is interrupted.
pub(crate) fn await_release(id: DeviceId) -> Result<()> {
    find(id)?.await_release()
}

/// Alignment in bytes of the offsets and lengths of direct transfers of a disk, if there is one.
#[must_use]
pub fn direct_alignment(id: DeviceId) -> Option<u32> {
    let disk = DISKS.lock().get(&id).cloned()?;
    Some(disk.cache.device().limits().logical_block)
}

/// Refuses a direct transfer that is not made of whole blocks of `alignment` bytes.
///
/// # Errors
/// `EINVAL`.
pub fn check_direct(offset: u64, len: usize, alignment: u32) -> Result<()> {
    if (offset | len as u64).is_multiple_of(alignment.into()) {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// A disk that a file system has for itself, as with `O_EXCL`, until dropped.
pub(crate) struct DiskClaim(Arc<Disk>);

impl DiskClaim {
    /// Takes a disk by number.
    ///
    /// # Errors
    /// `ENXIO` if there is none; `EBUSY` if somebody else has it for himself.
    pub(crate) fn new(id: DeviceId) -> Result<Self> {
        let disk = find(id)?;
        disk.open(OpenFlags::EXCL)?;
        Ok(Self(disk))
    }

    /// Says that the file system is not mounted any more: whoever wants the disk waits from now on
    /// until this is dropped.
    pub(crate) fn leave(&self) {
        self.0.openers.lock().is_leaving = true;
    }

    /// The disk.
    pub(crate) fn disk(&self) -> &Disk {
        &self.0
    }
}

impl Drop for DiskClaim {
    fn drop(&mut self) {
        self.0.close(true);
    }
}

/// The name of disk `number` of a kind, as `loop0`.
fn disk_name(kind: &str, number: u32) -> String {
    alloc::format!("{kind}{number}")
}
