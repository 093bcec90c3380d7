//! What ICMP has told of the MTUs of paths (RFC 1191, RFC 8201).

use alloc::vec::Vec;

use crate::{Address, Nanos, SECOND};

/// The time after which a path is tried anew (Linux `mtu_expires`).
const EXPIRES: Nanos = 600 * SECOND;
/// Destinations that are remembered.
const MOST: usize = 256;

/// Paths whose MTU is less than that of their first link.
pub struct PathMtus<A>(Vec<(A, u16, Nanos)>, u64);

impl<A> Default for PathMtus<A> {
    fn default() -> Self {
        Self(Vec::new(), 0)
    }
}

impl<A: Address> PathMtus<A> {
    /// A number that grows with what is learnt.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.1
    }

    /// The MTU of the path to an address, if it is known to be less than `link`.
    #[must_use]
    pub fn of(&self, now: Nanos, to: A, link: usize) -> usize {
        let known = self
            .0
            .iter()
            .find(|(address, _, expires)| *address == to && *expires > now);
        known.map_or(link, |(_, mtu, _)| usize::from(*mtu).min(link))
    }

    /// ICMP says that packets to an address may have `mtu` bytes at most. The one told of longest
    /// ago is forgotten for it.
    pub fn learn(&mut self, now: Nanos, to: A, mtu: u16) {
        let entry = (to, mtu.max(A::LEAST_PATH), now + EXPIRES);
        self.1 += 1;
        self.0
            .retain(|(address, _, expires)| *address != to && *expires > now);
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        // Without memory it is told of again with the next packet that is too long.
        if self.0.try_reserve(1).is_ok() {
            self.0.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn paths_are_learnt_forgotten_and_bounded() {
        let mut paths = PathMtus::default();
        let to = Ipv4Addr::new(10, 0, 0, 1);
        paths.learn(0, to, 1400);
        assert_eq!((paths.of(1, to, 1500), paths.of(1, to, 1000)), (1400, 1000));
        assert_eq!(paths.of(EXPIRES, to, 1500), 1500);
        paths.learn(1, to, 0);
        assert_eq!(paths.of(2, to, 1500), usize::from(Ipv4Addr::LEAST_PATH));
        for n in 0..1000u32 {
            paths.learn(2, Ipv4Addr::from(n), 1400);
        }
        assert_eq!((paths.0.len(), paths.of(3, to, 1500)), (MOST, 1500));
    }
}
