//! Pipes and event counters: `pipe(2)`, `eventfd(2)`.

use abi::errno::Errno;
use fs::{OpenFlags, eventfd, pipe};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;

use crate::files::fallocate;
use crate::state::fdtable::CloseOnExec;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `pipe2(2)`: makes a pipe with flags; stores its two descriptors.
pub fn sys_pipe2(task: &Task, fds: UserPtr<[Fd; 2]>, flags: u32) -> SysResult {
    if flags & !(sys::O_CLOEXEC | sys::O_NONBLOCK | sys::O_DIRECT) != 0 {
        return Err(Errno::EINVAL);
    }
    let flags = OpenFlags::from_bits_retain(flags);
    let cloexec = CloseOnExec::of_flags(flags);
    let cred = task.cred();
    let any = cred.capable(sys::CAP_SYS_RESOURCE) || cred.has_sys_admin();
    let (reader, writer) = pipe::pipe_for(cred.user.real, any, flags)?;
    fallocate::chown_to_caller(task, &**reader.inode())?;
    let files = task.files();
    let read_fd = Fd::from_index(files.install(reader, cloexec)?);
    let result = files.install(writer, cloexec).and_then(|write_fd| {
        let write_fd = Fd::from_index(write_fd);
        fds.write(&[read_fd, write_fd])
            .or_else(|e| files.close(write_fd).and(Err(e)))
    });
    // Either both descriptors are there and known, or neither.
    result
        .or_else(|e| files.close(read_fd).and(Err(e)))
        .map(|()| 0)
}

/// `pipe(2)`: makes a pipe; stores its two descriptors.
pub fn sys_pipe(task: &Task, fds: UserPtr<[Fd; 2]>) -> SysResult {
    sys_pipe2(task, fds, 0)
}

/// `eventfd2(2)`: makes an event counter, with flags.
pub fn sys_eventfd2(task: &Task, initial: u32, flags: u32) -> SysResult {
    if flags & !(sys::EFD_SEMAPHORE | sys::EFD_CLOEXEC | sys::EFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let open = OpenFlags::from_bits_retain(flags & sys::EFD_NONBLOCK);
    let file = eventfd::eventfd(initial, flags & sys::EFD_SEMAPHORE != 0, open);
    task.files()
        .install(file, CloseOnExec::when(flags & sys::EFD_CLOEXEC != 0))
}

/// `eventfd(2)`: makes an event counter.
pub fn sys_eventfd(task: &Task, initial: u32) -> SysResult {
    sys_eventfd2(task, initial, 0)
}
