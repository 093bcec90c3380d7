//! An other end that writes anything anywhere.

use std::collections::HashSet;

use super::*;
use crate::{Memory, Refusal};

/// Numbers that look random, the same ones each time (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number that is often nearly right: small, or beside a border.
    fn likely(&mut self) -> u16 {
        match self.below(4) {
            0 => self.next() as u16,
            1 => 0_u16.wrapping_sub(self.below(4) as u16),
            _ => self.below(20) as u16,
        }
    }
}

/// A queue of any kind; those of packed rings need not have a power of two.
fn any_setup(random: &mut Random) -> Setup {
    let mut features = Features::empty();
    for feature in [Features::INDIRECT, Features::EVENT_IDX, Features::PACKED] {
        features.set(feature, random.below(2) == 0);
    }
    if features.contains(Features::PACKED) {
        setup(1 + random.below(20) as u16, features)
    } else {
        setup(1 << random.below(5), features)
    }
}

/// Writes a likely number into what belongs to a queue of this size.
fn scribble(memory: &Words, random: &mut Random, setup: &Setup) {
    let at = match random.below(4) {
        0 => setup.areas.used_index(),
        1 => setup.areas.available_index(),
        _ => Address::new(2 * random.below(Areas::bytes(setup.size) / 2)),
    };
    let value = if random.below(2) == 0 {
        random.likely()
    } else {
        memory.load16(at).expect("in the queue").wrapping_add(1)
    };
    memory.store16(at, value).expect("in the queue");
}

/// A driver half with a device that is now and then good, now and then not: what was added comes
/// back once, and never with more bytes than it has.
fn device_is_hostile(steps: u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let memory = words();
    let mut broken = HashSet::new();
    let (mut value, mut done, mut step) = (0_u32, 0_u64, 0);
    while step < steps {
        let setup = any_setup(&mut random);
        let (mut driver, mut device) = pair::<(u32, u32)>(&memory, setup);
        let mut out = HashSet::new();
        for _ in 0..random.below(2000) {
            step += 1;
            let result = match random.below(8) {
                0..3 => {
                    let (reads, writes) = (random.below(4), random.below(4));
                    let len = random.below(100) as u32;
                    let readable = [piece(BUFFERS, 5); 3];
                    let writable = [piece(BUFFERS, len); 3];
                    let given = len * writes as u32;
                    let (readable, writable) =
                        (&readable[..reads as usize], &writable[..writes as usize]);
                    match driver.add(readable, writable, (value, given)) {
                        Ok(()) => {
                            assert!(out.insert(value), "a value that was there");
                            value = value.wrapping_add(1);
                            Ok(())
                        }
                        Err(refused) => match refused.why {
                            Refusal::Broken(rule) => Err(rule),
                            _ => Ok(()),
                        },
                    }
                }
                3 => driver.must_notify().map(drop),
                4 => driver.want_interrupt().map(|_| ()),
                5 => driver.take().map(|used| {
                    if let Some(used) = used {
                        assert!(out.remove(&used.value.0), "back twice, or never added");
                        assert!(used.written <= used.value.1, "longer than it is");
                        done += 1;
                    }
                }),
                6 => {
                    if let Ok(Some(chain)) = device.take() {
                        let written = random.below(chain.writable_len() + 1) as u32;
                        // The device may have broken itself by what was scribbled.
                        let _ = device.finish(chain, written);
                    }
                    Ok(())
                }
                _ => {
                    if random.below(20) == 0 {
                        scribble(&memory, &mut random, &setup);
                    }
                    Ok(())
                }
            };
            if let Err(rule) = result {
                assert_eq!(driver.broken(), Some(rule));
                broken.insert(std::mem::discriminant(&rule));
                break;
            }
            assert_eq!(usize::from(driver.in_flight()), out.len());
        }
        driver
            .reset(|(value, _)| assert!(out.remove(&value), "back twice, or never added"))
            .expect("the memory is there");
        assert!(out.is_empty(), "never back");
        driver
            .add(&[], &[piece(BUFFERS, 1)], (0, 1))
            .expect("it works");
        device.reset(setup).expect("the same queue");
        let chain = device.take().expect("it works").expect("a chain");
        device.finish(chain, 1).expect("it works");
        assert_eq!(
            driver.take().expect("it works").map(|used| used.written),
            Some(1)
        );
    }
    assert!(
        broken.len() == 3 && done > steps / 20,
        "{} rules, {done} chains",
        broken.len()
    );
}

/// A device half with a driver that writes anything: each chain is within the memory and bounded,
/// and no more are in flight than the queue has.
fn driver_is_hostile(steps: u64) {
    let mut random = Random(0xd1b5_4a32_d192_ed03);
    let memory = words();
    let mut broken = HashSet::new();
    let (mut taken, mut step) = (0_u64, 0);
    while step < steps {
        let setup = any_setup(&mut random);
        let longest = 1 + random.below(20) as u16;
        let (mut driver, _) = pair::<()>(&memory, setup);
        let mut device = DeviceQueue::new(&memory, setup, longest).expect("a device half");
        let mut chains = std::vec::Vec::new();
        for _ in 0..random.below(2000) {
            step += 1;
            let result = match random.below(8) {
                0..3 => {
                    let (reads, writes) = (random.below(4), random.below(4));
                    let pieces = [piece(BUFFERS + random.below(0x7000), 100); 3];
                    let _ = driver.add(&pieces[..reads as usize], &pieces[..writes as usize], ());
                    let _ = driver.take();
                    Ok(())
                }
                3 => device
                    .must_interrupt()
                    .map(drop)
                    .map_err(crate::Error::from),
                4 => device
                    .want_notification()
                    .map(|_| ())
                    .map_err(crate::Error::from),
                5 => device.take().map(|chain| {
                    if let Some(chain) = chain {
                        let pieces = chain.readable().len() + chain.writable().len();
                        assert!((1..=usize::from(longest.min(setup.size))).contains(&pieces));
                        for piece in chain.readable().iter().chain(chain.writable()) {
                            assert!(memory.reaches(piece.at, u64::from(piece.len)));
                        }
                        let mut byte = [0];
                        assert_eq!(
                            chain.read(&memory, 0, &mut byte).is_ok(),
                            chain.readable_len() > 0
                        );
                        taken += 1;
                        chains.push(chain);
                    }
                }),
                6 if !chains.is_empty() => {
                    let chain = chains.swap_remove(random.below(chains.len() as u64) as usize);
                    device.finish(chain, 0).map_err(crate::Error::from)
                }
                _ => {
                    if random.below(20) == 0 {
                        scribble(&memory, &mut random, &setup);
                    }
                    Ok(())
                }
            };
            match result {
                Ok(()) => {}
                Err(crate::Error::Broken(rule)) => {
                    assert_eq!(device.broken(), Some(rule));
                    broken.insert(std::mem::discriminant(&rule));
                    break;
                }
                Err(crate::Error::NoMemory) => panic!("no memory on the host"),
            }
            assert_eq!(usize::from(device.in_flight()), chains.len());
            assert!(device.in_flight() <= setup.size);
        }
    }
    assert!(
        broken.len() >= 8 && taken > steps / 40,
        "{} rules, {taken} chains",
        broken.len()
    );
}

#[test]
fn a_hostile_device_gets_errors() {
    device_is_hostile(1_000_000);
}

#[test]
fn a_hostile_driver_gets_errors() {
    driver_is_hostile(1_000_000);
}

#[test]
#[ignore = "long: by name"]
fn a_hostile_device_gets_errors_for_long() {
    device_is_hostile(10_000_000);
}

#[test]
#[ignore = "long: by name"]
fn a_hostile_driver_gets_errors_for_long() {
    driver_is_hostile(10_000_000);
}
