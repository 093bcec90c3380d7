//! Buffers of programs: `struct iovec`, and copies to and from several of them.

use alloc::vec::Vec;
use core::ops::Range;

use abi::errno::Errno;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::uaccess::{self, UserPtr};

/// The most that one call transfers, as on Linux.
pub(crate) const MAX_TRANSFER: usize = 0x7fff_f000;

/// Largest transfer that goes through a buffer on the stack, in bytes.
pub(crate) const STACK_BUFFER_LEN: usize = 256;

/// The most buffers a vectored call takes.
pub(crate) const IOV_MAX: usize = 1024;

/// A buffer of a program, address and length in bytes: `struct iovec`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoVec {
    pub(crate) base: u64,
    pub(crate) len: u64,
}

/// A buffer in the caller's memory.
#[derive(Clone, Copy)]
pub(crate) struct UserBuf {
    pub(crate) addr: UserAddr,
    /// Number of bytes.
    pub(crate) len: usize,
}

/// The caller's buffers of one transfer.
pub(crate) struct IoVecs(Vec<UserBuf>);

impl IoVecs {
    /// Reads the vector of buffers in another process's memory, of which only the lengths are
    /// checked yet.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL`.
    pub(crate) fn read_remote(iov: UserPtr<IoVec>, count: usize) -> Result<Self, Errno> {
        if count > IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let mut buffers = Vec::with_capacity(count);
        for i in 0..count {
            let entry = iov.add(i).read()?;
            buffers.push(UserBuf {
                addr: entry.base.into(),
                len: entry.len as usize,
            });
        }
        // All are read, then all lengths are looked at, then all addresses: that decides which
        // error it is.
        if buffers
            .iter()
            .any(|buffer| isize::try_from(buffer.len).is_err())
        {
            return Err(Errno::EINVAL);
        }
        Ok(Self(buffers))
    }

    pub(crate) fn read(iov: UserPtr<IoVec>, count: usize) -> Result<Self, Errno> {
        let Self(mut buffers) = Self::read_remote(iov, count)?;
        let mut total = 0usize;
        for UserBuf { addr, len } in &mut buffers {
            if !addr.access_ok(*len) {
                return Err(Errno::EFAULT);
            }
            *len = (*len).min(MAX_TRANSFER - total);
            total += *len;
        }
        Ok(Self(buffers))
    }

    pub(crate) fn as_slice(&self) -> &[UserBuf] {
        &self.0
    }
}

/// Number of bytes of all buffers.
pub(crate) fn total(buffers: &[UserBuf]) -> usize {
    buffers.iter().map(|buffer| buffer.len).sum()
}

/// Runs `f` on the segments of the buffers that make up `offset..offset + len`: address and range
/// within the piece of the kernel's buffer.
pub(crate) fn for_each_segment(
    buffers: &[UserBuf],
    offset: usize,
    len: usize,
    mut f: impl FnMut(UserAddr, Range<usize>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut skip = offset;
    let mut done = 0;
    for &UserBuf { addr, len: size } in buffers {
        if skip >= size {
            skip -= size;
            continue;
        }
        let n = (size - skip).min(len - done);
        f(addr.wrapping_add(skip), done..done + n)?;
        done += n;
        skip = 0;
        if done == len {
            break;
        }
    }
    Ok(())
}

/// Copies to the caller's buffers, from byte `offset` of them on, until one cannot be written to:
/// how much that is.
pub(crate) fn copy_out(buffers: &[UserBuf], offset: usize, from: &[u8]) -> usize {
    let mut copied = 0;
    let whole = for_each_segment(buffers, offset, from.len(), |addr, range| {
        let n = uaccess::write_partial(addr, &from[range.clone()]);
        copied += n;
        if n == range.len() {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        }
    });
    if whole.is_ok() { from.len() } else { copied }
}

/// Copies from the caller's buffers, from byte `offset` of them on, until one cannot be read: how
/// much that is.
pub(crate) fn copy_in(buffers: &[UserBuf], offset: usize, to: &mut [u8]) -> usize {
    let mut copied = 0;
    let whole = for_each_segment(buffers, offset, to.len(), |addr, range| {
        let len = range.len();
        let n = uaccess::read_partial(addr, &mut to[range]);
        copied += n;
        if n == len { Ok(()) } else { Err(Errno::EFAULT) }
    });
    if whole.is_ok() { to.len() } else { copied }
}
