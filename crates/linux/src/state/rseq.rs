//! What a thread has registered by `rseq(2)`.

use uapi::user_addr::UserAddr;

/// Registration of a thread's `struct rseq`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The address of its `struct rseq`; null for none.
    pub(crate) addr: UserAddr,
    pub(crate) len: u32,
    /// Signature before every abort address, so that no other address is taken for one.
    pub(crate) signature: u32,
}
