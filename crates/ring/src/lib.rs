//! Lock-free building blocks: rings between instances, the wake queues of a CPU, the park
//! mailbox, and tables that are replaced as a whole.
//!
//! Everything here works on atomics that somebody else owns, so it needs no `unsafe`; the orderings
//! are checked with loom. What crosses the border between instances is never believed: every index
//! read from shared memory is validated before use.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

mod bytes;
mod cpuset;
pub mod epoch;
mod log;
pub mod mailbox;
mod messages;
pub mod pair;
mod sync;
mod wake;

pub use bytes::{Consumer, Producer};
pub use cpuset::CpuSet;
pub use log::{LogReader, LogWriter};
pub use messages::{MessageReader, MessageWriter};
pub use wake::{NIL, WakeQueues};
