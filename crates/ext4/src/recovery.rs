//! Replay of a journal that was not closed.
//!
//! Three passes, as jbd2: find the end of what was committed, and see that its blocks are whole;
//! collect the revoke records; write the blocks to their places. Nothing is written before the
//! first two are through, and what is written can be written again after a power cut.

use alloc::vec::Vec;

use abi::errno::Errno;

use crate::Result;
use crate::bytes::{be32_at, be64_at};
use crate::device::Device;
use crate::journal::{
    COMMIT, Checksums, DESCRIPTOR, HEADER, Journal, REVOKE, TAG_ESCAPE, TAG_LAST, TAG_SAME_UUID,
};

/// Figures of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Transactions that were replayed.
    pub transactions: u32,
    /// Blocks that were written.
    pub blocks: u32,
    /// Blocks that were not, because they were revoked.
    pub revoked: u32,
}

/// Transaction numbers wrap around: whether `a` is later than `b`.
const fn is_later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// A block in the log that belongs to a place.
struct Tagged {
    block: u64,
    flags: u32,
    checksum: u32,
    /// Block of the log.
    log: u32,
}

struct Replay<'a> {
    device: &'a dyn Device,
    journal: &'a Journal,
    /// Blocks of the file system.
    blocks_count: u64,
    own: Vec<u8>,
    data: Vec<u8>,
    /// Revoked blocks with the number of the last transaction that revoked each; sorted.
    revoked: Vec<(u64, u32)>,
}

/// Writes all that was committed to its place. The journal goes on behind that.
pub fn recover(device: &dyn Device, journal: &mut Journal, blocks_count: u64) -> Result<Recovery> {
    let first = journal.sequence;
    let mut replay = Replay {
        device,
        journal,
        blocks_count,
        own: fallible::zeroed(journal.block_size)?,
        data: fallible::zeroed(journal.block_size)?,
        revoked: Vec::new(),
    };
    let end = replay.find_end()?;
    replay.revoked.sort_unstable_by_key(|&(block, _)| block);
    replay.revoked.dedup_by(|other, kept| {
        let is_same = other.0 == kept.0;
        if is_same && is_later(other.1, kept.1) {
            kept.1 = other.1;
        }
        is_same
    });
    let done = replay.write(end)?;
    device.flush()?;
    // The number of the transaction that was torn may be in the log: it is not used again.
    journal.restart(end.wrapping_add(1));
    Ok(Recovery {
        transactions: end.wrapping_sub(first),
        ..done
    })
}

impl Replay<'_> {
    fn read_log(&self, log: u32, into: &mut [u8]) -> Result<()> {
        self.device.read(self.journal.place(log)?.0, into)
    }

    /// Number of the first transaction that is not whole. Collects the revoke records of those
    /// that are.
    fn find_end(&mut self) -> Result<u32> {
        let mut sequence = self.journal.sequence;
        let mut at = self.journal.head;
        // No more blocks than the ring has: a log that is full of descriptors ends, too.
        let mut left = self.journal.capacity();
        let mut kept = 0;
        let mut damaged = false;
        while left > 0 {
            let mut own = core::mem::take(&mut self.own);
            let read = self.read_log(at, &mut own);
            self.own = own;
            read?;
            let Some((kind, number)) = Journal::header(&self.own)? else {
                break;
            };
            if number != sequence || !self.is_whole(kind)? {
                break;
            }
            at = self.journal.next(at);
            left -= 1;
            match kind {
                DESCRIPTOR => {
                    let Some(next) = self.check_blocks(at, sequence, &mut left, &mut damaged)?
                    else {
                        break;
                    };
                    at = next;
                }
                REVOKE => self.collect_revoked(sequence)?,
                COMMIT => {
                    if damaged {
                        // It was committed, so its blocks were on the medium.
                        return Err(Errno::EUCLEAN);
                    }
                    sequence = sequence.wrapping_add(1);
                    kept = self.revoked.len();
                }
                _ => break,
            }
        }
        self.revoked.truncate(kept);
        Ok(sequence)
    }

    /// Whether the checksum of a block of the journal's own is right.
    fn is_whole(&self, kind: u32) -> Result<bool> {
        if self.journal.checksums == Checksums::None {
            return Ok(true);
        }
        let at = if kind == COMMIT {
            0x10
        } else {
            self.own.len() - 4
        };
        Ok(self.journal.block_checksum(&self.own, at)? == be32_at(&self.own, at)?)
    }

    /// Calls `each` for the tags of the descriptor block that was read; its blocks begin at `at`.
    /// `None`: it names more blocks than there are. Returns the block behind them.
    fn for_each_tag(
        &self,
        mut at: u32,
        left: &mut usize,
        mut each: impl FnMut(Tagged) -> Result<()>,
    ) -> Result<Option<u32>> {
        let end = self.own.len() - self.journal.tail_size();
        let mut offset = HEADER;
        while offset + self.journal.tag_size() <= end {
            if *left == 0 {
                return Ok(None);
            }
            let (block, flags, checksum) = self.journal.tag(&self.own, offset)?;
            each(Tagged {
                block,
                flags,
                checksum,
                log: at,
            })?;
            at = self.journal.next(at);
            *left -= 1;
            offset += self.journal.tag_size();
            if flags & TAG_SAME_UUID == 0 {
                offset += 16;
            }
            if flags & TAG_LAST != 0 {
                break;
            }
        }
        Ok(Some(at))
    }

    fn check_blocks(
        &mut self,
        at: u32,
        sequence: u32,
        left: &mut usize,
        damaged: &mut bool,
    ) -> Result<Option<u32>> {
        let mut data = core::mem::take(&mut self.data);
        let done = self.for_each_tag(at, left, |tag| {
            if tag.block >= self.blocks_count {
                *damaged = true;
            }
            if self.journal.checksums != Checksums::None {
                self.read_log(tag.log, &mut data)?;
                let sum = self.journal.data_checksum(sequence, false, &data);
                *damaged |= sum != tag.checksum;
            }
            Ok(())
        });
        self.data = data;
        done
    }

    fn collect_revoked(&mut self, sequence: u32) -> Result<()> {
        let len = be32_at(&self.own, HEADER)? as usize;
        if len > self.own.len() - self.journal.tail_size() {
            return Err(Errno::EUCLEAN);
        }
        let size = self.journal.revoke_size();
        let mut at = HEADER + 4;
        while at + size <= len {
            let block = if self.journal.is_64bit {
                be64_at(&self.own, at)?
            } else {
                u64::from(be32_at(&self.own, at)?)
            };
            fallible::push(&mut self.revoked, (block, sequence))?;
            at += size;
        }
        Ok(())
    }

    /// Whether a block of a transaction was revoked by that one or a later one.
    fn is_revoked(&self, block: u64, sequence: u32) -> bool {
        let found = self
            .revoked
            .binary_search_by_key(&block, |&(other, _)| other);
        let record = found.ok().and_then(|index| self.revoked.get(index));
        record.is_some_and(|&(_, revoked)| !is_later(sequence, revoked))
    }

    /// Writes the blocks of all transactions before `end`.
    fn write(&mut self, end: u32) -> Result<Recovery> {
        let mut done = Recovery::default();
        let mut sequence = self.journal.sequence;
        let mut at = self.journal.head;
        let mut left = self.journal.capacity();
        while sequence != end {
            let mut own = core::mem::take(&mut self.own);
            let read = self.read_log(at, &mut own);
            self.own = own;
            read?;
            at = self.journal.next(at);
            match Journal::header(&self.own)? {
                Some((DESCRIPTOR, _)) => {
                    let mut data = core::mem::take(&mut self.data);
                    let next = self.for_each_tag(at, &mut left, |tag| {
                        if self.is_revoked(tag.block, sequence) {
                            done.revoked += 1;
                            return Ok(());
                        }
                        self.read_log(tag.log, &mut data)?;
                        if tag.flags & TAG_ESCAPE != 0 {
                            Journal::unescape(&mut data)?;
                        }
                        done.blocks += 1;
                        self.device.write(tag.block * data.len() as u64, &data)
                    });
                    self.data = data;
                    at = next?.ok_or(Errno::EUCLEAN)?;
                }
                Some((COMMIT, _)) => sequence = sequence.wrapping_add(1),
                _ => {}
            }
            left = left.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        }
        Ok(done)
    }
}
