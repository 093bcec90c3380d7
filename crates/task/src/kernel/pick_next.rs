//! Deciding who runs next on a CPU, and for how long.
//!
//! The mathematics is `fair`'s. A run queue is touched by its own CPU only, with interrupts off:
//! what others want arrives through the wake queues, and marks on the slots that are looked at when
//! somebody says so (`recheck`).

use core::sync::atomic::Ordering;

use fair::{Group, HYSTERESIS_NS, Policy, RunQueue};
use guard::cpu::CpuId;
use guard::timer::{self, now_ns};

use super::cpu::{Cpu, IDLE, LOADED, is_active, is_started, shared};
use super::idle;
use super::perturb;
use super::rt_bandwidth;
use super::slot::{self, CPU_WORDS, Slot};
use super::switch::SwitchReason;
use super::trace_events;
use super::wake;

/// Most idle CPUs that are tried for a thread to give away each time.
const TRIES: usize = 4;

impl Cpu {
    /// `prev` sleeps: gives the CPU to the thread that waits in `deferred`, if there is one and
    /// that is all there is to decide.
    #[inline(always)]
    pub(super) fn switch_to_deferred(&self, prev: &'static Slot) -> Option<&'static Slot> {
        let next = self.hand_over_to_deferred(prev, None)?;
        self.reschedule.set(false);
        Some(next)
    }

    /// `prev` lets others go first: changes places with the thread that waits in `deferred`, if
    /// there is one and that is all there is to decide.
    #[inline(always)]
    pub(super) fn yield_to_deferred(&self, prev: &'static Slot) -> Option<&'static Slot> {
        if self.reschedule.get() || !IDLE.is_empty() {
            return None;
        }
        self.hand_over_to_deferred(prev, Some(prev))
    }

    /// Gives the CPU from `prev` to the thread that waits in `deferred`, where `waiting` is next.
    #[inline(always)]
    fn hand_over_to_deferred(
        &self,
        prev: &'static Slot,
        waiting: Option<&'static Slot>,
    ) -> Option<&'static Slot> {
        let (next, shared) = (self.deferred.get()?, self.shared);
        // As in `pick_next`.
        shared.wake_state.0.swap(wake::SEND_IPI, Ordering::SeqCst);
        if !shared.wake_queues.is_empty() || shared.recheck.load(Ordering::Relaxed) {
            return None;
        }
        let now = now_ns();
        let recent = self
            .queue
            .borrow_mut()
            .hand_over(next.number(), next.recent(), now)?;
        self.deferred.set(waiting);
        prev.save_neutral_history(recent);
        self.set_current(next, now);
        Some(next)
    }

    /// `prev` has just yielded to `next`. If nobody else waits, and both are alike, it waits in
    /// `deferred`: two threads that only yield to each other take turns, and nothing is to be
    /// weighed up.
    fn defer_yielded(
        &self,
        queue: &mut RunQueue,
        prev: &'static Slot,
        next: &'static Slot,
        now: u64,
    ) {
        if queue.waiting() != 1
            || core::ptr::eq(prev, self.idle())
            || prev.params() != next.params()
            || self.evicted.get().is_some()
            || !self.overflow.borrow().is_empty()
            || !IDLE.is_empty()
        {
            return;
        }
        if let Some(history) = queue.remove(prev.number(), now) {
            prev.save_history(&history);
            if self.can_defer(queue, prev) {
                self.deferred.set(Some(prev));
            } else {
                self.enqueue(queue, prev, now);
            }
        }
    }

    /// Takes in who was woken, decides who runs, and says so to others and to the timer. The caller
    /// switches.
    pub(super) fn pick_next(&self, why: SwitchReason) -> &'static Slot {
        let (me, shared) = (self.id, self.shared);
        let now = now_ns();
        let prev = self.current();
        self.reschedule.set(false);
        // Before the wake queues are looked at, so that who comes later tells us again.
        shared.wake_state.0.swap(wake::SEND_IPI, Ordering::SeqCst);

        let queue = &mut *self.queue.borrow_mut();
        if let Some(pending) = self.deferred.take() {
            self.enqueue_woken(queue, pending, me, now);
        }
        let idle = self.idle();
        if why == SwitchReason::Parked {
            prev.save_history(&queue.block(now));
        }
        if !shared.wake_queues.is_empty() {
            shared.wake_queues.drain(slot::next_link, |number| {
                self.enqueue_woken(queue, slot::by_number(number), me, now);
            });
        }
        if shared.recheck.load(Ordering::Relaxed) && shared.recheck.swap(false, Ordering::SeqCst) {
            self.reapply_policies(queue, me, now);
        }
        let others_first =
            why == SwitchReason::Yield || why == SwitchReason::Preempt && perturb::should_yield();
        let picked = if others_first {
            queue.pick_other(now)
        } else {
            queue.pick(now)
        };
        let next = picked.map_or(idle, slot::by_number);
        if !core::ptr::eq(prev, next) {
            self.account(prev, next, now);
            if !self.overflow.borrow().is_empty() {
                let tired = why != SwitchReason::Parked
                    && !core::ptr::eq(prev, idle)
                    && self.evicted.get().is_none();
                self.enqueue_overflow(queue, tired.then_some(prev), now);
            }
        }
        if queue.waiting() != 0 || self.loaded.get() {
            self.push_to_idle(queue, me, now);
        }
        if picked.is_none() && is_active(me) {
            IDLE.insert(me.0 as usize);
        }
        shared.note_stall(queue.waiting() != 0, now);
        shared.load.store(
            queue.waiting() as u32 + u32::from(picked.is_some()),
            Ordering::Relaxed,
        );
        let look = queue.next_deadline().map(perturb::shorten_deadline);
        shared.wake_state.0.store(
            self.wake_state_for(picked.map(|_| next.policy()), look, queue),
            Ordering::Release,
        );
        self.arm_timer(look.unwrap_or(u64::MAX), picked.is_none());
        if why == SwitchReason::Yield && !core::ptr::eq(prev, next) {
            self.defer_yielded(queue, prev, next, now);
        }
        next
    }

    /// The word for other CPUs: by what means they are to announce a thread that they woke for
    /// this one.
    fn wake_state_for(&self, current: Option<Policy>, look: Option<u64>, queue: &RunQueue) -> u32 {
        match (current, look) {
            (None | Some(Policy::Idle), _) => wake::SEND_IPI,
            (Some(Policy::Fifo(priority) | Policy::Rr(priority)), _) => {
                let groups = [Group::Programs, Group::Management];
                wake::realtime(
                    priority,
                    groups.map(|group| queue.first_waiter_needs_timer(group)),
                )
            }
            (_, Some(look)) if look <= self.running_since.get() + HYSTERESIS_NS => {
                wake::TIMER_BEFORE_PREEMPTION
            }
            (_, Some(_)) => wake::TIMER_AT_SLICE_END,
            (_, None) => wake::SEND_IPI,
        }
    }

    /// `prev` leaves the CPU to `next`.
    fn account(&self, prev: &'static Slot, next: &'static Slot, now: u64) {
        let ran = now.saturating_sub(self.running_since.get());
        if core::ptr::eq(prev, self.idle()) {
            IDLE.remove(self.id.0 as usize);
            self.shared.usage.end_idle(now);
            self.polling
                .set(self.polling.get().update(ran <= idle::poll_ns()));
        }
        if core::ptr::eq(next, self.idle()) {
            self.shared.usage.begin_idle(now);
        }
        self.set_current(next, now);
        next.set_cpu(self.id);
    }

    /// Makes another thread the current one.
    #[inline]
    fn set_current(&self, next: &'static Slot, now: u64) {
        self.note_running_since(now);
        self.shared.usage.count_switch();
        self.current.set(Some(next));
    }

    /// Whether a woken thread can wait in `deferred`; the timer ends that with the hysteresis.
    #[inline(always)]
    pub(super) fn can_defer(&self, queue: &RunQueue, slot: &'static Slot) -> bool {
        if self.deferred.get().is_some()
            || !queue.may_hand_over(slot.params())
            || !slot.may_run_on(self.id)
            || slot.migrated.load(Ordering::Relaxed)
        {
            return false;
        }
        let until = self.running_since.get() + HYSTERESIS_NS;
        self.timer_deadline.get() <= until || self.arm_before(until)
    }

    /// Arms the timer for `until`, unless that is over.
    #[cold]
    #[inline(never)]
    fn arm_before(&self, until: u64) -> bool {
        if now_ns() >= until {
            return false;
        }
        self.timer_deadline.set(until);
        timer::arm(until);
        true
    }

    /// A thread that was woken, or sent here, joins the queue. True if it has a better claim than
    /// who runs.
    pub(super) fn enqueue_woken(
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
                .push_back(slot.number(), slot::next_link);
            return false;
        }
        self.enqueue(queue, slot, now)
    }

    fn enqueue(&self, queue: &mut RunQueue, slot: &'static Slot, now: u64) -> bool {
        // Before the policy is read: a later change is marked again.
        slot.policy_changed.store(false, Ordering::SeqCst);
        let (params, history) = (slot.params(), slot.history());
        if slot.migrated.load(Ordering::Relaxed) {
            queue.migrate_in(slot.number(), params, &history, now)
        } else {
            queue.wake(slot.number(), params, &history, now)
        }
    }

    /// Threads there was no room for come in as others leave, or in turn: `tired`, who has just had
    /// to give way, waits outside.
    fn enqueue_overflow(&self, queue: &mut RunQueue, tired: Option<&'static Slot>, now: u64) {
        let mut overflow = self.overflow.borrow_mut();
        if let Some(tired) = tired
            && let Some(history) = queue.remove(tired.number(), now)
        {
            tired.save_history_migrated(&history);
            overflow.push_back(tired.number(), slot::next_link);
        }
        while has_room(queue) {
            let Some(number) = overflow.pop(slot::next_link) else {
                return;
            };
            self.enqueue(queue, slot::by_number(number), now);
        }
    }

    /// Somebody changed where or how threads of this CPU run: O(n).
    fn reapply_policies(&self, queue: &mut RunQueue, me: CpuId, now: u64) {
        rt_bandwidth::apply(queue);
        if let Some(slot) = queue.current().map(slot::by_number)
            && !slot.may_run_on(me)
        {
            slot.save_history_migrated(&queue.block(now));
            self.evicted.set(Some(slot));
        }
        let misplaced =
            |number| !slot::by_number(number).may_run_on(me) && !slot::by_number(number).on_cpu();
        while let Some((number, history)) = queue.migrate_out(misplaced, now) {
            slot::by_number(number).save_history_migrated(&history);
            wake::send(
                slot::by_number(number),
                wake::least_loaded(slot::by_number(number)),
            );
        }
        self.move_misplaced_overflow();
        loop {
            let is_changed = |number: &u32| {
                slot::by_number(*number)
                    .policy_changed
                    .swap(false, Ordering::SeqCst)
            };
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
            queue.set_params(number, slot::by_number(number).params(), now);
        }
    }

    /// Sends the threads on that there was no room for, and that may not stay on this CPU: O(n).
    fn move_misplaced_overflow(&self) {
        let mut overflow = self.overflow.borrow_mut();
        for _ in 0..overflow.len() {
            let Some(number) = overflow.pop(slot::next_link) else {
                return;
            };
            let slot = slot::by_number(number);
            if slot.may_run_on(self.id) || slot.on_cpu() {
                overflow.push_back(number, slot::next_link);
            } else {
                wake::send(slot, wake::least_loaded(slot));
            }
        }
    }

    /// Takes in the policy of the current thread, which it changed itself: O(log n). The next
    /// opportunity to choose is taken, also because others were told by which policy it runs.
    pub(super) fn reapply_own_policy(&self) {
        let (queue, now) = (&mut *self.queue.borrow_mut(), now_ns());
        // Who waits there has the policy that the current thread had.
        if let Some(pending) = self.deferred.take() {
            self.enqueue_woken(queue, pending, self.id, now);
        }
        let slot = self.current();
        queue.set_params(slot.number(), slot.params(), now);
        self.reschedule.set(true);
    }

    /// Gives waiting threads to CPUs that have none: first to the one that asked.
    fn push_to_idle(&self, queue: &mut RunQueue, me: CpuId, now: u64) {
        let shared = self.shared;
        if shared.work_requester.load(Ordering::Relaxed) != ring::NIL {
            let work_requester = CpuId(shared.work_requester.swap(ring::NIL, Ordering::AcqRel));
            if migrate_to(queue, work_requester, now) {
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
            if idle != me.0 as usize && migrate_to(queue, CpuId(idle as u32), now) {
                IDLE.remove(idle);
            }
            start = (idle + 1) % (64 * CPU_WORDS);
        }
        self.load_balance(queue, me, now);
        let loaded = queue.waiting() != 0;
        if loaded != self.loaded.replace(loaded) {
            if loaded {
                LOADED.insert(me.0 as usize);
            } else {
                LOADED.remove(me.0 as usize);
            }
        }
    }

    /// Balances the load when no CPU idles: looks at one other CPU each time, and gives it a thread
    /// if it has two fewer.
    fn load_balance(&self, queue: &mut RunQueue, me: CpuId, now: u64) {
        let count = super::cpu_count() as u32;
        if queue.waiting() < 2 || count == 1 {
            return;
        }
        let other = CpuId((self.last_balanced.get() + 1) % count);
        self.last_balanced.set(other.0);
        let other_shared = shared(other);
        let load = other_shared.load.load(Ordering::Relaxed) as usize;
        if other != me && is_started(other) && load < queue.waiting() {
            migrate_to(queue, other, now);
        }
    }

    /// Arms the timer for the first sleeper or `look`, whichever is first. A timer that is armed
    /// for earlier is left alone, which saves programming it with each switch and costs one
    /// interrupt in the end; but an idle CPU sleeps for as long as it may.
    fn arm_timer(&self, look: u64, idle: bool) {
        let first = self.sleepers.borrow().last().map_or(u64::MAX, |s| s.0);
        let deadline = first.min(look);
        let armed = self.timer_deadline.get();
        if deadline < armed {
            self.timer_deadline.set(deadline);
            timer::arm(deadline);
        } else if idle && deadline != armed {
            self.timer_deadline.set(deadline);
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
fn migrate_to(queue: &mut RunQueue, cpu: CpuId, now: u64) -> bool {
    let may_go =
        |number| slot::by_number(number).may_run_on(cpu) && !slot::by_number(number).on_cpu();
    let Some((number, history)) = queue.migrate_out(may_go, now) else {
        return false;
    };
    let slot = slot::by_number(number);
    slot.save_history_migrated(&history);
    trace_events::trace_migrate(slot, cpu);
    wake::send(slot, cpu);
    true
}
