//! Processors, policies and priorities.

pub mod ioprio;
pub(crate) mod permissions;
pub mod rseq;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use abi::errno::Errno;
use fallible::Pieces;
use linux_raw_sys::general as sys;
use uapi::pid::{Pgid, Tid};
use uapi::time::TimeSpec;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::process::process_table;
use crate::sched::permissions::{check_change, check_nice};
use crate::state::sched_params::{SchedParams, is_realtime, priorities};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// The mask of all processors, in as many words as those need that there may be.
pub(crate) fn all_cpus() -> Vec<u64> {
    mask_of(::task::cpu_count())
}

/// The mask of all processors that there may be.
fn possible_cpus() -> Vec<u64> {
    mask_of(::task::cpu_limit())
}

/// The mask of so many processors.
fn mask_of(count: usize) -> Vec<u64> {
    let bits = |word: usize| {
        (0..64)
            .filter(|bit| word * 64 + bit < count)
            .fold(0, |mask, bit| mask | 1 << bit)
    };
    let words = ::task::cpu_limit().div_ceil(64);
    (0..words).map(bits).collect()
}

/// Whether a program passed a negative number for a thread.
fn is_negative(tid: Option<Tid>) -> bool {
    tid.is_some_and(|tid| !tid.is_valid())
}

/// Runs a function on the thread of a number; on the caller for `None`.
fn with_target<R>(task: &Task, tid: Option<Tid>, f: impl FnOnce(&Task) -> R) -> Result<R, Errno> {
    let Some(tid) = tid.filter(|&tid| tid != task.tid()) else {
        return Ok(f(task));
    };
    let other: Arc<Task> = process_table::find_task(tid).ok_or(Errno::ESRCH)?;
    Ok(f(&other))
}

/// Runs a function like [`with_target`], for calls about policies, which refuse negative numbers.
fn with_scheduled<R>(
    task: &Task,
    tid: Option<Tid>,
    f: impl FnOnce(&Task) -> R,
) -> Result<R, Errno> {
    if is_negative(tid) {
        Err(Errno::EINVAL)
    } else {
        with_target(task, tid, f)
    }
}

/// `sched_yield(2)`: lets other threads run first.
pub fn sys_sched_yield(_: &Task) -> SysResult {
    ::task::yield_now();
    Ok(0)
}

/// `getcpu(2)`: stores the number of the CPU, and of its node.
pub fn sys_getcpu(_: &Task, cpu: UserPtr<u32>, node: UserPtr<u32>, _cache: UserAddr) -> SysResult {
    cpu.write_optional(&guard::cpu::current().0)?;
    node.write_optional(&0)?;
    Ok(0)
}

/// `sched_getaffinity(2)`; returns how many bytes it wrote.
pub fn sys_sched_getaffinity(
    task: &Task,
    tid: Option<Tid>,
    size: usize,
    mask: UserAddr,
) -> SysResult {
    let all = all_cpus();
    let len = all.len() * 8;
    // An `unsigned int`.
    let size = size as u32 as usize;
    if size < len || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let own = with_target(task, tid, Task::cpus_allowed)?;
    let shown: Vec<u64> = if own.is_empty() {
        all
    } else {
        all.iter()
            .enumerate()
            .map(|(i, all)| all & own.get(i).copied().unwrap_or(0))
            .collect()
    };
    uaccess::write_bytes(mask, shown.as_slice().as_bytes())?;
    Ok(len)
}

/// `sched_setaffinity(2)`: sets the CPUs that a thread may run on.
pub fn sys_sched_setaffinity(
    task: &Task,
    tid: Option<Tid>,
    size: usize,
    mask: UserAddr,
) -> SysResult {
    let (all, possible) = (all_cpus(), possible_cpus());
    let mut new = vec![0u64; all.len()];
    let len = (size as u32 as usize).min(all.len() * 8);
    uaccess::read_bytes(mask, &mut new.as_mut_slice().as_mut_bytes()[..len])?;
    // Also those that may come.
    let allowed: Vec<u64> = (new.iter().zip(&possible))
        .map(|(new, possible)| new & possible)
        .collect();
    let cred = task.cred();
    with_target(task, tid, |target| {
        if !cred.capable(sys::CAP_SYS_NICE) && !cred.owns_schedule_of(&target.cred()) {
            return Err(Errno::EPERM);
        }
        if allowed
            .iter()
            .zip(&all)
            .all(|(allowed, all)| allowed & all == 0)
        {
            return Err(Errno::EINVAL);
        }
        target.set_cpus_allowed(allowed);
        Ok(())
    })??;
    Ok(0)
}

/// Change of policy and priority; `None` keeps the policy, and what children get.
#[derive(Default)]
struct SchedRequest {
    policy: Option<u32>,
    priority: u32,
    nice: Option<i32>,
    reset_on_fork: bool,
    /// Whether policy and parameters stay as they are, and only what children get changes
    /// (`SCHED_FLAG_KEEP_ALL`).
    keep_all: bool,
    /// Whether the request asks for limits of the processor's speed, which there are not.
    util_clamp: bool,
}

fn apply(task: &Task, tid: Option<Tid>, wish: &SchedRequest) -> SysResult {
    with_scheduled(task, tid, |target| {
        target.set_sched_params(|schedule| {
            let policy = wish.policy.unwrap_or(schedule.policy);
            if !priorities(policy)?.contains(&wish.priority) {
                return Err(Errno::EINVAL);
            }
            let reset_on_fork = if wish.policy.is_none() {
                schedule.reset_on_fork
            } else {
                wish.reset_on_fork
            };
            let nice = wish
                .nice
                .filter(|_| !is_realtime(policy))
                .unwrap_or(schedule.nice);
            let new = SchedParams {
                policy,
                priority: wish.priority,
                nice,
                reset_on_fork,
            };
            check_change(task, target, *schedule, new)?;
            if wish.util_clamp {
                return Err(Errno::EOPNOTSUPP);
            }
            *schedule = if wish.keep_all {
                SchedParams {
                    reset_on_fork,
                    ..*schedule
                }
            } else {
                new
            };
            Ok(())
        })
    })?
    .map(|()| 0)
}

/// `sched_setscheduler(2)`: sets policy and parameters of a thread.
pub fn sys_sched_setscheduler(
    task: &Task,
    tid: Option<Tid>,
    policy: u32,
    parameters: UserPtr<i32>,
) -> SysResult {
    if parameters.is_null() || policy.cast_signed() < 0 || is_negative(tid) {
        return Err(Errno::EINVAL);
    }
    let reset_on_fork = policy & sys::SCHED_RESET_ON_FORK != 0;
    let policy = Some(policy & !sys::SCHED_RESET_ON_FORK);
    apply(
        task,
        tid,
        &SchedRequest {
            policy,
            priority: parameters.read()?.cast_unsigned(),
            reset_on_fork,
            ..SchedRequest::default()
        },
    )
}

/// `sched_setparam(2)`: sets the parameters of a thread.
pub fn sys_sched_setparam(task: &Task, tid: Option<Tid>, parameters: UserPtr<i32>) -> SysResult {
    if parameters.is_null() || is_negative(tid) {
        return Err(Errno::EINVAL);
    }
    let priority = parameters.read()?.cast_unsigned();
    apply(
        task,
        tid,
        &SchedRequest {
            priority,
            ..SchedRequest::default()
        },
    )
}

/// `sched_getscheduler(2)`: policy of a thread.
pub fn sys_sched_getscheduler(task: &Task, tid: Option<Tid>) -> SysResult {
    let schedule = with_scheduled(task, tid, Task::sched_params)?;
    let flag = if schedule.reset_on_fork {
        sys::SCHED_RESET_ON_FORK
    } else {
        0
    };
    Ok((schedule.policy | flag) as usize)
}

/// `sched_getparam(2)`: stores the parameters of a thread.
pub fn sys_sched_getparam(task: &Task, tid: Option<Tid>, parameters: UserPtr<i32>) -> SysResult {
    if parameters.is_null() {
        return Err(Errno::EINVAL);
    }
    let schedule = with_scheduled(task, tid, Task::sched_params)?;
    parameters.write(&schedule.priority.cast_signed())?;
    Ok(0)
}

/// Policy and parameters as `sched_setattr(2)` takes them: `struct sched_attr`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

/// First size of `struct sched_attr`.
const ATTR_SIZE_0: usize = 48;
/// Largest `struct sched_attr` that is accepted, in bytes.
const ATTR_SIZE_MAX: usize = 4096;

/// Reads a `sched_attr` of any size; what we do not know must be zero.
fn read_attr(addr: UserAddr) -> Result<SchedAttr, Errno> {
    let known = size_of::<SchedAttr>();
    let size = match UserPtr::<u32>::new(addr).read()? as usize {
        0 => ATTR_SIZE_0,
        size => size,
    };
    let fits = if (ATTR_SIZE_0..=ATTR_SIZE_MAX).contains(&size) {
        uaccess::check_zeroed(addr, known.min(size)..size)
    } else {
        Err(Errno::E2BIG)
    };
    if fits == Err(Errno::E2BIG) {
        UserPtr::<u32>::new(addr).write(&(known as u32))?;
    }
    fits?;
    let mut attr = SchedAttr::new_zeroed();
    uaccess::read_bytes(addr, &mut attr.as_mut_bytes()[..size.min(known)])?;
    Ok(attr)
}

/// `sched_setattr(2)`: sets policy and attributes of a thread.
pub fn sys_sched_setattr(task: &Task, tid: Option<Tid>, attr: UserAddr, flags: u32) -> SysResult {
    if attr.is_null() || is_negative(tid) || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let attr = read_attr(attr)?;
    let flag = |bits: u32| attr.flags & u64::from(bits) != 0;
    if attr.policy.cast_signed() < 0 {
        return Err(Errno::EINVAL);
    }
    let clamps = flag(sys::SCHED_FLAG_UTIL_CLAMP);
    if clamps && (attr.size as usize) < size_of::<SchedAttr>() {
        return Err(Errno::EINVAL);
    }
    let now = with_scheduled(task, tid, Task::sched_params)?;
    if attr.flags & !u64::from(sys::SCHED_FLAG_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    let keeps = flag(sys::SCHED_FLAG_KEEP_PARAMS);
    let wish = SchedRequest {
        policy: (!flag(sys::SCHED_FLAG_KEEP_POLICY)).then_some(attr.policy),
        // What is kept is what its policy knows.
        priority: if keeps && is_realtime(now.policy) {
            now.priority
        } else {
            attr.priority
        },
        nice: (!keeps || is_realtime(now.policy)).then_some(attr.nice.clamp(-20, 19)),
        reset_on_fork: flag(sys::SCHED_FLAG_RESET_ON_FORK),
        keep_all: keeps,
        util_clamp: clamps,
    };
    apply(task, tid, &wish)
}

/// `sched_getattr(2)`: stores policy and attributes of a thread.
pub fn sys_sched_getattr(
    task: &Task,
    tid: Option<Tid>,
    attr: UserAddr,
    size: u32,
    flags: u32,
) -> SysResult {
    let size = size as usize;
    if attr.is_null()
        || is_negative(tid)
        || flags != 0
        || !(ATTR_SIZE_0..=ATTR_SIZE_MAX).contains(&size)
    {
        return Err(Errno::EINVAL);
    }
    let schedule = with_scheduled(task, tid, Task::sched_params)?;
    let len = size.min(size_of::<SchedAttr>());
    let known = SchedAttr {
        size: len as u32,
        policy: schedule.policy,
        flags: if schedule.reset_on_fork {
            u64::from(sys::SCHED_FLAG_RESET_ON_FORK)
        } else {
            0
        },
        nice: if is_realtime(schedule.policy) {
            0
        } else {
            schedule.nice
        },
        priority: schedule.priority,
        ..SchedAttr::default()
    };
    uaccess::write_bytes(attr, &known.as_bytes()[..len])?;
    Ok(0)
}

/// `sched_get_priority_max(2)`: highest priority of a policy.
pub fn sys_sched_get_priority_max(_: &Task, policy: u32) -> SysResult {
    priorities_shown(policy).map(|range| *range.end() as usize)
}

/// `sched_get_priority_min(2)`: lowest priority of a policy.
pub fn sys_sched_get_priority_min(_: &Task, policy: u32) -> SysResult {
    priorities_shown(policy).map(|range| *range.start() as usize)
}

/// Priorities of a policy as programs are told: also those of `SCHED_DEADLINE`, which no thread
/// gets here, so that who asks for the limits of all policies is answered as by Linux.
fn priorities_shown(policy: u32) -> Result<RangeInclusive<u32>, Errno> {
    if policy == sys::SCHED_DEADLINE {
        Ok(0..=0)
    } else {
        priorities(policy)
    }
}

/// `sched_rr_get_interval(2)`: stores the time slice of a thread.
pub fn sys_sched_rr_get_interval(
    task: &Task,
    tid: Option<Tid>,
    interval: UserPtr<TimeSpec>,
) -> SysResult {
    let ns = match with_scheduled(task, tid, Task::sched_params)?.policy {
        sys::SCHED_RR => ::task::rr_quantum_ns(),
        sys::SCHED_FIFO => 0,
        _ => ::task::SLICE_NS,
    };
    interval.write(&TimeSpec::from_ns(ns))?;
    Ok(0)
}

/// The threads that `getpriority(2)` and `setpriority(2)` mean.
fn selected(task: &Task, which: u32, who: i32) -> Result<Pieces<Arc<Task>>, Errno> {
    let threads = match which {
        sys::PRIO_PROCESS => {
            return Ok(
                process_table::find_task(Tid::of_argument(who).unwrap_or(task.tid()))
                    .into_iter()
                    .collect(),
            );
        }
        sys::PRIO_PGRP => {
            let own = || process_table::relations(task.pid()).group;
            process_table::group_members(Pgid::of_argument(who).unwrap_or_else(own))
        }
        sys::PRIO_USER => {
            let user = if who == 0 {
                task.cred().user.real
            } else {
                who.cast_unsigned()
            };
            process_table::processes_where(|_, entry| entry.process.credentials().user.real == user)
        }
        _ => return Err(Errno::EINVAL),
    };
    Ok(threads.iter().flat_map(|process| process.tasks()).collect())
}

/// `getpriority(2)`: 20 minus the nice level, the highest of all selected threads.
pub fn sys_getpriority(task: &Task, which: u32, who: i32) -> SysResult {
    let best = selected(task, which, who)?
        .iter()
        .map(|target| 20 - target.sched_params().nice)
        .max();
    best.map(|value| value as usize).ok_or(Errno::ESRCH)
}

/// `setpriority(2)`: sets the nice level, from -20 to 19, of threads.
pub fn sys_setpriority(task: &Task, which: u32, who: i32, nice: i32) -> SysResult {
    let nice = nice.clamp(-20, 19);
    let cred = task.cred();
    let mut result = Err(Errno::ESRCH);
    for target in selected(task, which, who)? {
        let changed = if cred.capable(sys::CAP_SYS_NICE) || cred.owns_schedule_of(&target.cred()) {
            target.set_sched_params(|schedule| {
                check_nice(task, target.process(), schedule.nice, nice)?;
                schedule.nice = nice;
                Ok(())
            })
        } else {
            Err(Errno::EPERM)
        };
        result = match (changed, result) {
            (Ok(()), Err(Errno::ESRCH) | Ok(_)) => Ok(0),
            (Ok(()), earlier) => earlier,
            (Err(error), _) => Err(error),
        };
    }
    result
}
