//! What files are: `stat(2)`, `statx(2)`, `access(2)`, `statfs(2)`, `ustat(2)`.

use abi::errno::Errno;
use fs::mount::{MS_NOSYMFOLLOW, Mount};
use fs::{Access, FileType, Metadata, Timestamp};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::files::namei::lookup_at;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Time {
    sec: i64,
    nsec: u64,
}

impl From<Timestamp> for Time {
    fn from(t: Timestamp) -> Self {
        Self {
            sec: t.sec,
            nsec: u64::from(t.nsec),
        }
    }
}

/// `struct stat` of x86-64.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Stat {
    dev: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    padding: u32,
    rdev: u64,
    size: i64,
    blksize: i64,
    blocks: i64,
    atime: Time,
    mtime: Time,
    ctime: Time,
    unused: [i64; 3],
}

const _: () = assert!(size_of::<Stat>() == 144);

impl From<Metadata> for Stat {
    fn from(m: Metadata) -> Self {
        Self {
            dev: m.dev,
            ino: m.ino,
            nlink: u64::from(m.nlink),
            mode: m.kind.mode_bits() | m.mode,
            uid: m.uid,
            gid: m.gid,
            padding: 0,
            rdev: m.rdev,
            size: m.size as i64,
            blksize: i64::from(m.blksize),
            blocks: m.blocks as i64,
            atime: m.atime.into(),
            mtime: m.mtime.into(),
            ctime: m.ctime.into(),
            unused: [0; 3],
        }
    }
}

const AT_STAT_FLAGS: u32 = sys::AT_SYMLINK_NOFOLLOW | sys::AT_EMPTY_PATH | sys::AT_NO_AUTOMOUNT;

/// `newfstatat(2)`: stores a file's attributes, from a directory on.
pub fn sys_newfstatat(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    to: UserPtr<Stat>,
    flags: u32,
) -> SysResult {
    if flags & !AT_STAT_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    to.write(&lookup_at(task, dirfd, name, flags)?.metadata().into())?;
    Ok(0)
}

/// `stat(2)`: stores the attributes of a path.
pub fn sys_stat(task: &Task, name: UserAddr, to: UserPtr<Stat>) -> SysResult {
    sys_newfstatat(task, Fd::CWD, name, to, 0)
}

/// `lstat(2)`: stores the attributes of a path; a symbolic link's own.
pub fn sys_lstat(task: &Task, name: UserAddr, to: UserPtr<Stat>) -> SysResult {
    sys_newfstatat(task, Fd::CWD, name, to, sys::AT_SYMLINK_NOFOLLOW)
}

/// `fstat(2)`: stores the attributes of an open file.
pub fn sys_fstat(task: &Task, fd: Fd, to: UserPtr<Stat>) -> SysResult {
    to.write(&task.files().get(fd)?.metadata().into())?;
    Ok(0)
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StatxTime {
    sec: i64,
    nsec: u32,
    padding: i32,
}

impl From<Timestamp> for StatxTime {
    fn from(t: Timestamp) -> Self {
        Self {
            sec: t.sec,
            nsec: t.nsec,
            padding: 0,
        }
    }
}

/// Attributes of a file as `statx(2)` stores them: `struct statx`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Statx {
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    padding: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    atime: StatxTime,
    btime: StatxTime,
    ctime: StatxTime,
    mtime: StatxTime,
    rdev_major: u32,
    rdev_minor: u32,
    dev_major: u32,
    dev_minor: u32,
    mnt_id: u64,
    dio_mem_align: u32,
    dio_offset_align: u32,
    spare: [u64; 12],
}

const _: () = assert!(size_of::<Statx>() == 256);

/// `statx(2)`: stores the attributes that a mask asks for.
pub fn sys_statx(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    flags: u32,
    mask: u32,
    to: UserPtr<Statx>,
) -> SysResult {
    /// Attributes of `chattr(1)` that are shown: the bits are the same.
    const SHOWN: u32 = sys::STATX_ATTR_IMMUTABLE | sys::STATX_ATTR_APPEND | sys::STATX_ATTR_NODUMP;
    /// Attributes that every file is known to have or not.
    const ALWAYS_KNOWN: u32 =
        sys::STATX_ATTR_MOUNT_ROOT | sys::STATX_ATTR_AUTOMOUNT | sys::STATX_ATTR_DAX;
    const SYNC: u32 = sys::AT_STATX_FORCE_SYNC | sys::AT_STATX_DONT_SYNC;
    if flags & !(AT_STAT_FLAGS | SYNC) != 0
        || flags & SYNC == SYNC
        || mask & sys::STATX__RESERVED != 0
    {
        return Err(Errno::EINVAL);
    }
    let path = lookup_at(task, dirfd, name, flags)?;
    let m = path.metadata();
    let mount_root = if path.is_mount_root() {
        sys::STATX_ATTR_MOUNT_ROOT
    } else {
        0
    };
    let born = m.btime.map_or(0, |_| sys::STATX_BTIME);
    let direct_alignment = path.direct_alignment();
    let direct = direct_alignment.map_or(0, |_| sys::STATX_DIOALIGN);
    let direct_alignment = direct_alignment.filter(|_| mask & direct != 0).unwrap_or(0);
    let of_file = m.attributes.bits();
    let can_have = if path.inode().has_known_attributes() {
        SHOWN
    } else {
        0
    };
    let (dev, rdev) = (fs::DeviceId::decode(m.dev), fs::DeviceId::decode(m.rdev));
    to.write(&Statx {
        mask: sys::STATX_BASIC_STATS | sys::STATX_MNT_ID | mask & (born | direct),
        blksize: m.blksize,
        attributes: (of_file & SHOWN | mount_root).into(),
        nlink: m.nlink,
        uid: m.uid,
        gid: m.gid,
        mode: (m.kind.mode_bits() | m.mode) as u16,
        padding: 0,
        ino: m.ino,
        size: m.size,
        blocks: m.blocks,
        attributes_mask: (can_have | ALWAYS_KNOWN).into(),
        atime: m.atime.into(),
        btime: m.btime.unwrap_or_default().into(),
        ctime: m.ctime.into(),
        mtime: m.mtime.into(),
        rdev_major: rdev.major,
        rdev_minor: rdev.minor,
        dev_major: dev.major,
        dev_minor: dev.minor,
        mnt_id: path.mount().id(),
        // User memory is copied, whichever way it lies; but programs hand this number to
        // `posix_memalign(3)`, which wants a pointer's size at least.
        dio_mem_align: direct_alignment.min(size_of::<usize>() as u32),
        dio_offset_align: direct_alignment,
        spare: [0; 12],
    })?;
    Ok(0)
}

/// `faccessat2(2)`: checks access to a path, from a directory on, with flags.
pub fn sys_faccessat2(task: &Task, dirfd: Fd, name: UserAddr, mode: u32, flags: u32) -> SysResult {
    if mode & !7 != 0
        || flags & !(sys::AT_EACCESS | sys::AT_SYMLINK_NOFOLLOW | sys::AT_EMPTY_PATH) != 0
    {
        return Err(Errno::EINVAL);
    }
    let path = lookup_at(task, dirfd, name, flags & !sys::AT_EACCESS)?;
    // The real ids count, unless the effective ones are asked for.
    let cred = if flags & sys::AT_EACCESS != 0 {
        task.fs_cred()
    } else {
        task.real_fs_cred()
    };
    cred.check_inode(&**path.inode(), Access(mode))?;
    // What is behind a device's or pipe's name is not on the file system.
    let stored = matches!(
        path.inode().kind(),
        FileType::Regular | FileType::Directory | FileType::Symlink
    );
    if mode & Access::WRITE.0 != 0 && stored {
        path.require_writable()?;
    }
    Ok(0)
}

/// `faccessat(2)`: checks access to a path, from a directory on, by the real ids.
pub fn sys_faccessat(task: &Task, dirfd: Fd, name: UserAddr, mode: u32) -> SysResult {
    sys_faccessat2(task, dirfd, name, mode, 0)
}

/// `access(2)`: checks access to a path by the real ids.
pub fn sys_access(task: &Task, name: UserAddr, mode: u32) -> SysResult {
    sys_faccessat2(task, Fd::CWD, name, mode, 0)
}

/// `struct statfs` of x86-64.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatFs {
    kind: i64,
    bsize: i64,
    blocks: u64,
    bfree: u64,
    bavail: u64,
    files: u64,
    ffree: u64,
    fsid: [i32; 2],
    namelen: i64,
    frsize: i64,
    flags: i64,
    spare: [i64; 4],
}

const _: () = assert!(size_of::<StatFs>() == 120);

fn statfs(mount: &Mount) -> StatFs {
    /// "The flags are valid", beside the mount's own.
    const ST_VALID: u32 = 0x20;
    /// Flags of mounts whose `ST_*` bit is another.
    const ELSEWHERE: u32 = sys::MS_RELATIME | MS_NOSYMFOLLOW;
    const ST_RELATIME: u32 = 0x1000;
    const ST_NOSYMFOLLOW: u32 = 0x2000;
    let s = mount.fs().statfs();
    let own = mount.flags();
    let mut flags = own & !ELSEWHERE
        | mount.super_block().flags() & (sys::MS_RDONLY | sys::MS_SYNCHRONOUS | sys::MS_MANDLOCK)
        | ST_VALID;
    for (bit, shown) in [
        (sys::MS_RELATIME, ST_RELATIME),
        (MS_NOSYMFOLLOW, ST_NOSYMFOLLOW),
    ] {
        flags |= if own & bit != 0 { shown } else { 0 };
    }
    StatFs {
        kind: s.magic as i64,
        bsize: s.block_size as i64,
        blocks: s.blocks,
        bfree: s.blocks_free,
        bavail: s.blocks_free.saturating_sub(s.blocks_reserved),
        files: s.files,
        ffree: s.files_free,
        fsid: [mount.id() as i32, 0],
        namelen: fs::NAME_MAX as i64,
        frsize: s.block_size as i64,
        flags: i64::from(flags),
        spare: [0; 4],
    }
}

/// `statfs(2)`: stores the figures of the file system of a path.
pub fn sys_statfs(task: &Task, name: UserAddr, to: UserPtr<StatFs>) -> SysResult {
    to.write(&statfs(lookup_at(task, Fd::CWD, name, 0)?.mount()))?;
    Ok(0)
}

/// `fstatfs(2)`: stores the figures of the file system of an open file.
pub fn sys_fstatfs(task: &Task, fd: Fd, to: UserPtr<StatFs>) -> SysResult {
    /// Magic number of the file system of files without a name (`ANON_INODE_FS_MAGIC`).
    const ANONYMOUS: i64 = 0x0904_1934;
    const PIPES: i64 = 0x5049_5045;
    const SOCKETS: i64 = 0x534f_434b;
    let file = task.files().get(fd)?;
    let mut told = statfs(file.path().mount());
    told.kind = match file.path().dentry().kind() {
        FileType::Fifo if told.kind == ANONYMOUS => PIPES,
        FileType::Socket if told.kind == ANONYMOUS => SOCKETS,
        _ => told.kind,
    };
    to.write(&told)?;
    Ok(0)
}

/// Free blocks and inodes of a file system as `ustat(2)` stores them: `struct ustat`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ustat {
    blocks_free: i32,
    padding: u32,
    inodes_free: u64,
    name: [u8; 6],
    pack: [u8; 6],
    padding2: u32,
}

/// `ustat(2)`: stores free blocks and inodes of a device's file system.
pub fn sys_ustat(task: &Task, device: u32, to: UserPtr<Ustat>) -> SysResult {
    let device = u64::from(device);
    let mounts = task.fs().namespace().mounts();
    let mount = mounts
        .iter()
        .find(|m| m.root().inode().metadata().dev == device)
        .ok_or(Errno::EINVAL)?;
    let s = mount.fs().statfs();
    let blocks_free = i32::try_from(s.blocks_free).unwrap_or(i32::MAX);
    to.write(&Ustat {
        blocks_free,
        padding: 0,
        inodes_free: s.files_free,
        name: [0; 6],
        pack: [0; 6],
        padding2: 0,
    })?;
    Ok(0)
}
