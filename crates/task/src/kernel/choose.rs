//! Deciding who runs next on a CPU, and for how long.
//!
//! The mathematics is `fair`'s. A run queue is touched by its own CPU only, with interrupts off:
//! what others want arrives through the wake queues, and marks on the slots that are looked at when
//! somebody says so (`recheck`).

use core::sync::atomic::Ordering;

use fair::{HYSTERESIS_NS, Policy, RunQueue};
use guard::cpu::CpuId;
use guard::timer::{self, now_ns};

use super::cpu::{Cpu, IDLE, LOADED, is_started, shared};
use super::idle;
use super::observe;
use super::perturb;
use super::rt_bandwidth;
use super::slot::{self, CPU_WORDS, Slot};
use super::switch::Why;
use super::wake;

/// Most idle CPUs that are tried for a thread to give away each time.
const TRIES: usize = 4;

impl Cpu {
    /// `prev` sleeps: gives the CPU to the thread that waits in `pending`, if there is one and that
    /// is all there is to decide.
    #[inline(always)]
    pub(super) fn hand_over(&self, prev: &'static Slot) -> Option<&'static Slot> {
        let (next, shared) = (self.pending.get()?, self.shared);
        // As in `choose`.
        shared.notice.0.swap(wake::OPEN, Ordering::SeqCst);
        if !shared.inbox.is_empty() || shared.recheck.load(Ordering::Relaxed) {
            return None;
        }
        let now = now_ns();
        let recent = self
            .queue
            .borrow_mut()
            .hand_over(next.number(), next.recent(), now)?;
        self.pending.set(None);
        self.reschedule.set(false);
        prev.remember_even(recent);
        self.pass_to(next, now);
        Some(next)
    }

    /// Takes in who was woken, decides who runs, and says so to others and to the timer. The caller
    /// switches.
    pub(super) fn choose(&self, why: Why) -> &'static Slot {
        let (me, shared) = (self.id, self.shared);
        let now = now_ns();
        let prev = self.current();
        self.reschedule.set(false);
        // Before the wake queues are looked at, so that who comes later tells us again.
        shared.notice.0.swap(wake::OPEN, Ordering::SeqCst);

        let queue = &mut *self.queue.borrow_mut();
        if let Some(pending) = self.pending.take() {
            self.admit(queue, pending, me, now);
        }
        let idle = self.idle();
        if why == Why::Parked {
            prev.remember(&queue.block(now), false);
        }
        if !shared.inbox.is_empty() {
            shared.inbox.drain(slot::link, |number| {
                self.admit(queue, slot::at(number), me, now);
            });
        }
        if shared.recheck.load(Ordering::Relaxed) && shared.recheck.swap(false, Ordering::SeqCst) {
            self.recheck(queue, me, now);
        }
        let others_first = why == Why::Yield || why == Why::Preempt && perturb::gives_way();
        let picked = if others_first {
            queue.pick_other(now)
        } else {
            queue.pick(now)
        };
        let next = picked.map_or(idle, slot::at);
        if !core::ptr::eq(prev, next) {
            if why != Why::Parked
                && let Some(own) = &*self.own.borrow()
            {
                own.thread.was_evicted();
            }
            self.account(prev, next, now);
            if !self.overflow.borrow().is_empty() {
                let tired = why != Why::Parked
                    && !core::ptr::eq(prev, idle)
                    && self.evicted.get().is_none();
                self.take_overflow(queue, tired.then_some(prev), now);
            }
        }
        if queue.waiting() != 0 || self.loaded.get() {
            self.give(queue, me, now);
        }
        if picked.is_none() {
            IDLE.insert(me.0 as usize);
        }
        shared.note_stall(queue.waiting() != 0, now);
        shared.load.store(
            queue.waiting() as u32 + u32::from(picked.is_some()),
            Ordering::Relaxed,
        );
        let look = queue.next_deadline().map(perturb::sooner);
        shared.notice.0.store(
            self.notice(
                picked.map(|_| next.policy()),
                look,
                queue.first_fair_waiter_needs_timer(),
            ),
            Ordering::Release,
        );
        self.arm(look.unwrap_or(u64::MAX), picked.is_none());
        next
    }

    /// The notice for other CPUs: by what means they are to announce a thread that they woke for
    /// this one.
    fn notice(&self, current: Option<Policy>, look: Option<u64>, limit_begins: bool) -> u32 {
        match (current, look) {
            (None | Some(Policy::Idle), _) => wake::OPEN,
            (Some(Policy::Fifo(priority) | Policy::Rr(priority)), _) => {
                wake::realtime(priority, limit_begins)
            }
            (_, Some(look)) if look <= self.since.get() + HYSTERESIS_NS => wake::LOOKS_SOON,
            (_, Some(_)) => wake::LOOKS_LATER,
            (_, None) => wake::OPEN,
        }
    }

    /// `prev` leaves the CPU to `next`.
    fn account(&self, prev: &'static Slot, next: &'static Slot, now: u64) {
        let ran = now.saturating_sub(self.since.get());
        if core::ptr::eq(prev, self.idle()) {
            IDLE.remove(self.id.0 as usize);
            self.shared.counters.idle_ns.add(ran);
            self.polling
                .set(self.polling.get().after(ran <= idle::poll_ns()));
        }
        self.pass_to(next, now);
        next.set_cpu(self.id);
    }

    /// Makes another thread the current one.
    #[inline]
    fn pass_to(&self, next: &'static Slot, now: u64) {
        self.since.set(now);
        self.shared.since.store(now, Ordering::Relaxed);
        self.shared.counters.switches.add(1);
        self.current.set(Some(next));
    }

    /// Whether a woken thread can wait in `pending`; the timer ends that with the hysteresis.
    #[inline(always)]
    pub(super) fn can_wait(&self, queue: &RunQueue, slot: &'static Slot) -> bool {
        if self.pending.get().is_some()
            || !queue.may_hand_over(slot.policy())
            || !slot.may_run_on(self.id)
            || slot.moved.load(Ordering::Relaxed)
        {
            return false;
        }
        let until = self.since.get() + HYSTERESIS_NS;
        self.armed.get() <= until || self.arm_before(until)
    }

    /// Arms the timer for `until`, unless that is over.
    #[cold]
    #[inline(never)]
    fn arm_before(&self, until: u64) -> bool {
        if now_ns() >= until {
            return false;
        }
        self.armed.set(until);
        timer::arm(until);
        true
    }

    /// A thread that was woken, or sent here, joins the queue. True if it has a better claim than
    /// who runs.
    pub(super) fn admit(
        &self,
        queue: &mut RunQueue,
        slot: &'static Slot,
        me: CpuId,
        now: u64,
    ) -> bool {
        if !slot.may_run_on(me) {
            if !slot.on_cpu() {
                wake::send(slot, wake::least_loaded(slot));
                return false;
            }
            // It is on its way to sleep here, and its stack in use: it is sent on when that is
            // done.
            self.shared.recheck.store(true, Ordering::Relaxed);
            self.reschedule.set(true);
        }
        if !has_room(queue) {
            self.overflow
                .borrow_mut()
                .push_back(slot.number(), slot::link);
            return false;
        }
        self.enter(queue, slot, now)
    }

    fn enter(&self, queue: &mut RunQueue, slot: &'static Slot, now: u64) -> bool {
        // Before the policy is read: a later change is marked again.
        slot.changed.store(false, Ordering::SeqCst);
        let (policy, history) = (slot.policy(), slot.history());
        if slot.moved.load(Ordering::Relaxed) {
            queue.migrate_in(slot.number(), policy, &history, now)
        } else {
            queue.wake(slot.number(), policy, &history, now)
        }
    }

    /// Threads there was no room for come in as others leave, or in turn: `tired`, who has just had
    /// to give way, waits outside.
    fn take_overflow(&self, queue: &mut RunQueue, tired: Option<&'static Slot>, now: u64) {
        let mut overflow = self.overflow.borrow_mut();
        if let Some(tired) = tired
            && let Some(history) = queue.remove(tired.number(), now)
        {
            tired.remember(&history, true);
            overflow.push_back(tired.number(), slot::link);
        }
        while has_room(queue) {
            let Some(number) = overflow.pop(slot::link) else {
                return;
            };
            self.enter(queue, slot::at(number), now);
        }
    }

    /// Somebody changed where or how threads of this CPU run: O(n).
    fn recheck(&self, queue: &mut RunQueue, me: CpuId, now: u64) {
        rt_bandwidth::apply(queue);
        if let Some(slot) = queue.current().map(slot::at)
            && !slot.may_run_on(me)
        {
            slot.remember(&queue.block(now), true);
            self.evicted.set(Some(slot));
        }
        let misplaced = |number| !slot::at(number).may_run_on(me) && !slot::at(number).on_cpu();
        while let Some((number, history)) = queue.migrate_out(misplaced, now) {
            slot::at(number).remember(&history, true);
            wake::send(slot::at(number), wake::least_loaded(slot::at(number)));
        }
        loop {
            let is_changed = |number: &u32| slot::at(*number).changed.swap(false, Ordering::SeqCst);
            let mut changed = queue.current().filter(is_changed);
            if changed.is_none() {
                // Nobody goes; but each is looked at.
                let look = |number| {
                    if changed.is_none() && is_changed(&number) {
                        changed = Some(number);
                    }
                    false
                };
                let _ = queue.migrate_out(look, now);
            }
            let Some(number) = changed else { return };
            queue.set_policy(number, slot::at(number).policy(), now);
        }
    }

    /// Gives waiting threads to CPUs that have none: first to the one that asked.
    fn give(&self, queue: &mut RunQueue, me: CpuId, now: u64) {
        let shared = self.shared;
        if shared.asker.load(Ordering::Relaxed) != ring::NIL {
            let asker = CpuId(shared.asker.swap(ring::NIL, Ordering::AcqRel));
            if give_to(queue, asker, now) {
                shared.counters.steals.add(1);
            }
        }
        let mut start = me.0 as usize + 1;
        for _ in 0..TRIES {
            if queue.waiting() == 0 {
                break;
            }
            let Some(idle) = IDLE.find(start, |_| u64::MAX) else {
                break;
            };
            if idle != me.0 as usize && give_to(queue, CpuId(idle as u32), now) {
                IDLE.remove(idle);
            }
            start = (idle + 1) % (64 * CPU_WORDS);
        }
        self.balance(queue, me, now);
        let loaded = queue.waiting() != 0;
        if loaded != self.loaded.replace(loaded) {
            if loaded {
                LOADED.insert(me.0 as usize);
            } else {
                LOADED.remove(me.0 as usize);
            }
        }
    }

    /// When no CPU idles: looks at one other CPU each time, and gives it a thread if it has two
    /// fewer.
    fn balance(&self, queue: &mut RunQueue, me: CpuId, now: u64) {
        let count = super::cpu_count() as u32;
        if queue.waiting() < 2 || count == 1 {
            return;
        }
        let other = CpuId((self.compared.get() + 1) % count);
        self.compared.set(other.0);
        let other_shared = shared(other);
        let load = other_shared.load.load(Ordering::Relaxed) as usize;
        if other != me && is_started(other) && load < queue.waiting() {
            give_to(queue, other, now);
        }
    }

    /// Arms the timer for the first sleeper or `look`, whichever is first. A timer that is armed
    /// for earlier is left alone, which saves programming it with each switch and costs one
    /// interrupt in the end; but an idle CPU sleeps for as long as it may.
    fn arm(&self, look: u64, idle: bool) {
        let first = self.sleepers.borrow().last().map_or(u64::MAX, |s| s.0);
        let deadline = first.min(look);
        let armed = self.armed.get();
        if deadline < armed {
            self.armed.set(deadline);
            timer::arm(deadline);
        } else if idle && deadline != armed {
            self.armed.set(deadline);
            if deadline == u64::MAX {
                timer::disarm();
            } else {
                timer::arm(deadline);
            }
        }
    }
}

/// Whether one more thread can wait, and the current one besides should it have to.
fn has_room(queue: &RunQueue) -> bool {
    queue.waiting() + 2 <= queue.capacity()
}

/// Sends the waiting thread that would wait longest here to another CPU; false if none may go
/// there.
fn give_to(queue: &mut RunQueue, cpu: CpuId, now: u64) -> bool {
    let may_go = |number| slot::at(number).may_run_on(cpu) && !slot::at(number).on_cpu();
    let Some((number, history)) = queue.migrate_out(may_go, now) else {
        return false;
    };
    let slot = slot::at(number);
    slot.remember(&history, true);
    observe::steal(slot, cpu);
    wake::send(slot, cpu);
    true
}
