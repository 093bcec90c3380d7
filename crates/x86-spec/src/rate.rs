//! Rates of counters: from ticks to nanoseconds and back, in fixed point with 32 bits behind the
//! point.

const NS_PER_SECOND: u64 = 1_000_000_000;

/// One part in so many by which a rate that boot measured may be too low: two counts of the
/// interval timer in those of the measurement. A countdown may be over late by as much; it is not
/// over early, for which the price would be a second interrupt.
pub const OFF_BY: u64 = 2048;

/// `value` times the fixed-point `factor`.
#[inline]
#[must_use]
pub const fn scale(value: u64, factor: u64) -> u64 {
    ((value as u128 * factor as u128) >> 32) as u64
}

/// Nanoseconds per tick of a counter of this rate, times 2^32.
///
/// # Panics
/// If the rate is 0.
#[inline]
#[must_use]
pub const fn ns_per_tick(hz: u64) -> u64 {
    (((NS_PER_SECOND as u128) << 32) / hz as u128) as u64
}

/// Ticks per nanosecond of a timer whose clock of `hz` is divided by `divider`, times 2^32, rounded
/// up by [`OFF_BY`].
#[inline]
#[must_use]
pub const fn timer_per_ns(hz: u64, divider: u64) -> u64 {
    let ticks = hz.div_ceil(divider);
    (((ticks + ticks.div_ceil(OFF_BY - 1)) as u128) << 32).div_ceil(NS_PER_SECOND as u128) as u64
}

/// Count from which a timer counts down so that it is over no earlier than `ns` after it is
/// started, unless that is more than 32 bits can count.
#[inline]
#[must_use]
pub fn countdown(ns: u64, timer_per_ns: u64) -> u32 {
    let count = (u128::from(ns) * u128::from(timer_per_ns)).div_ceil(1 << 32);
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;

    const DIVIDER: u64 = 16;

    proptest! {
        /// A countdown is never early, and late by no more than the error of boot's measurement
        /// and a tick, at any true rate of the timer.
        #[test]
        fn a_countdown_is_over_no_earlier_than_it_should_be(
            hz in 16_000_000u64..4_000_000_000,
            ns in 0u64..10_000_000_000,
            error in 0u64..=1000,
        ) {
            let measured = hz - hz / OFF_BY * error / 1000;
            let count = u128::from(countdown(ns, timer_per_ns(measured, DIVIDER)));
            let second = u128::from(NS_PER_SECOND);
            let tick = u128::from(DIVIDER);
            prop_assert!(count * tick * second >= u128::from(ns) * u128::from(hz));
            let most = u128::from(ns) * u128::from(hz) * (u128::from(OFF_BY) + 2) / u128::from(OFF_BY) / second / tick + 4;
            prop_assert!(count <= most);
        }
    }

    #[test]
    fn what_it_cannot_count_is_as_much_as_it_can() {
        assert_eq!(
            countdown(u64::MAX, timer_per_ns(1_000_000_000, DIVIDER)),
            u32::MAX
        );
        assert_eq!(countdown(0, timer_per_ns(1_000_000_000, DIVIDER)), 1);
    }
}
