//! Counters of the scheduler.

use core::sync::atomic::Ordering;

use guard::cpu::CpuId;
use guard::timer::now_ns;

use super::cpu::{IDLE, shared};
use crate::cpu_stats::CpuStats;

/// The counters of a CPU.
#[must_use]
pub fn cpu(cpu: CpuId) -> CpuStats {
    let s = shared(cpu);
    let is_idle = IDLE.contains(cpu.0 as usize);
    let idle_now = if is_idle {
        now_ns().saturating_sub(s.running_since.load(Ordering::Relaxed))
    } else {
        0
    };
    let stalled_now = match s.stalled_since.load(Ordering::Relaxed) {
        0 => 0,
        since => now_ns().saturating_sub(since),
    };
    let up_now = match s.started_ns.load(Ordering::Relaxed) {
        0 => 0,
        since => now_ns().saturating_sub(since),
    };
    CpuStats {
        up_ns: s.earlier_ns.load(Ordering::Relaxed) + up_now,
        switches: s.counters.switches.get(),
        wakes: s.counters.wakes.get(),
        remote_wakes: s.counters.remote_wakes.get(),
        ipis: s.counters.ipis.get(),
        ipis_saved: s.counters.ipis_saved.get(),
        steals: s.counters.steals.get(),
        polls: s.counters.polls.get(),
        sleeps: s.counters.sleeps.get(),
        idle_ns: s.counters.idle_ns.get() + idle_now,
        stalled_ns: s.counters.stalled_ns.get() + stalled_now,
        runnable: s.load.load(Ordering::Relaxed),
    }
}

/// Threads running or queued on all CPUs.
#[must_use]
pub fn runnable() -> u32 {
    (0..crate::cpu_count() as u32)
        .map(|n| cpu(CpuId(n)).runnable)
        .sum()
}
