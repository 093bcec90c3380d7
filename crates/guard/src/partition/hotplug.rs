//! PCI functions that come to an instance that runs, and leave it (`docs/devices.md`): listed in an
//! epoch or not any more, and settled by its answer as CPUs and memory are (`grow`).
//!
//! From the epoch on one that comes is the instance's, and one that leaves is until it has
//! answered. Then the supervisor stops and resets it, which sleeps, and only the proof of that
//! makes it free: until then it is in the list that the instance's end goes through.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use abi::live;

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

    /// The function of a change that is not to be the instance's any more, as the instance has
    /// refused it.
    pub(super) fn undo(&mut self, change: FunctionChange) -> Option<Leaving> {
        match change {
            FunctionChange::Comes(number) => {
                self.functions.set_leaving(number, true);
                self.leaving(FunctionChange::Leaves(number))
            }
            FunctionChange::Leaves(number) => {
                self.functions.set_leaving(number, false);
                None
            }
        }
    }

    /// The function that leaves by a change that the instance has adopted.
    pub(super) fn leaving(&self, change: FunctionChange) -> Option<Leaving> {
        let FunctionChange::Leaves(number) = change else {
            return None;
        };
        let function = self.functions.get(number)?.clone();
        Some(Leaving { number, function })
    }

    /// A function that leaves was stopped, with the proof of that, or was not: then it stays with
    /// the instance, which does not use it, until it is [asked for](Self::ask_back) again or the
    /// instance ends. Returns how many functions are left.
    pub fn end_of_function(&mut self, number: u32, is_stopped: bool) -> usize {
        if is_stopped {
            self.functions.remove(number);
        }
        self.keep_changing(false);
        self.functions.len()
    }
}
