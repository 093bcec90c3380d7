//! The mathematics of the scheduler, as pure logic: which of the runnable threads of one CPU runs,
//! and for how long.
//!
//! Nothing here knows of threads, interrupts or clocks: threads are numbers, time comes in as
//! nanoseconds, and the kernel does what [`RunQueue`] says. Everything is integer arithmetic
//! without rounding that adds up, so years of it do not drift.
//!
//! Three ideas make it up (`docs/fair.md` has the formulas):
//! * *Virtual time*, with eligibility and deadlines: EEVDF (Stoica and Abdel-Wahab, "Earliest
//!   Eligible Virtual Deadline First", 1995). No thread is ever further from its weighted share
//!   than one slice, for any mix of weights.
//! * *Exponentially decaying run time*: OSv (Kivity et al., USENIX ATC 2014, section 2.4). It says
//!   how a thread that wakes is placed: one that has used less than its share lately goes first,
//!   one that has used more does not.
//! * *Hysteresis and no tick*: OSv as well. A fair thread that got the CPU keeps it for
//!   [`HYSTERESIS_NS`], and the timer is wanted only while somebody else waits.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use core::sync::atomic::{AtomicU64, Ordering};

mod bandwidth;
mod decay;
mod fair_queue;
mod heap;
mod history;
mod policy;
mod queue;
#[cfg(test)]
mod tests;
mod virt;

pub use bandwidth::RtLimits;
pub use decay::{TAU_NS, Usage};
pub use history::{History, Recent};
pub use policy::{Group, Params, Policy};
pub use queue::{Room, RunQueue};

/// Time that a fair thread keeps the CPU against other fair threads, in nanoseconds.
pub const HYSTERESIS_NS: u64 = 2_000_000;
/// Time that a fair thread runs before the next one that waits, in nanoseconds.
pub const SLICE_NS: u64 = 2 * HYSTERESIS_NS;
/// Initial value of [`rr_quantum_ns`]: Linux's 100 ms.
pub const RR_QUANTUM_NS: u64 = 100_000_000;

static QUANTUM_NS: AtomicU64 = AtomicU64::new(RR_QUANTUM_NS);

/// Time that a `SCHED_RR` thread runs now before the next one of its priority, in nanoseconds.
#[must_use]
pub fn rr_quantum_ns() -> u64 {
    QUANTUM_NS.load(Ordering::Relaxed)
}

/// Sets the time of a `SCHED_RR` thread's turns that begin from now on, in nanoseconds; 0 stands
/// for [`RR_QUANTUM_NS`]. Turns of more than four seconds last so long.
pub fn set_rr_quantum_ns(ns: u64) {
    QUANTUM_NS.store(if ns == 0 { RR_QUANTUM_NS } else { ns }, Ordering::Relaxed);
}
