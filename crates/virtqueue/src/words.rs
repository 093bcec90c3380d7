//! Ordinary memory as the memory of queues.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::memory::{Address, Memory, Unreachable};

/// Memory of this program, by addresses from zero on: for two ends in one kernel, and for tests.
#[derive(Debug)]
pub struct Words(Vec<AtomicU16>);

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

    fn word(&self, at: Address) -> Result<&AtomicU16, Unreachable> {
        let at_word = usize::try_from(at.number() / 2).map_err(|_| Unreachable(at))?;
        self.0.get(at_word).ok_or(Unreachable(at))
    }

    fn aligned(&self, at: Address) -> Result<&AtomicU16, Unreachable> {
        if at.number().is_multiple_of(2) {
            self.word(at)
        } else {
            Err(Unreachable(at))
        }
    }
}

/// The bits of a byte of a little-endian number, as a shift.
fn shift(at: Address) -> u32 {
    if at.number().is_multiple_of(2) { 0 } else { 8 }
}

impl Memory for Words {
    fn reaches(&self, at: Address, len: u64) -> bool {
        let bytes = 2 * self.0.len() as u64;
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
        for (at, byte) in (at.number()..).map(Address::new).zip(into) {
            *byte = (self.word(at)?.load(Ordering::Relaxed) >> shift(at)) as u8;
        }
        Ok(())
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        for (at, byte) in (at.number()..).map(Address::new).zip(from) {
            let word = self.word(at)?;
            let (mask, bits) = (0xff_u16 << shift(at), u16::from(*byte) << shift(at));
            // The other byte of the word may be changing, too.
            word.fetch_and(!mask, Ordering::Relaxed);
            word.fetch_or(bits, Ordering::Relaxed);
        }
        Ok(())
    }
}
