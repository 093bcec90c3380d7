//! Model checks (`RUSTFLAGS="--cfg loom"`).

use loom::sync::Arc;
use loom::thread;

use crate::{Condvar, Mutex, Once, RwLock, Semaphore};

fn few(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // The races of the hand-off need three preemptions at most; more only take longer.
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn two_threads_exclude_each_other_and_both_get_in() {
    few(|| {
        let lock = Arc::new(Mutex::new(0));
        let other = thread::spawn({
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
    });
}

#[test]
fn three_threads_lose_no_wake_up() {
    few(|| {
        let lock = Arc::new(Mutex::new(0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || *lock.lock() += 1)
            })
            .collect();
        *lock.lock() += 1;
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(*lock.lock(), 3);
    });
}

#[test]
fn a_value_is_made_once() {
    few(|| {
        let cell = Arc::new(Once::new());
        let other = thread::spawn({
            let cell = cell.clone();
            move || *cell.call_once(|| 1)
        });
        let mine = *cell.call_once(|| 2);
        assert_eq!(other.join().unwrap(), mine);
    });
}

#[test]
fn a_writer_and_a_reader_take_turns() {
    few(|| {
        let lock = Arc::new(RwLock::new((0, 0)));
        let writer = thread::spawn({
            let lock = lock.clone();
            move || {
                let mut pair = lock.write();
                pair.0 += 1;
                pair.1 += 1;
            }
        });
        let pair = lock.read();
        assert_eq!(pair.0, pair.1);
        drop(pair);
        writer.join().unwrap();
        assert_eq!(*lock.read(), (1, 1));
    });
}

#[test]
fn an_overtaken_waiter_gets_the_lock() {
    few(|| {
        let lock = Arc::new(Mutex::new(0));
        let other = thread::spawn({
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        // Overtakes the other one, if that has queued.
        for _ in 0..3 {
            *lock.lock() += 1;
        }
        other.join().unwrap();
        assert_eq!(*lock.lock(), 4);
    });
}

#[test]
fn try_lock_takes_no_lock_that_is_held() {
    few(|| {
        let lock = Arc::new(Mutex::new(0));
        let other = thread::spawn({
            let lock = lock.clone();
            move || {
                if let Some(mut value) = lock.try_lock() {
                    *value += 1;
                }
            }
        });
        *lock.lock() += 1;
        other.join().unwrap();
        assert!(matches!(*lock.lock(), 1 | 2));
    });
}

#[test]
fn a_notification_is_not_lost() {
    few(|| {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let other = thread::spawn({
            let pair = pair.clone();
            move || {
                let mut ready = pair.0.lock();
                *ready = true;
                pair.1.notify_one(&ready);
            }
        });
        let mut ready = pair.0.lock();
        while !*ready {
            ready = pair.1.wait(ready);
        }
        drop(ready);
        other.join().unwrap();
    });
}

#[test]
fn all_that_are_notified_get_the_mutex() {
    few(|| {
        let pair = Arc::new((Mutex::new(0), Condvar::new()));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let pair = pair.clone();
                thread::spawn(move || {
                    let mut turn = pair.0.lock();
                    while *turn == 0 {
                        turn = pair.1.wait(turn);
                    }
                    *turn += 1;
                })
            })
            .collect();
        let mut turn = pair.0.lock();
        *turn = 1;
        pair.1.notify_all(&turn);
        drop(turn);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(*pair.0.lock(), 3);
    });
}

#[test]
fn permits_are_neither_lost_nor_made() {
    few(|| {
        let permits = Arc::new(Semaphore::new(0));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let permits = permits.clone();
                thread::spawn(move || permits.acquire())
            })
            .collect();
        permits.release(1);
        permits.release(1);
        for taker in takers {
            taker.join().unwrap();
        }
        assert!(!permits.try_acquire());
    });
}
