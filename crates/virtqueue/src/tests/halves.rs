//! The two halves against each other.

use std::collections::HashSet;
use std::sync::mpsc;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Left, Memory, Refusal};

#[derive(Clone, Debug)]
enum Step {
    /// Offer a chain of pieces of such lengths.
    Add(Vec<u8>, Vec<u8>),
    /// Take a chain at the device.
    Take,
    /// Finish one of those taken.
    Finish(prop::sample::Index),
    /// Take what is finished at the driver.
    Collect,
    /// Reset both ends.
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lens = || prop::collection::vec(any::<u8>(), 0..6);
    prop::collection::vec(
        prop_oneof![
            6 => (lens(), lens()).prop_map(|(readable, writable)| Step::Add(readable, writable)),
            5 => Just(Step::Take),
            5 => any::<prop::sample::Index>().prop_map(Step::Finish),
            5 => Just(Step::Collect),
            1 => Just(Step::Reset),
        ],
        0..200,
    )
}

/// A size and features; sizes of packed rings need not be powers of two.
fn kinds() -> impl Strategy<Value = (u16, Features)> {
    (1u16..33, any::<u8>()).prop_map(|(size, bits)| {
        let all = [Features::INDIRECT, Features::EVENT_IDX, Features::PACKED];
        let chosen = (0..3).filter(|bit| bits & 1 << bit != 0);
        let features = chosen.fold(Features::empty(), |set, bit| set | all[bit]);
        if features.contains(Features::PACKED) {
            (size, features)
        } else {
            (1 << size.ilog2(), features)
        }
    })
}

proptest! {
    /// Whatever the order, each chain arrives once with the pieces that it was added with, and
    /// comes back once, with the length that was said.
    #[test]
    fn a_chain_goes_there_and_comes_back_once((size, features) in kinds(), steps in steps()) {
        let memory = words();
        let (mut driver, mut device) = pair::<u32>(&memory, setup(size, features));
        let mut next = 0_u32;
        // In the driver's order; by value; what the driver shall have back.
        let mut offered = std::collections::VecDeque::new();
        let mut taken = Vec::new();
        let mut finished = std::collections::VecDeque::new();
        let mut out = HashSet::new();
        for step in steps {
            match step {
                Step::Add(readable, writable) => {
                    let mut at = BUFFERS + u64::from(next % 7);
                    let mut lay = |lens: &[u8]| -> Vec<Piece> {
                        lens.iter().map(|len| {
                            let piece = piece(at, u32::from(*len));
                            at += u64::from(*len);
                            piece
                        }).collect()
                    };
                    let (readable, writable) = (lay(&readable), lay(&writable));
                    match driver.add(&readable, &writable, next) {
                        Ok(()) => {
                            offered.push_back((next, readable, writable));
                            prop_assert!(out.insert(next));
                            next += 1;
                        }
                        Err(refused) => {
                            prop_assert_eq!(refused.value, next);
                            let pieces = readable.len() + writable.len();
                            match refused.why {
                                Refusal::Empty => prop_assert_eq!(pieces, 0),
                                Refusal::TooManyPieces => prop_assert!(pieces > usize::from(size)),
                                Refusal::Full => prop_assert!(usize::from(driver.in_flight()) + pieces > usize::from(size) || driver.in_flight() > 0),
                                other => prop_assert!(false, "{:?}", other),
                            }
                        }
                    }
                }
                Step::Take => match (device.take(), offered.pop_front()) {
                    (Ok(Some(chain)), Some((value, readable, writable))) => {
                        prop_assert_eq!(chain.readable(), &readable[..]);
                        prop_assert_eq!(chain.writable(), &writable[..]);
                        taken.push((value, chain));
                    }
                    (Ok(None), None) => {}
                    (got, expected) => prop_assert!(false, "{:?} and not {:?}", got, expected),
                },
                Step::Finish(which) => if !taken.is_empty() {
                    let (value, chain) = taken.swap_remove(which.index(taken.len()));
                    let written = (chain.writable_len() / 2) as u32;
                    prop_assert!(device.finish(chain, written).is_ok());
                    finished.push_back((value, written));
                },
                Step::Collect => {
                    let done = driver.take().expect("nobody broke a rule");
                    prop_assert_eq!(done.as_ref().map(|done| (done.value, done.written)), finished.pop_front());
                    if let Some(done) = done {
                        prop_assert!(out.remove(&done.value));
                    }
                }
                Step::Reset => {
                    let mut back = HashSet::new();
                    prop_assert!(driver.reset(|value| assert!(back.insert(value))).is_ok());
                    prop_assert_eq!(&back, &out);
                    prop_assert!(device.reset(*driver.setup()).is_ok());
                    // What the device still had is nothing any more.
                    for (_, chain) in taken.drain(..) {
                        prop_assert!(device.finish(chain, 0).is_ok());
                    }
                    offered.clear();
                    finished.clear();
                    out.clear();
                }
            }
            prop_assert_eq!(usize::from(driver.in_flight()), out.len());
            prop_assert_eq!(usize::from(device.in_flight()), taken.len());
        }
    }

    /// Bytes cross the borders of pieces in both directions.
    #[test]
    fn bytes_cross_pieces(lens in prop::collection::vec(0u32..40, 1..8), cut in 0usize..40, data in prop::collection::vec(any::<u8>(), 320)) {
        let memory = words();
        let (mut driver, mut device) = pair::<()>(&memory, setup(16, Features::INDIRECT));
        let total: u32 = lens.iter().sum();
        let mut at = BUFFERS + 1;
        let pieces: Vec<Piece> = lens.iter().map(|len| {
            let piece = piece(at, *len);
            at += u64::from(*len) + 3;
            piece
        }).collect();
        driver.add(&[], &pieces, ()).expect("room");
        driver.add(&pieces, &[], ()).expect("room");
        let (into, out) = (device.take().unwrap().unwrap(), device.take().unwrap().unwrap());
        let (from, len) = (cut.min(total as usize), (total as usize).saturating_sub(cut));
        into.write(&memory, from as u64, &data[..len]).expect("it fits");
        let mut copy = std::vec![0; len];
        out.read(&memory, from as u64, &mut copy).expect("it is there");
        prop_assert_eq!(&copy[..], &data[..len]);
        prop_assert!(into.write(&memory, from as u64 + 1, &data[..len]).is_err() || len == 0 && from < total as usize);
        prop_assert!(into.read(&memory, 0, &mut [0]).is_err(), "nothing is readable");
    }
}

/// A table is used where one is there and long enough, and a chain then takes one descriptor.
#[test]
fn tables_hold_chains_of_several_pieces() {
    for layout in [Features::empty(), Features::PACKED] {
        let memory = words();
        let (mut driver, mut device) = pair(&memory, setup(16, Features::INDIRECT | layout));
        let pieces: Vec<Piece> = (0..9).map(|i| piece(BUFFERS + i * 8, 8)).collect();
        for value in 0..16 {
            driver
                .add(&pieces[..8], &[], value)
                .expect("each takes one descriptor");
        }
        let refused = driver.add(&pieces[..1], &[], 16).expect_err("full");
        assert_eq!((refused.value, refused.why), (16, Refusal::Full));
        for _ in 0..16 {
            let chain = device.take().unwrap().unwrap();
            assert_eq!(chain.readable(), &pieces[..8]);
            device.finish(chain, 0).unwrap();
        }
        while driver.take().unwrap().is_some() {}
        // Longer than a table: in the queue's own.
        driver.add(&pieces, &[], 0).expect("nine descriptors");
        assert_eq!(
            driver
                .add(&pieces[..7], &[], 1)
                .map_err(|refused| refused.why),
            Ok(())
        );
        let before = driver.add(&pieces[..8], &[], 2);
        assert!(before.is_ok(), "nine and one are taken, so six more fit");
        assert_eq!(device.take().unwrap().unwrap().readable(), &pieces[..]);
    }
}

/// Chains of too many bytes, or pieces, are refused before the device sees them.
#[test]
fn chains_that_can_never_be_are_refused() {
    let memory = words();
    let (mut driver, mut device) = pair(&memory, setup(4, Features::empty()));
    let big = piece(0, u32::MAX);
    let cases: [(&[Piece], &[Piece], Refusal); 5] = [
        (&[], &[], Refusal::Empty),
        (&[piece(0, 1); 3], &[piece(0, 1); 2], Refusal::TooManyPieces),
        (&[], &[big, piece(0, 1)], Refusal::TooManyBytes),
        (&[big, piece(0, 2)], &[], Refusal::TooManyBytes),
        (&[big], &[piece(0, 2)], Refusal::TooManyBytes),
    ];
    for (readable, writable, why) in cases {
        let refused = driver.add(readable, writable, 7).expect_err("too much");
        assert_eq!((refused.why, refused.value), (why, 7));
    }
    assert!(device.take().unwrap().is_none() && driver.in_flight() == 0);
    // As many as there can be.
    driver.add(&[big, piece(0, 1)], &[], 8).expect("2^32 bytes");
}

/// A wish is for the next one, once with `EVENT_IDX`, until it is taken back without.
#[test]
fn notifications_are_for_those_who_want_them() {
    for features in [
        Features::empty(),
        Features::EVENT_IDX,
        Features::PACKED,
        Features::PACKED | Features::EVENT_IDX,
    ] {
        let by_index = features == Features::EVENT_IDX;
        let memory = words();
        let (mut driver, mut device) = pair(&memory, setup(8, features));
        let byte = [piece(BUFFERS, 1)];
        assert!(!driver.must_notify().unwrap(), "nothing was offered");
        driver.add(&byte, &[], 0).unwrap();
        assert!(driver.must_notify().unwrap(), "as at the start");
        assert!(!driver.must_notify().unwrap(), "it was told");
        driver.add(&byte, &[], 1).unwrap();
        assert_eq!(driver.must_notify().unwrap(), !by_index);
        assert_eq!(device.want_notification(), Ok(Left::Something));
        for _ in 0..2 {
            let chain = device.take().unwrap().unwrap();
            device.finish(chain, 0).unwrap();
        }
        assert!(device.must_interrupt().unwrap(), "as at the start");
        assert_eq!(driver.want_interrupt(), Ok(Left::Something));
        assert!(driver.take().unwrap().is_some() && driver.take().unwrap().is_some());
        assert_eq!(driver.want_interrupt(), Ok(Left::Nothing));
        assert_eq!(device.want_notification(), Ok(Left::Nothing));
        // Two at once are told of once.
        driver.add(&byte, &[], 2).unwrap();
        driver.add(&byte, &[], 3).unwrap();
        assert!(driver.must_notify().unwrap());
        device.decline_notifications().unwrap();
        driver.add(&byte, &[], 4).unwrap();
        assert!(!driver.must_notify().unwrap());
        driver.decline_interrupts().unwrap();
        let chain = device.take().unwrap().unwrap();
        device.finish(chain, 0).unwrap();
        assert_eq!(
            device.must_interrupt().unwrap(),
            by_index,
            "that wish is not taken back"
        );
        let chain = device.take().unwrap().unwrap();
        device.finish(chain, 0).unwrap();
        assert!(!device.must_interrupt().unwrap());
    }
}

/// An end that did not ask for a whole round of indices is told to notify all the same.
#[test]
fn a_wish_is_not_forgotten_in_a_round_of_indices() {
    let memory = words();
    let (mut driver, mut device) = pair(&memory, setup(1, Features::EVENT_IDX));
    for _ in 0..=u16::MAX {
        driver.add(&[piece(BUFFERS, 1)], &[], ()).unwrap();
        let chain = device.take().unwrap().unwrap();
        device.finish(chain, 0).unwrap();
        driver.take().unwrap().unwrap();
    }
    // Both wishes are 0 still; the indices are, too, after 65,536 chains.
    driver.add(&[piece(BUFFERS, 1)], &[], ()).unwrap();
    assert!(driver.must_notify().unwrap());
    let chain = device.take().unwrap().unwrap();
    device.finish(chain, 0).unwrap();
    assert!(device.must_interrupt().unwrap());
}

/// Two threads that sleep until they are told: none waits for ever, and what comes is whole.
#[test]
fn threads_that_sleep_are_told() {
    const CHAINS: u32 = 40_000;
    let by_event = Features::EVENT_IDX | Features::INDIRECT;
    for features in [
        Features::INDIRECT,
        by_event,
        Features::INDIRECT | Features::PACKED,
        by_event | Features::PACKED,
    ] {
        let memory = words();
        let (mut driver, mut device) = pair(&memory, setup(8, features));
        let (notify, notified) = mpsc::channel();
        let (interrupt, interrupted) = mpsc::channel();
        let wait = |bell: &mpsc::Receiver<()>| {
            bell.recv_timeout(std::time::Duration::from_secs(60))
                .expect("to be told");
        };
        std::thread::scope(|scope| {
            let memory = &memory;
            scope.spawn(move || {
                let mut left = CHAINS;
                while left > 0 {
                    while let Some(chain) = device.take().unwrap() {
                        let mut number = [0; 4];
                        chain.read(memory, 0, &mut number).unwrap();
                        chain.write(memory, 0, &number).unwrap();
                        device.finish(chain, 4).unwrap();
                        if device.must_interrupt().unwrap() {
                            let _ = interrupt.send(());
                        }
                        left -= 1;
                    }
                    if left > 0 && device.want_notification().unwrap() == Left::Nothing {
                        wait(&notified);
                    }
                }
            });
            let (mut sent, mut received) = (0_u32, 0);
            while received < CHAINS {
                while sent < CHAINS && driver.in_flight() < 8 {
                    let at = BUFFERS + 16 * u64::from(sent % 8);
                    memory.write(Address::new(at), &sent.to_le_bytes()).unwrap();
                    driver
                        .add(
                            &[piece(at, 1), piece(at + 1, 3)],
                            &[piece(at + 8, 4)],
                            (at + 8, sent),
                        )
                        .expect("eight tables");
                    sent += 1;
                }
                if driver.must_notify().unwrap() {
                    let _ = notify.send(());
                }
                while let Some(done) = driver.take().unwrap() {
                    let mut number = [0; 4];
                    memory
                        .read(Address::new(done.value.0), &mut number)
                        .unwrap();
                    assert_eq!(
                        (u32::from_le_bytes(number), done.written),
                        (done.value.1, 4)
                    );
                    received += 1;
                }
                if received < CHAINS
                    && driver.in_flight() > 0
                    && driver.want_interrupt().unwrap() == Left::Nothing
                {
                    wait(&interrupted);
                }
            }
        });
    }
}
