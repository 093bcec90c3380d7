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
use kmsg::Line;
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

/// Lines with a number below this are on the console, as on Linux.
static CONSOLE_LEVEL: AtomicU8 = AtomicU8::new(kmsg::DEFAULT_CONSOLE_LEVEL);

/// Registers the back end. The console shows `info`, or what `loglevel=` on the command line says
/// (a name, or a number as on Linux).
pub fn init() {
    // Fails only if it was registered before, which leaves it in place.
    let _ = ::log::set_logger(&BACK_END);
    set_console_level(kmsg::console_level_of_cmdline(role::cmdline()));
}

/// Has the console show lines with a number below `level`. What is at least `info` goes to the
/// record hook all the same; what is less is only made for a console that shows it.
pub fn set_console_level(level: u8) {
    CONSOLE_LEVEL.store(level, Ordering::Relaxed);
    ::log::set_max_level(kmsg::filter_of_console(level).max(LevelFilter::Info));
}

static RECORD_HOOK: Once<fn(&Record<'_>)> = Once::new();

/// Has `hook` called for each line, too, also where nobody may sleep. The first call counts.
pub fn set_record_hook(_: &BootToken, hook: fn(&Record<'_>)) {
    RECORD_HOOK.call_once(|| hook);
}

struct BackEnd;

static BACK_END: BackEnd = BackEnd;

impl ::log::Log for BackEnd {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= ::log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            if kmsg::level_number(record.level()) < CONSOLE_LEVEL.load(Ordering::Relaxed) {
                let level = kmsg::level_name(record.level());
                write_line(format_args!(
                    "{level} {}: {}",
                    record.target(),
                    record.args()
                ));
            }
            if let Some(keep) = RECORD_HOOK.get() {
                keep(record);
            }
        }
    }

    fn flush(&self) {}
}

/// One line, with its time, as a whole. The text is complete before the lock is taken, so
/// formatting may log itself.
fn write_line(text: fmt::Arguments<'_>) {
    let mut line = Line::new(timer::now_ns());
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

/// A line for [`early!`](crate::log::early) and for panics: no lock, no `log` crate.
pub(crate) fn write_unlocked(text: fmt::Arguments<'_>) {
    let mut line = Line::new(timer::now_ns());
    let _ = line.write_fmt(text);
    emit(line.finish());
}

/// Logs one line before [`init`], or from a panic.
macro_rules! early {
    ($($text:tt)*) => { $crate::log::write_unlocked(format_args!($($text)*)) };
}
pub(crate) use early;
