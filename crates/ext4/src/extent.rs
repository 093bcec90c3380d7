//! Nodes of extent trees: headers, entries, checksums.

use core::ops::Deref;

use abi::errno::Errno;
use crc32c::crc32c;

use crate::bytes::{put_u16, put_u32, u16_at, u32_at};
use crate::inode::Inode;
use crate::mount::Ext4;
use crate::{Block, Result};

const MAGIC: u16 = 0xF30A;
/// Bytes of a header, and of an entry.
const ENTRY: usize = 12;
/// Longest extent; one that is preallocated is a block shorter.
pub const MAX_LEN: u32 = 32768;
/// Levels of a tree below its root at most.
pub const MAX_DEPTH: u16 = 5;

/// Consecutive blocks of a file that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block, of the file.
    pub logical: u32,
    /// Number of blocks.
    pub len: u32,
    /// First block, of the file system.
    pub block: u64,
    /// Allocated, and reads as zeros.
    pub is_unwritten: bool,
}

impl Extent {
    /// Block of the file behind it; that of the last extent there can be is 2³².
    pub const fn end(&self) -> u64 {
        self.logical as u64 + self.len as u64
    }

    /// Whether `next` can become a part of it.
    pub const fn is_followed_by(&self, next: &Self) -> bool {
        let max = if self.is_unwritten {
            MAX_LEN - 1
        } else {
            MAX_LEN
        };
        self.end() == next.logical as u64
            && self.block + self.len as u64 == next.block
            && self.is_unwritten == next.is_unwritten
            && self.len + next.len <= max
    }

    /// The part from `from` to before `end`, which are blocks of it.
    pub const fn part(&self, from: u32, end: u64) -> Self {
        Self {
            logical: from,
            len: (end - from as u64) as u32,
            block: self.block + (from - self.logical) as u64,
            is_unwritten: self.is_unwritten,
        }
    }
}

/// Place of a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the inode.
    Root,
    /// In this block.
    Block(u64),
}

/// A node's bytes.
pub enum Node {
    /// Of the inode.
    Root([u8; 60]),
    /// Of a block.
    Block(Block),
}

impl Deref for Node {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Root(bytes) => bytes,
            Self::Block(bytes) => bytes,
        }
    }
}

/// Entries of a node.
pub fn entries(node: &[u8]) -> Result<usize> {
    Ok(usize::from(u16_at(node, 2)?))
}

/// Entries that a node has room for.
pub fn max_entries(node: &[u8]) -> Result<usize> {
    Ok(usize::from(u16_at(node, 4)?))
}

/// Levels below a node.
pub fn depth(node: &[u8]) -> Result<u16> {
    u16_at(node, 6)
}

/// Sets the number of entries.
pub fn set_entries(node: &mut [u8], count: usize) -> Result<()> {
    put_u16(node, 2, count as u16)
}

/// Makes a node that has no entries.
pub fn make(node: &mut [u8], max: usize, depth: u16) -> Result<()> {
    put_u16(node, 0, MAGIC)?;
    put_u16(node, 2, 0)?;
    put_u16(node, 4, max as u16)?;
    put_u16(node, 6, depth)?;
    put_u32(node, 8, 0)
}

/// Entries that a node of so many bytes has room for; a block's last bytes are a checksum's.
pub const fn capacity(len: usize) -> usize {
    (len - ENTRY) / ENTRY
}

/// First block of the file that an entry is for.
pub fn key(node: &[u8], index: usize) -> Result<u32> {
    u32_at(node, ENTRY + ENTRY * index)
}

/// Sets that.
pub fn set_key(node: &mut [u8], index: usize, key: u32) -> Result<()> {
    put_u32(node, ENTRY + ENTRY * index, key)
}

/// Number of entries whose key is at most `logical`.
pub fn position(node: &[u8], logical: u32) -> Result<usize> {
    let (mut low, mut high) = (0, entries(node)?);
    while low < high {
        let middle = low.midpoint(high);
        if key(node, middle)? <= logical {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// An extent of a leaf.
pub fn extent(node: &[u8], index: usize) -> Result<Extent> {
    let at = ENTRY + ENTRY * index;
    let len = u32::from(u16_at(node, at + 4)?);
    let high = u16_at(node, at + 6)?;
    let (len, is_unwritten) = if len > MAX_LEN {
        (len - MAX_LEN, true)
    } else {
        (len, false)
    };
    if len == 0 {
        return Err(Errno::EUCLEAN);
    }
    Ok(Extent {
        logical: u32_at(node, at)?,
        len,
        block: u64::from(u32_at(node, at + 8)?) | u64::from(high) << 32,
        is_unwritten,
    })
}

/// Stores an extent.
pub fn put_extent(node: &mut [u8], index: usize, new: &Extent) -> Result<()> {
    let at = ENTRY + ENTRY * index;
    let len = new.len + if new.is_unwritten { MAX_LEN } else { 0 };
    put_u32(node, at, new.logical)?;
    put_u16(node, at + 4, len as u16)?;
    put_u16(node, at + 6, (new.block >> 32) as u16)?;
    put_u32(node, at + 8, new.block as u32)
}

/// Block of the node below an entry.
pub fn child(node: &[u8], index: usize) -> Result<u64> {
    let at = ENTRY + ENTRY * index;
    Ok(u64::from(u32_at(node, at + 4)?) | u64::from(u16_at(node, at + 8)?) << 32)
}

/// Stores an entry with the node below it.
pub fn put_child(node: &mut [u8], index: usize, key: u32, block: u64) -> Result<()> {
    let at = ENTRY + ENTRY * index;
    put_u32(node, at, key)?;
    put_u32(node, at + 4, block as u32)?;
    put_u16(node, at + 8, (block >> 32) as u16)?;
    put_u16(node, at + 10, 0)
}

/// Makes room for an entry.
pub fn open_gap(node: &mut [u8], index: usize) -> Result<()> {
    let count = entries(node)?;
    if count >= max_entries(node)? || index > count {
        return Err(Errno::EUCLEAN);
    }
    let (from, end) = (ENTRY + ENTRY * index, ENTRY + ENTRY * count);
    if end + ENTRY > node.len() {
        return Err(Errno::EUCLEAN);
    }
    node.copy_within(from..end, from + ENTRY);
    set_entries(node, count + 1)
}

/// Takes an entry away.
pub fn close_gap(node: &mut [u8], index: usize) -> Result<()> {
    let count = entries(node)?;
    let (from, end) = (ENTRY + ENTRY * index, ENTRY + ENTRY * count);
    if index >= count || end > node.len() {
        return Err(Errno::EUCLEAN);
    }
    node.copy_within(from + ENTRY..end, from);
    set_entries(node, count - 1)
}

/// Bytes of some entries.
pub fn entry_bytes(node: &[u8], from: usize, end: usize) -> Result<&[u8]> {
    node.get(ENTRY + ENTRY * from..ENTRY + ENTRY * end)
        .ok_or(Errno::EUCLEAN)
}

/// Puts entries behind those that are there.
pub fn append(node: &mut [u8], bytes: &[u8]) -> Result<()> {
    let count = entries(node)?;
    let at = ENTRY + ENTRY * count;
    crate::bytes::part_mut(node, at, bytes.len())?.copy_from_slice(bytes);
    set_entries(node, count + bytes.len() / ENTRY)
}

/// Checks a node that was read: its header, that entries are in order and do not overlap.
fn check(node: &[u8], len: usize) -> Result<()> {
    let (count, max) = (entries(node)?, max_entries(node)?);
    if u16_at(node, 0)? != MAGIC
        || depth(node)? > MAX_DEPTH
        || max == 0
        || max > capacity(len)
        || count > max
    {
        return Err(Errno::EUCLEAN);
    }
    let is_leaf = depth(node)? == 0;
    let mut end = 0;
    for index in 0..count {
        if u64::from(key(node, index)?) < end {
            return Err(Errno::EUCLEAN);
        }
        end = if is_leaf {
            extent(node, index)?.end()
        } else {
            u64::from(key(node, index)?) + 1
        };
    }
    if end > 1 << 32 {
        Err(Errno::EUCLEAN)
    } else {
        Ok(())
    }
}

impl Ext4 {
    /// A node of a file's tree, checked.
    pub(crate) fn node(&mut self, inode: &Inode, place: Place) -> Result<Node> {
        let block = match place {
            Place::Root => {
                check(&inode.root, inode.root.len())?;
                return Ok(Node::Root(inode.root));
            }
            Place::Block(block) => block,
        };
        self.check_range(block, 1)?;
        let (bytes, is_verified) = self.store.read_verified(block)?;
        if !is_verified {
            check(&bytes, bytes.len() - 4)?;
            let at = ENTRY + ENTRY * max_entries(&bytes)?;
            if self.sb.has_checksums()
                && tree_checksum(&bytes, at, inode.checksum_seed(&self.sb))? != u32_at(&bytes, at)?
            {
                return Err(Errno::EUCLEAN);
            }
            self.store.set_verified(block, 0);
        }
        Ok(Node::Block(bytes))
    }

    /// Changes a node of a file's tree.
    pub(crate) fn edit_node<R>(
        &mut self,
        inode: &mut Inode,
        place: Place,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let Place::Block(block) = place else {
            return change(&mut inode.root);
        };
        let seed = self
            .sb
            .has_checksums()
            .then(|| inode.checksum_seed(&self.sb));
        self.store.edit(block, None, |bytes| {
            let done = change(bytes)?;
            if let Some(seed) = seed {
                let at = ENTRY + ENTRY * max_entries(bytes)?;
                let sum = tree_checksum(bytes, at, seed)?;
                put_u32(bytes, at, sum)?;
            }
            Ok(done)
        })
    }
}

fn tree_checksum(node: &[u8], at: usize, seed: u32) -> Result<u32> {
    Ok(crc32c(seed, node.get(..at).ok_or(Errno::EUCLEAN)?))
}
