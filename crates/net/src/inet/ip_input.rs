//! Packets of other protocols than TCP that arrive at this host: who gets them, and the answers to
//! echo requests (RFC 792, RFC 4443).

use fs::Result;

use super::datagram::Datagram;
use super::ip::{self, ECHO, ECHO6, ICMP, ICMP6, UDP, UDP_LITE};
use super::stack::InetStack;

/// The hop limit of an answer.
const HOPS: u8 = 64;

impl InetStack {
    /// A packet of another protocol than TCP has arrived at this host: sockets that listen to its
    /// protocol get a copy, and the protocol does what it does.
    ///
    /// # Errors
    /// `ECONNREFUSED` for a datagram of UDP that is for nobody.
    pub fn deliver_packet(&self, packet: Datagram) -> Result<()> {
        match packet.protocol {
            // What it says has no header: that is made for who listens to packets.
            UDP | UDP_LITE => {
                self.raw.deliver(&packet, || {
                    [&ip::udp_header(&packet)[..], &packet.data].concat()
                });
                self.udp.deliver(packet)
            }
            protocol => {
                self.raw.deliver(&packet, || packet.data.clone());
                if protocol == ICMP || protocol == ICMP6 {
                    self.receive_icmp(packet);
                }
                Ok(())
            }
        }
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
            packet.data[0] = reply;
            core::mem::swap(&mut packet.from, &mut packet.to);
            packet.ttl = HOPS;
            ip::set_icmp_checksum(&mut packet.data, packet.from.ip(), packet.to.ip());
            // An answer that cannot be sent is lost.
            let _ = self.network.transmit(self, packet);
        } else if packet.data[0] == reply {
            let id = u16::from_be_bytes([packet.data[4], packet.data[5]]);
            if let Some(socket) = self.raw.find_ping(v4, id) {
                socket.receive_echo_reply(packet);
            }
        }
    }
}
