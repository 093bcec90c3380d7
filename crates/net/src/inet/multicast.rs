//! Groups: which a socket is in, on which interface, from whom (`ip(7)`, `ipv6(7)`, RFC 3678), and
//! through which interface it sends to them.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::errno::Errno;
use fs::Result;
use ip::groups::{Filter, Mode};
use linux_raw_sys::net;

use super::inet_socket::InetSocket;
use super::option_table::{IP, IPV6};
use super::stack::InetStack;
use crate::Address;
use crate::socket::Interface;

/// Bytes that Linux takes for a membership of IPv4 (`struct ip_mc_socklist`) and of IPv6 (`struct
/// ipv6_mc_socklist`), which it charges to the socket (`optmem_max`).
const MEMBERSHIP_V4_BYTES: usize = 48;
const MEMBERSHIP_V6_BYTES: usize = 56;

/// Change of a membership's list of sources.
#[derive(Clone, Copy)]
enum SourceChange {
    Add,
    Remove,
}

/// A group a socket has joined.
pub(super) struct Membership {
    group: IpAddr,
    interface: u32,
    filter_mode: Mode,
    sources: Vec<IpAddr>,
}

impl Membership {
    fn filter(&self) -> Filter<'_> {
        Filter {
            mode: self.filter_mode,
            sources: &self.sources,
        }
    }

    /// # Errors
    /// `ENOMEM`.
    fn try_clone(&self) -> Result<Self> {
        let mut sources = fallible::with_capacity(self.sources.len())?;
        sources.extend_from_slice(&self.sources);
        Ok(Self { sources, ..*self })
    }

    /// Whether the membership lets in what `from` sends to a group.
    pub(super) fn allows_source(&self, group: IpAddr, from: IpAddr) -> bool {
        let is_listed = self.sources.contains(&from);
        self.group == group && is_listed == (self.filter_mode == Mode::Include)
    }
}

/// The arguments of a request about a membership.
struct MembershipRequest {
    group: IpAddr,
    interface: u32,
    source: Option<IpAddr>,
}

/// Whether an option is about multicast groups.
pub(super) const fn is_multicast_option(level: u32, option: u32) -> bool {
    let any = matches!(
        option,
        net::MCAST_JOIN_GROUP..=net::MCAST_LEAVE_SOURCE_GROUP
    );
    match level {
        IP => {
            any || matches!(
                option,
                net::IP_MULTICAST_IF
                    | net::IP_ADD_MEMBERSHIP
                    | net::IP_DROP_MEMBERSHIP
                    | net::IP_UNBLOCK_SOURCE..=net::IP_DROP_SOURCE_MEMBERSHIP
            )
        }
        _ => any || matches!(option, net::IPV6_ADD_MEMBERSHIP | net::IPV6_DROP_MEMBERSHIP),
    }
}

/// Sets such an option.
///
/// # Errors
/// `EINVAL`, `ENODEV`, `EADDRINUSE`, `EADDRNOTAVAIL`, `ENOBUFS`.
pub(super) fn set_multicast_option(
    common: &InetSocket,
    level: u32,
    option: u32,
    value: &[u8],
) -> Result<()> {
    if (level, option) == (IP, net::IP_MULTICAST_IF) {
        return set_multicast_interface(common, value);
    }
    let stack = common.stack();
    let asked = match (level, option) {
        (IP, net::IP_ADD_MEMBERSHIP | net::IP_DROP_MEMBERSHIP) => {
            let index = if value.len() < 12 { 0 } else { word(value, 8)? };
            ipv4_membership_request(stack, v4(value, 0)?, v4(value, 4)?, index, None)?
        }
        (IP, net::IP_UNBLOCK_SOURCE..=net::IP_DROP_SOURCE_MEMBERSHIP) => ipv4_membership_request(
            stack,
            v4(value, 0)?,
            v4(value, 4)?,
            0,
            Some(v4(value, 8)?.into()),
        )?,
        (IPV6, net::IPV6_ADD_MEMBERSHIP | net::IPV6_DROP_MEMBERSHIP) => {
            let group = Ipv6Addr::from(*value.first_chunk::<16>().ok_or(Errno::EINVAL)?);
            membership_request(
                stack,
                group.into(),
                Ipv4Addr::UNSPECIFIED,
                word(value, 16)?,
                None,
            )?
        }
        _ => group_request(stack, level, option, value)?,
    };
    let sysctls = &stack.core.sysctls;
    let most_sources = sysctls.igmp_max_msf.as_usize();
    let beside = sysctls.optmem_max.as_usize().saturating_sub(1);
    let limits = match level {
        IP => {
            let most = sysctls.igmp_max_memberships.as_usize();
            (most.min(beside / MEMBERSHIP_V4_BYTES), Errno::ENOBUFS)
        }
        _ => (beside / MEMBERSHIP_V6_BYTES, Errno::ENOMEM),
    };
    common.options.update_memberships(|groups| {
        let before = match find_membership(groups, &asked) {
            Some(at) => Some(groups[at].try_clone()?),
            None => None,
        };
        let result = change_membership(groups, &asked, level, option, limits, most_sources)
            .and_then(|()| {
                let after = find_membership(groups, &asked).map(|at| &groups[at]);
                let filters = [before.as_ref(), after].map(|one| one.map(Membership::filter));
                tell_network(stack, &asked, filters)
            });
        if result.is_err() {
            restore(groups, &asked, before);
        }
        result
    })?;
    if let Some(host) = stack.host() {
        host.tell_of_groups(asked.interface);
    }
    Ok(())
}

/// Puts a membership back as it was.
fn restore(groups: &mut Vec<Membership>, asked: &MembershipRequest, before: Option<Membership>) {
    match (find_membership(groups, asked), before) {
        (Some(at), Some(before)) => groups[at] = before,
        (Some(at), None) => drop(groups.swap_remove(at)),
        // There is room where it was.
        (None, Some(before)) => groups.extend([before]),
        (None, None) => {}
    }
}

/// Has the network know what a socket wants of a group, before and from now on.
fn tell_network(
    stack: &InetStack,
    asked: &MembershipRequest,
    [before, after]: [Option<Filter<'_>>; 2],
) -> Result<()> {
    let host = stack.host();
    host.map_or(Ok(()), |host| {
        host.change_membership(asked.interface, asked.group, before, after)
    })
}

/// A socket that was in groups is gone.
pub(super) fn leave_all(stack: &InetStack, groups: &[Membership]) {
    let Some(host) = stack.host() else {
        return;
    };
    for one in groups {
        // To leave takes no memory.
        let _ = host.change_membership(one.interface, one.group, Some(one.filter()), None);
        host.tell_of_groups(one.interface);
    }
}

fn change_membership(
    groups: &mut Vec<Membership>,
    asked: &MembershipRequest,
    level: u32,
    option: u32,
    limits: (usize, Errno),
    most_sources: usize,
) -> Result<()> {
    match (level, option) {
        (IP, net::IP_ADD_MEMBERSHIP)
        | (IPV6, net::IPV6_ADD_MEMBERSHIP)
        | (_, net::MCAST_JOIN_GROUP) => join_group(groups, asked, Mode::Exclude, limits),
        (IP, net::IP_DROP_MEMBERSHIP)
        | (IPV6, net::IPV6_DROP_MEMBERSHIP)
        | (_, net::MCAST_LEAVE_GROUP) => {
            groups.remove(find_membership(groups, asked).ok_or(Errno::EADDRNOTAVAIL)?);
            Ok(())
        }
        (_, net::IP_ADD_SOURCE_MEMBERSHIP | net::MCAST_JOIN_SOURCE_GROUP) => {
            if find_membership(groups, asked).is_none() {
                join_group(groups, asked, Mode::Include, limits)?;
            }
            change_source(
                groups,
                asked,
                Mode::Include,
                SourceChange::Add,
                most_sources,
            )
        }
        (_, net::IP_DROP_SOURCE_MEMBERSHIP | net::MCAST_LEAVE_SOURCE_GROUP) => change_source(
            groups,
            asked,
            Mode::Include,
            SourceChange::Remove,
            most_sources,
        ),
        (_, net::IP_BLOCK_SOURCE | net::MCAST_BLOCK_SOURCE) => change_source(
            groups,
            asked,
            Mode::Exclude,
            SourceChange::Add,
            most_sources,
        ),
        _ => change_source(
            groups,
            asked,
            Mode::Exclude,
            SourceChange::Remove,
            most_sources,
        ),
    }
}

fn find_membership(groups: &[Membership], asked: &MembershipRequest) -> Option<usize> {
    groups
        .iter()
        .position(|one| (one.group, one.interface) == (asked.group, asked.interface))
}

fn join_group(
    groups: &mut Vec<Membership>,
    asked: &MembershipRequest,
    filter_mode: Mode,
    (most, beyond): (usize, Errno),
) -> Result<()> {
    if find_membership(groups, asked).is_some() {
        return Err(Errno::EADDRINUSE);
    }
    // Those of the other family are no more than it may have.
    let of_family = |group: &&Membership| group.group.is_ipv4() == asked.group.is_ipv4();
    if groups.iter().filter(of_family).count() >= most {
        return Err(beyond);
    }
    let membership = Membership {
        group: asked.group,
        interface: asked.interface,
        filter_mode,
        sources: Vec::new(),
    };
    fallible::push(groups, membership)
}

/// Adds a source to a membership's filter, or removes it. A membership that names
/// sources of one sort has none of the other; one whose last wanted source goes ends.
fn change_source(
    groups: &mut Vec<Membership>,
    asked: &MembershipRequest,
    filter_mode: Mode,
    change: SourceChange,
    most_sources: usize,
) -> Result<()> {
    let at = find_membership(groups, asked).ok_or(Errno::EINVAL)?;
    let membership = &mut groups[at];
    if membership.filter_mode != filter_mode {
        if !membership.sources.is_empty() {
            return Err(Errno::EINVAL);
        }
        membership.filter_mode = filter_mode;
    }
    let source = asked.source.ok_or(Errno::EINVAL)?;
    match (
        membership.sources.iter().position(|known| *known == source),
        change,
    ) {
        (Some(_), SourceChange::Add) | (None, SourceChange::Remove) => {
            return Err(Errno::EADDRNOTAVAIL);
        }
        (None, SourceChange::Add) if membership.sources.len() >= most_sources => {
            return Err(Errno::ENOBUFS);
        }
        (None, SourceChange::Add) => fallible::push(&mut membership.sources, source)?,
        (Some(known), SourceChange::Remove) => drop(membership.sources.swap_remove(known)),
    }
    if filter_mode == Mode::Include && membership.sources.is_empty() {
        groups.swap_remove(at);
    }
    Ok(())
}

fn membership_request(
    stack: &InetStack,
    group: IpAddr,
    address: Ipv4Addr,
    index: i32,
    source: Option<IpAddr>,
) -> Result<MembershipRequest> {
    if !group.is_multicast() {
        return Err(Errno::EINVAL);
    }
    Ok(MembershipRequest {
        group,
        interface: find_interface(stack, address, index, group)?.index,
        source,
    })
}

fn ipv4_membership_request(
    stack: &InetStack,
    group: Ipv4Addr,
    address: Ipv4Addr,
    index: i32,
    source: Option<IpAddr>,
) -> Result<MembershipRequest> {
    membership_request(stack, group.into(), address, index, source)
}

/// `struct group_req` or `struct group_source_req`: the interface's number, and addresses of either
/// family.
fn group_request(
    stack: &InetStack,
    level: u32,
    option: u32,
    value: &[u8],
) -> Result<MembershipRequest> {
    const GROUP: usize = 8;
    const SOURCE: usize = 136;
    let address = |at: usize| match Address::decode(value.get(at..).ok_or(Errno::EINVAL)?)? {
        Address::Inet(address) if address.is_ipv4() == (level == IP) => Ok(address.ip()),
        _ => Err(Errno::EINVAL),
    };
    let source = if matches!(option, net::MCAST_JOIN_GROUP | net::MCAST_LEAVE_GROUP) {
        None
    } else {
        Some(address(SOURCE)?)
    };
    membership_request(
        stack,
        address(GROUP)?,
        Ipv4Addr::UNSPECIFIED,
        word(value, 0)?,
        source,
    )
}

/// The interface with an address, or a number; 0 or no address is the one that routes to `group`.
fn find_interface(
    stack: &InetStack,
    address: Ipv4Addr,
    index: i32,
    group: IpAddr,
) -> Result<Interface> {
    let is_it = |interface: &Interface| match index {
        0 => interface.addresses.iter().any(|known| match known.ip {
            IpAddr::V4(ip) => {
                (u32::from(ip) ^ u32::from(address)).leading_zeros() >= u32::from(known.prefix_len)
            }
            IpAddr::V6(_) => false,
        }),
        index => interface.index.cast_signed() == index,
    };
    if index == 0 && address.is_unspecified() {
        let route = stack.route(group).map_err(|_| Errno::ENODEV)?;
        let routed = |interface: &Interface| interface.index == route.interface_index;
        return stack.core.find_interface(routed).ok_or(Errno::ENODEV);
    }
    stack.core.find_interface(is_it).ok_or(Errno::ENODEV)
}

/// The interface's address and number in `struct ip_mreq`, `ip_mreqn` or alone.
fn set_multicast_interface(common: &InetSocket, value: &[u8]) -> Result<()> {
    let (address, index) = match value.len() {
        0..4 => return Err(Errno::EINVAL),
        4..8 => (v4(value, 0)?, 0),
        8..12 => (v4(value, 4)?, 0),
        _ => (v4(value, 4)?, word(value, 8)?),
    };
    let chosen = if address.is_unspecified() && index == 0 {
        None
    } else {
        let interface = find_interface(common.stack(), address, index, address.into())
            .map_err(|_| Errno::EADDRNOTAVAIL)?;
        interface.first_ipv4().map(|(ip, _)| ip)
    };
    common.options.set_multicast_source(chosen);
    Ok(())
}

fn v4(value: &[u8], at: usize) -> Result<Ipv4Addr> {
    value
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|octets| Ipv4Addr::from(*octets))
        .ok_or(Errno::EINVAL)
}

fn word(value: &[u8], at: usize) -> Result<i32> {
    let bytes = value.get(at..).and_then(|rest| rest.first_chunk());
    bytes
        .map(|bytes| i32::from_ne_bytes(*bytes))
        .ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::Mode::{Exclude, Include};
    use super::SourceChange::{Add, Remove};
    use super::*;

    #[test]
    fn sources_are_of_one_sort() {
        const MOST: usize = 10;
        let [a, b]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let group: IpAddr = "239.1.2.3".parse().unwrap();
        let from = |source| MembershipRequest {
            group,
            interface: 1,
            source: Some(source),
        };
        let mut groups = Vec::new();
        assert_eq!(
            change_source(&mut groups, &from(a), Exclude, Add, MOST),
            Err(Errno::EINVAL)
        );
        join_group(&mut groups, &from(a), Exclude, (MOST, Errno::ENOBUFS)).unwrap();
        assert_eq!(
            join_group(&mut groups, &from(a), Exclude, (MOST, Errno::ENOBUFS)),
            Err(Errno::EADDRINUSE)
        );
        assert!(groups[0].allows_source(group, a));
        change_source(&mut groups, &from(a), Exclude, Add, MOST).unwrap();
        assert!(!groups[0].allows_source(group, a) && groups[0].allows_source(group, b));
        assert_eq!(
            change_source(&mut groups, &from(b), Include, Add, MOST),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            change_source(&mut groups, &from(b), Exclude, Remove, MOST),
            Err(Errno::EADDRNOTAVAIL)
        );
        change_source(&mut groups, &from(a), Exclude, Remove, MOST).unwrap();
        // With no source named it may become the other sort.
        change_source(&mut groups, &from(b), Include, Add, MOST).unwrap();
        assert!(!groups[0].allows_source(group, a) && groups[0].allows_source(group, b));
        change_source(&mut groups, &from(b), Include, Remove, MOST).unwrap();
        assert!(groups.is_empty());
    }
}
