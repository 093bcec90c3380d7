//! Real-time threads beside fair ones: what each has of the CPU.

use super::*;

/// CPU time in nanoseconds of the real-time hogs, and of all fair threads beside them, in `periods`
/// periods after `warm_up`.
fn beside_realtime(realtime: &[Policy], fair: &[Habit], warm_up: u64, periods: u64) -> (u64, u64) {
    let habits: Vec<Habit> = realtime
        .iter()
        .copied()
        .map(Habit::hog)
        .chain(fair.iter().copied())
        .collect();
    let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
    machine.run(warm_up);
    let ran = machine.measure(periods * RT.period_ns);
    let (realtime, fair) = ran.split_at(realtime.len());
    (realtime.iter().sum(), fair.iter().sum())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Real-time threads that never sleep leave fair threads that never sleep the rest of each
    /// period, and no more.
    #[test]
    fn real_time_threads_leave_a_part_of_each_period(
        realtime in prop::collection::vec(realtime_policy(), 1..5),
        fair in prop::collection::vec(hog(), 1..20),
        warm_up in 0..3 * SECOND,
        periods in 1u64..6,
    ) {
        let (most, rest) = beside_realtime(&realtime, &fair, warm_up, periods);
        prop_assert_eq!(rest, periods * RT.fair_ns());
        prop_assert_eq!(most, periods * RT.runtime_ns);
    }

    /// Fair threads that sleep have no more of it, and real-time threads lose no time to those that
    /// do not want it.
    #[test]
    fn sleepers_have_no_more_than_what_is_left(
        realtime in prop::collection::vec(realtime_policy(), 1..5),
        fair in prop::collection::vec(sleeper(), 1..20),
        warm_up in 0..3 * SECOND,
        periods in 1u64..6,
    ) {
        let (most, rest) = beside_realtime(&realtime, &fair, warm_up, periods);
        prop_assert_eq!(most + rest, periods * RT.period_ns);
        prop_assert!(rest <= (periods + 1) * RT.fair_ns());
    }
}

#[test]
fn real_time_threads_that_leave_more_themselves_are_never_throttled() {
    for (burst, sleep) in [(90, 10), (500, 500), (1, 1), (940, 60)] {
        let [burst_ns, sleep_ns] = [burst, sleep].map(|ms| ms * SECOND / 1000);
        let realtime = Habit {
            policy: Policy::Fifo(1),
            burst_ns,
            sleep_ns,
        };
        let mut machine = Machine::new(
            RunQueue::new(0),
            0,
            &[realtime, Habit::hog(Policy::default())],
        );
        machine.run(100 * SECOND);
        assert_eq!(machine.threads[0].longest_wait_ns, 0, "{burst} and {sleep}");
    }
}

#[test]
fn without_a_limit_nothing_is_left() {
    let mut queue = RunQueue::new(0);
    queue.set_rt_limits(UNLIMITED);
    let mut machine = Machine::new(
        queue,
        0,
        &[Habit::hog(Policy::Rr(1)), Habit::hog(Policy::default())],
    );
    assert_eq!(machine.measure(100 * SECOND), [100 * SECOND, 0]);
}

#[test]
fn the_limit_begins_when_a_fair_thread_waits() {
    let mut queue = RunQueue::new(0);
    queue.wake(1, Policy::Fifo(5), &History::default(), 0);
    assert_eq!(queue.pick(0), Some(1));
    assert!(queue.first_waiter_needs_timer(Group::Programs));
    let now = 10 * SECOND;
    assert!(!queue.wake(2, Policy::default(), &History::default(), now));
    assert!(!queue.first_waiter_needs_timer(Group::Programs));
    assert_eq!(
        queue.next_deadline(),
        Some(now + RT.runtime_ns),
        "the time before does not count"
    );
    assert_eq!(queue.pick(now + RT.runtime_ns), Some(2));
    // A real-time thread that comes meanwhile waits, too; and goes first as soon as nobody else
    // wants the CPU.
    assert!(!queue.wake(
        3,
        Policy::Fifo(9),
        &History::default(),
        now + RT.runtime_ns + 1
    ));
    assert_eq!(queue.next_deadline(), Some(now + RT.period_ns));
    queue.block(now + RT.runtime_ns + 2);
    assert_eq!(queue.pick(now + RT.runtime_ns + 2), Some(3));
    queue.set_rt_limits(UNLIMITED);
    assert!(!queue.first_waiter_needs_timer(Group::Programs));
}

/// A fair thread that has what it wants leaves no debt: real-time threads are not throttled for
/// waits that are over.
#[test]
fn waits_that_are_over_do_not_add_up() {
    let realtime = Habit {
        policy: Policy::Fifo(1),
        burst_ns: 97_000_000,
        sleep_ns: 3_000_000,
    };
    let fair = Habit {
        policy: Policy::default(),
        burst_ns: 1_000_000,
        sleep_ns: 10_000_000,
    };
    let mut machine = Machine::new(RunQueue::new(0), 0, &[realtime, fair]);
    machine.run(100 * SECOND);
    assert_eq!(machine.threads[0].longest_wait_ns, 0);
}
