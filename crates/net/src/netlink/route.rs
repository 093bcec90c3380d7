//! `NETLINK_ROUTE`: interfaces, addresses, routes and rules (`rtnetlink(7)`).

use super::{DUMP, MULTI, NlmsgHeader, Reply};
use crate::inet::network::{self, Interface};
use crate::socket::caller_ucred;
use abi::errno::Errno;
use alloc::vec::Vec;
use core::net::IpAddr;
use fs::Result;
use linux_raw_sys::net;

/// Messages about links, addresses, routes and rules come in fours: new, delete, get, set.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_RULE: u16 = 32;
const GET_RULE: u16 = 34;
const FIRST: u16 = NEW_LINK;
const KINDS: u16 = 4;
const GET: u16 = 2;

const SCOPE_HOST: u8 = 254;
const PERMANENT: u8 = 0x80;
/// The table of routes to this host, and who made them.
const LOCAL_TABLE: u8 = 255;
const BY_KERNEL: u8 = 2;
/// The kind of route that leads to this host.
const LOCAL: u8 = 2;
/// Rules: which table is asked, and when.
const RULES: [(u8, u32); 3] = [(LOCAL_TABLE, 0), (254, 32_766), (253, 32_767)];

impl Reply {
    fn link(&mut self, flags: u16, interface: &Interface) {
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
        self.add(NEW_LINK, flags, &fixed, &attributes);
    }

    fn address(&mut self, flags: u16, interface: &Interface, ip: IpAddr, prefix: u8) {
        let (family, octets) = split(ip);
        let scope = if ip.is_loopback() { SCOPE_HOST } else { 0 };
        let fixed = [&[family, prefix, PERMANENT, scope][..], &interface.index.to_ne_bytes()].concat();
        let name = [interface.name.as_bytes(), &[0]].concat();
        let mark = u32::from(PERMANENT).to_ne_bytes();
        // Preferred and valid for ever; when it was made and changed.
        let life = [u32::MAX, u32::MAX, 0, 0].map(u32::to_ne_bytes).concat();
        // Only IPv4 addresses have labels.
        if ip.is_ipv4() {
            self.add(NEW_ADDRESS, flags, &fixed, &[(1, &octets), (2, &octets), (3, &name), (8, &mark), (6, &life)]);
        } else {
            self.add(NEW_ADDRESS, flags, &fixed, &[(1, &octets), (8, &mark), (6, &life)]);
        }
    }

    /// That an address' network is this host's.
    fn route(&mut self, flags: u16, interface: &Interface, ip: IpAddr, prefix: u8) {
        let (family, octets) = split(ip);
        let fixed = [family, prefix, 0, 0, LOCAL_TABLE, BY_KERNEL, SCOPE_HOST, LOCAL, 0, 0, 0, 0];
        let table = u32::from(LOCAL_TABLE).to_ne_bytes();
        let index = interface.index.to_ne_bytes();
        self.add(NEW_ROUTE, flags, &fixed, &[(15, &table), (1, &octets), (7, &octets), (4, &index)]);
    }

    /// How one address is reached.
    ///
    /// # Errors
    /// `ENETUNREACH`.
    fn way(&mut self, to: &IpAddr) -> Result<()> {
        const FOUND: u32 = 0x200;
        let route = network::current().route(*to)?;
        let ((family, octets), (_, source)) = (split(*to), split(route.source));
        let fixed = [
            &[family, (octets.len() * 8) as u8, 0, 0, LOCAL_TABLE, 0, 0, if route.local { LOCAL } else { 1 }][..],
            &FOUND.to_ne_bytes(),
        ]
        .concat();
        let (table, index) = (u32::from(LOCAL_TABLE).to_ne_bytes(), route.interface_index.to_ne_bytes());
        self.add(NEW_ROUTE, 0, &fixed, &[(15, &table), (1, &octets), (4, &index), (7, &source)]);
        Ok(())
    }

    /// That a table of routes is asked, at some place in the order.
    fn rule(&mut self, family: u8, (table, place): (u8, u32)) {
        const ASK_TABLE: u8 = 1;
        let fixed = [family, 0, 0, 0, table, 0, 0, ASK_TABLE, 0, 0, 0, 0];
        let (table, place) = (u32::from(table).to_ne_bytes(), place.to_ne_bytes());
        self.add(NEW_RULE, MULTI, &fixed, &[(15, &table), (14, &[0xff; 4]), (6, &place), (21, &[BY_KERNEL])]);
    }
}

/// The address a request for a route is about.
fn destination(body: &[u8]) -> Result<IpAddr> {
    const FIXED: usize = 12;
    const TO: u16 = 1;
    let octets = attributes(body.get(FIXED..).unwrap_or_default()).find(|(kind, _)| *kind == TO).ok_or(Errno::EINVAL)?.1;
    let v4 = octets.first_chunk::<4>().map(|octets| IpAddr::from(*octets));
    match u32::from(body[0]) {
        net::AF_INET6 => octets.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => v4,
    }
    .ok_or(Errno::EINVAL)
}

/// The attributes behind the fixed part of a request: kinds and values.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let [l0, l1, k0, k1, value @ ..] = rest else { return None };
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let value = value.get(..len.checked_sub(4)?)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([*k0, *k1]), value))
    })
}

/// An address' family, and its bytes.
fn split(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (net::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (net::AF_INET6 as u8, ip.octets().to_vec()),
    }
}

/// Which interface a request about one of them means: by number, or by name in an attribute.
fn interface_meant(body: &[u8]) -> Result<Interface> {
    const FIXED: usize = 16;
    const NAMES: [u16; 2] = [3, 53];
    let index = body.get(4..8).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b));
    let mut names = attributes(body.get(FIXED..).unwrap_or_default()).filter(|(kind, _)| NAMES.contains(kind));
    let name = names.next().and_then(|(_, value)| value.split(|&b| b == 0).next());
    let is_it = |i: &Interface| if index != 0 { i.index == index } else { name == Some(i.name.as_bytes()) };
    network::current().interfaces().into_iter().find(is_it).ok_or(Errno::ENODEV)
}

/// Whether a request sets only flags of an interface that are as it says.
fn changes_nothing(body: &[u8], interface: &Interface) -> bool {
    const FIXED: usize = 16;
    let word = |at: usize| body.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word));
    let (flags, changed) = (word(8), word(12));
    // Which one is meant may be said by its name.
    let only_name = attributes(body.get(FIXED..).unwrap_or_default()).all(|(kind, _)| kind == 3);
    only_name && changed != 0 && (flags ^ interface.flags) & changed == 0
}

/// Puts what is asked for into the reply. Returns whether that is a list, which ends with a message of its own.
pub(super) fn list(reply: &mut Reply, body: &[u8]) -> Result<bool> {
    let NlmsgHeader { kind, flags, .. } = reply.request;
    if kind < FIRST {
        return Ok(false);
    }
    // Setting an interface up that is up changes nothing.
    if kind == NEW_LINK && interface_meant(body).is_ok_and(|interface| changes_nothing(body, &interface)) {
        return Ok(false);
    }
    if kind % KINDS != GET {
        return Err(if caller_ucred().uid == 0 { Errno::EOPNOTSUPP } else { Errno::EPERM });
    }
    let all = flags & DUMP != 0;
    let family = body.first().copied().unwrap_or(0);
    let wanted = |ip: IpAddr| family == 0 || split(ip).0 == family;
    match kind {
        GET_LINK if !all => reply.link(0, &interface_meant(body)?),
        GET_LINK => network::current().interfaces().iter().for_each(|interface| reply.link(MULTI, interface)),
        GET_ADDRESS | GET_ROUTE if all => {
            for interface in network::current().interfaces() {
                for &(ip, prefix) in interface.addresses.iter().filter(|(ip, _)| wanted(*ip)) {
                    if kind == GET_ADDRESS {
                        reply.address(MULTI, &interface, ip, prefix);
                    } else {
                        reply.route(MULTI, &interface, ip, prefix);
                    }
                }
            }
        }
        GET_RULE if all => {
            // The tables of routes are asked in this order; IPv6 has no last one.
            let last = if u32::from(family) == net::AF_INET6 { 2 } else { 3 };
            RULES[..last].iter().for_each(|rule| reply.rule(family.max(net::AF_INET as u8), *rule));
        }
        GET_ROUTE => reply.way(&destination(body)?)?,
        // Lists of what there is none of: neighbours, queueing disciplines.
        _ if all => {}
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{ACK, DONE, ERROR, HEADER, NlmsgHeader, REQUEST, ROUTE, answer};
    use alloc::vec;

    /// The messages of an answer: kind and body.
    fn messages(answers: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        for mut rest in answers.iter().map(Vec::as_slice) {
            while rest.len() >= HEADER {
                let len = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
                found.push((u16::from_ne_bytes([rest[4], rest[5]]), rest[HEADER..len].to_vec()));
                rest = &rest[len..];
            }
            assert!(rest.is_empty());
        }
        found
    }

    /// The attributes behind a fixed part, as Go's parser goes over them: every one is padded within the message.
    fn attributes(body: &[u8], fixed: usize) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        let mut rest = &body[fixed..];
        while !rest.is_empty() {
            let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            found.push((u16::from_ne_bytes([rest[2], rest[3]]), rest[4..len].to_vec()));
            rest = &rest[len.next_multiple_of(4)..];
        }
        found
    }

    fn ask(kind: u16, flags: u16, body: &[u8]) -> Vec<(u16, Vec<u8>)> {
        messages(&answer(ROUTE, NlmsgHeader { kind, flags, sequence: 7 }, &[0; HEADER], body, 1))
    }

    #[test]
    fn lists_are_whole_and_end() {
        let links = ask(GET_LINK, REQUEST | DUMP, &[0]);
        assert_eq!(links.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [NEW_LINK, DONE]);
        assert!(attributes(&links[0].1, 16).contains(&(3, b"lo\0".to_vec())));
        let addresses = ask(GET_ADDRESS, REQUEST | DUMP, &[0]);
        assert_eq!(addresses.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [NEW_ADDRESS, NEW_ADDRESS, DONE]);
        assert!(attributes(&addresses[0].1, 8).contains(&(2, vec![127, 0, 0, 1])));
        assert_eq!(ask(GET_ADDRESS, REQUEST | DUMP, &[net::AF_INET6 as u8]).len(), 2);
        assert_eq!(ask(GET_ROUTE, REQUEST | DUMP, &[0]).len(), 3);
        let rules = ask(GET_RULE, REQUEST | DUMP, &[net::AF_INET as u8]);
        assert_eq!(rules.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [NEW_RULE, NEW_RULE, NEW_RULE, DONE]);
    }

    #[test]
    fn a_route_is_found_or_there_is_none() {
        let to = |octets: [u8; 4]| [&[net::AF_INET as u8, 32][..], &[0; 10], &[8, 0, 1, 0], &octets].concat();
        let local = ask(GET_ROUTE, REQUEST, &to([127, 0, 0, 1]));
        assert_eq!(local[0].0, NEW_ROUTE);
        assert!(attributes(&local[0].1, 12).contains(&(4, vec![1, 0, 0, 0])));
        let none = ask(GET_ROUTE, REQUEST, &to([10, 0, 0, 1]));
        assert_eq!((none[0].0, &none[0].1[..4]), (ERROR, &(-Errno::ENETUNREACH.raw()).to_ne_bytes()[..]));
    }

    #[test]
    fn what_is_so_already_can_be_set() {
        let up = net::net_device_flags::IFF_UP as u32;
        let set = |flags: u32| {
            let body = [&[0; 4][..], &1u32.to_ne_bytes(), &flags.to_ne_bytes(), &up.to_ne_bytes()].concat();
            ask(NEW_LINK, REQUEST | ACK, &body)[0].1[..4].to_vec()
        };
        assert_eq!(set(up), [0; 4]);
        assert_ne!(set(0), [0; 4]);
    }

    #[test]
    fn one_interface_is_found_by_number_and_by_name() {
        let mut body = [0; 16];
        body[4] = 1;
        assert_eq!(ask(GET_LINK, REQUEST, &body)[0].0, NEW_LINK);
        let named = [&[0; 16][..], &[7, 0, 3, 0], b"lo\0\0"].concat();
        assert_eq!(ask(GET_LINK, REQUEST, &named)[0].0, NEW_LINK);
        body[4] = 2;
        let refused = ask(GET_LINK, REQUEST, &body);
        assert_eq!((refused[0].0, refused[0].1[..4].to_vec()), (ERROR, (-Errno::ENODEV.raw()).to_ne_bytes().to_vec()));
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
            assert_eq!(answer[0].0, ERROR, "{kind}");
            -i32::from_ne_bytes(answer[0].1[..4].try_into().unwrap())
        };
        // Nobody is root here.
        for kind in [NEW_ADDRESS, NEW_ROUTE, NEW_RULE, NEW_LINK] {
            assert_eq!(refused(kind, REQUEST | ACK, &[0; 32]), Errno::EPERM.raw());
        }
        assert_eq!(refused(GET_RULE, REQUEST, &[0; 32]), Errno::EOPNOTSUPP.raw());
        assert_eq!(refused(GET_ROUTE, REQUEST, &[0; 12]), Errno::EINVAL.raw(), "to nowhere");
        let unknown = [&[0; 16][..], &[7, 0, 3, 0], b"xy\0\0"].concat();
        assert_eq!(refused(GET_LINK, REQUEST, &unknown), Errno::ENODEV.raw());
    }

    #[test]
    fn a_list_is_of_the_family_that_is_asked_for() {
        let of = |family: u32| {
            let found = ask(GET_ADDRESS, REQUEST | DUMP, &[family as u8]);
            found.iter().filter(|(kind, _)| *kind == NEW_ADDRESS).map(|(_, body)| body[..2].to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(of(net::AF_INET), [[net::AF_INET as u8, 8]]);
        assert_eq!(of(net::AF_INET6), [[net::AF_INET6 as u8, 128]]);
        assert_eq!(of(net::AF_UNIX), Vec::<Vec<u8>>::new());
        let rules = ask(GET_RULE, REQUEST | DUMP, &[net::AF_INET6 as u8]);
        assert_eq!(rules.iter().filter(|(kind, _)| *kind == NEW_RULE).count(), 2);
    }
}
