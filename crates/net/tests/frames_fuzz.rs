//! Structured random frames for a host with sockets of every kind: ARP, IPv4 with options and in
//! fragments, IPv6 with extension headers, TCP near open connections, UDP, DHCP, ICMP, IGMP,
//! neighbour discovery, MLD. Whatever comes, what the host sends is right, and it goes on serving.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use common::strange::{
    GROUP, HARDWARE, LISTENED, Live, OWN, OWN_V6, PEER, PEER_V6, Random, strange,
};
use common::v6::{CLOCK, Machine, now};
use common::wire::{self, inet, own};
use common::{NOW, call, forged, protocol, v6};
use fs::{File, OpenFlags};
use ip::neighbour::{Key, State};
use ip::{Checksum, SECOND, ipv4};
use linux_raw_sys::net as sys;
use net::inet::{Ipv6Setting, procfs};
use net::{MsgFlags, SocketType};

/// Frames that a host hears before there is a new one.
const LIFE: u64 = 5000;
/// Sockets of accepted or begun connections that a host keeps.
const KEPT: usize = 20;

/// A host to which anything may come.
struct Victim {
    machine: Machine,
    listeners: [Arc<File>; 2],
    datagrams: Vec<Arc<File>>,
    streams: Vec<Arc<File>>,
    live: [Live; 2],
}

/// Counts of what became of the frames: that the run was about something.
#[derive(Default)]
struct Tally {
    sent: u64,
    accepted: u64,
    received: u64,
    joined: u64,
}

impl Victim {
    fn new() -> Self {
        CLOCK.set(SECOND);
        let machine = Machine::down(1).up();
        machine.set(Ipv6Setting::DadTransmits, 0);
        machine.add(OWN_V6);
        let host = &machine.host;
        host.add_address(machine.index, own(OWN), false).unwrap();
        for address in [IpAddr::from(PEER), IpAddr::from(PEER_V6)] {
            let interface = machine.index;
            let key = Key { interface, address };
            let state = State::Permanent;
            host.set_neighbour(key, [2, 0, 0, 0, 0, 9], state, (true, false))
                .unwrap();
        }
        let open = |family, kind, number: u32| {
            let socket = machine.stack.socket(family, kind, number.cast_signed());
            socket.unwrap().into_file(OpenFlags::NONBLOCK)
        };
        let listeners = [machine.socket(SocketType::Stream, 0), {
            let file = open(sys::AF_INET, SocketType::Stream, 0);
            let any = inet(Ipv4Addr::UNSPECIFIED, LISTENED);
            call(|caller| protocol(&file).bind(caller, &any)).unwrap();
            file
        }];
        let only = 1_u32.to_ne_bytes();
        protocol(&listeners[0])
            .set_option(sys::IPPROTO_IPV6 as u32, sys::IPV6_V6ONLY, &only)
            .unwrap();
        let any = v6::inet(Ipv6Addr::UNSPECIFIED, LISTENED, 0);
        call(|caller| protocol(&listeners[0]).bind(caller, &any)).unwrap();
        for listener in &listeners {
            protocol(listener).listen(8).unwrap();
        }
        let mut datagrams: Vec<_> = [2000, 68].map(|port| machine.udp(port)).into();
        let request = [GROUP.octets(), [0; 4], machine.index.to_ne_bytes()].concat();
        let member = open(sys::AF_INET, SocketType::Datagram, 0);
        protocol(&member)
            .set_option(0, sys::IP_ADD_MEMBERSHIP, &request)
            .unwrap();
        datagrams.push(member);
        for number in [sys::IPPROTO_ICMP, sys::IPPROTO_UDP] {
            datagrams.push(open(sys::AF_INET, SocketType::Raw, number as u32));
        }
        datagrams.push(machine.socket(SocketType::Raw, sys::IPPROTO_ICMPV6));
        let every_kind = u32::from(3_u16.to_be());
        datagrams.push(open(sys::AF_PACKET, SocketType::Raw, every_kind));
        Self {
            machine,
            listeners,
            datagrams,
            streams: Vec::new(),
            live: Default::default(),
        }
    }

    /// A frame arrives, or several that belong together.
    fn hear(&mut self, random: &mut Random, seen: &mut Tally) -> u64 {
        let frames = strange(random, &self.live);
        for frame in &frames {
            self.machine.host.receive(self.machine.index, frame);
        }
        let span = match random.below(1000) {
            0 => 100 * SECOND,
            1..20 => SECOND,
            _ => random.below(SECOND / 1000),
        };
        CLOCK.set(now() + span);
        if self.machine.host.deadline().is_some_and(|at| at <= now()) {
            self.machine.host.run_timers();
        }
        if random.percent(5) {
            self.program(random, seen);
        }
        self.look_at_answers(seen);
        frames.len() as u64
    }

    /// Programs use their sockets.
    fn program(&mut self, random: &mut Random, seen: &mut Tally) {
        for listener in &self.listeners {
            while let Ok(socket) = protocol(listener).accept(NOW) {
                seen.accepted += 1;
                self.streams.push(socket.into_file(OpenFlags::NONBLOCK));
            }
        }
        let files = self.datagrams.iter().chain(&self.streams);
        for file in files {
            let most = random.below(3000) as usize;
            while let Ok((data, _)) = protocol(file).receive_to_vec(most, MsgFlags::empty(), NOW) {
                seen.received += 1;
                if data.is_empty() {
                    break;
                }
            }
        }
        if let Some(file) = self.streams.first() {
            // It may have been reset, or have no room.
            let _ = file.write(&vec![7; random.below(4000) as usize]);
        }
        if random.percent(10) {
            let file = begun(&self.machine, random.percent(50));
            self.streams.push(file);
        }
        while self.streams.len() > KEPT || random.percent(10) && !self.streams.is_empty() {
            let at = random.below(self.streams.len() as u64) as usize;
            self.streams.swap_remove(at);
        }
    }

    /// Everything that is sent is whole, and rightly summed.
    fn look_at_answers(&mut self, seen: &mut Tally) {
        for frame in self.machine.end.take() {
            seen.sent += 1;
            assert!((14..=1514).contains(&frame.len()), "{frame:x?}");
            let packet = &frame[14..];
            match frame[12..14] {
                [8, 6] => assert!(ip::arp::Message::parse(packet).is_ok(), "{frame:x?}"),
                [8, 0] => self.look_at_v4(packet),
                [0x86, 0xdd] => self.look_at_v6(packet),
                _ => panic!("of what kind? {frame:x?}"),
            }
        }
    }

    fn look_at_v4(&mut self, bytes: &[u8]) {
        let packet = ipv4::Packet::parse(bytes).expect("a whole packet");
        let header = packet.header;
        if header.is_fragment() {
            return;
        }
        let (source, destination) = (header.source, header.destination);
        let length = packet.payload.len();
        let mut sum = match header.protocol {
            1 | 2 => Checksum::default(),
            6 | 17 => Checksum::pseudo_header(source, destination, header.protocol, length),
            other => panic!("of protocol {other}? {bytes:x?}"),
        };
        sum.add(packet.payload);
        assert_eq!(sum.finish(), 0, "{bytes:x?}");
        if header.protocol == 6 {
            self.live[0].hear(source.into(), destination.into(), packet.payload);
        }
    }

    fn look_at_v6(&mut self, bytes: &[u8]) {
        let (header, next, length) = ip::v6::Header::parse(bytes).expect("a whole header");
        let mut payload = &bytes[40..];
        assert_eq!(payload.len(), length, "{bytes:x?}");
        let next = match next {
            // Of reports of groups.
            0 => {
                let next = payload[0];
                payload = &payload[8..];
                next
            }
            44 => return,
            other => other,
        };
        let (source, destination) = (header.source, header.destination);
        assert!(
            [6, 17, 58].contains(&next),
            "of protocol {next}? {bytes:x?}"
        );
        let mut sum = Checksum::pseudo_header_v6(source, destination, next, payload.len());
        sum.add(payload);
        assert_eq!(sum.finish(), 0, "{bytes:x?}");
        if next == 6 {
            self.live[1].hear(source.into(), destination.into(), payload);
        }
    }

    /// The host is alive: it answers a SYN and a question of ARP.
    fn is_well(&mut self, seen: &mut Tally) {
        let interface = self.machine.host.interface(self.machine.index).unwrap();
        assert!(interface.addresses.len() <= 20);
        self.machine.host.run_timers();
        self.look_at_answers(seen);
        let syn = tcp::Header {
            flags: tcp::Flags::SYN,
            window: 1000,
            seq: tcp::Seq(now() as u32),
            ..tcp::Header::default()
        };
        let frame = forged((PEER.octets(), 999), (OWN, LISTENED), &syn, &[]);
        self.machine.receive(frame.data);
        let answers = self.machine.end.take();
        let is_answer = |frame: &Vec<u8>| {
            let packet = ipv4::Packet::parse(&frame[14..]).ok();
            let segment = packet.and_then(|packet| tcp::Segment::parse(packet.payload).ok());
            segment.is_some_and(|segment| {
                let expected = tcp::Flags::SYN | tcp::Flags::ACK;
                segment.header.destination == 999 && segment.header.flags.contains(expected)
            })
        };
        assert!(answers.iter().any(is_answer), "{answers:x?}");
        let question = ip::arp::Message {
            operation: ip::arp::Operation::Request,
            sender_hardware: [2, 0, 0, 0, 0, 9],
            sender: PEER,
            target_hardware: [0; 6],
            target: OWN,
        };
        let head = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9, 8, 6]].concat();
        self.machine.receive([&head[..], &question.emit()].concat());
        let answers = self.machine.end.take();
        assert!(answers.iter().any(|frame| frame[12..14] == [8, 6]));
        let text = procfs::snmp(self.machine.stack.inet());
        let line = text.lines().filter(|line| line.starts_with("Ip:")).nth(1);
        let joined = line.and_then(|line| line.split(' ').nth(15));
        seen.joined += joined.unwrap().parse::<u64>().unwrap();
    }
}

/// A socket that has begun to connect to the peer.
fn begun(machine: &Machine, is_v6: bool) -> Arc<File> {
    let (family, to) = if is_v6 {
        (sys::AF_INET6, v6::inet(PEER_V6, 9, 0))
    } else {
        (sys::AF_INET, wire::inet(PEER, 9))
    };
    let socket = machine.stack.socket(family, SocketType::Stream, 0);
    let file = socket.unwrap().into_file(OpenFlags::NONBLOCK);
    // It goes on by itself, or there is no way just now.
    let _ = call(|caller| protocol(&file).connect(caller, &to, NOW));
    file
}

fn fuzz(seed: u64, frames: u64) -> Tally {
    assert_eq!(HARDWARE, Machine::down(1).hardware);
    let (mut done, mut turn, mut seen) = (0, 0_u64, Tally::default());
    while done < frames {
        let seed = seed.wrapping_add(turn);
        let life = std::panic::AssertUnwindSafe(|| {
            let (mut random, mut victim) = (Random(seed), Victim::new());
            let mut heard = 0;
            while heard < LIFE {
                heard += victim.hear(&mut random, &mut seen);
            }
            victim.is_well(&mut seen);
            heard
        });
        match std::panic::catch_unwind(life) {
            Ok(heard) => done += heard,
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
        turn += 1;
    }
    println!(
        "{done} frames, {} sent, {} datagrams joined, {} connections accepted, {} receptions",
        seen.sent, seen.joined, seen.accepted, seen.received
    );
    seen
}

#[test]
fn fifty_thousand_frames() {
    let seen = fuzz(1, 50_000);
    let all = [seen.sent, seen.joined, seen.accepted, seen.received];
    assert!(all.iter().all(|count| *count > 0), "{all:?}");
}

/// By name: `cargo test --release -p net --test frames_fuzz -- --ignored`; `SEED` and `FRAMES` in
/// the environment choose which and how many.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_million_frames() {
    let number =
        |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    fuzz(number("SEED", 1 << 32), number("FRAMES", 100_000_000));
}
