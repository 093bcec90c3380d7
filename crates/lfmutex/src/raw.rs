//! The mutex without its data: a word that running threads may take at once, before a lock that is
//! waited for in order.
//!
//! A lock that is always handed to the longest waiter makes a *convoy*: each owner has to be woken
//! before the critical section goes on, and every thread that comes meanwhile joins the queue. Here
//! an unlock sets the word free and wakes the first waiter, and whoever is running may take it
//! before that one is up (*barging*). What a barger may do is bounded: a first waiter that was
//! overtaken once says so in the word, and the next unlock hands it the lock.
//!
//! All waiters but the first wait in the [`FifoLock`]. Its owner, the *first waiter*, is the only
//! one that waits for the word. It keeps the `FifoLock` while it owns the mutex and gives up both
//! together, so that each waiter is woken once.

use core::panic::Location;
use core::ptr::NonNull;

use crate::fifo::{FifoLock, Waiter};
use crate::scheduler::{Token, scheduler};
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// Somebody owns the mutex.
const LOCKED: u32 = 1;
/// The first waiter sleeps, and is to be woken by the owner.
const WAITING: u32 = 2;
/// The first waiter was overtaken, and is to be given the lock.
const OVERTAKEN: u32 = 4;
/// The owner came through the queue and has the `FifoLock` too.
const QUEUED: u32 = 8;

/// The lock itself, without the data.
///
/// Uncontended, lock and unlock are a compare-exchange each.
pub struct RawMutex {
    word: AtomicU32,
    /// The first waiter, while `word` says WAITING.
    first: AtomicUsize,
    queue: FifoLock,
}

impl RawMutex {
    /// An open lock.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            first: AtomicUsize::new(0),
            queue: FifoLock::new(),
        }
    }

    /// An open lock.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            first: AtomicUsize::new(0),
            queue: FifoLock::new(),
        }
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.word
            .compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock; sleeps while another has it. Thread context only.
    #[inline]
    #[track_caller]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    /// True while somebody has the lock. A snapshot, for assertions.
    pub fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    #[cold]
    #[track_caller]
    fn lock_contended(&self) {
        let wait = scheduler().wait_begins(Location::caller());
        self.queue.lock();
        self.lock_as_first();
        scheduler().wait_ends(wait);
    }

    /// Waits for the word. The calling thread has the `FifoLock`.
    pub(crate) fn lock_as_first(&self) {
        let scheduler = scheduler();
        debug_assert!(
            scheduler.may_block(),
            "a contended lock where sleeping is not allowed"
        );
        self.first
            .store(scheduler.current().into_raw(), Ordering::Relaxed);
        let mut overtaken = 0;
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            // Only an owner that found OVERTAKEN sets QUEUED for another thread.
            if word & QUEUED != 0 {
                return;
            }
            let wanted = if word == 0 {
                LOCKED | QUEUED
            } else {
                LOCKED | WAITING | overtaken
            };
            if word != wanted
                && let Err(now) =
                    self.word
                        .compare_exchange(word, wanted, Ordering::AcqRel, Ordering::Acquire)
            {
                word = now;
                continue;
            }
            if word == 0 {
                return;
            }
            scheduler.park();
            word = self.word.load(Ordering::Acquire);
            if word == LOCKED {
                // It was free, and somebody else was faster.
                overtaken = OVERTAKEN;
            }
        }
    }

    /// Makes a sleeping thread wait for the lock instead of what it waited for, without waking it.
    /// It has the `FifoLock` when the record is granted, and then calls [`Self::lock_as_first`].
    ///
    /// # Safety
    /// The caller holds the lock. The record stays where it is until it is granted.
    pub(crate) unsafe fn queue_for(&self, waiter: NonNull<Waiter>) {
        // SAFETY: passed on. The record's token does not change.
        let (free, thread) = unsafe { (self.queue.lock_for(waiter), (*waiter.as_ptr()).thread) };
        if free {
            // Nobody waited, so it is the first waiter: the caller's unlock wakes it.
            self.first.store(thread.into_raw(), Ordering::Relaxed);
            self.word.fetch_or(WAITING, Ordering::Release);
            // SAFETY: not granted until here, and not touched afterwards.
            unsafe { (*waiter.as_ptr()).granted.store(true, Ordering::Release) };
        }
    }

    /// Gives the lock up, and wakes the first waiter if there is one.
    ///
    /// # Safety
    /// The caller holds the lock.
    #[inline]
    pub unsafe fn unlock(&self) {
        if self
            .word
            .compare_exchange(LOCKED, 0, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            // SAFETY: the caller holds the lock.
            unsafe { self.unlock_contended() };
        }
    }

    /// # Safety
    /// The caller holds the lock, and not in the simplest way.
    #[cold]
    unsafe fn unlock_contended(&self) {
        let mut word = self.word.load(Ordering::Acquire);
        if word & QUEUED != 0 {
            // Nobody else is the first waiter, so nobody else writes to the word.
            self.word.store(0, Ordering::Release);
            // SAFETY: QUEUED says that the owner, which is the caller, has the `FifoLock`.
            unsafe { self.queue.unlock() };
            return;
        }
        loop {
            let next = if word & OVERTAKEN != 0 {
                LOCKED | QUEUED
            } else {
                0
            };
            // Read before the word is written: then another may be first. WAITING was set after
            // `first`.
            let first = Token::from_raw(self.first.load(Ordering::Relaxed));
            match self
                .word
                .compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return scheduler().unpark(first),
                Err(now) => word = now,
            }
        }
    }
}

impl Default for RawMutex {
    fn default() -> Self {
        Self::new()
    }
}
