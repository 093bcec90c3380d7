//! Limits of what a process may use: `getrlimit(2)`, `setrlimit(2)`, `prlimit64(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::Tid;

use crate::process::process_table;
use crate::process::rlimit::apply_memory_limits;
use crate::state::fdtable::NR_OPEN;
use crate::state::rlimit::{Resource, Rlimit};
use crate::time::posix_timers;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `prlimit64(2)`: sets and stores a resource limit of a process.
pub fn sys_prlimit64(
    task: &Task,
    pid: Option<Tid>,
    resource: u32,
    new: UserPtr<Rlimit>,
    old: UserPtr<Rlimit>,
) -> SysResult {
    let new = new.read_optional()?;
    let process = match pid {
        None => task.process().clone(),
        Some(tid) => process_table::find_by_tid(tid)?,
    };
    let cred = task.cred();
    if !Arc::ptr_eq(&process, task.process()) && !cred.may_limit(&process.credentials()) {
        return Err(Errno::EPERM);
    }
    let resource = Resource::new(resource)?;
    let mut limits = *process.limits.lock();
    let before = limits[resource];
    if let Some(limit) = new {
        let Rlimit { soft, hard } = limit;
        let most = NR_OPEN.load(Ordering::Relaxed) as u64;
        if soft > hard || (resource == Resource::OpenFiles && hard > most) {
            return Err(if soft > hard {
                Errno::EINVAL
            } else {
                Errno::EPERM
            });
        }
        if hard > before.hard && !cred.capable(sys::CAP_SYS_RESOURCE) {
            return Err(Errno::EPERM);
        }
        limits[resource] = limit;
        *process.limits.lock() = limits;
        if resource == Resource::OpenFiles
            && let Some(files) = process.files()
        {
            files.set_limit(limit.soft_size());
        }
        if resource == Resource::FileSize {
            process.file_size_limit.store(soft, Ordering::Relaxed);
        }
        if resource == Resource::Cpu {
            posix_timers::update_rlimit_cpu(&process);
        }
        if let Some(space) = process.space() {
            apply_memory_limits(&limits, &space);
        }
    }
    old.write_optional(&before)?;
    Ok(0)
}

/// `getrlimit(2)`: stores a resource limit of the caller.
pub fn sys_getrlimit(task: &Task, resource: u32, to: UserPtr<Rlimit>) -> SysResult {
    let limits = *task.process().limits.lock();
    to.write(&limits[Resource::new(resource)?])?;
    Ok(0)
}

/// `setrlimit(2)`: sets a resource limit of the caller.
pub fn sys_setrlimit(task: &Task, resource: u32, new: UserPtr<Rlimit>) -> SysResult {
    new.read()?;
    sys_prlimit64(task, None, resource, new, UserPtr::NULL)
}
