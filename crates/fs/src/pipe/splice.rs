//! Moving bytes between a pipe and something else without a program's buffer: what `splice(2)`,
//! `tee(2)` and `vmsplice(2)` are made of.

use alloc::sync::Arc;

use abi::errno::Errno;

use super::{Pipe, PipeEnd};
use crate::Result;
use crate::file::Blocking;
use crate::poll::Events;

impl Pipe {
    /// Waits until there is something to read, and looks at the front of it with `look`. `None`:
    /// there will never be.
    fn peek<R>(
        &self,
        blocking: Blocking,
        mut look: impl FnMut((&[u8], &[u8])) -> R,
    ) -> Result<Option<R>> {
        let mut attempt = || {
            let state = self.state.lock();
            if !state.data.is_empty() {
                return Some(Ok(Some(look(state.data.as_slices()))));
            }
            if state.writers == 0 {
                Some(Ok(None))
            } else {
                blocking.would_block()
            }
        };
        match attempt() {
            Some(result) => result,
            None => self.readable.wait(attempt)?,
        }
    }

    /// Puts back what was read and could not be passed on. The pipe may hold more than its capacity
    /// for a time.
    pub(super) fn put_back(&self, bytes: &[u8]) {
        {
            let mut state = self.state.lock();
            for &byte in bytes.iter().rev() {
                state.data.push_front(byte);
            }
        }
        self.readable.notify_events(Events::READABLE);
    }

    /// Waits for room, and keeps up to `max` bytes of it for the caller.
    fn reserve(&self, max: usize, blocking: Blocking) -> Result<usize> {
        let attempt = || {
            let mut state = self.state.lock();
            if state.readers == 0 {
                return Some(Err(Errno::EPIPE));
            }
            match state.room().min(max) {
                0 => blocking.would_block(),
                room => Some(state.grow(room).map(|()| {
                    state.reserved += room;
                    room
                })),
            }
        };
        match attempt() {
            Some(result) => result,
            None => self.writable.wait(attempt)?,
        }
    }
}

impl PipeEnd {
    /// Whether both are ends of one pipe.
    #[must_use]
    pub fn is_of_same_pipe(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Takes what is in the pipe, at most `max` bytes, and passes it to `put`, which says how much
    /// of it is gone; the rest is put back. 0: the pipe is empty and has no writers. Readers that
    /// read meanwhile may get later bytes first.
    ///
    /// # Errors
    /// `EAGAIN` for [`Blocking::Fail`], `ERESTARTSYS`, and what `put` says.
    pub fn drain(
        &self,
        max: usize,
        blocking: Blocking,
        put: impl FnOnce(&[u8]) -> Result<usize>,
    ) -> Result<usize> {
        let mut buf = fallible::zeroed(max.min(self.capacity()))?;
        let n = self.pipe.read(&mut buf, blocking)?;
        if n == 0 {
            return Ok(0);
        }
        let result = put(&buf[..n]);
        let taken = *result.as_ref().unwrap_or(&0);
        if taken < n {
            self.pipe.put_back(&buf[taken..n]);
        }
        result
    }

    /// Waits for room in the pipe and has `get` fill it, at most `max` bytes. The room is the
    /// caller's until then, so nothing that `get` brings is lost.
    ///
    /// # Errors
    /// `EPIPE` without readers, `EAGAIN` for [`Blocking::Fail`], `ERESTARTSYS`, and what `get`
    /// says.
    pub fn fill(
        &self,
        max: usize,
        blocking: Blocking,
        get: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let room = self.pipe.reserve(max, blocking)?;
        let mut buf = fallible::zeroed(room);
        let mut result = buf
            .as_mut()
            .map_err(|&mut error| error)
            .and_then(|buf| get(buf));
        {
            let mut state = self.pipe.state.lock();
            state.reserved -= room;
            if let (Ok(buf), Ok(n @ 1..)) = (&buf, result) {
                if state.readers > 0 {
                    // Its place was kept.
                    state.data.extend(&buf[..n]);
                } else {
                    result = Err(Errno::EPIPE);
                }
            }
        }
        match result {
            Ok(n) if n == room => {}
            _ => self.pipe.writable.notify_events(Events::WRITABLE),
        }
        if result.is_ok_and(|n| n > 0) {
            self.pipe.readable.notify_events(Events::READABLE);
        }
        result
    }

    /// Moves at most `max` bytes into another pipe. 0: this one is empty and has no writers.
    ///
    /// # Errors
    /// As [`PipeEnd::drain`] and [`PipeEnd::fill`].
    pub fn move_to(&self, to: &Self, max: usize, blocking: Blocking) -> Result<usize> {
        match self.pipe.peek(blocking, |_| ())? {
            None => Ok(0),
            Some(()) => to.fill(max, blocking, |buf| self.pipe.read(buf, blocking)),
        }
    }

    /// Copies at most `max` bytes into another pipe; they stay in this one. 0: this one is empty
    /// and has no writers.
    ///
    /// # Errors
    /// As [`PipeEnd::drain`] and [`PipeEnd::fill`].
    pub fn copy_to(&self, to: &Self, max: usize, blocking: Blocking) -> Result<usize> {
        if self.pipe.peek(blocking, |_| ())?.is_none() {
            return Ok(0);
        }
        to.fill(max, blocking, |buf| {
            let copied = self.pipe.peek(blocking, |(front, back)| {
                let first = front.len().min(buf.len());
                buf[..first].copy_from_slice(&front[..first]);
                let second = back.len().min(buf.len() - first);
                buf[first..first + second].copy_from_slice(&back[..second]);
                first + second
            });
            copied.map(Option::unwrap_or_default)
        })
    }
}
