use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap as Model};
use std::hash::RandomState;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::icmp::kind;
use crate::ipv4::Header;
use crate::{SECOND, checksum};

const OUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

fn end(address: [u8; 4], port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address.into(), port)
}

fn inner(host: u8, port: u16) -> SocketAddrV4 {
    end([10, 88, 0, host], port)
}

fn remote(host: u8, port: u16) -> SocketAddrV4 {
    end([198, 51, 100, host], port)
}

fn network() -> Prefix {
    Prefix::of(Ipv4Addr::new(10, 88, 0, 0), 16).unwrap()
}

fn nat(most_flows: usize) -> Nat<RandomState> {
    let mut nat = Nat::new(RandomState::new(), most_flows);
    nat.masquerade(network()).unwrap();
    nat
}

fn tuple(protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4) -> Tuple {
    Tuple { protocol, from, to }
}

/// A packet with these ends, without data: as it arrives, with right checksums.
fn packet(tuple: &Tuple, flags: u8, (seq, ack): (u32, u32)) -> (Header, Vec<u8>) {
    let header = Header {
        tos: 0,
        id: 1,
        dont_fragment: true,
        more_fragments: false,
        offset: 0,
        ttl: 64,
        protocol: tuple.protocol as u8,
        source: *tuple.from.ip(),
        destination: *tuple.to.ip(),
    };
    let ports = [
        tuple.from.port().to_be_bytes(),
        tuple.to.port().to_be_bytes(),
    ]
    .concat();
    let mut payload = match tuple.protocol {
        Protocol::Tcp => {
            let numbers = [seq.to_be_bytes(), ack.to_be_bytes()].concat();
            [&ports[..], &numbers, &[0x50, flags, 0, 0, 0, 0, 0, 0]].concat()
        }
        Protocol::Udp => [&ports[..], &[0, 8, 0, 0]].concat(),
        Protocol::Icmp => {
            let is_request = tuple.to.port() == 0;
            let kind = if is_request {
                kind::ECHO
            } else {
                kind::ECHO_REPLY
            };
            let id = (tuple.from.port() | tuple.to.port()).to_be_bytes();
            vec![kind, 0, 0, 0, id[0], id[1], 0, 1]
        }
    };
    let at = tuple.protocol.checksum_at();
    let sum = sum_of(&header, &payload).to_be_bytes();
    payload[at..at + 2].copy_from_slice(&sum);
    (header, payload)
}

/// 0 if the checksum in a packet is right.
fn sum_of(header: &Header, payload: &[u8]) -> u16 {
    let mut sum = if header.protocol == Protocol::Icmp as u8 {
        crate::Checksum::default()
    } else {
        let (from, to) = (header.source, header.destination);
        crate::Checksum::pseudo_header(from, to, header.protocol, payload.len())
    };
    sum.add(payload);
    sum.finish()
}

fn new_flow<'a>(arriving: Tuple, payload: &'a [u8]) -> NewFlow<'a> {
    NewFlow {
        arriving,
        payload,
        published: None,
        outer: Some(OUTER),
        own_ports: 32_768..=60_999,
        random: 7,
    }
}

/// Does with a packet as a router does. Returns the ends that it leaves with.
fn pass(
    nat: &mut Nat<RandomState>,
    now: Nanos,
    arriving: Tuple,
    flags: u8,
    numbers: (u32, u32),
) -> Option<Tuple> {
    let (_, payload) = packet(&arriving, flags, numbers);
    match nat.follow(now, &arriving, &payload) {
        Ok(Some(leaving)) => return Some(leaving),
        Ok(None) => {}
        Err(Malformed) => return None,
    }
    let published = nat.published_at(arriving.protocol, arriving.to);
    let is_inner = network().contains(*arriving.from.ip());
    if published.is_none() && !is_inner {
        return None;
    }
    let new = NewFlow {
        published,
        outer: is_inner.then_some(OUTER),
        ..new_flow(arriving, &payload)
    };
    nat.begin(now, &new).ok()
}

/// Does with a packet as a router does that looks for its flow without the table's lock first.
fn pass_without_lock(
    nat: &mut Nat<RandomState>,
    now: Nanos,
    arriving: Tuple,
    flags: u8,
    numbers: (u32, u32),
) -> Option<Tuple> {
    let found = nat.flows.find(&arriving);
    if let Some(flow) = found.and_then(|(number, _)| nat.flows.get(number)) {
        let direction = flow.live.direction_of(&arriving).unwrap();
        let (_, payload) = packet(&arriving, flags, numbers);
        if flow.live.follow(now, direction, &payload) {
            return Some(flow.live.leaving(direction));
        }
    }
    pass(nat, now, arriving, flags, numbers)
}

fn state_of(nat: &Nat<RandomState>, arriving: &Tuple) -> Option<State> {
    let (number, _) = nat.flows.find(arriving)?;
    Some(nat.flows.get(number)?.live.state())
}

/// All tables tell the same.
fn check(nat: &Nat<RandomState>) {
    let mut seen = 0;
    let mut held: Model<Ipv4Addr, usize> = Model::new();
    let mut mapped: Model<Hidden, usize> = Model::new();
    for number in nat.flows.numbers() {
        let Some(flow) = nat.flows.get(number) else {
            continue;
        };
        seen += 1;
        *held.entry(flow.inner).or_default() += 1;
        for direction in [Direction::Original, Direction::Reply] {
            let found = nat.flows.find(&flow.arriving()[direction as usize]);
            assert_eq!(found, Some((number, direction)));
        }
        if flow.hides_source() {
            let outer = flow.leaving(Direction::Original).from;
            let hidden = (
                flow.arriving()[0].protocol,
                flow.arriving()[0].from,
                *outer.ip(),
            );
            *mapped.entry(hidden).or_default() += 1;
            assert_eq!(nat.mappings[&hidden].port, outer.port());
            let standing = nat.outer[&(hidden.0, outer)];
            assert_eq!(standing, flow.arriving()[0].from);
        }
    }
    assert_eq!(seen, nat.flows());
    for (host, count) in held {
        assert_eq!(nat.flows.held_by(host), count);
    }
    assert_eq!(
        (mapped.len(), mapped.len()),
        (nat.mappings.len(), nat.outer.len())
    );
    for (hidden, count) in mapped {
        assert_eq!(nat.mappings[&hidden].flows, count);
    }
    let queued: usize = (State::SynSent as usize..State::COUNT)
        .map(|at| {
            let state = State::ALL[at];
            let all: Vec<_> = nat.flows.in_state(state).collect();
            assert!(all.iter().all(|(_, flow)| flow.live.state() == state));
            assert!(all.is_sorted_by_key(|(_, flow)| flow.queued.1), "{state:?}");
            all.len()
        })
        .sum();
    assert_eq!(queued, seen);
}

const FIN: u8 = 0x11;
const SYN: u8 = 2;
const SYN_ACK: u8 = 0x12;
const RST: u8 = 4;
const ACK: u8 = 0x10;

/// Out (`true`) or back, flags, the numbers, and the state that follows.
type Step = (bool, u8, (u32, u32), State);

const HANDSHAKE: [Step; 3] = [
    (true, SYN, (100, 0), State::SynSent),
    (false, SYN_ACK, (500, 101), State::SynReceived),
    (true, ACK, (101, 501), State::Established),
];

/// Linux' table of states, along the ways that connections take.
#[test]
fn a_connections_state_is_followed() {
    let ways: [&[Step]; 9] = [
        // One side closes, then the other.
        &[
            (true, FIN, (101, 501), State::FinWait),
            // Who closes still acknowledges what comes.
            (true, ACK, (102, 501), State::FinWait),
            (false, ACK, (501, 102), State::CloseWait),
            (false, ACK, (501, 102), State::CloseWait),
            (false, FIN, (501, 102), State::LastAck),
            (false, FIN, (501, 102), State::LastAck),
            (true, ACK, (102, 502), State::TimeWait),
            // The next one between the same ends.
            (true, SYN, (900, 0), State::SynSent),
        ],
        // The server closes first, and its FIN acknowledges.
        &[
            (false, FIN, (501, 101), State::FinWait),
            (true, FIN, (101, 502), State::LastAck),
            (false, ACK, (502, 102), State::TimeWait),
        ],
        // A reset with the number that is expected, and one with another.
        &[
            (false, RST, (501, 0), State::Close),
            (true, SYN, (9, 0), State::SynSent),
        ],
        &[
            (false, RST, (502, 0), State::Unacknowledged),
            (true, ACK, (101, 501), State::Unacknowledged),
            (false, ACK, (501, 101), State::Established),
        ],
        &[
            (true, RST, (101, 0), State::Close),
            (false, RST, (501, 0), State::Close),
        ],
        // A SYN in a connection is answered by its end, and changes nothing here.
        &[
            (true, SYN, (7, 0), State::Established),
            (false, SYN_ACK, (8, 8), State::Established),
        ],
        // What is no segment: with a SYN and a FIN.
        &[(true, SYN, (7, 0), State::Established)],
        &[(true, ACK, (101, 501), State::Established)],
        &[(false, ACK, (501, 101), State::Established)],
    ];
    for way in ways {
        let mut nat = nat(100);
        let out = tuple(Protocol::Tcp, inner(1, 2000), remote(1, 80));
        for (step, (is_out, flags, numbers, expected)) in
            HANDSHAKE.iter().chain(way.iter()).enumerate()
        {
            let back = tuple(Protocol::Tcp, remote(1, 80), end(OUTER.octets(), 2000));
            let arriving = if *is_out { out } else { back };
            assert!(pass(&mut nat, 5, arriving, *flags, *numbers).is_some());
            assert_eq!(state_of(&nat, &out), Some(*expected), "{step} of {way:?}");
            check(&nat);
        }
    }
}

#[test]
fn segments_from_the_middle_begin_a_flow_and_ends_do_not() {
    for (flags, expected) in [
        (SYN, Some(State::SynSent)),
        (ACK, Some(State::Unacknowledged)),
        (SYN_ACK, None),
        (FIN, None),
        (RST, None),
        (RST | 0x10, None),
        (SYN | 1, None),
        (0, None),
    ] {
        let mut nat = nat(100);
        let out = tuple(Protocol::Tcp, inner(1, 2000), remote(1, 80));
        let passed = pass(&mut nat, 5, out, flags, (1, 2)).is_some();
        assert_eq!(
            (passed, state_of(&nat, &out)),
            (expected.is_some(), expected)
        );
        assert_eq!(nat.counts().invalid, u64::from(expected.is_none()));
        if expected == Some(State::Unacknowledged) {
            let back = tuple(Protocol::Tcp, remote(1, 80), end(OUTER.octets(), 2000));
            pass(&mut nat, 6, back, ACK, (2, 1)).unwrap();
            assert_eq!(state_of(&nat, &out), Some(State::Established));
        }
    }
}

#[test]
fn what_is_silent_is_forgotten_after_its_time() {
    let out = tuple(Protocol::Udp, inner(1, 2000), remote(1, 53));
    let back = tuple(Protocol::Udp, remote(1, 53), end(OUTER.octets(), 2000));
    let mut nat = nat(100);
    pass(&mut nat, 0, out, 0, (0, 0)).unwrap();
    assert_eq!(
        pass(&mut nat, 30 * SECOND, back, 0, (0, 0)),
        None,
        "30 s one way"
    );
    assert_eq!((nat.flows(), nat.mappings.len()), (0, 0));
    pass(&mut nat, 0, out, 0, (0, 0)).unwrap();
    assert_eq!(
        pass(&mut nat, 29 * SECOND, back, 0, (0, 0)),
        Some(out.reversed())
    );
    let later = (29 + 119) * SECOND;
    assert_eq!(pass(&mut nat, later, back, 0, (0, 0)), Some(out.reversed()));
    assert_eq!(pass(&mut nat, later + 120 * SECOND, back, 0, (0, 0)), None);
    // An established connection is kept for five days.
    let out = tuple(Protocol::Tcp, inner(1, 2000), remote(1, 80));
    let back = tuple(Protocol::Tcp, remote(1, 80), end(OUTER.octets(), 2000));
    for (is_out, flags, numbers, _) in HANDSHAKE {
        pass(&mut nat, 0, if is_out { out } else { back }, flags, numbers).unwrap();
    }
    let days = 5 * 24 * 3600 * SECOND;
    assert!(pass(&mut nat, days - 1, back, ACK, (501, 101)).is_some());
    assert!(pass(&mut nat, 2 * days, back, ACK, (501, 101)).is_none());
}

#[test]
fn one_end_stands_for_an_inner_one_whoever_it_talks_to() {
    let mut nat = nat(100);
    let mut seen = Vec::new();
    // A port that the host gives to its own programs, so another is taken.
    for host in 1..5 {
        let out = tuple(Protocol::Udp, inner(1, 40_000), remote(host, 53));
        seen.push(pass(&mut nat, 0, out, 0, (0, 0)).unwrap().from);
    }
    assert!(seen.iter().all(|from| *from == seen[0]), "{seen:?}");
    assert!(!(32_768..=60_999).contains(&seen[0].port()) && seen[0].port() >= 1024);
    // The port of the first is kept, the second one has to take another.
    let first = tuple(Protocol::Udp, inner(1, 5000), remote(1, 53));
    let second = tuple(Protocol::Udp, inner(2, 5000), remote(1, 53));
    let first = pass(&mut nat, 0, first, 0, (0, 0)).unwrap().from;
    let second = pass(&mut nat, 0, second, 0, (0, 0)).unwrap().from;
    assert_eq!(first.port(), 5000);
    assert_ne!(second.port(), 5000);
    // A privileged port is not taken for anybody.
    let low = tuple(Protocol::Udp, inner(1, 123), remote(1, 123));
    assert!(pass(&mut nat, 0, low, 0, (0, 0)).unwrap().from.port() >= 1024);
    // Nobody else is let in by the hole.
    let stranger = tuple(Protocol::Udp, remote(9, 53), first);
    assert_eq!(pass(&mut nat, 0, stranger, 0, (0, 0)), None);
    check(&nat);
}

#[test]
fn published_ports_lead_inside_and_their_owner_takes_them_back() {
    let mut nat = nat(100);
    let at = |address: Ipv4Addr, port| SocketAddrV4::new(address, port);
    let publish = |nat: &mut Nat<_>, protocol, at, to, owner| {
        nat.publish(Published {
            protocol,
            at,
            to,
            owner,
        })
    };
    let any = Ipv4Addr::UNSPECIFIED;
    let to = inner(3, 80);
    assert_eq!(
        publish(&mut nat, Protocol::Tcp, at(any, 8080), to, 1),
        Ok(())
    );
    for taken in [any, OUTER] {
        let again = publish(&mut nat, Protocol::Tcp, at(taken, 8080), to, 2);
        assert_eq!(again, Err(PublishError::Taken));
    }
    assert_eq!(
        publish(&mut nat, Protocol::Udp, at(OUTER, 8080), to, 1),
        Ok(())
    );
    assert_eq!(
        publish(&mut nat, Protocol::Tcp, at(OUTER, 8081), to, 2),
        Ok(())
    );
    for (protocol, at, to) in [
        (Protocol::Icmp, at(any, 1), to),
        (Protocol::Tcp, at(any, 0), to),
        (Protocol::Tcp, at(any, 1), inner(3, 0)),
        (Protocol::Tcp, at(any, 1), at(any, 80)),
        (Protocol::Tcp, at(any, 1), end([224, 0, 0, 1], 80)),
    ] {
        let refused = publish(&mut nat, protocol, at, to, 1);
        assert_eq!(refused, Err(PublishError::Invalid));
    }
    let visit = |port| {
        tuple(
            Protocol::Tcp,
            remote(1, 999),
            SocketAddrV4::new(OUTER, port),
        )
    };
    for port in [8080, 8081] {
        let led = pass(&mut nat, 0, visit(port), SYN, (1, 0)).unwrap();
        assert_eq!(led, tuple(Protocol::Tcp, remote(1, 999), to));
        // Both lead to one end: the second visitor would be the same one to the server.
        let answer = pass(&mut nat, 0, led.reversed(), SYN_ACK, (1, 2)).unwrap();
        assert_eq!(answer, visit(port).reversed());
        if port == 8080 {
            assert_eq!(pass(&mut nat, 0, visit(8081), SYN, (1, 0)), None);
            check(&nat);
            nat.withdraw(1);
            assert_eq!((nat.flows(), nat.published().count()), (0, 1));
            assert_eq!(pass(&mut nat, 0, visit(8080), ACK, (2, 2)), None);
        }
    }
}

#[test]
fn a_host_that_takes_all_it_can_leaves_room_for_others() {
    let most = 120;
    let mut nat = nat(most);
    let mut open = |host: u8, first: u16| {
        let mut passed = 0;
        for port in first..first + 200 {
            let out = tuple(Protocol::Tcp, inner(host, port), remote(1, 80));
            let Some(left) = pass(&mut nat, 0, out, SYN, (100, 0)) else {
                continue;
            };
            pass(&mut nat, 0, left.reversed(), SYN_ACK, (500, 101)).unwrap();
            pass(&mut nat, 0, out, ACK, (101, 501)).unwrap();
            passed += 1;
        }
        check(&nat);
        passed
    };
    // Each has a fourth of what it leaves.
    let taken = [1, 2, 3, 4].map(|host| open(host, 2000));
    assert_eq!(taken, [24, 20, 16, 12]);
    assert_eq!((open(1, 3000), open(4, 3000)), (0, 0));
    assert_eq!(nat.counts().evicted, 0, "connections stay");
    // What nobody has answered makes room for more of the same host.
    for port in 3000..3100 {
        let out = tuple(Protocol::Udp, inner(5, port), remote(1, 80));
        assert!(pass(&mut nat, 0, out, 0, (0, 0)).is_some());
    }
    assert_eq!(
        (nat.flows.held_by(*inner(5, 0).ip()), nat.flows()),
        (10, 82)
    );
    assert_eq!(nat.counts().evicted, 90);
    // And all is free again when time has passed.
    let later = 6 * 24 * 3600 * SECOND;
    let out = tuple(Protocol::Udp, inner(6, 1), remote(1, 80));
    for turn in 0..10 {
        pass(&mut nat, later + turn, out, 0, (0, 0)).unwrap();
        let more = tuple(Protocol::Udp, inner(6, 2 + turn as u16), remote(1, 80));
        pass(&mut nat, later + turn, more, 0, (0, 0)).unwrap();
    }
    assert_eq!(nat.flows(), 11);
    check(&nat);
}

/// A flow whose answers would be those of another one is refused, and leaves nothing behind.
#[test]
fn two_flows_with_the_same_answers_cannot_be() {
    let mut nat = nat(100);
    let out = tuple(Protocol::Udp, inner(1, 2000), remote(1, 53));
    pass(&mut nat, 0, out, 0, (0, 0)).unwrap();
    let published = Published {
        protocol: Protocol::Udp,
        at: SocketAddrV4::new(OUTER, 7000),
        to: remote(1, 53),
        owner: 1,
    };
    nat.publish(published).unwrap();
    let same = tuple(Protocol::Udp, inner(1, 2000), published.at);
    assert_eq!(pass(&mut nat, 0, same, 0, (0, 0)), None);
    check(&nat);
    let other = tuple(Protocol::Udp, inner(1, 2001), published.at);
    assert!(pass(&mut nat, 0, other, 0, (0, 0)).is_some());
    check(&nat);
}

/// 0 says in UDP that there is no checksum: one that would be 0 is its other zero.
#[test]
fn a_datagram_with_a_checksum_keeps_one() {
    let old = tuple(Protocol::Udp, inner(1, 5000), remote(1, 53));
    let mut zeros = 0;
    for port in 1..=u16::MAX {
        let (mut header, mut payload) = packet(&old, 0, (0, 0));
        let new = tuple(Protocol::Udp, SocketAddrV4::new(OUTER, port), old.to);
        new.write(&mut header, &mut payload);
        assert_eq!(sum_of(&header, &payload), 0);
        assert_ne!(payload[6..8], [0, 0]);
        zeros += u32::from(payload[6..8] == [0xff; 2]);
    }
    assert_eq!(zeros, 1);
}

#[test]
fn addresses_that_go_take_their_flows_along() {
    let mut nat = nat(100);
    let out = |host| tuple(Protocol::Udp, inner(host, 2000), remote(1, 53));
    for host in 1..4 {
        pass(&mut nat, 0, out(host), 0, (0, 0)).unwrap();
    }
    nat.forget(Ipv4Addr::new(10, 88, 0, 2));
    assert_eq!((nat.flows(), state_of(&nat, &out(2))), (2, None));
    nat.forget_outer(Ipv4Addr::new(192, 0, 2, 2));
    assert_eq!(nat.flows(), 2);
    nat.forget_outer(OUTER);
    check(&nat);
    assert_eq!((nat.flows(), nat.mappings.len()), (0, 0));
    pass(&mut nat, 0, out(1), 0, (0, 0)).unwrap();
    nat.stop_masquerade(network());
    assert!(nat.is_idle());
}

#[test]
fn errors_about_translated_packets_find_who_sent_them() {
    for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Icmp] {
        let mut nat = nat(100);
        let port = if protocol == Protocol::Icmp { 0 } else { 53 };
        let out = tuple(protocol, inner(1, 40_000), remote(1, port));
        let (mut header, mut payload) = packet(&out, SYN, (1, 0));
        let sent = [&header.emit(payload.len())[..], &payload].concat();
        let new = new_flow(out, &payload);
        let left = nat.begin(0, &new).unwrap();
        left.write(&mut header, &mut payload);
        assert_eq!(sum_of(&header, &payload), 0, "{protocol:?}");
        assert_eq!(Tuple::of(&header, &payload), Ok(left));
        let quote = [&header.emit(payload.len())[..], &payload].concat();
        let mut message = icmp::error_message(kind::TIME_EXCEEDED, 0, 0, &[&quote]).unwrap();
        let router = Ipv4Addr::new(203, 0, 113, 9);
        let to = nat.translate_error(1, router, &mut message);
        assert_eq!(to, Ok(Some((router, *out.from.ip()))), "{protocol:?}");
        assert_eq!(checksum(&message), 0);
        assert_eq!(message[8..], sent, "{protocol:?}");
        assert_eq!(nat.arrived_as(&left), Some(out));
        // About another packet, or one that only says it is a part of it, it means nothing.
        for at in [8 + 15, 8 + 19, 8 + 21] {
            let mut other = icmp::error_message(3, 1, 0, &[&quote]).unwrap();
            other[at] ^= 1;
            // (The number of an echo stands elsewhere.)
            if protocol != Protocol::Icmp || at < 28 {
                assert_eq!(nat.translate_error(1, router, &mut other), Ok(None), "{at}");
            }
        }
        let mut later = icmp::error_message(3, 1, 0, &[&quote]).unwrap();
        later[8 + 7] = 1; // A fragment.
        assert_eq!(nat.translate_error(1, router, &mut later), Ok(None));
        let mut short = icmp::error_message(3, 1, 0, &[&quote[..27]]).unwrap();
        assert_eq!(nat.translate_error(1, router, &mut short), Err(Malformed));
    }
}

#[test]
fn errors_of_who_is_behind_a_published_port_come_from_that() {
    let mut nat = nat(100);
    let published = Published {
        protocol: Protocol::Udp,
        at: SocketAddrV4::new(OUTER, 5353),
        to: inner(1, 53),
        owner: 1,
    };
    nat.publish(published).unwrap();
    let ask = tuple(Protocol::Udp, remote(1, 999), published.at);
    let (mut header, mut payload) = packet(&ask, 0, (0, 0));
    let led = pass(&mut nat, 0, ask, 0, (0, 0)).unwrap();
    led.write(&mut header, &mut payload);
    assert_eq!(sum_of(&header, &payload), 0);
    let quote = [&header.emit(payload.len())[..], &payload].concat();
    let mut message = icmp::error_message(kind::UNREACHABLE, 3, 0, &[&quote]).unwrap();
    let to = nat.translate_error(1, *inner(1, 0).ip(), &mut message);
    assert_eq!(to, Ok(Some((OUTER, *remote(1, 0).ip()))));
    let (quoted, rest) = Header::parse_quoted(&message[8..]).unwrap();
    assert_eq!(Tuple::of(&quoted, rest), Ok(ask));
    assert_eq!((checksum(&message), checksum(&message[8..28])), (0, 0));
}

proptest! {
    /// Checksums are right after a translation if they were before, and else are not.
    #[test]
    fn checksums_are_updated(
        from: [u8; 4], to: [u8; 4], new_from: [u8; 4], new_to: [u8; 4], ports: [u16; 4],
        protocol in prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Icmp]),
        error: u16,
    ) {
        let icmp = protocol == Protocol::Icmp;
        let port = |at: usize| if icmp && at % 2 == 1 { 0 } else { ports[at].max(1) };
        let old = tuple(protocol, end(from, port(0)), end(to, port(1)));
        let new = tuple(protocol, end(new_from, port(2)), end(new_to, port(3)));
        let (mut header, mut payload) = packet(&old, ACK, (1, 2));
        let at = protocol.checksum_at();
        let sum = u16::from_be_bytes([payload[at], payload[at + 1]]);
        // 0 and 0xffff are the same number, and 0 is none in UDP.
        let wrong = sum.wrapping_add(error);
        let is_wrong = wrong % 0xffff != sum % 0xffff;
        let has_none = protocol == Protocol::Udp && wrong == 0;
        payload[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
        new.write(&mut header, &mut payload);
        prop_assert_eq!(Tuple::of(&header, &payload), Ok(new));
        if has_none {
            prop_assert_eq!(&payload[at..at + 2], &[0, 0]);
        } else {
            prop_assert_eq!(!sum_of(&header, &payload).is_multiple_of(0xffff), is_wrong);
        }
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, address: [u8; 4], ports: [u16; 2]) {
        let mut bytes = bytes;
        let some = tuple(Protocol::Tcp, end(address, ports[0]), end(address, ports[1]));
        let _ = some.write_packet(&mut bytes);
        let _ = some.write_quoted(&mut bytes);
        let _ = nat(10).translate_error(0, OUTER, &mut bytes);
        let (mut header, _) = packet(&some, 0, (0, 0));
        for protocol in [1, 6, 17, 50] {
            header.protocol = protocol;
            if let Ok(found) = Tuple::of(&header, &bytes) {
                pass(&mut nat(10), 0, found, 0, (0, 0));
                let _ = nat(10).begin(0, &new_flow(found, &bytes));
            }
        }
    }

    /// Whether packets are followed with or without the lock of the table makes no difference, to
    /// them and to how long their flows last.
    #[test]
    fn flows_are_followed_without_the_lock_as_with_it(actions in prop::collection::vec(
        (0..4u8, 0..6u16, 0..8usize, 0..3u32, 0..70u64), 1..200,
    )) {
        let (mut with, mut without) = (nat(1000), nat(1000));
        let mut now = 0;
        let mut all = 0;
        for (action, port, flags, number, seconds) in actions {
            let flags = [SYN, SYN_ACK, ACK, ACK, ACK, FIN, RST, SYN | FIN][flags];
            let protocol = [Protocol::Tcp, Protocol::Udp][usize::from(port) % 2];
            let out = tuple(protocol, inner(1, 20_000 + port), remote(1, 80));
            let back = tuple(protocol, out.to, end(OUTER.octets(), 20_000 + port));
            let arriving = match action {
                0 | 1 => out,
                2 => back,
                _ => {
                    now += seconds * SECOND;
                    continue;
                }
            };
            let numbers = (number, number);
            let left = pass(&mut with, now, arriving, flags, numbers);
            let same = pass_without_lock(&mut without, now, arriving, flags, numbers);
            prop_assert_eq!(left, same);
            check(&without);
            let progress = |nat: &Nat<RandomState>| {
                let number = nat.flows.find(&out)?.0;
                let live = &nat.flows.get(number)?.live;
                let progress = live.progress();
                let known = (progress.state, progress.closing, progress.acknowledged);
                (live.expires() > now).then_some((live.expires(), known))
            };
            prop_assert_eq!(progress(&with), progress(&without));
            all = all.max(without.flows());
        }
        // Those of which nothing is heard are given up, at twice their time at the latest.
        for step in [1, 2, 3u16] {
            now += 5 * 24 * 3600 * SECOND;
            let next = tuple(Protocol::Udp, inner(2, step), remote(2, 53));
            pass(&mut without, now, next, 0, (0, 0));
            check(&without);
        }
        prop_assert_eq!(without.flows(), 1, "of {}", all);
    }

    /// A router against what it should remember: who has sent what to whom, and when.
    #[test]
    fn a_nat_does_as_its_model(actions in prop::collection::vec(
        (0..8u8, 1..4u8, 0..3u16, 1..4u8, 0..40u64), 1..150,
    )) {
        let most = 40;
        let mut nat = nat(most);
        let mut now = 0;
        // Datagrams: the outer end by the inner end, and when each conversation ends.
        let mut ends: Model<SocketAddrV4, SocketAddrV4> = Model::new();
        let mut talks: Model<(SocketAddrV4, SocketAddrV4), (SocketAddrV4, Nanos)> = Model::new();
        for (action, host, port, far, seconds) in actions {
            let (from, to) = (inner(host, 40_000 + port), remote(far, 53));
            let out = tuple(Protocol::Udp, from, to);
            talks.retain(|_, (_, expires)| *expires > now);
            ends.retain(|from, _| talks.keys().any(|(known, _)| known == from));
            match action {
                0..4 => {
                    let held = talks.keys().filter(|(known, _)| known.ip() == from.ip()).count();
                    let is_known = talks.contains_key(&(from, to));
                    let left = pass(&mut nat, now, out, 0, (0, 0));
                    if is_known || 4 * held < most - talks.len() {
                        let left = left.expect("there is room");
                        prop_assert_eq!(left.to, to);
                        let stands = *ends.entry(from).or_insert(left.from);
                        prop_assert_eq!(left.from, stands);
                        let others = ends.iter().filter(|(_, end)| **end == stands).count();
                        prop_assert_eq!(others, 1);
                        let entry = talks.entry((from, to)).or_insert((stands, 0));
                        let is_stream = state_of(&nat, &out) == Some(State::UdpStream);
                        let patience = if is_stream { 120 } else { 30 };
                        entry.1 = now + patience * SECOND;
                    } else {
                        // One of the same host's makes room, or it is refused.
                        let gone: Vec<_> = talks.keys().copied()
                            .filter(|(from, to)| {
                                state_of(&nat, &tuple(Protocol::Udp, *from, *to)).is_none()
                            })
                            .collect();
                        match left {
                            None => prop_assert_eq!(gone.len(), 0),
                            Some(left) => {
                                prop_assert_eq!(gone.len(), 1);
                                prop_assert_eq!(gone[0].0.ip(), from.ip());
                                talks.remove(&gone[0]);
                                ends.retain(|from, _| talks.keys().any(|(known, _)| known == from));
                                let stands = *ends.entry(from).or_insert(left.from);
                                prop_assert_eq!(left.from, stands);
                                talks.insert((from, to), (stands, now + 30 * SECOND));
                            }
                        }
                    }
                }
                4 | 5 => {
                    // An answer, or somebody's who was not asked.
                    let Some(stands) = ends.get(&from).copied() else { continue };
                    let answer = tuple(Protocol::Udp, to, stands);
                    let led = pass(&mut nat, now, answer, 0, (0, 0));
                    match talks.get_mut(&(from, to)) {
                        Some((_, expires)) => {
                            prop_assert_eq!(led, Some(out.reversed()));
                            *expires = now + 120 * SECOND;
                        }
                        None => prop_assert_eq!(led, None),
                    }
                }
                6 => now += seconds * SECOND,
                _ => {
                    nat.forget(*from.ip());
                    talks.retain(|(known, _), _| known.ip() != from.ip());
                }
            }
            check(&nat);
        }
    }
}

std::thread_local! {
    /// Notes that the journal of this test has written.
    static NOTES: RefCell<BTreeMap<u32, NotedFlow>> = const { RefCell::new(BTreeMap::new()) };
}

fn write_note(place: u32, flow: Option<&NotedFlow>) {
    NOTES.with_borrow_mut(|notes| match flow {
        Some(flow) => {
            notes.insert(place, *flow);
        }
        None => {
            notes.remove(&place);
        }
    });
}

/// A port of this host that leads to an inner host.
fn published_port() -> Published {
    Published {
        protocol: Protocol::Tcp,
        at: SocketAddrV4::new(OUTER, 8080),
        to: inner(2, 80),
        owner: 5,
    }
}

/// A translation that notes its flows, of a hidden network with a published port.
fn journalled(most_flows: usize) -> Nat<RandomState> {
    let mut nat = nat(most_flows);
    nat.publish(published_port()).unwrap();
    nat.keep_journal(write_note);
    nat
}

/// The flows of a translation: how their packets leave, and in which state they are.
fn all_flows(nat: &Nat<RandomState>) -> Vec<(Tuple, Tuple, State, Option<u64>)> {
    let flows = nat
        .flows
        .numbers()
        .filter_map(|number| nat.flows.get(number));
    let told = flows.map(|flow| {
        let leaving = flow.leaving(Direction::Original);
        (flow.arriving()[0], leaving, flow.live.state(), flow.owner)
    });
    let mut all: Vec<_> = told.collect();
    all.sort_by_key(|(arriving, ..)| *arriving);
    all
}

/// Goes on with all that was noted, as somebody does who reads the notes in order.
fn resume_all(nat: &mut Nat<RandomState>, is_there: impl Fn(Ipv4Addr) -> bool) {
    let noted = NOTES.with_borrow(Clone::clone);
    for (place, flow) in noted {
        let resumed = nat.resume(0, &flow, &is_there);
        assert!(resumed.is_none_or(|resumed| resumed <= place));
        if resumed != Some(place) {
            write_note(place, None);
        }
    }
}

proptest! {
    /// Notes say at every moment what flows there are; a translation that goes on with them
    /// translates as the one before, and notes the same.
    #[test]
    fn flows_go_on_in_the_next_translation(actions in prop::collection::vec(
        (0..6u8, 1..4u8, 0..3u16, 1..4u8, prop::sample::select(vec![SYN, ACK, SYN_ACK, FIN, RST]), 0..90u64),
        1..100,
    )) {
        NOTES.take();
        let mut nat = journalled(40);
        let mut now = 0;
        for (action, host, port, far, flags, seconds) in actions {
            let protocol = if port == 0 { Protocol::Udp } else { Protocol::Tcp };
            let out = tuple(protocol, inner(host, 40_000 + port), remote(far, 53));
            let visit = tuple(Protocol::Tcp, remote(far, 999), published_port().at);
            let arriving = match action {
                0 | 1 => out,
                2 => visit,
                3 => {
                    let found = all_flows(&nat).into_iter().find(|flow| flow.0 == out);
                    found.map_or(out, |(_, leaving, ..)| leaving.reversed())
                }
                4 => tuple(Protocol::Tcp, published_port().to, remote(far, 999)),
                _ => {
                    now += seconds * SECOND;
                    continue;
                }
            };
            pass(&mut nat, now, arriving, flags, (1, 1));
            let noted = NOTES.with_borrow(|notes| {
                let mut all: Vec<_> = notes.values().map(|flow| flow.arriving[0]).collect();
                all.sort();
                all
            });
            let flows = all_flows(&nat);
            prop_assert_eq!(noted, flows.iter().map(|flow| flow.0).collect::<Vec<_>>());
        }
        let mut next = journalled(40);
        resume_all(&mut next, |_| true);
        check(&next);
        prop_assert_eq!(all_flows(&next), all_flows(&nat));
        // And a third one.
        let mut third = journalled(40);
        resume_all(&mut third, |_| true);
        prop_assert_eq!(all_flows(&third), all_flows(&nat));
    }
}

#[test]
fn a_flow_that_makes_no_sense_does_not_go_on() {
    NOTES.take();
    let mut nat = journalled(40);
    let out = tuple(Protocol::Tcp, inner(1, 40_000), remote(1, 80));
    let visit = tuple(Protocol::Tcp, remote(2, 999), published_port().at);
    let hairpin = tuple(Protocol::Tcp, inner(1, 50_000), published_port().at);
    for arriving in [out, visit, hairpin] {
        pass(&mut nat, 0, arriving, SYN, (1, 0)).unwrap();
    }
    let noted = NOTES.take();
    assert_eq!(noted.len(), 3);
    let (out, visit) = (noted[&0], noted[&1]);
    let resumed = |nat: &mut Nat<RandomState>, flow: &NotedFlow| nat.resume(0, flow, |_| true);
    // Twice, and with an end that stands for another one.
    let mut next = journalled(40);
    assert_eq!(resumed(&mut next, &out), Some(0));
    assert_eq!(resumed(&mut next, &out), None);
    let mut other = out;
    other.arriving[0].from = inner(3, 40_000);
    other.arriving[1].from = remote(3, 80);
    assert_eq!(resumed(&mut next, &other), None);
    check(&next);
    // An end has one port.
    let mut two_ports = out;
    two_ports.arriving[0].to = remote(4, 80);
    two_ports.arriving[1].from = remote(4, 80);
    two_ports.arriving[1].to.set_port(40_001);
    assert_eq!(resumed(&mut next, &two_ports), None);
    check(&next);
    // Nobody is there, or not hidden, or not published, or elsewhere; there is no room.
    assert_eq!(next.resume(0, &visit, |_| false), None);
    let mut bare = Nat::new(RandomState::new(), 40);
    assert_eq!(resumed(&mut bare, &out), None);
    assert_eq!(resumed(&mut bare, &visit), None);
    let mut elsewhere = visit;
    elsewhere.arriving[1].from = inner(9, 80);
    assert_eq!(resumed(&mut next, &elsewhere), None);
    let mut state = visit;
    state.state = State::Udp;
    assert_eq!(resumed(&mut next, &state), None);
    let mut plain = out;
    plain.arriving[1].to = plain.arriving[0].from;
    assert_eq!(resumed(&mut journalled(40), &plain), None);
    assert_eq!(resumed(&mut journalled(0), &out), None);
    check(&next);
    assert_eq!(next.flows(), 1);
}
