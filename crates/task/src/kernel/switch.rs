//! Going from one thread to another.
//!
//! A thread's run context (its handle, address space, floating-point registers) is in the CPU's own
//! part while it runs and on its stack while it does not: the switch moves it, and takes no lock.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use guard::context;
use guard::cpu::{self, IrqsOff};

use super::cpu::{CPUS, Cpu, RunContext};
use super::perturb;
use super::slot::{PARKED, RUNNING, Slot};
use super::trace_events;
use super::wake;

/// Reason why the CPU looks for another thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SwitchReason {
    /// The current thread sleeps; whoever wakes it queues it.
    Parked,
    /// The current thread yields to others.
    Yield,
    /// Something changed; it goes on unless somebody has a better claim.
    Preempt,
}

/// Whether the current thread may lose the CPU against its will.
pub(super) fn is_preemptible() -> bool {
    CPUS.with(|c| c.preempt_depth.get() == 0)
}

/// Takes the calling thread's permit, or sleeps until there is one.
pub(super) fn park() {
    // Between the last look at what is waited for and the sleep.
    perturb::preemption_point();
    cpu::without_irqs(|| {
        let to = CPUS.with_irqs_off(|c, irqs| {
            let me = c.current();
            if me
                .state
                .compare_exchange(RUNNING, PARKED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                // From here on anybody may wake us: that puts us into a wake queue of this CPU,
                // because our stack is in use until the switch is done, and the queue is looked at
                // by nobody but this CPU.
                match c.switch_to_deferred(me) {
                    Some(next) => Some(c.save_outgoing(me, next, SwitchReason::Parked, irqs)),
                    None => c.prepare_switch(SwitchReason::Parked, irqs),
                }
            } else {
                me.state.store(RUNNING, Ordering::Release);
                None
            }
        });
        if let Some(to) = to {
            context_switch(to);
        }
    });
}

/// Lets other threads of this CPU go first.
pub fn yield_now() {
    cpu::without_irqs(|| {
        let to = CPUS.with_irqs_off(|c, irqs| {
            let me = c.current();
            match c.yield_to_deferred(me) {
                Some(next) => Some(c.save_outgoing(me, next, SwitchReason::Yield, irqs)),
                None => c.prepare_switch(SwitchReason::Yield, irqs),
            }
        });
        if let Some(to) = to {
            context_switch(to);
        }
    });
}

/// Looks for the thread to run here, and switches to it. Interrupts are off.
pub(super) fn reschedule(why: SwitchReason) {
    if let Some(to) = CPUS.with_irqs_off(|c, irqs| c.prepare_switch(why, irqs)) {
        context_switch(to);
    }
}

#[inline(always)]
fn context_switch(PendingSwitch { prev, next, own }: PendingSwitch) {
    trace_events::trace_switch(prev, next);
    context::switch(prev.context(), next.context());
    // Some time later, perhaps on another CPU.
    finish_switch(own);
}

/// A context switch to be done: from whom to whom, and the state that the first one keeps on its
/// stack.
struct PendingSwitch {
    prev: &'static Slot,
    next: &'static Slot,
    own: Option<Box<RunContext>>,
}

/// Right after a switch: the run context goes where it belongs, and what was left to this
/// side of the switch is done. Interrupts are off.
#[inline(always)]
pub(super) fn finish_switch(own: Option<Box<RunContext>>) {
    let (evicted, again) = CPUS.with_irqs_off(|c, irqs| {
        c.restore_incoming(own, irqs);
        (
            c.evicted.take(),
            c.reschedule.get() && c.preempt_depth.get() == 0,
        )
    });
    if let Some(slot) = evicted {
        wake::send_evicted(slot);
    }
    if again {
        reschedule(SwitchReason::Preempt);
    }
}

/// The end of every interrupt, and other places where a thread loses the CPU against its will.
/// Interrupts are off.
pub(super) fn preempt_check() {
    if CPUS.with(|c| c.reschedule.get() && c.preempt_depth.get() == 0) {
        reschedule(SwitchReason::Preempt);
    }
}

/// The calling thread has changed the policy that it is scheduled by: takes that in, and lets
/// others go first if they have a better claim now.
pub(super) fn own_policy_changed() {
    cpu::without_irqs(|| {
        CPUS.with(Cpu::reapply_own_policy);
        preempt_check();
    });
}

/// Another CPU wants this one to look at its wake queues.
pub(super) fn on_reschedule_ipi() {
    CPUS.with(|c| c.reschedule.set(true));
}

impl Cpu {
    /// Decides who runs; if that is another thread, all is ready for the switch to it.
    #[inline(never)]
    fn prepare_switch(&self, why: SwitchReason, irqs: IrqsOff<'_>) -> Option<PendingSwitch> {
        let prev = self.current();
        let next = self.pick_next(why);
        (!core::ptr::eq(prev, next)).then(|| self.save_outgoing(prev, next, why, irqs))
    }

    /// Takes the run context of the current thread, which leaves the CPU, and accounts its time. If
    /// it does not sleep it leaves so that others can run, which counts as involuntary.
    #[inline(always)]
    fn save_outgoing(
        &self,
        prev: &'static Slot,
        next: &'static Slot,
        why: SwitchReason,
        irqs: IrqsOff<'_>,
    ) -> PendingSwitch {
        let mut own = self.run_context.take();
        if let Some(own) = &mut own {
            if why != SwitchReason::Parked {
                own.thread.count_preemption();
            }
            own.thread.sched_out(why == SwitchReason::Preempt);
            own.thread.stop_cpu_clock(self.running_since.get());
            if let Some(fpu) = &mut own.fpu {
                fpu.save(irqs);
            }
        }
        PendingSwitch { prev, next, own }
    }

    /// The CPU is the current thread's, which brings this with it.
    #[inline(always)]
    fn restore_incoming(&self, own: Option<Box<RunContext>>, irqs: IrqsOff<'_>) {
        if let Some(own) = own.as_deref() {
            own.thread.start_cpu_clock(self.running_since.get());
            own.thread.sched_in(cpu::current());
            if let Some(user) = &own.user {
                user.activate();
            }
            if let Some(fpu) = &own.fpu {
                fpu.restore(irqs);
            }
        }
        let nothing = self.run_context.replace(own);
        if nothing.is_some() {
            run_context_leaked();
        }
    }
}

#[cold]
#[inline(never)]
fn run_context_leaked() {
    panic!("a thread left the CPU without what it had with it");
}

/// Keeps the CPU to the calling thread while it exists: nobody else runs here, and the thread does
/// not move. It must not sleep meanwhile.
#[derive(Debug)]
#[must_use = "preemption is allowed again as soon as the guard is dropped"]
pub struct PreemptGuard(core::marker::PhantomData<*mut ()>);

/// Forbids preemption of the calling thread until the [`PreemptGuard`] is dropped.
pub fn preempt_disable() -> PreemptGuard {
    CPUS.with(|c| c.preempt_depth.set(c.preempt_depth.get() + 1));
    PreemptGuard(core::marker::PhantomData)
}

impl Drop for PreemptGuard {
    fn drop(&mut self) {
        CPUS.with(|c| c.preempt_depth.set(c.preempt_depth.get() - 1));
        if cpu::irqs_enabled() {
            cpu::without_irqs(preempt_check);
        }
    }
}
