//! The atomics used here: the real ones, or loom's when the model checker runs.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
