//! The lock that waits in order of arrival and is handed from owner to owner.
//!
//! Gidenstam and Papatriantafilou, "LFthreads: A lock-free thread library", OPODIS 2007, as OSv has
//! it (USENIX ATC 2014, 2.1).
//!
//! `count` is the number of threads that hold the lock or want it. Whoever takes it from 0 owns the
//! lock. Everybody else queues a record on its own stack and sleeps until it is *granted*:
//! ownership passes directly from the unlocker to the waiter.
//!
//! The delicate moment is an unlock that finds `count > 1` but the list empty: a locker has
//! announced itself and not queued yet. The unlocker then publishes a *hand-off token* and leaves;
//! the late locker, having queued, looks for the token, and whoever takes the token (locker, or
//! unlocker that sees the list fill up after all) inherits the duty to pop one waiter and grant it
//! the lock. At any time at most one thread has that duty, so the list needs a single consumer
//! only.

use core::mem;
use core::ptr::{self, NonNull};

use crate::scheduler::{Token, scheduler};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering, UnsafeCell, fence};

/// A waiting thread, on its own stack until granted.
pub(crate) struct Waiter {
    pub(crate) thread: Token,
    /// The one that arrived before, and later the one after. In a cell because the popper writes it
    /// while the waiting thread has a reference to the record ([`Self::sleep`]).
    next: UnsafeCell<*mut Waiter>,
    pub(crate) granted: AtomicBool,
}

impl Waiter {
    /// The calling thread's.
    pub(crate) fn new() -> Self {
        Self {
            thread: scheduler().current(),
            next: UnsafeCell::new(ptr::null_mut()),
            granted: AtomicBool::new(false),
        }
    }

    /// Sleeps until somebody has granted the lock.
    pub(crate) fn sleep(&self) {
        let scheduler = scheduler();
        while !self.granted.load(Ordering::Acquire) {
            scheduler.park();
        }
    }
}

/// State that only the thread with the duty to wake touches.
#[derive(Debug)]
struct Popper {
    /// Waiters in arrival order, taken from the push list and reversed.
    list: *mut Waiter,
    /// The last token published; never 0.
    sequence: u32,
}

/// The lock itself, without the data.
pub(crate) struct FifoLock {
    count: AtomicU32,
    handoff: AtomicU32,
    pushed: AtomicPtr<Waiter>,
    popper: UnsafeCell<Popper>,
}

// SAFETY: `popper` is touched only by the thread with the duty to wake (module comment), all else
// is atomic. The waiters it points to live on stacks of threads that do not return before they are
// granted.
unsafe impl Send for FifoLock {}
// SAFETY: as above.
unsafe impl Sync for FifoLock {}

impl FifoLock {
    /// An open lock.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            handoff: AtomicU32::new(0),
            pushed: AtomicPtr::new(ptr::null_mut()),
            popper: UnsafeCell::new(Popper {
                list: ptr::null_mut(),
                sequence: 0,
            }),
        }
    }

    /// An open lock.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            handoff: AtomicU32::new(0),
            pushed: AtomicPtr::new(ptr::null_mut()),
            popper: UnsafeCell::new(Popper {
                list: ptr::null_mut(),
                sequence: 0,
            }),
        }
    }

    /// Takes the lock; sleeps while another has it. Thread context only.
    #[inline]
    pub(crate) fn lock(&self) {
        if self.count.fetch_add(1, Ordering::Acquire) != 0 {
            self.lock_contended();
        }
    }

    #[cold]
    fn lock_contended(&self) {
        debug_assert!(
            scheduler().may_block(),
            "a contended lock where sleeping is not allowed"
        );
        let mut waiter = Waiter::new();
        // SAFETY: `sleep` does not return before the record is granted.
        unsafe { self.queue(NonNull::from(&mut waiter)) };
        waiter.sleep();
    }

    /// Takes the lock for a thread that sleeps, or queues for it. True if it was free: then
    /// `granted` is left to the caller.
    ///
    /// # Safety
    /// The record stays where it is until it is granted.
    pub(crate) unsafe fn lock_for(&self, waiter: NonNull<Waiter>) -> bool {
        if self.count.fetch_add(1, Ordering::Acquire) == 0 {
            return true;
        }
        // SAFETY: passed on.
        unsafe { self.queue(waiter) };
        false
    }

    /// Puts a record on the list; the thread it names is counted already.
    ///
    /// # Safety
    /// The record stays where it is until it is granted.
    unsafe fn queue(&self, waiter: NonNull<Waiter>) {
        self.push(waiter);
        // The record is on the list before the token is looked at, and the unlocker publishes the
        // token before it looks at the list: one of the two sees the other.
        fence(Ordering::SeqCst);
        let token = self.handoff.load(Ordering::Relaxed);
        if token != 0
            && self
                .handoff
                .compare_exchange(token, 0, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            // SAFETY: taking the token makes this thread the only one with the duty to wake. That
            // record is on the list until it is granted, or others before it are.
            unsafe { self.grant_next() };
        }
    }

    /// Gives the lock up, to the thread that has waited longest if there is one.
    ///
    /// # Safety
    /// The caller holds the lock.
    #[inline]
    pub(crate) unsafe fn unlock(&self) {
        if self.count.fetch_sub(1, Ordering::Release) != 1 {
            // SAFETY: the caller held the lock, and somebody else is counted: the duty to wake is
            // the caller's.
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
            if self
                .handoff
                .compare_exchange(token, 0, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                // Somebody has taken the duty over.
                return;
            }
        }
    }

    fn push(&self, waiter: NonNull<Waiter>) {
        let mut head = self.pushed.load(Ordering::Relaxed);
        loop {
            // SAFETY: the record is still this thread's own: it is not on the list yet.
            unsafe { (*waiter.as_ptr()).next.with_mut(|next| *next = head) };
            match self.pushed.compare_exchange_weak(
                head,
                waiter.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
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
                    // SAFETY: records on the list stay valid until granted, and links of taken ones
                    // are the popper's.
                    pushed = unsafe {
                        (*waiter.as_ptr())
                            .next
                            .with_mut(|next| mem::replace(&mut *next, popper.list))
                    };
                    popper.list = waiter.as_ptr();
                }
            }
            let waiter = NonNull::new(popper.list)?;
            // SAFETY: as above.
            popper.list = unsafe { (*waiter.as_ptr()).next.with_mut(|next| *next) };
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
