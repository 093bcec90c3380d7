//! From datagrams of sockets to frames of devices: routes, fragments, neighbours.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use abi::errno::Errno;
use fs::Result;
use ip::Nanos;
use ip::groups::igmp;
use ip::ipv4::{self, Header};
use ip::neighbour::{Key, Resolution};
use ip::route::Kind;

use super::Host;
use super::counts::Counter;
use super::destinations::{self, Destination};
use super::send_queue::QueuePlace;
use super::state::{Class, HostState, Work, push_ethernet_header};
use crate::inet::datagram::{Datagram, PathMtuDiscovery};
use crate::inet::frame::{self, ETH_P_IP};
use crate::inet::ip::{UDP, UDP_HEADER, UDP_LITE};
use crate::inet::loopback::Loopback;
use crate::inet::network::Route;
use crate::inet::stack::InetStack;
use crate::socket::SendAccount;
use crate::socket::interface::ETHERNET_HEADER_LEN;

/// A packet that is to be sent, but for its number and where it is cut.
pub(super) struct OutgoingPacket<'a> {
    pub(super) interface: u32,
    pub(super) header: Header,
    /// The bytes behind the header, in two parts.
    pub(super) payload: [&'a [u8]; 2],
    pub(super) discovery: PathMtuDiscovery,
}

impl OutgoingPacket<'_> {
    fn payload_len(&self) -> usize {
        self.payload.iter().map(|part| part.len()).sum()
    }
}

/// The next hop of a packet on a link.
#[derive(Clone, Copy)]
enum NextHop {
    /// The hardware address is known by itself.
    Hardware(ip::HardwareAddress),
    /// A neighbour has to be found.
    Neighbour(Ipv4Addr),
    /// There are no hardware addresses.
    Bare,
}

impl HostState {
    /// The route to an address, by an interface if that is not 0.
    ///
    /// # Errors
    /// `ENETUNREACH`; what the route says: `EHOSTUNREACH`, `EACCES`, `EINVAL`.
    pub(super) fn route(&self, now: Nanos, to: Ipv4Addr, via: u32) -> Result<Route> {
        if self.is_here(to) {
            return Ok(Route {
                interface_index: Loopback::INDEX,
                source: to.into(),
                local: true,
                broadcast: false,
                mtu: Loopback::PATH_MTU,
            });
        }
        if let Some((interface, source)) = self.broadcast_interface(to)
            && (via == 0 || via == interface.shown.index)
        {
            return Ok(Route {
                interface_index: interface.shown.index,
                source: source.into(),
                local: false,
                broadcast: true,
                mtu: interface.shown.mtu,
            });
        }
        let found = match via {
            0 => self.routes.lookup(to),
            via => self.routes.lookup_by(to, via),
        };
        let (index, gateway, source) = match found {
            Some(route) => {
                match route.kind {
                    Kind::Unicast => {}
                    Kind::Unreachable => return Err(Errno::EHOSTUNREACH),
                    Kind::Prohibit => return Err(Errno::EACCES),
                    Kind::Blackhole => return Err(Errno::EINVAL),
                }
                (route.interface, route.gateway, route.source)
            }
            // As on Linux, who says by which interface is believed that the destination is there.
            None if via != 0 => (via, None, None),
            None => return Err(Errno::ENETUNREACH),
        };
        let interface = self
            .interfaces
            .get(index)
            .filter(|one| one.is_up())
            .ok_or(Errno::ENETUNREACH)?;
        let source = source.or_else(|| interface.source_for(gateway.unwrap_or(to)));
        let link_mtu = interface.shown.mtu;
        Ok(Route {
            interface_index: index,
            source: source.unwrap_or(Ipv4Addr::UNSPECIFIED).into(),
            local: false,
            broadcast: to.is_broadcast(),
            mtu: self.path_mtus.of(now, to, link_mtu as usize) as u32,
        })
    }

    fn next_hop(&self, index: u32, to: Ipv4Addr) -> Result<(NextHop, ip::HardwareAddress, u32)> {
        let interface = self.interfaces.get(index).ok_or(Errno::ENODEV)?;
        if !interface.is_up() {
            return Err(Errno::ENETDOWN);
        }
        let mtu = interface.shown.mtu;
        let Some(own) = interface.shown.hardware_address else {
            return Ok((NextHop::Bare, [0; 6], mtu));
        };
        let hop = match self.class(to) {
            Class::Broadcast => NextHop::Hardware(ip::EVERYBODY),
            Class::Multicast => NextHop::Hardware(igmp::group_hardware(to)),
            _ => {
                let gateway = self
                    .routes
                    .lookup_by(to, index)
                    .and_then(|route| route.gateway);
                NextHop::Neighbour(gateway.unwrap_or(to))
            }
        };
        Ok((hop, own, mtu))
    }

    /// Sends a packet, in pieces if it has to be.
    ///
    /// # Errors
    /// `ENODEV`, `ENETDOWN`; `EMSGSIZE` if it is too long and may not be cut; `ENOBUFS` if memory
    /// or room for its neighbour is short.
    pub(super) fn send(
        &mut self,
        now: Nanos,
        packet: &OutgoingPacket<'_>,
        work: &mut Work,
    ) -> Result<()> {
        let length = ipv4::HEADER + packet.payload_len();
        let class = self.class(packet.header.destination);
        self.counts.send(class, length);
        let result = self.send_own(now, packet, work);
        if let Err(error) = result {
            self.counts.count(match error {
                Errno::EMSGSIZE => Counter::FragFails,
                _ => Counter::OutDiscards,
            });
        }
        result
    }

    fn send_own(&mut self, now: Nanos, packet: &OutgoingPacket<'_>, work: &mut Work) -> Result<()> {
        let to = packet.header.destination;
        let (hop, own, link_mtu) = self.next_hop(packet.interface, to)?;
        let length = packet.payload_len();
        if length + ipv4::HEADER > ipv4::LONGEST {
            return Err(Errno::EMSGSIZE);
        }
        let link_mtu = link_mtu as usize;
        let mtu = if packet.discovery.believes_icmp() {
            self.path_mtus.of(now, to, link_mtu)
        } else {
            link_mtu
        };
        let mut header = packet.header;
        header.id = self.ids.next(to);
        let fits = length + ipv4::HEADER <= mtu;
        header.dont_fragment = fits && packet.discovery.forbids_fragments();
        if !fits && packet.discovery.refuses_what_is_too_long() {
            return Err(Errno::EMSGSIZE);
        }
        self.send_pieces(now, packet, (hop, own), header, mtu, work)
    }

    /// Sends a packet that has its number, of another host's, in pieces if it has to be.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn send_as_is(
        &mut self,
        now: Nanos,
        packet: &OutgoingPacket<'_>,
        work: &mut Work,
    ) -> Result<()> {
        let (hop, own, mtu) = self.next_hop(packet.interface, packet.header.destination)?;
        let (header, mtu) = (packet.header, mtu as usize);
        if header.dont_fragment && packet.payload_len() + ipv4::HEADER > mtu {
            return Err(Errno::EMSGSIZE);
        }
        self.send_pieces(now, packet, (hop, own), header, mtu, work)
    }

    fn send_pieces(
        &mut self,
        now: Nanos,
        packet: &OutgoingPacket<'_>,
        next: (NextHop, ip::HardwareAddress),
        header: Header,
        mtu: usize,
        work: &mut Work,
    ) -> Result<()> {
        let length = packet.payload_len();
        if length + ipv4::HEADER <= mtu {
            return self.send_piece(now, packet, next, &header, &packet.payload, work);
        }
        let mut whole = fallible::with_capacity(length).map_err(|_| Errno::ENOBUFS)?;
        for part in packet.payload {
            whole.extend_from_slice(part);
        }
        for (offset, more_fragments, piece) in ipv4::fragments(mtu, &whole) {
            let header = Header {
                offset: header.offset + offset,
                more_fragments: more_fragments || header.more_fragments,
                ..header
            };
            self.send_piece(now, packet, next, &header, &[piece, &[]], work)?;
            self.counts.count(Counter::FragCreates);
        }
        self.counts.count(Counter::FragOKs);
        Ok(())
    }

    fn send_piece(
        &mut self,
        now: Nanos,
        packet: &OutgoingPacket<'_>,
        (hop, own): (NextHop, ip::HardwareAddress),
        header: &Header,
        payload: &[&[u8]; 2],
        work: &mut Work,
    ) -> Result<()> {
        let build =
            |to: Option<ip::HardwareAddress>| build(to.map(|to| (to, own)), header, payload);
        let frame = match hop {
            NextHop::Bare => build(None),
            NextHop::Hardware(to) => build(Some(to)),
            NextHop::Neighbour(address) => {
                let key = Key {
                    interface: packet.interface,
                    address: IpAddr::V4(address),
                };
                match self.neighbours.resolve(now, key, || build(Some([0; 6]))) {
                    Resolution::Known(to) => build(Some(to)),
                    Resolution::Waits => return Ok(()),
                    Resolution::NoRoom => return Err(Errno::ENOBUFS),
                }
            }
        };
        self.push_frame(packet.interface, frame.ok_or(Errno::ENOBUFS)?, work);
        Ok(())
    }
}

impl HostState {
    /// The way to another host, if the tables lead one at once.
    pub(super) fn way_to(&self, now: Nanos, to: Ipv4Addr, via: u32) -> Option<Destination> {
        let route = self.route(now, to, via).ok()?;
        if route.local || route.broadcast || self.class(to) != Class::Other {
            return None;
        }
        let (hop, own, link_mtu) = self.next_hop(route.interface_index, to).ok()?;
        let neighbour = match hop {
            NextHop::Bare => None,
            NextHop::Hardware(_) => return None,
            NextHop::Neighbour(address) => {
                let key = Key {
                    interface: route.interface_index,
                    address: IpAddr::V4(address),
                };
                Some(self.neighbours.believed(key)?)
            }
        };
        self.destination(now, (to.into(), via), route, link_mtu, (own, neighbour))
    }

    /// The way to a destination that was asked for by an interface; `neighbour` is whom packets go
    /// to, and until when that is believed.
    pub(super) fn destination(
        &self,
        now: Nanos,
        (to, via): (IpAddr, u32),
        route: Route,
        link_mtu: u32,
        (own, neighbour): (
            ip::HardwareAddress,
            Option<(ip::HardwareAddress, Option<Nanos>)>,
        ),
    ) -> Option<Destination> {
        let interface = self.interfaces.get(route.interface_index)?;
        let believed_until = neighbour.and_then(|(_, until)| until);
        let valid_until = now + destinations::LIFE;
        Some(Destination {
            version: self.version(),
            valid_until: believed_until.map_or(valid_until, |until| until.min(valid_until)),
            to,
            via,
            route,
            link_mtu,
            link: neighbour.map(|(hardware, _)| (hardware, own)),
            addresses: interface.shown.addresses.clone(),
            card: interface.card.clone(),
        })
    }
}

impl Host {
    /// Sends a packet by a way that is known, without the lock of the tables. `None` if none is, or
    /// the packet cannot go by it as it is; an interface that it names has to be the way's. While
    /// it waits it takes up room of its sender's buffer, if a socket sends it.
    ///
    /// # Errors
    /// `ENOBUFS` if memory is short.
    pub(super) fn send_directly(
        &self,
        stack: &InetStack,
        now: Nanos,
        via: u32,
        packet: &OutgoingPacket<'_>,
        sender: Option<&Arc<SendAccount>>,
    ) -> Option<Result<()>> {
        let to = packet.header.destination;
        let way = self.way(now, to.into(), via)?;
        self.send_by(stack, &way, packet, sender, QueuePlace::Behind)
    }

    /// Sends a packet by a way, as [`Self::send_directly`].
    ///
    /// # Errors
    /// `ENOBUFS` if memory is short.
    pub(super) fn send_by(
        &self,
        stack: &InetStack,
        way: &Destination,
        packet: &OutgoingPacket<'_>,
        sender: Option<&Arc<SendAccount>>,
        place: QueuePlace,
    ) -> Option<Result<()>> {
        let to = packet.header.destination;
        let mtu = if packet.discovery.believes_icmp() {
            way.route.mtu
        } else {
            way.link_mtu
        };
        let is_meant = packet.interface == way.route.interface_index
            && way.may_come_from(packet.header.source.into())
            && packet.payload_len() + ipv4::HEADER <= mtu as usize;
        if !is_meant {
            return None;
        }
        // Ways are known to single hosts only.
        let length = ipv4::HEADER + packet.payload_len();
        self.counts.send(Class::Other, length);
        let header = Header {
            id: self.ids.next(to),
            dont_fragment: packet.discovery.forbids_fragments(),
            ..packet.header
        };
        let Some(frame) = build(way.link, &header, &packet.payload) else {
            self.counts.count(Counter::OutDiscards);
            return Some(Err(Errno::ENOBUFS));
        };
        self.send_frame(Some(stack), &way.card, sender, frame, place);
        Some(Ok(()))
    }
}

/// A frame with a packet; of a link with hardware addresses with those of both ends, the other's
/// first. `None` without memory.
pub(super) fn build(
    link: Option<(ip::HardwareAddress, ip::HardwareAddress)>,
    header: &Header,
    payload: &[&[u8]; 2],
) -> Option<Vec<u8>> {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let mut frame = fallible::with_capacity(ETHERNET_HEADER_LEN + ipv4::HEADER + length).ok()?;
    if let Some((to, own)) = link {
        push_ethernet_header(&mut frame, to, own, ETH_P_IP);
    }
    frame.extend_from_slice(&header.emit(length));
    payload
        .iter()
        .for_each(|part| frame.extend_from_slice(part));
    Some(frame)
}

/// The header of what a datagram has behind IP's, with a checksum; `None` for other protocols than
/// UDP.
pub(super) fn transport_header(datagram: &Datagram) -> Option<[u8; UDP_HEADER]> {
    matches!(datagram.protocol, UDP | UDP_LITE).then(|| frame::checked_udp_header(datagram))
}
