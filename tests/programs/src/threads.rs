//! Threads, and what they wait with: all of it is `clone`, `futex` and thread-local storage
//! underneath.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::Check;

pub const CHECKS: &[(&str, Check)] = &[
    ("threads-return-values", return_values),
    ("threads-mutex-excludes", mutex_excludes),
    ("threads-condvar-hands-over", condvar_hands_over),
    ("threads-condvar-times-out", condvar_times_out),
    ("threads-channel-keeps-order", channel_keeps_order),
    ("threads-rwlock-and-barrier", rwlock_and_barrier),
    ("threads-have-own-storage", own_storage),
    ("threads-keep-float-state", keep_float_state),
    ("threads-park-and-unpark", park_and_unpark),
    ("threads-many", many),
    ("threads-run-tasks", run_tasks),
    ("threads-are-in-proc", are_in_proc),
];

/// The tasks library: workers pinned to their processors, which sleep between runs.
fn run_tasks() -> Result<()> {
    // SAFETY: takes nothing, returns a number.
    let here = || unsafe { libc::sched_getcpu() };
    for round in 0..200u64 {
        let results = tasks::run(50, |i| (thread::current().id(), here(), i as u64 * round));
        ensure!(
            results
                .iter()
                .zip(0..)
                .all(|(result, i)| result.2 == i * round),
            "round {round} gave {results:?}"
        );
        let mut places: Vec<_> = results
            .into_iter()
            .map(|(worker, cpu, _)| (format!("{worker:?}"), cpu))
            .collect();
        places.sort_unstable();
        places.dedup();
        let workers: BTreeSet<_> = places.iter().map(|place| &place.0).collect();
        ensure!(
            workers.len() == places.len() && places.len() <= tasks::processors(),
            "the workers moved: {places:?}"
        );
    }
    Ok(())
}

fn return_values() -> Result<()> {
    let threads: Vec<_> = (0..8u64)
        .map(|n| thread::spawn(move || (0..=n * 1000).sum::<u64>()))
        .collect();
    for (n, thread) in (0..8u64).zip(threads) {
        let sum = thread.join().expect("the thread ended well");
        ensure!(
            sum == n * 1000 * (n * 1000 + 1) / 2,
            "thread {n} returned {sum}"
        );
    }
    Ok(())
}

fn mutex_excludes() -> Result<()> {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 20_000;
    let pair = Arc::new(Mutex::new((0u64, 0u64)));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let mut pair = pair.lock().expect("no holder panics");
                    pair.0 += 1;
                    if round % 512 == 0 {
                        // A switch while the lock is held: the others must find it taken.
                        thread::yield_now();
                    }
                    pair.1 += 1;
                }
            });
        }
    });
    let pair = *pair.lock().expect("no holder panics");
    ensure!(
        pair == (THREADS * ROUNDS, THREADS * ROUNDS),
        "the counters are {pair:?}"
    );
    Ok(())
}

fn condvar_hands_over() -> Result<()> {
    const ROUNDS: u32 = 800;
    let turn = Mutex::new(0u32);
    let changed = Condvar::new();
    thread::scope(|scope| {
        for me in 0..2 {
            let (turn, changed) = (&turn, &changed);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mut turn = changed
                        .wait_while(turn.lock().expect("no panic"), |turn| *turn % 2 != me)
                        .expect("no panic");
                    *turn += 1;
                    changed.notify_all();
                }
            });
        }
    });
    let turns = turn.into_inner().expect("no panic");
    ensure!(turns == 2 * ROUNDS, "{turns} turns were taken");
    Ok(())
}

fn condvar_times_out() -> Result<()> {
    let start = Instant::now();
    let lock = Mutex::new(());
    let (_guard, result) = Condvar::new()
        .wait_timeout(lock.lock().expect("no panic"), Duration::from_millis(50))
        .expect("no panic");
    ensure!(result.timed_out(), "it was woken by nobody");
    ensure!(
        start.elapsed() >= Duration::from_millis(50),
        "it waited only {:?}",
        start.elapsed()
    );
    Ok(())
}

fn channel_keeps_order() -> Result<()> {
    let (sender, receiver) = mpsc::sync_channel(4);
    for producer in 0..4u32 {
        let sender = sender.clone();
        thread::spawn(move || {
            (0..500u32).for_each(|n| sender.send((producer, n)).expect("the receiver lives"));
        });
    }
    drop(sender);
    let mut next = [0; 4];
    for (producer, n) in receiver {
        let expected = &mut next[producer as usize];
        ensure!(
            n == *expected,
            "producer {producer} sent {n} before {expected}"
        );
        *expected += 1;
    }
    ensure!(next == [500; 4], "messages are lost: {next:?}");
    Ok(())
}

fn rwlock_and_barrier() -> Result<()> {
    let values = RwLock::new(vec![0u32; 16]);
    let barrier = Barrier::new(5);
    let torn = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            for round in 1..=200 {
                values.write().expect("no panic").fill(round);
            }
        });
        for _ in 0..4 {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..200 {
                    let values = values.read().expect("no panic");
                    if values.iter().any(|&value| value != values[0]) {
                        torn.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    ensure!(
        torn.load(Ordering::Relaxed) == 0,
        "readers saw half-done writes"
    );
    Ok(())
}

fn own_storage() -> Result<()> {
    thread_local!(static OWN: Cell<u64> = const { Cell::new(7) });
    OWN.set(1);
    let seen: BTreeSet<_> = (10..14)
        .map(|n| {
            thread::spawn(move || {
                let before = OWN.get();
                OWN.set(n);
                thread::yield_now();
                (before, OWN.get())
            })
        })
        .map(|thread| thread.join().expect("the thread ended well"))
        .collect();
    ensure!(
        seen == (10..14).map(|n| (7, n)).collect(),
        "threads saw {seen:?}"
    );
    ensure!(OWN.get() == 1, "another thread wrote this one's variable");
    Ok(())
}

/// A long chain of floating-point steps whose result depends on every one of them.
fn chain(seed: u32) -> (f64, f32) {
    let (mut wide, mut narrow) = (f64::from(seed), seed as f32);
    for step in 1..400_000u32 {
        wide = (wide + 1.0 / f64::from(step)).sqrt() * 1.5;
        narrow = (narrow * 0.75 + step as f32).sqrt();
        if step % 4096 == 0 {
            thread::yield_now();
        }
    }
    (wide, narrow)
}

fn keep_float_state() -> Result<()> {
    let alone: Vec<_> = (1..=6).map(chain).collect();
    let together: Vec<_> = (1..=6)
        .map(|seed| thread::spawn(move || chain(seed)))
        .collect();
    let together: Vec<_> = together
        .into_iter()
        .map(|thread| thread.join().expect("the thread ended well"))
        .collect();
    ensure!(alone == together, "alone {alone:?}, together {together:?}");
    Ok(())
}

fn park_and_unpark() -> Result<()> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&count);
    let parked = thread::spawn(move || {
        while counter.load(Ordering::Acquire) < 1000 {
            thread::park();
        }
    });
    for _ in 0..1000 {
        count.fetch_add(1, Ordering::Release);
        parked.thread().unpark();
    }
    parked.join().expect("the thread ended well");
    Ok(())
}

fn many() -> Result<()> {
    for round in 0..10 {
        let threads: Vec<_> = (0..32u64).map(|n| thread::spawn(move || n * n)).collect();
        let sum: u64 = threads
            .into_iter()
            .map(|thread| thread.join().expect("the thread ended well"))
            .sum();
        ensure!(sum == 31 * 32 * 63 / 6, "round {round} summed to {sum}");
    }
    Ok(())
}

fn are_in_proc() -> Result<()> {
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                barrier.wait();
                barrier.wait();
            })
        })
        .collect();
    barrier.wait();
    let listed = std::fs::read_dir("/proc/self/task")?.count();
    barrier.wait();
    for thread in threads {
        thread.join().expect("the thread ended well");
    }
    ensure!(listed == 4, "/proc/self/task lists {listed} threads of 4");
    Ok(())
}
