//! Changing what is known of a file, and its size.

use abi::errno::Errno;
use linux_raw_sys::general::{self as sys, CAP_CHOWN, CAP_FSETID, S_ISGID, S_ISUID};

use crate::attributes::FileAttributes;
use crate::{
    Access, Cred, FileType, OpenFlags, Path, Result, SetAttr, Timestamp, WriteAccess, inotify,
    lease, xattr,
};

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
    meta.attributes.refuse(FileAttributes::FIXED)?;
    let mut mode = mode & 0o7777;
    if !cred.in_group(meta.gid) && !cred.capable(CAP_FSETID) {
        mode &= !S_ISGID;
    }
    path.inode().set_attr(&SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    })?;
    inotify::notify_path(path, sys::IN_ATTRIB);
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
    let allowed =
        uid.is_none_or(|u| u == meta.uid && cred.uid == meta.uid) && gid.is_none_or(own_group);
    if !allowed && !cred.capable(CAP_CHOWN) {
        return Err(Errno::EPERM);
    }
    if uid.is_some() || gid.is_some() {
        meta.attributes.refuse(FileAttributes::FIXED)?;
    }
    let mut mode = None;
    if meta.kind != FileType::Directory && meta.mode & (S_ISUID | S_ISGID) != 0 {
        // A set-group-id bit without group execution is a lock mark, not a privilege.
        let sgid = if meta.mode & 0o010 != 0 { S_ISGID } else { 0 };
        mode = Some(meta.mode & !(S_ISUID | sgid));
    }
    path.inode().set_attr(&SetAttr {
        uid,
        gid,
        mode,
        ..SetAttr::default()
    })?;
    // Mostly there are none.
    let _ = path.inode().remove_xattr(xattr::CAPABILITY);
    inotify::notify_path(path, sys::IN_ATTRIB);
    Ok(())
}

/// A time that `utimensat(2)` sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeUpdate {
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
pub fn set_times(path: &Path, atime: TimeUpdate, mtime: TimeUpdate, cred: &Cred) -> Result<()> {
    if atime == TimeUpdate::Omit && mtime == TimeUpdate::Omit {
        return Ok(());
    }
    path.require_writable()?;
    let meta = path.metadata();
    // The present may be set for what only grows, too.
    let present = atime == TimeUpdate::Now && mtime == TimeUpdate::Now;
    meta.attributes.refuse(if present {
        FileAttributes::IMMUTABLE
    } else {
        FileAttributes::FIXED
    })?;
    if !cred.owns(&meta) {
        if !present {
            return Err(Errno::EPERM);
        }
        cred.check_inode(&**path.inode(), Access::WRITE)?;
    }
    let time = |t| match t {
        TimeUpdate::Omit => None,
        TimeUpdate::Now => Some(Timestamp::coarse_now()),
        TimeUpdate::At(t) => Some(t),
    };
    path.inode().set_attr(&SetAttr {
        atime: time(atime),
        mtime: time(mtime),
        ..SetAttr::default()
    })?;
    // One of the two alone looks like what sets it.
    let event = match (atime, mtime) {
        (TimeUpdate::Omit, _) => sys::IN_MODIFY,
        (_, TimeUpdate::Omit) => sys::IN_ACCESS,
        _ => sys::IN_ATTRIB,
    };
    inotify::notify_path(path, event);
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
    let meta = path.metadata();
    cred.check_inode(&**path.inode(), Access::WRITE)?;
    path.require_writable()?;
    meta.attributes.refuse(FileAttributes::APPEND)?;
    let _writing = WriteAccess::acquire(path)?;
    lease::break_lease(path.inode(), OpenFlags::WRONLY)?;
    path.inode().truncate(size)?;
    inotify::notify_path(path, sys::IN_MODIFY);
    Ok(())
}
