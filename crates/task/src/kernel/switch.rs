//! Going from one thread to another.
//!
//! What a thread has with it (its handle, address space, floating-point registers) is in the CPU's
//! own part while it runs and on its stack while it does not: the switch moves it, and takes no
//! lock.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use guard::context;
use guard::cpu;

use super::cpu::{CPUS, Cpu, Own};
use super::observe;
use super::perturb;
use super::slot::{PARKED, RUNNING, Slot};
use super::wake;

/// Why the CPU looks for another thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The current thread sleeps; whoever wakes it queues it.
    Parked,
    /// The current thread yields to others.
    Yield,
    /// Something changed; it goes on unless somebody has a better claim.
    Preempt,
}

/// Whether the current thread may lose the CPU against its will.
pub(super) fn may_preempt() -> bool {
    CPUS.with(|c| c.preempt_depth.get() == 0)
}

/// Takes the calling thread's permit, or sleeps until there is one.
pub(super) fn park() {
    // Between the last look at what is waited for and the sleep.
    perturb::point();
    cpu::without_irqs(|| {
        let to = CPUS.with(|c| {
            let me = c.current();
            if me
                .state
                .compare_exchange(RUNNING, PARKED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                // From here on anybody may wake us: that puts us into a wake queue of this CPU,
                // because our stack is in use until the switch is done, and the queue is looked at
                // by nobody but this CPU.
                match c.hand_over(me) {
                    Some(next) => Some(c.depart(me, next, false)),
                    None => c.leave(Why::Parked),
                }
            } else {
                me.state.store(RUNNING, Ordering::Release);
                None
            }
        });
        if let Some(to) = to {
            go(to);
        }
    });
}

/// Lets other threads of this CPU go first.
pub fn yield_now() {
    cpu::without_irqs(|| reschedule(Why::Yield));
}

/// Looks for the thread to run here, and switches to it. Interrupts are off.
pub(super) fn reschedule(why: Why) {
    if let Some(to) = CPUS.with(|c| c.leave(why)) {
        go(to);
    }
}

#[inline(always)]
fn go(Departure { prev, next, own }: Departure) {
    observe::switch(prev, next);
    context::switch(prev.context(), next.context());
    // Some time later, perhaps on another CPU.
    arrive(own);
}

/// A context switch to be done: from whom to whom, and the state that the first one keeps on its
/// stack.
struct Departure {
    prev: &'static Slot,
    next: &'static Slot,
    own: Option<Box<Own>>,
}

/// Right after a switch: what a thread has with it goes where it belongs, and what was left to this
/// side of the switch is done. Interrupts are off.
#[inline(always)]
pub(super) fn arrive(own: Option<Box<Own>>) {
    let (evicted, again) = CPUS.with(|c| {
        c.settle(own);
        (
            c.evicted.take(),
            c.reschedule.get() && c.preempt_depth.get() == 0,
        )
    });
    if let Some(slot) = evicted {
        wake::send_on(slot);
    }
    if again {
        reschedule(Why::Preempt);
    }
}

/// The end of every interrupt, and other places where a thread loses the CPU against its will.
/// Interrupts are off.
pub(super) fn look_again() {
    if CPUS.with(|c| c.reschedule.get() && c.preempt_depth.get() == 0) {
        reschedule(Why::Preempt);
    }
}

/// Another CPU wants this one to look at its wake queues.
pub(super) fn on_kick() {
    CPUS.with(|c| c.reschedule.set(true));
}

impl Cpu {
    /// Decides who runs; if that is another thread, all is ready for the switch to it.
    #[inline(never)]
    fn leave(&self, why: Why) -> Option<Departure> {
        let prev = self.current();
        let next = self.choose(why);
        (!core::ptr::eq(prev, next)).then(|| self.depart(prev, next, why == Why::Preempt))
    }

    /// Takes what the current thread, which leaves against its will if `forced`, has with it, and
    /// accounts its time.
    #[inline(always)]
    fn depart(&self, prev: &'static Slot, next: &'static Slot, forced: bool) -> Departure {
        let mut own = self.own.take();
        if let Some(own) = &mut own {
            own.thread.leaves(forced);
            own.thread.gives_cpu_up(self.since.get());
            if let Some(fpu) = &mut own.fpu {
                fpu.save();
            }
        }
        Departure { prev, next, own }
    }

    /// The CPU is the current thread's, which brings this with it.
    #[inline(always)]
    fn settle(&self, own: Option<Box<Own>>) {
        if let Some(own) = own.as_deref() {
            own.thread.gets_cpu(self.since.get());
            own.thread.arrives(cpu::current());
            if let Some(user) = &own.user {
                user.activate();
            }
            if let Some(fpu) = &own.fpu {
                fpu.restore();
            }
        }
        let nothing = self.own.replace(own);
        if nothing.is_some() {
            left_behind();
        }
    }
}

#[cold]
#[inline(never)]
fn left_behind() {
    panic!("a thread left the CPU without what it had with it");
}

/// Keeps the CPU to the calling thread while it exists: nobody else runs here, and the thread does
/// not move. It must not sleep meanwhile.
#[derive(Debug)]
#[must_use = "preemption is allowed again as soon as the guard is dropped"]
pub struct PreemptGuard(core::marker::PhantomData<*mut ()>);

/// See [`PreemptGuard`].
pub fn preempt_disable() -> PreemptGuard {
    CPUS.with(|c| c.preempt_depth.set(c.preempt_depth.get() + 1));
    PreemptGuard(core::marker::PhantomData)
}

impl Drop for PreemptGuard {
    fn drop(&mut self) {
        CPUS.with(|c| c.preempt_depth.set(c.preempt_depth.get() - 1));
        if cpu::irqs_enabled() {
            cpu::without_irqs(look_again);
        }
    }
}
