//! How a thread is scheduled, in Linux's terms, and who may change that.

use ::task::Policy;
use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::Task;
use crate::limits::{NICE, RTPRIO};
use crate::process::Process;

/// The highest priority of `SCHED_FIFO` and `SCHED_RR`.
pub(crate) const MAX_PRIORITY: u32 = 99;

/// Policy, priority and nice level of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// One of `SCHED_*` that exist here.
    pub(crate) policy: u32,
    /// 1..=99 for `SCHED_FIFO` and `SCHED_RR`, 0 for others.
    pub(crate) priority: u32,
    /// -20..=19; kept, but without effect, while the policy is one of those two.
    pub(crate) nice: i32,
    /// Children start as ordinary threads.
    pub(crate) reset_on_fork: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { policy: sys::SCHED_NORMAL, priority: 0, nice: 0, reset_on_fork: false }
    }
}

/// Whether a policy is one of the two with priorities.
pub(crate) fn is_realtime(policy: u32) -> bool {
    matches!(policy, sys::SCHED_FIFO | sys::SCHED_RR)
}

/// Priorities that a policy can have. `SCHED_DEADLINE` does not exist here.
///
/// # Errors
/// `EINVAL` if there is no such policy.
pub(crate) fn priorities(policy: u32) -> Result<core::ops::RangeInclusive<u32>, Errno> {
    match policy {
        sys::SCHED_FIFO | sys::SCHED_RR => Ok(1..=MAX_PRIORITY),
        sys::SCHED_NORMAL | sys::SCHED_BATCH | sys::SCHED_IDLE => Ok(0..=0),
        _ => Err(Errno::EINVAL),
    }
}

impl Schedule {
    /// The same for the scheduler.
    fn class(self) -> Policy {
        let (priority, nice) = (self.priority as u8, self.nice as i8);
        match self.policy {
            sys::SCHED_FIFO => Policy::Fifo(priority),
            sys::SCHED_RR => Policy::Rr(priority),
            sys::SCHED_BATCH => Policy::Batch(nice),
            sys::SCHED_IDLE => Policy::Idle,
            _ => Policy::Other(nice),
        }
    }

    /// What a child starts with.
    pub(crate) fn inherited(self) -> Self {
        if !self.reset_on_fork {
            return self;
        }
        let nice = if is_realtime(self.policy) { 0 } else { self.nice.max(0) };
        let policy = if is_realtime(self.policy) { sys::SCHED_NORMAL } else { self.policy };
        Self { policy, priority: 0, nice, reset_on_fork: false }
    }
}

impl Task {
    /// How it is scheduled.
    pub(crate) fn schedule(&self) -> Schedule {
        *self.schedule.lock()
    }

    /// Changes how it is scheduled as `change` says, or not at all if that fails.
    pub(crate) fn reschedule(&self, change: impl FnOnce(&mut Schedule) -> Result<(), Errno>) -> Result<(), Errno> {
        // Held to the end, so that the thread gets what was set last.
        let mut schedule = self.schedule.lock();
        let mut new = *schedule;
        change(&mut new)?;
        *schedule = new;
        self.apply(new, *self.lent.lock());
        Ok(())
    }

    /// The policy it runs with: its own, or one that was lent to it.
    pub(crate) fn effective_policy(&self) -> Policy {
        let own = self.schedule.lock().class();
        self.lent.lock().unwrap_or(own)
    }

    /// Lends it a policy, if that goes before its own by `rank`, or takes that back (`None`).
    pub(crate) fn lend(&self, policy: Option<Policy>, rank: impl Fn(Policy) -> i32) {
        let schedule = self.schedule.lock();
        let mut lent = self.lent.lock();
        let new = policy.filter(|&policy| rank(policy) > rank(schedule.class()));
        if *lent != new {
            *lent = new;
            self.apply(*schedule, new);
        }
    }

    fn apply(&self, schedule: Schedule, lent: Option<Policy>) {
        if let Some(thread) = self.started() {
            thread.set_policy(lent.unwrap_or_else(|| schedule.class()));
        }
    }
}

/// Whether `RLIMIT_NICE` of a process allows that nice level: the limit counts from 1 (level 19) to 40 (level -20).
fn nice_limit_allows(process: &Process, nice: i32) -> bool {
    process.limits.lock()[NICE][0] >= (20 - nice) as u64
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
pub(crate) fn check_change(caller: &Task, target: &Task, old: Schedule, new: Schedule) -> Result<(), Errno> {
    let cred = caller.cred();
    if cred.capable(sys::CAP_SYS_NICE) {
        return Ok(());
    }
    let process = target.process();
    let allowed = if is_realtime(new.policy) {
        let limit = process.limits.lock()[RTPRIO][0];
        (new.policy == old.policy || limit != 0) && (new.priority <= old.priority || u64::from(new.priority) <= limit)
    } else {
        // `SCHED_IDLE` comes after every nice level, whatever its own is.
        new.policy == sys::SCHED_IDLE || new.nice >= old.nice || nice_limit_allows(process, new.nice)
    };
    let leaves_idle = old.policy == sys::SCHED_IDLE && new.policy != sys::SCHED_IDLE;
    let allowed = allowed && (!leaves_idle || nice_limit_allows(process, old.nice));
    let owns = cred.owns_schedule_of(&target.cred());
    let keeps_reset = new.reset_on_fork || !old.reset_on_fork;
    if allowed && owns && keeps_reset { Ok(()) } else { Err(Errno::EPERM) }
}
