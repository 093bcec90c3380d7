//! Unmounting.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;

use super::namespace::Namespace;
use super::propagation::propagation_targets;
use super::tree::{TreeChange, subtree_of};
use super::{MS_RDONLY, Mount};
use crate::{Path, Result};

bitflags::bitflags! {
    /// Flags of `umount2(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct UnmountFlags: u32 {
        /// Whatever waits for the file system gives up: nothing here does.
        const FORCE = linux_raw_sys::general::MNT_FORCE;
        /// Detach now, also if the mount is in use or has mounts on it.
        const DETACH = linux_raw_sys::general::MNT_DETACH;
        /// Only if it was not used since this was asked last.
        const EXPIRE = linux_raw_sys::general::MNT_EXPIRE;
    }
}

/// Number of users of a mount, beside its mount point and `held` by the caller.
fn use_count(mount: &Arc<Mount>, held: usize) -> usize {
    let Some(point) = mount.mountpoint() else {
        return Arc::strong_count(mount) - held;
    };
    let covers = point
        .dentry()
        .cached_mount
        .lock()
        .as_ref()
        .is_some_and(|cover| Arc::ptr_eq(&cover.mount, mount));
    Arc::strong_count(mount) - held - 1 - usize::from(covers)
}

/// Takes away the mount whose top `at` is, the caller's only use of it; `root` is what the caller
/// calls `/`.
///
/// # Errors
/// `EINVAL` if `at` is no mount's top or in another namespace, `EBUSY` if it is in use, `EAGAIN` if
/// it was marked with `EXPIRE`.
pub fn unmount(namespace: &Namespace, at: &Path, root: &Path, how: UnmountFlags) -> Result<()> {
    let mount = at.mount();
    if !Arc::ptr_eq(at.dentry(), mount.root()) || !namespace.contains(mount) {
        return Err(Errno::EINVAL);
    }
    let is_root = Arc::ptr_eq(mount, root.mount());
    if how.contains(UnmountFlags::EXPIRE) {
        if is_root || how.intersects(UnmountFlags::FORCE | UnmountFlags::DETACH) {
            return Err(Errno::EINVAL);
        }
        let _change = TreeChange::begin();
        if use_count(mount, 1) > 0 || !mount.children().is_empty() {
            return Err(Errno::EBUSY);
        }
        if !mount.idle.swap(true, Ordering::Relaxed) {
            return Err(Errno::EAGAIN);
        }
    }
    if is_root && !how.contains(UnmountFlags::DETACH) {
        // What everything stands on can at most be protected.
        return mount
            .super_block()
            .reconfigure(mount.super_block().flags() | MS_RDONLY, "");
    }
    let mut change = TreeChange::begin();
    if !namespace.contains(mount) || mount.mountpoint().is_none() {
        return Err(Errno::EINVAL);
    }
    let doomed = if how.contains(UnmountFlags::DETACH) {
        subtree_of(mount)
    } else {
        alloc::vec![mount.clone()]
    };
    let others = propagated_unmounts(&doomed);
    if !how.contains(UnmountFlags::DETACH) {
        let busy = !mount.children().is_empty()
            // The caller, `doomed`, and what the path of the caller is made of.
            || use_count(mount, 2) > 0
            || others.iter().any(|other| use_count(other, 1) > usize::from(find_topper(other).is_some()));
        if busy {
            return Err(Errno::EBUSY);
        }
    }
    for other in &others {
        // What was mounted on the top of one that goes is mounted where that was.
        if let Some(topper) = find_topper(other)
            .filter(|topper| !others.iter().any(|doomed| Arc::ptr_eq(doomed, topper)))
        {
            change.unlink_mount(&topper);
            let point = change.unlink_mount(other);
            if let Some(point) = point {
                change.link_mount(&topper, point.mount(), point.dentry());
                change.defer_path_drop(point);
            }
            change.defer_drop(topper);
        }
    }
    change.umount_tree(&others);
    change.umount_tree(&doomed);
    for mount in others.into_iter().chain(doomed) {
        change.defer_drop(mount);
    }
    Ok(())
}

/// The mount on the top of a mount.
fn find_topper(mount: &Arc<Mount>) -> Option<Arc<Mount>> {
    mount.child_at(mount.root())
}

/// Mounts that go with `doomed` because their mount points propagate; not those with other mounts
/// on them that stay.
fn propagated_unmounts(doomed: &[Arc<Mount>]) -> Vec<Arc<Mount>> {
    let mut found: Vec<Arc<Mount>> = Vec::new();
    for mount in doomed {
        let Some(point) = mount.mountpoint() else {
            continue;
        };
        for on in propagation_targets(point.mount()) {
            let Some(there) = on.child_at(point.dentry()) else {
                continue;
            };
            if !found
                .iter()
                .chain(doomed)
                .any(|known| Arc::ptr_eq(known, &there))
            {
                found.push(there);
            }
        }
    }
    // Until all that are left have only such mounts on them that go, too, or one on their top.
    loop {
        let goes = |mount: &Arc<Mount>| {
            found
                .iter()
                .chain(doomed)
                .any(|other| Arc::ptr_eq(other, mount))
        };
        let stays = |mount: &Arc<Mount>| {
            mount
                .children()
                .iter()
                .any(|child| !Arc::ptr_eq(&child.mountpoint, mount.root()) && !goes(&child.mount))
        };
        let Some(place) = found.iter().position(stays) else {
            return found;
        };
        found.remove(place);
    }
}
