//! What a descriptor of a timer counts (`timerfd_create(2)`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fs::poll::PollQueue;

/// Count of a timer's expirations since somebody read it.
#[derive(Default)]
pub(crate) struct Expirations {
    pub(crate) count: AtomicU64,
    /// Setting the wall clock ends a wait (`TFD_TIMER_CANCEL_ON_SET`), and has done so.
    pub(crate) cancellable: AtomicBool,
    pub(crate) cancelled: AtomicBool,
    pub(crate) readable: PollQueue,
}

impl Expirations {
    /// The timer has fired `times` times.
    pub(crate) fn add(&self, times: u64) {
        self.count.fetch_add(times, Ordering::AcqRel);
        self.readable.notify();
    }

    /// The timer is said to have fired `times` times.
    pub(crate) fn set(&self, times: u64) {
        self.count.store(times, Ordering::Release);
        self.readable.notify();
    }

    /// Notes that the wall clock was set, which ends waits with `TFD_TIMER_CANCEL_ON_SET`.
    pub(crate) fn clock_was_set(&self) {
        if self.cancellable.load(Ordering::Acquire) {
            self.cancelled.store(true, Ordering::Release);
            self.readable.notify();
        }
    }

    /// Whether that happened since it was asked last.
    pub(crate) fn take_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) && self.cancelled.swap(false, Ordering::AcqRel)
    }
}
