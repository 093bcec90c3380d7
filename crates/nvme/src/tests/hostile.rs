//! Controllers that say anything of themselves, and do anything.

use super::*;
use crate::identify::{self, MAX_NAMESPACES};

/// Has what a controller says of itself changed: in a structure, for a namespace, these bytes.
fn tamper(bus: &Bus, structure: u8, namespace: u32, at: usize, bytes: &'static [u8]) {
    bus.model.borrow_mut().tamper = Some(Box::new(move |of, id, page| {
        if (of, id) == (structure, namespace) {
            page[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }));
}

#[test]
fn a_namespace_that_makes_no_sense_is_not_used_and_the_other_is() {
    let mut huge = [0; 8];
    huge.copy_from_slice(&(u64::MAX >> 9).to_le_bytes());
    let cases: [(usize, &[u8], Nonsense); 9] = [
        (128 + 2, &[0], Nonsense::BlockSize(0)),
        (128 + 2, &[8], Nonsense::BlockSize(8)),
        (128 + 2, &[13], Nonsense::BlockSize(13)),
        (128 + 2, &[40], Nonsense::BlockSize(40)),
        (128 + 2, &[255], Nonsense::BlockSize(255)),
        (128, &[8, 0], Nonsense::Metadata(8)),
        (26, &[1], Nonsense::Format),
        (0, &[0; 8], Nonsense::Capacity(0)),
        (0, &[0xff; 8], Nonsense::Capacity(u64::MAX)),
    ];
    for (at, bytes, nonsense) in cases {
        let bus = Bus::new();
        tamper(&bus, 0, 1, at, bytes);
        let started = bus.start();
        assert_eq!(started.unusable, [(1, Some(nonsense))]);
        let ids: Vec<u32> = started.namespaces.iter().map(|it| it.id).collect();
        assert_eq!(ids, [2]);
    }
}

#[test]
fn a_controller_that_makes_no_sense_is_not_used() {
    let cases: [(u8, usize, &[u8], StartError); 6] = [
        (1, 512, &[0x77], Nonsense::EntrySizes.into()),
        (1, 513, &[0x55], Nonsense::EntrySizes.into()),
        // No namespace can have a number, and two do.
        (1, 516, &[0; 4], Nonsense::List.into()),
        (2, 0, &[2, 0, 0, 0, 1, 0, 0, 0], Nonsense::List.into()),
        (2, 0, &[1, 0, 0, 0, 1, 0, 0, 0], Nonsense::List.into()),
        (2, 0, &[0xff; 4], Nonsense::List.into()),
    ];
    for (structure, at, bytes, error) in cases {
        let bus = Bus::new();
        tamper(&bus, structure, 0, at, bytes);
        assert_eq!(bus.try_start(2).err(), Some(error));
        assert_eq!(bus.read(at::CC) & 1, 0, "it was switched off");
    }
}

#[test]
fn namespaces_are_used_up_to_a_number() {
    let bus = Bus::new();
    bus.model.borrow_mut().tamper = Some(Box::new(|structure, _, page| match structure {
        1 => page[516..520].copy_from_slice(&u32::MAX.to_le_bytes()),
        2 => {
            for (n, place) in page.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&(n as u32 + 1).to_le_bytes());
            }
        }
        _ => {}
    }));
    let all = (0..MAX_NAMESPACES + 5).map(|_| Blocks::zeroed(9, 8));
    bus.model.borrow_mut().namespaces = all.collect();
    let started = bus.start();
    assert_eq!(started.namespaces.len(), MAX_NAMESPACES);
    assert_eq!(started.unusable, [(MAX_NAMESPACES as u32 + 1, None)]);
}

#[test]
fn a_transfer_has_a_limit_whatever_is_said() {
    let mut bytes = [0; identify::BYTES];
    bytes[512..514].copy_from_slice(&[0x66, 0x44]);
    for (bits, transfer) in [
        (0, 1 << 30),
        (1, 8192),
        (5, 128 << 10),
        (18, 1 << 30),
        (255, 1 << 30),
    ] {
        bytes[77] = bits;
        assert_eq!(Identity::parse(&bytes).unwrap().transfer, transfer);
    }
}

/// A slot is used again, and the command that had it before is completed once more.
#[test]
fn a_completion_of_the_command_before_is_not_one_of_this() {
    let bus = Bus::new();
    let mut started = bus.start();
    let queue = &mut started.queues[0];
    let flush = Command::flush(1);
    assert_eq!(
        run(&bus, &started.controller, queue, flush, Data::None),
        Ok(0)
    );
    queue.submit(flush, Data::None, 8).unwrap();
    let mut entry = [0; 16];
    entry[10..12].copy_from_slice(&queue.number().to_le_bytes());
    entry[14] = 1;
    let second = queue.completions().plus(16);
    bus.memory.write(second, &entry).unwrap();
    assert_eq!(queue.take(), Err(Rule::Id(0)));
    assert_eq!(queue.in_flight(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever it says of itself is an error, or a controller within limits that works or fails
    /// command by command.
    #[test]
    fn anything_may_be_said(
        changes in proptest::collection::vec(
            (0..3_u8, prop_oneof![0..140_usize, 500..530_usize, 0..4096_usize], any::<u8>()), 0..12,
        ),
        word in any::<u32>(),
        change_capabilities in any::<bool>(),
    ) {
        let bus = Bus::new();
        if change_capabilities {
            bus.model.borrow_mut().set(at::CAP, word & 0x01ff_ffff);
        }
        bus.model.borrow_mut().tamper = Some(Box::new(move |structure, _, page| {
            for (of, at, byte) in &changes {
                if *of == structure {
                    page[*at] = *byte;
                }
            }
        }));
        if let Ok(mut started) = bus.try_start(2) {
            prop_assert!(started.namespaces.len() <= MAX_NAMESPACES);
            for namespace in &started.namespaces {
                prop_assert!((512..=4096).contains(&namespace.block()));
                prop_assert!(namespace.capacity() >= 512);
                let last = namespace.blocks - 1;
                let read = Command::read(namespace.id, last, 1);
                let queue = &mut started.queues[0];
                let _ = run(&bus, &started.controller, queue, read, Data::Pages(&[Bus::page(0)]));
                started.controller.ring(queue);
            }
        }
    }

    /// Whatever is written where completions are, at any time: what was submitted is over once, by
    /// itself or by a reset; and nothing is taken for over that was not submitted.
    #[test]
    fn anything_may_be_completed(
        noise in proptest::collection::vec((0..8_u64, any::<[u8; 14]>(), 0..10_u16), 1..80),
    ) {
        let bus = Bus::new();
        let mut started = bus.start();
        let mut submitted = 0_u32;
        let mut over = Vec::new();
        for (place, mut entry, id) in noise {
            let queue = &mut started.queues[0];
            while queue.submit(Command::flush(1), Data::None, submitted).is_ok() {
                submitted += 1;
            }
            // Often the right queue and a likely identifier, in either phase.
            if id < 8 {
                entry[10..12].copy_from_slice(&1_u16.to_le_bytes());
                entry[13] = entry[0] % 4;
                entry[12] = id as u8;
            }
            let at = queue.completions().plus(16 * place);
            bus.memory.write(at, &entry).unwrap();
            bus.memory.store16(at.plus(14), u16::from(entry[1])).unwrap();
            let mut taken = 0;
            let broken = loop {
                match queue.take() {
                    Ok(Some(completion)) => over.push(completion.value),
                    Ok(None) => break false,
                    Err(_) => break true,
                }
                taken += 1;
                prop_assert!(taken <= 8, "no loop is longer than the queue");
            };
            if broken {
                let Started { controller, admin, queues, namespaces, .. } = &mut started;
                let mut all: Vec<&mut Q> = queues.iter_mut().collect();
                let ended = |completion: Completion<u32>| over.push(completion.value);
                prop_assert_eq!(controller.recover(admin, namespaces, &mut all, ended), Ok(()));
            }
        }
        let Started { controller, admin, queues, namespaces, .. } = &mut started;
        let mut all: Vec<&mut Q> = queues.iter_mut().collect();
        let ended = |completion: Completion<u32>| over.push(completion.value);
        prop_assert_eq!(controller.recover(admin, namespaces, &mut all, ended), Ok(()));
        bus.serve();
        over.extend(outcomes(&mut queues[0]).into_iter().map(|(value, _)| value));
        over.sort_unstable();
        prop_assert_eq!(over, (0..submitted).collect::<Vec<_>>());
    }
}
