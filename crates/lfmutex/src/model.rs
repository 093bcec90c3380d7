//! Model checks (`RUSTFLAGS="--cfg loom"`).

use loom::sync::Arc;
use loom::thread;

use crate::{Mutex, Once, RwLock};

fn few(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // The races of the hand-off need two preemptions at most; more only take longer.
    builder.preemption_bound = Some(2);
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
