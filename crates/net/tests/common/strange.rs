//! Frames near what makes sense, of all protocols that a host speaks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ip::v6::address;
use ip::{Checksum, checksum, ipv4};
use tcp::{Flags, Header, Options, SackBlocks, Seq, Timestamps};

use super::router::random;
use super::v6;

/// Addresses of the host that hears them.
pub const HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// Addresses of who sends most of them.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const PEER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
/// A group that a program is in.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// The port that listens.
pub const LISTENED: u16 = 80;

/// Numbers by a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        random(&mut self.0)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Fewer bytes than `bound`.
    fn bytes(&mut self, bound: u64) -> Vec<u8> {
        let length = self.below(bound) as usize;
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.flatten().take(length).collect()
    }
}

/// The connection of which the host spoke last.
#[derive(Clone, Copy, Default)]
pub struct Live {
    own: u16,
    peer: u16,
    /// The next number that the host expects, and the one of its own that it will use.
    expected: u32,
    next: u32,
    clock: u32,
}

impl Live {
    /// The host has sent a segment.
    pub fn hear(&mut self, source: IpAddr, destination: IpAddr, segment: &[u8]) {
        let segment = tcp::Segment::verify(source, destination, segment).expect("a segment");
        let header = segment.header;
        *self = Self {
            own: header.source,
            peer: header.destination,
            expected: header.ack.0,
            next: header.seq.0.wrapping_add(segment.len()),
            clock: header.options.timestamps.map_or(0, |clocks| clocks.value),
        };
    }
}

/// A frame, or the fragments of a datagram.
pub fn strange(random: &mut Random, live: &[Live; 2]) -> Vec<Vec<u8>> {
    let mut frames = match random.below(20) {
        0 => vec![nonsense(random)],
        1 | 2 => vec![arp(random)],
        3..12 => v4(random, &live[0]),
        _ => v6_frames(random, &live[1]),
    };
    for frame in &mut frames {
        damage(random, frame);
    }
    frames
}

/// Now and then something is wrong with it.
fn damage(random: &mut Random, frame: &mut Vec<u8>) {
    if random.percent(6) && !frame.is_empty() {
        let at = random.below(frame.len() as u64) as usize;
        frame[at] = random.next() as u8;
    }
    if random.percent(3) {
        let length = random.below(frame.len() as u64 + 1) as usize;
        frame.truncate(length);
    }
    if random.percent(3) {
        frame.extend(random.bytes(60));
    }
}

fn nonsense(random: &mut Random) -> Vec<u8> {
    let mut frame = [&HARDWARE[..], &random.bytes(1600)].concat();
    let kind = random.one(&[
        [8, 0],
        [8, 6],
        [0x86, 0xdd],
        [0x81, 0],
        [0, 40],
        [0x88, 0xcc],
    ]);
    if let Some(place) = frame.get_mut(12..14) {
        place.copy_from_slice(&kind);
    }
    frame
}

fn link(random: &mut Random, to: [u8; 6], kind: [u8; 2]) -> Vec<u8> {
    let to = match random.below(50) {
        0 => [0xff; 6],
        1 => [2, 0, 0, 0, 0, 7],
        2 => HARDWARE,
        _ => to,
    };
    [&to[..], &[2, 0, 0, 0, 0, 9], &kind].concat()
}

fn ipv4_address(random: &mut Random) -> Ipv4Addr {
    match random.below(40) {
        0 => OWN,
        1 => Ipv4Addr::UNSPECIFIED,
        2 => Ipv4Addr::BROADCAST,
        3 => Ipv4Addr::LOCALHOST,
        4 => Ipv4Addr::new(224, 0, 0, 1),
        5 => Ipv4Addr::new(10, 0, 0, 255),
        6..10 => Ipv4Addr::from(random.next() as u32),
        10..15 => Ipv4Addr::from(0x0a00_0000 | random.next() as u32 & 0xffff),
        _ => PEER,
    }
}

fn arp(random: &mut Random) -> Vec<u8> {
    let target = if random.percent(70) {
        OWN
    } else {
        ipv4_address(random)
    };
    let mut hardware = [2, 0, 0, 0, 0, 9];
    if random.percent(20) {
        hardware = random.one(&[HARDWARE, [0xff; 6], [0; 6], [1, 0, 94, 0, 0, 1]]);
    }
    let message = ip::arp::Message {
        operation: random.one(&[ip::arp::Operation::Request, ip::arp::Operation::Reply]),
        sender_hardware: hardware,
        sender: ipv4_address(random),
        target_hardware: random.one(&[[0; 6], HARDWARE]),
        target,
    };
    let to = random.one(&[[0xff; 6], HARDWARE]);
    [link(random, to, [8, 6]), message.emit().to_vec()].concat()
}

fn v4(random: &mut Random, live: &Live) -> Vec<Vec<u8>> {
    let source = ipv4_address(random);
    let destination = match random.below(30) {
        0 => ipv4_address(random),
        1 => Ipv4Addr::new(10, 0, 0, 255),
        2 => Ipv4Addr::BROADCAST,
        3 | 4 => GROUP,
        5 => Ipv4Addr::new(224, 0, 0, 1),
        _ => OWN,
    };
    let (from, to) = (IpAddr::from(source), IpAddr::from(destination));
    let (protocol, payload) = match random.below(20) {
        0 => (random.next() as u8, random.bytes(200)),
        1..10 => (6, segment(random, live, from, to)),
        10..14 => (17, datagram(random, from, to)),
        14..18 => (1, icmp(random, live, source)),
        _ => (2, igmp(random)),
    };
    let hardware = match destination {
        Ipv4Addr::BROADCAST => [0xff; 6],
        group if group.is_multicast() => ip::groups::igmp::group_hardware(group),
        _ => HARDWARE,
    };
    let header = ipv4::Header {
        tos: random.next() as u8,
        id: random.below(4) as u16,
        dont_fragment: random.percent(30),
        more_fragments: random.percent(2),
        offset: 0,
        ttl: random.one(&[0, 1, 2, 64, 255]),
        protocol,
        source,
        destination,
    };
    let options = if random.percent(10) {
        ip_options(random)
    } else {
        Vec::new()
    };
    let mut packet = |header: ipv4::Header, payload: &[u8]| {
        let head = header.emit_with(&options, payload.len());
        [&link(random, hardware, [8, 0])[..], &head[..], payload].concat()
    };
    if header.id > 0 || payload.len() < 16 {
        return vec![packet(header, &payload)];
    }
    let cut = |(offset, more_fragments, part): (u16, bool, &[u8])| {
        let header = ipv4::Header {
            offset,
            more_fragments,
            dont_fragment: false,
            ..header
        };
        packet(header, part)
    };
    let mut frames: Vec<_> = ipv4::fragments(20 + 8 * (1 + payload.len() / 24), &payload)
        .map(cut)
        .collect();
    disturb(random, &mut frames);
    frames
}

/// Fragments come in any order, not at all, twice, or where they do not belong.
fn disturb(random: &mut Random, frames: &mut Vec<Vec<u8>>) {
    if random.percent(50) {
        frames.reverse();
    }
    if random.percent(20) {
        frames.truncate(frames.len() - 1);
    }
    if random.percent(20) && !frames.is_empty() {
        let at = random.below(frames.len() as u64) as usize;
        let mut again = frames[at].clone();
        if random.percent(50) {
            // The offset of IPv4, for which the sum of the header is made again.
            let place = (random.below(1 << 13) as u16).to_be_bytes();
            if again[12..14] == [8, 0] {
                again[20..22].copy_from_slice(&place);
                again[24..26].fill(0);
                let end = 14 + 4 * usize::from(again[14] & 0xf);
                let sum = checksum(&again[14..end]).to_be_bytes();
                again[24..26].copy_from_slice(&sum);
            } else {
                again[56..58].copy_from_slice(&place);
            }
        }
        frames.push(again);
    }
}

/// Whole words of options.
fn ip_options(random: &mut Random) -> Vec<u8> {
    let mut options = Vec::new();
    while options.len() < 36 && !random.percent(30) {
        options.push(random.one(&[0, 1, 7, 68, 131, 137, 148, 130, 254]));
        options.push(random.below(14) as u8);
        options.extend(random.bytes(12));
    }
    options.resize(options.len().next_multiple_of(4).min(40), 0);
    options
}

/// A number that is often near an interesting one.
fn near(random: &mut Random, number: u32) -> u32 {
    match random.below(20) {
        0 => random.next() as u32,
        1 => number.wrapping_sub(1),
        2 | 3 => number.wrapping_sub(random.below(5000) as u32),
        4 | 5 => number.wrapping_add(random.below(5000) as u32),
        6 => number.wrapping_add(random.below(100_000) as u32),
        _ => number,
    }
}

fn segment(random: &mut Random, live: &Live, from: IpAddr, to: IpAddr) -> Vec<u8> {
    let begins = live.own == 0 || random.percent(10);
    let mut options = Options::default();
    if random.percent(70) {
        options.timestamps = Some(Timestamps {
            value: near(random, live.clock),
            echo: near(random, live.clock),
        });
    }
    if begins {
        options.mss = random.percent(70).then(|| random.next() as u16);
        options.window_scale = random.percent(50).then(|| random.below(16) as u8);
        options.sack_permitted = random.percent(50);
    } else if random.percent(20) {
        let mut blocks = SackBlocks::default();
        for _ in 0..random.below(4) {
            let left = near(random, live.next);
            blocks.push((Seq(left), Seq(near(random, left))));
        }
        blocks.truncate(options.room_for_blocks());
        options.sack = blocks;
    }
    let flags = match random.below(20) {
        _ if begins => Flags::SYN,
        0 => Flags::from_bits_retain(random.next() as u8),
        1 => Flags::FIN | Flags::ACK,
        2 if random.percent(30) => Flags::RST,
        3..6 => Flags::SYN | Flags::ACK,
        6 => Flags::ACK | Flags::URG,
        _ => Flags::ACK,
    };
    let ports = if begins {
        (1000 + random.below(100) as u16, LISTENED)
    } else {
        (live.peer, live.own)
    };
    let header = Header {
        source: ports.0,
        destination: if random.percent(3) { 81 } else { ports.1 },
        seq: Seq(near(random, live.expected)),
        ack: Seq(near(random, live.next)),
        flags,
        window: random.one(&[0, 1, 1000, 65_535]),
        urgent: random.below(100) as u16,
        options,
    };
    let mut segment = vec![0; header.length()];
    header.emit(&mut segment).unwrap();
    if random.percent(5) {
        // Options that are none.
        segment.truncate(20);
        let options = random.bytes(41);
        segment.extend_from_slice(&options);
        segment.resize(segment.len().next_multiple_of(4).min(60), 0);
        segment[12] = (segment.len() as u8 / 4) << 4;
        segment[16..18].fill(0);
    }
    if flags != Flags::SYN && random.percent(50) {
        segment.extend(random.bytes(1400));
    }
    let sum = tcp::checksum(from, to, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

fn datagram(random: &mut Random, from: IpAddr, to: IpAddr) -> Vec<u8> {
    let port: u16 = random.one(&[2000, 2000, 68, 81, 0]);
    let body = if port == 68 {
        dhcp(random)
    } else {
        random.bytes(1400)
    };
    let mut length = 8 + body.len() as u16;
    if random.percent(5) {
        length = random.next() as u16;
    }
    let source: u16 = random.one(&[53, 67, 123, 4000, 0]);
    let ports = [source.to_be_bytes(), port.to_be_bytes()].concat();
    let mut datagram = [&ports[..], &length.to_be_bytes(), &[0; 2], &body].concat();
    if random.percent(80) {
        let mut sum = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Checksum::pseudo_header(from, to, 17, datagram.len())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Checksum::pseudo_header_v6(from, to, 17, datagram.len())
            }
            _ => unreachable!("addresses of one family"),
        };
        sum.add(&datagram);
        datagram[6..8].copy_from_slice(&sum.finish().to_be_bytes());
    }
    datagram
}

/// A message of DHCP (RFC 2131), for whoever listens.
fn dhcp(random: &mut Random) -> Vec<u8> {
    let mut message = vec![0; 236];
    message[..4].copy_from_slice(&[random.one(&[1, 2]), 1, 6, 0]);
    message.extend_from_slice(&[99, 130, 83, 99]);
    while !random.percent(20) {
        let value = random.bytes(20);
        message.extend_from_slice(&[random.one(&[1, 3, 51, 53, 54, 0, 255]), value.len() as u8]);
        message.extend(value);
    }
    message
}

/// The bytes that an error quotes: a packet of the host's own, or so it seems.
fn quoted(random: &mut Random, live: &Live) -> Vec<u8> {
    let (own, peer) = random.one(&[(live.own, live.peer), (2000, 4000), (LISTENED, 1000)]);
    let ports = [own.to_be_bytes(), peer.to_be_bytes()].concat();
    let number = near(random, live.next).to_be_bytes();
    [&ports[..], &number, &random.bytes(40)].concat()
}

fn icmp(random: &mut Random, live: &Live, source: Ipv4Addr) -> Vec<u8> {
    let kind = random.one(&[
        0, 3, 3, 3, 4, 5, 8, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 40, 42,
    ]);
    let info = random.one(&[0, 68, 576, 1400, 0x0a00_0003, 0x0a00_0002, u32::MAX]);
    let mut message = [
        &[kind, random.below(16) as u8, 0, 0][..],
        &info.to_be_bytes(),
    ]
    .concat();
    if ip::icmp::is_error(kind) {
        let quote = quoted(random, live);
        let header = ipv4::Header {
            tos: 0,
            id: 1,
            dont_fragment: true,
            more_fragments: random.percent(5),
            offset: 0,
            ttl: 1,
            protocol: random.one(&[6, 6, 17, 1, 47]),
            source: OWN,
            destination: source,
        };
        message.extend_from_slice(&header.emit(quote.len()));
        message.extend(quote);
    } else {
        message.extend(random.bytes(200));
    }
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

fn igmp(random: &mut Random) -> Vec<u8> {
    let group = random.one(&[GROUP, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(239, 9, 9, 9)]);
    let kind = random.one(&[0x11, 0x11, 0x11, 0x12, 0x16, 0x17, 0x22]);
    let time = random.next() as u8;
    let mut message = [&[kind, time, 0, 0][..], &group.octets()].concat();
    if random.percent(50) {
        let count = random.one(&[0, 1, 3, 200]);
        message.extend_from_slice(&[random.next() as u8, random.next() as u8, 0, count]);
        message.extend(random.bytes(20));
    }
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

fn ipv6_address(random: &mut Random) -> Ipv6Addr {
    match random.below(20) {
        0 => OWN_V6,
        1 => address::link_local(HARDWARE),
        2..6 => address::link_local([2, 0, 0, 0, 0, 9]),
        6 => Ipv6Addr::UNSPECIFIED,
        7 => Ipv6Addr::LOCALHOST,
        8 => address::ALL_NODES,
        9 => Ipv6Addr::from(u128::from(random.next()) << 64 | u128::from(random.next())),
        _ => PEER_V6,
    }
}

/// Headers of extensions with their kinds, the first of them first.
fn extensions(random: &mut Random) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while random.percent(20) && all.len() < 6 {
        let units = random.below(3) as u8;
        let mut header = [&[0, units][..], &random.bytes(24)].concat();
        if random.percent(60) {
            // Options that are skipped, of the length of all.
            header.truncate(2);
            header.extend_from_slice(&[1, units * 8 + 4]);
        }
        header.resize(8 + 8 * usize::from(units), 0);
        all.push((random.one(&[0, 43, 60, 60, 51, 59, 135]), header));
    }
    all
}

fn v6_frames(random: &mut Random, live: &Live) -> Vec<Vec<u8>> {
    let mut source = ipv6_address(random);
    let destination = match random.below(20) {
        0 => ipv6_address(random),
        1 | 2 => address::ALL_NODES,
        3 | 4 => address::solicited_node(OWN_V6),
        5 => address::link_local(HARDWARE),
        _ => OWN_V6,
    };
    let mut hops = random.one(&[0, 1, 64, 255]);
    let mut extensions = extensions(random);
    let (from, to) = (IpAddr::from(source), IpAddr::from(destination));
    let (protocol, payload) = match random.below(20) {
        0 => (random.next() as u8, random.bytes(200)),
        1..8 => (6, segment(random, live, from, to)),
        8..11 => (17, datagram(random, from, to)),
        _ => {
            let mut message = icmp_v6(random, live, source);
            if random.percent(70) {
                // As the standards want them.
                match message[0] {
                    130..=132 | 143 => {
                        source = address::link_local([2, 0, 0, 0, 0, 9]);
                        hops = 1;
                        extensions = vec![(0, vec![0, 0, 5, 2, 0, 0, 1, 0])];
                    }
                    134 => {
                        source = address::link_local([2, 0, 0, 0, 0, 9]);
                        hops = 255;
                    }
                    133..=137 => hops = 255,
                    _ => {}
                }
            }
            ip::v6::icmp::seal(source, destination, &mut message);
            (58, message)
        }
    };
    let hardware = if destination.is_multicast() {
        address::group_hardware(destination)
    } else {
        HARDWARE
    };
    let head = v6::header(source, destination, hops);
    let chain = |first: u8, payload: &[u8]| {
        let (mut first, mut all) = (first, payload.to_vec());
        for (kind, header) in extensions.iter().rev() {
            all = [&[first], &header[1..], &all].concat();
            first = *kind;
        }
        v6::frame(hardware, &head, first, &all)
    };
    if payload.len() < 16 || random.percent(85) {
        return vec![chain(protocol, &payload)];
    }
    let id = random.below(4) as u32;
    // Fragments are behind no other header here: their offset is where it is looked for.
    let size = 8 * (1 + payload.len() / 24);
    let last = payload.len().div_ceil(size) - 1;
    let mut frames: Vec<_> = payload
        .chunks(size)
        .enumerate()
        .map(|(n, part)| {
            let field = (n * size) as u16 | u16::from(n < last);
            let [a, b] = field.to_be_bytes();
            let fragment = [&[protocol, 0, a, b][..], &id.to_be_bytes(), part].concat();
            v6::frame(hardware, &head, 44, &fragment)
        })
        .collect();
    disturb(random, &mut frames);
    frames
}

fn icmp_v6(random: &mut Random, live: &Live, source: Ipv6Addr) -> Vec<u8> {
    let kind = random.one(&[
        1, 2, 3, 4, 128, 128, 129, 130, 131, 132, 133, 134, 134, 135, 135, 136, 136, 137, 143, 200,
    ]);
    let info = random.one(&[0, 1280, 1400, 0x4000_0708, 0xe000_0000, u32::MAX]);
    let code = if random.percent(80) {
        0
    } else {
        random.below(8) as u8
    };
    let mut message = [&[kind, code, 0, 0][..], &info.to_be_bytes()].concat();
    match kind {
        1..=4 => {
            let quote = quoted(random, live);
            let header = v6::header(OWN_V6, source, 1);
            let protocol = random.one(&[6, 6, 17, 58, 44]);
            message.extend_from_slice(&header.emit(protocol, quote.len()));
            message.extend(quote);
        }
        134 => {
            message.extend(random.next().to_be_bytes());
            message.extend(discovery_options(random));
        }
        130..=132 | 135..=137 => {
            let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x77);
            let target = random.one(&[OWN_V6, PEER_V6, address::solicited_node(OWN_V6), group]);
            message.extend_from_slice(&target.octets());
            if kind == 137 {
                message.extend_from_slice(&ipv6_address(random).octets());
            }
            message.extend(discovery_options(random));
        }
        133 => message.extend(discovery_options(random)),
        _ => message.extend(random.bytes(100)),
    }
    message
}

fn discovery_options(random: &mut Random) -> Vec<u8> {
    let mut all = Vec::new();
    while random.percent(60) && all.len() < 200 {
        let (kind, units) = random.one(&[
            (1, 1),
            (2, 1),
            (3, 4),
            (3, 4),
            (5, 1),
            (24, 2),
            (25, 3),
            (31, 2),
            (14, 1),
        ]);
        let mut option = vec![kind, units];
        if kind == 3 && random.percent(70) {
            // Prefixes that are whole: lengths, flags, lifetimes, zeros in front of the address.
            let lifetimes = [
                random.next() as u32 >> random.below(32),
                random.next() as u32,
            ];
            option.extend_from_slice(&[random.one(&[64, 64, 48, 128, 200]), random.next() as u8]);
            option.extend(lifetimes.iter().flat_map(|seconds| seconds.to_be_bytes()));
            option.extend_from_slice(&[0; 4]);
            option.extend_from_slice(
                &Ipv6Addr::new(0x2001, 0xdb8, 0, random.below(40) as u16, 0, 0, 0, 0).octets(),
            );
        } else {
            option.extend(random.bytes(32));
        }
        option.resize(8 * usize::from(units), 0);
        if random.percent(10) {
            option[1] = random.below(6) as u8;
        }
        all.extend(option);
    }
    all
}
