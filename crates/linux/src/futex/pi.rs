//! Futexes with priority inheritance: `FUTEX_LOCK_PI` and its relatives.
//!
//! The word holds its owner's number, so that a lock nobody waits for never comes here. One that
//! somebody waits for is in the table below, with its owner, who runs with the highest priority of
//! those that wait for him, and for those, and so on. Unlocking hands the lock over to the waiter
//! that goes first: the word never says that it is free while somebody waits.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ::task::{Deadline, Mutex, Policy, Thread};
use abi::errno::Errno;
use guard::user;
use linux_raw_sys::general::{FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS};
use uapi::futex::{FutexAccess, FutexScope};
use uapi::pid::Tid;
use uapi::user_addr::UserAddr;
use vm::FutexKey;

use crate::futex::{Word, efault, futex_key, modify_user_word};
use crate::process::process_table;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, current_task};

/// Longest chain of locks of which the owner of each waits for the next.
const MAX_LOCK_DEPTH: usize = 64;

/// State of a waiter: the lock is not his yet.
const WAITING: u32 = 0;
/// The lock is his, and the word says so.
const GRANTED: u32 = 1;
/// State of a waiter that got the lock because its owner ended; the word does not say so yet.
const GRANTED_OWNER_DIED: u32 = 2;

/// Whether a caller waits for a lock that another thread holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockMode {
    /// The caller waits (`FUTEX_LOCK_PI`).
    Wait,
    /// The call fails with `EAGAIN` (`FUTEX_TRYLOCK_PI`).
    Try,
}

/// Key of a lock's word, and what keeps it from changing its meaning.
type Key = (Word, Option<FutexKey>);

/// A thread that waits.
struct PiWaiter {
    task: Arc<Task>,
    thread: Arc<Thread>,
    state: AtomicU32,
}

impl PiWaiter {
    fn new(task: &Task) -> Result<Arc<Self>, Errno> {
        let task_ = current_task().ok_or(Errno::ESRCH)?;
        Ok(Arc::new(Self {
            task: task_,
            thread: task.thread().clone(),
            state: AtomicU32::new(WAITING),
        }))
    }

    fn tid(&self) -> u32 {
        self.task.tid().as_u32()
    }

    /// Sets the state of the waiter and wakes it.
    fn wake_as(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        self.thread.unpark();
    }
}

/// A lock that somebody waits for.
struct PiState {
    key: Key,
    owner: Arc<Task>,
    waiters: Vec<Arc<PiWaiter>>,
    /// Whether the owner has yet to write its number into the word ([`GRANTED_OWNER_DIED`]).
    needs_fixup: bool,
}

/// A thread that waits for a word until it is moved to a lock (`FUTEX_WAIT_REQUEUE_PI`).
struct RequeueWaiter {
    from: Key,
    to: Key,
    waiter: Arc<PiWaiter>,
}

#[derive(Default)]
struct PiTable {
    locks: Vec<PiState>,
    requeue_waiters: Vec<RequeueWaiter>,
}

/// Held while the words of its locks are read and written.
static TABLE: Mutex<PiTable> = Mutex::new(PiTable {
    locks: Vec::new(),
    requeue_waiters: Vec::new(),
});
/// Number of locks in the table, for threads that end.
static PI_STATE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Sizes of the table of locks with priority inheritance.
pub(crate) struct PiCounts {
    /// Locks that threads wait for.
    pub(crate) locks: usize,
    /// Threads that wait to be moved to a lock (`FUTEX_CMP_REQUEUE_PI`).
    pub(crate) requeues: usize,
}

/// The number of contended locks and of pending requeues.
pub(crate) fn counts() -> PiCounts {
    let table = TABLE.lock();
    PiCounts {
        locks: table.locks.len(),
        requeues: table.requeue_waiters.len(),
    }
}

/// Rank of a policy among waiters: the greatest goes first.
fn rank(policy: Policy) -> i32 {
    match policy {
        Policy::Fifo(priority) | Policy::Rr(priority) => 1000 + i32::from(priority),
        Policy::Other(nice) | Policy::Batch(nice) => 100 - i32::from(nice),
        Policy::Idle => 0,
    }
}

fn load(addr: UserAddr) -> Result<u32, Errno> {
    user::load_u32(addr.raw()).map_err(efault)
}

/// Replaces the word if it is `old`; returns whether it was.
fn compare_exchange(addr: UserAddr, old: u32, new: u32) -> Result<bool, Errno> {
    Ok(user::cmpxchg_u32(addr.raw(), old, new).map_err(efault)? == old)
}

impl PiTable {
    fn find(&self, key: &Key) -> Option<usize> {
        self.locks.iter().position(|lock| lock.key.0 == key.0)
    }

    fn count(&self) {
        PI_STATE_COUNT.store(self.locks.len(), Ordering::SeqCst);
    }

    /// Lock that a thread waits for.
    fn blocked_on(&self, task: &Arc<Task>) -> Option<&PiState> {
        self.locks.iter().find(|lock| {
            lock.waiters
                .iter()
                .any(|waiter| Arc::ptr_eq(&waiter.task, task))
        })
    }

    /// Whether `owner` waits for `task`, itself or by a chain of owners.
    fn would_deadlock(&self, owner: &Arc<Task>, task: &Arc<Task>) -> bool {
        let mut owner = owner;
        for _ in 0..MAX_LOCK_DEPTH {
            if Arc::ptr_eq(owner, task) {
                return true;
            }
            match self.blocked_on(owner) {
                Some(lock) => owner = &lock.owner,
                None => return false,
            }
        }
        true
    }

    /// Gives an owner the priority of its waiters, and the owner of what it waits for its own, and
    /// so on.
    fn propagate_priority(&self, owner: &Arc<Task>) {
        let mut owner = owner;
        for _ in 0..MAX_LOCK_DEPTH {
            let own = |lock: &&PiState| Arc::ptr_eq(&lock.owner, owner);
            let waiters = self.locks.iter().filter(own).flat_map(|lock| &lock.waiters);
            owner.set_pi_boost(
                waiters
                    .map(|waiter| waiter.task.effective_policy())
                    .max_by_key(|&policy| rank(policy)),
                rank,
            );
            match self.blocked_on(owner) {
                Some(lock) => owner = &lock.owner,
                None => return,
            }
        }
    }

    /// Takes the lock for `waiter` (true), or enqueues it. `addr` is the word's address for the
    /// caller.
    fn lock_or_enqueue(
        &mut self,
        key: &Key,
        addr: UserAddr,
        waiter: &Arc<PiWaiter>,
        mode: LockMode,
    ) -> Result<bool, Errno> {
        loop {
            let word = load(addr)?;
            let tid = word & FUTEX_TID_MASK;
            if tid == waiter.tid() {
                return Err(Errno::EDEADLK);
            }
            let found = self.find(key);
            if found.is_none() && tid == 0 {
                if compare_exchange(addr, word, word & FUTEX_OWNER_DIED | waiter.tid())? {
                    return Ok(true);
                }
                continue;
            }
            if word & FUTEX_WAITERS == 0 && !compare_exchange(addr, word, word | FUTEX_WAITERS)? {
                continue;
            }
            let owner = match found {
                Some(at) => self.locks[at].owner.clone(),
                None => match process_table::find_task(Tid::new(tid.cast_signed())) {
                    Some(task) => task,
                    None if load(addr)? == word | FUTEX_WAITERS => return Err(Errno::ESRCH),
                    // He has ended since the word was read, and given the lock back by his robust
                    // list.
                    None => continue,
                },
            };
            if mode == LockMode::Try {
                let is_gone = found.is_none() && owner.pi_locks_released.load(Ordering::SeqCst);
                return Err(if is_gone && load(addr)? == word | FUTEX_WAITERS {
                    Errno::ESRCH
                } else {
                    Errno::EAGAIN
                });
            }
            if self.would_deadlock(&owner, &waiter.task) {
                return Err(Errno::EDEADLK);
            }
            match found {
                Some(at) => fallible::push(&mut self.locks[at].waiters, waiter.clone())?,
                None => {
                    let lock = PiState {
                        key: key.clone(),
                        owner: owner.clone(),
                        waiters: alloc::vec![waiter.clone()],
                        needs_fixup: false,
                    };
                    fallible::push(&mut self.locks, lock)?;
                    self.count();
                    // Either the owner, who ends, sees the lock, or this sees that he has ended.
                    if owner.pi_locks_released.load(Ordering::SeqCst) {
                        self.locks.pop();
                        self.count();
                        if load(addr)? & FUTEX_TID_MASK == tid {
                            return Err(Errno::ESRCH);
                        }
                        continue;
                    }
                }
            }
            self.propagate_priority(&owner);
            return Ok(false);
        }
    }

    /// Makes the waiter that goes first the owner and returns it. There is one.
    fn pass_to_top_waiter(&mut self, at: usize) -> Option<Arc<PiWaiter>> {
        let lock = &mut self.locks[at];
        let best = lock
            .waiters
            .iter()
            .map(|waiter| rank(waiter.task.effective_policy()))
            .max()?;
        let first = lock
            .waiters
            .iter()
            .position(|waiter| rank(waiter.task.effective_policy()) == best)?;
        let waiter = lock.waiters.remove(first);
        lock.owner = waiter.task.clone();
        Some(waiter)
    }

    fn remove_if_idle(&mut self, at: usize) {
        if self.locks[at].waiters.is_empty() && !self.locks[at].needs_fixup {
            self.locks.swap_remove(at);
            self.count();
        }
    }

    /// Removes a waiter. `None`: it has the lock, or is about to. Otherwise whether it had been
    /// moved to a lock.
    fn remove_waiter(&mut self, waiter: &Arc<PiWaiter>) -> Option<bool> {
        if let Some(at) = self
            .requeue_waiters
            .iter()
            .position(|moving| Arc::ptr_eq(&moving.waiter, waiter))
        {
            self.requeue_waiters.swap_remove(at);
            return Some(false);
        }
        for at in 0..self.locks.len() {
            let lock = &mut self.locks[at];
            if let Some(place) = lock
                .waiters
                .iter()
                .position(|other| Arc::ptr_eq(other, waiter))
            {
                lock.waiters.remove(place);
                let owner = lock.owner.clone();
                self.remove_if_idle(at);
                self.propagate_priority(&owner);
                return Some(true);
            }
        }
        None
    }
}

/// Word in whose queue a waiter for a lock began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaiterOrigin {
    /// The lock's own.
    Lock,
    /// Another one, from which it is moved to the lock's (`FUTEX_WAIT_REQUEUE_PI`).
    Requeued,
}

/// Waits until the lock is the waiter's.
fn sleep(
    waiter: &Arc<PiWaiter>,
    key: &Key,
    addr: UserAddr,
    deadline: Option<Deadline>,
    origin: WaiterOrigin,
) -> SysResult {
    loop {
        match waiter.state.load(Ordering::Acquire) {
            WAITING => {}
            GRANTED => return Ok(0),
            _ => return fixup_owner(waiter, key, addr),
        }
        let error = if waiter.thread.is_signal_pending() {
            Errno::ERESTARTNOINTR
        } else if deadline.is_some_and(Deadline::has_passed) {
            Errno::ETIMEDOUT
        } else {
            match deadline {
                Some(deadline) => {
                    ::task::park_until(deadline);
                }
                None => ::task::park(),
            }
            continue;
        };
        let withdrawn = TABLE.lock().remove_waiter(waiter);
        match withdrawn {
            // The call cannot be begun again: the first word has changed.
            Some(true) if origin == WaiterOrigin::Requeued && error == Errno::ERESTARTNOINTR => {
                return Err(Errno::EAGAIN);
            }
            Some(_) => return Err(error),
            None => {}
        }
    }
}

/// Writes the number of a waiter into the word whose owner ended.
fn fixup_owner(waiter: &PiWaiter, key: &Key, addr: UserAddr) -> SysResult {
    let mut table = TABLE.lock();
    let Some(at) = table.find(key) else {
        return Ok(0);
    };
    let waiters = if table.locks[at].waiters.is_empty() {
        0
    } else {
        FUTEX_WAITERS
    };
    let written = modify_user_word(addr, |_| waiter.tid() | FUTEX_OWNER_DIED | waiters);
    table.locks[at].needs_fixup = false;
    table.remove_if_idle(at);
    written.map(|_| 0)
}

/// `FUTEX_LOCK_PI`, `FUTEX_LOCK_PI2`, and without waiting `FUTEX_TRYLOCK_PI`.
pub(crate) fn lock(
    task: &Task,
    addr: UserAddr,
    scope: FutexScope,
    deadline: Option<Deadline>,
    mode: LockMode,
) -> SysResult {
    let key = futex_key(task, addr, scope, FutexAccess::Write)?;
    let waiter = PiWaiter::new(task)?;
    let mine = TABLE.lock().lock_or_enqueue(&key, addr, &waiter, mode)?;
    if mine {
        Ok(0)
    } else {
        sleep(&waiter, &key, addr, deadline, WaiterOrigin::Lock)
    }
}

/// Passes a lock with priority inheritance to its first waiter (`FUTEX_UNLOCK_PI`).
pub(crate) fn unlock(task: &Task, addr: UserAddr, scope: FutexScope) -> SysResult {
    // Whose it is comes before whether it can be a lock at all.
    let is_own = |word: u32| {
        if word & FUTEX_TID_MASK == task.tid().as_u32() {
            Ok(word)
        } else {
            Err(Errno::EPERM)
        }
    };
    UserPtr::<u32>::new(addr).read().and_then(is_own)?;
    let key = futex_key(task, addr, scope, FutexAccess::Write)?;
    let mut table = TABLE.lock();
    loop {
        let word = load(addr).and_then(is_own)?;
        let Some(at) = table
            .find(&key)
            .filter(|&at| !table.locks[at].waiters.is_empty())
        else {
            if compare_exchange(addr, word, 0)? {
                return Ok(0);
            }
            continue;
        };
        // Nobody else changes the word now: it has waiters.
        let old_owner = table.locks[at].owner.clone();
        let Some(waiter) = table.pass_to_top_waiter(at) else {
            return Err(Errno::EINVAL);
        };
        let waiters = if table.locks[at].waiters.is_empty() {
            0
        } else {
            FUTEX_WAITERS
        };
        let written = modify_user_word(addr, |_| waiter.tid() | waiters);
        table.remove_if_idle(at);
        waiter.wake_as(GRANTED);
        table.propagate_priority(&old_owner);
        table.propagate_priority(&waiter.task);
        return written.map(|_| 0);
    }
}

/// `FUTEX_WAIT_REQUEUE_PI`: waits for one word, and then for the lock at another.
pub(crate) fn wait_requeue(
    task: &Task,
    (from, to): (UserAddr, UserAddr),
    scope: FutexScope,
    expected: u32,
    deadline: Option<Deadline>,
) -> SysResult {
    if from == to {
        return Err(Errno::EINVAL);
    }
    let to_key = futex_key(task, to, scope, FutexAccess::Write)?;
    let from_key = futex_key(task, from, scope, FutexAccess::Read)?;
    let waiter = PiWaiter::new(task)?;
    {
        let mut table = TABLE.lock();
        if load(from)? != expected {
            return Err(Errno::EAGAIN);
        }
        if from_key.0 == to_key.0 {
            return Err(Errno::EINVAL);
        }
        let waits = RequeueWaiter {
            from: from_key,
            to: to_key.clone(),
            waiter: waiter.clone(),
        };
        fallible::push(&mut table.requeue_waiters, waits)?;
    }
    sleep(&waiter, &to_key, to, deadline, WaiterOrigin::Requeued)
}

/// `FUTEX_CMP_REQUEUE_PI`: moves waiters of one word to the lock at another, where the first may
/// get it at once.
pub(crate) fn requeue(
    task: &Task,
    (from, to): (UserAddr, UserAddr),
    scope: FutexScope,
    moves: usize,
    expected: u32,
) -> SysResult {
    let (from_key, to_key) = (
        futex_key(task, from, scope, FutexAccess::Read)?,
        futex_key(task, to, scope, FutexAccess::Write)?,
    );
    if from_key.0 == to_key.0 {
        return Err(Errno::EINVAL);
    }
    let mut table = TABLE.lock();
    if load(from)? != expected {
        return Err(Errno::EAGAIN);
    }
    // It has to be there, even if nobody waits.
    load(to)?;
    // Who waits by `FUTEX_WAIT` does not know that it would wake up as the owner of a lock.
    if ::futex::has_waiter(from_key.0) {
        return Err(Errno::EINVAL);
    }
    let mut moved = 0;
    while moved <= moves {
        let Some(at) = table
            .requeue_waiters
            .iter()
            .position(|moving| moving.from.0 == from_key.0)
        else {
            break;
        };
        if table.requeue_waiters[at].to.0 != to_key.0 {
            return Err(Errno::EINVAL);
        }
        let waiter = table.requeue_waiters[at].waiter.clone();
        match table.lock_or_enqueue(&to_key, to, &waiter, LockMode::Wait) {
            Ok(true) => waiter.wake_as(GRANTED),
            Ok(false) => {}
            Err(error) if moved == 0 => return Err(error),
            Err(_) => break,
        }
        table.requeue_waiters.remove(at);
        moved += 1;
    }
    Ok(moved)
}

/// Passes on the locks of a thread that ends, or leaves its memory, to their waiters.
pub(crate) fn exit_pi_state_list(task: &Task) {
    task.pi_locks_released.store(true, Ordering::SeqCst);
    if PI_STATE_COUNT.load(Ordering::SeqCst) == 0 {
        return;
    }
    let mut table = TABLE.lock();
    for at in 0..table.locks.len() {
        if !core::ptr::eq(&*table.locks[at].owner, task) {
            continue;
        }
        if let Some(waiter) = table.pass_to_top_waiter(at) {
            table.locks[at].needs_fixup = true;
            waiter.wake_as(GRANTED_OWNER_DIED);
            let heir = waiter.task.clone();
            table.propagate_priority(&heir);
        }
    }
}
