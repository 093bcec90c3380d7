//! Reading and writing: `read(2)`, `write(2)`, `lseek(2)` and their relatives.
//!
//! User memory is copied through a kernel buffer: no lock of a file is ever held while user memory,
//! which may itself be a mapping of that file, is touched.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use fs::eventfd::EventFd;
use fs::pipe::PipeEnd;
use fs::poll::Events;
use fs::{File, FileOps, FileType, OpenFlags, Whence};
use guard::user::UserRegs;
use linux_raw_sys::general as sys;
use net::SocketType;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;

use crate::files::pages::{self, Transfer};
use crate::process::rlimit::write_limit;
use crate::process::signal_broken_pipe;
use crate::socket::send_recv::{
    kind_of, probe, receive_for_read, signals_broken_pipe, write_message, write_to_socket,
};
use crate::state::usage::Direction;
use crate::uaccess::{self, UserPtr};
use crate::uio::{
    IoVec, IoVecs, MAX_TRANSFER, STACK_BUFFER_LEN, UserBuf, copy_in, copy_out, total,
};
use crate::{SysResult, Task};

/// Size of the kernel buffer that a transfer goes through, in bytes.
pub(crate) const BOUNCE_BUFFER_LEN: usize = 65_536;
/// Largest transfer of the fast path, in bytes; event descriptors and wake-ups through pipes are
/// this small.
const FAST_PATH_LEN: usize = 16;
/// Largest transfer beyond it that goes through a buffer of one cache line: a message between
/// instances is one.
const LINE_LEN: usize = 64;

/// Refuses a transfer that would go beyond the greatest offset.
fn check_end(offset: Option<u64>, len: usize) -> Result<(), Errno> {
    let beyond =
        offset.is_some_and(|offset| i64::try_from(offset.saturating_add(len as u64)).is_err());
    if beyond { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Checks the one buffer of a transfer at `offset` or (`None`) at the opening's position, and cuts
/// it to the most that one call transfers.
fn one_buffer(addr: UserAddr, len: usize, offset: Option<u64>) -> Result<[UserBuf; 1], Errno> {
    if !addr.access_ok(len) {
        return Err(Errno::EFAULT);
    }
    check_end(offset, len)?;
    Ok([UserBuf {
        addr,
        len: len.min(MAX_TRANSFER),
    }])
}

/// Result of a read whose `bytes` reached the caller only as far as the first `delivered`. The
/// others are as unread as before; a pipe gives whole pages only, a socket that keeps messages
/// apart a whole one, which is lost, and what is read in records of one size (eventfd, timerfd,
/// signalfd) whole ones.
fn unread_undelivered(file: &File, offset: Option<u64>, bytes: &[u8], delivered: usize) -> usize {
    if kind_of(file).is_some_and(|kind| kind != SocketType::Stream) {
        return 0;
    }
    if let Some(pipe) = file.ops_as::<PipeEnd>() {
        let whole = delivered - delivered % PAGE_SIZE;
        pipe.unread(&bytes[whole..]);
        return whole;
    }
    let has_position = matches!(file.inode().kind(), FileType::Regular | FileType::Block);
    if has_position {
        move_back(file, offset, bytes.len() - delivered);
    }
    delivered - delivered % file.ops().min_transfer().max(1)
}

/// Puts the position back by bytes that were read from there (`offset` is `None`) in vain.
pub(super) fn move_back(file: &File, offset: Option<u64>, bytes: usize) {
    if offset.is_none() {
        file.with_offset(|at| *at = at.saturating_sub(bytes as u64));
    }
}

/// Kernel buffer for a transfer of `wanted` bytes: on the caller's stack if they are few, else of
/// up to [`BOUNCE_BUFFER_LEN`] bytes, through which they go piece by piece. There is none before
/// the first call.
///
/// # Errors
/// `ENOMEM`.
#[inline(always)]
fn bounce_buffer<'a>(
    wanted: usize,
    small: &'a mut [u8; STACK_BUFFER_LEN],
    large: &'a mut Vec<u8>,
) -> Result<&'a mut [u8], Errno> {
    if wanted <= STACK_BUFFER_LEN {
        return Ok(&mut small[..wanted]);
    }
    if large.is_empty() {
        *large = fallible::zeroed(wanted.min(BOUNCE_BUFFER_LEN))?;
    }
    Ok(large)
}

/// Outcome of a part of a transfer that may have come after others: what all of them did, if it
/// failed.
fn part<T>(result: Result<T, Errno>, done: usize) -> Result<T, SysResult> {
    result.map_err(|error| if done > 0 { Ok(done) } else { Err(error) })
}

/// Whether transfers go past a cache. (Of a pipe the flag says something else.)
fn is_direct(file: &File) -> bool {
    file.fills_buffers() && file.flags().contains(OpenFlags::DIRECT)
}

/// Refuses a transfer that goes in several steps, the last of which would not be made of whole
/// blocks (`O_DIRECT`): before the first.
fn check_direct(file: &File, wanted: usize) -> Result<(), Errno> {
    if wanted > PAGE_SIZE
        && file.flags().contains(OpenFlags::DIRECT)
        && let Some(alignment) = file.path().direct_alignment()
    {
        return fs::block::check_direct(0, wanted, alignment);
    }
    Ok(())
}

/// Reads into the caller's buffers, from `offset` or (`None`) from the file position, and accounts
/// for it.
fn read_accounted(task: &Task, file: &File, buffers: &[UserBuf], offset: Option<u64>) -> SysResult {
    let result = read_iov(task, file, buffers, offset);
    task.io_accounting.count(Direction::Read, &result, 1);
    result
}

/// Reads into buffers one after the other.
fn read_iov(task: &Task, file: &File, buffers: &[UserBuf], offset: Option<u64>) -> SysResult {
    if !file.flags().is_readable() {
        return Err(Errno::EBADF);
    }
    let wanted = total(buffers);
    if wanted < file.ops().min_transfer() {
        return Err(Errno::EINVAL);
    }
    check_direct(file, wanted)?;
    // A file gives all it has, in steps; what may have to be waited for gives what it has now, and
    // only once.
    let whole = file.fills_buffers();
    let pipe = file.ops_as::<PipeEnd>();
    let once = |buf: &mut [u8], done: usize| match (offset, pipe) {
        (Some(offset), _) => file.read_at(offset + done as u64, buf),
        (None, Some(pipe)) if done > 0 => pipe.try_read(buf),
        (None, _) => file.read(buf),
    };
    // Bytes on their way through sockets must not be lost because they cannot be delivered. A
    // message, a signal, an event is, as on Linux.
    if kind_of(file) == Some(SocketType::Stream)
        && let Some(first) = buffers.iter().find(|buffer| buffer.len > 0)
    {
        probe(file, first.addr)?;
        if wanted > STACK_BUFFER_LEN && offset.is_none() {
            return read_stream(file, buffers, wanted);
        }
    }
    let (mut small, mut large) = ([0; STACK_BUFFER_LEN], Vec::new());
    let is_direct = is_direct(file);
    let mut done = 0;
    loop {
        let by_pages = if is_direct {
            pages::read_direct(task, file, buffers, offset, done, wanted)
        } else if whole && wanted > STACK_BUFFER_LEN {
            pages::read_cached(file, buffers, offset, done, wanted)
        } else {
            None
        };
        if let Some(transfer) = by_pages {
            match transfer.goes_on(done, wanted) {
                Ok(by) => done = by,
                Err(result) => return result,
            }
            continue;
        }
        let buf = match part(bounce_buffer(wanted, &mut small, &mut large), done) {
            Ok(buf) => buf,
            Err(result) => return result,
        };
        let len = (wanted - done).min(buf.len());
        let n = match part(once(&mut buf[..len], done), done) {
            Ok(n) => n,
            Err(result) => return result,
        };
        let delivered = copy_out(buffers, done, &buf[..n]);
        if delivered < n {
            done += unread_undelivered(file, offset, &buf[..n], delivered);
            return if done > 0 {
                Ok(done)
            } else {
                Err(Errno::EFAULT)
            };
        }
        done += n;
        if n < len || done == wanted || !(whole || pipe.is_some()) {
            return Ok(done);
        }
    }
}

/// Reads from a stream socket what there is, by a buffer that is not larger: however much is asked
/// for, a read costs what it brings.
fn read_stream(file: &File, buffers: &[UserBuf], wanted: usize) -> SysResult {
    let data = receive_for_read(file, wanted.min(BOUNCE_BUFFER_LEN))?;
    let delivered = copy_out(buffers, 0, &data);
    if delivered == 0 && !data.is_empty() {
        return Err(Errno::EFAULT);
    }
    Ok(delivered)
}

/// Writes the caller's buffers, at `offset` or (`None`) at the file position.
fn write_iov(task: &Task, file: &File, buffers: &[UserBuf], offset: Option<u64>) -> SysResult {
    if !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    if total(buffers) < file.ops().min_transfer() {
        return Err(Errno::EINVAL);
    }
    let wanted = write_limit(
        task,
        file,
        offset,
        total(buffers).min(file.ops().max_write()),
    )?;
    check_direct(file, wanted)?;
    if wanted > BOUNCE_BUFFER_LEN
        && let Some(result) = write_message(task, file, buffers)
    {
        task.io_accounting.count(Direction::Write, &result, 1);
        return result;
    }
    let is_direct = is_direct(file);
    let pages = |done| {
        is_direct
            .then(|| pages::write_direct(task, file, buffers, offset, done, wanted))
            .flatten()
    };
    let copy = |buf: &[u8], done: usize| match offset {
        Some(offset) => file.write_at(offset + done as u64, buf),
        None => file.write(buf),
    };
    let result = write_in_chunks(task, file, buffers, wanted, pages, copy);
    task.io_accounting.count(Direction::Write, &result, 1);
    result
}

/// Accounts for `calls` short transfers by one `read(2)` or `write(2)` that was chosen to stand for
/// them.
pub(crate) fn account_sampled_io(task: &Task, regs: &UserRegs, result: &SysResult, calls: u64) {
    let direction = match regs.orig_rax as u32 {
        sys::__NR_read => Direction::Read,
        sys::__NR_write => Direction::Write,
        _ => return,
    };
    if (1..=FAST_PATH_LEN as u64).contains(&regs.rdx) {
        task.io_accounting.count(direction, result, calls);
    }
}

/// Fills `buf` with the caller's bytes from `done` on, as far as the program has them and the file
/// takes a part; returns how many.
fn copy_in_part(file: &File, buffers: &[UserBuf], done: usize, buf: &mut [u8]) -> usize {
    let copied = copy_in(buffers, done, buf);
    if copied == buf.len() || !file.ops().needs_data() {
        buf.len()
    } else {
        part_to_write(file, copied)
    }
}

/// Passes the first `wanted` bytes of the caller's buffers to `once`, chunk by chunk, with how much
/// came before; but for those that `pages` writes without a copy.
fn write_in_chunks(
    task: &Task,
    file: &File,
    buffers: &[UserBuf],
    wanted: usize,
    pages: impl Fn(usize) -> Option<Transfer>,
    once: impl Fn(&[u8], usize) -> Result<usize, Errno>,
) -> SysResult {
    let (mut small, mut large) = ([0; STACK_BUFFER_LEN], Vec::new());
    let mut done = 0;
    loop {
        if let Some(transfer) = pages(done) {
            match transfer.goes_on(done, wanted) {
                Ok(by) => done = by,
                Err(result) => return result,
            }
            continue;
        }
        let buf = match part(bounce_buffer(wanted, &mut small, &mut large), done) {
            Ok(buf) => buf,
            Err(result) => return result,
        };
        let len = (wanted - done).min(buf.len());
        let have = copy_in_part(file, buffers, done, &mut buf[..len]);
        // Whether a socket takes anything comes before whether that can be read.
        if have == 0
            && len > 0
            && done == 0
            && let Some(result) = write_to_socket(task, file, buffers)
        {
            return result;
        }
        let result = if have == 0 && len > 0 {
            Err(Errno::EFAULT)
        } else {
            once(&buf[..have], done)
        };
        match result {
            Ok(n) => {
                done += n;
                if n < have
                    && file.ops_as::<PipeEnd>().is_some()
                    && file.poll(None).contains(Events::ERR)
                {
                    // A part went into the pipe before its readers were gone.
                    write_failed(task, file, Errno::EPIPE);
                }
                if n < len || done == wanted {
                    return Ok(done);
                }
            }
            Err(error) => {
                write_failed(task, file, error);
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
    }
}

/// Number of bytes written of those behind which the caller's memory ends: of a pipe only whole
/// pages, of messages nothing.
#[cold]
fn part_to_write(file: &File, bytes: usize) -> usize {
    match file.inode().kind() {
        FileType::Regular => bytes,
        FileType::Fifo => bytes - bytes % PAGE_SIZE,
        _ => 0,
    }
}

/// A write failed, perhaps because nobody will ever read.
#[cold]
fn write_failed(task: &Task, file: &File, error: Errno) {
    if error == Errno::EPIPE && signals_broken_pipe(file) {
        signal_broken_pipe(task);
    }
}

/// `read(2)`: reads from the file position into a buffer.
#[inline(always)]
pub fn sys_read(task: &Task, fd: Fd, buf: UserAddr, len: usize) -> SysResult {
    let Some(files) = task.initial_files().filter(|_| len == 1) else {
        return read_slow(task, fd, buf, len);
    };
    let file = files.get(fd)?;
    let mut byte = [0];
    let Some(read) = file.read_fast(&mut byte) else {
        return read_blocking_small(&file, buf, len);
    };
    match read? {
        1 if guard::user::store_u8(buf.raw(), byte[0]).is_ok() => Ok(1),
        n => copy_out_partial(&file, buf, &byte[..n]),
    }
}

/// Copies what was read as far as the caller's memory goes; the rest is unread again.
#[cold]
#[inline(never)]
fn copy_out_partial(file: &File, buf: UserAddr, bytes: &[u8]) -> SysResult {
    if bytes.is_empty() {
        return if buf.access_ok(1) {
            Ok(0)
        } else {
            Err(Errno::EFAULT)
        };
    }
    let whole = UserBuf {
        addr: buf,
        len: bytes.len(),
    };
    let delivered = copy_out(&[whole], 0, bytes);
    match unread_undelivered(file, None, bytes, delivered) {
        0 => Err(Errno::EFAULT),
        n => Ok(n),
    }
}

/// Slow path of `read(2)`: for another number of bytes than 1, or for a thread that has other
/// descriptors than it began with.
#[inline(never)]
fn read_slow(task: &Task, fd: Fd, buf: UserAddr, len: usize) -> SysResult {
    let file = task.file(fd)?;
    if !(1..=FAST_PATH_LEN).contains(&len) {
        return match len {
            1..=LINE_LEN => read_line(task, &file, buf, len),
            _ => task.account_system_time(|| read_single(task, &file, buf, len, None)),
        };
    }
    let mut bytes = [0; FAST_PATH_LEN];
    let Some(read) = file.read_fast(&mut bytes[..len]) else {
        return read_blocking_small(&file, buf, len);
    };
    copy_out_small(&file, buf, &bytes, read?)
}

/// Reads a few bytes that may have to be waited for and are removed from where they are.
#[inline(never)]
fn read_blocking_small(file: &File, buf: UserAddr, len: usize) -> SysResult {
    if !file.flags().is_readable() {
        return Err(Errno::EBADF);
    }
    if !buf.access_ok(len) {
        return Err(Errno::EFAULT);
    }
    // As in `read_iov`.
    if kind_of(file) == Some(SocketType::Stream) {
        probe(file, buf)?;
    }
    let mut bytes = [0; FAST_PATH_LEN];
    let n = file.read(&mut bytes[..len])?;
    copy_out_small(file, buf, &bytes, n)
}

/// Reads up to a cache line, as [`read_single`] would, without what larger transfers need.
#[inline(never)]
fn read_line(task: &Task, file: &File, buf: UserAddr, len: usize) -> SysResult {
    if !file.flags().is_readable() {
        return Err(Errno::EBADF);
    }
    check_line(file, buf, len)?;
    // As in `read_iov`.
    if kind_of(file) == Some(SocketType::Stream) {
        probe(file, buf)?;
    }
    let mut bytes = [0; LINE_LEN];
    let result = file.read(&mut bytes[..len]).and_then(|n| {
        let bytes = &bytes[..n];
        match uaccess::write_bytes(buf, bytes) {
            Ok(()) => Ok(n),
            Err(_) => copy_out_partial(file, buf, bytes),
        }
    });
    task.io_accounting.count(Direction::Read, &result, 1);
    result
}

/// Checks a transfer of up to a cache line.
#[inline(always)]
fn check_line(file: &File, buf: UserAddr, len: usize) -> Result<(), Errno> {
    let least = file.ops().min_transfer();
    if least != usize::MAX && !buf.access_ok(len) {
        return Err(Errno::EFAULT);
    }
    match len < least {
        true => Err(Errno::EINVAL),
        false => Ok(()),
    }
}

/// Copies the first `n` bytes that were read to the caller.
#[inline(always)]
fn copy_out_small(file: &File, buf: UserAddr, bytes: &[u8; FAST_PATH_LEN], n: usize) -> SysResult {
    if n > 0 && uaccess::write_small(buf, bytes, n).is_ok() {
        Ok(n)
    } else {
        copy_out_partial(file, buf, &bytes[..n])
    }
}

/// Refuses what is never read or written, before anything of the caller's memory is looked at.
fn check_transfers(file: &File) -> Result<(), Errno> {
    if file.ops().min_transfer() == usize::MAX {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

/// Reads into one buffer of any size.
fn read_single(
    task: &Task,
    file: &File,
    buf: UserAddr,
    len: usize,
    offset: Option<u64>,
) -> SysResult {
    if !file.flags().is_readable() {
        return Err(Errno::EBADF);
    }
    check_transfers(file)?;
    read_accounted(task, file, &one_buffer(buf, len, offset)?, offset)
}

/// `write(2)`: writes a buffer at the file position.
#[inline(always)]
pub fn sys_write(task: &Task, fd: Fd, buf: UserAddr, len: usize) -> SysResult {
    let file = task.file(fd)?;
    if !(1..=FAST_PATH_LEN).contains(&len) {
        return match len {
            1..=LINE_LEN => write_line(task, &file, buf, len),
            _ => write_slow(task, &file, buf, len),
        };
    }
    if !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    let mut bytes = [0; FAST_PATH_LEN];
    let bytes = &mut bytes[..len];
    if uaccess::read_bytes(buf, bytes).is_err() {
        return write_slow(task, &file, buf, len);
    }
    let len = write_limit(task, &file, None, len)?;
    file.write(&bytes[..len])
        .inspect_err(|&error| write_failed(task, &file, error))
}

/// Writes up to a cache line, as [`write_single`] would, without what larger transfers need.
#[inline(never)]
fn write_line(task: &Task, file: &File, buf: UserAddr, len: usize) -> SysResult {
    if !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    check_line(file, buf, len)?;
    let mut bytes = [0; LINE_LEN];
    let bytes = &mut bytes[..len.min(file.ops().max_write())];
    if uaccess::read_bytes(buf, bytes).is_err() {
        return write_slow(task, file, buf, len);
    }
    let len = write_limit(task, file, None, bytes.len())?;
    let result = file
        .write(&bytes[..len])
        .inspect_err(|&error| write_failed(task, file, error));
    task.io_accounting.count(Direction::Write, &result, 1);
    result
}

/// Slow path of `write(2)`: for more than a few bytes.
#[inline(never)]
fn write_slow(task: &Task, file: &File, buf: UserAddr, len: usize) -> SysResult {
    task.account_system_time(|| write_single(task, file, buf, len, None))
}

/// Writes one buffer of any size.
fn write_single(
    task: &Task,
    file: &File,
    buf: UserAddr,
    len: usize,
    offset: Option<u64>,
) -> SysResult {
    if !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    check_transfers(file)?;
    write_iov(task, file, &one_buffer(buf, len, offset)?, offset)
}

/// The file of a transfer at an offset, which says `ESPIPE` even to who may not read or write it,
/// and the offset.
fn file_at_offset(task: &Task, fd: Fd, at: i64) -> Result<(Arc<File>, Option<u64>), Errno> {
    let at = u64::try_from(at).map_err(|_| Errno::EINVAL)?;
    let file = task.file_io(fd)?;
    if file.ops().supports_pread() {
        Ok((file, Some(at)))
    } else {
        Err(Errno::ESPIPE)
    }
}

/// Finds the file and offset of `preadv2(2)` like [`file_at_offset`]; -1 is the file position.
fn file_at_optional_offset(
    task: &Task,
    fd: Fd,
    at: i64,
) -> Result<(Arc<File>, Option<u64>), Errno> {
    if at == -1 {
        Ok((task.file_io(fd)?, None))
    } else {
        file_at_offset(task, fd, at)
    }
}

/// `pread64(2)`: reads from an offset into a buffer.
pub fn sys_pread64(task: &Task, fd: Fd, buf: UserAddr, len: usize, at: i64) -> SysResult {
    let (file, at) = file_at_offset(task, fd, at)?;
    read_single(task, &file, buf, len, at)
}

/// `pwrite64(2)`: writes a buffer at an offset.
pub fn sys_pwrite64(task: &Task, fd: Fd, buf: UserAddr, len: usize, at: i64) -> SysResult {
    let (file, at) = file_at_offset(task, fd, at)?;
    write_single(task, &file, buf, len, at)
}

/// Reads into the caller's vector of buffers.
fn do_readv(
    task: &Task,
    file: &File,
    iov: UserPtr<IoVec>,
    count: usize,
    offset: Option<u64>,
) -> SysResult {
    let buffers = IoVecs::read(iov, count)?;
    let len = total(buffers.as_slice());
    if !file.flags().is_readable() {
        return Err(Errno::EBADF);
    }
    check_end(offset, len)?;
    // Even of a directory nothing can be read.
    if len == 0 {
        Ok(0)
    } else {
        read_accounted(task, file, buffers.as_slice(), offset)
    }
}

/// Writes the caller's vector of buffers.
fn do_writev(
    task: &Task,
    file: &File,
    iov: UserPtr<IoVec>,
    count: usize,
    offset: Option<u64>,
) -> SysResult {
    let buffers = IoVecs::read(iov, count)?;
    if !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    check_end(offset, total(buffers.as_slice()))?;
    if total(buffers.as_slice()) == 0 {
        return write_no_vector(file);
    }
    write_iov(task, file, buffers.as_slice(), offset)
}

/// Result of writing a vector of buffers without a byte: not even an empty message, and not the
/// error that a device has for an empty `write(2)`.
fn write_no_vector(file: &File) -> SysResult {
    check_transfers(file).map(|()| 0)
}

/// `readv(2)`: reads from the file position into a vector of buffers.
pub fn sys_readv(task: &Task, fd: Fd, iov: UserPtr<IoVec>, count: usize) -> SysResult {
    do_readv(task, &*task.file_io(fd)?, iov, count, None)
}

/// `writev(2)`: writes a vector of buffers at the file position.
pub fn sys_writev(task: &Task, fd: Fd, iov: UserPtr<IoVec>, count: usize) -> SysResult {
    do_writev(task, &*task.file_io(fd)?, iov, count, None)
}

/// `preadv(2)`; the offset's upper half, an argument of its own, means nothing where a long has 64
/// bits.
pub fn sys_preadv(task: &Task, fd: Fd, iov: UserPtr<IoVec>, count: usize, at: i64) -> SysResult {
    let (file, at) = file_at_offset(task, fd, at)?;
    do_readv(task, &file, iov, count, at)
}

/// `pwritev(2)`: writes a vector of buffers at an offset.
pub fn sys_pwritev(task: &Task, fd: Fd, iov: UserPtr<IoVec>, count: usize, at: i64) -> SysResult {
    let (file, at) = file_at_offset(task, fd, at)?;
    do_writev(task, &file, iov, count, at)
}

/// The flags of `preadv2(2)` and `pwritev2(2)` that change nothing for files in memory.
const HARMLESS_RWF: u32 = sys::RWF_HIPRI | sys::RWF_DSYNC | sys::RWF_SYNC;

/// Whether reads and writes may ask not to wait: `/dev/null`, `zero`, `random` and `urandom`, which
/// never do, and reads of an eventfd. As on Linux 6.1, neither pipes and terminals nor files in
/// memory.
fn supports_nowait(file: &File, direction: Direction) -> bool {
    const MEMORY: u32 = 1;
    if file.ops_as::<EventFd>().is_some() {
        return matches!(direction, Direction::Read);
    }
    let device = file.inode().device();
    device.is_some_and(|id| id.major == MEMORY && matches!(id.minor, 3 | 5 | 8 | 9))
}

/// Checks the flags of a call that has something to transfer.
fn check_rwf(file: &File, flags: u32, direction: Direction) -> Result<(), Errno> {
    let known = HARMLESS_RWF | sys::RWF_NOWAIT | sys::RWF_APPEND;
    if flags & !known != 0 || (flags & sys::RWF_NOWAIT != 0 && !supports_nowait(file, direction)) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

/// `preadv2(2)`: reads from an offset, or the file position for -1, with flags.
pub fn sys_preadv2(
    task: &Task,
    fd: Fd,
    iov: UserPtr<IoVec>,
    count: usize,
    at: i64,
    _high: usize,
    flags: u32,
) -> SysResult {
    let (file, at) = file_at_optional_offset(task, fd, at)?;
    if flags != 0 && file.flags().is_readable() && total(IoVecs::read(iov, count)?.as_slice()) > 0 {
        check_rwf(&file, flags, Direction::Read)?;
        if flags & sys::RWF_NOWAIT != 0
            && let Some(counter) = file.ops_as::<EventFd>()
        {
            return read_counter_now(counter, IoVecs::read(iov, count)?.as_slice());
        }
    }
    do_readv(task, &file, iov, count, at)
}

/// Reads an eventfd without waiting, whatever its descriptor says of that.
fn read_counter_now(counter: &EventFd, buffers: &[UserBuf]) -> SysResult {
    if total(buffers) < counter.min_transfer() {
        return Err(Errno::EINVAL);
    }
    let bytes = counter.try_read()?;
    if copy_out(buffers, 0, &bytes) < bytes.len() {
        return Err(Errno::EFAULT);
    }
    Ok(bytes.len())
}

/// `pwritev2(2)`; with `RWF_APPEND` the offset says only whether the position moves.
pub fn sys_pwritev2(
    task: &Task,
    fd: Fd,
    iov: UserPtr<IoVec>,
    count: usize,
    at: i64,
    _high: usize,
    flags: u32,
) -> SysResult {
    let (file, at) = file_at_optional_offset(task, fd, at)?;
    if flags == 0 || !file.flags().is_writable() {
        return do_writev(task, &file, iov, count, at);
    }
    let buffers = IoVecs::read(iov, count)?;
    if total(buffers.as_slice()) == 0 {
        return write_no_vector(&file);
    }
    check_rwf(&file, flags, Direction::Write)?;
    if flags & sys::RWF_APPEND == 0 {
        check_end(at, total(buffers.as_slice()))?;
        return write_iov(task, &file, buffers.as_slice(), at);
    }
    let wanted = write_limit(
        task,
        &file,
        Some(file.metadata().size),
        total(buffers.as_slice()),
    )?;
    let append = |buf: &[u8], _| file.append(buf, at.is_none());
    write_in_chunks(task, &file, buffers.as_slice(), wanted, |_| None, append)
}

/// `lseek(2)`: sets the file position; returns it.
pub fn sys_lseek(task: &Task, fd: Fd, offset: i64, whence: u32) -> SysResult {
    let file = task.file_io(fd)?;
    let whence = match whence {
        sys::SEEK_SET => Whence::Set,
        sys::SEEK_CUR => Whence::Current,
        sys::SEEK_END => Whence::End,
        sys::SEEK_DATA => Whence::Data,
        sys::SEEK_HOLE => Whence::Hole,
        _ => return Err(Errno::EINVAL),
    };
    file.seek(whence, offset).map(|position| position as usize)
}
