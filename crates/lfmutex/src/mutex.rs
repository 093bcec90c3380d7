//! The mutex.
//!
//! `count` is the number of threads that hold the lock or want it. Whoever takes it from 0 owns the lock. Everybody else queues a
//! record on its own stack and sleeps until it is *granted*: ownership passes directly from the unlocker to the waiter.
//!
//! The delicate moment is an unlock that finds `count > 1` but the list empty: a locker has announced itself and not queued
//! yet. The unlocker then publishes a *hand-off token* and leaves; the late locker, having queued, looks for the token, and
//! whoever takes the token (locker, or unlocker that sees the list fill up after all) inherits the duty to pop one waiter
//! and grant it the lock. At any time at most one thread has that duty, so the list needs a single consumer only.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};

use crate::scheduler::{Token, scheduler};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering, UnsafeCell, fence};

/// A waiting thread, on its own stack until granted.
struct Waiter {
    thread: Token,
    next: *mut Waiter,
    granted: AtomicBool,
}

/// What only the thread with the duty to wake touches.
#[derive(Debug)]
struct Popper {
    /// Waiters in arrival order, taken from the push list and reversed.
    list: *mut Waiter,
    /// The last token published; never 0.
    sequence: u32,
}

/// The lock itself, without the data.
pub struct RawMutex {
    count: AtomicU32,
    handoff: AtomicU32,
    pushed: AtomicPtr<Waiter>,
    popper: UnsafeCell<Popper>,
}

// SAFETY: `popper` is touched only by the thread with the duty to wake (module comment), all else is atomic. The waiters it
// points to live on stacks of threads that do not return before they are granted.
unsafe impl Send for RawMutex {}
// SAFETY: as above.
unsafe impl Sync for RawMutex {}

impl RawMutex {
    /// An open lock.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            handoff: AtomicU32::new(0),
            pushed: AtomicPtr::new(ptr::null_mut()),
            popper: UnsafeCell::new(Popper { list: ptr::null_mut(), sequence: 0 }),
        }
    }

    /// An open lock.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            handoff: AtomicU32::new(0),
            pushed: AtomicPtr::new(ptr::null_mut()),
            popper: UnsafeCell::new(Popper { list: ptr::null_mut(), sequence: 0 }),
        }
    }

    /// Takes the lock if nobody has it or waits for it.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.count.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock; sleeps while another has it. Thread context only.
    #[inline]
    pub fn lock(&self) {
        if self.count.fetch_add(1, Ordering::Acquire) != 0 {
            self.lock_contended();
        }
    }

    /// True while somebody has the lock. A snapshot, for assertions.
    pub fn is_locked(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn lock_contended(&self) {
        let scheduler = scheduler();
        debug_assert!(scheduler.may_block(), "a contended lock where sleeping is not allowed");
        let mut waiter = Waiter { thread: scheduler.current(), next: ptr::null_mut(), granted: AtomicBool::new(false) };
        let me = NonNull::from(&mut waiter);
        self.push(me);
        // The record is on the list before the token is looked at, and the unlocker publishes the token before it looks at
        // the list: one of the two sees the other.
        fence(Ordering::SeqCst);
        let token = self.handoff.load(Ordering::Relaxed);
        if token != 0 && self.handoff.compare_exchange(token, 0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: taking the token makes this thread the only one with the duty to wake. The list is not empty: this
            // thread's own record is on it until granted.
            unsafe { self.grant_next() };
        }
        // SAFETY: `me` is this stack's own record; only `granted` is read, which others set atomically.
        while !unsafe { me.as_ref() }.granted.load(Ordering::Acquire) {
            scheduler.park();
        }
    }

    /// Gives the lock up, to the thread that has waited longest if there is one.
    ///
    /// # Safety
    /// The caller holds the lock.
    #[inline]
    pub unsafe fn unlock(&self) {
        if self.count.fetch_sub(1, Ordering::Release) != 1 {
            // SAFETY: the caller held the lock, and somebody else is counted: the duty to wake is the caller's.
            unsafe { self.unlock_contended() };
        }
    }

    /// # Safety
    /// The caller has the duty to wake.
    #[cold]
    unsafe fn unlock_contended(&self) {
        // Joins the acquire side of the former owner's critical section for the one who is granted.
        fence(Ordering::Acquire);
        loop {
            // SAFETY: the caller has the duty to wake.
            if unsafe { self.grant_next() } {
                return;
            }
            let token = self.popper.with_mut(|popper| {
                // SAFETY: the caller has the duty to wake, so nobody else touches `popper`.
                let popper = unsafe { &mut *popper };
                popper.sequence = popper.sequence.wrapping_add(1).max(1);
                popper.sequence
            });
            self.handoff.store(token, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.pushed.load(Ordering::Relaxed).is_null() {
                // The late locker will find the token.
                return;
            }
            if self.handoff.compare_exchange(token, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
                // Somebody has taken the duty over.
                return;
            }
        }
    }

    fn push(&self, waiter: NonNull<Waiter>) {
        let mut head = self.pushed.load(Ordering::Relaxed);
        loop {
            // SAFETY: the record is still this thread's own: it is not on the list yet.
            unsafe { (*waiter.as_ptr()).next = head };
            match self.pushed.compare_exchange_weak(head, waiter.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Pops the longest waiter and makes it the owner; false if none is queued.
    ///
    /// # Safety
    /// The caller has the duty to wake.
    unsafe fn grant_next(&self) -> bool {
        let waiter = self.popper.with_mut(|popper| {
            // SAFETY: the caller has the duty to wake, so nobody else touches `popper`.
            let popper = unsafe { &mut *popper };
            if popper.list.is_null() {
                let mut pushed = self.pushed.swap(ptr::null_mut(), Ordering::Acquire);
                while let Some(waiter) = NonNull::new(pushed) {
                    // SAFETY: records on the list stay valid until granted, and links of taken ones are the popper's.
                    unsafe {
                        pushed = (*waiter.as_ptr()).next;
                        (*waiter.as_ptr()).next = popper.list;
                    }
                    popper.list = waiter.as_ptr();
                }
            }
            let waiter = NonNull::new(popper.list)?;
            // SAFETY: as above.
            popper.list = unsafe { (*waiter.as_ptr()).next };
            Some(waiter)
        });
        let Some(waiter) = waiter else { return false };
        // SAFETY: the record is valid until `granted` is set, and its token is read before.
        let thread = unsafe { (*waiter.as_ptr()).thread };
        // SAFETY: as above; this is the last access, the waiter may return at once.
        unsafe { (*waiter.as_ptr()).granted.store(true, Ordering::Release) };
        scheduler().unpark(thread);
        true
    }
}

impl Default for RawMutex {
    fn default() -> Self {
        Self::new()
    }
}

/// Mutual exclusion for a `T`, in thread context.
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
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
    pub const fn new(value: T) -> Self {
        Self { raw: RawMutex::new(), data: core::cell::UnsafeCell::new(value) }
    }

    /// An open mutex around `value`.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { raw: RawMutex::new(), data: core::cell::UnsafeCell::new(value) }
    }

    /// The value, without locking: the caller owns the mutex.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock, and returns a guard that gives it up when dropped.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.raw.lock();
        MutexGuard { mutex: self, not_send: core::marker::PhantomData }
    }

    /// The lock, if nobody has it or waits for it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.raw.try_lock().then(|| MutexGuard { mutex: self, not_send: core::marker::PhantomData })
    }

    /// The value, without locking: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }
}

impl<T: Default> Default for Mutex<T> {
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
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    not_send: core::marker::PhantomData<*mut ()>,
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
        // SAFETY: the guard is the proof that this thread has the lock, and it is borrowed exclusively.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard is the proof that this thread has the lock.
        unsafe { self.mutex.raw.unlock() };
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
