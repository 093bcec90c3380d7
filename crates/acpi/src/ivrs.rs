//! The units of AMD's kind that translate what devices read and write, and the functions behind
//! each (IVRS; AMD I/O Virtualization Technology 3.05, chapter 5).
//!
//! As with DMAR, the table is checked as a whole before anything of it is used.

use core::fmt;

/// Bytes of the header that all tables have, and of it with what is before the first block.
const HEADER: usize = 36;
const FIXED: usize = HEADER + 12;

/// Kinds of blocks of units, the later with more in each. A unit has one of each kind that the
/// firmware knows; the last kind is the one that counts.
const KINDS: [u8; 3] = [0x10, 0x11, 0x40];
/// Bytes of a unit's block before its entries, by kind.
const UNIT: usize = 24;
const UNIT_EXTENDED: usize = 40;
/// Kinds of blocks of memory that functions use: all functions, one, a range of them.
const MEMORY_ALL: u8 = 0x20;
const MEMORY_ONE: u8 = 0x21;
const MEMORY_RANGE: u8 = 0x22;
/// Bytes of such a block.
const MEMORY: usize = 32;

/// Kinds of a unit's entries.
const PAD: u8 = 0x00;
const ALL: u8 = 0x01;
const ONE: u8 = 0x02;
const FIRST: u8 = 0x03;
const LAST: u8 = 0x04;
const ALIAS: u8 = 0x42;
const ALIAS_FIRST: u8 = 0x43;
const EXTENDED_ONE: u8 = 0x46;
const EXTENDED_FIRST: u8 = 0x47;
const SPECIAL: u8 = 0x48;
/// A function that ACPI names by a text; its fixed part, with the text's length in the last byte.
const NAMED: u8 = 0xf0;
const NAMED_BYTES: usize = 22;
/// Kind of a special device: an interrupt controller for lines.
const IOAPIC: u8 = 1;

/// Reason why a table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IvrsError {
    /// Fewer bytes than the fixed part, or than it says.
    Short,
    /// A block or an entry at this offset is longer than what it is in, or too short.
    Length(usize),
    /// A unit's registers are nowhere, or on no boundary of 16 KiB; its offset.
    Registers(usize),
    /// Two units have the same registers; the offset of the second.
    Twice(usize),
    /// The entry at this offset is of no kind that is known.
    Kind(usize),
    /// A range that ends at this offset has not begun, ends before it begins, or does not end.
    Range(usize),
    /// There is no unit.
    NoUnit,
}

impl fmt::Display for IvrsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("it is shorter than it says"),
            Self::Length(at) => write!(f, "what is at byte {at} does not fit into it"),
            Self::Registers(at) => write!(f, "the unit at byte {at} has no registers"),
            Self::Twice(at) => write!(f, "the unit at byte {at} is there twice"),
            Self::Kind(at) => write!(f, "the entry at byte {at} is of no known kind"),
            Self::Range(at) => write!(f, "the range that ends at byte {at} is none"),
            Self::NoUnit => f.write_str("it names no unit"),
        }
    }
}

impl core::error::Error for IvrsError {}

/// A table that makes sense.
#[derive(Clone, Copy, Debug)]
pub struct Ivrs<'a> {
    table: &'a [u8],
    /// Kind of the blocks that count.
    kind: u8,
}

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IvrsUnit<'a> {
    /// Physical address of its registers.
    pub registers: u64,
    /// Segment of its functions.
    pub segment: u16,
    /// Function that it is itself: bus in the upper byte, device and function in the lower.
    pub function: u16,
    /// Offset of its capability in that function's configuration space.
    pub capability: u16,
    /// Flags: how it is to be switched on.
    pub flags: u8,
    entries: &'a [u8],
}

/// Part of what a unit has, by one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Functions from one to another, and the one in whose name they send, if it is another.
    Functions(u16, u16, Option<u16>),
    /// An interrupt controller: its id and the name that it sends in.
    IoApic(u8, u16),
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Blocks of a table's bytes: offset and bytes. Ends with an error where one does not fit.
fn blocks(table: &[u8]) -> impl Iterator<Item = Result<(usize, &[u8]), IvrsError>> {
    let mut at = FIXED;
    core::iter::from_fn(move || {
        if at == table.len() {
            return None;
        }
        let (start, rest) = (at, &table[at..]);
        // An error is the last item.
        at = table.len();
        let length = rest.get(2..4).map(|_| usize::from(u16_at(rest, 2)));
        match length.filter(|length| (4..=rest.len()).contains(length)) {
            None => Some(Err(IvrsError::Length(start))),
            Some(length) => {
                at = start + length;
                Some(Ok((start, &rest[..length])))
            }
        }
    })
}

/// Bytes before the entries of a unit's block.
const fn fixed_of(kind: u8) -> usize {
    if kind == KINDS[0] {
        UNIT
    } else {
        UNIT_EXTENDED
    }
}

/// Reads a unit's entries; offsets in errors are those in the entries.
fn parts(entries: &[u8]) -> impl Iterator<Item = Result<Part, IvrsError>> {
    let (mut at, mut open) = (0, None);
    core::iter::from_fn(move || {
        while at < entries.len() {
            let (start, rest) = (at, &entries[at..]);
            at = entries.len();
            let length = match rest[0] {
                0..0x40 => 4,
                0x40..0x80 => 8,
                NAMED if rest.len() >= NAMED_BYTES => {
                    NAMED_BYTES + usize::from(rest[NAMED_BYTES - 1])
                }
                NAMED => return Some(Err(IvrsError::Length(start))),
                _ => return Some(Err(IvrsError::Kind(start))),
            };
            if length > rest.len() {
                return Some(Err(IvrsError::Length(start)));
            }
            let (kind, function) = (rest[0], u16_at(rest, 1));
            if open.is_some() && kind != LAST {
                return Some(Err(IvrsError::Range(start)));
            }
            let alias = || Some(u16_at(rest, 5));
            let part = match kind {
                PAD => None,
                ALL => Some(Part::Functions(0, u16::MAX, None)),
                ONE | EXTENDED_ONE | NAMED => Some(Part::Functions(function, function, None)),
                ALIAS => Some(Part::Functions(function, function, alias())),
                FIRST | EXTENDED_FIRST => {
                    open = Some((function, None));
                    None
                }
                ALIAS_FIRST => {
                    open = Some((function, alias()));
                    None
                }
                LAST => match open.take() {
                    Some((first, alias)) if first <= function => {
                        Some(Part::Functions(first, function, alias))
                    }
                    _ => return Some(Err(IvrsError::Range(start))),
                },
                SPECIAL if rest[7] == IOAPIC => Some(Part::IoApic(rest[4], u16_at(rest, 5))),
                SPECIAL => None,
                _ => return Some(Err(IvrsError::Kind(start))),
            };
            at = start + length;
            if part.is_some() {
                return part.map(Ok);
            }
        }
        open.take().map(|_| Err(IvrsError::Range(entries.len())))
    })
}

impl<'a> Ivrs<'a> {
    /// The table of these bytes, header included, whose checksum was seen to be right.
    ///
    /// # Errors
    /// [`IvrsError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IvrsError> {
        let length = bytes.get(4..8).ok_or(IvrsError::Short)?;
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length < FIXED || length > bytes.len() {
            return Err(IvrsError::Short);
        }
        let table = &bytes[..length];
        let mut kind = 0;
        for block in blocks(table) {
            let (at, block) = block?;
            let fixed = match block[0] {
                found if KINDS.contains(&found) => {
                    kind = kind.max(found);
                    fixed_of(found)
                }
                MEMORY_ALL | MEMORY_ONE | MEMORY_RANGE => MEMORY,
                _ => continue,
            };
            if block.len() < fixed {
                return Err(IvrsError::Length(at));
            }
        }
        let ivrs = Self { table, kind };
        for (at, unit) in ivrs.units_with_offsets() {
            if unit.registers == 0 || !unit.registers.is_multiple_of(1 << 14) {
                return Err(IvrsError::Registers(at));
            }
            let mut before = ivrs
                .units_with_offsets()
                .take_while(|(place, _)| *place < at);
            if before.any(|(_, other)| other.registers == unit.registers) {
                return Err(IvrsError::Twice(at));
            }
            let first = at + fixed_of(kind);
            for part in parts(unit.entries) {
                part.map_err(|error| match error {
                    IvrsError::Length(at) => IvrsError::Length(first + at),
                    IvrsError::Kind(at) => IvrsError::Kind(first + at),
                    IvrsError::Range(at) => IvrsError::Range(first + at),
                    other => other,
                })?;
            }
        }
        match kind {
            0 => Err(IvrsError::NoUnit),
            _ => Ok(ivrs),
        }
    }

    fn units_with_offsets(&self) -> impl Iterator<Item = (usize, IvrsUnit<'a>)> {
        let kind = self.kind;
        let all = blocks(self.table).flatten();
        all.filter(move |(_, block)| block[0] == kind)
            .map(move |(at, block)| {
                let unit = IvrsUnit {
                    registers: u64_at(block, 8),
                    segment: u16_at(block, 16),
                    function: u16_at(block, 4),
                    capability: u16_at(block, 6),
                    flags: block[1],
                    entries: &block[fixed_of(kind)..],
                };
                (at, unit)
            })
    }

    /// The units, in the order of the table.
    pub fn units(&self) -> impl Iterator<Item = IvrsUnit<'a>> {
        self.units_with_offsets().map(|(_, unit)| unit)
    }

    /// The number, in the order of the table, of the unit that has a function of a segment, and the
    /// function in whose name that sends; `None` if none has. Of several entries the last counts.
    #[must_use]
    pub fn unit_of(&self, segment: u16, function: u16) -> Option<(usize, u16)> {
        let units = self.units().enumerate();
        let of_segment = units.filter(|(_, unit)| unit.segment == segment);
        let found = of_segment.filter_map(|(number, unit)| {
            let has = parts(unit.entries).flatten().filter_map(|part| match part {
                Part::Functions(first, last, alias) if (first..=last).contains(&function) => {
                    Some((first != 0 || last != u16::MAX, alias))
                }
                _ => None,
            });
            let (is_named, alias) = has.last()?;
            Some((is_named, number, alias.unwrap_or(function)))
        });
        // One that names it goes before one that has all.
        let (_, number, name) = found.max_by_key(|(is_named, ..)| *is_named)?;
        Some((number, name))
    }

    /// The number of the unit that has an interrupt controller for lines, by that one's id, and the
    /// function in whose name it sends; `None` if none has.
    #[must_use]
    pub fn ioapic(&self, id: u8) -> Option<(usize, u16)> {
        self.units().enumerate().find_map(|(number, unit)| {
            let mut all = parts(unit.entries).flatten();
            all.find_map(|part| match part {
                Part::IoApic(found, name) if found == id => Some((number, name)),
                _ => None,
            })
        })
    }

    /// Whether a function uses memory for the firmware, of whatever segment it is.
    #[must_use]
    pub fn is_reserved(&self, function: u16) -> bool {
        blocks(self.table).flatten().any(|(_, block)| {
            let named = || u16_at(block, 4);
            match block[0] {
                MEMORY_ALL => true,
                MEMORY_ONE => named() == function,
                MEMORY_RANGE => (named()..=u16_at(block, 6)).contains(&function),
                _ => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(blocks: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; FIXED];
        bytes[..4].copy_from_slice(b"IVRS");
        bytes.extend(blocks.concat());
        let length = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn unit(kind: u8, registers: u64, segment: u16, entries: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; fixed_of(kind)];
        bytes[0] = kind;
        bytes[1] = 0x21;
        bytes[4..8].copy_from_slice(&[0x02, 0, 0x40, 0]);
        bytes[8..16].copy_from_slice(&registers.to_le_bytes());
        bytes[16..18].copy_from_slice(&segment.to_le_bytes());
        bytes.extend(entries);
        let length = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn memory(kind: u8, first: u16, last: u16) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY];
        bytes[0] = kind;
        bytes[2] = MEMORY as u8;
        bytes[4..6].copy_from_slice(&first.to_le_bytes());
        bytes[6..8].copy_from_slice(&last.to_le_bytes());
        bytes
    }

    #[test]
    fn each_function_is_found_at_its_unit() {
        let named = [&[NAMED, 0x68, 0][..], &[0; 18], &[2, b'_', b'1']].concat();
        let first = [
            &[PAD, 0, 0, 0, ONE, 0x10, 0, 0][..],
            &[FIRST, 0x00, 1, 0, LAST, 0xff, 2, 0],
            &[ALIAS, 0x08, 5, 0, 0, 0x00, 5, 0],
            &[ALIAS_FIRST, 0x10, 5, 0, 0, 0x01, 5, 0, LAST, 0x1f, 5, 0],
            &[SPECIAL, 0, 0, 0, 3, 0xa0, 0, IOAPIC],
            &[SPECIAL, 0, 0, 0, 4, 0xa8, 0, 2],
            &named[..],
        ]
        .concat();
        let bytes = table(&[
            unit(0x10, 0xfed8_0000, 0, &[]),
            unit(0x11, 0xfed8_0000, 0, &first),
            unit(0x11, 0xfed9_0000, 0, &[ALL, 0, 0, 0]),
            unit(0x11, 0xfeda_0000, 1, &[ONE, 0x10, 0, 0]),
            vec![0x83, 0, 4, 0],
            memory(MEMORY_ONE, 0x18, 0),
            memory(MEMORY_RANGE, 0x200, 0x20f),
        ]);
        let ivrs = Ivrs::parse(&bytes).unwrap();
        let found: Vec<_> = ivrs.units().collect();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].function, found[0].capability), (2, 0x40));
        assert_eq!((found[0].registers, found[0].flags), (0xfed8_0000, 0x21));
        for (segment, function, wanted) in [
            (0, 0x10, Some((0, 0x10))),
            (0, 0x11, Some((1, 0x11))),
            (0, 0x100, Some((0, 0x100))),
            (0, 0x2ff, Some((0, 0x2ff))),
            (0, 0x300, Some((1, 0x300))),
            (0, 0x508, Some((0, 0x500))),
            (0, 0x51f, Some((0, 0x501))),
            (0, 0x68, Some((0, 0x68))),
            (1, 0x10, Some((2, 0x10))),
            (1, 0x11, None),
            (2, 0x10, None),
        ] {
            assert_eq!(ivrs.unit_of(segment, function), wanted, "{function:x}");
        }
        assert_eq!(ivrs.ioapic(3), Some((0, 0xa0)));
        assert_eq!(ivrs.ioapic(4), None);
        for (function, wanted) in [(0x18, true), (0x19, false), (0x20f, true), (0x210, false)] {
            assert_eq!(ivrs.is_reserved(function), wanted);
        }
        let all = table(&[unit(0x10, 1 << 14, 0, &[]), memory(MEMORY_ALL, 0, 0)]);
        assert!(Ivrs::parse(&all).unwrap().is_reserved(7));
    }

    #[test]
    fn a_table_that_lies_is_refused_with_its_reason() {
        let with = |entries: &[u8]| table(&[unit(0x10, 1 << 14, 0, entries)]);
        let first = FIXED + UNIT;
        let mut long = with(&[]);
        long[FIXED + 2] = 25;
        let mut short = with(&[]);
        short[FIXED + 2] = 20;
        short.truncate(FIXED + 20);
        short[4] = short.len() as u8;
        let twice = [unit(0x10, 1 << 14, 0, &[]), unit(0x10, 1 << 14, 1, &[])];
        for (bytes, wanted) in [
            (vec![0; 7], IvrsError::Short),
            (table(&[])[..FIXED - 1].to_vec(), IvrsError::Short),
            (table(&[]), IvrsError::NoUnit),
            (long, IvrsError::Length(FIXED)),
            (short, IvrsError::Length(FIXED)),
            (table(&[vec![0x10, 0]]), IvrsError::Length(FIXED)),
            (
                table(&[unit(0x10, 1 << 12, 0, &[])]),
                IvrsError::Registers(FIXED),
            ),
            (table(&twice), IvrsError::Twice(FIXED + UNIT)),
            (with(&[ONE, 0, 0]), IvrsError::Length(first)),
            (with(&[0x05, 0, 0, 0]), IvrsError::Kind(first)),
            (with(&[0x80, 0, 0, 0]), IvrsError::Kind(first)),
            (with(&[NAMED, 0, 0, 0]), IvrsError::Length(first)),
            (with(&[LAST, 0, 0, 0]), IvrsError::Range(first)),
            (with(&[FIRST, 0, 0, 0]), IvrsError::Range(first + 4)),
            (
                with(&[FIRST, 0, 0, 0, FIRST, 0, 0, 0]),
                IvrsError::Range(first + 4),
            ),
            (
                with(&[FIRST, 1, 0, 0, LAST, 0, 0, 0]),
                IvrsError::Range(first + 4),
            ),
        ] {
            assert_eq!(Ivrs::parse(&bytes).unwrap_err(), wanted, "{bytes:x?}");
        }
    }

    proptest! {
        /// Nothing in a table makes it read beyond its end, or go on for ever.
        #[test]
        fn garbage_is_read_to_its_end(
            entries in proptest::collection::vec(any::<u8>(), 0..64),
            flips in proptest::collection::vec((0..200_usize, any::<u8>()), 0..6),
            function in any::<u16>(),
        ) {
            let good = [ONE, 0x10, 0, 0, FIRST, 0, 1, 0, LAST, 0xff, 1, 0];
            let mut bytes = table(&[
                unit(0x11, 1 << 14, 0, &good),
                unit(0x11, 2 << 14, 0, &entries),
                memory(MEMORY_RANGE, 0x200, 0x20f),
            ]);
            for (at, value) in flips {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            if let Ok(ivrs) = Ivrs::parse(&bytes) {
                prop_assert!(ivrs.units().count() > 0);
                let unit = ivrs.unit_of(0, function);
                prop_assert!(unit.is_none_or(|(number, _)| number < ivrs.units().count()));
                let _ = ivrs.ioapic(function as u8);
                let _ = ivrs.is_reserved(function);
            }
        }
    }
}
