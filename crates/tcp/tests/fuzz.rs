//! Structured random segments against connections in every state.

mod common;

use common::{Program, Random};
use tcp::{
    Arrival, Config, Connection, Ends, Flags, Header, Incoming, KeepAlive, ListenConfig, Listener,
    MILLISECOND, Nanos, Options, Reaction, SECOND, SackBlocks, Secret, Segment, Seq, State,
    SynCookies, Timestamps,
};

/// A number that is often near an interesting one.
fn near(random: &mut Random, interesting: &[u32]) -> u32 {
    if random.percent(5) {
        return random.next() as u32;
    }
    let base = interesting[random.below(interesting.len() as u64) as usize];
    let distance = match random.below(4) {
        0 => 0,
        1 => random.below(5) as u32,
        2 => random.below(3000) as u32,
        _ => random.below(100_000) as u32,
    };
    if random.percent(50) {
        base.wrapping_add(distance)
    } else {
        base.wrapping_sub(distance)
    }
}

fn options(random: &mut Random, own: &[u32], clock: u32) -> Options {
    let mut options = Options::default();
    if random.percent(10) {
        options.mss = Some(random.next() as u16);
    }
    if random.percent(10) {
        options.window_scale = Some(random.below(15) as u8);
    }
    options.sack_permitted = random.percent(10);
    if random.percent(60) {
        options.timestamps = Some(Timestamps {
            value: near(random, &[clock]),
            echo: near(random, &[clock]),
        });
    }
    if random.percent(40) {
        let mut blocks = SackBlocks::default();
        for _ in 0..random.below(5) {
            let left = near(random, own);
            blocks.push((Seq(left), Seq(near(random, &[left, own[0]]))));
        }
        blocks.truncate(options.room_for_blocks());
        options.sack = blocks;
    }
    options
}

/// The connection that a listener makes for a SYN, and its first number.
fn accepted(connection: Config, now: Nanos, syn: Header) -> (Connection, Seq) {
    let config = ListenConfig {
        connection: connection.clone(),
        ..ListenConfig::default()
    };
    let mut listener = Listener::new(config, Secret([1, 2]));
    let cookies = SynCookies::new(Secret([3, 4]));
    let mut take = |header| {
        let arrival = Arrival::from(Segment {
            header,
            payload: &[],
        });
        let incoming = Incoming {
            ends: Ends {
                local: ([10, 0, 0, 1], 5000).into(),
                remote: ([10, 0, 0, 2], 80).into(),
            },
            arrival,
            mss: 1460,
            iss: None,
        };
        listener.arrive(now, &cookies, &incoming)
    };
    let Reaction::Answer(answer) = take(syn) else {
        panic!("a SYN is answered");
    };
    let ack = Header {
        flags: Flags::ACK,
        seq: syn.seq.plus(1),
        ack: answer.seq.plus(1),
        options: Options {
            timestamps: syn.options.timestamps,
            ..Options::default()
        },
        ..syn
    };
    let Reaction::Open(handshake) = take(ack) else {
        panic!("an acknowledgement opens");
    };
    (Connection::open(connection, now, &handshake), answer.seq)
}

/// One connection that hears nothing but nonsense near the truth. Returns how many segments.
fn life(random: &mut Random) -> u64 {
    let (mut own, peer) = (random.next() as u32, random.next() as u32);
    let config = Config {
        timestamps: random.percent(50),
        sack: random.percent(70),
        ecn: random.percent(50),
        no_delay: random.percent(50),
        window_scale: random.percent(50).then_some(random.below(15) as u8),
        keep_alive: random.percent(30).then_some(KeepAlive::default()),
        user_timeout: random.percent(10).then_some(100 * SECOND),
        out_of_order: 20_000,
        offload: random.below(2) as usize * 20_000,
        fin_timeout: random.percent(80).then_some(10 * SECOND),
        window_clamp: random.percent(10).then_some(random.below(5000)),
        ..Config::default()
    };
    let mut now: Nanos = 0;
    // The stream is checked by nobody: forged bytes may get in.
    let mut program = Forgiving(Program::new(0, random.below(100_000)));
    program.0.budget = random.below(100_000) as usize;
    let payload = [0; 3000];
    let mut header = Header {
        source: 80,
        destination: 5000,
        seq: Seq(peer),
        ack: Seq(own).plus(1),
        flags: Flags::SYN,
        window: random.next() as u16,
        options: Options {
            mss: Some(1460),
            window_scale: Some(3),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 5, echo: 0 }),
            ..Options::default()
        },
        ..Header::default()
    };
    let mut connection = if random.percent(50) {
        header.flags |= Flags::ACK;
        let mut connection = Connection::connect(config, now, (5000, 80), Seq(own), 0);
        while connection.next(now, &mut program, &mut [0; 1500]).is_some() {}
        let segment = Segment {
            header,
            payload: &[],
        };
        if random.percent(90) {
            connection.arrive(now, &Arrival::from(segment), &mut program);
        }
        connection
    } else {
        let (connection, iss) = accepted(config, now, header);
        own = iss.0;
        connection
    };
    let (mut segments, mut theirs, mut ours) = (1, peer, own);
    for _ in 0..60 {
        for turn in 0.. {
            assert!(turn < 5000, "segments without end");
            let Some(out) = connection.next(now, &mut program, &mut [0; 20_000]) else {
                break;
            };
            assert!(out.cut().count() <= 20_000);
            theirs = out.header.ack.0;
            ours = out.header.seq.0.wrapping_add(out.payload as u32);
        }
        assert!(connection.is_consistent());
        assert_eq!(connection.memory(), program.0.charged);
        if let Some(at) = connection.deadline() {
            assert!(at > now, "a timer that is due and does nothing");
            if random.percent(20) {
                now = at;
            }
        }
        now += random.below(20) * MILLISECOND;
        match random.below(30) {
            0 => connection.shutdown(),
            1 => connection.release(now),
            2 if random.percent(10) => connection.abort(),
            3 => {
                let quoted = Seq(near(random, &[own, ours]));
                connection.path_limit(now, quoted, random.next() as u16);
            }
            4 => program.0.read = program.0.received,
            15 => connection.prune(&mut program),
            16 => connection.set_offload(random.below(60_000) as usize),
            17 => connection.set_fin_timeout(None),
            5..15 => program.0.written += random.below(5000),
            _ => {}
        }
        let interesting = [own, ours, own.wrapping_add(program.0.released as u32)];
        let length = if random.percent(60) {
            random.below(1461)
        } else {
            0
        };
        let flags = match random.below(10) {
            0 => Flags::from_bits_retain(random.next() as u8),
            1 => Flags::FIN | Flags::ACK,
            2 => Flags::ACK | Flags::ECE,
            _ => Flags::ACK,
        };
        let header = Header {
            source: 80,
            destination: 5000,
            seq: Seq(near(random, &[peer, theirs])),
            ack: Seq(near(random, &interesting)),
            flags,
            window: if random.percent(20) {
                0
            } else {
                random.next() as u16
            },
            urgent: random.next() as u16,
            options: options(random, &interesting, (now / MILLISECOND) as u32),
        };
        let segment = Segment {
            header,
            payload: &payload[..length as usize],
        };
        let arrival = Arrival {
            segment,
            congested: random.percent(10),
            segment_size: random.percent(10).then_some(random.next() as u16),
        };
        connection.arrive(now, &arrival, &mut program);
        assert!(connection.is_consistent());
        segments += 1;
        if connection.state() == State::Closed {
            assert_eq!(connection.deadline(), None);
        }
    }
    segments
}

/// A program that does not look at what it gets.
struct Forgiving(Program);

impl tcp::Buffers for Forgiving {
    fn queued(&self) -> usize {
        self.0.queued()
    }

    fn peek(&self, offset: usize, bytes: &mut [u8]) -> usize {
        bytes.len().min(self.queued().saturating_sub(offset))
    }

    fn release(&mut self, count: usize) {
        self.0.release(count);
    }

    fn window(&self) -> usize {
        self.0.window()
    }

    fn deliver(&mut self, bytes: &[u8]) -> Result<usize, tcp::Gone> {
        let count = bytes.len().min(self.window());
        self.0.received += count as u64;
        Ok(count)
    }

    fn deliver_end(&mut self) {
        self.0.deliver_end();
    }

    fn unread(&self) -> usize {
        self.0.unread()
    }

    fn charge(&mut self, bytes: usize) -> bool {
        self.0.charge(bytes)
    }

    fn uncharge(&mut self, bytes: usize) {
        self.0.uncharge(bytes);
    }
}

fn fuzz(seed: u64, segments: u64) {
    let mut done = 0;
    let mut turn = 0;
    while done < segments {
        let seed = seed.wrapping_add(turn);
        let result = std::panic::catch_unwind(|| life(&mut Random(seed)));
        match result {
            Ok(count) => done += count,
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
        turn += 1;
    }
}

#[test]
fn a_quarter_of_a_million_segments() {
    fuzz(1, 250_000);
}

/// By name: `cargo test --release -p tcp --test fuzz -- --ignored`; `SEED` and `SEGMENTS` in the
/// environment choose which and how many.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_million_segments() {
    let number =
        |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    fuzz(number("SEED", 1 << 32), number("SEGMENTS", 100_000_000));
}
