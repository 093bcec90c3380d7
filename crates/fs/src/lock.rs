//! Advisory locks: `flock(2)`, POSIX record locks and open-file-description locks (`fcntl(2)`).
//!
//! Locks live beside the files, in a table by (device, inode); a file nobody locks costs nothing.
//! The two families do not see each other, as on Linux. Who would wait for a process that waits for
//! him, directly or through others, is refused (`EDEADLK`): `BLOCKED_LOCKS`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use fallible::Text;
use task::Mutex;

use crate::poll::PollQueue;
use crate::{DeviceId, File, Result, lease};

/// Holder of a record lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOwner {
    /// A process (its descriptor table, by a number that is not reused while the table lives) —
    /// POSIX locks — and its id for `F_GETLK`.
    Process {
        /// The table's number.
        table: u64,
        /// The process id shown to others.
        pid: i32,
    },
    /// An open file: `F_OFD_SETLK`.
    OpenFile(usize),
}

impl LockOwner {
    /// The owner for open-file-description locks.
    #[must_use]
    pub fn open_file(file: &File) -> Self {
        Self::OpenFile(core::ptr::from_ref(file).addr())
    }

    fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Process { table: a, .. }, Self::Process { table: b, .. }) => a == b,
            (a, b) => a == b,
        }
    }
}

/// Kind of a lock (`F_RDLCK`, `F_WRLCK`; `LOCK_SH`, `LOCK_EX`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Several owners may hold it at a time.
    Shared,
    /// One owner may hold it.
    Exclusive,
}

/// Behaviour of a call when another owner holds a lock that conflicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnConflict {
    /// Waits until the lock is released (`F_SETLKW`).
    Wait,
    /// Fails with `EAGAIN` (`F_SETLK`, `LOCK_NB`).
    Fail,
}

/// A lock that conflicts with one that was asked for (`F_GETLK`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConflictingLock {
    /// Process id of the holder; -1 for an open file.
    pub pid: i32,
    /// Bytes that are locked.
    pub range: LockRange,
    /// Kind of the lock.
    pub kind: LockKind,
}

/// A lock on the bytes `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// Behind the last byte; `u64::MAX`: to the end, however far it moves.
    pub end: u64,
}

impl LockRange {
    /// The whole file.
    pub(crate) const ALL: Self = Self {
        start: 0,
        end: u64::MAX,
    };
}

#[derive(Clone, Copy, Debug)]
struct RecordLock {
    owner: LockOwner,
    range: LockRange,
    kind: LockKind,
}

/// Open file that holds a `flock` lock.
#[derive(Clone, Copy, Debug)]
struct FlockHolder {
    /// Address of the open file, which tells it from others.
    file: usize,
    /// The process that took the lock.
    pid: i32,
}

#[derive(Default)]
struct LockState {
    /// Open files that hold the `flock` lock; several only if shared.
    flock_owners: Vec<FlockHolder>,
    flock_kind: Option<LockKind>,
    records: Vec<RecordLock>,
}

#[derive(Default)]
struct LockContext {
    locks: Mutex<LockState>,
    changed: PollQueue,
}

/// Every file that somebody locks, or waits to lock, by (device, inode).
static TABLE: Mutex<BTreeMap<(u64, u64), Arc<LockContext>>> = Mutex::new(BTreeMap::new());

/// Numbers of what the tables of locks hold.
pub(crate) struct LockCounts {
    /// Files in the table.
    pub(crate) files: u64,
    /// Locks on them.
    pub(crate) locks: u64,
    /// Calls that wait for a lock of another process.
    pub(crate) blocked: u64,
}

/// Returns how much the tables of locks hold.
pub(crate) fn counts() -> LockCounts {
    let table = TABLE.lock();
    let locks = |entry: &Arc<LockContext>| {
        let locks = entry.locks.lock();
        (locks.flock_owners.len() + locks.records.len()) as u64
    };
    LockCounts {
        files: table.len() as u64,
        locks: table.values().map(locks).sum(),
        blocked: BLOCKED_LOCKS.lock().len() as u64,
    }
}

fn key(file: &File) -> (u64, u64) {
    let meta = file.metadata();
    (meta.dev, meta.ino)
}

/// A file's entry while a call is at it. Whoever is at it last takes it out of the table if nothing
/// is locked, however his call ends.
struct LockContextRef {
    key: (u64, u64),
    /// `None` while it is dropped.
    entry: Option<Arc<LockContext>>,
}

impl LockContextRef {
    /// The entry of a file, made if there is none.
    fn get_or_insert(file: &File) -> Self {
        let key = key(file);
        Self {
            key,
            entry: Some(TABLE.lock().entry(key).or_default().clone()),
        }
    }

    /// The entry of a file, if it has one.
    fn get(file: &File) -> Option<Self> {
        let key = key(file);
        TABLE.lock().get(&key).cloned().map(|entry| Self {
            key,
            entry: Some(entry),
        })
    }

    /// After locks were released: tells waiters.
    fn notify_released(&self) {
        let file = self.address();
        BLOCKED_LOCKS.lock().retain(|wait| wait.file != file);
        self.changed.notify();
    }

    /// The address by which the entry is known.
    fn address(&self) -> usize {
        core::ptr::from_ref::<LockContext>(self).addr()
    }
}

impl Deref for LockContextRef {
    type Target = LockContext;

    fn deref(&self) -> &LockContext {
        self.entry.as_ref().expect("there until it is dropped")
    }
}

impl Drop for LockContextRef {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        // References are taken and given back under the table's lock, so the last but the table's
        // own is seen to be.
        self.entry = None;
        let unused = |entry: &Arc<LockContext>| {
            let locks = entry.locks.lock();
            Arc::strong_count(entry) == 1
                && locks.flock_owners.is_empty()
                && locks.records.is_empty()
        };
        let removed = if table.get(&self.key).is_some_and(unused) {
            table.remove(&self.key)
        } else {
            None
        };
        drop(table);
        drop(removed);
    }
}

/// Takes or changes an open file's whole-file lock, for a process.
///
/// # Errors
/// `EAGAIN` instead of waiting, `ERESTARTSYS` when interrupted, `ENOLCK` for want of memory.
pub fn flock(file: &File, kind: LockKind, pid: i32, on_conflict: OnConflict) -> Result<()> {
    let me = core::ptr::from_ref(file).addr();
    let entry = LockContextRef::get_or_insert(file);
    let attempt = || {
        let mut locks = entry.locks.lock();
        let others = locks.flock_owners.iter().any(|holder| holder.file != me);
        let is_exclusive = |kind| kind == LockKind::Exclusive;
        if others && (is_exclusive(kind) || locks.flock_kind.is_some_and(is_exclusive)) {
            return None;
        }
        let known = locks.flock_owners.iter().any(|holder| holder.file == me);
        if !known && fallible::push(&mut locks.flock_owners, FlockHolder { file: me, pid }).is_err()
        {
            return Some(Err(Errno::ENOLCK));
        }
        locks.flock_kind = Some(kind);
        file.set_has_locks();
        Some(Ok(()))
    };
    match attempt() {
        Some(result) => result?,
        None if on_conflict == OnConflict::Fail => return Err(Errno::EAGAIN),
        // A lock held by this open file is not given up while it waits for a stronger one; Linux
        // gives it up first.
        None => {
            unflock(file);
            entry.changed.wait(attempt).flatten()?;
        }
    }
    // An exclusive lock that became shared lets others in.
    entry.changed.notify();
    Ok(())
}

/// Releases an open file's whole-file lock.
pub fn unflock(file: &File) {
    let me = core::ptr::from_ref(file).addr();
    let Some(entry) = LockContextRef::get(file) else {
        return;
    };
    entry
        .locks
        .lock()
        .flock_owners
        .retain(|holder| holder.file != me);
    entry.notify_released();
}

/// Releases the whole-file lock of an open file that is closed.
pub(crate) fn release_flock(file: &File) {
    unflock(file);
    release_record_locks(file, LockOwner::open_file(file));
}

impl LockState {
    fn conflict(&self, owner: LockOwner, range: LockRange, kind: LockKind) -> Option<&RecordLock> {
        self.records.iter().find(|r| {
            !r.owner.is_same(owner)
                && r.range.start < range.end
                && range.start < r.range.end
                && (kind, r.kind) != (LockKind::Shared, LockKind::Shared)
        })
    }

    /// Replaces whatever the owner holds of the range. The records of an owner stand together and
    /// in order, and those of one kind that touch are one.
    ///
    /// # Errors
    /// `ENOLCK` for want of memory; nothing has changed.
    fn set(&mut self, owner: LockOwner, range: LockRange, lock: Option<LockKind>) -> Result<()> {
        /// Records that there can be more than before: one was cut in two, and the new one.
        const MORE: usize = 2;
        if lock.is_some() && !vm::has_kernel_room() {
            return Err(Errno::ENOLCK);
        }
        let own = self.records.iter().filter(|r| r.owner.is_same(owner));
        let mut kept = fallible::with_capacity(own.count() + MORE).map_err(|_| Errno::ENOLCK)?;
        if self.records.try_reserve(MORE).is_err() {
            return Err(Errno::ENOLCK);
        }
        let at = self
            .records
            .iter()
            .position(|r| r.owner.is_same(owner))
            .unwrap_or(self.records.len());
        for r in self.records.extract_if(.., |r| r.owner.is_same(owner)) {
            if r.range.end <= range.start || range.end <= r.range.start {
                kept.push(r);
                continue;
            }
            if r.range.start < range.start {
                kept.push(RecordLock {
                    range: LockRange {
                        end: range.start,
                        ..r.range
                    },
                    ..r
                });
            }
            if range.end < r.range.end {
                kept.push(RecordLock {
                    range: LockRange {
                        start: range.end,
                        ..r.range
                    },
                    ..r
                });
            }
        }
        if let Some(kind) = lock {
            let mut whole = range;
            kept.retain(|r| {
                let touches =
                    r.kind == kind && r.range.start <= whole.end && whole.start <= r.range.end;
                if touches {
                    whole = LockRange {
                        start: whole.start.min(r.range.start),
                        end: whole.end.max(r.range.end),
                    };
                }
                !touches
            });
            kept.push(RecordLock {
                owner,
                range: whole,
                kind,
            });
            kept.sort_by_key(|r| r.range.start);
        }
        self.records.splice(at..at, kept);
        Ok(())
    }
}

/// A process that waits for a record lock of another.
struct BlockedLock {
    /// Number of the call that waits.
    call: u64,
    /// The file, by its entry's address.
    file: usize,
    waiter: LockOwner,
    holder: LockOwner,
}

/// Calls that wait for locks, and for whom. Whatever changes about a file's locks takes its waits
/// out: those who wait look again, and say so again.
static BLOCKED_LOCKS: Mutex<Vec<BlockedLock>> = Mutex::new(Vec::new());

/// Through how many processes a ring of waits is looked for.
const MAX_DEADLOCK_ITERATIONS: usize = 10;

/// Notes that one process begins to wait for another.
///
/// # Errors
/// `EDEADLK` if the other waits for the first, `ENOLCK` for want of memory.
fn insert_blocked(wait: BlockedLock) -> Result<()> {
    let mut waits = BLOCKED_LOCKS.lock();
    waits.retain(|other| other.call != wait.call);
    let mut holder = wait.holder;
    for _ in 0..MAX_DEADLOCK_ITERATIONS {
        if holder.is_same(wait.waiter) {
            return Err(Errno::EDEADLK);
        }
        let Some(next) = waits.iter().find(|other| other.waiter.is_same(holder)) else {
            break;
        };
        holder = next.holder;
    }
    fallible::push(&mut waits, wait).map_err(|_| Errno::ENOLCK)
}

/// Sets a record lock, or clears it (`None`).
///
/// # Errors
/// `EAGAIN` instead of waiting, `ERESTARTSYS` when interrupted, `EDEADLK`, `ENOLCK` for want of
/// memory.
pub fn set_record_lock(
    file: &File,
    owner: LockOwner,
    range: LockRange,
    lock: Option<LockKind>,
    on_conflict: OnConflict,
) -> Result<()> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let entry = LockContextRef::get_or_insert(file);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let attempt = || {
        let mut locks = entry.locks.lock();
        if let Some(kind) = lock {
            if let Some(found) = locks.conflict(owner, range, kind) {
                let processes = matches!(
                    (owner, found.owner),
                    (LockOwner::Process { .. }, LockOwner::Process { .. })
                );
                let wait_for = BlockedLock {
                    call,
                    file: entry.address(),
                    waiter: owner,
                    holder: found.owner,
                };
                return if on_conflict == OnConflict::Wait && processes {
                    insert_blocked(wait_for).err().map(Err)
                } else {
                    None
                };
            }
            file.set_has_locks();
        }
        Some(locks.set(owner, range, lock))
    };
    let result = match attempt() {
        Some(result) => result,
        None if on_conflict == OnConflict::Fail => return Err(Errno::EAGAIN),
        None => {
            let result = entry.changed.wait(attempt).flatten();
            BLOCKED_LOCKS.lock().retain(|wait| wait.call != call);
            result
        }
    };
    entry.notify_released();
    result
}

/// Returns a record lock that conflicts with one that an owner could take (`F_GETLK`).
#[must_use]
pub fn test_lock(
    file: &File,
    owner: LockOwner,
    range: LockRange,
    kind: LockKind,
) -> Option<ConflictingLock> {
    let entry = LockContextRef::get(file)?;
    let locks = entry.locks.lock();
    locks.conflict(owner, range, kind).map(|r| ConflictingLock {
        pid: match r.owner {
            LockOwner::Process { pid, .. } => pid,
            LockOwner::OpenFile(_) => -1,
        },
        range: r.range,
        kind: r.kind,
    })
}

/// Lines of `/proc/locks`, which have numbers.
#[derive(Default)]
pub(crate) struct LockLines {
    text: Text,
    count: u64,
}

impl LockLines {
    /// Adds a line: `what` names family and state of a lock on a file, which is given by device
    /// and number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn add(
        &mut self,
        what: &str,
        (kind, pid): (LockKind, i32),
        (dev, ino): (u64, u64),
        LockRange { start, end }: LockRange,
    ) -> Result<()> {
        self.count += 1;
        let number = self.count;
        let kind = match kind {
            LockKind::Shared => "READ",
            LockKind::Exclusive => "WRITE",
        };
        let DeviceId { major, minor } = DeviceId::decode(dev);
        let text = &mut self.text;
        write!(
            text,
            "{number}: {what} {kind} {pid} {major:02x}:{minor:02x}:{ino} {start} "
        )
        .and_then(|()| match end {
            u64::MAX => text.write_str("EOF\n"),
            end => writeln!(text, "{}", end - 1),
        })
        .map_err(|_| Errno::ENOMEM)
    }
}

/// The locks and leases that are held, as `/proc/locks` shows them. Calls that wait are not among
/// them.
///
/// # Errors
/// `ENOMEM`.
pub fn proc_text() -> Result<Text> {
    let mut lines = LockLines::default();
    for (&file, entry) in TABLE.lock().iter() {
        let locks = entry.locks.lock();
        if let Some(kind) = locks.flock_kind {
            for holder in &locks.flock_owners {
                lines.add("FLOCK  ADVISORY ", (kind, holder.pid), file, LockRange::ALL)?;
            }
        }
        for record in &locks.records {
            let (what, pid) = match record.owner {
                LockOwner::Process { pid, .. } => ("POSIX  ADVISORY ", pid),
                LockOwner::OpenFile(_) => ("OFDLCK ADVISORY ", -1),
            };
            lines.add(what, (record.kind, pid), file, record.range)?;
        }
    }
    lease::write_lines(&mut lines)?;
    Ok(lines.text)
}

/// Releases every record lock of an owner on a file: when a process closes any of its descriptors
/// for it.
pub fn release_record_locks(file: &File, owner: LockOwner) {
    let Some(entry) = LockContextRef::get(file) else {
        return;
    };
    entry
        .locks
        .lock()
        .records
        .retain(|r| !r.owner.is_same(owner));
    entry.notify_released();
}

#[cfg(test)]
mod tests {
    use super::LockKind::{Exclusive, Shared};
    use super::*;

    fn process(n: u64) -> LockOwner {
        LockOwner::Process {
            table: n,
            pid: n as i32,
        }
    }

    #[test]
    fn unlocking_the_middle_splits() {
        let mut locks = LockState::default();
        let mut set = |start, end, kind| locks.set(process(1), LockRange { start, end }, kind);
        set(0, 100, Some(Exclusive)).unwrap();
        set(40, 60, None).unwrap();
        let hit = |start, end| {
            locks
                .conflict(process(2), LockRange { start, end }, Shared)
                .is_some()
        };
        assert!(hit(0, 40) && hit(60, 61) && hit(39, 41));
        assert!(!hit(40, 60) && !hit(100, 200));
        assert!(
            locks
                .conflict(process(1), LockRange { start: 0, end: 100 }, Exclusive)
                .is_none()
        );
    }

    #[test]
    fn locks_that_touch_are_one() {
        let mut locks = LockState::default();
        let mut set = |start, end, kind| locks.set(process(1), LockRange { start, end }, kind);
        for (start, end, kind) in [
            (20, 30, Exclusive),
            (0, 10, Exclusive),
            (40, 50, Shared),
            (10, 20, Exclusive),
            (30, 40, Shared),
        ] {
            set(start, end, Some(kind)).unwrap();
        }
        let shown: Vec<_> = locks
            .records
            .iter()
            .map(|r| (r.range.start, r.range.end, r.kind))
            .collect();
        assert_eq!(shown, [(0, 30, Exclusive), (30, 50, Shared)]);
    }

    #[test]
    fn rings_of_waits_are_refused() {
        let wait = |call, waiter, holder| {
            insert_blocked(BlockedLock {
                call,
                file: 0,
                waiter: process(waiter),
                holder: process(holder),
            })
        };
        assert!(wait(1, 101, 102).is_ok() && wait(2, 102, 103).is_ok());
        assert_eq!(wait(3, 103, 101), Err(Errno::EDEADLK));
        assert!(wait(2, 102, 104).is_ok() && wait(3, 103, 101).is_ok());
        BLOCKED_LOCKS.lock().clear();
    }

    #[test]
    fn whoever_is_at_a_file_last_takes_it_out_of_the_table() {
        let file = File::from_inode(
            crate::ramfs::RamFs::memfd("locks", 0o600, 0),
            crate::OpenFlags::RDWR,
            None,
        );
        let known = || TABLE.lock().contains_key(&key(&file));
        // Another call begins before the lock is given back, and ends after.
        flock(&file, Exclusive, 1, OnConflict::Fail).unwrap();
        let other = LockContextRef::get_or_insert(&file);
        unflock(&file);
        assert!(known());
        drop(other);
        assert!(!known());
    }

    #[test]
    fn shared_locks_coexist() {
        let mut locks = LockState::default();
        let all = LockRange {
            start: 0,
            end: u64::MAX,
        };
        locks.set(process(1), all, Some(Shared)).unwrap();
        assert!(
            locks
                .conflict(process(2), LockRange { start: 5, end: 6 }, Shared)
                .is_none()
        );
        assert!(
            locks
                .conflict(process(2), LockRange { start: 5, end: 6 }, Exclusive)
                .is_some()
        );
    }
}
