//! Blocking signals and waiting for them.

use ::task::{WaitError, WaitQueue};
use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::siginfo::{SigInfo, SigSet, UNBLOCKABLE};
use crate::time::{TimeSpec, deadline_after};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

fn check_size(size: usize) -> Result<(), Errno> {
    if size == size_of::<SigSet>() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `rt_sigprocmask(2)`
pub fn sys_rt_sigprocmask(task: &Task, how: u32, set: UserPtr<SigSet>, old: UserPtr<SigSet>, size: usize) -> SysResult {
    check_size(size)?;
    let set = set.read_optional()?;
    let before = task.signals.lock().blocked;
    if let Some(set) = set {
        let new = match how {
            sys::SIG_BLOCK => before | set,
            sys::SIG_UNBLOCK => before & !set,
            sys::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        task.set_blocked(new);
    }
    old.write_optional(&before)?;
    Ok(0)
}

/// `rt_sigpending(2)`
pub fn sys_rt_sigpending(task: &Task, set: UserPtr<SigSet>, size: usize) -> SysResult {
    check_size(size)?;
    let (own, blocked) = {
        let signals = task.signals.lock();
        (signals.pending.set(), signals.blocked)
    };
    set.write(&((own | task.process().pending_set()) & blocked))?;
    Ok(0)
}

/// Sleeps until a signal comes.
fn sleep() -> SysResult {
    let nothing = WaitQueue::new();
    match nothing.wait_interruptible(None, || None::<()>) {
        Ok(()) => Ok(0),
        Err(_) => Err(Errno::ERESTARTNOHAND),
    }
}

/// `pause(2)`
pub fn sys_pause(_: &Task) -> SysResult {
    sleep()
}

/// `rt_sigsuspend(2)`
pub fn sys_rt_sigsuspend(task: &Task, mask: UserPtr<SigSet>, size: usize) -> SysResult {
    check_size(size)?;
    let mask = mask.read()?;
    task.with_mask(mask, sleep)
}

/// `rt_sigtimedwait(2)`
pub fn sys_rt_sigtimedwait(
    task: &Task,
    set: UserPtr<SigSet>,
    info: UserPtr<SigInfo>,
    timeout: UserPtr<TimeSpec>,
    size: usize,
) -> SysResult {
    check_size(size)?;
    let wanted = set.read()? & !UNBLOCKABLE;
    let deadline = match timeout.read_optional()? {
        Some(span) => Some(deadline_after(span)?),
        None => None,
    };
    let process = task.process();
    let take = || {
        let own = task.signals.lock().pending.take(wanted);
        own.or_else(|| process.pending.lock().take(wanted))
    };
    // A signal that is waited for does not interrupt, even if it is not blocked: it is taken before it is looked at.
    match process.signal_sent.wait_interruptible(deadline, take) {
        Ok(found) => {
            info.write_optional(&found)?;
            Ok(found.signo as usize)
        }
        Err(WaitError::TimedOut) => Err(Errno::EAGAIN),
        Err(WaitError::Interrupted) => Err(Errno::EINTR),
    }
}
