//! The Internet checksum (RFC 1071).

use core::net::{Ipv4Addr, Ipv6Addr};

/// The ones' complement sum of 16-bit words, under way.
///
/// Words are added as the processor has them, 64 bits at once with the carry added again: of words
/// with their bytes swapped the sum is the same with its bytes swapped, and a wider sum folds into
/// the same 16 bits (RFC 1071, section 2).
#[derive(Clone, Copy, Default, Debug)]
pub struct Checksum {
    sum: u64,
    /// An odd number of bytes was added: the next one is the second of its word.
    odd: bool,
}

impl Checksum {
    /// A sum that holds the pseudo-header of IPv4 (RFC 768, RFC 9293, section 3.1).
    #[must_use]
    pub fn pseudo_header(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        length: usize,
    ) -> Self {
        let address = |address: Ipv4Addr| u64::from(u32::from_le_bytes(address.octets()));
        let protocol = u64::from(u16::from_le_bytes([0, protocol]));
        let length = u64::from((length as u16).swap_bytes());
        Self {
            sum: address(source) + address(destination) + protocol + length,
            odd: false,
        }
    }

    /// A sum that holds the pseudo-header of IPv6 (RFC 8200, section 8.1).
    #[must_use]
    pub fn pseudo_header_v6(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        protocol: u8,
        length: usize,
    ) -> Self {
        let mut sum = Self::default();
        sum.add(&source.octets());
        sum.add(&destination.octets());
        sum.add(&(length as u32).to_be_bytes());
        sum.add(&[0, 0, 0, protocol]);
        sum
    }

    /// Adds bytes that follow those before.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let part = sum_of(bytes);
        // Behind an odd number each byte has the other half of its word.
        let part = part.rotate_left(if self.odd { 8 } else { 0 });
        self.sum = with_carry(self.sum, part);
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// The checksum: 0 for bytes that hold a right one.
    #[must_use]
    pub fn finish(self) -> u16 {
        !fold(self.sum).swap_bytes()
    }
}

/// The sum of two, to which the carry is added.
fn with_carry(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    // There is room for it: two numbers that carry leave a sum that is not the largest.
    sum + u64::from(carry)
}

/// A sum in 16 bits, which are zero only if it is.
fn fold(sum: u64) -> u16 {
    let mut sum = (sum & 0xffff_ffff) + (sum >> 32);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of bytes in words of 64 bits, lowest byte first.
fn sum_of(bytes: &[u8]) -> u64 {
    let (mut sum, mut carry) = (0_u64, false);
    let (lines, rest) = bytes.as_chunks::<64>();
    for line in lines {
        // One instruction for each word: the carry of one goes into the next.
        for word in line.as_chunks::<8>().0 {
            (sum, carry) = sum.carrying_add(u64::from_le_bytes(*word), carry);
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        (sum, carry) = sum.carrying_add(u64::from_le_bytes(*word), carry);
    }
    // What is left is less than a word: its parts have room in one.
    let mut last = 0;
    let (fours, rest) = rest.as_chunks::<4>();
    if let [four] = fours {
        last += u64::from(u32::from_le_bytes(*four));
    }
    let (twos, rest) = rest.as_chunks::<2>();
    if let [two] = twos {
        last += u64::from(u16::from_le_bytes(*two));
    }
    if let [first] = rest {
        last += u64::from(*first);
    }
    (sum, carry) = sum.carrying_add(last, carry);
    with_carry(sum, u64::from(carry))
}

/// A change of bytes that a checksum covers, by which it is made right without looking at the
/// others (RFC 1624, equation 3). What was wrong stays wrong.
#[derive(Clone, Copy, Default, Debug)]
pub struct ChecksumUpdate(u64);

impl ChecksumUpdate {
    /// Whole words have become others.
    pub fn replace<const N: usize>(&mut self, old: [u8; N], new: [u8; N]) {
        for word in old.as_chunks::<2>().0 {
            self.0 += u64::from(!u16::from_be_bytes(*word));
        }
        for word in new.as_chunks::<2>().0 {
            self.0 += u64::from(u16::from_be_bytes(*word));
        }
    }

    /// The checksum after the change.
    #[must_use]
    pub fn apply(self, checksum: u16) -> u16 {
        !fold(self.0 + u64::from(!checksum))
    }
}

/// The checksum of bytes.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Checksum::default();
    sum.add(bytes);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
    }

    proptest::proptest! {
        /// Word by word, as RFC 1071 says it first; with bytes that carry again and again.
        #[test]
        fn many_words_are_summed_as_one_by_one(
            bytes in proptest::collection::vec(proptest::sample::select(std::vec![0, 1, 0x7f, 0xfe, 0xff]), 0..200),
            pair: [u8; 2],
        ) {
            for bytes in [&bytes[..], &pair.repeat(bytes.len())] {
                let words = bytes.chunks(2).map(|word| u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
                let mut sum = words.map(u64::from).sum::<u64>();
                while sum > 0xffff {
                    sum = (sum & 0xffff) + (sum >> 16);
                }
                proptest::prop_assert_eq!(checksum(bytes), !(sum as u16));
            }
        }

        #[test]
        fn a_pseudo_header_is_the_sum_of_its_bytes(ends: [[u8; 4]; 2], protocol: u8, length: u16) {
            let [source, destination] = ends.map(Ipv4Addr::from);
            let sum = Checksum::pseudo_header(source, destination, protocol, length.into());
            let [high, low] = length.to_be_bytes();
            let bytes = [&ends[0][..], &ends[1], &[0, protocol, high, low]].concat();
            proptest::prop_assert_eq!(sum.finish(), checksum(&bytes));
        }

        #[test]
        fn parts_sum_up_to_the_whole(bytes: std::vec::Vec<u8>, cuts: [u8; 3]) {
            let mut sum = Checksum::default();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (part, more) = rest.split_at(usize::from(cut).min(rest.len()));
                sum.add(part);
                rest = more;
            }
            sum.add(rest);
            proptest::prop_assert_eq!(sum.finish(), checksum(&bytes));
        }

        /// The zero words of one's complement are told apart as by a sum over all, unless all is
        /// zero.
        #[test]
        fn an_update_is_as_a_new_sum(
            first in 1u8..,
            mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 8..40),
            new: [u8; 4],
        ) {
            bytes[7] = first;
            let old = checksum(&bytes);
            let before = [bytes[2], bytes[3], bytes[4], bytes[5]];
            bytes[2..6].copy_from_slice(&new);
            let mut update = ChecksumUpdate::default();
            update.replace(before, new);
            proptest::prop_assert_eq!(update.apply(old), checksum(&bytes));
        }
    }
}
