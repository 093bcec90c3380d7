//! Descriptors of processes: `pidfd_open(2)`, `pidfd_send_signal(2)`, `pidfd_getfd(2)`.

use abi::errno::Errno;
use fs::OpenFlags;
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::pid::Pid;
use uapi::siginfo::SigInfo;

use crate::process::{access, pidfd, process_table};
use crate::signal::kill;
use crate::state::credentials::TraceCreds;
use crate::state::fdtable::CloseOnExec;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, procfs};

/// `pidfd_open(2)`: makes a descriptor of a process or thread.
pub fn sys_pidfd_open(task: &Task, pid: Pid, flags: u32) -> SysResult {
    if flags & !sys::O_NONBLOCK != 0 || !pid.is_valid() {
        return Err(Errno::EINVAL);
    }
    let Some(process) = process_table::find(pid) else {
        // A thread that is not its process's first has no such descriptor.
        return Err(if process_table::find_task(pid.leader()).is_some() {
            Errno::EINVAL
        } else {
            Errno::ESRCH
        });
    };
    task.files().install(
        pidfd::open(process, OpenFlags::from_bits_retain(flags)),
        CloseOnExec::Yes,
    )
}

/// `pidfd_send_signal(2)`; a descriptor of the directory `/proc/PID` means that process, too.
pub fn sys_pidfd_send_signal(
    task: &Task,
    fd: Fd,
    signo: i32,
    info: UserPtr<SigInfo>,
    flags: u32,
) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let file = task.file_io(fd)?;
    let process = match file.ops_as::<pidfd::PidFd>() {
        Some(pidfd) => pidfd.process.clone(),
        None => procfs::process_of_pid_dir(file.inode()).ok_or(Errno::EBADF)??,
    };
    kill::send_by_descriptor(task, &process, signo, info)
}

/// `pidfd_getfd(2)`: duplicates a descriptor of another process.
pub fn sys_pidfd_getfd(task: &Task, fd: Fd, theirs: Fd, flags: u32) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (process, _) = pidfd::process_of(task, fd)?;
    access::check_trace_access(task, &process, TraceCreds::Real)?;
    let of = process.tasks().into_iter().next().ok_or(Errno::ESRCH)?;
    let file = of.file(theirs)?;
    task.files().install_shared(file, CloseOnExec::Yes)
}
