//! Requests to a block device, and the trait of its driver.

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use vm::Page;

/// Unit of `/proc/partitions`, `/sys/block/*/size` and partition tables of disks, in bytes.
pub const SECTOR_SIZE: u64 = 512;

/// Sizes that a device is built of, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest unit of a request (`BLKSSZGET`); a power of two, at least 512, at most a page.
    pub logical_block: u32,
    /// Smallest unit that the device writes without reading (`BLKPBSZGET`).
    pub physical_block: u32,
    /// Smallest request that is not slow (`BLKIOMIN`).
    pub min_io: u32,
    /// Best size of a request, or 0 (`BLKIOOPT`).
    pub optimal_io: u32,
}

impl Limits {
    /// The limits of a device whose blocks have one size.
    #[must_use]
    pub const fn of_blocks(size: u32) -> Self {
        Self {
            logical_block: size,
            physical_block: size,
            min_io: size,
            optimal_io: 0,
        }
    }
}

/// Bytes between a device and memory: `len` from `offset` on, in `pages`, which are filled one
/// after the other.
#[derive(Clone, Copy)]
pub struct Transfer<'a> {
    /// First byte on the device.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
    /// Memory of the request; the device has it until the request has an outcome.
    pub pages: &'a [Page],
}

impl Transfer<'_> {
    /// Calls `each` with every page, the bytes of it that count, and their place on the device.
    ///
    /// # Errors
    /// The first one of `each`.
    pub fn for_each_page(
        &self,
        mut each: impl FnMut(&Page, u64, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut done = 0;
        for page in self.pages {
            let len = (self.len - done).min(PAGE_SIZE);
            if len == 0 {
                break;
            }
            each(page, self.offset + done as u64, len)?;
            done += len;
        }
        Ok(())
    }
}

/// Operation of a request.
#[derive(Clone, Copy)]
pub enum Operation<'a> {
    /// Fills pages from the device.
    Read(Transfer<'a>),
    /// Writes pages to the device, which may keep them in a cache that loses its contents with the
    /// power.
    Write(Transfer<'a>),
    /// Writes pages to the medium: they are there when the request has its outcome. Only for
    /// devices that have it ([`BlockDevice::writes_through`]); [`BlockDevice::write_through`] is
    /// for all.
    WriteThrough(Transfer<'a>),
    /// Brings all writes that have an outcome to the medium.
    Flush,
    /// Gives up the contents of a range: what it reads as is undefined until it is written.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Makes a range zeros.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

impl Operation<'_> {
    /// The same so many bytes further on the device, as a part of it passes it on.
    #[must_use]
    pub const fn moved(&self, by: u64) -> Self {
        let mut moved = *self;
        match &mut moved {
            Self::Read(Transfer { offset, .. })
            | Self::Write(Transfer { offset, .. })
            | Self::WriteThrough(Transfer { offset, .. })
            | Self::Discard { offset, .. }
            | Self::WriteZeroes { offset, .. } => *offset += by,
            Self::Flush => (),
        }
        moved
    }

    /// The range that it concerns.
    #[must_use]
    pub const fn range(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Read(transfer) | Self::Write(transfer) | Self::WriteThrough(transfer) => {
                Some((transfer.offset, transfer.len as u64))
            }
            Self::Discard { offset, len } | Self::WriteZeroes { offset, len } => {
                Some((offset, len))
            }
            Self::Flush => None,
        }
    }

    /// Checks a request as every driver has to before it acts.
    ///
    /// # Errors
    /// `EROFS` for a change of a device that is read only; `EOPNOTSUPP` for a write through of a
    /// device that has none; `EINVAL` if it is not made of blocks, or
    /// has less memory than it says; `EIO` behind the end.
    pub fn check(&self, device: &dyn BlockDevice) -> Result<(), Errno> {
        if device.is_read_only() && !matches!(self, Self::Read(_) | Self::Flush) {
            return Err(Errno::EROFS);
        }
        if matches!(self, Self::WriteThrough(_)) && !device.writes_through() {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Self::Read(transfer) | Self::Write(transfer) | Self::WriteThrough(transfer) = self
            && transfer.len > transfer.pages.len().saturating_mul(PAGE_SIZE)
        {
            return Err(Errno::EINVAL);
        }
        let Some((offset, len)) = self.range() else {
            return Ok(());
        };
        let block = u64::from(device.limits().logical_block);
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Errno::EINVAL);
        }
        match offset.checked_add(len) {
            Some(end) if end <= device.capacity() => Ok(()),
            _ => Err(Errno::EIO),
        }
    }
}

/// A request with its outcome.
pub struct Request<'a> {
    /// Operation that is asked for.
    pub operation: Operation<'a>,
    /// Set by the device; each request has one of its own.
    pub outcome: Result<(), Errno>,
}

impl<'a> Request<'a> {
    /// A request nobody has looked at, which counts as failed.
    #[must_use]
    pub const fn new(operation: Operation<'a>) -> Self {
        Self {
            operation,
            outcome: Err(Errno::EIO),
        }
    }
}

/// A device that is read and written in blocks.
///
/// Called from any thread, by several at once. A driver puts a batch into the queue of the
/// processor that the thread is on, tells the device once, and returns when all of it has an
/// outcome; requests of a batch may be done in any order. Memory of a request is lent for the call:
/// a driver whose device may still write to it does not return.
pub trait BlockDevice: Send + Sync {
    /// Size in bytes, whole blocks. It may change.
    fn capacity(&self) -> u64;

    /// Sizes it is built of.
    fn limits(&self) -> Limits;

    /// Whether it refuses changes.
    fn is_read_only(&self) -> bool;

    /// Whether it has [`Operation::WriteThrough`]: then one request does what otherwise takes two.
    fn writes_through(&self) -> bool {
        false
    }

    /// Does all requests of a batch, and sets the outcome of each.
    fn submit(&self, batch: &mut [Request<'_>]);

    /// Does one request.
    ///
    /// # Errors
    /// Its outcome.
    fn execute(&self, operation: Operation<'_>) -> Result<(), Errno> {
        let mut batch = [Request::new(operation)];
        self.submit(&mut batch);
        batch[0].outcome
    }

    /// Writes pages to the medium, by a flush where it takes one.
    ///
    /// # Errors
    /// The outcome: it is not known what is on the medium.
    fn write_through(&self, transfer: Transfer<'_>) -> Result<(), Errno> {
        if self.writes_through() {
            return self.execute(Operation::WriteThrough(transfer));
        }
        self.execute(Operation::Write(transfer))?;
        self.execute(Operation::Flush)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;
    use std::sync::Mutex;

    use super::*;

    /// A device that notes what it is asked for, some of which fails.
    struct Device {
        writes_through: bool,
        fails: &'static str,
        asked: Mutex<Vec<&'static str>>,
    }

    fn kind(operation: &Operation<'_>) -> &'static str {
        match operation {
            Operation::Read(_) => "read",
            Operation::Write(_) => "write",
            Operation::WriteThrough(_) => "write through",
            Operation::Flush => "flush",
            Operation::Discard { .. } => "discard",
            Operation::WriteZeroes { .. } => "zero",
        }
    }

    impl BlockDevice for Device {
        fn capacity(&self) -> u64 {
            1 << 20
        }

        fn limits(&self) -> Limits {
            Limits::of_blocks(512)
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn writes_through(&self) -> bool {
            self.writes_through
        }

        fn submit(&self, batch: &mut [Request<'_>]) {
            for request in batch {
                let kind = kind(&request.operation);
                self.asked.lock().unwrap().push(kind);
                request.outcome = if kind == self.fails {
                    Err(Errno::EIO)
                } else {
                    Ok(())
                };
            }
        }
    }

    /// Requests that a device gets for a write through, and the outcome.
    fn write_through(
        writes_through: bool,
        fails: &'static str,
    ) -> (Vec<&'static str>, Result<(), Errno>) {
        let device = Device {
            writes_through,
            fails,
            asked: Mutex::default(),
        };
        let page = Page::zeroed().unwrap();
        let outcome = device.write_through(Transfer {
            offset: 4096,
            len: PAGE_SIZE,
            pages: &[page],
        });
        (device.asked.into_inner().unwrap(), outcome)
    }

    #[test]
    fn a_write_through_is_flushed_where_it_takes_that() {
        assert_eq!(write_through(true, ""), (vec!["write through"], Ok(())));
        assert_eq!(write_through(false, ""), (vec!["write", "flush"], Ok(())));
    }

    #[test]
    fn a_write_through_fails_with_any_part_of_it() {
        let failed = Err(Errno::EIO);
        assert_eq!(
            write_through(true, "write through"),
            (vec!["write through"], failed)
        );
        assert_eq!(write_through(false, "write"), (vec!["write"], failed));
        assert_eq!(
            write_through(false, "flush"),
            (vec!["write", "flush"], failed)
        );
    }

    #[test]
    fn what_a_part_passes_on_is_the_same_elsewhere() {
        let pages = [Page::zeroed().unwrap()];
        let transfer = Transfer {
            offset: 512,
            len: 1024,
            pages: &pages,
        };
        let (offset, len) = (512, 1024);
        for operation in [
            Operation::Read(transfer),
            Operation::Write(transfer),
            Operation::WriteThrough(transfer),
            Operation::Discard { offset, len },
            Operation::WriteZeroes { offset, len },
        ] {
            let moved = operation.moved(4096);
            assert_eq!(kind(&moved), kind(&operation));
            assert_eq!(moved.range(), Some((4608, 1024)));
        }
        assert_eq!(kind(&Operation::Flush.moved(4096)), "flush");
    }
}
