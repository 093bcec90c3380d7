//! Interrupt messages without a table (MSI; PCI Local Bus 3.0, 6.8.1).

use crate::ConfigRegisters;
use crate::function::capability;

const CAPABILITY_MSI: u8 = 0x05;
/// Bits of the control, in the upper half of the first register: enabled; how many messages of
/// several; addresses have 64 bits.
const ENABLE: u32 = 1 << 0 << 16;
const SEVERAL: u32 = 7 << 4 << 16;
const WIDE: u32 = 1 << 7 << 16;

/// Interrupt messages of a function, of which one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    at: u16,
}

impl Msi {
    /// The messages of a function, if it has any.
    #[must_use]
    pub fn find(registers: &impl ConfigRegisters) -> Option<Self> {
        capability(registers, CAPABILITY_MSI).map(|at| Self { at })
    }

    /// Makes the function send a message: it writes a number to an address. An address above 4 GiB
    /// needs a function that has 64 bits of it.
    pub fn enable(&self, registers: &impl ConfigRegisters, address: u64, data: u32) {
        let control = registers.read(self.at) & !(ENABLE | SEVERAL);
        registers.write(self.at, control);
        registers.write(self.at + 4, address as u32);
        let data_at = if control & WIDE == 0 {
            self.at + 8
        } else {
            registers.write(self.at + 8, (address >> 32) as u32);
            self.at + 12
        };
        let beside = registers.read(data_at) & !0xffff;
        registers.write(data_at, beside | data & 0xffff);
        registers.write(self.at, control | ENABLE);
    }
}
