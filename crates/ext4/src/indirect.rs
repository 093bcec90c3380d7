//! Block maps of ext2 and ext3: twelve blocks, and trees of one, two and three levels. Read only.

use abi::errno::Errno;

use crate::Result;
use crate::bytes::u32_at;
use crate::extent_tree::Run;
use crate::inode::Inode;
use crate::mount::Ext4;

/// Blocks that the inode names itself.
const DIRECT: u64 = 12;

impl Ext4 {
    /// Place of a block of a file.
    pub(crate) fn map_indirect(&mut self, inode: &Inode, logical: u32) -> Result<Run> {
        let per_block = u64::from(self.sb.block_size / 4);
        let mut within = u64::from(logical);
        if within < DIRECT {
            return self.run_of(u32_at(&inode.root, within as usize * 4)?);
        }
        within -= DIRECT;
        let mut span = per_block;
        let mut level = 1;
        while within >= span {
            within -= span;
            span *= per_block;
            level += 1;
        }
        if level > 3 {
            return Err(Errno::EFBIG);
        }
        let mut number = u32_at(&inode.root, (DIRECT as usize + level - 1) * 4)?;
        while number != 0 && span > 1 {
            span /= per_block;
            self.check_range(u64::from(number), 1)?;
            let bytes = self.store.read(u64::from(number))?;
            number = u32_at(&bytes, (within / span) as usize * 4)?;
            within %= span;
        }
        self.run_of(number)
    }

    fn run_of(&self, number: u32) -> Result<Run> {
        if number != 0 {
            self.check_range(u64::from(number), 1)?;
        }
        Ok(Run {
            block: (number != 0).then_some(u64::from(number)),
            is_unwritten: false,
            len: 1,
        })
    }
}
