//! Which actions of filters are logged: `/proc/sys/kernel/seccomp/actions_logged`.

use alloc::string::String;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use guard::user::UserRegs;

use super::{ACTIONS, ALLOW, AUDIT_ARCH_X86_64};
use crate::Task;
use crate::state::ratelimit::LogLimit;

/// A bit for each of [`ACTIONS`] that is logged if its filter asks for it, or without being asked.
/// At first all but the last one, `allow`, which never is.
static LOGGED: AtomicU32 = AtomicU32::new((1 << (ACTIONS.len() - 1)) - 1);

/// Names of the actions for which `is_wanted` holds, given their place in [`ACTIONS`].
fn names(is_wanted: impl Fn(usize) -> bool) -> String {
    let mut text = String::new();
    for (place, (name, _)) in ACTIONS.iter().enumerate() {
        if is_wanted(place) {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(name);
        }
    }
    text.push('\n');
    text
}

/// Names of all actions that there are (`actions_avail`).
pub(crate) fn all_names() -> String {
    names(|_| true)
}

/// Names of those that are logged.
pub(crate) fn logged_names() -> String {
    let logged = LOGGED.load(Ordering::Relaxed);
    names(|place| logged >> place & 1 != 0)
}

/// Has those logged, and no others, that a text names, with spaces between them.
///
/// # Errors
/// `EINVAL` for `allow`, and for what is no action.
pub(crate) fn set_logged(text: &[u8]) -> Result<(), Errno> {
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let mut logged = 0;
    for word in text.split_ascii_whitespace() {
        let place = ACTIONS
            .iter()
            .position(|(name, action)| *name == word && *action != ALLOW);
        logged |= 1 << place.ok_or(Errno::EINVAL)?;
    }
    LOGGED.store(logged, Ordering::Relaxed);
    Ok(())
}

/// Logs an action on a call, if such are logged, as a record of Linux's audit (`AUDIT_SECCOMP`,
/// 1326). There is no login user and no session here, so neither is set.
pub(super) fn log(task: &Task, regs: &UserRegs, action: u32, signal: u32) {
    static LIMIT: LogLimit = LogLimit::new();
    let place = ACTIONS.iter().position(|(_, known)| *known == action);
    // An action that is none kills the process.
    let place = place.unwrap_or(0);
    if LOGGED.load(Ordering::Relaxed) >> place & 1 == 0 || !LIMIT.allows("seccomp") {
        return;
    }
    let cred = task.cred();
    log::info!(
        "audit: type=1326 auid=4294967295 uid={} gid={} ses=4294967295 pid={} comm={:?} sig={signal} arch={AUDIT_ARCH_X86_64:x} \
         syscall={} compat=0 ip={:#x} code={action:#x}",
        cred.user.real,
        cred.group.real,
        task.pid(),
        task.name(),
        regs.orig_rax.cast_signed(),
        regs.rip,
    );
}
