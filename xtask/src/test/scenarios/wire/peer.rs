//! A host on a machine's wire, which asks the machine things and sends it nonsense. Made by hand,
//! and not of the system's own crates: what those get wrong it gets right.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::segments::{self, Client, TCP};

/// The peer's address.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);
/// An address that somebody has from when the peer has asked everything.
pub const DONE: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 9);
/// An address behind the machine, on its other wire.
const BEYOND: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The machine's address.
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 2);
const PEER_MAC: Mac = [0x52, 0x54, 0, 0, 9, 1];
const BROADCAST: Mac = [0xff; 6];

type Mac = [u8; 6];

const IP: u16 = 0x0800;
const ARP: u16 = 0x0806;
const ICMP: u8 = 1;
const REQUEST: u8 = 8;
const REPLY: u8 = 0;
const TIME_EXCEEDED: u8 = 11;

/// Longest frame that the machine may send: 1,500 bytes and an Ethernet header.
const LONGEST: usize = 1514;
/// Looks for an answer before a question is asked again, and times that it is asked. A slow host is
/// no failure: the whole has the machine's time limit.
const LOOK: Duration = Duration::from_millis(500);
const TRIES: u32 = 60;
/// Frames of nonsense between two questions, and such rounds.
const NONSENSE: u32 = 64;
const ROUNDS: u32 = 30;
/// SYNs of a flood between two questions, and such rounds.
const SYNS: u32 = 50;
const FLOODS: u32 = 60;

/// The host on the wire.
pub struct Peer<'a> {
    socket: UnixDatagram,
    machine: Option<Mac>,
    /// Number of the question that was asked last, and of the answer that came last.
    asked: u16,
    answered: u16,
    question: Vec<u8>,
    /// The one who fetches a file.
    client: Option<Client>,
    /// The machine has said that a packet for somebody behind it has made too many hops.
    is_traced: bool,
    is_done: bool,
    random: u64,
    /// Set when the machine has ended.
    is_over: &'a AtomicBool,
}

/// Numbers of frames that the host has seen or sent.
#[derive(Default)]
pub struct Seen {
    /// Questions that were answered.
    pub answers: u32,
    /// Frames of nonsense that were sent.
    pub nonsense: u32,
    /// Beginnings of connections that nobody wanted.
    pub syns: u32,
    /// Files that were fetched.
    pub files: u32,
}

impl<'a> Peer<'a> {
    /// A host at the end of a wire: it receives at one path, and sends to the other.
    pub fn new(own: &Path, is_over: &'a AtomicBool) -> Result<Self> {
        let socket = UnixDatagram::bind(own)
            .with_context(|| format!("cannot make a socket at {}", own.display()))?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok(Self {
            socket,
            machine: None,
            asked: 0,
            answered: 0,
            question: Vec::new(),
            client: None,
            is_traced: false,
            is_done: false,
            random: 0x9e37_79b9_7f4a_7c15,
            is_over,
        })
    }

    /// Answers until the machine has asked for the peer, asks it back, with nonsense in between,
    /// and answers until the machine ends.
    pub fn run(mut self, machine: &Path) -> Result<Seen> {
        while self.machine.is_none() {
            self.turn(machine)?;
            ensure!(!self.is_ended(), "the machine has sent nothing");
        }
        let mut seen = Seen::default();
        for len in [0, 1, 17, 56, 1000, 1471, 1472] {
            self.ask(machine, len)?;
            seen.answers += 1;
        }
        for _ in 0..ROUNDS {
            for _ in 0..NONSENSE {
                let frame = self.nonsense();
                self.send(machine, &frame)?;
                seen.nonsense += 1;
            }
            self.ask(machine, 100)?;
            seen.answers += 1;
        }
        self.fetch(machine, &mut seen)?;
        for _ in 0..FLOODS {
            for _ in 0..SYNS {
                let number = self.next() as u32;
                // Of all ports but those of the clients.
                let syn = segments::syn(30_000 + seen.syns as u16, number);
                self.send_packet(machine, TCP, &syn)?;
                seen.syns += 1;
            }
            self.ask(machine, 100)?;
            seen.answers += 1;
        }
        self.fetch(machine, &mut seen)?;
        self.trace(machine)?;
        self.is_done = true;
        while !self.is_ended() {
            self.turn(machine)?;
        }
        Ok(seen)
    }

    fn is_ended(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Asks for an echo with so many bytes, and waits for it.
    fn ask(&mut self, machine: &Path, len: usize) -> Result<()> {
        self.asked += 1;
        self.question = (0..len).map(|_| self.next() as u8).collect();
        for _ in 0..TRIES {
            let mac = self.machine.context("nobody is known")?;
            let echo = echo(REQUEST, self.asked, &self.question);
            let packet = ip(PEER, MACHINE, ICMP, &echo);
            self.send(machine, &ethernet(mac, IP, &packet))?;
            // Everything that comes until it is quiet.
            while self.answered != self.asked && self.turn(machine)? {}
            if self.answered == self.asked {
                return Ok(());
            }
            ensure!(!self.is_ended(), "the machine ended before it answered");
        }
        bail!("no answer to question {} of {len} bytes", self.asked);
    }

    /// Traces the way to somebody behind the machine, which is a router by now, and the first hop.
    fn trace(&mut self, machine: &Path) -> Result<()> {
        for _ in 0..TRIES {
            let mac = self.machine.context("nobody is known")?;
            let mut packet = ip(PEER, BEYOND, ICMP, &echo(REQUEST, 0, b"trace"));
            packet[8] = 1;
            seal(&mut packet);
            self.send(machine, &ethernet(mac, IP, &packet))?;
            while !self.is_traced && self.turn(machine)? {}
            if self.is_traced {
                return Ok(());
            }
            ensure!(!self.is_ended(), "the machine ended before it was traced");
        }
        bail!("the machine does not tell of a packet that has made too many hops");
    }

    fn send_packet(&self, machine: &Path, protocol: u8, payload: &[u8]) -> Result<()> {
        let mac = self.machine.context("nobody is known")?;
        self.send(
            machine,
            &ethernet(mac, IP, &ip(PEER, MACHINE, protocol, payload)),
        )
    }

    /// Fetches a file of the machine's, with nonsense about the connection in between. As long as
    /// there is no server it tries again.
    fn fetch(&mut self, machine: &Path, seen: &mut Seen) -> Result<()> {
        for turn in 0..TRIES {
            let port = 20_000 + self.next() as u16 % 5000;
            let number = self.next() as u32;
            self.client = Some(Client::new(port, number));
            for _ in 0..TRIES {
                let client = self.client.as_ref().context("no client")?;
                if client.has_ended || client.is_refused {
                    break;
                }
                // Until it is open another beginning of the same one would be no nonsense.
                let own = client.is_open.then_some(port);
                let knock = client.knock();
                self.send_packet(machine, TCP, &knock)?;
                for _ in 0..NONSENSE {
                    let segment = self.nonsense_segment(own);
                    self.send_packet(machine, TCP, &segment)?;
                    seen.nonsense += 1;
                }
                while !self
                    .client
                    .as_ref()
                    .is_some_and(|one| one.has_ended || one.is_refused)
                    && self.turn(machine)?
                {}
                ensure!(
                    !self.is_ended(),
                    "the machine ended before it served, at {turn}"
                );
            }
            let client = self.client.take().context("no client")?;
            if client.has_ended {
                let answer = String::from_utf8_lossy(&client.answer);
                ensure!(answer.ends_with("\r\n\r\nsmall\n"), "it served {answer:?}");
                seen.files += 1;
                return Ok(());
            }
            // Nobody listens yet.
            while self.turn(machine)? {}
        }
        bail!("nobody serves");
    }

    /// A segment that means nothing, of a connection's port, if there is one, or of any: with a
    /// right checksum, but for some.
    fn nonsense_segment(&mut self, own: Option<u16>) -> Vec<u8> {
        let any = self.next() as u16 | 0x8000;
        let source = own.filter(|_| any.is_multiple_of(2)).unwrap_or(any);
        let to = if any.is_multiple_of(5) {
            22
        } else {
            segments::PORT
        };
        let numbers = (self.next() as u32, self.next() as u32);
        // No reset of the client's own: at the right number that is no nonsense.
        let flags = self.next() as u8 & !if Some(source) == own { 4 } else { 0 };
        let len = self.next() % 40;
        let noise = self.noise(len);
        let mut segment = segments::segment((source, to), numbers, flags, &noise);
        if any.is_multiple_of(3) {
            // Options of all kinds and lengths, and headers that are longer than the segment.
            segment[12] = self.next() as u8;
            segments::seal(&mut segment, PEER, MACHINE);
        }
        if any.is_multiple_of(11) {
            segment.truncate(len as usize);
        }
        segment
    }

    /// Takes a frame and does what it asks for; `false` if none came in a while.
    fn turn(&mut self, machine: &Path) -> Result<bool> {
        let mut bytes = [0; 70_000];
        let len = match self.socket.recv(&mut bytes) {
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(false);
            }
            Err(error) => return Err(error).context("cannot receive"),
        };
        let frame = &bytes[..len];
        ensure!(
            (14..=LONGEST).contains(&len),
            "the machine sent a frame of {len} bytes"
        );
        let source: Mac = frame[6..12].try_into()?;
        ensure!(source[0] & 1 == 0, "a frame comes from a group");
        match u16::from_be_bytes([frame[12], frame[13]]) {
            ARP => self.hear_arp(machine, source, &frame[14..])?,
            IP => self.hear_ip(machine, source, &frame[14..])?,
            // Neighbours of IPv6 are looked for where there is IPv6.
            _ => {}
        }
        Ok(true)
    }

    fn hear_arp(&mut self, machine: &Path, source: Mac, arp: &[u8]) -> Result<()> {
        ensure!(arp.len() >= 28, "an ARP packet of {} bytes", arp.len());
        ensure!(arp[..6] == [0, 1, 8, 0, 6, 4], "ARP of another kind");
        ensure!(arp[8..14] == source, "ARP for somebody else");
        let target = Ipv4Addr::new(arp[24], arp[25], arp[26], arp[27]);
        if arp[7] == 1 && (target == PEER || (target == DONE && self.is_done)) {
            self.machine = Some(source);
            let mut answer = vec![0, 1, 8, 0, 6, 4, 0, 2];
            answer.extend_from_slice(&PEER_MAC);
            answer.extend_from_slice(&target.octets());
            answer.extend_from_slice(&arp[8..18]);
            self.send(machine, &ethernet(source, ARP, &answer))?;
        }
        Ok(())
    }

    fn hear_ip(&mut self, machine: &Path, source: Mac, bytes: &[u8]) -> Result<()> {
        ensure!(bytes.len() >= 20 && bytes[0] == 0x45, "an odd IP header");
        let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        ensure!(sum(&bytes[..20]) == 0, "a wrong checksum of an IP header");
        ensure!(
            (20..=bytes.len()).contains(&total),
            "an IP packet of {total} bytes in a frame of {}",
            bytes.len()
        );
        let packet = &bytes[20..total];
        let from = Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]);
        let to = Ipv4Addr::new(bytes[16], bytes[17], bytes[18], bytes[19]);
        if bytes[9] == TCP {
            segments::check(packet, from, to)?;
            let answer = self.client.as_mut().and_then(|one| one.hear(packet));
            return answer.map_or(Ok(()), |answer| self.send_packet(machine, TCP, &answer));
        }
        if bytes[9] != ICMP || packet.len() < 8 {
            return Ok(());
        }
        ensure!(sum(packet) == 0, "a wrong checksum of an ICMP message");
        let number = u16::from_be_bytes([packet[6], packet[7]]);
        match packet[0] {
            REQUEST if to == PEER || to == DONE => {
                let mut answer = packet.to_vec();
                answer[0] = REPLY;
                answer[2..4].fill(0);
                let check = sum(&answer);
                answer[2..4].copy_from_slice(&check.to_be_bytes());
                let packet = ip(to, from, ICMP, &answer);
                self.send(machine, &ethernet(source, IP, &packet))?;
            }
            TIME_EXCEEDED if to == PEER => {
                ensure!(from == MACHINE, "a hop at {from}");
                let quoted = packet.get(8..28).context("a short quote")?;
                let ends = [PEER.octets(), BEYOND.octets()].concat();
                ensure!(quoted[12..] == ends, "another packet is quoted");
                self.is_traced = true;
            }
            REPLY if to == PEER && number == self.asked => {
                ensure!(from == MACHINE, "an answer from {from}");
                ensure!(packet[8..] == self.question, "an answer with other bytes");
                self.answered = number;
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends a frame; one for which QEMU has no room is lost.
    fn send(&self, machine: &Path, frame: &[u8]) -> Result<()> {
        match self.socket.send_to(frame, machine) {
            Ok(_) => Ok(()),
            // The machine has ended.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error).context("cannot send a frame"),
        }
    }

    fn next(&mut self) -> u64 {
        // Marsaglia's xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn noise(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A frame that means nothing, or almost something.
    fn nonsense(&mut self) -> Vec<u8> {
        let machine = self.machine.unwrap_or(BROADCAST);
        let to = match self.next() % 4 {
            0 => BROADCAST,
            1 => [1, 0, 0x5e, 0, 0, 1],
            _ => machine,
        };
        let len = self.next() % 200;
        let mut noise = self.noise(len);
        match self.next() % 9 {
            // Too short for a frame, and too long for one.
            0 => self.noise(1 + len % 13),
            1 => {
                let rest = self.noise(1501 + len * 40);
                ethernet(to, IP, &rest)
            }
            // Protocols that there are not.
            2 => {
                let kind = self.next() as u16;
                ethernet(to, kind, &noise)
            }
            3 => ethernet(to, ARP, &noise),
            // Headers of which all but the version is noise.
            4 => {
                noise.insert(0, 0x40 | (len as u8 % 16));
                ethernet(to, IP, &noise)
            }
            // Right headers before noise, as each protocol, as a fragment, and cut.
            5 => {
                let protocol = [1, 2, 6, 17, self.next() as u8][len as usize % 5];
                ethernet(to, IP, &ip(PEER, MACHINE, protocol, &noise))
            }
            6 => {
                let mut packet = ip(PEER, MACHINE, 17, &noise);
                let place = self.next() as u16;
                packet[6..8].copy_from_slice(&place.to_be_bytes());
                seal(&mut packet);
                ethernet(to, IP, &packet)
            }
            7 => {
                let mut packet = ip(PEER, MACHINE, 17, &noise);
                packet.truncate(1 + len as usize % 24);
                ethernet(to, IP, &packet)
            }
            // From addresses that nobody has.
            _ => {
                let from = [
                    Ipv4Addr::BROADCAST,
                    Ipv4Addr::LOCALHOST,
                    MACHINE,
                    Ipv4Addr::UNSPECIFIED,
                ][len as usize % 4];
                ethernet(to, IP, &ip(from, MACHINE, ICMP, &echo(REQUEST, 0, &noise)))
            }
        }
    }
}

fn ethernet(to: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to, &PEER_MAC, &kind.to_be_bytes()[..], payload].concat()
}

fn ip(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = 20 + payload.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&total.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend_from_slice(&from.octets());
    packet.extend_from_slice(&to.octets());
    packet.extend_from_slice(payload);
    seal(&mut packet);
    packet
}

/// Makes the checksum of an IP header right.
fn seal(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let check = sum(&packet[..20]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
}

fn echo(kind: u8, number: u16, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0x5e, 0x44];
    message.extend_from_slice(&number.to_be_bytes());
    message.extend_from_slice(payload);
    let check = sum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    message
}

/// The Internet checksum (RFC 1071); 0 over what has its own in it.
pub fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
