//! Readiness: who waits for a file, and how `poll(2)` and epoll learn that one changed.
//!
//! Every object that can block owns one or more [`PollQueue`]s. A thread that blocks in `read` or
//! `write` waits on the queue directly; a poller leaves a [`PollObserver`] there. The order is the
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
    /// Called when the object changed; poll it again to learn how. Only `events` may have become
    /// true.
    fn on_event(self: Arc<Self>, events: Events);

    /// Whether waking one of several observers is enough (`EPOLLEXCLUSIVE`); such an observer is
    /// called through [`PollObserver::on_event_exclusive`].
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Tells an exclusive observer that the object changed. True if it will act, so that no other
    /// exclusive one needs to be told.
    fn on_event_exclusive(self: Arc<Self>, events: Events) -> bool {
        self.on_event(events);
        false
    }
}

/// Number of observers of a queue that are notified without allocating.
const INLINE_OBSERVERS: usize = 2;

/// A queue of the threads and pollers that wait for one object to change (BSD `selinfo`, a wait
/// queue with callbacks on Linux).
pub struct PollQueue {
    queue: WaitQueue,
    observers: Mutex<Vec<Weak<dyn PollObserver>>>,
    observer_count: AtomicUsize,
}

impl Default for PollQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl PollQueue {
    /// A queue on which nobody waits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            queue: WaitQueue::new(),
            observers: Mutex::new(Vec::new()),
            observer_count: AtomicUsize::new(0),
        }
    }

    /// Wakes waiting threads and observers after any change of the object. Call it after the
    /// change, with no lock held that a waiter's condition takes.
    pub fn notify(&self) {
        self.notify_events(Events::all());
    }

    /// Wakes waiting threads and observers after a change by which nothing but `events` can have
    /// become true; observers of other events may ignore it.
    #[inline]
    pub fn notify_events(&self, events: Events) {
        // Its fence pairs with the one in `add_observer`: either this sees the new observer, or the
        // observer's look at the state sees the change.
        self.queue.wake_all();
        if self.observer_count.load(Ordering::Relaxed) != 0 {
            self.notify_observers(events);
        }
    }

    /// Wakes waiting threads and observers after a change. True if a thread waited here.
    pub(crate) fn notify_and_count(&self) -> bool {
        let woken = self.queue.wake_and_count();
        if self.observer_count.load(Ordering::Relaxed) != 0 {
            self.notify_observers(Events::all());
        }
        woken > 0
    }

    #[inline(never)]
    fn notify_observers(&self, events: Events) {
        // The observers run without the lock: an observer may drop files, and with them this
        // queue's other users.
        let observers = self.observers.lock();
        if let [only] = &observers[..]
            && let Some(observer) = only.upgrade()
        {
            drop(observers);
            return observer.on_event(events);
        }
        self.notify_observer_list(observers, events);
    }

    /// Notifies several observers, and forgets those that were dropped.
    #[inline(never)]
    fn notify_observer_list(
        &self,
        mut observers: MutexGuard<'_, Vec<Weak<dyn PollObserver>>>,
        events: Events,
    ) {
        let mut inline: [Option<Arc<dyn PollObserver>>; INLINE_OBSERVERS] =
            [const { None }; INLINE_OBSERVERS];
        let mut more: Vec<Arc<dyn PollObserver>> = Vec::new();
        observers.retain(|w| w.strong_count() != 0);
        self.observer_count
            .store(observers.len(), Ordering::Relaxed);
        let mut live = observers.iter().filter_map(Weak::upgrade);
        for (slot, observer) in inline.iter_mut().zip(&mut live) {
            *slot = Some(observer);
        }
        more.extend(live);
        drop(observers);
        let mut taken = false;
        for observer in inline.into_iter().flatten().chain(more) {
            if !observer.is_exclusive() {
                observer.on_event(events);
            } else if !taken {
                taken = observer.on_event_exclusive(events);
            }
        }
    }

    /// Adds an observer; it stays until its last strong reference is dropped.
    pub fn add_observer(&self, observer: &Arc<dyn PollObserver>) {
        let mut observers = self.observers.lock();
        if observers.len() == observers.capacity() {
            observers.retain(|w| w.strong_count() != 0);
        }
        observers.push(Arc::downgrade(observer));
        self.observer_count
            .store(observers.len(), Ordering::Relaxed);
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

/// Poll table (Linux `poll_table`): collects the queues that the answer of
/// [`crate::FileOps::poll`] depends on. Each is registered with [`PollTable::poll_wait`] before the
/// state is looked at.
pub struct PollTable {
    observer: Arc<dyn PollObserver>,
    events: Events,
    /// Events for which the observer was added to the same queues before.
    registered: Events,
}

impl PollTable {
    /// A table that adds `observer` to the queues of what is in `events` and not in `registered`.
    #[must_use]
    pub fn new(observer: Arc<dyn PollObserver>, events: Events, registered: Events) -> Self {
        Self {
            observer,
            events,
            registered,
        }
    }

    /// Registers the observer at a queue that the answer depends on (Linux `poll_wait`). Does not
    /// block.
    pub fn poll_wait(&mut self, queue: &PollQueue) {
        self.poll_wait_events(queue, Events::all());
    }

    /// Registers the observer at a queue that is notified of nothing but `events`.
    pub fn poll_wait_events(&mut self, queue: &PollQueue, events: Events) {
        if self.events.intersects(events) && !self.registered.intersects(events) {
            queue.add_observer(&self.observer);
        }
    }
}

/// A thread that waits for several files at once (Linux `poll_wqueues`).
#[derive(Default)]
pub struct PollWaiter {
    triggered: AtomicBool,
    queue: WaitQueue,
}

impl PollObserver for PollWaiter {
    fn on_event(self: Arc<Self>, _: Events) {
        self.triggered.store(true, Ordering::Release);
        self.queue.wake_all();
    }
}

impl PollWaiter {
    /// A waiter that has seen no change.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            triggered: AtomicBool::new(false),
            queue: WaitQueue::new(),
        })
    }

    /// Waits for a change since the last call. `Ok(false)`: the deadline passed.
    ///
    /// # Errors
    /// `EINTR` when a signal came.
    pub fn wait(&self, deadline: Option<Deadline>) -> Result<bool> {
        let changed = || self.triggered.swap(false, Ordering::Acquire).then_some(());
        match self.queue.wait_interruptible(deadline, changed) {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut) => Ok(false),
            Err(WaitError::Interrupted) => Err(Errno::EINTR),
        }
    }
}

/// One file of a [`poll`] call (`struct pollfd`).
pub struct PollItem {
    /// The file to poll. `None`: not polled; `revents` is returned as it is.
    pub file: Option<Arc<File>>,
    /// Events that end the wait. `poll(2)` adds [`Events::ALWAYS`], `select(2)` does not.
    pub events: Events,
    /// Requested events that the file is ready for.
    pub revents: Events,
}

/// Waits until one of the items has something to report, or the deadline (`None`: never)
/// passes. Returns how many have.
///
/// # Errors
/// `EINTR` when a signal came first.
pub fn poll(items: &mut [PollItem], deadline: Option<Deadline>) -> Result<usize> {
    let waiter = PollWaiter::new();
    let mut table = Some(PollTable::new(
        waiter.clone(),
        Events::all(),
        Events::empty(),
    ));
    loop {
        let mut ready = 0;
        for item in &mut *items {
            if let Some(file) = &item.file {
                // Once something is ready there will be no wait, so nobody needs to be told any
                // more.
                let mut table = table.as_mut().filter(|_| ready == 0);
                if let Some(table) = &mut table {
                    table.events = item.events | Events::ALWAYS;
                }
                item.revents = file.poll(table) & item.events;
            }
            ready += usize::from(!item.revents.is_empty());
        }
        if ready > 0 || deadline.is_some_and(Deadline::has_passed) {
            return Ok(ready);
        }
        table = None;
        // One last look follows in any case: a change may have come together with the deadline.
        waiter.wait(deadline)?;
    }
}
