//! Mounts: which file system is mounted where.
//!
//! A [`SuperBlock`] is a file system with its tree of names; a [`Mount`] shows a part of it at a
//! place, and a [`Namespace`] is a tree of mounts. All changes of such trees are made one at a time
//! (`tree::TreeChange`); who only looks takes the locks of single mounts for moments.

mod anonymous;
mod namespace;
mod operations;
mod propagation;
mod tree;
mod unmount;

use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
pub(crate) use anonymous::anonymous;
use linux_raw_sys::general as sys;
use namespace::NamespaceState;
pub(crate) use namespace::detached_mount;
pub use namespace::{MAX_MOUNTS, Namespace};
pub use operations::{bind, copy_tree, mount, move_mount, pivot_root};
use propagation::PeerGroup;
pub use propagation::{Propagation, set_group_from, set_propagation};
use task::Mutex;
pub(crate) use tree::{detach_mounts, is_mountpoint_in};
pub use unmount::{UnmountFlags, unmount};

use crate::{Dentry, FileType, Inode, Path, Result, StatFs, dcache, inotify};

/// A mounted file system, as far as the tree needs to know it.
pub trait FileSystem: Send + Sync {
    /// The type's name, as `/proc/mounts` shows it.
    fn name(&self) -> &'static str;

    /// The top directory.
    fn root(&self) -> Arc<dyn Inode>;

    /// Figures of the file system for `statfs(2)`.
    fn statfs(&self) -> StatFs;

    /// The file with this number ([`Inode::file_handle`]).
    fn by_handle(&self, handle: u64) -> Option<Arc<dyn Inode>> {
        let _ = handle;
        None
    }

    /// The names that lead from the top to the directory with this number.
    fn names_of(&self, handle: u64) -> Option<Vec<Arc<[u8]>>> {
        let _ = handle;
        None
    }

    /// Options for `/proc/mounts`, beyond those of the mount, each with a comma before it.
    fn options(&self) -> String {
        String::new()
    }

    /// Forbids or allows changes (`MS_REMOUNT`): nobody writes meanwhile.
    ///
    /// # Errors
    /// `EBUSY`, `EROFS`; the device's.
    fn set_read_only(&self, read_only: bool) -> Result<()> {
        let _ = read_only;
        Ok(())
    }

    /// Brings everything that was written before to the medium (`syncfs(2)`).
    ///
    /// # Errors
    /// The device's.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Called when it is mounted nowhere any more.
    fn put_super(&self) {}

    /// Takes over other options (`MS_REMOUNT`), all or none.
    ///
    /// # Errors
    /// `EINVAL` for what there is not, or cannot be changed.
    fn reconfigure(&self, options: &str) -> Result<()> {
        if options.is_empty() {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }
}

pub use sys::{MS_NOATIME, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY};

/// `MS_NOSYMFOLLOW`: symbolic links are not followed.
pub const MS_NOSYMFOLLOW: u32 = 256;

/// The bits of `mount(2)` that each mount has for itself.
const MOUNT_FLAGS: u32 = MS_RDONLY
    | MS_NOSUID
    | MS_NODEV
    | MS_NOEXEC
    | MS_NOSYMFOLLOW
    | ATIME_FLAGS
    | sys::MS_NODIRATIME;
/// Mount flags that say how access times are kept.
const ATIME_FLAGS: u32 = MS_NOATIME | sys::MS_RELATIME;
/// The bits that all mounts of a file system have in common.
pub const SUPER_FLAGS: u32 =
    MS_RDONLY | sys::MS_SYNCHRONOUS | sys::MS_DIRSYNC | sys::MS_MANDLOCK | sys::MS_LAZYTIME;

/// Mount flags that a mount keeps of the bits of `mount(2)`. `old` is what it has, if it is there
/// already: bits that say nothing of access times leave those.
#[must_use]
pub fn mount_flags(bits: u32, old: Option<u32>) -> u32 {
    let mut flags = bits & MOUNT_FLAGS & !sys::MS_RELATIME;
    if bits & (MS_NOATIME | sys::MS_STRICTATIME) == 0 {
        flags |= sys::MS_RELATIME;
    }
    if bits & sys::MS_STRICTATIME != 0 {
        flags &= !ATIME_FLAGS;
    }
    match old {
        Some(old) if bits & (ATIME_FLAGS | sys::MS_NODIRATIME | sys::MS_STRICTATIME) == 0 => {
            flags & !ATIME_FLAGS | old & (ATIME_FLAGS | sys::MS_NODIRATIME)
        }
        _ => flags,
    }
}

/// The device number of files that are in no mounted tree.
pub(crate) const ANON_DEV: u64 = 1;

/// A fresh device number for a file system in memory (major 0, as Linux has it).
#[must_use]
pub fn new_anonymous_device() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(ANON_DEV + 1);
    crate::DeviceId::new(0, NEXT.fetch_add(1, Ordering::Relaxed) as u32).encode()
}

/// A file system with one tree of names, which all mounts of it show (Linux' super block).
pub struct SuperBlock {
    _counted: census::Super,
    fs: Arc<dyn FileSystem>,
    root: Arc<Dentry>,
    /// [`SUPER_FLAGS`].
    flags: AtomicU32,
    mounts: Mutex<Vec<Weak<Mount>>>,
}

/// All superblocks.
static SUPER_BLOCKS: Mutex<Vec<Weak<SuperBlock>>> = Mutex::new(Vec::new());

impl SuperBlock {
    /// The one of a file system. If the names of a file system are the kernel's to change, each
    /// time a new one.
    #[must_use]
    pub fn for_fs(fs: Arc<dyn FileSystem>, flags: u32) -> Arc<Self> {
        let inode = fs.root();
        let mut supers = SUPER_BLOCKS.lock();
        let same = |known: &Arc<Self>| Arc::ptr_eq(&known.fs, &fs);
        if inode.has_stable_names()
            && let Some(known) = supers.iter().filter_map(Weak::upgrade).find(same)
        {
            return known;
        }
        let (flags, mounts) = (AtomicU32::new(flags & SUPER_FLAGS), Mutex::default());
        let new = Arc::new(Self {
            _counted: census::Super::default(),
            fs,
            root: Dentry::root(inode),
            flags,
            mounts,
        });
        supers.retain(|known| known.strong_count() > 0);
        supers.push(Arc::downgrade(&new));
        new
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The bits that all mounts of it have in common.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    fn mounts(&self) -> Vec<Arc<Mount>> {
        self.mounts
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Changes the common bits and the options (`MS_REMOUNT`).
    ///
    /// # Errors
    /// `EBUSY` if it is to be read-only and a file is open for writing; what the file system says
    /// of the options.
    pub fn reconfigure(&self, flags: u32, options: &str) -> Result<()> {
        let old = self.flags();
        if flags & !old & MS_RDONLY != 0 {
            self.flags.fetch_or(MS_RDONLY, Ordering::SeqCst);
        }
        let done =
            if flags & MS_RDONLY != 0 && self.mounts().iter().any(|mount| mount.has_writers()) {
                Err(Errno::EBUSY)
            } else {
                self.fs.reconfigure(options).and_then(|()| {
                    if (flags ^ old) & MS_RDONLY == 0 {
                        return Ok(());
                    }
                    self.fs.set_read_only(flags & MS_RDONLY != 0)
                })
            };
        self.flags.store(
            if done.is_ok() {
                flags & SUPER_FLAGS
            } else {
                old
            },
            Ordering::SeqCst,
        );
        done
    }
}

/// Takes a name away from the top directory of a file system, for the kernel's own sake: also from
/// those who remember it.
///
/// # Errors
/// `ENOENT`; those of the file system.
pub(crate) fn remove_name(fs: &Arc<dyn FileSystem>, name: &[u8]) -> Result<()> {
    let all = SUPER_BLOCKS.lock().clone();
    let same = |known: &Arc<SuperBlock>| core::ptr::addr_eq(&raw const *known.fs, &raw const **fs);
    let Some(known) = all.iter().filter_map(Weak::upgrade).find(same) else {
        return fs.root().unlink(name);
    };
    let victim;
    let mut names = known.root.lock();
    victim = known.root.lookup_locked(&mut names, name)?;
    known.root.inode().unlink(name)?;
    names.remove(name);
    victim.set_removed();
    drop(names);
    let (dir, kind) = (known.root.inode(), victim.kind());
    inotify::notify_dir_entry(dir, sys::IN_DELETE, name, kind);
    drop(dcache::remove(&known.root, name));
    Ok(())
}

impl Drop for SuperBlock {
    fn drop(&mut self) {
        inotify::notify_unmount(self.root.inode().metadata().dev);
        dcache::clear();
        self.fs.put_super();
    }
}

/// One mount.
pub struct Mount {
    _counted: census::Mount,
    id: u64,
    super_block: Arc<SuperBlock>,
    root: Arc<Dentry>,
    source: String,
    flags: AtomicU32,
    /// Count of those who have a file open for writing through the mount, or change one.
    writers: AtomicUsize,
    /// Whether the mount was not used since `MNT_EXPIRE`.
    idle: AtomicBool,
    links: Mutex<MountLinks>,
}

/// Links of a mount in its tree: the mount point, and the mounts on it. Changed by a
/// `tree::TreeChange` only.
#[derive(Default)]
struct MountLinks {
    mountpoint: Option<Path>,
    children: Vec<ChildMount>,
    /// The namespace it is in; none if it is in no tree.
    namespace: Option<Arc<NamespaceState>>,
    /// With whom it shares what is mounted below.
    group: Option<Arc<PeerGroup>>,
    /// From whom it gets that.
    master: Option<Arc<PeerGroup>>,
    unbindable: bool,
}

/// A mount on another one: its mount point, and the mount itself. There is one at each
/// name.
#[derive(Clone)]
struct ChildMount {
    mountpoint: Arc<Dentry>,
    mount: Arc<Mount>,
}

/// The mount that was mounted on a name last, which spares crossing to it a search.
pub(crate) struct CachedMount {
    /// The address of the mount that it is mounted on, which it holds.
    parent: usize,
    mount: Arc<Mount>,
}

impl Mount {
    fn new(super_block: Arc<SuperBlock>, root: Arc<Dentry>, source: &str, flags: u32) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let new = Arc::new(Self {
            _counted: census::Mount::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            root,
            source: source.into(),
            flags: AtomicU32::new(flags),
            writers: AtomicUsize::new(0),
            idle: AtomicBool::new(false),
            links: Mutex::default(),
            super_block: super_block.clone(),
        });
        let mut mounts = super_block.mounts.lock();
        mounts.retain(|mount| mount.strong_count() > 0);
        mounts.push(Arc::downgrade(&new));
        drop(mounts);
        new
    }

    /// The number `/proc/<pid>/mountinfo` shows.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.super_block.fs
    }

    /// The file system with what all mounts of it have in common.
    #[must_use]
    pub fn super_block(&self) -> &Arc<SuperBlock> {
        &self.super_block
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
        let removed = here.is_removed();
        while let Some(parent) = here.parent() {
            names.push(here.location().name);
            here = parent;
        }
        // What is in no tree has only a name.
        let mut text = if names.is_empty() {
            here.location().name.to_vec()
        } else {
            Vec::new()
        };
        for name in names.iter().rev() {
            text.push(b'/');
            text.extend_from_slice(name);
        }
        if removed {
            text.extend_from_slice(b"//deleted");
        }
        text
    }

    /// The path of its root.
    #[inline]
    #[must_use]
    pub fn root_path(self: Arc<Self>) -> Path {
        let root = self.root.clone();
        Path::new(self, root)
    }

    /// Mount point; `None` for the top of a tree.
    #[must_use]
    pub fn mountpoint(&self) -> Option<Path> {
        self.links.lock().mountpoint.clone()
    }

    /// Source that was given to `mount(2)`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The `MS_*` bits of this mount.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Whether nothing may be changed here.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        (self.flags.load(Ordering::SeqCst) | self.super_block.flags.load(Ordering::SeqCst))
            & MS_RDONLY
            != 0
    }

    /// Changes the bits of this mount, not of others of the file system (`mount_setattr(2)`,
    /// `MS_REMOUNT` with `MS_BIND`).
    ///
    /// # Errors
    /// `EBUSY` if it is to be read-only and a file is open for writing.
    pub fn set_flags(&self, flags: u32) -> Result<()> {
        let old = self.flags();
        if flags & !old & MS_RDONLY != 0 {
            // Whoever begins to write now is refused, or is seen.
            self.flags.fetch_or(MS_RDONLY, Ordering::SeqCst);
            if self.has_writers() {
                self.flags.store(old, Ordering::SeqCst);
                return Err(Errno::EBUSY);
            }
        }
        self.flags.store(flags, Ordering::SeqCst);
        self.notify_namespace();
        Ok(())
    }

    fn has_writers(&self) -> bool {
        self.writers.load(Ordering::SeqCst) != 0
    }

    /// Somebody writes from now on.
    ///
    /// # Errors
    /// `EROFS`.
    pub(crate) fn want_write(&self) -> Result<()> {
        self.writers.fetch_add(1, Ordering::SeqCst);
        if self.is_read_only() {
            self.drop_write();
            return Err(Errno::EROFS);
        }
        Ok(())
    }

    pub(crate) fn drop_write(&self) {
        census::released(self.writers.fetch_sub(1, Ordering::SeqCst), 1);
    }

    /// The mount was used.
    #[inline]
    pub(crate) fn touch(&self) {
        if self.idle.load(Ordering::Relaxed) {
            self.idle.store(false, Ordering::Relaxed);
        }
    }

    fn is_in_namespace(&self, home: &Arc<NamespaceState>) -> bool {
        self.links
            .lock()
            .namespace
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, home))
    }

    fn namespace(&self) -> Option<Arc<NamespaceState>> {
        self.links.lock().namespace.clone()
    }

    fn notify_namespace(&self) {
        if let Some(home) = self.namespace() {
            home.notify();
        }
    }

    /// The mount that covers a name of this mount.
    fn child_at(&self, dentry: &Arc<Dentry>) -> Option<Arc<Self>> {
        self.links
            .lock()
            .children
            .iter()
            .find(|child| Arc::ptr_eq(&child.mountpoint, dentry))
            .map(|child| child.mount.clone())
    }

    fn children(&self) -> Vec<ChildMount> {
        self.links.lock().children.clone()
    }

    /// The path of the file with this number, if it is known; of a directory with those above it.
    #[must_use]
    pub fn by_handle(self: &Arc<Self>, handle: u64) -> Option<Path> {
        /// Somebody may rename what is looked for.
        const ATTEMPTS: usize = 100;
        let inode = self.fs().by_handle(handle)?;
        if inode.kind() != FileType::Directory {
            return Some(Path::disconnected(self.clone(), inode));
        }
        for _ in 0..ATTEMPTS {
            let names = self.fs().names_of(handle)?;
            let found = names
                .iter()
                .try_fold(self.super_block.root.clone(), |dentry, name| {
                    dentry.lookup(name)
                });
            if let Ok(found) = found
                && core::ptr::addr_eq(Arc::as_ptr(found.inode()), Arc::as_ptr(&inode))
            {
                return Some(Path::new(self.clone(), found));
            }
        }
        None
    }

    /// This and all below it.
    #[must_use]
    pub fn subtree(self: &Arc<Self>) -> Vec<Arc<Self>> {
        tree::subtree_of(self)
    }

    /// All mounts of the tree this is in, in the order they were made.
    #[must_use]
    pub fn tree_mounts(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let mut top = self.clone();
        while let Some(point) = top.mountpoint() {
            top = point.mount().clone();
        }
        let mut all = tree::subtree_of(&top);
        all.sort_unstable_by_key(|mount| mount.id);
        all
    }
}

/// The mount that covers `dentry` of `mount`.
#[inline(always)]
pub(crate) fn lookup_mount(mount: &Arc<Mount>, dentry: &Arc<Dentry>) -> Option<Arc<Mount>> {
    if dentry.mounts.load(Ordering::Acquire) == 0 {
        return None;
    }
    let on = Arc::as_ptr(mount).addr();
    let last = dentry
        .cached_mount
        .lock()
        .as_ref()
        .filter(|cover| cover.parent == on)
        .map(|cover| cover.mount.clone());
    // What was mounted there last may be so in another mount of the same file system.
    last.or_else(|| search(mount, dentry))
}

#[cold]
fn search(mount: &Arc<Mount>, dentry: &Arc<Dentry>) -> Option<Arc<Mount>> {
    mount.child_at(dentry)
}

/// The top of what is mounted on `path`, or `path` itself.
#[must_use]
pub fn traverse_mounts(mut path: Path) -> Path {
    while let Some(mount) = lookup_mount(path.mount(), path.dentry()) {
        path = mount.root_path();
    }
    path
}
