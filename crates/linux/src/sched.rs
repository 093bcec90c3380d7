//! Processors and priorities. There is one class of threads so far, served in turn: policies and priorities other than the default
//! are refused, niceness is remembered by nobody.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use zerocopy::IntoBytes;

use crate::time::TimeSpec;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, process_table as processes};

/// The longest time a thread runs while another waits for its processor.
const SLICE_NS: u64 = 10_000_000;

/// The mask of all processors.
pub(crate) fn all_cpus() -> Vec<u64> {
    let count = ::task::cpu_count();
    let bits = |word: usize| (0..64).filter(|bit| word * 64 + bit < count).fold(0, |mask, bit| mask | 1 << bit);
    (0..count.div_ceil(64)).map(bits).collect()
}

/// Does something with the thread a number means: the caller for 0.
fn with_task<R>(task: &Task, tid: i32, f: impl FnOnce(&Task) -> R) -> Result<R, Errno> {
    if tid < 0 {
        return Err(Errno::EINVAL);
    }
    if tid == 0 || tid == task.tid() {
        return Ok(f(task));
    }
    let other: Arc<Task> = processes::find_task(tid).ok_or(Errno::ESRCH)?;
    Ok(f(&other))
}

/// `sched_yield(2)`
pub fn sys_sched_yield(_: &Task) -> SysResult {
    ::task::yield_now();
    Ok(0)
}

/// `getcpu(2)`
pub fn sys_getcpu(_: &Task, cpu: UserPtr<u32>, node: UserPtr<u32>, _cache: usize) -> SysResult {
    cpu.write_optional(&guard::cpu::current().0)?;
    node.write_optional(&0)?;
    Ok(0)
}

/// `sched_getaffinity(2)`; returns how many bytes it wrote.
pub fn sys_sched_getaffinity(task: &Task, tid: i32, size: usize, mask: usize) -> SysResult {
    let all = all_cpus();
    let len = all.len() * 8;
    if size < len || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let own = with_task(task, tid, |t| t.cpus.lock().clone())?;
    let shown: Vec<u64> = if own.is_empty() {
        all
    } else {
        all.iter().enumerate().map(|(i, all)| all & own.get(i).copied().unwrap_or(0)).collect()
    };
    uaccess::write_bytes(mask, shown.as_slice().as_bytes())?;
    Ok(len)
}

/// `sched_setaffinity(2)`
pub fn sys_sched_setaffinity(task: &Task, tid: i32, size: usize, mask: usize) -> SysResult {
    let all = all_cpus();
    let mut new = vec![0u64; all.len()];
    let len = size.min(all.len() * 8);
    uaccess::read_bytes(mask, &mut new.as_mut_slice().as_mut_bytes()[..len])?;
    let allowed: Vec<u64> = new.iter().zip(&all).map(|(new, all)| new & all).collect();
    if allowed.iter().all(|&word| word == 0) {
        return Err(Errno::EINVAL);
    }
    let cred = task.cred();
    with_task(task, tid, |target| {
        if !cred.may_control(&target.cred()) {
            return Err(Errno::EPERM);
        }
        if let Some(thread) = target.started() {
            thread.set_cpus(&allowed);
        }
        *target.cpus.lock() = allowed;
        Ok(())
    })??;
    if tid == 0 || tid == task.tid() {
        // The caller is where it may be when the call is over.
        ::task::yield_now();
    }
    Ok(0)
}

/// `sched_getscheduler(2)`
pub fn sys_sched_getscheduler(task: &Task, tid: i32) -> SysResult {
    with_task(task, tid, |_| sys::SCHED_NORMAL as usize)
}

/// Whether a policy is one that is served in turn.
fn ordinary(policy: u32) -> Result<(), Errno> {
    match policy & !sys::SCHED_RESET_ON_FORK {
        sys::SCHED_NORMAL | sys::SCHED_BATCH | sys::SCHED_IDLE => Ok(()),
        sys::SCHED_FIFO | sys::SCHED_RR | sys::SCHED_DEADLINE => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

/// `sched_setscheduler(2)`
pub fn sys_sched_setscheduler(task: &Task, tid: i32, policy: u32, parameters: UserPtr<i32>) -> SysResult {
    ordinary(policy)?;
    sys_sched_setparam(task, tid, parameters)
}

/// `sched_getparam(2)`
pub fn sys_sched_getparam(task: &Task, tid: i32, parameters: UserPtr<i32>) -> SysResult {
    with_task(task, tid, |_| ())?;
    parameters.write(&0)?;
    Ok(0)
}

/// `sched_setparam(2)`
pub fn sys_sched_setparam(task: &Task, tid: i32, parameters: UserPtr<i32>) -> SysResult {
    with_task(task, tid, |_| ())?;
    if parameters.read()? == 0 { Ok(0) } else { Err(Errno::EINVAL) }
}

/// `sched_get_priority_max(2)`
pub fn sys_sched_get_priority_max(_: &Task, policy: u32) -> SysResult {
    match policy {
        sys::SCHED_FIFO | sys::SCHED_RR => Ok(99),
        _ => ordinary(policy).map(|()| 0),
    }
}

/// `sched_get_priority_min(2)`
pub fn sys_sched_get_priority_min(_: &Task, policy: u32) -> SysResult {
    match policy {
        sys::SCHED_FIFO | sys::SCHED_RR => Ok(1),
        _ => ordinary(policy).map(|()| 0),
    }
}

/// `sched_rr_get_interval(2)`
pub fn sys_sched_rr_get_interval(task: &Task, tid: i32, interval: UserPtr<TimeSpec>) -> SysResult {
    with_task(task, tid, |_| ())?;
    interval.write(&TimeSpec::from_ns(SLICE_NS))?;
    Ok(0)
}

/// What `getpriority` returns for niceness 0: 20 minus it.
const NICE_0: usize = 20;

fn check_who(which: u32) -> Result<(), Errno> {
    if which <= sys::PRIO_USER { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `getpriority(2)`
pub fn sys_getpriority(task: &Task, which: u32, who: i32) -> SysResult {
    check_who(which)?;
    if which == sys::PRIO_PROCESS {
        with_task(task, who, |_| ())?;
    }
    Ok(NICE_0)
}

/// `setpriority(2)`: everybody is served alike.
pub fn sys_setpriority(task: &Task, which: u32, who: i32, _nice: i32) -> SysResult {
    check_who(which)?;
    if which == sys::PRIO_PROCESS {
        with_task(task, who, |_| ())?;
    }
    Ok(0)
}

/// `membarrier(2)`: nothing is offered yet, and the query says so.
pub fn sys_membarrier(_: &Task, command: u32, flags: u32, _cpu: u32) -> SysResult {
    if command == sys::membarrier_cmd::MEMBARRIER_CMD_QUERY as u32 && flags == 0 { Ok(0) } else { Err(Errno::EINVAL) }
}
