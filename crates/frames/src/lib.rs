//! A lock-free allocator of frames, as pure logic: it touches no memory but the words its caller
//! lends it.
//!
//! The design follows `LLFree` (Wrenger, Rommel, Halbuer, Dietrich, Lohmann: "LLFree: Scalable and
//! Optionally-Persistent Page-Frame Allocation", USENIX ATC 2023): memory is cut into *areas* of 2
//! MiB. An area is one cache line of bits, one a frame, and one word with the number of its free
//! frames. Whoever takes frames first lowers the number, which reserves them, and then looks for
//! their bits; whoever gives frames back sets the bits first and then raises the number. So the
//! number never promises what is not there, and 512 means that the whole area is free and nobody is
//! about to take any of it. A 2 MiB block is an area whose number went from 512 to 0 in one step.
//! There is nothing to split and nothing to merge.
//!
//! Each CPU *reserves* an area, as a hint to the others to look elsewhere first; its single frames
//! come from there, by two atomic operations on lines that no other CPU touches. Nothing is held
//! back in caches: what is free can be seen and taken by everybody, and the counts are exact
//! whenever nobody is between two of the steps above.
//!
//! Where we differ from the paper: instead of trees of areas with counters of their own, two bits
//! an area say "perhaps partly free" and "perhaps wholly free". They are hints, rewritten only when
//! an area passes from one class to another, and what they miss a last pass over all areas finds. A
//! caller's CPU number is a hint too: nothing goes wrong if a thread has moved meanwhile.
//!
//! Memory that was added after the start may leave again. The areas behind the *first memory* are
//! for what can be moved ([`Frames::alloc_movable`], [`Frames::alloc_area`]), which takes from them
//! as long as they have any; all else takes from the first memory as long as that has any. An area
//! that is to leave is *isolated*: nothing is taken from it, what is freed in it stays there, and
//! when all of it is free it is taken out ([`Frames::remove`]).
//!
//! [`Stash`] is the other building block here: a small per-CPU store of free things that anyone may
//! take from.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

mod area;
mod hints;
mod search;
mod stash;
mod sync;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use core::ops::Range;

use area::{Area, Claim, FRAMES_BITS, Touch};
use hints::Hints;
pub use stash::Stash;
pub use sync::AtomicU64;
use sync::Ordering;

/// Frames of an area: 2 MiB.
pub const AREA_FRAMES: u64 = 512;
/// The order of a block of one area.
pub const AREA_ORDER: u8 = 9;
/// The largest block is `2^MAX_ORDER` frames: 1 GiB.
pub const MAX_ORDER: u8 = 18;

/// Words of an area's bits.
const AREA_WORDS: usize = 8;
/// Words of a CPU: one cache line.
const CPU_WORDS: usize = 8;

/// The CPU's reserved area plus one, or 0.
const RESERVED: usize = 0;
/// Frames freed minus frames taken by way of this CPU, modulo 2^64.
const BALANCE: usize = 1;
/// The CPU's memory node.
const NODE: usize = 2;
/// The area where its last search ended.
const POSITION: usize = 3;
/// The CPU's reserved area plus one for what can be moved, of those that were added, or 0.
const MOVABLE: usize = 4;

/// Number of 64-bit words that [`Frames`] over `frames` frames and `cpus` CPUs needs: 72 bytes and
/// two bits per area, one cache line per CPU.
#[must_use]
pub const fn words_needed(frames: u64, cpus: usize) -> usize {
    let areas = frames.div_ceil(AREA_FRAMES) as usize;
    areas * (AREA_WORDS + 1) + 2 * areas.div_ceil(64) + cpus * CPU_WORDS
}

/// The allocator. Blocks are named by their first frame and their order (`2^order` frames, aligned
/// to their size).
#[derive(Debug)]
pub struct Frames<'a> {
    bits: &'a [[AtomicU64; AREA_WORDS]],
    entries: &'a [AtomicU64],
    partial: Hints<'a>,
    whole: Hints<'a>,
    cpus: &'a [[AtomicU64; CPU_WORDS]],
    frames: u64,
    /// Areas of the first memory.
    core: usize,
    /// Whether anything was ever added behind it.
    has_added: AtomicU64,
}

impl<'a> Frames<'a> {
    /// An allocator for the frames `0..frames`, of which none is free yet, used by CPUs `0..cpus`.
    /// The first memory is `0..first`, whole areas unless that is all. `words` are all 0, and begin
    /// at a cache line.
    ///
    /// # Panics
    /// If `words` is shorter than [`words_needed`] says, or `cpus` is 0.
    #[must_use]
    pub fn new(frames: u64, first: u64, cpus: usize, words: &'a [AtomicU64]) -> Self {
        assert!(cpus > 0, "no CPU");
        let areas = frames.div_ceil(AREA_FRAMES) as usize;
        let (bits, rest) = words.split_at(areas * AREA_WORDS);
        let (cpus, rest) = rest.split_at(cpus * CPU_WORDS);
        let (entries, rest) = rest.split_at(areas);
        let (partial, rest) = rest.split_at(areas.div_ceil(64));
        let whole = &rest[..areas.div_ceil(64)];
        let (bits, cpus) = (bits.as_chunks().0, cpus.as_chunks().0);
        Self {
            bits,
            entries,
            partial: Hints(partial),
            whole: Hints(whole),
            cpus,
            frames,
            core: areas.min(first.div_ceil(AREA_FRAMES) as usize),
            has_added: AtomicU64::new(0),
        }
    }

    /// Number of frames that can be named, free or not.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Number of free frames. Exact while nobody allocates or frees.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        let sum = self.cpus.iter().fold(0u64, |sum, cpu| {
            sum.wrapping_add(cpu[BALANCE].load(Ordering::Relaxed))
        });
        // Read one after another, the balances may sum to less than nothing for a moment.
        if sum > self.frames { 0 } else { sum }
    }

    /// Number of free frames of a memory node. Looks at every area.
    #[must_use]
    pub fn free_frames_of(&self, node: u8) -> u64 {
        (0..self.entries.len())
            .map(|index| self.area(index).load())
            .filter(|e| e.node() == node)
            .map(area::Entry::free)
            .sum()
    }

    /// Number of areas that are wholly free, without isolated ones. Looks at every area.
    #[must_use]
    pub fn free_areas(&self) -> u64 {
        (0..self.entries.len())
            .filter(|index| self.area(*index).load().is_whole())
            .count() as u64
    }

    /// Says which memory node a CPU is nearest to; 0 at first.
    pub fn set_node(&self, cpu: usize, node: u8) {
        self.cpu(cpu)[NODE].store(u64::from(node), Ordering::Relaxed);
    }

    /// Takes a block; `None` if there is none of that size. It counts as touched from now on.
    #[must_use]
    pub fn alloc(&self, cpu: usize, order: u8) -> Option<u64> {
        let reserved = self.cpu(cpu)[RESERVED]
            .load(Ordering::Relaxed)
            .checked_sub(1)
            .filter(|_| order < AREA_ORDER);
        let taken = reserved.and_then(|area| {
            self.area(area as usize)
                .take(order)
                .map(|n| area * AREA_FRAMES + n)
        });
        let first = taken.or_else(|| self.search(cpu, order, Touch::Mark))?;
        self.cpu(cpu)[BALANCE].fetch_sub(1 << order, Ordering::Relaxed);
        Some(first)
    }

    /// Takes a single frame, as [`Self::alloc`].
    #[must_use]
    #[inline]
    pub fn alloc_one(&self, cpu: usize) -> Option<u64> {
        let local = self.cpu(cpu);
        let area = local[RESERVED].load(Ordering::Relaxed).wrapping_sub(1);
        if area < self.entries.len() as u64
            && let Some(n) = self.area(area as usize).take_one()
        {
            local[BALANCE].fetch_sub(1, Ordering::Relaxed);
            return Some(area * AREA_FRAMES + n);
        }
        self.alloc(cpu, 0)
    }

    /// Takes a single frame for what can be moved, as [`Self::alloc`]: of what was added, if that
    /// has one.
    #[must_use]
    #[inline]
    pub fn alloc_movable(&self, cpu: usize) -> Option<u64> {
        let local = self.cpu(cpu);
        let area = local[MOVABLE].load(Ordering::Relaxed).wrapping_sub(1);
        if area < self.entries.len() as u64
            && let Some(n) = self.area(area as usize).take_one()
        {
            local[BALANCE].fetch_sub(1, Ordering::Relaxed);
            return Some(area * AREA_FRAMES + n);
        }
        if self.has_added.load(Ordering::Relaxed) != 0
            && let Some(first) = self.search_added(cpu)
        {
            local[BALANCE].fetch_sub(1, Ordering::Relaxed);
            return Some(first);
        }
        self.alloc_one(cpu)
    }

    /// Takes a whole area for what can be moved, if that is easy: `None` also if there is one that
    /// the hints do not know of. Looks at two bits an area at most.
    #[must_use]
    pub fn alloc_area(&self, cpu: usize) -> Option<u64> {
        let start = self.added_areas().map_or(0, |added| added.start);
        let first = self.hinted_area(start, cpu, Touch::Mark)?;
        self.cpu(cpu)[BALANCE].fetch_sub(AREA_FRAMES, Ordering::Relaxed);
        Some(first)
    }

    /// Gives up the areas that a CPU has reserved, for when the CPU takes no more frames.
    pub fn end_reservation(&self, cpu: usize) {
        for whose in [RESERVED, MOVABLE] {
            self.replace_reserved(cpu, whose, 0);
        }
    }

    /// Areas that may be there behind the first memory, once one was.
    fn added_areas(&self) -> Option<Range<usize>> {
        let added = self.core..self.entries.len();
        (self.has_added.load(Ordering::Relaxed) != 0).then_some(added)
    }

    /// Isolates the area that begins at `first`, or ends that.
    ///
    /// While it is isolated nothing is taken from it but by [`Self::remove`]; its free frames count
    /// as free all the same. Whoever was about to take some of it may still get that.
    pub fn isolate(&self, first: u64, isolated: bool) {
        let area = (first / AREA_FRAMES) as usize;
        if self.area(area).set_open(!isolated) {
            self.rehint(area);
        }
    }

    /// Number of free frames of the area that begins at `first`, isolated or not.
    #[must_use]
    pub fn free_frames_in(&self, first: u64) -> u64 {
        self.area((first / AREA_FRAMES) as usize).load().free()
    }

    /// Whether a frame is free, at this moment.
    ///
    /// # Panics
    /// If it is beyond [`Self::frames`].
    #[must_use]
    pub fn is_free(&self, frame: u64) -> bool {
        let area = self.area((frame / AREA_FRAMES) as usize);
        area.is_free(frame % AREA_FRAMES)
    }

    /// Takes a block of whole areas that does not count as touched by that.
    ///
    /// # Panics
    /// If the order is less than [`AREA_ORDER`].
    #[must_use]
    pub fn alloc_untouched(&self, cpu: usize, order: u8) -> Option<u64> {
        assert!(order >= AREA_ORDER, "only whole areas can be untouched");
        let first = self.search(cpu, order, Touch::Keep)?;
        self.cpu(cpu)[BALANCE].fetch_sub(1 << order, Ordering::Relaxed);
        Some(first)
    }

    /// Gives a block back. It need not be one that was taken as such: all that matters is that none
    /// of it is free.
    ///
    /// # Panics
    /// If it is no block, or some of it is free already.
    #[inline]
    pub fn free(&self, cpu: usize, first: u64, order: u8) {
        if order == 0 && first < self.frames {
            // The usual case, in few instructions.
            let area = (first / AREA_FRAMES) as usize;
            if self.area(area).give_one(first % AREA_FRAMES) {
                self.rehint(area);
            }
            self.cpu(cpu)[BALANCE].fetch_add(1, Ordering::Relaxed);
            return;
        }
        assert!(
            first & ((1 << order) - 1) == 0,
            "freed what is no block: {first:#x}, order {order}"
        );
        self.give(cpu, first, 1 << order);
    }

    /// Gives any run of frames back, as [`Self::free`].
    ///
    /// # Panics
    /// As [`Self::free`].
    pub fn free_run(&self, cpu: usize, first: u64, count: u64) {
        self.give(cpu, first, count);
    }

    /// Adds a run of frames of a memory node, which were not managed so far or were taken out by
    /// [`Self::remove`], and opens their areas. An area that has frames of two nodes belongs to the
    /// one added last. It counts as touched: what is in it is not known here.
    ///
    /// # Panics
    /// If the run reaches beyond [`Self::frames`], or some of it is free.
    pub fn add(&self, first: u64, count: u64, node: u8) {
        for (area, _, _) in pieces(first, count) {
            self.area(area).set_node(node);
            self.area(area).set_touched(true);
            if self.area(area).set_open(true) {
                self.rehint(area);
            }
            if area >= self.core {
                self.has_added.store(1, Ordering::Relaxed);
            }
        }
        self.give(0, first, count);
    }

    /// Takes a run of frames out, isolated or not: all of it, or (`false`) nothing if some of it is
    /// not free.
    #[must_use]
    pub fn remove(&self, cpu: usize, first: u64, count: u64) -> bool {
        if first.checked_add(count).is_none_or(|end| end > self.frames) {
            return false;
        }
        for (area, from, n) in pieces(first, count) {
            let taken = self.area(area).take_run(from, n);
            self.rehint(area);
            if !taken {
                let done = area as u64 * AREA_FRAMES + from - first;
                self.give_back(first, done);
                return false;
            }
        }
        self.cpu(cpu)[BALANCE].fetch_sub(count, Ordering::Relaxed);
        true
    }

    /// Takes the area that begins at `first`, if all of it is free, without touching it by that.
    ///
    /// # Panics
    /// If no area begins there.
    #[must_use]
    pub fn alloc_untouched_at(&self, cpu: usize, first: u64) -> bool {
        assert!(
            first.is_multiple_of(AREA_FRAMES),
            "no area begins at {first:#x}"
        );
        let area = (first / AREA_FRAMES) as usize;
        let taken = self.area(area).take_all(Touch::Keep, Claim::Steal);
        if taken {
            self.rehint(area);
            self.cpu(cpu)[BALANCE].fetch_sub(AREA_FRAMES, Ordering::Relaxed);
        }
        taken
    }

    /// Whether some of an area was handed out since it last was marked as untouched.
    #[must_use]
    pub fn is_touched(&self, first: u64) -> bool {
        self.area((first / AREA_FRAMES) as usize).load().touched()
    }

    /// Marks the areas of a block of whole areas, which is the caller's.
    pub fn set_touched(&self, first: u64, order: u8, touched: bool) {
        for (area, _, _) in pieces(first, 1 << order) {
            self.area(area).set_touched(touched);
        }
    }

    fn give(&self, cpu: usize, first: u64, count: u64) {
        assert!(
            first
                .checked_add(count)
                .is_some_and(|end| end <= self.frames),
            "freed what is not there: {first:#x}"
        );
        self.give_back(first, count);
        self.cpu(cpu)[BALANCE].fetch_add(count, Ordering::Relaxed);
    }

    /// Without changing the balance.
    fn give_back(&self, first: u64, count: u64) {
        for (area, from, n) in pieces(first, count) {
            if self.area(area).give_run(from, n) {
                self.rehint(area);
            }
        }
    }

    #[inline]
    fn cpu(&self, cpu: usize) -> &[AtomicU64; CPU_WORDS] {
        // A CPU that nobody counted with shares what another one has.
        self.cpus.get(cpu).unwrap_or(&self.cpus[0])
    }

    #[inline]
    fn area(&self, index: usize) -> Area<'_> {
        Area {
            entry: &self.entries[index],
            bits: &self.bits[index],
        }
    }
}

/// Cuts a run into what lies in one area each: its index, the first frame within, and how many.
fn pieces(first: u64, count: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let end = first + count;
    let mut next = first;
    core::iter::from_fn(move || {
        (next < end).then(|| {
            let from = next;
            next = end.min((from / AREA_FRAMES + 1) * AREA_FRAMES);
            (
                (from / AREA_FRAMES) as usize,
                from % AREA_FRAMES,
                next - from,
            )
        })
    })
}

const _: () = assert!(AREA_FRAMES < 1 << FRAMES_BITS && AREA_FRAMES == 64 * AREA_WORDS as u64);
