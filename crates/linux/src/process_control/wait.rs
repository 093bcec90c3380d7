//! Waiting for children: `wait4(2)`, `waitid(2)`.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::pid::{Pgid, Pid, PidSelector, Tid};
use uapi::siginfo::SigInfo;
use uapi::user_addr::UserAddr;

use crate::process::process_table::{self, ProcessEntry, ProcessTable, TABLE};
use crate::process::{Process, accounting, pidfd, sigchld_code_and_status};
use crate::time::rusage::RUsage;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, ptrace};

/// Children that a call waits for.
#[derive(Clone, Copy)]
enum WaitSelector {
    Any,
    /// A child, or a thread that is traced.
    Tid(Tid),
    Group(Pgid),
}

impl WaitSelector {
    fn matches(self, pid: Pid, entry: &ProcessEntry) -> bool {
        match self {
            Self::Any => true,
            Self::Tid(wanted) => pid.leader() == wanted,
            Self::Group(group) => entry.group == group,
        }
    }
}

/// News of a child.
struct WaitStatus {
    process: Arc<Process>,
    /// The number of the child, or of a thread that is traced.
    tid: Tid,
    /// Wait status, as `wait4` returns it.
    status: i32,
    code: i32,
    value: i32,
}

/// The wait status of a child that was stopped.
const fn stopped_status(signal: i32) -> i32 {
    signal << 8 | 0x7f
}

/// The wait status of a child that goes on.
const CONTINUED: i32 = 0xffff;

/// Whether a call with these options waits for such a child: by default for those whose end
/// `SIGCHLD` tells.
fn is_eligible_child(child: &Process, options: u32) -> bool {
    let usual = child.exit_signal() == sys::SIGCHLD as i32;
    options & sys::__WALL != 0 || usual == (options & sys::__WCLONE == 0)
}

impl ProcessTable {
    /// Finds news of a child. `Err`: there is no such child. `Ok(None)`: there is no news.
    fn find_waitable_child(
        &mut self,
        parent: Pid,
        which: WaitSelector,
        options: u32,
    ) -> Result<Option<WaitStatus>, Errno> {
        let keep = options & sys::WNOWAIT != 0;
        let mut any = false;
        let mut place = 0;
        while let Some((next, pid)) = self.entry(parent).and_then(|n| n.children.at(place)) {
            place = next;
            let wanted = |entry: &ProcessEntry| {
                which.matches(pid, entry) && is_eligible_child(&entry.process, options)
            };
            let Some(entry) = self.entry_mut(pid).filter(|entry| wanted(entry)) else {
                continue;
            };
            // One that has ended is no child for who asks for other news only, unless its tracer
            // has it first.
            any |=
                entry.exit_status.is_none() || entry.awaits_tracer || options & sys::WEXITED != 0;
            let process = entry.process.clone();
            if let Some(status) = entry.exit_status {
                if options & sys::WEXITED == 0 || entry.awaits_tracer {
                    continue;
                }
                if !keep {
                    self.reap(pid);
                }
                let (code, value) = sigchld_code_and_status(status);
                return Ok(Some(WaitStatus {
                    process,
                    tid: pid.leader(),
                    status,
                    code,
                    value,
                }));
            }
            // Its stops are told to the same process as its tracer.
            if process
                .traced_leader
                .lock()
                .upgrade()
                .and_then(|leader| ptrace::tracer_of(&leader))
                .is_some_and(|t| t.pid() == parent)
            {
                continue;
            }
            if let Some(signal) = entry.stop_report
                && options & sys::WSTOPPED != 0
            {
                if !keep {
                    entry.stop_report = None;
                }
                let (status, code) = (stopped_status(signal), sys::CLD_STOPPED as i32);
                return Ok(Some(WaitStatus {
                    process,
                    tid: pid.leader(),
                    status,
                    code,
                    value: signal,
                }));
            }
            if entry.continue_report && options & sys::WCONTINUED != 0 {
                entry.continue_report = keep;
                let (code, value) = (sys::CLD_CONTINUED as i32, sys::SIGCONT as i32);
                return Ok(Some(WaitStatus {
                    process,
                    tid: pid.leader(),
                    status: CONTINUED,
                    code,
                    value,
                }));
            }
        }
        if any { Ok(None) } else { Err(Errno::ECHILD) }
    }
}

/// News of threads that the caller's process, or only its thread, traces.
fn find_waitable_tracee(
    task: &Task,
    which: WaitSelector,
    options: u32,
) -> Result<Option<WaitStatus>, Errno> {
    let matches = |tracee: &Task| match which {
        WaitSelector::Any => true,
        WaitSelector::Tid(tid) => tracee.tid() == tid,
        WaitSelector::Group(group) => process_table::relations(tracee.pid()).group == group,
    };
    let thread = (options & sys::__WNOTHREAD != 0).then_some(task);
    let (keep, ends) = (options & sys::WNOWAIT != 0, options & sys::WEXITED != 0);
    let told = ptrace::TraceeStatus::find(task.process(), thread, matches, keep, ends)?;
    Ok(told.map(|told| {
        let ptrace::TraceeStatus {
            task,
            status,
            code,
            value,
        } = told;
        WaitStatus {
            process: task.process().clone(),
            tid: task.tid(),
            status,
            code,
            value,
        }
    }))
}

fn wait(task: &Task, which: WaitSelector, options: u32) -> Result<Option<WaitStatus>, Errno> {
    let process = task.process();
    let look = || {
        let traced = find_waitable_tracee(task, which, options);
        if let Ok(Some(_)) = traced {
            return Some(traced);
        }
        let news = TABLE
            .lock()
            .find_waitable_child(process.pid(), which, options);
        // Whoever has no children may have threads to wait for.
        let news = if traced.is_ok() && news.is_err() {
            Ok(None)
        } else {
            news
        };
        (options & sys::WNOHANG != 0 || !matches!(news, Ok(None))).then_some(news)
    };
    let report = process
        .wait_chldexit
        .wait_interruptible(None, look)
        .map_err(|_| Errno::ERESTARTSYS)??;
    if let Some(report) = &report {
        report.process.wait_until_announced();
        let is_reaped = options & sys::WNOWAIT == 0
            && report.process.space().is_none()
            && report.process.parent() == process.pid();
        if is_reaped {
            accounting::account_reaped_child(process, &report.process);
        }
    }
    Ok(report)
}

/// `wait4(2)`: waits for a child; stores its status and usage.
pub fn sys_wait4(
    task: &Task,
    pid: i32,
    status: UserPtr<i32>,
    options: u32,
    usage: UserPtr<RUsage>,
) -> SysResult {
    const KNOWN: u32 = sys::WNOHANG
        | sys::WUNTRACED
        | sys::WCONTINUED
        | sys::__WNOTHREAD
        | sys::__WCLONE
        | sys::__WALL;
    if options & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let which = match PidSelector::new(pid)? {
        PidSelector::All => WaitSelector::Any,
        PidSelector::OwnGroup => WaitSelector::Group(process_table::relations(task.pid()).group),
        PidSelector::One(tid) => WaitSelector::Tid(tid),
        PidSelector::Group(group) => WaitSelector::Group(group),
    };
    let Some(report) = wait(task, which, options | sys::WEXITED)? else {
        return Ok(0);
    };
    status.write_optional(&report.status)?;
    if !usage.is_null() {
        usage.write(&RUsage::of(&report.process.usage_with_children()))?;
    }
    Ok(report.tid.raw() as usize)
}

/// `waitid(2)`: waits for a child; stores a `siginfo_t`.
pub fn sys_waitid(
    task: &Task,
    kind: u32,
    id: i32,
    info: UserPtr<SigInfo>,
    options: u32,
    usage: UserPtr<RUsage>,
) -> SysResult {
    let result = wait_by_kind(task, kind, id, options);
    if let Ok(Some(report)) = &result
        && !usage.is_null()
    {
        usage.write(&RUsage::of(&report.process.usage_with_children()))?;
    }
    if !info.is_null() {
        write_siginfo(info.addr(), result.as_ref().ok().and_then(Option::as_ref))?;
    }
    result.map(|_| 0)
}

/// Writes the fields of a `siginfo_t` that `waitid(2)` sets: zeros without a child, also after an
/// error. The others stay as they are.
fn write_siginfo(at: UserAddr, news: Option<&WaitStatus>) -> Result<(), Errno> {
    let (signal, person) = match news {
        Some(report) => {
            let user = report.process.credentials().user.real;
            (
                [sys::SIGCHLD, 0, report.code.cast_unsigned()],
                [report.tid.as_u32(), user, report.value.cast_unsigned()],
            )
        }
        None => ([0; 3], [0; 3]),
    };
    UserPtr::new(at).write(&signal)?;
    UserPtr::new(at.wrapping_add(core::mem::offset_of!(SigInfo, fields))).write(&person)
}

fn wait_by_kind(
    task: &Task,
    kind: u32,
    id: i32,
    options: u32,
) -> Result<Option<WaitStatus>, Errno> {
    const WANTED: u32 = sys::WEXITED | sys::WSTOPPED | sys::WCONTINUED;
    const KNOWN: u32 =
        WANTED | sys::WNOHANG | sys::WNOWAIT | sys::__WNOTHREAD | sys::__WCLONE | sys::__WALL;
    if options & !KNOWN != 0 || options & WANTED == 0 {
        return Err(Errno::EINVAL);
    }
    let mut never_blocks = false;
    let which = match kind {
        sys::P_ALL => WaitSelector::Any,
        sys::P_PID if id > 0 => WaitSelector::Tid(Tid::new(id)),
        sys::P_PIDFD if id >= 0 => {
            let (process, nonblocking) = pidfd::process_of(task, Fd::new(id))?;
            never_blocks = nonblocking;
            WaitSelector::Tid(process.pid().leader())
        }
        sys::P_PGID if id >= 0 => WaitSelector::Group(if id == 0 {
            process_table::relations(task.pid()).group
        } else {
            Pgid::new(id)
        }),
        _ => return Err(Errno::EINVAL),
    };
    let report = wait(
        task,
        which,
        if never_blocks {
            options | sys::WNOHANG
        } else {
            options
        },
    )?;
    let would_block = report.is_none() && never_blocks && options & sys::WNOHANG == 0;
    if would_block {
        Err(Errno::EAGAIN)
    } else {
        Ok(report)
    }
}
