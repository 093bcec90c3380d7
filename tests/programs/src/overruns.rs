//! What a timer tells of the times when nobody took notice.

use std::time::Duration;
use std::{mem, ptr, thread};

use anyhow::{Result, ensure};

use crate::calls::{Fd, call, is};
use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("time-overruns-are-all-counted", overruns_are_all_counted),
    ("time-ignored-timers-go-on", ignored_timers_go_on),
    ("time-descriptors-count-all", descriptors_count_all),
];

/// A timer that sends a signal, deleted when dropped.
struct Timer(i32);

impl Timer {
    fn new(signal: i32) -> Result<Self> {
        // SAFETY: all zeros is a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = signal;
        let mut id = -1i32;
        is(
            call!(
                SYS_timer_create,
                libc::CLOCK_REALTIME,
                &raw const event,
                &raw mut id
            ),
            0,
            "timer_create",
        )?;
        Ok(Self(id))
    }

    /// Sets it to a time that is long past, with an interval in nanoseconds.
    fn set_past(&self, interval: i64) -> Result<()> {
        self.set(1, interval)
    }

    fn set(&self, value: i64, interval: i64) -> Result<()> {
        let spec = libc::itimerspec {
            it_interval: time(interval),
            it_value: time(value),
        };
        is(
            call!(
                SYS_timer_settime,
                self.0,
                libc::TIMER_ABSTIME,
                &raw const spec,
                0
            ),
            0,
            "timer_settime",
        )
    }

    /// Waits until a timer without an interval has sent its signal.
    fn until_it_fired(&self) -> Result<()> {
        loop {
            let mut spec = libc::itimerspec {
                it_interval: time(0),
                it_value: time(0),
            };
            is(
                call!(SYS_timer_gettime, self.0, &raw mut spec),
                0,
                "timer_gettime",
            )?;
            if spec.it_value.tv_sec == 0 && spec.it_value.tv_nsec == 0 {
                return Ok(());
            }
            thread::yield_now();
        }
    }

    fn overrun(&self) -> i64 {
        call!(SYS_timer_getoverrun, self.0)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        call!(SYS_timer_delete, self.0);
    }
}

fn time(ns: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: ns / 1_000_000_000,
        tv_nsec: ns % 1_000_000_000,
    }
}

/// Blocks a signal in this process's only thread.
fn block(signal: i32) -> Result<libc::sigset_t> {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        checked(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()))?;
        Ok(set)
    }
}

/// Takes a signal that is pending, or none; returns its code and the number of overruns in it.
fn take(set: &libc::sigset_t) -> Option<(i32, i32)> {
    take_within(set, 0)
}

/// Takes a signal that comes soon.
fn wait(set: &libc::sigset_t) -> Option<(i32, i32)> {
    take_within(set, 30_000_000_000)
}

fn take_within(set: &libc::sigset_t, ns: i64) -> Option<(i32, i32)> {
    let limit = time(ns);
    // SAFETY: all zeros is a valid `siginfo_t`, which the call fills.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        if libc::sigtimedwait(set, &mut info, &limit) < 0 {
            return None;
        }
        Some((info.si_code, info.si_overrun()))
    }
}

fn overruns_are_all_counted() -> Result<()> {
    in_child(|| {
        for signal in [libc::SIGRTMIN() + 3, libc::SIGUSR2] {
            let set = block(signal)?;
            let timer = Timer::new(signal)?;
            is(timer.overrun(), 0, "at first")?;
            // Since 1970 it would have fired more often than can be told.
            timer.set_past(1)?;
            let first = wait(&set);
            ensure!(
                first == Some((libc::SI_TIMER, i32::MAX)),
                "overruns of a nanosecond: {first:?}"
            );
            is(timer.overrun(), i32::MAX.into(), "timer_getoverrun")?;
            timer.set(0, 0)?;
            is(timer.overrun(), 0, "after it was set")?;
            take(&set);
            // The signal says what had passed when it was taken.
            let now = || {
                std::time::UNIX_EPOCH
                    .elapsed()
                    .map(|since| since.as_secs() as i64)
            };
            let hour = 3600;
            let before = now()? / hour;
            timer.set_past(hour * 1_000_000_000)?;
            let hours = wait(&set).map(|seen| i64::from(seen.1));
            ensure!(
                hours.is_some_and(|hours| (before..=before + 1).contains(&hours)),
                "overruns of an hour: {hours:?}, not {before}"
            );
            ensure!(take(&set).is_none(), "another signal");
            // One that fires while its signal waits counts in it.
            for _ in 0..2 {
                timer.set_past(0)?;
                timer.until_it_fired()?;
            }
            let twice = take(&set).map(|seen| seen.1);
            ensure!(twice == Some(1), "fired twice: {twice:?}");
            ensure!(take(&set).is_none(), "it is pending twice");
            // Others that send the signal do not take its place.
            is(call!(SYS_kill, std::process::id(), signal), 0, "kill")?;
            timer.set_past(0)?;
            timer.until_it_fired()?;
            let both = [take(&set), take(&set)].map(|seen| seen.map(|seen| seen.0));
            ensure!(
                both == [Some(libc::SI_USER), Some(libc::SI_TIMER)],
                "a signal and a timer's: {both:?}"
            );
        }
        Ok(())
    })
}

fn ignored_timers_go_on() -> Result<()> {
    in_child(|| {
        let signal = libc::SIGUSR1;
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
        let timer = Timer::new(signal)?;
        timer.set_past(1)?;
        let set = block(signal)?;
        // A signal that is blocked is not ignored, so that it comes as soon as the timer does.
        let mut seen = None;
        while seen.is_none() {
            thread::sleep(Duration::from_millis(1));
            seen = take(&set);
        }
        ensure!(seen == Some((libc::SI_TIMER, i32::MAX)), "{seen:?}");
        Ok(())
    })
}

fn descriptors_count_all() -> Result<()> {
    let timer = Fd::new(
        call!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0),
        "timerfd_create",
    )?;
    let set = |interval: i64| {
        let spec = libc::itimerspec {
            it_interval: time(interval),
            it_value: time(1),
        };
        call!(
            SYS_timerfd_settime,
            timer.0,
            libc::TFD_TIMER_ABSTIME,
            &raw const spec,
            0
        )
    };
    let read = || {
        let mut count = 0u64;
        let n = call!(SYS_read, timer.0, &raw mut count, 8);
        if n == 8 { count as i64 } else { n }
    };
    is(set(1), 0, "timerfd_settime")?;
    let now = || {
        let mut now = time(0);
        call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    };
    let before = now();
    let (count, after) = (read(), now());
    ensure!(
        (before..=after).contains(&count),
        "{count} nanoseconds, between {before} and {after}"
    );
    let again = read();
    ensure!(
        again > 0 && again <= now() - before,
        "{again} nanoseconds more"
    );
    is(set(3_600_000_000_000), 0, "timerfd_settime")?;
    is(read(), 1, "an hour")?;
    let mut poll = libc::pollfd {
        fd: timer.0,
        events: libc::POLLIN,
        revents: 0,
    };
    is(call!(SYS_poll, &raw mut poll, 1, 0), 0, "before the next")
}
