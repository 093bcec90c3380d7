//! What is mapped where: non-overlapping page-aligned intervals, each with one protection and one source of pages.
//! Nothing here touches memory.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general as sys;

use crate::object::Object;
use crate::{PAGE_SIZE, USER_START};

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
    }
}

/// A part of an object.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) object: Arc<Object>,
    /// The object's page at the area's start.
    pub(crate) first: u64,
}

/// One interval. Its start is its key in [`Areas`].
#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) end: usize,
    pub(crate) prot: Prot,
    pub(crate) flags: AreaFlags,
    /// `None`: anonymous memory.
    pub(crate) source: Option<Source>,
}

impl Area {
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

    /// Whether `next`, which begins where this area of `len` bytes ends, continues it.
    fn continues(&self, len: usize, next: &Self) -> bool {
        let source = match (&self.source, &next.source) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(&a.object, &b.object) && a.first + (len / PAGE_SIZE) as u64 == b.first,
            _ => false,
        };
        source && self.prot == next.prot && self.flags == next.flags
    }
}

/// The areas of an address space, by start.
#[derive(Default)]
pub(crate) struct Areas {
    map: BTreeMap<usize, Area>,
}

impl Areas {
    /// The area that `addr` is in, with its start.
    pub(crate) fn find(&self, addr: usize) -> Option<(usize, &Area)> {
        let (&start, area) = self.map.range(..=addr).next_back()?;
        (addr < area.end).then_some((start, area))
    }

    /// The first area that begins above `addr`.
    pub(crate) fn above(&self, addr: usize) -> Option<(usize, &Area)> {
        self.map.range(addr + 1..).next().map(|(&start, area)| (start, area))
    }

    /// Where the last area that ends at or below `addr` ends.
    pub(crate) fn end_below(&self, addr: usize) -> usize {
        self.map.range(..addr).next_back().map_or(0, |(_, area)| area.end)
    }

    /// All areas, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Area)> {
        self.map.iter().map(|(&start, area)| (start, area))
    }

    /// The parts of areas that lie in `range`, ascending.
    pub(crate) fn within(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, &Area)> {
        let first = self.find(range.start).map_or(range.start, |(start, _)| start);
        self.map
            .range(first..range.end.max(first))
            .map(move |(&start, area)| (start.max(range.start)..area.end.min(range.end), area))
            .filter(|(part, _)| !part.is_empty())
    }

    /// Whether every address of `range` is in some area.
    pub(crate) fn covers(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        for (part, _) in self.within(range.clone()) {
            if part.start != at {
                return false;
            }
            at = part.end;
        }
        at >= range.end
    }

    /// Makes `addr` a boundary between areas, if it is inside one.
    fn split(&mut self, addr: usize) {
        let Some((start, area)) = self.find(addr) else { return };
        if start == addr {
            return;
        }
        let tail = area.tail(addr - start);
        if let Some(head) = self.map.get_mut(&start) {
            head.end = addr;
        }
        self.map.insert(addr, tail);
    }

    /// Takes out everything in `range`; areas that reach over its ends are split.
    pub(crate) fn remove(&mut self, range: Range<usize>) -> Vec<(usize, Area)> {
        if range.is_empty() {
            return Vec::new();
        }
        self.split(range.start);
        self.split(range.end);
        let starts: Vec<usize> = self.map.range(range).map(|(&start, _)| start).collect();
        starts.into_iter().filter_map(|start| self.map.remove_entry(&start)).collect()
    }

    /// Puts an area where nothing is, and joins it with neighbours that it continues.
    pub(crate) fn insert(&mut self, start: usize, area: Area) {
        let end = area.end;
        self.map.insert(start, area);
        self.join(end);
        self.join(start);
    }

    /// Joins the areas that meet at `addr`, if they can be one.
    fn join(&mut self, addr: usize) {
        let Some(next) = self.map.get(&addr) else { return };
        let Some((&start, before)) = self.map.range(..addr).next_back() else { return };
        if before.end != addr || !before.continues(addr - start, next) {
            return;
        }
        let end = next.end;
        self.map.remove(&addr);
        if let Some(before) = self.map.get_mut(&start) {
            before.end = end;
        }
    }

    /// Changes every area in `range`, splitting at its ends, and joins what became alike.
    pub(crate) fn update(&mut self, range: Range<usize>, mut change: impl FnMut(&mut Area)) {
        for (start, mut area) in self.remove(range) {
            change(&mut area);
            self.insert(start, area);
        }
    }

    /// Moves the start of the area at `start` down to `to`, where nothing is.
    pub(crate) fn grow_down(&mut self, start: usize, to: usize) {
        if let Some(area) = self.map.remove(&start) {
            self.map.insert(to, area);
        }
    }

    /// The highest place below `top` for `len` bytes.
    pub(crate) fn gap_below(&self, len: usize, top: usize) -> Option<usize> {
        let mut ceiling = top;
        for (&start, area) in self.map.range(..top).rev() {
            if area.end < ceiling && ceiling - area.end >= len {
                return Some(ceiling - len);
            }
            ceiling = ceiling.min(start);
        }
        ceiling.checked_sub(len).filter(|&at| at >= USER_START)
    }

    /// Whether nothing is in `range`.
    pub(crate) fn is_free(&self, range: Range<usize>) -> bool {
        self.within(range).next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = PAGE_SIZE;

    fn anon(end: usize, prot: Prot) -> Area {
        Area { end: end * P, prot, flags: AreaFlags::empty(), source: None }
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
        assert_eq!(out.len(), 1);
        assert_eq!(shape(&areas), [(20, 22, 1), (48, 50, 1)]);
        assert!(areas.covers(20 * P..22 * P) && !areas.covers(20 * P..23 * P) && !areas.covers(19 * P..22 * P));
    }

    #[test]
    fn parts_of_an_object_keep_their_page_numbers() {
        let mut areas = Areas::default();
        let object = Object::anonymous();
        let source = Some(Source { object, first: 7 });
        areas.insert(20 * P, Area { end: 30 * P, prot: Prot::READ, flags: AreaFlags::SHARED, source });
        let out = areas.remove(24 * P..26 * P);
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
    }

    /// Random changes against a map of single pages.
    #[test]
    fn intervals_agree_with_pages() {
        let mut areas = Areas::default();
        let mut model = [0u32; 64];
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 20) as usize % below
        };
        for _ in 0..20_000 {
            let from = 1 + random(62);
            let to = from + 1 + random(64 - from - 1).min(12);
            let (range, prot) = (from * P..to * P, Prot::from_bits_truncate(1 + random(7) as u32));
            match random(3) {
                0 => {
                    areas.remove(range);
                    model[from..to].fill(0);
                }
                1 => {
                    areas.remove(range.clone());
                    areas.insert(range.start, anon(to, prot));
                    model[from..to].fill(prot.bits());
                }
                _ => {
                    areas.update(range, |a| a.prot = prot);
                    model[from..to].iter_mut().filter(|p| **p != 0).for_each(|p| *p = prot.bits());
                }
            }
            for (page, &prot) in model.iter().enumerate() {
                let found = areas.find(page * P).map_or(0, |(_, a)| a.prot.bits());
                assert_eq!(found, prot, "page {page}");
            }
            let shape = shape(&areas);
            assert!(shape.windows(2).all(|w| w[0].1 <= w[1].0 && (w[0].1 < w[1].0 || w[0].2 != w[1].2)), "{shape:?}");
        }
    }
}
