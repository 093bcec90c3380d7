//! Processors that come while a program runs: waits for them, and checks that threads work on each
//! and that everything that counts processors counts them.

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::checked;
use crate::topology::{move_to, online};

/// Steps of the computation that is done again and again.
const STEPS: u64 = 200_000;

/// `machine-tests new-cpus N`: waits until so many processors are online.
pub fn run(count: &str) -> ExitCode {
    match count.parse().map_err(Into::into).and_then(check) {
        Ok(()) => {
            println!("checked {count} processors");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("new-cpus: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Number of processors that the calling thread may run on.
fn allowed() -> Result<usize> {
    let mut set = [0u64; 16];
    // SAFETY: the mask is writable and as long as said.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(&set),
            set.as_mut_ptr(),
        ) as i32
    })?;
    Ok(set.iter().map(|word| word.count_ones() as usize).sum())
}

pub fn compute() -> u64 {
    (0..STEPS).fold(1, |word: u64, step| {
        black_box(word.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step)
    })
}

fn check(count: usize) -> Result<()> {
    let before = allowed()?;
    let right = compute();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|_| {
                scope.spawn(|| {
                    let mut rounds = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        if compute() != right {
                            return None;
                        }
                        rounds += 1;
                    }
                    Some(rounds)
                })
            })
            .collect();
        println!("ready");
        while online()?.len() < count {
            thread::sleep(Duration::from_millis(2));
        }
        let counted = counts(count);
        let worked = online()?.into_iter().try_for_each(|cpu| {
            let on_it = scope.spawn(move || works(cpu)).join();
            on_it
                .expect("it does not panic")
                .context(format!("processor {cpu}"))
        });
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let rounds = worker.join().expect("it does not panic");
            ensure!(
                rounds.context("a wrong result")? > 0,
                "a thread did not run"
            );
        }
        counted.and(worked)
    })?;
    ensure!(before < count, "there were {before} before");
    ensure!(allowed()? == count, "the first thread may not run on all");
    Ok(())
}

/// Whether all that counts processors says so many.
pub fn counts(count: usize) -> Result<()> {
    let lines = |path: &str, begins: fn(&str) -> bool| {
        let text = fs::read_to_string(path).context(path.to_owned())?;
        Ok::<_, anyhow::Error>(text.lines().filter(|line| begins(line)).count())
    };
    let in_cpuinfo = lines("/proc/cpuinfo", |line| line.starts_with("processor"))?;
    let in_stat = lines("/proc/stat", |line| {
        line.starts_with("cpu") && !line.starts_with("cpu ")
    })?;
    let seen = thread::available_parallelism()?.get();
    // SAFETY: the call takes a number.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    ensure!(
        [in_cpuinfo, in_stat, seen, configured as usize] == [count; 4],
        "cpuinfo {in_cpuinfo}, stat {in_stat}, affinity {seen}, sysconf {configured}"
    );
    let present: BTreeSet<_> = online()?.into_iter().collect();
    for cpu in &present {
        // It comes a moment after the processor.
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/package_cpus_list");
        while fs::read_to_string(&path).is_err() {
            thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(())
}

/// Moves the calling thread to a processor, and looks whether it computes, sleeps and wakes there.
fn works(cpu: usize) -> Result<()> {
    move_to(cpu)?;
    let mut told = 0u32;
    for _ in 0..3 {
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(3));
        ensure!(
            begun.elapsed() >= Duration::from_millis(3),
            "it woke too early"
        );
        // SAFETY: the first call takes nothing, the second writes a number.
        let seen = unsafe {
            libc::syscall(libc::SYS_getcpu, &raw mut told, 0usize, 0usize);
            libc::sched_getcpu()
        };
        ensure!(
            (seen as usize, told as usize) == (cpu, cpu),
            "the C library says {seen}, the kernel {told}"
        );
        black_box(compute());
    }
    Ok(())
}
