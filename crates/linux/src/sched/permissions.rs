//! Who may change how a thread is scheduled.

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::Task;
use crate::process::Process;
use crate::state::rlimit::Resource;
use crate::state::sched_params::{SchedParams, is_realtime};

/// Whether `RLIMIT_NICE` of a process allows that nice level: the limit counts from 1 (level 19) to
/// 40 (level -20).
fn nice_limit_allows(process: &Process, nice: i32) -> bool {
    process.limits.lock()[Resource::Nice].soft >= (20 - nice) as u64
}

/// Whether a caller may set that nice level.
///
/// # Errors
/// `EACCES` if it may not.
pub(crate) fn check_nice(caller: &Task, target: &Process, old: i32, new: i32) -> Result<(), Errno> {
    if new >= old || caller.cred().capable(sys::CAP_SYS_NICE) || nice_limit_allows(target, new) {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// Whether a caller may change another's schedule like that.
///
/// # Errors
/// `EPERM` if it may not.
pub(crate) fn check_change(
    caller: &Task,
    target: &Task,
    old: SchedParams,
    new: SchedParams,
) -> Result<(), Errno> {
    let cred = caller.cred();
    if cred.capable(sys::CAP_SYS_NICE) {
        return Ok(());
    }
    let process = target.process();
    let allowed = if is_realtime(new.policy) {
        let limit = process.limits.lock()[Resource::RealtimePriority].soft;
        (new.policy == old.policy || limit != 0)
            && (new.priority <= old.priority || u64::from(new.priority) <= limit)
    } else {
        // `SCHED_IDLE` comes after every nice level, whatever its own is.
        new.policy == sys::SCHED_IDLE
            || new.nice >= old.nice
            || nice_limit_allows(process, new.nice)
    };
    let leaves_idle = old.policy == sys::SCHED_IDLE && new.policy != sys::SCHED_IDLE;
    let allowed = allowed && (!leaves_idle || nice_limit_allows(process, old.nice));
    let owns = cred.owns_schedule_of(&target.cred());
    let keeps_reset = new.reset_on_fork || !old.reset_on_fork;
    if allowed && owns && keeps_reset {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}
