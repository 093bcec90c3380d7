//! The frame allocator: a buddy system under a sleeping lock, with a stock of single frames in front of it.
//!
//! Most requests are for one frame, and freeing one right after another was taken would split and merge a granule each
//! time; the stock takes that churn. It is bounded, and goes back to the buddy system before a request for a larger block
//! is refused, so it never keeps a granule apart for good.
//!
//! For each granule one bit says whether any of it was handed out to this instance since it was last scrubbed. It saves
//! zeroing memory twice before it is granted to another instance (`grant`).

use abi::layout::{GRANULE_FRAMES, PAGE_SIZE};
use arrayvec::ArrayVec;
use frames::Buddy;
use lfmutex::{Mutex, Once};

use super::direct;
use super::frame::Frame;

/// Single frames kept at hand: what a process of ordinary size takes and gives back.
const STOCK: usize = 512;
/// The order of the block that refills an empty stock.
const REFILL_ORDER: u8 = 5;

/// Order of a block of one granule.
pub(super) const GRANULE_ORDER: u8 = GRANULE_FRAMES.trailing_zeros() as u8;
/// Order of the largest blocks: 1 GiB.
pub(super) const MAX_ORDER: u8 = frames::MAX_ORDER;

struct Allocator {
    buddy: Buddy<'static>,
    stock: ArrayVec<Frame, STOCK>,
    /// One bit per granule: handed out for use in this instance since it was last scrubbed.
    used: &'static mut [u64],
}

static ALLOCATOR: Once<Mutex<Allocator>> = Once::new();

/// Words of the bits for frames `0..end`.
pub(super) const fn used_words(end: u64) -> usize {
    end.div_ceil(GRANULE_FRAMES * 64) as usize
}

/// Starts the allocator; once, from `mem::init`. All frames that `buddy` has free are reachable through the direct map
/// and used by nobody. `used` is `used_words` long and zero: what the firmware left in memory belonged to no instance.
pub(super) fn init(buddy: Buddy<'static>, used: &'static mut [u64]) {
    ALLOCATOR.call_once(|| Mutex::new(Allocator { buddy, stock: ArrayVec::new_const(), used }));
}

fn allocator() -> &'static Mutex<Allocator> {
    super::assert_may_sleep();
    ALLOCATOR.get().expect("frames asked for before mem::init")
}

impl Allocator {
    fn take(&mut self, order: u8) -> Option<Frame> {
        if order == 0 {
            if self.stock.is_empty()
                && let Some(first) = self.buddy.alloc(REFILL_ORDER)
            {
                // Lowest first out again.
                self.stock.extend((0..1 << REFILL_ORDER).rev().map(|n| Frame(first + n)));
            }
            return self.stock.pop().or_else(|| self.buddy.alloc(0).map(Frame));
        }
        if let Some(first) = self.buddy.alloc(order) {
            return Some(Frame(first));
        }
        self.restock(0);
        self.buddy.alloc(order).map(Frame)
    }

    /// Notes that the granules of a block are in use, or (if `used` is false) scrubbed. Returns whether the first was used.
    fn note(&mut self, first: Frame, order: u8, used: bool) -> bool {
        let granule = (first.0 / GRANULE_FRAMES) as usize;
        let was_used = self.used[granule / 64] & 1 << (granule % 64) != 0;
        for granule in granule..granule + (1 << order.saturating_sub(GRANULE_ORDER)) {
            let (word, bit) = (&mut self.used[granule / 64], 1 << (granule % 64));
            *word = if used { *word | bit } else { *word & !bit };
        }
        was_used
    }

    fn put(&mut self, first: Frame, order: u8) {
        if order > 0 {
            self.buddy.free(first.0, order);
            return;
        }
        if self.stock.is_full() {
            self.restock(STOCK / 2);
        }
        self.stock.push(first);
    }

    /// Gives all but `keep` of the stock back to the buddy system.
    fn restock(&mut self, keep: usize) {
        for frame in self.stock.drain(keep.min(self.stock.len())..) {
            self.buddy.free(frame.0, 0);
        }
    }
}

/// `2^order` consecutive frames that belong to whoever holds this; dropping it frees them.
#[derive(Debug)]
pub(crate) struct Block {
    first: Frame,
    order: u8,
}

impl Block {
    /// Allocates a block, aligned to its size, its content undefined; `None` if there is none of that size.
    pub(crate) fn new(order: u8) -> Option<Self> {
        let mut allocator = allocator().lock();
        let first = allocator.take(order)?;
        allocator.note(first, order, true);
        Some(Self { first, order })
    }

    /// Allocates a block of whole granules that is meant for another instance: it does not count as used yet. Its content
    /// may be this instance's own until [`clean`].
    pub(super) fn of_granules(order: u8) -> Option<Self> {
        debug_assert!(order >= GRANULE_ORDER);
        let first = allocator().lock().take(order)?;
        Some(Self { first, order })
    }

    /// Allocates a block of zeroes.
    pub(crate) fn zeroed(order: u8) -> Option<Self> {
        let block = Self::new(order)?;
        // SAFETY: the block is ours, and free frames are in the direct map.
        unsafe { direct::zero(block.ptr(), 1 << order) };
        Some(block)
    }

    /// Its first frame.
    pub(crate) fn first(&self) -> Frame {
        self.first
    }

    /// Its memory, in the direct map.
    pub(crate) fn ptr(&self) -> *mut u8 {
        direct::ptr(self.first)
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        PAGE_SIZE << self.order
    }

    /// Gives up ownership: the block is freed by [`Block::from_raw`] or never.
    pub(crate) fn into_raw(self) -> Frame {
        let first = self.first;
        core::mem::forget(self);
        first
    }

    /// Takes up ownership again.
    ///
    /// # Safety
    /// `first` came from `into_raw` of a block of the same order, once for each `from_raw`.
    pub(crate) unsafe fn from_raw(first: Frame, order: u8) -> Self {
        Self { first, order }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        allocator().lock().put(self.first, self.order);
    }
}

/// Gives frames to the allocator that it has not managed so far.
///
/// # Safety
/// The frames are this instance's, in the direct map, and used by nobody from now on.
pub(super) unsafe fn donate(frames: core::ops::Range<u64>) {
    let mut allocator = allocator().lock();
    for first in (frames.start / GRANULE_FRAMES * GRANULE_FRAMES..frames.end).step_by(GRANULE_FRAMES as usize) {
        allocator.note(Frame(first), GRANULE_ORDER, true);
    }
    allocator.buddy.add_range(frames.start, frames.end - frames.start);
}

/// Makes a block of one frame that the allocator has not managed so far; dropping it gives it to the allocator.
///
/// # Safety
/// As for [`donate`].
pub(super) unsafe fn adopt(frame: Frame) -> Block {
    allocator().lock().note(frame, 0, true);
    Block { first: frame, order: 0 }
}

/// Number of whole granules that are free.
pub(crate) fn free_granules() -> u64 {
    let mut allocator = allocator().lock();
    allocator.restock(0);
    (GRANULE_ORDER..=MAX_ORDER).map(|order| allocator.buddy.free_blocks(order) << (order - GRANULE_ORDER)).sum()
}

/// Number of free frames.
pub(super) fn free_frames() -> u64 {
    let allocator = allocator().lock();
    allocator.buddy.free_frames() + allocator.stock.len() as u64
}

/// Makes sure that a block of granules holds nothing of this instance's, and counts it as used from now on. Costs nothing
/// where it was scrubbed before, or not used since boot.
pub(super) fn clean(block: &Block) {
    for granule in 0..1 << (block.order - GRANULE_ORDER) {
        let first = block.first.add(granule * GRANULE_FRAMES);
        if allocator().lock().note(first, GRANULE_ORDER, true) {
            // SAFETY: the granule is part of the caller's block, and in the direct map.
            unsafe { direct::zero(direct::ptr(first), GRANULE_FRAMES as usize) };
        }
    }
}

/// Zeroes a block of granules and counts it as unused.
pub(super) fn scrub(block: &Block) {
    // SAFETY: the block is the caller's, and in the direct map.
    unsafe { direct::zero(block.ptr(), 1 << block.order) };
    allocator().lock().note(block.first, block.order, false);
}
