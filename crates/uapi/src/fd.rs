//! Numbers of descriptors.

use core::fmt;

use linux_raw_sys::general::AT_FDCWD;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of a descriptor as a program passes it, whether a file is open there or not.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct Fd(i32);

impl Fd {
    /// The working directory, where a call takes the descriptor of a directory (`AT_FDCWD`).
    pub const CWD: Self = Self(AT_FDCWD);

    /// The descriptor with this number.
    #[must_use]
    pub const fn new(raw: i32) -> Self {
        Self(raw)
    }

    /// The number, as programs know it.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// Whether no descriptor can have the number.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The descriptor at a position in the table, which is also what a call that makes it returns.
    #[must_use]
    pub const fn from_index(index: usize) -> Self {
        Self(index as i32)
    }

    /// Position in the table of descriptors; that of a negative number is beyond all there are.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0.cast_unsigned() as usize
    }
}

impl fmt::Display for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
