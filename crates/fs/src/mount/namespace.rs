//! Namespaces: trees of mounts.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use linux_raw_sys::general::MS_RELATIME;

use super::tree::{self, TreeChange};
use super::{FileSystem, Mount, SuperBlock, mount_flags};
use crate::poll::PollQueue;
use crate::pseudo::Watched;
use crate::ramfs::RamFs;
use crate::{Path, nsfs};

/// The most mounts in a namespace (`/proc/sys/fs/mount-max`).
pub static MAX_MOUNTS: AtomicUsize = AtomicUsize::new(100_000);

/// Use of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamespaceKind {
    /// Processes can be in it.
    OfProcesses,
    /// No process is in it: its mounts are on their way to another (`fsmount(2)`, `open_tree(2)`).
    Anonymous,
}

/// State of a namespace that its mounts refer to.
pub(super) struct NamespaceState {
    /// In the order they are made.
    sequence: u64,
    /// Inode number in `/proc/PID/ns`.
    number: u32,
    pub(super) kind: NamespaceKind,
    pub(super) mounts: AtomicUsize,
    /// Counts changes, which who waits is told of.
    change_count: AtomicU64,
    poll_queue: PollQueue,
}

impl NamespaceState {
    fn new(kind: NamespaceKind) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            sequence: NEXT.fetch_add(1, Ordering::Relaxed),
            number: match kind {
                NamespaceKind::Anonymous => 0,
                NamespaceKind::OfProcesses => nsfs::new_number(),
            },
            kind,
            mounts: AtomicUsize::new(0),
            change_count: AtomicU64::new(0),
            poll_queue: PollQueue::new(),
        })
    }

    /// Whether there is no room for `more` mounts.
    pub(super) fn lacks_room(&self, more: usize) -> bool {
        self.mounts.load(Ordering::Relaxed) + more > MAX_MOUNTS.load(Ordering::Relaxed)
    }

    pub(super) fn notify(&self) {
        self.change_count.fetch_add(1, Ordering::SeqCst);
        self.poll_queue.notify();
    }
}

/// The mount of a file system that is in no tree and no namespace.
pub(crate) fn detached_mount(super_block: Arc<SuperBlock>, source: &str) -> Arc<Mount> {
    let root = super_block.root.clone();
    Mount::new(super_block, root, source, MS_RELATIME)
}

/// A tree of mounts. When nobody uses it any more, all in it is unmounted.
pub struct Namespace {
    pub(super) state: Arc<NamespaceState>,
    pub(super) root: Arc<Mount>,
}

impl Namespace {
    /// The first one: `fs`, on an empty file system that can neither be seen nor unmounted.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>, source: &str) -> Arc<Self> {
        Self::with_root(SuperBlock::for_fs(fs, 0), source, 0)
    }

    /// The same of a file system that is mounted with `bits` of `mount(2)`.
    #[must_use]
    pub fn with_root(super_block: Arc<SuperBlock>, source: &str, bits: u32) -> Arc<Self> {
        let base = SuperBlock::for_fs(RamFs::new("rootfs", None, 0o755), 0);
        let root = base.root.clone();
        let new = Self::from_tree(
            &mut TreeChange::begin(),
            Mount::new(base, root, "rootfs", MS_RELATIME),
            NamespaceKind::OfProcesses,
        );
        let top = super_block.root.clone();
        let first = Mount::new(super_block, top, source, mount_flags(bits, None));
        let mut change = TreeChange::begin();
        change.link_mount(&first, &new.root, &new.root.root);
        change.set_namespace(&first, &new.state);
        drop(change);
        new
    }

    /// A namespace of a tree of mounts that is in no other.
    pub(super) fn from_tree(
        change: &mut TreeChange,
        root: Arc<Mount>,
        kind: NamespaceKind,
    ) -> Arc<Self> {
        let home = NamespaceState::new(kind);
        change.set_namespace(&root, &home);
        Arc::new(Self { state: home, root })
    }

    /// One in which nobody lives, of a file system that is mounted nowhere yet (`fsmount(2)`).
    #[must_use]
    pub fn anonymous(super_block: Arc<SuperBlock>, source: &str, flags: u32) -> Arc<Self> {
        let root = super_block.root.clone();
        Self::from_tree(
            &mut TreeChange::begin(),
            Mount::new(super_block, root, source, flags),
            NamespaceKind::Anonymous,
        )
    }

    /// All mounts, in the order they were made.
    #[must_use]
    pub fn mounts(&self) -> Vec<Arc<Mount>> {
        let mut all = tree::subtree_of(&self.root);
        all.sort_unstable_by_key(|mount| mount.id);
        all
    }

    /// The path of its root.
    #[must_use]
    pub fn root_path(&self) -> Path {
        self.root.clone().root_path()
    }

    /// Whether a mount is in it.
    #[must_use]
    pub fn contains(&self, mount: &Mount) -> bool {
        mount.is_in_namespace(&self.state)
    }

    /// Number of the namespace among all that ever were.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.state.sequence
    }

    /// Its number as a file.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.state.number
    }

    /// A copy for somebody else (`CLONE_NEWNS`), and the same paths in it.
    #[must_use]
    pub fn copy<const N: usize>(&self, paths: [Path; N]) -> (Arc<Self>, [Path; N]) {
        let mut change = TreeChange::begin();
        let mut pairs = Vec::new();
        let root = change.copy_tree(
            &self.root,
            &self.root.root,
            tree::CloneSharing::OfNamespace,
            &mut |old, new| {
                pairs.push((Arc::as_ptr(old), new.clone()));
            },
        );
        let new = Self::from_tree(&mut change, root, NamespaceKind::OfProcesses);
        drop(change);
        let places = paths.map(|path| {
            let mount = pairs
                .iter()
                .find(|(old, _)| *old == Arc::as_ptr(path.mount()))
                .map(|(_, new)| new.clone());
            mount.map_or(path.clone(), |mount| {
                Path::new(mount, path.dentry().clone())
            })
        });
        (new, places)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let mut change = TreeChange::begin();
        if self.root.is_in_namespace(&self.state) {
            change.umount_tree(&tree::subtree_of(&self.root));
        }
    }
}

impl Watched for Namespace {
    fn change_count(&self) -> u64 {
        self.state.change_count.load(Ordering::SeqCst)
    }

    fn poll_queue(&self) -> &PollQueue {
        &self.state.poll_queue
    }
}
