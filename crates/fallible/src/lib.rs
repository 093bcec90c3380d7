//! Growth that can fail: buffers whose size a program chooses are made and extended here, so that a
//! lack of memory, or of so much of it in a row, is `ENOMEM` for that program. The same calls of
//! `alloc` wait for memory as long as they want little, and end the kernel if it is much
//! (`docs/memory.md`).
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod inject;
mod pieces;

use alloc::collections::{TryReserveError, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use abi::errno::Errno;
use lfmutex::Once;
pub use pieces::Pieces;

/// An empty list with room for `len` items.
///
/// # Errors
/// `ENOMEM`.
pub fn with_capacity<T>(len: usize) -> Result<Vec<T>, Errno> {
    refuse_if_short(len.saturating_mul(size_of::<T>()))?;
    let mut list = Vec::new();
    let reserved = list.try_reserve_exact(len);
    may_fail(reserved)?;
    Ok(list)
}

/// Bytes that are asked for whatever is left.
const LITTLE: usize = 4096;

/// Whether memory is so short that only who must gets some.
static IS_SHORT: Once<fn() -> bool> = Once::new();

/// Sets how to learn whether memory is so short that larger requests are refused. The first call
/// counts.
pub fn set_shortage_probe(is_short: fn() -> bool) {
    let _ = IS_SHORT.set(is_short);
}

/// Refuses more than a little where memory is short. The heap would wait for it, also for a process
/// that is to end, and that others wait for.
#[inline]
fn refuse_if_short(bytes: usize) -> Result<(), Errno> {
    if bytes > LITTLE && IS_SHORT.get().is_some_and(|is_short| is_short()) {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// The result of a reservation, as a system call has it, or a failure on purpose.
#[inline]
fn may_fail(reserved: Result<(), TryReserveError>) -> Result<(), Errno> {
    if reserved.is_err() || inject::fails() {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// A buffer of `len` zeros.
///
/// # Errors
/// `ENOMEM`.
pub fn zeroed(len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = with_capacity(len)?;
    buf.resize(len, 0);
    Ok(buf)
}

/// A copy of bytes.
///
/// # Errors
/// `ENOMEM`.
pub fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = with_capacity(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Puts an item behind the others, or with an error nothing.
///
/// # Errors
/// `ENOMEM`.
#[inline]
pub fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), Errno> {
    may_fail(list.try_reserve(1))?;
    list.push(item);
    Ok(())
}

/// Puts an item at the end of a queue, or with an error nothing.
///
/// # Errors
/// `ENOMEM`.
#[inline]
pub fn push_back<T>(queue: &mut VecDeque<T>, item: T) -> Result<(), Errno> {
    may_fail(queue.try_reserve(1))?;
    queue.push_back(item);
    Ok(())
}

/// Collections that can be asked to take more.
pub trait TryExtend {
    /// Puts bytes behind the others: all of them, or with an error none.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn try_extend(&mut self, bytes: &[u8]) -> Result<(), Errno>;
}

impl TryExtend for Vec<u8> {
    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        refuse_if_short(bytes.len())?;
        may_fail(self.try_reserve(bytes.len()))?;
        self.extend_from_slice(bytes);
        Ok(())
    }
}

impl TryExtend for VecDeque<u8> {
    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        refuse_if_short(bytes.len())?;
        may_fail(self.try_reserve(bytes.len()))?;
        self.extend(bytes);
        Ok(())
    }
}

/// A text that is written piece by piece; a piece for which there is no memory is an error.
#[derive(Default)]
pub struct Text(String);

impl Text {
    /// The text as far as it was written.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        may_fail(self.0.try_reserve(piece.len())).map_err(|_| fmt::Error)?;
        self.0.push_str(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_an_error_and_changes_nothing() {
        assert_eq!(zeroed(usize::MAX >> 1), Err(Errno::ENOMEM));
        assert_eq!(zeroed(3).unwrap(), [0; 3]);
        assert_eq!(copy_of(b"ab").unwrap(), b"ab");
        let mut queue = VecDeque::from(*b"ab");
        queue.try_extend(b"cd").unwrap();
        assert_eq!(queue, b"abcd");
        let mut buf = copy_of(b"ab").unwrap();
        buf.try_extend(b"").unwrap();
        assert_eq!(buf, b"ab");
    }
}
