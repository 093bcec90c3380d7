//! What is mapped where: non-overlapping page-aligned intervals, each with one protection and one source of pages.
//! Nothing here touches memory.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as sys;

use crate::few::Few;
use crate::intervals::{Intervals, Place};
use crate::object::Object;
use crate::{PAGE_SIZE, USER_END};

bitflags::bitflags! {
    /// What a program may do with its memory (`PROT_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Prot: u32 {
        /// Read. The processor cannot grant writing or executing without it.
        const READ = sys::PROT_READ;
        /// Write.
        const WRITE = sys::PROT_WRITE;
        /// Execute.
        const EXEC = sys::PROT_EXEC;
    }

    /// What else is to be known about an area.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct AreaFlags: u32 {
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
    }
}

/// A part of an object.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) object: Arc<Object>,
    /// The object's page at the area's start.
    pub(crate) first: u64,
}

/// A mark that faults leave in an area, under the read lock of the areas: some page was ever brought in, or copied.
#[derive(Default)]
pub(crate) struct Touched(AtomicBool);

impl Touched {
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

impl Clone for Touched {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.get()))
    }
}

/// One interval. Where it begins is kept beside it.
#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) end: usize,
    pub(crate) prot: Prot,
    pub(crate) flags: AreaFlags,
    /// If not, there is nothing to take out of the page table.
    pub(crate) touched: Touched,
    /// Some page may be other than the object's: a copy. A child gets those; the object's it finds itself.
    pub(crate) copied: Touched,
    /// `None`: anonymous memory.
    pub(crate) source: Option<Source>,
    /// What the program calls it (`PR_SET_VMA`); of anonymous memory only.
    pub(crate) name: Option<Arc<[u8]>>,
    /// Where its memory is to come from (`mbind(2)`), as a word of the caller's; 0 by default.
    pub(crate) policy: u64,
}

impl Area {
    /// Memory that nobody has touched.
    pub(crate) fn new(end: usize, prot: Prot, flags: AreaFlags, source: Option<Source>) -> Self {
        Self { end, prot, flags, touched: Touched::default(), copied: Touched::default(), source, name: None, policy: 0 }
    }

    #[inline]
    pub(crate) fn shared(&self) -> bool {
        self.flags.contains(AreaFlags::SHARED)
    }

    /// The part behind the first `bytes`.
    pub(crate) fn tail(&self, bytes: usize) -> Self {
        let mut tail = self.clone();
        if let Some(source) = &mut tail.source {
            source.first += (bytes / PAGE_SIZE) as u64;
        }
        tail
    }

    /// Takes over the marks of an area that becomes a part of this one.
    fn inherit(&self, other: &Self) {
        if other.touched.get() {
            self.touched.set();
        }
        if other.copied.get() {
            self.copied.set();
        }
    }

    /// Whether `next`, which begins where this area of `len` bytes ends, continues it.
    fn continues(&self, len: usize, next: &Self) -> bool {
        let source = match (&self.source, &next.source) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(&a.object, &b.object) && a.first + (len / PAGE_SIZE) as u64 == b.first,
            _ => false,
        };
        source && self.prot == next.prot && self.flags == next.flags && self.policy == next.policy && self.name == next.name
    }
}

/// The areas of an address space, by start.
#[derive(Default)]
pub(crate) struct Areas {
    all: Intervals,
}

impl Areas {
    /// The area that `addr` is in, with its start.
    #[inline]
    pub(crate) fn find(&self, addr: usize) -> Option<(usize, &Area)> {
        self.all.find(addr)
    }

    /// The first area that begins above `addr`, which is in none.
    pub(crate) fn above(&self, addr: usize) -> Option<(usize, &Area)> {
        self.all.get(self.all.seek(addr))
    }

    /// Where the last area that ends at or below `addr`, which is in none, ends.
    pub(crate) fn end_below(&self, addr: usize) -> usize {
        self.all.before(self.all.seek(addr)).and_then(|at| self.all.get(at)).map_or(0, |(_, area)| area.end)
    }

    /// All areas, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Area)> {
        self.all.from(self.all.seek(0))
    }

    /// The parts of areas that lie in `range`, ascending.
    pub(crate) fn within(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, &Area)> {
        self.all
            .from(self.all.seek(range.start))
            .take_while(move |&(start, _)| start < range.end)
            .map(move |(start, area)| (start.max(range.start)..area.end.min(range.end), area))
    }

    /// Whether every address of `range` is in some area.
    pub(crate) fn covers(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        for (start, area) in self.all.from(self.all.seek(range.start)) {
            if at >= range.end || start > at {
                break;
            }
            at = area.end;
        }
        at >= range.end
    }

    /// Whether nothing is in `range`.
    pub(crate) fn is_free(&self, range: Range<usize>) -> bool {
        self.above(range.start).is_none_or(|(start, _)| start >= range.end)
    }

    /// Cuts the area at `at`, which `addr` is inside of. Returns the place of the part behind.
    fn cut(&mut self, at: Place, addr: usize) -> Place {
        let Some((start, area)) = self.all.get_mut(at) else { return at };
        let tail = area.tail(addr - start);
        area.end = addr;
        self.all.insert(self.all.after(at), addr, tail)
    }

    /// The first area of `range`, cut off from what is below.
    fn first(&mut self, range: &Range<usize>) -> Place {
        let at = self.all.seek(range.start);
        match self.all.get(at) {
            Some((start, _)) if start < range.start => self.cut(at, range.start),
            _ => at,
        }
    }

    /// The area at `at`, cut off from what is above `range`, and its place; `None` if it is above altogether.
    fn next(&mut self, at: Place, range: &Range<usize>) -> Option<Place> {
        let (start, area) = self.all.get(at)?;
        if start >= range.end {
            return None;
        }
        if area.end <= range.end {
            return Some(at);
        }
        let tail = self.cut(at, range.end);
        self.all.before(tail)
    }

    /// Takes out everything in `range`; areas that reach over its ends are split.
    pub(crate) fn remove(&mut self, range: Range<usize>) -> Few<(usize, Area)> {
        let mut gone = Few::default();
        let mut at = self.first(&range);
        while let Some(here) = self.next(at, &range) {
            gone.push(self.all.remove(here));
            at = self.all.normal(here);
        }
        gone
    }

    /// Puts an area where nothing is, and joins it with neighbours that it continues.
    pub(crate) fn insert(&mut self, start: usize, area: Area) {
        let at = self.all.seek(start);
        let joins_next =
            matches!(self.all.get(at), Some((next, other)) if next == area.end && area.continues(next - start, other));
        let before = self.all.before(at);
        if let Some(before) = before
            && let Some((first, other)) = self.all.get_mut(before)
            && other.end == start
            && other.continues(start - first, &area)
        {
            other.end = area.end;
            other.inherit(&area);
            if joins_next {
                self.join(at);
            }
            return;
        }
        let here = self.all.insert(at, start, area);
        if joins_next {
            self.join(self.all.after(here));
        }
    }

    /// Puts an area behind all others.
    pub(crate) fn push(&mut self, start: usize, area: Area) {
        self.all.push(start, area);
    }

    /// Joins the area at `at` with the one before, if they can be one. Returns where it is.
    fn join(&mut self, at: Place) -> Place {
        let Some(before) = self.all.before(at) else { return at };
        let (Some((start, first)), Some((next, second))) = (self.all.get(before), self.all.get(at)) else { return at };
        if first.end != next || !first.continues(next - start, second) {
            return at;
        }
        let (_, second) = self.all.remove(at);
        if let Some((_, first)) = self.all.get_mut(before) {
            first.end = second.end;
            first.inherit(&second);
        }
        before
    }

    /// Changes every area in `range`, splitting at its ends, and joins what became alike.
    pub(crate) fn update(&mut self, range: Range<usize>, mut change: impl FnMut(&mut Area)) {
        let mut at = self.first(&range);
        while let Some(here) = self.next(at, &range) {
            if let Some((_, area)) = self.all.get_mut(here) {
                change(area);
            }
            let joined = self.join(here);
            at = self.all.after(joined);
        }
        self.join(at);
    }

    /// Moves the start of the area at `start` down to `to`, where nothing is.
    pub(crate) fn grow_down(&mut self, start: usize, to: usize) {
        self.all.set_start(self.all.seek(start), to);
    }

    /// Moves the end of the area that `addr` is in up to `to`, where nothing is, and joins it with what continues it.
    pub(crate) fn grow_up(&mut self, addr: usize, to: usize) {
        if let Some((_, area)) = self.all.get_mut(self.all.seek(addr)) {
            area.end = to;
        }
        self.join(self.all.seek(to));
    }

    /// The lowest place above `bottom` for `len` bytes.
    pub(crate) fn gap_above(&self, len: usize, bottom: usize) -> Option<usize> {
        let mut start = bottom;
        for (next, area) in self.all.from(self.all.seek(bottom)) {
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

    fn anon(end: usize, prot: Prot) -> Area {
        Area::new(end * P, prot, AreaFlags::empty(), None)
    }

    fn shape(areas: &Areas) -> Vec<(usize, usize, u32)> {
        areas.iter().map(|(s, a)| (s / P, a.end / P, a.prot.bits())).collect()
    }

    #[test]
    fn neighbours_join_and_split_again() {
        let mut areas = Areas::default();
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
        assert!(areas.covers(20 * P..22 * P) && !areas.covers(20 * P..23 * P) && !areas.covers(19 * P..22 * P));
    }

    #[test]
    fn parts_of_an_object_keep_their_page_numbers() {
        let mut areas = Areas::default();
        let object = Object::anonymous();
        let source = Some(Source { object, first: 7 });
        areas.insert(20 * P, Area::new(30 * P, Prot::READ, AreaFlags::SHARED, source));
        let out: Vec<_> = areas.remove(24 * P..26 * P).into_iter().collect();
        assert_eq!(out[0].1.source.as_ref().unwrap().first, 11);
        assert_eq!(areas.find(26 * P).unwrap().1.source.as_ref().unwrap().first, 13);
        for (start, area) in out {
            areas.insert(start, area);
        }
        assert_eq!(shape(&areas), [(20, 30, 1)]);
    }

    #[test]
    fn gaps_are_found_from_the_top() {
        let mut areas = Areas::default();
        assert_eq!(areas.gap_below(2 * P, 100 * P), Some(98 * P));
        areas.insert(98 * P, anon(100, Prot::READ));
        areas.insert(90 * P, anon(97, Prot::READ));
        assert_eq!(areas.gap_below(P, 100 * P), Some(97 * P));
        assert_eq!(areas.gap_below(2 * P, 100 * P), Some(88 * P));
        assert_eq!(areas.gap_below(2 * P, 95 * P), Some(88 * P));
        assert_eq!(areas.gap_below(80 * P, 100 * P), None);
        assert_eq!((areas.gap_above(7 * P, 20 * P), areas.gap_above(P, 91 * P)), (Some(20 * P), Some(97 * P)));
        assert_eq!((areas.gap_above(2 * P, 91 * P), areas.gap_above(71 * P, 20 * P)), (Some(100 * P), Some(100 * P)));
        assert_eq!(areas.gap_above(USER_END, 20 * P), None);
    }

    /// Where `len` pages fit, by looking at every page.
    fn room(model: &[u32], len: usize, top: usize) -> Option<usize> {
        (1..=top.checked_sub(len)?).rev().find(|&at| model[at..at + len].iter().all(|&prot| prot == 0))
    }

    /// Random changes against a map of single pages; so many areas that they are in several chunks.
    #[test]
    fn intervals_agree_with_pages() {
        const PAGES: usize = 1024;
        let first = crate::USER_START / P;
        let mut areas = Areas::default();
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
            let (range, prot) = (from * P..to * P, Prot::from_bits_truncate(1 + random(7) as u32));
            match random(5) {
                0 => {
                    areas.remove(range);
                    model[from..to].fill(0);
                }
                1 => {
                    areas.update(range, |a| a.prot = prot);
                    model[from..to].iter_mut().filter(|p| **p != 0).for_each(|p| *p = prot.bits());
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
            assert!(shape.windows(2).all(|w| w[0].1 <= w[1].0 && (w[0].1 < w[1].0 || w[0].2 != w[1].2)), "{shape:?}");
            for _ in 0..4 {
                let (len, top) = (1 + random(20), PAGES - if step % 2 == 0 { 0 } else { random(PAGES - first) });
                let below = room(&model[..], len, top).filter(|&at| at >= first).map(|at| at * P);
                assert_eq!(areas.gap_below(len * P, top * P), below, "{len} pages below {top}");
            }
            let free = model[from..to].iter().all(|&prot| prot == 0);
            let covered = model[from..to].iter().all(|&prot| prot != 0);
            assert_eq!((areas.is_free(from * P..to * P), areas.covers(from * P..to * P)), (free, covered));
        }
    }
}
