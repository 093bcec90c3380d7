//! A buddy allocator over frame numbers, as pure logic: it touches no memory but the words its caller lends it.
//!
//! Each order has a set of its free blocks, kept as a bit tree: one bit for a block, and above it levels in which a bit says
//! that the word below is not empty. Finding, inserting and removing a block look at one word a level (four levels reach
//! 64 GiB), the lowest free block is taken first, and nothing is ever written into free memory: a frame that was
//! scrubbed stays so. The words cost 1/128 of a per cent of the memory managed times two, and only they need to be cleared
//! at start, whatever the memory's size.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod bits;

use bits::BitTree;

/// The largest block is `2^MAX_ORDER` frames: 1 GiB.
pub const MAX_ORDER: u8 = 18;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// Number of 64-bit words that a [`Buddy`] over `frames` frames needs.
#[must_use]
pub const fn words_needed(frames: u64) -> usize {
    let mut words = 0;
    let mut order = 0;
    while order < ORDERS {
        words += BitTree::words_needed(frames >> order);
        order += 1;
    }
    words
}

/// The allocator. Blocks are named by their first frame and their order (`2^order` frames, aligned to their size).
#[derive(Debug)]
pub struct Buddy<'a> {
    words: &'a mut [u64],
    free_blocks: [BitTree; ORDERS],
    frames: u64,
    free: u64,
}

impl<'a> Buddy<'a> {
    /// An allocator for the frames `0..frames` of which none is free yet. The content of `words` does not matter.
    ///
    /// # Panics
    /// If `words` is shorter than [`words_needed`] says.
    #[must_use]
    pub fn new(frames: u64, words: &'a mut [u64]) -> Self {
        let needed = words_needed(frames);
        words[..needed].fill(0);
        let mut next = 0;
        let free_blocks = core::array::from_fn(|order| {
            let tree = BitTree::new(frames >> order, next);
            next += BitTree::words_needed(frames >> order);
            tree
        });
        Self { words, free_blocks, frames, free: 0 }
    }

    /// Number of frames that can be named, free or not.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Number of free frames.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.free
    }

    /// Number of free blocks of exactly this order. Slow: for statistics.
    #[must_use]
    pub fn free_blocks(&self, order: u8) -> u64 {
        self.free_blocks[usize::from(order)].count(self.words)
    }

    /// Takes the lowest suitable block; `None` if there is no block of that size.
    pub fn alloc(&mut self, order: u8) -> Option<u64> {
        let found =
            (order..=MAX_ORDER).find_map(|o| self.free_blocks[usize::from(o)].first(self.words).map(|index| (o, index << o)));
        let (from, first) = found?;
        self.take(first, from, first, order);
        Some(first)
    }

    /// Takes this very block; false (and no change) if not all of it is free.
    pub fn alloc_at(&mut self, first: u64, order: u8) -> bool {
        if !self.is_block(first, order) {
            return false;
        }
        if let Some(from) = (order..=MAX_ORDER).find(|&o| self.has(first >> o << o, o)) {
            self.take(first >> from << from, from, first, order);
            return true;
        }
        false
    }

    /// Gives a block back, and merges it with its free neighbours.
    ///
    /// # Panics
    /// If it is no block, or is free already.
    pub fn free(&mut self, first: u64, order: u8) {
        assert!(self.is_block(first, order), "freed what is no block: {first:#x}, order {order}");
        assert!(!(order..=MAX_ORDER).any(|o| self.has(first >> o << o, o)), "freed twice: frame {first:#x}");
        let (mut first, mut order) = (first, order);
        self.free += 1 << order;
        while order < MAX_ORDER {
            let buddy = first ^ (1 << order);
            if !self.has(buddy, order) {
                break;
            }
            self.free_blocks[usize::from(order)].remove(self.words, buddy >> order);
            first &= !(1 << order);
            order += 1;
        }
        self.free_blocks[usize::from(order)].insert(self.words, first >> order);
    }

    /// Makes frames free that were not managed so far (or taken out by [`Self::remove_range`]).
    ///
    /// # Panics
    /// If the range reaches beyond [`Self::frames`], or some of it is free.
    pub fn add_range(&mut self, first: u64, count: u64) {
        for_each_block(first, count, |block, order| self.free(block, order));
    }

    /// Takes a range out: all of it, or nothing if some of it is not free.
    pub fn remove_range(&mut self, first: u64, count: u64) -> bool {
        let Some(end) = first.checked_add(count) else { return false };
        if end > self.frames {
            return false;
        }
        let mut all = true;
        for_each_block(first, count, |block, order| all &= self.is_free(block, order));
        if all {
            for_each_block(first, count, |block, order| {
                let taken = self.alloc_at(block, order);
                debug_assert!(taken, "checked to be free");
            });
        }
        all
    }

    /// True if every frame of the block is free.
    #[must_use]
    pub fn is_free(&self, first: u64, order: u8) -> bool {
        // Free neighbours are always merged, so what is free as a whole is in one block.
        (order..=MAX_ORDER).any(|o| self.has(first >> o << o, o))
    }

    fn is_block(&self, first: u64, order: u8) -> bool {
        order <= MAX_ORDER
            && first & ((1 << order) - 1) == 0
            && first.checked_add(1 << order).is_some_and(|end| end <= self.frames)
    }

    fn has(&self, first: u64, order: u8) -> bool {
        self.free_blocks[usize::from(order)].contains(self.words, first >> order)
    }

    /// Takes `(want, order)` out of the free block `(block, from)` and frees the rest of that.
    fn take(&mut self, block: u64, from: u8, want: u64, order: u8) {
        self.free_blocks[usize::from(from)].remove(self.words, block >> from);
        for o in (order..from).rev() {
            // The half that holds `want` is split further; the other one is free.
            let other = (want >> o << o) ^ (1 << o);
            self.free_blocks[usize::from(o)].insert(self.words, other >> o);
        }
        self.free -= 1 << order;
    }
}

/// Cuts a range into the largest aligned blocks.
fn for_each_block(mut first: u64, mut count: u64, mut f: impl FnMut(u64, u8)) {
    while count > 0 {
        let aligned = if first == 0 { MAX_ORDER } else { first.trailing_zeros().min(u32::from(MAX_ORDER)) as u8 };
        let order = aligned.min(count.ilog2() as u8).min(MAX_ORDER);
        f(first, order);
        first += 1 << order;
        count -= 1 << order;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const FRAMES: u64 = 5000;

    #[derive(Clone, Debug)]
    enum Step {
        Alloc(u8),
        AllocAt(u64, u8),
        Free(prop::sample::Index),
        Remove(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u8..8).prop_map(Step::Alloc),
            1 => (0..FRAMES + 50, 0u8..8).prop_map(|(f, o)| Step::AllocAt(f >> o << o, o)),
            4 => any::<prop::sample::Index>().prop_map(Step::Free),
            1 => (0..FRAMES, 1u64..300).prop_map(|(f, n)| Step::Remove(f, n)),
        ]
    }

    /// What is free, frame by frame.
    struct Model(Vec<bool>);

    impl Model {
        fn all_free(&self, first: u64, count: u64) -> bool {
            (first..first + count).all(|f| self.0.get(f as usize) == Some(&true))
        }
        fn set(&mut self, first: u64, count: u64, free: bool) {
            for f in first..first + count {
                assert_ne!(self.0[f as usize], free, "frame {f} handed out or freed twice");
                self.0[f as usize] = free;
            }
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_frames(holes in prop::collection::vec((0..FRAMES, 1u64..40), 0..6), steps in prop::collection::vec(step(), 1..300)) {
            let mut words = vec![!0; words_needed(FRAMES)];
            let mut buddy = Buddy::new(FRAMES, &mut words);
            let mut model = Model(vec![false; FRAMES as usize]);
            buddy.add_range(0, FRAMES);
            model.set(0, FRAMES, true);
            for (first, count) in holes {
                let count = count.min(FRAMES - first);
                if model.all_free(first, count) {
                    assert!(buddy.remove_range(first, count));
                    model.set(first, count, false);
                }
            }
            let mut held: BTreeMap<u64, u8> = BTreeMap::new();
            for s in steps {
                match s {
                    Step::Alloc(order) => {
                        let size = 1u64 << order;
                        match buddy.alloc(order) {
                            Some(first) => {
                                prop_assert_eq!(first % size, 0);
                                model.set(first, size, false);
                                held.insert(first, order);
                            }
                            None => prop_assert!((0..FRAMES / size).all(|i| !model.all_free(i * size, size))),
                        }
                    }
                    Step::AllocAt(first, order) => {
                        let could = model.all_free(first, 1 << order);
                        prop_assert_eq!(buddy.alloc_at(first, order), could);
                        if could {
                            model.set(first, 1 << order, false);
                            held.insert(first, order);
                        }
                    }
                    Step::Free(index) => if !held.is_empty() {
                        let first = *held.keys().nth(index.index(held.len())).unwrap();
                        let order = held.remove(&first).unwrap();
                        buddy.free(first, order);
                        model.set(first, 1 << order, true);
                    },
                    Step::Remove(first, count) => {
                        let could = first + count <= FRAMES && model.all_free(first, count);
                        prop_assert_eq!(buddy.remove_range(first, count), could);
                        if could {
                            buddy.add_range(first, count);
                        }
                    }
                }
                prop_assert_eq!(buddy.free_frames(), model.0.iter().filter(|free| **free).count() as u64);
            }
            for (first, order) in held {
                buddy.free(first, order);
            }
            // All merged again: the counts by order add up to what is free.
            let sum: u64 = (0..=MAX_ORDER).map(|o| buddy.free_blocks(o) << o).sum();
            prop_assert_eq!(sum, buddy.free_frames());
        }
    }

    #[test]
    fn merges_back_to_what_it_was() {
        let mut words = vec![0; words_needed(1 << 12)];
        let mut buddy = Buddy::new(1 << 12, &mut words);
        buddy.add_range(0, 1 << 12);
        let taken: Vec<u64> = (0..1 << 12).map(|_| buddy.alloc(0).unwrap()).collect();
        assert_eq!(buddy.alloc(0), None);
        for frame in taken.into_iter().rev() {
            buddy.free(frame, 0);
        }
        assert_eq!(buddy.free_blocks(12), 1);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_noticed() {
        let mut words = vec![0; words_needed(64)];
        let mut buddy = Buddy::new(64, &mut words);
        buddy.add_range(0, 64);
        buddy.free(3, 0);
    }

    #[test]
    fn storage_is_small() {
        // 2 GiB in 4 KiB frames.
        assert!(words_needed(512 << 10) * 8 < 140 << 10);
    }
}
