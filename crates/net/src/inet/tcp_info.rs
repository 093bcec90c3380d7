//! `struct tcp_info` (`tcp(7)`).

use alloc::vec;
use alloc::vec::Vec;

use ::tcp::{Info, Phase};

use super::option_table::LOOPBACK_MSS;
use super::tcp::{TcpSocket, TcpState};

const SIZE: usize = 232;
/// The first of the fields of 32 bits.
const WORDS: usize = 8;
/// Bytes of the headers of IPv4 and TCP without options.
const HEADERS: u32 = 40;
/// The segments that a peer may be seen to send in another order (`tcp_reordering`).
const REORDERING: u32 = 3;
/// Slow start has no threshold yet (Linux `TCP_INFINITE_SSTHRESH`).
const NO_THRESHOLD: u32 = i32::MAX as u32;

/// `struct tcp_info` of a socket, as far as its fields have a meaning.
pub(super) fn tcp_info(socket: &TcpSocket) -> Vec<u8> {
    match socket.engine_info() {
        Some((info, not_sent, now)) => of_segments(&info, not_sent, now),
        None => of_loopback(socket),
    }
}

/// Puts numbers of 32 bits into the structure, from a place on.
fn put_words(bytes: &mut [u8], at: usize, words: &[u32]) {
    for (to, word) in bytes[at..].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Puts numbers of 64 bits into the structure, from a place on.
fn put_longs(bytes: &mut [u8], at: usize, longs: &[u64]) {
    for (to, long) in bytes[at..].chunks_exact_mut(8).zip(longs) {
        to.copy_from_slice(&long.to_ne_bytes());
    }
}

/// The structure of a connection that has segments.
fn of_segments(info: &Info, not_sent: usize, now: u64) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let micros = |nanos: u64| word(nanos / 1000);
    let since = |then: u64| word(now.saturating_sub(then) / 1_000_000);
    let segments = |bytes: u64| word(bytes / u64::from(info.mss.max(1)));
    let (own_shift, peer_shift) = info.shifts;
    let scales = own_shift != 0 || peer_shift != 0;
    bytes[0] = TcpState::from(info.state) as u8;
    bytes[1] = match info.phase {
        Phase::Open => 0,
        Phase::Disorder => 1,
        Phase::Reduced => 2,
        Phase::Recovery => 3,
        Phase::Loss => 4,
    };
    bytes[2] = info.timeouts.min(255) as u8;
    bytes[3] = info.probes.min(255) as u8;
    bytes[4] = info.backoff.min(255) as u8;
    bytes[5] = u8::from(info.timestamps)
        | u8::from(info.sack) << 1
        | u8::from(scales) << 2
        | u8::from(info.ecn) << 3;
    bytes[6] = peer_shift | own_shift << 4;
    let threshold = match info.ssthresh {
        u64::MAX => NO_THRESHOLD,
        bytes => segments(bytes).min(NO_THRESHOLD),
    };
    let words = [
        micros(info.rto),
        micros(info.delayed_ack),
        info.mss,
        info.receive_mss,
        info.outstanding as u32,
        info.sacked,
        info.lost,
        info.repeated as u32,
        0,
        since(info.last_data_sent),
        0,
        since(info.last_data_received),
        since(info.last_ack_received),
        info.path_mss + HEADERS,
        word(info.window),
        micros(info.rtt),
        micros(info.rtt_variation),
        threshold,
        segments(info.cwnd).max(1),
        info.advertised_mss,
        REORDERING,
        micros(info.receive_rtt),
        word(info.receive_space),
        word(info.retransmissions),
    ];
    put_words(&mut bytes, WORDS, &words);
    // No pacing: the largest rate there is.
    put_longs(
        &mut bytes,
        104,
        &[0, u64::MAX, info.acknowledged, info.received],
    );
    let words = [
        word(info.segments.0),
        word(info.segments.1),
        not_sent as u32,
        micros(info.least_rtt),
        word(info.data_segments.1),
        word(info.data_segments.0),
    ];
    put_words(&mut bytes, 136, &words);
    put_words(
        &mut bytes,
        192,
        &[word(info.delivered.0), word(info.delivered.1)],
    );
    put_longs(&mut bytes, 200, &[info.bytes_out, info.bytes_again]);
    let words = [
        word(info.duplicates),
        u32::from(info.reordering_seen),
        word(info.out_of_order),
        word(info.peer_window),
    ];
    put_words(&mut bytes, 216, &words);
    bytes
}

/// The structure of a connection over the loop, and of a socket that has none.
fn of_loopback(socket: &TcpSocket) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    bytes[0] = socket.tcp_state() as u8;
    // Time stamps, selective acknowledgements and window scaling, by 7 both ways.
    bytes[5] = 0x7;
    bytes[6] = 0x77;
    let (waiting, most) = socket.backlog().unwrap_or_default();
    let listens = socket.backlog().is_some();
    let segment = LOOPBACK_MSS.cast_unsigned();
    // rto, ato, snd_mss, rcv_mss, unacked, sacked, lost, retrans, fackets, four times "ago", pmtu,
    // rcv_ssthresh, rtt, rttvar, snd_ssthresh, snd_cwnd, advmss, reordering.
    let unacked = if listens { waiting as u32 } else { 0 };
    let sacked = if listens { most as u32 } else { 0 };
    let words = [
        204_000,
        40_000,
        segment,
        segment,
        unacked,
        sacked,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        65_535,
        segment,
        20,
        10,
        NO_THRESHOLD,
        10,
        segment,
        REORDERING,
    ];
    put_words(&mut bytes, WORDS, &words);
    bytes
}
