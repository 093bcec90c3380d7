//! Another's messages, and any bytes.

use std::net::Ipv4Addr;

use ip::Checksum;
use ip::ipv4::{Header, Packet as Ipv4Packet};
use proptest::collection::vec;
use proptest::prelude::*;
use simple_dns::rdata::{OPT, RData};
use simple_dns::{
    CLASS, Name as TheirName, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE,
};

use crate::{FRAME_ROOM, Name, REPLY_ROOM, Zone, answer, answer_frame};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 9);

/// Names of a network, with addresses from 10.88.0.2 on.
const NAMES: [&str; 4] = ["web", "Data_Base", "a.b-c", "x"];

struct Network;

impl Zone for Network {
    fn address_of(&self, name: &Name) -> Option<Ipv4Addr> {
        let at = NAMES.iter().position(|own| name.is(own))?;
        Some(Ipv4Addr::new(10, 88, 0, at as u8 + 2))
    }

    fn contains(&self, address: Ipv4Addr) -> bool {
        matches!(address.octets(), [10, 88, ..])
    }

    fn name_of(&self, address: Ipv4Addr) -> Option<Name> {
        let own = (2..6).find(|last| address == Ipv4Addr::new(10, 88, 0, *last))?;
        Name::new(NAMES[usize::from(own) - 2])
    }
}

fn query(name: &str, kind: QTYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(0x1234);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = TheirName::new(name).unwrap().into_owned();
    let class = QCLASS::CLASS(CLASS::IN);
    packet
        .questions
        .push(Question::new(name, kind, class, false));
    packet.build_bytes_vec().unwrap()
}

fn of(kind: TYPE) -> QTYPE {
    QTYPE::TYPE(kind)
}

/// An answer as another reads it: outcome, by the authority or not, addresses and names.
fn asked(query: &[u8]) -> (RCODE, bool, Vec<String>) {
    let reply = answer(query, &Network).unwrap();
    let reply = Packet::parse(reply.bytes()).unwrap();
    assert_eq!(reply.id(), 0x1234);
    assert!(reply.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
    assert!(!reply.has_flags(PacketFlag::RECURSION_AVAILABLE));
    let records = reply.answers.iter().map(|record| {
        assert_eq!((record.ttl, record.class), (0, CLASS::IN));
        assert_eq!(record.name, reply.questions[0].qname);
        match &record.rdata {
            RData::A(data) => Ipv4Addr::from_bits(data.address).to_string(),
            RData::PTR(data) => data.0.to_string(),
            other => panic!("{other:?}"),
        }
    });
    let records = records.collect();
    let is_authority = reply.has_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    (reply.rcode(), is_authority, records)
}

#[test]
fn a_name_of_the_network_has_one_address_however_it_is_written() {
    for name in ["web", "WEB", "wEb"] {
        let found = asked(&query(name, of(TYPE::A)));
        assert_eq!(found, (RCODE::NoError, true, vec!["10.88.0.2".into()]));
    }
    let found = asked(&query("data_base", QTYPE::ANY));
    assert_eq!(found.2, ["10.88.0.3"]);
    let found = asked(&query("A.B-C", of(TYPE::A)));
    assert_eq!(found.2, ["10.88.0.4"]);
    // There is nothing else, and a resolver does not ask elsewhere.
    for kind in [TYPE::AAAA, TYPE::MX, TYPE::PTR] {
        let found = asked(&query("web", of(kind)));
        assert_eq!(found, (RCODE::NoError, true, vec![]));
    }
}

#[test]
fn an_address_of_the_network_has_one_name_or_none() {
    for (name, found) in [
        (
            "2.0.88.10.in-addr.arpa",
            (RCODE::NoError, true, vec!["web"]),
        ),
        (
            "4.0.88.10.IN-ADDR.arpa",
            (RCODE::NoError, true, vec!["a.b-c"]),
        ),
        ("9.0.88.10.in-addr.arpa", (RCODE::NameError, true, vec![])),
        ("2.0.0.127.in-addr.arpa", (RCODE::Refused, false, vec![])),
        ("02.0.88.10.in-addr.arpa", (RCODE::Refused, false, vec![])),
        ("2.0.88.266.in-addr.arpa", (RCODE::Refused, false, vec![])),
        ("0.88.10.in-addr.arpa", (RCODE::Refused, false, vec![])),
        ("1.2.0.88.10.in-addr.arpa", (RCODE::Refused, false, vec![])),
        (
            "2.0.88.10.in-addr.arpa.net",
            (RCODE::Refused, false, vec![]),
        ),
        ("2.0.88.10.in-addr", (RCODE::Refused, false, vec![])),
        ("2.0.88.10.ip6.arpa", (RCODE::Refused, false, vec![])),
    ] {
        let (outcome, is_authority, names) = asked(&query(name, of(TYPE::PTR)));
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!((outcome, is_authority, names), found, "{name}");
    }
    let found = asked(&query("2.0.88.10.in-addr.arpa", of(TYPE::A)));
    assert_eq!(found, (RCODE::NoError, true, vec![]));
}

#[test]
fn all_other_names_are_refused_and_not_ours_to_speak_of() {
    for name in [
        "we",
        "webs",
        "web.net",
        "example.com",
        "a",
        "b-c",
        "a.b-c.d",
    ] {
        let found = asked(&query(name, of(TYPE::A)));
        assert_eq!(found, (RCODE::Refused, false, vec![]), "{name}");
    }
    // A label with a dot of its own is not two, and the root is nobody.
    let dotted = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x05a.b-c\0\0\x01\0\x01";
    assert_eq!(asked(dotted).0, RCODE::Refused);
    let reverse =
        b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x052.0.8\x048.10\x07in-addr\x04arpa\0\0\x0c\0\x01";
    assert_eq!(asked(reverse).0, RCODE::Refused);
    let root = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\0\0\x01\0\x01";
    assert_eq!(asked(root).0, RCODE::Refused);
    // Another class than the Internet's.
    let chaos = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03web\0\0\x01\0\x03";
    assert_eq!(asked(chaos).0, RCODE::Refused);
}

/// Outcome of bytes that need not be a message, by the header of the answer.
fn outcome(query: &[u8]) -> Option<u8> {
    answer(query, &Network).map(|reply| reply.bytes()[3])
}

#[test]
fn what_is_no_query_is_said_to_be_none_or_not_answered() {
    let good = query("web", of(TYPE::A));
    assert_eq!(outcome(&good), Some(0));
    // Whatever is cut off: no header, no answer; no question, one that says so.
    for length in 0..good.len() {
        let expected = (length >= 12).then_some(1);
        assert_eq!(outcome(&good[..length]), expected, "{length}");
    }
    let changed = |at: usize, byte: u8| {
        let mut changed = good.clone();
        changed[at] = byte;
        outcome(&changed)
    };
    assert_eq!(changed(2, 0x81), None, "an answer is not answered");
    assert_eq!(changed(2, 0x11), Some(4), "another operation");
    assert_eq!(changed(5, 0), Some(1), "no question");
    assert_eq!(changed(5, 2), Some(1), "two questions");
    assert_eq!(changed(4, 1), Some(1), "many questions");
    for length in [0x40, 0x80, 0xc0, 0xff] {
        assert_eq!(changed(12, length), Some(1), "a length that is none");
    }
    // References: to itself, to behind, to the header.
    for to in [12, 14, 0, 200] {
        let mut loops = good[..12].to_vec();
        loops.extend_from_slice(&[0xc0, to, 0, 1, 0, 1]);
        assert_eq!(outcome(&loops), Some(1), "{to}");
    }
}

#[test]
fn names_are_no_longer_than_they_may_be() {
    let named = |labels: &[usize]| {
        let mut query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
        for length in labels {
            query.push(*length as u8);
            query.extend(std::iter::repeat_n(b'y', *length));
        }
        query.extend_from_slice(&[0, 0, 1, 0, 1]);
        outcome(&query)
    };
    assert_eq!(named(&[63, 63, 63, 61]), Some(5), "255 bytes");
    assert_eq!(named(&[63, 63, 63, 62]), Some(1), "256 bytes");
    assert_eq!(named(&[63, 63, 63, 63]), Some(1));
    assert_eq!(named(&[1; 127]), Some(5), "255 bytes");
    assert_eq!(named(&[1; 128]), Some(1));
    assert_eq!(named(&[1; 2000]), Some(1));
    // Lengths that are none of labels, with all their bytes behind them.
    for length in [64, 127, 128, 192, 250] {
        assert_eq!(named(&[length]), Some(1), "{length}");
    }
    let long = "y".repeat(63);
    let text = |last: &str| format!("{long}.{long}.{long}.{last}");
    assert!(Name::new(&text(&long[..61])).is_some_and(|name| name.is(&text(&long[..61]))));
    for none in [
        &text(&long[..62]),
        &text(&long),
        "",
        ".",
        "a.",
        ".a",
        "a..b",
    ] {
        assert_eq!(Name::new(none), None, "{none}");
    }
    assert_eq!(Name::new(&"y".repeat(64)), None);
}

#[test]
fn who_speaks_edns_is_answered_so() {
    let plain = query("web", of(TYPE::A));
    let mut packet = Packet::parse(&plain).unwrap();
    *packet.opt_mut() = Some(OPT {
        opt_codes: Vec::new(),
        udp_packet_size: 4096,
        version: 0,
    });
    let mut bytes = packet.build_bytes_vec().unwrap();
    let reply = answer(&bytes, &Network).unwrap();
    let reply = Packet::parse(reply.bytes()).unwrap();
    assert_eq!((reply.rcode(), reply.answers.len()), (RCODE::NoError, 1));
    let told = reply.opt().unwrap();
    assert_eq!((told.version, told.udp_packet_size), (0, 1232));
    // The version stands before the flags and the length at its end: 1 is not there yet.
    let version = bytes.len() - 5;
    bytes[version] = 1;
    let reply = answer(&bytes, &Network).unwrap();
    let reply = reply.bytes();
    // BADVERS is 16: its upper bits are in the first byte of the time to live (RFC 6891, 6.1.3).
    // The other crate writes and reads another one.
    assert_eq!((reply[3], reply[7]), (0, 0));
    assert_eq!(
        reply[reply.len() - 11..],
        [0, 0, 41, 4, 208, 1, 0, 0, 0, 0, 0]
    );
    // Who does not is not.
    let reply = answer(&query("web", of(TYPE::A)), &Network).unwrap();
    assert!(Packet::parse(reply.bytes()).unwrap().opt().is_none());
}

/// A frame with a datagram, from the client to the server.
fn frame(payload: &[u8], port: u16, has_sum: bool) -> Vec<u8> {
    let length = 8 + payload.len();
    let mut udp = Vec::new();
    for word in [4000, port, length as u16, 0] {
        udp.extend_from_slice(&word.to_be_bytes());
    }
    udp.extend_from_slice(payload);
    if has_sum {
        let mut sum = Checksum::pseudo_header(CLIENT, SERVER, 17, length);
        sum.add(&udp);
        udp[6..8].copy_from_slice(&sum.finish().to_be_bytes());
    }
    let header = Header {
        tos: 0,
        id: 7,
        dont_fragment: false,
        more_fragments: false,
        offset: 0,
        ttl: 64,
        protocol: 17,
        source: CLIENT,
        destination: SERVER,
    };
    let ethernet = *b"SERVERCLIENT\x08\x00";
    [&ethernet[..], &header.emit(length), &udp].concat()
}

/// The message in a frame that answers.
fn message(frame: &[u8]) -> &[u8] {
    assert_eq!(&frame[..14], b"CLIENTSERVER\x08\x00");
    let packet = Ipv4Packet::parse(&frame[14..]).unwrap();
    let header = packet.header;
    assert_eq!((header.source, header.destination), (SERVER, CLIENT));
    let udp = packet.payload;
    assert_eq!(udp[..4], [0, 53, 0x0f, 0xa0]);
    assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len());
    let mut sum = Checksum::pseudo_header(SERVER, CLIENT, 17, udp.len());
    sum.add(udp);
    assert_eq!(sum.finish(), 0);
    &udp[8..]
}

#[test]
fn a_frame_is_answered_by_a_frame() {
    let query = query("web", of(TYPE::A));
    for has_sum in [true, false] {
        let reply = answer_frame(&frame(&query, 53, has_sum), SERVER, &Network);
        let reply = reply.unwrap().unwrap();
        let expected = answer(&query, &Network).unwrap();
        assert_eq!(message(reply.bytes()), expected.bytes());
    }
    let for_others = |frame: &[u8]| answer_frame(frame, SERVER, &Network).is_none();
    assert!(for_others(&frame(&query, 54, true)));
    let other = Ipv4Addr::new(10, 88, 0, 2);
    assert!(answer_frame(&frame(&query, 53, true), other, &Network).is_none());
    let mut fragment = frame(&query, 53, true);
    fragment[14 + 6] = 0x20;
    assert!(for_others(&fragment));
}

#[test]
fn a_datagram_that_is_damaged_or_cut_short_is_not_answered() {
    let whole = frame(&query("web", of(TYPE::A)), 53, true);
    let udp = 14 + 20;
    let reply = |frame: &[u8]| answer_frame(frame, SERVER, &Network);
    for at in (udp..whole.len()).filter(|at| ![udp + 2, udp + 3].contains(at)) {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        assert!(matches!(reply(&damaged), Some(None)), "{at}");
    }
    // Longer than what is there, shorter than its own header, without a sum to tell.
    for length in [0, 7, 8, 19, 200, 65_535] {
        let mut wrong = frame(&query("web", of(TYPE::A)), 53, false);
        wrong[udp + 4..udp + 6].copy_from_slice(&u16::to_be_bytes(length));
        assert!(matches!(reply(&wrong), Some(None)), "{length}");
    }
    let mut nobody = frame(&query("web", of(TYPE::A)), 53, false);
    nobody[udp..udp + 2].fill(0);
    assert!(matches!(reply(&nobody), Some(None)));
}

proptest! {
    #[test]
    fn any_bytes_are_a_query(bytes in vec(any::<u8>(), 0..600)) {
        if let Some(reply) = answer(&bytes, &Network) {
            prop_assert!(reply.bytes().len() <= REPLY_ROOM);
            prop_assert_eq!(&reply.bytes()[..2], &bytes[..2]);
            prop_assert!(reply.bytes()[2] & 0x80 != 0);
        }
    }

    #[test]
    fn a_query_with_bytes_of_any_kind_is_answered_by_a_message(
        name in prop_oneof![
            proptest::sample::select(&NAMES).prop_map(str::to_owned),
            "[a-z0-9]{1,63}(\\.[a-zA-Z0-9_-]{1,60}){0,3}",
            "[0-9]{1,3}\\.0\\.88\\.10\\.in-addr\\.arpa",
        ],
        kind in any::<u16>(),
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        behind in vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = query(&name, of(TYPE::A));
        let at = bytes.len() - 4;
        bytes[at..at + 2].copy_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&behind);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(reply) = answer(&bytes, &Network) {
            let reply = reply.bytes();
            prop_assert_eq!(&reply[..2], &bytes[..2]);
            // What was asked comes back as it was, and all of it can be read.
            let questions = usize::from(reply[5]);
            prop_assert!(questions <= 1 && reply[4] == 0);
            if questions == 1 {
                let read = Packet::parse(reply);
                let is_text = read.is_ok() || name.is_empty() || kind != 1;
                prop_assert!(is_text || bytes.iter().any(|byte| !byte.is_ascii()), "{read:?}");
                prop_assert_eq!(reply[12], bytes[12]);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_frame(bytes in vec(any::<u8>(), 0..200)) {
        let _ = answer_frame(&bytes, SERVER, &Network);
    }

    #[test]
    fn any_payload_of_a_frame_is_answered_to_its_sender(
        payload in vec(any::<u8>(), 0..1400),
        has_sum in any::<bool>(),
    ) {
        let reply = answer_frame(&frame(&payload, 53, has_sum), SERVER, &Network).unwrap();
        if let Some(reply) = reply {
            prop_assert!(reply.bytes().len() <= FRAME_ROOM);
            let expected = answer(&payload, &Network).unwrap();
            prop_assert_eq!(message(reply.bytes()), expected.bytes());
        }
    }
}
