//! Readiness: who waits for a file, and how `poll(2)` and epoll learn that one changed.
//!
//! Every object that can block owns one or more [`PollQueue`]s. A thread that blocks in `read` or
//! `write` waits on the queue directly; a poller leaves a [`PollObserver`] there. The order is the
//! same for both and is what makes a lost wake-up impossible: the *waiter* makes itself known first
//! and looks at the state second; the *changer* changes the state first and calls
//! [`PollQueue::notify`] second.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;

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

/// Number of observers of a queue that are notified at a time.
const NOTIFY_BATCH: usize = 4;

/// An observer in its place in a queue.
struct Entry {
    /// Counts up with each observer that is added.
    key: u64,
    observer: Weak<dyn PollObserver>,
}

impl Entry {
    fn is_dropped(&self) -> bool {
        self.observer.strong_count() == 0
    }
}

/// The observers of a queue, in the order of their keys. The first needs no memory of its own: most
/// queues never have two.
#[derive(Default)]
struct Observers {
    next_key: u64,
    first: Option<Entry>,
    further: Vec<Entry>,
}

impl Observers {
    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.further.len()
    }

    /// Adds an observer behind the others. One that was dropped may give it its place.
    #[inline]
    fn add(&mut self, observer: &Arc<dyn PollObserver>) -> Result<()> {
        match &mut self.first {
            // With its key: at worst the new one hears of a change that is just being told.
            Some(first) if first.is_dropped() && self.further.is_empty() => {
                first.observer = Arc::downgrade(observer);
                Ok(())
            }
            _ => self.add_further(observer),
        }
    }

    fn add_further(&mut self, observer: &Arc<dyn PollObserver>) -> Result<()> {
        if self.first.is_some() && self.further.len() == self.further.capacity() {
            self.forget_dropped();
            self.further.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        }
        let entry = Entry {
            key: self.next_key,
            observer: Arc::downgrade(observer),
        };
        self.next_key += 1;
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.further.push(entry);
        }
        Ok(())
    }

    fn forget_dropped(&mut self) {
        self.further.retain(|entry| !entry.is_dropped());
        if self.first.as_ref().is_none_or(Entry::is_dropped) {
            self.first = (!self.further.is_empty()).then(|| self.further.remove(0));
        }
    }

    /// Fills `batch` with observers whose keys are within the range, and returns the key behind the
    /// last one.
    fn next_batch(
        &self,
        keys: Range<u64>,
        batch: &mut [Option<Arc<dyn PollObserver>>; NOTIFY_BATCH],
    ) -> u64 {
        let begin = self.further.partition_point(|entry| entry.key < keys.start);
        let first = self.first.iter().filter(|entry| entry.key >= keys.start);
        let entries = first.chain(&self.further[begin..]);
        let live = entries
            .take_while(|entry| entry.key < keys.end)
            .filter_map(|entry| Some((entry.key, entry.observer.upgrade()?)));
        let mut next = keys.end;
        let mut count = 0;
        for (slot, (key, observer)) in batch.iter_mut().zip(live) {
            *slot = Some(observer);
            next = key + 1;
            count += 1;
        }
        if count < NOTIFY_BATCH { keys.end } else { next }
    }
}

/// A queue of the threads and pollers that wait for one object to change (BSD `selinfo`, a wait
/// queue with callbacks on Linux).
pub struct PollQueue {
    queue: WaitQueue,
    observers: Mutex<Observers>,
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
            observers: Mutex::new(Observers {
                next_key: 0,
                first: None,
                further: Vec::new(),
            }),
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
        if let Some(only) = &observers.first
            && observers.further.is_empty()
            && let Some(observer) = only.observer.upgrade()
        {
            drop(observers);
            return observer.on_event(events);
        }
        self.notify_observer_list(observers, events);
    }

    /// Notifies several observers, and forgets those that were dropped. Needs no memory: as many
    /// programs as want may wait here.
    #[inline(never)]
    fn notify_observer_list<'a>(
        &'a self,
        mut observers: MutexGuard<'a, Observers>,
        events: Events,
    ) {
        observers.forget_dropped();
        self.observer_count
            .store(observers.len(), Ordering::Relaxed);
        // Those that are added meanwhile look at the state themselves.
        let mut keys = 0..observers.next_key;
        let mut taken = false;
        loop {
            let mut batch = [const { None }; NOTIFY_BATCH];
            keys.start = observers.next_batch(keys.clone(), &mut batch);
            drop(observers);
            for observer in batch.into_iter().flatten() {
                if !observer.is_exclusive() {
                    observer.on_event(events);
                } else if !taken {
                    taken = observer.on_event_exclusive(events);
                }
            }
            if keys.is_empty() {
                return;
            }
            observers = self.observers.lock();
        }
    }

    /// Adds an observer; it stays until its last strong reference is dropped.
    ///
    /// # Errors
    /// `ENOMEM`. The first observer of a queue always finds room.
    pub fn add_observer(&self, observer: &Arc<dyn PollObserver>) -> Result<()> {
        let mut observers = self.observers.lock();
        observers.add(observer)?;
        self.observer_count
            .store(observers.len(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(())
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
    result: Result<()>,
}

impl PollTable {
    /// A table that adds `observer` to the queues of what is in `events` and not in `registered`.
    #[must_use]
    pub fn new(observer: Arc<dyn PollObserver>, events: Events, registered: Events) -> Self {
        Self {
            observer,
            events,
            registered,
            result: Ok(()),
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
            self.result = self.result.and(queue.add_observer(&self.observer));
        }
    }

    /// Whether the observer was added to all queues.
    ///
    /// # Errors
    /// `ENOMEM`: it misses changes.
    pub fn result(&self) -> Result<()> {
        self.result
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

/// One look at the files of a [`poll`] call.
pub struct PollPass<'a> {
    is_first: bool,
    /// Until something is ready: then there will be no wait, and nobody needs to be told any more.
    table: Option<&'a mut PollTable>,
    ready: usize,
}

impl PollPass<'_> {
    /// Polls a file; returns those of the events in `wanted` that it is ready for. `poll(2)` adds
    /// [`Events::ALWAYS`] to what a program wants, `select(2)` does not.
    #[inline(always)]
    pub fn poll(&mut self, file: &File, wanted: Events) -> Events {
        if let Some(table) = &mut self.table {
            table.events = wanted | Events::ALWAYS;
        }
        let found = file.poll(self.table.as_deref_mut()) & wanted;
        if !found.is_empty() {
            self.count_ready();
        }
        found
    }

    /// Counts something as ready that is no file, so that there is no wait.
    pub fn count_ready(&mut self) {
        self.ready += 1;
        self.table = None;
    }

    /// Whether it is the first look of the call. Only that one says for which files it waits.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.is_first
    }
}

/// Waits until `look` finds something ready, or the deadline (`None`: never) passes. Returns how
/// many it found. It is called for one look at all files after the other, and uses the same files
/// each time.
///
/// ```
/// use fs::OpenFlags;
/// use fs::poll::{Events, poll};
///
/// let (reader, writer) = fs::pipe::pipe(OpenFlags::empty());
/// writer.write(b"x").unwrap();
/// let mut found = Events::empty();
/// assert_eq!(poll(None, |pass| found = pass.poll(&reader, Events::IN)), Ok(1));
/// assert_eq!(found, Events::IN);
/// ```
///
/// # Errors
/// `EINTR` when a signal came first; `ENOMEM`.
pub fn poll(deadline: Option<Deadline>, mut look: impl FnMut(&mut PollPass<'_>)) -> Result<usize> {
    let mut is_first = true;
    let mut look = |table: Option<&mut PollTable>| {
        let mut pass = PollPass {
            is_first: core::mem::take(&mut is_first),
            table,
            ready: 0,
        };
        look(&mut pass);
        pass.ready
    };
    let is_over = || deadline.is_some_and(Deadline::has_passed);
    if is_over() {
        return Ok(look(None));
    }
    let waiter = PollWaiter::new();
    let mut table = PollTable::new(waiter.clone(), Events::all(), Events::empty());
    let mut ready = look(Some(&mut table));
    while ready == 0 {
        table.result()?;
        if is_over() {
            break;
        }
        // One last look follows in any case: a change may have come together with the deadline.
        waiter.wait(deadline)?;
        ready = look(None);
    }
    Ok(ready)
}
