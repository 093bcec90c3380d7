//! The next segment that is due (RFC 9293, sections 3.8 and 3.10.2).

use super::{AckNeed, Buffers, Connection, Outgoing, State};
use crate::Nanos;
use crate::segment::{Flags, Header, Options, Timestamps};
use crate::seq::{Position, Seq};

/// Largest window that a header holds.
const LARGEST_WINDOW: u64 = 0xffff;

/// Whether new data may be sent, and if not, what it waits for.
enum Fresh {
    /// A number of bytes is to be sent.
    Send(u64),
    /// Nothing is there, or acknowledgements are awaited.
    Wait,
    /// The peer's window is closed or too small, and nothing outstanding will open it.
    Window,
    /// A cork holds it.
    Cork,
}

impl Connection {
    /// The next segment to be sent now, until there is none. Its payload is written to the
    /// beginning of `payload`, which has room for a segment of [`crate::Config::mss`] bytes.
    pub fn next(
        &mut self,
        now: Nanos,
        buffers: &mut impl Buffers,
        payload: &mut [u8],
    ) -> Option<Outgoing> {
        debug_assert!(now >= self.snd.last_sent, "time goes back");
        self.measure_reading(now, buffers);
        let outgoing = self.next_segment(now, buffers, payload);
        if let Some(outgoing) = &outgoing {
            self.counts.sent(outgoing);
        }
        self.settle(buffers);
        outgoing
    }

    fn next_segment(
        &mut self,
        now: Nanos,
        buffers: &mut impl Buffers,
        payload: &mut [u8],
    ) -> Option<Outgoing> {
        self.run_timers(now);
        if let Some(header) = self.reset.take() {
            return Some(self.plain(header));
        }
        if self.state == State::Closed {
            return None;
        }
        if self.syn_due {
            return Some(self.send_syn(now, buffers));
        }
        if !self.state.is_synchronized() {
            return None;
        }
        self.deliver_ready(buffers);
        self.take_fin(now, buffers);
        if self.state == State::Closed {
            return self.next_segment(now, buffers, payload);
        }
        if self.state.sends()
            && let Some(outgoing) = self.send_data(now, buffers, payload)
        {
            return Some(outgoing);
        }
        if core::mem::take(&mut self.probe_due) {
            // A number that the peer has already: whatever its window, it answers.
            let mut header = self.header(now, buffers, Flags::ACK);
            header.seq = Seq::of(self.snd.una.max(self.snd.nxt).wrapping_sub(1));
            return Some(self.plain(header));
        }
        if self.ack == AckNeed::Now || self.window_has_opened(buffers) {
            let header = self.header(now, buffers, Flags::ACK);
            return Some(self.plain(header));
        }
        None
    }

    fn plain(&self, header: Header) -> Outgoing {
        Outgoing {
            header,
            payload: 0,
            segment_size: None,
            ecn_capable: false,
        }
    }

    /// A SYN, or the answer to one.
    fn send_syn(&mut self, now: Nanos, buffers: &mut impl Buffers) -> Outgoing {
        self.syn_due = false;
        let answer = self.state == State::SynReceived;
        if self.snd.nxt == self.snd.iss {
            self.snd.nxt = self.snd.iss + 1;
            if self.has_records(1, buffers) {
                self.board.push(self.snd.iss, self.snd.nxt, now);
            }
        } else {
            // RFC 3168, section 6.1.1.1: perhaps the bits are why it was lost.
            self.config.ecn &= self.snd.timeouts < 2;
            self.counts.repairs.segments += 1;
            if !self.board.is_empty() {
                self.board.retransmit(0, 1, now);
            }
        }
        let mut flags = Flags::SYN;
        if answer {
            flags |= Flags::ACK;
            if self.ecn.agreed {
                flags |= Flags::ECE;
            }
        } else if self.config.ecn {
            flags |= Flags::ECE | Flags::CWR;
        }
        let clamp = self.config.window_clamp.unwrap_or(u64::MAX);
        let room = (buffers.window() as u64).min(clamp).min(LARGEST_WINDOW);
        self.rcv.largest_window = room;
        if answer {
            self.rcv.edge = self.rcv.edge.max(self.rcv.nxt + room);
            self.rcv.acknowledged = self.rcv.nxt;
        }
        self.timers.retransmission = Some(now + self.rtt.rto());
        let clock = Timestamps {
            value: self.clock(now),
            echo: self.rcv.recent.map_or(0, |(recent, _)| recent),
        };
        let header = Header {
            source: self.local,
            destination: self.remote,
            seq: Seq::of(self.snd.iss),
            ack: if answer {
                Seq::of(self.rcv.nxt)
            } else {
                Seq(0)
            },
            flags,
            window: room as u16,
            urgent: 0,
            options: Options {
                mss: Some(self.config.advertised_mss()),
                window_scale: self.config.window_scale,
                sack_permitted: self.sack,
                timestamps: self.timestamps.then_some(clock),
                ..Options::default()
            },
        };
        self.plain(header)
    }

    /// A header of a segment that acknowledges, at SND.NXT. What was due as an acknowledgement is
    /// done with it.
    fn header(&mut self, now: Nanos, buffers: &impl Buffers, flags: Flags) -> Header {
        self.advertise(buffers);
        self.ack = AckNeed::None;
        self.timers.delayed_ack = None;
        self.rcv.acknowledged = self.rcv.nxt;
        let mut options = Options::default();
        if self.timestamps {
            options.timestamps = Some(Timestamps {
                value: self.clock(now),
                echo: self.rcv.recent.map_or(0, |(recent, _)| recent),
            });
        }
        if self.sack {
            let room = options.room_for_blocks();
            for block in self.reassembly.blocks(self.rcv.nxt, room) {
                options.sack.push(block);
            }
        }
        let mut flags = flags;
        if self.ecn.agreed && self.ecn.echo {
            flags |= Flags::ECE;
        }
        let open = self.rcv.edge.saturating_sub(self.rcv.nxt) >> self.rcv.shift;
        Header {
            source: self.local,
            destination: self.remote,
            seq: Seq::of(self.snd.nxt),
            ack: Seq::of(self.rcv.nxt),
            flags,
            window: open.min(LARGEST_WINDOW) as u16,
            urgent: 0,
            options,
        }
    }

    /// Bytes that blocks of selective acknowledgement take in the next header.
    fn blocks_length(&self) -> usize {
        if !self.sack {
            return 0;
        }
        let options = Options {
            timestamps: self.timestamps.then_some(Timestamps { value: 0, echo: 0 }),
            ..Options::default()
        };
        let room = options.room_for_blocks();
        match self.reassembly.block_count(self.rcv.nxt, room) {
            0 => 0,
            count => crate::segment::blocks_length(count),
        }
    }

    /// The right edge that could be advertised.
    fn possible_edge(&self, buffers: &impl Buffers) -> Position {
        let unit = (1 << self.rcv.shift) - 1;
        let clamp = self.config.window_clamp.unwrap_or(u64::MAX);
        let room = (buffers.window() as u64).min(clamp) & !unit;
        self.rcv.nxt + room.min(LARGEST_WINDOW << self.rcv.shift)
    }

    /// Moves the right edge of the window, never back, and not by little (RFC 9293, section
    /// 3.8.6.2.2).
    fn advertise(&mut self, buffers: &impl Buffers) {
        let edge = self.possible_edge(buffers);
        self.rcv.largest_window = self.rcv.largest_window.max(edge - self.rcv.nxt);
        let step = self.rcv.mss.min(self.rcv.largest_window / 2).max(1);
        if edge >= self.rcv.edge + step {
            self.rcv.edge = edge;
        }
    }

    /// Whether the program has read so much that the peer has to hear of it: twice the window that
    /// it knows of, and at least a segment more.
    fn window_has_opened(&self, buffers: &impl Buffers) -> bool {
        if !self.state.receives() || self.rcv.fin.is_some() {
            return false;
        }
        let known = self.rcv.edge - self.rcv.nxt;
        // The first window is small for want of a scale, not because the program has not read:
        // whoever has sent nothing hears of a larger one when it does.
        if self.rcv.nxt == self.rcv.irs + 1 && known >= self.rcv.mss {
            return false;
        }
        let room = self.possible_edge(buffers) - self.rcv.nxt;
        let step = self.rcv.mss.min(self.rcv.largest_window / 2).max(1);
        room >= known + step && (room >= 2 * known || room >= known + self.rcv.largest_window / 2)
    }

    /// The next segment with data or a FIN: first what is lost, then what is new.
    fn send_data(
        &mut self,
        now: Nanos,
        buffers: &mut impl Buffers,
        payload: &mut [u8],
    ) -> Option<Outgoing> {
        // What stands in the header takes room of the payload (RFC 6691).
        let room = usize::from(self.mss()).saturating_sub(self.blocks_length());
        let mss = room.clamp(1, payload.len().max(1)) as u64;
        let probe = core::mem::take(&mut self.tail_probe);
        if let Some(index) = self.board.next_lost() {
            let empty = self.in_flight() == 0;
            if empty || self.in_flight() + mss <= self.congestion.cwnd {
                self.counts.repairs.fast += u64::from(!self.recovery.has_timed_out());
                return Some(self.resend(now, index, mss, buffers, payload));
            }
        }
        match self.fresh(now, mss, probe, buffers) {
            Fresh::Send(length) => {
                self.arm_waiting(now, false, false);
                if probe {
                    self.recovery.probed(self.snd.nxt + length, false);
                }
                let length = if probe {
                    length
                } else {
                    self.several(length, mss, payload.len(), buffers)
                };
                return Some(self.send_fresh(now, length, mss, buffers, payload));
            }
            Fresh::Wait => self.arm_waiting(now, false, false),
            Fresh::Window => self.arm_waiting(now, true, false),
            Fresh::Cork => self.arm_waiting(now, false, true),
        }
        if probe && let Some(index) = self.board.last_missing() {
            // RFC 8985, section 7.3: the last segment again.
            self.recovery.probed(self.snd.nxt, true);
            self.timers.retransmission = None;
            return Some(self.resend(now, index, mss, buffers, payload));
        }
        None
    }

    /// Bytes that wait to be sent for the first time, and whether a FIN is due behind them.
    fn unsent(&self, buffers: &impl Buffers) -> (u64, bool) {
        let data = self.data_end(buffers).saturating_sub(self.snd.nxt);
        (data, self.shut && self.snd.fin.is_none())
    }

    /// Judges whether something new may be sent: windows (RFC 5681, section 3.1), silly window
    /// avoidance (RFC 9293, section 3.8.6.2.1), Nagle's algorithm (RFC 1122, section 4.2.3.4) with
    /// Minshall's change (draft-minshall-nagle-01), the cork.
    fn fresh(&mut self, now: Nanos, mss: u64, probe: bool, buffers: &mut impl Buffers) -> Fresh {
        let (unsent, fin) = self.unsent(buffers);
        if unsent == 0 && !fin || !self.has_records(1, buffers) {
            return Fresh::Wait;
        }
        let idle = self.board.is_empty();
        let pause = now.saturating_sub(self.snd.last_sent);
        if idle && self.config.restarts_after_idle && pause > self.rtt.rto() {
            let initial = mss * u64::from(self.config.initial_window);
            self.congestion.restart_idle(initial);
        }
        let usable = (self.snd.una + self.snd.wnd).saturating_sub(self.snd.nxt);
        let length = unsent.min(mss);
        if unsent > 0 && usable < length {
            // A part of the segment goes only if it is half of what the peer ever had room for.
            let part = usable > 0 && (usable >= self.snd.max_wnd / 2 || idle && self.push_small);
            if !part {
                return if idle { Fresh::Window } else { Fresh::Wait };
            }
        }
        let length = length.min(usable);
        if !idle && !probe && self.in_flight() + length.max(1) > self.congestion.cwnd {
            return Fresh::Wait;
        }
        let small = length < mss && length == unsent && !fin;
        if small && !self.push_small && !probe {
            if self.config.cork {
                return if idle { Fresh::Cork } else { Fresh::Wait };
            }
            if !self.config.no_delay && self.snd.small_end > self.snd.una {
                return Fresh::Wait;
            }
        }
        Fresh::Send(length)
    }

    /// Length of several segments that may go at once with a first one of `length` bytes: whole
    /// ones, as many as the windows, the hardware and the payload have room for.
    fn several(
        &mut self,
        length: u64,
        mss: u64,
        payload: usize,
        buffers: &mut impl Buffers,
    ) -> u64 {
        let most = self.config.offload.min(payload) as u64;
        let marked = self.ecn.reduced || self.snd.urgent.is_some_and(|at| at > self.snd.nxt);
        if length < mss || most < 2 * mss || marked {
            return length;
        }
        let (unsent, _) = self.unsent(buffers);
        let usable = (self.snd.una + self.snd.wnd).saturating_sub(self.snd.nxt);
        let congestion = self.congestion.cwnd.saturating_sub(self.in_flight());
        let count = (most.min(unsent).min(usable).min(congestion) / mss).max(1);
        if self.has_records(count as usize, buffers) {
            count * mss
        } else {
            length
        }
    }

    /// Sends `length` new bytes, in segments of `mss`, and the FIN if it is next.
    fn send_fresh(
        &mut self,
        now: Nanos,
        length: u64,
        mss: u64,
        buffers: &mut impl Buffers,
        payload: &mut [u8],
    ) -> Outgoing {
        let start = self.snd.nxt;
        let (unsent, fin_due) = self.unsent(buffers);
        let fin = fin_due && length == unsent;
        if length < mss && length > 0 {
            self.snd.small_end = start + length;
        }
        self.push_small &= length < unsent;
        if self.ack != AckNeed::None {
            // Data goes both ways: acknowledgements travel with it.
            self.rcv.quick = 0;
        }
        let end = start + length + u64::from(fin);
        if fin {
            self.snd.fin = Some(start + length);
        }
        let mut outgoing = self.compose(now, start, end, buffers, payload);
        self.snd.nxt = end;
        self.snd.last_sent = now;
        // A record for each segment: the peer acknowledges them one by one.
        let mut from = start;
        while end > from + mss + u64::from(fin) {
            self.board.push(from, from + mss, now);
            from += mss;
        }
        self.board.push(from, end, now);
        if length > mss {
            outgoing.segment_size = u16::try_from(mss).ok();
        }
        self.recovery.sent(end - start);
        self.arm_after_sending(now);
        outgoing
    }

    /// Sends a segment of the scoreboard again.
    fn resend(
        &mut self,
        now: Nanos,
        index: usize,
        mss: u64,
        buffers: &mut impl Buffers,
        payload: &mut [u8],
    ) -> Outgoing {
        // For the rest, if the segment is too long now.
        self.has_records(1, buffers);
        let (start, end) = self.board.retransmit(index, mss, now);
        self.counts.repairs.segments += 1;
        self.counts.bytes_again += end - start;
        self.snd.last_sent = now;
        self.recovery.sent(end - start);
        let mut outgoing = self.compose(now, start, end, buffers, payload);
        // RFC 3168, section 6.1.5: never a segment that is sent again.
        outgoing.ecn_capable = false;
        self.arm_after_sending(now);
        outgoing
    }

    /// Makes the segment with the numbers from `start` to `end`.
    fn compose(
        &mut self,
        now: Nanos,
        start: Position,
        end: Position,
        buffers: &mut impl Buffers,
        payload: &mut [u8],
    ) -> Outgoing {
        let mut flags = Flags::ACK;
        let fin = self.snd.fin.is_some_and(|fin| end > fin);
        if fin {
            flags |= Flags::FIN;
        }
        let data_end = end - u64::from(fin);
        let length = data_end.saturating_sub(start) as usize;
        let offset = (start.max(self.data_start()) - self.data_start()) as usize;
        let copied = buffers.peek(offset, &mut payload[..length]);
        debug_assert_eq!(copied, length, "the buffers hold what is not acknowledged");
        if length > 0 && data_end == self.data_end(buffers) {
            flags |= Flags::PSH;
        }
        if self.ecn.agreed && self.ecn.reduced && length > 0 && start == self.snd.nxt {
            flags |= Flags::CWR;
            self.ecn.reduced = false;
        }
        let mut header = self.header(now, buffers, flags);
        header.seq = Seq::of(start);
        if let Some(urgent) = self.snd.urgent
            && urgent > start
        {
            // RFC 6093, section 2.1: the byte behind, as everybody has it.
            if let Ok(distance) = u16::try_from(urgent - start) {
                header.flags |= Flags::URG;
                header.urgent = distance;
            }
        }
        Outgoing {
            header,
            payload: length,
            segment_size: None,
            ecn_capable: self.ecn.agreed && length > 0,
        }
    }
}
