//! Group descriptors and bitmaps.

use abi::errno::Errno;
use crc32c::crc32c;

use crate::bytes::{high, joined, low, part, put_u16, put_u32, u16_at, u32_at};
use crate::crc::crc16;
use crate::mount::Ext4;
use crate::store::Seal;
use crate::superblock::{GroupChecksum, MountError, Superblock};
use crate::zone::Zones;
use crate::{Block, Result};

/// The inode bitmap and table were never written (`bg_flags`).
const INODE_UNINIT: u16 = 1;
/// The block bitmap was never written.
const BLOCK_UNINIT: u16 = 2;
const CHECKSUM: usize = 0x1E;
/// Bytes of a descriptor whose numbers have high parts, and of one without.
const LARGE: usize = 64;
const SMALL: usize = 32;

/// One of a group's two bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bitmap {
    Blocks,
    Inodes,
}

/// Contents of a group descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub block_bitmap: u64,
    pub inode_bitmap: u64,
    pub inode_table: u64,
    pub free_blocks: u32,
    pub free_inodes: u32,
    pub directories: u32,
    pub flags: u16,
    /// Inodes at the end of the table that were never used.
    pub unused_inodes: u32,
    block_bitmap_sum: u32,
    inode_bitmap_sum: u32,
}

impl Group {
    fn decode(raw: &[u8]) -> Result<Self> {
        // Two lengths that are known take no checks of offsets.
        match raw.first_chunk::<LARGE>() {
            Some(raw) => Self::decode_sized(raw, true),
            None => Self::decode_sized(raw.first_chunk::<SMALL>().ok_or(Errno::EUCLEAN)?, false),
        }
    }

    #[inline]
    fn decode_sized(raw: &[u8], is_large: bool) -> Result<Self> {
        let wide = |low, high| {
            let high = if is_large { u32_at(raw, high)? } else { 0 };
            Ok(joined(u32_at(raw, low)?, high))
        };
        let half = |low, high| {
            let high = if is_large { u16_at(raw, high)? } else { 0 };
            Ok(u32::from(u16_at(raw, low)?) | u32::from(high) << 16)
        };
        Ok(Self {
            block_bitmap: wide(0x0, 0x20)?,
            inode_bitmap: wide(0x4, 0x24)?,
            inode_table: wide(0x8, 0x28)?,
            free_blocks: half(0xC, 0x2C)?,
            free_inodes: half(0xE, 0x2E)?,
            directories: half(0x10, 0x30)?,
            flags: u16_at(raw, 0x12)?,
            unused_inodes: half(0x1C, 0x32)?,
            block_bitmap_sum: half(0x18, 0x38)?,
            inode_bitmap_sum: half(0x1A, 0x3A)?,
        })
    }

    /// Stores what changes while it is mounted.
    fn encode(&self, raw: &mut [u8]) -> Result<()> {
        let is_large = raw.len() >= LARGE;
        let mut half = |low, high, value: u32| {
            put_u16(raw, low, value as u16)?;
            if is_large {
                put_u16(raw, high, (value >> 16) as u16)
            } else {
                Ok(())
            }
        };
        half(0xC, 0x2C, self.free_blocks)?;
        half(0xE, 0x2E, self.free_inodes)?;
        half(0x10, 0x30, self.directories)?;
        half(0x1C, 0x32, self.unused_inodes)?;
        half(0x18, 0x38, self.block_bitmap_sum)?;
        half(0x1A, 0x3A, self.inode_bitmap_sum)?;
        put_u16(raw, 0x12, self.flags)
    }

    /// Block with a bitmap.
    pub const fn bitmap(&self, which: Bitmap) -> u64 {
        match which {
            Bitmap::Blocks => self.block_bitmap,
            Bitmap::Inodes => self.inode_bitmap,
        }
    }
}

fn checksum(sb: &Superblock, group: u32, raw: &[u8]) -> Result<Option<u16>> {
    let (before, after) = (
        part(raw, 0, CHECKSUM)?,
        raw.get(CHECKSUM + 2..).unwrap_or(&[]),
    );
    Ok(match sb.group_checksum() {
        GroupChecksum::None => None,
        GroupChecksum::Crc32c => {
            let sum = crc32c(crc32c(sb.checksum_seed, &group.to_le_bytes()), before);
            Some(crc32c(crc32c(sum, &[0; 2]), after) as u16)
        }
        GroupChecksum::Crc16 => {
            let sum = crc16(crc16(!0, &sb.uuid), &group.to_le_bytes());
            Some(crc16(crc16(sum, before), after))
        }
    })
}

const fn seal(group: u32, which: Bitmap) -> Seal {
    Seal::Bitmap { group, which }
}

impl Ext4 {
    /// Block of the table with a group's descriptor, and the offset there.
    fn descriptor_place(&self, group: u32) -> Result<(u64, usize)> {
        if group >= self.sb.groups {
            return Err(Errno::EUCLEAN);
        }
        let at = u64::from(group) * u64::from(self.sb.desc_size);
        let block_size = u64::from(self.sb.block_size);
        let block = u64::from(self.sb.first_data_block) + 1 + at / block_size;
        Ok((block, (at % block_size) as usize))
    }

    /// A group's descriptor. All of them were checked when the file system was mounted.
    pub(crate) fn group(&mut self, group: u32) -> Result<Group> {
        let (block, at) = self.descriptor_place(group)?;
        let size = self.sb.desc_size as usize;
        self.store
            .look(block, |bytes| Group::decode(part(bytes, at, size)?))
    }

    /// Stores a group's descriptor.
    pub(crate) fn put_group(&mut self, group: u32, new: &Group) -> Result<()> {
        let (block, at) = self.descriptor_place(group)?;
        let (sb, size) = (&self.sb, self.sb.desc_size as usize);
        self.store.edit_part(block, (at, size), None, |raw| {
            new.encode(raw)?;
            if let Some(sum) = checksum(sb, group, raw)? {
                put_u16(raw, CHECKSUM, sum)?;
            }
            Ok(())
        })
    }

    /// Checks all descriptors, finds the blocks that are the file system's own, and counts what is
    /// free.
    pub(crate) fn check_groups(&mut self) -> core::result::Result<Zones, MountError> {
        let mut zones = Zones::default();
        let table = u64::from(self.sb.table_blocks());
        let heads = 1 + self.sb.gdt_blocks() + u64::from(self.sb.reserved_gdt_blocks);
        let first = u64::from(self.sb.first_data_block);
        zones.add(0, first + heads)?;
        let (mut free_blocks, mut free_inodes) = (0, 0);
        self.inode_tables = fallible::with_capacity(self.sb.groups as usize)?;
        for number in 0..self.sb.groups {
            let (block, at) = self.descriptor_place(number)?;
            let bytes = self.store.read(block)?;
            let raw = part(&bytes, at, self.sb.desc_size as usize)?;
            if checksum(&self.sb, number, raw)?.is_some_and(|sum| u16_at(raw, CHECKSUM) != Ok(sum))
            {
                return Err(MountError::Damaged("checksum of a group descriptor"));
            }
            let group = Group::decode(raw)?;
            if number > 0 && self.sb.has_super(number) {
                zones.add(self.sb.group_start(number), heads)?;
            }
            for (start, len) in [
                (group.block_bitmap, 1),
                (group.inode_bitmap, 1),
                (group.inode_table, table),
            ] {
                let end = start.checked_add(len);
                if start <= first || end.is_none_or(|end| end > self.sb.blocks_count) {
                    return Err(MountError::Damaged("group descriptor"));
                }
                zones.add(start, len)?;
            }
            if group.free_blocks > self.sb.group_blocks(number)
                || group.free_inodes > self.sb.inodes_per_group
                || group.unused_inodes > self.sb.inodes_per_group
            {
                return Err(MountError::Damaged("free counts of a group descriptor"));
            }
            free_blocks += u64::from(group.free_blocks);
            free_inodes += group.free_inodes;
            self.inode_tables.push(group.inode_table);
        }
        zones.sort();
        self.store.counts.free_blocks = free_blocks;
        self.store.counts.free_inodes = free_inodes;
        Ok(zones)
    }

    fn bitmap_sum(&self, which: Bitmap, bytes: &[u8]) -> Result<u32> {
        let bits = match which {
            Bitmap::Blocks => self.sb.blocks_per_group,
            Bitmap::Inodes => self.sb.inodes_per_group,
        };
        let sum = crc32c(self.sb.checksum_seed, part(bytes, 0, bits as usize / 8)?);
        let is_large = self.sb.desc_size as usize >= LARGE;
        Ok(if is_large { sum } else { sum & 0xFFFF })
    }

    /// A bitmap of a group that is about to be changed; made, if it never was written.
    pub(crate) fn bitmap(
        &mut self,
        number: u32,
        group: &mut Group,
        which: Bitmap,
    ) -> Result<Block> {
        let block = group.bitmap(which);
        let flag = match which {
            Bitmap::Blocks => BLOCK_UNINIT,
            Bitmap::Inodes => INODE_UNINIT,
        };
        if self.sb.group_checksum() != GroupChecksum::None && group.flags & flag != 0 {
            return self.make_bitmap(number, group, which, flag);
        }
        let (bytes, is_verified) = self.store.read_verified(block)?;
        if self.sb.has_checksums() && !is_verified {
            let right = match which {
                Bitmap::Blocks => group.block_bitmap_sum,
                Bitmap::Inodes => group.inode_bitmap_sum,
            };
            if self.bitmap_sum(which, &bytes)? != right {
                return Err(Errno::EUCLEAN);
            }
            self.store.set_verified(block, 0);
        }
        Ok(bytes)
    }

    fn make_bitmap(
        &mut self,
        number: u32,
        group: &mut Group,
        which: Bitmap,
        flag: u16,
    ) -> Result<Block> {
        let block = group.bitmap(which);
        self.store.fresh(block)?;
        let (start, blocks) = (self.sb.group_start(number), self.sb.group_blocks(number));
        let (zones, inodes) = (&self.zones, self.sb.inodes_per_group);
        self.store.edit(block, Some(seal(number, which)), |bytes| {
            let end = bytes.len() as u64 * 8;
            match which {
                Bitmap::Blocks => {
                    for (from, to) in zones.within(start, u64::from(blocks)) {
                        set_bits(bytes, from - start, to - start, true)?;
                    }
                    set_bits(bytes, u64::from(blocks), end, true)
                }
                Bitmap::Inodes => set_bits(bytes, u64::from(inodes), end, true),
            }
        })?;
        group.flags &= !flag;
        self.put_group(number, group)?;
        self.store.read(block)
    }

    /// Stores the checksum of a bitmap, whose block is in the transaction, in its descriptor, which
    /// is there, too.
    pub(crate) fn seal_bitmap(&mut self, block: u64, number: u32, which: Bitmap) -> Result<()> {
        let mut group = self.group(number)?;
        if self.sb.has_checksums() {
            let bytes = self.store.read(block)?;
            let sum = self.bitmap_sum(which, &bytes)?;
            match which {
                Bitmap::Blocks => group.block_bitmap_sum = sum,
                Bitmap::Inodes => group.inode_bitmap_sum = sum,
            }
            self.put_group(number, &group)?;
        }
        self.store.seal(block, |_| Ok(()))
    }

    /// Sets or clears bits of a bitmap that [`Ext4::bitmap`] gave; the caller changes the
    /// descriptor, too. All were the opposite: otherwise two files have the same block.
    pub(crate) fn change_bitmap(
        &mut self,
        number: u32,
        group: &Group,
        which: Bitmap,
        (from, len): (u32, u32),
        value: bool,
    ) -> Result<()> {
        let end = from.checked_add(len).ok_or(Errno::EUCLEAN)?;
        let first = from as usize / 8;
        let part = (first, (end as usize).div_ceil(8) - first);
        let (from, end) = (from - first as u32 * 8, end - first as u32 * 8);
        self.store
            .edit_bitmap(group.bitmap(which), part, seal(number, which), |bytes| {
                for bit in from..end {
                    if is_set(bytes, bit) == value {
                        return Err(Errno::EUCLEAN);
                    }
                }
                set_bits(bytes, u64::from(from), u64::from(end), value)
            })
    }

    /// Stores the counts of free blocks and inodes in the superblock, as a part of a handle.
    pub(crate) fn put_counts(&mut self) -> Result<()> {
        use crate::superblock::{SIZE, field, seal};

        let (block, at) = self.sb.place();
        let (counts, now) = (self.store.counts, self.now());
        self.store.edit_part(block, (at, SIZE), None, |raw| {
            put_u32(raw, field::FREE_BLOCKS_LOW, low(counts.free_blocks))?;
            put_u32(raw, field::FREE_BLOCKS_HIGH, high(counts.free_blocks))?;
            put_u32(raw, field::FREE_INODES, counts.free_inodes)?;
            put_u32(raw, field::WRITE_TIME, now.seconds as u32)?;
            seal(raw)
        })
    }
}

/// Whether a bit is set; those that are not there are.
pub fn is_set(bytes: &[u8], bit: u32) -> bool {
    bytes
        .get(bit as usize / 8)
        .is_none_or(|byte| byte & 1 << (bit % 8) != 0)
}

/// Sets or clears the bits from `from` to before `end`.
fn set_bits(bytes: &mut [u8], from: u64, end: u64, value: bool) -> Result<()> {
    let mut bit = from;
    while bit < end {
        let byte = bytes.get_mut((bit / 8) as usize).ok_or(Errno::EUCLEAN)?;
        if bit.is_multiple_of(8) && end - bit >= 8 {
            *byte = if value { 0xFF } else { 0 };
            bit += 8;
            continue;
        }
        let mask = 1 << (bit % 8);
        if value {
            *byte |= mask;
        } else {
            *byte &= !mask;
        }
        bit += 1;
    }
    Ok(())
}
