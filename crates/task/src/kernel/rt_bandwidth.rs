//! Limits of real-time threads (`fair::RtLimits`), the same on all CPUs.

use core::sync::atomic::Ordering;

use fair::{RtLimits, RunQueue};
use guard::cpu::{self, CpuId};
use lfmutex::Mutex;

use super::cpu::{is_started, shared};
use super::sync::AtomicU64;
use super::wake;

static RUNTIME_NS: AtomicU64 = AtomicU64::new(RtLimits::DEFAULT.runtime_ns);
static PERIOD_NS: AtomicU64 = AtomicU64::new(RtLimits::DEFAULT.period_ns);

/// Limits of real-time threads. Beside [`change_rt_limits`] the two numbers may be of different
/// changes.
pub fn rt_limits() -> RtLimits {
    RtLimits {
        runtime_ns: RUNTIME_NS.load(Ordering::Relaxed),
        period_ns: PERIOD_NS.load(Ordering::Relaxed),
    }
}

/// Sets the limits of real-time threads to what `change` makes of the present ones. Every CPU
/// applies them at its next choice of a thread, which it makes at once. If `change` fails nothing
/// changes. One change at a time.
///
/// # Errors
/// The ones of `change`.
pub fn change_rt_limits<E>(change: impl FnOnce(RtLimits) -> Result<RtLimits, E>) -> Result<(), E> {
    static CHANGING: Mutex<()> = Mutex::new(());
    let _one = CHANGING.lock();
    let limits = change(rt_limits())?;
    RUNTIME_NS.store(limits.runtime_ns, Ordering::Relaxed);
    PERIOD_NS.store(limits.period_ns, Ordering::Relaxed);
    for cpu in (0..super::cpu_count() as u32).map(CpuId) {
        // A CPU that has not started yet looks when it does.
        shared(cpu).recheck.store(true, Ordering::SeqCst);
        if is_started(cpu) {
            cpu::without_irqs(|| wake::send_reschedule(cpu));
        }
    }
    Ok(())
}

/// Applies the limits to a CPU's queue. A queue that gets the numbers of different changes is told
/// again right after.
pub(super) fn apply(queue: &mut RunQueue) {
    queue.set_rt_limits(rt_limits());
}
