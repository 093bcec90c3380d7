//! A condition variable that moves waiters instead of waking them.
//!
//! Whoever notifies holds the mutex, so a thread woken there and then would only find it locked and
//! sleep again. *Wait morphing*, as in OSv (USENIX ATC 2014, section 2.1): a notified thread is put
//! into the queue of the mutex, asleep as it is, and wakes once, as the owner.

use core::fmt;
use core::ptr::{self, NonNull};

use crate::fifo::Waiter;
use crate::mutex::MutexGuard;
use crate::sync::{AtomicUsize, Ordering, UnsafeCell};

/// A thread in the list, on its own stack until its waiter is granted.
struct Entry {
    waiter: Waiter,
    next: *mut Entry,
}

struct List {
    first: *mut Entry,
    last: *mut Entry,
}

/// Threads that wait for a condition on what one [`crate::Mutex`] holds. Thread context only;
/// neither signals nor deadlines end the wait.
pub struct Condvar {
    /// Address of the mutex it goes with; 0 before its first use.
    mutex: AtomicUsize,
    list: UnsafeCell<List>,
}

// SAFETY: `list` is only touched by threads that hold the one mutex whose address is in `mutex`.
// Entries live on stacks of threads that do not return before they are granted.
unsafe impl Send for Condvar {}
// SAFETY: as above.
unsafe impl Sync for Condvar {}

impl Condvar {
    /// One nobody waits for.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            mutex: AtomicUsize::new(0),
            list: UnsafeCell::new(List {
                first: ptr::null_mut(),
                last: ptr::null_mut(),
            }),
        }
    }

    /// One nobody waits for.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            mutex: AtomicUsize::new(0),
            list: UnsafeCell::new(List {
                first: ptr::null_mut(),
                last: ptr::null_mut(),
            }),
        }
    }

    /// Gives the mutex up, sleeps until notified, and takes it again. The condition may be false
    /// again: look, and wait anew.
    ///
    /// # Panics
    /// When used with another mutex than before.
    #[track_caller]
    pub fn wait<'a, T: ?Sized>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.check(&held);
        let mutex = held.into_mutex();
        let mut entry = Entry {
            waiter: Waiter::new(),
            next: ptr::null_mut(),
        };
        let me: *mut Entry = &mut entry;
        self.list.with_mut(|list| {
            // SAFETY: this thread holds the mutex. The last entry's thread sleeps in this function
            // until it is taken off.
            unsafe {
                let list = &mut *list;
                match list.last.as_mut() {
                    Some(last) => last.next = me,
                    None => list.first = me,
                }
                list.last = me;
            }
        });
        mutex.class().release();
        // SAFETY: this thread holds it, and `into_mutex` kept the guard from giving it up.
        unsafe { mutex.raw().unlock() };
        // SAFETY: its own entry; only `granted`, which is atomic, is written by others from here
        // on.
        unsafe { (*me).waiter.sleep() };
        mutex.class().take();
        mutex.raw().lock_as_first();
        // SAFETY: locked just now.
        unsafe { mutex.guard() }
    }

    /// Lets the thread that has waited longest have the mutex after its present owner, which is the
    /// caller, and those that wait for it already.
    ///
    /// # Panics
    /// When used with another mutex than before.
    pub fn notify_one<T: ?Sized>(&self, held: &MutexGuard<'_, T>) {
        self.check(held);
        self.move_one(held);
    }

    /// Lets all threads that wait have the mutex, one after the other.
    ///
    /// # Panics
    /// When used with another mutex than before.
    pub fn notify_all<T: ?Sized>(&self, held: &MutexGuard<'_, T>) {
        self.check(held);
        while self.move_one(held) {}
    }

    fn move_one<T: ?Sized>(&self, held: &MutexGuard<'_, T>) -> bool {
        let entry = self.list.with_mut(|list| {
            // SAFETY: this thread holds the mutex.
            let list = unsafe { &mut *list };
            let entry = NonNull::new(list.first)?;
            // SAFETY: the entry is valid until its waiter is granted, which comes below.
            list.first = unsafe { entry.as_ref().next };
            if list.first.is_null() {
                list.last = ptr::null_mut();
            }
            Some(entry)
        });
        let Some(entry) = entry else { return false };
        // SAFETY: the guard says that this thread holds the lock; the entry's thread sleeps until
        // the waiter is granted.
        unsafe {
            held.raw()
                .queue_for(NonNull::new_unchecked(&raw mut (*entry.as_ptr()).waiter));
        };
        true
    }

    /// Two mutexes would let two threads at the list at a time.
    fn check<T: ?Sized>(&self, held: &MutexGuard<'_, T>) {
        let mutex = ptr::from_ref(held.raw()) as usize;
        let bound = self
            .mutex
            .compare_exchange(0, mutex, Ordering::Relaxed, Ordering::Relaxed);
        assert!(
            bound.is_ok() || bound == Err(mutex),
            "a condition variable goes with one mutex"
        );
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar(..)")
    }
}
