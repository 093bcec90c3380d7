//! Blocks of metadata in memory, handles, and the running transaction (`docs/ext4.md`).

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;

use crate::buffers::Buffers;
use crate::bytes::part_mut;
use crate::device::Device;
use crate::directory::Kind;
use crate::gather::Gather;
use crate::group::Bitmap;
use crate::handle::{Handle, UndoList};
use crate::journal::Journal;
use crate::time::Timestamp;
use crate::{Block, Result};

/// Structures of a block whose checksums are made before it is written.
#[derive(Clone, Copy, Debug)]
pub enum Seal {
    /// Nothing.
    None,
    /// A block of a directory.
    Directory {
        kind: Kind,
        ino: u32,
        generation: u32,
    },
    /// A group's bitmap, whose checksum is in the descriptor.
    Bitmap { group: u32, which: Bitmap },
    /// Inodes; this is the first one's number.
    Inodes(u32),
}

/// State of a block in memory, beside its contents.
#[derive(Clone, Copy)]
pub struct State {
    /// Changed by the running transaction.
    pub is_dirty: bool,
    /// Structures in it whose checksum was found to be right, a bit each.
    verified: u64,
    /// Structures in it whose checksum is not up to date, a bit each.
    unsealed: u64,
}

/// A block in memory.
#[derive(Clone)]
pub struct Buffer {
    pub data: Block,
    pub state: State,
    /// Committed, and not yet written to its place.
    is_unwritten: bool,
    /// Used since the last look for blocks to give up.
    is_used: bool,
    /// Of its structures that are not sealed.
    seal: Seal,
    /// Number of the handle that can put it back as a whole.
    kept_by: u64,
    /// Contents as of the last commit, of bitmaps that were changed since.
    pub committed: Option<Block>,
}

impl Buffer {
    /// A block that is as on the device.
    pub const fn new(data: Block) -> Self {
        Self {
            data,
            state: State {
                is_dirty: false,
                verified: 0,
                unsealed: 0,
            },
            is_unwritten: false,
            is_used: true,
            seal: Seal::None,
            kept_by: 0,
            committed: None,
        }
    }

    /// Bytes of the block, to change them. Who looks at it meanwhile keeps what it was.
    fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        if Arc::strong_count(&self.data) > 1 {
            self.data = Arc::new(fallible::copy_of(&self.data)?);
        }
        let bytes = Arc::get_mut(&mut self.data).ok_or(Errno::EIO)?;
        Ok(bytes.as_mut_slice())
    }
}

/// Free blocks and inodes, the sums over all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub free_blocks: u64,
    pub free_inodes: u32,
}

/// All blocks in memory, with the journal behind them.
pub struct Store {
    pub device: Arc<dyn Device>,
    pub block_size: usize,
    /// Clean blocks beyond so many are given up.
    limit: usize,
    pub buffers: Buffers,
    /// The running transaction: the blocks whose state says so.
    pub dirty: BTreeSet<u64>,
    pub revoked: BTreeSet<u64>,
    pub has_freed: bool,
    pub handle: Option<Handle>,
    /// Handles that there have been.
    pub handles: u64,
    pub undo: UndoList,
    /// Blocks that were committed since the last checkpoint: in a journal they have a copy.
    logged: BTreeSet<u64>,
    pub journal: Option<Journal>,
    pub counts: Counts,
    /// Nothing is changed: mounted so, or after an error of the journal.
    pub is_read_only: bool,
    /// Blocks that a transaction has at most.
    pub max_transaction: usize,
}

impl Store {
    pub fn new(device: Arc<dyn Device>, block_size: usize, limit: usize) -> Self {
        Self {
            device,
            block_size,
            limit,
            buffers: Buffers::default(),
            dirty: BTreeSet::new(),
            revoked: BTreeSet::new(),
            has_freed: false,
            handle: None,
            handles: 0,
            undo: UndoList::default(),
            logged: BTreeSet::new(),
            journal: None,
            counts: Counts::default(),
            is_read_only: true,
            max_transaction: 2048,
        }
    }

    const fn offset(&self, block: u64) -> u64 {
        block * self.block_size as u64
    }

    /// The contents of a block.
    pub fn read(&mut self, block: u64) -> Result<Block> {
        self.read_verified(block).map(|(bytes, _)| bytes)
    }

    /// The contents of a block that is one structure, with whether its checksum was found to be
    /// right since it was read.
    pub fn read_verified(&mut self, block: u64) -> Result<(Block, bool)> {
        let buffer = self.buffer(block)?;
        Ok((buffer.data.clone(), buffer.state.verified & 1 != 0))
    }

    /// A block, which is read if it is not in memory.
    #[inline]
    fn buffer(&mut self, block: u64) -> Result<&mut Buffer> {
        if self.buffers.get(block).is_none() {
            self.load(block)?;
        }
        let buffer = self.buffers.get_mut(block).ok_or(Errno::EIO)?;
        buffer.is_used = true;
        Ok(buffer)
    }

    /// Has `look` at the contents of a block.
    #[inline]
    pub fn look<R>(&mut self, block: u64, look: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
        look(&self.buffer(block)?.data)
    }

    /// Has `look` at the contents of a block, with whether the checksum of a structure in it was
    /// found to be right before; if it succeeds, it is.
    #[inline]
    pub fn look_verified<R>(
        &mut self,
        block: u64,
        slot: u32,
        look: impl FnOnce(&[u8], bool) -> Result<R>,
    ) -> Result<R> {
        let buffer = self.buffer(block)?;
        let bit = 1_u64.checked_shl(slot).unwrap_or(0);
        let done = look(&buffer.data, buffer.state.verified & bit != 0)?;
        buffer.state.verified |= bit;
        Ok(done)
    }

    /// Reads a block that is not in memory.
    #[cold]
    fn load(&mut self, block: u64) -> Result<()> {
        let mut data = fallible::zeroed(self.block_size)?;
        self.device.read(self.offset(block), &mut data)?;
        self.insert(block, Arc::new(data));
        Ok(())
    }

    fn insert(&mut self, block: u64, data: Block) {
        if self.buffers.len() >= self.limit {
            self.give_up_unused();
        }
        self.buffers.insert(block, Buffer::new(data));
    }

    /// Gives up clean blocks that were not used since the last time, and, if these are few, others.
    fn give_up_unused(&mut self) {
        let before = self.buffers.len();
        for keep_used in [true, false] {
            self.buffers.retain(|buffer| {
                // What the handle has changed is dirty, too.
                let needed = buffer.state.is_dirty || buffer.is_unwritten;
                let keep = needed || keep_used && buffer.is_used;
                buffer.is_used = false;
                keep
            });
            if self.buffers.len() <= before - before / 8 {
                return;
            }
        }
    }

    /// Gives up to so many clean blocks up, those not used lately first. How many.
    pub fn shrink(&mut self, count: usize) -> usize {
        if self.handle.is_some() {
            return 0;
        }
        let mut freed = 0;
        for keep_used in [true, false] {
            self.buffers.retain(|buffer| {
                let is_needed = buffer.state.is_dirty || buffer.is_unwritten;
                let keep = freed == count || is_needed || keep_used && buffer.is_used;
                buffer.is_used = false;
                freed += usize::from(!keep);
                keep
            });
        }
        freed
    }

    /// Bytes of blocks that are as on the device, or somewhat more.
    pub fn shrinkable(&self) -> usize {
        let clean = self.buffers.len().saturating_sub(self.dirty.len());
        clean.saturating_sub(self.logged.len()) * self.block_size
    }

    /// Whether so many blocks were committed and are not at their places that they are to be
    /// written there: they are all in memory.
    pub fn has_many_logged(&self) -> bool {
        self.logged.len() > 2 * self.max_transaction
    }

    /// Notes that the checksum of a structure in a block is right.
    pub fn set_verified(&mut self, block: u64, slot: u32) {
        let bit = 1_u64.checked_shl(slot).unwrap_or(0);
        if let Some(buffer) = self.buffers.get_mut(block) {
            buffer.state.verified |= bit;
        }
    }

    /// Contents of a bitmap as of the last commit, if it was changed since.
    pub fn committed(&self, block: u64) -> Option<Block> {
        self.buffers
            .get(block)
            .and_then(|buffer| buffer.committed.clone())
    }

    /// Changes a part of a block, as a part of the handle. If a structure with a checksum is in it,
    /// `unsealed` says which: its checksum is made when it is committed.
    pub fn edit_part<R>(
        &mut self,
        block: u64,
        (at, len): (usize, usize),
        unsealed: Option<(Seal, u32)>,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        if self.buffers.get(block).is_none() {
            self.load(block)?;
        }
        let buffer = self.buffers.get_mut(block).ok_or(Errno::EIO)?;
        let handle = self.handle.as_mut().ok_or(Errno::EROFS)?;
        buffer.is_used = true;
        let (state, kept_by) = (buffer.state, buffer.kept_by);
        let part = part_mut(buffer.bytes_mut()?, at, len)?;
        if kept_by != handle.number {
            self.undo.keep_part(block, at, part, state)?;
        }
        let mut done = change(part);
        if let Some((seal, slot)) = unsealed {
            buffer.seal = seal;
            let bit = 1_u64.checked_shl(slot).unwrap_or(0);
            buffer.state.unsealed |= bit;
            buffer.state.verified |= bit;
        }
        if !state.is_dirty {
            buffer.state.is_dirty = true;
            self.dirty.insert(block);
            done = handle.take_credit().and(done);
        }
        handle.is_broken |= done.is_err();
        done
    }

    /// Changes a block that may be changed everywhere, as a part of the handle.
    pub fn edit<R>(
        &mut self,
        block: u64,
        unsealed: Option<Seal>,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        self.buffer(block)?;
        let handle = self.handle.as_ref().ok_or(Errno::EROFS)?;
        let buffer = self.buffers.get_mut(block).ok_or(Errno::EIO)?;
        if buffer.kept_by != handle.number {
            let was_revoked = self.revoked.contains(&block);
            self.undo
                .keep_whole(block, Some(buffer.clone()), was_revoked)?;
            buffer.kept_by = handle.number;
        }
        let unsealed = unsealed.map(|seal| (seal, 0));
        self.edit_part(block, (0, self.block_size), unsealed, change)
    }

    /// Changes a part of a bitmap: what it was at the last commit is kept beside.
    pub fn edit_bitmap<R>(
        &mut self,
        block: u64,
        part: (usize, usize),
        seal: Seal,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let buffer = self.buffer(block)?;
        if buffer.committed.is_none() {
            buffer.committed = Some(buffer.data.clone());
        }
        self.edit_part(block, part, Some((seal, 0)), change)
    }

    /// A block of zeros as a part of the handle, whatever is on the device.
    pub fn fresh(&mut self, block: u64) -> Result<()> {
        self.remove(block)?;
        let zeros = Arc::new(fallible::zeroed(self.block_size)?);
        self.insert(block, zeros);
        self.revoked.remove(&block);
        let handle = self.handle.as_ref().ok_or(Errno::EROFS)?;
        if let Some(buffer) = self.buffers.get_mut(block) {
            buffer.kept_by = handle.number;
        }
        self.edit_part(block, (0, 0), None, |_| Ok(()))?;
        self.set_verified(block, 0);
        Ok(())
    }

    /// Takes a block out of memory, and out of the transaction, as a part of the handle.
    fn remove(&mut self, block: u64) -> Result<()> {
        let was_revoked = self.revoked.contains(&block);
        if self.handle.is_none() {
            return Err(Errno::EROFS);
        }
        let buffer = self.buffers.get(block).cloned();
        self.undo.keep_whole(block, buffer, was_revoked)?;
        self.buffers.remove(block);
        self.dirty.remove(&block);
        Ok(())
    }

    /// A block of metadata is freed: it is not written any more, and older copies in the log do not
    /// count.
    pub fn forget(&mut self, block: u64) -> Result<()> {
        if !self.dirty.contains(&block) {
            let handle = self.handle.as_mut().ok_or(Errno::EROFS)?;
            handle.take_credit()?;
        }
        self.remove(block)?;
        if self.logged.contains(&block) {
            self.revoked.insert(block);
        }
        Ok(())
    }

    /// Notes that the handle freed something that a commit makes available.
    pub fn note_freed(&mut self) {
        if let Some(handle) = &mut self.handle {
            handle.has_freed = true;
        }
    }

    /// Whether a commit would make blocks available.
    pub const fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// Whether the running transaction has to be committed before it gets so many more blocks.
    pub fn is_full(&self, credits: usize) -> bool {
        let blocks = self.dirty.len() + credits;
        // The superblock is added by the commit.
        let (blocks, revoked) = (blocks + 1, self.revoked.len() + credits);
        match &self.journal {
            Some(journal) => {
                let limit = self.max_transaction.min(journal.capacity() / 2);
                blocks > limit && !self.dirty.is_empty()
                    || journal.blocks_for(blocks, revoked) > journal.room()
            }
            None => blocks > self.max_transaction && !self.dirty.is_empty(),
        }
    }

    /// The next block of the transaction, from a number on, with structures that are not sealed:
    /// its number, what they are, and which of them.
    pub fn next_unsealed(&self, from: u64) -> Option<(u64, Seal, u64)> {
        self.dirty.range(from..).find_map(|&block| {
            let buffer = self.buffers.get(block)?;
            let unsealed = buffer.state.unsealed;
            (unsealed != 0).then_some((block, buffer.seal, unsealed))
        })
    }

    /// Has `seal` bring checksums in a block of the transaction up to date. It is not taken back.
    pub fn seal(&mut self, block: u64, seal: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let buffer = self.buffers.get_mut(block).ok_or(Errno::EIO)?;
        seal(buffer.bytes_mut()?)?;
        buffer.state.unsealed = 0;
        Ok(())
    }

    /// Whether nothing was changed since the last commit.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.revoked.is_empty()
    }

    /// Commits the running transaction: when it returns, that is on the medium.
    ///
    /// After an error it is not known what is there, and nothing can be changed any more; but for
    /// `ENOMEM` before anything was written.
    pub fn commit(&mut self, now: Timestamp) -> Result<()> {
        if self.is_clean() {
            return self.device.flush();
        }
        // Nothing was written without memory for this list: it can be tried again.
        let mut blocks: Vec<(u64, Block)> = fallible::with_capacity(self.dirty.len())?;
        let done = self.try_commit(&mut blocks, now);
        if done.is_err() {
            self.is_read_only = true;
        }
        done
    }

    fn try_commit(&mut self, blocks: &mut Vec<(u64, Block)>, now: Timestamp) -> Result<()> {
        let Some(journal) = &mut self.journal else {
            self.mark_committed();
            return self.write_back();
        };
        for &block in &self.dirty {
            let buffer = self.buffers.get(block).ok_or(Errno::EIO)?;
            blocks.push((block, buffer.data.clone()));
        }
        journal.commit(&*self.device, blocks, &self.revoked, now)?;
        self.mark_committed();
        Ok(())
    }

    fn mark_committed(&mut self) {
        for &block in &self.dirty {
            if let Some(buffer) = self.buffers.get_mut(block) {
                debug_assert!(buffer.state.unsealed == 0, "block {block} is not sealed");
                (buffer.state.is_dirty, buffer.is_unwritten) = (false, true);
                buffer.committed = None;
            }
            self.logged.insert(block);
        }
        self.dirty.clear();
        self.revoked.clear();
        self.has_freed = false;
    }

    /// Writes all that was committed to its place, and flushes.
    fn write_back(&mut self) -> Result<()> {
        let mut gather = Gather::new(&*self.device);
        for &block in &self.logged {
            if let Some(buffer) = self.buffers.get(block).filter(|it| it.is_unwritten) {
                gather.push(block * self.block_size as u64, &buffer.data)?;
            }
        }
        gather.finish()?;
        self.device.flush()?;
        for &block in &self.logged {
            if let Some(buffer) = self.buffers.get_mut(block) {
                buffer.is_unwritten = false;
            }
        }
        self.logged.clear();
        Ok(())
    }

    /// Writes all that was committed to its place, and makes the log empty. Nothing is running.
    pub fn checkpoint(&mut self) -> Result<()> {
        if !self.is_clean() {
            return Err(Errno::EBUSY);
        }
        let done = self.write_back().and_then(|()| match &mut self.journal {
            Some(journal) => journal.move_tail(&*self.device),
            None => Ok(()),
        });
        if done.is_err() {
            self.is_read_only = true;
        }
        self.logged.clear();
        done
    }

    /// Changes a block on the device itself, outside of any transaction.
    pub fn write_now(
        &mut self,
        block: u64,
        change: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = fallible::copy_of(&self.read(block)?)?;
        change(&mut bytes)?;
        self.device.write(self.offset(block), &bytes)?;
        self.device.flush()?;
        if let Some(buffer) = self.buffers.get_mut(block) {
            buffer.data = Arc::new(bytes);
        }
        Ok(())
    }
}
