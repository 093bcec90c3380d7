//! Finding free inodes: files beside their directory, directories apart from each other (Orlov).

use abi::errno::Errno;

use crate::Result;
use crate::group::{Bitmap, Group};
use crate::mount::Ext4;

impl Ext4 {
    /// An inode for a new file in a directory, marked as used.
    pub(crate) fn allocate_inode(&mut self, parent: u32, is_directory: bool) -> Result<u32> {
        let home = parent.saturating_sub(1) / self.sb.inodes_per_group;
        let first = if is_directory {
            self.group_for_directory(parent, home)?
        } else {
            home
        };
        for turn in 0..self.sb.groups {
            let number = (first + turn) % self.sb.groups;
            let mut group = self.group(number)?;
            if group.free_inodes == 0 {
                continue;
            }
            if let Some(index) = self.free_inode_in(number, &mut group)? {
                return self.take_inode((number, group), index, is_directory);
            }
        }
        Err(Errno::ENOSPC)
    }

    fn free_inode_in(&mut self, number: u32, group: &mut Group) -> Result<Option<u32>> {
        let bytes = self.bitmap(number, group, Bitmap::Inodes)?;
        Ok(first_clear(&bytes, self.sb.inodes_per_group))
    }

    fn take_inode(
        &mut self,
        (number, mut group): (u32, Group),
        index: u32,
        is_directory: bool,
    ) -> Result<u32> {
        let ino = number * self.sb.inodes_per_group + index + 1;
        if ino < self.sb.first_inode {
            return Err(Errno::EUCLEAN);
        }
        self.change_bitmap(number, &group, Bitmap::Inodes, (index, 1), true)?;
        group.free_inodes = group.free_inodes.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        group.unused_inodes = group
            .unused_inodes
            .min(self.sb.inodes_per_group - index - 1);
        group.directories += u32::from(is_directory);
        self.put_group(number, &group)?;
        let free = &mut self.store.counts.free_inodes;
        *free = free.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        Ok(ino)
    }

    /// Gives an inode back.
    pub(crate) fn free_inode(&mut self, ino: u32, is_directory: bool) -> Result<()> {
        let index = ino.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        let number = index / self.sb.inodes_per_group;
        let within = index % self.sb.inodes_per_group;
        let mut group = self.group(number)?;
        self.bitmap(number, &mut group, Bitmap::Inodes)?;
        self.change_bitmap(number, &group, Bitmap::Inodes, (within, 1), false)?;
        group.free_inodes += 1;
        let directories = group.directories.checked_sub(u32::from(is_directory));
        group.directories = directories.ok_or(Errno::EUCLEAN)?;
        if group.free_inodes > self.sb.inodes_per_group {
            return Err(Errno::EUCLEAN);
        }
        self.put_group(number, &group)?;
        self.store.counts.free_inodes += 1;
        Ok(())
    }

    /// A group for a new directory: of those with at least the average of what is free, below the
    /// top directory the one with the fewest directories, elsewhere the nearest behind the parent.
    fn group_for_directory(&mut self, parent: u32, home: u32) -> Result<u32> {
        let groups = self.sb.groups;
        let average_inodes = self.store.counts.free_inodes / groups;
        let average_blocks = (self.store.counts.free_blocks / u64::from(groups)) as u32;
        let mut best: Option<(u32, u32)> = None;
        for turn in 0..groups {
            let number = (home + turn) % groups;
            let group = self.group(number)?;
            if group.free_inodes == 0
                || group.free_inodes < average_inodes
                || group.free_blocks < average_blocks
            {
                continue;
            }
            if parent != crate::ROOT {
                return Ok(number);
            }
            if best.is_none_or(|(_, fewest)| group.directories < fewest) {
                best = Some((number, group.directories));
            }
        }
        Ok(best.map_or(home, |(number, _)| number))
    }
}

/// The first bit that is not set, of so many.
fn first_clear(bytes: &[u8], count: u32) -> Option<u32> {
    let byte = bytes.iter().position(|byte| *byte != 0xFF)?;
    let bit = byte as u32 * 8 + bytes.get(byte)?.trailing_ones();
    (bit < count).then_some(bit)
}

#[cfg(test)]
mod tests {
    use super::first_clear;

    #[test]
    fn the_first_bit_that_is_not_set() {
        assert_eq!(first_clear(&[0xFF, 0b1110_1111, 0], 24), Some(12));
        assert_eq!(first_clear(&[0, 0], 16), Some(0));
        assert_eq!(first_clear(&[0xFF, 0b0000_1111], 12), None);
        assert_eq!(first_clear(&[0xFF, 0b0000_0111], 12), Some(11));
        assert_eq!(first_clear(&[0xFF; 2], 16), None);
    }
}
