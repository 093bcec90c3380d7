//! A set of CPUs that anybody may change at any time: words of 64, and above them one word that
//! says which of them to look at.
//!
//! Finding a member of 1,024 looks at two words, and whoever adds a CPU to a word that has one
//! already does not touch the word above.

#[cfg(loom)]
use core::array;

use crate::sync::{AtomicU64, Ordering};

/// CPUs in a word.
const BITS: usize = 64;

/// A set of up to `64 * WORDS` CPUs; `WORDS` is at most 64.
///
/// Changes by several CPUs at once are never lost. A look sees each member that was added before
/// and not removed since, and perhaps some that come or go meanwhile.
#[derive(Debug)]
pub struct CpuSet<const WORDS: usize> {
    /// Bit `w`: word `w` may have members. Set after them.
    summary: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> CpuSet<WORDS> {
    /// No CPU.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            summary: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// No CPU.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            summary: AtomicU64::new(0),
            words: array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Adds a CPU. What was written before is seen by who finds the CPU in the set.
    ///
    /// # Panics
    /// If the set is not made for so many.
    pub fn insert(&self, cpu: usize) {
        let (word, bit) = (cpu / BITS, 1 << (cpu % BITS));
        // Whoever put the first one into the word announces it above, if only a moment later.
        if self.words[word].fetch_or(bit, Ordering::AcqRel) == 0 {
            self.summary.fetch_or(1 << word, Ordering::AcqRel);
        }
    }

    /// Removes a CPU.
    ///
    /// # Panics
    /// If the set is not made for so many.
    pub fn remove(&self, cpu: usize) {
        let (word, bit) = (cpu / BITS, 1 << (cpu % BITS));
        if self.words[word].fetch_and(!bit, Ordering::AcqRel) != bit {
            return;
        }
        self.summary.fetch_and(!(1 << word), Ordering::AcqRel);
        // Somebody may have come before the announcement was taken back: it is made again.
        if self.words[word].load(Ordering::Acquire) != 0 {
            self.summary.fetch_or(1 << word, Ordering::AcqRel);
        }
    }

    /// True if there is no CPU in it. A snapshot.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // In the total order, so that of two who each announce something and then look, one sees
        // the other.
        self.summary.load(Ordering::SeqCst) == 0
    }

    /// Whether a CPU is in it. A snapshot.
    ///
    /// # Panics
    /// If the set is not made for so many.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.words[cpu / BITS].load(Ordering::Acquire) >> (cpu % BITS) & 1 != 0
    }

    /// The first member at or after `start`, going round, that `allowed` has too (word 0 holds CPUs
    /// 0 to 63).
    #[must_use]
    pub fn find(&self, start: usize, allowed: impl Fn(usize) -> u64) -> Option<usize> {
        let summary = self.summary.load(Ordering::Acquire);
        if summary == 0 {
            return None;
        }
        let (first, low) = (start / BITS % WORDS, (1u64 << (start % BITS)) - 1);
        // The first word twice: its upper part at the beginning, the rest at the end.
        (0..=WORDS).find_map(|step| {
            let word = (first + step) % WORDS;
            if summary >> word & 1 == 0 {
                return None;
            }
            let part = match step {
                0 => !low,
                _ if step == WORDS => low,
                _ => u64::MAX,
            };
            let members = self.words[word].load(Ordering::Acquire) & allowed(word) & part;
            (members != 0).then(|| word * BITS + members.trailing_zeros() as usize)
        })
    }

    /// Takes all CPUs out and hands each to `each`.
    pub fn take(&self, mut each: impl FnMut(usize)) {
        let mut summary = self.summary.swap(0, Ordering::AcqRel);
        while summary != 0 {
            let word = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            let mut members = self.words[word].swap(0, Ordering::AcqRel);
            while members != 0 {
                each(word * BITS + members.trailing_zeros() as usize);
                members &= members - 1;
            }
        }
    }
}

impl<const WORDS: usize> Default for CpuSet<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn finds_round_the_end_and_among_the_allowed() {
        let set = CpuSet::<16>::new();
        assert!(set.is_empty() && set.find(0, |_| u64::MAX).is_none());
        for cpu in [3, 70, 1023] {
            set.insert(cpu);
        }
        let find = |start| set.find(start, |_| u64::MAX);
        assert_eq!(
            [find(0), find(3), find(4), find(71), find(1023)],
            [Some(3), Some(3), Some(70), Some(1023), Some(1023)]
        );
        assert_eq!(
            set.find(0, |word| if word == 1 { u64::MAX } else { 0 }),
            Some(70)
        );
        set.remove(1023);
        assert_eq!(find(71), Some(3));
        set.remove(3);
        assert_eq!(find(71), Some(70));
    }

    proptest! {
        #[test]
        fn is_a_set(steps in proptest::collection::vec((0..1024usize, any::<bool>()), 0..200)) {
            let (set, mut model) = (CpuSet::<16>::new(), BTreeSet::new());
            for (cpu, add) in steps {
                if add {
                    set.insert(cpu);
                    model.insert(cpu);
                } else {
                    set.remove(cpu);
                    model.remove(&cpu);
                }
                prop_assert_eq!(set.is_empty(), model.is_empty());
                let next = model.range(cpu..).next().or_else(|| model.first()).copied();
                prop_assert_eq!(set.find(cpu, |_| u64::MAX), next);
                prop_assert_eq!(set.contains(cpu), model.contains(&cpu));
            }
            let mut taken = Vec::new();
            set.take(|cpu| taken.push(cpu));
            prop_assert_eq!(taken, model.into_iter().collect::<Vec<_>>());
            prop_assert!(set.is_empty());
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// One member stays while another of its word comes and goes: when all is quiet, the one that
    /// stayed is found.
    #[test]
    fn a_member_stays_visible() {
        loom::model(|| {
            let set = Arc::new(CpuSet::<1>::new());
            let theirs = set.clone();
            let other = thread::spawn(move || {
                theirs.insert(1);
                theirs.remove(1);
            });
            set.insert(0);
            other.join().unwrap();
            assert_eq!(set.find(0, |_| u64::MAX), Some(0));
        });
    }
}
