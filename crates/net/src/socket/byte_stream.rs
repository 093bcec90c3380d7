//! Streams of bytes between two endpoints: what sockets of all families that are connected pairs of
//! streams have in common.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::errno::Errno;
use fallible::TryExtend;
use fs::Result;
use fs::poll::Events;

use super::credentials::Ucred;
use super::endpoint::{Endpoint, RCV_SHUTDOWN, SEND_SHUTDOWN};
use super::memory::BufferMemory;
use super::message::{MsgFlags, OutgoingMessage, ReceivedMessage, WaitPolicy};
use super::scm::{PeekedRights, ScmRights};

/// The buffer that a `MSG_WAITALL` read is given at once.
const WAITALL_CHUNK: usize = 1 << 20;

/// Bytes of the sender's buffer that a stretch takes up besides its own.
const SEGMENT_OVERHEAD: usize = 256;

/// A stretch of a stream that was sent with more than bytes.
pub(crate) struct ScmSegment {
    /// The stretch's begin and end, in bytes since the connection was made.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) credentials: Option<Ucred>,
    pub(crate) rights: Option<ScmRights>,
}

/// The last byte of what was sent with `MSG_OOB`. It is in the stream, too, where receiving stops
/// before it and then goes on behind it.
#[derive(Clone, Copy)]
pub(crate) struct UrgentByte {
    /// The byte's position, counted since the connection was made.
    position: u64,
    /// Whether the byte has been received by itself.
    read: bool,
}

/// Bytes that were sent and not received yet.
#[derive(Default)]
pub struct ByteStream {
    pub(crate) bytes: VecDeque<u8>,
    /// The count of bytes received in all.
    pub(crate) read_offset: u64,
    pub(crate) scm_segments: VecDeque<ScmSegment>,
    /// The byte that was sent as urgent last, unless what follows it has been received.
    pub(crate) urgent: Option<UrgentByte>,
    /// The bytes that count against the sender's buffer.
    pub(crate) charged_bytes: usize,
    /// The memory for them.
    pub(crate) memory: BufferMemory,
    /// The socket is gone.
    pub(crate) closed: bool,
}

impl AsMut<Self> for ByteStream {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl ByteStream {
    /// Notes what a stretch was sent with, for which there is room. Stretches of one sender that
    /// follow each other become one.
    fn add_scm_segment(&mut self, mark: ScmSegment) {
        if mark.rights.is_none()
            && let Some(last) = self.scm_segments.back_mut()
            && last.rights.is_none()
            && last.end == mark.start
            && last.credentials == mark.credentials
        {
            last.end = mark.end;
        } else {
            self.scm_segments.push_back(mark);
            self.charged_bytes += SEGMENT_OVERHEAD;
        }
    }

    /// Copies the first bytes behind so many.
    fn copy_front(&self, hole: usize, buf: &mut [u8]) {
        let (front, back) = self.bytes.as_slices();
        let (front, back) = if hole < front.len() {
            (&front[hole..], back)
        } else {
            (&back[hole - front.len()..], &[][..])
        };
        let first = front.len().min(buf.len());
        let rest = buf.len() - first;
        buf[..first].copy_from_slice(&front[..first]);
        buf[first..].copy_from_slice(&back[..rest]);
    }

    /// Copies bytes behind the first `offset`, as many as there are. Returns how many.
    pub(crate) fn peek(&self, offset: usize, buf: &mut [u8]) -> usize {
        let count = self.bytes.len().saturating_sub(offset).min(buf.len());
        if count > 0 {
            self.copy_front(offset, &mut buf[..count]);
        }
        count
    }

    /// Takes the first bytes out.
    fn read_front(&mut self, buf: &mut [u8]) {
        self.copy_front(0, buf);
        self.release(buf.len());
    }

    /// Takes the first bytes out, to the end of a list that has room for them.
    fn move_front(&mut self, to: &mut Vec<u8>, count: usize) {
        let (front, back) = self.bytes.as_slices();
        let first = front.len().min(count);
        to.extend_from_slice(&front[..first]);
        to.extend_from_slice(&back[..count - first]);
        self.release(count);
    }

    /// Drops the first bytes, which there must be.
    fn release(&mut self, bytes: usize) {
        if bytes == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..bytes);
        }
        self.read_offset += bytes as u64;
        self.charged_bytes -= bytes;
        self.memory.trim(self.charged_bytes);
    }

    /// Drops the first bytes, as many as there are, of which the peer has said that it has them.
    pub(crate) fn release_acknowledged(&mut self, bytes: usize) {
        self.release(bytes.min(self.bytes.len()));
        self.forget_passed_urgent();
    }

    /// Forgets an urgent byte that is no longer in the stream.
    fn forget_passed_urgent(&mut self) {
        self.urgent = self
            .urgent
            .filter(|urgent| urgent.position >= self.read_offset);
    }

    /// How many of so many bytes there is memory for, by the limits of the protocol.
    #[inline]
    pub(crate) fn cover(&mut self, more: usize) -> usize {
        self.memory.cover(self.charged_bytes, more)
    }

    /// Puts bytes behind the others, for which [`Self::cover`] has found memory.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS`.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<()> {
        if self.bytes.capacity() - self.bytes.len() < data.len() {
            self.append_slow(data)?;
        } else {
            self.bytes.extend(data);
        }
        self.charged_bytes += data.len();
        Ok(())
    }

    /// Puts bytes behind the others where the buffer must grow.
    #[inline(never)]
    fn append_slow(&mut self, data: &[u8]) -> Result<()> {
        if !vm::has_kernel_room() {
            return Err(Errno::ENOBUFS);
        }
        self.bytes.try_extend(data)
    }

    /// The byte at a position is urgent, which may be still to come, unless that one is known or
    /// was passed. One that the receiver stands at and has received is not in its way any longer.
    /// Returns whether that is news.
    pub(crate) fn mark_urgent(&mut self, position: u64, inline: bool) -> bool {
        let is_known = self
            .urgent
            .is_some_and(|urgent| urgent.position >= position);
        if is_known || position < self.read_offset {
            return false;
        }
        if self.urgent_skip(inline) > 0 && self.urgent.is_some_and(|urgent| urgent.read) {
            self.skip_urgent();
        }
        self.urgent = Some(UrgentByte {
            position,
            read: false,
        });
        true
    }

    /// The number of bytes up to the urgent one, since the connection was made.
    pub(crate) fn urgent_end(&self) -> Option<u64> {
        self.urgent.map(|urgent| urgent.position + 1)
    }

    /// The urgent byte, if it has come.
    fn urgent_byte(&self) -> Option<u8> {
        let distance = self.urgent?.position.checked_sub(self.read_offset)?;
        self.bytes.get(usize::try_from(distance).ok()?).copied()
    }

    /// Whether the next byte is, or was, an urgent one.
    pub(crate) fn at_mark(&self) -> bool {
        self.urgent
            .is_some_and(|urgent| urgent.position == self.read_offset)
    }

    /// Whether an urgent byte waits to be received.
    pub(crate) fn has_urgent(&self) -> bool {
        self.urgent.is_some_and(|urgent| !urgent.read) && self.urgent_byte().is_some()
    }

    /// The number of bytes at the front that are not received with the others, because they are
    /// urgent and that is not `inline`.
    pub(crate) fn urgent_skip(&self, inline: bool) -> usize {
        usize::from(!inline && self.at_mark() && !self.bytes.is_empty())
    }

    /// Goes beyond an urgent byte.
    fn skip_urgent(&mut self) {
        self.read_front(&mut [0]);
        self.urgent = None;
    }

    /// The most bytes that one call can receive, up to an urgent one.
    pub(crate) fn readable_len(&self, inline: bool) -> usize {
        match self.urgent {
            Some(urgent) if !inline && urgent.position > self.read_offset => {
                let ahead = (urgent.position - self.read_offset) as usize;
                ahead.min(self.bytes.len())
            }
            _ => self.bytes.len() - self.urgent_skip(inline),
        }
    }
}

/// The result of one read from a stream.
#[derive(Default)]
struct StreamRead {
    bytes: usize,
    /// The sender, from the first byte on.
    credentials: Option<Ucred>,
    rights: Option<ScmRights>,
    /// The files of a `MSG_PEEK`, which stay in the stream.
    peeked: Option<PeekedRights>,
    /// The receiver must not go on: what follows came from somebody else, or after open files.
    stop: bool,
}

/// Senders whose bytes one call may receive together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Senders {
    /// All of them.
    Any,
    /// The first one only: the receiver asks for credentials (`SO_PASSCRED`).
    One,
}

/// Takes (or with `peek` looks at) bytes of a stream, up to where the receiver has to stop.
/// `before` is the sender of those this call has already. Of what is only looked at the first
/// `hole` are left out.
fn read_bytes(
    queue: &mut ByteStream,
    buf: &mut [u8],
    peek: bool,
    hole: usize,
    senders: Senders,
    before: Option<Ucred>,
) -> StreamRead {
    let ahead = queue.urgent.map_or(0, |urgent| {
        urgent.position.saturating_sub(queue.read_offset) as usize
    });
    let there = queue.bytes.len() - hole;
    let limit = buf.len().min(match ahead {
        0 => there,
        ahead => there.min(ahead),
    });
    let mut taken = StreamRead {
        credentials: before,
        bytes: limit,
        ..StreamRead::default()
    };
    if !queue.scm_segments.is_empty() || senders == Senders::One {
        let start = queue.read_offset + hole as u64;
        let end = start + limit as u64;
        let mut at = start;
        // Whether bytes up to `to` from this sender may be taken too.
        let go_on = |taken: &mut StreamRead, from: Option<Ucred>| {
            let from = from.unwrap_or(Ucred::OVERFLOW);
            senders == Senders::Any || *taken.credentials.get_or_insert(from) == from
        };
        for mark in queue
            .scm_segments
            .iter_mut()
            .filter(|mark| mark.end > start)
        {
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
                    taken.peeked = mark.rights.as_ref().map(ScmRights::peek);
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
    // Receiving does not go beyond an urgent byte in one call.
    taken.stop |= ahead > 0 && taken.bytes == ahead;
    if peek {
        queue.copy_front(hole, &mut buf[..taken.bytes]);
    } else {
        queue.read_front(&mut buf[..taken.bytes]);
        queue.forget_passed_urgent();
        while queue
            .scm_segments
            .front()
            .is_some_and(|mark| mark.end <= queue.read_offset)
        {
            queue.scm_segments.pop_front();
            queue.charged_bytes -= SEGMENT_OVERHEAD;
        }
    }
    taken
}

/// Both ends of a connection, as one of them sees it.
pub(crate) struct ConnectedStream<'a, Q> {
    /// The end of the socket that sends or receives.
    pub(crate) own: &'a Endpoint<Q>,
    /// The other one.
    pub(crate) peer: &'a Endpoint<Q>,
    /// The most bytes that may wait at the other end.
    pub(crate) send_limit: usize,
}

impl<Q: AsMut<ByteStream>> ConnectedStream<'_, Q> {
    /// Sends bytes with what goes with them. How many is less than all of them if it may not, or
    /// need not, wait for room. `told` hears of each stretch that was put into the queue, and how
    /// many bytes there were before it.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`]; the endpoint's own error; `EPIPE` if nothing can be sent any
    /// more.
    pub(crate) fn send(
        &self,
        mut message: OutgoingMessage<'_>,
        credentials: Option<Ucred>,
        flags: MsgFlags,
        wait: WaitPolicy,
        told: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let data = message.data;
        let urgent = flags.contains(MsgFlags::OOB);
        let mut done = 0;
        if data.is_empty() && self.own.is_shut_down(SEND_SHUTDOWN) {
            return Err(Errno::EPIPE);
        }
        while done < data.len() {
            let attempt = || {
                let mut queue = self.peer.queue.lock();
                let queue = queue.as_mut();
                let room = match self.send_space(queue)? {
                    Ok(room) => room,
                    Err(error) => return Some(Err(error)),
                };
                let n = queue.cover(room.min(data.len() - done));
                if n == 0 {
                    return None;
                }
                let start = queue.read_offset + queue.bytes.len() as u64;
                // Another sender may follow each byte.
                if queue.scm_segments.try_reserve(1).is_err() {
                    return Some(Err(Errno::ENOMEM));
                }
                if let Err(error) = queue.append(&data[done..done + n]) {
                    return Some(Err(error));
                }
                if urgent && done + n == data.len() {
                    queue.mark_urgent(start + n as u64 - 1, self.peer.is_oob_inline());
                }
                let rights = message.rights.take();
                if credentials.is_some() || rights.is_some() {
                    queue.add_scm_segment(ScmSegment {
                        start,
                        end: start + n as u64,
                        credentials,
                        rights,
                    });
                }
                Some(Ok((start, n)))
            };
            match wait.wait_on(&self.own.writable, attempt) {
                Ok((start, n)) => {
                    told(start, &data[done..done + n]);
                    done += n;
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            if urgent && done == data.len() {
                self.peer.send_sigurg();
                self.peer
                    .readable
                    .notify_events(Events::READABLE | Events::PRI);
            } else {
                self.peer.readable.notify_events(Events::READABLE);
            }
        }
        Ok(done)
    }

    /// The bytes that the peer's queue has room for; `None` if it is full.
    ///
    /// # Errors
    /// The endpoint's own error; `EPIPE` if nothing can be sent any more.
    fn send_space(&self, queue: &ByteStream) -> Option<Result<usize>> {
        if let Some(error) = self.own.take_error() {
            return Some(Err(error));
        }
        if self.own.is_shut_down(SEND_SHUTDOWN) || queue.closed {
            return Some(Err(Errno::EPIPE));
        }
        let room = self.send_limit.saturating_sub(queue.charged_bytes);
        (room > 0).then_some(Ok(room))
    }

    /// Waits until there is room for anything.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`] and [`Self::send_space`].
    pub(crate) fn wait_for_send_space(&self, wait: WaitPolicy) -> Result<()> {
        wait.wait_on(&self.own.writable, || {
            Some(self.send_space(self.peer.queue.lock().as_mut())?.map(drop))
        })
    }

    /// Sends bytes with nothing else, if that takes no more than putting them into a queue. `None`:
    /// it takes more.
    #[inline]
    pub(crate) fn send_fast(&self, data: &[u8]) -> Option<usize> {
        {
            let mut queue = self.peer.queue.lock();
            let queue = queue.as_mut();
            // Looked at while the queue is held: who takes what is in it and resets the connection
            // before that finds all there will be.
            if self.own.has_error() || self.own.is_shut_down(SEND_SHUTDOWN) {
                return None;
            }
            let then = queue.charged_bytes + data.len();
            if queue.closed || self.send_limit < then || !queue.memory.covers(then) {
                return None;
            }
            queue.append(data).ok()?;
        }
        self.peer.readable.notify_events(Events::READABLE);
        Some(data.len())
    }

    /// Receives bytes that came with nothing else, waiting for the first. `None`: there is more to
    /// it.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`].
    pub(crate) fn receive_fast(&self, buf: &mut [u8], wait: WaitPolicy) -> Result<Option<usize>> {
        let attempt = || {
            let mut queue = self.own.queue.lock();
            let queue = queue.as_mut();
            let n = queue.bytes.len().min(buf.len());
            let special = !queue.scm_segments.is_empty() || queue.urgent.is_some();
            if n == 0 || special {
                let more = special || self.own.has_error() || self.own.is_shut_down(RCV_SHUTDOWN);
                return more.then_some(Ok(None));
            }
            queue.read_front(&mut buf[..n]);
            Some(Ok(Some(n)))
        };
        let n = wait.wait_on(&self.own.readable, attempt)?;
        if n.is_some() {
            self.peer.notify_write_space();
        }
        Ok(n)
    }

    /// Receives bytes, and what came with them; of one sender if `senders` says so.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`]; the endpoint's own error.
    pub(crate) fn receive(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
        senders: Senders,
        wait: WaitPolicy,
    ) -> Result<ReceivedMessage> {
        if flags.contains(MsgFlags::OOB) {
            return self.receive_urgent(buf, flags);
        }
        let peek = flags.contains(MsgFlags::PEEK);
        let least = if flags.contains(MsgFlags::WAITALL) {
            buf.len()
        } else {
            self.own.options.receive_low_water().min(buf.len())
        };
        let mut got = ReceivedMessage::default();
        loop {
            let done = got.copied;
            let before = got.credentials;
            let attempt = || {
                let mut queue = self.own.queue.lock();
                let mut hole = 0;
                if queue.as_mut().at_mark() {
                    if done > 0 {
                        return Some(Ok(StreamRead {
                            credentials: before,
                            stop: true,
                            ..StreamRead::default()
                        }));
                    }
                    hole = queue.as_mut().urgent_skip(self.own.is_oob_inline());
                    if hole > 0 && !peek {
                        queue.as_mut().skip_urgent();
                        hole = 0;
                    }
                }
                hole += self.own.options.peek_skip(flags);
                if queue.as_mut().bytes.len() <= hole {
                    return self.own.empty_queue_result(
                        queue,
                        StreamRead {
                            stop: true,
                            ..StreamRead::default()
                        },
                    );
                }
                Some(Ok(read_bytes(
                    queue.as_mut(),
                    &mut buf[done..],
                    peek,
                    hole,
                    senders,
                    before,
                )))
            };
            let taken = match wait.wait_on(&self.own.readable, attempt) {
                Ok(taken) => taken,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            };
            if !peek && taken.bytes > 0 {
                self.peer.notify_write_space();
            }
            self.own.options.advance_peek_offset(taken.bytes, flags);
            got.copied += taken.bytes;
            got.credentials = got.credentials.or(taken.credentials);
            let peeked = taken.peeked.map(PeekedRights::into_rights);
            got.rights = taken.rights.or(peeked);
            if taken.stop || peek || got.copied >= least {
                break;
            }
        }
        got.message_len = got.copied;
        Ok(got)
    }

    /// Receives the urgent byte, by itself.
    ///
    /// # Errors
    /// `EINVAL` if there is none, or it is received with the others; `EAGAIN` if it is announced
    /// and has not come.
    pub(crate) fn receive_urgent(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
    ) -> Result<ReceivedMessage> {
        let mut queue = self.own.queue.lock();
        let queue = queue.as_mut();
        let found = queue
            .urgent
            .filter(|urgent| !urgent.read && !self.own.is_oob_inline())
            .ok_or(Errno::EINVAL)?;
        let byte = queue.urgent_byte().ok_or(Errno::EAGAIN)?;
        let copied = buf.first_mut().map(|to| *to = byte).map_or(0, |()| 1);
        queue.urgent = Some(UrgentByte {
            read: !flags.contains(MsgFlags::PEEK),
            ..found
        });
        Ok(ReceivedMessage {
            copied,
            message_len: copied,
            urgent: true,
            ..ReceivedMessage::default()
        })
    }

    /// Takes bytes that came with nothing else, `limit` at most, into memory that need not be
    /// cleared before. `None`: there is more to it, or they are fewer than the receiver wants.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn take_plain(&self, limit: usize, flags: MsgFlags) -> Result<Option<Vec<u8>>> {
        let mut data = fallible::with_capacity(limit)?;
        let least = self.own.options.receive_low_water().min(limit).max(1);
        {
            let mut queue = self.own.queue.lock();
            let queue = queue.as_mut();
            let n = queue.bytes.len().min(limit);
            if n < least || !queue.scm_segments.is_empty() || queue.urgent.is_some() {
                return Ok(None);
            }
            queue.move_front(&mut data, n);
        }
        self.own.options.advance_peek_offset(data.len(), flags);
        self.peer.notify_write_space();
        Ok(Some(data))
    }

    /// Receives as [`ConnectedStream::receive`] into memory of its own: at most `limit` bytes, and
    /// no more than there are.
    ///
    /// # Errors
    /// Those of [`ConnectedStream::receive`].
    pub(crate) fn receive_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        senders: Senders,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        if flags.contains(MsgFlags::OOB) {
            let mut byte = [0];
            let got = self.receive_urgent(&mut byte[..limit.min(1)], flags)?;
            return Ok((byte[..got.copied].to_vec(), got));
        }
        let size = if flags.contains(MsgFlags::WAITALL) {
            WAITALL_CHUNK
        } else {
            let any = || {
                // Before the bytes: those that came before an end are there when it is seen. In the
                // other order their first one was read alone.
                let is_over = self.own.has_error() || self.own.is_shut_down(RCV_SHUTDOWN);
                let bytes = self
                    .own
                    .queue
                    .lock()
                    .as_mut()
                    .bytes
                    .len()
                    .saturating_sub(self.own.options.peek_skip(flags));
                // One who wants so many at once waits for them below.
                let least = self.own.options.receive_low_water().min(WAITALL_CHUNK);
                (bytes > 0 || is_over).then_some(Ok(bytes.max(least).max(1)))
            };
            wait.wait_on(&self.own.readable, any)?
        };
        let size = size.min(limit);
        if senders == Senders::Any
            && !flags.intersects(MsgFlags::PEEK | MsgFlags::WAITALL)
            && let Some(data) = self.take_plain(size, flags)?
        {
            let got = ReceivedMessage {
                copied: data.len(),
                message_len: data.len(),
                ..ReceivedMessage::default()
            };
            return Ok((data, got));
        }
        let mut data = fallible::zeroed(size)?;
        let got = self.receive(&mut data, flags, senders, wait)?;
        data.truncate(got.copied);
        Ok((data, got))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;
    use crate::SocketOptions;
    use crate::socket::core_stack::CoreStack;

    #[test]
    fn what_was_sent_is_seen_by_offset_until_it_is_acknowledged() {
        let mut stream = ByteStream::default();
        stream.append(b"abcdef").unwrap();
        assert!(stream.mark_urgent(5, false));
        let peek = |stream: &ByteStream, offset: usize| {
            let mut buf = [0; 3];
            let count = stream.peek(offset, &mut buf);
            buf[..count].to_vec()
        };
        assert_eq!(
            [0, 2, 5, 6, usize::MAX].map(|offset| peek(&stream, offset)),
            [&b"abc"[..], b"cde", b"f", b"", b""]
        );
        stream.release_acknowledged(2);
        assert_eq!(
            (peek(&stream, 0), peek(&stream, 3)),
            (b"cde".to_vec(), b"f".to_vec())
        );
        assert_eq!((stream.charged_bytes, stream.has_urgent()), (4, true));
        // Bytes that were never sent cannot be acknowledged.
        stream.release_acknowledged(100);
        assert_eq!((stream.charged_bytes, stream.has_urgent()), (0, false));
        stream.append(b"g").unwrap();
        assert_eq!((peek(&stream, 0), stream.read_offset), (b"g".to_vec(), 6));
    }

    /// Bytes that are received into memory of its own are those that a buffer would have had: whole
    /// or in part, from both ends of a queue that goes around, not beyond an urgent byte, and not
    /// before as many are there as the receiver wants.
    #[test]
    fn memory_of_its_own_gets_what_a_buffer_gets() {
        const NOW: WaitPolicy = WaitPolicy {
            nonblocking: true,
            timeout_ns: 0,
        };
        let options = Arc::new(SocketOptions::new(CoreStack::for_tests()));
        let [own, peer] = [(), ()].map(|()| Endpoint::<ByteStream>::new(options.clone()));
        let [sender, receiver] =
            [(&peer, &own), (&own, &peer)].map(|(own, peer)| ConnectedStream {
                own,
                peer,
                send_limit: 1 << 20,
            });
        let receive = |limit| {
            let got = receiver.receive_to_vec(limit, MsgFlags::empty(), Senders::Any, NOW);
            got.map(|(data, got)| {
                assert_eq!((got.copied, got.message_len), (data.len(), data.len()));
                data
            })
        };
        let (mut sent, mut received) = (0_u8, 0_u8);
        for round in 0..200_usize {
            let bytes: Vec<u8> = (0..round % 70 + 1)
                .map(|n| sent.wrapping_add(n as u8))
                .collect();
            sent = sent.wrapping_add(bytes.len() as u8);
            assert_eq!(sender.send_fast(&bytes), Some(bytes.len()));
            for byte in receive(round % 50 + 20).unwrap() {
                assert_eq!(byte, received);
                received = received.wrapping_add(1);
            }
        }
        while let Ok(rest) = receive(1000) {
            received = received.wrapping_add(rest.len() as u8);
        }
        assert_eq!(received, sent);
        assert_eq!(own.queue.lock().charged_bytes, 0);
        sender.send_fast(b"ab").unwrap();
        let last = own.queue.lock().read_offset + 1;
        assert!(own.queue.lock().mark_urgent(last, false));
        sender.send_fast(b"cd").unwrap();
        assert_eq!(receive(100), Ok(b"a".to_vec()));
        assert_eq!(receive(100), Ok(b"cd".to_vec()));
        let least = linux_raw_sys::net::SO_RCVLOWAT;
        options.set_int_option(least, 3, false).unwrap();
        sender.send_fast(b"ef").unwrap();
        assert_eq!(
            receive(100),
            Ok(b"ef".to_vec()),
            "all there is, without waiting"
        );
        assert_eq!(receive(100), Err(Errno::EAGAIN));
    }

    #[test]
    fn the_end_does_not_overtake_the_last_bytes() {
        const NOW: WaitPolicy = WaitPolicy {
            nonblocking: true,
            timeout_ns: 0,
        };
        let options = Arc::new(SocketOptions::new(CoreStack::for_tests()));
        for _ in 0..500 {
            let [own, peer] = [(), ()].map(|()| Endpoint::<ByteStream>::new(options.clone()));
            let begin = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begin.wait();
                    let pair = ConnectedStream {
                        own: &peer,
                        peer: &own,
                        send_limit: 100,
                    };
                    assert_eq!(pair.send_fast(b"last"), Some(4));
                    own.shutdown(RCV_SHUTDOWN);
                });
                begin.wait();
                let pair = ConnectedStream {
                    own: &own,
                    peer: &peer,
                    send_limit: 100,
                };
                let mut buf = [0; 8];
                let got = loop {
                    match pair.receive(&mut buf, MsgFlags::empty(), Senders::Any, NOW) {
                        Err(Errno::EAGAIN) => {}
                        other => break other.map(|got| got.copied),
                    }
                };
                assert_eq!(got, Ok(4));
            });
        }
    }
}
