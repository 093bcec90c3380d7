//! This host's own programs at its published ports: their packets get other ends and go to the host
//! behind, as those of strangers do (`docs/nat.md`).

use core::net::{IpAddr, SocketAddr, SocketAddrV4};
use core::ops::RangeInclusive;

use abi::errno::Errno;
use fs::Result;
use ip::Nanos;
use ip::ipv4::Header;
use ip::nat::{NewFlow, Protocol, Refused, Tuple};

use super::Host;
use super::output::OutgoingPacket;
use super::state::{HostState, Work};
use crate::inet::datagram::Datagram;
use crate::inet::ip::UDP;
use crate::inet::loopback::Loopback;
use crate::inet::network::Route;

impl HostState {
    /// The route to the host behind a published port, as it is from this host itself: to the loop,
    /// with the MTU of the path. `None` if the port is not published.
    fn published_route(
        &self,
        now: Nanos,
        protocol: Protocol,
        at: SocketAddrV4,
    ) -> Option<Result<Route>> {
        let to = *self.nat.published_at(protocol, at)?.to.ip();
        Some(self.route(now, to, 0).and_then(|route| {
            if route.local || route.broadcast {
                return Err(Errno::ENETUNREACH);
            }
            Ok(Route {
                interface_index: Loopback::INDEX,
                source: IpAddr::V4(*at.ip()),
                local: true,
                ..route
            })
        }))
    }

    /// The MTU of the path to the host behind a published port of TCP: the loop's if there is none.
    pub(super) fn published_mtu(&self, now: Nanos, at: SocketAddr) -> u32 {
        let route = match at {
            SocketAddr::V4(at) => self.published_route(now, Protocol::Tcp, at),
            SocketAddr::V6(_) => None,
        };
        match route {
            Some(Ok(route)) => route.mtu,
            _ => Loopback::PATH_MTU,
        }
    }

    /// Sends a packet of a program of this host to a published port of this host. The first part
    /// of its payload is its header of TCP or UDP. `own_ports` are those given to programs.
    ///
    /// # Errors
    /// As [`Self::send`]; `ECONNREFUSED` if the port is not published, and was not when the
    /// conversation began; `ENOBUFS` if the flow has no room.
    pub(super) fn send_to_published(
        &mut self,
        now: Nanos,
        packet: &OutgoingPacket<'_>,
        own_ports: RangeInclusive<u16>,
        work: &mut Work,
    ) -> Result<()> {
        let [above, data] = packet.payload;
        let mut room = [0; ::tcp::LONGEST_HEADER];
        let head = room.get_mut(..above.len()).ok_or(Errno::EINVAL)?;
        head.copy_from_slice(above);
        let arriving = Tuple::of(&packet.header, above).map_err(|_| Errno::EINVAL)?;
        let known = self.nat.follow(now, &arriving, above);
        let leaving = match known.map_err(|_| Errno::EINVAL)? {
            Some(leaving) => leaving,
            None => self.begin_own_flow(now, arriving, above, own_ports)?,
        };
        let route = self.route(now, *leaving.to.ip(), 0)?;
        let mut header: Header = packet.header;
        leaving.write(&mut header, head);
        let translated = OutgoingPacket {
            interface: route.interface_index,
            header,
            payload: [head, data],
            discovery: packet.discovery,
        };
        self.send(now, &translated, work)
    }

    /// Begins a flow of a program of this host through a published port. It leaves from the address
    /// by which this host reaches the other one: an address of the loop is none out there.
    fn begin_own_flow(
        &mut self,
        now: Nanos,
        arriving: Tuple,
        payload: &[u8],
        own_ports: RangeInclusive<u16>,
    ) -> Result<Tuple> {
        let published = self.nat.published_at(arriving.protocol, arriving.to);
        let published = published.ok_or(Errno::ECONNREFUSED)?;
        let IpAddr::V4(outer) = self.route(now, *published.to.ip(), 0)?.source else {
            return Err(Errno::ENETUNREACH);
        };
        let new = NewFlow {
            arriving,
            payload,
            published: Some(published),
            outer: Some(outer),
            own_ports,
            random: self.next_port_hint(),
        };
        self.nat.begin(now, &new).map_err(|refused| match refused {
            Refused::Invalid => Errno::ECONNREFUSED,
            Refused::NoRoom => Errno::ENOBUFS,
        })
    }
}

impl Host {
    /// The route of a program of this host to one of its own ports, if that is published.
    pub(super) fn published_route(
        &self,
        protocol: Protocol,
        to: SocketAddr,
    ) -> Option<Result<Route>> {
        let SocketAddr::V4(to) = to else { return None };
        if self.kept_ports.is_empty() || !self.translation.may_be_published(protocol, to) {
            return None;
        }
        let state = self.lock_state();
        state.published_route(self.now(), protocol, to)
    }

    /// Whether a datagram to this host is for a published port.
    pub(super) fn leads_elsewhere(&self, datagram: &Datagram) -> bool {
        datagram.protocol == UDP && self.published_route(Protocol::Udp, datagram.to).is_some()
    }
}
