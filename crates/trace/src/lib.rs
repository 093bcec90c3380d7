//! Tracing of the kernel, while somebody looks: records of events in a ring per CPU, and waits for
//! locks by the place in the source that waited (`docs/observability.md`).
//!
//! The records' layout is also that of `/proc/skerry/trace`, so kernel and tool share this crate.
#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

mod record;
mod ring;
mod sites;

pub use record::{
    Class, Detail, Kind, Note, RECORD_BYTES, Record, THREAD_ENDS, THREAD_IS, THREAD_NAME,
    WAKE_DETAILS,
};
pub use ring::Ring;
pub use sites::{Site, Sites};
