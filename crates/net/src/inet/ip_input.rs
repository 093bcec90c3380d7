//! Packets of other protocols than TCP that arrive at this host: who gets them, and the answers to
//! echo requests (RFC 792, RFC 4443).

use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;

use super::datagram::{Datagram, PathMtuDiscovery};
use super::icmp_errors::QuotedError;
use super::ip::{self, ECHO, ECHO6, ICMP, ICMP6, TCP, UDP, UDP_LITE};
use super::link_of;
use super::loopback::Loopback;
use super::network::Route;
use super::stack::InetStack;

/// The hop limit of an answer.
const HOPS: u8 = 64;
const IGMP: u8 = net::IPPROTO_IGMP as u8;

impl InetStack {
    /// A packet of another protocol than TCP has arrived at this host: sockets that listen to its
    /// protocol get a copy, and the protocol does what it does.
    ///
    /// # Errors
    /// `ECONNREFUSED` for a datagram of UDP that is for nobody, `ENOPROTOOPT` for a protocol that
    /// nobody listens to.
    pub fn deliver_packet(&self, packet: Datagram) -> Result<()> {
        match packet.protocol {
            // What it says has no header: that is made for who listens to packets.
            UDP | UDP_LITE => {
                let _ = self.raw.deliver(&packet, || {
                    [&ip::udp_header(&packet)[..], &packet.data].concat()
                });
                self.udp.deliver(packet)
            }
            protocol => {
                let is_heard = self.raw.deliver(&packet, || packet.data.clone());
                if protocol == ICMP || protocol == ICMP6 {
                    self.receive_icmp(packet);
                } else if !is_heard && protocol != TCP && protocol != IGMP {
                    return Err(Errno::ENOPROTOOPT);
                }
                Ok(())
            }
        }
    }

    /// Whether any raw socket may want a copy of a packet.
    pub(super) fn hears_raw_packets(&self) -> bool {
        self.raw.has_raw_sockets()
    }

    /// Answers a request, and gives a reply to who asked.
    fn receive_icmp(&self, mut packet: Datagram) {
        let v4 = packet.from.is_ipv4();
        let (request, reply) = if v4 { ECHO } else { ECHO6 };
        let whole = packet.data.len() >= 8
            && ip::icmp_checksum(&packet.data, packet.from.ip(), packet.to.ip()) == 0;
        if !whole || (packet.protocol == ICMP) != v4 {
            return;
        }
        if packet.data[0] == request {
            // One to everybody or a group is not answered (`icmp_echo_ignore_broadcasts`).
            let Some((route, source)) = self.answer_route(&packet) else {
                return;
            };
            packet.data[0] = reply;
            packet.to = packet.from;
            packet.from = SocketAddr::new(source, 0);
            packet.ttl = HOPS;
            packet.interface_index = route.interface_index;
            packet.path_mtu_discovery = PathMtuDiscovery::Never;
            ip::set_icmp_checksum(&mut packet.data, packet.from.ip(), packet.to.ip());
            // An answer that cannot be sent is lost.
            let _ = self.network.transmit(self, packet);
        } else if packet.data[0] == reply {
            let id = u16::from_be_bytes([packet.data[4], packet.data[5]]);
            if let Some(socket) = self.raw.find_ping(v4, id) {
                socket.receive_echo_reply(packet);
            }
        } else if v4 && let Ok(Some(error)) = ::ip::icmp::parse_error(&packet.data) {
            self.take_icmp_error(&QuotedError::of_v4(&error), packet.from.ip());
        } else if !v4 && let Ok(Some(error)) = ::ip::v6::icmp::parse_error(&packet.data) {
            let error = QuotedError::of_v6(&error, packet.interface_index);
            self.take_icmp_error(&error, packet.from.ip());
        }
    }

    /// An error tells of a packet: what it says of the path counts if somebody here has sent that.
    fn take_icmp_error(&self, error: &QuotedError<'_>, offender: IpAddr) {
        if self.handle_icmp_error(error, offender) {
            self.network.learn_path_mtu(error);
        }
    }

    /// The route of an answer to a packet, and the address that it comes from. What is sent to many
    /// is answered over IPv6 only.
    fn answer_route(&self, packet: &Datagram) -> Option<(Route, IpAddr)> {
        let (from, to) = (packet.from, packet.to);
        let route = self.network.route(from.ip(), link_of(from, 0)).ok()?;
        if packet.interface_index == Loopback::INDEX || self.is_local_address(to) {
            return Some((route, to.ip()));
        }
        let is_group = to.is_ipv6() && to.ip().is_multicast();
        is_group.then_some((route, route.source))
    }
}
