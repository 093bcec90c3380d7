//! A simulated wire with virtual time, programs at both ends, and checks of each segment that
//! passes.
#![allow(dead_code)] // Each test uses a part.

pub mod ipv4;
pub mod script;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};

use tcp::{
    Arrival, Buffers, Config, Connection, Ends, Flags, Gone, Header, Incoming, ListenConfig,
    Listener, MILLISECOND, Nanos, Reaction, SECOND, Secret, Segment, Seq, State, SynCookies,
    checksum,
};

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// The byte at a place of a stream.
pub fn byte_at(stream: u8, place: u64) -> u8 {
    ((place * 31) ^ (place >> 8) ^ (place >> 16)) as u8 ^ stream
}

/// A program's buffers. What it sends and receives are streams of known bytes.
pub struct Program {
    pub stream: u8,
    /// Bytes that were sent and released.
    pub released: u64,
    /// Bytes that were sent.
    pub written: u64,
    /// Bytes that came, and those of them that were read.
    pub received: u64,
    pub read: u64,
    pub room: u64,
    pub ended: bool,
    pub gone: bool,
    /// Memory that the connection has, and may have.
    pub charged: usize,
    pub budget: usize,
    /// The receive buffer grows as the connection wants, up to this.
    pub largest_room: u64,
    /// Distance of the peer's urgent byte from the beginning of its stream.
    pub urgent: Option<u64>,
}

impl Program {
    pub fn new(stream: u8, room: u64) -> Self {
        Self {
            stream,
            released: 0,
            written: 0,
            received: 0,
            read: 0,
            room,
            ended: false,
            gone: false,
            charged: 0,
            budget: usize::MAX,
            largest_room: 0,
            urgent: None,
        }
    }
}

impl Buffers for Program {
    fn queued(&self) -> usize {
        (self.written - self.released) as usize
    }

    fn peek(&self, offset: usize, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.queued().saturating_sub(offset));
        for (index, byte) in bytes[..count].iter_mut().enumerate() {
            *byte = byte_at(self.stream, self.released + (offset + index) as u64);
        }
        count
    }

    fn release(&mut self, count: usize) {
        assert!(count <= self.queued(), "more is released than was sent");
        self.released += count as u64;
    }

    fn window(&self) -> usize {
        self.room.saturating_sub(self.received - self.read) as usize
    }

    fn deliver(&mut self, bytes: &[u8]) -> Result<usize, Gone> {
        if self.gone {
            return Err(Gone);
        }
        assert!(!self.ended, "data behind the end");
        let count = bytes.len().min(self.window());
        for byte in &bytes[..count] {
            assert_eq!(
                *byte,
                byte_at(1 - self.stream, self.received),
                "byte {} is another",
                self.received
            );
            self.received += 1;
        }
        Ok(count)
    }

    fn urgent(&mut self, position: u64) {
        assert!(self.urgent < Some(position), "an urgent byte goes back");
        self.urgent = Some(position);
    }

    fn deliver_end(&mut self) {
        assert!(!self.ended, "the end comes once");
        self.ended = true;
    }

    fn unread(&self) -> usize {
        (self.received - self.read) as usize
    }

    fn charge(&mut self, bytes: usize) -> bool {
        let granted = bytes <= self.budget - self.charged;
        if granted {
            self.charged += bytes;
        }
        granted
    }

    fn uncharge(&mut self, bytes: usize) {
        assert!(bytes <= self.charged, "more is given back than was charged");
        self.charged -= bytes;
    }
}

/// The wire's troubles, chances in percent.
#[derive(Clone, Debug)]
pub struct WireConfig {
    pub seed: u64,
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    pub corruption: u64,
    pub marking: u64,
    pub delay: Nanos,
    /// Nanoseconds that a byte takes, and bytes that wait at most.
    pub byte_time: Nanos,
    pub queue: u64,
    /// Largest segment (header and payload) that passes, from a time on.
    pub largest: usize,
    pub change: Option<(Nanos, usize)>,
    /// Too long segments are not reported.
    pub black_hole: bool,
}

impl Default for WireConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            loss: 0,
            duplication: 0,
            reordering: 0,
            corruption: 0,
            marking: 0,
            delay: 10 * MILLISECOND,
            byte_time: 80,
            queue: 1 << 20,
            largest: 1480,
            change: None,
            black_hole: false,
        }
    }
}

/// A program's behaviour.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes to send, and at most so many at a time.
    pub send: u64,
    pub burst: u64,
    /// Room to receive, and how much is read every so often.
    pub room: u64,
    pub read: u64,
    pub read_every: Nanos,
    /// The end is sent only behind that of the peer.
    pub close_last: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            send: 0,
            burst: 1 << 16,
            room: 1 << 16,
            read: 1 << 20,
            read_every: 5 * MILLISECOND,
            close_last: false,
        }
    }
}

pub struct End {
    pub connection: Option<Connection>,
    pub config: Config,
    pub program: Program,
    pub plan: Plan,
    pub shut: bool,
    next_read: Nanos,
    iss: Seq,
    /// Behind the highest number that the peer was ever allowed to be sent, as it was told.
    allowed: Option<u32>,
    /// Right edge that was advertised, and the shift.
    advertised: Option<u32>,
    shift: u8,
    peer_shift: u8,
    sent_to: Option<Seq>,
    tail_probes: u64,
    listener: Option<Listener>,
}

/// Two ends and what is between them.
pub struct Wire {
    pub config: WireConfig,
    pub random: Random,
    pub now: Nanos,
    pub ends: [End; 2],
    under_way: BinaryHeap<Reverse<(Nanos, u64, usize, bool)>>,
    packets: Vec<Option<Vec<u8>>>,
    free_at: [Nanos; 2],
    pub segments: u64,
    pub dropped: u64,
    cookies: SynCookies,
}

pub fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, side as u8 + 1], 1000 + side as u16))
}

fn ip(side: usize) -> IpAddr {
    address(side).ip()
}

/// A segment's bytes with its checksum, as `from` sends it.
pub fn emit(from: usize, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.length() + payload.len()];
    let length = header.emit(&mut bytes).expect("the header fits");
    bytes[length..].copy_from_slice(payload);
    let sum = checksum(ip(from), ip(1 - from), &bytes);
    bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    bytes
}

impl Wire {
    /// The first end connects; the second listens, or connects at the same time.
    pub fn new(config: WireConfig, configs: [Config; 2], plans: [Plan; 2], both: bool) -> Self {
        let mut side = 0;
        let random = Random(config.seed);
        let secret = Secret([config.seed, 7]);
        let ends = configs.into_iter().zip(plans).map(|(mut config, plan)| {
            // Room for less than a unit of the window would be none.
            let largest = plan.room.ilog2().saturating_sub(2) as u8;
            config.window_scale = config.window_scale.map(|shift| shift.min(largest));
            let own = side;
            side += 1;
            let connects = own == 0 || both;
            let (local, remote) = (address(own), address(1 - own));
            let iss = secret.initial(0, &Ends { local, remote }).0;
            let ports = (local.port(), remote.port());
            let listener = ListenConfig {
                connection: config.clone(),
                window: plan.room.min(0xffff) as u16,
                ..ListenConfig::default()
            };
            End {
                listener: (!connects).then(|| Listener::new(listener, secret)),
                connection: connects
                    .then(|| Connection::connect(config.clone(), 0, ports, iss, own as u32 * 77)),
                config,
                program: Program::new(own as u8, plan.room),
                iss,
                shut: false,
                next_read: plan.read_every,
                plan,
                allowed: None,
                advertised: None,
                shift: 0,
                peer_shift: 0,
                sent_to: None,
                tail_probes: 0,
            }
        });
        let mut ends = ends.collect::<Vec<_>>().into_iter();
        Self {
            config,
            random,
            now: 0,
            ends: [ends.next().unwrap(), ends.next().unwrap()],
            under_way: BinaryHeap::new(),
            packets: Vec::new(),
            free_at: [0; 2],
            segments: 0,
            dropped: 0,
            cookies: SynCookies::new(secret),
        }
    }

    fn largest(&self) -> usize {
        match self.config.change {
            Some((at, largest)) if self.now >= at => largest,
            _ => self.config.largest,
        }
    }

    fn put(&mut self, side: usize, header: &Header, payload: &[u8], congested: bool) {
        self.segments += 1;
        let mut bytes = emit(side, header, payload);
        assert!(
            bytes.len() - tcp::HEADER <= usize::from(self.ends[side].config.mss),
            "longer than the interface takes: {header:?} and {} bytes",
            payload.len()
        );
        if bytes.len() > self.largest() {
            self.dropped += 1;
            let mss = (self.largest() - 20) as u16;
            if !self.config.black_hole
                && let Some(connection) = &mut self.ends[side].connection
            {
                connection.path_limit(self.now, header.seq, mss);
            }
            return;
        }
        let backlog = self.free_at[side].saturating_sub(self.now);
        if self.random.percent(self.config.loss)
            || backlog > self.config.queue * self.config.byte_time
        {
            self.dropped += 1;
            return;
        }
        if self.random.percent(self.config.corruption) {
            let bit = self.random.below(bytes.len() as u64 * 8);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + usize::from(self.random.percent(self.config.duplication));
        for _ in 0..copies {
            self.free_at[side] =
                self.free_at[side].max(self.now) + bytes.len() as u64 * self.config.byte_time;
            let mut at = self.free_at[side] + self.config.delay;
            if self.random.percent(self.config.reordering) {
                at += self.random.below(self.config.delay * 2);
            }
            self.packets.push(Some(bytes.clone()));
            let number = self.packets.len() as u64 - 1;
            self.under_way
                .push(Reverse((at, number, 1 - side, congested)));
        }
    }

    /// Checks that the window that a header advertises does not shrink.
    fn check_window(&mut self, side: usize, header: &Header) {
        let scaled = self
            .ends
            .iter()
            .all(|end| end.config.window_scale.is_some());
        let end = &mut self.ends[side];
        if header.flags.contains(Flags::SYN) {
            let shift = header.options.window_scale.filter(|_| scaled);
            end.shift = shift.unwrap_or(0);
            end.advertised = None;
        } else if header.flags.contains(Flags::ACK) && !header.flags.contains(Flags::RST) {
            let edge = header.ack.plus(u32::from(header.window) << end.shift);
            let slack = (1 << end.shift) - 1;
            if let Some(before) = end.advertised {
                assert!(
                    !Seq(edge.0.wrapping_add(slack)).before(Seq(before)),
                    "the window shrinks"
                );
            }
            end.advertised = Some(match end.advertised {
                Some(before) if edge.before(Seq(before)) => before,
                _ => edge.0,
            });
        }
    }

    /// Checks a segment that leaves.
    fn check(&mut self, side: usize, header: &Header, length: usize) {
        self.check_window(side, header);
        let end = &mut self.ends[side];
        let connection = end.connection.as_ref().unwrap();
        assert!(connection.is_consistent(), "counts are wrong");
        assert_eq!(connection.memory(), end.program.charged);
        let info = connection.info();
        if length > 0 {
            let last = header.seq.plus(length as u32);
            let allowed = end.allowed.expect("data before the peer's window is known");
            assert!(
                !Seq(allowed).before(last),
                "{} bytes beyond the peer's window: {header:?} {info:?} since {}",
                last.0.wrapping_sub(allowed),
                end.iss.0
            );
            let fresh = end.sent_to.is_none_or(|to| to.before(last));
            if fresh {
                end.sent_to = Some(last);
                // A segment by itself, and a probe of the tail, may go always.
                let alone = info.in_flight <= length as u64 + 1;
                let probes = info.tail_probes > end.tail_probes;
                // A FIN takes a number and no room.
                let fits = info.in_flight <= info.cwnd + 1;
                assert!(alone || probes || fits, "{info:?}");
            }
        }
        end.tail_probes = info.tail_probes;
    }

    fn run_end(&mut self, side: usize) {
        let now = self.now;
        while let Some(listener) = &mut self.ends[side].listener
            && let Some((_, header)) = listener.next(now)
        {
            self.check_window(side, &header);
            self.put(side, &header, &[], false);
        }
        let end = &mut self.ends[side];
        let Some(connection) = &mut end.connection else {
            return;
        };
        let program = &mut end.program;
        let plan = &end.plan;
        if now >= end.next_read {
            program.read = program.received.min(program.read + plan.read);
            end.next_read = now + plan.read_every;
        }
        let waiting = program.queued() as u64;
        if connection.state() != State::Closed
            && program.written < plan.send
            && waiting < plan.burst
        {
            let room = plan.burst - waiting;
            program.written += room.min(plan.send - program.written);
        }
        if program.written == plan.send
            && !end.shut
            && connection.state() != State::SynSent
            && (!plan.close_last || program.ended)
        {
            end.shut = true;
            connection.shutdown();
        }
        let mut payload = vec![0; 65536];
        for turn in 0.. {
            assert!(turn < 10_000, "segments without end");
            let end = &mut self.ends[side];
            let connection = end.connection.as_mut().unwrap();
            let Some(outgoing) = connection.next(now, &mut end.program, &mut payload) else {
                break;
            };
            if let Some(size) = outgoing.segment_size {
                assert!(outgoing.payload > usize::from(size));
                assert!(outgoing.payload <= end.config.offload);
            }
            self.check(side, &outgoing.header, outgoing.payload);
            for (header, range) in outgoing.cut() {
                let congested = outgoing.ecn_capable && self.random.percent(self.config.marking);
                self.put(side, &header, &payload[range], congested);
            }
        }
        let end = &mut self.ends[side];
        let wanted = end.connection.as_ref().unwrap().space().receive;
        let most = end.program.largest_room;
        end.program.room = end.program.room.max(wanted.min(most));
    }

    fn arrive(&mut self, side: usize, bytes: &[u8], congested: bool) {
        let Ok(segment) = Segment::verify(ip(1 - side), ip(side), bytes) else {
            assert!(self.config.corruption > 0, "malformed: {bytes:?}");
            self.dropped += 1;
            return;
        };
        let end = &mut self.ends[side];
        let header = &segment.header;
        if header.flags.contains(Flags::SYN) {
            end.peer_shift = header.options.window_scale.unwrap_or(0);
            let behind_syn = end.iss.plus(1).plus(u32::from(header.window));
            end.allowed = end.allowed.or(Some(behind_syn.0));
        } else if header.flags.contains(Flags::ACK) && !header.flags.contains(Flags::RST) {
            let shift = if end.config.window_scale.is_some() {
                end.peer_shift
            } else {
                0
            };
            let edge = header.ack.plus(u32::from(header.window) << shift);
            if end.allowed.is_none_or(|old| Seq(old).before(edge)) {
                end.allowed = Some(edge.0);
            }
        }
        let arrival = Arrival {
            segment,
            congested,
            segment_size: None,
        };
        if let (None, Some(listener)) = (&end.connection, &mut end.listener) {
            let incoming = Incoming {
                ends: Ends {
                    local: address(side),
                    remote: address(1 - side),
                },
                arrival,
                mss: end.config.mss,
                iss: None,
            };
            match listener.arrive(self.now, &self.cookies, &incoming) {
                Reaction::Drop => return,
                Reaction::Answer(answer) => {
                    end.iss = answer.seq;
                    end.allowed = None;
                    self.check_window(side, &answer);
                    return self.put(side, &answer, &[], false);
                }
                Reaction::Open(handshake) => {
                    assert!(listener.opened(&handshake));
                    let config = end.config.clone();
                    end.connection = Some(Connection::open(config, self.now, &handshake));
                }
            }
        }
        if let Some(connection) = &mut end.connection {
            connection.arrive(self.now, &arrival, &mut end.program);
            assert!(connection.is_consistent(), "counts are wrong");
        }
    }

    /// Goes on until both ends are closed and have no timer left, or the time is over.
    pub fn run(&mut self, limit: Nanos) {
        loop {
            self.run_end(0);
            self.run_end(1);
            let mut next = self.under_way.peek().map(|Reverse((at, ..))| *at);
            let mut earlier = |at: Nanos| next = Some(next.map_or(at, |other| other.min(at)));
            let mut done = true;
            for end in &self.ends {
                if let Some(at) = end.listener.as_ref().and_then(Listener::deadline) {
                    assert!(at > self.now, "an answer that is due and does not go");
                    earlier(at);
                }
                if let Some(connection) = &end.connection {
                    done &= connection.state() == State::Closed;
                    if let Some(deadline) = connection.deadline() {
                        assert!(
                            deadline > self.now,
                            "a timer that is due and does nothing: {:?} {:?}",
                            connection.state(),
                            deadline
                        );
                        assert_ne!(connection.state(), State::Closed, "a timer is left");
                        earlier(deadline);
                    }
                    if connection.state() != State::Closed
                        && (end.program.received > end.program.read
                            || end.program.written < end.plan.send && end.program.queued() == 0)
                    {
                        earlier(end.next_read.max(self.now + 1));
                    }
                } else {
                    done = false;
                }
            }
            if done && self.under_way.is_empty() {
                return;
            }
            let Some(at) = next else {
                panic!("nothing will ever happen: {}", self.describe())
            };
            assert!(at <= limit, "not done in time: {}", self.describe());
            self.now = at;
            while let Some(Reverse((at, number, side, congested))) = self.under_way.peek().copied()
            {
                if at > self.now {
                    break;
                }
                self.under_way.pop();
                let bytes = self.packets[number as usize].take().unwrap();
                self.arrive(side, &bytes, congested);
            }
        }
    }

    fn describe(&self) -> String {
        let ends = self.ends.each_ref().map(|end| {
            let connection = end.connection.as_ref();
            format!(
                "{:?} error {:?} deadline {:?} sent {}/{} received {}",
                connection.map(Connection::info),
                connection.and_then(Connection::error),
                connection.and_then(Connection::deadline),
                end.program.released,
                end.program.written,
                end.program.received
            )
        });
        format!("at {} ms: {ends:#?}", self.now / MILLISECOND)
    }

    /// Every byte came once and in order, and the ends are closed without an error.
    pub fn expect_whole(&self) {
        for side in 0..2 {
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            let connection = end.connection.as_ref().unwrap();
            assert_eq!(connection.error(), None, "{}", self.describe());
            assert_eq!(end.program.received, peer.plan.send, "{}", self.describe());
            assert!(end.program.ended);
            assert!(connection.memory() <= end.program.charged);
        }
    }
}

/// Time that is enough for everything.
pub const LONG: Nanos = 1_000_000 * SECOND;
