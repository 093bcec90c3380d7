//! Setting the wall clock: `clock_settime(2)`, `settimeofday(2)`. Every instance has its own, so
//! none disturbs another one.
//!
//! Kernel and programs keep the wall clock as its distance from the monotonic one, which never
//! jumps. What waits for a time of the wall clock has turned that into monotonic time with the
//! distance of then, so whoever sets the clock tells it: threads in calls begin these anew
//! (`AbsoluteDeadline`), and timers are moved (`process::timer`).

use core::sync::atomic::{AtomicU32, Ordering};

use ::task::{Deadline, Mutex, MutexGuard, now_ns};
use abi::errno::Errno;
use guard::timer;
use linux_raw_sys::general as sys;
use uapi::time::{ClockBase, NS_PER_SEC, TimeSpec, TimeVal};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::process_table;
use crate::process::timer::clock_was_set;
use crate::time::vdso;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// `struct timezone`: remembered, and added to no time.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TimeZone {
    /// Minutes west of Greenwich.
    minutes_west: i32,
    /// Kind of summer time.
    dst_time: i32,
}

/// Time zone that is told; `None` until somebody set it. Who holds it may set the clock.
static ZONE: Mutex<Option<TimeZone>> = Mutex::new(None);

/// Seconds by which the clock without leap seconds is ahead of the wall clock: as many as somebody
/// has told, at first none. Changed by the holder of the clock only.
static TAI_SECONDS: AtomicU32 = AtomicU32::new(0);

/// While it is held nobody sets the wall clock.
pub(crate) type WallClockGuard = MutexGuard<'static, Option<TimeZone>>;

/// Locks the wall clock: its distance from the monotonic clock stays as it is.
pub(crate) fn lock_wall_clock() -> WallClockGuard {
    ZONE.lock()
}

/// The zone that was set last.
pub(crate) fn zone() -> TimeZone {
    ZONE.lock().unwrap_or_default()
}

/// The monotonic time of an absolute time of one of the two clocks, for a call that waits for it
/// and keeps this meanwhile: if the wall clock is set, the thread is interrupted as if by a signal
/// that was dealt with already, and the call begins anew.
pub(crate) struct AbsoluteDeadline<'a> {
    deadline: Deadline,
    task: &'a Task,
}

impl<'a> AbsoluteDeadline<'a> {
    /// # Errors
    /// `EINVAL` if it is no time.
    pub(crate) fn new(task: &'a Task, time: TimeSpec, base: ClockBase) -> Result<Self, Errno> {
        // Before the distance is read: who sets it afterwards finds the thread.
        task.waits_on_realtime
            .store(base != ClockBase::Monotonic, Ordering::SeqCst);
        let mut until = Self {
            deadline: Deadline::PASSED,
            task,
        };
        until.deadline = Deadline::at_ns(monotonic_of(time, base)?);
        Ok(until)
    }

    /// The time by the monotonic clock.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }
}

impl Drop for AbsoluteDeadline<'_> {
    fn drop(&mut self) {
        self.task.waits_on_realtime.store(false, Ordering::Relaxed);
    }
}

/// The monotonic time of an absolute time of one of the two clocks, as they are now.
///
/// # Errors
/// `EINVAL` if it is no time.
pub(crate) fn monotonic_of(time: TimeSpec, base: ClockBase) -> Result<u64, Errno> {
    Ok(time.to_ns()?.saturating_sub(ahead_of_monotonic(base)))
}

/// Nanoseconds by which one of the clocks is ahead of the monotonic one now.
pub(crate) fn ahead_of_monotonic(base: ClockBase) -> u64 {
    match base {
        ClockBase::Realtime => timer::wall_base_ns(),
        ClockBase::Tai => timer::wall_base_ns().saturating_add(tai_ns()),
        ClockBase::Monotonic => 0,
    }
}

/// Nanoseconds by which the clock without leap seconds is ahead of the wall clock.
pub(crate) fn tai_ns() -> u64 {
    u64::from(tai_seconds()) * NS_PER_SEC
}

/// Seconds by which it is.
pub(crate) fn tai_seconds() -> u32 {
    TAI_SECONDS.load(Ordering::SeqCst)
}

/// Sets the seconds by which the clock without leap seconds is ahead of the wall clock.
pub(crate) fn set_tai(seconds: u32) {
    let _still = lock_wall_clock();
    let before = TAI_SECONDS.swap(seconds, Ordering::SeqCst);
    vdso::update_data_page();
    let forward = i64::from(seconds) - i64::from(before);
    clock_was_set(&[ClockBase::Tai], forward * NS_PER_SEC.cast_signed());
    wake_waiters();
}

/// Sets the wall clock to a time.
///
/// # Errors
/// `EINVAL` for a time before the machine's start, or in the far future.
fn set(_still: &WallClockGuard, ns: u64) -> Result<(), Errno> {
    let base = ns
        .checked_sub(now_ns())
        .filter(|_| ns < i64::MAX as u64)
        .ok_or(Errno::EINVAL)?;
    let before = timer::wall_base_ns();
    timer::set_wall_base(base);
    vdso::update_data_page();
    clock_was_set(
        &[ClockBase::Realtime, ClockBase::Tai],
        base.wrapping_sub(before).cast_signed(),
    );
    wake_waiters();
    Ok(())
}

/// Has the threads that wait for a time of the wall clock look again when that will be.
fn wake_waiters() {
    for process in process_table::processes_where(|_, _| true) {
        for task in process.tasks() {
            if task.waits_on_realtime.load(Ordering::SeqCst) {
                task.signal_wake_up();
            }
        }
    }
}

/// Whether the caller may set the clock.
pub(super) fn check_sys_time(task: &Task) -> Result<(), Errno> {
    if task.cred().capable(sys::CAP_SYS_TIME) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Moves the wall clock by a distance, for a caller who may.
pub(crate) fn step(task: &Task, forward_ns: i64) -> Result<(), Errno> {
    check_sys_time(task)?;
    let guard = lock_wall_clock();
    set(
        &guard,
        timer::wall_ns()
            .checked_add_signed(forward_ns)
            .ok_or(Errno::EINVAL)?,
    )
}

/// `clock_settime(2)`: only of the wall clock.
pub fn sys_clock_settime(task: &Task, clock: i32, time: UserPtr<TimeSpec>) -> SysResult {
    if clock.cast_unsigned() != sys::CLOCK_REALTIME {
        return Err(Errno::EINVAL);
    }
    let ns = time.read()?.to_ns()?;
    check_sys_time(task)?;
    set(&lock_wall_clock(), ns).map(|()| 0)
}

/// `settimeofday(2)`: the time, the zone, or both. The first to tell a zone but no time says that
/// the clock showed the zone's time.
pub fn sys_settimeofday(task: &Task, time: UserPtr<TimeVal>, zone: UserPtr<TimeZone>) -> SysResult {
    const MAX_MINUTES: i32 = 15 * 60;
    let ns = time.read_optional()?.map(TimeVal::to_ns).transpose()?;
    let zone = zone.read_optional()?;
    check_sys_time(task)?;
    if zone.is_some_and(|zone| zone.minutes_west.abs() > MAX_MINUTES) {
        return Err(Errno::EINVAL);
    }
    let mut guard = lock_wall_clock();
    let ns = match zone {
        Some(zone) if guard.is_none() && zone.minutes_west != 0 && ns.is_none() => {
            Some(timer::wall_ns().saturating_add_signed(
                i64::from(zone.minutes_west) * 60 * NS_PER_SEC.cast_signed(),
            ))
        }
        _ => ns,
    };
    if let Some(ns) = ns {
        set(&guard, ns)?;
    }
    *guard = zone.or(*guard);
    Ok(0)
}
