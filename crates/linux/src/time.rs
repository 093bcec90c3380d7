//! Clocks and sleeping.

use ::task::{WaitError, WaitQueue, now_ns};
use abi::errno::Errno;
use guard::timer;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::task::Restart;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

pub(crate) const NS_PER_SEC: u64 = 1_000_000_000;
/// Clock ticks per second, as programs count them (`sysconf(_SC_CLK_TCK)`).
const TICKS: u64 = 100;

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

/// The monotonic time of an absolute time of the monotonic clock or the wall clock.
///
/// # Errors
/// `EINVAL`.
pub(crate) fn deadline_at(time: TimeSpec, realtime: bool) -> Result<u64, Errno> {
    let ns = time.to_ns()?;
    if !realtime {
        return Ok(ns);
    }
    // Both clocks run at the same rate, so their distance stays.
    let behind = timer::wall_ns().saturating_sub(now_ns());
    Ok(ns.saturating_sub(behind))
}

/// Low bits of a negative clock number, which names the processor time of a thread or process; all of them set is no such clock.
const CPU_CLOCK_KIND: i32 = 3;
const CPU_CLOCK_OF_THREAD: i32 = 4;

/// What a clock shows now.
fn read_clock(task: &Task, clock: i32) -> Result<u64, Errno> {
    if clock < 0 {
        let id = !(clock >> 3);
        let of_thread = clock & CPU_CLOCK_OF_THREAD != 0;
        if clock & CPU_CLOCK_KIND == CPU_CLOCK_KIND {
            return Err(Errno::EINVAL);
        }
        return match (of_thread, id) {
            (true, 0) => Ok(task.thread().cpu_time_ns()),
            (false, 0) => Ok(task.process().cpu_ns()),
            (true, tid) => {
                let other = crate::process_table::find_task(tid).filter(|t| t.pid() == task.pid()).ok_or(Errno::EINVAL)?;
                Ok(other.started().map_or(0, |t| t.cpu_time_ns()))
            }
            (false, pid) => Ok(crate::process_table::find(pid).ok_or(Errno::EINVAL)?.cpu_ns()),
        };
    }
    Ok(match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_REALTIME_COARSE | sys::CLOCK_TAI | sys::CLOCK_REALTIME_ALARM => timer::wall_ns(),
        sys::CLOCK_MONOTONIC
        | sys::CLOCK_MONOTONIC_RAW
        | sys::CLOCK_MONOTONIC_COARSE
        | sys::CLOCK_BOOTTIME
        | sys::CLOCK_BOOTTIME_ALARM => now_ns(),
        sys::CLOCK_PROCESS_CPUTIME_ID => task.process().cpu_ns(),
        sys::CLOCK_THREAD_CPUTIME_ID => task.thread().cpu_time_ns(),
        _ => return Err(Errno::EINVAL),
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

/// `clock_settime(2)`: the time is the machine's, and no instance sets it.
pub fn sys_clock_settime(task: &Task, clock: i32, time: UserPtr<TimeSpec>) -> SysResult {
    read_clock(task, clock)?;
    time.read()?.to_ns()?;
    Err(Errno::EPERM)
}

/// `gettimeofday(2)`
pub fn sys_gettimeofday(_: &Task, time: UserPtr<TimeVal>, zone: UserPtr<[i32; 2]>) -> SysResult {
    time.write_optional(&TimeVal::from_ns(timer::wall_ns()))?;
    zone.write_optional(&[0, 0])?;
    Ok(0)
}

/// `settimeofday(2)`
pub fn sys_settimeofday(_: &Task, _time: UserPtr<TimeVal>, _zone: UserPtr<[i32; 2]>) -> SysResult {
    Err(Errno::EPERM)
}

/// `time(2)`
pub fn sys_time(_: &Task, time: UserPtr<i64>) -> SysResult {
    let now = timer::wall_ns() / NS_PER_SEC;
    time.write_optional(&now.cast_signed())?;
    Ok(now as usize)
}

/// `times(2)`
pub fn sys_times(task: &Task, times: UserPtr<[u64; 4]>) -> SysResult {
    let ticks = |ns: u64| ns / (NS_PER_SEC / TICKS);
    let process = task.process();
    let children = process.children_ns.load(core::sync::atomic::Ordering::Relaxed);
    times.write_optional(&[ticks(process.cpu_ns()), 0, ticks(children), 0])?;
    Ok(ticks(now_ns()) as usize)
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

/// `nanosleep(2)`
pub fn sys_nanosleep(task: &Task, span: UserPtr<TimeSpec>, rest: UserPtr<TimeSpec>) -> SysResult {
    sleep_span(task, deadline_after(span.read()?)?, rest)
}

/// `clock_nanosleep(2)`
pub fn sys_clock_nanosleep(task: &Task, clock: i32, flags: u32, time: UserPtr<TimeSpec>, rest: UserPtr<TimeSpec>) -> SysResult {
    let realtime = match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_TAI => true,
        sys::CLOCK_MONOTONIC | sys::CLOCK_BOOTTIME => false,
        sys::CLOCK_PROCESS_CPUTIME_ID => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let time = time.read()?;
    if flags & sys::TIMER_ABSTIME == 0 {
        return sleep_span(task, deadline_after(time)?, rest);
    }
    if sleep(deadline_at(time, realtime)?) { Ok(0) } else { Err(Errno::ERESTARTNOHAND) }
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
        None => Err(Errno::EINTR),
    }
}
