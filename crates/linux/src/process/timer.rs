//! Timers of a process, and of descriptors. A timer runs by a clock. Of those of processor time
//! nobody tells when they reach a value, so the timer asks: again and again when, at the earliest,
//! it can be so, which is soon while the process runs, and seldom while it sleeps.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use ::task::{Deadline, Mutex, now_ns};
use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::process::cpu_clock::CpuClock;
use crate::process::{self, Process, process_table, send_signal};
use crate::state::expirations::Expirations;
use crate::state::rlimit::{Resource, Rlimit};
use crate::state::timer_queue::{self, Alarm, TimerHandle};
use crate::uapi::pid::Tid;
use crate::uapi::siginfo::SigInfo;
use crate::uapi::time::{ClockBase, NS_PER_SEC};

/// The most timers of a process.
pub(crate) const MAX_TIMERS: usize = 1024;

/// The timers of a process.
#[derive(Default)]
pub(crate) struct Timers {
    /// `ITIMER_REAL`, `ITIMER_VIRTUAL`, `ITIMER_PROF`.
    pub(crate) interval: [Option<Arc<Timer>>; 3],
    /// `RLIMIT_CPU`.
    pub(crate) limit: Option<Arc<Timer>>,
    pub(crate) created: BTreeMap<i32, Arc<Timer>>,
    pub(crate) next: i32,
}

impl Timers {
    /// A number for one more timer of `most`.
    ///
    /// # Errors
    /// `EAGAIN` if there are too many.
    pub(crate) fn take_number(&mut self, most: usize) -> Result<i32, Errno> {
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

/// Action of a timer that fires.
pub(crate) enum TimerNotify {
    /// Sends a signal to the process, as the kernel does.
    Plain(i32),
    /// Sends a signal to the process, with a value, or to one thread of it.
    Signal {
        signo: i32,
        id: i32,
        value: u64,
        tid: Option<Tid>,
    },
    /// Counts, for whoever reads a descriptor.
    Count(Arc<Expirations>),
    /// Looks at the limit of processor time.
    Limit,
    /// Nothing: somebody asks how much is left.
    Nothing,
}

/// The clock that a timer runs by.
#[derive(Clone)]
pub(crate) enum TimerClock {
    /// The one that only goes forward. The wall clock's times are turned into its: both go at the
    /// same rate.
    Time,
    /// Processor time.
    Cpu(CpuClock),
}

impl TimerClock {
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Time => now_ns(),
            Self::Cpu(clock) => clock.now(),
        }
    }
}

#[derive(Default)]
pub(crate) struct TimerState {
    pub(crate) ticket: Option<TimerHandle>,
    /// By the timer's clock.
    pub(crate) deadline_ns: u64,
    pub(crate) interval_ns: u64,
    /// The deadline was a time of the wall clock, and the timer is one of [`BY_WALL_CLOCK`].
    pub(crate) by_wall_clock: bool,
}

/// The timers whose deadlines are times of the wall clock, by their addresses.
pub(crate) static BY_WALL_CLOCK: Mutex<BTreeMap<usize, Weak<Timer>>> = Mutex::new(BTreeMap::new());

/// Number of timers whose deadlines are times of the wall clock.
pub(crate) fn by_wall_clock() -> u64 {
    BY_WALL_CLOCK.lock().len() as u64
}

/// The wall clock was set this much forward: what was to be at one of its times is still at that.
pub(crate) fn wall_clock_was_set(forward_ns: i64) {
    let timers: Vec<_> = BY_WALL_CLOCK
        .lock()
        .values()
        .filter_map(Weak::upgrade)
        .collect();
    for timer in timers {
        timer.wall_clock_was_set(forward_ns);
    }
}

/// The shortest time between two looks at processor time, and the longest.
pub(crate) const SOONEST_NS: u64 = 500_000;

pub(crate) const LATEST_NS: u64 = 100_000_000;

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
    /// A timer of no process, that counts how often it fires; its absolute times are of `base`.
    pub(crate) fn counting(expirations: Arc<Expirations>, base: ClockBase) -> Arc<Self> {
        Self::new(
            Weak::new(),
            TimerNotify::Count(expirations),
            TimerClock::Time,
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
    /// is not 0. Returns what was left, and the interval that was.
    pub(crate) fn set(&self, deadline_ns: Option<u64>, interval_ns: u64) -> (u64, u64) {
        let now = self.clock.now();
        let mut setting = self.setting.lock();
        let left = Self::left(&setting, now);
        let old = core::mem::take(&mut *setting);
        if let Some(ticket) = old.ticket {
            timer_queue::cancel(ticket);
        }
        if old.by_wall_clock {
            BY_WALL_CLOCK.lock().remove(&self.address());
        }
        if let Some(deadline_ns) = deadline_ns {
            self.pause_ns.store(0, Ordering::Relaxed);
            *setting = TimerState {
                ticket: self.alarm(deadline_ns, now),
                deadline_ns,
                interval_ns,
                by_wall_clock: false,
            };
        } else if matches!(self.notify, TimerNotify::Count(_)) {
            // That of a descriptor is remembered even if it does not run.
            setting.interval_ns = interval_ns;
        }
        (left, old.interval_ns)
    }

    /// Fires now if it was set to a time that is past, rather than a moment later.
    pub(crate) fn fire_if_due(&self) {
        let is_due = |setting: &TimerState| {
            matches!(self.clock, TimerClock::Time) && setting.deadline_ns <= now_ns()
        };
        let ticket = {
            let setting = self.setting.lock();
            setting.ticket.filter(|_| is_due(&setting))
        };
        if let Some(ticket) = ticket {
            timer_queue::cancel(ticket);
            self.fire();
        }
    }

    pub(crate) fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    pub(crate) fn wall_clock_was_set(&self, forward_ns: i64) {
        let mut setting = self.setting.lock();
        if let Some(ticket) = setting.ticket.take() {
            timer_queue::cancel(ticket);
            setting.deadline_ns = setting
                .deadline_ns
                .saturating_add_signed(forward_ns.saturating_neg());
            setting.ticket = self.alarm(setting.deadline_ns, now_ns());
        }
        if let TimerNotify::Count(expirations) = &self.notify {
            expirations.wall_clock_was_set();
        }
    }

    /// Has the timer looked at when the clock, which shows `now`, can have reached a time.
    pub(crate) fn alarm(&self, deadline_ns: u64, now: u64) -> Option<TimerHandle> {
        let me = self.me.upgrade()?;
        let TimerClock::Cpu(_) = self.clock else {
            return Some(timer_queue::set(Deadline::at_ns(deadline_ns), me));
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
        let pause = nearest.max(longer.min(LATEST_NS)).max(SOONEST_NS);
        self.pause_ns.store(pause, Ordering::Relaxed);
        Some(timer_queue::set(Deadline::after_ns(pause), me))
    }

    pub(crate) fn left(setting: &TimerState, now: u64) -> u64 {
        // A set timer always has something left.
        setting
            .ticket
            .map_or(0, |_| setting.deadline_ns.saturating_sub(now).max(1))
    }

    pub(crate) fn get(&self) -> (u64, u64) {
        let now = self.clock.now();
        let setting = self.setting.lock();
        (Self::left(&setting, now), setting.interval_ns)
    }

    /// Tells whoever is to be told that it fired `times` times.
    pub(crate) fn tell(&self, times: u64) {
        if let TimerNotify::Count(expirations) = &self.notify {
            return expirations.add(times);
        }
        let Some(process) = self.process.upgrade() else {
            return;
        };
        match self.notify {
            TimerNotify::Plain(signo) => send_signal::send(&process, SigInfo::kernel(signo)),
            TimerNotify::Limit => check_cpu_limit(&process),
            TimerNotify::Nothing | TimerNotify::Count(_) => {}
            TimerNotify::Signal {
                signo,
                id,
                value,
                tid,
            } => {
                let info = SigInfo::timer(signo, id, self.overrun.load(Ordering::Relaxed), value);
                match tid {
                    None => send_signal::send(&process, info),
                    Some(tid) => {
                        if let Some(task) = process_table::find_task(tid) {
                            send_signal::send_task(&task, info);
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
            let Some(ticket) = setting.ticket.take() else {
                return;
            };
            if !ticket.deadline().has_passed() {
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
                self.overrun
                    .store(i32::try_from(missed).unwrap_or(i32::MAX), Ordering::Relaxed);
                setting.deadline_ns += (missed + 1) * setting.interval_ns;
                setting.ticket = self.alarm(setting.deadline_ns, now);
            }
        }
        self.tell(times);
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
