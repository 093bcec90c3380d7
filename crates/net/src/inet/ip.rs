//! Packets of IP as bytes: headers and checksums, written and read.
//!
//! Facts: RFC 791 (IPv4), RFC 792 (ICMP), RFC 1071 (the checksum), RFC 4443 (ICMPv6).

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use linux_raw_sys::net;

use super::datagram::{Datagram, PathMtuDiscovery};

pub(super) const ICMP: u8 = net::IPPROTO_ICMP as u8;
pub(super) const ICMP6: u8 = net::IPPROTO_ICMPV6 as u8;
pub(super) const TCP: u8 = net::IPPROTO_TCP as u8;
pub(super) const UDP: u8 = net::IPPROTO_UDP as u8;
pub(super) const UDP_LITE: u8 = net::IPPROTO_UDPLITE as u8;
/// Bytes of a UDP header.
pub(super) const UDP_HEADER: usize = 8;
/// Bytes of an IPv4 header without options.
pub(super) const V4_HEADER: usize = 20;
/// Kinds of ICMP messages: request and reply.
pub(super) const ECHO: (u8, u8) = (8, 0);
pub(super) const ECHO6: (u8, u8) = (128, 129);

/// The ones' complement sum of all words, complemented. Of bytes that hold a right checksum it is
/// 0.
pub(super) fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = ::ip::Checksum::default();
    parts.iter().for_each(|part| sum.add(part));
    sum.finish()
}

/// The pseudo-header that an ICMPv6 message, or any over IPv6, is summed up with.
pub(super) fn pseudo_header(from: IpAddr, to: IpAddr, length: usize, protocol: u8) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    [
        &octets(from)[..],
        &octets(to),
        &(length as u32).to_be_bytes(),
        &[0, 0, 0, protocol],
    ]
    .concat()
}

/// The header of an IPv4 packet with so many bytes behind it.
pub(super) fn ipv4_header(packet: &Datagram, bytes: usize) -> Vec<u8> {
    const NO_FRAGMENTS: u16 = 0x4000;
    let (IpAddr::V4(from), IpAddr::V4(to)) = (packet.from.ip(), packet.to.ip()) else {
        return Vec::new();
    };
    let length = (V4_HEADER + bytes) as u16;
    let mut header = [0; V4_HEADER];
    header[..2].copy_from_slice(&[0x45, packet.tos]);
    header[2..4].copy_from_slice(&length.to_be_bytes());
    header[6..8].copy_from_slice(&NO_FRAGMENTS.to_be_bytes());
    header[8..10].copy_from_slice(&[packet.ttl, packet.protocol]);
    header[12..16].copy_from_slice(&from.octets());
    header[16..].copy_from_slice(&to.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header.to_vec()
}

/// The header of a UDP datagram, without a checksum, which is not needed where nothing is lost.
pub(super) fn udp_header(datagram: &Datagram) -> [u8; UDP_HEADER] {
    let mut header = [0; UDP_HEADER];
    let length = (datagram.data.len() + UDP_HEADER) as u16;
    for (to, number) in
        header
            .chunks_exact_mut(2)
            .zip([datagram.from.port(), datagram.to.port(), length])
    {
        to.copy_from_slice(&number.to_be_bytes());
    }
    header
}

/// Puts the checksum of an ICMP message into it.
pub(super) fn set_icmp_checksum(message: &mut [u8], from: IpAddr, to: IpAddr) {
    let Some(place) = message.get_mut(2..4) else {
        return;
    };
    place.fill(0);
    let sum = icmp_checksum(message, from, to);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

pub(super) fn icmp_checksum(message: &[u8], from: IpAddr, to: IpAddr) -> u16 {
    if from.is_ipv4() {
        checksum(&[message])
    } else {
        checksum(&[&pseudo_header(from, to, message.len(), ICMP6), message])
    }
}

/// The packet that a program made, whole with its IPv4 header; what it left out is filled in.
pub(super) fn parse_ipv4_packet(
    bytes: &[u8],
    to: IpAddr,
    source: IpAddr,
    interface_index: u32,
) -> Option<Datagram> {
    let (header, _) = bytes.split_first_chunk::<V4_HEADER>()?;
    let length = usize::from(header[0] & 0xf) * 4;
    let data = bytes.get(length.max(V4_HEADER)..)?.to_vec();
    let [a, b, c, d] = [header[12], header[13], header[14], header[15]];
    let from = match [a, b, c, d] {
        [0, 0, 0, 0] => source,
        octets => octets.into(),
    };
    let mut packet = Datagram {
        from: SocketAddr::new(from, 0),
        to: SocketAddr::new(to, 0),
        protocol: header[9],
        interface_index,
        ttl: header[8],
        tos: header[1],
        timestamp_ns: 0,
        drops: 0,
        sender: None,
        path_mtu_discovery: PathMtuDiscovery::default(),
        data,
    };
    strip_udp_header(&mut packet)?;
    Some(packet)
}

/// Takes the header off a packet of UDP.
pub(super) fn strip_udp_header(packet: &mut Datagram) -> Option<()> {
    if !matches!(packet.protocol, UDP | UDP_LITE) {
        return Some(());
    }
    let [s0, s1, d0, d1, l0, l1, ..] = *packet.data.first_chunk::<UDP_HEADER>()?;
    packet.from.set_port(u16::from_be_bytes([s0, s1]));
    packet.to.set_port(u16::from_be_bytes([d0, d1]));
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    packet.data.truncate(if packet.protocol == UDP {
        length
    } else {
        usize::MAX
    });
    packet.data.drain(..UDP_HEADER.min(packet.data.len()));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_rfc() {
        // RFC 1071, section 3.
        assert_eq!(
            checksum(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]),
            !0xddf2
        );
        assert_eq!(checksum(&[&[1, 2, 3], &[4]]), checksum(&[&[1], &[2, 3, 4]]));
        let (from, to) = ("::1".parse().unwrap(), "::2".parse().unwrap());
        let mut message = [128, 0, 9, 9, 0, 1, 0, 1, 5];
        set_icmp_checksum(&mut message, from, to);
        assert_eq!(icmp_checksum(&message, from, to), 0);
    }
}
