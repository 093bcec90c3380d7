//! Kernel stacks: 32 KiB each, with an unmapped page below, so that an overflow is a fault and not
//! a corruption.
//!
//! Its pages need not be in a row: where memory is in pieces, there still are stacks.
//!
//! A stack that is dropped stays mapped in a pool, and the next one comes from there: creating a
//! thread then touches no page table, and ending one needs no shootdown. Only what exceeds `POOLED`
//! is unmapped and freed.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi::layout::{PAGE_SIZE, STACKS};
use arrayvec::ArrayVec;
use lfmutex::Mutex;
use slab::poison;

use crate::mem::alloc::Block;
use crate::mem::frame::Frame;
use crate::mem::shortage;
use crate::paging::kernel;

/// Usable bytes of a stack.
pub const STACK_SIZE: usize = 32 << 10;

const PAGES: usize = STACK_SIZE / PAGE_SIZE;
/// Distance between stacks: a guard page and the stack.
const STRIDE: usize = PAGE_SIZE + STACK_SIZE;
/// Most stacks in use and pooled together.
const MAX_STACKS: usize = 32 << 10;
/// Most stacks kept for reuse.
const POOLED: usize = 64;

/// A stack for one thread. Whoever drops it must not run on it.
#[derive(Debug)]
pub struct KernelStack {
    slot: u32,
    frames: Frames,
}

/// Frames of a stack, by address.
type Frames = [Frame; PAGES];

/// Frames of all stacks, those of the pool included. Changed only where pages are mapped and
/// unmapped.
static FRAMES: AtomicU64 = AtomicU64::new(0);

/// Frames that the stacks have, those kept for reuse included.
pub(crate) fn frames() -> u64 {
    FRAMES.load(Ordering::Relaxed)
}

struct Stacks {
    /// Bit map of the slots of addresses: set while a slot holds a stack.
    taken: [u64; MAX_STACKS / 64],
    /// Words of `taken` below this one are full.
    hint: usize,
    pool: ArrayVec<(u32, Frames), POOLED>,
}

static POOL: Mutex<Stacks> = Mutex::new(Stacks {
    taken: [0; MAX_STACKS / 64],
    hint: 0,
    pool: ArrayVec::new_const(),
});

impl Stacks {
    fn take_slot(&mut self) -> Option<u32> {
        let word = (self.hint..self.taken.len()).find(|word| self.taken[*word] != u64::MAX)?;
        let bit = self.taken[word].trailing_ones();
        self.taken[word] |= 1 << bit;
        self.hint = word;
        Some((word * 64) as u32 + bit)
    }

    fn free_slot(&mut self, slot: u32) {
        let word = slot as usize / 64;
        self.taken[word] &= !(1 << (slot % 64));
        self.hint = self.hint.min(word);
    }
}

fn bottom_of(slot: u32) -> usize {
    STACKS + slot as usize * STRIDE + PAGE_SIZE
}

impl KernelStack {
    /// Allocates a stack, its content undefined; `None` if memory is short or there are 32,768
    /// stacks already.
    #[must_use]
    pub fn new() -> Option<Self> {
        let slot = {
            let mut stacks = POOL.lock();
            if let Some((slot, frames)) = stacks.pool.pop() {
                return Some(Self { slot, frames });
            }
            stacks.take_slot()?
        };
        let frames = map_pages(bottom_of(slot));
        if frames.is_none() {
            POOL.lock().free_slot(slot);
        }
        Some(Self {
            slot,
            frames: frames?,
        })
    }

    /// The lowest usable address; the page below is the guard page.
    #[must_use]
    pub fn bottom(&self) -> usize {
        bottom_of(self.slot)
    }

    /// End of the stack, one past the highest usable address; aligned to a page.
    #[must_use]
    pub fn top(&self) -> usize {
        self.bottom() + STACK_SIZE
    }
}

/// Maps a stack's pages at `bottom`, in a slot that is the caller's; nothing, if memory is short.
fn map_pages(bottom: usize) -> Option<Frames> {
    if !shortage::may_take(PAGES as u64) {
        return None;
    }
    let mut pages = ArrayVec::<Block, PAGES>::new();
    for _ in 0..PAGES {
        pages.push(Block::new(0)?);
    }
    let frames: Frames = core::array::from_fn(|number| pages[number].first());
    // SAFETY: the frames are the blocks', and no other stack has the slot's addresses.
    unsafe { kernel::map_frames(bottom, &frames) }.ok()?;
    for page in pages {
        page.into_raw();
    }
    FRAMES.fetch_add(PAGES as u64, Ordering::Relaxed);
    Some(frames)
}

/// With `debug=poison`: tells how much of the stack that it is called on was ever used, if that is
/// half of it and more than of any before. Its pages were free before they were mapped, so what was
/// never written to holds the pattern.
pub fn note_depth() {
    /// Most bytes that were used of a stack.
    static DEEPEST: AtomicUsize = AtomicUsize::new(STACK_SIZE / 2);
    let local = 0u64;
    let here = (&raw const local).addr();
    let of_stack = here.wrapping_sub(STACKS) % STRIDE;
    if !poison::on() || here.wrapping_sub(STACKS) >= MAX_STACKS * STRIDE || of_stack < PAGE_SIZE {
        return;
    }
    let below = ((here - of_stack + PAGE_SIZE)..here).step_by(size_of::<u64>());
    // SAFETY: pages of the stack that this runs on, below what is in use.
    let words = below.map(|at| unsafe { (at as *const u64).read_volatile() });
    let used = STACK_SIZE - poison::untouched(words) * size_of::<u64>();
    if DEEPEST.fetch_max(used, Ordering::Relaxed) < used {
        log::warn!("a kernel stack was used to {used} of {STACK_SIZE} bytes");
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        if POOL.lock().pool.try_push((self.slot, self.frames)).is_err() {
            free(self.slot, self.frames);
        }
    }
}

/// Frees a stack that nobody has any more.
fn free(slot: u32, frames: Frames) {
    // SAFETY: the stack was dropped, so nobody runs on it or holds references into it.
    unsafe { kernel::unmap_frames(bottom_of(slot), PAGES) };
    for frame in frames {
        // SAFETY: `map_pages` took the block apart, and nothing maps its frame any more.
        drop(unsafe { Block::from_raw(frame, 0) });
    }
    FRAMES.fetch_sub(PAGES as u64, Ordering::Relaxed);
    POOL.lock().free_slot(slot);
}

/// Frees the stacks that are kept for reuse. Sleeps; the caller holds no lock.
pub(crate) fn shrink() {
    loop {
        // The pool is not locked while its stacks are unmapped.
        let Some((slot, frames)) = POOL.lock().pool.pop() else {
            return;
        };
        free(slot, frames);
    }
}

/// Whether a kernel address is in the guard page of some stack: the fault there was an overflow.
pub(crate) fn is_guard_page(va: usize) -> bool {
    (STACKS..STACKS + MAX_STACKS * STRIDE).contains(&va) && (va - STACKS) % STRIDE < PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_lowest_first() {
        let mut stacks = Stacks {
            taken: [0; MAX_STACKS / 64],
            hint: 0,
            pool: ArrayVec::new_const(),
        };
        for slot in 0..130 {
            assert_eq!(stacks.take_slot(), Some(slot));
        }
        stacks.free_slot(3);
        stacks.free_slot(70);
        assert_eq!(
            (stacks.take_slot(), stacks.take_slot(), stacks.take_slot()),
            (Some(3), Some(70), Some(130))
        );
        stacks.taken.fill(u64::MAX);
        assert_eq!(stacks.take_slot(), None);
    }

    #[test]
    fn every_stack_has_a_guard_page_below() {
        for slot in [0, 1, MAX_STACKS as u32 - 1] {
            assert!(
                is_guard_page(bottom_of(slot) - 1) && is_guard_page(bottom_of(slot) - PAGE_SIZE)
            );
            assert!(
                !is_guard_page(bottom_of(slot)) && !is_guard_page(bottom_of(slot) + STACK_SIZE - 1)
            );
        }
        assert!(!is_guard_page(STACKS + MAX_STACKS * STRIDE));
    }
}
