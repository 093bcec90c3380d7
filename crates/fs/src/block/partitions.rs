//! Partitions as disks: reading a disk's table, and the requests that change what is known of it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use ::block::partition::{self, Identity, Partition};
use ::block::{BlockDevice, Limits, PageCache, Request};
use abi::errno::Errno;
use arrayvec::ArrayVec;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{Disk, DiskDriver, DiskNumbers, DiskOpener, Protection, further_number};
use crate::ioctl::IoctlRequest;
use crate::{DeviceId, Result};

/// Requests that are passed on at a time.
const GROUP: usize = 8;

/// The part of a disk that a partition is.
pub(super) struct Part {
    whole: Weak<Disk>,
    pub(super) number: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Identity of the partition, if a table has it.
    pub(super) identity: Option<Identity>,
}

/// A partition as a device: a part of its disk.
struct PartDevice {
    whole: Arc<dyn BlockDevice>,
    driver: Arc<dyn DiskDriver>,
    offset: u64,
    len: u64,
}

impl BlockDevice for PartDevice {
    fn capacity(&self) -> u64 {
        self.len
    }

    fn limits(&self) -> Limits {
        self.whole.limits()
    }

    fn writes_through(&self) -> bool {
        self.whole.writes_through()
    }

    fn is_read_only(&self) -> bool {
        self.whole.is_read_only()
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        for group in batch.chunks_mut(GROUP) {
            let mut passed = ArrayVec::<Request<'_>, GROUP>::new();
            let mut places = ArrayVec::<usize, GROUP>::new();
            for (place, request) in group.iter_mut().enumerate() {
                request.outcome = request.operation.check(self);
                if request.outcome.is_ok() {
                    passed.push(Request::new(request.operation.moved(self.offset)));
                    places.push(place);
                }
            }
            self.whole.submit(&mut passed);
            let outcomes: ArrayVec<_, GROUP> = passed.iter().map(|it| it.outcome).collect();
            drop(passed);
            for (place, outcome) in places.into_iter().zip(outcomes) {
                group[place].outcome = outcome;
            }
        }
    }
}

impl DiskDriver for PartDevice {
    fn ioctl(&self, opener: &DiskOpener<'_>, request: &IoctlRequest<'_>) -> Result<usize> {
        self.driver.ioctl(opener, request)
    }

    fn protect(&self, protection: Protection) {
        self.driver.protect(protection);
    }

    fn closed(&self, _: &PageCache) {}
}

/// A disk as what its table is read from.
struct Table<'a>(&'a Disk);

impl partition::Disk for Table<'_> {
    fn capacity(&self) -> u64 {
        self.0.device().capacity()
    }

    fn block_size(&self) -> u64 {
        self.0.device().limits().logical_block.into()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let n = self.0.cache().read(offset, buf)?;
        if n == buf.len() {
            Ok(())
        } else {
            Err(Errno::EIO)
        }
    }
}

/// `struct blkpg_ioctl_arg` and `struct blkpg_partition`.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
struct PartitionChange {
    operation: u32,
    flags: u32,
    len: u32,
    padding: u32,
    data: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
struct ChangedPartition {
    start: i64,
    len: i64,
    number: i32,
    names: [u8; 128],
    padding: [u8; 4],
}

const ADD: u32 = 1;
const DELETE: u32 = 2;
const RESIZE: u32 = 3;

impl Disk {
    /// Reads the disk's table and makes its partitions known, instead of those that were.
    ///
    /// # Errors
    /// `EINVAL` for a disk that has none; `EBUSY` if one of them is open; those of the disk.
    pub(super) fn scan_partitions(self: &Arc<Self>) -> Result<()> {
        if self.minors == 1 {
            return Err(Errno::EINVAL);
        }
        let mut partitions = self.partitions.lock();
        self.check_here()?;
        if partitions.iter().any(|part| part.opener_count() > 0) {
            return Err(Errno::EBUSY);
        }
        let found = partition::scan(&Table(self))?;
        partitions.drain(..).for_each(|part| part.forget());
        for Partition {
            number,
            offset,
            len,
            identity,
        } in found
        {
            self.add_partition(&mut partitions, number, (offset, len), Some(identity))?;
        }
        Ok(())
    }

    /// Makes a partition known.
    fn add_partition(
        self: &Arc<Self>,
        partitions: &mut Vec<Arc<Self>>,
        number: u32,
        (offset, len): (u64, u64),
        identity: Option<Identity>,
    ) -> Result<()> {
        self.check_here()?;
        let device = PartDevice {
            whole: self.counted.clone(),
            driver: self.driver.clone(),
            offset,
            len,
        };
        let id = if number < self.minors {
            DeviceId::new(self.id.major, self.id.minor + number)
        } else {
            further_number()
        };
        // A name that ends with a digit gets a letter in between, as on Linux.
        let name = if self.name.ends_with(|last: char| last.is_ascii_digit()) {
            alloc::format!("{}p{number}", self.name)
        } else {
            alloc::format!("{}{number}", self.name)
        };
        let part = Part {
            whole: Arc::downgrade(self),
            number,
            offset,
            len,
            identity,
        };
        partitions.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let disk = Self::make(
            &name,
            DiskNumbers { id, minors: 1 },
            Arc::new(device),
            Some(part),
        )?;
        let at = partitions.partition_point(|other| other.number() < number);
        partitions.insert(at, disk);
        Ok(())
    }

    /// Adds or takes away a partition, as the caller says (`BLKPG`), whatever the table has.
    ///
    /// # Errors
    /// `EACCES`; `EINVAL`; `EBUSY` if something is in the way, or it is open; `ENXIO` if there is
    /// no such partition; `EFAULT`.
    pub(super) fn change_partition(self: &Arc<Self>, request: &IoctlRequest<'_>) -> Result<()> {
        if !request.caller.privileged() {
            return Err(Errno::EACCES);
        }
        if self.minors == 1 {
            return Err(Errno::EINVAL);
        }
        let change: PartitionChange = request.read()?;
        let mut wanted = ChangedPartition::new_zeroed();
        let at = usize::try_from(change.data).map_err(|_| Errno::EFAULT)?;
        request.caller.read_bytes(at, wanted.as_mut_bytes())?;
        let number = u32::try_from(wanted.number).map_err(|_| Errno::EINVAL)?;
        let mut partitions = self.partitions.lock();
        let found = partitions.iter().position(|part| part.number() == number);
        let block = u64::from(self.device().limits().logical_block);
        let range = || {
            let offset = u64::try_from(wanted.start).map_err(|_| Errno::EINVAL)?;
            let len = u64::try_from(wanted.len).map_err(|_| Errno::EINVAL)?;
            let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
            let is_whole = offset % block == 0 && len % block == 0 && len > 0;
            if number == 0 || !is_whole || end > self.device().capacity() {
                return Err(Errno::EINVAL);
            }
            Ok((offset, len))
        };
        let meets = |others: &[Arc<Self>], (offset, len): (u64, u64)| {
            others
                .iter()
                .filter(|other| other.number() != number)
                .filter_map(|other| other.part.as_ref())
                .any(|other| other.offset < offset + len && offset < other.offset + other.len)
        };
        match (change.operation, found) {
            (ADD, None) => {
                let (offset, len) = range()?;
                if meets(&partitions, (offset, len)) {
                    return Err(Errno::EBUSY);
                }
                self.add_partition(&mut partitions, number, (offset, len), None)
            }
            (ADD, Some(_)) => Err(Errno::EBUSY),
            (DELETE | RESIZE, None) => Err(Errno::ENXIO),
            (DELETE, Some(index)) if partitions[index].opener_count() > 0 => Err(Errno::EBUSY),
            (DELETE, Some(index)) => {
                partitions.remove(index).forget();
                Ok(())
            }
            (RESIZE, Some(index)) => {
                let (offset, len) = range()?;
                if offset != partitions[index].start() || meets(&partitions, (offset, len)) {
                    return Err(Errno::EINVAL);
                }
                // Its openers would go on with the old length.
                if partitions[index].opener_count() > 0 {
                    return Err(Errno::EBUSY);
                }
                let old = partitions.remove(index);
                old.forget();
                let identity = old.part.as_ref().and_then(|part| part.identity);
                self.add_partition(&mut partitions, number, (offset, len), identity)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Number of a partition; 0 for a disk.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.part.as_ref().map_or(0, |part| part.number)
    }

    /// First byte of a partition on its disk; 0 for a disk.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.offset)
    }

    /// The disk that a partition is on, if it is one.
    #[must_use]
    pub fn whole(&self) -> Option<Arc<Self>> {
        self.part.as_ref()?.whole.upgrade()
    }

    /// The partitions of a disk, by number.
    #[must_use]
    pub fn partitions(&self) -> Vec<Arc<Self>> {
        self.partitions.lock().clone()
    }
}
