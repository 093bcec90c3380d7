//! Objects of the heap of several pages where memory is in pieces: single frames, mapped one behind
//! the other. So what the kernel cannot do without needs frames, and not frames in a row.
//!
//! Windows of addresses lie in the same entry of the top-level table as the stacks, far above them.
//! Taking one needs no lock; mapping and unmapping take that of the kernel's tables, under which
//! nothing is allocated that could ask for memory, so objects may be freed wherever others may.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{PAGE_SIZE, STACKS};
use arrayvec::ArrayVec;

use super::alloc::Block;
use super::frame::Frame;
use super::shortage::SURE_BYTES;
use crate::paging::kernel;

/// Pages of the largest object.
const PAGES: usize = SURE_BYTES / PAGE_SIZE;
/// Distance of windows: behind each there is a page that is not mapped.
const STRIDE: usize = SURE_BYTES + PAGE_SIZE;
/// Number of windows: more objects than this are not needed where memory is in pieces, since it is
/// nearly used up then.
const WINDOWS: usize = 4096;
/// Address of the first window.
const BASE: usize = STACKS + (64 << 30);

/// A bit for each window that is in use.
static TAKEN: [AtomicU64; WINDOWS / 64] = [const { AtomicU64::new(0) }; WINDOWS / 64];

/// Takes the lowest window that is free.
fn take_window() -> Option<usize> {
    TAKEN.iter().enumerate().find_map(|(number, word)| {
        let lowest_free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let before = word
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest_free)
            .ok()?;
        Some(number * 64 + before.trailing_ones() as usize)
    })
}

fn give_window(number: usize) {
    TAKEN[number / 64].fetch_and(!(1 << (number % 64)), Ordering::Release);
}

/// Whether an object of the heap lies in a window.
#[inline]
pub(super) fn contain(object: *mut u8) -> bool {
    (BASE..BASE + WINDOWS * STRIDE).contains(&object.addr())
}

/// An object of so many pages, its content undefined; `None` if memory is short.
///
/// # Panics
/// If the object is larger than a window.
pub(super) fn take(count: usize) -> Option<*mut u8> {
    assert!(count <= PAGES, "an object of {count} pages in pieces");
    let mut blocks = ArrayVec::<Block, PAGES>::new();
    for _ in 0..count {
        blocks.push(Block::new(0)?);
    }
    let frames: ArrayVec<Frame, PAGES> = blocks.iter().map(Block::first).collect();
    let window = take_window()?;
    let address = BASE + window * STRIDE;
    // SAFETY: the frames are the blocks', and the window is nobody else's.
    if unsafe { kernel::map_frames(address, &frames) }.is_err() {
        give_window(window);
        return None;
    }
    for block in blocks {
        block.into_raw();
    }
    Some(core::ptr::with_exposed_provenance_mut(address))
}

/// Frees an object.
///
/// # Safety
/// It came from [`take`] with the same count, once for each `give`, and nobody uses it.
pub(super) unsafe fn give(object: *mut u8, count: usize) {
    let address = object.addr();
    let mapped = |page: usize| kernel::frame_at(address + page * PAGE_SIZE);
    let frames: ArrayVec<Frame, PAGES> = (0..count).filter_map(mapped).collect();
    // SAFETY: by the caller's promise nobody uses it.
    unsafe { kernel::unmap_frames(address, count) };
    for frame in frames {
        // SAFETY: `take` took the block apart, and nothing maps its frame any more.
        drop(unsafe { Block::from_raw(frame, 0) });
    }
    give_window((address - BASE) / STRIDE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::host;

    #[test]
    fn frames_are_mapped_in_a_row_and_come_back() {
        host::set_up();
        let first = take(PAGES).unwrap();
        let second = take(3).unwrap();
        assert!(contain(first) && contain(second) && !contain(first.wrapping_sub(1)));
        assert_eq!(second.addr(), first.addr() + STRIDE);
        let mapped = |object: *mut u8, page: usize| {
            kernel::frame_at(object.addr() + page * PAGE_SIZE).is_some()
        };
        assert_eq!(
            [0, 1, 2, 3].map(|page| mapped(second, page)),
            [true, true, true, false]
        );
        // SAFETY: taken, and used by nobody.
        unsafe {
            give(first, PAGES);
            assert_eq!(take(1), Some(first), "the lowest window");
            give(first, 1);
            give(second, 3);
        }
        assert!(!mapped(first, 0));
        // So often that frames would run out if any were lost.
        for _ in 0..2 * host::FRAMES as usize / PAGES {
            let object = take(PAGES).unwrap();
            // SAFETY: as above.
            unsafe { give(object, PAGES) };
        }
    }
}
