//! A counting semaphore (Dijkstra, 1965).
//!
//! The count is one atomic word. Who finds it at 0 queues on the mutex's hand-off lock
//! ([`crate::fifo`]), whose owner alone waits for the word: the first waiter. Like the mutex it may
//! be overtaken by threads that run.

use core::fmt;

use crate::fifo::FifoLock;
use crate::scheduler::{Token, scheduler};
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// The first waiter sleeps, and is to be woken by a release.
const WAITING: u32 = 1;
/// One permit.
const PERMIT: u32 = 2;

/// A number of permits. Taking one that is there, and giving one back, is one atomic each.
pub struct Semaphore {
    word: AtomicU32,
    /// The first waiter, while `word` says WAITING.
    first: AtomicUsize,
    queue: FifoLock,
}

impl Semaphore {
    /// With this many permits, fewer than 2^31.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(permits: u32) -> Self {
        Self {
            word: AtomicU32::new(permits * PERMIT),
            first: AtomicUsize::new(0),
            queue: FifoLock::new(),
        }
    }

    /// With this many permits, fewer than 2^31.
    #[cfg(loom)]
    #[must_use]
    pub fn new(permits: u32) -> Self {
        Self {
            word: AtomicU32::new(permits * PERMIT),
            first: AtomicUsize::new(0),
            queue: FifoLock::new(),
        }
    }

    /// Takes a permit if there is one.
    #[inline]
    pub fn try_acquire(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word >= PERMIT {
            match self.word.compare_exchange_weak(
                word,
                word - PERMIT,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Takes a permit; sleeps until there is one. Thread context only.
    #[inline]
    pub fn acquire(&self) {
        if !self.try_acquire() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let scheduler = scheduler();
        debug_assert!(
            scheduler.may_block(),
            "waiting where sleeping is not allowed"
        );
        self.queue.lock();
        self.first
            .store(scheduler.current().into_raw(), Ordering::Relaxed);
        while !self.try_acquire() {
            // With WAITING set and no permit since: whoever releases wakes.
            if self.word.fetch_or(WAITING, Ordering::AcqRel) < PERMIT {
                scheduler.park();
            }
        }
        // SAFETY: locked above.
        unsafe { self.queue.unlock() };
    }

    /// Gives `permits` permits, and wakes the first waiter, who lets the next one look. Callable
    /// from interrupt handlers.
    #[inline]
    pub fn release(&self, permits: u32) {
        let mut word = self.word.load(Ordering::Relaxed);
        while let Err(now) = self.word.compare_exchange_weak(
            word,
            (word & !WAITING) + permits * PERMIT,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            word = now;
        }
        if word & WAITING != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Who set WAITING, or is first since: then that one has gone with a permit.
        scheduler().unpark(Token::from_raw(self.first.load(Ordering::Relaxed)));
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("permits", &(self.word.load(Ordering::Relaxed) / PERMIT))
            .finish()
    }
}
