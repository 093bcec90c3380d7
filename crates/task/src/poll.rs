//! Waiting for any of several wait queues.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::{Thread, WaitError, Wake, current, now_ns, park, park_until};

/// A thread that has registered with several queues and sleeps until one of them is woken.
#[derive(Debug)]
pub struct PollWaiter {
    thread: Arc<Thread>,
    woken: AtomicBool,
}

impl PollWaiter {
    /// A waiter for the calling thread; register it, look at what is polled, then [`Self::wait`].
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { thread: current(), woken: AtomicBool::new(false) })
    }

    /// Sleeps until a queue was woken since the last call, the thread is interrupted, or the clock passes `deadline_ns`.
    ///
    /// # Errors
    /// Says which of the other two it was.
    pub fn wait(&self, deadline_ns: Option<u64>) -> Result<(), WaitError> {
        loop {
            if self.woken.swap(false, Ordering::AcqRel) {
                return Ok(());
            }
            if self.thread.interrupted() {
                return Err(WaitError::Interrupted);
            }
            match deadline_ns {
                Some(deadline) if now_ns() >= deadline => return Err(WaitError::TimedOut),
                Some(deadline) => {
                    park_until(deadline);
                }
                None => park(),
            }
        }
    }
}

impl Wake for PollWaiter {
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
