//! The time at which a wait ends.

use crate::now_ns;

/// The latest time for a wait to end: nanoseconds of the monotonic clock ([`now_ns`]), never a
/// duration and never a time of the wall clock. A wait without one is `Option::None`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct Deadline(u64);

impl Deadline {
    /// The time that has passed whenever somebody asks: a look without a wait.
    pub const PASSED: Self = Self(0);
    /// The time that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time when the monotonic clock shows `ns`.
    #[must_use]
    #[inline(always)]
    pub const fn at_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// The time `ns` nanoseconds from now; [`Self::NEVER`] if the clock cannot show it.
    #[must_use]
    #[inline]
    pub fn after_ns(ns: u64) -> Self {
        Self(now_ns().saturating_add(ns))
    }

    /// The time of the monotonic clock at which the deadline passes, in nanoseconds.
    #[must_use]
    #[inline(always)]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Whether the clock has reached the time.
    #[must_use]
    #[inline(always)]
    pub fn has_passed(self) -> bool {
        now_ns() >= self.0
    }

    /// Nanoseconds from now to the time; 0 once it has passed.
    #[must_use]
    #[inline]
    pub fn remaining_ns(self) -> u64 {
        self.0.saturating_sub(now_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_pass_in_their_order() {
        assert!(Deadline::PASSED.has_passed());
        assert!(!Deadline::NEVER.has_passed());
        assert_eq!(Deadline::after_ns(u64::MAX), Deadline::NEVER);
        assert_eq!(Deadline::PASSED.remaining_ns(), 0);
        let soon = Deadline::after_ns(1_000_000_000);
        assert!(soon.remaining_ns() <= 1_000_000_000 && soon < Deadline::NEVER);
        assert_eq!(Deadline::at_ns(soon.as_ns()), soon);
    }
}
