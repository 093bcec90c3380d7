//! Access to devices: trusted, the supervisor's alone (`docs/devices.md`).
//!
//! Safe code gets functions as values, which name no address. It can read a function's
//! configuration space, and cannot write it: what stands there decides where a device answers and
//! where its interrupts go, which are writes to memory.
#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

mod config;

pub use config::{PciDevice, pci_devices};
