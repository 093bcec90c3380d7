//! Memory and sizes: buffers that tune themselves, memory that is refused, several segments at
//! once, and the options that belong to them.

mod common;

use common::script::{MSS, Script, config, header};
use common::{LONG, Plan, Wire, WireConfig};
use tcp::{Arrival, Config, Flags, MILLISECOND, Merged, Phase, SECOND, Segment, State};

/// One direction over a fast long wire: 12.5 MB/s, 40 ms there and back.
fn transfer(bytes: u64, largest_room: u64, offload: usize) -> Wire {
    let config = Config {
        offload,
        window_scale: Some(Config::window_scale_for(6 << 20)),
        ..Config::default()
    };
    let wire = WireConfig {
        delay: 20 * MILLISECOND,
        queue: 500_000,
        ..WireConfig::default()
    };
    let plan = Plan {
        // Small for the wire, which holds 500 KB.
        room: 1 << 16,
        read_every: MILLISECOND,
        ..Plan::default()
    };
    let sender = Plan {
        send: bytes,
        burst: 4 << 20,
        ..plan.clone()
    };
    let mut wire = Wire::new(wire, [config.clone(), config], [sender, plan], false);
    for end in &mut wire.ends {
        // The wire's harness cuts it to the room at first.
        end.program.largest_room = largest_room;
    }
    wire
}

/// Linux `tcp_rcv_space_adjust`: a small receive buffer grows to what the wire holds, as far as it
/// may, and not without a reader.
#[test]
fn the_receive_buffer_grows_with_the_wire() {
    let bytes = 6 << 20;
    let taken = |largest_room| {
        let mut wire = transfer(bytes, largest_room, 0);
        wire.run(LONG);
        wire.expect_whole();
        let room = wire.ends[1].program.room;
        (wire.now - 60 * SECOND, room)
    };
    let (fixed, room) = taken(0);
    assert_eq!(room, 1 << 16);
    let (tuned, room) = taken(6 << 20);
    assert!(room > 500_000, "{room}");
    assert!(tuned * 3 < fixed, "{tuned} {fixed}");
    let (_, room) = taken(100_000);
    assert_eq!(room, 100_000);
}

/// Without a program that reads nothing is wanted, whatever comes.
#[test]
fn nobody_reads_and_nothing_grows() {
    let mut script = Script::established(config());
    for turn in 0..40 {
        script.after(200 * MILLISECOND);
        script.data(turn * 1000, 1000);
        script.all();
    }
    assert_eq!(script.connection.space().receive, 0);
    // A send buffer holds two congestion windows.
    let cwnd = script.connection.info().cwnd;
    assert_eq!(script.connection.space().send, 2 * cwnd);
}

/// Segments of several sizes are sent like single ones: what arrives is the same, at the same
/// time.
#[test]
fn several_segments_at_once_change_nothing_on_the_wire() {
    let run = |offload| {
        let mut wire = transfer(2 << 20, 6 << 20, offload);
        wire.run(LONG);
        wire.expect_whole();
        let info = wire.ends[0].connection.as_ref().unwrap().info();
        (wire.now, wire.segments, info.data_segments.0)
    };
    assert_eq!(run(0), run(65_000));
}

/// The windows limit several segments as they limit one; the last has what is left.
#[test]
fn several_segments_are_whole_ones() {
    let mut script = Script::established(Config {
        offload: 3500,
        ..config()
    });
    script.write(5500);
    let first = script.one();
    assert_eq!(
        (first.payload, first.segment_size),
        (3000, Some(MSS as u16))
    );
    assert_eq!(first.header.flags, Flags::ACK);
    // A record for each.
    assert_eq!(script.connection.info().outstanding, 3);
    let second = script.one();
    assert_eq!(
        (second.payload, second.segment_size),
        (2000, Some(MSS as u16))
    );
    let third = script.one();
    assert_eq!((third.payload, third.segment_size), (500, None));
    assert!(third.header.flags.contains(Flags::PSH));
    // What is lost goes by itself.
    script.sack(1, &[(1001, 5501)]);
    assert_eq!(script.all(), [(1, 1000)]);
    script.ack(5501);
    // The peer's window, and what is urgent.
    let mut small = header(Flags::ACK, 1, 5501);
    small.window = 2999;
    script.arrive(small, &[]);
    script.write(10_000);
    assert_eq!(script.one().payload, 2000);
    script.ack(7501);
    script.connection.mark_urgent(script.program.written);
    assert_eq!(script.one().payload, 1000);
}

/// An end travels with the last of several segments.
#[test]
fn an_end_goes_with_several_segments() {
    let mut script = Script::established(Config {
        offload: 3500,
        ..config()
    });
    script.write(2000);
    script.connection.shutdown();
    let out = script.one();
    assert_eq!(out.payload, 2000);
    let cut: Vec<_> = out.cut().collect();
    assert_eq!(cut.len(), 2);
    assert!(!cut[0].0.flags.contains(Flags::FIN));
    assert!(cut[1].0.flags.contains(Flags::FIN | Flags::PSH));
    script.ack(2002);
    assert_eq!(script.state(), State::FinWait2);
    assert!(script.connection.is_consistent());
}

/// Segments that were joined are acknowledged like each by itself: every second at once.
#[test]
fn joined_segments_are_acknowledged() {
    let mut script = Script::established(config());
    let bytes: Vec<u8> = (0..1200).map(|place| common::byte_at(1, place)).collect();
    let part = |from: usize| Segment {
        header: header(Flags::ACK, 1 + from as u32, 1),
        payload: &bytes[from..from + 600],
    };
    let mut merged = Merged::begin(&part(0)).unwrap();
    assert!(merged.append(&part(600), 65_536));
    let arrival = Arrival {
        segment: Segment {
            header: *merged.header(),
            payload: &bytes,
        },
        congested: false,
        segment_size: Some(merged.segment_size()),
    };
    script
        .connection
        .arrive(script.now, &arrival, &mut script.program);
    let ack = script.one();
    assert_eq!(script.flags(&ack), (Flags::ACK, 1, 1201));
    assert_eq!(script.connection.info().receive_mss, 600);
}

/// Memory that is refused: what came out of order is dropped and comes again; nothing is sent that
/// cannot be noted. When there is memory, all goes on.
#[test]
fn refused_memory_loses_nothing() {
    let mut script = Script::established(config());
    script.program.budget = script.program.charged;
    script.data(1000, 1000);
    let ack = script.one();
    assert!(ack.header.options.sack.as_slice().is_empty());
    script.data(0, 1000);
    assert_eq!(script.program.received, 1000);
    script.all();
    // The records that there are suffice for four segments.
    script.write(9000);
    assert_eq!(script.all().len(), 4);
    script.arrive(header(Flags::ACK, 1001, 4001), &[]);
    assert_eq!(script.all().len(), 4);
    script.program.budget = usize::MAX;
    assert_eq!(script.all().len(), 1);
    script.data(2000, 1000);
    script.data(1000, 1000);
    assert_eq!(script.program.received, 3000);
    script.all();
    script.arrive(header(Flags::ACK, 3001, 9001), &[]);
    let charged = script.program.charged;
    assert_eq!(charged, script.connection.memory());
    // What came out of order can be thrown away.
    script.data(5000, 1000);
    assert!(script.program.charged > charged);
    script.connection.prune(&mut script.program);
    assert_eq!(script.program.charged, charged);
    script.connection.abort();
    script.one();
    script.nothing();
    assert_eq!((script.program.charged, script.connection.memory()), (0, 0));
}

/// A wire on which both ends have hardly any memory: slow, and whole.
#[test]
fn little_memory_is_enough() {
    for seed in 0..10 {
        let plan = Plan {
            send: 60_000,
            ..Plan::default()
        };
        let wire = WireConfig {
            seed,
            loss: 5,
            reordering: 20,
            ..WireConfig::default()
        };
        let configs = [Config::default(), Config::default()];
        let mut wire = Wire::new(wire, configs, [plan.clone(), plan], true);
        for end in &mut wire.ends {
            end.program.budget = 2000;
        }
        wire.run(LONG);
        wire.expect_whole();
    }
}

/// `TCP_LINGER2`: a closed socket waits so long for the peer's end, or not at all.
#[test]
fn a_closed_socket_waits_as_told() {
    let fin_wait_2 = |timeout| {
        let mut script = Script::established(config());
        script.connection.set_fin_timeout(timeout);
        script.connection.release(script.now);
        script.one();
        script.ack(2);
        script
    };
    let mut script = fin_wait_2(Some(5 * SECOND));
    assert_eq!(script.state(), State::FinWait2);
    script.wait_until(script.now + 5 * SECOND);
    script.nothing();
    assert_eq!(script.state(), State::Closed);
    let mut script = fin_wait_2(None);
    assert_eq!(script.state(), State::Closed);
    let reset = script.one();
    assert_eq!(script.flags(&reset), (Flags::RST | Flags::ACK, 2, 1));
    assert_eq!(script.connection.error(), None);
    script.nothing();
}

/// Linux `tcp_orphan_retries`: the connection of a closed socket ends sooner.
#[test]
fn an_orphan_gives_up_sooner() {
    let silence = |orphan: bool| {
        let mut script = Script::established(config());
        script.write(10);
        script.all();
        if orphan {
            script.connection.release(script.now);
        }
        let began = script.now;
        while let Some(at) = script.connection.deadline() {
            script.at(at);
            script.all();
        }
        assert_eq!(script.state(), State::Closed);
        script.now - began
    };
    let (orphan, other) = (silence(true), silence(false));
    assert!((100 * SECOND..240 * SECOND).contains(&orphan), "{orphan}");
    assert!(other >= 924 * SECOND, "{other}");
}

/// `TCP_WINDOW_CLAMP`: the window is not larger, and what was advertised is kept.
#[test]
fn the_window_is_clamped() {
    let mut script = Script::established(config());
    assert_eq!(script.connection.info().window, 50_000);
    script.connection.set_window_clamp(Some(3000));
    script.data(0, 1000);
    assert_eq!(script.all().len(), 0);
    assert_eq!(script.connection.info().window, 49_000);
    for turn in 1..49 {
        script.data(turn * 1000, 1000);
        script.program.read = script.program.received;
        script.all();
    }
    script.after(40 * MILLISECOND);
    script.all();
    assert_eq!(script.connection.info().window, 3000);
}

/// `TCP_NOTSENT_LOWAT`, `TCP_QUICKACK` and the counts of `TCP_INFO`.
#[test]
fn facts_are_told() {
    let mut script = Script::established(config());
    script.write(12_500);
    assert_eq!(script.connection.not_sent(&script.program), 12_500);
    assert_eq!(script.all().len(), 10);
    assert_eq!(script.connection.not_sent(&script.program), 2500);
    assert!(!script.connection.quick_ack());
    script.connection.set_quick_ack(true);
    assert!(script.connection.quick_ack());
    let info = script.connection.info();
    assert_eq!((info.phase, info.outstanding), (Phase::Open, 10));
    assert_eq!(info.segments, (12, 1));
    assert_eq!(info.data_segments, (10, 0));
    assert_eq!((info.bytes_out, info.last_data_sent), (10_000, script.now));
    assert_eq!((info.advertised_mss, info.path_mss), (1000, 1000));
    script.after(50 * MILLISECOND);
    script.sack(1, &[(1001, 2001)]);
    assert_eq!(script.connection.info().phase, Phase::Disorder);
    script.sack(1, &[(1001, 5001)]);
    let again = script.all();
    assert_eq!(again[0], (1, 1000));
    let info = script.connection.info();
    assert_eq!((info.phase, info.sacked), (Phase::Recovery, 4));
    assert_eq!((info.repeated, info.retransmissions), (1, 1));
    // The SYN, and the four.
    assert_eq!((info.bytes_again, info.delivered), (1000, (5, 0)));
    assert_eq!(info.last_ack_received, script.now);
    script.data(10, 10);
    script.data(0, 10);
    let info = script.connection.info();
    assert_eq!((info.out_of_order, info.received), (1, 20));
    assert_eq!(info.last_data_received, script.now);
}
