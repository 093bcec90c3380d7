//! Descriptors that refer to a process (`pidfd_open(2)`).

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags};
use uapi::fd::Fd;

use crate::Task;
use crate::process::{Process, process_table};

/// A descriptor of a process, which stays that process's even when the number is given to another.
pub(crate) struct PidFd {
    _counted: census::PidFd,
    pub(crate) process: Arc<Process>,
}

impl FileOps for PidFd {
    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.process.exit_waiters);
        }
        if process_table::has_ended(&self.process) {
            Events::READABLE
        } else {
            Events::empty()
        }
    }
}

/// A new descriptor of `process`, with `O_NONBLOCK` among the `flags` or not.
pub(crate) fn open(process: Arc<Process>, flags: OpenFlags) -> Arc<File> {
    File::anonymous(
        "anon_inode:[pidfd]",
        Arc::new(PidFd {
            _counted: census::PidFd::default(),
            process,
        }),
        OpenFlags::RDWR | flags,
    )
}

/// The process that a descriptor means, and whether waiting for it must not block.
///
/// # Errors
/// `EBADF`.
pub(crate) fn process_of(task: &Task, fd: Fd) -> Result<(Arc<Process>, bool), Errno> {
    let file = task.file_io(fd)?;
    let pidfd = file.ops_as::<PidFd>().ok_or(Errno::EBADF)?;
    Ok((pidfd.process.clone(), file.is_nonblocking()))
}
