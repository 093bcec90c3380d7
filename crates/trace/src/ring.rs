//! The ring of a CPU: a bounded queue after D. Vyukov's "Bounded MPMC queue" (1024cores.net), with
//! any number of writers and one reader.
//!
//! Every slot has a *turn*: the position that may be written to it next, or one more once that has
//! been written. A writer that finds the turn of an earlier lap knows that the ring is full; it
//! counts the record as lost and goes on. So a writer never waits, whatever it interrupted, and
//! nobody ever reads half a record.

use alloc::boxed::Box;
use alloc::vec::Vec;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

use crate::record::{Record, WORDS};

struct Slot {
    turn: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A ring of records.
pub struct Ring {
    slots: Box<[Slot]>,
    written: AtomicU64,
    read: AtomicU64,
    lost: AtomicU64,
}

impl Ring {
    /// A ring of `capacity` records, rounded up to a power of two; `None` if memory is short.
    #[must_use]
    pub fn new(capacity: usize) -> Option<Self> {
        let capacity = capacity.max(2).checked_next_power_of_two()?;
        let mut slots = Vec::new();
        slots.try_reserve_exact(capacity).ok()?;
        slots.extend((0..capacity as u64).map(|turn| Slot {
            turn: AtomicU64::new(turn),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }));
        Some(Self {
            slots: slots.into_boxed_slice(),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    fn slot(&self, position: u64) -> &Slot {
        // A power of two.
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    /// Puts a record in; false if there was no room, and it is counted as lost. From anywhere,
    /// interrupt handlers included.
    pub fn push(&self, record: &Record) -> bool {
        let mut position = self.written.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(position);
            let turn = slot.turn.load(Ordering::Acquire);
            if turn < position {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            if turn > position {
                position = self.written.load(Ordering::Relaxed);
                continue;
            }
            match self.written.compare_exchange(
                position,
                position + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    for (to, word) in slot.words.iter().zip(record.to_words()) {
                        to.store(word, Ordering::Relaxed);
                    }
                    slot.turn.store(position + 1, Ordering::Release);
                    return true;
                }
                Err(now) => position = now,
            }
        }
    }

    /// Takes the oldest record out. One reader at a time: two of them could see the same record
    /// twice.
    pub fn pop(&self) -> Option<Record> {
        loop {
            let position = self.read.load(Ordering::Relaxed);
            let slot = self.slot(position);
            if slot.turn.load(Ordering::Acquire) != position + 1 {
                return None;
            }
            let words = core::array::from_fn(|word| slot.words[word].load(Ordering::Relaxed));
            slot.turn
                .store(position + self.slots.len() as u64, Ordering::Release);
            self.read.store(position + 1, Ordering::Relaxed);
            // The kernel's own ring holds nothing that is no record.
            if let Some(record) = Record::from_words(words) {
                return Some(record);
            }
        }
    }

    /// Takes the number of records that were lost since the last call.
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ring")
            .field("capacity", &self.slots.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;
    use crate::{Kind, Note};

    fn record(n: u64) -> Record {
        Record::new(n, 0, 0, Kind::Steal, Note::two(n, !n))
    }

    proptest! {
        /// The ring is a bounded queue: records come out in order, and those that do not fit are
        /// counted.
        #[test]
        fn is_a_bounded_queue(steps in prop::collection::vec(any::<bool>(), 1..200)) {
            let ring = Ring::new(8).unwrap();
            let (mut model, mut lost) = (VecDeque::new(), 0);
            for (n, push) in (0u64..).zip(steps) {
                if push {
                    let there_is_room = model.len() < 8;
                    prop_assert_eq!(ring.push(&record(n)), there_is_room);
                    if there_is_room { model.push_back(n) } else { lost += 1 }
                } else {
                    prop_assert_eq!(ring.pop().map(|r| r.a), model.pop_front());
                }
            }
            prop_assert_eq!(ring.take_lost(), lost);
            prop_assert_eq!(ring.take_lost(), 0);
        }
    }

    #[test]
    fn it_holds_as_many_as_it_says_lap_after_lap() {
        for (wanted, capacity) in [(0, 2), (1, 2), (2, 2), (3, 4), (5, 8), (8, 8)] {
            let ring = Ring::new(wanted).unwrap();
            for lap in 0..5 {
                let pushed = (0..20)
                    .take_while(|n| ring.push(&record(lap * 100 + n)))
                    .count();
                assert_eq!((pushed, ring.take_lost()), (capacity, 1), "{wanted}");
                let popped: Vec<u64> = core::iter::from_fn(|| ring.pop().map(|r| r.a)).collect();
                assert!(
                    popped
                        .into_iter()
                        .eq((0..capacity as u64).map(|n| lap * 100 + n))
                );
            }
        }
        assert!(Ring::new(usize::MAX).is_none() && Ring::new(1 << 62).is_none());
    }

    #[test]
    fn many_writers_and_a_reader() {
        const EACH: u64 = 50_000;
        let ring = Arc::new(Ring::new(64).unwrap());
        let done = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let ring = ring.clone();
                std::thread::spawn(move || {
                    (0..EACH)
                        .filter(|n| ring.push(&record(writer << 32 | n)))
                        .count()
                })
            })
            .collect();
        let reader = {
            let (ring, done) = (ring.clone(), done.clone());
            std::thread::spawn(move || {
                let (mut seen, mut last) = (0, [None; 3]);
                loop {
                    let finished = done.load(std::sync::atomic::Ordering::Acquire);
                    while let Some(r) = ring.pop() {
                        assert_eq!(r.b, !r.a, "half a record");
                        let (writer, n) = ((r.a >> 32) as usize, r.a & 0xffff_ffff);
                        assert!(last[writer] < Some(n), "out of order");
                        last[writer] = Some(n);
                        seen += 1;
                    }
                    if finished {
                        return seen;
                    }
                    std::thread::yield_now();
                }
            })
        };
        let written: usize = writers.into_iter().map(|w| w.join().unwrap()).sum();
        done.store(true, std::sync::atomic::Ordering::Release);
        assert_eq!(reader.join().unwrap(), written);
        assert_eq!(ring.take_lost(), 3 * EACH - written as u64);
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::{Kind, Note};

    /// Two writers (a thread and what interrupts it) and a reader, in a ring of two: each record is
    /// read whole, once, or counted as lost.
    #[test]
    fn each_record_is_read_once_or_lost() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(2).unwrap());
            let record = |n: u64| Record::new(n, 0, 0, Kind::Steal, Note::two(n, !n));
            let writers: Vec<_> = [[1, 2].as_slice(), [3].as_slice()]
                .into_iter()
                .map(|numbers| {
                    let ring = ring.clone();
                    thread::spawn(move || {
                        numbers.iter().filter(|n| ring.push(&record(**n))).count()
                    })
                })
                .collect();
            let mut seen: Vec<u64> = Vec::new();
            let mut look = |ring: &Ring| {
                while let Some(r) = ring.pop() {
                    assert_eq!(r.b, !r.a, "half a record");
                    assert!(!seen.contains(&r.a), "read twice");
                    seen.push(r.a);
                }
                seen.len()
            };
            look(&ring);
            let written: usize = writers.into_iter().map(|w| w.join().unwrap()).sum();
            assert_eq!(look(&ring), written);
            assert_eq!(ring.take_lost(), 3 - written as u64);
        });
    }
}
