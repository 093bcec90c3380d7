//! A read-write lock: readers are one atomic, writers queue on the mutex.
//!
//! `readers` counts those inside; the top bit says that a writer wants in or is in. A reader that
//! sees the bit queues on the writers' mutex and enters from there, so that readers and writers
//! take turns and neither starves.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::panic::Location;

use crate::fifo::FifoLock;
use crate::order::Class;
use crate::scheduler::{Token, scheduler};
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

const WRITER: u32 = 1 << 31;
/// Number of readers that only forgotten guards add up to, and that will never leave. One more for
/// each thread there can be does not reach [`WRITER`].
const TOO_MANY: u32 = 1 << 30;

/// Many readers or one writer, in thread context.
pub struct RwLock<T: ?Sized> {
    readers: AtomicU32,
    writer: FifoLock,
    /// The writer that waits for the readers inside to leave.
    draining: AtomicUsize,
    class: Class,
    data: UnsafeCell<T>,
}

// SAFETY: the lock admits readers (`Sync`) or one writer (`Send`) at a time.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

impl<T> RwLock<T> {
    /// An open lock around `value`.
    #[cfg(not(loom))]
    #[must_use]
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self {
            readers: AtomicU32::new(0),
            writer: FifoLock::new(),
            draining: AtomicUsize::new(0),
            class: Class::here(),
            data: UnsafeCell::new(value),
        }
    }

    /// An open lock around `value`.
    #[cfg(loom)]
    #[must_use]
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self {
            readers: AtomicU32::new(0),
            writer: FifoLock::new(),
            draining: AtomicUsize::new(0),
            class: Class::here(),
            data: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer is inside or waiting.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.class.take();
        let before = self.readers.fetch_add(1, Ordering::Acquire);
        if before & (WRITER | TOO_MANY) != 0 {
            self.read_after_writer(before);
        }
        ReadGuard { lock: self }
    }

    /// Waits until no writer is inside or waiting, for a reader that has counted itself.
    #[inline(always)]
    fn read_after_writer(&self, before: u32) {
        self.leave();
        assert!(before & TOO_MANY == 0, "too many readers of a lock");
        // The mutex is held only to wait for the writer's end; the bit is clear while it is ours.
        self.writer.lock();
        self.readers.fetch_add(1, Ordering::Acquire);
        // SAFETY: locked two lines up.
        unsafe { self.writer.unlock() };
    }

    /// Waits until nobody else is inside.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.class.take();
        self.writer.lock();
        let scheduler = scheduler();
        self.draining
            .store(scheduler.current().into_raw(), Ordering::Relaxed);
        let mut inside = self.readers.fetch_or(WRITER, Ordering::AcqRel);
        if inside & !WRITER != 0 {
            let wait = scheduler.wait_begins(Location::caller());
            while inside & !WRITER != 0 {
                scheduler.park();
                inside = self.readers.load(Ordering::Acquire);
            }
            scheduler.wait_ends(wait);
        }
        WriteGuard { lock: self }
    }

    /// A reader leaves; the last one wakes a writer that waits.
    #[inline]
    fn leave(&self) {
        if self.readers.fetch_sub(1, Ordering::AcqRel) == WRITER | 1 {
            scheduler().unpark(Token::from_raw(self.draining.load(Ordering::Relaxed)));
        }
    }

    /// The value, without locking: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }
}

impl<T: Default> Default for RwLock<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock(..)")
    }
}

/// The right to read what an [`RwLock`] holds.
#[must_use = "the lock is given up as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct ReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is counted in `readers`, so no writer is inside.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.class.release();
        self.lock.leave();
    }
}

/// The right to change what an [`RwLock`] holds.
#[must_use = "the lock is given up as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct WriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this writer has the mutex, and no reader was inside when it entered.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; a reader that comes now sees the bit and leaves without looking at
        // the data.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.class.release();
        self.lock.readers.fetch_and(!WRITER, Ordering::Release);
        // SAFETY: `write` locked it, and the guard is dropped once.
        unsafe { self.lock.writer.unlock() };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Guards that are forgotten leave their readers inside, one that is leaked is read from for
    /// ever: no number of them lets a writer in.
    #[test]
    #[should_panic(expected = "too many readers")]
    fn forgotten_readers_do_not_add_up_to_a_writer() {
        let lock = RwLock::new(0);
        lock.readers.store(TOO_MANY, Ordering::Relaxed);
        drop(lock.read());
    }
}
