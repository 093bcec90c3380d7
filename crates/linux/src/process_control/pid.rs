//! Numbers of processes and threads, groups and sessions.

use core::sync::atomic::Ordering;

use abi::errno::Errno;

use crate::process::process_table::TABLE;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `getpid(2)`
pub fn sys_getpid(task: &Task) -> SysResult {
    Ok(task.pid() as usize)
}

/// `gettid(2)`
pub fn sys_gettid(task: &Task) -> SysResult {
    Ok(task.tid() as usize)
}

/// `getppid(2)`
pub fn sys_getppid(task: &Task) -> SysResult {
    Ok(task.process().parent.load(Ordering::Relaxed) as usize)
}

/// `set_tid_address(2)`
pub fn sys_set_tid_address(task: &Task, addr: UserPtr<i32>) -> SysResult {
    task.clear_tid.store(addr.addr(), Ordering::Relaxed);
    Ok(task.tid() as usize)
}

/// `getpgid(2)`
pub fn sys_getpgid(task: &Task, pid: i32) -> SysResult {
    let pid = if pid == 0 { task.pid() } else { pid };
    TABLE
        .lock()
        .node_of_any(pid)
        .map(|node| node.group as usize)
        .ok_or(Errno::ESRCH)
}

/// `getpgrp(2)`
pub fn sys_getpgrp(task: &Task) -> SysResult {
    sys_getpgid(task, 0)
}

/// `getsid(2)`
pub fn sys_getsid(task: &Task, pid: i32) -> SysResult {
    let pid = if pid == 0 { task.pid() } else { pid };
    TABLE
        .lock()
        .node_of_any(pid)
        .map(|node| node.session as usize)
        .ok_or(Errno::ESRCH)
}

/// `setsid(2)`
pub fn sys_setsid(task: &Task) -> SysResult {
    let pid = task.pid();
    let mut table = TABLE.lock();
    if table.group_exists(pid) {
        return Err(Errno::EPERM);
    }
    let node = table.node_mut(pid).ok_or(Errno::ESRCH)?;
    (node.group, node.session) = (pid, pid);
    Ok(pid as usize)
}

/// `setpgid(2)`
pub fn sys_setpgid(task: &Task, pid: i32, group: i32) -> SysResult {
    let own = task.pid();
    let pid = if pid == 0 { own } else { pid };
    let group = if group == 0 { pid } else { group };
    if group < 0 {
        return Err(Errno::EINVAL);
    }
    let mut table = TABLE.lock();
    let session = table
        .node(own)
        .map(|node| node.session)
        .ok_or(Errno::ESRCH)?;
    // Only whole processes have a group.
    let missing = || {
        if table.node_of_any(pid).is_some() {
            Errno::EINVAL
        } else {
            Errno::ESRCH
        }
    };
    let node = table.node(pid).ok_or_else(missing)?;
    if pid != own {
        if node.parent() != own {
            return Err(Errno::ESRCH);
        }
        if node.session != session {
            return Err(Errno::EPERM);
        }
        if node.has_run_exec {
            return Err(Errno::EACCES);
        }
    }
    if node.session == pid || (group != pid && table.session_of(group) != Some(session)) {
        return Err(Errno::EPERM);
    }
    table.node_mut(pid).ok_or(Errno::ESRCH)?.group = group;
    Ok(0)
}
