//! The plain values that file systems and system calls exchange.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::Inode;
use crate::acl::Acl;
use crate::attributes::FileAttributes;

/// Result of a file system operation; the error is that of the system call.
pub type Result<T> = core::result::Result<T, Errno>;

/// The longest name of one directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest path name a call accepts, in bytes, its final NUL included.
pub const PATH_MAX: usize = 4096;

/// The kind of a file, the top four bits of `st_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileType {
    /// A named pipe, or either end of an anonymous one.
    Fifo,
    /// A character device.
    Char,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A file with contents.
    Regular,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
    /// An anonymous inode (epoll, eventfd, timers), which has neither a name nor a type. `st_mode`
    /// holds permissions only.
    Anonymous,
}

impl FileType {
    /// The kind's bits in `st_mode` (`S_IFMT`).
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => sys::S_IFIFO,
            Self::Char => sys::S_IFCHR,
            Self::Directory => sys::S_IFDIR,
            Self::Block => sys::S_IFBLK,
            Self::Regular => sys::S_IFREG,
            Self::Symlink => sys::S_IFLNK,
            Self::Socket => sys::S_IFSOCK,
            Self::Anonymous => 0,
        }
    }

    /// The kind that `mode`'s `S_IFMT` bits name, if they name one.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & sys::S_IFMT {
            sys::S_IFIFO => Self::Fifo,
            sys::S_IFCHR => Self::Char,
            sys::S_IFDIR => Self::Directory,
            sys::S_IFBLK => Self::Block,
            sys::S_IFREG => Self::Regular,
            sys::S_IFLNK => Self::Symlink,
            sys::S_IFSOCK => Self::Socket,
            _ => return None,
        })
    }

    /// The kind as `d_type` of `getdents64(2)` gives it.
    #[must_use]
    pub const fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// Unit of the times that files are given, in nanoseconds: a tick of Debian's Linux, whose files
/// have no finer ones.
pub const TIME_UNIT_NS: u64 = 4_000_000;

/// A point in time, since 1970-01-01 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds.
    pub sec: i64,
    /// Nanoseconds within the second, below 10^9.
    pub nsec: u32,
}

impl Timestamp {
    /// The wall clock's time.
    #[must_use]
    pub fn now() -> Self {
        Self::from_ns(wall_ns())
    }

    /// The wall clock's time, in whole units of [`TIME_UNIT_NS`], as files get it: who writes to
    /// one again and again does not change its times each time.
    #[must_use]
    pub fn coarse_now() -> Self {
        let ns = wall_ns();
        Self::from_ns(ns - ns % TIME_UNIT_NS)
    }

    /// The time `ns` nanoseconds after 1970.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self {
            sec: (ns / 1_000_000_000) as i64,
            nsec: (ns % 1_000_000_000) as u32,
        }
    }
}

#[cfg(target_os = "none")]
fn wall_ns() -> u64 {
    guard::timer::wall_ns()
}

#[cfg(not(target_os = "none"))]
fn wall_ns() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// A device number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct DeviceId {
    /// The driver's number.
    pub major: u32,
    /// The device's number within the driver.
    pub minor: u32,
}

impl DeviceId {
    /// The device `major:minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The number as `st_dev` and `st_rdev` hold it (Linux's `new_encode_dev`).
    #[must_use]
    pub const fn encode(self) -> u64 {
        (((self.minor & 0xff) | (self.major << 8)) as u64) | (((self.minor & !0xff) as u64) << 12)
    }

    /// The device of an encoded number, as `mknod(2)` passes it.
    #[must_use]
    pub const fn decode(number: u64) -> Self {
        Self {
            major: ((number >> 8) & 0xfff) as u32,
            minor: ((number & 0xff) | ((number >> 12) & 0xf_ff00)) as u32,
        }
    }
}

/// Metadata of a file, as `stat(2)` tells them.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    /// The file system's device number, encoded.
    pub dev: u64,
    /// The file's number within its file system.
    pub ino: u64,
    /// The kind of file.
    pub kind: FileType,
    /// Permission bits and set-id bits (07777).
    pub mode: u32,
    /// How many names the file has.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device a device node stands for, encoded.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that are allocated.
    pub blocks: u64,
    /// The preferred size of a transfer, bytes.
    pub blksize: u32,
    /// Last read (relative: at most once a day, or after a change).
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// When the file was made, where that is kept.
    pub btime: Option<Timestamp>,
    /// Attributes that restrict changes.
    pub attributes: FileAttributes,
}

impl Metadata {
    /// Metadata of a generated file: owned by root, one link, no size, times of now.
    #[must_use]
    pub fn generated(dev: u64, ino: u64, kind: FileType, mode: u32) -> Self {
        let now = Timestamp::coarse_now();
        Self {
            dev,
            ino,
            kind,
            mode,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            btime: None,
            attributes: FileAttributes::empty(),
        }
    }
}

/// The part of a file's metadata that decides who may do what.
#[derive(Clone, Copy, Debug)]
pub struct Permissions {
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Permission bits (07777).
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Attributes that restrict changes.
    pub attributes: FileAttributes,
}

impl From<&Metadata> for Permissions {
    fn from(meta: &Metadata) -> Self {
        Self {
            is_directory: meta.kind == FileType::Directory,
            mode: meta.mode,
            uid: meta.uid,
            gid: meta.gid,
            attributes: meta.attributes,
        }
    }
}

/// A change of metadata; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// New permission bits (07777).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New access time.
    pub atime: Option<Timestamp>,
    /// New modification time.
    pub mtime: Option<Timestamp>,
}

impl SetAttr {
    /// Makes the change: to permission bits, owner and group, and to access, modification and
    /// change time.
    pub fn apply(
        &self,
        [mode, uid, gid]: [&mut u32; 3],
        [atime, mtime, ctime]: [&mut Timestamp; 3],
    ) {
        *mode = self.mode.unwrap_or(*mode);
        *uid = self.uid.unwrap_or(*uid);
        *gid = self.gid.unwrap_or(*gid);
        *atime = self.atime.unwrap_or(*atime);
        *mtime = self.mtime.unwrap_or(*mtime);
        *ctime = Timestamp::coarse_now();
    }

    /// Makes the change to metadata that are kept as a whole.
    pub fn apply_to(&self, meta: &mut Metadata) {
        let Metadata {
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
            ..
        } = meta;
        self.apply([mode, uid, gid], [atime, mtime, ctime]);
    }
}

/// Figures of a file system, as `statfs(2)` tells them.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatFs {
    /// The file system's magic number.
    pub magic: u64,
    /// Block size, bytes.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Free blocks that are kept for the superuser.
    pub blocks_reserved: u64,
    /// Files in all that could exist; 0 if there is no limit.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
}

/// Access that is asked for; the bits of `access(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(pub u32);

impl Access {
    /// Nothing: only existence.
    pub const NONE: Self = Self(0);
    /// Execute a file, search a directory.
    pub const EXEC: Self = Self(1);
    /// Change it.
    pub const WRITE: Self = Self(2);
    /// Read it.
    pub const READ: Self = Self(4);

    /// Both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Credentials that permission checks look at.
#[derive(Clone, Debug)]
pub struct Cred {
    /// The file system user id.
    pub uid: u32,
    /// The file system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
    /// Effective capabilities: bit `n` is capability `n` (`CAP_*`).
    pub caps: u64,
}

impl Cred {
    /// The superuser.
    #[must_use]
    pub fn root() -> Self {
        Self {
            uid: 0,
            gid: 0,
            groups: Arc::from([]),
            caps: u64::MAX,
        }
    }

    /// An ordinary user with one group.
    #[must_use]
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: Arc::from([]),
            caps: if uid == 0 { u64::MAX } else { 0 },
        }
    }

    /// Whether it has a capability (`CAP_*`).
    #[must_use]
    pub const fn capable(&self, capability: u32) -> bool {
        self.caps >> capability & 1 != 0
    }

    /// Whether the group is this user's, as main or supplementary one.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether this user owns the file or may act as if.
    #[must_use]
    pub fn owns(&self, meta: &Metadata) -> bool {
        self.uid == meta.uid || self.capable(sys::CAP_FOWNER)
    }

    /// Checks the permission bits, `EACCES` if one is missing (`path_resolution(7)`), and whether
    /// anybody may write to it. Of a file that is at hand [`Cred::check_inode`] asks more: its
    /// access control list, and its file system.
    ///
    /// # Errors
    /// `EACCES`; `EPERM` to write to what is immutable.
    pub fn check(&self, meta: &Metadata, want: Access) -> Result<()> {
        self.check_permissions(&meta.into(), want)
    }

    /// Checks a file, as [`Cred::check`], whose metadata nobody else needs.
    ///
    /// # Errors
    /// `EACCES`.
    #[inline]
    pub fn check_inode(&self, inode: &dyn Inode, want: Access) -> Result<()> {
        if inode.is_granted_to_all(want) {
            Ok(())
        } else {
            inode.check_access(self, want)
        }
    }

    /// Checks permissions, as [`Cred::check`], of anything that has them.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check_permissions(&self, of: &Permissions, want: Access) -> Result<()> {
        self.check_with_acl(of, None, want)
    }

    /// Checks permissions, as [`Cred::check`], of a file that may have an access control list.
    ///
    /// # Errors
    /// `EACCES`; `EPERM` to write to what is immutable.
    pub fn check_with_acl(&self, of: &Permissions, acl: Option<&Acl>, want: Access) -> Result<()> {
        if want.0 & Access::WRITE.0 != 0 {
            of.attributes.refuse(FileAttributes::IMMUTABLE)?;
        }
        let granted = match acl {
            // As on Linux: without any bits of the group a list is not asked.
            Some(acl) if self.uid != of.uid && of.mode & 0o070 != 0 => acl.grants(self, of, want),
            _ => want.0 & !self.class_bits(of) == 0,
        };
        if granted || self.overrides(of, want) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// The three permission bits of the class that this user is in.
    fn class_bits(&self, of: &Permissions) -> u32 {
        let bits = if self.uid == of.uid {
            of.mode >> 6
        } else if self.in_group(of.gid) {
            of.mode >> 3
        } else {
            of.mode
        };
        bits & 7
    }

    /// Whether a capability lets this user do what is not granted.
    fn overrides(&self, of: &Permissions, want: Access) -> bool {
        let wants = |access: Access| want.0 & access.0 != 0;
        let reads = if of.is_directory {
            !wants(Access::WRITE)
        } else {
            want == Access::READ
        };
        // Even then somebody's execute bit is needed to run a file, and nothing else.
        let runs = of.is_directory || !wants(Access::EXEC) || of.mode & 0o111 != 0;
        self.capable(sys::CAP_DAC_OVERRIDE) && runs
            || self.capable(sys::CAP_DAC_READ_SEARCH) && reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_encoding() {
        for id in [
            DeviceId::new(1, 3),
            DeviceId::new(136, 70_000),
            DeviceId::new(4, 64),
            DeviceId::new(4095, 0xf_ffff),
        ] {
            assert_eq!(DeviceId::decode(id.encode()), id);
        }
        assert_eq!(DeviceId::new(1, 3).encode(), 0x103);
    }

    #[test]
    fn permission_classes_do_not_add_up() {
        let mut meta = Metadata::generated(1, 1, FileType::Regular, 0o047);
        meta.uid = 10;
        meta.gid = 20;
        // The owner gets the owner's bits even where others would get more.
        assert_eq!(
            Cred::user(10, 99).check(&meta, Access::READ),
            Err(Errno::EACCES)
        );
        assert!(Cred::user(11, 20).check(&meta, Access::READ).is_ok());
        assert_eq!(
            Cred::user(11, 20).check(&meta, Access::WRITE),
            Err(Errno::EACCES)
        );
        assert!(Cred::user(11, 21).check(&meta, Access(7)).is_ok());
        meta.mode = 0o600;
        assert!(Cred::root().check(&meta, Access(6)).is_ok());
        assert_eq!(Cred::root().check(&meta, Access::EXEC), Err(Errno::EACCES));
        let reader = Cred {
            caps: 1 << sys::CAP_DAC_READ_SEARCH,
            ..Cred::user(11, 21)
        };
        assert!(reader.check(&meta, Access::READ).is_ok());
        assert_eq!(
            reader.check(&meta, Access::READ.union(Access::WRITE)),
            Err(Errno::EACCES)
        );
    }

    #[test]
    fn who_may_override_permissions_and_what_for() {
        let meta = |kind, mode| Metadata {
            uid: 10,
            gid: 20,
            ..Metadata::generated(1, 1, kind, mode)
        };
        let who = |caps: u64| Cred {
            caps,
            ..Cred::user(11, 21)
        };
        let allowed = |cred: &Cred, meta: &Metadata| {
            [4, 2, 1].map(|want| cred.check(meta, Access(want)).is_ok())
        };
        let (file, program, directory) = (
            meta(FileType::Regular, 0o600),
            meta(FileType::Regular, 0o610),
            meta(FileType::Directory, 0o600),
        );
        let all = who(1 << sys::CAP_DAC_OVERRIDE);
        assert_eq!(allowed(&all, &file), [true, true, false]);
        assert_eq!(allowed(&all, &program), [true, true, true]);
        assert_eq!(allowed(&all, &directory), [true, true, true]);
        assert_eq!(
            (
                all.check(&file, Access(7)),
                all.check(&directory, Access(7))
            ),
            (Err(Errno::EACCES), Ok(()))
        );
        let reader = who(1 << sys::CAP_DAC_READ_SEARCH);
        assert_eq!(allowed(&reader, &file), [true, false, false]);
        assert_eq!(allowed(&reader, &program), [true, false, false]);
        assert_eq!(allowed(&reader, &directory), [true, false, true]);
        assert_eq!(allowed(&who(0), &file), [false; 3]);
        // Whom it belongs to, and who acts as if.
        assert!(
            who(1 << sys::CAP_FOWNER).owns(&file)
                && Cred::user(10, 0).owns(&file)
                && !who(0).owns(&file)
        );
        assert!(
            !Cred::user(20, 10).owns(&file),
            "the group's number is not the owner's"
        );
        let member = Cred {
            groups: Arc::from([5, 20]),
            ..who(0)
        };
        assert!(
            member.in_group(20)
                && member.in_group(21)
                && member.in_group(5)
                && !member.in_group(10)
        );
        assert_eq!(
            allowed(&member, &meta(FileType::Regular, 0o741)),
            [true, false, false]
        );
        assert_eq!(
            allowed(&Cred::user(10, 20), &meta(FileType::Regular, 0o421)),
            [true, false, false]
        );
        assert_eq!(
            allowed(&who(0), &meta(FileType::Regular, 0o421)),
            [false, false, true]
        );
        assert_eq!(
            (
                Cred::root().caps,
                Cred::user(0, 7).caps,
                Cred::user(7, 0).caps
            ),
            (u64::MAX, u64::MAX, 0)
        );
    }

    #[test]
    fn kinds_are_bits_of_the_mode() {
        use FileType::{Block, Char, Directory, Fifo, Regular, Socket, Symlink};
        for (kind, digit) in [
            (Fifo, 1),
            (Char, 2),
            (Directory, 4),
            (Block, 6),
            (Regular, 8),
            (Symlink, 10),
            (Socket, 12),
        ] {
            assert_eq!(
                (kind.mode_bits(), kind.dirent_type()),
                (digit << 12, digit as u8)
            );
            assert_eq!(FileType::from_mode(digit << 12 | 0o7777), Some(kind));
        }
        for digit in [0, 3, 5, 7, 9, 15] {
            assert_eq!(FileType::from_mode(digit << 12 | 0o644), None);
        }
        assert_eq!(
            (
                FileType::Anonymous.mode_bits(),
                FileType::Anonymous.dirent_type()
            ),
            (0, 0)
        );
        assert_eq!(
            DeviceId::decode(0xfff0_0123_4567),
            DeviceId::new(0x345, 0x1267)
        );
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let time = |sec| Timestamp { sec, nsec: 5 };
        let mut meta = Metadata::generated(1, 2, FileType::Directory, 0o755);
        (meta.atime, meta.mtime, meta.ctime) = (time(1), time(2), time(3));
        SetAttr {
            mode: Some(0o700),
            gid: Some(9),
            mtime: Some(time(7)),
            ..SetAttr::default()
        }
        .apply_to(&mut meta);
        assert_eq!(
            (meta.mode, meta.uid, meta.gid, meta.nlink),
            (0o700, 0, 9, 2)
        );
        assert_eq!((meta.atime, meta.mtime), (time(1), time(7)));
        assert!(meta.ctime > time(1_000_000_000), "that of the change");
        SetAttr {
            uid: Some(8),
            atime: Some(time(6)),
            ..SetAttr::default()
        }
        .apply_to(&mut meta);
        assert_eq!(
            (meta.mode, meta.uid, meta.gid, meta.atime, meta.mtime),
            (0o700, 8, 9, time(6), time(7))
        );
        assert_eq!(Metadata::generated(1, 2, FileType::Regular, 0).nlink, 1);
        assert_eq!(
            Timestamp::from_ns(3_999_999_999),
            Timestamp {
                sec: 3,
                nsec: 999_999_999
            }
        );
        assert_eq!(
            Timestamp::from_ns(4_000_000_000),
            Timestamp { sec: 4, nsec: 0 }
        );
    }
}
