//! Timers of processes: `setitimer(2)`, `alarm(2)`, `timer_create(2)`. All of them send a signal.
//!
//! A timer runs by a clock. Of those of processor time nobody tells when they reach a value, so the timer asks: again and again when, at
//! the earliest, it can be so, which is soon while the process runs, and seldom while it sleeps.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use ::task::{Mutex, now_ns};
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::SIGPENDING;
use crate::process::Process;
use crate::siginfo::{COUNT, SigInfo};
use crate::time::{CpuClock, NS_PER_SEC, TimeSpec, TimeVal};
use crate::timerfd::Expirations;
use crate::timers::{self, Alarm, Ticket};
use crate::uaccess::UserPtr;
use crate::wallclock::{Still, hold, monotonic_of};
use crate::{SysResult, Task, process_table, signal, time};

/// The timers of a process.
#[derive(Default)]
pub(crate) struct Timers {
    /// `ITIMER_REAL`, `ITIMER_VIRTUAL`, `ITIMER_PROF`.
    interval: [Option<Arc<Timer>>; 3],
    /// `RLIMIT_CPU`.
    limit: Option<Arc<Timer>>,
    created: BTreeMap<i32, Arc<Timer>>,
    next: i32,
}

impl Timers {
    /// A number for one more timer of `most`.
    ///
    /// # Errors
    /// `EAGAIN` if there are too many.
    fn take_number(&mut self, most: usize) -> Result<i32, Errno> {
        if self.created.len() >= most.min(MAX_TIMERS) {
            return Err(Errno::EAGAIN);
        }
        loop {
            let number = self.next;
            self.next = number.checked_add(1).unwrap_or(0);
            if !self.created.contains_key(&number) {
                return Ok(number);
            }
        }
    }
}

/// What a timer does.
enum Notify {
    /// Sends a signal to the process, as the kernel does.
    Plain(i32),
    /// Sends a signal to the process, with a value, or to one thread of it.
    Signal { signo: i32, id: i32, value: u64, tid: Option<i32> },
    /// Counts, for whoever reads a descriptor.
    Count(Arc<Expirations>),
    /// Looks at the limit of processor time.
    Limit,
    /// Nothing: somebody asks how much is left.
    Nothing,
}

/// The clock that a timer runs by.
#[derive(Clone)]
pub(crate) enum Clock {
    /// The one that only goes forward. The wall clock's times are turned into its: both go at the same rate.
    Time,
    /// Processor time.
    Cpu(CpuClock),
}

impl Clock {
    fn now(&self) -> u64 {
        match self {
            Self::Time => now_ns(),
            Self::Cpu(clock) => clock.now(),
        }
    }
}

#[derive(Default)]
struct Setting {
    ticket: Option<Ticket>,
    /// By the timer's clock.
    deadline_ns: u64,
    interval_ns: u64,
    /// The deadline was a time of the wall clock, and the timer is one of [`BY_WALL_CLOCK`].
    by_wall_clock: bool,
}

/// The timers whose deadlines are times of the wall clock, by their addresses.
static BY_WALL_CLOCK: Mutex<BTreeMap<usize, Weak<Timer>>> = Mutex::new(BTreeMap::new());

/// How many there are of those.
pub(crate) fn by_wall_clock() -> u64 {
    BY_WALL_CLOCK.lock().len() as u64
}

/// The wall clock was set this much forward: what was to be at one of its times is still at that.
pub(crate) fn wall_clock_was_set(forward_ns: i64) {
    let timers: Vec<_> = BY_WALL_CLOCK.lock().values().filter_map(Weak::upgrade).collect();
    for timer in timers {
        timer.wall_clock_was_set(forward_ns);
    }
}

/// The shortest time between two looks at processor time, and the longest.
const SOONEST_NS: u64 = 500_000;
const LATEST_NS: u64 = 100_000_000;

/// A timer. Its alarm holds it while it is set; the process holds it until it is deleted.
pub(crate) struct Timer {
    _counted: census::Timer,
    me: Weak<Self>,
    process: Weak<Process>,
    notify: Notify,
    clock: Clock,
    /// Absolute times are the wall clock's.
    realtime: bool,
    setting: Mutex<Setting>,
    overrun: AtomicI32,
    /// Of a clock of processor time: what it showed at the last look, and how long after that the next one was to be.
    seen_ns: AtomicU64,
    pause_ns: AtomicU64,
}

impl Timer {
    /// A timer of no process, that counts how often it fires. `realtime`: absolute times are the wall clock's.
    pub(crate) fn counting(expirations: Arc<Expirations>, realtime: bool) -> Arc<Self> {
        Self::new(Weak::new(), Notify::Count(expirations), Clock::Time, realtime)
    }

    fn new(process: Weak<Process>, notify: Notify, clock: Clock, realtime: bool) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            _counted: census::Timer::default(),
            me: me.clone(),
            process,
            notify,
            clock,
            realtime,
            setting: Mutex::default(),
            overrun: AtomicI32::new(0),
            seen_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
        })
    }

    /// Sets it to fire at a time of its clock (`None`: not), and then every `interval_ns` if that is not 0. Returns what was left,
    /// and the interval that was.
    pub(crate) fn set(&self, deadline_ns: Option<u64>, interval_ns: u64) -> (u64, u64) {
        let now = self.clock.now();
        let mut setting = self.setting.lock();
        let left = Self::left(&setting, now);
        let old = core::mem::take(&mut *setting);
        if let Some(ticket) = old.ticket {
            timers::cancel(ticket);
        }
        if old.by_wall_clock {
            BY_WALL_CLOCK.lock().remove(&self.address());
        }
        if let Some(deadline_ns) = deadline_ns {
            self.pause_ns.store(0, Ordering::Relaxed);
            *setting = Setting { ticket: self.alarm(deadline_ns, now), deadline_ns, interval_ns, by_wall_clock: false };
        } else if matches!(self.notify, Notify::Count(_)) {
            // That of a descriptor is remembered even if it does not run.
            setting.interval_ns = interval_ns;
        }
        (left, old.interval_ns)
    }

    /// Sets it as a program wishes.
    ///
    /// # Errors
    /// `EINVAL` for what is no time.
    pub(crate) fn set_to(&self, _still: &Still, wish: &ITimerSpec, absolute: bool) -> Result<(u64, u64), Errno> {
        let (deadline, interval) = self.deadline_of(wish, absolute)?;
        let before = self.set(deadline, interval);
        if absolute && self.realtime {
            let mut setting = self.setting.lock();
            setting.by_wall_clock = true;
            BY_WALL_CLOCK.lock().insert(self.address(), self.me.clone());
        }
        Ok(before)
    }

    /// Fires now if it was set to a time that is past, rather than a moment later.
    pub(crate) fn fire_if_due(&self) {
        let is_due = |setting: &Setting| matches!(self.clock, Clock::Time) && setting.deadline_ns <= now_ns();
        let ticket = {
            let setting = self.setting.lock();
            setting.ticket.filter(|_| is_due(&setting))
        };
        if let Some(ticket) = ticket {
            timers::cancel(ticket);
            self.fire();
        }
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    fn wall_clock_was_set(&self, forward_ns: i64) {
        let mut setting = self.setting.lock();
        if let Some(ticket) = setting.ticket.take() {
            timers::cancel(ticket);
            setting.deadline_ns = setting.deadline_ns.saturating_add_signed(forward_ns.saturating_neg());
            setting.ticket = self.alarm(setting.deadline_ns, now_ns());
        }
        if let Notify::Count(expirations) = &self.notify {
            expirations.wall_clock_was_set();
        }
    }

    /// Has the timer looked at when the clock, which shows `now`, can have reached a time.
    fn alarm(&self, deadline_ns: u64, now: u64) -> Option<Ticket> {
        let me = self.me.upgrade()?;
        let Clock::Cpu(_) = self.clock else { return Some(timers::set(deadline_ns, me)) };
        // Each processor can bring it nearer. A clock that stands is looked at more and more seldom.
        let stands = self.seen_ns.swap(now, Ordering::Relaxed) == now;
        let nearest = deadline_ns.saturating_sub(now) / ::task::cpu_count() as u64;
        let longer = if stands { self.pause_ns.load(Ordering::Relaxed) * 2 } else { 0 };
        let pause = nearest.max(longer.min(LATEST_NS)).max(SOONEST_NS);
        self.pause_ns.store(pause, Ordering::Relaxed);
        Some(timers::set(now_ns().saturating_add(pause), me))
    }

    fn left(setting: &Setting, now: u64) -> u64 {
        // A set timer always has something left.
        setting.ticket.map_or(0, |_| setting.deadline_ns.saturating_sub(now).max(1))
    }

    pub(crate) fn get(&self) -> (u64, u64) {
        let now = self.clock.now();
        let setting = self.setting.lock();
        (Self::left(&setting, now), setting.interval_ns)
    }

    /// When a setting makes it fire first (`None`: not at all), and its interval.
    fn deadline_of(&self, new: &ITimerSpec, absolute: bool) -> Result<(Option<u64>, u64), Errno> {
        let (value, interval) = (new.value.to_ns()?, new.interval.to_ns()?);
        let deadline = match value {
            0 => None,
            _ if absolute => Some(monotonic_of(new.value, self.realtime)?),
            value => Some(self.clock.now().saturating_add(value)),
        };
        Ok((deadline, interval))
    }

    /// Tells whoever is to be told that it fired `times` times.
    fn tell(&self, times: u64) {
        if let Notify::Count(expirations) = &self.notify {
            return expirations.add(times);
        }
        let Some(process) = self.process.upgrade() else { return };
        match self.notify {
            Notify::Plain(signo) => signal::send(&process, SigInfo::kernel(signo)),
            Notify::Limit => check_cpu_limit(&process),
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

impl Drop for Timer {
    fn drop(&mut self) {
        if self.setting.get_mut().by_wall_clock {
            BY_WALL_CLOCK.lock().remove(&self.address());
        }
    }
}

impl Alarm for Timer {
    fn fire(&self) {
        let mut times = 1;
        let now = self.clock.now();
        {
            let mut setting = self.setting.lock();
            let Some(ticket) = setting.ticket.take() else { return };
            if ticket.deadline_ns() > now_ns() {
                // It was set anew while this was on its way.
                setting.ticket = Some(ticket);
                return;
            }
            if setting.deadline_ns > now {
                setting.ticket = self.alarm(setting.deadline_ns, now);
                return;
            }
            // Intervals that have passed already are counted, not made up for.
            if let Some(missed) = (now - setting.deadline_ns).checked_div(setting.interval_ns) {
                times += missed;
                self.overrun.store(i32::try_from(missed).unwrap_or(i32::MAX), Ordering::Relaxed);
                setting.deadline_ns += (missed + 1) * setting.interval_ns;
                setting.ticket = self.alarm(setting.deadline_ns, now);
            }
        }
        self.tell(times);
    }
}

/// A process has ended.
pub(crate) fn process_ends(process: &Process) {
    let timers = core::mem::take(&mut *process.timers.lock());
    for timer in timers.created.values().chain(timers.interval.iter().flatten()).chain(&timers.limit) {
        timer.set(None, 0);
    }
}

/// A process runs another program: only its interval timers go on.
pub(crate) fn exec(process: &Process) {
    let created = core::mem::take(&mut process.timers.lock().created);
    for timer in created.values() {
        timer.set(None, 0);
    }
}

/// The limit of a process's processor time was set, or its memory of it copied: somebody has to look.
pub(crate) fn watch_cpu_limit(process: &Arc<Process>) {
    let [soft, _] = process.limits.lock()[sys::RLIMIT_CPU as usize];
    let limited = soft != u64::MAX;
    let timer = {
        let mut timers = process.timers.lock();
        if !limited && timers.limit.is_none() {
            return;
        }
        let clock = Clock::Cpu(CpuClock::of_process(process, false));
        timers.limit.get_or_insert_with(|| Timer::new(Arc::downgrade(process), Notify::Limit, clock, false)).clone()
    };
    timer.set(limited.then(|| soft.saturating_mul(NS_PER_SEC)), 0);
}

/// The soft limit of processor time is reached: `SIGXCPU`, each second again, and in the end `SIGKILL`.
fn check_cpu_limit(process: &Arc<Process>) {
    let [soft, hard] = process.limits.lock()[sys::RLIMIT_CPU as usize];
    let used = process.cpu_ns() / NS_PER_SEC;
    if used >= hard {
        crate::process::log_end(process, sys::SIGKILL as i32, format_args!("it used its {hard} s of processor time"));
        return process.kill(sys::SIGKILL as i32);
    }
    if used >= soft {
        signal::send(process, SigInfo::kernel(sys::SIGXCPU as i32));
    }
    let timer = process.timers.lock().limit.clone();
    if let Some(timer) = timer {
        timer.set(Some((used + 1).max(soft).min(hard).saturating_mul(NS_PER_SEC)), 0);
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

/// One of the three interval timers.
///
/// # Errors
/// `EINVAL` if there is no such timer.
fn interval_timer(task: &Task, which: u32) -> Result<Arc<Timer>, Errno> {
    let process = task.process();
    let (signo, clock) = match which {
        sys::ITIMER_REAL => (sys::SIGALRM, Clock::Time),
        sys::ITIMER_VIRTUAL => (sys::SIGVTALRM, Clock::Cpu(CpuClock::of_process(process, true))),
        sys::ITIMER_PROF => (sys::SIGPROF, Clock::Cpu(CpuClock::of_process(process, false))),
        _ => return Err(Errno::EINVAL),
    };
    let new = || Timer::new(Arc::downgrade(process), Notify::Plain(signo as i32), clock, false);
    Ok(process.timers.lock().interval[which as usize].get_or_insert_with(new).clone())
}

/// `setitimer(2)`
pub fn sys_setitimer(task: &Task, which: u32, new: UserPtr<ITimerVal>, old: UserPtr<ITimerVal>) -> SysResult {
    let new = new.read_optional()?.unwrap_or_default();
    let (value, interval) = (new.value.to_ns()?, new.interval.to_ns()?);
    let timer = interval_timer(task, which)?;
    let deadline = (value != 0).then(|| timer.clock.now().saturating_add(value));
    let before = timer.set(deadline, interval);
    old.write_optional(&ITimerVal::from_ns(before))?;
    Ok(0)
}

/// `getitimer(2)`
pub fn sys_getitimer(task: &Task, which: u32, value: UserPtr<ITimerVal>) -> SysResult {
    value.write(&ITimerVal::from_ns(interval_timer(task, which)?.get()))?;
    Ok(0)
}

/// `alarm(2)`
pub fn sys_alarm(task: &Task, seconds: u32) -> SysResult {
    let deadline = (seconds != 0).then(|| now_ns() + u64::from(seconds) * NS_PER_SEC);
    let (left, _) = interval_timer(task, sys::ITIMER_REAL)?.set(deadline, 0);
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
/// `EINVAL` if it is neither.
pub(crate) fn clock_is_real(clock: i32) -> Result<bool, Errno> {
    match clock.cast_unsigned() {
        sys::CLOCK_REALTIME | sys::CLOCK_TAI | sys::CLOCK_REALTIME_ALARM => Ok(true),
        sys::CLOCK_MONOTONIC | sys::CLOCK_BOOTTIME | sys::CLOCK_BOOTTIME_ALARM => Ok(false),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether there are timers that run by a clock of this number, whoever it belongs to.
///
/// # Errors
/// `EINVAL` if there is no such clock, `EOPNOTSUPP` if it is for reading only.
fn check_timer_clock(clock: i32) -> Result<(), Errno> {
    match clock.cast_unsigned() {
        sys::CLOCK_MONOTONIC_RAW | sys::CLOCK_REALTIME_COARSE | sys::CLOCK_MONOTONIC_COARSE => Err(Errno::EOPNOTSUPP),
        sys::CLOCK_PROCESS_CPUTIME_ID | sys::CLOCK_THREAD_CPUTIME_ID => Ok(()),
        _ if time::is_clock_of_device(clock) => Err(Errno::EOPNOTSUPP),
        _ if clock < 0 => Ok(()),
        _ => clock_is_real(clock).map(drop),
    }
}

/// What a new timer runs by, and whether its absolute times are the wall clock's.
///
/// # Errors
/// `EPERM` for a clock that wakes the machine up, `EINVAL` for one of a process or thread there is not.
fn timer_clock(task: &Task, clock: i32) -> Result<(Clock, bool), Errno> {
    time::check_alarm_clock(task, clock)?;
    Ok(match CpuClock::named(task, clock)? {
        Some(clock) => (Clock::Cpu(clock), false),
        None => (Clock::Time, clock_is_real(clock)?),
    })
}

/// `timer_create(2)`. The number is taken, and told, before it is known whether there will be a timer.
pub fn sys_timer_create(task: &Task, clock: i32, event: UserPtr<SigEvent>, id: UserPtr<i32>) -> SysResult {
    let event = event.read_optional()?;
    check_timer_clock(clock)?;
    let process = task.process();
    // Room for the signal of each is set aside.
    let most = usize::try_from(process.limits.lock()[SIGPENDING][0]).unwrap_or(usize::MAX);
    let number = process.timers.lock().take_number(most)?;
    let notify = match event {
        None => Notify::Signal { signo: sys::SIGALRM as i32, id: number, value: number as u64, tid: None },
        Some(event) => match event.notify {
            sys::SIGEV_NONE => Notify::Nothing,
            // That a thread is to be started is between the program and its library.
            sys::SIGEV_SIGNAL | sys::SIGEV_THREAD | sys::SIGEV_THREAD_ID if (1..=COUNT).contains(&event.signo) => {
                let tid = (event.notify == sys::SIGEV_THREAD_ID).then_some(event.tid);
                if tid.is_some_and(|tid| !process.tasks().iter().any(|t| t.tid() == tid)) {
                    return Err(Errno::EINVAL);
                }
                Notify::Signal { signo: event.signo, id: number, value: event.value, tid }
            }
            _ => return Err(Errno::EINVAL),
        },
    };
    id.write(&number)?;
    let (clock, realtime) = timer_clock(task, clock)?;
    let timer = Timer::new(Arc::downgrade(process), notify, clock, realtime);
    process.timers.lock().created.insert(number, timer);
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
    /// # Errors
    /// `EINVAL` for what is no time.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        self.value.to_ns().and(self.interval.to_ns()).map(drop)
    }

    pub(crate) fn from_ns((left, interval): (u64, u64)) -> Self {
        Self { interval: TimeSpec::from_ns(interval), value: TimeSpec::from_ns(left) }
    }
}

/// `timer_settime(2)`
pub fn sys_timer_settime(task: &Task, id: i32, flags: u32, new: UserPtr<ITimerSpec>, old: UserPtr<ITimerSpec>) -> SysResult {
    if new.is_null() {
        return Err(Errno::EINVAL);
    }
    let new = new.read()?;
    let timer = created(task, id)?;
    let before = timer.set_to(&hold(), &new, flags & sys::TIMER_ABSTIME != 0)?;
    timer.fire_if_due();
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
