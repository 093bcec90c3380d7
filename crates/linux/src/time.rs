//! Clocks and sleeping.

use alloc::sync::{Arc, Weak};

use ::task::{WaitError, WaitQueue, now_ns};
use abi::errno::Errno;
use guard::timer;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::Process;
use crate::task::Restart;
use crate::uaccess::UserPtr;
use crate::wallclock::{self, Until};
use crate::{SysResult, Task, process_table};

pub(crate) const NS_PER_SEC: u64 = 1_000_000_000;

/// `struct timespec`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TimeSpec {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: i64,
}

/// `struct timeval`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TimeVal {
    /// Seconds.
    pub sec: i64,
    /// Microseconds, below 10^6.
    pub usec: i64,
}

impl TimeSpec {
    /// A number of nanoseconds.
    #[must_use]
    pub fn from_ns(ns: u64) -> Self {
        Self { sec: (ns / NS_PER_SEC) as i64, nsec: (ns % NS_PER_SEC) as i64 }
    }

    /// In nanoseconds; what is too much for a `u64` is the most there is.
    ///
    /// # Errors
    /// `EINVAL` if it is no time.
    pub fn to_ns(self) -> Result<u64, Errno> {
        let sec = u64::try_from(self.sec).map_err(|_| Errno::EINVAL)?;
        if !(0..NS_PER_SEC as i64).contains(&self.nsec) {
            return Err(Errno::EINVAL);
        }
        Ok(sec.saturating_mul(NS_PER_SEC).saturating_add(self.nsec as u64))
    }
}

impl TimeVal {
    /// A number of nanoseconds, cut to microseconds.
    #[must_use]
    pub fn from_ns(ns: u64) -> Self {
        Self { sec: (ns / NS_PER_SEC) as i64, usec: (ns % NS_PER_SEC / 1000) as i64 }
    }

    /// In nanoseconds.
    ///
    /// # Errors
    /// `EINVAL` if it is no time.
    pub fn to_ns(self) -> Result<u64, Errno> {
        if !(0..1_000_000).contains(&self.usec) {
            return Err(Errno::EINVAL);
        }
        TimeSpec { sec: self.sec, nsec: self.usec * 1000 }.to_ns()
    }
}

/// The monotonic time that is `span` from now.
///
/// # Errors
/// `EINVAL`.
pub(crate) fn deadline_after(span: TimeSpec) -> Result<u64, Errno> {
    Ok(now_ns().saturating_add(span.to_ns()?))
}

/// A clock that shows how much processor time was used.
#[derive(Clone)]
pub(crate) struct CpuClock {
    of: CpuClockOf,
    /// In user mode only.
    user_only: bool,
}

#[derive(Clone)]
enum CpuClockOf {
    Process(Weak<Process>),
    Thread(Weak<Task>),
}

impl CpuClock {
    /// That of a process.
    pub(crate) fn of_process(process: &Arc<Process>, user_only: bool) -> Self {
        Self { of: CpuClockOf::Process(Arc::downgrade(process)), user_only }
    }

    fn of_thread(task: &Arc<Task>, user_only: bool) -> Self {
        Self { of: CpuClockOf::Thread(Arc::downgrade(task)), user_only }
    }

    /// The clock that a number names; `None` if it names one of another kind.
    ///
    /// # Errors
    /// `EINVAL` if there is no such process or thread.
    pub(crate) fn named(task: &Task, clock: i32) -> Result<Option<Self>, Errno> {
        /// Low bits of a negative number; all of them set is no clock of this kind, 1 is that of user mode.
        const KIND: i32 = 3;
        const USER: i32 = 1;
        const OF_THREAD: i32 = 4;
        let own = || crate::current_task().ok_or(Errno::EINVAL);
        match clock.cast_unsigned() {
            sys::CLOCK_PROCESS_CPUTIME_ID => return Ok(Some(Self::of_process(task.process(), false))),
            sys::CLOCK_THREAD_CPUTIME_ID => return Ok(Some(Self::of_thread(&own()?, false))),
            _ if clock >= 0 => return Ok(None),
            _ => {}
        }
        let user_only = clock & KIND == USER;
        if clock & KIND == KIND {
            return Err(Errno::EINVAL);
        }
        match (clock & OF_THREAD != 0, !(clock >> 3)) {
            (true, 0) => own().map(|own| Some(Self::of_thread(&own, user_only))),
            (false, 0) => Ok(Some(Self::of_process(task.process(), user_only))),
            (true, tid) => {
                let other = process_table::find_task(tid).filter(|t| t.pid() == task.pid()).ok_or(Errno::EINVAL)?;
                Ok(Some(Self::of_thread(&other, user_only)))
            }
            (false, pid) => {
                let process = process_table::find(pid).ok_or(Errno::EINVAL)?;
                Ok(Some(Self::of_process(&process, user_only)))
            }
        }
    }

    /// Whether it is the clock of one thread, the one with this number.
    fn is_of_thread(&self, tid: i32) -> bool {
        matches!(&self.of, CpuClockOf::Thread(task) if task.upgrade().is_some_and(|task| task.tid() == tid))
    }

    /// What it shows: 0 if whom it belongs to is gone.
    pub(crate) fn now(&self) -> u64 {
        let usage = match &self.of {
            CpuClockOf::Process(process) => process.upgrade().map(|process| process.usage()),
            CpuClockOf::Thread(task) => task.upgrade().map(|task| task.usage()),
        };
        let usage = usage.unwrap_or_default();
        if self.user_only { usage.user_ns } else { usage.total_ns() }
    }
}

/// What a clock shows now.
fn read_clock(task: &Task, clock: i32) -> Result<u64, Errno> {
    Ok(match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_REALTIME_COARSE | sys::CLOCK_TAI | sys::CLOCK_REALTIME_ALARM => timer::wall_ns(),
        sys::CLOCK_MONOTONIC
        | sys::CLOCK_MONOTONIC_RAW
        | sys::CLOCK_MONOTONIC_COARSE
        | sys::CLOCK_BOOTTIME
        | sys::CLOCK_BOOTTIME_ALARM => now_ns(),
        sys::CLOCK_THREAD_CPUTIME_ID => task.thread().cpu_time_ns(),
        _ => CpuClock::named(task, clock)?.ok_or(Errno::EINVAL)?.now(),
    })
}

/// `clock_gettime(2)`
pub fn sys_clock_gettime(task: &Task, clock: i32, time: UserPtr<TimeSpec>) -> SysResult {
    time.write(&TimeSpec::from_ns(read_clock(task, clock)?))?;
    Ok(0)
}

/// `clock_getres(2)`: all clocks count nanoseconds.
pub fn sys_clock_getres(task: &Task, clock: i32, resolution: UserPtr<TimeSpec>) -> SysResult {
    read_clock(task, clock)?;
    resolution.write_optional(&TimeSpec { sec: 0, nsec: 1 })?;
    Ok(0)
}

/// `gettimeofday(2)`
pub fn sys_gettimeofday(_: &Task, time: UserPtr<TimeVal>, zone: UserPtr<[i32; 2]>) -> SysResult {
    time.write_optional(&TimeVal::from_ns(timer::wall_ns()))?;
    if !zone.is_null() {
        zone.write(&wallclock::zone())?;
    }
    Ok(0)
}

/// `time(2)`
pub fn sys_time(_: &Task, time: UserPtr<i64>) -> SysResult {
    let now = timer::wall_ns() / NS_PER_SEC;
    time.write_optional(&now.cast_signed())?;
    Ok(now as usize)
}

/// Sleeps until the clock passes a time, or a signal comes (false).
fn sleep(deadline_ns: u64) -> bool {
    let nothing = WaitQueue::new();
    nothing.wait_interruptible(Some(deadline_ns), || None::<()>) != Err(WaitError::Interrupted)
}

/// Sleeps for a span; interrupted, it tells the rest and can be taken up again.
fn sleep_span(task: &Task, deadline_ns: u64, rest: UserPtr<TimeSpec>) -> SysResult {
    if sleep(deadline_ns) {
        return Ok(0);
    }
    rest.write_optional(&TimeSpec::from_ns(deadline_ns.saturating_sub(now_ns())))?;
    *task.restart.lock() = Some(Restart::Sleep { deadline_ns, rest: rest.addr() });
    Err(Errno::ERESTART_RESTARTBLOCK)
}

/// Sleeps until a clock of processor time, which others let go on, shows something.
fn sleep_by(clock: &CpuClock, time: u64, absolute: bool, rest: UserPtr<TimeSpec>) -> SysResult {
    const SOONEST_NS: u64 = 1_000_000;
    let deadline = if absolute { time } else { clock.now().saturating_add(time) };
    loop {
        let left = deadline.saturating_sub(clock.now());
        if left == 0 {
            return Ok(0);
        }
        let pause = (left / ::task::cpu_count() as u64).max(SOONEST_NS);
        if !sleep(now_ns().saturating_add(pause)) {
            if absolute {
                return Err(Errno::ERESTARTNOHAND);
            }
            rest.write_optional(&TimeSpec::from_ns(left))?;
            return Err(Errno::EINTR);
        }
    }
}

/// `nanosleep(2)`
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
    let alarm = matches!(clock.cast_unsigned(), sys::CLOCK_REALTIME_ALARM | sys::CLOCK_BOOTTIME_ALARM);
    if alarm && !task.cred().capable(sys::CAP_WAKE_ALARM) { Err(Errno::EPERM) } else { Ok(()) }
}

/// `clock_nanosleep(2)`
pub fn sys_clock_nanosleep(task: &Task, clock: i32, flags: u32, time: UserPtr<TimeSpec>, rest: UserPtr<TimeSpec>) -> SysResult {
    let (realtime, alarm) = match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_TAI => (Some(true), false),
        sys::CLOCK_MONOTONIC | sys::CLOCK_BOOTTIME => (Some(false), false),
        sys::CLOCK_REALTIME_ALARM => (Some(true), true),
        sys::CLOCK_BOOTTIME_ALARM => (Some(false), true),
        // A thread that sleeps uses nothing; the others are for reading only.
        sys::CLOCK_THREAD_CPUTIME_ID | sys::CLOCK_MONOTONIC_RAW | sys::CLOCK_REALTIME_COARSE | sys::CLOCK_MONOTONIC_COARSE => {
            return Err(Errno::EOPNOTSUPP);
        }
        _ if is_clock_of_device(clock) => return Err(Errno::EOPNOTSUPP),
        sys::CLOCK_PROCESS_CPUTIME_ID => (None, false),
        _ if clock < 0 => (None, false),
        _ => return Err(Errno::EINVAL),
    };
    let time = time.read()?;
    let ns = time.to_ns()?;
    let absolute = flags & sys::TIMER_ABSTIME != 0;
    let Some(realtime) = realtime else {
        let clock = CpuClock::named(task, clock)?.ok_or(Errno::EINVAL)?;
        if clock.is_of_thread(task.tid()) {
            return Err(Errno::EINVAL);
        }
        return sleep_by(&clock, ns, absolute, rest);
    };
    if alarm {
        if flags & !sys::TIMER_ABSTIME != 0 {
            return Err(Errno::EINVAL);
        }
        check_alarm_clock(task, clock)?;
    }
    if !absolute {
        return sleep_span(task, deadline_after(time)?, rest);
    }
    let until = Until::new(task, time, realtime)?;
    if sleep(until.ns()) { Ok(0) } else { Err(Errno::ERESTARTNOHAND) }
}

/// `restart_syscall(2)`: a wait with a deadline goes on.
pub fn sys_restart_syscall(task: &Task) -> SysResult {
    // Out of the lock: a guard in the match's head would be held while the thread sleeps.
    let call = task.restart.lock().take();
    match call {
        Some(Restart::Sleep { deadline_ns, rest }) => sleep_span(task, deadline_ns, UserPtr::new(rest)),
        Some(Restart::Futex { addr, private, expected, deadline, bits }) => {
            crate::futex::wait(task, addr, private, expected, Some(deadline), bits)
        }
        Some(Restart::Poll { fds, count, deadline }) => crate::poll::poll_until(task, fds, count, deadline),
        None => Err(Errno::EINTR),
    }
}
