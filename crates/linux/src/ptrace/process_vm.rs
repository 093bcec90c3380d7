//! Looking into other processes: `process_vm_readv(2)`, `process_vm_writev(2)`,
//! `process_madvise(2)`, `process_mrelease(2)`, `kcmp(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use ::task::Once;
use abi::errno::Errno;
use fs::epoll::EpollFile;
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::pid::Tid;
use vm::{AddressSpace, PAGE_SIZE};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::access::{check_trace_access, traceable_space};
use crate::process::{Process, pidfd, process_table};
use crate::state::credentials::TraceCreds;
use crate::state::usage::Direction;
use crate::uaccess::{self, UserPtr};
use crate::uio::{self, IoVec, IoVecs, UserBuf};
use crate::{SysResult, Task};

/// Memory of the process of a number, if the caller may change it.
fn target_space(task: &Task, tid: Tid) -> Result<Arc<AddressSpace>, Errno> {
    let target = process_table::find_task(tid).ok_or(Errno::ESRCH)?;
    traceable_space(task, target.process(), TraceCreds::Real)?.ok_or(Errno::ESRCH)
}

/// Position of a transfer in a list of buffers.
struct Cursor<'a> {
    buffers: &'a [UserBuf],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(buffers: &'a IoVecs) -> Self {
        Self {
            buffers: buffers.as_slice(),
            at: 0,
        }
    }

    /// Address and length of the next piece; `None` at the end.
    fn piece(&mut self) -> Option<UserBuf> {
        while let Some(&UserBuf { addr, len }) = self.buffers.first() {
            if self.at < len {
                return Some(UserBuf {
                    addr: addr.wrapping_add(self.at),
                    len: len - self.at,
                });
            }
            (self.buffers, self.at) = (&self.buffers[1..], 0);
        }
        None
    }
}

/// Copies between the caller's memory and another's, page by page: what was copied before a fault
/// counts. Both have something.
fn transfer(
    space: &AddressSpace,
    local: &IoVecs,
    remote: &IoVecs,
    direction: Direction,
) -> SysResult {
    let (mut local, mut remote) = (Cursor::new(local), Cursor::new(remote));
    let mut bytes = fallible::zeroed(PAGE_SIZE)?;
    let mut done = 0;
    while let (Some(mine), Some(other)) = (local.piece(), remote.piece()) {
        let len = mine
            .len
            .min(other.len)
            .min(PAGE_SIZE - other.addr.page_offset());
        let bytes = &mut bytes[..len];
        let moved = if direction == Direction::Write {
            let have = uaccess::read_partial(mine.addr, bytes);
            space.write(other.addr.raw(), &bytes[..have]).map(|()| have)
        } else {
            space
                .read(other.addr.raw(), bytes)
                .map(|()| uaccess::write_partial(mine.addr, bytes))
        };
        let moved = moved.unwrap_or(0);
        done += moved;
        if moved < len {
            break;
        }
        local.at += len;
        remote.at += len;
    }
    if done > 0 {
        Ok(done)
    } else {
        Err(Errno::EFAULT)
    }
}

/// Array of buffers in the caller's memory.
struct IoVecArray {
    ptr: UserPtr<IoVec>,
    count: usize,
}

fn process_vm(
    task: &Task,
    pid: Tid,
    local: IoVecArray,
    remote: IoVecArray,
    flags: usize,
    direction: Direction,
) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    // Of the count of one's own Linux takes 32 bits, and all of the others'.
    let local = IoVecs::read(local.ptr, local.count as u32 as usize)?;
    // Who moves nothing asks for nobody, and whose own buffers are empty is not even asked for the
    // others.
    let is_nothing = |buffers: &IoVecs| buffers.as_slice().iter().all(|buffer| buffer.len == 0);
    if is_nothing(&local) {
        return Ok(0);
    }
    let remote = IoVecs::read_remote(remote.ptr, remote.count)?;
    if is_nothing(&remote) {
        return Ok(0);
    }
    let space = target_space(task, pid)?;
    transfer(&space, &local, &remote, direction)
}

/// `process_vm_readv(2)`: reads the memory of another process.
pub fn sys_process_vm_readv(
    task: &Task,
    pid: Tid,
    local: UserPtr<IoVec>,
    local_count: usize,
    remote: UserPtr<IoVec>,
    remote_count: usize,
    flags: usize,
) -> SysResult {
    process_vm(
        task,
        pid,
        IoVecArray {
            ptr: local,
            count: local_count,
        },
        IoVecArray {
            ptr: remote,
            count: remote_count,
        },
        flags,
        Direction::Read,
    )
}

/// `process_vm_writev(2)`: writes the memory of another process.
pub fn sys_process_vm_writev(
    task: &Task,
    pid: Tid,
    local: UserPtr<IoVec>,
    local_count: usize,
    remote: UserPtr<IoVec>,
    remote_count: usize,
    flags: usize,
) -> SysResult {
    process_vm(
        task,
        pid,
        IoVecArray {
            ptr: local,
            count: local_count,
        },
        IoVecArray {
            ptr: remote,
            count: remote_count,
        },
        flags,
        Direction::Write,
    )
}

/// `process_madvise(2)`: what the caller says about its own memory, or another's. Nothing that
/// could change what is there.
pub fn sys_process_madvise(
    task: &Task,
    fd: Fd,
    ranges: UserPtr<IoVec>,
    count: usize,
    advice: u32,
    flags: u32,
) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let ranges = IoVecs::read(ranges, count as u32 as usize)?;
    let (process, _) = pidfd::process_of(task, fd)?;
    if !matches!(
        advice,
        sys::MADV_COLD | sys::MADV_PAGEOUT | sys::MADV_WILLNEED | sys::MADV_COLLAPSE
    ) {
        return Err(Errno::EINVAL);
    }
    // Of what has ended nothing is asked any more.
    process.require_space()?;
    let space = traceable_space(task, &process, TraceCreds::Fs)
        .map_err(|_| Errno::EACCES)?
        .ok_or(Errno::ESRCH)?;
    if !task.cred().capable(sys::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let mut done = 0;
    let mut left = uio::total(ranges.as_slice());
    for (i, &UserBuf { addr, len }) in ranges.as_slice().iter().enumerate() {
        // Of ranges of nothing only the first is looked at, and that only if others have something.
        if left == 0 || i > 0 && len == 0 {
            continue;
        }
        left -= len;
        // Beyond large pages there is nothing to do.
        let taken = if !addr.is_aligned(PAGE_SIZE) {
            Err(Errno::EINVAL)
        } else if advice == sys::MADV_COLLAPSE {
            space.collapse(addr.raw(), len)
        } else {
            space.check_mapped(addr.raw(), len)
        };
        match taken {
            Ok(()) => done += len,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// `process_mrelease(2)`: a process that ends gives its memory back by itself.
pub fn sys_process_mrelease(task: &Task, fd: Fd, flags: u32) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (process, _) = pidfd::process_of(task, fd)?;
    if process_table::has_ended(&process) {
        return Err(Errno::ESRCH);
    }
    if process.is_exiting() {
        Ok(0)
    } else {
        Err(Errno::EINVAL)
    }
}

const KCMP_FILE: u32 = 0;
const KCMP_VM: u32 = 1;
const KCMP_FILES: u32 = 2;
const KCMP_FS: u32 = 3;
const KCMP_SIGHAND: u32 = 4;
const KCMP_IO: u32 = 5;
const KCMP_SYSVSEM: u32 = 6;
const KCMP_EPOLL_TFD: u32 = 7;

fn address<T>(of: &Arc<T>) -> usize {
    Arc::as_ptr(of).addr()
}

/// Address for the I/O context of a thread; 0 if it has none, as nothing was set.
fn io_context(task: &Arc<Task>) -> usize {
    if task.io_priority.load(Ordering::Relaxed) == 0 {
        0
    } else {
        address(task)
    }
}

/// Address for what a process's end undoes of semaphores; 0 if there is nothing. Threads have it
/// together (`CLONE_SYSVSEM`), so who has several has it.
fn undo_list(process: &Arc<Process>) -> usize {
    if process.has_sem_undo.load(Ordering::Relaxed) || process.tasks().len() > 1 {
        address(process)
    } else {
        0
    }
}

/// An address in an order that tells nothing of where the kernel has things, another one for each
/// kind (Linux `kptr_obfuscate`).
fn obfuscated(address: usize, kind: u32) -> usize {
    static COOKIES: Once<[[usize; 2]; KCMP_EPOLL_TFD as usize + 1]> = Once::new();
    let cookies = COOKIES.call_once(|| {
        let mut bytes = [0; (KCMP_EPOLL_TFD as usize + 1) * 2 * size_of::<usize>()];
        fs::devfs::fill_random(&mut bytes);
        zerocopy::transmute!(bytes)
    });
    let [mask, factor] = cookies[kind as usize];
    // An odd factor leaves different ones different.
    (address ^ mask).wrapping_mul(factor | 1)
}

/// `struct kcmp_epoll_slot`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct KcmpEpollSlot {
    /// Descriptor of the epoll set.
    set: u32,
    /// The descriptor in it.
    watched: u32,
    /// Number of entries with that descriptor to skip.
    skip: u32,
}

/// `kcmp(2)`: whether two processes share something; the order of what they do not share is that of
/// its addresses.
pub fn sys_kcmp(
    task: &Task,
    pid1: Tid,
    pid2: Tid,
    kind: u32,
    index1: u64,
    index2: u64,
) -> SysResult {
    // Whether both are there comes before whether the caller may look at one.
    let find = |pid| process_table::find_task(pid).ok_or(Errno::ESRCH);
    let (task1, task2) = (find(pid1)?, find(pid2)?);
    let (process1, process2) = (task1.process().clone(), task2.process().clone());
    check_trace_access(task, &process1, TraceCreds::Real)?;
    check_trace_access(task, &process2, TraceCreds::Real)?;
    let descriptor = |index: u64| i32::try_from(index).map(Fd::new).map_err(|_| Errno::EBADF);
    let (one, other) = match kind {
        KCMP_FILE => (
            address(&task1.file(descriptor(index1)?)?),
            address(&task2.file(descriptor(index2)?)?),
        ),
        KCMP_VM => (
            address(&process1.require_space()?),
            address(&process2.require_space()?),
        ),
        KCMP_FILES => (address(&task1.files()), address(&task2.files())),
        KCMP_FS => (address(&task1.fs()), address(&task2.fs())),
        KCMP_SIGHAND => (address(&process1.sighand()), address(&process2.sighand())),
        // Who has none is as everybody else who has none.
        KCMP_IO => (io_context(&task1), io_context(&task2)),
        KCMP_SYSVSEM => (undo_list(&process1), undo_list(&process2)),
        KCMP_EPOLL_TFD => {
            let KcmpEpollSlot { set, watched, skip } = UserPtr::new(index2.into()).read()?;
            let file = task1.file(descriptor(index1)?)?;
            let set = task2.file(descriptor(u64::from(set))?)?;
            let set = set.ops_as::<EpollFile>().ok_or(Errno::EINVAL)?.instance();
            (
                address(&file),
                address(
                    &set.find_file(watched.cast_signed(), skip as usize)
                        .ok_or(Errno::ENOENT)?,
                ),
            )
        }
        _ => return Err(Errno::EINVAL),
    };
    let [one, other] = [one, other].map(|address| obfuscated(address, kind));
    Ok(match one.cmp(&other) {
        core::cmp::Ordering::Equal => 0,
        core::cmp::Ordering::Less => 1,
        core::cmp::Ordering::Greater => 2,
    })
}
