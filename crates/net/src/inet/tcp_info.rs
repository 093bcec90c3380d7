//! `struct tcp_info` (`tcp(7)`).

use alloc::vec;
use alloc::vec::Vec;

use super::option_table::LOOPBACK_MSS;
use super::tcp::TcpSocket;

/// `struct tcp_info` as far as it has a meaning without packets.
pub(super) fn tcp_info(socket: &TcpSocket) -> Vec<u8> {
    const SIZE: usize = 232;
    const WORDS: usize = 8;
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
        i32::MAX as u32,
        10,
        segment,
        3,
    ];
    for (to, word) in bytes[WORDS..].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
