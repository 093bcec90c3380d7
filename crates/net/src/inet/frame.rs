//! Packets as they would be on a wire: the loop carries none, but who listens to it, or is told of
//! what was sent, gets them.
//!
//! Facts: RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768 (UDP), RFC 9293 (TCP).

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use ::ip::Checksum;
use linux_raw_sys::net;

use super::datagram::{Datagram, PathMtuDiscovery};
use super::ip::{self, TCP, UDP_HEADER, V4_HEADER};
use crate::socket::Interface;
use crate::socket::interface::ETHERNET_HEADER_LEN;

pub(crate) const ETH_P_IP: u16 = 0x0800;
pub(crate) const ETH_P_IPV6: u16 = 0x86dd;
const UDP: u8 = net::IPPROTO_UDP as u8;
const UDP_LITE: u8 = net::IPPROTO_UDPLITE as u8;
/// Bytes of an IPv6 header.
const V6_HEADER: usize = 40;
/// Bytes of a TCP header without options.
const TCP_HEADER: usize = 20;
const HOPS: u8 = 64;

/// Flags of a segment.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;

/// The kind of what is behind the link's header.
fn ether_type(to: IpAddr) -> u16 {
    if to.is_ipv4() { ETH_P_IP } else { ETH_P_IPV6 }
}

/// The kind of what a frame of an interface carries (`ETH_P_*`); 0 if that is not known.
pub(crate) fn protocol(frame: &[u8], interface: &Interface) -> u16 {
    if interface.link_header_len() == 0 {
        return match frame.first().map(|first| first >> 4) {
            Some(4) => ETH_P_IP,
            Some(6) => ETH_P_IPV6,
            _ => 0,
        };
    }
    frame
        .get(ETHERNET_HEADER_LEN - 2..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |kind| u16::from_be_bytes(*kind))
}

fn ipv6_header(packet: &Datagram, length: usize) -> Vec<u8> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = (packet.from.ip(), packet.to.ip()) else {
        return Vec::new();
    };
    let class = u32::from(packet.tos) << 20;
    let first = (6 << 28 | class).to_be_bytes();
    [
        &first[..],
        &(length as u16).to_be_bytes(),
        &[packet.protocol, packet.ttl],
        &from.octets(),
        &to.octets(),
    ]
    .concat()
}

/// The header of a datagram of UDP or UDP-Lite, with its checksum.
pub(super) fn checked_udp_header(datagram: &Datagram) -> [u8; UDP_HEADER] {
    let mut header = ip::udp_header(datagram);
    let length = UDP_HEADER + datagram.data.len();
    let sum = match (datagram.from.ip(), datagram.to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            Some(Checksum::pseudo_header(from, to, datagram.protocol, length))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => Some(Checksum::pseudo_header_v6(
            from,
            to,
            datagram.protocol,
            length,
        )),
        _ => None,
    };
    if let Some(mut sum) = sum {
        sum.add(&header);
        sum.add(&datagram.data);
        // 0 would mean that there is none.
        let sum = match sum.finish() {
            0 => u16::MAX,
            sum => sum,
        };
        header[UDP_HEADER - 2..].copy_from_slice(&sum.to_be_bytes());
    }
    header
}

/// A packet with its link's and all other headers.
pub(crate) fn frame(packet: &Datagram) -> Vec<u8> {
    let mut above = Vec::new();
    if matches!(packet.protocol, UDP | UDP_LITE) {
        above.extend_from_slice(&ip::udp_header(packet));
        above.extend_from_slice(&packet.data);
        set_checksum(&mut above, UDP_HEADER - 2, packet);
    } else {
        above.extend_from_slice(&packet.data);
    }
    add_link_header(packet, &above)
}

fn add_link_header(packet: &Datagram, above: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ETHERNET_HEADER_LEN + 40 + above.len());
    bytes.resize(ETHERNET_HEADER_LEN - 2, 0);
    bytes.extend_from_slice(&ether_type(packet.to.ip()).to_be_bytes());
    if packet.to.is_ipv4() {
        bytes.extend_from_slice(&ip::ipv4_header(packet, above.len()));
    } else {
        bytes.extend_from_slice(&ipv6_header(packet, above.len()));
    }
    bytes.extend_from_slice(above);
    bytes
}

fn set_checksum(bytes: &mut [u8], at: usize, packet: &Datagram) {
    let (from, to) = (packet.from.ip(), packet.to.ip());
    let head = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = (bytes.len() as u16).to_be_bytes();
            [
                &from.octets()[..],
                &to.octets(),
                &[0, packet.protocol],
                &length,
            ]
            .concat()
        }
        _ => ip::pseudo_header(from, to, bytes.len(), packet.protocol),
    };
    let sum = match ip::checksum(&[&head, bytes]) {
        // That would mean there is none.
        0 => u16::MAX,
        sum => sum,
    };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// A segment of TCP.
pub(super) struct Segment<'a> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The number of its first byte.
    pub(super) sequence: u32,
    /// The number of the byte that is expected.
    pub(super) acknowledgment: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) data: &'a [u8],
}

impl Segment<'_> {
    /// The segment as a packet with all headers.
    pub(super) fn frame(&self) -> Vec<u8> {
        // The first one of each side says how large segments may be, and that windows count 128
        // bytes.
        const OPTIONS: [u8; 8] = [2, 4, 0xff, 0xcb, 1, 3, 3, 7];
        let options = if self.flags & SYN != 0 {
            &OPTIONS[..]
        } else {
            &[]
        };
        let mut above = Vec::with_capacity(TCP_HEADER + options.len() + self.data.len());
        above.extend_from_slice(&self.from.port().to_be_bytes());
        above.extend_from_slice(&self.to.port().to_be_bytes());
        above.extend_from_slice(&self.sequence.to_be_bytes());
        above.extend_from_slice(&self.acknowledgment.to_be_bytes());
        above.extend_from_slice(&[((TCP_HEADER + options.len()) as u8 / 4) << 4, self.flags]);
        above.extend_from_slice(&self.window.to_be_bytes());
        above.extend_from_slice(&[0; 4]);
        above.extend_from_slice(options);
        above.extend_from_slice(self.data);
        let packet = Datagram {
            from: self.from,
            to: self.to,
            protocol: TCP,
            interface_index: 0,
            ttl: HOPS,
            tos: 0,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: PathMtuDiscovery::default(),
            data: Vec::new(),
        };
        set_checksum(&mut above, 16, &packet);
        add_link_header(&packet, &above)
    }
}

/// The packet in a frame that a program made, whole with its link's header; `None` if it is none of
/// IP.
pub(crate) fn parse_frame(frame: &[u8], interface_index: u32) -> Option<Datagram> {
    let (link, bytes) = frame.split_first_chunk::<ETHERNET_HEADER_LEN>()?;
    match u16::from_be_bytes([link[12], link[13]]) {
        ETH_P_IP => {
            let header = bytes.first_chunk::<V4_HEADER>()?;
            let [from, to] = [12, 16].map(|at| {
                IpAddr::from([header[at], header[at + 1], header[at + 2], header[at + 3]])
            });
            let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
            ip::parse_ipv4_packet(
                bytes.get(..length).unwrap_or(bytes),
                to,
                from,
                interface_index,
            )
        }
        ETH_P_IPV6 => {
            let (header, data) = bytes.split_first_chunk::<V6_HEADER>()?;
            let ip = |at: usize| {
                header[at..]
                    .first_chunk::<16>()
                    .map(|octets| SocketAddr::new(IpAddr::from(*octets), 0))
            };
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let mut packet = Datagram {
                from: ip(8)?,
                to: ip(24)?,
                protocol: header[6],
                interface_index,
                ttl: header[7],
                tos: header[0] << 4 | header[1] >> 4,
                timestamp_ns: 0,
                drops: 0,
                sender: None,
                path_mtu_discovery: PathMtuDiscovery::default(),
                data: data.get(..length).unwrap_or(data).to_vec(),
            };
            ip::strip_udp_header(&mut packet)?;
            Some(packet)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inet::ip::checksum;

    fn addresses(v6: bool) -> (SocketAddr, SocketAddr) {
        let ip: IpAddr = if v6 {
            "::1".parse().unwrap()
        } else {
            "127.0.0.1".parse().unwrap()
        };
        (SocketAddr::new(ip, 1000), SocketAddr::new(ip, 2000))
    }

    #[test]
    fn packets_are_whole_with_right_checksums() {
        for v6 in [false, true] {
            let (from, to) = addresses(v6);
            let header = if v6 { 40 } else { 20 };
            let packet = Datagram {
                from,
                to,
                protocol: UDP,
                interface_index: 1,
                ttl: 64,
                tos: 0,
                timestamp_ns: 0,
                drops: 0,
                sender: None,
                path_mtu_discovery: PathMtuDiscovery::default(),
                data: b"hello".to_vec(),
            };
            let segment = Segment {
                from,
                to,
                sequence: 7,
                acknowledgment: 9,
                flags: SYN | ACK,
                window: 1,
                data: b"x",
            };
            for (bytes, protocol, length) in [(frame(&packet), UDP, 13), (segment.frame(), TCP, 29)]
            {
                assert_eq!(bytes.len(), ETHERNET_HEADER_LEN + header + length);
                let above = &bytes[ETHERNET_HEADER_LEN + header..];
                assert_eq!(above[..4], [0x03, 0xe8, 0x07, 0xd0]);
                let head = ip::pseudo_header(from.ip(), to.ip(), above.len(), protocol);
                // Mapped, IPv4 addresses add words of ones to the sum, which are nothing.
                assert_eq!(checksum(&[&head, above]), 0);
                if !v6 {
                    assert_eq!(
                        checksum(&[&bytes[ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + 20]]),
                        0
                    );
                }
            }
        }
    }

    fn datagram(v6: bool, protocol: u8, data: &[u8]) -> Datagram {
        let (from, to) = addresses(v6);
        Datagram {
            from,
            to,
            protocol,
            interface_index: 1,
            ttl: 61,
            tos: 0x1c,
            timestamp_ns: 0,
            drops: 0,
            sender: None,
            path_mtu_discovery: PathMtuDiscovery::default(),
            data: data.to_vec(),
        }
    }

    /// Headers that are put before bytes are those that are taken off them.
    #[test]
    fn headers_are_read_as_they_are_written() {
        for v6 in [false, true] {
            for (protocol, header) in [(UDP, UDP_HEADER), (UDP_LITE, UDP_HEADER), (89, 0)] {
                let sent = datagram(v6, protocol, b"contents");
                let bytes = frame(&sent);
                assert_eq!(
                    bytes.len(),
                    ETHERNET_HEADER_LEN + if v6 { 40 } else { 20 } + header + 8
                );
                assert_eq!(
                    bytes[ETHERNET_HEADER_LEN - 2..ETHERNET_HEADER_LEN],
                    if v6 { [0x86, 0xdd] } else { [8, 0] }
                );
                let got = parse_frame(&bytes, 7).unwrap();
                assert_eq!(
                    (got.from.ip(), got.to.ip(), got.interface_index),
                    (sent.from.ip(), sent.to.ip(), 7)
                );
                assert_eq!(
                    (got.protocol, got.ttl, got.tos, &got.data),
                    (protocol, 61, 0x1c, &sent.data)
                );
                let ports = if header == 0 { (0, 0) } else { (1000, 2000) };
                assert_eq!((got.from.port(), got.to.port()), ports);
                // What is behind the packet is not of it; a frame that ends within the headers is
                // none.
                let padded = [&bytes[..], &[0xee; 9]].concat();
                assert_eq!(parse_frame(&padded, 7).unwrap().data, sent.data);
                for length in [
                    0,
                    ETHERNET_HEADER_LEN - 1,
                    ETHERNET_HEADER_LEN,
                    ETHERNET_HEADER_LEN + 19,
                    bytes.len() - 8 - header.min(1),
                ] {
                    let cut = parse_frame(&bytes[..length], 7);
                    assert!(
                        cut.is_none() || header == 0 && length == bytes.len() - 8,
                        "{length}"
                    );
                }
            }
        }
        let mut other = frame(&datagram(false, UDP, b"x"));
        other[ETHERNET_HEADER_LEN - 1] = 6;
        assert!(parse_frame(&other, 1).is_none(), "ARP");
    }

    /// The length that a datagram of UDP says is the one that counts.
    #[test]
    fn a_datagram_ends_where_its_header_says() {
        let mut bytes = frame(&datagram(false, UDP, b"contents"));
        let length = ETHERNET_HEADER_LEN + 20 + 5;
        bytes[length] = 8 + 3;
        assert_eq!(parse_frame(&bytes, 1).unwrap().data, b"con");
        bytes[length] = 4;
        assert_eq!(parse_frame(&bytes, 1).unwrap().data, b"");
    }

    /// A program may leave the sender out, and say more in its header than there must be.
    #[test]
    fn what_a_programs_header_leaves_out_is_filled_in() {
        let (from, to) = addresses(false);
        let bytes = &frame(&datagram(false, 89, b"data"))[ETHERNET_HEADER_LEN..];
        let read =
            |bytes: &[u8]| ip::parse_ipv4_packet(bytes, to.ip(), "10.0.0.9".parse().unwrap(), 3);
        assert_eq!(read(bytes).unwrap().from.ip(), from.ip());
        let mut nobody = bytes.to_vec();
        nobody[12..16].fill(0);
        assert_eq!(read(&nobody).unwrap().from.to_string(), "10.0.0.9:0");
        let options = [&[0x46][..], &bytes[1..20], &[1; 4], b"data"].concat();
        assert_eq!(read(&options).unwrap().data, b"data");
        let (mut short, mut long) = (bytes.to_vec(), bytes.to_vec());
        (short[0], long[0]) = (0x41, 0x4f);
        assert_eq!(
            (read(&short).unwrap().data, read(&long).is_none()),
            (b"data".to_vec(), true)
        );
        assert!(
            read(&bytes[..19]).is_none()
                && read(&bytes[..20]).is_some_and(|packet| packet.data.is_empty())
        );
    }

    #[test]
    fn the_first_segments_have_options() {
        let (from, to) = addresses(false);
        let segment = |flags| Segment {
            from,
            to,
            sequence: 0x0102_0304,
            acknowledgment: 0x0506_0708,
            flags,
            window: 0x090a,
            data: b"hi",
        };
        let (first, later) = (segment(SYN).frame(), segment(ACK | PSH).frame());
        let header = ETHERNET_HEADER_LEN + 20;
        assert_eq!((first[header + 12], later[header + 12]), (7 << 4, 5 << 4));
        assert_eq!((first[header + 13], later[header + 13]), (SYN, ACK | PSH));
        assert_eq!(later[header + 4..header + 12], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(later[header + 14..header + 16], [9, 10]);
        assert!(
            first.ends_with(&[2, 4, 0xff, 0xcb, 1, 3, 3, 7, b'h', b'i'])
                && later.len() == first.len() - 8
        );
        assert_eq!(
            (
                later[ETHERNET_HEADER_LEN + 8],
                later[ETHERNET_HEADER_LEN + 9]
            ),
            (64, TCP)
        );
    }
}
