//! Objects of the kernel that users are charged for: of some kinds Linux gives each user so many,
//! whatever number of processes he has. An object holds its [`Charge`], which goes with it.

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::errno::Errno;
use task::{Mutex, Once};

/// A kind of objects that users are charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Pages that the user's pipes may hold.
    PipePages,
    /// Instances of inotify.
    InotifyInstances,
    /// Watches of inotify.
    InotifyWatches,
    /// Files watched by epoll sets, once for each set.
    EpollWatches,
    /// Open files that were sent and not received (`SCM_RIGHTS`).
    FilesInFlight,
    /// Pages that the buffers of the user's sockets may fill.
    SocketPages,
}

/// A limit that root can set.
pub struct Limit {
    /// Name below `/proc/sys/fs`.
    pub path: &'static str,
    value: AtomicUsize,
}

impl Limit {
    const fn new(path: &'static str, value: usize) -> Self {
        let value = AtomicUsize::new(value);
        Self { path, value }
    }

    /// The limit in force.
    #[inline]
    pub fn get(&self) -> usize {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets the limit. What a user has beyond it he keeps.
    pub fn set(&self, value: usize) {
        self.value.store(value, Ordering::Relaxed);
    }
}

/// Pages of a user's pipes; beyond it new ones are small, and none grows. 0: no limit.
pub static PIPE_USER_PAGES_SOFT: Limit = Limit::new("pipe-user-pages-soft", 16_384);
/// Pages of a user's pipes; beyond it there are no new ones. 0: no limit.
pub static PIPE_USER_PAGES_HARD: Limit = Limit::new("pipe-user-pages-hard", 0);
/// Instances of inotify of a user.
pub static MAX_USER_INSTANCES: Limit = Limit::new("inotify/max_user_instances", 128);
/// Watches of inotify of a user.
pub static MAX_INOTIFY_WATCHES: Limit = Limit::new("inotify/max_user_watches", 65_536);
/// Files watched by a user's epoll sets.
pub static MAX_EPOLL_WATCHES: Limit = Limit::new("epoll/max_user_watches", 1_048_576);

/// Open files of the whole system; beyond it only the superuser opens one more. (Not among
/// [`LIMITS`], which are numbers of 32 bits.)
pub static MAX_FILES: Limit = Limit::new("file-max", LEAST_MAX_FILES);

/// [`MAX_FILES`] of the smallest machine, as on Linux.
const LEAST_MAX_FILES: usize = 8192;
/// Bytes of an open file with its inode and name, as Linux estimates them.
const FILE_COST: usize = 1024;

/// All limits that a user has.
pub static LIMITS: [&Limit; 5] = [
    &PIPE_USER_PAGES_SOFT,
    &PIPE_USER_PAGES_HARD,
    &MAX_USER_INSTANCES,
    &MAX_INOTIFY_WATCHES,
    &MAX_EPOLL_WATCHES,
];

/// Bytes of a watch of inotify with the inode that it keeps, and of one of epoll, as Linux
/// estimates them.
const INOTIFY_WATCH_COST: usize = 1024;
const EPOLL_WATCH_COST: usize = 192;

/// Sets the limits that depend on the size of the machine, as Linux does: watches of inotify may
/// take a hundredth of memory, those of epoll a twenty-fifth, open files a tenth.
pub fn scale_limits(memory_bytes: usize) {
    MAX_INOTIFY_WATCHES.set((memory_bytes / 100 / INOTIFY_WATCH_COST).clamp(8192, 1_048_576));
    MAX_EPOLL_WATCHES.set(memory_bytes / 25 / EPOLL_WATCH_COST);
    MAX_FILES.set((memory_bytes / 10 / FILE_COST).max(LEAST_MAX_FILES));
}

static IS_UNLIMITED: Once<fn() -> bool> = Once::new();

/// Installs what tells whether limits of the whole system do not concern the calling thread
/// (`CAP_SYS_ADMIN`). Before that they concern all. Only the first call counts.
pub fn set_unlimited(hook: fn() -> bool) {
    IS_UNLIMITED.call_once(|| hook);
}

/// Checks that so many files more than there are may be open, and that the kernel may take memory
/// for them; the superuser's calls may have more.
///
/// # Errors
/// `ENFILE`.
#[inline]
pub fn check_files(more: u64) -> Result<(), Errno> {
    let is_unlimited = || IS_UNLIMITED.get().is_some_and(|hook| hook());
    let fit = census::File::count() + more <= MAX_FILES.get() as u64 || is_unlimited();
    if fit && vm::has_kernel_room() {
        Ok(())
    } else {
        Err(Errno::ENFILE)
    }
}

/// Checks that the kernel may take memory for one object more of the calling thread, which has not
/// passed its high mark with it (`docs/memory.md`).
///
/// # Errors
/// `ENOMEM`.
#[inline]
pub fn check_memory() -> Result<(), Errno> {
    if vm::has_kernel_room() {
        Ok(())
    } else {
        Err(Errno::ENOMEM)
    }
}

/// Whether there is room for so many bytes of what outlives the process that asks, and has no
/// pages of its own: the rest of the machine's memory leaves it, and so does the kernel's mark.
#[must_use]
pub fn has_room(bytes: usize) -> bool {
    vm::has_kernel_room() && vm::has_room(bytes)
}

/// Number of kinds.
const KINDS: usize = Resource::SocketPages as usize + 1;

static CHARGED: Mutex<Charged> = Mutex::new(Charged {
    users: BTreeMap::new(),
    idle: None,
});

/// Amounts by user and kind.
struct Charged {
    users: BTreeMap<u32, [usize; KINDS]>,
    /// The last user who had nothing any more. His row stays, though it says nothing: who makes
    /// and removes one object again and again would make and remove it, too.
    idle: Option<u32>,
}

impl Charged {
    /// Notes that a user has nothing, if that is so.
    fn note_idle(&mut self, user: u32) {
        let has_nothing = |row: &[usize; KINDS]| row.iter().all(|amount| *amount == 0);
        if !self.users.get(&user).is_some_and(has_nothing) {
            return;
        }
        if let Some(before) = self.idle.replace(user).filter(|before| *before != user)
            && self.users.get(&before).is_some_and(has_nothing)
        {
            self.users.remove(&before);
        }
    }
}

/// An amount that a user is charged for.
#[derive(Debug)]
pub struct Charge {
    user: u32,
    resource: Resource,
    amount: usize,
}

impl Charge {
    /// A charge of nothing yet.
    #[must_use]
    pub const fn empty(user: u32, resource: Resource) -> Self {
        Self {
            user,
            resource,
            amount: 0,
        }
    }

    /// Charges a user with an amount, unless he has more than `most` then.
    #[must_use]
    pub fn new(user: u32, resource: Resource, amount: usize, most: usize) -> Option<Self> {
        let mut charge = Self::empty(user, resource);
        charge.resize(amount, most).then_some(charge)
    }

    /// Changes the amount. Not, and returns `false`, if it is to become more and the user has more
    /// than `most` then.
    pub fn resize(&mut self, amount: usize, most: usize) -> bool {
        let mut charged = CHARGED.lock();
        let row = charged.users.entry(self.user).or_insert([0; KINDS]);
        let sum = &mut row[self.resource as usize];
        let new = *sum - self.amount + amount;
        let fits = amount <= self.amount || new <= most;
        if fits {
            *sum = new;
            self.amount = amount;
        }
        if *sum == 0 {
            charged.note_idle(self.user);
        }
        fits
    }

    /// The amount.
    #[must_use]
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// The user who is charged.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.user
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.resize(0, 0);
        }
    }
}

/// Sum of what all users are charged for: nothing when nobody has anything.
pub(crate) fn total() -> u64 {
    let charged = CHARGED.lock();
    charged.users.values().flatten().map(|n| *n as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::Resource::{EpollWatches, PipePages};
    use super::*;

    fn charged(user: u32, resource: Resource) -> usize {
        let charged = CHARGED.lock();
        charged
            .users
            .get(&user)
            .map_or(0, |row| row[resource as usize])
    }

    #[test]
    fn a_user_is_charged_up_to_the_limit_and_uncharged_in_the_end() {
        const USER: u32 = 4_000_000_001;
        let first = Charge::new(USER, PipePages, 3, 5).unwrap();
        assert!(Charge::new(USER, PipePages, 3, 5).is_none());
        let mut second = Charge::new(USER, PipePages, 2, 5).unwrap();
        assert_eq!(charged(USER, PipePages), 5);
        assert!(!second.resize(3, 5));
        assert_eq!((second.amount, charged(USER, PipePages)), (2, 5));
        assert!(second.resize(1, 0), "less is always right");
        assert_eq!(charged(USER, PipePages), 4);
        assert!(Charge::new(USER, EpollWatches, 1, 1).is_some());
        assert!(Charge::new(USER + 1, PipePages, 5, 5).is_some());
        drop(first);
        assert_eq!(charged(USER, PipePages), 1);
        drop(second);
        assert_eq!(charged(USER, PipePages), 0);
    }

    #[test]
    fn of_users_who_have_nothing_one_is_remembered() {
        const USER: u32 = 4_100_000_000;
        for n in 0..100 {
            assert!(Charge::new(USER + n, PipePages, 1, 0).is_none());
            drop(Charge::new(USER + n, EpollWatches, 1, 1).unwrap());
        }
        let kept = Charge::new(USER, PipePages, 1, 1).unwrap();
        drop(Charge::new(USER, EpollWatches, 1, 1).unwrap());
        assert_eq!(charged(USER, PipePages), 1);
        let rows = CHARGED.lock().users.range(USER..USER + 100).count();
        assert!(rows <= 2, "{rows} rows");
        drop(kept);
    }
}
