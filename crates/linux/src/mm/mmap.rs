//! Memory: `mmap(2)` and its relatives.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use abi::errno::Errno;
use fs::attributes::FileAttributes;
use fs::{File, FileType};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;
use vm::{
    AccessKind, AddressSpace, Advice, DontNeedScope, MapRequest, Object, PAGE_SIZE, Placement,
    Prot, RemapOptions, SharedWrites, VmaFlags, page_align_up,
};

use crate::process::personality::{READ_IMPLIES_EXEC, has_personality_bit};
use crate::process::process_table;
use crate::state::rlimit::Resource;
use crate::{SysResult, Task, current_task, uaccess};

/// The `PROT_*` bits that have a meaning for memory, of those that were asked for.
fn protection(task: &Task, prot: u32) -> Prot {
    let mut prot = Prot::from_bits_truncate(prot);
    if prot.contains(Prot::READ) && has_personality_bit(task, READ_IMPLIES_EXEC) {
        prot |= Prot::EXEC;
    }
    prot
}

fn space(task: &Task) -> Result<Arc<AddressSpace>, Errno> {
    task.process().require_space()
}

/// The object of a mapping of a file, if the descriptor allows what is asked for.
fn file_object(file: &File, shared: bool, prot: Prot) -> Result<Arc<Object>, Errno> {
    let (readable, writable) = (file.flags().is_readable(), file.flags().is_writable());
    if !readable || (shared && prot.contains(Prot::WRITE) && !writable) {
        return Err(Errno::EACCES);
    }
    // Who may write now could ask for it later.
    if shared && writable {
        let attributes = file.inode().permissions().attributes;
        let refused = attributes.refuse(FileAttributes::APPEND);
        refused.map_err(|_| Errno::EACCES)?;
    }
    if file.inode().kind() == FileType::Directory {
        return Err(Errno::ENODEV);
    }
    let sealed = file.inode().seals() & (sys::F_SEAL_WRITE | sys::F_SEAL_FUTURE_WRITE) != 0;
    if sealed && shared && prot.contains(Prot::WRITE) {
        return Err(Errno::EPERM);
    }
    if prot.contains(Prot::EXEC) && file.path().mount().flags() & fs::mount::MS_NOEXEC != 0 {
        return Err(Errno::EPERM);
    }
    let meta = file.metadata();
    Ok(Object::file_with(
        file.backing()?,
        SharedWrites::when(writable && !sealed),
        file.path().to_bytes(None),
        (meta.dev, meta.ino),
        file.path().mount().clone(),
    ))
}

/// `/proc/sys/vm/overcommit_memory`: 0, a program may not ask at once for more than the machine
/// has; 1, for whatever it likes; 2, all programs together for no more than
/// [`strict_commit_limit`].
pub(crate) static OVERCOMMIT: AtomicU8 = AtomicU8::new(0);
/// `/proc/sys/vm/overcommit_ratio`: part of memory that programs may ask for in the strict mode, in
/// percent.
pub(crate) static OVERCOMMIT_RATIO: AtomicI32 = AtomicI32::new(50);
/// `/proc/sys/vm/overcommit_kbytes`: the same in KiB, if it is not 0; then the part is 0.
pub(crate) static OVERCOMMIT_KBYTES: AtomicU64 = AtomicU64::new(0);
/// `/proc/sys/vm/admin_reserve_kbytes`: memory that the strict mode keeps for the superuser, in
/// KiB.
pub(crate) static ADMIN_RESERVE_KBYTES: AtomicU64 = AtomicU64::new(8 << 10);

fn bytes(kbytes: u64) -> usize {
    usize::try_from(kbytes).map_or(usize::MAX, |kbytes| kbytes.saturating_mul(1024))
}

fn is_strict() -> bool {
    OVERCOMMIT.load(Ordering::Relaxed) == 2
}

/// Most memory that all programs together may ask for in the strict mode, in bytes
/// (`CommitLimit` of `/proc/meminfo`).
pub(crate) fn strict_commit_limit() -> usize {
    let kbytes = OVERCOMMIT_KBYTES.load(Ordering::Relaxed);
    if kbytes != 0 {
        return bytes(kbytes);
    }
    // Below 0 it is no limit, as a very high one on Linux.
    let Ok(ratio) = u64::try_from(OVERCOMMIT_RATIO.load(Ordering::Relaxed)) else {
        return usize::MAX;
    };
    let stats = guard::mem::stats();
    let own = stats.total - stats.granted - stats.leaked;
    let pages = (own / 100).saturating_mul(ratio);
    usize::try_from(pages).map_or(usize::MAX, |pages| pages.saturating_mul(PAGE_SIZE))
}

/// Memory that all programs have asked for, in bytes: what only one of them writes to, stacks, and
/// the pages of files in memory. Nobody counts on the way; all areas are looked at.
pub(crate) fn committed() -> usize {
    let mut spaces: Vec<_> = process_table::processes_where(|_, _| true)
        .iter()
        .filter_map(|process| process.space())
        .collect();
    spaces.sort_unstable_by_key(|space| space.id());
    spaces.dedup_by_key(|space| space.id());
    let private: usize = spaces
        .iter()
        .map(|space| {
            let stats = space.stats();
            stats.data + stats.stack
        })
        .sum();
    private + fs::ramfs::pages_in_files() as usize * PAGE_SIZE
}

/// Checks that a program may ask for `len` bytes of memory.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn check_commit(len: usize) -> Result<(), Errno> {
    if len > commit_limit() {
        Err(Errno::ENOMEM)
    } else {
        Ok(())
    }
}

/// Most memory that the calling program may ask for now, in bytes.
fn commit_limit() -> usize {
    match OVERCOMMIT.load(Ordering::Relaxed) {
        0 => usize::try_from(guard::mem::total_frames() + 1)
            .map_or(usize::MAX, |pages| pages.saturating_mul(PAGE_SIZE) - 1),
        1 => usize::MAX,
        _ => {
            let kept = match current_task() {
                Some(task) if !task.cred().has_sys_admin() => {
                    bytes(ADMIN_RESERVE_KBYTES.load(Ordering::Relaxed))
                }
                _ => 0,
            };
            strict_commit_limit()
                .saturating_sub(kept)
                .saturating_sub(committed())
        }
    }
}

/// Checks that a program may have a child with a copy of its memory.
///
/// # Errors
/// `ENOMEM` in the strict mode.
pub(crate) fn check_fork(space: &AddressSpace) -> Result<(), Errno> {
    if !is_strict() {
        return Ok(());
    }
    let stats = space.stats();
    check_commit(stats.data + stats.stack)
}

/// Why there is no page from the reserve of large ones, which is empty
/// (`/proc/sys/vm/nr_hugepages`): the sizes that the processor has are short, others there are not.
/// The size is where `MAP_HUGETLB`, `MFD_HUGETLB` and `SHM_HUGETLB` have it.
pub(crate) fn no_reserved_pages(flags: u32) -> Errno {
    let size = flags >> sys::MAP_HUGE_SHIFT & sys::MAP_HUGE_MASK;
    if matches!(size, 0 | 21 | 30) {
        Errno::ENOMEM
    } else {
        Errno::EINVAL
    }
}

/// Memory that may be lost, and that children do not see (Linux 6.11): where programs keep the
/// state of `__vdso_getrandom`.
const MAP_DROPPABLE: u32 = 8;

/// The flags that `MAP_SHARED_VALIDATE` takes: not `MAP_SYNC`, as no file is on memory that keeps
/// its content.
const VALIDATED: u32 = sys::MAP_TYPE & sys::MAP_SHARED_VALIDATE
    | sys::MAP_FIXED
    | sys::MAP_32BIT
    | MAP_ABOVE4G
    | sys::MAP_GROWSDOWN
    | sys::MAP_DENYWRITE
    | sys::MAP_EXECUTABLE
    | sys::MAP_LOCKED
    | sys::MAP_NORESERVE
    | sys::MAP_POPULATE
    | sys::MAP_NONBLOCK
    | sys::MAP_STACK
    | sys::MAP_HUGETLB
    | 31 << sys::MAP_HUGE_SHIFT;
/// For shadow stacks, which there are not.
const MAP_ABOVE4G: u32 = 0x80;

/// Whether memory is shared by these flags.
///
/// # Errors
/// `EINVAL` if they do not say it in a way that is for such a mapping; `EOPNOTSUPP`.
fn is_shared(flags: u32) -> Result<bool, Errno> {
    let anonymous = flags & sys::MAP_ANONYMOUS != 0;
    match flags & sys::MAP_TYPE {
        sys::MAP_SHARED => Ok(true),
        sys::MAP_SHARED_VALIDATE if anonymous => Err(Errno::EINVAL),
        sys::MAP_SHARED_VALIDATE if flags & !VALIDATED != 0 => Err(Errno::EOPNOTSUPP),
        sys::MAP_SHARED_VALIDATE => Ok(true),
        sys::MAP_PRIVATE => Ok(false),
        MAP_DROPPABLE
            if flags & (sys::MAP_ANONYMOUS | sys::MAP_LOCKED | sys::MAP_HUGETLB)
                == sys::MAP_ANONYMOUS =>
        {
            Ok(false)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `mmap(2)`. What is wrong is told in the order of Linux: the file, the place, locks, how it is
/// shared, what the file allows.
pub fn sys_mmap(
    task: &Task,
    addr: UserAddr,
    len: usize,
    prot: u32,
    flags: u32,
    fd: Fd,
    offset: u64,
) -> SysResult {
    fs::charge::check_memory()?;
    let anonymous = flags & sys::MAP_ANONYMOUS != 0;
    if !offset.is_multiple_of(PAGE_SIZE as u64) {
        return Err(Errno::EINVAL);
    }
    let file = if anonymous {
        None
    } else {
        Some(task.files().get_io(fd)?)
    };
    if flags & sys::MAP_HUGETLB != 0 {
        // No file system has pages of another size.
        return Err(if anonymous {
            no_reserved_pages(flags)
        } else {
            Errno::EINVAL
        });
    }
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    let rounded = page_align_up(len).ok_or(Errno::ENOMEM)?;
    let first = offset / PAGE_SIZE as u64;
    let place = if flags & sys::MAP_FIXED_NOREPLACE != 0 {
        Placement::FixedIfFree(addr.raw())
    } else if flags & sys::MAP_FIXED != 0 {
        Placement::Fixed(addr.raw())
    } else {
        Placement::Anywhere(addr.raw())
    };
    let space = space(task)?;
    space.check_placement(place, rounded)?;
    let lock = flags & sys::MAP_LOCKED != 0 || space.is_mlock_future();
    if flags & sys::MAP_LOCKED != 0 && lock_limit(task) == 0 {
        return Err(Errno::EPERM);
    }
    if lock && !space.can_mlock(rounded, lock_limit(task)) {
        return Err(Errno::EAGAIN);
    }
    // Files have a largest size, devices and pipes have not.
    let most = |kind| {
        if matches!(kind, FileType::Regular | FileType::Block) {
            i64::MAX as u64
        } else {
            u64::MAX
        }
    };
    let fits = |file: &Arc<File>| {
        offset
            .checked_add(rounded as u64)
            .is_some_and(|end| end <= most(file.inode().kind()))
    };
    if !file.as_ref().is_none_or(fits) {
        return Err(Errno::EOVERFLOW);
    }
    let shared = is_shared(flags)?;
    let prot = protection(task, prot);
    let object = match &file {
        Some(file) => {
            let object = file_object(file, shared, prot)?;
            if flags & sys::MAP_GROWSDOWN != 0 {
                return Err(Errno::EINVAL);
            }
            Some((object, first))
        }
        None if shared && flags & sys::MAP_GROWSDOWN != 0 => return Err(Errno::EINVAL),
        None => shared.then(|| (Object::anonymous(), 0)),
    };
    let private = !shared && prot.contains(Prot::WRITE);
    // In the strict mode everything counts that is nobody else's.
    if private && flags & sys::MAP_NORESERVE == 0 || is_strict() && (private || anonymous) {
        check_commit(len)?;
    }
    let mut area = VmaFlags::empty();
    area.set(VmaFlags::SHARED, shared);
    area.set(VmaFlags::WIPEONFORK, flags & sys::MAP_TYPE == MAP_DROPPABLE);
    area.set(VmaFlags::GROWSDOWN, flags & sys::MAP_GROWSDOWN != 0);
    area.set(VmaFlags::LOCKED, lock);
    let at = space.mmap(MapRequest {
        placement: place,
        len,
        prot,
        flags: area,
        object,
    })?;
    if let Some(file) = &file {
        file.file_accessed();
    }
    if let Some(file) = file.filter(|_| shared && prot.contains(Prot::WRITE)) {
        // A seal that came in between has either seen the mapping, or is seen here.
        if file.inode().seals() & (sys::F_SEAL_WRITE | sys::F_SEAL_FUTURE_WRITE) != 0 {
            space.munmap(at, len)?;
            return Err(Errno::EPERM);
        }
    }
    if lock || (flags & sys::MAP_POPULATE != 0 && flags & sys::MAP_NONBLOCK == 0) {
        // As on Linux: the mapping is there, whether or not all its pages are.
        space.fault_in(&(at..at + rounded));
    }
    Ok(at)
}

/// `munmap(2)`: unmaps a range.
pub fn sys_munmap(task: &Task, addr: UserAddr, len: usize) -> SysResult {
    let space = space(task)?;
    task.process().update_hiwater_rss(&space);
    space.munmap(addr.raw(), len).map(|()| 0)
}

/// `mprotect(2)`: changes the protection of a range.
pub fn sys_mprotect(task: &Task, addr: UserAddr, len: usize, prot: u32) -> SysResult {
    protect(task, addr, len, prot, Ok(()))
}

/// Changes protection as `mprotect(2)` does; `key` is what became of the protection key that was
/// asked for, which is looked at after the range.
///
/// # Errors
/// Those of `mprotect(2)`; `EINVAL`.
pub(crate) fn protect(
    task: &Task,
    addr: UserAddr,
    len: usize,
    prot: u32,
    key: Result<(), Errno>,
) -> SysResult {
    const GROWS: u32 = sys::PROT_GROWSDOWN | sys::PROT_GROWSUP;
    const KNOWN: u32 = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC | sys::PROT_SEM;
    let grows = prot & GROWS;
    if grows == GROWS || !addr.is_aligned(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let end = page_align_up(len)
        .and_then(|len| addr.raw().checked_add(len))
        .ok_or(Errno::ENOMEM)?;
    if prot & !(GROWS | KNOWN) != 0 {
        return Err(Errno::EINVAL);
    }
    key?;
    let space = space(task)?;
    let start = match grows {
        0 => addr.raw(),
        // From the stack's lowest page on.
        sys::PROT_GROWSDOWN => space.stack_start(addr.raw(), end)?,
        // There are no stacks that grow upwards.
        _ => {
            return space
                .check_mapped(addr.raw(), PAGE_SIZE)
                .and(Err(Errno::EINVAL));
        }
    };
    space
        .mprotect(start, end - start, protection(task, prot))
        .map(|()| 0)
}

/// `mremap(2)`: changes size or address of a mapping; returns the address.
pub fn sys_mremap(
    task: &Task,
    old: UserAddr,
    old_len: usize,
    new_len: usize,
    flags: u64,
    new: UserAddr,
) -> SysResult {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let known = sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED | sys::MREMAP_DONTUNMAP;
    let moves = has(sys::MREMAP_FIXED) || has(sys::MREMAP_DONTUNMAP);
    let keep = has(sys::MREMAP_DONTUNMAP);
    let nothing = !old.is_aligned(PAGE_SIZE) || page_align_up(new_len).is_none_or(|len| len == 0);
    if flags & !u64::from(known) != 0
        || (moves && !has(sys::MREMAP_MAYMOVE))
        || (keep && old_len != new_len)
        || nothing
    {
        return Err(Errno::EINVAL);
    }
    let to = has(sys::MREMAP_FIXED).then_some(new.raw());
    let how = RemapOptions {
        may_move: has(sys::MREMAP_MAYMOVE),
        fixed_address: to,
        dont_unmap: keep,
        max_growth: commit_limit(),
        lock_limit: lock_limit(task),
    };
    space(task)?.mremap(old.raw(), old_len, new_len, how)
}

/// `brk(2)`: sets the end of the heap; returns the end in force.
pub fn sys_brk(task: &Task, end: UserAddr) -> SysResult {
    let limit = task.process().limits.lock()[Resource::Data].soft;
    let space = space(task)?;
    let (now, end) = (space.brk(0), end.raw());
    if end > now && ((end - now) as u64 > limit || check_commit(end - now).is_err()) {
        return Ok(now);
    }
    let new = space.brk(end);
    if new > now && space.is_mlock_future() {
        space.fault_in(&(vm::page_align_down(now)..new));
    }
    Ok(new)
}

/// `madvise(2)`: advises on, or empties, a range.
pub fn sys_madvise(task: &Task, addr: UserAddr, len: usize, advice: u32) -> SysResult {
    let space = space(task)?;
    let none = VmaFlags::empty();
    match advice {
        // Giving pages back at once is one of the things it may do.
        sys::MADV_FREE => space.madvise(
            addr.raw(),
            len,
            Advice::DontNeed(DontNeedScope::PrivateAnonymous),
        )?,
        sys::MADV_DONTNEED => {
            space.madvise(addr.raw(), len, Advice::DontNeed(DontNeedScope::Unlocked))?;
        }
        sys::MADV_DONTNEED_LOCKED => space.madvise(
            addr.raw(),
            len,
            Advice::DontNeed(DontNeedScope::IncludingLocked),
        )?,
        sys::MADV_DONTFORK => {
            space.madvise(addr.raw(), len, Advice::Flags(VmaFlags::DONTFORK, none))?;
        }
        sys::MADV_DOFORK => {
            space.madvise(addr.raw(), len, Advice::Flags(none, VmaFlags::DONTFORK))?;
        }
        sys::MADV_WIPEONFORK => {
            space.madvise(addr.raw(), len, Advice::Flags(VmaFlags::WIPEONFORK, none))?;
        }
        sys::MADV_KEEPONFORK => {
            space.madvise(addr.raw(), len, Advice::Flags(none, VmaFlags::WIPEONFORK))?;
        }
        sys::MADV_DONTDUMP => {
            space.madvise(addr.raw(), len, Advice::Flags(VmaFlags::DONTDUMP, none))?;
        }
        sys::MADV_DODUMP => {
            space.madvise(addr.raw(), len, Advice::Flags(none, VmaFlags::DONTDUMP))?;
        }
        sys::MADV_HUGEPAGE => space.madvise(
            addr.raw(),
            len,
            Advice::Flags(VmaFlags::LARGE, VmaFlags::NO_LARGE),
        )?,
        sys::MADV_NOHUGEPAGE => space.madvise(
            addr.raw(),
            len,
            Advice::Flags(VmaFlags::NO_LARGE, VmaFlags::LARGE),
        )?,
        sys::MADV_COLLAPSE => space.collapse(addr.raw(), len)?,
        sys::MADV_REMOVE => space.punch_shared(addr.raw(), len)?,
        sys::MADV_POPULATE_READ => populate(&space, addr.raw(), len, AccessKind::Read)?,
        sys::MADV_POPULATE_WRITE => populate(&space, addr.raw(), len, AccessKind::Write)?,
        // Said to help, and nothing to do.
        sys::MADV_NORMAL
        | sys::MADV_RANDOM
        | sys::MADV_SEQUENTIAL
        | sys::MADV_WILLNEED
        | sys::MADV_MERGEABLE
        | sys::MADV_UNMERGEABLE => space.check_mapped(addr.raw(), len)?,
        // The same, but what is locked stays.
        sys::MADV_COLD | sys::MADV_PAGEOUT if space.has_locked(addr.raw(), len) => {
            return Err(Errno::EINVAL);
        }
        sys::MADV_COLD | sys::MADV_PAGEOUT => space.check_mapped(addr.raw(), len)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

fn populate(
    space: &AddressSpace,
    addr: usize,
    len: usize,
    access: AccessKind,
) -> Result<(), Errno> {
    space.check_access(addr, len, access)?;
    space.populate(addr, page_align_up(len).ok_or(Errno::EINVAL)?, access)
}

/// `mseal(2)`: forbids changes of a range's mappings.
pub fn sys_mseal(task: &Task, addr: UserAddr, len: usize, flags: u64) -> SysResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    space(task)?.mseal(addr.raw(), len).map(|()| 0)
}

/// `remap_file_pages(2)`: as Linux does it since 4.0, by a mapping for each part.
pub fn sys_remap_file_pages(
    task: &Task,
    start: UserAddr,
    len: usize,
    prot: u32,
    first: usize,
    _flags: u32,
) -> SysResult {
    let (start, len) = (vm::page_align_down(start.raw()), vm::page_align_down(len));
    if prot != 0
        || len == 0
        || start.checked_add(len).is_none()
        || first.checked_add(len / PAGE_SIZE).is_none()
    {
        return Err(Errno::EINVAL);
    }
    let space = space(task)?;
    let segments = &task.ipc().segments;
    let last = segments.is_last_of_removed(&space, start, len);
    space.remap_file_pages(start, len, first as u64)?;
    if last {
        // Linux takes the old mapping away first, and with it the segment that is to be mapped.
        space.munmap(start, len)?;
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

/// `mincore(2)`: stores which pages of a range are in memory, a byte each.
pub fn sys_mincore(task: &Task, addr: UserAddr, len: usize, to: UserAddr) -> SysResult {
    if addr.is_aligned(PAGE_SIZE) && !addr.access_ok(len) {
        return Err(Errno::ENOMEM);
    }
    let pages = space(task)?.mincore(addr.raw(), len)?;
    uaccess::write_bytes(to, &pages)?;
    // What comes before a hole is told.
    if pages.len() < len.div_ceil(PAGE_SIZE) {
        Err(Errno::ENOMEM)
    } else {
        Ok(0)
    }
}

/// `msync(2)`: what a mapping of a file shows is the file itself; with `MS_SYNC` it is brought to
/// the medium.
pub fn sys_msync(task: &Task, addr: UserAddr, len: usize, flags: u32) -> SysResult {
    let known = sys::MS_ASYNC | sys::MS_INVALIDATE | sys::MS_SYNC;
    let both = flags & (sys::MS_ASYNC | sys::MS_SYNC) == sys::MS_ASYNC | sys::MS_SYNC;
    if flags & !known != 0 || !addr.is_aligned(PAGE_SIZE) || both {
        return Err(Errno::EINVAL);
    }
    // What is rounded up beyond the last address is nothing, as on Linux.
    let len = page_align_up(len).unwrap_or(0);
    if addr.checked_add(len).is_none() {
        return Err(Errno::ENOMEM);
    }
    let space = space(task)?;
    if flags & sys::MS_INVALIDATE != 0 && space.has_locked(addr.raw(), len) {
        return Err(Errno::EBUSY);
    }
    if flags & sys::MS_SYNC != 0 {
        space.sync_range(addr.raw(), len).map(|()| 0)
    } else {
        space.check_mapped(addr.raw(), len).map(|()| 0)
    }
}

/// The most bytes that the calling program may lock.
pub(crate) fn lock_limit(task: &Task) -> usize {
    let limit = task.process().limits.lock()[Resource::LockedMemory].soft_size();
    if task.cred().capable(sys::CAP_IPC_LOCK) {
        usize::MAX
    } else {
        limit
    }
}

/// Whole pages of the range of `mlock(2)` or `munlock(2)`: start and length.
fn lock_range(addr: UserAddr, len: usize) -> Result<(usize, usize), Errno> {
    let start = addr.page_align_down().raw();
    // What is rounded up beyond the last address is nothing, as on Linux.
    let len = page_align_up(addr.page_offset().wrapping_add(len)).unwrap_or(0);
    // Nothing is mapped there.
    if len != 0 && start.checked_add(len).ok_or(Errno::EINVAL)? > vm::USER_END {
        Err(Errno::ENOMEM)
    } else {
        Ok((start, len))
    }
}

/// `mlock2(2)`: nothing is ever swapped, so it is enough that the pages are there.
pub fn sys_mlock2(task: &Task, addr: UserAddr, len: usize, flags: u32) -> SysResult {
    if flags & !sys::MLOCK_ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    let (start, len) = lock_range(addr, len)?;
    let limit = lock_limit(task);
    if limit == 0 {
        return Err(Errno::EPERM);
    }
    space(task)?
        .mlock(start, len, limit, flags != 0)
        .map(|()| 0)
}

/// `mlock(2)`: keeps a range in memory.
pub fn sys_mlock(task: &Task, addr: UserAddr, len: usize) -> SysResult {
    sys_mlock2(task, addr, len, 0)
}

/// `munlock(2)`: ends the lock of a range.
pub fn sys_munlock(task: &Task, addr: UserAddr, len: usize) -> SysResult {
    let (start, len) = lock_range(addr, len)?;
    space(task)?
        .madvise(
            start,
            len,
            Advice::Flags(VmaFlags::empty(), VmaFlags::LOCKED),
        )
        .map(|()| 0)
}

/// `mlockall(2)`: keeps all present or future mappings in memory.
pub fn sys_mlockall(task: &Task, flags: u32) -> SysResult {
    let known = sys::MCL_CURRENT | sys::MCL_FUTURE | sys::MCL_ONFAULT;
    if flags == 0 || flags & !known != 0 || flags == sys::MCL_ONFAULT {
        return Err(Errno::EINVAL);
    }
    let limit = lock_limit(task);
    if limit == 0 {
        return Err(Errno::EPERM);
    }
    let has = |flag: u32| flags & flag != 0;
    space(task)?
        .mlockall(
            has(sys::MCL_CURRENT),
            has(sys::MCL_FUTURE),
            limit,
            has(sys::MCL_ONFAULT),
        )
        .map(|()| 0)
}

/// `munlockall(2)`: ends the locks of all mappings.
pub fn sys_munlockall(task: &Task) -> SysResult {
    space(task)?.munlockall();
    Ok(0)
}
