//! The flags of `open(2)`.

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::{Access, Result};

bitflags::bitflags! {
    /// Flags of `open(2)`. The two lowest bits are the access mode, see [`OpenFlags::is_readable`]
    /// and [`OpenFlags::is_writable`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct OpenFlags: u32 {
        /// Open for writing only.
        const WRONLY = sys::O_WRONLY;
        /// Open for reading and writing.
        const RDWR = sys::O_RDWR;
        /// Make the file if it is not there.
        const CREAT = sys::O_CREAT;
        /// With `CREAT`: it must not be there.
        const EXCL = sys::O_EXCL;
        /// Do not make a terminal the controlling one.
        const NOCTTY = sys::O_NOCTTY;
        /// Cut the file to no length.
        const TRUNC = sys::O_TRUNC;
        /// Every write goes behind the end.
        const APPEND = sys::O_APPEND;
        /// Never block.
        const NONBLOCK = sys::O_NONBLOCK;
        /// Writes are on the medium when they return (always so for memory).
        const DSYNC = sys::O_DSYNC;
        /// Send a signal when the file is ready ([`crate::sigio`]).
        const ASYNC = sys::FASYNC;
        /// Bypass caches, which no file of memory does; packets, in a pipe.
        const DIRECT = sys::O_DIRECT;
        /// Offsets beyond 2 GiB: always so, but only `open(2)` says it.
        const LARGEFILE = sys::O_LARGEFILE;
        /// Refuse anything but a directory.
        const DIRECTORY = sys::O_DIRECTORY;
        /// The last component must not be a symbolic link.
        const NOFOLLOW = sys::O_NOFOLLOW;
        /// Reading leaves the access time.
        const NOATIME = sys::O_NOATIME;
        /// The descriptor closes at `execve(2)`.
        const CLOEXEC = sys::O_CLOEXEC;
        /// Only a path in the tree: no reading, no writing.
        const PATH = sys::O_PATH;
        /// Write data and metadata through, as `DSYNC` with metadata.
        const SYNC = sys::O_SYNC;
        /// A file without a name, in the directory given.
        const TMPFILE = sys::O_TMPFILE;
    }
}

impl OpenFlags {
    /// Read only, nothing else.
    pub const RDONLY: Self = Self::empty();
    /// Flags that `fcntl(F_SETFL)` may change.
    pub const SETTABLE: Self = Self::APPEND
        .union(Self::NONBLOCK)
        .union(Self::ASYNC)
        .union(Self::DIRECT)
        .union(Self::NOATIME);
    /// Flags that concern the call of `open(2)` only and are not remembered.
    pub(crate) const TRANSIENT: Self = Self::CREAT
        .union(Self::EXCL)
        .union(Self::NOCTTY)
        .union(Self::TRUNC)
        .union(Self::CLOEXEC);

    /// Flags that count beside `PATH`.
    const O_PATH_FLAGS: Self = Self::PATH
        .union(Self::DIRECTORY)
        .union(Self::NOFOLLOW)
        .union(Self::CLOEXEC);

    /// The flags as `open(2)` takes them: `PATH` leaves most others without a meaning.
    ///
    /// # Errors
    /// `EINVAL` if they do not go together.
    pub fn checked(self) -> Result<Self> {
        if self.contains(Self::PATH) {
            return Ok(self & Self::O_PATH_FLAGS);
        }
        let unnamed = Self::TMPFILE.difference(Self::DIRECTORY);
        let writes = self.difference(Self::TRUNC).required_access().0 & Access::WRITE.0 != 0;
        if self.intersects(unnamed) && !(self.contains(Self::TMPFILE) && writes) {
            return Err(Errno::EINVAL);
        }
        if self.contains(Self::CREAT.union(Self::DIRECTORY)) {
            return Err(Errno::EINVAL);
        }
        // With the metadata means with the data, too.
        let data = if self.intersects(Self::SYNC.difference(Self::DSYNC)) {
            Self::DSYNC
        } else {
            Self::empty()
        };
        Ok(self | Self::LARGEFILE | data)
    }

    /// Access that the file must permit. The access mode 3, for nothing but `ioctl(2)`, asks for
    /// both and grants neither.
    #[must_use]
    pub const fn required_access(self) -> Access {
        if self.contains(Self::PATH) {
            return Access::NONE;
        }
        let mode = match self.bits() & sys::O_ACCMODE {
            sys::O_RDONLY => Access::READ,
            sys::O_WRONLY => Access::WRITE,
            _ => Access::READ.union(Access::WRITE),
        };
        if self.contains(Self::TRUNC) {
            mode.union(Access::WRITE)
        } else {
            mode
        }
    }

    /// Whether the access mode has reading.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        // 0 or 2; 3 is neither.
        self.bits() & (sys::O_WRONLY | sys::O_PATH) == 0
    }

    /// Whether the access mode has writing.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self.bits() & sys::O_ACCMODE, sys::O_WRONLY | sys::O_RDWR)
            && !self.contains(Self::PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_and_what_they_need() {
        let told = |flags: OpenFlags| {
            (
                flags.required_access().0,
                flags.is_readable(),
                flags.is_writable(),
            )
        };
        assert_eq!(told(OpenFlags::RDONLY), (4, true, false));
        assert_eq!(told(OpenFlags::WRONLY), (2, false, true));
        assert_eq!(told(OpenFlags::RDWR), (6, true, true));
        assert_eq!(told(OpenFlags::WRONLY | OpenFlags::RDWR), (6, false, false));
        assert_eq!(told(OpenFlags::PATH | OpenFlags::RDWR), (0, false, false));
        assert_eq!(told(OpenFlags::TRUNC), (6, true, false));
        assert_eq!(told(OpenFlags::TRUNC | OpenFlags::WRONLY), (2, false, true));
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        let checked = |flags: OpenFlags| flags.checked();
        let path =
            OpenFlags::PATH | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC | OpenFlags::DIRECTORY;
        assert_eq!(
            checked(
                path | OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::TRUNC | OpenFlags::APPEND
            ),
            Ok(path)
        );
        assert_eq!(
            checked(OpenFlags::CREAT | OpenFlags::DIRECTORY),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            checked(OpenFlags::CREAT),
            Ok(OpenFlags::CREAT | OpenFlags::LARGEFILE)
        );
        assert_eq!(
            checked(OpenFlags::DIRECTORY),
            Ok(OpenFlags::DIRECTORY | OpenFlags::LARGEFILE)
        );
        // A file without a name must be written to, and the bit that is its own says nothing alone.
        let unnamed = OpenFlags::TMPFILE | OpenFlags::WRONLY;
        assert_eq!(checked(unnamed), Ok(unnamed | OpenFlags::LARGEFILE));
        assert_eq!(checked(OpenFlags::TMPFILE), Err(Errno::EINVAL));
        assert_eq!(
            checked(OpenFlags::TMPFILE | OpenFlags::TRUNC),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            checked(OpenFlags::TMPFILE.difference(OpenFlags::DIRECTORY) | OpenFlags::RDWR),
            Err(Errno::EINVAL)
        );
    }
}
