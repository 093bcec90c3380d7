//! The superblock: sizes, features, and which of them are refused.

use alloc::format;
use alloc::string::String;
use core::fmt;

use abi::errno::Errno;
use crc32c::crc32c;

use crate::Result;
use crate::bytes::{joined, part, put_u32, u8_at, u16_at, u32_at};

/// First byte of the superblock on the device.
pub const OFFSET: u64 = 1024;
/// Bytes of a superblock.
pub const SIZE: usize = 1024;
const MAGIC: u16 = 0xEF53;

/// Offsets of what is changed while it is mounted.
pub mod field {
    pub const FREE_BLOCKS_LOW: usize = 0x0C;
    pub const FREE_INODES: usize = 0x10;
    pub const MOUNT_TIME: usize = 0x2C;
    pub const WRITE_TIME: usize = 0x30;
    pub const MOUNT_COUNT: usize = 0x34;
    pub const STATE: usize = 0x3A;
    pub const INCOMPAT: usize = 0x60;
    pub const RO_COMPAT: usize = 0x64;
    pub const LAST_ORPHAN: usize = 0xE8;
    pub const FREE_BLOCKS_HIGH: usize = 0x158;
    pub const CHECKSUM: usize = 0x3FC;
}

/// The file system was unmounted (`s_state`).
pub const STATE_VALID: u16 = 1;
/// Errors were found in it (`s_state`).
pub const STATE_ERROR: u16 = 2;

bitflags::bitflags! {
    /// Features that change nothing for who does not know them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Compat: u32 {
        const HAS_JOURNAL = 0x4;
        const DIR_INDEX = 0x20;
        const SPARSE_SUPER2 = 0x200;
        const _ = !0;
    }

    /// Features that who does not know them must not mount.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompat: u32 {
        const FILETYPE = 0x2;
        const RECOVER = 0x4;
        const EXTENTS = 0x40;
        const BITS_64 = 0x80;
        const FLEX_BG = 0x200;
        const CSUM_SEED = 0x2000;
        const LARGE_DIR = 0x4000;
        const _ = !0;
    }

    /// Features that who does not know them may only read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        const SPARSE_SUPER = 0x1;
        const LARGE_FILE = 0x2;
        const HUGE_FILE = 0x8;
        const GDT_CSUM = 0x10;
        const DIR_NLINK = 0x20;
        const EXTRA_ISIZE = 0x40;
        const BIGALLOC = 0x200;
        const METADATA_CSUM = 0x400;
        const _ = !0;
    }
}

const INCOMPAT_KNOWN: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::EXTENTS)
    .union(Incompat::BITS_64)
    .union(Incompat::FLEX_BG)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGE_DIR);
const RO_COMPAT_WRITABLE: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM);

/// Names of incompatible features by bit, as `mkfs.ext4 -O` has them.
const INCOMPAT_NAMES: [(u32, &str); 17] = [
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
    (0x4_0000, "an unknown incompatible feature"),
];
/// Names of features that permit reading.
const RO_COMPAT_NAMES: [(u32, &str); 7] = [
    (0x100, "quota"),
    (0x800, "replica"),
    (0x1000, "readonly"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_file in use"),
];

/// A reason why a file system is not mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountError {
    /// The device failed, or memory was short.
    Failed(Errno),
    /// There is no ext4 file system.
    NotExt4,
    /// The part with this name is damaged.
    Damaged(&'static str),
    /// The feature with this name is not supported.
    Unsupported(String),
    /// The feature with this name permits reading only.
    ReadOnlyFeature(String),
    /// The journal has to be replayed, and the device is read-only.
    NeedsRecovery,
}

impl MountError {
    /// The error that `mount(2)` returns.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Failed(errno) => *errno,
            Self::NotExt4 | Self::Unsupported(_) => Errno::EINVAL,
            Self::Damaged(_) => Errno::EUCLEAN,
            Self::ReadOnlyFeature(_) | Self::NeedsRecovery => Errno::EROFS,
        }
    }
}

impl From<Errno> for MountError {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(errno) => write!(f, "{}", errno.text()),
            Self::NotExt4 => f.write_str("there is no ext4 file system"),
            Self::Damaged(part) => write!(f, "damaged: {part}; run e2fsck"),
            Self::Unsupported(name) => write!(f, "the feature {name} is not supported"),
            Self::ReadOnlyFeature(name) => {
                write!(
                    f,
                    "the feature {name} permits reading only: mount it read-only"
                )
            }
            Self::NeedsRecovery => {
                f.write_str("its journal must be replayed: it has to be writable")
            }
        }
    }
}

/// Kind of checksum that group descriptors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChecksum {
    /// None.
    None,
    /// CRC-16 (`uninit_bg`).
    Crc16,
    /// CRC-32C (`metadata_csum`).
    Crc32c,
}

/// Fields of the superblock that do not change while it is mounted.
#[derive(Clone, Debug)]
pub struct Superblock {
    pub block_size: u32,
    pub blocks_count: u64,
    pub reserved_blocks: u64,
    pub first_data_block: u32,
    pub blocks_per_group: u32,
    pub inodes_per_group: u32,
    pub inodes_count: u32,
    pub first_inode: u32,
    pub inode_size: u32,
    pub desc_size: u32,
    pub groups: u32,
    pub reserved_gdt_blocks: u32,
    pub backup_groups: [u32; 2],
    pub compat: Compat,
    pub incompat: Incompat,
    pub ro_compat: RoCompat,
    pub state: u16,
    pub uuid: [u8; 16],
    pub checksum_seed: u32,
    pub hash_seed: [u32; 4],
    /// Hash of new indexed directories, and whether names are bytes without sign.
    pub hash_version: u8,
    pub hash_unsigned: bool,
    pub journal_inode: u32,
    pub last_orphan: u32,
    pub want_extra_isize: u16,
}

/// Names by which a file system is found, wherever its disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number that nobody else has (`UUID`), in the order in which it is shown.
    pub uuid: [u8; 16],
    /// Name that somebody gave it (`LABEL`), zeros behind it.
    pub label: [u8; 16],
}

impl Identity {
    /// Place of the superblock on a disk.
    pub const OFFSET: u64 = 1024;
    /// Length of the superblock.
    pub const BYTES: usize = SIZE;

    /// Reads the names in a superblock, whether or not it can be mounted. `None`: it is none.
    #[must_use]
    pub fn parse(raw: &[u8; Self::BYTES]) -> Option<Self> {
        if u16_at(raw, 0x38).ok()? != MAGIC {
            return None;
        }
        Some(Self {
            uuid: *part(raw, 0x68, 16).ok()?.first_chunk()?,
            label: *part(raw, 0x78, 16).ok()?.first_chunk()?,
        })
    }
}

impl Superblock {
    /// Reads and checks a superblock of a device with so many bytes.
    pub fn parse(raw: &[u8], device_size: u64) -> core::result::Result<Self, MountError> {
        if raw.len() != SIZE || u16_at(raw, 0x38)? != MAGIC {
            return Err(MountError::NotExt4);
        }
        let incompat = Incompat::from_bits_retain(u32_at(raw, field::INCOMPAT)?);
        let ro_compat = RoCompat::from_bits_retain(u32_at(raw, field::RO_COMPAT)?);
        let revision = u32_at(raw, 0x4C)?;
        if revision != 1 {
            return Err(MountError::Unsupported(format!("revision {revision}")));
        }
        if ro_compat.contains(RoCompat::METADATA_CSUM)
            && (u8_at(raw, 0x175)? != 1 || checksum(raw)? != u32_at(raw, field::CHECKSUM)?)
        {
            return Err(MountError::Damaged("superblock checksum"));
        }
        let unknown = incompat.difference(INCOMPAT_KNOWN);
        if !unknown.is_empty() {
            let name = name_of(
                &INCOMPAT_NAMES,
                unknown.bits(),
                "an unknown incompatible feature",
            );
            return Err(MountError::Unsupported(name));
        }
        if ro_compat.contains(RoCompat::BIGALLOC) {
            // Its bitmaps are of clusters: not even the sizes mean the same.
            return Err(MountError::Unsupported("bigalloc".into()));
        }
        let is_64bit = incompat.contains(Incompat::BITS_64);
        let high_part = |at| if is_64bit { u32_at(raw, at) } else { Ok(0) };
        let uuid = *part(raw, 0x68, 16)?.first_chunk().ok_or(Errno::EUCLEAN)?;
        let checksum_seed = if incompat.contains(Incompat::CSUM_SEED) {
            u32_at(raw, 0x270)?
        } else {
            crc32c(!0, &uuid)
        };
        let log_block = u32_at(raw, 0x18)?;
        if log_block > 2 {
            return Err(MountError::Unsupported(format!(
                "block size 2^{log_block} KiB"
            )));
        }
        let mut hash_seed = [0; 4];
        for (index, word) in hash_seed.iter_mut().enumerate() {
            *word = u32_at(raw, 0xEC + 4 * index)?;
        }
        let mut this = Self {
            block_size: 1024 << log_block,
            blocks_count: joined(u32_at(raw, 0x4)?, high_part(0x150)?),
            reserved_blocks: joined(u32_at(raw, 0x8)?, high_part(0x154)?),
            first_data_block: u32_at(raw, 0x14)?,
            blocks_per_group: u32_at(raw, 0x20)?,
            inodes_per_group: u32_at(raw, 0x28)?,
            inodes_count: u32_at(raw, 0)?,
            first_inode: u32_at(raw, 0x54)?,
            inode_size: u32::from(u16_at(raw, 0x58)?),
            desc_size: if is_64bit {
                u32::from(u16_at(raw, 0xFE)?)
            } else {
                32
            },
            groups: 0,
            reserved_gdt_blocks: u32::from(u16_at(raw, 0xCE)?),
            backup_groups: [u32_at(raw, 0x24C)?, u32_at(raw, 0x250)?],
            compat: Compat::from_bits_retain(u32_at(raw, 0x5C)?),
            incompat,
            ro_compat,
            state: u16_at(raw, field::STATE)?,
            uuid,
            checksum_seed,
            hash_seed,
            hash_version: u8_at(raw, 0xFC)?,
            hash_unsigned: u32_at(raw, 0x160)? & 2 != 0,
            journal_inode: u32_at(raw, 0xE0)?,
            last_orphan: u32_at(raw, field::LAST_ORPHAN)?,
            want_extra_isize: u16_at(raw, 0x15E)?,
        };
        this.check_sizes(raw, device_size)?;
        Ok(this)
    }

    fn check_sizes(
        &mut self,
        raw: &[u8],
        device_size: u64,
    ) -> core::result::Result<(), MountError> {
        let damaged = |right: bool, name| {
            if right {
                Ok(())
            } else {
                Err(MountError::Damaged(name))
            }
        };
        let bits = self.block_size * 8;
        damaged(
            self.inode_size.is_power_of_two() && (128..=self.block_size).contains(&self.inode_size),
            "inode size",
        )?;
        let is_64bit = self.incompat.contains(Incompat::BITS_64);
        let smallest = if is_64bit { 64 } else { 32 };
        damaged(
            self.desc_size.is_power_of_two() && (smallest..=1024).contains(&self.desc_size),
            "group descriptor size",
        )?;
        let cluster = u32_at(raw, 0x1C)?;
        damaged(cluster == self.block_size.ilog2() - 10, "cluster size")?;
        damaged(
            (8..=bits).contains(&self.blocks_per_group) && self.blocks_per_group.is_multiple_of(8),
            "blocks per group",
        )?;
        damaged(
            (8..=bits).contains(&self.inodes_per_group)
                && self.inodes_per_group.is_multiple_of(8)
                && self.inodes_per_group >= self.inodes_per_block(),
            "inodes per group",
        )?;
        damaged(
            self.first_data_block == u32::from(self.block_size == 1024),
            "first data block",
        )?;
        damaged(
            self.blocks_count > u64::from(self.first_data_block) + 1
                && self.blocks_count <= device_size / u64::from(self.block_size)
                && self.blocks_count < 1 << 48,
            "number of blocks (more than the device has?)",
        )?;
        let groups = (self.blocks_count - u64::from(self.first_data_block))
            .div_ceil(u64::from(self.blocks_per_group));
        damaged(
            groups * u64::from(self.inodes_per_group) == u64::from(self.inodes_count),
            "number of inodes",
        )?;
        self.groups = groups as u32;
        damaged(
            (11..=self.inodes_count).contains(&self.first_inode),
            "first inode",
        )?;
        damaged(
            self.reserved_gdt_blocks <= self.block_size / 4,
            "reserved group descriptors",
        )?;
        Ok(())
    }

    /// Checks that it may be changed.
    pub fn check_writable(&self) -> core::result::Result<(), MountError> {
        let unknown = self.ro_compat.difference(RO_COMPAT_WRITABLE);
        if unknown.is_empty() {
            return Ok(());
        }
        let name = name_of(
            &RO_COMPAT_NAMES,
            unknown.bits(),
            "an unknown read-only compatible feature",
        );
        Err(MountError::ReadOnlyFeature(name))
    }

    /// Kind of checksum that group descriptors have.
    pub fn group_checksum(&self) -> GroupChecksum {
        if self.ro_compat.contains(RoCompat::METADATA_CSUM) {
            GroupChecksum::Crc32c
        } else if self.ro_compat.contains(RoCompat::GDT_CSUM) {
            GroupChecksum::Crc16
        } else {
            GroupChecksum::None
        }
    }

    /// Whether metadata has checksums.
    pub fn has_checksums(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Inodes in a block of the inode table.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / self.inode_size
    }

    /// Blocks of a group's inode table.
    pub fn table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Block with the superblock, and its offset there.
    pub fn place(&self) -> (u64, usize) {
        if self.block_size == 1024 {
            (1, 0)
        } else {
            (0, OFFSET as usize)
        }
    }

    /// Blocks of the group descriptor table.
    pub fn gdt_blocks(&self) -> u64 {
        (u64::from(self.groups) * u64::from(self.desc_size)).div_ceil(u64::from(self.block_size))
    }

    /// First block of a group.
    pub fn group_start(&self, group: u32) -> u64 {
        u64::from(self.first_data_block) + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Blocks of a group: the last one may have fewer.
    pub fn group_blocks(&self, group: u32) -> u32 {
        let left = self.blocks_count.saturating_sub(self.group_start(group));
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Group of a block, and the block's number there.
    pub fn group_of(&self, block: u64) -> (u32, u32) {
        let from = block.saturating_sub(u64::from(self.first_data_block));
        let per = u64::from(self.blocks_per_group);
        ((from / per) as u32, (from % per) as u32)
    }

    /// Whether a group begins with a copy of the superblock and of the descriptors.
    pub fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if group == 1 || !self.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3_u32, 5, 7].iter().any(|&base| {
            core::iter::successors(Some(base), |power| power.checked_mul(base))
                .take_while(|&power| power <= group)
                .any(|power| power == group)
        })
    }

    /// Largest size of a file with extents, in bytes.
    pub fn max_file_size(&self) -> u64 {
        (u64::from(u32::MAX) - 1) * u64::from(self.block_size)
    }
}

fn name_of(names: &[(u32, &str)], bits: u32, otherwise: &str) -> String {
    let known = names.iter().find(|(bit, _)| bits & bit != 0);
    known.map_or(otherwise, |(_, name)| name).into()
}

fn checksum(raw: &[u8]) -> Result<u32> {
    Ok(crc32c(!0, part(raw, 0, field::CHECKSUM)?))
}

/// Sets the checksum of a superblock.
pub fn seal(raw: &mut [u8]) -> Result<()> {
    let sum = checksum(raw)?;
    put_u32(raw, field::CHECKSUM, sum)
}
