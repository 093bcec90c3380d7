//! Wait queues: threads that wait for a condition somebody else makes true. Thread context only.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;

use crate::platform::{preemption_point, wait_satisfied};
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::{Deadline, Mutex, Thread, current, park, park_until};

/// Why an interruptible wait ended without its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// A signal is pending: [`Thread::set_signal_pending`] was called.
    Interrupted,
    /// The deadline passed before the condition held.
    TimedOut,
}

struct Entry {
    key: u64,
    thread: Arc<Thread>,
}

#[derive(Default)]
struct Entries {
    next_key: u64,
    queue: VecDeque<Entry>,
}

/// Nanoseconds after which a thread looks at its condition again that had no place in the queue.
const UNQUEUED_LOOK_NS: u64 = 10_000_000;

/// Threads waiting for a condition.
///
/// For very many of them there may be no memory in one piece (`docs/memory.md`). Who gets no place
/// then is not woken, but looks by himself, again and again.
///
/// The condition lives elsewhere, under its own lock: make it true, unlock, then wake. Conditions
/// given to `wait` run without the queue's lock, so they may lock what they look at.
pub struct WaitQueue {
    /// Number of entries, to make waking nobody cheap.
    waiting: AtomicUsize,
    /// Entries are taken out by wakers in the order of their keys: those below this one have been.
    woken_below: AtomicU64,
    entries: Mutex<Entries>,
}

/// Effect of a signal on a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruptible {
    Yes,
    No,
}

impl WaitQueue {
    /// A queue nobody waits in.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            woken_below: AtomicU64::new(0),
            entries: Mutex::new(Entries {
                next_key: 0,
                queue: VecDeque::new(),
            }),
        }
    }

    /// Sleeps until `condition` gives a value, whatever signals come.
    #[inline]
    pub fn wait<R>(&self, mut condition: impl FnMut() -> Option<R>) -> R {
        if let Some(result) = condition() {
            return result;
        }
        loop {
            if let Ok(result) = self.wait_inner(None, Interruptible::No, &mut condition) {
                return result;
            }
        }
    }

    /// Sleeps until `condition` gives a value, the thread is interrupted, or the clock passes
    /// `deadline`.
    ///
    /// # Errors
    /// Says which of the other two it was. The condition was tried once more before.
    #[inline]
    pub fn wait_interruptible<R>(
        &self,
        deadline: Option<Deadline>,
        mut condition: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        match condition() {
            Some(result) => Ok(result),
            None => self.wait_inner(deadline, Interruptible::Yes, &mut condition),
        }
    }

    fn wait_inner<R>(
        &self,
        deadline: Option<Deadline>,
        interruptible: Interruptible,
        condition: &mut dyn FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        let me = current();
        loop {
            let Some(key) = self.enqueue(me.clone()) else {
                if let Some(outcome) = look(deadline, interruptible, condition) {
                    return outcome;
                }
                continue;
            };
            preemption_point();
            let mut queued;
            let outcome = loop {
                queued = self.contains(key);
                if let Some(result) = condition() {
                    wait_satisfied();
                    break Some(Ok(result));
                }
                if interruptible == Interruptible::Yes && me.is_signal_pending() {
                    break Some(Err(WaitError::Interrupted));
                }
                if deadline.is_some_and(Deadline::has_passed) {
                    break Some(Err(WaitError::TimedOut));
                }
                if !self.contains(key) {
                    // Woken, and the condition is false again: queue up anew.
                    break None;
                }
                match deadline {
                    Some(deadline) => {
                        park_until(deadline);
                    }
                    None => park(),
                }
            };
            preemption_point();
            let was_woken = !self.remove(key);
            if let Some(result) = outcome {
                // A wake-up meant for one thread must not end with one that leaves without it:
                // because it gives up, or because it found the condition true before it was woken,
                // when whoever waits behind it may have found it false.
                if was_woken && (queued || result.is_err()) {
                    self.wake_one();
                }
                return result;
            }
        }
    }

    /// Wakes the thread that has waited longest.
    pub fn wake_one(&self) {
        self.wake(1);
    }

    /// Wakes everybody. Begins with a full fence.
    #[inline]
    pub fn wake_all(&self) {
        self.wake(usize::MAX);
    }

    /// The same; returns how many were woken, by this call and no other.
    #[inline]
    pub fn wake_and_count(&self) -> usize {
        self.wake(usize::MAX)
    }

    /// True if somebody waits. A snapshot.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Puts a thread behind the others and returns its key; `None` if there is no memory for it.
    fn enqueue(&self, thread: Arc<Thread>) -> Option<u64> {
        let key = {
            let mut entries = self.entries.lock();
            if entries.queue.try_reserve(1).is_err() {
                return None;
            }
            let key = entries.next_key;
            entries.next_key += 1;
            entries.queue.push_back(Entry { key, thread });
            self.waiting.store(entries.queue.len(), Ordering::Relaxed);
            key
        };
        // Announced before the condition is looked at; the waker makes it true before it looks for
        // waiters.
        fence(Ordering::SeqCst);
        Some(key)
    }

    /// Whether the caller's own entry is there. Who takes it out says so before he gives the
    /// permit.
    fn contains(&self, key: u64) -> bool {
        key >= self.woken_below.load(Ordering::Acquire)
    }

    fn remove(&self, key: u64) -> bool {
        if !self.contains(key) {
            return false;
        }
        let mut entries = self.entries.lock();
        let Some(at) = entries.queue.iter().position(|entry| entry.key == key) else {
            return false;
        };
        let entry = entries.queue.remove(at);
        self.waiting.store(entries.queue.len(), Ordering::Relaxed);
        drop(entries);
        drop(entry);
        true
    }

    #[inline]
    fn wake(&self, most: usize) -> usize {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            0
        } else {
            self.wake_waiters(most)
        }
    }

    #[inline(never)]
    fn wake_waiters(&self, most: usize) -> usize {
        // Only who waits now: those who come back because it was not for them are not woken again.
        let most = most.min(self.waiting.load(Ordering::Relaxed));
        for woken in 0..most {
            let entry = {
                let mut entries = self.entries.lock();
                let Some(entry) = entries.queue.pop_front() else {
                    return woken;
                };
                self.waiting.store(entries.queue.len(), Ordering::Relaxed);
                self.woken_below.store(entry.key + 1, Ordering::Release);
                entry
            };
            preemption_point();
            // Not under the queue's lock, which the woken thread may take.
            entry.thread.unpark();
        }
        most
    }
}

/// Looks once at what a thread waits for that is in no queue, after a while in which nobody wakes
/// it; `None` if it is to look again.
#[cold]
fn look<R>(
    deadline: Option<Deadline>,
    interruptible: Interruptible,
    condition: &mut dyn FnMut() -> Option<R>,
) -> Option<Result<R, WaitError>> {
    if let Some(result) = condition() {
        wait_satisfied();
        return Some(Ok(result));
    }
    if interruptible == Interruptible::Yes && current().is_signal_pending() {
        return Some(Err(WaitError::Interrupted));
    }
    if deadline.is_some_and(Deadline::has_passed) {
        return Some(Err(WaitError::TimedOut));
    }
    let again = Deadline::after_ns(UNQUEUED_LOOK_NS);
    park_until(deadline.map_or(again, |deadline| deadline.min(again)));
    None
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue")
            .field("waiting", &self.waiting)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_semaphore_made_of_it_loses_nothing() {
        static QUEUE: WaitQueue = WaitQueue::new();
        static PERMITS: AtomicU32 = AtomicU32::new(0);
        // Never fails while there is one: nobody would wake who sleeps then.
        let take = || {
            PERMITS
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |p| p.checked_sub(1))
                .ok()
                .map(drop)
        };
        let takers: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(move || {
                    for _ in 0..1000 {
                        QUEUE.wait(take);
                    }
                })
            })
            .collect();
        for _ in 0..3000 {
            PERMITS.fetch_add(1, Ordering::SeqCst);
            QUEUE.wake_one();
        }
        for t in takers {
            t.join().unwrap();
        }
        assert_eq!(PERMITS.load(Ordering::SeqCst), 0);
        assert!(!QUEUE.has_waiters());
    }

    #[test]
    fn who_did_not_need_the_wake_up_passes_it_on() {
        static QUEUE: WaitQueue = WaitQueue::new();
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        static PERMIT: AtomicU32 = AtomicU32::new(0);
        let (tell, told) = std::sync::mpsc::channel();
        let mut looks = 0;
        QUEUE.wait(|| {
            looks += 1;
            if looks == 1 {
                return None;
            }
            // In the queue, and about to leave it. Another one queues up behind, in vain, before
            // there is a permit for it.
            let tell = tell.clone();
            std::thread::spawn(move || {
                QUEUE.wait(|| {
                    let permit = PERMIT.load(Ordering::SeqCst) == 1;
                    LOOKS.fetch_add(1, Ordering::SeqCst);
                    permit.then_some(())
                });
                tell.send(()).unwrap();
            });
            while LOOKS.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            PERMIT.store(1, Ordering::SeqCst);
            QUEUE.wake_one();
            Some(())
        });
        told.recv_timeout(std::time::Duration::from_secs(20))
            .expect("the wake-up was lost");
    }

    #[test]
    fn who_has_no_place_looks_by_himself() {
        let never = &mut || None::<()>;
        let look = |deadline, condition: &mut dyn FnMut() -> Option<()>| {
            super::look(deadline, Interruptible::Yes, condition)
        };
        assert_eq!(look(None, &mut || Some(())), Some(Ok(())));
        // It comes back by itself, though nobody wakes it.
        assert_eq!(look(None, never), None);
        assert_eq!(
            look(Some(Deadline::after_ns(3_600_000_000_000)), never),
            None
        );
        let passed = look(Some(Deadline::PASSED), never);
        assert_eq!(passed, Some(Err(WaitError::TimedOut)));
        current().set_signal_pending();
        assert_eq!(look(None, never), Some(Err(WaitError::Interrupted)));
        current().clear_signal_pending();
    }

    #[test]
    fn a_deadline_and_an_interrupt_end_a_wait() {
        let queue = WaitQueue::new();
        let soon = Deadline::after_ns(2_000_000);
        assert_eq!(
            queue.wait_interruptible(Some(soon), || None::<()>),
            Err(WaitError::TimedOut)
        );
        assert!(soon.has_passed());
        current().set_signal_pending();
        assert_eq!(
            queue.wait_interruptible(None, || None::<()>),
            Err(WaitError::Interrupted)
        );
        current().clear_signal_pending();
        assert!(!queue.has_waiters());
    }
}
