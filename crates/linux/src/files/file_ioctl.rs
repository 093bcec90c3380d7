//! Requests of `ioctl(2)` that are about files of a file system, whatever is in them.

use abi::errno::Errno;
use fs::attributes::{self, FileAttributes};
use fs::ioctl::IoctlRequest;
use fs::{File, FileType, OpenFlags};
use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl;
use uapi::fd::Fd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::files::fallocate;
use crate::{SysResult, Task};

/// Numbers of requests (`linux/fs.h`, `linux/falloc.h`, `linux/fiemap.h`) that have a structure's
/// size in them.
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;
const FIFREEZE: u32 = 0xc004_5877;
const FITHAW: u32 = 0xc004_5878;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const FS_IOC_RESVSP: u32 = 0x4030_5828;
const FS_IOC_UNRESVSP: u32 = 0x4030_5829;
const FS_IOC_RESVSP64: u32 = 0x4030_582a;
const FS_IOC_UNRESVSP64: u32 = 0x4030_582b;
const FS_IOC_ZERO_RANGE: u32 = 0x4030_5839;

/// Bytes of a unit of `st_blocks`.
const BLOCK: u64 = 512;

/// Answers a request about a file.
///
/// # Errors
/// `ENOTTY` for one that is not known here.
pub(super) fn call(task: &Task, file: &File, request: &IoctlRequest<'_>) -> SysResult {
    let kind = file.inode().kind();
    let regular = kind == FileType::Regular;
    match request.command {
        ioctl::FIONREAD if regular => {
            let size = file.metadata().size as i64;
            let rest = size.wrapping_sub(file.with_offset(|offset| *offset) as i64);
            // As on Linux the low half, and a position behind the end makes it negative.
            request.write(&(rest as i32))?;
        }
        ioctl::FIOQSIZE
            if matches!(
                kind,
                FileType::Regular | FileType::Directory | FileType::Symlink
            ) =>
        {
            request.write(&(file.metadata().blocks * BLOCK))?;
        }
        ioctl::FIGETBSZ => {
            let size = file.path().mount().fs().statfs().block_size;
            request.write(&i32::try_from(size).map_err(|_| Errno::EINVAL)?)?;
        }
        ioctl::FIBMAP if regular => {
            if !task.cred().capable(sys::CAP_SYS_RAWIO) {
                return Err(Errno::EPERM);
            }
            let block = request.read::<i32>()?;
            if block >= 0 {
                // No block of a medium.
                request.write(&0_i32)?;
            }
            return Err(Errno::EINVAL);
        }
        ioctl::FS_IOC_GETFLAGS => request.write(&file.inode().attributes()?.bits())?,
        FS_IOC_SETFLAGS => {
            attributes::set(file.path(), request.read()?, &task.fs_cred())?;
        }
        FS_IOC_FSGETXATTR => {
            let bits = file.inode().attributes()?.bits();
            request.write(&ExtendedFlags::of_attributes(bits))?;
        }
        FS_IOC_FSSETXATTR => {
            let bits = request.read::<ExtendedFlags>()?.attributes()?;
            attributes::set(file.path(), bits, &task.fs_cred())?;
        }
        // Whoever may would have to find a file system that can be frozen.
        FIFREEZE | FITHAW if !request.caller.privileged() => return Err(Errno::EPERM),
        FIFREEZE => return Err(Errno::EOPNOTSUPP),
        FITHAW => return Err(Errno::EINVAL),
        FS_IOC_FIEMAP => return Err(Errno::EOPNOTSUPP),
        FICLONE => return refuse_clone(task, Fd::new(request.arg as i32), file),
        FICLONERANGE => {
            let range = request.read::<CloneRange>()?;
            return refuse_clone(task, Fd::new(range.source as i32), file);
        }
        FIDEDUPERANGE => return refuse_deduplication(file, request),
        FS_IOC_RESVSP | FS_IOC_RESVSP64 if regular => {
            return space(task, file, request, 0);
        }
        FS_IOC_UNRESVSP | FS_IOC_UNRESVSP64 if regular => {
            return space(task, file, request, sys::FALLOC_FL_PUNCH_HOLE);
        }
        FS_IOC_ZERO_RANGE if regular => {
            return space(task, file, request, sys::FALLOC_FL_ZERO_RANGE);
        }
        _ => return Err(Errno::ENOTTY),
    }
    Ok(0)
}

/// `struct fsxattr`: attributes as XFS has them, and what no file system here has.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct ExtendedFlags {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

impl ExtendedFlags {
    /// Bits (`FS_XFLAG_*`), and those of [`FileAttributes`].
    const PAIRS: [(u32, FileAttributes); 4] = [
        (0x08, FileAttributes::IMMUTABLE),
        (0x10, FileAttributes::APPEND),
        (0x40, FileAttributes::NOATIME),
        (0x80, FileAttributes::NODUMP),
    ];

    fn of_attributes(bits: u32) -> Self {
        let has = |attribute: FileAttributes| bits & attribute.bits() != 0;
        let pairs = Self::PAIRS.into_iter();
        Self {
            flags: pairs
                .filter(|&(_, attribute)| has(attribute))
                .fold(0, |flags, (flag, _)| flags | flag),
            extent_size: 0,
            extents: 0,
            project: 0,
            copy_extent_size: 0,
            padding: [0; 8],
        }
    }

    /// The attributes that are meant.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what no file system here has.
    fn attributes(&self) -> Result<u32, Errno> {
        let mut rest = self.flags;
        let mut bits = 0;
        for (flag, attribute) in Self::PAIRS {
            if rest & flag != 0 {
                bits |= attribute.bits();
                rest &= !flag;
            }
        }
        if rest != 0 || self.extent_size != 0 || self.project != 0 || self.copy_extent_size != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(bits)
    }
}

/// `struct file_clone_range`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct CloneRange {
    source: i64,
    offset: u64,
    len: u64,
    to: u64,
}

/// Refuses to share contents between two files: no file system here can do that.
fn refuse_clone(task: &Task, from: Fd, to: &File) -> SysResult {
    let from = &*task.files().get_io(from)?;
    let kinds = [from, to].map(|file| file.inode().kind());
    if from.metadata().dev != to.metadata().dev {
        return Err(Errno::EXDEV);
    }
    if kinds.contains(&FileType::Directory) {
        return Err(Errno::EISDIR);
    }
    if kinds != [FileType::Regular; 2] {
        return Err(Errno::EINVAL);
    }
    let may = from.flags().is_readable()
        && to.flags().is_writable()
        && !to.flags().contains(OpenFlags::APPEND);
    Err(if may { Errno::EOPNOTSUPP } else { Errno::EBADF })
}

/// The beginning of `struct file_dedupe_range`, behind which its files are.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct DedupeRange {
    offset: u64,
    len: u64,
    count: u16,
    reserved1: u16,
    reserved2: u32,
}

/// Size of what stands behind for each file.
const DEDUPE_FILE: usize = 32;

/// Refuses to make equal ranges of files one: no file system here can do that.
fn refuse_deduplication(file: &File, request: &IoctlRequest<'_>) -> SysResult {
    let range = request.read::<DedupeRange>()?;
    if size_of::<DedupeRange>() + usize::from(range.count) * DEDUPE_FILE > vm::PAGE_SIZE {
        return Err(Errno::ENOMEM);
    }
    if !file.flags().is_readable() || range.reserved1 != 0 || range.reserved2 != 0 {
        return Err(Errno::EINVAL);
    }
    Err(match file.inode().kind() {
        FileType::Directory => Errno::EISDIR,
        FileType::Regular => Errno::EOPNOTSUPP,
        _ => Errno::EINVAL,
    })
}

/// `struct space_resv`: a range of a file, as XFS had it first.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Space {
    kind: i16,
    whence: i16,
    padding: u32,
    start: i64,
    len: i64,
    unused: [u32; 6],
}

/// Does to a range of a file what `fallocate(2)` does with these mode bits, and leaves its size.
fn space(task: &Task, file: &File, request: &IoctlRequest<'_>, mode: u32) -> SysResult {
    let space = request.read::<Space>()?;
    let base = match space.whence as u32 {
        sys::SEEK_SET => 0,
        sys::SEEK_CUR => file.with_offset(|offset| *offset) as i64,
        sys::SEEK_END => file.metadata().size as i64,
        _ => return Err(Errno::EINVAL),
    };
    let start = base.wrapping_add(space.start);
    fallocate::allocate(
        task,
        file,
        mode | sys::FALLOC_FL_KEEP_SIZE,
        start,
        space.len,
    )
}
