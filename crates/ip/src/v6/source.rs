//! The address that packets to a destination come from (RFC 6724, section 5), with Linux' labels.

use core::net::Ipv6Addr;

use super::address::scope;

/// An address that packets may come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The address.
    pub address: Ipv6Addr,
    /// Bits of its network.
    pub prefix_len: u8,
    /// Nothing new is to come from it.
    pub is_deprecated: bool,
    /// The address is one of the interface that packets go out by.
    pub is_outgoing: bool,
}

/// Labels of networks (Linux `ip6addrlbl_init_table`).
const LABELS: [(u128, u8, u8); 10] = [
    (1, 128, 0),
    (0xfc00 << 112, 7, 5),
    (0xfec0 << 112, 10, 11),
    (0x2002 << 112, 16, 2),
    (0x3ffe << 112, 16, 12),
    (0x2001 << 112, 32, 6),
    (0x2001_0010 << 96, 28, 7),
    (0xffff << 32, 96, 4),
    (0, 96, 3),
    (0, 0, 1),
];

/// The label of an address: that of the longest prefix.
fn label(address: Ipv6Addr) -> u8 {
    let address = u128::from(address);
    let fits = |(network, length, _): &&(u128, u8, u8)| {
        *length == 0 || (address ^ network) >> (128 - u32::from(*length)) == 0
    };
    let best = LABELS.iter().filter(fits).max_by_key(|entry| entry.1);
    best.map_or(0, |entry| entry.2)
}

/// Bits that two addresses begin with alike, at most those of the first one's network.
fn common_prefix(candidate: &Candidate, destination: Ipv6Addr) -> u32 {
    let differs = u128::from(candidate.address) ^ u128::from(destination);
    differs.leading_zeros().min(candidate.prefix_len.into())
}

/// The best of the candidates for a destination; of several that are equally good the first.
pub fn select_source(
    candidates: impl Iterator<Item = Candidate>,
    destination: Ipv6Addr,
) -> Option<Ipv6Addr> {
    let wanted = scope(destination);
    let wanted_label = label(destination);
    let rank = |one: &Candidate| {
        let own = scope(one.address);
        (
            one.address == destination,
            // Rule 2: one that reaches far enough, of those the one that reaches least; else the
            // one that reaches furthest.
            own >= wanted,
            if own >= wanted {
                -(own as i16)
            } else {
                own as i16
            },
            !one.is_deprecated,
            one.is_outgoing,
            label(one.address) == wanted_label,
            common_prefix(one, destination),
        )
    };
    let mut best: Option<Candidate> = None;
    for one in candidates {
        if best.is_none_or(|known| rank(&one) > rank(&known)) {
            best = Some(one);
        }
    }
    best.map(|one| one.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn candidate(text: &str) -> Candidate {
        Candidate {
            address: ip(text),
            prefix_len: 64,
            is_deprecated: false,
            is_outgoing: true,
        }
    }

    fn best(to: &str, from: &[Candidate]) -> Ipv6Addr {
        let there = select_source(from.iter().copied(), ip(to)).unwrap();
        let back = select_source(from.iter().rev().copied(), ip(to)).unwrap();
        assert_eq!(there, back, "the order is of no matter");
        there
    }

    /// The examples of RFC 6724, section 10.1, and more.
    #[test]
    fn the_rules_come_in_their_order() {
        let global = candidate("2001:db8:3::1");
        let local = candidate("fe80::1");
        assert_eq!(best("2001:db8:1::1", &[global, local]), global.address);
        assert_eq!(best("fe80::9", &[global, local]), local.address);
        assert_eq!(best("ff02::1", &[global, local]), local.address);
        assert_eq!(best("ff05::1", &[global, local]), global.address);
        let near = candidate("2001:db8:1::2");
        assert_eq!(best("2001:db8:1::1", &[global, near]), near.address);
        let old = Candidate {
            is_deprecated: true,
            ..near
        };
        assert_eq!(best("2001:db8:1::1", &[global, old]), global.address);
        assert_eq!(best("2001:db8:1::2", &[global, old]), old.address, "itself");
        let elsewhere = Candidate {
            is_outgoing: false,
            ..near
        };
        assert_eq!(best("2001:db8:1::1", &[global, elsewhere]), global.address);
        let six_to_four = candidate("2002:c633:6401::d5e3:7953:13eb:22e8");
        assert_eq!(
            best("2002:836b:2179::1", &[near, six_to_four]),
            six_to_four.address
        );
        let unique = candidate("fd00::1");
        assert_eq!(best("fd11::1", &[near, unique]), unique.address);
        assert_eq!(best("2001:db8::1", &[near, unique]), near.address);
    }

    #[test]
    fn labels_are_those_of_linux() {
        for (text, expected) in [
            ("::1", 0),
            ("2001:db8::1", 1),
            ("2002::1", 2),
            ("::2", 3),
            ("::ffff:1.2.3.4", 4),
            ("fd00::1", 5),
            ("2001::1", 6),
            ("2001:10::1", 7),
            ("fec0::1", 11),
            ("3ffe::1", 12),
        ] {
            assert_eq!(label(ip(text)), expected, "{text}");
        }
    }
}
