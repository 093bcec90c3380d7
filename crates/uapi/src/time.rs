//! Times as programs pass them: `struct timespec`, `struct timeval`.

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Nanoseconds of a second.
pub const NS_PER_SEC: u64 = 1_000_000_000;

/// The clock that an absolute time belongs to (Linux: bases of hrtimers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockBase {
    /// Time since boot, which never jumps (`CLOCK_MONOTONIC`, `CLOCK_BOOTTIME`).
    Monotonic,
    /// The wall clock, which can be set (`CLOCK_REALTIME`).
    Realtime,
    /// The wall clock without leap seconds: the former and an offset, both of which can be set
    /// (`CLOCK_TAI`).
    Tai,
}

/// The meaning of a time that a program passes to a timer or sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerMode {
    /// A span from now on.
    Relative,
    /// A time of the clock (`TIMER_ABSTIME`).
    Absolute,
}

impl TimerMode {
    /// The mode in the flags of `clock_nanosleep(2)`, `timer_settime(2)` or `timerfd_settime(2)`.
    pub const fn of_flags(flags: u32) -> Self {
        if flags & sys::TIMER_ABSTIME != 0 {
            Self::Absolute
        } else {
            Self::Relative
        }
    }
}

const _: () = assert!(sys::TIMER_ABSTIME == sys::TFD_TIMER_ABSTIME);

/// A time or duration in nanoseconds: `struct timespec`.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TimeSpec {
    /// Whole seconds.
    pub sec: i64,
    /// Nanoseconds of the second, below 10^9.
    pub nsec: i64,
}

/// A time or duration in microseconds: `struct timeval`.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TimeVal {
    /// Whole seconds.
    pub sec: i64,
    /// Microseconds of the second, below 10^6.
    pub usec: i64,
}

impl TimeSpec {
    /// A number of nanoseconds.
    #[must_use]
    pub fn from_ns(ns: u64) -> Self {
        Self {
            sec: (ns / NS_PER_SEC) as i64,
            nsec: (ns % NS_PER_SEC) as i64,
        }
    }

    /// In nanoseconds; what is too much for a `u64` is the most there is.
    ///
    /// # Errors
    /// `EINVAL` if it is no time.
    pub fn to_ns(self) -> Result<u64, Errno> {
        let sec = u64::try_from(self.sec).map_err(|_| Errno::EINVAL)?;
        if !(0..NS_PER_SEC as i64).contains(&self.nsec) {
            return Err(Errno::EINVAL);
        }
        Ok(sec
            .saturating_mul(NS_PER_SEC)
            .saturating_add(self.nsec as u64))
    }
}

impl TimeVal {
    /// A number of nanoseconds, cut to microseconds.
    #[must_use]
    pub fn from_ns(ns: u64) -> Self {
        Self {
            sec: (ns / NS_PER_SEC) as i64,
            usec: (ns % NS_PER_SEC / 1000) as i64,
        }
    }

    /// Converts to nanoseconds.
    ///
    /// # Errors
    /// `EINVAL` if it is no time.
    pub fn to_ns(self) -> Result<u64, Errno> {
        if !(0..1_000_000).contains(&self.usec) {
            return Err(Errno::EINVAL);
        }
        TimeSpec {
            sec: self.sec,
            nsec: self.usec * 1000,
        }
        .to_ns()
    }
}
