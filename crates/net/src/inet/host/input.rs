//! From frames of devices to the sockets of their packets.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use abi::errno::Errno;
use ip::groups::igmp;
use ip::ipv4::{self, Header, Packet};
use ip::nat::Tuple;
use ip::neighbour::Key;
use ip::{Fragment, Reassembled, arp, icmp};

use super::Host;
use super::counts::Counter;
use super::forward::{ForwardTerms, Passed, Translation};
use super::link::View;
use super::state::Class;
use super::tcp::{EndsHash, Held};
use super::translation::Sight;
use crate::inet::bind_table::ephemeral_ports;
use crate::inet::datagram::{Datagram, PathMtuDiscovery};
use crate::inet::icmp_errors::QuotedError;
use crate::inet::ip::{ICMP, TCP, UDP, UDP_HEADER, UDP_LITE};
use crate::inet::loopback::Loopback;
use crate::inet::stack::InetStack;
use crate::inet::udp_counts::UdpEvent;
use crate::socket::Interface;
use crate::socket::tap::PACKET_HOST;

/// The hop limit of answers.
const HOPS: u8 = 64;
/// The type of service of errors (RFC 1812, 4.3.2.5; Linux).
const ERROR_TOS: u8 = 0xc0;

/// A packet that has come in whole, or a fragment of one that is not for this host, and what an
/// error about it quotes.
pub(super) struct Whole<'a> {
    pub(super) header: Header,
    header_bytes: &'a [u8],
    pub(super) payload: &'a [u8],
    pub(super) class: Class,
}

/// The circumstances of a packet's arrival.
pub(super) struct Arrived<'a> {
    pub(super) interface: &'a Interface,
    /// For whom its frame is (`PACKET_*`).
    pub(super) packet_type: u8,
    /// The interfaces as they were before anything was looked up for it, or later. Whether a packet
    /// is for this host hangs on them only, where nothing is translated: not on routes and
    /// neighbours, which change all the time.
    pub(super) view: &'a View,
    /// The connection of the last segment of the same burst.
    pub(super) held: &'a RefCell<Option<Held>>,
    /// The place in the table of connections of the ends of its segment, if no connection was found
    /// open there.
    pub(super) place: Cell<Option<EndsHash>>,
}

/// The ends of a packet, as a host's tables see them.
struct Ends {
    source: Class,
    destination: Class,
    /// The source claims to be of a hidden network, and is not.
    is_disguised: bool,
    /// Nothing about the packet is translated.
    is_plain: bool,
    /// Version of the tables that have said so; 0: the interfaces alone have.
    seen: u64,
}

impl Whole<'_> {
    pub(super) fn has_options(&self) -> bool {
        self.header_bytes.len() > ipv4::HEADER
    }
}

/// The kind of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Complaint {
    kind: u8,
    code: u8,
    info: u32,
}

impl Complaint {
    pub(super) const TIME_EXCEEDED: Self = Self {
        kind: icmp::kind::TIME_EXCEEDED,
        code: icmp::HOP_LIMIT,
        info: 0,
    };
    const REASSEMBLY_TIME: Self = Self {
        code: icmp::REASSEMBLY_TIME,
        ..Self::TIME_EXCEEDED
    };

    pub(super) fn unreachable(code: u8) -> Self {
        Self {
            kind: icmp::kind::UNREACHABLE,
            code,
            info: 0,
        }
    }

    fn is_too_long(self) -> bool {
        self.kind == icmp::kind::UNREACHABLE && self.code == icmp::unreachable::FRAGMENTATION_NEEDED
    }

    /// A packet may not be cut, and the next link takes so many bytes only.
    pub(super) fn too_long(mtu: usize) -> Self {
        Self {
            info: mtu.min(usize::from(u16::MAX)) as u32,
            ..Self::unreachable(icmp::unreachable::FRAGMENTATION_NEEDED)
        }
    }
}

impl Host {
    /// Takes a message of ARP that has come in.
    pub(super) fn receive_arp(&self, interface: &Interface, bytes: &[u8], packet_type: u8) {
        let (Ok(message), Some(own_hardware)) =
            (arp::Message::parse(bytes), interface.hardware_address)
        else {
            return self.count_error(interface.index);
        };
        let now = self.now();
        self.with_state(|state, work| {
            let is_for_us = state.is_own(message.target);
            // One who has our address is not believed, whatever it says.
            if !is_for_us || state.is_own(message.sender) {
                return;
            }
            let is_request = message.operation == arp::Operation::Request;
            // Who asks whether it may have an address has none yet.
            if !message.sender.is_unspecified() {
                let key = Key {
                    interface: interface.index,
                    address: IpAddr::V4(message.sender),
                };
                let is_answer = !is_request && packet_type == PACKET_HOST;
                let hardware = message.sender_hardware;
                state
                    .neighbours
                    .heard(now, key, hardware, is_answer, is_request);
            }
            if is_request {
                let answer = arp::Message {
                    operation: arp::Operation::Reply,
                    sender_hardware: own_hardware,
                    sender: message.target,
                    target_hardware: message.sender_hardware,
                    target: message.sender,
                };
                state.send_arp(interface.index, message.sender_hardware, &answer, work);
            }
        });
    }

    /// Takes a packet of IPv4 that has come in.
    pub(super) fn receive_ipv4(&self, stack: &InetStack, arrived: &Arrived<'_>, bytes: &[u8]) {
        let interface = arrived.interface;
        self.counts.receive(bytes.len());
        let Ok(packet) = Packet::parse(bytes) else {
            self.counts.count(Counter::InHdrErrors);
            return self.count_error(interface.index);
        };
        let header = packet.header;
        self.counts.receive_ecn(header.tos);
        let sight = self.look_through(stack, arrived, &packet);
        if sight == Sight::Passed {
            return;
        }
        let is_segment = header.protocol == TCP && !header.is_fragment();
        if sight == Sight::Plain && is_segment && !stack.hears_raw_packets() {
            let ends = (header.source.into(), header.destination.into());
            if self.receive_if_open(arrived, ends, header.tos, packet.payload) {
                return self.counts.count(Counter::InDelivers);
            }
        }
        let forwards = stack.core.sysctls.ip_forward.as_usize() != 0;
        let ends = self.look_at_ends(arrived, &header, sight);
        let class = ends.destination;
        self.counts.receive_by_many(class, bytes.len());
        let from_nobody = header.source.is_unspecified() && header.destination.is_broadcast();
        let believed = from_nobody
            || ipv4::is_possible_source(header.source)
                && matches!(ends.source, Class::Other)
                && !ends.is_disguised;
        // What is sent to everybody on the link is for no single host (RFC 1122, 3.3.6).
        let is_single = arrived.packet_type == PACKET_HOST;
        let fits = is_single || class != Class::Own;
        if !believed || !fits {
            return;
        }
        let may_pass = forwards || !ends.is_plain;
        if class == Class::Other && !(may_pass && is_single) {
            return self.counts.count(Counter::InAddrErrors);
        }
        let passes = match class {
            Class::Other => true,
            Class::Own => !ends.is_plain,
            Class::Broadcast | Class::Multicast => false,
        };
        // Ports are in the first fragment only.
        let is_cut = header.is_fragment() && (class != Class::Other || !ends.is_plain);
        let passes = passes.then_some(is_cut);
        let was_fragments = passes.unwrap_or(header.is_fragment());
        let mut whole = Whole {
            header,
            header_bytes: packet.header_bytes,
            payload: packet.payload,
            class,
        };
        let payload;
        if was_fragments {
            let fragment = Fragment::of_v4(&packet, interface.index);
            self.counts.count(Counter::ReasmReqds);
            payload = match self.reassemble(&self.fragments.v4, &fragment) {
                Reassembled::Whole(joined, _) => joined,
                Reassembled::Waits => return,
                Reassembled::Overlap | Reassembled::Dropped => {
                    return self.counts.count(Counter::ReasmFails);
                }
            };
            self.counts.count(Counter::ReasmOKs);
            whole.header.offset = 0;
            whole.header.more_fragments = false;
            whole.payload = &payload;
        }
        if passes.is_some() {
            let terms = ForwardTerms {
                arrived_by: interface.index,
                seen: ends.seen,
                own_ports: ephemeral_ports(&stack.core),
                was_fragments,
                forwards,
            };
            if self.pass_on(stack, &whole, &terms) {
                return;
            }
        }
        self.deliver(stack, Some(arrived), &whole, &whole);
    }

    /// Looks at a packet's ends: where they are plain to see without the tables' lock.
    fn look_at_ends(&self, arrived: &Arrived<'_>, header: &Header, sight: Sight) -> Ends {
        let (source, destination) = (header.source, header.destination);
        if sight == Sight::Plain {
            return Ends {
                source: arrived.view.class(source),
                destination: arrived.view.class(destination),
                is_disguised: false,
                is_plain: true,
                seen: 0,
            };
        }
        let state = self.lock_state();
        Ends {
            source: state.class(source),
            destination: state.class(destination),
            is_disguised: state.is_disguised(source, arrived.interface.index),
            is_plain: state.nat.is_idle(),
            seen: state.version(),
        }
    }

    /// Passes a packet on, or says why not. Returns whether nothing is left to be done: else it is
    /// for this host.
    fn pass_on(&self, stack: &InetStack, packet: &Whole<'_>, terms: &ForwardTerms) -> bool {
        let now = self.now();
        let passed = self.with_state(|state, work| state.pass_on(now, packet, terms, work));
        match passed {
            Passed::Local => return false,
            Passed::Home(translation) => self.bring_home(stack, packet, translation),
            Passed::Sent(way) => {
                self.counts.count(Counter::ForwDatagrams);
                self.remember(now, way);
            }
            Passed::Lost => {}
            Passed::NotForwarded => self.counts.count(Counter::InAddrErrors),
            Passed::NoRoom => self.counts.count(Counter::InDiscards),
            Passed::Refused(complaint) => {
                if complaint == Complaint::TIME_EXCEEDED {
                    self.counts.count(Counter::InHdrErrors);
                } else if complaint.is_too_long() {
                    self.counts.count(Counter::FragFails);
                }
                let quote = [packet.header_bytes, packet.payload];
                self.complain_on_the_way(stack, complaint, &packet.header, &quote);
            }
        }
        true
    }

    /// Gives a packet of a flow that a program of this host has begun to that program.
    fn bring_home(&self, stack: &InetStack, arrived: &Whole<'_>, translation: Translation) {
        let mut header = arrived.header;
        let payload = match translation {
            Translation::None => return,
            Translation::Error(from, to, message) => {
                (header.source, header.destination) = (from, to);
                message
            }
            Translation::Ends(ends) => {
                let Ok(mut payload) = fallible::copy_of(arrived.payload) else {
                    return self.counts.count(Counter::InDiscards);
                };
                ends.write(&mut header, &mut payload);
                payload
            }
        };
        let packet = Whole {
            header,
            header_bytes: arrived.header_bytes,
            payload: &payload,
            class: Class::Own,
        };
        self.deliver(stack, None, &packet, arrived);
    }

    /// Tells the sender of a packet for somebody else that it goes no further.
    fn complain_on_the_way(
        &self,
        stack: &InetStack,
        complaint: Complaint,
        header: &Header,
        quote: &[&[u8]; 2],
    ) {
        // The address by which this host reaches the sender: one of the others it may not know.
        let route = self.lock_state().route(self.now(), header.source, 0);
        if let Ok(route) = route
            && let IpAddr::V4(own) = route.source
        {
            self.complain(stack, own, complaint, header, quote);
        }
    }

    /// Gives a whole packet to the sockets, and complains about it as it has arrived if it is for
    /// nobody. One by no interface has other ends than it came with.
    fn deliver(
        &self,
        stack: &InetStack,
        seen: Option<&Arrived<'_>>,
        packet: &Whole<'_>,
        arrived: &Whole<'_>,
    ) {
        let header = &packet.header;
        if Self::is_tcp(header, packet.class) {
            self.counts.count(Counter::InDelivers);
            let ends = (header.source.into(), header.destination.into());
            self.receive_tcp(stack, seen, ends, header.tos, packet.payload);
            if !stack.hears_raw_packets() {
                return;
            }
        }
        let Ok(data) = fallible::copy_of(packet.payload) else {
            return self.counts.count(Counter::InDiscards);
        };
        match (header.protocol, seen) {
            (ICMP, _) => self.counts.receive_icmp(packet.payload),
            (igmp::PROTOCOL, Some(seen)) => {
                self.receive_igmp(seen.interface.index, packet.payload);
            }
            _ => {}
        }
        let mut datagram = Datagram {
            from: SocketAddr::new(header.source.into(), 0),
            to: SocketAddr::new(header.destination.into(), 0),
            protocol: header.protocol,
            interface_index: seen.map_or(Loopback::INDEX, |seen| seen.interface.index),
            ttl: header.ttl,
            tos: header.tos,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: PathMtuDiscovery::default(),
            data,
        };
        if matches!(header.protocol, UDP | UDP_LITE) {
            if !is_whole_udp(header, packet.payload) {
                stack.udp.counts.count(&datagram, UdpEvent::WrongChecksum);
                return;
            }
            if crate::inet::ip::strip_udp_header(&mut datagram).is_none() {
                return;
            }
        }
        let result = stack.deliver_packet(datagram);
        let is_unknown = result == Err(Errno::ENOPROTOOPT);
        if is_unknown {
            self.counts.count(Counter::InUnknownProtos);
        } else if !Self::is_tcp(header, packet.class) {
            self.counts.count(Counter::InDelivers);
        }
        let code = match result {
            Err(Errno::ECONNREFUSED) => icmp::unreachable::PORT,
            Err(Errno::ENOPROTOOPT) => icmp::unreachable::PROTOCOL,
            _ => return,
        };
        if packet.class == Class::Own {
            let quote = [arrived.header_bytes, arrived.payload];
            let complaint = Complaint::unreachable(code);
            let header = &arrived.header;
            self.complain(stack, header.destination, complaint, header, &quote);
        }
    }

    /// Sends an ICMP error about a packet to its sender, unless there were too many.
    fn complain(
        &self,
        stack: &InetStack,
        from: Ipv4Addr,
        complaint: Complaint,
        header: &Header,
        quote: &[&[u8]; 2],
    ) {
        let about = Packet {
            header: *header,
            header_bytes: quote[0],
            payload: quote[1],
        };
        let to = header.source;
        let is_allowed =
            icmp::may_complain(&about) && self.lock_state().rate_limit.is_allowed(self.now(), to);
        if !is_allowed {
            return;
        }
        let Complaint { kind, code, info } = complaint;
        let Ok(message) = icmp::error_message(kind, code, info, quote) else {
            return;
        };
        self.send_icmp(stack, from, to, message);
    }

    fn send_icmp(&self, stack: &InetStack, from: Ipv4Addr, to: Ipv4Addr, message: Vec<u8>) {
        use crate::inet::Network;
        let Ok(route) = self.route(to.into(), 0) else {
            return;
        };
        let answer = Datagram {
            from: SocketAddr::new(from.into(), 0),
            to: SocketAddr::new(to.into(), 0),
            protocol: ICMP,
            interface_index: route.interface_index,
            ttl: HOPS,
            tos: ERROR_TOS,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: PathMtuDiscovery::Never,
            data: message,
        };
        // An answer that cannot be sent is lost.
        let _ = self.transmit(stack, answer);
    }

    /// Tells the sender of a datagram that did not become whole in time; `quote` has its header and
    /// first bytes.
    pub(super) fn complain_of_expiry(&self, stack: &InetStack, quote: &[u8]) {
        let Ok((mut header, payload)) = Header::parse_quoted(quote) else {
            return;
        };
        header.offset = 0;
        let (head, _) = quote.split_at(quote.len() - payload.len());
        let is_ours = self.lock_state().class(header.destination) == Class::Own;
        if is_ours {
            let (from, quote) = (header.destination, [head, payload]);
            self.complain(stack, from, Complaint::REASSEMBLY_TIME, &header, &quote);
        }
    }

    /// Tells who has sent a packet that its neighbour does not answer: a socket, or another host.
    pub(super) fn report_unreachable(&self, stack: &InetStack, mut packet: Vec<u8>) {
        let Ok((header, payload)) = Header::parse_quoted(&packet) else {
            return;
        };
        let left = Tuple::of(&header, payload).ok();
        let arrived = left.and_then(|left| self.lock_state().nat.arrived_as(&left));
        if let Some(arrived) = arrived
            && arrived.write_packet(&mut packet).is_err()
        {
            return;
        }
        let Ok((header, payload)) = Header::parse_quoted(&packet) else {
            return;
        };
        if self.lock_state().is_here(header.source) {
            let error = icmp::Error {
                kind: icmp::kind::UNREACHABLE,
                code: icmp::unreachable::HOST,
                info: 0,
                header,
                payload,
                quote: &packet,
            };
            let error = QuotedError::of_v4(&error);
            stack.handle_icmp_error(&error, header.source.into());
            return;
        }
        let quote = packet.split_at(packet.len() - payload.len());
        let complaint = Complaint::unreachable(icmp::unreachable::HOST);
        self.complain_on_the_way(stack, complaint, &header, &[quote.0, quote.1]);
    }

    /// ICMP says that packets to an address are too long.
    pub(super) fn learn(&self, error: &QuotedError<'_>) {
        let Some(mtu) = error.mtu() else { return };
        let mut state = self.lock_state();
        let now = self.now();
        match error.destination {
            IpAddr::V4(to) => state.path_mtus.learn(now, to, mtu),
            IpAddr::V6(to) => state.learn_path_mtu_v6(now, to, mtu),
        }
    }

    fn count_error(&self, index: u32) {
        if let Some(seen) = self.view().as_ref().and_then(|view| view.get(index)) {
            seen.card.received.count_error();
        }
    }
}

/// Whether a datagram of UDP is as long as it says, and its checksum right.
fn is_whole_udp(header: &Header, payload: &[u8]) -> bool {
    let Some((fields, _)) = payload.split_first_chunk::<UDP_HEADER>() else {
        return false;
    };
    let length = usize::from(u16::from_be_bytes([fields[4], fields[5]]));
    let has_sum = fields[6..] != [0, 0];
    let covered = match (header.protocol, length) {
        (UDP, _) => payload.get(..length).filter(|_| length >= UDP_HEADER),
        // Of UDP-Lite the field says how much is covered (RFC 3828, section 3.1), and a checksum
        // there must be.
        (_, 0) => Some(payload),
        (_, covers) => payload.get(..covers).filter(|_| covers >= UDP_HEADER),
    };
    let Some(covered) = covered else {
        return false;
    };
    let total = if header.protocol == UDP {
        length
    } else {
        payload.len()
    };
    let mut sum =
        ip::Checksum::pseudo_header(header.source, header.destination, header.protocol, total);
    sum.add(covered);
    if has_sum {
        sum.finish() == 0
    } else {
        header.protocol == UDP
    }
}
