//! Properties of the run queue, on a simulated CPU.

extern crate std;

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::{
    Group, HYSTERESIS_NS, History, Params, Policy, RR_QUANTUM_NS, Room, RtLimits, RunQueue,
    SLICE_NS,
};

mod groups;
mod throttling;

const SECOND: u64 = 1_000_000_000;
const PERCENT: u64 = SECOND / 100;

const RT: RtLimits = RtLimits::DEFAULT;
const UNLIMITED: RtLimits = RtLimits {
    runtime_ns: 1,
    period_ns: 1,
};

fn realtime_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        (1u8..=99).prop_map(Policy::Fifo),
        (1u8..=99).prop_map(Policy::Rr)
    ]
}

/// Pattern of a simulated thread: runs for so long, sleeps for so long. A hog never sleeps.
#[derive(Clone, Copy, Debug)]
struct Habit {
    policy: Policy,
    burst_ns: u64,
    sleep_ns: u64,
}

impl Habit {
    fn hog(policy: Policy) -> Self {
        Self {
            policy,
            burst_ns: u64::MAX,
            sleep_ns: 0,
        }
    }

    fn is_hog(&self) -> bool {
        self.burst_ns == u64::MAX
    }
}

struct Thread {
    habit: Habit,
    left_ns: u64,
    history: History,
    ran_ns: u64,
    /// Since when it has waited for the CPU.
    waits_from: Option<u64>,
    longest_wait_ns: u64,
}

/// One CPU under the run queue, in virtual time. Every choice is recorded.
struct Machine {
    queue: RunQueue,
    now: u64,
    threads: Vec<Thread>,
    /// The first so many threads are management.
    managers: u32,
    /// Sleeping threads by the time they wake.
    alarms: BTreeMap<(u64, u32), ()>,
    since: u64,
    /// Lengths of the runs that ended against the thread's will, with the policy of who ran.
    cut_short: Vec<(Policy, u64)>,
    choices: Vec<(u64, Option<u32>)>,
}

impl Machine {
    fn new(queue: RunQueue, now: u64, habits: &[Habit]) -> Self {
        let threads = habits
            .iter()
            .map(|&habit| Thread {
                habit,
                left_ns: habit.burst_ns,
                history: History::default(),
                ran_ns: 0,
                waits_from: None,
                longest_wait_ns: 0,
            })
            .collect();
        let mut machine = Self {
            queue,
            now,
            threads,
            managers: 0,
            alarms: (0..habits.len() as u32).map(|id| ((now, id), ())).collect(),
            since: now,
            cut_short: vec![],
            choices: vec![],
        };
        machine.queue.enlarge(&mut Room::new(habits.len()));
        machine
    }

    fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.step(end);
        }
    }

    /// Goes on to the next thing that happens.
    fn step(&mut self, end: u64) {
        let current = self.queue.current();
        let burst_end = current.map_or(u64::MAX, |id| {
            self.now.saturating_add(self.threads[id as usize].left_ns)
        });
        let alarm = self
            .alarms
            .first_key_value()
            .map_or(u64::MAX, |(&(at, _), ())| at);
        let timer = self.queue.next_deadline().unwrap_or(u64::MAX);
        assert!(
            current.is_none() || timer > self.now,
            "the timer is in the past: {timer} at {}",
            self.now
        );
        let next = end.min(burst_end).min(alarm).min(timer).max(self.now);
        if let Some(id) = current {
            let thread = &mut self.threads[id as usize];
            thread.ran_ns += next - self.now;
            if !thread.habit.is_hog() {
                thread.left_ns -= next - self.now;
            }
        }
        self.now = next;
        let mut before = current;
        if let Some(id) = current.filter(|&id| self.threads[id as usize].left_ns == 0) {
            let history = self.queue.block(next);
            let thread = &mut self.threads[id as usize];
            thread.history = history;
            thread.left_ns = thread.habit.burst_ns;
            self.alarms.insert((next + thread.habit.sleep_ns, id), ());
            before = None;
        }
        while let Some(entry) = self
            .alarms
            .first_entry()
            .filter(|entry| entry.key().0 <= next)
        {
            let ((_, id), ()) = entry.remove_entry();
            let thread = &mut self.threads[id as usize];
            thread.waits_from = Some(next);
            let params = Params {
                policy: thread.habit.policy,
                group: if id < self.managers {
                    Group::Management
                } else {
                    Group::Programs
                },
            };
            self.queue.wake(id, params, &thread.history, next);
        }
        let chosen = self.queue.pick(next);
        if chosen != current || before.is_none() {
            self.choices.push((next, chosen));
        }
        if chosen != before {
            if let Some(id) = before {
                let thread = &mut self.threads[id as usize];
                thread.waits_from = Some(next);
                self.cut_short
                    .push((thread.habit.policy, next - self.since));
            }
            self.since = next;
            if let Some(id) = chosen {
                let thread = &mut self.threads[id as usize];
                let waited = thread.waits_from.take().map_or(0, |from| next - from);
                thread.longest_wait_ns = thread.longest_wait_ns.max(waited);
            }
        }
    }

    /// Run time of each thread in the next `ns`.
    fn measure(&mut self, ns: u64) -> Vec<u64> {
        let before: Vec<u64> = self.threads.iter().map(|thread| thread.ran_ns).collect();
        self.run(ns);
        self.threads
            .iter()
            .zip(before)
            .map(|(thread, before)| thread.ran_ns - before)
            .collect()
    }

    fn weight(&self, wanted: impl Fn(&Habit) -> bool) -> u64 {
        self.threads
            .iter()
            .filter(|t| wanted(&t.habit))
            .map(|t| u64::from(t.habit.policy.weight()))
            .sum()
    }
}

fn fair_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        6 => (-20i8..20).prop_map(Policy::Other),
        2 => Just(Policy::Other(0)),
        2 => (-20i8..20).prop_map(Policy::Batch),
        1 => Just(Policy::Idle),
    ]
}

fn hog() -> impl Strategy<Value = Habit> {
    fair_policy().prop_map(Habit::hog)
}

fn sleeper() -> impl Strategy<Value = Habit> {
    (fair_policy(), 1_000u64..30_000_000, 1_000u64..300_000_000).prop_map(
        |(policy, burst_ns, sleep_ns)| Habit {
            policy,
            burst_ns,
            sleep_ns,
        },
    )
}

fn crowd() -> impl Strategy<Value = Vec<Habit>> {
    (
        prop::collection::vec(hog(), 1..60),
        prop::collection::vec(sleeper(), 0..30),
    )
        .prop_map(|(mut hogs, sleepers)| {
            hogs.extend(sleepers);
            hogs
        })
}

/// Checks that in one second, after `warm_up`, each hog has what its weight gives it of all that
/// hogs have, up to `allowed` nanoseconds.
fn share_by_weight(habits: &[Habit], warm_up: u64, allowed: u64) -> Result<(), TestCaseError> {
    let mut machine = Machine::new(RunQueue::new(0), 0, habits);
    machine.run(warm_up);
    let ran = machine.measure(SECOND);
    let weight = machine.weight(Habit::is_hog);
    let hogs: Vec<_> = (0..habits.len()).filter(|&i| habits[i].is_hog()).collect();
    let to_share: u64 = hogs.iter().map(|&i| ran[i]).sum();
    for i in hogs {
        let due = (u128::from(to_share) * u128::from(habits[i].policy.weight())
            / u128::from(weight)) as u64;
        prop_assert!(
            ran[i].abs_diff(due) <= allowed,
            "{:?} ran {} of {}",
            habits[i],
            ran[i],
            due
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Fairness within 1% over one second, from any moment on, among threads that always want the
    /// CPU.
    #[test]
    fn hogs_share_by_weight(habits in prop::collection::vec(hog(), 1..60), warm_up in 0..2 * SECOND) {
        share_by_weight(&habits, warm_up, PERCENT)?;
    }

    /// Beside threads that sleep, too, up to what these are owed or owe while they sleep, which is
    /// at most a slice of each: a hog with nearly all of the weight has nearly all of that.
    #[test]
    fn hogs_share_by_weight_beside_sleepers(habits in crowd(), warm_up in 0..2 * SECOND) {
        let sleepers = habits.iter().filter(|habit| !habit.is_hog()).count() as u64;
        share_by_weight(&habits, warm_up, PERCENT + sleepers * SLICE_NS)?;
    }

    /// Sleepers cannot take from a hog what its weight gives it.
    #[test]
    fn a_hog_gets_its_share_whatever_others_do(habits in crowd(), warm_up in 0..2 * SECOND) {
        let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
        machine.run(warm_up);
        let ran = machine.measure(SECOND);
        let weight = machine.weight(|_| true);
        for i in (0..habits.len()).filter(|&i| habits[i].is_hog()) {
            let due = SECOND * u64::from(habits[i].policy.weight()) / weight;
            prop_assert!(ran[i] + PERCENT >= due, "{:?} ran {} of {}", habits[i], ran[i], due);
        }
    }

    #[test]
    fn no_slice_is_shorter_than_the_hysteresis(habits in crowd()) {
        let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
        machine.run(SECOND);
        for &(policy, ran) in &machine.cut_short {
            prop_assert!(ran >= HYSTERESIS_NS || policy == Policy::Idle, "{policy:?} ran {ran}");
        }
    }

    #[test]
    fn the_cpu_is_never_idle_while_somebody_waits(habits in crowd()) {
        let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
        let ran = machine.measure(SECOND);
        prop_assert_eq!(ran.iter().sum::<u64>(), SECOND);
    }

    /// Nobody waits longer than it takes to serve one slice to everybody at its own weight, and one
    /// to each other thread.
    #[test]
    fn nobody_starves(habits in prop::collection::vec(hog(), 2..30)) {
        let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
        let weight = machine.weight(|_| true);
        machine.run(60 * SECOND);
        for thread in &machine.threads {
            let turn = SLICE_NS * weight / u64::from(thread.habit.policy.weight());
            let bound = 2 * turn + habits.len() as u64 * SLICE_NS;
            let longest = thread.longest_wait_ns.max(thread.waits_from.map_or(0, |from| machine.now - from));
            prop_assert!(longest <= bound, "{:?} waited {longest} of {bound}", thread.habit);
        }
    }

    /// Decades of virtual time, the wrap-around of the counter, and years of clock change nothing.
    #[test]
    fn nothing_overflows(habits in crowd(), before_wrap in 0u64..1 << 50, years in 0u64..100) {
        let start = years * 31_557_600 * SECOND;
        let mut young = Machine::new(RunQueue::new(0), start, &habits);
        let mut old = Machine::new(RunQueue::starting_at(0, before_wrap.wrapping_neg()), start, &habits);
        young.run(SECOND);
        old.run(SECOND);
        prop_assert_eq!(young.choices, old.choices);
    }

    /// Moving between two CPUs loses no thread and no weight.
    #[test]
    fn migration_loses_nobody(policies in prop::collection::vec(fair_policy(), 3..12), moves in prop::collection::vec(any::<u32>(), 1..400)) {
        let mut queues = [RunQueue::new(0), RunQueue::new(1)];
        let mut now = 0;
        for queue in &mut queues {
            queue.enlarge(&mut Room::new(policies.len()));
        }
        for (id, &policy) in policies.iter().enumerate() {
            queues[0].wake(id as u32, policy, &History::default(), now);
        }
        for step in moves {
            now += u64::from(step % 7_000_000);
            let from = (step & 1) as usize;
            queues[0].pick(now);
            queues[1].pick(now);
            if let Some((id, history)) = queues[from].migrate_out(|_| true, now) {
                queues[1 - from].migrate_in(id, policies[id as usize], &history, now);
            }
            let runnable: usize = queues.iter().map(|q| q.waiting() + usize::from(q.current().is_some())).sum();
            prop_assert_eq!(runnable, policies.len());
            let weight: u64 = queues.iter().map(RunQueue::weight).sum();
            prop_assert_eq!(weight, policies.iter().map(|p| u64::from(p.weight())).sum::<u64>());
        }
    }

    /// No sequence of operations loses a thread, and nothing is allocated within the room reserved.
    #[test]
    fn no_thread_is_lost(steps in prop::collection::vec((0u8..7, 0u32..16, fair_or_not(), 0u64..9_000_000), 1..400)) {
        let mut queue = RunQueue::new(0);
        queue.enlarge(&mut Room::new(16));
        let room = queue.capacity();
        let mut inside = std::collections::BTreeSet::new();
        let mut now = 0;
        for (what, id, policy, later) in steps {
            now += later;
            match what {
                0 | 1 if inside.insert(id) => {
                    let before = queue.current();
                    let switches = queue.wake(id, policy, &History::default(), now);
                    let after = queue.pick(now);
                    prop_assert!(switches || after == before);
                }
                2 => {
                    queue.current().map(|id| inside.remove(&id));
                    queue.block(now);
                }
                3 => prop_assert_eq!(queue.remove(id, now).is_some(), inside.remove(&id)),
                4 => {
                    queue.set_params(id, policy, now);
                }
                5 => {
                    queue.pick_other(now);
                }
                _ => {}
            }
            prop_assert_eq!(queue.pick(now).is_some(), !inside.is_empty());
            prop_assert_eq!(queue.waiting() + usize::from(queue.current().is_some()), inside.len());
            prop_assert!(queue.next_deadline().is_none_or(|at| at > now));
        }
        prop_assert_eq!(queue.capacity(), room);
    }
}

fn fair_or_not() -> impl Strategy<Value = Policy> {
    prop_oneof![1 => fair_policy(), 2 => realtime_policy()]
}

#[test]
fn a_thread_that_mostly_sleeps_is_served_at_once() {
    let mut habits = vec![Habit::hog(Policy::default()); 8];
    habits.push(Habit {
        policy: Policy::default(),
        burst_ns: 100_000,
        sleep_ns: 20_000_000,
    });
    let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
    machine.run(SECOND);
    machine.threads[8].longest_wait_ns = 0;
    machine.run(5 * SECOND);
    assert!(machine.threads[8].longest_wait_ns <= HYSTERESIS_NS);
}

#[test]
fn a_batch_thread_waits_for_the_end_of_the_slice() {
    let mut queue = RunQueue::new(0);
    queue.wake(1, Policy::default(), &History::default(), 0);
    queue.pick(0);
    let now = 10 * SECOND;
    assert!(!queue.wake(2, Policy::Batch(0), &History::default(), now));
    assert_eq!(queue.next_deadline(), Some(now + SLICE_NS));
    // One that has rested claims the CPU.
    let mut elsewhere = RunQueue::new(1);
    elsewhere.wake(4, Policy::default(), &History::default(), 0);
    elsewhere.pick(0);
    let rested = elsewhere.block(0);
    assert!(!queue.wake(3, Policy::Batch(0), &rested, now));
    assert!(queue.wake(4, Policy::Other(0), &rested, now));
    assert_eq!(queue.pick(now), Some(4));
}

#[test]
fn an_idle_thread_gives_way_at_once() {
    let mut queue = RunQueue::new(0);
    queue.wake(1, Policy::Idle, &History::default(), 0);
    queue.pick(0);
    assert!(queue.wake(2, Policy::Batch(19), &History::default(), 10));
    assert_eq!(queue.pick(10), Some(2));
}

#[test]
fn one_thread_wants_no_timer() {
    let mut queue = RunQueue::new(0);
    assert_eq!(queue.next_deadline(), None);
    for (id, policy) in [
        Policy::default(),
        Policy::Idle,
        Policy::Fifo(1),
        Policy::Rr(1),
    ]
    .into_iter()
    .enumerate()
    {
        queue.wake(id as u32, policy, &History::default(), 0);
        assert_eq!(queue.pick(0), Some(id as u32));
        assert_eq!(queue.next_deadline(), None);
        queue.block(0);
    }
}

#[test]
fn what_a_thread_is_owed_moves_with_it() {
    let mut queues = [RunQueue::new(0), RunQueue::starting_at(1, 1 << 60)];
    for id in 0..6 {
        queues[(id / 3) as usize].wake(id, Policy::Other(id as i8), &History::default(), 0);
    }
    for queue in &mut queues {
        queue.pick(0);
    }
    // The first thread runs a slice, which the others are owed then.
    let (id, left) = queues[0].migrate_out(|_| true, SLICE_NS).unwrap();
    queues[1].migrate_in(id, Policy::Other(id as i8), &left, SLICE_NS);
    let arrived = queues[1].remove(id, SLICE_NS).unwrap();
    assert!(left.lag_ns() > 500_000);
    assert!(
        left.lag_ns().abs_diff(arrived.lag_ns()) < 200,
        "{left:?} {arrived:?}"
    );
}

#[test]
fn equal_hogs_take_turns_by_slices() {
    let mut machine = Machine::new(RunQueue::new(0), 0, &[Habit::hog(Policy::default()); 2]);
    machine.run(SECOND);
    assert!(machine.cut_short.iter().all(|&(_, ran)| ran == SLICE_NS));
    assert_eq!(machine.cut_short.len() as u64, SECOND / SLICE_NS);
}

#[test]
fn a_priority_runs_before_all_below_and_in_order_of_arrival() {
    let mut queue = RunQueue::new(0);
    for (id, policy) in [
        Policy::Other(-20),
        Policy::Fifo(5),
        Policy::Fifo(5),
        Policy::Fifo(9),
    ]
    .into_iter()
    .enumerate()
    {
        queue.wake(id as u32, policy, &History::default(), 0);
    }
    assert_eq!(queue.pick(0), Some(3));
    queue.block(1);
    assert_eq!(queue.pick(1), Some(1));
    assert_eq!(
        queue.next_deadline(),
        Some(RT.runtime_ns),
        "a fair one waits"
    );
    // Preempted by a higher priority, it stays before its equal.
    assert!(queue.wake(4, Policy::Rr(7), &History::default(), 2));
    assert_eq!(queue.pick(2), Some(4));
    queue.block(3);
    assert_eq!(queue.pick(3), Some(1));
    // Yielding, it goes behind it, and a fair thread does not run in between.
    assert_eq!(queue.pick_other(4), Some(2));
    queue.block(5);
    assert_eq!(queue.pick(5), Some(1));
    queue.block(6);
    assert_eq!(queue.pick(6), Some(0));
}

#[test]
fn round_robin_takes_turns_by_quanta() {
    let mut queue = RunQueue::new(0);
    queue.wake(1, Policy::Rr(5), &History::default(), 0);
    queue.pick(0);
    let now = 3 * RR_QUANTUM_NS;
    assert!(!queue.wake(2, Policy::Rr(5), &History::default(), now));
    assert_eq!(queue.next_deadline(), Some(now + RR_QUANTUM_NS));
    assert_eq!(queue.pick(now + RR_QUANTUM_NS - 1), Some(1));
    assert_eq!(queue.pick(now + RR_QUANTUM_NS), Some(2));
    assert_eq!(queue.pick(now + 2 * RR_QUANTUM_NS), Some(1));
}

#[test]
fn a_thread_that_yields_lets_all_others_go_first() {
    let mut queue = RunQueue::new(0);
    for id in 0..4 {
        queue.wake(id, Policy::default(), &History::default(), 0);
    }
    let order: Vec<_> = core::iter::once(queue.pick(0))
        .chain((1..8).map(|i| queue.pick_other(i * 1000)))
        .flatten()
        .collect();
    assert_eq!(order, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn a_new_weight_holds_from_then_on() {
    let mut machine = Machine::new(RunQueue::new(0), 0, &[Habit::hog(Policy::default()); 2]);
    machine.run(SECOND);
    machine.queue.set_params(0, Policy::Other(19), machine.now);
    machine.threads[0].habit.policy = Policy::Other(19);
    let ran = machine.measure(SECOND);
    assert!(ran[0].abs_diff(SECOND * 15 / 1039) < PERCENT, "{ran:?}");
}

#[test]
fn a_light_thread_takes_nothing_from_a_heavy_one() {
    // Choosing by least virtual time alone would give the hundred light threads a slice each, one
    // after the other.
    let mut habits = vec![Habit::hog(Policy::Other(19)); 100];
    habits.push(Habit::hog(Policy::Other(-20)));
    let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
    let ran = machine.measure(SECOND / 5);
    assert!(ran[100] >= SECOND / 5 * 96 / 100, "{}", ran[100]);
}

/// Two threads pass a turn to and fro: what is remembered of them is the same whether it is done in
/// one step or in three, and what comes after is fair.
#[test]
fn handing_over_is_wake_block_and_pick() {
    let mut queues = [RunQueue::new(0), RunQueue::new(0)];
    let mut histories = [[History::default(); 2]; 2];
    for queue in &mut queues {
        queue.enlarge(&mut Room::new(4));
        queue.wake(0, Policy::default(), &History::default(), 1000);
        assert_eq!(queue.pick(1000), Some(0));
    }
    let (mut now, mut running) = (1000, 0);
    for turn in 0..2000 {
        now += 300 + turn * 7 % 1_000_000;
        let next = 1 - running;
        let [short, long] = &mut queues;
        assert!(short.may_hand_over(Policy::default()));
        let left = short
            .hand_over(next, histories[0][next as usize].recent(), now)
            .unwrap();
        histories[0][running as usize] = History::even(left);
        long.wake(next, Policy::default(), &histories[1][next as usize], now);
        histories[1][running as usize] = long.block(now);
        assert_eq!((short.current(), long.pick(now)), (Some(next), Some(next)));
        let remembered = |way: usize| [0, 1].map(|n| histories[way][n].recent());
        assert_eq!(remembered(0), remembered(1));
        assert_eq!(short.next_deadline(), None);
        running = next;
    }
    let short = &mut queues[0];
    assert!(!short.may_hand_over(Policy::Fifo(1)));
    assert!(!short.may_hand_over(Policy::Other(1)));
    short.wake(7, Policy::default(), &History::default(), now);
    assert!(
        short
            .hand_over(1 - running, History::default().recent(), now)
            .is_none()
    );
    let mut ran = [0u64; 2];
    for _ in 0..200 {
        let deadline = short.next_deadline().unwrap();
        ran[usize::from(short.current() == Some(7))] += deadline - now;
        now = deadline;
        short.pick(now);
    }
    assert!(ran[0].abs_diff(ran[1]) <= 2 * SLICE_NS, "{ran:?}");
}

/// A history survives [`History::to_words`] and [`History::from_words`], with negative lags too.
#[test]
fn a_history_survives_as_words() {
    let words = [1, u64::MAX - 1, 3u64.wrapping_neg(), 5, 7 << 32 | 9];
    let history = History::from_words(words);
    assert_eq!((history.to_words(), history.lag_ns()), (words, -3));
    assert_eq!(History::from_words(history.to_words()), history);
    assert_eq!(history.recent().to_words(), [1, u64::MAX - 1]);
    let even = History::even(history.recent());
    assert_eq!((even.recent(), even.lag_ns()), (history.recent(), 0));
}

#[test]
fn room_is_taken_if_it_is_more() {
    let mut queue = RunQueue::new(0);
    for id in 0..3 {
        queue.wake(id, Policy::Fifo(1), &History::default(), 0);
    }
    let mut room = Room::new(100);
    queue.enlarge(&mut room);
    assert_eq!((queue.capacity(), queue.waiting()), (100, 3));
    // Neither the old one, which is there now, nor one as large is taken.
    for mut room in [room, Room::new(100)] {
        queue.enlarge(&mut room);
        assert_eq!(queue.capacity(), 100);
    }
    assert_eq!(
        (queue.pick(0), queue.pick_other(1), queue.pick_other(2)),
        (Some(0), Some(1), Some(2))
    );
}

/// A higher priority interrupts a quantum, and what is left of it comes after; moving to another
/// CPU keeps it.
#[test]
fn what_is_left_of_a_quantum_is_kept() {
    let mut queue = RunQueue::new(0);
    let (part, rest) = (RR_QUANTUM_NS / 4, RR_QUANTUM_NS * 3 / 4);
    queue.wake(1, Policy::Rr(5), &History::default(), 0);
    queue.wake(2, Policy::Rr(5), &History::default(), 0);
    assert_eq!(queue.pick(0), Some(1));
    assert!(queue.wake(3, Policy::Fifo(6), &History::default(), part));
    assert_eq!(queue.pick(part), Some(3));
    queue.block(2 * part);
    assert_eq!(
        (queue.pick(2 * part), queue.next_deadline()),
        (Some(1), Some(2 * part + rest))
    );
    // A quantum that is used up ends with the thread behind its equals; another begins then.
    assert_eq!(
        (queue.pick(2 * part + rest - 1), queue.pick(2 * part + rest)),
        (Some(1), Some(2))
    );
    assert_eq!(queue.next_deadline(), Some(2 * part + rest + RR_QUANTUM_NS));
    let now = 2 * part + rest + part;
    let history = queue.remove(2, now).unwrap();
    assert_eq!((queue.pick(now), queue.next_deadline()), (Some(1), None));
    let mut other = RunQueue::new(1);
    other.migrate_in(2, Policy::Rr(5), &history, now);
    other.pick(now);
    assert!(
        !other.wake(4, Policy::Rr(4), &History::default(), now),
        "a lower priority waits"
    );
    assert_eq!(other.next_deadline(), None);
    assert!(!other.migrate_in(5, Policy::Rr(5), &History::default(), now));
    // It shares from now on, so that its quantum is a new one.
    assert!(
        other
            .next_deadline()
            .is_some_and(|at| at > now && at <= now + RR_QUANTUM_NS)
    );
}

#[test]
fn fifo_threads_give_way_to_higher_priorities_only() {
    let mut queue = RunQueue::new(0);
    queue.set_rt_limits(UNLIMITED);
    queue.wake(1, Policy::Fifo(5), &History::default(), 0);
    assert_eq!(queue.pick(0), Some(1));
    let now = 10 * SECOND;
    assert!(!queue.wake(2, Policy::Fifo(5), &History::default(), now));
    assert!(!queue.wake(3, Policy::Rr(4), &History::default(), now));
    assert!(!queue.wake(4, Policy::Other(-20), &History::default(), now));
    assert_eq!(
        (queue.pick(2 * now), queue.weight()),
        (Some(1), u64::from(Policy::Other(-20).weight()))
    );
    assert!(queue.wake(5, Policy::Fifo(6), &History::default(), 2 * now));
    // A fair thread gives way to any of them, at once.
    let mut fair = RunQueue::new(0);
    fair.wake(1, Policy::Other(-20), &History::default(), 0);
    fair.pick(0);
    assert!(fair.wake(2, Policy::Rr(1), &History::default(), 1));
    assert_eq!(fair.pick(1), Some(2));
}

#[test]
fn a_policy_that_is_changed_holds_at_once() {
    let mut queue = RunQueue::new(0);
    for id in 0..3 {
        queue.wake(id, Policy::default(), &History::default(), 0);
    }
    assert_eq!(queue.pick(0), Some(0));
    let weight = u64::from(Policy::default().weight());
    assert!(
        !queue.set_params(7, Policy::Fifo(1), 1),
        "there is no such thread"
    );
    assert_eq!((queue.weight(), queue.waiting()), (3 * weight, 2));
    // One that waits becomes more than the current one.
    assert!(queue.set_params(2, Policy::Fifo(3), 1));
    assert_eq!(
        (queue.weight(), queue.waiting(), queue.pick(1)),
        (2 * weight, 2, Some(2))
    );
    // The current one becomes less than one that waits, and then again more.
    assert!(!queue.set_params(1, Policy::Fifo(2), 2));
    assert!(queue.set_params(2, Policy::Fifo(1), 2));
    assert!(!queue.set_params(2, Policy::Rr(9), 2));
    assert_eq!(queue.pick(2), Some(2));
    assert!(queue.set_params(2, Policy::Idle, 2));
    assert_eq!(
        (queue.pick(2), queue.weight()),
        (Some(1), weight + u64::from(Policy::Idle.weight()))
    );
}

#[test]
fn only_who_may_go_is_given_away() {
    let mut queue = RunQueue::new(0);
    let policies = [
        Policy::default(),
        Policy::default(),
        Policy::Fifo(1),
        Policy::Idle,
    ];
    for (id, policy) in policies.into_iter().enumerate() {
        queue.wake(id as u32, policy, &History::default(), 0);
    }
    assert_eq!(queue.pick(0), Some(2));
    assert!(
        queue.migrate_out(|_| false, 1).is_none() && queue.migrate_out(|id| id == 2, 1).is_none()
    );
    assert_eq!(
        queue.migrate_out(|id| id == 3, 1).map(|(id, _)| id),
        Some(3)
    );
    assert_eq!(
        (
            queue.waiting(),
            queue.remove(9, 1).is_none(),
            queue.remove(1, 1).is_some()
        ),
        (2, true, true)
    );
    assert_eq!(
        (
            queue.waiting(),
            queue.remove(2, 2).is_some(),
            queue.current(),
            queue.pick(2)
        ),
        (1, true, None, Some(0))
    );
    assert_eq!(queue.weight(), u64::from(Policy::default().weight()));
}

#[test]
fn handing_over_needs_a_thread_that_has_the_cpu_and_nobody_else() {
    let mut queue = RunQueue::new(0);
    let recent = History::default().recent();
    assert!(!queue.may_hand_over(Policy::default()) && queue.hand_over(1, recent, 0).is_none());
    queue.wake(1, Policy::Fifo(3), &History::default(), 0);
    queue.pick(0);
    assert!(!queue.may_hand_over(Policy::Fifo(3)), "only fair ones");
    queue.block(1);
    queue.wake(1, Policy::Batch(3), &History::default(), 1);
    queue.pick(1);
    assert!(queue.may_hand_over(Policy::Batch(3)) && !queue.may_hand_over(Policy::Other(3)));
    assert!(
        queue
            .hand_over(2, recent, 5)
            .is_some_and(|left| left.to_words()[1] == 5)
    );
    assert_eq!(queue.current(), Some(2));
    queue.wake(3, Policy::Batch(3), &History::default(), 5);
    assert!(!queue.may_hand_over(Policy::Batch(3)) && queue.hand_over(4, recent, 6).is_none());
    assert_eq!(queue.current(), Some(2));
}

/// A thread that was ahead of its share when it fell asleep comes back no better than it would have
/// become by waiting; what one was owed is gone, on the same CPU and on another.
#[test]
fn sleep_forgives_as_much_as_waiting_would_have() {
    let lag = |sleep: u64, cpu: u32| {
        let mut queue = RunQueue::new(0);
        for id in 0..2 {
            queue.wake(id, Policy::default(), &History::default(), 0);
        }
        assert_eq!(queue.pick(0), Some(0));
        let history = queue.block(SLICE_NS);
        assert!(history.lag_ns() < -1_900_000, "half a slice ahead");
        queue.pick(SLICE_NS);
        let mut there = if cpu == 0 { queue } else { RunQueue::new(cpu) };
        if cpu != 0 {
            there.wake(1, Policy::default(), &History::default(), 0);
            there.pick(0);
        }
        let now = SLICE_NS + sleep;
        there.wake(0, Policy::default(), &history, now);
        there.remove(0, now).unwrap().lag_ns()
    };
    for cpu in [0, 1] {
        let [at_once, soon, late] = [0, SLICE_NS / 4, SECOND].map(|sleep| lag(sleep, cpu));
        assert!(
            at_once < -1_900_000 && at_once < soon && soon < -500_000 && late.abs() < 1000,
            "{cpu}: {at_once} {soon} {late}"
        );
    }
    // What was owed.
    let mut queue = RunQueue::new(0);
    for id in 0..2 {
        queue.wake(id, Policy::default(), &History::default(), 0);
    }
    queue.pick(0);
    let owed = queue.remove(1, SLICE_NS).unwrap();
    assert!(owed.lag_ns() > 1_900_000);
    queue.wake(1, Policy::default(), &owed, SLICE_NS);
    assert!(queue.remove(1, SLICE_NS).unwrap().lag_ns().abs() < 1000);
}

/// A waiting thread that deserves the CPU more pre-empts the running one when the hysteresis is
/// over, and not a nanosecond before.
#[test]
fn the_hysteresis_is_kept_to_the_end() {
    let mut elsewhere = RunQueue::new(1);
    elsewhere.wake(2, Policy::default(), &History::default(), 0);
    elsewhere.pick(0);
    let rested = elsewhere.block(0);
    let mut queue = RunQueue::new(0);
    queue.wake(1, Policy::default(), &History::default(), SECOND);
    assert_eq!(queue.pick(SECOND), Some(1));
    assert!(!queue.wake(2, Policy::default(), &rested, SECOND + 1));
    let end = SECOND + HYSTERESIS_NS;
    assert_eq!(queue.next_deadline(), Some(end));
    assert_eq!((queue.pick(end - 1), queue.pick(end)), (Some(1), Some(2)));
    // Without a claim the slice is used up first; at the end of it the other one has its turn.
    let mut equal = RunQueue::new(0);
    for id in 0..2 {
        equal.wake(id, Policy::default(), &History::default(), 0);
    }
    equal.pick(0);
    assert_eq!(
        (
            equal.next_deadline(),
            equal.pick(SLICE_NS - 1),
            equal.pick(SLICE_NS)
        ),
        (Some(SLICE_NS), Some(0), Some(1))
    );
    // One that comes when the slice is nearly over cannot make it shorter than the hysteresis.
    assert_eq!(equal.next_deadline(), Some(2 * SLICE_NS));
    // Nor has one a claim whose turn comes later than the end of the slice.
    let mut late = RunQueue::new(0);
    late.wake(0, Policy::default(), &History::default(), 0);
    late.pick(0);
    assert!(!late.wake(1, Policy::default(), &History::default(), 1));
    assert_eq!(
        (late.pick(HYSTERESIS_NS + 1), late.pick(2 * SLICE_NS)),
        (Some(0), Some(1))
    );
}

#[test]
fn time_in_which_the_cpu_stood_still_is_nobodys() {
    let mut queue = RunQueue::new(0);
    for thread in [0, 1] {
        queue.wake(thread, Policy::default(), &History::default(), 0);
    }
    assert_eq!(queue.pick(0), Some(0));
    let half = SLICE_NS / 2;
    assert_eq!(queue.pick(half), Some(0));
    queue.skip(100 * SLICE_NS);
    let now = 100 * SLICE_NS + half;
    assert_eq!(queue.next_deadline(), Some(now + SLICE_NS - half));
    assert_eq!(queue.pick(now + SLICE_NS - half - 1), Some(0));
    assert_eq!(queue.pick(now + SLICE_NS - half), Some(1));
}
