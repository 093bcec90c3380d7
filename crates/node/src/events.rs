//! The list of what has happened to instances (`dev::EVENTS`).
//!
//! It holds the latest events only, in memory that is had at boot: nobody who makes events makes it
//! grow, and nobody who reads them keeps any. A reader that is too slow is told how many it missed.

use alloc::vec::Vec;

use abi::dev::{self, Event};
use abi::errno::Errno;
use fs::poll::{Events, PollQueue, PollTable};
use fs::{File, FileOps, Result};
use guard::timer;
use task::Mutex;
use zerocopy::IntoBytes;

use crate::brief::lock_briefly;
use crate::label::Label;

/// Events that are kept: 48 KiB.
const KEPT: usize = 512;
/// Bytes of an event.
const BYTES: usize = size_of::<Event>();

static LOG: Mutex<EventLog> = Mutex::new(EventLog::new());
/// Notified when an event is added.
static ADDED: PollQueue = PollQueue::new();

/// The latest events.
struct EventLog {
    /// A circle, once it is full.
    events: Vec<Event>,
    /// Number of the last event.
    last: u64,
}

impl EventLog {
    const fn new() -> Self {
        Self {
            events: Vec::new(),
            last: 0,
        }
    }

    /// Adds an event, in place of the oldest one if there is no room, and numbers it.
    fn add(&mut self, mut event: Event) {
        let at = self.last % self.events.capacity().max(1) as u64;
        self.last += 1;
        event.sequence = self.last;
        if let Some(oldest) = self.events.get_mut(at as usize) {
            *oldest = event;
        } else if self.events.len() < self.events.capacity() {
            self.events.push(event);
        }
    }

    /// The event numbered `next`, and the number after it. If that is not kept any more, an event
    /// that says how many are missing before the oldest one.
    fn get(&self, next: &mut u64) -> Option<Event> {
        let oldest = self.last - self.events.len() as u64 + 1;
        if *next > self.last {
            return None;
        }
        if *next < oldest {
            let missing = oldest - *next;
            *next = oldest;
            let mut lost: Event = dev::zeroed();
            (lost.kind, lost.value) = (dev::EVENT_LOST, missing);
            return Some(lost);
        }
        let at = (*next - 1) % self.events.capacity() as u64;
        *next += 1;
        self.events.get(at as usize).copied()
    }
}

/// Has memory for the list. Once, before the first event.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn init() -> Result<()> {
    let room = fallible::with_capacity(KEPT)?;
    LOG.lock().events = room;
    Ok(())
}

/// Adds an event of an instance, with what `value` and `cpus` mean for its kind (`dev::EVENT_*`).
pub(crate) fn add(id: u32, label: Label, kind: u32, value: u64, cpus: u32) {
    let event = Event {
        sequence: 0,
        time_ns: timer::wall_ns(),
        value,
        id,
        kind,
        cpus,
        reserved: 0,
        label: label.0,
    };
    lock_briefly(&LOG).add(event);
    ADDED.notify();
}

/// A reader of the list.
pub(crate) struct EventReader {
    /// Number of the event that is read next.
    next: Mutex<u64>,
    /// Number of the last event that is read; none if it waits for more.
    last: Option<u64>,
}

impl EventReader {
    /// A reader that begins with the oldest event.
    ///
    /// # Errors
    /// `EINVAL`: a flag that there is not.
    pub(crate) fn new(flags: u32) -> Result<Self> {
        let log = lock_briefly(&LOG);
        let last = match flags {
            0 => Some(log.last),
            dev::EVENTS_FOLLOW => None,
            _ => return Err(Errno::EINVAL),
        };
        // What was lost before it came is not missing.
        let next = log.last - log.events.len() as u64 + 1;
        Ok(Self {
            next: Mutex::new(next),
            last,
        })
    }

    /// Copies as many whole events as fit; `None`: there are none yet.
    fn try_read(&self, buf: &mut [u8]) -> Option<usize> {
        let mut next = self.next.lock();
        let mut count = 0;
        for room in buf.chunks_exact_mut(BYTES) {
            if self.last.is_some_and(|last| *next > last) {
                return Some(count);
            }
            let Some(event) = lock_briefly(&LOG).get(&mut next) else {
                break;
            };
            room.copy_from_slice(event.as_bytes());
            count += BYTES;
        }
        (count > 0).then_some(count)
    }
}

impl FileOps for EventReader {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        if buf.len() < BYTES {
            return Err(Errno::EINVAL);
        }
        if file.is_nonblocking() {
            return self.try_read(buf).ok_or(Errno::EAGAIN);
        }
        ADDED.wait(|| self.try_read(buf))
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&ADDED);
        }
        let next = *self.next.lock();
        if self.last.is_some() || next <= lock_briefly(&LOG).last {
            Events::READABLE
        } else {
            Events::empty()
        }
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(room: usize) -> EventLog {
        EventLog {
            events: Vec::with_capacity(room),
            last: 0,
        }
    }

    fn event(value: u64) -> Event {
        let mut event: Event = dev::zeroed();
        event.value = value;
        event
    }

    fn all(log: &EventLog, next: &mut u64) -> Vec<(u32, u64)> {
        core::iter::from_fn(|| log.get(next))
            .map(|event| (event.kind, event.value))
            .collect()
    }

    #[test]
    fn events_are_read_in_order_and_once() {
        let (mut log, mut next) = (log(4), 1);
        assert_eq!(all(&log, &mut next), []);
        (10..13).for_each(|value| log.add(event(value)));
        assert_eq!(all(&log, &mut next), [(0, 10), (0, 11), (0, 12)]);
        assert_eq!(all(&log, &mut next), []);
        log.add(event(13));
        assert_eq!(log.get(&mut next).map(|event| event.sequence), Some(4));
    }

    #[test]
    fn who_is_too_slow_is_told_how_many_it_missed() {
        let (mut log, mut next) = (log(4), 1);
        log.add(event(10));
        assert_eq!(all(&log, &mut next), [(0, 10)]);
        (11..20).for_each(|value| log.add(event(value)));
        assert_eq!(
            all(&log, &mut next),
            [(dev::EVENT_LOST, 5), (0, 16), (0, 17), (0, 18), (0, 19)]
        );
        assert_eq!(next, 11);
    }

    #[test]
    fn a_log_without_memory_counts_only() {
        let (mut log, mut next) = (EventLog::new(), 1);
        log.add(event(10));
        assert_eq!(all(&log, &mut next), [(dev::EVENT_LOST, 1)]);
    }
}
