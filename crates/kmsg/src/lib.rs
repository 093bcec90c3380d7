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

/// Number of a level as Linux has it. Those of `trace` are lines below `debug`, which Linux does
/// not have.
#[must_use]
pub const fn level_number(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug => 7,
        Level::Trace => 8,
    }
}

/// Least urgent level of which lines come on a console of `console_level`: those whose number is
/// below it, as on Linux. `Off` if there are none.
#[must_use]
pub fn filter_of_console(console_level: u8) -> LevelFilter {
    let shown = Level::iter().filter(|&level| level_number(level) < console_level);
    shown
        .last()
        .map_or(LevelFilter::Off, |level| level.to_level_filter())
}

/// Console level unless a command line says otherwise: `info` and what is more urgent is shown.
pub const DEFAULT_CONSOLE_LEVEL: u8 = 7;

/// Console level of the last `loglevel=` of a command line: a number as on Linux, or the name of
/// the least urgent level that is shown. The default if there is none, or it is neither.
#[must_use]
pub fn console_level_of_cmdline(cmdline: &str) -> u8 {
    let words = cmdline.split_whitespace();
    let value = words
        .filter_map(|word| word.strip_prefix("loglevel="))
        .next_back();
    let level = |value: &str| {
        let of_name = || Some(level_number(value.parse().ok()?) + 1);
        value.parse().ok().or_else(of_name)
    };
    value.and_then(level).unwrap_or(DEFAULT_CONSOLE_LEVEL)
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
        let level = |value: &str| console_level_of_cmdline(&format!("a=b loglevel={value}"));
        assert_eq!(level("error"), 4);
        assert_eq!(level("debug"), 8);
        assert_eq!(level("3"), 3);
        assert_eq!(level("8"), 8);
        assert_eq!(level("loud"), DEFAULT_CONSOLE_LEVEL);
        assert_eq!(console_level_of_cmdline("quiet"), DEFAULT_CONSOLE_LEVEL);
        assert_eq!(
            console_level_of_cmdline("loglevel=7 loglevel=warn"),
            5,
            "the last one counts"
        );
        assert_eq!(level_name(Level::Warn), "warn");
    }

    #[test]
    fn a_console_shows_what_is_more_urgent_than_its_level() {
        for (console, shown) in [
            (0, LevelFilter::Off),
            (3, LevelFilter::Off),
            (4, LevelFilter::Error),
            (5, LevelFilter::Warn),
            (6, LevelFilter::Warn),
            (7, LevelFilter::Info),
            (8, LevelFilter::Debug),
            (9, LevelFilter::Trace),
            (255, LevelFilter::Trace),
        ] {
            assert_eq!(filter_of_console(console), shown, "{console}");
        }
    }
}
