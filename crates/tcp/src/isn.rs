//! Initial sequence numbers and clocks that nobody outside can guess (RFC 6528, section 3).
//!
//! `ISN = M + F(addresses, ports, secret)`: M is a clock of 4 µs a step, F is SipHash-2-4 (Aumasson
//! and Bernstein, "SipHash: a fast short-input PRF", 2012). Places in tables, which nobody outside
//! sees, are by SipHash-1-3: each segment has one made.

use core::net::IpAddr;

use crate::Nanos;
use crate::handshake::Ends;
use crate::seq::Seq;

/// Nanoseconds of a step of the clock (RFC 9293, section 3.4.1).
const STEP: Nanos = 4000;

/// A secret of 128 bits, of which the caller makes one at start-up.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

/// The use of a hash, so that what is seen of one tells nothing of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// An initial sequence number, and in the upper half an offset of a clock.
    Number,
    /// A place in a table.
    Place,
    /// The two hashes of a SYN cookie.
    CookieBase,
    CookieData,
}

/// The state of SipHash.
struct Sip([u64; 4]);

impl Sip {
    fn new(key: [u64; 2]) -> Self {
        Self([
            key[0] ^ 0x736f_6d65_7073_6575,
            key[1] ^ 0x646f_7261_6e64_6f6d,
            key[0] ^ 0x6c79_6765_6e65_7261,
            key[1] ^ 0x7465_6462_7974_6573,
        ])
    }

    fn rounds(&mut self, count: u32) {
        let [a, b, c, d] = &mut self.0;
        for _ in 0..count {
            *a = a.wrapping_add(*b);
            *c = c.wrapping_add(*d);
            *b = b.rotate_left(13) ^ *a;
            *d = d.rotate_left(16) ^ *c;
            *a = a.rotate_left(32);
            *c = c.wrapping_add(*b);
            *a = a.wrapping_add(*d);
            *b = b.rotate_left(17) ^ *c;
            *d = d.rotate_left(21) ^ *a;
            *c = c.rotate_left(32);
        }
    }

    /// Takes a word in by so many rounds.
    fn word(&mut self, word: u64, rounds: u32) {
        self.0[3] ^= word;
        self.rounds(rounds);
        self.0[0] ^= word;
    }

    fn finish(mut self, rounds: u32) -> u64 {
        self.0[2] ^= 0xff;
        self.rounds(rounds);
        self.0.iter().fold(0, |all, part| all ^ part)
    }
}

impl Secret {
    /// SipHash of both ends, for a purpose, at a time of some kind.
    #[inline]
    pub(crate) fn hash_ends(&self, ends: &Ends, purpose: Purpose, count: u64) -> u64 {
        // A place is made for each segment.
        let (each, last) = match purpose {
            Purpose::Place => (1, 3),
            _ => (2, 4),
        };
        let mut sip = Sip::new(self.0);
        let mut length = 0;
        let mut take = |sip: &mut Sip, word: u64| {
            sip.word(word, each);
            length += 8;
        };
        match (ends.local.ip(), ends.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let [local, remote] = [local, remote].map(|ip| u64::from(u32::from(ip)));
                take(&mut sip, local << 32 | remote);
            }
            (local, remote) => {
                for ip in [local, remote] {
                    let ip = match ip {
                        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                        IpAddr::V6(ip) => ip,
                    };
                    let ip = u128::from(ip);
                    take(&mut sip, (ip >> 64) as u64);
                    take(&mut sip, ip as u64);
                }
            }
        }
        if count != 0 {
            take(&mut sip, count);
        }
        // The last word holds five bytes of the message, and its length.
        let (local, remote) = ends.ports();
        let ports = u64::from(local) << 16 | u64::from(remote);
        let rest = ports | (purpose as u64) << 32;
        sip.word(rest | (length + 5) << 56, each);
        sip.finish(last)
    }

    /// A place of a connection in a table of its owner's.
    #[must_use]
    pub fn place(&self, ends: &Ends) -> u64 {
        self.hash_ends(ends, Purpose::Place, 0)
    }

    /// Initial sequence number of a connection that begins now, and the offset for the clock of its
    /// timestamps, as [`Self::clock_offset`].
    #[must_use]
    pub fn initial(&self, now: Nanos, ends: &Ends) -> (Seq, u32) {
        let hash = self.hash_ends(ends, Purpose::Number, 0);
        let iss = Seq((now / STEP) as u32).plus(hash as u32);
        (iss, (hash >> 32) as u32)
    }

    /// An offset for the clock of a connection's timestamps (RFC 7323, section 5.4): the same
    /// for the same two ends, so that a later connection's are larger.
    #[must_use]
    pub fn clock_offset(&self, ends: &Ends) -> u32 {
        (self.hash_ends(ends, Purpose::Number, 0) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use std::vec::Vec;

    use super::*;

    /// The hashes of [`Secret::hash_ends`] are SipHash of a message of all it is given.
    #[test]
    fn the_hashes_are_siphash() {
        use std::hash::Hasher;

        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        for (local, remote, words) in [
            (
                SocketAddr::from(([10, 0, 0, 1], 80)),
                SocketAddr::from(([10, 0, 0, 2], 40_000)),
                Vec::from([0x0a00_0001_0a00_0002_u64]),
            ),
            (
                SocketAddr::from(([0xfe80, 0, 0, 0, 0, 0, 0, 1], 80)),
                SocketAddr::from(([0xfe80, 0, 0, 0, 0, 0, 0, 2], 40_000)),
                Vec::from([0xfe80 << 48, 1, 0xfe80 << 48, 2]),
            ),
        ] {
            let ends = Ends { local, remote };
            for (purpose, count) in [(Purpose::Number, 0_u64), (Purpose::CookieBase, 7)] {
                let mut message: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                if count != 0 {
                    message.extend(count.to_le_bytes());
                }
                message.extend((80_u32 << 16 | 40_000).to_le_bytes());
                message.push(purpose as u8);
                #[expect(deprecated, reason = "it is the one with a key")]
                let mut expected = std::hash::SipHasher::new_with_keys(key[0], key[1]);
                expected.write(&message);
                let hash = Secret(key).hash_ends(&ends, purpose, count);
                assert_eq!(hash, expected.finish());
            }
            // The one of 1 and 3 rounds has no key there.
            let mut message: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            message.extend((80_u32 << 16 | 40_000).to_le_bytes());
            message.push(Purpose::Place as u8);
            let mut expected = std::hash::DefaultHasher::new();
            expected.write(&message);
            assert_eq!(Secret([0, 0]).place(&ends), expected.finish());
        }
    }

    /// RFC 6528, section 3: a clock, and another space for each pair of ends.
    #[test]
    fn numbers_grow_and_differ() {
        let secret = Secret([1, 2]);
        let ends = |port| Ends {
            local: SocketAddr::from(([10, 0, 0, 1], port)),
            remote: SocketAddr::from(([10, 0, 0, 2], 80)),
        };
        let at = |now, port| secret.initial(now, &ends(port)).0.0;
        assert_eq!(at(STEP * 5, 1).wrapping_sub(at(0, 1)), 5);
        assert_ne!(at(0, 1), at(0, 2));
        assert_ne!(at(0, 1), Secret([1, 3]).initial(0, &ends(1)).0.0);
        assert_ne!(
            at(0, 1),
            secret.clock_offset(&ends(1)),
            "the two spaces tell nothing of each other"
        );
        let offsets = [0, 9].map(|now| secret.initial(now, &ends(1)).1);
        assert_eq!(offsets, [secret.clock_offset(&ends(1)); 2]);
    }
}
