//! Listeners: half-open connections, SYN cookies, floods, the count of what waits to be accepted.

mod common;

use std::net::SocketAddr;

use common::{Program, Random};
use tcp::{
    Arrival, Config, Connection, CookiePolicy, Ends, Flags, Handshake, Header, Incoming,
    ListenConfig, Listener, MILLISECOND, Nanos, Options, Reaction, SECOND, Secret, Segment, Seq,
    State, SynCookies, Timestamps, defer_accept_retries, defer_accept_seconds,
};

const MSS: u16 = 1460;
const IRS: u32 = 5000;

struct Server {
    now: Nanos,
    listener: Listener,
    cookies: SynCookies,
}

/// The ends of a client by its number, as the listener sees them.
fn ends(client: u32) -> Ends {
    let [_, a, b, c] = client.to_be_bytes();
    Ends {
        local: SocketAddr::from(([10, 0, 0, 1], 80)),
        remote: SocketAddr::from(([10, 1 + a, b, c], 40_000)),
    }
}

fn segment(flags: Flags, seq: u32, ack: Seq) -> Header {
    Header {
        source: 40_000,
        destination: 80,
        seq: Seq(seq),
        ack,
        flags,
        window: 30_000,
        ..Header::default()
    }
}

fn syn() -> Header {
    Header {
        options: Options {
            mss: Some(1400),
            window_scale: Some(6),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 77, echo: 0 }),
            ..Options::default()
        },
        ..segment(Flags::SYN, IRS, Seq(0))
    }
}

impl Server {
    fn new(config: ListenConfig) -> Self {
        Self {
            now: 1000 * SECOND,
            listener: Listener::new(config, Secret([1, 2])),
            cookies: SynCookies::new(Secret([3, 4])),
        }
    }

    fn with_backlog(backlog: usize) -> Self {
        Self::new(ListenConfig {
            backlog,
            ..ListenConfig::default()
        })
    }

    fn arrive(&mut self, client: u32, header: Header, payload: &[u8]) -> Reaction {
        let incoming = Incoming {
            ends: ends(client),
            arrival: Arrival::from(Segment { header, payload }),
            mss: MSS,
            iss: None,
        };
        let reaction = self.listener.arrive(self.now, &self.cookies, &incoming);
        assert!(self.listener.half_open() > 100 || self.listener.is_consistent());
        reaction
    }

    fn answer(&mut self, client: u32, header: Header) -> Header {
        match self.arrive(client, header, &[]) {
            Reaction::Answer(answer) => answer,
            other => panic!("{other:?} instead of an answer"),
        }
    }

    fn open(&mut self, client: u32, header: Header, payload: &[u8]) -> Handshake {
        match self.arrive(client, header, payload) {
            Reaction::Open(handshake) => handshake,
            other => panic!("{other:?} instead of a connection"),
        }
    }

    fn nothing_due(&mut self) {
        assert_eq!(self.listener.next(self.now), None);
    }
}

/// The acknowledgement of an answer to [`syn`].
fn ack_of(answer: &Header) -> Header {
    let mut ack = segment(Flags::ACK, IRS + 1, answer.seq.plus(1));
    ack.options.timestamps = answer.options.timestamps.map(|clock| Timestamps {
        value: 78,
        echo: clock.value,
    });
    ack
}

/// RFC 9293, section 3.10.7.2, and 3.10.7.4, fifth check: a connection of a record is like one
/// that was there from the SYN on.
#[test]
fn a_handshake_becomes_a_connection() {
    let mut server = Server::with_backlog(8);
    let answer = server.answer(1, syn());
    assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
    assert_eq!((answer.source, answer.destination), (80, 40_000));
    assert_eq!(answer.ack, Seq(IRS + 1));
    assert_eq!(answer.window, 0xffff);
    let options = answer.options;
    assert_eq!((options.mss, options.window_scale), (Some(MSS), Some(7)));
    assert!(options.sack_permitted);
    assert_eq!(options.timestamps.unwrap().echo, 77);
    assert_eq!(server.listener.half_open(), 1);
    server.now += 30 * MILLISECOND;
    let ack = ack_of(&answer);
    let bytes: Vec<u8> = (0..10).map(|place| common::byte_at(1, place)).collect();
    let handshake = server.open(1, ack, &bytes);
    assert_eq!(*handshake.ends(), ends(1));
    // Nothing is lost until the caller has made the connection.
    assert_eq!(
        (server.listener.half_open(), server.listener.waiting()),
        (1, 0)
    );
    assert_eq!(server.open(1, ack, &bytes), handshake);
    assert!(server.listener.opened(&handshake));
    assert!(!server.listener.opened(&handshake), "it is opened once");
    assert_eq!(
        (server.listener.half_open(), server.listener.waiting()),
        (0, 1)
    );
    assert_eq!(server.listener.deadline(), None);
    let config = server.listener.config().connection.clone();
    let mut connection = Connection::open(config, server.now, &handshake);
    let mut program = Program::new(0, 100_000);
    let arrival = Arrival::from(Segment {
        header: ack,
        payload: &bytes,
    });
    connection.arrive(server.now, &arrival, &mut program);
    assert_eq!(connection.state(), State::Established);
    assert_eq!(program.received, 10);
    let info = connection.info();
    assert_eq!(info.mss, 1400 - 12);
    assert_eq!(info.rtt, 30 * MILLISECOND);
    assert_eq!(info.peer_window, 30_000 << 6);
    assert!(info.timestamps && info.sack && !info.ecn);
    server.listener.accepted();
    assert_eq!(server.listener.waiting(), 0);
}

/// RFC 9293, section 3.10.7.2: what does not begin anything.
#[test]
fn a_listener_answers_acknowledgements_only() {
    let mut server = Server::with_backlog(8);
    let reset = server.answer(1, segment(Flags::ACK, 5, Seq(99)));
    assert_eq!((reset.flags, reset.seq), (Flags::RST, Seq(99)));
    let reset = server.answer(1, segment(Flags::SYN | Flags::ACK, 5, Seq(99)));
    assert_eq!((reset.flags, reset.seq), (Flags::RST, Seq(99)));
    for flags in [
        Flags::RST,
        Flags::RST | Flags::ACK,
        Flags::empty(),
        Flags::FIN,
        Flags::SYN | Flags::FIN,
        Flags::SYN | Flags::RST,
    ] {
        let reaction = server.arrive(1, segment(flags, 5, Seq(99)), &[]);
        assert_eq!(reaction, Reaction::Drop, "{flags:?}");
    }
    assert_eq!(server.listener.half_open(), 0);
}

/// RFC 9293, section 3.10.7.4, and RFC 5961, sections 3.2 and 4.2, in SYN-RECEIVED.
#[test]
fn half_open_connections_check_what_comes() {
    let mut server = Server::with_backlog(8);
    let answer = server.answer(1, syn());
    let iss = answer.seq;
    // The SYN again: the same answer, not more often than twice a second.
    let again = server.answer(1, syn());
    assert_eq!((again.seq, again.flags), (iss, answer.flags));
    assert_eq!(server.arrive(1, syn(), &[]), Reaction::Drop);
    server.now += SECOND;
    let challenge = |server: &mut Server, header: Header| {
        server.now += SECOND;
        let ack = server.answer(1, header);
        assert_eq!(
            (ack.flags, ack.seq, ack.ack),
            (Flags::ACK, iss.plus(1), Seq(IRS + 1))
        );
        assert_eq!(ack.window, 0xffff >> 7);
        assert_eq!(server.listener.half_open(), 1);
    };
    // Another SYN, an old clock, and numbers outside of the window.
    challenge(&mut server, segment(Flags::SYN, IRS + 9, Seq(0)));
    let mut old = ack_of(&answer);
    old.options.timestamps.as_mut().unwrap().value = 76;
    challenge(&mut server, old);
    challenge(
        &mut server,
        segment(Flags::ACK, IRS + 1 + 0x10000, iss.plus(1)),
    );
    challenge(&mut server, segment(Flags::ACK, IRS - 5, iss.plus(1)));
    // Acknowledgements of something else are refused.
    for wrong in [0, 2] {
        let reset = server.answer(1, segment(Flags::ACK, IRS + 1, iss.plus(wrong)));
        assert_eq!((reset.flags, reset.seq), (Flags::RST, iss.plus(wrong)));
    }
    // Resets: only the exact number counts.
    challenge(&mut server, segment(Flags::RST, IRS + 2, Seq(0)));
    let outside = segment(Flags::RST, IRS, Seq(0));
    assert_eq!(server.arrive(1, outside, &[]), Reaction::Drop);
    assert_eq!(server.listener.half_open(), 1);
    let exact = segment(Flags::RST, IRS + 1, Seq(0));
    assert_eq!(server.arrive(1, exact, &[]), Reaction::Drop);
    assert_eq!(server.listener.half_open(), 0);
    assert_eq!(server.listener.counts().attempt_fails, 1);
}

/// RFC 6298, section 5: the answer is sent again after 1, 2, 4 … seconds, so often and no more.
#[test]
fn answers_are_repeated_with_growing_time() {
    let mut server = Server::with_backlog(8);
    let answer = server.answer(1, syn());
    for turn in 0..5 {
        let at = server.now + (SECOND << turn);
        assert_eq!(server.listener.deadline(), Some(at));
        server.now = at - 1;
        server.nothing_due();
        server.now = at;
        let (to, again) = server.listener.next(at).unwrap();
        assert_eq!(
            (to, again.seq, again.flags),
            (ends(1), answer.seq, answer.flags)
        );
        server.nothing_due();
    }
    server.now += SECOND << 5;
    server.nothing_due();
    assert_eq!(server.listener.half_open(), 0);
    assert_eq!(server.listener.deadline(), None);
    assert_eq!(server.listener.counts().timeouts, 1);
    // A round trip that a repeated answer was part of is not measured.
    let answer = server.answer(1, syn());
    server.now += SECOND;
    server.listener.next(server.now).unwrap();
    let mut ack = ack_of(&answer);
    ack.options.timestamps = None;
    let handshake = server.open(1, ack, &[]);
    let mut connection = Connection::open(Config::default(), server.now, &handshake);
    let arrival = Arrival::from(Segment {
        header: ack,
        payload: &[],
    });
    connection.arrive(server.now, &arrival, &mut Program::new(0, 1000));
    assert_eq!(
        (connection.state(), connection.info().rtt),
        (State::Established, 0)
    );
}

/// RFC 1122, section 4.2.3.9: the peer of a half-open connection is not there.
#[test]
fn errors_of_icmp_end_a_handshake() {
    let mut server = Server::with_backlog(8);
    let answer = server.answer(1, syn());
    server.listener.icmp_error(&ends(1), answer.seq.plus(1));
    server.listener.icmp_error(&ends(2), answer.seq);
    assert_eq!(server.listener.half_open(), 1);
    server.listener.icmp_error(&ends(1), answer.seq);
    assert_eq!(server.listener.half_open(), 0);
}

/// Linux: a backlog of `n` lets `n + 1` wait; who comes later is not refused.
#[test]
fn too_many_wait_to_be_accepted() {
    for abort in [false, true] {
        let mut server = Server::new(ListenConfig {
            backlog: 1,
            abort_on_overflow: abort,
            ..ListenConfig::default()
        });
        let late = server.answer(3, syn());
        for client in 1..=2 {
            // With one half-open these get cookies.
            let answer = server.answer(client, syn());
            let handshake = server.open(client, ack_of(&answer), &[]);
            assert!(server.listener.opened(&handshake));
        }
        assert_eq!(server.arrive(4, syn(), &[]), Reaction::Drop);
        let reaction = server.arrive(3, ack_of(&late), &[]);
        if abort {
            assert!(matches!(reaction, Reaction::Answer(reset) if reset.flags == Flags::RST));
            assert_eq!(server.listener.half_open(), 0);
            continue;
        }
        assert_eq!(reaction, Reaction::Drop);
        assert_eq!(server.listener.counts().overflows, 2);
        // Once there is room, the answer goes again, and its acknowledgement opens.
        server.listener.accepted();
        server.now += SECOND;
        assert_eq!(server.listener.next(server.now).unwrap().0, ends(3));
        server.open(3, ack_of(&late), &[]);
    }
}

/// RFC 4987, section 3.6: with clocks everything that the SYN said is remembered, without them its
/// segment size.
#[test]
fn a_cookie_remembers_what_was_agreed() {
    let policies = [CookiePolicy::Always, CookiePolicy::WhenFull];
    for (policy, clocks) in policies.into_iter().flat_map(|p| [(p, true), (p, false)]) {
        let mut server = Server::new(ListenConfig {
            backlog: 0,
            cookies: policy,
            ..ListenConfig::default()
        });
        let mut syn = syn();
        syn.flags |= Flags::ECE | Flags::CWR;
        if !clocks {
            syn.options.timestamps = None;
        }
        let answer = server.answer(1, syn);
        assert_eq!(server.listener.half_open(), 0);
        assert_eq!(answer.flags.contains(Flags::ECE), clocks);
        assert_eq!(answer.options.window_scale.is_some(), clocks);
        assert_eq!(answer.options.sack_permitted, clocks);
        assert_eq!(answer.options.mss, Some(MSS));
        server.now += 50 * SECOND;
        let handshake = server.open(1, ack_of(&answer), &[]);
        assert!(server.listener.opened(&handshake));
        let mut connection = Connection::open(Config::default(), server.now, &handshake);
        let arrival = Arrival::from(Segment {
            header: ack_of(&answer),
            payload: &[],
        });
        connection.arrive(server.now, &arrival, &mut Program::new(0, 1000));
        assert_eq!(connection.state(), State::Established);
        let info = connection.info();
        // 1300 is the largest that a cookie can name and 1400 holds.
        assert_eq!(info.mss, if clocks { 1300 - 12 } else { 1300 });
        assert_eq!(
            (info.timestamps, info.sack, info.ecn),
            (clocks, clocks, clocks)
        );
        let shift = if clocks { 6 } else { 0 };
        assert_eq!(info.peer_window, 30_000 << shift);
        // Others' acknowledgements are refused, and so is this one when it is old.
        server.answer(2, ack_of(&answer));
        server.now += 100 * SECOND;
        server.answer(1, ack_of(&answer));
        let counts = server.listener.counts();
        assert_eq!((counts.cookies_sent, counts.cookies_received), (1, 1));
    }
}

/// Linux: no acknowledgement is taken for a cookie while none were sent.
#[test]
fn cookies_are_looked_for_only_after_some_were_sent() {
    let mut server = Server::with_backlog(1);
    server.answer(1, syn());
    server.answer(2, segment(Flags::ACK, IRS + 1, Seq(1)));
    assert_eq!(server.listener.counts().cookies_failed, 0);
    server.answer(3, syn());
    server.answer(2, segment(Flags::ACK, IRS + 1, Seq(1)));
    assert_eq!(server.listener.counts().cookies_failed, 1);
}

/// RFC 4987: under a flood the listener serves who answers, its memory stays, and afterwards
/// nothing is left.
#[test]
fn a_flood_leaves_the_listener_serving() {
    let mut server = Server::with_backlog(128);
    let mut most = 0;
    let mut served = 0;
    for client in 0..100_000_u32 {
        server.now += 20_000;
        server.answer(client, syn());
        most = most.max(server.listener.memory());
        assert!(server.listener.half_open() <= 128);
        while server.listener.next(server.now).is_some() {}
        if client % 1000 == 0 {
            // Somebody who means it.
            let honest = (1 << 20) + client;
            let answer = server.answer(honest, syn());
            let handshake = server.open(honest, ack_of(&answer), &[]);
            assert!(server.listener.opened(&handshake));
            server.listener.accepted();
            served += 1;
        }
    }
    assert_eq!(served, 100);
    assert!(most < 256 * 300, "{most} bytes");
    assert!(server.listener.counts().cookies_sent > 99_000);
    while let Some(at) = server.listener.deadline() {
        server.now = at;
        while server.listener.next(at).is_some() {}
        assert!(server.listener.is_consistent());
        assert!(server.listener.deadline().is_none_or(|next| next > at));
    }
    assert_eq!(
        (server.listener.half_open(), server.listener.memory()),
        (0, 0)
    );
}

/// Linux: without cookies a full queue drops, and its last quarter is kept.
#[test]
fn without_cookies_a_full_queue_drops() {
    let mut server = Server::new(ListenConfig {
        backlog: 100,
        syn_backlog: 40,
        cookies: CookiePolicy::Never,
        ..ListenConfig::default()
    });
    for client in 0..31 {
        server.answer(client, syn());
    }
    assert_eq!(server.arrive(50, syn(), &[]), Reaction::Drop);
    server.listener.config_mut().backlog = 10;
    assert_eq!(server.arrive(50, syn(), &[]), Reaction::Drop);
    let counts = server.listener.counts();
    assert_eq!(
        (counts.drops, counts.full_drops, counts.cookies_sent),
        (2, 1, 0)
    );
}

/// Linux `reqsk_timer_handler`: where old handshakes fill the queue, they are given up sooner.
#[test]
fn old_handshakes_make_room_for_young_ones() {
    let mut server = Server::with_backlog(16);
    for client in 0..16 {
        server.answer(client, syn());
    }
    let began = server.now;
    while let Some(at) = server.listener.deadline() {
        server.now = at;
        while server.listener.next(at).is_some() {}
    }
    // Two repetitions instead of five for the first eight, until less than half of the queue is
    // full.
    assert_eq!(server.now - began, 63 * SECOND);
    assert!(server.listener.counts().retransmissions <= 8 * 2 + 8 * 5);
}

/// RFC 6191: what follows a connection that waited for late segments has a number of its own, and
/// a full queue does not keep it out.
#[test]
fn a_connection_follows_another() {
    let mut server = Server::with_backlog(1);
    server.answer(1, syn());
    let incoming = Incoming {
        ends: ends(2),
        arrival: Arrival::from(Segment {
            header: syn(),
            payload: &[],
        }),
        mss: MSS,
        iss: Some(Seq(12345)),
    };
    let reaction = server
        .listener
        .arrive(server.now, &server.cookies, &incoming);
    let Reaction::Answer(answer) = reaction else {
        panic!("{reaction:?}");
    };
    assert_eq!((answer.seq, server.listener.half_open()), (Seq(12345), 2));
    let handshake = server.open(2, ack_of(&answer), &[]);
    assert_eq!(handshake.iss(), Seq(12345));
}

/// `TCP_DEFER_ACCEPT`: who sends nothing is not accepted until the time is over.
#[test]
fn silent_connections_are_deferred() {
    let mut server = Server::new(ListenConfig {
        defer_accept: defer_accept_retries(3),
        ..ListenConfig::default()
    });
    let answer = server.answer(1, syn());
    assert_eq!(server.arrive(1, ack_of(&answer), &[]), Reaction::Drop);
    server.open(1, ack_of(&answer), &[0]);
    // The answer is not sent again until the last time-out, whose acknowledgement opens.
    server.now += SECOND;
    server.nothing_due();
    server.now += 2 * SECOND;
    let again = server.listener.next(server.now);
    assert_eq!(again.map(|(_, header)| header.seq), Some(answer.seq));
    server.open(1, ack_of(&answer), &[]);
}

/// Linux `secs_to_retrans`, `retrans_to_secs`.
#[test]
fn seconds_of_deferring_are_time_outs() {
    let pairs = [
        (0, 0, 0),
        (1, 1, 1),
        (2, 2, 3),
        (3, 2, 3),
        (4, 3, 7),
        (64, 7, 127),
    ];
    for (seconds, retries, told) in pairs {
        assert_eq!(defer_accept_retries(seconds), retries);
        assert_eq!(defer_accept_seconds(retries), told);
    }
    assert_eq!(defer_accept_seconds(8), 247);
    assert_eq!(defer_accept_retries(u32::MAX), 255);
}

/// Whatever comes, the table agrees with itself, is bounded, and no timer is due for nothing.
#[test]
fn random_segments_leave_the_table_whole() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let backlog = random.below(40) as usize;
        let policies = [
            CookiePolicy::Never,
            CookiePolicy::WhenFull,
            CookiePolicy::Always,
        ];
        let mut server = Server::new(ListenConfig {
            backlog,
            cookies: policies[random.below(3) as usize],
            abort_on_overflow: random.percent(30),
            defer_accept: random.below(4) as u8,
            ..ListenConfig::default()
        });
        let mut answers = vec![None; 80];
        for _ in 0..1500 {
            let client = random.below(80) as u32;
            let known: Option<Header> = answers[client as usize];
            let mut header = match known {
                Some(answer) if random.percent(60) => ack_of(&answer),
                _ => syn(),
            };
            if random.percent(20) {
                header.flags = Flags::from_bits_retain(random.next() as u8);
            }
            if random.percent(20) {
                header.seq = header.seq.plus(random.below(3) as u32).plus(u32::MAX);
            }
            let payload = vec![0; random.below(3) as usize];
            match server.arrive(client, header, &payload) {
                Reaction::Answer(answer) if answer.flags.contains(Flags::SYN) => {
                    answers[client as usize] = Some(answer);
                }
                Reaction::Open(handshake) if random.percent(80) => {
                    assert!(server.listener.opened(&handshake));
                }
                _ => {}
            }
            if random.percent(20) {
                server.listener.accepted();
            }
            server.now += random.below(500) * MILLISECOND;
            while server.listener.next(server.now).is_some() {}
            assert!(server.listener.deadline().is_none_or(|at| at > server.now));
            assert!(server.listener.half_open() <= 2 * backlog);
            assert!(server.listener.waiting() <= backlog + 1);
        }
    }
}
