//! Restart policies: when an instance that has ended is started again, and how long that waits.
//!
//! Logic only; `monitor` carries it out. The numbers are docker's.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use abi::dev::{self, Status};
use serde::{Deserialize, Serialize};

/// Delay before the first restart; each further one waits twice as long.
pub const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
pub const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// Life after which the next delay is [`FIRST_DELAY`] again.
pub const GOOD_LIFE: Duration = Duration::from_secs(10);

/// Policy for an instance that has ended by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Policy {
    /// The instance stays as it is.
    #[default]
    No,
    /// The instance is started again unless its program ended with status 0.
    OnFailure {
        /// Most restarts; without, as many as it takes.
        most: Option<u32>,
    },
    /// The instance is started again.
    Always,
}

impl Policy {
    /// Whether an instance that has ended is to be started again, after so many restarts.
    #[must_use]
    pub fn wants(self, status: &Status, restarts: u32) -> bool {
        let succeeded = status.state == dev::STATE_EXITED && status.exit_code == 0;
        let ended = matches!(
            status.state,
            dev::STATE_EXITED | dev::STATE_PANICKED | dev::STATE_HALTED
        );
        ended
            && match self {
                Self::No => false,
                Self::Always => true,
                Self::OnFailure { most } => !succeeded && most.is_none_or(|most| restarts < most),
            }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "no" => Ok(Self::No),
            // The difference shows in docker only when its daemon is started again.
            None if matches!(text, "always" | "unless-stopped") => Ok(Self::Always),
            None if text == "on-failure" => Ok(Self::OnFailure { most: None }),
            Some(("on-failure", most)) => match most.parse() {
                Ok(most) if most > 0 => Ok(Self::OnFailure { most: Some(most) }),
                _ => Err(format!("{most:?} is not a number of restarts, from 1 on")),
            },
            _ => Err(format!(
                "{text:?} is not a restart policy: give no, on-failure, on-failure:N or always"
            )),
        }
    }
}

impl TryFrom<String> for Policy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> Self {
        policy.to_string()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::OnFailure { most: None } => f.write_str("on-failure"),
            Self::OnFailure { most: Some(most) } => write!(f, "on-failure:{most}"),
            Self::Always => f.write_str("always"),
        }
    }
}

/// Delays between the restarts of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// Delay after the next end, unless the life before it was a good one, in milliseconds.
    delay_ms: u64,
    /// A restart that failed is not tried again before this, in nanoseconds since 1970.
    not_before_ns: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            delay_ms: FIRST_DELAY.as_millis() as u64,
            not_before_ns: 0,
        }
    }
}

impl Backoff {
    /// Delay from an instance's end to its restart.
    fn delay(&self, status: &Status) -> Duration {
        let lived = Duration::from_nanos(status.ended_ns.saturating_sub(status.started_ns));
        if lived >= GOOD_LIFE {
            FIRST_DELAY
        } else {
            Duration::from_millis(self.delay_ms)
        }
    }

    fn doubled(delay: Duration) -> Duration {
        (delay * 2).min(LONGEST_DELAY)
    }

    /// Time until an instance that has ended is due for its restart.
    #[must_use]
    pub fn remaining(&self, status: &Status, now_ns: u64) -> Duration {
        let delay = self.delay(status).as_nanos() as u64;
        let due = (status.ended_ns + delay).max(self.not_before_ns);
        // Somebody may have set the clock back.
        Duration::from_nanos(due.saturating_sub(now_ns)).min(LONGEST_DELAY)
    }

    /// The delays of the instance that takes the place of one that has ended.
    #[must_use]
    pub fn after_restart(&self, status: &Status) -> Self {
        Self {
            delay_ms: Self::doubled(self.delay(status)).as_millis() as u64,
            not_before_ns: 0,
        }
    }

    /// The delays of an instance whose restart has failed just now.
    #[must_use]
    pub fn after_failure(&self, status: &Status, now_ns: u64) -> Self {
        let delay = Self::doubled(self.delay(status));
        Self {
            delay_ms: delay.as_millis() as u64,
            not_before_ns: now_ns + delay.as_nanos() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(state: u32, exit_code: i32, lived: Duration) -> Status {
        let mut status: Status = dev::zeroed();
        (status.state, status.exit_code) = (state, exit_code);
        status.started_ns = 1_000_000_000;
        status.ended_ns = status.started_ns + lived.as_nanos() as u64;
        status
    }

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in ["no", "always", "on-failure", "on-failure:3"] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        assert_eq!("unless-stopped".parse(), Ok(Policy::Always));
        for text in [
            "",
            "yes",
            "on-failure:",
            "on-failure:0",
            "on-failure:-1",
            "always:2",
            "no:1",
        ] {
            assert!(text.parse::<Policy>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_policy_wants_what_its_name_says() {
        let brief = Duration::from_millis(1);
        let good = ended(dev::STATE_EXITED, 0, brief);
        let failed = ended(dev::STATE_EXITED, 3, brief);
        let halted = ended(dev::STATE_HALTED, 137, brief);
        let panicked = ended(dev::STATE_PANICKED, 137, brief);
        let three = Policy::OnFailure { most: Some(3) };
        let wants = |policy: Policy, restarts| {
            [good, failed, halted, panicked].map(|status| policy.wants(&status, restarts))
        };
        assert_eq!(wants(Policy::No, 0), [false; 4]);
        assert_eq!(wants(Policy::Always, 1000), [true; 4]);
        assert_eq!(
            wants(Policy::OnFailure { most: None }, 1000),
            [false, true, true, true]
        );
        assert_eq!(wants(three, 2), [false, true, true, true]);
        assert_eq!(wants(three, 3), [false; 4]);
        for state in [dev::STATE_CREATED, dev::STATE_RUNNING, dev::STATE_FAILED] {
            assert!(!Policy::Always.wants(&ended(state, 0, brief), 0));
        }
    }

    #[test]
    fn delays_double_up_to_a_minute_and_begin_anew_after_a_good_life() {
        let brief = ended(dev::STATE_EXITED, 1, Duration::from_secs(9));
        let mut backoff = Backoff::default();
        let mut delays = Vec::new();
        for _ in 0..12 {
            delays.push(backoff.remaining(&brief, brief.ended_ns).as_millis());
            backoff = backoff.after_restart(&brief);
        }
        assert_eq!(delays[..4], [100, 200, 400, 800]);
        assert_eq!(delays[9..], [51_200, 60_000, 60_000]);
        assert_eq!(backoff.after_restart(&brief), backoff);
        let long = ended(dev::STATE_EXITED, 1, GOOD_LIFE);
        assert_eq!(backoff.remaining(&long, long.ended_ns), FIRST_DELAY);
        let next = backoff.after_restart(&long);
        assert_eq!(next.remaining(&brief, brief.ended_ns).as_millis(), 200);
    }

    #[test]
    fn what_has_failed_is_tried_again_later_and_no_clock_makes_that_never() {
        let brief = ended(dev::STATE_EXITED, 1, Duration::from_secs(1));
        let now = brief.ended_ns + 5_000_000_000;
        let backoff = Backoff::default();
        assert_eq!(backoff.remaining(&brief, now), Duration::ZERO);
        let failed = backoff.after_failure(&brief, now);
        assert_eq!(failed.remaining(&brief, now), Duration::from_millis(200));
        assert_eq!(failed.remaining(&brief, 0), Duration::from_millis(7200));
        assert_eq!(
            failed
                .after_failure(&brief, u64::MAX / 2)
                .remaining(&brief, 0),
            LONGEST_DELAY
        );
    }
}
