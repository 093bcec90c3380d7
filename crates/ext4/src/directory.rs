//! Blocks of directories: entries one after the other, each with the length to the next.

use abi::errno::Errno;
use crc32c::crc32c;

use crate::bytes::{part, part_mut, put_u16, put_u32, u8_at, u16_at, u32_at};
use crate::extent::Extent;
use crate::inode::{FileType, INDEX, Inode, checksum_seed};
use crate::mount::Ext4;
use crate::store::Seal;
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

/// Result of looking for a name in a directory: its entry, or the room for one.
#[derive(Clone, Copy)]
pub enum Place {
    /// At this entry.
    Taken(Found),
    /// Nowhere, and in this block there is room for it.
    Room(u64, Room),
    /// Nowhere, and nobody has looked for room, or there is none.
    Unknown,
}

/// An entry without its name.
#[derive(Clone, Copy)]
struct Head {
    len: usize,
    ino: u32,
    kind: u8,
    /// Bytes of the name, and all that it needs; both are 0 if there is no file.
    name_len: usize,
    used: usize,
}

/// The head of the entry at an offset; its block's entries end at `end`.
#[inline]
fn head(bytes: &[u8], at: usize, end: usize) -> Result<Head> {
    let head = bytes.get(at..).and_then(|rest| rest.first_chunk());
    let word = u64::from_le_bytes(*head.ok_or(Errno::EUCLEAN)?);
    let (ino, len) = (word as u32, usize::from((word >> 32) as u16));
    let (name_len, kind) = (usize::from((word >> 48) as u8), (word >> 56) as u8);
    if len < HEAD || len % 4 != 0 || at + len > end {
        return Err(Errno::EUCLEAN);
    }
    let (name_len, used) = if ino == 0 {
        (0, 0)
    } else if name_len == 0 || needed(name_len) > len {
        return Err(Errno::EUCLEAN);
    } else {
        (name_len, needed(name_len))
    };
    Ok(Head {
        len,
        ino,
        kind,
        name_len,
        used,
    })
}

/// The entry at an offset; its block's entries end at `end`.
pub fn entry(bytes: &[u8], at: usize, end: usize) -> Result<RawEntry<'_>> {
    let head = head(bytes, at, end)?;
    Ok(RawEntry {
        at,
        len: head.len,
        ino: head.ino,
        kind: head.kind,
        name: part(bytes, at + HEAD, head.name_len)?,
    })
}

/// Finds a name among the entries of a block, its offset and number; if it is not there, the first
/// room for it.
fn find(
    bytes: &[u8],
    end: usize,
    name: &[u8],
) -> Result<core::result::Result<(usize, u32), Option<Room>>> {
    let (wanted, mut room) = (needed(name.len()), None);
    // Names of one directory often begin alike.
    let last = name.last().copied().ok_or(Errno::ENOENT)?;
    let mut at = 0;
    while at < end {
        let head = head(bytes, at, end)?;
        if head.name_len == name.len()
            && u8_at(bytes, at + HEAD - 1 + name.len())? == last
            && part(bytes, at + HEAD, name.len())? == name
        {
            return Ok(Ok((at, head.ino)));
        }
        if room.is_none() && head.len - head.used >= wanted {
            room = Some(Room {
                at,
                len: head.len,
                used: head.used,
            });
        }
        at += head.len;
    }
    Ok(Err(room))
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

/// How the entry at an offset is removed: the one at this offset gets this length, or, if it is the
/// block's first, its number becomes 0.
fn removal(bytes: &[u8], end: usize, at: usize) -> Result<(usize, Option<u16>)> {
    let mut before: Option<(usize, usize)> = None;
    for found in entries(bytes, end) {
        let found = found?;
        if found.at == at {
            return Ok(match before {
                Some((before, len)) => (before, Some((len + found.len) as u16)),
                None => (at, None),
            });
        }
        before = Some((found.at, found.len));
    }
    Err(Errno::EUCLEAN)
}

const fn seal(dir: &Inode, kind: Kind) -> Seal {
    Seal::Directory {
        kind,
        ino: dir.ino,
        generation: dir.generation,
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
        let (bytes, is_verified) = self.store.read_verified(block)?;
        if self.sb.has_checksums() && !is_verified {
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
        self.store.edit(block, Some(seal(dir, kind)), change)
    }

    /// Changes some bytes of a block of a directory.
    fn edit_entries<R>(
        &mut self,
        dir: &Inode,
        (block, kind): (u64, Kind),
        part: (usize, usize),
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let unsealed = (seal(dir, kind), 0);
        self.store.edit_part(block, part, Some(unsealed), change)
    }

    /// Sets the checksum of a block of the transaction, of a directory with a number and a
    /// generation.
    pub(crate) fn seal_directory(
        &mut self,
        block: u64,
        kind: Kind,
        (ino, generation): (u32, u32),
    ) -> Result<()> {
        let seed = checksum_seed(&self.sb, ino, generation);
        let has_checksums = self.sb.has_checksums();
        self.store.seal(block, |bytes| {
            if !has_checksums {
                return Ok(());
            }
            if kind == Kind::Leaf {
                put_tail(bytes)?;
            }
            let (at, sum) = directory_checksum(bytes, kind, seed)?;
            put_u32(bytes, at, sum)
        })
    }

    /// Puts an entry where there is room for it.
    pub(crate) fn put_in(
        &mut self,
        dir: &Inode,
        block: u64,
        room: Room,
        (ino, kind, name): (u32, u8, &[u8]),
    ) -> Result<()> {
        let part = (room.at, room.used + needed(name.len()));
        let room = Room { at: 0, ..room };
        self.edit_entries(dir, (block, Kind::Leaf), part, |bytes| {
            room.put(bytes, ino, kind, name)
        })
    }

    /// Finds a name in a directory.
    pub(crate) fn find_entry(&mut self, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        Ok(match self.find_place(dir, name)? {
            Place::Taken(found) => Some(found),
            Place::Room(..) | Place::Unknown => None,
        })
    }

    /// Finds a name in a directory, or, if it has no index, room for that name.
    pub(crate) fn find_place(&mut self, dir: &Inode, name: &[u8]) -> Result<Place> {
        if dir.kind()? != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if self.is_indexed(dir) {
            return if name == b"." || name == b".." {
                self.find_in_block(dir, 0, Kind::Root, name)
            } else {
                self.find_indexed(dir, name)
            };
        }
        let mut place = Place::Unknown;
        for logical in 0..self.directory_blocks(dir)? {
            match (self.find_in_block(dir, logical, Kind::Leaf, name)?, place) {
                (taken @ Place::Taken(_), _) => return Ok(taken),
                (room, Place::Unknown) => place = room,
                _ => {}
            }
        }
        Ok(place)
    }

    /// Finds a name in a block of a directory, or the first room for it there.
    pub(crate) fn find_in_block(
        &mut self,
        dir: &Inode,
        logical: u32,
        kind: Kind,
        name: &[u8],
    ) -> Result<Place> {
        let (block, bytes) = self.directory_block(dir, logical, kind)?;
        let end = if kind == Kind::Leaf {
            self.entries_end()
        } else {
            bytes.len()
        };
        Ok(match find(&bytes, end, name)? {
            Ok((at, ino)) => {
                let found = Found {
                    block,
                    at,
                    ino,
                    kind,
                };
                Place::Taken(found)
            }
            Err(Some(room)) => Place::Room(block, room),
            Err(None) => Place::Unknown,
        })
    }

    /// The number in an entry for a file of a kind.
    pub(crate) fn entry_type(&self, kind: FileType) -> u8 {
        if self.sb.incompat.contains(Incompat::FILETYPE) {
            kind.entry_type()
        } else {
            0
        }
    }

    /// Adds a name that is not there to a directory, whose inode the caller stores; its blocks are
    /// as they were when `place` was found. Whether other entries have moved.
    pub(crate) fn add_entry(
        &mut self,
        dir: &mut Inode,
        (name, place): (&[u8], Place),
        ino: u32,
        kind: FileType,
    ) -> Result<bool> {
        if !dir.has_extents() {
            return Err(Errno::EOPNOTSUPP);
        }
        let kind = self.entry_type(kind);
        if self.is_indexed(dir) {
            return self.add_indexed(dir, name, ino, kind);
        }
        // Who knows no index keeps none up to date.
        dir.flags &= !INDEX;
        if let Place::Room(block, room) = place {
            self.put_in(dir, block, room, (ino, kind, name))?;
            return Ok(false);
        }
        if self.directory_blocks(dir)? == 1 && self.sb.compat.contains(Compat::DIR_INDEX) {
            self.make_index(dir)?;
            self.add_indexed(dir, name, ino, kind)?;
            return Ok(true);
        }
        let (_, block) = self.append_block(dir)?;
        let end = self.entries_end();
        self.edit_directory(dir, block, Kind::Leaf, |bytes| {
            put_entry(bytes, 0, end, ino, kind, name)
        })?;
        Ok(false)
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
        let (at, len) = self
            .store
            .look(found.block, |bytes| removal(bytes, end, found.at))?;
        let place = (found.block, found.kind);
        match len {
            Some(len) => self.edit_entries(dir, place, (at + 4, 2), |bytes| put_u16(bytes, 0, len)),
            None => self.edit_entries(dir, place, (at, 4), |bytes| put_u32(bytes, 0, 0)),
        }
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
        let place = (found.block, found.kind);
        self.edit_entries(dir, place, (found.at, HEAD), |bytes| {
            put_u32(bytes, 0, ino)?;
            part_mut(bytes, 7, 1)?.fill(kind);
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
