//! Growing, shrinking and moving what is mapped (`mremap(2)`).

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use task::WriteGuard;

use crate::area::{Area, AreaFlags, Prot};
use crate::claim::Claim;
use crate::few::Few;
use crate::space::{AddressSpace, Mapping, Placement, State};
use crate::{PAGE_SIZE, Page, Perm, Unmapped, page_up, zero};

/// How `mremap` may go about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remap {
    /// The mapping may be placed elsewhere if there is no room (`MREMAP_MAYMOVE`).
    pub may_move: bool,
    /// It goes here, whatever is there (`MREMAP_FIXED`).
    pub to: Option<usize>,
    /// The old place stays mapped, empty (`MREMAP_DONTUNMAP`).
    pub keep: bool,
    /// The most bytes by which it may grow.
    pub most: usize,
    /// The most bytes that may be locked (`RLIMIT_MEMLOCK`).
    pub lock_limit: usize,
}

impl Default for Remap {
    /// In place, and without limits.
    fn default() -> Self {
        Self { may_move: false, to: None, keep: false, most: usize::MAX, lock_limit: usize::MAX }
    }
}

impl AddressSpace {
    /// Changes the size or the place of a mapping; returns where it is.
    ///
    /// # Errors
    /// `EFAULT` if the old range is not one mapping (one that shrinks only has to begin with one), `ENOMEM`, `EINVAL`, `EAGAIN` for more than
    /// may be locked.
    pub fn mremap(&self, old: usize, old_len: usize, new_len: usize, how: Remap) -> Result<usize, Errno> {
        // What is rounded up beyond the last address is nothing, as on Linux.
        let (old_len, new_len) = (page_up(old_len).unwrap_or(0), page_up(new_len).unwrap_or(0));
        if !old.is_multiple_of(PAGE_SIZE) || new_len == 0 {
            return Err(Errno::EINVAL);
        }
        if old_len == 0 {
            return self.map_again(old, new_len, how);
        }
        let from = Self::user_range(old, old_len).map_err(|_| Errno::EFAULT)?;
        let target = match how.to {
            None => None,
            Some(to) => {
                let target = Self::user_range(to, new_len).map_err(|_| Errno::EINVAL)?;
                if !to.is_multiple_of(PAGE_SIZE) || (target.start < from.end && from.start < target.end) {
                    return Err(Errno::EINVAL);
                }
                Some(target)
            }
        };
        let mut state = self.change_both(&from, target.as_ref());
        let shrinks = target.is_none() && !how.keep && new_len <= old_len;
        let cuts = target.is_some() && new_len < old_len;
        let locked = match state.areas.find(from.start) {
            // What is cut off may be more than one mapping, and holes.
            Some((_, area)) if shrinks || cuts || area.end >= from.end => area.flags.contains(AreaFlags::LOCKED),
            _ => return Err(Errno::EFAULT),
        };
        state.check_seals(&from)?;
        if let Some(target) = &target {
            state.check_seals(target)?;
        }
        if cuts {
            // What is cut off goes first; the rest moves as it is.
            self.clear(state, old + new_len..from.end, |_| ());
            return self.mremap(old, new_len, new_len, how);
        }
        let grown = new_len.saturating_sub(old_len);
        if locked && grown > 0 && state.locked() + grown > how.lock_limit {
            return Err(Errno::EAGAIN);
        }
        let more = if how.keep { new_len } else { grown };
        if grown > how.most || !self.has_room(&state, more) {
            return Err(Errno::ENOMEM);
        }
        if shrinks {
            let rest = old + new_len..from.end;
            if !rest.is_empty() {
                self.clear(state, rest, |_| ());
            }
            return Ok(old);
        }
        if target.is_none() && !how.keep {
            if let Ok(room) = Self::user_range(from.end, more)
                && state.areas.is_free(room.clone())
            {
                state.areas.grow_up(old, room.end);
                state.size += more;
                return Ok(old);
            }
            if !how.may_move {
                return Err(Errno::ENOMEM);
            }
        }
        let (to, parts) = match target {
            Some(target) => (target.start, state.parts(&target)),
            None => (self.place(&mut state, 0, new_len)?, Few::default()),
        };
        let claims = [self.claim(&mut state, from.clone()), self.claim(&mut state, to..to + new_len)];
        if state.areas.is_free(to..to + new_len) {
            // Keeps others from placing something there.
            state.areas.insert(to, Area::new(to + new_len, Prot::empty(), AreaFlags::empty(), None));
            state.size += new_len;
        }
        drop(state);
        for (part, shared) in parts {
            self.drop_pages(part, shared);
        }
        self.relocate(claims, from, to..to + new_len, how.keep);
        Ok(to)
    }

    /// Maps what is at `old` a second time: an old length of 0.
    fn map_again(&self, old: usize, len: usize, how: Remap) -> Result<usize, Errno> {
        let place = how.to.map_or(Placement::Anywhere(0), Placement::Fixed);
        let request = {
            let state = self.state.read();
            let (start, area) = state.areas.find(old).ok_or(Errno::EFAULT)?;
            let area = area.tail(old - start);
            let source = area.source.filter(|_| area.flags.contains(AreaFlags::SHARED)).ok_or(Errno::EINVAL)?;
            if !how.may_move {
                return Err(Errno::ENOMEM);
            }
            Mapping { place, len, prot: area.prot, flags: area.flags, object: Some((source.object, source.first)) }
        };
        self.mmap(request)
    }

    /// Has a shared mapping show other pages of what it maps, from page `first` on (`remap_file_pages(2)`).
    ///
    /// # Errors
    /// `EINVAL` if the range is not of one shared mapping; those of `mmap`.
    pub fn show_pages(&self, start: usize, len: usize, first: u64) -> Result<(), Errno> {
        let range = Self::wide_range(start, len)?;
        let request = {
            let state = self.look(&range);
            let (_, area) = state.areas.find(start).ok_or(Errno::EINVAL)?;
            let source = area.source.as_ref().filter(|_| area.shared()).ok_or(Errno::EINVAL)?;
            let same = |other: &Area| {
                let object = other.source.as_ref().is_some_and(|s| alloc::sync::Arc::ptr_eq(&s.object, &source.object));
                object && other.flags == area.flags && other.prot == area.prot
            };
            if !state.areas.covers(range.clone()) || !state.areas.within(range).all(|(_, other)| same(other)) {
                return Err(Errno::EINVAL);
            }
            let object = Some((source.object.clone(), first));
            Mapping { place: Placement::Fixed(start), len, prot: area.prot, flags: area.flags, object }
        };
        self.mmap(request).map(drop)
    }

    /// The areas, to change them in two ranges that do not overlap.
    fn change_both(&self, from: &Range<usize>, target: Option<&Range<usize>>) -> WriteGuard<'_, State> {
        loop {
            let state = self.change(from);
            match target {
                Some(target) if state.claims.overlap(target) => {
                    drop(state);
                    self.settle(target);
                }
                _ => return state,
            }
        }
    }

    /// Moves what is in `from`, a part of one area, to `to`, where no page is. Both are claimed.
    fn relocate(&self, [source, target]: [Claim<'_>; 2], from: Range<usize>, to: Range<usize>, keep: bool) {
        let moved = from.start..from.start + from.len().min(to.len());
        let there = |va: usize| va - from.start + to.start;
        let Some(area) = self.state.read().areas.find(from.start).map(|(start, area)| area.tail(from.start - start)) else {
            return;
        };
        let shared = area.shared();
        let mut gone: Vec<(usize, Unmapped)> = Vec::new();
        self.table.unmap_range(moved.clone(), &mut |va, page| gone.push((va, page)));
        self.drop_pages(moved.end..from.end, shared);
        for (va, page) in self.parked.take_range(&moved) {
            self.parked.insert(there(va), page);
        }
        for (va, page) in gone {
            match page {
                Unmapped::Page(page) => self.put_back(&area, there(va), page),
                Unmapped::Large(page) => self.put_large_back(&area, there(va), page),
            }
        }
        let replaced = target.finish(|state| {
            let replaced = state.forget(to.clone());
            state.areas.insert(to.start, Area { end: to.end, ..area });
            state.size += to.len();
            replaced
        });
        let left = source.finish(|state| if keep { Few::default() } else { state.forget(from) });
        drop((replaced, left));
    }
    /// Maps a page that was taken out of the table, at `va`, which is claimed and empty.
    pub(crate) fn put_back(&self, area: &Area, va: usize, page: Page) {
        let write = area.prot.contains(Prot::WRITE) && (area.shared() || page.refs() == 1);
        let perm = Perm { write, exec: area.prot.contains(Prot::EXEC) };
        let spare = page.clone();
        if self.table.map(va, page, perm).is_err() && !zero::is(&spare) {
            self.present(area.shared()).fetch_sub(1, Ordering::Relaxed);
            if !area.shared() {
                // No table: the page waits for the fault that asks for it.
                self.parked.insert(va, spare);
            }
        }
    }
}
