//! Registers (3.4): places, and the words in them.

use core::fmt;

/// Places of registers, in bytes from the first, all of 64 bits.
pub mod offset {
    /// Address and size of the device table.
    pub const DEVICE_TABLE: usize = 0x0000;
    /// Address and size of the queue of commands.
    pub const COMMANDS: usize = 0x0008;
    /// Address and size of the log of events.
    pub const EVENTS: usize = 0x0010;
    /// Control.
    pub const CONTROL: usize = 0x0018;
    /// Abilities.
    pub const FEATURES: usize = 0x0030;
    /// Position of the unit in the queue, in bytes.
    pub const COMMAND_HEAD: usize = 0x2000;
    /// Position of their writer.
    pub const COMMAND_TAIL: usize = 0x2008;
    /// Position of the reader of the log.
    pub const EVENT_HEAD: usize = 0x2010;
    /// Position of the unit in the log.
    pub const EVENT_TAIL: usize = 0x2018;
    /// State.
    pub const STATUS: usize = 0x2020;
    /// Bytes of all of them.
    pub const END: usize = 0x4000;
}

/// Bits of [`offset::CONTROL`].
pub mod control {
    /// The unit translates.
    pub const ENABLE: u64 = 1 << 0;
    /// Events are logged.
    pub const LOG_EVENTS: u64 = 1 << 2;
    /// An event interrupts.
    pub const EVENT_INTERRUPT: u64 = 1 << 3;
    /// The unit sees what processors have in their caches when it reads its tables.
    pub const COHERENT: u64 = 1 << 10;
    /// Commands are done.
    pub const COMMANDS: u64 = 1 << 12;
    /// Entries for interrupts have 128 bits.
    pub const LONG_INTERRUPTS: u64 = 1 << 17;
    /// Entries for interrupts tell CPUs by numbers of 32 bits.
    pub const WIDE_IDS: u64 = 1 << 50;

    /// Bits that a unit wants set, by the flags that the firmware has for it (IVHD, 5.2.2.1): how
    /// it goes on with what passes.
    #[must_use]
    pub const fn wanted(flags: u8) -> u64 {
        let flags = flags as u64;
        (flags & 1) << 1 | (flags >> 1 & 1) << 8 | (flags >> 2 & 1) << 9 | (flags >> 3 & 1) << 11
    }
}

/// Bits of [`offset::STATUS`].
pub mod status {
    /// Events were lost.
    pub const EVENT_OVERFLOW: u64 = 1 << 0;
    /// An event has interrupted.
    pub const EVENT_INTERRUPT: u64 = 1 << 1;
    /// Events are logged.
    pub const LOGS_EVENTS: u64 = 1 << 3;
    /// Commands are done.
    pub const DOES_COMMANDS: u64 = 1 << 4;
}

/// The word for a queue or a log of one page, 256 entries, at a multiple of 4,096.
#[must_use]
pub const fn buffer(at: u64) -> u64 {
    at | 8 << 56
}

/// The word for a device table of so many bytes, a multiple of 4,096, as the address is.
#[must_use]
pub const fn device_table(at: u64, bytes: usize) -> u64 {
    at | (bytes as u64 / 4096 - 1)
}

/// Reason why a unit is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unable {
    /// No unit answers, or it does not tell what it is able to.
    Absent,
    /// No way to have it forget all.
    ForgetAll,
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "it does not answer",
            Self::ForgetAll => "it cannot be made to forget all at once",
        })
    }
}

/// Abilities of a unit that matter here. All have tables of four levels, with entries for 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Flag: its entries for interrupts may have 128 bits.
    pub long_interrupts: bool,
    /// Flag: these may tell CPUs by numbers of 32 bits.
    pub wide_ids: bool,
    /// Flag: it remembers that there was no translation.
    pub caches_absence: bool,
}

impl Abilities {
    /// The abilities that two words tell: the unit's features, and the head of its capability in
    /// configuration space (3.2.1).
    ///
    /// # Errors
    /// [`Unable`].
    pub const fn read(features: u64, capability: u32) -> Result<Self, Unable> {
        const KIND: u32 = 0x0f | 3 << 16;
        const HAS_FEATURES: u32 = 1 << 27;
        if features == u64::MAX
            || capability & 0x0007_00ff != KIND
            || capability & HAS_FEATURES == 0
        {
            return Err(Unable::Absent);
        }
        if features >> 6 & 1 == 0 {
            return Err(Unable::ForgetAll);
        }
        Ok(Self {
            long_interrupts: features >> 7 & 1 != 0,
            wide_ids: features >> 2 & 1 != 0,
            caches_absence: capability >> 26 & 1 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of QEMU 10's unit with `xtsup=on`.
    const QEMU: (u64, u32) = (0x29d7, 0x1f03_400f);

    #[test]
    fn abilities_are_read() {
        let able = Abilities::read(QEMU.0, QEMU.1).unwrap();
        assert!(able.long_interrupts && able.wide_ids && able.caches_absence);
        let narrow = Abilities::read(QEMU.0 & !(1 << 2), QEMU.1 & !(1 << 26)).unwrap();
        assert!(narrow.long_interrupts && !narrow.wide_ids && !narrow.caches_absence);
    }

    #[test]
    fn units_that_would_not_do_are_refused() {
        let (features, capability) = QEMU;
        for (words, unable) in [
            ((u64::MAX, capability), Unable::Absent),
            ((features, u32::MAX), Unable::Absent),
            ((features, capability & !0xff), Unable::Absent),
            ((features, capability & !(1 << 27)), Unable::Absent),
            ((features & !(1 << 6), capability), Unable::ForgetAll),
        ] {
            assert_eq!(Abilities::read(words.0, words.1), Err(unable));
        }
    }

    #[test]
    fn words_are_those_of_the_standard() {
        assert_eq!(buffer(0x7000), 0x0800_0000_0000_7000);
        assert_eq!(device_table(0x20_0000, 2 << 20), 0x20_01ff);
        assert_eq!(device_table(0x1000, 4096), 0x1000);
        assert_eq!(control::wanted(0x2f), 1 << 1 | 1 << 8 | 1 << 9 | 1 << 11);
        assert_eq!(control::wanted(0x30), 0);
    }
}
