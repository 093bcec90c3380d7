//! Each rule of packed rings, broken once.

use std::vec::Vec;

use super::*;
use crate::{Error, Memory, Rule, SetupError};

/// Flags of descriptors; the last two say what is available and used.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

fn put(memory: &Words, at: Address, piece: Piece, id: u16, flags: u16) {
    let mut bytes = piece.at.number().to_le_bytes().to_vec();
    bytes.extend_from_slice(&piece.len.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    memory.write(at, &bytes).expect("a ring");
}

/// A descriptor: its piece, identifier, flags.
type Entry = (Piece, u16, u16);

/// The rule that a device finds broken in a ring of three with these descriptors; the fourth and
/// later ones are a table.
fn rule(features: Features, descriptors: &[Entry]) -> Option<Rule> {
    let memory = words();
    let setup = setup(3, features | Features::PACKED);
    let mut device = DeviceQueue::new(&memory, setup, 3).expect("a device half");
    for (index, (piece, id, flags)) in (0..).zip(descriptors) {
        let at = if index < 3 {
            setup.areas.descriptor(index)
        } else {
            Address::new(BUFFERS + 16 * u64::from(index - 3))
        };
        put(&memory, at, *piece, *id, *flags);
    }
    let rule = match device.take() {
        Ok(chain) => {
            assert!(chain.is_some(), "a chain");
            return None;
        }
        Err(Error::Broken(rule)) => rule,
        Err(Error::NoMemory) => panic!("no memory on the host"),
    };
    assert_eq!(device.take().err(), Some(Error::Broken(rule)));
    assert_eq!(device.must_interrupt(), Err(rule));
    device.reset(setup).expect("the same queue");
    let mut driver = DriverQueue::new(&memory, setup, None).expect("a driver half");
    driver.add(&[piece(BUFFERS, 1)], &[], ()).expect("room");
    assert!(device.take().expect("a queue that works").is_some());
    Some(rule)
}

#[test]
fn a_device_refuses_chains_that_break_rules() {
    const A: u16 = AVAILABLE;
    let ok = piece(BUFFERS, 16);
    let table = |len| piece(BUFFERS, len);
    let (none, tables) = (Features::empty(), Features::INDIRECT);
    let end = MEMORY as u64;
    let unused = (ok, 0, 0);
    let cases: Vec<(Features, Vec<Entry>, Option<Rule>)> = std::vec![
        (none, std::vec![(ok, 9, A | NEXT), (ok, 2, A | WRITE)], None),
        (
            none,
            std::vec![(ok, 0, A | NEXT); 3],
            Some(Rule::ChainLength)
        ),
        (none, std::vec![(ok, 3, A)], Some(Rule::Head(3))),
        (
            none,
            std::vec![(ok, 0, A | NEXT | WRITE), (ok, 0, A)],
            Some(Rule::Order)
        ),
        (
            none,
            std::vec![(piece(end - 1, 2), 0, A)],
            Some(Rule::Buffer(Address::new(end - 1)))
        ),
        (
            none,
            std::vec![(table(16), 0, A | INDIRECT)],
            Some(Rule::Table)
        ),
        (
            tables,
            std::vec![(table(0), 0, A | INDIRECT)],
            Some(Rule::Table)
        ),
        (
            tables,
            std::vec![(table(24), 0, A | INDIRECT)],
            Some(Rule::Table)
        ),
        (
            tables,
            std::vec![(table(16), 0, A | INDIRECT | NEXT), (ok, 0, A)],
            Some(Rule::Table)
        ),
        (
            tables,
            std::vec![(ok, 0, A | NEXT), (table(16), 0, A | INDIRECT)],
            Some(Rule::Table)
        ),
        (
            tables,
            std::vec![(table(16), 2, A | INDIRECT), unused, unused, (ok, 7, NEXT)],
            None
        ),
        (
            tables,
            std::vec![
                (table(16), 0, A | INDIRECT),
                unused,
                unused,
                (ok, 0, INDIRECT)
            ],
            Some(Rule::Table)
        ),
        (
            tables,
            std::vec![
                (table(64), 0, A | INDIRECT),
                unused,
                unused,
                (ok, 0, 0),
                (ok, 0, 0),
                (ok, 0, 0),
                (ok, 0, 0)
            ],
            Some(Rule::ChainLength)
        ),
        (
            tables,
            std::vec![(piece(end, 16), 0, A | INDIRECT)],
            Some(Rule::Ring(Address::new(end)))
        ),
    ];
    for (features, descriptors, expected) in cases {
        assert_eq!(rule(features, &descriptors), expected, "{descriptors:x?}");
    }
}

/// One name for two chains, and more descriptors than the ring has.
#[test]
fn a_device_refuses_names_and_places_that_are_taken() {
    let memory = words();
    let setup = setup(3, Features::PACKED);
    let mut device = DeviceQueue::new(&memory, setup, 3).unwrap();
    let ok = piece(BUFFERS, 16);
    let ring = |index| setup.areas.descriptor(index);
    put(&memory, ring(0), ok, 1, AVAILABLE);
    put(&memory, ring(1), ok, 1, AVAILABLE);
    let first = device.take().unwrap().unwrap();
    assert_eq!(device.take().err(), Some(Rule::HeadTwice(1).into()));
    assert_eq!(device.finish(first, 0), Err(Rule::HeadTwice(1)));
    device.reset(setup).unwrap();
    put(&memory, ring(1), ok, 0, AVAILABLE | NEXT);
    put(&memory, ring(2), ok, 0, AVAILABLE | NEXT);
    let first = device.take().unwrap().unwrap();
    // The chain goes on in the place of the first one.
    put(&memory, ring(0), ok, 0, USED);
    assert_eq!(device.take().err(), Some(Rule::ChainLength.into()));
    drop(first);
}

/// The values that come back of used descriptors, and the rule that they break.
fn used(written: &[(u16, u32, u16)]) -> (Vec<u8>, Option<Rule>) {
    let memory = words();
    let setup = setup(5, Features::PACKED);
    let (mut driver, _) = pair::<u8>(&memory, setup);
    // Two descriptors, then one.
    driver
        .add(&[piece(BUFFERS, 8)], &[piece(BUFFERS, 4)], 10)
        .unwrap();
    driver.add(&[], &[piece(BUFFERS, 4)], 11).unwrap();
    let mut at = 0;
    for (id, len, flags) in written {
        put(
            &memory,
            setup.areas.descriptor(at),
            piece(0, *len),
            *id,
            *flags,
        );
        at += if *id == 0 { 2 } else { 1 };
    }
    let mut back = Vec::new();
    let rule = loop {
        match driver.take() {
            Ok(Some(done)) => {
                back.push(done.value);
                assert!(done.written <= 4);
            }
            Ok(None) => break None,
            Err(rule) => break Some(rule),
        }
    };
    assert_eq!(driver.broken(), rule);
    let mut all = back.clone();
    driver.reset(|value| all.push(value)).unwrap();
    all.sort_unstable();
    assert_eq!(all, [10, 11]);
    driver
        .add(&[piece(BUFFERS, 1)], &[], 13)
        .expect("it works again");
    assert_eq!(driver.take(), Ok(None));
    (back, rule)
}

#[test]
fn a_driver_refuses_what_a_device_cannot_have_done() {
    const U: u16 = AVAILABLE | USED;
    // The chains have the names 0 and 2.
    assert_eq!(
        used(&[(2, 4, U | WRITE), (0, 4, U | WRITE)]),
        (std::vec![11, 10], None)
    );
    assert_eq!(
        used(&[(2, 99, U)]),
        (std::vec![11], None),
        "a length that is none"
    );
    assert_eq!(
        used(&[(2, 4, USED)]),
        (Vec::new(), None),
        "of another round"
    );
    for id in [1, 3, 5, u16::MAX] {
        assert_eq!(
            used(&[(id, 0, U)]),
            (Vec::new(), Some(Rule::UsedId(id.into())))
        );
    }
    assert_eq!(
        used(&[(2, 0, U), (2, 0, U)]),
        (std::vec![11], Some(Rule::UsedId(2)))
    );
    let rule = Rule::UsedLength {
        written: 5,
        given: 4,
    };
    assert_eq!(used(&[(0, 5, U | WRITE)]), (Vec::new(), Some(rule)));
}

#[test]
fn rings_have_any_size_up_to_two_to_the_15() {
    let memory = Words::new(1 << 20).unwrap();
    let device = |size| DeviceQueue::new(&memory, setup(size, Features::PACKED), 1).map(drop);
    for size in [1, 3, 100, 32_767, 32_768] {
        assert_eq!(device(size), Ok(()));
    }
    assert_eq!(device(0), Err(SetupError::Size));
    assert_eq!(device(32_769), Err(SetupError::Size));
    let mut odd = setup(8, Features::PACKED);
    odd.areas.driver = odd.areas.driver.plus(2);
    let error = DeviceQueue::new(&memory, odd, 1).map(drop);
    assert_eq!(error, Err(SetupError::Alignment));
}
