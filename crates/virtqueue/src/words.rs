//! Memory of 16-bit atomics as the memory of queues.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::memory::{Address, Memory, Unreachable};

/// Memory as a list of 16-bit atomics, by addresses from zero on: this program's own, for two ends
/// in one kernel and for tests, or what is shared with another instance.
#[derive(Debug)]
pub struct Words<S = Vec<AtomicU16>>(S);

impl Words {
    /// Makes a number of bytes of zeros, rounded up to an even number; nothing without memory.
    #[must_use]
    pub fn new(bytes: usize) -> Option<Self> {
        let mut words = Vec::new();
        let len = bytes.div_ceil(2);
        words.try_reserve_exact(len).ok()?;
        words.resize_with(len, || AtomicU16::new(0));
        Some(Self(words))
    }
}

impl<S: AsRef<[AtomicU16]>> Words<S> {
    /// The memory of a list that there is, which is as long each time that it is asked for.
    pub const fn over(list: S) -> Self {
        Self(list)
    }

    fn aligned(&self, at: Address) -> Result<&AtomicU16, Unreachable> {
        let index = usize::try_from(at.number() / 2).map_err(|_| Unreachable(at))?;
        let word = self.0.as_ref().get(index);
        word.filter(|_| at.number().is_multiple_of(2))
            .ok_or(Unreachable(at))
    }

    /// The words that so many bytes lie in, if all of them are in the memory: the one of which the
    /// first byte is the second one, if it is, and the others.
    fn range(&self, at: Address, len: usize) -> Result<(&[AtomicU16], &[AtomicU16]), Unreachable> {
        let all = self.0.as_ref();
        let words = usize::try_from(at.number()).ok().and_then(|first| {
            let end = first.checked_add(len)?;
            all.get(first / 2..end.div_ceil(2))
        });
        let is_odd = !at.number().is_multiple_of(2) && len > 0;
        Ok(words.ok_or(Unreachable(at))?.split_at(is_odd.into()))
    }
}

/// Stores one byte of a little-endian number, while the other one may be changing, too.
fn store_byte(word: &AtomicU16, is_second: bool, byte: u8) {
    let shift = if is_second { 8 } else { 0 };
    word.fetch_and(!(0xff << shift), Ordering::Relaxed);
    word.fetch_or(u16::from(byte) << shift, Ordering::Relaxed);
}

impl<S: AsRef<[AtomicU16]>> Memory for Words<S> {
    fn reaches(&self, at: Address, len: u64) -> bool {
        let bytes = 2 * self.0.as_ref().len() as u64;
        at.number().checked_add(len).is_some_and(|end| end <= bytes)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        Ok(self.aligned(at)?.load(Ordering::Acquire))
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        self.aligned(at)?.store(value, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        let (odd, words) = self.range(at, into.len())?;
        let (first, rest) = into.split_at_mut(odd.len());
        for (word, byte) in odd.iter().zip(first) {
            *byte = (word.load(Ordering::Relaxed) >> 8) as u8;
        }
        for (word, bytes) in words.iter().zip(rest.chunks_mut(2)) {
            let both = word.load(Ordering::Relaxed).to_le_bytes();
            bytes.copy_from_slice(&both[..bytes.len()]);
        }
        Ok(())
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        let (odd, words) = self.range(at, from.len())?;
        let (first, rest) = from.split_at(odd.len());
        for (word, byte) in odd.iter().zip(first) {
            store_byte(word, true, *byte);
        }
        for (word, bytes) in words.iter().zip(rest.chunks(2)) {
            match *bytes {
                [low, high] => word.store(u16::from_le_bytes([low, high]), Ordering::Relaxed),
                [low] => store_byte(word, false, low),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Bytes go in and out at any place as in a list, and what is not there is refused.
        #[test]
        fn bytes_are_where_they_were_put(
            writes in prop::collection::vec(
                (0_u64..70, prop::collection::vec(any::<u8>(), 0..9)), 1..20
            ),
        ) {
            let words = Words::new(64).unwrap();
            let mut model = [0; 64];
            for (at, bytes) in writes {
                let range = at as usize..at as usize + bytes.len();
                let place = Address::new(at);
                let fits = range.end <= model.len();
                prop_assert_eq!(words.reaches(place, bytes.len() as u64), fits);
                prop_assert_eq!(words.write(place, &bytes).is_ok(), fits);
                let mut seen = bytes.clone();
                prop_assert_eq!(words.read(place, &mut seen).is_ok(), fits);
                if fits {
                    model[range].copy_from_slice(&bytes);
                    prop_assert_eq!(seen, bytes);
                }
                let mut all = [0; 64];
                words.read(Address::new(0), &mut all).unwrap();
                prop_assert_eq!(all, model);
            }
        }
    }
}
