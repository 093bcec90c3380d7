//! Opening.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use super::namei::{CreationMode, creation_mode, may_create};
use crate::attributes::FileAttributes;
use crate::file::{FileOps, OpenFlags};
use crate::mount::Namespace;
use crate::path::{LookupContext, LookupFlags, OnLink, PathWalker};
use crate::{
    Access, Cred, Dentry, File, FileType, NewInode, NewInodeKind, Path, Result, WriteAccess, block,
    devfs, inotify, lease, mount, pipe, protected,
};

/// Opens `name` with flags that go together ([`OpenFlags::checked`]); with `CREAT` makes it, with
/// permissions `mode`.
///
/// # Errors
/// Those of `open(2)`.
#[inline]
pub fn open(
    walk: &LookupContext<'_>,
    name: &[u8],
    flags: OpenFlags,
    mode: impl Into<CreationMode>,
) -> Result<Arc<File>> {
    if flags.intersects(OpenFlags::CREAT.union(OpenFlags::TMPFILE)) {
        if flags.contains(OpenFlags::TMPFILE) {
            return open_tmpfile(walk, name, flags, mode.into());
        }
        if flags.contains(OpenFlags::CREAT) {
            return open_or_create(walk, name, flags, mode.into());
        }
    }
    let mut lookup = LookupFlags::empty();
    lookup.set(LookupFlags::NOFOLLOW, flags.contains(OpenFlags::NOFOLLOW));
    lookup.set(LookupFlags::DIRECTORY, flags.contains(OpenFlags::DIRECTORY));
    dentry_open(walk.lookup(name, lookup)?, flags, walk.cred)
}

fn open_or_create(
    walk: &LookupContext<'_>,
    name: &[u8],
    flags: OpenFlags,
    mode: CreationMode,
) -> Result<Arc<File>> {
    let exclusive = flags.contains(OpenFlags::EXCL);
    // What is found in a directory may be there to deceive; what has no name in one is not.
    let existing = |path: Path, dir: Option<&Path>| {
        if exclusive {
            return Err(Errno::EEXIST);
        }
        let kind = path.dentry().kind();
        if let Some(dir) = dir.filter(|_| protected::restricts(kind)) {
            let (dir, owner) = (dir.inode().permissions(), path.inode().permissions().uid);
            protected::check_open_existing(&dir, kind, owner, walk.cred)?;
        }
        dentry_open(path, flags, walk.cred)
    };
    let mut walker = PathWalker::new(walk, name)?;
    loop {
        let Some((last, trailing_slash)) = walker.walk_to_parent()? else {
            return existing(walker.path, None);
        };
        if trailing_slash {
            return Err(Errno::EISDIR);
        }
        if matches!(walker.text(&last), b"." | b"..") {
            walker.step(last, OnLink::Stay)?;
            return existing(walker.path, None);
        }
        walker.require_search()?;
        if last.len() > crate::NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let dir = walker.path.clone();
        let (dentry, created) = lookup_or_create(
            &dir,
            walker.text(&last),
            walk.cred,
            &NewInode {
                kind: NewInodeKind::Regular,
                mode: creation_mode(&dir, mode.bits, walk.cred),
                umask: mode.umask,
                uid: walk.cred.uid,
                gid: walk.cred.gid,
            },
        )?;
        let path = Path::new(dir.mount().clone(), dentry);
        if created {
            return open_and_notify(path, flags, walk.cred, Existence::Created);
        }
        let path = mount::traverse_mounts(path);
        walker.check_mount_crossing(&path)?;
        if path.inode().kind() == FileType::Symlink && !exclusive {
            if flags.contains(OpenFlags::NOFOLLOW) {
                return Err(Errno::ELOOP);
            }
            walker.follow(&path, OnLink::FollowLast)?;
            continue;
        }
        return existing(path, Some(&dir));
    }
}

fn lookup_or_create(
    dir: &Path,
    name: &[u8],
    cred: &Cred,
    new: &NewInode<'_>,
) -> Result<(Arc<Dentry>, bool)> {
    let parent = dir.dentry();
    // Without the directory's lock, if it was used lately.
    if let Some(known) = parent.lookup_fast(name) {
        return Ok((known, false));
    }
    let displaced;
    let mut names = parent.lock();
    match parent.lookup_locked(&mut names, name) {
        Ok(found) => {
            displaced = parent.cache_child(&names, name, &found);
            drop(names);
            drop(displaced);
            Ok((found, false))
        }
        Err(Errno::ENOENT) => {
            may_create(dir, cred)?;
            let inode = parent.inode().create(name, new)?;
            let made = parent.instantiate(&mut names, name, inode);
            displaced = parent.cache_child(&names, name, &made);
            drop(names);
            drop(displaced);
            inotify::notify_dir_entry(parent.inode(), sys::IN_CREATE, name, made.kind());
            Ok((made, true))
        }
        Err(e) => Err(e),
    }
}

fn open_tmpfile(
    walk: &LookupContext<'_>,
    name: &[u8],
    flags: OpenFlags,
    mode: CreationMode,
) -> Result<Arc<File>> {
    let mut lookup = LookupFlags::DIRECTORY;
    lookup.set(LookupFlags::NOFOLLOW, flags.contains(OpenFlags::NOFOLLOW));
    let dir = walk.lookup(name, lookup)?;
    may_create(&dir, walk.cred)?;
    let new = NewInode {
        kind: NewInodeKind::Regular,
        mode: creation_mode(&dir, mode.bits, walk.cred),
        umask: mode.umask,
        uid: walk.cred.uid,
        gid: walk.cred.gid,
    };
    let inode = dir.inode().tmpfile(&new)?;
    let path = Path::tmpfile(&dir, inode);
    refuse_direct(&path, flags)?;
    let writing = Some(WriteAccess::acquire(&path)?).filter(|_| flags.is_writable());
    Ok(match path.inode().clone().open(flags)? {
        Some(ops) => File::with_write_access(path, ops, flags, writing),
        None => File::from_inode(path, flags, writing),
    })
}

/// Opens a file that a walk found.
///
/// # Errors
/// Those of `open(2)`.
pub fn dentry_open(path: Path, flags: OpenFlags, cred: &Cred) -> Result<Arc<File>> {
    open_and_notify(path, flags, cred, Existence::Found)
}

/// State of a file before the call that opens it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existence {
    /// The file existed.
    Found,
    /// Created by this call, so that permissions are not checked.
    Created,
}

fn open_and_notify(
    path: Path,
    flags: OpenFlags,
    cred: &Cred,
    existence: Existence,
) -> Result<Arc<File>> {
    let file = open_without_notify(path, flags, cred, existence)?;
    if !flags.contains(OpenFlags::PATH) {
        inotify::notify_path(file.path(), sys::IN_OPEN);
    }
    Ok(file)
}

fn open_without_notify(
    path: Path,
    flags: OpenFlags,
    cred: &Cred,
    existence: Existence,
) -> Result<Arc<File>> {
    let created = existence == Existence::Created;
    let inode = path.inode();
    let kind = path.dentry().kind();
    if flags.contains(OpenFlags::DIRECTORY) && kind != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if flags.contains(OpenFlags::PATH) {
        let keep = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        return Ok(File::new(
            path,
            Arc::new(OPathOps { _tree: None }),
            flags & keep,
        ));
    }
    let wanted = flags.required_access();
    match kind {
        FileType::Symlink => return Err(Errno::ELOOP),
        FileType::Directory
            if wanted.0 & Access::WRITE.0 != 0 || flags.contains(OpenFlags::CREAT) =>
        {
            return Err(Errno::EISDIR);
        }
        FileType::Char | FileType::Block if path.mount().flags() & mount::MS_NODEV != 0 => {
            return Err(Errno::EACCES);
        }
        _ => {}
    }
    let truncate = flags.contains(OpenFlags::TRUNC) && kind == FileType::Regular && !created;
    if !created {
        cred.check_inode(&**inode, wanted)?;
        let changes = wanted.0 & Access::WRITE.0 != 0;
        if changes && (truncate || !flags.contains(OpenFlags::APPEND)) {
            inode
                .permissions()
                .attributes
                .refuse(FileAttributes::APPEND)?;
        }
        if flags.contains(OpenFlags::NOATIME) && !cred.owns(&inode.metadata()) {
            return Err(Errno::EPERM);
        }
    }
    if kind == FileType::Socket {
        return Err(Errno::ENXIO);
    }
    if (flags.is_writable() || truncate) && kind == FileType::Regular {
        path.require_writable()?;
    }
    // Counted before leases are looked at, as who takes a lease looks at those after the lease is
    // there.
    let mut writing = None;
    if kind == FileType::Regular {
        if flags.is_writable() || truncate {
            writing = Some(WriteAccess::acquire(&path)?);
        }
        lease::break_lease(inode, flags)?;
    }
    refuse_direct(&path, flags)?;
    if truncate {
        inode.truncate(0)?;
        inotify::notify_path(&path, sys::IN_MODIFY);
    }
    let ops = match inode.clone().open(flags)? {
        Some(ops) => ops,
        None => match kind {
            FileType::Fifo => pipe::open_fifo(&path.inode().fifo().ok_or(Errno::ENXIO)?, flags)?,
            FileType::Block => block::open(path.inode().device().ok_or(Errno::ENXIO)?, flags)?,
            FileType::Char => devfs::open(path.inode().device().ok_or(Errno::ENXIO)?, flags)?,
            _ => {
                return Ok(File::from_inode(
                    path,
                    flags,
                    writing.filter(|_| flags.is_writable()),
                ));
            }
        },
    };
    let writing = writing.filter(|_| flags.is_writable());
    Ok(File::with_write_access(path, ops, flags, writing))
}

/// Refuses `O_DIRECT` where there is no cache to go past. A file that was made for it stays, as on
/// Linux. (Of a disk that is not there opening it tells.)
fn refuse_direct(path: &Path, flags: OpenFlags) -> Result<()> {
    let is_disk = path.inode().kind() == FileType::Block;
    if flags.contains(OpenFlags::DIRECT) && !is_disk && path.direct_alignment().is_none() {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

/// Opens a regular file to run it, which the caller has looked at: permission to read it is not
/// asked for.
///
/// # Errors
/// Those of leases.
pub fn open_exec(path: Path) -> Result<Arc<File>> {
    lease::break_lease(path.inode(), OpenFlags::RDONLY)?;
    let file = File::from_inode(path, OpenFlags::RDONLY, None);
    inotify::notify_path(file.path(), sys::IN_OPEN);
    Ok(file)
}

/// Opens a path as with `O_PATH`: it can only be named. `keeps` is a tree of mounts that goes with
/// it.
#[must_use]
pub fn open_o_path(path: Path, keeps: Option<Arc<Namespace>>) -> Arc<File> {
    File::new(path, Arc::new(OPathOps { _tree: keeps }), OpenFlags::PATH)
}

/// Operations of a file opened with `O_PATH`: a path, nothing else.
struct OPathOps {
    _tree: Option<Arc<Namespace>>,
}

impl FileOps for OPathOps {
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

    fn ioctl(&self, _: &File, _: &crate::ioctl::IoctlRequest<'_>) -> Result<usize> {
        Err(Errno::EBADF)
    }
}
