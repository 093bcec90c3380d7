//! Structures of AMD's units that translate what devices read and write (AMD I/O Virtualization
//! Technology 3.05; the numbers in brackets are its sections).
//!
//! Nothing here allocates or reaches hardware: registers and entries are words. `iommu` drives the
//! units by it (`docs/iommu.md`); tables that translate are in `iotable`.
//!
//! | file | subject |
//! |---|---|
//! | `registers` | abilities of a unit, their places |
//! | `device` | the table by which a unit finds what a function may reach |
//! | `interrupt` | the tables by which interrupts are remapped, and what names their entries |
//! | `command` | requests to forget what was read of tables |
//! | `event` | reports of what was refused |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod command;
mod device;
mod event;
mod interrupt;
mod registers;

pub use command::{COMMANDS, Command};
pub use device::DeviceEntry;
pub use event::{EVENTS, Event};
pub use interrupt::{
    INTERRUPTS, InterruptEntry, interrupt_control, interrupt_line, interrupt_message, interrupts_at,
};
pub use registers::{Abilities, Unable, buffer, control, device_table, offset, status};
