//! A router between a hidden network and the world: who reaches whom, in whose name, and what is
//! told of packets that do not pass (`docs/nat.md`). In virtual time.

mod common;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::LazyLock;

use abi::errno::Errno;
use common::protocol;
use common::router::{
    FIRST, GATEWAY, INNER, Net, Node, OUTER, PUBLIC, ROUTER, SECOND, SECOND_INNER, TIME, WORLD,
    accept, bind, connect, echo, heard, hidden, join, mac, own, receive, send, time, transfer,
};
use common::wire::inet;
use ip::nat::{MOST_FLOWS, Protocol};
use ip::route::{Insert, Kind, Prefix, Route};
use net::{Address, Frame, SocketType};
use proptest::prelude::*;

#[test]
fn echoes_pass_and_two_with_one_number_are_told_apart() {
    let mut net = Net::new();
    let pings = [FIRST, SECOND_INNER].map(|node| net.nodes[node].icmp());
    let watcher = net.nodes[WORLD].icmp();
    let world = net.nodes[WORLD].address;
    for length in [0, 56, 1472, 1473, 8000] {
        for ping in &pings {
            send(ping, Some(&inet(world, 0)), &echo(8, 7000, length)).unwrap();
        }
        net.settle();
        for ping in &pings {
            assert_eq!(heard(ping), [(world, echo(0, 7000, length))], "{length}");
        }
        let seen = heard(&watcher);
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|(from, _)| *from == PUBLIC));
        assert_eq!(seen[0].1, echo(8, 7000, length), "the number is free");
        assert_ne!(seen[1].1[4..6], seen[0].1[4..6]);
    }
    assert_eq!(net.router().nat_counts().0, 2);
    // The router itself answers, on both sides.
    for to in [GATEWAY, PUBLIC] {
        send(&pings[0], Some(&inet(to, 0)), &echo(8, 1, 10)).unwrap();
        net.settle();
        assert_eq!(heard(&pings[0]), [(to, echo(0, 1, 10))]);
    }
}

#[test]
fn hops_are_counted_and_told_of() {
    let mut net = Net::new();
    let world = net.nodes[WORLD].address;
    let ping = net.nodes[FIRST].icmp();
    let watcher = net.nodes[WORLD].icmp();
    let request = echo(8, 7000, 20);
    for (hops, from, kind) in [(1, GATEWAY, 11), (2, world, 0)] {
        // IP_TTL.
        protocol(&ping)
            .set_option(0, 2, &i32::to_ne_bytes(hops))
            .unwrap();
        send(&ping, Some(&inet(world, 0)), &request).unwrap();
        net.settle();
        let answers = heard(&ping);
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].0, answers[0].1[0]), (from, kind));
        if kind == 11 {
            // It quotes what was sent.
            let error = ip::icmp::parse_error(&answers[0].1).unwrap().unwrap();
            assert_eq!(error.header.source, net.nodes[FIRST].address);
            assert_eq!((error.header.ttl, error.payload), (1, &request[..]));
        }
    }
    assert_eq!(receive(&watcher).unwrap().0[8], 1, "hops that are left");
    assert_eq!(net.nodes[ROUTER].count("Ip", "ForwDatagrams"), 2);
    assert_eq!(net.nodes[ROUTER].count("Ip", "InHdrErrors"), 1);
}

#[test]
fn datagrams_go_both_ways_and_nobody_else_comes_in() {
    let mut net = Net::new();
    let (client, server) = (net.nodes[FIRST].udp(5000), net.nodes[WORLD].udp(53));
    let world = net.nodes[WORLD].address;
    let data: Vec<u8> = (0..60_000u32).map(|n| (n >> 3) as u8).collect();
    for length in [1, 1472, 1473, 9000, 60_000] {
        send(&client, Some(&inet(world, 53)), &data[..length]).unwrap();
        net.settle();
        let (got, from) = receive(&server).unwrap();
        assert!(got == data[..length]);
        assert_eq!(from, Some(inet(PUBLIC, 5000)));
        send(&server, from.as_ref(), &data[..length]).unwrap();
        net.settle();
        assert!(receive(&client) == Ok((data[..length].to_vec(), Some(inet(world, 53)))));
    }
    // Another port of the same host is a stranger: the router itself is asked, and refuses.
    let stranger = net.nodes[WORLD].udp(54);
    connect(&stranger, PUBLIC, 5000).unwrap();
    send(&stranger, None, b"?").unwrap();
    net.settle();
    assert_eq!(receive(&stranger), Err(Errno::ECONNREFUSED));
    assert_eq!(receive(&client), Err(Errno::EAGAIN));
    // Time passes, and the hole closes.
    TIME.set(time() + 121 * SECOND);
    send(&server, Some(&inet(PUBLIC, 5000)), b"late").unwrap();
    net.settle();
    assert_eq!(receive(&client), Err(Errno::EAGAIN));
}

#[test]
fn a_port_that_nobody_has_out_there_refuses() {
    let mut net = Net::new();
    let client = net.nodes[FIRST].udp(40_000);
    connect(&client, net.nodes[WORLD].address, 9).unwrap();
    send(&client, None, b"?").unwrap();
    net.settle();
    assert_eq!(receive(&client), Err(Errno::ECONNREFUSED));
    let client = net.nodes[FIRST].socket(SocketType::Stream, 0);
    let world = net.nodes[WORLD].address;
    assert_eq!(connect(&client, world, 9), Err(Errno::EINPROGRESS));
    net.settle();
    assert_eq!(receive(&client), Err(Errno::ECONNREFUSED));
}

#[test]
fn connections_carry_all_bytes_also_when_frames_are_lost() {
    for loss in [0, 5] {
        let mut net = Net::new();
        let listener = net.nodes[WORLD].listen(80);
        let world = net.nodes[WORLD].address;
        let mut ports = Vec::new();
        for node in [FIRST, SECOND_INNER] {
            let [client, server] = join(&mut net, node, world, 80, &listener);
            let Ok(Address::Inet(peer)) = protocol(&server).peer_address() else {
                panic!();
            };
            assert_eq!(peer.ip(), PUBLIC);
            ports.push(peer.port());
            net.loss = loss;
            transfer(&mut net, &client, &server, 300_000).unwrap();
            transfer(&mut net, &server, &client, 300_000).unwrap();
            net.loss = 0;
        }
        assert_ne!(ports[0], ports[1]);
        // They are not of those that programs of the router have.
        assert!(ports.iter().all(|port| !(32_768..61_000).contains(port)));
    }
}

#[test]
fn published_ports_are_served_and_withdrawn() {
    let mut net = Net::new();
    let listener = net.nodes[FIRST].listen(80);
    let world = net.nodes[WORLD].address;
    net.publish(Protocol::Tcp, 8080, (FIRST, 80), 7).unwrap();
    // The router's programs and a published port do not have the same one.
    let taken = net.nodes[ROUTER].socket(SocketType::Stream, 0);
    assert_eq!(bind(&taken, 8080), Err(Errno::EADDRINUSE));
    assert_eq!(bind(&taken, 8081), Ok(()));
    let again = net.publish(Protocol::Tcp, 8081, (FIRST, 80), 7);
    assert_eq!(again, Err(Errno::EADDRINUSE));
    let again = net.publish(Protocol::Tcp, 8080, (SECOND_INNER, 80), 8);
    assert_eq!(again, Err(Errno::EADDRINUSE));
    let elsewhere = SocketAddrV4::new(world, 8082);
    let to = SocketAddrV4::new(net.nodes[FIRST].address, 80);
    let refused = net.router().publish(Protocol::Tcp, elsewhere, to, 7);
    assert_eq!(refused, Err(Errno::EADDRNOTAVAIL));

    let [client, server] = join(&mut net, WORLD, PUBLIC, 8080, &listener);
    let peer = protocol(&server).peer_address().unwrap();
    assert_eq!(peer, protocol(&client).local_address(), "seen as it is");
    net.loss = 3;
    transfer(&mut net, &client, &server, 200_000).unwrap();
    transfer(&mut net, &server, &client, 200_000).unwrap();
    net.loss = 0;
    // Another one's ports have nothing to do with it.
    net.router().withdraw(8);
    transfer(&mut net, &server, &client, 100).unwrap();
    // In the middle of a transfer.
    send(&client, None, &[1; 50_000]).unwrap();
    net.carry();
    net.router().withdraw(7);
    assert_eq!(net.router().nat_counts().0, 0);
    let ended = transfer(&mut net, &client, &server, 400_000);
    assert_eq!(ended, Err(Errno::ECONNRESET));
    let next = net.nodes[WORLD].socket(SocketType::Stream, 0);
    assert_eq!(connect(&next, PUBLIC, 8080), Err(Errno::EINPROGRESS));
    net.settle();
    assert_eq!(receive(&next), Err(Errno::ECONNREFUSED));
    let freed = net.nodes[ROUTER].socket(SocketType::Stream, 0);
    assert_eq!(bind(&freed, 8080), Ok(()));
}

#[test]
fn a_published_port_of_udp_answers_by_its_own_name() {
    let mut net = Net::new();
    net.publish(Protocol::Udp, 5353, (FIRST, 53), 1).unwrap();
    let (client, server) = (net.nodes[WORLD].udp(1000), net.nodes[FIRST].udp(53));
    for data in [&[1; 10][..], &[2; 5000]] {
        send(&client, Some(&inet(PUBLIC, 5353)), data).unwrap();
        net.settle();
        let (got, from) = receive(&server).unwrap();
        let world = net.nodes[WORLD].address;
        assert!(got == data);
        assert_eq!(from, Some(inet(world, 1000)));
        send(&server, from.as_ref(), data).unwrap();
        net.settle();
        assert!(receive(&client) == Ok((data.to_vec(), Some(inet(PUBLIC, 5353)))));
    }
    // A server that is gone refuses in the router's name.
    drop(server);
    connect(&client, PUBLIC, 5353).unwrap();
    send(&client, None, b"?").unwrap();
    net.settle();
    assert_eq!(receive(&client), Err(Errno::ECONNREFUSED));
}

/// By the router's addresses inside and outside, a sibling's port and one's own.
#[test]
fn published_ports_are_reached_from_inside() {
    for to in [GATEWAY, PUBLIC] {
        for client in [FIRST, SECOND_INNER] {
            let mut net = Net::new();
            net.publish(Protocol::Tcp, 8080, (FIRST, 80), 7).unwrap();
            let listener = net.nodes[FIRST].listen(80);
            let [client, server] = join(&mut net, client, to, 8080, &listener);
            let Ok(Address::Inet(peer)) = protocol(&server).peer_address() else {
                panic!();
            };
            assert_eq!(peer.ip(), GATEWAY);
            transfer(&mut net, &client, &server, 50_000).unwrap();
            transfer(&mut net, &server, &client, 50_000).unwrap();
        }
    }
}

/// By the loop and by each of the router's addresses; what it has is what it asked for.
#[test]
fn the_router_itself_reaches_a_published_port() {
    for to in [
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::new(127, 1, 2, 3),
        GATEWAY,
        PUBLIC,
    ] {
        let mut net = Net::new();
        net.publish(Protocol::Tcp, 8080, (FIRST, 80), 7).unwrap();
        let listener = net.nodes[FIRST].listen(80);
        let [client, server] = join(&mut net, ROUTER, to, 8080, &listener);
        let Ok(Address::Inet(peer)) = protocol(&server).peer_address() else {
            panic!();
        };
        assert_eq!(peer.ip(), GATEWAY, "the loop is nobody out there");
        assert_eq!(protocol(&client).peer_address(), Ok(inet(to, 8080)));
        net.loss = 3;
        transfer(&mut net, &client, &server, 200_000).unwrap();
        transfer(&mut net, &server, &client, 200_000).unwrap();
        net.loss = 0;
        // Both ends are closed in turn, and the flow has seen it.
        drop(client);
        net.settle();
        assert_eq!(receive(&server), Ok((Vec::new(), None)));
        drop(server);
        net.settle();
        assert_eq!(net.nodes[ROUTER].count("Tcp", "OutRsts"), 0);
        assert_eq!(net.router().nat_counts().0, 1);
        TIME.set(time() + 121 * SECOND);
        let [client, server] = join(&mut net, ROUTER, to, 8080, &listener);
        assert_eq!(net.router().nat_counts().0, 1, "the one before is over");
        // A connection that nobody uses hears at once that its port is gone, and others do not.
        let other = net.nodes[WORLD].listen(8080);
        let world = net.nodes[WORLD].address;
        let [elsewhere, far] = join(&mut net, ROUTER, world, 8080, &other);
        net.router().withdraw(7);
        assert_eq!(receive(&client), Err(Errno::ECONNRESET));
        transfer(&mut net, &elsewhere, &far, 1000).unwrap();
        let next = net.nodes[ROUTER].socket(SocketType::Stream, 0);
        let _ = connect(&next, to, 8080);
        assert_eq!(receive(&next), Err(Errno::ECONNREFUSED));
        drop(server);
        net.settle();
    }
}

/// The loop's packets may be longer than those of the wire behind.
#[test]
fn the_routers_own_segments_fit_the_link_behind() {
    let mut net = Net::new();
    net.publish(Protocol::Tcp, 8080, (FIRST, 80), 7).unwrap();
    let listener = net.nodes[FIRST].listen(80);
    let inner = net.nodes[ROUTER].cards[0].index;
    net.router().set_mtu(inner, 1000).unwrap();
    net.filter = Some(Box::new(|_, frame| {
        // The option that comes first in a SYN: what the sender takes.
        let is_syn = frame[12..14] == [8, 0] && frame[23] == 6 && frame[47] == 2;
        assert!(
            !is_syn || frame[54..58] == [2, 4, 3, 192],
            "{:?}",
            &frame[54..]
        );
        false
    }));
    let [client, server] = join(&mut net, ROUTER, Ipv4Addr::LOCALHOST, 8080, &listener);
    transfer(&mut net, &client, &server, 50_000).unwrap();
    // The link becomes narrower.
    net.router().set_mtu(inner, 700).unwrap();
    net.filter = Some(Box::new(|_, frame| frame.len() > 714));
    transfer(&mut net, &client, &server, 50_000).unwrap();
}

#[test]
fn a_connection_through_the_loop_fails_as_its_host_says() {
    let mut net = Net::new();
    net.publish(Protocol::Tcp, 8080, (FIRST, 80), 7).unwrap();
    let client = net.nodes[ROUTER].socket(SocketType::Stream, 0);
    let began = connect(&client, Ipv4Addr::LOCALHOST, 8080);
    assert_eq!(began, Err(Errno::EINPROGRESS));
    net.settle();
    assert_eq!(receive(&client), Err(Errno::ECONNREFUSED), "no listener");
    // Nobody answers for the address at all.
    net.filter = Some(Box::new(|wire, _| wire == INNER));
    TIME.set(time() + 600 * SECOND);
    let client = net.nodes[ROUTER].socket(SocketType::Stream, 0);
    let _ = connect(&client, GATEWAY, 8080);
    let mut result = Err(Errno::EAGAIN);
    net.run(|_| {
        result = receive(&client);
        result != Err(Errno::EAGAIN)
    });
    assert_eq!(result, Err(Errno::EHOSTUNREACH));
}

#[test]
fn the_router_itself_talks_to_a_published_port_of_udp() {
    for to in [Ipv4Addr::LOCALHOST, GATEWAY, PUBLIC] {
        let mut net = Net::new();
        net.publish(Protocol::Udp, 5353, (FIRST, 53), 1).unwrap();
        let (client, server) = (net.nodes[ROUTER].udp(1000), net.nodes[FIRST].udp(53));
        for data in [&[1; 10][..], &[2; 5000]] {
            send(&client, Some(&inet(to, 5353)), data).unwrap();
            net.settle();
            let (got, from) = receive(&server).unwrap();
            assert!(got == data);
            let Some(Address::Inet(peer)) = from else {
                panic!();
            };
            assert_eq!(peer.ip(), GATEWAY);
            send(&server, from.as_ref(), data).unwrap();
            net.settle();
            assert!(receive(&client) == Ok((data.to_vec(), Some(inet(to, 5353)))));
        }
        // Another port of the loop is the router's own, and a server that is gone refuses.
        let own = net.nodes[ROUTER].udp(5354);
        send(&client, Some(&inet(to, 5354)), b"own").unwrap();
        assert_eq!(receive(&own).unwrap().0, b"own");
        drop(server);
        connect(&client, to, 5353).unwrap();
        send(&client, None, b"?").unwrap();
        net.settle();
        assert_eq!(receive(&client), Err(Errno::ECONNREFUSED));
        // Who has lost its program out here is told by the address that it knows.
        let server = net.nodes[FIRST].udp(53);
        let gone = net.nodes[ROUTER].udp(1001);
        send(&gone, Some(&inet(to, 5353)), b"!").unwrap();
        net.settle();
        let Some(Address::Inet(from)) = receive(&server).unwrap().1 else {
            panic!();
        };
        drop(gone);
        connect(&server, GATEWAY, from.port()).unwrap();
        send(&server, None, b"?").unwrap();
        net.settle();
        assert_eq!(receive(&server), Err(Errno::ECONNREFUSED));
        net.router().withdraw(1);
        assert_eq!(net.router().nat_counts().0, 0);
    }
}

/// A port of the loop is its own programs' only, and what a flow lets in opens no other door.
#[test]
fn what_is_published_on_the_loop_is_nobody_elses() {
    let mut net = Net::new();
    let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
    let to = SocketAddrV4::new(net.nodes[FIRST].address, 80);
    net.router().publish(Protocol::Tcp, at, to, 7).unwrap();
    let listener = net.nodes[FIRST].listen(80);
    for (node, to) in [(WORLD, PUBLIC), (SECOND_INNER, GATEWAY), (ROUTER, GATEWAY)] {
        let client = net.nodes[node].socket(SocketType::Stream, 0);
        let _ = connect(&client, to, 8080);
        net.settle();
        assert_eq!(receive(&client), Err(Errno::ECONNREFUSED));
    }
    let [client, server] = join(&mut net, ROUTER, Ipv4Addr::LOCALHOST, 8080, &listener);
    let (Address::Inet(own), Ok(Address::Inet(seen))) = (
        protocol(&client).local_address(),
        protocol(&server).peer_address(),
    ) else {
        panic!();
    };
    drop(client);
    drop(server);
    drop(listener);
    net.settle();
    // A service of the loop has the port now that the client had.
    let wait = time() + 61 * SECOND;
    net.run(|_| time() >= wait);
    TIME.set(wait);
    net.nodes.iter().for_each(|node| node.host.run_timers());
    let service = net.nodes[ROUTER].listen(own.port());
    let guest = net.nodes[FIRST].socket(SocketType::Stream, 0);
    bind(&guest, 80).unwrap();
    let _ = connect(&guest, GATEWAY, seen.port());
    net.settle();
    assert_eq!(receive(&guest), Err(Errno::ECONNREFUSED));
    assert!(accept(&service).is_none());
}

#[test]
fn the_mtu_of_a_path_is_discovered_through_a_router() {
    // From inside to a link that is narrower, by datagrams that must not be cut.
    let mut net = Net::new();
    let (client, server) = (net.nodes[FIRST].udp(5000), net.nodes[WORLD].udp(53));
    let world = net.nodes[WORLD].address;
    let narrow = net.nodes[ROUTER].cards[1].index;
    net.router().set_mtu(narrow, 1000).unwrap();
    connect(&client, world, 53).unwrap();
    // IP_MTU_DISCOVER: IP_PMTUDISC_DO.
    protocol(&client)
        .set_option(0, 10, &2i32.to_ne_bytes())
        .unwrap();
    send(&client, None, &[1; 1400]).unwrap();
    net.settle();
    assert_eq!(receive(&server), Err(Errno::EAGAIN));
    assert_eq!(receive(&client), Err(Errno::EMSGSIZE));
    assert_eq!(send(&client, None, &[1; 1400]), Err(Errno::EMSGSIZE));
    assert_eq!(send(&client, None, &[1; 972]), Ok(972));
    net.settle();
    assert_eq!(receive(&server).unwrap().0.len(), 972);
    // What may be cut is.
    protocol(&client)
        .set_option(0, 10, &0i32.to_ne_bytes())
        .unwrap();
    send(&client, None, &[1; 1400]).unwrap();
    net.settle();
    assert_eq!(receive(&server).unwrap().0.len(), 1400);
    let cut = net.nodes[ROUTER].count("Ip", "FragCreates");
    assert_eq!(cut, 2);
    // A connection finds it, too, through the router's own errors.
    let listener = net.nodes[WORLD].listen(80);
    let [client, server] = join(&mut net, SECOND_INNER, world, 80, &listener);
    transfer(&mut net, &client, &server, 100_000).unwrap();
}

/// By errors of a router further on, which come to the translated address: the client of a
/// published port hears of the narrow link inside.
#[test]
fn the_mtu_of_a_path_is_discovered_behind_a_published_port() {
    let mut net = Net::new();
    net.publish(Protocol::Tcp, 8080, (FIRST, 80), 1).unwrap();
    let listener = net.nodes[FIRST].listen(80);
    let [client, server] = join(&mut net, WORLD, PUBLIC, 8080, &listener);
    let narrow = net.nodes[ROUTER].cards[0].index;
    net.router().set_mtu(narrow, 700).unwrap();
    transfer(&mut net, &client, &server, 100_000).unwrap();
}

#[test]
fn a_neighbour_that_does_not_answer_is_told_of() {
    for is_plain in [false, true] {
        let mut net = if is_plain { Net::plain() } else { Net::new() };
        let client = net.nodes[FIRST].udp(5000);
        connect(&client, Ipv4Addr::new(192, 0, 2, 77), 9).unwrap();
        // IP_RECVERR.
        protocol(&client)
            .set_option(0, 11, &1i32.to_ne_bytes())
            .unwrap();
        send(&client, None, b"?").unwrap();
        net.run(|_| false);
        assert_eq!(receive(&client), Err(Errno::EHOSTUNREACH), "{is_plain}");
    }
}

#[test]
fn routes_that_are_not_there_or_forbid_are_told_of() {
    let mut net = Net::new();
    let ping = net.nodes[FIRST].icmp();
    for (last, kind, code) in [
        (1, None, Some(0)),
        (2, Some(Kind::Unreachable), Some(1)),
        (3, Some(Kind::Prohibit), Some(13)),
        (4, Some(Kind::Blackhole), None),
    ] {
        let to = Ipv4Addr::new(203, 0, 113, last);
        if let Some(kind) = kind {
            let route = Route {
                destination: Prefix::of(to, 32).unwrap(),
                kind,
                interface: 0,
                gateway: None,
                source: None,
                metric: 0,
                protocol: 3,
                scope: 0,
            };
            net.router().add_route(route, Insert::Exclusive).unwrap();
        }
        send(&ping, Some(&inet(to, 0)), &echo(8, 1, 1)).unwrap();
        net.settle();
        let answers: Vec<_> = heard(&ping)
            .iter()
            .map(|(from, message)| (*from, message[0], message[1]))
            .collect();
        let expected: Vec<_> = code.map(|code| (GATEWAY, 3, code)).into_iter().collect();
        assert_eq!(answers, expected);
    }
    assert_eq!(net.router().nat_counts().0, 0, "nothing is kept of them");
}

#[test]
fn only_what_is_translated_passes_unless_forwarding_is_on() {
    let mut net = Net::new();
    net.nodes[ROUTER].set("ipv4/ip_forward", "0");
    net.publish(Protocol::Udp, 53, (FIRST, 53), 1).unwrap();
    let (client, server) = (net.nodes[FIRST].udp(5000), net.nodes[WORLD].udp(53));
    let service = net.nodes[FIRST].udp(53);
    let (inside, world) = (net.nodes[FIRST].address, net.nodes[WORLD].address);
    send(&client, Some(&inet(world, 53)), b"out").unwrap();
    net.settle();
    assert_eq!(receive(&server).unwrap().0, b"out");
    send(&server, Some(&inet(PUBLIC, 53)), b"in").unwrap();
    net.settle();
    assert_eq!(receive(&service).unwrap().0, b"in");
    // By its own address, which is on the wire for once, it is reached by nobody.
    net.hides = false;
    net.nodes[WORLD].default_route(PUBLIC);
    send(&server, Some(&inet(inside, 53)), b"in").unwrap();
    net.settle();
    assert_eq!(receive(&service), Err(Errno::EAGAIN));
    // That something is translated has nothing else pass.
    let mut net = Net::plain();
    net.nodes[ROUTER].set("ipv4/ip_forward", "0");
    let other = Prefix::of(Ipv4Addr::new(172, 16, 0, 0), 12).unwrap();
    net.router().masquerade(other).unwrap();
    let (client, server) = (net.nodes[FIRST].udp(5000), net.nodes[WORLD].udp(53));
    send(&client, Some(&inet(world, 53)), b"out").unwrap();
    net.settle();
    assert_eq!(receive(&server), Err(Errno::EAGAIN));
    let count = |name| net.nodes[ROUTER].count("Ip", name);
    assert_eq!((count("ForwDatagrams"), count("InAddrErrors")), (0, 1));
}

#[test]
fn without_translation_packets_pass_as_they_are() {
    let mut net = Net::plain();
    let (client, server) = (net.nodes[FIRST].udp(5000), net.nodes[WORLD].udp(53));
    let (inside, world) = (net.nodes[FIRST].address, net.nodes[WORLD].address);
    net.nodes[WORLD].default_route(PUBLIC);
    for length in [1, 1472, 8000] {
        send(&client, Some(&inet(world, 53)), &vec![1; length]).unwrap();
        net.settle();
        let (got, from) = receive(&server).unwrap();
        assert_eq!((got.len(), from), (length, Some(inet(inside, 5000))));
        send(&server, Some(&inet(inside, 5000)), &vec![1; length]).unwrap();
        net.settle();
        assert_eq!(receive(&client).unwrap().0.len(), length);
    }
    // Fragments are cut again where a link is narrower.
    let narrow = net.nodes[ROUTER].cards[1].index;
    net.router().set_mtu(narrow, 577).unwrap();
    send(&client, Some(&inet(world, 53)), &[7; 8000]).unwrap();
    net.settle();
    assert_eq!(receive(&server).unwrap().0, [7; 8000]);
    assert_eq!(net.router().nat_counts().0, 0);
}

/// A packet of UDP in a frame for a host.
fn datagram(to_mac: [u8; 6], from: [u8; 4], to: Ipv4Addr, ttl: u8) -> Frame {
    let header = ip::ipv4::Header {
        tos: 0,
        id: 1,
        dont_fragment: false,
        more_fragments: false,
        offset: 0,
        ttl,
        protocol: 17,
        source: from.into(),
        destination: to,
    };
    let datagram = [3, 232, 0, 53, 0, 9, 0, 0, b'x'];
    let link = [&to_mac[..], &[2, 0, 0, 0, 9, 9, 8, 0]].concat();
    Frame {
        data: [&link[..], &header.emit(9), &datagram].concat(),
    }
}

#[test]
fn what_must_not_pass_does_not() {
    let mut net = Net::new();
    net.nodes[ROUTER].default_route(net.nodes[WORLD].address);
    let (inside, outside) = (mac(INNER, GATEWAY), mac(OUTER, PUBLIC));
    let world = net.nodes[WORLD].address;
    let first = net.nodes[FIRST].address;
    let cases: [(usize, [u8; 6], [u8; 4], Ipv4Addr); 15] = [
        // Into the hidden network from outside, also in the name of one who is in it.
        (1, outside, [192, 0, 2, 9], first),
        (1, outside, [10, 88, 0, 3], first),
        (1, outside, [10, 88, 0, 3], Ipv4Addr::new(203, 0, 113, 1)),
        // In the names of the router, of nobody, of a link.
        (0, inside, GATEWAY.octets(), world),
        (0, inside, PUBLIC.octets(), world),
        (0, inside, [127, 0, 0, 1], world),
        (0, inside, [0, 0, 0, 0], world),
        (0, inside, [224, 0, 0, 1], world),
        (0, inside, [10, 88, 0, 255], world),
        (0, inside, [169, 254, 0, 1], world),
        // To those who are nobody's or everybody's.
        (0, inside, [10, 88, 0, 2], Ipv4Addr::new(169, 254, 0, 1)),
        (0, inside, [10, 88, 0, 2], Ipv4Addr::new(127, 0, 0, 1)),
        (0, inside, [10, 88, 0, 2], Ipv4Addr::new(192, 0, 2, 255)),
        (0, inside, [10, 88, 0, 2], Ipv4Addr::new(240, 0, 0, 1)),
        // In a frame to everybody.
        (0, [0xff; 6], [10, 88, 0, 2], world),
    ];
    let server = net.nodes[WORLD].udp(53);
    for (card, mac, from, to) in cases {
        let index = net.nodes[ROUTER].cards[card].index;
        net.router()
            .receive(index, &datagram(mac, from, to, 64).data);
        for card in &net.nodes[ROUTER].cards {
            assert_eq!(card.end.take(), Vec::<Vec<u8>>::new(), "{from:?} {to}");
        }
    }
    let index = net.nodes[ROUTER].cards[0].index;
    let good = datagram(inside, [10, 88, 0, 2], world, 2);
    net.router().receive(index, &good.data);
    net.settle();
    assert_eq!(receive(&server).unwrap().0, b"x");
}

/// Packets of two hosts that may be cut further on have different numbers in the router's name.
#[test]
fn numbers_of_packets_do_not_meet() {
    let net = Net::new();
    let index = net.nodes[ROUTER].cards[0].index;
    let mut numbers = Vec::new();
    for last in [2, 3, 2, 3] {
        let world = net.nodes[WORLD].address;
        let frame = datagram(mac(INNER, GATEWAY), [10, 88, 0, last], world, 64);
        net.router().receive(index, &frame.data);
        // The first waits until it is known where the world is.
        let card = &net.nodes[ROUTER].cards[1];
        let sent = card.end.take();
        for data in &sent {
            if data[12..14] == [8, 0] {
                numbers.push([data[18], data[19]]);
            } else {
                let index = net.nodes[WORLD].cards[0].index;
                net.nodes[WORLD].host.receive(index, data);
                for data in net.nodes[WORLD].cards[0].end.take() {
                    net.router().receive(card.index, &data);
                }
            }
        }
    }
    numbers.extend(
        net.nodes[ROUTER].cards[1]
            .end
            .take()
            .iter()
            .map(|data| [data[18], data[19]]),
    );
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}

#[test]
fn one_that_takes_all_flows_leaves_some_to_others() {
    let mut net = Net::new();
    let index = net.nodes[ROUTER].cards[0].index;
    let gateway = mac(INNER, GATEWAY);
    let world = net.nodes[WORLD].address;
    for port in 0..2 * MOST_FLOWS as u32 {
        let mut frame = datagram(gateway, [10, 88, 0, 3], world, 64);
        let word = (1024 + port % 60_000) as u16;
        frame.data[34..36].copy_from_slice(&word.to_be_bytes());
        net.router().receive(index, &frame.data);
        net.nodes[ROUTER].cards[1].end.take();
    }
    let (flows, counts) = net.router().nat_counts();
    assert!(flows <= MOST_FLOWS / 5 + 1, "{flows}");
    assert!(counts.evicted > 0 && counts.refused == 0, "{counts:?}");
    let listener = net.nodes[WORLD].listen(80);
    let [client, server] = join(&mut net, FIRST, world, 80, &listener);
    transfer(&mut net, &client, &server, 10_000).unwrap();
}

#[test]
fn an_address_that_goes_ends_what_came_from_it() {
    let mut net = Net::new();
    let listener = net.nodes[WORLD].listen(80);
    let world = net.nodes[WORLD].address;
    let [client, server] = join(&mut net, FIRST, world, 80, &listener);
    let outer = net.nodes[ROUTER].cards[1].index;
    let other = Ipv4Addr::new(192, 0, 2, 2);
    net.router().remove_address(outer, PUBLIC, None).unwrap();
    assert_eq!(net.router().nat_counts().0, 0);
    net.router().add_address(outer, own(other), false).unwrap();
    // The connection is another one to the server, which resets it.
    send(&client, None, b"still there?").unwrap();
    net.settle();
    assert_eq!(receive(&client), Err(Errno::ECONNRESET));
    assert_eq!(receive(&server), Err(Errno::EAGAIN));
    let [client, server] = join(&mut net, FIRST, world, 80, &listener);
    transfer(&mut net, &client, &server, 1000).unwrap();
    // One who has an inner address after another has nothing of its flows.
    net.router().forget(net.nodes[FIRST].address);
    assert_eq!(net.router().nat_counts().0, 0);
}

/// The router that garbage goes to: one for all cases, as a router in the world.
fn victim() -> &'static Node {
    static VICTIM: LazyLock<Node> = LazyLock::new(|| {
        let node = Node::new(&[(INNER, GATEWAY), (OUTER, PUBLIC)]);
        node.set("ipv4/ip_forward", "1");
        node.host.masquerade(hidden()).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, 2), 80);
        for kind in [Protocol::Tcp, Protocol::Udp] {
            let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80);
            node.host.publish(kind, at, to, 1).unwrap();
        }
        node.default_route(Ipv4Addr::new(192, 0, 2, 9));
        // Whom packets go to is known: they do go.
        for (card, ip) in [(0, to.ip().octets()), (1, [192, 0, 2, 9])] {
            let key = ip::neighbour::Key {
                interface: node.cards[card].index,
                address: std::net::IpAddr::from(ip),
            };
            let state = ip::neighbour::State::Permanent;
            let set = node.host.set_neighbour(key, [2; 6], state, (true, false));
            set.unwrap();
        }
        node
    });
    &VICTIM
}

proptest! {
    /// Frames with right headers of IP around anything, from both sides: what leaves is right, and
    /// nothing is in the name of who is hidden.
    #[test]
    fn no_packet_is_too_strange(
        payload in proptest::collection::vec(any::<u8>(), 0..120),
        quoted in proptest::collection::vec(any::<u8>(), 0..60),
        (card, from, to, shape) in (0..2usize, 0..3usize, 0..4usize, 0..6u8),
        (protocol, fragment, ttl, kind) in (0..4usize, 0..5usize, 0..4u8, 0..14u8),
    ) {
        let router = victim();
        let inner = [[10, 88, 0, 2], [10, 88, 0, 3], [10, 88, 1, 9]];
        let outer = [[192, 0, 2, 9], [192, 0, 2, 8], [198, 51, 100, 1]];
        let from = [inner, outer][card][from];
        let to = [outer[from[3] as usize % 3], PUBLIC.octets(), GATEWAY.octets(), inner[0]][to];
        let header = |protocol: usize, fragment: usize, from: [u8; 4], to: [u8; 4]| ip::ipv4::Header {
            tos: 0,
            id: 7,
            dont_fragment: fragment == 1,
            more_fragments: fragment == 2,
            offset: [0, 0, 0, 8, 64][fragment],
            ttl: [0, 1, 2, 64][usize::from(ttl)],
            protocol: [1, 6, 17, 47][protocol],
            source: from.into(),
            destination: to.into(),
        };
        let mut payload = payload;
        if fragment == 2 {
            payload.truncate(payload.len() & !7);
        }
        if shape > 1 && payload.len() >= 20 {
            // Ports that are published, and a header of TCP that is whole.
            payload[2..4].copy_from_slice(&[0, 80]);
            payload[12] = 0x50;
        }
        if shape > 3 && protocol == 0 {
            // An error that quotes what may be of a flow.
            let quote = header(fragment % 3, 0, to, from);
            let quote = [&quote.emit(quoted.len()), &quoted[..]].concat();
            payload = ip::icmp::error_message(kind, 0, 0, &[&quote]).unwrap();
        } else if protocol == 0 && payload.len() >= 8 {
            payload[0] = kind & 8;
            payload[2..4].fill(0);
            let sum = ip::checksum(&payload).to_be_bytes();
            payload[2..4].copy_from_slice(&sum);
        }
        let header = header(protocol, fragment, from, to);
        let macs = [mac(INNER, GATEWAY), mac(OUTER, PUBLIC)];
        let link = [&macs[card][..], &[2, 0, 0, 0, 9, 9, 8, 0]].concat();
        let data = [&link[..], &header.emit(payload.len()), &payload].concat();
        router.host.receive(router.cards[card].index, &data);
        for card in &router.cards {
            for sent in card.end.take() {
                prop_assert!(sent.len() <= 1514);
                if sent[12..14] == [8, 0] {
                    let packet = ip::ipv4::Packet::parse(&sent[14..]);
                    prop_assert!(packet.is_ok());
                    // The router itself answers to all of its names.
                    let from = packet.unwrap().header.source;
                    let leaks = hidden().contains(from) && from != GATEWAY;
                    prop_assert!(card.wire == INNER || !leaks);
                }
            }
        }
        prop_assert!(router.host.nat_counts().0 <= MOST_FLOWS);
    }
}
