//! What of a mapping is in memory, for `/proc/<pid>/smaps`.

use alloc::vec::Vec;
use core::ops::Range;

use crate::area::{Area, AreaFlags};
use crate::space::{AddressSpace, AreaInfo};
use crate::{PAGE_SIZE, zero};

/// Bytes of one mapping that are in memory, by what is known of the pages. The page of zeros is nobody's.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Residency {
    /// All.
    pub resident: usize,
    /// The mapping's share: of a page that several mappings show, its part.
    pub proportional: usize,
    /// Shown by others too, or kept by a file.
    pub shared: usize,
    /// Of those, written to.
    pub shared_dirty: usize,
    /// Not shown by others, written to.
    pub private_dirty: usize,
    /// Used since it was mapped.
    pub referenced: usize,
    /// Not a file's.
    pub anonymous: usize,
    /// In large pages.
    pub large: usize,
    /// Of a mapping that is locked.
    pub locked: usize,
}

impl Residency {
    /// Adds another mapping's.
    pub fn add(&mut self, other: &Self) {
        self.resident += other.resident;
        self.proportional += other.proportional;
        self.shared += other.shared;
        self.shared_dirty += other.shared_dirty;
        self.private_dirty += other.private_dirty;
        self.referenced += other.referenced;
        self.anonymous += other.anonymous;
        self.large += other.large;
        self.locked += other.locked;
    }
}

impl AddressSpace {
    /// All areas, ascending, with what of them is in memory.
    #[must_use]
    pub fn residency(&self) -> Vec<(AreaInfo, Residency)> {
        let areas = self.listing();
        areas.into_iter().map(|info| (self.resident_in(&info.range), info)).map(|(sum, info)| (info, sum)).collect()
    }

    /// What of a range is in memory. It is looked at piece by piece, as on Linux.
    fn resident_in(&self, range: &Range<usize>) -> Residency {
        let mut sum = Residency::default();
        let state = self.look(range);
        for (part, area) in state.areas.within(range.clone()).filter(|(_, area)| area.touched.get()) {
            self.count(part, area, &mut sum);
        }
        sum
    }

    fn count(&self, part: Range<usize>, area: &Area, sum: &mut Residency) {
        self.table.visit(part, |_, page, noted| {
            if zero::is(page) {
                return;
            }
            // The caller's reference; the file keeps one, and what is written to privately is no file's any more.
            let object = area.source.is_some();
            let mappings = page.refs().saturating_sub(1 + u32::from(object && area.shared())).max(1) as usize;
            let dirty = noted.dirty;
            sum.resident += PAGE_SIZE;
            sum.proportional += PAGE_SIZE / mappings;
            sum.referenced += PAGE_SIZE * usize::from(noted.accessed);
            let shared = area.shared() || mappings > 1;
            sum.shared += PAGE_SIZE * usize::from(shared);
            sum.shared_dirty += PAGE_SIZE * usize::from(shared && dirty);
            sum.private_dirty += PAGE_SIZE * usize::from(!shared && dirty);
            sum.anonymous += PAGE_SIZE * usize::from(!object || (!area.shared() && dirty));
            sum.large += PAGE_SIZE * usize::from(noted.large);
            sum.locked += PAGE_SIZE * usize::from(area.flags.contains(AreaFlags::LOCKED));
        });
    }
}
