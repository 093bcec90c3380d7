//! Changing trees of mounts.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use task::{Mutex, MutexGuard};

use super::namespace::{Namespace, NamespaceState};
use super::propagation::{self, PeerGroup};
use super::{CachedMount, ChildMount, Mount};
use crate::{Dentry, Path, Result};

/// Held by whoever changes a tree; before the locks of single mounts. What it keeps alive in them
/// cannot go meanwhile.
static NAMESPACE_LOCK: Mutex<()> = Mutex::new(());

/// A change of trees under way.
pub(super) struct TreeChange {
    _guard: MutexGuard<'static, ()>,
    /// Mounts whose last reference may have gone by the change: they are dropped when others may
    /// change trees again, because one may hold a namespace.
    dropped_mounts: Vec<Arc<Mount>>,
    dropped_paths: Vec<Path>,
}

/// How a copy of a mount shares what is mounted below.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CloneSharing {
    /// The same group and master as the original.
    Alike,
    /// The same group and master as the original; one that cannot be bound is copied, too.
    OfNamespace,
    /// A peer of the original, which shares.
    Peer,
    /// A slave of the original, which shares.
    Slave,
    /// A slave of the original, in a group of its own.
    SharedSlave,
}

/// `mount` and all below it, those above before those on them.
pub(super) fn subtree_of(mount: &Arc<Mount>) -> Vec<Arc<Mount>> {
    let mut all = alloc::vec![mount.clone()];
    let mut next = 0;
    while next < all.len() {
        let children = all[next].children();
        all.extend(children.into_iter().map(|child| child.mount));
        next += 1;
    }
    all
}

impl TreeChange {
    pub(super) fn begin() -> Self {
        Self {
            _guard: NAMESPACE_LOCK.lock(),
            dropped_mounts: Vec::new(),
            dropped_paths: Vec::new(),
        }
    }

    /// Keeps something until after the change.
    pub(super) fn defer_drop(&mut self, mount: Arc<Mount>) {
        self.dropped_mounts.push(mount);
    }

    /// Keeps a path until after the change.
    pub(super) fn defer_path_drop(&mut self, path: Path) {
        self.dropped_paths.push(path);
    }

    /// Mounts a mount on a name of another.
    pub(super) fn link_mount(&mut self, mount: &Arc<Mount>, on: &Arc<Mount>, at: &Arc<Dentry>) {
        mount.links.lock().mountpoint = Some(Path::new(on.clone(), at.clone()));
        on.links.lock().children.push(ChildMount {
            mountpoint: at.clone(),
            mount: mount.clone(),
        });
        let cover = CachedMount {
            parent: Arc::as_ptr(on).addr(),
            mount: mount.clone(),
        };
        let old = at.cached_mount.lock().replace(cover);
        at.mounts.fetch_add(1, Ordering::Release);
        self.dropped_mounts.extend(old.map(|cover| cover.mount));
    }

    /// Removes a mount from its mount point, which is returned.
    pub(super) fn unlink_mount(&mut self, mount: &Arc<Mount>) -> Option<Path> {
        let point = mount.links.lock().mountpoint.take()?;
        {
            let mut links = point.mount().links.lock();
            let index = links
                .children
                .iter()
                .position(|child| Arc::ptr_eq(&child.mount, mount));
            if let Some(child) = index.map(|place| links.children.remove(place)) {
                self.dropped_mounts.push(child.mount);
            }
        }
        let mut cover = point.dentry().cached_mount.lock();
        if cover
            .as_ref()
            .is_some_and(|cover| Arc::ptr_eq(&cover.mount, mount))
        {
            self.dropped_mounts
                .extend(cover.take().map(|cover| cover.mount));
        }
        drop(cover);
        census::released(point.dentry().mounts.fetch_sub(1, Ordering::Release), 1);
        self.dropped_paths.push(point.clone());
        Some(point)
    }

    /// A mount and all below it are in a namespace from now on.
    pub(super) fn set_namespace(&mut self, mount: &Arc<Mount>, home: &Arc<NamespaceState>) {
        for mount in subtree_of(mount) {
            let old = mount.links.lock().namespace.replace(home.clone());
            home.mounts.fetch_add(1, Ordering::Relaxed);
            if let Some(old) = old {
                census::released(old.mounts.fetch_sub(1, Ordering::Relaxed), 1);
            }
        }
        home.notify();
    }

    /// A copy of one mount, whose top is `root`.
    fn clone_mount(old: &Arc<Mount>, root: &Arc<Dentry>, kind: CloneSharing) -> Arc<Mount> {
        let new = Mount::new(
            old.super_block.clone(),
            root.clone(),
            &old.source,
            old.flags(),
        );
        let (group, master, unbindable) = {
            let links = old.links.lock();
            (links.group.clone(), links.master.clone(), links.unbindable)
        };
        let (group, master) = match kind {
            CloneSharing::Slave => (None, group),
            CloneSharing::SharedSlave => (Some(PeerGroup::new()), group),
            _ => (group, master),
        };
        propagation::join(&new, group, master);
        new.links.lock().unbindable = unbindable && kind == CloneSharing::OfNamespace;
        new
    }

    /// A copy of `mount` from its name `root` down, with what is mounted there; `each` sees every
    /// pair of original and copy. What cannot be bound is left out.
    pub(super) fn copy_tree(
        &mut self,
        mount: &Arc<Mount>,
        root: &Arc<Dentry>,
        kind: CloneSharing,
        each: &mut dyn FnMut(&Arc<Mount>, &Arc<Mount>),
    ) -> Arc<Mount> {
        let top = Self::clone_mount(mount, root, kind);
        each(mount, &top);
        let mut work = alloc::vec![(mount.clone(), top.clone())];
        while let Some((old, new)) = work.pop() {
            for child in old.children() {
                let seen = !Arc::ptr_eq(&old, mount) || child.mountpoint.is_within(root);
                let bindable =
                    kind == CloneSharing::OfNamespace || !child.mount.links.lock().unbindable;
                if seen && bindable {
                    let copied = Self::clone_mount(&child.mount, &child.mount.root, kind);
                    self.link_mount(&copied, &new, &child.mountpoint);
                    each(&child.mount, &copied);
                    work.push((child.mount, copied));
                }
            }
        }
        top
    }

    /// A copy of `mount` alone, from its name `root` down.
    pub(super) fn copy_single(mount: &Arc<Mount>, root: &Arc<Dentry>) -> Arc<Mount> {
        Self::clone_mount(mount, root, CloneSharing::Alike)
    }

    /// Mounts a tree that is not in a namespace, or is mounted elsewhere, at a path that nothing is
    /// mounted on, and copies of it wherever the path's mount propagates to.
    ///
    /// # Errors
    /// `ENOSPC`; then the tree, if it was mounted nowhere, is to be unmounted.
    pub(super) fn attach(&mut self, tree: &Arc<Mount>, point: &Path) -> Result<()> {
        let home = point.mount().namespace().ok_or(Errno::EINVAL)?;
        let (on, at) = (point.mount(), point.dentry());
        let all = subtree_of(tree);
        let came = tree.namespace();
        let is_here = came.as_ref().is_some_and(|own| Arc::ptr_eq(own, &home));
        if !is_here && home.lacks_room(all.len()) {
            return Err(Errno::ENOSPC);
        }
        let copies = self.propagate(tree, &all, on, at)?;
        self.unlink_mount(tree);
        self.link_mount(tree, on, at);
        if is_here {
            home.notify();
        } else {
            self.set_namespace(tree, &home);
        }
        if let Some(came) = came.filter(|_| !is_here) {
            came.notify();
        }
        for (copy, on) in copies {
            // What is mounted there already is mounted on the copy.
            let covered = on.child_at(at);
            if let Some(covered) = &covered {
                self.unlink_mount(covered);
            }
            self.link_mount(&copy, &on, at);
            if let Some(covered) = covered {
                self.link_mount(&covered, &copy, &copy.root.clone());
            }
            if let Some(home) = on.namespace() {
                self.set_namespace(&copy, &home);
            }
            self.dropped_mounts.extend([copy, on]);
        }
        Ok(())
    }

    /// Takes mounts apart, which are in no tree then.
    pub(super) fn umount_tree(&mut self, mounts: &[Arc<Mount>]) {
        for mount in mounts {
            self.unlink_mount(mount);
            propagation::leave_all(mount);
            let home = mount.links.lock().namespace.take();
            if let Some(home) = home {
                census::released(home.mounts.fetch_sub(1, Ordering::Relaxed), 1);
                home.notify();
            }
        }
        self.dropped_mounts.extend_from_slice(mounts);
    }
}

/// Whether something is mounted on a name in a namespace, through any mount of its file system, as
/// `mount` is one.
pub(crate) fn is_mountpoint_in(namespace: &Namespace, dentry: &Arc<Dentry>, mount: &Mount) -> bool {
    mount
        .super_block
        .mounts()
        .iter()
        .any(|on| namespace.contains(on) && on.child_at(dentry).is_some())
}

/// Unmounts, in all namespaces, what is mounted on a name that is removed.
pub(crate) fn detach_mounts(dentry: &Arc<Dentry>, mount: &Mount) {
    let mut change = TreeChange::begin();
    for on in mount.super_block.mounts() {
        if let Some(doomed) = on.child_at(dentry) {
            change.umount_tree(&subtree_of(&doomed));
            change.defer_drop(doomed);
        }
        change.defer_drop(on);
    }
}
