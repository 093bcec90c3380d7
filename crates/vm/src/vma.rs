//! What is mapped where: non-overlapping page-aligned intervals, each with one protection and one
//! source of pages. Nothing here touches memory.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use crate::object::Object;
use crate::small_vec::SmallVec;
use crate::vma_tree::{TreeCursor, VmaTree};
use crate::{PAGE_SIZE, USER_END, has_kernel_room, max_map_count};

bitflags::bitflags! {
    /// Accesses that a program may make to its memory (`PROT_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Prot: u32 {
        /// Read. The processor cannot grant writing or executing without it.
        const READ = sys::PROT_READ;
        /// Write.
        const WRITE = sys::PROT_WRITE;
        /// Execute.
        const EXEC = sys::PROT_EXEC;
    }

    /// Flags of an area besides its protection (Linux `vm_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct VmaFlags: u32 {
        /// Writes go to the object and are seen by all its mappings; otherwise they stay here.
        const SHARED = 1;
        /// Extends itself downwards when the program touches what is below (a stack).
        const GROWSDOWN = 2;
        /// Not inherited by `fork(2)` (`MADV_DONTFORK`).
        const DONTFORK = 4;
        /// Children see zeros (`MADV_WIPEONFORK`).
        const WIPEONFORK = 8;
        /// `mlock(2)` was called; nothing is ever swapped, so this is only shown.
        const LOCKED = 16;
        /// Stays as it is (`mseal(2)`).
        const SEALED = 32;
        /// Large pages are wanted (`MADV_HUGEPAGE`).
        const LARGE = 64;
        /// Large pages are not wanted (`MADV_NOHUGEPAGE`).
        const NO_LARGE = 128;
        /// Left out of core dumps (`MADV_DONTDUMP`).
        const DONTDUMP = 256;
    }
}

/// The part of an object that an area maps: the object, and the page of it at the area's start
/// (Linux `vm_file`, `vm_pgoff`).
#[derive(Clone)]
pub(crate) struct MappedObject {
    pub(crate) object: Arc<Object>,
    /// The object's page at the area's start.
    pub(crate) page_offset: u64,
}

/// A flag that faults set in an area under the read lock of the areas, and nobody clears.
#[derive(Default)]
pub(crate) struct StickyFlag(AtomicBool);

impl StickyFlag {
    /// There may be such a page from now on.
    #[inline]
    pub(crate) fn set(&self) {
        if !self.get() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for StickyFlag {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.get()))
    }
}

/// An area: one interval of an address space with one protection and one source of pages (Linux
/// `vm_area_struct`). Its start is kept beside it.
#[derive(Clone)]
pub(crate) struct Vma {
    pub(crate) end: usize,
    pub(crate) prot: Prot,
    pub(crate) flags: VmaFlags,
    /// If not, there is nothing to take out of the page table.
    pub(crate) has_pages: StickyFlag,
    /// Some page may be other than the object's: a copy. A child gets those; the object's it finds
    /// itself.
    pub(crate) has_private_pages: StickyFlag,
    /// `None`: anonymous memory.
    pub(crate) mapped: Option<MappedObject>,
    /// The name that the program gave (`PR_SET_VMA`); of anonymous memory only.
    pub(crate) name: Option<Arc<[u8]>>,
    /// Where its memory is to come from (`mbind(2)`), as a word of the caller's; 0 by default.
    pub(crate) policy: u64,
}

impl Vma {
    /// Memory that nobody has touched.
    pub(crate) fn new(
        end: usize,
        prot: Prot,
        flags: VmaFlags,
        source: Option<MappedObject>,
    ) -> Self {
        Self {
            end,
            prot,
            flags,
            has_pages: StickyFlag::default(),
            has_private_pages: StickyFlag::default(),
            mapped: source,
            name: None,
            policy: 0,
        }
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.flags.contains(VmaFlags::SHARED)
    }

    /// Whether its object has to know of writes, so that the right to write is given page by page.
    pub(crate) fn notes_writes(&self) -> bool {
        let notes = |source: &MappedObject| source.object.backing.notes_writes();
        self.is_shared() && self.mapped.as_ref().is_some_and(notes)
    }

    /// The part behind the first `bytes`.
    pub(crate) fn split_tail(&self, bytes: usize) -> Self {
        let mut tail = self.clone();
        if let Some(source) = &mut tail.mapped {
            source.page_offset += (bytes / PAGE_SIZE) as u64;
        }
        tail
    }

    /// Takes over the marks of an area that becomes a part of this one.
    fn merge_flags(&self, other: &Self) {
        if other.has_pages.get() {
            self.has_pages.set();
        }
        if other.has_private_pages.get() {
            self.has_private_pages.set();
        }
    }

    /// Whether `next`, which begins where this area of `len` bytes ends, continues it.
    fn can_merge_with(&self, len: usize, next: &Self) -> bool {
        let source = match (&self.mapped, &next.mapped) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                Arc::ptr_eq(&a.object, &b.object)
                    && a.page_offset + (len / PAGE_SIZE) as u64 == b.page_offset
            }
            _ => false,
        };
        source
            && self.prot == next.prot
            && self.flags == next.flags
            && self.policy == next.policy
            && self.name == next.name
    }
}

/// The areas of an address space, by start.
#[derive(Default)]
pub(crate) struct VmaMap {
    all: VmaTree,
}

impl VmaMap {
    /// The area that `addr` is in, with its start.
    #[inline]
    pub(crate) fn find(&self, addr: usize) -> Option<(usize, &Vma)> {
        self.all.find(addr)
    }

    /// The first area that begins above `addr`, which is in none.
    pub(crate) fn next_above(&self, addr: usize) -> Option<(usize, &Vma)> {
        self.all.get(self.all.lower_bound(addr))
    }

    /// Where the last area that ends at or below `addr`, which is in none, ends.
    pub(crate) fn prev_end(&self, addr: usize) -> usize {
        self.all
            .prev(self.all.lower_bound(addr))
            .and_then(|at| self.all.get(at))
            .map_or(0, |(_, area)| area.end)
    }

    /// All areas, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Vma)> {
        self.iter_from(0)
    }

    /// The areas that end above `addr`, ascending.
    pub(crate) fn iter_from(&self, addr: usize) -> impl Iterator<Item = (usize, &Vma)> {
        self.all.iter_from(self.all.lower_bound(addr))
    }

    /// The parts of areas that lie in `range`, ascending; none in an empty one.
    pub(crate) fn iter_range(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, &Vma)> {
        self.all
            .iter_from(self.all.lower_bound(range.start))
            .take_while(move |&(start, _)| start.max(range.start) < range.end)
            .map(move |(start, area)| (start.max(range.start)..area.end.min(range.end), area))
    }

    /// Whether every address of `range` is in some area.
    pub(crate) fn covers(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        for (start, area) in self.all.iter_from(self.all.lower_bound(range.start)) {
            if at >= range.end || start > at {
                break;
            }
            at = area.end;
        }
        at >= range.end
    }

    /// Whether nothing is in `range`.
    pub(crate) fn is_free(&self, range: Range<usize>) -> bool {
        self.next_above(range.start)
            .is_none_or(|(start, _)| start >= range.end)
    }

    /// Number of areas.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Makes room for `more` areas.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub(crate) fn try_reserve(&mut self, more: usize) -> Result<(), Errno> {
        self.all.try_reserve(more)
    }

    /// Number of ends of `range` that are inside an area.
    #[cold]
    fn splits(&self, range: &Range<usize>) -> usize {
        let is_inside = |addr| matches!(self.all.find(addr), Some((start, _)) if start < addr);
        usize::from(is_inside(range.start)) + usize::from(is_inside(range.end))
    }

    /// Whether a range may be changed, which splits the areas at its ends.
    ///
    /// # Errors
    /// `ENOMEM` if there would be more than [`max_map_count`], memory is short, or the kernel may
    /// take no memory for one area more.
    #[inline]
    pub(crate) fn check_split(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        if !has_kernel_room() && self.splits(range) > 0 {
            return Err(Errno::ENOMEM);
        }
        self.check_hole(range)
    }

    /// Whether a range may be unmapped, which splits the areas at its ends. Memory that is given
    /// back is taken also where the kernel may take none for a split.
    ///
    /// # Errors
    /// `ENOMEM` if there would be more than [`max_map_count`], or memory is short.
    #[inline]
    pub(crate) fn check_hole(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        // Nearly always there are few, and nobody has to look where the ends are.
        if self.len() + 2 > max_map_count() {
            let splits = self.splits(range);
            if splits > 0 && self.len() + splits > max_map_count() {
                return Err(Errno::ENOMEM);
            }
        }
        self.try_reserve(3)
    }

    /// Cuts the area at `at`, which `addr` is inside of. Returns the place of the part behind.
    fn split(&mut self, at: TreeCursor, addr: usize) -> TreeCursor {
        let Some((start, area)) = self.all.get_mut(at) else {
            return at;
        };
        let tail = area.split_tail(addr - start);
        area.end = addr;
        self.all.insert(self.all.next(at), addr, tail)
    }

    /// The first area of `range`, cut off from what is below.
    fn split_first(&mut self, range: &Range<usize>) -> TreeCursor {
        let at = self.all.lower_bound(range.start);
        match self.all.get(at) {
            Some((start, _)) if start < range.start => self.split(at, range.start),
            _ => at,
        }
    }

    /// The area at `at`, cut off from what is above `range`, and its place; `None` if it is above
    /// altogether.
    fn split_next(&mut self, at: TreeCursor, range: &Range<usize>) -> Option<TreeCursor> {
        let (start, area) = self.all.get(at)?;
        if start >= range.end {
            return None;
        }
        if area.end <= range.end {
            return Some(at);
        }
        let tail = self.split(at, range.end);
        self.all.prev(tail)
    }

    /// Takes out everything in `range`; areas that reach over its ends are split.
    pub(crate) fn remove(&mut self, range: Range<usize>) -> SmallVec<(usize, Vma)> {
        let mut gone = SmallVec::default();
        let mut at = self.split_first(&range);
        while let Some(here) = self.split_next(at, &range) {
            gone.push(self.all.remove(here));
            at = self.all.normalize(here);
        }
        gone
    }

    /// Puts an area where nothing is, and joins it with neighbours that it continues.
    pub(crate) fn insert(&mut self, start: usize, area: Vma) {
        let at = self.all.lower_bound(start);
        let joins_next = matches!(self.all.get(at), Some((next, other)) if next == area.end && area.can_merge_with(next - start, other));
        let before = self.all.prev(at);
        if let Some(before) = before
            && let Some((first, other)) = self.all.get_mut(before)
            && other.end == start
            && other.can_merge_with(start - first, &area)
        {
            other.end = area.end;
            other.merge_flags(&area);
            if joins_next {
                self.merge(at);
            }
            return;
        }
        let here = self.all.insert(at, start, area);
        if joins_next {
            self.merge(self.all.next(here));
        }
    }

    /// Puts an area behind all others.
    pub(crate) fn push(&mut self, start: usize, area: Vma) {
        self.all.push(start, area);
    }

    /// Joins the area at `at` with the one before, if they can be one. Returns where it is.
    fn merge(&mut self, at: TreeCursor) -> TreeCursor {
        let Some(before) = self.all.prev(at) else {
            return at;
        };
        let (Some((start, first)), Some((next, second))) = (self.all.get(before), self.all.get(at))
        else {
            return at;
        };
        if first.end != next || !first.can_merge_with(next - start, second) {
            return at;
        }
        let (_, second) = self.all.remove(at);
        if let Some((_, first)) = self.all.get_mut(before) {
            first.end = second.end;
            first.merge_flags(&second);
        }
        before
    }

    /// Changes every area in `range`, splitting at its ends, and joins what became alike.
    pub(crate) fn update(&mut self, range: Range<usize>, mut change: impl FnMut(&mut Vma)) {
        let mut at = self.split_first(&range);
        while let Some(here) = self.split_next(at, &range) {
            if let Some((_, area)) = self.all.get_mut(here) {
                change(area);
            }
            let joined = self.merge(here);
            at = self.all.next(joined);
        }
        self.merge(at);
    }

    /// Moves the start of the area at `start` down to `to`, where nothing is.
    pub(crate) fn grow_down(&mut self, start: usize, to: usize) {
        self.all.set_start(self.all.lower_bound(start), to);
    }

    /// Moves the end of the area that `addr` is in up to `to`, where nothing is, and joins it with
    /// what continues it.
    pub(crate) fn grow_up(&mut self, addr: usize, to: usize) {
        if let Some((_, area)) = self.all.get_mut(self.all.lower_bound(addr)) {
            area.end = to;
        }
        self.merge(self.all.lower_bound(to));
    }

    /// The lowest place above `bottom` for `len` bytes.
    pub(crate) fn gap_above(&self, len: usize, bottom: usize) -> Option<usize> {
        let mut start = bottom;
        for (next, area) in self.all.iter_from(self.all.lower_bound(bottom)) {
            if next.checked_sub(start).is_some_and(|gap| gap >= len) {
                break;
            }
            start = start.max(area.end);
        }
        (start <= USER_END && len <= USER_END - start).then_some(start)
    }

    /// The highest place below `top` for `len` bytes.
    pub(crate) fn gap_below(&mut self, len: usize, top: usize) -> Option<usize> {
        self.all.gap_below(len, top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = PAGE_SIZE;

    fn anon(end: usize, prot: Prot) -> Vma {
        Vma::new(end * P, prot, VmaFlags::empty(), None)
    }

    fn shape(areas: &VmaMap) -> Vec<(usize, usize, u32)> {
        areas
            .iter()
            .map(|(s, a)| (s / P, a.end / P, a.prot.bits()))
            .collect()
    }

    #[test]
    fn neighbours_join_and_split_again() {
        let mut areas = VmaMap::default();
        areas.insert(20 * P, anon(30, Prot::READ));
        areas.insert(40 * P, anon(50, Prot::READ));
        areas.insert(30 * P, anon(40, Prot::READ));
        assert_eq!(shape(&areas), [(20, 50, 1)]);
        areas.update(25 * P..35 * P, |a| a.prot = Prot::WRITE);
        assert_eq!(shape(&areas), [(20, 25, 1), (25, 35, 2), (35, 50, 1)]);
        areas.update(25 * P..35 * P, |a| a.prot = Prot::READ);
        assert_eq!(shape(&areas), [(20, 50, 1)]);
        let out = areas.remove(22 * P..48 * P);
        assert_eq!(out.into_iter().count(), 1);
        assert_eq!(shape(&areas), [(20, 22, 1), (48, 50, 1)]);
        assert!(
            areas.covers(20 * P..22 * P)
                && !areas.covers(20 * P..23 * P)
                && !areas.covers(19 * P..22 * P)
        );
    }

    #[test]
    fn parts_of_an_object_keep_their_page_numbers() {
        let mut areas = VmaMap::default();
        let object = Object::anonymous();
        let source = Some(MappedObject {
            object,
            page_offset: 7,
        });
        areas.insert(
            20 * P,
            Vma::new(30 * P, Prot::READ, VmaFlags::SHARED, source),
        );
        let out: Vec<_> = areas.remove(24 * P..26 * P).into_iter().collect();
        assert_eq!(out[0].1.mapped.as_ref().unwrap().page_offset, 11);
        assert_eq!(
            areas
                .find(26 * P)
                .unwrap()
                .1
                .mapped
                .as_ref()
                .unwrap()
                .page_offset,
            13
        );
        for (start, area) in out {
            areas.insert(start, area);
        }
        assert_eq!(shape(&areas), [(20, 30, 1)]);
    }

    #[test]
    fn gaps_are_found_from_the_top() {
        let mut areas = VmaMap::default();
        assert_eq!(areas.gap_below(2 * P, 100 * P), Some(98 * P));
        areas.insert(98 * P, anon(100, Prot::READ));
        areas.insert(90 * P, anon(97, Prot::READ));
        assert_eq!(areas.gap_below(P, 100 * P), Some(97 * P));
        assert_eq!(areas.gap_below(2 * P, 100 * P), Some(88 * P));
        assert_eq!(areas.gap_below(2 * P, 95 * P), Some(88 * P));
        assert_eq!(areas.gap_below(80 * P, 100 * P), None);
        assert_eq!(
            (areas.gap_above(7 * P, 20 * P), areas.gap_above(P, 91 * P)),
            (Some(20 * P), Some(97 * P))
        );
        assert_eq!(
            (
                areas.gap_above(2 * P, 91 * P),
                areas.gap_above(71 * P, 20 * P)
            ),
            (Some(100 * P), Some(100 * P))
        );
        assert_eq!(areas.gap_above(USER_END, 20 * P), None);
    }

    /// Where `len` pages fit, by looking at every page.
    fn room(model: &[u32], len: usize, top: usize) -> Option<usize> {
        (1..=top.checked_sub(len)?)
            .rev()
            .find(|&at| model[at..at + len].iter().all(|&prot| prot == 0))
    }

    /// Random changes against a map of single pages; so many areas that they are in several chunks.
    #[test]
    fn intervals_agree_with_pages() {
        const PAGES: usize = 1024;
        let first = crate::USER_START / P;
        let mut areas = VmaMap::default();
        let mut model = [0u32; PAGES];
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 20) as usize % below
        };
        for step in 0..6000 {
            let from = first + random(PAGES - first - 1);
            let to = from + 1 + random(PAGES - from).min(random(6));
            let (range, prot) = (
                from * P..to * P,
                Prot::from_bits_truncate(1 + random(7) as u32),
            );
            match random(5) {
                0 => {
                    areas.remove(range);
                    model[from..to].fill(0);
                }
                1 => {
                    areas.update(range, |a| a.prot = prot);
                    model[from..to]
                        .iter_mut()
                        .filter(|p| **p != 0)
                        .for_each(|p| *p = prot.bits());
                }
                _ => {
                    areas.remove(range.clone());
                    areas.insert(range.start, anon(to, prot));
                    model[from..to].fill(prot.bits());
                }
            }
            for (page, &prot) in model.iter().enumerate() {
                let found = areas.find(page * P).map_or(0, |(_, a)| a.prot.bits());
                assert_eq!(found, prot, "page {page}");
            }
            let shape = shape(&areas);
            assert!(
                shape
                    .windows(2)
                    .all(|w| w[0].1 <= w[1].0 && (w[0].1 < w[1].0 || w[0].2 != w[1].2)),
                "{shape:?}"
            );
            for _ in 0..4 {
                let (len, top) = (
                    1 + random(20),
                    PAGES
                        - if step % 2 == 0 {
                            0
                        } else {
                            random(PAGES - first)
                        },
                );
                let below = room(&model[..], len, top)
                    .filter(|&at| at >= first)
                    .map(|at| at * P);
                assert_eq!(
                    areas.gap_below(len * P, top * P),
                    below,
                    "{len} pages below {top}"
                );
            }
            let free = model[from..to].iter().all(|&prot| prot == 0);
            let covered = model[from..to].iter().all(|&prot| prot != 0);
            assert_eq!(
                (
                    areas.is_free(from * P..to * P),
                    areas.covers(from * P..to * P)
                ),
                (free, covered)
            );
        }
    }
}
