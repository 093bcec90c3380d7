//! Locks that the node thread takes, too, and ordinary threads have for a moment only.
//!
//! A lock does not lend its owner the priority of who waits for it. So that the node thread never
//! waits for a thread that waits for its CPU, a thread of lower priority keeps its CPU for as long
//! as it has such a lock.

use core::ops::{Deref, DerefMut};

use task::{Mutex, MutexGuard, PreemptGuard};

/// The right to use what a [`Mutex`] holds, of a thread that keeps its CPU meanwhile. It must not
/// sleep.
pub(crate) struct BriefGuard<'a, T> {
    // Dropped in this order.
    guard: MutexGuard<'a, T>,
    _keeps_cpu: PreemptGuard,
}

/// Waits for the lock, and keeps the CPU from then on.
pub(crate) fn lock_briefly<T>(mutex: &Mutex<T>) -> BriefGuard<'_, T> {
    loop {
        let keeps_cpu = task::preempt_disable();
        if let Some(guard) = mutex.try_lock() {
            return BriefGuard {
                guard,
                _keeps_cpu: keeps_cpu,
            };
        }
        drop(keeps_cpu);
        // Sleeps until whoever has it gives it up.
        drop(mutex.lock());
    }
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
