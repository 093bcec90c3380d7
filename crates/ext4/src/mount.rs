//! A mounted file system: beginning and end, handles, commits.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;

use crate::bytes::{part_mut, put_u16, put_u32, u16_at, u32_at};
use crate::device::Device;
use crate::inode::Inode;
use crate::journal::{Journal, Piece};
use crate::recovery::{Recovery, recover};
use crate::store::{Seal, Store};
use crate::superblock::{
    Compat, Incompat, MountError, OFFSET, SIZE, STATE_ERROR, STATE_VALID, Superblock, field, seal,
};
use crate::time::Timestamp;
use crate::zone::Zones;
use crate::{NAME_MAX, Result};

/// How a file system is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Nothing is changed; but a journal is replayed.
    pub read_only: bool,
    /// Blocks of metadata that are kept in memory without need.
    pub cache_blocks: usize,
    /// Blocks that a transaction has at most.
    pub transaction_blocks: usize,
    /// The time.
    pub clock: fn() -> Timestamp,
    /// A number that tells a new file from those that had its number before.
    pub generation: fn() -> u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            cache_blocks: 4096,
            transaction_blocks: 2048,
            clock: Timestamp::default,
            generation: || 0,
        }
    }
}

/// Figures of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks that files can have, all together.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Blocks that are free and not kept for the superuser.
    pub available_blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Inodes that are free.
    pub free_inodes: u32,
    /// Identity of the file system.
    pub uuid: [u8; 16],
    /// Longest name.
    pub name_max: usize,
}

/// A mounted file system.
///
/// Files are named by their inode numbers. Whoever has a file open tells [`Ext4::release`] when the
/// last opening of a file without a name is closed.
pub struct Ext4 {
    pub(crate) sb: Superblock,
    pub(crate) store: Store,
    pub(crate) zones: Zones,
    /// First block of each group's inodes, as it was checked when this was mounted.
    pub(crate) inode_tables: Vec<u64>,
    pub(crate) options: Options,
    pub(crate) last_orphan: u32,
    /// Blocks that allocations leave free.
    pub(crate) kept_blocks: u64,
    recovery: Option<Recovery>,
}

impl Ext4 {
    /// Mounts the file system on a device: replays its journal, and ends the life of files that had
    /// no name any more.
    ///
    /// # Errors
    /// What is wrong with it, or not supported, by name. Nothing has been changed then, but that
    /// the journal may have been replayed.
    pub fn mount(
        device: Arc<dyn Device>,
        options: Options,
    ) -> core::result::Result<Self, MountError> {
        if device.size() < OFFSET + SIZE as u64 {
            return Err(MountError::NotExt4);
        }
        let mut sb = Self::read_superblock(&*device)?;
        if !options.read_only {
            sb.check_writable()?;
            if device.is_read_only() {
                return Err(Errno::EROFS.into());
            }
        }
        let mut this = Self::open(device.clone(), sb, options)?;
        if this.sb.compat.contains(Compat::HAS_JOURNAL) {
            let mut journal = this.open_journal()?;
            if journal.start()? != 0 {
                if device.is_read_only() {
                    return Err(MountError::NeedsRecovery);
                }
                let done = recover(&*device, &mut journal, this.sb.blocks_count)?;
                journal.close(&*device)?;
                // All that was read before may be older than what was replayed.
                sb = Self::read_superblock(&*device)?;
                this = Self::open(device, sb, options)?;
                this.recovery = Some(done);
                journal = this.open_journal()?;
            }
            this.store.journal = Some(journal);
        } else if this.sb.incompat.contains(Incompat::RECOVER) {
            return Err(MountError::Damaged("journal: there is none to replay"));
        }
        if this.options.read_only {
            this.clear_recover_flag()?;
        } else {
            this.begin_writing()?;
        }
        Ok(this)
    }

    fn read_superblock(device: &dyn Device) -> core::result::Result<Superblock, MountError> {
        let mut raw = fallible::zeroed(SIZE)?;
        device.read(OFFSET, &mut raw)?;
        Superblock::parse(&raw, device.size())
    }

    /// Everything but the journal.
    fn open(
        device: Arc<dyn Device>,
        sb: Superblock,
        options: Options,
    ) -> core::result::Result<Self, MountError> {
        let mut store = Store::new(device, sb.block_size as usize, options.cache_blocks.max(64));
        store.max_transaction = options.transaction_blocks.max(256);
        let mut this = Self {
            last_orphan: sb.last_orphan,
            kept_blocks: 0,
            sb,
            store,
            zones: Zones::default(),
            inode_tables: Vec::new(),
            options,
            recovery: None,
        };
        this.zones = this.check_groups()?;
        Ok(this)
    }

    /// Opens the journal, whose blocks are no file's from then on.
    fn open_journal(&mut self) -> core::result::Result<Journal, MountError> {
        let ino = self.sb.journal_inode;
        if ino == 0 || ino >= self.sb.first_inode {
            return Err(MountError::Unsupported("an external journal".into()));
        }
        let inode = self.any_inode(ino)?;
        let blocks = inode.size / u64::from(self.sb.block_size);
        let blocks = u32::try_from(blocks).map_err(|_| MountError::Damaged("journal inode"))?;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut logical = 0;
        while logical < blocks {
            let run = self.map(&inode, logical)?;
            let (Some(block), false) = (run.block, run.is_unwritten) else {
                return Err(MountError::Damaged("journal inode"));
            };
            let len = run.len.min(blocks - logical);
            match pieces.last_mut() {
                Some(last) if last.block + u64::from(last.len) == block => last.len += len,
                _ => fallible::push(
                    &mut pieces,
                    Piece {
                        logical,
                        len,
                        block,
                    },
                )?,
            }
            logical += len;
        }
        for piece in &pieces {
            self.zones.add(piece.block, u64::from(piece.len))?;
        }
        self.zones.sort();
        let block_size = self.sb.block_size as usize;
        Journal::open(&*self.store.device, pieces, block_size)
    }

    /// Marks the file system as being changed: that there is a log to look at, first, and then
    /// where it begins. A log that begins somewhere, of a file system that says that it has none,
    /// is nothing that `e2fsck -p` would decide about.
    fn begin_writing(&mut self) -> core::result::Result<(), MountError> {
        let now = self.now();
        let has_journal = self.store.journal.is_some();
        self.write_superblock(|raw| {
            put_u32(raw, field::MOUNT_TIME, now.seconds as u32)?;
            let count = u16_at(raw, field::MOUNT_COUNT)?.saturating_add(1);
            put_u16(raw, field::MOUNT_COUNT, count)?;
            if has_journal {
                let flags = u32_at(raw, field::INCOMPAT)? | Incompat::RECOVER.bits();
                put_u32(raw, field::INCOMPAT, flags)
            } else {
                let state = u16_at(raw, field::STATE)? & !STATE_VALID;
                put_u16(raw, field::STATE, state)
            }
        })?;
        if let Some(journal) = &mut self.store.journal {
            journal.move_tail(&*self.store.device)?;
        }
        self.store.is_read_only = false;
        self.remove_orphans()?;
        Ok(())
    }

    fn write_superblock(&mut self, change: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let (block, at) = self.sb.place();
        self.store.write_now(block, |bytes| {
            let raw = part_mut(bytes, at, SIZE)?;
            change(raw)?;
            seal(raw)
        })
    }

    fn clear_recover_flag(&mut self) -> Result<()> {
        if self.store.device.is_read_only() || !self.sb.incompat.contains(Incompat::RECOVER) {
            return Ok(());
        }
        self.write_superblock(|raw| {
            let flags = u32_at(raw, field::INCOMPAT)? & !Incompat::RECOVER.bits();
            put_u32(raw, field::INCOMPAT, flags)
        })
    }

    /// The replay that mounting began with, if there was one.
    pub const fn recovery(&self) -> Option<Recovery> {
        self.recovery
    }

    /// Whether nothing can be changed: mounted so, or after an error.
    pub const fn is_read_only(&self) -> bool {
        self.store.is_read_only
    }

    /// Blocks that are kept for the superuser.
    pub const fn reserved_blocks(&self) -> u64 {
        self.sb.reserved_blocks
    }

    /// Has what is done from here on leave so many blocks free: it is `ENOSPC` if that would take
    /// one of them. None at first.
    pub const fn keep_blocks(&mut self, count: u64) {
        self.kept_blocks = count;
    }

    /// Bytes of a block.
    pub const fn block_size(&self) -> u32 {
        self.sb.block_size
    }

    /// Most bytes of a file.
    pub fn max_file_size(&self) -> u64 {
        self.sb.max_file_size()
    }

    /// Whether it has a journal.
    pub const fn has_journal(&self) -> bool {
        self.store.journal.is_some()
    }

    /// Whether nothing was changed since the last commit.
    pub fn is_committed(&self) -> bool {
        self.store.is_clean()
    }

    /// Gives up to so many blocks of metadata in memory up that are as on the device. How many.
    /// Allocates nothing.
    pub fn shrink(&mut self, count: usize) -> usize {
        self.store.shrink(count)
    }

    /// Bytes of metadata in memory that [`Ext4::shrink`] may give up, or somewhat more.
    pub fn shrinkable(&self) -> usize {
        self.store.shrinkable()
    }

    /// The time, as inodes get it.
    pub(crate) fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    /// Figures of the file system.
    pub fn statfs(&self) -> StatFs {
        let own = self
            .zones
            .within(0, self.sb.blocks_count)
            .map(|(from, end)| end - from);
        let free = self.store.counts.free_blocks;
        StatFs {
            block_size: self.sb.block_size,
            blocks: self.sb.blocks_count.saturating_sub(own.sum()),
            free_blocks: free,
            available_blocks: free.saturating_sub(self.sb.reserved_blocks),
            inodes: self.sb.inodes_count,
            free_inodes: self.store.counts.free_inodes,
            uuid: self.sb.uuid,
            name_max: NAME_MAX,
        }
    }

    /// Does an operation in a handle with so many credits: all of it, or nothing.
    ///
    /// If there is no room, and a commit makes some, it is done a second time after that.
    pub(crate) fn transact<R>(
        &mut self,
        credits: usize,
        mut operation: impl FnMut(&mut Self) -> Result<R>,
    ) -> Result<R> {
        if self.store.is_read_only {
            return Err(Errno::EROFS);
        }
        for is_last in [false, true] {
            self.make_room(credits)?;
            self.store.begin(credits)?;
            let last_orphan = self.last_orphan;
            let done = operation(self).and_then(|done| self.store.end().map(|()| done));
            let Err(error) = done else {
                return done;
            };
            self.store.roll_back();
            self.last_orphan = last_orphan;
            if error != Errno::ENOSPC || is_last || !self.store.has_freed() {
                return Err(error);
            }
            self.commit()?;
        }
        Err(Errno::ENOSPC)
    }

    fn make_room(&mut self, credits: usize) -> Result<()> {
        if !self.store.is_full(credits) {
            return Ok(());
        }
        self.commit()?;
        if self.store.is_full(credits) {
            self.store.checkpoint()?;
        }
        // The journal is smaller than a single operation.
        if self.store.is_full(credits) {
            Err(Errno::ENOSPC)
        } else {
            Ok(())
        }
    }

    /// Commits all operations so far: when it returns, they are on the medium.
    ///
    /// # Errors
    /// `EIO`: it is not known what is on the medium, and nothing can be changed any more.
    pub fn commit(&mut self) -> Result<()> {
        if self.store.is_read_only {
            return Err(Errno::EROFS);
        }
        if !self.store.is_clean() {
            // Room for it is kept by all handles.
            self.store.begin(1)?;
            let done = self.seal_changes().and_then(|()| self.store.end());
            if let Err(error) = done {
                self.store.roll_back();
                self.store.is_read_only = true;
                return Err(error);
            }
        }
        let now = self.now();
        self.store.commit(now)?;
        if self.store.has_many_logged() {
            self.store.checkpoint()?;
        }
        Ok(())
    }

    /// Brings all checksums of the transaction up to date. It adds the superblock at most.
    fn seal_changes(&mut self) -> Result<()> {
        self.put_counts()?;
        let mut from = 0;
        while let Some((block, seal, slots)) = self.store.next_unsealed(from) {
            match seal {
                Seal::None => return Err(Errno::EIO),
                Seal::Directory {
                    kind,
                    ino,
                    generation,
                } => self.seal_directory(block, kind, (ino, generation))?,
                Seal::Bitmap { group, which } => self.seal_bitmap(block, group, which)?,
                Seal::Inodes(first) => self.seal_inodes(block, first, slots)?,
            }
            from = block + 1;
        }
        Ok(())
    }

    /// Brings contents and metadata of a file to the medium (`fsync(2)`).
    ///
    /// # Errors
    /// As [`Ext4::commit`]; `EIO` after an earlier error, too: what was not committed by then never
    /// will be.
    pub fn sync(&mut self) -> Result<()> {
        if self.options.read_only {
            return self.store.device.flush();
        }
        if self.store.is_read_only {
            return Err(Errno::EIO);
        }
        self.commit()
    }

    /// Ends it: everything is at its place, and nothing has to be replayed.
    ///
    /// # Errors
    /// `EIO`; the journal is replayed then when it is mounted next.
    pub fn unmount(mut self) -> Result<()> {
        self.make_read_only()
    }

    /// Stops changes: everything is at its place, and nothing has to be replayed.
    ///
    /// # Errors
    /// `EIO`; the journal is replayed then when it is mounted next. `EROFS` after an earlier error.
    pub fn make_read_only(&mut self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.commit()?;
        self.store.checkpoint()?;
        if let Some(journal) = &mut self.store.journal {
            journal.close(&*self.store.device)?;
        }
        let had_errors = self.sb.state & STATE_ERROR != 0;
        let has_journal = self.store.journal.is_some();
        self.write_superblock(|raw| {
            let flags = u32_at(raw, field::INCOMPAT)? & !Incompat::RECOVER.bits();
            put_u32(raw, field::INCOMPAT, flags)?;
            let state = u16_at(raw, field::STATE)?;
            if !has_journal && !had_errors {
                put_u16(raw, field::STATE, state | STATE_VALID)?;
            }
            Ok(())
        })?;
        self.options.read_only = true;
        self.store.is_read_only = true;
        Ok(())
    }

    /// Allows changes, where it was mounted read-only or [`Ext4::make_read_only`] stopped them.
    /// Files that have no name are removed: nobody may have one open.
    ///
    /// # Errors
    /// A feature that permits reading only; `EROFS` if the device does, or after an earlier error.
    pub fn make_writable(&mut self) -> core::result::Result<(), MountError> {
        if !self.options.read_only {
            return if self.store.is_read_only {
                Err(Errno::EROFS.into())
            } else {
                Ok(())
            };
        }
        self.sb.check_writable()?;
        if self.store.device.is_read_only() {
            return Err(Errno::EROFS.into());
        }
        self.begin_writing()?;
        self.options.read_only = false;
        Ok(())
    }

    /// Place of a block of a file.
    pub(crate) fn map(&mut self, inode: &Inode, logical: u32) -> Result<crate::extent_tree::Run> {
        if inode.has_extents() {
            self.map_extents(inode, logical)
        } else {
            self.map_indirect(inode, logical)
        }
    }
}
