//! Blocks of metadata in memory, handles, and the running transaction (`docs/ext4.md`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;

use crate::device::Device;
use crate::gather::Gather;
use crate::journal::Journal;
use crate::time::Timestamp;
use crate::{Block, Result};

/// A block in memory.
#[derive(Clone)]
struct Buffer {
    data: Block,
    /// Changed by the running transaction.
    is_dirty: bool,
    /// Committed, and not yet written to its place.
    is_unwritten: bool,
    /// Used since the last look for blocks to give up.
    is_used: bool,
    /// Structures in it whose checksum was found to be right, a bit each.
    verified: u64,
    /// Contents as of the last commit, of bitmaps that were changed since.
    committed: Option<Block>,
}

/// State of a block that a handle puts back if it fails.
struct Saved {
    buffer: Option<Buffer>,
    was_dirty: bool,
    was_revoked: bool,
}

/// An operation in progress.
struct Handle {
    saved: BTreeMap<u64, Saved>,
    counts: Counts,
    /// Blocks that it may still add to the transaction.
    credits: usize,
    has_freed: bool,
    /// A change failed in the middle: it must not end well.
    is_broken: bool,
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
    buffers: BTreeMap<u64, Buffer>,
    /// The running transaction.
    dirty: BTreeSet<u64>,
    revoked: BTreeSet<u64>,
    has_freed: bool,
    handle: Option<Handle>,
    /// Blocks with a copy in the log since the last checkpoint.
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
            buffers: BTreeMap::new(),
            dirty: BTreeSet::new(),
            revoked: BTreeSet::new(),
            has_freed: false,
            handle: None,
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
        if let Some(buffer) = self.buffers.get_mut(&block) {
            buffer.is_used = true;
            return Ok(buffer.data.clone());
        }
        let mut data = fallible::zeroed(self.block_size)?;
        self.device.read(self.offset(block), &mut data)?;
        let data = Arc::new(data);
        self.insert(block, data.clone());
        Ok(data)
    }

    fn insert(&mut self, block: u64, data: Block) {
        if self.buffers.len() >= self.limit {
            self.give_up_unused();
        }
        let buffer = Buffer {
            data,
            is_dirty: false,
            is_unwritten: false,
            is_used: true,
            verified: 0,
            committed: None,
        };
        self.buffers.insert(block, buffer);
    }

    /// Gives up clean blocks that were not used since the last time, and, if these are few, others.
    fn give_up_unused(&mut self) {
        let before = self.buffers.len();
        for keep_used in [true, false] {
            let handle = &self.handle;
            self.buffers.retain(|block, buffer| {
                let in_handle = handle
                    .as_ref()
                    .is_some_and(|it| it.saved.contains_key(block));
                let needed = buffer.is_dirty || buffer.is_unwritten || in_handle;
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
            self.buffers.retain(|_, buffer| {
                let is_needed = buffer.is_dirty || buffer.is_unwritten;
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

    /// Whether the checksum of a structure in a block was found to be right since it was read.
    pub fn is_verified(&self, block: u64, slot: u32) -> bool {
        let bit = 1_u64.checked_shl(slot).unwrap_or(0);
        self.buffers
            .get(&block)
            .is_some_and(|buffer| buffer.verified & bit != 0)
    }

    /// Notes that it is.
    pub fn set_verified(&mut self, block: u64, slot: u32) {
        let bit = 1_u64.checked_shl(slot).unwrap_or(0);
        if let Some(buffer) = self.buffers.get_mut(&block) {
            buffer.verified |= bit;
        }
    }

    /// Contents of a bitmap as of the last commit, if it was changed since.
    pub fn committed(&self, block: u64) -> Option<Block> {
        self.buffers
            .get(&block)
            .and_then(|buffer| buffer.committed.clone())
    }

    /// Keeps what a block is now, for the end of a handle that fails.
    fn save(&mut self, block: u64) -> Result<()> {
        let was_dirty = self.dirty.contains(&block);
        let was_revoked = self.revoked.contains(&block);
        let handle = self.handle.as_mut().ok_or(Errno::EROFS)?;
        if handle.saved.contains_key(&block) {
            return Ok(());
        }
        if !was_dirty {
            debug_assert!(handle.credits > 0, "an operation has too few credits");
            handle.credits = handle.credits.checked_sub(1).ok_or(Errno::EIO)?;
        }
        let saved = Saved {
            buffer: self.buffers.get(&block).cloned(),
            was_dirty,
            was_revoked,
        };
        handle.saved.insert(block, saved);
        Ok(())
    }

    /// Changes a block, as a part of the handle.
    pub fn edit<R>(
        &mut self,
        block: u64,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        self.read(block)?;
        self.save(block)?;
        let changed = self.change(block, change);
        if changed.is_err()
            && let Some(handle) = &mut self.handle
        {
            handle.is_broken = true;
        }
        changed
    }

    fn change<R>(&mut self, block: u64, change: impl FnOnce(&mut [u8]) -> Result<R>) -> Result<R> {
        let buffer = self.buffers.get_mut(&block).ok_or(Errno::EIO)?;
        if Arc::get_mut(&mut buffer.data).is_none() {
            buffer.data = Arc::new(fallible::copy_of(&buffer.data)?);
        }
        let bytes = Arc::get_mut(&mut buffer.data).ok_or(Errno::EIO)?;
        let done = change(bytes)?;
        buffer.is_dirty = true;
        self.dirty.insert(block);
        Ok(done)
    }

    /// Changes a bitmap: what it was at the last commit is kept beside.
    pub fn edit_bitmap<R>(
        &mut self,
        block: u64,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        self.read(block)?;
        self.save(block)?;
        if let Some(buffer) = self.buffers.get_mut(&block)
            && buffer.committed.is_none()
        {
            buffer.committed = Some(buffer.data.clone());
        }
        self.edit(block, change)
    }

    /// A block of zeros as a part of the handle, whatever is on the device.
    pub fn fresh(&mut self, block: u64) -> Result<()> {
        self.save(block)?;
        let zeros = Arc::new(fallible::zeroed(self.block_size)?);
        self.insert(block, zeros);
        self.revoked.remove(&block);
        self.change(block, |_| Ok(()))?;
        self.set_verified(block, 0);
        Ok(())
    }

    /// A block of metadata is freed: it is not written any more, and older copies in the log do not
    /// count.
    pub fn forget(&mut self, block: u64) -> Result<()> {
        self.save(block)?;
        self.buffers.remove(&block);
        self.dirty.remove(&block);
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

    /// Begins a handle. There is room for it.
    pub fn begin(&mut self, credits: usize) -> Result<()> {
        if self.is_read_only || self.handle.is_some() {
            return Err(Errno::EROFS);
        }
        self.handle = Some(Handle {
            saved: BTreeMap::new(),
            counts: self.counts,
            credits,
            has_freed: false,
            is_broken: false,
        });
        Ok(())
    }

    /// Ends the handle: what it changed belongs to the running transaction.
    pub fn end(&mut self) -> Result<()> {
        match &self.handle {
            Some(handle) if !handle.is_broken => {
                self.has_freed |= handle.has_freed;
                self.handle = None;
                Ok(())
            }
            _ => Err(Errno::EIO),
        }
    }

    /// Ends the handle as if it had never been.
    pub fn roll_back(&mut self) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        self.counts = handle.counts;
        for (block, saved) in handle.saved {
            match saved.buffer {
                Some(buffer) => self.buffers.insert(block, buffer),
                None => self.buffers.remove(&block),
            };
            put(&mut self.dirty, block, saved.was_dirty);
            put(&mut self.revoked, block, saved.was_revoked);
        }
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
            let buffer = self.buffers.get(&block).ok_or(Errno::EIO)?;
            blocks.push((block, buffer.data.clone()));
        }
        journal.commit(&*self.device, blocks, &self.revoked, now)?;
        self.mark_committed();
        Ok(())
    }

    fn mark_committed(&mut self) {
        for &block in &self.dirty {
            if let Some(buffer) = self.buffers.get_mut(&block) {
                (buffer.is_dirty, buffer.is_unwritten) = (false, true);
                buffer.committed = None;
            }
            if self.journal.is_some() {
                self.logged.insert(block);
            }
        }
        self.dirty.clear();
        self.revoked.clear();
        self.has_freed = false;
    }

    /// Writes all that was committed to its place, and flushes.
    fn write_back(&mut self) -> Result<()> {
        let mut gather = Gather::new(&*self.device);
        for (&block, buffer) in &self.buffers {
            if buffer.is_unwritten {
                gather.push(block * self.block_size as u64, &buffer.data)?;
            }
        }
        gather.finish()?;
        self.device.flush()?;
        for buffer in self.buffers.values_mut() {
            buffer.is_unwritten = false;
        }
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
        if let Some(buffer) = self.buffers.get_mut(&block) {
            buffer.data = Arc::new(bytes);
        }
        Ok(())
    }
}

fn put(set: &mut BTreeSet<u64>, block: u64, is_in: bool) {
    if is_in {
        set.insert(block);
    } else {
        set.remove(&block);
    }
}
