//! Who goes first: among threads that wait for a futex or a semaphore, and on a processor when a
//! priority changes.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::calls::{call, fails, is};
use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    (
        "scheduling-futex-wakes-by-priority",
        futex_wakes_by_priority,
    ),
    (
        "scheduling-priority-counts-at-once",
        priority_counts_at_once,
    ),
    (
        "scheduling-semaphore-is-handed-over",
        semaphore_is_handed_over,
    ),
];

fn set_priority(tid: i32, priority: i32) -> Result<()> {
    is(
        call!(
            SYS_sched_setscheduler,
            tid,
            libc::SCHED_FIFO,
            &raw const priority
        ),
        0,
        "sched_setscheduler",
    )
}

/// Has the calling thread, and those it makes, run on one processor.
fn stay() -> Result<()> {
    let mask = 1u64;
    ensure!(
        call!(SYS_sched_setaffinity, 0, 8, &raw const mask) == 0,
        "sched_setaffinity"
    );
    Ok(())
}

fn this_thread() -> i32 {
    // SAFETY: the call only returns a number.
    unsafe { libc::gettid() }
}

/// Waits until a thread sleeps in this call.
fn until_it_waits(tid: i32) -> Result<()> {
    let path = format!("/proc/self/task/{tid}/stat");
    loop {
        let stat = std::fs::read_to_string(&path)?;
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        if state == Some('S') {
            return Ok(());
        }
        // Gives way to those of any priority.
        thread::sleep(Duration::from_millis(1));
    }
}

const PRIORITIES: [i32; 4] = [5, 20, 10, 20];

fn futex_wakes_by_priority() -> Result<()> {
    in_child(|| {
        stay()?;
        // They run when this thread waits, and not before.
        set_priority(0, 50)?;
        let (word, other) = (AtomicU32::new(0), AtomicU32::new(0));
        let woken = Mutex::new(Vec::new());
        let tids: [AtomicU32; 4] = Default::default();
        let wake = |word: &AtomicU32, count: usize| {
            call!(SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count, 0, 0, 0)
        };
        thread::scope(|scope| -> Result<()> {
            for round in 0..2 {
                for (n, priority) in PRIORITIES.into_iter().enumerate() {
                    tids[n].store(0, Ordering::SeqCst);
                    let (word, woken, tids) = (&word, &woken, &tids);
                    scope.spawn(move || {
                        tids[n].store(this_thread() as u32, Ordering::SeqCst);
                        let _ = set_priority(0, priority);
                        call!(SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 0, 0, 0, 0);
                        woken
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push((priority, n));
                    });
                    while tids[n].load(Ordering::SeqCst) == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    until_it_waits(tids[n].load(Ordering::SeqCst) as i32)?;
                }
                let seen = || woken.lock().map(|list| list.clone()).unwrap_or_default();
                let so_far = |count: usize| {
                    while seen().len() < count {
                        thread::sleep(Duration::from_millis(1));
                    }
                };
                if round == 0 {
                    for count in 1..=PRIORITIES.len() {
                        is(wake(&word, 1), 1, "FUTEX_WAKE")?;
                        so_far(count);
                    }
                } else {
                    // One is woken and the next one moved.
                    let moved = call!(
                        SYS_futex,
                        word.as_ptr(),
                        libc::FUTEX_REQUEUE,
                        1,
                        1,
                        other.as_ptr(),
                        0
                    );
                    is(moved, 2, "FUTEX_REQUEUE")?;
                    so_far(1);
                    is(wake(&other, 9), 1, "the one that was moved")?;
                    so_far(2);
                    is(wake(&word, 9), 2, "the rest")?;
                    so_far(4);
                }
                // Of two with one priority the first that came.
                ensure!(
                    seen() == [(20, 1), (20, 3), (10, 2), (5, 0)],
                    "round {round}: {:?}",
                    seen()
                );
                woken.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            Ok(())
        })
    })
}

fn priority_counts_at_once() -> Result<()> {
    in_child(|| {
        stay()?;
        for raise in [true, false] {
            let ran = AtomicBool::new(false);
            let tid = AtomicU32::new(0);
            let go = AtomicU32::new(0);
            set_priority(0, 20)?;
            thread::scope(|scope| -> Result<()> {
                scope.spawn(|| {
                    tid.store(this_thread() as u32, Ordering::SeqCst);
                    call!(SYS_futex, go.as_ptr(), libc::FUTEX_WAIT, 0, 0, 0, 0);
                    ran.store(true, Ordering::SeqCst);
                });
                while tid.load(Ordering::SeqCst) == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                let other = tid.load(Ordering::SeqCst) as i32;
                set_priority(other, 10)?;
                until_it_waits(other)?;
                go.store(1, Ordering::SeqCst);
                is(
                    call!(SYS_futex, go.as_ptr(), libc::FUTEX_WAKE, 1, 0, 0, 0),
                    1,
                    "FUTEX_WAKE",
                )?;
                ensure!(
                    !ran.load(Ordering::SeqCst),
                    "a thread of lower priority has run"
                );
                if raise {
                    set_priority(other, 30)?;
                } else {
                    set_priority(0, 5)?;
                }
                ensure!(
                    ran.load(Ordering::SeqCst),
                    "the thread that goes first has not run (raised: {raise})"
                );
                Ok(())
            })?;
        }
        // The same for one that has never run.
        let ran = AtomicBool::new(false);
        set_priority(0, 20)?;
        thread::scope(|scope| -> Result<()> {
            scope.spawn(|| ran.store(true, Ordering::SeqCst));
            ensure!(!ran.load(Ordering::SeqCst), "it has run at once");
            let mut tids: Vec<i32> = std::fs::read_dir("/proc/self/task")?
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .collect();
            tids.retain(|&tid| tid != this_thread());
            let [new] = tids[..] else {
                anyhow::bail!("threads {tids:?}");
            };
            set_priority(new, 30)?;
            ensure!(ran.load(Ordering::SeqCst), "the new thread has not run");
            Ok(())
        })
    })
}

fn semaphore_is_handed_over() -> Result<()> {
    // SAFETY: the call takes numbers.
    let id = checked(unsafe { libc::semget(libc::IPC_PRIVATE, 1, 0o600) })?;
    let result = in_child(|| {
        stay()?;
        set_priority(0, 20)?;
        let operate = |change: i16, flags: i16| {
            let operation = libc::sembuf {
                sem_num: 0,
                sem_op: change,
                sem_flg: flags,
            };
            call!(SYS_semop, id, &raw const operation, 1)
        };
        let tid = AtomicU32::new(0);
        thread::scope(|scope| -> Result<()> {
            scope.spawn(|| {
                let _ = set_priority(0, 10);
                tid.store(this_thread() as u32, Ordering::SeqCst);
                for _ in 0..3 {
                    operate(-1, 0);
                }
            });
            while tid.load(Ordering::SeqCst) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            for round in 0..3 {
                until_it_waits(tid.load(Ordering::SeqCst) as i32)?;
                is(operate(1, 0), 0, "semop up")?;
                // The other one has not run: it has it all the same.
                fails(
                    operate(-1, libc::IPC_NOWAIT as i16),
                    libc::EAGAIN,
                    &format!("taking it back, round {round}"),
                )?;
            }
            Ok(())
        })
    });
    call!(SYS_semctl, id, 0, libc::IPC_RMID, 0);
    result
}
