//! Files that have no name any more, or are being cut: a list from the superblock on, through the
//! field for the time of deletion, which whoever mounts it next works off.

use abi::errno::Errno;

use crate::Result;
use crate::bytes::put_u32;
use crate::extent::entries;
use crate::inode::{FileType, Inode};
use crate::mount::Ext4;
use crate::superblock::field;

/// Blocks that the last step of a file's end may change.
const END_CREDITS: usize = 24;

impl Ext4 {
    fn put_last_orphan(&mut self, ino: u32) -> Result<()> {
        let (block, at) = self.sb.place();
        // A commit seals the superblock in any case.
        let part = (at + field::LAST_ORPHAN, 4);
        self.store
            .edit_part(block, part, None, |raw| put_u32(raw, 0, ino))?;
        self.last_orphan = ino;
        Ok(())
    }

    /// Refuses a file with a block map: these are only read.
    pub(crate) fn check_removable_blocks(&self, inode: &Inode) -> Result<()> {
        let refused = inode.has_block_map(self.sb.block_size);
        if refused {
            Err(Errno::EOPNOTSUPP)
        } else {
            Ok(())
        }
    }

    /// Puts a file on the list, and stores it.
    pub(crate) fn add_orphan(&mut self, inode: &mut Inode) -> Result<()> {
        self.check_removable_blocks(inode)?;
        inode.deleted = self.last_orphan;
        self.put_inode(inode)?;
        self.put_last_orphan(inode.ino)
    }

    /// Takes a file from the list; the caller stores it.
    pub(crate) fn remove_orphan(&mut self, inode: &mut Inode) -> Result<()> {
        let next = core::mem::take(&mut inode.deleted);
        if self.last_orphan == inode.ino {
            return self.put_last_orphan(next);
        }
        let mut at = self.last_orphan;
        // A list that closes a circle ends, too.
        for _ in 0..self.sb.inodes_count {
            let mut before = self.inode(at)?;
            if before.deleted == inode.ino {
                before.deleted = next;
                return self.put_inode(&before);
            }
            at = before.deleted;
        }
        Err(Errno::EUCLEAN)
    }

    /// Ends the life of a file that has no name, when the last opening of it is closed. Nothing
    /// happens to one that has a name.
    ///
    /// # Errors
    /// `EIO`, `EUCLEAN`, `EROFS`: it stays on the list of orphans.
    pub fn release(&mut self, ino: u32) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.links > 0 {
            return Ok(());
        }
        let is_empty = inode.has_extents() && entries(&inode.root)? == 0;
        if !is_empty {
            self.remove_contents(ino)?;
        }
        self.transact(END_CREDITS, |fs| {
            let mut inode = if is_empty {
                inode.clone()
            } else {
                fs.inode(ino)?
            };
            fs.drop_xattr_block(&mut inode)?;
            fs.remove_orphan(&mut inode)?;
            let now = fs.now().seconds as u32;
            // A number of an inode would be a link of the list, and zero a file that is there.
            inode.deleted = now.max(fs.sb.inodes_count);
            inode.size = 0;
            fs.put_inode(&inode)?;
            fs.free_inode(ino, inode.kind()? == FileType::Directory)
        })
    }

    /// Works off the list, which whoever had it mounted left.
    pub(crate) fn remove_orphans(&mut self) -> Result<()> {
        for _ in 0..self.sb.inodes_count {
            let ino = self.last_orphan;
            if ino == 0 {
                return Ok(());
            }
            let inode = self.inode(ino)?;
            if inode.links == 0 {
                self.release(ino)?;
            } else {
                self.finish_truncate(ino)?;
            }
        }
        if self.last_orphan == 0 {
            Ok(())
        } else {
            Err(Errno::EUCLEAN)
        }
    }
}
