//! A byte ring whose writer never waits: old bytes are overwritten, and the reader learns how many
//! it lost.

use core::sync::atomic::{AtomicU8, Ordering, fence};

use abi::window::RingHeader;

use crate::bytes::{load_bytes, store_bytes};

/// The writing end.
#[derive(Debug)]
pub struct LogWriter<'a> {
    header: &'a RingHeader,
    area: &'a [AtomicU8],
}

impl<'a> LogWriter<'a> {
    /// The writing end of a log.
    ///
    /// # Panics
    /// If the area is empty.
    #[must_use]
    pub fn new(header: &'a RingHeader, area: &'a [AtomicU8]) -> Self {
        assert!(!area.is_empty(), "a ring of no bytes");
        Self { header, area }
    }

    /// Appends `data`, over the oldest bytes where there is no room. One writer at a time.
    pub fn append(&self, data: &[u8]) {
        // More than the area would overwrite itself.
        for part in data.chunks(self.area.len()) {
            let written = self.header.written.load(Ordering::Relaxed);
            store_bytes(self.area, written, part);
            self.header
                .written
                .store(written.wrapping_add(part.len() as u64), Ordering::Release);
        }
    }
}

/// The reading end; its position is its own.
#[derive(Debug)]
pub struct LogReader<'a> {
    header: &'a RingHeader,
    area: &'a [AtomicU8],
    read: u64,
}

impl<'a> LogReader<'a> {
    /// A reader that begins at `position`: 0, or [`Self::position`] of an earlier one.
    ///
    /// # Panics
    /// If the area is empty.
    #[must_use]
    pub fn new(header: &'a RingHeader, area: &'a [AtomicU8], position: u64) -> Self {
        assert!(!area.is_empty(), "a ring of no bytes");
        Self {
            header,
            area,
            read: position,
        }
    }

    /// Bytes read or lost since the log was new.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Reads what is there and fits; also says how many bytes were overwritten before they could be
    /// read.
    pub fn read(&mut self, data: &mut [u8]) -> (usize, u64) {
        let size = self.area.len() as u64;
        let written = self.header.written.load(Ordering::Acquire);
        let mut lost = 0;
        let mut there = written.wrapping_sub(self.read);
        if there > size {
            lost = there - size;
            self.read = self.read.wrapping_add(lost);
            there = size;
        }
        let count = data.len().min(there as usize);
        load_bytes(self.area, self.read, &mut data[..count]);
        // What the writer overwrote meanwhile is torn: drop it.
        fence(Ordering::Acquire);
        let overtaken = self
            .header
            .written
            .load(Ordering::Relaxed)
            .wrapping_sub(self.read)
            .saturating_sub(size);
        let torn = usize::try_from(overtaken).unwrap_or(usize::MAX).min(count);
        data.copy_within(torn..count, 0);
        self.read = self.read.wrapping_add(count as u64);
        (count - torn, lost + torn as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn keeps_the_newest_and_counts_the_rest() {
        let header = RingHeader::new();
        let area: Vec<AtomicU8> = (0..8).map(|_| AtomicU8::new(0)).collect();
        let writer = LogWriter::new(&header, &area);
        let mut reader = LogReader::new(&header, &area, 0);
        writer.append(b"abc");
        let mut buffer = [0; 16];
        assert_eq!(reader.read(&mut buffer), (3, 0));
        writer.append(b"0123456789");
        assert_eq!(reader.read(&mut buffer), (8, 2));
        assert_eq!(&buffer[..8], b"23456789");
        assert_eq!(reader.read(&mut buffer), (0, 0));
    }

    /// Each written byte is read or lost, once, in any pieces; only what the area had no room for
    /// is lost.
    #[test]
    fn each_byte_is_read_or_lost() {
        let header = RingHeader::new();
        let area: Vec<AtomicU8> = (0..8).map(|_| AtomicU8::new(0)).collect();
        let writer = LogWriter::new(&header, &area);
        let mut reader = LogReader::new(&header, &area, 0);
        let mut buffer = [0; 16];
        writer.append(b"01234567");
        assert_eq!(
            (reader.read(&mut buffer[..3]), reader.position()),
            ((3, 0), 3)
        );
        assert_eq!(&buffer[..3], b"012");
        // Just as much as fits, then one more.
        writer.append(b"89a");
        assert_eq!(reader.read(&mut buffer[..0]), (0, 0));
        writer.append(b"b");
        assert_eq!(
            (reader.read(&mut buffer[..2]), reader.position()),
            ((2, 1), 6)
        );
        assert_eq!(&buffer[..2], b"45");
        // Another one begins where this one is.
        let mut other = LogReader::new(&header, &area, reader.position());
        for reader in [&mut reader, &mut other] {
            assert_eq!((reader.read(&mut buffer), reader.position()), ((6, 0), 12));
            assert_eq!(&buffer[..6], b"6789ab");
        }
        writer.append(b"");
        assert_eq!(reader.read(&mut buffer), (0, 0));
        writer.append(&[b'x'; 100]);
        assert_eq!(
            (reader.read(&mut buffer), reader.position()),
            ((8, 92), 112)
        );
        for end in [
            std::panic::catch_unwind(|| drop(LogWriter::new(&RingHeader::new(), &[]))),
            std::panic::catch_unwind(|| drop(LogReader::new(&RingHeader::new(), &[], 0))),
        ] {
            assert!(end.is_err(), "a log of no bytes");
        }
    }
}
