//! What a file is, whichever file system it lives in.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::AtomicU8;

use abi::errno::Errno;
use task::Once;
use vm::Page;

use crate::acl::{Acl, AclKind};
use crate::attributes::FileAttributes;
use crate::pipe::Pipe;
use crate::xattr::SetMode;
use crate::{
    Access, Cred, DeviceId, FileOps, FileType, Metadata, OpenFlags, Path, Permissions, Result,
    SetAttr, WriteCount,
};

static KEEPS_SETID_BITS: Once<fn() -> bool> = Once::new();

/// Installs what tells whether the set-id bits of a file stay when the caller writes to it
/// (`CAP_FSETID`). Before that they do not. Only the first call counts.
pub fn set_keeps_setid_bits(hook: fn() -> bool) {
    KEEPS_SETID_BITS.call_once(|| hook);
}

/// Whether the set-id bits of files that the caller writes to stay.
pub(crate) fn keeps_setid_bits() -> bool {
    KEEPS_SETID_BITS.get().is_some_and(|hook| hook())
}

/// A file that is to be made in a directory.
#[derive(Clone, Debug)]
pub struct NewInode<'a> {
    /// The kind of file, with what that kind needs.
    pub kind: NewInodeKind<'a>,
    /// Permission bits (07777).
    pub mode: u32,
    /// Permission bits that are taken away, unless the directory says by a default access control
    /// list which new files have.
    pub umask: u32,
    /// The owner.
    pub uid: u32,
    /// The group (a set-group-id directory overrides it).
    pub gid: u32,
}

/// The kinds of file that can be made.
#[derive(Clone, Copy, Debug)]
pub enum NewInodeKind<'a> {
    /// An empty file.
    Regular,
    /// An empty directory.
    Directory,
    /// A link with this target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device node.
    Char(DeviceId),
    /// A block device node.
    Block(DeviceId),
}

/// Target of a symbolic link.
pub enum LinkTarget {
    /// A name, resolved from the link's directory.
    Text(Vec<u8>),
    /// A file itself, whatever its name is now (the links below `/proc/<pid>`).
    MagicLink(Path),
}

/// One entry of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The file's number.
    pub ino: u64,
    /// Its kind.
    pub kind: FileType,
    /// The cursor from which a listing goes on after this entry.
    pub next: u64,
}

bitflags::bitflags! {
    /// Flags of `renameat2(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct RenameFlags: u32 {
        /// Fail if the new name exists.
        const NOREPLACE = linux_raw_sys::general::RENAME_NOREPLACE;
        /// Swap the two.
        const EXCHANGE = linux_raw_sys::general::RENAME_EXCHANGE;
        /// Leave a whiteout, the character device 0:0, under the old name: for who lays file
        /// systems over each other.
        const WHITEOUT = linux_raw_sys::general::RENAME_WHITEOUT;
    }
}

impl RenameFlags {
    /// Whether they do not contradict each other.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        !self.contains(Self::EXCHANGE) || !self.intersects(Self::NOREPLACE.union(Self::WHITEOUT))
    }
}

/// A file of some file system.
///
/// Implementations lock inside and may be called from any thread. The VFS ([`crate::ops`]) has
/// checked permissions, the length of names and that both sides of a link or rename are on one file
/// system; it also serialises changes of one directory's names. The defaults are the answers of a
/// file that does not have the operation.
///
/// ```
/// use fs::mount::FileSystem;
/// use fs::ramfs::RamFs;
/// use fs::{Inode, NewInode, NewInodeKind};
///
/// let root = RamFs::new("tmpfs", None, 0o755).root();
/// let new = NewInode {
///     kind: NewInodeKind::Regular,
///     mode: 0o644,
///     umask: 0,
///     uid: 0,
///     gid: 0,
/// };
/// let file = root.create(b"name", &new)?;
/// assert_eq!(file.write_at(0, b"contents")?, 8);
/// assert_eq!(root.lookup(b"name")?.metadata().size, 8);
/// # Ok::<(), abi::errno::Errno>(())
/// ```
pub trait Inode: Any + Send + Sync {
    /// Everything `stat(2)` shows.
    fn metadata(&self) -> Metadata;

    /// The part of the metadata that decides who may do what.
    fn permissions(&self) -> Permissions {
        (&self.metadata()).into()
    }

    /// Whether the permission bits grant this to everybody, whoever owns the file. May say no where
    /// they do.
    fn is_granted_to_all(&self, want: Access) -> bool {
        let _ = want;
        false
    }

    /// Checks what somebody wants of the file: as its permission bits say, unless it is special.
    ///
    /// # Errors
    /// `EACCES`; what the file system says instead.
    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        cred.check_permissions(&self.permissions(), want)
    }

    /// The kind of file; never changes.
    fn kind(&self) -> FileType;

    /// Changes metadata and sets the change time.
    ///
    /// # Errors
    /// `EPERM` where the file system keeps none.
    fn set_attr(&self, change: &SetAttr) -> Result<()> {
        let _ = change;
        Err(Errno::EPERM)
    }

    /// Finds an entry of a directory (never `.` or `..`).
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR` if this is no directory.
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let _ = name;
        Err(Errno::ENOTDIR)
    }

    /// Whether a name, once looked up, stays what it is until changed through this tree. False for
    /// generated directories.
    fn has_stable_names(&self) -> bool {
        true
    }

    /// Makes an entry.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, `ENOMEM`; `EPERM` where nothing can be made.
    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = (name, new);
        Err(Errno::EPERM)
    }

    /// Makes a file that has no name (`O_TMPFILE`, `memfd_create`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` where that cannot be.
    fn tmpfile(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = new;
        Err(Errno::EOPNOTSUPP)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// `EEXIST`, `EMLINK`, `EPERM`.
    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let _ = (name, target);
        Err(Errno::EPERM)
    }

    /// Takes a name away from a file that is no directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EPERM`.
    fn unlink(&self, name: &[u8]) -> Result<()> {
        let _ = name;
        Err(Errno::EPERM)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EPERM`.
    fn rmdir(&self, name: &[u8]) -> Result<()> {
        let _ = name;
        Err(Errno::EPERM)
    }

    /// Moves `name` to `to_name` in `to` (of the same file system), in one step for every observer;
    /// `whiteout` is left under the old name.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EPERM`.
    fn rename(
        &self,
        name: &[u8],
        to: &Arc<dyn Inode>,
        to_name: &[u8],
        flags: RenameFlags,
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<()> {
        let _ = (name, to, to_name, flags, whiteout);
        Err(Errno::EPERM)
    }

    /// Lists entries from `cursor` on (0: the start, `.` and `..` not among them) until `emit` says
    /// no.
    ///
    /// # Errors
    /// `ENOTDIR` if this is no directory.
    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let _ = (cursor, emit);
        Err(Errno::ENOTDIR)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// `EINVAL` if this is none.
    fn get_link(&self) -> Result<LinkTarget> {
        Err(Errno::EINVAL)
    }

    /// A link's text as `readlink(2)` gives it.
    ///
    /// # Errors
    /// `EINVAL` if this is none.
    fn readlink(&self) -> Result<Vec<u8>> {
        match self.get_link()? {
            LinkTarget::Text(text) => Ok(text),
            LinkTarget::MagicLink(path) => Ok(path.to_bytes(None)),
        }
    }

    /// Reads contents; 0 at or behind the end.
    ///
    /// # Errors
    /// `EINVAL` where there are no contents.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _ = (offset, buf);
        Err(Errno::EINVAL)
    }

    /// Makes `page` the contents from `offset` on, a multiple of the page size, as it is. The file
    /// grows to the end of the page, if it was shorter.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`; `EPERM` where files are not made of pages.
    fn insert_page(&self, offset: u64, page: Page) -> Result<()> {
        let _ = (offset, page);
        Err(Errno::EPERM)
    }

    /// Writes contents, growing the file. A short count means the file system is full.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`; `EINVAL` where there are no contents.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        let _ = (offset, buf);
        Err(Errno::EINVAL)
    }

    /// Writes behind the end in one step. Returns where the write began and how long it was.
    ///
    /// # Errors
    /// As [`Inode::write_at`].
    fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        let end = self.metadata().size;
        self.write_at(end, buf).map(|n| (end, n))
    }

    /// Sets the size; what is cut is gone, what is added reads as zeros.
    ///
    /// # Errors
    /// `EFBIG`; `EINVAL` where there are no contents.
    fn truncate(&self, size: u64) -> Result<()> {
        let _ = size;
        Err(Errno::EINVAL)
    }

    /// Allocates or punches (`fallocate(2)`'s mode bits).
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `ENOSPC`, `EFBIG`.
    fn fallocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let _ = (mode, offset, len);
        Err(Errno::EOPNOTSUPP)
    }

    /// Seals: operations that the file does not permit any more (`F_SEAL_*`).
    fn seals(&self) -> u32 {
        0
    }

    /// Adds seals (`F_ADD_SEALS`).
    ///
    /// # Errors
    /// `EINVAL` for files that know of none, `EPERM` if no more may be added, `EBUSY` if a program
    /// has it mapped for writing.
    fn add_seals(&self, seals: u32) -> Result<()> {
        let _ = seals;
        Err(Errno::EINVAL)
    }

    /// An extended attribute's value. The name is whole, as `user.mime_type`.
    ///
    /// # Errors
    /// `ENODATA`; `EOPNOTSUPP` where none are kept.
    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _ = name;
        Err(Errno::EOPNOTSUPP)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`; `EOPNOTSUPP` where none are kept.
    fn set_xattr(&self, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        let _ = (name, value, mode);
        Err(Errno::EOPNOTSUPP)
    }

    /// Takes an extended attribute away.
    ///
    /// # Errors
    /// `ENODATA`; `EOPNOTSUPP` where none are kept.
    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let _ = name;
        Err(Errno::EOPNOTSUPP)
    }

    /// The names of the extended attributes there are.
    fn xattr_names(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// An access control list of the file, if it has one.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where there are none.
    fn acl(&self, kind: AclKind) -> Result<Option<Acl>> {
        let _ = kind;
        Err(Errno::EOPNOTSUPP)
    }

    /// Sets a list, or takes it away. An access list changes the permission bits, and the
    /// set-group-id bit goes unless the caller keeps it; one that says no more than bits is not
    /// kept.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where there are none, `EACCES` for a default list of what is no directory.
    fn set_acl(&self, kind: AclKind, acl: Option<Acl>, keeps_setgid: bool) -> Result<()> {
        let _ = (kind, acl, keeps_setgid);
        Err(Errno::EOPNOTSUPP)
    }

    /// A number by which the file system finds the file as long as there is one, and never another,
    /// if it has such.
    fn file_handle(self: Arc<Self>) -> Option<u64> {
        None
    }

    /// Counts of those who write and of those who execute the file, if it has them.
    fn write_count(&self) -> Option<&WriteCount> {
        None
    }

    /// Attributes by which it is not changed, or not by everything (`chattr(1)`).
    ///
    /// # Errors
    /// `ENOTTY` for what cannot have any.
    fn attributes(&self) -> Result<FileAttributes> {
        Err(Errno::ENOTTY)
    }

    /// Alignment in bytes of the offsets and lengths of transfers with `O_DIRECT`. `None`: it is
    /// not opened with that, as there is no cache to go past.
    fn direct_alignment(&self) -> Option<u32> {
        None
    }

    /// Whether it is known of the file which attributes it has. Special files and links get some
    /// from their directory, and no others.
    fn has_known_attributes(&self) -> bool {
        self.attributes().is_ok()
    }

    /// Sets the attributes.
    ///
    /// # Errors
    /// `ENOTTY` for what cannot have any.
    fn set_attributes(&self, new: FileAttributes) -> Result<()> {
        let _ = new;
        Err(Errno::ENOTTY)
    }

    /// How long what is written will live, as programs announce it (`F_SET_RW_HINT`), if the file
    /// keeps that.
    fn write_hint(&self) -> Option<&AtomicU8> {
        None
    }

    /// The file was read, which sets its access time: `always`, or where that tells something new
    /// (`relatime`).
    fn touch_atime(&self, always: bool) {
        let _ = always;
    }

    /// The next data (`hole` false) or hole at or behind `offset`, for `SEEK_DATA` and `SEEK_HOLE`.
    ///
    /// # Errors
    /// `ENXIO` behind the end.
    fn seek_hole_data(&self, offset: u64, hole: bool) -> Result<u64> {
        let size = self.metadata().size;
        if offset >= size {
            Err(Errno::ENXIO)
        } else {
            Ok(if hole { size } else { offset })
        }
    }

    /// The pages behind a mapping of this file.
    ///
    /// # Errors
    /// `ENODEV` where a file cannot be mapped.
    fn backing(self: Arc<Self>) -> Result<Arc<dyn vm::Backing>> {
        Err(Errno::ENODEV)
    }

    /// Operations of a file that is opened. `None`: the ordinary thing for its kind.
    ///
    /// # Errors
    /// Whatever the device says.
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        let _ = flags;
        Ok(None)
    }

    /// The device a device node stands for.
    fn device(&self) -> Option<DeviceId> {
        None
    }

    /// The pipe behind a named pipe.
    fn fifo(&self) -> Option<Arc<Pipe>> {
        None
    }
}
