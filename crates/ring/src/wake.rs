//! The wake list: where other CPUs (and interrupt handlers) put the threads that a CPU shall run.
//!
//! A stack of thread numbers: pushing is one compare-exchange, and the owner takes everything at once and turns it round,
//! so that those who were woken first run first. Because nobody ever pops a single element, the stack has no ABA problem.

use crate::sync::{AtomicU32, Ordering};

/// No thread.
pub const NIL: u32 = u32::MAX;

/// The list of one CPU. The links are the caller's: `next(n)` must be the same atomic for the same `n` every time, and
/// belongs to the list while `n` is on it.
#[derive(Debug)]
pub struct WakeList {
    head: AtomicU32,
}

impl WakeList {
    /// An empty list.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { head: AtomicU32::new(NIL) }
    }

    /// An empty list.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { head: AtomicU32::new(NIL) }
    }

    /// Puts `number` on the list; it must not be on any. True if the list was empty before.
    pub fn push<'a>(&self, number: u32, next: impl Fn(u32) -> &'a AtomicU32) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            next(number).store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return head == NIL,
                Err(now) => head = now,
            }
        }
    }

    /// True if nothing is on the list. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire) == NIL
    }

    /// Takes everything off the list and hands it to `each`, oldest first. Only the owner calls this. `each` may put the
    /// number on another list.
    pub fn drain<'a>(&self, next: impl Fn(u32) -> &'a AtomicU32, mut each: impl FnMut(u32)) {
        let mut newest = self.head.swap(NIL, Ordering::Acquire);
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
    }
}

impl Default for WakeList {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn oldest_first() {
        let links: Vec<AtomicU32> = (0..5).map(|_| AtomicU32::new(NIL)).collect();
        let next = |n: u32| &links[n as usize];
        let list = WakeList::new();
        assert!(list.push(3, next));
        assert!(!list.push(1, next));
        assert!(!list.push(4, next));
        let mut seen = Vec::new();
        list.drain(next, |n| seen.push(n));
        assert_eq!(seen, [3, 1, 4]);
        assert!(list.is_empty());
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn nothing_is_lost_or_doubled() {
        loom::model(|| {
            let list = Arc::new((WakeList::new(), [AtomicU32::new(NIL), AtomicU32::new(NIL), AtomicU32::new(NIL)]));
            let pushers: std::vec::Vec<_> = [[0].as_slice(), [1, 2].as_slice()]
                .into_iter()
                .map(|numbers| {
                    let list = list.clone();
                    thread::spawn(move || {
                        for &n in numbers {
                            list.0.push(n, |n| &list.1[n as usize]);
                        }
                    })
                })
                .collect();
            let mut seen = [0; 3];
            list.0.drain(|n| &list.1[n as usize], |n| seen[n as usize] += 1);
            for p in pushers {
                p.join().unwrap();
            }
            list.0.drain(|n| &list.1[n as usize], |n| seen[n as usize] += 1);
            assert_eq!(seen, [1; 3]);
        });
    }
}
