//! Attributes of files that `chattr(1)` sets: that nobody changes a file, or that it only grows.

use abi::errno::Errno;
use linux_raw_sys::general::CAP_LINUX_IMMUTABLE;

use crate::{Cred, Path, Result};

bitflags::bitflags! {
    /// Attributes of a file, as `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` have them (`FS_*_FL`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct FileAttributes: u32 {
        /// Changes of contents, of what is known of the file and of its names are refused.
        const IMMUTABLE = 0x10;
        /// Contents are only appended to; a directory only gets new names.
        const APPEND = 0x20;
        /// Backups leave the file out, which is theirs to do.
        const NODUMP = 0x40;
        /// Reading leaves the access time.
        const NOATIME = 0x80;
    }
}

impl FileAttributes {
    /// Attributes that what is made in a directory has from it.
    pub(crate) const INHERITED: Self = Self::NODUMP.union(Self::NOATIME);
    /// Attributes by which owner, permissions and names stay.
    pub(crate) const FIXED: Self = Self::IMMUTABLE.union(Self::APPEND);

    /// Refuses a change that one of `these` forbids.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn refuse(self, these: Self) -> Result<()> {
        if self.intersects(these) {
            Err(Errno::EPERM)
        } else {
            Ok(())
        }
    }
}

/// Sets the attributes of a file.
///
/// # Errors
/// `EROFS`; `ENOTTY` for one that has none; `EPERM` for who does not own it, or may not set what
/// keeps others from changing it; `EOPNOTSUPP` for attributes that there are not.
pub fn set(path: &Path, bits: u32, cred: &Cred) -> Result<()> {
    path.require_writable()?;
    let old = path.inode().attributes()?;
    if !cred.owns(&path.metadata()) {
        return Err(Errno::EPERM);
    }
    let new = FileAttributes::from_bits_retain(bits);
    let changed = FileAttributes::FIXED & (new ^ old);
    if !changed.is_empty() && !cred.capable(CAP_LINUX_IMMUTABLE) {
        return Err(Errno::EPERM);
    }
    if !FileAttributes::all().contains(new) {
        return Err(Errno::EOPNOTSUPP);
    }
    path.inode().set_attributes(new)
}
