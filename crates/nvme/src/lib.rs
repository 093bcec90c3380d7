//! NVM Express controllers: what their registers, commands, completions and descriptions mean, and
//! how they are brought up, used and brought back (`docs/nvme.md`).
//!
//! Pure logic: memory and the way to a controller are the caller's ([`virtqueue::Memory`],
//! [`Function`]); waiting is, too. Nothing that a controller says is believed before it was
//! checked. Sections are those of the NVM Express Base Specification 1.4.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod command;
mod completion;
mod controller;
mod identify;
pub mod model;
mod passed;
mod queue;
mod registers;
mod runs;
mod secondary;

#[cfg(test)]
mod tests;

pub use command::Command;
pub use completion::{Completion, Failure, Rule, Status};
pub use controller::{
    Admin, Answer, Controller, Function, Passed, QUICK_LOOKS, Shape, StartError, Started,
};
pub use identify::{Identity, Namespace, Nonsense};
pub use passed::{CommandSet, Forbidden, Plan, Wanted};
pub use queue::{Data, MAX_PAGES, Queue, Refusal, Refused};
pub use registers::{Capabilities, Unusable};
pub use secondary::{NoSecondaries, Secondaries};

/// Bytes of a page of a controller's (`CC.MPS` 0): what entries of lists of pages stand for.
pub const PAGE: usize = 4096;
