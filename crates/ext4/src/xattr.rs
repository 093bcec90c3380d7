//! Extended attributes: in the inode behind its fields, and in one block that files may share.

use alloc::vec::Vec;

use abi::errno::Errno;
use crc32c::crc32c;

use crate::Result;
use crate::bytes::{part, part_mut, put_u16, put_u32, u8_at, u16_at, u32_at};
use crate::inode::{Inode, OLD_SIZE, XATTR_MAGIC as MAGIC};
use crate::mount::Ext4;

/// Bytes of a block's header.
const HEADER: usize = 32;
/// Bytes of an entry without its name.
const ENTRY: usize = 16;
const CHECKSUM: usize = 0x10;
/// Blocks that a change of an attribute may change.
const CREDITS: usize = 24;
/// Files that share a block at most.
const MAX_REFERENCES: u32 = 1024;
/// Longest name behind its prefix.
const NAME_MAX: usize = 255;

/// Prefixes of names, by their numbers.
const PREFIXES: [(u8, &[u8]); 6] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (1, b"user."),
    (4, b"trusted."),
    (6, b"security."),
    (7, b"system."),
];

/// Condition under which an attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Any.
    Any,
    /// The attribute is not there (`XATTR_CREATE`).
    Create,
    /// The attribute is there (`XATTR_REPLACE`).
    Replace,
}

/// An attribute in memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Attribute {
    prefix: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Attribute {
    /// Bytes that it takes of a block or an inode.
    const fn size(&self) -> usize {
        (ENTRY + self.name.len()).next_multiple_of(4) + self.value.len().next_multiple_of(4)
    }

    /// The order in a block.
    fn key(&self) -> (u8, usize, &[u8]) {
        (self.prefix, self.name.len(), &self.name)
    }

    fn is(&self, prefix: u8, name: &[u8]) -> bool {
        self.prefix == prefix && self.name == name
    }
}

fn split_name(name: &[u8]) -> Result<(u8, &[u8])> {
    let found = PREFIXES.iter().find_map(|&(number, prefix)| {
        let rest = name.strip_prefix(prefix)?;
        (prefix.ends_with(b".") != rest.is_empty()).then_some((number, rest))
    });
    let (number, rest) = found.ok_or(Errno::EOPNOTSUPP)?;
    if rest.len() > NAME_MAX {
        Err(Errno::ERANGE)
    } else {
        Ok((number, rest))
    }
}

/// Reads attributes: entries begin at `first`, offsets of values count from `base`.
fn parse(bytes: &[u8], first: usize, base: usize, into: &mut Vec<Attribute>) -> Result<()> {
    let mut at = first;
    while at + 4 <= bytes.len() && u32_at(bytes, at)? != 0 {
        let name_len = usize::from(u8_at(bytes, at)?);
        let value_len = u32_at(bytes, at + 8)? as usize;
        let value_at = base + usize::from(u16_at(bytes, at + 2)?);
        if u32_at(bytes, at + 4)? != 0 {
            // A value in an inode of its own needs the feature ea_inode.
            return Err(Errno::EUCLEAN);
        }
        let value = if value_len == 0 {
            &[]
        } else {
            part(bytes, value_at, value_len)?
        };
        let attribute = Attribute {
            prefix: u8_at(bytes, at + 1)?,
            name: fallible::copy_of(part(bytes, at + ENTRY, name_len)?)?,
            value: fallible::copy_of(value)?,
        };
        fallible::push(into, attribute)?;
        at += (ENTRY + name_len).next_multiple_of(4);
    }
    Ok(())
}

/// Stores attributes as [`parse`] reads them.
fn encode(
    bytes: &mut [u8],
    first: usize,
    base: usize,
    attributes: &[Attribute],
    has_hashes: bool,
) -> Result<()> {
    let (mut at, mut end) = (first, bytes.len());
    for attribute in attributes {
        let name = &attribute.name;
        part_mut(bytes, at, 2)?.copy_from_slice(&[name.len() as u8, attribute.prefix]);
        let value_at = if attribute.value.is_empty() {
            0
        } else {
            let len = attribute.value.len();
            end = end
                .checked_sub(len.next_multiple_of(4))
                .ok_or(Errno::ENOSPC)?;
            part_mut(bytes, end, len)?.copy_from_slice(&attribute.value);
            end - base
        };
        put_u16(bytes, at + 2, value_at as u16)?;
        put_u32(bytes, at + 4, 0)?;
        put_u32(bytes, at + 8, attribute.value.len() as u32)?;
        let hash = if has_hashes { entry_hash(attribute) } else { 0 };
        put_u32(bytes, at + 12, hash)?;
        part_mut(bytes, at + ENTRY, name.len())?.copy_from_slice(name);
        at += (ENTRY + name.len()).next_multiple_of(4);
    }
    Ok(())
}

fn entry_hash(attribute: &Attribute) -> u32 {
    let name = attribute.name.iter();
    let hash = name.fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
    attribute.value.chunks(4).fold(hash, |hash, bytes| {
        let mut word = [0; 4];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

fn block_hash(attributes: &[Attribute]) -> u32 {
    let mut hash = 0_u32;
    for attribute in attributes {
        let own = entry_hash(attribute);
        if own == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ own;
    }
    hash
}

impl Ext4 {
    fn xattr_checksum(&self, block: u64, bytes: &[u8]) -> Result<u32> {
        let sum = crc32c(self.sb.checksum_seed, &block.to_le_bytes());
        let sum = crc32c(crc32c(sum, part(bytes, 0, CHECKSUM)?), &[0; 4]);
        Ok(crc32c(
            sum,
            bytes.get(CHECKSUM + 4..).ok_or(Errno::EUCLEAN)?,
        ))
    }

    /// The block with a file's attributes, checked.
    fn xattr_block(&mut self, block: u64) -> Result<crate::Block> {
        self.check_range(block, 1)?;
        let (bytes, is_verified) = self.store.read_verified(block)?;
        if u32_at(&bytes, 0)? != MAGIC || u32_at(&bytes, 8)? != 1 {
            return Err(Errno::EUCLEAN);
        }
        if self.sb.has_checksums() && !is_verified {
            if self.xattr_checksum(block, &bytes)? != u32_at(&bytes, CHECKSUM)? {
                return Err(Errno::EUCLEAN);
            }
            self.store.set_verified(block, 0);
        }
        Ok(bytes)
    }

    /// Offset at which attributes begin in an inode.
    fn xattr_start(&self, inode: &Inode) -> usize {
        OLD_SIZE + usize::from(inode.extra)
    }

    fn has_xattr_room(&self, inode: &Inode) -> bool {
        self.xattr_start(inode) + 8 <= self.sb.inode_size as usize
    }

    /// All attributes of a file: those in the inode, those in the block.
    fn attributes(&mut self, inode: &Inode) -> Result<(Vec<Attribute>, Vec<Attribute>)> {
        let (mut own, mut other) = (Vec::new(), Vec::new());
        if self.has_xattr_room(inode) {
            let start = self.xattr_start(inode);
            self.look_at_inode(inode.ino, |raw, _| {
                if u32_at(raw, start)? == MAGIC {
                    parse(raw, start + 4, start + 4, &mut own)?;
                }
                Ok(())
            })?;
        }
        if inode.xattr_block != 0 {
            let bytes = self.xattr_block(inode.xattr_block)?;
            parse(&bytes, HEADER, 0, &mut other)?;
        }
        Ok((own, other))
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// `ENODATA`; `EOPNOTSUPP` for a name with an unknown prefix; `EUCLEAN`, `EIO`.
    pub fn xattr(&mut self, ino: u32, name: &[u8]) -> Result<Vec<u8>> {
        let (prefix, name) = split_name(name)?;
        let inode = self.inode(ino)?;
        if !inode.has_attributes {
            return Err(Errno::ENODATA);
        }
        let (own, other) = self.attributes(&inode)?;
        let found = own.into_iter().chain(other).find(|it| it.is(prefix, name));
        found.map(|attribute| attribute.value).ok_or(Errno::ENODATA)
    }

    /// Names of the attributes there are.
    ///
    /// # Errors
    /// `EUCLEAN`, `EIO`, `ENOMEM`.
    pub fn xattr_names(&mut self, ino: u32) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino)?;
        let (own, other) = self.attributes(&inode)?;
        let mut names = Vec::new();
        for attribute in own.into_iter().chain(other) {
            // Others are for kernels that know them.
            let known = PREFIXES
                .iter()
                .find(|(number, _)| *number == attribute.prefix);
            if let Some((_, prefix)) = known {
                let mut name = fallible::with_capacity(prefix.len() + attribute.name.len())?;
                name.extend_from_slice(prefix);
                name.extend_from_slice(&attribute.name);
                fallible::push(&mut names, name)?;
            }
        }
        Ok(names)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` as the mode says; `ENOSPC` if the attributes of the file do not fit into
    /// its inode and one block; `ERANGE`, `EOPNOTSUPP` for a name; `EROFS`.
    pub fn set_xattr(&mut self, ino: u32, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        let (prefix, name) = split_name(name)?;
        if value.len() > self.store.block_size {
            return Err(Errno::ENOSPC);
        }
        self.change_xattrs(ino, |own, other| {
            let is_there = own.iter().chain(&*other).any(|it| it.is(prefix, name));
            match (mode, is_there) {
                (SetMode::Create, true) => return Err(Errno::EEXIST),
                (SetMode::Replace, false) => return Err(Errno::ENODATA),
                _ => {}
            }
            own.retain(|it| !it.is(prefix, name));
            other.retain(|it| !it.is(prefix, name));
            let attribute = Attribute {
                prefix,
                name: fallible::copy_of(name)?,
                value: fallible::copy_of(value)?,
            };
            fallible::push(own, attribute)
        })
    }

    /// Takes an attribute away.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`, `EROFS`.
    pub fn remove_xattr(&mut self, ino: u32, name: &[u8]) -> Result<()> {
        let (prefix, name) = split_name(name)?;
        self.change_xattrs(ino, |own, other| {
            let before = own.len() + other.len();
            own.retain(|it| !it.is(prefix, name));
            other.retain(|it| !it.is(prefix, name));
            if own.len() + other.len() == before {
                Err(Errno::ENODATA)
            } else {
                Ok(())
            }
        })
    }

    fn change_xattrs(
        &mut self,
        ino: u32,
        mut change: impl FnMut(&mut Vec<Attribute>, &mut Vec<Attribute>) -> Result<()>,
    ) -> Result<()> {
        self.transact(CREDITS, |fs| {
            let mut inode = fs.inode(ino)?;
            let (mut own, mut other) = fs.attributes(&inode)?;
            let before = other.clone();
            change(&mut own, &mut other)?;
            let has_room = fs.has_xattr_room(&inode);
            let room = fs.sb.inode_size as usize - fs.xattr_start(&inode);
            // Four bytes for the magic number, and four zeros behind the last entry.
            let room = if has_room { room - 8 } else { 0 };
            while own.iter().map(Attribute::size).sum::<usize>() > room {
                // The largest goes to the block.
                let sizes = own.iter().enumerate();
                let largest = sizes
                    .max_by_key(|(_, it)| it.size())
                    .map(|(index, _)| index);
                let moved = own.swap_remove(largest.ok_or(Errno::EUCLEAN)?);
                fallible::push(&mut other, moved)?;
            }
            other.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
            if has_room {
                fs.put_own(&inode, &own)?;
            }
            if other != before {
                fs.put_xattr_block(&mut inode, &other)?;
            }
            inode.changed = fs.now();
            fs.put_inode(&inode)
        })
    }

    /// Stores attributes in the inode.
    fn put_own(&mut self, inode: &Inode, own: &[Attribute]) -> Result<()> {
        let start = self.xattr_start(inode);
        self.edit_inode(inode.ino, |raw, _| {
            raw.get_mut(start..).ok_or(Errno::EUCLEAN)?.fill(0);
            if own.is_empty() {
                return Ok(());
            }
            put_u32(raw, start, MAGIC)?;
            encode(raw, start + 4, start + 4, own, false)
        })
    }

    /// Stores attributes in a block of the file's own, or gives the block up if there are none.
    fn put_xattr_block(&mut self, inode: &mut Inode, all: &[Attribute]) -> Result<()> {
        let size: usize = all.iter().map(Attribute::size).sum();
        if HEADER + size + 4 > self.store.block_size {
            return Err(Errno::ENOSPC);
        }
        self.drop_xattr_block(inode)?;
        if all.is_empty() {
            return Ok(());
        }
        let goal = self.goal_of(inode)?;
        let block = self.allocate_one(goal)?;
        inode.xattr_block = block;
        inode.sectors += u64::from(self.sb.block_size / 512);
        self.store.fresh(block)?;
        self.store.edit(block, None, |bytes| {
            put_u32(bytes, 0, MAGIC)?;
            put_u32(bytes, 4, 1)?;
            put_u32(bytes, 8, 1)?;
            put_u32(bytes, 12, block_hash(all))?;
            encode(bytes, HEADER, 0, all, true)
        })?;
        self.seal_xattr_block(block)
    }

    fn seal_xattr_block(&mut self, block: u64) -> Result<()> {
        if !self.sb.has_checksums() {
            return Ok(());
        }
        let bytes = self.store.read(block)?;
        let sum = self.xattr_checksum(block, &bytes)?;
        self.store
            .edit(block, None, |bytes| put_u32(bytes, CHECKSUM, sum))
    }

    /// Takes the block with attributes from a file: other files may have it, too.
    pub(crate) fn drop_xattr_block(&mut self, inode: &mut Inode) -> Result<()> {
        let block = core::mem::take(&mut inode.xattr_block);
        if block == 0 {
            return Ok(());
        }
        let bytes = self.xattr_block(block)?;
        let references = u32_at(&bytes, 4)?;
        if references == 0 || references > MAX_REFERENCES {
            return Err(Errno::EUCLEAN);
        }
        let sectors = u64::from(self.sb.block_size / 512);
        inode.sectors = inode.sectors.checked_sub(sectors).ok_or(Errno::EUCLEAN)?;
        if references == 1 {
            self.store.forget(block)?;
            return self.free_blocks(block, 1);
        }
        self.store
            .edit(block, None, |bytes| put_u32(bytes, 4, references - 1))?;
        self.seal_xattr_block(block)
    }
}
