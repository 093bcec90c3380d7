//! Descriptors of processes: `pidfd_open(2)`, `pidfd_send_signal(2)`, `pidfd_getfd(2)`.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags};
use linux_raw_sys::general as sys;

use crate::process::Process;
use crate::siginfo::SigInfo;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, kill, proc, process_table};

/// A descriptor of a process, which stays that process's even when the number is given to another.
pub(crate) struct PidFd {
    _counted: census::PidFd,
    process: Arc<Process>,
}

impl FileOps for PidFd {
    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.watch(&self.process.has_ended);
        }
        if process_table::has_ended(&self.process) { Events::READABLE } else { Events::empty() }
    }
}

/// A new descriptor of `process`.
pub(crate) fn open(process: Arc<Process>, nonblocking: bool) -> Arc<File> {
    let flags = if nonblocking { OpenFlags::RDWR | OpenFlags::NONBLOCK } else { OpenFlags::RDWR };
    File::anonymous("anon_inode:[pidfd]", Arc::new(PidFd { _counted: census::PidFd::default(), process }), flags)
}

/// The process that a descriptor means, and whether waiting for it must not block.
///
/// # Errors
/// `EBADF`.
pub(crate) fn process_of(task: &Task, fd: i32) -> Result<(Arc<Process>, bool), Errno> {
    let file = task.file_io(fd)?;
    let pidfd = file.ops_as::<PidFd>().ok_or(Errno::EBADF)?;
    Ok((pidfd.process.clone(), file.nonblocking()))
}

/// `pidfd_open(2)`
pub fn sys_pidfd_open(task: &Task, pid: i32, flags: u32) -> SysResult {
    if flags & !sys::O_NONBLOCK != 0 || pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let Some(process) = process_table::find(pid) else {
        // A thread that is not its process's first has no such descriptor.
        return Err(if process_table::find_task(pid).is_some() { Errno::EINVAL } else { Errno::ESRCH });
    };
    task.files().install(open(process, flags != 0), true)
}

/// `pidfd_send_signal(2)`; a descriptor of the directory `/proc/PID` means that process, too.
pub fn sys_pidfd_send_signal(task: &Task, fd: i32, signo: i32, info: UserPtr<SigInfo>, flags: u32) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let file = task.file_io(fd)?;
    let process = match file.ops_as::<PidFd>() {
        Some(pidfd) => pidfd.process.clone(),
        None => proc::of_directory(file.inode()).ok_or(Errno::EBADF)??,
    };
    kill::send_by_descriptor(task, &process, signo, info)
}

/// `pidfd_getfd(2)`
pub fn sys_pidfd_getfd(task: &Task, fd: i32, theirs: i32, flags: u32) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (process, _) = process_of(task, fd)?;
    crate::peer::check(task, &process)?;
    let of = process.tasks().into_iter().next().ok_or(Errno::ESRCH)?;
    let file = of.file(theirs)?;
    task.files().install(file, true)
}
