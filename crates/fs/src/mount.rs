//! Mounts: which file system hangs where.

use crate::{Dentry, FileType, Inode, Metadata, Path, Result, StatFs, dcache, inotify};
use abi::errno::Errno;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use task::{Mutex, Once};

/// A mounted file system, as far as the tree needs to know it.
pub trait FileSystem: Send + Sync {
    /// The type's name, as `/proc/mounts` shows it.
    fn name(&self) -> &'static str;

    /// The top directory.
    fn root(&self) -> Arc<dyn Inode>;

    /// What `statfs(2)` shows.
    fn statfs(&self) -> StatFs;

    /// The file with this number ([`Inode::handle`]).
    fn by_handle(&self, handle: u64) -> Option<Arc<dyn Inode>> {
        let _ = handle;
        None
    }

    /// Options for `/proc/mounts`, beyond those of the mount.
    fn options(&self) -> String {
        String::new()
    }
}

/// `MS_RDONLY` and its fellows: the bits of `mount(2)` a mount remembers.
pub const REMEMBERED: u32 = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME;
/// Nothing below may be changed.
pub const MS_RDONLY: u32 = 1;
/// Set-id bits are ignored.
pub const MS_NOSUID: u32 = 2;
/// Device nodes cannot be opened.
pub const MS_NODEV: u32 = 4;
/// Nothing below may be executed.
pub const MS_NOEXEC: u32 = 8;
/// Reading leaves access times.
pub const MS_NOATIME: u32 = 1024;

/// The device number of files that are in no mounted tree.
pub(crate) const ANON_DEV: u64 = 1;

/// A fresh device number for a file system in memory (major 0, as Linux has it).
#[must_use]
pub fn new_anonymous_device() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(ANON_DEV + 1);
    crate::DeviceId::new(0, NEXT.fetch_add(1, Ordering::Relaxed) as u32).encode()
}

/// One mount.
pub struct Mount {
    id: u64,
    fs: Arc<dyn FileSystem>,
    root: Arc<Dentry>,
    point: Option<Path>,
    source: String,
    flags: AtomicU32,
}

/// All mounts that hang on something, oldest first. The lock is taken for moments only and is the innermost of the tree's locks.
static MOUNTS: Mutex<Vec<Arc<Mount>>> = Mutex::new(Vec::new());

impl Mount {
    fn new(fs: Arc<dyn FileSystem>, root: Arc<Dentry>, point: Option<Path>, source: &str, flags: u32) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            fs,
            root,
            point,
            source: source.into(),
            flags: AtomicU32::new(flags & REMEMBERED),
        })
    }

    /// The number `/proc/<pid>/mountinfo` shows.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The top of what is mounted.
    #[must_use]
    pub fn root(&self) -> &Arc<Dentry> {
        &self.root
    }

    /// The top's name within the file system: `/`, unless a part of it was bound.
    #[must_use]
    pub fn root_name(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut here = self.root.clone();
        while let Some(parent) = here.parent() {
            names.push(here.place().name);
            here = parent;
        }
        let mut text = Vec::new();
        for name in names.iter().rev() {
            text.push(b'/');
            text.extend_from_slice(name);
        }
        if text.is_empty() { b"/".to_vec() } else { text }
    }

    /// The place at its top.
    #[inline]
    pub(crate) fn top(self: Arc<Self>) -> Path {
        let root = self.root.clone();
        Path::new(self, root)
    }

    /// What it hangs on; `None` for the top of the tree.
    #[must_use]
    pub fn point(&self) -> Option<Path> {
        self.point.clone()
    }

    /// What was given as the source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The remembered `MS_*` bits.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the remembered bits (`MS_REMOUNT`).
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags & REMEMBERED, Ordering::Relaxed);
    }

    /// Whether nothing may be changed here.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.flags() & MS_RDONLY != 0
    }
}

/// Makes a file system the top of a tree.
#[must_use]
pub fn mount_root(fs: Arc<dyn FileSystem>, source: &str) -> Path {
    let root = Dentry::root(fs.root());
    let mount = Mount::new(fs, root.clone(), None, source, 0);
    MOUNTS.lock().push(mount.clone());
    Path::new(mount, root)
}

/// Hangs a file system on a directory.
///
/// # Errors
/// `ENOTDIR` if `point` is no directory.
pub fn mount(fs: Arc<dyn FileSystem>, point: &Path, source: &str, flags: u32) -> Result<()> {
    let root = Dentry::root(fs.root());
    attach(Mount::new(fs, root, Some(point.clone()), source, flags), point)
}

/// Shows what is at `from` also at `point`.
///
/// # Errors
/// `ENOTDIR` if only one of them is a directory.
pub fn bind(from: &Path, point: &Path) -> Result<()> {
    let source = from.mount();
    let mount = Mount::new(source.fs.clone(), from.dentry().clone(), Some(point.clone()), &source.source, source.flags());
    attach(mount, point)
}

fn attach(mount: Arc<Mount>, point: &Path) -> Result<()> {
    let is_directory = |inode: &Arc<dyn Inode>| inode.kind() == FileType::Directory;
    if is_directory(point.inode()) != is_directory(mount.root.inode()) {
        return Err(Errno::ENOTDIR);
    }
    if point.dentry().removed() {
        return Err(Errno::ENOENT);
    }
    let covered;
    let mut mounts = MOUNTS.lock();
    covered = point.dentry().cover.lock().replace(mount.clone());
    point.dentry().mounts.fetch_add(1, Ordering::Release);
    mounts.push(mount);
    drop(mounts);
    drop(covered);
    Ok(())
}

/// Takes away the mount whose top `at` is. It lives on for those who use it; `detach` does not care whether any do.
///
/// # Errors
/// `EINVAL` if `at` is no mount's top, `EBUSY` if something is mounted below or, without `detach`, in use.
pub fn unmount(at: &Path, detach: bool) -> Result<()> {
    let (removed, covered);
    let point = at.mount().point().ok_or(Errno::EBUSY)?;
    if !Arc::ptr_eq(at.dentry(), at.mount().root()) {
        return Err(Errno::EINVAL);
    }
    let mut mounts = MOUNTS.lock();
    let index = mounts.iter().position(|m| Arc::ptr_eq(m, at.mount())).ok_or(Errno::EINVAL)?;
    let above = |m: &Arc<Mount>| m.point.as_ref().is_some_and(|p| Arc::ptr_eq(p.mount(), at.mount()));
    // One reference is the table's, one is the caller's path, and one its point's if nothing else was hung there since.
    let covers = point.dentry().cover.lock().as_ref().is_some_and(|top| Arc::ptr_eq(top, at.mount()));
    if mounts.iter().any(above) || (!detach && Arc::strong_count(at.mount()) > 2 + usize::from(covers)) {
        return Err(Errno::EBUSY);
    }
    removed = mounts.remove(index);
    let here = |m: &&Arc<Mount>| m.point.as_ref().is_some_and(|p| Arc::ptr_eq(p.dentry(), point.dentry()));
    covered = core::mem::replace(&mut *point.dentry().cover.lock(), mounts.iter().rev().find(here).cloned());
    point.dentry().mounts.fetch_sub(1, Ordering::Release);
    let shown_elsewhere = mounts.iter().any(|m| Arc::ptr_eq(&m.fs, &removed.fs));
    drop(mounts);
    if !shown_elsewhere {
        inotify::unmounted(removed.root.inode().metadata().dev);
    }
    drop((removed, covered));
    dcache::clear();
    Ok(())
}

/// What was mounted last on `dentry` of `mount`.
#[inline(always)]
pub(crate) fn over(mount: &Arc<Mount>, dentry: &Arc<Dentry>) -> Option<Arc<Mount>> {
    if dentry.mounts.load(Ordering::Acquire) == 0 {
        return None;
    }
    let here = |point: &Path| Arc::ptr_eq(point.dentry(), dentry) && Arc::ptr_eq(point.mount(), mount);
    let last = dentry.cover.lock().as_ref().filter(|top| top.point.as_ref().is_some_and(here)).cloned();
    // What was hung there last may hang there in another mount of the same file system.
    last.or_else(|| search(mount, dentry))
}

#[cold]
fn search(mount: &Arc<Mount>, dentry: &Arc<Dentry>) -> Option<Arc<Mount>> {
    let here = |point: &Path| Arc::ptr_eq(point.dentry(), dentry) && Arc::ptr_eq(point.mount(), mount);
    MOUNTS.lock().iter().rev().find(|mount| mount.point.as_ref().is_some_and(here)).cloned()
}

/// The top of what is mounted on `path`, or `path` itself.
#[must_use]
pub fn cross(mut path: Path) -> Path {
    while let Some(mount) = over(path.mount(), path.dentry()) {
        path = mount.top();
    }
    path
}

/// All mounts, oldest first.
#[must_use]
pub fn list() -> Vec<Arc<Mount>> {
    MOUNTS.lock().clone()
}

/// The mount of everything that has no place in the tree.
pub(crate) fn anonymous() -> Arc<Mount> {
    static ANON: Once<Arc<Mount>> = Once::new();
    ANON.call_once(|| {
        let fs = Arc::new(AnonFs);
        let root = Dentry::root(fs.root());
        Mount::new(fs, root, None, "anon", 0)
    })
    .clone()
}

/// The file system of files without names.
struct AnonFs;

struct AnonRoot;

impl Inode for AnonRoot {
    fn metadata(&self) -> Metadata {
        Metadata::generated(ANON_DEV, 0, FileType::Directory, 0o500)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }
}

impl FileSystem for AnonFs {
    fn name(&self) -> &'static str {
        "anon_inodefs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        Arc::new(AnonRoot)
    }

    fn statfs(&self) -> StatFs {
        StatFs { magic: 0x0904_1934, block_size: 4096, ..StatFs::default() }
    }
}
