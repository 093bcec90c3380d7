//! Two hosts on one wire: neighbours, datagrams, fragments, errors, and frames that nobody sane
//! sends.

mod common;

use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};

use abi::errno::Errno;
use common::wire::{Machine, inet};
use common::{NOW, call, protocol};
use fs::{File, OpenFlags};
use ip::route::{Insert, Kind, Prefix, Route};
use linux_raw_sys::net as sys;
use net::inet::{BootConfig, Host, procfs_host};
use net::{Address, MsgFlags, OutgoingMessage, SocketType};
use proptest::prelude::*;

impl Machine {
    fn socket(&self, kind: SocketType, protocol: u32) -> Arc<File> {
        let socket = self
            .stack
            .socket(sys::AF_INET, kind, protocol.cast_signed());
        socket.unwrap().into_file(OpenFlags::NONBLOCK)
    }

    /// A UDP socket that is bound to a port.
    fn udp(&self, port: u16) -> Arc<File> {
        let file = self.socket(SocketType::Datagram, 0);
        let any = inet(Ipv4Addr::UNSPECIFIED, port);
        call(|caller| protocol(&file).bind(caller, &any)).unwrap();
        file
    }
}

fn pair() -> [Machine; 2] {
    [1, 2].map(|number| Machine::new(Host::new(), number))
}

/// Carries frames until no more are sent, but those that `is_lost` says yes to.
fn run(machines: &[Machine; 2], mut is_lost: impl FnMut(&[u8]) -> bool) {
    loop {
        let mut any = false;
        for (from, to) in [(0, 1), (1, 0)] {
            for data in machines[from].end.take() {
                any = true;
                if !is_lost(&data) {
                    machines[to].host.receive(machines[to].index, &data);
                }
            }
        }
        if !any {
            return;
        }
    }
}

fn send(file: &File, to: &Address, data: &[u8]) -> Result<usize, Errno> {
    call(|caller| {
        let message = OutgoingMessage {
            to: Some((caller, to)),
            ..OutgoingMessage::plain(data)
        };
        protocol(file).send(message, MsgFlags::empty(), NOW)
    })
}

fn receive(file: &File) -> Result<(Vec<u8>, Option<Address>), Errno> {
    let got = protocol(file).receive_to_vec(70_000, MsgFlags::empty(), NOW)?;
    Ok((got.0, got.1.from))
}

#[test]
fn neighbours_are_asked_once_and_datagrams_go_both_ways() {
    let machines = pair();
    let [client, server] = [machines[0].udp(1000), machines[1].udp(2000)];
    let to = inet(machines[1].address, 2000);
    send(&client, &to, b"first").unwrap();
    send(&client, &to, b"second").unwrap();
    assert_eq!(machines[0].end.sent.lock().unwrap().len(), 1, "a request");
    run(&machines, |_| false);
    let from = inet(machines[0].address, 1000);
    assert_eq!(
        receive(&server),
        Ok((b"first".to_vec(), Some(from.clone())))
    );
    assert_eq!(
        receive(&server),
        Ok((b"second".to_vec(), Some(from.clone())))
    );
    // The server has learnt of the request, and asks nobody.
    send(&server, &from, b"answer").unwrap();
    assert_eq!(machines[1].end.sent.lock().unwrap()[0][12..14], [8, 0]);
    run(&machines, |_| false);
    assert_eq!(receive(&client), Ok((b"answer".to_vec(), Some(to))));
}

#[test]
fn long_datagrams_come_whole_or_not_at_all() {
    let machines = pair();
    let [client, server] = [machines[0].udp(1000), machines[1].udp(2000)];
    let to = inet(machines[1].address, 2000);
    let data: Vec<u8> = (0..65_507u32).map(|n| ((n * 7) >> 3) as u8).collect();
    for length in [0, 1, 1472, 1473, 1480, 8000, 65_507] {
        send(&client, &to, &data[..length]).unwrap();
        run(&machines, |frame| {
            assert!(frame.len() <= 1514);
            false
        });
        assert_eq!(receive(&server).unwrap().0, data[..length]);
    }
    let mut number = 0;
    send(&client, &to, &data[..8000]).unwrap();
    run(&machines, |_| {
        number += 1;
        number == 3
    });
    assert_eq!(receive(&server), Err(Errno::EAGAIN));
    // IP_MTU_DISCOVER: IP_PMTUDISC_DO.
    let forbids = 2i32.to_ne_bytes();
    protocol(&client).set_option(0, 10, &forbids).unwrap();
    assert_eq!(send(&client, &to, &data[..1473]), Err(Errno::EMSGSIZE));
    assert_eq!(send(&client, &to, &data[..1472]), Ok(1472));
}

#[test]
fn a_port_that_nobody_has_is_refused() {
    let machines = pair();
    let client = machines[0].udp(1000);
    let to = inet(machines[1].address, 2000);
    call(|caller| protocol(&client).connect(caller, &to, NOW)).unwrap();
    send(&client, &to, b"?").unwrap();
    run(&machines, |_| false);
    assert_eq!(receive(&client), Err(Errno::ECONNREFUSED));
    assert_eq!(receive(&client), Err(Errno::EAGAIN), "told once");
}

#[test]
fn echo_requests_are_answered_but_not_those_to_everybody() {
    let machines = pair();
    let ping = machines[0].socket(SocketType::Raw, sys::IPPROTO_ICMP as u32);
    let mut request = [8, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3, 4];
    let sum = ip::checksum(&request).to_be_bytes();
    request[2..4].copy_from_slice(&sum);
    send(&ping, &inet(machines[1].address, 0), &request).unwrap();
    run(&machines, |_| false);
    let (reply, from) = receive(&ping).unwrap();
    assert_eq!((reply[20], &reply[24..]), (0, &request[4..]));
    assert_eq!(from, Some(inet(machines[1].address, 0)));
    let everybody = inet(Ipv4Addr::new(10, 0, 0, 255), 0);
    assert_eq!(send(&ping, &everybody, &request), Err(Errno::EACCES));
    let options = ping.ops_as::<net::Socket>().unwrap().options();
    options.set_int_option(sys::SO_BROADCAST, 1, true).unwrap();
    send(&ping, &everybody, &request).unwrap();
    run(&machines, |frame| frame[34] == 0);
    // It hears itself, as whoever hears everybody on this host.
    assert_eq!(receive(&ping).unwrap().0[20], 8);
    assert_eq!(receive(&ping), Err(Errno::EAGAIN));
}

#[test]
fn routes_say_where_and_whether() {
    let machines = pair();
    let [one, other] = &machines;
    let client = one.udp(1000);
    let far = |last| inet(Ipv4Addr::new(192, 0, 2, last), 9);
    assert_eq!(send(&client, &far(1), b"x"), Err(Errno::ENETUNREACH));
    let mut route = Route {
        destination: Prefix::of(Ipv4Addr::UNSPECIFIED, 0).unwrap(),
        kind: Kind::Unicast,
        interface: 0,
        gateway: Some(other.address),
        source: None,
        metric: 0,
        protocol: 3,
        scope: 0,
    };
    one.host.add_route(route, Insert::Exclusive).unwrap();
    send(&client, &far(1), b"x").unwrap();
    assert_eq!(one.end.take()[0][38..42], other.address.octets(), "ARP");
    let strange = Route {
        gateway: Some(Ipv4Addr::new(192, 0, 2, 9)),
        ..route
    };
    let added = one.host.add_route(strange, Insert::Append);
    assert_eq!(added, Err(Errno::ENETUNREACH), "a gateway behind a gateway");
    let kinds = [
        (Kind::Unreachable, Errno::EHOSTUNREACH),
        (Kind::Prohibit, Errno::EACCES),
        (Kind::Blackhole, Errno::EINVAL),
    ];
    for (last, (kind, error)) in (1..).zip(kinds) {
        route.destination = Prefix::of(Ipv4Addr::new(192, 0, 2, last), 32).unwrap();
        (route.kind, route.gateway) = (kind, None);
        one.host.add_route(route, Insert::Exclusive).unwrap();
        assert_eq!(send(&client, &far(last), b"x"), Err(error));
    }
    one.host.set_up(one.index, false).unwrap();
    assert_eq!(send(&client, &far(9), b"x"), Err(Errno::ENETUNREACH));
    one.host.set_up(one.index, true).unwrap();
    assert_eq!(send(&client, &far(9), b"x"), Err(Errno::ENETUNREACH));
    assert_eq!(send(&client, &inet(other.address, 9), b"x"), Ok(1));
    one.host.remove_interface(one.index).unwrap();
    assert_eq!(
        send(&client, &inet(other.address, 9), b"x"),
        Err(Errno::ENETUNREACH)
    );
}

#[test]
fn an_own_address_is_the_loops() {
    let machines = pair();
    let [one, _] = &machines;
    let socket = one.udp(1000);
    let to = inet(one.address, 1000);
    send(&socket, &to, b"self").unwrap();
    assert_eq!(receive(&socket), Ok((b"self".to_vec(), Some(to))));
    assert!(one.end.take().is_empty());
}

#[test]
fn who_cannot_send_is_not_believed() {
    let machines = pair();
    let [one, other] = &machines;
    let server = one.udp(2000);
    let packet = |source: [u8; 4], to: [u8; 6]| {
        let header = ip::ipv4::Header {
            tos: 0,
            id: 1,
            dont_fragment: false,
            more_fragments: false,
            offset: 0,
            ttl: 64,
            protocol: 17,
            source: source.into(),
            destination: one.address,
        };
        let datagram = [3, 232, 7, 208, 0, 9, 0, 0, b'x'];
        let link = [&to[..], &[2, 0, 0, 0, 0, 2, 8, 0]].concat();
        let data = [&link[..], &header.emit(9), &datagram].concat();
        one.host.receive(one.index, &data);
        receive(&server).map(|_| ())
    };
    let own = [2, 0, 0, 0, 0, 1];
    let bad = [
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [255; 4],
        [0; 4],
        [10, 0, 0, 255],
        one.address.octets(),
    ];
    for source in bad {
        assert_eq!(packet(source, own), Err(Errno::EAGAIN), "{source:?}");
    }
    assert_eq!(
        packet(other.address.octets(), [0xff; 6]),
        Err(Errno::EAGAIN)
    );
    assert_eq!(packet(other.address.octets(), own), Ok(()));
}

/// The machine that garbage goes to: one for all cases, as a machine in the world.
fn victim() -> &'static Machine {
    static VICTIM: OnceLock<Machine> = OnceLock::new();
    VICTIM.get_or_init(|| Machine::new(Host::new(), 1))
}

proptest! {
    /// Half of the frames have the right beginnings, so that what is behind is looked at, too.
    #[test]
    fn no_frame_is_too_strange(
        mut frame in proptest::collection::vec(any::<u8>(), 0..200),
        shape in 0..4u8,
        fragment: u16,
    ) {
        let machine = victim();
        if shape > 0 && frame.len() >= 14 {
            frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
            frame[12..14].copy_from_slice(&[8, if shape == 1 { 6 } else { 0 }]);
        }
        if shape > 1 && frame.len() >= 34 {
            let length = (frame.len() - 14) as u16;
            frame[14] = 0x45;
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            frame[20..22].copy_from_slice(&fragment.to_be_bytes());
            frame[23] = [1, 17][usize::from(shape & 1)];
            frame[24..26].fill(0);
            frame[26..30].copy_from_slice(&[10, 0, 0, 2]);
            frame[30..34].copy_from_slice(&machine.address.octets());
            let sum = ip::checksum(&frame[14..34]).to_be_bytes();
            frame[24..26].copy_from_slice(&sum);
        }
        machine.host.receive(machine.index, &frame);
        for answer in machine.end.take() {
            prop_assert!(answer.len() <= 1514);
        }
    }
}

/// The texts that netstat, route and arp read are as Linux writes them.
#[test]
fn routes_and_neighbours_are_listed_as_by_linux() {
    let machines = pair();
    let [one, other] = &machines;
    let route = Route {
        destination: Prefix::of(Ipv4Addr::UNSPECIFIED, 0).unwrap(),
        kind: Kind::Unicast,
        interface: 0,
        gateway: Some(other.address),
        source: None,
        metric: 7,
        protocol: 3,
        scope: 0,
    };
    one.host.add_route(route, Insert::Exclusive).unwrap();
    let refused = Route {
        destination: Prefix::of(Ipv4Addr::new(192, 0, 2, 1), 32).unwrap(),
        kind: Kind::Unreachable,
        gateway: None,
        ..route
    };
    one.host.add_route(refused, Insert::Exclusive).unwrap();
    send(&one.udp(1000), &inet(other.address, 9), b"x").unwrap();
    run(&machines, |_| false);
    let text = procfs_host::route(one.stack.inet()).unwrap();
    assert!(text.lines().all(|line| line.len() == 127));
    let mut lines: Vec<_> = text.lines().skip(1).map(str::trim_end).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "*\t010200C0\t00000000\t0205\t0\t0\t7\tFFFFFFFF\t0\t0\t0",
            "eth0\t00000000\t0200000A\t0003\t0\t0\t7\t00000000\t0\t0\t0",
            "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
        ]
    );
    let text = procfs_host::arp(one.stack.inet()).unwrap();
    assert_eq!(
        text.lines().nth(1),
        Some("10.0.0.2         0x1         0x2         02:00:00:00:00:02     *        eth0")
    );
}

#[test]
fn a_command_line_gives_an_interface_its_address_and_the_default_route() {
    let machine = Machine::new(Host::new(), 1);
    let apply = |value| {
        BootConfig::parse(value)
            .unwrap()
            .unwrap()
            .apply(&machine.host)
    };
    let far = Ipv4Addr::new(192, 0, 2, 1);
    let gateway = |to| {
        machine
            .host
            .lookup_route(to)
            .and_then(|route| route.gateway)
    };
    for (value, refused) in [
        ("10.0.5.1:::::eth7", "there is no interface eth7"),
        ("10.0.5.1::10.0.6.2:255.255.255.0", "the gateway is refused"),
        ("10.0.5.1:::::lo", "there is no interface lo"),
    ] {
        let error = apply(value).unwrap_err();
        assert!(error.starts_with(refused), "{value}: {error}");
        assert_eq!(gateway(far), None, "{value}");
    }
    let name = apply("10.0.5.1::10.0.5.2:255.255.255.0");
    assert_eq!(
        name.as_deref(),
        Ok("eth0"),
        "the first that is not the loop"
    );
    assert_eq!(gateway(far), Some(Ipv4Addr::new(10, 0, 5, 2)));
    let shown = machine.host.interface(machine.index).unwrap();
    let address = shown
        .addresses
        .iter()
        .find(|one| one.ip == Ipv4Addr::new(10, 0, 5, 1));
    let network = address.map(|one| (one.prefix_len, one.broadcast));
    assert_eq!(network, Some((24, Some(Ipv4Addr::new(10, 0, 5, 255)))));
}

#[test]
fn routes_by_an_interface_go_with_its_last_address() {
    let machine = Machine::new(Host::new(), 1);
    let host = &machine.host;
    let config = BootConfig::parse("10.0.5.1::10.0.5.2:255.255.255.0").unwrap();
    config.unwrap().apply(host).unwrap();
    let far = Ipv4Addr::new(192, 0, 2, 1);
    let addresses = host.interface(machine.index).unwrap().addresses;
    assert_eq!(addresses.len(), 2);
    // In the order in which the gateway's network is the first to go.
    for (left, address) in addresses.iter().rev().enumerate() {
        let gateway = host.lookup_route(far).and_then(|route| route.gateway);
        assert_eq!(gateway, Some(Ipv4Addr::new(10, 0, 5, 2)), "{left}");
        let std::net::IpAddr::V4(ip) = address.ip else {
            panic!("{address:?}");
        };
        host.remove_address(machine.index, ip, None).unwrap();
    }
    assert_eq!(host.lookup_route(far), None);
    assert!(host.routes().unwrap().is_empty());
}
