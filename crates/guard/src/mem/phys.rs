//! Frame numbers to physical addresses and back: the only place where physical addresses are made.
//!
//! The map is the descriptor's range table; what was added since is in `added`. In the supervisor
//! the map also holds the frames that are granted to instances: they keep their numbers here, so
//! that their page tables can be built and taken back, but they are not in the direct map.

use abi::descriptor::{MAX_RANGES, MemRange};
use abi::layout::{GRANULE_FRAMES, PAGE_SIZE};
use arrayvec::ArrayVec;
use lfmutex::Once;
pub(crate) use x86_spec::paging::PhysAddr;

use super::added;
use super::frame::Frame;

/// The range table, in both directions.
#[derive(Debug)]
pub(crate) struct Map {
    by_frame: ArrayVec<MemRange, MAX_RANGES>,
    by_phys: ArrayVec<MemRange, MAX_RANGES>,
    /// The largest range, which nearly every question is about.
    largest: MemRange,
}

impl Map {
    /// Takes the ranges of a validated descriptor (ascending by frame, without overlaps).
    ///
    /// # Panics
    /// If a range's frame numbers are not congruent to its physical frame numbers modulo 512, or
    /// two ranges share a granule of frame numbers: the direct map could not use 2 MiB pages, and
    /// memory could not change hands by granules.
    pub(crate) fn new(ranges: &[MemRange]) -> Self {
        let mut by_frame = ArrayVec::<MemRange, MAX_RANGES>::new();
        for range in ranges {
            let pfn = range.phys / PAGE_SIZE as u64;
            assert!(
                pfn.wrapping_sub(range.first_frame)
                    .is_multiple_of(GRANULE_FRAMES),
                "memory range at {:#x}: frame {:#x} is not congruent",
                range.phys,
                range.first_frame
            );
            let end = by_frame.last().map_or(0, |before| {
                (before.first_frame + before.count).div_ceil(GRANULE_FRAMES)
            });
            assert!(
                range.first_frame / GRANULE_FRAMES >= end,
                "memory range at {:#x}: frame {:#x} is in the granule of the range before",
                range.phys,
                range.first_frame
            );
            by_frame.push(*range);
        }
        let mut by_phys = by_frame.clone();
        by_phys.sort_unstable_by_key(|range| range.phys);
        let nothing = MemRange {
            first_frame: 0,
            phys: 0,
            count: 0,
        };
        let largest = by_frame
            .iter()
            .max_by_key(|range| range.count)
            .copied()
            .unwrap_or(nothing);
        Self {
            by_frame,
            by_phys,
            largest,
        }
    }

    /// Physical address of a frame, if it is this instance's.
    #[inline]
    pub(crate) fn phys(&self, frame: Frame) -> Option<PhysAddr> {
        let offset = frame.0.wrapping_sub(self.largest.first_frame);
        if offset < self.largest.count {
            return Some(PhysAddr(self.largest.phys + offset * PAGE_SIZE as u64));
        }
        self.phys_elsewhere(frame)
    }

    #[cold]
    fn phys_elsewhere(&self, frame: Frame) -> Option<PhysAddr> {
        let after = self
            .by_frame
            .partition_point(|range| range.first_frame <= frame.0);
        let range = self.by_frame.get(after.checked_sub(1)?)?;
        let offset = frame.0 - range.first_frame;
        (offset < range.count).then(|| PhysAddr(range.phys + offset * PAGE_SIZE as u64))
    }

    /// The frame at a physical address; `None` if the address is not this instance's memory.
    #[inline]
    pub(crate) fn frame(&self, at: PhysAddr) -> Option<Frame> {
        let offset = at.0.wrapping_sub(self.largest.phys) / PAGE_SIZE as u64;
        if offset < self.largest.count {
            return Some(Frame(self.largest.first_frame + offset));
        }
        self.frame_elsewhere(at)
    }

    #[cold]
    fn frame_elsewhere(&self, at: PhysAddr) -> Option<Frame> {
        let after = self.by_phys.partition_point(|range| range.phys <= at.0);
        let range = self.by_phys.get(after.checked_sub(1)?)?;
        let offset = (at.0 - range.phys) / PAGE_SIZE as u64;
        (offset < range.count).then(|| Frame(range.first_frame + offset))
    }

    /// The ranges, ascending by frame number.
    pub(crate) fn ranges(&self) -> &[MemRange] {
        &self.by_frame
    }

    /// One more than the highest frame number.
    pub(crate) fn end(&self) -> u64 {
        self.by_frame
            .last()
            .map_or(0, |range| range.first_frame + range.count)
    }
}

static MAP: Once<Map> = Once::new();

/// Adopts the descriptor's ranges; once, before anything else of this module is used.
pub(super) fn init(ranges: &[MemRange]) -> &'static Map {
    MAP.call_once(|| Map::new(ranges))
}

/// The map of this instance.
///
/// # Panics
/// Before `mem::init`.
pub(crate) fn map() -> &'static Map {
    MAP.get().expect("memory map used before mem::init")
}

/// Physical address of a frame of this instance.
///
/// # Panics
/// If the instance has no such frame: frame numbers come from the allocator or from the descriptor,
/// so this is a bug of the guard's and must not become an entry in a page table.
#[inline]
pub(crate) fn of(frame: Frame) -> PhysAddr {
    match map().phys(frame).or_else(|| added::tables()?.phys(frame)) {
        Some(at) => at,
        None => panic!("{frame:?} is not this instance's"),
    }
}

/// The frame of this instance at a physical address, if any.
pub(crate) fn frame_at(at: PhysAddr) -> Option<Frame> {
    map().frame(at).or_else(|| added::tables()?.frame(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Map {
        // Physical order differs from frame order, and there is a hole in both.
        Map::new(&[
            MemRange {
                first_frame: 0,
                phys: 0x4000_0000,
                count: 512,
            },
            MemRange {
                first_frame: 512,
                phys: 0x20_0000,
                count: 1024,
            },
            MemRange {
                first_frame: 2048 + 3,
                phys: 0x100_0000 + 3 * 4096,
                count: 5,
            },
        ])
    }

    #[test]
    fn both_directions_agree() {
        let map = map();
        for frame in (0..1536).chain(2051..2056).map(Frame) {
            let at = map.phys(frame).unwrap();
            assert_eq!(map.frame(at), Some(frame));
            assert_eq!(map.frame(at.add(4095)), Some(frame));
        }
        assert_eq!(map.end(), 2056);
    }

    #[test]
    fn holes_are_holes() {
        let map = map();
        for frame in [1536, 2050, 2056, u64::MAX] {
            assert_eq!(map.phys(Frame(frame)), None);
        }
        for at in [
            0,
            0x1f_ffff,
            0x60_0000,
            0x100_2fff,
            0x100_8000,
            0x4020_0000,
            u64::MAX,
        ] {
            assert_eq!(map.frame(PhysAddr(at)), None);
        }
    }

    #[test]
    #[should_panic(expected = "in the granule of the range before")]
    fn two_ranges_in_one_granule_are_refused() {
        let _ = Map::new(&[
            MemRange {
                first_frame: 0,
                phys: 0x20_0000,
                count: 500,
            },
            MemRange {
                first_frame: 500,
                phys: 0x100_0000 + 500 * 4096,
                count: 12,
            },
        ]);
    }

    #[test]
    #[should_panic(expected = "not congruent")]
    fn an_incongruent_range_is_refused() {
        let _ = Map::new(&[MemRange {
            first_frame: 0,
            phys: 0x1000,
            count: 1,
        }]);
    }
}
