//! What a device sees of the caller of `ioctl(2)`.

use alloc::sync::Arc;

use abi::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{File, OpenFlags, Result};

/// The caller's memory and descriptors, implemented by the Linux personality.
pub trait IoctlCaller {
    /// Copies from the caller's memory.
    ///
    /// # Errors
    /// `EFAULT`.
    fn read_bytes(&self, addr: usize, to: &mut [u8]) -> Result<()>;

    /// Copies to the caller's memory.
    ///
    /// # Errors
    /// `EFAULT`.
    fn write_bytes(&self, addr: usize, from: &[u8]) -> Result<()>;

    /// Gives the caller a new descriptor, close-on-exec if `flags` hold [`OpenFlags::CLOEXEC`], and
    /// returns its number.
    ///
    /// # Errors
    /// `EMFILE`.
    fn install(&self, file: Arc<File>, flags: OpenFlags) -> Result<usize>;

    /// The caller's open file with this descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    fn file(&self, fd: u32) -> Result<Arc<File>> {
        let _ = fd;
        Err(Errno::EBADF)
    }

    /// Whether the caller may do what only an administrator may.
    fn privileged(&self) -> bool;
}

/// One `ioctl(2)` call.
pub struct IoctlRequest<'a> {
    /// The request's number.
    pub command: u32,
    /// Its argument: a number or an address.
    pub arg: usize,
    /// The caller.
    pub caller: &'a dyn IoctlCaller,
}

impl IoctlRequest<'_> {
    /// The structure the argument points to.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn read<T: FromBytes + IntoBytes>(&self) -> Result<T> {
        let mut value = T::new_zeroed();
        self.caller.read_bytes(self.arg, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Stores a structure where the argument points.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write<T: IntoBytes + Immutable>(&self, value: &T) -> Result<()> {
        self.caller.write_bytes(self.arg, value.as_bytes())
    }
}

/// A caller inside the kernel: no memory, no descriptors, all rights. For code and tests that use a
/// device's `ioctl` directly.
pub struct KernelCaller;

impl IoctlCaller for KernelCaller {
    fn read_bytes(&self, _: usize, _: &mut [u8]) -> Result<()> {
        Err(Errno::EFAULT)
    }

    fn write_bytes(&self, _: usize, _: &[u8]) -> Result<()> {
        Err(Errno::EFAULT)
    }

    fn install(&self, _: Arc<File>, _: OpenFlags) -> Result<usize> {
        Err(Errno::EMFILE)
    }

    fn privileged(&self) -> bool {
        true
    }
}
