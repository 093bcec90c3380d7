//! Frame numbers: how memory is named everywhere but in `phys` (decision 002).

use core::fmt;

/// A 4 KiB frame of this instance, by its number within the instance. It says nothing of where the
/// memory is, and a number alone gives no access to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u64);

impl Frame {
    /// The frame `count` after this one.
    #[must_use]
    pub const fn add(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({:#x})", self.0)
    }
}
