//! Extended attributes: `getxattr(2)`, `setxattr(2)` and their relatives.

use alloc::vec::Vec;

use abi::errno::Errno;
use fs::Path;
use fs::xattr::{self, NAME_MAX, SIZE_MAX, SetMode};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;

use crate::files::namei::lookup_at;
use crate::{SysResult, Task, uaccess};

/// An attribute's name from user memory.
fn read_name(addr: UserAddr) -> Result<Vec<u8>, Errno> {
    let name = uaccess::read_cstr(addr, NAME_MAX + 1).map_err(|e| {
        if e == Errno::ENAMETOOLONG {
            Errno::ERANGE
        } else {
            e
        }
    })?;
    if name.is_empty() {
        Err(Errno::ERANGE)
    } else {
        Ok(name)
    }
}

/// Writes bytes to a buffer of `size` bytes; for size 0 only returns how many they are.
fn write_sized(bytes: &[u8], to: UserAddr, size: usize) -> SysResult {
    if size != 0 && !bytes.is_empty() {
        if bytes.len() > size {
            return Err(Errno::ERANGE);
        }
        uaccess::write_bytes(to, bytes)?;
    }
    Ok(bytes.len())
}

fn follow(task: &Task, name: UserAddr) -> Result<Path, Errno> {
    lookup_at(task, Fd::CWD, name, 0)
}

fn no_follow(task: &Task, name: UserAddr) -> Result<Path, Errno> {
    lookup_at(task, Fd::CWD, name, sys::AT_SYMLINK_NOFOLLOW)
}

fn opened(task: &Task, fd: Fd) -> Result<Path, Errno> {
    task.file_io(fd).map(|f| f.path().clone())
}

fn get(task: &Task, path: &Path, attribute: UserAddr, value: UserAddr, size: usize) -> SysResult {
    write_sized(
        &xattr::get(path, &read_name(attribute)?, &task.fs_cred())?,
        value,
        size,
    )
}

/// `getxattr(2)`: reads an extended attribute of a path.
pub fn sys_getxattr(
    task: &Task,
    name: UserAddr,
    attribute: UserAddr,
    value: UserAddr,
    size: usize,
) -> SysResult {
    get(task, &follow(task, name)?, attribute, value, size)
}

/// `lgetxattr(2)`: reads an extended attribute of a path; a symbolic link's own.
pub fn sys_lgetxattr(
    task: &Task,
    name: UserAddr,
    attribute: UserAddr,
    value: UserAddr,
    size: usize,
) -> SysResult {
    get(task, &no_follow(task, name)?, attribute, value, size)
}

/// `fgetxattr(2)`: reads an extended attribute of an open file.
pub fn sys_fgetxattr(
    task: &Task,
    fd: Fd,
    attribute: UserAddr,
    value: UserAddr,
    size: usize,
) -> SysResult {
    get(task, &opened(task, fd)?, attribute, value, size)
}

fn list(task: &Task, path: &Path, to: UserAddr, size: usize) -> SysResult {
    write_sized(&xattr::list(path, &task.fs_cred()), to, size)
}

/// `listxattr(2)`: lists the extended attributes of a path.
pub fn sys_listxattr(task: &Task, name: UserAddr, to: UserAddr, size: usize) -> SysResult {
    list(task, &follow(task, name)?, to, size)
}

/// `llistxattr(2)`: lists the extended attributes of a path; a symbolic link's own.
pub fn sys_llistxattr(task: &Task, name: UserAddr, to: UserAddr, size: usize) -> SysResult {
    list(task, &no_follow(task, name)?, to, size)
}

/// `flistxattr(2)`: lists the extended attributes of an open file.
pub fn sys_flistxattr(task: &Task, fd: Fd, to: UserAddr, size: usize) -> SysResult {
    list(task, &opened(task, fd)?, to, size)
}

fn set(
    task: &Task,
    path: &Path,
    attribute: UserAddr,
    value: UserAddr,
    size: usize,
    flags: u32,
) -> SysResult {
    const NEVER: u32 = sys::XATTR_CREATE | sys::XATTR_REPLACE;
    path.require_writable()?;
    let mode = match flags {
        0 => SetMode::Any,
        sys::XATTR_CREATE => SetMode::Create,
        sys::XATTR_REPLACE => SetMode::Replace,
        NEVER => SetMode::Never,
        _ => return Err(Errno::EINVAL),
    };
    let name = read_name(attribute)?;
    if size > SIZE_MAX {
        return Err(Errno::E2BIG);
    }
    let mut bytes = fallible::zeroed(size)?;
    uaccess::read_bytes(value, &mut bytes)?;
    xattr::set(path, &name, &bytes, mode, &task.fs_cred()).map(|()| 0)
}

/// `setxattr(2)`: sets an extended attribute of a path.
pub fn sys_setxattr(
    task: &Task,
    name: UserAddr,
    attribute: UserAddr,
    value: UserAddr,
    size: usize,
    flags: u32,
) -> SysResult {
    set(task, &follow(task, name)?, attribute, value, size, flags)
}

/// `lsetxattr(2)`: sets an extended attribute of a path; a symbolic link's own.
pub fn sys_lsetxattr(
    task: &Task,
    name: UserAddr,
    attribute: UserAddr,
    value: UserAddr,
    size: usize,
    flags: u32,
) -> SysResult {
    set(task, &no_follow(task, name)?, attribute, value, size, flags)
}

/// `fsetxattr(2)`: sets an extended attribute of an open file.
pub fn sys_fsetxattr(
    task: &Task,
    fd: Fd,
    attribute: UserAddr,
    value: UserAddr,
    size: usize,
    flags: u32,
) -> SysResult {
    set(task, &opened(task, fd)?, attribute, value, size, flags)
}

fn remove(task: &Task, path: &Path, attribute: UserAddr) -> SysResult {
    path.require_writable()?;
    xattr::remove(path, &read_name(attribute)?, &task.fs_cred()).map(|()| 0)
}

/// `removexattr(2)`: removes an extended attribute of a path.
pub fn sys_removexattr(task: &Task, name: UserAddr, attribute: UserAddr) -> SysResult {
    remove(task, &follow(task, name)?, attribute)
}

/// `lremovexattr(2)`: removes an extended attribute of a path; a symbolic link's own.
pub fn sys_lremovexattr(task: &Task, name: UserAddr, attribute: UserAddr) -> SysResult {
    remove(task, &no_follow(task, name)?, attribute)
}

/// `fremovexattr(2)`: removes an extended attribute of an open file.
pub fn sys_fremovexattr(task: &Task, fd: Fd, attribute: UserAddr) -> SysResult {
    remove(task, &opened(task, fd)?, attribute)
}
