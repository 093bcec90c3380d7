//! Scripts of segments with exact times, in the manner of packetdrill. Each names its section.

mod common;

use common::script::{MSS, OWN, PEER, Script, config, header, syn_options};
use tcp::{
    Arrival, Config, Error, Flags, KeepAlive, MILLISECOND, Options, Outgoing, SECOND, Segment, Seq,
    State, TimeWait, Timestamps, Verdict,
};

/// RFC 9293, section 3.5, figure 6, and 3.10.7.3.
#[test]
fn active_open() {
    let mut script = Script::connect(config());
    let syn = script.one();
    assert_eq!(script.flags(&syn).0, Flags::SYN);
    assert_eq!(syn.header.options.mss, Some(MSS as u16));
    assert!(syn.header.options.sack_permitted);
    script.nothing();
    assert_eq!(script.state(), State::SynSent);
    let mut answer = header(Flags::SYN | Flags::ACK, 0, 1);
    answer.options = syn_options();
    script.arrive(answer, &[]);
    assert_eq!(script.state(), State::Established);
    let ack = script.one();
    assert_eq!(script.flags(&ack), (Flags::ACK, 1, 1));
    script.nothing();
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 9293, section 3.10.7.3: an acknowledgement of something else is answered by a reset.
#[test]
fn a_syn_sent_refuses_foreign_acknowledgements() {
    for ack in [0, 2] {
        let mut script = Script::connect(config());
        script.one();
        script.arrive(header(Flags::SYN | Flags::ACK, 0, ack), &[]);
        let reset = script.one();
        assert_eq!(reset.header.flags, Flags::RST);
        assert_eq!(reset.header.seq, Seq(OWN).plus(ack));
        assert_eq!(script.state(), State::SynSent);
        // A reset that acknowledges it is nobody's either.
        script.arrive(header(Flags::RST | Flags::ACK, 0, ack), &[]);
        assert_eq!(script.state(), State::SynSent);
    }
}

/// RFC 9293, section 3.10.7.3, second check.
#[test]
fn a_reset_refuses_a_connection() {
    let mut script = Script::connect(config());
    script.one();
    script.arrive(header(Flags::RST, 0, 0), &[]);
    assert_eq!(script.state(), State::SynSent);
    script.arrive(header(Flags::RST | Flags::ACK, 0, 1), &[]);
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.error(), Some(Error::Refused));
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 6298, section 5: a SYN is sent again after 1, 2, 4 … seconds, so often and no more.
#[test]
fn a_syn_is_repeated_with_growing_time() {
    let mut script = Script::connect(config());
    script.one();
    let mut at = 0;
    for turn in 0..6 {
        at += SECOND << turn;
        script.wait_until(at);
        let syn = script.one();
        assert_eq!(script.flags(&syn).0, Flags::SYN);
        script.nothing();
    }
    script.wait_until(at + (SECOND << 6));
    script.nothing();
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
}

/// RFC 9293, section 3.5, figure 8.
#[test]
fn simultaneous_open() {
    let mut script = Script::connect(config());
    script.one();
    let mut syn = header(Flags::SYN, 0, 0);
    syn.options = syn_options();
    script.arrive(syn, &[]);
    assert_eq!(script.state(), State::SynReceived);
    let answer = script.one();
    assert_eq!(script.flags(&answer), (Flags::SYN | Flags::ACK, 0, 1));
    let mut answer = header(Flags::SYN | Flags::ACK, 0, 1);
    answer.options = syn_options();
    script.arrive(answer, &[]);
    assert_eq!(script.state(), State::Established);
}

/// A connection in SYN-RECEIVED, which both ends have begun.
fn half_open() -> Script {
    let mut script = Script::connect(config());
    script.one();
    let mut syn = header(Flags::SYN, 0, 0);
    syn.options = syn_options();
    script.arrive(syn, &[]);
    let answer = script.one();
    assert_eq!(script.flags(&answer), (Flags::SYN | Flags::ACK, 0, 1));
    script
}

/// RFC 9293, section 3.10.7.4, fifth check: SYN-RECEIVED.
#[test]
fn half_open_connections_check_acknowledgements() {
    let mut script = half_open();
    script.ack(2);
    let reset = script.one();
    assert_eq!(
        (reset.header.flags, script.flags(&reset).1),
        (Flags::RST, 2)
    );
    script.ack(1);
    assert_eq!(script.state(), State::Established);
    script.nothing();
    // A repeated SYN is answered again.
    let mut script = half_open();
    script.arrive(header(Flags::SYN, 0, 0), &[]);
    let answer = script.one();
    assert_eq!(script.flags(&answer), (Flags::SYN | Flags::ACK, 0, 1));
}

/// RFC 9293, section 3.6, figure 12, and 3.4.2: 2 MSL.
#[test]
fn closing_first() {
    let mut script = Script::established(config());
    script.connection.shutdown();
    assert_eq!(script.state(), State::FinWait1);
    let fin = script.one();
    assert_eq!(script.flags(&fin), (Flags::FIN | Flags::ACK, 1, 1));
    script.ack(2);
    assert_eq!(script.state(), State::FinWait2);
    // Half-closed: data still comes.
    script.data(0, 100);
    assert_eq!(script.program.received, 100);
    script.arrive(header(Flags::FIN | Flags::ACK, 101, 2), &[]);
    assert_eq!(script.state(), State::TimeWait);
    assert!(script.program.ended);
    let ack = script.one();
    assert_eq!(script.flags(&ack), (Flags::ACK, 2, 102));
    // The FIN again: answered, and the wait begins anew.
    script.after(10 * SECOND);
    script.arrive(header(Flags::FIN | Flags::ACK, 101, 2), &[]);
    script.one();
    script.wait_until(script.now + 60 * SECOND);
    script.nothing();
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.error(), None);
}

/// RFC 9293, section 3.6, figure 12, the other side.
#[test]
fn closing_second() {
    let mut script = Script::established(config());
    script.arrive(header(Flags::FIN | Flags::ACK, 1, 1), &[]);
    assert_eq!(script.state(), State::CloseWait);
    let ack = script.one();
    assert_eq!(script.flags(&ack), (Flags::ACK, 1, 2));
    script.write(10);
    let data = script.one();
    assert_eq!(data.payload, 10);
    script.connection.shutdown();
    assert_eq!(script.state(), State::LastAck);
    let fin = script.one();
    assert_eq!(script.flags(&fin), (Flags::FIN | Flags::ACK, 11, 2));
    script.arrive(header(Flags::ACK, 2, 12), &[]);
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 9293, section 3.6, figure 13.
#[test]
fn closing_at_the_same_time() {
    let mut script = Script::established(config());
    script.connection.shutdown();
    script.one();
    script.arrive(header(Flags::FIN | Flags::ACK, 1, 1), &[]);
    assert_eq!(script.state(), State::Closing);
    script.arrive(header(Flags::ACK, 2, 2), &[]);
    assert_eq!(script.state(), State::TimeWait);
}

/// RFC 9293, section 3.10.7.4, first check, table 6.
#[test]
fn segments_outside_of_the_window_are_answered_and_dropped() {
    let mut script = Script::established(config());
    for (seq, length) in [(50_001, 1), (60_000, 10), (50_001, 0), (u32::MAX - 100, 20)] {
        let header = header(Flags::ACK, seq, 1);
        script.arrive(header, &vec![0; length]);
        let ack = script.one();
        assert_eq!(script.flags(&ack), (Flags::ACK, 1, 1), "{seq} {length}");
        script.nothing();
    }
    let kept = script.connection.memory();
    assert_eq!(script.program.received, 0);
    // The last byte of the window is kept, what is behind it is not.
    script.data(49_999, 1);
    let memory = script.connection.memory();
    assert!(memory > kept);
    script.data(49_999, 2);
    assert_eq!(script.connection.memory(), memory);
    // Of one behind the window nothing counts.
    script.all();
    script.write(10);
    script.all();
    script.arrive(header(Flags::ACK, 50_001, 11), &[0]);
    assert_eq!(script.connection.info().acknowledged, 0);
    script.arrive(header(Flags::ACK, 50_000, 11), &[]);
    assert_eq!(script.connection.info().acknowledged, 10);
}

/// RFC 9293, section 3.8.6: a window that was advertised is not taken back, though room is.
#[test]
fn an_advertised_window_is_kept() {
    let mut script = Script::established(config());
    script.program.room = 10_000;
    script.data(0, MSS);
    script.data(1000, MSS);
    assert_eq!(script.one().header.window, 48_000);
}

/// RFC 5961, section 3.2.
#[test]
fn only_an_exact_reset_counts() {
    let mut script = Script::established(config());
    script.arrive(header(Flags::RST, 50_001, 0), &[]);
    script.nothing();
    script.arrive(header(Flags::RST, 2, 0), &[]);
    let challenge = script.one();
    assert_eq!(script.flags(&challenge), (Flags::ACK, 1, 1));
    assert_eq!(script.state(), State::Established);
    script.arrive(header(Flags::RST, 1, 0), &[]);
    assert_eq!(script.connection.error(), Some(Error::Reset));
    script.nothing();
}

/// RFC 5961, section 4.2.
#[test]
fn a_syn_in_a_connection_is_challenged() {
    let mut script = Script::established(config());
    for seq in [0, 1, 30_000] {
        script.arrive(header(Flags::SYN, seq, 0), &[]);
        let challenge = script.one();
        assert_eq!(script.flags(&challenge), (Flags::ACK, 1, 1));
        assert_eq!(script.state(), State::Established);
    }
}

/// RFC 5961, section 5.2: acknowledgements of what was not sent, or long ago.
#[test]
fn impossible_acknowledgements_are_challenged_and_their_data_dropped() {
    let mut script = Script::established(config());
    script.write(500);
    assert_eq!(script.one().payload, 500);
    for ack in [502, 1_u32.wrapping_sub(60_001)] {
        script.arrive(header(Flags::ACK, 1, ack), b"forged");
        let challenge = script.one();
        assert_eq!(script.flags(&challenge), (Flags::ACK, 501, 1));
        assert_eq!(script.program.received, 0);
        assert_eq!(script.connection.info().acknowledged, 0);
    }
}

/// RFC 5961, section 7: ten in a second.
#[test]
fn challenges_are_limited() {
    let mut script = Script::established(config());
    let mut challenges = 0;
    for _ in 0..100 {
        script.arrive(header(Flags::RST, 2, 0), &[]);
        challenges += script.all().len();
    }
    assert_eq!(challenges, 10);
    script.after(SECOND);
    script.arrive(header(Flags::RST, 2, 0), &[]);
    assert_eq!(script.all().len(), 1);
}

/// RFC 9293, section 3.8.6.3: every second full segment at once, one alone after 40 ms.
#[test]
fn acknowledgements_are_delayed() {
    let mut script = Script::established(config());
    script.data(0, MSS);
    script.nothing();
    script.wait_until(140 * MILLISECOND);
    let ack = script.one();
    assert_eq!(script.flags(&ack), (Flags::ACK, 1, 1001));
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 9293, section 3.8.6.3, and RFC 5681, section 4.2: two segments.
#[test]
fn every_second_segment_is_acknowledged() {
    let mut script = Script::established(config());
    script.data(0, MSS);
    script.nothing();
    script.data(1000, MSS);
    let ack = script.one();
    assert_eq!(script.flags(&ack), (Flags::ACK, 1, 2001));
    script.nothing();
    // `TCP_QUICKACK`.
    script.connection.set_quick_ack(true);
    script.data(2000, 10);
    script.one();
}

/// RFC 5681, section 4.2, and RFC 2018, section 4: a gap is told at once, and where what came is.
#[test]
fn a_gap_is_told_at_once() {
    let mut script = Script::established(config());
    script.data(1000, MSS);
    let ack = script.one();
    assert_eq!(script.flags(&ack).2, 1);
    let blocks = |outgoing: &Outgoing| -> Vec<(u32, u32)> {
        let blocks = outgoing.header.options.sack;
        let from = |seq: Seq| seq.0.wrapping_sub(PEER);
        blocks
            .as_slice()
            .iter()
            .map(|(a, b)| (from(*a), from(*b)))
            .collect()
    };
    assert_eq!(blocks(&ack), [(1001, 2001)]);
    // RFC 2883, section 4: it came twice.
    script.data(1000, MSS);
    assert_eq!(blocks(&script.one()), [(1001, 2001), (1001, 2001)]);
    script.data(0, MSS);
    let ack = script.one();
    assert_eq!((script.flags(&ack).2, blocks(&ack)), (2001, vec![]));
    script.data(0, MSS);
    assert_eq!(blocks(&script.one()), [(1, 1001)]);
    assert_eq!(script.program.received, 2000);
}

/// RFC 7323, section 5.3: PAWS; and section 4.3, what is echoed.
#[test]
fn old_clocks_are_dropped() {
    let mut script = Script::connect(Config {
        timestamps: true,
        ..config()
    });
    let clock = |value, echo| Options {
        timestamps: Some(Timestamps { value, echo }),
        ..syn_options()
    };
    script.one();
    let mut answer = header(Flags::SYN | Flags::ACK, 0, 1);
    answer.options = clock(u32::MAX - 5, 0);
    script.arrive(answer, &[]);
    script.one();
    let send = |script: &mut Script, seq, value| {
        let mut segment = header(Flags::ACK, seq, 1);
        segment.options = Options {
            sack_permitted: false,
            mss: None,
            window_scale: None,
            ..clock(value, 0)
        };
        let byte = common::byte_at(1, u64::from(seq) - 1);
        script.arrive(segment, &[byte]);
    };
    send(&mut script, 1, 4);
    assert_eq!(script.program.received, 1);
    script.after(SECOND);
    assert_eq!(script.one().header.options.timestamps.unwrap().echo, 4);
    // The clock went round: this one is before it.
    send(&mut script, 2, u32::MAX - 4);
    assert_eq!(script.program.received, 1);
    assert_eq!(script.one().header.options.timestamps.unwrap().echo, 4);
    // One out of order does not change what is echoed.
    send(&mut script, 3, 9);
    assert_eq!(script.one().header.options.timestamps.unwrap().echo, 4);
    send(&mut script, 2, 8);
    assert_eq!(script.program.received, 3);
    assert_eq!(script.one().header.options.timestamps.unwrap().echo, 8);
    // After 24 days nothing can be said (section 5.5).
    script.after(25 * 86400 * SECOND);
    send(&mut script, 4, 5);
    assert_eq!(script.program.received, 4);
}

/// RFC 5681, section 3.1: ten segments (RFC 6928), then two more for each that is acknowledged.
#[test]
fn slow_start() {
    let mut script = Script::established(config());
    script.write(40_000);
    let sent: Vec<_> = (0..10).map(|turn| (1 + turn * 1000, MSS)).collect();
    assert_eq!(script.all(), sent);
    script.after(100 * MILLISECOND);
    script.ack(2001);
    assert_eq!(script.all().len(), 4);
    script.ack(4001);
    assert_eq!(script.all().len(), 4);
}

/// RFC 6298, section 5, rules 5.1 to 5.6: 300 ms of a round trip of 100 ms, doubled each time.
#[test]
fn retransmission_time_outs() {
    let mut script = Script::established(Config {
        sack: false,
        ..config()
    });
    script.write(3000);
    assert_eq!(script.all().len(), 3);
    let mut at = script.now;
    for turn in 0..4 {
        at += (300 * MILLISECOND) << turn;
        script.wait_until(at);
        assert_eq!(script.all(), [(1, MSS)]);
        assert_eq!(script.connection.info().cwnd, 1000);
    }
    // What follows goes on in slow start. Of what was sent twice nobody knows the round trip
    // (section 3, Karn's algorithm).
    script.ack(1001);
    assert_eq!(script.connection.info().rtt, 100 * MILLISECOND);
    assert_eq!(script.all().len(), 2);
    script.ack(3001);
    script.nothing();
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 6298, section 3 (Karn's algorithm): what waited for a repeated segment measures nothing.
#[test]
fn what_waited_for_a_repeated_segment_measures_nothing() {
    let mut script = Script::established(Config {
        sack: false,
        ..config()
    });
    script.write(2000);
    script.all();
    script.wait_until(script.now + 300 * MILLISECOND);
    assert_eq!(script.all(), [(1, MSS)]);
    script.after(100 * MILLISECOND);
    script.ack(2001);
    assert_eq!(script.connection.info().rtt, 100 * MILLISECOND);
}

/// RFC 5681, section 3.2, and RFC 6582, section 3.2, without selective acknowledgements.
#[test]
fn fast_retransmission_by_duplicates() {
    let mut script = Script::established(Config {
        sack: false,
        ..config()
    });
    script.write(20_000);
    assert_eq!(script.all().len(), 10);
    script.after(100 * MILLISECOND);
    // RFC 3042: the first two duplicates let new segments out.
    script.ack(1);
    assert_eq!(script.all(), [(10_001, MSS)]);
    script.ack(1);
    assert_eq!(script.all(), [(11_001, MSS)]);
    script.ack(1);
    assert_eq!(script.all(), [(1, MSS)]);
    // A partial acknowledgement tells of the next loss.
    script.after(100 * MILLISECOND);
    script.ack(5001);
    assert_eq!(script.all()[0], (5001, MSS));
    script.after(100 * MILLISECOND);
    script.ack(12_001);
    let info = script.connection.info();
    assert_eq!((info.cwnd, info.retransmissions), (info.ssthresh, 2));
    assert!(info.ssthresh <= 7000, "{info:?}");
}

/// RFC 6675, section 5, and RFC 8985, section 6.2: what lies under three segments is sent again.
#[test]
fn fast_retransmission_by_selection() {
    let mut script = Script::established(config());
    script.write(10_000);
    assert_eq!(script.all().len(), 10);
    script.after(100 * MILLISECOND);
    script.sack(1, &[(1001, 2001)]);
    script.nothing();
    script.sack(1, &[(1001, 3001)]);
    script.nothing();
    script.sack(1, &[(1001, 4001)]);
    assert_eq!(script.all(), [(1, MSS)]);
    // RFC 6937: no more than was delivered.
    script.sack(1, &[(1001, 10_001)]);
    script.nothing();
    script.after(100 * MILLISECOND);
    script.ack(10_001);
    assert_eq!(script.connection.info().retransmissions, 1);
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 8985, section 6.2: two segments behind a gap lose it a quarter of a round trip later.
#[test]
fn reordering_is_waited_for() {
    let mut script = Script::established(config());
    script.write(4000);
    assert_eq!(script.all().len(), 4);
    script.after(100 * MILLISECOND);
    script.sack(1, &[(1001, 2001)]);
    script.nothing();
    script.wait_until(script.now + 25 * MILLISECOND);
    assert_eq!(script.all(), [(1, MSS)]);
}

/// RFC 8985, section 7: the last segment goes again before the time-out.
#[test]
fn tail_loss_probe() {
    let mut script = Script::established(config());
    script.write(2000);
    assert_eq!(script.all().len(), 2);
    script.wait_until(script.now + 202 * MILLISECOND);
    assert_eq!(script.all(), [(1001, MSS)]);
    script.after(100 * MILLISECOND);
    script.sack(1, &[(1001, 2001)]);
    // The probe tells of the loss of the first, which was sent long before.
    assert_eq!(script.all(), [(1, MSS)]);
    script.ack(2001);
    script.nothing();
    assert_eq!(script.connection.deadline(), None);
}

/// RFC 2018, section 8: a peer may throw away what it said it has.
#[test]
fn reneging_is_survived() {
    let mut script = Script::established(config());
    script.write(3000);
    script.all();
    script.sack(1, &[(1, 2001)]);
    // Nonsense, but the data has to go again.
    while script.connection.info().retransmissions < 3 {
        let at = script.connection.deadline().expect("a timer runs");
        script.at(at);
        script.all();
        let sent = script.connection.info();
        if sent.cwnd == 1000 {
            script.ack(1001);
            script.all();
            script.ack(3001);
            break;
        }
    }
    assert_eq!(script.program.released, 3000);
}

/// RFC 9293, section 3.8.6.1: a closed window is probed, and data goes when it opens.
#[test]
fn zero_window_probes() {
    let mut script = Script::established(config());
    let mut closed = header(Flags::ACK, 1, 1);
    closed.window = 0;
    script.arrive(closed, &[]);
    script.write(5000);
    script.nothing();
    let mut at = script.now;
    for turn in 0..3 {
        at += (300 * MILLISECOND) << turn;
        script.wait_until(at);
        let probe = script.one();
        assert_eq!((script.flags(&probe).1, probe.payload), (0, 0));
        script.nothing();
        script.arrive(closed, &[]);
        script.nothing();
    }
    script.ack(1);
    assert_eq!(script.all().len(), 5);
}

/// RFC 9293, section 3.10.7.4, fifth check: what acknowledges more brings its window, though it was
/// overtaken by data; an older one does not.
#[test]
fn a_late_acknowledgement_brings_its_window() {
    let mut script = Script::established(config());
    script.write(20_000);
    script.all();
    let mut overtaking = header(Flags::ACK, 11, 1);
    overtaking.window = 10_000;
    script.arrive(overtaking, &[common::byte_at(1, 10)]);
    let mut late = header(Flags::ACK, 1, 8001);
    late.window = 2000;
    script.arrive(late, &[]);
    assert_eq!(script.connection.info().peer_window, 2000);
    let mut old = header(Flags::ACK, 1, 7001);
    old.window = 9000;
    script.arrive(old, &[]);
    assert_eq!(script.connection.info().peer_window, 2000);
}

/// RFC 9293, section 3.8.6.2.1: a small part of the window is not filled.
#[test]
fn the_sender_avoids_silly_windows() {
    let mut script = Script::established(config());
    let mut small = header(Flags::ACK, 1, 1);
    small.window = 500;
    script.arrive(small, &[]);
    script.write(5000);
    script.nothing();
    // After a while it is better than nothing.
    script.wait_until(script.now + 300 * MILLISECOND);
    assert_eq!(script.all()[0], (1, 500));
}

/// RFC 9293, section 3.8.6.2.2: the window opens by a segment or not at all.
#[test]
fn the_receiver_avoids_silly_windows() {
    let mut script = Script::established(config());
    for place in (0..50_000).step_by(MSS) {
        script.data(place, MSS);
        script.all();
    }
    script.program.read = 500;
    script.nothing();
    script.program.read = 999;
    script.nothing();
    script.program.read = 1000;
    let update = script.one();
    assert_eq!(update.header.window, 1000);
    script.nothing();
}

/// RFC 1122, section 4.2.3.4, with Minshall's change: one small segment at a time.
#[test]
fn nagle() {
    let mut script = Script::established(config());
    script.write(10);
    assert_eq!(script.all(), [(1, 10)]);
    script.write(10);
    script.nothing();
    // A full segment may go meanwhile, what is small behind it not.
    script.write(1000);
    assert_eq!(script.all(), [(11, MSS)]);
    script.ack(11);
    assert_eq!(script.all(), [(1011, 10)]);
    // `TCP_NODELAY`.
    script.write(10);
    script.nothing();
    script.connection.set_no_delay(true);
    assert_eq!(script.all(), [(1021, 10)]);
    script.write(10);
    assert_eq!(script.all(), [(1031, 10)]);
}

/// `TCP_CORK` of tcp(7): small segments wait, at most 200 ms.
#[test]
fn corks() {
    let mut script = Script::established(config());
    script.connection.set_cork(true);
    script.write(1010);
    assert_eq!(script.all(), [(1, MSS)]);
    script.ack(1001);
    script.nothing();
    script.wait_until(script.now + 200 * MILLISECOND);
    assert_eq!(script.all(), [(1001, 10)]);
    script.ack(1011);
    script.write(10);
    script.nothing();
    script.connection.set_cork(false);
    assert_eq!(script.all(), [(1011, 10)]);
}

/// RFC 9293, section 3.8.4: probes, answers, and the end.
#[test]
fn keep_alive() {
    let probes = KeepAlive {
        idle: 10 * SECOND,
        interval: SECOND,
        count: 3,
    };
    let mut script = Script::established(Config {
        keep_alive: Some(probes),
        ..config()
    });
    let mut at = script.now + 10 * SECOND;
    script.wait_until(at);
    let probe = script.one();
    assert_eq!((script.flags(&probe).1, probe.payload), (0, 0));
    script.nothing();
    script.ack(1);
    at += 10 * SECOND;
    for _ in 0..3 {
        script.wait_until(at);
        script.one();
        script.nothing();
        at += SECOND;
    }
    script.wait_until(at);
    let reset = script.one();
    assert!(reset.header.flags.contains(Flags::RST));
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
}

/// RFC 9293, section 3.8.3 (R2), and `TCP_USER_TIMEOUT` of tcp(7), to the nanosecond.
#[test]
fn patience_ends() {
    let mut script = Script::established(Config {
        user_timeout: Some(5 * SECOND),
        ..config()
    });
    let from = script.now;
    script.write(10);
    while script.connection.error().is_none() {
        script.all();
        let Some(at) = script.connection.deadline() else {
            break;
        };
        script.at(at);
        script.all();
    }
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
    assert_eq!(script.now - from, 5 * SECOND);
}

/// RFC 1122, section 4.2.3.9, and RFC 5927, section 4: errors of ICMP, of segments under way only.
#[test]
fn errors_of_icmp() {
    let mut script = Script::connect(config());
    script.one();
    script
        .connection
        .icmp_error(Seq(OWN).plus(1), Error::HostUnreachable);
    assert_eq!(script.state(), State::SynSent);
    script
        .connection
        .icmp_error(Seq(OWN), Error::HostUnreachable);
    assert_eq!(script.connection.error(), Some(Error::HostUnreachable));
    let mut script = Script::established(Config {
        user_timeout: Some(SECOND),
        ..config()
    });
    script.write(10);
    script.all();
    script
        .connection
        .icmp_error(Seq(OWN).plus(1), Error::NetUnreachable);
    assert_eq!(script.state(), State::Established);
    while let Some(at) = script.connection.deadline() {
        script.at(at);
        script.all();
    }
    assert_eq!(script.connection.error(), Some(Error::NetUnreachable));
}

/// RFC 1191, section 6, and RFC 8201, section 5: segments shrink, and what was too long goes again.
#[test]
fn a_smaller_path() {
    let mut script = Script::established(config());
    script.write(2000);
    assert_eq!(script.all().len(), 2);
    script
        .connection
        .path_limit(script.now, Seq(OWN).plus(7777), 400);
    script.nothing();
    script
        .connection
        .path_limit(script.now, Seq(OWN).plus(1), 400);
    let lengths = [
        (1, 400),
        (401, 400),
        (801, 200),
        (1001, 400),
        (1401, 400),
        (1801, 200),
    ];
    assert_eq!(script.all(), lengths);
}

/// RFC 4821, section 7.7: long segments that are always lost become shorter.
#[test]
fn a_black_hole_is_found() {
    let mut script = Script::established(Config {
        base_mss: 500,
        mtu_probing: true,
        ..config()
    });
    script.write(1000);
    script.all();
    let mut shortest = MSS;
    while script.connection.info().backoff < 4 {
        let at = script.connection.deadline().unwrap();
        script.at(at);
        shortest = script
            .all()
            .iter()
            .map(|(_, length)| *length)
            .fold(shortest, usize::min);
    }
    assert_eq!(shortest, 250);
}

/// RFC 3168, section 6.1: negotiation, echo, one reduction in a round trip, and its notice.
#[test]
fn congestion_is_echoed() {
    let mut script = Script::connect(Config {
        ecn: true,
        ..config()
    });
    let syn = script.one();
    assert_eq!(syn.header.flags, Flags::SYN | Flags::ECE | Flags::CWR);
    let mut answer = header(Flags::SYN | Flags::ACK | Flags::ECE, 0, 1);
    answer.options = syn_options();
    script.arrive(answer, &[]);
    script.all();
    assert!(script.connection.info().ecn);
    script.write(20_000);
    let first = script.one();
    assert!(first.ecn_capable);
    script.all();
    let before = script.connection.info().cwnd;
    script.arrive(header(Flags::ACK | Flags::ECE, 1, 1001), &[]);
    script.arrive(header(Flags::ACK | Flags::ECE, 1, 2001), &[]);
    let after = script.connection.info().cwnd;
    assert_eq!(after, before * 7 / 10);
    script.ack(9001);
    let data = script.one();
    assert!(data.header.flags.contains(Flags::CWR));
    assert!(!script.one().header.flags.contains(Flags::CWR));
    // The other direction.
    let byte = [common::byte_at(1, 0)];
    let segment = Segment {
        header: header(Flags::ACK, 1, 9001),
        payload: &byte,
    };
    let arrival = Arrival {
        segment,
        congested: true,
        segment_size: None,
    };
    script
        .connection
        .arrive(script.now, &arrival, &mut script.program);
    script.after(40 * MILLISECOND);
    assert!(script.one().header.flags.contains(Flags::ECE));
}

/// RFC 9293, section 3.8.5, and RFC 6093, section 2: the pointer is to the byte behind.
#[test]
fn urgent_data() {
    let mut script = Script::established(config());
    script.write(5);
    script.connection.mark_urgent(5);
    let segment = script.one();
    assert!(segment.header.flags.contains(Flags::URG));
    assert_eq!(segment.header.urgent, 5);
    let mut urgent = header(Flags::ACK | Flags::URG, 1, 6);
    urgent.urgent = 3;
    let bytes: Vec<u8> = (0..5).map(|place| common::byte_at(1, place)).collect();
    script.arrive(urgent, &bytes);
    assert_eq!(script.program.urgent, Some(2));
}

/// RFC 9293, section 3.10.5, and RFC 2525, section 2.17.
#[test]
fn resets_are_sent() {
    let mut script = Script::established(config());
    script.connection.abort();
    let reset = script.one();
    assert_eq!(script.flags(&reset), (Flags::RST | Flags::ACK, 1, 1));
    script.nothing();
    let mut script = Script::established(config());
    script.program.gone = true;
    script.connection.release(script.now);
    script.all();
    script.data(0, 10);
    assert!(script.one().header.flags.contains(Flags::RST));
    assert_eq!(script.state(), State::Closed);
}

/// `tcp_fin_timeout` of tcp(7).
#[test]
fn an_orphan_waits_a_minute_for_the_peer() {
    let mut script = Script::established(config());
    script.connection.release(script.now);
    script.one();
    script.ack(2);
    assert_eq!(script.state(), State::FinWait2);
    script.wait_until(script.now + 60 * SECOND);
    script.nothing();
    assert_eq!(script.state(), State::Closed);
}

/// RFC 9293, section 3.4.2, RFC 6191, section 2, and RFC 1337: the record of a closed connection.
#[test]
fn late_segments_meet_a_record() {
    let mut script = Script::established(config());
    script.connection.shutdown();
    script.one();
    script.arrive(header(Flags::FIN | Flags::ACK, 1, 2), &[]);
    script.one();
    let mut record: TimeWait = script.connection.time_wait().expect("it waits");
    let until = record.deadline();
    assert_eq!(until, script.now + 60 * SECOND);
    let mut arrive = |header, now| {
        let segment = Segment {
            header,
            payload: &[],
        };
        record.arrive(now, &segment)
    };
    assert_eq!(arrive(header(Flags::RST, 2, 0), until), Verdict::Drop);
    let Verdict::Answer(answer) = arrive(header(Flags::FIN | Flags::ACK, 1, 2), until) else {
        panic!("the FIN is acknowledged")
    };
    assert_eq!(
        (answer.seq, answer.ack),
        (Seq(OWN).plus(2), Seq(PEER).plus(2))
    );
    assert_eq!(arrive(header(Flags::ACK, 2, 2), until), Verdict::Drop);
    assert!(matches!(
        arrive(header(Flags::SYN, 1, 0), until),
        Verdict::Answer(_)
    ));
    assert!(matches!(
        arrive(header(Flags::SYN, 3, 0), until),
        Verdict::Reopen(_)
    ));
    // One that says nothing new is answered twice a second at most, an end always.
    let odd = header(Flags::ACK, 50, 2);
    assert!(matches!(arrive(odd, until), Verdict::Answer(_)));
    assert_eq!(arrive(odd, until + 499 * MILLISECOND), Verdict::Drop);
    assert!(matches!(
        arrive(header(Flags::FIN | Flags::ACK, 1, 2), until),
        Verdict::Answer(_)
    ));
    let later = until + 500 * MILLISECOND;
    assert!(matches!(arrive(odd, later), Verdict::Answer(_)));
    assert_eq!(record.deadline(), until + 60 * SECOND);
}

/// RFC 6191, section 2; Linux `tcp_tw_reuse`: this end may begin anew if clocks keep the two apart.
#[test]
fn this_end_follows_itself() {
    let wait = |timestamps| {
        let mut script = Script::connect(Config {
            timestamps,
            ..config()
        });
        script.one();
        let with_clock = |mut header: tcp::Header| {
            let clock = Timestamps { value: 9, echo: 0 };
            header.options.timestamps = timestamps.then_some(clock);
            header
        };
        let mut answer = header(Flags::SYN | Flags::ACK, 0, 1);
        answer.options = syn_options();
        script.arrive(with_clock(answer), &[]);
        script.all();
        script.connection.shutdown();
        script.one();
        script.arrive(with_clock(header(Flags::FIN | Flags::ACK, 1, 2)), &[]);
        script.all();
        script.connection.time_wait().expect("it waits")
    };
    assert_eq!(wait(false).follow(10 * SECOND), None);
    assert_eq!(wait(true).follow(SECOND), None);
    let next = Seq(OWN).plus(2 + 0xffff + 2);
    assert_eq!(wait(true).follow(SECOND + 1), Some(next));
}

/// RFC 9293, section 3.10.7.1: nobody's segments.
#[test]
fn nobody_refuses() {
    let refusal = |header| {
        Segment {
            header,
            payload: b"abc",
        }
        .refusal()
    };
    assert_eq!(refusal(header(Flags::RST, 5, 5)), None);
    let answer = refusal(header(Flags::ACK, 5, 9)).unwrap();
    assert_eq!((answer.flags, answer.seq), (Flags::RST, Seq(OWN).plus(9)));
    let answer = refusal(header(Flags::SYN, 5, 9)).unwrap();
    assert_eq!(answer.flags, Flags::RST | Flags::ACK);
    assert_eq!((answer.seq, answer.ack), (Seq(0), Seq(PEER).plus(9)));
}

/// RFC 2018, section 3: at most what fits beside timestamps.
#[test]
fn three_blocks_beside_timestamps() {
    let options = Options {
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        ..Options::default()
    };
    assert_eq!(options.room_for_blocks(), 3);
    assert_eq!(Options::default().room_for_blocks(), 4);
}
