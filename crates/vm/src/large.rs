//! Pages of 2 MiB (`docs/memory.md`): who gets them, and when.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use abi::errno::Errno;

use crate::space::{AddressSpace, SpaceState};
use crate::vma::{Prot, Vma, VmaFlags};
use crate::{LargePage, PAGE_SIZE, Page, Perm, Unmapped, zero_page};

/// Areas that get large pages (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LargePages {
    /// Everybody who does not say no.
    Always,
    /// Areas that ask for them.
    Madvise,
    /// Nobody.
    Never,
}

static SETTING: AtomicU8 = AtomicU8::new(LargePages::Madvise as u8);
static FAULTED: AtomicU64 = AtomicU64::new(0);
static FELL_BACK: AtomicU64 = AtomicU64::new(0);
static COLLAPSED: AtomicU64 = AtomicU64::new(0);

/// The setting in force.
#[must_use]
pub fn setting() -> LargePages {
    match SETTING.load(Ordering::Relaxed) {
        0 => LargePages::Always,
        1 => LargePages::Madvise,
        _ => LargePages::Never,
    }
}

/// Changes it for the faults to come.
pub fn set_setting(to: LargePages) {
    SETTING.store(to as u8, Ordering::Relaxed);
}

/// Numbers of large pages since boot (`thp_*` in `/proc/vmstat`).
#[derive(Clone, Copy, Debug)]
pub struct LargePageCounts {
    /// Large pages that faults have allocated.
    pub fault_alloc: u64,
    /// Faults that found no large page.
    pub fault_fallback: u64,
    /// Large pages that small ones were copied to.
    pub collapse_alloc: u64,
}

/// Returns the numbers of large pages since boot.
#[must_use]
pub fn counts() -> LargePageCounts {
    LargePageCounts {
        fault_alloc: FAULTED.load(Ordering::Relaxed),
        fault_fallback: FELL_BACK.load(Ordering::Relaxed),
        collapse_alloc: COLLAPSED.load(Ordering::Relaxed),
    }
}

/// Bytes of a large page.
const LARGE: usize = LargePage::PAGES * PAGE_SIZE;

/// The aligned 2 MiB that `va` is in.
fn around(va: usize) -> Range<usize> {
    let start = va & !(LARGE - 1);
    start..start + LARGE
}

/// Whether the aligned 2 MiB that `va` is in lie in an area from `start` on.
pub(crate) fn lies_in(start: usize, area: &Vma, va: usize) -> bool {
    let range = around(va);
    start <= range.start && range.end <= area.end
}

/// Whether aligned 2 MiB lie in an area from `start` on.
pub(crate) fn has_room(start: usize, area: &Vma) -> bool {
    start.next_multiple_of(LARGE).saturating_add(LARGE) <= area.end
}

/// Whether an area may have large pages at all.
fn is_fit(area: &Vma) -> bool {
    area.mapped.is_none()
        && !area
            .flags
            .intersects(VmaFlags::NO_LARGE | VmaFlags::GROWSDOWN)
}

impl AddressSpace {
    /// Whether faults in an area should bring in large pages.
    #[inline]
    pub(crate) fn wants_large(&self, area: &Vma) -> bool {
        let setting = SETTING.load(Ordering::Relaxed);
        let asked = area.flags.contains(VmaFlags::LARGE) && setting != LargePages::Never as u8;
        (asked || setting == LargePages::Always as u8)
            && is_fit(area)
            && self.may_have_large_pages()
    }

    /// Brings in the large page around `va`, in an area from `start` on, if that is possible
    /// without effort; whether it did.
    #[cold]
    pub(crate) fn fault_in_large(
        &self,
        state: &SpaceState,
        area: &Vma,
        start: usize,
        va: usize,
        perm: Perm,
    ) -> bool {
        let range = around(va);
        // What others claim they may be about to unmap.
        if !lies_in(start, area, va)
            || !self.table.is_vacant(va)
            || state.range_locks.overlaps(&range)
            || self.inaccessible.has_any_in(&range)
        {
            return false;
        }
        let Some(page) = LargePage::zeroed() else {
            FELL_BACK.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        // Cleared without a lock: if another thread was faster, that was in vain.
        if self.table.map_large(range.start, page, perm).is_err() {
            return false;
        }
        area.has_pages.set();
        self.private_pages
            .fetch_add(LargePage::PAGES, Ordering::Relaxed);
        FAULTED.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Copies what is in a range together into large pages, wherever 2 MiB of it lie in one private
    /// area without an object and some of it is present (`MADV_COLLAPSE`).
    ///
    /// # Errors
    /// `ENOMEM` if something is not mapped or memory is short, `EINVAL` if some part cannot be in a
    /// large page, or an area has no room for one; other parts are done then.
    pub fn collapse(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::page_range(addr, len)?;
        if !self.state.read().vmas.covers(range.clone()) {
            return Err(Errno::ENOMEM);
        }
        let touched = |(start, area): &(usize, &Vma)| *start < range.end && area.end > range.start;
        let room = self
            .state
            .read()
            .vmas
            .iter()
            .filter(touched)
            .all(|(start, area)| has_room(start, area));
        let mut result = if room { Ok(()) } else { Err(Errno::EINVAL) };
        let mut start = range.start.next_multiple_of(LARGE);
        while start + LARGE <= range.end {
            result = self.collapse_one(start..start + LARGE).and(result);
            start += LARGE;
        }
        result
    }

    fn collapse_one(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut state = self.write_state(&range);
        let (start, area) = state.vmas.find(range.start).ok_or(Errno::EINVAL)?;
        let fit = lies_in(start, area, range.start)
            && is_fit(area)
            && !area.prot.is_empty()
            && self.may_have_large_pages();
        if !fit || self.table.is_vacant(range.start) {
            return Err(Errno::EINVAL);
        }
        if self
            .table
            .get(range.start)
            .is_some_and(|(.., noted)| noted.large)
        {
            return Ok(());
        }
        let area = area.split_tail(0);
        let large = LargePage::zeroed().ok_or(Errno::ENOMEM)?;
        let claim = self.lock_range(&mut state, range.clone());
        drop(state);
        let mut before = 0;
        let mut copy = |va: usize, page: &Page| {
            if !zero_page::is_zero_page(page) {
                before += 1;
                large.fill((va - range.start) / PAGE_SIZE, page);
            }
        };
        self.table
            .unmap_range(range.clone(), &mut |va, gone| match gone {
                Unmapped::Page(page) => copy(va, &page),
                Unmapped::Large(pages) => {
                    pages.into_pages(|n, page| copy(va + n * PAGE_SIZE, &page));
                }
            });
        self.private_pages
            .fetch_add(LargePage::PAGES - before, Ordering::Relaxed);
        for (va, page) in self.inaccessible.remove_range(&range) {
            large.fill((va - range.start) / PAGE_SIZE, &page);
        }
        self.remap_large_page(&area, range.start, large);
        drop(claim);
        COLLAPSED.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Maps a large page that was taken out of the table, at `va`, which is claimed and empty; as
    /// single pages if it cannot be a large one there.
    pub(crate) fn remap_large_page(&self, area: &Vma, va: usize, page: LargePage) {
        let perm = Perm {
            write: area.prot.contains(Prot::WRITE) && page.is_exclusive(),
            exec: area.prot.contains(Prot::EXEC),
        };
        if let Err(page) = self.table.map_large(va, page, perm) {
            page.into_pages(|n, page| self.remap_page(area, va + n * PAGE_SIZE, page));
        }
    }

    /// Sets whether there are to be no large pages (`PR_SET_THP_DISABLE`); those there are stay.
    pub fn forbid_large_pages(&self, forbid: bool) {
        self.no_large.store(forbid, Ordering::Relaxed);
    }

    /// Whether there may be large pages.
    #[must_use]
    pub fn may_have_large_pages(&self) -> bool {
        !self.no_large.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Advice, MapRequest, Placement, RemapOptions};

    const RW: Prot = Prot::READ.union(Prot::WRITE);
    const AT: usize = 0x1000_0000;

    /// A space with `count` times the size of a large page mapped, from half a page before an
    /// aligned address on.
    fn space(count: usize) -> (std::sync::Arc<AddressSpace>, usize) {
        let space = AddressSpace::new(1 << 40).unwrap();
        let place = Placement::Fixed(AT - LARGE / 2);
        let (len, flags) = (count * LARGE, VmaFlags::LARGE);
        let at = space
            .mmap(MapRequest {
                placement: place,
                len,
                prot: RW,
                flags,
                object: None,
            })
            .unwrap();
        (space, at)
    }

    /// Bytes in memory, and of those in large pages.
    fn sizes(space: &AddressSpace) -> (usize, usize) {
        let sums = space.residency();
        let sum =
            |of: &dyn Fn(&crate::Residency) -> usize| sums.iter().map(|(_, sum)| of(sum)).sum();
        assert_eq!(space.stats().resident, sum(&|sum| sum.resident));
        (sum(&|sum| sum.resident), sum(&|sum| sum.large))
    }

    fn peek(space: &AddressSpace, addr: usize) -> u8 {
        let mut byte = [0];
        space.read(addr, &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn whole_aligned_parts_are_large() {
        let (space, at) = space(3);
        space.write(at, &[1]).unwrap();
        assert_eq!(
            sizes(&space),
            (PAGE_SIZE, 0),
            "not all of that lies in the area"
        );
        space.write(AT + 5, &[2]).unwrap();
        assert_eq!(sizes(&space), (PAGE_SIZE + LARGE, LARGE));
        space
            .handle_fault(AT + LARGE, crate::AccessKind::Read)
            .unwrap();
        space.write(AT + LARGE, &[3]).unwrap();
        assert_eq!(
            sizes(&space),
            (2 * PAGE_SIZE + LARGE, LARGE),
            "what is read first is not"
        );
        assert_eq!(
            [at, AT + 5, AT + LARGE].map(|addr| peek(&space, addr)),
            [1, 2, 3]
        );
        space
            .madvise(AT, LARGE, Advice::DontNeed(crate::DontNeedScope::Unlocked))
            .unwrap();
        space.forbid_large_pages(true);
        space.write(AT, &[4]).unwrap();
        assert_eq!(sizes(&space), (3 * PAGE_SIZE, 0));
    }

    #[test]
    fn parts_go_at_once() {
        let (space, _) = space(3);
        space.write(AT, &[7; 2 * PAGE_SIZE]).unwrap();
        space.munmap(AT + PAGE_SIZE, PAGE_SIZE).unwrap();
        assert_eq!(sizes(&space), (LARGE - PAGE_SIZE, 0));
        assert_eq!(peek(&space, AT), 7);
        space.write(AT + LARGE, &[8]).unwrap();
        space.mprotect(AT + LARGE, LARGE, Prot::READ).unwrap();
        assert_eq!(sizes(&space).1, LARGE);
        assert!(space.write(AT + LARGE, &[9]).is_err());
        // More rights for a part: no page is given more than its own.
        space.mprotect(AT + LARGE, PAGE_SIZE, RW).unwrap();
        space.write(AT + LARGE, &[9]).unwrap();
        assert!(
            space
                .handle_fault(AT + LARGE + PAGE_SIZE, crate::AccessKind::Write)
                .is_err()
        );
        assert_eq!(sizes(&space).1, 0);
        assert!(
            space
                .table
                .get(AT + LARGE + PAGE_SIZE)
                .is_some_and(|(_, perm, _)| !perm.write)
        );
    }

    #[test]
    fn children_share_and_copy_what_they_write() {
        let (space, _) = space(3);
        space.write(AT, &[1]).unwrap();
        space.write(AT + LARGE, &[2]).unwrap();
        let child = space.fork().unwrap();
        assert_eq!(
            (sizes(&space), sizes(&child)),
            ((2 * LARGE, 2 * LARGE), (2 * LARGE, 2 * LARGE))
        );
        child.write(AT + PAGE_SIZE, &[3]).unwrap();
        assert_eq!((sizes(&child).1, sizes(&space).1), (LARGE, 2 * LARGE));
        assert_eq!((peek(&space, AT + PAGE_SIZE), peek(&child, AT)), (0, 1));
        drop(child);
        space.write(AT, &[4]).unwrap();
        assert_eq!((sizes(&space).1, peek(&space, AT)), (2 * LARGE, 4));
        assert!(
            space
                .table
                .get(AT + PAGE_SIZE)
                .is_some_and(|(_, perm, _)| perm.write),
            "all of it at once"
        );
    }

    #[test]
    fn they_move_whole_where_they_fit() {
        let (space, _) = space(3);
        space.write(AT, &[1]).unwrap();
        let move_to = |from, to| {
            space.mremap(
                from,
                LARGE,
                LARGE,
                RemapOptions {
                    may_move: true,
                    fixed_address: Some(to),
                    ..RemapOptions::default()
                },
            )
        };
        move_to(AT, 2 * AT).unwrap();
        assert_eq!((sizes(&space), peek(&space, 2 * AT)), ((LARGE, LARGE), 1));
        move_to(2 * AT, 3 * AT + PAGE_SIZE).unwrap();
        assert_eq!(
            (sizes(&space), peek(&space, 3 * AT + PAGE_SIZE)),
            ((LARGE, 0), 1)
        );
    }

    #[test]
    fn small_pages_are_copied_together() {
        let (space, _) = space(3);
        space
            .madvise(AT, LARGE, Advice::Flags(VmaFlags::empty(), VmaFlags::LARGE))
            .unwrap();
        assert_eq!(
            space.collapse(AT, LARGE),
            Err(Errno::EINVAL),
            "nothing is there"
        );
        space.write(AT + PAGE_SIZE, &[5]).unwrap();
        let child = space.fork().unwrap();
        assert_eq!(space.collapse(AT, LARGE), Ok(()));
        assert_eq!(
            (sizes(&space), sizes(&child)),
            ((LARGE, LARGE), (PAGE_SIZE, 0))
        );
        space.write(AT + PAGE_SIZE + 1, &[6]).unwrap();
        assert_eq!(
            (
                peek(&space, AT + PAGE_SIZE),
                peek(&space, AT + PAGE_SIZE + 1),
                peek(&child, AT + PAGE_SIZE + 1)
            ),
            (5, 6, 0)
        );
        assert_eq!(space.collapse(AT, 3 * LARGE), Err(Errno::ENOMEM));
    }

    #[test]
    fn each_large_part_of_a_range_is_copied_together() {
        let (space, _) = space(3);
        space
            .madvise(
                AT,
                2 * LARGE,
                Advice::Flags(VmaFlags::empty(), VmaFlags::LARGE),
            )
            .unwrap();
        space.write(AT, &[1]).unwrap();
        space.write(AT + 2 * LARGE - 1, &[2]).unwrap();
        assert_eq!(sizes(&space), (2 * PAGE_SIZE, 0));
        assert_eq!(space.collapse(AT, 2 * LARGE), Ok(()));
        assert_eq!(sizes(&space), (2 * LARGE, 2 * LARGE));
        assert_eq!(
            [AT, AT + LARGE, AT + 2 * LARGE - 1].map(|addr| peek(&space, addr)),
            [1, 0, 2]
        );
    }
}
