//! A binary heap over a vector that is given its room beforehand.

use alloc::vec::Vec;
use core::marker::PhantomData;

/// Order in which entries leave the heap; a strict one: of two entries at most one is before the
/// other.
pub(crate) trait Order<T> {
    fn before(a: &T, b: &T) -> bool;
}

/// Entries of which the first one can be taken, in O(log n).
#[derive(Debug)]
pub(crate) struct Heap<T, O> {
    entries: Vec<T>,
    order: PhantomData<O>,
}

impl<T, O: Order<T>> Heap<T, O> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            order: PhantomData,
        }
    }

    /// Moves into `room`, which has room for all entries, and leaves the old vector there.
    pub(crate) fn move_into(&mut self, room: &mut Vec<T>) {
        room.clear();
        room.append(&mut self.entries);
        core::mem::swap(&mut self.entries, room);
    }

    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.entries.first()
    }

    pub(crate) fn push(&mut self, entry: T) {
        self.entries.push(entry);
        self.up(self.entries.len() - 1);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        (!self.is_empty()).then(|| self.remove(0))
    }

    /// Takes the first entry that `wanted` is true of, the first one first and the others in no
    /// order: O(n).
    pub(crate) fn take(&mut self, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let at = self.entries.iter().position(wanted)?;
        Some(self.remove(at))
    }

    fn remove(&mut self, at: usize) -> T {
        let entry = self.entries.swap_remove(at);
        if at < self.entries.len() {
            self.down(at);
            self.up(at);
        }
        entry
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !O::before(&self.entries[at], &self.entries[parent]) {
                return;
            }
            self.entries.swap(at, parent);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.entries.len()
                    && O::before(&self.entries[child], &self.entries[least])
                {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.entries.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Less;
    impl Order<u8> for Less {
        fn before(a: &u8, b: &u8) -> bool {
            a < b
        }
    }

    proptest! {
        #[test]
        fn entries_leave_in_order(entries in prop::collection::vec(any::<u8>(), 0..200), gone in any::<u8>()) {
            let mut heap = Heap::<u8, Less>::new();
            heap.move_into(&mut Vec::with_capacity(entries.len()));
            entries.iter().for_each(|&e| heap.push(e));
            let mut left = entries;
            left.sort_unstable();
            if heap.take(|&e| e == gone).is_some() {
                let at = left.iter().position(|&e| e == gone).unwrap();
                left.remove(at);
            }
            for expected in left {
                prop_assert_eq!(heap.pop(), Some(expected));
            }
            prop_assert!(heap.is_empty());
        }
    }

    #[test]
    fn what_was_in_the_new_room_is_not_in_the_heap() {
        let mut heap = Heap::<u8, Less>::new();
        heap.push(3);
        let mut room = Vec::with_capacity(4);
        room.push(1);
        heap.move_into(&mut room);
        assert_eq!((heap.pop(), heap.pop(), room.len()), (Some(3), None, 0));
    }
}
