//! One opening of a file or directory of ext4: what it was told of errors, and `fsync`.

use alloc::sync::Arc;
use core::ops::Range;

use ::block::{CachedRun, ErrorCursor};
use linux_raw_sys::general::MS_SYNCHRONOUS;
use task::Mutex;
use vm::Page;

use super::inode::Ext4Inode;
use crate::block::check_direct;
use crate::file_ops::{DirectoryOps, RegularFileOps, check_end};
use crate::{DirEntry, File, FileOps, Inode, OpenFlags, Result, Whence};

/// An opening of a regular file.
pub(super) struct OpenFile {
    inode: Arc<Ext4Inode>,
    /// Errors of writing back that this opener was told of: the file's, and all files'.
    told: Mutex<ErrorCursor>,
    told_of_all: Mutex<ErrorCursor>,
}

impl OpenFile {
    pub(super) fn new(inode: Arc<Ext4Inode>) -> Result<Self> {
        let told = Mutex::new(inode.contents()?.cache().sample_errors());
        let told_of_all = Mutex::new(inode.fs().sample_errors());
        Ok(Self {
            inode,
            told,
            told_of_all,
        })
    }

    fn check_errors(&self) -> Result<()> {
        let cache = self.inode.contents()?.cache();
        cache.check_errors(&mut self.told.lock())
    }

    /// Refuses a direct transfer that is not made of whole blocks.
    fn check_direct(&self, offset: u64, len: usize) -> Result<()> {
        check_end(offset, len)?;
        check_direct(offset, len, self.inode.fs().logical_block())
    }

    /// Reads past the cache (`O_DIRECT`).
    fn read_direct(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_direct(offset, buf.len())?;
        let n = self.inode.contents()?.read_direct(offset, buf)?;
        file.file_accessed();
        Ok(n)
    }

    /// Writes at an offset, or behind the end if it was opened so, and keeps nothing in the cache
    /// (`O_DIRECT`). Where it began, and how much was written.
    fn write_direct(&self, file: &File, offset: u64, buf: &[u8]) -> Result<(u64, usize)> {
        if buf.is_empty() {
            return Ok((offset, 0));
        }
        let contents = self.inode.contents()?;
        let appends = file.flags().contains(OpenFlags::APPEND);
        let offset = if appends { contents.size() } else { offset };
        self.check_direct(offset, buf.len())?;
        let (at, n) = if appends {
            self.inode.append(buf)?
        } else {
            (offset, self.inode.write_at(offset, buf)?)
        };
        let written = at..at + n as u64;
        contents.cache().write_through(written, &self.told)?;
        Ok((at, n))
    }

    /// Writes, and with `O_SYNC` or `O_DSYNC` not into the cache only.
    fn synced(&self, file: &File, written: Result<usize>) -> Result<usize> {
        let flags = file.path().mount().super_block().flags();
        let written = written?;
        if written == 0 {
            return Ok(0);
        }
        if file.flags().contains(OpenFlags::DSYNC) || flags & MS_SYNCHRONOUS != 0 {
            self.sync()?;
        }
        Ok(written)
    }
}

impl FileOps for OpenFile {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        if !file.flags().contains(OpenFlags::DIRECT) {
            return RegularFileOps.read(file, buf);
        }
        file.with_offset(|offset| {
            let n = self.read_direct(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let written = if file.flags().contains(OpenFlags::DIRECT) {
            file.with_offset(|offset| {
                let (at, n) = self.write_direct(file, *offset, buf)?;
                *offset = at + n as u64;
                Ok(n)
            })
        } else {
            RegularFileOps.write(file, buf)
        };
        self.synced(file, written)
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
        let contents = self.inode.contents().ok()?;
        file.transfer_at(offset, |at| {
            let read = check_end(at, len).and_then(|()| contents.read_run(at, len, run));
            if read.is_ok() {
                file.file_accessed();
            }
            Some(read)
        })
    }

    fn read_pages(
        &self,
        file: &File,
        offset: Option<u64>,
        pages: &[Page],
    ) -> Option<Result<usize>> {
        let contents = self.inode.contents().ok()?;
        file.transfer_pages(offset, |first| {
            let result = contents.read_pages(first, pages);
            if result.is_ok() {
                file.file_accessed();
            }
            Some(result)
        })
    }

    fn write_pages(
        &self,
        file: &File,
        offset: Option<u64>,
        pages: &[Page],
    ) -> Option<Result<usize>> {
        if file.flags().contains(OpenFlags::APPEND) {
            return None;
        }
        let written = file.transfer_pages(offset, |first| {
            self.inode.write_pages(first, pages, &self.told)
        })?;
        Some(self.synced(file, written))
    }

    fn supports_pread(&self) -> bool {
        RegularFileOps.supports_pread()
    }

    fn read_at(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if file.flags().contains(OpenFlags::DIRECT) {
            self.read_direct(file, offset, buf)
        } else {
            RegularFileOps.read_at(file, offset, buf)
        }
    }

    fn write_at(&self, file: &File, offset: u64, buf: &[u8]) -> Result<usize> {
        let written = if file.flags().contains(OpenFlags::DIRECT) {
            self.write_direct(file, offset, buf).map(|(_, n)| n)
        } else {
            RegularFileOps.write_at(file, offset, buf)
        };
        self.synced(file, written)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        RegularFileOps.seek(file, whence, offset)
    }

    fn is_pollable(&self) -> bool {
        RegularFileOps.is_pollable()
    }

    fn backing(&self, file: &File) -> Result<Arc<dyn vm::Backing>> {
        RegularFileOps.backing(file)
    }

    fn sync(&self) -> Result<()> {
        let done = self.inode.sync_all();
        self.check_errors().and(done)
    }

    fn sync_range(&self, bytes: Range<u64>) -> Result<()> {
        self.inode.contents()?.cache().write_range(bytes);
        self.check_errors()
    }

    fn check_file_system_errors(&self) -> Result<()> {
        self.inode.fs().check_errors(&mut self.told_of_all.lock())
    }
}

/// An opening of a directory.
pub(super) struct OpenDirectory {
    inode: Arc<Ext4Inode>,
    /// Errors of writing files back that this opener was told of.
    told_of_all: Mutex<ErrorCursor>,
}

impl OpenDirectory {
    pub(super) fn new(inode: Arc<Ext4Inode>) -> Self {
        let told_of_all = Mutex::new(inode.fs().sample_errors());
        Self { inode, told_of_all }
    }
}

impl FileOps for OpenDirectory {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        DirectoryOps.read(file, buf)
    }

    fn supports_pread(&self) -> bool {
        DirectoryOps.supports_pread()
    }

    fn read_at(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        DirectoryOps.read_at(file, offset, buf)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        DirectoryOps.seek(file, whence, offset)
    }

    fn is_pollable(&self) -> bool {
        DirectoryOps.is_pollable()
    }

    fn readdir(&self, file: &File, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        DirectoryOps.readdir(file, emit)
    }

    fn sync(&self) -> Result<()> {
        self.inode.sync_all()
    }

    fn check_file_system_errors(&self) -> Result<()> {
        self.inode.fs().check_errors(&mut self.told_of_all.lock())
    }
}
