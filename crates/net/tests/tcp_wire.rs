//! TCP sockets of two hosts on one wire that loses, repeats and reorders frames, in virtual time.

mod common;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use abi::errno::Errno;
use common::connections::{
    MILLISECOND, Random, SECOND, TCP, Trouble, Wire, accept, begin, bytes, connect_result,
    exchange, read, time,
};
use common::wire::{Machine, inet, own};
use common::{NOW, call, forged, protocol};
use fs::File;
use fs::poll::Events;
use ip::route::{Insert, Kind, Prefix, Route};
use linux_raw_sys::net as sys;
use net::{Address, Linger, MsgFlags, OutgoingMessage, Socket};

#[test]
fn bytes_go_both_ways_over_a_clean_wire() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let files = wire.connect(&listener, 80);
    assert_eq!(wire.machines[0].states(), [1]);
    assert_eq!(wire.machines[1].states(), [1, 10]);
    let peer = protocol(&files[1]).peer_address().unwrap();
    assert_eq!(peer, protocol(&files[0]).local_address());
    exchange(&mut wire, &files, [300_000, 200_000], 1);
    let info = protocol(&files[0]).option(TCP, sys::TCP_INFO).unwrap();
    let total_retrans = u32::from_ne_bytes(info[100..104].try_into().unwrap());
    assert_eq!(total_retrans, 0, "nothing is sent again on a clean wire");
    drop(files);
    wire.run(61 * SECOND);
    assert_eq!(wire.machines[0].states(), []);
    assert_eq!(wire.machines[1].states(), [10]);
    assert_eq!(wire.machines[0].host.deadline(), None, "no timer is left");
    assert_eq!(wire.machines.each_ref().map(Machine::pages), [0, 0]);
}

#[test]
fn bytes_come_whole_over_a_bad_wire() {
    for seed in 0..20 {
        let trouble = Trouble {
            loss: seed % 4 * 7,
            duplication: seed % 3 * 5,
            reordering: seed % 5 * 6,
            corruption: seed % 2 * 3,
        };
        let mut wire = Wire::new(seed, trouble);
        let listener = wire.machines[1].listen(80, 4);
        let files = wire.connect(&listener, 80);
        exchange(&mut wire, &files, [120_000, 80_000], seed);
        drop(files);
        wire.run(400 * SECOND);
        assert_eq!(wire.machines[0].states(), [], "seed {seed}");
        assert_eq!(wire.machines[1].states(), [10], "seed {seed}");
        assert_eq!(wire.machines.each_ref().map(Machine::pages), [0, 0]);
    }
}

#[test]
fn a_closed_port_refuses_and_a_silent_host_times_out() {
    let mut wire = Wire::clean();
    let client = wire.machines[0].tcp();
    begin(&client, wire.machines[1].address, 81);
    assert_eq!(
        wire.until(|_| connect_result(&client)),
        Err(Errno::ECONNREFUSED)
    );
    // A neighbour that nobody is.
    let client = wire.machines[0].tcp();
    begin(&client, Ipv4Addr::new(10, 0, 0, 77), 80);
    assert_eq!(
        wire.until(|_| connect_result(&client)),
        Err(Errno::EHOSTUNREACH)
    );
    // One that loses all that comes.
    wire.filter = Some(Rc::new(|from, frame| from == 0 && frame[12..14] == [8, 0]));
    let began = time();
    let client = wire.machines[0].tcp();
    begin(&client, wire.machines[1].address, 80);
    assert_eq!(
        wire.until(|_| connect_result(&client)),
        Err(Errno::ETIMEDOUT)
    );
    let patience = (time() - began) / SECOND;
    assert!((126..130).contains(&patience), "{patience} s, Linux: 127 s");
    let far = inet(Ipv4Addr::new(192, 0, 2, 1), 80);
    let client = wire.machines[0].tcp();
    let result = call(|caller| protocol(&client).connect(caller, &far, NOW));
    assert_eq!(result, Err(Errno::ENETUNREACH));
    assert_eq!(wire.machines[0].states(), []);
}

/// A program that begins connections and gives up leaves nothing behind.
#[test]
fn a_connection_that_is_given_up_is_forgotten_at_once() {
    let mut wire = Wire::clean();
    wire.filter = Some(Rc::new(|_, frame| frame[12..14] == [8, 0]));
    for _ in 0..100 {
        let client = wire.machines[0].tcp();
        begin(&client, wire.machines[1].address, 80);
    }
    assert_eq!(wire.machines[0].states(), []);
    wire.run(100 * SECOND);
    assert_eq!(wire.machines[0].host.deadline(), None);
}

#[test]
fn a_listener_that_is_full_takes_more_when_one_is_accepted() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 1);
    let address = wire.machines[1].address;
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let client = wire.machines[0].tcp();
            begin(&client, address, 80);
            client
        })
        .collect();
    wire.run(SECOND / 2);
    let accepted: Vec<_> = (0..2).filter_map(|_| accept(&listener)).collect();
    assert_eq!(accepted.len(), 2, "one more than the backlog");
    for client in &clients {
        client.write(b"hello").unwrap();
    }
    // A handshake by a cookie is opened by what comes after it.
    let more = wire.until(|_| accept(&listener));
    wire.run(10 * SECOND);
    assert_eq!(read(&more), Ok(b"hello".to_vec()));
    drop(listener);
    wire.run(200 * SECOND);
    // The one that nobody accepted was reset.
    let failed = |client: &&Arc<File>| read(client) == Err(Errno::ECONNRESET);
    assert_eq!(clients.iter().filter(failed).count(), 1);
}

#[test]
fn a_flood_of_syns_leaves_the_listener_serving() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 16);
    // The first connection teaches both who is where.
    let first = wire.connect(&listener, 80);
    let victim = &wire.machines[1];
    let mut answers = 0;
    for n in 0..20_000u32 {
        let [_, a, b, c] = n.to_be_bytes();
        let header = tcp::Header {
            seq: tcp::Seq(n.wrapping_mul(77)),
            flags: tcp::Flags::SYN,
            window: 1000,
            ..tcp::Header::default()
        };
        // From the link itself, so that answers ask for neighbours that there are not.
        let from = [10, 0, 0, 3 + (c % 200)];
        let frame = forged(
            (from, 1000 + u16::from_be_bytes([a, b])),
            (victim.address, 80),
            &header,
            &[],
        );
        victim.host.receive(victim.index, &frame.data);
        answers += victim.end.take().len();
    }
    assert!(answers > 0);
    assert!(victim.states().len() < 40, "nothing has grown");
    assert!(victim.pages() < 40);
    let second = wire.connect(&listener, 80);
    exchange(&mut wire, &second, [10_000, 10_000], 3);
    drop((first, second, listener));
    wire.run(400 * SECOND);
    assert_eq!(
        wire.machines.each_ref().map(Machine::states),
        [vec![], vec![]]
    );
    assert_eq!(wire.machines[1].host.deadline(), None);
}

#[test]
fn unread_bytes_and_lingering_for_no_time_reset_the_peer() {
    for lingers in [false, true] {
        let mut wire = Wire::clean();
        let listener = wire.machines[1].listen(80, 4);
        let [client, server] = wire.connect(&listener, 80);
        if lingers {
            let options = server.ops_as::<Socket>().unwrap().options();
            options.set_linger(Linger {
                on: true,
                seconds: 0,
            });
        } else {
            client.write(b"unread").unwrap();
            wire.run(SECOND);
        }
        drop(server);
        wire.run(SECOND);
        assert!(client.poll(None).contains(Events::HUP | Events::ERR));
        assert_eq!(read(&client), Err(Errno::ECONNRESET));
        assert_eq!(read(&client), Ok(vec![]));
        assert_eq!(client.write(b"x"), Err(Errno::EPIPE));
        drop(client);
        assert_eq!(wire.machines[0].states(), []);
        assert_eq!(wire.machines[1].states(), [10]);
    }
}

/// Bytes for a socket that was closed are reset; those that it had sent still go.
#[test]
fn an_orphan_sends_what_it_has_and_resets_what_comes() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let [client, server] = wire.connect(&listener, 80);
    let data = bytes(1, 0, 60_000);
    assert_eq!(server.write(&data), Ok(60_000));
    drop(server);
    assert_eq!(wire.machines[1].states(), [4, 10], "FIN_WAIT1");
    wire.run(SECOND);
    let mut all = Vec::new();
    loop {
        match read(&client).unwrap() {
            data if data.is_empty() => break,
            data => all.extend(data),
        }
        wire.run(SECOND);
    }
    assert!(all == data);
    assert_eq!(wire.machines[1].states(), [5, 10], "FIN_WAIT2");
    client.write(b"nobody reads this").unwrap();
    wire.run(SECOND);
    assert_eq!(client.write(b"x"), Err(Errno::EPIPE));
    assert_eq!(wire.machines[1].states(), [10]);
}

#[test]
fn an_orphan_does_not_wait_for_ever() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let [client, _server] = wire.connect(&listener, 80);
    drop(client);
    wire.run(59 * SECOND);
    assert_eq!(wire.machines[0].states(), [5], "FIN_WAIT2");
    wire.run(2 * SECOND);
    assert_eq!(wire.machines[0].states(), []);
}

#[test]
fn orphans_and_waiting_connections_are_limited() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    wire.machines[0].set("ipv4/tcp_max_orphans", "2");
    wire.machines[0].set("ipv4/tcp_max_tw_buckets", "3");
    let mut servers = Vec::new();
    for _ in 0..6 {
        let [client, server] = wire.connect(&listener, 80);
        drop(client);
        wire.run(SECOND);
        servers.push(server);
    }
    assert_eq!(
        wire.machines[0].states(),
        [5, 5],
        "two may wait without a program"
    );
    let ends: Vec<_> = servers.iter().map(|server| read(server)).collect();
    assert_eq!(ends.iter().filter(|end| **end == Ok(vec![])).count(), 2);
    assert!(ends[2..].iter().all(|end| *end == Err(Errno::ECONNRESET)));
    drop(servers);
    wire.run(SECOND);
    assert_eq!(wire.machines[0].states(), [6, 6]);
    wire.machines[0].set("ipv4/tcp_max_orphans", "100");
    for _ in 0..4 {
        let [client, server] = wire.connect(&listener, 80);
        drop(client);
        wire.run(SECOND);
        drop(server);
        wire.run(SECOND);
    }
    assert_eq!(wire.machines[0].states(), [6, 6, 6]);
    wire.run(61 * SECOND);
    assert_eq!(wire.machines[0].states(), []);
}

#[test]
fn an_interface_that_was_down_and_an_address_that_was_away_come_back() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let [client, server] = wire.connect(&listener, 80);
    let index = wire.machines[0].index;
    wire.machines[0].host.set_up(index, false).unwrap();
    client.write(b"while it is down").unwrap();
    wire.run(5 * SECOND);
    assert_eq!(read(&server), Err(Errno::EAGAIN));
    wire.machines[0].host.set_up(index, true).unwrap();
    let got = wire.until(|_| read(&server).ok());
    assert_eq!(got, b"while it is down");
    // There is a way all the same, and another address for it.
    let address = wire.machines[0].address;
    let other = own(Ipv4Addr::new(10, 0, 0, 101));
    let everywhere = Route {
        destination: Prefix::of(Ipv4Addr::UNSPECIFIED, 0).unwrap(),
        kind: Kind::Unicast,
        interface: index,
        gateway: None,
        source: None,
        metric: 0,
        protocol: 3,
        scope: 253,
    };
    wire.machines[0]
        .host
        .add_address(index, other, false)
        .unwrap();
    wire.machines[0]
        .host
        .add_route(everywhere, Insert::Exclusive)
        .unwrap();
    wire.machines[0]
        .host
        .remove_address(index, address, Some(24))
        .unwrap();
    client.write(b"while it is away").unwrap();
    wire.run(5 * SECOND);
    assert_eq!(read(&server), Err(Errno::EAGAIN));
    wire.machines[0]
        .host
        .add_address(index, own(address), false)
        .unwrap();
    let got = wire.until(|_| read(&server).ok());
    assert_eq!(got, b"while it is away");
    // For ever, it is the end.
    wire.machines[0].host.set_up(index, false).unwrap();
    client.write(b"never").unwrap();
    let error = wire.until(|_| {
        client
            .poll(None)
            .contains(Events::ERR)
            .then(|| read(&client))
    });
    assert_eq!(error, Err(Errno::ETIMEDOUT));
}

#[test]
fn keep_alive_finds_a_peer_that_is_gone() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let [client, _server] = wire.connect(&listener, 80);
    for (option, value) in [
        (sys::TCP_KEEPIDLE, 10),
        (sys::TCP_KEEPINTVL, 5),
        (sys::TCP_KEEPCNT, 3i32),
    ] {
        protocol(&client)
            .set_option(TCP, option, &value.to_ne_bytes())
            .unwrap();
    }
    wire.run(100 * SECOND);
    assert_eq!(
        wire.machines[0].host.deadline(),
        None,
        "it was not asked for"
    );
    let options = client.ops_as::<Socket>().unwrap().options();
    options.set_int_option(sys::SO_KEEPALIVE, 1, false).unwrap();
    protocol(&client).on_socket_option(sys::SO_KEEPALIVE);
    wire.run(100 * SECOND);
    assert_eq!(client.poll(None) & Events::ERR, Events::empty());
    wire.filter = Some(Rc::new(|from, _| from == 1));
    wire.run(30 * SECOND);
    assert_eq!(read(&client), Err(Errno::ETIMEDOUT));
}

/// Memory that is refused delays, and loses nothing.
#[test]
fn little_memory_is_enough() {
    for seed in 0..4 {
        let trouble = Trouble {
            loss: 5,
            reordering: 20,
            ..Trouble::default()
        };
        let mut wire = Wire::new(seed, trouble);
        for machine in &wire.machines {
            machine.set("ipv4/tcp_mem", "4 6 8");
        }
        let listener = wire.machines[1].listen(80, 4);
        let files = wire.connect(&listener, 80);
        exchange(&mut wire, &files, [60_000, 60_000], seed);
        for machine in &wire.machines {
            assert!(machine.pages() < 16, "{}", machine.pages());
        }
    }
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let [client, server] = wire.connect(&listener, 80);
    let mut sent = 0;
    for _ in 0..200 {
        while let Ok(count) = client.write(&bytes(0, sent, sent + 10_000)) {
            sent += count;
        }
        wire.run(SECOND);
    }
    let room = server
        .ops_as::<Socket>()
        .unwrap()
        .options()
        .receive_buffer();
    assert_eq!(
        room, 131_072,
        "a program that does not read makes nothing grow"
    );
    assert!(sent < 131_072 + 4_200_000);
    let queued = protocol(&client).send_queue_bytes();
    assert!(queued + 131_072 >= sent, "{queued} of {sent}");
    // It goes on when there is room again.
    let mut received = 0;
    while received < sent {
        match read(&server) {
            Ok(data) => {
                assert!(data == bytes(0, received, received + data.len()));
                received += data.len();
            }
            Err(_) => assert!(wire.step()),
        }
    }
}

#[test]
fn ends_that_wait_are_not_begun_again() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let [client, server] = wire.connect(&listener, 80);
    let local = protocol(&client).local_address();
    drop(client);
    wire.run(SECOND);
    drop(server);
    wire.run(SECOND);
    assert_eq!(wire.machines[0].states(), [6]);
    let again = |wire: &Wire| {
        let client = wire.machines[0].tcp();
        let options = client.ops_as::<Socket>().unwrap().options();
        options.set_int_option(sys::SO_REUSEADDR, 1, false).unwrap();
        call(|caller| protocol(&client).bind(caller, &local)).unwrap();
        let to = inet(wire.machines[1].address, 80);
        let result = call(|caller| protocol(&client).connect(caller, &to, NOW));
        (client, result)
    };
    assert_eq!(again(&wire).1, Err(Errno::EADDRNOTAVAIL));
    // It may follow if both have clocks and that is allowed.
    wire.machines[0].set("ipv4/tcp_tw_reuse", "1");
    wire.run(SECOND);
    let (client, result) = again(&wire);
    assert_eq!(result, Err(Errno::EINPROGRESS));
    let server = wire.until(|_| accept(&listener));
    exchange(&mut wire, &[client, server], [5000, 5000], 1);
}

/// Segments near those of a connection, with something wrong: nobody is harmed by them.
#[test]
fn forged_segments_change_nothing() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let files = wire.connect(&listener, 80);
    let Address::Inet(SocketAddr::V4(client)) = protocol(&files[0]).local_address() else {
        panic!("an address of IPv4");
    };
    let mut random = Random(7);
    for round in 0..200 {
        for _ in 0..20 {
            let header = tcp::Header {
                seq: tcp::Seq(random.next() as u32),
                ack: tcp::Seq(random.next() as u32),
                flags: tcp::Flags::from_bits_retain(random.next() as u8),
                window: random.next() as u16,
                urgent: random.next() as u16,
                ..tcp::Header::default()
            };
            let data: Vec<u8> = (0..random.next() % 50).map(|byte| byte as u8).collect();
            let from = (client.ip().octets(), client.port());
            let victim = &wire.machines[1];
            let frame = forged(from, (victim.address, 80), &header, &data);
            victim.host.receive(victim.index, &frame.data);
        }
        files[0]
            .write(&bytes(0, round * 100, round * 100 + 100))
            .unwrap();
        let mut got = Vec::new();
        while got.len() < 100 {
            match read(&files[1]) {
                Ok(data) => got.extend(data),
                Err(_) => assert!(wire.step()),
            }
        }
        assert!(got == bytes(0, round * 100, round * 100 + 100));
    }
    exchange(&mut wire, &files, [0, 0], 1);
}

/// Writes that are larger than what there is room for, and messages that are more than bytes.
#[test]
fn peeking_waiting_and_small_segments_are_as_over_the_loop() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let [client, server] = wire.connect(&listener, 80);
    let send =
        |data: &[u8], flags| protocol(&client).send(OutgoingMessage::plain(data), flags, NOW);
    assert_eq!(send(b"held ", MsgFlags::MORE), Ok(5));
    wire.run(100 * MILLISECOND);
    assert_eq!(read(&server), Err(Errno::EAGAIN));
    assert_eq!(send(b"back", MsgFlags::empty()), Ok(4));
    wire.run(100 * MILLISECOND);
    let mut buf = [0; 4];
    let peeked = protocol(&server).receive(&mut buf, MsgFlags::PEEK, NOW);
    assert_eq!((peeked.unwrap().copied, &buf), (4, b"held"));
    assert_eq!(read(&server), Ok(b"held back".to_vec()));
}

/// A window that is larger than a SYN can say is told with the first acknowledgement, not by a
/// segment of its own for each connection.
#[test]
fn a_handshake_takes_three_segments() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let sent = Rc::new(RefCell::new(Vec::new()));
    let kept = sent.clone();
    wire.filter = Some(Rc::new(move |from, frame| {
        if frame[12..14] == [8, 0] {
            kept.borrow_mut().push(from);
        }
        false
    }));
    let [client, server] = wire.connect(&listener, 80);
    wire.run(SECOND);
    assert_eq!(*sent.borrow(), [0, 1, 0]);
    server.write(b"hello").unwrap();
    wire.until(|_| read(&client).ok());
    wire.run(SECOND);
    assert_eq!(*sent.borrow(), [0, 1, 0, 1, 0]);
}

#[test]
fn segments_are_as_long_as_the_interface_takes() {
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let files = wire.connect(&listener, 80);
    wire.filter = Some(Rc::new(|from, _| from == 0));
    files[0].write(&bytes(0, 0, 30_000)).unwrap();
    wire.collect();
    // What is to be sent again is too long, too.
    let one = &wire.machines[0];
    one.host.set_mtu(one.index, 600).unwrap();
    wire.filter = Some(Rc::new(|from, frame| {
        assert!(from == 1 || frame.len() <= 614, "{} bytes", frame.len());
        false
    }));
    let mut received = 0;
    wire.until(|_| {
        while let Ok(data) = read(&files[1]) {
            assert!(data == bytes(0, received, received + data.len()));
            received += data.len();
        }
        (received == 30_000).then_some(())
    });
}

/// A router between the two takes less than both links, and says so.
#[test]
fn a_path_that_takes_less_is_learnt_of() {
    const PATH: usize = 1000;
    let mut wire = Wire::clean();
    let listener = wire.machines[1].listen(80, 4);
    let files = wire.connect(&listener, 80);
    let dropped = Rc::new(RefCell::new(Vec::new()));
    let seen = dropped.clone();
    wire.filter = Some(Rc::new(move |from, frame| {
        let is_long = from == 0 && frame.len() > 14 + PATH;
        if is_long {
            seen.borrow_mut().push(frame[14..].to_vec());
        }
        is_long
    }));
    files[0].write(&bytes(0, 0, 60_000)).unwrap();
    let (mut received, mut told) = (0, 0);
    let began = time();
    wire.until(|wire| {
        for packet in dropped.borrow_mut().drain(..) {
            let quote = [&packet[..20], &packet[20..]];
            let message = ip::icmp::error_message(3, 4, PATH as u32, &quote).unwrap();
            let header = ip::ipv4::Header {
                tos: 0,
                id: 1,
                dont_fragment: false,
                more_fragments: false,
                offset: 0,
                ttl: 64,
                protocol: 1,
                source: Ipv4Addr::new(10, 0, 0, 254),
                destination: wire.machines[0].address,
            };
            let link = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0];
            let data = [&link[..], &header.emit(message.len()), &message].concat();
            let one = &wire.machines[0];
            one.host.receive(one.index, &data);
            told += 1;
        }
        while let Ok(data) = read(&files[1]) {
            assert!(data == bytes(0, received, received + data.len()));
            received += data.len();
        }
        (received == 60_000).then_some(())
    });
    assert!((1..=20).contains(&told), "{told} packets were too long");
    let mtu_of = |file: &File| {
        let value = protocol(file).option(sys::IPPROTO_IP as u32, sys::IP_MTU)?;
        Ok(i32::from_ne_bytes(value.try_into().unwrap()))
    };
    assert_eq!(mtu_of(&files[0]), Ok(PATH as i32));
    assert_eq!(mtu_of(&files[1]), Ok(1500));
    assert_eq!(mtu_of(&listener), Err(Errno::ENOTCONN));
    assert!(time() - began < SECOND, "no time-out was needed");
}
