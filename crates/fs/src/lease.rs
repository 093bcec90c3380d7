//! Leases (`F_SETLEASE` of `fcntl(2)`): the holder of one is signalled before another process opens
//! the file in a conflicting way, or truncates it.
//!
//! Leases are kept by the inode's address; each ends with its open file, which holds the inode. Who
//! breaks one waits until the holder has given it up, or for [`BREAK_SECONDS`]; then it is gone.
//! While there is no lease, opening a file costs one load.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general::CAP_LEASE;
use task::{Deadline, Mutex, WaitError, WaitQueue, now_ns};

use crate::lock::{LockKind, LockLines, LockRange};
use crate::sigio::{self, FileOwner, OwnerTarget, SetterUids};
use crate::{Cred, File, FileType, Inode, OpenFlags, Result};

/// Time in seconds after which a lease that is being broken ends by itself; 0 or less: never
/// (`/proc/sys/fs/lease-break-time`).
pub static BREAK_SECONDS: AtomicI32 = AtomicI32::new(45);
/// Whether leases can be taken: not if it is 0 (`/proc/sys/fs/leases-enable`).
pub static ENABLED: AtomicI32 = AtomicI32::new(1);
const NS_PER_SEC: u64 = 1_000_000_000;

/// Kind of a lease: it is broken before others do this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseKind {
    /// Others open the file for writing (`F_RDLCK`).
    Read,
    /// Others open the file at all (`F_WRLCK`).
    Write,
}

struct Lease {
    file: Weak<File>,
    /// The process that took it.
    pid: i32,
    /// Device and number of the file.
    place: (u64, u64),
    /// The descriptor by which it was taken.
    fd: i32,
    kind: LeaseKind,
    /// While it is broken: the kind that is left to the holder (`None`: no lease), and the time of
    /// the monotonic clock, in nanoseconds, at which it is enforced.
    breaking: Option<(Option<LeaseKind>, u64)>,
}

impl Lease {
    /// Whether opening the file (for writing, if `writes`) conflicts with the lease (Linux
    /// `leases_conflict`).
    fn conflicts_with(&self, writes: bool) -> bool {
        writes || self.kind == LeaseKind::Write
    }
}

type Leases = BTreeMap<usize, Vec<Lease>>;

static LEASES: Mutex<Leases> = Mutex::new(BTreeMap::new());
static LEASE_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Threads that wait for a lease to end or to be downgraded.
static LEASE_WAITERS: WaitQueue = WaitQueue::new();

/// Time at which a lease is enforced that is broken now.
fn enforced_at(now_ns: u64) -> u64 {
    match u64::try_from(BREAK_SECONDS.load(Ordering::Relaxed)) {
        Ok(0) | Err(_) => u64::MAX,
        Ok(seconds) => now_ns + seconds * NS_PER_SEC,
    }
}

/// Number of all leases.
pub(crate) fn count() -> u64 {
    LEASE_COUNT.load(Ordering::Relaxed) as u64
}

/// Address of an inode: the key of its leases, whose files hold it.
fn inode_address(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>().addr()
}

/// Runs `change` on the leases of an inode.
fn with_leases<R>(inode: &Arc<dyn Inode>, change: impl FnOnce(&mut Vec<Lease>) -> R) -> R {
    let mut all = LEASES.lock();
    let of_file = all.entry(inode_address(inode)).or_default();
    let before = of_file.len();
    let result = change(of_file);
    LEASE_COUNT.fetch_add(of_file.len().wrapping_sub(before), Ordering::SeqCst);
    if of_file.is_empty() {
        all.remove(&inode_address(inode));
    }
    result
}

/// Takes a lease, changes the one there is, or removes it (`kind` is `None`). `has_others` says
/// whether the file is open elsewhere; an open that is under way may be overlooked. The process and
/// its descriptor are those that are told of it.
///
/// # Errors
/// `EINVAL` for what is no regular file; `EACCES` for somebody else's; `EAGAIN` if others have it
/// open, or a lease, in a way that does not go together with it, or there is none to give up.
pub fn set(
    file: &Arc<File>,
    (pid, fd): (i32, i32),
    kind: Option<LeaseKind>,
    cred: &Cred,
    has_others: impl FnOnce() -> bool,
) -> Result<()> {
    let inode = file.inode();
    let users = inode
        .write_count()
        .filter(|_| inode.kind() == FileType::Regular)
        .ok_or(Errno::EINVAL)?;
    let meta = inode.metadata();
    if cred.uid != meta.uid && !cred.capable(CAP_LEASE) {
        return Err(Errno::EACCES);
    }
    let own = |lease: &Lease| core::ptr::eq(lease.file.as_ptr(), Arc::as_ptr(file));
    file.set_has_leases();
    // Who opens the file from now on looks for leases, and finds this one or is found here.
    LEASE_COUNT.fetch_add(1, Ordering::SeqCst);
    let free = match kind {
        None => true,
        Some(LeaseKind::Read) => users.writers() == 0,
        Some(LeaseKind::Write) => {
            users.writers() == i32::from(file.flags().is_writable()) && !has_others()
        }
    };
    let result = with_leases(inode, |leases| {
        let Some(kind) = kind else {
            let before = leases.len();
            leases.retain(|lease| !own(lease));
            return if leases.len() < before {
                Ok(())
            } else {
                Err(Errno::EAGAIN)
            };
        };
        let others = leases.iter().any(|lease| {
            !own(lease) && (kind == LeaseKind::Write || matches!(lease.breaking, Some((None, _))))
        });
        if !free || others {
            return Err(Errno::EAGAIN);
        }
        match leases.iter_mut().find(|lease| own(lease)) {
            Some(lease) => (lease.kind, lease.breaking) = (kind, None),
            None if ENABLED.load(Ordering::Relaxed) == 0 => return Err(Errno::EINVAL),
            None => leases.push(Lease {
                file: Arc::downgrade(file),
                pid,
                place: (meta.dev, meta.ino),
                fd,
                kind,
                breaking: None,
            }),
        }
        Ok(())
    });
    census::released(LEASE_COUNT.fetch_sub(1, Ordering::SeqCst), 1);
    result?;
    if kind.is_none() {
        // As on Linux.
        file.update_owner(|owner| *owner = FileOwner::default());
    }
    LEASE_WAITERS.wake_all();
    Ok(())
}

/// The lease that an open file has; while it is broken, the kind that is left (`F_GETLEASE`).
#[must_use]
pub fn get(file: &Arc<File>) -> Option<LeaseKind> {
    with_leases(file.inode(), |leases| {
        let own = leases
            .iter()
            .find(|lease| core::ptr::eq(lease.file.as_ptr(), Arc::as_ptr(file)))?;
        own.breaking.map_or(Some(own.kind), |(left, _)| left)
    })
}

/// Adds a line for each lease, as `/proc/locks` has it.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn write_lines(lines: &mut LockLines) -> Result<()> {
    for lease in LEASES.lock().values().flatten() {
        let what = if lease.breaking.is_some() {
            "LEASE  BREAKING "
        } else {
            "LEASE  ACTIVE   "
        };
        // While it is broken, what will be left, which may be nothing; that is shown as a read
        // lease's.
        let kind = match lease.breaking.map_or(Some(lease.kind), |(left, _)| left) {
            Some(LeaseKind::Write) => LockKind::Exclusive,
            Some(LeaseKind::Read) | None => LockKind::Shared,
        };
        lines.add(what, (kind, lease.pid), lease.place, LockRange::ALL)?;
    }
    Ok(())
}

/// Removes the lease of an open file that is closed.
pub(crate) fn release(file: &File) {
    with_leases(file.inode(), |leases| {
        leases.retain(|lease| !core::ptr::eq(lease.file.as_ptr(), file));
    });
    LEASE_WAITERS.wake_all();
}

/// Breaks the leases that conflict with opening a file with these flags, or with truncating it:
/// signals their holders, and waits until they have given them up (Linux `break_lease`).
///
/// # Errors
/// `EAGAIN` instead of waiting, with `O_NONBLOCK`; `ERESTARTSYS`.
pub(crate) fn break_lease(inode: &Arc<dyn Inode>, flags: OpenFlags) -> Result<()> {
    if LEASE_COUNT.load(Ordering::SeqCst) == 0 {
        Ok(())
    } else {
        break_conflicting(inode, flags)
    }
}

#[cold]
fn break_conflicting(inode: &Arc<dyn Inode>, flags: OpenFlags) -> Result<()> {
    let writes = flags.is_writable();
    loop {
        let mut asked = Vec::new();
        let until = with_leases(inode, |leases| {
            let now = now_ns();
            leases.retain_mut(|lease| match lease.breaking {
                Some((left, end)) if end <= now => {
                    lease.breaking = None;
                    lease.kind = left.unwrap_or(lease.kind);
                    left.is_some()
                }
                _ => true,
            });
            let left = (!writes).then_some(LeaseKind::Read);
            for lease in leases
                .iter_mut()
                .filter(|lease| lease.conflicts_with(writes))
            {
                if lease
                    .breaking
                    .is_none_or(|(old, _)| old.is_some() && left.is_none())
                {
                    lease.breaking = Some((left, enforced_at(now)));
                    asked.extend(lease.file.upgrade().map(|file| (file, lease.fd)));
                }
            }
            leases
                .iter()
                .filter(|lease| lease.conflicts_with(writes))
                .filter_map(|lease| lease.breaking)
                .map(|(_, end)| end)
                .min()
        });
        for (file, fd) in asked {
            sigio::notify_poll_msg(&file, fd);
        }
        let Some(until) = until else { return Ok(()) };
        if flags.contains(OpenFlags::NONBLOCK) {
            return Err(Errno::EAGAIN);
        }
        let free = || {
            with_leases(inode, |leases| {
                !leases.iter().any(|lease| lease.conflicts_with(writes))
            })
            .then_some(())
        };
        if LEASE_WAITERS.wait_interruptible(Some(Deadline::at_ns(until)), free)
            == Err(WaitError::Interrupted)
        {
            return Err(Errno::ERESTARTSYS);
        }
    }
}

/// Makes a process the owner of a file's signals, if it has no owner.
pub fn set_default_owner(file: &File, process: i32, setter: SetterUids) {
    file.update_owner(|owner| {
        if owner.target == OwnerTarget::Nobody {
            (owner.target, owner.setter) = (OwnerTarget::Process(process), setter);
        }
    });
}
