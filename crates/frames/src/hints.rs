//! A bit for each area, set where a search may be worthwhile.

use crate::sync::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Hints<'a>(pub(crate) &'a [AtomicU64]);

impl Hints<'_> {
    pub(crate) fn set(&self, area: usize, on: bool) {
        let (word, bit) = (&self.0[area / 64], 1 << (area % 64));
        let is = word.load(Ordering::SeqCst) & bit != 0;
        match (is, on) {
            (false, true) => drop(word.fetch_or(bit, Ordering::SeqCst)),
            (true, false) => drop(word.fetch_and(!bit, Ordering::SeqCst)),
            _ => {}
        }
    }

    /// The areas whose bit is set, from the word of `start` on and around.
    pub(crate) fn from(&self, start: usize) -> impl Iterator<Item = usize> {
        let words = self.0.len();
        (0..words).flat_map(move |n| {
            let word = (start / 64 + n) % words;
            let mut bits = self.0[word].load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                (bits != 0).then(|| {
                    let bit = bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    word * 64 + bit
                })
            })
        })
    }
}
