//! The congestion window (RFC 5681), by Reno or CUBIC, with HyStart++ (RFC 9406).

use crate::cubic::Cubic;
use crate::{MILLISECOND, Nanos};

/// The algorithm by which the window grows and shrinks (`TCP_CONGESTION`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
}

/// Bounds of the growth of a round's least round trip that ends slow start, and samples a round
/// needs (RFC 9406, section 4.3).
const LEAST_GROWTH: Nanos = 4 * MILLISECOND;
const LARGEST_GROWTH: Nanos = 16 * MILLISECOND;
const SAMPLES: u32 = 8;
/// Rounds of conservative slow start, and by how much it is slower.
const CONSERVATIVE_ROUNDS: u32 = 5;
const CONSERVATIVE_DIVISOR: u64 = 4;

/// HyStart++: leaves slow start when the round trip grows (RFC 9406, section 4.2).
#[derive(Clone, Debug, Default)]
struct HyStart {
    /// Bytes that are left of the round.
    left: u64,
    samples: u32,
    least: Option<Nanos>,
    last_least: Option<Nanos>,
    /// In conservative slow start: the least round trip before it, and rounds done.
    conservative: Option<(Nanos, u32)>,
}

impl HyStart {
    /// Takes an acknowledgement. Says whether slow start ends.
    fn take(&mut self, acked: u64, flight: u64, rtt: Option<Nanos>) -> bool {
        if let Some(rtt) = rtt {
            self.samples += 1;
            self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        }
        if let (Some(least), Some(last), true) =
            (self.least, self.last_least, self.samples >= SAMPLES)
        {
            match self.conservative {
                None => {
                    let growth = (last / 8).clamp(LEAST_GROWTH, LARGEST_GROWTH);
                    if least >= last + growth {
                        self.conservative = Some((least, 0));
                    }
                }
                Some((baseline, _)) if least < baseline => self.conservative = None,
                Some(_) => {}
            }
        }
        if self.left > acked {
            self.left -= acked;
            return false;
        }
        self.left = flight;
        self.samples = 0;
        self.last_least = self.least.take();
        match &mut self.conservative {
            Some((_, rounds)) => {
                *rounds += 1;
                *rounds >= CONSERVATIVE_ROUNDS
            }
            None => false,
        }
    }
}

/// The window and its threshold, in bytes.
#[derive(Clone, Debug)]
pub struct Congestion {
    algorithm: Algorithm,
    /// Congestion window.
    pub cwnd: u64,
    /// Slow-start threshold.
    pub ssthresh: u64,
    mss: u64,
    cubic: Cubic,
    hystart: HyStart,
    /// Bytes that were acknowledged and did not make Reno's window grow yet.
    credit: u64,
}

impl Congestion {
    /// A window of `segments` of `mss` bytes (RFC 6928; Linux: 10).
    #[must_use]
    pub fn new(algorithm: Algorithm, mss: u64, segments: u64) -> Self {
        Self {
            algorithm,
            cwnd: mss * segments,
            ssthresh: u64::MAX,
            mss,
            cubic: Cubic::default(),
            hystart: HyStart::default(),
            credit: 0,
        }
    }

    /// Selects another algorithm, which goes on with the window that is there.
    pub fn select(&mut self, algorithm: Algorithm) {
        self.algorithm = algorithm;
        self.cubic = Cubic::default();
        self.credit = 0;
    }

    /// Takes another segment size: the window stays as many segments (RFC 8201, section 5.4).
    pub fn resize(&mut self, mss: u64) {
        if mss < self.mss {
            self.cwnd = (self.cwnd / self.mss).max(2) * mss;
        }
        self.mss = mss;
    }

    /// Whether the window is in slow start.
    #[must_use]
    pub fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window for `acked` bytes (RFC 5681, section 3.1). `flight` is what is outstanding
    /// behind them, `rtt` a measurement if there was one.
    pub fn grow(
        &mut self,
        now: Nanos,
        mut acked: u64,
        flight: u64,
        rtt: Option<Nanos>,
        smoothed: Nanos,
    ) {
        if self.slow_start() {
            if self.ssthresh == u64::MAX && self.hystart.take(acked, flight, rtt) {
                self.ssthresh = self.cwnd;
            } else {
                // RFC 3465 with L = 2 while acknowledgements are stretched no further.
                let slower = if self.hystart.conservative.is_some() {
                    CONSERVATIVE_DIVISOR
                } else {
                    1
                };
                let room = self.ssthresh.saturating_sub(self.cwnd);
                let growth = (acked / slower).min(room);
                self.cwnd += growth;
                acked -= (growth * slower).min(acked);
            }
        }
        if acked == 0 || self.slow_start() {
            return;
        }
        self.cwnd = match self.algorithm {
            Algorithm::Cubic => self.cubic.grow(now, self.cwnd, acked, smoothed, self.mss),
            Algorithm::Reno => {
                self.credit += acked;
                let rounds = self.credit / self.cwnd.max(1);
                self.credit %= self.cwnd.max(1);
                self.cwnd + rounds * self.mss
            }
        };
    }

    /// Lowers the threshold because of a loss or an echo of congestion (RFC 5681, section 3.1,
    /// equation 4; RFC 9438, section 4.6). The window follows in recovery.
    pub fn reduce(&mut self, flight: u64) {
        self.ssthresh = match self.algorithm {
            Algorithm::Cubic => self.cubic.reduce(self.cwnd, flight, self.mss),
            Algorithm::Reno => (flight / 2).max(2 * self.mss),
        };
        self.credit = 0;
    }

    /// Falls back to one segment (RFC 5681, section 3.1: the loss window).
    pub fn collapse(&mut self) {
        self.cwnd = self.mss;
        self.cubic.restart();
        self.credit = 0;
    }

    /// Restarts after the connection was idle for longer than the time-out (RFC 5681, section
    /// 4.1): at most the initial window.
    pub fn restart_idle(&mut self, initial: u64) {
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        self.cwnd = self.cwnd.min(initial);
        self.cubic.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    const MSS: u64 = 1000;

    /// RFC 5681, section 3.1: slow start doubles, congestion avoidance adds a segment a round.
    #[test]
    fn reno_grows_exponentially_then_linearly() {
        let mut window = Congestion::new(Algorithm::Reno, MSS, 10);
        window.ssthresh = 20 * MSS;
        for _ in 0..10 {
            window.grow(0, MSS, 0, None, MILLISECOND);
        }
        assert_eq!(window.cwnd, 20 * MSS);
        for _ in 0..20 {
            window.grow(0, MSS, 0, None, MILLISECOND);
        }
        assert_eq!(window.cwnd, 21 * MSS);
    }

    /// RFC 5681, section 3.1, equation 4, and RFC 9438, section 4.6.
    #[test]
    fn a_loss_halves_reno_and_takes_three_tenths_of_cubic() {
        for (algorithm, left) in [(Algorithm::Reno, 50), (Algorithm::Cubic, 70)] {
            let mut window = Congestion::new(algorithm, MSS, 100);
            window.reduce(100 * MSS);
            assert_eq!(window.ssthresh, left * MSS);
            window.reduce(MSS);
            assert_eq!(window.ssthresh, 2 * MSS);
            window.collapse();
            assert_eq!(window.cwnd, MSS);
        }
    }

    /// RFC 9406, section 4.2: a round trip that grows ends slow start, one that does not does not.
    #[test]
    fn growing_round_trips_end_slow_start() {
        let run = |slope: Nanos| {
            let mut window = Congestion::new(Algorithm::Cubic, MSS, 10);
            for round in 0..14 {
                let rtt = 20 * MILLISECOND + round * slope;
                for _ in 0..(window.cwnd / MSS).min(100) {
                    let flight = window.cwnd;
                    window.grow(round * SECOND, MSS, flight, Some(rtt), rtt);
                }
            }
            window.ssthresh
        };
        assert_eq!(run(0), u64::MAX);
        assert!(run(5 * MILLISECOND) < 1000 * MSS);
    }

    /// RFC 8201, section 5.4.
    #[test]
    fn a_smaller_path_keeps_the_number_of_segments() {
        let mut window = Congestion::new(Algorithm::Reno, MSS, 10);
        window.resize(500);
        assert_eq!(window.cwnd, 5000);
    }

    /// RFC 5681, section 4.1.
    #[test]
    fn idle_time_takes_the_window_back() {
        let mut window = Congestion::new(Algorithm::Reno, MSS, 80);
        window.restart_idle(10 * MSS);
        assert_eq!((window.cwnd, window.slow_start()), (10 * MSS, true));
    }
}
