//! Users and groups.

use alloc::sync::Arc;
use alloc::vec;

use abi::errno::Errno;
use fs::Cred;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// All capabilities there are (`CAP_LAST_CAP` is 40).
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;
/// The most supplementary groups.
const MAX_GROUPS: usize = 65_536;

/// Real, effective and saved id, and the one the file system sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ids {
    /// Who started it.
    pub real: u32,
    /// Who it acts as.
    pub effective: u32,
    /// Who it may become again.
    pub saved: u32,
    /// Who it is to files; follows `effective`.
    pub fs: u32,
}

impl Ids {
    fn has(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&id)
    }

    /// As an array, in the order of `/proc/<pid>/status`.
    #[must_use]
    pub fn list(&self) -> [u32; 4] {
        [self.real, self.effective, self.saved, self.fs]
    }
}

/// Who a task is. Capabilities follow from the effective user: root has all, others none.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// User ids.
    pub user: Ids,
    /// Group ids.
    pub group: Ids,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

impl Credentials {
    /// The superuser.
    #[must_use]
    pub fn root() -> Self {
        Self { user: Ids::default(), group: Ids::default(), groups: Arc::from([]) }
    }

    /// Whether it has the superuser's powers.
    #[must_use]
    pub fn privileged(&self) -> bool {
        self.user.effective == 0
    }

    /// For checks of permission on files.
    #[must_use]
    pub fn for_files(&self) -> Cred {
        Cred { uid: self.user.fs, gid: self.group.fs, groups: self.groups.clone(), privileged: self.user.fs == 0 }
    }

    /// The same for the real user.
    #[must_use]
    pub fn for_access(&self) -> Cred {
        Cred { uid: self.user.real, gid: self.group.real, groups: self.groups.clone(), privileged: self.user.real == 0 }
    }

    /// Whether it may send signals to, and change things of, a process of `other`'s.
    #[must_use]
    pub fn may_control(&self, other: &Self) -> bool {
        let mine = [self.user.effective, self.user.real];
        self.privileged() || mine.contains(&other.user.real) || mine.contains(&other.user.saved)
    }

    /// Whether it may change how a thread of `other`'s is scheduled, other than by the superuser's powers.
    #[must_use]
    pub fn owns_schedule_of(&self, other: &Self) -> bool {
        [other.user.real, other.user.effective].contains(&self.user.effective)
    }
}

/// Ids that are `u32::MAX` in a call stay as they are.
fn given(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// `setuid(2)` of one kind of ids.
fn set_all(ids: Ids, privileged: bool, id: u32) -> Result<Ids, Errno> {
    if id == u32::MAX {
        return Err(Errno::EINVAL);
    }
    if privileged {
        return Ok(Ids { real: id, effective: id, saved: id, fs: id });
    }
    if id == ids.real || id == ids.saved { Ok(Ids { effective: id, fs: id, ..ids }) } else { Err(Errno::EPERM) }
}

/// `setreuid(2)`
fn set_two(ids: Ids, privileged: bool, real: u32, effective: u32) -> Result<Ids, Errno> {
    let (real, effective) = (given(real), given(effective));
    let real_allowed = real.is_none_or(|id| id == ids.real || id == ids.effective);
    let allowed = privileged || real_allowed && effective.is_none_or(|id| ids.has(id));
    if !allowed {
        return Err(Errno::EPERM);
    }
    let new_effective = effective.unwrap_or(ids.effective);
    let keeps_saved = real.is_none() && effective.is_none_or(|id| id == ids.real);
    let saved = if keeps_saved { ids.saved } else { new_effective };
    Ok(Ids { real: real.unwrap_or(ids.real), effective: new_effective, saved, fs: new_effective })
}

/// `setresuid(2)`
fn set_three(ids: Ids, privileged: bool, new: [u32; 3]) -> Result<Ids, Errno> {
    let [real, effective, saved] = new.map(given);
    if !privileged && ![real, effective, saved].into_iter().flatten().all(|id| ids.has(id)) {
        return Err(Errno::EPERM);
    }
    let effective = effective.unwrap_or(ids.effective);
    Ok(Ids { real: real.unwrap_or(ids.real), effective, saved: saved.unwrap_or(ids.saved), fs: effective })
}

fn change_user(task: &Task, change: impl FnOnce(Ids, bool) -> Result<Ids, Errno>) -> SysResult {
    let cred = task.cred();
    let user = change(cred.user, cred.privileged())?;
    task.set_cred(Credentials { user, ..(*cred).clone() });
    Ok(0)
}

fn change_group(task: &Task, change: impl FnOnce(Ids, bool) -> Result<Ids, Errno>) -> SysResult {
    let cred = task.cred();
    let group = change(cred.group, cred.privileged())?;
    task.set_cred(Credentials { group, ..(*cred).clone() });
    Ok(0)
}

/// `getuid(2)`
pub fn sys_getuid(task: &Task) -> SysResult {
    Ok(task.cred().user.real as usize)
}

/// `geteuid(2)`
pub fn sys_geteuid(task: &Task) -> SysResult {
    Ok(task.cred().user.effective as usize)
}

/// `getgid(2)`
pub fn sys_getgid(task: &Task) -> SysResult {
    Ok(task.cred().group.real as usize)
}

/// `getegid(2)`
pub fn sys_getegid(task: &Task) -> SysResult {
    Ok(task.cred().group.effective as usize)
}

/// `setuid(2)`
pub fn sys_setuid(task: &Task, id: u32) -> SysResult {
    change_user(task, |ids, privileged| set_all(ids, privileged, id))
}

/// `setgid(2)`
pub fn sys_setgid(task: &Task, id: u32) -> SysResult {
    change_group(task, |ids, privileged| set_all(ids, privileged, id))
}

/// `setreuid(2)`
pub fn sys_setreuid(task: &Task, real: u32, effective: u32) -> SysResult {
    change_user(task, |ids, privileged| set_two(ids, privileged, real, effective))
}

/// `setregid(2)`
pub fn sys_setregid(task: &Task, real: u32, effective: u32) -> SysResult {
    change_group(task, |ids, privileged| set_two(ids, privileged, real, effective))
}

/// `setresuid(2)`
pub fn sys_setresuid(task: &Task, real: u32, effective: u32, saved: u32) -> SysResult {
    change_user(task, |ids, privileged| set_three(ids, privileged, [real, effective, saved]))
}

/// `setresgid(2)`
pub fn sys_setresgid(task: &Task, real: u32, effective: u32, saved: u32) -> SysResult {
    change_group(task, |ids, privileged| set_three(ids, privileged, [real, effective, saved]))
}

fn store_three(ids: Ids, real: UserPtr<u32>, effective: UserPtr<u32>, saved: UserPtr<u32>) -> SysResult {
    real.write(&ids.real)?;
    effective.write(&ids.effective)?;
    saved.write(&ids.saved)?;
    Ok(0)
}

/// `getresuid(2)`
pub fn sys_getresuid(task: &Task, real: UserPtr<u32>, effective: UserPtr<u32>, saved: UserPtr<u32>) -> SysResult {
    store_three(task.cred().user, real, effective, saved)
}

/// `getresgid(2)`
pub fn sys_getresgid(task: &Task, real: UserPtr<u32>, effective: UserPtr<u32>, saved: UserPtr<u32>) -> SysResult {
    store_three(task.cred().group, real, effective, saved)
}

/// `setfsuid(2)`: returns the old id, whether or not it changed.
pub fn sys_setfsuid(task: &Task, id: u32) -> SysResult {
    let old = task.cred().user;
    if id != u32::MAX && (task.cred().privileged() || old.has(id) || old.fs == id) {
        change_user(task, |ids, _| Ok(Ids { fs: id, ..ids }))?;
    }
    Ok(old.fs as usize)
}

/// `setfsgid(2)`
pub fn sys_setfsgid(task: &Task, id: u32) -> SysResult {
    let old = task.cred().group;
    if id != u32::MAX && (task.cred().privileged() || old.has(id) || old.fs == id) {
        change_group(task, |ids, _| Ok(Ids { fs: id, ..ids }))?;
    }
    Ok(old.fs as usize)
}

/// `getgroups(2)`
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

/// `setgroups(2)`
pub fn sys_setgroups(task: &Task, size: usize, list: UserPtr<u32>) -> SysResult {
    let cred = task.cred();
    if !cred.privileged() {
        return Err(Errno::EPERM);
    }
    if size > MAX_GROUPS {
        return Err(Errno::EINVAL);
    }
    let mut groups = vec![0; size];
    for (i, group) in groups.iter_mut().enumerate() {
        *group = list.add(i).read()?;
    }
    task.set_cred(Credentials { groups: groups.into(), ..(*cred).clone() });
    Ok(0)
}

/// The header of `capget(2)`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CapHeader {
    version: u32,
    pid: i32,
}

/// `_LINUX_CAPABILITY_VERSION_3`
const CAP_VERSION: u32 = 0x2008_0522;

/// Effective, permitted, inheritable: the low words, then the high words.
pub type CapData = [u32; 6];

fn cap_header(ptr: UserPtr<CapHeader>) -> Result<CapHeader, Errno> {
    let mut header = ptr.read()?;
    if header.version != CAP_VERSION {
        header.version = CAP_VERSION;
        ptr.write(&header)?;
        return Err(Errno::EINVAL);
    }
    Ok(header)
}

/// `capget(2)`
pub fn sys_capget(task: &Task, header: UserPtr<CapHeader>, data: UserPtr<CapData>) -> SysResult {
    let header = cap_header(header)?;
    let privileged = if header.pid == 0 || header.pid == task.pid() {
        task.cred().privileged()
    } else {
        crate::process_table::find(header.pid).ok_or(Errno::ESRCH)?.credentials().privileged()
    };
    let all = if privileged { ALL_CAPABILITIES } else { 0 };
    let (low, high) = (all as u32, (all >> 32) as u32);
    data.write_optional(&[low, low, 0, high, high, 0])?;
    Ok(0)
}

/// `capset(2)`: giving capabilities up is accepted, and has no effect: they follow from the user id.
pub fn sys_capset(task: &Task, header: UserPtr<CapHeader>, data: UserPtr<CapData>) -> SysResult {
    let header = cap_header(header)?;
    if header.pid != 0 && header.pid != task.pid() {
        return Err(Errno::EPERM);
    }
    let data = data.read()?;
    let asked = u64::from(data[0] | data[1]) | u64::from(data[3] | data[4]) << 32;
    if !task.cred().privileged() && asked != 0 {
        return Err(Errno::EPERM);
    }
    Ok(0)
}
