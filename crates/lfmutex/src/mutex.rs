//! The mutex.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::order::Class;
use crate::raw::RawMutex;

/// Mutual exclusion for a `T`, in thread context.
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    class: Class,
    data: core::cell::UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time at the data.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// An open mutex around `value`.
    #[cfg(not(loom))]
    #[must_use]
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self {
            raw: RawMutex::new(),
            class: Class::here(),
            data: core::cell::UnsafeCell::new(value),
        }
    }

    /// An open mutex around `value`.
    #[cfg(loom)]
    #[must_use]
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self {
            raw: RawMutex::new(),
            class: Class::here(),
            data: core::cell::UnsafeCell::new(value),
        }
    }

    /// The value, without locking: the caller owns the mutex.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock, and returns a guard that gives it up when dropped.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.class.take();
        self.raw.lock();
        MutexGuard {
            mutex: self,
            not_send: PhantomData,
        }
    }

    pub(crate) fn raw(&self) -> &RawMutex {
        &self.raw
    }

    pub(crate) fn class(&self) -> &Class {
        &self.class
    }

    /// The guard of a lock that is held.
    ///
    /// # Safety
    /// The calling thread holds the lock, and nothing else will give it up.
    pub(crate) unsafe fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            mutex: self,
            not_send: PhantomData,
        }
    }

    /// The lock, if nobody has it.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if !self.raw.try_lock() {
            return None;
        }
        self.class.hold();
        Some(MutexGuard {
            mutex: self,
            not_send: PhantomData,
        })
    }

    /// The value, without locking: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }
}

impl<T: Default> Default for Mutex<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("Mutex").field(&&*guard).finish(),
            None => f.write_str("Mutex(<locked>)"),
        }
    }
}

/// The right to use what a [`Mutex`] holds.
#[must_use = "the lock is given up as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    not_send: PhantomData<*mut ()>,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// The lock; it stays locked.
    pub(crate) fn into_mutex(self) -> &'a Mutex<T> {
        core::mem::ManuallyDrop::new(self).mutex
    }

    pub(crate) fn raw(&self) -> &RawMutex {
        &self.mutex.raw
    }
}

// SAFETY: a shared guard only gives out `&T`.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the proof that this thread has the lock.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the proof that this thread has the lock, and it is borrowed
        // exclusively.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.class.release();
        // SAFETY: the guard is the proof that this thread has the lock.
        unsafe { self.mutex.raw.unlock() };
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
