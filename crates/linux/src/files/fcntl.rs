//! Handling descriptors: `close(2)`, `dup(2)`, `fcntl(2)`, `flock(2)` and their relatives.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::attributes::FileAttributes;
use fs::lease::{self, LeaseKind};
use fs::lock::{self, LockKind, LockOwner, LockRange, OnConflict};
use fs::pipe::PipeEnd;
use fs::{File, FileType, OpenFlags, dnotify};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::files::sigio;
use crate::process::process_table;
use crate::state::fdtable::CloseOnExec;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `close(2)`: closes a descriptor.
pub fn sys_close(task: &Task, fd: Fd) -> SysResult {
    task.close(fd).map(|()| 0)
}

/// Flags of `close_range(2)` (`linux/close_range.h`).
const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// `close_range(2)`: closes the descriptors from `first` to `last`, or marks them close-on-exec.
pub fn sys_close_range(task: &Task, first: u32, last: u32, flags: u32) -> SysResult {
    if first > last || flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        task.unshare_files()?;
    }
    let range = first as usize..=last as usize;
    if flags & CLOSE_RANGE_CLOEXEC == 0 {
        task.files().close_range(&range);
    } else {
        task.files().set_cloexec_range(&range);
    }
    Ok(0)
}

/// `dup(2)`: duplicates a descriptor to the lowest free one.
pub fn sys_dup(task: &Task, fd: Fd) -> SysResult {
    let files = task.files();
    files.install_shared(files.get(fd)?, CloseOnExec::No)
}

/// `dup2(2)`: duplicates a descriptor to a given one, which is closed before.
pub fn sys_dup2(task: &Task, old: Fd, new: Fd) -> SysResult {
    let files = task.files();
    let file = files.get(old)?;
    if old == new {
        Ok(new.index())
    } else {
        files.install_at(new, file, CloseOnExec::No)
    }
}

/// `dup3(2)`: duplicates a descriptor to a given other one, with flags.
pub fn sys_dup3(task: &Task, old: Fd, new: Fd, flags: u32) -> SysResult {
    if old == new || flags & !sys::O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let files = task.files();
    files.install_at(
        new,
        files.get(old)?,
        CloseOnExec::when(flags & sys::O_CLOEXEC != 0),
    )
}

/// A record lock as programs pass it: `struct flock`.
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
    /// The bytes meant: relative to start, position or end; a negative length reaches backwards; 0
    /// is "to the end".
    fn range(&self, file: &File) -> Result<LockRange, Errno> {
        let base = match self.whence as u32 {
            sys::SEEK_SET => 0,
            sys::SEEK_CUR => file.with_offset(|o| *o) as i64,
            sys::SEEK_END => file.metadata().size as i64,
            _ => return Err(Errno::EINVAL),
        };
        let start = base.checked_add(self.start).ok_or(Errno::EOVERFLOW)?;
        if start < 0 {
            return Err(Errno::EINVAL);
        }
        // The last byte that there can be has the greatest offset.
        let end = i128::from(start) + i128::from(self.len);
        if end > i128::from(i64::MAX) + 1 {
            return Err(Errno::EOVERFLOW);
        }
        let end = u64::try_from(end).map_err(|_| Errno::EINVAL)?;
        let (start, end) = if self.len < 0 {
            (end, start as u64)
        } else {
            (start as u64, end)
        };
        Ok(LockRange {
            start,
            end: if self.len == 0 { u64::MAX } else { end },
        })
    }
}

impl Flock {
    /// Checks that the lock of an open file names no process.
    fn check_owner(&self, owner: LockOwner) -> Result<(), Errno> {
        if matches!(owner, LockOwner::OpenFile(_)) && self.pid != 0 {
            Err(Errno::EINVAL)
        } else {
            Ok(())
        }
    }
}

const F_RDLCK: i16 = sys::F_RDLCK as i16;
const F_WRLCK: i16 = sys::F_WRLCK as i16;
const F_UNLCK: i16 = sys::F_UNLCK as i16;

fn set_lock(
    file: &Arc<File>,
    owner: LockOwner,
    ptr: UserPtr<Flock>,
    on_conflict: OnConflict,
) -> SysResult {
    let request = ptr.read()?;
    let range = request.range(file)?;
    let lock = match request.kind {
        F_RDLCK if file.flags().is_readable() => Some(LockKind::Shared),
        F_WRLCK if file.flags().is_writable() => Some(LockKind::Exclusive),
        F_RDLCK | F_WRLCK => return Err(Errno::EBADF),
        F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    request.check_owner(owner)?;
    lock::set_record_lock(file, owner, range, lock, on_conflict).map(|()| 0)
}

fn get_lock(file: &Arc<File>, owner: LockOwner, ptr: UserPtr<Flock>) -> SysResult {
    let mut request = ptr.read()?;
    let kind = match request.kind {
        F_RDLCK => LockKind::Shared,
        F_WRLCK => LockKind::Exclusive,
        _ => return Err(Errno::EINVAL),
    };
    let range = request.range(file)?;
    request.check_owner(owner)?;
    match lock::test_lock(file, owner, range, kind) {
        None => request.kind = F_UNLCK,
        Some(found) => {
            request.kind = match found.kind {
                LockKind::Shared => F_RDLCK,
                LockKind::Exclusive => F_WRLCK,
            };
            let range = found.range;
            request.whence = sys::SEEK_SET as i16;
            request.start = range.start as i64;
            request.len = if range.end == u64::MAX {
                0
            } else {
                (range.end - range.start) as i64
            };
            request.pid = found.pid;
        }
    }
    ptr.write(&request)?;
    Ok(0)
}

/// Whether a file has other openings than this one.
fn has_others(file: &Arc<File>) -> bool {
    let other = |opened: &Arc<File>| {
        !Arc::ptr_eq(opened, file)
            && !opened.flags().contains(OpenFlags::PATH)
            && Arc::ptr_eq(opened.inode(), file.inode())
    };
    let tasks = process_table::processes_where(|_, _| true)
        .into_iter()
        .flat_map(|process| process.tasks());
    tasks.into_iter().any(|task| task.files().any(other))
}

/// Sets, changes or removes a lease of the caller's on a file (`F_SETLEASE`).
fn set_lease(task: &Task, file: &Arc<File>, fd: Fd, kind: i16) -> SysResult {
    let kind = match kind {
        F_RDLCK => Some(LeaseKind::Read),
        F_WRLCK => Some(LeaseKind::Write),
        F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let holder = (task.pid().raw(), fd.raw());
    lease::set(file, holder, kind, &task.fs_cred(), || has_others(file))?;
    if kind.is_some() {
        lease::set_default_owner(file, task.pid().raw(), sigio::setter_uids(task));
    }
    Ok(0)
}

/// Sets the status flags of an open file, `O_APPEND` for example (`F_SETFL`).
fn set_status_flags(task: &Task, file: &Arc<File>, fd: Fd, mut flags: OpenFlags) -> SysResult {
    let before = file.flags();
    if (flags ^ before).contains(OpenFlags::APPEND) {
        let attributes = file.inode().permissions().attributes;
        attributes.refuse(FileAttributes::APPEND)?;
    }
    if (flags - before).contains(OpenFlags::NOATIME) && !task.fs_cred().owns(&file.metadata()) {
        return Err(Errno::EPERM);
    }
    // It makes packets of what is written to a pipe.
    let has_direct =
        || file.inode().kind() == FileType::Fifo || file.path().direct_alignment().is_some();
    if flags.contains(OpenFlags::DIRECT) && !has_direct() {
        return Err(Errno::EINVAL);
    }
    // What is always ready sends no signals.
    flags.set(
        OpenFlags::ASYNC,
        flags.contains(OpenFlags::ASYNC) && file.ops().is_pollable(),
    );
    file.set_flags(flags);
    if (before ^ file.flags()).contains(OpenFlags::ASYNC) {
        fs::sigio::update_fasync(file, fd.raw())?;
    }
    Ok(0)
}

/// `fcntl(2)`: changes or asks for properties of a descriptor or file, by `F_*`.
pub fn sys_fcntl(task: &Task, fd: Fd, command: u32, arg: usize) -> SysResult {
    let files = task.files();
    let file = files.get(fd)?;
    let flock = || UserPtr::<Flock>::new(arg.into());
    let process = || files.record_lock_owner(task.pid());
    // With O_PATH only the descriptor itself can be handled.
    let on_descriptor = matches!(
        command,
        sys::F_DUPFD | sys::F_DUPFD_CLOEXEC | sys::F_GETFD | sys::F_SETFD | sys::F_GETFL
    );
    if file.flags().contains(OpenFlags::PATH) && !on_descriptor {
        return Err(Errno::EBADF);
    }
    match command {
        sys::F_DUPFD | sys::F_DUPFD_CLOEXEC => {
            let least = usize::try_from(arg as i32).map_err(|_| Errno::EINVAL)?;
            files.install_from(
                file,
                CloseOnExec::when(command == sys::F_DUPFD_CLOEXEC),
                least,
            )
        }
        sys::F_GETFD => files
            .cloexec(fd)
            .map(|cloexec| usize::from(cloexec.is_set())),
        sys::F_SETFD => files
            .set_cloexec(fd, CloseOnExec::when(arg as u32 & sys::FD_CLOEXEC != 0))
            .map(|()| 0),
        sys::F_GETFL => Ok(file.flags().bits() as usize),
        sys::F_SETFL => set_status_flags(task, &file, fd, OpenFlags::from_bits_retain(arg as u32)),
        sys::F_GETLK => get_lock(&file, process(), flock()),
        sys::F_SETLK => set_lock(&file, process(), flock(), OnConflict::Fail),
        sys::F_SETLKW => set_lock(&file, process(), flock(), OnConflict::Wait),
        sys::F_OFD_GETLK => get_lock(&file, LockOwner::open_file(&file), flock()),
        sys::F_OFD_SETLK => set_lock(
            &file,
            LockOwner::open_file(&file),
            flock(),
            OnConflict::Fail,
        ),
        sys::F_OFD_SETLKW => set_lock(
            &file,
            LockOwner::open_file(&file),
            flock(),
            OnConflict::Wait,
        ),
        sys::F_GETOWN => sigio::owner(&file),
        sys::F_SETOWN => sigio::set_owner(task, &file, arg as i32),
        sys::F_GETOWN_EX => sigio::owner_ex(&file, UserPtr::new(arg.into())),
        sys::F_SETOWN_EX => sigio::set_owner_ex(task, &file, UserPtr::new(arg.into())),
        sys::F_GETSIG => Ok(file.owner().signal as usize),
        sys::F_SETSIG => sigio::set_signal(&file, arg as i32),
        F_GETLEASE => Ok(match lease::get(&file) {
            None => F_UNLCK,
            Some(LeaseKind::Read) => F_RDLCK,
            Some(LeaseKind::Write) => F_WRLCK,
        } as usize),
        F_SETLEASE => set_lease(task, &file, fd, arg as i16),
        F_NOTIFY => {
            lease::set_default_owner(&file, task.pid().raw(), sigio::setter_uids(task));
            dnotify::fcntl_dirnotify(&file, fd.raw(), arg as u32).map(|()| 0)
        }
        F_GETPIPE_SZ => Ok(file.ops_as::<PipeEnd>().ok_or(Errno::EBADF)?.capacity()),
        F_SETPIPE_SZ => {
            let any = task.cred().capable(sys::CAP_SYS_RESOURCE);
            file.ops_as::<PipeEnd>()
                .ok_or(Errno::EBADF)?
                .set_capacity(arg, any)
        }
        F_GET_RW_HINT => {
            let hint = file.path().dentry().write_hint().load(Ordering::Relaxed);
            UserPtr::<u64>::new(arg.into())
                .write(&hint.into())
                .map(|()| 0)
        }
        F_SET_RW_HINT => {
            let hint = UserPtr::<u64>::new(arg.into()).read()?;
            let Ok(hint @ 0..=RWH_WRITE_LIFE_EXTREME) = u8::try_from(hint) else {
                return Err(Errno::EINVAL);
            };
            let kept = file.path().dentry().write_hint();
            kept.store(hint, Ordering::Relaxed);
            Ok(0)
        }
        F_ADD_SEALS if !file.flags().is_writable() => Err(Errno::EPERM),
        F_ADD_SEALS => file.inode().add_seals(arg as u32).map(|()| 0),
        F_GET_SEALS if file.inode().kind() == FileType::Regular => {
            Ok(file.inode().seals() as usize)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Linux's own commands begin here.
const F_LINUX_SPECIFIC_BASE: u32 = 1024;
const F_SETLEASE: u32 = F_LINUX_SPECIFIC_BASE;
const F_GETLEASE: u32 = F_LINUX_SPECIFIC_BASE + 1;
const F_NOTIFY: u32 = F_LINUX_SPECIFIC_BASE + 2;
const F_SETPIPE_SZ: u32 = F_LINUX_SPECIFIC_BASE + 7;
const F_GETPIPE_SZ: u32 = F_LINUX_SPECIFIC_BASE + 8;
const F_ADD_SEALS: u32 = F_LINUX_SPECIFIC_BASE + 9;
const F_GET_SEALS: u32 = F_LINUX_SPECIFIC_BASE + 10;
// Of the file. The same of an open file was given up with Linux 5.18.
const F_GET_RW_HINT: u32 = F_LINUX_SPECIFIC_BASE + 11;
const F_SET_RW_HINT: u32 = F_LINUX_SPECIFIC_BASE + 12;

/// The longest life of what is written that a program can announce; 0 is none announced.
const RWH_WRITE_LIFE_EXTREME: u8 = 5;

/// The flag of `flock(2)` for mandatory locks.
const LOCK_MAND: u32 = 32;

/// `flock(2)`: locks or unlocks a whole file for an open file.
pub fn sys_flock(task: &Task, fd: Fd, operation: u32) -> SysResult {
    // Mandatory locks never worked on Linux, which says so in its log and looks at nothing else.
    if operation & LOCK_MAND != 0 {
        return Ok(0);
    }
    let kind = match operation & !sys::LOCK_NB {
        sys::LOCK_SH => Some(LockKind::Shared),
        sys::LOCK_EX => Some(LockKind::Exclusive),
        sys::LOCK_UN => None,
        _ => return Err(Errno::EINVAL),
    };
    let file = task.file_io(fd)?;
    let Some(kind) = kind else {
        lock::unflock(&file);
        return Ok(0);
    };
    if !file.flags().is_readable() && !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    let on_conflict = if operation & sys::LOCK_NB != 0 {
        OnConflict::Fail
    } else {
        OnConflict::Wait
    };
    lock::flock(&file, kind, task.pid().raw(), on_conflict).map(|()| 0)
}
