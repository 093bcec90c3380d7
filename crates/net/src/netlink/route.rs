//! `NETLINK_ROUTE`: interfaces, addresses, routes and rules (`rtnetlink(7)`).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::errno::Errno;
use fs::Result;
use ip::neighbour::Neighbour;
use ip::{Address, Nanos, SECOND};
use linux_raw_sys::net;

use super::change;
use super::message::{NLM_F_DUMP, NLM_F_MULTI, NlmsgHeader, Reply};
use crate::inet::{Host, InetStack};
use crate::socket::{
    Interface, InterfaceAddress, address_flag, caller_administers_networks, caller_ucred,
};

/// Messages about links, addresses, routes and rules come in fours: new, delete, get, set.
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
pub(super) const RTM_SETLINK: u16 = 19;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
const RTM_BASE: u16 = RTM_NEWLINK;
const KINDS: u16 = 4;
const GET: u16 = 2;

/// Attributes of addresses.
pub(super) const IFA_ADDRESS: u16 = 1;
pub(super) const IFA_LOCAL: u16 = 2;
pub(super) const IFA_LABEL: u16 = 3;
pub(super) const IFA_BROADCAST: u16 = 4;
pub(super) const IFA_CACHEINFO: u16 = 6;
pub(super) const IFA_FLAGS: u16 = 8;
/// Attributes of routes.
pub(super) const RTA_DST: u16 = 1;
pub(super) const RTA_OIF: u16 = 4;
pub(super) const RTA_GATEWAY: u16 = 5;
pub(super) const RTA_PRIORITY: u16 = 6;
pub(super) const RTA_PREFSRC: u16 = 7;
const RTA_CACHEINFO: u16 = 12;
pub(super) const RTA_TABLE: u16 = 15;
const RTA_UID: u16 = 25;
/// Attributes of neighbours.
pub(super) const NDA_DST: u16 = 1;
pub(super) const NDA_LLADDR: u16 = 2;
/// The table of routes that administrators make.
pub(super) const RT_TABLE_MAIN: u32 = 254;

const RT_SCOPE_HOST: u8 = 254;
/// The table of routes to this host, and who made them.
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_KERNEL: u8 = 2;
/// The kind of route that leads to this host.
const RTN_LOCAL: u8 = 2;
/// Rules: which table is asked, and when.
const RULES: [(u8, u32); 3] = [(RT_TABLE_LOCAL, 0), (254, 32_766), (253, 32_767)];

impl Reply {
    pub(super) fn push_address(
        &mut self,
        kind: u16,
        flags: u16,
        interface: &Interface,
        known: &InterfaceAddress,
        now: Nanos,
    ) {
        let ip = known.ip;
        let (family, octets) = family_and_octets(ip);
        let (_, network) = family_and_octets(known.network_ip());
        let fixed = [
            &[
                family,
                known.prefix_len,
                known.life.flags as u8,
                known.scope,
            ][..],
            &interface.index.to_ne_bytes(),
        ]
        .concat();
        let label = known.label.as_ref().unwrap_or(&interface.name);
        let name = [label.as_bytes(), &[0]].concat();
        let mark = known.life.flags.to_ne_bytes();
        let left = |end: Option<Nanos>| {
            let seconds = end.map(|end| end.saturating_sub(now) / SECOND);
            seconds.map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX - 1))
        };
        let is_deprecated = known.life.flags & address_flag::DEPRECATED != 0;
        let preferred = match left(known.life.preferred_until) {
            _ if is_deprecated => 0,
            left => left,
        };
        // For how long it is preferred and valid; when it was made and changed.
        let life = [preferred, left(known.life.valid_until), 0, 0];
        let life = life.map(u32::to_ne_bytes).concat();
        // Only IPv4 addresses have labels.
        let broadcast = known.broadcast.map(|ip| ip.octets());
        let mut attributes: [(u16, &[u8]); 6] = [(IFA_ADDRESS, &network[..]); 6];
        let mut count = 1;
        let mut add = |kind, value| {
            attributes[count] = (kind, value);
            count += 1;
        };
        if ip.is_ipv4() {
            add(IFA_LOCAL, &octets);
            if let Some(broadcast) = &broadcast {
                add(IFA_BROADCAST, broadcast);
            }
            add(IFA_LABEL, &name);
        }
        add(IFA_FLAGS, &mark);
        add(IFA_CACHEINFO, &life);
        self.push_message(kind, flags, &fixed, &attributes[..count]);
    }

    /// Adds the route that says that an address' network is this host's.
    fn push_local_route(&mut self, flags: u16, interface: &Interface, ip: IpAddr, prefix: u8) {
        let (family, octets) = family_and_octets(ip);
        let fixed = [
            family,
            prefix,
            0,
            0,
            RT_TABLE_LOCAL,
            RTPROT_KERNEL,
            RT_SCOPE_HOST,
            RTN_LOCAL,
            0,
            0,
            0,
            0,
        ];
        let table = u32::from(RT_TABLE_LOCAL).to_ne_bytes();
        let index = interface.index.to_ne_bytes();
        self.push_message(
            RTM_NEWROUTE,
            flags,
            &fixed,
            &[(15, &table), (1, &octets), (7, &octets), (4, &index)],
        );
    }

    /// Adds a route of the table that administrators make; `left` is the time that is left of it.
    pub(super) fn push_route<A: Address + Into<IpAddr>>(
        &mut self,
        kind: u16,
        flags: u16,
        route: &ip::route::Route<A>,
        left: Option<Nanos>,
    ) {
        let (family, to) = family_and_octets(route.destination.address.into());
        let fixed = [
            family,
            route.destination.length,
            0,
            0,
            RT_TABLE_MAIN as u8,
            route.protocol,
            route.scope,
            route.kind as u8,
            0,
            0,
            0,
            0,
        ];
        let table = RT_TABLE_MAIN.to_ne_bytes();
        let metric = route.metric.to_ne_bytes();
        let index = route.interface.to_ne_bytes();
        let octets = |address: A| family_and_octets(address.into()).1;
        let (source, gateway) = (route.source.map(octets), route.gateway.map(octets));
        // `struct rta_cacheinfo`, of which the third number is the time that is left.
        let left = left.map(|left| (left / (SECOND / USER_HZ)).try_into().unwrap_or(u32::MAX));
        let cache = left.map(|left| [0, 0, left, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat());
        let mut attributes: [(u16, &[u8]); 7] = [(RTA_TABLE, &table[..]); 7];
        let mut count = 1;
        let mut add = |kind, value| {
            attributes[count] = (kind, value);
            count += 1;
        };
        if route.destination.length > 0 {
            add(RTA_DST, &to);
        }
        if route.metric > 0 {
            add(RTA_PRIORITY, &metric);
        }
        if let Some(source) = &source {
            add(RTA_PREFSRC, source);
        }
        if let Some(gateway) = &gateway {
            add(RTA_GATEWAY, gateway);
        }
        if route.interface > 0 {
            add(RTA_OIF, &index);
        }
        if let Some(cache) = &cache {
            add(RTA_CACHEINFO, cache);
        }
        self.push_message(kind, flags, &fixed, &attributes[..count]);
    }

    /// Adds a neighbour.
    pub(super) fn push_neighbour(&mut self, kind: u16, flags: u16, neighbour: &Neighbour) {
        const UNICAST: u8 = 1;
        const ROUTER: u8 = 0x80;
        let router = if neighbour.is_router { ROUTER } else { 0 };
        let (family, octets) = family_and_octets(neighbour.key.address);
        let fixed = [
            &[family, 0, 0, 0][..],
            &neighbour.key.interface.to_ne_bytes(),
            &(neighbour.state as u16).to_ne_bytes(),
            &[router, UNICAST],
        ]
        .concat();
        match &neighbour.hardware {
            Some(hardware) => {
                let attributes = [(NDA_DST, &octets[..]), (NDA_LLADDR, hardware)];
                self.push_message(kind, flags, &fixed, &attributes);
            }
            None => self.push_message(kind, flags, &fixed, &[(NDA_DST, &octets)]),
        }
    }

    /// Adds the route to one address.
    ///
    /// # Errors
    /// `ENETUNREACH`.
    fn push_route_to(&mut self, stack: &InetStack, to: &IpAddr, via: u32) -> Result<()> {
        // `RTM_F_CLONED`, of IPv4: of IPv6 Linux tells of the route itself.
        const FOUND: u32 = 0x200;
        let flags = if to.is_ipv4() { FOUND } else { 0 };
        let route = stack.route_via(*to, via)?;
        let is_far = !route.local && !route.broadcast && !to.is_multicast();
        let gateway = stack.host().filter(|_| is_far).and_then(|host| match to {
            IpAddr::V4(to) => host.lookup_route(*to)?.gateway.map(IpAddr::V4),
            IpAddr::V6(to) => host.lookup_ipv6_route(*to, via)?.gateway.map(IpAddr::V6),
        });
        let gateway = gateway.map(|gateway| family_and_octets(gateway).1);
        let table = if route.local {
            u32::from(RT_TABLE_LOCAL)
        } else {
            RT_TABLE_MAIN
        };
        let ((family, octets), (_, source)) =
            (family_and_octets(*to), family_and_octets(route.source));
        let fixed = [
            &[
                family,
                (octets.len() * 8) as u8,
                0,
                0,
                table as u8,
                0,
                0,
                if route.local { RTN_LOCAL } else { 1 },
            ][..],
            &flags.to_ne_bytes(),
        ]
        .concat();
        let (table, index) = (table.to_ne_bytes(), route.interface_index.to_ne_bytes());
        let uid = caller_ucred().uid.to_ne_bytes();
        let mut attributes: [(u16, &[u8]); 6] = [
            (RTA_TABLE, &table),
            (RTA_DST, &octets),
            (RTA_OIF, &index),
            (RTA_PREFSRC, &source),
            (RTA_UID, &uid),
            (RTA_GATEWAY, &[]),
        ];
        let count = match &gateway {
            Some(gateway) => {
                attributes[5].1 = gateway;
                6
            }
            None => 5,
        };
        self.push_message(RTM_NEWROUTE, 0, &fixed, &attributes[..count]);
        Ok(())
    }

    /// Adds the rule that a table of routes is asked, at some place in the order.
    fn push_rule(&mut self, family: u8, (table, place): (u8, u32)) {
        const ASK_TABLE: u8 = 1;
        let fixed = [family, 0, 0, 0, table, 0, 0, ASK_TABLE, 0, 0, 0, 0];
        let (table, place) = (u32::from(table).to_ne_bytes(), place.to_ne_bytes());
        self.push_message(
            RTM_NEWRULE,
            NLM_F_MULTI,
            &fixed,
            &[
                (15, &table),
                (14, &[0xff; 4]),
                (6, &place),
                (21, &[RTPROT_KERNEL]),
            ],
        );
    }
}

/// The address a request for a route is about, and the interface, 0 if it is any.
fn destination(body: &[u8]) -> Result<(IpAddr, u32)> {
    const FIXED: usize = 12;
    let found = |wanted: u16| {
        let mut all = attributes(body.get(FIXED..).unwrap_or_default());
        all.find(|(kind, _)| *kind == wanted)
            .map(|(_, value)| value)
    };
    let octets = found(RTA_DST).ok_or(Errno::EINVAL)?;
    let via = found(RTA_OIF).and_then(|value| value.first_chunk());
    let via = via.map_or(0, |value| u32::from_ne_bytes(*value));
    let v4 = octets
        .first_chunk::<4>()
        .map(|octets| IpAddr::from(*octets));
    match u32::from(body[0]) {
        net::AF_INET6 => octets
            .first_chunk::<16>()
            .map(|octets| IpAddr::from(*octets)),
        _ => v4,
    }
    .map(|to| (to, via))
    .ok_or(Errno::EINVAL)
}

/// The attributes behind the fixed part of a request: kinds and values.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let [l0, l1, k0, k1, value @ ..] = rest else {
            return None;
        };
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let value = value.get(..len.checked_sub(4)?)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([*k0, *k1]), value))
    })
}

/// An address' family, and its bytes.
fn family_and_octets(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (net::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (net::AF_INET6 as u8, ip.octets().to_vec()),
    }
}

/// The interface that a request about one of them means: by number, or by name in an attribute.
pub(super) fn requested_interface(stack: &InetStack, body: &[u8]) -> Result<Interface> {
    const FIXED: usize = 16;
    const NAMES: [u16; 2] = [3, 53];
    let index = body
        .get(4..8)
        .and_then(|b| b.first_chunk())
        .map_or(0, |b| u32::from_ne_bytes(*b));
    let mut names =
        attributes(body.get(FIXED..).unwrap_or_default()).filter(|(kind, _)| NAMES.contains(kind));
    let name = names
        .next()
        .and_then(|(_, value)| value.split(|&b| b == 0).next());
    let is_it = |i: &Interface| {
        if index != 0 {
            i.index == index
        } else {
            name == Some(i.name.as_bytes())
        }
    };
    stack.core.find_interface(is_it).ok_or(Errno::ENODEV)
}

/// Whether a request sets only flags of an interface that are as it says.
fn is_no_op(body: &[u8], interface: &Interface) -> bool {
    const FIXED: usize = 16;
    let word = |at: usize| {
        body.get(at..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |word| u32::from_ne_bytes(*word))
    };
    let (flags, changed) = (word(8), word(12));
    // Which one is meant may be said by its name.
    let only_name = attributes(body.get(FIXED..).unwrap_or_default()).all(|(kind, _)| kind == 3);
    only_name && changed != 0 && (flags ^ interface.flags) & changed == 0
}

/// An address of the family of IPv4.
const ANY_IPV4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// An address of the family of IPv6.
const ANY_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
/// Parts of a second in which times of routes are told.
const USER_HZ: u64 = 100;

/// Answers a request about interfaces, addresses, routes and rules. Returns whether the answer is a
/// list, which ends with a message of its own.
pub(super) fn handle_message(stack: &InetStack, reply: &mut Reply, body: &[u8]) -> Result<bool> {
    let NlmsgHeader { kind, flags, .. } = reply.request;
    if kind < RTM_BASE {
        return Ok(false);
    }
    // Setting an interface up that is up changes nothing.
    if kind == RTM_NEWLINK
        && requested_interface(stack, body).is_ok_and(|interface| is_no_op(body, &interface))
    {
        return Ok(false);
    }
    if kind % KINDS != GET {
        if !caller_administers_networks() {
            return Err(Errno::EPERM);
        }
        let host = stack.host().ok_or(Errno::EOPNOTSUPP)?;
        return change::handle(stack, host, reply.request, body).map(|()| false);
    }
    let all = flags & NLM_F_DUMP != 0;
    let family = body.first().copied().unwrap_or(0);
    let wanted = |ip: IpAddr| family == 0 || family_and_octets(ip).0 == family;
    match kind {
        RTM_GETLINK if !all => {
            let interface = requested_interface(stack, body)?;
            let device = stack.core.device(interface.index);
            reply.push_link(RTM_NEWLINK, 0, &interface, &device);
        }
        // There are no bridges, whose ports that would be.
        RTM_GETLINK if u32::from(family) == net::AF_BRIDGE => {}
        RTM_GETLINK => {
            for interface in stack.core.interfaces() {
                let device = stack.core.device(interface.index);
                reply.push_link(RTM_NEWLINK, NLM_F_MULTI, &interface, &device);
            }
        }
        RTM_GETADDR | RTM_GETROUTE if all => {
            if let Some(host) = stack
                .host()
                .filter(|_| kind == RTM_GETROUTE && wanted(ANY_IPV4))
            {
                for route in host.routes()? {
                    reply.push_route(RTM_NEWROUTE, NLM_F_MULTI, &route, None);
                }
            }
            if let Some(host) = stack
                .host()
                .filter(|_| kind == RTM_GETROUTE && wanted(ANY_IPV6))
            {
                for (route, left) in host.ipv6_routes()? {
                    reply.push_route(RTM_NEWROUTE, NLM_F_MULTI, &route, left);
                }
            }
            let now = stack.host().map_or(0, Host::now);
            for interface in stack.core.interfaces() {
                for known in interface.addresses.iter().filter(|known| wanted(known.ip)) {
                    if kind == RTM_GETADDR {
                        reply.push_address(RTM_NEWADDR, NLM_F_MULTI, &interface, known, now);
                    } else {
                        let ip = known.ip;
                        let prefix = if ip.is_ipv6() { 128 } else { known.prefix_len };
                        reply.push_local_route(NLM_F_MULTI, &interface, ip, prefix);
                    }
                }
            }
        }
        RTM_GETNEIGH if all => {
            if let Some(host) = stack.host() {
                let all = host.neighbours()?;
                for neighbour in all.iter().filter(|known| wanted(known.key.address)) {
                    reply.push_neighbour(RTM_NEWNEIGH, NLM_F_MULTI, neighbour);
                }
            }
        }
        RTM_GETRULE if all => {
            // The tables of routes are asked in this order; IPv6 has no last one.
            let last = if u32::from(family) == net::AF_INET6 {
                2
            } else {
                3
            };
            RULES[..last]
                .iter()
                .for_each(|rule| reply.push_rule(family.max(net::AF_INET as u8), *rule));
        }
        RTM_GETROUTE => {
            let (to, via) = destination(body)?;
            reply.push_route_to(stack, &to, via)?;
        }
        // Lists of what there is none of: queueing disciplines.
        _ if all => {}
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;

    use super::*;
    use crate::inet::Loopback;
    use crate::netlink::NetlinkStack;
    use crate::netlink::message::{
        NLM_F_ACK, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_HDRLEN, NlmsgHeader,
    };
    use crate::netlink::{NETLINK_ROUTE, handle_request};
    use crate::socket::CoreStack;
    use crate::unix::UnixStack;

    /// The messages of an answer: kind and body.
    fn messages(answers: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        for mut rest in answers.iter().map(Vec::as_slice) {
            while rest.len() >= NLMSG_HDRLEN {
                let len = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
                found.push((
                    u16::from_ne_bytes([rest[4], rest[5]]),
                    rest[NLMSG_HDRLEN..len].to_vec(),
                ));
                rest = &rest[len..];
            }
            assert!(rest.is_empty());
        }
        found
    }

    /// The attributes behind a fixed part, as Go's parser goes over them: every one is padded
    /// within the message.
    fn attributes(body: &[u8], fixed: usize) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        let mut rest = &body[fixed..];
        while !rest.is_empty() {
            let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            found.push((
                u16::from_ne_bytes([rest[2], rest[3]]),
                rest[4..len].to_vec(),
            ));
            rest = &rest[len.next_multiple_of(4)..];
        }
        found
    }

    fn stack() -> Arc<NetlinkStack> {
        let core = CoreStack::new(Arc::new(Loopback));
        let unix = UnixStack::new(core.clone());
        NetlinkStack::new(InetStack::new(core, Arc::new(Loopback)), unix)
    }

    fn ask(kind: u16, flags: u16, body: &[u8]) -> Vec<(u16, Vec<u8>)> {
        messages(&handle_request(
            &stack(),
            NETLINK_ROUTE,
            NlmsgHeader {
                kind,
                flags,
                sequence: 7,
            },
            &[0; NLMSG_HDRLEN],
            body,
            1,
        ))
    }

    #[test]
    fn lists_are_whole_and_end() {
        let links = ask(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, &[0]);
        assert_eq!(
            links.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [RTM_NEWLINK, NLMSG_DONE]
        );
        assert!(attributes(&links[0].1, 16).contains(&(3, b"lo\0".to_vec())));
        let addresses = ask(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, &[0]);
        assert_eq!(
            addresses.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [RTM_NEWADDR, RTM_NEWADDR, NLMSG_DONE]
        );
        assert!(attributes(&addresses[0].1, 8).contains(&(2, vec![127, 0, 0, 1])));
        assert_eq!(
            ask(
                RTM_GETADDR,
                NLM_F_REQUEST | NLM_F_DUMP,
                &[net::AF_INET6 as u8]
            )
            .len(),
            2
        );
        assert_eq!(ask(RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, &[0]).len(), 3);
        let rules = ask(
            RTM_GETRULE,
            NLM_F_REQUEST | NLM_F_DUMP,
            &[net::AF_INET as u8],
        );
        assert_eq!(
            rules.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [RTM_NEWRULE, RTM_NEWRULE, RTM_NEWRULE, NLMSG_DONE]
        );
    }

    #[test]
    fn a_route_is_found_or_there_is_none() {
        let to = |octets: [u8; 4]| {
            [
                &[net::AF_INET as u8, 32][..],
                &[0; 10],
                &[8, 0, 1, 0],
                &octets,
            ]
            .concat()
        };
        let local = ask(RTM_GETROUTE, NLM_F_REQUEST, &to([127, 0, 0, 1]));
        assert_eq!(local[0].0, RTM_NEWROUTE);
        assert!(attributes(&local[0].1, 12).contains(&(4, vec![1, 0, 0, 0])));
        let none = ask(RTM_GETROUTE, NLM_F_REQUEST, &to([10, 0, 0, 1]));
        assert_eq!(
            (none[0].0, &none[0].1[..4]),
            (NLMSG_ERROR, &(-Errno::ENETUNREACH.raw()).to_ne_bytes()[..])
        );
    }

    #[test]
    fn what_is_so_already_can_be_set() {
        let up = net::net_device_flags::IFF_UP as u32;
        let set = |flags: u32| {
            let body = [
                &[0; 4][..],
                &1u32.to_ne_bytes(),
                &flags.to_ne_bytes(),
                &up.to_ne_bytes(),
            ]
            .concat();
            ask(RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, &body)[0].1[..4].to_vec()
        };
        assert_eq!(set(up), [0; 4]);
        assert_ne!(set(0), [0; 4]);
    }

    #[test]
    fn one_interface_is_found_by_number_and_by_name() {
        let mut body = [0; 16];
        body[4] = 1;
        assert_eq!(ask(RTM_GETLINK, NLM_F_REQUEST, &body)[0].0, RTM_NEWLINK);
        let named = [&[0; 16][..], &[7, 0, 3, 0], b"lo\0\0"].concat();
        assert_eq!(ask(RTM_GETLINK, NLM_F_REQUEST, &named)[0].0, RTM_NEWLINK);
        body[4] = 2;
        let refused = ask(RTM_GETLINK, NLM_F_REQUEST, &body);
        assert_eq!(
            (refused[0].0, refused[0].1[..4].to_vec()),
            (NLMSG_ERROR, (-Errno::ENODEV.raw()).to_ne_bytes().to_vec())
        );
    }

    proptest::proptest! {
        #[test]
        fn any_request_is_answered(kind in 0..100u16, flags: u16, body in proptest::collection::vec(0u8.., 0..64)) {
            ask(kind, flags, &body);
        }
    }

    #[test]
    fn what_would_change_something_is_refused() {
        let refused = |kind: u16, flags: u16, body: &[u8]| {
            let answer = ask(kind, flags, body);
            assert_eq!(answer[0].0, NLMSG_ERROR, "{kind}");
            -i32::from_ne_bytes(answer[0].1[..4].try_into().unwrap())
        };
        // Nobody is root here.
        for kind in [RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWRULE, RTM_NEWLINK] {
            assert_eq!(
                refused(kind, NLM_F_REQUEST | NLM_F_ACK, &[0; 32]),
                Errno::EPERM.raw()
            );
        }
        assert_eq!(
            refused(RTM_GETRULE, NLM_F_REQUEST, &[0; 32]),
            Errno::EOPNOTSUPP.raw()
        );
        assert_eq!(
            refused(RTM_GETROUTE, NLM_F_REQUEST, &[0; 12]),
            Errno::EINVAL.raw(),
            "to nowhere"
        );
        let unknown = [&[0; 16][..], &[7, 0, 3, 0], b"xy\0\0"].concat();
        assert_eq!(
            refused(RTM_GETLINK, NLM_F_REQUEST, &unknown),
            Errno::ENODEV.raw()
        );
    }

    #[test]
    fn a_list_is_of_the_family_that_is_asked_for() {
        let of = |family: u32| {
            let found = ask(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, &[family as u8]);
            found
                .iter()
                .filter(|(kind, _)| *kind == RTM_NEWADDR)
                .map(|(_, body)| body[..2].to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(net::AF_INET), [[net::AF_INET as u8, 8]]);
        assert_eq!(of(net::AF_INET6), [[net::AF_INET6 as u8, 128]]);
        assert_eq!(of(net::AF_UNIX), Vec::<Vec<u8>>::new());
        let rules = ask(
            RTM_GETRULE,
            NLM_F_REQUEST | NLM_F_DUMP,
            &[net::AF_INET6 as u8],
        );
        assert_eq!(
            rules
                .iter()
                .filter(|(kind, _)| *kind == RTM_NEWRULE)
                .count(),
            2
        );
    }
}
