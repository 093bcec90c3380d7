//! Registers (11.4): places, and the words in them.

use core::fmt;

/// Places of registers, in bytes from the first.
pub mod offset {
    /// Abilities (11.4.2), 64 bits.
    pub const CAPABILITY: usize = 0x08;
    /// More abilities (11.4.3), 64 bits.
    pub const EXTENDED_CAPABILITY: usize = 0x10;
    /// Commands (11.4.4.1).
    pub const COMMAND: usize = 0x18;
    /// State of what was commanded (11.4.4.2).
    pub const STATUS: usize = 0x1c;
    /// Address of the root table (11.4.5), 64 bits.
    pub const ROOT_TABLE: usize = 0x20;
    /// State of faults (11.4.7.1).
    pub const FAULT_STATUS: usize = 0x34;
    /// Control of the interrupt for faults (11.4.7.2).
    pub const FAULT_CONTROL: usize = 0x38;
    /// Message of the interrupt for faults: data, address, upper half of the address (11.4.7.3 to
    /// 11.4.7.5).
    pub const FAULT_DATA: usize = 0x3c;
    /// See [`FAULT_DATA`].
    pub const FAULT_ADDRESS: usize = 0x40;
    /// See [`FAULT_DATA`].
    pub const FAULT_UPPER_ADDRESS: usize = 0x44;
    /// Protected memory, for the time before translation is on (11.4.8.1).
    pub const PROTECTED_MEMORY: usize = 0x64;
    /// Position of the unit in the queue of requests, in bytes (11.4.9.1), 64 bits.
    pub const QUEUE_HEAD: usize = 0x80;
    /// Position of their writer (11.4.9.2), 64 bits.
    pub const QUEUE_TAIL: usize = 0x88;
    /// Address and size of the queue (11.4.9.3), 64 bits.
    pub const QUEUE_ADDRESS: usize = 0x90;
    /// Address and size of the table of interrupts (11.4.10), 64 bits.
    pub const INTERRUPT_TABLE: usize = 0xb8;
}

/// Bits of [`offset::STATUS`], which are those of [`Command`] in [`offset::COMMAND`], and of
/// [`offset::FAULT_STATUS`].
pub mod status {
    /// Reports of faults were lost.
    pub const FAULT_OVERFLOW: u32 = 1 << 0;
    /// The queue of requests has stopped: a request made no sense, or was not answered.
    pub const QUEUE_ERRORS: u32 = 7 << 4;
    /// Bit of [`super::offset::FAULT_CONTROL`]: no interrupt is sent.
    pub const FAULT_MASKED: u32 = 1 << 31;
    /// Bit of [`super::offset::PROTECTED_MEMORY`]: protection is wanted.
    pub const PROTECTION: u32 = 1 << 31;
    /// Bit of [`super::offset::PROTECTED_MEMORY`]: protection is on.
    pub const PROTECTS: u32 = 1 << 0;
}

/// A command, by its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Translation is on.
    Translate,
    /// The unit takes the address of the root table. Done once for each write.
    SetRoot,
    /// The queue of requests is on.
    Queue,
    /// Interrupts are remapped.
    RemapInterrupts,
    /// The unit takes the address of the table of interrupts. Done once for each write.
    SetInterruptTable,
    /// Interrupts that name a vector and a CPU, and no entry of the table, pass.
    PassUnmapped,
}

impl Command {
    /// Bit in the command and in the status.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << match self {
            Self::Translate => 31,
            Self::SetRoot => 30,
            Self::Queue => 26,
            Self::RemapInterrupts => 25,
            Self::SetInterruptTable => 24,
            Self::PassUnmapped => 23,
        }
    }

    /// The word that switches it on or off, given the status: what is on stays on, and what is done
    /// once is not done again (11.4.4.1).
    #[must_use]
    pub const fn word(self, status: u32, on: bool) -> u32 {
        let kept = status & 0x96ff_ffff;
        if on {
            kept | self.bit()
        } else {
            kept & !self.bit()
        }
    }
}

/// Reason why a unit is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unable {
    /// No unit answers.
    Absent,
    /// No queue of requests.
    Queue,
    /// No way to let functions pass untranslated.
    Pass,
    /// No tables of three or four levels.
    Levels,
    /// A buffer of writes that would have to be flushed.
    Buffer,
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "it does not answer",
            Self::Queue => "it has no queued invalidation",
            Self::Pass => "it cannot pass untranslated requests through",
            Self::Levels => "it has tables of neither 3 nor 4 levels",
            Self::Buffer => "its write buffer would have to be flushed",
        })
    }
}

/// Abilities of a unit that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Number of domains that it tells apart.
    pub domains: u32,
    /// Flag: it has tables of three levels.
    pub three_levels: bool,
    /// Flag: it has tables of four levels.
    pub four_levels: bool,
    /// Bits of an address that it translates.
    pub address_bits: u8,
    /// Flag: an entry may stand for 2 MiB.
    pub large_pages: bool,
    /// Flag: it sees what processors have in their caches when it reads its tables.
    pub is_coherent: bool,
    /// Flag: it remembers that there was no translation.
    pub caches_absence: bool,
    /// Flag: it remaps interrupts.
    pub remaps_interrupts: bool,
    /// Flag: it tells CPUs by numbers of 32 bits, as their x2APICs have them, and not of 8.
    pub wide_ids: bool,
    /// Flag: it waits for reads that are under way, and for writes.
    pub drains: (bool, bool),
    /// Place of the first report of a fault, and the number of reports.
    pub faults: (usize, usize),
    /// Bytes of its registers that matter.
    pub bytes: usize,
}

impl Abilities {
    /// The abilities that two words tell.
    ///
    /// # Errors
    /// [`Unable`].
    pub const fn read(capability: u64, extended: u64) -> Result<Self, Unable> {
        if capability == u64::MAX || capability == 0 || extended == u64::MAX {
            return Err(Unable::Absent);
        }
        if capability >> 4 & 1 != 0 {
            return Err(Unable::Buffer);
        }
        if extended >> 1 & 1 == 0 {
            return Err(Unable::Queue);
        }
        if extended >> 6 & 1 == 0 {
            return Err(Unable::Pass);
        }
        let (three_levels, four_levels) = (capability >> 9 & 1 != 0, capability >> 10 & 1 != 0);
        if !three_levels && !four_levels {
            return Err(Unable::Levels);
        }
        let first_fault = (capability >> 24 & 0x3ff) as usize * 16;
        let faults = (capability >> 40 & 0xff) as usize + 1;
        let end = first_fault + faults * super::FAULT_BYTES;
        Ok(Self {
            domains: 1 << (4 + 2 * (capability & 7)),
            three_levels,
            four_levels,
            address_bits: (capability >> 16 & 0x3f) as u8 + 1,
            large_pages: capability >> 34 & 1 != 0,
            is_coherent: extended & 1 != 0,
            caches_absence: capability >> 7 & 1 != 0,
            remaps_interrupts: extended >> 3 & 1 != 0,
            wide_ids: extended >> 4 & 1 != 0,
            drains: (capability >> 55 & 1 != 0, capability >> 54 & 1 != 0),
            faults: (first_fault, faults),
            bytes: if end > 0x1000 { end } else { 0x1000 },
        })
    }
}

/// The message for faults, as the registers hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// Address that is written to.
    pub address: u64,
    /// Number that is written.
    pub data: u32,
}

impl FaultEvent {
    /// Registers with what goes into them.
    #[must_use]
    pub const fn words(self) -> [(usize, u32); 3] {
        [
            (offset::FAULT_DATA, self.data),
            (offset::FAULT_ADDRESS, self.address as u32),
            (offset::FAULT_UPPER_ADDRESS, (self.address >> 32) as u32),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of QEMU 10's unit with 48 bits of addresses.
    const QEMU: (u64, u64) = (0x00d2_008c_222f_0686, 0x0000_0000_00f0_0f4a);

    #[test]
    fn abilities_are_read() {
        let able = Abilities::read(QEMU.0, QEMU.1).unwrap();
        assert_eq!(able.domains, 1 << 16);
        assert!(able.three_levels && able.four_levels && able.large_pages);
        assert_eq!(able.address_bits, 48);
        assert!(!able.is_coherent);
        assert!(able.remaps_interrupts && !able.wide_ids);
        assert_eq!(able.faults, (0x220, 1));
        assert_eq!(able.bytes, 4096);
        let many = Abilities::read(QEMU.0 | 0xff << 40, QEMU.1).unwrap();
        assert_eq!(many.bytes, 0x220 + 256 * 16);
    }

    #[test]
    fn units_that_would_not_do_are_refused() {
        let (capability, extended) = QEMU;
        for (words, unable) in [
            ((u64::MAX, u64::MAX), Unable::Absent),
            ((0, extended), Unable::Absent),
            ((capability, extended & !(1 << 1)), Unable::Queue),
            ((capability, extended & !(1 << 6)), Unable::Pass),
            ((capability & !(3 << 9), extended), Unable::Levels),
            ((capability | 1 << 4, extended), Unable::Buffer),
        ] {
            assert_eq!(Abilities::read(words.0, words.1), Err(unable));
        }
    }

    #[test]
    fn a_command_repeats_no_other() {
        let status = 1 << 31 | 1 << 30 | 1 << 26 | 1 << 24;
        // The root table and the table of interrupts are not taken again.
        assert_eq!(
            Command::RemapInterrupts.word(status, true),
            1 << 31 | 1 << 26 | 1 << 25
        );
        assert_eq!(Command::Translate.word(status, false), 1 << 26);
        assert_eq!(Command::SetRoot.word(1 << 26, true), 1 << 30 | 1 << 26);
        assert_eq!(
            Command::SetInterruptTable.word(status, true),
            1 << 31 | 1 << 26 | 1 << 24
        );
        assert_eq!(
            Command::PassUnmapped.word(1 << 25 | 1 << 23, false),
            1 << 25
        );
    }
}
