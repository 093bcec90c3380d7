//! PCI configuration space: where functions are, what they say of themselves, and how large their
//! registers are (PCI Local Bus 3.0, chapter 6; PCI-to-PCI Bridge 1.2, chapter 3; PCI Express Base
//! 5.0, chapter 7).
//!
//! Nothing here allocates or reaches hardware: registers are read and written through
//! [`ConfigRegisters`]. A device may answer with anything. What makes no sense is taken as absent,
//! and every walk ends.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod bar;
mod control;
mod function;
mod msix;
mod scan;
#[cfg(test)]
mod tests;

use core::fmt;

pub use bar::{Bar, BarKind, Window, WindowKind};
pub use control::{Abilities, NotReset, Saved, reset, set_abilities};
pub use function::{Function, Layout, capabilities};
pub use msix::{Msix, MsixEntry, MsixTable};
pub use scan::{Machine, scan};

/// Bytes of the configuration space that every function has.
pub const CONFIG_BYTES: u16 = 256;
/// Bytes of the configuration space of a PCI Express function.
pub const EXTENDED_CONFIG_BYTES: u16 = 4096;
/// Bytes at the start of the configuration space that are laid out alike for all: the header.
pub const HEADER_BYTES: u16 = 64;

/// Devices on a bus.
const DEVICES: u8 = 32;
/// Functions of a device.
const FUNCTIONS: u8 = 8;

/// Place of a function: segment (Linux: domain), bus, device and function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Segment group.
    pub segment: u16,
    /// Bus within the segment.
    pub bus: u8,
    /// Device on the bus (5 bits) and function of the device (3 bits).
    devfn: u8,
}

impl Address {
    /// The address of a function; of `device` and `function` the low five and three bits count.
    #[must_use]
    pub const fn new(segment: u16, bus: u8, device: u8, function: u8) -> Self {
        Self {
            segment,
            bus,
            devfn: device % DEVICES * FUNCTIONS + function % FUNCTIONS,
        }
    }

    /// Number of the device on its bus.
    #[must_use]
    pub const fn device(self) -> u8 {
        self.devfn / FUNCTIONS
    }

    /// Number of the function within its device.
    #[must_use]
    pub const fn function(self) -> u8 {
        self.devfn % FUNCTIONS
    }

    /// Device and function in one number: the function's place on its bus.
    #[must_use]
    pub const fn devfn(self) -> u8 {
        self.devfn
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.segment,
            self.bus,
            self.device(),
            self.function()
        )
    }
}

/// The configuration space of one function, in 32-bit registers.
pub trait ConfigRegisters {
    /// Reads the register at `offset`, a multiple of 4 below 4096; all ones where nothing answers.
    fn read(&self, offset: u16) -> u32;

    /// Writes the register at `offset`.
    fn write(&self, offset: u16, value: u32);
}
