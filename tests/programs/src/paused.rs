//! A program whose machine is stopped as a whole, and goes on: what it computes stays right, its
//! clocks and timers have gone on, and its CPU time has not. And what a program uses, measured by
//! itself, for comparison with what others say of it.

use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::checked;
use crate::leaving_cpus::{bind, told, under_load};
use crate::new_cpus::compute;

/// Interval of the timer.
const INTERVAL: Duration = Duration::from_millis(10);
/// A clock tick of `/proc/stat`.
const TICK: Duration = Duration::from_millis(10);
/// CPU time that `usage` uses.
const USED: Duration = Duration::from_millis(300);

/// `machine-tests paused`: says `ready`, works in many ways until it gets `SIGTERM`, checks.
pub fn run() -> ExitCode {
    told("paused", work())
}

/// `machine-tests usage`: uses CPU time, in user mode and in the kernel, and says how much, in
/// microseconds.
pub fn usage() -> ExitCode {
    told("usage", use_cpu())
}

/// Reading of a clock.
fn clock(id: libc::clockid_t) -> Result<Duration> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is writable.
    checked(unsafe { libc::clock_gettime(id, &raw mut now) })?;
    Ok(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

/// Time for which processor 0 was somebody else's, or nobody's.
fn stolen() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().find(|line| line.starts_with("cpu0 "));
    let steal = line.and_then(|line| line.split_whitespace().nth(8));
    let ticks: u32 = steal.context("no column for stolen time")?.parse()?;
    Ok(TICK * ticks)
}

/// Computes on processor 0 until the end: its CPU time is no more than what that processor had.
fn compute_alone(stop: &AtomicBool) -> Result<()> {
    bind(0, &[0])?;
    let (begun, had) = (Instant::now(), clock(libc::CLOCK_THREAD_CPUTIME_ID)?);
    let stolen_before = stolen()?;
    let right = compute();
    while !stop.load(Ordering::Relaxed) {
        ensure!(compute() == right, "a wrong result");
    }
    let used = clock(libc::CLOCK_THREAD_CPUTIME_ID)? - had;
    let stolen = stolen()? - stolen_before;
    let passed = begun.elapsed();
    // What was stolen is in whole ticks.
    ensure!(
        used + stolen <= passed + TICK,
        "{used:?} of CPU time and {stolen:?} of others' in {passed:?}"
    );
    Ok(())
}

/// Reads a timer of an interval until the end: it has counted each one that has passed.
fn count_intervals(stop: &AtomicBool) -> Result<()> {
    // A busy machine may let time pass between setting the timer and reading the clock.
    let before = Instant::now();
    // SAFETY: the calls take what they are given; the descriptor is new, and nobody else's.
    let mut timer = unsafe {
        let fd = checked(libc::timerfd_create(
            libc::CLOCK_MONOTONIC,
            libc::TFD_CLOEXEC,
        ))?;
        let interval = libc::timespec {
            tv_sec: 0,
            tv_nsec: INTERVAL.as_nanos() as i64,
        };
        let setting = libc::itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        checked(libc::timerfd_settime(
            fd,
            0,
            &raw const setting,
            std::ptr::null_mut(),
        ))?;
        std::fs::File::from_raw_fd(fd)
    };
    let after = Instant::now();
    let mut counted = 0;
    loop {
        let over = stop.load(Ordering::Relaxed);
        let least = (after.elapsed().as_nanos() / INTERVAL.as_nanos()) as u64;
        let mut count = [0; 8];
        timer.read_exact(&mut count)?;
        counted += u64::from_ne_bytes(count);
        ensure!(counted >= least, "{counted} intervals of {least}");
        let most = (before.elapsed() + INTERVAL).as_nanos() / INTERVAL.as_nanos() + 1;
        ensure!(
            u128::from(counted) <= most,
            "{counted} intervals, not {most}"
        );
        if over {
            return Ok(());
        }
    }
}

fn work() -> Result<String> {
    let stop = AtomicBool::new(false);
    let began = [clock(libc::CLOCK_MONOTONIC)?, clock(libc::CLOCK_REALTIME)?];
    let (load, others) = thread::scope(|scope| {
        let others = [
            scope.spawn(|| compute_alone(&stop)),
            scope.spawn(|| count_intervals(&stop)),
        ];
        let load = under_load();
        stop.store(true, Ordering::Relaxed);
        (
            load,
            others.map(|other| other.join().expect("it does not panic")),
        )
    });
    others.into_iter().collect::<Result<Vec<()>>>()?;
    let monotonic = clock(libc::CLOCK_MONOTONIC)? - began[0];
    let real = clock(libc::CLOCK_REALTIME)? - began[1];
    // Each was read a moment after the other.
    ensure!(
        monotonic.abs_diff(real) < Duration::from_secs(1),
        "{monotonic:?} on one clock, {real:?} on the other"
    );
    load
}

/// Times in user mode and in the kernel of this process, in microseconds.
fn used() -> Result<[u64; 2]> {
    // SAFETY: all zeroes are a structure of that kind, and it is writable.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        checked(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage))?;
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Ok([us(usage.ru_utime), us(usage.ru_stime)])
}

fn use_cpu() -> Result<String> {
    let least = USED.as_micros() as u64;
    while used()?[0] < least {
        compute();
    }
    // Calls that are measured one by one: each fault is one.
    let mut zero = std::fs::File::open("/dev/zero")?;
    let mut bytes = vec![0; 1 << 20];
    while used()?[1] < least {
        zero.read_exact(&mut bytes)?;
    }
    let [user, system] = used()?;
    Ok(format!("user {user}\nsystem {system}\ndone"))
}
