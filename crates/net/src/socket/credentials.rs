//! Credentials: those that sockets tell their peers, and where the caller's come from.

use alloc::sync::Arc;

use linux_raw_sys::general::CAP_NET_ADMIN;
use task::Once;

/// The identity of a process: `struct ucred`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ucred {
    /// The process.
    pub pid: i32,
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
}

impl Ucred {
    /// The credentials shown where nobody is known.
    pub const INVALID: Self = Self {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    /// The credentials a message without a known sender carries.
    pub const OVERFLOW: Self = Self {
        pid: 0,
        uid: 65_534,
        gid: 65_534,
    };
}

/// A process' supplementary groups.
pub type SupplementaryGroups = Arc<[u32]>;

/// The functions that give the calling thread's credentials: the personality sets them.
type CredentialsProvider = (fn() -> Ucred, fn() -> SupplementaryGroups, fn(u32) -> bool);

static CREDENTIALS_PROVIDER: Once<CredentialsProvider> = Once::new();

/// Sets the functions that say who runs the calling thread, what its groups are, and whether it has
/// a capability. The first call counts.
pub fn set_credentials_provider(
    who: fn() -> Ucred,
    groups: fn() -> SupplementaryGroups,
    is_capable: fn(u32) -> bool,
) {
    CREDENTIALS_PROVIDER.call_once(|| (who, groups, is_capable));
}

/// Whether the caller may change interfaces, addresses and routes.
pub(crate) fn caller_administers_networks() -> bool {
    CREDENTIALS_PROVIDER
        .get()
        .is_some_and(|(.., is_capable)| is_capable(CAP_NET_ADMIN))
}

pub(crate) fn caller_ucred() -> Ucred {
    CREDENTIALS_PROVIDER
        .get()
        .map_or(Ucred::OVERFLOW, |(who, ..)| who())
}

pub(crate) fn caller_groups() -> SupplementaryGroups {
    CREDENTIALS_PROVIDER
        .get()
        .map_or_else(|| Arc::from([]), |(_, groups, _)| groups())
}
