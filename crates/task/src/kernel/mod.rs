//! Kernel threads over the guard.
//!
//! | file | subject |
//! |---|---|
//! | `slot` | thread slots: state, links and stack of a thread; permits; what it may run on and how |
//! | `cpu` | what a CPU has: its own part and the part others may touch; who runs there |
//! | `pick_next` | deciding who runs next, and for how long |
//! | `rt_bandwidth` | limits of real-time threads (`sched_rt_runtime_us`) |
//! | `switch` | going from one thread to another |
//! | `wake` | where a woken thread goes, and telling that CPU |
//! | `idle` | CPUs without work: asking for some, polling, sleeping |
//! | `pause` | what stands still when the instance is paused |
//! | `sleep` | sleeping threads with a deadline, and the timer |
//! | `thread` | the `Thread` handle, spawn, join |
//! | `perturb` | a scheduler that makes rare orders frequent, for tests |
//! | `stats` | counters |
//! | `trace_events` | events for those who look on |

mod cpu;
mod idle;
mod pause;
mod perturb;
mod pick_next;
mod rt_bandwidth;
mod sleep;
mod slot;
pub mod stats;
mod switch;
mod thread;
mod trace_events;
mod wake;

use alloc::sync::Arc;
use core::panic::Location;
pub use core::sync::atomic as sync;
use core::sync::atomic::Ordering;

use guard::BootToken;
pub use guard::cpu::CpuId;
pub use guard::rcu::RcuArc;
pub use guard::timer::now_ns;
pub use idle::run_cpu;
pub use lfmutex::{Condvar, Mutex, MutexGuard, Once, ReadGuard, RwLock, WriteGuard};
use lfmutex::{Token, scheduler};
pub(crate) use perturb::preemption_point;
pub use rt_bandwidth::{change_rt_limits, rt_limits};
pub use switch::{PreemptGuard, preempt_disable, yield_now};
pub use thread::{Raised, Thread, UserSpace, current, raise, spawn, spawn_scheduled, try_current};
use topology::Topology;
pub use trace_events::{Site, lock_sites, start_recording};

use crate::Deadline;

/// Number of CPUs of this instance.
#[must_use]
pub fn cpu_count() -> usize {
    guard::cpu::count()
}

/// The most CPUs that this instance may have.
#[must_use]
pub fn cpu_limit() -> usize {
    guard::cpu::limit()
}

/// Topology of the CPUs that there are.
static TOPOLOGY: Mutex<Option<Arc<Topology>>> = Mutex::new(None);

/// Topology of this instance's CPUs: siblings, cores, packages. Another one when there are more of
/// them.
pub fn topology() -> Arc<Topology> {
    let new = || Arc::new(guard::cpu::topology());
    TOPOLOGY.lock().get_or_insert_with(new).clone()
}

/// Makes what the scheduler needs for a CPU that is about to come; false if memory is short.
pub fn prepare_cpu(cpu: CpuId) -> bool {
    cpu::prepare(cpu)
}

/// Takes in that there are more CPUs, which were prepared: threads go there as soon as they come.
pub fn cpus_added() {
    TOPOLOGY.lock().take();
    cpu::note_siblings(&topology());
    for cpu in (0..cpu_count() as u32).map(CpuId) {
        cpu::shared(cpu).closed.store(false, Ordering::Relaxed);
        cpu::set_active(cpu, true);
    }
}

/// Takes all threads off a CPU, which leaves the instance as soon as it has none: those that may
/// run nowhere else may run anywhere then. Sleeps, and returns when none is sent there any more.
pub fn drain_cpu(cpu: CpuId) {
    let look = || {
        cpu::shared(cpu).recheck.store(true, Ordering::SeqCst);
        guard::cpu::without_irqs(|| wake::send_reschedule(cpu));
    };
    cpu::set_active(cpu, false);
    cpu::IDLE.remove(cpu.0 as usize);
    look();
    // Who has chosen it before puts its thread there meanwhile. A thread whose stack is in use
    // there is queued there afterwards, too; then the CPU is not idle yet.
    guard::rcu::drain();
    cpu::shared(cpu).closed.store(true, Ordering::SeqCst);
    look();
}

/// Takes in that there are fewer CPUs, some time after [`drain_cpu`]: nobody looks for siblings of
/// the one that has gone any more.
pub fn cpus_removed() {
    TOPOLOGY.lock().take();
    cpu::note_siblings(&topology());
}

/// Sets threads up, on the first CPU, before any is spawned. Threads run once [`run_cpu`] is
/// called.
pub fn init(boot: &BootToken) {
    perturb::init();
    for cpu in (0..cpu_count() as u32).map(CpuId) {
        assert!(prepare_cpu(cpu), "the first slots of all");
        cpu::set_active(cpu, true);
    }
    cpu::init_idle();
    cpu::note_siblings(&guard::cpu::topology());
    guard::irq::set_timer_handler(boot, sleep::on_timer);
    guard::irq::set_reschedule_handler(boot, switch::on_reschedule_ipi);
    guard::irq::set_irq_exit_hook(boot, switch::preempt_check);
    guard::pause::set_handler(boot, pause::on_pause);
    guard::mem::set_low_memory_handler(boot, thread::on_low_memory);
    guard::trace::set_thread_source(boot, || cpu::current_slot().number());
}

/// The calling thread, to [`unpark`].
pub(crate) fn current_token() -> Token {
    scheduler().current()
}

/// Gives a thread its permit.
pub(crate) fn unpark(thread: Token) {
    scheduler().unpark(thread);
}

/// A wait has found its condition true: of interest to the explorer on the host.
#[inline(always)]
pub(crate) fn wait_satisfied() {}

/// Sleeps until the calling thread's permit is there (see [`Thread::unpark`]). May return early:
/// look again at what is waited for.
pub fn park() {
    switch::park();
}

/// Sleeps like [`park`], but only until the clock passes `deadline`; false if it has.
pub fn park_until(deadline: Deadline) -> bool {
    if deadline.has_passed() {
        return false;
    }
    sleep::with_deadline(deadline.as_ns(), switch::park);
    !deadline.has_passed()
}

/// Sleeps until the clock passes `deadline`.
pub fn sleep_until(deadline: Deadline) {
    while park_until(deadline) {}
}

struct Scheduler;

static SCHEDULER: Scheduler = Scheduler;

impl lfmutex::Scheduler for Scheduler {
    fn current(&self) -> lfmutex::Token {
        lfmutex::Token::from_raw(cpu::current_slot().number() as usize)
    }

    fn park(&self) {
        let slot = cpu::current_slot();
        slot.blocked_on_lock.store(true, Ordering::Relaxed);
        switch::park();
        slot.blocked_on_lock.store(false, Ordering::Relaxed);
    }

    fn unpark(&self, thread: lfmutex::Token) {
        // Between the lock's being granted and its owner's knowing.
        perturb::preemption_point();
        if let Some(slot) = u32::try_from(thread.into_raw()).ok().and_then(slot::get) {
            wake::unpark(slot);
        }
    }

    fn wait_begins(&self, site: &'static Location<'static>) -> lfmutex::Wait {
        perturb::preemption_point();
        trace_events::trace_contention_begin(site)
    }

    fn wait_ends(&self, wait: lfmutex::Wait) {
        trace_events::trace_contention_end(wait);
        perturb::preemption_point();
    }

    fn may_block(&self) -> bool {
        guard::cpu::irqs_enabled() && switch::is_preemptible()
    }
}
