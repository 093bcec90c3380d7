//! A regular file is written or runs as a program, never both (`ETXTBSY`).

use core::sync::atomic::{AtomicI32, Ordering};

use abi::errno::Errno;

use crate::{Path, Result};

/// Count of writers and running programs of an inode (Linux `i_writecount`): openings for writing
/// count up from zero, programs down.
#[derive(Default)]
pub struct WriteCount(AtomicI32);

impl WriteCount {
    fn enter(&self, step: i32) -> Result<()> {
        let allowed = |count: i32| (count.signum() != -step).then_some(count + step);
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, allowed)
            .map(drop)
            .map_err(|_| Errno::ETXTBSY)
    }

    fn leave(&self, step: i32) {
        self.0.fetch_sub(step, Ordering::SeqCst);
    }

    /// How many openings for writing there are.
    pub(crate) fn writing(&self) -> i32 {
        self.0.load(Ordering::SeqCst).max(0)
    }
}

const WRITES: i32 = 1;
const RUNS: i32 = -1;

/// Step added to a file's [`WriteCount`] until dropped.
struct WriteCountGuard {
    path: Path,
    step: i32,
}

impl WriteCountGuard {
    fn new(path: &Path, step: i32) -> Result<Self> {
        path.inode()
            .writers()
            .map_or(Ok(()), |writers| writers.enter(step))?;
        Ok(Self {
            path: path.clone(),
            step,
        })
    }
}

impl Drop for WriteCountGuard {
    fn drop(&mut self) {
        if let Some(writers) = self.path.inode().writers() {
            writers.leave(self.step);
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
    pub fn begin(path: &Path) -> Result<Self> {
        path.mount().begin_writing()?;
        let counted =
            WriteCountGuard::new(path, WRITES).inspect_err(|_| path.mount().end_writing())?;
        Ok(Self { counted })
    }
}

impl Drop for WriteAccess {
    fn drop(&mut self) {
        self.counted.path.mount().end_writing();
    }
}

/// Hold on a file that is run, until dropped; meanwhile nobody can change its contents.
pub struct DenyWriteAccess {
    counted: WriteCountGuard,
}

impl DenyWriteAccess {
    /// # Errors
    /// `ETXTBSY` while somebody has the file open for writing.
    pub fn begin(path: &Path) -> Result<Self> {
        Ok(Self {
            counted: WriteCountGuard::new(path, RUNS)?,
        })
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.counted.path
    }
}
