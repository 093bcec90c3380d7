//! Listing directories, in pieces, while they change.

use alloc::vec::Vec;

use abi::errno::Errno;

use crate::directory::{Kind, entries};
use crate::hash::{Hasher, NameHash};
use crate::inode::{FileType, Inode};
use crate::mount::Ext4;
use crate::superblock::Compat;
use crate::{Block, Result};

/// An entry of a directory's listing.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Number of the file.
    pub ino: u32,
    /// Kind of the file, if the directory says it.
    pub kind: Option<FileType>,
    /// Cursor from which the listing goes on behind this entry.
    pub next: u64,
}

/// Cursor of a name in a directory that is listed by hashes.
fn cursor_of(hash: NameHash) -> u64 {
    u64::from(hash.major >> 1) << 32 | u64::from(hash.minor)
}

fn type_of(number: u8) -> Option<FileType> {
    Some(match number {
        1 => FileType::Regular,
        2 => FileType::Directory,
        3 => FileType::Char,
        4 => FileType::Block,
        5 => FileType::Fifo,
        6 => FileType::Socket,
        7 => FileType::Symlink,
        _ => return None,
    })
}

impl Ext4 {
    /// Lists a directory from a cursor on (0 is the beginning), without `.` and `..`, until `emit`
    /// says no.
    ///
    /// Where directories may be indexed they are listed by the hashes of the names. A name that is
    /// there throughout is told once, whatever else is added and removed meanwhile.
    ///
    /// # Errors
    /// `ENOTDIR`, `EUCLEAN`, `EIO`.
    pub fn read_dir(
        &mut self,
        ino: u32,
        cursor: u64,
        emit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.inode(ino)?;
        if dir.kind()? != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if self.is_indexed(&dir) {
            return self.list_index(&dir, cursor, emit);
        }
        let blocks = self.directory_blocks(&dir)?;
        if blocks == 1
            && self.sb.compat.contains(Compat::DIR_INDEX)
            && let Some(hasher) = Hasher::new(self.sb.hash_version, &self.sb)
        {
            // It may become an indexed one before the listing goes on.
            let (_, block) = self.directory_block(&dir, 0, Kind::Leaf)?;
            return self
                .emit_sorted(&[block], &hasher, cursor, emit)
                .map(|_| ());
        }
        self.list_blocks(&dir, blocks, cursor, emit)
    }

    fn list_blocks(
        &mut self,
        dir: &Inode,
        blocks: u32,
        cursor: u64,
        emit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let (size, end) = (u64::from(self.sb.block_size), self.entries_end());
        let first = u32::try_from(cursor / size).unwrap_or(u32::MAX);
        for logical in first..blocks {
            let (_, bytes) = self.directory_block(dir, logical, Kind::Leaf)?;
            let start = u64::from(logical) * size;
            for found in entries(&bytes, end) {
                let found = found?;
                let is_own = found.name == b"." || found.name == b"..";
                if found.ino == 0 || is_own || start + (found.at as u64) < cursor {
                    continue;
                }
                let entry = Entry {
                    name: found.name,
                    ino: found.ino,
                    kind: type_of(found.kind),
                    next: start + found.at as u64 + 1,
                };
                if !emit(entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn list_index(
        &mut self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let major = ((cursor >> 32) as u32) << 1;
        let mut path = self.index_path(dir, |_| major)?;
        // A tree has no more leaves than the directory has blocks.
        let mut left = self.directory_blocks(dir)?;
        let mut leaves: Vec<Block> = Vec::new();
        loop {
            left = left.checked_sub(1).ok_or(Errno::EUCLEAN)?;
            let (_, block) = self.directory_block(dir, path.leaf()?, Kind::Leaf)?;
            fallible::push(&mut leaves, block)?;
            let next = self.next_leaf(dir, &mut path)?;
            // Names with the same hash may be in both: they are sorted together.
            if next.is_some_and(|hash| hash & 1 == 1) {
                continue;
            }
            let goes_on = self.emit_sorted(&leaves, &path.hasher, cursor, emit)?;
            leaves.clear();
            if !goes_on || next.is_none() {
                return Ok(());
            }
        }
    }

    /// Tells the names of some blocks, by hash. Whether the listing goes on.
    fn emit_sorted(
        &self,
        blocks: &[Block],
        hasher: &Hasher,
        cursor: u64,
        emit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<bool> {
        let end = self.entries_end();
        let mut names = Vec::new();
        for block in blocks {
            for found in entries(block, end) {
                let found = found?;
                if found.ino != 0 && found.name != b"." && found.name != b".." {
                    let at = cursor_of(hasher.hash(found.name));
                    if at >= cursor {
                        fallible::push(&mut names, (at, found))?;
                    }
                }
            }
        }
        names.sort_unstable_by(|(a, first), (b, second)| (a, first.name).cmp(&(b, second.name)));
        for (at, found) in names {
            let entry = Entry {
                name: found.name,
                ino: found.ino,
                kind: type_of(found.kind),
                next: at + 1,
            };
            if !emit(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a directory has no names but `.` and `..`.
    pub(crate) fn is_empty_directory(&mut self, ino: u32) -> Result<bool> {
        let mut is_empty = true;
        self.read_dir(ino, 0, &mut |_| {
            is_empty = false;
            false
        })?;
        Ok(is_empty)
    }
}
