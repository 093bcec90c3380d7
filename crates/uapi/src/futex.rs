//! Words in memory that threads wait for (`futex(2)`): what the flags of a call say of them.

use linux_raw_sys::general as sys;

/// The threads that a futex is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FutexScope {
    /// Threads of one address space: the address identifies the word (`FUTEX_PRIVATE_FLAG`).
    Private,
    /// All threads that map the memory: object and offset identify the word.
    Shared,
}

impl FutexScope {
    /// The scope in the flags of `futex(2)` or `futex_waitv(2)`.
    #[inline(always)]
    pub const fn of_flags(flags: u32) -> Self {
        if flags & sys::FUTEX_PRIVATE_FLAG != 0 {
            Self::Private
        } else {
            Self::Shared
        }
    }
}

/// The access that the kernel needs to a futex's word (Linux: `FUTEX_READ`, `FUTEX_WRITE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FutexAccess {
    /// The word is read only.
    Read,
    /// The word is read and written.
    Write,
}
