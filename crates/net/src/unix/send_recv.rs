//! Sending and receiving.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::Result;
use fs::poll::Events;

use super::UnixSocket;
use super::endpoint::{UnixEndpoint, UnixMessage, UnixQueue};
use crate::socket::byte_stream::{ConnectedStream, Senders};
use crate::socket::endpoint::{RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::socket::message;
use crate::socket::{PeekedRights, ScmRights, caller_ucred};
use crate::{
    Address, MsgFlags, OutgoingMessage, ReceivedMessage, SocketType, Ucred, UnixName, WaitPolicy,
};

/// The bytes of the buffer that a message may not take.
const OVERHEAD: usize = 32;

/// Runs the receiver's filter on a message before it is put into the queue; false: it is not.
fn filter_received(receiver: &UnixEndpoint, packet: &mut Option<UnixMessage>) -> bool {
    let Some(packet) = packet else { return true };
    packet.timestamp_ns = receiver.options.receive_timestamp();
    let Some(length) = receiver.options.apply_filter(&[], &packet.data) else {
        return false;
    };
    packet.data.truncate(length);
    true
}

/// The answer to a message for which the owner's sockets have no more memory, while so many bytes
/// of the sender's are under way: there may be when some of them are received (`None`), unless
/// there are none.
fn refused_memory(under_way: usize) -> Option<Result<()>> {
    (under_way == 0).then_some(Err(Errno::ENOBUFS))
}

impl UnixSocket {
    /// The poll events of a call that would send or receive now.
    pub(super) fn poll_events(&self) -> Events {
        let mut events = Events::empty();
        let connected = self.peer.get();
        let shut = |what| self.endpoint.is_shut_down(what);
        events.set(Events::ERR, self.endpoint.has_error());
        events.set(
            Events::HUP,
            shut(RCV_SHUTDOWN | SEND_SHUTDOWN)
                || (self.socket_type.is_connection_oriented() && connected.is_none()),
        );
        events.set(Events::READABLE | Events::RDHUP, shut(RCV_SHUTDOWN));
        let (news, urgent) = self.endpoint.poll_state();
        events.set(Events::READABLE, shut(RCV_SHUTDOWN) || news);
        events.set(Events::PRI, urgent);
        let (used, room) = match (self.socket_type, connected) {
            (SocketType::Datagram, _) => (
                self.endpoint.send_charged_bytes(),
                self.endpoint
                    .datagram_peer()
                    .is_none_or(|peer| self.poll_peer_queue(&peer)),
            ),
            (_, Some(peer)) => (peer.charged_bytes(), true),
            (_, None) => (0, true),
        };
        // As Linux does, so that whoever is told can write more than a little.
        events.set(
            Events::WRITABLE | Events::WRBAND,
            room && used * 4 <= self.endpoint.options.send_buffer(),
        );
        events
    }

    /// Whether another datagram may wait at `peer`; if not, this socket is told when one may.
    fn poll_peer_queue(&self, peer: &Arc<UnixEndpoint>) -> bool {
        if peer.is_connected_to(&self.endpoint) {
            return true;
        }
        let mut queue = peer.queue.lock();
        let room = queue.closed || queue.packets.len() <= self.max_dgram_qlen();
        if !room {
            self.register_blocked_sender(&mut queue);
        }
        room
    }

    /// The most datagrams that wait for a receiver that has not named their sender its peer.
    fn max_dgram_qlen(&self) -> usize {
        self.stack().core.sysctls.unix_max_dgram_qlen.as_usize()
    }

    fn register_blocked_sender(&self, queue: &mut UnixQueue) {
        queue
            .blocked_senders
            .entry(Arc::as_ptr(&self.endpoint).addr())
            .or_insert_with(|| Arc::downgrade(&self.endpoint));
    }

    /// Implements `SocketOps::check_message`.
    pub(super) fn check_datagram(
        &self,
        to: Option<&Address>,
        length: usize,
        flags: MsgFlags,
    ) -> Result<()> {
        if self.socket_type == SocketType::Seqpacket {
            // It has its peer, whatever the address means.
            if let Some(error) = self.endpoint.take_error() {
                return Err(error);
            }
            self.peer.get().ok_or(Errno::ENOTCONN)?;
        }
        if flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        match to {
            _ if self.socket_type == SocketType::Seqpacket => {}
            Some(Address::Unix(name)) if *name != UnixName::Unnamed => {}
            Some(_) => return Err(Errno::EINVAL),
            None => drop(self.endpoint.datagram_peer().ok_or(Errno::ENOTCONN)?),
        }
        if length > self.endpoint.options.send_buffer().saturating_sub(OVERHEAD) {
            return Err(Errno::EMSGSIZE);
        }
        if self.endpoint.is_shut_down(SEND_SHUTDOWN) {
            Err(Errno::EPIPE)
        } else {
            Ok(())
        }
    }

    /// Sends; what `SocketOps::send` promises.
    pub(super) fn send_message(
        &self,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize> {
        if self.socket_type == SocketType::Stream {
            if flags.contains(MsgFlags::OOB) && message.data.is_empty() {
                return Err(Errno::EOPNOTSUPP);
            }
            return self.send_bytes(message, flags, wait);
        }
        self.check_datagram(
            message.to.map(|(_, address)| address),
            message.data.len(),
            flags,
        )?;
        if self.socket_type == SocketType::Seqpacket {
            self.send_packet(message, wait)
        } else {
            self.send_datagram(message, wait)
        }
    }

    /// The identity the message says it is from, if the receiver may want to know.
    fn sender_credentials(
        &self,
        peer: &UnixEndpoint,
        message: &OutgoingMessage<'_>,
    ) -> Option<Ucred> {
        let wanted = self.endpoint.options.pass_credentials() || peer.options.pass_credentials();
        message.credentials.or_else(|| wanted.then(caller_ucred))
    }

    /// The two ends of a connected stream.
    pub(super) fn stream<'a>(&'a self, peer: &'a UnixEndpoint) -> ConnectedStream<'a, UnixQueue> {
        ConnectedStream {
            own: &self.endpoint,
            peer,
            send_limit: self.endpoint.options.send_buffer(),
        }
    }

    /// Checks that a stream has another end, which comes before its error: that stays for who
    /// receives.
    pub(super) fn check_open(&self, peer: &UnixEndpoint) -> Result<()> {
        let shut = self.endpoint.has_error()
            && (self.endpoint.is_shut_down(SEND_SHUTDOWN) || peer.queue.lock().closed);
        if shut { Err(Errno::EPIPE) } else { Ok(()) }
    }

    fn send_bytes(
        &self,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize> {
        let peer = self.peer.get();
        if message.to.is_some() {
            return Err(if peer.is_some() {
                Errno::EISCONN
            } else {
                Errno::EOPNOTSUPP
            });
        }
        let peer = peer.ok_or(Errno::ENOTCONN)?;
        self.check_open(peer)?;
        let credentials = self.sender_credentials(peer, &message);
        self.stream(peer)
            .send(message, credentials, flags, wait, &mut |_, _| {})
    }

    fn send_packet(&self, mut message: OutgoingMessage<'_>, wait: WaitPolicy) -> Result<usize> {
        let peer = self.peer.get().ok_or(Errno::ENOTCONN)?;
        let limit = self.endpoint.options.send_buffer();
        let credentials = self.sender_credentials(peer, &message);
        let mut packet = Some(self.build_message(&mut message, credentials)?);
        if !filter_received(peer, &mut packet) {
            return Ok(message.data.len());
        }
        let attempt = || {
            if let Some(error) = self.endpoint.take_error() {
                return Some(Err(error));
            }
            let mut queue = peer.queue.lock();
            if self.endpoint.is_shut_down(SEND_SHUTDOWN) || queue.closed {
                return Some(Err(Errno::EPIPE));
            }
            // The last one may reach beyond.
            if queue.charged_bytes >= limit {
                return None;
            }
            let then = queue.charged_bytes + packet.as_ref()?.charged_size();
            if !queue.memory.covers(then) {
                return refused_memory(queue.charged_bytes);
            }
            queue.charged_bytes = then;
            queue.packets.push_back(packet.take()?);
            Some(Ok(()))
        };
        wait.wait_on(&self.endpoint.writable, attempt)?;
        peer.readable.notify_events(Events::READABLE);
        Ok(message.data.len())
    }

    fn build_message(
        &self,
        message: &mut OutgoingMessage<'_>,
        credentials: Option<Ucred>,
    ) -> Result<UnixMessage> {
        let from = (self.socket_type == SocketType::Datagram).then(|| self.endpoint.clone());
        Ok(UnixMessage {
            data: message::copy_of(message.data)?,
            from,
            credentials,
            rights: message.rights.take(),
            timestamp_ns: 0,
        })
    }

    fn send_datagram(&self, mut message: OutgoingMessage<'_>, wait: WaitPolicy) -> Result<usize> {
        let peer = match message.to {
            Some((caller, address)) => self.find_destination(caller, address)?.endpoint.clone(),
            None => self.endpoint.datagram_peer().ok_or(Errno::ENOTCONN)?,
        };
        if self.endpoint.options.pass_credentials() {
            self.autobind()?;
        }
        let limit = self.endpoint.options.send_buffer();
        let credentials = self.sender_credentials(&peer, &message);
        let mut packet = Some(self.build_message(&mut message, credentials)?);
        if !filter_received(&peer, &mut packet) {
            return Ok(message.data.len());
        }
        let attempt = || {
            if self.endpoint.is_shut_down(SEND_SHUTDOWN) {
                return Some(Err(Errno::EPIPE));
            }
            if !peer.may_receive_from(&self.endpoint) {
                return Some(Err(Errno::EPERM));
            }
            let partners = peer.is_connected_to(&self.endpoint);
            let mut queue = peer.queue.lock();
            if queue.closed {
                return Some(Err(Errno::ECONNREFUSED));
            }
            if peer.is_shut_down(RCV_SHUTDOWN) {
                return Some(Err(Errno::EPIPE));
            }
            let cost = packet.as_ref()?.charged_size();
            let used = self.endpoint.send_charged_bytes();
            if used >= limit {
                return None;
            }
            if !partners && queue.packets.len() > self.max_dgram_qlen() {
                self.register_blocked_sender(&mut queue);
                return None;
            }
            if !self.endpoint.charge_send(cost) {
                return refused_memory(used);
            }
            queue.packets.push_back(packet.take()?);
            Some(Ok(()))
        };
        match wait.wait_on(&self.endpoint.writable, attempt) {
            Err(Errno::ECONNREFUSED) if message.to.is_none() => {
                // The peer is gone for good.
                self.endpoint.set_datagram_peer(None);
                Err(Errno::ECONNREFUSED)
            }
            result => {
                result?;
                peer.readable.notify_events(Events::READABLE);
                Ok(message.data.len())
            }
        }
    }

    /// Sends bytes of a stream if that takes no more than putting them into a queue. `None`: it
    /// takes more.
    pub(super) fn send_fast(&self, data: &[u8]) -> Option<usize> {
        let peer = self.peer.get()?;
        let special = self.socket_type != SocketType::Stream
            || self.endpoint.options.pass_credentials()
            || peer.options.pass_credentials();
        if special {
            None
        } else {
            self.stream(peer).send_fast(data)
        }
    }

    /// Receives bytes of a stream that came with nothing else, waiting for the first. `None`: there
    /// is more to it.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`].
    pub(super) fn receive_fast(&self, buf: &mut [u8], wait: WaitPolicy) -> Result<Option<usize>> {
        let options = &self.endpoint.options;
        let special = self.socket_type != SocketType::Stream
            || options.pass_credentials()
            || options.receive_low_water() > 1
            || options.peek_offset() >= 0;
        let Some(peer) = self.peer.get().filter(|_| !special) else {
            return Ok(None);
        };
        self.stream(peer).receive_fast(buf, wait)
    }

    /// Receives; what `SocketOps::receive` promises.
    pub(super) fn receive_message(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<ReceivedMessage> {
        if self.socket_type == SocketType::Stream {
            return self.receive_bytes(buf, flags, wait);
        }
        let (data, got) = self.receive_message_to_vec(buf.len(), flags, wait)?;
        buf[..data.len()].copy_from_slice(&data);
        Ok(got)
    }

    /// Receives; what `SocketOps::receive_to_vec` promises.
    pub(super) fn receive_message_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        if self.socket_type == SocketType::Stream {
            let peer = self.stream_peer()?;
            return self
                .stream(peer)
                .receive_to_vec(limit, flags, self.senders(), wait);
        }
        let (mut data, mut got) = self.dequeue_message(flags, wait)?;
        let whole = data.len();
        data.truncate(limit);
        got.copied = data.len();
        // Receiving takes a message whole, looking at one no more than was copied.
        self.endpoint.options.advance_peek_offset(
            if flags.contains(MsgFlags::PEEK) {
                got.copied
            } else {
                whole
            },
            flags,
        );
        Ok((data, got))
    }

    /// The endpoint that the bytes of a stream come from.
    fn stream_peer(&self) -> Result<&UnixEndpoint> {
        self.peer.get().map(|peer| &**peer).ok_or(Errno::EINVAL)
    }

    fn receive_bytes(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<ReceivedMessage> {
        let peer = self.stream_peer()?;
        self.stream(peer).receive(buf, flags, self.senders(), wait)
    }

    /// Senders whose bytes one call may receive together.
    fn senders(&self) -> Senders {
        if self.endpoint.options.pass_credentials() {
            Senders::One
        } else {
            Senders::Any
        }
    }

    fn dequeue_message(
        &self,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        let peer = self.peer.get();
        if self.socket_type == SocketType::Seqpacket && peer.is_none() {
            return Err(Errno::ENOTCONN);
        }
        if flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let peek = flags.contains(MsgFlags::PEEK);
        let mut peeked = None;
        let mut blocked = BTreeMap::new();
        let attempt = || {
            let mut queue = self.endpoint.queue.lock();
            let mut skip = self.endpoint.options.peek_skip(flags);
            let beyond = queue.packets.iter().find(|packet| {
                let within = skip == 0 || skip < packet.data.len();
                skip -= if within { 0 } else { packet.data.len() };
                within
            });
            let Some(first) = beyond else {
                return self.endpoint.empty_queue_result(queue, None);
            };
            if peek {
                peeked = first.rights.as_ref().map(ScmRights::peek);
                let (data, from, credentials) = (
                    first.data[skip..].to_vec(),
                    first.from.clone(),
                    first.credentials,
                );
                return Some(Ok(Some(UnixMessage {
                    data,
                    from,
                    credentials,
                    rights: None,
                    timestamp_ns: first.timestamp_ns,
                })));
            }
            let packet = queue.packets.pop_front();
            blocked = core::mem::take(&mut queue.blocked_senders);
            if peer.is_some() {
                queue.charged_bytes -= packet.as_ref().map_or(0, UnixMessage::charged_size);
                let has = queue.charged_bytes;
                queue.memory.trim(has);
            }
            Some(Ok(packet))
        };
        let Some(packet) = wait.wait_on(&self.endpoint.readable, attempt)? else {
            return Ok((Vec::new(), ReceivedMessage::default()));
        };
        let cost = packet.charged_size();
        let UnixMessage {
            data,
            from,
            credentials,
            rights,
            timestamp_ns,
        } = packet;
        // As on Linux, `SO_TIMESTAMPING` alone does not count here.
        let stamped = self
            .endpoint
            .options
            .timestamp_option
            .load(Ordering::Relaxed)
            != 0;
        let control = if stamped {
            self.endpoint.options.timestamp_messages(timestamp_ns)
        } else {
            Vec::new()
        };
        let mut got = ReceivedMessage {
            message_len: data.len(),
            rights,
            control,
            ..ReceivedMessage::default()
        };
        if let Some(from) = from {
            got.from = Some(Address::Unix(from.name()));
            if !peek {
                from.uncharge_send(cost);
            }
        }
        for waiting in blocked.values().filter_map(Weak::upgrade) {
            waiting.notify_write_space();
        }
        if let Some(peer) = peer
            && !peek
        {
            peer.notify_write_space();
        }
        if peeked.is_some() {
            got.rights = peeked.map(PeekedRights::into_rights);
        }
        if self.endpoint.options.pass_credentials() {
            got.credentials = Some(credentials.unwrap_or(Ucred::OVERFLOW));
        }
        Ok((data, got))
    }
}
