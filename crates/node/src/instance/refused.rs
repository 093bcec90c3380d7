//! Refusals of what an instance was to be given.

use abi::dev;
use abi::errno::Errno;

/// Reason why an instance does not get what it was to have: as `REASON_*`, and the error of the
/// call.
pub(crate) struct Refused {
    pub reason: u32,
    pub errno: Errno,
    /// The instance that has it; else 0.
    pub owner: u32,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self {
            reason: dev::REASON_NONE,
            errno,
            owner: 0,
        }
    }
}

impl Refused {
    pub(super) fn new(reason: u32, errno: Errno) -> Self {
        Self {
            reason,
            ..Self::from(errno)
        }
    }
}
