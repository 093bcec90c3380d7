//! The ACPI tables a machine's supervisor reads once at boot: layouts and parsers (ACPI 6.5,
//! chapter 5).
//!
//! Nothing here allocates or interprets AML. Tables are read through [`Memory`], checked for their
//! checksum, and their lengths are bounded before use: a broken table is treated as absent, but for
//! those that say what confines devices ([`Dmar`], [`Ivrs`]), which are refused.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod dmar;
mod ivrs;
mod layout;
mod madt;
mod mcfg;
mod power;

pub use dmar::{Dmar, DmarError, Region, Scope, ScopeKind, Unit};
pub use ivrs::{Ivrs, IvrsError, IvrsUnit};
pub use layout::{Header, Memory, Tables};
pub use madt::{MadtEntry, local_apic_address};
pub use mcfg::ConfigWindow;
pub use power::{PowerOff, Register};
