//! Names in the tree. A [`Dentry`] is a name that somebody uses at the moment: an open file, a
//! working directory, a mount, or the parent of one. Names that nobody uses exist in the file
//! systems only.

use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
use task::{Mutex, MutexGuard};

use crate::mount::{CachedMount, Mount};
use crate::name_map::NameMap;
use crate::{FileOps, FileType, Inode, Metadata, NAME_MAX, OpenFlags, Result, SetAttr};
use crate::{dcache, inotify};

/// A directory's names in use. The lock on it is *the* lock of the directory: whoever looks up,
/// makes, removes or renames an entry holds it, so the names here never disagree with the file
/// system below.
#[derive(Default)]
pub(crate) struct Children {
    names: NameMap<Weak<Dentry>>,
    /// At this size names that are not in use any more are cleared out.
    purge_at: usize,
}

impl Children {
    fn get(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        self.names.get(name)?.upgrade()
    }

    pub(crate) fn insert(&mut self, name: Arc<[u8]>, dentry: &Arc<Dentry>) {
        if self.names.len() >= self.purge_at {
            self.names.retain(|_, dentry| dentry.strong_count() != 0);
            self.purge_at = (self.names.len() * 2).max(16);
        }
        self.names.insert(name, Arc::downgrade(dentry));
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.names.remove(name);
    }
}

/// Location of a dentry: directory and name. Changed by rename and unlink, under the lock of the
/// parent's children.
#[derive(Clone)]
pub(crate) struct DentryLocation {
    pub(crate) parent: Option<Arc<Dentry>>,
    pub(crate) name: Arc<[u8]>,
    pub(crate) removed: bool,
}

/// One name in use.
pub struct Dentry {
    _counted: census::Name,
    inode: Arc<dyn Inode>,
    /// The file's, which never changes.
    kind: FileType,
    /// Whether names below it are kept: what they mean does not change by itself, and this one is
    /// found again by the next walk. One below a generated directory is made anew by each walk.
    caches_names: bool,
    hashed_key: dcache::HashedKey,
    /// Life of what is written (`F_SET_RW_HINT`), for a file that does not keep it itself: as long
    /// as the name is in use.
    write_hint: AtomicU8,
    location: Mutex<DentryLocation>,
    children: Mutex<Children>,
    /// Number of mounts on this dentry; spares ordinary lookups the mount table.
    pub(crate) mounts: AtomicUsize,
    /// The mount that was mounted here last, which spares crossing to it a search of the mount
    /// table.
    pub(crate) cached_mount: Mutex<Option<CachedMount>>,
}

impl Dentry {
    /// How long what is written to the file will live, as programs announce it (`F_SET_RW_HINT`).
    #[must_use]
    pub fn write_hint(&self) -> &AtomicU8 {
        self.inode.write_hint().unwrap_or(&self.write_hint)
    }

    /// The top of a tree.
    #[must_use]
    pub fn root(inode: Arc<dyn Inode>) -> Arc<Self> {
        Self::new(inode, None, b"/")
    }

    fn new(inode: Arc<dyn Inode>, parent: Option<Arc<Self>>, name: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            _counted: census::Name::default(),
            kind: inode.kind(),
            caches_names: inode.has_stable_names()
                && parent.as_ref().is_none_or(|parent| parent.caches_names),
            inode,
            hashed_key: dcache::HashedKey::new(parent.as_ref(), name),
            write_hint: AtomicU8::new(0),
            location: Mutex::new(DentryLocation {
                parent,
                name: name.into(),
                removed: false,
            }),
            children: Mutex::new(Children::default()),
            mounts: AtomicUsize::new(0),
            cached_mount: Mutex::new(None),
        })
    }

    /// The file.
    #[must_use]
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// The kind of file.
    #[must_use]
    pub fn kind(&self) -> FileType {
        self.kind
    }

    #[inline]
    pub(crate) fn hashed_key(&self) -> &dcache::HashedKey {
        &self.hashed_key
    }

    pub(crate) fn location(&self) -> DentryLocation {
        self.location.lock().clone()
    }

    pub(crate) fn set_location(&self, parent: Arc<Self>, name: &[u8]) {
        self.hashed_key.invalidate();
        // The old parent is dropped after the lock: it may be its last reference.
        let old = core::mem::replace(
            &mut *self.location.lock(),
            DentryLocation {
                parent: Some(parent),
                name: name.into(),
                removed: false,
            },
        );
        drop(old);
    }

    pub(crate) fn set_removed(&self) {
        self.hashed_key.invalidate();
        self.location.lock().removed = true;
    }

    /// The directory above, within the same file system.
    #[must_use]
    pub fn parent(&self) -> Option<Arc<Self>> {
        self.location.lock().parent.clone()
    }

    /// Whether this is `top` or below it.
    pub(crate) fn is_within(self: &Arc<Self>, top: &Arc<Self>) -> bool {
        let mut here = Some(self.clone());
        while let Some(dentry) = here {
            if Arc::ptr_eq(&dentry, top) {
                return true;
            }
            here = dentry.parent();
        }
        false
    }

    /// Whether the name was taken away while the file was in use.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.location.lock().removed
    }

    /// Takes the directory's lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Children> {
        self.children.lock()
    }

    /// The dentry of an entry, with the directory locked. The caller drops the result after the
    /// guard.
    ///
    /// # Errors
    /// `ENOENT`, `ENAMETOOLONG`.
    pub(crate) fn lookup_locked(
        self: &Arc<Self>,
        children: &mut Children,
        name: &[u8],
    ) -> Result<Arc<Self>> {
        if let Some(child) = children.get(name) {
            return Ok(child);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let inode = self.inode.lookup(name)?;
        Ok(self.instantiate(children, name, inode))
    }

    /// A dentry for an entry that was just looked up or made, with the directory locked.
    pub(crate) fn instantiate(
        self: &Arc<Self>,
        children: &mut Children,
        name: &[u8],
        inode: Arc<dyn Inode>,
    ) -> Arc<Self> {
        let child = Self::new(inode, Some(self.clone()), name);
        if self.caches_names {
            let name = child.location.lock().name.clone();
            children.insert(name, &child);
        }
        child
    }

    /// Finds an entry of this directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`.
    #[inline(always)]
    pub fn lookup(self: &Arc<Self>, name: &[u8]) -> Result<Arc<Self>> {
        match self.lookup_fast(name) {
            Some(child) => Ok(child),
            None => self.lookup_slow(name),
        }
    }

    /// Finds a name in the file system, past the cache; otherwise as [`Self::lookup`].
    #[inline(never)]
    fn lookup_slow(self: &Arc<Self>, name: &[u8]) -> Result<Arc<Self>> {
        let displaced;
        let mut names = self.lock();
        let child = self.lookup_locked(&mut names, name)?;
        displaced = self.cache_child(&names, name, &child);
        drop(names);
        drop(displaced);
        Ok(child)
    }

    /// An entry that was used lately, without the directory's lock.
    #[inline]
    pub(crate) fn lookup_fast(self: &Arc<Self>, name: &[u8]) -> Option<Arc<Self>> {
        dcache::lookup(self, name)
    }

    /// Notes that an entry was used, with the directory locked, so that whoever removes the name
    /// clears that later. The caller drops the result, which gave way, after the guard.
    #[must_use]
    pub(crate) fn cache_child(
        self: &Arc<Self>,
        _: &Children,
        name: &[u8],
        child: &Arc<Self>,
    ) -> Option<Arc<Self>> {
        if self.caches_names {
            dcache::insert(self, name, child)
        } else {
            None
        }
    }

    /// Whether this is the entry `name` of `parent` at the moment.
    pub(crate) fn is_entry_of(&self, parent: &Arc<Self>, name: &[u8]) -> bool {
        let location = self.location.lock();
        !location.removed
            && location
                .parent
                .as_ref()
                .is_some_and(|p| Arc::ptr_eq(p, parent))
            && *location.name == *name
    }
}

impl Drop for Dentry {
    fn drop(&mut self) {
        if self.location.get_mut().removed {
            inotify::notify_delete_self(&self.inode);
        }
        // A chain of parents that only this dentry kept is taken down in a loop: recursion would
        // need stack for every level.
        let mut next = self.location.get_mut().parent.take();
        while let Some(mut dentry) = next.and_then(Arc::into_inner) {
            next = dentry.location.get_mut().parent.take();
            // `dentry` goes here, without a parent.
        }
    }
}

/// A path in the tree of mounts: which mount, and which name in its file system.
#[derive(Clone)]
pub struct Path {
    mount: Arc<Mount>,
    dentry: Arc<Dentry>,
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && Arc::ptr_eq(&self.dentry, &other.dentry)
    }
}

impl Path {
    /// The path of `dentry` in `mount`.
    #[must_use]
    pub fn new(mount: Arc<Mount>, dentry: Arc<Dentry>) -> Self {
        Self { mount, dentry }
    }

    /// A path of its own for a file without a name in any tree; `name` is what is shown for it.
    /// After a name that ends in `:` the file's number is shown (`pipe:[7]`). `open` is what
    /// opening it again through `/proc/<pid>/fd` does.
    #[must_use]
    pub fn anonymous(
        name: &str,
        kind: FileType,
        mode: u32,
        open: impl Fn(OpenFlags) -> Result<Arc<dyn FileOps>> + Send + Sync + 'static,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ino = NEXT.fetch_add(1, Ordering::Relaxed);
        let meta = Metadata::generated(crate::mount::ANON_DEV, ino, kind, mode);
        let inode = Arc::new(AnonInode {
            kind,
            meta: Mutex::new(meta),
            open,
        });
        if name.ends_with(':') {
            Self::pseudo(inode, &format!("{name}[{ino}]"))
        } else {
            Self::pseudo(inode, name)
        }
    }

    /// A path for an inode that has no name in any tree.
    #[must_use]
    pub fn pseudo(inode: Arc<dyn Inode>, name: &str) -> Self {
        Self::pseudo_in(crate::mount::anonymous(), inode, name)
    }

    /// Path of an inode without a name, as [`Self::pseudo`], in a mount that is in no tree.
    #[must_use]
    pub fn pseudo_in(mount: Arc<Mount>, inode: Arc<dyn Inode>, name: &str) -> Self {
        Self {
            mount,
            dentry: Dentry::new(inode, None, name.as_bytes()),
        }
    }

    /// A path for a file that was made in `dir` without a name (`O_TMPFILE`). It is shown as a name
    /// there that was removed, by its number, as on Linux.
    pub(crate) fn tmpfile(dir: &Self, inode: Arc<dyn Inode>) -> Self {
        let name = format!("#{}", inode.metadata().ino);
        let dentry = Dentry::new(inode, Some(dir.dentry.clone()), name.as_bytes());
        dentry.set_removed();
        Self {
            mount: dir.mount.clone(),
            dentry,
        }
    }

    /// A path in `mount` for a file of which no name is known.
    #[must_use]
    pub fn disconnected(mount: Arc<Mount>, inode: Arc<dyn Inode>) -> Self {
        Self {
            mount,
            dentry: Dentry::new(inode, None, b""),
        }
    }

    /// The file here.
    #[must_use]
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.dentry.inode
    }

    /// The name here.
    #[must_use]
    pub fn dentry(&self) -> &Arc<Dentry> {
        &self.dentry
    }

    /// The mount this is in.
    #[must_use]
    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    /// Goes on to a dentry of the same mount.
    pub(crate) fn descend(&mut self, to: Arc<Dentry>) {
        self.dentry = to;
    }

    /// The directory above, across mounts; `None` at the very top.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let mut here = self.clone();
        while Arc::ptr_eq(&here.dentry, here.mount.root()) {
            here = here.mount.mountpoint()?;
        }
        let parent = here.dentry.parent()?;
        Some(Self {
            mount: here.mount,
            dentry: parent,
        })
    }

    /// Whether a file system is mounted here, or a part of one: the top of what the mount shows.
    #[must_use]
    pub fn is_mount_root(&self) -> bool {
        Arc::ptr_eq(self.dentry(), self.mount().root())
    }

    /// The name as text, from `root` (`None`: the top). A file whose name was removed ends in
    /// ` (deleted)`; one that is not below `root` has its name from the top, as on Linux.
    #[must_use]
    pub fn to_bytes(&self, root: Option<&Path>) -> Vec<u8> {
        self.text(root).0
    }

    /// The name as text, from `root`; `None` if it is not below that.
    #[must_use]
    pub fn to_bytes_below(&self, root: &Path) -> Option<Vec<u8>> {
        let (text, is_below) = self.text(Some(root));
        is_below.then_some(text)
    }

    /// The name as text, and whether it is from `root` on.
    fn text(&self, root: Option<&Path>) -> (Vec<u8>, bool) {
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut here = self.clone();
        let mut reached = true;
        let removed = here.dentry.is_removed();
        loop {
            if root.is_some_and(|root| *root == here) {
                break;
            }
            if Arc::ptr_eq(&here.dentry, here.mount.root()) {
                match here.mount.mountpoint() {
                    Some(point) => here = point,
                    None => {
                        reached = root.is_none();
                        break;
                    }
                }
                continue;
            }
            let location = here.dentry.location();
            let Some(parent) = location.parent else {
                // Anonymous: its name is all there is.
                return (location.name.to_vec(), true);
            };
            names.push(location.name);
            here.dentry = parent;
        }
        let mut text = Vec::new();
        for name in names.iter().rev() {
            text.push(b'/');
            text.extend_from_slice(name);
        }
        if names.is_empty() {
            text.push(b'/');
        }
        if removed {
            text.extend_from_slice(b" (deleted)");
        }
        (text, reached)
    }

    /// The file's metadata.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        self.inode().metadata()
    }

    /// Alignment in bytes of the offsets and lengths of transfers with `O_DIRECT`; `None`: the file
    /// is not opened with that.
    #[must_use]
    pub fn direct_alignment(&self) -> Option<u32> {
        match self.inode().kind() {
            FileType::Block => crate::block::direct_alignment(self.inode().device()?),
            _ => self.inode().direct_alignment(),
        }
    }

    /// Refuses on a mount that is read-only.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn require_writable(&self) -> Result<()> {
        if self.mount.is_read_only() {
            Err(Errno::EROFS)
        } else {
            Ok(())
        }
    }
}

/// A file that exists only while it is open: a pipe's end, an event counter.
struct AnonInode<F> {
    kind: FileType,
    meta: Mutex<Metadata>,
    open: F,
}

impl<F: Fn(OpenFlags) -> Result<Arc<dyn FileOps>> + Send + Sync + 'static> Inode for AnonInode<F> {
    fn metadata(&self) -> Metadata {
        *self.meta.lock()
    }

    fn kind(&self) -> FileType {
        self.kind
    }

    fn set_attr(&self, change: &SetAttr) -> Result<()> {
        change.apply_to(&mut self.meta.lock());
        Ok(())
    }

    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        (self.open)(flags).map(Some)
    }
}
