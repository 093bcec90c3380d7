//! Frames before there is an allocator: what the descriptor leaves free, and a bump allocator over
//! a piece of it.

use core::ops::Range;

use abi::Descriptor;
use abi::descriptor::{MAX_RANGES, MAX_RESERVED, MemRange};
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;

use super::frame::Frame;
use crate::keep;

/// Reservations of the descriptor, the initramfs, the boot blob, and two runs that the early
/// allocator takes.
const MAX_HOLES: usize = MAX_RESERVED + 4;

/// Runs of frames that are in use, ascending; they may overlap.
#[derive(Debug, Default)]
pub(super) struct Holes(ArrayVec<Range<u64>, MAX_HOLES>);

impl Holes {
    /// The ranges that the descriptor says are in use.
    pub(super) fn of(descriptor: &Descriptor) -> Self {
        let mut holes = Self::default();
        for reserved in descriptor.reserved() {
            holes.add(reserved.first_frame..reserved.first_frame + u64::from(reserved.count));
        }
        holes.add(frames_of(
            descriptor.initramfs_frame,
            descriptor.initramfs_len,
        ));
        holes.add(frames_of(
            descriptor.boot_blob_frame,
            descriptor.boot_blob_len,
        ));
        holes
    }

    /// Adds a run.
    pub(super) fn add(&mut self, run: Range<u64>) {
        if !run.is_empty() {
            let at = self.0.partition_point(|hole| hole.start <= run.start);
            self.0.insert(at, run);
        }
    }

    /// Calls `each` with every maximal run of frames in `range` that is in no hole, ascending. What
    /// an instance has of a supervisor that starts again in place is a hole.
    pub(super) fn between(&self, range: Range<u64>, mut each: impl FnMut(Range<u64>)) {
        let mut next = range.start;
        for hole in &self.0 {
            let end = hole.start.min(range.end);
            if next < end {
                keep::between(next..end, &mut each);
            }
            next = next.max(hole.end);
        }
        if next < range.end {
            keep::between(next..range.end, &mut each);
        }
    }
}

/// The lowest run of so many frames below 4 GiB that a descriptor leaves free.
pub(crate) fn lowest_free(descriptor: &Descriptor, count: u64) -> Option<Frame> {
    let holes = Holes::of(descriptor);
    Bump::new(descriptor.ranges(), &holes, 4 << 30, count).take(count)
}

/// The frames that `len` bytes from the start of `first` occupy.
pub(super) fn frames_of(first: u64, len: u64) -> Range<u64> {
    first..first + len.div_ceil(PAGE_SIZE as u64)
}

/// Hands out frames of one free run, lowest first.
#[derive(Debug)]
pub(super) struct Bump {
    next: u64,
    end: u64,
    start: u64,
}

impl Bump {
    /// Takes the lowest free run of at least `needed` frames whose physical addresses are all below
    /// `reach`; none if there is no such run. The lowest, because the image is there and the
    /// allocator goes on from there: a kernel that keeps to few large pages starts faster where
    /// memory is only made when it is first touched, as in every virtual machine.
    pub(super) fn new(ranges: &[MemRange], holes: &Holes, reach: u64, needed: u64) -> Self {
        let mut lowest = 0..0;
        for range in ranges {
            let below = reach.saturating_sub(range.phys) / PAGE_SIZE as u64;
            let end = range.first_frame + range.count.min(below);
            holes.between(range.first_frame..end, |run| {
                if lowest.is_empty() && run.end - run.start >= needed {
                    lowest = run;
                }
            });
        }
        // The search stays within `MAX_RANGES` ranges, each physically contiguous, so the run is
        // too.
        debug_assert!(ranges.len() <= MAX_RANGES);
        Self {
            start: lowest.start,
            next: lowest.start,
            end: lowest.end,
        }
    }

    /// `count` frames in a row.
    pub(super) fn take(&mut self, count: u64) -> Option<Frame> {
        let first = self.next;
        (count <= self.end - first).then(|| {
            self.next += count;
            Frame(first)
        })
    }

    /// The frames handed out.
    pub(super) fn taken(&self) -> Range<u64> {
        self.start..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(runs: &[(u64, u64)]) -> Holes {
        let mut holes = Holes::default();
        for (start, end) in runs {
            holes.add(*start..*end);
        }
        holes
    }

    fn free(holes: &Holes, range: Range<u64>) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        holes.between(range, |run| out.push((run.start, run.end)));
        out
    }

    #[test]
    fn holes_may_overlap_and_come_in_any_order() {
        let holes = holes(&[(50, 60), (10, 30), (20, 25), (28, 40), (5, 5)]);
        assert_eq!(free(&holes, 0..100), [(0, 10), (40, 50), (60, 100)]);
        assert_eq!(free(&holes, 12..55), [(40, 50)]);
        assert_eq!(free(&holes, 12..20), []);
        assert_eq!(free(&holes, 60..70), [(60, 70)]);
    }

    #[test]
    fn bump_takes_the_lowest_run_that_suffices_and_is_in_reach() {
        let ranges = [
            MemRange {
                first_frame: 0,
                phys: 0x20_0000,
                count: 512,
            },
            MemRange {
                first_frame: 512,
                phys: 0x4000_0000,
                count: 4096,
            },
        ];
        let mut bump = Bump::new(&ranges, &holes(&[(90, 112)]), 0x4000_0000, 100);
        assert_eq!(bump.take(3), Some(Frame(112)));
        assert_eq!(bump.take(398), None);
        assert_eq!(bump.take(397), Some(Frame(115)));
        assert_eq!(bump.taken(), 112..512);
        assert_eq!(
            Bump::new(&ranges, &holes(&[]), u64::MAX, 1).take(1),
            Some(Frame(0))
        );
        assert_eq!(
            Bump::new(&ranges, &holes(&[]), u64::MAX, 513).take(1),
            Some(Frame(512))
        );
        assert_eq!(
            Bump::new(&ranges, &holes(&[]), 0x4000_0000, 513).take(1),
            None
        );
        assert_eq!(Bump::new(&ranges, &holes(&[]), 0x20_3000, 1).take(4), None);
        assert_eq!(Bump::new(&[], &holes(&[]), u64::MAX, 1).take(1), None);
    }
}
