//! Indexed directories: a tree of hashes above the blocks with entries.
//!
//! An entry of the index is the lowest hash of a block below it; its lowest bit says that names
//! with that hash are in the block before, too.

use alloc::vec::Vec;

use abi::errno::Errno;
use arrayvec::ArrayVec;

use crate::bytes::{part, part_mut, put_u16, put_u32, u8_at, u16_at, u32_at};
use crate::directory::{Kind, Place, entries, entry, needed, put_entry, room};
use crate::hash::{Hasher, NameHash};
use crate::inode::{INDEX, Inode};
use crate::mount::Ext4;
use crate::superblock::Incompat;
use crate::{Block, Result};

/// Bytes of an entry of the index.
const ENTRY: usize = 8;
/// Offset of what the root says of the index.
const INFO: usize = 24;
/// Bytes of that.
const INFO_LEN: u8 = 8;
/// Blocks of a directory have numbers of so many bits.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// A node of the index on the way to a leaf.
pub struct Step {
    kind: Kind,
    block: u64,
    bytes: Block,
    /// The entry through which the way goes.
    at: usize,
}

impl Step {
    fn count(&self) -> Result<usize> {
        Ok(usize::from(u16_at(&self.bytes, self.kind.base() + 2)?))
    }

    fn limit(&self) -> Result<usize> {
        Ok(usize::from(u16_at(&self.bytes, self.kind.base())?))
    }

    fn hash(&self, index: usize) -> Result<u32> {
        // The place of the first hash holds the number of entries.
        if index == 0 {
            Ok(0)
        } else {
            u32_at(&self.bytes, self.kind.base() + ENTRY * index)
        }
    }

    fn child(&self, index: usize) -> Result<u32> {
        Ok(u32_at(&self.bytes, self.kind.base() + ENTRY * index + 4)? & BLOCK_MASK)
    }
}

/// The way to a leaf.
pub struct IndexPath {
    steps: ArrayVec<Step, 3>,
    pub hasher: Hasher,
}

impl IndexPath {
    /// The leaf, as a block of the directory.
    pub fn leaf(&self) -> Result<u32> {
        let last = self.steps.last().ok_or(Errno::EUCLEAN)?;
        last.child(last.at)
    }
}

impl Ext4 {
    fn max_levels(&self) -> usize {
        if self.sb.incompat.contains(Incompat::LARGE_DIR) {
            3
        } else {
            2
        }
    }

    /// Entries that a node of the index has room for.
    fn index_limit(&self, kind: Kind) -> usize {
        let tail = if self.sb.has_checksums() { ENTRY } else { 0 };
        (self.store.block_size - kind.base() - tail) / ENTRY
    }

    fn index_step(&mut self, dir: &Inode, logical: u32, kind: Kind) -> Result<Step> {
        let (block, bytes) = self.directory_block(dir, logical, kind)?;
        let step = Step {
            kind,
            block,
            bytes,
            at: 0,
        };
        let (count, limit) = (step.count()?, step.limit()?);
        if limit != self.index_limit(kind) || count == 0 || count > limit {
            return Err(Errno::EUCLEAN);
        }
        Ok(step)
    }

    /// The way to the leaf for a hash.
    pub(crate) fn index_path(
        &mut self,
        dir: &Inode,
        hash_of: impl FnOnce(&Hasher) -> u32,
    ) -> Result<IndexPath> {
        let root = self.index_step(dir, 0, Kind::Root)?;
        let version = u8_at(&root.bytes, INFO + 4)?;
        let levels = usize::from(u8_at(&root.bytes, INFO + 6)?);
        if u8_at(&root.bytes, INFO + 5)? != INFO_LEN || levels >= self.max_levels() {
            return Err(Errno::EUCLEAN);
        }
        let hasher = Hasher::new(version, &self.sb).ok_or(Errno::EUCLEAN)?;
        let hash = hash_of(&hasher);
        let mut steps = ArrayVec::new();
        let mut step = root;
        loop {
            step.at = position(&step, hash)?;
            let next = step.child(step.at)?;
            steps.try_push(step).map_err(|_| Errno::EUCLEAN)?;
            if steps.len() > levels {
                return Ok(IndexPath { steps, hasher });
            }
            step = self.index_step(dir, next, Kind::Node)?;
        }
    }

    /// Goes on to the next leaf. The hash with which it begins; `None` behind the last.
    pub(crate) fn next_leaf(&mut self, dir: &Inode, path: &mut IndexPath) -> Result<Option<u32>> {
        let depth = path.steps.len();
        let mut hash = None;
        while let Some(last) = path.steps.last_mut() {
            if last.at + 1 < last.count()? {
                last.at += 1;
                hash = Some(last.hash(last.at)?);
                break;
            }
            path.steps.pop();
        }
        while !path.steps.is_empty() && path.steps.len() < depth {
            let next = path.leaf()?;
            let step = self.index_step(dir, next, Kind::Node)?;
            path.steps.push(step);
        }
        Ok(hash)
    }

    /// Finds a name.
    pub(crate) fn find_indexed(&mut self, dir: &Inode, name: &[u8]) -> Result<Place> {
        let mut path = self.index_path(dir, |hasher| hasher.hash(name).major)?;
        let hash = path.hasher.hash(name).major;
        loop {
            let place = self.find_in_block(dir, path.leaf()?, Kind::Leaf, name)?;
            if let Place::Taken(_) = place {
                return Ok(place);
            }
            // Names with this hash go on in the next leaf, if that says so.
            match self.next_leaf(dir, &mut path)? {
                Some(next) if next == hash | 1 => {}
                _ => return Ok(Place::Unknown),
            }
        }
    }

    /// Adds a name that is not there. Whether other entries have moved.
    pub(crate) fn add_indexed(
        &mut self,
        dir: &mut Inode,
        name: &[u8],
        ino: u32,
        kind: u8,
    ) -> Result<bool> {
        let end = self.entries_end();
        // Each turn but the last splits a node or a leaf on the way.
        for turn in 0..2 * self.max_levels() + 4 {
            let path = self.index_path(dir, |hasher| hasher.hash(name).major)?;
            let (block, bytes) = self.directory_block(dir, path.leaf()?, Kind::Leaf)?;
            if let Some(room) = room(&bytes, end, name)? {
                drop(bytes);
                self.put_in(dir, block, room, (ino, kind, name))?;
                return Ok(turn > 0);
            }
            let last = path.steps.last().ok_or(Errno::EUCLEAN)?;
            if last.count()? < last.limit()? {
                self.split_leaf(dir, &path, block, &bytes)?;
            } else {
                self.split_node(dir, &path)?;
            }
        }
        // A leaf full of names with one hash, which cannot be split.
        Err(Errno::ENOSPC)
    }

    /// Moves the upper half of a leaf's names to a new one.
    fn split_leaf(
        &mut self,
        dir: &mut Inode,
        path: &IndexPath,
        block: u64,
        bytes: &Block,
    ) -> Result<()> {
        let end = self.entries_end();
        let mut names = sorted(bytes, end, &path.hasher)?;
        let total: usize = names.iter().map(|(_, _, len)| len).sum();
        let mut kept = 0;
        let mut at = 0;
        while at + 1 < names.len() && (at == 0 || kept + names[at].2 <= total / 2) {
            kept += names[at].2;
            at += 1;
        }
        if at == 0 || at >= names.len() {
            return Err(Errno::ENOSPC);
        }
        let moved = names.split_off(at);
        let first = moved.first().ok_or(Errno::EUCLEAN)?.0.major;
        let goes_on = names.last().is_some_and(|(hash, ..)| hash.major == first);
        let (logical, new) = self.append_block(dir)?;
        self.edit_directory(dir, new, Kind::Leaf, |out| {
            copy_entries(out, end, bytes, &moved)
        })?;
        self.edit_directory(dir, block, Kind::Leaf, |out| {
            copy_entries(out, end, bytes, &names)
        })?;
        let last = path.steps.last().ok_or(Errno::EUCLEAN)?;
        self.add_to_index(dir, last, first | u32::from(goes_on), logical)
    }

    /// Puts an entry behind the one through which the way went.
    fn add_to_index(&mut self, dir: &Inode, step: &Step, hash: u32, logical: u32) -> Result<()> {
        let (base, count, at) = (step.kind.base(), step.count()?, step.at + 1);
        if count >= step.limit()? {
            return Err(Errno::EUCLEAN);
        }
        self.edit_directory(dir, step.block, step.kind, |bytes| {
            let (from, end) = (base + ENTRY * at, base + ENTRY * count);
            if end + ENTRY > bytes.len() {
                return Err(Errno::EUCLEAN);
            }
            bytes.copy_within(from..end, from + ENTRY);
            put_u32(bytes, from, hash)?;
            put_u32(bytes, from + 4, logical)?;
            put_u16(bytes, base + 2, count as u16 + 1)
        })
    }

    /// Makes room in the nodes on the way: splits the lowest full one below one that is not, or
    /// puts a level below the root.
    fn split_node(&mut self, dir: &mut Inode, path: &IndexPath) -> Result<()> {
        let mut parent = None;
        for (level, step) in path.steps.iter().enumerate().rev().skip(1) {
            if step.count()? < step.limit()? {
                parent = Some(level);
                break;
            }
        }
        let limit = self.index_limit(Kind::Node);
        let Some(level) = parent else {
            if path.steps.len() >= self.max_levels() {
                return Err(Errno::ENOSPC);
            }
            let root = path.steps.first().ok_or(Errno::EUCLEAN)?;
            let count = root.count()?;
            let old = part(&root.bytes, Kind::Root.base(), ENTRY * count)?;
            let (logical, new) = self.append_block(dir)?;
            self.edit_directory(dir, new, Kind::Node, |bytes| put_node(bytes, limit, old))?;
            return self.edit_directory(dir, root.block, Kind::Root, |bytes| {
                part_mut(bytes, INFO + 6, 1)?.fill(path.steps.len() as u8);
                let base = Kind::Root.base();
                part_mut(bytes, base + ENTRY, ENTRY * (count - 1))?.fill(0);
                put_u16(bytes, base + 2, 1)?;
                put_u32(bytes, base + 4, logical)
            });
        };
        let [parent, full] = path.steps.get(level..level + 2).ok_or(Errno::EUCLEAN)? else {
            return Err(Errno::EUCLEAN);
        };
        let (base, count) = (full.kind.base(), full.count()?);
        let stays = count / 2;
        let hash = full.hash(stays)?;
        let old = part(&full.bytes, base + ENTRY * stays, ENTRY * (count - stays))?;
        let (logical, new) = self.append_block(dir)?;
        self.edit_directory(dir, new, Kind::Node, |bytes| put_node(bytes, limit, old))?;
        self.edit_directory(dir, full.block, full.kind, |bytes| {
            put_u16(bytes, base + 2, stays as u16)
        })?;
        self.add_to_index(dir, parent, hash, logical)
    }

    /// Makes a directory of one block an indexed one.
    pub(crate) fn make_index(&mut self, dir: &mut Inode) -> Result<()> {
        let (block, bytes) = self.directory_block(dir, 0, Kind::Leaf)?;
        let end = self.entries_end();
        let dot = entry(&bytes, 0, end)?;
        let dots = entry(&bytes, dot.len, end)?;
        if dot.name != b"." || dots.name != b".." {
            return Err(Errno::EUCLEAN);
        }
        let (parent, kind) = (dots.ino, dots.kind);
        let mut names: Vec<(usize, usize)> = Vec::new();
        for found in entries(&bytes, end).skip(2) {
            let found = found?;
            if found.ino != 0 {
                fallible::push(&mut names, (found.at, found.used()))?;
            }
        }
        let version = self.sb.hash_version;
        Hasher::new(version, &self.sb).ok_or(Errno::EUCLEAN)?;
        let limit = self.index_limit(Kind::Root);
        let (logical, leaf) = self.append_block(dir)?;
        let moved = names
            .iter()
            .map(|&(at, len)| (NameHash { major: 0, minor: 0 }, at, len));
        let mut all = fallible::with_capacity(names.len())?;
        all.extend(moved);
        self.edit_directory(dir, leaf, Kind::Leaf, |out| {
            copy_entries(out, end, &bytes, &all)
        })?;
        let ino = dir.ino;
        self.edit_directory(dir, block, Kind::Root, |out| {
            let rest = out.len() - needed(1);
            out.fill(0);
            put_entry(out, 0, needed(1), ino, kind, b".")?;
            put_entry(out, needed(1), rest, parent, kind, b"..")?;
            part_mut(out, INFO + 4, 4)?.copy_from_slice(&[version, INFO_LEN, 0, 0]);
            let base = Kind::Root.base();
            put_u16(out, base, limit as u16)?;
            put_u16(out, base + 2, 1)?;
            put_u32(out, base + 4, logical)
        })?;
        dir.flags |= INDEX;
        Ok(())
    }
}

/// The last entry of a node whose hash is not beyond one.
fn position(step: &Step, hash: u32) -> Result<usize> {
    let (mut low, mut high) = (1, step.count()?);
    while low < high {
        let middle = low.midpoint(high);
        if step.hash(middle)? <= hash {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low - 1)
}

/// Makes an inner node with the entries of another.
fn put_node(bytes: &mut [u8], limit: usize, old: &[u8]) -> Result<()> {
    let len = bytes.len();
    bytes.fill(0);
    put_u16(bytes, 4, len as u16)?;
    let base = Kind::Node.base();
    part_mut(bytes, base, old.len())?.copy_from_slice(old);
    put_u16(bytes, base, limit as u16)?;
    put_u16(bytes, base + 2, (old.len() / ENTRY) as u16)
}

/// The names of a leaf by hash: hash, offset, bytes that each needs.
fn sorted(bytes: &[u8], end: usize, hasher: &Hasher) -> Result<Vec<(NameHash, usize, usize)>> {
    let mut names = Vec::new();
    for found in entries(bytes, end) {
        let found = found?;
        if found.ino != 0 {
            fallible::push(
                &mut names,
                (hasher.hash(found.name), found.at, found.used()),
            )?;
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes a leaf of some entries of another block.
fn copy_entries(
    out: &mut [u8],
    end: usize,
    from: &[u8],
    names: &[(NameHash, usize, usize)],
) -> Result<()> {
    out.fill(0);
    let mut at = 0;
    for (index, &(_, old, len)) in names.iter().enumerate() {
        part_mut(out, at, len)?.copy_from_slice(part(from, old, len)?);
        let whole = if index + 1 == names.len() {
            end - at
        } else {
            len
        };
        put_u16(out, at + 4, whole as u16)?;
        at += len;
    }
    if names.is_empty() {
        put_u16(out, 4, end as u16)
    } else {
        Ok(())
    }
}
