//! Contents of files: reading, writing, cutting, preallocating, punching.

use abi::errno::Errno;

use crate::Result;
use crate::extent::{Extent, MAX_LEN};
use crate::extent_tree::Run;
use crate::inode::{FileType, Inode};
use crate::mount::Ext4;
use crate::time::Timestamp;

/// Blocks that a step of writing or cutting may change: a run of blocks, and the tree of extents.
const STEP_CREDITS: usize = 160;
/// Extents that one step of cutting removes.
const CUTS: usize = 4;
/// Groups that one extent which is removed may lie in.
const CUT_GROUPS: u32 = 4;
/// Blocks of a directory that are removed at once: each is a block of the transaction.
const METADATA_CUT: u32 = 16;
/// Most bytes that one step of writing writes.
const STEP_BYTES: usize = 1 << 20;
/// Flags that can be set: immutable, append only, no dump, no access times.
const SETTABLE_FLAGS: u32 = 0x10 | 0x20 | 0x40 | 0x80;

/// Place of a part of a file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Number of bytes that are alike.
    pub len: u64,
    /// Offset on the device; `None` is a hole.
    pub device: Option<u64>,
    /// Preallocated: it reads as zeros.
    pub is_unwritten: bool,
}

impl Ext4 {
    fn file(&mut self, ino: u32) -> Result<Inode> {
        let inode = self.inode(ino)?;
        match inode.kind()? {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    const fn size_of_block(&self) -> u64 {
        self.sb.block_size as u64
    }

    fn logical(&self, offset: u64) -> Result<u32> {
        u32::try_from(offset / self.size_of_block()).map_err(|_| Errno::EFBIG)
    }

    /// Place of the contents at an offset.
    ///
    /// # Errors
    /// `EINVAL`, `EISDIR` for what is no regular file; `EUCLEAN`, `EIO`.
    pub fn mapping(&mut self, ino: u32, offset: u64) -> Result<Mapping> {
        let inode = self.file(ino)?;
        let logical = self.logical(offset)?;
        let run = self.map(&inode, logical)?;
        let within = offset % self.size_of_block();
        let device = run.block.map(|block| block * self.size_of_block() + within);
        Ok(Mapping {
            len: u64::from(run.len) * self.size_of_block() - within,
            device,
            is_unwritten: run.is_unwritten,
        })
    }

    /// Reads contents; 0 at or behind the end.
    ///
    /// # Errors
    /// `EINVAL`, `EISDIR`, `EUCLEAN`, `EIO`.
    pub fn read(&mut self, ino: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.file(ino)?;
        self.read_contents(&inode, offset, buf)
    }

    fn read_contents(&mut self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = inode.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..len).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let run = self.map(inode, self.logical(at)?)?;
            let within = at % self.size_of_block();
            let bytes = u64::from(run.len) * self.size_of_block() - within;
            let count = rest.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            let (part, _) = rest.split_at_mut(count);
            match run.block.filter(|_| !run.is_unwritten) {
                Some(block) => self.read_data(block * self.size_of_block() + within, part)?,
                None => part.fill(0),
            }
            done += count;
        }
        Ok(len)
    }

    /// Reads any bytes of the device.
    fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let size = self.store.block_size;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = (at % size as u64) as usize;
            let left = buf.len() - done;
            if within == 0 && left >= size {
                let whole = left - left % size;
                let part = buf.get_mut(done..done + whole).ok_or(Errno::EIO)?;
                self.store.device.read(at, part)?;
                done += whole;
                continue;
            }
            let count = left.min(size - within);
            let mut block = fallible::zeroed(size)?;
            self.store.device.read(at - within as u64, &mut block)?;
            let from = block.get(within..within + count).ok_or(Errno::EIO)?;
            buf.get_mut(done..done + count)
                .ok_or(Errno::EIO)?
                .copy_from_slice(from);
            done += count;
        }
        Ok(())
    }

    /// Writes any bytes to blocks of a file that begin at `block`. What is around them is kept if
    /// `keeps`, and otherwise becomes zeros.
    fn write_data(&self, block: u64, within: usize, bytes: &[u8], keeps: bool) -> Result<()> {
        let size = self.store.block_size;
        let start = block * size as u64;
        let mut done = 0;
        while done < bytes.len() {
            let at = within + done;
            let (inside, left) = (at % size, bytes.len() - done);
            if inside == 0 && left >= size {
                let whole = left - left % size;
                let part = bytes.get(done..done + whole).ok_or(Errno::EIO)?;
                self.store.device.write(start + at as u64, part)?;
                done += whole;
                continue;
            }
            let count = left.min(size - inside);
            let place = start + (at - inside) as u64;
            let mut block = fallible::zeroed(size)?;
            if keeps {
                self.store.device.read(place, &mut block)?;
            }
            let to = block.get_mut(inside..inside + count).ok_or(Errno::EIO)?;
            to.copy_from_slice(bytes.get(done..done + count).ok_or(Errno::EIO)?);
            self.store.device.write(place, &block)?;
            done += count;
        }
        Ok(())
    }

    /// Writes contents, and makes the file longer where they reach beyond its end. Fewer bytes are
    /// written if there is no room for all.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EINVAL`, `EISDIR`, `EIO`; `EOPNOTSUPP` for a file without
    /// extents.
    pub fn write(&mut self, ino: u32, offset: u64, bytes: &[u8]) -> Result<usize> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::EFBIG)?;
        if end > self.sb.max_file_size() {
            return Err(Errno::EFBIG);
        }
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let part = rest.get(..STEP_BYTES).unwrap_or(rest);
            match self.write_step(ino, offset + done as u64, part) {
                Ok(count) => done += count,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes what lies in blocks that are alike.
    fn write_step(&mut self, ino: u32, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.transact(STEP_CREDITS, |fs| {
            let mut inode = fs.writable_file(ino)?;
            let size = fs.size_of_block();
            let logical = fs.logical(offset)?;
            let within = (offset % size) as usize;
            let wanted = (within as u64 + bytes.len() as u64).div_ceil(size) as u32;
            let mut run = fs.map(&inode, logical)?;
            run.len = run.len.min(wanted).min(MAX_LEN - 1);
            let is_new = run.block.is_none();
            if is_new {
                run = fs.fill_hole(&mut inode, logical, run.len, false)?;
            }
            let block = run.block.ok_or(Errno::EIO)?;
            let room = run.len as usize * fs.store.block_size - within;
            let count = bytes.len().min(room);
            let part = bytes.get(..count).ok_or(Errno::EIO)?;
            let keeps = !is_new && !run.is_unwritten;
            fs.write_data(block, within, part, keeps)?;
            if run.is_unwritten {
                let blocks = ((within + count) as u64).div_ceil(size);
                fs.set_written(&mut inode, logical, u64::from(logical) + blocks)?;
            }
            inode.size = inode.size.max(offset + count as u64);
            inode.modified = fs.now();
            inode.changed = inode.modified;
            fs.put_inode(&inode)?;
            Ok(count)
        })
    }

    fn writable_file(&mut self, ino: u32) -> Result<Inode> {
        let inode = self.file(ino)?;
        if inode.has_extents() {
            Ok(inode)
        } else {
            Err(Errno::EOPNOTSUPP)
        }
    }

    /// Allocates blocks where there are none, as many as lie together.
    fn fill_hole(
        &mut self,
        inode: &mut Inode,
        logical: u32,
        want: u32,
        is_unwritten: bool,
    ) -> Result<Run> {
        let before = match logical.checked_sub(1) {
            Some(before) => self.map(inode, before)?.block,
            None => None,
        };
        let goal = before.map_or_else(|| self.goal_of(inode), |block| Ok(block + 1))?;
        let (block, len) = self.allocate(goal, want)?;
        inode.sectors += u64::from(len) * u64::from(self.sb.block_size / 512);
        self.insert_extent(
            inode,
            Extent {
                logical,
                len,
                block,
                is_unwritten,
            },
        )?;
        Ok(Run {
            block: Some(block),
            is_unwritten,
            len,
        })
    }

    /// Preallocates blocks (`fallocate(2)`), which read as zeros. The file becomes as long, unless
    /// `keep_size`.
    ///
    /// # Errors
    /// As [`Ext4::write`]; what was allocated before `ENOSPC` stays.
    pub fn allocate_range(
        &mut self,
        ino: u32,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if end > self.sb.max_file_size() {
            return Err(Errno::EFBIG);
        }
        let last = end.div_ceil(self.size_of_block());
        let mut at = offset / self.size_of_block();
        while at < last {
            at = self.transact(STEP_CREDITS, |fs| {
                let mut inode = fs.writable_file(ino)?;
                let logical = u32::try_from(at).map_err(|_| Errno::EFBIG)?;
                let mut run = fs.map(&inode, logical)?;
                let left = u32::try_from(last - at).unwrap_or(u32::MAX);
                run.len = run.len.min(left).min(MAX_LEN - 1);
                if run.block.is_none() {
                    run = fs.fill_hole(&mut inode, logical, run.len, true)?;
                }
                let next = at + u64::from(run.len);
                if !keep_size {
                    inode.size = inode.size.max(end.min(next * fs.size_of_block()));
                }
                inode.changed = fs.now();
                fs.put_inode(&inode)?;
                Ok(next)
            })?;
        }
        Ok(())
    }

    /// Has blocks allocated for a range that is going to be written, where there are none: they are
    /// unwritten until [`Ext4::finish_write`]. The offset up to which there are blocks, which may
    /// be before the end of the range if the file system is full.
    ///
    /// # Errors
    /// As [`Ext4::write`]; `ENOSPC` if there is no block for the beginning.
    pub fn prepare_write(&mut self, ino: u32, offset: u64, len: u64) -> Result<u64> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if end > self.sb.max_file_size() {
            return Err(Errno::EFBIG);
        }
        let size = self.size_of_block();
        let (mut at, last) = (offset / size, end.div_ceil(size));
        while at < last {
            let logical = u32::try_from(at).map_err(|_| Errno::EFBIG)?;
            let inode = self.writable_file(ino)?;
            let run = self.map(&inode, logical)?;
            let left = u32::try_from(last - at).unwrap_or(u32::MAX);
            let len = run.len.min(left).min(MAX_LEN - 1);
            if run.block.is_some() {
                at += u64::from(len);
                continue;
            }
            let filled = self.transact(STEP_CREDITS, |fs| {
                let mut inode = fs.writable_file(ino)?;
                let run = fs.fill_hole(&mut inode, logical, len, true)?;
                fs.put_inode(&inode)?;
                Ok(run.len)
            });
            match filled {
                Ok(len) => at += u64::from(len),
                Err(Errno::ENOSPC) if at * size > offset => return Ok(at * size),
                Err(error) => return Err(error),
            }
        }
        Ok(end)
    }

    /// Notes that contents were written to the blocks of a range, which read as that from now on;
    /// the file reaches at least to `size`.
    ///
    /// # Errors
    /// As [`Ext4::write`]; a part may be noted then. `EUCLEAN` if there are no blocks.
    pub fn finish_write(&mut self, ino: u32, offset: u64, len: u64, size: u64) -> Result<()> {
        let block = self.size_of_block();
        let (mut at, last) = (offset / block, (offset + len).div_ceil(block));
        while at < last {
            let logical = u32::try_from(at).map_err(|_| Errno::EFBIG)?;
            let inode = self.writable_file(ino)?;
            let run = self.map(&inode, logical)?;
            run.block.ok_or(Errno::EUCLEAN)?;
            let left = u32::try_from(last - at).unwrap_or(u32::MAX);
            let end = at + u64::from(run.len.min(left).min(MAX_LEN - 1));
            if run.is_unwritten {
                self.transact(STEP_CREDITS, |fs| {
                    let mut inode = fs.writable_file(ino)?;
                    fs.set_written(&mut inode, logical, end)?;
                    inode.size = inode.size.max(size.min(end * block));
                    fs.put_inode(&inode)
                })?;
            }
            at = end;
        }
        if self.file(ino)?.size < size {
            self.transact(STEP_CREDITS, |fs| {
                let mut inode = fs.writable_file(ino)?;
                inode.size = inode.size.max(size);
                fs.put_inode(&inode)
            })?;
        }
        Ok(())
    }

    /// Makes a range zeros, and gives its whole blocks back (`FALLOC_FL_PUNCH_HOLE`). The file's
    /// size stays.
    ///
    /// # Errors
    /// As [`Ext4::write`]; a part may be punched then.
    pub fn punch(&mut self, ino: u32, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if end > self.sb.max_file_size() {
            return Err(Errno::EFBIG);
        }
        let size = self.size_of_block();
        let (first, last) = (offset.div_ceil(size), end / size);
        if first > last {
            // Within one block.
            return self.zero_part(ino, offset, len);
        }
        self.zero_part(ino, offset, first * size - offset)?;
        self.zero_part(ino, last * size, end - last * size)?;
        let (first, last) = (u32::try_from(first), last.min(u64::from(u32::MAX)));
        let first = first.map_err(|_| Errno::EFBIG)?;
        loop {
            let done = self.transact(STEP_CREDITS, |fs| {
                let mut inode = fs.writable_file(ino)?;
                let done = fs.cut(&mut inode, first, last)?;
                inode.modified = fs.now();
                inode.changed = inode.modified;
                fs.put_inode(&inode)?;
                Ok(done)
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// Makes a part of a block zeros, if it is there.
    fn zero_part(&mut self, ino: u32, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let inode = self.writable_file(ino)?;
        self.zero_in(&inode, offset, len)
    }

    fn zero_in(&mut self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let run = self.map(inode, self.logical(offset)?)?;
        let Some(block) = run.block.filter(|_| !run.is_unwritten) else {
            return Ok(());
        };
        let within = (offset % self.size_of_block()) as usize;
        let zeros = fallible::zeroed(len as usize)?;
        self.write_data(block, within, &zeros, true)
    }

    /// Gives blocks from `from` to before `end` back, as many as a step may. Whether all are.
    fn cut(&mut self, inode: &mut Inode, from: u32, end: u64) -> Result<bool> {
        let is_data = inode.kind()? == FileType::Regular;
        let most = if is_data {
            self.sb.blocks_per_group.saturating_mul(CUT_GROUPS)
        } else {
            METADATA_CUT
        };
        for _ in 0..CUTS {
            let Some(cut) = self.remove_last(inode, from, end, most)? else {
                return Ok(true);
            };
            let sectors = u64::from(cut.len) * u64::from(self.sb.block_size / 512);
            inode.sectors = inode.sectors.checked_sub(sectors).ok_or(Errno::EUCLEAN)?;
            if !is_data {
                for block in cut.block..cut.block + u64::from(cut.len) {
                    self.store.forget(block)?;
                }
            }
            self.free_blocks(cut.block, cut.len)?;
        }
        Ok(false)
    }

    /// Sets the size of a file: what is cut is gone, what is added reads as zeros.
    ///
    /// # Errors
    /// As [`Ext4::write`].
    pub fn truncate(&mut self, ino: u32, size: u64) -> Result<()> {
        if size > self.sb.max_file_size() {
            return Err(Errno::EFBIG);
        }
        let is_shorter = size < self.file(ino)?.size;
        self.set_size(ino, size, is_shorter)
    }

    /// Sets the size of a file, and gives back what is behind it, also if that was allocated for
    /// what is going to be written.
    ///
    /// # Errors
    /// As [`Ext4::write`].
    pub fn cut_to(&mut self, ino: u32, size: u64) -> Result<()> {
        if size > self.sb.max_file_size() {
            return Err(Errno::EFBIG);
        }
        self.set_size(ino, size, true)
    }

    fn set_size(&mut self, ino: u32, size: u64, is_shorter: bool) -> Result<()> {
        let block = self.size_of_block();
        let keep = u32::try_from(size.div_ceil(block)).map_err(|_| Errno::EFBIG)?;
        let done = self.transact(STEP_CREDITS, |fs| {
            let mut inode = fs.writable_file(ino)?;
            let within = size % block;
            if is_shorter && within != 0 {
                // What is behind the end would be seen if the file became longer again.
                fs.zero_in(&inode, size, block - within)?;
            }
            inode.size = size;
            inode.modified = fs.now();
            inode.changed = inode.modified;
            let done = !is_shorter || fs.cut(&mut inode, keep, 1 << 32)?;
            if done {
                fs.put_inode(&inode)?;
            } else {
                fs.add_orphan_once(&mut inode)?;
            }
            Ok(done)
        })?;
        if done {
            Ok(())
        } else {
            self.finish_truncate(ino)
        }
    }

    /// A file that has no name is on the list of orphans already.
    fn add_orphan_once(&mut self, inode: &mut Inode) -> Result<()> {
        if inode.links == 0 {
            self.put_inode(inode)
        } else {
            self.add_orphan(inode)
        }
    }

    /// Gives back what is behind the end of a file that is on the list of orphans, and takes it
    /// from the list.
    pub(crate) fn finish_truncate(&mut self, ino: u32) -> Result<()> {
        let block = self.size_of_block();
        loop {
            let done = self.transact(STEP_CREDITS, |fs| {
                let mut inode = fs.inode(ino)?;
                let keep = u32::try_from(inode.size.div_ceil(block)).map_err(|_| Errno::EFBIG)?;
                let done = !inode.has_extents() || fs.cut(&mut inode, keep, 1 << 32)?;
                if done && inode.links > 0 {
                    fs.remove_orphan(&mut inode)?;
                }
                fs.put_inode(&inode)?;
                Ok(done)
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// Gives all blocks of a file back that has no name.
    pub(crate) fn remove_contents(&mut self, ino: u32) -> Result<()> {
        loop {
            let done = self.transact(STEP_CREDITS, |fs| {
                let mut inode = fs.inode(ino)?;
                if !inode.has_extents() {
                    return fs.check_removable_blocks(&inode).map(|()| true);
                }
                let done = fs.cut(&mut inode, 0, 1 << 32)?;
                fs.put_inode(&inode)?;
                Ok(done)
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// `EINVAL` for what is none; `EUCLEAN`, `EIO`.
    pub fn read_link(&mut self, ino: u32) -> Result<alloc::vec::Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind()? != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        let len = usize::try_from(inode.size).map_err(|_| Errno::EUCLEAN)?;
        if inode.is_fast_symlink(self.sb.block_size) {
            return fallible::copy_of(inode.root.get(..len).ok_or(Errno::EUCLEAN)?);
        }
        if len == 0 || len > self.store.block_size {
            return Err(Errno::EUCLEAN);
        }
        // The block is metadata: it may be in the journal only.
        let block = self.map(&inode, 0)?.block.ok_or(Errno::EUCLEAN)?;
        let bytes = self.store.read(block)?;
        fallible::copy_of(bytes.get(..len).ok_or(Errno::EUCLEAN)?)
    }

    /// Changes owner, permission bits, times and flags; `None` stays, but for the time of the
    /// inode's change, which becomes the present.
    ///
    /// # Errors
    /// `EROFS`, `EUCLEAN`, `EIO`.
    pub fn set_attributes(&mut self, ino: u32, new: &Attributes) -> Result<()> {
        self.transact(4, |fs| {
            let mut inode = fs.inode(ino)?;
            if let Some(mode) = new.mode {
                inode.mode = inode.mode & !0o7777 | mode & 0o7777;
            }
            inode.uid = new.uid.unwrap_or(inode.uid);
            inode.gid = new.gid.unwrap_or(inode.gid);
            inode.accessed = new.accessed.unwrap_or(inode.accessed);
            inode.modified = new.modified.unwrap_or(inode.modified);
            inode.changed = new.changed.unwrap_or_else(|| fs.now());
            inode.flags = new.flags.map_or(inode.flags, |flags| {
                inode.flags & !SETTABLE_FLAGS | flags & SETTABLE_FLAGS
            });
            fs.put_inode(&inode)
        })
    }
}

/// Attributes of a file that are to be changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// Permission bits, with set-id and sticky bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<Timestamp>,
    /// Last change of the contents.
    pub modified: Option<Timestamp>,
    /// Last change of the inode.
    pub changed: Option<Timestamp>,
    /// Flags of `chattr(1)`: immutable, append only, no dump, no access times.
    pub flags: Option<u32>,
}
