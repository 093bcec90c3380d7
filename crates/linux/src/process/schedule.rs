//! The scheduling policy of a thread: its own, and one that is lent to it by a lock with priority
//! inheritance.

use ::task::{Group, Policy};
use abi::errno::Errno;

use crate::Task;
use crate::process::Process;
use crate::state::sched_params::{SchedParams, is_realtime};

/// The real-time priority of a policy, or 0.
fn rank(policy: Policy) -> u32 {
    policy.realtime().map_or(0, u32::from)
}

/// Scheduling group of the threads of a real user: the supervisor is managed by root's.
pub(crate) fn group_of(user: u32) -> Group {
    if user == 0 && guard::role::is_supervisor() {
        Group::Management
    } else {
        Group::Programs
    }
}

impl Task {
    /// Scheduling parameters of the thread.
    pub(crate) fn sched_params(&self) -> SchedParams {
        *self.sched_params.lock()
    }

    /// Changes the thread's scheduling parameters as `change` says, or not at all if that fails.
    pub(crate) fn set_sched_params(
        &self,
        change: impl FnOnce(&mut SchedParams) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // Held to the end, so that the thread gets what was set last.
        let mut schedule = self.sched_params.lock();
        let mut new = *schedule;
        change(&mut new)?;
        let becomes_realtime = is_realtime(new.policy) && !is_realtime(schedule.policy);
        *schedule = new;
        self.apply(new, *self.pi_boost.lock());
        drop(schedule);
        if becomes_realtime {
            self.process().leave_management();
        }
        Ok(())
    }

    /// The policy it runs with: its own, or one that was lent to it.
    pub(crate) fn effective_policy(&self) -> Policy {
        let own = self.sched_params.lock().class();
        self.pi_boost.lock().unwrap_or(own)
    }

    /// Boosts the thread to a policy, if that goes before its own by `rank`, or ends the boost
    /// (`None`).
    pub(crate) fn set_pi_boost(&self, policy: Option<Policy>, rank: impl Fn(Policy) -> i32) {
        let schedule = self.sched_params.lock();
        let mut lent = self.pi_boost.lock();
        let new = policy.filter(|&policy| rank(policy) > rank(schedule.class()));
        if *lent != new {
            *lent = new;
            self.apply(*schedule, new);
        }
    }

    /// Rank of the thread among those that wait for a futex: its real-time priority, or 0.
    pub(crate) fn futex_rank(&self) -> u32 {
        rank(self.effective_policy())
    }

    fn apply(&self, schedule: SchedParams, lent: Option<Policy>) {
        let policy = lent.unwrap_or_else(|| schedule.class());
        if let Some(waiter) = self.futex.get() {
            waiter.set_rank(rank(policy));
        }
        if let Some(thread) = self.started_thread() {
            thread.set_policy(policy);
        }
    }
}

impl Process {
    /// Schedules it as a program, whoever it belongs to: among threads of a program real-time ones
    /// go before the others, as on Linux, and no limit is shorter.
    fn leave_management(&self) {
        if !guard::role::is_supervisor() {
            return;
        }
        let tasks = self.tasks();
        for thread in tasks.iter().filter_map(|task| task.started_thread()) {
            thread.set_group(Group::Programs);
        }
    }
}
