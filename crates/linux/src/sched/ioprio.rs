//! Priorities of input and output: `ioprio_get(2)`, `ioprio_set(2)`. They order what waits for
//! devices, and all file systems are in memory: so nothing depends on them.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fallible::Pieces;
use linux_raw_sys::general as sys;
use uapi::pid::{Pgid, Tid};

use crate::process::process_table;
use crate::state::sched_params::is_realtime;
use crate::{SysResult, Task};

const WHO_PROCESS: u32 = 1;
const WHO_GROUP: u32 = 2;
const WHO_USER: u32 = 3;
const CLASS_SHIFT: u32 = 13;
const CLASS_NONE: u32 = 0;
const CLASS_REAL_TIME: u32 = 1;
const CLASS_BEST_EFFORT: u32 = 2;
const CLASS_IDLE: u32 = 3;
const LEVELS: u32 = 8;
const CLASS_MASK: u32 = 7;
/// Linux keeps a priority in 16 bits.
const PRIORITY_MASK: u32 = 0xffff;

/// Threads that `which` and `who` of `ioprio_set(2)` select.
fn selected(task: &Task, which: u32, who: i32) -> Result<Pieces<Arc<Task>>, Errno> {
    let processes = match which {
        WHO_PROCESS => {
            return Ok(
                process_table::find_task(Tid::of_argument(who).unwrap_or(task.tid()))
                    .into_iter()
                    .collect(),
            );
        }
        WHO_GROUP => {
            let own = || process_table::relations(task.pid()).group;
            process_table::group_members(Pgid::of_argument(who).unwrap_or_else(own))
        }
        WHO_USER => {
            let user = if who == 0 {
                task.cred().user.real
            } else {
                who.cast_unsigned()
            };
            process_table::processes_where(|_, node| node.process.credentials().user.real == user)
        }
        _ => return Err(Errno::EINVAL),
    };
    Ok(processes
        .iter()
        .flat_map(|process| process.tasks())
        .collect())
}

/// Class of a priority; bits above it mean nothing, as on Linux.
fn class(priority: u32) -> u32 {
    priority >> CLASS_SHIFT & CLASS_MASK
}

/// Priority in force of a thread: if nothing was set, it follows from how it is scheduled.
fn effective(task: &Task) -> u32 {
    let set = task.io_priority.load(Ordering::Relaxed);
    if class(set) != CLASS_NONE {
        return set;
    }
    let schedule = task.sched_params();
    let class = match schedule.policy {
        sys::SCHED_IDLE => CLASS_IDLE,
        policy if is_realtime(policy) => CLASS_REAL_TIME,
        _ => CLASS_BEST_EFFORT,
    };
    class << CLASS_SHIFT | ((schedule.nice + 20) / 5).cast_unsigned()
}

/// `ioprio_set(2)`: sets the I/O priority of a thread, group or user.
pub fn sys_ioprio_set(task: &Task, which: u32, who: i32, priority: u32) -> SysResult {
    // Between the two there are hints for devices, any of which is fine.
    let (class, level) = (class(priority), priority & (LEVELS - 1));
    let cred = task.cred();
    match class {
        CLASS_REAL_TIME if !cred.has_sys_admin() && !cred.capable(sys::CAP_SYS_NICE) => {
            return Err(Errno::EPERM);
        }
        CLASS_REAL_TIME | CLASS_BEST_EFFORT | CLASS_IDLE => {}
        CLASS_NONE if level == 0 => {}
        _ => return Err(Errno::EINVAL),
    }
    let selected = selected(task, which, who)?;
    if selected.is_empty() {
        return Err(Errno::ESRCH);
    }
    for target in selected {
        let other = target.cred();
        let owns = [cred.user.real, cred.user.effective].contains(&other.user.real);
        if !owns && !cred.capable(sys::CAP_SYS_NICE) {
            return Err(Errno::EPERM);
        }
        target
            .io_priority
            .store(priority & PRIORITY_MASK, Ordering::Relaxed);
    }
    Ok(0)
}

/// `ioprio_get(2)`: what was set for one thread, or of several what has the one that goes first.
pub fn sys_ioprio_get(task: &Task, which: u32, who: i32) -> SysResult {
    if which == WHO_PROCESS {
        let target = selected(task, which, who)?;
        return target
            .first()
            .map(|target| target.io_priority.load(Ordering::Relaxed) as usize)
            .ok_or(Errno::ESRCH);
    }
    let best = selected(task, which, who)?
        .iter()
        .map(|target| effective(target))
        .min();
    best.map(|priority| priority as usize).ok_or(Errno::ESRCH)
}
