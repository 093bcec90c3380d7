//! What part of a period real-time threads may keep from fair ones that wait (`fair::RunQueue::limit_realtime`), for all CPUs.

use core::sync::atomic::Ordering;

use fair::RunQueue;
use guard::cpu::{self, CpuId};
use lfmutex::Mutex;

use super::cpu::shared;
use super::sync::AtomicU64;
use super::wake;

static REALTIME_NS: AtomicU64 = AtomicU64::new(fair::REALTIME_NS);
static PERIOD_NS: AtomicU64 = AtomicU64::new(fair::PERIOD_NS);

/// How long real-time threads may run of each period while fair ones wait, and the period, in nanoseconds.
pub fn realtime_limit() -> (u64, u64) {
    (REALTIME_NS.load(Ordering::Relaxed), PERIOD_NS.load(Ordering::Relaxed))
}

/// Changes both as `change` says of what they are, on all CPUs soon, or not at all if that fails. Real-time threads that may run for a
/// whole period, or more, have no limit.
///
/// # Errors
/// The ones of `change`.
pub fn change_realtime_limit<E>(change: impl FnOnce((u64, u64)) -> Result<(u64, u64), E>) -> Result<(), E> {
    static CHANGING: Mutex<()> = Mutex::new(());
    let _one = CHANGING.lock();
    let (realtime_ns, period_ns) = change(realtime_limit())?;
    REALTIME_NS.store(realtime_ns, Ordering::Relaxed);
    PERIOD_NS.store(period_ns, Ordering::Relaxed);
    for cpu in (0..super::cpu_count() as u32).map(CpuId) {
        // A CPU that has not started yet looks when it does.
        shared(cpu).recheck.store(true, Ordering::SeqCst);
        if cpu.0 == 0 || shared(cpu).started.load(Ordering::Relaxed) {
            cpu::without_irqs(|| wake::summon(cpu));
        }
    }
    Ok(())
}

/// Tells a CPU's queue. A queue that reads an old period with a new time hears of the other right after.
pub(super) fn apply(queue: &mut RunQueue) {
    let (realtime_ns, period_ns) = realtime_limit();
    queue.limit_realtime(realtime_ns, period_ns);
}
