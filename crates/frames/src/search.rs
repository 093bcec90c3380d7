//! Where frames come from when the CPU's own area has none of the wanted size.

use core::ops::Range;

use crate::area::{Claim, Class, Touch};
use crate::sync::Ordering;
use crate::{AREA_FRAMES, AREA_ORDER, Frames, MAX_ORDER, MOVABLE, NODE, POSITION, RESERVED};

/// Areas with too scattered frames that a search looks at before it takes a piece out of a wholly
/// free one.
const TRIES: usize = 16;

impl Frames<'_> {
    /// Finds a block in any area: on the CPU's node first, partly free areas before wholly free
    /// ones.
    #[cold]
    #[inline(never)]
    pub(crate) fn search(&self, cpu: usize, order: u8, touch: Touch) -> Option<u64> {
        match order {
            0..AREA_ORDER => self.search_small(cpu, order),
            AREA_ORDER => self.search_area(cpu, touch),
            _ if order <= MAX_ORDER => self.search_run(1 << (order - AREA_ORDER), touch),
            _ => None,
        }
    }

    fn search_small(&self, cpu: usize, order: u8) -> Option<u64> {
        let local = self.cpu(cpu);
        let start = local[POSITION].load(Ordering::Relaxed) as usize;
        // What stays is wanted first, to the last frame.
        self.reserve_in(0..self.core, start, cpu, RESERVED, order)
            .or_else(|| self.steal_in(0..self.core, order))
            .or_else(|| {
                let added = self.added_areas()?;
                self.reserve_in(added.clone(), added.start, cpu, RESERVED, order)
                    .or_else(|| self.steal_in(added, order))
            })
    }

    /// A single frame of what was added, if there is one.
    #[cold]
    #[inline(never)]
    pub(crate) fn search_added(&self, cpu: usize) -> Option<u64> {
        let added = self.added_areas()?;
        // From the first one on, because the last ones are to leave first.
        self.reserve_in(added.clone(), added.start, cpu, MOVABLE, 0)
            .or_else(|| self.steal_in(added, 0))
    }

    /// Makes one of these areas this CPU's own, from `start` on, and takes a block from it: on the
    /// CPU's node first, partly free areas before wholly free ones.
    fn reserve_in(
        &self,
        areas: Range<usize>,
        start: usize,
        cpu: usize,
        whose: usize,
        order: u8,
    ) -> Option<u64> {
        let node = self.cpu(cpu)[NODE].load(Ordering::Relaxed) as u8;
        let near = |area: &usize| self.area(*area).load().node() == node;
        let reserve = |area: usize| self.reserve(cpu, whose, area, order);
        let inside = |area: &usize| areas.contains(area);
        let partial = || self.partial.from(start).filter(inside);
        let whole = || self.whole.from(start).filter(inside);
        let found = partial().filter(near).take(TRIES).find_map(reserve);
        let found = found.or_else(|| whole().filter(near).find_map(reserve));
        let found = found.or_else(|| partial().take(TRIES).find_map(reserve));
        found.or_else(|| whole().find_map(reserve))
    }

    /// Takes a block from any of these areas that has one, those of other CPUs too.
    fn steal_in(&self, mut areas: Range<usize>, order: u8) -> Option<u64> {
        areas.find_map(|area| self.steal(area, order))
    }

    /// Makes an area this CPU's own for what the word `whose` is for, and takes a block from it.
    fn reserve(&self, cpu: usize, whose: usize, area: usize, order: u8) -> Option<u64> {
        let (found, before) = self.area(area).claim(order, Claim::Reserve);
        if before.is_none() {
            // Somebody was faster, or the hint is old.
            self.rehint(area);
            return None;
        }
        let Some(found) = found else {
            self.area(area).release();
            self.rehint(area);
            return None;
        };
        self.rehint(area);
        if whose == RESERVED {
            self.cpu(cpu)[POSITION].store(area as u64, Ordering::Relaxed);
        }
        self.replace_reserved(cpu, whose, area as u64 + 1);
        Some(area as u64 * AREA_FRAMES + found)
    }

    /// Puts an area plus one, or 0, into the word of a CPU's reserved area. Whoever takes the
    /// former one out of the word ends its reservation.
    pub(crate) fn replace_reserved(&self, cpu: usize, whose: usize, area: u64) {
        let former = self.cpu(cpu)[whose].swap(area, Ordering::AcqRel);
        if let Some(former) = former.checked_sub(1) {
            self.area(former as usize).release();
            self.rehint(former as usize);
        }
    }

    fn steal(&self, area: usize, order: u8) -> Option<u64> {
        let (found, before) = self.area(area).claim(order, Claim::Steal);
        before?;
        self.rehint(area);
        Some(area as u64 * AREA_FRAMES + found?)
    }

    fn search_area(&self, cpu: usize, touch: Touch) -> Option<u64> {
        self.hinted_area(0, cpu, touch).or_else(|| {
            let free = |area: &usize| self.area(*area).load().is_whole();
            (0..self.entries.len())
                .filter(free)
                .find_map(|area| self.take_area(area, touch))
        })
    }

    /// A whole area that the hints know of: one of those from `start` on, if they have any.
    pub(crate) fn hinted_area(&self, start: usize, cpu: usize, touch: Touch) -> Option<u64> {
        let node = self.cpu(cpu)[NODE].load(Ordering::Relaxed) as u8;
        let near = |area: &usize| self.area(*area).load().node() == node;
        let take = |area: usize| self.take_area(area, touch);
        // The lowest first, so that what is left is in large runs, and the last ones can leave.
        let behind = || self.whole.from(start).filter(|area| *area >= start);
        let found = behind().filter(near).find_map(take);
        let found = found.or_else(|| behind().find_map(take));
        found.or_else(|| self.whole.from(0).find_map(take))
    }

    fn take_area(&self, area: usize, touch: Touch) -> Option<u64> {
        let taken = self.area(area).take_all(touch, Claim::Steal);
        self.rehint(area);
        taken.then_some(area as u64 * AREA_FRAMES)
    }

    /// A run of areas, aligned to its length.
    fn search_run(&self, areas: usize, touch: Touch) -> Option<u64> {
        let all_free = |first: &usize| {
            (*first..first + areas)
                .all(|area| area < self.entries.len() && self.area(area).load().is_whole())
        };
        (0..self.entries.len())
            .step_by(areas)
            .filter(all_free)
            .find_map(|first| {
                for area in first..first + areas {
                    if !self.area(area).take_all(touch, Claim::Steal) {
                        self.give_back(
                            first as u64 * AREA_FRAMES,
                            (area - first) as u64 * AREA_FRAMES,
                        );
                        return None;
                    }
                    self.rehint(area);
                }
                Some(first as u64 * AREA_FRAMES)
            })
    }

    /// Makes the hints say what the area's entry says. Whoever changes an entry's class calls this
    /// afterwards; the last one to do so sees the last class, so the hints are right when all are
    /// done.
    #[inline(never)]
    pub(crate) fn rehint(&self, area: usize) {
        loop {
            let class = self.area(area).load().class();
            self.partial.set(area, class == Class::Partial);
            self.whole.set(area, class == Class::Whole);
            if self.area(area).load().class() == class {
                return;
            }
        }
    }
}
