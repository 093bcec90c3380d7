//! Limits of how often something is done that programs bring about, as a line of the kernel's log:
//! a console takes milliseconds for one.

use core::sync::atomic::{AtomicI32, Ordering};

use ::task::Mutex;
use uapi::time::NS_PER_SEC;

/// Limit of the lines that one place of the kernel logs (Linux `printk_ratelimit`).
pub(crate) struct LogLimit(Mutex<RateLimit>);

impl LogLimit {
    /// Ten lines in five seconds, as Linux has it.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(RateLimit::of_log()))
    }

    /// Whether one more line is to be logged; logs how many were not, of `what`.
    pub(crate) fn allows(&self, what: &str) -> bool {
        let Ok(seconds @ 1..) = u64::try_from(INTERVAL_SECONDS.load(Ordering::Relaxed)) else {
            return true;
        };
        let missed = {
            let mut limit = self.0.lock();
            limit.interval_ns = seconds * NS_PER_SEC;
            limit.burst = u32::try_from(BURST.load(Ordering::Relaxed)).unwrap_or(0);
            limit.ask(::task::now_ns())
        };
        if let Some(missed @ 1..) = missed {
            log::warn!("{what}: {missed} callbacks suppressed");
        }
        missed.is_some()
    }
}

/// `/proc/sys/kernel/printk_ratelimit`: interval of such limits in seconds; none, if 0 or less.
pub(crate) static INTERVAL_SECONDS: AtomicI32 = AtomicI32::new(5);
/// `/proc/sys/kernel/printk_ratelimit_burst`: lines in each interval.
pub(crate) static BURST: AtomicI32 = AtomicI32::new(10);

/// At most a number of times in each interval (Linux `struct ratelimit_state`).
#[derive(Debug)]
struct RateLimit {
    interval_ns: u64,
    burst: u32,
    begin_ns: u64,
    done: u32,
    missed: u64,
}

impl RateLimit {
    /// Linux's limit of log lines: 10 in five seconds.
    const fn of_log() -> Self {
        Self {
            interval_ns: 5_000_000_000,
            burst: 10,
            begin_ns: 0,
            done: 0,
            missed: 0,
        }
    }

    /// Asks at a time whether it may be done once more. If so, tells how often it was refused in
    /// the intervals that are over.
    fn ask(&mut self, now_ns: u64) -> Option<u64> {
        let mut missed = 0;
        if self.done == 0 || now_ns.saturating_sub(self.begin_ns) >= self.interval_ns {
            (self.begin_ns, self.done) = (now_ns, 0);
            missed = core::mem::take(&mut self.missed);
        }
        if self.done >= self.burst {
            self.missed += 1;
            return None;
        }
        self.done += 1;
        Some(missed)
    }
}

#[cfg(test)]
mod tests {
    use super::RateLimit;

    #[test]
    fn a_flood_is_cut_to_the_burst_and_counted() {
        let mut limit = RateLimit::of_log();
        let second = 1_000_000_000;
        let allowed = |limit: &mut RateLimit, from: u64| -> Vec<u64> {
            (from..from + 100)
                .filter_map(|now| limit.ask(now))
                .collect()
        };
        assert_eq!(allowed(&mut limit, 7 * second), [0; 10]);
        assert_eq!(allowed(&mut limit, 8 * second), []);
        assert_eq!(limit.ask(12 * second - 1), None);
        assert_eq!(limit.ask(12 * second), Some(191));
        assert_eq!(limit.ask(12 * second), Some(0));
    }
}
