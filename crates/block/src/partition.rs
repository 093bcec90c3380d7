//! Partition tables: GPT (UEFI 2.10, chapter 5) and the older one in the first sector (MBR), with
//! its chain of logical partitions.
//!
//! A table is bytes that anybody may have written: whatever is in it, reading it ends, and what it
//! gives lies on the disk. Partitions may overlap, as on Linux: the table says so.

use alloc::vec::Vec;
use core::fmt;

use abi::errno::Errno;

use crate::SECTOR_SIZE;

/// Greatest number of a partition: minor numbers have eight bits for it, and 0 is the disk itself.
const MAX_NUMBER: u32 = 255;

/// A part of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number of the partition, from 1 on: what stands behind the disk's name.
    pub number: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Identity of the partition, wherever its disk is found.
    pub identity: Identity,
}

/// Identity of a partition, which is shown as Linux and `blkid` show it (`PARTUUID`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Of a GPT: the number of its entry, the first three fields with the least byte first.
    Gpt([u8; 16]),
    /// Of the older table: the disk's signature, and the partition's number.
    Mbr {
        /// Signature of the disk.
        disk: u32,
        /// Number of the partition.
        number: u32,
    },
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpt(raw) => {
                let (first, second) = (le32(raw, 0), le32(raw, 4));
                let (low, high) = (second & 0xffff, second >> 16);
                write!(f, "{first:08x}-{low:04x}-{high:04x}-")?;
                for (index, byte) in raw.iter().enumerate().skip(8) {
                    let dash = if index == 10 { "-" } else { "" };
                    write!(f, "{dash}{byte:02x}")?;
                }
                Ok(())
            }
            Self::Mbr { disk, number } => write!(f, "{disk:08x}-{number:02x}"),
        }
    }
}

/// The disk that a table is read from.
pub trait Disk {
    /// Size in bytes.
    fn capacity(&self) -> u64;

    /// Size of a block, in bytes.
    fn block_size(&self) -> u64;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// Those of the device.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno>;
}

const SECTOR: usize = SECTOR_SIZE as usize;
/// Types of the older table: a container of logical partitions (three of them), and the entry that
/// stands for a GPT.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const PROTECTIVE: u8 = 0xee;
/// Logical partitions that are looked for, as on Linux: a chain may be a circle.
const MAX_LOGICAL: u32 = 100;
const FIRST_LOGICAL: u32 = 5;
/// Place of the disk's signature in its first sector.
const SIGNATURE: usize = 440;

/// Reads the partition table of a disk: its partitions by number. A disk without a table has none.
///
/// # Errors
/// Those of the disk; `ENOMEM`.
pub fn scan(disk: &dyn Disk) -> Result<Vec<Partition>, Errno> {
    let mut found = Vec::new();
    if disk.capacity() < disk.block_size() {
        return Ok(found);
    }
    let mut sector = [0; SECTOR];
    disk.read(0, &mut sector)?;
    let Some(entries) = Entry::table(&sector) else {
        return Ok(found);
    };
    if entries.iter().any(|entry| entry.kind == PROTECTIVE)
        && let Some(header) = Header::find(disk)?
    {
        header.partitions(disk, &mut found)?;
        return Ok(found);
    }
    let block = disk.block_size();
    let signature = le32(&sector, SIGNATURE);
    for (number, entry) in (1..).zip(entries) {
        if EXTENDED.contains(&entry.kind) {
            let container = u64::from(entry.first) * block;
            logical_partitions(disk, signature, container, &mut found)?;
        } else if entry.kind != 0 {
            let partition = entry.partition(number, signature, 0, block);
            add(disk, &mut found, partition)?;
        }
    }
    found.sort_unstable_by_key(|partition| partition.number);
    Ok(found)
}

/// Adds what of a partition is on the disk.
fn add(disk: &dyn Disk, found: &mut Vec<Partition>, mut partition: Partition) -> Result<(), Errno> {
    let room = disk.capacity().saturating_sub(partition.offset);
    partition.len = partition.len.min(room);
    if partition.len == 0 || partition.number > MAX_NUMBER {
        return Ok(());
    }
    fallible::push(found, partition)
}

/// An entry of the older table.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    /// First block and number of blocks.
    first: u32,
    blocks: u32,
}

impl Entry {
    /// The four entries of a sector that has a table.
    fn table(sector: &[u8; SECTOR]) -> Option<[Self; 4]> {
        if sector[510..] != [0x55, 0xaa] {
            return None;
        }
        // The first byte says whether the partition boots: with another value it is a boot sector
        // of some file system.
        let mut entries = [Self {
            kind: 0,
            first: 0,
            blocks: 0,
        }; 4];
        for (entry, raw) in entries.iter_mut().zip(sector[446..510].chunks_exact(16)) {
            if raw[0] & 0x7f != 0 {
                return None;
            }
            *entry = Self {
                kind: raw[4],
                first: le32(raw, 8),
                blocks: le32(raw, 12),
            };
        }
        Some(entries)
    }

    /// Bytes of the disk, of an entry that counts from `base`.
    fn range(&self, base: u64, block: u64) -> (u64, u64) {
        (
            base.saturating_add(u64::from(self.first) * block),
            u64::from(self.blocks) * block,
        )
    }

    /// The partition of that number of an entry that counts from `base`.
    fn partition(&self, number: u32, signature: u32, base: u64, block: u64) -> Partition {
        let (offset, len) = self.range(base, block);
        let identity = Identity::Mbr {
            disk: signature,
            number,
        };
        Partition {
            number,
            offset,
            len,
            identity,
        }
    }
}

/// Follows the chain of logical partitions in the container at `container`.
fn logical_partitions(
    disk: &dyn Disk,
    signature: u32,
    container: u64,
    found: &mut Vec<Partition>,
) -> Result<(), Errno> {
    let mut at = container;
    let mut number = FIRST_LOGICAL;
    for _ in 0..MAX_LOGICAL {
        let mut sector = [0; SECTOR];
        if at.saturating_add(SECTOR_SIZE) > disk.capacity() {
            return Ok(());
        }
        disk.read(at, &mut sector)?;
        let Some(entries) = Entry::table(&sector) else {
            return Ok(());
        };
        let is_link = |entry: &&Entry| EXTENDED.contains(&entry.kind) && entry.blocks > 0;
        for entry in &entries {
            if entry.kind != 0 && entry.blocks > 0 && !EXTENDED.contains(&entry.kind) {
                let partition = entry.partition(number, signature, at, disk.block_size());
                add(disk, found, partition)?;
                number += 1;
            }
        }
        let Some(link) = entries.iter().find(is_link) else {
            return Ok(());
        };
        at = link.range(container, disk.block_size()).0;
    }
    Ok(())
}

/// Bytes of a GPT header that its checksum may cover, at least and at most.
const HEADER_LEN: core::ops::RangeInclusive<usize> = 92..=SECTOR;
/// Bytes of an entry of a GPT. Linux knows no other length either.
const ENTRY_LEN: usize = 128;
/// Entries that are read of a GPT. Tools make 128.
const MAX_ENTRIES: u32 = 1024;

/// Place and size of the entries of a GPT.
struct Header {
    entries: u64,
    count: u32,
    checksum: u32,
    /// First and last block of partitions.
    usable: (u64, u64),
}

impl Header {
    /// The header in the second block of a disk, or its copy in the last.
    fn find(disk: &dyn Disk) -> Result<Option<Self>, Errno> {
        let blocks = disk.capacity() / disk.block_size();
        for at in [1, blocks.saturating_sub(1)] {
            if let Some(header) = Self::read(disk, at, blocks)? {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// The header in block `at`, if there is one with entries that belong to it.
    fn read(disk: &dyn Disk, at: u64, blocks: u64) -> Result<Option<Self>, Errno> {
        let mut raw = [0; SECTOR];
        if at == 0 || at >= blocks {
            return Ok(None);
        }
        disk.read(at * disk.block_size(), &mut raw)?;
        let len = le32(&raw, 12) as usize;
        if &raw[..8] != b"EFI PART" || !HEADER_LEN.contains(&len) || le64(&raw, 24) != at {
            return Ok(None);
        }
        let told = le32(&raw, 16);
        raw[16..20].fill(0);
        let header = Self {
            entries: le64(&raw, 72),
            count: le32(&raw, 80),
            checksum: le32(&raw, 88),
            usable: (le64(&raw, 40), le64(&raw, 48)),
        };
        if crc32(0, &raw[..len]) != told
            || header.count > MAX_ENTRIES
            || le32(&raw, 84) as usize != ENTRY_LEN
            || header.usable.0 > header.usable.1
            || header.usable.1 >= blocks
            || header.entries >= blocks
        {
            return Ok(None);
        }
        let mut sum = 0;
        let complete = header.for_each_entry(disk, |_, entry| {
            sum = crc32(sum, entry);
            Ok(())
        })?;
        Ok((complete && sum == header.checksum).then_some(header))
    }

    /// Calls `each` with every entry and its index. `false` if they are not all on the disk.
    fn for_each_entry(
        &self,
        disk: &dyn Disk,
        mut each: impl FnMut(u32, &[u8]) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let start = self.entries * disk.block_size();
        let len = u64::from(self.count) * ENTRY_LEN as u64;
        if start.saturating_add(len) > disk.capacity() {
            return Ok(false);
        }
        let mut sector = [0; SECTOR];
        let mut at = start;
        for index in 0..self.count {
            let within = (at % SECTOR_SIZE) as usize;
            if within == 0 {
                disk.read(at, &mut sector)?;
            }
            each(index, &sector[within..within + ENTRY_LEN])?;
            at += ENTRY_LEN as u64;
        }
        Ok(true)
    }

    fn partitions(&self, disk: &dyn Disk, found: &mut Vec<Partition>) -> Result<(), Errno> {
        let block = disk.block_size();
        self.for_each_entry(disk, |index, entry| {
            let (first, last) = (le64(entry, 32), le64(entry, 40));
            let lies_in = self.usable.0 <= first && first <= last && last <= self.usable.1;
            if entry[..16] == [0; 16] || !lies_in {
                return Ok(());
            }
            let mut identity = [0; 16];
            identity.copy_from_slice(&entry[16..32]);
            let partition = Partition {
                number: index + 1,
                offset: first * block,
                len: (last - first + 1) * block,
                identity: Identity::Gpt(identity),
            };
            add(disk, found, partition)
        })
        .map(drop)
    }
}

fn le32(raw: &[u8], at: usize) -> u32 {
    raw[at..at + 4]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn le64(raw: &[u8], at: usize) -> u64 {
    u64::from(le32(raw, at)) | u64::from(le32(raw, at + 4)) << 32
}

/// The checksum of IEEE 802.3, of what `sum` is the checksum of with `bytes` behind it.
fn crc32(sum: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!sum, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            sum >> 1 ^ if sum & 1 == 0 { 0 } else { 0xedb8_8320 }
        })
    })
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString};
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    struct Image(Vec<u8>);

    impl Disk for Image {
        fn capacity(&self) -> u64 {
            self.0.len() as u64
        }

        fn block_size(&self) -> u64 {
            SECTOR_SIZE
        }

        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
            let at = usize::try_from(offset).unwrap();
            buf.copy_from_slice(self.0.get(at..at + buf.len()).ok_or(Errno::EIO)?);
            Ok(())
        }
    }

    impl Image {
        fn new(sectors: usize) -> Self {
            Self(vec![0; sectors * SECTOR])
        }

        fn put(&mut self, at: usize, bytes: &[u8]) {
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn entry(&mut self, sector: usize, n: usize, kind: u8, first: u32, blocks: u32) {
            let at = sector * SECTOR + 446 + n * 16;
            self.put(at + 4, &[kind]);
            self.put(at + 8, &first.to_le_bytes());
            self.put(at + 12, &blocks.to_le_bytes());
            self.put(sector * SECTOR + 510, &[0x55, 0xaa]);
        }

        /// A GPT with these partitions (first and last sector), at the front and at the back.
        fn gpt(sectors: usize, partitions: &[(u64, u64)]) -> Self {
            let mut image = Self::new(sectors);
            image.entry(0, 0, PROTECTIVE, 1, sectors as u32 - 1);
            let mut entries = vec![0; 128 * 128];
            for (entry, (first, last)) in entries.chunks_exact_mut(128).zip(partitions) {
                entry[..16].fill(7);
                entry[32..40].copy_from_slice(&first.to_le_bytes());
                entry[40..48].copy_from_slice(&last.to_le_bytes());
            }
            for (header, table) in [(1, 2), (sectors - 1, sectors - 33)] {
                let mut raw = [0; 92];
                raw[..8].copy_from_slice(b"EFI PART");
                raw[12] = 92;
                raw[24..32].copy_from_slice(&(header as u64).to_le_bytes());
                raw[40] = 34;
                raw[48..56].copy_from_slice(&(sectors as u64 - 34).to_le_bytes());
                raw[72..80].copy_from_slice(&(table as u64).to_le_bytes());
                raw[80] = 128;
                raw[84] = 128;
                raw[88..92].copy_from_slice(&crc32(0, &entries).to_le_bytes());
                let sum = crc32(0, &raw);
                raw[16..20].copy_from_slice(&sum.to_le_bytes());
                image.put(header * SECTOR, &raw);
                image.put(table * SECTOR, &entries);
            }
            image
        }

        fn identities(&self) -> Vec<String> {
            let found = scan(self).unwrap();
            found.iter().map(|it| it.identity.to_string()).collect()
        }

        fn found(&self) -> Vec<(u32, u64, u64)> {
            scan(self)
                .unwrap()
                .iter()
                .map(|it| (it.number, it.offset / SECTOR_SIZE, it.len / SECTOR_SIZE))
                .collect()
        }
    }

    #[test]
    fn checksum_is_that_of_the_standard() {
        assert_eq!(crc32(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(crc32(0, b"1234"), b"56789"), 0xcbf4_3926);
    }

    #[test]
    fn primary_and_logical_partitions_are_found() {
        let mut image = Image::new(4096);
        image.entry(0, 0, 0x83, 8, 100);
        image.entry(0, 1, 0x05, 1000, 3000);
        image.entry(0, 2, 0x82, 4000, 500);
        image.entry(1000, 0, 0x83, 8, 200);
        image.entry(1000, 1, 0x05, 1000, 1000);
        image.entry(2000, 0, 0x83, 8, 300);
        assert_eq!(
            image.found(),
            [(1, 8, 100), (3, 4000, 96), (5, 1008, 200), (6, 2008, 300)]
        );
    }

    #[test]
    fn identities_are_shown_as_linux_shows_them() {
        let mut image = Image::new(4096);
        image.entry(0, 1, 0x83, 8, 100);
        image.entry(0, 3, 0x05, 1000, 3000);
        image.entry(1000, 0, 0x83, 8, 200);
        image.put(SIGNATURE, &0x12ab_34cd_u32.to_le_bytes());
        assert_eq!(image.identities(), ["12ab34cd-02", "12ab34cd-05"]);
        // An entry whose number `sgdisk` shows as 00010203-0405-0607-0809-0A0B0C0D0E0F.
        let raw = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        let shown = Identity::Gpt(raw).to_string();
        assert_eq!(shown, "00010203-0405-0607-0809-0a0b0c0d0e0f");
        let gpt = Image::gpt(256, &[(40, 99)]).identities();
        assert_eq!(gpt, ["00000000-0000-0000-0000-000000000000"]);
    }

    #[test]
    fn a_circle_of_logical_partitions_ends() {
        let mut image = Image::new(64);
        image.entry(0, 0, 0x05, 8, 40);
        image.entry(8, 0, 0x83, 1, 4);
        image.entry(8, 1, 0x05, 0, 8);
        assert_eq!(image.found().len(), MAX_LOGICAL as usize);
    }

    #[test]
    fn a_gpt_is_read_from_its_copy_when_the_first_is_damaged() {
        let mut image = Image::gpt(256, &[(40, 99), (100, 100)]);
        let both = [(1, 40, 60), (2, 100, 1)];
        assert_eq!(image.found(), both);
        // An entry of the first table, then its header.
        image.put(2 * SECTOR + 32, &[50]);
        assert_eq!(image.found(), both);
        image.put(SECTOR, b"XFI PART");
        assert_eq!(image.found(), both);
        image.put(223 * SECTOR + 32, &[50]);
        // Without any GPT the entry that stands for it is a partition.
        assert_eq!(image.found(), [(1, 1, 255)]);
    }

    #[test]
    fn partitions_outside_of_what_the_header_says_are_left_out() {
        assert_eq!(
            Image::gpt(256, &[(33, 40), (50, 49), (60, 223)]).found(),
            []
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_stays_on_the_disk(
            damage in prop::collection::vec((0..256 * SECTOR, any::<u8>()), 0..40),
            fixed in any::<bool>(),
            logical in any::<bool>(),
        ) {
            let mut image = Image::gpt(256, &[(40, 99), (100, 180)]);
            if logical {
                image.entry(0, 0, 0x0f, 8, 200);
                image.entry(8, 0, 0x83, 1, 4);
            }
            for (at, byte) in damage {
                // Half of the time where it counts.
                image.0[if fixed { at % (3 * SECTOR) } else { at }] = byte;
            }
            if fixed {
                // With a checksum that is right, so that what is behind it is looked at.
                image.0[SECTOR + 16..SECTOR + 20].fill(0);
                let sum = crc32(0, &image.0[SECTOR..SECTOR + 92]);
                image.put(SECTOR + 16, &sum.to_le_bytes());
            }
            for (_, first, len) in image.found() {
                prop_assert!(first + len <= 256);
            }
        }
    }
}
