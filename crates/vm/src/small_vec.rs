//! A list that is nearly always of one element, and takes no memory from the heap then. It may be
//! one of all areas of a program, which cannot be refused.

use fallible::Pieces;

pub(crate) struct SmallVec<T> {
    first: Option<T>,
    rest: Pieces<T>,
}

impl<T> Default for SmallVec<T> {
    fn default() -> Self {
        Self {
            first: None,
            rest: Pieces::default(),
        }
    }
}

impl<T> SmallVec<T> {
    #[inline]
    pub(crate) fn push(&mut self, element: T) {
        if self.first.is_none() {
            self.first = Some(element);
        } else {
            self.rest.push(element);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.rest.iter())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl<T> IntoIterator for SmallVec<T> {
    type Item = T;
    type IntoIter =
        core::iter::Chain<core::option::IntoIter<T>, <Pieces<T> as IntoIterator>::IntoIter>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}

impl<T> FromIterator<T> for SmallVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut few = Self::default();
        elements.into_iter().for_each(|element| few.push(element));
        few
    }
}
