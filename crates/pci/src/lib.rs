//! PCI configuration space: where functions are, what they say of themselves, and how large their
//! registers are (PCI Local Bus 3.0, chapter 6; PCI-to-PCI Bridge 1.2, chapter 3; PCI Express Base
//! 5.0, chapter 7).
//!
//! Nothing here allocates or reaches hardware: registers are read and written through
//! [`ConfigRegisters`]. A device may answer with anything. What makes no sense is taken as absent,
//! and every walk ends.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod access_control;
mod bar;
mod control;
mod function;
mod msi;
mod msix;
mod scan;
#[cfg(test)]
mod tests;
mod virtual_functions;

use core::fmt;
use core::str::FromStr;

pub use access_control::{has_access_control, keeps_names, leads_up, redirect};
pub use bar::{Bar, BarKind, Window, WindowKind};
pub use control::{Abilities, NotReset, Saved, can_reset, reset, set_abilities};
pub use function::{Function, Layout, capabilities};
pub use msi::Msi;
pub use msix::{Msix, MsixEntry, MsixTable};
pub use scan::{Machine, scan};
pub use virtual_functions::{VirtualFunctions, bars_of_virtual, forwards_high, room_for};

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

    /// The address as one number: segment, bus, place on the bus.
    #[must_use]
    pub const fn number(self) -> u32 {
        (self.segment as u32) << 16 | (self.bus as u32) << 8 | self.devfn as u32
    }

    /// The address of a [`Self::number`].
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self {
            segment: (number >> 16) as u16,
            bus: (number >> 8) as u8,
            devfn: number as u8,
        }
    }
}

/// A text that is no address of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    /// Reads an address as it is printed; without a segment it is of the first one.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let number = |text: &str, digits: usize, most: u16| {
            let is_one = text.len() == digits && text.bytes().all(|c| c.is_ascii_hexdigit());
            let number = is_one.then(|| u16::from_str_radix(text, 16).ok());
            number.flatten().filter(|number| *number <= most)
        };
        let (segment, rest) = match text.split_once(':').ok_or(NoAddress)? {
            (segment, rest) if rest.contains(':') => (segment, rest),
            _ => ("0000", text),
        };
        let (bus, place) = rest.split_once(':').ok_or(NoAddress)?;
        let (device, function) = place.split_once('.').ok_or(NoAddress)?;
        Ok(Self::new(
            number(segment, 4, u16::MAX).ok_or(NoAddress)?,
            number(bus, 2, u8::MAX.into()).ok_or(NoAddress)? as u8,
            number(device, 2, u16::from(DEVICES - 1)).ok_or(NoAddress)? as u8,
            number(function, 1, u16::from(FUNCTIONS - 1)).ok_or(NoAddress)? as u8,
        ))
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
