//! Kernel log: the back end of the `log` crate.
//!
//! The supervisor writes to the first serial port, an instance to the log ring of its window, where
//! the supervisor finds the last lines whatever becomes of the instance. Lines look like
//! `[   12.345678] level target: text` and are never mixed.
//!
//! Interrupt handlers do not log: a line from one, or from a closed section while another CPU is
//! writing, is dropped and counted. `early!` works before anything else does.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ::log::{LevelFilter, Metadata, Record};
use lfmutex::{Mutex, Once};

use crate::arch::{port, timer};
use crate::{BootToken, cpu, role};

const SINK_NONE: u8 = 0;
const SINK_COM1: u8 = 1;
const SINK_RING: u8 = 2;

static SINK: AtomicU8 = AtomicU8::new(SINK_NONE);
/// Keeps lines whole.
static LINE: Mutex<()> = Mutex::new(());
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Longest line, in bytes; the rest is cut off.
const LINE_BYTES: usize = 512;
const COM1: u16 = 0x3f8;
const LINE_STATUS: u16 = COM1 + 5;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
const FIFO_BYTES: usize = 16;

/// Sends the log to the first serial port from here on (the supervisor's first call).
pub(crate) fn use_com1() {
    /// Interrupts off; divisor latch, 115200 baud, 8N1; FIFO on and cleared; ready.
    const SET_UP: [(u16, u8); 7] = [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)];
    for (offset, value) in SET_UP {
        // SAFETY: the port is the first 16550's, which the guard keeps for the log.
        unsafe { port::outb(COM1 + offset, value) };
    }
    SINK.store(SINK_COM1, Ordering::Release);
}

/// Sends the log to the instance window's ring from here on (an instance's first call).
pub(crate) fn use_ring() {
    SINK.store(SINK_RING, Ordering::Release);
}

/// Registers the back end. The level is `info`, or what `loglevel=` on the command line says (a
/// name, or 0 to 7 as in Linux).
pub fn init() {
    let level = role::cmdline()
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("loglevel="))
        .next_back();
    let level = level.and_then(parse_level).unwrap_or(LevelFilter::Info);
    // Fails only if it was registered before, which leaves it in place.
    let _ = ::log::set_logger(&BACK_END);
    ::log::set_max_level(level);
}

fn parse_level(text: &str) -> Option<LevelFilter> {
    match text.parse::<u8>() {
        Ok(0..=3) => Some(LevelFilter::Error),
        Ok(4) => Some(LevelFilter::Warn),
        Ok(5 | 6) => Some(LevelFilter::Info),
        Ok(7) => Some(LevelFilter::Debug),
        Ok(_) => Some(LevelFilter::Trace),
        Err(_) => text.parse().ok(),
    }
}

static KEEPER: Once<fn(&Record<'_>)> = Once::new();

/// Has `keeper` called for each line, too, also where nobody may sleep. The first call counts.
pub fn keep(_: &BootToken, keeper: fn(&Record<'_>)) {
    KEEPER.call_once(|| keeper);
}

struct BackEnd;

static BACK_END: BackEnd = BackEnd;

impl ::log::Log for BackEnd {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= ::log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                ::log::Level::Error => "error",
                ::log::Level::Warn => "warn",
                ::log::Level::Info => "info",
                ::log::Level::Debug => "debug",
                ::log::Level::Trace => "trace",
            };
            write_line(format_args!(
                "{level} {}: {}",
                record.target(),
                record.args()
            ));
            if let Some(keep) = KEEPER.get() {
                keep(record);
            }
        }
    }

    fn flush(&self) {}
}

/// One line, with its time, as a whole. The text is complete before the lock is taken, so
/// formatting may log itself.
fn write_line(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    line.stamp();
    let dropped = DROPPED.swap(0, Ordering::Relaxed);
    if dropped != 0 {
        let _ = write!(line, "({dropped} lines lost) ");
    }
    let _ = line.write_fmt(text);
    let line = line.finish();
    if cpu::irqs_enabled() {
        let _whole = LINE.lock();
        emit(line);
    } else if let Some(_whole) = LINE.try_lock() {
        // Without interrupts nobody may sleep: early boot, where nothing contends, or a closed
        // section.
        emit(line);
    } else {
        DROPPED.fetch_add(1 + dropped, Ordering::Relaxed);
    }
}

/// Puts bytes where the log goes, without any lock.
fn emit(bytes: &[u8]) {
    match SINK.load(Ordering::Acquire) {
        SINK_COM1 => emit_com1(bytes),
        SINK_RING => {
            if let Some(window) = role::window() {
                // Only the kernel that owns the window writes the position, and this is its one
                // writer.
                ring::LogWriter::new(&window.klog, &window.klog_area).append(bytes);
            }
        }
        _ => {}
    }
}

fn emit_com1(bytes: &[u8]) {
    // About 0.1 s: a transmitter that is stuck for longer does not hold up the machine, its bytes
    // are lost.
    const LIMIT_TICKS: u64 = 1 << 28;
    for chunk in bytes.chunks(FIFO_BYTES) {
        // SAFETY: the port is the first 16550's, which the guard keeps for the log.
        timer::poll_ticks(
            LIMIT_TICKS,
            || unsafe { port::inb(LINE_STATUS) } & TRANSMITTER_EMPTY != 0,
        );
        for &byte in chunk {
            // SAFETY: as above.
            unsafe { port::outb(COM1, byte) };
        }
    }
}

/// Text of one line.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Line {
    const fn new() -> Self {
        Self {
            bytes: [0; LINE_BYTES],
            length: 0,
        }
    }

    fn stamp(&mut self) {
        let us = timer::now_ns() / 1000;
        let _ = write!(self, "[{:5}.{:06}] ", us / 1_000_000, us % 1_000_000);
    }

    /// The line with its end, without control characters in between: a program's file name in a
    /// message cannot fake a line.
    fn finish(&mut self) -> &[u8] {
        for byte in &mut self.bytes[..self.length] {
            if *byte < b' ' {
                *byte = b' ';
            }
        }
        self.bytes[self.length] = b'\n';
        &self.bytes[..=self.length]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte stays free for the end of the line.
        let room = LINE_BYTES - 1 - self.length;
        let mut take = text.len().min(room);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.length..self.length + take].copy_from_slice(&text.as_bytes()[..take]);
        self.length += take;
        Ok(())
    }
}

/// A line for [`early!`](crate::log::early) and for panics: no lock, no `log` crate.
pub(crate) fn write_unlocked(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    line.stamp();
    let _ = line.write_fmt(text);
    emit(line.finish());
}

/// Logs one line before [`init`], or from a panic.
macro_rules! early {
    ($($text:tt)*) => { $crate::log::write_unlocked(format_args!($($text)*)) };
}
pub(crate) use early;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_cleaned() {
        let mut line = Line::new();
        let _ = write!(line, "a\nb\x1b{}", "ü".repeat(600));
        let bytes = line.finish();
        assert!((LINE_BYTES - 1..=LINE_BYTES).contains(&bytes.len()));
        assert!(bytes.starts_with(b"a b ") && bytes.ends_with(b"\n"));
        assert!(core::str::from_utf8(bytes).is_ok());
    }

    #[test]
    fn levels_as_names_and_numbers() {
        assert_eq!(parse_level("debug"), Some(LevelFilter::Debug));
        assert_eq!(parse_level("4"), Some(LevelFilter::Warn));
        assert_eq!(parse_level("loud"), None);
    }
}
