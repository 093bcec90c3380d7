//! From frames of devices to the sockets of their packets.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use abi::errno::Errno;
use ip::v6::discovery::Message;
use ip::v6::icmp::{self, kind};
use ip::v6::mld;
use ip::v6::{self, Header, Packet, Refusal, next, problem};
use ip::{Checksum, Fragment, Reassembled};

use super::output::OutgoingV6;
use crate::inet::datagram::{Datagram, PathMtuDiscovery};
use crate::inet::host::Host;
use crate::inet::host::counts::Counter6;
use crate::inet::host::input::Arrived;
use crate::inet::host::registry::Registered;
use crate::inet::host::state::Class;
use crate::inet::icmp_errors::QuotedError;
use crate::inet::ip::{ICMP6, TCP, UDP, UDP_HEADER, UDP_LITE};
use crate::inet::network::Network;
use crate::inet::stack::InetStack;
use crate::inet::udp_counts::UdpEvent;
use crate::inet::with_link;
use crate::socket::Interface;
use crate::socket::tap::PACKET_HOST;

/// The hop limit of answers.
const HOPS: u8 = 64;

/// A packet that has come in whole.
struct Whole<'a> {
    header: Header,
    protocol: u8,
    /// Offset of the field that says so; none of what was put together out of fragments.
    protocol_at: Option<usize>,
    /// The headers, and all that is behind them.
    head: &'a [u8],
    payload: &'a [u8],
    class: Class,
    has_router_alert: bool,
}

/// An error that is told to who has sent a packet.
#[derive(Clone, Copy)]
struct Complaint {
    kind: u8,
    code: u8,
    info: u32,
    /// Also about a packet to a group.
    also_of_groups: bool,
}

impl Complaint {
    fn new(kind: u8, code: u8, info: u32) -> Self {
        Self {
            kind,
            code,
            info,
            also_of_groups: kind == kind::TOO_BIG,
        }
    }
}

impl Host {
    /// Takes a packet of IPv6 that has come in.
    pub(in crate::inet::host) fn receive_ipv6(
        &self,
        stack: &InetStack,
        arrived: &Arrived<'_>,
        bytes: &[u8],
    ) {
        let (interface, packet_type) = (arrived.interface, arrived.packet_type);
        let counts = &self.counts.v6;
        counts.receive(bytes.len());
        let index = interface.index;
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(refusal) => return self.refuse(stack, index, bytes, refusal),
        };
        let header = packet.header;
        if header.destination.is_multicast() {
            counts.count(Counter6::InMcastPkts);
        }
        if packet.protocol == TCP && !stack.hears_raw_packets() {
            let ends = (header.source.into(), header.destination.into());
            if self.receive_if_open(arrived, ends, header.traffic_class, packet.payload) {
                return counts.count(Counter6::InDelivers);
            }
        }
        // All of it as the interfaces were seen when the packet came, without the tables' lock.
        let view = arrived.view;
        let seen = view.get(index);
        let carries = seen.is_some_and(|seen| seen.carries_ipv6);
        let class = view.class_v6(header.destination, index);
        let source = header.source;
        let believed = source.is_unspecified()
            || v6::is_possible_source(source) && !view.is_here_v6(source, index);
        let may_come = !header.destination.is_loopback()
            && !header.destination.is_unspecified()
            && ip::v6::address::scope(header.destination) > ip::v6::address::Scope::Interface;
        // What is sent to a group on the link is for no single host.
        let is_single = packet_type == PACKET_HOST;
        if !carries || !believed || !may_come || !is_single && class == Class::Own {
            return counts.count(Counter6::InDiscards);
        }
        let forwards = is_single && seen.is_some_and(|seen| seen.forwards_ipv6);
        if class == Class::Other {
            if forwards {
                return self.forward_v6(stack, interface, &packet);
            }
            return counts.count(Counter6::InAddrErrors);
        }
        let mut whole = Whole {
            header,
            protocol: packet.protocol,
            protocol_at: Some(packet.protocol_at),
            head: packet.head,
            payload: packet.payload,
            class,
            has_router_alert: packet.has_router_alert,
        };
        let Ok(fragment) = Fragment::of_v6(&packet, index) else {
            return self.deliver_v6(stack, arrived, &whole);
        };
        counts.count(Counter6::ReasmReqds);
        let (joined, protocol) = match self.reassemble(&self.fragments.v6, &fragment) {
            Reassembled::Whole(joined, protocol) => (joined, protocol),
            Reassembled::Waits => return,
            Reassembled::Overlap | Reassembled::Dropped => {
                return counts.count(Counter6::ReasmFails);
            }
        };
        counts.count(Counter6::ReasmOKs);
        let Ok((protocol, at)) = Packet::parse_joined(protocol, &joined) else {
            return counts.count(Counter6::InHdrErrors);
        };
        whole.protocol = protocol;
        whole.protocol_at = None;
        whole.payload = &joined[at..];
        self.deliver_v6(stack, arrived, &whole);
    }

    /// Drops a packet whose headers make no sense, and tells its sender if that can be.
    fn refuse(&self, stack: &InetStack, index: u32, bytes: &[u8], refusal: Refusal) {
        self.counts.v6.count(Counter6::InHdrErrors);
        let Refusal::Problem {
            code,
            pointer,
            also_of_groups,
        } = refusal
        else {
            return;
        };
        let Ok((header, first, length)) = Header::parse(bytes) else {
            return;
        };
        let class = self.lock_state().class_v6(header.destination, index);
        if class == Class::Other {
            return;
        }
        let end = bytes.len().min(v6::HEADER + length);
        let complaint = Complaint {
            also_of_groups,
            ..Complaint::new(kind::PARAMETER_PROBLEM, code, pointer)
        };
        let (head, payload) = bytes[..end].split_at(v6::HEADER);
        // Whether it is about an error of ICMP only its end shows, which was not read.
        let protocol = v6::parse_quoted(&bytes[..end]).map_or(first, |found| found.1);
        let upper = v6::parse_quoted(&bytes[..end]).map_or(payload, |found| found.2);
        if icmp::may_complain(&header, protocol, upper, also_of_groups) {
            self.complain_v6(stack, index, class, complaint, &header, &[head, payload]);
        }
    }

    /// Gives a whole packet to the sockets, or to the protocol, and complains about it if it is for
    /// nobody.
    fn deliver_v6(&self, stack: &InetStack, arrived: &Arrived<'_>, packet: &Whole<'_>) {
        let counts = &self.counts.v6;
        let interface = arrived.interface;
        let (header, index) = (&packet.header, interface.index);
        let is_own = packet.class == Class::Own;
        match packet.protocol {
            next::NONE => return,
            TCP => {
                if !is_own || header.source.is_unspecified() {
                    return;
                }
                counts.count(Counter6::InDelivers);
                let ends = (header.source.into(), header.destination.into());
                self.receive_tcp(
                    stack,
                    Some(arrived),
                    ends,
                    header.traffic_class,
                    packet.payload,
                );
                if !stack.hears_raw_packets() {
                    return;
                }
            }
            ICMP6 if !self.take_icmp(interface, packet) => return,
            UDP | UDP_LITE if !is_whole_udp(header, packet.protocol, packet.payload) => {
                let counts = &stack.udp.counts;
                counts.count_of(packet.protocol, true, UdpEvent::WrongChecksum);
                return;
            }
            _ => {}
        }
        let Ok(data) = fallible::copy_of(packet.payload) else {
            return counts.count(Counter6::InDiscards);
        };
        let end = |ip: Ipv6Addr| with_link(SocketAddr::new(ip.into(), 0), index);
        let mut datagram = Datagram {
            from: end(header.source),
            to: end(header.destination),
            protocol: packet.protocol,
            interface_index: index,
            ttl: header.hop_limit,
            tos: header.traffic_class,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: PathMtuDiscovery::default(),
            data,
        };
        if crate::inet::ip::strip_udp_header(&mut datagram).is_none() {
            return;
        }
        let result = stack.deliver_packet(datagram);
        let complaint = match result {
            Err(Errno::ECONNREFUSED) => {
                Complaint::new(kind::UNREACHABLE, icmp::unreachable::PORT, 0)
            }
            Err(Errno::ENOPROTOOPT) => {
                counts.count(Counter6::InUnknownProtos);
                let Some(at) = packet.protocol_at else {
                    return;
                };
                Complaint::new(kind::PARAMETER_PROBLEM, problem::HEADER, at as u32)
            }
            _ => {
                if packet.protocol != TCP {
                    counts.count(Counter6::InDelivers);
                }
                return;
            }
        };
        if icmp::may_complain(header, packet.protocol, packet.payload, false) {
            let quote = [packet.head, packet.payload];
            self.complain_v6(stack, index, packet.class, complaint, header, &quote);
        }
    }

    /// Takes what a message of ICMPv6 says of neighbours, routers and groups. Returns whether
    /// sockets may have it.
    fn take_icmp(&self, interface: &Interface, packet: &Whole<'_>) -> bool {
        let (header, index) = (&packet.header, interface.index);
        let counts = &self.counts.v6;
        let is_whole = icmp::is_whole(header.source, header.destination, packet.payload);
        counts.receive_icmp(packet.payload, is_whole);
        if !is_whole {
            return false;
        }
        // What is for another's group only programs want that are in it.
        let is_meant = packet.class == Class::Own
            || self.lock_state().is_in_group_v6(index, header.destination);
        match Message::parse(header, packet.payload) {
            Err(_) => {
                counts.count(Counter6::InHdrErrors);
                return false;
            }
            Ok(Some(message)) if is_meant => {
                self.with_v6(|now, state, work| {
                    state.take_discovery(now, index, header, &message, work);
                });
            }
            Ok(_) => {}
        }
        if matches!(
            packet.payload.first(),
            Some(&(kind::GROUP_QUERY | kind::GROUP_REPORT_V1))
        ) {
            let is_of_link = header.hop_limit == mld::HOPS
                && packet.has_router_alert
                && ip::v6::address::scope(header.source) == ip::v6::address::Scope::Link;
            if is_of_link {
                self.with_v6(|now, state, work| {
                    state.take_group_message(now, index, packet.payload);
                    state.step_report(now, index, work);
                });
            }
        }
        is_meant
    }

    /// Tells who has sent a packet that has come in by an interface what became of it, unless there
    /// were too many.
    fn complain_v6(
        &self,
        stack: &InetStack,
        index: u32,
        class: Class,
        complaint: Complaint,
        header: &Header,
        quote: &[&[u8]; 2],
    ) {
        let to = header.source;
        let is_possible = v6::is_possible_source(to)
            && (complaint.also_of_groups || !header.destination.is_multicast());
        let is_allowed = is_possible && {
            let now = self.now();
            self.lock_state().v6.rate_limit.is_allowed(now, to)
        };
        if !is_allowed {
            return;
        }
        let via = if ip::v6::address::needs_link(to) {
            index
        } else {
            0
        };
        let (Ok(route), Ok(message)) = (
            self.route(to.into(), via),
            icmp::error_message(complaint.kind, complaint.code, complaint.info, quote),
        ) else {
            return;
        };
        let from = match class {
            Class::Own => header.destination.into(),
            _ => route.source,
        };
        self.send_icmp_v6(stack, from, to, route.interface_index, message);
    }

    fn send_icmp_v6(
        &self,
        stack: &InetStack,
        from: IpAddr,
        to: Ipv6Addr,
        interface_index: u32,
        mut message: Vec<u8>,
    ) {
        let IpAddr::V6(source) = from else { return };
        icmp::seal(source, to, &mut message);
        let answer = Datagram {
            from: SocketAddr::new(from, 0),
            to: with_link(SocketAddr::new(to.into(), 0), interface_index),
            protocol: ICMP6,
            interface_index,
            ttl: HOPS,
            tos: 0,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: PathMtuDiscovery::Never,
            data: message,
        };
        // An answer that cannot be sent is lost.
        let _ = self.transmit(stack, answer);
    }

    /// Passes a packet on to another host, or says why not (RFC 8200; RFC 4443).
    fn forward_v6(&self, stack: &InetStack, interface: &Interface, packet: &Packet<'_>) {
        let (header, index) = (&packet.header, interface.index);
        let counts = &self.counts.v6;
        let quote = [packet.head, packet.payload];
        let complain = |complaint: Complaint| {
            if icmp::may_complain_of(packet, complaint.also_of_groups) {
                self.complain_v6(stack, index, Class::Other, complaint, header, &quote);
            }
        };
        // What is known on the link only stays there.
        let stays = ip::v6::address::needs_link(header.source)
            || ip::v6::address::needs_link(header.destination)
            || header.source.is_unspecified();
        if stays {
            counts.count(Counter6::InAddrErrors);
            return complain(Complaint::new(
                kind::UNREACHABLE,
                icmp::unreachable::BEYOND_SCOPE,
                0,
            ));
        }
        if header.hop_limit <= 1 {
            counts.count(Counter6::InHdrErrors);
            return complain(Complaint::new(kind::TIME_EXCEEDED, icmp::HOP_LIMIT, 0));
        }
        let result = self.with_v6(|now, state, work| {
            let (route, _) = state
                .unicast_route_v6(header.destination, 0)
                .map_err(|error| (error, 0))?;
            let mtu = state.interfaces.get(route).map_or(0, Registered::v6_mtu);
            let outgoing = OutgoingV6 {
                interface: route,
                header: Header {
                    hop_limit: header.hop_limit - 1,
                    ..*header
                },
                // The header that follows the first one, whichever it is.
                protocol: packet.first,
                payload: [&packet.head[v6::HEADER..], packet.payload],
                discovery: PathMtuDiscovery::Always,
            };
            state
                .send_as_is_v6(now, &outgoing, work)
                .map_err(|error| (error, mtu))
        });
        match result {
            Ok(()) => counts.count(Counter6::OutForwDatagrams),
            Err((Errno::EMSGSIZE, mtu)) => {
                counts.count(Counter6::InTooBigErrors);
                complain(Complaint::new(kind::TOO_BIG, 0, mtu));
            }
            Err((Errno::ENETUNREACH, _)) => {
                counts.count(Counter6::InNoRoutes);
                complain(Complaint::new(
                    kind::UNREACHABLE,
                    icmp::unreachable::NO_ROUTE,
                    0,
                ));
            }
            Err((Errno::EACCES, _)) => {
                complain(Complaint::new(
                    kind::UNREACHABLE,
                    icmp::unreachable::PROHIBITED,
                    0,
                ));
            }
            Err((Errno::EHOSTUNREACH, _)) => {
                complain(Complaint::new(
                    kind::UNREACHABLE,
                    icmp::unreachable::NO_ROUTE,
                    0,
                ));
            }
            Err(_) => counts.count(Counter6::InDiscards),
        }
    }

    /// Tells the sender of a datagram that did not become whole in time; `quote` has its headers
    /// and first bytes.
    pub(in crate::inet::host) fn complain_of_v6_expiry(
        &self,
        stack: &InetStack,
        index: u32,
        quote: &[u8],
    ) {
        let Ok((header, protocol, payload)) = v6::parse_quoted(quote) else {
            return;
        };
        let class = self.lock_state().class_v6(header.destination, index);
        if class == Class::Own && icmp::may_complain(&header, protocol, payload, false) {
            let complaint = Complaint::new(kind::TIME_EXCEEDED, icmp::REASSEMBLY_TIME, 0);
            self.complain_v6(stack, index, class, complaint, &header, &[quote, &[]]);
        }
    }

    /// Tells who has sent a packet that its neighbour does not answer: a socket, or another host.
    pub(in crate::inet::host) fn report_unreachable_v6(
        &self,
        stack: &InetStack,
        index: u32,
        packet: &[u8],
    ) {
        let Ok((header, protocol, payload)) = v6::parse_quoted(packet) else {
            return;
        };
        let is_own = self.lock_state().is_here_v6(header.source, index);
        if is_own && payload.len() >= 8 {
            let error = QuotedError {
                is_v4: false,
                kind: kind::UNREACHABLE,
                code: icmp::unreachable::ADDRESS,
                info: 0,
                source: header.source.into(),
                destination: header.destination.into(),
                protocol,
                payload,
                interface: index,
            };
            stack.handle_icmp_error(&error, header.source.into());
        } else if !is_own && icmp::may_complain(&header, protocol, payload, false) {
            let complaint = Complaint::new(kind::UNREACHABLE, icmp::unreachable::ADDRESS, 0);
            self.complain_v6(
                stack,
                index,
                Class::Other,
                complaint,
                &header,
                &[packet, &[]],
            );
        }
    }
}

/// Whether a datagram of UDP is as long as it says, and its checksum, which there must be (RFC
/// 8200, section 8.1), right.
fn is_whole_udp(header: &Header, protocol: u8, payload: &[u8]) -> bool {
    let Some((fields, _)) = payload.split_first_chunk::<UDP_HEADER>() else {
        return false;
    };
    let said = usize::from(u16::from_be_bytes([fields[4], fields[5]]));
    let (covered, total) = match (protocol, said) {
        (UDP, said) => (said, said),
        (_, 0) => (payload.len(), payload.len()),
        (_, covers) => (covers, payload.len()),
    };
    let covered = payload.get(..covered).filter(|_| covered >= UDP_HEADER);
    let Some(covered) = covered.filter(|_| fields[6..] != [0, 0]) else {
        return false;
    };
    let mut sum = Checksum::pseudo_header_v6(header.source, header.destination, protocol, total);
    sum.add(covered);
    sum.finish() == 0
}
