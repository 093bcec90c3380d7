//! Event counters: `eventfd(2)`.

use alloc::sync::Arc;

use abi::errno::Errno;
use task::sync::{AtomicU64, Ordering};

use crate::file::{FileOps, OpenFlags, Whence};
use crate::poll::{Events, PollQueue, PollTable};
use crate::{File, Result};

/// The counter's largest value; a write that would exceed it blocks.
const MAX: u64 = u64::MAX - 1;

/// A counter: the operations of an `eventfd`.
pub struct EventFd {
    _counted: census::EventFd,
    count: AtomicU64,
    semaphore: bool,
    readable: PollQueue,
    writable: PollQueue,
}

/// A new counter. With `semaphore` a read takes one, otherwise all.
#[must_use]
pub fn eventfd(initial: u32, semaphore: bool, flags: OpenFlags) -> Arc<File> {
    let counter = EventFd {
        _counted: census::EventFd::default(),
        count: AtomicU64::new(u64::from(initial)),
        semaphore,
        readable: PollQueue::new(),
        writable: PollQueue::new(),
    };
    File::anonymous(
        "anon_inode:[eventfd]",
        Arc::new(counter),
        flags | OpenFlags::RDWR,
    )
}

impl EventFd {
    /// Reads the counter without waiting: the bytes that a read gives.
    ///
    /// # Errors
    /// `EAGAIN` if it is zero.
    pub fn try_read(&self) -> Result<[u8; 8]> {
        self.take().ok_or(Errno::EAGAIN)
    }

    /// Takes one or all off the counter, and tells writers; `None` if it is zero.
    fn take(&self) -> Option<[u8; 8]> {
        let rest = |count| if self.semaphore { count - 1 } else { 0 };
        let count = self.update(|count| (count != 0).then(|| rest(count)))?;
        self.writable.notify_events(Events::OUT);
        Some((count - rest(count)).to_ne_bytes())
    }

    /// Changes the counter as `change` says, and returns what it was; `None` if it is not to
    /// change.
    fn update(&self, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut count = self.count.load(Ordering::Acquire);
        loop {
            match self.count.compare_exchange(
                count,
                change(count)?,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(count),
                Err(now) => count = now,
            }
        }
    }
}

impl FileOps for EventFd {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let to = buf.first_chunk_mut::<8>().ok_or(Errno::EINVAL)?;
        *to = match self.take() {
            Some(taken) => taken,
            None if file.is_nonblocking() => return Err(Errno::EAGAIN),
            None => self.readable.wait(|| self.take())?,
        };
        Ok(8)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let add = u64::from_ne_bytes(*buf.first_chunk::<8>().ok_or(Errno::EINVAL)?);
        if add == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let sum = |count: u64| count.checked_add(add).filter(|&sum| sum <= MAX);
        let attempt = || self.update(sum).map(drop);
        match attempt() {
            Some(()) => {}
            None if file.is_nonblocking() => return Err(Errno::EAGAIN),
            None => self.writable.wait(attempt)?,
        }
        self.readable.notify_events(Events::IN);
        Ok(8)
    }

    fn min_transfer(&self) -> usize {
        size_of::<u64>()
    }

    fn keeps_data_on_fault(&self) -> bool {
        false
    }

    fn max_write(&self) -> usize {
        size_of::<u64>()
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait_events(&self.readable, Events::IN);
            table.poll_wait_events(&self.writable, Events::OUT);
        }
        let count = self.count.load(Ordering::Acquire);
        let mut events = Events::empty();
        events.set(Events::IN, count > 0);
        events.set(Events::OUT, count < MAX);
        events
    }

    /// Zero: the position of an eventfd does not move.
    fn seek(&self, _: &File, _: Whence, _: i64) -> Result<u64> {
        Ok(0)
    }
}
