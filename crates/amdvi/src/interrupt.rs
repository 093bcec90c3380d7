//! The tables by which interrupts are remapped (2.2.5), one for each function: the number that a
//! function writes names an entry of its own table, and that says which vector of which CPU it is.

/// Entries of a table of one page.
pub const INTERRUPTS: usize = 256;

/// Messages are written to this address, whatever CPU they are for.
const MESSAGES: u64 = 0xfee0_0000;

/// In a function's entry: what it says of interrupts counts; the table's size, as a power of two;
/// interrupts are remapped.
const VALID: u64 = 1 << 0;
const SIZE: u64 = 8 << 1;
const REMAPPED: u64 = 2 << 60;

/// The word of interrupts in the entry for a function: they are remapped by a table at a multiple
/// of 4,096. NMI and all that are no plain interrupts are refused. Without a table all are.
#[must_use]
pub const fn interrupt_control(table: Option<u64>) -> u64 {
    match table {
        Some(at) => at | VALID | SIZE | REMAPPED,
        None => VALID,
    }
}

/// The table that a word of interrupts names; `None` if it names none, or is none of
/// [`interrupt_control`].
#[must_use]
pub const fn interrupts_at(word: u64) -> Option<u64> {
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    let table = word & ADDRESS;
    if interrupt_control(Some(table)) == word {
        Some(table)
    } else {
        None
    }
}

/// An entry, 16 bytes. The first word has the bit by which it counts, so it is written last, and
/// taken back first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptEntry(pub [u64; 2]);

impl InterruptEntry {
    /// Bytes of an entry.
    pub const BYTES: usize = 16;
    /// A message that names the entry interrupts nobody.
    pub const ABSENT: Self = Self([0; 2]);

    /// A vector of a CPU. `None` if its number is wider than the unit takes it.
    #[must_use]
    pub const fn new(vector: u8, apic_id: u32, wide_ids: bool) -> Option<Self> {
        if !wide_ids && apic_id >= 0xff {
            return None;
        }
        let (low, high) = (apic_id as u64 & 0xff_ffff, apic_id as u64 >> 24);
        Some(Self([VALID | low << 8, vector as u64 | high << 56]))
    }
}

/// Address of messages; the number that is written is the one of the entry.
#[must_use]
pub const fn interrupt_message() -> u64 {
    MESSAGES
}

/// The word by which an interrupt controller for lines names an entry.
#[must_use]
pub const fn interrupt_line(index: u16) -> u64 {
    index as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_of_the_standard() {
        let entry = |apic_id, wide| InterruptEntry::new(0x41, apic_id, wide);
        assert_eq!(entry(3, false).unwrap().0, [0x301, 0x41]);
        assert_eq!(
            entry(0x1234_5678, true).unwrap().0,
            [0x3456_7801, 0x1200_0000_0000_0041]
        );
        assert_eq!(entry(0xff, false), None);
        assert_eq!(InterruptEntry::ABSENT.0[0] & VALID, 0);
        assert_eq!(interrupt_control(Some(0x9000)), 0x2000_0000_0000_9011);
        assert_eq!(interrupt_control(None), 1);
        assert_eq!(interrupts_at(interrupt_control(Some(0x9000))), Some(0x9000));
        for word in [0, interrupt_control(None), 0x2000_0000_0000_9010, 0x9011] {
            assert_eq!(interrupts_at(word), None);
        }
    }
}
