//! Packets of IPv4 (RFC 791).

use core::net::Ipv4Addr;
use core::ops::Deref;

use crate::{Malformed, checksum};

/// Bytes of a header without options.
pub const HEADER: usize = 20;
/// Bytes of options that a header has room for.
pub const MOST_OPTIONS: usize = 40;
/// Bytes of the longest packet.
pub const LONGEST: usize = 65_535;
/// Bytes that every link carries in one piece (RFC 791, section 3.2).
pub const LEAST_MTU: usize = 68;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// The fields of a header that are not made up of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Type of service.
    pub tos: u8,
    /// Number that fragments of a datagram share.
    pub id: u16,
    /// Routers may not cut the packet.
    pub dont_fragment: bool,
    /// The packet is a fragment that is not the last.
    pub more_fragments: bool,
    /// Offset of the payload in the datagram, bytes: a multiple of 8.
    pub offset: u16,
    /// Hops that are left.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Sender.
    pub source: Ipv4Addr,
    /// Receiver.
    pub destination: Ipv4Addr,
}

/// A packet that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Header of the packet.
    pub header: Header,
    /// The bytes of the header, with options.
    pub header_bytes: &'a [u8],
    /// The bytes behind the header.
    pub payload: &'a [u8],
}

/// The bytes of a header.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    bytes: [u8; HEADER + MOST_OPTIONS],
    length: usize,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Header {
    /// Whether the packet is part of a datagram only.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.offset != 0
    }

    /// The header of a packet with so many bytes of payload.
    #[must_use]
    pub fn emit(&self, payload: usize) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let flag = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        let fragment = flag(self.dont_fragment, DONT_FRAGMENT)
            | flag(self.more_fragments, MORE_FRAGMENTS)
            | self.offset >> 3 & OFFSET;
        bytes[..2].copy_from_slice(&[0x45, self.tos]);
        bytes[2..4].copy_from_slice(&((HEADER + payload) as u16).to_be_bytes());
        bytes[4..6].copy_from_slice(&self.id.to_be_bytes());
        bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
        bytes[8..10].copy_from_slice(&[self.ttl, self.protocol]);
        bytes[12..16].copy_from_slice(&self.source.octets());
        bytes[16..].copy_from_slice(&self.destination.octets());
        let sum = checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// The header of a packet with so many bytes of payload, with options: ten words at most.
    #[must_use]
    pub fn emit_with(&self, options: &[u8], payload: usize) -> HeaderBytes {
        debug_assert!(options.len().is_multiple_of(4) && options.len() <= MOST_OPTIONS);
        let length = HEADER + options.len();
        let mut bytes = [0; HEADER + MOST_OPTIONS];
        bytes[..HEADER].copy_from_slice(&self.emit(options.len() + payload));
        bytes[HEADER..length].copy_from_slice(options);
        bytes[0] = 0x40 | (length / 4) as u8;
        bytes[10..12].fill(0);
        let sum = checksum(&bytes[..length]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        HeaderBytes { bytes, length }
    }

    /// Reads a header whose checksum and length are of no interest: that of a packet which an ICMP
    /// error quotes. Returns what is behind it, too.
    ///
    /// # Errors
    /// There is no header.
    pub fn parse_quoted(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let fixed = bytes.first_chunk::<HEADER>().ok_or(Malformed)?;
        let length = usize::from(fixed[0] & 0xf) * 4;
        if fixed[0] >> 4 != 4 || length < HEADER {
            return Err(Malformed);
        }
        let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let address =
            |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
        let header = Self {
            tos: fixed[1],
            id: word(4),
            dont_fragment: word(6) & DONT_FRAGMENT != 0,
            more_fragments: word(6) & MORE_FRAGMENTS != 0,
            offset: (word(6) & OFFSET) << 3,
            ttl: fixed[8],
            protocol: fixed[9],
            source: address(12),
            destination: address(16),
        };
        Ok((header, bytes.get(length..).ok_or(Malformed)?))
    }
}

impl<'a> Packet<'a> {
    /// Reads a packet; bytes behind its end are the link's.
    ///
    /// # Errors
    /// It is shorter than it says, its checksum is wrong, its options are malformed or are a source
    /// route (RFC 7126, 4.3 and 4.4), its fragment would be too long for a datagram.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, _) = Header::parse_quoted(bytes)?;
        let header_length = usize::from(bytes[0] & 0xf) * 4;
        let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let (header_bytes, payload) = bytes
            .get(..length)
            .and_then(|whole| whole.split_at_checked(header_length))
            .ok_or(Malformed)?;
        let fits = usize::from(header.offset) + payload.len() <= LONGEST - HEADER;
        // All fragments but the last are of whole units of eight bytes.
        let whole = !header.more_fragments || payload.len().is_multiple_of(8);
        if checksum(header_bytes) != 0
            || !fits
            || !whole
            || !options_are_harmless(&header_bytes[HEADER..])
        {
            return Err(Malformed);
        }
        Ok(Self {
            header,
            header_bytes,
            payload,
        })
    }
}

/// Whether options are well-formed, and none is a source route.
fn options_are_harmless(mut rest: &[u8]) -> bool {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    loop {
        rest = match rest {
            [] | [END, ..] => return true,
            [NOTHING, more @ ..] => more,
            [LOOSE_ROUTE | STRICT_ROUTE, ..] | [_] => return false,
            [_, length, ..] => match rest.get(usize::from(*length)..) {
                Some(more) if *length >= 2 => more,
                _ => return false,
            },
        };
    }
}

/// The pieces of a payload for packets of at most `mtu` bytes: offset, whether more follow, bytes.
pub fn fragments(mtu: usize, payload: &[u8]) -> impl Iterator<Item = (u16, bool, &[u8])> {
    let room = mtu.max(LEAST_MTU) - HEADER;
    let step = if payload.len() <= room {
        payload.len().max(1)
    } else {
        room & !7
    };
    let count = payload.len().div_ceil(step).max(1);
    (0..count).map(move |number| {
        let start = number * step;
        let end = payload.len().min(start + step);
        (start as u16, end < payload.len(), &payload[start..end])
    })
}

/// Whether an address may be a packet's sender: one host of some network.
#[must_use]
pub fn is_possible_source(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first != 127 && first < 224
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            tos: 0x10,
            id: 77,
            dont_fragment: true,
            more_fragments: false,
            offset: 0,
            ttl: 63,
            protocol: 17,
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
        }
    }

    fn packet(header: Header, payload: &[u8]) -> Vec<u8> {
        [&header.emit(payload.len())[..], payload].concat()
    }

    fn with_options(options: &[u8]) -> Vec<u8> {
        let mut bytes = packet(header(), b"payload");
        bytes.splice(HEADER..HEADER, options.iter().copied());
        bytes[0] += options.len() as u8 / 4;
        let length = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        bytes[10..12].fill(0);
        let sum = checksum(&bytes[..HEADER + options.len()]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    #[test]
    fn headers_come_back_and_padding_does_not() {
        let mut bytes = packet(header(), b"payload");
        bytes.extend_from_slice(&[0; 9]);
        let got = Packet::parse(&bytes).unwrap();
        assert_eq!((got.header, got.payload), (header(), &b"payload"[..]));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let bytes = packet(header(), b"payload");
        for bit in 0..HEADER * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Packet::parse(&flipped), Err(Malformed), "{bit}");
        }
    }

    #[test]
    fn options_are_walked_and_routes_refused() {
        let timestamp = [68, 8, 5, 0, 0, 0, 0, 0];
        assert_eq!(
            Packet::parse(&with_options(&timestamp)).unwrap().payload,
            b"payload"
        );
        for bad in [
            [131, 7, 4, 10, 0, 0, 9, 0],
            [137, 7, 4, 10, 0, 0, 9, 0],
            [1, 1, 1, 68, 1, 0, 0, 0],
            [68, 9, 5, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 1, 1, 1, 68],
        ] {
            assert_eq!(
                Packet::parse(&with_options(&bad)),
                Err(Malformed),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_fragment_beyond_the_longest_datagram_is_refused() {
        let last = Header {
            offset: 65_528,
            dont_fragment: false,
            ..header()
        };
        assert_eq!(Packet::parse(&packet(last, &[0; 8])), Err(Malformed));
        let odd = Header {
            more_fragments: true,
            ..header()
        };
        assert_eq!(Packet::parse(&packet(odd, &[0; 7])), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Packet::parse(&bytes);
            let _ = Header::parse_quoted(&bytes);
        }

        #[test]
        fn fragments_fit_and_cover_the_payload(mtu in 0usize..3000, length in 0usize..20_000) {
            let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let mut whole = Vec::new();
            let pieces: Vec<_> = fragments(mtu, &payload).collect();
            for (number, (offset, more, bytes)) in pieces.iter().enumerate() {
                prop_assert_eq!(usize::from(*offset), whole.len());
                prop_assert_eq!(*more, number + 1 < pieces.len());
                prop_assert!(!more || bytes.len() % 8 == 0 && !bytes.is_empty());
                prop_assert!(HEADER + bytes.len() <= mtu.max(LEAST_MTU));
                whole.extend_from_slice(bytes);
            }
            prop_assert_eq!(whole, payload);
        }
    }
}
