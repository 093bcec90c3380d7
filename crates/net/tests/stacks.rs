//! Network stacks as a whole: each has its own ports, names, sysctls, taps and files in flight.

mod common;

use std::sync::Arc;

use abi::errno::Errno;
use common::{PATIENT, call, protocol};
use fs::{File, OpenFlags};
use linux_raw_sys::net as sys;
use net::inet::{Family, Loopback, procfs};
use net::{Address, MsgFlags, OutgoingMessage, Socket, SocketType, Stack, UnixName};

fn stack() -> Arc<Stack> {
    Stack::new(Arc::new(Loopback))
}

fn make(stack: &Stack, family: u32, kind: SocketType, number: i32) -> Arc<File> {
    stack
        .socket(family, kind, number)
        .unwrap()
        .into_file(OpenFlags::NONBLOCK)
}

fn at(text: &str) -> Address {
    Address::Inet(text.parse().unwrap())
}

fn name(text: &[u8]) -> Address {
    Address::Unix(UnixName::Abstract(text.into()))
}

fn bind(file: &File, address: &Address) -> fs::Result<()> {
    call(|caller| protocol(file).bind(caller, address))
}

fn connect(file: &File, address: &Address) -> fs::Result<()> {
    call(|caller| protocol(file).connect(caller, address, PATIENT))
}

#[test]
fn ports_that_are_given_are_of_the_range_and_come_to_an_end() {
    let [stack, other] = [(); 2].map(|()| stack());
    let range = |stack: &Stack, set: Option<&[u8]>| {
        let mut all = stack.sysctls().all();
        let range = all
            .find(|sysctl| sysctl.path() == "ipv4/ip_local_port_range")
            .unwrap();
        set.map_or(Ok(()), |text| range.set(text)).unwrap();
        range.text()
    };
    assert_eq!(range(&stack, Some(b"40000 40002")), "40000\t40002\n");
    assert_eq!(range(&other, None), "32768\t60999\n");
    for kind in [SocketType::Datagram, SocketType::Stream] {
        let server = make(&stack, sys::AF_INET, kind, 0);
        bind(&server, &at("127.0.0.1:50000")).unwrap();
        if kind == SocketType::Stream {
            protocol(&server).listen(10).unwrap();
        }
        let connect = |file: &File| connect(file, &at("127.0.0.1:50000"));
        let sockets = [(); 4].map(|()| make(&stack, sys::AF_INET, kind, 0));
        let mut results: Vec<_> = sockets.iter().map(|socket| connect(socket)).collect();
        assert_eq!(
            (results.pop(), results),
            (Some(Err(Errno::EADDRINUSE)), vec![Ok(()); 3]),
            "{kind:?}"
        );
        let mut ports: Vec<_> = sockets[..3]
            .iter()
            .map(|socket| protocol(socket).local_address())
            .collect();
        ports.sort_by_key(|address| format!("{address:?}"));
        assert_eq!(
            ports,
            [40_000, 40_001, 40_002].map(|port| at(&format!("127.0.0.1:{port}")))
        );
        let [first, .., last] = sockets;
        drop(first);
        assert!(connect(&last).is_ok(), "one is free again");
    }
}

#[test]
fn ports_of_one_stack_are_not_those_of_another() {
    let [here, there] = [(); 2].map(|()| stack());
    for kind in [SocketType::Datagram, SocketType::Stream] {
        let make = |stack: &Stack| make(stack, sys::AF_INET, kind, 0);
        let address = at("127.0.0.1:7000");
        let (server, second) = (make(&here), make(&here));
        bind(&server, &address).unwrap();
        assert_eq!(bind(&second, &address), Err(Errno::EADDRINUSE));
        if kind == SocketType::Stream {
            protocol(&server).listen(1).unwrap();
            assert_eq!(
                connect(&make(&there), &address),
                Err(Errno::ECONNREFUSED),
                "nobody listens in the other stack"
            );
        } else {
            let client = make(&there);
            connect(&client, &address).unwrap();
            assert_eq!(client.write(b"x"), Ok(1));
            assert_eq!(client.write(b"x"), Err(Errno::ECONNREFUSED));
        }
        let other = make(&there);
        assert_eq!(bind(&other, &address), Ok(()), "the port is free there");
        connect(&second, &address).unwrap();
        let listed = |stack: &Stack| {
            let text = match kind {
                SocketType::Stream => procfs::tcp(stack.inet(), Family::V4),
                _ => procfs::udp(stack.inet(), Family::V4),
            };
            text.unwrap().lines().count() - 1
        };
        assert_eq!(
            (listed(&here), listed(&there)),
            match kind {
                SocketType::Stream => (3, 1),
                _ => (2, 1),
            }
        );
    }
}

#[test]
fn names_of_one_stack_are_not_those_of_another() {
    let [here, there] = [(); 2].map(|()| stack());
    let make = |stack: &Stack| make(stack, sys::AF_UNIX, SocketType::Datagram, 0);
    let (server, other, client) = (make(&here), make(&there), make(&there));
    bind(&server, &name(b"name")).unwrap();
    assert_eq!(connect(&client, &name(b"name")), Err(Errno::ECONNREFUSED));
    bind(&other, &name(b"name")).unwrap();
    connect(&client, &name(b"name")).unwrap();
    client.write(b"x").unwrap();
    assert_eq!(server.read(&mut [0; 4]), Err(Errno::EAGAIN));
    assert_eq!(other.read(&mut [0; 4]), Ok(1));
    let names = |stack: &Stack| {
        let mut names = 0;
        stack.object_counts(&mut |name, count| {
            if name == "unix_names" {
                names = count;
            }
        });
        names
    };
    drop(server);
    assert_eq!((names(&here), names(&there)), (0, 1));
}

#[test]
fn taps_see_the_packets_of_their_stack_alone() {
    const ALL: i32 = 0x0300;
    let [here, there] = [(); 2].map(|()| stack());
    let [tap, other] =
        [&here, &there].map(|stack| make(stack, sys::AF_PACKET, SocketType::Raw, ALL));
    let [receiver, sender] = [(); 2].map(|()| make(&here, sys::AF_INET, SocketType::Datagram, 0));
    bind(&receiver, &at("127.0.0.1:0")).unwrap();
    connect(&sender, &protocol(&receiver).local_address()).unwrap();
    sender.write(b"x").unwrap();
    assert!(tap.read(&mut [0; 100]).is_ok());
    assert_eq!(other.read(&mut [0; 100]), Err(Errno::EAGAIN));
}

/// A socket in flight through two stacks has references that neither knows all of: neither may take
/// it for unreachable.
#[test]
fn files_in_flight_through_several_stacks_live() {
    let [here, there] = [(); 2].map(|()| stack());
    let pair = |stack: &Stack| {
        let (a, b) = stack.socket_pair(SocketType::Stream, 0).unwrap();
        [a, b].map(|socket| socket.into_file(OpenFlags::NONBLOCK))
    };
    let ([a, b], [c, d]) = (pair(&here), pair(&there));
    let send = |stack: &Stack, over: &File, file: &Arc<File>| {
        let message = OutgoingMessage {
            rights: Some(stack.scm_rights(vec![file.clone()], None)),
            ..OutgoingMessage::plain(b"x")
        };
        protocol(over).send(message, MsgFlags::empty(), PATIENT)
    };
    let [e, f] = pair(&here);
    send(&here, &a, &e).unwrap();
    send(&there, &c, &e).unwrap();
    drop(e);
    for stack in [&here, &there] {
        drop(pair(stack));
    }
    f.write(b"alive").unwrap();
    for file in [&b, &d] {
        let got = protocol(file).receive(&mut [0; 8], MsgFlags::PEEK, PATIENT);
        let files = got.unwrap().rights.unwrap().into_files();
        assert_eq!(files[0].ops_as::<Socket>().map(|_| ()), Some(()));
    }
    let got = protocol(&b).receive(&mut [0; 8], MsgFlags::empty(), PATIENT);
    let files = got.unwrap().rights.unwrap().into_files();
    assert_eq!(files[0].read(&mut [0; 8]), Ok(5));
}
