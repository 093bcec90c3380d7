//! The table by which a unit finds what a function may reach (2.2.2): an entry for each function,
//! by its number.

use iotable::Geometry;

/// The entry counts: one that does not has all pass.
const VALID: u64 = 1 << 0;
/// The rest of it counts for translation.
const TRANSLATES: u64 = 1 << 1;
/// Levels of tables; none: what a function asks for is an address of the machine.
const LEVELS: u32 = 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const MAY_READ_WRITE: u64 = 1 << 61 | 1 << 62;

/// The part of an entry that is of memory: its first two words. The rest is that of interrupts
/// ([`crate::interrupt_control`]), and nothing.
///
/// A unit reads entries in pieces. So the first word is set to that of [`Self::BLOCKED`] before the
/// others are changed, and to its own value after that: it is never one that has all pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEntry(pub [u64; 2]);

impl DeviceEntry {
    /// Bytes of an entry.
    pub const BYTES: usize = 32;
    /// Place in an entry of the word of interrupts.
    pub const INTERRUPTS: usize = 16;

    /// The function reaches nothing.
    pub const BLOCKED: Self = Self([VALID | TRANSLATES, 0]);

    /// The function reaches what the tables of a domain say; their root is at a multiple of 4,096.
    /// Requests that it calls translated already are refused.
    #[must_use]
    pub const fn translated(domain: u16, root: u64, geometry: Geometry) -> Self {
        let levels = (geometry.levels() as u64) << LEVELS;
        Self([
            root | VALID | TRANSLATES | levels | MAY_READ_WRITE,
            domain as u64,
        ])
    }

    /// The domain and the root of its tables, if this is an entry as [`Self::translated`] makes it.
    #[must_use]
    pub const fn domain(self, geometry: Geometry) -> Option<(u16, u64)> {
        let Self([first, second]) = self;
        let (domain, root) = (second as u16, first & ADDRESS);
        let Self([like_first, like_second]) = Self::translated(domain, root, geometry);
        if first == like_first && second == like_second {
            Some((domain, root))
        } else {
            None
        }
    }

    /// The function reaches all memory of the machine.
    #[must_use]
    pub const fn passed(domain: u16) -> Self {
        Self([VALID | TRANSLATES | MAY_READ_WRITE, domain as u64])
    }

    /// Place in the table of the entry for a function, in bytes.
    #[must_use]
    pub const fn place(function: u16) -> usize {
        function as usize * Self::BYTES
    }
}

#[cfg(test)]
mod tests {
    use iotable::Format;

    use super::*;

    #[test]
    fn entries_say_what_they_are_for() {
        let geometry = Geometry {
            format: Format::Amd,
            four_levels: true,
            large_pages: true,
        };
        let DeviceEntry(words) = DeviceEntry::translated(7, 0x8000, geometry);
        assert_eq!(words, [0x6000_0000_0000_8803, 7]);
        let translated = DeviceEntry(words);
        assert_eq!(translated.domain(geometry), Some((7, 0x8000)));
        for bit in (0..12).chain(52..64) {
            let other = DeviceEntry([words[0] ^ 1 << bit, words[1]]);
            assert_eq!(other.domain(geometry), None, "{bit}");
        }
        for bit in 16..64 {
            let other = DeviceEntry([words[0], words[1] ^ 1 << bit]);
            assert_eq!(other.domain(geometry), None, "{bit}");
        }
        assert_eq!(DeviceEntry::passed(1).domain(geometry), None);
        assert_eq!(DeviceEntry::passed(1).0, [0x6000_0000_0000_0003, 1]);
        assert_eq!(DeviceEntry::BLOCKED.0, [3, 0]);
        assert_eq!(DeviceEntry::place(0x0108), 0x2100);
    }
}
