//! Sockets that speak IP itself (`raw(7)`), and those that may send nothing but echo requests
//! (`icmp(7)`).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicI32, AtomicU16, AtomicUsize, Ordering};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;
use task::Mutex;

use super::corked::{CorkState, Corked};
use super::datagram::Datagram;
use super::datagram_socket::{DatagramProtocol, DatagramReceiver, DatagramSocket, SendParameters};
use super::icmp_errors::UnreachableReport;
use super::inet_socket::{Family, InetSocket};
use super::ip::{self, ECHO, ECHO6, ICMP, ICMP6};
use super::network::Route;
use super::option_table::{IP, IPV6};
use super::stack::InetStack;
use super::{frame, link_of, options, with_link};
use crate::socket::endpoint::SEND_SHUTDOWN;
use crate::socket::error_queue::ErrorQueueEntry;
use crate::socket::message;
use crate::socket::socket_list::SocketList;
use crate::socket::{caller_groups, caller_ucred};
use crate::{Address, Caller, MsgFlags, OptionAccess, OutgoingMessage, Socket, SocketType};

const MAX_DATAGRAM: usize = 65_535;
/// Bytes of the longest packet of several messages, without IP's header.
const LONGEST_PACKET: usize = MAX_DATAGRAM - 20;
/// `IPPROTO_RAW`: programs make the headers, and nothing is received.
const IPPROTO_RAW: u8 = 255;
/// The level of the options of these sockets, and of ICMPv6.
const SOL_RAW: u32 = 255;
const SOL_ICMPV6: u32 = 58;
/// The option of the kinds of messages that are not received (`ICMP_FILTER`, `ICMPV6_FILTER`).
const ICMP_FILTER: u32 = 1;
const IPV6_CHECKSUM: u32 = 7;
/// The offset of the checksum in an ICMPv6 message.
const ICMP6_SUM: i32 = 2;

/// The raw and ping sockets of a stack.
#[derive(Default)]
pub(super) struct RawTables {
    /// The number of raw sockets: with none, nobody looks for them.
    raw_count: AtomicUsize,
    /// All sockets.
    pub(super) sockets: SocketList<RawSocket>,
    /// The ping sockets by family (whether IPv4) and identifier.
    ping_sockets: Mutex<BTreeMap<(bool, u16), Weak<RawSocket>>>,
    /// The identifier before the one that is tried next for who asks for none.
    last_ping_id: AtomicU16,
}

impl RawTables {
    /// Gives sockets that listen to a packet's protocol a copy of it; `payload` makes what is
    /// behind IP's header. Returns whether there were any.
    pub(super) fn deliver(&self, packet: &Datagram, payload: impl Fn() -> Vec<u8>) -> bool {
        if !self.has_raw_sockets() {
            return false;
        }
        let sockets = self.sockets.all();
        let mut any = false;
        for socket in sockets
            .iter()
            .filter(|socket| !socket.is_ping && socket.matches(packet))
        {
            any = true;
            let bare = Datagram {
                data: payload(),
                ..packet.clone()
            };
            socket.receive_packet(bare);
        }
        any
    }

    /// Whether there is any raw socket.
    pub(super) fn has_raw_sockets(&self) -> bool {
        self.raw_count.load(Ordering::Acquire) != 0
    }

    /// The raw sockets that may have sent a packet, of which an error tells.
    pub(super) fn find_senders(
        &self,
        protocol: u8,
        from: IpAddr,
        to: IpAddr,
    ) -> impl Iterator<Item = Arc<RawSocket>> {
        let is_sender = move |socket: &Arc<RawSocket>| {
            let state = *socket.state.lock();
            !socket.is_ping
                && socket.protocol == protocol
                && socket.is_v4() == to.is_ipv4()
                && state.local.is_none_or(|ip| ip == from)
                && state.peer.is_none_or(|peer| peer.ip() == to)
        };
        let sockets = match self.raw_count.load(Ordering::Acquire) {
            0 => None,
            _ => Some(self.sockets.all()),
        };
        sockets.into_iter().flatten().filter(is_sender)
    }

    /// The socket that asks with a number.
    pub(super) fn find_ping(&self, v4: bool, id: u16) -> Option<Arc<RawSocket>> {
        self.ping_sockets
            .lock()
            .get(&(v4, id))
            .and_then(Weak::upgrade)
    }
}

/// Whether the caller is in a group whose members may make ping sockets
/// (`net.ipv4.ping_group_range`).
fn in_ping_group(stack: &InetStack) -> bool {
    let range = &stack.core.sysctls.ping_group_range;
    let may = |group: u32| range.range_contains(group.into());
    may(caller_ucred().gid) || caller_groups().iter().copied().any(may)
}

/// The addresses of a socket: its own and the peer's.
#[derive(Clone, Copy, Default)]
struct State {
    local: Option<IpAddr>,
    /// An asker's number; 0: none yet.
    echo_id: u16,
    peer: Option<SocketAddr>,
    /// The address was not asked for, but came with the peer.
    local_from_connect: bool,
}

/// A raw or ping socket.
pub struct RawSocket {
    _counted: census::Raw,
    pub(super) common: InetSocket,
    pub(super) protocol: u8,
    /// A ping socket: sends nothing but echo requests, and receives nothing but replies to them.
    pub(super) is_ping: bool,
    pub(super) receiver: DatagramReceiver,
    state: Mutex<State>,
    /// Bit `n`: messages of ICMP of kind `n` are not received.
    icmp_filter: Mutex<[u32; 8]>,
    /// The offset of the checksum, over IPv6; -1: none.
    checksum_offset: AtomicI32,
    /// A packet of which more is to come (`MSG_MORE`).
    corked: Corked,
    this: Weak<Self>,
}

impl RawSocket {
    /// A new socket. Everybody may have an asking one (`net.ipv4.ping_group_range`), as on a Debian
    /// that systemd starts.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`.
    pub(super) fn new(
        stack: &Arc<InetStack>,
        family: Family,
        protocol: u8,
        is_ping: bool,
    ) -> Result<Arc<Self>> {
        let own = if family == Family::V4 { ICMP } else { ICMP6 };
        if protocol == 0 || (is_ping && protocol != own) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        if is_ping && !in_ping_group(stack) {
            return Err(Errno::EACCES);
        }
        let common = InetSocket::new(stack, family);
        let id = common.id;
        let socket = Arc::new_cyclic(|this| Self {
            _counted: census::Raw::default(),
            common,
            protocol,
            is_ping,
            receiver: DatagramReceiver::new(stack.core.clone()),
            state: Mutex::default(),
            icmp_filter: Mutex::default(),
            checksum_offset: AtomicI32::new(if protocol == ICMP6 { ICMP6_SUM } else { -1 }),
            corked: Corked::default(),
            this: this.clone(),
        });
        stack.raw.sockets.insert(id, &socket);
        if !is_ping {
            stack.raw.raw_count.fetch_add(1, Ordering::AcqRel);
        }
        Ok(socket)
    }

    pub(super) fn into_socket(self: Arc<Self>) -> Socket {
        DatagramSocket::socket(self)
    }

    /// A reply to what was asked has come.
    pub(super) fn receive_echo_reply(&self, packet: Datagram) {
        let state = *self.state.lock();
        let meant = state.local.is_none_or(|ip| ip == packet.to.ip());
        if meant && state.peer.is_none_or(|peer| peer.ip() == packet.from.ip()) {
            self.receiver.enqueue(packet, &[]);
        }
    }

    /// The raw and ping sockets of its stack.
    fn tables(&self) -> &RawTables {
        &self.common.stack().raw
    }

    fn is_v4(&self) -> bool {
        self.common.family() == Family::V4
    }

    fn matches(&self, packet: &Datagram) -> bool {
        let state = *self.state.lock();
        self.protocol == packet.protocol
            && self.is_v4() == packet.to.is_ipv4()
            && state.local.is_none_or(|ip| ip == packet.to.ip())
            && state.peer.is_none_or(|peer| peer.ip() == packet.from.ip())
    }

    fn receive_packet(&self, mut packet: Datagram) {
        if matches!(self.protocol, ICMP | ICMP6)
            && let Some(kind) = packet.data.first()
            && self.icmp_filter.lock()[usize::from(kind >> 5)] >> (kind & 31) & 1 != 0
        {
            return;
        }
        // Where packets come from is no port's business.
        packet.from.set_port(0);
        if self.is_v4() {
            packet.data = [
                ip::ipv4_header(&packet, packet.data.len()),
                core::mem::take(&mut packet.data),
            ]
            .concat();
        }
        self.receiver.enqueue(packet, &[]);
    }

    /// Gives an asker a number, if it has none.
    fn bind_ping_id(&self, state: &mut State, asked: u16) -> Result<()> {
        if !self.is_ping || state.echo_id != 0 {
            return Ok(());
        }
        let tables = self.tables();
        let mut askers = tables.ping_sockets.lock();
        let free = |id: &u16| *id != 0 && !askers.contains_key(&(self.is_v4(), *id));
        let id = match asked {
            0 => (0..u16::MAX)
                .map(|_| {
                    let last = tables.last_ping_id.fetch_add(1, Ordering::Relaxed);
                    last.wrapping_add(1)
                })
                .find(free),
            // One that somebody has, too: whoever was bound last hears the replies.
            asked => Some(asked),
        };
        let id = id.ok_or(Errno::EADDRINUSE)?;
        askers.insert((self.is_v4(), id), self.this.clone());
        state.echo_id = id;
        Ok(())
    }

    /// An echo request as it goes out: with the socket's number.
    fn echo_request(&self, data: &[u8]) -> Result<Vec<u8>> {
        let kind = if self.is_v4() { ECHO.0 } else { ECHO6.0 };
        let mut message = message::copy_of(data)?;
        let header = message.first_chunk_mut::<8>().ok_or(Errno::EINVAL)?;
        if header[..2] != [kind, 0] {
            return Err(Errno::EINVAL);
        }
        let id = {
            let mut state = self.state.lock();
            self.bind_ping_id(&mut state, 0)?;
            state.echo_id
        };
        header[4..6].copy_from_slice(&id.to_be_bytes());
        Ok(message)
    }

    /// Whether programs make the IP headers (`IP_HDRINCL`).
    fn is_header_included(&self) -> bool {
        self.is_v4()
            && !self.is_ping
            && (self.protocol == IPPROTO_RAW || self.common.options.is_enabled(IP, net::IP_HDRINCL))
    }

    /// Sends a packet whose headers programs do not make. What is lost on its way is not told.
    fn transmit(&self, mut packet: Datagram) -> Result<()> {
        self.fill_checksum(&mut packet);
        ip::strip_udp_header(&mut packet).ok_or(Errno::EINVAL)?;
        self.transmit_whole(packet)
    }

    fn transmit_whole(&self, mut packet: Datagram) -> Result<()> {
        packet.sender = Some(self.receiver.sent.clone());
        let stack = self.common.stack();
        let to = packet.to;
        match stack.network.transmit(stack, packet) {
            // Nobody there wants it: it has gone out.
            Err(Errno::ECONNREFUSED | Errno::ENOPROTOOPT) => Ok(()),
            Err(Errno::EMSGSIZE) => {
                if self.wants_errors()
                    && let Ok(route) = self.route(to)
                {
                    self.receiver.report_too_long(to, route.mtu);
                }
                Err(Errno::EMSGSIZE)
            }
            result => result,
        }
    }

    /// Whether the socket is told why what it sent was refused.
    fn wants_errors(&self) -> bool {
        let option = if self.is_v4() {
            (IP, net::IP_RECVERR)
        } else {
            (IPV6, net::IPV6_RECVERR)
        };
        self.common.options.is_enabled(option.0, option.1)
    }

    /// An ICMP error tells of a packet that the socket has sent, as it tells a UDP socket.
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
        let peer = self.state.lock().peer;
        if tells || report.is_hard && peer.is_some_and(|peer| peer.ip() == report.to.ip()) {
            self.receiver.report_error(report.errno);
        }
    }

    /// The route to a destination, which may be everybody only if the socket says so
    /// (`SO_BROADCAST`).
    fn route(&self, to: SocketAddr) -> Result<Route> {
        let options = &*self.receiver.options;
        let to = self.common.options.with_multicast_interface(to);
        let route = self.common.stack().route_for(options, to)?;
        if route.broadcast && !options.is_enabled(net::SO_BROADCAST) {
            return Err(Errno::EACCES);
        }
        Ok(route)
    }

    fn fill_checksum(&self, packet: &mut Datagram) {
        let at = match self.checksum_offset.load(Ordering::Relaxed) {
            _ if self.is_ping && self.is_v4() => {
                return ip::set_icmp_checksum(&mut packet.data, packet.from.ip(), packet.to.ip());
            }
            at if at < 0 || self.is_v4() => return,
            at => at as usize,
        };
        let Some(place) = packet.data.get_mut(at..at + 2) else {
            return;
        };
        place.fill(0);
        let head = ip::pseudo_header(
            packet.from.ip(),
            packet.to.ip(),
            packet.data.len(),
            self.protocol,
        );
        let sum = ip::checksum(&[&head, &packet.data]);
        packet.data[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

impl DatagramProtocol for RawSocket {
    fn common(&self) -> &InetSocket {
        &self.common
    }

    fn receiver(&self) -> &DatagramReceiver {
        &self.receiver
    }

    fn socket_type(&self) -> SocketType {
        if self.is_ping {
            SocketType::Datagram
        } else {
            SocketType::Raw
        }
    }

    fn protocol_number(&self) -> i32 {
        self.protocol.into()
    }

    /// The port is the protocol, or an asker's number.
    fn addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        let state = *self.state.lock();
        let port = if self.is_ping {
            state.echo_id
        } else {
            self.protocol.into()
        };
        (
            SocketAddr::new(
                state
                    .local
                    .unwrap_or(self.common.family().unspecified_address().ip()),
                port,
            ),
            state.peer,
        )
    }

    fn is_bound(&self) -> bool {
        self.state.lock().local.is_some()
    }

    fn is_udp(&self) -> bool {
        false
    }

    fn bind(&self, _: &Caller<'_>, address: &Address) -> Result<()> {
        let meant = self.common.check_address(address)?;
        let ip = meant.ip();
        let anywhere = ip.is_unspecified() || ip.is_multicast() || self.common.can_nonlocal_bind();
        if !anywhere && !self.common.stack().is_local_address(meant) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.common.bind_to_link(&self.receiver.options, meant)?;
        let mut state = self.state.lock();
        if self.is_ping && state.echo_id != 0 {
            return Err(Errno::EINVAL);
        }
        self.bind_ping_id(&mut state, meant.port())?;
        state.local = Some(ip).filter(|ip| !ip.is_unspecified());
        Ok(())
    }

    fn connect(&self, address: &Address) -> Result<()> {
        if *address == Address::Unspec {
            let mut state = self.state.lock();
            state.peer = None;
            if core::mem::take(&mut state.local_from_connect) {
                state.local = None;
            }
            return Ok(());
        }
        let options = &*self.receiver.options;
        let to = self.common.destination(address)?;
        let to = self.common.peer_on_link(options, to)?;
        let route = self.route(to)?;
        let mut state = self.state.lock();
        self.bind_ping_id(&mut state, 0)?;
        state.local_from_connect |= state.local.is_none();
        state.local.get_or_insert(route.source);
        state.peer = Some(to);
        Ok(())
    }

    fn check_message(&self, _: Option<&Address>, length: usize, flags: MsgFlags) -> Result<()> {
        if length > MAX_DATAGRAM {
            return Err(Errno::EMSGSIZE);
        }
        if flags.contains(MsgFlags::OOB) {
            Err(Errno::EOPNOTSUPP)
        } else {
            Ok(())
        }
    }

    fn send(&self, message: OutgoingMessage<'_>, flags: MsgFlags) -> Result<usize> {
        let len = message.data.len();
        self.check_message(message.to.map(|(_, address)| address), len, flags)?;
        let state = *self.state.lock();
        let to = match message.to {
            Some((_, address)) => self.common.destination(address)?,
            None => state.peer.ok_or(Errno::EDESTADDRREQ)?,
        };
        if self.receiver.endpoint.is_shut_down(SEND_SHUTDOWN) {
            return Err(Errno::EPIPE);
        }
        if to.is_ipv4() != self.is_v4() {
            return Err(Errno::ENETUNREACH);
        }
        let sends = SendParameters::new(&self.common, to.ip(), &message.control)?;
        let route = self.route(sends.by_interface(to))?;
        let source = sends.source.or(state.local).unwrap_or(route.source);
        if self.is_header_included() {
            let packet =
                ip::parse_ipv4_packet(message.data, to.ip(), source, route.interface_index)
                    .ok_or(Errno::EINVAL)?;
            self.receiver
                .queue_tx_timestamps(&message.control, || frame::frame(&packet));
            self.transmit_whole(packet)?;
            return Ok(len);
        }
        // An echo request is always whole.
        let cork = if flags.contains(MsgFlags::MORE) && !self.is_ping {
            CorkState::Waits
        } else {
            CorkState::Goes
        };
        // It goes where its first part was to go.
        if let Some(result) = self.corked.append(message.data, LONGEST_PACKET, cork) {
            result?.map_or(Ok(()), |whole| self.transmit(whole))?;
            return Ok(len);
        }
        let packet = Datagram {
            from: with_link(SocketAddr::new(source, 0), link_of(to, 0)),
            to: with_link(SocketAddr::new(to.ip(), 0), link_of(to, 0)),
            protocol: self.protocol,
            interface_index: route.interface_index,
            ttl: sends.hop_limit as u8,
            tos: sends.traffic_class as u8,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: sends.path_mtu_discovery,
            data: if self.is_ping {
                self.echo_request(message.data)?
            } else {
                message::copy_of(message.data)?
            },
        };
        self.receiver
            .queue_tx_timestamps(&message.control, || frame::frame(&packet));
        self.corked
            .hold(packet, cork)
            .map_or(Ok(()), |whole| self.transmit(whole))?;
        Ok(len)
    }

    fn check_option(&self, _level: u32, _option: u32, _access: OptionAccess) -> Result<()> {
        Ok(())
    }

    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        match (level, option) {
            (SOL_RAW, ICMP_FILTER) if self.protocol == ICMP && !self.is_ping => {
                Ok(self.icmp_filter.lock()[0].to_ne_bytes().to_vec())
            }
            (SOL_ICMPV6, ICMP_FILTER) if self.protocol == ICMP6 && !self.is_ping => {
                Ok(self.icmp_filter.lock().map(u32::to_ne_bytes).concat())
            }
            (SOL_RAW | IPV6, IPV6_CHECKSUM) if !self.is_v4() => Ok(self
                .checksum_offset
                .load(Ordering::Relaxed)
                .to_ne_bytes()
                .to_vec()),
            (SOL_RAW | SOL_ICMPV6, _) => Err(Errno::ENOPROTOOPT),
            _ => options::get(&self.common, None, self.addresses().1, level, option),
        }
    }

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        let word = |at: usize| {
            value
                .get(at..)
                .and_then(|rest| rest.first_chunk())
                .map(|bytes| u32::from_ne_bytes(*bytes))
        };
        match (level, option) {
            (SOL_RAW, ICMP_FILTER) if self.protocol == ICMP && !self.is_ping => {
                // There are 32 kinds of which any may be left out; the others are always received.
                self.icmp_filter.lock()[0] = word(0).ok_or(Errno::EINVAL)?;
                Ok(())
            }
            (SOL_ICMPV6, ICMP_FILTER) if self.protocol == ICMP6 && !self.is_ping => {
                let mut blocked = self.icmp_filter.lock();
                for (i, to) in blocked.iter_mut().enumerate() {
                    *to = word(i * 4).unwrap_or(*to);
                }
                Ok(())
            }
            (SOL_RAW | IPV6, IPV6_CHECKSUM) if !self.is_v4() && !self.is_ping => {
                let at = word(0).ok_or(Errno::EINVAL)?.cast_signed();
                if (self.protocol == ICMP6 && level != SOL_RAW) || (at > 0 && at & 1 != 0) {
                    return Err(Errno::EINVAL);
                }
                self.checksum_offset.store(at.max(-1), Ordering::Relaxed);
                Ok(())
            }
            (SOL_RAW | SOL_ICMPV6, _) => Err(Errno::ENOPROTOOPT),
            _ => options::set(&self.common, None, self.is_bound(), level, option, value),
        }
    }

    fn close(&self) {
        self.tables().sockets.remove(self.common.id);
        if self.is_ping {
            let key = (self.is_v4(), self.state.lock().echo_id);
            let mut askers = self.tables().ping_sockets.lock();
            if askers
                .get(&key)
                .is_some_and(|asker| asker.ptr_eq(&self.this))
            {
                askers.remove(&key);
            }
        } else {
            census::released(self.tables().raw_count.fetch_sub(1, Ordering::AcqRel), 1);
        }
        let corked = self.corked.take();
        drop(corked);
        self.receiver.close();
    }
}
