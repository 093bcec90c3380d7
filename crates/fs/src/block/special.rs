//! Operations of an open block special file.

use alloc::sync::Arc;
use core::ops::Range;

use ::block::{BlockDevice, CachedRun, ErrorCursor, Operation, READ_AHEAD, SECTOR_SIZE};
use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use linux_raw_sys::ioctl;
use task::Mutex;
use vm::Page;

use super::{Disk, DiskOpener, Protection, check_direct};
use crate::Result;
use crate::file::{File, FileOps, OpenFlags, Whence};
use crate::file_ops::seek_position;
use crate::ioctl::IoctlRequest;

/// Numbers of requests that the table of constants does not have: size in bytes.
const BLKGETSIZE64: u32 = 0x8008_1272;

/// One opening of a disk.
pub(super) struct OpenDisk {
    disk: Arc<Disk>,
    is_claim: bool,
    is_writable: bool,
    /// Errors of writing back that this opener was told of.
    told: Mutex<ErrorCursor>,
}

impl OpenDisk {
    pub(super) fn new(disk: Arc<Disk>, flags: OpenFlags) -> Result<Self> {
        disk.open(flags)?;
        let told = Mutex::new(disk.cache.sample_errors());
        Ok(Self {
            disk,
            is_claim: flags.contains(OpenFlags::EXCL),
            is_writable: flags.is_writable(),
            told,
        })
    }

    fn device(&self) -> &dyn BlockDevice {
        self.disk.cache.device()
    }

    fn is_direct(&self, file: &File, offset: u64, len: usize) -> Result<bool> {
        let is_direct = file.flags().contains(OpenFlags::DIRECT);
        if is_direct {
            check_direct(offset, len, self.device().limits().logical_block)?;
        }
        Ok(is_direct)
    }

    fn read_from(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.is_direct(file, offset, buf.len())? {
            self.disk.cache.read_direct(offset, buf)
        } else {
            self.disk.cache.read(offset, buf)
        }
    }

    /// Writes, and with `O_SYNC`, `O_DSYNC` or `O_DIRECT` not into the cache only.
    fn write_and_sync(&self, file: &File, offset: u64, buf: &[u8]) -> Result<usize> {
        if self.device().is_read_only() {
            return Err(Errno::EPERM);
        }
        if buf.is_empty() {
            return Ok(0);
        }
        // Behind the end there is no room.
        let offset = if file.flags().contains(OpenFlags::APPEND) {
            self.device().capacity()
        } else {
            offset
        };
        let cache = &self.disk.cache;
        let n = if self.is_direct(file, offset, buf.len())? {
            let n = cache.write(offset, buf)?;
            cache.write_through(offset..offset + n as u64, &self.told)?;
            n
        } else {
            cache.write(offset, buf)?
        };
        self.synced(file, n)
    }

    /// With `O_SYNC` or `O_DSYNC`, brings what was written to the medium.
    fn synced(&self, file: &File, written: usize) -> Result<usize> {
        if file.flags().contains(OpenFlags::DSYNC) {
            self.sync()?;
        }
        Ok(written)
    }

    /// Size of a block of a file system on it, until one says otherwise: the greatest that the size
    /// is a multiple of.
    fn block_size(&self) -> u32 {
        let mut size = self.device().limits().logical_block;
        while (size as usize) < PAGE_SIZE && self.device().capacity() & u64::from(size) == 0 {
            size <<= 1;
        }
        size
    }

    /// The range of `BLKDISCARD` and `BLKZEROOUT`.
    fn range(&self, request: &IoctlRequest<'_>) -> Result<Range<u64>> {
        if !self.is_writable {
            return Err(Errno::EBADF);
        }
        let [offset, len] = request.read::<[u64; 2]>()?;
        let block = u64::from(self.device().limits().logical_block);
        let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
        if offset % block != 0 || len % block != 0 || end > self.device().capacity() {
            return Err(Errno::EINVAL);
        }
        if self.device().is_read_only() {
            return Err(Errno::EPERM);
        }
        Ok(offset..end)
    }

    fn bypass(&self, range: Range<u64>, operation: Operation<'_>) -> Result<usize> {
        let change = || self.device().execute(operation);
        self.disk.cache.bypass(range, change).map(|()| 0)
    }
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        self.disk.close(self.is_claim);
    }
}

/// Refuses who is no administrator.
fn require_privilege(request: &IoctlRequest<'_>) -> Result<()> {
    if request.caller.privileged() {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

impl FileOps for OpenDisk {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        file.with_offset(|offset| {
            let n = self.read_from(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        file.with_offset(|offset| {
            let n = self.write_and_sync(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn read_run(
        &self,
        file: &File,
        offset: Option<u64>,
        len: usize,
        run: &mut CachedRun,
    ) -> Option<Result<usize>> {
        if file.flags().contains(OpenFlags::DIRECT) {
            return None;
        }
        file.transfer_at(offset, |at| Some(self.disk.cache.read_run(at, len, run)))
    }

    fn read_pages(
        &self,
        file: &File,
        offset: Option<u64>,
        pages: &[Page],
    ) -> Option<Result<usize>> {
        file.transfer_pages(offset, |first| {
            Some(self.disk.cache.read_pages(first, pages))
        })
    }

    fn write_pages(
        &self,
        file: &File,
        offset: Option<u64>,
        pages: &[Page],
    ) -> Option<Result<usize>> {
        if self.device().is_read_only() || file.flags().contains(OpenFlags::APPEND) {
            return None;
        }
        file.transfer_pages(offset, |first| {
            let written = self.disk.cache.begin_write(first, pages)?;
            Some(
                written
                    .finish(&self.told)
                    .and_then(|n| self.synced(file, n)),
            )
        })
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_from(file, offset, buf)
    }

    fn write_at(&self, file: &File, offset: u64, buf: &[u8]) -> Result<usize> {
        self.write_and_sync(file, offset, buf)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        let end = self.device().capacity();
        file.with_offset(|position| {
            let to = seek_position(*position, Some(end), whence, offset)?;
            if to > end {
                return Err(Errno::EINVAL);
            }
            *position = to;
            Ok(to)
        })
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn sync(&self) -> Result<()> {
        self.disk.cache.sync();
        self.disk.cache.check_errors(&mut self.told.lock())
    }

    fn sync_range(&self, bytes: Range<u64>) -> Result<()> {
        self.disk.cache.write_range(bytes);
        self.disk.cache.check_errors(&mut self.told.lock())
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        let device = self.device();
        let limits = device.limits();
        let told = match request.command {
            BLKGETSIZE64 => request.write(&device.capacity()),
            ioctl::BLKGETSIZE => request.write(&(device.capacity() / SECTOR_SIZE)),
            ioctl::BLKSSZGET => request.write(&limits.logical_block),
            ioctl::BLKPBSZGET => request.write(&limits.physical_block),
            ioctl::BLKIOMIN => request.write(&limits.min_io),
            ioctl::BLKIOOPT => request.write(&limits.optimal_io),
            ioctl::BLKRAGET | ioctl::BLKFRAGET => request.write(&(READ_AHEAD / SECTOR_SIZE)),
            ioctl::BLKALIGNOFF | ioctl::BLKDISCARDZEROES => request.write(&0u32),
            ioctl::BLKBSZGET => request.write(&self.block_size()),
            ioctl::BLKROGET => request.write(&u32::from(device.is_read_only())),
            ioctl::BLKROSET => {
                require_privilege(request)?;
                let read_only = request.read::<u32>()? != 0;
                self.disk.driver.protect(Protection::when(read_only));
                Ok(())
            }
            ioctl::BLKRRPART => {
                require_privilege(request)?;
                if self.disk.whole().is_some() {
                    return Err(Errno::EINVAL);
                }
                self.disk.scan_partitions()
            }
            ioctl::BLKPG if self.disk.whole().is_some() => Err(Errno::EINVAL),
            ioctl::BLKPG => self.disk.change_partition(request),
            ioctl::BLKFLSBUF => {
                require_privilege(request)?;
                self.disk.cache.bypass(0..u64::MAX, || Ok(()))
            }
            ioctl::BLKDISCARD => {
                let range = self.range(request)?;
                let (offset, len) = (range.start, range.end - range.start);
                return self.bypass(range, Operation::Discard { offset, len });
            }
            ioctl::BLKZEROOUT => {
                let range = self.range(request)?;
                let (offset, len) = (range.start, range.end - range.start);
                return self.bypass(range, Operation::WriteZeroes { offset, len });
            }
            _ => {
                let opener = DiskOpener {
                    disk: &self.disk,
                    is_writable: self.is_writable,
                };
                return self.disk.driver.ioctl(&opener, request);
            }
        };
        told.map(|()| 0)
    }
}
