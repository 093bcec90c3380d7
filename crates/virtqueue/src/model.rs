//! Model checks (`RUSTFLAGS="--cfg loom"`): indices, and who is told, in all orders that weak
//! memory allows.

use std::collections::BTreeMap;

use loom::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::{
    Address, Areas, DeviceQueue, DriverQueue, Features, Left, Memory, Piece, Setup, Unreachable,
};

/// The memory of a queue: a cell for what is accessed in one, so that there are few.
struct Cells {
    numbers: BTreeMap<u64, AtomicU16>,
    longs: BTreeMap<u64, AtomicU64>,
}

impl Cells {
    fn new(setup: &Setup) -> Self {
        let (areas, size) = (&setup.areas, setup.size);
        let mut numbers = vec![
            areas.available_flags(),
            areas.available_index(),
            areas.used_event(size),
            areas.used_flags(),
            areas.used_index(),
            areas.available_event(size),
        ];
        numbers.extend((0..size).map(|slot| areas.available(slot)));
        // In packed rings flags are accessed by themselves.
        numbers.extend((0..size).map(|slot| areas.descriptor(slot).plus(14)));
        let mut longs: Vec<_> = (0..size).map(|slot| areas.used(slot)).collect();
        longs.extend((0..2 * u64::from(size)).map(|half| areas.descriptors.plus(8 * half)));
        let cell = |at: Address| (at.number(), AtomicU16::new(0));
        let long = |at: Address| (at.number(), AtomicU64::new(0));
        Self {
            numbers: numbers.into_iter().map(cell).collect(),
            longs: longs.into_iter().map(long).collect(),
        }
    }

    fn long(&self, at: u64) -> Result<&AtomicU64, Unreachable> {
        self.longs.get(&at).ok_or(Unreachable(Address::new(at)))
    }
}

impl Memory for Cells {
    fn reaches(&self, _: Address, _: u64) -> bool {
        true
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        let cell = self.numbers.get(&at.number()).ok_or(Unreachable(at))?;
        Ok(cell.load(Ordering::Acquire))
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        let cell = self.numbers.get(&at.number()).ok_or(Unreachable(at))?;
        cell.store(value, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        for (at, bytes) in (at.number()..).step_by(8).zip(into.chunks_mut(8)) {
            let long = self.long(at)?.load(Ordering::Relaxed).to_le_bytes();
            bytes.copy_from_slice(&long[..bytes.len()]);
        }
        Ok(())
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        for (at, bytes) in (at.number()..).step_by(8).zip(from.chunks(8)) {
            let mut long = [0; 8];
            long[..bytes.len()].copy_from_slice(bytes);
            let long = u64::from_le_bytes(long);
            self.long(at)?.store(long, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Chains that go there and back in one run.
const CHAINS: u32 = 2;

/// The chain with this number: its length says which it is.
fn chain(number: u32) -> Piece {
    Piece {
        at: Address::new(0x1000),
        len: 10 + number,
    }
}

/// Another piece of a chain, before that.
const FIRST: Piece = Piece {
    at: Address::new(0x800),
    len: 3,
};

/// A driver that sleeps until it is interrupted, and a device that sleeps until it is notified:
/// all chains arrive whole, in order, and come back, and neither sleeps for ever. (Loom fails when
/// all threads wait.)
fn there_and_back(size: u16, features: Features, readable: &'static [Piece]) {
    loom::model(move || {
        let setup = Setup {
            size,
            areas: Areas::at(Address::new(0), size),
            features,
        };
        let memory = Arc::new(Cells::new(&setup));
        let bells = Arc::new((Notify::new(), Notify::new()));
        let mut driver = DriverQueue::new(Shared(memory.clone()), setup, None).expect("a queue");
        let mut device = DeviceQueue::new(Shared(memory), setup, size).expect("a queue");
        let far = bells.clone();
        let peer = thread::spawn(move || {
            let mut number = 0;
            while number < CHAINS {
                while let Some(taken) = device.take().expect("nobody broke a rule") {
                    assert_eq!(taken.writable(), [chain(number)]);
                    assert_eq!(taken.readable(), readable);
                    device.finish(taken, number).expect("nobody broke a rule");
                    number += 1;
                    if device.must_interrupt().expect("nobody broke a rule") {
                        far.1.notify();
                    }
                }
                let left = device.want_notification().expect("nobody broke a rule");
                if number < CHAINS && left == Left::Nothing {
                    far.0.wait();
                }
            }
        });
        let (mut sent, mut back) = (0, 0);
        while back < CHAINS {
            while sent < CHAINS && driver.add(readable, &[chain(sent)], sent).is_ok() {
                sent += 1;
                if driver.must_notify().expect("nobody broke a rule") {
                    bells.0.notify();
                }
            }
            while let Some(done) = driver.take().expect("nobody broke a rule") {
                assert_eq!((done.value, done.written), (back, back));
                back += 1;
            }
            let fits = usize::from(driver.in_flight()) < usize::from(size) / (1 + readable.len());
            if sent < CHAINS && fits {
                continue;
            }
            let left = driver.want_interrupt().expect("nobody broke a rule");
            if back < CHAINS && left == Left::Nothing {
                bells.1.wait();
            }
        }
        peer.join().unwrap();
    });
}

/// Memory that both threads have.
struct Shared(Arc<Cells>);

impl Memory for Shared {
    fn reaches(&self, at: Address, len: u64) -> bool {
        self.0.reaches(at, len)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        self.0.load16(at)
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        self.0.store16(at, value)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        self.0.read(at, into)
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        self.0.write(at, from)
    }
}

#[test]
fn no_one_sleeps_for_ever_by_flags() {
    there_and_back(2, Features::empty(), &[]);
}

#[test]
fn no_one_sleeps_for_ever_by_index() {
    there_and_back(2, Features::EVENT_IDX, &[]);
}

/// A queue of one, whose places are used again at once.
#[test]
fn a_place_is_used_again() {
    there_and_back(1, Features::EVENT_IDX, &[]);
}

#[test]
fn no_one_sleeps_for_ever_in_a_packed_ring() {
    there_and_back(2, Features::PACKED, &[]);
}

#[test]
fn no_one_sleeps_for_ever_by_place() {
    there_and_back(2, Features::PACKED.union(Features::EVENT_IDX), &[]);
}

/// A packed ring of one, each chain of which is a round.
#[test]
fn a_packed_place_is_used_again() {
    there_and_back(1, Features::PACKED.union(Features::EVENT_IDX), &[]);
}

/// The flags of a chain's first descriptor say that the others are there, too.
#[test]
fn a_packed_chain_arrives_whole() {
    there_and_back(2, Features::PACKED, &[FIRST]);
}
