//! Streams of bytes between two ports: what sockets of all families that are connected pairs of streams have in common.

use crate::port::{Port, RECEIVING, ROOM, SENDING};
use crate::unix::Rights;
use crate::{Flags, Incoming, Outgoing, Ucred, Wait};
use abi::errno::Errno;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use fs::poll::Events;
use fs::{File, Result};

/// What a call that waits for all of it is given at once.
const WHOLE: usize = 1 << 20;

/// A stretch of a stream that was sent with more than bytes.
pub(crate) struct Mark {
    /// Where it begins and ends, in bytes since the connection was made.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) credentials: Option<Ucred>,
    pub(crate) rights: Option<Rights>,
}

/// Bytes that were sent and not received yet.
#[derive(Default)]
pub struct Stream {
    pub(crate) bytes: VecDeque<u8>,
    /// How many have been received in all.
    pub(crate) taken: u64,
    pub(crate) marks: VecDeque<Mark>,
    /// What counts against the sender's buffer.
    pub(crate) charge: usize,
    /// The socket is gone.
    pub(crate) closed: bool,
}

impl AsMut<Self> for Stream {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Stream {
    /// Notes what a stretch was sent with. Stretches of one sender that follow each other become one.
    fn mark(&mut self, mark: Mark) {
        if mark.rights.is_none()
            && let Some(last) = self.marks.back_mut()
            && last.rights.is_none()
            && last.end == mark.start
            && last.credentials == mark.credentials
        {
            last.end = mark.end;
        } else {
            self.marks.push_back(mark);
        }
    }

    /// Copies the first bytes.
    fn copy_front(&self, buf: &mut [u8]) {
        let (front, back) = self.bytes.as_slices();
        let first = front.len().min(buf.len());
        let rest = buf.len() - first;
        buf[..first].copy_from_slice(&front[..first]);
        buf[first..].copy_from_slice(&back[..rest]);
    }

    /// Takes the first bytes out.
    fn take_front(&mut self, buf: &mut [u8]) {
        self.copy_front(buf);
        if buf.len() == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..buf.len());
        }
        self.taken += buf.len() as u64;
        self.charge -= buf.len();
    }

    fn put(&mut self, data: &[u8]) {
        self.bytes.extend(data);
        self.charge += data.len();
    }
}

/// What receiving a piece of a stream found.
#[derive(Default)]
struct Taken {
    bytes: usize,
    /// Who sent it, from the first byte on.
    credentials: Option<Ucred>,
    rights: Option<Rights>,
    /// What was only looked at.
    seen: Vec<Arc<File>>,
    /// The receiver must not go on: what follows came from somebody else, or after open files.
    stop: bool,
}

/// Takes (or with `peek` looks at) bytes of a stream, up to where the receiver has to stop. With `who` the bytes are all one
/// sender's; `before` is the sender of those this call has already.
fn take_bytes(queue: &mut Stream, buf: &mut [u8], peek: bool, who: bool, before: Option<Ucred>) -> Taken {
    let limit = buf.len().min(queue.bytes.len());
    let mut taken = Taken { credentials: before, bytes: limit, ..Taken::default() };
    if !queue.marks.is_empty() || who {
        let (start, end) = (queue.taken, queue.taken + limit as u64);
        let mut at = start;
        // Whether bytes up to `to` from this sender may be taken too.
        let go_on = |taken: &mut Taken, from: Option<Ucred>| {
            let from = from.unwrap_or(Ucred::UNKNOWN_SENDER);
            !who || *taken.credentials.get_or_insert(from) == from
        };
        for mark in &mut queue.marks {
            if at < mark.start {
                if !go_on(&mut taken, None) {
                    taken.stop = true;
                    break;
                }
                at = end.min(mark.start);
            }
            if at == end {
                break;
            }
            if !go_on(&mut taken, mark.credentials) {
                taken.stop = true;
                break;
            }
            at = end.min(mark.end);
            if mark.rights.is_some() {
                if peek {
                    taken.seen.extend(mark.rights.iter().flat_map(|r| r.files().iter().cloned()));
                } else {
                    taken.rights = mark.rights.take();
                }
                taken.stop = true;
                break;
            }
            if at == end {
                break;
            }
        }
        if !taken.stop && at < end {
            if go_on(&mut taken, None) {
                at = end;
            } else {
                taken.stop = true;
            }
        }
        taken.bytes = (at - start) as usize;
    }
    if peek {
        queue.copy_front(&mut buf[..taken.bytes]);
    } else {
        queue.take_front(&mut buf[..taken.bytes]);
        while queue.marks.front().is_some_and(|mark| mark.end <= queue.taken) {
            queue.marks.pop_front();
        }
    }
    taken
}

/// Both ends of a connection, as one of them sees it.
pub(crate) struct Pair<'a, Q> {
    /// Its own.
    pub(crate) own: &'a Port<Q>,
    /// The other one.
    pub(crate) peer: &'a Port<Q>,
    /// How many bytes may wait at the other end.
    pub(crate) limit: usize,
}

impl<Q: AsMut<Stream>> Pair<'_, Q> {
    /// Sends bytes with what goes with them. How many is less than all of them if it may not, or need not, wait for room.
    ///
    /// # Errors
    /// As [`Wait::at`]; the port's own error; `EPIPE` if nothing can be sent any more.
    pub(crate) fn send(&self, mut message: Outgoing<'_>, credentials: Option<Ucred>, wait: Wait) -> Result<usize> {
        let data = message.data;
        let mut done = 0;
        while done < data.len() {
            let attempt = || {
                if let Some(error) = self.own.take_error() {
                    return Some(Err(error));
                }
                let mut queue = self.peer.queue.lock();
                let queue = queue.as_mut();
                if self.own.is_shut(SENDING) || queue.closed {
                    return Some(Err(Errno::EPIPE));
                }
                let room = self.limit.saturating_sub(queue.charge);
                if room == 0 {
                    return None;
                }
                let n = room.min(data.len() - done);
                let start = queue.taken + queue.bytes.len() as u64;
                queue.put(&data[done..done + n]);
                let rights = message.rights.take();
                if credentials.is_some() || rights.is_some() {
                    queue.mark(Mark { start, end: start + n as u64, credentials, rights });
                }
                Some(Ok(n))
            };
            match wait.at(&self.own.writable, attempt) {
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            self.peer.readable.notify_of(Events::READABLE);
        }
        Ok(done)
    }

    /// Sends bytes with nothing else, if that takes no more than putting them into a queue. `None`: it takes more.
    pub(crate) fn send_plain(&self, data: &[u8]) -> Option<usize> {
        if self.own.failed() || self.own.is_shut(SENDING) {
            return None;
        }
        {
            let mut queue = self.peer.queue.lock();
            let queue = queue.as_mut();
            if queue.closed || self.limit < queue.charge + data.len() {
                return None;
            }
            queue.put(data);
        }
        self.peer.readable.notify_of(Events::READABLE);
        Some(data.len())
    }

    /// Receives bytes that came with nothing else, waiting for the first. `None`: there is more to it.
    ///
    /// # Errors
    /// As [`Wait::at`].
    pub(crate) fn receive_plain(&self, buf: &mut [u8], wait: Wait) -> Result<Option<usize>> {
        let attempt = || {
            let mut queue = self.own.queue.lock();
            let queue = queue.as_mut();
            let n = queue.bytes.len().min(buf.len());
            if n == 0 || !queue.marks.is_empty() {
                let more = !queue.marks.is_empty() || self.own.failed() || self.own.is_shut(RECEIVING);
                return more.then_some(Ok(None));
            }
            queue.take_front(&mut buf[..n]);
            Some(Ok(Some(n)))
        };
        let n = wait.at(&self.own.readable, attempt)?;
        if n.is_some() {
            self.peer.writable.notify_of(ROOM);
        }
        Ok(n)
    }

    /// Receives bytes, and what came with them; with `who`, of one sender.
    ///
    /// # Errors
    /// As [`Wait::at`]; the port's own error.
    pub(crate) fn receive(&self, buf: &mut [u8], flags: Flags, who: bool, wait: Wait) -> Result<Incoming> {
        let peek = flags.contains(Flags::PEEK);
        let least = if flags.contains(Flags::WAITALL) { buf.len() } else { self.own.options.receive_least().min(buf.len()) };
        let mut got = Incoming::default();
        loop {
            let done = got.copied;
            let before = got.credentials;
            let attempt = || {
                let mut queue = self.own.queue.lock();
                if queue.as_mut().bytes.is_empty() {
                    drop(queue);
                    if let Some(error) = self.own.take_error() {
                        return Some(Err(error));
                    }
                    return self.own.is_shut(RECEIVING).then(|| Ok(Taken { stop: true, ..Taken::default() }));
                }
                Some(Ok(take_bytes(queue.as_mut(), &mut buf[done..], peek, who, before)))
            };
            let taken = match wait.at(&self.own.readable, attempt) {
                Ok(taken) => taken,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            };
            if !peek && taken.bytes > 0 {
                self.peer.writable.notify_of(ROOM);
            }
            got.copied += taken.bytes;
            got.credentials = got.credentials.or(taken.credentials);
            let seen = (!taken.seen.is_empty()).then(|| Rights::new(taken.seen));
            got.rights = taken.rights.or(seen);
            if taken.stop || peek || got.copied >= least {
                break;
            }
        }
        got.full = got.copied;
        Ok(got)
    }

    /// As [`Pair::receive`], into memory of its own: at most `limit` bytes, and no more than there are.
    ///
    /// # Errors
    /// Those of [`Pair::receive`].
    pub(crate) fn receive_owned(&self, limit: usize, flags: Flags, who: bool, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        let size = if flags.contains(Flags::WAITALL) {
            WHOLE
        } else {
            let any = || {
                let bytes = self.own.queue.lock().as_mut().bytes.len();
                (bytes > 0 || self.own.failed() || self.own.is_shut(RECEIVING)).then_some(Ok(bytes.max(1)))
            };
            wait.at(&self.own.readable, any)?
        };
        let mut data = vec![0; size.min(limit)];
        let got = self.receive(&mut data, flags, who, wait)?;
        data.truncate(got.copied);
        Ok((data, got))
    }
}
