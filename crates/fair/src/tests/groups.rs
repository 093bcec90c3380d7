//! Management beside programs: who waits how long, and what each has of the CPU.

use super::*;

const BESIDE_REALTIME: RtLimits = RtLimits::BESIDE_MANAGEMENT;
const OF_MANAGEMENT: RtLimits = RtLimits::OF_MANAGEMENT;

/// A machine whose first threads are management.
fn machine(managers: &[Habit], programs: impl IntoIterator<Item = Habit>) -> Machine {
    let habits: Vec<Habit> = managers.iter().copied().chain(programs).collect();
    let mut machine = Machine::new(RunQueue::new(0), 0, &habits);
    machine.managers = managers.len() as u32;
    machine
}

/// A thread of management as a shell and its commands are: it wants little, now and then.
fn manager() -> impl Strategy<Value = Habit> {
    (-20i8..20, 1_000u64..8_000_000, 40_000_000u64..300_000_000).prop_map(
        |(nice, burst_ns, sleep_ns)| Habit {
            policy: Policy::Other(nice),
            burst_ns,
            sleep_ns,
        },
    )
}

fn management_hog() -> impl Strategy<Value = Habit> {
    (-20i8..20).prop_map(|nice| Habit::hog(Policy::Other(nice)))
}

/// The longest time that the first thread of a machine has waited.
fn longest_wait_ns(machine: &Machine) -> u64 {
    let first = &machine.threads[0];
    let waits = first.waits_from.map_or(0, |from| machine.now - from);
    first.longest_wait_ns.max(waits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Management waits for programs as long as the hysteresis lasts, however many there are.
    #[test]
    fn management_goes_before_programs(manager in manager(), programs in crowd()) {
        let mut machine = machine(&[manager], programs);
        machine.run(10 * SECOND);
        prop_assert!(longest_wait_ns(&machine) <= HYSTERESIS_NS, "{}", longest_wait_ns(&machine));
    }

    /// Management waits for real-time threads of programs for a part of its own short period, and
    /// for what it left to other programs by then.
    #[test]
    fn management_waits_shortly_for_real_time_threads(
        manager in manager(),
        realtime in prop::collection::vec(realtime_policy(), 1..5),
        programs in prop::collection::vec(hog(), 0..20),
    ) {
        let programs = realtime.into_iter().map(Habit::hog).chain(programs);
        let mut machine = machine(&[manager], programs);
        machine.run(10 * SECOND);
        let longest = longest_wait_ns(&machine);
        let most = BESIDE_REALTIME.runtime_ns + OF_MANAGEMENT.fair_ns() + HYSTERESIS_NS;
        prop_assert!(longest <= most, "{longest}");
    }

    /// Management that never sleeps leaves programs that never sleep the rest of each period; at
    /// most the hysteresis of the last of them is more.
    #[test]
    fn management_leaves_a_part_of_each_period(
        managers in prop::collection::vec(management_hog(), 1..5),
        programs in prop::collection::vec(hog(), 1..20),
        warm_up in 0..SECOND,
        periods in 4u64..60,
    ) {
        let mut machine = machine(&managers, programs);
        machine.run(warm_up);
        let ran = machine.measure(periods * OF_MANAGEMENT.period_ns);
        let programs: u64 = ran[managers.len()..].iter().sum();
        let fair_ns = OF_MANAGEMENT.fair_ns();
        prop_assert!(programs >= (periods - 2) * fair_ns, "{programs}");
        prop_assert!(programs <= (periods + 2) * (fair_ns + HYSTERESIS_NS), "{programs}");
    }

    /// Programs, management and real-time threads that all want the CPU for ever each get the part
    /// that whoever goes before them leaves.
    #[test]
    fn nobody_starves_beside_two_that_go_first(
        realtime in realtime_policy(),
        managers in prop::collection::vec(management_hog(), 1..5),
        programs in prop::collection::vec(hog(), 1..20),
    ) {
        let crowd = core::iter::once(Habit::hog(realtime)).chain(programs);
        let mut machine = machine(&managers, crowd);
        machine.run(SECOND);
        let ran = machine.measure(10 * SECOND);
        let (management, others) = ran.split_at(managers.len());
        let realtime = others[0];
        let [management, programs] = [management, &others[1..]].map(|ran| ran.iter().sum::<u64>());
        prop_assert!(realtime.abs_diff(SECOND * 75 / 10) <= PERCENT, "{realtime}");
        prop_assert!(management >= SECOND * 17 / 10, "{management}");
        prop_assert!(programs >= SECOND * 45 / 100, "{programs}");
    }

    /// Fair threads of one group share by weight, whoever is in the other.
    #[test]
    fn a_group_shares_by_weight(
        managers in prop::collection::vec(management_hog(), 1..10),
        programs in prop::collection::vec(hog(), 1..30),
    ) {
        let first = managers.len();
        let mut machine = machine(&managers, programs);
        machine.run(SECOND);
        let ran = machine.measure(5 * SECOND);
        for range in [0..first, first..ran.len()] {
            let sum: u64 = ran[range.clone()].iter().sum();
            let weights = |i: usize| u64::from(machine.threads[i].habit.policy.weight());
            let weight: u64 = range.clone().map(weights).sum();
            for i in range {
                let due = sum * weights(i) / weight;
                prop_assert!(ran[i].abs_diff(due) <= 2 * PERCENT, "{} of {due}", ran[i]);
            }
        }
    }
}

/// The kernel's own real-time threads are management themselves: they keep what Linux gives
/// real-time threads.
#[test]
fn the_kernels_own_priorities_go_before_management() {
    let manager = Habit::hog(Policy::default());
    let mut machine = machine(&[manager], [Habit::hog(Policy::Fifo(101))]);
    assert_eq!(
        machine.measure(10 * RT.period_ns),
        [10 * RT.fair_ns(), 10 * RT.runtime_ns]
    );
}

/// Without a limit real-time threads keep everything from management, too.
#[test]
fn without_a_limit_management_waits() {
    let mut machine = machine(
        &[Habit::hog(Policy::default())],
        [Habit::hog(Policy::Rr(1))],
    );
    machine.queue.set_rt_limits(UNLIMITED);
    assert_eq!(machine.measure(100 * SECOND), [0, 100 * SECOND]);
    machine.queue.set_rt_limits(RT);
    assert_eq!(machine.measure(4 * SECOND), [SECOND, 3 * SECOND]);
}

/// A CPU whose real-time thread has nobody to leave time to is told of the first of each group.
#[test]
fn the_first_of_each_group_needs_the_timer() {
    let needed = |queue: &RunQueue| {
        [Group::Programs, Group::Management].map(|group| queue.first_waiter_needs_timer(group))
    };
    let manager = Params {
        policy: Policy::default(),
        group: Group::Management,
    };
    let history = History::default();
    let mut queue = RunQueue::new(0);
    assert_eq!(needed(&queue), [false, false]);
    queue.wake(1, Policy::Fifo(99), &history, 0);
    queue.pick(0);
    assert_eq!(needed(&queue), [true, true]);
    queue.wake(2, Policy::default(), &history, 0);
    assert_eq!(needed(&queue), [false, true]);
    assert_eq!(queue.next_deadline(), Some(RT.runtime_ns));
    queue.wake(3, manager, &history, 0);
    assert_eq!(needed(&queue), [false, false]);
    assert_eq!(queue.next_deadline(), Some(BESIDE_REALTIME.runtime_ns));
    // Beside one of the kernel's own there is only Linux's limit.
    let mut kernel = RunQueue::new(0);
    kernel.wake(1, Policy::Fifo(100), &history, 0);
    kernel.pick(0);
    kernel.wake(2, Policy::default(), &history, 0);
    assert_eq!(needed(&kernel), [false, false]);
    kernel.wake(3, manager, &history, 0);
    assert_eq!(kernel.next_deadline(), Some(RT.runtime_ns));
}
