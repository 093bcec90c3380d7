//! What a program says about its memory: advice, locks, questions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use abi::errno::Errno;

use crate::object::Object;
use crate::space::{AddressSpace, SpaceState};
use crate::vma::{Prot, Vma, VmaFlags};
use crate::{AccessKind, PAGE_SIZE, zero_page};

/// Advice of `madvise(2)` that changes something. Everything else it says is heard and not needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Give the pages back now; private ones read as zeros (or the file) afterwards.
    DontNeed(DontNeedScope),
    /// Set these flags and clear those.
    Flags(VmaFlags, VmaFlags),
}

/// Scope of [`Advice::DontNeed`]: which pages of the range are given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DontNeedScope {
    /// Everything.
    IncludingLocked,
    /// Memory that is not locked.
    Unlocked,
    /// Private memory that is not locked and that no file is behind.
    PrivateAnonymous,
}

impl SpaceState {
    /// Bytes locked.
    pub(crate) fn locked(&self) -> usize {
        let locked = self
            .vmas
            .iter()
            .filter(|(_, area)| area.flags.contains(VmaFlags::LOCKED));
        locked.map(|(start, area)| area.end - start).sum()
    }
}

impl AddressSpace {
    /// Takes advice about a range.
    ///
    /// # Errors
    /// `ENOMEM` if something there is not mapped (the rest is done), `EINVAL`, also for dropping
    /// what is locked (what comes before is done).
    pub fn madvise(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        let mut state = self.write_state(&range);
        let whole = state.vmas.covers(range.clone());
        match advice {
            Advice::DontNeed(drops) => {
                let kept = |area: &Vma| match drops {
                    DontNeedScope::IncludingLocked => false,
                    DontNeedScope::Unlocked => area.flags.contains(VmaFlags::LOCKED),
                    DontNeedScope::PrivateAnonymous => {
                        area.flags.contains(VmaFlags::LOCKED)
                            || area.mapped.is_some()
                            || area.is_shared()
                    }
                };
                let end = state
                    .vmas
                    .iter_range(range.clone())
                    .find(|(_, area)| kept(area))
                    .map(|(part, _)| part.start);
                let range = range.start..end.unwrap_or(range.end);
                state.check_seals_for_discard(&range)?;
                let parts = state.populated_parts(&range);
                let claim = self.lock_range(&mut state, range);
                drop(state);
                for (part, shared) in parts {
                    self.zap_pages(part, shared);
                }
                drop(claim);
                if end.is_some() {
                    return Err(Errno::EINVAL);
                }
            }
            Advice::Flags(set, clear) => {
                if set.intersects(VmaFlags::DONTFORK | VmaFlags::WIPEONFORK) {
                    state.check_seals_for_discard(&range)?;
                }
                // Nobody else sees memory that can be wiped. What comes before other memory is
                // done.
                let wipes = set.contains(VmaFlags::WIPEONFORK);
                let shown = |area: &Vma| area.mapped.is_some() || area.is_shared();
                let end = state
                    .vmas
                    .iter_range(range.clone())
                    .find(|(_, area)| wipes && shown(area))
                    .map(|(part, _)| part.start);
                let changed = range.start..end.unwrap_or(range.end);
                state.vmas.check_split(&changed)?;
                state
                    .vmas
                    .update(changed, |area| area.flags = (area.flags | set) - clear);
                if end.is_some() {
                    return Err(Errno::EINVAL);
                }
            }
        }
        if whole { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Remembers for a range of pages where its memory is to come from, a word that means something
    /// to the caller only. Of a range `with_holes` something has to be mapped, otherwise
    /// everything.
    ///
    /// # Errors
    /// `EFAULT` if that is not mapped, `EINVAL`.
    pub fn set_mempolicy(
        &self,
        addr: usize,
        len: usize,
        policy: u64,
        with_holes: bool,
    ) -> Result<(), Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        let mut state = self.write_state(&range);
        let there = if with_holes {
            !state.vmas.is_free(range.clone())
        } else {
            state.vmas.covers(range.clone())
        };
        if !there {
            return Err(Errno::EFAULT);
        }
        state.vmas.check_split(&range)?;
        state.vmas.update(range, |area| area.policy = policy);
        Ok(())
    }

    /// Memory policies in a range, one for each area.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn mempolicies(&self, addr: usize, len: usize) -> Result<Vec<u64>, Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        Ok(self
            .read_state(&range)
            .vmas
            .iter_range(range.clone())
            .map(|(_, area)| area.policy)
            .collect())
    }

    /// Gives the anonymous memory in a range a name, or (`None`) takes it away.
    ///
    /// # Errors
    /// `ENOMEM` if something there is not mapped (the rest is done), `EBADF` for what is not
    /// anonymous (what comes before is done), `EINVAL`.
    pub fn set_anon_name(
        &self,
        addr: usize,
        len: usize,
        name: Option<&Arc<[u8]>>,
    ) -> Result<(), Errno> {
        let range = Self::page_range(addr, len)?;
        let mut state = self.write_state(&range);
        state.vmas.check_split(&range)?;
        let whole = state.vmas.covers(range.clone());
        let end = state
            .vmas
            .iter_range(range.clone())
            .find(|(_, area)| area.mapped.is_some())
            .map(|(part, _)| part.start);
        let named = range.start..end.unwrap_or(range.end);
        state.vmas.update(named, |area| area.name = name.cloned());
        match end {
            Some(_) => Err(Errno::EBADF),
            None if whole => Ok(()),
            None => Err(Errno::ENOMEM),
        }
    }

    /// Has the objects of shared mappings forget what they have in a range (`MADV_REMOVE`).
    ///
    /// # Errors
    /// `EINVAL` for what is no object's or locked, `EACCES` for what is private or may not be
    /// written to, the object's; `ENOMEM` if something is not mapped (the rest is done).
    pub fn punch_shared(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        let mut holes = Vec::new();
        let whole;
        {
            let state = self.read_state(&range);
            whole = state.vmas.covers(range.clone());
            for (part, area) in state.vmas.iter_range(range) {
                let source = area
                    .mapped
                    .as_ref()
                    .filter(|_| !area.flags.contains(VmaFlags::LOCKED));
                let (source, (start, _)) = source
                    .zip(state.vmas.find(part.start))
                    .ok_or(Errno::EINVAL)?;
                if !area.is_shared() || !area.prot.contains(Prot::WRITE) {
                    return Err(Errno::EACCES);
                }
                let first = source.page_offset + ((part.start - start) / PAGE_SIZE) as u64;
                holes.push((
                    source.object.clone(),
                    first..first + (part.len() / PAGE_SIZE) as u64,
                ));
            }
        }
        holes
            .into_iter()
            .try_for_each(|(object, pages)| object.backing.punch_hole(pages))?;
        if whole { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Whether a program has asked for the right to touch everything in a range so; it is mapped.
    /// What comes first counts. That the processor reads whatever it may write is no such right.
    ///
    /// # Errors
    /// `ENOMEM` if something is not mapped, `EINVAL` if it may not.
    pub fn check_access(&self, addr: usize, len: usize, access: AccessKind) -> Result<(), Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        let state = self.read_state(&range);
        let refused = state
            .vmas
            .iter_range(range.clone())
            .find(|(_, area)| {
                let unasked = access == AccessKind::Read && !area.prot.contains(Prot::READ);
                unasked || !access.allowed(area.prot)
            })
            .map(|(part, _)| part.start);
        if !state.vmas.covers(range.start..refused.unwrap_or(range.end)) {
            return Err(Errno::ENOMEM);
        }
        if refused.is_none() {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Whether everything in a range is mapped; the range must be page-aligned.
    ///
    /// # Errors
    /// `ENOMEM` if not, `EINVAL`.
    pub fn check_mapped(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        if self.state.read().vmas.covers(range) {
            Ok(())
        } else {
            Err(Errno::ENOMEM)
        }
    }

    /// Brings what was written to the files that are mapped in a range, as shared memory, to the
    /// medium (`MS_SYNC`).
    ///
    /// # Errors
    /// `ENOMEM` if a part is not mapped, or there are too many files; the devices'.
    pub fn sync_range(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        let mut objects: Vec<Arc<Object>> = Vec::new();
        let is_covered = {
            let state = self.state.read();
            for (_, area) in state.vmas.iter_range(range.clone()) {
                let source = area.mapped.as_ref().filter(|_| area.notes_writes());
                if let Some(source) = source
                    && !objects
                        .last()
                        .is_some_and(|last| Arc::ptr_eq(&last.backing, &source.object.backing))
                {
                    fallible::push(&mut objects, source.object.clone())?;
                }
            }
            state.vmas.covers(range)
        };
        for object in objects {
            object.backing.sync()?;
        }
        if is_covered {
            Ok(())
        } else {
            Err(Errno::ENOMEM)
        }
    }

    /// For each page of a range, up to the first that is not mapped, whether it is present
    /// (`mincore(2)`).
    ///
    /// # Errors
    /// `ENOMEM` if nothing can be mapped there, `EINVAL`.
    pub fn mincore(&self, addr: usize, len: usize) -> Result<Vec<u8>, Errno> {
        let range = Self::page_range(addr, len).map_err(|e| {
            if addr.is_multiple_of(PAGE_SIZE) {
                Errno::ENOMEM
            } else {
                e
            }
        })?;
        let state = self.read_state(&range);
        let there = |va: usize| self.table.get(va).is_some() || self.inaccessible.contains(va);
        let at_hand = |start: usize, area: &Vma, va: usize| {
            let index = |first: u64| first + ((va - start) / PAGE_SIZE) as u64;
            area.mapped
                .as_ref()
                .is_some_and(|s| s.object.backing.cached(index(s.page_offset)).is_some())
        };
        let mut pages = Vec::new();
        let mut covered = range.start;
        for (part, _) in state.vmas.iter_range(range) {
            if part.start != covered {
                break;
            }
            covered = part.end;
            if let Some((start, area)) = state.vmas.find(part.start) {
                // A file's pages count as soon as the file has them.
                pages.extend(
                    part.step_by(PAGE_SIZE)
                        .map(|va| u8::from(there(va) || at_hand(start, area, va))),
                );
            }
        }
        Ok(pages)
    }

    /// Whether the table shows a page at an address other than that of zeros, or keeps one for it.
    ///
    /// # Errors
    /// `EFAULT` if nothing is mapped, or there is no page and no object that could have one.
    pub fn is_page_present(&self, addr: usize) -> Result<bool, Errno> {
        let page = crate::page_align_down(addr);
        let state = self.read_state(&(page..page.saturating_add(PAGE_SIZE)));
        let (_, area) = state.vmas.find(page).ok_or(Errno::EFAULT)?;
        let there = self
            .table
            .get(page)
            .is_some_and(|(page, ..)| !zero_page::is_zero_page(&page))
            || self.inaccessible.contains(page);
        if there || area.mapped.is_some() {
            Ok(there)
        } else {
            Err(Errno::EFAULT)
        }
    }

    /// Locks a range, of whole pages, and brings its pages in unless `on_fault`. `limit`: the most
    /// bytes that may be locked (`RLIMIT_MEMLOCK`).
    ///
    /// # Errors
    /// `ENOMEM` beyond the limit, or if something there is not mapped or cannot be brought in (it
    /// is locked then); `EINVAL`.
    pub fn mlock(
        &self,
        addr: usize,
        len: usize,
        limit: usize,
        on_fault: bool,
    ) -> Result<(), Errno> {
        let range = Self::page_range(addr, len)?;
        {
            let mut state = self.write_state(&range);
            let new = state
                .vmas
                .iter_range(range.clone())
                .filter(|(_, area)| !area.flags.contains(VmaFlags::LOCKED));
            let new: usize = new.map(|(part, _)| part.len()).sum();
            if state.locked() + new > limit {
                return Err(Errno::ENOMEM);
            }
            let whole = state.vmas.covers(range.clone());
            state.vmas.check_split(&range)?;
            state
                .vmas
                .update(range.clone(), |area| area.flags |= VmaFlags::LOCKED);
            if !whole {
                return Err(Errno::ENOMEM);
            }
        }
        if on_fault {
            Ok(())
        } else {
            self.try_fault_in(&range).map_err(|_| Errno::ENOMEM)
        }
    }

    /// Locks all there is (`current`), and all that comes (`future`).
    ///
    /// # Errors
    /// `ENOMEM` beyond the limit.
    pub fn mlockall(
        &self,
        current: bool,
        future: bool,
        limit: usize,
        on_fault: bool,
    ) -> Result<(), Errno> {
        let all = 0..usize::MAX;
        {
            let mut state = self.write_state(&all);
            if current {
                if state.size > limit {
                    return Err(Errno::ENOMEM);
                }
                state
                    .vmas
                    .update(all.clone(), |area| area.flags |= VmaFlags::LOCKED);
            }
            self.mlock_future.store(future, Ordering::Relaxed);
        }
        if current && !on_fault {
            self.fault_in(&all);
        }
        Ok(())
    }

    /// Ends all locks, also of what comes.
    pub fn munlockall(&self) {
        let all = 0..usize::MAX;
        let mut state = self.write_state(&all);
        self.mlock_future.store(false, Ordering::Relaxed);
        state
            .vmas
            .update(all, |area| area.flags -= VmaFlags::LOCKED);
    }

    /// Whether `more` bytes can be locked.
    #[must_use]
    pub fn can_mlock(&self, more: usize, limit: usize) -> bool {
        self.state.read().locked().saturating_add(more) <= limit
    }

    /// Whether new mappings are locked.
    #[must_use]
    pub fn is_mlock_future(&self) -> bool {
        self.mlock_future.load(Ordering::Relaxed)
    }

    /// Whether something in a page-aligned range is locked.
    #[must_use]
    pub fn has_locked(&self, addr: usize, len: usize) -> bool {
        let state = self.state.read();
        Self::page_range_unbounded(addr, len).is_ok_and(|range| {
            state
                .vmas
                .iter_range(range)
                .any(|(_, area)| area.flags.contains(VmaFlags::LOCKED))
        })
    }

    /// Brings in what may be touched in a range: private writable pages as the program's own. What
    /// cannot be had is left out, as on Linux.
    pub fn fault_in(&self, range: &Range<usize>) {
        for (part, access) in self.fault_in_parts(range) {
            let _ = access.map(|access| self.populate(part.start, part.len(), access));
        }
    }

    /// The same up to the first page that cannot be had.
    fn try_fault_in(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.fault_in_parts(range)
            .into_iter()
            .try_for_each(|(part, access)| {
                self.populate(part.start, part.len(), access.ok_or(Errno::EFAULT)?)
            })
    }

    /// The parts of areas in a range, with how they are touched to be there; `None`: they may not
    /// be touched.
    fn fault_in_parts(&self, range: &Range<usize>) -> Vec<(Range<usize>, Option<AccessKind>)> {
        let access = |area: &Vma| match area.prot {
            none if none.is_empty() => None,
            prot if prot.contains(Prot::WRITE) && !area.is_shared() => Some(AccessKind::Write),
            _ => Some(AccessKind::Read),
        };
        self.state
            .read()
            .vmas
            .iter_range(range.clone())
            .map(|(part, area)| (part, access(area)))
            .collect()
    }
}
