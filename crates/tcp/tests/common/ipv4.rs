//! Packets of IPv4 around segments, for peers that want them.

use std::net::Ipv4Addr;

use tcp::{Header, Malformed, Segment, checksum};

/// A packet with a segment, both with their checksums.
pub fn packet(from: Ipv4Addr, to: Ipv4Addr, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; header.length() + payload.len()];
    let length = header.emit(&mut segment).expect("the header fits");
    segment[length..].copy_from_slice(payload);
    let sum = checksum(from.into(), to.into(), &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let total = (20 + segment.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let words = packet.chunks(2);
    let sum: u32 = words
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(segment);
    packet
}

/// The segment of a packet, if it has one, or what is wrong with that.
pub fn segment(
    from: Ipv4Addr,
    to: Ipv4Addr,
    packet: &[u8],
) -> Option<Result<Segment<'_>, Malformed>> {
    if packet.len() < 20 || packet[0] != 0x45 || packet[9] != 6 {
        return None;
    }
    Some(Segment::verify(from.into(), to.into(), &packet[20..]))
}
