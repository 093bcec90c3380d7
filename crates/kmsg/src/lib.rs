//! Lines of the kernel log: their text, and the level that the command line asks for. Nothing here
//! touches a device; the guard sends the lines.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

use core::fmt::{self, Write};

use log::{Level, LevelFilter};

/// Longest line with its end, in bytes; the rest is cut off.
const LINE_BYTES: usize = 512;

/// Text of one line, on the stack: a line is written also where no memory can be allocated.
pub struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Line {
    /// Begins a line with the time since boot, in nanoseconds, as `[   12.345678] `.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        let mut line = Self {
            bytes: [0; LINE_BYTES],
            len: 0,
        };
        let us = now_ns / 1000;
        // Writing cuts, and never fails.
        let _ = write!(line, "[{:5}.{:06}] ", us / 1_000_000, us % 1_000_000);
        line
    }

    /// Returns the line with its end, without control characters in between: a program's file name
    /// in a message cannot fake a line.
    pub fn finish(&mut self) -> &[u8] {
        for byte in &mut self.bytes[..self.len] {
            if *byte < b' ' {
                *byte = b' ';
            }
        }
        self.bytes[self.len] = b'\n';
        &self.bytes[..=self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte stays free for the end of the line.
        let room = LINE_BYTES - 1 - self.len;
        let take = text.floor_char_boundary(room);
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}

/// Name of a level, as lines show it.
#[must_use]
pub const fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

/// Level of the last `loglevel=` of a command line: a name, or a number from 0 to 7 as on Linux.
/// `None` if there is none, or it is neither.
#[must_use]
pub fn level_of_cmdline(cmdline: &str) -> Option<LevelFilter> {
    let value = cmdline
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("loglevel="))
        .next_back()?;
    match value.parse::<u8>() {
        Ok(0..=3) => Some(LevelFilter::Error),
        Ok(4) => Some(LevelFilter::Warn),
        Ok(5 | 6) => Some(LevelFilter::Info),
        Ok(7) => Some(LevelFilter::Debug),
        Ok(_) => Some(LevelFilter::Trace),
        Err(_) => value.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_with_the_time() {
        let mut line = Line::new(12_345_678_901);
        line.write_str("x").unwrap();
        assert_eq!(line.finish(), b"[   12.345678] x\n");
    }

    #[test]
    fn lines_are_cut_and_cleaned() {
        let mut line = Line::new(0);
        write!(line, "a\nb\x1b{}", "ü".repeat(600)).unwrap();
        let bytes = line.finish();
        assert!((LINE_BYTES - 1..=LINE_BYTES).contains(&bytes.len()));
        assert!(bytes.starts_with(b"[    0.000000] a b ") && bytes.ends_with(b"\n"));
        assert!(core::str::from_utf8(bytes).is_ok());
    }

    #[test]
    fn levels_are_names_and_numbers() {
        let level = |value: &str| level_of_cmdline(&format!("a=b loglevel={value}"));
        assert_eq!(level("debug"), Some(LevelFilter::Debug));
        assert_eq!(level("3"), Some(LevelFilter::Error));
        assert_eq!(level("4"), Some(LevelFilter::Warn));
        assert_eq!(level("6"), Some(LevelFilter::Info));
        assert_eq!(level("7"), Some(LevelFilter::Debug));
        assert_eq!(level("8"), Some(LevelFilter::Trace));
        assert_eq!(level("loud"), None);
        assert_eq!(level_of_cmdline("quiet"), None);
        assert_eq!(
            level_of_cmdline("loglevel=7 loglevel=warn"),
            Some(LevelFilter::Warn),
            "the last one counts"
        );
        assert_eq!(level_name(Level::Warn), "warn");
    }
}
