//! Listing directories: `getdents64(2)`, and `getdents(2)` with its older structure.

use crate::{SysResult, Task, uaccess};
use abi::errno::Errno;
use alloc::vec::Vec;

/// The most one call returns.
const MAX: usize = 65_536;

/// How an entry is laid out: number, cursor of the next, length, then name and type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `struct linux_dirent`: the type is the last byte of the entry.
    Old,
    /// `struct linux_dirent64`: the type is before the name.
    New,
}

/// Number, cursor, length: what both begin with.
const HEADER: usize = 18;

fn list(task: &Task, fd: i32, buf: usize, size: usize, layout: Layout) -> SysResult {
    let file = task.files().get_io(fd)?;
    let size = size.min(MAX);
    let mut out: Vec<u8> = Vec::with_capacity(size.min(4096));
    // Where each entry ends, and where the list goes on behind it.
    let mut ends = Vec::new();
    let mut too_small = false;
    let before = file.with_offset(|position| *position);
    file.readdir(&mut |entry| {
        // A NUL and the type.
        let len = (HEADER + entry.name.len() + 2).next_multiple_of(8);
        if out.len() + len > size {
            too_small = out.is_empty();
            return false;
        }
        let end = out.len() + len;
        out.extend_from_slice(&entry.ino.to_ne_bytes());
        out.extend_from_slice(&entry.next.to_ne_bytes());
        out.extend_from_slice(&(len as u16).to_ne_bytes());
        if layout == Layout::New {
            out.push(entry.kind.dirent_type());
        }
        out.extend_from_slice(entry.name);
        out.resize(end, 0);
        if layout == Layout::Old {
            out[end - 1] = entry.kind.dirent_type();
        }
        ends.push((end, entry.next));
        true
    })?;
    if too_small {
        return Err(Errno::EINVAL);
    }
    let written = uaccess::write_some(buf, &out);
    if written == out.len() {
        return Ok(written);
    }
    // Entries that could not be delivered come again.
    let whole = ends.iter().rev().find(|(end, _)| *end <= written);
    let (delivered, next) = whole.map_or((0, before), |&(end, next)| (end, next));
    file.with_offset(|position| *position = next);
    if delivered > 0 { Ok(delivered) } else { Err(Errno::EFAULT) }
}

/// `getdents64(2)`
pub fn sys_getdents64(task: &Task, fd: i32, buf: usize, size: usize) -> SysResult {
    list(task, fd, buf, size, Layout::New)
}

/// `getdents(2)`
pub fn sys_getdents(task: &Task, fd: i32, buf: usize, size: usize) -> SysResult {
    list(task, fd, buf, size, Layout::Old)
}
