//! Namespaces: trees of mounts.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use linux_raw_sys::general::MS_RELATIME;

use super::tree::{self, TreeChange};
use super::{FileSystem, Mount, SuperBlock};
use crate::poll::PollQueue;
use crate::ramfs::RamFs;
use crate::{Path, nsfs};

/// The most mounts in a namespace (`/proc/sys/fs/mount-max`).
const MOST: usize = 100_000;

/// State of a namespace that its mounts refer to.
pub(super) struct NamespaceState {
    /// In the order they are made.
    sequence: u64,
    /// Inode number in `/proc/PID/ns`.
    number: u32,
    /// Nobody lives in it: what is in it is on its way to another.
    pub(super) anonymous: bool,
    pub(super) mounts: AtomicUsize,
    /// Counts changes, which who waits is told of.
    changes: AtomicU64,
    changed: PollQueue,
}

impl NamespaceState {
    fn new(anonymous: bool) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            sequence: NEXT.fetch_add(1, Ordering::Relaxed),
            number: if anonymous { 0 } else { nsfs::new_number() },
            anonymous,
            mounts: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            changed: PollQueue::new(),
        })
    }

    /// Whether there is no room for `more` mounts.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.mounts.load(Ordering::Relaxed) + more > MOST
    }

    pub(super) fn tell(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify();
    }
}

/// The mount of a file system that is in no tree and no namespace.
pub(crate) fn apart(shown: Arc<SuperBlock>, source: &str) -> Arc<Mount> {
    let root = shown.root.clone();
    Mount::new(shown, root, source, MS_RELATIME)
}

/// A tree of mounts. When nobody uses it any more, all in it is unmounted.
pub struct Namespace {
    pub(super) home: Arc<NamespaceState>,
    pub(super) root: Arc<Mount>,
}

impl Namespace {
    /// The first one: `fs`, on an empty file system that can neither be seen nor unmounted.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>, source: &str) -> Arc<Self> {
        let base = SuperBlock::of(RamFs::new("rootfs", None, 0o755), 0);
        let root = base.root.clone();
        let new = Self::of_tree(
            &mut TreeChange::begin(),
            Mount::new(base, root, "rootfs", MS_RELATIME),
            false,
        );
        let shown = SuperBlock::of(fs, 0);
        let top = shown.root.clone();
        let first = Mount::new(shown, top, source, MS_RELATIME);
        let mut change = TreeChange::begin();
        change.hang(&first, &new.root, &new.root.root);
        change.settle(&first, &new.home);
        drop(change);
        new
    }

    /// A namespace of mounts that hang together and nowhere else.
    pub(super) fn of_tree(change: &mut TreeChange, root: Arc<Mount>, anonymous: bool) -> Arc<Self> {
        let home = NamespaceState::new(anonymous);
        change.settle(&root, &home);
        Arc::new(Self { home, root })
    }

    /// One in which nobody lives, of a file system that is mounted nowhere yet (`fsmount(2)`).
    #[must_use]
    pub fn apart(shown: Arc<SuperBlock>, source: &str, flags: u32) -> Arc<Self> {
        let root = shown.root.clone();
        Self::of_tree(
            &mut TreeChange::begin(),
            Mount::new(shown, root, source, flags),
            true,
        )
    }

    /// All mounts, in the order they were made.
    #[must_use]
    pub fn mounts(&self) -> Vec<Arc<Mount>> {
        let mut all = tree::below(&self.root);
        all.sort_unstable_by_key(|mount| mount.id);
        all
    }

    /// The place at its top.
    #[must_use]
    pub fn top(&self) -> Path {
        self.root.clone().top()
    }

    /// Whether a mount is in it.
    #[must_use]
    pub fn holds(&self, mount: &Mount) -> bool {
        mount.is_in(&self.home)
    }

    /// Number of the namespace among all that ever were.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.home.sequence
    }

    /// Its number as a file.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.home.number
    }

    /// How often it has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.home.changes.load(Ordering::SeqCst)
    }

    /// Told of changes.
    #[must_use]
    pub fn changed(&self) -> &PollQueue {
        &self.home.changed
    }

    /// A copy for somebody else (`CLONE_NEWNS`), and where in it the places are that are given.
    #[must_use]
    pub fn copy<const N: usize>(&self, places: [Path; N]) -> (Arc<Self>, [Path; N]) {
        let mut change = TreeChange::begin();
        let mut pairs = Vec::new();
        let root = change.copy(
            &self.root,
            &self.root.root,
            tree::CloneSharing::OfNamespace,
            &mut |old, new| {
                pairs.push((Arc::as_ptr(old), new.clone()));
            },
        );
        let new = Self::of_tree(&mut change, root, false);
        drop(change);
        let places = places.map(|place| {
            let mount = pairs
                .iter()
                .find(|(old, _)| *old == Arc::as_ptr(place.mount()))
                .map(|(_, new)| new.clone());
            mount.map_or(place.clone(), |mount| {
                Path::new(mount, place.dentry().clone())
            })
        });
        (new, places)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let mut change = TreeChange::begin();
        if self.root.is_in(&self.home) {
            change.dismantle(&tree::below(&self.root));
        }
    }
}
