//! `PR_SET_SYSCALL_USER_DISPATCH` of a thread.

use core::ops::Range;

/// Settings of `PR_SET_SYSCALL_USER_DISPATCH`.
#[derive(Clone, Debug)]
pub(crate) struct UserDispatch {
    /// Calls from here are always done.
    pub(crate) own: Range<u64>,
    /// Address of the byte that says what becomes of the others; 0: they are not done.
    pub(crate) selector: usize,
}
