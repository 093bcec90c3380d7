//! Event notification for many files: `epoll(7)`.
//!
//! An item leaves itself as a [`PollObserver`] at the poll queues of its file, once. A change puts
//! the item on the instance's ready list and wakes the instance's waiters; a waiter takes items off
//! the list, polls each for what is really so, and puts level-triggered ones back. The cost of a
//! wait is thus that of the ready files, not of all.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};

use abi::errno::Errno;
use fallible::Pieces;
use linux_raw_sys::general as sys;
use task::sync::{AtomicBool, AtomicU32, Ordering};
use task::{Deadline, Mutex};

use crate::charge::{self, Charge, Resource};
use crate::file::{FileOps, OpenFlags, Whence};
use crate::poll::{Events, PollObserver, PollQueue, PollTable};
use crate::{File, Result};

/// Events that may be combined with `EPOLLEXCLUSIVE`.
const EXCLUSIVE_OK_BITS: u32 = sys::EPOLLEXCLUSIVE
    | sys::EPOLLIN
    | sys::EPOLLOUT
    | sys::EPOLLERR
    | sys::EPOLLHUP
    | sys::EPOLLWAKEUP
    | sys::EPOLLET;

/// How many instances may be watched by one another below one (Linux `EP_MAX_NESTS`).
const MAX_NESTING: usize = 4;

/// Requested events of a file, with the data that is returned with them (`struct epoll_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest {
    /// `EPOLLIN` … with the flags `EPOLLET`, `EPOLLONESHOT`, `EPOLLEXCLUSIVE`, `EPOLLWAKEUP`
    /// (ignored).
    pub events: u32,
    /// The caller's data, returned unchanged.
    pub data: u64,
}

/// One ready file, as `epoll_wait(2)` returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyEvent {
    /// Events that the file is ready for (`EPOLLIN` …).
    pub events: u32,
    /// Data of the [`Interest`] that the file was added with.
    pub data: u64,
}

/// A file that an instance watches (Linux `struct epitem`).
struct EpollItem {
    _counted: census::EpollEntry,
    _charge: Option<Charge>,
    file: Weak<File>,
    instance: Weak<Epoll>,
    /// `None` once removed from the instance. Without event bits while a one-shot item waits to be
    /// armed again.
    interest: Mutex<Option<Interest>>,
    /// Events for which the item was added to the poll queues of its file.
    registered_events: AtomicU32,
    queued: AtomicBool,
    /// `EPOLLEXCLUSIVE`: of several instances that watch the file in this way one is notified, the
    /// first on which a thread waits.
    exclusive: bool,
}

impl EpollItem {
    /// Polls the file: the requested events that it is ready for, with the interest (Linux
    /// `ep_item_poll`). `None`: nothing to report.
    fn poll_item(&self) -> Option<(Interest, Events)> {
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
    fn on_event(self: Arc<Self>, events: Events) {
        self.on_event_exclusive(events);
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn on_event_exclusive(self: Arc<Self>, events: Events) -> bool {
        let interest = *self.interest.lock();
        if interest.is_none_or(|i| {
            (Events::from_bits_truncate(i.events) | Events::ALWAYS) & events == Events::empty()
        }) {
            return false;
        }
        match self.instance.upgrade() {
            Some(epoll) => epoll.add_ready(self),
            None => false,
        }
    }
}

/// Key of an item: the descriptor's number and the address of the open file it referred to. The
/// item's weak reference keeps that address from being reused.
type Key = (i32, usize);

/// An epoll instance: the files it watches and those of them that are ready (Linux `struct
/// eventpoll`).
pub struct Epoll {
    _counted: census::Epoll,
    items: Mutex<BTreeMap<Key, Arc<EpollItem>>>,
    ready: Mutex<VecDeque<Arc<EpollItem>>>,
    waiters: PollQueue,
    /// The user who made it, and is charged for what it watches; none for the kernel's own.
    user: Option<u32>,
    this: Weak<Epoll>,
}

/// A new epoll instance that watches nothing, as an open file.
#[must_use]
pub fn epoll(flags: OpenFlags) -> Arc<File> {
    epoll_for(None, flags)
}

/// A new epoll instance as [`epoll`] makes it; `user` is charged for the files it watches.
#[must_use]
pub fn epoll_for(user: Option<u32>, flags: OpenFlags) -> Arc<File> {
    let instance = Arc::new_cyclic(|this| Epoll {
        _counted: census::Epoll::default(),
        items: Mutex::new(BTreeMap::new()),
        ready: Mutex::new(VecDeque::new()),
        waiters: PollQueue::new(),
        user,
        this: this.clone(),
    });
    File::anonymous(
        "anon_inode:[eventpoll]",
        Arc::new(EpollFile(instance)),
        flags | OpenFlags::RDWR,
    )
}

/// Operations of an open epoll file.
pub struct EpollFile(Arc<Epoll>);

impl EpollFile {
    /// The epoll instance behind the file.
    #[must_use]
    pub fn instance(&self) -> &Arc<Epoll> {
        &self.0
    }
}

fn item_key(fd: i32, file: &Arc<File>) -> Key {
    (fd, Arc::as_ptr(file).addr())
}

impl Epoll {
    /// The file that the instance watches as descriptor `fd`; of several (the number was closed and
    /// given again) the one with index `skip`.
    #[must_use]
    pub fn find_file(&self, fd: i32, skip: usize) -> Option<Arc<File>> {
        let items = self.items.lock();
        items
            .range((fd, 0)..=(fd, usize::MAX))
            .filter_map(|(_, item)| item.file.upgrade())
            .nth(skip)
    }

    /// Puts an item on the ready list, if it is not there yet, and wakes waiters. True if that woke
    /// a thread that was not woken already for another change.
    fn add_ready(&self, item: Arc<EpollItem>) -> bool {
        if item.queued.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.ready.lock().push_back(item);
        self.waiters.notify_and_count()
    }

    /// Makes room for `items` on the ready list, on which each is at most once: none is refused
    /// when it becomes ready. What is on the list and not watched any more goes when there is no
    /// room beside it.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn make_room(&self, items: usize) -> Result<()> {
        let mut ready = self.ready.lock();
        if ready.len() + items <= ready.capacity() {
            return Ok(());
        }
        ready.retain(|item| item.interest.lock().is_some());
        // Twice as much, so that this is not done for each.
        let needed = 2 * (ready.len() + items);
        if needed <= ready.capacity() {
            return Ok(());
        }
        let more = needed - ready.len();
        ready.try_reserve(more).map_err(|_| Errno::ENOMEM)
    }

    /// Adds `file` to the files that are watched (`EPOLL_CTL_ADD`).
    ///
    /// # Errors
    /// `EINVAL` for what cannot be combined with `EPOLLEXCLUSIVE`, `EEXIST`, `ELOOP` for instances
    /// that would watch one another in a cycle, `ENOSPC` if the user watches as many files as he
    /// may, `ENOMEM`.
    pub fn add(&self, fd: i32, file: &Arc<File>, interest: Interest) -> Result<()> {
        let exclusive = interest.events & sys::EPOLLEXCLUSIVE != 0;
        if exclusive
            && (interest.events & !EXCLUSIVE_OK_BITS != 0 || file.ops_as::<EpollFile>().is_some())
        {
            return Err(Errno::EINVAL);
        }
        if let Some(inner) = file.ops_as::<EpollFile>()
            && inner.0.reaches(self, MAX_NESTING)
        {
            return Err(Errno::ELOOP);
        }
        charge::check_memory()?;
        let most = charge::MAX_EPOLL_WATCHES.get();
        let charge = |user| Charge::new(user, Resource::EpollWatches, 1, most).ok_or(Errno::ENOSPC);
        let charge = self.user.map(charge).transpose()?;
        let item = Arc::new(EpollItem {
            _counted: census::EpollEntry::default(),
            _charge: charge,
            file: Arc::downgrade(file),
            instance: self.this.clone(),
            interest: Mutex::new(Some(interest)),
            registered_events: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            exclusive,
        });
        {
            let mut items = self.items.lock();
            if items.len().is_power_of_two() {
                items.retain(|_, e| e.file.strong_count() != 0);
            }
            if items.contains_key(&item_key(fd, file)) {
                return Err(Errno::EEXIST);
            }
            self.make_room(items.len() + 1)?;
            items.insert(item_key(fd, file), item.clone());
        }
        self.poll_and_register(&item, file).inspect_err(|_| {
            *item.interest.lock() = None;
            drop(self.items.lock().remove(&item_key(fd, file)));
        })
    }

    /// Polls a file after its interest changed; adds the item to the poll queues of events that
    /// were not of interest before.
    fn poll_and_register(&self, item: &Arc<EpollItem>, file: &Arc<File>) -> Result<()> {
        let wanted = (*item.interest.lock()).map_or(0, |i| i.events);
        let wanted = Events::from_bits_truncate(wanted) | Events::ALWAYS;
        let before = Events::from_bits_truncate(
            item.registered_events
                .fetch_or(wanted.bits(), Ordering::Relaxed),
        );
        let mut table =
            (!before.contains(wanted)).then(|| PollTable::new(item.clone(), wanted, before));
        let found = file.poll(table.as_mut());
        if let Err(error) = table.map_or(Ok(()), |table| table.result()) {
            // It may be tried again; to be in a queue twice does no harm.
            item.registered_events
                .store(before.bits(), Ordering::Relaxed);
            return Err(error);
        }
        if found.intersects(wanted) {
            self.add_ready(item.clone());
        }
        Ok(())
    }

    /// Changes the events that a file is watched for (`EPOLL_CTL_MOD`).
    ///
    /// # Errors
    /// `ENOENT` if the file is not watched, `EINVAL` if it is watched with `EPOLLEXCLUSIVE`,
    /// `ENOMEM`: it is watched as before.
    pub fn modify(&self, fd: i32, file: &Arc<File>, interest: Interest) -> Result<()> {
        let item = self
            .items
            .lock()
            .get(&item_key(fd, file))
            .cloned()
            .ok_or(Errno::ENOENT)?;
        if item.exclusive {
            return Err(Errno::EINVAL);
        }
        let before = item.interest.lock().replace(interest);
        self.poll_and_register(&item, file)
            .inspect_err(|_| *item.interest.lock() = before)
    }

    /// Removes a file from those that are watched (`EPOLL_CTL_DEL`).
    ///
    /// # Errors
    /// `ENOENT` if the file is not watched.
    pub fn remove(&self, fd: i32, file: &Arc<File>) -> Result<()> {
        let item = self
            .items
            .lock()
            .remove(&item_key(fd, file))
            .ok_or(Errno::ENOENT)?;
        *item.interest.lock() = None;
        Ok(())
    }

    /// Waits until files are ready and passes each to `emit`, at most `max`. Returns how many; 0:
    /// the deadline passed.
    ///
    /// # Errors
    /// `EINTR` when a signal came first; that of `emit`, whose file stays ready.
    pub fn wait(
        &self,
        max: usize,
        deadline: Option<Deadline>,
        mut emit: impl FnMut(usize, ReadyEvent) -> Result<()>,
    ) -> Result<usize> {
        loop {
            let found = self.send_events(max, &mut emit)?;
            if found > 0 || deadline.is_some_and(|d| d == Deadline::PASSED || d.has_passed()) {
                return Ok(found);
            }
            let any = || (!self.ready.lock().is_empty()).then_some(());
            self.waiters
                .wait_until(deadline, any)
                .map_err(|_| Errno::EINTR)?;
        }
    }

    /// Passes the ready files to `emit`, without waiting (Linux `ep_send_events`).
    fn send_events(
        &self,
        max: usize,
        emit: &mut impl FnMut(usize, ReadyEvent) -> Result<()>,
    ) -> Result<usize> {
        let mut found = 0;
        let mut again = false;
        let mut result = Ok(());
        // Items that come in while this runs are for the next round, else a busy file could keep
        // it going.
        let (mut budget, mut first) = {
            let mut ready = self.ready.lock();
            (ready.len(), ready.pop_front())
        };
        while found < max && budget > 0 && result.is_ok() {
            budget -= 1;
            let Some(item) = first.take().or_else(|| self.ready.lock().pop_front()) else {
                break;
            };
            // From here on a change puts it on the list again, so none is lost between the look
            // below and the next.
            item.queued.store(false, Ordering::Release);
            let Some((interest, events)) = item.poll_item() else {
                continue;
            };
            result = emit(
                found,
                ReadyEvent {
                    events: events.bits(),
                    data: interest.data,
                },
            );
            found += usize::from(result.is_ok());
            if result.is_ok() && interest.events & sys::EPOLLONESHOT != 0 {
                let mut current = item.interest.lock();
                if *current == Some(interest) {
                    let flags = sys::EPOLLONESHOT | sys::EPOLLET;
                    *current = Some(Interest {
                        events: interest.events & flags,
                        data: interest.data,
                    });
                }
            } else if (result.is_err() || interest.events & sys::EPOLLET == 0)
                && !item.queued.swap(true, Ordering::AcqRel)
            {
                // Behind those this round is about.
                self.ready.lock().push_back(item);
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

    /// Whether this instance watches `other`, or is it, directly or through others.
    fn reaches(&self, other: &Epoll, depth: usize) -> bool {
        if core::ptr::eq(self, other) || depth == 0 {
            return true;
        }
        let files: Pieces<Arc<File>> = self
            .items
            .lock()
            .values()
            .filter_map(|e| e.file.upgrade())
            .collect();
        files
            .iter()
            .filter_map(|f| f.ops_as::<EpollFile>())
            .any(|inner| inner.0.reaches(other, depth - 1))
    }
}

impl FileOps for EpollFile {
    /// `usize::MAX`, which no transfer has: an epoll file is neither read nor written.
    fn min_transfer(&self) -> usize {
        usize::MAX
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.0.waiters);
        }
        let queued: Pieces<Arc<EpollItem>> = self.0.ready.lock().iter().cloned().collect();
        if queued.iter().any(|item| item.poll_item().is_some()) {
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
