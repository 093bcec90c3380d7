//! System V shared memory: `shmget(2)`, `shmat(2)`, `shmdt(2)`, `shmctl(2)`.
//!
//! A segment is an object that areas map. It lives in the table until it is removed (`IPC_RMID`), and then as long as it is mapped
//! anywhere; how often that is, the areas themselves say.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use core::ops::Range;

use abi::errno::Errno;
use task::Mutex;
use vm::{AreaFlags, Backing, Mapping, Mappings, Object, PAGE_SIZE, Page, Placement, Prot, SharedMemory, page_up};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::cred::Credentials;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

const IPC_PRIVATE: i32 = 0;
const IPC_CREAT: u32 = 0o1000;
const IPC_EXCL: u32 = 0o2000;
const IPC_RMID: u32 = 0;
const IPC_SET: u32 = 1;
const IPC_STAT: u32 = 2;
const SHM_HUGETLB: u32 = 0o4000;
const SHM_RDONLY: u32 = 0o10_000;
const SHM_RND: u32 = 0o20_000;
const SHM_REMAP: u32 = 0o40_000;
const SHM_EXEC: u32 = 0o100_000;
const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
/// Marks in the mode that `IPC_STAT` shows: to be removed, locked.
const SHM_DEST: u32 = 0o1000;
const SHM_LOCKED: u32 = 0o2000;
/// Most segments there are (Linux' `SHMMNI`).
const MAX_SEGMENTS: usize = 4096;
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;

/// Linux' `struct shmid64_ds` with its `struct ipc64_perm`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentInfo {
    key: i32,
    uid: u32,
    gid: u32,
    creator_uid: u32,
    creator_gid: u32,
    mode: u32,
    sequence: u16,
    pad: [u16; 3],
    unused: [u64; 2],
    size: u64,
    attached: i64,
    detached: i64,
    changed: i64,
    creator: i32,
    last: i32,
    attachments: u64,
    unused_too: [u64; 2],
}

struct Segment {
    key: i32,
    size: usize,
    memory: SharedMemory,
    mappings: Mappings,
    info: Mutex<SegmentInfo>,
}

impl Backing for Segment {
    fn page(&self, index: u64) -> Result<Page, Errno> {
        if index < self.size.div_ceil(PAGE_SIZE) as u64 { self.memory.page(index) } else { Err(Errno::EFAULT) }
    }

    fn cached(&self, index: u64) -> Option<Page> {
        self.memory.cached(index)
    }

    fn each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        self.memory.each_cached(range, each);
    }

    fn mappings(&self) -> Option<&Mappings> {
        Some(&self.mappings)
    }
}

impl Segment {
    /// Whether somebody may do what `wanted` (`READ`, `WRITE`) says.
    fn check(&self, cred: &Credentials, wanted: u32) -> Result<(), Errno> {
        let info = self.info.lock();
        let (user, group) = (cred.user.effective, cred.group.effective);
        let member = |gid: u32| gid == group || cred.groups.contains(&gid);
        let allowed = if user == info.uid || user == info.creator_uid {
            info.mode >> 6
        } else if member(info.gid) || member(info.creator_gid) {
            info.mode >> 3
        } else {
            info.mode
        };
        if allowed & wanted == wanted || cred.capable(linux_raw_sys::general::CAP_IPC_OWNER) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    fn attachments(&self) -> usize {
        self.mappings.count(|_, _| true)
    }
}

enum Entry {
    There(Arc<Segment>),
    /// Removed; it is there as long as it is mapped.
    Removed(Weak<Segment>),
}

/// All segments by number.
#[derive(Default)]
struct Table {
    next: i32,
    entries: BTreeMap<i32, Entry>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { next: 0, entries: BTreeMap::new() });

impl Table {
    fn find(&self, id: i32) -> Result<Arc<Segment>, Errno> {
        match self.entries.get(&id) {
            Some(Entry::There(segment)) => Ok(segment.clone()),
            Some(Entry::Removed(segment)) => segment.upgrade().ok_or(Errno::EINVAL),
            None => Err(Errno::EINVAL),
        }
    }

    fn with_key(&self, key: i32) -> Option<(i32, Arc<Segment>)> {
        self.entries.iter().find_map(|(&id, entry)| match entry {
            Entry::There(segment) if segment.key == key => Some((id, segment.clone())),
            _ => None,
        })
    }

    fn forget_dead(&mut self) {
        self.entries.retain(|_, entry| !matches!(entry, Entry::Removed(segment) if segment.strong_count() == 0));
    }
}

fn find(id: i32) -> Result<Arc<Segment>, Errno> {
    TABLE.lock().find(id)
}

fn now() -> i64 {
    fs::Timestamp::now().sec
}

/// `shmget(2)`
pub fn sys_shmget(task: &Task, key: i32, size: usize, flags: u32) -> SysResult {
    let cred = task.cred();
    let mut table = TABLE.lock();
    table.forget_dead();
    if key != IPC_PRIVATE
        && let Some((id, segment)) = table.with_key(key)
    {
        if flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL {
            return Err(Errno::EEXIST);
        }
        if size > segment.size {
            return Err(Errno::EINVAL);
        }
        segment.check(&cred, (flags >> 6 | flags >> 3 | flags) & (READ | WRITE))?;
        return Ok(id as usize);
    }
    if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
        return Err(Errno::ENOENT);
    }
    if size == 0 || page_up(size).is_none() {
        return Err(Errno::EINVAL);
    }
    if flags & SHM_HUGETLB != 0 {
        return Err(Errno::ENOMEM);
    }
    if table.entries.len() >= MAX_SEGMENTS {
        return Err(Errno::ENOSPC);
    }
    let (uid, gid) = (cred.user.effective, cred.group.effective);
    let id = table.next;
    table.next = table.next.checked_add(1).unwrap_or(0);
    let info = SegmentInfo {
        key,
        uid,
        gid,
        creator_uid: uid,
        creator_gid: gid,
        mode: flags & 0o777,
        size: size as u64,
        changed: now(),
        creator: task.process().pid(),
        ..SegmentInfo::new_zeroed()
    };
    let (memory, mappings, info) = (SharedMemory::default(), Mappings::default(), Mutex::new(info));
    table.entries.insert(id, Entry::There(Arc::new(Segment { key, size, memory, mappings, info })));
    Ok(id as usize)
}

/// `shmat(2)`
pub fn sys_shmat(task: &Task, id: i32, addr: usize, flags: u32) -> SysResult {
    let segment = find(id)?;
    let readonly = flags & SHM_RDONLY != 0;
    segment.check(&task.cred(), if readonly { READ } else { READ | WRITE })?;
    let at = if flags & SHM_RND != 0 { vm::page_down(addr) } else { addr };
    let place = match at {
        0 if flags & SHM_REMAP != 0 => return Err(Errno::EINVAL),
        0 => Placement::Anywhere(0),
        at if !at.is_multiple_of(PAGE_SIZE) => return Err(Errno::EINVAL),
        at if flags & SHM_REMAP != 0 => Placement::Fixed(at),
        at => Placement::FixedIfFree(at),
    };
    let mut prot = Prot::READ;
    prot.set(Prot::WRITE, !readonly);
    prot.set(Prot::EXEC, flags & SHM_EXEC != 0);
    let name = format!("/SYSV{:08x} (deleted)", segment.key).into_bytes();
    let object = Object::file(segment.clone(), !readonly, name, 0, id as u64);
    let request = Mapping { place, len: segment.size, prot, flags: AreaFlags::SHARED, object: Some((object, 0)) };
    let at = task.process().memory()?.mmap(request).map_err(|e| if e == Errno::EEXIST { Errno::EINVAL } else { e })?;
    let mut info = segment.info.lock();
    (info.attached, info.last) = (now(), task.process().pid());
    Ok(at)
}

/// `shmdt(2)`
pub fn sys_shmdt(task: &Task, addr: usize) -> SysResult {
    let space = task.process().memory()?;
    let backing = space.backing_at(addr).ok_or(Errno::EINVAL)?;
    let known = |segment: &Arc<Segment>| core::ptr::addr_eq(Arc::as_ptr(segment), Arc::as_ptr(&backing));
    let segment = {
        let table = TABLE.lock();
        table.entries.keys().filter_map(|&id| table.find(id).ok()).find(known).ok_or(Errno::EINVAL)?
    };
    space.munmap(addr, segment.size)?;
    let mut info = segment.info.lock();
    (info.detached, info.last) = (now(), task.process().pid());
    Ok(0)
}

/// `shmctl(2)`; without the calls that list all segments.
pub fn sys_shmctl(task: &Task, id: i32, command: u32, to: UserPtr<SegmentInfo>) -> SysResult {
    let segment = find(id)?;
    let cred = task.cred();
    let owns = || {
        let info = segment.info.lock();
        let user = cred.user.effective;
        if user == info.uid || user == info.creator_uid || cred.privileged() { Ok(()) } else { Err(Errno::EPERM) }
    };
    match command {
        IPC_STAT => {
            segment.check(&cred, READ)?;
            let mut info = *segment.info.lock();
            info.attachments = segment.attachments() as u64;
            to.write(&info)?;
        }
        IPC_SET => {
            owns()?;
            let new = to.read()?;
            let mut info = segment.info.lock();
            (info.uid, info.gid, info.changed) = (new.uid, new.gid, now());
            info.mode = info.mode & !0o777 | new.mode & 0o777;
        }
        IPC_RMID => {
            owns()?;
            segment.info.lock().mode |= SHM_DEST;
            TABLE.lock().entries.insert(id, Entry::Removed(Arc::downgrade(&segment)));
        }
        // Nothing is ever swapped.
        SHM_LOCK | SHM_UNLOCK => {
            owns()?;
            let mut info = segment.info.lock();
            info.mode = info.mode & !SHM_LOCKED | if command == SHM_LOCK { SHM_LOCKED } else { 0 };
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
