//! `restart_syscall(2)`.

use abi::errno::Errno;

use crate::files::poll;
use crate::process::task::RestartBlock;
use crate::time::sleep_span;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, futex};

/// `restart_syscall(2)`: a wait with a deadline goes on.
pub fn sys_restart_syscall(task: &Task) -> SysResult {
    // Out of the lock: a guard in the match's head would be held while the thread sleeps.
    let call = task.restart_block.lock().take();
    match call {
        Some(RestartBlock::Sleep { deadline, rest }) => {
            sleep_span(task, deadline, UserPtr::new(rest))
        }
        Some(RestartBlock::Futex {
            addr,
            scope,
            expected,
            deadline,
            bits,
        }) => futex::wait(task, addr, scope, expected, Some(deadline), bits),
        Some(RestartBlock::Poll {
            fds,
            count,
            deadline,
        }) => poll::poll_until(task, fds, count, deadline),
        None => Err(Errno::EINTR),
    }
}
