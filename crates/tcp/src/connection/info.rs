//! Facts about a connection for its user (`TCP_INFO`).

use super::{Connection, Outgoing, State};
use crate::Nanos;
use crate::scoreboard::Delivery;
use crate::segment::{Flags, Segment};

/// The repair that a sender is at (`tcpi_ca_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// None.
    Open,
    /// Something is selected or repeated, and nothing taken for lost.
    Disorder,
    /// The window was reduced because of an echo of congestion.
    Reduced,
    /// Fast recovery.
    Recovery,
    /// A time-out.
    Loss,
}

/// Counts of what a connection has sent again, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repairs {
    /// Segments that were sent again (Linux `RetransSegs`).
    pub segments: u64,
    /// Segments of these that acknowledgements have shown to be lost, without a time-out
    /// (`TCPFastRetrans`).
    pub fast: u64,
    /// Retransmission time-outs (`TCPTimeouts`).
    pub timeouts: u64,
    /// Tail loss probes that were due (`TCPLossProbes`).
    pub probes: u64,
}

/// Counts of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub segments_in: u64,
    pub segments_out: u64,
    pub data_segments_in: u64,
    pub data_segments_out: u64,
    pub bytes_out: u64,
    pub bytes_again: u64,
    pub repairs: Repairs,
    pub delivered: u64,
    pub delivered_marked: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    pub last_ack: Nanos,
}

impl Counts {
    pub fn sent(&mut self, outgoing: &Outgoing) {
        let size = outgoing.segment_size.map_or(usize::MAX, usize::from);
        let count = outgoing.payload.div_ceil(size) as u64;
        self.segments_out += count.max(1);
        self.data_segments_out += count;
        self.bytes_out += outgoing.payload as u64;
    }

    pub fn delivered(&mut self, delivery: &Delivery, segment: &Segment<'_>) {
        self.delivered += delivery.segments;
        if segment.header.flags.contains(Flags::ECE) {
            self.delivered_marked += delivery.segments;
        }
        self.duplicates += u64::from(delivery.duplicate.is_some());
    }
}

/// Facts about a connection for its user. Times are as [`Nanos`]; each field names that of Linux'
/// `struct tcp_info` which it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// State of the connection (`tcpi_state`).
    pub state: State,
    /// Repair that the sender is at (`tcpi_ca_state`).
    pub phase: Phase,
    /// Time-outs in a row (`tcpi_retransmits`).
    pub timeouts: u32,
    /// Probes of a closed window or an idle peer that were not answered (`tcpi_probes`).
    pub probes: u32,
    /// Shifts of the windows: this end's and the peer's (`tcpi_rcv_wscale`, `tcpi_snd_wscale`).
    pub shifts: (u8, u8),
    /// Retransmission time-out (`tcpi_rto`).
    pub rto: Nanos,
    /// Time for which an acknowledgement waits (`tcpi_ato`).
    pub delayed_ack: Nanos,
    /// Smoothed round trip (`tcpi_rtt`).
    pub rtt: Nanos,
    /// Variation of it (`tcpi_rttvar`).
    pub rtt_variation: Nanos,
    /// Least round trip of the last minutes (`tcpi_min_rtt`).
    pub least_rtt: Nanos,
    /// Largest payload of a segment that is sent (`tcpi_snd_mss`).
    pub mss: u32,
    /// Payload that the peer's segments are thought to have (`tcpi_rcv_mss`).
    pub receive_mss: u32,
    /// Largest segment that this end has told the peer (`tcpi_advmss`).
    pub advertised_mss: u32,
    /// Largest segment that the path takes; with headers it is `tcpi_pmtu`.
    pub path_mss: u32,
    /// Congestion window in bytes (`tcpi_snd_cwnd` is in segments).
    pub cwnd: u64,
    /// Slow-start threshold in bytes (`tcpi_snd_ssthresh` is in segments).
    pub ssthresh: u64,
    /// Numbers thought to be under way.
    pub in_flight: u64,
    /// Window of the peer in bytes (`tcpi_snd_wnd`).
    pub peer_window: u64,
    /// Window that the peer knows of in bytes (`tcpi_rcv_wnd`).
    pub window: u64,
    /// Doublings of the time-out (`tcpi_backoff`).
    pub backoff: u32,
    /// Segments outstanding (`tcpi_unacked`).
    pub outstanding: usize,
    /// Segments that the peer has out of order (`tcpi_sacked`).
    pub sacked: u32,
    /// Segments taken for lost and not sent again yet (`tcpi_lost`, with those sent again).
    pub lost: u32,
    /// Segments sent again that are under way (`tcpi_retrans`).
    pub repeated: usize,
    /// Segments that were sent again (`tcpi_total_retrans`).
    pub retransmissions: u64,
    /// Bytes that were sent again (`tcpi_bytes_retrans`).
    pub bytes_again: u64,
    /// Tail loss probes that were sent.
    pub tail_probes: u64,
    /// Bytes that the peer has acknowledged (`tcpi_bytes_acked`).
    pub acknowledged: u64,
    /// Bytes of the peer that are delivered (`tcpi_bytes_received`).
    pub received: u64,
    /// Bytes that were sent, those sent again, too (`tcpi_bytes_sent`).
    pub bytes_out: u64,
    /// Segments that were sent and that came (`tcpi_segs_out`, `tcpi_segs_in`).
    pub segments: (u64, u64),
    /// Segments with data (`tcpi_data_segs_out`, `tcpi_data_segs_in`).
    pub data_segments: (u64, u64),
    /// Segments that the peer has told to have (`tcpi_delivered`), and those of them with an echo
    /// of congestion (`tcpi_delivered_ce`).
    pub delivered: (u64, u64),
    /// Duplicates that the peer has reported (`tcpi_dsack_dups`).
    pub duplicates: u64,
    /// Segments that came out of order (`tcpi_rcv_ooopack`).
    pub out_of_order: u64,
    /// Segments of this end were seen to be reordered (`tcpi_reord_seen`).
    pub reordering_seen: bool,
    /// When data was sent last (`tcpi_last_data_sent` is the time since).
    pub last_data_sent: Nanos,
    /// When data came last (`tcpi_last_data_recv`).
    pub last_data_received: Nanos,
    /// When an acknowledgement came last (`tcpi_last_ack_recv`).
    pub last_ack_received: Nanos,
    /// Round trip as a receiver sees it (`tcpi_rcv_rtt`).
    pub receive_rtt: Nanos,
    /// Most bytes that the program has read in a round trip (`tcpi_rcv_space`).
    pub receive_space: u64,
    /// Both ends use timestamps.
    pub timestamps: bool,
    /// Both ends use selective acknowledgements.
    pub sack: bool,
    /// Both ends use explicit congestion notification.
    pub ecn: bool,
}

impl Connection {
    /// Counts of what was sent again.
    #[must_use]
    pub fn repairs(&self) -> Repairs {
        self.counts.repairs
    }

    /// Facts about the connection for its user. Takes a time proportional to what is outstanding.
    #[must_use]
    pub fn info(&self) -> Info {
        let (outstanding, sacked, lost) = self.board.counts();
        let counts = &self.counts;
        let reduced = self.ecn.until > self.snd.una;
        let phase = match self.recovery.public_phase() {
            Phase::Open if reduced => Phase::Reduced,
            Phase::Open if sacked > 0 || self.recovery.duplicates() > 0 => Phase::Disorder,
            phase => phase,
        };
        Info {
            state: self.state,
            phase,
            timeouts: self.snd.timeouts,
            probes: self.timers.probes.max(self.timers.keep_alive_probes),
            shifts: (self.rcv.shift, self.snd.shift),
            rto: self.rtt.rto(),
            delayed_ack: self.config.delayed_ack,
            rtt: self.rtt.smoothed().unwrap_or(0),
            rtt_variation: self.rtt.variation(),
            least_rtt: self.rtt.least().unwrap_or(0),
            mss: u32::from(self.mss()),
            receive_mss: self.rcv.mss as u32,
            advertised_mss: u32::from(self.config.advertised_mss()),
            path_mss: u32::from(self.snd.path_mss),
            cwnd: self.congestion.cwnd,
            ssthresh: self.congestion.ssthresh,
            in_flight: self.in_flight(),
            peer_window: self.snd.wnd,
            window: self.rcv.edge.saturating_sub(self.rcv.nxt),
            backoff: self.rtt.backoff(),
            outstanding,
            sacked,
            lost,
            repeated: self.board.repeated(),
            retransmissions: counts.repairs.segments,
            bytes_again: counts.bytes_again,
            tail_probes: self.recovery.tail_probes(),
            acknowledged: self.snd.una.saturating_sub(self.snd.iss + 1),
            received: self.rcv.nxt.saturating_sub(self.rcv.irs + 1),
            bytes_out: counts.bytes_out,
            segments: (counts.segments_out, counts.segments_in),
            data_segments: (counts.data_segments_out, counts.data_segments_in),
            delivered: (counts.delivered, counts.delivered_marked),
            duplicates: counts.duplicates,
            out_of_order: counts.out_of_order,
            reordering_seen: self.board.reordering_seen(),
            last_data_sent: self.snd.last_sent,
            last_data_received: self.rcv.last_data,
            last_ack_received: counts.last_ack,
            receive_rtt: self.meter.rtt(),
            receive_space: self.meter.space(),
            timestamps: self.timestamps,
            sack: self.sack,
            ecn: self.ecn.agreed,
        }
    }
}
