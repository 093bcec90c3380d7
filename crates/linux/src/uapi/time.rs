//! Times as programs pass them: `struct timespec`, `struct timeval`.

use abi::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Nanoseconds of a second.
pub(crate) const NS_PER_SEC: u64 = 1_000_000_000;

/// `struct timespec`.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TimeSpec {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: i64,
}

/// `struct timeval`.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TimeVal {
    /// Seconds.
    pub sec: i64,
    /// Microseconds, below 10^6.
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

    /// In nanoseconds.
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
