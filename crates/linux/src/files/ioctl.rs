//! `ioctl(2)`: what works on every descriptor is done here, the rest is the file's.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::ioctl::{IoctlCaller, IoctlRequest};
use fs::{File, FileType, OpenFlags};
use linux_raw_sys::ioctl;
use uapi::fd::Fd;

use crate::files::{file_ioctl, sigio};
use crate::state::fdtable::CloseOnExec;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// The calling task, as a device sees it.
struct TaskCaller<'a>(&'a Task);

impl IoctlCaller for TaskCaller<'_> {
    fn read_bytes(&self, addr: usize, to: &mut [u8]) -> Result<(), Errno> {
        uaccess::read_bytes(addr.into(), to)
    }

    fn write_bytes(&self, addr: usize, from: &[u8]) -> Result<(), Errno> {
        uaccess::write_bytes(addr.into(), from)
    }

    fn install(&self, file: Arc<File>, flags: OpenFlags) -> SysResult {
        self.0.files().install(file, CloseOnExec::of_flags(flags))
    }

    fn file(&self, fd: u32) -> Result<Arc<File>, Errno> {
        self.0.file_io(Fd::new(fd as i32))
    }

    fn privileged(&self) -> bool {
        self.0.cred().has_sys_admin()
    }
}

/// `ioctl(2)`: controls a device, socket or file by request numbers.
pub fn sys_ioctl(task: &Task, fd: Fd, command: u32, arg: usize) -> SysResult {
    let files = task.files();
    let file = files.get_io(fd)?;
    match command {
        ioctl::FIOCLEX => files.set_cloexec(fd, CloseOnExec::Yes)?,
        ioctl::FIONCLEX => files.set_cloexec(fd, CloseOnExec::No)?,
        ioctl::FIONBIO => set_flag(&file, OpenFlags::NONBLOCK, arg)?,
        ioctl::FIOASYNC => set_async(&file, fd, arg)?,
        ioctl::FIOSETOWN | ioctl::SIOCSPGRP if file.inode().kind() == FileType::Socket => {
            sigio::set_owner(task, &file, UserPtr::<i32>::new(arg.into()).read()?)?;
        }
        ioctl::FIOGETOWN | ioctl::SIOCGPGRP if file.inode().kind() == FileType::Socket => {
            UserPtr::<i32>::new(arg.into()).write(&(sigio::owner(&file)? as i32))?;
        }
        _ => {
            let caller = &TaskCaller(task);
            let request = IoctlRequest {
                command,
                arg,
                caller,
            };
            return match file_ioctl::call(task, &file, &request) {
                Err(Errno::ENOTTY) => file.ioctl(&request),
                answer => answer,
            };
        }
    }
    Ok(0)
}

/// Sets or clears `O_ASYNC` (`FIOASYNC`).
///
/// # Errors
/// `EFAULT`; `ENOTTY` to change it for what is always ready.
fn set_async(file: &Arc<File>, fd: Fd, arg: usize) -> Result<(), Errno> {
    let on = UserPtr::<i32>::new(arg.into()).read()? != 0;
    let before = file.flags();
    if before.contains(OpenFlags::ASYNC) == on {
        return Ok(());
    }
    if !file.ops().is_pollable() {
        return Err(Errno::ENOTTY);
    }
    file.set_flags(before ^ OpenFlags::ASYNC);
    fs::sigio::update_fasync(file, fd.raw())
}

fn set_flag(file: &File, flag: OpenFlags, arg: usize) -> Result<(), Errno> {
    let on = UserPtr::<i32>::new(arg.into()).read()? != 0;
    let mut flags = file.flags();
    flags.set(flag, on);
    file.set_flags(flags);
    Ok(())
}
