//! A table in shared memory that one side replaces as a whole and others copy as a whole: a
//! sequence lock (`docs/descriptor.md`, [`abi::live`]).
//!
//! The counter is odd while the table is being written. Whoever copies it looks at the counter
//! before and after: a copy between two equal even numbers is whole. Readers write nothing, so the
//! memory may be read-only for them, and they never wait: a copy that is torn is told as such.
//!
//! Who writes has a lock of its own. One that died in the middle leaves an odd number, and with it
//! no table; its successor writes the next one.

use crate::sync::{AtomicU64, Ordering, fence, point};

/// Words of an entry.
pub const WORDS: usize = 4;

/// A table where both sides see it.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    counter: &'a AtomicU64,
    count: &'a AtomicU64,
    entries: &'a [[AtomicU64; WORDS]],
}

/// The outcome of [`Table::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// A whole table was copied.
    Whole {
        /// Number of the epoch; 0 before the first.
        epoch: u64,
        /// Number of entries that it says it has: more than were copied if it is nonsense.
        count: u64,
    },
    /// The table was being written, or was left so.
    Torn,
}

impl<'a> Table<'a> {
    /// The table of a counter, a number of entries, and the entries.
    #[must_use]
    pub const fn new(
        counter: &'a AtomicU64,
        count: &'a AtomicU64,
        entries: &'a [[AtomicU64; WORDS]],
    ) -> Self {
        Self {
            counter,
            count,
            entries,
        }
    }

    /// Replaces the table by `count` entries; returns the number of the new epoch. Nobody else may
    /// write meanwhile.
    ///
    /// # Panics
    /// If there is no room for so many entries.
    pub fn publish(&self, count: usize, new: impl Iterator<Item = [u64; WORDS]>) -> u64 {
        assert!(count <= self.entries.len(), "an epoch without room");
        let begun = self.counter.load(Ordering::Relaxed) | 1;
        point("epoch: before the counter is odd");
        self.counter.store(begun, Ordering::Relaxed);
        // No word is seen before the odd number.
        fence(Ordering::Release);
        self.count.store(count as u64, Ordering::Relaxed);
        for (entry, words) in self.entries[..count].iter().zip(new) {
            for (to, from) in entry.iter().zip(words) {
                point("epoch: between two words");
                to.store(from, Ordering::Relaxed);
            }
        }
        // A counter that was odd already is a dead writer's: its epoch is ours now.
        self.counter.store(begun + 1, Ordering::Release);
        begun.div_ceil(2)
    }

    /// Number of the last whole epoch; `None` while one is being written.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        let counter = self.counter.load(Ordering::Acquire);
        counter.is_multiple_of(2).then_some(counter / 2)
    }

    /// Copies the table into `to`, as far as there is room.
    pub fn read(&self, to: &mut [[u64; WORDS]]) -> Copied {
        let Some(epoch) = self.epoch() else {
            return Copied::Torn;
        };
        let count = self.count.load(Ordering::Relaxed);
        let used = usize::try_from(count).unwrap_or(usize::MAX);
        for (to, entry) in to.iter_mut().zip(self.entries).take(used) {
            for (to, from) in to.iter_mut().zip(entry) {
                point("epoch: between two reads");
                *to = from.load(Ordering::Relaxed);
            }
        }
        // No word is read after the second look.
        fence(Ordering::Acquire);
        if self.counter.load(Ordering::Relaxed) == 2 * epoch {
            Copied::Whole { epoch, count }
        } else {
            Copied::Torn
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Memory {
        counter: AtomicU64,
        count: AtomicU64,
        entries: [[AtomicU64; WORDS]; 8],
    }

    impl Memory {
        fn new() -> Self {
            Self {
                counter: AtomicU64::new(0),
                count: AtomicU64::new(0),
                entries: [const { [const { AtomicU64::new(0) }; WORDS] }; 8],
            }
        }

        fn table(&self) -> Table<'_> {
            Table::new(&self.counter, &self.count, &self.entries)
        }
    }

    #[test]
    fn what_is_published_is_copied() {
        let memory = Memory::new();
        let table = memory.table();
        let mut copy = [[7; WORDS]; 8];
        assert_eq!(table.read(&mut copy), Copied::Whole { epoch: 0, count: 0 });
        assert_eq!(copy, [[7; WORDS]; 8]);
        assert_eq!(
            table.publish(2, [[1, 2, 3, 4], [5, 6, 7, 8]].into_iter()),
            1
        );
        assert_eq!(table.read(&mut copy), Copied::Whole { epoch: 1, count: 2 });
        assert_eq!(copy[..3], [[1, 2, 3, 4], [5, 6, 7, 8], [7; WORDS]]);
        assert_eq!(table.publish(1, [[9; WORDS]].into_iter()), 2);
        assert_eq!(table.read(&mut copy), Copied::Whole { epoch: 2, count: 1 });
        assert_eq!(copy[0], [9; WORDS]);
    }

    /// A count that is nonsense is told, and nothing beyond the room is touched.
    #[test]
    fn a_count_beyond_the_room_is_told() {
        let memory = Memory::new();
        memory.count.store(u64::MAX, Ordering::Relaxed);
        let mut copy = [[7; WORDS]; 2];
        assert_eq!(
            memory.table().read(&mut copy),
            Copied::Whole {
                epoch: 0,
                count: u64::MAX
            }
        );
        assert_eq!(copy, [[0; WORDS]; 2]);
    }

    /// A writer that died in the middle leaves nothing to adopt, and the next one goes on.
    #[test]
    fn a_dead_writers_table_is_torn_until_the_next_one() {
        let memory = Memory::new();
        let table = memory.table();
        table.publish(1, [[1; WORDS]].into_iter());
        memory.counter.store(3, Ordering::Relaxed);
        memory.entries[0][1].store(2, Ordering::Relaxed);
        let mut copy = [[0; WORDS]; 8];
        assert_eq!((table.read(&mut copy), table.epoch()), (Copied::Torn, None));
        assert_eq!(table.publish(1, [[3; WORDS]].into_iter()), 2);
        assert_eq!(table.read(&mut copy), Copied::Whole { epoch: 2, count: 1 });
        assert_eq!(copy[0], [3; WORDS]);
    }

    /// Real threads: all words of a whole copy are of one epoch.
    #[test]
    fn a_whole_copy_is_of_one_epoch() {
        const EPOCHS: u64 = if cfg!(miri) { 100 } else { 100_000 };
        let memory = Memory::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut copy = [[0; WORDS]; 8];
                let mut last = 0;
                while !done.load(Ordering::Acquire) {
                    if let Copied::Whole { epoch, count } = memory.table().read(&mut copy) {
                        assert!(epoch >= last);
                        assert_eq!(count, epoch % 8);
                        let used = copy[..count as usize].as_flattened();
                        assert!(used.iter().all(|word| *word == epoch), "{epoch}: {used:?}");
                        last = epoch;
                    }
                }
            });
            for epoch in 1..=EPOCHS {
                let count = epoch as usize % 8;
                let entries = (0..count).map(|_| [epoch; WORDS]);
                assert_eq!(memory.table().publish(count, entries), epoch);
            }
            done.store(true, Ordering::Release);
        });
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// In all interleavings a copy is whole and of one epoch, or said to be torn.
    #[test]
    fn no_copy_is_a_mixture() {
        loom::model(|| {
            let word = || AtomicU64::new(0);
            let memory = Arc::new((word(), word(), [[word(), word(), word(), word()]]));
            let writer = thread::spawn({
                let memory = memory.clone();
                move || {
                    let table = Table::new(&memory.0, &memory.1, &memory.2);
                    assert_eq!(table.publish(1, [[1; WORDS]].into_iter()), 1);
                }
            });
            let table = Table::new(&memory.0, &memory.1, &memory.2);
            let mut copy = [[0; WORDS]];
            if let Copied::Whole { epoch, count } = table.read(&mut copy) {
                assert_eq!((count, copy), (epoch, [[epoch; WORDS]]));
            }
            writer.join().unwrap();
        });
    }
}
