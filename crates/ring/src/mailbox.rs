//! The park mailbox: the publisher's side, and the protocol it follows (described at
//! [`abi::park`]).
//!
//! The parked side is assembly in the guard's park page; [`claim`] says in Rust what it does. The
//! tests run that against the publisher, on real threads and in all interleavings (loom, with a
//! slot of loom's atomics).

#[cfg(not(loom))]
use abi::park::Slot;
use abi::park::{EMPTY, RIP_STAY, ticket};
#[cfg(loom)]
use model::Slot;

use crate::sync::{AtomicU64, Ordering};

/// Order to a parked CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Root of the page tables to load; the park page is mapped at the same address there.
    pub cr3: u64,
    /// Where to go; [`RIP_STAY`] to stay.
    pub rip: u64,
    /// First argument.
    pub arg: u64,
}

/// The supervisor's end of one CPU's mailbox. One publisher per slot at a time: `&mut self` where
/// it matters.
#[derive(Debug)]
pub struct Publisher<'a> {
    slot: &'a Slot,
    epoch: u64,
}

impl<'a> Publisher<'a> {
    /// The publishing end of `slot`.
    #[must_use]
    pub fn new(slot: &'a Slot) -> Self {
        Self {
            slot,
            epoch: slot.epoch.load(Ordering::Relaxed),
        }
    }

    /// Stages an order and makes it ready; false if the last one still waits. The CPU looks when an
    /// NMI arrives.
    pub fn publish(&mut self, order: Order) -> bool {
        if self.slot.ready.load(Ordering::Acquire) != EMPTY {
            return false;
        }
        self.epoch += 1;
        self.slot.epoch.store(self.epoch, Ordering::Relaxed);
        self.slot.cr3.store(order.cr3, Ordering::Relaxed);
        self.slot.rip.store(order.rip, Ordering::Relaxed);
        self.slot.arg.store(order.arg, Ordering::Relaxed);
        self.slot.ready.store(ticket(self.epoch), Ordering::Release);
        true
    }

    /// Publishes an order to stay. When it [is claimed](Self::is_claimed), the CPU sits in the park
    /// page.
    pub fn ask_for_proof(&mut self) -> bool {
        self.publish(Order {
            cr3: 0,
            rip: RIP_STAY,
            arg: 0,
        })
    }

    /// True once the last order was taken.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.slot.claimed.load(Ordering::Acquire) == self.epoch
    }

    /// Takes the last order back; false if it was taken (or will be seen to be taken any moment):
    /// then it happens.
    pub fn revoke(&mut self) -> bool {
        self.slot
            .ready
            .compare_exchange(
                ticket(self.epoch),
                EMPTY,
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }
}

/// Takes the order out of a parked CPU's slot, if there is a new one: copies it, then claims it;
/// the caller obeys afterwards.
pub fn claim(slot: &Slot) -> Option<Order> {
    let ready = slot.ready.load(Ordering::Acquire);
    if ready == EMPTY {
        return None;
    }
    let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let (order, epoch) = (
        Order {
            cr3: read(&slot.cr3),
            rip: read(&slot.rip),
            arg: read(&slot.arg),
        },
        read(&slot.epoch),
    );
    slot.ready
        .compare_exchange(ready, EMPTY, Ordering::AcqRel, Ordering::Acquire)
        .ok()?;
    slot.claimed.store(epoch, Ordering::Release);
    Some(order)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn an_order_is_taken_once_or_revoked() {
        let slot = Slot::new(1);
        let mut publisher = Publisher::new(&slot);
        let order = Order {
            cr3: 1,
            rip: 2,
            arg: 3,
        };
        assert!(publisher.publish(order));
        assert!(!publisher.publish(order) && !publisher.is_claimed());
        assert_eq!(claim(&slot), Some(order));
        assert_eq!(claim(&slot), None);
        assert!(publisher.is_claimed() && !publisher.revoke());
        assert!(publisher.publish(order) && publisher.revoke());
        assert_eq!(claim(&slot), None);
    }

    #[test]
    fn a_proof_is_an_order_to_stay() {
        let slot = Slot::new(1);
        let mut publisher = Publisher::new(&slot);
        assert!(publisher.ask_for_proof() && !publisher.ask_for_proof());
        assert!(!publisher.is_claimed());
        assert_eq!(
            claim(&slot),
            Some(Order {
                cr3: 0,
                rip: RIP_STAY,
                arg: 0
            })
        );
        assert!(publisher.is_claimed());
    }

    /// Each publication has a number of its own, of whichever publisher it is: a claim of an
    /// earlier one proves nothing.
    #[test]
    fn a_new_publisher_goes_on_counting() {
        let slot = Slot::new(1);
        let order = |arg| Order {
            cr3: 5,
            rip: 6,
            arg,
        };
        for n in 1..=3 {
            let mut publisher = Publisher::new(&slot);
            assert!(publisher.publish(order(n)) && !publisher.is_claimed());
            assert_eq!(
                (
                    slot.epoch.load(Ordering::Relaxed),
                    slot.ready.load(Ordering::Relaxed)
                ),
                (n, ticket(n))
            );
            assert_eq!(claim(&slot), Some(order(n)));
            assert!(publisher.is_claimed());
        }
        let mut publisher = Publisher::new(&slot);
        assert!(publisher.publish(order(4)) && publisher.revoke() && !publisher.revoke());
        assert!(!publisher.is_claimed(), "revoked, and never taken");
    }

    /// Real threads, because the slot's atomics are the real ones: every order is either claimed or
    /// revoked, never both.
    #[test]
    fn publisher_and_parked_cpu_agree() {
        let slot = Arc::new(Slot::new(0));
        let done = Arc::new(AtomicU32::new(0));
        let parked = std::thread::spawn({
            let (slot, done) = (slot.clone(), done.clone());
            move || {
                let mut sum = 0;
                while done.load(Ordering::Acquire) == 0 {
                    sum += claim(&slot).map_or(0, |o| {
                        assert_eq!((o.cr3, o.rip), (o.arg + 1, o.arg + 2), "torn order");
                        o.arg
                    });
                }
                sum + claim(&slot).map_or(0, |o| o.arg)
            }
        });
        let mut publisher = Publisher::new(&slot);
        let mut sent = 0;
        for arg in 1..20_000 {
            assert!(publisher.publish(Order {
                cr3: arg + 1,
                rip: arg + 2,
                arg
            }));
            // Every other order is given up at once.
            if arg % 2 == 0 && publisher.revoke() {
                continue;
            }
            sent += arg;
            while slot.ready.load(Ordering::Acquire) != EMPTY {
                std::thread::yield_now();
            }
        }
        done.store(1, Ordering::Release);
        assert_eq!(parked.join().unwrap(), sent);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn order(arg: u64) -> Order {
        Order {
            cr3: arg + 10,
            rip: arg + 20,
            arg,
        }
    }

    /// Looks into the slot so often, and checks that what it finds was published as it is.
    fn parked(slot: &Slot, looks: usize) -> Vec<u64> {
        let claimed = (0..looks).filter_map(|_| claim(slot));
        claimed
            .map(|found| {
                (found == order(found.arg))
                    .then_some(found.arg)
                    .expect("a torn order")
            })
            .collect()
    }

    /// An order is taken once or revoked, and none is taken for another: with a `ready` that is
    /// only ever 1 the CPU could copy the first order, and claim the second.
    #[test]
    fn what_is_revoked_is_not_obeyed() {
        loom::model(|| {
            let slot = Arc::new(Slot::new());
            let cpu = thread::spawn({
                let slot = slot.clone();
                move || parked(&slot, 2)
            });
            let mut publisher = Publisher::new(&slot);
            assert!(publisher.publish(order(1)));
            let revoked = publisher.revoke();
            let second = publisher.publish(order(2));
            assert!(second, "revoked or claimed, the slot is empty");
            let mut obeyed = cpu.join().unwrap();
            obeyed.extend(parked(&slot, 1));
            assert_eq!(obeyed, if revoked { vec![2] } else { vec![1, 2] });
            assert!(publisher.is_claimed());
        });
    }

    /// A claim that the publisher sees comes after everything the CPU did before it.
    #[test]
    fn a_claim_is_a_proof() {
        loom::model(|| {
            let slot = Arc::new(Slot::new());
            let work = Arc::new(AtomicU64::new(0));
            let cpu = thread::spawn({
                let (slot, work) = (slot.clone(), work.clone());
                move || {
                    work.store(1, Ordering::Relaxed);
                    claim(&slot).is_some()
                }
            });
            let mut publisher = Publisher::new(&slot);
            assert!(publisher.ask_for_proof());
            if publisher.is_claimed() {
                assert_eq!(work.load(Ordering::Relaxed), 1);
            }
            assert_eq!(cpu.join().unwrap(), publisher.is_claimed());
        });
    }
}

/// The slot in loom's atomics.
#[cfg(loom)]
mod model {
    use super::EMPTY;
    use crate::sync::{AtomicU32, AtomicU64};

    /// The words of [`abi::park::Slot`] that the protocol uses.
    #[derive(Debug)]
    pub struct Slot {
        pub ready: AtomicU32,
        pub cr3: AtomicU64,
        pub rip: AtomicU64,
        pub arg: AtomicU64,
        pub epoch: AtomicU64,
        pub claimed: AtomicU64,
    }

    impl Slot {
        #[cfg(test)]
        pub fn new() -> Self {
            let word = || AtomicU64::new(0);
            Self {
                ready: AtomicU32::new(EMPTY),
                cr3: word(),
                rip: word(),
                arg: word(),
                epoch: word(),
                claimed: word(),
            }
        }
    }
}
