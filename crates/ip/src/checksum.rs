//! The Internet checksum (RFC 1071).

use core::net::{Ipv4Addr, Ipv6Addr};

/// The ones' complement sum of 16-bit words, under way.
#[derive(Clone, Copy, Default, Debug)]
pub struct Checksum {
    sum: u64,
    /// An odd number of bytes was added: the next one is the low half of its word.
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
        let halves = |address: Ipv4Addr| {
            let address = u64::from(u32::from(address));
            (address >> 16) + (address & 0xffff)
        };
        let rest = u64::from(protocol) + u64::from(length as u16);
        Self {
            sum: halves(source) + halves(destination) + rest,
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
    pub fn add(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.odd
            && let [low, more @ ..] = rest
        {
            self.sum += u64::from(*low);
            self.odd = false;
            rest = more;
        }
        let (many, rest) = rest.as_chunks::<8>();
        self.sum += sum_of_many(many);
        let (words, last) = rest.as_chunks::<2>();
        for word in words {
            self.sum += u64::from(u16::from_be_bytes(*word));
        }
        if let [high] = last {
            self.sum += u64::from(*high) << 8;
            self.odd = true;
        }
    }

    /// The checksum: 0 for bytes that hold a right one.
    #[must_use]
    pub fn finish(self) -> u16 {
        let mut sum = self.sum;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

/// The sum of words, four at once, in two instructions: carries are counted in the upper half. Of
/// words with their bytes swapped it is the same with its bytes swapped (RFC 1071, section 2), so
/// they are taken as the processor has them.
fn sum_of_many(many: &[[u8; 8]]) -> u64 {
    let wide = |words: &[u8; 8]| u128::from(u64::from_le_bytes(*words));
    let (fours, rest) = many.as_chunks::<4>();
    let mut sum = 0_u128;
    for [a, b, c, d] in fours {
        sum += wide(a);
        sum += wide(b);
        sum += wide(c);
        sum += wide(d);
    }
    sum += rest.iter().map(wide).sum::<u128>();
    let (low, carries) = (sum as u64, (sum >> 64) as u64);
    let mut sum = (low & 0xffff_ffff) + (low >> 32) + carries;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u64::from((sum as u16).swap_bytes())
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
        let mut sum = Checksum {
            sum: self.0,
            odd: false,
        };
        sum.add(&(!checksum).to_be_bytes());
        sum.finish()
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
        fn parts_sum_up_to_the_whole(bytes: std::vec::Vec<u8>, cut: u8) {
            let (first, second) = bytes.split_at(usize::from(cut).min(bytes.len()));
            let mut sum = Checksum::default();
            sum.add(first);
            sum.add(second);
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
