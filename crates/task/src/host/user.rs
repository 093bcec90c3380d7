//! Thread state of programs, on the host: kept for tests to read, without effect.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fair::{Group, Policy, RtLimits};
use guard::cpu::IrqsOff;
use guard::fpu::UserFpu;

use super::{CpuId, Thread, UserSpace};
use crate::ContextSwitches;

const NOTIFY_RESUME: u8 = 1;
const RSEQ_EVENT: u8 = 2;

/// State of a thread that runs a program.
#[derive(Default)]
pub(super) struct OfUser {
    pending_work: AtomicU8,
    rseq_tracking: AtomicBool,
    in_reclaim: AtomicBool,
    system_ns: AtomicU64,
    policy: Mutex<Policy>,
    group: Mutex<Group>,
    space: Mutex<Option<Arc<dyn UserSpace>>>,
    fpu: Mutex<Option<UserFpu>>,
}

impl Thread {
    /// Makes the thread find [`Self::take_notify_resume`].
    pub fn set_notify_resume(&self) {
        self.user
            .pending_work
            .fetch_or(NOTIFY_RESUME, Ordering::SeqCst);
    }
    /// Whether [`Self::set_notify_resume`] was called since the last time.
    pub fn take_notify_resume(&self) -> bool {
        self.user
            .pending_work
            .fetch_and(!NOTIFY_RESUME, Ordering::SeqCst)
            & NOTIFY_RESUME
            != 0
    }
    /// Not 0 while the thread is not to go on in ring 3.
    pub fn pending_work(&self) -> &AtomicU8 {
        &self.user.pending_work
    }
    /// Notes moves of the thread for rseq(2) from now on, or no more. The first time counts as a
    /// move.
    pub fn set_rseq_tracking(&self, on: bool) {
        self.user.rseq_tracking.store(on, Ordering::SeqCst);
        self.user
            .pending_work
            .fetch_and(!RSEQ_EVENT, Ordering::SeqCst);
        self.set_rseq_event();
    }
    /// Has a thread that uses rseq believe that it was moved.
    pub fn set_rseq_event(&self) {
        if self.user.rseq_tracking.load(Ordering::SeqCst) {
            self.user
                .pending_work
                .fetch_or(RSEQ_EVENT, Ordering::SeqCst);
        }
    }
    /// Whether [`Self::set_rseq_event`] was called since the last time.
    pub fn take_rseq_event(&self) -> bool {
        self.user
            .pending_work
            .fetch_and(!RSEQ_EVENT, Ordering::SeqCst)
            & RSEQ_EVENT
            != 0
    }
    /// Keeps whether the thread makes memory free. Returns what was said before.
    pub fn set_in_reclaim(&self, on: bool) -> bool {
        self.user.in_reclaim.swap(on, Ordering::Relaxed)
    }
    /// False: no CPU is taken from it.
    pub fn take_descheduled(&self) -> bool {
        false
    }
    /// False: what the host's scheduler does is not known.
    pub fn is_sleeping(&self) -> bool {
        false
    }
    /// Always false, as [`Self::is_sleeping`].
    pub fn is_blocked_on_lock(&self) -> bool {
        false
    }
    /// Number of the only CPU, 0.
    pub fn cpu(&self) -> CpuId {
        CpuId(0)
    }
    /// Does nothing: system time is counted by calls.
    pub fn begin_system_time(&self) {}
    /// Adds a nanosecond of system time.
    pub fn end_system_time(&self) {
        self.end_sampled_system_time(1);
    }
    /// Counts a nanosecond for each call.
    pub fn end_sampled_system_time(&self, calls: u64) {
        self.user.system_ns.fetch_add(calls, Ordering::Relaxed);
    }
    /// Nanoseconds that the two functions above have counted.
    pub fn system_time_ns(&self) -> u64 {
        self.user.system_ns.load(Ordering::Relaxed)
    }
    /// Always zeros: the host counts no context switches.
    pub fn context_switches(&self) -> ContextSwitches {
        ContextSwitches::default()
    }
    /// Does nothing: records name no threads here.
    pub fn set_ids(&self, _process: u32, _thread: u32) {}
    /// Whether the thread may run on a CPU of `mask`: the only CPU is the first.
    pub fn set_affinity(&self, mask: &[u64]) -> bool {
        mask.first().is_some_and(|word| word & 1 != 0)
    }
    /// Never: the only CPU stays.
    pub fn is_unbound(&self) -> bool {
        false
    }
    /// Keeps the policy, which changes nothing on the host.
    pub fn set_policy(&self, policy: Policy) {
        *self.user.policy.lock().expect("not poisoned") = policy;
    }
    /// The policy set by [`Self::set_policy`].
    pub fn policy(&self) -> Policy {
        *self.user.policy.lock().expect("not poisoned")
    }
    /// Keeps the scheduling group, which changes nothing on the host.
    pub fn set_group(&self, group: Group) {
        *self.user.group.lock().expect("not poisoned") = group;
    }
    /// Keeps its user address space.
    pub fn set_user(&self, space: Option<Arc<dyn UserSpace>>) {
        *self.user.space.lock().expect("not poisoned") = space;
    }
    /// Keeps its floating-point state.
    pub fn set_fpu(&self, fpu: Option<UserFpu>) {
        *self.user.fpu.lock().expect("not poisoned") = fpu;
    }
    /// Runs `f` with the state that was set.
    pub fn with_fpu<R>(&self, f: impl FnOnce(&mut UserFpu) -> R) -> Option<R> {
        self.user.fpu.lock().expect("not poisoned").as_mut().map(f)
    }
    /// Runs `f` with the state that was set, as [`Self::with_fpu`] does.
    pub fn with_loaded_fpu<R>(&self, f: impl FnOnce(&mut UserFpu, IrqsOff<'_>) -> R) -> Option<R> {
        self.with_fpu(|state| f(state, IrqsOff::on_host()))
    }
}

static RT_LIMITS: Mutex<RtLimits> = Mutex::new(RtLimits::DEFAULT);

/// Limits of real-time threads, which nobody keeps to.
pub fn rt_limits() -> RtLimits {
    *RT_LIMITS.lock().expect("not poisoned")
}

/// Sets the limits to what `change` makes of the present ones.
///
/// # Errors
/// The ones of `change`.
pub fn change_rt_limits<E>(change: impl FnOnce(RtLimits) -> Result<RtLimits, E>) -> Result<(), E> {
    let mut limits = RT_LIMITS.lock().expect("not poisoned");
    *limits = change(*limits)?;
    Ok(())
}

/// Does nothing: the host records no events.
///
/// # Errors
/// Never on the host.
pub fn start_recording(_classes: u32) -> Result<(), guard::trace::NoRings> {
    Ok(())
}
