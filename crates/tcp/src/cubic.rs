//! CUBIC's window as a function of time (RFC 9438), in whole numbers.

use crate::{MILLISECOND, Nanos};

/// Largest distance from the plateau, in milliseconds, that is worth computing.
const FAR: i64 = 1 << 20;

/// An epoch of congestion avoidance: since the last time the window was reduced.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    /// Window at the last reduction, or less: section 4.7. Bytes.
    w_max: u64,
    /// When the epoch began, and the time to the plateau in milliseconds (K).
    epoch: Option<(Nanos, i64)>,
    /// The window that Reno would have (W_est, section 4.3), and acknowledged bytes that did not
    /// make it grow yet.
    w_est: u64,
    est_credit: u64,
    /// Window when the epoch began.
    began_with: u64,
}

/// The largest whole number whose cube is at most `value`.
fn cube_root(value: u64) -> u64 {
    let (mut low, mut high) = (0, 2_642_245);
    while low < high {
        let middle = u64::midpoint(low, high + 1);
        if middle * middle * middle <= value {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

impl Cubic {
    /// Reduces the window (sections 4.6 and 4.7): β is 0.7. Returns the slow-start threshold.
    pub fn reduce(&mut self, cwnd: u64, flight: u64, mss: u64) -> u64 {
        self.epoch = None;
        // Fast convergence: a flow whose plateau sinks leaves room for others.
        self.w_max = if cwnd < self.w_max {
            cwnd * 17 / 20
        } else {
            cwnd
        };
        (flight * 7 / 10).max(2 * mss)
    }

    /// Begins an epoch without a reduction: after a time-out's slow start, or idle time.
    pub fn restart(&mut self) {
        self.epoch = None;
    }

    /// Window after `acked` bytes in congestion avoidance: sections 4.2 to 4.5.
    pub fn grow(&mut self, now: Nanos, cwnd: u64, acked: u64, rtt: Nanos, mss: u64) -> u64 {
        let (began, k) = *self.epoch.get_or_insert_with(|| {
            self.w_est = cwnd;
            self.est_credit = 0;
            self.began_with = cwnd;
            self.w_max = self.w_max.max(cwnd);
            // K = cbrt((W_max − cwnd) / C) seconds with C = 0.4, windows in segments.
            let segments = u128::from(self.w_max - cwnd) * 2_500_000_000 / u128::from(mss);
            let k = cube_root(u64::try_from(segments).unwrap_or(u64::MAX));
            (now, k as i64)
        });
        // Reno's window of the same loss rate (section 4.3): α = 3 (1 − β) / (1 + β) = 9/17, and 1
        // once it is back at W_max.
        let gain = if self.w_est < self.w_max {
            (9, 17)
        } else {
            (1, 1)
        };
        self.est_credit += acked * mss * gain.0 / gain.1;
        self.w_est += self.est_credit / cwnd.max(1);
        self.est_credit %= cwnd.max(1);
        let target = self.window_at(now.saturating_sub(began) + rtt, k, mss);
        let target = target.clamp(cwnd, cwnd * 3 / 2);
        let step = u128::from(target - cwnd) * u128::from(acked) / u128::from(cwnd.max(1));
        (cwnd + step as u64).max(self.w_est)
    }

    /// W_cubic(t) = C (t − K)³ + W_max (section 4.2).
    fn window_at(&self, elapsed: Nanos, k: i64, mss: u64) -> u64 {
        let elapsed = i64::try_from(elapsed / MILLISECOND).unwrap_or(FAR);
        let distance = i128::from((elapsed - k).clamp(-FAR, FAR));
        // 0.4 segments a second cubed.
        let change = distance.pow(3) * 4 * i128::from(mss) / 10_000_000_000;
        u64::try_from(i128::from(self.w_max) + change).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    const MSS: u64 = 1000;

    #[test]
    fn roots() {
        for (value, root) in [
            (0, 0),
            (7, 1),
            (8, 2),
            (26, 2),
            (27, 3),
            (u64::MAX, 2_642_245),
        ] {
            assert_eq!(cube_root(value), root);
        }
    }

    /// RFC 9438, sections 4.2, 4.4 and 4.5: concave to the plateau at K, and convex behind it.
    #[test]
    fn the_window_is_cubic() {
        let mut cubic = Cubic::default();
        let cwnd = cubic.reduce(100 * MSS, 100 * MSS, MSS);
        assert_eq!(cwnd, 70 * MSS);
        cubic.grow(0, cwnd, 0, 0, MSS);
        // K = cbrt(30 / 0.4) = 4.217 s.
        let (_, k) = cubic.epoch.unwrap();
        assert!((4216..=4218).contains(&k), "{k}");
        let at = |ms: u64| cubic.window_at(ms * MILLISECOND, k, MSS);
        assert!((69_900..=70_100).contains(&at(0)), "{}", at(0));
        assert_eq!(at(k as u64), 100 * MSS);
        assert_eq!(at(k as u64 + 1000), 100_400);
        assert!(at(1000) - at(0) > at(4000) - at(3000));
        assert!(at(7000) - at(6000) > at(6000) - at(5000));
    }

    /// RFC 9438, section 4.3: with short round trips it is no slower than Reno.
    #[test]
    fn the_friendly_region_is_reno() {
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.reduce(20 * MSS, 20 * MSS, MSS);
        for round in 0..40 {
            for _ in 0..cwnd / MSS {
                cwnd = cubic.grow(round * MILLISECOND, cwnd, MSS, MILLISECOND, MSS);
            }
        }
        // 40 rounds: 9/17 of a segment a round to 20 segments, then one.
        assert!((43 * MSS..=50 * MSS).contains(&cwnd), "{cwnd}");
    }

    /// RFC 9438, section 4.7.
    #[test]
    fn a_second_loss_below_the_plateau_lowers_it() {
        let mut cubic = Cubic::default();
        cubic.reduce(100 * MSS, 100 * MSS, MSS);
        cubic.reduce(80 * MSS, 80 * MSS, MSS);
        assert_eq!(cubic.w_max, 68 * MSS);
        let k_is_longer = cubic.grow(10 * SECOND, 56 * MSS, MSS, MILLISECOND, MSS);
        assert!(k_is_longer >= 56 * MSS);
    }
}
