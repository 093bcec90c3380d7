//! `ioctl(2)`: what works on every descriptor is done here, the rest is the file's.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::ioctl::{IoctlCaller, IoctlRequest};
use fs::{File, FileType, OpenFlags};
use linux_raw_sys::ioctl;
use uapi::fd::Fd;

use crate::files::sigio;
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
        ioctl::FIOASYNC => {
            set_flag(&file, OpenFlags::ASYNC, arg)?;
            fs::sigio::update_fasync(&file, fd.raw())?;
        }
        ioctl::FIOSETOWN | ioctl::SIOCSPGRP if file.inode().kind() == FileType::Socket => {
            sigio::set_owner(task, &file, UserPtr::<i32>::new(arg.into()).read()?)?;
        }
        ioctl::FIOGETOWN | ioctl::SIOCGPGRP if file.inode().kind() == FileType::Socket => {
            UserPtr::<i32>::new(arg.into()).write(&(sigio::owner(&file)? as i32))?;
        }
        ioctl::FIONREAD if file.inode().kind() == FileType::Regular => {
            let rest = file
                .metadata()
                .size
                .saturating_sub(file.with_offset(|o| *o));
            UserPtr::<i32>::new(arg.into()).write(&i32::try_from(rest).unwrap_or(i32::MAX))?;
        }
        FICLONE => return refuse_clone(&*files.get_io(Fd::new(arg as i32))?, &file),
        _ => {
            return file.ioctl(&IoctlRequest {
                command,
                arg,
                caller: &TaskCaller(task),
            });
        }
    }
    Ok(0)
}

/// `ioctl(2)`: a file shares the contents of another.
const FICLONE: u32 = 0x4004_9409;

/// No file system here can do that.
fn refuse_clone(from: &File, to: &File) -> SysResult {
    let kinds = [from, to].map(|file| file.inode().kind());
    if from.metadata().dev != to.metadata().dev {
        return Err(Errno::EXDEV);
    }
    if kinds.contains(&FileType::Directory) {
        return Err(Errno::EISDIR);
    }
    if kinds != [FileType::Regular; 2] {
        return Err(Errno::EINVAL);
    }
    let may = from.flags().is_readable()
        && to.flags().is_writable()
        && !to.flags().contains(OpenFlags::APPEND);
    Err(if may { Errno::EOPNOTSUPP } else { Errno::EBADF })
}

fn set_flag(file: &File, flag: OpenFlags, arg: usize) -> Result<(), Errno> {
    let on = UserPtr::<i32>::new(arg.into()).read()? != 0;
    let mut flags = file.flags();
    flags.set(flag, on);
    file.set_flags(flags);
    Ok(())
}
