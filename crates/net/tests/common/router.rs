//! A router between a hidden network and the world, with two hosts in the one and one in the other,
//! on wires that the test runs by itself, in virtual time.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use abi::errno::Errno;
use fs::{File, OpenFlags};
use ip::nat::Protocol;
use ip::route::{Insert, Kind, Prefix, Route};
use linux_raw_sys::net as sys;
use net::inet::{Host, procfs};
use net::socket::{AddressLife, InterfaceAddress};
use net::{Address, LinkKind, MsgFlags, NewInterface, OutgoingMessage, SocketType, Stack};

use super::wire::{End, inet};
use super::{NOW, call, protocol};

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MILLISECOND;

thread_local! {
    /// The time of the test in this thread.
    pub static TIME: Cell<u64> = const { Cell::new(SECOND) };
}

pub fn time() -> u64 {
    TIME.get()
}

pub const ROUTER: usize = 0;
pub const FIRST: usize = 1;
pub const SECOND_INNER: usize = 2;
pub const WORLD: usize = 3;

pub const INNER: u8 = 0;
pub const OUTER: u8 = 1;

pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// An interface of a host, on a wire where everybody hears everybody.
pub struct Card {
    pub index: u32,
    pub wire: u8,
    pub end: Arc<End>,
}

pub struct Node {
    pub host: Arc<Host>,
    pub stack: Arc<Stack>,
    pub cards: Vec<Card>,
    /// The first card's.
    pub address: Ipv4Addr,
}

impl Node {
    pub fn new(addresses: &[(u8, Ipv4Addr)]) -> Self {
        let host = Host::with_clock(time);
        let stack = Stack::new(host.clone());
        let mut node = Self {
            host,
            stack,
            cards: Vec::new(),
            address: addresses[0].1,
        };
        for (wire, ip) in addresses {
            let end = Arc::new(End::default());
            let new = NewInterface {
                name: "eth%d",
                link: LinkKind::Ethernet(mac(*wire, *ip)),
                mtu: 1500,
                max_mtu: 9000,
                queue_len: 1000,
                has_carrier: true,
                has_ipv6: false,
            };
            let index = node.host.add_interface(&new, end.clone()).unwrap();
            node.host.set_up(index, true).unwrap();
            node.host.add_address(index, own(*ip), false).unwrap();
            node.cards.push(Card {
                index,
                wire: *wire,
                end,
            });
        }
        node
    }

    pub fn default_route(&self, gateway: Ipv4Addr) {
        let route = Route {
            destination: Prefix::of(Ipv4Addr::UNSPECIFIED, 0).unwrap(),
            kind: Kind::Unicast,
            interface: 0,
            gateway: Some(gateway),
            source: None,
            metric: 0,
            protocol: 3,
            scope: 0,
        };
        self.host.add_route(route, Insert::Exclusive).unwrap();
    }

    pub fn set(&self, path: &str, value: &str) {
        let sysctls = self.stack.sysctls();
        let setting = sysctls.all().find(|one| one.path() == path).unwrap();
        setting.set(value.as_bytes()).unwrap();
    }

    pub fn socket(&self, kind: SocketType, protocol: u32) -> Arc<File> {
        let number = protocol.cast_signed();
        let socket = self.stack.socket(sys::AF_INET, kind, number);
        socket.unwrap().into_file(OpenFlags::NONBLOCK)
    }

    pub fn udp(&self, port: u16) -> Arc<File> {
        let file = self.socket(SocketType::Datagram, 0);
        bind(&file, port).unwrap();
        file
    }

    pub fn listen(&self, port: u16) -> Arc<File> {
        let file = self.socket(SocketType::Stream, 0);
        bind(&file, port).unwrap();
        protocol(&file).listen(10).unwrap();
        file
    }

    /// A socket that hears and sends ICMP.
    pub fn icmp(&self) -> Arc<File> {
        self.socket(SocketType::Raw, sys::IPPROTO_ICMP as u32)
    }

    /// A counter of `/proc/net/snmp`.
    pub fn count(&self, group: &str, name: &str) -> u64 {
        let text = procfs::snmp(self.stack.inet());
        let mut lines = text.lines().filter(|line| line.starts_with(group));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|known| known == name).unwrap();
        values.split(' ').nth(at).unwrap().parse().unwrap()
    }
}

pub fn mac(wire: u8, ip: Ipv4Addr) -> [u8; 6] {
    [2, 0, 0, 0, wire, ip.octets()[3]]
}

pub fn own(ip: Ipv4Addr) -> InterfaceAddress {
    let [a, b, c, _] = ip.octets();
    InterfaceAddress {
        ip: ip.into(),
        prefix_len: 24,
        peer: None,
        broadcast: Some(Ipv4Addr::new(a, b, c, 255)),
        scope: 0,
        life: AddressLife::default(),
        label: None,
    }
}

pub fn bind(file: &File, port: u16) -> Result<(), Errno> {
    let any = inet(Ipv4Addr::UNSPECIFIED, port);
    call(|caller| protocol(file).bind(caller, &any))
}

pub fn send(file: &File, to: Option<&Address>, data: &[u8]) -> Result<usize, Errno> {
    call(|caller| {
        let message = OutgoingMessage {
            to: to.map(|to| (caller, to)),
            ..OutgoingMessage::plain(data)
        };
        protocol(file).send(message, MsgFlags::empty(), NOW)
    })
}

pub fn receive(file: &File) -> Result<(Vec<u8>, Option<Address>), Errno> {
    let got = protocol(file).receive_to_vec(70_000, MsgFlags::empty(), NOW)?;
    Ok((got.0, got.1.from))
}

pub fn connect(file: &File, to: Ipv4Addr, port: u16) -> Result<(), Errno> {
    let to = inet(to, port);
    call(|caller| protocol(file).connect(caller, &to, NOW))
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Frames on a wire by its number: whether one is lost.
pub type Filter = Box<dyn Fn(u8, &[u8]) -> bool>;

pub struct Net {
    pub nodes: Vec<Node>,
    /// The router hides the inner network.
    pub hides: bool,
    /// Percent of the frames that are lost, and the state of chance.
    pub loss: u64,
    pub chance: u64,
    pub filter: Option<Filter>,
}

pub fn hidden() -> Prefix {
    Prefix::of(Ipv4Addr::new(10, 88, 0, 0), 16).unwrap()
}

impl Net {
    /// Two hosts behind a router that hides them, and one beyond that has no route to them.
    pub fn new() -> Self {
        let mut net = Self::plain();
        net.router().masquerade(hidden()).unwrap();
        net.hides = true;
        net
    }

    /// The same without translation.
    pub fn plain() -> Self {
        TIME.set(SECOND);
        let inner = |last| [(INNER, Ipv4Addr::new(10, 88, 0, last))];
        let nodes = vec![
            Node::new(&[(INNER, GATEWAY), (OUTER, PUBLIC)]),
            Node::new(&inner(2)),
            Node::new(&inner(3)),
            Node::new(&[(OUTER, Ipv4Addr::new(192, 0, 2, 9))]),
        ];
        for node in [FIRST, SECOND_INNER] {
            nodes[node].default_route(GATEWAY);
        }
        nodes[ROUTER].set("ipv4/ip_forward", "1");
        Self {
            nodes,
            hides: false,
            loss: 0,
            chance: 1,
            filter: None,
        }
    }

    pub fn router(&self) -> &Host {
        &self.nodes[ROUTER].host
    }

    pub fn publish(
        &self,
        kind: Protocol,
        port: u16,
        to: (usize, u16),
        owner: u64,
    ) -> Result<(), Errno> {
        let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        let to = SocketAddrV4::new(self.nodes[to.0].address, to.1);
        self.router().publish(kind, at, to, owner)
    }

    /// Carries the frames that there are; false if there are none.
    pub fn carry(&mut self) -> bool {
        let mut any = false;
        for from in 0..self.nodes.len() {
            for at in 0..self.nodes[from].cards.len() {
                let (wire, frames) = {
                    let card = &self.nodes[from].cards[at];
                    (card.wire, card.end.take())
                };
                for data in frames {
                    any = true;
                    self.check(wire, &data);
                    let lost = self.filter.as_ref().is_some_and(|lost| lost(wire, &data));
                    if lost || random(&mut self.chance) % 100 < self.loss {
                        continue;
                    }
                    for (number, node) in self.nodes.iter().enumerate() {
                        for card in node.cards.iter().filter(|card| card.wire == wire) {
                            if number != from {
                                node.host.receive(card.index, &data);
                            }
                        }
                    }
                }
            }
        }
        any
    }

    /// Nothing of the hidden network is seen outside, and all checksums are right.
    pub fn check(&self, wire: u8, frame: &[u8]) {
        assert!(frame.len() <= 1514, "a frame of {} bytes", frame.len());
        if frame[12..14] != [8, 0] {
            return;
        }
        let packet = ip::ipv4::Packet::parse(&frame[14..]).unwrap();
        let (header, payload) = (packet.header, packet.payload);
        let is_hidden = wire == OUTER && self.hides;
        for address in [header.source, header.destination] {
            assert!(!is_hidden || !hidden().contains(address), "{header:?}");
        }
        let has_none = |payload: &[u8]| header.protocol == 17 && payload[6..8] == [0, 0];
        if header.is_fragment() || has_none(payload) {
            return;
        }
        let mut sum = match header.protocol {
            1 => ip::Checksum::default(),
            protocol => {
                let (from, to) = (header.source, header.destination);
                ip::Checksum::pseudo_header(from, to, protocol, payload.len())
            }
        };
        sum.add(payload);
        assert_eq!(sum.finish(), 0, "{header:?} {payload:?}");
        if let (1, Ok(Some(error))) = (header.protocol, ip::icmp::parse_error(payload)) {
            assert_eq!(ip::checksum(&error.quote[..20]), 0);
            for address in [error.header.source, error.header.destination] {
                assert!(!is_hidden || !hidden().contains(address), "{error:?}");
            }
        }
    }

    /// Lets things happen until nothing does, or until something is so.
    pub fn run(&mut self, mut is_so: impl FnMut(&Self) -> bool) -> bool {
        let end = time() + 3600 * SECOND;
        while time() < end {
            while self.carry() {}
            if is_so(self) {
                return true;
            }
            let due = self.nodes.iter().filter_map(|node| node.host.deadline());
            let Some(next) = due.min() else {
                return false;
            };
            TIME.set(time().max(next));
            for node in &self.nodes {
                if node.host.deadline().is_some_and(|due| due <= time()) {
                    node.host.run_timers();
                }
            }
        }
        false
    }

    /// Carries frames without letting time pass.
    pub fn settle(&mut self) {
        while self.carry() {}
    }
}

pub fn accept(listener: &File) -> Option<(Arc<File>, Address)> {
    let socket = protocol(listener).accept(NOW).ok()?;
    let file = socket.into_file(OpenFlags::NONBLOCK);
    let peer = protocol(&file).peer_address().ok()?;
    Some((file, peer))
}

/// A connection of a node to an address where the listener is reached.
pub fn join(
    net: &mut Net,
    client: usize,
    to: Ipv4Addr,
    port: u16,
    listener: &File,
) -> [Arc<File>; 2] {
    let client = net.nodes[client].socket(SocketType::Stream, 0);
    assert_eq!(connect(&client, to, port), Err(Errno::EINPROGRESS));
    let mut server = None;
    assert!(net.run(|_| {
        server = server.take().or_else(|| accept(listener));
        server.is_some()
    }));
    [client, server.unwrap().0]
}

/// Sends bytes over a connection, and says how many came, and whether they are the same.
pub fn transfer(net: &mut Net, from: &File, to: &File, bytes: usize) -> Result<(), Errno> {
    let data: Vec<u8> = (0..bytes as u32).map(|n| (n ^ (n >> 9)) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    let mut failed = None;
    net.run(|_| {
        while sent < data.len() {
            match send(from, None, &data[sent..]) {
                Ok(more) => sent += more,
                Err(Errno::EAGAIN) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        loop {
            match receive(to) {
                Ok((more, _)) if !more.is_empty() => got.extend(more),
                Err(Errno::EAGAIN) => break,
                Ok(_) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        failed.is_some() || got.len() == data.len()
    });
    assert!(
        failed.is_some() || got == data,
        "{} of {bytes} bytes",
        got.len()
    );
    failed.map_or(Ok(()), Err)
}

pub fn echo(kind: u8, id: u16, length: usize) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend_from_slice(&id.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    message.resize(8 + length, 0x5a);
    let sum = ip::checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

/// Messages of ICMP that a raw socket has heard: from whom, and their bytes.
pub fn heard(file: &File) -> Vec<(Ipv4Addr, Vec<u8>)> {
    let mut all = Vec::new();
    while let Ok((packet, from)) = receive(file) {
        let Some(Address::Inet(from)) = from else {
            panic!("{from:?}");
        };
        let std::net::IpAddr::V4(from) = from.ip() else {
            panic!("{from}");
        };
        all.push((from, packet[20..].to_vec()));
    }
    all
}
