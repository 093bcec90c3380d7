//! Tables by which a unit finds what a function may reach (9.1, 9.3): a root table with an entry
//! for each bus, and for each bus a table with an entry for each function.

use iotable::Geometry;

const PRESENT: u64 = 1;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Type of translation: requests that the function says to be translated are refused.
const TRANSLATE: u64 = 0 << 2;
/// Type of translation: none; what a function asks for is an address of the machine.
const PASS: u64 = 2 << 2;

/// An entry for a bus, 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootEntry(pub [u64; 2]);

impl RootEntry {
    /// Functions of the bus are in the table at this address, a multiple of 4,096.
    #[must_use]
    pub const fn of(table: u64) -> Self {
        Self([table | PRESENT, 0])
    }

    /// Address of the table, if this is an entry as [`Self::of`] makes it.
    #[must_use]
    pub const fn table(self) -> Option<u64> {
        let Self([first, second]) = self;
        if first & !ADDRESS == PRESENT && second == 0 {
            Some(first & ADDRESS)
        } else {
            None
        }
    }
}

/// An entry for a function, 16 bytes. The first word has the bit by which it counts, so it is
/// written last, and taken back first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextEntry(pub [u64; 2]);

impl ContextEntry {
    /// The function reaches nothing.
    pub const BLOCKED: Self = Self([0; 2]);

    /// The function reaches what the tables of a domain say; their root is at a multiple of 4,096.
    #[must_use]
    pub const fn translated(domain: u16, root: u64, geometry: Geometry) -> Self {
        Self([
            root | TRANSLATE | PRESENT,
            (domain as u64) << 8 | (geometry.levels() as u64 - 2),
        ])
    }

    /// The domain and the root of its tables, if this is an entry as [`Self::translated`] makes it.
    #[must_use]
    pub const fn domain(self, geometry: Geometry) -> Option<(u16, u64)> {
        let Self([first, second]) = self;
        let (domain, root) = ((second >> 8) as u16, first & ADDRESS);
        let Self([like_first, like_second]) = Self::translated(domain, root, geometry);
        if first == like_first && second == like_second {
            Some((domain, root))
        } else {
            None
        }
    }

    /// The function reaches all memory of the machine. The width has to be the largest that the
    /// unit has.
    #[must_use]
    pub const fn passed(domain: u16, four_levels: bool) -> Self {
        let width = if four_levels { 2 } else { 1 };
        Self([PASS | PRESENT, (domain as u64) << 8 | width])
    }

    /// Place in a table of the function at this place on its bus, in bytes.
    #[must_use]
    pub const fn place(devfn: u8) -> usize {
        devfn as usize * 16
    }
}

#[cfg(test)]
mod tests {
    use iotable::Format;

    use super::*;

    #[test]
    fn entries_say_what_they_are_for() {
        let geometry = Geometry {
            format: Format::Intel,
            four_levels: true,
            large_pages: true,
        };
        assert_eq!(RootEntry::of(0x5000).0, [0x5001, 0]);
        assert_eq!(
            ContextEntry::translated(7, 0x8000, geometry).0,
            [0x8001, 0x702]
        );
        assert_eq!(ContextEntry::passed(1, false).0, [0x9, 0x101]);
        let translated = ContextEntry::translated(7, 0x8000, geometry);
        assert_eq!(translated.domain(geometry), Some((7, 0x8000)));
        for bit in (0..12).chain(52..64) {
            let ContextEntry([first, second]) = translated;
            let other = ContextEntry([first ^ 1 << bit, second]);
            assert_eq!(other.domain(geometry), None, "{bit}");
        }
        for bit in (0..8).chain(24..64) {
            let ContextEntry([first, second]) = translated;
            let other = ContextEntry([first, second ^ 1 << bit]);
            assert_eq!(other.domain(geometry), None, "{bit}");
        }
        assert_eq!(ContextEntry::passed(1, true).domain(geometry), None);
        assert_eq!(RootEntry::of(0x5000).table(), Some(0x5000));
        for other in [[0x5000, 0], [0x5003, 0], [0x5001, 1], [1 << 63 | 1, 0]] {
            assert_eq!(RootEntry(other).table(), None);
        }
        assert_eq!(ContextEntry::BLOCKED.0[0] & PRESENT, 0);
        assert_eq!(ContextEntry::place(0xff), 4080);
    }
}
