//! The atomics of what is model-checked: the real ones, or loom's.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// On the host a decision point of the explorer, before the caller looks at or changes what its
/// peer changes or looks at. In kernels, and under loom, which decides by itself, nothing.
#[inline]
#[track_caller]
pub(crate) fn point(what: &'static str) {
    #[cfg(all(not(target_os = "none"), not(loom)))]
    explore::point(what);
    #[cfg(any(target_os = "none", loom))]
    let _ = what;
}
