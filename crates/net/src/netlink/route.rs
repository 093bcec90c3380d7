//! `NETLINK_ROUTE`: interfaces, addresses, routes and rules (`rtnetlink(7)`).

use alloc::vec::Vec;
use core::net::IpAddr;

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;

use super::message::{NLM_F_DUMP, NLM_F_MULTI, NlmsgHeader, Reply};
use crate::inet::InetStack;
use crate::socket::{Interface, caller_ucred};

/// Messages about links, addresses, routes and rules come in fours: new, delete, get, set.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
const RTM_BASE: u16 = RTM_NEWLINK;
const KINDS: u16 = 4;
const GET: u16 = 2;

const RT_SCOPE_HOST: u8 = 254;
const IFA_F_PERMANENT: u8 = 0x80;
/// The table of routes to this host, and who made them.
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_KERNEL: u8 = 2;
/// The kind of route that leads to this host.
const RTN_LOCAL: u8 = 2;
/// Rules: which table is asked, and when.
const RULES: [(u8, u32); 3] = [(RT_TABLE_LOCAL, 0), (254, 32_766), (253, 32_767)];

impl Reply {
    fn push_link(&mut self, flags: u16, interface: &Interface) {
        let fixed = [
            &[0, 0][..],
            &interface.hardware_type.to_ne_bytes(),
            &interface.index.to_ne_bytes(),
            &interface.flags.to_ne_bytes(),
            &[0; 4],
        ]
        .concat();
        let name = [interface.name.as_bytes(), &[0]].concat();
        let attributes: [(u16, &[u8]); 11] = [
            (3, &name),
            (13, &1000u32.to_ne_bytes()),
            (16, &[0]),
            (17, &[0]),
            (4, &interface.mtu.to_ne_bytes()),
            (27, &[0; 4]),
            (6, b"noqueue\0"),
            (1, &interface.hardware_address),
            (2, &[0; 6]),
            // Nothing is counted: the loop carries no packets.
            (7, &[0; 96]),
            (23, &[0; 192]),
        ];
        self.push_message(RTM_NEWLINK, flags, &fixed, &attributes);
    }

    fn push_address(&mut self, flags: u16, interface: &Interface, ip: IpAddr, prefix: u8) {
        let (family, octets) = family_and_octets(ip);
        let scope = if ip.is_loopback() { RT_SCOPE_HOST } else { 0 };
        let fixed = [
            &[family, prefix, IFA_F_PERMANENT, scope][..],
            &interface.index.to_ne_bytes(),
        ]
        .concat();
        let name = [interface.name.as_bytes(), &[0]].concat();
        let mark = u32::from(IFA_F_PERMANENT).to_ne_bytes();
        // Preferred and valid for ever; when it was made and changed.
        let life = [u32::MAX, u32::MAX, 0, 0].map(u32::to_ne_bytes).concat();
        // Only IPv4 addresses have labels.
        if ip.is_ipv4() {
            self.push_message(
                RTM_NEWADDR,
                flags,
                &fixed,
                &[
                    (1, &octets),
                    (2, &octets),
                    (3, &name),
                    (8, &mark),
                    (6, &life),
                ],
            );
        } else {
            self.push_message(
                RTM_NEWADDR,
                flags,
                &fixed,
                &[(1, &octets), (8, &mark), (6, &life)],
            );
        }
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

    /// Adds the route to one address.
    ///
    /// # Errors
    /// `ENETUNREACH`.
    fn push_route_to(&mut self, stack: &InetStack, to: &IpAddr) -> Result<()> {
        const FOUND: u32 = 0x200;
        let route = stack.route(*to)?;
        let ((family, octets), (_, source)) =
            (family_and_octets(*to), family_and_octets(route.source));
        let fixed = [
            &[
                family,
                (octets.len() * 8) as u8,
                0,
                0,
                RT_TABLE_LOCAL,
                0,
                0,
                if route.local { RTN_LOCAL } else { 1 },
            ][..],
            &FOUND.to_ne_bytes(),
        ]
        .concat();
        let (table, index) = (
            u32::from(RT_TABLE_LOCAL).to_ne_bytes(),
            route.interface_index.to_ne_bytes(),
        );
        self.push_message(
            RTM_NEWROUTE,
            0,
            &fixed,
            &[(15, &table), (1, &octets), (4, &index), (7, &source)],
        );
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

/// The address a request for a route is about.
fn destination(body: &[u8]) -> Result<IpAddr> {
    const FIXED: usize = 12;
    const TO: u16 = 1;
    let octets = attributes(body.get(FIXED..).unwrap_or_default())
        .find(|(kind, _)| *kind == TO)
        .ok_or(Errno::EINVAL)?
        .1;
    let v4 = octets
        .first_chunk::<4>()
        .map(|octets| IpAddr::from(*octets));
    match u32::from(body[0]) {
        net::AF_INET6 => octets
            .first_chunk::<16>()
            .map(|octets| IpAddr::from(*octets)),
        _ => v4,
    }
    .ok_or(Errno::EINVAL)
}

/// The attributes behind the fixed part of a request: kinds and values.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
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
fn requested_interface(stack: &InetStack, body: &[u8]) -> Result<Interface> {
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
        return Err(if caller_ucred().uid == 0 {
            Errno::EOPNOTSUPP
        } else {
            Errno::EPERM
        });
    }
    let all = flags & NLM_F_DUMP != 0;
    let family = body.first().copied().unwrap_or(0);
    let wanted = |ip: IpAddr| family == 0 || family_and_octets(ip).0 == family;
    match kind {
        RTM_GETLINK if !all => reply.push_link(0, &requested_interface(stack, body)?),
        RTM_GETLINK => stack
            .core
            .interfaces()
            .iter()
            .for_each(|interface| reply.push_link(NLM_F_MULTI, interface)),
        RTM_GETADDR | RTM_GETROUTE if all => {
            for interface in stack.core.interfaces() {
                for &(ip, prefix) in interface.addresses.iter().filter(|(ip, _)| wanted(*ip)) {
                    if kind == RTM_GETADDR {
                        reply.push_address(NLM_F_MULTI, &interface, ip, prefix);
                    } else {
                        reply.push_local_route(NLM_F_MULTI, &interface, ip, prefix);
                    }
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
        RTM_GETROUTE => reply.push_route_to(stack, &destination(body)?)?,
        // Lists of what there is none of: neighbours, queueing disciplines.
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
