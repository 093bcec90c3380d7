//! Sending and receiving.

use super::Unix;
use super::port::{MAX_DATAGRAMS, MESSAGE_COST, Mark, Packet, Port, Queue, RECEIVING, ROOM, SENDING};
use super::rights::Rights;
use crate::socket::identity;
use crate::{Address, Flags, Incoming, Kind, Outgoing, Ucred, Wait};
use abi::errno::Errno;
use alloc::sync::{Arc, Weak};
use alloc::vec;
use alloc::vec::Vec;
use fs::poll::Events;
use fs::{File, Result};

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
fn take_bytes(queue: &mut Queue, buf: &mut [u8], peek: bool, who: bool, before: Option<Ucred>) -> Taken {
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

impl Unix {
    /// What a call would find now.
    pub(super) fn poll_transfers(&self) -> Events {
        let mut events = Events::empty();
        let connected = self.peer.get();
        let shut = |what| self.port.is_shut(what);
        events.set(Events::ERR, self.port.failed());
        events.set(Events::HUP, shut(RECEIVING | SENDING) || (self.kind.connects() && connected.is_none()));
        events.set(Events::READABLE | Events::RDHUP, shut(RECEIVING));
        events.set(Events::READABLE, shut(RECEIVING) || self.port.has_news());
        let (used, room) = match (self.kind, connected) {
            (Kind::Datagram, _) => (self.port.sent(), self.port.target().is_none_or(|peer| self.has_room(&peer, true))),
            (_, Some(peer)) => (peer.charged(), true),
            (_, None) => (0, true),
        };
        // As Linux does, so that whoever is told can write more than a little.
        events.set(Events::WRITABLE | Events::WRBAND, room && used * 4 <= self.port.options.send_buffer());
        events
    }

    /// Whether another datagram may wait at `peer`; if not, `tell` has this socket told when one may.
    fn has_room(&self, peer: &Arc<Port>, tell: bool) -> bool {
        if peer.talks_to(&self.port) {
            return true;
        }
        let mut queue = peer.queue.lock();
        let room = queue.closed || queue.packets.len() <= MAX_DATAGRAMS;
        if !room && tell {
            self.wait_at(&mut queue);
        }
        room
    }

    fn wait_at(&self, queue: &mut Queue) {
        let me = Arc::downgrade(&self.port);
        if !queue.blocked.iter().any(|waiting| waiting.ptr_eq(&me)) {
            queue.blocked.push(me);
        }
    }

    /// Sends; what `Protocol::send` promises.
    pub(super) fn transmit(&self, message: Outgoing<'_>, flags: Flags, wait: Wait) -> Result<usize> {
        if flags.contains(Flags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        match self.kind {
            Kind::Stream => self.send_bytes(message, wait),
            Kind::Seqpacket => self.send_packet(message, wait),
            Kind::Datagram => self.send_datagram(message, wait),
        }
    }

    /// Whom the message says it is from, if the receiver may want to know.
    fn sender(&self, peer: &Port, message: &Outgoing<'_>) -> Option<Ucred> {
        let wanted = self.port.options.pass_credentials() || peer.options.pass_credentials();
        message.credentials.or_else(|| wanted.then(identity))
    }

    fn send_bytes(&self, mut message: Outgoing<'_>, wait: Wait) -> Result<usize> {
        let peer = self.peer.get();
        if message.to.is_some() {
            return Err(if peer.is_some() { Errno::EISCONN } else { Errno::EOPNOTSUPP });
        }
        let peer = peer.ok_or(Errno::ENOTCONN)?;
        let credentials = self.sender(peer, &message);
        let limit = self.port.options.send_buffer();
        let data = message.data;
        let mut done = 0;
        while done < data.len() {
            let attempt = || {
                if let Some(error) = self.port.take_error() {
                    return Some(Err(error));
                }
                let mut queue = peer.queue.lock();
                if self.port.is_shut(SENDING) || queue.closed {
                    return Some(Err(Errno::EPIPE));
                }
                let room = limit.saturating_sub(queue.charge);
                if room == 0 {
                    return None;
                }
                let n = room.min(data.len() - done);
                let start = queue.taken + queue.bytes.len() as u64;
                queue.bytes.extend(&data[done..done + n]);
                queue.charge += n;
                let rights = message.rights.take();
                if credentials.is_some() || rights.is_some() {
                    queue.mark(Mark { start, end: start + n as u64, credentials, rights });
                }
                Some(Ok(n))
            };
            match wait.at(&self.port.writable, attempt) {
                Ok(n) => done += n,
                Err(e) if done == 0 || e == Errno::EPIPE => return Err(e),
                Err(_) => break,
            }
            peer.readable.notify_of(Events::READABLE);
        }
        Ok(done)
    }

    fn send_packet(&self, mut message: Outgoing<'_>, wait: Wait) -> Result<usize> {
        let peer = self.peer.get().ok_or(Errno::ENOTCONN)?;
        let limit = self.port.options.send_buffer();
        let credentials = self.sender(peer, &message);
        let mut packet = self.packet(&mut message, credentials, limit)?;
        let attempt = || {
            if let Some(error) = self.port.take_error() {
                return Some(Err(error));
            }
            let mut queue = peer.queue.lock();
            if self.port.is_shut(SENDING) || queue.closed {
                return Some(Err(Errno::EPIPE));
            }
            if queue.charge != 0 && queue.charge + packet.as_ref()?.cost() > limit {
                return None;
            }
            let packet = packet.take()?;
            queue.charge += packet.cost();
            queue.packets.push_back(packet);
            Some(Ok(()))
        };
        wait.at(&self.port.writable, attempt)?;
        peer.readable.notify_of(Events::READABLE);
        Ok(message.data.len())
    }

    fn packet(&self, message: &mut Outgoing<'_>, credentials: Option<Ucred>, limit: usize) -> Result<Option<Packet>> {
        if message.data.len() + MESSAGE_COST > limit {
            return Err(Errno::EMSGSIZE);
        }
        let from = (self.kind == Kind::Datagram).then(|| self.port.clone());
        Ok(Some(Packet { data: message.data.to_vec(), from, credentials, rights: message.rights.take() }))
    }

    fn send_datagram(&self, mut message: Outgoing<'_>, wait: Wait) -> Result<usize> {
        let peer = match message.to {
            Some((caller, address)) => self.find(caller, address)?.port.clone(),
            None => self.port.target().ok_or(Errno::ENOTCONN)?,
        };
        if self.port.options.pass_credentials() {
            self.bind_anywhere()?;
        }
        let limit = self.port.options.send_buffer();
        let credentials = self.sender(&peer, &message);
        let mut packet = self.packet(&mut message, credentials, limit)?;
        let attempt = || {
            if self.port.is_shut(SENDING) {
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
            if peer.is_shut(RECEIVING) {
                return Some(Err(Errno::EPIPE));
            }
            let cost = packet.as_ref()?.cost();
            let used = self.port.sent();
            if used != 0 && used + cost > limit {
                return None;
            }
            if !partners && queue.packets.len() > MAX_DATAGRAMS {
                self.wait_at(&mut queue);
                return None;
            }
            queue.packets.push_back(packet.take()?);
            self.port.charge(cost);
            Some(Ok(()))
        };
        match wait.at(&self.port.writable, attempt) {
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
        let options = &self.port.options;
        let special = self.kind != Kind::Stream || options.pass_credentials() || peer.options.pass_credentials();
        if special || self.port.failed() || self.port.is_shut(SENDING) {
            return None;
        }
        {
            let mut queue = peer.queue.lock();
            if queue.closed || options.send_buffer() < queue.charge + data.len() {
                return None;
            }
            queue.bytes.extend(data);
            queue.charge += data.len();
        }
        peer.readable.notify_of(Events::READABLE);
        Some(data.len())
    }

    /// Receives bytes of a stream that came with nothing else, waiting for the first. `None`: there is more to it.
    ///
    /// # Errors
    /// As [`Wait::at`].
    pub(super) fn receive_plain(&self, buf: &mut [u8], wait: Wait) -> Result<Option<usize>> {
        let options = &self.port.options;
        let special = self.kind != Kind::Stream || options.pass_credentials() || options.receive_least() > 1;
        let Some(peer) = self.peer.get().filter(|_| !special) else { return Ok(None) };
        let attempt = || {
            let mut queue = self.port.queue.lock();
            let n = queue.bytes.len().min(buf.len());
            if n == 0 || !queue.marks.is_empty() {
                let more = !queue.marks.is_empty() || self.port.failed() || self.port.is_shut(RECEIVING);
                return more.then_some(Ok(None));
            }
            queue.take_front(&mut buf[..n]);
            Some(Ok(Some(n)))
        };
        let n = wait.at(&self.port.readable, attempt)?;
        if n.is_some() {
            peer.writable.notify_of(ROOM);
        }
        Ok(n)
    }

    /// Receives; what `Protocol::receive` promises.
    pub(super) fn take_in(&self, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        if self.kind == Kind::Stream {
            return self.receive_bytes(buf, flags, wait);
        }
        let (data, mut got) = self.receive_packet(flags, wait)?;
        got.copied = data.len().min(buf.len());
        buf[..got.copied].copy_from_slice(&data[..got.copied]);
        Ok(got)
    }

    /// Receives; what `Protocol::receive_owned` promises.
    pub(super) fn take_message(&self, limit: usize, flags: Flags, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        /// What a call that waits for all of it is given at once.
        const WHOLE: usize = 1 << 20;
        if self.kind == Kind::Stream {
            let size = if flags.contains(Flags::WAITALL) {
                WHOLE
            } else {
                let any = || match self.port.readable_bytes() {
                    0 => (self.peer.get().is_none() || self.port.failed() || self.port.is_shut(RECEIVING)).then_some(Ok(1)),
                    bytes => Some(Ok(bytes)),
                };
                wait.at(&self.port.readable, any)?
            };
            let mut data = vec![0; size.min(limit)];
            let got = self.receive_bytes(&mut data, flags, wait)?;
            data.truncate(got.copied);
            return Ok((data, got));
        }
        let (mut data, mut got) = self.receive_packet(flags, wait)?;
        data.truncate(limit);
        got.copied = data.len();
        Ok((data, got))
    }

    fn receive_bytes(&self, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        if flags.contains(Flags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let peer = self.peer.get().ok_or(Errno::EINVAL)?;
        let peek = flags.contains(Flags::PEEK);
        let who = self.port.options.pass_credentials();
        let least = if flags.contains(Flags::WAITALL) { buf.len() } else { self.port.options.receive_least().min(buf.len()) };
        let mut got = Incoming::default();
        loop {
            let done = got.copied;
            let before = got.credentials;
            let attempt = || {
                let mut queue = self.port.queue.lock();
                if queue.bytes.is_empty() {
                    drop(queue);
                    if let Some(error) = self.port.take_error() {
                        return Some(Err(error));
                    }
                    return self.port.is_shut(RECEIVING).then(|| Ok(Taken { stop: true, ..Taken::default() }));
                }
                Some(Ok(take_bytes(&mut queue, &mut buf[done..], peek, who, before)))
            };
            let taken = match wait.at(&self.port.readable, attempt) {
                Ok(taken) => taken,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            };
            if !peek && taken.bytes > 0 {
                peer.writable.notify_of(ROOM);
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

    fn receive_packet(&self, flags: Flags, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        if flags.contains(Flags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let peer = self.peer.get();
        if self.kind == Kind::Seqpacket && peer.is_none() {
            return Err(Errno::ENOTCONN);
        }
        let peek = flags.contains(Flags::PEEK);
        let mut seen = Vec::new();
        let mut blocked = Vec::new();
        let attempt = || {
            let mut queue = self.port.queue.lock();
            let Some(first) = queue.packets.front() else {
                drop(queue);
                if let Some(error) = self.port.take_error() {
                    return Some(Err(error));
                }
                return self.port.is_shut(RECEIVING).then_some(Ok(None));
            };
            if peek {
                seen.extend(first.rights.iter().flat_map(|rights| rights.files().iter().cloned()));
                let (data, from, credentials) = (first.data.clone(), first.from.clone(), first.credentials);
                return Some(Ok(Some(Packet { data, from, credentials, rights: None })));
            }
            let packet = queue.packets.pop_front();
            blocked = core::mem::take(&mut queue.blocked);
            if peer.is_some() {
                queue.charge -= packet.as_ref().map_or(0, Packet::cost);
            }
            Some(Ok(packet))
        };
        let Some(packet) = wait.at(&self.port.readable, attempt)? else { return Ok((Vec::new(), Incoming::default())) };
        let cost = packet.cost();
        let Packet { data, from, credentials, rights } = packet;
        let mut got = Incoming { full: data.len(), rights, ..Incoming::default() };
        if let Some(from) = from {
            got.from = Some(Address::Unix(from.name()));
            if !peek {
                from.credit(cost);
            }
        }
        for waiting in blocked.iter().filter_map(Weak::upgrade) {
            waiting.writable.notify_of(ROOM);
        }
        if let Some(peer) = peer
            && !peek
        {
            peer.writable.notify_of(ROOM);
        }
        if !seen.is_empty() {
            got.rights = Some(Rights::new(seen));
        }
        if self.port.options.pass_credentials() {
            got.credentials = Some(credentials.unwrap_or(Ucred::UNKNOWN_SENDER));
        }
        Ok((data, got))
    }
}
