//! Lines in a buffer of a fixed size: a new one takes the place of the oldest ones. Nothing is
//! allocated after the beginning, so lines can be about anything.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

/// Before each line: the length of its text, its priority, its time in microseconds.
const HEADER: usize = 2 + 4 + 8;
/// Longest text of a line, in bytes; the rest is cut off.
const LINE_MAX: usize = 1000;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Number of lines that came before it.
    pub number: u64,
    /// Facility and level, as `syslog(2)` encodes them.
    pub priority: u32,
    /// Time of the line, in microseconds since the start.
    pub us: u64,
    /// Text of the line, without its end.
    pub text: String,
}

/// The last lines of the kernel log, each with its number.
#[derive(Debug)]
pub struct LogRing {
    bytes: VecDeque<u8>,
    first: u64,
    next: u64,
}

/// Text that is cut off at its end.
struct Text {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let take = text.floor_char_boundary(LINE_MAX - self.length);
        let to = &mut self.bytes[self.length..self.length + take];
        // A line is one line, whatever is written.
        to.iter_mut()
            .zip(text.bytes())
            .for_each(|(to, byte)| *to = if byte < b' ' { b' ' } else { byte });
        self.length += take;
        Ok(())
    }
}

impl LogRing {
    /// For so many bytes, those of headers included; more than the longest line needs.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: VecDeque::with_capacity(bytes.max(HEADER + LINE_MAX)),
            first: 0,
            next: 0,
        }
    }

    /// Adds a line; the oldest make room for it.
    pub fn push(&mut self, priority: u32, us: u64, text: fmt::Arguments<'_>) {
        let mut line = Text {
            bytes: [0; LINE_MAX],
            length: 0,
        };
        // It never fails.
        let _ = line.write_fmt(text);
        while self.bytes.len() + HEADER + line.length > self.bytes.capacity() {
            let oldest = HEADER + self.length_at(0);
            self.bytes.drain(..oldest);
            self.first += 1;
        }
        self.bytes.extend((line.length as u16).to_ne_bytes());
        self.bytes.extend(priority.to_ne_bytes());
        self.bytes.extend(us.to_ne_bytes());
        self.bytes.extend(&line.bytes[..line.length]);
        self.next += 1;
    }

    /// The number of the oldest line.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next line gets.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    fn word<const N: usize>(&self, at: usize) -> [u8; N] {
        core::array::from_fn(|n| self.bytes[at + n])
    }

    fn length_at(&self, at: usize) -> usize {
        usize::from(u16::from_ne_bytes(self.word(at)))
    }

    /// The lines from a number on.
    pub fn from(&self, number: u64) -> impl Iterator<Item = Line> {
        let starts = core::iter::successors(Some(0), |&at| Some(at + HEADER + self.length_at(at)));
        let numbered = (self.first..self.next).zip(starts);
        numbered
            .skip_while(move |(own, _)| *own < number)
            .map(|(number, at)| {
                let (priority, us) = (
                    u32::from_ne_bytes(self.word(at + 2)),
                    u64::from_ne_bytes(self.word(at + 6)),
                );
                let text: Vec<u8> = self
                    .bytes
                    .range(at + HEADER..at + HEADER + self.length_at(at))
                    .copied()
                    .collect();
                Line {
                    number,
                    priority,
                    us,
                    text: String::from_utf8_lossy(&text).into_owned(),
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let mut ring = LogRing::new(0);
        assert_eq!((ring.from(0).count(), ring.next()), (0, 0));
        for n in 0..500u64 {
            ring.push(n as u32 % 8, n, format_args!("line\n{n}"));
            let lines: Vec<Line> = ring.from(0).collect();
            let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
            assert_eq!(numbers, (ring.first()..=n).collect::<Vec<_>>());
            assert!(lines.iter().all(|l| l.text == format!("line {}", l.number)
                && (l.us, l.priority) == (l.number, l.number as u32 % 8)));
        }
        assert!(ring.first() > 0 && ring.next() == 500);
        let capacity = ring.bytes.capacity();
        ring.push(0, 0, format_args!("{}", "\u{e9}".repeat(LINE_MAX)));
        assert_eq!(
            (
                ring.bytes.capacity(),
                ring.from(500).next().unwrap().text.len()
            ),
            (capacity, LINE_MAX)
        );
        assert_eq!(
            (ring.from(499).count(), ring.from(501).count()),
            (if ring.first() == 500 { 1 } else { 2 }, 0)
        );
    }
}
