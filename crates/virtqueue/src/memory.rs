//! The memory that both ends of a queue reach.

use core::fmt;

/// A device address: where the two ends of a queue agree that memory is.
///
/// A number without meaning here. The [`Memory`] that it is for says what can be reached by it:
/// behind an IOMMU, or in a shared window, what belongs to the two and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Address(u64);

impl Address {
    /// The address with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, as descriptors and registers hold it.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The address so many bytes further on; one past the end of all numbers is reached by nobody.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

/// An access to what is not in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable(pub Address);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no memory at device address {:#x}",
            self.0.number()
        )
    }
}

impl core::error::Error for Unreachable {}

/// Memory that the other end of a queue reads and writes at the same time.
///
/// There are copies only: an implementation hands out no reference, since what it would point to
/// changes under it. Every call checks its range. Numbers are little-endian (virtio 1.3, section
/// 1.4).
pub trait Memory {
    /// True if all of these bytes are in the memory.
    fn reaches(&self, at: Address, len: u64) -> bool;

    /// Loads a number in one access, with acquire order.
    ///
    /// # Errors
    /// If it is not in the memory, or at an odd address.
    fn load16(&self, at: Address) -> Result<u16, Unreachable>;

    /// Stores a number in one access, with release order.
    ///
    /// # Errors
    /// If it is not in the memory, or at an odd address.
    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable>;

    /// Copies bytes out, in any order and any number of accesses, each byte once.
    ///
    /// # Errors
    /// If not all of them are in the memory. What was copied then is unspecified.
    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable>;

    /// Copies bytes in, in any order and any number of accesses.
    ///
    /// # Errors
    /// If not all of them are in the memory. What was copied then is unspecified.
    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable>;
}

impl<M: Memory + ?Sized> Memory for &M {
    fn reaches(&self, at: Address, len: u64) -> bool {
        (**self).reaches(at, len)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        (**self).load16(at)
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        (**self).store16(at, value)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        (**self).read(at, into)
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        (**self).write(at, from)
    }
}
