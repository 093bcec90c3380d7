//! Scheduling policy, priority and nice level of a thread, as Linux has them.

use ::task::Policy;
use abi::errno::Errno;
use linux_raw_sys::general as sys;

/// The highest priority of `SCHED_FIFO` and `SCHED_RR`.
pub(crate) const MAX_PRIORITY: u32 = 99;

/// Policy, priority and nice level of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchedParams {
    /// Policy: one of `SCHED_*` that exist here.
    pub(crate) policy: u32,
    /// 1..=99 for `SCHED_FIFO` and `SCHED_RR`, 0 for others.
    pub(crate) priority: u32,
    /// -20..=19; kept, but without effect, while the policy is one of those two.
    pub(crate) nice: i32,
    /// Children start as ordinary threads.
    pub(crate) reset_on_fork: bool,
}

impl Default for SchedParams {
    fn default() -> Self {
        Self {
            policy: sys::SCHED_NORMAL,
            priority: 0,
            nice: 0,
            reset_on_fork: false,
        }
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

impl SchedParams {
    /// Policy as the scheduler takes it.
    pub(crate) fn class(self) -> Policy {
        let (priority, nice) = (self.priority as u8, self.nice as i8);
        match self.policy {
            sys::SCHED_FIFO => Policy::Fifo(priority),
            sys::SCHED_RR => Policy::Rr(priority),
            sys::SCHED_BATCH => Policy::Batch(nice),
            sys::SCHED_IDLE => Policy::Idle,
            _ => Policy::Other(nice),
        }
    }

    /// Parameters that a child starts with.
    pub(crate) fn inherited(self) -> Self {
        if !self.reset_on_fork {
            return self;
        }
        let nice = if is_realtime(self.policy) {
            0
        } else {
            self.nice.max(0)
        };
        let policy = if is_realtime(self.policy) {
            sys::SCHED_NORMAL
        } else {
            self.policy
        };
        Self {
            policy,
            priority: 0,
            nice,
            reset_on_fork: false,
        }
    }
}
