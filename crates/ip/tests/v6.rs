//! Packets of IPv6: headers that extend the first one, fragments, messages, against the RFCs.

use std::net::Ipv6Addr;

use ip::groups::{Groups, MessageOf, Query, Version};
use ip::v6::discovery::{Advertisement, Message, Solicitation};
use ip::v6::mld;
use ip::v6::{self, FragmentField, Header, Packet, Refusal, icmp, next, problem};
use ip::{Fragment, Reassembled, Reassembly, SECOND};
use proptest::prelude::*;

const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const DESTINATION: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

fn header(hop_limit: u8) -> Header {
    Header {
        traffic_class: 0x1c,
        flow_label: 0x1_2345,
        hop_limit,
        source: SOURCE,
        destination: DESTINATION,
    }
}

fn packet(first: u8, rest: &[u8]) -> Vec<u8> {
    [&header(64).emit(first, rest.len())[..], rest].concat()
}

fn refusal(first: u8, rest: &[u8]) -> Refusal {
    Packet::parse(&packet(first, rest)).unwrap_err()
}

fn problem(code: u8, pointer: u32, also_of_groups: bool) -> Refusal {
    Refusal::Problem {
        code,
        pointer,
        also_of_groups,
    }
}

#[test]
fn headers_come_back() {
    let mut bytes = packet(next::UDP, b"contents");
    bytes.extend_from_slice(b"of the link");
    let parsed = Packet::parse(&bytes).unwrap();
    assert_eq!((parsed.header, parsed.protocol), (header(64), next::UDP));
    assert_eq!((parsed.payload, parsed.fragment), (&b"contents"[..], None));
    for length in 0..48 {
        assert_eq!(Packet::parse(&bytes[..length]), Err(Refusal::Malformed));
    }
    bytes[0] = 0x45;
    assert_eq!(Packet::parse(&bytes), Err(Refusal::Malformed));
}

/// RFC 8200, 4.2: what to do with an option that nobody knows its first bits say.
#[test]
fn unknown_options_say_what_is_to_be_done() {
    let options = |kind: u8| [next::UDP, 0, kind, 4, 0, 0, 0, 0];
    for first in [next::HOP_BY_HOP, next::DESTINATION] {
        let skipped = packet(first, &[&options(0x1e)[..], &[7; 8]].concat());
        assert_eq!(Packet::parse(&skipped).unwrap().payload, [7; 8]);
        assert_eq!(refusal(first, &options(0x5e)), Refusal::Malformed);
        let told = problem(problem::OPTION, 42, true);
        assert_eq!(refusal(first, &options(0x9e)), told);
        let told = problem(problem::OPTION, 42, false);
        assert_eq!(refusal(first, &options(0xde)), told);
    }
    let alert = packet(0, &[&mld::ROUTER_ALERT[..], &[130; 24]].concat());
    assert!(Packet::parse(&alert).unwrap().has_router_alert);
    let padding = [next::UDP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        refusal(60, &padding),
        Refusal::Malformed,
        "too much padding"
    );
    let talking = [next::UDP, 0, 1, 4, 0, 9, 0, 0];
    assert_eq!(
        refusal(60, &talking),
        Refusal::Malformed,
        "padding that says something"
    );
    let cut = [next::UDP, 0, 0x1e, 5, 0, 0, 0, 0];
    assert_eq!(
        refusal(60, &cut),
        Refusal::Malformed,
        "an option beyond its header"
    );
}

#[test]
fn headers_are_where_they_may_be() {
    // Options for each host come first only (RFC 8200, 4.1).
    let late = [
        next::HOP_BY_HOP,
        0,
        1,
        4,
        0,
        0,
        0,
        0,
        next::UDP,
        0,
        1,
        4,
        0,
        0,
        0,
        0,
    ];
    assert_eq!(refusal(60, &late), problem(problem::HEADER, 40, false));
    // A route that is not at its end (RFC 5095; RFC 8200, 4.4); one that is, is nothing.
    let route = |left: u8| [next::UDP, 0, 0, left, 0, 0, 0, 0];
    assert_eq!(refusal(43, &route(1)), problem(problem::FIELD, 42, false));
    assert!(Packet::parse(&packet(43, &route(0))).is_ok());
    let many = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
    assert_eq!(refusal(60, &many), Refusal::Malformed, "too many");
    assert_eq!(
        refusal(60, &[next::UDP, 3, 1, 4, 0, 0, 0, 0]),
        Refusal::Malformed,
        "too short"
    );
}

fn piece(offset: u16, more: bool, protocol: u8, data: &[u8]) -> Vec<u8> {
    let field = FragmentField {
        id: 7,
        offset,
        more,
    };
    let head = v6::fragment_header(protocol, field);
    packet(next::FRAGMENT, &[&head[..], data].concat())
}

fn arrive(table: &mut Reassembly, bytes: &[u8]) -> Reassembled {
    let packet = Packet::parse(bytes).unwrap();
    table.arrive(SECOND, &Fragment::of_v6(&packet, 2).unwrap())
}

#[test]
fn fragments_become_whole_or_nothing() {
    let mut table = Reassembly::default();
    let first = piece(0, true, next::UDP, &[1; 16]);
    assert_eq!(arrive(&mut table, &first), Reassembled::Waits);
    // The protocol is that of the first one, whatever others say.
    let whole = Reassembled::Whole([&[1; 16][..], b"end"].concat(), next::UDP);
    assert_eq!(arrive(&mut table, &piece(16, false, 99, b"end")), whole);
    // An overlap ends all of it (RFC 5722).
    arrive(&mut table, &piece(0, true, next::UDP, &[1; 16]));
    let overlap = piece(8, true, next::UDP, &[2; 16]);
    assert_eq!(arrive(&mut table, &overlap), Reassembled::Overlap);
    let end = piece(24, false, next::UDP, b"end");
    assert_eq!(arrive(&mut table, &end), Reassembled::Dropped);
    // One that is all of its packet is none (RFC 6946).
    let atomic = piece(0, false, next::UDP, &[1; 16]);
    let parsed = Packet::parse(&atomic).unwrap();
    assert_eq!((parsed.fragment, parsed.payload), (None, &[1; 16][..]));
    // Sizes (RFC 8200, 4.5), and a first one without all headers (RFC 7112).
    let refused = |bytes: &[u8]| Packet::parse(bytes).unwrap_err();
    let odd = piece(0, true, next::UDP, &[1; 15]);
    assert_eq!(refused(&odd), problem(problem::FIELD, 4, false));
    let beyond = piece(0xfff8, false, next::UDP, &[1; 9]);
    assert_eq!(refused(&beyond), problem(problem::FIELD, 42, false));
    let short = piece(0, true, next::TCP, &[1; 8]);
    assert_eq!(refused(&short), problem(problem::CHAIN, 0, false));
    let nested = Packet::parse_joined(next::FRAGMENT, &[next::UDP, 0, 0, 1, 0, 0, 0, 1]);
    assert!(nested.is_err());
    let options = [next::UDP, 0, 1, 4, 0, 0, 0, 0];
    assert_eq!(Packet::parse_joined(60, &options), Ok((next::UDP, 8)));
}

#[test]
fn messages_of_discovery_come_back_and_forgeries_do_not() {
    let hardware = [2, 0, 0, 0, 0, 1];
    let question = Solicitation {
        target: DESTINATION,
        hardware: Some(hardware),
        nonce: Some([1, 2, 3, 4, 5, 6]),
    };
    let bytes = question.emit(SOURCE, DESTINATION).unwrap();
    assert!(icmp::is_whole(SOURCE, DESTINATION, &bytes));
    let near = header(255);
    assert_eq!(
        Message::parse(&near, &bytes),
        Ok(Some(Message::Solicitation(question)))
    );
    assert!(Message::parse(&header(254), &bytes).is_err());
    let mut endless = bytes.clone();
    endless[25] = 0;
    assert!(Message::parse(&near, &endless).is_err());
    assert!(Message::parse(&near, &bytes[..bytes.len() - 1]).is_err());
    let nobody = Header {
        source: Ipv6Addr::UNSPECIFIED,
        ..near
    };
    assert!(
        Message::parse(&nobody, &bytes).is_err(),
        "nobody is nowhere"
    );
    let answer = Advertisement {
        target: SOURCE,
        hardware: Some(hardware),
        is_router: true,
        is_solicited: true,
        overrides: false,
    };
    let bytes = answer.emit(SOURCE, DESTINATION).unwrap();
    assert_eq!(
        Message::parse(&near, &bytes),
        Ok(Some(Message::Advertisement(answer)))
    );
    let all = Header {
        destination: v6::address::ALL_NODES,
        ..near
    };
    assert!(Message::parse(&all, &bytes).is_err(), "nobody asked");
}

#[test]
fn errors_quote_and_are_not_about_errors() {
    let about = packet(next::UDP, &[7; 1400]);
    let mut message = icmp::error_message(2, 0, 1300, &[&about]).unwrap();
    icmp::seal(SOURCE, DESTINATION, &mut message);
    assert_eq!(message.len(), 1240);
    let error = icmp::parse_error(&message).unwrap().unwrap();
    assert_eq!(
        (error.kind, error.info, error.protocol),
        (2, 1300, next::UDP)
    );
    assert_eq!(error.header, header(64));
    let may = |kind: u8, to: Ipv6Addr, groups: bool| {
        let about = Header {
            destination: to,
            ..header(64)
        };
        icmp::may_complain(&about, next::ICMP, &[kind, 0, 0, 0], groups)
    };
    assert!(may(128, DESTINATION, false) && !may(1, DESTINATION, false));
    assert!(!may(137, DESTINATION, true) && !may(128, v6::address::ALL_NODES, false));
    assert!(may(128, v6::address::ALL_NODES, true));
}

#[test]
fn reports_and_queries_are_those_of_the_rfc() {
    let group = v6::address::solicited_node(SOURCE);
    let mut groups = Groups::default();
    groups.hold(0, group, true).unwrap();
    groups.hold(0, v6::address::ALL_NODES, true).unwrap();
    let messages = groups.messages(0, |_| 0);
    assert_eq!(messages.len(), 1);
    let (to, report) = mld::message(SOURCE, &messages[0]).unwrap();
    assert_eq!((report[0], &report[6..12]), (143, &[0, 1, 4, 0, 0, 0][..]));
    assert_eq!((to, report.len()), (v6::address::ALL_MLD_ROUTERS, 28));
    assert!(icmp::is_whole(SOURCE, to, &report));
    // It is told once more.
    assert_eq!(groups.messages(1, |_| 0), messages);
    let mut query = vec![130, 0, 0, 0, 0x80, 1, 0, 0];
    query.extend_from_slice(&[0; 20]);
    let parsed = Query::parse(&query).unwrap();
    assert_eq!(parsed.within, (0x1001 << 3) * (SECOND / 1000));
    for length in [23, 25, 27] {
        assert!(Query::parse(&query[..length]).is_err(), "{length}");
    }
    // A router of the first version asks for one group, and is told in its way.
    query[4..6].copy_from_slice(&100u16.to_be_bytes());
    let old = Query::parse(&query[..24]).unwrap();
    assert_eq!((old.version, old.within), (Version::First, SECOND / 10));
    groups.take_query(0, &old, |_| 3);
    assert_eq!(groups.messages(2, |_| 0), []);
    let answers = groups.messages(3, |_| 0);
    assert_eq!(answers, [MessageOf::Joined(group)]);
    let (to, report) = mld::message(SOURCE, &answers[0]).unwrap();
    assert_eq!((to, report[0], report.len()), (group, 131, 24));
    assert_eq!(mld::group_of(&report), Ok(group));
    groups.hold(5, group, false).unwrap();
    let left = groups.messages(5, |_| 0);
    let (to, done) = mld::message(SOURCE, &left[0]).unwrap();
    assert_eq!((to, done[0]), (v6::address::ALL_ROUTERS, 132));
    assert!(icmp::is_whole(SOURCE, to, &done));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, first: u8, hop_limit: u8) {
        let whole = [&header(hop_limit).emit(first, bytes.len())[..], &bytes].concat();
        if let Ok(packet) = Packet::parse(&whole) {
            prop_assert_eq!(packet.head.len() + packet.payload.len(), whole.len());
            let _ = Fragment::of_v6(&packet, 1);
        }
        let _ = v6::parse_quoted(&whole);
        let _ = Packet::parse_joined(first, &bytes);
        let _ = icmp::parse_error(&bytes);
        let _ = Query::parse(&bytes);
        if let Ok(Some(Message::RouterAdvertisement(said))) = Message::parse(&header(255), &bytes) {
            prop_assert!(said.prefixes().count() <= v6::discovery::MOST_PREFIXES);
        }
    }

    /// A payload in pieces, in any order, some twice, is the payload again.
    #[test]
    fn pieces_are_put_together(length in 1700usize..9000, mtu in 1280usize..1600, seed: u64) {
        let payload: Vec<u8> = (0..length).map(|n| (n >> 3) as u8).collect();
        let mut pieces: Vec<Vec<u8>> = v6::fragments(mtu, &payload)
            .map(|(offset, more, data)| piece(offset, more, next::UDP, data))
            .collect();
        prop_assert!(pieces.iter().all(|piece| piece.len() <= mtu));
        let count = pieces.len();
        for at in (1..count).rev() {
            pieces.swap(at, (seed >> (at % 40)) as usize % (at + 1));
        }
        let mut table = Reassembly::default();
        for (at, piece) in pieces.iter().enumerate() {
            let result = arrive(&mut table, piece);
            if at + 1 < count {
                prop_assert_eq!(&result, &Reassembled::Waits);
                prop_assert_eq!(arrive(&mut table, piece), Reassembled::Waits);
            } else {
                prop_assert_eq!(&result, &Reassembled::Whole(payload.clone(), next::UDP));
            }
        }
        prop_assert_eq!(table.usage(), (0, 0));
    }
}
