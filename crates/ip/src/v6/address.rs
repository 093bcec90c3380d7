//! Kinds of addresses of IPv6 (RFC 4291).

use core::net::Ipv6Addr;

use crate::HardwareAddress;

/// All hosts on a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All hosts on the own interface.
pub const ALL_NODES_OF_INTERFACE: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);
/// All routers on a link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// All who listen to reports of groups (RFC 3810, section 5.2.14).
pub const ALL_MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// How far an address is known, with its number in groups (RFC 4291, section 2.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Scope {
    /// This interface.
    Interface = 1,
    /// The link.
    Link = 2,
    /// A site, whatever somebody has called so.
    Site = 5,
    /// Everywhere.
    Global = 14,
}

/// The scope of an address, a group's included (RFC 6724, section 3.1).
#[must_use]
pub fn scope(address: Ipv6Addr) -> Scope {
    let [first, second, ..] = address.octets();
    match (first, second >> 4 & 0xc, second & 0xf) {
        (0xff, _, 0 | 1) => Scope::Interface,
        (0xff, _, 2) => Scope::Link,
        (0xff, _, 3..=5) => Scope::Site,
        (0xfe, 0x8, _) => Scope::Link,
        (0xfe, 0xc, _) => Scope::Site,
        _ if address.is_loopback() => Scope::Link,
        _ => Scope::Global,
    }
}

/// Whether an address, or a group, means something on one link only: who names it has to name the
/// link, too.
#[must_use]
pub fn needs_link(address: Ipv6Addr) -> bool {
    !address.is_loopback() && scope(address) <= Scope::Link
}

/// The group of hosts with addresses that end as one does (RFC 4291, section 2.7.1).
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}

/// The Ethernet address of a group (RFC 2464, section 7).
#[must_use]
pub fn group_hardware(group: Ipv6Addr) -> HardwareAddress {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The address in a network of 64 bits that is made of a hardware address (RFC 4291, appendix A):
/// Linux' default (`addr_gen_mode` 0).
#[must_use]
pub fn with_hardware(network: Ipv6Addr, hardware: HardwareAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = hardware;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    let network = u128::from(network) >> 64 << 64;
    (network | u128::from(id)).into()
}

/// The address of the link that is made of a hardware address.
#[must_use]
pub fn link_local(hardware: HardwareAddress) -> Ipv6Addr {
    with_hardware(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), hardware)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn scopes_are_those_of_the_rfc() {
        for (text, expected) in [
            ("fe80::1", Scope::Link),
            ("febf::1", Scope::Link),
            ("fec0::1", Scope::Site),
            ("feff::1", Scope::Site),
            ("fc00::1", Scope::Global),
            ("2001:db8::1", Scope::Global),
            ("::1", Scope::Link),
            ("ff01::1", Scope::Interface),
            ("ff02::1", Scope::Link),
            ("ff32::1", Scope::Link),
            ("ff05::2", Scope::Site),
            ("ff0e::1", Scope::Global),
            ("ff08::1", Scope::Global),
        ] {
            assert_eq!(scope(ip(text)), expected, "{text}");
        }
        assert!(needs_link(ip("fe80::1")) && needs_link(ip("ff02::1")));
        assert!(!needs_link(ip("::1")) && !needs_link(ip("fec0::1")));
    }

    #[test]
    fn groups_and_hardware_addresses_are_those_of_the_rfcs() {
        assert_eq!(
            solicited_node(ip("4037::1:800:200e:8c6c")),
            ip("ff02::1:ff0e:8c6c")
        );
        let group = group_hardware(ip("ff02::1:ff0e:8c6c"));
        assert_eq!(group, [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
        assert_eq!(
            link_local([0x52, 0x54, 0, 0x12, 0x34, 0x56]),
            ip("fe80::5054:ff:fe12:3456")
        );
    }
}
