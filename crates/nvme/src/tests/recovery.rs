//! Controllers that lie, and what is left of their commands.

use super::*;

/// A command that is over: its value, its outcome.
type Over = (u32, Result<u32, Failure>);

fn read(queue: &mut Q, value: u32) {
    let first = u64::from(value % 32) * 8;
    let page = [Bus::page(value.into())];
    let read = Command::read(1, first, 8);
    queue.submit(read, Data::Pages(&page), value).unwrap();
}

fn recover(started: &mut Started<Bus, M, u32>) -> (Result<(), StartError>, Vec<Over>) {
    let mut ended = Vec::new();
    let Started {
        controller,
        admin,
        queues,
        namespaces,
        ..
    } = started;
    let mut queues: Vec<&mut Q> = queues.iter_mut().collect();
    let result = controller.recover(admin, namespaces, &mut queues, |over| {
        ended.push((over.value, over.outcome));
    });
    (result, ended)
}

/// A broken rule costs a reset, after which everything is done that was in flight, in each queue.
#[test]
fn a_controller_that_breaks_a_rule_costs_a_reset() {
    for (lie, rule) in [
        (Lie::Id(3), Rule::Id(3)),
        (Lie::Id(0xffff), Rule::Id(0xffff)),
        (Lie::Id(0x4000), Rule::Id(0x4000)),
        (Lie::Twice, Rule::Id(0)),
        (Lie::Queue(0), Rule::Queue(0)),
        (Lie::Queue(2), Rule::Queue(2)),
    ] {
        let bus = Bus::new();
        let mut started = bus.start();
        for n in 0..32 {
            bus.model.borrow_mut().namespaces[0].data[4096 * n..4096 * (n + 1)].fill(n as u8);
        }
        read(&mut started.queues[1], 20);
        read(&mut started.queues[1], 21);
        for value in 0..3 {
            read(&mut started.queues[0], value);
        }
        bus.model.borrow_mut().lie = Some(lie);
        started.controller.ring(&mut started.queues[0]);
        bus.serve();
        let mut early = Vec::new();
        let found = loop {
            match started.queues[0].take() {
                Ok(Some(completion)) => early.push(completion.value),
                Ok(None) => panic!("{lie:?} is not noticed"),
                Err(rule) => break rule,
            }
        };
        assert_eq!(found, rule, "after {lie:?}");
        assert_eq!(started.queues[0].take().map(drop), Err(rule));
        let refused = started.queues[0].submit(Command::flush(1), Data::None, 9);
        assert_eq!(refused.unwrap_err().why, Refusal::Broken(rule));
        // In the other queue one is completed, and not taken.
        started.controller.ring(&mut started.queues[1]);
        bus.model.borrow_mut().serve(1).unwrap();
        assert_eq!(recover(&mut started), (Ok(()), vec![(20, Ok(0))]));
        bus.serve();
        let mut over = outcomes(&mut started.queues[0]);
        over.extend(early.iter().map(|value| (*value, Ok(0))));
        over.sort_by_key(|(value, _)| *value);
        assert_eq!(over, [(0, Ok(0)), (1, Ok(0)), (2, Ok(0))]);
        assert_eq!(outcomes(&mut started.queues[1]), [(21, Ok(0))]);
        for value in [0, 1, 2, 20, 21] {
            assert_eq!(bus.bytes(value), [value as u8; 4096]);
        }
    }
}

/// All registers read as ones: only the bus can tell that nobody writes to memory any more.
#[test]
fn one_that_is_not_there_is_not_waited_for() {
    let bus = Bus::new();
    let mut started = bus.start();
    read(&mut started.queues[0], 1);
    bus.model.borrow_mut().set(at::CSTS, u32::MAX);
    bus.model.borrow_mut().deaf = 1;
    assert!(started.controller.needs_reset());
    assert_eq!(recover(&mut started), (Err(StartError::Stuck), Vec::new()));
    assert_eq!(bus.model.borrow().deaf, 0);
}

/// The identifier of a slot's last command is not that of its next.
#[test]
fn a_completion_of_the_command_before_is_not_taken_for_this_one() {
    let bus = Bus::new();
    let mut started = bus.start();
    let queue = &mut started.queues[0];
    assert_eq!(
        run(
            &bus,
            &started.controller,
            queue,
            Command::flush(1),
            Data::None
        ),
        Ok(0)
    );
    // The same slot; the identifier that it had is completed as well, before it.
    bus.model.borrow_mut().lie = Some(Lie::Id(0));
    queue.submit(Command::flush(1), Data::None, 1).unwrap();
    started.controller.ring(queue);
    bus.serve();
    assert!(matches!(queue.take(), Ok(Some(_))));
    assert_eq!(queue.take().map(drop), Err(Rule::Id(0)));
}

#[test]
fn a_status_that_there_is_not_is_a_failure_of_its_command() {
    let bus = Bus::new();
    let mut started = bus.start();
    for word in [0x0002, 0x0e02, 0xfffe, 0x4000_u16 | 0x102] {
        bus.model.borrow_mut().lie = Some(Lie::Status(word));
        let queue = &mut started.queues[0];
        let outcome = run(
            &bus,
            &started.controller,
            queue,
            Command::flush(1),
            Data::None,
        );
        assert_eq!(outcome, Err(Failure::Status(Status::of_word(word))));
    }
}

#[test]
fn a_bad_block_is_the_failure_of_its_command() {
    let bus = Bus::new();
    let mut started = bus.start();
    bus.model.borrow_mut().namespaces[0].bad = Some(9);
    let queue = &mut started.queues[0];
    for (first, is_bad) in [(0, false), (8, true), (16, false), (BLOCKS, true)] {
        let data = [Bus::page(0)];
        let command = Command::read(1, first, 8);
        let outcome = run(
            &bus,
            &started.controller,
            queue,
            command,
            Data::Pages(&data),
        );
        assert_eq!(outcome.is_err(), is_bad, "of block {first}");
    }
}

#[test]
fn what_has_no_answer_is_aborted() {
    let bus = Bus::new();
    let mut started = bus.start();
    let Started {
        controller,
        admin,
        queues,
        ..
    } = &mut started;
    for round in 0..40 {
        bus.model.borrow_mut().lie = Some(Lie::Silence);
        read(&mut queues[0], 1);
        read(&mut queues[0], 2);
        controller.ring(&mut queues[0]);
        bus.serve();
        assert_eq!(outcomes(&mut queues[0]), [(2, Ok(0))]);
        // One that is not in flight is nobody's.
        controller.abort(admin, &queues[0], |value| *value == 5);
        controller.abort(admin, &queues[0], |value| *value == 1);
        bus.serve();
        let aborted = Status { kind: 0, code: 7 };
        assert_eq!(
            outcomes(&mut queues[0]),
            [(1, Err(Failure::Status(aborted)))]
        );
        controller.ring(&mut queues[0]);
        assert_eq!(bus.model.borrow().aborts, round + 1);
    }
}

#[test]
fn what_is_in_flight_at_two_resets_ends() {
    let bus = Bus::new();
    let mut started = bus.start();
    read(&mut started.queues[0], 1);
    bus.model.borrow_mut().lie = Some(Lie::Fatal);
    started.controller.ring(&mut started.queues[0]);
    bus.serve();
    assert!(started.controller.needs_reset());
    bus.model.borrow_mut().lie = Some(Lie::Silence);
    assert_eq!(recover(&mut started), (Ok(()), Vec::new()));
    assert!(!started.controller.needs_reset());
    bus.serve();
    let ended = vec![(1, Err(Failure::Gone))];
    assert_eq!(recover(&mut started), (Ok(()), ended));
    read(&mut started.queues[0], 2);
    started.controller.ring(&mut started.queues[0]);
    bus.serve();
    assert_eq!(outcomes(&mut started.queues[0]), [(2, Ok(0))]);
}

#[test]
fn one_that_does_not_stop_keeps_what_it_has() {
    let bus = Bus::new();
    let mut started = bus.start();
    read(&mut started.queues[0], 1);
    started.queues[0].fail(Rule::Late);
    bus.model.borrow_mut().deaf = 1;
    assert_eq!(recover(&mut started), (Err(StartError::Stuck), Vec::new()));
    assert_eq!(started.queues[0].in_flight(), 1);
    assert_eq!(started.queues[0].broken(), Some(Rule::Late));
    assert_eq!(recover(&mut started), (Ok(()), Vec::new()));
    bus.serve();
    assert_eq!(outcomes(&mut started.queues[0]), [(1, Ok(0))]);
}

#[test]
fn one_that_comes_back_as_another_is_gone() {
    type Change = fn(&mut Model<M>);
    let changes: [Change; 6] = [
        |model| model.is_lame = true,
        |model| model.transfer_bits = 3,
        |model| model.namespaces[1] = Blocks::zeroed(9, 100),
        |model| drop(model.namespaces.pop()),
        |model| model.queues = 1,
        |model| model.set(at::CAP, u32::MAX),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let bus = Bus::new();
        let mut started = bus.start();
        read(&mut started.queues[1], 1);
        change(&mut bus.model.borrow_mut());
        let (result, ended) = recover(&mut started);
        assert!(result.is_err(), "after change {n}");
        assert_eq!(ended, [(1, Err(Failure::Gone))], "after change {n}");
        let refused = started.queues[1].submit(Command::flush(1), Data::None, 9);
        assert_eq!(refused.unwrap_err().why, Refusal::Gone);
        assert_eq!(bus.read(at::CC) & 1, 0, "it was switched off");
    }
}
