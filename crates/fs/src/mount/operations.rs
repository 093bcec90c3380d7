//! Mounting, binding, moving.

use alloc::sync::Arc;

use abi::errno::Errno;

use super::namespace::Namespace;
use super::tree::{self, CloneSharing, TreeChange};
use super::{Mount, SuperBlock, cross, flags_of_mount};
use crate::{FileType, Path, Result, nsfs};

fn is_directory(path: &Path) -> bool {
    path.dentry().kind() == FileType::Directory
}

/// The place at which something is to be mounted in `space`: the top of what is mounted there.
fn target(space: &Namespace, point: &Path) -> Result<Path> {
    let point = cross(point.clone());
    if !space.holds(point.mount()) {
        return Err(Errno::EINVAL);
    }
    if point.dentry().removed() {
        Err(Errno::ENOENT)
    } else {
        Ok(point)
    }
}

fn is_top(path: &Path) -> bool {
    Arc::ptr_eq(path.dentry(), path.mount().root())
}

/// Hangs a new tree at a place, or takes it apart.
fn graft(change: &mut TreeChange, tree: &Arc<Mount>, point: &Path) -> Result<()> {
    let fits = (tree.root().kind() == FileType::Directory) == is_directory(point);
    let done = if fits {
        change.attach(tree, point)
    } else {
        Err(Errno::ENOTDIR)
    };
    if done.is_err() {
        change.dismantle(&tree::below(tree));
    }
    done
}

/// Hangs a file system on a directory, with `bits` of `mount(2)`.
///
/// # Errors
/// `ENOTDIR` if `point` is no directory, `EBUSY` if the file system is on top there already,
/// `EINVAL` if the place is in another namespace, `ENOSPC`.
pub fn mount(
    space: &Namespace,
    shown: Arc<SuperBlock>,
    point: &Path,
    source: &str,
    bits: u32,
) -> Result<()> {
    let mut change = TreeChange::begin();
    let point = target(space, point)?;
    let result = if Arc::ptr_eq(point.mount().shown(), &shown) && is_top(&point) {
        Err(Errno::EBUSY)
    } else {
        let root = shown.root.clone();
        let new = Mount::new(shown, root, source, flags_of_mount(bits, None));
        let done = graft(&mut change, &new, &point);
        change.later(new);
        done
    };
    change.leave(point);
    result
}

/// A copy of what is at `from`, with what is mounted below if `recursive`, that hangs nowhere.
fn copied(
    change: &mut TreeChange,
    space: &Namespace,
    from: &Path,
    recursive: bool,
) -> Result<Arc<Mount>> {
    // A namespace's file is in none; one of mounts may be kept by such as were made before it only.
    let namespace = nsfs::of(from.inode());
    let loops = namespace
        .and_then(|file| file.mounts())
        .is_some_and(|other| other.sequence() <= space.sequence());
    let foreign = !space.holds(from.mount()) && namespace.is_none();
    if loops || foreign || from.mount().is_unbindable() {
        return Err(Errno::EINVAL);
    }
    Ok(if recursive {
        change.copy(
            from.mount(),
            from.dentry(),
            CloneSharing::Alike,
            &mut |_, _| {},
        )
    } else {
        TreeChange::copy_top(from.mount(), from.dentry())
    })
}

/// Shows what is at `from` also at `point`; if `recursive`, with what is mounted below.
///
/// # Errors
/// `ENOTDIR` if only one of them is a directory, `EINVAL` if one is in another namespace or `from`
/// cannot be bound, `ENOSPC`.
pub fn bind(space: &Namespace, from: &Path, point: &Path, recursive: bool) -> Result<()> {
    let mut change = TreeChange::begin();
    let point = target(space, point)?;
    let result = copied(&mut change, space, from, recursive).and_then(|tree| {
        let done = graft(&mut change, &tree, &point);
        change.later(tree);
        done
    });
    change.leave(point);
    result
}

/// A copy of what is at `from` that hangs nowhere yet (`open_tree(2)`).
///
/// # Errors
/// As [`bind`].
pub fn copy_tree(space: &Namespace, from: &Path, recursive: bool) -> Result<Arc<Namespace>> {
    let mut change = TreeChange::begin();
    let tree = copied(&mut change, space, from, recursive)?;
    Ok(Namespace::of_tree(&mut change, tree, true))
}

/// Moves the mount whose top is `from`, with all on it, to `point`.
///
/// # Errors
/// `EINVAL` if `from` is no top, hangs in a mount that shares, or either is in another namespace;
/// `ELOOP` if `point` is below; `ENOSPC`.
pub fn move_mount(space: &Namespace, from: &Path, point: &Path) -> Result<()> {
    let mut change = TreeChange::begin();
    let point = target(space, point)?;
    let result = may_move(space, from, &point).and_then(|()| change.attach(from.mount(), &point));
    change.leave(point);
    result
}

fn may_move(space: &Namespace, from: &Path, point: &Path) -> Result<()> {
    let moved = from.mount();
    let hangs = moved.point();
    let ours = match &hangs {
        Some(_) => space.holds(moved),
        None => moved.home().is_some_and(|home| home.anonymous),
    };
    let shares = hangs.is_some_and(|on| on.mount().is_shared());
    let unbindable = || tree::below(moved).iter().any(|mount| mount.is_unbindable());
    if !ours
        || !is_top(from)
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
        let Some(on) = above.point() else {
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
pub fn pivot(space: &Namespace, root: &Path, new: &Path, put: &Path) -> Result<()> {
    let mut change = TreeChange::begin();
    let put = cross(put.clone());
    let result = pivot_with(&mut change, space, root, new, &put);
    change.leave(put);
    result
}

fn pivot_with(
    change: &mut TreeChange,
    space: &Namespace,
    root: &Path,
    new: &Path,
    put: &Path,
) -> Result<()> {
    let (old_mount, new_mount) = (root.mount(), new.mount());
    let (old_point, new_point) = (old_mount.point(), new_mount.point());
    let shares = |point: &Option<Path>| {
        point
            .as_ref()
            .is_some_and(|point| point.mount().is_shared())
    };
    if put.mount().is_shared() || shares(&new_point) || shares(&old_point) {
        return Err(Errno::EINVAL);
    }
    if !space.holds(old_mount) || !space.holds(new_mount) {
        return Err(Errno::EINVAL);
    }
    if new.dentry().removed() {
        return Err(Errno::ENOENT);
    }
    if Arc::ptr_eq(new_mount, old_mount) || Arc::ptr_eq(put.mount(), old_mount) {
        return Err(Errno::EBUSY);
    }
    let (Some(old_point), Some(_)) = (old_point, new_point) else {
        return Err(Errno::EINVAL);
    };
    if !is_top(root) || !is_top(new) || !is_reached(put, new) || !is_reached(new, root) {
        return Err(Errno::EINVAL);
    }
    change.unhang(new_mount);
    change.unhang(old_mount);
    change.hang(old_mount, put.mount(), put.dentry());
    change.hang(new_mount, old_point.mount(), old_point.dentry());
    change.leave(old_point);
    space.home.tell();
    Ok(())
}

/// Whether `place` is below `top`, across mounts.
fn is_reached(place: &Path, top: &Path) -> bool {
    let mut here = place.clone();
    while !Arc::ptr_eq(here.mount(), top.mount()) {
        let Some(point) = here.mount().point() else {
            return false;
        };
        here = point;
    }
    here.dentry().is_within(top.dentry())
}
