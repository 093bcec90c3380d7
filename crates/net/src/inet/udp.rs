//! UDP sockets: queues of datagrams. UDP-Lite is the same with ports of its own: without packets there is no checksum to cover less.

use super::datagrams::{Inbox, Sends};
use super::table::{Bound, Place, Scope, Sharing, Table, share};
use super::{Common, Datagram, Family, network, packets};
use crate::port::{RECEIVING, SENDING};
use crate::{Address, Caller, Flags, Incoming, Kind, Outgoing, Protocol, Socket, Wait};
use abi::errno::Errno;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::net;
use task::Mutex;

/// The longest datagram over IPv4, bytes; over IPv6 it is 20 more.
const LONGEST_V4: usize = 65_507;
const LONGEST_V6: usize = 65_527;
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
    let shared = |socket: &Arc<Udp>| socket.inbox.options.switch(net::SO_REUSEPORT);
    let receiver = match &receivers[..] {
        [] => return Err(Errno::ECONNREFUSED),
        all if all.iter().all(shared) => &all[share(datagram.from, datagram.to, all.len())],
        // The one that was bound last.
        [.., last] => last,
    };
    receiver.take(datagram);
    Ok(())
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
    pub(super) inbox: Inbox,
    state: Mutex<State>,
    /// Whom it talks to.
    peer: Mutex<Option<SocketAddr>>,
    this: Weak<Udp>,
}

impl Bound for Udp {
    fn sharing(&self) -> Sharing {
        Sharing {
            address: self.inbox.options.switch(net::SO_REUSEADDR),
            listens: false,
            port: self.inbox.options.switch(net::SO_REUSEPORT).then_some(self.common.uid),
        }
    }
}

impl Udp {
    pub(super) fn new(family: Family, protocol: u8) -> Arc<Self> {
        let common = Common::new(family);
        let id = common.id;
        let socket = Arc::new_cyclic(|this| Self {
            common,
            protocol,
            inbox: Inbox::new(),
            state: Mutex::default(),
            peer: Mutex::new(None),
            this: this.clone(),
        });
        ALL.lock().insert(id, Arc::downgrade(&socket));
        socket
    }

    pub(super) fn into_socket(self: Arc<Self>) -> Socket {
        let options = self.inbox.options.clone();
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

    fn take(&self, datagram: Datagram) {
        let header = packets::udp_header(&datagram);
        self.inbox.take(datagram, &header);
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
        if broadcast && !self.inbox.options.switch(net::SO_BROADCAST) {
            return Err(Errno::EACCES);
        }
        Ok(to)
    }

    fn release(&self) {
        ALL.lock().remove(&self.common.id);
        let place = self.state.lock().place.take();
        drop(place);
        self.inbox.close();
    }
}

impl FileOps for Udp {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, Flags::empty(), self.inbox.pause(file, false)).map(|incoming| incoming.copied)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        self.send(Outgoing::plain(buf), Flags::empty(), self.inbox.pause(file, true))
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        self.inbox.poll(table)
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
        self.inbox.port.shut((u8::from(receiving) * RECEIVING) | (u8::from(sending) * SENDING));
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
        if let Some(error) = self.inbox.port.take_error() {
            return Err(error);
        }
        if self.inbox.port.is_shut(SENDING) {
            return Err(Errno::EPIPE);
        }
        let sends = Sends::new(&self.common, to.ip(), &message.beside)?;
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
                self.inbox.port.set_error(error);
                self.inbox.port.readable.notify();
            }
            _ => {}
        }
        Ok(len)
    }

    fn receive(&self, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        self.inbox.receive(&self.common, buf, flags, wait)
    }

    fn receive_owned(&self, limit: usize, flags: Flags, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        self.inbox.receive_owned(&self.common, limit, flags, wait)
    }

    fn take_error(&self) -> Option<Errno> {
        self.inbox.port.take_error()
    }

    fn queued(&self, incoming: bool) -> usize {
        if incoming { self.inbox.first() } else { 0 }
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
