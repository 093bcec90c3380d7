//! Block special files: disks by name in `/dev` and by number, and what opening one does
//! (`docs/block.md`).

mod loop_control;
mod loop_device;
mod special;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;

pub use ::block::writeback;
use ::block::{BlockDevice, PageCache};
use abi::errno::Errno;
pub use loop_control::register_standard;
use special::OpenDisk;
use task::Mutex;

use crate::ioctl::IoctlRequest;
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
}

/// A disk: a device with its page cache, a name and a number.
pub struct Disk {
    driver: Arc<dyn DiskDriver>,
    cache: Arc<PageCache>,
    openers: Mutex<Openers>,
}

impl Disk {
    /// Makes a disk known, as `/dev/<name>`.
    ///
    /// # Errors
    /// `EEXIST` if the name or number is taken, `ENOMEM`.
    pub fn register(name: &str, id: DeviceId, driver: Arc<dyn DiskDriver>) -> Result<()> {
        ::block::writeback::start()?;
        let disk = Arc::new(Self {
            cache: PageCache::new(driver.clone())?,
            driver,
            openers: Mutex::default(),
        });
        let mut disks = DISKS.lock();
        if disks.contains_key(&id) {
            return Err(Errno::EEXIST);
        }
        devfs::block_node(name, id, NODE_MODE)?;
        disks.insert(id, disk);
        Ok(())
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

    /// Adds an opener.
    fn open(&self, flags: OpenFlags) -> Result<()> {
        let mut openers = self.openers.lock();
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
        if openers.count == 0 {
            self.cache.write_range(0..u64::MAX);
            self.cache.forget();
            self.driver.closed(&self.cache);
        }
    }
}

/// Opens a disk by number.
///
/// # Errors
/// `ENXIO` if there is none; `EBUSY` if somebody else has it for himself; `EINVAL` with `O_DIRECT`.
pub fn open(id: DeviceId, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
    let disk = DISKS.lock().get(&id).cloned().ok_or(Errno::ENXIO)?;
    if flags.contains(OpenFlags::DIRECT) {
        return Err(Errno::EINVAL);
    }
    Ok(Arc::new(OpenDisk::new(disk, flags)?))
}

/// The name of disk `number` of a kind, as `loop0`.
fn disk_name(kind: &str, number: u32) -> String {
    alloc::format!("{kind}{number}")
}
