//! Places of PCI Express configuration space in memory (MCFG; PCI Firmware Specification 3.3,
//! section 4.1.2).

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::{Header, Memory, Tables};

/// Bytes between the header and the first entry.
const RESERVED: u64 = 8;

/// An entry as it stands in the table.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
struct Entry {
    base: u64,
    segment: u16,
    first_bus: u8,
    last_bus: u8,
    reserved: u32,
}

/// Configuration space of the buses of a segment, in memory: 4 KiB for each function, 1 MiB for
/// each bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigWindow {
    /// Physical address at which bus 0 would be, whether it is part of this or not.
    pub base: u64,
    /// The segment.
    pub segment: u16,
    /// The first bus.
    pub first_bus: u8,
    /// The last bus.
    pub last_bus: u8,
}

impl<M: Memory> Tables<'_, M> {
    /// Calls `each` for every window of configuration space that makes sense; for none if there is
    /// no such table.
    pub fn for_each_config_window(&self, mut each: impl FnMut(ConfigWindow)) {
        let Some((at, header)) = self.find(b"MCFG") else {
            return;
        };
        let end = at + u64::from(header.length);
        let mut next = at + size_of::<Header>() as u64 + RESERVED;
        while next + size_of::<Entry>() as u64 <= end {
            let Some(entry) = self.memory().get::<Entry>(next) else {
                return;
            };
            let Entry {
                base,
                segment,
                first_bus,
                last_bus,
                ..
            } = entry;
            if first_bus <= last_bus && base != 0 && base.is_multiple_of(1 << 20) {
                each(ConfigWindow {
                    base,
                    segment,
                    first_bus,
                    last_bus,
                });
            }
            next += size_of::<Entry>() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::machine;

    fn entry(base: u64, segment: u16, buses: (u8, u8)) -> Vec<u8> {
        let mut bytes = base.to_le_bytes().to_vec();
        bytes.extend(segment.to_le_bytes());
        bytes.extend([buses.0, buses.1, 0, 0, 0, 0]);
        bytes
    }

    fn windows(body: &[u8]) -> Vec<ConfigWindow> {
        let memory = machine(&[(b"MCFG", body)]);
        let mut found = Vec::new();
        Tables::new(&memory, 0x40)
            .unwrap()
            .for_each_config_window(|window| found.push(window));
        found
    }

    #[test]
    fn windows_are_found_and_nonsense_is_left_out() {
        let mut body = vec![0; 8];
        body.extend(entry(0xb000_0000, 0, (0, 255)));
        // Buses from behind, no address, and one between two buses.
        body.extend(entry(0xe000_0000, 1, (9, 8)));
        body.extend(entry(0, 2, (0, 1)));
        body.extend(entry(0xe008_0000, 3, (0, 1)));
        body.extend(entry(0x1_0000_0000, 4, (16, 16)));
        let [first, last] = windows(&body)[..] else {
            panic!("two make sense");
        };
        assert_eq!((first.base, first.segment), (0xb000_0000, 0));
        assert_eq!((first.first_bus, first.last_bus), (0, 255));
        assert_eq!((last.base, last.segment), (0x1_0000_0000, 4));
        // The last one is cut off.
        body.pop();
        assert_eq!(windows(&body), [first]);
    }

    #[test]
    fn there_may_be_none() {
        assert_eq!(windows(&[]), []);
        assert_eq!(windows(&[0; 8]), []);
        assert_eq!(windows(&[0; 23]), []);
    }
}
