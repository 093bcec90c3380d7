//! How the wall clock is kept, as programs that do so tell it (`adjtimex(2)`): the clock without
//! leap seconds, errors, status.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::credentials::in_child;
use crate::time::{HOUR, clock_time, timespec};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("clock-without-leap-seconds", clock_without_leap_seconds),
    ("clock-discipline-is-remembered", discipline_is_remembered),
];

/// Sets parts of the clock's discipline; the result and all of it.
fn adjust(modes: u32, with: impl FnOnce(&mut libc::timex)) -> Result<(i32, libc::timex)> {
    // SAFETY: all zeroes is a valid structure.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    with(&mut state);
    state.modes = modes;
    // SAFETY: the structure is valid.
    let result = checked(unsafe { libc::adjtimex(&raw mut state) })?;
    Ok((result, state))
}

/// The offset of the clock without leap seconds, which goes back to what it was.
struct TaiOffset(i32);

impl Drop for TaiOffset {
    fn drop(&mut self) {
        tell_tai(self.0.into()).expect("the offset can be set back");
    }
}

fn tell_tai(seconds: i64) -> Result<i32> {
    let (_, state) = adjust(libc::ADJ_TAI, |state| state.constant = seconds)?;
    Ok(state.tai)
}

/// How far ahead of the wall clock it is counts in calls, in the shared object, and for timers and
/// sleeps until a time of it.
fn clock_without_leap_seconds() -> Result<()> {
    let (_, before) = adjust(0, |_| ())?;
    let _back = TaiOffset(before.tai);
    let by_call = || -> Result<Duration> {
        let mut now = timespec(Duration::ZERO);
        // SAFETY: the structure is valid.
        unsafe {
            let got = libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_TAI, &raw mut now);
            checked(got as i32)?;
        }
        Ok(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    };
    let is_ahead = |seconds: u64| -> Result<()> {
        let ahead = Duration::from_secs(seconds);
        let first = clock_time(libc::CLOCK_REALTIME)? + ahead;
        let (called, read) = (by_call()?, clock_time(libc::CLOCK_TAI)?);
        let last = clock_time(libc::CLOCK_REALTIME)? + ahead;
        ensure!(
            first <= called && called <= read && read <= last,
            "{seconds}: {first:?}, {called:?}, {read:?}, {last:?}"
        );
        Ok(())
    };
    ensure!(tell_tai(37)? == 37, "it is told another number");
    is_ahead(37)?;
    for bad in [-1, 100_001, i64::MAX] {
        ensure!(tell_tai(bad)? == 37, "{bad} seconds");
    }
    // A timer at a time of it comes nearer when the clock is moved forward.
    let mut timer = std::ptr::null_mut();
    // SAFETY: valid structures; the timer tells nobody.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_NONE;
        checked(libc::timer_create(
            libc::CLOCK_TAI,
            &raw mut event,
            &raw mut timer,
        ))?;
    }
    let end = clock_time(libc::CLOCK_TAI)? + 2 * HOUR;
    let new = libc::itimerspec {
        it_interval: timespec(Duration::ZERO),
        it_value: timespec(end),
    };
    // SAFETY: valid structures.
    checked(unsafe {
        libc::timer_settime(timer, libc::TIMER_ABSTIME, &new, std::ptr::null_mut())
    })?;
    for seconds in [37, 3637, 0] {
        ensure!(tell_tai(seconds)? == seconds as i32, "{seconds} seconds");
        is_ahead(seconds as u64)?;
        let mut left = new;
        let first = clock_time(libc::CLOCK_TAI)?;
        // SAFETY: valid structures.
        checked(unsafe { libc::timer_gettime(timer, &raw mut left) })?;
        let last = clock_time(libc::CLOCK_TAI)?;
        let left = Duration::new(left.it_value.tv_sec as u64, left.it_value.tv_nsec as u32);
        ensure!(
            end - last <= left && left <= end - first,
            "{seconds} seconds ahead: {left:?} are left"
        );
    }
    // SAFETY: the timer is this function's.
    checked(unsafe { libc::timer_delete(timer) })?;
    // So does a sleep, which was for an hour and is not any more.
    let end = timespec(clock_time(libc::CLOCK_TAI)? + HOUR);
    let sleeper = thread::spawn(move || {
        // SAFETY: valid structures.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_TAI,
                libc::TIMER_ABSTIME,
                &end,
                std::ptr::null_mut(),
            )
        }
    });
    ensure!(tell_tai(3601)? == 3601, "an hour");
    ensure!(sleeper.join().expect("the sleeper ended well") == 0);
    in_child(|| {
        // SAFETY: no pointers.
        checked(unsafe { libc::setuid(1000) })?;
        ensure!(tell_tai(1).is_err(), "an ordinary user's offset");
        ensure!(adjust(0, |_| ())?.1.tai == 3601, "it is not told");
        Ok(())
    })
}

/// Errors and status of the clock are told as they were set, and say whether the clock is
/// synchronised; a rate that is as it was may be set.
fn discipline_is_remembered() -> Result<()> {
    use libc::{
        ADJ_ESTERROR, ADJ_FREQUENCY, ADJ_MAXERROR, ADJ_MICRO, ADJ_NANO, ADJ_OFFSET, ADJ_STATUS,
        ADJ_TICK, ADJ_TIMECONST, STA_NANO, STA_PLL, STA_UNSYNC, TIME_ERROR, TIME_OK,
    };
    let (_, before) = adjust(0, |_| ())?;
    let told = ADJ_STATUS | ADJ_MAXERROR | ADJ_ESTERROR | ADJ_TIMECONST | ADJ_NANO;
    let (result, now) = adjust(told, |state| {
        // Bits that are not a program's to set change nothing.
        state.status = STA_PLL | 0xd000;
        (state.maxerror, state.esterror, state.constant) = (1000, 2000, 3);
    })?;
    ensure!(result == TIME_OK, "synchronised: {result}");
    ensure!(
        now.status == STA_PLL | STA_NANO && now.esterror == 2000 && now.constant == 3,
        "status {:#x}, error {}, constant {}",
        now.status,
        now.esterror,
        now.constant
    );
    ensure!(
        (1000..16_000_000).contains(&now.maxerror),
        "{}",
        now.maxerror
    );
    let (result, now) = adjust(ADJ_MICRO | ADJ_TIMECONST, |state| state.constant = 2)?;
    ensure!(
        result == TIME_OK && now.status == STA_PLL,
        "{:#x}",
        now.status
    );
    ensure!(now.constant == 6 && now.time.tv_usec < 1_000_000);
    let same = ADJ_FREQUENCY | ADJ_TICK | ADJ_OFFSET;
    let (_, now) = adjust(same, |state| {
        (state.freq, state.tick) = (before.freq, before.tick);
    })?;
    ensure!(
        (now.freq, now.tick, now.offset) == (before.freq, before.tick, 0),
        "{}, {}, {}",
        now.freq,
        now.tick,
        now.offset
    );
    for (status, expected) in [(0, TIME_OK), (STA_UNSYNC, TIME_ERROR)] {
        let (result, now) = adjust(ADJ_STATUS, |state| state.status = status)?;
        ensure!(
            (result, now.status) == (expected, status),
            "{result}, {:#x}",
            now.status
        );
    }
    adjust(told & !ADJ_NANO, |state| {
        (state.status, state.maxerror) = (before.status, before.maxerror);
        (state.esterror, state.constant) = (before.esterror, before.constant - 4);
    })?;
    let refused = adjust(ADJ_FREQUENCY, |state| state.freq = i64::MAX);
    let error = refused.err().and_then(|error| {
        error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
    });
    ensure!(error == Some(libc::EINVAL), "{error:?}");
    Ok(())
}
