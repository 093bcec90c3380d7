//! Structures of Intel's units that translate what devices read and write (Virtualization
//! Technology for Directed I/O 4.1; the numbers in brackets are its sections).
//!
//! Nothing here allocates or reaches hardware: registers and entries are words. `iommu` drives the
//! units by it (`docs/iommu.md`); tables that translate are in `iotable`.
//!
//! | file | subject |
//! |---|---|
//! | `registers` | abilities of a unit, commands, their places |
//! | `context` | the tables by which a unit finds what a function may reach |
//! | `interrupt` | the table by which interrupts are remapped, and what names its entries |
//! | `queue` | requests to forget what was read of tables |
//! | `fault` | reports of what was refused |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod context;
mod fault;
mod interrupt;
mod queue;
mod registers;

pub use context::{ContextEntry, RootEntry};
pub use fault::{FAULT_BYTES, Fault};
pub use interrupt::{
    Interrupt, InterruptEntry, Source, TABLE_ORDER as INTERRUPT_TABLE_ORDER, interrupt_line,
    interrupt_message, interrupt_table, message_entry,
};
pub use queue::{Descriptor, ENTRIES as QUEUE_ENTRIES};
pub use registers::{Abilities, Command, FaultEvent, Unable, offset, status};
