//! Readiness: who waits for a file, and how `poll(2)` and epoll learn that one changed.
//!
//! Every object that can block owns one or more [`PollQueue`]s. A thread that blocks in `read` or
//! `write` waits on the source directly; a poller leaves a [`PollObserver`] there. The order is the
//! same for both and is what makes a lost wake-up impossible: the *waiter* makes itself known first
//! and looks at the state second; the *changer* changes the state first and calls
//! [`PollQueue::notify`] second.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::sync::{AtomicBool, AtomicUsize, Ordering, fence};
use task::{Deadline, Mutex, MutexGuard, WaitError, WaitQueue};

use crate::{File, Result};

bitflags::bitflags! {
    /// Events of a file; the bits of `poll(2)` and `epoll_ctl(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Events: u32 {
        /// Data to read, or end of file.
        const IN = sys::POLLIN;
        /// An exceptional condition.
        const PRI = sys::POLLPRI;
        /// A write would not block.
        const OUT = sys::POLLOUT;
        /// An error, e.g. a pipe without readers. Always reported.
        const ERR = sys::POLLERR;
        /// Hung up: no more data will come. Always reported.
        const HUP = sys::POLLHUP;
        /// Not an open file (`poll(2)` only).
        const NVAL = sys::POLLNVAL;
        /// Equal to `IN`.
        const RDNORM = sys::POLLRDNORM;
        /// Unused band data.
        const RDBAND = sys::POLLRDBAND;
        /// Equal to `OUT`.
        const WRNORM = sys::POLLWRNORM;
        /// Unused band data.
        const WRBAND = sys::POLLWRBAND;
        /// The peer closed its writing half.
        const RDHUP = 0x2000;
    }
}

impl Events {
    /// Ready to read.
    pub const READABLE: Self = Self::IN.union(Self::RDNORM);
    /// Ready to write.
    pub const WRITABLE: Self = Self::OUT.union(Self::WRNORM);
    /// Events that are reported whether asked for or not.
    pub const ALWAYS: Self = Self::ERR.union(Self::HUP);
}

/// A callback left at a [`PollQueue`], run when the object behind it changed. Called in thread
/// context, never in an interrupt; must not block.
pub trait PollObserver: Send + Sync {
    /// The source changed; poll it again to learn how. Nothing but what is in `what` may have come
    /// true.
    fn changed(self: Arc<Self>, what: Events);

    /// Whether it is one of several of whom one is enough (`EPOLLEXCLUSIVE`); it is then told by
    /// [`PollObserver::take`].
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Tells an exclusive observer that the object changed. True if it will act, so that no other
    /// exclusive one needs to be told.
    fn take(self: Arc<Self>, what: Events) -> bool {
        self.changed(what);
        false
    }
}

/// So many watchers of a source are told without memory of the heap.
const FEW: usize = 2;

/// A queue of the threads and pollers that wait for one object to change (BSD `selinfo`, a wait
/// queue with callbacks on Linux).
pub struct PollQueue {
    queue: WaitQueue,
    watchers: Mutex<Vec<Weak<dyn PollObserver>>>,
    watcher_count: AtomicUsize,
}

impl Default for PollQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl PollQueue {
    /// A source nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            queue: WaitQueue::new(),
            watchers: Mutex::new(Vec::new()),
            watcher_count: AtomicUsize::new(0),
        }
    }

    /// Tells everybody that the state behind this source changed. Call it after the change, with no
    /// lock held that a waiter's condition takes.
    pub fn notify(&self) {
        self.notify_of(Events::all());
    }

    /// Wakes waiting threads and observers after a change by which nothing but the events in `what`
    /// can have come true; observers of other events may ignore it.
    #[inline]
    pub fn notify_of(&self, what: Events) {
        // Its fence pairs with the one in `watch`: either this sees the new watcher, or the
        // watcher's look at the state sees the change.
        self.queue.wake_all();
        if self.watcher_count.load(Ordering::Relaxed) != 0 {
            self.tell_watchers(what);
        }
    }

    /// Wakes waiting threads and observers after a change. True if a thread waited here.
    pub(crate) fn notify_and_count(&self) -> bool {
        let woken = self.queue.wake_and_count();
        if self.watcher_count.load(Ordering::Relaxed) != 0 {
            self.tell_watchers(Events::all());
        }
        woken > 0
    }

    #[inline(never)]
    fn tell_watchers(&self, what: Events) {
        // The watchers run without the lock: a watcher may drop files, and with them this source's
        // other users.
        let watchers = self.watchers.lock();
        if let [only] = &watchers[..]
            && let Some(watcher) = only.upgrade()
        {
            drop(watchers);
            return watcher.changed(what);
        }
        self.tell_all(watchers, what);
    }

    /// Tells several watchers, and forgets those that are gone.
    #[inline(never)]
    fn tell_all(&self, mut watchers: MutexGuard<'_, Vec<Weak<dyn PollObserver>>>, what: Events) {
        let mut few: [Option<Arc<dyn PollObserver>>; FEW] = [const { None }; FEW];
        let mut more: Vec<Arc<dyn PollObserver>> = Vec::new();
        watchers.retain(|w| w.strong_count() != 0);
        self.watcher_count.store(watchers.len(), Ordering::Relaxed);
        let mut live = watchers.iter().filter_map(Weak::upgrade);
        for (place, watcher) in few.iter_mut().zip(&mut live) {
            *place = Some(watcher);
        }
        more.extend(live);
        drop(watchers);
        let mut taken = false;
        for watcher in few.into_iter().flatten().chain(more) {
            if !watcher.is_exclusive() {
                watcher.changed(what);
            } else if !taken {
                taken = watcher.take(what);
            }
        }
    }

    /// Leaves a watcher here; it stays until its last strong reference is dropped.
    pub fn watch(&self, watcher: &Arc<dyn PollObserver>) {
        let mut watchers = self.watchers.lock();
        if watchers.len() == watchers.capacity() {
            watchers.retain(|w| w.strong_count() != 0);
        }
        watchers.push(Arc::downgrade(watcher));
        self.watcher_count.store(watchers.len(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Blocks until `ready` gives a value; a signal ends the wait with `ERESTARTSYS`.
    ///
    /// # Errors
    /// `ERESTARTSYS` when interrupted.
    #[inline]
    pub fn wait<R>(&self, ready: impl FnMut() -> Option<R>) -> Result<R> {
        self.queue
            .wait_interruptible(None, ready)
            .map_err(|_| Errno::ERESTARTSYS)
    }

    /// Blocks until `ready` gives a value, or until `deadline`: then the
    /// result is `Ok(None)`.
    ///
    /// # Errors
    /// `ERESTARTSYS` when interrupted.
    pub fn wait_until<R>(
        &self,
        deadline: Option<Deadline>,
        ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>> {
        match self.queue.wait_interruptible(deadline, ready) {
            Ok(value) => Ok(Some(value)),
            Err(WaitError::TimedOut) => Ok(None),
            Err(WaitError::Interrupted) => Err(Errno::ERESTARTSYS),
        }
    }

    /// Blocks until `ready` gives a value, signals notwithstanding (for kernel threads).
    pub fn wait_uninterruptible<R>(&self, ready: impl FnMut() -> Option<R>) -> R {
        self.queue.wait(ready)
    }
}

/// Handed to [`crate::FileOps::poll`] by somebody who will wait: each source the answer depends on
/// is named with [`PollTable::watch`], before the state is looked at.
pub struct PollTable {
    watcher: Arc<dyn PollObserver>,
    wanted: Events,
    /// Events that the observer was left for at the same sources before.
    before: Events,
}

impl PollTable {
    /// A table that leaves `watcher` at the sources of what is in `wanted` and was not in `before`.
    #[must_use]
    pub fn new(watcher: Arc<dyn PollObserver>, wanted: Events, before: Events) -> Self {
        Self {
            watcher,
            wanted,
            before,
        }
    }

    /// The answer depends on this source.
    pub fn watch(&mut self, source: &PollQueue) {
        self.watch_for(source, Events::all());
    }

    /// The answer depends on this source, which tells of nothing but `what`.
    pub fn watch_for(&mut self, source: &PollQueue, what: Events) {
        if self.wanted.intersects(what) && !self.before.intersects(what) {
            source.watch(&self.watcher);
        }
    }
}

/// One thread that waits for several files at once.
#[derive(Default)]
pub struct PollWaiter {
    changed: AtomicBool,
    queue: WaitQueue,
}

impl PollObserver for PollWaiter {
    fn changed(self: Arc<Self>, _: Events) {
        self.changed.store(true, Ordering::Release);
        self.queue.wake_all();
    }
}

impl PollWaiter {
    /// A waiter that has seen no change.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            changed: AtomicBool::new(false),
            queue: WaitQueue::new(),
        })
    }

    /// Waits for a change since the last call. `Ok(false)`: the deadline passed.
    ///
    /// # Errors
    /// `EINTR` when a signal came.
    pub fn wait(&self, deadline: Option<Deadline>) -> Result<bool> {
        let changed = || self.changed.swap(false, Ordering::Acquire).then_some(());
        match self.queue.wait_interruptible(deadline, changed) {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut) => Ok(false),
            Err(WaitError::Interrupted) => Err(Errno::EINTR),
        }
    }
}

/// One file of a [`poll`] call.
pub struct PollItem {
    /// The file. `None`: not to be looked at; what is in `found` then counts.
    pub file: Option<Arc<File>>,
    /// Events that end the wait. `poll(2)` adds [`Events::ALWAYS`], `select(2)` does not.
    pub wanted: Events,
    /// Wanted events that are so.
    pub found: Events,
}

/// Waits until one of the entries has something to report, or the deadline (`None`: never)
/// passes. Returns how many have.
///
/// # Errors
/// `EINTR` when a signal came first.
pub fn poll(entries: &mut [PollItem], deadline: Option<Deadline>) -> Result<usize> {
    let waiter = PollWaiter::new();
    let mut table = Some(PollTable::new(
        waiter.clone(),
        Events::all(),
        Events::empty(),
    ));
    loop {
        let mut ready = 0;
        for entry in &mut *entries {
            if let Some(file) = &entry.file {
                // Once something is ready there will be no wait, so nobody needs to be told any
                // more.
                let mut table = table.as_mut().filter(|_| ready == 0);
                if let Some(table) = &mut table {
                    table.wanted = entry.wanted | Events::ALWAYS;
                }
                entry.found = file.poll(table) & entry.wanted;
            }
            ready += usize::from(!entry.found.is_empty());
        }
        if ready > 0 || deadline.is_some_and(Deadline::has_passed) {
            return Ok(ready);
        }
        table = None;
        // One last look follows in any case: a change may have come together with the deadline.
        waiter.wait(deadline)?;
    }
}
