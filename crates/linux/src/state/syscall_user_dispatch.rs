//! `PR_SET_SYSCALL_USER_DISPATCH` of a thread.

use core::ops::Range;

use uapi::user_addr::UserAddr;

/// Range and selector of a thread's `PR_SET_SYSCALL_USER_DISPATCH`.
#[derive(Clone, Debug)]
pub(crate) struct UserDispatch {
    /// Addresses from which calls are always done.
    pub(crate) allowed_range: Range<u64>,
    /// Address of the byte that says what becomes of the others; null: they are not done.
    pub(crate) selector: UserAddr,
}
