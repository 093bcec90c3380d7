//! Opening.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use super::namei::{granted, may_create};
use crate::file::{FileOps, OpenFlags};
use crate::mount::Namespace;
use crate::path::{LookupContext, LookupFlags, PathWalker};
use crate::{
    Access, Cred, Dentry, File, FileType, NewInode, NewInodeKind, Path, Result, WriteAccess, devfs,
    inotify, lease, mount, pipe,
};

/// Opens `name` with flags that go together ([`OpenFlags::checked`]); with `CREAT` makes it, with
/// permissions `mode` (the umask already taken away).
///
/// # Errors
/// Those of `open(2)`.
#[inline]
pub fn open(
    walk: &LookupContext<'_>,
    name: &[u8],
    flags: OpenFlags,
    mode: u32,
) -> Result<Arc<File>> {
    if flags.intersects(OpenFlags::CREAT.union(OpenFlags::TMPFILE)) {
        if flags.contains(OpenFlags::TMPFILE) {
            return open_unnamed(walk, name, flags, mode);
        }
        if flags.contains(OpenFlags::CREAT) {
            return open_or_create(walk, name, flags, mode);
        }
    }
    let mut lookup = LookupFlags::empty();
    lookup.set(LookupFlags::NOFOLLOW, flags.contains(OpenFlags::NOFOLLOW));
    lookup.set(LookupFlags::DIRECTORY, flags.contains(OpenFlags::DIRECTORY));
    open_path(walk.lookup(name, lookup)?, flags, walk.cred, false)
}

fn open_or_create(
    walk: &LookupContext<'_>,
    name: &[u8],
    flags: OpenFlags,
    mode: u32,
) -> Result<Arc<File>> {
    let exclusive = flags.contains(OpenFlags::EXCL);
    let existing = |path: Path| {
        if exclusive {
            Err(Errno::EEXIST)
        } else {
            open_path(path, flags, walk.cred, false)
        }
    };
    let mut walker = PathWalker::new(walk, name)?;
    loop {
        let Some((last, trailing_slash)) = walker.walk_to_parent()? else {
            return existing(walker.at);
        };
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
            &NewInode {
                kind: NewInodeKind::Regular,
                mode: granted(&dir, mode, walk.cred),
                uid: walk.cred.uid,
                gid: walk.cred.gid,
            },
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

fn find_or_make(
    dir: &Path,
    name: &[u8],
    cred: &Cred,
    new: &NewInode<'_>,
) -> Result<(Arc<Dentry>, bool)> {
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
            inotify::notify_dir_entry(parent.inode(), sys::IN_CREATE, name, made.kind());
            Ok((made, true))
        }
        Err(e) => Err(e),
    }
}

fn open_unnamed(
    walk: &LookupContext<'_>,
    name: &[u8],
    flags: OpenFlags,
    mode: u32,
) -> Result<Arc<File>> {
    let mut lookup = LookupFlags::DIRECTORY;
    lookup.set(LookupFlags::NOFOLLOW, flags.contains(OpenFlags::NOFOLLOW));
    let dir = walk.lookup(name, lookup)?;
    may_create(&dir, walk.cred)?;
    let mode = granted(&dir, mode, walk.cred);
    let new = NewInode {
        kind: NewInodeKind::Regular,
        mode,
        uid: walk.cred.uid,
        gid: walk.cred.gid,
    };
    let inode = dir.inode().create_unnamed(&new)?;
    let path = Path::unnamed(inode, "/ (deleted)");
    let writing = WriteAccess::begin(&path)?;
    Ok(File::of_inode(
        path,
        flags,
        Some(writing).filter(|_| flags.writable()),
    ))
}

/// Opens a file that a walk found; `created` skips the checks of permissions for one just made.
///
/// # Errors
/// Those of `open(2)`.
pub fn open_path(path: Path, flags: OpenFlags, cred: &Cred, created: bool) -> Result<Arc<File>> {
    let file = open_quietly(path, flags, cred, created)?;
    if !flags.contains(OpenFlags::PATH) {
        inotify::notify_path(file.path(), sys::IN_OPEN);
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
        return Ok(File::new(
            path,
            Arc::new(OPathOps { _keeps: None }),
            flags & keep,
        ));
    }
    let wanted = flags.wanted();
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
        if flags.contains(OpenFlags::NOATIME) && !cred.owns(&inode.metadata()) {
            return Err(Errno::EPERM);
        }
    }
    if matches!(kind, FileType::Socket | FileType::Block) {
        return Err(Errno::ENXIO);
    }
    if (flags.writable() || truncate) && kind == FileType::Regular {
        path.require_writable()?;
    }
    // Counted before leases are looked at, as who takes a lease looks at those after the lease is
    // there.
    let mut writing = None;
    if kind == FileType::Regular {
        if flags.writable() || truncate {
            writing = Some(WriteAccess::begin(&path)?);
        }
        lease::break_lease(inode, flags.writable(), flags.contains(OpenFlags::NONBLOCK))?;
    }
    if truncate {
        inode.truncate(0)?;
        inotify::notify_path(&path, sys::IN_MODIFY);
    }
    let ops = match inode.clone().open(flags)? {
        Some(ops) => ops,
        None => match kind {
            FileType::Fifo => pipe::open_fifo(&path.inode().fifo().ok_or(Errno::ENXIO)?, flags)?,
            FileType::Char => devfs::open(path.inode().device().ok_or(Errno::ENXIO)?, flags)?,
            _ => {
                return Ok(File::of_inode(
                    path,
                    flags,
                    writing.filter(|_| flags.writable()),
                ));
            }
        },
    };
    Ok(File::new(path, ops, flags))
}

/// Opens a regular file to run it, which the caller has looked at: permission to read it is not
/// asked for.
///
/// # Errors
/// Those of leases.
pub fn open_program(path: Path) -> Result<Arc<File>> {
    lease::break_lease(path.inode(), false, false)?;
    let file = File::of_inode(path, OpenFlags::RDONLY, None);
    inotify::notify_path(file.path(), sys::IN_OPEN);
    Ok(file)
}

/// An opening of a place that can only be named, as with `O_PATH`; `keeps` is a tree that goes with
/// it.
#[must_use]
pub fn open_place(path: Path, keeps: Option<Arc<Namespace>>) -> Arc<File> {
    File::new(path, Arc::new(OPathOps { _keeps: keeps }), OpenFlags::PATH)
}

/// Operations of a file opened with `O_PATH`: a place, nothing else.
struct OPathOps {
    _keeps: Option<Arc<Namespace>>,
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
