//! What an acknowledgement does to the sender: round trip, loss, congestion (RFC 5681, 6582, 6675,
//! 6937, 8985).

use super::{Buffers, Connection, State};
use crate::scoreboard::{Context, DUPLICATE_THRESHOLD, Delivery};
use crate::segment::Segment;
use crate::seq::Position;
use crate::{MILLISECOND, Nanos};

/// Proportional rate reduction (RFC 6937, section 3).
#[derive(Clone, Copy, Debug)]
struct Prr {
    delivered: u64,
    out: u64,
    /// Numbers that were outstanding when the recovery began (RecoverFS).
    flight: u64,
}

/// The repair that the sender is at.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing.
    Open,
    /// Losses that acknowledgements told of.
    Fast(Prr),
    /// A time-out.
    Timeout,
}

/// A tail loss probe that is outstanding (RFC 8985, section 7.2).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    end: Position,
    retransmission: bool,
}

/// State of the repair of losses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    phase: Phase,
    /// Behind what was sent when the repair began (RecoveryPoint; `recover` of RFC 6582).
    point: Position,
    /// Acknowledgements in a row that acknowledged nothing: what RFC 5681 counts.
    duplicates: u32,
    probe: Option<TailProbe>,
    /// Tail loss probes that were sent.
    probes: u64,
}

impl Recovery {
    pub(super) fn new(iss: Position) -> Self {
        Self {
            phase: Phase::Open,
            point: iss,
            duplicates: 0,
            probe: None,
            probes: 0,
        }
    }

    /// Duplicates in a row.
    pub(super) fn duplicates(&self) -> u32 {
        self.duplicates
    }

    pub(super) fn tail_probes(&self) -> u64 {
        self.probes
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub(super) fn has_timed_out(&self) -> bool {
        matches!(self.phase, Phase::Timeout)
    }

    /// The repair as its user is told of it.
    pub(super) fn public_phase(&self) -> super::Phase {
        match self.phase {
            Phase::Open => super::Phase::Open,
            Phase::Fast(_) => super::Phase::Recovery,
            Phase::Timeout => super::Phase::Loss,
        }
    }

    /// Notes that so much was sent.
    pub(super) fn sent(&mut self, length: u64) {
        if let Phase::Fast(prr) = &mut self.phase {
            prr.out += length;
        }
    }

    /// Notes a tail loss probe that ends at `end`.
    pub(super) fn probed(&mut self, end: Position, retransmission: bool) {
        self.probes += 1;
        self.probe = Some(TailProbe {
            end,
            retransmission,
        });
    }

    pub(super) fn has_probe(&self) -> bool {
        self.probe.is_some()
    }
}

impl Connection {
    /// Numbers under way. Without selective acknowledgements each duplicate tells that a segment
    /// has left the network (RFC 5681, section 3.2).
    pub(super) fn in_flight(&self) -> u64 {
        let left = if self.sack {
            0
        } else {
            u64::from(self.recovery.duplicates) * u64::from(self.mss())
        };
        self.board.in_flight().saturating_sub(left)
    }

    /// Takes the acknowledgement up to `ack`, which is not beyond what was sent. `old_window` is
    /// the peer's before this segment.
    pub(super) fn acknowledge(
        &mut self,
        now: Nanos,
        segment: &Segment<'_>,
        ack: Position,
        old_window: u64,
        buffers: &mut impl Buffers,
    ) {
        let flight = self.in_flight();
        let previous = self.snd.una;
        let advanced = ack > previous;
        let mut delivery = Delivery::default();
        let echo = self.echoed_time(now, segment);
        if advanced {
            self.release_acknowledged(ack, buffers);
        }
        let context = Context {
            now,
            echo,
            rtt: &self.rtt,
        };
        if advanced {
            self.board.acknowledge(ack, &context, &mut delivery);
        }
        let blocks = &segment.header.options.sack;
        if self.sack && self.state.is_synchronized() {
            self.board.select(
                blocks.as_slice(),
                ack,
                self.snd.nxt,
                &context,
                &mut delivery,
            );
        }
        // RFC 6298, section 3 (Karn's algorithm): only clocks measure what was sent twice.
        let once = delivery.rtt.filter(|_| !delivery.repeated);
        let sample = once.or(if advanced {
            echo.map(|sent| now.saturating_sub(sent).max(MILLISECOND))
        } else {
            None
        });
        if let Some(rtt) = sample {
            self.rtt.sample(now, rtt);
        }
        self.counts.delivered(&delivery, segment);
        self.counts.last_ack = now;
        if advanced {
            self.progress(now);
        }
        self.count_duplicate(advanced, segment, old_window, &mut delivery);
        let lost_before = self.board.counts().2;
        self.find_losses(now, advanced, ack);
        let lost_more = self.board.counts().2 > lost_before;
        self.end_tail_probe(ack, segment, &delivery, advanced, flight);
        let ended = self.end_recovery(ack);
        self.begin_recovery(flight);
        // RFC 3168, section 6.1.2: echoes of congestion are no reason to grow.
        let good = advanced && !lost_more && !ended && ack >= self.ecn.until;
        self.adjust_window(now, flight, &delivery, good, sample);
        self.arm_retransmission(now, advanced);
    }

    /// The time at which the segment was sent whose clock is echoed (RFC 7323, section 4.1).
    pub(super) fn echoed_time(&self, now: Nanos, segment: &Segment<'_>) -> Option<Nanos> {
        let echo = segment
            .header
            .options
            .timestamps
            .filter(|_| self.timestamps)?
            .echo;
        let age = self.clock(now).wrapping_sub(echo).cast_signed();
        // Older than a connection's patience: nonsense, as is a time to come.
        if echo == 0 || !(0..=600_000).contains(&age) {
            return None;
        }
        Some(
            (now / MILLISECOND * MILLISECOND)
                .saturating_sub(u64::from(age.unsigned_abs()) * MILLISECOND),
        )
    }

    fn release_acknowledged(&mut self, ack: Position, buffers: &mut impl Buffers) {
        let from = self.data_start();
        let to = self.snd.fin.map_or(ack, |fin| ack.min(fin));
        self.snd.una = ack;
        buffers.release(usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX));
    }

    /// Something new was acknowledged: the peer is there.
    fn progress(&mut self, now: Nanos) {
        self.rtt.restore();
        self.snd.timeouts = 0;
        self.soft_error = None;
        self.timers.stalled_since = None;
        if let Some(since) = self.snd.path_since
            && now.saturating_sub(since) >= self.config.path_expires
        {
            // RFC 8201, section 5.3: the path may have become larger.
            self.snd.path_mss = self.config.mss;
            self.snd.path_since = None;
            self.congestion.resize(u64::from(self.mss()));
        }
    }

    /// Counts duplicates (RFC 5681, section 2), which without selective acknowledgements each stand
    /// for a segment that arrived.
    fn count_duplicate(
        &mut self,
        advanced: bool,
        segment: &Segment<'_>,
        old_window: u64,
        delivery: &mut Delivery,
    ) {
        let (outstanding, _, _) = self.board.counts();
        if advanced {
            self.recovery.duplicates = 0;
        } else if segment.is_empty()
            && self.snd.wnd == old_window
            && (self.recovery.duplicates as usize) < outstanding
        {
            self.recovery.duplicates += 1;
            if !self.sack {
                delivery.bytes += u64::from(self.mss());
            }
        }
    }

    fn find_losses(&mut self, now: Nanos, advanced: bool, ack: Position) {
        if self.sack {
            let recovering = !self.recovery.is_open();
            self.timers.reorder = self.board.detect(now, recovering, &self.rtt);
        } else if matches!(self.recovery.phase, Phase::Fast(_)) {
            // RFC 6582, section 3.2, step 3: a partial acknowledgement tells of the next loss.
            if advanced && ack < self.recovery.point {
                self.board.lose_first();
            }
        } else if self.recovery.is_open()
            && self.recovery.duplicates >= DUPLICATE_THRESHOLD
            && ack > self.recovery.point
        {
            // Step 2: not for duplicates of what a time-out has sent again.
            self.board.lose_first();
        }
    }

    /// Judges a tail loss probe by what came (RFC 8985, section 7.4).
    fn end_tail_probe(
        &mut self,
        ack: Position,
        segment: &Segment<'_>,
        delivery: &Delivery,
        advanced: bool,
        flight: u64,
    ) {
        let Some(probe) = self.recovery.probe.filter(|probe| ack >= probe.end) else {
            return;
        };
        let told_twice = delivery.duplicate.is_some_and(|(_, to)| to == probe.end);
        let pure_duplicate =
            !advanced && segment.is_empty() && segment.header.options.sack.as_slice().is_empty();
        if !probe.retransmission || told_twice || pure_duplicate {
            self.recovery.probe = None;
        } else if ack > probe.end {
            // The probe has repaired a loss, which the congestion window has to answer for.
            self.recovery.probe = None;
            if self.recovery.is_open() {
                self.congestion.reduce(flight);
                self.congestion.cwnd = self.congestion.cwnd.min(self.congestion.ssthresh);
            }
        }
    }

    /// Ends the repair when all is acknowledged that was sent before it. Whether it ended.
    fn end_recovery(&mut self, ack: Position) -> bool {
        if self.recovery.is_open() || ack < self.recovery.point {
            return false;
        }
        if matches!(self.recovery.phase, Phase::Fast(_)) {
            self.congestion.cwnd = self.congestion.ssthresh;
        }
        self.recovery.phase = Phase::Open;
        self.recovery.duplicates = 0;
        self.board.recovered();
        true
    }

    /// Begins a fast recovery if something is lost (RFC 6675, section 5, step 4).
    pub(super) fn begin_recovery(&mut self, flight: u64) {
        if !self.recovery.is_open() || self.board.counts().2 == 0 {
            return;
        }
        self.congestion.reduce(flight.max(1));
        self.recovery.point = self.snd.nxt;
        self.recovery.probe = None;
        self.timers.tail_probe = None;
        self.recovery.phase = Phase::Fast(Prr {
            delivered: 0,
            out: 0,
            flight: (self.snd.nxt - self.snd.una).max(1),
        });
        self.congestion.cwnd = self.in_flight() + u64::from(self.mss());
    }

    /// Grows the window, or paces the recovery (RFC 6937, section 3.1).
    fn adjust_window(
        &mut self,
        now: Nanos,
        flight: u64,
        delivery: &Delivery,
        good: bool,
        sample: Option<Nanos>,
    ) {
        let in_flight = self.in_flight();
        let mss = u64::from(self.mss());
        if let Phase::Fast(prr) = &mut self.recovery.phase {
            if delivery.bytes == 0 {
                return;
            }
            prr.delivered += delivery.bytes;
            let ssthresh = self.congestion.ssthresh;
            let mut count = if in_flight > ssthresh {
                (prr.delivered * ssthresh)
                    .div_ceil(prr.flight)
                    .saturating_sub(prr.out)
            } else {
                let mut limit = prr.delivered.saturating_sub(prr.out).max(delivery.bytes);
                if good {
                    limit += mss;
                }
                limit.min(ssthresh - in_flight)
            };
            if prr.out == 0 {
                // The fast retransmission itself.
                count = count.max(mss);
            }
            self.congestion.cwnd = in_flight + count;
            return;
        }
        let cwnd = self.congestion.cwnd;
        let limited = flight + mss >= cwnd || self.congestion.slow_start() && 2 * flight >= cwnd;
        if good && delivery.bytes > 0 && limited {
            // RFC 9293, section 3.8.2, and RFC 7661: a window that is not used tells nothing.
            let smoothed = self.rtt.smoothed().unwrap_or(0);
            let outstanding = self.snd.nxt - self.snd.una;
            self.congestion
                .grow(now, delivery.bytes, outstanding, sample, smoothed);
        }
    }

    /// The time is out (RFC 6298, section 5; RFC 5681, section 3.1).
    pub(super) fn time_out(&mut self) {
        let flight = self.in_flight();
        if !matches!(self.recovery.phase, Phase::Timeout) {
            // Further time-outs of the same flight leave the threshold alone.
            self.congestion.reduce(flight.max(1));
        }
        self.board.lose_all();
        self.congestion.collapse();
        self.recovery.phase = Phase::Timeout;
        self.recovery.point = self.snd.nxt;
        self.recovery.duplicates = 0;
        self.recovery.probe = None;
        self.timers.tail_probe = None;
        self.timers.reorder = None;
    }

    /// The peer echoes a mark of congestion (RFC 3168, section 6.1.2): once in a round trip the
    /// window is reduced, as for a loss.
    pub(super) fn echo_of_congestion(&mut self, ack: Position) {
        if !self.ecn.agreed || self.state == State::SynReceived || ack < self.ecn.until {
            return;
        }
        self.ecn.until = self.snd.nxt;
        if self.recovery.is_open() {
            self.congestion.reduce(self.in_flight().max(1));
            self.congestion.cwnd = self.congestion.cwnd.min(self.congestion.ssthresh);
        }
        self.ecn.reduced = true;
    }

    /// Looks for losses because the window for reordering is over (RFC 8985, section 6.3).
    pub(super) fn reordering_is_over(&mut self, now: Nanos) {
        let flight = self.in_flight();
        self.find_losses(now, false, self.snd.una);
        self.begin_recovery(flight);
    }
}
