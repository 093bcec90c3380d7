//! Inodes as they are on disk.

use abi::errno::Errno;
use crc32c::crc32c;

use crate::Result;
use crate::bytes::{joined, part, part_mut, put_u16, put_u32, u16_at, u32_at};
use crate::mount::Ext4;
use crate::store::Seal;
use crate::superblock::{RoCompat, Superblock};
use crate::time::Timestamp;

/// The directory has an index (`i_flags`).
pub const INDEX: u32 = 0x1000;
/// The number of blocks counts blocks of the file system.
const HUGE_FILE: u32 = 0x4_0000;
/// The contents are found by extents.
pub const EXTENTS: u32 = 0x8_0000;
const INLINE_DATA: u32 = 0x1000_0000;
const ENCRYPT: u32 = 0x800;
const EA_INODE: u32 = 0x20_0000;
/// Flags that a new file gets from its directory: not those by which that is immutable, or grows
/// only.
const INHERITED: u32 = 0x40 | 0x80 | 0x8 | 0x4 | 0x1_0000;

const CHECKSUM_LOW: usize = 0x7C;
const CHECKSUM_HIGH: usize = 0x82;
/// First byte behind the part that all inodes have.
pub const OLD_SIZE: usize = 128;
/// Bytes of an inode that is larger, with all fields that are known.
const COMMON_SIZE: usize = 160;
/// Begins extended attributes behind the fields.
pub const XATTR_MAGIC: u32 = 0xEA02_0000;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Bytes.
    Regular,
    /// Names.
    Directory,
    /// A name that leads to another.
    Symlink,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
}

impl FileType {
    /// From the upper bits of a mode.
    pub(crate) fn from_mode(mode: u16) -> Result<Self> {
        Ok(match mode >> 12 {
            0o10 => Self::Regular,
            0o4 => Self::Directory,
            0o12 => Self::Symlink,
            0o2 => Self::Char,
            0o6 => Self::Block,
            0o1 => Self::Fifo,
            0o14 => Self::Socket,
            _ => return Err(Errno::EUCLEAN),
        })
    }

    /// The upper bits of a mode.
    pub(crate) const fn mode(self) -> u16 {
        let bits = match self {
            Self::Regular => 0o10,
            Self::Directory => 0o4,
            Self::Symlink => 0o12,
            Self::Char => 0o2,
            Self::Block => 0o6,
            Self::Fifo => 0o1,
            Self::Socket => 0o14,
        };
        bits << 12
    }

    /// The number in a directory's entry.
    pub(crate) const fn entry_type(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::Char => 3,
            Self::Block => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }
}

/// An inode's fields.
#[derive(Clone, Debug)]
pub struct Inode {
    pub ino: u32,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub accessed: Timestamp,
    pub changed: Timestamp,
    pub modified: Timestamp,
    pub created: Timestamp,
    pub deleted: u32,
    pub links: u16,
    /// Blocks of 512 bytes, metadata included.
    pub sectors: u64,
    pub flags: u32,
    pub generation: u32,
    /// Block with extended attributes, or 0.
    pub xattr_block: u64,
    /// The root of the extents, block numbers, a short link's target, or a device number.
    pub root: [u8; 60],
    /// Bytes of fields behind the old 128.
    pub extra: u16,
    /// Whether it had extended attributes when it was read.
    pub has_attributes: bool,
}

/// Everything that `stat(2)` and `statx(2)` show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Number of the file.
    pub ino: u32,
    /// Kind of the file.
    pub kind: FileType,
    /// Permission bits with set-id and sticky bits.
    pub mode: u16,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes that it takes.
    pub sectors: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// When it was made, if the inode has room for that.
    pub created: Timestamp,
    /// Device number of a device's node: major, minor.
    pub device: (u32, u32),
    /// Flags of `chattr(1)`.
    pub flags: u32,
    /// Tells a file from others that had its number before.
    pub generation: u32,
    /// Whether it has extended attributes.
    pub has_attributes: bool,
}

impl Inode {
    /// A file that was just made.
    pub fn new(ino: u32, mode: u16, now: Timestamp, extra: u16, parent_flags: u32) -> Self {
        let kind = FileType::from_mode(mode);
        let mask = match kind {
            Ok(FileType::Directory) => INHERITED,
            Ok(FileType::Regular) => INHERITED & !0x1_0000,
            _ => 0x40 | 0x80,
        };
        Self {
            ino,
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            accessed: now,
            changed: now,
            modified: now,
            created: now,
            deleted: 0,
            links: 1,
            sectors: 0,
            flags: parent_flags & mask,
            generation: 0,
            xattr_block: 0,
            root: [0; 60],
            extra,
            has_attributes: false,
        }
    }

    fn decode(raw: &[u8], ino: u32, sb: &Superblock) -> Result<Self> {
        let has_extra = raw.len() > OLD_SIZE;
        let extra = if has_extra { u16_at(raw, 0x80)? } else { 0 };
        if usize::from(extra) > raw.len() - OLD_SIZE || !extra.is_multiple_of(4) {
            return Err(Errno::EUCLEAN);
        }
        let attributes = OLD_SIZE + usize::from(extra);
        let has_own = u32_at(raw, attributes) == Ok(XATTR_MAGIC);
        // Two lengths that are known take no checks of offsets.
        match raw.first_chunk::<COMMON_SIZE>() {
            Some(raw) => Self::decode_sized(raw, (ino, extra, has_own), sb),
            None => {
                let raw = raw.first_chunk::<OLD_SIZE>().ok_or(Errno::EUCLEAN)?;
                Self::decode_sized(raw, (ino, 0, has_own), sb)
            }
        }
    }

    #[inline]
    fn decode_sized(
        raw: &[u8],
        (ino, extra, has_own): (u32, u16, bool),
        sb: &Superblock,
    ) -> Result<Self> {
        let has = |end: usize| OLD_SIZE + usize::from(extra) >= end;
        let time = |at, extra_at: usize| {
            let more = if has(extra_at + 4) {
                Some(u32_at(raw, extra_at)?)
            } else {
                None
            };
            Ok(Timestamp::decode(u32_at(raw, at)?, more))
        };
        let flags = u32_at(raw, 0x20)?;
        let blocks = joined(u32_at(raw, 0x1C)?, u32::from(u16_at(raw, 0x74)?));
        let sectors = if !sb.ro_compat.contains(RoCompat::HUGE_FILE) {
            blocks & 0xFFFF_FFFF
        } else if flags & HUGE_FILE != 0 {
            blocks * u64::from(sb.block_size / 512)
        } else {
            blocks
        };
        let mode = u16_at(raw, 0)?;
        let is_large = matches!(
            FileType::from_mode(mode),
            Ok(FileType::Regular | FileType::Directory)
        );
        let size_high = if is_large { u32_at(raw, 0x6C)? } else { 0 };
        let xattr_block = joined(u32_at(raw, 0x68)?, u32::from(u16_at(raw, 0x76)?));
        Ok(Self {
            ino,
            has_attributes: has_own || xattr_block != 0,
            mode,
            uid: u32::from(u16_at(raw, 0x2)?) | u32::from(u16_at(raw, 0x78)?) << 16,
            gid: u32::from(u16_at(raw, 0x18)?) | u32::from(u16_at(raw, 0x7A)?) << 16,
            size: joined(u32_at(raw, 0x4)?, size_high),
            accessed: time(0x8, 0x8C)?,
            changed: time(0xC, 0x84)?,
            modified: time(0x10, 0x88)?,
            created: if has(0x98) {
                time(0x90, 0x94)?
            } else {
                Timestamp::default()
            },
            deleted: u32_at(raw, 0x14)?,
            links: u16_at(raw, 0x1A)?,
            sectors,
            flags,
            generation: u32_at(raw, 0x64)?,
            xattr_block,
            root: *part(raw, 0x28, 60)?.first_chunk().ok_or(Errno::EUCLEAN)?,
            extra,
        })
    }

    fn encode(&self, raw: &mut [u8], sb: &Superblock) -> Result<()> {
        if raw.len() > OLD_SIZE {
            put_u16(raw, 0x80, self.extra)?;
        }
        match raw.first_chunk_mut::<COMMON_SIZE>() {
            Some(raw) => self.encode_sized(raw, sb),
            None => {
                let raw = raw.first_chunk_mut::<OLD_SIZE>();
                self.encode_sized(raw.ok_or(Errno::EUCLEAN)?, sb)
            }
        }
    }

    #[inline]
    fn encode_sized(&self, raw: &mut [u8], sb: &Superblock) -> Result<()> {
        let has = |end: usize| OLD_SIZE + usize::from(self.extra) >= end;
        put_u16(raw, 0x0, self.mode)?;
        put_u16(raw, 0x2, self.uid as u16)?;
        put_u16(raw, 0x78, (self.uid >> 16) as u16)?;
        put_u16(raw, 0x18, self.gid as u16)?;
        put_u16(raw, 0x7A, (self.gid >> 16) as u16)?;
        put_u32(raw, 0x4, self.size as u32)?;
        put_u32(raw, 0x6C, (self.size >> 32) as u32)?;
        for (time, at, extra_at) in [
            (self.accessed, 0x8, 0x8C),
            (self.changed, 0xC, 0x84),
            (self.modified, 0x10, 0x88),
            (self.created, 0x90, 0x94),
        ] {
            let has_more = has(extra_at + 4);
            let (seconds, more) = time.encode(has_more);
            if at < OLD_SIZE || has(at + 4) {
                put_u32(raw, at, seconds)?;
            }
            if has_more {
                put_u32(raw, extra_at, more)?;
            }
        }
        put_u32(raw, 0x14, self.deleted)?;
        put_u16(raw, 0x1A, self.links)?;
        let mut flags = self.flags & !HUGE_FILE;
        let mut blocks = self.sectors;
        if blocks >> 48 != 0 {
            flags |= HUGE_FILE;
            blocks /= u64::from(sb.block_size / 512);
        }
        let limit = if sb.ro_compat.contains(RoCompat::HUGE_FILE) {
            48
        } else {
            32
        };
        if blocks >> limit != 0 {
            return Err(Errno::EFBIG);
        }
        put_u32(raw, 0x1C, blocks as u32)?;
        put_u16(raw, 0x74, (blocks >> 32) as u16)?;
        put_u32(raw, 0x20, flags)?;
        put_u32(raw, 0x64, self.generation)?;
        put_u32(raw, 0x68, self.xattr_block as u32)?;
        put_u16(raw, 0x76, (self.xattr_block >> 32) as u16)?;
        part_mut(raw, 0x28, 60)?.copy_from_slice(&self.root);
        Ok(())
    }

    /// The kind of file.
    pub fn kind(&self) -> Result<FileType> {
        FileType::from_mode(self.mode)
    }

    /// Whether its contents are found by extents.
    pub const fn has_extents(&self) -> bool {
        self.flags & EXTENTS != 0
    }

    /// Whether a link's target is in the inode itself.
    pub fn is_fast_symlink(&self, block_size: u32) -> bool {
        let is_link = self.kind() == Ok(FileType::Symlink);
        is_link && !self.has_extents() && !self.has_block_map(block_size)
    }

    /// Whether it has blocks that are found by a map of ext2, and so cannot be given back.
    pub fn has_block_map(&self, block_size: u32) -> bool {
        let may = matches!(
            self.kind(),
            Ok(FileType::Regular | FileType::Directory | FileType::Symlink)
        );
        let xattr = if self.xattr_block == 0 {
            0
        } else {
            u64::from(block_size / 512)
        };
        may && !self.has_extents() && self.sectors != xattr
    }

    /// Device number of a node: major, minor.
    fn device(&self) -> Result<(u32, u32)> {
        let old = u32_at(&self.root, 0)?;
        if old != 0 {
            return Ok((old >> 8 & 0xFF, old & 0xFF));
        }
        let new = u32_at(&self.root, 4)?;
        Ok((new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00))
    }

    /// Makes it a device's node.
    pub fn set_device(&mut self, major: u32, minor: u32) -> Result<()> {
        if major < 256 && minor < 256 {
            put_u32(&mut self.root, 0, major << 8 | minor)
        } else {
            put_u32(
                &mut self.root,
                4,
                minor & 0xFF | major << 8 | (minor & !0xFF) << 12,
            )
        }
    }

    /// Start value of the checksums of all that belongs to this inode.
    pub fn checksum_seed(&self, sb: &Superblock) -> u32 {
        checksum_seed(sb, self.ino, self.generation)
    }
}

/// Start value of the checksums of all that belongs to an inode.
pub fn checksum_seed(sb: &Superblock, ino: u32, generation: u32) -> u32 {
    let sum = crc32c(sb.checksum_seed, &ino.to_le_bytes());
    crc32c(sum, &generation.to_le_bytes())
}

/// Checksum of an inode, and whether the inode has room for the upper half.
fn checksum(raw: &[u8], ino: u32, sb: &Superblock) -> Result<(u32, bool)> {
    let seed = crc32c(sb.checksum_seed, &ino.to_le_bytes());
    let seed = crc32c(seed, part(raw, 0x64, 4)?);
    let mut sum = crc32c(seed, part(raw, 0, CHECKSUM_LOW)?);
    sum = crc32c(sum, &[0; 2]);
    sum = crc32c(sum, part(raw, CHECKSUM_LOW + 2, 2)?);
    if raw.len() == OLD_SIZE {
        return Ok((sum & 0xFFFF, false));
    }
    let has_high = u16_at(raw, 0x80)? >= 4;
    sum = crc32c(sum, part(raw, OLD_SIZE, 2)?);
    sum = if has_high {
        crc32c(sum, &[0; 2])
    } else {
        crc32c(sum, part(raw, CHECKSUM_HIGH, 2)?)
    };
    sum = crc32c(sum, raw.get(CHECKSUM_HIGH + 2..).ok_or(Errno::EUCLEAN)?);
    Ok((if has_high { sum } else { sum & 0xFFFF }, has_high))
}

/// Sets the checksum of an inode.
fn seal(raw: &mut [u8], ino: u32, sb: &Superblock) -> Result<()> {
    if !sb.has_checksums() {
        return Ok(());
    }
    let (sum, has_high) = checksum(raw, ino, sb)?;
    put_u16(raw, CHECKSUM_LOW, sum as u16)?;
    if has_high {
        put_u16(raw, CHECKSUM_HIGH, (sum >> 16) as u16)
    } else {
        Ok(())
    }
}

impl Ext4 {
    /// Block of the inode table with an inode, the offset there, and the number of its slot.
    fn inode_place(&self, ino: u32) -> Result<(u64, usize, u32)> {
        let index = ino.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        if ino > self.sb.inodes_count {
            return Err(Errno::EUCLEAN);
        }
        let group = (index / self.sb.inodes_per_group) as usize;
        let table = self.inode_tables.get(group).ok_or(Errno::EUCLEAN)?;
        let within = index % self.sb.inodes_per_group;
        let per_block = self.sb.inodes_per_block();
        let slot = within % per_block;
        let at = (slot * self.sb.inode_size) as usize;
        Ok((table + u64::from(within / per_block), at, slot))
    }

    /// Has `look` at the bytes of an inode, whose checksum is right.
    #[inline]
    pub(crate) fn look_at_inode<R>(
        &mut self,
        ino: u32,
        look: impl FnOnce(&[u8], &Superblock) -> Result<R>,
    ) -> Result<R> {
        let (block, at, slot) = self.inode_place(ino)?;
        let (sb, size) = (&self.sb, self.sb.inode_size as usize);
        self.store.look_verified(block, slot, |bytes, is_verified| {
            let raw = part(bytes, at, size)?;
            if sb.has_checksums() && !is_verified {
                let (sum, has_high) = checksum(raw, ino, sb)?;
                let high = if has_high {
                    u16_at(raw, CHECKSUM_HIGH)?
                } else {
                    0
                };
                if u32::from(u16_at(raw, CHECKSUM_LOW)?) | u32::from(high) << 16 != sum {
                    return Err(Errno::EUCLEAN);
                }
            }
            look(raw, sb)
        })
    }

    /// An inode, in use or not.
    #[inline]
    pub(crate) fn any_inode(&mut self, ino: u32) -> Result<Inode> {
        self.look_at_inode(ino, |raw, sb| Inode::decode(raw, ino, sb))
    }

    /// An inode of a file that there is.
    pub(crate) fn inode(&mut self, ino: u32) -> Result<Inode> {
        if ino != crate::ROOT && ino < self.sb.first_inode {
            return Err(Errno::EUCLEAN);
        }
        let inode = self.any_inode(ino)?;
        let kind = inode.kind()?;
        if inode.flags & (INLINE_DATA | ENCRYPT | EA_INODE) != 0 || inode.size >> 63 != 0 {
            return Err(Errno::EUCLEAN);
        }
        if kind == FileType::Directory && !inode.size.is_multiple_of(u64::from(self.sb.block_size))
        {
            return Err(Errno::EUCLEAN);
        }
        Ok(inode)
    }

    /// Stores an inode.
    pub(crate) fn put_inode(&mut self, inode: &Inode) -> Result<()> {
        self.edit_inode(inode.ino, |raw, sb| inode.encode(raw, sb))
    }

    /// Makes the bytes of an inode zeros, and stores it.
    pub(crate) fn put_new_inode(&mut self, inode: &Inode) -> Result<()> {
        self.edit_inode(inode.ino, |raw, sb| {
            raw.fill(0);
            inode.encode(raw, sb)
        })
    }

    /// Changes the bytes of an inode.
    pub(crate) fn edit_inode<R>(
        &mut self,
        ino: u32,
        change: impl FnOnce(&mut [u8], &Superblock) -> Result<R>,
    ) -> Result<R> {
        let (block, at, slot) = self.inode_place(ino)?;
        let (sb, size) = (&self.sb, self.sb.inode_size as usize);
        let unsealed = (Seal::Inodes(ino - slot), slot);
        self.store
            .edit_part(block, (at, size), Some(unsealed), |raw| change(raw, sb))
    }

    /// Sets the checksums of inodes in a block of the transaction: `first` is the number of the
    /// block's first one, `slots` has a bit for each.
    pub(crate) fn seal_inodes(&mut self, block: u64, first: u32, slots: u64) -> Result<()> {
        let (sb, size) = (&self.sb, self.sb.inode_size as usize);
        self.store.seal(block, |bytes| {
            for (slot, raw) in (0..u64::BITS).zip(bytes.chunks_exact_mut(size)) {
                if slots & 1 << slot != 0 {
                    seal(raw, first + slot, sb)?;
                }
            }
            Ok(())
        })
    }

    /// Everything that `stat(2)` shows of a file.
    ///
    /// # Errors
    /// `EUCLEAN`, `EIO`.
    pub fn stat(&mut self, ino: u32) -> Result<Stat> {
        let inode = self.inode(ino)?;
        let kind = inode.kind()?;
        let device = match kind {
            FileType::Char | FileType::Block => inode.device()?,
            _ => (0, 0),
        };
        Ok(Stat {
            ino,
            kind,
            mode: inode.mode & 0o7777,
            links: inode.links.into(),
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            sectors: inode.sectors,
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
            created: inode.created,
            device,
            flags: inode.flags,
            generation: inode.generation,
            has_attributes: inode.has_attributes,
        })
    }
}
