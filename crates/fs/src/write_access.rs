//! A regular file is written or runs as a program, never both (`ETXTBSY`).

use core::sync::atomic::{AtomicI32, Ordering};

use abi::errno::Errno;

use crate::{Path, Result};

/// Count of writers and running programs of an inode (Linux `i_writecount`): files open for writing
/// count up from zero, programs down.
#[derive(Default)]
pub struct WriteCount(AtomicI32);

impl WriteCount {
    fn get(&self, step: i32) -> Result<()> {
        let allowed = |count: i32| (count.signum() != -step).then_some(count + step);
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, allowed)
            .map(drop)
            .map_err(|_| Errno::ETXTBSY)
    }

    fn put(&self, step: i32) {
        self.0.fetch_sub(step, Ordering::SeqCst);
    }

    /// How many files are open for writing.
    pub(crate) fn writers(&self) -> i32 {
        self.0.load(Ordering::SeqCst).max(0)
    }
}

const WRITER: i32 = 1;
const DENIER: i32 = -1;

/// Step added to a file's [`WriteCount`] until dropped.
struct WriteCountGuard {
    path: Path,
    step: i32,
}

impl WriteCountGuard {
    fn new(path: &Path, step: i32) -> Result<Self> {
        path.inode()
            .write_count()
            .map_or(Ok(()), |writers| writers.get(step))?;
        Ok(Self {
            path: path.clone(),
            step,
        })
    }
}

impl Drop for WriteCountGuard {
    fn drop(&mut self) {
        if let Some(writers) = self.path.inode().write_count() {
            writers.put(self.step);
        }
    }
}

/// Right to change a file's contents, until dropped; meanwhile it cannot be run, nor the mount be
/// made read-only.
pub struct WriteAccess {
    counted: WriteCountGuard,
}

impl WriteAccess {
    /// # Errors
    /// `EROFS` where nothing may be changed, `ETXTBSY` while the file is run.
    pub fn acquire(path: &Path) -> Result<Self> {
        path.mount().want_write()?;
        let counted =
            WriteCountGuard::new(path, WRITER).inspect_err(|_| path.mount().drop_write())?;
        Ok(Self { counted })
    }
}

impl Drop for WriteAccess {
    fn drop(&mut self) {
        self.counted.path.mount().drop_write();
    }
}

/// Hold on a file that is run, until dropped; meanwhile nobody can change its contents.
pub struct DenyWriteAccess {
    counted: WriteCountGuard,
}

impl DenyWriteAccess {
    /// # Errors
    /// `ETXTBSY` while somebody has the file open for writing.
    pub fn acquire(path: &Path) -> Result<Self> {
        Ok(Self {
            counted: WriteCountGuard::new(path, DENIER)?,
        })
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.counted.path
    }
}
