//! Packets of flows that are open, and the router's own beside them: they take no lock of its
//! tables (`docs/nat.md`).

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;

use abi::errno::Errno;
use common::router::{
    FIRST, GATEWAY, INNER, Net, OUTER, PUBLIC, ROUTER, SECOND, SECOND_INNER, TIME, WORLD, connect,
    echo, heard, join, mac, receive, send, time,
};
use common::wire::inet;
use fs::File;
use ip::nat::Protocol;
use ip::route::{Insert, Kind, Prefix, Route};

/// How often the router's tables were locked by what is done.
fn tables_locked(net: &mut Net, f: impl FnOnce(&mut Net)) -> u64 {
    let before = net.router().lock_counts().tables;
    f(net);
    net.router().lock_counts().tables - before
}

/// A byte there and back, each end to end.
fn round_trip(net: &mut Net, [a, b]: &[Arc<File>; 2]) {
    for (from, to) in [(a, b), (b, a)] {
        send(from, None, b"x").unwrap();
        net.settle();
        assert_eq!(receive(to).unwrap().0, b"x");
    }
}

#[test]
fn packets_of_open_flows_take_no_lock_of_the_tables() {
    let mut net = Net::new();
    let (world, inner) = (net.nodes[WORLD].address, net.nodes[FIRST].address);
    net.publish(Protocol::Tcp, 8080, (FIRST, 81), 7).unwrap();
    let listeners =
        [WORLD, FIRST].map(|node| net.nodes[node].listen(if node == WORLD { 80 } else { 81 }));
    let out = join(&mut net, FIRST, world, 80, &listeners[0]);
    let other = join(&mut net, SECOND_INNER, world, 80, &listeners[0]);
    let inward = join(&mut net, WORLD, PUBLIC, 8080, &listeners[1]);
    let datagrams = [net.nodes[FIRST].udp(5000), net.nodes[WORLD].udp(53)];
    for (file, to, port) in [(0, world, 53), (1, PUBLIC, 5000)] {
        connect(&datagrams[file], to, port).unwrap();
    }
    let ping = net.nodes[SECOND_INNER].icmp();
    let all = [&out, &other, &inward, &datagrams];
    let exchange = |net: &mut Net| {
        all.iter().for_each(|files| round_trip(net, files));
        send(&ping, Some(&inet(world, 0)), &echo(8, 7000, 9)).unwrap();
        net.settle();
        assert_eq!(heard(&ping), [(world, echo(0, 7000, 9))]);
    };
    // Neighbours are believed, ways known.
    for _ in 0..3 {
        exchange(&mut net);
    }
    let passed = net.nodes[ROUTER].count("Ip", "ForwDatagrams");
    let locked = tables_locked(&mut net, |net| (0..20).for_each(|_| exchange(net)));
    assert_eq!(locked, 0);
    // Datagrams, echoes, and segments with their acknowledgements.
    let passed = net.nodes[ROUTER].count("Ip", "ForwDatagrams") - passed;
    assert!(passed >= 20 * (2 * 4 + 2), "{passed} packets");
    // What the tables say is another thing: one of each direction asks.
    let elsewhere = Prefix::of(Ipv4Addr::new(10, 77, 0, 0), 16).unwrap();
    let route = Route {
        destination: elsewhere,
        kind: Kind::Unicast,
        interface: net.nodes[ROUTER].cards[0].index,
        gateway: None,
        source: None,
        metric: 0,
        protocol: 3,
        scope: 0,
    };
    net.router().add_route(route, Insert::Exclusive).unwrap();
    let locked = tables_locked(&mut net, exchange);
    assert!((2..50).contains(&locked), "{locked}");
    let locked = tables_locked(&mut net, exchange);
    assert_eq!(locked, 0);
    // The end of a flow is the end of its way.
    net.router().forget(inner);
    send(&out[1], None, b"late").unwrap();
    net.settle();
    assert_eq!(receive(&out[0]), Err(Errno::EAGAIN));
}

#[test]
fn the_routers_own_packets_take_no_lock_beside_what_it_translates() {
    let mut net = Net::new();
    net.publish(Protocol::Tcp, 8080, (FIRST, 81), 7).unwrap();
    let listener = net.nodes[ROUTER].listen(80);
    let all = [(WORLD, PUBLIC), (FIRST, GATEWAY)]
        .map(|(node, to)| join(&mut net, node, to, 80, &listener));
    let (own, theirs) = (net.nodes[ROUTER].udp(53), net.nodes[FIRST].udp(5000));
    connect(&theirs, GATEWAY, 53).unwrap();
    connect(&own, net.nodes[FIRST].address, 5000).unwrap();
    let all = [&all[0], &all[1], &[own, theirs]];
    let exchange = |net: &mut Net| all.iter().for_each(|files| round_trip(net, files));
    for _ in 0..3 {
        exchange(&mut net);
    }
    let locked = tables_locked(&mut net, |net| (0..20).for_each(|_| exchange(net)));
    assert_eq!(locked, 0);
}

/// A datagram with ends, hops and options in a frame for the router's card.
fn udp_frame(card: usize, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), ttl: u8) -> Vec<u8> {
    let mut udp = [from.1, to.1, 9, 0].map(u16::to_be_bytes).concat();
    udp.push(b'!');
    let header = ip::ipv4::Header {
        tos: 0,
        id: 1,
        dont_fragment: false,
        more_fragments: false,
        offset: 0,
        ttl,
        protocol: 17,
        source: from.0,
        destination: to.0,
    };
    let macs = [mac(INNER, GATEWAY), mac(OUTER, PUBLIC)];
    let link = [&macs[card][..], &[2, 0, 0, 0, 9, 9, 8, 0]].concat();
    [&link[..], &header.emit(udp.len()), &udp].concat()
}

/// The checks of a flow's first packet hold for each.
#[test]
fn what_must_not_pass_does_not_by_an_open_flow_either() {
    let mut net = Net::new();
    let (inner, world) = (net.nodes[FIRST].address, net.nodes[WORLD].address);
    let (client, server) = (net.nodes[FIRST].udp(5000), net.nodes[WORLD].udp(53));
    connect(&client, world, 53).unwrap();
    connect(&server, PUBLIC, 5000).unwrap();
    let both = [client, server];
    (0..3).for_each(|_| round_trip(&mut net, &both));
    let cards = [0, 1].map(|at| net.nodes[ROUTER].cards[at].index);
    let give = |net: &mut Net, card: usize, frame: &[u8]| {
        net.router().receive(cards[card], frame);
        net.settle();
        [0, 1].map(|at: usize| receive(&both[at]).map(|got| got.0))
    };
    let (there, back) = (((inner, 5000), (world, 53)), ((world, 53), (PUBLIC, 5000)));
    let nothing = || Err(Errno::EAGAIN);
    // As they should be.
    let frame = udp_frame(0, there.0, there.1, 64);
    assert_eq!(give(&mut net, 0, &frame), [nothing(), Ok(b"!".to_vec())]);
    let frame = udp_frame(1, back.0, back.1, 64);
    assert_eq!(give(&mut net, 1, &frame), [Ok(b"!".to_vec()), nothing()]);
    // From the wrong side, in the name of who is hidden.
    let frame = udp_frame(1, there.0, there.1, 64);
    assert_eq!(give(&mut net, 1, &frame), [nothing(), nothing()]);
    // With no hop left, which its sender is told.
    let errors = net.nodes[ROUTER].count("Icmp", "OutTimeExcds");
    let frame = udp_frame(0, there.0, there.1, 1);
    assert_eq!(give(&mut net, 0, &frame), [nothing(), nothing()]);
    assert_eq!(net.nodes[ROUTER].count("Icmp", "OutTimeExcds"), errors + 1);
    // In a frame to everybody, to another host, or with options.
    for to in [[0xff; 6], [2, 9, 9, 9, 9, 9]] {
        let mut frame = udp_frame(0, there.0, there.1, 64);
        frame[..6].copy_from_slice(&to);
        assert_eq!(give(&mut net, 0, &frame), [nothing(), nothing()]);
    }
    let mut frame = udp_frame(0, there.0, there.1, 64);
    let udp = frame.split_off(34);
    frame.extend_from_slice(&[1; 4]);
    frame[14] = 0x46;
    frame[16..18].copy_from_slice(&(24 + udp.len() as u16).to_be_bytes());
    frame[24..26].fill(0);
    let sum = ip::checksum(&frame[14..38]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame.extend_from_slice(&udp);
    assert_eq!(give(&mut net, 0, &frame), [nothing(), nothing()]);
    // After its time it is for the router itself, which has no such socket.
    TIME.set(time() + 121 * SECOND);
    let frame = udp_frame(1, back.0, back.1, 64);
    assert_eq!(
        give(&mut net, 1, &frame),
        [nothing(), Err(Errno::ECONNREFUSED)]
    );
}
