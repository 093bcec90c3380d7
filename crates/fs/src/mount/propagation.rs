//! Sharing what is mounted below: `mount_namespaces(7)`, and Linux'
//! `Documentation/filesystems/sharedsubtree.rst`.
//!
//! Mounts of one group (peers) show the same mounts below. A mount may have a group as its master:
//! it gets what is mounted there, and nothing goes back. All members of a group have the same
//! master.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use task::Mutex;

use super::Mount;
use super::namespace::Namespace;
use super::tree::{CloneSharing, TreeChange, subtree_of};
use crate::{Dentry, Path, Result};

/// Mounts that show the same mounts below.
pub(super) struct PeerGroup {
    id: u32,
    members: Mutex<Vec<Weak<Mount>>>,
    /// Mounts of which this group is the master.
    slaves: Mutex<Vec<Weak<Mount>>>,
}

/// Members of a list that still exist. While trees are changed none of them goes.
fn live_members(list: &Mutex<Vec<Weak<Mount>>>) -> Vec<Arc<Mount>> {
    list.lock().iter().filter_map(Weak::upgrade).collect()
}

fn remove_member(list: &Mutex<Vec<Weak<Mount>>>, mount: &Arc<Mount>) {
    list.lock().retain(|known| {
        known.strong_count() > 0 && !core::ptr::eq(known.as_ptr(), Arc::as_ptr(mount))
    });
}

impl PeerGroup {
    pub(super) fn new() -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            members: Mutex::default(),
            slaves: Mutex::default(),
        })
    }
}

/// A mount that is in no group and has no master gets them.
pub(super) fn join(
    mount: &Arc<Mount>,
    group: Option<Arc<PeerGroup>>,
    master: Option<Arc<PeerGroup>>,
) {
    if let Some(group) = &group {
        group.members.lock().push(Arc::downgrade(mount));
    }
    if let Some(master) = &master {
        master.slaves.lock().push(Arc::downgrade(mount));
    }
    let mut links = mount.links.lock();
    (links.group, links.master) = (group, master);
}

/// The mount leaves its group. What the group was the master of gets the group's master if it was
/// the last one.
fn leave_group(mount: &Arc<Mount>) -> Option<Arc<PeerGroup>> {
    let (group, master) = {
        let mut links = mount.links.lock();
        (links.group.take()?, links.master.clone())
    };
    remove_member(&group.members, mount);
    if !live_members(&group.members).is_empty() {
        return Some(group);
    }
    for slave in live_members(&group.slaves) {
        slave.links.lock().master.clone_from(&master);
        if let Some(master) = &master {
            master.slaves.lock().push(Arc::downgrade(&slave));
        }
    }
    group.slaves.lock().clear();
    None
}

fn leave_master(mount: &Arc<Mount>) {
    let master = mount.links.lock().master.take();
    if let Some(master) = master {
        remove_member(&master.slaves, mount);
    }
}

/// The mount shares nothing any more.
pub(super) fn leave_all(mount: &Arc<Mount>) {
    leave_group(mount);
    leave_master(mount);
    mount.links.lock().unbindable = false;
}

/// How a mount is to share what is mounted below (`MS_SHARED` and its fellows).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Propagation {
    /// Both ways.
    Shared,
    /// Not at all.
    Private,
    /// Receives the mounts of its former peers.
    Slave,
    /// Not at all, and it cannot be bound elsewhere.
    Unbindable,
}

fn set_one(mount: &Arc<Mount>, how: Propagation) {
    match how {
        Propagation::Shared => {
            if mount.links.lock().group.is_none() {
                let group = PeerGroup::new();
                group.members.lock().push(Arc::downgrade(mount));
                mount.links.lock().group = Some(group);
            }
            mount.links.lock().unbindable = false;
        }
        Propagation::Slave => {
            if let Some(group) = leave_group(mount) {
                leave_master(mount);
                join(mount, None, Some(group));
            }
            mount.links.lock().unbindable = false;
        }
        Propagation::Private | Propagation::Unbindable => {
            leave_all(mount);
            mount.links.lock().unbindable = how == Propagation::Unbindable;
        }
    }
}

/// Changes how a mount, and with `recursive` all below it, share.
///
/// # Errors
/// `EINVAL` if `at` is no mount's top.
pub fn set_propagation(at: &Path, how: Propagation, recursive: bool) -> Result<()> {
    if !Arc::ptr_eq(at.dentry(), at.mount().root()) {
        return Err(Errno::EINVAL);
    }
    let mut change = TreeChange::begin();
    let mounts = if recursive {
        subtree_of(at.mount())
    } else {
        alloc::vec![at.mount().clone()]
    };
    for mount in mounts {
        set_one(&mount, how);
        mount.notify_namespace();
        change.defer_drop(mount);
    }
    Ok(())
}

/// A mount that shares nothing shares as another one of the file system does, which shows at least
/// as much (`MOVE_MOUNT_SET_GROUP`).
///
/// # Errors
/// `EINVAL` if they are none such.
pub fn set_group_from(namespace: &Namespace, from: &Path, to: &Path) -> Result<()> {
    let _change = TreeChange::begin();
    let is_top = |path: &Path| {
        Arc::ptr_eq(path.dentry(), path.mount().root()) && namespace.contains(path.mount())
    };
    let (source, target) = (from.mount(), to.mount());
    let shares = |mount: &Mount| {
        let links = mount.links.lock();
        links.group.is_some() || links.master.is_some()
    };
    let alike = Arc::ptr_eq(source.super_block(), target.super_block())
        && target.root().is_within(source.root());
    if !is_top(from) || !is_top(to) || !alike || shares(target) || !shares(source) {
        return Err(Errno::EINVAL);
    }
    let (group, master) = {
        let links = source.links.lock();
        (links.group.clone(), links.master.clone())
    };
    join(target, group, master);
    target.notify_namespace();
    Ok(())
}

/// Propagation of a mount, as `mountinfo` shows it.
pub struct PropagationInfo {
    /// The group's number.
    pub shared: Option<u32>,
    /// The master's.
    pub master: Option<u32>,
    /// Whether the mount cannot be bound.
    pub unbindable: bool,
}

impl Mount {
    /// How it shares what is mounted below.
    #[must_use]
    pub fn propagation(&self) -> PropagationInfo {
        let links = self.links.lock();
        let number = |group: &Option<Arc<PeerGroup>>| group.as_ref().map(|group| group.id);
        PropagationInfo {
            shared: number(&links.group),
            master: number(&links.master),
            unbindable: links.unbindable,
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.links.lock().group.is_some()
    }

    pub(super) fn is_unbindable(&self) -> bool {
        self.links.lock().unbindable
    }

    fn group(&self) -> Option<Arc<PeerGroup>> {
        self.links.lock().group.clone()
    }
}

/// The other mounts to which what is mounted in `mount` goes.
pub(super) fn propagation_targets(mount: &Arc<Mount>) -> Vec<Arc<Mount>> {
    let mut all: Vec<Arc<Mount>> = Vec::new();
    let mut groups: Vec<Arc<PeerGroup>> = mount.group().into_iter().collect();
    let mut next = 0;
    while next < groups.len() {
        let group = groups[next].clone();
        for member in live_members(&group.members) {
            if !Arc::ptr_eq(&member, mount) {
                all.push(member);
            }
        }
        for slave in live_members(&group.slaves) {
            match slave.group() {
                Some(theirs) if groups.iter().any(|known| Arc::ptr_eq(known, &theirs)) => {}
                Some(theirs) => groups.push(theirs),
                None => all.push(slave),
            }
        }
        next += 1;
    }
    all
}

impl TreeChange {
    /// Copies of `tree` (whose mounts are `all`), which is to be mounted at `at` of `on`, for all
    /// that share it, each with the mount it is for. If anybody does, all of the tree is shared
    /// from now on.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(super) fn propagate(
        &mut self,
        tree: &Arc<Mount>,
        all: &[Arc<Mount>],
        on: &Arc<Mount>,
        at: &Arc<Dentry>,
    ) -> Result<Vec<(Arc<Mount>, Arc<Mount>)>> {
        let Some(group) = on.group() else {
            return Ok(Vec::new());
        };
        for mount in all {
            set_one(mount, Propagation::Shared);
        }
        // What is not in a namespace yet is the tree itself.
        let shows = |mount: &Arc<Mount>| mount.namespace().is_some() && at.is_within(&mount.root);
        let full = |mount: &Arc<Mount>| {
            mount
                .namespace()
                .is_some_and(|home| home.lacks_room(all.len()))
        };
        let mut copies: Vec<(Arc<Mount>, Arc<Mount>)> = Vec::new();
        let mut work = Vec::new();
        for peer in live_members(&group.members) {
            if !Arc::ptr_eq(&peer, on) && shows(&peer) {
                copies.push((
                    self.copy_tree(tree, &tree.root, CloneSharing::Peer, &mut |_, _| {}),
                    peer,
                ));
            }
        }
        work.push((group, tree.clone()));
        while let Some((group, source)) = work.pop() {
            let mut groups: Vec<Arc<PeerGroup>> = Vec::new();
            for slave in live_members(&group.slaves) {
                match slave.group() {
                    Some(theirs) if groups.iter().any(|known| Arc::ptr_eq(known, &theirs)) => {}
                    Some(theirs) => groups.push(theirs),
                    None if shows(&slave) => copies.push((
                        self.copy_tree(&source, &source.root, CloneSharing::Slave, &mut |_, _| {}),
                        slave,
                    )),
                    None => {}
                }
            }
            for group in groups {
                let mut first = None;
                for member in live_members(&group.members).into_iter().filter(shows) {
                    let copy = match &first {
                        None => self.copy_tree(
                            &source,
                            &source.root,
                            CloneSharing::SharedSlave,
                            &mut |_, _| {},
                        ),
                        Some(first) => {
                            self.copy_tree(first, &first.root, CloneSharing::Peer, &mut |_, _| {})
                        }
                    };
                    first.get_or_insert_with(|| copy.clone());
                    copies.push((copy, member));
                }
                work.push((group, first.unwrap_or_else(|| source.clone())));
            }
        }
        if copies.iter().any(|(_, on)| full(on)) {
            for (copy, on) in copies {
                self.umount_tree(&subtree_of(&copy));
                self.defer_drop(on);
            }
            return Err(Errno::ENOSPC);
        }
        Ok(copies)
    }
}
