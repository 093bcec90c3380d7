//! What comes before a packet that a program reads or writes: `struct tun_pi` and
//! `struct virtio_net_hdr`, as linux/if_tun.h and virtio 1.3, section 5.1.6, have them.

use abi::errno::Errno;
use fs::Result;
use ip::checksum;

/// Bytes of `struct tun_pi`: flags, and the protocol as Ethernet numbers it.
pub(super) const PI_LEN: usize = 4;
/// The packet did not fit.
const PI_STRIP: u16 = 1;
/// Bytes of `struct virtio_net_hdr` at least.
pub(super) const LEAST_VNET_LEN: usize = 10;
/// Bytes of it at most, as longer ones say nothing more.
pub(super) const MOST_VNET_LEN: usize = 256;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;

/// `struct tun_pi` before a packet that is read.
pub(super) fn packet_info(is_cut: bool, protocol: u16) -> [u8; PI_LEN] {
    let [flags_low, flags_high] = if is_cut { PI_STRIP } else { 0 }.to_ne_bytes();
    let [high, low] = protocol.to_be_bytes();
    [flags_low, flags_high, high, low]
}

/// Where a checksum of a packet that was written is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MissingChecksum {
    /// The first byte that it covers.
    start: usize,
    /// Its place, which holds the sum of what comes besides.
    place: usize,
}

impl MissingChecksum {
    /// The missing checksum that a `struct virtio_net_hdr` before a packet of `len` bytes tells of.
    ///
    /// # Errors
    /// `EINVAL`: of segments that are to be made here, and of places outside the packet.
    pub(super) fn parse(header: &[u8], len: usize) -> Result<Option<Self>> {
        let header: &[u8; LEAST_VNET_LEN] = header.first_chunk().ok_or(Errno::EINVAL)?;
        let [flags, gso_type, rest @ ..] = *header;
        let word = |at: usize| usize::from(u16::from_le_bytes([rest[at], rest[at + 1]]));
        let (header_len, start, offset) = (word(0), word(4), word(6));
        if gso_type != GSO_NONE || header_len > len {
            return Err(Errno::EINVAL);
        }
        if flags & NEEDS_CHECKSUM == 0 {
            return Ok(None);
        }
        let place = start + offset;
        if place + 2 > len {
            return Err(Errno::EINVAL);
        }
        Ok(Some(Self { start, place }))
    }

    /// Puts the checksum in its place. A sum of zero is told by its other form, as UDP has it.
    pub(super) fn fill(self, packet: &mut [u8]) {
        let sum = match checksum(&packet[self.start..]) {
            0 => 0xffff,
            sum => sum,
        };
        packet[self.place..self.place + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, gso_type: u8, words: [u16; 4]) -> [u8; LEAST_VNET_LEN] {
        let mut bytes = [0; LEAST_VNET_LEN];
        bytes[..2].copy_from_slice(&[flags, gso_type]);
        for (to, word) in bytes[2..].chunks_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_missing_checksum_is_put_in_its_place() {
        // The place holds the sum of a pseudo-header.
        let mut packet = [0, 0, 0, 0, 0x12, 0x34, 0, 6, 0xff, 0xff];
        let missing = MissingChecksum::parse(&header(1, 0, [4, 0, 4, 2]), 10).unwrap();
        missing.unwrap().fill(&mut packet);
        assert_eq!(packet[..6], [0, 0, 0, 0, 0x12, 0x34]);
        assert_eq!(checksum(&[&packet[4..], &[0, 6]].concat()), 0);
        // A sum of zero.
        let mut packet = [0xff, 0xff, 0, 0];
        let missing = MissingChecksum::parse(&header(1, 0, [0, 0, 0, 2]), 4).unwrap();
        missing.unwrap().fill(&mut packet);
        assert_eq!(packet, [0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn headers_that_point_outside_are_refused() {
        let parse =
            |flags, gso, words, len| MissingChecksum::parse(&header(flags, gso, words), len);
        assert_eq!(parse(0, 0, [0, 0, u16::MAX, u16::MAX], 0), Ok(None));
        assert!(parse(1, 0, [0, 0, 10, 8], 20).is_ok_and(|found| found.is_some()));
        for (flags, gso, words, len) in [
            (1, 0, [0, 0, 10, 9], 20),
            (1, 0, [0, 0, u16::MAX, u16::MAX], 20),
            (0, 0, [21, 0, 0, 0], 20),
            (0, 1, [20, 1400, 0, 0], 3000),
            (1, 0, [0; 4], 1),
        ] {
            assert_eq!(
                parse(flags, gso, words, len),
                Err(Errno::EINVAL),
                "{words:?}"
            );
        }
        assert_eq!(MissingChecksum::parse(&[0; 9], 20), Err(Errno::EINVAL));
    }

    #[test]
    fn packet_info_is_the_protocol_in_the_order_of_the_wire() {
        assert_eq!(packet_info(false, 0x86dd), [0, 0, 0x86, 0xdd]);
        assert_eq!(packet_info(true, 0x0800), [1, 0, 8, 0]);
    }
}
