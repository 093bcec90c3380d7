//! Hosts with a card each that speak IPv6, on a wire that the test runs by itself, in virtual time.

use std::cell::Cell;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::sync::Arc;

use abi::errno::Errno;
use fs::{File, OpenFlags};
use ip::SECOND;
use ip::v6::{Header, address, icmp};
use linux_raw_sys::net as sys;
use net::inet::{Host, Ipv6Scope, Ipv6Setting, procfs_host};
use net::socket::InterfaceAddress;
use net::{Address, LinkKind, MsgFlags, NewInterface, OutgoingMessage, SocketType, Stack};

use super::wire::End;
use super::{NOW, call, protocol};

thread_local! {
    /// The time of the hosts of a test, each of which runs in a thread of its own.
    pub static CLOCK: Cell<u64> = const { Cell::new(SECOND) };
}

pub fn now() -> u64 {
    CLOCK.get()
}

/// A host with one card, `eth0`.
pub struct Machine {
    pub host: Arc<Host>,
    pub stack: Arc<Stack>,
    pub end: Arc<End>,
    /// Number of the interface.
    pub index: u32,
    pub hardware: [u8; 6],
}

impl Machine {
    /// One whose card is still down.
    pub fn down(number: u8) -> Self {
        let host = Host::with_clock(now);
        let stack = Stack::new(host.clone());
        let end = Arc::new(End::default());
        let hardware = [2, 0, 0, 0, 0, number];
        let interface = NewInterface {
            name: "eth%d",
            link: LinkKind::Ethernet(hardware),
            mtu: 1500,
            max_mtu: 9000,
            queue_len: 1000,
            has_carrier: true,
            has_ipv6: true,
        };
        let index = host.add_interface(&interface, end.clone()).unwrap();
        Self {
            host,
            stack,
            end,
            index,
            hardware,
        }
    }

    pub fn set(&self, setting: Ipv6Setting, value: i32) {
        let of = Ipv6Scope::Interface("eth0");
        self.host.set_ipv6(of, setting, value).unwrap();
    }

    pub fn up(self) -> Self {
        self.host.set_up(self.index, true).unwrap();
        self
    }

    pub fn link_address(&self) -> Ipv6Addr {
        address::link_local(self.hardware)
    }

    pub fn flags(&self, ip: Ipv6Addr) -> Option<u32> {
        let interface = self.host.interface(self.index).unwrap();
        let mut all = interface.addresses.iter();
        all.find(|known| known.ip == ip)
            .map(|known| known.life.flags)
    }

    pub fn receive(&self, data: Vec<u8>) {
        self.host.receive(self.index, &data);
    }

    pub fn add(&self, ip: Ipv6Addr) {
        let address = InterfaceAddress::of_v6(ip, 64);
        self.host.add_address(self.index, address, false).unwrap();
    }

    pub fn socket(&self, kind: SocketType, protocol: u32) -> Arc<File> {
        let socket = self
            .stack
            .socket(sys::AF_INET6, kind, protocol.cast_signed());
        socket.unwrap().into_file(OpenFlags::NONBLOCK)
    }

    pub fn udp(&self, port: u16) -> Arc<File> {
        let file = self.socket(SocketType::Datagram, 0);
        let any = inet(Ipv6Addr::UNSPECIFIED, port, 0);
        call(|caller| protocol(&file).bind(caller, &any)).unwrap();
        file
    }

    pub fn count(&self, name: &str) -> u64 {
        let text = procfs_host::snmp6(self.stack.inet());
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap().rsplit('\t').next().unwrap().parse().unwrap()
    }
}

pub fn inet(ip: Ipv6Addr, port: u16, scope: u32) -> Address {
    Address::Inet(SocketAddrV6::new(ip, port, 0, scope).into())
}

pub fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// Carries frames until no more are sent, but those that `is_lost` says yes to.
pub fn run(machines: &[Machine], is_lost: &mut dyn FnMut(&[u8]) -> bool) {
    loop {
        let mut any = false;
        for from in 0..machines.len() {
            for data in machines[from].end.take() {
                any = true;
                if is_lost(&data) {
                    continue;
                }
                for (to, machine) in machines.iter().enumerate() {
                    if to != from {
                        machine.receive(data.clone());
                    }
                }
            }
        }
        if !any {
            return;
        }
    }
}

/// Lets time pass, from deadline to deadline.
pub fn pass(machines: &[Machine], span: u64) {
    let end = now() + span;
    loop {
        run(machines, &mut |_| false);
        let due = machines
            .iter()
            .filter_map(|machine| machine.host.deadline());
        let due = due.min().unwrap_or(u64::MAX).max(now());
        if due > end {
            CLOCK.set(end);
            return;
        }
        CLOCK.set(due);
        machines
            .iter()
            .for_each(|machine| machine.host.run_timers());
    }
}

pub fn pair() -> Vec<Machine> {
    let machines = [1, 2].map(|number| Machine::down(number).up());
    let machines = Vec::from(machines);
    pass(&machines, 20 * SECOND);
    machines
}

pub fn send(file: &File, to: &Address, data: &[u8]) -> Result<usize, Errno> {
    call(|caller| {
        let message = OutgoingMessage {
            to: Some((caller, to)),
            ..OutgoingMessage::plain(data)
        };
        protocol(file).send(message, MsgFlags::empty(), NOW)
    })
}

pub fn receive(file: &File) -> Result<(Vec<u8>, Option<Address>), Errno> {
    let got = protocol(file).receive_to_vec(70_000, MsgFlags::empty(), NOW)?;
    Ok((got.0, got.1.from))
}

/// A frame with a packet of IPv6.
pub fn frame(to: [u8; 6], header: &Header, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let link = [&to[..], &[2, 0, 0, 0, 0, 9, 0x86, 0xdd]].concat();
    [&link[..], &header.emit(protocol, payload.len()), payload].concat()
}

pub fn header(source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8) -> Header {
    Header {
        traffic_class: 0,
        flow_label: 0,
        hop_limit,
        source,
        destination,
    }
}

/// A frame with a message of ICMPv6, whose checksum is made right.
pub fn message(to: [u8; 6], header: &Header, mut message: Vec<u8>) -> Vec<u8> {
    icmp::seal(header.source, header.destination, &mut message);
    frame(to, header, 58, &message)
}

/// An advertisement of a router with options.
pub fn advertisement(lifetime: u16, options: &[u8]) -> Vec<u8> {
    let [a, b] = lifetime.to_be_bytes();
    let router = address::link_local([2, 0, 0, 0, 0, 9]);
    let fixed = [134, 0, 0, 0, 64, 0, a, b, 0, 0, 0, 0, 0, 0, 0, 0];
    let hardware = [1, 1, 2, 0, 0, 0, 0, 9];
    let bytes = [&fixed[..], &hardware, options].concat();
    let header = header(router, address::ALL_NODES, 255);
    message([0x33, 0x33, 0, 0, 0, 1], &header, bytes)
}

/// An option that tells of a prefix of 64 bits.
pub fn prefix(text: &str, flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
    [
        &[3, 4, 64, flags][..],
        &valid.to_be_bytes(),
        &preferred.to_be_bytes(),
        &[0; 4],
        &ip(text).octets(),
    ]
    .concat()
}

pub const ON_LINK_AND_AUTONOMOUS: u8 = 0xc0;

pub fn kinds(end: &End) -> Vec<u8> {
    let frames = end.sent.lock().unwrap();
    let kind = |frame: &Vec<u8>| match frame[20] {
        0 => frame[62],
        58 => frame[54],
        other => other,
    };
    frames.iter().map(kind).collect()
}
