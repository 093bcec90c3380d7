//! Numbers of processes and threads, groups and sessions.

use core::sync::atomic::Ordering;

use abi::errno::Errno;
use uapi::pid::{Pgid, Pid, Tid};

use crate::process::process_table::TABLE;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `getpid(2)`: the caller's process number.
pub fn sys_getpid(task: &Task) -> SysResult {
    Ok(task.pid().raw() as usize)
}

/// `gettid(2)`: the caller's thread number.
pub fn sys_gettid(task: &Task) -> SysResult {
    Ok(task.tid().raw() as usize)
}

/// `getppid(2)`: number of the parent, 0 if that is outside.
pub fn sys_getppid(task: &Task) -> SysResult {
    Ok(task.process().parent().raw() as usize)
}

/// `set_tid_address(2)`: sets the word that is cleared at the thread's end; returns its number.
pub fn sys_set_tid_address(task: &Task, addr: UserPtr<i32>) -> SysResult {
    task.clear_child_tid
        .store(addr.addr().raw(), Ordering::Relaxed);
    Ok(task.tid().raw() as usize)
}

/// `getpgid(2)`: process group of a process, the caller's for 0.
pub fn sys_getpgid(task: &Task, pid: Option<Tid>) -> SysResult {
    TABLE
        .lock()
        .entry_by_tid(pid.unwrap_or(task.pid().leader()))
        .map(|entry| entry.group.raw() as usize)
        .ok_or(Errno::ESRCH)
}

/// `getpgrp(2)`: the caller's process group.
pub fn sys_getpgrp(task: &Task) -> SysResult {
    sys_getpgid(task, None)
}

/// `getsid(2)`: session of a process, the caller's for 0.
pub fn sys_getsid(task: &Task, pid: Option<Tid>) -> SysResult {
    TABLE
        .lock()
        .entry_by_tid(pid.unwrap_or(task.pid().leader()))
        .map(|entry| entry.session.raw() as usize)
        .ok_or(Errno::ESRCH)
}

/// `setsid(2)`: makes a session and group of the caller; returns the session.
pub fn sys_setsid(task: &Task) -> SysResult {
    let pid = task.pid();
    let mut table = TABLE.lock();
    if table.group_exists(pid.own_group()) {
        return Err(Errno::EPERM);
    }
    let entry = table.entry_mut(pid).ok_or(Errno::ESRCH)?;
    (entry.group, entry.session) = (pid.own_group(), pid.own_session());
    Ok(pid.raw() as usize)
}

/// `setpgid(2)`: moves a process to a process group.
pub fn sys_setpgid(task: &Task, pid: Option<Pid>, group: Option<Pgid>) -> SysResult {
    let own = task.pid();
    let pid = pid.unwrap_or(own);
    let group = group.unwrap_or(pid.own_group());
    if !group.is_valid() {
        return Err(Errno::EINVAL);
    }
    let mut table = TABLE.lock();
    let session = table
        .entry(own)
        .map(|entry| entry.session)
        .ok_or(Errno::ESRCH)?;
    // Only whole processes have a group.
    let missing = || {
        if table.entry_by_tid(pid.leader()).is_some() {
            Errno::EINVAL
        } else {
            Errno::ESRCH
        }
    };
    let entry = table.entry(pid).ok_or_else(missing)?;
    if pid != own {
        if entry.parent() != own {
            return Err(Errno::ESRCH);
        }
        if entry.session != session {
            return Err(Errno::EPERM);
        }
        if entry.did_exec {
            return Err(Errno::EACCES);
        }
    }
    if entry.session == pid.own_session()
        || (group != pid.own_group() && table.session_of(group) != Some(session))
    {
        return Err(Errno::EPERM);
    }
    table.entry_mut(pid).ok_or(Errno::ESRCH)?.group = group;
    Ok(0)
}
