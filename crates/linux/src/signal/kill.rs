//! Sending signals: `kill(2)`, `tkill(2)`, `tgkill(2)`, `rt_sigqueueinfo(2)`.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::{Pid, PidSelector, Tid};
use uapi::siginfo::{NSIG, SigInfo};
use zerocopy::IntoBytes;

use crate::process::send_signal::{SIGCONT, SignalTarget, is_unkillable, queue_signal};
use crate::process::{Process, process_table};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// Whether there is such a signal and the caller may send it to a process. Whether there is the
/// process comes before either.
fn check_permission(task: &Task, process: &Process, signal: i32) -> Result<(), Errno> {
    if !(0..=NSIG).contains(&signal) {
        return Err(Errno::EINVAL);
    }
    if core::ptr::eq(&**task.process(), process) || task.cred().may_signal(&process.credentials()) {
        return Ok(());
    }
    let session = |pid| process_table::relations(pid).session;
    if signal == SIGCONT && session(task.pid()) == session(process.pid()) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Sends from a call of `task`. 0 only checks.
fn send_from(
    task: &Task,
    process: &Arc<Process>,
    to: SignalTarget<'_>,
    info: &SigInfo,
) -> Result<(), Errno> {
    check_permission(task, process, info.signo)?;
    if info.signo == 0 {
        return Ok(());
    }
    if is_unkillable(process, info.signo) {
        return Ok(());
    }
    queue_signal(process, to, info).map(drop)
}

fn info_of(task: &Task, signal: i32, code: i32) -> SigInfo {
    SigInfo::from_process(signal, code, task.pid(), task.uid())
}

/// Sends to the process that a number means, which may be that of any of its threads.
fn send_by_number(task: &Task, tid: Tid, info: &SigInfo) -> SysResult {
    let process = process_table::find_by_tid(tid)?;
    let named = process_table::find_task(tid);
    send_from(
        task,
        &process,
        SignalTarget::Process(named.as_deref()),
        info,
    )
    .map(|()| 0)
}

/// `kill(2)`: sends a signal to a process, a group or all.
pub fn sys_kill(task: &Task, pid: i32, signal: i32) -> SysResult {
    let info = info_of(task, signal, sys::SI_USER as i32);
    let own = task.pid();
    let receivers = match PidSelector::new(pid)? {
        PidSelector::One(tid) if tid == own.leader() => {
            return send_from(task, task.process(), SignalTarget::Process(None), &info).map(|()| 0);
        }
        PidSelector::One(tid) => {
            return send_by_number(task, tid, &info);
        }
        // Everybody else.
        PidSelector::All => process_table::processes_where(|pid, entry| {
            pid != Pid::INIT && pid != own && entry.exit_status.is_none()
        }),
        PidSelector::OwnGroup => {
            let group = process_table::relations(own).group;
            process_table::processes_where(|_, entry| entry.group == group)
        }
        PidSelector::Group(group) => {
            process_table::processes_where(|_, entry| entry.group == group)
        }
    };
    let mut result = Err(Errno::ESRCH);
    for process in receivers {
        match send_from(task, &process, SignalTarget::Process(None), &info) {
            Ok(()) => result = Ok(0),
            Err(e) if result.is_err() => result = Err(e),
            Err(_) => {}
        }
    }
    result
}

fn to_thread(task: &Task, process: Option<Pid>, tid: Tid, info: SigInfo) -> SysResult {
    if !tid.is_valid() || process.is_some_and(|pid| !pid.is_valid()) {
        return Err(Errno::EINVAL);
    }
    let other = if tid == task.tid() {
        None
    } else {
        process_table::find_task(tid)
    };
    if other.is_none() && tid != task.tid() {
        // One that has ended and was not waited for can be sent to, and does not hear it.
        let ended = process_table::find(tid.led_process())
            .filter(|_| process.is_none_or(|pid| pid == tid.led_process()))
            .ok_or(Errno::ESRCH)?;
        return send_from(task, &ended, SignalTarget::Process(None), &info).map(|()| 0);
    }
    let target = other.as_deref().unwrap_or(task);
    if process.is_some_and(|pid| pid != target.pid()) {
        return Err(Errno::ESRCH);
    }
    send_from(task, target.process(), SignalTarget::Thread(target), &info).map(|()| 0)
}

/// Sends to the process that a descriptor means: `pidfd_send_signal(2)`.
pub(crate) fn send_by_descriptor(
    task: &Task,
    process: &Arc<Process>,
    signal: i32,
    info: UserPtr<SigInfo>,
) -> SysResult {
    let info = if info.is_null() {
        info_of(task, signal, sys::SI_USER as i32)
    } else {
        let info = read_siginfo(info, None)?;
        if info.signo != signal {
            return Err(Errno::EINVAL);
        }
        claim(task, process.pid().leader(), info)?
    };
    if process_table::find(process.pid()).is_none_or(|found| !Arc::ptr_eq(&found, process)) {
        return Err(Errno::ESRCH);
    }
    send_from(task, process, SignalTarget::Process(None), &info).map(|()| 0)
}

/// `tgkill(2)`: sends a signal to a thread of a process.
pub fn sys_tgkill(task: &Task, pid: Pid, tid: Tid, signal: i32) -> SysResult {
    to_thread(task, Some(pid), tid, info_of(task, signal, sys::SI_TKILL))
}

/// `tkill(2)`: sends a signal to a thread.
pub fn sys_tkill(task: &Task, tid: Tid, signal: i32) -> SysResult {
    to_thread(task, None, tid, info_of(task, signal, sys::SI_TKILL))
}

/// Checks what the caller claims about a signal's origin; `to` is the number that it names: only a
/// thread's own may seem to be the kernel's.
fn claim(task: &Task, to: Tid, info: SigInfo) -> Result<SigInfo, Errno> {
    let from_kernel = info.code >= 0 || info.code == sys::SI_TKILL;
    if from_kernel && to != task.tid() {
        Err(Errno::EPERM)
    } else {
        Ok(info)
    }
}

/// `rt_sigqueueinfo(2)`: sends a signal with information to a process.
pub fn sys_rt_sigqueueinfo(
    task: &Task,
    pid: Tid,
    signal: i32,
    info: UserPtr<SigInfo>,
) -> SysResult {
    let info = claim(task, pid, read_siginfo(info, Some(signal))?)?;
    send_by_number(task, pid, &info)
}

/// `rt_tgsigqueueinfo(2)`: sends a signal with information to a thread.
pub fn sys_rt_tgsigqueueinfo(
    task: &Task,
    pid: Pid,
    tid: Tid,
    signal: i32,
    info: UserPtr<SigInfo>,
) -> SysResult {
    let info = read_siginfo(info, Some(signal))?;
    if !pid.is_valid() || !tid.is_valid() {
        return Err(Errno::EINVAL);
    }
    let info = claim(task, tid, info)?;
    to_thread(task, Some(pid), tid, info)
}

/// Reads the `siginfo_t` that a program passes, for the signal `signo` or else the one that it
/// names. Of what has a known form only the beginning is looked at.
///
/// # Errors
/// `EFAULT`; `E2BIG` if there is more in it than is known.
pub(crate) fn read_siginfo(from: UserPtr<SigInfo>, signo: Option<i32>) -> Result<SigInfo, Errno> {
    const KNOWN: usize = 48;
    let mut info = SigInfo::kernel(0);
    uaccess::read_bytes(from.addr(), &mut info.as_mut_bytes()[..KNOWN])?;
    info.signo = signo.unwrap_or(info.signo);
    if !info.has_known_form() {
        let mut beyond = [0; size_of::<SigInfo>() - KNOWN];
        uaccess::read_bytes(from.addr().wrapping_add(KNOWN), &mut beyond)?;
        if beyond.iter().any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
    }
    Ok(info)
}
