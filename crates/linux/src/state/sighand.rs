//! What a process and its threads have about signals: those that wait, and what is done with each.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use ::task::Mutex;
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::Pid;
use uapi::siginfo::{
    DefaultAction, NSIG, SIGRTMIN, SYNCHRONOUS, SigInfo, SigSet, default_action, sigmask,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const SIG_DFL: u64 = 0;
pub(crate) const SIG_IGN: u64 = 1;
const SIGCHLD: i32 = sys::SIGCHLD as i32;

/// Signals in the queues of all processes and threads, but for those of timers, each of which has a
/// place of its own.
static QUEUED: AtomicUsize = AtomicUsize::new(0);

/// Number of signals in all queues, but for those of timers.
pub(crate) fn queued() -> usize {
    QUEUED.load(Ordering::Relaxed)
}

/// A signal in a queue.
struct Queued {
    info: SigInfo,
    /// Whether the receiver's user has it among those that `RLIMIT_SIGPENDING` limits.
    counts: bool,
}

impl Queued {
    fn new(info: SigInfo) -> Self {
        QUEUED.fetch_add(1, Ordering::Relaxed);
        Self { info, counts: true }
    }

    /// The signal of a timer, for which its place was counted.
    fn of_timer(info: SigInfo) -> Self {
        Self {
            info,
            counts: false,
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if self.counts {
            census::released(QUEUED.fetch_sub(1, Ordering::Relaxed), 1);
        }
    }
}

/// Whether there is a place for one more real-time signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// There is.
    There,
    /// The receiver's user has as many as it may (`RLIMIT_SIGPENDING`).
    UsedUp,
}

/// Signals that were sent and not delivered, in order.
#[derive(Default)]
pub(crate) struct SigPending {
    queue: VecDeque<Queued>,
    /// Numbers of those in the queue, and of those of which nothing but the number is known.
    set: SigSet,
}

impl SigPending {
    /// The one at a place in the queue.
    pub(crate) fn peek(&self, at: usize) -> Option<SigInfo> {
        self.queue.get(at).map(|queued| queued.info)
    }

    /// Set of the pending signals.
    pub(crate) fn set(&self) -> SigSet {
        self.set
    }

    /// Number of those that their user's limit counts.
    pub(crate) fn counted(&self) -> usize {
        self.queue.iter().filter(|queued| queued.counts).count()
    }

    /// Adds one. An ordinary signal that is there already is not added again. Of a real-time signal
    /// for which there is no room nothing but the number is kept, if `kill(2)` sent it.
    ///
    /// # Errors
    /// `EAGAIN` for a real-time signal if there is no room for it, or memory is short.
    pub(crate) fn add(&mut self, info: &SigInfo, room: Room) -> Result<(), Errno> {
        let there = self.set & sigmask(info.signo) != 0;
        if there && info.signo < SIGRTMIN {
            return Ok(());
        }
        if info.signo >= SIGRTMIN {
            if room == Room::UsedUp && info.code != sys::SI_USER as i32 {
                return Err(Errno::EAGAIN);
            }
            if room == Room::UsedUp {
                self.set |= sigmask(info.signo);
                return Ok(());
            }
            // Beside them there stays a place for each ordinary signal, which must not be lost.
            if self.queue.try_reserve(SIGRTMIN as usize).is_err() {
                return Err(Errno::EAGAIN);
            }
        }
        self.set |= sigmask(info.signo);
        self.queue.push_back(Queued::new(*info));
        Ok(())
    }

    /// Adds that of a timer, for which there always is a place: if it is there already, it counts
    /// how often it came.
    ///
    /// # Errors
    /// `EAGAIN` if memory is short.
    pub(crate) fn add_timer(&mut self, info: &SigInfo) -> Result<(), Errno> {
        if self.set & sigmask(info.signo) != 0 {
            let is_same = |other: &&mut Queued| {
                other.info.signo == info.signo && other.info.timer_id() == info.timer_id()
            };
            if let Some(same) = self.queue.iter_mut().find(is_same) {
                same.info.add_overrun(1);
                return Ok(());
            }
        }
        if self.queue.try_reserve(SIGRTMIN as usize).is_err() {
            return Err(Errno::EAGAIN);
        }
        self.set |= sigmask(info.signo);
        self.queue.push_back(Queued::of_timer(*info));
        Ok(())
    }

    /// Removes the next signal that is in `wanted`: those that instructions caused first, then by
    /// number.
    #[inline]
    pub(crate) fn dequeue(&mut self, wanted: SigSet) -> Option<SigInfo> {
        if self.set & wanted == 0 {
            None
        } else {
            Some(self.take_first(self.set & wanted))
        }
    }

    fn take_first(&mut self, there: SigSet) -> SigInfo {
        if self.set.is_power_of_two()
            && self.queue.len() == 1
            && let Some(only) = self.queue.pop_front()
        {
            self.set = 0;
            return only.info;
        }
        let first = if there & SYNCHRONOUS != 0 {
            there & SYNCHRONOUS
        } else {
            there
        };
        let signo = first.trailing_zeros() as i32 + 1;
        let is_it = |queued: &Queued| queued.info.signo == signo;
        let taken = self.queue.pop_front_if(|queued| is_it(queued)).or_else(|| {
            let at = self.queue.iter().position(is_it)?;
            self.queue.remove(at)
        });
        if !self.queue.iter().any(is_it) {
            self.set &= !sigmask(signo);
        }
        // As Linux says of one of which nothing is known.
        let unknown = SigInfo::from_process(signo, sys::SI_USER as i32, Pid::NONE, 0);
        taken.map_or(unknown, |queued| queued.info)
    }

    pub(crate) fn discard(&mut self, unwanted: SigSet) {
        if self.set & unwanted != 0 {
            self.queue
                .retain(|queued| sigmask(queued.info.signo) & unwanted == 0);
            self.set &= !unwanted;
        }
    }
}

/// Action on one signal: `struct sigaction` of the kernel.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigAction {
    pub(crate) handler: u64,
    pub(crate) flags: u64,
    pub(crate) restorer: u64,
    pub(crate) mask: u64,
}

impl SigAction {
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// Whether it gives `signal` no effect.
    pub(crate) fn ignores(&self, signal: i32) -> bool {
        match self.handler {
            SIG_DFL => default_action(signal) == DefaultAction::Ignore,
            handler => handler == SIG_IGN,
        }
    }
}

/// Actions on all signals; processes may share them (`CLONE_SIGHAND`).
pub(crate) struct SigHand(Mutex<[SigAction; NSIG as usize]>);

impl Default for SigHand {
    fn default() -> Self {
        Self(Mutex::new([SigAction::default(); NSIG as usize]))
    }
}

impl SigHand {
    pub(crate) fn get(&self, signal: i32) -> SigAction {
        self.0.lock()[signal as usize - 1]
    }

    pub(crate) fn set(&self, signal: i32, action: SigAction) {
        self.0.lock()[signal as usize - 1] = action;
    }

    /// A copy of its own.
    pub(crate) fn fork(&self) -> Arc<Self> {
        Arc::new(Self(Mutex::new(*self.0.lock())))
    }

    /// A copy without handlers, for another program.
    pub(crate) fn after_exec(&self) -> Arc<Self> {
        let copy = self.fork();
        for action in copy.0.lock().iter_mut() {
            *action = SigAction {
                handler: if action.handler == SIG_IGN {
                    SIG_IGN
                } else {
                    SIG_DFL
                },
                ..SigAction::default()
            };
        }
        copy
    }

    /// Whether a signal has no effect.
    pub(crate) fn is_ignored(&self, signal: i32) -> bool {
        self.get(signal).ignores(signal)
    }

    /// Whether it was said that a signal is to have no effect.
    pub(crate) fn is_set_to_ignore(&self, signal: i32) -> bool {
        self.get(signal).handler == SIG_IGN
    }

    /// Whether children vanish at their end, without being waited for.
    pub(crate) fn reaps_children(&self) -> bool {
        let action = self.get(SIGCHLD);
        action.handler == SIG_IGN || action.has(sys::SA_NOCLDWAIT)
    }

    /// Whether stops of children are told.
    pub(crate) fn wants_child_stops(&self) -> bool {
        !self.get(SIGCHLD).has(sys::SA_NOCLDSTOP)
    }

    /// Signals ignored, and signals with a handler.
    pub(crate) fn sets(&self) -> (SigSet, SigSet) {
        let mut sets = (0, 0);
        for (i, action) in self.0.lock().iter().enumerate() {
            match action.handler {
                SIG_DFL => {}
                SIG_IGN => sets.0 |= 1 << i,
                _ => sets.1 |= 1 << i,
            }
        }
        sets
    }
}
