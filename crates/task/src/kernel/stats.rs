//! Counters of the scheduler.

use core::sync::atomic::Ordering;

use guard::cpu::CpuId;
use guard::timer::now_ns;

use super::cpu::{IDLE, shared};

/// What one CPU has done since the instance started.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuStats {
    /// Context switches.
    pub switches: u64,
    /// Threads it woke.
    pub wakes: u64,
    /// Threads it put into another CPU's wake queue.
    pub remote_wakes: u64,
    /// Interrupts it sent for that.
    pub ipis: u64,
    /// Interrupts it did not have to send, because the other CPU polled, was told already, or looks in time by itself.
    pub ipis_saved: u64,
    /// Threads it gave to idle CPUs that asked.
    pub steals: u64,
    /// Times it polled for work.
    pub polls: u64,
    /// Times it went to sleep: an idle CPU that is left alone does so once.
    pub sleeps: u64,
    /// Nanoseconds without a thread.
    pub idle_ns: u64,
    /// Nanoseconds in which threads waited for it.
    pub stalled_ns: u64,
    /// Threads running or queued at this moment.
    pub runnable: u32,
}

/// The counters of a CPU.
#[must_use]
pub fn cpu(cpu: CpuId) -> CpuStats {
    let s = shared(cpu);
    let is_idle = IDLE.contains(cpu.0 as usize);
    let idle_now = if is_idle { now_ns().saturating_sub(s.since.load(Ordering::Relaxed)) } else { 0 };
    let stalled_now = match s.stalled_since.load(Ordering::Relaxed) {
        0 => 0,
        since => now_ns().saturating_sub(since),
    };
    CpuStats {
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
    (0..crate::cpu_count() as u32).map(|n| cpu(CpuId(n)).runnable).sum()
}
