//! The last bytes of a stream of an instance, kept in the supervisor's memory, and those who read
//! it.
//!
//! Positions count bytes since the stream began. While a reader with *pressure* is attached,
//! nothing it has not read is dropped: the ring behind fills up, and the instance waits. Without
//! one, the oldest bytes go.

use alloc::collections::{BTreeMap, VecDeque};

use ring::Consumer;
use task::Mutex;

/// Number of bytes of a stream that are kept.
pub(crate) const CAPACITY: usize = 256 << 10;

/// Last bytes of an instance's output stream, with its readers.
#[derive(Debug, Default)]
pub(crate) struct StreamLog {
    bytes: VecDeque<u8>,
    /// Position of the first byte kept.
    start: u64,
    /// The stream is over: nothing will be added.
    pub(crate) closed: bool,
    /// Positions of readers with pressure.
    blocking_readers: BTreeMap<u64, u64>,
    next_reader: u64,
}

impl StreamLog {
    /// Position of the oldest byte kept.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Position behind the newest byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Number of bytes that may be added without dropping unread ones of a reader with pressure.
    pub(crate) fn room(&self) -> usize {
        match self.blocking_readers.values().min() {
            None => CAPACITY,
            Some(slowest) => {
                CAPACITY.saturating_sub((self.end() - slowest.min(&self.end())) as usize)
            }
        }
    }

    /// Adds bytes, and drops the oldest beyond the capacity; of those that a reader with pressure
    /// has not read, none.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let unread = self
            .blocking_readers
            .values()
            .min()
            .map_or(u64::MAX, |slowest| slowest.saturating_sub(self.start));
        let excess = self
            .bytes
            .len()
            .saturating_sub(CAPACITY)
            .min(usize::try_from(unread).unwrap_or(usize::MAX));
        self.bytes.drain(..excess);
        self.start += excess as u64;
    }

    /// Copies what is there from `*position` on, or from the oldest byte kept if that is gone, and
    /// moves the position on.
    pub(crate) fn read(&self, position: &mut u64, buf: &mut [u8]) -> usize {
        let from = (*position).max(self.start);
        let offset = (from - self.start) as usize;
        let count = buf.len().min(self.bytes.len().saturating_sub(offset));
        for (to, byte) in buf.iter_mut().zip(self.bytes.iter().skip(offset)) {
            *to = *byte;
        }
        *position = from + count as u64;
        count
    }

    /// Reads like [`Self::read`], and moves a reader with pressure on, if `key` is one's. Also
    /// returns whether the log was full before, so that the ring is to be looked at again.
    pub(crate) fn read_with_backpressure(
        &mut self,
        position: &mut u64,
        key: Option<u64>,
        buf: &mut [u8],
    ) -> (usize, bool) {
        let was_full = self.room() == 0;
        let count = self.read(position, buf);
        if let Some(key) = key {
            self.advance(key, *position);
        }
        (count, count > 0 && was_full)
    }

    /// Attaches a reader with pressure, at `position`.
    pub(crate) fn attach(&mut self, position: u64) -> u64 {
        let key = self.next_reader;
        self.next_reader += 1;
        self.blocking_readers.insert(key, position);
        key
    }

    /// A reader with pressure has read up to `position`.
    pub(crate) fn advance(&mut self, key: u64, position: u64) {
        if let Some(at) = self.blocking_readers.get_mut(&key) {
            *at = position;
        }
    }

    /// Detaches a reader with pressure.
    pub(crate) fn detach(&mut self, key: u64) {
        self.blocking_readers.remove(&key);
    }
}

/// Outcome of draining a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DrainOutcome {
    /// Whether bytes were added to the log.
    pub(crate) grown: bool,
    /// The ring may hold more, and nobody will ring for it.
    pub(crate) more: bool,
    /// The ring was full, and its writer may wait for room.
    pub(crate) made_room: bool,
}

/// Amount that is moved from a ring into a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainExtent {
    /// As far as the log has room. Unless there is more, or no room, the writer rings for what
    /// comes next.
    LogRoom,
    /// All there is: the last time.
    All,
}

/// Moves what is in a ring of `size` bytes into a log; at most as much as the ring holds.
pub(crate) fn drain(
    consumer: &mut Consumer<'_>,
    size: usize,
    log: &Mutex<StreamLog>,
    extent: DrainExtent,
) -> DrainOutcome {
    let mut drained = DrainOutcome::default();
    let mut buf = [0; 4096];
    let mut budget = size;
    while budget > 0 {
        let mut log = log.lock();
        let room = match extent {
            DrainExtent::LogRoom => log.room(),
            DrainExtent::All => budget,
        };
        let count = consumer.pop(&mut buf[..room.min(4096).min(budget)]);
        drained.made_room |= consumer.made_room(count);
        log.push(&buf[..count]);
        drained.grown |= count > 0;
        budget -= count;
        if count == 0 {
            if room > 0 {
                consumer.want_doorbell();
                if !consumer.is_empty() {
                    continue;
                }
            }
            break;
        }
    }
    drained.more = budget == 0;
    drained
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use abi::window::RingHeader;
    use ring::Producer;

    use super::*;

    #[test]
    fn a_reader_that_does_not_read_makes_the_ring_wait_and_not_the_history_grow() {
        let (header, area) = (RingHeader::new(), [const { AtomicU8::new(0) }; 8]);
        let log = Mutex::new(StreamLog::default());
        let key = log.lock().attach(0);
        log.lock().push(&vec![1; CAPACITY - 2]);
        assert_eq!(Producer::new(&header, &area).push(b"12345"), 5);
        let mut consumer = Consumer::resume(&header, &area, 0);
        assert!(drain(&mut consumer, area.len(), &log, DrainExtent::LogRoom).grown);
        assert!(!drain(&mut consumer, area.len(), &log, DrainExtent::LogRoom).grown);
        assert_eq!(log.lock().end(), CAPACITY as u64);
        // What an instance that has ended left is taken in as a whole, which is no more than its
        // ring holds.
        assert!(drain(&mut consumer, area.len(), &log, DrainExtent::All).grown);
        assert_eq!(log.lock().end(), CAPACITY as u64 + 3);
        log.lock().detach(key);
    }

    #[test]
    fn the_newest_are_kept() {
        let mut log = StreamLog::default();
        log.push(&vec![1; CAPACITY - 1]);
        log.push(&[2, 3]);
        assert_eq!((log.start(), log.end()), (1, CAPACITY as u64 + 1));
        let (mut position, mut buf) = (0, [0; 4]);
        assert_eq!((log.read(&mut position, &mut buf), position), (4, 5));
        position = log.end() - 2;
        assert_eq!(log.read(&mut position, &mut buf), 2);
        assert_eq!(&buf[..2], [2, 3]);
        assert_eq!(log.read(&mut position, &mut buf), 0);
        log.push(&vec![7; CAPACITY + 5]);
        assert_eq!(log.end() - log.start(), CAPACITY as u64);
    }

    #[test]
    fn pressure_holds_what_was_not_read() {
        let mut log = StreamLog::default();
        assert_eq!(log.room(), CAPACITY);
        log.push(&[0; 100]);
        let reader = log.attach(log.start());
        assert_eq!(log.room(), CAPACITY - 100);
        let mut position = 0;
        log.read(&mut position, &mut [0; 60]);
        log.advance(reader, position);
        assert_eq!(log.room(), CAPACITY - 40);
        log.push(&[0; CAPACITY]);
        assert_eq!(log.start(), position, "the reader lost something");
        assert_eq!(log.room(), 0);
        log.detach(reader);
        assert_eq!(log.room(), CAPACITY);
        log.push(&[0]);
        assert_eq!(log.end() - log.start(), CAPACITY as u64);
    }
}
