//! The journal (jbd2): its superblock, where its blocks are, and writing transactions to it.
//!
//! A transaction is descriptor blocks, each followed by the blocks it names, revoke blocks, and a
//! commit block. The log is a ring between `first` and `end`.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use crc32c::crc32c;

use crate::bytes::{be32_at, high, low, part, part_mut, put_be16, put_be32, put_be64, u8_at};
use crate::device::Device;
use crate::gather::Gather;
use crate::superblock::MountError;
use crate::time::Timestamp;
use crate::{Block, Result};

const MAGIC: u32 = 0xC03B_3998;
/// Bytes of the header of each block of the journal's own.
pub const HEADER: usize = 12;
/// Bytes of the journal's superblock.
const SUPER_SIZE: usize = 1024;
const CHECKSUM: usize = 0xFC;

/// Kinds of the journal's own blocks.
pub const DESCRIPTOR: u32 = 1;
/// End of a transaction.
pub const COMMIT: u32 = 2;
const SUPER_V2: u32 = 4;
/// Blocks whose older copies are not to be replayed.
pub const REVOKE: u32 = 5;

/// Flags of a tag: the block began with the journal's magic number, which was replaced by zeros.
pub const TAG_ESCAPE: u32 = 1;
/// No UUID follows the tag.
pub const TAG_SAME_UUID: u32 = 2;
/// The last tag of a descriptor block.
pub const TAG_LAST: u32 = 8;

const INCOMPAT_REVOKE: u32 = 0x1;
const INCOMPAT_64BIT: u32 = 0x2;
const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
const INCOMPAT_CSUM_V2: u32 = 0x8;
const INCOMPAT_CSUM_V3: u32 = 0x10;
const INCOMPAT_FAST_COMMIT: u32 = 0x20;
/// Smallest journal that Linux takes, in blocks.
const MIN_BLOCKS: u32 = 1024;

/// Layout of tags and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// None (or those of the first version in commit blocks, which nothing depends on).
    None,
    /// 16 bits in each tag.
    V2,
    /// 32 bits in each tag.
    V3,
}

/// Consecutive blocks of the journal that lie together on the device.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub logical: u32,
    pub len: u32,
    pub block: u64,
}

/// A journal with the place at which the next transaction is written.
pub struct Journal {
    pieces: Vec<Piece>,
    raw: Vec<u8>,
    pub block_size: usize,
    pub first: u32,
    pub end: u32,
    pub is_64bit: bool,
    pub checksums: Checksums,
    seed: u32,
    /// First block of the next transaction, and its number.
    pub head: u32,
    pub sequence: u32,
    /// Blocks between the tail and the head.
    used: u32,
}

impl Journal {
    /// Opens a journal that lies in these pieces.
    pub fn open(
        device: &dyn Device,
        pieces: Vec<Piece>,
        block_size: usize,
    ) -> core::result::Result<Self, MountError> {
        let damaged = MountError::Damaged("journal superblock");
        let blocks = pieces.last().map_or(0, |last| last.logical + last.len);
        let first = pieces.first().ok_or(damaged.clone())?;
        let mut raw = fallible::zeroed(SUPER_SIZE)?;
        device.read(first.block * block_size as u64, &mut raw)?;
        if be32_at(&raw, 0)? != MAGIC || be32_at(&raw, 4)? != SUPER_V2 {
            return Err(damaged);
        }
        let incompat = be32_at(&raw, 0x28)?;
        let known = INCOMPAT_REVOKE | INCOMPAT_64BIT | INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3;
        if incompat & !known != 0 {
            let name = match incompat & !known {
                INCOMPAT_FAST_COMMIT => "fast_commit of the journal",
                INCOMPAT_ASYNC_COMMIT => "async_commit of the journal",
                _ => "unknown of the journal",
            };
            return Err(MountError::Unsupported(name.into()));
        }
        let checksums = match incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) {
            0 => Checksums::None,
            INCOMPAT_CSUM_V2 => Checksums::V2,
            INCOMPAT_CSUM_V3 => Checksums::V3,
            _ => return Err(damaged),
        };
        if checksums != Checksums::None
            && (u8_at(&raw, 0x50)? != 4 || super_checksum(&raw)? != be32_at(&raw, CHECKSUM)?)
        {
            return Err(MountError::Damaged("checksum of the journal superblock"));
        }
        let (size, end, first) = (
            be32_at(&raw, 0xC)?,
            be32_at(&raw, 0x10)?,
            be32_at(&raw, 0x14)?,
        );
        if size as usize != block_size
            || end > blocks
            || end < MIN_BLOCKS
            || first == 0
            || first > end - MIN_BLOCKS / 2
        {
            return Err(damaged);
        }
        let seed = crc32c(!0, part(&raw, 0x30, 16)?);
        let (sequence, start) = (be32_at(&raw, 0x18)?, be32_at(&raw, 0x1C)?);
        if start != 0 && !(first..end).contains(&start) {
            return Err(damaged);
        }
        Ok(Self {
            pieces,
            raw,
            block_size,
            first,
            end,
            is_64bit: incompat & INCOMPAT_64BIT != 0,
            checksums,
            seed,
            head: if start == 0 { first } else { start },
            sequence,
            used: 0,
        })
    }

    /// First block of the log that may have to be replayed; 0 if there is none.
    pub fn start(&self) -> Result<u32> {
        be32_at(&self.raw, 0x1C)
    }

    /// Place of a block on the device, in bytes, and how many blocks lie together from there.
    pub fn place(&self, logical: u32) -> Result<(u64, u32)> {
        let index = self
            .pieces
            .partition_point(|piece| piece.logical <= logical);
        let piece = index
            .checked_sub(1)
            .and_then(|index| self.pieces.get(index));
        let piece = piece.ok_or(Errno::EUCLEAN)?;
        let within = logical - piece.logical;
        if within >= piece.len {
            return Err(Errno::EUCLEAN);
        }
        let block = piece.block + u64::from(within);
        Ok((block * self.block_size as u64, piece.len - within))
    }

    /// The block that follows in the ring.
    pub const fn next(&self, logical: u32) -> u32 {
        if logical + 1 >= self.end {
            self.first
        } else {
            logical + 1
        }
    }

    /// Bytes of a tag, without a UUID.
    pub const fn tag_size(&self) -> usize {
        match self.checksums {
            Checksums::V3 => 16,
            Checksums::V2 => 10 + if self.is_64bit { 4 } else { 0 },
            Checksums::None => 8 + if self.is_64bit { 4 } else { 0 },
        }
    }

    /// Bytes at the end of descriptor and revoke blocks that are a checksum's.
    pub const fn tail_size(&self) -> usize {
        if matches!(self.checksums, Checksums::None) {
            0
        } else {
            4
        }
    }

    /// Bytes of a record in a revoke block.
    pub const fn revoke_size(&self) -> usize {
        if self.is_64bit { 8 } else { 4 }
    }

    const fn tags_per_block(&self) -> usize {
        (self.block_size - HEADER - self.tail_size() - 16) / self.tag_size()
    }

    const fn revokes_per_block(&self) -> usize {
        (self.block_size - HEADER - 4 - self.tail_size()) / self.revoke_size()
    }

    /// Blocks of the log that a transaction takes.
    pub const fn blocks_for(&self, blocks: usize, revoked: usize) -> usize {
        blocks
            + blocks.div_ceil(self.tags_per_block())
            + revoked.div_ceil(self.revokes_per_block())
            + 1
    }

    /// Blocks that the log has room for.
    pub const fn room(&self) -> usize {
        (self.end - self.first - self.used) as usize
    }

    /// Blocks of the whole log.
    pub const fn capacity(&self) -> usize {
        (self.end - self.first) as usize
    }

    /// Checksum of a block of the journal's own, whose checksum is at an offset.
    pub fn block_checksum(&self, block: &[u8], at: usize) -> Result<u32> {
        let before = crc32c(self.seed, part(block, 0, at)?);
        let rest = block.get(at + 4..).ok_or(Errno::EUCLEAN)?;
        Ok(crc32c(crc32c(before, &[0; 4]), rest))
    }

    /// Checksum of a block as a tag of a transaction has it; `block` as it is in the log.
    pub fn data_checksum(&self, sequence: u32, escaped: bool, block: &[u8]) -> u32 {
        let mut sum = crc32c(self.seed, &sequence.to_be_bytes());
        let (first, rest) = block.split_at_checked(4).unwrap_or((block, &[]));
        sum = crc32c(sum, if escaped { &[0; 4] } else { first });
        sum = crc32c(sum, rest);
        if self.checksums == Checksums::V2 {
            sum & 0xFFFF
        } else {
            sum
        }
    }

    /// A tag: block, flags, checksum.
    pub fn tag(&self, descriptor: &[u8], at: usize) -> Result<(u64, u32, u32)> {
        let block = be32_at(descriptor, at)?;
        if self.checksums == Checksums::V3 {
            let high = be32_at(descriptor, at + 8)?;
            let block = u64::from(block) | u64::from(high) << 32;
            return Ok((
                block,
                be32_at(descriptor, at + 4)?,
                be32_at(descriptor, at + 12)?,
            ));
        }
        let word = be32_at(descriptor, at + 4)?;
        let high = if self.is_64bit {
            be32_at(descriptor, at + 8)?
        } else {
            0
        };
        let block = u64::from(block) | u64::from(high) << 32;
        Ok((block, word & 0xFFFF, word >> 16))
    }

    fn put_tag(&self, out: &mut [u8], block: u64, flags: u32, sum: u32) -> Result<()> {
        put_be32(out, 0, low(block))?;
        if self.checksums == Checksums::V3 {
            put_be32(out, 4, flags)?;
            put_be32(out, 8, high(block))?;
            return put_be32(out, 12, sum);
        }
        put_be16(out, 4, sum as u16)?;
        put_be16(out, 6, flags as u16)?;
        if self.is_64bit {
            put_be32(out, 8, high(block))
        } else {
            Ok(())
        }
    }

    fn put_header(&self, block: &mut [u8], kind: u32) -> Result<()> {
        put_be32(block, 0, MAGIC)?;
        put_be32(block, 4, kind)?;
        put_be32(block, 8, self.sequence)
    }

    fn seal(&self, block: &mut [u8]) -> Result<()> {
        if self.checksums == Checksums::None {
            return Ok(());
        }
        let at = block.len() - 4;
        let sum = self.block_checksum(block, at)?;
        put_be32(block, at, sum)
    }

    /// Writes a transaction and its commit block, and returns when it is on the medium.
    ///
    /// What was written to the device before is on the medium before the commit block is.
    pub fn commit(
        &mut self,
        device: &dyn Device,
        blocks: &[(u64, Block)],
        revoked: &BTreeSet<u64>,
        now: Timestamp,
    ) -> Result<()> {
        let needed = self.blocks_for(blocks.len(), revoked.len());
        if needed > self.room() {
            return Err(Errno::ENOSPC);
        }
        let groups = || blocks.chunks(self.tags_per_block());
        let count = groups().len() + revoked.len().div_ceil(self.revokes_per_block());
        let mut owns: Vec<Vec<u8>> = fallible::with_capacity(count)?;
        for group in groups() {
            owns.push(self.descriptor(group)?);
        }
        let mut rest = revoked.iter();
        while owns.len() < count {
            owns.push(self.revocations(rest.by_ref().take(self.revokes_per_block()))?);
        }
        let mut log = Gather::new(device);
        let (mut at, mut left) = (self.head, owns.iter());
        for (group, own) in groups().zip(left.by_ref()) {
            at = self.append(&mut log, at, own, false)?;
            for (_, block) in group {
                at = self.append(&mut log, at, block, is_escaped(block))?;
            }
        }
        for own in left {
            at = self.append(&mut log, at, own, false)?;
        }
        log.finish()?;
        device.flush()?;
        let mut own = fallible::zeroed(self.block_size)?;
        self.put_header(&mut own, COMMIT)?;
        put_be64(&mut own, 0x30, now.seconds as u64)?;
        put_be32(&mut own, 0x38, now.nanoseconds)?;
        if self.checksums != Checksums::None {
            let sum = self.block_checksum(&own, 0x10)?;
            put_be32(&mut own, 0x10, sum)?;
        }
        let (offset, _) = self.place(at)?;
        device.write_through(offset, &own)?;
        self.head = self.next(at);
        self.used += needed as u32;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    /// A block with the records of blocks that are revoked.
    fn revocations<'a>(&self, revoked: impl Iterator<Item = &'a u64>) -> Result<Vec<u8>> {
        let mut own = fallible::zeroed(self.block_size)?;
        self.put_header(&mut own, REVOKE)?;
        let mut len = HEADER + 4;
        for &block in revoked {
            if self.is_64bit {
                put_be64(&mut own, len, block)?;
            } else {
                put_be32(&mut own, len, low(block))?;
            }
            len += self.revoke_size();
        }
        put_be32(&mut own, HEADER, len as u32)?;
        self.seal(&mut own)?;
        Ok(own)
    }

    /// A block with the tags of the blocks behind it.
    fn descriptor(&self, group: &[(u64, Block)]) -> Result<Vec<u8>> {
        let mut own = fallible::zeroed(self.block_size)?;
        self.put_header(&mut own, DESCRIPTOR)?;
        let mut len = HEADER;
        for (index, (number, block)) in group.iter().enumerate() {
            let escaped = is_escaped(block);
            let mut flags = if index == 0 { 0 } else { TAG_SAME_UUID };
            if escaped {
                flags |= TAG_ESCAPE;
            }
            if index + 1 == group.len() {
                flags |= TAG_LAST;
            }
            let sum = self.data_checksum(self.sequence, escaped, block);
            let tag = part_mut(&mut own, len, self.tag_size())?;
            self.put_tag(tag, *number, flags, sum)?;
            len += self.tag_size();
            if index == 0 {
                part_mut(&mut own, len, 16)?.copy_from_slice(part(&self.raw, 0x30, 16)?);
                len += 16;
            }
        }
        self.seal(&mut own)?;
        Ok(own)
    }

    fn append<'a>(
        &self,
        log: &mut Gather<'a>,
        at: u32,
        block: &'a [u8],
        escaped: bool,
    ) -> Result<u32> {
        let (offset, _) = self.place(at)?;
        if escaped {
            log.push(offset, &[0; 4])?;
            log.push(offset + 4, block.get(4..).ok_or(Errno::EUCLEAN)?)?;
        } else {
            log.push(offset, block)?;
        }
        Ok(self.next(at))
    }

    /// Moves the tail to the head: all that was committed is at its place, and on the medium.
    pub fn move_tail(&mut self, device: &dyn Device) -> Result<()> {
        self.write_super(device, self.head)?;
        self.used = 0;
        Ok(())
    }

    /// Says that there is nothing to replay.
    pub fn close(&mut self, device: &dyn Device) -> Result<()> {
        self.write_super(device, 0)
    }

    /// Goes on after a recovery: with a number that no transaction in the log has had.
    pub fn restart(&mut self, sequence: u32) {
        (self.head, self.used, self.sequence) = (self.first, 0, sequence);
    }

    fn write_super(&mut self, device: &dyn Device, start: u32) -> Result<()> {
        put_be32(&mut self.raw, 0x18, self.sequence)?;
        put_be32(&mut self.raw, 0x1C, start)?;
        // Revoke records are written, whatever the one who made the journal had in mind.
        let incompat = be32_at(&self.raw, 0x28)? | INCOMPAT_REVOKE;
        put_be32(&mut self.raw, 0x28, incompat)?;
        if self.checksums != Checksums::None {
            let sum = super_checksum(&self.raw)?;
            put_be32(&mut self.raw, CHECKSUM, sum)?;
        }
        let (offset, _) = self.place(0)?;
        device.write(offset, &self.raw)?;
        device.flush()
    }

    /// The kind and number of one of the journal's own blocks.
    pub fn header(block: &[u8]) -> Result<Option<(u32, u32)>> {
        if be32_at(block, 0)? != MAGIC {
            return Ok(None);
        }
        Ok(Some((be32_at(block, 4)?, be32_at(block, 8)?)))
    }

    /// Gives a block back the magic number that was taken from it.
    pub fn unescape(block: &mut [u8]) -> Result<()> {
        put_be32(block, 0, MAGIC)
    }
}

fn is_escaped(block: &Arc<Vec<u8>>) -> bool {
    be32_at(block, 0) == Ok(MAGIC)
}

fn super_checksum(raw: &[u8]) -> Result<u32> {
    let before = crc32c(!0, part(raw, 0, CHECKSUM)?);
    let rest = raw.get(CHECKSUM + 4..).ok_or(Errno::EUCLEAN)?;
    Ok(crc32c(crc32c(before, &[0; 4]), rest))
}
