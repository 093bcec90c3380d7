//! Round-trip time, and the retransmission time-out that follows from it (RFC 6298).

use crate::{MILLISECOND, Nanos, SECOND};

/// Granularity of the clock (G of RFC 6298).
const GRANULARITY: Nanos = MILLISECOND;
/// Time-out before a round trip was measured (RFC 6298, section 2, rule 2.1).
pub const INITIAL_RTO: Nanos = SECOND;
/// Largest time-out (RFC 6298, section 2, rule 2.5, allows 60 s and more).
pub const LARGEST_RTO: Nanos = 120 * SECOND;
/// Time for which the least round trip counts (RFC 8985, section 6.2, step 1).
const WINDOW: Nanos = 300 * SECOND;

/// An estimate of the round trip.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    /// Smoothed round trip and its variation.
    smoothed: Option<(Nanos, Nanos)>,
    least_rto: Nanos,
    /// The least round trip of this half of the window and of the one before.
    least: [Option<Nanos>; 2],
    half_began: Nanos,
    backoff: u32,
}

impl RttEstimator {
    /// Knows nothing; time-outs are at least `least_rto`.
    #[must_use]
    pub fn new(least_rto: Nanos) -> Self {
        Self {
            smoothed: None,
            least_rto,
            least: [None; 2],
            half_began: 0,
            backoff: 0,
        }
    }

    /// Takes a measurement (RFC 6298, section 2, rules 2.2 and 2.3).
    pub fn sample(&mut self, now: Nanos, rtt: Nanos) {
        let rtt = rtt.max(1);
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((srtt, rttvar)) => (
                srtt - srtt / 8 + rtt / 8,
                rttvar - rttvar / 4 + srtt.abs_diff(rtt) / 4,
            ),
        });
        if now.saturating_sub(self.half_began) > WINDOW / 2 {
            self.least = [None, self.least[0]];
            self.half_began = now;
        }
        self.least[0] = Some(self.least[0].map_or(rtt, |least| least.min(rtt)));
    }

    /// Smoothed round trip, once there was a measurement.
    #[must_use]
    pub fn smoothed(&self) -> Option<Nanos> {
        self.smoothed.map(|(srtt, _)| srtt)
    }

    /// Variation of the round trip.
    #[must_use]
    pub fn variation(&self) -> Nanos {
        self.smoothed.map_or(0, |(_, rttvar)| rttvar)
    }

    /// Least round trip of the last minutes.
    #[must_use]
    pub fn least(&self) -> Option<Nanos> {
        self.least.into_iter().flatten().min()
    }

    /// Time-out, not backed off.
    #[must_use]
    pub fn base_rto(&self) -> Nanos {
        self.smoothed.map_or(INITIAL_RTO, |(srtt, rttvar)| {
            (srtt + (4 * rttvar).max(GRANULARITY)).clamp(self.least_rto, LARGEST_RTO)
        })
    }

    /// Time-out now.
    #[must_use]
    pub fn rto(&self) -> Nanos {
        (self.base_rto() << self.backoff.min(16)).min(LARGEST_RTO)
    }

    /// Doubles the time-out (RFC 6298, section 5, rule 5.5).
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }

    /// Ends the doubling, because something new was acknowledged.
    pub fn restore(&mut self) {
        self.backoff = 0;
    }

    /// Number of doublings.
    #[must_use]
    pub fn backoff(&self) -> u32 {
        self.backoff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6298, section 2.
    #[test]
    fn the_time_out_follows_the_round_trip() {
        let mut rtt = RttEstimator::new(200 * MILLISECOND);
        assert_eq!(rtt.rto(), SECOND);
        rtt.sample(0, 100 * MILLISECOND);
        assert_eq!(rtt.rto(), 300 * MILLISECOND);
        rtt.sample(0, 180 * MILLISECOND);
        // SRTT = 7/8·100 + 1/8·180, RTTVAR = 3/4·50 + 1/4·80.
        assert_eq!(rtt.rto(), (110_000_000 + 4 * 57_500_000) as Nanos);
        for _ in 0..200 {
            rtt.sample(0, MILLISECOND);
        }
        assert_eq!(rtt.rto(), 200 * MILLISECOND);
    }

    /// RFC 6298, section 5, rules 5.5 and 5.7.
    #[test]
    fn backing_off_doubles_to_a_limit() {
        let mut rtt = RttEstimator::new(200 * MILLISECOND);
        rtt.back_off();
        rtt.back_off();
        assert_eq!((rtt.rto(), rtt.backoff()), (4 * SECOND, 2));
        for _ in 0..70 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), LARGEST_RTO);
        rtt.restore();
        assert_eq!(rtt.rto(), SECOND);
    }

    #[test]
    fn the_least_round_trip_is_forgotten() {
        let mut rtt = RttEstimator::new(0);
        rtt.sample(0, 5);
        rtt.sample(1, 9);
        assert_eq!(rtt.least(), Some(5));
        rtt.sample(WINDOW, 8);
        assert_eq!(rtt.least(), Some(5));
        rtt.sample(2 * WINDOW, 7);
        assert_eq!(rtt.least(), Some(7));
    }
}
