//! Blocks of directories: entries one after the other, each with the length to the next.

use abi::errno::Errno;
use crc32c::crc32c;

use crate::bytes::{part, part_mut, put_u16, put_u32, u8_at, u16_at, u32_at};
use crate::extent::Extent;
use crate::inode::{FileType, INDEX, Inode};
use crate::mount::Ext4;
use crate::superblock::{Compat, Incompat};
use crate::{Block, Result};

/// Bytes of an entry without its name.
const HEAD: usize = 8;
/// Bytes at the end of a block that hold its checksum, as an entry without a file.
const TAIL: usize = 12;
const TAIL_TYPE: u8 = 0xDE;

/// Role of a block of a directory, and so where its checksum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Entries.
    Leaf,
    /// The index's root: `.` and `..`, and then the index.
    Root,
    /// An inner node of the index.
    Node,
}

impl Kind {
    /// Offset of the index's entries.
    pub const fn base(self) -> usize {
        match self {
            Self::Root => 32,
            Self::Leaf | Self::Node => 8,
        }
    }
}

/// An entry of a block.
#[derive(Clone, Copy, Debug)]
pub struct RawEntry<'a> {
    /// Offset in the block.
    pub at: usize,
    /// Bytes to the next one.
    pub len: usize,
    /// The file's number; 0 is no file.
    pub ino: u32,
    pub kind: u8,
    pub name: &'a [u8],
}

impl RawEntry<'_> {
    /// Bytes that it needs.
    pub const fn used(&self) -> usize {
        if self.ino == 0 {
            0
        } else {
            needed(self.name.len())
        }
    }
}

/// Bytes of an entry with a name of this length.
pub const fn needed(name: usize) -> usize {
    (HEAD + name).next_multiple_of(4)
}

/// An entry that was found, with the block it is in.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub block: u64,
    pub at: usize,
    pub ino: u32,
    pub kind: Kind,
}

/// The entry at an offset; its block's entries end at `end`.
pub fn entry(bytes: &[u8], at: usize, end: usize) -> Result<RawEntry<'_>> {
    let head = bytes.get(at..).and_then(|rest| rest.first_chunk());
    let [a, b, c, d, e, f, name_len, kind]: [u8; HEAD] = *head.ok_or(Errno::EUCLEAN)?;
    let ino = u32::from_le_bytes([a, b, c, d]);
    let len = usize::from(u16::from_le_bytes([e, f]));
    let name_len = usize::from(name_len);
    if len < HEAD
        || !len.is_multiple_of(4)
        || at + len > end
        || ino != 0 && (needed(name_len) > len || name_len == 0)
    {
        return Err(Errno::EUCLEAN);
    }
    let name_len = if ino == 0 { 0 } else { name_len };
    Ok(RawEntry {
        at,
        len,
        ino,
        kind,
        name: part(bytes, at + HEAD, name_len)?,
    })
}

/// All entries of a block, up to the first that is wrong.
pub fn entries(bytes: &[u8], end: usize) -> impl Iterator<Item = Result<RawEntry<'_>>> {
    let mut at = 0;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let found = entry(bytes, at, end);
        at = found.as_ref().map_or(end, |found| at + found.len);
        Some(found)
    })
}

/// Stores an entry.
pub fn put_entry(
    bytes: &mut [u8],
    at: usize,
    len: usize,
    ino: u32,
    kind: u8,
    name: &[u8],
) -> Result<()> {
    put_u32(bytes, at, ino)?;
    put_u16(bytes, at + 4, len as u16)?;
    part_mut(bytes, at + 6, 2)?.copy_from_slice(&[name.len() as u8, kind]);
    part_mut(bytes, at + HEAD, name.len())?.copy_from_slice(name);
    let padding = needed(name.len()) - HEAD - name.len();
    part_mut(bytes, at + HEAD + name.len(), padding)?.fill(0);
    Ok(())
}

/// Room for an entry behind what an entry uses.
#[derive(Clone, Copy)]
pub struct Room {
    at: usize,
    len: usize,
    used: usize,
}

/// The first room for a name in a block.
pub fn room(bytes: &[u8], end: usize, name: &[u8]) -> Result<Option<Room>> {
    let wanted = needed(name.len());
    for found in entries(bytes, end) {
        let found = found?;
        let (at, len, used) = (found.at, found.len, found.used());
        if len - used >= wanted {
            return Ok(Some(Room { at, len, used }));
        }
    }
    Ok(None)
}

impl Room {
    /// Puts an entry there.
    pub fn put(self, bytes: &mut [u8], ino: u32, kind: u8, name: &[u8]) -> Result<()> {
        let Self { at, len, used } = self;
        if used > 0 {
            put_u16(bytes, at + 4, used as u16)?;
        }
        put_entry(bytes, at + used, len - used, ino, kind, name)
    }
}

/// Removes the entry at an offset.
fn remove(bytes: &mut [u8], end: usize, at: usize) -> Result<()> {
    let (mut before, mut here) = (None, None);
    for found in entries(bytes, end) {
        let found = found?;
        if found.at == at {
            here = Some(found.len);
            break;
        }
        before = Some((found.at, found.len));
    }
    match (before, here.ok_or(Errno::EUCLEAN)?) {
        (Some((before, before_len)), len) => put_u16(bytes, before + 4, (before_len + len) as u16),
        (None, _) => put_u32(bytes, at, 0),
    }
}

impl Ext4 {
    /// Whether names of a directory are found by its index.
    pub(crate) fn is_indexed(&self, dir: &Inode) -> bool {
        dir.flags & INDEX != 0 && self.sb.compat.contains(Compat::DIR_INDEX)
    }

    /// Blocks of a directory.
    pub(crate) fn directory_blocks(&self, dir: &Inode) -> Result<u32> {
        u32::try_from(dir.size / u64::from(self.sb.block_size)).map_err(|_| Errno::EUCLEAN)
    }

    /// Offset at which the entries of a leaf end.
    pub(crate) fn entries_end(&self) -> usize {
        self.store.block_size - if self.sb.has_checksums() { TAIL } else { 0 }
    }

    /// A block of a directory, with its number.
    pub(crate) fn directory_block(
        &mut self,
        dir: &Inode,
        logical: u32,
        kind: Kind,
    ) -> Result<(u64, Block)> {
        if logical >= self.directory_blocks(dir)? {
            return Err(Errno::EUCLEAN);
        }
        let run = self.map(dir, logical)?;
        let block = run
            .block
            .filter(|_| !run.is_unwritten)
            .ok_or(Errno::EUCLEAN)?;
        let bytes = self.store.read(block)?;
        if self.sb.has_checksums() && !self.store.is_verified(block, 0) {
            let (at, sum) = directory_checksum(&bytes, kind, dir.checksum_seed(&self.sb))?;
            if u32_at(&bytes, at)? != sum {
                return Err(Errno::EUCLEAN);
            }
            self.store.set_verified(block, 0);
        }
        Ok((block, bytes))
    }

    /// Changes a block of a directory.
    pub(crate) fn edit_directory<R>(
        &mut self,
        dir: &Inode,
        block: u64,
        kind: Kind,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let seed = self.sb.has_checksums().then(|| dir.checksum_seed(&self.sb));
        self.store.edit(block, |bytes| {
            let done = change(bytes)?;
            if let Some(seed) = seed {
                if kind == Kind::Leaf {
                    put_tail(bytes)?;
                }
                let (at, sum) = directory_checksum(bytes, kind, seed)?;
                put_u32(bytes, at, sum)?;
            }
            Ok(done)
        })
    }

    /// Finds a name in a directory.
    pub(crate) fn find_entry(&mut self, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        if dir.kind()? != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if self.is_indexed(dir) && name != b"." && name != b".." {
            return self.find_indexed(dir, name);
        }
        if self.is_indexed(dir) {
            return self.find_in_block(dir, 0, Kind::Root, name);
        }
        for logical in 0..self.directory_blocks(dir)? {
            if let Some(found) = self.find_in_block(dir, logical, Kind::Leaf, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds a name in a block of a directory.
    pub(crate) fn find_in_block(
        &mut self,
        dir: &Inode,
        logical: u32,
        kind: Kind,
        name: &[u8],
    ) -> Result<Option<Found>> {
        let (block, bytes) = self.directory_block(dir, logical, kind)?;
        let end = if kind == Kind::Leaf {
            self.entries_end()
        } else {
            bytes.len()
        };
        for found in entries(&bytes, end) {
            let found = found?;
            // Names of one directory often begin alike.
            if found.ino != 0 && found.name.last() == name.last() && found.name == name {
                return Ok(Some(Found {
                    block,
                    at: found.at,
                    ino: found.ino,
                    kind,
                }));
            }
        }
        Ok(None)
    }

    /// The number in an entry for a file of a kind.
    pub(crate) fn entry_type(&self, kind: FileType) -> u8 {
        if self.sb.incompat.contains(Incompat::FILETYPE) {
            kind.entry_type()
        } else {
            0
        }
    }

    /// Adds a name that is not there to a directory, whose inode the caller stores.
    pub(crate) fn add_entry(
        &mut self,
        dir: &mut Inode,
        name: &[u8],
        ino: u32,
        kind: FileType,
    ) -> Result<()> {
        if !dir.has_extents() {
            return Err(Errno::EOPNOTSUPP);
        }
        let kind = self.entry_type(kind);
        if self.is_indexed(dir) {
            return self.add_indexed(dir, name, ino, kind);
        }
        // Who knows no index keeps none up to date.
        dir.flags &= !INDEX;
        let (end, count) = (self.entries_end(), self.directory_blocks(dir)?);
        for logical in 0..count {
            let (block, bytes) = self.directory_block(dir, logical, Kind::Leaf)?;
            let Some(room) = room(&bytes, end, name)? else {
                continue;
            };
            return self.edit_directory(dir, block, Kind::Leaf, |bytes| {
                room.put(bytes, ino, kind, name)
            });
        }
        if count == 1 && self.sb.compat.contains(Compat::DIR_INDEX) {
            self.make_index(dir)?;
            return self.add_indexed(dir, name, ino, kind);
        }
        let (_, block) = self.append_block(dir)?;
        self.edit_directory(dir, block, Kind::Leaf, |bytes| {
            put_entry(bytes, 0, end, ino, kind, name)
        })
    }

    /// Adds a block of zeros at the end of a directory.
    pub(crate) fn append_block(&mut self, dir: &mut Inode) -> Result<(u32, u64)> {
        let logical = self.directory_blocks(dir)?;
        let goal = match logical.checked_sub(1) {
            Some(last) => self.map(dir, last)?.block.map(|block| block + 1),
            None => None,
        };
        let goal = goal.map_or_else(|| self.goal_of(dir), Ok)?;
        let block = self.allocate_one(goal)?;
        self.store.fresh(block)?;
        self.insert_extent(
            dir,
            Extent {
                logical,
                len: 1,
                block,
                is_unwritten: false,
            },
        )?;
        dir.size += u64::from(self.sb.block_size);
        dir.sectors += u64::from(self.sb.block_size / 512);
        Ok((logical, block))
    }

    /// Takes a name away.
    pub(crate) fn remove_entry_at(&mut self, dir: &Inode, found: Found) -> Result<()> {
        let end = self.entries_end();
        self.edit_directory(dir, found.block, found.kind, |bytes| {
            remove(bytes, end, found.at)
        })
    }

    /// Makes a name lead to another file.
    pub(crate) fn redirect(
        &mut self,
        dir: &Inode,
        found: Found,
        ino: u32,
        kind: FileType,
    ) -> Result<()> {
        let kind = self.entry_type(kind);
        self.edit_directory(dir, found.block, found.kind, |bytes| {
            put_u32(bytes, found.at, ino)?;
            part_mut(bytes, found.at + 7, 1)?.fill(kind);
            Ok(())
        })
    }

    /// Makes the first block of a new directory.
    pub(crate) fn make_directory(&mut self, dir: &mut Inode, parent: u32) -> Result<()> {
        let (_, block) = self.append_block(dir)?;
        let (end, kind, ino) = (
            self.entries_end(),
            self.entry_type(FileType::Directory),
            dir.ino,
        );
        self.edit_directory(dir, block, Kind::Leaf, |bytes| {
            put_entry(bytes, 0, needed(1), ino, kind, b".")?;
            put_entry(bytes, needed(1), end - needed(1), parent, kind, b"..")
        })
    }
}

fn put_tail(bytes: &mut [u8]) -> Result<()> {
    let at = bytes.len() - TAIL;
    put_u32(bytes, at, 0)?;
    put_u16(bytes, at + 4, TAIL as u16)?;
    part_mut(bytes, at + 6, 2)?.copy_from_slice(&[0, TAIL_TYPE]);
    Ok(())
}

/// The checksum of a directory's block, and its offset.
fn directory_checksum(bytes: &[u8], kind: Kind, seed: u32) -> Result<(usize, u32)> {
    if kind == Kind::Leaf {
        let tail = bytes.len() - TAIL;
        let has_tail = u32_at(bytes, tail)? == 0
            && u16_at(bytes, tail + 4)? == TAIL as u16
            && u8_at(bytes, tail + 6)? == 0
            && u8_at(bytes, tail + 7)? == TAIL_TYPE;
        if !has_tail {
            return Err(Errno::EUCLEAN);
        }
        return Ok((tail + 8, crc32c(seed, part(bytes, 0, tail)?)));
    }
    let base = kind.base();
    let (limit, count) = (u16_at(bytes, base)?, u16_at(bytes, base + 2)?);
    let tail = base + 8 * usize::from(limit);
    let sum = crc32c(seed, part(bytes, 0, base + 8 * usize::from(count))?);
    let sum = crc32c(sum, part(bytes, tail, 4)?);
    Ok((tail + 4, crc32c(sum, &[0; 4])))
}
