//! The run queue of one CPU.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use crate::bandwidth::{Bandwidth, ManagementBandwidth, RtLimits};
use crate::decay::TAU_NS;
use crate::fair_queue::{FairQueue, FairRoom};
use crate::heap::{Heap, Order};
use crate::history::{History, Recent};
use crate::policy::{Group, Params, Policy};
use crate::virt::Point;
use crate::{HYSTERESIS_NS, SLICE_NS, rr_quantum_ns};

/// Highest priority that programs can have. What is above is the kernel's own, and management too.
const HIGHEST_OF_PROGRAMS: u8 = 99;
/// The slice a thread asks for that has hardly run lately.
const SHORTEST_REQUEST_NS: u64 = SLICE_NS / 16;

/// A new turn of a round-robin thread.
fn new_quantum() -> u32 {
    u32::try_from(rr_quantum_ns()).unwrap_or(u32::MAX)
}

/// A runnable thread.
#[derive(Debug)]
pub(crate) struct Entity {
    pub(crate) id: u32,
    params: Params,
    pub(crate) point: Point,
    deadline: u64,
    /// Order of arrival.
    sequence: i64,
    quantum_ns: u32,
    recent: Recent,
}

impl Entity {
    /// Real-time priority of the thread; `None` for a fair one.
    fn realtime(&self) -> Option<u8> {
        self.params.policy.realtime()
    }

    /// The group it has a fair share of; `None` of a real-time thread.
    fn fair_group(&self) -> Option<Group> {
        self.realtime().is_none().then_some(self.params.group)
    }
}

fn earlier(a: (u64, i64), b: (u64, i64)) -> bool {
    match a.0.wrapping_sub(b.0) as i64 {
        0 => a.1 < b.1,
        difference => difference < 0,
    }
}

/// Order by priority, the highest first; then by arrival.
#[derive(Debug)]
struct ByPriority;
impl Order<Entity> for ByPriority {
    fn before(a: &Entity, b: &Entity) -> bool {
        (b.realtime(), a.sequence) < (a.realtime(), b.sequence)
    }
}

/// Order by virtual deadline; then by arrival.
#[derive(Debug)]
pub(crate) struct ByDeadline;
impl Order<Entity> for ByDeadline {
    fn before(a: &Entity, b: &Entity) -> bool {
        earlier((a.deadline, a.sequence), (b.deadline, b.sequence))
    }
}

/// Order by virtual time, which is when threads become eligible; then by arrival.
#[derive(Debug)]
pub(crate) struct ByStart;
impl Order<Entity> for ByStart {
    fn before(a: &Entity, b: &Entity) -> bool {
        earlier((a.point.at, a.sequence), (b.point.at, b.sequence))
    }
}

/// Number of [`Group`]s.
const GROUPS: usize = 2;

/// Memory for the waiting threads of a [`RunQueue`].
#[derive(Debug)]
pub struct Room {
    realtime: Vec<Entity>,
    fair: [FairRoom; GROUPS],
}

impl Room {
    /// Allocates room for `n` waiting threads.
    #[must_use]
    pub fn new(n: usize) -> Self {
        let fair = || FairRoom {
            eligible: Vec::with_capacity(n),
            ahead: Vec::with_capacity(n),
        };
        Self {
            realtime: Vec::with_capacity(n),
            fair: [fair(), fair()],
        }
    }

    /// Allocates room for `n` waiting threads, if there is memory for it.
    ///
    /// # Errors
    /// Says why not.
    pub fn try_new(n: usize) -> Result<Self, TryReserveError> {
        let heap = || {
            let mut entries = Vec::new();
            entries.try_reserve_exact(n).map(|()| entries)
        };
        let fair = || -> Result<_, TryReserveError> {
            Ok(FairRoom {
                eligible: heap()?,
                ahead: heap()?,
            })
        };
        Ok(Self {
            realtime: heap()?,
            fair: [fair()?, fair()?],
        })
    }
}

/// The runnable threads of one CPU: the current one, and those that wait in heaps.
///
/// Times are nanoseconds of one clock that does not go back. Wake-ups, choosing and leaving are
/// O(log n), and allocate nothing as long as there is room for all waiting threads
/// ([`Self::enlarge`]).
///
/// ```
/// use fair::{History, Policy, Room, RunQueue, SLICE_NS};
///
/// let mut queue = RunQueue::new(0);
/// queue.enlarge(&mut Room::new(8));
/// for thread in [1, 2] {
///     queue.wake(thread, Policy::default(), &History::default(), 0);
/// }
/// let first = queue.pick(0);
/// // Equal threads take turns, a slice each.
/// assert_ne!(queue.pick(SLICE_NS), first);
/// // One that sleeps takes its history along, for its next wake-up.
/// let history = queue.block(SLICE_NS + 1000);
/// assert!(history.lag_ns().unsigned_abs() < SLICE_NS);
/// assert_eq!(queue.pick(SLICE_NS + 1000), first);
/// ```
#[derive(Debug)]
pub struct RunQueue {
    number: u32,
    realtime: Heap<Entity, ByPriority>,
    /// Fair threads of each [`Group`].
    fair: [FairQueue; GROUPS],
    /// Number of threads in the heaps.
    waiting: usize,
    /// Limits of real-time threads beside fair ones.
    rt_bandwidth: Bandwidth,
    /// Limits of real-time threads of programs beside management.
    rt_beside_management: Bandwidth,
    /// Limits of management beside fair threads of programs.
    management_bandwidth: ManagementBandwidth,
    /// Something may be used of these three.
    owes: bool,
    current: Option<Entity>,
    /// Time at which the current thread was chosen.
    since_ns: u64,
    /// Up to when it is accounted.
    charged_ns: u64,
    /// Somebody who was woken has a better claim than the current thread, as soon as the hysteresis
    /// is over.
    claimed: bool,
    /// Next place at the tail, and before the head.
    tail: i64,
    head: i64,
}

impl RunQueue {
    /// An empty queue; `number` is that of its CPU.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self::starting_at(number, 0)
    }

    pub(crate) const fn starting_at(number: u32, virtual_time: u64) -> Self {
        Self {
            number,
            realtime: Heap::new(),
            fair: [FairQueue::new(virtual_time), FairQueue::new(virtual_time)],
            waiting: 0,
            rt_bandwidth: Bandwidth::new(RtLimits::DEFAULT),
            rt_beside_management: Bandwidth::new(RtLimits::BESIDE_MANAGEMENT),
            management_bandwidth: ManagementBandwidth::new(),
            owes: false,
            current: None,
            since_ns: 0,
            charged_ns: 0,
            claimed: false,
            tail: 0,
            head: -1,
        }
    }

    /// Moves into `room` if that is larger, and leaves the old one there. Allocates nothing and
    /// frees nothing: it may be called with interrupts off, between [`Room::new`] and the drop of
    /// what is left.
    pub fn enlarge(&mut self, room: &mut Room) {
        if room.realtime.capacity() > self.capacity() {
            self.realtime.move_into(&mut room.realtime);
            for (fair, room) in self.fair.iter_mut().zip(&mut room.fair) {
                fair.move_into(room);
            }
        }
    }

    /// Number of waiting threads that there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let fair = self.fair.iter().map(FairQueue::capacity);
        fair.fold(self.realtime.capacity(), usize::min)
    }

    /// Number of threads that wait for the CPU; the current one is not counted.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    fn fair(&self, group: Group) -> &FairQueue {
        &self.fair[group as usize]
    }

    fn fair_mut(&mut self, group: Group) -> &mut FairQueue {
        &mut self.fair[group as usize]
    }

    /// Whether fair threads wait for the CPU.
    fn fair_waits(&self) -> bool {
        self.fair.iter().any(FairQueue::waits)
    }

    /// Whether fair threads of this group wait for the CPU.
    fn group_waits(&self, group: Group) -> bool {
        self.fair(group).waits()
    }

    /// The highest priority of the real-time threads that wait.
    fn first_realtime(&self) -> Option<u8> {
        self.realtime.first().and_then(Entity::realtime)
    }

    /// Whether fair threads go before a real-time thread of that priority; `management` if one of
    /// that group is among them.
    fn fair_goes_first(&self, priority: u8, management: bool, now_ns: u64) -> bool {
        self.rt_bandwidth.is_throttled(now_ns)
            || management
                && priority <= HIGHEST_OF_PROGRAMS
                && self.rt_beside_management.is_throttled(now_ns)
    }

    /// Sets how much of each period real-time threads may keep from fair ones that wait. A new
    /// queue has [`RtLimits::DEFAULT`]. Without a limit they keep all from management, too.
    pub fn set_rt_limits(&mut self, limits: RtLimits) {
        self.rt_bandwidth.set_limits(limits);
        self.rt_beside_management
            .set_limits(if self.rt_bandwidth.is_limited() {
                RtLimits::BESIDE_MANAGEMENT
            } else {
                limits
            });
    }

    /// Whether the first fair thread of this group that comes to wait makes [`Self::next_deadline`]
    /// earlier: a real-time thread is current, whose time is limited and not yet counted. Who
    /// queues such a thread for this CPU must then interrupt it, so that its timer is set.
    #[must_use]
    pub fn first_waiter_needs_timer(&self, group: Group) -> bool {
        let Some(priority) = self.current.as_ref().and_then(Entity::realtime) else {
            return false;
        };
        self.rt_bandwidth.is_limited()
            && (!self.fair_waits()
                || group == Group::Management
                    && priority <= HIGHEST_OF_PROGRAMS
                    && !self.group_waits(group))
    }

    /// Sum of the weights of the fair threads, the current one included.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.fair.iter().map(|fair| fair.clock.weight()).sum()
    }

    /// The thread that has the CPU.
    #[must_use]
    pub fn current(&self) -> Option<u32> {
        self.current.as_ref().map(|entity| entity.id)
    }

    /// Takes in a thread that was woken or is new. If true [`Self::pick`] is to be asked now; if
    /// false it would choose the current thread again, but [`Self::next_deadline`] may have become
    /// earlier.
    ///
    /// A fair thread that is ahead of its share has come closer to it by what its weight was worth
    /// while it slept. It asks for a short slice, which means an early deadline, if it has used
    /// little of its share lately, and for a full one otherwise or if it is a `SCHED_BATCH` or
    /// `SCHED_IDLE` one.
    pub fn wake(
        &mut self,
        id: u32,
        params: impl Into<Params>,
        history: &History,
        now_ns: u64,
    ) -> bool {
        let params = params.into();
        self.charge(now_ns);
        let slept_ns = now_ns.saturating_sub(history.recent.stamp_ns);
        let usage = history.recent.usage.rested(slept_ns);
        let (weight, clock) = (params.policy.weight(), &self.fair(params.group).clock);
        let share_ns = |ns| clock.share_ns(ns, weight);
        let gain_ns = if history.queue == self.number {
            clock.worth_ns(weight, history.virtual_time)
        } else {
            share_ns(slept_ns.min(TAU_NS))
        };
        // What it was owed is gone: it did not want it.
        let lag_ns = history.lag_ns.saturating_add_unsigned(gain_ns).min(0);
        let slice_ns = match params.policy {
            Policy::Batch(_) | Policy::Idle => SLICE_NS,
            _ => (SLICE_NS * usage.ns() / share_ns(TAU_NS).max(1))
                .clamp(SHORTEST_REQUEST_NS, SLICE_NS),
        };
        let now = History {
            recent: Recent {
                usage,
                stamp_ns: now_ns,
            },
            lag_ns,
            ..History::default()
        };
        self.enter(id, params, &now, slice_ns, now_ns)
    }

    /// Takes in a runnable thread that another queue gave up, with what it was owed there. True as
    /// for [`Self::wake`].
    pub fn migrate_in(
        &mut self,
        id: u32,
        params: impl Into<Params>,
        history: &History,
        now_ns: u64,
    ) -> bool {
        self.charge(now_ns);
        self.enter(id, params.into(), history, SLICE_NS, now_ns)
    }

    /// `now_ns` is accounted already.
    fn enter(
        &mut self,
        id: u32,
        params: Params,
        history: &History,
        slice_ns: u64,
        now_ns: u64,
    ) -> bool {
        self.begin_to_share(params.policy);
        let mut entity = Entity {
            id,
            params,
            point: Point::new(params.policy.weight()),
            deadline: 0,
            sequence: self.next_at_tail(),
            quantum_ns: if history.quantum_ns == 0 {
                new_quantum()
            } else {
                history.quantum_ns
            },
            recent: history.recent,
        };
        self.join(&mut entity, history.lag_ns, slice_ns);
        let claims = self.claims(&entity);
        self.insert(entity);
        self.claimed |= claims;
        self.would_switch(now_ns)
    }

    /// A slice or quantum begins when somebody comes to share with; until then there is nothing to
    /// measure.
    fn begin_to_share(&mut self, policy: Policy) {
        let alone = self.waiting() == 0;
        let first = self.first_realtime();
        match &mut self.current {
            Some(current) if current.realtime().is_none() && alone => Self::renew(current),
            Some(current)
                if current.realtime() == policy.realtime() && first < policy.realtime() =>
            {
                Self::renew(current);
            }
            _ => {}
        }
    }

    /// Lets an entity into virtual time if it is a fair one.
    fn join(&mut self, entity: &mut Entity, lag_ns: i64, slice_ns: u64) {
        if let Some(group) = entity.fair_group() {
            self.fair_mut(group).clock.join(
                &mut entity.point,
                lag_ns.clamp(-(SLICE_NS as i64), SLICE_NS as i64),
            );
            entity.deadline = entity.point.after(slice_ns);
        }
    }

    /// Takes an entity out of virtual time; what it is owed is returned.
    fn part(&mut self, entity: &Entity) -> i64 {
        let Some(group) = entity.fair_group() else {
            return 0;
        };
        let clock = &mut self.fair_mut(group).clock;
        let lag_ns = clock.lag_ns(&entity.point);
        clock.leave(&entity.point);
        lag_ns
    }

    /// Whether a thread that comes in has a better claim to the CPU than the current, fair one of
    /// its group.
    fn claims(&self, new: &Entity) -> bool {
        let Some(current) = &self.current else {
            return true;
        };
        match (current.params.policy, new.params.policy) {
            (Policy::Fifo(_) | Policy::Rr(_), _) | (_, Policy::Idle) => false,
            (_, Policy::Fifo(_) | Policy::Rr(_)) | (Policy::Idle, _) => true,
            (_, Policy::Batch(_)) => false,
            _ => {
                let group = new.params.group;
                group == current.params.group
                    && self.fair(group).clock.eligible(new.point.at)
                    && earlier(
                        (new.deadline, new.sequence),
                        (current.deadline, current.sequence),
                    )
            }
        }
    }

    /// Puts a waiting entity in its heap.
    fn insert(&mut self, entity: Entity) {
        self.waiting += 1;
        match entity.fair_group() {
            None => self.realtime.push(entity),
            Some(group) => self.fair_mut(group).insert(entity),
        }
    }

    fn next_at_tail(&mut self) -> i64 {
        self.tail += 1;
        self.tail
    }

    fn next_at_head(&mut self) -> i64 {
        self.head -= 1;
        self.head
    }

    /// The CPU stood still for so long, up to now: the current thread is not charged for that time,
    /// and its slice and its hysteresis are as long as if it had not passed.
    pub fn skip(&mut self, ns: u64) {
        self.since_ns += ns;
        self.charged_ns += ns;
        if let Some(current) = &mut self.current {
            current.recent.stamp_ns += ns;
        }
    }

    /// Accounts the time since the last call to the current thread.
    fn charge(&mut self, now_ns: u64) {
        let ran = now_ns.saturating_sub(self.charged_ns);
        if ran == 0 {
            return;
        }
        self.charged_ns = now_ns;
        let Some(current) = &mut self.current else {
            return;
        };
        if let Policy::Rr(_) = current.params.policy {
            current.quantum_ns = current
                .quantum_ns
                .saturating_sub(u32::try_from(ran).unwrap_or(u32::MAX));
        }
        match current.fair_group() {
            Some(group) => {
                self.fair[group as usize]
                    .clock
                    .charge(&mut current.point, ran);
                if self.owes || group == Group::Management {
                    self.settle(group, ran);
                }
            }
            None => self.owe(ran, now_ns),
        }
    }

    /// Accounts the time of the current, real-time thread to those that wait for it.
    fn owe(&mut self, ran_ns: u64, now_ns: u64) {
        if !self.fair_waits() {
            return;
        }
        let priority = self.current.as_ref().and_then(Entity::realtime);
        if self.group_waits(Group::Management) && priority <= Some(HIGHEST_OF_PROGRAMS) {
            self.rt_beside_management.charge_first(ran_ns, now_ns);
        }
        self.rt_bandwidth.charge_first(ran_ns, now_ns);
        self.owes = true;
    }

    /// Accounts the time of the current, fair thread of this group to those that go before it, and
    /// to those that it goes before.
    fn settle(&mut self, group: Group, ran_ns: u64) {
        self.rt_bandwidth.charge_other(ran_ns);
        if group == Group::Programs {
            self.management_bandwidth.charge_programs(ran_ns);
            return;
        }
        self.rt_beside_management.charge_other(ran_ns);
        if self.group_waits(Group::Programs) {
            self.management_bandwidth.charge_management(ran_ns);
            self.owes = true;
        }
    }

    /// Whether the current thread must let another one go first; it is charged up to `now_ns`.
    fn would_switch(&self, now_ns: u64) -> bool {
        if self.waiting() == 0 {
            return false;
        }
        let Some(current) = &self.current else {
            return true;
        };
        let first = self.first_realtime();
        if let Some(priority) = current.realtime() {
            let management = self.group_waits(Group::Management);
            return self.fair_waits() && self.fair_goes_first(priority, management, now_ns)
                || first > Some(priority)
                || first == Some(priority)
                    && matches!(current.params.policy, Policy::Rr(_))
                    && current.quantum_ns == 0;
        }
        let group = current.params.group;
        let management = group == Group::Management || self.group_waits(Group::Management);
        if first.is_some_and(|first| !self.fair_goes_first(first, management, now_ns)) {
            return true;
        }
        let is_throttled = self.management_bandwidth.is_throttled();
        if group == Group::Management && is_throttled && self.group_waits(Group::Programs) {
            return true;
        }
        let outranked = self.is_outranked(group);
        let claimed = outranked || self.claimed;
        if !(outranked || self.group_waits(group)) {
            return false;
        }
        claimed && current.params.policy == Policy::Idle
            || now_ns.saturating_sub(self.since_ns) >= HYSTERESIS_NS
                && (claimed || current.point.until(current.deadline) == 0)
    }

    /// Whether a fair thread of this group, which has the CPU, must give way to one of a group that
    /// goes before it.
    fn is_outranked(&self, group: Group) -> bool {
        group == Group::Programs
            && self.group_waits(Group::Management)
            && !self.management_bandwidth.is_throttled()
    }

    /// Chooses who runs from now on, and makes it the current thread; `None` if nobody is runnable.
    pub fn pick(&mut self, now_ns: u64) -> Option<u32> {
        self.charge(now_ns);
        if self.current.is_some() && !self.would_switch(now_ns) {
            return self.current();
        }
        if let Some(mut current) = self.put_down(now_ns) {
            // Who is preempted by a higher priority stays first among its equals; who used up its
            // quantum does not.
            current.sequence = match current.params.policy {
                Policy::Fifo(_) => self.next_at_head(),
                Policy::Rr(_) if current.quantum_ns != 0 => self.next_at_head(),
                _ => self.next_at_tail(),
            };
            Self::renew(&mut current);
            self.insert(current);
        }
        self.choose(now_ns)
    }

    /// Picks the next thread like [`Self::pick`], but the current thread yields to all others that
    /// may run.
    pub fn pick_other(&mut self, now_ns: u64) -> Option<u32> {
        self.charge(now_ns);
        let mut yielding = self.put_down(now_ns);
        if let Some(current) = &mut yielding {
            current.sequence = self.next_at_tail();
            Self::renew(current);
            if current.realtime().is_some() {
                // Threads of lower priority may not go first.
                self.insert(yielding.take().expect("just looked at"));
            }
        }
        let chosen = self.choose(now_ns);
        match yielding {
            Some(entity) if chosen.is_some() => self.insert(entity),
            Some(entity) => {
                self.insert(entity);
                return self.choose(now_ns);
            }
            None => {}
        }
        chosen
    }

    /// A new slice or quantum, if the old one counts as used up.
    fn renew(entity: &mut Entity) {
        match entity.params.policy {
            Policy::Rr(_) if entity.quantum_ns == 0 => entity.quantum_ns = new_quantum(),
            Policy::Rr(_) | Policy::Fifo(_) => {}
            _ => entity.deadline = entity.point.after(SLICE_NS),
        }
    }

    /// Takes the CPU from the current thread.
    fn put_down(&mut self, now_ns: u64) -> Option<Entity> {
        self.current.take().map(|mut entity| {
            let Recent { usage, stamp_ns } = entity.recent;
            entity.recent = Recent {
                usage: usage.ran(now_ns.saturating_sub(stamp_ns)),
                stamp_ns: now_ns,
            };
            entity
        })
    }

    /// Gives the CPU to the waiting thread with the best claim.
    fn choose(&mut self, now_ns: u64) -> Option<u32> {
        let management = self.group_waits(Group::Management);
        let fair_first = self
            .first_realtime()
            .is_none_or(|priority| self.fair_goes_first(priority, management, now_ns));
        let groups = if self.management_bandwidth.is_throttled() {
            [Group::Programs, Group::Management]
        } else {
            [Group::Management, Group::Programs]
        };
        let mut next = if fair_first {
            self.pop_fair(groups).or_else(|| self.realtime.pop())?
        } else {
            self.realtime.pop().or_else(|| self.pop_fair(groups))?
        };
        self.waiting -= 1;
        let Recent { usage, stamp_ns } = next.recent;
        next.recent = Recent {
            usage: usage.rested(now_ns.saturating_sub(stamp_ns)),
            stamp_ns: now_ns,
        };
        let id = next.id;
        self.current = Some(next);
        self.since_ns = now_ns;
        self.charged_ns = now_ns;
        self.claimed = false;
        Some(id)
    }

    fn pop_fair(&mut self, groups: [Group; GROUPS]) -> Option<Entity> {
        groups
            .into_iter()
            .find_map(|group| self.fair_mut(group).pop())
    }

    /// The current thread sleeps or ends: it leaves the queue. [`Self::pick`] says who is next.
    pub fn block(&mut self, now_ns: u64) -> History {
        self.charge(now_ns);
        let Some(entity) = self.put_down(now_ns) else {
            return History::default();
        };
        if self.owes
            && let Some(group) = entity.fair_group()
        {
            self.forgive(group);
        }
        self.history(&entity)
    }

    /// A fair thread of this group does not want the CPU any more: if no other one waits, those
    /// that went before it owe nothing.
    fn forgive(&mut self, group: Group) {
        self.owes = self.fair_waits();
        if !self.owes {
            self.rt_bandwidth.forgive();
        }
        if !self.group_waits(group) {
            match group {
                Group::Management => self.rt_beside_management.forgive(),
                Group::Programs => self.management_bandwidth.forgive(),
            }
        }
    }

    /// Whether [`Self::hand_over`] to a woken thread of that policy may be put off until the
    /// current thread sleeps, or its hysteresis is over: both are fair threads of the same group,
    /// policy and nice level, and nobody else waits.
    #[inline]
    #[must_use]
    pub fn may_hand_over(&self, params: impl Into<Params>) -> bool {
        let params = params.into();
        params.policy.realtime().is_none()
            && self
                .current
                .as_ref()
                .is_some_and(|current| current.params == params)
            && self.waiting() == 0
    }

    /// The current thread sleeps, and a thread that was woken meanwhile gets the CPU:
    /// [`Self::wake`], [`Self::block`] and [`Self::pick`] in one step, for two threads that pass a
    /// turn to and fro. `None`, and no change, if nobody had the CPU or others wait by now;
    /// [`Self::may_hand_over`] was true when the thread was woken, and no policy has changed since.
    ///
    /// As the threads have the same weight, virtual time goes on as if there were one, and nobody
    /// is owed anything.
    #[inline(always)]
    pub fn hand_over(&mut self, id: u32, recent: Recent, now_ns: u64) -> Option<Recent> {
        if self.waiting() != 0 {
            return None;
        }
        let current = self.current.as_mut()?;
        let left = Recent {
            usage: current
                .recent
                .usage
                .ran(now_ns.saturating_sub(current.recent.stamp_ns)),
            stamp_ns: now_ns,
        };
        current.id = id;
        current.recent = Recent {
            usage: recent.usage.rested(now_ns.saturating_sub(recent.stamp_ns)),
            stamp_ns: now_ns,
        };
        self.since_ns = now_ns;
        self.claimed = false;
        Some(left)
    }

    /// Takes a waiting or the current thread out, for another queue or because it ended: O(n).
    pub fn remove(&mut self, id: u32, now_ns: u64) -> Option<History> {
        if self.current() == Some(id) {
            return Some(self.block(now_ns));
        }
        self.charge(now_ns);
        let entity = self.take(|waiting| waiting == id)?;
        Some(self.history(&entity))
    }

    /// Takes the thread out that would wait longest of those that `may_go` is true of, for a CPU
    /// that has nothing to do: O(n).
    pub fn migrate_out(
        &mut self,
        may_go: impl FnMut(u32) -> bool,
        now_ns: u64,
    ) -> Option<(u32, History)> {
        self.charge(now_ns);
        let entity = self.take(may_go)?;
        Some((entity.id, self.history(&entity)))
    }

    fn take(&mut self, mut wanted: impl FnMut(u32) -> bool) -> Option<Entity> {
        let entity = self
            .realtime
            .take(|entity| wanted(entity.id))
            .or_else(|| self.fair.iter_mut().find_map(|fair| fair.take(&mut wanted)))?;
        self.waiting -= 1;
        Some(entity)
    }

    fn history(&mut self, entity: &Entity) -> History {
        let lag_ns = self.part(entity);
        History {
            recent: entity.recent,
            lag_ns,
            queue: self.number,
            virtual_time: self.fair(entity.params.group).clock.now(),
            quantum_ns: entity.quantum_ns,
        }
    }

    /// Changes the policy, nice level or group of a runnable thread; what it is owed stays: O(n).
    /// True as for [`Self::wake`]; false too if the thread is not here.
    pub fn set_params(&mut self, id: u32, params: impl Into<Params>, now_ns: u64) -> bool {
        let params = params.into();
        self.charge(now_ns);
        let is_current = self.current() == Some(id);
        let found = if is_current {
            self.current.take()
        } else {
            self.take(|waiting| waiting == id)
        };
        let Some(mut entity) = found else {
            return false;
        };
        let lag_ns = self.part(&entity);
        entity.params = params;
        entity.point = Point::new(params.policy.weight());
        entity.quantum_ns = new_quantum();
        self.join(&mut entity, lag_ns, SLICE_NS);
        if is_current {
            self.current = Some(entity);
        } else {
            entity.sequence = self.next_at_tail();
            let claims = self.claims(&entity);
            self.insert(entity);
            self.claimed |= claims;
        }
        self.would_switch(now_ns)
    }

    /// Time at which [`Self::pick`] must be asked again although nobody was woken; `None` if nobody
    /// waits who could get the CPU. At least [`HYSTERESIS_NS`] after the current thread was chosen.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        if self.waiting() == 0 {
            return None;
        }
        let current = self.current.as_ref()?;
        let now_ns = self.charged_ns;
        if let Some(priority) = current.realtime() {
            let equal = matches!(current.params.policy, Policy::Rr(_))
                && self.first_realtime() == Some(priority);
            let quantum_end = equal.then(|| now_ns + u64::from(current.quantum_ns));
            return [quantum_end, self.fair_begins(priority, now_ns)]
                .into_iter()
                .flatten()
                .min();
        }
        let group = current.params.group;
        let hysteresis_end = self.since_ns + HYSTERESIS_NS;
        let slice_end = self.group_waits(group).then(|| {
            let slice_end = now_ns + current.point.until(current.deadline);
            if self.claimed {
                hysteresis_end
            } else {
                slice_end.max(hysteresis_end)
            }
        });
        let ends = self
            .realtime
            .first()
            .and_then(|_| self.realtime_returns(now_ns));
        [slice_end, ends, self.group_changes(group, now_ns)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time at which fair threads that wait go before the current, real-time thread.
    fn fair_begins(&self, priority: u8, now_ns: u64) -> Option<u64> {
        let before_all = self
            .fair_waits()
            .then(|| self.rt_bandwidth.throttling_begins(now_ns));
        let before_programs = (priority <= HIGHEST_OF_PROGRAMS
            && self.group_waits(Group::Management))
        .then(|| self.rt_beside_management.throttling_begins(now_ns));
        [before_all.flatten(), before_programs.flatten()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time at which a reason ends for which real-time threads wait for the current, fair one.
    fn realtime_returns(&self, now_ns: u64) -> Option<u64> {
        [
            self.rt_bandwidth.throttling_ends(now_ns),
            self.rt_beside_management.throttling_ends(now_ns),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time at which a fair thread of the other group goes before the current one of this group.
    fn group_changes(&self, group: Group, now_ns: u64) -> Option<u64> {
        let bandwidth = &self.management_bandwidth;
        match group {
            Group::Management if self.group_waits(Group::Programs) => {
                Some(bandwidth.throttling_begins(now_ns))
            }
            Group::Programs if self.group_waits(Group::Management) => Some(
                bandwidth
                    .throttling_ends(now_ns)
                    .max(self.since_ns + HYSTERESIS_NS),
            ),
            _ => None,
        }
    }
}
