//! What the CPUs of this instance have done: counters in the window, where the supervisor reads
//! them without asking; the supervisor's own are in its memory.

use core::sync::atomic::Ordering;

pub use abi::usage::CpuUsage;

use crate::arch::cpu;
use crate::cpu::{CpuId, MAX_CPUS};
use crate::role;

/// Counters of the supervisor's CPUs.
static OWN: [CpuUsage; MAX_CPUS] = [const { CpuUsage::new() }; MAX_CPUS];

/// The counters of a CPU, for itself to write.
///
/// # Panics
/// If there can be no such CPU.
#[inline]
#[must_use]
pub fn of(cpu: CpuId) -> &'static CpuUsage {
    let all = role::window().map_or(&OWN, |window| &window.usage);
    &all[cpu.0 as usize]
}

/// Adds time of the kernel's to a CPU that the calling thread is on, or was a moment ago.
#[inline]
pub fn add_system_ns(ns: u64) {
    of(cpu::current())
        .system_ns
        .fetch_add(ns, Ordering::Relaxed);
}
