//! `/proc/<pid>/mem`: a process's memory as a file, for debuggers. Who opens it may look into the
//! process; what the opening shows is the memory that the process had then, and ends with that.

use alloc::sync::{Arc, Weak};

use abi::errno::Errno;
use fs::pseudo::PseudoAttr;
use fs::{File, FileOps, FileType, Inode, Metadata, OpenFlags, Result, Whence};
use vm::{AddressSpace, PAGE_SIZE};

use super::pid::ProcessRef;

/// The file `/proc/<pid>/mem`: a process's memory by addresses.
pub(super) struct MemFile {
    pub(super) attr: PseudoAttr,
    pub(super) process: ProcessRef,
}

impl Inode for MemFile {
    fn metadata(&self) -> Metadata {
        self.attr.metadata(FileType::Regular)
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn truncate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        let space = self.process.space_of_opening()?;
        Ok(Some(Arc::new(MemOps { space })))
    }
}

struct MemOps {
    space: Weak<AddressSpace>,
}

impl MemOps {
    /// Goes through `len` bytes page by page. What was done before the first one that is not there
    /// counts.
    fn for_each_page(
        &self,
        at: u64,
        len: usize,
        mut part: impl FnMut(&AddressSpace, usize, core::ops::Range<usize>) -> Result<()>,
    ) -> Result<usize> {
        // The process has ended, or runs another program.
        let Some(space) = self.space.upgrade() else {
            return Ok(0);
        };
        let start = usize::try_from(at).map_err(|_| Errno::EIO)?;
        let mut done = 0;
        while done < len {
            let addr = start.checked_add(done).ok_or(Errno::EIO)?;
            let next = len.min(done + PAGE_SIZE - addr % PAGE_SIZE);
            if part(&space, addr, done..next).is_err() {
                return if done > 0 { Ok(done) } else { Err(Errno::EIO) };
            }
            done = next;
        }
        Ok(done)
    }
}

impl FileOps for MemOps {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        file.with_offset(|offset| {
            let n = self.read_at(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        file.with_offset(|offset| {
            let n = self.write_at(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, _: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.for_each_page(offset, buf.len(), |space, addr, range| {
            space.read(addr, &mut buf[range])
        })
    }

    fn write_at(&self, _: &File, offset: u64, buf: &[u8]) -> Result<usize> {
        self.for_each_page(offset, buf.len(), |space, addr, range| {
            space.write_forced(addr, &buf[range])
        })
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        seek(file, whence, offset)
    }

    fn is_pollable(&self) -> bool {
        false
    }
}

/// Moves the position to any address: such a file has no end.
pub(super) fn seek(file: &File, whence: Whence, offset: i64) -> Result<u64> {
    file.with_offset(|position| {
        *position = match whence {
            Whence::Set => offset.cast_unsigned(),
            Whence::Current => position.wrapping_add_signed(offset),
            _ => return Err(Errno::EINVAL),
        };
        Ok(*position)
    })
}
