//! Buffers by the numbers of their blocks.
//!
//! Blocks that are used together lie together: so the last bits of a number choose one of some
//! trees, each of which has few blocks, and a block is found with few comparisons however many
//! there are. No piece of memory is larger than a node of a tree.

use alloc::collections::BTreeMap;

use crate::store::Buffer;

/// Number of trees.
const TREES: usize = 32;

/// Blocks in memory.
#[derive(Default)]
pub struct Buffers {
    trees: [BTreeMap<u64, Buffer>; TREES],
    len: usize,
}

impl Buffers {
    #[inline]
    fn tree(&self, block: u64) -> &BTreeMap<u64, Buffer> {
        &self.trees[block as usize % TREES]
    }

    #[inline]
    fn tree_mut(&mut self, block: u64) -> &mut BTreeMap<u64, Buffer> {
        &mut self.trees[block as usize % TREES]
    }

    /// Number of blocks.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// A block.
    #[inline]
    pub fn get(&self, block: u64) -> Option<&Buffer> {
        self.tree(block).get(&block)
    }

    /// A block, to change it.
    #[inline]
    pub fn get_mut(&mut self, block: u64) -> Option<&mut Buffer> {
        self.tree_mut(block).get_mut(&block)
    }

    /// Adds a block, or puts it in the place of an older one.
    pub fn insert(&mut self, block: u64, buffer: Buffer) {
        let old = self.tree_mut(block).insert(block, buffer);
        self.len += usize::from(old.is_none());
    }

    /// Takes a block away.
    pub fn remove(&mut self, block: u64) -> Option<Buffer> {
        let old = self.tree_mut(block).remove(&block);
        self.len -= usize::from(old.is_some());
        old
    }

    /// Takes those blocks away of which `keep` does not say that they stay, in no order.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Buffer) -> bool) {
        self.len = 0;
        for tree in &mut self.trees {
            tree.retain(|_, buffer| keep(buffer));
            self.len += tree.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_replaced_and_taken_away() {
        let one = || Buffer::new(alloc::sync::Arc::default());
        let mut buffers = Buffers::default();
        let blocks = [0, 1, 31, 32, 33, 64, 1 << 40];
        for block in blocks {
            assert!(buffers.get(block).is_none());
            buffers.insert(block, one());
            buffers.insert(block, one());
        }
        assert_eq!(buffers.len(), blocks.len());
        assert!(buffers.get_mut(64).is_some() && buffers.get(65).is_none());
        assert!(buffers.remove(64).is_some() && buffers.remove(64).is_none());
        assert_eq!(buffers.len(), blocks.len() - 1);
        let mut left = 2;
        buffers.retain(|_| {
            left -= 1;
            left >= 0
        });
        assert_eq!(buffers.len(), 2);
        let there = blocks.iter().filter(|&&block| buffers.get(block).is_some());
        assert_eq!(there.count(), 2);
    }
}
