//! UDP sockets: queues of datagrams. UDP-Lite is the same with ports of its own: without packets there is no checksum to cover less.

use super::options::{IP, IPV6};
use super::table::{Bound, Place, Scope, Sharing, Table, share};
use super::{Common, Family, network};
use crate::port::{self, RECEIVING, SENDING};
use crate::{Address, Caller, Flags, Incoming, Kind, Options, Outgoing, Protocol, Socket, Wait};
use abi::errno::Errno;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::net;
use task::Mutex;

/// The longest datagram over IPv4, bytes; over IPv6 it is 20 more.
const LONGEST_V4: usize = 65_507;
const LONGEST_V6: usize = 65_527;
/// What a datagram takes up of the receiver's buffer besides its bytes.
const COST: usize = 256;

/// A datagram under way.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Where it comes from.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// The protocol: UDP's number, or UDP-Lite's.
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
    /// What it says.
    pub data: Vec<u8>,
}

impl Datagram {
    /// The header of a packet with it, without a checksum, which is not needed where nothing is lost.
    fn header(&self) -> [u8; 8] {
        let mut header = [0; 8];
        let length = (self.data.len() + 8) as u16;
        for (to, number) in header.chunks_exact_mut(2).zip([self.from.port(), self.to.port(), length]) {
            to.copy_from_slice(&number.to_be_bytes());
        }
        header
    }
}

#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Datagram>,
    /// What they take up.
    charge: usize,
    closed: bool,
}

static PORTS: Table<Udp> = Table::new();
static LITE_PORTS: Table<Udp> = Table::new();

/// The ports of UDP or, by its number, of UDP-Lite.
fn ports(protocol: u8) -> &'static Table<Udp> {
    if u32::from(protocol) == net::IPPROTO_UDPLITE as u32 { &LITE_PORTS } else { &PORTS }
}

/// Every socket, for listings.
pub(super) static ALL: Mutex<BTreeMap<u64, Weak<Udp>>> = Mutex::new(BTreeMap::new());

/// Puts a datagram that has arrived at this host into the queue of whom it is for; of a group, of all who are in it.
///
/// # Errors
/// `ECONNREFUSED` if it is for nobody. One for which there is no room is lost.
pub fn deliver(datagram: Datagram) -> Result<()> {
    let group = datagram.to.ip();
    if group.is_multicast() {
        let members = ports(datagram.protocol).at_port(datagram.to.port());
        for member in members.iter().filter(|socket| socket.common.options.in_group(group)) {
            member.take(datagram.clone());
        }
        return Ok(());
    }
    let score = |socket: &Udp, fit: u8| {
        let peer = *socket.peer.lock();
        peer.is_none_or(|peer| peer == datagram.from).then_some((peer.is_some(), fit))
    };
    let receivers = ports(datagram.protocol).best(datagram.to, score);
    let shared = |socket: &Arc<Udp>| socket.port.options.switch(net::SO_REUSEPORT);
    let receiver = match &receivers[..] {
        [] => return Err(Errno::ECONNREFUSED),
        all if all.iter().all(shared) => &all[share(datagram.from, datagram.to, all.len())],
        // The one that was bound last.
        [.., last] => last,
    };
    receiver.take(datagram);
    Ok(())
}

/// What goes into a datagram's header.
struct Sends {
    hops: i32,
    class: i32,
    source: Option<IpAddr>,
}

#[derive(Default)]
struct State {
    place: Option<Place<Udp>>,
    /// The port was asked for, not chosen when sending.
    bound: bool,
}

/// A socket.
pub struct Udp {
    pub(super) common: Common,
    protocol: u8,
    port: port::Port<Queue>,
    options: Arc<Options>,
    state: Mutex<State>,
    /// Whom it talks to.
    peer: Mutex<Option<SocketAddr>>,
    lost: AtomicU64,
    this: Weak<Udp>,
}

impl Bound for Udp {
    fn sharing(&self) -> Sharing {
        Sharing {
            address: self.options.switch(net::SO_REUSEADDR),
            listens: false,
            port: self.options.switch(net::SO_REUSEPORT).then_some(self.common.uid),
        }
    }
}

impl Udp {
    pub(super) fn new(family: Family, protocol: u8) -> Arc<Self> {
        let common = Common::new(family);
        let id = common.id;
        let options = Arc::new(Options::default());
        let socket = Arc::new_cyclic(|this| Self {
            common,
            protocol,
            port: port::Port::new(options.clone()),
            options,
            state: Mutex::default(),
            peer: Mutex::new(None),
            lost: AtomicU64::new(0),
            this: this.clone(),
        });
        ALL.lock().insert(id, Arc::downgrade(&socket));
        socket
    }

    pub(super) fn into_socket(self: Arc<Self>) -> Socket {
        let options = self.options.clone();
        Socket::new(self, options)
    }

    pub(super) fn is_lite(&self) -> bool {
        i32::from(self.protocol) == net::IPPROTO_UDPLITE as i32
    }

    /// Its own address and the peer's.
    pub(super) fn addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        let local = self.state.lock().place.as_ref().map_or(self.common.family.nowhere(), |place| place.address);
        (local, *self.peer.lock())
    }

    /// What waits to be received takes up so many bytes.
    pub(super) fn charge(&self) -> usize {
        self.port.queue.lock().charge
    }

    /// Datagrams that were lost because there was no room.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn take(&self, mut datagram: Datagram) {
        if self.options.filter().is_some() {
            let header = datagram.header();
            let Some(length) = self.options.admits(&header, &datagram.data) else {
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

    fn place(&self, scope: Scope, port: u16) -> Result<Place<Self>> {
        ports(self.protocol).bind(&self.this.upgrade().ok_or(Errno::EINVAL)?, scope, port)
    }

    /// The address datagrams go out from, with a port; an interface's own address if the socket has none.
    fn source(&self, route: &network::Route) -> Result<SocketAddr> {
        let mut state = self.state.lock();
        if state.place.is_none() {
            let scope = Scope::new(self.common.family.nowhere().ip(), self.common.only_v6());
            state.place = Some(self.place(scope, 0)?);
        }
        let address = state.place.as_ref().map_or(self.common.family.nowhere(), |place| place.address);
        let ip = address.ip();
        Ok(if ip.is_unspecified() || ip.is_multicast() { SocketAddr::new(route.source, address.port()) } else { address })
    }

    /// How a destination is reached: a group through the interface that was chosen for it.
    fn route(&self, to: SocketAddr) -> Result<network::Route> {
        let network = network::current();
        if !to.ip().is_multicast() {
            return network.route(to.ip());
        }
        match self.common.options.multicast_source(to.is_ipv4()) {
            Some(source) => network.route(source),
            None => network.route(to.ip()),
        }
    }

    /// A program's address; an `AF_INET6` socket takes those of `AF_INET`, too.
    fn destination(&self, address: &Address) -> Result<SocketAddr> {
        let to = match (self.common.family, address) {
            (Family::V6, Address::Inet(SocketAddr::V4(v4))) => {
                let mapped = SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port());
                self.common.destination(&Address::Inet(mapped))?
            }
            _ => self.common.destination(address)?,
        };
        let broadcast = matches!(to.ip(), IpAddr::V4(ip) if ip.is_broadcast() || ip.octets() == [127, 255, 255, 255]);
        if broadcast && !self.options.switch(net::SO_BROADCAST) {
            return Err(Errno::EACCES);
        }
        Ok(to)
    }

    /// What a datagram is sent with: as the options say, unless the message says otherwise.
    ///
    /// # Errors
    /// `EINVAL` for what makes no sense, or an address that is not this host's.
    fn sends(&self, to: SocketAddr, beside: &[(u32, u32, Vec<u8>)]) -> Result<Sends> {
        let options = &self.common.options;
        let (hops, class) = match (to.ip().is_multicast(), to.is_ipv4()) {
            (false, true) => ((IP, net::IP_TTL), (IP, net::IP_TOS)),
            (true, true) => ((IP, net::IP_MULTICAST_TTL), (IP, net::IP_TOS)),
            (false, false) => ((IPV6, net::IPV6_UNICAST_HOPS), (IPV6, net::IPV6_TCLASS)),
            (true, false) => ((IPV6, net::IPV6_MULTICAST_HOPS), (IPV6, net::IPV6_TCLASS)),
        };
        let chosen = |(level, option)| options.number(level, option);
        let mut sends = Sends { hops: chosen(hops), class: chosen(class), source: None };
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

    fn receive_datagram(&self, flags: Flags, wait: Wait) -> Result<Option<Datagram>> {
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
    fn incoming(&self, datagram: &Datagram) -> Incoming {
        let mut beside = self.options.stamps(datagram.arrival);
        if datagram.lost > 0 && self.options.switch(net::SO_RXQ_OVFL) {
            beside.push((net::SOL_SOCKET, net::SO_RXQ_OVFL, datagram.lost.to_ne_bytes().to_vec()));
        }
        if self.common.options.tells.load(Ordering::Relaxed) {
            self.tell(datagram, &mut beside);
        }
        Incoming { full: datagram.data.len(), from: Some(self.common.shown(datagram.from)), beside, ..Incoming::default() }
    }

    fn tell(&self, datagram: &Datagram, told: &mut Vec<(u32, u32, Vec<u8>)>) {
        let wanted = |level, option| self.common.options.is_on(level, option);
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
        if self.common.family == Family::V6 {
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

    fn release(&self) {
        ALL.lock().remove(&self.common.id);
        let place = self.state.lock().place.take();
        drop(place);
        let old = {
            let mut queue = self.port.queue.lock();
            core::mem::replace(&mut *queue, Queue { closed: true, ..Queue::default() })
        };
        drop(old);
        self.port.shut(RECEIVING | SENDING);
    }

    fn pause(&self, file: &File, sends: bool) -> Wait {
        let timeout = if sends { self.options.send_timeout() } else { self.options.receive_timeout() };
        Wait { nonblocking: file.nonblocking(), timeout }
    }
}

impl FileOps for Udp {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, Flags::empty(), self.pause(file, false)).map(|incoming| incoming.copied)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        self.send(Outgoing::plain(buf), Flags::empty(), self.pause(file, true))
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
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

    fn closed(&self, _: &File) {
        self.release();
    }
}

impl Protocol for Udp {
    fn family(&self) -> u32 {
        self.common.family.number()
    }

    fn kind(&self) -> Kind {
        Kind::Datagram
    }

    fn number(&self) -> i32 {
        i32::from(self.protocol)
    }

    fn listening(&self) -> bool {
        false
    }

    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()> {
        let meant = self.common.bindable(caller, address)?;
        let mut state = self.state.lock();
        if state.place.is_some() {
            return Err(Errno::EINVAL);
        }
        state.place = Some(self.place(Scope::new(meant.ip(), self.common.only_v6()), meant.port())?);
        state.bound = meant.port() != 0;
        Ok(())
    }

    fn connect(&self, _: &Caller<'_>, address: &Address, _: Wait) -> Result<()> {
        if *address == Address::Unspecified {
            *self.peer.lock() = None;
            let place = {
                let mut state = self.state.lock();
                if state.bound { None } else { state.place.take() }
            };
            drop(place);
            return Ok(());
        }
        let to = self.destination(address)?;
        let route = self.route(to)?;
        self.source(&route)?;
        if let Some(place) = &mut self.state.lock().place
            && place.address.ip().is_unspecified()
        {
            ports(self.protocol).narrow(place, route.source);
        }
        *self.peer.lock() = Some(to);
        Ok(())
    }

    fn listen(&self, _: usize) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self, _: Wait) -> Result<Socket> {
        Err(Errno::EOPNOTSUPP)
    }

    fn local(&self) -> Address {
        self.common.shown(self.addresses().0)
    }

    fn peer(&self) -> Result<Address> {
        let peer = *self.peer.lock();
        peer.map(|peer| self.common.shown(peer)).ok_or(Errno::ENOTCONN)
    }

    fn shutdown(&self, receiving: bool, sending: bool) -> Result<()> {
        let connected = self.peer.lock().is_some();
        self.port.shut((u8::from(receiving) * RECEIVING) | (u8::from(sending) * SENDING));
        // Linux does it, and says so all the same.
        if connected { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    fn send(&self, message: Outgoing<'_>, flags: Flags, _: Wait) -> Result<usize> {
        if flags.contains(Flags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let len = message.data.len();
        if len > if self.common.family == Family::V4 { LONGEST_V4 } else { LONGEST_V6 } {
            return Err(Errno::EMSGSIZE);
        }
        let peer = *self.peer.lock();
        let to = match message.to {
            Some((_, address)) => self.destination(address)?,
            None => peer.ok_or(Errno::EDESTADDRREQ)?,
        };
        if to.port() == 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(error) = self.port.take_error() {
            return Err(error);
        }
        if self.port.is_shut(SENDING) {
            return Err(Errno::EPIPE);
        }
        let sends = self.sends(to, &message.beside)?;
        let route = self.route(to)?;
        let mut from = self.source(&route)?;
        if let Some(ip) = sends.source {
            from.set_ip(ip);
        }
        if from.is_ipv4() != to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let datagram = Datagram {
            from,
            to,
            protocol: self.protocol,
            interface: route.interface,
            ttl: sends.hops as u8,
            tos: sends.class as u8,
            arrival: 0,
            lost: 0,
            data: message.data.to_vec(),
        };
        match network::current().transmit(datagram) {
            // It has gone out; that nobody was there is told by the next call, to one who talks to somebody.
            Err(error) if peer == Some(to) => {
                self.port.set_error(error);
                self.port.readable.notify();
            }
            _ => {}
        }
        Ok(len)
    }

    fn receive(&self, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        let Some(datagram) = self.receive_datagram(flags, wait)? else { return Ok(Incoming::default()) };
        let mut got = self.incoming(&datagram);
        got.copied = datagram.data.len().min(buf.len());
        buf[..got.copied].copy_from_slice(&datagram.data[..got.copied]);
        Ok(got)
    }

    fn receive_owned(&self, limit: usize, flags: Flags, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        let Some(mut datagram) = self.receive_datagram(flags, wait)? else {
            return Ok((Vec::new(), Incoming::default()));
        };
        let mut got = self.incoming(&datagram);
        datagram.data.truncate(limit);
        got.copied = datagram.data.len();
        Ok((datagram.data, got))
    }

    fn take_error(&self) -> Option<Errno> {
        self.port.take_error()
    }

    fn queued(&self, incoming: bool) -> usize {
        if incoming { self.port.queue.lock().datagrams.front().map_or(0, |d| d.data.len()) } else { 0 }
    }

    fn opened(&self, file: &Arc<File>) {
        self.common.opened(file);
    }

    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        super::options::get(&self.common, None, level, option)
    }

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        let bound = self.state.lock().place.is_some();
        super::options::set(&self.common, false, bound, level, option, value)
    }
}
