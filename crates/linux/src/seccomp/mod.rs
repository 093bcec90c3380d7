//! Filters of system calls: `seccomp(2)`. A thread that has one takes the slow path for every call;
//! others pay nothing.

pub(crate) mod actions_logged;
pub(crate) mod notify;
pub(crate) mod syscall_user_dispatch;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use bpf::Purpose;
use guard::user::UserRegs;
use linux_raw_sys::general as sys;
use uapi::sigframe::LastFault;
use uapi::siginfo::SigInfo;
use uapi::user_addr::UserAddr;

use crate::process::ptrace_state::Event;
use crate::process::{Process, core_dump, send_signal};
use crate::socket::sock_fprog::read_program;
use crate::state::credentials::Credentials;
use crate::state::fdtable::CloseOnExec;
use crate::state::seccomp::{Listener, Seccomp, SeccompData, SeccompFilter};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, ptrace};

const SET_MODE_STRICT: u32 = 0;
const SET_MODE_FILTER: u32 = 1;
const GET_ACTION_AVAIL: u32 = 2;
const GET_NOTIF_SIZES: u32 = 3;
const FLAG_TSYNC: u32 = 1;
const FLAG_LOG: u32 = 2;
const FLAG_SPEC_ALLOW: u32 = 4;
const FLAG_NEW_LISTENER: u32 = 8;
const FLAG_TSYNC_ESRCH: u32 = 16;
const FLAG_WAIT_KILLABLE: u32 = 32;

const ACTION: u32 = 0xffff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const KILL_THREAD: u32 = 0;
const TRAP: u32 = 0x0003_0000;
const ERRNO: u32 = 0x0005_0000;
const USER_NOTIF: u32 = 0x7fc0_0000;
const TRACE: u32 = 0x7ff0_0000;
const LOG: u32 = 0x7ffc_0000;
const ALLOW: u32 = 0x7fff_0000;
/// All actions, with their names, in the order in which `/proc/sys/kernel/seccomp` has them.
const ACTIONS: [(&str, u32); 8] = [
    ("kill_process", KILL_PROCESS),
    ("kill_thread", KILL_THREAD),
    ("trap", TRAP),
    ("errno", ERRNO),
    ("user_notif", USER_NOTIF),
    ("trace", TRACE),
    ("log", LOG),
    ("allow", ALLOW),
];
pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const SYS_SECCOMP: i32 = 1;
/// Most instructions of all filters of a thread, with a few added for each filter.
const MAX_INSNS_PER_PATH: usize = 32_768;
const PER_FILTER: usize = 4;

/// Runs a thread's filters on a call. `None`: it may be done.
#[cold]
pub(crate) fn run_filters(task: &Task, regs: &mut UserRegs) -> Option<SysResult> {
    run_filters_as(task, regs, TraceVerdict::Stop)
}

/// Effect of a filter's `RET_TRACE`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TraceVerdict {
    /// The tracer is asked.
    Stop,
    /// The call is let through: the tracer has been asked.
    Allow,
}

/// Runs the filters.
fn run_filters_as(task: &Task, regs: &mut UserRegs, on_trace: TraceVerdict) -> Option<SysResult> {
    let seccomp = task.seccomp.lock().clone();
    let number = regs.orig_rax as u32;
    if matches!(seccomp, Seccomp::Strict) {
        let allowed = matches!(
            number,
            sys::__NR_read | sys::__NR_write | sys::__NR_exit | sys::__NR_rt_sigreturn
        );
        return if allowed {
            None
        } else {
            actions_logged::log(task, regs, KILL_THREAD, sys::SIGKILL);
            Some(kill(task, regs, sys::SIGKILL, KillScope::Thread))
        };
    }
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    let data = SeccompData {
        number: number.cast_signed(),
        arch: AUDIT_ARCH_X86_64,
        ip: regs.rip,
        args,
    };
    // The action that goes before the others is the least as a signed number; of equals the filter
    // added last counts.
    let verdicts = seccomp
        .filters()
        .map(|filter| (filter.program.run(&data), Some(filter)));
    let (verdict, filter) = verdicts
        .min_by_key(|(verdict, _)| (verdict & ACTION).cast_signed())
        .unwrap_or((ALLOW, None));
    let detail = (verdict & !ACTION) as i32;
    let action = verdict & ACTION;
    let logged = match action {
        TRACE => on_trace == TraceVerdict::Stop && !ptrace::event_enabled(task, Event::Seccomp),
        // A call that its listener lets through is not logged.
        ALLOW | USER_NOTIF => false,
        _ => true,
    };
    let asked = || match action {
        TRAP | ERRNO | TRACE => filter.is_some_and(|filter| filter.logs),
        _ => true,
    };
    if logged && asked() {
        let signal = if matches!(action, LOG | TRAP | ERRNO | TRACE) {
            0
        } else {
            sys::SIGSYS
        };
        actions_logged::log(task, regs, action, signal);
    }
    match action {
        // To be logged is all.
        ALLOW | LOG => None,
        ERRNO => Some(match detail.min(4095) {
            0 => Ok(0),
            errno => match Errno::from_raw(errno) {
                // Nothing was interrupted: the program gets the number, as on Linux. Taken for an
                // interruption, the call would be made again for ever.
                error if error.is_restart() => Ok((-(errno as isize)).cast_unsigned()),
                error => Err(error),
            },
        }),
        TRAP => {
            let info = SigInfo::system_call(
                sys::SIGSYS as i32,
                SYS_SECCOMP,
                detail,
                regs.rip,
                number,
                AUDIT_ARCH_X86_64,
            );
            send_signal::force(task, info, LastFault::default());
            Some(Ok(regs.orig_rax as usize))
        }
        TRACE if on_trace == TraceVerdict::Allow => None,
        TRACE if ptrace::event_enabled(task, Event::Seccomp) => {
            ptrace::report_event(task, regs, Event::Seccomp, detail as u64);
            match regs.orig_rax.cast_signed() {
                // It is not to be done, and has this result.
                ..0 => Some(Ok(regs.rax as usize)),
                _ if task.must_exit() => Some(Ok(0)),
                _ => run_filters_as(task, regs, TraceVerdict::Allow),
            }
        }
        USER_NOTIF => {
            let listener = filter.and_then(|filter| filter.listener.as_ref());
            let result = listener.map_or(Some(Err(Errno::ENOSYS)), |listener| {
                listener.notify_and_wait(task, data)
            });
            if result.is_some() && filter.is_some_and(|filter| filter.logs) {
                actions_logged::log(task, regs, action, 0);
            }
            result
        }
        // Nobody traces.
        TRACE => Some(Err(Errno::ENOSYS)),
        KILL_THREAD => Some(kill(task, regs, sys::SIGSYS, KillScope::Thread)),
        _ => Some(kill(task, regs, sys::SIGSYS, KillScope::Process)),
    }
}

/// The victim of a filter that kills (`SECCOMP_RET_KILL_THREAD`, `SECCOMP_RET_KILL_PROCESS`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum KillScope {
    /// The calling thread.
    Thread,
    /// Its process.
    Process,
}

/// Ends by a signal the thread or its process; the process, too, if it has no other thread, with a
/// core dump that shows the registers of the call.
fn kill(task: &Task, regs: &UserRegs, signal: u32, scope: KillScope) -> SysResult {
    if scope == KillScope::Process || task.process().tasks().len() == 1 {
        if signal == sys::SIGKILL {
            task.process().kill(signal as i32);
        } else {
            let info = SigInfo::system_call(
                signal as i32,
                SYS_SECCOMP,
                0,
                regs.rip,
                regs.orig_rax as u32,
                AUDIT_ARCH_X86_64,
            );
            let before = UserRegs {
                rax: regs.orig_rax,
                ..*regs
            };
            core_dump::dump_and_kill(task, &before, &info);
        }
    } else {
        task.exit_status.store(signal as i32, Ordering::Relaxed);
        task.exiting.store(true, Ordering::Relaxed);
        task.signal_wake_up();
    }
    Ok(0)
}

/// Sets the filters of a thread, whose calls take the slow path from now on.
fn set_filters(task: &Task, seccomp: Seccomp) {
    *task.seccomp.lock() = seccomp;
    task.has_syscall_work.store(true, Ordering::Relaxed);
    task.signal_wake_up();
}

/// Whether a thread's filters are among, or the same as, those of another.
fn is_ancestor(other: &Seccomp, of: &Seccomp) -> bool {
    match other {
        Seccomp::Off => true,
        Seccomp::Strict => false,
        Seccomp::Filtered(other) => of.filters().any(|filter| core::ptr::eq(filter, &**other)),
    }
}

fn add_filter(task: &Task, flags: u32, addr: UserAddr) -> SysResult {
    let known = FLAG_TSYNC
        | FLAG_LOG
        | FLAG_SPEC_ALLOW
        | FLAG_NEW_LISTENER
        | FLAG_TSYNC_ESRCH
        | FLAG_WAIT_KILLABLE;
    let has = |flag: u32| flags & flag != 0;
    // A result cannot be both a thread's number and a descriptor.
    let ambiguous = has(FLAG_TSYNC) && has(FLAG_NEW_LISTENER) && !has(FLAG_TSYNC_ESRCH);
    if flags & !known != 0 || ambiguous || (has(FLAG_WAIT_KILLABLE) && !has(FLAG_NEW_LISTENER)) {
        return Err(Errno::EINVAL);
    }
    let cred = task.cred();
    let allowed = || {
        if cred.no_new_privs || cred.has_sys_admin() {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    };
    let program = read_program(
        addr,
        Purpose::Calls(size_of::<SeccompData>() as u32),
        allowed,
    )?;
    let old = task.seccomp.lock().clone();
    let length: usize = old
        .filters()
        .map(|filter| filter.program.length() + PER_FILTER)
        .sum();
    if length + program.length() > MAX_INSNS_PER_PATH {
        return Err(Errno::ENOMEM);
    }
    let before = match &old {
        Seccomp::Off => None,
        Seccomp::Strict => return Err(Errno::EINVAL),
        Seccomp::Filtered(filter) => Some(filter.clone()),
    };
    let listener = has(FLAG_NEW_LISTENER).then(|| Listener::new(has(FLAG_WAIT_KILLABLE)));
    if listener.is_some() && old.filters().any(|filter| filter.listener.is_some()) {
        return Err(Errno::EBUSY);
    }
    let others = if has(FLAG_TSYNC) {
        sibling_threads(task.process(), task)
    } else {
        Vec::new()
    };
    if let Some(strange) = others
        .iter()
        .find(|other| !is_ancestor(&other.seccomp.lock(), &old))
    {
        return if has(FLAG_TSYNC_ESRCH) {
            Err(Errno::ESRCH)
        } else {
            Ok(strange.tid().raw() as usize)
        };
    }
    let descriptor = listener.as_ref().map_or(Ok(0), |listener| {
        task.install(listener.file(), CloseOnExec::Yes)
    })?;
    let new = Seccomp::Filtered(Arc::new(SeccompFilter {
        _counted: census::Filter::default(),
        program,
        logs: has(FLAG_LOG),
        listener,
        prev: before,
    }));
    for other in others {
        if cred.no_new_privs && !other.cred().no_new_privs {
            let theirs = Credentials {
                no_new_privs: true,
                ..(*other.cred()).clone()
            };
            other.set_cred(theirs);
        }
        set_filters(&other, new.clone());
    }
    set_filters(task, new);
    Ok(descriptor)
}

/// Threads of the process other than `task`.
fn sibling_threads(process: &Process, task: &Task) -> Vec<Arc<Task>> {
    process
        .tasks()
        .into_iter()
        .filter(|other| !core::ptr::eq(&**other, task))
        .collect()
}

fn set_strict(task: &Task) -> SysResult {
    if let Seccomp::Filtered(_) = *task.seccomp.lock() {
        return Err(Errno::EINVAL);
    }
    set_filters(task, Seccomp::Strict);
    Ok(0)
}

/// Installs a filter, or the strict mode, for the calling thread (`PR_SET_SECCOMP`).
pub(crate) fn set_by_prctl(task: &Task, mode: usize, addr: UserAddr) -> SysResult {
    match mode {
        1 => set_strict(task),
        2 => add_filter(task, 0, addr),
        _ => Err(Errno::EINVAL),
    }
}

/// `seccomp(2)`: installs filters of system calls, or asks what there is.
pub fn sys_seccomp(task: &Task, operation: u32, flags: u32, addr: UserAddr) -> SysResult {
    match operation {
        SET_MODE_STRICT if flags == 0 && addr.is_null() => set_strict(task),
        SET_MODE_FILTER => add_filter(task, flags, addr),
        GET_ACTION_AVAIL if flags == 0 => {
            let action = UserPtr::<u32>::new(addr).read()?;
            let known = ACTIONS.iter().any(|(_, known)| *known == action);
            if known { Ok(0) } else { Err(Errno::EOPNOTSUPP) }
        }
        GET_NOTIF_SIZES if flags == 0 => {
            UserPtr::new(addr).write(&notify::SIZES)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}
