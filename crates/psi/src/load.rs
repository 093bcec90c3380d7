//! The load averages of `/proc/loadavg`: how many threads ran or waited for a CPU, over 1, 5 and 15
//! minutes.
//!
//! Linux samples that number every 5 seconds. Here nothing runs for it: when somebody looks, the
//! time that threads ran and waited since the last look, taken as spread evenly, is brought in with
//! Linux' weights.

use crate::{FORGOTTEN, ONE, power};

/// Nanoseconds of a period of the averages, as in Linux.
const PERIOD_NS: u64 = 5_000_000_000;
/// Weight of an old average after one period: `2^16 * exp(-5 / seconds)`, for 60, 300 and 900
/// seconds.
const DECAY: [u64; 3] = [60_297, 64_453, 65_173];

/// Busy and stalled time of all CPUs together until now, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Time they ran threads.
    pub busy_ns: u64,
    /// Time in which threads waited for them.
    pub stalled_ns: u64,
}

/// The averages, and up to when they are right. All times are nanoseconds of one clock that does
/// not go back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    updated: u64,
    counted: Work,
    averages: [u64; 3],
}

impl Load {
    /// No load so far.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            updated: 0,
            counted: Work {
                busy_ns: 0,
                stalled_ns: 0,
            },
            averages: [0; 3],
        }
    }

    /// Brings the averages up to date and returns them, in 2^-16. How many threads waited is not
    /// known of the past: `waiting`, how many wait now at a CPU where any do, stands for it.
    pub fn update(&mut self, now: u64, work: Work, waiting: u64) -> [u64; 3] {
        let elapsed = now.saturating_sub(self.updated);
        let periods = elapsed / PERIOD_NS;
        if periods > 0 {
            let busy = work.busy_ns.saturating_sub(self.counted.busy_ns);
            let stalled = work.stalled_ns.saturating_sub(self.counted.stalled_ns);
            let threads = u128::from(busy) + u128::from(stalled) * u128::from(waiting.max(1));
            let load = threads * u128::from(ONE) / u128::from(elapsed);
            (self.updated, self.counted) = (now, work);
            for (average, decay) in self.averages.iter_mut().zip(DECAY) {
                let kept = power(decay, periods.min(FORGOTTEN));
                let sum = u128::from(*average) * u128::from(kept) + load * u128::from(ONE - kept);
                *average = u64::try_from(sum >> 16).unwrap_or(u64::MAX);
            }
        }
        self.averages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn hundredths(averages: [u64; 3]) -> [u64; 3] {
        averages.map(|average| (average * 100) >> 16)
    }

    fn busy(seconds: u64) -> Work {
        Work {
            busy_ns: seconds * S,
            stalled_ns: 0,
        }
    }

    #[test]
    fn three_busy_threads_become_a_load_of_three() {
        let mut load = Load::new();
        for second in (0..=60).step_by(5) {
            load.update(second * S, busy(3 * second), 0);
        }
        // After a minute: 3 * (1 - 1/e), and as much less as the others are slower.
        let [one, five, fifteen] = hundredths(load.averages);
        assert!(
            (186..=190).contains(&one) && (52..=55).contains(&five) && (18..=20).contains(&fifteen),
            "{one} {five} {fifteen}"
        );
        let mut once = Load::new();
        let [again, ..] = hundredths(once.update(60 * S, busy(180), 0));
        assert!(one.abs_diff(again) <= 2, "looked at once only: {again}");
        // The same three on one CPU: one runs, two wait.
        let mut crowded = Load::new();
        let [crowded, ..] = hundredths(crowded.update(
            60 * S,
            Work {
                busy_ns: 60 * S,
                stalled_ns: 60 * S,
            },
            2,
        ));
        assert_eq!(crowded, again);
        // Who waited and is gone counts as one.
        let stalled = Load::new().update(
            60 * S,
            Work {
                busy_ns: 0,
                stalled_ns: 60 * S,
            },
            0,
        );
        assert_eq!(stalled, Load::new().update(60 * S, busy(60), 0));
    }

    #[test]
    fn it_decays_when_nothing_runs() {
        let mut load = Load::new();
        load.update(3600 * S, busy(7200), 0);
        assert!(
            hundredths(load.averages)
                .iter()
                .all(|average| (195..=200).contains(average)),
            "{:?}",
            load.averages
        );
        let idle = load.update(3660 * S, busy(7200), 0);
        assert!((71..=75).contains(&hundredths(idle)[0]), "{idle:?}");
        assert_eq!(
            load.update(3664 * S, busy(9999), 0),
            idle,
            "within a period nothing changes"
        );
        assert_eq!(Load::new().update(PERIOD_NS - 1, busy(9), 0), [0; 3]);
    }
}
