//! The log of this kernel: its lines, and how far `syslog(2)` has read them. Every part of the
//! personality may add to it.

use ::task::Mutex;
use abi::errno::Errno;
use fs::poll::{Events, PollQueue};

use super::log_ring::LogRing;

/// The lines, with the places of `syslog(2)` among them.
pub struct Log {
    /// The lines.
    pub ring: LogRing,
    /// Number of the line that `syslog(2)` reads next.
    pub unread: u64,
    /// Number of the first line that was not cleared.
    pub uncleared: u64,
}

static LOG: Mutex<Option<Log>> = Mutex::new(None);
/// Notified when there is a new line.
pub static LOG_WAIT: PollQueue = PollQueue::new();

/// Keeps the log from now on, in a buffer of so many bytes.
pub fn init(bytes: usize) {
    *LOG.lock() = Some(Log {
        ring: LogRing::new(bytes),
        unread: 0,
        uncleared: 0,
    });
}

/// Adds a line to the log, and only there: not to the console.
pub fn add(priority: u32, text: core::fmt::Arguments<'_>) {
    let us = ::task::now_ns() / 1000;
    if let Some(log) = &mut *LOG.lock() {
        log.ring.push(priority, us, text);
    }
    LOG_WAIT.notify_events(Events::READABLE);
}

/// Runs a function on the log.
///
/// # Errors
/// `ENXIO` before the first process, when there is none yet.
pub fn with<R>(work: impl FnOnce(&mut Log) -> R) -> Result<R, Errno> {
    LOG.lock().as_mut().map(work).ok_or(Errno::ENXIO)
}
