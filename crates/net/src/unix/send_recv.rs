//! Sending and receiving.

use super::UnixSocket;
use super::endpoint::{UnixEndpoint, UnixMessage, UnixQueue};
use super::scm_rights::ScmRights;
use crate::byte_stream::ConnectedStream;
use crate::endpoint::{RCV_SHUTDOWN, SEND_SHUTDOWN, WRITE_SPACE};
use crate::socket::caller_ucred;
use crate::{Address, MsgFlags, OutgoingMessage, ReceivedMessage, SocketType, Ucred, UnixName, WaitPolicy, sysctl};
use abi::errno::Errno;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use fs::Result;
use fs::poll::Events;

/// How much less than the whole buffer a message may take.
const OVERHEAD: usize = 32;

/// What the receiver does to a message before it is put into its queue; false: it is not.
fn filter(receiver: &UnixEndpoint, packet: &mut Option<UnixMessage>) -> bool {
    let Some(packet) = packet else { return true };
    packet.arrival = receiver.options.receive_timestamp();
    let Some(length) = receiver.options.apply_filter(&[], &packet.data) else { return false };
    packet.data.truncate(length);
    true
}

impl UnixSocket {
    /// What a call would find now.
    pub(super) fn poll_transfers(&self) -> Events {
        let mut events = Events::empty();
        let connected = self.peer.get();
        let shut = |what| self.port.is_shut_down(what);
        events.set(Events::ERR, self.port.has_error());
        events
            .set(Events::HUP, shut(RCV_SHUTDOWN | SEND_SHUTDOWN) || (self.kind.is_connection_oriented() && connected.is_none()));
        events.set(Events::READABLE | Events::RDHUP, shut(RCV_SHUTDOWN));
        let (news, urgent) = self.port.has_news();
        events.set(Events::READABLE, shut(RCV_SHUTDOWN) || news);
        events.set(Events::PRI, urgent);
        let (used, room) = match (self.kind, connected) {
            (SocketType::Datagram, _) => (self.port.sent(), self.port.target().is_none_or(|peer| self.has_room(&peer, true))),
            (_, Some(peer)) => (peer.charged(), true),
            (_, None) => (0, true),
        };
        // As Linux does, so that whoever is told can write more than a little.
        events.set(Events::WRITABLE | Events::WRBAND, room && used * 4 <= self.port.options.send_buffer());
        events
    }

    /// Whether another datagram may wait at `peer`; if not, `tell` has this socket told when one may.
    fn has_room(&self, peer: &Arc<UnixEndpoint>, tell: bool) -> bool {
        if peer.talks_to(&self.port) {
            return true;
        }
        let mut queue = peer.queue.lock();
        let room = queue.closed || queue.packets.len() <= sysctl::UNIX_MAX_DGRAM_QLEN.as_usize();
        if !room && tell {
            self.wait_at(&mut queue);
        }
        room
    }

    fn wait_at(&self, queue: &mut UnixQueue) {
        let me = Arc::downgrade(&self.port);
        if !queue.blocked.iter().any(|waiting| waiting.ptr_eq(&me)) {
            queue.blocked.push(me);
        }
    }

    /// What `SocketOps::check_message` promises.
    pub(super) fn check_packet(&self, to: Option<&Address>, length: usize, flags: MsgFlags) -> Result<()> {
        if self.kind == SocketType::Seqpacket {
            // It has its peer, whatever the address means.
            if let Some(error) = self.port.take_error() {
                return Err(error);
            }
            self.peer.get().ok_or(Errno::ENOTCONN)?;
        }
        if flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        match to {
            _ if self.kind == SocketType::Seqpacket => {}
            Some(Address::Unix(name)) if *name != UnixName::Unnamed => {}
            Some(_) => return Err(Errno::EINVAL),
            None => drop(self.port.target().ok_or(Errno::ENOTCONN)?),
        }
        if length > self.port.options.send_buffer().saturating_sub(OVERHEAD) {
            return Err(Errno::EMSGSIZE);
        }
        if self.port.is_shut_down(SEND_SHUTDOWN) { Err(Errno::EPIPE) } else { Ok(()) }
    }

    /// Sends; what `SocketOps::send` promises.
    pub(super) fn transmit(&self, message: OutgoingMessage<'_>, flags: MsgFlags, wait: WaitPolicy) -> Result<usize> {
        if self.kind == SocketType::Stream {
            if flags.contains(MsgFlags::OOB) && message.data.is_empty() {
                return Err(Errno::EOPNOTSUPP);
            }
            return self.send_bytes(message, flags, wait);
        }
        self.check_packet(message.to.map(|(_, address)| address), message.data.len(), flags)?;
        if self.kind == SocketType::Seqpacket { self.send_packet(message, wait) } else { self.send_datagram(message, wait) }
    }

    /// Whom the message says it is from, if the receiver may want to know.
    fn sender(&self, peer: &UnixEndpoint, message: &OutgoingMessage<'_>) -> Option<Ucred> {
        let wanted = self.port.options.pass_credentials() || peer.options.pass_credentials();
        message.credentials.or_else(|| wanted.then(caller_ucred))
    }

    /// The two ends of a connected stream.
    pub(super) fn pair<'a>(&'a self, peer: &'a UnixEndpoint) -> ConnectedStream<'a, UnixQueue> {
        ConnectedStream { own: &self.port, peer, send_limit: self.port.options.send_buffer() }
    }

    /// That a stream has no other end any more comes before its error, which stays for who receives.
    pub(super) fn check_open(&self, peer: &UnixEndpoint) -> Result<()> {
        let shut = self.port.has_error() && (self.port.is_shut_down(SEND_SHUTDOWN) || peer.queue.lock().closed);
        if shut { Err(Errno::EPIPE) } else { Ok(()) }
    }

    fn send_bytes(&self, message: OutgoingMessage<'_>, flags: MsgFlags, wait: WaitPolicy) -> Result<usize> {
        let peer = self.peer.get();
        if message.to.is_some() {
            return Err(if peer.is_some() { Errno::EISCONN } else { Errno::EOPNOTSUPP });
        }
        let peer = peer.ok_or(Errno::ENOTCONN)?;
        self.check_open(peer)?;
        let credentials = self.sender(peer, &message);
        self.pair(peer).send(message, credentials, flags, wait, &mut |_, _| {})
    }

    fn send_packet(&self, mut message: OutgoingMessage<'_>, wait: WaitPolicy) -> Result<usize> {
        let peer = self.peer.get().ok_or(Errno::ENOTCONN)?;
        let limit = self.port.options.send_buffer();
        let credentials = self.sender(peer, &message);
        let mut packet = Some(self.packet(&mut message, credentials));
        if !filter(peer, &mut packet) {
            return Ok(message.data.len());
        }
        let attempt = || {
            if let Some(error) = self.port.take_error() {
                return Some(Err(error));
            }
            let mut queue = peer.queue.lock();
            if self.port.is_shut_down(SEND_SHUTDOWN) || queue.closed {
                return Some(Err(Errno::EPIPE));
            }
            if queue.charged_bytes != 0 && queue.charged_bytes + packet.as_ref()?.cost() > limit {
                return None;
            }
            let packet = packet.take()?;
            queue.charged_bytes += packet.cost();
            queue.packets.push_back(packet);
            Some(Ok(()))
        };
        wait.wait_on(&self.port.writable, attempt)?;
        peer.readable.notify_of(Events::READABLE);
        Ok(message.data.len())
    }

    fn packet(&self, message: &mut OutgoingMessage<'_>, credentials: Option<Ucred>) -> UnixMessage {
        let from = (self.kind == SocketType::Datagram).then(|| self.port.clone());
        UnixMessage { data: message.data.to_vec(), from, credentials, rights: message.rights.take(), arrival: 0 }
    }

    fn send_datagram(&self, mut message: OutgoingMessage<'_>, wait: WaitPolicy) -> Result<usize> {
        let peer = match message.to {
            Some((caller, address)) => self.find(caller, address)?.port.clone(),
            None => self.port.target().ok_or(Errno::ENOTCONN)?,
        };
        if self.port.options.pass_credentials() {
            self.bind_anywhere()?;
        }
        let limit = self.port.options.send_buffer();
        let credentials = self.sender(&peer, &message);
        let mut packet = Some(self.packet(&mut message, credentials));
        if !filter(&peer, &mut packet) {
            return Ok(message.data.len());
        }
        let attempt = || {
            if self.port.is_shut_down(SEND_SHUTDOWN) {
                return Some(Err(Errno::EPIPE));
            }
            if !peer.accepts_from(&self.port) {
                return Some(Err(Errno::EPERM));
            }
            let partners = peer.talks_to(&self.port);
            let mut queue = peer.queue.lock();
            if queue.closed {
                return Some(Err(Errno::ECONNREFUSED));
            }
            if peer.is_shut_down(RCV_SHUTDOWN) {
                return Some(Err(Errno::EPIPE));
            }
            let cost = packet.as_ref()?.cost();
            let used = self.port.sent();
            if used != 0 && used + cost > limit {
                return None;
            }
            if !partners && queue.packets.len() > sysctl::UNIX_MAX_DGRAM_QLEN.as_usize() {
                self.wait_at(&mut queue);
                return None;
            }
            queue.packets.push_back(packet.take()?);
            self.port.charge(cost);
            Some(Ok(()))
        };
        match wait.wait_on(&self.port.writable, attempt) {
            Err(Errno::ECONNREFUSED) if message.to.is_none() => {
                // The peer is gone for good.
                self.port.set_target(None);
                Err(Errno::ECONNREFUSED)
            }
            result => {
                result?;
                peer.readable.notify_of(Events::READABLE);
                Ok(message.data.len())
            }
        }
    }

    /// Sends bytes of a stream if that takes no more than putting them into a queue. `None`: it takes more.
    pub(super) fn send_plain(&self, data: &[u8]) -> Option<usize> {
        let peer = self.peer.get()?;
        let special = self.kind != SocketType::Stream || self.port.options.pass_credentials() || peer.options.pass_credentials();
        if special { None } else { self.pair(peer).send_fast(data) }
    }

    /// Receives bytes of a stream that came with nothing else, waiting for the first. `None`: there is more to it.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`].
    pub(super) fn receive_plain(&self, buf: &mut [u8], wait: WaitPolicy) -> Result<Option<usize>> {
        let options = &self.port.options;
        let special = self.kind != SocketType::Stream
            || options.pass_credentials()
            || options.receive_low_water() > 1
            || options.peek_offset() >= 0;
        let Some(peer) = self.peer.get().filter(|_| !special) else { return Ok(None) };
        self.pair(peer).receive_fast(buf, wait)
    }

    /// Receives; what `SocketOps::receive` promises.
    pub(super) fn take_in(&self, buf: &mut [u8], flags: MsgFlags, wait: WaitPolicy) -> Result<ReceivedMessage> {
        if self.kind == SocketType::Stream {
            return self.receive_bytes(buf, flags, wait);
        }
        let (data, got) = self.take_message(buf.len(), flags, wait)?;
        buf[..data.len()].copy_from_slice(&data);
        Ok(got)
    }

    /// Receives; what `SocketOps::receive_to_vec` promises.
    pub(super) fn take_message(&self, limit: usize, flags: MsgFlags, wait: WaitPolicy) -> Result<(Vec<u8>, ReceivedMessage)> {
        if self.kind == SocketType::Stream {
            let peer = self.stream_peer()?;
            return self.pair(peer).receive_to_vec(limit, flags, self.port.options.pass_credentials(), wait);
        }
        let (mut data, mut got) = self.receive_packet(flags, wait)?;
        let whole = data.len();
        data.truncate(limit);
        got.copied = data.len();
        // Receiving takes a message whole, looking at one no more than was copied.
        self.port.options.advance_peek_offset(if flags.contains(MsgFlags::PEEK) { got.copied } else { whole }, flags);
        Ok((data, got))
    }

    /// Where the bytes of a stream come from.
    fn stream_peer(&self) -> Result<&UnixEndpoint> {
        self.peer.get().map(|peer| &**peer).ok_or(Errno::EINVAL)
    }

    fn receive_bytes(&self, buf: &mut [u8], flags: MsgFlags, wait: WaitPolicy) -> Result<ReceivedMessage> {
        let peer = self.stream_peer()?;
        self.pair(peer).receive(buf, flags, self.port.options.pass_credentials(), wait)
    }

    fn receive_packet(&self, flags: MsgFlags, wait: WaitPolicy) -> Result<(Vec<u8>, ReceivedMessage)> {
        if flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let peer = self.peer.get();
        if self.kind == SocketType::Seqpacket && peer.is_none() {
            return Err(Errno::ENOTCONN);
        }
        let peek = flags.contains(MsgFlags::PEEK);
        let mut seen = Vec::new();
        let mut blocked = Vec::new();
        let attempt = || {
            let mut queue = self.port.queue.lock();
            let mut skip = self.port.options.peek_skip(flags);
            let beyond = queue.packets.iter().find(|packet| {
                let within = skip == 0 || skip < packet.data.len();
                skip -= if within { 0 } else { packet.data.len() };
                within
            });
            let Some(first) = beyond else {
                return self.port.empty_queue_result(queue, None);
            };
            if peek {
                seen.extend(first.rights.iter().flat_map(|rights| rights.files().iter().cloned()));
                let (data, from, credentials) = (first.data[skip..].to_vec(), first.from.clone(), first.credentials);
                return Some(Ok(Some(UnixMessage { data, from, credentials, rights: None, arrival: first.arrival })));
            }
            let packet = queue.packets.pop_front();
            blocked = core::mem::take(&mut queue.blocked);
            if peer.is_some() {
                queue.charged_bytes -= packet.as_ref().map_or(0, UnixMessage::cost);
            }
            Some(Ok(packet))
        };
        let Some(packet) = wait.wait_on(&self.port.readable, attempt)? else {
            return Ok((Vec::new(), ReceivedMessage::default()));
        };
        let cost = packet.cost();
        let UnixMessage { data, from, credentials, rights, arrival } = packet;
        // As on Linux, `SO_TIMESTAMPING` alone does not count here.
        let stamped = self.port.options.timestamp_option.load(Ordering::Relaxed) != 0;
        let beside = if stamped { self.port.options.timestamp_messages(arrival) } else { Vec::new() };
        let mut got = ReceivedMessage { message_len: data.len(), rights, control: beside, ..ReceivedMessage::default() };
        if let Some(from) = from {
            got.from = Some(Address::Unix(from.name()));
            if !peek {
                from.credit(cost);
            }
        }
        for waiting in blocked.iter().filter_map(Weak::upgrade) {
            waiting.writable.notify_of(WRITE_SPACE);
        }
        if let Some(peer) = peer
            && !peek
        {
            peer.writable.notify_of(WRITE_SPACE);
        }
        if !seen.is_empty() {
            got.rights = Some(ScmRights::new(seen));
        }
        if self.port.options.pass_credentials() {
            got.credentials = Some(credentials.unwrap_or(Ucred::OVERFLOW));
        }
        Ok((data, got))
    }
}
