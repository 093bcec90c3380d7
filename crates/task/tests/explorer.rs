//! The explorer finds bugs that were planted, says how they come about, and replays them; and it
//! finds none where there is none.

use std::sync::Arc;

use task::explore::{Model, Report, SCHEDULE, spawn};
use task::sync::{AtomicBool, AtomicU32, Ordering};
use task::{Deadline, Mutex, Thread, WaitQueue, current, park};

/// All schedules with at most two pre-emptions.
fn explore(model: impl Fn() + Send + Sync + 'static) -> Result<Report, String> {
    Model::new().random(0).explore(model)
}

/// The same for one with a bug, which is replayed by the schedule that is printed. Returns what was
/// said of it.
fn finds(model: impl Fn() + Send + Sync + Clone + 'static) -> String {
    let found = explore(model.clone()).expect_err("there is a bug");
    let (_, schedule) = found
        .rsplit_once(&format!("{SCHEDULE}='"))
        .expect("the schedule is printed");
    let schedule = schedule.strip_suffix('\'').expect("at the end");
    let again = Model::new()
        .schedule(schedule)
        .explore(model)
        .expect_err("the schedule replays it");
    assert_eq!(again.lines().next(), found.lines().next());
    found
}

/// A queue as one writes it the first time: whom it wakes is whoever is in it.
#[derive(Default)]
struct Naive(Mutex<Vec<Arc<Thread>>>);

impl Naive {
    fn enter(&self) {
        self.0.lock().push(current());
    }

    fn wake_one(&self) {
        let first = self.0.lock().pop();
        if let Some(thread) = first {
            thread.unpark();
        }
    }
}

#[test]
fn a_condition_looked_at_before_the_waiter_is_known_is_found() {
    let model = |before: bool| {
        move || {
            let shared = Arc::new((AtomicBool::new(false), Naive::default()));
            let theirs = shared.clone();
            let waiter = spawn("waiter", move || {
                if before {
                    if !theirs.0.load(Ordering::SeqCst) {
                        theirs.1.enter();
                        park();
                    }
                } else {
                    theirs.1.enter();
                    if !theirs.0.load(Ordering::SeqCst) {
                        park();
                    }
                }
            });
            shared.0.store(true, Ordering::SeqCst);
            shared.1.wake_one();
            waiter.join();
        }
    };
    let found = finds(model(true));
    assert!(found.starts_with("nobody can go on"), "{found}");
    assert!(
        found.contains("thread 1 (waiter) sleeps; its last steps:")
            && found.contains("explorer.rs"),
        "{found}"
    );
    explore(model(false)).unwrap();
}

#[test]
fn locks_taken_in_two_orders_are_found() {
    let model = |orderly: bool| {
        move || {
            let locks = Arc::new([Mutex::new(()), Mutex::new(())]);
            let theirs = locks.clone();
            let (first, second) = if orderly { (0, 1) } else { (1, 0) };
            let other = spawn("other", move || {
                let _first = theirs[first].lock();
                let _second = theirs[second].lock();
            });
            {
                let _first = locks[0].lock();
                let _second = locks[1].lock();
            }
            other.join();
        }
    };
    let found = finds(model(false));
    assert!(
        found.contains("thread 0 (main) waits for a lock that thread 1 has"),
        "{found}"
    );
    assert!(
        found.contains("thread 1 (other) waits for a lock that thread 0 has"),
        "{found}"
    );
    explore(model(true)).unwrap();
}

#[test]
fn a_wake_up_that_ends_with_one_who_gave_up_is_found() {
    let found = finds(|| {
        let shared = Arc::new((AtomicU32::new(0), Naive::default()));
        let waiters = [None, Some(Deadline::at_ns(1000))].map(|deadline| {
            let (permits, queue) = (shared.clone(), shared.clone());
            let take = move || {
                permits
                    .0
                    .compare_exchange(1, 0, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            };
            spawn("waiter", move || {
                loop {
                    queue.1.enter();
                    if take() {
                        break;
                    }
                    match deadline {
                        // It leaves, and a wake-up on its way to it with it.
                        Some(deadline) if !task::park_until(deadline) => return,
                        Some(_) => {}
                        None => park(),
                    }
                }
                // For the other one, if it still waits.
                queue.0.store(1, Ordering::SeqCst);
                queue.1.wake_one();
            })
        });
        shared.0.store(1, Ordering::SeqCst);
        shared.1.wake_one();
        waiters.into_iter().for_each(|waiter| waiter.join());
    });
    assert!(found.starts_with("nobody can go on"), "{found}");
}

#[test]
fn an_update_that_is_lost_is_found() {
    let found = finds(|| {
        let count = Arc::new(AtomicU32::new(0));
        let theirs = count.clone();
        let add =
            |count: &AtomicU32| count.store(count.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
        let other = spawn("other", move || add(&theirs));
        add(&count);
        other.join();
        assert_eq!(count.load(Ordering::SeqCst), 2, "an update was lost");
    });
    assert!(
        found.starts_with("thread 0 panicked") && found.contains("an update was lost"),
        "{found}"
    );
}

#[test]
fn sleeping_until_the_deadline_beside_a_true_condition_is_found() {
    let model = |wakes: bool| {
        move || {
            let shared = Arc::new((AtomicBool::new(false), WaitQueue::new()));
            let theirs = shared.clone();
            let waiter = spawn("waiter", move || {
                let ready = || theirs.0.load(Ordering::SeqCst).then_some(());
                let _ = theirs
                    .1
                    .wait_interruptible(Some(Deadline::at_ns(1000)), ready);
            });
            shared.0.store(true, Ordering::SeqCst);
            if wakes {
                shared.1.wake_one();
            }
            waiter.join();
        }
    };
    let found = finds(model(false));
    assert!(
        found.contains("slept until its deadline with its condition true"),
        "{found}"
    );
    explore(model(true)).unwrap();
}

#[test]
fn a_thread_that_never_lets_go_is_found_and_one_that_yields_is_not() {
    let model = |yields: bool| {
        move || {
            let flag = Arc::new(AtomicBool::new(false));
            let theirs = flag.clone();
            let other = spawn("other", move || theirs.store(true, Ordering::SeqCst));
            while !flag.load(Ordering::SeqCst) {
                if yields {
                    task::yield_now();
                }
            }
            other.join();
        }
    };
    assert!(finds(model(false)).starts_with("no end after"));
    explore(model(true)).unwrap();
}

#[test]
fn random_schedules_find_what_needs_more_pre_emptions_than_the_search_tries() {
    // The other one is overtaken between any two of its three steps.
    let model = || {
        let count = Arc::new(AtomicU32::new(0));
        let theirs = count.clone();
        let step = |count: &AtomicU32, from| {
            count
                .compare_exchange(from, from + 1, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        };
        let other = spawn("other", move || {
            assert!(
                !(step(&theirs, 1) && step(&theirs, 3) && step(&theirs, 5)),
                "all in turn"
            );
        });
        let _ = step(&count, 0) && step(&count, 2) && step(&count, 4);
        other.join();
    };
    assert!(explore(model).is_ok(), "two pre-emptions do not make it");
    let found = Model::new()
        .preemptions(0)
        .random(2000)
        .explore(model)
        .expect_err("some schedule of 2000 does");
    assert!(found.contains("all in turn"), "{found}");
}

#[test]
fn readers_share_a_lock_and_writers_do_not() {
    explore(|| {
        let shared = Arc::new((task::RwLock::new(0), AtomicU32::new(0)));
        let theirs = shared.clone();
        let other = spawn("writer", move || {
            let mut value = theirs.0.write();
            theirs.1.store(1, Ordering::SeqCst);
            *value = 1;
            theirs.1.store(0, Ordering::SeqCst);
        });
        {
            let first = shared.0.read();
            let second = shared.0.read();
            assert_eq!((*first, shared.1.load(Ordering::SeqCst)), (*second, 0));
        }
        other.join();
    })
    .unwrap();
}

#[test]
fn a_condition_variable_gives_its_mutex_up() {
    explore(|| {
        let shared = Arc::new((Mutex::new(0), task::Condvar::new()));
        let theirs = shared.clone();
        let other = spawn("other", move || {
            let mut turn = theirs.0.lock();
            *turn = 1;
            theirs.1.notify_one(&turn);
        });
        let mut turn = shared.0.lock();
        while *turn == 0 {
            turn = shared.1.wait(turn);
        }
        drop(turn);
        other.join();
    })
    .unwrap();
}
