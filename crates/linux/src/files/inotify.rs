//! Watching files: `inotify_init(2)` and its relatives.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::inotify::{self, InotifyFile};
use fs::{Access, File, FileType, OpenFlags};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;

use crate::files::namei::lookup_at;
use crate::state::fdtable::CloseOnExec;
use crate::{SysResult, Task};

/// `inotify_init1(2)`: makes an inotify descriptor, with flags.
pub fn sys_inotify_init1(task: &Task, flags: u32) -> SysResult {
    if flags & !(sys::IN_CLOEXEC | sys::IN_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let open = OpenFlags::from_bits_retain(flags & sys::IN_NONBLOCK);
    let file = inotify::inotify_for(task.cred().user.real, open)?;
    task.files()
        .install(file, CloseOnExec::when(flags & sys::IN_CLOEXEC != 0))
}

/// `inotify_init(2)`: makes an inotify descriptor.
pub fn sys_inotify_init(task: &Task) -> SysResult {
    sys_inotify_init1(task, 0)
}

fn group(file: &Arc<File>) -> Result<&Arc<inotify::Inotify>, Errno> {
    file.ops_as::<InotifyFile>()
        .map(InotifyFile::group)
        .ok_or(Errno::EINVAL)
}

/// `inotify_add_watch(2)`: watches a path for events; returns the watch's number.
pub fn sys_inotify_add_watch(task: &Task, fd: Fd, name: UserAddr, mask: u32) -> SysResult {
    inotify::check_mask(mask)?;
    let file = task.file_io(fd)?;
    if mask & sys::IN_MASK_ADD != 0 && mask & sys::IN_MASK_CREATE != 0 {
        return Err(Errno::EINVAL);
    }
    let group = group(&file)?;
    let nofollow = if mask & sys::IN_DONT_FOLLOW != 0 {
        sys::AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    let path = lookup_at(task, Fd::CWD, name, nofollow)?;
    if mask & sys::IN_ONLYDIR != 0 && path.inode().kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    task.fs_cred().check_inode(&**path.inode(), Access::READ)?;
    group.add(path.inode(), mask).map(|wd| wd as usize)
}

/// `inotify_rm_watch(2)`: removes a watch.
pub fn sys_inotify_rm_watch(task: &Task, fd: Fd, wd: i32) -> SysResult {
    let file = task.file_io(fd)?;
    group(&file)?.remove(wd).map(|()| 0)
}
