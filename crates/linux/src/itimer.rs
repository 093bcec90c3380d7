//! Timers of processes: `setitimer(2)`, `alarm(2)`, `timer_create(2)`. All of them send a signal.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicI32, Ordering};

use ::task::{Mutex, now_ns};
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::Process;
use crate::siginfo::{COUNT, SigInfo};
use crate::time::{NS_PER_SEC, TimeSpec, TimeVal, deadline_at};
use crate::timerfd::Expirations;
use crate::timers::{self, Alarm, Ticket};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, process_table, signal};

/// The timers of a process.
#[derive(Default)]
pub(crate) struct Timers {
    real: Option<Arc<Timer>>,
    created: BTreeMap<i32, Arc<Timer>>,
    next: i32,
}

/// What a timer does.
enum Notify {
    /// Sends `SIGALRM` to the process.
    Alarm,
    /// Sends a signal to the process, with a value, or to one thread of it.
    Signal { signo: i32, id: i32, value: u64, tid: Option<i32> },
    /// Counts, for whoever reads a descriptor.
    Count(Arc<Expirations>),
    /// Nothing: somebody asks how much is left.
    Nothing,
}

#[derive(Default)]
struct Setting {
    ticket: Option<Ticket>,
    interval_ns: u64,
}

/// A timer. Its alarm holds it while it is set; the process holds it until it is deleted.
pub(crate) struct Timer {
    me: Weak<Self>,
    process: Weak<Process>,
    notify: Notify,
    realtime: bool,
    setting: Mutex<Setting>,
    overrun: AtomicI32,
}

impl Timer {
    /// A timer of no process, that counts how often it fires.
    pub(crate) fn counting(expirations: Arc<Expirations>) -> Arc<Self> {
        Self::new(Weak::new(), Notify::Count(expirations), false)
    }

    fn new(process: Weak<Process>, notify: Notify, realtime: bool) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            process,
            notify,
            realtime,
            setting: Mutex::default(),
            overrun: AtomicI32::new(0),
        })
    }

    /// Sets it to fire at a time (`None`: not), and then every `interval_ns` if that is not 0. Returns what was left, and
    /// the interval that was.
    pub(crate) fn set(&self, deadline_ns: Option<u64>, interval_ns: u64) -> (u64, u64) {
        let mut setting = self.setting.lock();
        let left = self.left(&setting);
        let old = core::mem::take(&mut *setting);
        if let Some(ticket) = old.ticket {
            timers::cancel(ticket);
        }
        if let (Some(deadline), Some(me)) = (deadline_ns, self.me.upgrade()) {
            *setting = Setting { ticket: Some(timers::set(deadline, me)), interval_ns };
        }
        (left, old.interval_ns)
    }

    fn left(&self, setting: &Setting) -> u64 {
        // A set timer always has something left.
        setting.ticket.map_or(0, |ticket| ticket.deadline_ns().saturating_sub(now_ns()).max(1))
    }

    pub(crate) fn get(&self) -> (u64, u64) {
        let setting = self.setting.lock();
        (self.left(&setting), setting.interval_ns)
    }
}

impl Alarm for Timer {
    fn fire(&self) {
        let mut times = 1;
        {
            let mut setting = self.setting.lock();
            let Some(ticket) = setting.ticket.take() else { return };
            if ticket.deadline_ns() > now_ns() {
                // It was set anew while this was on its way.
                setting.ticket = Some(ticket);
                return;
            }
            if setting.interval_ns != 0
                && let Some(me) = self.me.upgrade()
            {
                // Intervals that have passed already are counted, not made up for.
                let missed = (now_ns() - ticket.deadline_ns()) / setting.interval_ns;
                times += missed;
                self.overrun.store(i32::try_from(missed).unwrap_or(i32::MAX), Ordering::Relaxed);
                let next = ticket.deadline_ns() + (missed + 1) * setting.interval_ns;
                setting.ticket = Some(timers::set(next, me));
            }
        }
        if let Notify::Count(expirations) = &self.notify {
            return expirations.add(times);
        }
        let Some(process) = self.process.upgrade() else { return };
        match self.notify {
            Notify::Alarm => signal::send(&process, SigInfo::kernel(sys::SIGALRM as i32)),
            Notify::Nothing | Notify::Count(_) => {}
            Notify::Signal { signo, id, value, tid } => {
                let info = SigInfo::timer(signo, id, self.overrun.load(Ordering::Relaxed), value);
                match tid {
                    None => signal::send(&process, info),
                    Some(tid) => {
                        if let Some(task) = process_table::find_task(tid) {
                            signal::send_task(&task, info);
                        }
                    }
                }
            }
        }
    }
}

/// A process has ended.
pub(crate) fn process_ends(process: &Process) {
    let timers = core::mem::take(&mut *process.timers.lock());
    for timer in timers.created.values().chain(&timers.real) {
        timer.set(None, 0);
    }
}

/// A process runs another program: only its interval timer goes on.
pub(crate) fn exec(process: &Process) {
    let created = core::mem::take(&mut process.timers.lock().created);
    for timer in created.values() {
        timer.set(None, 0);
    }
}

/// `struct itimerval`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ITimerVal {
    interval: TimeVal,
    value: TimeVal,
}

impl ITimerVal {
    fn from_ns((left, interval): (u64, u64)) -> Self {
        // What is left is never shown as nothing.
        let left = if left == 0 { 0 } else { left.max(1000) };
        Self { interval: TimeVal::from_ns(interval), value: TimeVal::from_ns(left) }
    }
}

fn real_timer(task: &Task) -> Arc<Timer> {
    let process = task.process();
    let mut timers = process.timers.lock();
    timers.real.get_or_insert_with(|| Timer::new(Arc::downgrade(process), Notify::Alarm, false)).clone()
}

/// The processor-time timers are not there.
fn check_which(which: u32) -> Result<(), Errno> {
    match which {
        sys::ITIMER_REAL => Ok(()),
        sys::ITIMER_VIRTUAL | sys::ITIMER_PROF => Err(Errno::ENOSYS),
        _ => Err(Errno::EINVAL),
    }
}

/// `setitimer(2)`
pub fn sys_setitimer(task: &Task, which: u32, new: UserPtr<ITimerVal>, old: UserPtr<ITimerVal>) -> SysResult {
    check_which(which)?;
    let new = new.read_optional()?.unwrap_or_default();
    let (value, interval) = (new.value.to_ns()?, new.interval.to_ns()?);
    let deadline = (value != 0).then(|| now_ns().saturating_add(value));
    let before = real_timer(task).set(deadline, interval);
    old.write_optional(&ITimerVal::from_ns(before))?;
    Ok(0)
}

/// `getitimer(2)`
pub fn sys_getitimer(task: &Task, which: u32, value: UserPtr<ITimerVal>) -> SysResult {
    check_which(which)?;
    value.write(&ITimerVal::from_ns(real_timer(task).get()))?;
    Ok(0)
}

/// `alarm(2)`
pub fn sys_alarm(task: &Task, seconds: u32) -> SysResult {
    let deadline = (seconds != 0).then(|| now_ns() + u64::from(seconds) * NS_PER_SEC);
    let (left, _) = real_timer(task).set(deadline, 0);
    // Rounded, but what is left is never nothing.
    let rest = (left + NS_PER_SEC / 2) / NS_PER_SEC;
    Ok(if left > 0 { rest.max(1) } else { 0 } as usize)
}

/// `struct sigevent`.
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
    /// How somebody is told (`SIGEV_*`).
    pub(crate) fn kind(&self) -> u32 {
        self.notify
    }

    /// The signal.
    pub(crate) fn signo(&self) -> i32 {
        self.signo
    }

    /// The value that goes with it.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }
}

/// The most timers of a process.
const MAX_TIMERS: usize = 1024;

/// Whether a timer's clock is the wall clock, rather than the one that only goes forward.
///
/// # Errors
/// `EOPNOTSUPP` for clocks of processor time, `EINVAL` for others.
pub(crate) fn clock_is_real(clock: i32) -> Result<bool, Errno> {
    match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_TAI | sys::CLOCK_REALTIME_ALARM => Ok(true),
        sys::CLOCK_MONOTONIC | sys::CLOCK_BOOTTIME | sys::CLOCK_BOOTTIME_ALARM => Ok(false),
        sys::CLOCK_PROCESS_CPUTIME_ID | sys::CLOCK_THREAD_CPUTIME_ID => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// When a setting makes a timer fire first (`None`: not at all), and its interval.
pub(crate) fn deadline_of(new: &ITimerSpec, absolute: bool, realtime: bool) -> Result<(Option<u64>, u64), Errno> {
    let (value, interval) = (new.value.to_ns()?, new.interval.to_ns()?);
    let deadline = match value {
        0 => None,
        _ if absolute => Some(deadline_at(new.value, realtime)?),
        value => Some(now_ns().saturating_add(value)),
    };
    Ok((deadline, interval))
}

/// `timer_create(2)`
pub fn sys_timer_create(task: &Task, clock: i32, event: UserPtr<SigEvent>, id: UserPtr<i32>) -> SysResult {
    let realtime = clock_is_real(clock)?;
    let event = event.read_optional()?;
    let process = task.process();
    let mut timers = process.timers.lock();
    if timers.created.len() >= MAX_TIMERS {
        return Err(Errno::EAGAIN);
    }
    let number = timers.next;
    let notify = match event {
        None => Notify::Signal { signo: sys::SIGALRM as i32, id: number, value: number as u64, tid: None },
        Some(event) => match event.notify {
            sys::SIGEV_NONE => Notify::Nothing,
            sys::SIGEV_SIGNAL | sys::SIGEV_THREAD_ID if (1..=COUNT).contains(&event.signo) => {
                let tid = (event.notify == sys::SIGEV_THREAD_ID).then_some(event.tid);
                if tid.is_some_and(|tid| !process.tasks().iter().any(|t| t.tid() == tid)) {
                    return Err(Errno::EINVAL);
                }
                Notify::Signal { signo: event.signo, id: number, value: event.value, tid }
            }
            _ => return Err(Errno::EINVAL),
        },
    };
    timers.next += 1;
    timers.created.insert(number, Timer::new(Arc::downgrade(process), notify, realtime));
    drop(timers);
    id.write(&number).inspect_err(|_| {
        process.timers.lock().created.remove(&number);
    })?;
    Ok(0)
}

fn created(task: &Task, id: i32) -> Result<Arc<Timer>, Errno> {
    task.process().timers.lock().created.get(&id).cloned().ok_or(Errno::EINVAL)
}

/// `struct itimerspec`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ITimerSpec {
    interval: TimeSpec,
    value: TimeSpec,
}

impl ITimerSpec {
    pub(crate) fn from_ns((left, interval): (u64, u64)) -> Self {
        Self { interval: TimeSpec::from_ns(interval), value: TimeSpec::from_ns(left) }
    }
}

/// `timer_settime(2)`
pub fn sys_timer_settime(task: &Task, id: i32, flags: u32, new: UserPtr<ITimerSpec>, old: UserPtr<ITimerSpec>) -> SysResult {
    let timer = created(task, id)?;
    let (deadline, interval) = deadline_of(&new.read()?, flags & sys::TIMER_ABSTIME != 0, timer.realtime)?;
    let before = timer.set(deadline, interval);
    old.write_optional(&ITimerSpec::from_ns(before))?;
    Ok(0)
}

/// `timer_gettime(2)`
pub fn sys_timer_gettime(task: &Task, id: i32, value: UserPtr<ITimerSpec>) -> SysResult {
    value.write(&ITimerSpec::from_ns(created(task, id)?.get()))?;
    Ok(0)
}

/// `timer_getoverrun(2)`
pub fn sys_timer_getoverrun(task: &Task, id: i32) -> SysResult {
    Ok(created(task, id)?.overrun.load(Ordering::Relaxed) as usize)
}

/// `timer_delete(2)`
pub fn sys_timer_delete(task: &Task, id: i32) -> SysResult {
    let timer = task.process().timers.lock().created.remove(&id).ok_or(Errno::EINVAL)?;
    timer.set(None, 0);
    Ok(0)
}
