//! Processors that leave and come back while a program runs: what becomes of threads that were
//! bound to them, and whether all goes on under load.

use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::checked;
use crate::new_cpus::{compute, counts};
use crate::topology::online;

const POLL: Duration = Duration::from_millis(2);

/// `machine-tests leaving-cpus`: says `ready`, waits until the processor with the highest number
/// has left, checks, says `left`, waits until it is back, checks again.
pub fn leave_and_return() -> ExitCode {
    told("leaving-cpus", one_leaves())
}

/// `machine-tests changing-cpus`: keeps all processors busy in many ways until it gets `SIGTERM`.
pub fn change() -> ExitCode {
    told("changing-cpus", under_load())
}

/// Exit status of a check, which prints its result.
pub fn told(name: &str, result: Result<String>) -> ExitCode {
    match result {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Binds a thread (0: the calling one) to processors.
pub fn bind(tid: i32, cpus: &[usize]) -> Result<()> {
    let mut set = [0u64; 16];
    cpus.iter().for_each(|cpu| set[cpu / 64] |= 1 << (cpu % 64));
    // SAFETY: the mask is readable and as long as said.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            size_of_val(&set),
            set.as_ptr(),
        ) as i32
    })?;
    Ok(())
}

/// Processors that a thread may run on.
fn bound(tid: i32) -> Result<Vec<usize>> {
    let mut set = [0u64; 16];
    // SAFETY: the mask is writable and as long as said.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            size_of_val(&set),
            set.as_mut_ptr(),
        ) as i32
    })?;
    let is_in = |cpu: &usize| set[cpu / 64] >> (cpu % 64) & 1 != 0;
    Ok((0..64 * set.len()).filter(is_in).collect())
}

fn tid() -> i32 {
    // SAFETY: the call takes nothing.
    unsafe { libc::gettid() }
}

/// Looks until it is so.
fn wait_until(is_so: impl Fn() -> Result<bool>) -> Result<()> {
    while !is_so()? {
        thread::sleep(POLL);
    }
    Ok(())
}

/// A thread, and how often it has done something.
#[derive(Default)]
struct Busy {
    tid: AtomicU32,
    rounds: AtomicU64,
}

impl Busy {
    fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed) as i32
    }

    /// Waits until it has done something three times more.
    fn goes_on(&self) -> Result<()> {
        let before = self.rounds.load(Ordering::Relaxed);
        wait_until(|| Ok(self.rounds.load(Ordering::Relaxed) >= before + 3))
    }
}

fn one_leaves() -> Result<String> {
    let before = online()?;
    ensure!(before.len() > 1, "there is one processor only");
    let last = *before.last().context("no processor")?;
    let rest = &before[..before.len() - 1];
    let (runs, sleeps, either) = (Busy::default(), Busy::default(), Busy::default());
    let (stop, started) = (AtomicBool::new(false), Barrier::new(4));
    let asleep = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        let all = [(&runs, false), (&sleeps, true), (&either, true)];
        for (busy, sleeps) in all {
            let (stop, started) = (&stop, &started);
            scope.spawn(move || {
                busy.tid.store(tid() as u32, Ordering::Relaxed);
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    if sleeps {
                        thread::sleep(POLL);
                    }
                    compute();
                    busy.rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        started.wait();
        // Its sleep does not end before the processor is gone.
        let long = scope.spawn(|| {
            bind(0, &[last])?;
            println!("ready");
            let gone = asleep.1.wait_while(asleep.0.lock().unwrap(), |gone| !*gone);
            drop(gone.unwrap());
            compute();
            bound(0)
        });
        let checks = || -> Result<()> {
            bind(runs.tid(), &[last])?;
            bind(sleeps.tid(), &[last])?;
            bind(either.tid(), &[0, last])?;
            wait_until(|| Ok(!online()?.contains(&last)))?;
            // Who runs has been moved, and is bound to none from now on.
            for busy in [&runs, &sleeps, &either] {
                busy.goes_on()?;
            }
            let now = [bound(runs.tid())?, bound(sleeps.tid())?];
            ensure!(now == [rest, rest], "bound to {now:?}, not {rest:?}");
            ensure!(bound(either.tid())? == [0], "not bound to what is left");
            let refused = bind(0, &[last]).is_err();
            ensure!(refused, "bound to a processor that has left");
            counts(rest.len())?;
            *asleep.0.lock().unwrap() = true;
            asleep.1.notify_all();
            println!("left");
            wait_until(|| Ok(online()?.contains(&last)))?;
            // As on Linux, where it is online a moment before it counts for this: who was moved
            // stays free, who was not has what he had.
            wait_until(|| Ok(bound(0)? == before))?;
            let now = [bound(runs.tid())?, bound(sleeps.tid())?];
            ensure!(now == [&before[..], &before], "bound to {now:?} afterwards");
            ensure!(bound(either.tid())? == [0, last], "it did not get it back");
            bind(runs.tid(), &[last])?;
            runs.goes_on()?;
            counts(before.len())
        };
        let checked = checks();
        stop.store(true, Ordering::Relaxed);
        *asleep.0.lock().unwrap() = true;
        asleep.1.notify_all();
        let woke = long.join().expect("it does not panic");
        checked?;
        ensure!(woke? == rest, "who slept is bound to a processor that left");
        Ok(format!("checked processor {last}"))
    })
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_term(_: i32) {
    STOP.store(true, Ordering::Relaxed);
}

/// Runs a piece of work again and again until the end; returns how often.
fn again(mut work: impl FnMut() -> Result<()>) -> Result<u64> {
    let mut rounds = 0;
    while !STOP.load(Ordering::Relaxed) {
        work()?;
        rounds += 1;
    }
    Ok(rounds)
}

/// Moves the calling thread to the processor with the highest number, and works there: it may leave
/// at any moment.
fn go_to_last() -> Result<()> {
    let all = online()?;
    // Refused if it has left in between.
    let _ = bind(0, &all[all.len() - 1..]);
    compute();
    let begun = Instant::now();
    thread::sleep(POLL);
    ensure!(begun.elapsed() >= POLL, "it woke too early");
    let _ = bind(0, &all);
    Ok(())
}

/// Maps memory, writes to it, and takes the right and the memory away again, so that all processors
/// that run this program have to forget it.
fn map_and_unmap(value: u8) -> Result<()> {
    const BYTES: usize = 1 << 16;
    // SAFETY: new memory, used below only, in its bounds, and given back once.
    unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        ensure!(at != libc::MAP_FAILED, "no memory");
        at.cast::<u8>().write_bytes(value, BYTES);
        checked(libc::mprotect(at, BYTES, libc::PROT_READ))?;
        let right = (0..BYTES)
            .step_by(4096)
            .all(|n| at.cast::<u8>().add(n).read_volatile() == value);
        checked(libc::munmap(at, BYTES))?;
        ensure!(right, "memory has changed");
    }
    Ok(())
}

/// Works in many ways until it gets `SIGTERM`; says `ready` when it does.
pub fn under_load() -> Result<String> {
    let handler: extern "C" fn(i32) = on_term;
    // SAFETY: the handler stores to an atomic and nothing else.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
    let right = compute();
    let (turn, changed) = (Mutex::new(0u64), Condvar::new());
    let rounds = thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..2 {
            workers.push(scope.spawn(|| {
                again(|| {
                    ensure!(compute() == right, "a wrong result");
                    Ok(())
                })
            }));
            workers.push(scope.spawn(|| again(go_to_last)));
        }
        for value in 1..=2 {
            workers.push(scope.spawn(move || again(|| map_and_unmap(value))));
        }
        // Two that wake each other.
        for own in 0..2 {
            let (turn, changed) = (&turn, &changed);
            workers.push(scope.spawn(move || {
                let rounds = again(|| {
                    let is_others =
                        |turn: &mut u64| *turn % 2 != own && !STOP.load(Ordering::Relaxed);
                    *changed.wait_while(turn.lock().unwrap(), is_others).unwrap() += 1;
                    changed.notify_all();
                    Ok(())
                });
                // The other one may wait for its turn.
                drop(turn.lock());
                changed.notify_all();
                rounds
            }));
        }
        // Threads that come and go.
        workers.push(scope.spawn(|| {
            again(|| {
                thread::scope(|inner| {
                    inner.spawn(|| compute() == right).join().ok();
                });
                Ok(())
            })
        }));
        println!("ready");
        workers
            .into_iter()
            .map(|worker| worker.join().expect("it does not panic"))
            .collect::<Result<Vec<_>>>()
    })?;
    ensure!(
        rounds.iter().all(|rounds| *rounds > 0),
        "a thread did not run: {rounds:?}"
    );
    counts(online()?.len())?;
    Ok("checked under load".into())
}
