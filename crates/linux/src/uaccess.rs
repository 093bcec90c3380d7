//! Memory of programs, as system calls see it: an address is an allegation, every access may fail.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use guard::user;
use uapi::fd::Fd;
use uapi::pid::{Pgid, Pid, Tid};
use uapi::user_addr::UserAddr;
use vm::Page;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The address of a `T` in the calling program's memory, not checked.
pub struct UserPtr<T> {
    addr: UserAddr,
    what: PhantomData<fn() -> T>,
}

impl<T> Clone for UserPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for UserPtr<T> {}

impl<T> UserPtr<T> {
    /// The null pointer.
    pub const NULL: Self = Self::new(UserAddr::NULL);

    /// The `T` at this address.
    #[must_use]
    pub const fn new(addr: UserAddr) -> Self {
        Self {
            addr,
            what: PhantomData,
        }
    }

    /// The address in user memory.
    #[must_use]
    pub const fn addr(self) -> UserAddr {
        self.addr
    }

    /// Whether it is the null pointer.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.addr.is_null()
    }

    /// The `T` that comes `index` places later.
    #[must_use]
    pub const fn add(self, index: usize) -> Self {
        Self::new(self.addr.wrapping_add(index.wrapping_mul(size_of::<T>())))
    }
}

impl<T: FromBytes + IntoBytes + Immutable> UserPtr<T> {
    /// Reads the value from user memory.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn read(self) -> Result<T, Errno> {
        let mut value = T::new_zeroed();
        read_bytes(self.addr, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Reads it and shows it to `see`: for large ones, which are not moved then.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    pub fn with<R>(self, see: impl FnOnce(&T) -> R) -> Result<R, Errno> {
        user::with_value(self.addr.raw(), see).map_err(|_| Errno::EFAULT)
    }

    /// Reads it if the pointer is not null.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn read_optional(self) -> Result<Option<T>, Errno> {
        if self.is_null() {
            Ok(None)
        } else {
            self.read().map(Some)
        }
    }

    /// Writes the value to user memory.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write(self, value: &T) -> Result<(), Errno> {
        write_bytes(self.addr, value.as_bytes())
    }

    /// Writes it if the pointer is not null.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write_optional(self, value: &T) -> Result<(), Errno> {
        if self.is_null() {
            Ok(())
        } else {
            self.write(value)
        }
    }
}

/// Reads `to.len()` bytes of user memory from `addr` on.
///
/// # Errors
/// `EFAULT`.
pub fn read_bytes(addr: UserAddr, to: &mut [u8]) -> Result<(), Errno> {
    user::read_bytes(to, addr.raw()).map_err(|_| Errno::EFAULT)
}

/// Writes all bytes of `from` to user memory from `addr` on.
///
/// # Errors
/// `EFAULT`; a part may have been written.
pub fn write_bytes(addr: UserAddr, from: &[u8]) -> Result<(), Errno> {
    user::write_bytes(addr.raw(), from).map_err(|_| Errno::EFAULT)
}

/// Reads bytes up to the first page that cannot be read; returns how many.
pub(crate) fn read_partial(addr: UserAddr, to: &mut [u8]) -> usize {
    if read_bytes(addr, to).is_ok() {
        to.len()
    } else {
        by_pages(addr, to.len(), |at, range| read_bytes(at, &mut to[range]))
    }
}

/// Writes bytes up to the first page that cannot be written to; returns how many.
pub(crate) fn write_partial(addr: UserAddr, from: &[u8]) -> usize {
    if write_bytes(addr, from).is_ok() {
        from.len()
    } else {
        by_pages(addr, from.len(), |at, range| write_bytes(at, &from[range]))
    }
}

/// Writes bytes of a page, from `offset` on, up to the first page that cannot be written to;
/// returns how many.
pub(crate) fn write_page_partial(addr: UserAddr, page: &Page, offset: usize, len: usize) -> usize {
    if page.read_to_user(offset, addr.raw(), len).is_ok() {
        return len;
    }
    by_pages(addr, len, |at, range| {
        page.read_to_user(offset + range.start, at.raw(), range.len())
            .map_err(|_| Errno::EFAULT)
    })
}

/// Copies page by page until there is an error: how many bytes.
#[cold]
fn by_pages(
    addr: UserAddr,
    len: usize,
    mut copy: impl FnMut(UserAddr, Range<usize>) -> Result<(), Errno>,
) -> usize {
    let mut done = 0;
    while done < len {
        let at = addr.wrapping_add(done);
        let n = (PAGE_SIZE - at.page_offset()).min(len - done);
        if copy(at, done..done + n).is_err() {
            break;
        }
        done += n;
    }
    done
}

/// Writes the first `len` bytes, which mostly are one or eight.
///
/// # Errors
/// `EFAULT`; a part may have been written.
#[inline(always)]
pub(crate) fn write_small(addr: UserAddr, from: &[u8; 16], len: usize) -> Result<(), Errno> {
    let written = match len {
        1 => user::store_u8(addr.raw(), from[0]),
        8 => user::store_u64(
            addr.raw(),
            from.first_chunk()
                .map_or(0, |bytes| u64::from_ne_bytes(*bytes)),
        ),
        _ => user::write_bytes(addr.raw(), from.get(..len).unwrap_or_default()),
    };
    written.map_err(|_| Errno::EFAULT)
}

/// Makes sure that the program can write at `addr`, without changing anything there: what is taken
/// out of a pipe or a terminal must not be lost because it cannot be delivered.
///
/// # Errors
/// `EFAULT`.
pub fn probe_write(addr: UserAddr) -> Result<(), Errno> {
    let word = addr.raw() & !3;
    let value = user::load_u32(word).map_err(|_| Errno::EFAULT)?;
    // Stores the value that is there; if another thread has changed it in between, it was writable
    // to that one.
    user::cmpxchg_u32(word, value, value)
        .map(drop)
        .map_err(|_| Errno::EFAULT)
}

/// Makes the `len` bytes at `addr` present that a copy with interrupts off found missing, to be
/// read. They may be gone again when the copy is tried again.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn fault_in_readable(addr: UserAddr, len: usize) -> Result<(), Errno> {
    fault_in(addr, len, |at| {
        user::load_u32(at.raw() & !3)
            .map(drop)
            .map_err(|_| Errno::EFAULT)
    })
}

/// Makes the `len` bytes at `addr` present that a copy with interrupts off found missing, to be
/// written. They may be gone again when the copy is tried again.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn fault_in_writeable(addr: UserAddr, len: usize) -> Result<(), Errno> {
    fault_in(addr, len, probe_write)
}

/// Calls `touch` with an address of each page of `len` bytes at `addr`.
fn fault_in(
    addr: UserAddr,
    len: usize,
    touch: impl FnMut(UserAddr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if !addr.access_ok(len) {
        return Err(Errno::EFAULT);
    }
    let (start, end) = (addr.raw(), addr.raw() + len);
    (start..end)
        .step_by(PAGE_SIZE)
        .chain([end - 1])
        .map(UserAddr::new)
        .try_for_each(touch)
}

/// Makes sure that the bytes in a `range` behind `addr`, whose meaning only a later kernel would
/// know, are zero (Linux: `check_zeroed_user`).
///
/// # Errors
/// `E2BIG` if one is not zero; `EFAULT`.
pub(crate) fn check_zeroed(addr: UserAddr, range: Range<usize>) -> Result<(), Errno> {
    let at = |offset| addr.raw().saturating_add(offset);
    for addr in at(range.start)..at(range.end) {
        if UserPtr::<u8>::new(addr.into()).read()? != 0 {
            return Err(Errno::E2BIG);
        }
    }
    Ok(())
}

/// Reads a string up to its NUL, which is not part of the result; `max` includes it.
///
/// # Errors
/// `EFAULT`; `ENAMETOOLONG` if there is no NUL in `max` bytes.
pub fn read_cstr(addr: UserAddr, max: usize) -> Result<Vec<u8>, Errno> {
    // Most strings are short.
    let mut size = max.min(256);
    loop {
        let mut buf = fallible::zeroed(size)?;
        let len = user::read_cstr(addr.raw(), &mut buf).map_err(|_| Errno::EFAULT)?;
        if len < size {
            buf.truncate(len);
            return Ok(buf);
        }
        if size == max {
            return Err(Errno::ENAMETOOLONG);
        }
        size = max.min(size * 16);
    }
}

/// A value as the argument register of a system call holds it.
pub trait SyscallArg {
    /// The value that the register's 64 bits mean.
    fn from_register(register: u64) -> Self;
}

impl SyscallArg for u64 {
    fn from_register(register: u64) -> Self {
        register
    }
}

impl SyscallArg for i64 {
    fn from_register(register: u64) -> Self {
        register.cast_signed()
    }
}

impl SyscallArg for usize {
    fn from_register(register: u64) -> Self {
        register as Self
    }
}

impl SyscallArg for u32 {
    fn from_register(register: u64) -> Self {
        register as Self
    }
}

impl SyscallArg for i32 {
    fn from_register(register: u64) -> Self {
        register as Self
    }
}

impl SyscallArg for UserAddr {
    fn from_register(register: u64) -> Self {
        Self::from(register)
    }
}

impl SyscallArg for Fd {
    fn from_register(register: u64) -> Self {
        Self::new(register as i32)
    }
}

impl SyscallArg for Pid {
    fn from_register(register: u64) -> Self {
        Self::new(register as i32)
    }
}

impl SyscallArg for Tid {
    fn from_register(register: u64) -> Self {
        Self::new(register as i32)
    }
}

impl SyscallArg for Option<Pid> {
    fn from_register(register: u64) -> Self {
        Pid::of_argument(register as i32)
    }
}

impl SyscallArg for Option<Tid> {
    fn from_register(register: u64) -> Self {
        Tid::of_argument(register as i32)
    }
}

impl SyscallArg for Option<Pgid> {
    fn from_register(register: u64) -> Self {
        Pgid::of_argument(register as i32)
    }
}

impl<T> SyscallArg for UserPtr<T> {
    fn from_register(register: u64) -> Self {
        Self::new(UserAddr::from(register))
    }
}
