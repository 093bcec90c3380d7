//! Users and groups.

use alloc::vec;

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::state::credentials::{Credentials, Ids};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, current_task};

/// The most supplementary groups.
const MAX_GROUPS: usize = 65_536;

/// Whether files that the calling thread writes to keep their set-id bits (`CAP_FSETID`).
pub(crate) fn keeps_setid_bits() -> bool {
    current_task().is_some_and(|task| task.fs_cred().capable(sys::CAP_FSETID))
}

/// Whether the calling thread may have the blocks of a file system that are kept for the superuser
/// (`CAP_SYS_RESOURCE`); a thread of the kernel may.
pub(crate) fn may_use_reserved_blocks() -> bool {
    current_task().is_none_or(|task| task.fs_cred().capable(sys::CAP_SYS_RESOURCE))
}

fn change_user(task: &Task, change: impl FnOnce(Ids, bool) -> Result<Ids, Errno>) -> SysResult {
    let cred = task.cred();
    let user = change(cred.user, cred.capable(sys::CAP_SETUID))?;
    task.set_cred(cred.with_user(user));
    Ok(0)
}

fn change_group(task: &Task, change: impl FnOnce(Ids, bool) -> Result<Ids, Errno>) -> SysResult {
    let cred = task.cred();
    let group = change(cred.group, cred.capable(sys::CAP_SETGID))?;
    task.set_cred(Credentials {
        group,
        ..(*cred).clone()
    });
    Ok(0)
}

/// `getuid(2)`: the caller's real user id.
pub fn sys_getuid(task: &Task) -> SysResult {
    Ok(task.cred().user.real as usize)
}

/// `geteuid(2)`: the caller's effective user id.
pub fn sys_geteuid(task: &Task) -> SysResult {
    Ok(task.cred().user.effective as usize)
}

/// `getgid(2)`: the caller's real group id.
pub fn sys_getgid(task: &Task) -> SysResult {
    Ok(task.cred().group.real as usize)
}

/// `getegid(2)`: the caller's effective group id.
pub fn sys_getegid(task: &Task) -> SysResult {
    Ok(task.cred().group.effective as usize)
}

/// `setuid(2)`: sets the effective user id; with `CAP_SETUID` all of them.
pub fn sys_setuid(task: &Task, id: u32) -> SysResult {
    change_user(task, |ids, privileged| ids.setuid(privileged, id))
}

/// `setgid(2)`: sets the effective group id; with `CAP_SETGID` all of them.
pub fn sys_setgid(task: &Task, id: u32) -> SysResult {
    change_group(task, |ids, privileged| ids.setuid(privileged, id))
}

/// `setreuid(2)`: sets real and effective user id.
pub fn sys_setreuid(task: &Task, real: u32, effective: u32) -> SysResult {
    change_user(task, |ids, privileged| {
        ids.setreuid(privileged, real, effective)
    })
}

/// `setregid(2)`: sets real and effective group id.
pub fn sys_setregid(task: &Task, real: u32, effective: u32) -> SysResult {
    change_group(task, |ids, privileged| {
        ids.setreuid(privileged, real, effective)
    })
}

/// `setresuid(2)`: sets real, effective and saved user id.
pub fn sys_setresuid(task: &Task, real: u32, effective: u32, saved: u32) -> SysResult {
    change_user(task, |ids, privileged| {
        ids.setresuid(privileged, real, effective, saved)
    })
}

/// `setresgid(2)`: sets real, effective and saved group id.
pub fn sys_setresgid(task: &Task, real: u32, effective: u32, saved: u32) -> SysResult {
    change_group(task, |ids, privileged| {
        ids.setresuid(privileged, real, effective, saved)
    })
}

fn store_three(
    ids: Ids,
    real: UserPtr<u32>,
    effective: UserPtr<u32>,
    saved: UserPtr<u32>,
) -> SysResult {
    real.write(&ids.real)?;
    effective.write(&ids.effective)?;
    saved.write(&ids.saved)?;
    Ok(0)
}

/// `getresuid(2)`: stores real, effective and saved user id.
pub fn sys_getresuid(
    task: &Task,
    real: UserPtr<u32>,
    effective: UserPtr<u32>,
    saved: UserPtr<u32>,
) -> SysResult {
    store_three(task.cred().user, real, effective, saved)
}

/// `getresgid(2)`: stores real, effective and saved group id.
pub fn sys_getresgid(
    task: &Task,
    real: UserPtr<u32>,
    effective: UserPtr<u32>,
    saved: UserPtr<u32>,
) -> SysResult {
    store_three(task.cred().group, real, effective, saved)
}

/// `setfsuid(2)`: returns the old id, whether or not it changed.
pub fn sys_setfsuid(task: &Task, id: u32) -> SysResult {
    let cred = task.cred();
    let old = cred.user;
    if id != u32::MAX && (old.has(id) || old.fs == id || cred.capable(sys::CAP_SETUID)) {
        task.set_cred(cred.with_file_user(id));
    }
    Ok(old.fs as usize)
}

/// `setfsgid(2)`: sets the group id for the file system; returns the one before.
pub fn sys_setfsgid(task: &Task, id: u32) -> SysResult {
    let cred = task.cred();
    let old = cred.group;
    if id != u32::MAX && (old.has(id) || old.fs == id || cred.capable(sys::CAP_SETGID)) {
        task.set_cred(Credentials {
            group: Ids { fs: id, ..old },
            ..(*cred).clone()
        });
    }
    Ok(old.fs as usize)
}

/// `getgroups(2)`: stores the supplementary groups; returns their number.
pub fn sys_getgroups(task: &Task, size: i32, list: UserPtr<u32>) -> SysResult {
    let groups = task.cred().groups.clone();
    let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    if size != 0 {
        if size < groups.len() {
            return Err(Errno::EINVAL);
        }
        for (i, group) in groups.iter().enumerate() {
            list.add(i).write(group)?;
        }
    }
    Ok(groups.len())
}

/// `setgroups(2)`: sets the supplementary groups.
pub fn sys_setgroups(task: &Task, size: usize, list: UserPtr<u32>) -> SysResult {
    let cred = task.cred();
    if !cred.capable(sys::CAP_SETGID) {
        return Err(Errno::EPERM);
    }
    if size > MAX_GROUPS {
        return Err(Errno::EINVAL);
    }
    let mut groups = vec![0; size];
    for (i, group) in groups.iter_mut().enumerate() {
        *group = list.add(i).read()?;
        // It means no group.
        if *group == u32::MAX {
            return Err(Errno::EINVAL);
        }
    }
    groups.sort_unstable();
    task.set_cred(Credentials {
        groups: groups.into(),
        ..(*cred).clone()
    });
    Ok(0)
}
