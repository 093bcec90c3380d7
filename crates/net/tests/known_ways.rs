//! Known ways (`docs/ip.md`): packets that take no lock of their host's tables, and what ends that.

mod common;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use abi::errno::Errno;
use common::wire::{Machine, TIME, carry, connections, inet, own, pair, socket};
use common::{NOW, call, protocol};
use fs::{File, OpenFlags};
use ip::neighbour::{Key, State};
use ip::route::{Insert, Kind, Prefix, Route};
use net::{MsgFlags, OutgoingMessage, SocketType};

const SECOND: u64 = 1_000_000_000;

fn send(file: &File, to: Ipv4Addr, port: u16, length: usize) -> Result<usize, Errno> {
    let data = vec![7; length];
    call(|caller| {
        let message = OutgoingMessage {
            to: Some((caller, &inet(to, port))),
            ..OutgoingMessage::plain(&data)
        };
        protocol(file).send(message, MsgFlags::empty(), NOW)
    })
}

/// A byte there and back, each end to end.
fn round_trip(machines: &[Machine; 2], [a, b]: &[Arc<File>; 2]) {
    for (from, to) in [(a, b), (b, a)] {
        assert_eq!(from.write(b"x"), Ok(1));
        carry(machines);
        assert_eq!(to.read(&mut [0; 8]), Ok(1));
    }
}

/// The hardware address that the only frame which was sent goes to.
fn sent_to(machine: &Machine) -> [u8; 6] {
    let frames = machine.end.take();
    assert_eq!(frames.len(), 1);
    *frames[0].first_chunk().unwrap()
}

#[test]
fn connections_that_are_open_share_no_lock() {
    let machines = pair();
    let all = connections(&machines, 3);
    // The neighbour that has asked is confirmed, and timers are set.
    all.iter().for_each(|files| round_trip(&machines, files));
    let before = [0, 1].map(|at: usize| machines[at].host.lock_counts());
    for _ in 0..1000 {
        all.iter().for_each(|files| round_trip(&machines, files));
    }
    for (machine, before) in machines.iter().zip(before) {
        let after = machine.host.lock_counts();
        assert_eq!(after.tables, before.tables, "6000 segments in, 6000 out");
        // A timer for each connection, at most two.
        assert!(after.shards <= before.shards + 6, "{before:?} {after:?}");
    }
}

/// The segment that opens a connection tells for whom the others are: none of them is looked up, of
/// however many connections, whatever becomes of routes and neighbours, until an address changes;
/// then one of each is.
#[test]
fn a_segment_of_an_open_connection_is_not_looked_up() {
    let machines = pair();
    let all = connections(&machines, 20);
    let two = &machines[1];
    let looked_up = || two.host.lock_counts().looked_up;
    let before = looked_up();
    all.iter().for_each(|files| round_trip(&machines, files));
    assert_eq!(looked_up(), before);
    let elsewhere = Ipv4Addr::new(10, 0, 0, 99);
    let key = Key {
        interface: two.index,
        address: elsewhere.into(),
    };
    let route = Route {
        destination: Prefix::of(Ipv4Addr::new(10, 50, 0, 0), 16).unwrap(),
        kind: Kind::Unicast,
        interface: two.index,
        gateway: Some(elsewhere),
        source: None,
        metric: 0,
        protocol: 4,
        scope: 0,
    };
    two.host.add_route(route, Insert::Exclusive).unwrap();
    for hardware in [[9; 6], [8; 6]] {
        let host = &two.host;
        host.set_neighbour(key, hardware, State::Permanent, (true, false))
            .unwrap();
        all.iter().for_each(|files| round_trip(&machines, files));
    }
    assert_eq!(looked_up(), before);
    let other = own(Ipv4Addr::new(10, 0, 0, 77));
    two.host.add_address(two.index, other, false).unwrap();
    for _ in 0..3 {
        all.iter().for_each(|files| round_trip(&machines, files));
    }
    assert_eq!(looked_up(), before + 20);
}

#[test]
fn a_datagram_by_a_known_way_takes_no_lock() {
    let machines = pair();
    let [client, server] = [0, 1].map(|at: usize| socket(&machines[at], SocketType::Datagram, 7));
    let to = machines[1].address;
    for _ in 0..2 {
        send(&client, to, 7, 100).unwrap();
        carry(&machines);
    }
    let before = machines[0].host.lock_counts();
    for length in [0, 1, 1472] {
        send(&client, to, 7, length).unwrap();
    }
    assert_eq!(machines[0].host.lock_counts(), before);
    // What has to be cut takes the long way.
    send(&client, to, 7, 1473).unwrap();
    assert_ne!(machines[0].host.lock_counts(), before);
    carry(&machines);
    for length in [100, 100, 0, 1, 1472, 1473] {
        assert_eq!(server.read(&mut [0; 2000]), Ok(length));
    }
    // Each has a number of its own.
    let ids: BTreeSet<_> = (0..100)
        .map(|_| {
            send(&client, to, 7, 1).unwrap();
            machines[0].end.take()[0][18..20].to_vec()
        })
        .collect();
    assert_eq!(ids.len(), 100);
}

/// Packets that come in are for this host as its interfaces say, which are seen without a lock.
#[test]
fn datagrams_and_handshakes_that_come_take_no_lock_of_the_tables() {
    let machines = pair();
    let [client, server] = [0, 1].map(|at: usize| socket(&machines[at], SocketType::Datagram, 7));
    let (one, two) = (&machines[0], &machines[1]);
    let exchange = || {
        for (from, to, host) in [(&client, two, &server), (&server, one, &client)] {
            send(from, to.address, 7, 100).unwrap();
            carry(&machines);
            assert_eq!(host.read(&mut [0; 200]), Ok(100));
        }
    };
    exchange();
    exchange();
    let before = two.host.lock_counts();
    for _ in 0..1000 {
        exchange();
    }
    assert_eq!(two.host.lock_counts(), before);
    // A handshake takes the locks of its shards.
    let open = connections(&machines, 50);
    let after = two.host.lock_counts();
    assert_eq!(after.tables, before.tables);
    assert!(after.shards > before.shards);
    drop(open);
    // An address that has gone is nobody's at once.
    send(&client, two.address, 7, 100).unwrap();
    two.host.set_up(two.index, false).unwrap();
    two.host.set_up(two.index, true).unwrap();
    carry(&machines);
    assert_eq!(server.read(&mut [0; 200]), Ok(100), "it is there again");
    send(&client, two.address, 7, 100).unwrap();
    let gone = two.address;
    two.host.remove_address(two.index, gone, Some(24)).unwrap();
    carry(&machines);
    assert_eq!(server.read(&mut [0; 200]), Err(Errno::EAGAIN));
}

/// After each change the next packet goes as the tables say then.
#[test]
fn a_way_ends_with_what_it_was_made_of() {
    let machines = pair();
    let [one, two] = &machines;
    let client = socket(one, SocketType::Datagram, 7);
    let _server = socket(two, SocketType::Datagram, 7);
    let to = two.address;
    let warm = || {
        for _ in 0..2 {
            send(&client, to, 7, 1).unwrap();
            carry(&machines);
        }
        let before = one.host.lock_counts();
        send(&client, to, 7, 1).unwrap();
        assert_eq!(one.host.lock_counts(), before, "the way is known");
        sent_to(one)
    };
    assert_eq!(warm(), [2, 0, 0, 0, 0, 2]);

    // Another card has the address now.
    let key = |address: Ipv4Addr| Key {
        interface: one.index,
        address: address.into(),
    };
    let set = |address, hardware| {
        one.host
            .set_neighbour(key(address), hardware, State::Permanent, (true, false))
            .unwrap();
    };
    set(to, [6; 6]);
    send(&client, to, 7, 1).unwrap();
    assert_eq!(sent_to(one), [6; 6]);
    set(to, [2, 0, 0, 0, 0, 2]);
    warm();

    // It is behind a gateway.
    let gateway = Ipv4Addr::new(10, 0, 0, 9);
    set(gateway, [9; 6]);
    let route = Route {
        destination: Prefix::of(to, 32).unwrap(),
        kind: Kind::Unicast,
        interface: one.index,
        gateway: Some(gateway),
        source: None,
        metric: 0,
        protocol: 4,
        scope: 0,
    };
    one.host.add_route(route, Insert::Exclusive).unwrap();
    send(&client, to, 7, 1).unwrap();
    assert_eq!(sent_to(one), [9; 6]);
    let unreachable = Route {
        kind: Kind::Unreachable,
        gateway: None,
        interface: 0,
        ..route
    };
    one.host.add_route(unreachable, Insert::Replace).unwrap();
    assert_eq!(send(&client, to, 7, 1), Err(Errno::EHOSTUNREACH));
    let filter = ip::route::Filter::default();
    one.host.remove_route(route.destination, &filter).unwrap();
    warm();

    // Links are as long as they are.
    one.host.set_mtu(one.index, 600).unwrap();
    send(&client, to, 7, 1000).unwrap();
    assert_eq!(one.end.take().len(), 2);
    one.host.set_mtu(one.index, 1500).unwrap();
    warm();

    // Nothing goes where nothing is.
    one.host.set_up(one.index, false).unwrap();
    assert_eq!(send(&client, to, 7, 1), Err(Errno::ENETUNREACH));
    one.host.set_up(one.index, true).unwrap();
    set(to, [2, 0, 0, 0, 0, 2]);
    warm();
    one.host.remove_interface(one.index).unwrap();
    assert_eq!(send(&client, to, 7, 1), Err(Errno::ENETUNREACH));
    assert!(one.end.take().is_empty());
    assert_eq!(Arc::strong_count(&one.end), 1, "nobody keeps the device");
}

#[test]
fn a_way_ends_when_its_neighbour_is_no_longer_believed() {
    let machines = pair();
    let client = socket(&machines[0], SocketType::Datagram, 7);
    let _server = socket(&machines[1], SocketType::Datagram, 7);
    let to = machines[1].address;
    let mut asked = 0;
    // Four minutes with a datagram each half second: it is asked now and then, and always there.
    for _ in 0..480 {
        send(&client, to, 7, 1).unwrap();
        let frames = machines[0].end.take();
        for data in frames {
            asked += usize::from(data[12..14] == [8, 6] && data[..6] == [2, 0, 0, 0, 0, 2]);
            machines[1].host.receive(machines[1].index, &data);
        }
        carry(&machines);
        TIME.set(TIME.get() + SECOND / 2);
        machines.iter().for_each(|one| one.host.run_timers());
    }
    assert!((4..=16).contains(&asked), "asked {asked} times");
    // It has another card, and asks for this host.
    let ask = |hardware: [u8; 6]| {
        let ips = [machines[1].address.octets(), machines[0].address.octets()];
        let head = [&[0xff; 6][..], &hardware, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        let data = [&head[..], &hardware, &ips[0], &[0; 6], &ips[1]].concat();
        machines[0].host.receive(machines[0].index, &data);
        machines[0].end.take();
        send(&client, to, 7, 1).unwrap();
        sent_to(&machines[0])
    };
    TIME.set(TIME.get() + 2 * SECOND);
    assert_eq!(ask([4; 6]), [4; 6]);
    TIME.set(TIME.get() + 2 * SECOND);
    assert_eq!(ask([2, 0, 0, 0, 0, 2]), [2, 0, 0, 0, 0, 2]);
    // It is gone: within a minute nothing goes to it any more.
    for _ in 0..120 {
        let _ = send(&client, to, 7, 1);
        TIME.set(TIME.get() + SECOND / 2);
        machines[0].host.run_timers();
    }
    machines[0].end.take();
    let _ = send(&client, to, 7, 1);
    machines[0].host.run_timers();
    let is_its = |frame: &Vec<u8>| frame[12..14] == [8, 0];
    assert!(!machines[0].end.take().iter().any(is_its));
}

#[test]
fn a_segment_is_for_this_host_as_long_as_the_tables_say_so() {
    let machines = pair();
    let all = connections(&machines, 1);
    let [client, server] = &all[0];
    for _ in 0..3 {
        round_trip(&machines, &all[0]);
    }
    let two = &machines[1];
    let mut got = [0; 8];
    // Its address is another's: what comes for it is not its own, and it sends nothing from it.
    two.host
        .remove_address(two.index, two.address, Some(24))
        .unwrap();
    client.write(b"lost").unwrap();
    server.write(b"lost, too").unwrap();
    carry(&machines);
    assert_eq!(server.read(&mut got), Err(Errno::EAGAIN));
    assert_eq!(client.read(&mut got), Err(Errno::EAGAIN));
    two.host
        .add_address(two.index, own(two.address), false)
        .unwrap();
    TIME.set(TIME.get() + SECOND);
    machines.iter().for_each(|one| one.host.run_timers());
    carry(&machines);
    assert_eq!(server.read(&mut got), Ok(4), "it is sent again");
    // A frame that is not for this host alone brings none, known or not.
    client.write(b"more").unwrap();
    let mut frames = machines[0].end.take();
    assert_eq!(frames.len(), 1);
    frames[0][..6].fill(0xff);
    let data = frames[0].clone();
    two.host.receive(two.index, &data);
    assert_eq!(server.read(&mut got), Err(Errno::EAGAIN));
    frames[0][..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    let data = frames[0].clone();
    two.host.receive(two.index, &data);
    assert_eq!(server.read(&mut got), Ok(4));
}

#[test]
fn more_destinations_than_places_are_all_reached() {
    let machines = pair();
    let one = &machines[0];
    let client = socket(one, SocketType::Datagram, 7);
    let network = own(Ipv4Addr::new(10, 1, 0, 1));
    let network = net::socket::InterfaceAddress {
        prefix_len: 16,
        ..network
    };
    one.host.add_address(one.index, network, false).unwrap();
    let host = |n: u16| Ipv4Addr::new(10, 1, (n >> 8) as u8 + 1, n as u8);
    let hardware = |n: u16| [2, 1, 1, 1, (n >> 8) as u8, n as u8];
    for n in 0..900 {
        let key = Key {
            interface: one.index,
            address: host(n).into(),
        };
        let set = one
            .host
            .set_neighbour(key, hardware(n), State::Permanent, (true, false));
        set.unwrap();
    }
    for round in 0..4 {
        for n in 0..900 {
            send(&client, host(n), 7, round).unwrap();
            assert_eq!(sent_to(one), hardware(n));
        }
    }
}

/// IPv6 goes the same ways: datagrams, handshakes and segments in both directions, by addresses of
/// the network and of the link.
#[test]
fn ipv6_takes_no_lock_of_the_tables() {
    let machines = common::v6::pair();
    let [one, two] = &machines[..] else {
        unreachable!()
    };
    let add = |machine: &common::v6::Machine, ip| machine.add(common::v6::ip(ip));
    add(one, "2001:db8::1");
    add(two, "2001:db8::2");
    common::v6::pass(&machines, 5 * SECOND);
    let run = || common::v6::run(&machines, &mut |_| false);
    for (address, link) in [(common::v6::ip("2001:db8::2"), 0), (two.link_address(), 2)] {
        let udp = [one.udp(7), two.udp(7)];
        let to = common::v6::inet(address, 7, link);
        let listener = two.socket(SocketType::Stream, 0);
        let any = common::v6::inet(std::net::Ipv6Addr::UNSPECIFIED, 80, 0);
        call(|caller| protocol(&listener).bind(caller, &any)).unwrap();
        protocol(&listener).listen(10).unwrap();
        let exchange = || {
            common::v6::send(&udp[0], &to, b"x").unwrap();
            run();
            let (data, from) = common::v6::receive(&udp[1]).unwrap();
            common::v6::send(&udp[1], &from.unwrap(), &data).unwrap();
            run();
            assert_eq!(common::v6::receive(&udp[0]).unwrap().0, b"x");
            let client = one.socket(SocketType::Stream, 0);
            let to = common::v6::inet(address, 80, link);
            let begun = call(|caller| protocol(&client).connect(caller, &to, NOW));
            assert_eq!(begun, Err(Errno::EINPROGRESS));
            run();
            let server = protocol(&listener).accept(NOW).unwrap();
            let server = server.into_file(OpenFlags::NONBLOCK);
            for (from, to) in [(&client, &server), (&server, &client)] {
                assert_eq!(from.write(b"y"), Ok(1));
                run();
                assert_eq!(to.read(&mut [0; 8]), Ok(1));
            }
            drop((client, server));
            run();
        };
        exchange();
        exchange();
        let tables = || [one, two].map(|machine| machine.host.lock_counts().tables);
        let before = tables();
        for _ in 0..100 {
            exchange();
        }
        // That there is the link which `connect(2)` names is looked at each time.
        let looked = if link == 0 { 0 } else { 100 };
        let expected = [before[0] + looked, before[1]];
        assert_eq!(tables(), expected, "{address}");
    }
    // What the interfaces say is seen at once: no address of it, nothing comes.
    let udp = [one.udp(9), two.udp(9)];
    let to = common::v6::inet(common::v6::ip("2001:db8::2"), 9, 0);
    common::v6::send(&udp[0], &to, b"x").unwrap();
    two.set(net::inet::Ipv6Setting::DisableIpv6, 1);
    run();
    assert_eq!(common::v6::receive(&udp[1]), Err(Errno::EAGAIN));
}

/// Fragments that come wait under a lock of their own.
#[test]
fn fragments_that_come_take_no_lock_of_the_tables() {
    let machines = pair();
    let [client, server] = [0, 1].map(|at: usize| socket(&machines[at], SocketType::Datagram, 7));
    let to = machines[1].address;
    for length in [100, 100] {
        send(&client, to, 7, length).unwrap();
        carry(&machines);
    }
    let tables = || machines[1].host.lock_counts().tables;
    let before = tables();
    for _ in 0..10 {
        send(&client, to, 7, 20_000).unwrap();
        carry(&machines);
    }
    assert_eq!(tables(), before);
    for length in [100, 100, 20_000, 20_000] {
        assert_eq!(server.read(&mut [0; 30_000]), Ok(length));
    }
    let machines = common::v6::pair();
    let [one, two] = &machines[..] else {
        unreachable!()
    };
    let udp = [one.udp(7), two.udp(7)];
    let to = common::v6::inet(two.link_address(), 7, one.index);
    let exchange = || {
        common::v6::send(&udp[0], &to, &[7; 20_000]).unwrap();
        common::v6::run(&machines, &mut |_| false);
        assert_eq!(common::v6::receive(&udp[1]).unwrap().0.len(), 20_000);
    };
    exchange();
    let before = two.host.lock_counts().tables;
    exchange();
    assert_eq!(two.host.lock_counts().tables, before);
}
