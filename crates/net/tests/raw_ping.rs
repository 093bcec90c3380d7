//! Sockets that speak IP itself, and those that ask for an echo, over the loop; and the requests
//! about interfaces that any socket takes.

mod common;

use std::cell::RefCell;
use std::sync::Arc;

use abi::errno::Errno;
use common::{NOW, call, protocol, stack};
use fs::ioctl::{IoctlCaller as Memory, IoctlRequest, KernelCaller};
use fs::{File, OpenFlags};
use linux_raw_sys::{ioctl, net as sys};
use net::inet::{Family, procfs};
use net::{Address, MsgFlags, OutgoingMessage, SocketType};

const ICMP: i32 = 1;
const ICMP6: i32 = 58;
const SOL_RAW: u32 = 255;
const SOL_ICMPV6: u32 = 58;

fn make(family: u32, kind: SocketType, number: i32) -> Arc<File> {
    stack()
        .socket(family, kind, number)
        .unwrap()
        .into_file(OpenFlags::NONBLOCK)
}

fn at(text: &str) -> Address {
    Address::Inet(text.parse().unwrap())
}

fn bind(file: &File, address: &str) -> fs::Result<()> {
    call(|caller| protocol(file).bind(caller, &at(address)))
}

fn send(file: &File, data: &[u8], to: &str) -> fs::Result<usize> {
    call(|caller| {
        let to = at(to);
        protocol(file).send(
            OutgoingMessage {
                to: Some((caller, &to)),
                ..OutgoingMessage::plain(data)
            },
            MsgFlags::empty(),
            NOW,
        )
    })
}

fn receive(file: &File) -> fs::Result<(Vec<u8>, Option<Address>)> {
    protocol(file)
        .receive_to_vec(1000, MsgFlags::empty(), NOW)
        .map(|(data, got)| (data, got.from))
}

#[test]
fn who_asks_is_answered_with_its_own_number() {
    for (family, number, to, request, reply) in [
        (sys::AF_INET, ICMP, "127.0.0.1", 8, 0),
        (sys::AF_INET6, ICMP6, "[::1]", 128, 129),
    ] {
        let to = format!("{to}:0");
        let file = make(family, SocketType::Datagram, number);
        let ask =
            |kind: u8, code: u8, rest: &[u8]| send(&file, &[&[kind, code][..], rest].concat(), &to);
        // No less than a header, and nothing but requests.
        assert_eq!(ask(request, 0, &[0; 5]), Err(Errno::EINVAL));
        assert_eq!(
            (ask(request, 1, &[0; 6]), ask(reply, 0, &[0; 6])),
            (Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
        assert_eq!(ask(request, 0, &[0, 0, 0, 0, 0, 7, b'h', b'i']), Ok(10));
        let Address::Inet(own) = protocol(&file).local_address() else {
            panic!("of another family")
        };
        assert_ne!(own.port(), 0);
        let (data, from) = receive(&file).unwrap();
        assert_eq!(
            (data[0], data[1], &data[4..]),
            (
                reply,
                0,
                &[&own.port().to_be_bytes()[..], &[0, 7], b"hi"].concat()[..]
            )
        );
        assert_eq!(from, Some(at(&to)));
        assert_eq!(receive(&file).err(), Some(Errno::EAGAIN));
        let urgent = protocol(&file).send(OutgoingMessage::plain(&[0; 8]), MsgFlags::OOB, NOW);
        assert_eq!(urgent, Err(Errno::EOPNOTSUPP));
        assert_eq!(
            protocol(&file)
                .receive(&mut [0; 8], MsgFlags::OOB, NOW)
                .err(),
            Some(Errno::EOPNOTSUPP)
        );
    }
    assert_eq!(
        stack()
            .socket(sys::AF_INET, SocketType::Datagram, ICMP6)
            .err(),
        Some(Errno::EPROTONOSUPPORT)
    );
    assert_eq!(
        stack()
            .socket(sys::AF_INET6, SocketType::Datagram, ICMP)
            .err(),
        Some(Errno::EPROTONOSUPPORT)
    );
}

#[test]
fn an_asker_is_bound_once_to_a_number() {
    let file = make(sys::AF_INET, SocketType::Datagram, ICMP);
    assert_eq!(bind(&file, "10.0.0.1:5"), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(
        (
            bind(&file, "127.0.0.1:777"),
            protocol(&file).local_address()
        ),
        (Ok(()), at("127.0.0.1:777"))
    );
    assert_eq!(bind(&file, "127.0.0.1:778"), Err(Errno::EINVAL));
    send(&file, &[8, 0, 0, 0, 0, 0, 0, 1], "127.0.0.1:0").unwrap();
    assert_eq!(receive(&file).unwrap().0[4..6], 777u16.to_be_bytes());
    // What is for another address of this host is not for this one; groups and any address may be
    // bound.
    for address in ["224.0.0.1:0", "0.0.0.0:0"] {
        assert_eq!(
            bind(&make(sys::AF_INET, SocketType::Datagram, ICMP), address),
            Ok(()),
            "{address}"
        );
    }
    // Whoever is bound to a number last hears the answers, and the number is free when he goes.
    let later = make(sys::AF_INET, SocketType::Datagram, ICMP);
    bind(&later, "127.0.0.1:777").unwrap();
    send(&file, &[8, 0, 0, 0, 0, 0, 0, 2], "127.0.0.1:0").unwrap();
    assert_eq!(
        (receive(&file).err(), receive(&later).unwrap().0[7]),
        (Some(Errno::EAGAIN), 2)
    );
    drop(later);
    send(&file, &[8, 0, 0, 0, 0, 0, 0, 3], "127.0.0.1:0").unwrap();
    assert_eq!(receive(&file).err(), Some(Errno::EAGAIN));
    // Connected, it hears its peer only, and forgets the address that came with it.
    let file = make(sys::AF_INET, SocketType::Datagram, ICMP);
    call(|caller| protocol(&file).connect(caller, &at("127.0.0.1:0"), NOW)).unwrap();
    assert_eq!(
        protocol(&file).send(
            OutgoingMessage::plain(&[8, 0, 0, 0, 0, 0, 0, 4]),
            MsgFlags::empty(),
            NOW
        ),
        Ok(8)
    );
    assert_eq!(receive(&file).unwrap().0[7], 4);
    call(|caller| protocol(&file).connect(caller, &Address::Unspec, NOW)).unwrap();
    assert!(
        matches!(protocol(&file).local_address(), Address::Inet(local) if local.ip().is_unspecified())
    );
}

#[test]
fn who_listens_to_a_protocol_hears_it_with_headers() {
    let file = make(sys::AF_INET, SocketType::Raw, ICMP);
    // A request whose checksum is right: it is heard, and so is the answer.
    let request = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    send(&file, &request, "127.0.0.1:0").unwrap();
    let (first, from) = receive(&file).unwrap();
    assert_eq!(
        (first.len(), first[0], first[9], &first[20..]),
        (28, 0x45, 1, &request[..])
    );
    assert_eq!(from, Some(at("127.0.0.1:0")));
    assert_eq!(
        receive(&file).unwrap().0[20..],
        [0, 0, 0xff, 0xff, 0, 0, 0, 0]
    );
    // One that is too short, or has a wrong checksum, is not answered.
    for message in [&request[..7], &[8, 0, 0xf7, 0xfe, 0, 0, 0, 0]] {
        send(&file, message, "127.0.0.1:0").unwrap();
        assert_eq!(
            (
                receive(&file).unwrap().0[20..] == *message,
                receive(&file).err()
            ),
            (true, Some(Errno::EAGAIN))
        );
    }
    // Kinds of messages can be left out: answers are of kind 0.
    let filter = |value: &[u8]| protocol(&file).set_option(SOL_RAW, 1, value);
    assert_eq!(
        (filter(&[1, 0, 0]), filter(&[1, 0, 0, 0])),
        (Err(Errno::EINVAL), Ok(()))
    );
    assert_eq!(protocol(&file).option(SOL_RAW, 1), Ok(vec![1, 0, 0, 0]));
    send(&file, &request, "127.0.0.1:0").unwrap();
    assert_eq!(
        (receive(&file).unwrap().0[20], receive(&file).err()),
        (8, Some(Errno::EAGAIN))
    );
    assert_eq!(
        (
            protocol(&file).set_option(SOL_RAW, 2, &[0; 4]),
            protocol(&file).option(SOL_RAW, 2)
        ),
        (Err(Errno::ENOPROTOOPT), Err(Errno::ENOPROTOOPT))
    );
    // Of IPv6 there are eight words, and no headers.
    let six = make(sys::AF_INET6, SocketType::Raw, ICMP6);
    protocol(&six)
        .set_option(SOL_ICMPV6, 1, &[[0; 16], [2; 16]].concat())
        .unwrap();
    assert_eq!(
        protocol(&six).option(SOL_ICMPV6, 1),
        Ok([[0; 16], [2; 16]].concat())
    );
    send(&six, &[128, 0, 0, 0, 0, 0, 0, 5], "[::1]:0").unwrap();
    let (heard, _) = receive(&six).unwrap();
    assert_eq!(
        (heard[0], heard.len(), receive(&six).err()),
        (128, 8, Some(Errno::EAGAIN)),
        "kind 129 is left out"
    );
    // Where checksums are put: at even places, and of ICMPv6 always at the same.
    let other = make(sys::AF_INET6, SocketType::Raw, 200);
    let checksum =
        |file: &File, level: u32, at: i32| protocol(file).set_option(level, 7, &at.to_ne_bytes());
    assert_eq!(
        (checksum(&other, SOL_RAW, 3), checksum(&other, SOL_RAW, 4)),
        (Err(Errno::EINVAL), Ok(()))
    );
    assert_eq!(
        protocol(&other).option(SOL_RAW, 7),
        Ok(4i32.to_ne_bytes().to_vec())
    );
    // The sum is over the message with nothing in its place, whatever the program has left there.
    let sent = |place: [u8; 2]| {
        send(
            &other,
            &[&[1, 2, 3, 4][..], &place, &[5, 6]].concat(),
            "[::1]:0",
        )
        .unwrap();
        receive(&other).unwrap().0
    };
    let clean = sent([0, 0]);
    assert!(
        clean[4..6] != [0, 0] && sent([0xff, 0]) == clean && sent([0, 0xff]) == clean,
        "{clean:?}"
    );
    assert_eq!(
        (
            checksum(&other, SOL_RAW, -5),
            protocol(&other).option(SOL_RAW, 7)
        ),
        (Ok(()), Ok((-1i32).to_ne_bytes().to_vec()))
    );
    assert_eq!(
        checksum(&six, sys::IPPROTO_IPV6 as u32, 2),
        Err(Errno::EINVAL)
    );
    // Each is listed with those of its family and sort.
    let listed = |row: &str| {
        [
            procfs::raw(stack().inet(), Family::V4),
            procfs::raw(stack().inet(), Family::V6),
            procfs::icmp(stack().inet(), Family::V4),
            procfs::icmp(stack().inet(), Family::V6),
        ]
        .map(|text| text.unwrap().contains(row))
    };
    assert_eq!(listed(":00C8 "), [false, true, false, false]);
    let asker = make(sys::AF_INET, SocketType::Datagram, ICMP);
    bind(&asker, "127.0.0.1:52719").unwrap();
    assert_eq!(listed(":CDEF "), [false, false, true, false]);
}

/// A caller whose memory is one structure.
struct One(RefCell<Vec<u8>>);

impl Memory for One {
    fn read_bytes(&self, _: usize, to: &mut [u8]) -> fs::Result<()> {
        to.copy_from_slice(self.0.borrow().get(..to.len()).ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn write_bytes(&self, _: usize, from: &[u8]) -> fs::Result<()> {
        *self.0.borrow_mut() = from.to_vec();
        Ok(())
    }

    fn install(&self, _: Arc<File>, _: fs::OpenFlags) -> fs::Result<usize> {
        Err(Errno::EMFILE)
    }

    fn privileged(&self) -> bool {
        true
    }
}

fn control(file: &File, command: u32, input: &[u8]) -> fs::Result<Vec<u8>> {
    net::set_credentials_provider(|| net::Ucred::OVERFLOW, || Arc::from([]), |_| true);
    let memory = One(RefCell::new(input.to_vec()));
    file.ioctl(&IoctlRequest {
        command,
        arg: 0,
        caller: &memory,
    })?;
    Ok(memory.0.into_inner())
}

#[test]
fn the_loop_can_be_set_to_what_it_is() {
    let file = make(sys::AF_INET, SocketType::Datagram, 0);
    let with = |value: &[u8]| {
        let mut request = vec![0; 40];
        request[..2].copy_from_slice(b"lo");
        request[16..16 + value.len()].copy_from_slice(value);
        request
    };
    let address = |ip: [u8; 4]| {
        [
            &(sys::AF_INET as u16).to_ne_bytes()[..],
            &[0, 0],
            &ip,
            &[0; 8],
        ]
        .concat()
    };
    let set = |command: u32, value: &[u8]| control(&file, command, &with(value)).map(drop);
    for (command, same, other) in [
        (
            ioctl::SIOCSIFADDR,
            address([127, 0, 0, 1]),
            address([127, 0, 0, 2]),
        ),
        (
            ioctl::SIOCSIFNETMASK,
            address([255, 0, 0, 0]),
            address([255, 255, 0, 0]),
        ),
        (
            ioctl::SIOCSIFMTU,
            65_536u32.to_ne_bytes().to_vec(),
            1500u32.to_ne_bytes().to_vec(),
        ),
        (
            ioctl::SIOCSIFFLAGS,
            1u16.to_ne_bytes().to_vec(),
            0u16.to_ne_bytes().to_vec(),
        ),
    ] {
        assert_eq!(
            (set(command, &same), set(command, &other)),
            (Ok(()), Err(Errno::EOPNOTSUPP)),
            "{command:#x}"
        );
    }
    assert_eq!(
        control(&file, ioctl::SIOCGIFNETMASK, &with(&[])).map(|got| got[20..24].to_vec()),
        Ok(vec![255, 0, 0, 0])
    );
    assert_eq!(
        control(&file, ioctl::SIOCGIFINDEX, &with(&[])).map(|got| got[16]),
        Ok(1)
    );
}

/// Each request fails when the caller's memory cannot be written.
#[test]
fn bad_memory_is_told() {
    const SIOCATMARK: u32 = 0x8905;
    const SIOCGSTAMP: u32 = 0x8906;
    const SIOCOUTQNSD: u32 = 0x894b;
    const FIONREAD: u32 = 0x541b;
    let (stream, datagram) = (
        make(sys::AF_INET, SocketType::Stream, 0),
        make(sys::AF_INET, SocketType::Datagram, 0),
    );
    assert_eq!(
        control(&datagram, SIOCGSTAMP, &[]),
        Err(Errno::ENOENT),
        "nothing has arrived"
    );
    bind(&datagram, "127.0.0.1:0").unwrap();
    let own = protocol(&datagram).local_address();
    call(|caller| {
        protocol(&datagram).send(
            OutgoingMessage {
                to: Some((caller, &own)),
                ..OutgoingMessage::plain(b"x")
            },
            MsgFlags::empty(),
            NOW,
        )
    })
    .unwrap();
    assert_eq!(
        control(&datagram, FIONREAD, &[]),
        Ok(1i32.to_ne_bytes().to_vec())
    );
    receive(&datagram).unwrap();
    assert_eq!(
        control(&datagram, SIOCGSTAMP, &[]).map(|time| time.len()),
        Ok(16)
    );
    assert_eq!(control(&stream, SIOCATMARK, &[]), Ok(vec![0; 4]));
    assert_eq!(control(&stream, SIOCOUTQNSD, &[]), Ok(vec![0; 4]));
    for (file, command) in [
        (&stream, SIOCATMARK),
        (&stream, SIOCOUTQNSD),
        (&stream, FIONREAD),
        (&datagram, SIOCGSTAMP),
    ] {
        assert_eq!(
            file.ioctl(&IoctlRequest {
                command,
                arg: 0,
                caller: &KernelCaller
            }),
            Err(Errno::EFAULT),
            "{command:#x}"
        );
    }
}

#[test]
fn who_is_told_why_sending_failed() {
    let file = make(sys::AF_INET, SocketType::Datagram, 0);
    let closed = make(sys::AF_INET, SocketType::Datagram, 0);
    bind(&closed, "127.0.0.1:0").unwrap();
    let nobody = protocol(&closed).local_address();
    drop(closed);
    let send = |data: &[u8]| {
        call(|caller| {
            protocol(&file).send(
                OutgoingMessage {
                    to: Some((caller, &nobody)),
                    ..OutgoingMessage::plain(data)
                },
                MsgFlags::empty(),
                NOW,
            )
        })
    };
    // Not connected, it hears of it only if it asks.
    assert_eq!(
        (
            send(b"one"),
            protocol(&file).take_error(),
            protocol(&file).receive_error_queue(10).err()
        ),
        (Ok(3), None, Some(Errno::EAGAIN))
    );
    let on =
        |level: u32, option: u32| protocol(&file).set_option(level, option, &1i32.to_ne_bytes());
    on(sys::IPPROTO_IP as u32, sys::IP_RECVERR).unwrap();
    assert_eq!(
        (send(b"two"), protocol(&file).take_error()),
        (Ok(3), Some(Errno::ECONNREFUSED))
    );
    let (data, got) = protocol(&file).receive_error_queue(2).unwrap();
    assert_eq!(
        (data, got.copied, got.message_len, got.from),
        (b"tw".to_vec(), 2, 3, Some(nobody.clone()))
    );
    let (level, kind, bytes) = &got.control[0];
    assert_eq!(
        (*level, *kind, bytes[0], bytes[4]),
        (
            sys::IPPROTO_IP as u32,
            sys::IP_RECVERR,
            Errno::ECONNREFUSED.raw() as u8,
            2
        )
    );
    assert_eq!(
        protocol(&file).receive_error_queue(2).err(),
        Some(Errno::EAGAIN)
    );
    // One of IPv6 asks by its own option.
    let six = make(sys::AF_INET6, SocketType::Datagram, 0);
    let Address::Inet(gone) = nobody else {
        panic!("of another family")
    };
    let to = at(&format!("[::1]:{}", gone.port()));
    let send = |six: &File| {
        call(|caller| {
            protocol(six).send(
                OutgoingMessage {
                    to: Some((caller, &to)),
                    ..OutgoingMessage::plain(b"six")
                },
                MsgFlags::empty(),
                NOW,
            )
        })
    };
    assert_eq!((send(&six), protocol(&six).take_error()), (Ok(3), None));
    protocol(&six)
        .set_option(
            sys::IPPROTO_IPV6 as u32,
            sys::IPV6_RECVERR,
            &1i32.to_ne_bytes(),
        )
        .unwrap();
    assert_eq!(
        (send(&six), protocol(&six).take_error()),
        (Ok(3), Some(Errno::ECONNREFUSED))
    );
    let (_, got) = protocol(&six).receive_error_queue(10).unwrap();
    assert_eq!(
        (got.control[0].0, got.control[0].2[4]),
        (sys::IPPROTO_IPV6 as u32, 3)
    );
}

#[test]
fn packets_are_heard_out_and_in() {
    const ALL: i32 = 0x0300;
    let open = |kind| {
        stack()
            .socket(sys::AF_PACKET, kind, ALL)
            .unwrap()
            .into_file(OpenFlags::NONBLOCK)
    };
    let (whole, bare) = (open(SocketType::Raw), open(SocketType::Datagram));
    let (a, b) = (
        make(sys::AF_INET, SocketType::Datagram, 0),
        make(sys::AF_INET, SocketType::Datagram, 0),
    );
    for file in [&a, &b] {
        bind(file, "127.0.0.1:0").unwrap();
    }
    let to = protocol(&b).local_address();
    call(|caller| {
        protocol(&a).send(
            OutgoingMessage {
                to: Some((caller, &to)),
                ..OutgoingMessage::plain(b"heard")
            },
            MsgFlags::empty(),
            NOW,
        )
    })
    .unwrap();
    for (file, link) in [(&whole, 14), (&bare, 0)] {
        for way in [4, 0] {
            assert!(file.poll(None).contains(fs::poll::Events::IN));
            let (data, from) = receive(file).unwrap();
            assert_eq!(
                (data.len(), data[link], data.ends_with(b"heard")),
                (link + 20 + 8 + 5, 0x45, true)
            );
            assert!(
                matches!(from, Some(Address::Packet(from)) if from.packet_type == way && from.protocol == 0x0800 && from.interface_index == 1)
            );
        }
        assert_eq!(receive(file).err(), Some(Errno::EAGAIN));
        let urgent = protocol(file).send(OutgoingMessage::plain(&[0; 64]), MsgFlags::OOB, NOW);
        assert_eq!(urgent, Err(Errno::EOPNOTSUPP));
    }
    // One ring at a time.
    let shape = [4096u32, 1, 2048, 2].map(u32::to_ne_bytes).concat();
    let none = [0u32; 4].map(u32::to_ne_bytes).concat();
    let ring = |shape: &[u8]| protocol(&whole).set_option(263, 5, shape);
    assert_eq!(
        (ring(&shape), ring(&shape), ring(&none), ring(&shape)),
        (Ok(()), Err(Errno::EBUSY), Ok(()), Ok(()))
    );
    assert_eq!(ring(&shape[..15]), Err(Errno::EINVAL));
}
