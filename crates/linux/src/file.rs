//! Reading and writing: `read(2)`, `write(2)`, `lseek(2)` and their relatives.
//!
//! User memory is copied through a kernel buffer: no lock of a file is ever held while user memory, which may itself be a mapping of
//! that file, is touched.

use crate::process::signal_broken_pipe;
use crate::sockmsg::signals_broken_pipe;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, dispatch, limits, usage};
use abi::errno::Errno;
use alloc::vec;
use alloc::vec::Vec;
use fs::{File, Whence};
use guard::user::UserRegs;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most that one call transfers, as on Linux.
pub(crate) const MAX_TRANSFER: usize = 0x7fff_f000;
/// The size of the kernel buffer a transfer goes through.
pub(crate) const CHUNK: usize = 65_536;
/// Transfers up to this size go through a buffer on the stack.
pub(crate) const SMALL: usize = 256;
/// And those up to this size, which event descriptors and wake-ups through pipes use, skip everything that larger ones need.
const TINY: usize = 16;
/// The most buffers a vectored call takes.
const IOV_MAX: usize = 1024;

/// `struct iovec`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoVec {
    pub(crate) base: u64,
    pub(crate) len: u64,
}

/// The caller's buffers of one transfer: address and length each.
pub(crate) struct Buffers(Vec<(usize, usize)>);

impl Buffers {
    fn one(addr: usize, len: usize) -> (usize, usize) {
        (addr, len.min(MAX_TRANSFER))
    }

    pub(crate) fn read(iov: UserPtr<IoVec>, count: usize) -> Result<Self, Errno> {
        if count > IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let mut total = 0usize;
        let mut buffers = Vec::with_capacity(count);
        for i in 0..count {
            let entry = iov.add(i).read()?;
            let len = usize::try_from(entry.len).ok().filter(|&l| isize::try_from(l).is_ok()).ok_or(Errno::EINVAL)?;
            let len = len.min(MAX_TRANSFER - total);
            total += len;
            buffers.push((entry.base as usize, len));
        }
        Ok(Self(buffers))
    }

    pub(crate) fn as_slice(&self) -> &[(usize, usize)] {
        &self.0
    }
}

pub(crate) fn total(buffers: &[(usize, usize)]) -> usize {
    buffers.iter().map(|b| b.1).sum()
}

/// Runs `f` on the pieces of the buffers that make up `offset..offset + len`: address and range within the piece of the kernel's buffer.
pub(crate) fn pieces(
    buffers: &[(usize, usize)],
    offset: usize,
    len: usize,
    mut f: impl FnMut(usize, core::ops::Range<usize>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut skip = offset;
    let mut done = 0;
    for &(addr, size) in buffers {
        if skip >= size {
            skip -= size;
            continue;
        }
        let n = (size - skip).min(len - done);
        f(addr.wrapping_add(skip), done..done + n)?;
        done += n;
        skip = 0;
        if done == len {
            break;
        }
    }
    Ok(())
}

/// Reads into the caller's buffers, from `offset` or (`None`) from the opening's position.
fn read_into(task: &Task, file: &File, buffers: &[(usize, usize)], offset: Option<u64>) -> SysResult {
    let result = read_pieces(file, buffers, offset);
    task.transferred.count(usage::READ, &result, 1);
    result
}

fn read_pieces(file: &File, buffers: &[(usize, usize)], offset: Option<u64>) -> SysResult {
    if !file.flags().readable() {
        return Err(Errno::EBADF);
    }
    let wanted = total(buffers);
    let once = |buf: &mut [u8], done: usize| match offset {
        Some(offset) => file.read_at(offset + done as u64, buf),
        None => file.read(buf),
    };
    // A file gives all it has, in steps; what may have to be waited for gives what it has now, and only once.
    let whole = file.fills_buffers();
    if !whole && let Some((addr, _)) = buffers.iter().find(|(_, len)| *len > 0) {
        uaccess::probe_write(*addr)?;
    }
    if wanted <= SMALL {
        let mut buf = [0; SMALL];
        let n = once(&mut buf[..wanted], 0)?;
        pieces(buffers, 0, n, |addr, range| uaccess::write_bytes(addr, &buf[range]))?;
        return Ok(n);
    }
    let mut buf = vec![0; wanted.min(CHUNK)];
    let mut done = 0;
    while done < wanted {
        let len = (wanted - done).min(buf.len());
        let n = match once(&mut buf[..len], done) {
            Ok(n) => n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        };
        match pieces(buffers, done, n, |addr, range| uaccess::write_bytes(addr, &buf[range])) {
            Ok(()) => done += n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
        if n < len || !whole {
            break;
        }
    }
    Ok(done)
}

/// Writes the caller's buffers, at `offset` or (`None`) at the opening's position.
fn write_from(task: &Task, file: &File, buffers: &[(usize, usize)], offset: Option<u64>) -> SysResult {
    if !file.flags().writable() {
        return Err(Errno::EBADF);
    }
    let wanted = limits::allowed_of_write(task, file, offset, total(buffers))?;
    let result = transfer_from(task, file, buffers, wanted, |buf, done| match offset {
        Some(offset) => file.write_at(offset + done as u64, buf),
        None => file.write(buf),
    });
    task.transferred.count(usage::WRITTEN, &result, 1);
    result
}

/// A `read(2)` or `write(2)` that is too short to be counted was chosen to stand for `calls` such.
pub(crate) fn count_sample(task: &Task, regs: &UserRegs, result: &SysResult, calls: u64) {
    let direction = match dispatch::number(regs) {
        sys::__NR_read => usage::READ,
        sys::__NR_write => usage::WRITTEN,
        _ => return,
    };
    if (1..=TINY as u64).contains(&regs.rdx) {
        task.transferred.count(direction, result, calls);
    }
}

/// Passes the first `wanted` bytes of the caller's buffers to `once`, piece by piece, with how much came before.
fn transfer_from(
    task: &Task,
    file: &File,
    buffers: &[(usize, usize)],
    wanted: usize,
    once: impl Fn(&[u8], usize) -> Result<usize, Errno>,
) -> SysResult {
    let mut small = [0; SMALL];
    let mut large = Vec::new();
    let buf = if wanted <= SMALL {
        &mut small[..wanted]
    } else {
        large.resize(wanted.min(CHUNK), 0);
        &mut large[..]
    };
    let mut done = 0;
    loop {
        let len = (wanted - done).min(buf.len());
        let copied = pieces(buffers, done, len, |addr, range| uaccess::read_bytes(addr, &mut buf[range]));
        match copied.and_then(|()| once(&buf[..len], done)) {
            Ok(n) => {
                done += n;
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

/// A write failed, perhaps because nobody will ever read.
#[cold]
fn write_failed(task: &Task, file: &File, error: Errno) {
    if error == Errno::EPIPE && signals_broken_pipe(file) {
        signal_broken_pipe(task);
    }
}

fn offset(value: i64) -> Result<Option<u64>, Errno> {
    u64::try_from(value).map(Some).map_err(|_| Errno::EINVAL)
}

/// `read(2)`
#[inline(always)]
pub fn sys_read(task: &Task, fd: i32, buf: usize, len: usize) -> SysResult {
    let Some(files) = task.first_files().filter(|_| len == 1) else { return read_more(task, fd, buf, len) };
    let file = files.get(fd)?;
    let mut byte = [0];
    let Some(read) = file.read_at_once(&mut byte) else { return read_few(&file, buf, len) };
    match read? {
        1 if guard::user::store_u8(buf, byte[0]).is_ok() => Ok(1),
        1 => bad_address(),
        n => Ok(n),
    }
}

#[cold]
#[inline(never)]
fn bad_address() -> SysResult {
    Err(Errno::EFAULT)
}

/// As `read(2)` does, for another number of bytes than 1, or of a thread that has other descriptors than it began with.
#[inline(never)]
fn read_more(task: &Task, fd: i32, buf: usize, len: usize) -> SysResult {
    let file = task.file(fd)?;
    if !(1..=TINY).contains(&len) {
        return task.measured(|| read_into(task, &file, &[Buffers::one(buf, len)], None));
    }
    let mut bytes = [0; TINY];
    let Some(read) = file.read_at_once(&mut bytes[..len]) else { return read_few(&file, buf, len) };
    let n = read?;
    uaccess::write_few(buf, &bytes, n)?;
    Ok(n)
}

/// As `read(2)` does, for a few bytes that may have to be waited for and are taken out of something.
#[inline(never)]
fn read_few(file: &File, buf: usize, len: usize) -> SysResult {
    if !file.flags().readable() {
        return Err(Errno::EBADF);
    }
    uaccess::probe_write(buf)?;
    let mut bytes = [0; TINY];
    let n = file.read(&mut bytes[..len])?;
    uaccess::write_few(buf, &bytes, n)?;
    Ok(n)
}

/// `write(2)`
#[inline(always)]
pub fn sys_write(task: &Task, fd: i32, buf: usize, len: usize) -> SysResult {
    let file = task.file(fd)?;
    if !(1..=TINY).contains(&len) {
        return write_many(task, &file, buf, len);
    }
    if !file.flags().writable() {
        return Err(Errno::EBADF);
    }
    let len = limits::allowed_of_write(task, &file, None, len)?;
    let mut bytes = [0; TINY];
    let bytes = &mut bytes[..len];
    uaccess::read_bytes(buf, bytes)?;
    file.write(bytes).inspect_err(|&error| write_failed(task, &file, error))
}

#[inline(never)]
fn write_many(task: &Task, file: &File, buf: usize, len: usize) -> SysResult {
    task.measured(|| write_from(task, file, &[Buffers::one(buf, len)], None))
}

/// `pread64(2)`
pub fn sys_pread64(task: &Task, fd: i32, buf: usize, len: usize, at: i64) -> SysResult {
    read_into(task, &*task.file_io(fd)?, &[Buffers::one(buf, len)], offset(at)?)
}

/// `pwrite64(2)`
pub fn sys_pwrite64(task: &Task, fd: i32, buf: usize, len: usize, at: i64) -> SysResult {
    write_from(task, &*task.file_io(fd)?, &[Buffers::one(buf, len)], offset(at)?)
}

/// `readv(2)`
pub fn sys_readv(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize) -> SysResult {
    let file = task.file_io(fd)?;
    read_into(task, &file, Buffers::read(iov, count)?.as_slice(), None)
}

/// `writev(2)`
pub fn sys_writev(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize) -> SysResult {
    let file = task.file_io(fd)?;
    write_from(task, &file, Buffers::read(iov, count)?.as_slice(), None)
}

/// `preadv(2)`; the offset's upper half, an argument of its own, means nothing where a long has 64 bits.
pub fn sys_preadv(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize, at: i64) -> SysResult {
    let file = task.file_io(fd)?;
    read_into(task, &file, Buffers::read(iov, count)?.as_slice(), offset(at)?)
}

/// `pwritev(2)`
pub fn sys_pwritev(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize, at: i64) -> SysResult {
    let file = task.file_io(fd)?;
    write_from(task, &file, Buffers::read(iov, count)?.as_slice(), offset(at)?)
}

/// The flags of `preadv2(2)` and `pwritev2(2)` that change nothing for files in memory.
const HARMLESS_RWF: u32 = sys::RWF_HIPRI | sys::RWF_DSYNC | sys::RWF_SYNC;

/// Checks the flags of a call. `RWF_NOWAIT` is for files that never wait: as on Linux, pipes and terminals do not know it.
fn check_rwf(file: &File, flags: u32, writes: bool) -> Result<(), Errno> {
    let known = HARMLESS_RWF | sys::RWF_NOWAIT | if writes { sys::RWF_APPEND } else { 0 };
    if flags & !known != 0 || (flags & sys::RWF_NOWAIT != 0 && file.ops().pollable()) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

/// An offset of `preadv2(2)`: -1 is the opening's position.
fn offset_or_position(at: i64) -> Result<Option<u64>, Errno> {
    if at == -1 { Ok(None) } else { offset(at) }
}

/// `preadv2(2)`
pub fn sys_preadv2(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize, at: i64, _high: usize, flags: u32) -> SysResult {
    let file = task.file_io(fd)?;
    check_rwf(&file, flags, false)?;
    read_into(task, &file, Buffers::read(iov, count)?.as_slice(), offset_or_position(at)?)
}

/// `pwritev2(2)`; with `RWF_APPEND` the offset says only whether the position moves.
pub fn sys_pwritev2(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize, at: i64, _high: usize, flags: u32) -> SysResult {
    let file = task.file_io(fd)?;
    check_rwf(&file, flags, true)?;
    let (buffers, at) = (Buffers::read(iov, count)?, offset_or_position(at)?);
    if flags & sys::RWF_APPEND == 0 {
        return write_from(task, &file, buffers.as_slice(), at);
    }
    let wanted = limits::allowed_of_write(task, &file, Some(file.metadata().size), total(buffers.as_slice()))?;
    transfer_from(task, &file, buffers.as_slice(), wanted, |buf, _| file.append(buf, at.is_none()))
}

/// `lseek(2)`
pub fn sys_lseek(task: &Task, fd: i32, offset: i64, whence: u32) -> SysResult {
    let whence = match whence {
        sys::SEEK_SET => Whence::Set,
        sys::SEEK_CUR => Whence::Current,
        sys::SEEK_END => Whence::End,
        sys::SEEK_DATA => Whence::Data,
        sys::SEEK_HOLE => Whence::Hole,
        _ => return Err(Errno::EINVAL),
    };
    task.file_io(fd)?.seek(whence, offset).map(|position| position as usize)
}
