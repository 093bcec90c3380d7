//! Interrupt messages by a table (MSI-X; PCI Express Base 5.0, 7.7.2).

use crate::ConfigRegisters;
use crate::function::capability;

pub(crate) const CAPABILITY_MSIX: u8 = 0x11;
/// Offsets in the capability: the place of the table, and that of what is pending.
const TABLE: u16 = 4;
const PENDING: u16 = 8;
/// Bits of the control, in the upper half of the first register: number of entries less one, all
/// masked, enabled.
const ENTRIES: u32 = 0x7ff;
pub(crate) const MASK_ALL: u32 = 1 << 14 << 16;
pub(crate) const ENABLE: u32 = 1 << 15 << 16;
/// Bytes of an entry.
const ENTRY: u64 = 16;

/// Place of a table: a base address register, and a range of bytes in what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixTable {
    /// Number of the base address register.
    pub bar: u8,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl MsixTable {
    fn new(place: u32, len: u64) -> Self {
        Self {
            bar: (place & 7) as u8,
            offset: u64::from(place & !7),
            len,
        }
    }

    /// Whether bytes of a base address register are in the table.
    #[must_use]
    pub fn meets(&self, bar: u8, offset: u64, len: u64) -> bool {
        self.bar == bar
            && offset < self.offset.saturating_add(self.len)
            && self.offset < offset.saturating_add(len)
    }
}

/// Interrupt messages of a function: how many, and where they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    at: u16,
    /// Number of messages.
    pub entries: u16,
    /// Place of the table of messages.
    pub table: MsixTable,
    /// Place of the bits of those that wait.
    pub pending: MsixTable,
}

impl Msix {
    /// The messages of a function, if it has any.
    #[must_use]
    pub fn find(registers: &impl ConfigRegisters) -> Option<Self> {
        let at = capability(registers, CAPABILITY_MSIX)?;
        let entries = (registers.read(at) >> 16 & ENTRIES) as u16 + 1;
        let count = u64::from(entries);
        Some(Self {
            at,
            entries,
            table: MsixTable::new(registers.read(at + TABLE), ENTRY * count),
            pending: MsixTable::new(registers.read(at + PENDING), count.div_ceil(64) * 8),
        })
    }

    /// Makes the function send messages, and not use its line.
    pub fn enable(&self, registers: &impl ConfigRegisters) {
        let control = registers.read(self.at) & !MASK_ALL;
        registers.write(self.at, control | ENABLE);
    }
}

/// An entry of the table: what is written where, and whether it is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixEntry {
    /// Address that is written to.
    pub address: u64,
    /// Number that is written.
    pub data: u32,
}

impl MsixEntry {
    /// Bytes of an entry in the table.
    pub const BYTES: usize = ENTRY as usize;
    /// Offset of the word that holds the message back.
    pub const CONTROL: usize = 12;
    /// Value of that word that does so.
    pub const MASKED: u32 = 1;

    /// The words before that one, with their offsets.
    #[must_use]
    pub const fn words(self) -> [(usize, u32); 3] {
        [
            (0, self.address as u32),
            (4, (self.address >> 32) as u32),
            (8, self.data),
        ]
    }
}
