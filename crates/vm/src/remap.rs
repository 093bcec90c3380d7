//! Growing, shrinking and moving what is mapped (`mremap(2)`).

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use task::WriteGuard;

use crate::range_lock::RangeLock;
use crate::small_vec::SmallVec;
use crate::space::{AddressSpace, MapRequest, Placement, SpaceState};
use crate::vma::{Prot, Vma, VmaFlags};
use crate::{PAGE_SIZE, Page, Perm, Unmapped, max_map_count, page_align_up, zero_page};

/// Options of [`AddressSpace::mremap`]: flags, target and limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemapOptions {
    /// The mapping may be placed elsewhere if there is no room (`MREMAP_MAYMOVE`).
    pub may_move: bool,
    /// The address to move to, whatever is there (`MREMAP_FIXED`).
    pub fixed_address: Option<usize>,
    /// The old place stays mapped, empty (`MREMAP_DONTUNMAP`).
    pub dont_unmap: bool,
    /// The most bytes by which it may grow.
    pub max_growth: usize,
    /// The most bytes that may be locked (`RLIMIT_MEMLOCK`).
    pub lock_limit: usize,
}

impl Default for RemapOptions {
    /// In place, and without limits.
    fn default() -> Self {
        Self {
            may_move: false,
            fixed_address: None,
            dont_unmap: false,
            max_growth: usize::MAX,
            lock_limit: usize::MAX,
        }
    }
}

impl AddressSpace {
    /// Changes the size or the place of a mapping; returns where it is.
    ///
    /// # Errors
    /// `EFAULT` if the old range is not one mapping (one that shrinks only has to begin with one),
    /// `ENOMEM`, `EINVAL`, `EAGAIN` for more than may be locked.
    pub fn mremap(
        &self,
        old: usize,
        old_len: usize,
        new_len: usize,
        how: RemapOptions,
    ) -> Result<usize, Errno> {
        // What is rounded up beyond the last address is nothing, as on Linux.
        let (old_len, new_len) = (
            page_align_up(old_len).unwrap_or(0),
            page_align_up(new_len).unwrap_or(0),
        );
        if !old.is_multiple_of(PAGE_SIZE) || new_len == 0 {
            return Err(Errno::EINVAL);
        }
        if old_len == 0 {
            return self.duplicate_mapping(old, new_len, how);
        }
        let from = Self::user_range(old, old_len).map_err(|_| Errno::EFAULT)?;
        let target = match how.fixed_address {
            None => None,
            Some(to) => {
                let overlaps =
                    |target: &Range<usize>| target.start < from.end && from.start < target.end;
                let target = Self::user_range(to, new_len)
                    .ok()
                    .filter(|target| to.is_multiple_of(PAGE_SIZE) && !overlaps(target));
                // Where nothing is mapped, Linux does not look at the target.
                if target.is_none() && self.state.read().vmas.find(old).is_some() {
                    return Err(Errno::EINVAL);
                }
                Some(target.ok_or(Errno::EFAULT)?)
            }
        };
        let mut state = self.write_state_of_both(&from, target.as_ref());
        let shrinks = target.is_none() && !how.dont_unmap && new_len <= old_len;
        let cuts = target.is_some() && new_len < old_len;
        let locked = match state.vmas.find(from.start) {
            // What is cut off may be more than one mapping, and holes.
            Some((_, area)) if shrinks || cuts || area.end >= from.end => {
                area.flags.contains(VmaFlags::LOCKED)
            }
            _ => return Err(Errno::EFAULT),
        };
        state.check_seals(&from)?;
        state.vmas.check_split(&from)?;
        // Linux: so many may be made on the way of a move.
        if state.vmas.len() + 3 >= max_map_count() {
            return Err(Errno::ENOMEM);
        }
        if let Some(target) = &target {
            state.check_seals(target)?;
            state.vmas.check_split(target)?;
        }
        if cuts {
            // What is cut off goes first; the rest moves as it is.
            self.unmap_range(state, old + new_len..from.end, |_| ());
            return self.mremap(old, new_len, new_len, how);
        }
        let grown = new_len.saturating_sub(old_len);
        if locked && grown > 0 && state.locked() + grown > how.lock_limit {
            return Err(Errno::EAGAIN);
        }
        let more = if how.dont_unmap { new_len } else { grown };
        if grown > how.max_growth || !self.may_expand(&state, more) {
            return Err(Errno::ENOMEM);
        }
        if shrinks {
            let rest = old + new_len..from.end;
            if !rest.is_empty() {
                self.unmap_range(state, rest, |_| ());
            }
            return Ok(old);
        }
        if target.is_none() && !how.dont_unmap {
            if let Ok(room) = Self::user_range(from.end, more)
                && state.vmas.is_free(room.clone())
            {
                state.vmas.grow_up(old, room.end);
                state.size += more;
                return Ok(old);
            }
            if !how.may_move {
                return Err(Errno::ENOMEM);
            }
        }
        let (to, parts) = match target {
            Some(target) => (target.start, state.populated_parts(&target)),
            None => (
                self.find_unmapped_range(&mut state, 0, new_len)?,
                SmallVec::default(),
            ),
        };
        let claims = [
            self.lock_range(&mut state, from.clone()),
            self.lock_range(&mut state, to..to + new_len),
        ];
        if state.vmas.is_free(to..to + new_len) {
            // Keeps others from placing something there.
            state.vmas.insert(
                to,
                Vma::new(to + new_len, Prot::empty(), VmaFlags::empty(), None),
            );
            state.size += new_len;
        }
        drop(state);
        for (part, shared) in parts {
            self.zap_pages(part, shared);
        }
        self.move_pages(claims, from, to..to + new_len, how.dont_unmap);
        Ok(to)
    }

    /// Maps what is at `old` a second time: an old length of 0.
    fn duplicate_mapping(&self, old: usize, len: usize, how: RemapOptions) -> Result<usize, Errno> {
        let place = how
            .fixed_address
            .map_or(Placement::Anywhere(0), Placement::Fixed);
        let request = {
            let state = self.state.read();
            let (start, area) = state.vmas.find(old).ok_or(Errno::EFAULT)?;
            let area = area.split_tail(old - start);
            let source = area
                .mapped
                .filter(|_| area.flags.contains(VmaFlags::SHARED))
                .ok_or(Errno::EINVAL)?;
            if !how.may_move {
                return Err(Errno::ENOMEM);
            }
            MapRequest {
                placement: place,
                len,
                prot: area.prot,
                flags: area.flags,
                object: Some((source.object, source.page_offset)),
            }
        };
        self.mmap(request)
    }

    /// Has a shared mapping show other pages of what it maps, from page `first` on
    /// (`remap_file_pages(2)`).
    ///
    /// # Errors
    /// `EINVAL` if the range is not of one shared mapping; those of `mmap`.
    pub fn remap_file_pages(&self, start: usize, len: usize, first: u64) -> Result<(), Errno> {
        let range = Self::page_range_unbounded(start, len)?;
        let request = {
            let state = self.read_state(&range);
            let (_, area) = state.vmas.find(start).ok_or(Errno::EINVAL)?;
            let source = area
                .mapped
                .as_ref()
                .filter(|_| area.is_shared())
                .ok_or(Errno::EINVAL)?;
            let same = |other: &Vma| {
                let object = other
                    .mapped
                    .as_ref()
                    .is_some_and(|s| alloc::sync::Arc::ptr_eq(&s.object, &source.object));
                object && other.flags == area.flags && other.prot == area.prot
            };
            if !state.vmas.covers(range.clone())
                || !state.vmas.iter_range(range).all(|(_, other)| same(other))
            {
                return Err(Errno::EINVAL);
            }
            let object = Some((source.object.clone(), first));
            MapRequest {
                placement: Placement::Fixed(start),
                len,
                prot: area.prot,
                flags: area.flags,
                object,
            }
        };
        self.mmap(request).map(drop)
    }

    /// The areas, to change them in two ranges that do not overlap.
    fn write_state_of_both(
        &self,
        from: &Range<usize>,
        target: Option<&Range<usize>>,
    ) -> WriteGuard<'_, SpaceState> {
        loop {
            let state = self.write_state(from);
            match target {
                Some(target) if state.range_locks.overlaps(target) => {
                    drop(state);
                    self.wait_range_unlocked(target);
                }
                _ => return state,
            }
        }
    }

    /// Moves what is in `from`, a part of one area, to `to`, where no page is. Both are claimed.
    fn move_pages(
        &self,
        [source, target]: [RangeLock<'_>; 2],
        from: Range<usize>,
        to: Range<usize>,
        keep: bool,
    ) {
        let moved = from.start..from.start + from.len().min(to.len());
        let there = |va: usize| va - from.start + to.start;
        let Some(area) = self
            .state
            .read()
            .vmas
            .find(from.start)
            .map(|(start, area)| area.split_tail(from.start - start))
        else {
            return;
        };
        let shared = area.is_shared();
        let mut gone: Vec<(usize, Unmapped)> = Vec::new();
        self.table
            .unmap_range(moved.clone(), &mut |va, page| gone.push((va, page)));
        self.zap_pages(moved.end..from.end, shared);
        for (va, page) in self.inaccessible.remove_range(&moved) {
            self.inaccessible.insert(there(va), page);
        }
        for (va, page) in gone {
            match page {
                Unmapped::Page(page) => self.remap_page(&area, there(va), page),
                Unmapped::Large(page) => self.remap_large_page(&area, there(va), page),
            }
        }
        let replaced = target.release_with(|state| {
            let replaced = state.remove_vmas(to.clone());
            state.vmas.insert(
                to.start,
                Vma {
                    end: to.end,
                    ..area
                },
            );
            state.size += to.len();
            replaced
        });
        let left = source.release_with(|state| {
            if keep {
                SmallVec::default()
            } else {
                state.remove_vmas(from)
            }
        });
        drop((replaced, left));
    }
    /// Maps a page that was taken out of the table, at `va`, which is claimed and empty.
    pub(crate) fn remap_page(&self, area: &Vma, va: usize, page: Page) {
        let write = area.prot.contains(Prot::WRITE) && (area.is_shared() || page.refs() == 1);
        let perm = Perm {
            write,
            exec: area.prot.contains(Prot::EXEC),
        };
        let spare = page.clone();
        if self.table.map(va, page, perm).is_err() && !zero_page::is_zero_page(&spare) {
            self.present_counter(area.is_shared())
                .fetch_sub(1, Ordering::Relaxed);
            if !area.is_shared() {
                // No table: the page waits for the fault that asks for it.
                self.inaccessible.insert(va, spare);
            }
        }
    }
}
