//! Read-copy-update over this instance's CPUs (see the crate `rcu`, and `docs/locks.md`).
//!
//! A reader's section runs with interrupts off. So a CPU that switches context or takes an
//! interrupt is outside of every section: that is where quiescent states are counted.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering, fence};

use ::rcu::{Cpus, Domain, Memory};
use lfmutex::{Token, scheduler};

use crate::cpu::{self, CpuId};
use crate::ipi;

const NO_THREAD: usize = usize::MAX;

/// The thread that sleeps until all CPUs have passed a quiescent state; there is one at a time.
static WAITER: AtomicUsize = AtomicUsize::new(NO_THREAD);

static DOMAIN: Domain<Instance, Memory> = Domain::new(Instance);

/// The CPUs of this instance.
struct Instance;

// SAFETY: `quiescent_states` counts up with a full fence, outside of sections: in
// `quiescent_state`, which nothing in a section calls, and at the beginning of an interrupt, and in
// sections those are off. A CPU that rests runs nothing before it takes an interrupt, wakes up or
// switches context, all of which clear the flag first, with a full fence. A CPU that is not started
// runs nothing; it says that it is online with a full fence (`paging::tlb::init_cpu`) before its
// first section. One that leaves says so with a full fence after its last one (`leave`).
unsafe impl Cpus for Instance {
    fn count(&self) -> usize {
        cpu::most()
    }

    fn quiescent_states(&self, cpu: usize) -> u64 {
        cpu::area_of(CpuId(cpu as u32)).map_or(0, |area| area.quiescent.load(Ordering::SeqCst))
    }

    fn is_idle(&self, cpu: usize) -> bool {
        rests(CpuId(cpu as u32))
    }

    fn quiescent_state(&self) {
        cpu::without_irqs(quiescent_state);
    }

    fn kick(&self, cpu: usize) {
        ipi::reschedule(CpuId(cpu as u32));
    }

    fn sleep_until(&self, over: &dyn Fn() -> bool) {
        let scheduler = scheduler();
        WAITER.store(scheduler.current().into_raw(), Ordering::Relaxed);
        // Before the interrupts are sent, whose handlers look at it.
        fence(Ordering::SeqCst);
        for cpu in (0..self.count()).filter(|&cpu| !self.is_idle(cpu)) {
            self.kick(cpu);
        }
        while !over() {
            scheduler.park();
        }
        WAITER.store(NO_THREAD, Ordering::Relaxed);
    }

    #[inline]
    fn read_section<R>(&self, section: impl FnOnce() -> R) -> R {
        cpu::irqs_off_in_thread();
        let result = section();
        cpu::irqs_on();
        result
    }
}

/// Whether a CPU sleeps, was not started, or has left.
fn rests(cpu: CpuId) -> bool {
    let sleeps = |area: &cpu::CpuArea| area.idle.load(Ordering::SeqCst);
    !cpu::is_online(cpu) || cpu::area_of(cpu).is_none_or(sleeps)
}

/// Notes that this CPU is outside of every section, and runs threads. Interrupts are off.
#[inline]
pub(crate) fn quiescent_state() {
    let area = cpu::area();
    area.idle.store(false, Ordering::Relaxed);
    // A locked instruction: a full fence on x86, for both stores.
    area.quiescent.fetch_add(1, Ordering::SeqCst);
}

/// An interrupt is handled on this CPU.
#[inline]
pub(crate) fn quiescent_state_in_interrupt() {
    // What the interrupt leads to may read, even if the CPU goes on sleeping after it.
    quiescent_state();
    let sleeper = WAITER.load(Ordering::Relaxed);
    if sleeper != NO_THREAD {
        scheduler().unpark(Token::from_raw(sleeper));
    }
}

/// Frees all memory that waits for the end of a grace period: sleeps until it is over. In threads
/// only.
pub fn drain() {
    DOMAIN.drain();
}

/// Number of grace periods that are over.
pub fn grace_periods() -> u64 {
    DOMAIN.periods()
}

/// A place that holds an `Arc<T>` or nothing. Reading it takes no lock and does not wait; the value
/// is dropped with its last `Arc`, and the memory it was in is given back after a grace period.
#[derive(Debug)]
pub struct RcuArc<T>(::rcu::RcuArc<T>);

impl<T: Send + Sync> RcuArc<T> {
    /// A place with nothing in it.
    #[must_use]
    pub const fn empty() -> Self {
        Self(::rcu::RcuArc::empty())
    }

    /// The value that is there, if any. In threads with interrupts on, which they are afterwards.
    ///
    /// # Panics
    /// Within `CpuLocal::with`, and in interrupt handlers.
    #[inline]
    pub fn load(&self) -> Option<Arc<T>> {
        debug_assert!(cpu::irqs_enabled(), "it would turn interrupts on");
        // SAFETY: there is one domain.
        unsafe { self.0.load(&DOMAIN) }
    }

    /// Puts `new` there, and returns what was there. Sleeps if much memory waits for the end of a
    /// grace period: in threads only.
    pub fn swap(&self, new: Option<Arc<T>>) -> Option<Arc<T>> {
        // SAFETY: there is one domain.
        unsafe { self.0.swap(new, &DOMAIN) }
    }
}
