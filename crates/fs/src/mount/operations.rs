//! Mounting, binding, moving.

use alloc::sync::Arc;

use abi::errno::Errno;

use super::namespace::{Namespace, NamespaceKind};
use super::tree::{self, CloneSharing, TreeChange};
use super::{Mount, SuperBlock, mount_flags, traverse_mounts};
use crate::{FileType, Path, Result, nsfs};

fn is_directory(path: &Path) -> bool {
    path.dentry().kind() == FileType::Directory
}

/// The path at which something is to be mounted in `namespace`: the root of what is mounted there.
fn resolve_mountpoint(namespace: &Namespace, point: &Path) -> Result<Path> {
    let point = traverse_mounts(point.clone());
    if !namespace.contains(point.mount()) {
        return Err(Errno::EINVAL);
    }
    if point.dentry().is_removed() {
        Err(Errno::ENOENT)
    } else {
        Ok(point)
    }
}

/// Mounts a new tree at a path, or takes it apart.
fn graft(change: &mut TreeChange, tree: &Arc<Mount>, point: &Path) -> Result<()> {
    let fits = (tree.root().kind() == FileType::Directory) == is_directory(point);
    let done = if fits {
        change.attach(tree, point)
    } else {
        Err(Errno::ENOTDIR)
    };
    if done.is_err() {
        change.umount_tree(&tree::subtree_of(tree));
    }
    done
}

/// Hangs a file system on a directory, with `bits` of `mount(2)`.
///
/// # Errors
/// `ENOTDIR` if `point` is no directory, `EBUSY` if the file system is on top there already,
/// `EINVAL` if the path is in another namespace, `ENOSPC`.
pub fn mount(
    namespace: &Namespace,
    super_block: Arc<SuperBlock>,
    point: &Path,
    source: &str,
    bits: u32,
) -> Result<()> {
    let mut change = TreeChange::begin();
    let point = resolve_mountpoint(namespace, point)?;
    let result = if Arc::ptr_eq(point.mount().super_block(), &super_block) && point.is_mount_root()
    {
        Err(Errno::EBUSY)
    } else {
        let root = super_block.root.clone();
        let new = Mount::new(super_block, root, source, mount_flags(bits, None));
        let done = graft(&mut change, &new, &point);
        change.defer_drop(new);
        done
    };
    change.defer_path_drop(point);
    result
}

/// A copy of what is at `from`, with what is mounted below if `recursive`, that is mounted nowhere.
fn clone_tree(
    change: &mut TreeChange,
    namespace: &Namespace,
    from: &Path,
    recursive: bool,
) -> Result<Arc<Mount>> {
    // A namespace's file is in none; one of mounts may be kept by such as were made before it only.
    let file = nsfs::from_inode(from.inode());
    let loops = file
        .and_then(|file| file.mount_namespace())
        .is_some_and(|other| other.sequence() <= namespace.sequence());
    let foreign = !namespace.contains(from.mount()) && file.is_none();
    if loops || foreign || from.mount().is_unbindable() {
        return Err(Errno::EINVAL);
    }
    Ok(if recursive {
        change.copy_tree(
            from.mount(),
            from.dentry(),
            CloneSharing::Alike,
            &mut |_, _| {},
        )
    } else {
        TreeChange::copy_single(from.mount(), from.dentry())
    })
}

/// Shows what is at `from` also at `point`; if `recursive`, with what is mounted below.
///
/// # Errors
/// `ENOTDIR` if only one of them is a directory, `EINVAL` if one is in another namespace or `from`
/// cannot be bound, `ENOSPC`.
pub fn bind(namespace: &Namespace, from: &Path, point: &Path, recursive: bool) -> Result<()> {
    let mut change = TreeChange::begin();
    let point = resolve_mountpoint(namespace, point)?;
    let result = clone_tree(&mut change, namespace, from, recursive).and_then(|tree| {
        let done = graft(&mut change, &tree, &point);
        change.defer_drop(tree);
        done
    });
    change.defer_path_drop(point);
    result
}

/// A copy of what is at `from` that is mounted nowhere yet (`open_tree(2)`).
///
/// # Errors
/// As [`bind`].
pub fn copy_tree(namespace: &Namespace, from: &Path, recursive: bool) -> Result<Arc<Namespace>> {
    let mut change = TreeChange::begin();
    let tree = clone_tree(&mut change, namespace, from, recursive)?;
    Ok(Namespace::from_tree(
        &mut change,
        tree,
        NamespaceKind::Anonymous,
    ))
}

/// Moves the mount whose top is `from`, with all on it, to `point`.
///
/// # Errors
/// `EINVAL` if `from` is no mount's root, is mounted on one that is shared, or either is in another
/// namespace; `ELOOP` if `point` is below; `ENOSPC`.
pub fn move_mount(namespace: &Namespace, from: &Path, point: &Path) -> Result<()> {
    let mut change = TreeChange::begin();
    let point = resolve_mountpoint(namespace, point)?;
    let result =
        check_move(namespace, from, &point).and_then(|()| change.attach(from.mount(), &point));
    change.defer_path_drop(point);
    result
}

fn check_move(namespace: &Namespace, from: &Path, point: &Path) -> Result<()> {
    let moved = from.mount();
    let hangs = moved.mountpoint();
    let ours = match &hangs {
        Some(_) => namespace.contains(moved),
        None => moved
            .namespace()
            .is_some_and(|home| home.kind == NamespaceKind::Anonymous),
    };
    let shares = hangs.is_some_and(|on| on.mount().is_shared());
    let unbindable = || {
        tree::subtree_of(moved)
            .iter()
            .any(|mount| mount.is_unbindable())
    };
    if !ours
        || !from.is_mount_root()
        || is_directory(from) != is_directory(point)
        || shares
        || point.mount().is_shared() && unbindable()
    {
        return Err(Errno::EINVAL);
    }
    let mut above = point.mount().clone();
    loop {
        if Arc::ptr_eq(&above, moved) {
            return Err(Errno::ELOOP);
        }
        let Some(on) = above.mountpoint() else {
            return Ok(());
        };
        above = on.mount().clone();
    }
}

/// Puts the mount `new` is the top of in place of the one that `root` is the top of, which goes to
/// `put` (`pivot_root(2)`).
///
/// # Errors
/// Those of `pivot_root(2)`.
pub fn pivot_root(namespace: &Namespace, root: &Path, new: &Path, put: &Path) -> Result<()> {
    let mut change = TreeChange::begin();
    let put = traverse_mounts(put.clone());
    let result = pivot_root_in(&mut change, namespace, root, new, &put);
    change.defer_path_drop(put);
    result
}

fn pivot_root_in(
    change: &mut TreeChange,
    namespace: &Namespace,
    root: &Path,
    new: &Path,
    put: &Path,
) -> Result<()> {
    let (old_mount, new_mount) = (root.mount(), new.mount());
    let (old_point, new_point) = (old_mount.mountpoint(), new_mount.mountpoint());
    let shares = |point: &Option<Path>| {
        point
            .as_ref()
            .is_some_and(|point| point.mount().is_shared())
    };
    if put.mount().is_shared() || shares(&new_point) || shares(&old_point) {
        return Err(Errno::EINVAL);
    }
    if !namespace.contains(old_mount) || !namespace.contains(new_mount) {
        return Err(Errno::EINVAL);
    }
    if new.dentry().is_removed() {
        return Err(Errno::ENOENT);
    }
    if Arc::ptr_eq(new_mount, old_mount) || Arc::ptr_eq(put.mount(), old_mount) {
        return Err(Errno::EBUSY);
    }
    let (Some(old_point), Some(_)) = (old_point, new_point) else {
        return Err(Errno::EINVAL);
    };
    if !root.is_mount_root()
        || !new.is_mount_root()
        || !is_path_reachable(put, new)
        || !is_path_reachable(new, root)
    {
        return Err(Errno::EINVAL);
    }
    change.unlink_mount(new_mount);
    change.unlink_mount(old_mount);
    change.link_mount(old_mount, put.mount(), put.dentry());
    change.link_mount(new_mount, old_point.mount(), old_point.dentry());
    change.defer_path_drop(old_point);
    namespace.state.notify();
    Ok(())
}

/// Whether `path` is below `top`, across mounts.
fn is_path_reachable(path: &Path, top: &Path) -> bool {
    let mut here = path.clone();
    while !Arc::ptr_eq(here.mount(), top.mount()) {
        let Some(point) = here.mount().mountpoint() else {
            return false;
        };
        here = point;
    }
    here.dentry().is_within(top.dentry())
}
