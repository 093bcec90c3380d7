//! From datagrams of sockets to frames of devices: routes, fragments, neighbours.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use abi::errno::Errno;
use fs::Result;
use ip::neighbour::{Key, Resolution};
use ip::route::Kind;
use ip::v6::address::{group_hardware, needs_link};
use ip::v6::{self, FragmentField, Header, next, select_source};
use ip::{HardwareAddress, Nanos};

use crate::inet::datagram::{Datagram, PathMtuDiscovery};
use crate::inet::frame::ETH_P_IPV6;
use crate::inet::host::Host;
use crate::inet::host::counts::Counter6;
use crate::inet::host::destinations::Destination;
use crate::inet::host::output::transport_header;
use crate::inet::host::send_queue::QueuePlace;
use crate::inet::host::state::{HostState, Work, push_ethernet_header};
use crate::inet::ip::ICMP6;
use crate::inet::loopback::Loopback;
use crate::inet::network::Route;
use crate::inet::stack::InetStack;
use crate::socket::SendAccount;
use crate::socket::interface::ETHERNET_HEADER_LEN;

/// A packet that is to be sent.
pub(in crate::inet::host) struct OutgoingV6<'a> {
    pub(in crate::inet::host) interface: u32,
    pub(in crate::inet::host) header: Header,
    pub(in crate::inet::host) protocol: u8,
    /// The bytes behind the header, in two parts.
    pub(in crate::inet::host) payload: [&'a [u8]; 2],
    pub(in crate::inet::host) discovery: PathMtuDiscovery,
}

impl OutgoingV6<'_> {
    fn payload_len(&self) -> usize {
        self.payload.iter().map(|part| part.len()).sum()
    }
}

/// The next hop of a packet on a link.
#[derive(Clone, Copy)]
enum NextHop {
    /// The hardware address is known by itself.
    Hardware(HardwareAddress),
    /// A neighbour has to be found.
    Neighbour(Ipv6Addr),
    /// There are no hardware addresses.
    Bare,
}

impl HostState {
    /// The route to an address, by an interface if that is not 0.
    ///
    /// # Errors
    /// `ENETUNREACH`; what the route says: `EHOSTUNREACH`, `EACCES`, `EINVAL`; `EADDRNOTAVAIL` if
    /// this host has no address that packets to it could come from.
    pub(in crate::inet::host) fn route_v6(
        &self,
        now: Nanos,
        to: Ipv6Addr,
        via: u32,
    ) -> Result<Route> {
        if self.is_here_v6(to, via) {
            return Ok(Route {
                interface_index: Loopback::INDEX,
                source: to.into(),
                local: true,
                broadcast: false,
                mtu: Loopback::PATH_MTU,
            });
        }
        let (index, preferred) = if to.is_multicast() {
            let mut all = self.interfaces.iter();
            let is_meant = |index: u32| via == 0 || via == index;
            let found = all.find(|one| one.carries_ipv6() && is_meant(one.shown.index));
            (found.ok_or(Errno::ENETUNREACH)?.shown.index, None)
        } else {
            self.unicast_route_v6(to, via)?
        };
        let interface = self
            .interfaces
            .get(index)
            .filter(|one| one.carries_ipv6())
            .ok_or(Errno::ENETUNREACH)?;
        let source = match preferred {
            Some(source) => source,
            None => select_source(self.v6_candidates(index, needs_link(to)), to)
                .ok_or(Errno::EADDRNOTAVAIL)?,
        };
        Ok(Route {
            interface_index: index,
            source: source.into(),
            local: false,
            broadcast: false,
            mtu: self.path_mtu_v6(now, to, interface.v6_mtu()),
        })
    }

    /// The interface by which a single host is reached, and the source that the route prefers.
    pub(super) fn unicast_route_v6(
        &self,
        to: Ipv6Addr,
        via: u32,
    ) -> Result<(u32, Option<Ipv6Addr>)> {
        let found = match via {
            0 => self.v6.routes.lookup(to),
            via => self.v6.routes.lookup_by(to, via),
        };
        let route = found.ok_or(Errno::ENETUNREACH)?;
        match route.kind {
            Kind::Unicast => Ok((route.interface, route.source)),
            Kind::Unreachable => Err(Errno::EHOSTUNREACH),
            Kind::Prohibit => Err(Errno::EACCES),
            Kind::Blackhole => Err(Errno::EINVAL),
        }
    }

    fn path_mtu_v6(&self, now: Nanos, to: Ipv6Addr, link: u32) -> u32 {
        self.v6.path_mtus.of(now, to, link as usize) as u32
    }

    /// ICMP says that packets to an address may have `mtu` bytes at most.
    pub(in crate::inet::host) fn learn_path_mtu_v6(&mut self, now: Nanos, to: Ipv6Addr, mtu: u16) {
        self.v6.path_mtus.learn(now, to, mtu);
    }

    fn next_hop_v6(&self, index: u32, to: Ipv6Addr) -> Result<(NextHop, u32)> {
        let interface = self.interfaces.get(index).ok_or(Errno::ENODEV)?;
        if !interface.carries_ipv6() {
            return Err(Errno::ENETDOWN);
        }
        let mtu = interface.v6_mtu();
        if interface.shown.hardware_address.is_none() {
            return Ok((NextHop::Bare, mtu));
        }
        if to.is_multicast() {
            return Ok((NextHop::Hardware(group_hardware(to)), mtu));
        }
        let route = self.v6.routes.lookup_by(to, index);
        let gateway = route.and_then(|route| route.gateway);
        Ok((NextHop::Neighbour(gateway.unwrap_or(to)), mtu))
    }

    /// Sends a packet, in pieces if it has to be.
    ///
    /// # Errors
    /// `ENODEV`, `ENETDOWN`; `EMSGSIZE` if it is too long and may not be cut; `ENOBUFS` if memory
    /// or room for its neighbour is short.
    pub(in crate::inet::host) fn send_v6(
        &mut self,
        now: Nanos,
        packet: &OutgoingV6<'_>,
        work: &mut Work,
    ) -> Result<()> {
        let length = v6::HEADER + packet.payload_len();
        self.counts.v6.send(packet.header.destination, length);
        let result = self.send_own_v6(now, packet, work);
        if let Err(error) = result {
            self.counts.v6.count(match error {
                Errno::EMSGSIZE => Counter6::FragFails,
                _ => Counter6::OutDiscards,
            });
        }
        result
    }

    fn send_own_v6(&mut self, now: Nanos, packet: &OutgoingV6<'_>, work: &mut Work) -> Result<()> {
        let to = packet.header.destination;
        let (hop, link_mtu) = self.next_hop_v6(packet.interface, to)?;
        let mtu = if packet.discovery.believes_icmp() {
            self.path_mtu_v6(now, to, link_mtu)
        } else {
            link_mtu
        };
        let (length, mtu) = (packet.payload_len(), mtu as usize);
        if length > v6::LONGEST_PAYLOAD {
            return Err(Errno::EMSGSIZE);
        }
        if length + v6::HEADER <= mtu {
            let (protocol, payload) = (packet.protocol, &packet.payload);
            return self.send_piece_v6(now, packet, hop, protocol, payload, work);
        }
        if packet.discovery.refuses_what_is_too_long() {
            return Err(Errno::EMSGSIZE);
        }
        let mut whole = fallible::with_capacity(length).map_err(|_| Errno::ENOBUFS)?;
        for part in packet.payload {
            whole.extend_from_slice(part);
        }
        // Who sees one number learns nothing of the next (RFC 7739).
        let mut id = [0; 4];
        fs::devfs::fill_random(&mut id);
        for (offset, more, piece) in v6::fragments(mtu, &whole) {
            let field = FragmentField {
                id: u32::from_ne_bytes(id),
                offset,
                more,
            };
            let head = v6::fragment_header(packet.protocol, field);
            self.send_piece_v6(now, packet, hop, next::FRAGMENT, &[&head, piece], work)?;
            self.counts.v6.count(Counter6::FragCreates);
        }
        self.counts.v6.count(Counter6::FragOKs);
        Ok(())
    }

    /// Sends a packet of another host's, as it is but for its hop limit.
    ///
    /// # Errors
    /// As [`Self::send_v6`]; none is cut on its way.
    pub(super) fn send_as_is_v6(
        &mut self,
        now: Nanos,
        packet: &OutgoingV6<'_>,
        work: &mut Work,
    ) -> Result<()> {
        let (hop, mtu) = self.next_hop_v6(packet.interface, packet.header.destination)?;
        if packet.payload_len() + v6::HEADER > mtu as usize {
            return Err(Errno::EMSGSIZE);
        }
        self.send_piece_v6(now, packet, hop, packet.protocol, &packet.payload, work)
    }

    fn send_piece_v6(
        &mut self,
        now: Nanos,
        packet: &OutgoingV6<'_>,
        hop: NextHop,
        protocol: u8,
        payload: &[&[u8]; 2],
        work: &mut Work,
    ) -> Result<()> {
        let (index, header) = (packet.interface, &packet.header);
        let to = match hop {
            NextHop::Bare => None,
            NextHop::Hardware(to) => Some(to),
            NextHop::Neighbour(address) => {
                let key = Key {
                    interface: index,
                    address: IpAddr::V6(address),
                };
                let own = self.hardware_of(index);
                let build = || build(Some(([0; 6], own)), header, protocol, payload);
                match self.v6.neighbours.resolve(now, key, build) {
                    Resolution::Known(to) => Some(to),
                    Resolution::Waits => return Ok(()),
                    Resolution::NoRoom => return Err(Errno::ENOBUFS),
                }
            }
        };
        let link = to.map(|to| (to, self.hardware_of(index)));
        let frame = build(link, header, protocol, payload).ok_or(Errno::ENOBUFS)?;
        self.push_frame(index, frame, work);
        Ok(())
    }

    /// The way to another host, if the tables lead one at once.
    pub(in crate::inet::host) fn way_to_v6(
        &self,
        now: Nanos,
        to: Ipv6Addr,
        via: u32,
    ) -> Option<Destination> {
        let route = self.route_v6(now, to, via).ok()?;
        let index = route.interface_index;
        if route.local || to.is_multicast() {
            return None;
        }
        let (hop, link_mtu) = self.next_hop_v6(index, to).ok()?;
        let neighbour = match hop {
            NextHop::Bare => None,
            NextHop::Hardware(_) => return None,
            NextHop::Neighbour(address) => {
                let key = Key {
                    interface: index,
                    address: IpAddr::V6(address),
                };
                Some(self.v6.neighbours.believed(key)?)
            }
        };
        let link = (self.hardware_of(index), neighbour);
        self.destination(now, (to.into(), via), route, link_mtu, link)
    }

    fn hardware_of(&self, index: u32) -> HardwareAddress {
        let interface = self.interfaces.get(index);
        let hardware = interface.and_then(|one| one.shown.hardware_address);
        hardware.unwrap_or_default()
    }

    /// Sends a packet of the protocol's own to a hardware address; without memory it is lost.
    pub(super) fn push_v6(
        &mut self,
        index: u32,
        to: HardwareAddress,
        header: &Header,
        protocol: u8,
        payload: &[&[u8]; 2],
        work: &mut Work,
    ) {
        let interface = self.interfaces.get(index);
        let Some(own) = interface.and_then(|one| one.shown.hardware_address) else {
            return;
        };
        let length: usize = payload.iter().map(|part| part.len()).sum();
        self.counts.v6.send(header.destination, v6::HEADER + length);
        let message = match protocol {
            next::ICMP => payload[0],
            _ => payload[1],
        };
        self.counts.v6.send_icmp(message);
        if let Some(frame) = build(Some((to, own)), header, protocol, payload) {
            self.push_frame(index, frame, work);
        }
    }
}

impl Host {
    /// Carries a datagram to other hosts.
    ///
    /// # Errors
    /// As [`Network::transmit`](crate::inet::Network::transmit).
    pub(in crate::inet::host) fn transmit_v6(
        &self,
        stack: &InetStack,
        datagram: Datagram,
        sender: Option<Arc<SendAccount>>,
        (source, destination): (Ipv6Addr, Ipv6Addr),
    ) -> Result<()> {
        let transport = transport_header(&datagram);
        let transport = transport.as_ref().map_or(&[][..], |header| header);
        if datagram.protocol == ICMP6 {
            self.counts.v6.send_icmp(&datagram.data);
        }
        let packet = OutgoingV6 {
            interface: datagram.interface_index,
            header: Header {
                traffic_class: datagram.tos,
                flow_label: 0,
                hop_limit: datagram.ttl,
                source,
                destination,
            },
            protocol: datagram.protocol,
            payload: [transport, &datagram.data],
            discovery: datagram.path_mtu_discovery,
        };
        let (now, interface) = (self.now(), packet.interface);
        if let Some(way) = self.way(now, destination.into(), interface)
            && let Some(result) =
                self.send_by_v6(stack, &way, &packet, sender.as_ref(), QueuePlace::Behind)
        {
            return result;
        }
        let way = self.with_v6(|now, state, work| {
            work.sender = sender;
            state.send_v6(now, &packet, work)?;
            Ok::<_, Errno>(state.way_to_v6(now, destination, interface))
        })?;
        self.remember(now, way);
        // Who is in the group on this host hears it as well.
        if destination.is_multicast() {
            let _ = stack.deliver_packet(datagram);
        }
        Ok(())
    }
}

impl Host {
    /// Sends a packet by a way, without the lock of the tables, as [`Self::send_by`].
    ///
    /// # Errors
    /// `ENOBUFS` if memory is short.
    pub(in crate::inet::host) fn send_by_v6(
        &self,
        stack: &InetStack,
        way: &Destination,
        packet: &OutgoingV6<'_>,
        sender: Option<&Arc<SendAccount>>,
        place: QueuePlace,
    ) -> Option<Result<()>> {
        let mtu = if packet.discovery.believes_icmp() {
            way.route.mtu
        } else {
            way.link_mtu
        };
        let is_meant = packet.interface == way.route.interface_index
            && way.may_come_from(packet.header.source.into())
            && packet.payload_len() + v6::HEADER <= mtu as usize;
        if !is_meant {
            return None;
        }
        let length = v6::HEADER + packet.payload_len();
        self.counts.v6.send(packet.header.destination, length);
        let (header, protocol) = (&packet.header, packet.protocol);
        let Some(frame) = build(way.link, header, protocol, &packet.payload) else {
            self.counts.v6.count(Counter6::OutDiscards);
            return Some(Err(Errno::ENOBUFS));
        };
        self.send_frame(Some(stack), &way.card, sender, frame, place);
        Some(Ok(()))
    }
}

/// A frame with a packet; of a link with hardware addresses with those of both ends. `None` without
/// memory.
fn build(
    link: Option<(HardwareAddress, HardwareAddress)>,
    header: &Header,
    protocol: u8,
    payload: &[&[u8]; 2],
) -> Option<Vec<u8>> {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let mut frame = fallible::with_capacity(ETHERNET_HEADER_LEN + v6::HEADER + length).ok()?;
    if let Some((to, own)) = link {
        push_ethernet_header(&mut frame, to, own, ETH_P_IPV6);
    }
    frame.extend_from_slice(&header.emit(protocol, length));
    payload
        .iter()
        .for_each(|part| frame.extend_from_slice(part));
    Some(frame)
}
