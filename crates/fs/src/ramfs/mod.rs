//! The file system in memory: the root that the initramfs is unpacked into, `tmpfs`, and the body of `memfd_create(2)`.
//!
//! Contents are whole pages (`pages.rs`), the same ones that a mapping of the file shows. A directory is a map from names. Nothing here
//! reaches a medium, so nothing here can fail but for want of memory, of which a file system may be given a limit.

mod pages;

use crate::mount::{FileSystem, new_anonymous_device};
use crate::names::NameMap;
use crate::pipe::Pipe;
use crate::xattr::SetMode;
use crate::{
    Access, DeviceId, DirEntry, FileType, Inode, Link, Metadata, NewInode, NewKind, Path, Permissions, RenameFlags, Result,
    SetAttr, StatFs, Timestamp,
};
use abi::errno::Errno;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general::{self as sys, S_ISGID, S_ISUID};
use pages::Contents;
use task::{Mutex, Once};

/// Bytes per page of a file.
pub(crate) const PAGE: u64 = 4096;
/// The largest size of a file: what a signed 64-bit offset reaches, in whole pages.
const MAX_SIZE: u64 = i64::MAX as u64 & !(PAGE - 1);
const MAX_LINKS: u32 = 65_000;
/// What the extended attributes of one file may take, names and values, in bytes.
const XATTRS_MAX: usize = 2 * crate::xattr::SIZE_MAX;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// What all files of one file system share.
pub(crate) struct Super {
    dev: u64,
    next_ino: AtomicU64,
    pages_used: AtomicU64,
    /// `u64::MAX`: no limit but the memory there is.
    page_limit: u64,
}

/// Pages of all such file systems.
static IN_FILES: AtomicU64 = AtomicU64::new(0);

/// How many pages files in memory have.
#[must_use]
pub fn pages_in_files() -> u64 {
    IN_FILES.load(Ordering::Relaxed)
}

impl Super {
    /// Takes pages from the allowance.
    fn reserve(&self, pages: u64) -> Result<()> {
        let fits = |used: u64| used.checked_add(pages).filter(|&sum| sum <= self.page_limit);
        self.pages_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| Errno::ENOSPC)?;
        IN_FILES.fetch_add(pages, Ordering::Relaxed);
        Ok(())
    }

    fn release(&self, pages: u64) {
        self.pages_used.fetch_sub(pages, Ordering::Relaxed);
        IN_FILES.fetch_sub(pages, Ordering::Relaxed);
    }
}

/// A file system in memory.
pub struct RamFs {
    name: &'static str,
    shared: Arc<Super>,
    root: Arc<RamInode>,
}

impl RamFs {
    /// An empty one. `name` is its type in `/proc/mounts`; `page_limit` bounds the contents of all its files, in pages of 4 KiB.
    #[must_use]
    pub fn new(name: &'static str, page_limit: Option<u64>, root_mode: u32) -> Arc<Self> {
        let shared = Arc::new(Super {
            dev: new_anonymous_device(),
            next_ino: AtomicU64::new(1),
            pages_used: AtomicU64::new(0),
            page_limit: page_limit.unwrap_or(u64::MAX),
        });
        let new = NewInode { kind: NewKind::Directory, mode: root_mode, uid: 0, gid: 0 };
        let root = RamInode::make(&shared, &new);
        Arc::new(Self { name, shared, root })
    }

    /// A file without a name, as `memfd_create(2)` makes it; `name` is what `/proc/<pid>/fd` shows,
    /// `seals` what cannot be done to it (`F_SEAL_*`).
    #[must_use]
    pub fn memfd(name: &str, mode: u32, seals: u32) -> Path {
        static MEMFD: Once<Arc<RamFs>> = Once::new();
        let fs = MEMFD.call_once(|| Self::new("tmpfs", None, 0o700));
        let inode = RamInode::make(&fs.shared, &NewInode { kind: NewKind::Regular, mode, uid: 0, gid: 0 });
        inode.attr.lock().nlink = 0;
        inode.seals.store(seals, Ordering::Relaxed);
        Path::unnamed(inode, &format!("/memfd:{name} (deleted)"))
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
        let used = self.shared.pages_used.load(Ordering::Relaxed);
        let (blocks, blocks_free) = match self.shared.page_limit {
            u64::MAX => (0, 0),
            limit => (limit, limit.saturating_sub(used)),
        };
        StatFs { magic: TMPFS_MAGIC, block_size: PAGE, blocks, blocks_free, files: 0, files_free: 0 }
    }

    fn options(&self) -> String {
        match self.shared.page_limit {
            u64::MAX => String::new(),
            limit => format!(",size={}k", limit * (PAGE / 1024)),
        }
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
    /// Extended attributes, by name.
    xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

enum Body {
    Regular(Contents),
    Directory(Mutex<Directory>),
    Symlink(Box<[u8]>),
    Fifo(Arc<Pipe>),
    Socket,
    Device(FileType, DeviceId),
}

#[derive(Default)]
struct Directory {
    entries: NameMap<Entry>,
    /// Entries in the order they were made, which listings follow: a listing that goes on while others make and remove entries then
    /// shows every entry that stays exactly once.
    order: BTreeMap<u64, Listed>,
    next_cookie: u64,
    subdirs: u32,
    /// Removed: nothing can be made here any more.
    dead: bool,
}

struct Entry {
    inode: Arc<RamInode>,
    cookie: u64,
}

/// What a listing tells of an entry.
struct Listed {
    name: Arc<[u8]>,
    ino: u64,
    kind: FileType,
}

impl Directory {
    fn insert(&mut self, name: &[u8], inode: Arc<RamInode>) {
        self.subdirs += u32::from(inode.kind() == FileType::Directory);
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let name: Arc<[u8]> = name.into();
        self.order.insert(cookie, Listed { name: name.clone(), ino: inode.ino, kind: inode.kind() });
        if let Some(old) = self.entries.insert(name, Entry { inode, cookie }) {
            self.forget(&old);
        }
    }

    fn remove(&mut self, name: &[u8]) -> Option<Arc<RamInode>> {
        let entry = self.entries.remove(name)?;
        self.forget(&entry);
        Some(entry.inode)
    }

    fn forget(&mut self, entry: &Entry) {
        self.order.remove(&entry.cookie);
        self.subdirs -= u32::from(entry.inode.kind() == FileType::Directory);
    }
}

/// A file of a [`RamFs`].
pub struct RamInode {
    ino: u64,
    shared: Arc<Super>,
    /// The permission bits of `attr`, to be read without its lock.
    mode: AtomicU32,
    attr: Mutex<Attr>,
    /// Who has a regular file mapped.
    mappings: vm::Mappings,
    /// `F_SEAL_*` of a regular file.
    seals: AtomicU32,
    body: Body,
}

impl RamInode {
    fn make(shared: &Arc<Super>, new: &NewInode<'_>) -> Arc<Self> {
        let now = Timestamp::now();
        let body = match new.kind {
            NewKind::Regular => Body::Regular(Contents::new(shared.clone())),
            NewKind::Directory => Body::Directory(Mutex::default()),
            NewKind::Symlink(target) => Body::Symlink(target.into()),
            NewKind::Fifo => Body::Fifo(Pipe::new()),
            NewKind::Socket => Body::Socket,
            NewKind::Char(id) => Body::Device(FileType::Char, id),
            NewKind::Block(id) => Body::Device(FileType::Block, id),
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
            xattrs: BTreeMap::new(),
        };
        Arc::new(Self {
            ino: shared.next_ino.fetch_add(1, Ordering::Relaxed),
            shared: shared.clone(),
            mode: AtomicU32::new(attr.mode),
            attr: Mutex::new(attr),
            mappings: vm::Mappings::default(),
            seals: AtomicU32::new(sys::F_SEAL_SEAL),
            body,
        })
    }

    fn directory(&self) -> Result<&Mutex<Directory>> {
        match &self.body {
            Body::Directory(dir) => Ok(dir),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn contents(&self) -> Result<&Contents> {
        match &self.body {
            Body::Regular(contents) => Ok(contents),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// This type of inode, if it is one of the same file system.
    fn of(&self, inode: &Arc<dyn Inode>) -> Result<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = inode.clone();
        let same = any.downcast::<Self>().map_err(|_| Errno::EXDEV)?;
        if Arc::ptr_eq(&same.shared, &self.shared) { Ok(same) } else { Err(Errno::EXDEV) }
    }

    /// Whether seals allow that the file reaches to `end` afterwards (at least, if `writes`: then its contents change, too).
    fn check_seals(&self, end: u64, writes: bool) -> Result<()> {
        let seals = self.seals.load(Ordering::SeqCst);
        if seals & !sys::F_SEAL_SEAL == 0 {
            return Ok(());
        }
        let size = self.contents()?.extent().0;
        let has = |seal: u32| seals & seal != 0;
        let written = writes && has(sys::F_SEAL_WRITE | sys::F_SEAL_FUTURE_WRITE);
        let grown = end > size && has(sys::F_SEAL_GROW);
        let shrunk = end < size && !writes && has(sys::F_SEAL_SHRINK);
        if written || grown || shrunk { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn changed_names(&self) {
        let now = Timestamp::now();
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = now;
    }

    fn add_links(&self, delta: i32) {
        let mut attr = self.attr.lock();
        attr.nlink = attr.nlink.saturating_add_signed(delta);
        attr.ctime = Timestamp::now();
    }

    /// After a change of the contents. A write takes set-id bits away.
    fn modified(&self) {
        let now = Timestamp::now();
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = now;
        if attr.mode & (S_ISUID | S_ISGID) != 0 {
            attr.mode &= !S_ISUID;
            if attr.mode & 0o010 != 0 {
                attr.mode &= !S_ISGID;
            }
        }
    }

    /// Reading sets the access time where that tells something new (`relatime`).
    fn accessed(&self) {
        let now = Timestamp::now();
        let mut attr = self.attr.lock();
        if attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec > 86_400 {
            attr.atime = now;
        }
    }

    /// The new inode of an entry of this directory; a set-group-id directory hands its group down.
    fn offspring(&self, new: &NewInode<'_>) -> Arc<Self> {
        let mut new = new.clone();
        let (mode, gid) = {
            let attr = self.attr.lock();
            (attr.mode, attr.gid)
        };
        if mode & S_ISGID != 0 {
            new.gid = gid;
            if matches!(new.kind, NewKind::Directory) {
                new.mode |= S_ISGID;
            }
        }
        if matches!(new.kind, NewKind::Symlink(_)) {
            new.mode = 0o777;
        }
        Self::make(&self.shared, &new)
    }
}

impl Inode for RamInode {
    fn metadata(&self) -> Metadata {
        let (size, blocks, subdirs) = match &self.body {
            Body::Regular(contents) => {
                let (size, pages) = contents.extent();
                (size, pages * (PAGE / 512), 0)
            }
            Body::Directory(dir) => {
                let dir = dir.lock();
                (dir.entries.len() as u64 * 20 + 40, 0, if dir.dead { 0 } else { dir.subdirs + 1 })
            }
            Body::Symlink(target) => (target.len() as u64, 0, 0),
            _ => (0, 0, 0),
        };
        let rdev = self.device().map_or(0, DeviceId::encode);
        let attr = self.attr.lock();
        Metadata {
            dev: self.shared.dev,
            ino: self.ino,
            kind: self.kind(),
            mode: attr.mode,
            nlink: attr.nlink + subdirs,
            uid: attr.uid,
            gid: attr.gid,
            rdev,
            size,
            blocks,
            blksize: PAGE as u32,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
        }
    }

    fn permissions(&self) -> Permissions {
        let directory = matches!(self.body, Body::Directory(_));
        let attr = self.attr.lock();
        Permissions { directory, mode: attr.mode, uid: attr.uid, gid: attr.gid }
    }

    fn open_to_all(&self, want: Access) -> bool {
        // The same for owner, group and others.
        let bits = want.0 * 0o111;
        self.mode.load(Ordering::Relaxed) & bits == bits
    }

    fn kind(&self) -> FileType {
        match &self.body {
            Body::Regular(_) => FileType::Regular,
            Body::Directory(_) => FileType::Directory,
            Body::Symlink(_) => FileType::Symlink,
            Body::Fifo(_) => FileType::Fifo,
            Body::Socket => FileType::Socket,
            Body::Device(kind, _) => *kind,
        }
    }

    fn set_attr(&self, change: &SetAttr) -> Result<()> {
        let mut attr = self.attr.lock();
        let executable = |mode: u32| mode & 0o111;
        if self.seals() & sys::F_SEAL_EXEC != 0 && change.mode.is_some_and(|mode| executable(mode) != executable(attr.mode)) {
            return Err(Errno::EPERM);
        }
        attr.mode = change.mode.unwrap_or(attr.mode);
        self.mode.store(attr.mode, Ordering::Relaxed);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = change.atime.unwrap_or(attr.atime);
        attr.mtime = change.mtime.unwrap_or(attr.mtime);
        attr.ctime = Timestamp::now();
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let dir = self.directory()?.lock();
        Ok(dir.entries.get(name).ok_or(Errno::ENOENT)?.inode.clone())
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let inode = self.offspring(new);
        let mut dir = self.directory()?.lock();
        if dir.dead {
            return Err(Errno::ENOENT);
        }
        if dir.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        dir.insert(name, inode.clone());
        drop(dir);
        self.changed_names();
        Ok(inode)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let inode = self.offspring(new);
        inode.attr.lock().nlink = 0;
        Ok(inode)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let inode = self.of(target)?;
        let mut dir = self.directory()?.lock();
        if dir.dead {
            return Err(Errno::ENOENT);
        }
        if dir.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if inode.attr.lock().nlink >= MAX_LINKS {
            return Err(Errno::EMLINK);
        }
        inode.add_links(1);
        dir.insert(name, inode);
        drop(dir);
        self.changed_names();
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        let removed;
        let mut dir = self.directory()?.lock();
        if dir.entries.get(name).ok_or(Errno::ENOENT)?.inode.kind() == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        removed = dir.remove(name);
        drop(dir);
        if let Some(inode) = &removed {
            inode.add_links(-1);
        }
        self.changed_names();
        Ok(())
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        let removed;
        let mut dir = self.directory()?.lock();
        {
            let victim = &dir.entries.get(name).ok_or(Errno::ENOENT)?.inode;
            victim.bury()?;
        }
        removed = dir.remove(name);
        drop(dir);
        drop(removed);
        self.changed_names();
        Ok(())
    }

    fn rename(&self, name: &[u8], to: &Arc<dyn Inode>, to_name: &[u8], flags: RenameFlags) -> Result<()> {
        let to = self.of(to)?;
        // Names change only under the VFS's lock of their directory, and renames are serialised; so what is looked at here in
        // one step is still so in the next. The directories' own locks are taken one at a time.
        let moved = self.directory()?.lock().entries.get(name).ok_or(Errno::ENOENT)?.inode.clone();
        let old = to.directory()?.lock().entries.get(to_name).map(|e| e.inode.clone());
        if to.directory()?.lock().dead {
            return Err(Errno::ENOENT);
        }
        match &old {
            Some(old) if !flags.contains(RenameFlags::EXCHANGE) => {
                if old.kind() == FileType::Directory {
                    old.bury()?;
                } else {
                    old.add_links(-1);
                }
            }
            _ => {}
        }
        self.directory()?.lock().remove(name);
        to.directory()?.lock().insert(to_name, moved.clone());
        if flags.contains(RenameFlags::EXCHANGE)
            && let Some(old) = &old
        {
            self.directory()?.lock().insert(name, old.clone());
        }
        moved.add_links(0);
        self.changed_names();
        to.changed_names();
        Ok(())
    }

    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let dir = self.directory()?.lock();
        for (&next, &Listed { ref name, ino, kind }) in dir.order.range(cursor.saturating_add(1)..) {
            if !emit(DirEntry { name, ino, kind, next }) {
                break;
            }
        }
        drop(dir);
        self.accessed();
        Ok(())
    }

    fn follow(&self) -> Result<Link> {
        match &self.body {
            Body::Symlink(target) => Ok(Link::Text(target.to_vec())),
            _ => Err(Errno::EINVAL),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let n = self.contents()?.read(offset, buf);
        self.accessed();
        Ok(n)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        self.check_seals(offset.saturating_add(buf.len() as u64), true)?;
        let n = self.contents()?.write(Some(offset), buf)?.1;
        self.modified();
        Ok(n)
    }

    fn put_page(&self, offset: u64, page: vm::Page) -> Result<()> {
        self.contents()?.put(offset, page)?;
        self.modified();
        Ok(())
    }

    fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        self.check_seals(u64::MAX, true)?;
        let written = self.contents()?.write(None, buf)?;
        self.modified();
        Ok(written)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(Errno::EFBIG);
        }
        self.check_seals(size, false)?;
        if self.contents()?.truncate(size) {
            self.mappings.unmap(size.div_ceil(PAGE)..u64::MAX, true);
        }
        self.modified();
        Ok(())
    }

    fn fallocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let punches = mode & sys::FALLOC_FL_PUNCH_HOLE != 0;
        if punches {
            self.check_seals(0, true)?;
        } else if mode & sys::FALLOC_FL_KEEP_SIZE == 0 {
            self.check_seals(self.contents()?.extent().0.max(offset.saturating_add(len)), false)?;
        }
        self.contents()?.fallocate(mode, offset, len)?;
        if mode & sys::FALLOC_FL_PUNCH_HOLE != 0 {
            // What programs have copied is theirs.
            self.mappings.unmap(offset.div_ceil(PAGE)..(offset + len) / PAGE, false);
        }
        self.modified();
        Ok(())
    }

    fn seals(&self) -> u32 {
        if matches!(self.body, Body::Regular(_)) { self.seals.load(Ordering::SeqCst) } else { 0 }
    }

    fn add_seals(&self, seals: u32) -> Result<()> {
        const KNOWN: u32 = sys::F_SEAL_SEAL
            | sys::F_SEAL_SHRINK
            | sys::F_SEAL_GROW
            | sys::F_SEAL_WRITE
            | sys::F_SEAL_FUTURE_WRITE
            | sys::F_SEAL_EXEC;
        self.contents().map_err(|_| Errno::EINVAL)?;
        if seals & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let add = |old: u32| (old & sys::F_SEAL_SEAL == 0).then_some(old | seals);
        let before = self.seals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).map_err(|_| Errno::EPERM)?;
        // Who maps it from now on sees the seal; who has mapped it is counted here.
        if seals & !before & sys::F_SEAL_WRITE != 0 && self.mappings.count(|shared, writable| shared && writable) > 0 {
            self.seals.fetch_and(before | !seals, Ordering::SeqCst);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.attr.lock().xattrs.get(name).ok_or(Errno::ENODATA)?.to_vec())
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        let mut attr = self.attr.lock();
        match (mode, attr.xattrs.contains_key(name)) {
            (SetMode::Create, true) => return Err(Errno::EEXIST),
            (SetMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        let others = attr.xattrs.iter().filter(|(known, _)| ***known != *name);
        let taken: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if taken + name.len() + value.len() > XATTRS_MAX {
            return Err(Errno::ENOSPC);
        }
        attr.xattrs.insert(name.into(), value.into());
        attr.ctime = Timestamp::now();
        Ok(())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let mut attr = self.attr.lock();
        attr.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        attr.ctime = Timestamp::now();
        Ok(())
    }

    fn xattr_names(&self) -> Vec<Vec<u8>> {
        self.attr.lock().xattrs.keys().map(|name| name.to_vec()).collect()
    }

    fn seek_extent(&self, offset: u64, hole: bool) -> Result<u64> {
        self.contents()?.seek_extent(offset, hole)
    }

    fn backing(self: Arc<Self>) -> Result<Arc<dyn vm::Backing>> {
        self.contents().map_err(|_| Errno::ENODEV)?;
        Ok(self)
    }

    fn device(&self) -> Option<DeviceId> {
        match self.body {
            Body::Device(_, id) => Some(id),
            _ => None,
        }
    }

    fn fifo(&self) -> Option<Arc<Pipe>> {
        match &self.body {
            Body::Fifo(pipe) => Some(pipe.clone()),
            _ => None,
        }
    }
}

impl RamInode {
    /// Marks an empty directory as removed.
    fn bury(&self) -> Result<()> {
        let mut dir = self.directory()?.lock();
        if !dir.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        dir.dead = true;
        drop(dir);
        self.add_links(-1);
        Ok(())
    }
}

impl vm::Backing for RamInode {
    fn page(&self, index: u64) -> core::result::Result<vm::Page, Errno> {
        self.contents()?.page(index)
    }

    fn cached(&self, index: u64) -> Option<vm::Page> {
        self.contents().ok()?.cached(index)
    }

    fn each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &vm::Page)) {
        if let Ok(contents) = self.contents() {
            contents.each_cached(range, each);
        }
    }

    fn punch(&self, pages: Range<u64>) -> core::result::Result<(), Errno> {
        let page = vm::PAGE_SIZE as u64;
        let mode = sys::FALLOC_FL_PUNCH_HOLE | sys::FALLOC_FL_KEEP_SIZE;
        Inode::fallocate(self, mode, pages.start * page, (pages.end - pages.start) * page)
    }

    fn mappings(&self) -> Option<&vm::Mappings> {
        Some(&self.mappings)
    }
}

impl Drop for RamInode {
    fn drop(&mut self) {
        // A tree that goes with its file system is taken down in a loop: recursion would need stack for every level.
        let mut doomed: Vec<Arc<RamInode>> = Vec::new();
        let take = |body: &mut Body, doomed: &mut Vec<Arc<RamInode>>| {
            if let Body::Directory(dir) = body {
                let entries = core::mem::take(&mut dir.get_mut().entries);
                doomed.extend(entries.into_values().map(|e| e.inode));
            }
        };
        take(&mut self.body, &mut doomed);
        while let Some(inode) = doomed.pop() {
            if let Some(mut inode) = Arc::into_inner(inode) {
                take(&mut inode.body, &mut doomed);
            }
        }
    }
}
