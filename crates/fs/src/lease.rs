//! Leases: who has one is signalled before somebody else opens the file in another way, or cuts it
//! (`F_SETLEASE` of `fcntl(2)`).
//!
//! Leases are kept by the file's address; each ends with its opening, which holds the file. Who
//! would break one waits until the holder has given it up, or for [`BREAK_SECONDS`]; then it is
//! gone. While there is no lease, opening a file costs one load.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general::CAP_LEASE;
use task::{Deadline, Mutex, WaitError, WaitQueue, now_ns};

use crate::sigio::{self, FileOwner, OwnerTarget};
use crate::{Cred, File, FileType, Inode, Result};

/// How long a holder has (`/proc/sys/fs/lease-break-time`).
pub const BREAK_SECONDS: u64 = 45;
const NS_PER_SEC: u64 = 1_000_000_000;

/// Kinds of leases: what others may not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseKind {
    /// To write.
    Read,
    /// To open at all.
    Write,
}

struct Lease {
    file: Weak<File>,
    /// The descriptor by which it was taken.
    fd: i32,
    kind: LeaseKind,
    /// The lease that is left to the holder (`None`: none), from when on without asking.
    breaking: Option<(Option<LeaseKind>, u64)>,
}

impl Lease {
    /// Whether an opening conflicts.
    fn forbids(&self, writes: bool) -> bool {
        writes || self.kind == LeaseKind::Write
    }
}

type Leases = BTreeMap<usize, Vec<Lease>>;

static LEASES: Mutex<Leases> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Told when a lease ends or becomes less.
static CHANGED: WaitQueue = WaitQueue::new();

/// How many leases there are.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed) as u64
}

fn key(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>().addr()
}

/// Runs `change` on the leases of a file.
fn with<R>(inode: &Arc<dyn Inode>, change: impl FnOnce(&mut Vec<Lease>) -> R) -> R {
    let mut all = LEASES.lock();
    let of_file = all.entry(key(inode)).or_default();
    let before = of_file.len();
    let result = change(of_file);
    COUNT.fetch_add(of_file.len().wrapping_sub(before), Ordering::SeqCst);
    if of_file.is_empty() {
        all.remove(&key(inode));
    }
    result
}

/// Takes a lease, changes the one there is, or gives it up (`kind` is `None`). `has_others` says
/// whether there are other openings of the file; one that is being made at this moment may be
/// overlooked.
///
/// # Errors
/// `EINVAL` for what is no regular file; `EACCES` for somebody else's; `EAGAIN` if others have it
/// open, or a lease, in a way that does not go together with it, or there is none to give up.
pub fn set(
    file: &Arc<File>,
    fd: i32,
    kind: Option<LeaseKind>,
    cred: &Cred,
    has_others: impl FnOnce() -> bool,
) -> Result<()> {
    let inode = file.inode();
    let users = inode
        .writers()
        .filter(|_| inode.kind() == FileType::Regular)
        .ok_or(Errno::EINVAL)?;
    if cred.uid != inode.metadata().uid && !cred.has(CAP_LEASE) {
        return Err(Errno::EACCES);
    }
    let own = |lease: &Lease| core::ptr::eq(lease.file.as_ptr(), Arc::as_ptr(file));
    file.note_lease();
    // Who opens the file from now on looks for leases, and finds this one or is found here.
    COUNT.fetch_add(1, Ordering::SeqCst);
    let free = match kind {
        None => true,
        Some(LeaseKind::Read) => users.writing() == 0,
        Some(LeaseKind::Write) => {
            users.writing() == i32::from(file.flags().writable()) && !has_others()
        }
    };
    let result = with(inode, |leases| {
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
            None => leases.push(Lease {
                file: Arc::downgrade(file),
                fd,
                kind,
                breaking: None,
            }),
        }
        Ok(())
    });
    census::released(COUNT.fetch_sub(1, Ordering::SeqCst), 1);
    result?;
    if kind.is_none() {
        // As on Linux.
        file.change_notice(|notice| *notice = FileOwner::default());
    }
    CHANGED.wake_all();
    Ok(())
}

/// The lease an opening has; while it is broken, what is left of it.
#[must_use]
pub fn get(file: &Arc<File>) -> Option<LeaseKind> {
    with(file.inode(), |leases| {
        let own = leases
            .iter()
            .find(|lease| core::ptr::eq(lease.file.as_ptr(), Arc::as_ptr(file)))?;
        own.breaking.map_or(Some(own.kind), |(left, _)| left)
    })
}

/// The opening is over, and its lease.
pub(crate) fn release(file: &File) {
    with(file.inode(), |leases| {
        leases.retain(|lease| !core::ptr::eq(lease.file.as_ptr(), file));
    });
    CHANGED.wake_all();
}

/// Before a file is opened, or cut: asks those whose leases forbid it to give them up, and waits
/// until they have.
///
/// # Errors
/// `EAGAIN` instead of waiting; `ERESTARTSYS`.
pub(crate) fn broken_by(inode: &Arc<dyn Inode>, writes: bool, nonblocking: bool) -> Result<()> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        Ok(())
    } else {
        break_all(inode, writes, nonblocking)
    }
}

#[cold]
fn break_all(inode: &Arc<dyn Inode>, writes: bool, nonblocking: bool) -> Result<()> {
    loop {
        let mut asked = Vec::new();
        let until = with(inode, |leases| {
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
            for lease in leases.iter_mut().filter(|lease| lease.forbids(writes)) {
                if lease
                    .breaking
                    .is_none_or(|(old, _)| old.is_some() && left.is_none())
                {
                    lease.breaking = Some((left, now + BREAK_SECONDS * NS_PER_SEC));
                    asked.extend(lease.file.upgrade().map(|file| (file, lease.fd)));
                }
            }
            leases
                .iter()
                .filter(|lease| lease.forbids(writes))
                .filter_map(|lease| lease.breaking)
                .map(|(_, end)| end)
                .min()
        });
        for (file, fd) in asked {
            sigio::message(&file, fd);
        }
        let Some(until) = until else { return Ok(()) };
        if nonblocking {
            return Err(Errno::EAGAIN);
        }
        let free = || {
            with(inode, |leases| {
                !leases.iter().any(|lease| lease.forbids(writes))
            })
            .then_some(())
        };
        if CHANGED.wait_interruptible(Some(Deadline::at_ns(until)), free)
            == Err(WaitError::Interrupted)
        {
            return Err(Errno::ERESTARTSYS);
        }
    }
}

/// Makes a process the owner of a file's signals, if nobody is.
pub fn default_owner(file: &File, process: i32, sender: (u32, u32)) {
    file.change_notice(|notice| {
        if notice.target == OwnerTarget::Nobody {
            (notice.target, notice.sender) = (OwnerTarget::Process(process), sender);
        }
    });
}
