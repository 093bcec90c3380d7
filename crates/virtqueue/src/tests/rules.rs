//! Each rule, broken once.

use std::format;
use std::string::ToString;
use std::vec::Vec;

use super::*;
use crate::layout::{Descriptor, Flags};
use crate::{Error, Memory, Refusal, Rule, SetupError};

fn put(memory: &Words, at: Address, index: u16, piece: Piece, flags: Flags, next: u16) {
    let descriptor = Descriptor { piece, flags, next };
    memory
        .write(at.plus(16 * u64::from(index)), &descriptor.to_bytes())
        .expect("a table");
}

/// A descriptor: its piece, its flags, the next one.
type Entry = (Piece, Flags, u16);

/// The rule that a device finds broken in a chain of these descriptors, which begins with the
/// first, and whether it stays so.
fn chain(features: Features, descriptors: &[Entry]) -> Rule {
    let memory = words();
    let setup = setup(4, features);
    let mut device = DeviceQueue::new(&memory, setup, 4).expect("a device half");
    for (index, (piece, flags, next)) in (0..).zip(descriptors) {
        // The fifth and later ones are a table of their own.
        let (at, index) = if index < 4 {
            (setup.areas.descriptors, index)
        } else {
            (Address::new(BUFFERS), index - 4)
        };
        put(&memory, at, index, *piece, *flags, *next);
    }
    memory.store16(setup.areas.available_index(), 1).unwrap();
    let Err(Error::Broken(rule)) = device.take() else {
        panic!("the chain is taken");
    };
    assert_eq!(device.broken(), Some(rule));
    assert_eq!(device.take().err(), Some(Error::Broken(rule)));
    assert_eq!(device.must_interrupt(), Err(rule));
    assert_eq!(device.want_notification(), Err(rule));
    assert_eq!(device.decline_notifications(), Err(rule));
    // A reset, and all is well.
    device.reset(setup).expect("the same queue");
    let mut driver = DriverQueue::new(&memory, setup, None).expect("a driver half");
    driver.add(&[piece(BUFFERS, 1)], &[], ()).expect("room");
    assert!(device.take().expect("a queue that works").is_some());
    rule
}

#[test]
fn a_device_refuses_chains_that_break_rules() {
    const NEXT: Flags = Flags::NEXT;
    const NONE: Flags = Flags::empty();
    let tables = Features::INDIRECT;
    let ok = piece(BUFFERS, 16);
    let table = |len| piece(BUFFERS, len);
    let unused = (ok, NONE, 0);
    let cases: Vec<(Features, Vec<Entry>, Rule)> = std::vec![
        (NO, std::vec![(ok, NEXT, 0)], Rule::ChainLength),
        (
            NO,
            std::vec![(ok, NEXT, 1), (ok, NEXT, 0)],
            Rule::ChainLength
        ),
        (NO, std::vec![(ok, NEXT, 4)], Rule::Next(4)),
        (NO, std::vec![(ok, NEXT, u16::MAX)], Rule::Next(u16::MAX)),
        (
            NO,
            std::vec![(ok, NEXT | Flags::WRITE, 1), unused],
            Rule::Order
        ),
        (
            NO,
            std::vec![(piece(MEMORY as u64 - 1, 2), NONE, 0)],
            Rule::Buffer(Address::new(MEMORY as u64 - 1))
        ),
        (
            NO,
            std::vec![(piece(u64::MAX, 2), NONE, 0)],
            Rule::Buffer(Address::new(u64::MAX))
        ),
        (NO, std::vec![(table(16), Flags::INDIRECT, 0)], Rule::Table),
        (
            tables,
            std::vec![(table(15), Flags::INDIRECT, 0)],
            Rule::Table
        ),
        (
            tables,
            std::vec![(table(0), Flags::INDIRECT, 0)],
            Rule::Table
        ),
        (
            tables,
            std::vec![(table(16), Flags::INDIRECT | NEXT, 1), unused],
            Rule::Table
        ),
        (
            tables,
            std::vec![(ok, NEXT, 1), (table(16), Flags::INDIRECT, 0)],
            Rule::Table
        ),
        (
            tables,
            std::vec![
                (table(16), Flags::INDIRECT, 0),
                unused,
                unused,
                unused,
                (ok, Flags::INDIRECT, 0)
            ],
            Rule::Table
        ),
        (
            tables,
            std::vec![
                (table(16), Flags::INDIRECT, 0),
                unused,
                unused,
                unused,
                (ok, NEXT, 1)
            ],
            Rule::Next(1)
        ),
        (
            tables,
            std::vec![
                (table(32), Flags::INDIRECT, 0),
                unused,
                unused,
                unused,
                (ok, NEXT, 1),
                (ok, NEXT, 0)
            ],
            Rule::ChainLength
        ),
        (
            tables,
            std::vec![(piece(MEMORY as u64, 16), Flags::INDIRECT, 0)],
            Rule::Ring(Address::new(MEMORY as u64))
        ),
    ];
    for (features, descriptors, rule) in cases {
        assert_eq!(chain(features, &descriptors), rule, "{descriptors:?}");
    }
}

const NO: Features = Features::empty();

/// A memory that reaches everything, so that only the sum of lengths is wrong.
struct Everywhere<'a>(&'a Words);

impl Memory for Everywhere<'_> {
    fn reaches(&self, _: Address, _: u64) -> bool {
        true
    }

    fn load16(&self, at: Address) -> Result<u16, crate::Unreachable> {
        self.0.load16(at)
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), crate::Unreachable> {
        self.0.store16(at, value)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), crate::Unreachable> {
        self.0.read(at, into)
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), crate::Unreachable> {
        self.0.write(at, from)
    }
}

#[test]
fn a_chain_has_no_more_bytes_than_two_to_the_32() {
    let memory = words();
    let setup = setup(4, NO);
    let big = piece(0, u32::MAX);
    for (last, result) in [(1, None), (2, Some(Error::Broken(Rule::TooManyBytes)))] {
        put(&memory, setup.areas.descriptors, 0, big, Flags::NEXT, 1);
        put(
            &memory,
            setup.areas.descriptors,
            1,
            piece(0, last),
            NO_FLAGS,
            0,
        );
        memory.store16(setup.areas.available_index(), 1).unwrap();
        let mut device = DeviceQueue::new(Everywhere(&memory), setup, 4).unwrap();
        assert_eq!(device.take().err(), result);
    }
}

const NO_FLAGS: Flags = Flags::empty();

#[test]
fn a_device_refuses_indices_and_heads() {
    let memory = words();
    let setup = setup(4, NO);
    let areas = setup.areas;
    let take = |index, head| {
        let mut device = DeviceQueue::new(&memory, setup, 4).unwrap();
        memory.store16(areas.available_index(), index).unwrap();
        memory.store16(areas.available(0), head).unwrap();
        device.take().map(|chain| chain.is_some())
    };
    put(
        &memory,
        areas.descriptors,
        3,
        piece(BUFFERS, 1),
        NO_FLAGS,
        0,
    );
    assert_eq!((take(0, 3), take(4, 3)), (Ok(false), Ok(true)));
    assert_eq!(take(5, 3), Err(Rule::AvailableIndex(5).into()));
    assert_eq!(
        take(u16::MAX, 3),
        Err(Rule::AvailableIndex(u16::MAX).into())
    );
    assert_eq!(take(1, 4), Err(Rule::Head(4).into()));
    // Twice, and more than are left while one is in flight.
    let mut device = DeviceQueue::new(&memory, setup, 4).unwrap();
    memory.store16(areas.available_index(), 2).unwrap();
    memory.store16(areas.available(0), 3).unwrap();
    memory.store16(areas.available(1), 3).unwrap();
    let chain = device.take().unwrap().unwrap();
    assert_eq!(device.take().err(), Some(Rule::HeadTwice(3).into()));
    assert_eq!(device.finish(chain, 0), Err(Rule::HeadTwice(3)));
    device.reset(setup).unwrap();
    memory.store16(areas.available_index(), 1).unwrap();
    let chain = device.take().unwrap().unwrap();
    memory.store16(areas.available_index(), 5).unwrap();
    assert_eq!(device.take().err(), Some(Rule::AvailableIndex(5).into()));
    drop(chain);
    // After it was finished the same head is welcome, at the next place.
    device.reset(setup).unwrap();
    memory.store16(areas.available_index(), 1).unwrap();
    let chain = device.take().unwrap().unwrap();
    device.finish(chain, 0).unwrap();
    memory.store16(areas.available_index(), 5).unwrap();
    assert!(device.take().unwrap().is_some());
}

/// The values that come back of entries of a device, and the rule that they break.
fn used(written: &[(u32, u32)], index: u16) -> (Vec<u8>, Result<Option<u8>, Rule>) {
    let memory = words();
    let setup = setup(4, NO);
    let (mut driver, _) = pair::<u8>(&memory, setup);
    driver
        .add(&[piece(BUFFERS, 8)], &[piece(BUFFERS, 4)], 10)
        .unwrap();
    driver.add(&[], &[piece(BUFFERS, 4)], 11).unwrap();
    for (slot, (id, len)) in (0..).zip(written) {
        let entry = u64::from(*id) | u64::from(*len) << 32;
        memory
            .write(setup.areas.used(slot), &entry.to_le_bytes())
            .unwrap();
    }
    memory.store16(setup.areas.used_index(), index).unwrap();
    let mut back = Vec::new();
    let result = loop {
        match driver.take() {
            Ok(Some(done)) => back.push(done.value),
            Ok(None) => break Ok(None),
            Err(rule) => break Err(rule),
        }
    };
    if let Err(rule) = result {
        assert_eq!(
            (driver.take(), driver.must_notify()),
            (Err(rule), Err(rule))
        );
        assert_eq!(driver.want_interrupt(), Err(rule));
        assert_eq!(
            (driver.decline_interrupts(), driver.broken()),
            (Err(rule), Some(rule))
        );
        let refused = driver.add(&[piece(BUFFERS, 1)], &[], 12).unwrap_err();
        assert_eq!((refused.why, refused.value), (Refusal::Broken(rule), 12));
    }
    // With those that a reset gives back it is all that was added, each once.
    let mut all = back.clone();
    driver.reset(|value| all.push(value)).unwrap();
    all.sort_unstable();
    assert_eq!(all, [10, 11]);
    driver
        .add(&[piece(BUFFERS, 1)], &[], 13)
        .expect("it works again");
    (back, result)
}

#[test]
fn a_driver_refuses_what_a_device_cannot_have_done() {
    // The first chain has descriptors 0 and 1, the second one 2.
    assert_eq!(used(&[(2, 4), (0, 0)], 2), (std::vec![11, 10], Ok(None)));
    assert_eq!(used(&[], 3), (Vec::new(), Err(Rule::UsedIndex(3))));
    assert_eq!(
        used(&[], u16::MAX),
        (Vec::new(), Err(Rule::UsedIndex(u16::MAX)))
    );
    for id in [1, 3, 4, 0x1_0000, u32::MAX] {
        assert_eq!(used(&[(id, 0)], 1), (Vec::new(), Err(Rule::UsedId(id))));
    }
    assert_eq!(
        used(&[(0, 4), (0, 4)], 2),
        (std::vec![10], Err(Rule::UsedId(0)))
    );
    let rule = Rule::UsedLength {
        written: 5,
        given: 4,
    };
    assert_eq!(used(&[(0, 5)], 1), (Vec::new(), Err(rule)));
}

#[test]
fn queues_that_are_none_are_refused() {
    let memory = words();
    let good = setup(8, Features::INDIRECT);
    let both = |setup: Setup, tables| {
        let driver = DriverQueue::<_, ()>::new(&memory, setup, tables).map(drop);
        assert_eq!(driver, DeviceQueue::new(&memory, setup, 8).map(drop));
        driver
    };
    assert_eq!(both(good, Some(tables(8))), Ok(()));
    for size in [0, 3, 12, u16::MAX] {
        assert_eq!(both(Setup { size, ..good }, None), Err(SetupError::Size));
    }
    assert_eq!(
        both(
            Setup {
                size: 32_768,
                ..good
            },
            None
        ),
        Err(SetupError::Unreachable)
    );
    let moved = |descriptors, driver, device| Setup {
        areas: Areas {
            descriptors: good.areas.descriptors.plus(descriptors),
            driver: good.areas.driver.plus(driver),
            device: good.areas.device.plus(device),
        },
        ..good
    };
    for odd in [moved(8, 0, 0), moved(0, 1, 0), moved(0, 0, 2)] {
        assert_eq!(both(odd, None), Err(SetupError::Alignment));
    }
    let far = MEMORY as u64;
    for outside in [moved(far, 0, 0), moved(0, far, 0), moved(0, 0, far)] {
        assert_eq!(both(outside, None), Err(SetupError::Unreachable));
    }
    let driver = |tables| DriverQueue::<_, ()>::new(&memory, good, Some(tables)).map(drop);
    let at = Address::new(BUFFERS);
    assert_eq!(driver(Tables { at, entries: 9 }), Err(SetupError::Size));
    assert_eq!(
        driver(Tables {
            at: at.plus(BUFFERS - 16),
            entries: 8
        }),
        Err(SetupError::Unreachable)
    );
    assert_eq!(
        DeviceQueue::new(&memory, good, 0).map(drop),
        Err(SetupError::Size)
    );
}

/// A chain that is longer than the device is made for is refused, however large the queue is.
#[test]
fn a_device_bounds_the_length_of_chains() {
    let memory = words();
    let setup = setup(16, Features::INDIRECT);
    let (mut driver, _) = pair(&memory, setup);
    let mut device = DeviceQueue::new(&memory, setup, 3).unwrap();
    driver.add(&[piece(BUFFERS, 1); 3], &[], 0).unwrap();
    driver
        .add(&[piece(BUFFERS, 1); 2], &[piece(BUFFERS, 1); 2], 1)
        .unwrap();
    assert_eq!(device.take().unwrap().unwrap().readable().len(), 3);
    assert_eq!(device.take().err(), Some(Rule::ChainLength.into()));
}

/// A queue takes what its areas take, and no byte less.
#[test]
fn a_queue_fits_exactly() {
    for (size, features) in [
        (4, NO),
        (16, NO),
        (16, Features::PACKED),
        (5, Features::PACKED),
    ] {
        let setup = setup(size, features);
        let end = if features == NO {
            setup.areas.device.number() + 6 + 8 * u64::from(size)
        } else {
            setup.areas.device.number() + 4
        };
        if features == NO {
            assert_eq!(Areas::bytes(size), end.next_multiple_of(16));
        }
        let device = |bytes: u64| {
            let memory = Words::new(bytes as usize).unwrap();
            DeviceQueue::new(&memory, setup, 1).map(drop)
        };
        assert_eq!(device(end), Ok(()));
        assert_eq!(device(end - 2), Err(SetupError::Unreachable));
    }
}

/// Memory that can go away.
struct Leaving<'a>(&'a Words, &'a std::cell::Cell<bool>);

impl Leaving<'_> {
    fn there(&self, at: Address) -> Result<&Words, crate::Unreachable> {
        if self.1.get() {
            Err(crate::Unreachable(at))
        } else {
            Ok(self.0)
        }
    }
}

impl Memory for Leaving<'_> {
    fn reaches(&self, _: Address, _: u64) -> bool {
        true
    }

    fn load16(&self, at: Address) -> Result<u16, crate::Unreachable> {
        self.there(at)?.load16(at)
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), crate::Unreachable> {
        self.there(at)?.store16(at, value)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), crate::Unreachable> {
        self.there(at)?.read(at, into)
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), crate::Unreachable> {
        self.there(at)?.write(at, from)
    }
}

/// Memory that goes away breaks a queue, at any of its calls, and nothing else.
#[test]
fn a_queue_whose_memory_goes_away_is_broken() {
    for features in [NO, Features::PACKED] {
        let memory = words();
        let gone = std::cell::Cell::new(true);
        let setup = setup(4, features);
        let none = DriverQueue::<_, ()>::new(Leaving(&memory, &gone), setup, None).map(drop);
        assert_eq!(none, Err(SetupError::Unreachable));
        type Call = fn(&mut DriverQueue<Leaving, ()>) -> Option<Rule>;
        let calls: [Call; 5] = [
            |queue| match queue
                .add(&[piece(BUFFERS, 1)], &[], ())
                .map_err(|refused| refused.why)
            {
                Err(Refusal::Broken(rule)) => Some(rule),
                _ => None,
            },
            |queue| queue.must_notify().err(),
            |queue| queue.take().err(),
            |queue| queue.want_interrupt().err(),
            |queue| queue.decline_interrupts().err(),
        ];
        for call in calls {
            gone.set(false);
            let mut queue = DriverQueue::new(Leaving(&memory, &gone), setup, None).unwrap();
            queue.add(&[piece(BUFFERS, 1)], &[], ()).unwrap();
            gone.set(true);
            let rule = call(&mut queue);
            assert!(matches!(rule, Some(Rule::Ring(_))), "{rule:?}");
            assert_eq!(queue.broken(), rule);
        }
    }
}

/// Each rule has a text of its own.
#[test]
fn rules_say_what_was_broken() {
    let at = Address::new(16);
    let rules = [
        Rule::UsedIndex(1),
        Rule::UsedId(1),
        Rule::UsedLength {
            written: 2,
            given: 1,
        },
        Rule::AvailableIndex(1),
        Rule::Head(1),
        Rule::HeadTwice(1),
        Rule::Next(1),
        Rule::ChainLength,
        Rule::Order,
        Rule::TooManyBytes,
        Rule::Buffer(at),
        Rule::Table,
        Rule::Ring(at),
    ];
    let texts: std::collections::HashSet<_> = rules.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), rules.len());
    assert!(format!("{}", Error::from(Rule::Head(9))).contains("descriptor 9"));
}
