//! Access to devices: trusted (`docs/devices.md`).
//!
//! Safe code gets functions as values, which name no address. It can read a function's
//! configuration space, and cannot write it: what stands there decides where a device answers and
//! where its interrupts go, which are writes to memory. A driver claims a function and has of it
//! registers, memory that both reach, and interrupts, each of them a value that keeps the claim.
//!
//! | file | subject |
//! |---|---|
//! | `config` | configuration space, and the functions there are |
//! | `claim` | a function that a driver has for itself; letting go of it |
//! | `assigned` | a function that an instance has |
//! | `custody` | the steps by which it comes to one, and leaves it |
//! | `confined` | whether something confines what a function reaches |
//! | `faults` | what confined functions were refused |
//! | `registers` | its registers |
//! | `dma` | memory that it reads and writes |
//! | `vector` | its interrupts |
//! | `virtual_functions` | functions that a function has besides (SR-IOV) |
#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

mod assigned;
mod claim;
mod config;
mod confined;
mod custody;
mod dma;
mod faults;
mod registers;
mod vector;
mod virtual_functions;

pub use assigned::{AssignError, AssignedFunction};
pub use claim::{Claim, ClaimError, StillReaches};
pub use config::{
    Owner, PciDevice, add_function, pci_device, pci_devices, remove_function, settle,
};
pub use confined::NotConfined;
pub use dma::{DeviceAddress, DmaMemory, DmaPage};
pub use faults::{Access, DmaFault, DmaFaults};
pub use iommu::{Domain, NoDomain, units as iommu_units};
pub use registers::{NoRegisters, Registers};
pub use vector::{NoVector, Vector, init, vector_cpus};
