//! Range locks of an address space.
//!
//! The areas are under a read-write lock that is held for interval arithmetic, and by a fault for the one page it brings in: never
//! while a file is read, nor while other CPUs forget translations. An operation that changes pages in between *claims* its range
//! first: whoever wants something that overlaps it waits, everybody else goes on.

use alloc::vec::Vec;
use core::ops::Range;

use task::{ReadGuard, WriteGuard};

use crate::space::{AddressSpace, State};

/// The ranges that operations in progress have for themselves; they do not overlap.
#[derive(Default)]
pub(crate) struct Claims {
    held: Vec<Range<usize>>,
}

impl Claims {
    /// Whether somebody else's operation is going on in a part of `range`.
    #[inline]
    pub(crate) fn overlap(&self, range: &Range<usize>) -> bool {
        !self.held.is_empty() && self.held.iter().any(|held| held.start < range.end && range.start < held.end)
    }

    fn give_back(&mut self, range: &Range<usize>) {
        if let Some(at) = self.held.iter().position(|held| held == range) {
            self.held.swap_remove(at);
        }
    }
}

/// A range that nobody else changes, nor faults in, until this is dropped.
#[must_use = "the range is free again as soon as this is dropped"]
pub(crate) struct Claim<'a> {
    space: &'a AddressSpace,
    range: Range<usize>,
}

impl<'a> Claim<'a> {
    /// Ends the claim with a last change of the areas, which is seen together with the end.
    pub(crate) fn finish<R>(self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.space.state.write();
        let result = change(&mut state);
        state.claims.give_back(&self.range);
        drop(state);
        self.space.settled.wake_all();
        core::mem::forget(self);
        result
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.space.state.write().claims.give_back(&self.range);
        self.space.settled.wake_all();
    }
}

impl AddressSpace {
    /// The areas, to look at `range`: nobody is in the middle of changing it.
    #[inline(always)]
    pub(crate) fn look(&self, range: &Range<usize>) -> ReadGuard<'_, State> {
        loop {
            let state = self.state.read();
            if !state.claims.overlap(range) {
                return state;
            }
            drop(state);
            self.settle(range);
        }
    }

    /// The areas, to change them in `range`: nobody else is in the middle of that.
    pub(crate) fn change(&self, range: &Range<usize>) -> WriteGuard<'_, State> {
        loop {
            let state = self.state.write();
            if !state.claims.overlap(range) {
                return state;
            }
            drop(state);
            self.settle(range);
        }
    }

    /// Takes `range`, in which `state` has no claims.
    pub(crate) fn claim(&self, state: &mut State, range: Range<usize>) -> Claim<'_> {
        state.claims.held.push(range.clone());
        Claim { space: self, range }
    }

    /// Waits until nobody is in the middle of changing `range`.
    #[cold]
    pub(crate) fn settle(&self, range: &Range<usize>) {
        self.settled.wait(|| (!self.state.read().claims.overlap(range)).then_some(()));
    }
}
