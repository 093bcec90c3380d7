//! Listing directories: `getdents64(2)`.

use crate::{SysResult, Task, uaccess};
use abi::errno::Errno;
use alloc::vec::Vec;

/// Offset of the name in `struct linux_dirent64`.
const HEADER: usize = 19;
/// The most one call returns.
const MAX: usize = 65_536;

/// `getdents64(2)`
pub fn sys_getdents64(task: &Task, fd: i32, buf: usize, size: usize) -> SysResult {
    let file = task.files().get_io(fd)?;
    let size = size.min(MAX);
    let mut out: Vec<u8> = Vec::with_capacity(size.min(4096));
    let mut too_small = false;
    file.readdir(&mut |entry| {
        let len = (HEADER + entry.name.len() + 1).next_multiple_of(8);
        if out.len() + len > size {
            too_small = out.is_empty();
            return false;
        }
        let end = out.len() + len;
        out.extend_from_slice(&entry.ino.to_ne_bytes());
        out.extend_from_slice(&entry.next.to_ne_bytes());
        out.extend_from_slice(&(len as u16).to_ne_bytes());
        out.push(entry.kind.dirent_type());
        out.extend_from_slice(entry.name);
        out.resize(end, 0);
        true
    })?;
    if too_small {
        return Err(Errno::EINVAL);
    }
    uaccess::write_bytes(buf, &out)?;
    Ok(out.len())
}
