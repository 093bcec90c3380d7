//! Controllers of virtual functions: given what there is, and put online.

use super::*;
use crate::model::Secondary;

/// Starts a controller with so many virtual functions, and queues and interrupts to share out.
fn started(count: u16, total: [u16; 2]) -> (Bus, Started<Bus, M, u32>) {
    let bus = Bus::new();
    bus.model.borrow_mut().secondary = Some(Secondary::new(count, total));
    let started = bus.start();
    (bus, started)
}

fn shares(bus: &Bus) -> Vec<([u16; 2], bool)> {
    let model = bus.model.borrow();
    let secondary = model.secondary.as_ref().unwrap();
    let online = secondary.online.iter().copied();
    secondary.shares.iter().copied().zip(online).collect()
}

fn told(bus: &Bus) -> Vec<Result<Secondaries, NoSecondaries>> {
    core::mem::take(&mut bus.told.borrow_mut())
}

#[test]
fn each_has_its_share_and_is_online() {
    let (bus, _) = started(5, [11, 7]);
    assert_eq!(shares(&bus), [([2, 1], true); 5]);
    // The controller has given up what it had of that.
    assert_eq!(bus.model.borrow().secondary.as_ref().unwrap().own, [0, 0]);
    let online = Secondaries {
        count: 5,
        queues: 2,
        interrupts: 1,
    };
    assert_eq!(told(&bus), [Ok(online)]);
}

#[test]
fn they_are_online_again_after_a_reset() {
    let (bus, mut started) = started(3, [9, 9]);
    told(&bus);
    for _ in 0..2 {
        let (admin, queues) = (&mut started.admin, &mut started.queues[..]);
        let recovered = started
            .controller
            .recover(admin, &started.namespaces, queues, drop);
        assert_eq!(recovered, Ok(()));
        assert_eq!(shares(&bus), [([3, 3], true); 3]);
        assert_eq!(told(&bus).len(), 1);
    }
    // Nothing of the function's own was left to be given up.
    assert_eq!(bus.model.borrow().starts, 4);
}

#[test]
fn a_controller_that_somebody_stopped_is_reset() {
    let (bus, mut started) = started(1, [4, 4]);
    assert!(!started.controller.needs_reset());
    // As that of a virtual function is with its primary.
    bus.model.borrow_mut().force_reset();
    assert!(started.controller.needs_reset());
    let (admin, queues) = (&mut started.admin, &mut started.queues[..]);
    let recovered = started
        .controller
        .recover(admin, &started.namespaces, queues, drop);
    assert_eq!(recovered, Ok(()));
    assert!(!started.controller.needs_reset());
}

#[test]
fn what_does_not_do_for_all_is_given_to_none_and_told() {
    let (bus, started) = started(4, [7, 9]);
    assert_eq!(started.queues.len(), 2, "the controller itself is used");
    assert_eq!(shares(&bus), [([0, 0], false); 4]);
    let (queues, interrupts) = (1, 2);
    let short = NoSecondaries::Short { queues, interrupts };
    assert_eq!(told(&bus), [Err(short)]);
}

#[test]
fn a_controller_that_lists_too_few_or_the_same_for_ever_is_told() {
    for liar in [
        |bytes: &mut [u8; PAGE]| bytes[0] = 0,
        // The same one, over and over.
        |bytes: &mut [u8; PAGE]| {
            bytes[0] = 1;
            bytes[32..34].copy_from_slice(&1_u16.to_le_bytes());
            bytes[40..42].copy_from_slice(&1_u16.to_le_bytes());
        },
    ] {
        let bus = Bus::new();
        bus.model.borrow_mut().secondary = Some(Secondary::new(3, [9, 9]));
        bus.model.borrow_mut().tamper = Some(Box::new(move |structure, _, bytes| {
            if structure == crate::command::cns::SECONDARIES {
                liar(bytes);
            }
        }));
        bus.start();
        assert_eq!(told(&bus), [Err(NoSecondaries::Missing)]);
    }
}

#[test]
fn a_controller_that_knows_nothing_of_that_is_used() {
    let bus = Bus::new();
    bus.virtual_functions.set(2);
    let started = bus.start();
    assert_eq!(started.queues.len(), 2);
    assert!(matches!(told(&bus)[..], [Err(NoSecondaries::Refused(_))]));
}
