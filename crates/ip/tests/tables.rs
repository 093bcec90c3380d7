//! Tables of neighbours and routes, and reassembly, against what Linux does and simple models.

use std::net::{IpAddr, Ipv4Addr};

use ip::ipv4::{self, Header, Packet};
use ip::neighbour::{self, Event, Key, Resolution, State};
use ip::route::{self, Filter, Insert, InsertError, Kind, Prefix, Route};
use ip::{Fragment, Reassembled, Reassembly, SECOND};
use proptest::prelude::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn key(last: u32) -> Key {
    Key {
        interface: 2,
        address: Ipv4Addr::from(0x0a00_0000 + last).into(),
    }
}

fn state(table: &neighbour::Table, key: Key) -> Option<State> {
    table.iter().find(|one| one.key == key).map(|one| one.state)
}

fn solicited(events: &[Event]) -> Vec<Option<[u8; 6]>> {
    let of = |event: &Event| match event {
        Event::Solicit(_, to) => Some(*to),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// Runs a table's timers up to a time.
fn run(table: &mut neighbour::Table, until: u64) -> Vec<Event> {
    let mut events = table.take_events();
    while let Some(due) = table.deadline().filter(|due| *due <= until) {
        table.tick(due);
        events.extend(table.take_events());
    }
    events
}

#[test]
fn a_neighbour_that_does_not_answer_is_asked_three_times() {
    let mut table = neighbour::Table::new(1);
    let packet = || Some(vec![1, 2, 3]);
    assert_eq!(table.resolve(0, key(1), packet), Resolution::Waits);
    let events = run(&mut table, 10 * SECOND);
    assert_eq!(solicited(&events), [None; 3]);
    assert!(events.contains(&Event::Unreachable(key(1), vec![1, 2, 3])));
    assert_eq!(state(&table, key(1)), Some(State::Failed));
    assert_eq!((table.deadline(), table.waiting_bytes()), (None, 0));
    // Used again, it is asked again.
    assert_eq!(
        table.resolve(20 * SECOND, key(1), packet),
        Resolution::Waits
    );
    assert_eq!(solicited(&table.take_events()), [None]);
}

#[test]
fn an_answer_sends_what_waits_and_grows_old() {
    let mut table = neighbour::Table::new(1);
    for n in 0..3 {
        table.resolve(0, key(1), || Some(vec![n]));
    }
    table.take_events();
    table.heard(1, key(1), MAC, true, true);
    let sent: Vec<_> = table
        .take_events()
        .into_iter()
        .filter(|event| matches!(event, Event::Transmit(..)))
        .collect();
    assert_eq!(
        sent,
        (0..3)
            .map(|n| Event::Transmit(key(1), MAC, vec![n]))
            .collect::<Vec<_>>()
    );
    assert_eq!(state(&table, key(1)), Some(State::Reachable));
    assert_eq!(table.resolve(2, key(1), || None), Resolution::Known(MAC));
    let events = run(&mut table, 100 * SECOND);
    assert_eq!(
        (state(&table, key(1)), solicited(&events).len()),
        (Some(State::Stale), 0)
    );
    // A stale one is used, and asked five seconds later by itself.
    let now = 100 * SECOND;
    assert_eq!(table.resolve(now, key(1), || None), Resolution::Known(MAC));
    assert_eq!(state(&table, key(1)), Some(State::Delay));
    assert_eq!(run(&mut table, now + 4 * SECOND), []);
    assert_eq!(solicited(&run(&mut table, now + 5 * SECOND)), [Some(MAC)]);
    assert_eq!(state(&table, key(1)), Some(State::Probe));
    let events = run(&mut table, now + 20 * SECOND);
    assert_eq!(solicited(&events), [Some(MAC); 2]);
    assert_eq!(state(&table, key(1)), Some(State::Failed));
}

#[test]
fn confirmation_from_above_spares_the_question() {
    let mut table = neighbour::Table::new(1);
    table.heard(0, key(1), MAC, false, true);
    assert_eq!(state(&table, key(1)), Some(State::Stale));
    table.resolve(1, key(1), || None);
    table.confirm(2, key(1));
    assert_eq!(state(&table, key(1)), Some(State::Reachable));
}

#[test]
fn what_nobody_asked_for_makes_no_neighbour() {
    let mut table = neighbour::Table::new(1);
    table.heard(0, key(1), MAC, true, false);
    assert_eq!(table.iter().count(), 0);
    // An address is not replaced within a second.
    table.heard(0, key(1), MAC, false, true);
    table.heard(SECOND / 2, key(1), [4; 6], true, true);
    assert_eq!(table.iter().next().unwrap().hardware, Some(MAC));
    table.heard(SECOND, key(1), [4; 6], true, true);
    assert_eq!(table.iter().next().unwrap().hardware, Some([4; 6]));
    // One that was set is never changed by hearsay.
    table
        .set(2 * SECOND, key(1), MAC, State::Permanent)
        .unwrap();
    table.heard(9 * SECOND, key(1), [4; 6], true, true);
    assert_eq!(table.iter().next().unwrap().hardware, Some(MAC));
}

#[test]
fn a_scan_of_a_network_is_bounded_and_spares_who_is_in_use() {
    let mut table = neighbour::Table::new(1);
    table.set(0, key(1), MAC, State::Permanent).unwrap();
    table.heard(0, key(2), MAC, true, true);
    for n in 3..4_000u32 {
        let now = u64::from(n) * SECOND / 50;
        run(&mut table, now);
        table.resolve(now, key(n), || Some(vec![0; 1500]));
        table.take_events();
        assert!(table.iter().count() <= neighbour::MOST);
        assert!(table.waiting_bytes() <= 1 << 20);
    }
    assert_eq!(state(&table, key(1)), Some(State::Permanent));
    // At once, with nobody to be given up, there is no room.
    let mut table = neighbour::Table::new(1);
    let refused = (0..2000)
        .filter(|n| table.resolve(0, key(*n), || None) == Resolution::NoRoom)
        .count();
    assert_eq!(refused, 2000 - neighbour::MOST);
}

#[test]
fn packets_for_one_neighbour_are_bounded_and_the_oldest_go() {
    let mut table = neighbour::Table::new(1);
    for n in 0..200u8 {
        table.resolve(0, key(1), || Some(vec![n; 1400]));
    }
    assert!(table.waiting_bytes() <= 64 << 10);
    table.take_events();
    table.heard(1, key(1), MAC, true, true);
    let last = table.take_events().pop();
    assert_eq!(last, Some(Event::Transmit(key(1), MAC, vec![199; 1400])));
    table.forget_interface(2, true);
    assert_eq!((table.iter().count(), table.waiting_bytes()), (0, 0));
}

fn route(address: [u8; 4], length: u8, metric: u32) -> Route {
    Route {
        destination: Prefix::of(address.into(), length).unwrap(),
        kind: Kind::Unicast,
        interface: 2,
        gateway: None,
        source: None,
        metric,
        protocol: 3,
        scope: 0,
    }
}

#[test]
fn routes_are_added_as_linux_adds_them() {
    let mut table = route::Table::default();
    let one = route([10, 0, 0, 0], 8, 0);
    let other = Route {
        interface: 3,
        ..one
    };
    assert_eq!(table.insert(one, Insert::Exclusive), Ok(None));
    assert_eq!(
        table.insert(one, Insert::Exclusive),
        Err(InsertError::Exists)
    );
    assert_eq!(table.insert(one, Insert::Append), Err(InsertError::Exists));
    assert_eq!(table.insert(other, Insert::Append), Ok(None));
    assert_eq!(table.lookup([10, 1, 1, 1].into()), Some(&one));
    assert_eq!(table.lookup_by([10, 1, 1, 1].into(), 3), Some(&other));
    assert_eq!(
        table.insert(
            Route {
                interface: 4,
                ..one
            },
            Insert::Replace
        ),
        Ok(Some(one))
    );
    let filter = Filter {
        interface: Some(3),
        ..Filter::default()
    };
    assert_eq!(table.remove(one.destination, &filter), Some(other));
    assert_eq!(table.remove(one.destination, &filter), None);
    assert_eq!(
        table.remove(route([10, 0, 0, 0], 9, 0).destination, &Filter::default()),
        None
    );
}

#[test]
fn there_are_no_more_routes_than_may_be() {
    let mut table = route::Table::default();
    let added = (0..10_000u32)
        .filter(|n| {
            table
                .insert(route(n.to_be_bytes(), 32, 0), Insert::Append)
                .is_ok()
        })
        .count();
    assert_eq!(added, 4096);
}

proptest! {
    /// The route to an address is the one with the longest prefix, then the least metric.
    #[test]
    fn the_best_route_is_found(
        routes in proptest::collection::vec((0u32..16, 0u8..=32, 0u32..3), 0..40),
        to in 0u32..16,
    ) {
        let spread = |n: u32| (n << 28 | n << 4 | n).to_be_bytes();
        let mut table = route::Table::default();
        let mut model: Vec<Route> = Vec::new();
        for (bits, length, metric) in routes {
            let route = route(spread(bits), length, metric);
            if table.insert(route, Insert::Exclusive).is_ok() {
                model.push(route);
            }
        }
        let to = Ipv4Addr::from(spread(to));
        let best = model
            .iter()
            .filter(|route| route.destination.contains(to))
            .min_by_key(|route| (32 - route.destination.length, route.metric));
        prop_assert_eq!(table.lookup(to), best);
    }

    #[test]
    fn a_source_is_of_the_next_hops_network(
        addresses in proptest::collection::vec((any::<u32>(), 8u8..=32), 0..5),
        to: u32,
    ) {
        let addresses: Vec<(Ipv4Addr, u8)> =
            addresses.into_iter().map(|(ip, length)| (ip.into(), length)).collect();
        let to = Ipv4Addr::from(to);
        let has = |(ip, length): &(Ipv4Addr, u8)| Prefix::of(*ip, *length).unwrap().contains(to);
        let best = addresses.iter().find(|one| has(one)).or(addresses.first());
        prop_assert_eq!(route::select_source(&addresses, to), best.map(|(ip, _)| *ip));
    }
}

fn packet(id: u16, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        tos: 0,
        id,
        dont_fragment: false,
        more_fragments: more,
        offset,
        ttl: 64,
        protocol: 17,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
    };
    [&header.emit(payload.len())[..], payload].concat()
}

fn arrive(table: &mut Reassembly, now: u64, bytes: &[u8]) -> Reassembled {
    let packet = Packet::parse(bytes).unwrap();
    table.arrive(now, &Fragment::of_v4(&packet, 2))
}

#[test]
fn an_overlap_ends_the_datagram_and_a_repetition_does_not() {
    let mut table = Reassembly::default();
    let first = packet(1, 0, true, &[1; 16]);
    assert_eq!(arrive(&mut table, 0, &first), Reassembled::Waits);
    assert_eq!(arrive(&mut table, 0, &first), Reassembled::Waits);
    assert_eq!(
        arrive(&mut table, 0, &packet(1, 16, false, b"end")),
        Reassembled::Whole([&[1; 16][..], b"end"].concat(), 17)
    );
    assert_eq!(table.usage(), (0, 0));
    for (offset, length) in [(8u16, 16), (0, 24), (0, 8)] {
        assert_eq!(
            arrive(&mut table, 0, &packet(2, 0, true, &[1; 16])),
            Reassembled::Waits
        );
        assert_eq!(
            arrive(&mut table, 0, &packet(2, offset, true, &vec![2; length])),
            Reassembled::Overlap
        );
        // What still comes of it is for nobody.
        assert_eq!(
            arrive(&mut table, 0, &packet(2, 16, false, b"end")),
            Reassembled::Dropped
        );
        assert!(table.expire(30 * SECOND).is_none(), "nobody is told");
        assert_eq!(table.usage(), (0, 0));
    }
}

#[test]
fn the_end_of_a_datagram_is_said_once() {
    let mut table = Reassembly::default();
    assert_eq!(
        arrive(&mut table, 0, &packet(1, 64, false, b"end")),
        Reassembled::Waits
    );
    for (offset, more) in [(128, false), (128, true), (64, true)] {
        let other = arrive(&mut table, 0, &packet(1, offset, more, &[0; 8]));
        assert_eq!(other, Reassembled::Dropped);
    }
    assert_eq!(
        arrive(&mut table, 0, &packet(2, 64, true, &[0; 8])),
        Reassembled::Waits
    );
    assert_eq!(
        arrive(&mut table, 0, &packet(2, 0, false, b"end")),
        Reassembled::Dropped
    );
}

#[test]
fn what_does_not_become_whole_expires_and_its_sender_is_told() {
    let mut table = Reassembly::default();
    arrive(&mut table, 0, &packet(1, 0, true, &[7; 800]));
    arrive(&mut table, 0, &packet(2, 800, true, &[7; 800]));
    assert_eq!(table.deadline(), Some(30 * SECOND));
    assert!(table.expire(30 * SECOND - 1).is_none());
    let expired = table.expire(30 * SECOND).unwrap();
    assert_eq!(
        (expired.quote.len(), expired.interface),
        (ipv4::HEADER + 8, 2)
    );
    assert!(
        table.expire(30 * SECOND).is_none(),
        "without its first fragment nobody is told"
    );
    assert_eq!(table.usage(), (0, 0));
}

#[test]
fn fragments_take_bounded_memory() {
    let mut table = Reassembly::default();
    for id in 0..60_000u16 {
        arrive(&mut table, 0, &packet(id, 0, true, &[0; 1400]));
        arrive(
            &mut table,
            0,
            &packet(id % 100, 1400 + id / 100 * 48, true, &[0; 48]),
        );
        let (datagrams, bytes) = table.usage();
        assert!(datagrams <= 256 && bytes <= 4 << 20, "{datagrams} {bytes}");
    }
    table.forget_interface(2);
    assert_eq!(table.usage(), (0, 0));
}

proptest! {
    /// A datagram comes back from its fragments in any order, each once or more.
    #[test]
    fn datagrams_come_back(length in 1usize..9000, mtu in 68usize..1500, order: Vec<u16>) {
        let payload: Vec<u8> = (0..length).map(|n| (n * 7) as u8).collect();
        let mut pieces: Vec<Vec<u8>> = ipv4::fragments(mtu, &payload)
            .map(|(offset, more, bytes)| packet(5, offset, more, bytes))
            .collect();
        for (at, swap) in order.into_iter().enumerate() {
            let len = pieces.len();
            pieces.swap(at % len, usize::from(swap) % len);
        }
        let mut table = Reassembly::default();
        if pieces.len() == 1 {
            return Ok(());
        }
        for (number, piece) in pieces.iter().enumerate() {
            let result = arrive(&mut table, 0, piece);
            if number + 1 < pieces.len() {
                prop_assert_eq!(&result, &Reassembled::Waits);
                prop_assert_eq!(arrive(&mut table, 0, piece), Reassembled::Waits);
            } else {
                prop_assert_eq!(result, Reassembled::Whole(payload.clone(), 17));
            }
        }
        prop_assert_eq!(table.usage(), (0, 0));
    }

    /// Whatever fragments come, a datagram that comes out is made of what came, memory is bounded
    /// and in the end there is none.
    #[test]
    fn any_fragments_are_survived(
        fragments in proptest::collection::vec((0u16..4, 0u16..40, any::<bool>(), 0usize..12), 0..200),
    ) {
        let mut table = Reassembly::default();
        for (step, (id, offset, more, units)) in fragments.into_iter().enumerate() {
            let length = if more { units * 8 } else { units * 5 };
            let bytes = packet(id, offset * 8, more, &vec![id as u8; length]);
            if !more && offset == 0 {
                continue;
            }
            if let Reassembled::Whole(whole, _) = arrive(&mut table, step as u64 * SECOND, &bytes) {
                prop_assert!(whole.iter().all(|byte| *byte == id as u8));
            }
            while table.expire(step as u64 * SECOND).is_some() {}
        }
        while table.expire(u64::MAX).is_some() {}
        prop_assert_eq!(table.usage(), (0, 0));
    }
}

#[test]
fn an_address_of_ipv6_is_a_neighbour_as_others() {
    let mut table = neighbour::Table::new(1);
    let key = Key {
        interface: 2,
        address: IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]),
    };
    assert_eq!(table.resolve(0, key, || None), Resolution::Waits);
}

#[test]
fn only_masks_without_holes_have_a_length() {
    for length in 0..=32u8 {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        assert_eq!(ip::route::netmask_len(mask.into()), Some(length));
    }
    for mask in [[0, 255, 255, 255], [255, 0, 255, 0], [0, 0, 0, 1]] {
        assert_eq!(ip::route::netmask_len(mask.into()), None);
    }
}
