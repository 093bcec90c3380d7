//! One opening of a file or directory of ext4: what it was told of errors, and `fsync`.

use alloc::sync::Arc;
use core::ops::Range;

use ::block::ErrorCursor;
use linux_raw_sys::general::MS_SYNCHRONOUS;
use task::Mutex;

use super::inode::Ext4Inode;
use crate::file_ops::{DirectoryOps, RegularFileOps};
use crate::{DirEntry, File, FileOps, OpenFlags, Result, Whence};

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
        RegularFileOps.read(file, buf)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        self.synced(file, RegularFileOps.write(file, buf))
    }

    fn supports_pread(&self) -> bool {
        RegularFileOps.supports_pread()
    }

    fn read_at(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        RegularFileOps.read_at(file, offset, buf)
    }

    fn write_at(&self, file: &File, offset: u64, buf: &[u8]) -> Result<usize> {
        self.synced(file, RegularFileOps.write_at(file, offset, buf))
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
