//! Addresses in the memory of programs.

use abi::layout::{PAGE_SIZE, USER_END};

/// An address that a program passed, not checked: it may be null, not mapped or the kernel's.
///
/// It is as large as the register it came in. The functions of `uaccess` check it when it is used;
/// `UserPtr` also knows what is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[repr(transparent)]
pub struct UserAddr(usize);

impl UserAddr {
    /// The null pointer.
    pub const NULL: Self = Self(0);

    /// The address with this number.
    #[must_use]
    pub const fn new(raw: usize) -> Self {
        Self(raw)
    }

    /// The address as a number.
    #[must_use]
    pub const fn raw(self) -> usize {
        self.0
    }

    /// Whether it is the null pointer.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Whether `len` bytes from here on are in the half of the address space that programs have,
    /// mapped or not (Linux: `access_ok`).
    #[must_use]
    pub fn access_ok(self, len: usize) -> bool {
        self.0.checked_add(len).is_some_and(|end| end <= USER_END)
    }

    /// Whether it is a multiple of `align`, a number of bytes.
    #[must_use]
    pub const fn is_aligned(self, align: usize) -> bool {
        self.0.is_multiple_of(align)
    }

    /// The first byte of its page.
    #[must_use]
    pub const fn page_align_down(self) -> Self {
        Self(self.0 & !(PAGE_SIZE - 1))
    }

    /// Number of bytes between the first byte of its page and it.
    #[must_use]
    pub const fn page_offset(self) -> usize {
        self.0 % PAGE_SIZE
    }

    /// The address `bytes` later; `None` beyond the last one.
    #[must_use]
    pub fn checked_add(self, bytes: usize) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }

    /// The address `bytes` later, beyond the last one from 0 on.
    #[must_use]
    pub const fn wrapping_add(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl From<usize> for UserAddr {
    /// The address in an argument that only some requests of a call take for an address.
    fn from(word: usize) -> Self {
        Self(word)
    }
}

impl From<u64> for UserAddr {
    /// The address in a register or in a structure that a program passed.
    fn from(word: u64) -> Self {
        Self(word as usize)
    }
}
