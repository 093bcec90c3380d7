//! Whether a thread may look into another process (`ptrace_may_access` of Linux).
//!
//! A process that runs a file with set-id bits gets new memory and new credentials, one after the
//! other. Nobody sees the new memory by the old credentials: `execve` makes the process one that
//! cannot be dumped, then replaces the memory, then the credentials; and who looks takes the memory
//! first, then reads the credentials, then whether it can be dumped.

use alloc::sync::Arc;

use abi::errno::Errno;
use vm::AddressSpace;

use crate::Task;
use crate::process::Process;
use crate::state::credentials::TraceCreds;

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
    let other = process.credentials();
    // What has no memory has nothing to be dumped.
    let dumpable = space.is_none() || process.is_dumpable();
    if task.cred().may_trace(by, &other, dumpable) {
        Ok(space)
    } else {
        Err(Errno::EPERM)
    }
}
