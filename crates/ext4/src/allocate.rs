//! Finding free blocks, and giving blocks back.

use abi::errno::Errno;

use crate::Result;
use crate::group::{Bitmap, Group};
use crate::inode::Inode;
use crate::mount::Ext4;

/// A run of so many blocks is good enough to end a search.
const GOOD_RUN: u32 = 256;
/// Groups with something free that are looked at for a better run.
const SEARCHED_GROUPS: u32 = 8;

/// A bitmap with what it was at the last commit: a bit is free if both say so.
struct Free<'a> {
    now: &'a [u8],
    committed: Option<&'a [u8]>,
}

impl Free<'_> {
    fn used(&self, byte: usize) -> u8 {
        let now = self.now.get(byte).copied().unwrap_or(0xFF);
        let before = self
            .committed
            .map_or(0, |bytes| bytes.get(byte).copied().unwrap_or(0xFF));
        now | before
    }

    fn is_free(&self, bit: u32) -> bool {
        self.used(bit as usize / 8) & 1 << (bit % 8) == 0
    }

    /// The first free run of at least `want` bits within a range, or the longest there is.
    fn run(&self, from: u32, end: u32, want: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        let mut bit = from;
        while bit < end {
            if bit.is_multiple_of(8) && self.used(bit as usize / 8) == 0xFF {
                bit += 8;
                continue;
            }
            if !self.is_free(bit) {
                bit += 1;
                continue;
            }
            let start = bit;
            while bit < end && bit - start < want {
                if bit.is_multiple_of(8) && bit + 8 <= end && self.used(bit as usize / 8) == 0 {
                    bit += 8;
                } else if self.is_free(bit) {
                    bit += 1;
                } else {
                    break;
                }
            }
            let len = (bit - start).min(want);
            if best.is_none_or(|(_, longest)| len > longest) {
                best = Some((start, len));
            }
            if len == want {
                break;
            }
        }
        best
    }
}

impl Ext4 {
    /// Checks that blocks may be a file's: they are there, and not the file system's own.
    pub(crate) fn check_range(&self, block: u64, len: u64) -> Result<()> {
        let end = block.checked_add(len).ok_or(Errno::EUCLEAN)?;
        if block <= u64::from(self.sb.first_data_block)
            || end > self.sb.blocks_count
            || self.zones.touches(block, len)
        {
            return Err(Errno::EUCLEAN);
        }
        Ok(())
    }

    /// A good place for the first block of a file: the group of its inode.
    pub(crate) fn goal_of(&self, inode: &Inode) -> Result<u64> {
        let index = inode.ino.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        Ok(self.sb.group_start(index / self.sb.inodes_per_group))
    }

    /// One block, near a goal.
    pub(crate) fn allocate_one(&mut self, goal: u64) -> Result<u64> {
        self.allocate(goal, 1).map(|(block, _)| block)
    }

    /// Up to `want` consecutive blocks, at a goal or near.
    pub(crate) fn allocate(&mut self, goal: u64, want: u32) -> Result<(u64, u32)> {
        let room = self
            .store
            .counts
            .free_blocks
            .saturating_sub(self.kept_blocks);
        let want = want.min(u32::try_from(room).unwrap_or(u32::MAX));
        if want == 0 {
            return Err(Errno::ENOSPC);
        }
        let goal = if goal < self.sb.blocks_count { goal } else { 0 };
        let (first, offset) = self.sb.group_of(goal);
        let good = want.min(GOOD_RUN);
        let mut best: Option<(u32, u32, u32)> = None;
        let mut searched = 0;
        // The first group twice: from the goal on, and at the end of all before it.
        for turn in 0..=self.sb.groups {
            let number = (first + turn) % self.sb.groups;
            let mut group = self.group(number)?;
            if group.free_blocks == 0 {
                continue;
            }
            let from = if turn == 0 { offset } else { 0 };
            let Some((start, len)) = self.free_run(number, &mut group, from, want)? else {
                continue;
            };
            if best.is_none_or(|(_, _, longest)| len > longest) {
                best = Some((number, start, len));
            }
            searched += 1;
            if len >= good || searched >= SEARCHED_GROUPS {
                break;
            }
        }
        let (number, start, len) = best.ok_or(Errno::ENOSPC)?;
        let block = self.sb.group_start(number) + u64::from(start);
        // A bitmap that says that the file system's own blocks are free is damaged.
        self.check_range(block, u64::from(len))?;
        let mut group = self.group(number)?;
        self.change_bitmap(number, &group, Bitmap::Blocks, (start, len), true)?;
        group.free_blocks = group.free_blocks.checked_sub(len).ok_or(Errno::EUCLEAN)?;
        self.put_group(number, &group)?;
        let free = &mut self.store.counts.free_blocks;
        *free = free.checked_sub(u64::from(len)).ok_or(Errno::EUCLEAN)?;
        Ok((block, len))
    }

    fn free_run(
        &mut self,
        number: u32,
        group: &mut Group,
        from: u32,
        want: u32,
    ) -> Result<Option<(u32, u32)>> {
        let bytes = self.bitmap(number, group, Bitmap::Blocks)?;
        let committed = self.store.committed(group.block_bitmap);
        let free = Free {
            now: &bytes,
            committed: committed.as_ref().map(|bytes| bytes.as_slice()),
        };
        let end = self.sb.group_blocks(number);
        Ok(free.run(from, end, want))
    }

    /// Gives blocks back. They are not given out again before that is committed.
    pub(crate) fn free_blocks(&mut self, block: u64, len: u32) -> Result<()> {
        self.check_range(block, u64::from(len))?;
        let (mut block, mut left) = (block, len);
        while left > 0 {
            let (number, offset) = self.sb.group_of(block);
            let here = left.min(self.sb.blocks_per_group - offset);
            let mut group = self.group(number)?;
            self.bitmap(number, &mut group, Bitmap::Blocks)?;
            self.change_bitmap(number, &group, Bitmap::Blocks, (offset, here), false)?;
            group.free_blocks += here;
            if group.free_blocks > self.sb.group_blocks(number) {
                return Err(Errno::EUCLEAN);
            }
            self.put_group(number, &group)?;
            self.store.counts.free_blocks += u64::from(here);
            block += u64::from(here);
            left -= here;
        }
        self.store.note_freed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_free_if_it_was_at_the_last_commit_too() {
        let free = Free {
            now: &[0xFF, 0b0000_1111, 0, 0],
            committed: Some(&[0, 0b0011_0000, 0, 0]),
        };
        assert_eq!(free.run(0, 32, 4), Some((14, 4)));
        assert_eq!(free.run(0, 16, 4), Some((14, 2)));
        assert_eq!(free.run(0, 32, 100), Some((14, 18)));
        assert_eq!(free.run(0, 8, 1), None);
    }
}
