//! `NETLINK_ROUTE` as `ip` uses it to change a host, and as `ip monitor` hears of it.

mod common;

use std::sync::Arc;

use abi::errno::Errno;
use common::{call, protocol};
use fs::{File, OpenFlags};
use linux_raw_sys::net as sys;
use net::inet::{Host, Ipv6Scope, Ipv6Setting};
use net::{
    Address, Frame, FrameRefused, LinkKind, NetDevice, NewInterface, SocketType, Stack, Ucred,
};
use proptest::prelude::*;

const REQUEST_ACK: u16 = 5;
const DUMP: u16 = 0x301;
const CREATE: u16 = 0x400;
const EXCL: u16 = 0x200;

struct Nowhere;

impl NetDevice for Nowhere {
    fn transmit(&self, _: Frame) -> Result<(), FrameRefused> {
        Ok(())
    }
}

struct Machine {
    host: Arc<Host>,
    stack: Arc<Stack>,
    index: u32,
}

fn machine() -> Machine {
    net::set_credentials_provider(|| Ucred::OVERFLOW, || Arc::from([]), |_| true);
    let host = Host::new();
    let stack = Stack::new(host.clone());
    let interface = NewInterface {
        name: "eth%d",
        link: LinkKind::Ethernet([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        max_mtu: 9000,
        queue_len: 1000,
        has_carrier: true,
        has_ipv6: false,
    };
    let index = host.add_interface(&interface, Arc::new(Nowhere)).unwrap();
    Machine { host, stack, index }
}

fn open(stack: &Stack) -> Arc<File> {
    let socket = stack.socket(sys::AF_NETLINK, SocketType::Datagram, 0);
    socket.unwrap().into_file(OpenFlags::NONBLOCK)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Kinds and bodies of the messages that wait.
fn messages(file: &File) -> Vec<(u16, Vec<u8>)> {
    let (mut found, mut buf) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(count) = file.read(&mut buf) {
        let mut rest = &buf[..count];
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            found.push((kind, rest[16..length].to_vec()));
            rest = &rest[length..];
        }
    }
    found
}

fn write(file: &File, kind: u16, flags: u16, body: &[u8]) {
    let head = [
        16 + body.len() as u32,
        u32::from(kind) | u32::from(flags) << 16,
    ];
    let head = head.map(u32::to_ne_bytes).concat();
    let message = [&head[..], &[7, 0, 0, 0, 0, 0, 0, 0], body].concat();
    file.write(&message).unwrap();
}

impl Machine {
    /// Asks for a change: its error, or 0.
    fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> i32 {
        let file = open(&self.stack);
        write(&file, kind, REQUEST_ACK | flags, body);
        let answers = messages(&file);
        assert_eq!((answers.len(), answers[0].0), (1, 2));
        -i32::from_ne_bytes(answers[0].1[..4].try_into().unwrap())
    }

    fn list(&self, kind: u16) -> Vec<(u16, Vec<u8>)> {
        let file = open(&self.stack);
        write(&file, kind, DUMP, &[2, 0, 0, 0]);
        messages(&file)
    }

    /// `ip link set eth0 …`
    fn link(&self, flags: u32, changed: u32, attributes: &[u8]) -> i32 {
        let words = [0, self.index, flags, changed]
            .map(u32::to_ne_bytes)
            .concat();
        self.ask(16, 0, &[&words[..], attributes].concat())
    }

    /// `ip addr add|del 10.0.0.1/24 brd 10.0.0.255 dev eth0`
    fn address(&self, kind: u16, flags: u16) -> i32 {
        let fixed = [&[2, 24, 0, 0][..], &self.index.to_ne_bytes()].concat();
        let body = [
            fixed,
            attribute(2, &[10, 0, 0, 1]),
            attribute(1, &[10, 0, 0, 1]),
            attribute(4, &[10, 0, 0, 255]),
        ];
        self.ask(kind, flags, &body.concat())
    }

    /// `ip route add|del default via 10.0.0.GATEWAY`
    fn default_route(&self, kind: u16, flags: u16, gateway: u8) -> i32 {
        let fixed = vec![2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        self.ask(
            kind,
            flags,
            &[fixed, attribute(5, &[10, 0, 0, gateway])].concat(),
        )
    }

    /// `ip neigh add|del 10.0.0.9 lladdr … dev eth0`
    fn neighbour(&self, kind: u16, flags: u16) -> i32 {
        let fixed = [
            &[2, 0, 0, 0][..],
            &self.index.to_ne_bytes(),
            &[0x80, 0, 0, 0],
        ];
        let body = [
            fixed.concat(),
            attribute(1, &[10, 0, 0, 9]),
            attribute(2, &[2, 0, 0, 0, 0, 9]),
        ];
        self.ask(kind, flags, &body.concat())
    }
}

#[test]
fn a_host_is_configured_as_ip_does_it() {
    let machine = machine();
    assert_eq!(machine.link(1, 1, &[]), 0);
    assert_eq!(machine.link(0, 0, &attribute(4, &1400u32.to_ne_bytes())), 0);
    let too_long = attribute(4, &9001u32.to_ne_bytes());
    assert_eq!(machine.link(0, 0, &too_long), Errno::EINVAL.raw());
    assert_eq!(
        machine.link(0, 0, &attribute(3, b"lan0\0")),
        Errno::EBUSY.raw()
    );
    let shown = machine.host.interface(machine.index).unwrap();
    assert_eq!(
        (shown.flags & 1, shown.mtu, &*shown.name),
        (1, 1400, "eth0")
    );

    assert_eq!(machine.address(20, CREATE | EXCL), 0);
    assert_eq!(machine.address(20, CREATE | EXCL), Errno::EEXIST.raw());
    let kinds = |list: Vec<(u16, Vec<u8>)>| list.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
    // The loop's, the new one, the end.
    assert_eq!(kinds(machine.list(22)), [20, 20, 3]);
    assert_eq!(machine.default_route(24, CREATE | EXCL, 254), 0);
    assert_eq!(
        machine.default_route(24, CREATE | EXCL, 253),
        Errno::EEXIST.raw()
    );
    assert_eq!(
        machine.default_route(24, CREATE, 1),
        Errno::EINVAL.raw(),
        "by itself"
    );
    // The network's and the default one, and those to this host.
    assert_eq!(kinds(machine.list(26)), [24, 24, 24, 24, 3]);
    assert_eq!(machine.neighbour(28, CREATE | EXCL), 0);
    assert_eq!(machine.neighbour(28, CREATE | EXCL), Errno::EEXIST.raw());
    assert_eq!(kinds(machine.list(30)), [28, 3]);

    assert_eq!(machine.neighbour(29, 0), 0);
    assert_eq!(machine.neighbour(29, 0), Errno::ENOENT.raw());
    assert_eq!(machine.default_route(25, 0, 254), 0);
    assert_eq!(machine.default_route(25, 0, 254), Errno::ESRCH.raw());
    assert_eq!(machine.address(21, 0), 0);
    assert_eq!(machine.address(21, 0), Errno::EADDRNOTAVAIL.raw());
    assert_eq!(kinds(machine.list(26)), [24, 3]);
    assert_eq!(machine.link(0, 1, &[]), 0);
    assert_eq!(machine.link(0, 0, &attribute(3, b"lan0\0")), 0);
    let shown = machine.host.interface(machine.index).unwrap();
    assert_eq!((shown.flags & 1, &*shown.name), (0, "lan0"));
}

/// A second address of a network is a secondary one: it has a label, brings no route, and goes with
/// the first; and a card's interface stays.
#[test]
fn further_addresses_have_labels_and_follow_the_first() {
    let machine = machine();
    machine.link(1, 1, &[]);
    let labelled = |kind: u16, last: u8, label: &[u8]| {
        let fixed = [&[2, 24, 0, 0][..], &machine.index.to_ne_bytes()].concat();
        let body = [
            fixed,
            attribute(2, &[10, 0, 0, last]),
            attribute(3, &[label, &[0]].concat()),
        ];
        machine.ask(kind, CREATE | EXCL, &body.concat())
    };
    // Labels and flags of the addresses, and the number of routes.
    let seen = || {
        let shown = machine.host.interface(machine.index).unwrap();
        let all = shown.addresses.iter();
        let all = all.map(|known| (known.label.map(|label| label.to_string()), known.life.flags));
        (
            all.collect::<Vec<_>>(),
            machine.host.routes().unwrap().len(),
        )
    };
    const PERMANENT: u32 = 0x80;
    const SECONDARY: u32 = 0x81;
    assert_eq!(labelled(20, 1, b"eth0"), 0);
    assert_eq!(labelled(20, 2, b"eth0:1"), 0);
    let label = Some("eth0:1".to_string());
    assert_eq!(
        seen(),
        (vec![(None, PERMANENT), (label, SECONDARY)], 1),
        "one route, by the first"
    );
    assert_eq!(labelled(20, 3, b"a/b"), Errno::EINVAL.raw());
    assert_eq!(labelled(21, 2, b"eth0:2"), Errno::EADDRNOTAVAIL.raw());
    machine.link(0, 1, &[]);
    assert_eq!(machine.link(0, 0, &attribute(3, b"lan0\0")), 0);
    let label = Some("lan0:1".to_string());
    assert_eq!(seen().0[1], (label, SECONDARY), "it follows the name");
    machine.link(1, 1, &[]);
    assert_eq!(seen().1, 1, "up again, still one");
    assert_eq!(labelled(21, 1, b"lan0"), 0);
    assert_eq!(seen(), (vec![], 0));
    let words = [0, machine.index, 0, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(machine.ask(17, 0, &words), Errno::EOPNOTSUPP.raw());
    assert!(machine.host.interface(machine.index).is_some());
}

#[test]
fn groups_hear_of_changes_and_of_nothing_else() {
    let machine = machine();
    let monitor = open(&machine.stack);
    // Links, neighbours, addresses, routes.
    let groups = Address::Netlink(0, 0x55);
    call(|caller| protocol(&monitor).bind(caller, &groups)).unwrap();
    let only_links = open(&machine.stack);
    protocol(&only_links)
        .set_option(270, 1, &1u32.to_ne_bytes())
        .unwrap();
    let deaf = open(&machine.stack);
    machine.link(1, 1, &[]);
    machine.address(20, CREATE);
    machine.neighbour(28, CREATE);
    machine.default_route(24, CREATE, 254);
    machine.list(26);
    machine.host.remove_interface(machine.index).unwrap();
    let heard = |file: &File| {
        messages(file)
            .iter()
            .map(|(kind, _)| *kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(heard(&monitor), [16, 20, 24, 28, 24, 25, 25, 29, 17]);
    assert_eq!(heard(&only_links), [16, 17]);
    assert_eq!(heard(&deaf), []);
    let interface = NewInterface {
        name: "tun%d",
        link: LinkKind::PointToPoint,
        mtu: 1500,
        max_mtu: 9000,
        queue_len: 500,
        has_carrier: true,
        has_ipv6: false,
    };
    protocol(&only_links)
        .set_option(270, 2, &1u32.to_ne_bytes())
        .unwrap();
    machine
        .host
        .add_interface(&interface, Arc::new(Nowhere))
        .unwrap();
    assert_eq!((heard(&monitor), heard(&only_links)), (vec![16], vec![]));
}

/// Addresses, routes and neighbours of IPv6 as `ip -6` sets them, and as its groups hear of them.
#[test]
fn ipv6_is_configured_as_ip_does_it() {
    let machine = machine();
    let of = Ipv6Scope::Interface("eth0");
    let host = &machine.host;
    host.set_ipv6(of, Ipv6Setting::DisableIpv6, 0).unwrap();
    machine.link(1, 1, &[]);
    let monitor = open(&machine.stack);
    // Neighbours, addresses and routes of IPv6.
    let groups = Address::Netlink(0, 1 << 2 | 1 << 8 | 1 << 10);
    call(|caller| protocol(&monitor).bind(caller, &groups)).unwrap();
    let ip = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let index = machine.index.to_ne_bytes();
    let address = |kind, flags, lives: [u32; 2]| {
        let fixed = [&[10, 64, 0, 0][..], &index].concat();
        let lives = [lives[0], lives[1], 0, 0].map(u32::to_ne_bytes).concat();
        let no_dad = 2u32.to_ne_bytes();
        let attributes = [
            attribute(2, &ip(1)),
            attribute(6, &lives),
            attribute(8, &no_dad),
        ];
        machine.ask(kind, flags, &[fixed, attributes.concat()].concat())
    };
    assert_eq!(address(20, CREATE | EXCL, [20, 10]), Errno::EINVAL.raw());
    assert_eq!(address(20, CREATE | EXCL, [u32::MAX; 2]), 0);
    assert_eq!(
        address(20, CREATE | EXCL, [u32::MAX; 2]),
        Errno::EEXIST.raw()
    );
    assert_eq!(address(20, CREATE | 0x100, [100, 200]), 0, "another life");
    let route = |kind, flags, gateway: u8| {
        let fixed = vec![10, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        machine.ask(kind, flags, &[fixed, attribute(5, &ip(gateway))].concat())
    };
    assert_eq!(route(24, CREATE | EXCL, 254), 0);
    assert_eq!(route(24, CREATE | EXCL, 253), Errno::EEXIST.raw());
    assert_eq!(route(24, CREATE, 1), Errno::EINVAL.raw(), "by itself");
    let neighbour = |kind, flags| {
        let fixed = [&[10, 0, 0, 0][..], &index, &[0x80, 0, 0, 0]].concat();
        let attributes = [attribute(1, &ip(9)), attribute(2, &[2, 0, 0, 0, 0, 9])];
        machine.ask(kind, flags, &[fixed, attributes.concat()].concat())
    };
    assert_eq!(neighbour(28, CREATE | EXCL), 0);
    let list = |kind| {
        let file = open(&machine.stack);
        write(&file, kind, DUMP, &[10, 0, 0, 0]);
        messages(&file)
    };
    let addresses = list(22);
    // The loop's, the link's, the new one, the end.
    assert_eq!(addresses.len(), 4);
    let shown = &addresses[2].1;
    assert_eq!(shown[..4], [10, 64, 2, 0], "nobody was asked");
    let life = shown
        .windows(4)
        .position(|four| four == [20, 0, 6, 0])
        .unwrap();
    let word = |at: usize| u32::from_ne_bytes(shown[at..at + 4].try_into().unwrap());
    assert!((98..=100).contains(&word(life + 4)) && (198..=200).contains(&word(life + 8)));
    // Two networks, the default one, three to this host, of which one is still asked for.
    assert_eq!(list(26).iter().filter(|(kind, _)| *kind == 24).count(), 6);
    assert_eq!(list(30).len(), 2);
    let asked = [
        vec![10, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        attribute(1, &ip(77)),
    ]
    .concat();
    let file = open(&machine.stack);
    write(&file, 26, 1, &asked);
    let found = messages(&file);
    assert!(found[0].0 == 24 && found[0].1.windows(16).any(|octets| octets == ip(1)));
    assert_eq!(neighbour(29, 0), 0);
    assert_eq!(route(25, 0, 254), 0);
    assert_eq!(address(21, 0, [0; 2]), 0);
    assert_eq!(address(21, 0, [0; 2]), Errno::EADDRNOTAVAIL.raw());
    let heard: Vec<u16> = messages(&monitor).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(heard, [20, 24, 20, 24, 28, 29, 25, 21, 25]);
}

#[test]
fn the_loop_stays_as_it_is() {
    let machine = Machine {
        index: 1,
        ..machine()
    };
    let refused = Errno::EOPNOTSUPP.raw();
    assert_eq!(machine.link(0, 1, &[]), refused);
    assert_eq!(
        machine.link(0, 0, &attribute(4, &1400u32.to_ne_bytes())),
        refused
    );
    assert_eq!(machine.address(20, CREATE), refused);
    assert_eq!(machine.address(21, 0), refused);
    assert_eq!(
        machine.ask(17, 0, &[0u32, 1, 0, 0].map(u32::to_ne_bytes).concat()),
        refused
    );
}

proptest! {
    /// Any request of an administrator is answered, and the tables stay within their bounds.
    #[test]
    fn no_request_is_too_strange(
        kind in 16..32u16,
        flags in 0..0x1000u16,
        family in prop_oneof![Just(2u8), any::<u8>()],
        index in 0..4u32,
        fixed in proptest::collection::vec(any::<u8>(), 8),
        attributes in proptest::collection::vec((0..20u16, proptest::collection::vec(any::<u8>(), 0..8)), 0..5),
        cut in 0..100usize,
    ) {
        let machine = machine();
        machine.link(1, 1, &[]);
        machine.address(20, CREATE);
        let mut body = [&[family, 24, 0, 0][..], &index.to_ne_bytes(), &fixed].concat();
        for (kind, value) in &attributes {
            body.extend_from_slice(&attribute(*kind, value));
        }
        body.truncate(cut.max(4));
        let file = open(&machine.stack);
        write(&file, kind, flags | REQUEST_ACK, &body);
        prop_assert!(!messages(&file).is_empty());
        machine.list(18);
        machine.list(26);
    }
}
