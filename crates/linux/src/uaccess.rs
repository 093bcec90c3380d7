//! Memory of programs, as system calls see it: an address is an allegation, every access may fail.

use alloc::vec;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use guard::user;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::uapi::pid::{Pgid, Pid, Tid};

/// The address of a `T` in the calling program's memory, not checked.
pub struct UserPtr<T> {
    addr: usize,
    what: PhantomData<fn() -> T>,
}

impl<T> Clone for UserPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for UserPtr<T> {}

impl<T> UserPtr<T> {
    /// The `T` at this address.
    #[must_use]
    pub const fn new(addr: usize) -> Self {
        Self {
            addr,
            what: PhantomData,
        }
    }

    /// The address in user memory.
    #[must_use]
    pub const fn addr(self) -> usize {
        self.addr
    }

    /// Whether it is the null pointer.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.addr == 0
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
        user::with_value(self.addr, see).map_err(|_| Errno::EFAULT)
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

/// Whether `len` bytes at `addr` are in the half of the address space that programs have, mapped or
/// not (Linux' `access_ok`).
///
/// # Errors
/// `EFAULT`.
pub(crate) fn check_range(addr: usize, len: usize) -> Result<(), Errno> {
    addr.checked_add(len)
        .filter(|&end| end <= user::USER_END)
        .map(drop)
        .ok_or(Errno::EFAULT)
}

/// Reads `to.len()` bytes of user memory from `addr` on.
///
/// # Errors
/// `EFAULT`.
pub fn read_bytes(addr: usize, to: &mut [u8]) -> Result<(), Errno> {
    user::read_bytes(to, addr).map_err(|_| Errno::EFAULT)
}

/// Writes all bytes of `from` to user memory from `addr` on.
///
/// # Errors
/// `EFAULT`; a part may have been written.
pub fn write_bytes(addr: usize, from: &[u8]) -> Result<(), Errno> {
    user::write_bytes(addr, from).map_err(|_| Errno::EFAULT)
}

/// Reads bytes up to the first page that cannot be read; returns how many.
pub(crate) fn read_partial(addr: usize, to: &mut [u8]) -> usize {
    if read_bytes(addr, to).is_ok() {
        to.len()
    } else {
        by_pages(addr, to.len(), |at, range| read_bytes(at, &mut to[range]))
    }
}

/// Writes bytes up to the first page that cannot be written to; returns how many.
pub(crate) fn write_partial(addr: usize, from: &[u8]) -> usize {
    if write_bytes(addr, from).is_ok() {
        from.len()
    } else {
        by_pages(addr, from.len(), |at, range| write_bytes(at, &from[range]))
    }
}

/// Copies page by page until there is an error: how many bytes.
#[cold]
fn by_pages(
    addr: usize,
    len: usize,
    mut copy: impl FnMut(usize, Range<usize>) -> Result<(), Errno>,
) -> usize {
    let mut done = 0;
    while done < len {
        let at = addr.wrapping_add(done);
        let n = (PAGE_SIZE - at % PAGE_SIZE).min(len - done);
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
pub(crate) fn write_small(addr: usize, from: &[u8; 16], len: usize) -> Result<(), Errno> {
    let written = match len {
        1 => user::store_u8(addr, from[0]),
        8 => user::store_u64(
            addr,
            from.first_chunk()
                .map_or(0, |bytes| u64::from_ne_bytes(*bytes)),
        ),
        _ => user::write_bytes(addr, from.get(..len).unwrap_or_default()),
    };
    written.map_err(|_| Errno::EFAULT)
}

/// Makes sure that the program can write at `addr`, without changing anything there: what is taken
/// out of a pipe or a terminal must not be lost because it cannot be delivered.
///
/// # Errors
/// `EFAULT`.
pub fn probe_write(addr: usize) -> Result<(), Errno> {
    let word = addr & !3;
    let value = user::load_u32(word).map_err(|_| Errno::EFAULT)?;
    // Stores the value that is there; if another thread has changed it in between, it was writable
    // to that one.
    user::cmpxchg_u32(word, value, value)
        .map(drop)
        .map_err(|_| Errno::EFAULT)
}

/// Makes the `len` bytes at `addr` present that a copy with interrupts off found missing, to be
/// read and, if `write`, written. They may be gone again when the copy is tried again.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn fault_in(addr: usize, len: usize, write: bool) -> Result<(), Errno> {
    let end = addr
        .checked_add(len)
        .filter(|&end| end <= user::USER_END)
        .ok_or(Errno::EFAULT)?;
    let pages = (addr..end).step_by(PAGE_SIZE).chain([end - 1]);
    for at in pages {
        if write {
            probe_write(at)?;
        } else {
            user::load_u32(at & !3).map_err(|_| Errno::EFAULT)?;
        }
    }
    Ok(())
}

/// Reads a string up to its NUL, which is not part of the result; `max` includes it.
///
/// # Errors
/// `EFAULT`; `ENAMETOOLONG` if there is no NUL in `max` bytes.
pub fn read_cstr(addr: usize, max: usize) -> Result<Vec<u8>, Errno> {
    // Most strings are short.
    let mut size = max.min(256);
    loop {
        let mut buf = vec![0; size];
        let len = user::read_cstr(addr, &mut buf).map_err(|_| Errno::EFAULT)?;
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
        Self::new(register as usize)
    }
}
