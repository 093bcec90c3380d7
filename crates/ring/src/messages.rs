//! A ring of 64-byte messages (RainForest's FICM unit, one cache line), one producer and one
//! consumer.

use core::sync::atomic::Ordering;

use abi::msg::Message;
use abi::window::{MessageCell, RingHeader};

/// The sending end.
#[derive(Debug)]
pub struct MessageWriter<'a> {
    header: &'a RingHeader,
    cells: &'a [MessageCell],
    written: u64,
}

impl<'a> MessageWriter<'a> {
    /// The sending end, going on at `position`: 0, or [`Self::position`] of an earlier one.
    ///
    /// # Panics
    /// If there are no cells.
    #[must_use]
    pub fn new(header: &'a RingHeader, cells: &'a [MessageCell], position: u64) -> Self {
        assert!(!cells.is_empty(), "a ring of no cells");
        Self {
            header,
            cells,
            written: position,
        }
    }

    /// Messages sent since the ring was new.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.written
    }

    /// Sends a message; false if the ring is full.
    pub fn send(&mut self, message: &Message) -> bool {
        let used = self
            .written
            .wrapping_sub(self.header.read.load(Ordering::Acquire));
        if used >= self.cells.len() as u64 {
            return false;
        }
        let cell = &self.cells[(self.written % self.cells.len() as u64) as usize];
        for (word, value) in cell.words.iter().zip(message.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.written = self.written.wrapping_add(1);
        self.header.written.store(self.written, Ordering::Release);
        true
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct MessageReader<'a> {
    header: &'a RingHeader,
    cells: &'a [MessageCell],
    read: u64,
}

impl<'a> MessageReader<'a> {
    /// The receiving end of a new ring.
    ///
    /// # Panics
    /// If there are no cells.
    #[must_use]
    pub fn new(header: &'a RingHeader, cells: &'a [MessageCell]) -> Self {
        assert!(!cells.is_empty(), "a ring of no cells");
        Self {
            header,
            cells,
            read: 0,
        }
    }

    /// The next message. Its content is the sender's word and nothing more.
    pub fn receive(&mut self) -> Option<Message> {
        let there = self
            .header
            .written
            .load(Ordering::Acquire)
            .wrapping_sub(self.read);
        if there == 0 {
            return None;
        }
        // A sender that claims more than fits has overwritten its own messages: what is in the cell
        // is as good as any.
        let cell = &self.cells[(self.read % self.cells.len() as u64) as usize];
        let mut words = [0; 8];
        for (value, word) in words.iter_mut().zip(&cell.words) {
            *value = word.load(Ordering::Relaxed);
        }
        self.read = self.read.wrapping_add(1);
        self.header.read.store(self.read, Ordering::Release);
        Some(Message::from_words(words))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn messages_arrive_in_order_and_a_full_ring_refuses() {
        let header = RingHeader::new();
        let cells: Vec<MessageCell> = (0..3).map(|_| MessageCell::new()).collect();
        let mut writer = MessageWriter::new(&header, &cells, 0);
        let mut reader = MessageReader::new(&header, &cells);
        for round in 0..5 {
            for i in 0..3 {
                assert!(writer.send(&Message::new(round, &[i])));
            }
            assert!(!writer.send(&Message::new(9, &[])));
            for i in 0..3 {
                assert_eq!(reader.receive(), Some(Message::new(round, &[i])));
            }
            assert_eq!(reader.receive(), None);
        }
        assert_eq!(writer.position(), 15);
    }

    #[test]
    fn a_writer_goes_on_where_an_earlier_one_was() {
        let header = RingHeader::new();
        let cells: Vec<MessageCell> = (0..2).map(|_| MessageCell::new()).collect();
        let mut reader = MessageReader::new(&header, &cells);
        let mut writer = MessageWriter::new(&header, &cells, 0);
        assert!(writer.send(&Message::new(1, &[10])));
        let mut writer = MessageWriter::new(&header, &cells, writer.position());
        assert!(writer.send(&Message::new(2, &[20, 21])) && !writer.send(&Message::new(3, &[])));
        assert_eq!(reader.receive(), Some(Message::new(1, &[10])));
        assert_eq!(reader.receive(), Some(Message::new(2, &[20, 21])));
        // A reader that claims to have read what was never written leaves no room.
        header.read.store(3, Ordering::Relaxed);
        assert!(!writer.send(&Message::new(4, &[])));
        assert_eq!((reader.receive(), writer.position()), (None, 2));
        for end in [
            std::panic::catch_unwind(|| drop(MessageWriter::new(&RingHeader::new(), &[], 0))),
            std::panic::catch_unwind(|| drop(MessageReader::new(&RingHeader::new(), &[]))),
        ] {
            assert!(end.is_err(), "a ring of no cells");
        }
    }
}
