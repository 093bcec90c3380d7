//! A place for an `Arc` that readers look at without a lock.

use alloc::sync::{Arc, Weak};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::domain::{Cpus, Domain};

/// The memory of a value that is gone already: given back after a grace period.
pub struct Memory {
    weak: *const (),
    free: unsafe fn(*const ()),
}

// SAFETY: it stands for a `Weak<T>` of a `T: Send + Sync`, which may be dropped anywhere.
unsafe impl Send for Memory {}

impl Memory {
    fn of<T: Send + Sync>(weak: Weak<T>) -> Self {
        /// # Safety
        /// `weak` is what `Weak::<T>::into_raw` gave, and used once.
        unsafe fn free<T>(weak: *const ()) {
            // SAFETY: passed on.
            drop(unsafe { Weak::from_raw(weak.cast::<T>()) });
        }
        Self {
            weak: weak.into_raw().cast(),
            free: free::<T>,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made by `of` from the same `T`, and dropped once.
        unsafe { (self.free)(self.weak) };
    }
}

/// A place that holds an `Arc<T>` or nothing. Reading it takes no lock.
///
/// The value itself is dropped as soon as its last `Arc` is, as ever: only the memory it was in is
/// kept for a grace period, by a weak count. A reader that comes too late finds the strong count at
/// zero, and nothing else.
///
/// ```
/// use std::sync::Arc;
/// # struct OneCpu;
/// # // SAFETY: one thread on one CPU: no section is ever going on when another call is made.
/// # unsafe impl rcu::Cpus for OneCpu {
/// #     fn count(&self) -> usize { 1 }
/// #     fn quiescent_states(&self, _: usize) -> u64 { 0 }
/// #     fn is_idle(&self, _: usize) -> bool { true }
/// #     fn quiescent_state(&self) {}
/// #     fn kick(&self, _: usize) {}
/// #     fn sleep_until(&self, _: &dyn Fn() -> bool) {}
/// #     fn read_section<R>(&self, section: impl FnOnce() -> R) -> R { section() }
/// # }
/// static DOMAIN: rcu::Domain<OneCpu, rcu::Memory> = rcu::Domain::new(OneCpu);
/// static NAME: rcu::RcuArc<String> = rcu::RcuArc::empty();
///
/// // SAFETY: there is one domain.
/// let (old, new) = unsafe {
///     NAME.swap(Some(Arc::new("first".into())), &DOMAIN);
///     let old = NAME.load(&DOMAIN);
///     NAME.swap(Some(Arc::new("second".into())), &DOMAIN);
///     (old, NAME.load(&DOMAIN))
/// };
/// // Who loaded the old value still has it; who loads now gets the new one.
/// assert_eq!((&**old.unwrap(), &**new.unwrap()), ("first", "second"));
/// ```
pub struct RcuArc<T> {
    /// Null, or a pointer that owns one strong and one weak count.
    value: AtomicPtr<T>,
}

impl<T: Send + Sync> RcuArc<T> {
    /// A place with nothing in it.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            value: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The value that is there, with a reference of the caller's own; `None` if the cell is empty.
    ///
    /// # Safety
    /// The place is used with this domain only.
    #[inline]
    pub unsafe fn load<C: Cpus>(&self, domain: &Domain<C, Memory>) -> Option<Arc<T>> {
        domain.cpus().read_section(|| {
            let value = self.value.load(Ordering::Acquire);
            if value.is_null() {
                return None;
            }
            // SAFETY: it points to a `T`. Thus it is not the pointer of a `Weak` to nothing, which
            // need not be looked for.
            unsafe { core::hint::assert_unchecked(value.is_aligned()) };
            // SAFETY: the pointer was there within this section, so its weak count is given up
            // after the section at the earliest; `ManuallyDrop` leaves it.
            ManuallyDrop::new(unsafe { Weak::from_raw(value) }).upgrade()
        })
    }

    /// Puts `new` there, and returns what was there.
    ///
    /// # Safety
    /// The place is used with this domain only.
    #[inline]
    pub unsafe fn swap<C: Cpus>(
        &self,
        new: Option<Arc<T>>,
        domain: &Domain<C, Memory>,
    ) -> Option<Arc<T>> {
        let new = new.map_or(ptr::null_mut(), |arc| {
            let _kept = ManuallyDrop::new(Arc::downgrade(&arc));
            Arc::into_raw(arc).cast_mut()
        });
        let old = self.value.swap(new, Ordering::AcqRel);
        (!old.is_null()).then(|| {
            // SAFETY: the place owned one strong and one weak count, and is the owner no longer.
            let (strong, weak) = unsafe { (Arc::from_raw(old), Weak::from_raw(old)) };
            domain.retire(Memory::of(weak));
            strong
        })
    }
}

impl<T> Drop for RcuArc<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: the place owns one count of each, and nobody reads it any more.
            unsafe {
                drop(Weak::from_raw(value));
                drop(Arc::from_raw(value));
            }
        }
    }
}

impl<T> fmt::Debug for RcuArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RcuArc(..)")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    use std::thread;

    use super::*;
    use crate::{BATCH, LIMIT};

    /// Readers are threads; a thread's CPU has a counter that is odd within a section.
    struct Threads([AtomicU64; 3]);

    std::thread_local! {
        static CPU: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    }

    // SAFETY: the counters are increased at both ends of a section, even ones are idle, and a fence
    // follows where one begins.
    unsafe impl Cpus for Threads {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn quiescent_states(&self, cpu: usize) -> u64 {
            self.0[cpu].load(Ordering::SeqCst) / 2
        }
        fn is_idle(&self, cpu: usize) -> bool {
            self.0[cpu].load(Ordering::SeqCst).is_multiple_of(2)
        }
        fn quiescent_state(&self) {}
        fn kick(&self, _: usize) {}
        fn sleep_until(&self, over: &dyn Fn() -> bool) {
            while !over() {
                thread::yield_now();
            }
        }
        fn read_section<R>(&self, section: impl FnOnce() -> R) -> R {
            let counter = &self.0[CPU.get()];
            counter.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let result = section();
            counter.fetch_add(1, Ordering::SeqCst);
            result
        }
    }

    fn domain() -> Domain<Threads, Memory> {
        Domain::new(Threads([const { AtomicU64::new(0) }; 3]))
    }

    struct Counted<'a>(u64, u64, &'a AtomicUsize);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.1 = 0;
            self.2.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_value_goes_at_once_and_its_memory_later() {
        let (alive, domain) = (AtomicUsize::new(1), domain());
        let place = RcuArc::empty();
        // SAFETY: in this test there is one domain.
        let (load, swap) = (
            || unsafe { place.load(&domain) },
            |new| unsafe { place.swap(new, &domain) },
        );
        assert!(load().is_none());
        assert!(swap(Some(Arc::new(Counted(1, 1, &alive)))).is_none());
        let read = load().unwrap();
        assert_eq!(read.0, 1);
        let old = swap(None).unwrap();
        drop((read, old));
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        assert!(load().is_none());
    }

    const ROUNDS: u64 = if cfg!(miri) { 1_200 } else { 20_000 };

    #[test]
    fn readers_see_whole_values_while_they_are_replaced() {
        let (alive, domain, done) = (AtomicUsize::new(0), domain(), AtomicBool::new(false));
        let place = RcuArc::<Counted<'_>>::empty();
        thread::scope(|scope| {
            for cpu in [1, 2] {
                let (place, domain, done) = (&place, &domain, &done);
                scope.spawn(move || {
                    CPU.set(cpu);
                    while !done.load(Ordering::Relaxed) {
                        // SAFETY: in this test there is one domain.
                        if let Some(value) = unsafe { place.load(domain) } {
                            assert_eq!(value.0, value.1);
                        }
                    }
                });
            }
            for i in 1..ROUNDS {
                alive.fetch_add(1, Ordering::SeqCst);
                // SAFETY: in this test there is one domain.
                unsafe { place.swap(Some(Arc::new(Counted(i, i, &alive))), &domain) };
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(domain.periods() >= ROUNDS / (LIMIT + BATCH) as u64);
        drop(place);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }
}
