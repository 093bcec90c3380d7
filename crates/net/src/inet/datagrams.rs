//! Datagrams: what they are, where they wait to be received, and what is said beside their bytes. The same for UDP and for what speaks IP itself.

use super::options::{IP, IPV6};
use super::{Common, Family, network};
use crate::port::{self, RECEIVING, SENDING};
use crate::rare::Beside;
use crate::{Address, Flags, Incoming, Options, Wait};
use abi::errno::Errno;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use fs::poll::{Events, PollTable};
use fs::{File, Result};
use linux_raw_sys::net;

/// What a datagram takes up of the receiver's buffer besides its bytes.
const COST: usize = 256;

/// A datagram under way.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Where it comes from.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// The protocol of IP that it is of.
    pub protocol: u8,
    /// The interface it goes out, and comes in.
    pub interface: u32,
    /// The time to live, or hop limit.
    pub ttl: u8,
    /// The type of service, or traffic class.
    pub tos: u8,
    /// When it arrived, nanoseconds since 1970, if the receiver wants to know.
    pub arrival: u64,
    /// How many the receiver had lost when it arrived.
    pub lost: u32,
    /// What it says: of UDP and UDP-Lite what is behind their header, of others all that is behind IP's.
    pub data: Vec<u8>,
}

/// What waits to be received.
#[derive(Default)]
pub(super) struct Queue {
    datagrams: VecDeque<Datagram>,
    /// What they take up.
    charge: usize,
    closed: bool,
}

/// Where a socket receives datagrams.
pub(super) struct Inbox {
    pub(super) port: port::Port<Queue>,
    pub(super) options: Arc<Options>,
    lost: AtomicU64,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let options = Arc::new(Options::default());
        Self { port: port::Port::new(options.clone()), options, lost: AtomicU64::new(0) }
    }

    /// What waits to be received takes up so many bytes.
    pub(super) fn charge(&self) -> usize {
        self.port.queue.lock().charge
    }

    /// Datagrams that were lost because there was no room, or the filter threw them away.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// A datagram has arrived. `header` is what the filter sees in front of its bytes.
    pub(super) fn take(&self, mut datagram: Datagram, header: &[u8]) {
        if self.options.filter().is_some() {
            let Some(length) = self.options.admits(header, &datagram.data) else {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            };
            datagram.data.truncate(length - header.len());
        }
        datagram.arrival = self.options.arrival();
        datagram.lost = self.lost() as u32;
        {
            let mut queue = self.port.queue.lock();
            if queue.closed || self.port.is_shut(RECEIVING) {
                return;
            }
            let cost = datagram.data.len() + COST;
            if queue.charge + cost > self.options.receive_buffer() && queue.charge > 0 {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            queue.charge += cost;
            queue.datagrams.push_back(datagram);
        }
        self.port.readable.notify_of(Events::READABLE);
    }

    fn next(&self, flags: Flags, wait: Wait) -> Result<Option<Datagram>> {
        if flags.contains(Flags::OOB) {
            return Err(Errno::EAGAIN);
        }
        let attempt = || {
            if let Some(error) = self.port.take_error() {
                return Some(Err(error));
            }
            let mut queue = self.port.queue.lock();
            let found = if flags.contains(Flags::PEEK) {
                queue.datagrams.front().cloned()
            } else {
                let taken = queue.datagrams.pop_front();
                queue.charge -= taken.as_ref().map_or(0, |d| d.data.len() + COST);
                taken
            };
            match found {
                Some(datagram) => Some(Ok(Some(datagram))),
                None => self.port.is_shut(RECEIVING).then_some(Ok(None)),
            }
        };
        wait.at(&self.port.readable, attempt)
    }

    /// What a datagram's receiver is told of it.
    fn incoming(&self, common: &Common, datagram: &Datagram) -> Incoming {
        let mut beside = self.options.stamps(datagram.arrival);
        if datagram.lost > 0 && self.options.switch(net::SO_RXQ_OVFL) {
            beside.push((net::SOL_SOCKET, net::SO_RXQ_OVFL, datagram.lost.to_ne_bytes().to_vec()));
        }
        if common.options.tells.load(Ordering::Relaxed) {
            tell(common, datagram, &mut beside);
        }
        Incoming { full: datagram.data.len(), from: Some(common.shown(datagram.from)), beside, ..Incoming::default() }
    }

    /// What `Protocol::receive` promises.
    pub(super) fn receive(&self, common: &Common, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        let Some(datagram) = self.next(flags, wait)? else { return Ok(Incoming::default()) };
        let mut got = self.incoming(common, &datagram);
        got.copied = datagram.data.len().min(buf.len());
        buf[..got.copied].copy_from_slice(&datagram.data[..got.copied]);
        Ok(got)
    }

    /// What `Protocol::receive_owned` promises.
    pub(super) fn receive_owned(&self, common: &Common, limit: usize, flags: Flags, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        let Some(mut datagram) = self.next(flags, wait)? else { return Ok((Vec::new(), Incoming::default())) };
        let mut got = self.incoming(common, &datagram);
        datagram.data.truncate(limit);
        got.copied = datagram.data.len();
        Ok((datagram.data, got))
    }

    /// How many bytes the next datagram has.
    pub(super) fn first(&self) -> usize {
        self.port.queue.lock().datagrams.front().map_or(0, |d| d.data.len())
    }

    /// What `FileOps::poll` promises.
    pub(super) fn poll(&self, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.watch(&self.port.readable);
            table.watch(&self.port.writable);
        }
        let shut = |what| self.port.is_shut(what);
        let mut events = Events::WRITABLE | Events::WRBAND;
        events.set(Events::ERR, self.port.failed());
        events.set(Events::HUP, shut(RECEIVING | SENDING));
        events.set(Events::READABLE | Events::RDHUP, shut(RECEIVING));
        events.set(Events::READABLE, shut(RECEIVING) || !self.port.queue.lock().datagrams.is_empty());
        events
    }

    /// What is in it is thrown away, and nothing comes any more.
    pub(super) fn close(&self) {
        let old = core::mem::replace(&mut *self.port.queue.lock(), Queue { closed: true, ..Queue::default() });
        drop(old);
        self.port.shut(RECEIVING | SENDING);
    }

    pub(super) fn pause(&self, file: &File, sends: bool) -> Wait {
        let timeout = if sends { self.options.send_timeout() } else { self.options.receive_timeout() };
        Wait { nonblocking: file.nonblocking(), timeout }
    }
}

/// What goes into a datagram's header.
pub(super) struct Sends {
    pub(super) hops: i32,
    pub(super) class: i32,
    pub(super) source: Option<IpAddr>,
}

impl Sends {
    /// What a datagram is sent with: as the options say, unless the message says otherwise.
    ///
    /// # Errors
    /// `EINVAL` for what makes no sense, or an address that is not this host's.
    pub(super) fn new(common: &Common, to: IpAddr, beside: &[Beside]) -> Result<Self> {
        let options = &common.options;
        let (hops, class) = match (to.is_multicast(), to.is_ipv4()) {
            (false, true) => ((IP, net::IP_TTL), (IP, net::IP_TOS)),
            (true, true) => ((IP, net::IP_MULTICAST_TTL), (IP, net::IP_TOS)),
            (false, false) => ((IPV6, net::IPV6_UNICAST_HOPS), (IPV6, net::IPV6_TCLASS)),
            (true, false) => ((IPV6, net::IPV6_MULTICAST_HOPS), (IPV6, net::IPV6_TCLASS)),
        };
        let chosen = |(level, option)| options.number(level, option);
        let mut sends = Self { hops: chosen(hops), class: chosen(class), source: None };
        for (level, kind, bytes) in beside {
            let number = match (bytes.first_chunk(), &bytes[..]) {
                (Some(word), _) => i32::from_ne_bytes(*word),
                (None, [byte]) if *level == IP => i32::from(*byte),
                _ => return Err(Errno::EINVAL),
            };
            let ip = |at: usize, len: usize| -> Result<IpAddr> {
                let octets = bytes.get(at..at + len).ok_or(Errno::EINVAL)?;
                let v4 = octets.first_chunk::<4>().map(|octets| IpAddr::from(*octets));
                octets.first_chunk::<16>().map(|octets| IpAddr::from(*octets).to_canonical()).or(v4).ok_or(Errno::EINVAL)
            };
            match (*level, *kind) {
                (IP, net::IP_TTL) | (IPV6, net::IPV6_HOPLIMIT) => sends.hops = number,
                (IP, net::IP_TOS) | (IPV6, net::IPV6_TCLASS) => sends.class = number,
                // The address to send from stands behind the interface, or before it.
                (IP, net::IP_PKTINFO) => sends.source = Some(ip(4, 4)?),
                (IPV6, net::IPV6_PKTINFO) => sends.source = Some(ip(0, 16)?),
                _ => return Err(Errno::EINVAL),
            }
        }
        // "As it is chosen."
        if sends.hops == -1 {
            sends.hops = chosen(hops);
        }
        if sends.class == -1 {
            sends.class = chosen(class);
        }
        sends.source = sends.source.filter(|ip| !ip.is_unspecified());
        let known = sends.source.is_none_or(network::is_local);
        let fits = |number: i32| (0..=255).contains(&number);
        if known && fits(sends.hops) && fits(sends.class) { Ok(sends) } else { Err(Errno::EINVAL) }
    }
}

/// Says what a socket's options ask for of a datagram that it received.
fn tell(common: &Common, datagram: &Datagram, told: &mut Vec<Beside>) {
    let wanted = |level, option| common.options.is_on(level, option);
    let number = |n: u8| i32::from(n).to_ne_bytes().to_vec();
    if let IpAddr::V4(to) = datagram.to.ip() {
        if wanted(IP, net::IP_PKTINFO) {
            // `struct in_pktinfo`: interface, the address it was taken at, the one in its header.
            let bytes = [datagram.interface.to_ne_bytes(), to.octets(), to.octets()].concat();
            told.push((IP, net::IP_PKTINFO, bytes));
        }
        if wanted(IP, net::IP_RECVTTL) {
            told.push((IP, net::IP_TTL, number(datagram.ttl)));
        }
        if wanted(IP, net::IP_RECVTOS) {
            told.push((IP, net::IP_TOS, alloc::vec![datagram.tos]));
        }
        if wanted(IP, net::IP_RECVORIGDSTADDR) {
            told.push((IP, net::IP_RECVORIGDSTADDR, Address::Inet(datagram.to).encode()));
        }
    }
    if common.family == Family::V6 {
        if wanted(IPV6, net::IPV6_RECVPKTINFO) {
            let ip = match datagram.to.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let bytes = [&ip.octets()[..], &datagram.interface.to_ne_bytes()].concat();
            told.push((IPV6, net::IPV6_PKTINFO, bytes));
        }
        if wanted(IPV6, net::IPV6_RECVHOPLIMIT) {
            told.push((IPV6, net::IPV6_HOPLIMIT, number(datagram.ttl)));
        }
        if wanted(IPV6, net::IPV6_RECVTCLASS) {
            told.push((IPV6, net::IPV6_TCLASS, number(datagram.tos)));
        }
    }
}
