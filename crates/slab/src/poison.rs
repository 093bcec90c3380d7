//! `debug=poison`: what is free holds a pattern from the moment it is given back, and whoever takes
//! it out again sees that nobody has written to it.
//!
//! So a write after the release is found at the next allocation at the latest, with the class and
//! the address, and a read after it, or of memory that was never written to, gives the pattern
//! instead of what was there before. While it is off, all there is of it is a look at a flag.

use core::sync::atomic::{AtomicBool, Ordering};

/// In each byte. As an address it is none that the processor accepts, as a number it is large and
/// odd.
pub const PATTERN: u8 = 0xd5;

const WORD: u64 = u64::from_ne_bytes([PATTERN; 8]);

static ON: AtomicBool = AtomicBool::new(false);

/// From now on free memory is filled and checked.
///
/// # Safety
/// Nothing is free that [`check`] will look at and nobody has filled: it may never have been
/// written to.
pub unsafe fn enable() {
    ON.store(true, Ordering::Relaxed);
}

/// Whether it is.
#[inline]
#[must_use]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Fills memory that is given back, if the mode is on.
///
/// # Safety
/// The bytes are the caller's alone, and nobody needs what is in them.
#[inline]
pub unsafe fn fill(at: *mut u8, bytes: usize) {
    if on() {
        // SAFETY: by the caller's promise.
        unsafe { at.write_bytes(PATTERN, bytes) };
    }
}

/// Sees that memory which is taken holds the pattern still, if the mode is on.
///
/// # Panics
/// If it does not: with `what` it is, its address, and where it differs.
///
/// # Safety
/// The bytes are the caller's alone, and were filled when they were given back.
#[inline]
pub unsafe fn check(at: *const u8, bytes: usize, what: &str) {
    if on() {
        // SAFETY: by the caller's promise.
        unsafe { check_all(at, bytes, what) };
    }
}

/// # Safety
/// As for [`check`].
#[cold]
unsafe fn check_all(at: *const u8, bytes: usize, what: &str) {
    // SAFETY: filled, so initialised, and the caller's alone.
    let all = unsafe { core::slice::from_raw_parts(at, bytes) };
    if let Some(offset) = first_difference(all) {
        let rest = &all[offset..all.len().min(offset + 16)];
        panic!(
            "poison: {what} of {bytes} bytes at {at:p} was written to while it was free: byte {offset}: {rest:02x?}"
        );
    }
}

/// Number of words from the first on that hold the pattern still, of memory that was filled when
/// it was given back.
pub fn untouched(words: impl IntoIterator<Item = u64>) -> usize {
    words.into_iter().take_while(|word| *word == WORD).count()
}

/// Where the first byte is that is not the pattern's.
fn first_difference(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    let word = words.iter().position(|word| *word != WORD.to_ne_bytes());
    let from = word.map_or(bytes.len() - rest.len(), |word| word * 8);
    bytes[from..]
        .iter()
        .position(|byte| *byte != PATTERN)
        .map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_to_ends_what_was_not() {
        assert_eq!(untouched([WORD; 4]), 4);
        assert_eq!(untouched([WORD, WORD, 0, WORD]), 2);
        assert_eq!(untouched([]), 0);
    }

    #[test]
    fn the_first_difference_is_found_wherever_it_is() {
        let mut bytes = [PATTERN; 29];
        assert_eq!(first_difference(&bytes), None);
        for at in (0..29).rev() {
            bytes[at] ^= 1;
            assert_eq!(first_difference(&bytes), Some(at));
        }
    }
}
