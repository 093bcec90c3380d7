//! A segment arrives (RFC 9293, section 3.10.7).

use super::{AckNeed, Arrival, Buffers, Connection, Error, State};
use crate::config::Config;
use crate::reassembly::OVERHEAD;
use crate::segment::{Flags, Header, LARGEST_SHIFT, Segment};
use crate::seq::{Position, Seq};
use crate::{Nanos, SECOND};

/// Time after which a timestamp of the peer is too old to compare with (RFC 7323, section 5.5).
const RECENT_EXPIRES: Nanos = 24 * 86400 * SECOND;
/// Largest distance of an urgent pointer.
const URGENT_REACH: u64 = 0xffff;

impl Connection {
    /// Takes a segment of the peer, whose ports and addresses are this connection's.
    pub fn arrive(&mut self, now: Nanos, arrival: &Arrival<'_>, buffers: &mut impl Buffers) {
        self.counts.segments_in += 1;
        self.counts.data_segments_in += u64::from(!arrival.segment.payload.is_empty());
        match self.state {
            State::Closed => {
                if self.reset.is_none() {
                    self.reset = arrival.segment.refusal();
                }
            }
            State::SynSent => self.arrive_syn_sent(now, arrival, buffers),
            _ => self.arrive_synchronized(now, arrival, buffers),
        }
        self.settle(buffers);
    }

    /// Takes over what a SYN says (RFC 9293, section 3.7.1; RFC 7323, sections 2.2 and 3.2).
    pub(super) fn take_syn(&mut self, now: Nanos, segment: &Segment<'_>) {
        let header = &segment.header;
        let options = &header.options;
        self.rcv.irs = header.seq.first();
        self.rcv.nxt = self.rcv.irs + 1;
        self.rcv.acknowledged = self.rcv.irs;
        self.rcv.edge = self.rcv.edge.max(self.rcv.nxt);
        self.rcv.last_arrival = now;
        let least = Config::default().least_mss;
        self.snd.peer_mss = options.mss.unwrap_or(536).max(least);
        self.timestamps &= options.timestamps.is_some();
        self.sack &= options.sack_permitted;
        match (options.window_scale, self.config.window_scale) {
            (Some(theirs), Some(own)) => {
                self.snd.shift = theirs;
                self.rcv.shift = own.min(LARGEST_SHIFT);
            }
            _ => self.config.window_scale = None,
        }
        if self.timestamps {
            self.rcv.recent = options.timestamps.map(|clock| (clock.value, now));
        }
        // The window of a SYN is never scaled (RFC 7323, section 2.2).
        self.snd.wnd = u64::from(header.window);
        self.snd.max_wnd = self.snd.wnd;
        self.snd.wl1 = self.rcv.irs;
        self.snd.wl2 = self.snd.una;
        self.congestion.resize(u64::from(self.mss()));
        let initial = u64::from(self.mss()) * u64::from(self.config.initial_window);
        self.congestion.cwnd = initial;
    }

    /// SYN-SENT (section 3.10.7.3).
    fn arrive_syn_sent(&mut self, now: Nanos, arrival: &Arrival<'_>, buffers: &mut impl Buffers) {
        let segment = &arrival.segment;
        let header = &segment.header;
        let acknowledges = header.flags.contains(Flags::ACK);
        let ack = header.ack.near(self.snd.una);
        if acknowledges && (ack <= self.snd.iss || ack > self.snd.nxt) {
            self.reset = segment.refusal();
            return;
        }
        if header.flags.contains(Flags::RST) {
            if acknowledges {
                self.close(Some(Error::Refused));
            }
            return;
        }
        if !header.flags.contains(Flags::SYN) {
            return;
        }
        self.take_syn(now, segment);
        let echo = header.flags & (Flags::ECE | Flags::CWR);
        if acknowledges {
            self.ecn.agreed = self.config.ecn && echo == Flags::ECE;
            self.syn_due = false;
            let old_window = self.snd.wnd;
            self.acknowledge(now, segment, ack, old_window, buffers);
            self.establish();
            self.ack = AckNeed::Now;
        } else {
            // Both ends begin at the same time (section 3.5, figure 8).
            self.ecn.agreed = self.config.ecn && echo == Flags::ECE | Flags::CWR;
            self.state = State::SynReceived;
            self.syn_due = true;
        }
        self.rcv.edge = self.rcv.nxt + buffers.window().min(0xffff) as u64;
        if self.state == State::Established {
            // What a SYN brings counts behind it.
            let body = Arrival {
                segment: self.without_syn(segment),
                ..*arrival
            };
            self.take_text(now, &body, buffers);
        }
    }

    /// The segment as if its SYN had come by itself before.
    fn without_syn<'a>(&self, segment: &Segment<'a>) -> Segment<'a> {
        Segment {
            header: Header {
                seq: segment.header.seq.plus(1),
                flags: segment.header.flags - Flags::SYN,
                ..segment.header
            },
            payload: segment.payload,
        }
    }

    fn establish(&mut self) {
        self.state = if self.shut {
            State::FinWait1
        } else {
            State::Established
        };
    }

    /// All other states (section 3.10.7.4).
    fn arrive_synchronized(
        &mut self,
        now: Nanos,
        arrival: &Arrival<'_>,
        buffers: &mut impl Buffers,
    ) {
        let mut segment = arrival.segment;
        if self.state == State::SynReceived
            && segment.header.flags.contains(Flags::SYN)
            && segment.header.seq == Seq::of(self.rcv.irs)
        {
            if !segment.header.flags.contains(Flags::ACK) {
                // The peer has not heard the answer.
                self.syn_due = true;
                return;
            }
            segment = self.without_syn(&segment);
        }
        let header = &segment.header;
        if !self.is_acceptable(now, &segment) {
            return;
        }
        let seq = header.seq.near(self.rcv.nxt);
        if header.flags.contains(Flags::RST) {
            self.arrive_reset(now, seq);
            return;
        }
        if header.flags.contains(Flags::SYN) {
            // RFC 5961, section 4.2.
            self.challenge(now);
            return;
        }
        if !header.flags.contains(Flags::ACK) {
            return;
        }
        let Some(ack) = self.check_acknowledgement(now, &segment) else {
            return;
        };
        self.take_timestamp(now, &segment, seq);
        self.timers.keep_alive_probes = 0;
        self.rcv.last_arrival = now;
        let old_window = self.snd.wnd;
        // RFC 7323, section 2.2: that of a SYN is not scaled.
        let scaled = !arrival.segment.header.flags.contains(Flags::SYN);
        let shift = if scaled { self.snd.shift } else { 0 };
        let window = u64::from(header.window) << shift;
        self.update_window(window, seq, ack);
        if ack >= self.snd.una {
            if header.flags.contains(Flags::ECE) {
                self.echo_of_congestion(ack);
            }
            self.acknowledge(now, &segment, ack, old_window, buffers);
            self.advance_close(now, ack);
        }
        if self.ecn.agreed {
            if header.flags.contains(Flags::CWR) && !segment.payload.is_empty() {
                self.ecn.echo = false;
            }
            self.ecn.echo |= arrival.congested;
        }
        if self.state != State::Closed {
            let body = Arrival {
                segment,
                ..*arrival
            };
            self.take_text(now, &body, buffers);
        }
    }

    /// First check: sequence numbers (section 3.10.7.4, table 6) and timestamps (RFC 7323, section
    /// 5.3). What fails is answered, save resets.
    fn is_acceptable(&mut self, now: Nanos, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        let reset = header.flags.contains(Flags::RST);
        let length = segment.len();
        let start = header.seq.near(self.rcv.nxt);
        let end = start + Position::from(length);
        let (nxt, edge) = (self.rcv.nxt, self.rcv.edge);
        let inside = if edge == nxt {
            // Of a segment that a closed window keeps out the acknowledgement counts.
            start == nxt
        } else if length == 0 {
            nxt <= start && start < edge
        } else {
            start < edge && nxt < end
        };
        if inside && (reset || !self.is_from_the_past(now, header)) {
            return true;
        }
        if reset {
            return false;
        }
        if length > 0 && start < nxt && end <= nxt {
            self.note_duplicate(start, end);
        }
        if self.state == State::TimeWait && header.flags.contains(Flags::FIN) {
            // The acknowledgement of the FIN was lost.
            self.timers.linger = Some(now + self.config.time_wait);
        }
        // Segments with data are repetitions of one that waits for the answer.
        if length > 0 || self.may_challenge(now) {
            self.ack = AckNeed::Now;
        }
        false
    }

    /// Whether the segment's clock shows that it is an old duplicate (PAWS).
    fn is_from_the_past(&self, now: Nanos, header: &Header) -> bool {
        let (Some((recent, since)), Some(clock)) = (self.rcv.recent, header.options.timestamps)
        else {
            return false;
        };
        Seq(clock.value).before(Seq(recent)) && now.saturating_sub(since) < RECENT_EXPIRES
    }

    /// Second check: resets (RFC 5961, section 3.2).
    fn arrive_reset(&mut self, now: Nanos, seq: Position) {
        if seq != self.rcv.nxt {
            self.challenge(now);
            return;
        }
        match self.state {
            State::SynReceived => self.close(Some(Error::Refused)),
            // RFC 1337: a reset does not shorten the wait.
            State::TimeWait => {}
            State::Closing | State::LastAck => self.close(None),
            _ => self.close(Some(Error::Reset)),
        }
    }

    fn challenge(&mut self, now: Nanos) {
        if self.may_challenge(now) {
            self.ack = AckNeed::Now;
        }
    }

    /// Fifth check: the acknowledgement number (RFC 5961, section 5.2).
    fn check_acknowledgement(&mut self, now: Nanos, segment: &Segment<'_>) -> Option<Position> {
        let ack = segment.header.ack.near(self.snd.una);
        if self.state == State::SynReceived {
            if ack <= self.snd.iss || ack > self.snd.nxt {
                self.reset = segment.refusal();
                return None;
            }
            self.syn_due = false;
            self.establish();
            return Some(ack);
        }
        if ack > self.snd.nxt || ack + self.snd.max_wnd < self.snd.una {
            self.challenge(now);
            return None;
        }
        Some(ack)
    }

    /// Keeps the clock that is to be echoed (RFC 7323, section 4.3).
    fn take_timestamp(&mut self, now: Nanos, segment: &Segment<'_>, seq: Position) {
        let Some(clock) = segment
            .header
            .options
            .timestamps
            .filter(|_| self.timestamps)
        else {
            return;
        };
        let newer = self.rcv.recent.is_none_or(|(recent, since)| {
            !Seq(clock.value).before(Seq(recent)) || now.saturating_sub(since) >= RECENT_EXPIRES
        });
        if newer && seq <= self.rcv.acknowledged {
            self.rcv.recent = Some((clock.value, now));
        }
    }

    /// Takes over the peer's window, unless the segment is older than the one it is from. What
    /// acknowledges more is newer whatever its number: else the old window would begin at the new
    /// acknowledgement, and reach further than the peer has said.
    fn update_window(&mut self, window: u64, seq: Position, ack: Position) {
        if ack < self.snd.una {
            return;
        }
        if ack > self.snd.una || self.snd.wl1 < seq || self.snd.wl1 == seq && self.snd.wl2 <= ack {
            self.snd.wnd = window;
            self.snd.max_wnd = self.snd.max_wnd.max(self.snd.wnd);
            (self.snd.wl1, self.snd.wl2) = (seq, ack);
            if self.snd.wnd > 0 {
                self.timers.probes = 0;
            }
        }
    }

    /// Goes on with closing when the FIN is acknowledged.
    fn advance_close(&mut self, now: Nanos, ack: Position) {
        if self.snd.fin.is_none_or(|fin| ack <= fin) {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.orphan {
                    self.wait_for_fin(now);
                }
            }
            State::Closing => self.wait_for_late(now),
            State::LastAck => self.close(None),
            _ => {}
        }
    }

    fn wait_for_late(&mut self, now: Nanos) {
        self.state = State::TimeWait;
        self.timers.stop_sending();
        self.timers.linger = Some(now + self.config.time_wait);
    }

    /// Sixth to eighth check: the urgent pointer, the text, the FIN.
    fn take_text(&mut self, now: Nanos, arrival: &Arrival<'_>, buffers: &mut impl Buffers) {
        let segment = &arrival.segment;
        if !self.state.receives() {
            if segment.header.flags.contains(Flags::FIN) && self.rcv.fin.is_some() {
                self.ack = AckNeed::Now;
            }
            return;
        }
        let header = &segment.header;
        let seq = header.seq.near(self.rcv.nxt);
        if header.flags.contains(Flags::URG) && header.urgent > 0 {
            let behind = seq + u64::from(header.urgent);
            let reach = self.rcv.nxt + URGENT_REACH;
            if behind > self.rcv.nxt
                && behind <= reach
                && self.rcv.urgent.is_none_or(|old| old < behind)
            {
                self.rcv.urgent = Some(behind);
                // A pointer to the SYN, or before it, is none.
                if let Some(position) = behind.checked_sub(self.rcv.irs + 2) {
                    buffers.urgent(position);
                }
            }
        }
        let whole_end = seq + segment.payload.len() as u64;
        if header.flags.contains(Flags::FIN)
            && self.rcv.fin.is_none()
            && whole_end <= self.rcv.edge.max(self.rcv.nxt)
        {
            self.rcv.fin = Some(whole_end);
        }
        if !segment.payload.is_empty() {
            self.take_payload(now, seq, arrival, buffers);
        }
        self.take_fin(now, buffers);
    }

    fn take_payload(
        &mut self,
        now: Nanos,
        seq: Position,
        arrival: &Arrival<'_>,
        buffers: &mut impl Buffers,
    ) {
        let payload = arrival.segment.payload;
        let size = arrival.segment_size.map_or(payload.len() as u64, u64::from);
        self.rcv.mss = self.rcv.mss.max(size).min(u64::from(self.config.mss));
        self.rcv.last_data = now;
        let end = seq + payload.len() as u64;
        if seq < self.rcv.nxt {
            self.note_duplicate(seq, end.min(self.rcv.nxt));
        }
        // Cut to the window, and to the end of the stream.
        let from = seq.max(self.rcv.nxt);
        let limit = self
            .rcv
            .fin
            .map_or(self.rcv.edge, |fin| fin.min(self.rcv.edge));
        let to = end.min(limit);
        if from >= to {
            self.ack = AckNeed::Now;
            return;
        }
        let part = &payload[(from - seq) as usize..(to - seq) as usize];
        if from > self.rcv.nxt {
            self.keep_out_of_order(from, part, buffers);
            // RFC 5681, section 4.2: a gap is told at once.
            self.ack = AckNeed::Now;
            return;
        }
        let filled_gap = !self.reassembly.is_empty();
        if self.deliver(part, buffers) {
            self.deliver_ready(buffers);
            if self.state == State::Closed {
                return;
            }
        } else {
            return;
        }
        if size >= self.rcv.mss || !self.timestamps {
            let clock = arrival.segment.header.options.timestamps;
            let echo = clock.map(|clock| clock.echo);
            let echo = echo.zip(self.echoed_time(now, &arrival.segment));
            self.meter.arrived(now, echo, self.rcv.nxt, self.rcv.edge);
        }
        // RFC 9293, section 3.8.6.3: every second segment, and the others soon.
        let unacknowledged = self.rcv.nxt - self.rcv.acknowledged;
        let quick = self.rcv.quick > 0;
        self.rcv.quick = self.rcv.quick.saturating_sub(1);
        if filled_gap || quick || unacknowledged >= 2 * self.rcv.mss || seq < from {
            self.ack = AckNeed::Now;
        } else if self.ack == AckNeed::None {
            self.ack = AckNeed::Delayed;
            self.timers.delayed_ack = Some(now + self.config.delayed_ack);
        }
    }

    /// Keeps bytes that are not next, if there is memory for them.
    fn keep_out_of_order(&mut self, from: Position, part: &[u8], buffers: &mut impl Buffers) {
        self.counts.out_of_order += 1;
        if self.charge(part.len() + OVERHEAD, buffers) {
            self.reassembly.insert(from, part, self.config.out_of_order);
            if !self.config.duplicate_sack {
                self.reassembly.forget_duplicate();
            }
        }
    }

    /// Has the peer told that a stretch has come again, if it is to be.
    fn note_duplicate(&mut self, start: Position, end: Position) {
        if self.config.duplicate_sack {
            self.reassembly.note_duplicate(start, end);
        }
    }

    /// Hands the next bytes to the program. Whether the connection goes on.
    fn deliver(&mut self, bytes: &[u8], buffers: &mut impl Buffers) -> bool {
        match buffers.deliver(bytes) {
            Ok(count) => {
                self.rcv.nxt += count as u64;
                if count < bytes.len() {
                    // The room has shrunk: the rest comes again.
                    self.ack = AckNeed::Now;
                }
                self.reassembly.advance(self.rcv.nxt);
                true
            }
            Err(super::Gone) => {
                // RFC 9293, section 3.6.1, and RFC 2525, section 2.17: data that nobody reads.
                self.reset = Some(self.reset_header());
                self.close(None);
                false
            }
        }
    }

    /// Hands over what came out of order and is next.
    pub(super) fn deliver_ready(&mut self, buffers: &mut impl Buffers) {
        loop {
            let before = self.rcv.nxt;
            let Some(ready) = self.reassembly.ready(before) else {
                return;
            };
            match buffers.deliver(ready) {
                Ok(count) => {
                    self.rcv.nxt += count as u64;
                    self.reassembly.advance(self.rcv.nxt);
                }
                Err(super::Gone) => {
                    self.reset = Some(self.reset_header());
                    self.close(None);
                    return;
                }
            }
            if self.rcv.nxt == before {
                return;
            }
        }
    }

    /// Takes the peer's FIN when it is next (section 3.10.7.4, eighth check).
    pub(super) fn take_fin(&mut self, now: Nanos, buffers: &mut impl Buffers) {
        if !self.state.receives() || self.rcv.fin != Some(self.rcv.nxt) {
            return;
        }
        self.rcv.nxt += 1;
        self.rcv.edge = self.rcv.edge.max(self.rcv.nxt);
        self.reassembly.clear();
        self.ack = AckNeed::Now;
        buffers.deliver_end();
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait_for_late(now),
            _ => {}
        }
    }

    /// A reset of this connection: of what the peer expects next (RFC 5961, section 3.2).
    pub(super) fn reset_header(&self) -> Header {
        Header {
            source: self.local,
            destination: self.remote,
            seq: Seq::of(self.snd.nxt),
            ack: Seq::of(self.rcv.nxt),
            flags: Flags::RST | Flags::ACK,
            ..Header::default()
        }
    }
}
