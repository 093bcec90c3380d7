//! Frames that came while this instance runs (`docs/descriptor.md`): where they are, and where
//! their reference counts are.
//!
//! Frame numbers have no holes, so a granule has its place by its number; from its address it is
//! found by open addressing. Whoever looks takes no lock, and asks for nothing that has left:
//! nobody holds a frame of it. The table is made at the start, for the most memory that the
//! instance may have.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{GRANULE_FRAMES, GRANULE_SIZE, PAGE_SIZE};
use lfmutex::Once;

use super::frame::Frame;
use super::phys::PhysAddr;

/// Reference counts in a frame, of four bytes each: those of two granules.
const COUNTS: u64 = (PAGE_SIZE / size_of::<u32>()) as u64;
/// Granules whose reference counts are in one frame.
const GRANULES_A_FRAME: u64 = COUNTS / GRANULE_FRAMES;

/// A granule that is there: bit 0 of its place.
const THERE: u64 = 1;
/// Bits of its place that say how many of its frames hold reference counts.
const HELD: Range<u32> = 1..11;
/// A position of the index that a granule has left: others may be found behind it.
const LEFT: u64 = u64::MAX;

const _: () =
    assert!(GRANULE_FRAMES < 1 << (HELD.end - HELD.start) && 1 << HELD.end <= GRANULE_SIZE);

/// Frames that the reference counts of so many granules take.
pub(super) const fn count_frames(granules: u64) -> u64 {
    granules.div_ceil(GRANULES_A_FRAME)
}

/// Added granules.
#[derive(Debug)]
pub(crate) struct Added<'a> {
    /// Number of the first granule there may be.
    first: u64,
    /// Physical address of each granule, [`HELD`] and [`THERE`].
    places: &'a [AtomicU64],
    /// Place of each granule's reference counts: the number of the first one, if all frames, from
    /// frame 0 on, held nothing but counts.
    counts: &'a [AtomicU64],
    /// Numbers of granules plus one, or [`LEFT`], by the hash of their addresses. At most half of
    /// it are granules.
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
        (place != 0).then_some((slot, place))
    }

    /// The first frame that can be added.
    pub(super) fn first_frame(&self) -> u64 {
        self.first * GRANULE_FRAMES
    }

    /// Physical address of a frame.
    pub(super) fn phys(&self, frame: Frame) -> Option<PhysAddr> {
        let (_, place) = self.slot(frame)?;
        let first = place & !(GRANULE_SIZE as u64 - 1);
        Some(PhysAddr(
            first + frame.0 % GRANULE_FRAMES * PAGE_SIZE as u64,
        ))
    }

    /// Number of frames at the beginning of a granule that hold reference counts.
    pub(super) fn held(&self, first: Frame) -> u64 {
        let place = self.slot(first).map_or(0, |(_, place)| place);
        place >> HELD.start & ((1 << (HELD.end - HELD.start)) - 1)
    }

    /// The place of a frame's reference count: the frame that holds it, and its number in there.
    pub(super) fn count(&self, frame: Frame) -> Option<(Frame, usize)> {
        let (slot, _) = self.slot(frame)?;
        let count = self.counts[slot].load(Ordering::Relaxed) + frame.0 % GRANULE_FRAMES;
        Some((Frame(count / COUNTS), (count % COUNTS) as usize))
    }

    /// The positions in the index at which a granule may be, in the order of looking.
    fn positions(&self, phys: u64) -> impl Iterator<Item = usize> {
        let hash = (phys / GRANULE_SIZE as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let len = self.index.len();
        (0..len).map(move |step| (hash as usize + step) % len)
    }

    /// The frame at a physical address.
    pub(super) fn frame(&self, at: PhysAddr) -> Option<Frame> {
        let phys = at.0 & !(GRANULE_SIZE as u64 - 1);
        for position in self.positions(phys) {
            let granule = match self.index[position].load(Ordering::Acquire) {
                LEFT => continue,
                number => number.checked_sub(1)?,
            };
            let first = Frame(granule * GRANULE_FRAMES);
            if self.phys(first) == Some(PhysAddr(phys)) {
                return Some(first.add((at.0 - phys) / PAGE_SIZE as u64));
            }
        }
        None
    }

    /// Adds the granule that begins with frame `first` at a physical address. Its reference counts
    /// are the `part`th ones in the frames from `counts` on, of which it has `held`. One at a time.
    ///
    /// # Panics
    /// If there is no room for a granule of that number, or it is there already.
    pub(super) fn insert(&self, first: Frame, phys: u64, counts: Frame, part: u64, held: u64) {
        let slot = (first.0 / GRANULE_FRAMES - self.first) as usize;
        assert_eq!(self.places[slot].load(Ordering::Relaxed), 0, "added twice");
        self.counts[slot].store(counts.0 * COUNTS + part * GRANULE_FRAMES, Ordering::Relaxed);
        self.places[slot].store(phys | held << HELD.start | THERE, Ordering::Release);
        let is_free =
            |position: &usize| matches!(self.index[*position].load(Ordering::Relaxed), 0 | LEFT);
        let position = self.positions(phys).find(is_free);
        let position = position.expect("twice as many positions as granules");
        self.index[position].store(first.0 / GRANULE_FRAMES + 1, Ordering::Release);
    }

    /// Removes the granule that begins with frame `first`, of which nobody holds a frame any more.
    /// One at a time.
    ///
    /// # Panics
    /// If it is not there.
    pub(super) fn remove(&self, first: Frame) {
        let phys = self.phys(first).expect("removed what is not there").0;
        let number = first.0 / GRANULE_FRAMES;
        let is_it = |position: &usize| self.index[*position].load(Ordering::Relaxed) == number + 1;
        let found = self.positions(phys).find(is_it);
        let mut position = found.expect("in the index as long as it is there");
        self.index[position].store(LEFT, Ordering::Release);
        // Where nothing is behind, nothing is looked for behind.
        let len = self.index.len();
        let is_last = self.index[(position + 1) % len].load(Ordering::Relaxed) == 0;
        while is_last && self.index[position].load(Ordering::Relaxed) == LEFT {
            self.index[position].store(0, Ordering::Release);
            position = (position + len - 1) % len;
        }
        self.places[(number - self.first) as usize].store(0, Ordering::Release);
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

/// Whether there is any added granule, at this moment.
#[inline]
pub(super) fn is_any_there() -> bool {
    tables().is_some_and(|added| added.phys(Frame(added.first_frame())).is_some())
}

/// Number of frames at the beginning of an added granule that hold reference counts.
pub(super) fn held(first: Frame) -> u64 {
    tables().map_or(0, |added| added.held(first))
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
            leave in prop::collection::vec(0usize..64, 0..6),
        ) {
            let count = places.len() as u64;
            let words = zeroes(count + spare);
            let added = Added::new(first, first + count + spare, &words);
            let mut model = BTreeMap::new();
            for (n, place) in (0..).zip(&places) {
                let granule = Frame((first + n) * GRANULE_FRAMES);
                let phys = place * GRANULE_SIZE as u64;
                prop_assert_eq!(added.frame(PhysAddr(phys)), None);
                added.insert(granule, phys, Frame(first * GRANULE_FRAMES), n, n % 513);
                model.insert(granule.0, phys);
            }
            // The last ones leave, and come back elsewhere.
            let mut moved = 0;
            for left in leave {
                let left = left.min(places.len());
                for n in (left as u64..count).rev() {
                    let granule = (first + n) * GRANULE_FRAMES;
                    let phys = model.remove(&granule).unwrap();
                    added.remove(Frame(granule));
                    prop_assert_eq!(added.frame(PhysAddr(phys)), None);
                    prop_assert_eq!(added.phys(Frame(granule)), None);
                }
                for n in left as u64..count {
                    moved += 1;
                    let granule = (first + n) * GRANULE_FRAMES;
                    let phys = ((1 << 31) + moved * 3) * GRANULE_SIZE as u64;
                    added.insert(Frame(granule), phys, Frame(first * GRANULE_FRAMES), n, n % 513);
                    model.insert(granule, phys);
                }
            }
            for (granule, phys) in &model {
                let held = (granule / GRANULE_FRAMES - first) % 513;
                prop_assert_eq!(added.held(Frame(*granule)), held);
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
