//! Reading, writing and handling descriptors: `read(2)`, `write(2)`, `lseek(2)`, `dup(2)`, `fcntl(2)` and their relatives.
//!
//! User memory is copied through a kernel buffer: no lock of a file is ever held while user memory, which may itself be a mapping of
//! that file, is touched.

use crate::process::signal_broken_pipe;
use crate::sockmsg::signals_broken_pipe;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, limits, sigio};
use abi::errno::Errno;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use fs::lock::{self, Owner, Range};
use fs::pipe::PipeEnd;
use fs::{File, FileType, OpenFlags, Whence};
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
    base: u64,
    len: u64,
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
fn read_into(file: &File, buffers: &[(usize, usize)], offset: Option<u64>) -> SysResult {
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
    transfer_from(task, file, buffers, wanted, |buf, done| match offset {
        Some(offset) => file.write_at(offset + done as u64, buf),
        None => file.write(buf),
    })
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
    let file = task.file(fd)?;
    if !(1..=TINY).contains(&len) {
        return task.measured(|| read_into(&file, &[Buffers::one(buf, len)], None));
    }
    if !file.fills_buffers() {
        uaccess::probe_write(buf)?;
    }
    let mut bytes = [0; TINY];
    let n = file.read(&mut bytes[..len])?;
    uaccess::write_bytes(buf, bytes.get(..n).unwrap_or_default())?;
    Ok(n)
}

/// `write(2)`
#[inline(always)]
pub fn sys_write(task: &Task, fd: i32, buf: usize, len: usize) -> SysResult {
    let file = task.file(fd)?;
    if !(1..=TINY).contains(&len) {
        return task.measured(|| write_from(task, &file, &[Buffers::one(buf, len)], None));
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

/// `pread64(2)`
pub fn sys_pread64(task: &Task, fd: i32, buf: usize, len: usize, at: i64) -> SysResult {
    read_into(&*task.file_io(fd)?, &[Buffers::one(buf, len)], offset(at)?)
}

/// `pwrite64(2)`
pub fn sys_pwrite64(task: &Task, fd: i32, buf: usize, len: usize, at: i64) -> SysResult {
    write_from(task, &*task.file_io(fd)?, &[Buffers::one(buf, len)], offset(at)?)
}

/// `readv(2)`
pub fn sys_readv(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize) -> SysResult {
    let file = task.file_io(fd)?;
    read_into(&file, Buffers::read(iov, count)?.as_slice(), None)
}

/// `writev(2)`
pub fn sys_writev(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize) -> SysResult {
    let file = task.file_io(fd)?;
    write_from(task, &file, Buffers::read(iov, count)?.as_slice(), None)
}

/// `preadv(2)`; the offset's upper half, an argument of its own, means nothing where a long has 64 bits.
pub fn sys_preadv(task: &Task, fd: i32, iov: UserPtr<IoVec>, count: usize, at: i64) -> SysResult {
    let file = task.file_io(fd)?;
    read_into(&file, Buffers::read(iov, count)?.as_slice(), offset(at)?)
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
    read_into(&file, Buffers::read(iov, count)?.as_slice(), offset_or_position(at)?)
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

/// `close(2)`
pub fn sys_close(task: &Task, fd: i32) -> SysResult {
    task.files().close(fd).map(|()| 0)
}

/// Flags of `close_range(2)` (`linux/close_range.h`).
const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// `close_range(2)`
pub fn sys_close_range(task: &Task, first: u32, last: u32, flags: u32) -> SysResult {
    if first > last || flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        task.unshare_files();
    }
    task.files().close_range(first as usize, last as usize, flags & CLOSE_RANGE_CLOEXEC != 0);
    Ok(0)
}

/// `dup(2)`
pub fn sys_dup(task: &Task, fd: i32) -> SysResult {
    let files = task.files();
    files.install(files.get(fd)?, false)
}

/// `dup2(2)`
pub fn sys_dup2(task: &Task, old: i32, new: i32) -> SysResult {
    let files = task.files();
    let file = files.get(old)?;
    if old == new { Ok(new as usize) } else { files.install_at(new, file, false) }
}

/// `dup3(2)`
pub fn sys_dup3(task: &Task, old: i32, new: i32, flags: u32) -> SysResult {
    if old == new || flags & !sys::O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let files = task.files();
    files.install_at(new, files.get(old)?, flags & sys::O_CLOEXEC != 0)
}

/// `struct flock`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flock {
    kind: i16,
    whence: i16,
    padding: u32,
    start: i64,
    len: i64,
    pid: i32,
    padding2: u32,
}

impl Flock {
    /// The bytes meant: relative to start, position or end; a negative length reaches backwards; 0 is "to the end".
    fn range(&self, file: &File) -> Result<Range, Errno> {
        let base = match self.whence as u32 {
            sys::SEEK_SET => 0,
            sys::SEEK_CUR => file.with_offset(|o| *o) as i64,
            sys::SEEK_END => file.metadata().size as i64,
            _ => return Err(Errno::EINVAL),
        };
        let start = base.checked_add(self.start).ok_or(Errno::EOVERFLOW)?;
        let end = start.checked_add(self.len).ok_or(Errno::EOVERFLOW)?;
        let (start, end) = if self.len < 0 { (end, start) } else { (start, end) };
        let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
        let end = u64::try_from(end).map_err(|_| Errno::EINVAL)?;
        Ok(Range { start, end: if self.len == 0 { u64::MAX } else { end } })
    }
}

const F_RDLCK: i16 = sys::F_RDLCK as i16;
const F_WRLCK: i16 = sys::F_WRLCK as i16;
const F_UNLCK: i16 = sys::F_UNLCK as i16;

fn set_lock(file: &Arc<File>, owner: Owner, ptr: UserPtr<Flock>, wait: bool) -> SysResult {
    let request = ptr.read()?;
    let range = request.range(file)?;
    let lock = match request.kind {
        F_RDLCK if file.flags().readable() => Some(false),
        F_WRLCK if file.flags().writable() => Some(true),
        F_RDLCK | F_WRLCK => return Err(Errno::EBADF),
        F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    lock::set_record(file, owner, range, lock, wait).map(|()| 0)
}

fn get_lock(file: &Arc<File>, owner: Owner, ptr: UserPtr<Flock>) -> SysResult {
    let mut request = ptr.read()?;
    let range = request.range(file)?;
    let exclusive = match request.kind {
        F_RDLCK => false,
        F_WRLCK => true,
        _ => return Err(Errno::EINVAL),
    };
    match lock::conflicting(file, owner, range, exclusive) {
        None => request.kind = F_UNLCK,
        Some((pid, range, exclusive)) => {
            request.kind = if exclusive { F_WRLCK } else { F_RDLCK };
            request.whence = sys::SEEK_SET as i16;
            request.start = range.start as i64;
            request.len = if range.end == u64::MAX { 0 } else { (range.end - range.start) as i64 };
            request.pid = pid;
        }
    }
    ptr.write(&request)?;
    Ok(0)
}

/// `fcntl(2)`
pub fn sys_fcntl(task: &Task, fd: i32, command: u32, arg: usize) -> SysResult {
    let files = task.files();
    let file = files.get(fd)?;
    let flock = || UserPtr::<Flock>::new(arg);
    let process = || files.record_lock_owner(task.pid());
    // With O_PATH only the descriptor itself can be handled.
    let on_descriptor = matches!(command, sys::F_DUPFD | sys::F_DUPFD_CLOEXEC | sys::F_GETFD | sys::F_SETFD | sys::F_GETFL);
    if file.flags().contains(OpenFlags::PATH) && !on_descriptor {
        return Err(Errno::EBADF);
    }
    match command {
        sys::F_DUPFD | sys::F_DUPFD_CLOEXEC => {
            let least = usize::try_from(arg as i32).map_err(|_| Errno::EINVAL)?;
            files.install_from(file, command == sys::F_DUPFD_CLOEXEC, least)
        }
        sys::F_GETFD => files.cloexec(fd).map(usize::from),
        sys::F_SETFD => files.set_cloexec(fd, arg as u32 & sys::FD_CLOEXEC != 0).map(|()| 0),
        sys::F_GETFL => Ok((file.flags() | OpenFlags::LARGEFILE).bits() as usize),
        sys::F_SETFL => {
            let before = file.flags();
            file.set_flags(OpenFlags::from_bits_retain(arg as u32));
            if (before ^ file.flags()).contains(OpenFlags::ASYNC) {
                fs::sigio::update(&file, fd);
            }
            Ok(0)
        }
        sys::F_GETLK => get_lock(&file, process(), flock()),
        sys::F_SETLK => set_lock(&file, process(), flock(), false),
        sys::F_SETLKW => set_lock(&file, process(), flock(), true),
        sys::F_OFD_GETLK => get_lock(&file, Owner::opening(&file), flock()),
        sys::F_OFD_SETLK => set_lock(&file, Owner::opening(&file), flock(), false),
        sys::F_OFD_SETLKW => set_lock(&file, Owner::opening(&file), flock(), true),
        sys::F_GETOWN => sigio::owner(&file),
        sys::F_SETOWN => sigio::set_owner(task, &file, arg as i32),
        sys::F_GETOWN_EX => sigio::owner_ex(&file, UserPtr::new(arg)),
        sys::F_SETOWN_EX => sigio::set_owner_ex(task, &file, UserPtr::new(arg)),
        sys::F_GETSIG => Ok(file.notice().signal as usize),
        sys::F_SETSIG => sigio::set_signal(&file, arg as i32),
        F_GETLEASE if file.inode().kind() == FileType::Regular => Ok(F_UNLCK as usize),
        F_GETPIPE_SZ => Ok(file.ops_as::<PipeEnd>().ok_or(Errno::EBADF)?.capacity()),
        F_SETPIPE_SZ => file.ops_as::<PipeEnd>().ok_or(Errno::EBADF)?.set_capacity(arg),
        F_ADD_SEALS if !file.flags().writable() => Err(Errno::EPERM),
        F_ADD_SEALS => file.inode().add_seals(arg as u32).map(|()| 0),
        F_GET_SEALS if file.inode().kind() == FileType::Regular => Ok(file.inode().seals() as usize),
        _ => Err(Errno::EINVAL),
    }
}

/// Linux's own commands begin here.
const F_LINUX_SPECIFIC_BASE: u32 = 1024;
const F_GETLEASE: u32 = F_LINUX_SPECIFIC_BASE + 1;
const F_SETPIPE_SZ: u32 = F_LINUX_SPECIFIC_BASE + 7;
const F_GETPIPE_SZ: u32 = F_LINUX_SPECIFIC_BASE + 8;
const F_ADD_SEALS: u32 = F_LINUX_SPECIFIC_BASE + 9;
const F_GET_SEALS: u32 = F_LINUX_SPECIFIC_BASE + 10;

/// `flock(2)`
pub fn sys_flock(task: &Task, fd: i32, operation: u32) -> SysResult {
    let file = task.file_io(fd)?;
    let nonblocking = operation & sys::LOCK_NB != 0;
    match operation & !sys::LOCK_NB {
        sys::LOCK_SH => lock::flock(&file, false, nonblocking)?,
        sys::LOCK_EX => lock::flock(&file, true, nonblocking)?,
        sys::LOCK_UN => lock::unflock(&file),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// `sync(2)`: everything is in memory.
pub fn sys_sync(_: &Task) -> SysResult {
    Ok(0)
}

/// `fsync(2)`
pub fn sys_fsync(task: &Task, fd: i32) -> SysResult {
    task.file_io(fd)?.ops().sync().map(|()| 0)
}

/// `fdatasync(2)`
pub fn sys_fdatasync(task: &Task, fd: i32) -> SysResult {
    sys_fsync(task, fd)
}

/// `syncfs(2)`
pub fn sys_syncfs(task: &Task, fd: i32) -> SysResult {
    task.file_io(fd).map(|_| 0)
}

/// `sync_file_range(2)`
pub fn sys_sync_file_range(task: &Task, fd: i32, from: i64, len: i64, _flags: u32) -> SysResult {
    if from < 0 || len < 0 {
        return Err(Errno::EINVAL);
    }
    seekable(&*task.file_io(fd)?).map(|()| 0)
}

fn seekable(file: &File) -> Result<(), Errno> {
    match file.inode().kind() {
        FileType::Fifo | FileType::Socket | FileType::Char => Err(Errno::ESPIPE),
        _ => Ok(()),
    }
}

/// `fadvise64(2)`: advice is heard and not needed.
pub fn sys_fadvise64(task: &Task, fd: i32, _offset: i64, len: i64, advice: u32) -> SysResult {
    let file = task.file_io(fd)?;
    if len < 0 || advice > sys::POSIX_FADV_NOREUSE {
        return Err(Errno::EINVAL);
    }
    if file.inode().kind() == FileType::Fifo { Err(Errno::ESPIPE) } else { Ok(0) }
}

/// `readahead(2)`: everything is in memory.
pub fn sys_readahead(task: &Task, fd: i32, _offset: i64, _len: usize) -> SysResult {
    let file = task.file_io(fd)?;
    if !file.flags().readable() {
        return Err(Errno::EBADF);
    }
    if file.inode().kind() == FileType::Regular { Ok(0) } else { Err(Errno::EINVAL) }
}

/// `ftruncate(2)`
pub fn sys_ftruncate(task: &Task, fd: i32, size: i64) -> SysResult {
    let file = task.file_io(fd)?;
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    if !file.flags().writable() || file.inode().kind() != FileType::Regular {
        return Err(Errno::EINVAL);
    }
    limits::check_size(task, size)?;
    file.inode().truncate(size)?;
    fs::inotify::happened_at(file.path(), sys::IN_MODIFY);
    Ok(0)
}

/// `fallocate(2)`
pub fn sys_fallocate(task: &Task, fd: i32, mode: u32, offset: i64, len: i64) -> SysResult {
    let file = task.file_io(fd)?;
    let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else { return Err(Errno::EINVAL) };
    if !file.flags().writable() {
        return Err(Errno::EBADF);
    }
    match file.inode().kind() {
        FileType::Regular => {
            file.inode().fallocate(mode, offset, len)?;
            fs::inotify::happened_at(file.path(), sys::IN_MODIFY);
            Ok(0)
        }
        FileType::Fifo => Err(Errno::ESPIPE),
        FileType::Directory => Err(Errno::EISDIR),
        _ => Err(Errno::ENODEV),
    }
}

/// `memfd_create(2)`
pub fn sys_memfd_create(task: &Task, name: usize, flags: u32) -> SysResult {
    if flags & !(sys::MFD_CLOEXEC | sys::MFD_ALLOW_SEALING | sys::MFD_NOEXEC_SEAL | sys::MFD_EXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = uaccess::read_cstr(name, 250)?;
    if flags & sys::MFD_NOEXEC_SEAL != 0 && flags & sys::MFD_EXEC != 0 {
        return Err(Errno::EINVAL);
    }
    // Without leave to seal, the one seal is that there are no more.
    let (seals, mode) = if flags & sys::MFD_NOEXEC_SEAL != 0 {
        (sys::F_SEAL_EXEC, 0o666)
    } else {
        (if flags & sys::MFD_ALLOW_SEALING != 0 { 0 } else { sys::F_SEAL_SEAL }, 0o777)
    };
    let path = fs::ramfs::RamFs::memfd(&alloc::string::String::from_utf8_lossy(&name), mode, seals);
    task.files().install(File::of_inode(path, OpenFlags::RDWR), flags & sys::MFD_CLOEXEC != 0)
}
