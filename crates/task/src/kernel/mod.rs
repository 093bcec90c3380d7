//! Kernel threads over the guard.
//!
//! | file | subject |
//! |---|---|
//! | `slot` | thread slots: state, links and stack of a thread; permits; wake-ups |
//! | `sched` | the run queue of a CPU, choosing, switching, the timer |
//! | `thread` | the `Thread` handle, spawn, join |

mod sched;
mod slot;
mod thread;

pub use guard::cpu::CpuId;
pub use guard::timer::now_ns;
pub use sched::{PreemptGuard, preempt_disable, start_cpu, stats, yield_now};
pub use thread::{Thread, UserSpace, current, spawn};

/// Number of CPUs of this instance.
#[must_use]
pub fn cpu_count() -> usize {
    guard::cpu::count()
}

/// Sets threads up, on the first CPU, before any is spawned. Threads run once [`start_cpu`] is called.
pub fn init() {
    sched::prepare_cpus();
    sched::adopt_cpu();
    sched::install_hooks();
    lfmutex::set_scheduler(&SCHEDULER);
}

/// Sleeps until the calling thread's permit is there (see [`Thread::unpark`]). May return early: look again at what is
/// waited for.
pub fn park() {
    slot::park();
}

/// As [`park`], but only until the clock passes `deadline_ns`; false if it has.
pub fn park_until(deadline_ns: u64) -> bool {
    if now_ns() >= deadline_ns {
        return false;
    }
    sched::with_sleeper(deadline_ns, slot::park);
    now_ns() < deadline_ns
}

/// Sleeps until the clock passes `deadline_ns`.
pub fn sleep_until(deadline_ns: u64) {
    while park_until(deadline_ns) {}
}

struct Scheduler;

static SCHEDULER: Scheduler = Scheduler;

impl lfmutex::Scheduler for Scheduler {
    fn current(&self) -> lfmutex::Token {
        lfmutex::Token::from_raw(sched::current_slot().number() as usize)
    }

    fn park(&self) {
        slot::park();
    }

    fn unpark(&self, thread: lfmutex::Token) {
        if let Some(slot) = u32::try_from(thread.into_raw()).ok().and_then(slot::get) {
            slot::unpark(slot);
        }
    }

    fn may_block(&self) -> bool {
        guard::cpu::irqs_enabled() && sched::may_preempt()
    }
}
