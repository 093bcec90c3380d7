//! Pages that are moved out of memory that is to leave the instance (`docs/descriptor.md`).
//!
//! A page is copied while nobody can write to it: its range is claimed and it is in no table that
//! it could be written to by. Private pages are put back as copies, those that children share as
//! one copy for all. Pages of objects are taken out of the tables only, for the next fault to find
//! them where the object has moved them to.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::space::AddressSpace;
use crate::vma::Vma;
use crate::{Frame, PAGE_SIZE, Page, USER_END, Unmapped, zero_page};

/// Bytes that are claimed at once: less than a page table covers, so that none is freed and missed.
const CHUNK: usize = 1 << 20;

/// Pages that were moved.
static MOVED: AtomicUsize = AtomicUsize::new(0);

/// Number of pages that were moved (Linux `pgmigrate_success`).
#[must_use]
pub fn moved_pages() -> usize {
    MOVED.load(Ordering::Relaxed)
}

/// Whoever moves pages: knows which ones, and the copies of those that several have.
pub struct PageMover<'a> {
    /// Number of a frame among those that are to leave.
    index: &'a dyn Fn(Frame) -> Option<usize>,
    /// By that number, a copy of the page that is there. May be too short.
    copies: &'a mut [Option<Page>],
}

impl<'a> PageMover<'a> {
    /// `index` tells the number of a frame that is to leave, and `copies` has room for a copy of
    /// some of these.
    pub fn new(index: &'a dyn Fn(Frame) -> Option<usize>, copies: &'a mut [Option<Page>]) -> Self {
        Self { index, copies }
    }

    /// Whether a page is to be moved.
    #[must_use]
    pub fn wants(&self, page: &Page) -> bool {
        (self.index)(page.frame()).is_some()
    }

    /// Puts a copy in the place of a page that is to be moved, if nobody else has it. Nobody may
    /// get it meanwhile.
    pub fn move_sole(&self, page: &mut Page) {
        if self.wants(page)
            && page.refs() == 1
            && let Some(copy) = page.duplicate()
        {
            MOVED.fetch_add(1, Ordering::Relaxed);
            *page = copy;
        }
    }

    /// Puts a copy in the place of a page of private memory that is to be moved and that nobody can
    /// write to meanwhile: one that others share is the same copy for all of them.
    fn move_private(&mut self, page: &mut Page) {
        let Some(index) = (self.index)(page.frame()) else {
            return;
        };
        let slot = self.copies.get_mut(index);
        // It may have been one program's alone in between, and written to.
        if let Some(Some(copy)) = &slot
            && is_same(copy, page)
        {
            *page = copy.clone();
        } else if let Some(copy) = page.duplicate() {
            MOVED.fetch_add(1, Ordering::Relaxed);
            if page.refs() > 1
                && let Some(slot) = slot
            {
                *slot = Some(copy.clone());
            }
            *page = copy;
        }
    }
}

/// Whether two pages that nobody writes to have the same content.
fn is_same(one: &Page, other: &Page) -> bool {
    let (mut left, mut right) = ([0; 256], [0; 256]);
    (0..PAGE_SIZE).step_by(left.len()).all(|offset| {
        one.read(offset, &mut left);
        other.read(offset, &mut right);
        left == right
    })
}

impl AddressSpace {
    /// Moves private pages that are to be moved, and takes those of objects out of the table.
    pub fn move_leaving_pages(&self, mover: &mut PageMover<'_>) {
        let mut at = 0;
        while let Some((part, area)) = self.next_chunk(at) {
            at = part.end;
            if let Some(found) = self.find_pages(&part, mover) {
                self.move_pages_of(&area, found, mover);
            }
        }
        self.inaccessible.for_each(|page| mover.move_private(page));
    }

    /// The first part of an area from `at` on where there may be pages.
    fn next_chunk(&self, at: usize) -> Option<(Range<usize>, Vma)> {
        let state = self.state.read();
        let mut areas = state.vmas.iter_range(at..USER_END);
        let (part, area) = areas.find(|(_, area)| area.has_pages.get())?;
        let end = part.end.min((part.start | (CHUNK - 1)) + 1);
        let (start, _) = state.vmas.find(part.start)?;
        Some((part.start..end, area.split_tail(part.start - start)))
    }

    /// The range, within `part`, of the pages that are to be moved.
    fn find_pages(&self, part: &Range<usize>, mover: &PageMover<'_>) -> Option<Range<usize>> {
        let mut found: Option<Range<usize>> = None;
        self.table.visit(part.clone(), |va, page, _| {
            if mover.wants(page) {
                let first = found.as_ref().map_or(va, |found| found.start);
                found = Some(first..va + PAGE_SIZE);
            }
        });
        found
    }

    /// Moves the pages of `range`, which lie in one area that began with `area` there.
    fn move_pages_of(&self, area: &Vma, range: Range<usize>, mover: &mut PageMover<'_>) {
        let mut gone: Vec<(usize, Unmapped)> = Vec::new();
        if gone.try_reserve_exact(range.len() / PAGE_SIZE).is_err() {
            return;
        }
        let mut state = self.write_state(&range);
        // It may be another one by now: then the next round finds it.
        let Some((start, now)) = state.vmas.find(range.start) else {
            return;
        };
        let offset = range.start - start;
        if now.end < range.end || now.is_shared() != area.is_shared() {
            return;
        }
        let area = now.split_tail(offset);
        let claim = self.lock_range(&mut state, range.clone());
        drop(state);
        if area.is_shared() {
            self.zap_pages(range, true);
            return drop(claim);
        }
        self.table
            .unmap_range(range.clone(), &mut |va, page| gone.push((va, page)));
        for (va, unmapped) in gone {
            match unmapped {
                Unmapped::Page(page) => self.put_back(&area, range.start, va, page, mover),
                Unmapped::Large(large) => large.into_pages(|n, page| {
                    self.put_back(&area, range.start, va + n * PAGE_SIZE, page, mover);
                }),
            }
        }
        drop(claim);
    }

    /// Puts a page back that was taken out at `va`, or a copy. `area` begins at `start`.
    fn put_back(
        &self,
        area: &Vma,
        start: usize,
        va: usize,
        mut page: Page,
        mover: &mut PageMover<'_>,
    ) {
        let is_objects = |page: &Page| {
            area.mapped.as_ref().is_some_and(|source| {
                let index = source.page_offset + ((va - start) / PAGE_SIZE) as u64;
                let cached = source.object.backing.cached(index);
                cached.is_some_and(|cached| cached.frame() == page.frame())
            })
        };
        if mover.wants(&page) && !zero_page::is_zero_page(&page) {
            if is_objects(&page) {
                // A fault finds it again.
                self.private_pages.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            mover.move_private(&mut page);
        }
        self.remap_page(area, va, page);
    }

    /// Has the objects that this space maps move their pages.
    pub fn move_leaving_objects(&self, mover: &PageMover<'_>) {
        let mut at = 0;
        loop {
            let next = {
                let state = self.state.read();
                let mut areas = state.vmas.iter_range(at..USER_END);
                areas.find_map(|(part, area)| {
                    let object = area.mapped.as_ref()?.object.clone();
                    Some((part.end, object))
                })
            };
            let Some((end, object)) = next else { return };
            at = end;
            object.backing.move_pages(mover);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::{MapRequest, Object, Placement, Prot, VmaFlags};

    const RW: Prot = Prot::READ.union(Prot::WRITE);
    const AT: usize = 0x1000_0000;
    const PAGES: usize = 40;

    fn map(space: &AddressSpace, flags: VmaFlags, object: Option<Arc<Object>>) {
        let request = MapRequest {
            placement: Placement::Fixed(AT),
            len: PAGES * PAGE_SIZE,
            prot: RW,
            flags,
            object: object.map(|object| (object, 0)),
        };
        space.mmap(request).unwrap();
    }

    fn word(page: usize) -> [u8; 8] {
        (page as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()
    }

    fn fill(space: &AddressSpace) {
        for page in 0..PAGES {
            space
                .write(AT + page * PAGE_SIZE + 40, &word(page))
                .unwrap();
        }
    }

    fn check(space: &AddressSpace) {
        for page in 0..PAGES {
            let mut bytes = [0; 8];
            space.read(AT + page * PAGE_SIZE + 40, &mut bytes).unwrap();
            assert_eq!(bytes, word(page), "page {page}");
        }
    }

    /// Keeps the numbers of pages from being used for others.
    fn keep_numbers(space: &AddressSpace) -> Vec<impl Sized> {
        let page = |page: usize| space.table.get(AT + page * PAGE_SIZE);
        (0..PAGES)
            .filter_map(page)
            .map(|(page, ..)| page.keep_number())
            .collect()
    }

    /// Has all pages in the table that there are.
    fn fill_in(space: &AddressSpace) {
        space
            .populate(AT, PAGES * PAGE_SIZE, crate::AccessKind::Read)
            .unwrap();
    }

    fn frames(space: &AddressSpace) -> Vec<Frame> {
        let page = |page: usize| space.table.get(AT + page * PAGE_SIZE);
        (0..PAGES)
            .filter_map(page)
            .map(|(page, ..)| page.frame())
            .collect()
    }

    /// Moves all pages but those at odd places, of some spaces; returns how many were moved.
    fn move_half(spaces: &[&AddressSpace]) -> usize {
        let all: Vec<Frame> = frames(spaces[0]);
        let half: Vec<Frame> = all.into_iter().step_by(2).collect();
        let _numbers = keep_numbers(spaces[0]);
        let index = |frame: Frame| half.iter().position(|leaving| *leaving == frame);
        let mut copies = vec![None; half.len()];
        let mut mover = PageMover::new(&index, &mut copies);
        for space in spaces {
            space.move_leaving_pages(&mut mover);
        }
        for space in spaces {
            space.move_leaving_objects(&mover);
        }
        fill_in(spaces[0]);
        let now = frames(spaces[0]);
        half.iter().filter(|frame| !now.contains(frame)).count()
    }

    #[test]
    fn private_pages_move_and_stay_writable() {
        let space = AddressSpace::new(1 << 40).unwrap();
        map(&space, VmaFlags::empty(), None);
        fill(&space);
        let resident = space.resident();
        let left = move_half(&[&space]);
        check(&space);
        assert_eq!((left, space.resident()), (PAGES / 2, resident));
        fill(&space);
        check(&space);
    }

    #[test]
    fn what_children_share_is_one_copy_for_all() {
        let parent = AddressSpace::new(1 << 40).unwrap();
        map(&parent, VmaFlags::empty(), None);
        fill(&parent);
        let child = parent.fork().unwrap();
        let left = move_half(&[&parent, &child]);
        assert_eq!(left, PAGES / 2);
        assert_eq!(frames(&parent), frames(&child));
        check(&parent);
        check(&child);
        // And it is still nobody's alone.
        child.write(AT + 40, b"another!").unwrap();
        check(&parent);
    }

    #[test]
    fn a_copy_is_not_used_once_the_page_is_another() {
        let first = AddressSpace::new(1 << 40).unwrap();
        map(&first, VmaFlags::empty(), None);
        fill(&first);
        let second = first.fork().unwrap();
        let (all, _numbers) = (frames(&first), keep_numbers(&first));
        let index = |frame: Frame| all.iter().position(|leaving| *leaving == frame);
        let mut copies = vec![None; all.len()];
        let mut mover = PageMover::new(&index, &mut copies);
        first.move_leaving_pages(&mut mover);
        // The page is the second one's alone now; then it is shared again.
        second.write(AT + 40, b"changed!").unwrap();
        let third = second.fork().unwrap();
        second.move_leaving_pages(&mut mover);
        third.move_leaving_pages(&mut mover);
        check(&first);
        for space in [&second, &third] {
            let mut bytes = [0; 8];
            space.read(AT + 40, &mut bytes).unwrap();
            assert_eq!(&bytes, b"changed!");
        }
    }

    #[test]
    fn inaccessible_pages_move() {
        let space = AddressSpace::new(1 << 40).unwrap();
        map(&space, VmaFlags::empty(), None);
        fill(&space);
        let (all, _numbers) = (frames(&space), keep_numbers(&space));
        space
            .mprotect(AT, PAGES * PAGE_SIZE, Prot::empty())
            .unwrap();
        let index = |frame: Frame| all.iter().position(|leaving| *leaving == frame);
        let before = moved_pages();
        space.move_leaving_pages(&mut PageMover::new(&index, &mut []));
        assert!(moved_pages() >= before + PAGES);
        space.mprotect(AT, PAGES * PAGE_SIZE, RW).unwrap();
        check(&space);
    }

    #[test]
    fn shared_pages_move_with_their_object() {
        let space = AddressSpace::new(1 << 40).unwrap();
        map(&space, VmaFlags::SHARED, Some(Object::anonymous()));
        fill(&space);
        let child = space.fork().unwrap();
        check(&child);
        // One that somebody is about to use stays.
        let used = space.table.get(AT).unwrap().0;
        let left = move_half(&[&space, &child]);
        assert_eq!(left, PAGES / 2 - 1);
        assert_eq!(space.table.get(AT).unwrap().0.frame(), used.frame());
        check(&child);
        child.write(AT + 40, b"for both").unwrap();
        let mut bytes = [0; 8];
        space.read(AT + 40, &mut bytes).unwrap();
        assert_eq!(&bytes, b"for both");
    }
}
