//! What was sent and is not acknowledged, segment by segment (RFC 6675, section 3, with the times
//! that RFC 8985 needs).

use alloc::collections::VecDeque;

use crate::Nanos;
use crate::rack::Rack;
use crate::rtt::RttEstimator;
use crate::seq::{Position, Seq};

/// Segments out of order after which the first is taken for lost (DupThresh, RFC 6675, section 2).
pub const DUPLICATE_THRESHOLD: u32 = 3;
/// Segments that may be outstanding: what the list may take of memory.
const MOST_RECORDS: usize = 1 << 16;

/// Records of the shortest list that has any (as `alloc` makes it).
const LEAST_RECORDS: usize = 4;
/// Records for which memory is kept when nothing is outstanding.
const KEPT_RECORDS: usize = 256;

/// A segment that is outstanding.
#[derive(Clone, Debug)]
pub struct Record {
    /// Position of its first number.
    pub start: Position,
    /// Position behind its last.
    pub end: Position,
    /// When it was sent last.
    pub sent: Nanos,
    /// Sent more than once.
    pub retransmitted: bool,
    /// The peer says that it has it.
    sacked: bool,
    /// Taken for lost, and not sent again yet.
    lost: bool,
}

impl Record {
    fn length(&self) -> u64 {
        self.end - self.start
    }

    fn in_flight(&self) -> bool {
        !self.sacked && !self.lost
    }
}

/// The part of the outstanding that an acknowledgement has delivered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivery {
    /// Numbers that are delivered and were not before.
    pub bytes: u64,
    /// Segments that are.
    pub segments: u64,
    /// Time since a segment was sent that was sent once.
    pub rtt: Option<Nanos>,
    /// Something that was sent twice is delivered: what was sent once may have waited for it.
    pub repeated: bool,
    /// The peer reports that something came twice (RFC 2883).
    pub duplicate: Option<(Position, Position)>,
}

/// Facts by which an acknowledgement is judged.
pub struct Context<'a> {
    /// The time.
    pub now: Nanos,
    /// The sender's clock when the segment was sent that is echoed, as a time.
    pub echo: Option<Nanos>,
    /// The estimate of the round trip.
    pub rtt: &'a RttEstimator,
}

/// Outstanding segments, in order.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    records: VecDeque<Record>,
    in_flight: u64,
    /// Number of segments the peer has out of order.
    sacked: u32,
    /// Number of those that are taken for lost.
    lost: u32,
    /// Behind this no outstanding segment was sent twice.
    retransmitted_to: Position,
    rack: Rack,
}

impl Scoreboard {
    /// Nothing is outstanding.
    #[must_use]
    pub fn new() -> Self {
        Self {
            records: VecDeque::new(),
            in_flight: 0,
            sacked: 0,
            lost: 0,
            retransmitted_to: 0,
            rack: Rack::new(),
        }
    }

    /// Whether nothing is outstanding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Numbers that are thought to be under way (the pipe of RFC 6675).
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Number of segments outstanding, of those the peer has, and of those taken for lost.
    #[must_use]
    pub fn counts(&self) -> (usize, u32, u32) {
        (self.records.len(), self.sacked, self.lost)
    }

    /// Number of outstanding segments that were sent again and are under way.
    #[must_use]
    pub fn repeated(&self) -> usize {
        let again = |record: &&Record| record.retransmitted && record.in_flight();
        self.records.iter().filter(again).count()
    }

    /// The first outstanding segment.
    #[must_use]
    pub fn first(&self) -> Option<&Record> {
        self.records.front()
    }

    /// The last outstanding segment that the peer does not have.
    #[must_use]
    pub fn last_missing(&self) -> Option<usize> {
        self.records.iter().rposition(|record| !record.sacked)
    }

    /// Whether so many more can be noted.
    #[must_use]
    pub fn has_room(&mut self, more: usize) -> bool {
        self.records.len() + more <= MOST_RECORDS && self.records.try_reserve(more).is_ok()
    }

    /// Memory that the records take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
    }

    /// Memory that so many records more take beyond that: the list doubles at least.
    #[must_use]
    pub fn growth(&self, more: usize) -> usize {
        let (needed, there) = (self.records.len() + more, self.records.capacity());
        if needed <= there {
            return 0;
        }
        (needed.max(2 * there).max(LEAST_RECORDS) - there) * size_of::<Record>()
    }

    /// Gives back the memory of a long list once nothing is outstanding.
    pub fn shrink(&mut self) {
        if self.records.is_empty() && self.records.capacity() > KEPT_RECORDS {
            self.records = VecDeque::new();
        }
    }

    /// Notes a segment that is sent for the first time, for which there is room.
    pub fn push(&mut self, start: Position, end: Position, now: Nanos) {
        self.in_flight += end - start;
        self.records.push_back(Record {
            start,
            end,
            sent: now,
            retransmitted: false,
            sacked: false,
            lost: false,
        });
    }

    /// Takes a record's length out of the counts.
    fn forget(&mut self, index: usize) {
        let record = &self.records[index];
        if record.in_flight() {
            self.in_flight -= record.length();
        }
        self.sacked -= u32::from(record.sacked);
        self.lost -= u32::from(record.lost);
    }

    /// Takes one of the records for delivered.
    fn deliver(&mut self, index: usize, context: &Context<'_>, delivery: &mut Delivery) {
        let record = &self.records[index];
        if record.sacked {
            return;
        }
        delivery.bytes += record.length();
        delivery.segments += 1;
        delivery.repeated |= record.retransmitted;
        if !record.retransmitted {
            // The newest measures.
            delivery.rtt = Some(context.now.saturating_sub(record.sent));
        }
        let older = context.echo.is_some_and(|echo| echo < record.sent);
        self.rack
            .delivered(context.now, record, older, context.rtt.least());
    }

    /// Takes everything before `una` for delivered.
    pub fn acknowledge(&mut self, una: Position, context: &Context<'_>, delivery: &mut Delivery) {
        while let Some(first) = self.records.front() {
            if first.end > una {
                if first.start < una {
                    let part = una - first.start;
                    if !first.sacked {
                        delivery.bytes += part;
                    }
                    if first.in_flight() {
                        self.in_flight -= part;
                    }
                    self.records[0].start = una;
                }
                break;
            }
            self.deliver(0, context, delivery);
            self.forget(0);
            self.records.pop_front();
        }
    }

    /// Takes over the blocks of a SACK option (RFC 6675, section 5: Update). Those outside of what
    /// is outstanding are ignored, save a duplicate in front (RFC 2883, section 4).
    pub fn select(
        &mut self,
        blocks: &[(Seq, Seq)],
        una: Position,
        nxt: Position,
        context: &Context<'_>,
        delivery: &mut Delivery,
    ) {
        let near = |(left, right): (Seq, Seq)| (left.near(una), right.near(una));
        for (index, &block) in blocks.iter().enumerate() {
            let (left, right) = near(block);
            if left >= right || right > nxt {
                continue;
            }
            if index == 0 {
                let inside = blocks.get(1).is_some_and(|&second| {
                    let (from, to) = near(second);
                    from <= left && right <= to
                });
                if right <= una || inside {
                    delivery.duplicate = Some((left, right));
                    continue;
                }
            }
            let from = self.records.partition_point(|record| record.start < left);
            let to = self.records.partition_point(|record| record.end <= right);
            for place in from..to {
                if !self.records[place].sacked {
                    self.deliver(place, context, delivery);
                    self.forget(place);
                    let record = &mut self.records[place];
                    (record.sacked, record.lost) = (true, false);
                    self.sacked += 1;
                }
            }
        }
        if delivery.duplicate.is_some() {
            self.rack.duplicate(una, nxt);
        }
    }

    fn lose(&mut self, index: usize) {
        if self.records[index].in_flight() {
            self.in_flight -= self.records[index].length();
            self.records[index].lost = true;
            self.lost += 1;
        }
    }

    /// Takes for lost what RACK says is (RFC 8985, section 6.2, step 5). Returns when it is to be
    /// asked again.
    pub fn detect(&mut self, now: Nanos, in_recovery: bool, rtt: &RttEstimator) -> Option<Nanos> {
        let eager = in_recovery || self.sacked >= DUPLICATE_THRESHOLD;
        let window = self
            .rack
            .reordering_window(eager, rtt.least(), rtt.smoothed());
        let mut again: Option<Nanos> = None;
        for index in 0..self.records.len() {
            let record = &self.records[index];
            match self.rack.lost_at(record, window) {
                None => {
                    if record.start >= self.retransmitted_to && !record.retransmitted {
                        // All behind it were sent later.
                        break;
                    }
                }
                Some(at) if record.in_flight() => {
                    if at <= now {
                        self.lose(index);
                    } else {
                        again = Some(again.map_or(at, |other| other.min(at)));
                    }
                }
                Some(_) => {}
            }
        }
        again
    }

    /// Takes the first segment for lost (RFC 6582, section 3.2).
    pub fn lose_first(&mut self) {
        if !self.records.is_empty() {
            self.lose(0);
        }
    }

    /// Takes all for lost that the peer has not, because the time is out (RFC 6298, section 5). If
    /// the peer says that it has the first, it has thrown away what it had (RFC 2018, section 8):
    /// all are.
    pub fn lose_all(&mut self) {
        if self.records.front().is_some_and(|first| first.sacked) {
            for record in &mut self.records {
                if record.sacked {
                    record.sacked = false;
                    self.in_flight += record.length();
                }
            }
            self.sacked = 0;
        }
        for index in 0..self.records.len() {
            self.lose(index);
        }
    }

    /// Takes all that is missing and longer than `most` for lost: the path has become smaller.
    pub fn lose_longer(&mut self, most: u64) {
        for index in 0..self.records.len() {
            if self.records[index].length() > most {
                self.lose(index);
            }
        }
    }

    /// The first segment that is taken for lost.
    #[must_use]
    pub fn next_lost(&self) -> Option<usize> {
        if self.lost == 0 {
            return None;
        }
        self.records.iter().position(|record| record.lost)
    }

    /// Notes that a record is sent again, of it at most `most` numbers. Returns what of it. What is
    /// left is a record of its own, or, if there is no memory for one, waits for the next time-out.
    pub fn retransmit(&mut self, index: usize, most: u64, now: Nanos) -> (Position, Position) {
        if self.records[index].length() > most && self.has_room(1) {
            let record = &self.records[index];
            let rest = Record {
                start: record.start + most,
                ..record.clone()
            };
            self.sacked += u32::from(rest.sacked);
            self.lost += u32::from(rest.lost);
            self.records[index].end = rest.start;
            self.records.insert(index + 1, rest);
        }
        let record = &mut self.records[index];
        if record.lost {
            record.lost = false;
            self.lost -= 1;
            self.in_flight += record.end - record.start;
        }
        record.sent = now;
        record.retransmitted = true;
        self.retransmitted_to = self.retransmitted_to.max(record.end);
        (record.start, record.end.min(record.start + most))
    }

    /// Whether segments were seen to be reordered.
    #[must_use]
    pub fn reordering_seen(&self) -> bool {
        self.rack.reordering_seen()
    }

    /// The reordering window is judged anew after a recovery.
    pub fn recovered(&mut self) {
        self.rack.recovered();
    }

    /// Compares the counts with the records.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let count = |f: fn(&Record) -> bool| self.records.iter().filter(|record| f(record)).count();
        let flight: u64 = self
            .records
            .iter()
            .filter(|record| record.in_flight())
            .map(Record::length)
            .sum();
        flight == self.in_flight
            && count(|record| record.sacked) == self.sacked as usize
            && count(|record| record.lost) == self.lost as usize
            && self.records.iter().all(|record| record.start < record.end)
            && self
                .records
                .iter()
                .zip(self.records.iter().skip(1))
                .all(|(a, b)| a.end == b.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    const BASE: Position = 1 << 32;

    fn board(segments: u64) -> Scoreboard {
        let mut board = Scoreboard::new();
        for index in 0..segments {
            assert!(board.has_room(1));
            board.push(
                BASE + index * 100,
                BASE + index * 100 + 100,
                index * MILLISECOND,
            );
        }
        board
    }

    fn block(from: u64, to: u64) -> (Seq, Seq) {
        (Seq::of(BASE + from * 100), Seq::of(BASE + to * 100))
    }

    fn known(rtt: Nanos) -> RttEstimator {
        let mut estimator = RttEstimator::new(0);
        estimator.sample(0, rtt);
        estimator
    }

    /// RFC 8985, section 6.2, step 5, and RFC 6675, section 5 (three segments behind a gap).
    #[test]
    fn three_segments_behind_a_gap_lose_it() {
        let mut board = board(5);
        let rtt = known(40 * MILLISECOND);
        let select = |to, board: &mut Scoreboard| {
            let mut delivery = Delivery::default();
            let context = Context {
                now: 42 * MILLISECOND,
                echo: None,
                rtt: &rtt,
            };
            board.select(&[block(1, to)], BASE, BASE + 500, &context, &mut delivery);
            assert!(board.is_consistent());
            delivery.bytes
        };
        assert_eq!(select(3, &mut board), 200);
        let again = board.detect(42 * MILLISECOND, false, &rtt);
        assert_eq!((board.next_lost(), board.in_flight()), (None, 300));
        // A quarter of the least round trip later it would be.
        assert_eq!(again, Some(40 * MILLISECOND + 10 * MILLISECOND));
        assert_eq!(select(4, &mut board), 100);
        assert_eq!(board.detect(43 * MILLISECOND, false, &rtt), None);
        assert_eq!((board.next_lost(), board.in_flight()), (Some(0), 100));
        assert_eq!(board.retransmit(0, 60, 43), (BASE, BASE + 60));
        assert!(board.is_consistent());
        assert_eq!((board.next_lost(), board.in_flight()), (Some(1), 160));
    }

    /// RFC 2883, section 4: a first block that is acknowledged already, or inside the second.
    #[test]
    fn duplicates_are_told_apart() {
        let mut board = board(5);
        let rtt = known(MILLISECOND);
        let mut told = |una: u64, blocks: &[(Seq, Seq)]| {
            let mut delivery = Delivery::default();
            let context = Context {
                now: 0,
                echo: None,
                rtt: &rtt,
            };
            board.acknowledge(BASE + una * 100, &context, &mut delivery);
            board.select(
                blocks,
                BASE + una * 100,
                BASE + 500,
                &context,
                &mut delivery,
            );
            assert!(board.is_consistent());
            delivery.duplicate.is_some()
        };
        assert!(!told(1, &[block(2, 3)]));
        assert!(told(1, &[block(0, 1), block(2, 3)]));
        assert!(told(1, &[block(2, 3), block(2, 4)]));
        assert!(!told(1, &[block(4, 5), block(2, 3)]));
        // Blocks beyond what was sent, or backward, are nobody's.
        assert!(!told(1, &[block(4, 9), block(3, 2)]));
    }

    /// RFC 2018, section 8: what the peer said it has may be gone.
    #[test]
    fn after_a_time_out_a_first_segment_that_was_selected_is_sent_again() {
        let mut board = board(3);
        let rtt = known(MILLISECOND);
        let context = Context {
            now: 0,
            echo: None,
            rtt: &rtt,
        };
        board.select(
            &[block(0, 2)],
            BASE,
            BASE + 300,
            &context,
            &mut Delivery::default(),
        );
        board.lose_all();
        assert_eq!((board.counts(), board.in_flight()), ((3, 0, 3), 0));
        assert!(board.is_consistent());
    }
}
