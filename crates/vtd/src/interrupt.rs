//! The table by which interrupts are remapped (5.1, 9.10): what a device sends names an entry, and
//! the entry says which vector of which CPU that is, and who may name it.

/// Entries of a table, as a power of two: 64 KiB of them.
pub const TABLE_ORDER: u8 = 12;

/// An interrupt that names no entry goes to this address of 1 MiB; one that does has a bit set.
const MESSAGES: u64 = 0xfee0_0000;
/// In a message's address: it names an entry, and what is written is added to the entry's number.
const NAMES_ENTRY: u64 = 1 << 4;
const ADDS_DATA: u64 = 1 << 3;

const PRESENT: u64 = 1 << 0;
const LEVEL: u64 = 1 << 4;
/// Verification of who sends: one number, or a range of buses.
const VERIFY_FUNCTION: u64 = 1 << 18;
const VERIFY_BUSES: u64 = 2 << 18;

/// Sender of an interrupt, in whose name it comes to the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// One function: bus in the upper byte, device and function in the lower.
    Function(u16),
    /// All functions of some buses: behind a bridge to conventional PCI, which has its own name or
    /// that of a bus for what it passes on.
    Buses {
        /// The first.
        first: u8,
        /// The last.
        last: u8,
    },
}

/// An interrupt, at a vector of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The vector.
    pub vector: u8,
    /// APIC id of the CPU.
    pub apic_id: u32,
    /// Flag: it comes from a line, and as long as that is raised.
    pub is_level: bool,
}

/// An entry, 16 bytes. The first word has the bit by which it counts, so it is written last, and
/// taken back first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptEntry(pub [u64; 2]);

impl InterruptEntry {
    /// A message that names the entry interrupts nobody.
    pub const ABSENT: Self = Self([0; 2]);

    /// A message of `source` that names the entry is this interrupt; those of others are refused.
    /// `None` if the CPU's number is wider than the unit takes it.
    #[must_use]
    pub const fn new(interrupt: Interrupt, source: Source, wide_ids: bool) -> Option<Self> {
        let Interrupt {
            vector,
            apic_id,
            is_level,
        } = interrupt;
        let destination = if wide_ids {
            (apic_id as u64) << 32
        } else if apic_id < 0xff {
            (apic_id as u64) << 40
        } else {
            return None;
        };
        let trigger = if is_level { LEVEL } else { 0 };
        let verified = match source {
            Source::Function(function) => function as u64 | VERIFY_FUNCTION,
            Source::Buses { first, last } => (first as u64) << 8 | last as u64 | VERIFY_BUSES,
        };
        Some(Self([
            destination | (vector as u64) << 16 | trigger | PRESENT,
            verified,
        ]))
    }

    /// Place of an entry in its table, in bytes.
    #[must_use]
    pub const fn place(index: u16) -> usize {
        index as usize * 16
    }
}

/// Address of messages that name entries from `first` on: what is written there is added.
#[must_use]
pub const fn interrupt_message(first: u16) -> u64 {
    MESSAGES | NAMES_ENTRY | ADDS_DATA | (first as u64 & 0x7fff) << 5 | (first as u64 >> 15) << 2
}

/// The entry that messages to an address name first; `None` if that is no address of
/// [`interrupt_message`].
#[must_use]
pub const fn message_entry(address: u64) -> Option<u16> {
    let first = (address >> 5 & 0x7fff | (address >> 2 & 1) << 15) as u16;
    if interrupt_message(first) == address {
        Some(first)
    } else {
        None
    }
}

/// The word by which an interrupt controller for lines names an entry, whose vector it repeats; how
/// the line is triggered comes beside that (5.1.5.1).
#[must_use]
pub const fn interrupt_line(index: u16, vector: u8) -> u64 {
    (index as u64 & 0x7fff) << 49 | 1 << 48 | (index as u64 >> 15) << 11 | vector as u64
}

/// The word that tells a unit its table, which is at a multiple of 4,096 and has
/// 2^[`TABLE_ORDER`] entries.
#[must_use]
pub const fn interrupt_table(at: u64, wide_ids: bool) -> u64 {
    let mode = if wide_ids { 1 << 11 } else { 0 };
    at | mode | (TABLE_ORDER as u64 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPT: Interrupt = Interrupt {
        vector: 0x41,
        apic_id: 3,
        is_level: false,
    };

    #[test]
    fn entries_are_those_of_the_standard() {
        let source = Source::Function(0x0310);
        let entry = |interrupt, wide| InterruptEntry::new(interrupt, source, wide);
        assert_eq!(
            entry(INTERRUPT, false).unwrap().0,
            [0x300_0041_0001, 0x4_0310]
        );
        assert_eq!(entry(INTERRUPT, true).unwrap().0, [0x3_0041_0001, 0x4_0310]);
        let line = Interrupt {
            is_level: true,
            apic_id: 0x1_0000,
            ..INTERRUPT
        };
        assert_eq!(entry(line, true).unwrap().0, [0x1_0000_0041_0011, 0x4_0310]);
        assert_eq!(entry(line, false), None);
        let buses = Source::Buses { first: 2, last: 5 };
        let behind = InterruptEntry::new(INTERRUPT, buses, true).unwrap();
        assert_eq!(behind.0[1], 0x8_0205);
        assert_eq!(InterruptEntry::ABSENT.0[0] & PRESENT, 0);
        assert_eq!(InterruptEntry::place(0xfff), 0xfff0);
    }

    #[test]
    fn entries_are_named_as_the_standard_has_it() {
        assert_eq!(interrupt_message(0), 0xfee0_0018);
        assert_eq!(interrupt_message(0x12), 0xfee0_0258);
        assert_eq!(interrupt_message(0x8001), 0xfee0_003c);
        for first in [0, 0x12, 0x7fff, 0x8000, 0xffff] {
            assert_eq!(message_entry(interrupt_message(first)), Some(first));
        }
        for address in [0, 0xfee0_0000, 0xfee0_0010, 0xfee0_0019, 0x1_fee0_0018] {
            assert_eq!(message_entry(address), None);
        }
        assert_eq!(interrupt_line(5, 0x34), 0xb_0000_0000_0034);
        assert_eq!(interrupt_line(0x8000, 0x34), 0x1_0000_0000_0834);
        assert_eq!(interrupt_table(0x7_0000, true), 0x7_080b);
        assert_eq!(interrupt_table(0x7_0000, false), 0x7_000b);
    }
}
