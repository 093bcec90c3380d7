//! An event that an interrupt handler may signal.

use lfmutex::Token;

use crate::Deadline;
use crate::platform::{current_token, unpark};
use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

const NO_THREAD: usize = usize::MAX;

/// "Something happened", for one waiting thread. Signals do not count: any number before a wait are
/// one.
#[derive(Debug)]
pub struct Event {
    is_set: AtomicBool,
    waiter: AtomicUsize,
}

impl Event {
    /// An event that has not happened.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            is_set: AtomicBool::new(false),
            waiter: AtomicUsize::new(NO_THREAD),
        }
    }

    /// Says that it happened. Never sleeps and never allocates: callable from interrupt handlers.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        // The flag before the waiter, as the waiter does it the other way round: one of the two
        // sees the other.
        fence(Ordering::SeqCst);
        let waiter = self.waiter.load(Ordering::Relaxed);
        if waiter != NO_THREAD {
            unpark(Token::from_raw(waiter));
        }
    }

    /// True if it happened since the last time somebody asked.
    pub fn try_wait(&self) -> bool {
        self.is_set.swap(false, Ordering::AcqRel)
    }

    /// Sleeps until it happens. One thread at a time waits.
    pub fn wait(&self) {
        self.wait_until(Deadline::NEVER);
    }

    /// Sleeps until it happens (true) or the clock passes `deadline` (false).
    pub fn wait_until(&self, deadline: Deadline) -> bool {
        if self.try_wait() {
            return true;
        }
        self.waiter
            .store(current_token().into_raw(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut happened = self.try_wait();
        while !happened {
            if deadline == Deadline::NEVER {
                crate::park();
            } else if deadline.has_passed() {
                break;
            } else {
                crate::park_until(deadline);
            }
            happened = self.try_wait();
        }
        self.waiter.store(NO_THREAD, Ordering::Relaxed);
        happened
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn no_signal_is_lost() {
        let events = Arc::new((Event::new(), Event::new()));
        let theirs = events.clone();
        let other = std::thread::spawn(move || {
            for _ in 0..2000 {
                theirs.0.wait();
                theirs.1.set();
            }
        });
        for _ in 0..2000 {
            events.0.set();
            events.1.wait();
        }
        other.join().unwrap();
        assert!(!events.0.wait_until(Deadline::after_ns(1_000_000)));
    }
}
