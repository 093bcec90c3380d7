//! Bytes that came before their turn, and the blocks that tell the peer of them (RFC 2018, section
//! 4; RFC 2883).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::seq::{Position, Seq};

/// Bytes that a run takes beside its own, as counted against the limit.
pub const OVERHEAD: usize = 64;

/// Bytes without a gap, behind a gap.
#[derive(Debug)]
struct Run {
    start: Position,
    bytes: Vec<u8>,
    /// When the run last grew, as a count of arrivals: the newest is told first.
    touched: u64,
}

impl Run {
    fn end(&self) -> Position {
        self.start + self.bytes.len() as u64
    }
}

/// The runs, in order and apart from each other.
#[derive(Debug, Default)]
pub struct Reassembly {
    runs: VecDeque<Run>,
    bytes: usize,
    arrivals: u64,
    /// A stretch that came twice, to be told with the next acknowledgement (RFC 2883, section 4).
    duplicate: Option<(Position, Position)>,
}

impl Reassembly {
    /// Memory that the runs take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes + self.runs.len() * OVERHEAD
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Forgets what has come twice: nobody is to be told.
    pub fn forget_duplicate(&mut self) {
        self.duplicate = None;
    }

    /// Notes that a stretch has come again.
    pub fn note_duplicate(&mut self, start: Position, end: Position) {
        if start < end {
            self.duplicate = Some((start, end));
        }
    }

    /// Keeps bytes that are not next, if they fit below `limit` of memory; if not, they are lost.
    pub fn insert(&mut self, start: Position, bytes: &[u8], limit: usize) {
        let end = start + bytes.len() as u64;
        // The runs that touch the new one or overlap it.
        let first = self.runs.partition_point(|run| run.end() < start);
        let behind = self.runs.partition_point(|run| run.start <= end);
        let touching = self.runs.range(first..behind);
        if let Some(old) = touching
            .clone()
            .find(|run| run.start < end && start < run.end())
        {
            self.duplicate = Some((start.max(old.start), end.min(old.end())));
        }
        if touching
            .clone()
            .any(|run| run.start <= start && end <= run.end())
        {
            // A repetition tells where the peer is, too.
            self.arrivals += 1;
            self.runs[first].touched = self.arrivals;
            return;
        }
        let known: usize = touching.map(|run| run.bytes.len()).sum();
        let (low, high) = if first < behind {
            (
                start.min(self.runs[first].start),
                end.max(self.runs[behind - 1].end()),
            )
        } else {
            (start, end)
        };
        let total = (high - low) as usize;
        if self.memory() + total - known.min(total) + OVERHEAD > limit {
            return;
        }
        self.arrivals += 1;
        if first < behind && self.runs[first].start <= start && first + 1 == behind {
            // The run before it grows: nothing that is there is copied.
            let run = &mut self.runs[first];
            let fresh = &bytes[(run.end() - start) as usize..];
            if run.bytes.try_reserve(fresh.len()).is_ok() {
                run.bytes.extend_from_slice(fresh);
                run.touched = self.arrivals;
                self.bytes += fresh.len();
            }
            return;
        }
        let mut merged = Vec::new();
        if merged.try_reserve_exact(total).is_err() || self.runs.try_reserve(1).is_err() {
            return;
        }
        merged.resize(total, 0);
        let mut lay = |at: Position, part: &[u8]| {
            let place = (at - low) as usize;
            merged[place..place + part.len()].copy_from_slice(part);
        };
        lay(start, bytes);
        // What came first counts.
        for run in self.runs.drain(first..behind) {
            lay(run.start, &run.bytes);
        }
        self.bytes += total - known;
        let run = Run {
            start: low,
            bytes: merged,
            touched: self.arrivals,
        };
        self.runs.insert(first, run);
    }

    /// The bytes that are next if everything before `next` was delivered.
    #[must_use]
    pub fn ready(&self, next: Position) -> Option<&[u8]> {
        let run = self.runs.front()?;
        let known = next.checked_sub(run.start)?;
        run.bytes
            .get(usize::try_from(known).ok()?..)
            .filter(|bytes| !bytes.is_empty())
    }

    /// Drops everything before `next`, which was delivered.
    pub fn advance(&mut self, next: Position) {
        while let Some(run) = self.runs.front() {
            if run.end() > next {
                break;
            }
            self.bytes -= run.bytes.len();
            self.runs.pop_front();
        }
    }

    /// Blocks for the next acknowledgement, at most `room` and, if there is room for one, a
    /// duplicate first; then the run that grew last (RFC 2018, section 4).
    pub fn blocks(&mut self, next: Position, room: usize) -> impl Iterator<Item = (Seq, Seq)> {
        let duplicate = self.duplicate.take();
        let mut told: [Option<(Position, Position)>; 4] = [duplicate, None, None, None];
        let mut count = usize::from(duplicate.is_some());
        let mut older_than = u64::MAX;
        while count < 4 {
            let newest = self
                .runs
                .iter()
                .filter(|run| run.touched < older_than && run.end() > next)
                .max_by_key(|run| run.touched);
            let Some(run) = newest else { break };
            older_than = run.touched;
            told[count] = Some((run.start.max(next), run.end()));
            count += 1;
        }
        told.into_iter()
            .flatten()
            .take(room)
            .map(|(start, end)| (Seq::of(start), Seq::of(end)))
    }

    /// How many [`Self::blocks`] would give.
    pub fn block_count(&self, next: Position, room: usize) -> usize {
        let runs = self.runs.iter().filter(|run| run.end() > next);
        (usize::from(self.duplicate.is_some()) + runs.count()).min(room.min(4))
    }

    /// Drops everything, as when memory is short (RFC 2018, section 8, allows it).
    pub fn clear(&mut self) {
        *self = Self {
            arrivals: self.arrivals,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const BASE: Position = 1 << 32;

    fn byte(at: Position) -> u8 {
        (at * 7 % 251) as u8
    }

    fn bytes(start: Position, end: Position) -> Vec<u8> {
        (start..end).map(byte).collect()
    }

    proptest! {
        /// RFC 9293, section 3.10.7.4: in whatever order pieces come, the stream is the same.
        #[test]
        fn pieces_in_any_order_make_the_stream(
            pieces in proptest::collection::vec((0_u64..400, 1_u64..80), 1..60),
        ) {
            let mut runs = Reassembly::default();
            let mut next = BASE;
            let mut there = [false; 500];
            for (start, length) in pieces {
                let (start, end) = (BASE + start, BASE + start + length);
                there[(start - BASE) as usize..(end - BASE) as usize].fill(true);
                if end > next {
                    let from = start.max(next);
                    if from == next {
                        next = end;
                    } else {
                        runs.insert(from, &bytes(from, end), 1 << 20);
                    }
                }
                runs.advance(next);
                while let Some(ready) = runs.ready(next) {
                    prop_assert_eq!(ready[0], byte(next));
                    next += 1;
                    runs.advance(next);
                }
                let expected = there.iter().position(|there| !there).unwrap() as u64;
                prop_assert_eq!(next, BASE + expected);
                let kept = there[expected as usize..].iter().filter(|there| **there).count();
                prop_assert_eq!(runs.bytes, kept);
                prop_assert!(runs.runs.iter().zip(runs.runs.iter().skip(1)).all(|(a, b)| a.end() < b.start));
            }
        }
    }

    /// RFC 2018, section 4: the first block holds what came last.
    #[test]
    fn the_newest_run_is_told_first() {
        let mut runs = Reassembly::default();
        for start in [10, 30, 50, 20] {
            let start = BASE + start;
            runs.insert(start, &bytes(start, start + 5), 1 << 20);
        }
        let told = |runs: &mut Reassembly, room| -> Vec<u32> {
            runs.blocks(BASE, room).map(|(start, _)| start.0).collect()
        };
        assert_eq!(told(&mut runs, 3), [20, 50, 30]);
        // RFC 2883, section 4: the duplicate goes before, once.
        runs.note_duplicate(BASE + 1, BASE + 3);
        assert_eq!(told(&mut runs, 3), [1, 20, 50]);
        assert_eq!(told(&mut runs, 4), [20, 50, 30, 10]);
    }

    #[test]
    fn memory_is_limited() {
        let mut runs = Reassembly::default();
        for start in 0..1000 {
            let start = BASE + 1 + start * 2;
            runs.insert(start, &bytes(start, start + 1), 1000);
        }
        assert!(runs.memory() <= 1000 && runs.memory() > 800);
        runs.clear();
        assert!(runs.is_empty() && runs.memory() == 0);
    }
}
