//! The file system in memory: the root that the initramfs is unpacked into, `tmpfs`, and the body
//! of `memfd_create(2)`.
//!
//! Contents are whole pages (`pages.rs`), the same ones that a mapping of the file shows. A
//! directory is a map from names. Nothing here reaches a medium, so nothing here can fail but for
//! want of memory, of which a file system may be given a limit.

mod directory;
mod inode;
mod options;
mod pages;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use abi::errno::Errno;
use directory::Directory;
use linux_raw_sys::general::{self as sys, S_ISGID, S_ISUID};
pub use options::Options;
use pages::Contents;
pub use pages::move_pages_of_files;
use task::{Mutex, Once};

use crate::acl::Acl;
use crate::attributes::FileAttributes;
use crate::charge;
use crate::inode::keeps_setid_bits;
use crate::mount::{FileSystem, new_anonymous_device};
use crate::pipe::Pipe;
use crate::{
    DeviceId, FileType, Inode, NewInode, NewInodeKind, Path, Result, StatFs, Timestamp, WriteCount,
    xattr,
};

/// Bytes per page of a file.
pub(crate) const PAGE_SIZE: u64 = 4096;
/// The largest size of a file: what a signed 64-bit offset reaches.
const MAX_SIZE: u64 = i64::MAX as u64;
const MAX_LINKS: u32 = 65_000;
/// Bytes that the extended attributes of one file may take, names and values.
const XATTRS_MAX: usize = 2 * crate::xattr::SIZE_MAX;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Memory that a file takes without its contents, and that a further name takes; rounded up.
const INODE_BYTES: usize = 1024;
const ENTRY_BYTES: usize = 256;

/// State that all files of one ramfs share (Linux `shmem_sb_info`).
pub(crate) struct RamFsInfo {
    dev: u64,
    next_ino: AtomicU64,
    pages_used: AtomicU64,
    /// `u64::MAX`: no limit but the memory there is.
    page_limit: AtomicU64,
    files: AtomicU64,
    file_limit: AtomicU64,
    /// Files that somebody has a handle of, by number, which is given once.
    handles: Mutex<BTreeMap<u64, Weak<RamInode>>>,
}

/// Pages of all such file systems.
static PAGES_IN_FILES: AtomicU64 = AtomicU64::new(0);

/// How many pages files in memory have.
#[must_use]
pub fn pages_in_files() -> u64 {
    PAGES_IN_FILES.load(Ordering::Relaxed)
}

impl RamFsInfo {
    /// Takes pages from the allowance.
    fn charge_pages(&self, pages: u64) -> Result<()> {
        let fits = |used: u64| {
            used.checked_add(pages)
                .filter(|&sum| sum <= self.page_limit.load(Ordering::Relaxed))
        };
        self.pages_used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|_| Errno::ENOSPC)?;
        PAGES_IN_FILES.fetch_add(pages, Ordering::Relaxed);
        Ok(())
    }

    /// Counts one more file.
    ///
    /// # Errors
    /// `ENOSPC`, also if memory is short.
    fn charge_inode(&self) -> Result<()> {
        if !charge::has_room(INODE_BYTES) {
            return Err(Errno::ENOSPC);
        }
        let fits = |used: u64| (used < self.file_limit.load(Ordering::Relaxed)).then_some(used + 1);
        self.files
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map(drop)
            .map_err(|_| Errno::ENOSPC)
    }

    fn set_limits(&self, options: &Options) {
        let limit = |most: u64| if most == 0 { u64::MAX } else { most };
        self.page_limit
            .store(limit(options.pages), Ordering::Relaxed);
        self.file_limit
            .store(limit(options.inodes), Ordering::Relaxed);
    }

    fn uncharge_pages(&self, pages: u64) {
        census::released(self.pages_used.fetch_sub(pages, Ordering::Relaxed), pages);
        census::released(PAGES_IN_FILES.fetch_sub(pages, Ordering::Relaxed), pages);
    }
}

/// A file system in memory.
pub struct RamFs {
    name: &'static str,
    info: Arc<RamFsInfo>,
    root: Arc<RamInode>,
    options: Mutex<Options>,
}

impl RamFs {
    /// An empty one. `name` is its type in `/proc/mounts`; `page_limit` bounds the contents of all
    /// its files, in pages of 4 KiB.
    #[must_use]
    pub fn new(name: &'static str, page_limit: Option<u64>, root_mode: u32) -> Arc<Self> {
        Self::with(
            name,
            Options {
                pages: page_limit.unwrap_or(0),
                ..Options::unlimited(root_mode)
            },
        )
    }

    /// A file system as of [`Self::new`], with options.
    #[must_use]
    pub fn with(name: &'static str, options: Options) -> Arc<Self> {
        let shared = Arc::new(RamFsInfo {
            dev: new_anonymous_device(),
            next_ino: AtomicU64::new(1),
            pages_used: AtomicU64::new(0),
            page_limit: AtomicU64::new(u64::MAX),
            files: AtomicU64::new(1),
            file_limit: AtomicU64::new(u64::MAX),
            handles: Mutex::default(),
        });
        shared.set_limits(&options);
        let new = NewInode {
            kind: NewInodeKind::Directory,
            mode: options.mode,
            umask: 0,
            uid: options.uid,
            gid: options.gid,
        };
        let root = RamInode::new(&shared, &new);
        Arc::new(Self {
            name,
            info: shared,
            root,
            options: Mutex::new(options),
        })
    }

    /// A file without a name, as `memfd_create(2)` makes it; `name` is what `/proc/<pid>/fd` shows,
    /// `seals` what cannot be done to it (`F_SEAL_*`).
    #[must_use]
    pub fn memfd(name: &str, mode: u32, seals: u32) -> Path {
        static MEMFD: Once<Arc<RamFs>> = Once::new();
        let fs = MEMFD.call_once(|| Self::new("tmpfs", None, 0o700));
        let inode = RamInode::new(
            &fs.info,
            &NewInode {
                kind: NewInodeKind::Regular,
                mode,
                umask: 0,
                uid: 0,
                gid: 0,
            },
        );
        fs.info.files.fetch_add(1, Ordering::Relaxed);
        inode.attr.lock().nlink = 0;
        inode.seals.store(seals, Ordering::Relaxed);
        Path::pseudo(inode, &format!("/memfd:{name} (deleted)"))
    }
}

impl FileSystem for RamFs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statfs(&self) -> StatFs {
        let of = |limit: &AtomicU64, used: &AtomicU64| match limit.load(Ordering::Relaxed) {
            u64::MAX => (0, 0),
            limit => (limit, limit.saturating_sub(used.load(Ordering::Relaxed))),
        };
        let (blocks, blocks_free) = of(&self.info.page_limit, &self.info.pages_used);
        let (files, files_free) = of(&self.info.file_limit, &self.info.files);
        StatFs {
            magic: TMPFS_MAGIC,
            block_size: PAGE_SIZE,
            blocks,
            blocks_free,
            blocks_reserved: 0,
            files,
            files_free,
        }
    }

    fn by_handle(&self, handle: u64) -> Option<Arc<dyn Inode>> {
        let inode = self.info.handles.lock().get(&handle)?.upgrade()?;
        Some(inode)
    }

    fn names_of(&self, handle: u64) -> Option<Vec<Arc<[u8]>>> {
        // Directories do not know where they are: all are looked at, each with the place of the one
        // above it.
        let mut all: Vec<(Arc<RamInode>, usize, Arc<[u8]>)> =
            alloc::vec![(self.root.clone(), 0, Arc::default())];
        let mut next = 0;
        while next < all.len() {
            if all[next].0.ino == handle {
                let mut names = Vec::new();
                while next != 0 {
                    let (_, above, name) = &all[next];
                    names.push(name.clone());
                    next = *above;
                }
                names.reverse();
                return Some(names);
            }
            let here = all[next].0.clone();
            all.extend(
                here.subdirectories()
                    .into_iter()
                    .map(|(name, inode)| (inode, next, name)),
            );
            next += 1;
        }
        None
    }

    fn options(&self) -> String {
        match self.name {
            "ramfs" | "rootfs" => String::new(),
            _ => self.options.lock().show(),
        }
    }

    fn reconfigure(&self, text: &str) -> Result<()> {
        if self.name == "ramfs" {
            return Ok(());
        }
        let mut options = self.options.lock();
        // Who owns the top directory is said once.
        let Options { mode, uid, gid, .. } = *options;
        let new = Options {
            mode,
            uid,
            gid,
            ..options.with_text(text)?
        };
        let shrinks = |old: u64, new: u64, used: &AtomicU64| {
            new != 0 && new != old && (old == 0 || used.load(Ordering::Relaxed) > new)
        };
        if shrinks(options.pages, new.pages, &self.info.pages_used)
            || shrinks(options.inodes, new.inodes, &self.info.files)
        {
            return Err(Errno::EINVAL);
        }
        self.info.set_limits(&new);
        *options = new;
        Ok(())
    }
}

/// The part of the metadata that is stored.
struct Attr {
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
    attributes: FileAttributes,
    /// Extended attributes, by name.
    xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Access control list, unless the permission bits say it all.
    acl: Option<Acl>,
    /// Access control list that new files in the directory get.
    default_acl: Option<Acl>,
}

enum InodeData {
    Regular(Contents),
    Directory(Mutex<Directory>),
    Symlink(Box<[u8]>),
    Fifo(Arc<Pipe>),
    Socket,
    Device(FileType, DeviceId),
}

/// A file of a [`RamFs`].
pub struct RamInode {
    _counted: census::Inode,
    ino: u64,
    info: Arc<RamFsInfo>,
    /// The permission bits of `attr`, without those for writing if it is immutable, and without any
    /// if it has an access control list, to be read without its lock.
    mode: AtomicU32,
    attr: Mutex<Attr>,
    /// Address spaces that map a regular file.
    mappings: vm::ReverseMap,
    /// `F_SEAL_*` of a regular file.
    seals: AtomicU32,
    /// Counts of those who write and of those who execute a regular file.
    writers: WriteCount,
    /// Life of what is written (`F_SET_RW_HINT`); nobody looks at it.
    write_hint: AtomicU8,
    data: InodeData,
}

/// Change of a file that seals may forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SealedChange {
    /// Bytes are written, and the file grows if they end behind it.
    Contents,
    /// The file gets another size.
    Size,
}

impl RamInode {
    fn new(shared: &Arc<RamFsInfo>, new: &NewInode<'_>) -> Arc<Self> {
        let now = Timestamp::coarse_now();
        let body = match new.kind {
            NewInodeKind::Regular => InodeData::Regular(Contents::new(shared.clone())),
            NewInodeKind::Directory => InodeData::Directory(Mutex::default()),
            NewInodeKind::Symlink(target) => InodeData::Symlink(target.into()),
            NewInodeKind::Fifo => InodeData::Fifo(Pipe::new()),
            NewInodeKind::Socket => InodeData::Socket,
            NewInodeKind::Char(id) => InodeData::Device(FileType::Char, id),
            NewInodeKind::Block(id) => InodeData::Device(FileType::Block, id),
        };
        let attr = Attr {
            mode: new.mode,
            nlink: 1,
            uid: new.uid,
            gid: new.gid,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            attributes: FileAttributes::empty(),
            xattrs: BTreeMap::new(),
            acl: None,
            default_acl: None,
        };
        Arc::new(Self {
            _counted: census::Inode::default(),
            ino: shared.next_ino.fetch_add(1, Ordering::Relaxed),
            info: shared.clone(),
            mode: AtomicU32::new(attr.mode),
            attr: Mutex::new(attr),
            mappings: vm::ReverseMap::default(),
            seals: AtomicU32::new(sys::F_SEAL_SEAL),
            writers: WriteCount::default(),
            write_hint: AtomicU8::new(0),
            data: body,
        })
    }

    fn directory(&self) -> Result<&Mutex<Directory>> {
        match &self.data {
            InodeData::Directory(dir) => Ok(dir),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn contents(&self) -> Result<&Contents> {
        match &self.data {
            InodeData::Regular(contents) => Ok(contents),
            InodeData::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// This type of inode, if it is one of the same file system.
    fn downcast(&self, inode: &Arc<dyn Inode>) -> Result<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = inode.clone();
        let same = any.downcast::<Self>().map_err(|_| Errno::EXDEV)?;
        if Arc::ptr_eq(&same.info, &self.info) {
            Ok(same)
        } else {
            Err(Errno::EXDEV)
        }
    }

    /// Whether seals allow a change after which the file reaches to `end` (at least, by a write).
    fn check_seals(&self, end: u64, change: SealedChange) -> Result<()> {
        let writes = change == SealedChange::Contents;
        let seals = self.seals.load(Ordering::SeqCst);
        if seals & !sys::F_SEAL_SEAL == 0 {
            return Ok(());
        }
        let size = self.contents()?.size_and_pages().0;
        let has = |seal: u32| seals & seal != 0;
        let written = writes && has(sys::F_SEAL_WRITE | sys::F_SEAL_FUTURE_WRITE);
        let grown = end > size && has(sys::F_SEAL_GROW);
        let shrunk = end < size && !writes && has(sys::F_SEAL_SHRINK);
        if written || grown || shrunk {
            Err(Errno::EPERM)
        } else {
            Ok(())
        }
    }

    /// Makes what was changed count for who reads the mode without the lock.
    fn publish_mode(&self, attr: &Attr) {
        let immutable = attr.attributes.contains(FileAttributes::IMMUTABLE);
        let hidden = match &attr.acl {
            // It may grant somebody less than all others get.
            Some(_) => 0o777,
            None if immutable => 0o222,
            None => 0,
        };
        self.mode.store(attr.mode & !hidden, Ordering::Relaxed);
    }

    fn changed_names(&self) {
        let now = Timestamp::coarse_now();
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = now;
    }

    fn add_links(&self, delta: i32) {
        let mut attr = self.attr.lock();
        attr.nlink = attr.nlink.saturating_add_signed(delta);
        attr.ctime = Timestamp::coarse_now();
    }

    /// After a change of the contents by a mapping, which leaves set-id bits and capabilities.
    fn touch_mtime(&self) {
        let now = Timestamp::coarse_now();
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = now;
    }

    /// After a change of the contents. A write takes set-id bits, unless the writer keeps them, and
    /// capabilities away.
    fn modified(&self) {
        let now = Timestamp::coarse_now();
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = now;
        if !attr.xattrs.is_empty() {
            attr.xattrs.remove(xattr::CAPABILITY);
        }
        if attr.mode & (S_ISUID | S_ISGID) != 0 && !keeps_setid_bits() {
            attr.mode &= !S_ISUID;
            if attr.mode & 0o010 != 0 {
                attr.mode &= !S_ISGID;
            }
        }
    }

    /// The new inode of an entry of this directory; a set-group-id directory hands its group down.
    /// A default access control list decides about its permission bits, otherwise the umask.
    fn new_child(&self, new: &NewInode<'_>) -> Result<Arc<Self>> {
        let mut new = new.clone();
        let (mode, gid, attributes, default_acl) = {
            let attr = self.attr.lock();
            let default_acl = attr.default_acl.clone();
            (attr.mode, attr.gid, attr.attributes, default_acl)
        };
        let default_acl = default_acl.filter(|_| !matches!(new.kind, NewInodeKind::Symlink(_)));
        let acl = match &default_acl {
            Some(default_acl) => {
                let acl;
                (acl, new.mode) = default_acl.for_new_file(new.mode)?;
                acl
            }
            None => {
                new.mode &= !new.umask;
                None
            }
        };
        self.info.charge_inode()?;
        if mode & S_ISGID != 0 {
            new.gid = gid;
            if matches!(new.kind, NewInodeKind::Directory) {
                new.mode |= S_ISGID;
            }
        }
        if matches!(new.kind, NewInodeKind::Symlink(_)) {
            new.mode = 0o777;
        }
        let made = Self::new(&self.info, &new);
        {
            let mut attr = made.attr.lock();
            attr.attributes = attributes & FileAttributes::INHERITED;
            attr.acl = acl;
            attr.default_acl = default_acl.filter(|_| matches!(new.kind, NewInodeKind::Directory));
            made.publish_mode(&attr);
        }
        Ok(made)
    }
}
