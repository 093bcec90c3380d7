//! The alarms that a host has set in the timers of sockets, which cannot be taken back: as few as
//! possible are set, so that deadlines that come and go leave nothing behind.

use alloc::vec::Vec;

use ip::Nanos;

/// The least lateness that an alarm may have.
const LEAST_SLACK: Nanos = 1_000_000;

/// Alarms that were set and have not gone off, the soonest last.
#[derive(Default)]
pub(super) struct Alarms {
    times: Vec<Nanos>,
}

impl Alarms {
    /// Whether an alarm is to be set for a deadline: not if there is one by then, or later by no
    /// more than a sixteenth of the time that is left. So there are fewer than 300 up to a day.
    pub(super) fn is_needed(&mut self, now: Nanos, due: Nanos) -> bool {
        let slack = (due.saturating_sub(now) / 16).max(LEAST_SLACK);
        let by_then = due.saturating_add(slack);
        if self.times.last().is_some_and(|soonest| *soonest <= by_then) {
            return false;
        }
        // One that is not known of goes off in vain.
        let _ = fallible::push(&mut self.times, due);
        true
    }

    /// An alarm has gone off.
    pub(super) fn went_off(&mut self, at: Nanos) {
        self.times.retain(|time| *time != at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_deadline_that_an_alarm_serves_needs_none() {
        let mut alarms = Alarms::default();
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
        let mut alarms = Alarms::default();
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
        assert_eq!(alarms.times.len(), set.len());
        assert!(all < 86_400 * 100, "{all}");
    }
}
