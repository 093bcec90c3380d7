//! Read-copy-update (McKenney and Slingwine, "Read-Copy Update: Using Execution History to Solve
//! Concurrency Problems", 1998): readers take no lock and write nothing shared; what a writer
//! unlinks is freed after a *grace period*, when no reader can still look at it.
//!
//! Readers run with interrupts off and for a few instructions. So a CPU that switched context, took
//! an interrupt or is idle since the unlinking has left every section it was in: it has passed a
//! *quiescent state*. A grace period is over when all CPUs have. What a CPU does anyway is counted;
//! only when much waits to be freed are CPUs asked for one by an interrupt.
//!
//! [`RcuArc`] is what readers and writers use; [`Domain`] collects what waits.
#![no_std]

extern crate alloc;
#[cfg(loom)]
extern crate std;

mod cell;
mod domain;
#[cfg(all(test, loom))]
mod model;

pub use cell::{Memory, RcuArc};
pub use domain::{BATCH, Cpus, Domain, LIMIT};
