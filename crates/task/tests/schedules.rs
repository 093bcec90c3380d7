//! Wait queues and events under all schedules with a few pre-emptions (`docs/locks.md`).

use std::sync::Arc;

use task::explore::{Model, spawn};
use task::sync::{AtomicU32, AtomicUsize, Ordering};
use task::{Deadline, Event, Mutex, Thread, WaitError, WaitQueue};

/// A semaphore: permits, and who waits for one.
#[derive(Default)]
struct Permits {
    count: AtomicU32,
    queue: WaitQueue,
}

impl Permits {
    fn try_take(&self) -> Option<()> {
        let mut count = self.count.load(Ordering::Relaxed);
        while count > 0 {
            match self
                .count
                .compare_exchange(count, count - 1, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some(()),
                Err(now) => count = now,
            }
        }
        None
    }

    fn take(&self) {
        self.queue.wait(|| self.try_take());
    }

    fn give(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.queue.wake_one();
    }
}

#[test]
fn a_wake_up_finds_who_waits_or_is_about_to() {
    Model::new().preemptions(4).check(|| {
        let permits = Arc::new(Permits::default());
        let theirs = permits.clone();
        let waiter = spawn("waiter", move || theirs.take());
        permits.give();
        waiter.join();
        assert!(
            !permits.queue.has_waiters(),
            "somebody is left in the queue"
        );
    });
}

#[test]
fn one_wake_up_for_each_permit_is_enough() {
    Model::new().preemptions(2).check(|| {
        let permits = Arc::new(Permits::default());
        let takers = [(); 2].map(|()| {
            let theirs = permits.clone();
            spawn("taker", move || theirs.take())
        });
        permits.give();
        permits.give();
        takers.into_iter().for_each(|taker| taker.join());
        assert!(!permits.queue.has_waiters() && permits.try_take().is_none());
    });
}

#[test]
fn a_wake_up_for_one_who_did_not_need_it_reaches_the_next() {
    // One that is in the queue finds the first permit by itself, and is woken for the second, which
    // the other one waits for.
    Model::new().preemptions(2).check(|| {
        let permits = Arc::new(Permits::default());
        let give = |permits: &Arc<Permits>| {
            let theirs = permits.clone();
            spawn("giver", move || theirs.give())
        };
        let theirs = permits.clone();
        let threads = [
            give(&permits),
            spawn("taker", move || theirs.take()),
            give(&permits),
        ];
        permits.take();
        threads.into_iter().for_each(|thread| thread.join());
    });
}

#[test]
fn a_wake_up_on_its_way_to_one_who_times_out_reaches_the_next() {
    Model::new().preemptions(2).check(|| {
        let permits = Arc::new(Permits::default());
        let theirs = permits.clone();
        let hasty = spawn("hasty", move || {
            if theirs
                .queue
                .wait_interruptible(Some(Deadline::at_ns(1000)), || theirs.try_take())
                .is_ok()
            {
                theirs.give();
            }
        });
        let theirs = permits.clone();
        let patient = spawn("patient", move || theirs.take());
        permits.give();
        hasty.join();
        patient.join();
    });
}

#[test]
fn a_wake_up_on_its_way_to_one_who_is_interrupted_reaches_the_next() {
    Model::new().preemptions(2).check(|| {
        let permits = Arc::new(Permits::default());
        let theirs = permits.clone();
        let nervous = task::spawn("nervous", None, move || {
            match theirs.queue.wait_interruptible(None, || theirs.try_take()) {
                Ok(()) => theirs.give(),
                Err(why) => assert_eq!(why, WaitError::Interrupted),
            }
        })
        .unwrap();
        let theirs = permits.clone();
        let patient = spawn("patient", move || theirs.take());
        nervous.set_signal_pending();
        permits.give();
        patient.join();
    });
}

#[test]
fn who_gives_up_has_looked_once_more() {
    // The permit comes at the very time of the deadline, or of the signal: whoever is told that
    // there was none, there was none.
    Model::new().preemptions(3).check(|| {
        let permits = Arc::new(Permits::default());
        let theirs = permits.clone();
        let waiter = spawn("waiter", move || {
            let _ = theirs
                .queue
                .wait_interruptible(Some(Deadline::at_ns(1000)), || theirs.try_take());
        });
        permits.give();
        waiter.join();
        assert!(!permits.queue.has_waiters());
    });
}

#[test]
fn all_that_wait_are_woken_by_wake_all() {
    Model::new().preemptions(2).check(|| {
        let shared = Arc::new((Mutex::new(false), WaitQueue::new()));
        let waiters = [(); 2].map(|()| {
            let theirs = shared.clone();
            spawn("waiter", move || {
                theirs.1.wait(|| theirs.0.lock().then_some(()));
            })
        });
        *shared.0.lock() = true;
        shared.1.wake_all();
        waiters.into_iter().for_each(|waiter| waiter.join());
        assert!(!shared.1.has_waiters());
    });
}

#[test]
fn a_turn_goes_to_and_fro_through_one_queue() {
    // Both wait in the same queue, for different things: whoever is woken in vain queues up again.
    Model::new().preemptions(2).check(|| {
        let shared = Arc::new((AtomicU32::new(0), WaitQueue::new()));
        let play = |shared: &(AtomicU32, WaitQueue), mine: u32| {
            for round in 0..2 {
                shared
                    .1
                    .wait(|| (shared.0.load(Ordering::Acquire) == round * 2 + mine).then_some(()));
                shared.0.fetch_add(1, Ordering::AcqRel);
                shared.1.wake_all();
            }
        };
        let theirs = shared.clone();
        let other = spawn("other", move || play(&theirs, 1));
        play(&shared, 0);
        other.join();
        assert_eq!(shared.0.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn whoever_joins_a_thread_hears_of_its_end() {
    Model::new().preemptions(3).check(|| {
        let done = Arc::new(AtomicUsize::new(0));
        let theirs = done.clone();
        let thread: Arc<Thread> =
            task::spawn("short", None, move || theirs.store(1, Ordering::Release)).unwrap();
        thread.join();
        assert!(thread.is_dead() && done.load(Ordering::Acquire) == 1);
    });
}

#[test]
fn an_event_is_seen_by_who_waits_and_by_who_comes_later() {
    Model::new().preemptions(4).check(|| {
        let events = Arc::new((Event::new(), Event::new()));
        let theirs = events.clone();
        let other = spawn("other", move || {
            for _ in 0..2 {
                theirs.0.wait();
                theirs.1.set();
            }
        });
        for _ in 0..2 {
            events.0.set();
            events.1.wait();
        }
        other.join();
        assert!(
            !events.0.try_wait() && !events.1.try_wait(),
            "what was waited for has not been taken"
        );
    });
}

#[test]
fn an_event_is_not_lost_to_a_deadline() {
    Model::new().preemptions(4).check(|| {
        let event = Arc::new(Event::new());
        let theirs = event.clone();
        let waiter = spawn("waiter", move || {
            if !theirs.wait_until(Deadline::at_ns(1000)) {
                // Not yet: then it still comes.
                theirs.wait();
            }
        });
        event.set();
        waiter.join();
    });
}

#[test]
fn an_interruption_lasts_until_it_is_cleared() {
    Model::new().preemptions(2).check(|| {
        let queue = Arc::new(WaitQueue::new());
        let other = Arc::new(AtomicU32::new(0));
        let (theirs, done) = (queue.clone(), other.clone());
        let sleeper = task::spawn("sleeper", None, move || {
            let me = task::current();
            for _ in 0..2 {
                assert_eq!(
                    theirs.wait_interruptible(None, || None::<()>),
                    Err(WaitError::Interrupted)
                );
                assert!(me.is_signal_pending());
            }
            me.clear_signal_pending();
            assert!(!me.is_signal_pending());
            done.store(1, Ordering::SeqCst);
        })
        .unwrap();
        sleeper.set_signal_pending();
        sleeper.join();
        assert_eq!(other.load(Ordering::SeqCst), 1);
    });
}
