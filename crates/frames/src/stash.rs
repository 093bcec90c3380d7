//! A small store of free things (frames, objects, stacks, by number or address) for one CPU: what
//! was put in last is taken out first. Threads of any CPU may use it at any time, in interrupt
//! handlers too; it is only fastest for its own. It is the *magazine* of Bonwick and Adams
//! ("Magazines and Vmem", USENIX ATC 2001), made of atomics instead of closing interrupts, so that
//! a shrinker can empty another CPU's.

use crate::sync::{AtomicUsize, Ordering};

/// Room for `N` numbers other than 0.
#[derive(Debug)]
pub struct Stash<const N: usize> {
    /// The slot to look at first: all below should be full, all from here on empty. Only a hint:
    /// threads that were interrupted or moved may leave it wrong, and the slots themselves say what
    /// is in them.
    top: AtomicUsize,
    slots: [AtomicUsize; N],
}

impl<const N: usize> Default for Stash<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Stash<N> {
    /// An empty one.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            top: AtomicUsize::new(0),
            slots: [const { AtomicUsize::new(0) }; N],
        }
    }

    /// An empty one.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            top: AtomicUsize::new(0),
            slots: core::array::from_fn(|_| AtomicUsize::new(0)),
        }
    }

    /// Takes one out; `None` if there is nothing, or nothing where the hint says. What the hint
    /// misses is found again when enough is put in, and by [`Self::drain`].
    #[inline]
    pub fn pop(&self) -> Option<usize> {
        let at = self.top.load(Ordering::Relaxed).wrapping_sub(1);
        let found = self.slots.get(at)?.swap(0, Ordering::Acquire);
        if found == 0 {
            return self.pop_below(at);
        }
        self.top.store(at, Ordering::Relaxed);
        Some(found)
    }

    /// The hint was wrong.
    #[cold]
    #[inline(never)]
    fn pop_below(&self, top: usize) -> Option<usize> {
        for at in (0..top).rev() {
            let found = self.slots[at].swap(0, Ordering::Acquire);
            if found != 0 {
                self.top.store(at, Ordering::Relaxed);
                return Some(found);
            }
        }
        self.top.store(0, Ordering::Relaxed);
        None
    }

    /// Takes out everything that is in it, each exactly once whatever else goes on.
    pub fn drain(&self) -> impl Iterator<Item = usize> {
        self.slots
            .iter()
            .map(|slot| slot.swap(0, Ordering::Acquire))
            .filter(|number| *number != 0)
    }

    /// Puts one in; `false` if no room was found.
    ///
    /// # Panics
    /// If it is 0.
    #[inline]
    pub fn push(&self, number: usize) -> bool {
        assert!(number != 0, "0 means nothing");
        let top = self.top.load(Ordering::Relaxed);
        let Some(slot) = self.slots.get(top) else {
            return false;
        };
        if slot
            .compare_exchange(0, number, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            return self.push_above(top, number);
        }
        self.top.store(top + 1, Ordering::Relaxed);
        true
    }

    /// The hint was wrong.
    #[cold]
    #[inline(never)]
    fn push_above(&self, top: usize, number: usize) -> bool {
        let free = |slot: &AtomicUsize| {
            slot.compare_exchange(0, number, Ordering::Release, Ordering::Relaxed)
                .is_ok()
        };
        let at = (top + 1..N).find(|at| free(&self.slots[*at]));
        self.top.store(at.map_or(N, |at| at + 1), Ordering::Relaxed);
        at.is_some()
    }

    /// From now on there is neither anything in it nor room. Only before it is used.
    pub fn close(&self) {
        self.top.store(usize::MAX, Ordering::Relaxed);
    }

    /// Whether the hint says that there is no room.
    #[inline]
    #[must_use]
    pub fn looks_full(&self) -> bool {
        self.top.load(Ordering::Relaxed) >= N
    }

    /// Number of things in it, about: exact while nobody uses it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.load(Ordering::Relaxed) != 0)
            .count()
    }

    /// Whether nothing is in it, as [`Self::len`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::Stash;

    proptest! {
        #[test]
        fn alone_it_is_a_stack(steps in prop::collection::vec(any::<bool>(), 0..200)) {
            let (stash, mut model) = (Stash::<8>::new(), Vec::new());
            for (n, put) in steps.into_iter().enumerate() {
                if put {
                    prop_assert_eq!(stash.push(n + 1), model.len() < 8);
                    if model.len() < 8 {
                        model.push(n + 1);
                    }
                } else {
                    prop_assert_eq!(stash.pop(), model.pop());
                }
                prop_assert_eq!((stash.len(), stash.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(stash.looks_full(), model.len() == 8);
            }
        }
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        const EACH: usize = 20_000;
        let stash = Stash::<16>::new();
        let (sum, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (stash, sum, count) = (&stash, &sum, &count);
                scope.spawn(move || {
                    for n in 1..=EACH {
                        let number = thread * EACH + n;
                        let out = if stash.push(number) {
                            stash.pop()
                        } else {
                            Some(number)
                        };
                        if let Some(number) = out {
                            sum.fetch_add(number, Ordering::Relaxed);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        for number in stash.drain() {
            sum.fetch_add(number, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
        }
        let all = 4 * EACH;
        assert_eq!(
            (sum.into_inner(), count.into_inner()),
            (all * (all + 1) / 2, all)
        );
    }
}
