//! The wake queues of a CPU: where other CPUs put the threads it shall run.
//!
//! For each pair of CPUs there is one queue with a single producer and a single consumer, so wakers
//! never wait for each other and never retry on each other's behalf: a push is one compare-exchange
//! that only the owner's take can disturb, once per take. A two-level bitmask says which producers
//! have something (OSv's scheme, Kivity et al., USENIX ATC 2014, section 2.4, without its limit of
//! 64 CPUs). A queue is a stack of thread numbers, 4 bytes per pair; the owner takes it whole and
//! turns it round, so that those who were woken first run first. Nobody ever pops a single element,
//! so there is no ABA problem.

#[cfg(loom)]
use core::array;

use crate::CpuSet;
use crate::sync::{AtomicU32, Ordering};

/// No thread.
pub const NIL: u32 = u32::MAX;

/// Queues of the threads that `64 * WORDS` CPUs want one CPU to run: `SOURCES` is the same number.
/// The links are the caller's: `next(n)` must be the same atomic for the same `n` every time, and
/// belongs to the queue while `n` is in it.
#[derive(Debug)]
pub struct WakeQueues<const SOURCES: usize, const WORDS: usize> {
    waiting: CpuSet<WORDS>,
    heads: [AtomicU32; SOURCES],
}

impl<const SOURCES: usize, const WORDS: usize> WakeQueues<SOURCES, WORDS> {
    /// Empty queues.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            waiting: CpuSet::new(),
            heads: [const { AtomicU32::new(NIL) }; SOURCES],
        }
    }

    /// Empty queues.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            waiting: CpuSet::new(),
            heads: array::from_fn(|_| AtomicU32::new(NIL)),
        }
    }

    /// Puts `number`, which must be in no queue, into that of the CPU `source`, which is the one
    /// that calls this.
    ///
    /// # Panics
    /// If there are not so many sources.
    pub fn push<'a>(&self, source: usize, number: u32, next: impl Fn(u32) -> &'a AtomicU32) {
        let queue = &self.heads[source];
        let mut head = queue.load(Ordering::Relaxed);
        loop {
            next(number).store(head, Ordering::Relaxed);
            match queue.compare_exchange(head, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                // The owner took the queue, or an interrupt handler of this CPU was faster.
                Err(now) => head = now,
            }
        }
        self.waiting.insert(source);
    }

    /// True if nothing is announced. A snapshot.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes everything out and hands it to `each`, for each source the oldest first. Only the
    /// owner calls this. `each` may put the number into another queue.
    pub fn drain<'a>(&self, next: impl Fn(u32) -> &'a AtomicU32, mut each: impl FnMut(u32)) {
        self.waiting.take(|source| {
            let mut newest = self.heads[source].swap(NIL, Ordering::Acquire);
            let mut oldest = NIL;
            while newest != NIL {
                let older = next(newest).load(Ordering::Relaxed);
                next(newest).store(oldest, Ordering::Relaxed);
                oldest = newest;
                newest = older;
            }
            while oldest != NIL {
                // Read before `each` may reuse the link.
                let newer = next(oldest).load(Ordering::Relaxed);
                each(oldest);
                oldest = newer;
            }
        });
    }
}

impl<const SOURCES: usize, const WORDS: usize> Default for WakeQueues<SOURCES, WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn links() -> Vec<AtomicU32> {
        (0..8).map(|_| AtomicU32::new(NIL)).collect()
    }

    #[test]
    fn oldest_first_for_each_source() {
        let links = links();
        let next = |n: u32| &links[n as usize];
        let queues = WakeQueues::<1024, 16>::new();
        for (source, number) in [(1023, 3), (64, 5), (1023, 1), (64, 7), (1023, 4)] {
            queues.push(source, number, next);
        }
        let mut seen = Vec::new();
        queues.drain(next, |n| seen.push(n));
        assert_eq!(seen, [5, 7, 3, 1, 4]);
        assert!(queues.is_empty());
    }

    /// The owner takes each entry once; an entry taken out may be put in again at once, and is
    /// there for the next look; a queue with an entry not yet announced is not empty.
    #[test]
    fn the_owner_takes_all_that_is_there_once() {
        let links = links();
        let next = |n: u32| &links[n as usize];
        let queues = WakeQueues::<128, 2>::default();
        assert!(queues.is_empty());
        for number in 0..4 {
            queues.push(127, number, next);
            assert!(!queues.is_empty());
        }
        let mut seen = Vec::new();
        queues.drain(next, |n| {
            seen.push(n);
            queues.push(0, n, next);
        });
        assert_eq!(
            (seen.as_slice(), queues.is_empty()),
            (&[0, 1, 2, 3][..], false)
        );
        queues.drain(next, |n| seen.push(n));
        queues.drain(next, |n| seen.push(n));
        assert_eq!(
            (seen.as_slice(), queues.is_empty()),
            (&[0, 1, 2, 3, 0, 1, 2, 3][..], true)
        );
    }

    #[test]
    fn what_docs_say_of_its_size() {
        assert_eq!(size_of::<WakeQueues<1024, 16>>(), 4 * 1024 + 17 * 8);
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::fence;
    use loom::thread;

    use super::*;

    const OPEN: u32 = 0;
    const LOOK: u32 = 1;

    /// Two sources of one word, and an owner that looks when it is told to, as the scheduler does
    /// it: who pushed tells the owner unless somebody did already, and the owner is open to that
    /// again before it looks. Everything arrives, once.
    #[test]
    fn nothing_is_lost_or_doubled() {
        loom::model(|| {
            let shared = Arc::new((
                WakeQueues::<2, 1>::new(),
                [
                    AtomicU32::new(NIL),
                    AtomicU32::new(NIL),
                    AtomicU32::new(NIL),
                ],
                AtomicU32::new(OPEN),
            ));
            let pushers: std::vec::Vec<_> = [[0].as_slice(), [1, 2].as_slice()]
                .into_iter()
                .enumerate()
                .map(|(source, numbers)| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        for &n in numbers {
                            shared.0.push(source, n, |n| &shared.1[n as usize]);
                            fence(Ordering::SeqCst);
                            if shared.2.load(Ordering::Relaxed) != LOOK {
                                shared.2.swap(LOOK, Ordering::AcqRel);
                            }
                        }
                    })
                })
                .collect();
            let mut seen = [0; 3];
            let mut look = || {
                if shared.2.swap(OPEN, Ordering::AcqRel) == LOOK {
                    fence(Ordering::SeqCst);
                    shared
                        .0
                        .drain(|n| &shared.1[n as usize], |n| seen[n as usize] += 1);
                }
            };
            look();
            for p in pushers {
                p.join().unwrap();
            }
            look();
            assert_eq!(seen, [1; 3]);
        });
    }

    /// The owner leaves, as a CPU does: who pushes looks in a section whether it is active, and
    /// after a grace period the owner takes what is there. Nothing comes after that.
    #[test]
    fn nothing_comes_after_a_grace_period() {
        loom::model(|| {
            let queues = Arc::new(WakeQueues::<2, 1>::new());
            let words = Arc::new([(); 3].map(|()| AtomicU32::new(0)));
            let pusher = {
                let (queues, words) = (queues.clone(), words.clone());
                thread::spawn(move || {
                    let [left, quiescent, link] = &*words;
                    let pushes = left.load(Ordering::Relaxed) == 0;
                    if pushes {
                        queues.push(1, 0, |_| link);
                    }
                    quiescent.fetch_add(1, Ordering::SeqCst);
                    pushes
                })
            };
            let [left, quiescent, link] = &*words;
            left.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            while quiescent.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            let mut seen = false;
            queues.drain(|_| link, |_| seen = true);
            assert_eq!(seen, pusher.join().unwrap());
            assert!(queues.is_empty());
        });
    }
}
