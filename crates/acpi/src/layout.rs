//! Finding tables: root pointer, root tables, headers.

use core::mem::size_of;
use core::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Physical memory, as far as the caller can see it.
pub trait Memory {
    /// Copies from physical address `at`; false if that cannot be seen.
    fn read(&self, at: u64, to: &mut [u8]) -> bool;

    /// Reads a structure.
    fn get<T: FromBytes + IntoBytes>(&self, at: u64) -> Option<T>
    where
        Self: Sized,
    {
        let mut value = T::new_zeroed();
        self.read(at, value.as_mut_bytes()).then_some(value)
    }
}

/// Root system description pointer (5.2.5.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
struct RootPointer {
    signature: [u8; 8],
    checksum: u8,
    oem: [u8; 6],
    revision: u8,
    rsdt: u32,
    length: u32,
    xsdt: u64,
    extended_checksum: u8,
    reserved: [u8; 3],
}

/// Address of the word in which a BIOS keeps the segment of its extended data area, whose first KiB
/// may hold the root pointer (5.2.5.1).
const EXTENDED_DATA: u64 = 0x40e;
const EXTENDED_DATA_BYTES: u64 = 1 << 10;
/// The BIOS's own memory (5.2.5.1).
const BIOS: Range<u64> = 0xe_0000..0x10_0000;

const _: () = assert!(size_of::<RootPointer>() == 36);
/// Bytes of the root pointer in revision 0.
const ROOT_POINTER_V1: usize = 20;

/// System description table header (5.2.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub struct Header {
    /// Signature of the table, four ASCII letters.
    pub signature: [u8; 4],
    /// Bytes, header included.
    pub length: u32,
    /// Version of the layout.
    pub revision: u8,
    checksum: u8,
    oem: [u8; 24],
    creator: [u8; 2],
}

const _: () = assert!(size_of::<Header>() == 36);

/// No table is larger; a length beyond is a broken one.
const LARGEST: u32 = 4 << 20;

/// The tables of a machine.
#[derive(Debug)]
pub struct Tables<'a, M> {
    memory: &'a M,
    /// Physical address of the root table, and the size of its entries.
    root: u64,
    entry_bytes: u64,
}

impl<'a, M: Memory> Tables<'a, M> {
    /// The tables under the root pointer at `rsdp`; `None` if there is no valid one.
    pub fn new(memory: &'a M, rsdp: u64) -> Option<Self> {
        let pointer: RootPointer = memory.get(rsdp)?;
        if &pointer.signature != b"RSD PTR " || sum(&pointer.as_bytes()[..ROOT_POINTER_V1]) != 0 {
            return None;
        }
        let extended = pointer.revision >= 2 && pointer.xsdt != 0 && sum(pointer.as_bytes()) == 0;
        let (root, entry_bytes) = if extended {
            (pointer.xsdt, 8)
        } else {
            (u64::from(pointer.rsdt), 4)
        };
        let tables = Self {
            memory,
            root,
            entry_bytes,
        };
        tables.checked_header(root).map(|_| tables)
    }

    /// The tables under the root pointer that a BIOS left in its memory, for a loader that says
    /// nothing of it (5.2.5.1); `None` if there is no valid one.
    pub fn of_bios(memory: &'a M) -> Option<Self> {
        let segment: u16 = memory.get(EXTENDED_DATA).unwrap_or(0);
        let extended = u64::from(segment) << 4;
        (extended..extended + EXTENDED_DATA_BYTES)
            .chain(BIOS)
            .step_by(16)
            .find_map(|at| Self::new(memory, at))
    }

    /// The memory the tables are in.
    pub fn memory(&self) -> &'a M {
        self.memory
    }

    /// The first valid table with this signature: its address and header.
    #[must_use]
    pub fn find(&self, signature: &[u8; 4]) -> Option<(u64, Header)> {
        let root = self.checked_header(self.root)?;
        let entries = (u64::from(root.length) - size_of::<Header>() as u64) / self.entry_bytes;
        (0..entries).find_map(|i| {
            let mut raw = [0; 8];
            let at = self.root + size_of::<Header>() as u64 + i * self.entry_bytes;
            self.memory
                .read(at, &mut raw[..self.entry_bytes as usize])
                .then_some(())?;
            let table = u64::from_le_bytes(raw);
            let header: Header = self.memory.get(table)?;
            (&header.signature == signature)
                .then(|| self.checked_header(table))
                .flatten()
                .map(|header| (table, header))
        })
    }

    /// The header at `at`, if length and checksum are right.
    pub(crate) fn checked_header(&self, at: u64) -> Option<Header> {
        let header: Header = self.memory.get(at)?;
        let length = header.length;
        if length < size_of::<Header>() as u32 || length > LARGEST {
            return None;
        }
        let mut total = 0u8;
        let mut chunk = [0; 64];
        let mut offset = 0;
        while offset < length {
            let count = (length - offset).min(chunk.len() as u32) as usize;
            self.memory
                .read(at + u64::from(offset), &mut chunk[..count])
                .then_some(())?;
            total = total.wrapping_add(sum(&chunk[..count]));
            offset += count as u32;
        }
        (total == 0).then_some(header)
    }
}

/// The sum that is zero in a valid table.
pub(crate) fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

#[cfg(test)]
pub(crate) mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// Memory from 0 on.
    pub(crate) struct Bytes(pub Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, at: u64, to: &mut [u8]) -> bool {
            let Some(from) = self.0.get(at as usize..at as usize + to.len()) else {
                return false;
            };
            to.copy_from_slice(from);
            true
        }
    }

    /// Puts a table at `at`, with a right checksum.
    pub(crate) fn place(
        memory: &mut Bytes,
        at: usize,
        signature: &[u8; 4],
        revision: u8,
        body: &[u8],
    ) {
        let mut table = vec![0; 36];
        table[..4].copy_from_slice(signature);
        table[4..8].copy_from_slice(&(36 + body.len() as u32).to_le_bytes());
        table[8] = revision;
        table.extend_from_slice(body);
        table[9] = 0u8.wrapping_sub(sum(&table));
        let end = at + table.len();
        if memory.0.len() < end {
            memory.0.resize(end, 0);
        }
        memory.0[at..end].copy_from_slice(&table);
    }

    pub(crate) fn machine(tables: &[(&[u8; 4], &[u8])]) -> Bytes {
        let mut memory = Bytes(vec![0; 0x1000]);
        let mut at = 0x1000;
        let mut root = Vec::new();
        for (signature, body) in tables {
            place(&mut memory, at, signature, 1, body);
            root.extend_from_slice(&(at as u64).to_le_bytes());
            at = memory.0.len().next_multiple_of(16);
        }
        place(&mut memory, 0x100, b"XSDT", 1, &root);
        let mut pointer = RootPointer::new_zeroed();
        pointer.signature = *b"RSD PTR ";
        pointer.revision = 2;
        pointer.length = 36;
        pointer.xsdt = 0x100;
        pointer.checksum = 0u8.wrapping_sub(sum(&pointer.as_bytes()[..20]));
        pointer.extended_checksum = 0u8.wrapping_sub(sum(pointer.as_bytes()));
        memory.0[0x40..0x64].copy_from_slice(pointer.as_bytes());
        memory
    }

    #[test]
    fn finds_what_is_there() {
        let memory = machine(&[(b"APIC", &[1, 2, 3]), (b"HPET", &[])]);
        let tables = Tables::new(&memory, 0x40).unwrap();
        assert_eq!(tables.find(b"APIC").unwrap().0, 0x1000);
        assert!(tables.find(b"HPET").is_some());
        assert!(tables.find(b"DMAR").is_none());
        assert!(Tables::new(&memory, 0x50).is_none());
    }

    /// The root pointer is found on each 16 bytes of the two places where a BIOS puts it, and
    /// nowhere else; one that is not sound hides none behind it.
    #[test]
    fn a_bios_has_it_in_two_places() {
        let found = |places: &[usize]| {
            let mut memory = machine(&[(b"APIC", &[1])]);
            let pointer: [u8; 36] = memory.0[0x40..0x64].try_into().unwrap();
            memory.0[0x40..0x64].fill(0);
            memory.0.resize(0x11_0000, 0);
            memory.0[0x40e..0x410].copy_from_slice(&0x9fc0u16.to_le_bytes());
            for &at in places {
                memory.0[at..at + 36].copy_from_slice(&pointer);
            }
            // Not sound.
            memory.0[0xe_0040..0xe_0048].copy_from_slice(b"RSD PTR ");
            Tables::of_bios(&memory).is_some()
        };
        for at in [0x9_fc00, 0x9_fff0, 0xe_0000, 0xf_5000, 0xf_ffd0] {
            assert!(found(&[at]), "{at:x}");
        }
        for at in [0x9_fbf0, 0xa_0000, 0xd_fff0, 0xf_5008, 0x10_0000] {
            assert!(!found(&[at]), "{at:x}");
        }
        assert!(!found(&[]));
    }

    /// A machine whose root pointer is changed by `spoil`. What that leaves in the checksums is how
    /// wrong they are.
    fn pointed(spoil: impl Fn(&mut RootPointer)) -> Bytes {
        let mut memory = machine(&[(b"APIC", &[1])]);
        // The older root table names another one.
        place(&mut memory, 0x3000, b"HPET", 1, &[]);
        place(&mut memory, 0x200, b"RSDT", 1, &0x3000u32.to_le_bytes());
        let mut pointer = RootPointer::read_from_bytes(&memory.0[0x40..0x64]).unwrap();
        pointer.rsdt = 0x200;
        (pointer.checksum, pointer.extended_checksum) = (0, 0);
        spoil(&mut pointer);
        let (wrong, wrong_too) = (pointer.checksum, pointer.extended_checksum);
        (pointer.checksum, pointer.extended_checksum) = (0, 0);
        pointer.checksum = wrong.wrapping_sub(sum(&pointer.as_bytes()[..20]));
        pointer.extended_checksum = wrong_too.wrapping_sub(sum(pointer.as_bytes()));
        memory.0[0x40..0x64].copy_from_slice(pointer.as_bytes());
        memory
    }

    /// The root table with addresses of 64 bits is used if the pointer says soundly that there is
    /// one, and otherwise that of 32.
    #[test]
    fn the_newer_root_table_comes_first_if_it_is_sound() {
        let newer = |spoil: &dyn Fn(&mut RootPointer)| {
            let memory = pointed(spoil);
            let tables = Tables::new(&memory, 0x40)?;
            let found =
                [b"APIC", b"HPET"].map(|signature| tables.find(signature).map(|(at, _)| at));
            Some(match found {
                [Some(0x1000), None] => true,
                [None, Some(0x3000)] => false,
                other => panic!("{other:x?}"),
            })
        };
        assert_eq!(newer(&|_| {}), Some(true));
        assert_eq!(newer(&|pointer| pointer.revision = 3), Some(true));
        assert_eq!(newer(&|pointer| pointer.revision = 1), Some(false));
        assert_eq!(newer(&|pointer| pointer.revision = 0), Some(false));
        assert_eq!(newer(&|pointer| pointer.xsdt = 0), Some(false));
        assert_eq!(newer(&|pointer| pointer.extended_checksum = 1), Some(false));
        // What is not sound at all is no pointer.
        assert_eq!(newer(&|pointer| pointer.checksum = 1), None);
        assert_eq!(newer(&|pointer| pointer.signature = *b"RSD PTRx"), None);
        assert_eq!(newer(&|pointer| pointer.xsdt = 0x1_0000_0000), None);
        assert!(Tables::new(&pointed(|_| {}), 0x10_0000).is_none());
    }

    /// A table as long as its header is one, and the longest allowed one; the next ones are not.
    /// Each byte counts for the sum.
    #[test]
    fn lengths_and_sums_are_looked_at_whole() {
        let header = |body: &[u8], length: Option<u32>| {
            let mut memory = Bytes(vec![0; 16]);
            place(&mut memory, 16, b"TEST", 1, body);
            if let Some(length) = length {
                let old = u32::from_le_bytes(memory.0[20..24].try_into().unwrap());
                memory.0[20..24].copy_from_slice(&length.to_le_bytes());
                let (old, new) = (sum(&old.to_le_bytes()), sum(&length.to_le_bytes()));
                memory.0[25] = memory.0[25].wrapping_add(old).wrapping_sub(new);
            }
            let tables = Tables {
                memory: &memory,
                root: 16,
                entry_bytes: 8,
            };
            tables.checked_header(16).map(|header| header.length)
        };
        assert_eq!(header(&[], None), Some(36));
        assert_eq!(header(&[], Some(35)), None);
        let largest = vec![0; LARGEST as usize - 36 + 1];
        assert_eq!(header(&largest[1..], None), Some(LARGEST));
        assert_eq!(header(&largest, None), None);
        // It ends behind what can be seen.
        assert_eq!(header(&[], Some(37)), None);
        for length in [1, 27, 28, 29, 92, 93, 200] {
            assert_eq!(header(&vec![7; length], None), Some(36 + length as u32));
            for wrong in [0, length / 2, length - 1] {
                let mut memory = Bytes(vec![0; 16]);
                place(&mut memory, 16, b"TEST", 1, &vec![7; length]);
                memory.0[16 + 36 + wrong] += 1;
                let tables = Tables {
                    memory: &memory,
                    root: 16,
                    entry_bytes: 8,
                };
                assert!(tables.checked_header(16).is_none(), "{length} {wrong}");
            }
        }
    }

    /// The first valid table of two with the same name is taken; an entry that leads nowhere hides
    /// none behind it.
    #[test]
    fn the_first_valid_table_is_found() {
        let mut memory = machine(&[
            (b"SSDT", &[1]),
            (b"SSDT", &[2]),
            (b"SSDT", &[3]),
            (b"LAST", &[]),
        ]);
        let second = Tables::new(&memory, 0x40)
            .unwrap()
            .find(b"SSDT")
            .map(|(at, _)| (at, memory.0[at as usize + 36]));
        assert_eq!(second, Some((0x1000, 1)));
        memory.0[0x1000 + 36] = 9;
        let (at, header) = Tables::new(&memory, 0x40).unwrap().find(b"SSDT").unwrap();
        assert_eq!((memory.0[at as usize + 36], { header.length }), (2, 37));
        // The first entry of the root table leads behind the memory.
        let root = 0x100;
        memory.0[root + 36 + 4] = 1;
        memory.0[root + 9] = memory.0[root + 9].wrapping_sub(1);
        let tables = Tables::new(&memory, 0x40).unwrap();
        assert!(tables.find(b"SSDT").is_some() && tables.find(b"LAST").is_some());
        // Without a valid root table there is nothing.
        memory.0[root + 9] ^= 1;
        assert!(Tables::new(&memory, 0x40).is_none());
    }

    #[test]
    fn a_broken_table_is_absent() {
        let mut memory = machine(&[(b"APIC", &[1, 2, 3])]);
        memory.0[0x1000 + 37] ^= 1;
        assert!(Tables::new(&memory, 0x40).unwrap().find(b"APIC").is_none());
        memory.0[0x1000 + 37] ^= 1;
        memory.0[0x1004..0x1008].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Tables::new(&memory, 0x40).unwrap().find(b"APIC").is_none());
    }
}
