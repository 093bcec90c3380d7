//! Placement of woken threads, and notification of the CPU chosen.
//!
//! On its own CPU a thread joins the run queue at once. Another CPU finds it in a wake queue, one
//! for each pair of CPUs. It is told by an interrupt only if it would not look in time by itself;
//! what it is doing is in its `wake_state`:
//! * `NEED_RESCHED`: it was told already.
//! * `POLLING`: it watches the word; a store is enough.
//! * `TIMER_BEFORE_PREEMPTION`: its timer fires before a fair thread could take the CPU from the
//!   one that runs.
//! * `TIMER_AT_SLICE_END`: its timer fires at the end of the slice, soon enough for who never takes
//!   the CPU from another.
//! * `realtime`: nobody of a lower priority can take the CPU before it is given up, which looks; or
//!   before the time of real-time threads is over, if that runs already for fair threads of the
//!   woken one's group.
//! * `SEND_IPI`: anything else.
//!
//! No wake-up is lost: the CPU makes its wake state `SEND_IPI` before it looks at the wake queues,
//! and who queues a thread reads it after that, both in one total order. So either the look
//! finds the thread, or the waker finds `SEND_IPI`, or what was decided in a later look.

use core::iter::successors;
use core::sync::atomic::{Ordering, fence};

use fair::{Group, Params, Policy};
use guard::cpu::{self, CpuId};
use guard::timer::now_ns;

use super::cpu::{CPUS, Cpu, IDLE, is_started, shared};
use super::perturb;
use super::slot::{self, NOTIFIED, PARKED, RUNNING, Slot};
use super::switch;
use super::trace_events::{self, WakeMethod};

/// See the top of this file.
pub(super) const NEED_RESCHED: u32 = 0;
pub(super) const POLLING: u32 = 1;
pub(super) const SEND_IPI: u32 = 2;
pub(super) const TIMER_BEFORE_PREEMPTION: u32 = 3;
pub(super) const TIMER_AT_SLICE_END: u32 = 4;
/// First wake state of a CPU with a real-time thread: see [`realtime`].
const REALTIME: u32 = 5;

/// The wake state of a CPU with a real-time thread of that priority. For each group: whether its
/// time begins to run when a fair thread of that group comes to wait.
pub(super) fn realtime(priority: u8, limit_begins: [bool; 2]) -> u32 {
    let [programs, management] = limit_begins.map(u32::from);
    REALTIME + (u32::from(priority) << 2 | management << 1 | programs)
}

/// Gives a thread its permit. Callable anywhere.
pub(super) fn unpark(slot: &'static Slot) {
    let slept = slot
        .state
        .compare_exchange(PARKED, RUNNING, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
        || grant_permit(slot);
    if slept {
        make_runnable(slot);
    }
}

/// The same if it did not sleep a moment ago. True if it did by now, and is to be queued.
#[inline(never)]
fn grant_permit(slot: &Slot) -> bool {
    let mut state = slot.state.load(Ordering::Acquire);
    loop {
        let next = match state {
            RUNNING => NOTIFIED,
            PARKED => RUNNING,
            _ => return false,
        };
        match slot
            .state
            .compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return state == PARKED,
            Err(now) => state = now,
        }
    }
}

/// A thread was woken: decides where it runs, and queues it there.
#[inline(always)]
fn make_runnable(slot: &'static Slot) {
    let switch = CPUS.with(|c| {
        c.shared.counters.wakes.add(1);
        if slot.cpu() == c.id && IDLE.is_empty() && c.can_defer(&c.queue.borrow(), slot) {
            trace_events::trace_wakeup(slot, c.id, WakeMethod::Here);
            c.deferred.set(Some(slot));
            return false;
        }
        c.enqueue_or_send(slot)
    });
    // In thread context the choice is made at once; in a handler, and where interrupts are off, at
    // the next opportunity.
    if switch && cpu::irqs_enabled() {
        cpu::without_irqs(switch::preempt_check);
    }
    perturb::preemption_point();
}

impl Cpu {
    /// Queues a thread that was woken by this CPU here, or sends it to another one. True if
    /// somebody here has to go.
    #[inline(never)]
    fn enqueue_or_send(&self, slot: &'static Slot) -> bool {
        // Who is still on its way to sleep has its stack in use there.
        let target = if slot.on_cpu() {
            slot.cpu()
        } else {
            select_cpu(slot)
        };
        if target != self.id {
            let told = send(slot, target);
            trace_events::trace_wakeup(slot, target, told);
            return false;
        }
        trace_events::trace_wakeup(slot, target, WakeMethod::Here);
        slot.set_cpu(target);
        let queue = &mut *self.queue.borrow_mut();
        if self.can_defer(queue, slot) {
            self.deferred.set(Some(slot));
            return false;
        }
        let now = now_ns();
        let switch = self.enqueue_woken(queue, slot, target, now);
        self.shared.load.store(
            queue.waiting() as u32 + u32::from(queue.current().is_some()),
            Ordering::Relaxed,
        );
        if switch {
            self.reschedule.set(true);
        } else if let Some(look) = queue.next_deadline().map(perturb::shorten_deadline)
            && look < self.timer_deadline.get()
        {
            self.timer_deadline.set(look);
            guard::timer::arm(look);
        }
        switch
    }
}

/// Idle CPUs that are looked at for one whose core idles.
const TRIES: usize = 4;

/// Chooses the CPU for a woken thread: where it ran last, unless that is busy and another CPU
/// idles, or it may not.
fn select_cpu(slot: &Slot) -> CpuId {
    if let Some(target) = perturb::random_cpu(slot) {
        return target;
    }
    let home = slot.cpu();
    let allowed = slot.may_run_on(home);
    if IDLE.is_empty() {
        return if allowed { home } else { least_loaded(slot) };
    }
    if let Some(idle) = find_idle(slot, home) {
        // Taken, so that the next waker finds another one. It comes back when it has nothing to do.
        IDLE.remove(idle.0 as usize);
        return idle;
    }
    if allowed { home } else { least_loaded(slot) }
}

/// An idle CPU the thread may run on: `home`, whose caches know it, else one whose core idles, else
/// any.
fn find_idle(slot: &Slot, home: CpuId) -> Option<CpuId> {
    let find = |start: u32| {
        IDLE.find(start as usize, |word| slot.allowed(word))
            .map(|idle| CpuId(idle as u32))
    };
    let first = find(home.0)?;
    let mut idle = first;
    for _ in 0..TRIES {
        if idle == home || is_core_idle(idle) {
            return Some(idle);
        }
        idle = find(idle.0 + 1)?;
        if idle == first {
            break;
        }
    }
    Some(first)
}

/// Whether all threads of the core idle that this idle CPU is one of.
fn is_core_idle(idle: CpuId) -> bool {
    let next = |cpu: &CpuId| {
        Some(CpuId(shared(*cpu).sibling.load(Ordering::Relaxed))).filter(|other| *other != idle)
    };
    successors(next(&idle), next).all(|cpu| IDLE.contains(cpu.0 as usize))
}

/// The allowed CPU with the fewest threads, or one that has not come yet if no other is allowed. A
/// thread all of whose CPUs have left may run on any from now on, as under Linux. Interrupts are
/// off, or the thread has never run.
pub(super) fn least_loaded(slot: &Slot) -> CpuId {
    let find = || {
        (0..super::cpu_count() as u32)
            .map(CpuId)
            .filter(|&cpu| slot.may_run_on(cpu))
            .min_by_key(|&cpu| (!is_started(cpu), shared(cpu).load.load(Ordering::Relaxed)))
    };
    let found = find().or_else(|| {
        slot.unbind();
        find()
    });
    // Every CPU has left that the thread may run on by now, which somebody has just changed: that
    // it may not run on this one is found when it comes to the CPU's queue, and it is sent on.
    found.unwrap_or(CpuId(0))
}

/// Puts a runnable thread, whose stack nobody uses, into a wake queue of another CPU (or of this
/// one: then it joins at the next look). Interrupts are off.
pub(super) fn send(slot: &'static Slot, target: CpuId) -> WakeMethod {
    let me = cpu::current();
    slot.set_cpu(target);
    shared(me).counters.remote_wakes.add(1);
    let params = slot.params();
    shared(target)
        .wake_queues
        .push(me.0 as usize, slot.number(), slot::next_link);
    notify_cpu(target, params)
}

/// The thread's stack is free now, and it may not run here.
pub(super) fn send_evicted(slot: &'static Slot) {
    cpu::without_irqs(|| send(slot, least_loaded(slot)));
}

/// Sees to it that a CPU looks at what was put into a wake queue of it, in time for a thread of
/// that policy and group. Interrupts are off.
fn notify_cpu(target: CpuId, params: Params) -> WakeMethod {
    fence(Ordering::SeqCst);
    let state = shared(target).wake_state.0.load(Ordering::Relaxed);
    let waits = match state {
        NEED_RESCHED => true,
        POLLING | SEND_IPI => false,
        TIMER_BEFORE_PREEMPTION => params.policy.realtime().is_none(),
        TIMER_AT_SLICE_END => matches!(params.policy, Policy::Batch(_) | Policy::Idle),
        state => match (params.policy.realtime(), params.group) {
            (Some(priority), _) => u32::from(priority) < (state - REALTIME) >> 2,
            (None, Group::Programs) => (state - REALTIME) & 1 == 0,
            (None, Group::Management) => (state - REALTIME) & 2 == 0,
        },
    };
    if waits {
        shared(cpu::current()).counters.ipis_saved.add(1);
        if state == NEED_RESCHED {
            WakeMethod::Already
        } else {
            WakeMethod::InTime
        }
    } else {
        send_reschedule(target)
    }
}

/// Makes a CPU look, whatever it does. Interrupts are off.
pub(super) fn send_reschedule(target: CpuId) -> WakeMethod {
    let me = cpu::current();
    if target == me {
        CPUS.with(|c| c.reschedule.set(true));
        return WakeMethod::Here;
    }
    match shared(target)
        .wake_state
        .0
        .swap(NEED_RESCHED, Ordering::SeqCst)
    {
        NEED_RESCHED => {
            shared(me).counters.ipis_saved.add(1);
            WakeMethod::Already
        }
        POLLING => {
            shared(me).counters.ipis_saved.add(1);
            WakeMethod::Polls
        }
        _ => {
            shared(me).counters.ipis.add(1);
            guard::ipi::reschedule(target);
            WakeMethod::Interrupt
        }
    }
}

/// Brings the CPU a thread runs on into the kernel, if that is another one.
pub(super) fn kick(slot: &Slot) {
    cpu::without_irqs(|| {
        let target = slot.cpu();
        if target != cpu::current() && slot.on_cpu() {
            guard::ipi::reschedule(target);
        }
    });
}

/// Announces that a thread's policy or affinity was changed: its CPU takes that in if it has it.
/// When it sleeps, the next wake-up does.
pub(super) fn policy_changed(slot: &'static Slot) {
    fence(Ordering::SeqCst);
    if slot.is_parked() {
        return;
    }
    let here = cpu::without_irqs(|| {
        let target = slot.cpu();
        shared(target).recheck.store(true, Ordering::SeqCst);
        send_reschedule(target);
        target == cpu::current()
    });
    if here && cpu::irqs_enabled() {
        cpu::without_irqs(switch::preempt_check);
    }
}
