//! The order in which locks are taken, checked while they are taken (as `WITNESS` of FreeBSD and
//! `lockdep` of Linux do).
//!
//! With the feature `order`, every lock belongs to a *class*: the place in the source where it is
//! made. When a thread takes a lock while it holds others, an edge from each of their classes to
//! the new one is noted. An edge that closes a circle is a deadlock that needs only the right
//! moment, whether or not that moment came: the thread panics and names both orders. Locks of one
//! class among themselves are not checked (a directory and the one inside it), nor is a lock that
//! is taken without waiting (`try_lock`); readers count as writers, because a reader waits behind a
//! writer that waits.
//!
//! Without the feature there is nothing of this: a class has no size and its methods no code.

#[cfg(not(feature = "order"))]
pub(crate) use off::Class;
#[cfg(feature = "order")]
pub(crate) use on::Class;

#[cfg(not(feature = "order"))]
mod off {
    /// Class of the locks made at one place in the source; empty without the checker.
    pub(crate) struct Class;

    impl Class {
        /// The class of locks made by the caller's caller.
        #[inline(always)]
        pub(crate) const fn here() -> Self {
            Self
        }

        /// The calling thread will wait for a lock of the class.
        #[inline(always)]
        pub(crate) fn take(&self) {}

        /// The calling thread has a lock of the class, for which it did not wait.
        #[inline(always)]
        pub(crate) fn hold(&self) {}

        /// The calling thread gives one up.
        #[inline(always)]
        pub(crate) fn release(&self) {}
    }
}

#[cfg(feature = "order")]
mod on {
    use core::fmt;
    use core::panic::Location;
    use core::ptr::null_mut;
    use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, AtomicUsize, Ordering};

    use crate::scheduler::scheduler;

    /// A place in the source.
    type Site = Location<'static>;

    /// Classes there can be.
    const CLASSES: usize = 1024;
    /// Threads that are watched: those whose number is below this.
    const THREADS: usize = 4096;
    /// Locks of one thread at a time that are watched.
    const DEPTH: usize = 24;
    /// Edges whose places are kept for messages.
    const EDGES: usize = 8192;

    /// The place where a class's locks are made, by number.
    static NAMES: [AtomicPtr<Site>; CLASSES] = [const { AtomicPtr::new(null_mut()) }; CLASSES];
    /// The classes that were taken while one was held.
    static AFTER: [Set; CLASSES] = [const { Set::new() }; CLASSES];
    static HELD: [Held; THREADS] = [const { Held::new() }; THREADS];
    static EDGE: [Edge; EDGES] = [const { Edge::new() }; EDGES];
    static EDGE_COUNT: AtomicUsize = AtomicUsize::new(0);

    /// A place that was stored, if there is one.
    fn place(stored: &AtomicPtr<Site>) -> Option<&'static Site> {
        // SAFETY: null, or what `store` was given: a place that lives for ever.
        unsafe { stored.load(Ordering::Acquire).as_ref() }
    }

    fn store(to: &AtomicPtr<Site>, site: &'static Site) {
        to.store(core::ptr::from_ref(site).cast_mut(), Ordering::Release);
    }

    /// A set of classes that only grows.
    struct Set([AtomicU64; CLASSES / 64]);

    impl Set {
        const fn new() -> Self {
            Self([const { AtomicU64::new(0) }; CLASSES / 64])
        }

        fn contains(&self, class: usize) -> bool {
            self.0[class / 64].load(Ordering::Relaxed) & (1 << (class % 64)) != 0
        }

        /// True if it was not there.
        fn insert(&self, class: usize) -> bool {
            let bit = 1 << (class % 64);
            self.0[class / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
        }
    }

    /// Where a lock of one class was first taken by who held one of another: for messages.
    struct Edge {
        /// The class held, and the one taken.
        classes: AtomicUsize,
        held: AtomicPtr<Site>,
        taken: AtomicPtr<Site>,
    }

    impl Edge {
        const fn new() -> Self {
            Self {
                classes: AtomicUsize::new(0),
                held: AtomicPtr::new(null_mut()),
                taken: AtomicPtr::new(null_mut()),
            }
        }

        const fn pair(held: usize, taken: usize) -> usize {
            held * CLASSES + taken
        }

        fn note(pair: usize, held: &'static Site, taken: &'static Site) {
            if let Some(edge) = EDGE.get(EDGE_COUNT.fetch_add(1, Ordering::Relaxed)) {
                edge.classes.store(pair, Ordering::Relaxed);
                store(&edge.held, held);
                store(&edge.taken, taken);
            }
        }
    }

    /// The locks of a thread. Only the thread itself uses it.
    struct Held {
        count: AtomicUsize,
        classes: [AtomicU16; DEPTH],
        sites: [AtomicPtr<Site>; DEPTH],
    }

    impl Held {
        const fn new() -> Self {
            let sites = [const { AtomicPtr::new(null_mut()) }; DEPTH];
            Self {
                count: AtomicUsize::new(0),
                classes: [const { AtomicU16::new(0) }; DEPTH],
                sites,
            }
        }

        /// The held locks of the calling thread, if it is watched.
        fn mine() -> Option<&'static Self> {
            HELD.get(scheduler().current().into_raw())
        }

        fn class(&self, at: usize) -> usize {
            self.classes[at].load(Ordering::Relaxed).into()
        }

        fn count(&self) -> usize {
            self.count.load(Ordering::Relaxed)
        }

        fn push(&self, class: usize, site: &'static Site) {
            let count = self.count();
            if count < DEPTH {
                self.classes[count].store(class as u16, Ordering::Relaxed);
                store(&self.sites[count], site);
            }
            self.count.store(count + 1, Ordering::Relaxed);
        }

        /// Takes out the last one of the class.
        fn remove(&self, class: usize) {
            let count = self.count();
            let listed = count.min(DEPTH);
            if let Some(at) = (0..listed).rev().find(|&at| self.class(at) == class) {
                for to in at..listed - 1 {
                    self.classes[to].store(
                        self.classes[to + 1].load(Ordering::Relaxed),
                        Ordering::Relaxed,
                    );
                    self.sites[to].store(
                        self.sites[to + 1].load(Ordering::Relaxed),
                        Ordering::Relaxed,
                    );
                }
            }
            // One that had no place in the list is only counted.
            self.count.store(count.saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// Class of the locks made at one place in the source.
    pub(crate) struct Class {
        made: &'static Site,
        /// Number of the class plus one; 0 before its first use.
        number: AtomicU16,
    }

    impl Class {
        /// The class of locks made by the caller's caller.
        #[track_caller]
        pub(crate) const fn here() -> Self {
            Self {
                made: Location::caller(),
                number: AtomicU16::new(0),
            }
        }

        /// Number of the class. `None`: there are too many classes, and this one is not checked.
        fn number(&self) -> Option<usize> {
            match self.number.load(Ordering::Relaxed) {
                0 => self.find(),
                number => Some(usize::from(number) - 1),
            }
        }

        #[cold]
        fn find(&self) -> Option<usize> {
            // A place may be in the image several times, at several addresses.
            let start = (self.made.line() as usize * 31
                + self.made.column() as usize
                + self.made.file().len())
                % CLASSES;
            let made = core::ptr::from_ref(self.made).cast_mut();
            let number = (0..CLASSES)
                .map(|step| (start + step) % CLASSES)
                .find(|&number| {
                    let name = &NAMES[number];
                    let taken = name.compare_exchange(
                        null_mut(),
                        made,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    taken.is_ok() || place(name) == Some(self.made)
                })?;
            self.number.store(number as u16 + 1, Ordering::Relaxed);
            Some(number)
        }

        /// The calling thread will wait for a lock of the class.
        ///
        /// # Panics
        /// If locks of the class were taken before ones that the thread holds.
        #[track_caller]
        pub(crate) fn take(&self) {
            let (Some(held), Some(taken)) = (Held::mine(), self.number()) else {
                return;
            };
            let site = Location::caller();
            for at in 0..held.count().min(DEPTH) {
                let class = held.class(at);
                if class != taken
                    && AFTER[class].insert(taken)
                    && let Some(before) = place(&held.sites[at])
                {
                    Edge::note(Edge::pair(class, taken), before, site);
                    if let Some(path) = Path::find(taken, class) {
                        panic!(
                            "locks are taken in two orders:\n{}{path}",
                            Step { held: class, taken }
                        );
                    }
                }
            }
            held.push(taken, site);
        }

        /// The calling thread has a lock of the class, for which it did not wait.
        #[track_caller]
        pub(crate) fn hold(&self) {
            if let (Some(held), Some(taken)) = (Held::mine(), self.number()) {
                held.push(taken, Location::caller());
            }
        }

        /// The calling thread gives one up.
        pub(crate) fn release(&self) {
            if let (Some(held), Some(class)) = (Held::mine(), self.number()) {
                held.remove(class);
            }
        }
    }

    /// The way from one class to another, from edge to edge: where each was come from.
    struct Path {
        from: usize,
        to: usize,
        before: [u16; CLASSES],
    }

    impl Path {
        fn find(from: usize, to: usize) -> Option<Self> {
            let mut path = Self {
                from,
                to,
                before: [u16::MAX; CLASSES],
            };
            let mut queue = [0u16; CLASSES];
            let (mut first, mut last) = (0, 1);
            queue[0] = from as u16;
            while first < last {
                let here = queue[first];
                first += 1;
                if usize::from(here) == to {
                    return Some(path);
                }
                for next in (0..CLASSES).filter(|&next| AFTER[usize::from(here)].contains(next)) {
                    if next != from && path.before[next] == u16::MAX {
                        path.before[next] = here;
                        queue[last] = next as u16;
                        last += 1;
                    }
                }
            }
            None
        }
    }

    impl fmt::Display for Path {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut taken = self.to;
            while taken != self.from {
                let held = usize::from(self.before[taken]);
                Step { held, taken }.fmt(f)?;
                taken = held;
            }
            Ok(())
        }
    }

    /// An edge, in words.
    struct Step {
        held: usize,
        taken: usize,
    }

    impl fmt::Display for Step {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let name = |class: usize| place(&NAMES[class]);
            let pair = Edge::pair(self.held, self.taken);
            let edge = EDGE
                .iter()
                .find(|edge| edge.classes.load(Ordering::Relaxed) == pair);
            let [held, taken] = [name(self.held), name(self.taken)];
            let [before, after] = [
                edge.and_then(|edge| place(&edge.held)),
                edge.and_then(|edge| place(&edge.taken)),
            ];
            for (verb, class, site) in [("held", held, before), ("taken", taken, after)] {
                if let Some(class) = class {
                    write!(f, "  {verb}: the lock made at {class}")?;
                }
                if let Some(site) = site {
                    write!(f, ", by {site}")?;
                }
                writeln!(f)?;
            }
            Ok(())
        }
    }
}

#[cfg(all(test, feature = "order"))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use crate::{Condvar, Mutex, RwLock};

    /// The panic message of `work`, if taking its locks panics.
    fn complaint(work: impl FnOnce()) -> Option<String> {
        let error = catch_unwind(AssertUnwindSafe(work)).err()?;
        Some(
            error
                .downcast_ref::<String>()
                .expect("the message has numbers in it")
                .clone(),
        )
    }

    #[test]
    fn two_orders_are_a_deadlock_even_if_none_happens() {
        let (a, b) = (Mutex::new(1), Mutex::new(2));
        drop((a.lock(), b.lock()));
        let said = complaint(|| drop((b.lock(), a.lock()))).expect("the order is another");
        assert_eq!(said.matches("held: the lock made at").count(), 2, "{said}");
    }

    #[test]
    fn a_circle_of_three_is_found_through_readers() {
        let (a, b, c) = (Mutex::new(1), RwLock::new(2), Mutex::new(3));
        drop((a.lock(), b.read()));
        drop((b.write(), c.lock()));
        assert!(complaint(|| drop((c.lock(), a.lock()))).is_some());
    }

    #[test]
    fn what_is_no_circle_is_let_alone() {
        let (a, b) = (Mutex::new(1), Mutex::new(2));
        let same: Vec<_> = (0..2).map(Mutex::new).collect();
        drop((a.lock(), b.lock()));
        // Nobody waits in a try.
        let held = b.lock();
        drop(a.try_lock());
        drop(held);
        // Locks of one class, in any order; and what was given up is not held, in whatever order.
        drop((same[0].lock(), same[1].lock()));
        drop((same[1].lock(), same[0].lock()));
        let (first, second) = (a.lock(), b.lock());
        drop(first);
        drop(second);
        drop(b.lock());
        drop(a.lock());
    }

    #[test]
    fn a_condition_takes_its_lock_again() {
        let (outer, inner, condition) = (Mutex::new(()), Mutex::new(false), Condvar::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ready = inner.lock();
                *ready = true;
                condition.notify_all(&ready);
            });
            let mut ready = inner.lock();
            while !*ready {
                ready = condition.wait(ready);
            }
        });
        // It was given up in between and after: nothing is held.
        drop((outer.lock(), inner.lock()));
        assert!(complaint(|| drop((inner.lock(), outer.lock()))).is_some());
    }
}
