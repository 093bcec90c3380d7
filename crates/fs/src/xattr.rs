//! Extended attributes: `xattr(7)`. Who may see and change which; the file systems keep them.

use alloc::vec::Vec;

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::acl::{AclKind, UncheckedAcl};
use crate::attributes::FileAttributes;
use crate::{Access, Cred, FileType, Path, Result, inotify};

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// The largest value, and the longest list of names, in bytes.
pub const SIZE_MAX: usize = 65_536;

/// The capabilities that running a file gives.
pub const CAPABILITY: &[u8] = b"security.capability";

/// Revisions 2 and 3 of that attribute's value: the most significant byte of its first word, and
/// its length. Revision 3 names, in its last word, the user who is root where it counts.
const CAPABILITY_2: (u8, usize) = (2, 20);
const CAPABILITY_3: (u8, usize) = (3, 24);

/// Revision of a value of `security.capability`; `None` if it cannot be set.
fn capability_revision(value: &[u8]) -> Option<u8> {
    let revision = (*value.get(3)?, value.len());
    [CAPABILITY_2, CAPABILITY_3]
        .contains(&revision)
        .then_some(revision.0)
}

/// Condition for an attribute to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetMode {
    /// Nothing.
    Any,
    /// Only if the attribute is not there yet (`XATTR_CREATE`).
    Create,
    /// Only if the attribute is there (`XATTR_REPLACE`).
    Replace,
    /// Both, which cannot be; the error is that of the one that is not so.
    Never,
}

/// Checks the name and the caller's right to read or write the attribute.
fn check(path: &Path, name: &[u8], want: Access, cred: &Cred) -> Result<()> {
    let writes = want == Access::WRITE;
    if writes {
        path.require_writable()?;
        path.metadata().attributes.refuse(FileAttributes::FIXED)?;
    }
    let refused = if writes { Errno::EPERM } else { Errno::ENODATA };
    let dot = name.iter().position(|&byte| byte == b'.');
    // What has no dot is in no space.
    let (space, rest) = dot.map_or((&b""[..], name), |dot| (&name[..dot], &name[dot + 1..]));
    match space {
        b"security" if writes => {
            let needed = if rest == b"capability" {
                sys::CAP_SETFCAP
            } else {
                sys::CAP_SYS_ADMIN
            };
            if !cred.capable(needed) {
                return Err(Errno::EPERM);
            }
        }
        b"security" | b"system" => {}
        b"trusted" if cred.capable(sys::CAP_SYS_ADMIN) => {}
        b"trusted" => return Err(refused),
        _ => {
            let meta = path.metadata();
            let sticky = meta.kind == FileType::Directory && meta.mode & sys::S_ISVTX != 0;
            let suits = matches!(meta.kind, FileType::Regular | FileType::Directory)
                && !(writes && sticky && !cred.owns(&meta));
            if space == b"user" && !suits {
                return Err(refused);
            }
            cred.check_inode(&**path.inode(), want)?;
        }
    }
    // Whether there is such a space is only asked by who may use it.
    match space {
        b"user" | b"trusted" | b"security" if rest.is_empty() => match path.inode().xattr(name) {
            Err(Errno::EOPNOTSUPP) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        },
        b"user" | b"trusted" | b"security" => Ok(()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Sets an access control list from an attribute's value, or takes it away without one. What the
/// caller says of whether there is one already is not asked, as on Linux.
fn set_acl(path: &Path, kind: AclKind, value: Option<&[u8]>, cred: &Cred) -> Result<()> {
    path.require_writable()?;
    let meta = path.metadata();
    meta.attributes.refuse(FileAttributes::FIXED)?;
    let inode = path.inode();
    // Whether there are lists at all is told first.
    inode.acl(kind)?;
    let acl = value.map_or(Ok(None), UncheckedAcl::from_xattr)?;
    if kind == AclKind::Default && meta.kind != FileType::Directory && acl.is_some() {
        return Err(Errno::EACCES);
    }
    if !cred.owns(&meta) {
        return Err(Errno::EPERM);
    }
    let acl = acl.map(UncheckedAcl::check).transpose()?;
    let keeps_setgid = cred.in_group(meta.gid) || cred.capable(sys::CAP_FSETID);
    inode.set_acl(kind, acl, keeps_setgid)?;
    inotify::notify_path(path, sys::IN_ATTRIB);
    Ok(())
}

/// An attribute's value (`getxattr(2)`).
///
/// # Errors
/// `ENODATA`, `EOPNOTSUPP`, `EACCES`.
pub fn get(path: &Path, name: &[u8], cred: &Cred) -> Result<Vec<u8>> {
    if let Some(kind) = AclKind::from_xattr(name) {
        return path.inode().acl(kind)?.ok_or(Errno::ENODATA)?.to_xattr();
    }
    check(path, name, Access::READ, cred)?;
    let mut value = path.inode().xattr(name)?;
    // That root is the only one is not said.
    if name == CAPABILITY
        && capability_revision(&value) == Some(CAPABILITY_3.0)
        && value.ends_with(&[0; 4])
    {
        value.truncate(CAPABILITY_2.1);
        value[3] = CAPABILITY_2.0;
    }
    Ok(value)
}

/// Sets an attribute (`setxattr(2)`).
///
/// # Errors
/// `EEXIST`, `ENODATA`, `ENOSPC`, `EINVAL` for what are no capabilities, `EOPNOTSUPP`, `EPERM`,
/// `EACCES`, `EROFS`.
pub fn set(path: &Path, name: &[u8], value: &[u8], mode: SetMode, cred: &Cred) -> Result<()> {
    if let Some(kind) = AclKind::from_xattr(name) {
        return set_acl(path, kind, Some(value), cred);
    }
    if name == CAPABILITY && !value.is_empty() && capability_revision(value).is_none() {
        return Err(Errno::EINVAL);
    }
    check(path, name, Access::WRITE, cred)?;
    path.inode().set_xattr(name, value, mode)?;
    inotify::notify_path(path, sys::IN_ATTRIB);
    Ok(())
}

/// Takes an attribute away (`removexattr(2)`).
///
/// # Errors
/// `ENODATA`, `EOPNOTSUPP`, `EPERM`, `EACCES`, `EROFS`.
pub fn remove(path: &Path, name: &[u8], cred: &Cred) -> Result<()> {
    if let Some(kind) = AclKind::from_xattr(name) {
        return set_acl(path, kind, None, cred);
    }
    check(path, name, Access::WRITE, cred)?;
    path.inode().remove_xattr(name)?;
    inotify::notify_path(path, sys::IN_ATTRIB);
    Ok(())
}

/// The names of the attributes the caller may know of, each with a NUL (`listxattr(2)`).
#[must_use]
pub fn list(path: &Path, cred: &Cred) -> Vec<u8> {
    let mut names = Vec::new();
    for kind in AclKind::ALL {
        if let Ok(Some(_)) = path.inode().acl(kind) {
            names.extend_from_slice(kind.xattr());
            names.push(0);
        }
    }
    for name in path.inode().xattr_names() {
        if name.starts_with(b"trusted.") && !cred.capable(sys::CAP_SYS_ADMIN) {
            continue;
        }
        names.extend_from_slice(&name);
        names.push(0);
    }
    names
}
