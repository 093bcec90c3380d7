//! UDP sockets: queues of datagrams. UDP-Lite is the same with ports of its own: without packets
//! there is no checksum to cover less.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;
use task::Mutex;

use super::bind_table::{
    BindAddress, BindTable, Bindable, PortBinding, ReusePolicy, reuseport_hash,
};
use super::corked::{CorkState, Corked};
use super::datagram::Datagram;
use super::datagram_socket::{DatagramProtocol, DatagramReceiver, DatagramSocket, SendParameters};
use super::icmp_errors::UnreachableReport;
use super::inet_socket::{Family, InetSocket};
use super::loopback::Loopback;
use super::network::Route;
use super::option_table::{IP, IPV6, UDP, UDP_CORK};
use super::stack::InetStack;
use super::udp_counts::{UdpCounts, UdpEvent};
use super::{frame, ip, link_of, options, with_link};
use crate::socket::core_stack::CoreStack;
use crate::socket::endpoint::SEND_SHUTDOWN;
use crate::socket::error_queue::{ErrorQueueEntry, ExtendedError};
use crate::socket::message;
use crate::socket::socket_list::SocketList;
use crate::{Address, Caller, MsgFlags, OutgoingMessage, Socket, SocketType};

/// The longest datagram over IPv4, bytes; over IPv6 it is 20 more.
const LONGEST_V4: usize = 65_507;
const LONGEST_V6: usize = 65_527;
/// The longest datagram that is looked at at all, bytes.
const MAX_DATAGRAM: usize = 65_535;

/// The UDP and UDP-Lite sockets of a stack.
pub(super) struct UdpTables {
    udp: Arc<BindTable<UdpSocket>>,
    udplite: Arc<BindTable<UdpSocket>>,
    pub(super) counts: Arc<UdpCounts>,
    /// All sockets, for listings.
    pub(super) sockets: SocketList<UdpSocket>,
}

impl UdpTables {
    pub(super) fn new(core: &Arc<CoreStack>) -> Self {
        Self {
            udp: BindTable::new(core.clone()),
            udplite: BindTable::new(core.clone()),
            counts: Arc::default(),
            sockets: SocketList::default(),
        }
    }

    /// The ports of UDP or, by its number, of UDP-Lite.
    fn bind_table(&self, protocol: u8) -> &Arc<BindTable<UdpSocket>> {
        if u32::from(protocol) == net::IPPROTO_UDPLITE as u32 {
            &self.udplite
        } else {
            &self.udp
        }
    }

    /// The number of bound sockets.
    pub(super) fn bound_count(&self) -> usize {
        self.udp.len() + self.udplite.len()
    }

    /// The socket that has sent a datagram, of which an error tells.
    pub(super) fn find_sender(
        &self,
        protocol: u8,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<Arc<UdpSocket>> {
        let score = |socket: &UdpSocket, fit: u8| {
            let peer = *socket.peer.lock();
            peer.is_none_or(|peer| peer == to)
                .then_some((peer.is_some(), fit))
        };
        self.bind_table(protocol).lookup(from, score).last()
    }

    /// Puts a datagram that has arrived at this host into the queue of whom it is for; of a group,
    /// of all who are in it.
    ///
    /// # Errors
    /// `ECONNREFUSED` if it is for nobody. One for which there is no room is lost.
    pub(super) fn deliver(&self, datagram: Datagram) -> Result<()> {
        let group = datagram.to.ip();
        if group.is_multicast() {
            let members = self
                .bind_table(datagram.protocol)
                .sockets_at_port(datagram.to.port());
            for member in members.iter().filter(|socket| {
                socket.hears_interface(datagram.interface_index)
                    && socket
                        .common
                        .options
                        .accepts_multicast(group, datagram.from.ip())
            }) {
                member.receive_datagram(datagram.clone());
            }
            return Ok(());
        }
        let score = |socket: &UdpSocket, fit: u8| {
            let peer = *socket.peer.lock();
            (peer.is_none_or(|peer| peer == datagram.from)
                && socket.hears_interface(datagram.interface_index))
            .then_some((peer.is_some(), fit))
        };
        let receivers = self
            .bind_table(datagram.protocol)
            .lookup(datagram.to, score);
        let shared =
            |socket: &Arc<UdpSocket>| socket.receiver.options.is_enabled(net::SO_REUSEPORT);
        let count = receivers.len();
        let receiver = if count > 1 && receivers.iter().all(shared) {
            let chosen = receivers.iter().find_map(|socket| {
                let options = &socket.receiver.options;
                options.select_reuseport(&datagram.data, count)
            });
            let by_chance = || reuseport_hash(datagram.from, datagram.to, count);
            receivers.into_nth(chosen.unwrap_or_else(by_chance))
        } else {
            receivers.last()
        };
        let Some(receiver) = receiver else {
            self.counts.count(&datagram, UdpEvent::NoPort);
            return Err(Errno::ECONNREFUSED);
        };
        receiver.receive_datagram(datagram);
        Ok(())
    }
}

#[derive(Default)]
struct State {
    binding: Option<PortBinding<UdpSocket>>,
    /// The port was asked for, not chosen when sending.
    port_locked: bool,
    /// The address that was asked for with it, if that is any.
    any: Option<BindAddress>,
}

/// A UDP or UDP-Lite socket.
pub struct UdpSocket {
    _counted: census::Udp,
    pub(super) common: InetSocket,
    protocol: u8,
    pub(super) receiver: DatagramReceiver,
    state: Mutex<State>,
    /// The peer's address.
    peer: Mutex<Option<SocketAddr>>,
    /// A datagram of which more is to come (`MSG_MORE`, `UDP_CORK`).
    corked: Corked,
    this: Weak<UdpSocket>,
}

impl Bindable for UdpSocket {
    fn reuse_policy(&self) -> ReusePolicy {
        ReusePolicy {
            reuse_address: self.receiver.options.is_enabled(net::SO_REUSEADDR),
            is_listening: false,
            reuse_port: self
                .receiver
                .options
                .is_enabled(net::SO_REUSEPORT)
                .then_some(self.common.uid),
        }
    }
}

impl UdpSocket {
    pub(super) fn new(stack: &Arc<InetStack>, family: Family, protocol: u8) -> Arc<Self> {
        let common = InetSocket::new(stack, family);
        let id = common.id;
        let socket = Arc::new_cyclic(|this| Self {
            _counted: census::Udp::default(),
            common,
            protocol,
            receiver: DatagramReceiver::of_udp(&stack.core, &stack.udp.counts),
            state: Mutex::default(),
            peer: Mutex::new(None),
            corked: Corked::default(),
            this: this.clone(),
        });
        stack.udp.sockets.insert(id, &socket);
        socket
    }

    pub(super) fn into_socket(self: Arc<Self>) -> Socket {
        DatagramSocket::socket(self)
    }

    pub(super) fn is_lite(&self) -> bool {
        i32::from(self.protocol) == net::IPPROTO_UDPLITE as i32
    }

    /// The ports of its protocol.
    fn bind_table(&self) -> &Arc<BindTable<Self>> {
        self.common.stack().udp.bind_table(self.protocol)
    }

    /// Whether what comes in by an interface may be for it (`SO_BINDTODEVICE`); what comes from
    /// this host always may.
    fn hears_interface(&self, index: u32) -> bool {
        index == Loopback::INDEX || {
            let bound = self.receiver.options.bound_interface();
            bound == 0 || bound == index
        }
    }

    fn receive_datagram(&self, datagram: Datagram) {
        let header = ip::udp_header(&datagram);
        self.receiver.enqueue(datagram, &header);
    }

    fn bind_port(&self, address: BindAddress, port: u16) -> Result<PortBinding<Self>> {
        let socket = self.this.upgrade().ok_or(Errno::EINVAL)?;
        self.bind_table().bind(&socket, address, port)
    }

    /// Binds a socket that is not used otherwise, so that nobody else has the port.
    ///
    /// # Errors
    /// `EADDRINUSE`, `ENOMEM`.
    pub(super) fn keep_port(&self, at: SocketAddr) -> Result<()> {
        let binding = self.bind_port(BindAddress::new(at.ip(), false), at.port())?;
        self.state.lock().binding = Some(binding);
        Ok(())
    }

    /// The address that it is bound to, from now on with a port.
    fn autobind(&self) -> Result<SocketAddr> {
        let mut state = self.state.lock();
        if state.binding.is_none() {
            let address = BindAddress::new(
                self.common.family().unspecified_address().ip(),
                self.common.is_v6_only(),
            );
            state.binding = Some(self.bind_port(address, 0)?);
        }
        Ok(state
            .binding
            .as_ref()
            .map_or(self.common.family().unspecified_address(), |binding| {
                binding.address
            }))
    }

    /// The source and the destination of a datagram of so many bytes: `to`, or the peer.
    fn source_and_destination(
        &self,
        to: Option<&Address>,
        length: usize,
        flags: MsgFlags,
    ) -> Result<(SocketAddr, SocketAddr)> {
        let from = self.autobind()?;
        if length > MAX_DATAGRAM {
            return Err(Errno::EMSGSIZE);
        }
        if flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = match to {
            Some(address) => self.destination(address)?,
            None => (*self.peer.lock()).ok_or(Errno::EDESTADDRREQ)?,
        };
        match (to.port(), length > self.longest()) {
            (0, _) => Err(Errno::EINVAL),
            (_, true) => Err(Errno::EMSGSIZE),
            _ => Ok((from, to)),
        }
    }

    /// Bytes of the longest datagram.
    fn longest(&self) -> usize {
        if self.common.family() == Family::V4 {
            LONGEST_V4
        } else {
            LONGEST_V6
        }
    }

    /// Whether what is sent with these flags waits for more.
    fn cork_state(&self, flags: MsgFlags) -> CorkState {
        if flags.contains(MsgFlags::MORE) || self.common.options.is_enabled(UDP, UDP_CORK) {
            CorkState::Waits
        } else {
            CorkState::Goes
        }
    }

    /// Sends a datagram. It has gone out; that nobody was there is told by the next call, to one
    /// who talks to somebody or wants to know all.
    ///
    /// # Errors
    /// Those of [`super::network::Network::transmit`] for what has not gone out.
    fn transmit(&self, mut datagram: Datagram) -> Result<()> {
        datagram.sender = Some(self.receiver.sent.clone());
        let stack = self.common.stack();
        let to = datagram.to;
        let tells = self.wants_errors();
        let kept = if tells {
            datagram.data.clone()
        } else {
            Vec::new()
        };
        let result = stack.network.transmit(stack, datagram);
        let event = match result {
            // It has gone out.
            Ok(()) | Err(Errno::ECONNREFUSED) => Some(UdpEvent::Sent),
            Err(Errno::ENOBUFS) => Some(UdpEvent::NoSendRoom),
            Err(_) => None,
        };
        if let Some(event) = event {
            let counts = &stack.udp.counts;
            counts.count_of(self.protocol, to.is_ipv6(), event);
        }
        match result {
            Err(Errno::ECONNREFUSED) => {
                let error = ExtendedError::port_unreachable(to.is_ipv4());
                self.report(&UnreachableReport {
                    error,
                    errno: Errno::ECONNREFUSED,
                    is_hard: true,
                    offender: to.ip(),
                    to,
                    data: &kept,
                });
                Ok(())
            }
            Err(Errno::EMSGSIZE) => {
                if tells && let Ok(route) = self.route(to) {
                    self.receiver.report_too_long(to, route.mtu);
                }
                Err(Errno::EMSGSIZE)
            }
            result => result,
        }
    }

    /// An ICMP error tells of a datagram that the socket has sent: one that wants to know all hears
    /// of it, and one who talks to somebody if it is lasting.
    pub(super) fn report(&self, report: &UnreachableReport<'_>) {
        let tells = self.wants_errors();
        if tells && let Ok(data) = fallible::copy_of(report.data) {
            self.receiver.options.queue_error(ErrorQueueEntry {
                error: report.error,
                offender: Some(SocketAddr::new(report.offender, 0)),
                to: Some(report.to),
                time: None,
                data,
            });
        }
        if tells || report.is_hard && *self.peer.lock() == Some(report.to) {
            self.receiver.report_error(report.errno);
        }
    }

    /// Whether the socket is told why what it sent was refused.
    fn wants_errors(&self) -> bool {
        let options = &self.common.options;
        options.is_enabled(IP, net::IP_RECVERR)
            || (self.common.family() == Family::V6 && options.is_enabled(IPV6, net::IPV6_RECVERR))
    }

    /// The route to a destination; to a group it is through the interface that was chosen for it.
    fn route(&self, to: SocketAddr) -> Result<Route> {
        let (stack, options) = (self.common.stack(), &*self.receiver.options);
        let to = self.common.options.with_multicast_interface(to);
        let route = match self.common.options.multicast_interface(to.ip()) {
            Some((source, interface)) => stack.route_by(to.ip(), source, interface)?,
            None => stack.route_for(options, to)?,
        };
        if route.broadcast && !options.is_enabled(net::SO_BROADCAST) {
            return Err(Errno::EACCES);
        }
        Ok(route)
    }

    /// A program's address; an `AF_INET6` socket takes those of `AF_INET`, too.
    fn destination(&self, address: &Address) -> Result<SocketAddr> {
        let to = match (self.common.family(), address) {
            (Family::V6, Address::Inet(SocketAddr::V4(v4))) => {
                let mapped = SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port());
                self.common.destination(&Address::Inet(mapped))?
            }
            _ => self.common.destination(address)?,
        };
        let broadcast = matches!(to.ip(), IpAddr::V4(ip) if ip.is_broadcast() || ip.octets() == [127, 255, 255, 255]);
        if broadcast && !self.receiver.options.is_enabled(net::SO_BROADCAST) {
            return Err(Errno::EACCES);
        }
        Ok(to)
    }
}

impl DatagramProtocol for UdpSocket {
    fn common(&self) -> &InetSocket {
        &self.common
    }

    fn receiver(&self) -> &DatagramReceiver {
        &self.receiver
    }

    fn socket_type(&self) -> SocketType {
        SocketType::Datagram
    }

    fn protocol_number(&self) -> i32 {
        i32::from(self.protocol)
    }

    fn addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        let local = self
            .state
            .lock()
            .binding
            .as_ref()
            .map_or(self.common.family().unspecified_address(), |binding| {
                binding.address
            });
        (local, *self.peer.lock())
    }

    fn is_bound(&self) -> bool {
        self.state.lock().binding.is_some()
    }

    fn is_udp(&self) -> bool {
        !self.is_lite()
    }

    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()> {
        let meant = self.common.check_bind_address(caller, address)?;
        let mut state = self.state.lock();
        if state.binding.is_some() {
            return Err(Errno::EINVAL);
        }
        self.common.bind_to_link(&self.receiver.options, meant)?;
        let address = BindAddress::new(meant.ip(), self.common.is_v6_only());
        state.binding = Some(self.bind_port(address, meant.port())?);
        state.port_locked = meant.port() != 0;
        state.any = address.ip.is_unspecified().then_some(address);
        Ok(())
    }

    fn connect(&self, address: &Address) -> Result<()> {
        if *address == Address::Unspec {
            *self.peer.lock() = None;
            let binding = {
                let mut state = self.state.lock();
                if state.port_locked {
                    let State { binding, any, .. } = &mut *state;
                    if let (Some(binding), Some(any)) = (binding, *any) {
                        self.bind_table().set_address(binding, any);
                    }
                    None
                } else {
                    state.binding.take()
                }
            };
            drop(binding);
            return Ok(());
        }
        // As on Linux it has a port from now on, whatever the address is.
        self.autobind()?;
        let options = &*self.receiver.options;
        let to = self
            .common
            .peer_on_link(options, self.destination(address)?)?;
        let route = self.route(to)?;
        if let Some(binding) = &mut self.state.lock().binding
            && binding.address.ip().is_unspecified()
        {
            self.bind_table()
                .set_address(binding, BindAddress::connected(route.source));
        }
        *self.peer.lock() = Some(to);
        Ok(())
    }

    fn check_message(&self, to: Option<&Address>, length: usize, flags: MsgFlags) -> Result<()> {
        if self.corked.is_some() && length <= MAX_DATAGRAM {
            return Ok(());
        }
        self.source_and_destination(to, length, flags).map(drop)
    }

    fn send(&self, message: OutgoingMessage<'_>, flags: MsgFlags) -> Result<usize> {
        let len = message.data.len();
        // It goes where its first part was to go.
        if len <= MAX_DATAGRAM
            && !flags.contains(MsgFlags::OOB)
            && let Some(result) =
                self.corked
                    .append(message.data, self.longest(), self.cork_state(flags))
        {
            if let Some(whole) = result? {
                self.transmit(whole)?;
            }
            return Ok(len);
        }
        let (mut from, to) =
            self.source_and_destination(message.to.map(|(_, address)| address), len, flags)?;
        if let Some(error) = self.receiver.endpoint.take_error() {
            return Err(error);
        }
        if self.receiver.endpoint.is_shut_down(SEND_SHUTDOWN) {
            return Err(Errno::EPIPE);
        }
        let sends = SendParameters::new(&self.common, to.ip(), &message.control)?;
        let route = self.route(sends.by_interface(to))?;
        if from.ip().is_unspecified() || from.ip().is_multicast() {
            from.set_ip(route.source);
        }
        if let Some(ip) = sends.source {
            from.set_ip(ip);
        }
        from = with_link(from, link_of(to, 0));
        if from.is_ipv4() != to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let datagram = Datagram {
            from,
            to,
            protocol: self.protocol,
            interface_index: route.interface_index,
            ttl: sends.hop_limit as u8,
            tos: sends.traffic_class as u8,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: sends.path_mtu_discovery,
            data: message::copy_of(message.data)?,
        };
        self.receiver
            .queue_tx_timestamps(&message.control, || frame::frame(&datagram));
        if let Some(whole) = self.corked.hold(datagram, self.cork_state(flags)) {
            self.transmit(whole)?;
        }
        Ok(len)
    }

    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        if (level, option) == (IPV6, net::IPV6_ADDRFORM) {
            return options::address_form(&self.common, self.addresses().1);
        }
        options::get(&self.common, None, self.addresses().1, level, option)
    }

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        if (level, option) == (IPV6, net::IPV6_ADDRFORM) && self.common.family() == Family::V6 {
            return self.common.set_address_form(value, self.addresses().1);
        }
        options::set(&self.common, None, self.is_bound(), level, option, value)?;
        if (level, option) == (UDP, UDP_CORK)
            && !self.common.options.is_enabled(UDP, UDP_CORK)
            && let Some(whole) = self.corked.take()
        {
            self.transmit(whole)?;
        }
        Ok(())
    }

    fn send_queue_bytes(&self) -> usize {
        self.corked.bytes()
    }

    fn close(&self) {
        self.common.stack().udp.sockets.remove(self.common.id);
        let binding = self.state.lock().binding.take();
        let corked = self.corked.take();
        drop((binding, corked));
        self.receiver.close();
    }
}
