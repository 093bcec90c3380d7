//! Listing directories: `getdents64(2)`, and `getdents(2)` with its older structure.

use alloc::vec::Vec;

use abi::errno::Errno;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};

use crate::{SysResult, Task, uaccess};

/// Most bytes of entries that one call returns.
const MAX: usize = 65_536;

/// Layout of an entry: number, cursor of the next, length, then name and type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DirentFormat {
    /// `struct linux_dirent`: the type is the last byte of the entry.
    Dirent,
    /// `struct linux_dirent64`: the type is before the name.
    Dirent64,
}

/// Header of an entry in both layouts.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C, packed)]
struct Header {
    ino: u64,
    /// The cursor behind the entry.
    next: u64,
    /// Bytes of the whole entry.
    len: u16,
}

fn list(task: &Task, fd: Fd, buf: UserAddr, size: usize, layout: DirentFormat) -> SysResult {
    let file = task.files().get_io(fd)?;
    let size = size.min(MAX);
    let mut out: Vec<u8> = Vec::with_capacity(size.min(4096));
    let mut too_small = false;
    let before = file.with_offset(|position| *position);
    file.readdir(&mut |entry| {
        // A NUL and the type.
        let len = (size_of::<Header>() + entry.name.len() + 2).next_multiple_of(8);
        if out.len() + len > size {
            too_small = out.is_empty();
            return false;
        }
        let end = out.len() + len;
        out.extend_from_slice(
            Header {
                ino: entry.ino,
                next: entry.next,
                len: len as u16,
            }
            .as_bytes(),
        );
        if layout == DirentFormat::Dirent64 {
            out.push(entry.kind.dirent_type());
        }
        out.extend_from_slice(entry.name);
        out.resize(end, 0);
        if layout == DirentFormat::Dirent {
            out[end - 1] = entry.kind.dirent_type();
        }
        true
    })?;
    if too_small {
        return Err(Errno::EINVAL);
    }
    let written = uaccess::write_partial(buf, &out);
    if written == out.len() {
        return Ok(written);
    }
    // Entries that could not be delivered come again.
    let (delivered, next) = whole_entries(&out[..written]);
    file.with_offset(|position| *position = next.unwrap_or(before));
    if delivered > 0 {
        Ok(delivered)
    } else {
        Err(Errno::EFAULT)
    }
}

/// Counts the bytes of a list that was cut short that are whole entries, and finds the cursor
/// behind the last of them, if there is one.
fn whole_entries(list: &[u8]) -> (usize, Option<u64>) {
    let (mut end, mut next) = (0, None);
    while let Ok((header, _)) = Header::read_from_prefix(&list[end..])
        && end + usize::from(header.len) <= list.len()
    {
        (end, next) = (end + usize::from(header.len), Some(header.next));
    }
    (end, next)
}

/// `getdents64(2)`: reads entries of a directory as `struct linux_dirent64`.
pub fn sys_getdents64(task: &Task, fd: Fd, buf: UserAddr, size: usize) -> SysResult {
    list(task, fd, buf, size, DirentFormat::Dirent64)
}

/// `getdents(2)`: reads entries of a directory as `struct linux_dirent`.
pub fn sys_getdents(task: &Task, fd: Fd, buf: UserAddr, size: usize) -> SysResult {
    list(task, fd, buf, size, DirentFormat::Dirent)
}
