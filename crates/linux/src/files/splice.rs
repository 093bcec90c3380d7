//! Moving data between descriptors inside the kernel: `splice(2)`, `tee(2)`, `vmsplice(2)`,
//! `sendfile(2)`, `copy_file_range(2)`.
//!
//! Everything is copied once on its way; no page changes its owner. What the target does not take
//! stays where it was.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::attributes::FileAttributes;
use fs::pipe::PipeEnd;
use fs::{Blocking, File, FileType, OpenFlags, Whence};
use linux_raw_sys::net::AF_UNIX;
use net::{MsgFlags, Socket, SocketType};
use uapi::fd::Fd;

use crate::files::read_write::BOUNCE_BUFFER_LEN;
use crate::process::rlimit::write_limit;
use crate::process::signal_broken_pipe;
use crate::state::usage::Direction;
use crate::uaccess::{self, UserPtr};
use crate::uio::{IoVec, IoVecs, MAX_TRANSFER, for_each_segment, total};
use crate::{SysResult, Task};

/// Copies between two files inside the kernel, from given offsets or the file positions. Stops at
/// the end of the input.
fn copy_range(
    task: &Task,
    (from, mut from_at): (&File, Option<&mut u64>),
    (to, mut to_at): (&File, Option<&mut u64>),
    len: usize,
) -> SysResult {
    let len = write_limit(task, to, to_at.as_deref().copied(), len.min(MAX_TRANSFER))?;
    let mut buf = fallible::zeroed(len.min(BOUNCE_BUFFER_LEN))?;
    let mut done = 0;
    while done < len {
        let want = (len - done).min(buf.len());
        let read = match &from_at {
            Some(at) => from.read_at(**at, &mut buf[..want]),
            None => from.read(&mut buf[..want]),
        };
        let n = match read {
            Ok(0) => break,
            Ok(n) => n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        };
        let written = match &to_at {
            Some(at) => to.write_at(**at, &buf[..n]),
            None => to.write(&buf[..n]),
        };
        let put = *written.as_ref().unwrap_or(&0);
        // What was read and could not be written stays unread.
        match &mut from_at {
            Some(at) => **at += put as u64,
            None if put < n => from.with_offset(|o| *o = o.saturating_sub((n - put) as u64)),
            None => {}
        }
        if let Some(at) = &mut to_at {
            **at += put as u64;
        }
        done += put;
        match written {
            Err(e) if done == 0 => return Err(e),
            Ok(_) if put == n => {}
            _ => break,
        }
    }
    Ok(done)
}

/// Runs a copy with an offset that the caller keeps in its memory, or (null) without one.
fn with_user_offset<R>(
    ptr: UserPtr<u64>,
    f: impl FnOnce(Option<&mut u64>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    if ptr.is_null() {
        return f(None);
    }
    let mut offset = ptr.read()?;
    if i64::try_from(offset).is_err() {
        return Err(Errno::EINVAL);
    }
    let result = f(Some(&mut offset))?;
    ptr.write(&offset)?;
    Ok(result)
}

/// Raises `SIGPIPE` where that is the error.
fn broken_pipe(task: &Task, result: SysResult) -> SysResult {
    result.inspect_err(|&e| {
        if e == Errno::EPIPE {
            signal_broken_pipe(task);
        }
    })
}

/// Whether the file has positions at all.
fn seekable(file: &File) -> bool {
    file.seek(Whence::Current, 0).is_ok()
}

/// Whether a file can be read in another way than by `read(2)`: neither directories nor pipes can,
/// nor event descriptors and the like.
fn is_spliceable(file: &File) -> bool {
    matches!(
        file.inode().kind(),
        FileType::Regular | FileType::Char | FileType::Socket
    )
}

/// Refuses what `splice(2)` cannot read or write: directories, and counters and sets that only look
/// like pipes.
fn check_spliceable(file: &File, offset: UserPtr<u64>) -> Result<(), Errno> {
    if !is_spliceable(file) || (!offset.is_null() && !seekable(file)) {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

/// From a file into a pipe, as much as there is room for.
fn file_to_pipe(
    from: &File,
    at: Option<&mut u64>,
    pipe: &PipeEnd,
    len: usize,
    (blocking, flags): (Blocking, u32),
) -> SysResult {
    pipe.fill(len, blocking, |buf| match at {
        Some(at) => {
            let n = from.read_at(*at, buf)?;
            *at += n as u64;
            Ok(n)
        }
        None => read_source(from, buf, flags),
    })
}

/// Reads a file at its position for `splice(2)`. A UNIX stream socket does not wait with
/// `SPLICE_F_NONBLOCK`; other files wait as for `read(2)`, TCP sockets, too, as on Linux 6.1.
fn read_source(from: &File, buf: &mut [u8], flags: u32) -> SysResult {
    match from.ops_as::<Socket>() {
        Some(socket)
            if flags & SPLICE_F_NONBLOCK != 0
                && socket.ops().family() == AF_UNIX
                && socket.ops().socket_type() == SocketType::Stream =>
        {
            let wait = socket.receive_wait(true);
            let received = socket.ops().receive(buf, MsgFlags::empty(), wait)?;
            Ok(received.copied)
        }
        _ => from.read(buf),
    }
}

/// From a pipe into a file, until the pipe is empty; waits only if there was nothing at all.
fn pipe_to_file(
    task: &Task,
    pipe: &PipeEnd,
    to: &File,
    mut at: Option<&mut u64>,
    len: usize,
    blocking: Blocking,
) -> SysResult {
    let len = write_limit(task, to, at.as_deref().copied(), len)?;
    let mut done = 0;
    while done < len {
        let moved = pipe.drain(
            len - done,
            if done > 0 { Blocking::Fail } else { blocking },
            |bytes| match &mut at {
                Some(at) => {
                    let n = to.write_at(**at, bytes)?;
                    **at += n as u64;
                    Ok(n)
                }
                None => to.write(bytes),
            },
        );
        match moved {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

const SPLICE_F_NONBLOCK: u32 = 2;
/// Move pages, non-blocking, more will come, pages are a gift: all but the second are advice.
const SPLICE_F_ALL: u32 = 15;

/// Source and destination of a transfer.
type Ends = (Arc<File>, Arc<File>);

/// Fails with `EINVAL` for unknown flags of `splice(2)`, `tee(2)` and `vmsplice(2)`.
fn check_splice_flags(flags: u32) -> Result<(), Errno> {
    if flags & !SPLICE_F_ALL == 0 {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// Files of two descriptors to move bytes between.
fn ends(task: &Task, in_fd: Fd, out_fd: Fd) -> Result<Ends, Errno> {
    let files = task.files();
    Ok((files.get_io(in_fd)?, files.get_io(out_fd)?))
}

fn check_access((from, to): (&File, &File)) -> Result<(), Errno> {
    if from.flags().is_readable() && to.flags().is_writable() {
        Ok(())
    } else {
        Err(Errno::EBADF)
    }
}

/// Refuses a transfer from an offset, or the opening's position, to behind the end of all files.
fn check_end(file: &File, offset: UserPtr<u64>, len: usize) -> Result<(), Errno> {
    let end = start_offset(file, offset)?.checked_add(len as u64);
    if end.is_some_and(|end| i64::try_from(end).is_ok()) {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// `splice(2)`: moves bytes between a pipe and a file.
pub fn sys_splice(
    task: &Task,
    in_fd: Fd,
    in_offset: UserPtr<u64>,
    out_fd: Fd,
    out_offset: UserPtr<u64>,
    len: usize,
    flags: u32,
) -> SysResult {
    // If nothing is to be moved, nothing else is looked at.
    if len == 0 {
        return Ok(0);
    }
    check_splice_flags(flags)?;
    let (from, to) = ends(task, in_fd, out_fd)?;
    let (asked, len) = (len, len.min(MAX_TRANSFER));
    let nonblocking = |pipe: &File| flags & SPLICE_F_NONBLOCK != 0 || pipe.is_nonblocking();
    let blocking = |pipe: &File| Blocking::unless(nonblocking(pipe));
    let (source, target) = (from.ops_as::<PipeEnd>(), to.ops_as::<PipeEnd>());
    if (source.is_some() && !in_offset.is_null()) || (target.is_some() && !out_offset.is_null()) {
        return Err(Errno::ESPIPE);
    }
    for offset in [out_offset, in_offset] {
        offset.read_optional()?;
    }
    check_access((&from, &to))?;
    let result = match (source, target) {
        (Some(source), Some(target)) if source.is_of_same_pipe(target) => Err(Errno::EINVAL),
        (Some(source), Some(target)) => source.move_to(
            target,
            len,
            Blocking::unless(nonblocking(&from) || nonblocking(&to)),
        ),
        (Some(source), None) => {
            check_spliceable(&to, out_offset)?;
            if to.flags().contains(OpenFlags::APPEND) {
                return Err(Errno::EINVAL);
            }
            check_end(&to, out_offset, asked)?;
            with_user_offset(out_offset, |at| {
                pipe_to_file(task, source, &to, at, len, blocking(&from))
            })
        }
        (None, Some(target)) => {
            check_spliceable(&from, in_offset)?;
            if !from.ops().is_spliceable() {
                return Err(Errno::EINVAL);
            }
            check_end(&from, in_offset, len.min(target.capacity()))?;
            with_user_offset(in_offset, |at| {
                file_to_pipe(&from, at, target, len, (blocking(&to), flags))
            })
        }
        (None, None) => Err(Errno::EINVAL),
    };
    broken_pipe(task, result)
}

/// `tee(2)`: copies bytes from a pipe to another; both keep them.
pub fn sys_tee(task: &Task, in_fd: Fd, out_fd: Fd, len: usize, flags: u32) -> SysResult {
    check_splice_flags(flags)?;
    if len == 0 {
        return Ok(0);
    }
    let (from, to) = ends(task, in_fd, out_fd)?;
    check_access((&from, &to))?;
    let (Some(source), Some(target)) = (from.ops_as::<PipeEnd>(), to.ops_as::<PipeEnd>()) else {
        return Err(Errno::EINVAL);
    };
    if source.is_of_same_pipe(target) {
        return Err(Errno::EINVAL);
    }
    let blocking = Blocking::unless(
        flags & SPLICE_F_NONBLOCK != 0 || from.is_nonblocking() || to.is_nonblocking(),
    );
    broken_pipe(
        task,
        source.copy_to(target, len.min(MAX_TRANSFER), blocking),
    )
}

/// `vmsplice(2)`: into a pipe's writing end, or out of its reading end.
pub fn sys_vmsplice(
    task: &Task,
    fd: Fd,
    iov: UserPtr<IoVec>,
    count: usize,
    flags: u32,
) -> SysResult {
    check_splice_flags(flags)?;
    let file = task.file_io(fd)?;
    if !file.flags().is_readable() && !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    let buffers = IoVecs::read(iov, count)?;
    let (buffers, len) = (buffers.as_slice(), total(buffers.as_slice()));
    if len == 0 {
        return Ok(0);
    }
    let pipe = file.ops_as::<PipeEnd>().ok_or(Errno::EBADF)?;
    let blocking = Blocking::unless(flags & SPLICE_F_NONBLOCK != 0 || file.is_nonblocking());
    if !file.flags().is_writable() {
        return pipe.drain(len, blocking, |bytes| {
            for_each_segment(buffers, 0, bytes.len(), |addr, range| {
                uaccess::write_bytes(addr, &bytes[range])
            })?;
            Ok(bytes.len())
        });
    }
    broken_pipe(
        task,
        pipe.fill(len, blocking, |buf| {
            // What can be read counts, up to a page that cannot.
            let mut there = 0;
            let all = for_each_segment(buffers, 0, buf.len(), |addr, range| {
                let (start, wanted) = (range.start, range.len());
                let read = uaccess::read_partial(addr, &mut buf[range]);
                there = start + read;
                if read == wanted {
                    Ok(())
                } else {
                    Err(Errno::EFAULT)
                }
            });
            if there == 0 {
                all.map(|()| 0)
            } else {
                Ok(there)
            }
        }),
    )
}

/// `sendfile(2)`. The offset is written back whatever came of it.
pub fn sys_sendfile(
    task: &Task,
    out_fd: Fd,
    in_fd: Fd,
    offset: UserPtr<u64>,
    len: usize,
) -> SysResult {
    let mut at = offset.read_optional()?;
    let result = sendfile(task, in_fd, out_fd, at.as_mut(), len);
    if let Some(at) = at {
        offset.write(&at)?;
    }
    for direction in [Direction::Read, Direction::Write] {
        task.io_accounting.count(direction, &result, 1);
    }
    broken_pipe(task, result)
}

/// Copies from a file with positions to anything that can be written. Into a pipe it is a
/// `splice(2)`: as much as there is room for, and from sockets, too.
fn sendfile(task: &Task, in_fd: Fd, out_fd: Fd, at: Option<&mut u64>, len: usize) -> SysResult {
    let files = task.files();
    let from = files.get_io(in_fd)?;
    if !from.flags().is_readable() {
        return Err(Errno::EBADF);
    }
    if at.is_some() && !from.ops().supports_pread() {
        return Err(Errno::ESPIPE);
    }
    let begin = at
        .as_deref()
        .copied()
        .unwrap_or_else(|| from.with_offset(|position| *position));
    // The greatest offset is the end of all files.
    if begin
        .checked_add(len as u64)
        .is_none_or(|end| i64::try_from(end).is_err())
    {
        return Err(Errno::EINVAL);
    }
    let to = files.get_io(out_fd)?;
    if !to.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    let pipe = to.ops_as::<PipeEnd>();
    if !is_spliceable(&from)
        || !from.ops().is_spliceable()
        || (pipe.is_none() && !seekable(&from))
        || to.flags().contains(OpenFlags::APPEND)
    {
        return Err(Errno::EINVAL);
    }
    match pipe {
        Some(_) if len == 0 => Ok(0),
        Some(pipe) => file_to_pipe(&from, at, pipe, len.min(MAX_TRANSFER), (to.blocking(), 0)),
        None => copy_range(task, (&from, at), (&to, None), len),
    }
}

/// Offset at which a copy begins: the caller's, or the file position.
fn start_offset(file: &File, offset: UserPtr<u64>) -> Result<u64, Errno> {
    if offset.is_null() {
        Ok(file.with_offset(|o| *o))
    } else {
        offset.read()
    }
}

/// `copy_file_range(2)`, within one file system.
pub fn sys_copy_file_range(
    task: &Task,
    in_fd: Fd,
    in_offset: UserPtr<u64>,
    out_fd: Fd,
    out_offset: UserPtr<u64>,
    len: usize,
    flags: u32,
) -> SysResult {
    let files = task.files();
    let (from, to) = (files.get_io(in_fd)?, files.get_io(out_fd)?);
    let (a, b) = (
        start_offset(&from, in_offset)?,
        start_offset(&to, out_offset)?,
    );
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let kinds = [&from, &to].map(|file| file.inode().kind());
    if kinds.contains(&FileType::Directory) {
        return Err(Errno::EISDIR);
    }
    if kinds != [FileType::Regular; 2] {
        return Err(Errno::EINVAL);
    }
    check_access((&from, &to))?;
    if to.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::EBADF);
    }
    if from.metadata().dev != to.metadata().dev {
        return Err(Errno::EXDEV);
    }
    let attributes = to.inode().permissions().attributes;
    attributes.refuse(FileAttributes::IMMUTABLE)?;
    if a.checked_add(len as u64).is_none() || b.checked_add(len as u64).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    // Within one file the ranges must not overlap.
    let len =
        len.min(usize::try_from(from.metadata().size.saturating_sub(a)).unwrap_or(usize::MAX));
    if Arc::ptr_eq(from.inode(), to.inode()) && a.abs_diff(b) < len as u64 {
        return Err(Errno::EINVAL);
    }
    with_user_offset(in_offset, |from_at| {
        with_user_offset(out_offset, |to_at| {
            copy_range(task, (&from, from_at), (&to, to_at), len)
        })
    })
}
