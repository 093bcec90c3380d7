//! Questions of routers, and the versions in which they ask.

use crate::{Nanos, SECOND};

/// The time after which a router of an older version that has not asked is taken to be gone: the
/// robustness (2) times the time between questions (125 s), and that for answers (10 s).
const QUERIER_GONE: Nanos = 260 * SECOND;

/// The version of a router's question, and of what it is told. MLD has no [`Version::Second`]: its
/// first is as IGMP's second, and its second as IGMP's third.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    /// IGMPv1, MLDv1.
    First,
    /// IGMPv2.
    Second,
    /// IGMPv3, MLDv2.
    Newest,
}

/// A question who is in groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query<A> {
    /// The version of the question.
    pub version: Version,
    /// The time within which to answer.
    pub within: Nanos,
    /// The group that is asked for; none: all.
    pub group: Option<A>,
    /// How often a change is to be told; 0: the router does not say.
    pub robustness: u8,
}

/// The time that a code says, in the unit of its message: codes with the highest bit set are
/// floating-point numbers with a mantissa of `bits` bits (RFC 3376, 4.1.1; RFC 3810, 5.1.3).
pub(crate) fn decode_time(code: u16, bits: u32) -> u64 {
    let mantissa = u64::from(code) & ((1 << bits) - 1);
    if code >> (bits + 3) & 1 == 0 {
        return u64::from(code);
    }
    let exponent = code >> bits & 7;
    (mantissa | 1 << bits) << (exponent + 3)
}

/// Until when routers of older versions are there.
#[derive(Debug, Default)]
pub(super) struct Older {
    first: Nanos,
    second: Nanos,
}

impl Older {
    pub(super) fn heard(&mut self, version: Version, now: Nanos) {
        let until = now + QUERIER_GONE;
        match version {
            Version::First => self.first = until,
            Version::Second => self.second = until,
            Version::Newest => {}
        }
    }

    pub(super) fn version(&self, now: Nanos) -> Version {
        if now < self.first {
            Version::First
        } else if now < self.second {
            Version::Second
        } else {
            Version::Newest
        }
    }
}
