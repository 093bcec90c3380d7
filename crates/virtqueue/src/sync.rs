//! The atomics of what is model-checked: the real ones, or loom's.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};
