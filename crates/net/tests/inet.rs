//! `AF_INET` and `AF_INET6` over the loop: what datagrams carry, whom they reach, and what is
//! refused.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use abi::errno::Errno;
use common::{NOW, PATIENT, call_as, protocol, stack};
use fs::poll::Events;
use fs::{Cred, File, OpenFlags};
use linux_raw_sys::net as sys;
use net::{Address, MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketType, TimerCallback};

const IP: u32 = sys::IPPROTO_IP as u32;
const IPV6: u32 = sys::IPPROTO_IPV6 as u32;
const UDP_LITE: i32 = sys::IPPROTO_UDPLITE as i32;

fn socket(file: &File) -> &Socket {
    file.ops_as::<Socket>().unwrap()
}

fn make(family: u32, kind: SocketType, number: i32) -> Arc<File> {
    stack()
        .socket(family, kind, number)
        .unwrap()
        .into_file(OpenFlags::empty())
}

fn udp() -> Arc<File> {
    make(sys::AF_INET, SocketType::Datagram, 0)
}

fn at(text: &str) -> Address {
    Address::Inet(text.parse().unwrap())
}

fn bind(file: &File, address: &Address) -> fs::Result<()> {
    call_as(&Cred::root(), |caller| protocol(file).bind(caller, address))
}

fn connect(file: &File, address: &Address) -> fs::Result<()> {
    call_as(&Cred::root(), |caller| {
        protocol(file).connect(caller, address, PATIENT)
    })
}

/// Binds to any free port of an address.
fn bound(file: Arc<File>, ip: &str) -> (Arc<File>, Address) {
    let ip: IpAddr = ip.parse().unwrap();
    bind(&file, &Address::Inet(SocketAddr::new(ip, 0))).unwrap();
    let address = protocol(&file).local_address();
    (file, address)
}

fn port(address: &Address) -> u16 {
    let Address::Inet(address) = address else {
        panic!("{address:?}")
    };
    address.port()
}

fn send_with(
    file: &File,
    data: &[u8],
    to: &Address,
    beside: &[(u32, u32, Vec<u8>)],
) -> fs::Result<usize> {
    call_as(&Cred::root(), |caller| {
        let message = OutgoingMessage {
            to: Some((caller, to)),
            control: beside.to_vec(),
            ..OutgoingMessage::plain(data)
        };
        protocol(file).send(message, MsgFlags::empty(), NOW)
    })
}

fn send(file: &File, data: &[u8], to: &Address) -> fs::Result<usize> {
    send_with(file, data, to, &[])
}

fn write(file: &File, data: &[u8]) -> fs::Result<usize> {
    protocol(file).send(OutgoingMessage::plain(data), MsgFlags::empty(), NOW)
}

fn receive(file: &File, limit: usize, flags: MsgFlags) -> fs::Result<(Vec<u8>, ReceivedMessage)> {
    protocol(file).receive_to_vec(limit, flags, NOW)
}

fn bytes(file: &File) -> fs::Result<Vec<u8>> {
    receive(file, 1000, MsgFlags::empty()).map(|(data, _)| data)
}

fn set(file: &File, option: u32, value: i32) {
    socket(file)
        .options()
        .set_int_option(option, value, true)
        .unwrap();
}

fn set_inet(file: &File, level: u32, option: u32, value: i32) -> fs::Result<()> {
    protocol(file).set_option(level, option, &value.to_ne_bytes())
}

#[test]
fn datagrams_are_whole_in_order_and_say_from_whom() {
    let (a, from) = bound(udp(), "127.0.0.1");
    let (b, to) = bound(udp(), "127.0.0.1");
    assert_eq!(bytes(&b), Err(Errno::EAGAIN));
    assert!(!protocol(&b).poll(&b, None).contains(Events::IN));
    assert_eq!(
        [
            send(&a, b"first", &to),
            send(&a, b"", &to),
            send(&a, b"third", &to)
        ],
        [Ok(5), Ok(0), Ok(5)]
    );
    assert!(protocol(&b).poll(&b, None).contains(Events::IN));
    assert_eq!(
        (
            protocol(&b).receive_queue_bytes(),
            protocol(&b).send_queue_bytes()
        ),
        (5, 0)
    );
    let (data, got) = receive(&b, 3, MsgFlags::PEEK).unwrap();
    assert_eq!(
        (data, got.copied, got.message_len, got.from),
        (b"fir".to_vec(), 3, 5, Some(from.clone()))
    );
    let (data, got) = receive(&b, 3, MsgFlags::empty()).unwrap();
    assert_eq!(
        (data, got.copied, got.message_len, got.from),
        (b"fir".to_vec(), 3, 5, Some(from)),
        "the rest is lost"
    );
    let mut buf = [9; 8];
    assert_eq!(
        protocol(&b)
            .receive(&mut buf, MsgFlags::empty(), NOW)
            .unwrap()
            .copied,
        0
    );
    assert_eq!((b.read(&mut buf), &buf), (Ok(5), b"third\x09\x09\x09"));
    assert_eq!(bytes(&b), Err(Errno::EAGAIN));
}

#[test]
fn looking_goes_on_behind_what_was_looked_at() {
    let (a, _) = bound(udp(), "127.0.0.1");
    let (b, to) = bound(udp(), "127.0.0.1");
    for data in [&b"abcd"[..], b"efg"] {
        send(&a, data, &to).unwrap();
    }
    let peek = |limit| receive(&b, limit, MsgFlags::PEEK).map(|(data, _)| data);
    socket(&b).options().set_peek_offset(0);
    assert_eq!(
        (peek(3), peek(3), peek(9)),
        (Ok(b"abc".to_vec()), Ok(b"d".to_vec()), Ok(b"efg".to_vec()))
    );
    assert_eq!(peek(9), Err(Errno::EAGAIN));
    // What is taken comes off what was looked at.
    assert_eq!(
        (bytes(&b), socket(&b).options().peek_offset()),
        (Ok(b"abcd".to_vec()), 3)
    );
    socket(&b).options().set_peek_offset(1);
    assert_eq!(peek(9), Ok(b"fg".to_vec()));
}

#[test]
fn who_is_connected_hears_of_its_peer_alone() {
    let (a, from) = bound(udp(), "127.0.0.1");
    let (b, to) = bound(udp(), "127.0.0.1");
    let (c, other) = bound(udp(), "127.0.0.1");
    assert_eq!(write(&a, b"x"), Err(Errno::EDESTADDRREQ));
    assert_eq!(protocol(&a).peer_address(), Err(Errno::ENOTCONN));
    connect(&a, &to).unwrap();
    assert_eq!(
        (protocol(&a).peer_address(), write(&a, b"hello"), bytes(&b)),
        (Ok(to.clone()), Ok(5), Ok(b"hello".to_vec()))
    );
    // One that is connected elsewhere does not take it; nobody else is there.
    send(&c, b"from c", &from).unwrap();
    assert_eq!(bytes(&a), Err(Errno::EAGAIN));
    send(&b, b"from b", &from).unwrap();
    assert_eq!(bytes(&a), Ok(b"from b".to_vec()));
    // It may still send to others.
    assert_eq!(
        (send(&a, b"to c", &other), bytes(&c)),
        (Ok(4), Ok(b"to c".to_vec()))
    );
    // That nobody is there is told by the next call, once, of the peer only.
    drop(b);
    assert_eq!(
        (write(&a, b"x"), write(&a, b"x")),
        (Ok(1), Err(Errno::ECONNREFUSED))
    );
    assert_eq!(
        (
            write(&a, b"x"),
            protocol(&a).take_error(),
            protocol(&a).take_error()
        ),
        (Ok(1), Some(Errno::ECONNREFUSED), None)
    );
    assert_eq!(
        (write(&a, b"x"), bytes(&a), bytes(&a)),
        (Ok(1), Err(Errno::ECONNREFUSED), Err(Errno::EAGAIN))
    );
    drop(c);
    assert_eq!(
        (send(&a, b"x", &other), protocol(&a).take_error()),
        (Ok(1), None)
    );
    assert_eq!(
        (
            write(&a, b"x"),
            protocol(&a).poll(&a, None).contains(Events::ERR)
        ),
        (Ok(1), true)
    );
    // Dissolved, it has its own port still, as that was asked for... by number: this one was
    // chosen.
    connect(&a, &Address::Unspec).unwrap();
    assert_eq!(protocol(&a).peer_address(), Err(Errno::ENOTCONN));
}

#[test]
fn a_port_that_was_chosen_goes_with_the_association() {
    let (_server, to) = bound(udp(), "127.0.0.1");
    let chosen = udp();
    connect(&chosen, &to).unwrap();
    let own = protocol(&chosen).local_address();
    assert!(port(&own) != 0 && own == at(&format!("127.0.0.1:{}", port(&own))));
    connect(&chosen, &Address::Unspec).unwrap();
    assert_eq!(protocol(&chosen).local_address(), at("0.0.0.0:0"));
    // One that was asked for stays.
    let asked = udp();
    bind(&asked, &own).unwrap();
    connect(&asked, &to).unwrap();
    connect(&asked, &Address::Unspec).unwrap();
    assert_eq!(protocol(&asked).local_address(), own);
    assert_eq!(bind(&udp(), &own), Err(Errno::EADDRINUSE));
    drop(asked);
    assert_eq!(bind(&udp(), &own), Ok(()));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let (_server, to) = bound(udp(), "127.0.0.1");
    let (a, _) = bound(udp(), "127.0.0.1");
    assert_eq!(send(&a, b"x", &at("127.0.0.1:0")), Err(Errno::EINVAL));
    assert_eq!(send(&a, b"x", &at("[::1]:9")), Err(Errno::EAFNOSUPPORT));
    assert_eq!(send(&a, b"x", &at("10.0.0.1:9")), Err(Errno::ENETUNREACH));
    assert_eq!(
        (send(&a, &[0; 65_507], &to), send(&a, &[0; 65_508], &to)),
        (Ok(65_507), Err(Errno::EMSGSIZE))
    );
    let (six, to6) = bound(make(sys::AF_INET6, SocketType::Datagram, 0), "::1");
    assert_eq!(
        (
            send(&six, &[0; 65_527], &to6),
            send(&six, &[0; 65_528], &to6)
        ),
        (Ok(65_527), Err(Errno::EMSGSIZE))
    );
    let urgent = protocol(&a).send(OutgoingMessage::plain(b"x"), MsgFlags::OOB, NOW);
    assert_eq!(urgent, Err(Errno::EOPNOTSUPP));
    for broadcast in ["127.255.255.255:9", "255.255.255.255:9"] {
        assert_eq!(send(&a, b"x", &at(broadcast)), Err(Errno::EACCES));
    }
    set(&a, sys::SO_BROADCAST, 1);
    assert_eq!(send(&a, b"x", &at("127.255.255.255:9")), Ok(1));
    // Sending was ended, of one that is not connected with an error that says so.
    assert_eq!(
        (protocol(&a).shutdown(false, true), send(&a, b"x", &to)),
        (Err(Errno::ENOTCONN), Err(Errno::EPIPE))
    );
    let b = udp();
    connect(&b, &to).unwrap();
    assert_eq!(
        (
            protocol(&b).shutdown(true, false),
            bytes(&b),
            write(&b, b"x")
        ),
        (Ok(()), Ok(vec![]), Ok(1))
    );
    let events = protocol(&b).poll(&b, None);
    assert!(events.contains(Events::IN | Events::RDHUP) && !events.contains(Events::HUP));
    assert_eq!(
        (protocol(&b).listen(1), protocol(&b).accept(NOW).err()),
        (Err(Errno::EOPNOTSUPP), Some(Errno::EOPNOTSUPP))
    );
}

#[test]
fn addresses_that_cannot_be_bound() {
    let (a, own) = bound(udp(), "127.0.0.1");
    assert_eq!(
        bind(&a, &at("127.0.0.1:0")),
        Err(Errno::EINVAL),
        "it has one"
    );
    assert_eq!(bind(&udp(), &own), Err(Errno::EADDRINUSE));
    assert_eq!(bind(&udp(), &at("10.0.0.1:0")), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(bind(&udp(), &at("[::1]:0")), Err(Errno::EAFNOSUPPORT));
    assert_eq!(bind(&udp(), &Address::Unspec), Err(Errno::EAFNOSUPPORT));
    // Ports below 1024 are an administrator's.
    let as_user = |address: &str| {
        call_as(&Cred::user(1000, 1000), |caller| {
            protocol(&udp()).bind(caller, &at(address))
        })
    };
    assert_eq!(
        (
            as_user("127.0.0.1:1023"),
            as_user("127.0.0.1:1024"),
            as_user("127.0.0.1:0")
        ),
        (Err(Errno::EACCES), Ok(()), Ok(()))
    );
    assert_eq!(bind(&udp(), &at("127.0.0.1:1023")), Ok(()));
    // The same port of another protocol or address is another one.
    assert_eq!(
        bind(&make(sys::AF_INET, SocketType::Datagram, UDP_LITE), &own),
        Ok(())
    );
    assert_eq!(
        bind(&udp(), &at(&format!("127.0.0.2:{}", port(&own)))),
        Ok(())
    );
    let six = make(sys::AF_INET6, SocketType::Datagram, 0);
    set_inet(&six, IPV6, sys::IPV6_V6ONLY, 1).unwrap();
    assert_eq!(
        bind(&six, &at("[::ffff:127.0.0.1]:0")),
        Err(Errno::EADDRNOTAVAIL)
    );
    assert_eq!(bind(&six, &at(&format!("[::]:{}", port(&own)))), Ok(()));
}

#[test]
fn what_has_no_room_is_lost_and_counted() {
    let (a, _) = bound(udp(), "127.0.0.1");
    let (b, to) = bound(udp(), "127.0.0.1");
    set(&b, sys::SO_RCVBUF, 1500);
    set(&b, sys::SO_RXQ_OVFL, 1);
    // Each takes 256 bytes besides its own: four of 500 have room in 3000, and the one that fills
    // it exactly not.
    for _ in 0..3 {
        send(&a, &[1; 500], &to).unwrap();
    }
    send(&a, &[1; 3000 - 3 * 756 - 256], &to).unwrap();
    send(&a, b"", &to).unwrap();
    assert_eq!(
        (
            protocol(&b).memory_info().receive_bytes,
            protocol(&b).memory_info().drops
        ),
        (3000, 1)
    );
    for _ in 0..4 {
        let (_, got) = receive(&b, 1000, MsgFlags::empty()).unwrap();
        assert!(got.control.is_empty());
    }
    assert_eq!(protocol(&b).memory_info().receive_bytes, 0);
    // The next one says how many were lost; one that is too large by itself has room where nothing
    // is.
    send(&a, &[2; 5000], &to).unwrap();
    let (data, got) = receive(&b, 9000, MsgFlags::empty()).unwrap();
    assert_eq!(
        (data.len(), got.control),
        (
            5000,
            vec![(
                sys::SOL_SOCKET,
                sys::SO_RXQ_OVFL,
                1u32.to_ne_bytes().to_vec()
            )]
        )
    );
}

#[test]
fn a_receiver_is_told_what_it_asked_for() {
    let word = |n: i32| n.to_ne_bytes().to_vec();
    let (a, _) = bound(udp(), "127.0.0.1");
    let (b, to) = bound(udp(), "127.0.0.1");
    for option in [
        sys::IP_PKTINFO,
        sys::IP_RECVTTL,
        sys::IP_RECVTOS,
        sys::IP_RECVORIGDSTADDR,
    ] {
        set_inet(&b, IP, option, 1).unwrap();
    }
    let told = |b: &File| receive(b, 100, MsgFlags::empty()).unwrap().1.control;
    send(&a, b"x", &to).unwrap();
    let information = [1, 0, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1].to_vec();
    let expected = [
        (IP, sys::IP_PKTINFO, information),
        (IP, sys::IP_TTL, word(64)),
        (IP, sys::IP_TOS, vec![0]),
        (IP, sys::IP_RECVORIGDSTADDR, to.encode()),
    ];
    assert_eq!(told(&b), expected);
    // What the sender's options say, and what the message says.
    set_inet(&a, IP, sys::IP_TTL, 9).unwrap();
    set_inet(&a, IP, sys::IP_TOS, 8).unwrap();
    send(&a, b"x", &to).unwrap();
    assert_eq!(
        told(&b)[1..3],
        [(IP, sys::IP_TTL, word(9)), (IP, sys::IP_TOS, vec![8])]
    );
    let source = [&[0; 4][..], &[127, 0, 0, 7], &[0; 4]].concat();
    let beside = [
        (IP, sys::IP_TTL, word(3)),
        (IP, sys::IP_TOS, vec![4]),
        (IP, sys::IP_PKTINFO, source),
    ];
    send_with(&a, b"x", &to, &beside).unwrap();
    let (_, got) = receive(&b, 100, MsgFlags::empty()).unwrap();
    assert_eq!(
        got.control[1..3],
        [(IP, sys::IP_TTL, word(3)), (IP, sys::IP_TOS, vec![4])]
    );
    assert!(
        matches!(got.from, Some(Address::Inet(from)) if from.ip() == IpAddr::from([127, 0, 0, 7]))
    );
    // -1 is as it is chosen; what makes no sense is refused.
    send_with(&a, b"x", &to, &[(IP, sys::IP_TTL, word(-1))]).unwrap();
    assert_eq!(told(&b)[1], (IP, sys::IP_TTL, word(9)));
    let foreign = [&[0; 4][..], &[10, 0, 0, 1], &[0; 4]].concat();
    for bad in [
        (IP, sys::IP_TTL, word(256)),
        (IP, sys::IP_TTL, word(-2)),
        (IP, sys::IP_TOS, word(256)),
        (IP, sys::IP_TTL, vec![]),
        (IP, sys::IP_PKTINFO, vec![0; 7]),
        (IP, sys::IP_PKTINFO, foreign),
        (IP, 200, word(1)),
    ] {
        assert_eq!(
            send_with(&a, b"x", &to, std::slice::from_ref(&bad)),
            Err(Errno::EINVAL),
            "{bad:?}"
        );
    }
    assert_eq!(
        send_with(
            &a,
            b"x",
            &to,
            &[(IP, sys::IP_TTL, word(255)), (IP, sys::IP_TOS, word(0))]
        ),
        Ok(1)
    );
}

#[test]
fn a_socket_of_both_families_sees_mapped_addresses() {
    let six = |ip: &str| bound(make(sys::AF_INET6, SocketType::Datagram, 0), ip);
    let (b, to) = six("::");
    for option in [
        sys::IPV6_RECVPKTINFO,
        sys::IPV6_RECVHOPLIMIT,
        sys::IPV6_RECVTCLASS,
    ] {
        set_inet(&b, IPV6, option, 1).unwrap();
    }
    let (a, from) = bound(udp(), "127.0.0.1");
    send(&a, b"four", &at(&format!("127.0.0.1:{}", port(&to)))).unwrap();
    let (data, got) = receive(&b, 100, MsgFlags::empty()).unwrap();
    assert_eq!(
        (data, got.from),
        (
            b"four".to_vec(),
            Some(at(&format!("[::ffff:127.0.0.1]:{}", port(&from))))
        )
    );
    let (c, from) = six("::1");
    set_inet(&c, IPV6, sys::IPV6_UNICAST_HOPS, 5).unwrap();
    set_inet(&c, IPV6, sys::IPV6_TCLASS, 6).unwrap();
    send(&c, b"six", &at(&format!("[::1]:{}", port(&to)))).unwrap();
    let (data, got) = receive(&b, 100, MsgFlags::empty()).unwrap();
    assert_eq!((data, got.from), (b"six".to_vec(), Some(from)));
    let word = |n: i32| n.to_ne_bytes().to_vec();
    let information = [&[0; 15][..], &[1], &[1, 0, 0, 0]].concat();
    let expected = [
        (IPV6, sys::IPV6_PKTINFO, information),
        (IPV6, sys::IPV6_HOPLIMIT, word(5)),
        (IPV6, sys::IPV6_TCLASS, word(6)),
    ];
    assert_eq!(got.control, expected);
    // It reaches both; no address is this host, in either family.
    let (four, four_at) = bound(udp(), "0.0.0.0");
    assert_eq!(
        (
            send(
                &b,
                b"x",
                &at(&format!("[::ffff:0.0.0.0]:{}", port(&four_at)))
            ),
            bytes(&four)
        ),
        (Ok(1), Ok(b"x".to_vec()))
    );
    let (d, d_at) = six("::1");
    assert_eq!(
        (
            send(&b, b"y", &at(&format!("[::]:{}", port(&d_at)))),
            bytes(&d)
        ),
        (Ok(1), Ok(b"y".to_vec()))
    );
    assert_eq!(
        send(
            &d,
            b"x",
            &at(&format!("[::ffff:127.0.0.1]:{}", port(&four_at)))
        ),
        Err(Errno::ENETUNREACH)
    );
    set_inet(
        &make(sys::AF_INET6, SocketType::Datagram, 0),
        IPV6,
        sys::IPV6_V6ONLY,
        1,
    )
    .unwrap();
}

#[test]
fn those_in_a_group_all_get_what_is_sent_to_it() {
    let members = [(); 3].map(|()| {
        let file = udp();
        set(&file, sys::SO_REUSEADDR, 1);
        file
    });
    bind(&members[0], &at("0.0.0.0:0")).unwrap();
    let everybody = at(&format!(
        "0.0.0.0:{}",
        port(&protocol(&members[0]).local_address())
    ));
    members[1..]
        .iter()
        .for_each(|member| bind(member, &everybody).unwrap());
    let request = |group: [u8; 4]| [group, [127, 0, 0, 1]].concat();
    let join =
        |file: &File, group| protocol(file).set_option(IP, sys::IP_ADD_MEMBERSHIP, &request(group));
    let leave = |file: &File, group| {
        protocol(file).set_option(IP, sys::IP_DROP_MEMBERSHIP, &request(group))
    };
    const GROUP: [u8; 4] = [239, 1, 2, 3];
    assert_eq!(
        (join(&members[0], GROUP), join(&members[1], GROUP)),
        (Ok(()), Ok(()))
    );
    assert_eq!(
        (join(&members[0], GROUP), join(&members[0], [10, 0, 0, 1])),
        (Err(Errno::EADDRINUSE), Err(Errno::EINVAL))
    );
    // The interface's number counts if there is all of it.
    let numbered = |length: usize| {
        [&request([239, 9, 9, 9])[..], &9u32.to_ne_bytes()].concat()[..length].to_vec()
    };
    let join_at = |length: usize| {
        protocol(&members[2]).set_option(IP, sys::IP_ADD_MEMBERSHIP, &numbered(length))
    };
    assert_eq!(
        (join_at(7), join_at(12), join_at(11)),
        (Err(Errno::EINVAL), Err(Errno::ENODEV), Ok(()))
    );
    let (sender, _) = bound(udp(), "127.0.0.1");
    protocol(&sender)
        .set_option(IP, sys::IP_MULTICAST_IF, &[127, 0, 0, 1])
        .unwrap();
    let to = at(&format!("239.1.2.3:{}", port(&everybody)));
    assert_eq!(send(&sender, b"all", &to), Ok(3));
    let got = || members.each_ref().map(|member| bytes(member).is_ok());
    assert_eq!(got(), [true, true, false]);
    assert_eq!(
        (leave(&members[0], GROUP), leave(&members[0], GROUP)),
        (Ok(()), Err(Errno::EADDRNOTAVAIL))
    );
    send(&sender, b"all", &to).unwrap();
    assert_eq!(got(), [false, true, false]);
    // What is sent to one of several at a port goes to the one that was bound last.
    send(
        &sender,
        b"one",
        &at(&format!("127.0.0.1:{}", port(&everybody))),
    )
    .unwrap();
    assert_eq!(got(), [false, false, true]);
}

mod streams {
    use super::*;

    fn tcp() -> Arc<File> {
        make(sys::AF_INET, SocketType::Stream, 0)
    }

    fn listener(backlog: usize) -> (Arc<File>, Address) {
        let (file, address) = bound(tcp(), "127.0.0.1");
        protocol(&file).listen(backlog).unwrap();
        (file, address)
    }

    #[test]
    fn both_ends_know_each_other() {
        let (server, to) = listener(1);
        assert!(protocol(&server).is_listening() && !protocol(&tcp()).is_listening());
        assert_eq!(protocol(&server).accept(NOW).err(), Some(Errno::EAGAIN));
        let client = tcp();
        assert_eq!(
            (protocol(&client).peer_address(), write(&client, b"x")),
            (Err(Errno::ENOTCONN), Err(Errno::EPIPE))
        );
        assert_eq!(bytes(&client), Err(Errno::ENOTCONN));
        connect(&client, &to).unwrap();
        assert_eq!(connect(&client, &to), Err(Errno::EISCONN));
        assert!(protocol(&server).poll(&server, None).contains(Events::IN));
        let served = protocol(&server)
            .accept(NOW)
            .unwrap()
            .into_file(OpenFlags::empty());
        assert_eq!(
            (
                protocol(&served).local_address(),
                protocol(&served).peer_address()
            ),
            (to.clone(), Ok(protocol(&client).local_address()))
        );
        assert_eq!(protocol(&client).peer_address(), Ok(to));
        assert_eq!(
            (write(&client, b"ping"), bytes(&served), bytes(&served)),
            (Ok(4), Ok(b"ping".to_vec()), Err(Errno::EAGAIN))
        );
        protocol(&client).shutdown(false, true).unwrap();
        assert_eq!(
            (bytes(&served), write(&served, b"pong"), bytes(&client)),
            (Ok(vec![]), Ok(4), Ok(b"pong".to_vec()))
        );
        assert_eq!(write(&client, b"x"), Err(Errno::EPIPE));
        drop(served);
        assert_eq!(bytes(&client), Ok(vec![]));
    }

    /// Each request of a connection for memory is refused, the listener's among them.
    #[test]
    fn a_connection_that_is_refused_memory_is_not_made() {
        let (server, to) = listener(1);
        let client = tcp();
        let mut refusals = Vec::new();
        loop {
            fallible::inject::set(refusals.len() as u32 + 1).unwrap();
            let connected = connect(&client, &to);
            let was_refused = fallible::inject::left() == 0;
            fallible::inject::clear();
            if !was_refused {
                assert_eq!(connected, Ok(()));
                break;
            }
            let waits = protocol(&server).accept(NOW);
            assert_eq!(waits.err(), Some(Errno::EAGAIN), "after {refusals:?}");
            refusals.push(connected);
        }
        assert!(refusals.contains(&Err(Errno::ECONNREFUSED)), "{refusals:?}");
        protocol(&server).accept(NOW).unwrap();
    }

    #[test]
    fn who_does_not_listen_refuses() {
        let (file, address) = bound(tcp(), "127.0.0.1");
        assert_eq!(connect(&tcp(), &address), Err(Errno::ECONNREFUSED));
        assert_eq!(protocol(&file).accept(NOW).err(), Some(Errno::EINVAL));
        let (server, to) = listener(1);
        assert_eq!(connect(&tcp(), &at("10.0.0.1:80")), Err(Errno::ENETUNREACH));
        assert_eq!(connect(&server, &to), Err(Errno::EISCONN));
        assert_eq!(
            (write(&server, b"x"), bytes(&server)),
            (Err(Errno::EPIPE), Err(Errno::ENOTCONN))
        );
        drop(server);
        assert_eq!(connect(&tcp(), &to), Err(Errno::ECONNREFUSED));
        assert_eq!(
            stack().socket(sys::AF_INET, SocketType::Seqpacket, 0).err(),
            Some(Errno::ESOCKTNOSUPPORT)
        );
        assert_eq!(
            stack().socket(sys::AF_INET, SocketType::Stream, 17).err(),
            Some(Errno::EPROTONOSUPPORT)
        );
        assert_eq!(
            stack().socket(sys::AF_INET, SocketType::Raw, 256).err(),
            Some(Errno::EINVAL)
        );
    }

    #[test]
    fn an_urgent_byte_is_received_by_itself() {
        let (server, to) = listener(1);
        let client = tcp();
        let receive_urgent = |file: &File| {
            let mut byte = [0; 4];
            protocol(file)
                .receive(&mut byte, MsgFlags::OOB, NOW)
                .map(|got| (got.copied, got.urgent, byte[0]))
        };
        assert_eq!(
            (
                receive_urgent(&client),
                receive(&client, 1, MsgFlags::OOB).err()
            ),
            (Err(Errno::EINVAL), Some(Errno::EINVAL))
        );
        connect(&client, &to).unwrap();
        let served = protocol(&server)
            .accept(NOW)
            .unwrap()
            .into_file(OpenFlags::NONBLOCK);
        let polled = |events| served.poll(None).contains(events);
        assert!(!polled(Events::IN) && !polled(Events::PRI) && polled(Events::OUT));
        assert_eq!(receive_urgent(&served), Err(Errno::EINVAL), "there is none");
        assert_eq!(
            protocol(&client).send(OutgoingMessage::plain(b"abU"), MsgFlags::OOB, NOW),
            Ok(3)
        );
        write(&client, b"cd").unwrap();
        assert!(polled(Events::IN) && polled(Events::PRI));
        // Receiving stops before it, and goes on behind it.
        assert_eq!(
            (
                protocol(&served).at_mark(),
                protocol(&served).receive_queue_bytes(),
                bytes(&served)
            ),
            (Ok(false), 2, Ok(b"ab".to_vec()))
        );
        assert_eq!(
            (
                protocol(&served).at_mark(),
                receive_urgent(&served),
                receive_urgent(&served)
            ),
            (Ok(true), Ok((1, true, b'U')), Err(Errno::EINVAL))
        );
        assert!(polled(Events::IN) && !polled(Events::PRI));
        assert_eq!(
            (bytes(&served), bytes(&served)),
            (Ok(b"cd".to_vec()), Err(Errno::EAGAIN))
        );
        // In line it is a byte like others.
        set(&served, sys::SO_OOBINLINE, 1);
        assert_eq!(
            protocol(&client).send(OutgoingMessage::plain(b"xyz"), MsgFlags::OOB, NOW),
            Ok(3)
        );
        assert_eq!(
            (receive_urgent(&served), bytes(&served), bytes(&served)),
            (Err(Errno::EINVAL), Ok(b"xy".to_vec()), Ok(b"z".to_vec()))
        );
    }

    #[test]
    fn a_listener_receives_nothing_whatever_was_ended_before() {
        let (file, _) = bound(tcp(), "127.0.0.1");
        assert_eq!(protocol(&file).shutdown(true, false), Err(Errno::ENOTCONN));
        assert_eq!(bytes(&file), Ok(vec![]), "it never will");
        protocol(&file).listen(1).unwrap();
        assert_eq!(bytes(&file), Err(Errno::ENOTCONN));
    }

    /// Connections that are not accepted before data has come, or the time is over.
    #[test]
    fn a_deferred_connection_waits_for_its_first_byte() {
        static ALARMS: Mutex<Vec<(u64, Arc<dyn TimerCallback>)>> = Mutex::new(Vec::new());
        net::set_timer_scheduler(|at, alarm| ALARMS.lock().unwrap().push((at, alarm)));
        const TCP: u32 = 6;
        let (server, to) = listener(4);
        protocol(&server)
            .set_option(TCP, sys::TCP_DEFER_ACCEPT, &5i32.to_ne_bytes())
            .unwrap();
        assert_eq!(
            protocol(&server).option(TCP, sys::TCP_DEFER_ACCEPT),
            Ok(7i32.to_ne_bytes().to_vec())
        );
        let clients = [(); 2].map(|()| {
            let before = task::now_ns();
            let client = tcp();
            connect(&client, &to).unwrap();
            let at = ALARMS.lock().unwrap().last().unwrap().0;
            assert!(at >= before + 7_000_000_000 && at <= task::now_ns() + 7_000_000_000);
            client
        });
        assert_eq!(protocol(&server).accept(NOW).err(), Some(Errno::EAGAIN));
        write(&clients[1], b"data").unwrap();
        let first = protocol(&server)
            .accept(NOW)
            .unwrap()
            .into_file(OpenFlags::NONBLOCK);
        assert_eq!(
            (bytes(&first), protocol(&server).accept(NOW).err()),
            (Ok(b"data".to_vec()), Some(Errno::EAGAIN))
        );
        let alarms = std::mem::take(&mut *ALARMS.lock().unwrap());
        alarms.iter().for_each(|(_, alarm)| alarm.on_expiry());
        let second = protocol(&server)
            .accept(NOW)
            .unwrap()
            .into_file(OpenFlags::NONBLOCK);
        assert_eq!(
            protocol(&second).peer_address(),
            Ok(protocol(&clients[0]).local_address())
        );
        assert_eq!(protocol(&server).accept(NOW).err(), Some(Errno::EAGAIN));
    }
}
