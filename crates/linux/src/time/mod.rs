//! Clocks and sleeping.

pub mod posix_timers;
pub mod rusage;
pub mod timerfd;
pub mod timex;
pub(crate) mod vdso;
pub mod wall_clock;

use ::task::{Deadline, WaitError, WaitQueue, now_ns};
use abi::errno::Errno;
use guard::timer;
use linux_raw_sys::general as sys;
use uapi::time::{ClockBase, NS_PER_SEC, TimeSpec, TimeVal, TimerMode};

use crate::process::cpu_clock::CpuClock;
use crate::process::task::RestartBlock;
use crate::time::wall_clock::{AbsoluteDeadline, TimeZone};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// The deadline that is `span` from now.
///
/// # Errors
/// `EINVAL`.
pub(crate) fn deadline_after(span: TimeSpec) -> Result<Deadline, Errno> {
    Ok(Deadline::after_ns(span.to_ns()?))
}

/// Time that a clock shows now, in nanoseconds.
fn read_clock(task: &Task, clock: i32) -> Result<u64, Errno> {
    Ok(match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_REALTIME_ALARM => timer::wall_ns(),
        sys::CLOCK_REALTIME_COARSE => ::vdso::coarse(timer::wall_ns()),
        sys::CLOCK_TAI => timer::wall_ns().saturating_add(wall_clock::tai_ns()),
        sys::CLOCK_MONOTONIC
        | sys::CLOCK_MONOTONIC_RAW
        | sys::CLOCK_BOOTTIME
        | sys::CLOCK_BOOTTIME_ALARM => now_ns(),
        sys::CLOCK_MONOTONIC_COARSE => ::vdso::coarse(now_ns()),
        sys::CLOCK_THREAD_CPUTIME_ID => task.thread().cpu_time_ns(),
        _ => CpuClock::from_clockid(task, clock)?
            .ok_or(Errno::EINVAL)?
            .now(),
    })
}

/// `clock_gettime(2)`: stores the time of a clock, in nanoseconds.
pub fn sys_clock_gettime(task: &Task, clock: i32, time: UserPtr<TimeSpec>) -> SysResult {
    time.write(&TimeSpec::from_ns(read_clock(task, clock)?))?;
    Ok(0)
}

// Who notes the coarse clock's time, and then changes a file, finds a time that is not before it.
const _: () = assert!(::vdso::COARSE == fs::TIME_UNIT_NS);

/// `clock_getres(2)`: all clocks but the coarse ones count nanoseconds.
pub fn sys_clock_getres(task: &Task, clock: i32, resolution: UserPtr<TimeSpec>) -> SysResult {
    read_clock(task, clock)?;
    let unit = match clock.cast_unsigned() {
        sys::CLOCK_REALTIME_COARSE | sys::CLOCK_MONOTONIC_COARSE => ::vdso::COARSE,
        _ => 1,
    };
    resolution.write_optional(&TimeSpec::from_ns(unit))?;
    Ok(0)
}

/// `gettimeofday(2)`: stores the wall clock's time, in microseconds, and the time zone.
pub fn sys_gettimeofday(_: &Task, time: UserPtr<TimeVal>, zone: UserPtr<TimeZone>) -> SysResult {
    time.write_optional(&TimeVal::from_ns(timer::wall_ns()))?;
    if !zone.is_null() {
        zone.write(&wall_clock::zone())?;
    }
    Ok(0)
}

/// `time(2)`: the wall clock's time, in seconds since 1970.
pub fn sys_time(_: &Task, time: UserPtr<i64>) -> SysResult {
    let now = timer::wall_ns() / NS_PER_SEC;
    time.write_optional(&now.cast_signed())?;
    Ok(now as usize)
}

/// Sleeps until the clock passes a time, or a signal comes (false).
fn sleep(deadline: Deadline) -> bool {
    let nothing = WaitQueue::new();
    nothing.wait_interruptible(Some(deadline), || None::<()>) != Err(WaitError::Interrupted)
}

/// Sleeps for a span; interrupted, it tells the rest and can be taken up again.
pub(crate) fn sleep_span(task: &Task, deadline: Deadline, rest: UserPtr<TimeSpec>) -> SysResult {
    if sleep(deadline) {
        return Ok(0);
    }
    rest.write_optional(&TimeSpec::from_ns(deadline.remaining_ns()))?;
    *task.restart_block.lock() = Some(RestartBlock::Sleep {
        deadline,
        rest: rest.addr(),
    });
    Err(Errno::ERESTART_RESTARTBLOCK)
}

/// Sleeps until a clock of processor time shows a time; other threads make it go on.
fn sleep_cpu_clock(
    clock: &CpuClock,
    time: u64,
    mode: TimerMode,
    rest: UserPtr<TimeSpec>,
) -> SysResult {
    const MIN_POLL_NS: u64 = 1_000_000;
    // By this clock, so not a `Deadline`.
    let end_ns = match mode {
        TimerMode::Absolute => time,
        TimerMode::Relative => clock.now().saturating_add(time),
    };
    loop {
        let left = end_ns.saturating_sub(clock.now());
        if left == 0 {
            return Ok(0);
        }
        let pause = (left / ::task::cpu_count() as u64).max(MIN_POLL_NS);
        if !sleep(Deadline::after_ns(pause)) {
            if mode == TimerMode::Absolute {
                return Err(Errno::ERESTARTNOHAND);
            }
            rest.write_optional(&TimeSpec::from_ns(left))?;
            return Err(Errno::EINTR);
        }
    }
}

/// `nanosleep(2)`: sleeps for a time; stores the rest if a signal ends it.
pub fn sys_nanosleep(task: &Task, span: UserPtr<TimeSpec>, rest: UserPtr<TimeSpec>) -> SysResult {
    sleep_span(task, deadline_after(span.read()?)?, rest)
}

/// Whether a clock's number stands for a descriptor of a device, of which none is a clock here.
pub(crate) fn is_clock_of_device(clock: i32) -> bool {
    const KIND: i32 = 7;
    const DEVICE: i32 = 3;
    clock < 0 && clock & KIND == DEVICE
}

/// Whether a program may wait by a clock, which may be one that wakes the machine up.
///
/// # Errors
/// `EPERM`.
pub(crate) fn check_alarm_clock(task: &Task, clock: i32) -> Result<(), Errno> {
    let alarm = matches!(
        clock.cast_unsigned(),
        sys::CLOCK_REALTIME_ALARM | sys::CLOCK_BOOTTIME_ALARM
    );
    if alarm && !task.cred().capable(sys::CAP_WAKE_ALARM) {
        Err(Errno::EPERM)
    } else {
        Ok(())
    }
}

/// `clock_nanosleep(2)`: sleeps by a clock for a time or until one.
pub fn sys_clock_nanosleep(
    task: &Task,
    clock: i32,
    flags: u32,
    time: UserPtr<TimeSpec>,
    rest: UserPtr<TimeSpec>,
) -> SysResult {
    let (base, alarm) = match clock.cast_unsigned() {
        sys::CLOCK_REALTIME => (Some(ClockBase::Realtime), false),
        sys::CLOCK_TAI => (Some(ClockBase::Tai), false),
        sys::CLOCK_MONOTONIC | sys::CLOCK_BOOTTIME => (Some(ClockBase::Monotonic), false),
        sys::CLOCK_REALTIME_ALARM => (Some(ClockBase::Realtime), true),
        sys::CLOCK_BOOTTIME_ALARM => (Some(ClockBase::Monotonic), true),
        // A thread that sleeps uses nothing; the others are for reading only.
        sys::CLOCK_THREAD_CPUTIME_ID
        | sys::CLOCK_MONOTONIC_RAW
        | sys::CLOCK_REALTIME_COARSE
        | sys::CLOCK_MONOTONIC_COARSE => {
            return Err(Errno::EOPNOTSUPP);
        }
        _ if is_clock_of_device(clock) => return Err(Errno::EOPNOTSUPP),
        sys::CLOCK_PROCESS_CPUTIME_ID => (None, false),
        _ if clock < 0 => (None, false),
        _ => return Err(Errno::EINVAL),
    };
    let time = time.read()?;
    let ns = time.to_ns()?;
    let mode = TimerMode::of_flags(flags);
    let Some(base) = base else {
        let clock = CpuClock::from_clockid(task, clock)?.ok_or(Errno::EINVAL)?;
        if clock.is_of_thread(task.tid()) {
            return Err(Errno::EINVAL);
        }
        return sleep_cpu_clock(&clock, ns, mode, rest);
    };
    if alarm {
        if flags & !sys::TIMER_ABSTIME != 0 {
            return Err(Errno::EINVAL);
        }
        check_alarm_clock(task, clock)?;
    }
    if mode == TimerMode::Relative {
        return sleep_span(task, deadline_after(time)?, rest);
    }
    let until = AbsoluteDeadline::new(task, time, base)?;
    if sleep(until.deadline()) {
        Ok(0)
    } else {
        Err(Errno::ERESTARTNOHAND)
    }
}
