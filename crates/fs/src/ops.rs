//! The calls that open and change names. Each does what the system call of its name does, short of reading its arguments; each either
//! succeeds whole or changes nothing.

use crate::file::{FileOps, OpenFlags};
use crate::mount::Namespace;
use crate::path::{LookupFlags, Parent, Walk, Walker};
use crate::{
    Access, Cred, Dentry, File, FileType, Metadata, NewInode, NewKind, Path, RenameFlags, Result, SetAttr, Timestamp, Writing,
    dcache, devfs, inotify, lease, mount, pipe, xattr,
};
use abi::errno::Errno;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{self as sys, CAP_CHOWN, CAP_FSETID, CAP_MKNOD, S_ISGID, S_ISUID, S_ISVTX};
use task::Mutex;

/// Held by every rename, before the directories' locks: only a rename locks two of them, and only a rename changes who is above whom.
static RENAME: Mutex<()> = Mutex::new(());

/// Opens `name`; with `CREAT` makes it, with permissions `mode` (the umask already taken away).
///
/// # Errors
/// Those of `open(2)`.
#[inline]
pub fn open(walk: &Walk<'_>, name: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<File>> {
    if flags.intersects(OpenFlags::CREAT.union(OpenFlags::TMPFILE)) {
        if flags.contains(OpenFlags::TMPFILE) {
            return open_unnamed(walk, name, flags, mode);
        }
        if flags.contains(OpenFlags::CREAT) && !flags.contains(OpenFlags::PATH) {
            if flags.contains(OpenFlags::DIRECTORY) {
                return Err(Errno::EINVAL);
            }
            return open_or_create(walk, name, flags, mode);
        }
    }
    let mut lookup = LookupFlags::empty();
    lookup.set(LookupFlags::NOFOLLOW, flags.contains(OpenFlags::NOFOLLOW));
    lookup.set(LookupFlags::DIRECTORY, flags.contains(OpenFlags::DIRECTORY));
    open_path(walk.lookup(name, lookup)?, flags, walk.cred, false)
}

fn open_or_create(walk: &Walk<'_>, name: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<File>> {
    let exclusive = flags.contains(OpenFlags::EXCL);
    let existing = |path: Path| if exclusive { Err(Errno::EEXIST) } else { open_path(path, flags, walk.cred, false) };
    let mut walker = Walker::new(walk, name)?;
    loop {
        let Some((last, trailing_slash)) = walker.walk_to_parent()? else { return existing(walker.at) };
        if trailing_slash {
            return Err(Errno::EISDIR);
        }
        if matches!(walker.text(&last), b"." | b"..") {
            walker.step(last, false)?;
            return existing(walker.at);
        }
        walker.require_search()?;
        if last.len() > crate::NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let dir = walker.at.clone();
        let (dentry, created) = find_or_make(
            &dir,
            walker.text(&last),
            walk.cred,
            &NewInode { kind: NewKind::Regular, mode, uid: walk.cred.uid, gid: walk.cred.gid },
        )?;
        let path = Path::new(dir.mount().clone(), dentry);
        if created {
            return open_path(path, flags, walk.cred, true);
        }
        let path = mount::cross(path);
        walker.may_enter(&path)?;
        if path.inode().kind() == FileType::Symlink && !exclusive {
            if flags.contains(OpenFlags::NOFOLLOW) {
                return Err(Errno::ELOOP);
            }
            walker.follow(&path)?;
            continue;
        }
        return existing(path);
    }
}

fn find_or_make(dir: &Path, name: &[u8], cred: &Cred, new: &NewInode<'_>) -> Result<(Arc<Dentry>, bool)> {
    let parent = dir.dentry();
    // Without the directory's lock, if it was used lately.
    if let Some(known) = parent.recall(name) {
        return Ok((known, false));
    }
    let displaced;
    let mut names = parent.lock();
    match parent.child(&mut names, name) {
        Ok(found) => {
            displaced = parent.remember(&names, name, &found);
            drop(names);
            drop(displaced);
            Ok((found, false))
        }
        Err(Errno::ENOENT) => {
            may_create(dir, cred)?;
            let inode = parent.inode().create(name, new)?;
            let made = parent.adopt(&mut names, name, inode);
            drop(names);
            inotify::entry_changed(parent.inode(), sys::IN_CREATE, name, made.kind());
            Ok((made, true))
        }
        Err(e) => Err(e),
    }
}

fn open_unnamed(walk: &Walk<'_>, name: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<File>> {
    if !flags.writable() {
        return Err(Errno::EINVAL);
    }
    let dir = walk.lookup(name, LookupFlags::DIRECTORY)?;
    may_create(&dir, walk.cred)?;
    let new = NewInode { kind: NewKind::Regular, mode, uid: walk.cred.uid, gid: walk.cred.gid };
    let inode = dir.inode().create_unnamed(&new)?;
    let path = Path::unnamed(inode, "/ (deleted)");
    let writing = Writing::begin(&path)?;
    Ok(File::of_inode(path, flags - OpenFlags::TMPFILE, Some(writing)))
}

/// Opens a file that a walk found; `created` skips the checks of permissions for one just made.
///
/// # Errors
/// Those of `open(2)`.
pub fn open_path(path: Path, flags: OpenFlags, cred: &Cred, created: bool) -> Result<Arc<File>> {
    let file = open_quietly(path, flags, cred, created)?;
    if !flags.contains(OpenFlags::PATH) {
        inotify::happened_at(file.path(), sys::IN_OPEN);
    }
    Ok(file)
}

fn open_quietly(path: Path, flags: OpenFlags, cred: &Cred, created: bool) -> Result<Arc<File>> {
    let inode = path.inode();
    let kind = path.dentry().kind();
    if flags.contains(OpenFlags::DIRECTORY) && kind != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if flags.contains(OpenFlags::PATH) {
        let keep = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        return Ok(File::new(path, Arc::new(PathOnly { _keeps: None }), flags & keep));
    }
    match kind {
        FileType::Symlink => return Err(Errno::ELOOP),
        FileType::Socket | FileType::Block => return Err(Errno::ENXIO),
        FileType::Directory if flags.writable() || flags.contains(OpenFlags::CREAT) => return Err(Errno::EISDIR),
        FileType::Char if path.mount().flags() & mount::MS_NODEV != 0 => return Err(Errno::EACCES),
        _ => {}
    }
    let truncate = flags.contains(OpenFlags::TRUNC) && kind == FileType::Regular && !created;
    if !created {
        let mut want = Access::NONE;
        if flags.readable() {
            want = want.and(Access::READ);
        }
        if flags.writable() || truncate {
            want = want.and(Access::WRITE);
        }
        cred.check_inode(&**inode, want)?;
        if flags.contains(OpenFlags::NOATIME) && !cred.owns(&inode.metadata()) {
            return Err(Errno::EPERM);
        }
    }
    if (flags.writable() || truncate) && kind == FileType::Regular {
        path.require_writable()?;
    }
    // Counted before leases are looked at, as who takes a lease looks at those after the lease is there.
    let mut writing = None;
    if kind == FileType::Regular {
        if flags.writable() || truncate {
            writing = Some(Writing::begin(&path)?);
        }
        lease::broken_by(inode, flags.writable(), flags.contains(OpenFlags::NONBLOCK))?;
    }
    if truncate {
        inode.truncate(0)?;
        inotify::happened_at(&path, sys::IN_MODIFY);
    }
    let ops = match inode.clone().open(flags)? {
        Some(ops) => ops,
        None => match kind {
            FileType::Fifo => pipe::open_fifo(&path.inode().fifo().ok_or(Errno::ENXIO)?, flags)?,
            FileType::Char => devfs::open(path.inode().device().ok_or(Errno::ENXIO)?, flags)?,
            _ => return Ok(File::of_inode(path, flags, writing.filter(|_| flags.writable()))),
        },
    };
    Ok(File::new(path, ops, flags))
}

/// An opening of a place that can only be named, as with `O_PATH`; `keeps` is a tree that goes with it.
#[must_use]
pub fn open_place(path: Path, keeps: Option<Arc<Namespace>>) -> Arc<File> {
    File::new(path, Arc::new(PathOnly { _keeps: keeps }), OpenFlags::PATH)
}

/// An opening with `O_PATH`: a place, nothing else.
struct PathOnly {
    _keeps: Option<Arc<Namespace>>,
}

impl FileOps for PathOnly {
    fn seek(&self, _: &File, _: crate::Whence, _: i64) -> Result<u64> {
        Err(Errno::EBADF)
    }

    fn sync(&self) -> Result<()> {
        Err(Errno::EBADF)
    }

    fn backing(&self, _: &File) -> Result<Arc<dyn vm::Backing>> {
        Err(Errno::EBADF)
    }

    fn readdir(&self, _: &File, _: &mut dyn FnMut(crate::DirEntry<'_>) -> bool) -> Result<()> {
        Err(Errno::EBADF)
    }

    fn ioctl(&self, _: &File, _: &crate::ioctl::Request<'_>) -> Result<usize> {
        Err(Errno::EBADF)
    }
}

fn may_create(dir: &Path, cred: &Cred) -> Result<()> {
    dir.require_writable()?;
    cred.check(&dir.metadata(), Access::WRITE.and(Access::EXEC))
}

fn may_remove(dir: &Path, victim: &Metadata, cred: &Cred) -> Result<()> {
    may_create(dir, cred)?;
    let meta = dir.metadata();
    if meta.mode & S_ISVTX != 0 && !cred.owns(&meta) && !cred.owns(victim) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Makes a file of any kind at `name` (`mknod(2)`, `mkdir(2)`, `symlink(2)`, and the name of a bound socket). The umask is already
/// taken from `mode`.
///
/// # Errors
/// `EEXIST`, and those of a walk and of permissions; `EPERM` for a device by an ordinary user.
pub fn make(walk: &Walk<'_>, name: &[u8], kind: NewKind<'_>, mode: u32) -> Result<Path> {
    let Some(Parent { dir, name, trailing_slash }) = walk.parent(name)? else { return Err(Errno::EEXIST) };
    if matches!(&name[..], b"." | b"..") {
        return Err(Errno::EEXIST);
    }
    if matches!(kind, NewKind::Char(_) | NewKind::Block(_)) && !walk.cred.has(CAP_MKNOD) {
        return Err(Errno::EPERM);
    }
    let parent = dir.dentry();
    let existing;
    let made = {
        let mut names = parent.lock();
        existing = parent.child(&mut names, &name);
        match &existing {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {
                if trailing_slash && !matches!(kind, NewKind::Directory) {
                    return Err(Errno::ENOENT);
                }
                may_create(&dir, walk.cred)?;
                let new = NewInode { kind, mode, uid: walk.cred.uid, gid: walk.cred.gid };
                let inode = parent.inode().create(&name, &new)?;
                Ok(parent.adopt(&mut names, &name, inode))
            }
            Err(e) => Err(*e),
        }
    }?;
    inotify::entry_changed(parent.inode(), sys::IN_CREATE, &name, made.kind());
    Ok(Path::new(dir.mount().clone(), made))
}

/// Gives the file at `old` the further name `name`.
///
/// # Errors
/// `EPERM` for a directory, `EXDEV` across mounts, `EEXIST`, and those of a walk.
pub fn link(old: &Path, walk: &Walk<'_>, name: &[u8]) -> Result<()> {
    let Some(Parent { dir, name, trailing_slash }) = walk.parent(name)? else { return Err(Errno::EEXIST) };
    if matches!(&name[..], b"." | b"..") {
        return Err(Errno::EEXIST);
    }
    let existing;
    let mut names = dir.dentry().lock();
    existing = dir.dentry().child(&mut names, &name);
    match &existing {
        Ok(_) => return Err(Errno::EEXIST),
        Err(Errno::ENOENT) => {}
        Err(e) => return Err(*e),
    }
    if trailing_slash {
        return Err(Errno::ENOENT);
    }
    let meta = old.metadata();
    if meta.kind == FileType::Directory {
        return Err(Errno::EPERM);
    }
    // A file without a name (O_TMPFILE) is in no mount; its device tells where it belongs.
    if meta.dev != dir.metadata().dev {
        return Err(Errno::EXDEV);
    }
    may_create(&dir, walk.cred)?;
    let inode = old.inode();
    dir.inode().link(&name, inode)?;
    drop(names);
    inotify::links_changed(inode);
    inotify::entry_changed(dir.inode(), sys::IN_CREATE, &name, meta.kind);
    Ok(())
}

/// Removes a name from a file (`dir_wanted` false: `unlink(2)`) or an empty directory (`rmdir(2)`).
///
/// # Errors
/// Those of `unlink(2)` and `rmdir(2)`.
pub fn remove(walk: &Walk<'_>, name: &[u8], dir_wanted: bool) -> Result<()> {
    let Some(Parent { dir, name, trailing_slash }) = walk.parent(name)? else {
        return Err(if dir_wanted { Errno::EBUSY } else { Errno::EISDIR });
    };
    match &name[..] {
        b"." | b".." if !dir_wanted => return Err(Errno::EISDIR),
        b"." => return Err(Errno::EINVAL),
        b".." => return Err(Errno::ENOTEMPTY),
        _ => {}
    }
    let victim;
    let mut names = dir.dentry().lock();
    victim = dir.dentry().child(&mut names, &name)?;
    let meta = victim.inode().metadata();
    let is_dir = meta.kind == FileType::Directory;
    if is_dir != dir_wanted {
        return Err(if is_dir { Errno::EISDIR } else { Errno::ENOTDIR });
    }
    if trailing_slash && !is_dir {
        return Err(Errno::ENOTDIR);
    }
    may_remove(&dir, &meta, walk.cred)?;
    let covered = require_uncovered(&victim, &dir, walk)?;
    if is_dir {
        dir.inode().rmdir(&name)?
    } else {
        dir.inode().unlink(&name)?
    }
    names.remove(&name);
    victim.set_removed();
    drop(names);
    if covered {
        mount::detach_all(&victim, dir.mount());
    }
    if !is_dir {
        inotify::links_changed(victim.inode());
    }
    inotify::entry_changed(dir.inode(), sys::IN_DELETE, &name, meta.kind);
    drop(dcache::forget(dir.dentry(), &name));
    Ok(())
}

/// Refuses to touch a name on which something is mounted in the caller's namespace. Elsewhere, that is unmounted when the name is gone: whether there is
/// any is the result.
fn require_uncovered(dentry: &Arc<Dentry>, dir: &Path, walk: &Walk<'_>) -> Result<bool> {
    if dentry.mounts.load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    if mount::is_point_in(walk.namespace(), dentry, dir.mount()) { Err(Errno::EBUSY) } else { Ok(true) }
}

/// Whether `dentry` is `ancestor` or below it.
fn is_below(dentry: &Arc<Dentry>, ancestor: &Arc<Dentry>) -> bool {
    let mut here = Some(dentry.clone());
    while let Some(d) = here {
        if Arc::ptr_eq(&d, ancestor) {
            return true;
        }
        here = d.parent();
    }
    false
}

/// Moves a name (`renameat2(2)`).
///
/// # Errors
/// Those of `renameat2(2)`.
pub fn rename(from: &Walk<'_>, old: &[u8], to: &Walk<'_>, new: &[u8], flags: RenameFlags) -> Result<()> {
    if flags.contains(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE) {
        return Err(Errno::EINVAL);
    }
    let source = from.parent(old)?.ok_or(Errno::EBUSY)?;
    let target = to.parent(new)?.ok_or(Errno::EBUSY)?;
    if !Arc::ptr_eq(source.dir.mount(), target.dir.mount()) {
        return Err(Errno::EXDEV);
    }
    if matches!(&source.name[..], b"." | b"..") || matches!(&target.name[..], b"." | b"..") {
        return Err(Errno::EBUSY);
    }
    let cred = from.cred;
    let (source_dir, target_dir) = (source.dir.dentry(), target.dir.dentry());
    let same_dir = Arc::ptr_eq(source_dir, target_dir);

    // Declared before the locks, so that they are dropped after them.
    let moved;
    let found;
    let _serial = RENAME.lock();
    let mut names = source_dir.lock();
    let mut other_names = if same_dir { None } else { Some(target_dir.lock()) };

    moved = source_dir.child(&mut names, &source.name)?;
    found = target_dir.child(other_names.as_mut().unwrap_or(&mut names), &target.name);
    let replaced = match &found {
        Ok(dentry) => Some(dentry),
        Err(Errno::ENOENT) => None,
        Err(e) => return Err(*e),
    };
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    match replaced {
        Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
        None if exchange => return Err(Errno::ENOENT),
        _ => {}
    }
    let moved_meta = moved.inode().metadata();
    let moved_is_dir = moved_meta.kind == FileType::Directory;
    if !moved_is_dir && (source.trailing_slash || (target.trailing_slash && !exchange)) {
        return Err(Errno::ENOTDIR);
    }
    if moved_is_dir && is_below(target_dir, &moved) {
        return Err(Errno::EINVAL);
    }
    let mut covered = false;
    if let Some(replaced) = replaced {
        if is_below(source_dir, replaced) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        let meta = replaced.inode().metadata();
        if (meta.dev, meta.ino) == (moved_meta.dev, moved_meta.ino) {
            // Two names of one file: nothing to do, says POSIX.
            return Ok(());
        }
        let replaced_is_dir = meta.kind == FileType::Directory;
        if !exchange && moved_is_dir != replaced_is_dir {
            return Err(if moved_is_dir { Errno::ENOTDIR } else { Errno::EISDIR });
        }
        may_remove(&target.dir, &meta, cred)?;
        covered = require_uncovered(replaced, &target.dir, from)? && !exchange;
    } else {
        may_create(&target.dir, cred)?;
    }
    may_remove(&source.dir, &moved_meta, cred)?;
    // What is mounted on it elsewhere goes with it.
    require_uncovered(&moved, &source.dir, from)?;
    if moved_is_dir && !same_dir {
        // Its `..` changes.
        cred.check(&moved_meta, Access::WRITE)?;
    }

    source_dir.inode().rename(&source.name, target_dir.inode(), &target.name, flags)?;

    let stable = source_dir.inode().names_are_stable();
    names.remove(&source.name);
    other_names.as_mut().unwrap_or(&mut names).remove(&target.name);
    if let Some(replaced) = replaced {
        if exchange {
            replaced.set_place(source_dir.clone(), &source.name);
            if stable {
                names.insert((&*source.name).into(), replaced);
            }
        } else {
            replaced.set_removed();
        }
    }
    moved.set_place(target_dir.clone(), &target.name);
    if stable {
        let names = other_names.as_mut().unwrap_or(&mut names);
        names.insert((&*target.name).into(), &moved);
    }
    drop((names, other_names));
    if let Some(replaced) = replaced.filter(|_| covered) {
        mount::detach_all(replaced, target.dir.mount());
    }
    let (from, to) = (source_dir.inode(), target_dir.inode());
    inotify::moved(moved.inode(), (from, &source.name), (to, &target.name));
    match replaced {
        Some(swapped) if exchange => inotify::moved(swapped.inode(), (to, &target.name), (from, &source.name)),
        Some(gone) => inotify::links_changed(gone.inode()),
        None => {}
    }
    drop(dcache::forget(source_dir, &source.name));
    drop(dcache::forget(target_dir, &target.name));
    Ok(())
}

/// Changes permission bits (`chmod(2)`).
///
/// # Errors
/// `EPERM`, `EROFS`.
pub fn chmod(path: &Path, mode: u32, cred: &Cred) -> Result<()> {
    path.require_writable()?;
    let meta = path.metadata();
    if !cred.owns(&meta) {
        return Err(Errno::EPERM);
    }
    let mut mode = mode & 0o7777;
    if !cred.in_group(meta.gid) && !cred.has(CAP_FSETID) {
        mode &= !S_ISGID;
    }
    path.inode().set_attr(&SetAttr { mode: Some(mode), ..SetAttr::default() })?;
    inotify::happened_at(path, sys::IN_ATTRIB);
    Ok(())
}

/// Changes owner and group (`chown(2)`); takes set-id bits and capabilities away.
///
/// # Errors
/// `EPERM`, `EROFS`.
pub fn chown(path: &Path, uid: Option<u32>, gid: Option<u32>, cred: &Cred) -> Result<()> {
    path.require_writable()?;
    let meta = path.metadata();
    let own_group = |gid: u32| cred.uid == meta.uid && (gid == meta.gid || cred.in_group(gid));
    let allowed = uid.is_none_or(|u| u == meta.uid && cred.uid == meta.uid) && gid.is_none_or(own_group);
    if !allowed && !cred.has(CAP_CHOWN) {
        return Err(Errno::EPERM);
    }
    let mut mode = None;
    if meta.kind != FileType::Directory && meta.mode & (S_ISUID | S_ISGID) != 0 {
        // A set-group-id bit without group execution is a lock mark, not a privilege.
        let sgid = if meta.mode & 0o010 != 0 { S_ISGID } else { 0 };
        mode = Some(meta.mode & !(S_ISUID | sgid));
    }
    path.inode().set_attr(&SetAttr { uid, gid, mode, ..SetAttr::default() })?;
    // Mostly there are none.
    let _ = path.inode().remove_xattr(xattr::CAPABILITY);
    inotify::happened_at(path, sys::IN_ATTRIB);
    Ok(())
}

/// A time that `utimensat(2)` sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewTime {
    /// Leave it.
    Omit,
    /// The present.
    Now,
    /// This one.
    At(Timestamp),
}

/// Changes access and modification time (`utimensat(2)`).
///
/// # Errors
/// `EACCES`, `EPERM`, `EROFS`.
pub fn set_times(path: &Path, atime: NewTime, mtime: NewTime, cred: &Cred) -> Result<()> {
    if atime == NewTime::Omit && mtime == NewTime::Omit {
        return Ok(());
    }
    path.require_writable()?;
    let meta = path.metadata();
    if !cred.owns(&meta) {
        if atime != NewTime::Now || mtime != NewTime::Now {
            return Err(Errno::EPERM);
        }
        cred.check(&meta, Access::WRITE)?;
    }
    let time = |t| match t {
        NewTime::Omit => None,
        NewTime::Now => Some(Timestamp::now()),
        NewTime::At(t) => Some(t),
    };
    path.inode().set_attr(&SetAttr { atime: time(atime), mtime: time(mtime), ..SetAttr::default() })?;
    // One of the two alone looks like what sets it.
    let event = match (atime, mtime) {
        (NewTime::Omit, _) => sys::IN_MODIFY,
        (_, NewTime::Omit) => sys::IN_ACCESS,
        _ => sys::IN_ATTRIB,
    };
    inotify::happened_at(path, event);
    Ok(())
}

/// Sets a file's size by name (`truncate(2)`).
///
/// # Errors
/// `EISDIR`, `EINVAL`, `EACCES`, `EROFS`, `EFBIG`.
pub fn truncate(path: &Path, size: u64, cred: &Cred) -> Result<()> {
    match path.inode().kind() {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    cred.check(&path.metadata(), Access::WRITE)?;
    path.require_writable()?;
    let _writing = Writing::begin(path)?;
    lease::broken_by(path.inode(), true, false)?;
    path.inode().truncate(size)?;
    inotify::happened_at(path, sys::IN_MODIFY);
    Ok(())
}
