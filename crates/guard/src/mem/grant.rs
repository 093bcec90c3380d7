//! Memory on its way to an instance and back.
//!
//! The supervisor takes whole granules out of its frame allocator ([`Granules::take`]), prepares
//! them through its direct map, and then lets go of them ([`Granules::grant`]): they leave the
//! direct map of all its CPUs, and from then on the supervisor cannot touch them either. They come
//! back by [`Granules::take_back`], are scrubbed and freed.
//!
//! An instance gets nothing that belonged to another one, or to the supervisor, or was there before
//! the machine was started again: the frame allocator knows which granules this kernel has scrubbed
//! and not used since, and `take` zeroes the others. What an instance had is scrubbed when it comes
//! back, and what was there at the start by a thread that has nothing better to do, so creating one
//! costs no scrubbing in the usual case.
//!
//! A frame in which hardware has lost something, as an instance or the supervisor was told, is not
//! touched again, and does not come back ([`Granules::retire`]).
//!
//! Granted memory that is dropped is leaked and counted: whoever loses track of its owner must not
//! reuse it.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use ::alloc::vec::Vec;
use abi::descriptor::MAX_RANGES;
use abi::layout::{GRANULE_FRAMES, GRANULE_SIZE, PAGE_SIZE};
use abi::window::BadFrames;
use arrayvec::ArrayVec;

use super::alloc::{self, Block, GRANULE_ORDER};
use super::direct;
use super::frame::Frame;
use super::{high_mark, phys};
use crate::paging::build::Run;
use crate::paging::kernel;
use crate::{keep, timer};

/// Frames granted to instances, and frames lost for good.
static GRANTED: AtomicU64 = AtomicU64::new(0);
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Frames granted at the moment, and frames leaked since boot.
pub(super) fn counts() -> (u64, u64) {
    (
        GRANTED.load(Ordering::Relaxed),
        LEAKED.load(Ordering::Relaxed),
    )
}

/// Statistics of zeroing granted memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// Bytes zeroed.
    pub bytes: u64,
    /// Duration in nanoseconds.
    pub ns: u64,
}

/// Why granules could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoGranules {
    /// Fewer whole granules are free.
    Short {
        /// Number of free whole granules.
        free: u64,
    },
    /// The free granules are scattered over more than [`MAX_RANGES`] runs.
    Scattered,
    /// No memory for a list of them.
    NoMemory,
}

/// Whole granules that belong to one instance, or are about to.
#[derive(Debug)]
pub(crate) struct Granules {
    /// In the order in which the instance numbers them: those taken at once are ascending by frame.
    blocks: Vec<Block>,
    granted: bool,
    /// Frames that nobody gets any more, as the supervisor numbers them.
    bad: ArrayVec<Frame, { BadFrames::CAPACITY }>,
}

impl Granules {
    /// Takes `count` granules out of the allocator, clean, in as few runs as it has. All or
    /// nothing.
    pub(crate) fn take(count: u64) -> Result<Self, NoGranules> {
        let free = alloc::free_granules();
        if free < count {
            return Err(NoGranules::Short { free });
        }
        let mut granules = Self {
            blocks: Vec::new(),
            granted: false,
            bad: ArrayVec::new(),
        };
        let mut missing = count;
        let mut order = alloc::MAX_ORDER;
        while missing > 0 {
            order = order.min(GRANULE_ORDER + missing.ilog2() as u8);
            let room = granules.blocks.try_reserve(1);
            room.map_err(|_| NoGranules::NoMemory)?;
            high_mark::pass(1 << order);
            let block = Block::of_granules(order);
            if block.is_none() {
                high_mark::end_passing(1 << order);
            }
            match block {
                Some(block) => {
                    granules.blocks.push(block);
                    missing -= 1 << (order - GRANULE_ORDER);
                }
                None if order > GRANULE_ORDER => order -= 1,
                // Somebody else was faster.
                None => {
                    return Err(NoGranules::Short {
                        free: count - missing,
                    });
                }
            }
        }
        granules.blocks.sort_unstable_by_key(Block::first);
        if granules.runs().is_none() {
            return Err(NoGranules::Scattered);
        }
        granules.blocks.iter().for_each(alloc::clean);
        Ok(granules)
    }

    /// Granules that an instance has of a supervisor before this one, by their first frames in the
    /// instance's order; `None` without memory for a list. They leave the direct map.
    ///
    /// # Safety
    /// Each is memory of this supervisor's that it has given to nobody and does not use; one list
    /// has it, once.
    pub(crate) unsafe fn adopt(firsts: &[Frame]) -> Option<Self> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(firsts.len()).ok()?;
        for first in firsts {
            // SAFETY: a granule that nobody has, by the caller's promise.
            blocks.push(unsafe { alloc::adopt_granule(*first) });
        }
        let granules = Self {
            blocks,
            granted: true,
            bad: ArrayVec::new(),
        };
        GRANTED.fetch_add(granules.frames(), Ordering::Relaxed);
        // SAFETY: the blocks are whole granules, and no reference leads there.
        unsafe { kernel::unmap_granules(granules.granules()) };
        Some(granules)
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes() as u64).sum()
    }

    /// Number of frames.
    fn frames(&self) -> u64 {
        self.bytes() / PAGE_SIZE as u64
    }

    fn count_as_granted(&self) {
        GRANTED.fetch_add(self.frames(), Ordering::Relaxed);
        high_mark::end_passing(self.frames());
    }

    fn count_as_passing(&self) {
        high_mark::pass(self.frames());
        GRANTED.fetch_sub(self.frames(), Ordering::Relaxed);
    }

    /// The granules as the instance will number them, from frame 0 on without holes; `None` if
    /// there are too many runs.
    pub(crate) fn runs(&self) -> Option<ArrayVec<Run, MAX_RANGES>> {
        let mut runs = ArrayVec::<Run, MAX_RANGES>::new();
        self.runs_of(0..u64::MAX)
            .try_for_each(|run| runs.try_push(run))
            .ok()?;
        Some(runs)
    }

    /// The granules of these frames, as the instance numbers them.
    pub(crate) fn runs_of(&self, frames: Range<u64>) -> impl Iterator<Item = Run> {
        let numbers = (0..).step_by(GRANULE_FRAMES as usize);
        let granules = numbers.zip(self.granules());
        let granules = granules.take((frames.end / GRANULE_FRAMES) as usize);
        let granules = granules.skip((frames.start / GRANULE_FRAMES) as usize);
        let mut granules = granules.peekable();
        core::iter::from_fn(move || {
            let (first, at) = granules.next()?;
            let mut count = GRANULE_FRAMES;
            // Granule by granule: a block may span two ranges that are neighbours in frame numbers
            // only.
            let end = |count| phys::of(at).add(count * PAGE_SIZE as u64);
            while granules
                .next_if(|(_, next)| phys::of(*next) == end(count))
                .is_some()
            {
                count += GRANULE_FRAMES;
            }
            Some(Run { first, at, count })
        })
    }

    /// Moves the granules of another list behind these; both are granted, or both are not. Returns
    /// what [`Self::split_off`] takes to undo it; `None`, with nothing moved, if there is no memory
    /// for the list.
    pub(crate) fn append(&mut self, more: &mut Self) -> Option<usize> {
        assert_eq!(
            self.granted, more.granted,
            "granted and not granted memory in one list"
        );
        let mark = self.blocks.len();
        self.blocks.try_reserve(more.blocks.len()).ok()?;
        self.blocks.append(&mut more.blocks);
        // Nothing is left in there to be leaked.
        more.granted = false;
        Some(mark)
    }

    /// Bytes that there were before the [`append`](Self::append) that returned `mark`.
    pub(crate) fn bytes_before(&self, mark: usize) -> u64 {
        let before = self.blocks[..mark].iter();
        before.map(|block| block.bytes() as u64).sum()
    }

    /// The granules that were added by the [`append`](Self::append) that returned `mark`.
    pub(crate) fn split_off(&mut self, mark: usize) -> Option<Self> {
        let mut blocks = Vec::new();
        blocks.try_reserve(self.blocks.len() - mark).ok()?;
        blocks.extend(self.blocks.drain(mark..));
        Some(self.with_their_bad_frames(blocks))
    }

    /// The granules behind the first `bytes` bytes, whole granules; `None`, with nothing moved, if
    /// there is no memory for the lists.
    pub(crate) fn split_behind(&mut self, bytes: u64) -> Option<Self> {
        let mut behind = Vec::new();
        let mut kept = 0;
        let whole = |block: &&Block| {
            kept += block.bytes() as u64;
            kept <= bytes
        };
        let count = self.blocks.iter().take_while(whole).count();
        // One block may be cut in pieces.
        let pieces = usize::from(alloc::MAX_ORDER - GRANULE_ORDER) + 1;
        behind
            .try_reserve(self.blocks.len() - count + pieces)
            .ok()?;
        self.blocks.try_reserve(pieces).ok()?;
        behind.extend(self.blocks.drain(count..));
        let missing = bytes - self.bytes();
        if missing > 0 {
            let cut = behind.remove(0);
            let mut at = 0;
            cut.cut(missing / PAGE_SIZE as u64, &mut |block, stays| {
                if stays {
                    self.blocks.push(block);
                } else {
                    behind.insert(at, block);
                    at += 1;
                }
            });
        }
        Some(self.with_their_bad_frames(behind))
    }

    /// A list of blocks that were among these, with the frames of them that go out of use.
    fn with_their_bad_frames(&mut self, blocks: Vec<Block>) -> Self {
        let is_theirs = |frame: &Frame| blocks.iter().any(|block| block.contains(*frame));
        let bad = self.bad.iter().copied().filter(is_theirs).collect();
        self.bad.retain(|frame| !is_theirs(frame));
        Self {
            blocks,
            granted: self.granted,
            bad,
        }
    }

    /// The supervisor's number of the instance's frame `frame`.
    pub(crate) fn frame(&self, frame: u64) -> Option<Frame> {
        let mut first = 0;
        for block in &self.blocks {
            let count = (block.bytes() / PAGE_SIZE) as u64;
            if frame - first < count {
                return Some(block.first().add(frame - first));
            }
            first += count;
        }
        None
    }

    /// Whether a frame of the supervisor's numbering is among them.
    pub(crate) fn contains(&self, frame: Frame) -> bool {
        self.blocks.iter().any(|block| block.contains(frame))
    }

    /// Has a frame of the supervisor's numbering go out of use, if it is among these, when they are
    /// freed: hardware has lost something in it.
    pub(crate) fn retire(&mut self, frame: Frame) {
        if self.contains(frame) && !self.bad.contains(&frame) {
            let _ = self.bad.try_push(frame);
        }
    }

    /// Writes into the memory before it is granted, at a byte offset as the instance numbers its
    /// frames.
    ///
    /// # Panics
    /// If it was granted, or the bytes are not all within.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(!self.granted, "write into granted memory");
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let within = at as usize % PAGE_SIZE;
            let (now, later) = rest.split_at(rest.len().min(PAGE_SIZE - within));
            let frame = self
                .frame(at / PAGE_SIZE as u64)
                .expect("write beyond the instance's memory");
            // SAFETY: a frame of ours, in the direct map as it is not granted; `now` ends within
            // it. `bytes` is a reference to something else, as nobody has references into these
            // frames.
            unsafe { direct::copy(direct::ptr(frame).add(within), now.as_ptr(), now.len()) };
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Takes the memory out of this instance's direct map, for the instance of that number. When it
    /// returns, no CPU of this instance reaches it.
    pub(crate) fn grant(&mut self, id: u32) {
        if !self.granted {
            self.granted = true;
            self.granules()
                .for_each(|first| keep::set_granule(first, id));
            self.count_as_granted();
            // SAFETY: the blocks are ours, made of whole granules, and `write` refuses from now on.
            unsafe { kernel::unmap_granules(self.granules()) };
        }
    }

    /// Puts the memory back into the direct map.
    ///
    /// # Safety
    /// Every CPU that had the memory mapped is confirmed to be parked or reset, and no device
    /// writes to it.
    pub(crate) unsafe fn take_back(&mut self) {
        if self.granted {
            // SAFETY: ours again, by the caller's promise.
            unsafe { kernel::map_granules(self.granules()) };
            self.count_as_passing();
            self.granted = false;
            self.granules()
                .for_each(|first| keep::set_granule(first, 0));
        }
    }

    /// Turns the granules into work for zeroing and freeing them.
    ///
    /// # Panics
    /// If it is still granted.
    pub(crate) fn into_scrubbing(self) -> Scrubbing {
        assert!(!self.granted, "freeing granted memory");
        Scrubbing {
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            start: timer::now_ns(),
            memory: self,
        }
    }

    /// The first frame of each granule, as the instance orders them.
    fn granules(&self) -> impl Iterator<Item = Frame> {
        self.blocks.iter().flat_map(|block| {
            let (first, count) = (block.first(), (block.bytes() / GRANULE_SIZE) as u64);
            (0..count).map(move |granule| first.add(granule * GRANULE_FRAMES))
        })
    }
}

/// Memory that came back from an instance, being zeroed piece by piece, by as many threads as like.
/// It is freed when dropped; what was not zeroed then is before it is given to anyone.
#[derive(Debug)]
pub struct Scrubbing {
    memory: Granules,
    /// The first piece that nobody has taken.
    next: AtomicU64,
    /// Pieces zeroed.
    done: AtomicU64,
    start: u64,
}

impl Scrubbing {
    /// Number of pieces.
    #[must_use]
    pub fn pieces(&self) -> usize {
        (self.memory.bytes() / GRANULE_SIZE as u64) as usize
    }

    /// Zeroes a piece that nobody has taken yet; false if there is none.
    pub fn scrub_next(&self) -> bool {
        let mut piece = self.next.fetch_add(1, Ordering::Relaxed);
        for block in &self.memory.blocks {
            let count = (block.bytes() / GRANULE_SIZE) as u64;
            if piece < count {
                alloc::scrub(block, piece, &self.memory.bad);
                self.done.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            piece -= count;
        }
        false
    }

    /// Frees the memory.
    pub fn finish(self) -> Scrub {
        Scrub {
            bytes: self.done.load(Ordering::Relaxed) * GRANULE_SIZE as u64,
            ns: timer::now_ns() - self.start,
        }
    }
}

impl Drop for Granules {
    fn drop(&mut self) {
        let frames = self.frames();
        if !self.granted {
            let bad = &self.bad;
            self.blocks
                .drain(..)
                .for_each(|block| alloc::free_without(block, bad));
            high_mark::end_passing(frames);
        }
        if self.granted {
            GRANTED.fetch_sub(frames, Ordering::Relaxed);
            LEAKED.fetch_add(frames, Ordering::Relaxed);
            log::error!(
                "leaking {} MiB that an instance may still use",
                self.bytes() >> 20
            );
            for block in self.blocks.drain(..) {
                block.into_raw();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;
    use crate::mem::host;

    /// There are few granules: one test at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        host::set_up();
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn what_is_in_use_is_not_scrubbed_ahead() {
        let _alone = alone();
        let pair = Block::of_granules(GRANULE_ORDER + 1).unwrap();
        alloc::clean(&pair);
        let first = pair.into_raw();
        let second = first.add(GRANULE_FRAMES);
        // SAFETY: the halves of the block just taken apart.
        let (free, used) = unsafe {
            (
                Block::from_raw(first, GRANULE_ORDER),
                Block::from_raw(second, GRANULE_ORDER),
            )
        };
        // SAFETY: ours.
        unsafe { used.ptr().write_bytes(0xa5, used.bytes()) };
        drop(free);
        let mut next = first.0 / GRANULE_FRAMES;
        while alloc::scrub_ahead(&mut next) {}
        // SAFETY: ours, and written above.
        let bytes = unsafe { core::slice::from_raw_parts(used.ptr(), used.bytes()) };
        assert!(bytes.iter().all(|byte| *byte == 0xa5));
        next = u64::MAX;
        assert!(!alloc::scrub_ahead(&mut next));
    }

    #[test]
    fn without_memory_for_a_list_nothing_is_taken() {
        let _alone = alone();
        let taken = host::without_heap(|| Granules::take(1));
        assert_eq!(taken.err(), Some(NoGranules::NoMemory));
    }

    #[test]
    fn what_is_made_ready_or_scrubbed_is_not_the_kernels() {
        let _alone = alone();
        let kernels = || high_mark::kernel_frames(alloc::free_frames());
        let before = kernels();
        // Other tests have frames meanwhile, but no granules.
        let is_as_before = || kernels().abs_diff(before) < GRANULE_FRAMES;
        let granules = Granules::take(2).unwrap();
        assert!(is_as_before(), "made ready");
        drop(granules);
        assert!(is_as_before(), "not needed after all");
        let scrubbing = Granules::take(2).unwrap().into_scrubbing();
        assert!(is_as_before(), "scrubbed");
        scrubbing.finish();
        assert!(is_as_before(), "free");
        assert!(Granules::take(100).is_err());
        assert!(host::without_heap(|| Granules::take(2)).is_err());
        assert!(is_as_before(), "not had");
    }

    /// Miri takes a minute for all bytes of a granule.
    const STRIDE: usize = if cfg!(miri) { 509 } else { 1 };

    /// Granules that are added go on where the numbers ended, wherever they are, and those that are
    /// split off are the same again.
    #[test]
    fn what_is_added_is_split_off_again() {
        let _alone = alone();
        let mut granules = Granules::take(1).unwrap();
        let mut more = Granules::take(2).unwrap();
        let wanted: Vec<_> = granules.granules().chain(more.granules()).collect();
        let first = granules.bytes() / PAGE_SIZE as u64;
        let mark = granules.append(&mut more).unwrap();
        assert!(granules.granules().eq(wanted.iter().copied()));
        for (frame, at) in (0..).step_by(GRANULE_FRAMES as usize).zip(&wanted) {
            assert_eq!(granules.frame(frame + 5), Some(at.add(5)));
            assert!(granules.contains(at.add(511)));
        }
        let runs: Vec<_> = granules.runs_of(first..u64::MAX).collect();
        let frames = runs.iter().map(|run| run.count).sum::<u64>();
        assert_eq!((runs[0].first, frames), (first, 2 * GRANULE_FRAMES));
        assert!(host::without_heap(|| granules.split_off(mark)).is_none());
        let back = granules.split_off(mark).unwrap();
        assert!(back.granules().eq(wanted[1..].iter().copied()));
        assert!(granules.granules().eq(wanted[..1].iter().copied()));
        assert_eq!(granules.runs_of(first..u64::MAX).count(), 0);
    }

    /// The last granules are cut off, wherever blocks begin and end.
    #[test]
    fn what_is_behind_is_cut_off() {
        let _alone = alone();
        let mut granules = Granules::take(3).unwrap();
        let wanted: Vec<_> = granules.granules().collect();
        granules.retire(wanted[2].add(7));
        for keeps in [3, 2, 1] {
            let bytes = keeps as u64 * GRANULE_SIZE as u64;
            assert!(host::without_heap(|| granules.split_behind(bytes)).is_none());
            assert!(granules.granules().eq(wanted.iter().copied()));
            let mut behind = granules.split_behind(bytes).unwrap();
            assert!(granules.granules().eq(wanted[..keeps].iter().copied()));
            assert!(behind.granules().eq(wanted[keeps..].iter().copied()));
            let runs = granules.runs_of(GRANULE_FRAMES..u64::MAX);
            let frames: u64 = runs.map(|run| run.count).sum();
            assert_eq!(frames, (keeps as u64 - 1) * GRANULE_FRAMES);
            assert_eq!(granules.bad.len() + behind.bad.len(), 1);
            assert_eq!(behind.bad.is_empty(), keeps == 3);
            granules.append(&mut behind).unwrap();
            granules.retire(wanted[2].add(7));
        }
        granules.bad.clear();
    }

    #[test]
    fn what_is_granted_comes_back_scrubbed() {
        let _alone = alone();
        assert!(matches!(
            Granules::take(8),
            Err(NoGranules::Short { free: 3..8 })
        ));
        let mut granules = Granules::take(3).unwrap();
        assert_eq!(granules.bytes(), 6 << 20);
        let runs = granules.runs().unwrap();
        assert_eq!(
            runs.iter().map(|run| run.count).sum::<u64>(),
            3 * GRANULE_FRAMES
        );
        assert_eq!(
            granules.frame(GRANULE_FRAMES + 1).unwrap().0 % GRANULE_FRAMES,
            1
        );
        assert_eq!(granules.frame(3 * GRANULE_FRAMES), None);
        // Across a page boundary, in the last granule.
        let offset = 3 * GRANULE_SIZE as u64 - 5000;
        granules.write(offset, &[7; 3000]);
        let at = granules.frame(offset / PAGE_SIZE as u64).unwrap();
        let first = direct::ptr(granules.frame(0).unwrap());
        // SAFETY: the first granule of `granules`, which nobody else uses.
        let first = unsafe { core::slice::from_raw_parts(first, GRANULE_SIZE) };
        assert!(
            first.iter().step_by(STRIDE).all(|byte| *byte == 0),
            "it holds what was there before"
        );
        granules.grant(1);
        assert_eq!(counts().0, 3 * GRANULE_FRAMES);
        // SAFETY: there is no instance.
        unsafe { granules.take_back() };
        let last = direct::ptr(at).wrapping_add(offset as usize % PAGE_SIZE);
        // SAFETY: part of `granules`, which nobody else uses.
        assert_eq!(unsafe { *last }, 7);
        let scrubbing = granules.into_scrubbing();
        assert_eq!(scrubbing.pieces(), 3);
        while scrubbing.scrub_next() {}
        assert_eq!(scrubbing.finish().bytes, 6 << 20);
        assert_eq!(counts(), (0, 0));
        // SAFETY: the test's memory; nobody else takes granules.
        assert_eq!(unsafe { *last }, 0);
    }

    #[test]
    fn what_hardware_has_lost_nobody_touches_or_gets_again() {
        let _alone = alone();
        let (free, retired) = (alloc::free_frames(), alloc::retired_frames());
        let mut granules = Granules::take(2).unwrap();
        let bad = [3, GRANULE_FRAMES - 1, GRANULE_FRAMES + 64].map(|n| granules.frame(n).unwrap());
        let good = granules.frame(4).unwrap();
        for frame in [bad[0], good] {
            // SAFETY: in `granules`, which nobody else uses.
            unsafe { direct::ptr(frame).write_bytes(0xa5, PAGE_SIZE) };
        }
        // Somebody else's, twice the same, and one after the other.
        let other = Block::new(0).unwrap();
        granules.retire(other.first());
        drop(other);
        bad.iter()
            .chain(&bad)
            .for_each(|frame| granules.retire(*frame));
        let scrubbing = granules.into_scrubbing();
        while scrubbing.scrub_next() {}
        // SAFETY: as above.
        let first_bytes = [bad[0], good].map(|frame| unsafe { *direct::ptr(frame) });
        assert_eq!(first_bytes, [0xa5, 0]);
        drop(scrubbing);
        assert_eq!(alloc::retired_frames(), retired + 3);
        assert_eq!(alloc::free_frames(), free - 3);
        let rest: Vec<Block> = core::iter::from_fn(|| Block::new(0)).collect();
        assert!(rest.iter().all(|block| !bad.contains(&block.first())));
        drop(rest);
        for frame in bad {
            // SAFETY: the test's memory, which nobody has any more.
            unsafe { alloc::donate(frame.0..frame.0 + 1) };
        }
    }
}
