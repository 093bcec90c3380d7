//! Clocks and sleeping.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};

use crate::Check;

pub const CHECKS: &[(&str, Check)] = &[
    ("time-never-goes-back", never_goes_back),
    ("time-sleeps-long-enough", sleeps_long_enough),
    ("time-of-day", time_of_day),
    ("time-of-the-processor", time_of_the_processor),
];

fn never_goes_back() -> Result<()> {
    let check = || {
        let mut last = Instant::now();
        for _ in 0..20_000 {
            let now = Instant::now();
            if now < last {
                return false;
            }
            last = now;
        }
        true
    };
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(check)).collect();
    let right = threads.into_iter().all(|thread| thread.join().expect("the thread ended well"));
    ensure!(right, "the monotonic clock went back");
    Ok(())
}

fn sleeps_long_enough() -> Result<()> {
    for milliseconds in [0, 1, 10, 100] {
        let wanted = Duration::from_millis(milliseconds);
        let start = Instant::now();
        thread::sleep(wanted);
        let slept = start.elapsed();
        // The emulator shares its processors: only what is far too long is wrong.
        ensure!(slept >= wanted && slept < wanted + Duration::from_secs(3), "a sleep of {wanted:?} took {slept:?}");
    }
    Ok(())
}

fn time_of_day() -> Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    ensure!(since > Duration::from_secs(1_750_000_000), "it is {} s after 1970", since.as_secs());
    let (start, day) = (Instant::now(), SystemTime::now());
    thread::sleep(Duration::from_millis(200));
    let (one, other) = (start.elapsed(), day.elapsed()?);
    ensure!(one.abs_diff(other) < Duration::from_millis(100), "the clocks disagree: {one:?}, {other:?}");
    Ok(())
}

fn processor_time() -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid.
    crate::checked(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn time_of_the_processor() -> Result<()> {
    let start = processor_time()?;
    thread::sleep(Duration::from_millis(300));
    let asleep = processor_time()? - start;
    ensure!(asleep < Duration::from_millis(150), "300 ms of sleep cost {asleep:?} of processor time");
    let (begin, mut value) = (Instant::now(), 1u64);
    while begin.elapsed() < Duration::from_millis(300) {
        value = std::hint::black_box(value.wrapping_mul(3));
    }
    let busy = processor_time()? - start - asleep;
    ensure!(busy >= Duration::from_millis(20), "300 ms of work count as {busy:?} of processor time");
    Ok(())
}
