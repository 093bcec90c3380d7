//! System calls that a program's own handler does (`PR_SET_SYSCALL_USER_DISPATCH`): those of
//! foreign code, for who emulates another system. A thread with it takes the slow path for each
//! call.

use core::sync::atomic::Ordering;

use abi::errno::Errno;
use guard::user::{self, UserRegs};
use linux_raw_sys::{general as sys, prctl as pr};
use uapi::sigframe::LastFault;
use uapi::siginfo::SigInfo;

use crate::process::{self, core_dump, send_signal};
use crate::seccomp::AUDIT_ARCH_X86_64;
use crate::state::syscall_user_dispatch::UserDispatch;
use crate::{SysResult, Task, uaccess};

const SYS_USER_DISPATCH: i32 = 2;
/// Values of the byte that decides.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Sets or ends the caller's dispatch (`PR_SET_SYSCALL_USER_DISPATCH`).
pub(crate) fn set(
    task: &Task,
    mode: usize,
    start: usize,
    len: usize,
    selector: usize,
) -> SysResult {
    const OFF: usize = pr::PR_SYS_DISPATCH_OFF as usize;
    const ON: usize = pr::PR_SYS_DISPATCH_ON as usize;
    let new = match mode {
        OFF if start == 0 && len == 0 && selector == 0 => None,
        ON if start != 0 && start.checked_add(len).is_none_or(|end| end <= start) => {
            return Err(Errno::EINVAL);
        }
        ON if selector >= user::USER_END => return Err(Errno::EFAULT),
        ON => Some(UserDispatch {
            allowed_range: start as u64..(start as u64).wrapping_add(len as u64),
            selector: selector.into(),
        }),
        _ => return Err(Errno::EINVAL),
    };
    install(task, new);
    Ok(0)
}

/// Sets the dispatch of the calling thread, or ends it (`None`).
fn install(task: &Task, new: Option<UserDispatch>) {
    let there = new.is_some();
    *task.user_dispatch.lock() = new;
    {
        // Held, so that a filter that another thread puts there meanwhile is not overlooked.
        let seccomp = task.seccomp.lock();
        task.has_syscall_work
            .store(there || seccomp.mode() != 0, Ordering::Relaxed);
    }
    // Whether calls take the slow path is decided anew.
    task.signal_wake_up();
}

/// Ends the dispatch of a thread that runs another program.
pub(crate) fn on_exec(task: &Task) {
    let there = task.user_dispatch.lock().is_some();
    if there {
        install(task, None);
    }
}

/// Result of a call that is not done; `None`: it is done.
#[cold]
pub(crate) fn check(task: &Task, regs: &UserRegs) -> Option<SysResult> {
    let dispatch = task.user_dispatch.lock().clone()?;
    if dispatch.allowed_range.contains(&regs.rip) {
        return None;
    }
    if !dispatch.selector.is_null() {
        let mut byte = [0];
        if uaccess::read_bytes(dispatch.selector, &mut byte).is_err() {
            return Some(kill(task, regs, sys::SIGSEGV));
        }
        match byte[0] {
            ALLOW => return None,
            BLOCK => {}
            _ => return Some(kill(task, regs, sys::SIGSYS)),
        }
    }
    let number = regs.orig_rax as u32;
    let info = SigInfo::system_call(
        sys::SIGSYS as i32,
        SYS_USER_DISPATCH,
        0,
        regs.rip,
        number,
        AUDIT_ARCH_X86_64,
    );
    send_signal::force(task, info, LastFault::default());
    Some(Ok(regs.orig_rax as usize))
}

/// Ends the process by a signal because its selector cannot be read or makes no sense.
fn kill(task: &Task, regs: &UserRegs, signal: u32) -> SysResult {
    process::log_fatal_signal(
        task.process(),
        signal as i32,
        format_args!("its dispatch of system calls is not sound"),
    );
    core_dump::dump_and_kill(task, regs, &SigInfo::kernel(signal as i32));
    Ok(0)
}
