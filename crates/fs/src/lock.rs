//! Advisory locks: `flock(2)`, POSIX record locks and open-file-description locks (`fcntl(2)`).
//!
//! Locks live beside the files, in a table by (device, inode); a file nobody locks costs nothing. The two families do not see each
//! other, as on Linux. Deadlocks between waiters of record locks are not detected (`EDEADLK` is never returned); a signal ends a wait.

use crate::poll::Source;
use crate::{File, Result};
use abi::errno::Errno;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use task::Mutex;

/// Who holds a record lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A process (its descriptor table, by a number that is not reused while the table lives) — POSIX locks — and its id for `F_GETLK`.
    Process {
        /// The table's number.
        table: u64,
        /// The process id shown to others.
        pid: i32,
    },
    /// An opening: `F_OFD_SETLK`.
    Opening(usize),
}

impl Owner {
    /// The owner for open-file-description locks.
    #[must_use]
    pub fn opening(file: &File) -> Self {
        Self::Opening(core::ptr::from_ref(file).addr())
    }

    fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Process { table: a, .. }, Self::Process { table: b, .. }) => a == b,
            (a, b) => a == b,
        }
    }
}

/// A lock on the bytes `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first byte.
    pub start: u64,
    /// Behind the last byte; `u64::MAX`: to the end, however far it moves.
    pub end: u64,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    owner: Owner,
    range: Range,
    exclusive: bool,
}

#[derive(Default)]
struct Locks {
    /// `flock` holders, by opening; several only if shared.
    openings: Vec<usize>,
    openings_exclusive: bool,
    records: Vec<Record>,
}

#[derive(Default)]
struct Entry {
    locks: Mutex<Locks>,
    changed: Source,
}

/// Every file that somebody locks, or waits to lock, by (device, inode).
static TABLE: Mutex<BTreeMap<(u64, u64), Arc<Entry>>> = Mutex::new(BTreeMap::new());

fn key(file: &File) -> (u64, u64) {
    let meta = file.metadata();
    (meta.dev, meta.ino)
}

fn entry(file: &File) -> Arc<Entry> {
    TABLE.lock().entry(key(file)).or_default().clone()
}

/// After locks were released: tells waiters, and forgets the file if nothing is left.
fn released(key: (u64, u64), entry: &Arc<Entry>) {
    entry.changed.notify();
    let removed;
    {
        let mut table = TABLE.lock();
        let locks = entry.locks.lock();
        // Two references: the table's and this one. A third is a waiter's.
        let unused = locks.openings.is_empty() && locks.records.is_empty() && Arc::strong_count(entry) == 2;
        removed = unused.then(|| table.remove(&key));
    }
    drop(removed);
}

/// Takes or changes an opening's whole-file lock.
///
/// # Errors
/// `EAGAIN` instead of waiting, `ERESTARTSYS` when interrupted.
pub fn flock(file: &File, exclusive: bool, nonblocking: bool) -> Result<()> {
    let me = core::ptr::from_ref(file).addr();
    let entry = entry(file);
    let attempt = || {
        let mut locks = entry.locks.lock();
        let others = locks.openings.iter().any(|&o| o != me);
        if others && (exclusive || locks.openings_exclusive) {
            return None;
        }
        if !locks.openings.contains(&me) {
            locks.openings.push(me);
        }
        locks.openings_exclusive = exclusive;
        file.note_lock();
        Some(())
    };
    match attempt() {
        Some(()) => {}
        None if nonblocking => return Err(Errno::EAGAIN),
        // A lock held by this opening is not given up while it waits for a stronger one; Linux gives it up first.
        None => {
            unflock(file);
            entry.changed.wait(attempt)?;
        }
    }
    // An exclusive lock that became shared lets others in.
    entry.changed.notify();
    Ok(())
}

/// Gives an opening's whole-file lock back.
pub fn unflock(file: &File) {
    let me = core::ptr::from_ref(file).addr();
    let key = key(file);
    let Some(entry) = TABLE.lock().get(&key).cloned() else { return };
    entry.locks.lock().openings.retain(|&o| o != me);
    released(key, &entry);
}

/// At the end of an opening.
pub(crate) fn release_opening(file: &File) {
    unflock(file);
    release(file, Owner::opening(file));
}

impl Locks {
    fn conflict(&self, owner: Owner, range: Range, exclusive: bool) -> Option<&Record> {
        self.records.iter().find(|r| {
            !r.owner.same(owner) && r.range.start < range.end && range.start < r.range.end && (exclusive || r.exclusive)
        })
    }

    /// Replaces whatever the owner holds of the range.
    fn set(&mut self, owner: Owner, range: Range, lock: Option<bool>) {
        let mut kept = Vec::with_capacity(self.records.len() + 2);
        for r in self.records.drain(..) {
            if !r.owner.same(owner) || r.range.end <= range.start || range.end <= r.range.start {
                kept.push(r);
                continue;
            }
            if r.range.start < range.start {
                kept.push(Record { range: Range { end: range.start, ..r.range }, ..r });
            }
            if range.end < r.range.end {
                kept.push(Record { range: Range { start: range.end, ..r.range }, ..r });
            }
        }
        if let Some(exclusive) = lock {
            kept.push(Record { owner, range, exclusive });
        }
        self.records = kept;
    }
}

/// Sets (`Some(exclusive)`) or clears (`None`) a record lock.
///
/// # Errors
/// `EAGAIN` instead of waiting, `ERESTARTSYS` when interrupted.
pub fn set_record(file: &File, owner: Owner, range: Range, lock: Option<bool>, wait: bool) -> Result<()> {
    let entry = entry(file);
    let attempt = || {
        let mut locks = entry.locks.lock();
        if let Some(exclusive) = lock {
            if locks.conflict(owner, range, exclusive).is_some() {
                return None;
            }
            file.note_lock();
        }
        locks.set(owner, range, lock);
        Some(())
    };
    match attempt() {
        Some(()) => {}
        None if !wait => return Err(Errno::EAGAIN),
        None => entry.changed.wait(attempt)?,
    }
    released(key(file), &entry);
    Ok(())
}

/// What stands in the way of a record lock: whose it is (a process id, or -1 for an opening's), its range, and whether it is exclusive.
#[must_use]
pub fn conflicting(file: &File, owner: Owner, range: Range, exclusive: bool) -> Option<(i32, Range, bool)> {
    let entry = TABLE.lock().get(&key(file)).cloned()?;
    let locks = entry.locks.lock();
    locks.conflict(owner, range, exclusive).map(|r| {
        let pid = match r.owner {
            Owner::Process { pid, .. } => pid,
            Owner::Opening(_) => -1,
        };
        (pid, r.range, r.exclusive)
    })
}

/// Releases every record lock of an owner on a file: when a process closes any of its descriptors for it.
pub fn release(file: &File, owner: Owner) {
    let key = key(file);
    let Some(entry) = TABLE.lock().get(&key).cloned() else { return };
    entry.locks.lock().records.retain(|r| !r.owner.same(owner));
    released(key, &entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(n: u64) -> Owner {
        Owner::Process { table: n, pid: n as i32 }
    }

    #[test]
    fn unlocking_the_middle_splits() {
        let mut locks = Locks::default();
        locks.set(process(1), Range { start: 0, end: 100 }, Some(true));
        locks.set(process(1), Range { start: 40, end: 60 }, None);
        let hit = |start, end| locks.conflict(process(2), Range { start, end }, false).is_some();
        assert!(hit(0, 40) && hit(60, 61) && hit(39, 41));
        assert!(!hit(40, 60) && !hit(100, 200));
        assert!(locks.conflict(process(1), Range { start: 0, end: 100 }, true).is_none());
    }

    #[test]
    fn shared_locks_coexist() {
        let mut locks = Locks::default();
        locks.set(process(1), Range { start: 0, end: u64::MAX }, Some(false));
        assert!(locks.conflict(process(2), Range { start: 5, end: 6 }, false).is_none());
        assert!(locks.conflict(process(2), Range { start: 5, end: 6 }, true).is_some());
    }
}
