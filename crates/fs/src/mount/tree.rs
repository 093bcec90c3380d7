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
static TREES: Mutex<()> = Mutex::new(());

/// A change of trees under way.
pub(super) struct TreeChange {
    _alone: MutexGuard<'static, ()>,
    /// Mounts whose last reference may have gone by the change: they are dropped when others may
    /// change trees again, because one may hold a namespace.
    gone: Vec<Arc<Mount>>,
    left: Vec<Path>,
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
pub(super) fn below(mount: &Arc<Mount>) -> Vec<Arc<Mount>> {
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
            _alone: TREES.lock(),
            gone: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Keeps something until after the change.
    pub(super) fn later(&mut self, mount: Arc<Mount>) {
        self.gone.push(mount);
    }

    /// Keeps a place until after the change.
    pub(super) fn leave(&mut self, place: Path) {
        self.left.push(place);
    }

    /// Hangs a mount on a name of another.
    pub(super) fn hang(&mut self, mount: &Arc<Mount>, on: &Arc<Mount>, at: &Arc<Dentry>) {
        mount.links.lock().point = Some(Path::new(on.clone(), at.clone()));
        on.links.lock().children.push(ChildMount {
            at: at.clone(),
            mount: mount.clone(),
        });
        let cover = CachedMount {
            on: Arc::as_ptr(on).addr(),
            top: mount.clone(),
        };
        let old = at.cover.lock().replace(cover);
        at.mounts.fetch_add(1, Ordering::Release);
        self.gone.extend(old.map(|cover| cover.top));
    }

    /// Takes a mount off what it hangs on.
    pub(super) fn unhang(&mut self, mount: &Arc<Mount>) -> Option<Path> {
        let point = mount.links.lock().point.take()?;
        {
            let mut links = point.mount().links.lock();
            let place = links
                .children
                .iter()
                .position(|child| Arc::ptr_eq(&child.mount, mount));
            if let Some(child) = place.map(|place| links.children.remove(place)) {
                self.gone.push(child.mount);
            }
        }
        let mut cover = point.dentry().cover.lock();
        if cover
            .as_ref()
            .is_some_and(|cover| Arc::ptr_eq(&cover.top, mount))
        {
            self.gone.extend(cover.take().map(|cover| cover.top));
        }
        drop(cover);
        census::released(point.dentry().mounts.fetch_sub(1, Ordering::Release), 1);
        self.left.push(point.clone());
        Some(point)
    }

    /// A mount and all below it are in a namespace from now on.
    pub(super) fn settle(&mut self, mount: &Arc<Mount>, home: &Arc<NamespaceState>) {
        for mount in below(mount) {
            let old = mount.links.lock().home.replace(home.clone());
            home.mounts.fetch_add(1, Ordering::Relaxed);
            if let Some(old) = old {
                census::released(old.mounts.fetch_sub(1, Ordering::Relaxed), 1);
            }
        }
        home.tell();
    }

    /// A copy of one mount, whose top is `root`.
    fn copy_one(old: &Arc<Mount>, root: &Arc<Dentry>, kind: CloneSharing) -> Arc<Mount> {
        let new = Mount::new(old.shown.clone(), root.clone(), &old.source, old.flags());
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
    pub(super) fn copy(
        &mut self,
        mount: &Arc<Mount>,
        root: &Arc<Dentry>,
        kind: CloneSharing,
        each: &mut dyn FnMut(&Arc<Mount>, &Arc<Mount>),
    ) -> Arc<Mount> {
        let top = Self::copy_one(mount, root, kind);
        each(mount, &top);
        let mut work = alloc::vec![(mount.clone(), top.clone())];
        while let Some((old, new)) = work.pop() {
            for child in old.children() {
                let seen = !Arc::ptr_eq(&old, mount) || child.at.is_within(root);
                let bindable =
                    kind == CloneSharing::OfNamespace || !child.mount.links.lock().unbindable;
                if seen && bindable {
                    let copied = Self::copy_one(&child.mount, &child.mount.root, kind);
                    self.hang(&copied, &new, &child.at);
                    each(&child.mount, &copied);
                    work.push((child.mount, copied));
                }
            }
        }
        top
    }

    /// A copy of `mount` alone, from its name `root` down.
    pub(super) fn copy_top(mount: &Arc<Mount>, root: &Arc<Dentry>) -> Arc<Mount> {
        Self::copy_one(mount, root, CloneSharing::Alike)
    }

    /// Hangs a tree that is not in a namespace, or hangs elsewhere, on a place that nothing is
    /// mounted on, and copies of it wherever the place's mount shares what is mounted below.
    ///
    /// # Errors
    /// `ENOSPC`; then the tree, if it hung nowhere, is to be dismantled.
    pub(super) fn attach(&mut self, tree: &Arc<Mount>, point: &Path) -> Result<()> {
        let home = point.mount().home().ok_or(Errno::EINVAL)?;
        let (on, at) = (point.mount(), point.dentry());
        let all = below(tree);
        let came = tree.home();
        let is_here = came.as_ref().is_some_and(|own| Arc::ptr_eq(own, &home));
        if !is_here && home.is_full(all.len()) {
            return Err(Errno::ENOSPC);
        }
        let copies = self.propagate(tree, &all, on, at)?;
        self.unhang(tree);
        self.hang(tree, on, at);
        if is_here {
            home.tell();
        } else {
            self.settle(tree, &home);
        }
        if let Some(came) = came.filter(|_| !is_here) {
            came.tell();
        }
        for (copy, on) in copies {
            // What is mounted there already is mounted on the copy.
            let covered = on.child_at(at);
            if let Some(covered) = &covered {
                self.unhang(covered);
            }
            self.hang(&copy, &on, at);
            if let Some(covered) = covered {
                self.hang(&covered, &copy, &copy.root.clone());
            }
            if let Some(home) = on.home() {
                self.settle(&copy, &home);
            }
            self.gone.extend([copy, on]);
        }
        Ok(())
    }

    /// Takes mounts apart, which are in no tree then.
    pub(super) fn dismantle(&mut self, mounts: &[Arc<Mount>]) {
        for mount in mounts {
            self.unhang(mount);
            propagation::leave(mount);
            let home = mount.links.lock().home.take();
            if let Some(home) = home {
                census::released(home.mounts.fetch_sub(1, Ordering::Relaxed), 1);
                home.tell();
            }
        }
        self.gone.extend_from_slice(mounts);
    }
}

/// Whether something is mounted on a name in a namespace, through any mount of its file system, as
/// `mount` is one.
pub(crate) fn is_point_in(space: &Namespace, dentry: &Arc<Dentry>, mount: &Mount) -> bool {
    mount
        .shown
        .mounts()
        .iter()
        .any(|on| space.holds(on) && on.child_at(dentry).is_some())
}

/// Unmounts, in all namespaces, what is mounted on a name that is removed.
pub(crate) fn detach_all(dentry: &Arc<Dentry>, mount: &Mount) {
    let mut change = TreeChange::begin();
    for on in mount.shown.mounts() {
        if let Some(doomed) = on.child_at(dentry) {
            change.dismantle(&below(&doomed));
            change.later(doomed);
        }
        change.later(on);
    }
}
