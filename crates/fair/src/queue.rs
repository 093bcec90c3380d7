//! The run queue of one CPU.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use crate::decay::{TAU_NS, Usage};
use crate::heap::{Heap, Order};
use crate::policy::Policy;
use crate::rt_bandwidth::{RtBandwidth, RtLimits};
use crate::virt::{Clock, Point};
use crate::{HYSTERESIS_NS, SLICE_NS, rr_quantum_ns};

/// The slice a thread asks for that has hardly run lately.
const SHORTEST_REQUEST_NS: u64 = SLICE_NS / 16;

/// A new turn of a round-robin thread.
fn new_quantum() -> u32 {
    u32::try_from(rr_quantum_ns()).unwrap_or(u32::MAX)
}

/// Recent CPU use of a thread, which decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent {
    usage: Usage,
    /// Time at which `usage` was right.
    stamp_ns: u64,
}

impl Recent {
    /// The first words of a [`History`].
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; 2] {
        [self.usage.to_bits(), self.stamp_ns]
    }

    /// Restores the value of [`Self::to_words`].
    #[inline]
    #[must_use]
    pub fn from_words([usage, stamp_ns]: [u64; 2]) -> Self {
        Self {
            usage: Usage::from_bits(usage),
            stamp_ns,
        }
    }
}

/// State of a thread while no run queue has it: kept by the caller, worth the same on every CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    recent: Recent,
    /// Lag when the thread left a run queue, in nanoseconds; the queue, and its virtual time then.
    lag_ns: i64,
    queue: u32,
    virtual_time: u64,
    /// Unused part of the `SCHED_RR` quantum; 0 stands for all of it.
    quantum_ns: u32,
}

impl History {
    /// Lag when the thread left: the time it was owed, in nanoseconds; negative if it was ahead of
    /// its share.
    #[must_use]
    pub fn lag_ns(&self) -> i64 {
        self.lag_ns
    }

    /// Number of words of [`Self::to_words`].
    pub const WORDS: usize = 5;

    /// History of a thread that is owed nothing, as one is that hands its CPU over
    /// ([`RunQueue::hand_over`]).
    #[must_use]
    pub fn even(recent: Recent) -> Self {
        Self {
            recent,
            ..Self::default()
        }
    }

    /// Recent CPU use of the thread.
    #[must_use]
    pub fn recent(&self) -> Recent {
        self.recent
    }

    /// Encodes the history where only words can be kept: those of [`Recent`], the lag, and the
    /// rest, which does not matter as long as the lag is 0.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let small = u64::from(self.quantum_ns) << 32 | u64::from(self.queue);
        let [usage, stamp_ns] = self.recent.to_words();
        [
            usage,
            stamp_ns,
            self.lag_ns.cast_unsigned(),
            self.virtual_time,
            small,
        ]
    }

    /// Restores the value of [`Self::to_words`].
    #[must_use]
    pub fn from_words([usage, stamp_ns, lag_ns, virtual_time, small]: [u64; Self::WORDS]) -> Self {
        Self {
            recent: Recent::from_words([usage, stamp_ns]),
            lag_ns: lag_ns.cast_signed(),
            queue: small as u32,
            virtual_time,
            quantum_ns: (small >> 32) as u32,
        }
    }
}

impl Default for History {
    /// A new thread's. It counts as one that ran all the time: what is not known to sleep is not
    /// served first.
    fn default() -> Self {
        let recent = Recent {
            usage: Usage::FULL,
            stamp_ns: u64::MAX,
        };
        Self {
            recent,
            lag_ns: 0,
            queue: u32::MAX,
            virtual_time: 0,
            quantum_ns: 0,
        }
    }
}

/// A runnable thread.
#[derive(Debug)]
struct Entity {
    id: u32,
    policy: Policy,
    point: Point,
    deadline: u64,
    /// Order of arrival.
    sequence: i64,
    quantum_ns: u32,
    recent: Recent,
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
        (b.policy.realtime(), a.sequence) < (a.policy.realtime(), b.sequence)
    }
}

/// Order by virtual deadline; then by arrival.
#[derive(Debug)]
struct ByDeadline;
impl Order<Entity> for ByDeadline {
    fn before(a: &Entity, b: &Entity) -> bool {
        earlier((a.deadline, a.sequence), (b.deadline, b.sequence))
    }
}

/// Order by virtual time, which is when threads become eligible; then by arrival.
#[derive(Debug)]
struct ByStart;
impl Order<Entity> for ByStart {
    fn before(a: &Entity, b: &Entity) -> bool {
        earlier((a.point.at, a.sequence), (b.point.at, b.sequence))
    }
}

/// Memory for the waiting threads of a [`RunQueue`].
#[derive(Debug)]
pub struct Room {
    realtime: Vec<Entity>,
    eligible: Vec<Entity>,
    ahead: Vec<Entity>,
}

impl Room {
    /// Allocates room for `n` waiting threads.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self {
            realtime: Vec::with_capacity(n),
            eligible: Vec::with_capacity(n),
            ahead: Vec::with_capacity(n),
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
        Ok(Self {
            realtime: heap()?,
            eligible: heap()?,
            ahead: heap()?,
        })
    }
}

/// The runnable threads of one CPU: the current one, and those that wait in three heaps.
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
    /// Fair threads that are owed service.
    eligible: Heap<Entity, ByDeadline>,
    /// Fair threads that are ahead of their share.
    ahead: Heap<Entity, ByStart>,
    clock: Clock,
    rt_bandwidth: RtBandwidth,
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
            eligible: Heap::new(),
            ahead: Heap::new(),
            clock: Clock::new(virtual_time),
            rt_bandwidth: RtBandwidth::new(),
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
            self.eligible.move_into(&mut room.eligible);
            self.ahead.move_into(&mut room.ahead);
        }
    }

    /// Number of waiting threads that there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.realtime
            .capacity()
            .min(self.eligible.capacity())
            .min(self.ahead.capacity())
    }

    /// Number of threads that wait for the CPU; the current one is not counted.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.realtime.len() + self.eligible.len() + self.ahead.len()
    }

    /// Whether fair threads wait for the CPU.
    fn fair_waits(&self) -> bool {
        self.eligible.first().is_some() || self.ahead.first().is_some()
    }

    /// Sets how much of each period real-time threads may keep from fair ones that wait. A new
    /// queue has [`RtLimits::DEFAULT`].
    pub fn set_rt_limits(&mut self, limits: RtLimits) {
        self.rt_bandwidth.set_limits(limits);
    }

    /// Whether the first fair thread that comes to wait makes [`Self::next_deadline`] earlier: a
    /// real-time thread is current, whose time is limited and not yet counted. Who queues a fair
    /// thread for this CPU must then interrupt it, so that its timer is set.
    #[must_use]
    pub fn first_fair_waiter_needs_timer(&self) -> bool {
        let realtime = self
            .current
            .as_ref()
            .is_some_and(|current| current.policy.realtime().is_some());
        realtime && !self.fair_waits() && self.rt_bandwidth.is_limited()
    }

    /// Sum of the weights of the fair threads, the current one included.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.clock.weight()
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
    pub fn wake(&mut self, id: u32, policy: Policy, history: &History, now_ns: u64) -> bool {
        self.charge(now_ns);
        let slept_ns = now_ns.saturating_sub(history.recent.stamp_ns);
        let usage = history.recent.usage.rested(slept_ns);
        let weight = policy.weight();
        let gain_ns = if history.queue == self.number {
            self.clock.worth_ns(weight, history.virtual_time)
        } else {
            self.share_ns(slept_ns, weight)
        };
        // What it was owed is gone: it did not want it.
        let lag_ns = history.lag_ns.saturating_add_unsigned(gain_ns).min(0);
        let slice_ns = match policy {
            Policy::Batch(_) | Policy::Idle => SLICE_NS,
            _ => (SLICE_NS * usage.ns() / self.share_ns(TAU_NS, weight).max(1))
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
        self.enter(id, policy, &now, slice_ns, now_ns)
    }

    /// The part of `ns` that would be due to one more thread of this weight.
    fn share_ns(&self, ns: u64, weight: u32) -> u64 {
        let weight = u64::from(weight);
        ns.min(TAU_NS) * weight / (self.clock.weight() + weight)
    }

    /// Takes in a runnable thread that another queue gave up, with what it was owed there. True as
    /// for [`Self::wake`].
    pub fn migrate_in(&mut self, id: u32, policy: Policy, history: &History, now_ns: u64) -> bool {
        self.charge(now_ns);
        self.enter(id, policy, history, SLICE_NS, now_ns)
    }

    /// `now_ns` is accounted already.
    fn enter(
        &mut self,
        id: u32,
        policy: Policy,
        history: &History,
        slice_ns: u64,
        now_ns: u64,
    ) -> bool {
        self.begin_to_share(policy);
        let mut entity = Entity {
            id,
            policy,
            point: Point::new(policy.weight()),
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
        let first = self
            .realtime
            .first()
            .and_then(|first| first.policy.realtime());
        match &mut self.current {
            Some(current) if current.policy.realtime().is_none() && alone => Self::renew(current),
            Some(current)
                if current.policy.realtime() == policy.realtime() && first < policy.realtime() =>
            {
                Self::renew(current);
            }
            _ => {}
        }
    }

    /// Lets an entity into virtual time if it is a fair one.
    fn join(&mut self, entity: &mut Entity, lag_ns: i64, slice_ns: u64) {
        if entity.policy.realtime().is_none() {
            self.clock.join(
                &mut entity.point,
                lag_ns.clamp(-(SLICE_NS as i64), SLICE_NS as i64),
            );
            entity.deadline = entity.point.after(slice_ns);
        }
    }

    /// Takes an entity out of virtual time; what it is owed is returned.
    fn part(&mut self, entity: &Entity) -> i64 {
        if entity.policy.realtime().is_some() {
            return 0;
        }
        let lag_ns = self.clock.lag_ns(&entity.point);
        self.clock.leave(&entity.point);
        lag_ns
    }

    /// Whether a thread that comes in has a better claim to the CPU than the current, fair one.
    fn claims(&self, new: &Entity) -> bool {
        let Some(current) = &self.current else {
            return true;
        };
        match (current.policy, new.policy) {
            (Policy::Fifo(_) | Policy::Rr(_), _) | (_, Policy::Idle) => false,
            (_, Policy::Fifo(_) | Policy::Rr(_)) | (Policy::Idle, _) => true,
            (_, Policy::Batch(_)) => false,
            _ => {
                self.clock.eligible(new.point.at)
                    && earlier(
                        (new.deadline, new.sequence),
                        (current.deadline, current.sequence),
                    )
            }
        }
    }

    /// Puts a waiting entity in its heap.
    fn insert(&mut self, entity: Entity) {
        if entity.policy.realtime().is_some() {
            self.realtime.push(entity);
        } else if self.clock.eligible(entity.point.at) {
            self.eligible.push(entity);
        } else {
            self.ahead.push(entity);
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

    /// Accounts the time since the last call to the current thread.
    fn charge(&mut self, now_ns: u64) {
        let ran = now_ns.saturating_sub(self.charged_ns);
        if ran == 0 {
            return;
        }
        self.charged_ns = now_ns;
        let fair_waits = self.fair_waits();
        let Some(current) = &mut self.current else {
            return;
        };
        if let Policy::Rr(_) = current.policy {
            current.quantum_ns = current
                .quantum_ns
                .saturating_sub(u32::try_from(ran).unwrap_or(u32::MAX));
        }
        if current.policy.realtime().is_none() {
            self.clock.charge(&mut current.point, ran);
            self.rt_bandwidth.charge_fair(ran);
        } else if fair_waits {
            self.rt_bandwidth.charge_realtime(ran, now_ns);
        }
    }

    /// Whether the current thread must let another one go first; it is charged up to `now_ns`.
    fn would_switch(&self, now_ns: u64) -> bool {
        let Some(current) = &self.current else {
            return self.waiting() != 0;
        };
        let first = self
            .realtime
            .first()
            .and_then(|first| first.policy.realtime());
        let is_throttled = self.rt_bandwidth.is_throttled(now_ns);
        match current.policy {
            Policy::Fifo(_) | Policy::Rr(_) if is_throttled && self.fair_waits() => true,
            Policy::Fifo(priority) => first > Some(priority),
            Policy::Rr(priority) => {
                first > Some(priority) || (first == Some(priority) && current.quantum_ns == 0)
            }
            _ if first.is_some() && !is_throttled => true,
            _ if !self.fair_waits() => false,
            Policy::Idle if self.claimed => true,
            _ => {
                now_ns.saturating_sub(self.since_ns) >= HYSTERESIS_NS
                    && (self.claimed || current.point.until(current.deadline) == 0)
            }
        }
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
            current.sequence = match current.policy {
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
            if current.policy.realtime().is_some() {
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
        match entity.policy {
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
        while self
            .ahead
            .first()
            .is_some_and(|first| self.clock.eligible(first.point.at))
        {
            if let Some(entity) = self.ahead.pop() {
                self.eligible.push(entity);
            }
        }
        // A thread that yields is not in the heaps, and may be the only one that is not ahead.
        let mut next = if self.rt_bandwidth.is_throttled(now_ns) {
            self.eligible
                .pop()
                .or_else(|| self.ahead.pop())
                .or_else(|| self.realtime.pop())?
        } else {
            self.realtime
                .pop()
                .or_else(|| self.eligible.pop())
                .or_else(|| self.ahead.pop())?
        };
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

    /// The current thread sleeps or ends: it leaves the queue. [`Self::pick`] says who is next.
    pub fn block(&mut self, now_ns: u64) -> History {
        self.charge(now_ns);
        self.put_down(now_ns)
            .map_or_else(History::default, |entity| self.history(&entity))
    }

    /// Whether [`Self::hand_over`] to a woken thread of that policy may be put off until the
    /// current thread sleeps, or its hysteresis is over: both are fair threads of the same policy
    /// and nice level, and nobody else waits.
    #[inline]
    #[must_use]
    pub fn may_hand_over(&self, policy: Policy) -> bool {
        policy.realtime().is_none()
            && self
                .current
                .as_ref()
                .is_some_and(|current| current.policy == policy)
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
        self.realtime
            .take(|entity| wanted(entity.id))
            .or_else(|| self.eligible.take(|entity| wanted(entity.id)))
            .or_else(|| self.ahead.take(|entity| wanted(entity.id)))
    }

    fn history(&mut self, entity: &Entity) -> History {
        let lag_ns = self.part(entity);
        History {
            recent: entity.recent,
            lag_ns,
            queue: self.number,
            virtual_time: self.clock.now(),
            quantum_ns: entity.quantum_ns,
        }
    }

    /// Changes the policy or nice level of a runnable thread; what it is owed stays: O(n). True as
    /// for [`Self::wake`]; false too if the thread is not here.
    pub fn set_policy(&mut self, id: u32, policy: Policy, now_ns: u64) -> bool {
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
        entity.policy = policy;
        entity.point = Point::new(policy.weight());
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
        let current = self.current.as_ref()?;
        let now_ns = self.charged_ns;
        let fair_begins = || {
            self.fair_waits()
                .then(|| self.rt_bandwidth.throttling_begins(now_ns))
                .flatten()
        };
        match current.policy {
            Policy::Fifo(_) => fair_begins(),
            Policy::Rr(priority) => {
                let equal = self
                    .realtime
                    .first()
                    .is_some_and(|first| first.policy.realtime() == Some(priority));
                let quantum_end = equal.then(|| now_ns + u64::from(current.quantum_ns));
                quantum_end.into_iter().chain(fair_begins()).min()
            }
            _ => {
                let fair_ends = self
                    .realtime
                    .first()
                    .and_then(|_| self.rt_bandwidth.throttling_ends(now_ns));
                let slice_end = self.fair_waits().then(|| {
                    let slice_end = now_ns + current.point.until(current.deadline);
                    let hysteresis_end = self.since_ns + HYSTERESIS_NS;
                    if self.claimed {
                        hysteresis_end
                    } else {
                        slice_end.max(hysteresis_end)
                    }
                });
                slice_end.into_iter().chain(fair_ends).min()
            }
        }
    }
}
