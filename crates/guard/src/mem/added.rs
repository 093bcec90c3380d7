//! Frames that came while this instance runs (`docs/descriptor.md`): where they are, and where
//! their reference counts are.
//!
//! Frame numbers have no holes, so a granule has its place by its number; from its address it is
//! found by open addressing. Granules are added and never changed, so whoever looks takes no lock.
//! The table is made at the start, for the most memory that the instance may have.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{GRANULE_FRAMES, GRANULE_SIZE, PAGE_SIZE};
use lfmutex::Once;

use super::frame::Frame;
use super::phys::PhysAddr;

/// Reference counts in a frame, of four bytes each: those of two granules.
const COUNTS: u64 = (PAGE_SIZE / size_of::<u32>()) as u64;
/// Granules whose reference counts are in one frame.
const GRANULES_A_FRAME: u64 = COUNTS / GRANULE_FRAMES;

/// A granule that is there: bit 0 of its words.
const THERE: u64 = 1;

/// Frames that the reference counts of so many granules take.
pub(super) const fn count_frames(granules: u64) -> u64 {
    granules.div_ceil(GRANULES_A_FRAME)
}

/// Added granules.
#[derive(Debug)]
pub(crate) struct Added<'a> {
    /// Number of the first granule there may be.
    first: u64,
    /// Physical address of each granule, and [`THERE`].
    places: &'a [AtomicU64],
    /// Place of each granule's reference counts: the number of the first one, if all frames, from
    /// frame 0 on, held nothing but counts.
    counts: &'a [AtomicU64],
    /// Numbers of granules plus one, by the hash of their addresses. At most half of it is used.
    index: &'a [AtomicU64],
}

/// Words that the tables for so many granules take.
pub(super) const fn words_needed(granules: u64) -> usize {
    let granules = granules as usize;
    if granules == 0 {
        return 0;
    }
    2 * granules + (2 * granules).next_power_of_two()
}

impl<'a> Added<'a> {
    /// Tables for granules `first..end`, of which none is there yet. `words` are zeroes.
    ///
    /// # Panics
    /// If they are fewer than [`words_needed`] says.
    pub(super) fn new(first: u64, end: u64, words: &'a [AtomicU64]) -> Self {
        let granules = (end - first) as usize;
        let (places, rest) = words.split_at(granules);
        let (counts, rest) = rest.split_at(granules);
        Self {
            first,
            places,
            counts,
            index: &rest[..words_needed(end - first) - 2 * granules],
        }
    }

    /// Slot and place of the granule of a frame.
    #[inline]
    fn slot(&self, frame: Frame) -> Option<(usize, u64)> {
        let slot = (frame.0 / GRANULE_FRAMES).checked_sub(self.first)? as usize;
        let place = self.places.get(slot)?.load(Ordering::Acquire);
        (place != 0).then_some((slot, place & !THERE))
    }

    /// Physical address of a frame.
    pub(super) fn phys(&self, frame: Frame) -> Option<PhysAddr> {
        let (_, place) = self.slot(frame)?;
        Some(PhysAddr(
            place + frame.0 % GRANULE_FRAMES * PAGE_SIZE as u64,
        ))
    }

    /// The place of a frame's reference count: the frame that holds it, and its number in there.
    pub(super) fn count(&self, frame: Frame) -> Option<(Frame, usize)> {
        let (slot, _) = self.slot(frame)?;
        let count = self.counts[slot].load(Ordering::Relaxed) + frame.0 % GRANULE_FRAMES;
        Some((Frame(count / COUNTS), (count % COUNTS) as usize))
    }

    /// The positions in the index at which a granule may be, in the order of looking.
    fn positions(&self, phys: u64) -> impl Iterator<Item = &AtomicU64> {
        let hash = (phys / GRANULE_SIZE as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let len = self.index.len();
        (0..len).map(move |step| &self.index[(hash as usize + step) % len])
    }

    /// The frame at a physical address.
    pub(super) fn frame(&self, at: PhysAddr) -> Option<Frame> {
        let phys = at.0 & !(GRANULE_SIZE as u64 - 1);
        for position in self.positions(phys) {
            let granule = position.load(Ordering::Acquire).checked_sub(1)?;
            let first = Frame(granule * GRANULE_FRAMES);
            if self.phys(first) == Some(PhysAddr(phys)) {
                return Some(first.add((at.0 - phys) / PAGE_SIZE as u64));
            }
        }
        None
    }

    /// Adds the granule that begins with frame `first` at a physical address. Its reference counts
    /// are the `part`th ones in the frames from `counts` on. One at a time.
    ///
    /// # Panics
    /// If there is no room for a granule of that number, or it is there already.
    pub(super) fn insert(&self, first: Frame, phys: u64, counts: Frame, part: u64) {
        let slot = (first.0 / GRANULE_FRAMES - self.first) as usize;
        assert_eq!(self.places[slot].load(Ordering::Relaxed), 0, "added twice");
        self.counts[slot].store(counts.0 * COUNTS + part * GRANULE_FRAMES, Ordering::Relaxed);
        self.places[slot].store(phys | THERE, Ordering::Release);
        let free = |position: &&AtomicU64| position.load(Ordering::Relaxed) == 0;
        let position = self.positions(phys).find(free);
        let position = position.expect("twice as many positions as granules");
        position.store(first.0 / GRANULE_FRAMES + 1, Ordering::Release);
    }
}

static ADDED: Once<Added<'static>> = Once::new();

/// Adopts the tables; once, from `mem::init`.
pub(super) fn init(tables: Added<'static>) {
    ADDED.call_once(|| tables);
}

/// The added granules; `None` before `mem::init`.
#[inline]
pub(super) fn tables() -> Option<&'static Added<'static>> {
    ADDED.get()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn zeroes(granules: u64) -> Vec<AtomicU64> {
        (0..words_needed(granules))
            .map(|_| AtomicU64::new(0))
            .collect()
    }

    #[test]
    fn an_instance_without_room_has_none() {
        let added = Added::new(4, 4, &[]);
        assert_eq!(added.phys(Frame(4 * GRANULE_FRAMES)), None);
        assert_eq!(added.frame(PhysAddr(0)), None);
        assert_eq!(
            (count_frames(1), count_frames(2), count_frames(3)),
            (1, 1, 2)
        );
    }

    proptest! {
        /// Each added frame is found by its number and by its address, with a count of its own, and
        /// nothing else is; with a table filled to the last granule.
        #[test]
        fn granules_are_found_both_ways(
            first in 0u64..100,
            places in proptest::collection::btree_set(0u64..1 << 31, 1..64)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>()).prop_shuffle(),
            spare in 0u64..3,
        ) {
            let count = places.len() as u64;
            let words = zeroes(count + spare);
            let added = Added::new(first, first + count + spare, &words);
            let mut model = BTreeMap::new();
            for (n, place) in (0..).zip(&places) {
                let granule = Frame((first + n) * GRANULE_FRAMES);
                let phys = place * GRANULE_SIZE as u64;
                prop_assert_eq!(added.frame(PhysAddr(phys)), None);
                added.insert(granule, phys, Frame(first * GRANULE_FRAMES), n);
                model.insert(granule.0, phys);
            }
            for (granule, phys) in &model {
                for offset in [0, 1, 511] {
                    let frame = Frame(granule + offset);
                    let at = PhysAddr(phys + offset * PAGE_SIZE as u64);
                    prop_assert_eq!(added.phys(frame), Some(at));
                    prop_assert_eq!(added.frame(at.add(4095)), Some(frame));
                    let number = granule + offset - first * GRANULE_FRAMES;
                    prop_assert_eq!(added.count(frame), Some((
                        Frame(first * GRANULE_FRAMES + number / COUNTS),
                        (number % COUNTS) as usize,
                    )));
                }
            }
            prop_assert_eq!(added.phys(Frame((first + count) * GRANULE_FRAMES)), None);
            if first > 0 {
                prop_assert_eq!(added.phys(Frame(first * GRANULE_FRAMES - 1)), None);
            }
        }
    }
}
