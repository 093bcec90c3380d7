//! Devices that lie, and what is left of their requests.

use std::vec::Vec;

use virtqueue::Rule;

use super::*;

fn read(queue: &mut Q, value: u32) {
    let offset = u64::from(value % 32) * 1024;
    let data = [piece(DATA + PART * u64::from(value % 16), 1024)];
    queue
        .submit(Operation::Read { offset }, &data, value)
        .expect("it is accepted");
}

/// The outcomes of what is over, by value.
fn outcomes(queue: &mut Q) -> Vec<(u32, Result<(), Failure>)> {
    let mut list = Vec::new();
    while let Some(completion) = queue.complete().expect("nobody broke a rule") {
        list.push((completion.value, completion.outcome.map(drop)));
    }
    list.sort_by_key(|(value, _)| *value);
    list
}

/// A device that uses what it does not have, twice or too long: an error that says so, and after
/// a reset everything that was in flight is done.
#[test]
fn a_device_that_breaks_a_rule_costs_a_reset() {
    for (lie, rule) in [
        (Lie::Used(1, 99, 0), Rule::UsedId(99)),
        (Lie::Used(1, u32::MAX, 0), Rule::UsedId(u32::MAX)),
        (Lie::Used(2, 0, 1), Rule::UsedId(0)),
        (Lie::Used(4, 0, 0), Rule::UsedIndex(4)),
        (
            Lie::Used(1, 0, 1026),
            Rule::UsedLength {
                written: 1026,
                given: 1025,
            },
        ),
    ] {
        for one_queue in [false, true] {
            let peer = Peer::new();
            let (disk, mut queues) = started(&peer);
            read(&mut queues[1], 50);
            for value in 0..3 {
                read(&mut queues[0], value);
            }
            peer.lie(Some(lie));
            disk.notify(&mut queues[0]).unwrap();
            let mut early = Vec::new();
            let found = loop {
                match queues[0].complete() {
                    Ok(Some(completion)) => early.push(completion),
                    Ok(None) => panic!("{lie:?} is not noticed"),
                    Err(rule) => break rule,
                }
            };
            assert_eq!(found, rule);
            assert_eq!(queues[0].broken(), Some(rule));
            // The one whose completion was told before the lie: it has no result.
            for completion in &early {
                let none = Err(Failure::Status(status::NONE));
                assert_eq!((completion.value, &completion.outcome), (0, &none));
            }
            let refused = queues[0]
                .submit(Operation::Flush, &[], 9)
                .expect_err("broken");
            assert_eq!((refused.value, refused.why), (9, Refusal::Broken(rule)));
            peer.lie(None);
            let ended = |completion: Completion<u32>| panic!("{completion:?} has ended");
            if one_queue {
                disk.recover_queue(&mut queues[0], ended)
                    .expect("it comes back");
                assert_eq!(peer.resets(), 1, "at the start only");
            } else {
                disk.recover(&mut queues, ended).expect("it comes back");
                assert_eq!(outcomes(&mut queues[1]), [(50, Ok(()))]);
            }
            let done: Vec<_> = (early.len() as u32..3)
                .map(|value| (value, Ok(())))
                .collect();
            assert_eq!(outcomes(&mut queues[0]), done);
            assert_eq!(queues[0].in_flight(), 0);
            // All descriptors and places are there again.
            for value in 0..16 {
                read(&mut queues[0], value);
            }
            disk.notify(&mut queues[0]).unwrap();
            assert_eq!(outcomes(&mut queues[0]).len(), 16);
        }
    }
}

/// Work that is told to be done, and is not, is an error of the request.
#[test]
fn results_that_are_none_are_errors() {
    let cases = [
        (Lie::Less(1), Failure::Short(1024)),
        (Lie::Less(1025), Failure::Short(0)),
        (Lie::NoResult, Failure::Status(status::NONE)),
        (Lie::Result(3), Failure::Status(3)),
        (Lie::Result(status::IO_ERROR), Failure::Io),
        (Lie::Result(status::UNSUPPORTED), Failure::Unsupported),
    ];
    let peer = Peer::new();
    let (disk, mut queues) = started(&peer);
    for (lie, failure) in cases {
        peer.lie(Some(lie));
        read(&mut queues[0], 3);
        disk.notify(&mut queues[0]).unwrap();
        assert_eq!(outcomes(&mut queues[0]), [(3, Err(failure))]);
    }
    peer.lie(Some(Lie::Less(1)));
    for operation in [Operation::Flush, Operation::GetId] {
        let outcome = execute(&disk, &mut queues[0], operation, &[]);
        assert!(matches!(outcome, Err(Failure::Short(_))), "{outcome:?}");
    }
    peer.lie(None);
    read(&mut queues[0], 3);
    disk.notify(&mut queues[0]).unwrap();
    assert_eq!(outcomes(&mut queues[0]), [(3, Ok(()))]);
}

/// A request that is in flight at two resets ends; a younger one is offered again.
#[test]
fn a_request_is_offered_twice_at_most() {
    let peer = Peer::new();
    let (disk, mut queues) = started(&peer);
    peer.lie(Some(Lie::Never));
    read(&mut queues[0], 1);
    disk.notify(&mut queues[0]).unwrap();
    let mut ended = Vec::new();
    disk.recover(&mut queues, |completion| ended.push(completion))
        .expect("it comes back");
    assert_eq!((ended.len(), queues[0].in_flight()), (0, 1));
    read(&mut queues[0], 2);
    disk.recover(&mut queues, |completion| ended.push(completion))
        .expect("it comes back");
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].value, ended[0].outcome), (1, Err(Failure::Gone)));
    assert_eq!(queues[0].in_flight(), 1);
    peer.lie(None);
    disk.recover(&mut queues, |completion| ended.push(completion))
        .expect("it comes back");
    assert_eq!(
        (ended.len(), ended[1].value),
        (2, 2),
        "it was there twice, too"
    );
    read(&mut queues[0], 3);
    disk.notify(&mut queues[0]).unwrap();
    assert_eq!(outcomes(&mut queues[0]), [(3, Ok(()))]);
}

/// A device that does not stop may write still, so nothing is given back; one that stops and does
/// not come back, or as another one, ends everything.
#[test]
fn a_device_that_does_not_come_back_ends_everything() {
    let stuck = StartError::from(TransportError::Stuck);
    let refused = StartError::BringUp(BringUpError::Refused);
    for (lie, smaller, error) in [
        (Some(Lie::NoFeatures), false, refused),
        (
            Some(Lie::NoQueues),
            false,
            StartError::from(TransportError::NoQueue),
        ),
        (None, true, StartError::Changed),
    ] {
        let peer = Peer::new();
        let (disk, mut queues) = started(&peer);
        peer.lie(Some(Lie::Never));
        for value in 0..4 {
            read(&mut queues[(value % 2) as usize], value);
        }
        peer.lie(Some(Lie::NoReset));
        let none = |completion: Completion<u32>| panic!("{completion:?} has ended");
        assert_eq!(disk.recover(&mut queues, none), Err(stuck));
        assert_eq!(queues[0].in_flight() + queues[1].in_flight(), 4);
        assert_eq!(disk.recover_queue(&mut queues[0], none), Err(stuck));
        assert_eq!(queues[0].in_flight(), 2);

        peer.lie(lie);
        let before = peer.configure(field::CAPACITY, &SECTORS.to_le_bytes());
        if smaller {
            peer.configure(field::CAPACITY, &(SECTORS - 1).to_le_bytes());
        }
        let mut ended = Vec::new();
        let result = disk.recover(&mut queues, |completion| {
            ended.push((completion.value, completion.outcome));
        });
        assert_eq!(result, Err(error));
        ended.sort_by_key(|(value, _)| *value);
        let gone: Vec<_> = (0..4).map(|value| (value, Err(Failure::Gone))).collect();
        assert_eq!(ended, gone);
        for queue in &mut queues {
            assert_eq!(queue.in_flight(), 0);
            let refused = queue.submit(Operation::GetId, &[], 5).expect_err("gone");
            assert_eq!((refused.value, refused.why), (5, Refusal::Gone));
        }
        // It comes back later.
        peer.lie(None);
        peer.configure(field::CAPACITY, &before);
        disk.recover(&mut queues, none).expect("it comes back");
        read(&mut queues[0], 6);
        disk.notify(&mut queues[0]).unwrap();
        assert_eq!(outcomes(&mut queues[0]), [(6, Ok(()))]);
    }
}

/// A device without reset of single queues is not asked for one.
#[test]
fn one_queue_is_reset_where_that_was_negotiated() {
    let peer = Peer::new();
    peer.offer(Features::VERSION_1.bits() | feature::QUEUES);
    let (disk, mut queues) = started(&peer);
    let none = |completion: Completion<u32>| panic!("{completion:?} has ended");
    let error = disk
        .recover_queue(&mut queues[0], none)
        .expect_err("it cannot");
    assert_eq!(error, StartError::from(TransportError::NoQueue));
}
