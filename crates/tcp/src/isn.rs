//! Initial sequence numbers and clocks that nobody outside can guess (RFC 6528, section 3).
//!
//! `ISN = M + F(addresses, ports, secret)`: M is a clock of 4 µs a step, F is SipHash-2-4 (Aumasson
//! and Bernstein, "SipHash: a fast short-input PRF", 2012).

use core::net::{IpAddr, SocketAddr};

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
    /// An initial sequence number.
    Number,
    /// An offset of a clock.
    Clock,
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

    fn word(&mut self, word: u64) {
        self.0[3] ^= word;
        self.rounds(2);
        self.0[0] ^= word;
    }
}

impl Secret {
    /// SipHash-2-4 of `bytes`.
    #[must_use]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        let mut sip = Sip::new(self.0);
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            let mut whole = [0; 8];
            whole.copy_from_slice(word);
            sip.word(u64::from_le_bytes(whole));
        }
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        last[7] = bytes.len() as u8;
        sip.word(u64::from_le_bytes(last));
        sip.0[2] ^= 0xff;
        sip.rounds(4);
        sip.0.iter().fold(0, |all, part| all ^ part)
    }

    /// SipHash of both ends, for a purpose, at a time of some kind.
    pub(crate) fn hash_ends(&self, ends: &Ends, purpose: Purpose, count: u64) -> u64 {
        let mut bytes = [0; 48];
        for (place, end) in [(0, ends.local), (18, ends.remote)] {
            match end.ip() {
                IpAddr::V4(ip) => bytes[place..place + 4].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes[place..place + 16].copy_from_slice(&ip.octets()),
            }
            bytes[place + 16..place + 18].copy_from_slice(&end.port().to_be_bytes());
        }
        bytes[36] = purpose as u8;
        bytes[40..].copy_from_slice(&count.to_le_bytes());
        self.hash(&bytes)
    }

    /// A place of a connection in a table of its owner's.
    #[must_use]
    pub fn place(&self, ends: &Ends) -> u64 {
        self.hash_ends(ends, Purpose::Place, 0)
    }

    /// Initial sequence number of a connection that begins now.
    #[must_use]
    pub fn initial(&self, now: Nanos, local: SocketAddr, remote: SocketAddr) -> Seq {
        let ends = Ends { local, remote };
        Seq((now / STEP) as u32).plus(self.hash_ends(&ends, Purpose::Number, 0) as u32)
    }

    /// An offset for the clock of a connection's timestamps (RFC 7323, section 5.4): the same
    /// for the same two ends, so that a later connection's are larger.
    #[must_use]
    pub fn clock_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        let ends = Ends { local, remote };
        self.hash_ends(&ends, Purpose::Clock, 0) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// The last vector of the paper's appendix A.
    #[test]
    fn the_hash_is_siphash() {
        let key = Secret([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let bytes: Vec<u8> = (0..15).collect();
        assert_eq!(key.hash(&bytes), 0xa129_ca61_49be_45e5);
    }

    /// RFC 6528, section 3: a clock, and another space for each pair of ends.
    #[test]
    fn numbers_grow_and_differ() {
        let secret = Secret([1, 2]);
        let ends = |port| {
            (
                SocketAddr::from(([10, 0, 0, 1], port)),
                SocketAddr::from(([10, 0, 0, 2], 80)),
            )
        };
        let at = |now, port| secret.initial(now, ends(port).0, ends(port).1).0;
        assert_eq!(at(STEP * 5, 1).wrapping_sub(at(0, 1)), 5);
        assert_ne!(at(0, 1), at(0, 2));
        assert_ne!(at(0, 1), Secret([1, 3]).initial(0, ends(1).0, ends(1).1).0);
        assert_ne!(
            at(0, 1),
            secret.clock_offset(ends(1).0, ends(1).1),
            "the two spaces tell nothing of each other"
        );
    }
}
