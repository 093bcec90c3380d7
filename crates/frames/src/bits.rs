//! A set of small numbers as a tree of bits: the bottom level has a bit for each number, each level above a bit for each
//! word below that is not zero. The words themselves belong to the caller.

/// Levels of 64: enough for 2^34 blocks.
const MAX_LEVELS: usize = 6;

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    start: usize,
    words: usize,
}

/// Where the levels of one set lie in the shared words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitTree {
    levels: [Level; MAX_LEVELS],
    count: usize,
    bits: u64,
}

impl BitTree {
    pub(crate) const fn words_needed(bits: u64) -> usize {
        let mut total = 0;
        let mut words = bits.div_ceil(64) as usize;
        while words > 0 {
            total += words;
            if words == 1 {
                break;
            }
            words = words.div_ceil(64);
        }
        total
    }

    pub(crate) fn new(bits: u64, start: usize) -> Self {
        let mut tree = Self { levels: [Level::default(); MAX_LEVELS], count: 0, bits };
        let mut next = start;
        let mut words = bits.div_ceil(64) as usize;
        while words > 0 {
            tree.levels[tree.count] = Level { start: next, words };
            tree.count += 1;
            next += words;
            if words == 1 {
                break;
            }
            words = words.div_ceil(64);
        }
        tree
    }

    pub(crate) fn contains(&self, words: &[u64], bit: u64) -> bool {
        bit < self.bits && words[self.levels[0].start + (bit / 64) as usize] >> (bit % 64) & 1 != 0
    }

    pub(crate) fn insert(&self, words: &mut [u64], mut bit: u64) {
        for level in &self.levels[..self.count] {
            let word = &mut words[level.start + (bit / 64) as usize];
            let was_empty = *word == 0;
            *word |= 1 << (bit % 64);
            if !was_empty {
                return;
            }
            bit /= 64;
        }
    }

    pub(crate) fn remove(&self, words: &mut [u64], mut bit: u64) {
        for level in &self.levels[..self.count] {
            let word = &mut words[level.start + (bit / 64) as usize];
            *word &= !(1 << (bit % 64));
            if *word != 0 {
                return;
            }
            bit /= 64;
        }
    }

    /// The smallest number in the set.
    pub(crate) fn first(&self, words: &[u64]) -> Option<u64> {
        let mut index = 0u64;
        for level in self.levels[..self.count].iter().rev() {
            let word = words[level.start + index as usize];
            if word == 0 {
                return None;
            }
            index = index * 64 + u64::from(word.trailing_zeros());
        }
        (self.count > 0).then_some(index)
    }

    /// How many numbers are in the set.
    pub(crate) fn count(&self, words: &[u64]) -> u64 {
        let Level { start, words: len } = self.levels[0];
        words[start..start + len].iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
