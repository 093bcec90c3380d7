//! Making, linking, removing and moving names.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use linux_raw_sys::general::{self as sys, CAP_MKNOD, S_ISGID, S_ISVTX};
use task::Mutex;

use crate::attributes::FileAttributes;
use crate::path::{LookupContext, ParentLookup};
use crate::{
    Access, Cred, Dentry, DeviceId, FileType, Metadata, NewInode, NewInodeKind, Path, RenameFlags,
    Result, dcache, inotify, mount, protected,
};

/// Held by every rename, before the directories' locks: only a rename locks two of them, and only a
/// rename changes who is above whom.
static RENAME_LOCK: Mutex<()> = Mutex::new(());

/// Stands for a removed name where file systems lie over each other. It is no device, so everybody
/// may make it.
const WHITEOUT: DeviceId = DeviceId::new(0, 0);

/// Permission bits that a program asks for a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreationMode {
    /// Permission bits (07777).
    pub bits: u32,
    /// The caller's file creation mask, which is for directories without a default access control
    /// list.
    pub umask: u32,
}

impl From<u32> for CreationMode {
    fn from(bits: u32) -> Self {
        Self { bits, umask: 0 }
    }
}

pub(super) fn may_create(dir: &Path, cred: &Cred) -> Result<()> {
    dir.require_writable()?;
    cred.check_inode(&**dir.inode(), Access::WRITE.union(Access::EXEC))
}

/// The mode of a new file that is no directory. Who is not of a directory's group does not make
/// programs that run as that group.
pub(super) fn creation_mode(dir: &Path, mode: u32, cred: &Cred) -> u32 {
    const SETGID_EXEC: u32 = S_ISGID | 0o010;
    if mode & SETGID_EXEC != SETGID_EXEC || cred.capable(sys::CAP_FSETID) {
        return mode;
    }
    let meta = dir.metadata();
    if meta.mode & S_ISGID == 0 || cred.in_group(meta.gid) {
        mode
    } else {
        mode & !S_ISGID
    }
}

fn may_remove(dir: &Path, victim: &Metadata, cred: &Cred) -> Result<()> {
    may_create(dir, cred)?;
    let meta = dir.metadata();
    if meta.mode & S_ISVTX != 0 && !cred.owns(&meta) && !cred.owns(victim) {
        return Err(Errno::EPERM);
    }
    meta.attributes.refuse(FileAttributes::APPEND)?;
    victim.attributes.refuse(FileAttributes::FIXED)
}

/// Makes a file of any kind at `name` (`mknod(2)`, `mkdir(2)`, `symlink(2)`, and the name of a
/// bound socket).
///
/// # Errors
/// `EEXIST`, and those of a walk and of permissions; `EPERM` for a device by an ordinary user.
pub fn create_node(
    walk: &LookupContext<'_>,
    name: &[u8],
    kind: NewInodeKind<'_>,
    mode: impl Into<CreationMode>,
) -> Result<Path> {
    let CreationMode { bits, umask } = mode.into();
    let Some(ParentLookup {
        dir,
        name,
        trailing_slash,
    }) = walk.lookup_parent(name)?
    else {
        return Err(Errno::EEXIST);
    };
    if matches!(&name[..], b"." | b"..") {
        return Err(Errno::EEXIST);
    }
    let parent = dir.dentry();
    // Declared before the lock, so that they are dropped after it.
    let existing;
    let _displaced;
    let made = {
        let mut names = parent.lock();
        existing = parent.lookup_locked(&mut names, &name);
        match &existing {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {
                if trailing_slash && !matches!(kind, NewInodeKind::Directory) {
                    return Err(Errno::ENOENT);
                }
                may_create(&dir, walk.cred)?;
                let device = matches!(kind, NewInodeKind::Char(id) if id != WHITEOUT)
                    || matches!(kind, NewInodeKind::Block(_));
                if device && !walk.cred.capable(CAP_MKNOD) {
                    return Err(Errno::EPERM);
                }
                let mode = if matches!(kind, NewInodeKind::Directory) {
                    bits
                } else {
                    creation_mode(&dir, bits, walk.cred)
                };
                let new = NewInode {
                    kind,
                    mode,
                    umask,
                    uid: walk.cred.uid,
                    gid: walk.cred.gid,
                };
                let inode = parent.inode().create(&name, &new)?;
                let made = parent.instantiate(&mut names, &name, inode);
                _displaced = parent.cache_child(&names, &name, &made);
                Ok(made)
            }
            Err(e) => Err(*e),
        }
    }?;
    inotify::notify_dir_entry(parent.inode(), sys::IN_CREATE, &name, made.kind());
    Ok(Path::new(dir.mount().clone(), made))
}

/// Gives the file at `old` the further name `name`.
///
/// # Errors
/// `EPERM` for a directory or what is not the caller's to link, `EXDEV` across mounts, `EEXIST`,
/// and those of a walk.
pub fn link(old: &Path, walk: &LookupContext<'_>, name: &[u8]) -> Result<()> {
    let Some(ParentLookup {
        dir,
        name,
        trailing_slash,
    }) = walk.lookup_parent(name)?
    else {
        return Err(Errno::EEXIST);
    };
    if matches!(&name[..], b"." | b"..") {
        return Err(Errno::EEXIST);
    }
    let existing;
    let mut names = dir.dentry().lock();
    existing = dir.dentry().lookup_locked(&mut names, &name);
    match &existing {
        Ok(_) => return Err(Errno::EEXIST),
        Err(Errno::ENOENT) => {}
        Err(e) => return Err(*e),
    }
    if trailing_slash {
        return Err(Errno::ENOENT);
    }
    dir.require_writable()?;
    let meta = old.metadata();
    // A file without a name (O_TMPFILE) is in no mount; its device tells where it belongs.
    if meta.dev != dir.metadata().dev {
        return Err(Errno::EXDEV);
    }
    protected::check_link(&meta, walk.cred, |want| {
        walk.cred.check_inode(&**old.inode(), want)
    })?;
    may_create(&dir, walk.cred)?;
    meta.attributes.refuse(FileAttributes::FIXED)?;
    if meta.kind == FileType::Directory {
        return Err(Errno::EPERM);
    }
    let inode = old.inode();
    dir.inode().link(&name, inode)?;
    drop(names);
    inotify::notify_link_count(inode);
    inotify::notify_dir_entry(dir.inode(), sys::IN_CREATE, &name, meta.kind);
    Ok(())
}

/// Call that removes a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// `unlink(2)`: of anything but a directory.
    Unlink,
    /// `rmdir(2)`: of an empty directory.
    Rmdir,
}

/// Removes a name from a file or an empty directory.
///
/// # Errors
/// Those of `unlink(2)` and `rmdir(2)`.
pub fn remove(walk: &LookupContext<'_>, name: &[u8], removal: Removal) -> Result<()> {
    let wants_directory = removal == Removal::Rmdir;
    let Some(ParentLookup {
        dir,
        name,
        trailing_slash,
    }) = walk.lookup_parent(name)?
    else {
        return Err(if wants_directory {
            Errno::EBUSY
        } else {
            Errno::EISDIR
        });
    };
    match &name[..] {
        b"." | b".." if !wants_directory => return Err(Errno::EISDIR),
        b"." => return Err(Errno::EINVAL),
        b".." => return Err(Errno::ENOTEMPTY),
        _ => {}
    }
    dir.require_writable()?;
    let victim;
    let mut names = dir.dentry().lock();
    victim = dir.dentry().lookup_locked(&mut names, &name)?;
    let meta = victim.inode().metadata();
    let is_dir = meta.kind == FileType::Directory;
    let wrong_kind = if is_dir {
        Errno::EISDIR
    } else {
        Errno::ENOTDIR
    };
    if trailing_slash && !wants_directory {
        return Err(wrong_kind);
    }
    may_remove(&dir, &meta, walk.cred)?;
    if is_dir != wants_directory {
        return Err(wrong_kind);
    }
    let covered = check_not_mountpoint(&victim, &dir, walk)?;
    if is_dir {
        dir.inode().rmdir(&name)?;
    } else {
        dir.inode().unlink(&name)?;
    }
    names.remove(&name);
    victim.set_removed();
    drop(names);
    if covered {
        mount::detach_mounts(&victim, dir.mount());
    }
    if !is_dir {
        inotify::notify_link_count(victim.inode());
    }
    inotify::notify_dir_entry(dir.inode(), sys::IN_DELETE, &name, meta.kind);
    drop(dcache::remove(dir.dentry(), &name));
    Ok(())
}

/// Refuses to touch a name on which something is mounted in the caller's namespace. Elsewhere, that
/// is unmounted when the name is gone: whether there is any is the result.
fn check_not_mountpoint(
    dentry: &Arc<Dentry>,
    dir: &Path,
    walk: &LookupContext<'_>,
) -> Result<bool> {
    if dentry.mounts.load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    if mount::is_mountpoint_in(walk.namespace(), dentry, dir.mount()) {
        Err(Errno::EBUSY)
    } else {
        Ok(true)
    }
}

/// Moves a name (`renameat2(2)`): `source` and `target` are what [`LookupContext::lookup_parent`]
/// found of both names, `walk` tells who moves it, and `flags` go together.
///
/// # Errors
/// Those of `renameat2(2)`.
pub fn rename(
    walk: &LookupContext<'_>,
    source: Option<ParentLookup>,
    target: Option<ParentLookup>,
    flags: RenameFlags,
) -> Result<()> {
    let special = |name: &[u8]| matches!(name, b"." | b"..");
    let source = source.ok_or(Errno::EBUSY)?;
    let taken = if flags.contains(RenameFlags::NOREPLACE) {
        Errno::EEXIST
    } else {
        Errno::EBUSY
    };
    let target = target.ok_or(taken)?;
    if !Arc::ptr_eq(source.dir.mount(), target.dir.mount()) {
        return Err(Errno::EXDEV);
    }
    if special(&source.name) || special(&target.name) {
        return Err(if special(&source.name) {
            Errno::EBUSY
        } else {
            taken
        });
    }
    source.dir.require_writable()?;
    let cred = walk.cred;
    let (source_dir, target_dir) = (source.dir.dentry(), target.dir.dentry());
    let same_dir = Arc::ptr_eq(source_dir, target_dir);

    // Declared before the locks, so that they are dropped after them.
    let moved;
    let found;
    let forgotten;
    let displaced;
    let _serial = RENAME_LOCK.lock();
    let mut names = source_dir.lock();
    let mut other_names = if same_dir {
        None
    } else {
        Some(target_dir.lock())
    };

    moved = source_dir.lookup_locked(&mut names, &source.name)?;
    found = target_dir.lookup_locked(other_names.as_mut().unwrap_or(&mut names), &target.name);
    let replaced = match &found {
        Ok(dentry) => Some(dentry),
        Err(Errno::ENOENT) => None,
        Err(e) => return Err(*e),
    };
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    match replaced {
        Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
        Some(other) if exchange && target.trailing_slash && other.kind() != FileType::Directory => {
            return Err(Errno::ENOTDIR);
        }
        None if exchange => return Err(Errno::ENOENT),
        _ => {}
    }
    let moved_meta = moved.inode().metadata();
    let moved_is_dir = moved_meta.kind == FileType::Directory;
    if !moved_is_dir && (source.trailing_slash || (target.trailing_slash && !exchange)) {
        return Err(Errno::ENOTDIR);
    }
    if moved_is_dir && target_dir.is_within(&moved) {
        return Err(Errno::EINVAL);
    }
    let mut covered = false;
    if let Some(replaced) = replaced {
        if source_dir.is_within(replaced) {
            return Err(if exchange {
                Errno::EINVAL
            } else {
                Errno::ENOTEMPTY
            });
        }
        let meta = replaced.inode().metadata();
        if (meta.dev, meta.ino) == (moved_meta.dev, moved_meta.ino) {
            // Two names of one file: nothing to do, says POSIX.
            return Ok(());
        }
        let replaced_is_dir = meta.kind == FileType::Directory;
        may_remove(&source.dir, &moved_meta, cred)?;
        may_remove(&target.dir, &meta, cred)?;
        if !exchange && moved_is_dir != replaced_is_dir {
            return Err(if moved_is_dir {
                Errno::ENOTDIR
            } else {
                Errno::EISDIR
            });
        }
        if exchange && replaced_is_dir && !same_dir {
            cred.check_inode(&**replaced.inode(), Access::WRITE)?;
        }
        covered = check_not_mountpoint(replaced, &target.dir, walk)? && !exchange;
    } else {
        may_remove(&source.dir, &moved_meta, cred)?;
        may_create(&target.dir, cred)?;
    }
    // What is mounted on it elsewhere goes with it.
    check_not_mountpoint(&moved, &source.dir, walk)?;
    if moved_is_dir && !same_dir {
        // Its `..` changes.
        cred.check_inode(&**moved.inode(), Access::WRITE)?;
    }

    let whiteout = NewInode {
        kind: NewInodeKind::Char(WHITEOUT),
        mode: 0,
        umask: 0,
        uid: cred.uid,
        gid: cred.gid,
    };
    let whiteout = flags.contains(RenameFlags::WHITEOUT).then_some(&whiteout);
    source_dir.inode().rename(
        &source.name,
        target_dir.inode(),
        &target.name,
        flags,
        whiteout,
    )?;

    let stable = source_dir.inode().has_stable_names();
    names.remove(&source.name);
    other_names
        .as_mut()
        .unwrap_or(&mut names)
        .remove(&target.name);
    if let Some(replaced) = replaced {
        if exchange {
            replaced.set_location(source_dir.clone(), &source.name);
            if stable {
                names.insert((&*source.name).into(), replaced);
            }
        } else {
            replaced.set_removed();
        }
    }
    moved.set_location(target_dir.clone(), &target.name);
    forgotten = (
        dcache::remove(source_dir, &source.name),
        dcache::remove(target_dir, &target.name),
    );
    if stable {
        let names = other_names.as_mut().unwrap_or(&mut names);
        names.insert((&*target.name).into(), &moved);
        displaced = target_dir.cache_child(names, &target.name, &moved);
    } else {
        displaced = None;
    }
    drop((names, other_names));
    drop((forgotten, displaced));
    if let Some(replaced) = replaced.filter(|_| covered) {
        mount::detach_mounts(replaced, target.dir.mount());
    }
    let (from, to) = (source_dir.inode(), target_dir.inode());
    inotify::notify_move(moved.inode(), (from, &source.name), (to, &target.name));
    match replaced {
        Some(swapped) if exchange => {
            inotify::notify_move(swapped.inode(), (to, &target.name), (from, &source.name));
        }
        Some(gone) => inotify::notify_link_count(gone.inode()),
        None => {}
    }
    Ok(())
}
