//! Timers of a process, and of descriptors. A timer runs by a clock. Of those of processor time
//! nobody tells when they reach a value, so the timer asks: again and again when, at the earliest,
//! it can be so, which is soon while the process runs, and seldom while it sleeps.
//!
//! An interval timer that has fired stands until its signal is taken or its descriptor read, and
//! then counts how often it would have fired since: one with an interval of a nanosecond costs
//! nothing while nobody listens.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use ::task::{Deadline, Mutex, now_ns};
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::Tid;
use uapi::siginfo::SigInfo;
use uapi::time::{ClockBase, NS_PER_SEC};

use crate::process::cpu_clock::CpuClock;
use crate::process::send_signal::{Delivery, SignalTarget};
use crate::process::{self, Process, process_table, send_signal};
use crate::state::expirations::Expirations;
use crate::state::rlimit::{Resource, Rlimit};
use crate::state::timer_queue::{self, TimerCallback, TimerHandle};

/// The most timers of a process.
pub(crate) const MAX_TIMERS: usize = 1024;

/// The timers of a process.
#[derive(Default)]
pub(crate) struct Timers {
    /// Interval timers: `ITIMER_REAL`, `ITIMER_VIRTUAL`, `ITIMER_PROF`.
    pub(crate) interval: [Option<Arc<Timer>>; 3],
    /// Timer that checks `RLIMIT_CPU`, if there is a limit.
    pub(crate) limit: Option<Arc<Timer>>,
    pub(crate) created: BTreeMap<i32, Arc<Timer>>,
    pub(crate) next: i32,
}

impl Timers {
    /// Allocates the identifier of one more timer of `most`.
    ///
    /// # Errors
    /// `EAGAIN` if there are too many.
    pub(crate) fn allocate_id(&mut self) -> Result<i32, Errno> {
        if self.created.len() >= MAX_TIMERS {
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

/// Action of a timer that fires.
pub(crate) enum TimerNotify {
    /// Sends a signal to the process, with `SI_KERNEL`, as `setitimer(2)` does.
    KernelSignal(i32),
    /// Sends a signal to the process, with a value, or to one thread of it.
    Signal {
        signo: i32,
        id: i32,
        value: u64,
        tid: Option<Tid>,
    },
    /// Counts expirations for the readers of a descriptor (`timerfd_create(2)`).
    Timerfd(Arc<Expirations>),
    /// Checks `RLIMIT_CPU` of the process.
    CpuLimit,
    /// Does nothing (`SIGEV_NONE`): programs ask how much time remains.
    Silent,
}

/// The clock that a timer runs by.
#[derive(Clone)]
pub(crate) enum TimerClock {
    /// The monotonic clock. Times of the wall clock are converted to its: both go at the same rate.
    Monotonic,
    /// A clock of a process's or thread's processor time.
    Cpu(CpuClock),
}

impl TimerClock {
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Monotonic => now_ns(),
            Self::Cpu(clock) => clock.now(),
        }
    }
}

#[derive(Default)]
pub(crate) struct TimerState {
    pub(crate) handle: Option<TimerHandle>,
    /// By the timer's clock.
    pub(crate) deadline_ns: u64,
    /// How long before the clock began the deadline was, if it was.
    pub(crate) before_ns: u64,
    pub(crate) interval_ns: u64,
    /// Whether it has fired, stands until that is taken notice of, and goes on then.
    suspended: bool,
    /// Whether it has fired and what it tells is on its way.
    firing: bool,
    /// Intervals that have passed since the signal before the next one.
    passed: u64,
    /// Whether the deadline was a time of the wall clock, and the timer is one of
    /// [`REALTIME_TIMERS`].
    pub(crate) is_realtime: bool,
}

/// Timers whose deadlines are times of the wall clock, by their addresses.
pub(crate) static REALTIME_TIMERS: Mutex<BTreeMap<usize, Weak<Timer>>> =
    Mutex::new(BTreeMap::new());

/// Number of timers whose deadlines are times of the wall clock.
pub(crate) fn realtime_timer_count() -> u64 {
    REALTIME_TIMERS.lock().len() as u64
}

/// Moves the deadlines of those of [`REALTIME_TIMERS`] that run by one of the clocks, after these
/// were set forward by so much.
pub(crate) fn clock_was_set(clocks: &[ClockBase], forward_ns: i64) {
    let timers: Vec<_> = REALTIME_TIMERS
        .lock()
        .values()
        .filter_map(Weak::upgrade)
        .filter(|timer| clocks.contains(&timer.base))
        .collect();
    for timer in timers {
        timer.clock_was_set(forward_ns);
    }
}

/// Shortest time between two checks of processor time, nanoseconds.
pub(crate) const MIN_POLL_NS: u64 = 500_000;

/// Longest time between two checks of processor time, nanoseconds.
pub(crate) const MAX_POLL_NS: u64 = 100_000_000;

/// Interval at which a timer whose signal is ignored goes on at the most (Linux: a tick).
const TICK_NS: u64 = 4_000_000;

impl TimerState {
    /// Moves the deadline behind `now`, by intervals, which are counted.
    fn forward(&mut self, now: u64) {
        let late = now.checked_sub(self.deadline_ns);
        let late = late.map(|late| late.saturating_add(self.before_ns));
        if let Some(more) = late.and_then(|late| late.checked_div(self.interval_ns)) {
            let intervals = more.saturating_add(1);
            self.passed = self.passed.saturating_add(intervals);
            let ahead = intervals.saturating_mul(self.interval_ns) - self.before_ns;
            self.deadline_ns = self.deadline_ns.saturating_add(ahead);
            self.before_ns = 0;
        }
    }

    /// Ends the count of intervals; returns those beside the one that was told.
    fn take_overrun(&mut self) -> u64 {
        core::mem::take(&mut self.passed).saturating_sub(1)
    }
}

/// Value of a timer (`struct itimerspec`).
#[derive(Clone, Copy)]
pub(crate) struct TimerValue {
    /// Time until it fires, nanoseconds; 0 if it is not set.
    pub(crate) remaining_ns: u64,
    /// Interval at which it then fires again, nanoseconds; 0 for never.
    pub(crate) interval_ns: u64,
}

/// A timer. Its alarm holds it while it is set; the process holds it until it is deleted.
pub(crate) struct Timer {
    pub(crate) _counted: census::Timer,
    pub(crate) me: Weak<Self>,
    pub(crate) process: Weak<Process>,
    pub(crate) notify: TimerNotify,
    pub(crate) clock: TimerClock,
    /// The clock that absolute times belong to.
    pub(crate) base: ClockBase,
    pub(crate) setting: Mutex<TimerState>,
    pub(crate) overrun: AtomicI32,
    /// Processor time at the last look, and how long after that the next one was to be.
    pub(crate) seen_ns: AtomicU64,
    pub(crate) pause_ns: AtomicU64,
}

impl Timer {
    /// Makes the timer of a timerfd, which counts how often it fires; its absolute times are of
    /// `base`.
    pub(crate) fn for_timerfd(expirations: Arc<Expirations>, base: ClockBase) -> Arc<Self> {
        Self::new(
            Weak::new(),
            TimerNotify::Timerfd(expirations),
            TimerClock::Monotonic,
            base,
        )
    }

    pub(crate) fn new(
        process: Weak<Process>,
        notify: TimerNotify,
        clock: TimerClock,
        base: ClockBase,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            _counted: census::Timer::default(),
            me: me.clone(),
            process,
            notify,
            clock,
            base,
            setting: Mutex::default(),
            overrun: AtomicI32::new(0),
            seen_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
        })
    }

    /// Sets it to fire at a time of its clock (`None`: not), and then every `interval_ns` if that
    /// is not 0. Returns its value before.
    pub(crate) fn set(&self, deadline_ns: Option<u64>, interval_ns: u64) -> TimerValue {
        let now = self.clock.now();
        let mut setting = self.setting.lock();
        let left = self.remaining_ns(&mut setting, now);
        let old = core::mem::take(&mut *setting);
        if let Some(handle) = old.handle {
            timer_queue::cancel(handle);
        }
        if old.is_realtime {
            REALTIME_TIMERS.lock().remove(&self.address());
        }
        self.overrun.store(0, Ordering::Relaxed);
        if let Some(deadline_ns) = deadline_ns {
            self.pause_ns.store(0, Ordering::Relaxed);
            *setting = TimerState {
                handle: self.arm(deadline_ns, now),
                deadline_ns,
                interval_ns,
                ..TimerState::default()
            };
        } else if matches!(self.notify, TimerNotify::Timerfd(_)) {
            // That of a descriptor is remembered even if it does not run.
            setting.interval_ns = interval_ns;
        }
        TimerValue {
            remaining_ns: left,
            interval_ns: old.interval_ns,
        }
    }

    /// Fires now if it was set to a time that is past, rather than a moment later.
    pub(crate) fn fire_if_due(&self) {
        let is_due = |setting: &TimerState| {
            matches!(self.clock, TimerClock::Monotonic) && setting.deadline_ns <= now_ns()
        };
        let handle = {
            let setting = self.setting.lock();
            setting.handle.filter(|_| is_due(&setting))
        };
        if let Some(handle) = handle {
            timer_queue::cancel(handle);
            self.fire();
        }
    }

    pub(crate) fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Moves the deadline after the wall clock was set.
    pub(crate) fn clock_was_set(&self, forward_ns: i64) {
        let mut setting = self.setting.lock();
        let handle = setting.handle.take();
        if handle.is_some() || setting.suspended {
            setting.deadline_ns = setting
                .deadline_ns
                .saturating_add_signed(forward_ns.saturating_neg());
        }
        if let Some(handle) = handle {
            timer_queue::cancel(handle);
            setting.handle = self.arm(setting.deadline_ns, now_ns());
        }
        if let TimerNotify::Timerfd(expirations) = &self.notify {
            expirations.clock_was_set();
        }
    }

    /// Schedules a callback for when the clock, which shows `now`, can have reached a time.
    pub(crate) fn arm(&self, deadline_ns: u64, now: u64) -> Option<TimerHandle> {
        let me = self.me.upgrade()?;
        let TimerClock::Cpu(_) = self.clock else {
            return Some(timer_queue::schedule(Deadline::at_ns(deadline_ns), me));
        };
        // Each processor can bring it nearer. A clock that stands is looked at more and more
        // seldom.
        let stands = self.seen_ns.swap(now, Ordering::Relaxed) == now;
        let nearest = deadline_ns.saturating_sub(now) / ::task::cpu_count() as u64;
        let longer = if stands {
            self.pause_ns.load(Ordering::Relaxed) * 2
        } else {
            0
        };
        let pause = nearest.max(longer.min(MAX_POLL_NS)).max(MIN_POLL_NS);
        self.pause_ns.store(pause, Ordering::Relaxed);
        Some(timer_queue::schedule(Deadline::after_ns(pause), me))
    }

    /// Nanoseconds until the timer fires; 0 if it is not armed. One that stands counts what has
    /// passed, but `setitimer(2)`'s, of which that is not told.
    fn remaining_ns(&self, setting: &mut TimerState, now: u64) -> u64 {
        let counts = !matches!(self.notify, TimerNotify::KernelSignal(_));
        if setting.suspended && counts {
            setting.forward(now);
        } else if setting.handle.is_none() && !setting.firing {
            return 0;
        }
        // A set timer always has something left.
        setting.deadline_ns.saturating_sub(now).max(1)
    }

    /// Value that the timer has now.
    pub(crate) fn value(&self) -> TimerValue {
        if let TimerNotify::Timerfd(expirations) = &self.notify {
            expirations
                .count
                .fetch_add(self.resume().unwrap_or(0), Ordering::AcqRel);
        }
        let now = self.clock.now();
        let mut setting = self.setting.lock();
        TimerValue {
            remaining_ns: self.remaining_ns(&mut setting, now),
            interval_ns: setting.interval_ns,
        }
    }

    /// Whether it stands when it has fired, until somebody takes notice.
    fn stands_after_firing(&self) -> bool {
        match self.notify {
            TimerNotify::Signal { .. } | TimerNotify::Timerfd(_) | TimerNotify::Silent => true,
            TimerNotify::KernelSignal(_) => matches!(self.clock, TimerClock::Monotonic),
            TimerNotify::CpuLimit => false,
        }
    }

    /// Lets it go on, if it stood, as what it told last was taken notice of. Returns how often it
    /// would have fired since, had it not stood.
    pub(crate) fn resume(&self) -> Option<u64> {
        let now = self.clock.now();
        let mut setting = self.setting.lock();
        if !core::mem::take(&mut setting.suspended) {
            return None;
        }
        setting.forward(now);
        setting.handle = self.arm(setting.deadline_ns, now);
        Some(setting.take_overrun())
    }

    /// Lets it go on though nobody heard of it, since its signal is ignored, but not at once.
    fn resume_unheard(&self) {
        let now = self.clock.now();
        let mut setting = self.setting.lock();
        if core::mem::take(&mut setting.suspended) {
            let rest = if setting.interval_ns < TICK_NS {
                TICK_NS
            } else {
                0
            };
            setting.forward(now.saturating_add(rest));
            setting.handle = self.arm(setting.deadline_ns, now);
        }
    }

    /// Notifies programs that the timer has fired.
    fn notify_expired(&self) {
        if let TimerNotify::Timerfd(expirations) = &self.notify {
            return expirations.add(1);
        }
        let Some(process) = self.process.upgrade() else {
            return;
        };
        match self.notify {
            TimerNotify::KernelSignal(signo) => send_signal::send(&process, SigInfo::kernel(signo)),
            TimerNotify::CpuLimit => check_cpu_limit(&process),
            TimerNotify::Silent | TimerNotify::Timerfd(_) => {}
            TimerNotify::Signal {
                signo,
                id,
                value,
                tid,
            } => {
                let info = SigInfo::timer(signo, id, 0, value);
                let send = |to| send_signal::queue_timer_signal(&process, to, &info);
                let sent = match tid {
                    None => send(SignalTarget::Process(None)),
                    Some(tid) => match process_table::find_task(tid) {
                        Some(task) => send(SignalTarget::Thread(&task)),
                        // It stands until it is set anew.
                        None => return,
                    },
                };
                if sent != Ok(Delivery::Queued) {
                    self.resume_unheard();
                }
            }
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.setting.get_mut().is_realtime {
            REALTIME_TIMERS.lock().remove(&self.address());
        }
    }
}

/// Lets the timers of a process go on whose signal, `info`, was taken from its queue; the signal
/// tells how often they would have fired meanwhile.
pub(crate) fn on_signal_taken(process: &Process, info: &mut SigInfo) {
    let (named, alarm) = {
        let timers = process.timers.lock();
        let named = info.timer_id().and_then(|id| timers.created.get(&id));
        let alarm = timers.interval[sys::ITIMER_REAL as usize].as_ref();
        (
            named.cloned(),
            alarm.filter(|_| info.signo == sys::SIGALRM as i32).cloned(),
        )
    };
    if let Some(timer) = named
        && let Some(missed) = timer.resume()
    {
        info.add_overrun(missed);
        let told = i32::try_from(missed).unwrap_or(i32::MAX);
        timer.overrun.store(told, Ordering::Relaxed);
    }
    if let Some(timer) = alarm {
        timer.resume();
    }
}

impl TimerCallback for Timer {
    fn fire(&self) {
        let now = self.clock.now();
        {
            let mut setting = self.setting.lock();
            let Some(handle) = setting.handle.take() else {
                return;
            };
            if !handle.deadline().has_passed() {
                // It was set anew while this was on its way.
                setting.handle = Some(handle);
                return;
            }
            if setting.deadline_ns > now {
                setting.handle = self.arm(setting.deadline_ns, now);
                return;
            }
            setting.firing = true;
            if setting.interval_ns > 0 && self.stands_after_firing() {
                setting.suspended = true;
            } else if setting.interval_ns > 0 {
                // Intervals that have passed already are not made up for.
                setting.forward(now);
                setting.handle = self.arm(setting.deadline_ns, now);
            }
        }
        self.notify_expired();
        self.setting.lock().firing = false;
    }
}

/// The soft limit of processor time is reached: `SIGXCPU`, each second again, and in the end
/// `SIGKILL`.
pub(crate) fn check_cpu_limit(process: &Arc<Process>) {
    let Rlimit { soft, hard } = process.limits.lock()[Resource::Cpu];
    let used = process.cpu_ns() / NS_PER_SEC;
    if used >= hard {
        process::log_fatal_signal(
            process,
            sys::SIGKILL as i32,
            format_args!("it used its {hard} s of processor time"),
        );
        return process.kill(sys::SIGKILL as i32);
    }
    if used >= soft {
        send_signal::send(process, SigInfo::kernel(sys::SIGXCPU as i32));
    }
    let timer = process.timers.lock().limit.clone();
    if let Some(timer) = timer {
        timer.set(
            Some((used + 1).max(soft).min(hard).saturating_mul(NS_PER_SEC)),
            0,
        );
    }
}
