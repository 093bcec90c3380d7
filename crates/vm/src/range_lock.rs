//! Range locks of an address space.
//!
//! The areas are under a read-write lock that is held for interval arithmetic, and by a fault for
//! the one page it brings in: never while a file is read, nor while other CPUs forget translations.
//! An operation that changes pages in between *claims* its range first: whoever wants something
//! that overlaps it waits, everybody else goes on.

use alloc::vec::Vec;
use core::ops::Range;

use task::{ReadGuard, WriteGuard};

use crate::space::{AddressSpace, SpaceState};

/// The ranges of an address space that operations in progress have locked; they do not overlap.
#[derive(Default)]
pub(crate) struct RangeLocks {
    held: Vec<Range<usize>>,
}

impl RangeLocks {
    /// Whether somebody else's operation is going on in a part of `range`.
    #[inline]
    pub(crate) fn overlaps(&self, range: &Range<usize>) -> bool {
        !self.held.is_empty()
            && self
                .held
                .iter()
                .any(|held| held.start < range.end && range.start < held.end)
    }

    fn release(&mut self, range: &Range<usize>) {
        if let Some(at) = self.held.iter().position(|held| held == range) {
            self.held.swap_remove(at);
        }
    }
}

/// A locked range of an address space: nobody else changes it, nor faults in it, until this is
/// dropped.
#[must_use = "the range is free again as soon as this is dropped"]
pub(crate) struct RangeLock<'a> {
    space: &'a AddressSpace,
    range: Range<usize>,
}

impl<'a> RangeLock<'a> {
    /// Ends the claim with a last change of the areas, which is seen together with the end.
    pub(crate) fn release_with<R>(self, change: impl FnOnce(&mut SpaceState) -> R) -> R {
        let mut state = self.space.state.write();
        let result = change(&mut state);
        state.range_locks.release(&self.range);
        drop(state);
        self.space.range_unlocked.wake_all();
        core::mem::forget(self);
        result
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        self.space.state.write().range_locks.release(&self.range);
        self.space.range_unlocked.wake_all();
    }
}

impl AddressSpace {
    /// The areas, to look at `range`: nobody is in the middle of changing it.
    #[inline(always)]
    pub(crate) fn read_state(&self, range: &Range<usize>) -> ReadGuard<'_, SpaceState> {
        loop {
            let state = self.state.read();
            if !state.range_locks.overlaps(range) {
                return state;
            }
            drop(state);
            self.wait_range_unlocked(range);
        }
    }

    /// The areas, to change them in `range`: nobody else is in the middle of that.
    #[inline(always)]
    pub(crate) fn write_state(&self, range: &Range<usize>) -> WriteGuard<'_, SpaceState> {
        loop {
            let state = self.state.write();
            if !state.range_locks.overlaps(range) {
                return state;
            }
            drop(state);
            self.wait_range_unlocked(range);
        }
    }

    /// Takes `range`, in which `state` has no claims.
    pub(crate) fn lock_range(&self, state: &mut SpaceState, range: Range<usize>) -> RangeLock<'_> {
        state.range_locks.held.push(range.clone());
        RangeLock { space: self, range }
    }

    /// Waits until nobody is in the middle of changing `range`.
    #[cold]
    pub(crate) fn wait_range_unlocked(&self, range: &Range<usize>) {
        self.range_unlocked
            .wait(|| (!self.state.read().range_locks.overlaps(range)).then_some(()));
    }
}
