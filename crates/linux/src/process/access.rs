//! Whether a thread may look into another process (`ptrace_may_access` of Linux).

use alloc::sync::Arc;

use abi::errno::Errno;

use crate::Task;
use crate::process::Process;

/// Whether `task` may look into `process`: its own, or one of a user whose processes it may trace.
///
/// # Errors
/// `EPERM`.
pub(crate) fn check_trace_access(task: &Task, process: &Arc<Process>) -> Result<(), Errno> {
    let own = Arc::ptr_eq(process, task.process());
    if own
        || task
            .cred()
            .may_trace(&process.credentials(), process.is_dumpable())
    {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}
