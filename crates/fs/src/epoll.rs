//! Sets of files to wait for: `epoll(7)`.
//!
//! An entry leaves itself as a [`PollObserver`] at the sources of its file, once. A change puts the
//! entry on the set's ready list and wakes the set's waiters; a waiter takes entries off the list,
//! polls each for what is really so, and puts level-triggered ones back. The cost of a wait is thus
//! that of the ready files, not of all.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::sync::{AtomicBool, AtomicU32, Ordering};
use task::{Deadline, Mutex};

use crate::file::{FileOps, OpenFlags, Whence};
use crate::poll::{Events, PollObserver, PollQueue, PollTable};
use crate::{File, Result};

/// Events that may be combined with `EPOLLEXCLUSIVE`.
const WITH_EXCLUSIVE: u32 = sys::EPOLLEXCLUSIVE
    | sys::EPOLLIN
    | sys::EPOLLOUT
    | sys::EPOLLERR
    | sys::EPOLLHUP
    | sys::EPOLLWAKEUP
    | sys::EPOLLET;

/// How many sets may watch one another in a row.
const MAX_NESTING: usize = 5;

/// Events that a caller wants to hear of a file, and the word it gets back with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest {
    /// `EPOLLIN` … with the flags `EPOLLET`, `EPOLLONESHOT`, `EPOLLEXCLUSIVE`, `EPOLLWAKEUP`
    /// (ignored).
    pub events: u32,
    /// The caller's own.
    pub data: u64,
}

/// One ready file, as `epoll_wait(2)` returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyEvent {
    /// Events that are so.
    pub events: u32,
    /// The caller's word.
    pub data: u64,
}

struct EpollItem {
    _counted: census::EpollEntry,
    file: Weak<File>,
    set: Weak<Epoll>,
    /// `None` once removed from the set. Without event bits while a one-shot entry waits to be
    /// armed again.
    interest: Mutex<Option<Interest>>,
    /// Events that the entry was left for at the sources of its file.
    watched: AtomicU32,
    queued: AtomicBool,
    /// Of several sets that watch the file in this way one is told: the first that somebody waits
    /// for.
    exclusive: bool,
}

impl EpollItem {
    /// The events to be reported now.
    fn ready(&self) -> Option<(Interest, Events)> {
        let interest = (*self.interest.lock())?;
        let wanted = Events::from_bits_truncate(interest.events);
        if wanted.is_empty() {
            return None;
        }
        let found = self.file.upgrade()?.poll(None) & (wanted | Events::ALWAYS);
        (!found.is_empty()).then_some((interest, found))
    }
}

impl PollObserver for EpollItem {
    fn changed(self: Arc<Self>, what: Events) {
        self.take(what);
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn take(self: Arc<Self>, what: Events) -> bool {
        let interest = *self.interest.lock();
        if interest.is_none_or(|i| {
            (Events::from_bits_truncate(i.events) | Events::ALWAYS) & what == Events::empty()
        }) {
            return false;
        }
        match self.set.upgrade() {
            Some(set) => set.enqueue(self),
            None => false,
        }
    }
}

/// The key of an entry: the descriptor's number and the opening it referred to. The entry's weak
/// reference keeps the opening's address from being reused.
type Key = (i32, usize);

/// An epoll set.
pub struct Epoll {
    _counted: census::Epoll,
    entries: Mutex<BTreeMap<Key, Arc<EpollItem>>>,
    ready: Mutex<VecDeque<Arc<EpollItem>>>,
    waiters: PollQueue,
    this: Weak<Epoll>,
}

/// A new, empty set.
#[must_use]
pub fn epoll(flags: OpenFlags) -> Arc<File> {
    let set = Arc::new_cyclic(|this| Epoll {
        _counted: census::Epoll::default(),
        entries: Mutex::new(BTreeMap::new()),
        ready: Mutex::new(VecDeque::new()),
        waiters: PollQueue::new(),
        this: this.clone(),
    });
    File::anonymous(
        "anon_inode:[eventpoll]",
        Arc::new(EpollFile(set)),
        flags | OpenFlags::RDWR,
    )
}

/// An opening of a set.
pub struct EpollFile(Arc<Epoll>);

impl EpollFile {
    /// The set.
    #[must_use]
    pub fn set(&self) -> &Arc<Epoll> {
        &self.0
    }
}

fn key(fd: i32, file: &Arc<File>) -> Key {
    (fd, Arc::as_ptr(file).addr())
}

impl Epoll {
    /// The opening that the set watches by the descriptor `fd`; of several (the number was closed
    /// and given again) the one at place `skip`.
    #[must_use]
    pub fn watched(&self, fd: i32, skip: usize) -> Option<Arc<File>> {
        let entries = self.entries.lock();
        entries
            .range((fd, 0)..=(fd, usize::MAX))
            .filter_map(|(_, entry)| entry.file.upgrade())
            .nth(skip)
    }

    /// Puts an entry on the ready list, if it is not there yet, and wakes waiters. True if that
    /// woke somebody, who was not woken already for another change.
    fn enqueue(&self, entry: Arc<EpollItem>) -> bool {
        if entry.queued.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.ready.lock().push_back(entry);
        self.waiters.notify_and_count()
    }

    /// Watches `file` (`EPOLL_CTL_ADD`).
    ///
    /// # Errors
    /// `EINVAL` for what does not go with `EPOLLEXCLUSIVE`, `EEXIST`, `ELOOP` for sets that would
    /// watch one another in a ring.
    pub fn add(&self, fd: i32, file: &Arc<File>, interest: Interest) -> Result<()> {
        let exclusive = interest.events & sys::EPOLLEXCLUSIVE != 0;
        if exclusive
            && (interest.events & !WITH_EXCLUSIVE != 0 || file.ops_as::<EpollFile>().is_some())
        {
            return Err(Errno::EINVAL);
        }
        if let Some(inner) = file.ops_as::<EpollFile>()
            && inner.0.leads_to(self, MAX_NESTING)
        {
            return Err(Errno::ELOOP);
        }
        let entry = Arc::new(EpollItem {
            _counted: census::EpollEntry::default(),
            file: Arc::downgrade(file),
            set: self.this.clone(),
            interest: Mutex::new(Some(interest)),
            watched: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            exclusive,
        });
        {
            let mut entries = self.entries.lock();
            if entries.len().is_power_of_two() {
                entries.retain(|_, e| e.file.strong_count() != 0);
            }
            if entries.contains_key(&key(fd, file)) {
                return Err(Errno::EEXIST);
            }
            entries.insert(key(fd, file), entry.clone());
        }
        self.arm(&entry, file);
        Ok(())
    }

    /// Looks at a file after its interest changed; leaves the entry at the sources of what was not
    /// of interest before.
    fn arm(&self, entry: &Arc<EpollItem>, file: &Arc<File>) {
        let wanted = (*entry.interest.lock()).map_or(0, |i| i.events);
        let wanted = Events::from_bits_truncate(wanted) | Events::ALWAYS;
        let before =
            Events::from_bits_truncate(entry.watched.fetch_or(wanted.bits(), Ordering::Relaxed));
        let mut table =
            (!before.contains(wanted)).then(|| PollTable::new(entry.clone(), wanted, before));
        if file.poll(table.as_mut()).intersects(wanted) {
            self.enqueue(entry.clone());
        }
    }

    /// Changes what is watched for (`EPOLL_CTL_MOD`).
    ///
    /// # Errors
    /// `ENOENT` if the file is not in the set, `EINVAL` if it is watched with `EPOLLEXCLUSIVE`.
    pub fn modify(&self, fd: i32, file: &Arc<File>, interest: Interest) -> Result<()> {
        let entry = self
            .entries
            .lock()
            .get(&key(fd, file))
            .cloned()
            .ok_or(Errno::ENOENT)?;
        if entry.exclusive {
            return Err(Errno::EINVAL);
        }
        *entry.interest.lock() = Some(interest);
        self.arm(&entry, file);
        Ok(())
    }

    /// Forgets a file (`EPOLL_CTL_DEL`).
    ///
    /// # Errors
    /// `ENOENT` if the file is not in the set.
    pub fn remove(&self, fd: i32, file: &Arc<File>) -> Result<()> {
        let entry = self
            .entries
            .lock()
            .remove(&key(fd, file))
            .ok_or(Errno::ENOENT)?;
        *entry.interest.lock() = None;
        Ok(())
    }

    /// Waits until something is ready and hands it to `take`, one after the other, at most `max`.
    /// Returns how many; none: the deadline passed.
    ///
    /// # Errors
    /// `EINTR` when a signal came first; that of `take`, whose file stays ready.
    pub fn wait(
        &self,
        max: usize,
        deadline: Option<Deadline>,
        mut take: impl FnMut(usize, ReadyEvent) -> Result<()>,
    ) -> Result<usize> {
        loop {
            let found = self.collect(max, &mut take)?;
            if found > 0 || deadline.is_some_and(|d| d == Deadline::PASSED || d.has_passed()) {
                return Ok(found);
            }
            let any = || (!self.ready.lock().is_empty()).then_some(());
            self.waiters
                .wait_until(deadline, any)
                .map_err(|_| Errno::EINTR)?;
        }
    }

    /// Takes what is ready, without waiting.
    fn collect(
        &self,
        max: usize,
        take: &mut impl FnMut(usize, ReadyEvent) -> Result<()>,
    ) -> Result<usize> {
        let mut found = 0;
        let mut again = false;
        let mut result = Ok(());
        // Entries that come in while this runs are for the next round, else a busy file could keep
        // it going.
        let (mut budget, mut first) = {
            let mut ready = self.ready.lock();
            (ready.len(), ready.pop_front())
        };
        while found < max && budget > 0 && result.is_ok() {
            budget -= 1;
            let Some(entry) = first.take().or_else(|| self.ready.lock().pop_front()) else {
                break;
            };
            // From here on a change puts it on the list again, so none is lost between the look
            // below and the next.
            entry.queued.store(false, Ordering::Release);
            let Some((interest, events)) = entry.ready() else {
                continue;
            };
            result = take(
                found,
                ReadyEvent {
                    events: events.bits(),
                    data: interest.data,
                },
            );
            found += usize::from(result.is_ok());
            if result.is_ok() && interest.events & sys::EPOLLONESHOT != 0 {
                let mut current = entry.interest.lock();
                if *current == Some(interest) {
                    let flags = sys::EPOLLONESHOT | sys::EPOLLET;
                    *current = Some(Interest {
                        events: interest.events & flags,
                        data: interest.data,
                    });
                }
            } else if (result.is_err() || interest.events & sys::EPOLLET == 0)
                && !entry.queued.swap(true, Ordering::AcqRel)
            {
                // Behind those this round is about.
                self.ready.lock().push_back(entry);
                again = true;
            }
        }
        if again {
            self.waiters.notify();
        }
        if found > 0 {
            Ok(found)
        } else {
            result.map(|()| 0)
        }
    }

    /// Whether this set watches `other`, or is it, directly or through others.
    fn leads_to(&self, other: &Epoll, depth: usize) -> bool {
        if core::ptr::eq(self, other) || depth == 0 {
            return true;
        }
        let files: Vec<Arc<File>> = self
            .entries
            .lock()
            .values()
            .filter_map(|e| e.file.upgrade())
            .collect();
        files
            .iter()
            .filter_map(|f| f.ops_as::<EpollFile>())
            .any(|inner| inner.0.leads_to(other, depth - 1))
    }
}

impl FileOps for EpollFile {
    /// `usize::MAX`, which no transfer has: an epoll file is neither read nor written.
    fn least_transfer(&self) -> usize {
        usize::MAX
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.watch(&self.0.waiters);
        }
        let queued: Vec<Arc<EpollItem>> = self.0.ready.lock().iter().cloned().collect();
        if queued.iter().any(|entry| entry.ready().is_some()) {
            Events::READABLE
        } else {
            Events::empty()
        }
    }

    /// Zero: the position of an epoll file does not move.
    fn seek(&self, _: &File, _: Whence, _: i64) -> Result<u64> {
        Ok(0)
    }
}
