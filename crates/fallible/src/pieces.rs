//! A list that takes its memory in small pieces.

use alloc::vec::Vec;

/// Bytes of a piece: so much is had for certain.
const PIECE_BYTES: usize = 32 << 10;

/// A list that only grows, in pieces of at most 32 KiB: however long it becomes, its growth needs
/// no more memory in a row than the kernel has for certain (`docs/memory.md`). For lists that a
/// program makes long and that cannot be refused.
///
/// ```
/// let list: fallible::Pieces<u64> = (0..10_000).collect();
/// assert_eq!((list.len(), list.first()), (10_000, Some(&0)));
/// assert!(list.into_iter().eq(0..10_000));
/// ```
#[derive(Debug)]
pub struct Pieces<T> {
    /// The first piece, which most lists do not fill.
    first: Vec<T>,
    further: Vec<Vec<T>>,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self {
            first: Vec::new(),
            further: Vec::new(),
        }
    }
}

impl<T> Pieces<T> {
    /// Items of a full piece.
    const ITEMS: usize = {
        let items = PIECE_BYTES
            / if size_of::<T>() == 0 {
                1
            } else {
                size_of::<T>()
            };
        if items == 0 { 1 } else { items }
    };

    /// Puts an item behind the others.
    #[inline]
    pub fn push(&mut self, item: T) {
        if self.first.len() < Self::ITEMS {
            self.first.push(item);
        } else {
            self.push_further(item);
        }
    }

    #[cold]
    fn push_further(&mut self, item: T) {
        match self.further.last_mut() {
            Some(piece) if piece.len() < Self::ITEMS => piece.push(item),
            _ => {
                let mut piece = Vec::with_capacity(Self::ITEMS);
                piece.push(item);
                self.further.push(piece);
            }
        }
    }

    /// The items, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.further.iter().flatten())
    }

    /// The first item.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.first.first()
    }

    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() + self.further.iter().map(Vec::len).sum::<usize>()
    }

    /// Whether there is no item.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

impl<T: Clone> Pieces<T> {
    /// A copy of a slice.
    #[must_use]
    pub fn copy_of(items: &[T]) -> Self {
        let mut pieces = items.chunks(Self::ITEMS);
        Self {
            first: pieces.next().unwrap_or_default().to_vec(),
            further: pieces.map(<[T]>::to_vec).collect(),
        }
    }
}

impl<T> Extend<T> for Pieces<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

impl<T> FromIterator<T> for Pieces<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = Self::default();
        list.extend(items);
        list
    }
}

impl<T> IntoIterator for Pieces<T> {
    type Item = T;
    type IntoIter = core::iter::Chain<
        alloc::vec::IntoIter<T>,
        core::iter::Flatten<alloc::vec::IntoIter<Vec<T>>>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.first
            .into_iter()
            .chain(self.further.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_is_large() {
        let items: Vec<[u64; 4]> = (0..5000).map(|number| [number; 4]).collect();
        let mut list: Pieces<[u64; 4]> = items.iter().copied().collect();
        list.push([7; 4]);
        for list in [&list, &Pieces::copy_of(&[&items[..], &[[7; 4]]].concat())] {
            assert_eq!(list.len(), 5001);
            assert!(list.iter().take(5000).eq(&items));
            assert_eq!(list.iter().last(), Some(&[7; 4]));
            let pieces = [&list.first].into_iter().chain(&list.further);
            assert!(pieces.clone().count() > 4);
            assert!(
                pieces
                    .map(|piece| piece.len() * 32)
                    .all(|bytes| bytes <= PIECE_BYTES)
            );
        }
        assert!(Pieces::<u8>::default().is_empty() && Pieces::<u8>::copy_of(&[]).first().is_none());
    }
}
