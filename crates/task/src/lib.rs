//! Threads, run queues, wake-ups, wait queues (see `docs/tasks.md`).
//!
//! In the kernel the threads are ours (`kernel/`); on the host the same interface stands on the
//! standard library's threads (`host/`), so that everything above this crate runs in ordinary unit
//! tests, and under the explorer of schedules (`docs/locks.md`). What is built of `park` and
//! `unpark` alone ([`WaitQueue`], [`Event`]) is written once.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod context_switches;
pub mod cpu_stats;
#[cfg(any(test, target_os = "none"))]
mod cpu_time;
mod deadline;
mod event;
#[cfg(any(target_os = "none", test))]
mod fifo;
#[cfg(not(target_os = "none"))]
mod host;
#[cfg(any(test, target_os = "none"))]
mod idle_polling;
mod interface;
#[cfg(target_os = "none")]
mod kernel;
mod wait;

pub use context_switches::ContextSwitches;
pub use deadline::Deadline;
pub use event::Event;
#[cfg(not(target_os = "none"))]
pub use explore;
pub use fair::{Group, Policy, RtLimits, SLICE_NS, rr_quantum_ns, set_rr_quantum_ns};
#[cfg(not(target_os = "none"))]
use host as platform;
#[cfg(target_os = "none")]
use kernel as platform;
/// The atomics of the core library; on the host those of the explorer.
pub use platform::sync;
pub use platform::{
    Condvar, CpuId, Mutex, MutexGuard, Once, PreemptGuard, Raised, RcuArc, ReadGuard, RwLock,
    Thread, UserSpace, WriteGuard, change_rt_limits, cpu_count, cpu_limit, current, now_ns, park,
    park_until, preempt_disable, raise, rt_limits, sleep_until, spawn, spawn_scheduled,
    start_recording, stats, topology, try_current, yield_now,
};
#[cfg(target_os = "none")]
pub use platform::{
    Site, cpus_added, cpus_removed, drain_cpu, init, lock_sites, prepare_cpu, run_cpu,
};
pub use topology::Topology;
pub use wait::{WaitError, WaitQueue};

/// Error: no memory for another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl core::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no memory for another thread")
    }
}

impl core::error::Error for NoMemory {}
