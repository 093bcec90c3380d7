//! A byte ring with one producer and one consumer, in memory that both sides can write.
//!
//! The positions count bytes since the beginning and never wrap in practice (2^64 bytes); a
//! position is taken modulo the area's size to find its byte. Each side keeps its own position in
//! private memory and only publishes it: what the peer does to the shared words can make data
//! wrong, but never an access out of bounds or a length that is a lie.

use core::sync::atomic::{AtomicU8, Ordering, fence};

use abi::window::RingHeader;

use crate::sync::point;

/// Copies into the area from position `at` on.
pub(crate) fn store_bytes(area: &[AtomicU8], at: u64, data: &[u8]) {
    let start = (at % area.len() as u64) as usize;
    let (first, second) = data.split_at(data.len().min(area.len() - start));
    for (cell, byte) in area[start..]
        .iter()
        .zip(first)
        .chain(area.iter().zip(second))
    {
        cell.store(*byte, Ordering::Relaxed);
    }
}

/// Copies out of the area from position `at` on.
pub(crate) fn load_bytes(area: &[AtomicU8], at: u64, data: &mut [u8]) {
    let start = (at % area.len() as u64) as usize;
    let split = data.len().min(area.len() - start);
    let (first, second) = data.split_at_mut(split);
    for (byte, cell) in first
        .iter_mut()
        .zip(&area[start..])
        .chain(second.iter_mut().zip(area))
    {
        *byte = cell.load(Ordering::Relaxed);
    }
}

/// The writing end of a byte ring; [`Consumer`] is the other one.
///
/// ```
/// use std::sync::atomic::AtomicU8;
///
/// // What both sides share: for an instance, in its window.
/// let header = abi::window::RingHeader::new();
/// let area = [const { AtomicU8::new(0) }; 8];
///
/// let (mut producer, mut consumer) =
///     (ring::Producer::new(&header, &area), ring::Consumer::new(&header, &area));
/// assert_eq!(producer.push(b"ten bytes!"), 8);
/// let mut bytes = [0; 3];
/// assert_eq!((consumer.pop(&mut bytes), &bytes), (3, b"ten"));
/// assert_eq!(producer.push(b"s!"), 2);
/// producer.close();
/// assert!(!consumer.is_at_end()); // seven bytes are left
/// ```
#[derive(Debug)]
pub struct Producer<'a> {
    header: &'a RingHeader,
    area: &'a [AtomicU8],
    written: u64,
}

impl<'a> Producer<'a> {
    /// The writing end of a new ring.
    ///
    /// # Panics
    /// If the area is empty.
    #[must_use]
    pub fn new(header: &'a RingHeader, area: &'a [AtomicU8]) -> Self {
        Self::resume(header, area, 0)
    }

    /// The writing end of a ring, going on at [`Self::position`] of an earlier one. The position in
    /// the ring itself is the peer's to spoil, and not believed.
    ///
    /// # Panics
    /// If the area is empty.
    #[must_use]
    pub fn resume(header: &'a RingHeader, area: &'a [AtomicU8], position: u64) -> Self {
        assert!(!area.is_empty(), "a ring of no bytes");
        Self {
            header,
            area,
            written: position,
        }
    }

    /// Bytes pushed since the ring was new.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.written
    }

    /// Bytes that can be pushed now. A consumer that claims nonsense is treated as one that has
    /// read nothing.
    #[must_use]
    pub fn free(&self) -> usize {
        point("look at what was read");
        let used = self
            .written
            .wrapping_sub(self.header.read.load(Ordering::Acquire));
        self.area.len()
            - usize::try_from(used)
                .unwrap_or(usize::MAX)
                .min(self.area.len())
    }

    /// Pushes what fits, and says how much that was. Look once more at [`Self::free`] before
    /// sleeping.
    pub fn push(&mut self, data: &[u8]) -> usize {
        let free = self.free();
        let data = &data[..data.len().min(free)];
        store_bytes(self.area, self.written, data);
        self.written = self.written.wrapping_add(data.len() as u64);
        point("publish what was written");
        self.header.written.store(self.written, Ordering::Release);
        if data.len() == free {
            // Pairs with the fence in `Consumer::made_room`.
            fence(Ordering::SeqCst);
        }
        data.len()
    }

    /// Says that nothing will follow.
    pub fn close(&self) {
        self.header.closed.store(1, Ordering::Release);
    }

    /// True if the consumer sleeps and wants a doorbell; takes the wish back.
    #[must_use]
    pub fn take_wanted(&self) -> bool {
        point("take the wish for a doorbell");
        self.header.waiting.swap(0, Ordering::SeqCst) != 0
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer<'a> {
    header: &'a RingHeader,
    area: &'a [AtomicU8],
    read: u64,
}

impl<'a> Consumer<'a> {
    /// The reading end of a new ring.
    ///
    /// # Panics
    /// If the area is empty.
    #[must_use]
    pub fn new(header: &'a RingHeader, area: &'a [AtomicU8]) -> Self {
        Self::resume(header, area, 0)
    }

    /// The reading end of a ring, going on at [`Self::position`] of an earlier one.
    ///
    /// # Panics
    /// If the area is empty.
    #[must_use]
    pub fn resume(header: &'a RingHeader, area: &'a [AtomicU8], position: u64) -> Self {
        assert!(!area.is_empty(), "a ring of no bytes");
        Self {
            header,
            area,
            read: position,
        }
    }

    /// Bytes popped since the ring was new.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Asked after popping `count` bytes: true if the ring may have been full until then, so that
    /// the producer may sleep, and wants to hear of it. (To ask before would be too early: the
    /// producer may fill the ring and sleep while bytes are copied out of it.)
    #[must_use]
    pub fn made_room(&self, count: usize) -> bool {
        // Here: `read` is published, then `written` is looked at. The producer: `written` is
        // published, then `read` is looked at. At least one sees what the other did.
        point("look for a full ring");
        fence(Ordering::SeqCst);
        let there = self
            .header
            .written
            .load(Ordering::Acquire)
            .wrapping_sub(self.read)
            .saturating_add(count as u64);
        count > 0 && there >= self.area.len() as u64
    }

    /// Bytes that can be popped now: never more than the area holds, whatever the producer claims.
    #[must_use]
    pub fn len(&self) -> usize {
        point("look at what was written");
        let there = self
            .header
            .written
            .load(Ordering::Acquire)
            .wrapping_sub(self.read);
        usize::try_from(there)
            .unwrap_or(usize::MAX)
            .min(self.area.len())
    }

    /// True if nothing can be popped now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pops what is there and fits, and says how much that was.
    pub fn pop(&mut self, data: &mut [u8]) -> usize {
        let count = data.len().min(self.len());
        load_bytes(self.area, self.read, &mut data[..count]);
        self.read = self.read.wrapping_add(count as u64);
        point("publish what was read");
        self.header.read.store(self.read, Ordering::Release);
        count
    }

    /// True if the producer said that nothing will follow and everything is read.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.header.closed.load(Ordering::Acquire) != 0 && self.is_empty()
    }

    /// Asks for a doorbell at the next push. Look once more at [`Self::len`] before sleeping.
    pub fn want_doorbell(&self) {
        point("want a doorbell");
        self.header.waiting.store(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn area(len: usize) -> Vec<AtomicU8> {
        (0..len).map(|_| AtomicU8::new(0)).collect()
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(size in 1usize..40, chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..50), 0usize..50), 0..60)) {
            let (header, area) = (RingHeader::new(), area(size));
            let mut producer = Producer::new(&header, &area);
            let mut consumer = Consumer::new(&header, &area);
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            for (data, take) in chunks {
                let n = producer.push(&data);
                sent.extend_from_slice(&data[..n]);
                let mut buffer = std::vec![0; take];
                let n = consumer.pop(&mut buffer);
                received.extend_from_slice(&buffer[..n]);
                prop_assert_eq!(&sent[..received.len()], &received[..]);
                prop_assert_eq!(sent.len() - received.len(), consumer.len());
            }
        }

        #[test]
        fn a_lying_peer_breaks_nothing(written in any::<u64>(), read in any::<u64>()) {
            let (header, area) = (RingHeader::new(), area(16));
            let mut producer = Producer::new(&header, &area);
            let mut consumer = Consumer::new(&header, &area);
            header.written.store(written, Ordering::Relaxed);
            header.read.store(read, Ordering::Relaxed);
            prop_assert!(consumer.len() <= 16 && producer.free() <= 16);
            let mut buffer = [0; 64];
            prop_assert!(consumer.pop(&mut buffer) <= 16);
            prop_assert!(producer.push(&buffer) <= 16);
        }
    }

    #[test]
    fn a_producer_that_sleeps_is_woken() {
        const TOTAL: usize = 200_000;
        let (header, area) = (RingHeader::new(), area(256));
        let (doorbell, rung) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (header, area) = (&header, &area);
            scope.spawn(move || {
                let mut producer = Producer::new(header, area);
                let mut left = TOTAL;
                while left > 0 {
                    left -= producer.push(&[7; 300][..left.min(300)]);
                    while left > 0 && producer.free() == 0 {
                        rung.recv_timeout(std::time::Duration::from_secs(60))
                            .expect("the consumer rings when there is room");
                    }
                }
            });
            let mut consumer = Consumer::new(header, area);
            let (mut received, mut buffer) = (0, [0; 200]);
            while received < TOTAL {
                let count = consumer.pop(&mut buffer);
                received += count;
                if consumer.made_room(count) {
                    // A producer that has sent all does not listen any more.
                    let _ = doorbell.send(());
                }
            }
        });
    }

    #[test]
    fn the_end_is_seen_after_the_last_byte() {
        let (header, area) = (RingHeader::new(), area(4));
        let mut producer = Producer::new(&header, &area);
        let mut consumer = Consumer::new(&header, &area);
        assert_eq!(producer.push(b"abcdef"), 4);
        producer.close();
        assert!(!consumer.is_at_end());
        let mut buffer = [0; 8];
        assert_eq!(consumer.pop(&mut buffer), 4);
        assert!(consumer.is_at_end());
    }

    #[test]
    fn room_is_told_exactly_and_nonsense_is_no_room() {
        let (header, area) = (RingHeader::new(), area(8));
        let mut producer = Producer::new(&header, &area);
        let mut consumer = Consumer::new(&header, &area);
        assert_eq!(
            (producer.free(), consumer.len(), consumer.is_empty()),
            (8, 0, true)
        );
        assert_eq!(producer.push(b"abcde"), 5);
        assert_eq!(
            (producer.free(), consumer.len(), consumer.is_empty()),
            (3, 5, false)
        );
        assert_eq!((producer.push(b"fgh"), producer.push(b"i")), (3, 0));
        let mut buffer = [0; 3];
        assert_eq!((consumer.pop(&mut buffer), &buffer), (3, b"abc"));
        assert_eq!(
            (producer.free(), producer.position(), consumer.position()),
            (3, 8, 3)
        );
        // A consumer that has read more than there is, or less than it must have, leaves no room.
        for read in [9, u64::MAX] {
            header.read.store(read, Ordering::Relaxed);
            assert_eq!((producer.free(), producer.push(b"x")), (0, 0));
        }
    }

    #[test]
    fn an_end_goes_on_where_an_earlier_one_was() {
        let (header, area) = (RingHeader::new(), area(4));
        let mut buffer = [0; 4];
        let mut producer = Producer::new(&header, &area);
        producer.push(b"abc");
        let mut consumer = Consumer::new(&header, &area);
        consumer.pop(&mut buffer[..1]);
        let mut producer = Producer::resume(&header, &area, producer.position());
        let mut consumer = Consumer::resume(&header, &area, consumer.position());
        assert_eq!((producer.free(), consumer.len()), (2, 2));
        assert_eq!(producer.push(b"de"), 2);
        assert_eq!((consumer.pop(&mut buffer), &buffer), (4, b"bcde"));
        for end in [
            std::panic::catch_unwind(|| drop(Producer::new(&RingHeader::new(), &[]))),
            std::panic::catch_unwind(|| drop(Consumer::new(&RingHeader::new(), &[]))),
        ] {
            assert!(end.is_err(), "a ring of no bytes");
        }
    }

    /// The producer is told of room if the ring was full before these bytes were popped, and only
    /// then.
    #[test]
    fn a_producer_is_told_of_room_when_it_had_none() {
        let (header, area) = (RingHeader::new(), area(4));
        let mut producer = Producer::new(&header, &area);
        let mut consumer = Consumer::new(&header, &area);
        let mut buffer = [0; 4];
        producer.push(b"abcd");
        assert!(!consumer.made_room(0), "nothing was popped");
        let mut pop = |count: usize| {
            assert_eq!(consumer.pop(&mut buffer[..count]), count);
            consumer.made_room(count)
        };
        assert!(pop(1));
        assert!(!pop(1), "it was not full");
        producer.push(b"ef");
        assert!(pop(4));
        producer.push(b"ghi");
        assert!(!pop(3), "one less than full");
    }

    #[test]
    fn a_doorbell_is_wanted_once() {
        let (header, area) = (RingHeader::new(), area(4));
        let (producer, consumer) = (Producer::new(&header, &area), Consumer::new(&header, &area));
        assert!(!producer.take_wanted());
        consumer.want_doorbell();
        assert!(producer.take_wanted() && !producer.take_wanted());
        // An end that is not said is none, however empty the ring is.
        assert!(!consumer.is_at_end());
        producer.close();
        assert!(consumer.is_at_end());
    }
}
