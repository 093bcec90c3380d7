//! System V shared memory: `shmget(2)`, `shmat(2)`, `shmdt(2)`, `shmctl(2)`.
//!
//! A segment is an object that areas map. It lives in the table until it is removed (`IPC_RMID`),
//! and then as long as it is mapped anywhere; how often that is, the areas themselves say.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::errno::Errno;
use fallible::Text;
use task::Mutex;
use uapi::user_addr::UserAddr;
use vm::{
    MapRequest, Object, PAGE_SIZE, Placement, Prot, ReverseMap, SharedWrites, ShmemObject,
    VmaFlags, page_align_up,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::mm::mmap;
use crate::process::namespaces;
use crate::state::ipc::shm::{Entry, SHM_DEST, Segment, ShmidDs, with_key};
use crate::state::ipc::{
    IPC_CREAT, IPC_EXCL, IPC_INFO, IPC_PRIVATE, IPC_RMID, IPC_SET, IPC_STAT, IpcPerm, READ, WRITE,
    now,
};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

const SHM_HUGETLB: u32 = 0o4000;
const SHM_RDONLY: u32 = 0o10_000;
const SHM_RND: u32 = 0o20_000;
const SHM_REMAP: u32 = 0o40_000;
const SHM_EXEC: u32 = 0o100_000;
const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;
/// Mark in the mode that `IPC_STAT` shows: locked.
const SHM_LOCKED: u32 = 0o2000;
/// Why there is no segment of large pages, of which none are reserved: to whom locking so much
/// memory is not allowed is told that first.
fn no_huge_pages(task: &Task, size: usize, flags: u32) -> Errno {
    let reason = mmap::no_reserved_pages(flags);
    let allowed = || size <= mmap::lock_limit(task);
    if reason == Errno::ENOMEM && !allowed() {
        Errno::EPERM
    } else {
        reason
    }
}

/// A thread as [`Segment::creator`] has it.
fn creator(task: &Task) -> usize {
    core::ptr::from_ref(task).addr()
}

/// Leaves the segments that a thread has made to others: it ends, or leaves their namespace.
pub(crate) fn exit_shm(task: &Task) {
    if task.has_made_segments.swap(false, Ordering::Relaxed) {
        task.ipc().segments.creator_exits(creator(task));
    }
}

/// `shmget(2)`: finds or makes a segment; returns its identifier.
pub fn sys_shmget(task: &Task, key: i32, size: usize, flags: u32) -> SysResult {
    let cred = task.cred();
    let ipc = task.ipc();
    let mut table = ipc.segments.live();
    if key != IPC_PRIVATE
        && let Some((id, segment)) = with_key(&table, key)
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
    if size == 0 || size > ipc.limits.segment.size() || page_align_up(size).is_none() {
        return Err(Errno::EINVAL);
    }
    if flags & SHM_HUGETLB != 0 {
        return Err(no_huge_pages(task, size, flags));
    }
    if table.len() >= ipc.limits.segments.size() || !fs::charge::has_room(PAGE_SIZE) {
        return Err(Errno::ENOSPC);
    }
    let present: u64 = table
        .iter()
        .filter_map(|(_, entry)| Some(entry.segment()?.pages()))
        .sum();
    if present + size.div_ceil(PAGE_SIZE) as u64 > ipc.limits.segment_pages.get() {
        return Err(Errno::ENOSPC);
    }
    mmap::check_commit(size)?;
    let info = ShmidDs {
        owner: IpcPerm::new(key, flags, &cred),
        size: size as u64,
        changed: now(),
        creator: task.pid().raw(),
        attached: 0,
        detached: 0,
        last: 0,
        attachments: 0,
        unused: [0; 2],
    };
    task.has_made_segments.store(true, Ordering::Relaxed);
    let (memory, mappings, info) = (
        ShmemObject::default(),
        ReverseMap::default(),
        Mutex::new(info),
    );
    Ok(table.insert(Entry::There(Arc::new(Segment {
        _counted: census::Segment::default(),
        key,
        size,
        memory,
        mappings,
        info,
        creator: AtomicUsize::new(creator(task)),
    }))) as usize)
}

/// `shmat(2)`: maps a segment; returns its address.
pub fn sys_shmat(task: &Task, id: i32, addr: UserAddr, flags: u32) -> SysResult {
    let segment = task.ipc().segments.find(id)?;
    let readonly = flags & SHM_RDONLY != 0;
    segment.check(&task.cred(), if readonly { READ } else { READ | WRITE })?;
    let at = if flags & SHM_RND != 0 {
        addr.page_align_down()
    } else {
        addr
    };
    let placement = match at.raw() {
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
    let object = Object::file(
        segment.clone(),
        SharedWrites::when(!readonly),
        name,
        0,
        id as u64,
    );
    let request = MapRequest {
        placement,
        len: segment.size,
        prot,
        flags: VmaFlags::SHARED,
        object: Some((object, 0)),
    };
    let at = task
        .process()
        .require_space()?
        .mmap(request)
        .map_err(|e| if e == Errno::EEXIST { Errno::EINVAL } else { e })?;
    {
        let mut info = segment.info.lock();
        (info.attached, info.last) = (now(), task.pid().raw());
    }
    task.ipc().segments.note_attached(id);
    Ok(at)
}

/// `shmdt(2)`: unmaps a segment.
pub fn sys_shmdt(task: &Task, addr: UserAddr) -> SysResult {
    let space = task.process().require_space()?;
    let segments = &task.ipc().segments;
    let segment = segments
        .mapped_at(&space, addr.raw())
        .ok_or(Errno::EINVAL)?;
    space.munmap(addr.raw(), segment.size)?;
    let mut info = segment.info.lock();
    (info.detached, info.last) = (now(), task.pid().raw());
    Ok(0)
}

/// Limits of shared memory as `IPC_INFO` stores them: `struct shminfo64`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ShmInfo64 {
    most: u64,
    least: u64,
    segments: u64,
    of_process: u64,
    pages: u64,
    unused: [u64; 4],
}

/// Use of shared memory, in pages, as `SHM_INFO` stores it: `struct shm_info`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ShmInfo {
    segments: i32,
    padding: u32,
    pages: u64,
    resident: u64,
    swapped: u64,
    attempts: u64,
    successes: u64,
}

/// Contents of `/proc/sysvipc/shm`, a line for each segment.
///
/// # Errors
/// `ENOMEM`: a user may make thousands of lines.
pub(crate) fn proc_text() -> Result<String, Errno> {
    let header = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime\
         \x20                  rss                  swap\n";
    let mut text = Text::default();
    text.write_str(header).map_err(|_| Errno::ENOMEM)?;
    for (id, segment) in namespaces::current().ipc.segments.all() {
        let ShmidDs {
            owner,
            size,
            attached,
            detached,
            changed,
            creator,
            last,
            attachments,
            ..
        } = segment.stat(id);
        let IpcPerm {
            key,
            uid,
            gid,
            creator_uid,
            creator_gid,
            mode,
            ..
        } = owner;
        let resident = segment.resident() * PAGE_SIZE as u64;
        writeln!(
            text,
            "{key:10} {id:10}  {mode:4o} {size:21} {creator:5} {last:5}  {attachments:5} {uid:5} {gid:5} {creator_uid:5} \
             {creator_gid:5} {attached:10} {detached:10} {changed:10} {resident:21} {:21}",
            0
        )
        .map_err(|_| Errno::ENOMEM)?;
    }
    Ok(text.into_string())
}

/// Commands of `shmctl(2)` that name no segment by its identifier.
fn shmctl_by_index(task: &Task, index: i32, command: u32, to: UserPtr<ShmidDs>) -> SysResult {
    match command {
        IPC_INFO => {
            let ipc = task.ipc();
            let segments = ipc.limits.segments.get();
            let limits = ShmInfo64 {
                most: ipc.limits.segment.get(),
                least: 1,
                segments,
                of_process: segments,
                pages: ipc.limits.segment_pages.get(),
                unused: [0; 4],
            };
            UserPtr::new(to.addr()).write(&limits)?;
        }
        SHM_INFO => {
            let all = task.ipc().segments.all();
            let usage = ShmInfo {
                segments: all.len() as i32,
                padding: 0,
                pages: all.iter().map(|(_, segment)| segment.pages()).sum(),
                resident: all.iter().map(|(_, segment)| segment.resident()).sum(),
                swapped: 0,
                attempts: 0,
                successes: 0,
            };
            UserPtr::new(to.addr()).write(&usage)?;
        }
        _ => {
            let (id, segment) = {
                let ipc = task.ipc();
                let table = ipc.segments.table.lock();
                let (id, entry) = table.by_index(index).ok_or(Errno::EINVAL)?;
                (id, entry.segment().ok_or(Errno::EINVAL)?)
            };
            if command == SHM_STAT {
                segment.check(&task.cred(), READ)?;
            }
            to.write(&segment.stat(id))?;
            return Ok(id as usize);
        }
    }
    Ok(task.ipc().segments.live().max_index())
}

/// `shmctl(2)`: reads, changes or removes a segment.
pub fn sys_shmctl(task: &Task, id: i32, command: u32, to: UserPtr<ShmidDs>) -> SysResult {
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    if matches!(command, IPC_INFO | SHM_INFO | SHM_STAT | SHM_STAT_ANY) {
        return shmctl_by_index(task, id, command, to);
    }
    // As Linux: what is to be set is read before the segment is looked for.
    let new = (command == IPC_SET).then(|| to.read()).transpose()?;
    let segment = task.ipc().segments.find(id)?;
    let cred = task.cred();
    let owns = || segment.info.lock().owner.check_owner(&cred);
    match command {
        IPC_STAT => {
            segment.check(&cred, READ)?;
            to.write(&segment.stat(id))?;
        }
        IPC_SET => {
            owns()?;
            let mut info = segment.info.lock();
            if let Some(new) = new {
                info.owner.set(&new.owner)?;
            }
            info.changed = now();
        }
        IPC_RMID => {
            owns()?;
            {
                // Nobody finds it by its key any more.
                let owner = &mut segment.info.lock().owner;
                owner.mode |= SHM_DEST;
                owner.key = IPC_PRIVATE;
            }
            let ipc = task.ipc();
            if let Some(entry) = ipc.segments.table.lock().get_mut(id) {
                *entry = Entry::Removed(Arc::downgrade(&segment));
            }
        }
        // Nothing is ever swapped.
        SHM_LOCK | SHM_UNLOCK => {
            let limit = mmap::lock_limit(task);
            if !cred.capable(linux_raw_sys::general::CAP_IPC_LOCK) {
                segment.info.lock().owner.check_created(&cred)?;
                if command == SHM_LOCK && limit == 0 {
                    return Err(Errno::EPERM);
                }
            }
            if command == SHM_LOCK && segment.size.div_ceil(PAGE_SIZE) > limit / PAGE_SIZE {
                return Err(Errno::ENOMEM);
            }
            let mut info = segment.info.lock();
            info.owner.mode =
                info.owner.mode & !SHM_LOCKED | if command == SHM_LOCK { SHM_LOCKED } else { 0 };
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
