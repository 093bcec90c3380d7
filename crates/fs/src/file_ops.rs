//! Operations of open regular files and directories.

use alloc::sync::Arc;

use abi::errno::Errno;

use crate::file::{File, FileOps, OpenFlags, Whence};
use crate::{DirEntry, FileType, Result};

/// Applies `whence` and `offset` to a position. `end` is the size where there is one.
///
/// # Errors
/// `EINVAL` for a result below zero or a whence that means nothing here.
pub fn seek_position(position: u64, end: Option<u64>, whence: Whence, offset: i64) -> Result<u64> {
    let base = match whence {
        Whence::Set => 0,
        Whence::Current => position,
        Whence::End => end.ok_or(Errno::EINVAL)?,
        Whence::Data | Whence::Hole => return Err(Errno::EINVAL),
    };
    base.checked_add_signed(offset)
        .filter(|&result| i64::try_from(result).is_ok())
        .ok_or(Errno::EINVAL)
}

/// Refuses a transfer that would go beyond the greatest offset.
pub(crate) fn check_end(offset: u64, len: usize) -> Result<()> {
    let end = offset.checked_add(len as u64);
    if end.is_some_and(|end| i64::try_from(end).is_ok()) {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// Operations of a file with contents.
pub(crate) struct RegularFileOps;

impl FileOps for RegularFileOps {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        file.with_offset(|offset| {
            check_end(*offset, buf.len())?;
            let n = file.inode().read_at(*offset, buf)?;
            *offset += n as u64;
            file.file_accessed();
            Ok(n)
        })
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        file.with_offset(|offset| {
            check_end(*offset, buf.len())?;
            let (at, n) = if file.flags().contains(OpenFlags::APPEND) {
                file.inode().append(buf)?
            } else {
                (*offset, file.inode().write_at(*offset, buf)?)
            };
            *offset = at + n as u64;
            Ok(n)
        })
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let n = file.inode().read_at(offset, buf)?;
        file.file_accessed();
        Ok(n)
    }

    fn write_at(&self, file: &File, offset: u64, buf: &[u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if file.flags().contains(OpenFlags::APPEND) {
            return file.inode().append(buf).map(|(_, n)| n);
        }
        file.inode().write_at(offset, buf)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        file.with_offset(|position| {
            *position = match whence {
                Whence::Data | Whence::Hole => {
                    let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                    file.inode().seek_hole_data(from, whence == Whence::Hole)?
                }
                _ => seek_position(*position, Some(file.metadata().size), whence, offset)?,
            };
            Ok(*position)
        })
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn backing(&self, file: &File) -> Result<Arc<dyn vm::Backing>> {
        file.inode().clone().backing()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// Operations of a directory. Position 0 is `.`, 1 is `..`, from 2 on the inode's cursor plus 2.
pub(crate) struct DirectoryOps;

impl FileOps for DirectoryOps {
    fn read(&self, _: &File, _: &mut [u8]) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn read_nothing(&self, _: &File) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, _: &File, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        file.with_offset(|position| {
            *position = seek_position(*position, None, whence, offset)?;
            Ok(*position)
        })
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn readdir(&self, file: &File, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if file.path().dentry().is_removed() {
            return Err(Errno::ENOENT);
        }
        file.with_offset(|position| {
            let parent_ino = file.path().parent().map_or(0, |p| p.inode().metadata().ino);
            let own = [(&b"."[..], file.metadata().ino), (&b".."[..], parent_ino)];
            while let Ok(index) = usize::try_from(*position)
                && index < own.len()
            {
                let (name, ino) = own[index];
                if !emit(DirEntry {
                    name,
                    ino,
                    kind: FileType::Directory,
                    next: *position + 1,
                }) {
                    return Ok(());
                }
                *position += 1;
            }
            file.inode().readdir(*position - 2, &mut |entry| {
                let next = entry.next + 2;
                let taken = emit(DirEntry { next, ..entry });
                if taken {
                    *position = next;
                }
                taken
            })?;
            file.file_accessed();
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
