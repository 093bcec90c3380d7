//! Whether a thread may look into another process (`ptrace_may_access` of Linux).
//!
//! A process that runs a file with set-id bits gets new memory and new credentials, one after the
//! other. Nobody sees the new memory by the old credentials: `execve` makes the process one that
//! cannot be dumped, then replaces the memory, then the credentials, and says then whether it can
//! be dumped; and who looks takes the memory first, then reads the credentials, then whether it can
//! be dumped, and then whether the credentials still are those (`fs.suid_dumpable` may be 1, so
//! that it can be dumped by who has the new credentials).

use alloc::sync::Arc;

use abi::errno::Errno;
use vm::AddressSpace;

use crate::Task;
use crate::process::Process;
use crate::state::credentials::{Credentials, TraceCreds};

/// Checks that `task` may look into `process`: its own, or one of a user whose processes it may
/// trace.
///
/// # Errors
/// `EPERM`.
pub(crate) fn check_trace_access(
    task: &Task,
    process: &Arc<Process>,
    by: TraceCreds,
) -> Result<(), Errno> {
    traceable_space(task, process, by).map(drop)
}

/// Memory of a process that `task` may look into; `None` if it has none any more.
///
/// # Errors
/// `EPERM`.
pub(crate) fn traceable_space(
    task: &Task,
    process: &Arc<Process>,
    by: TraceCreds,
) -> Result<Option<Arc<AddressSpace>>, Errno> {
    let space = process.space();
    if Arc::ptr_eq(process, task.process()) {
        return Ok(space);
    }
    // What has no memory has nothing to be dumped.
    let (other, dumpable) = steady(
        || process.credentials(),
        || space.is_none() || process.is_dumpable(),
    );
    if task.cred().may_trace(by, &other, dumpable) {
        Ok(space)
    } else {
        Err(Errno::EPERM)
    }
}

/// Credentials, and whether their process can be dumped by who has them: read again until the
/// credentials did not change between.
fn steady(
    mut credentials: impl FnMut() -> Arc<Credentials>,
    mut dumpable: impl FnMut() -> bool,
) -> (Arc<Credentials>, bool) {
    let mut before = credentials();
    loop {
        let dumpable = dumpable();
        let after = credentials();
        if Arc::ptr_eq(&before, &after) {
            return (after, dumpable);
        }
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A set-id program with `fs.suid_dumpable` 1 gets its credentials, and is dumpable by who has
    /// them too, after who looks has read the old ones.
    #[test]
    fn what_can_be_dumped_goes_with_the_credentials() {
        let [old, new] = [0, 0].map(|_| Arc::new(Credentials::root()));
        let changed = Cell::new(false);
        let (found, dumpable) = steady(
            || if changed.get() { &new } else { &old }.clone(),
            || {
                changed.set(true);
                true
            },
        );
        assert!(dumpable && Arc::ptr_eq(&found, &new));
    }
}
