//! Event counters: `eventfd(2)`.

use alloc::sync::Arc;

use abi::errno::Errno;
use task::Mutex;

use crate::file::{FileOps, OpenFlags, Whence};
use crate::poll::{Events, PollQueue, PollTable};
use crate::{File, Result};

/// The counter's largest value; a write that would exceed it blocks.
const MAX: u64 = u64::MAX - 1;

struct EventFd {
    _counted: census::EventFd,
    count: Mutex<u64>,
    semaphore: bool,
    readable: PollQueue,
    writable: PollQueue,
}

/// A new counter. With `semaphore` a read takes one, otherwise all.
#[must_use]
pub fn eventfd(initial: u32, semaphore: bool, flags: OpenFlags) -> Arc<File> {
    let counter = EventFd {
        _counted: census::EventFd::default(),
        count: Mutex::new(u64::from(initial)),
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

impl FileOps for EventFd {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let to = buf.first_chunk_mut::<8>().ok_or(Errno::EINVAL)?;
        let attempt = || {
            let mut count = self.count.lock();
            let taken = if self.semaphore {
                (*count).min(1)
            } else {
                *count
            };
            *count -= taken;
            (taken != 0).then_some(taken)
        };
        let taken = match attempt() {
            Some(taken) => taken,
            None if file.is_nonblocking() => return Err(Errno::EAGAIN),
            None => self.readable.wait(attempt)?,
        };
        *to = taken.to_ne_bytes();
        self.writable.notify_events(Events::OUT);
        Ok(8)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let add = u64::from_ne_bytes(*buf.first_chunk::<8>().ok_or(Errno::EINVAL)?);
        if add == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let attempt = || {
            let mut count = self.count.lock();
            let sum = count.checked_add(add).filter(|&sum| sum <= MAX)?;
            *count = sum;
            Some(())
        };
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
        let count = *self.count.lock();
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
