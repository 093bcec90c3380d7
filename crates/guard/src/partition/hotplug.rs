//! PCI functions that come to an instance that runs, and leave it (`docs/devices.md`): listed in an
//! epoch or not any more, and settled by its answer as CPUs and memory are (`grow`).
//!
//! From the epoch on one that comes is the instance's, and one that leaves is until it has
//! answered. Then the supervisor stops and resets it, which sleeps, and only the proof of that
//! makes it free: until then it is in the list that the instance's end goes through.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use abi::live::{self, Refusal};

use super::functions::Functions;
use super::grow::{GrowError, Pending};
use super::{AssignError, Function, Partition};
use crate::faults::crash_point;

/// Change by which the function of a number comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FunctionChange {
    /// The instance is told of it.
    Comes(u32),
    /// The instance is to let go of it.
    Leaves(u32),
}

impl FunctionChange {
    /// Number of the function that comes by the change.
    pub(super) fn came(self) -> Option<u32> {
        match self {
            Self::Comes(number) => Some(number),
            Self::Leaves(_) => None,
        }
    }
}

/// Function that an instance does not use any more.
#[derive(Clone)]
pub struct Leaving {
    /// Number of the function.
    pub number: u32,
    /// The function, to be stopped.
    pub function: Arc<dyn Function>,
    /// Flag: it stays, as the instance could not reset it, and is to be held back only.
    pub stays: bool,
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leaving({:#x})", self.number)
    }
}

/// Reason why a running instance does not get a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// A change of what it has is not possible now.
    Change(GrowError),
    /// The function is none that it can have.
    Assign(AssignError),
}

impl Partition {
    /// Gives a function to the instance, which runs; returns the number of the epoch that says so.
    ///
    /// # Errors
    /// [`InsertError`]; nothing was changed, and the function is dropped.
    pub fn insert(&mut self, function: Box<dyn Function>) -> Result<u64, InsertError> {
        self.check_changeable().map_err(InsertError::Change)?;
        let number = function.place().number;
        self.assign(function).map_err(InsertError::Assign)?;
        // The notes name it before it can reach the instance's memory.
        self.keep_changing(true);
        crash_point("device: staged");
        let first = self.cpus[0].apic_id;
        if let Some(function) = self.functions.get(number) {
            function.hand_over(first);
        }
        Ok(self.tell(FunctionChange::Comes(number), false))
    }

    /// Asks the instance, which runs, to let go of a function; returns the number of the epoch that
    /// says so, or `None` if it has no such one. With `force` whoever uses it there is not asked.
    ///
    /// # Errors
    /// [`GrowError::Stopped`], [`GrowError::Pending`]; nothing was changed.
    pub fn ask_back(&mut self, number: u32, force: bool) -> Result<Option<u64>, GrowError> {
        self.check_changeable()?;
        if self.functions.get(number).is_none() {
            return Ok(None);
        }
        self.keep_changing(true);
        self.functions.set_leaving(number, true);
        Ok(Some(self.tell(FunctionChange::Leaves(number), force)))
    }

    fn tell(&mut self, change: FunctionChange, force: bool) -> u64 {
        let (cpus, bytes) = (self.cpus.len(), self.memory_bytes());
        let epoch = self.publish_table(cpus, bytes, force.then_some(live::FORCE));
        self.pending = Some(Pending::of_function(epoch, cpus, bytes, change));
        self.ring();
        crash_point("device: told");
        epoch
    }

    /// A function that leaves was stopped, with the proof of that, or was not: then it stays with
    /// the instance, which does not use it, until it is [asked for](Self::ask_back) again or the
    /// instance ends. Returns how many functions are left.
    pub fn end_of_function(&mut self, number: u32, is_stopped: bool) -> usize {
        let left = self.functions.end_of(number, is_stopped);
        self.keep_changing(false);
        left
    }
}

impl Functions {
    /// The function of a change that the instance has refused, if it is not to be the instance's
    /// any more, or is not to be used.
    pub(super) fn undo(&mut self, change: FunctionChange, refusal: Refusal) -> Option<Leaving> {
        match change {
            FunctionChange::Comes(number) => {
                self.set_leaving(number, true);
                self.leaving(FunctionChange::Leaves(number))
            }
            FunctionChange::Leaves(number) => {
                self.set_leaving(number, false);
                // Its driver has let go of it.
                let left = (refusal == Refusal::NotReset).then(|| self.leaving(change));
                left.flatten().map(|leaving| Leaving {
                    stays: true,
                    ..leaving
                })
            }
        }
    }

    /// The function that leaves by a change that the instance has adopted.
    pub(super) fn leaving(&self, change: FunctionChange) -> Option<Leaving> {
        let FunctionChange::Leaves(number) = change else {
            return None;
        };
        let function = self.get(number)?.clone();
        Some(Leaving {
            number,
            function,
            stays: false,
        })
    }

    /// A function that leaves was stopped, or not, and is the instance's still; returns how many it
    /// has.
    fn end_of(&mut self, number: u32, is_stopped: bool) -> usize {
        if is_stopped {
            self.remove(number);
        }
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::Domain;
    use super::super::quarantine::Room;
    use super::*;
    use crate::device::FunctionPlace;

    /// Fate of a function, by what was done with it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Fate {
        stops: usize,
        holds: usize,
        drops: usize,
    }

    /// A function of which it is noted what becomes of it.
    struct Noted {
        place: FunctionPlace,
        /// Attempts to stop it that prove nothing, before one does.
        unproven: Mutex<usize>,
        fate: Arc<Mutex<Fate>>,
    }

    // SAFETY: there is none, so nothing answers at its place, and it reaches no memory.
    unsafe impl Function for Noted {
        fn place(&self) -> &FunctionPlace {
            &self.place
        }

        fn set_vectors(&mut self, _: u8) {}

        fn hand_over(&self, _: u32) {}

        fn stop(&self) -> bool {
            self.fate.lock().unwrap().stops += 1;
            let mut unproven = self.unproven.lock().unwrap();
            let is_stopped = *unproven == 0;
            *unproven = unproven.saturating_sub(1);
            is_stopped
        }

        fn hold_back(&self) {
            self.fate.lock().unwrap().holds += 1;
        }

        fn domain(&self) -> Option<&dyn Domain> {
            None
        }

        fn is_led(&self, _: u32) -> bool {
            true
        }
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            self.fate.lock().unwrap().drops += 1;
        }
    }

    /// Response of an instance to a change; or its end before that.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Response {
        Taken,
        Refused(Refusal),
        Ended,
    }

    const ANSWERS: [Response; 5] = [
        Response::Taken,
        Response::Refused(Refusal::NoMemory),
        Response::Refused(Refusal::NotReset),
        Response::Refused(Refusal::Open(1)),
        Response::Ended,
    ];

    /// An instance's functions: number 1, and 2 of which it is noted what becomes of it.
    struct Instance {
        functions: Functions,
        fate: Arc<Mutex<Fate>>,
    }

    fn function(number: u32, unproven: usize) -> (Arc<dyn Function>, Arc<Mutex<Fate>>) {
        let fate = Arc::<Mutex<Fate>>::default();
        let noted = Noted {
            place: FunctionPlace {
                number,
                ..FunctionPlace::default()
            },
            unproven: Mutex::new(unproven),
            fate: fate.clone(),
        };
        (Arc::new(noted), fate)
    }

    impl Instance {
        fn new(unproven: usize) -> Self {
            let mut functions = Functions::default();
            let (one, _) = function(1, 0);
            let (two, fate) = function(2, unproven);
            for one in [two, one] {
                assert!(functions.add(one, Room::take().unwrap()));
            }
            Self { functions, fate }
        }

        fn has(&self) -> bool {
            self.functions.numbers().any(|number| number == 2)
        }

        /// Whether an epoch lists it.
        fn is_told(&self) -> bool {
            let mut told = self.functions.0.iter().filter(|given| !given.leaves);
            told.any(|given| given.function.place().number == 2)
        }

        fn fate(&self) -> Fate {
            *self.fate.lock().unwrap()
        }

        /// Settles a change as the supervisor does; true if it does so by its end.
        fn settle(&mut self, change: FunctionChange, answer: Response) -> bool {
            let leaving = match answer {
                Response::Taken => self.functions.leaving(change),
                Response::Refused(refusal) => self.functions.undo(change, refusal),
                Response::Ended => {
                    while self.functions.stop() > 0 {}
                    return true;
                }
            };
            if let Some(leaving) = leaving {
                let is_stopped = match leaving.stays {
                    true => {
                        leaving.function.hold_back();
                        false
                    }
                    false => leaving.function.stop(),
                };
                let left = self.functions.end_of(leaving.number, is_stopped);
                assert_eq!(left, self.functions.len());
            }
            false
        }
    }

    /// For each answer, and whether the function proves that it is stopped at once or later: the
    /// instance has it, and the end stops it, or it was stopped and dropped, once.
    #[test]
    fn each_answer_leaves_a_function_in_one_place() {
        let changes = [FunctionChange::Comes(2), FunctionChange::Leaves(2)];
        for change in changes {
            for answer in ANSWERS {
                for unproven in 0..3 {
                    let what = format!("{change:?} {answer:?} {unproven}");
                    let mut instance = Instance::new(unproven);
                    let leaves = matches!(change, FunctionChange::Leaves(_));
                    instance.functions.set_leaving(2, leaves);
                    assert_eq!(instance.is_told(), !leaves, "{what}");
                    let has_ended = instance.settle(change, answer);
                    let goes = leaves == (answer == Response::Taken);
                    let is_gone = has_ended || goes && unproven == 0;
                    assert_eq!(instance.has(), !is_gone, "{what}");
                    assert_eq!(instance.fate().drops, is_gone.into(), "{what}");
                    assert_eq!(instance.is_told(), !is_gone && !goes, "{what}");
                    // Only what the instance could not reset is held back, and it keeps that.
                    let stays = leaves && answer == Response::Refused(Refusal::NotReset);
                    assert_eq!(instance.fate().holds, stays.into(), "{what}");
                    if has_ended {
                        assert_eq!(instance.functions.len(), 0);
                        continue;
                    }
                    // It is asked for again, until it has left.
                    for _ in 0..3 {
                        instance.functions.set_leaving(2, true);
                        instance.settle(FunctionChange::Leaves(2), Response::Taken);
                    }
                    assert!(!instance.has(), "{what}");
                    assert_eq!(instance.fate().drops, 1, "{what}");
                    assert_eq!(instance.functions.len(), 1);
                }
            }
        }
    }

    /// An instance that ends while its function is being stopped by another thread: both may do
    /// it, and it is dropped when both have.
    #[test]
    fn an_end_beside_a_function_that_leaves_drops_it_once() {
        for is_first in [false, true] {
            let mut instance = Instance::new(0);
            let change = FunctionChange::Leaves(2);
            instance.functions.set_leaving(2, true);
            let leaving = instance.functions.leaving(change).unwrap();
            let again = leaving.clone();
            if is_first {
                assert!(leaving.function.stop());
            }
            assert_eq!(instance.functions.stop(), 0);
            assert_eq!(instance.fate().drops, 0, "who leaves has it still");
            if !is_first {
                assert!(leaving.function.stop());
            }
            assert_eq!(instance.functions.end_of(again.number, true), 0);
            drop(leaving);
            drop(again);
            assert_eq!(instance.fate().drops, 1);
            assert_eq!(instance.fate().stops, 2);
        }
    }

    #[test]
    fn a_function_that_it_does_not_have_does_not_leave() {
        let mut instance = Instance::new(0);
        assert!(
            instance
                .functions
                .leaving(FunctionChange::Leaves(3))
                .is_none()
        );
        assert!(
            instance
                .functions
                .leaving(FunctionChange::Comes(2))
                .is_none()
        );
        let undone = instance
            .functions
            .undo(FunctionChange::Comes(3), Refusal::NoMemory);
        assert!(undone.is_none());
        assert_eq!(instance.functions.end_of(3, true), 2);
    }
}
