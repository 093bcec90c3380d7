//! The alarms that a host has set in the timers of sockets, which cannot be taken back: as few as
//! possible are set, so that deadlines that come and go leave nothing behind.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use ip::Nanos;
use task::Mutex;

/// The least lateness that an alarm may have.
const LEAST_SLACK: Nanos = 1_000_000;
/// The time of the soonest alarm where there is none.
const NEVER: Nanos = Nanos::MAX;

/// Alarms that were set and have not gone off.
pub(super) struct Alarms {
    /// The soonest last.
    times: Mutex<Vec<Nanos>>,
    /// The last of `times`, for those who need no new one.
    soonest: AtomicU64,
}

impl Default for Alarms {
    fn default() -> Self {
        Self {
            times: Mutex::default(),
            soonest: AtomicU64::new(NEVER),
        }
    }
}

impl Alarms {
    /// Whether an alarm is to be set for a deadline, which whoever [`Self::went_off`] leads to sees
    /// already: not if there is one by then, or later by no more than a sixteenth of the time that
    /// is left. So there are fewer than 300 up to a day. No lock is taken if there is one.
    pub(super) fn is_needed(&self, now: Nanos, due: Nanos) -> bool {
        let slack = (due.saturating_sub(now) / 16).max(LEAST_SLACK);
        let by_then = due.saturating_add(slack).min(NEVER - 1);
        if self.soonest.load(Ordering::SeqCst) <= by_then {
            return false;
        }
        let mut times = self.times.lock();
        if times.last().is_some_and(|soonest| *soonest <= by_then) {
            return false;
        }
        // One that is not known of goes off in vain.
        let _ = fallible::push(&mut times, due);
        self.note_soonest(&times);
        true
    }

    /// An alarm has gone off. Who calls this looks at all deadlines afterwards.
    pub(super) fn went_off(&self, at: Nanos) {
        let mut times = self.times.lock();
        times.retain(|time| *time != at);
        self.note_soonest(&times);
    }

    fn note_soonest(&self, times: &[Nanos]) {
        let soonest = times.last().copied().unwrap_or(NEVER);
        self.soonest.store(soonest, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_deadline_that_an_alarm_serves_needs_none() {
        let alarms = Alarms::default();
        assert!(alarms.is_needed(0, 160 * SECOND));
        assert!(!alarms.is_needed(0, 151 * SECOND), "nine seconds of ten");
        assert!(!alarms.is_needed(0, 500 * SECOND), "the first one looks");
        assert!(alarms.is_needed(0, 100 * SECOND));
        alarms.went_off(100 * SECOND);
        assert!(!alarms.is_needed(100 * SECOND, 170 * SECOND));
        alarms.went_off(160 * SECOND);
        assert!(alarms.is_needed(160 * SECOND, 170 * SECOND));
    }

    /// A busy host's day: a distant deadline, and near ones again and again.
    #[test]
    fn deadlines_that_come_and_go_leave_few_alarms() {
        let alarms = Alarms::default();
        let mut set = alloc::collections::BTreeSet::new();
        let (mut most, mut all) = (0, 0);
        for now in (0..86_400 * SECOND).step_by(SECOND as usize) {
            while let Some(at) = set.first().copied().filter(|at| *at <= now) {
                set.remove(&at);
                alarms.went_off(at);
            }
            for near in (1..100).rev() {
                for due in [now + 7200 * SECOND, now + near * 10_000_000 + 12_345 * near] {
                    if alarms.is_needed(now, due) {
                        assert!(set.insert(due), "two alarms for one time");
                        all += 1;
                    }
                }
            }
            most = most.max(set.len());
        }
        assert!(most < 300, "{most}");
        assert_eq!(alarms.times.lock().len(), set.len());
        assert!(all < 86_400 * 100, "{all}");
    }
}
