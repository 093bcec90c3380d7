//! RACK: a segment is lost when one that was sent sufficiently later has been delivered (RFC 8985,
//! section 6).

use crate::Nanos;
use crate::scoreboard::Record;
use crate::seq::Position;

/// Recoveries without a duplicate after which the window for reordering is small again.
const PERSIST: u32 = 16;

/// State of RACK (RFC 8985, section 5.3).
#[derive(Clone, Debug)]
pub struct Rack {
    /// When the latest delivered segment was sent, and its end: RACK.xmit_ts and RACK.end_seq.
    latest: Option<(Nanos, Position)>,
    /// Round trip of that segment.
    rtt: Nanos,
    /// Highest end of what was delivered: RACK.fack.
    highest: Position,
    /// Segments were seen to be reordered.
    reordering_seen: bool,
    /// Window for reordering, in quarters of the least round trip, and for how many recoveries.
    multiplier: u64,
    persist: u32,
    /// The end of the round in which a duplicate has widened the window.
    duplicate_round: Option<Position>,
}

impl Rack {
    /// Nothing is known.
    #[must_use]
    pub fn new() -> Self {
        Self {
            latest: None,
            rtt: 0,
            highest: 0,
            reordering_seen: false,
            multiplier: 1,
            persist: 0,
            duplicate_round: None,
        }
    }

    /// Takes a segment that was delivered (steps 2 and 3). `echo_is_older`: the timestamp that the
    /// peer returned is older than this transmission, so that an earlier one arrived.
    pub fn delivered(
        &mut self,
        now: Nanos,
        record: &Record,
        echo_is_older: bool,
        least_rtt: Option<Nanos>,
    ) {
        if record.end > self.highest {
            self.highest = record.end;
        } else if record.end < self.highest && !record.retransmitted {
            self.reordering_seen = true;
        }
        let rtt = now.saturating_sub(record.sent);
        if record.retransmitted && (echo_is_older || least_rtt.is_some_and(|least| rtt < least)) {
            return;
        }
        if self
            .latest
            .is_none_or(|latest| (record.sent, record.end) > latest)
        {
            self.latest = Some((record.sent, record.end));
            self.rtt = rtt;
        }
    }

    /// Takes note of a duplicate that the peer reports (step 4): reordering reaches further than
    /// was thought. `sent_to` is SND.NXT, `acknowledged` SND.UNA.
    pub fn duplicate(&mut self, acknowledged: Position, sent_to: Position) {
        if self
            .duplicate_round
            .is_none_or(|round| acknowledged >= round)
        {
            self.duplicate_round = Some(sent_to);
            self.multiplier += 1;
            self.persist = PERSIST;
        }
    }

    /// Whether segments were seen to be reordered.
    #[must_use]
    pub fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// Takes note of the end of a recovery.
    pub fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiplier = 1;
        }
    }

    /// The window for reordering (step 4).
    #[must_use]
    pub fn reordering_window(
        &self,
        eager: bool,
        least_rtt: Option<Nanos>,
        smoothed: Option<Nanos>,
    ) -> Nanos {
        if !self.reordering_seen && eager {
            return 0;
        }
        let window = self.multiplier * least_rtt.unwrap_or(0) / 4;
        window.min(smoothed.unwrap_or(window))
    }

    /// When a segment is lost if it is not delivered before (step 5): `None` if nothing sent after
    /// it was delivered.
    #[must_use]
    pub fn lost_at(&self, record: &Record, window: Nanos) -> Option<Nanos> {
        (self.latest? > (record.sent, record.end)).then(|| record.sent + self.rtt + window)
    }
}
