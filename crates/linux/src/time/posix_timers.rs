//! Timers of processes: `setitimer(2)`, `alarm(2)`, `timer_create(2)`. All of them send a signal.
//!
//! A timer runs by a clock. Of those of processor time nobody tells when they reach a value, so the
//! timer asks: again and again when, at the earliest, it can be so, which is soon while the process
//! runs, and seldom while it sleeps.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use ::task::now_ns;
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::Tid;
use uapi::siginfo::NSIG;
use uapi::time::{ClockBase, NS_PER_SEC, TimeSpec, TimeVal, TimerMode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::cpu_clock::{CountedTime, CpuClock};
use crate::process::timer::{REALTIME_TIMERS, Timer, TimerClock, TimerNotify, TimerValue};
use crate::process::{Process, send_signal};
use crate::state::rlimit::{Resource, UNLIMITED};
use crate::state::sighand::Room;
use crate::time::wall_clock::{WallClockGuard, ahead_of_monotonic, lock_wall_clock, monotonic_of};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, time};

impl Timer {
    /// Sets it as a program wishes.
    ///
    /// # Errors
    /// `EINVAL` for what is no time.
    pub(crate) fn set_to(
        &self,
        _still: &WallClockGuard,
        wish: &ITimerSpec,
        mode: TimerMode,
    ) -> Result<TimerValue, Errno> {
        let (deadline, interval) = self.deadline_of(wish, mode)?;
        let before = self.set(deadline, interval);
        if mode == TimerMode::Absolute && self.base != ClockBase::Monotonic {
            let mut setting = self.setting.lock();
            setting.is_realtime = true;
            setting.before_ns = ahead_of_monotonic(self.base).saturating_sub(wish.value.to_ns()?);
            REALTIME_TIMERS
                .lock()
                .insert(self.address(), self.me.clone());
        }
        Ok(before)
    }

    /// When a setting makes it fire first (`None`: not at all), and its interval.
    fn deadline_of(&self, new: &ITimerSpec, mode: TimerMode) -> Result<(Option<u64>, u64), Errno> {
        let (value, interval) = (new.value.to_ns()?, new.interval.to_ns()?);
        let deadline = match value {
            0 => None,
            _ if mode == TimerMode::Absolute => Some(monotonic_of(new.value, self.base)?),
            value => Some(self.clock.now().saturating_add(value)),
        };
        Ok((deadline, interval))
    }
}

/// Deletes the timers of a process that has ended.
pub(crate) fn exit_itimers(process: &Process) {
    let timers = core::mem::take(&mut *process.timers.lock());
    for timer in timers
        .created
        .values()
        .chain(timers.interval.iter().flatten())
        .chain(&timers.limit)
    {
        timer.set(None, 0);
    }
}

/// Deletes the timers of a process that runs another program, but for the interval timers.
pub(crate) fn on_exec(process: &Process) {
    let created = core::mem::take(&mut process.timers.lock().created);
    for timer in created.values() {
        timer.set(None, 0);
    }
}

/// Arms the check of a process's `RLIMIT_CPU`, which was set or inherited.
pub(crate) fn update_rlimit_cpu(process: &Arc<Process>) {
    let soft = process.limits.lock()[Resource::Cpu].soft;
    let limited = soft != UNLIMITED;
    let timer = {
        let mut timers = process.timers.lock();
        if !limited && timers.limit.is_none() {
            return;
        }
        let clock = TimerClock::Cpu(CpuClock::of_process(process, CountedTime::Total));
        timers
            .limit
            .get_or_insert_with(|| {
                Timer::new(
                    Arc::downgrade(process),
                    TimerNotify::CpuLimit,
                    clock,
                    ClockBase::Monotonic,
                )
            })
            .clone()
    };
    timer.set(limited.then(|| soft.saturating_mul(NS_PER_SEC)), 0);
}

/// Time left and interval of `setitimer(2)`, in microseconds: `struct itimerval`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ITimerVal {
    interval: TimeVal,
    value: TimeVal,
}

impl ITimerVal {
    fn new(value: TimerValue) -> Self {
        // What is left is never shown as nothing.
        let remaining_ns = match value.remaining_ns {
            0 => 0,
            ns => ns.max(1000),
        };
        Self {
            interval: TimeVal::from_ns(value.interval_ns),
            value: TimeVal::from_ns(remaining_ns),
        }
    }
}

/// Interval timer of a number (`ITIMER_*`).
///
/// # Errors
/// `EINVAL` if there is no such timer.
fn interval_timer(task: &Task, which: u32) -> Result<Arc<Timer>, Errno> {
    let process = task.process();
    let (signo, clock) = match which {
        sys::ITIMER_REAL => (sys::SIGALRM, TimerClock::Monotonic),
        sys::ITIMER_VIRTUAL => (
            sys::SIGVTALRM,
            TimerClock::Cpu(CpuClock::of_process(process, CountedTime::User)),
        ),
        sys::ITIMER_PROF => (
            sys::SIGPROF,
            TimerClock::Cpu(CpuClock::of_process(process, CountedTime::Total)),
        ),
        _ => return Err(Errno::EINVAL),
    };
    let new = || {
        Timer::new(
            Arc::downgrade(process),
            TimerNotify::KernelSignal(signo as i32),
            clock,
            ClockBase::Monotonic,
        )
    };
    Ok(process.timers.lock().interval[which as usize]
        .get_or_insert_with(new)
        .clone())
}

/// `setitimer(2)`: sets an interval timer; stores what it was.
pub fn sys_setitimer(
    task: &Task,
    which: u32,
    new: UserPtr<ITimerVal>,
    old: UserPtr<ITimerVal>,
) -> SysResult {
    let new = new.read_optional()?.unwrap_or_default();
    let (value, interval) = (new.value.to_ns()?, new.interval.to_ns()?);
    let timer = interval_timer(task, which)?;
    let deadline = (value != 0).then(|| timer.clock.now().saturating_add(value));
    let before = timer.set(deadline, interval);
    old.write_optional(&ITimerVal::new(before))?;
    Ok(0)
}

/// `getitimer(2)`: stores an interval timer's time left and interval.
pub fn sys_getitimer(task: &Task, which: u32, value: UserPtr<ITimerVal>) -> SysResult {
    value.write(&ITimerVal::new(interval_timer(task, which)?.value()))?;
    Ok(0)
}

/// `alarm(2)`: sets a timer in seconds that sends `SIGALRM`; returns the seconds that were left.
pub fn sys_alarm(task: &Task, seconds: u32) -> SysResult {
    let deadline = (seconds != 0).then(|| now_ns() + u64::from(seconds) * NS_PER_SEC);
    let left = interval_timer(task, sys::ITIMER_REAL)?
        .set(deadline, 0)
        .remaining_ns;
    // Rounded, but what is left is never nothing.
    let rest = (left + NS_PER_SEC / 2) / NS_PER_SEC;
    Ok(if left > 0 { rest.max(1) } else { 0 } as usize)
}

/// Notification that a timer or queue sends: `struct sigevent`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigEvent {
    value: u64,
    signo: i32,
    notify: u32,
    tid: i32,
    rest: [u32; 11],
}

const _: () = assert!(size_of::<SigEvent>() == 64);

impl SigEvent {
    /// Kind of the notification (`SIGEV_*`).
    pub(crate) fn kind(&self) -> u32 {
        self.notify
    }

    /// Number of the signal to be sent.
    pub(crate) fn signo(&self) -> i32 {
        self.signo
    }

    /// The value that goes with it.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }
}

/// The base of a timer's clock of this number.
///
/// # Errors
/// `EINVAL` if it is neither.
pub(crate) fn clock_base(clock: i32) -> Result<ClockBase, Errno> {
    match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_REALTIME_ALARM => Ok(ClockBase::Realtime),
        sys::CLOCK_TAI => Ok(ClockBase::Tai),
        sys::CLOCK_MONOTONIC | sys::CLOCK_BOOTTIME | sys::CLOCK_BOOTTIME_ALARM => {
            Ok(ClockBase::Monotonic)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Whether there are timers that run by a clock of this number, whoever it belongs to.
///
/// # Errors
/// `EINVAL` if there is no such clock, `EOPNOTSUPP` if it is for reading only.
fn check_timer_clock(clock: i32) -> Result<(), Errno> {
    match clock.cast_unsigned() {
        sys::CLOCK_MONOTONIC_RAW | sys::CLOCK_REALTIME_COARSE | sys::CLOCK_MONOTONIC_COARSE => {
            Err(Errno::EOPNOTSUPP)
        }
        sys::CLOCK_PROCESS_CPUTIME_ID | sys::CLOCK_THREAD_CPUTIME_ID => Ok(()),
        _ if time::is_clock_of_device(clock) => Err(Errno::EOPNOTSUPP),
        _ if clock < 0 => Ok(()),
        _ => clock_base(clock).map(drop),
    }
}

/// The clock that a new timer runs by, and the one that its absolute times belong to.
///
/// # Errors
/// `EPERM` for a clock that wakes the machine up, `EINVAL` for one of a process or thread there is
/// not.
fn timer_clock(task: &Task, clock: i32) -> Result<(TimerClock, ClockBase), Errno> {
    time::check_alarm_clock(task, clock)?;
    Ok(match CpuClock::from_clockid(task, clock)? {
        Some(clock) => (TimerClock::Cpu(clock), ClockBase::Monotonic),
        None => (TimerClock::Monotonic, clock_base(clock)?),
    })
}

/// `timer_create(2)`. The number is taken, and told, before it is known whether there will be a
/// timer.
pub fn sys_timer_create(
    task: &Task,
    clock: i32,
    event: UserPtr<SigEvent>,
    id: UserPtr<i32>,
) -> SysResult {
    let event = event.read_optional()?;
    check_timer_clock(clock)?;
    let process = task.process();
    // Room for the signal of each is set aside.
    if send_signal::room_in_queues(process) == Room::UsedUp {
        return Err(Errno::EAGAIN);
    }
    let number = process.timers.lock().allocate_id()?;
    let notify = match event {
        None => TimerNotify::Signal {
            signo: sys::SIGALRM as i32,
            id: number,
            value: number as u64,
            tid: None,
        },
        Some(event) => match event.notify {
            sys::SIGEV_NONE => TimerNotify::Silent,
            // That a thread is to be started is between the program and its library.
            sys::SIGEV_SIGNAL | sys::SIGEV_THREAD | sys::SIGEV_THREAD_ID
                if (1..=NSIG).contains(&event.signo) =>
            {
                let tid = (event.notify == sys::SIGEV_THREAD_ID).then_some(Tid::new(event.tid));
                if tid.is_some_and(|tid| !process.tasks().iter().any(|t| t.tid() == tid)) {
                    return Err(Errno::EINVAL);
                }
                TimerNotify::Signal {
                    signo: event.signo,
                    id: number,
                    value: event.value,
                    tid,
                }
            }
            _ => return Err(Errno::EINVAL),
        },
    };
    id.write(&number)?;
    let (clock, base) = timer_clock(task, clock)?;
    let timer = Timer::new(Arc::downgrade(process), notify, clock, base);
    process.timers.lock().created.insert(number, timer);
    Ok(0)
}

fn created(task: &Task, id: i32) -> Result<Arc<Timer>, Errno> {
    task.process()
        .timers
        .lock()
        .created
        .get(&id)
        .cloned()
        .ok_or(Errno::EINVAL)
}

/// Time left and interval of a timer, in nanoseconds: `struct itimerspec`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ITimerSpec {
    pub(crate) interval: TimeSpec,
    pub(crate) value: TimeSpec,
}

impl ITimerSpec {
    /// # Errors
    /// `EINVAL` for what is no time.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        self.value.to_ns().and(self.interval.to_ns()).map(drop)
    }

    pub(crate) fn new(value: TimerValue) -> Self {
        Self {
            interval: TimeSpec::from_ns(value.interval_ns),
            value: TimeSpec::from_ns(value.remaining_ns),
        }
    }
}

/// `timer_settime(2)`: arms or disarms a timer; stores what it was.
pub fn sys_timer_settime(
    task: &Task,
    id: i32,
    flags: u32,
    new: UserPtr<ITimerSpec>,
    old: UserPtr<ITimerSpec>,
) -> SysResult {
    if new.is_null() {
        return Err(Errno::EINVAL);
    }
    let new = new.read()?;
    let timer = created(task, id)?;
    let before = timer.set_to(&lock_wall_clock(), &new, TimerMode::of_flags(flags))?;
    timer.fire_if_due();
    old.write_optional(&ITimerSpec::new(before))?;
    Ok(0)
}

/// `timer_gettime(2)`: stores a timer's time left and interval.
pub fn sys_timer_gettime(task: &Task, id: i32, value: UserPtr<ITimerSpec>) -> SysResult {
    value.write(&ITimerSpec::new(created(task, id)?.value()))?;
    Ok(0)
}

/// `timer_getoverrun(2)`: number of expirations beside the signal's.
pub fn sys_timer_getoverrun(task: &Task, id: i32) -> SysResult {
    Ok(created(task, id)?.overrun.load(Ordering::Relaxed) as usize)
}

/// `timer_delete(2)`: deletes a timer.
pub fn sys_timer_delete(task: &Task, id: i32) -> SysResult {
    let timer = task
        .process()
        .timers
        .lock()
        .created
        .remove(&id)
        .ok_or(Errno::EINVAL)?;
    timer.set(None, 0);
    Ok(0)
}
