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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn areas_are_named_while_they_are_set_from_a_word_on_and_around() {
        let words: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let hints = Hints(&words);
        let from = |start| hints.from(start).collect::<Vec<_>>();
        for area in [191, 64, 0, 63] {
            hints.set(area, true);
        }
        assert_eq!(
            (from(0), from(64), from(130)),
            (
                vec![0, 63, 64, 191],
                vec![64, 191, 0, 63],
                vec![191, 0, 63, 64]
            )
        );
        for area in [63, 191, 5] {
            hints.set(area, false);
        }
        assert_eq!(from(191), [0, 64]);
    }
}
