//! Limits of what a process may use: `getrlimit(2)`, `setrlimit(2)`, `prlimit64(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::{File, FileType, Inode, OpenFlags, Whence};
use linux_raw_sys::general as sys;
use vm::AddressSpace;

use crate::fdtable::{DEFAULT_LIMIT, MAX_LIMIT};
use crate::siginfo::SigInfo;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, process_table as processes, signal};

/// How many resources are limited.
const RESOURCES: usize = 16;
/// Soft and hard limit of each resource.
pub(crate) type Limits = [[u64; 2]; RESOURCES];

/// Index of the limit of files' sizes.
pub(crate) const FSIZE: usize = sys::RLIMIT_FSIZE as usize;
const CPU: usize = sys::RLIMIT_CPU as usize;
/// Index of the limit of a user's threads.
pub(crate) const NPROC: usize = sys::RLIMIT_NPROC as usize;
/// Index of the limit of bytes in a user's message queues.
pub(crate) const MSGQUEUE: usize = sys::RLIMIT_MSGQUEUE as usize;
/// Index of the limit of signals that wait.
pub(crate) const SIGPENDING: usize = sys::RLIMIT_SIGPENDING as usize;
/// Index of the heap's limit.
pub(crate) const DATA: usize = sys::RLIMIT_DATA as usize;
/// Index of the stack's limit.
pub(crate) const STACK: usize = sys::RLIMIT_STACK as usize;
/// Index of the limit of memory that is present.
pub(crate) const RSS: usize = sys::RLIMIT_RSS as usize;
const NOFILE: usize = sys::RLIMIT_NOFILE as usize;
const MEMLOCK: usize = sys::RLIMIT_MEMLOCK as usize;
const SPACE: usize = sys::RLIMIT_AS as usize;
const CORE: usize = sys::RLIMIT_CORE as usize;
/// Index of the limit of nice levels.
pub(crate) const NICE: usize = sys::RLIMIT_NICE as usize;
/// Index of the limit of priorities.
pub(crate) const RTPRIO: usize = sys::RLIMIT_RTPRIO as usize;

/// Names and units, as `/proc/<pid>/limits` has them.
pub(crate) const LIMIT_NAMES: [(&str, &str); RESOURCES] = [
    ("Max cpu time", "seconds"),
    ("Max file size", "bytes"),
    ("Max data size", "bytes"),
    ("Max stack size", "bytes"),
    ("Max core file size", "bytes"),
    ("Max resident set", "bytes"),
    ("Max processes", "processes"),
    ("Max open files", "files"),
    ("Max locked memory", "bytes"),
    ("Max address space", "bytes"),
    ("Max file locks", "locks"),
    ("Max pending signals", "signals"),
    ("Max msgqueue size", "bytes"),
    ("Max nice priority", ""),
    ("Max realtime priority", ""),
    ("Max realtime timeout", "us"),
];

/// A user's threads, which numbers limit anyway, and real-time signals that wait for a process or thread.
const DEFAULT_THREADS: u64 = 32_767;
const DEFAULT_SIGNALS: u64 = 16_384;
/// Bytes in a user's POSIX message queues, as on Linux.
const DEFAULT_QUEUES: u64 = 819_200;
/// Bytes that who lacks `CAP_IPC_LOCK` may lock, as on Linux.
const DEFAULT_LOCKED: u64 = 8 << 20;

/// The limits of process 1.
pub(crate) fn default_limits() -> Limits {
    let mut limits = [[u64::MAX; 2]; RESOURCES];
    limits[STACK][0] = 8 << 20;
    limits[CORE][0] = 0;
    limits[NPROC] = [DEFAULT_THREADS; 2];
    limits[SIGPENDING] = [DEFAULT_SIGNALS; 2];
    limits[MSGQUEUE] = [DEFAULT_QUEUES; 2];
    limits[MEMLOCK] = [DEFAULT_LOCKED; 2];
    limits[NICE] = [0; 2];
    limits[RTPRIO] = [0; 2];
    limits[NOFILE] = [DEFAULT_LIMIT as u64, MAX_LIMIT as u64];
    limits
}

/// Tells an address space its limits.
pub(crate) fn apply_memory_limits(limits: &Limits, space: &AddressSpace) {
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    space.set_limits(bytes(limits[SPACE][0]), bytes(limits[STACK][0]));
}

/// `prlimit64(2)`
pub fn sys_prlimit64(task: &Task, pid: i32, resource: u32, new: UserPtr<[u64; 2]>, old: UserPtr<[u64; 2]>) -> SysResult {
    let new = new.read_optional()?;
    let process = if pid == 0 { task.process().clone() } else { processes::find_any(pid)? };
    let cred = task.cred();
    if !Arc::ptr_eq(&process, task.process()) && !cred.may_limit(&process.credentials()) {
        return Err(Errno::EPERM);
    }
    let index = resource as usize;
    if index >= RESOURCES {
        return Err(Errno::EINVAL);
    }
    let mut limits = *process.limits.lock();
    let before = limits[index];
    if let Some([soft, hard]) = new {
        if soft > hard || (index == NOFILE && hard > MAX_LIMIT as u64) {
            return Err(if soft > hard { Errno::EINVAL } else { Errno::EPERM });
        }
        if hard > before[1] && !cred.capable(sys::CAP_SYS_RESOURCE) {
            return Err(Errno::EPERM);
        }
        limits[index] = [soft, hard];
        *process.limits.lock() = limits;
        if index == NOFILE
            && let Some(files) = process.files()
        {
            files.set_limit(usize::try_from(soft).unwrap_or(usize::MAX));
        }
        if index == FSIZE {
            process.file_size_limit.store(soft, Ordering::Relaxed);
        }
        if index == CPU {
            crate::itimer::watch_cpu_limit(&process);
        }
        if let Some(space) = process.space() {
            apply_memory_limits(&limits, &space);
        }
    }
    old.write_optional(&before)?;
    Ok(0)
}

/// `getrlimit(2)`
pub fn sys_getrlimit(task: &Task, resource: u32, to: UserPtr<[u64; 2]>) -> SysResult {
    let limits = *task.process().limits.lock();
    to.write(limits.get(resource as usize).ok_or(Errno::EINVAL)?)?;
    Ok(0)
}

/// `setrlimit(2)`
pub fn sys_setrlimit(task: &Task, resource: u32, new: UserPtr<[u64; 2]>) -> SysResult {
    new.read()?;
    sys_prlimit64(task, 0, resource, new, UserPtr::new(0))
}

/// How much of a transfer to a file `RLIMIT_FSIZE` allows, at `offset` or (`None`) at the opening's position.
///
/// # Errors
/// `EFBIG` for nothing at all, which `SIGXFSZ` tells, too.
#[inline(always)]
pub(crate) fn allowed_of_write(task: &Task, file: &File, offset: Option<u64>, len: usize) -> Result<usize, Errno> {
    let limit = task.process().file_size_limit.load(Ordering::Relaxed);
    if limit == u64::MAX { Ok(len) } else { limited_write(task, file, offset, len, limit) }
}

#[cold]
fn limited_write(task: &Task, file: &File, offset: Option<u64>, len: usize, limit: u64) -> Result<usize, Errno> {
    if file.inode().kind() != FileType::Regular || len == 0 {
        return Ok(len);
    }
    let at = match offset {
        Some(offset) => offset,
        None if file.flags().contains(OpenFlags::APPEND) => file.metadata().size,
        None => file.seek(Whence::Current, 0)?,
    };
    if at >= limit {
        return Err(too_large(task));
    }
    Ok(usize::try_from(limit - at).map_or(len, |room| room.min(len)))
}

fn too_large(task: &Task) -> Errno {
    signal::send_task(task, SigInfo::kernel(sys::SIGXFSZ as i32));
    Errno::EFBIG
}

/// Whether `RLIMIT_FSIZE` lets a file get this size; what is not made longer by it may be longer than the limit.
///
/// # Errors
/// `EFBIG`, which `SIGXFSZ` tells, too.
pub(crate) fn check_size(task: &Task, inode: &dyn Inode, size: u64) -> Result<(), Errno> {
    let limit = task.process().file_size_limit.load(Ordering::Relaxed);
    if size <= limit || size <= inode.metadata().size { Ok(()) } else { Err(too_large(task)) }
}

/// Whether a user may have one more thread.
///
/// # Errors
/// `EAGAIN`.
pub(crate) fn check_threads(task: &Task) -> Result<(), Errno> {
    let limit = task.process().limits.lock()[NPROC][0];
    let cred = task.cred();
    let free = cred.user.real == 0 || cred.privileged() || cred.capable(sys::CAP_SYS_RESOURCE);
    if limit >= DEFAULT_THREADS || free {
        return Ok(());
    }
    let own = processes::select(|_, node| node.process.credentials().user.real == cred.user.real);
    // Those that have ended count until they are waited for.
    let threads: usize = own.iter().map(|process| process.tasks().len().max(1)).sum();
    if (threads as u64) < limit { Ok(()) } else { Err(Errno::EAGAIN) }
}
