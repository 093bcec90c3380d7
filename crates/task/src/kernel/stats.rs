//! Counters of the scheduler.

use core::sync::atomic::Ordering;

use guard::cpu::CpuId;
use guard::timer::now_ns;

use super::cpu::shared;
use crate::cpu_stats::CpuStats;

/// The counters of a CPU.
#[must_use]
pub fn cpu(cpu: CpuId) -> CpuStats {
    let s = shared(cpu);
    let stalled_now = match s.stalled_since.load(Ordering::Relaxed) {
        0 => 0,
        since => now_ns().saturating_sub(since),
    };
    let times = s.usage.read(now_ns());
    CpuStats {
        up_ns: times.up_ns,
        switches: times.switches,
        wakes: s.counters.wakes.get(),
        remote_wakes: s.counters.remote_wakes.get(),
        ipis: s.counters.ipis.get(),
        ipis_saved: s.counters.ipis_saved.get(),
        steals: s.counters.steals.get(),
        polls: s.counters.polls.get(),
        sleeps: s.counters.sleeps.get(),
        idle_ns: times.idle_ns,
        paused_ns: times.paused_ns,
        stalled_ns: s.counters.stalled_ns.get() + stalled_now,
        runnable: s.load.load(Ordering::Relaxed),
    }
}

/// Threads running or queued on all CPUs.
#[must_use]
pub fn runnable() -> u32 {
    (0..crate::cpu_count() as u32)
        .map(|n| shared(CpuId(n)).load.load(Ordering::Relaxed))
        .sum()
}
