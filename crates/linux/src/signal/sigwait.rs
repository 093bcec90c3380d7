//! Blocking signals and waiting for them.

use ::task::WaitQueue;
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::siginfo::{SigInfo, SigSet, UNBLOCKABLE};
use uapi::time::TimeSpec;

use crate::process::timer;
use crate::time::deadline_after;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

fn check_size(size: usize) -> Result<(), Errno> {
    if size == size_of::<SigSet>() {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// `rt_sigprocmask(2)`: changes and stores the mask of blocked signals.
pub fn sys_rt_sigprocmask(
    task: &Task,
    how: u32,
    set: UserPtr<SigSet>,
    old: UserPtr<SigSet>,
    size: usize,
) -> SysResult {
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

/// `rt_sigpending(2)`: stores the pending signals that are blocked.
pub fn sys_rt_sigpending(task: &Task, set: UserPtr<SigSet>, size: usize) -> SysResult {
    // As many bytes of the set as the caller has room for.
    if size > size_of::<SigSet>() {
        return Err(Errno::EINVAL);
    }
    let blocked = task.signals.lock().blocked;
    let pending = (task.pending_signals() & blocked).to_ne_bytes();
    uaccess::write_bytes(set.addr(), &pending[..size])?;
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

/// `pause(2)`: waits for a signal that runs a handler.
pub fn sys_pause(_: &Task) -> SysResult {
    sleep()
}

/// `rt_sigsuspend(2)`: waits for a signal with another mask.
pub fn sys_rt_sigsuspend(task: &Task, mask: UserPtr<SigSet>, size: usize) -> SysResult {
    check_size(size)?;
    let mask = mask.read()?;
    task.with_temporary_sigmask(mask, sleep)
}

/// `rt_sigtimedwait(2)`: takes a pending signal of a set; waits until a timeout.
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
    // A signal that is waited for does not interrupt, even if it is not blocked: it is taken before
    // it is looked at.
    match process
        .signal_sent
        .wait_until(deadline, || task.dequeue_signal(wanted))
    {
        Ok(Some(found)) => {
            info.write_optional(&found)?;
            Ok(found.signo as usize)
        }
        Ok(None) => Err(Errno::EAGAIN),
        Err(_) => Err(Errno::EINTR),
    }
}

impl Task {
    /// Signals that wait for this thread, or for any of its process.
    pub(crate) fn pending_signals(&self) -> SigSet {
        let own = self.signals.lock().pending.set();
        own | self.process().pending_set()
    }

    /// Removes a pending signal of the thread or its process that is in `wanted`.
    pub(crate) fn dequeue_signal(&self, wanted: SigSet) -> Option<SigInfo> {
        let own = self.signals.lock().pending.dequeue(wanted);
        own.or_else(|| self.process().pending.lock().dequeue(wanted))
            .map(|info| self.taken(info))
    }

    /// A signal that was taken from a queue, with what its timer has to say.
    #[inline]
    pub(super) fn taken(&self, mut info: SigInfo) -> SigInfo {
        if info.code == sys::SI_TIMER || info.signo == sys::SIGALRM as i32 {
            timer::on_signal_taken(self.process(), &mut info);
        }
        info
    }
}
