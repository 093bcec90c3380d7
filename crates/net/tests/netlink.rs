//! `AF_NETLINK` as a program uses it: requests, answers in order, and the errors of each protocol.

mod common;

use std::sync::Arc;

use abi::errno::Errno;
use common::{NOW, protocol, stack};
use fs::poll::Events;
use fs::{File, OpenFlags};
use linux_raw_sys::net as sys;
use net::{MsgFlags, OutgoingMessage, SocketType};

const ROUTE: i32 = 0;
const SOCK_DIAG: i32 = 4;
const GENERIC: i32 = 16;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

fn open(protocol: i32) -> Arc<File> {
    stack()
        .socket(sys::AF_NETLINK, SocketType::Datagram, protocol)
        .unwrap()
        .into_file(OpenFlags::NONBLOCK)
}

fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = 16 + body.len() as u32;
    let mut message = [
        &length.to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &[7, 0, 0, 0, 0, 0, 0, 0],
        body,
    ]
    .concat();
    message.resize(message.len().next_multiple_of(4), 0);
    message
}

/// Kinds of the messages that answer a request, and the error if it was refused.
fn ask(file: &File, message: &[u8]) -> (Vec<u16>, Option<i32>) {
    assert_eq!(file.write(message), Ok(message.len()));
    let (mut kinds, mut error) = (Vec::new(), None);
    let mut buf = vec![0; 1 << 16];
    while let Ok(count) = file.read(&mut buf) {
        let mut rest = &buf[..count];
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            if kind == ERROR {
                error = Some(-i32::from_ne_bytes(rest[16..20].try_into().unwrap()));
            }
            kinds.push(kind);
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
    (kinds, error)
}

#[test]
fn a_reply_that_is_looked_at_stays() {
    let file = open(ROUTE);
    assert_eq!(file.read(&mut [0; 8]), Err(Errno::EAGAIN));
    assert!(!file.poll(None).contains(Events::IN));
    let links = request(18, REQUEST | DUMP, &[0; 16]);
    file.write(&links).unwrap();
    assert!(file.poll(None).contains(Events::IN));
    let peek = |limit| {
        protocol(&file)
            .receive_to_vec(limit, MsgFlags::PEEK, NOW)
            .unwrap()
    };
    let (first, got) = peek(1 << 16);
    assert!(got.message_len == first.len() && got.copied == first.len());
    let (part, got) = peek(20);
    assert_eq!(
        (part.as_slice(), got.copied, got.message_len),
        (&first[..20], 20, first.len())
    );
    let (taken, _) = protocol(&file)
        .receive_to_vec(1 << 16, MsgFlags::empty(), NOW)
        .unwrap();
    assert_eq!(taken, first);
    assert_ne!(
        protocol(&file)
            .receive_to_vec(1 << 16, MsgFlags::empty(), NOW)
            .map(|(data, _)| data)
            .ok(),
        Some(first)
    );
    let urgent = protocol(&file).send(OutgoingMessage::plain(&links), MsgFlags::OOB, NOW);
    assert_eq!(urgent, Err(Errno::EOPNOTSUPP));
}

#[test]
fn sockets_are_listed_by_family_and_protocol() {
    let file = open(SOCK_DIAG);
    let udp = stack()
        .socket(sys::AF_INET, SocketType::Datagram, 0)
        .unwrap()
        .into_file(OpenFlags::empty());
    let body = |family: u32, protocol: i32, length: usize| {
        let mut body = vec![0; length];
        (body[0], body[1]) = (family as u8, protocol as u8);
        body[4..8].fill(0xff);
        body
    };
    let ask_for = |body: &[u8], flags| ask(&file, &request(20, flags, body));
    assert_eq!(
        ask_for(&body(sys::AF_INET, 17, 56), REQUEST | DUMP)
            .0
            .last(),
        Some(&DONE)
    );
    assert_eq!(
        ask_for(&body(sys::AF_INET, 99, 56), REQUEST | DUMP).1,
        Some(Errno::ENOENT.raw()),
        "a protocol nobody knows"
    );
    assert_eq!(
        ask_for(&body(sys::AF_PACKET, 0, 56), REQUEST | DUMP).1,
        Some(Errno::ENOENT.raw())
    );
    assert_eq!(
        ask_for(&body(sys::AF_INET, 17, 55), REQUEST | DUMP).1,
        Some(Errno::EINVAL.raw()),
        "too short"
    );
    assert_eq!(
        ask_for(&body(sys::AF_UNIX, 0, 23), REQUEST | DUMP).1,
        Some(Errno::EINVAL.raw())
    );
    assert_eq!(
        ask_for(&body(sys::AF_UNIX, 0, 24), REQUEST | DUMP).0.last(),
        Some(&DONE)
    );
    assert_eq!(
        ask_for(&body(sys::AF_INET, 17, 56), REQUEST).1,
        Some(Errno::EOPNOTSUPP.raw()),
        "only lists"
    );
    assert_eq!(
        ask(
            &file,
            &request(21, REQUEST | DUMP, &body(sys::AF_INET, 17, 56))
        )
        .1,
        Some(Errno::EINVAL.raw())
    );
    drop(udp);
}

#[test]
fn generic_families_are_found_by_name() {
    let file = open(GENERIC);
    let named = |name: &[u8]| {
        let attribute = [
            &(name.len() as u16 + 4).to_ne_bytes()[..],
            &2u16.to_ne_bytes(),
            name,
        ]
        .concat();
        ask(
            &file,
            &request(16, REQUEST, &[&[3, 1, 0, 0][..], &attribute].concat()),
        )
    };
    assert_eq!(named(b"nlctrl\0").0, [16]);
    assert_eq!(named(b"nobody\0").1, Some(Errno::ENOENT.raw()));
    assert_eq!(
        ask(&file, &request(16, REQUEST, &[3, 1, 0, 0])).1,
        Some(Errno::EINVAL.raw()),
        "neither name nor number"
    );
    assert_eq!(
        ask(&file, &request(16, REQUEST, &[99, 1, 0, 0])).1,
        Some(Errno::EOPNOTSUPP.raw())
    );
    assert_eq!(
        ask(&file, &request(77, REQUEST, &[3, 1, 0, 0])).1,
        Some(Errno::ENOENT.raw())
    );
    assert_eq!(
        stack()
            .socket(sys::AF_NETLINK, SocketType::Datagram, 3)
            .err(),
        Some(Errno::EPROTONOSUPPORT)
    );
    assert_eq!(
        stack()
            .socket(sys::AF_NETLINK, SocketType::Stream, ROUTE)
            .err(),
        Some(Errno::ESOCKTNOSUPPORT)
    );
}
