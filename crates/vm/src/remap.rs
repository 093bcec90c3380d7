//! Growing, shrinking and moving what is mapped (`mremap(2)`).

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use abi::errno::Errno;

use crate::area::{Area, Prot};
use crate::space::{AddressSpace, State};
use crate::{PAGE_SIZE, Page, Perm, page_up};

/// How `mremap` may go about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remap {
    /// The mapping may be placed elsewhere if there is no room (`MREMAP_MAYMOVE`).
    pub may_move: bool,
    /// It goes here, whatever is there (`MREMAP_FIXED`).
    pub to: Option<usize>,
    /// The old place stays mapped, empty (`MREMAP_DONTUNMAP`).
    pub keep: bool,
}

impl AddressSpace {
    /// Changes the size or the place of a mapping; returns where it is.
    ///
    /// # Errors
    /// `EFAULT` if the old range is not one mapping, `ENOMEM`, `EINVAL`.
    pub fn mremap(&self, old: usize, old_len: usize, new_len: usize, how: Remap) -> Result<usize, Errno> {
        let (Some(old_len), Some(new_len)) = (page_up(old_len), page_up(new_len)) else { return Err(Errno::EINVAL) };
        if !old.is_multiple_of(PAGE_SIZE) || old_len == 0 || new_len == 0 {
            return Err(Errno::EINVAL);
        }
        let from = Self::user_range(old, old_len).map_err(|_| Errno::EFAULT)?;
        let mut state = self.state.lock();
        let state = &mut *state;
        match state.areas.find(from.start) {
            Some((_, area)) if area.end >= from.end => {}
            _ => return Err(Errno::EFAULT),
        }
        if let Some(to) = how.to {
            let target = Self::user_range(to, new_len).map_err(|_| Errno::EINVAL)?;
            if !to.is_multiple_of(PAGE_SIZE) || (target.start < from.end && from.start < target.end) {
                return Err(Errno::EINVAL);
            }
            self.clear(state, target);
            return self.relocate(state, from, to, new_len, how.keep);
        }
        if how.keep {
            let to = self.place(state, 0, new_len)?;
            return self.relocate(state, from, to, new_len, true);
        }
        if new_len <= old_len {
            self.clear(state, old + new_len..from.end);
            return Ok(old);
        }
        let more = new_len - old_len;
        if !self.has_room(state, more) {
            return Err(Errno::ENOMEM);
        }
        if let Ok(room) = Self::user_range(from.end, more)
            && state.areas.is_free(room.clone())
        {
            let mut areas = state.areas.remove(from.clone());
            if let Some((start, mut area)) = areas.pop() {
                area.end = room.end;
                state.areas.insert(start, area);
                state.size += more;
                return Ok(old);
            }
        }
        if !how.may_move {
            return Err(Errno::ENOMEM);
        }
        let to = self.place(state, 0, new_len)?;
        self.relocate(state, from, to, new_len, false)
    }

    /// Moves what is in `from`, a part of one area, to `to`, where nothing is.
    fn relocate(&self, state: &mut State, mut from: Range<usize>, to: usize, new_len: usize, keep: bool) -> Result<usize, Errno> {
        if new_len < from.len() {
            self.clear(state, from.start + new_len..from.end);
            from.end = from.start + new_len;
        }
        let Some((_, area)) = state.areas.remove(from.clone()).pop() else { return Err(Errno::EFAULT) };
        let shared = area.shared();
        let mut pages: Vec<(usize, Page)> = Vec::new();
        self.table.unmap_range(from.clone(), &mut |va, page| pages.push((va, page)));
        self.present(shared).fetch_sub(pages.len(), Ordering::Relaxed);
        let mut parked = state.parked.split_off(&from.start);
        state.parked.append(&mut parked.split_off(&from.end));
        state.parked.extend(parked.into_iter().map(|(va, page)| (va - from.start + to, page)));
        for (va, page) in pages {
            let va = va - from.start + to;
            let write = area.prot.contains(Prot::WRITE) && (shared || page.refs() == 1);
            let perm = Perm { write, exec: area.prot.contains(Prot::EXEC) };
            let spare = page.clone();
            if self.table.map(va, page, perm).is_ok() {
                self.present(shared).fetch_add(1, Ordering::Relaxed);
            } else if !shared {
                // No table: the page waits for the fault that asks for it.
                state.parked.insert(va, spare);
            }
        }
        state.size += new_len;
        if keep {
            let empty = Area { end: from.end, source: area.source.clone(), ..area.clone() };
            state.areas.insert(from.start, empty);
        } else {
            state.size -= from.len();
        }
        state.areas.insert(to, Area { end: to + new_len, ..area });
        Ok(to)
    }
}
