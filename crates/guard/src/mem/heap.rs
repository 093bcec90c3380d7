//! The kernel heap behind `alloc`: talc for small objects, whole blocks of frames for large ones.
//!
//! It starts empty and grows from the frame allocator as it is used, by 64 KiB while memory is small, by 2 MiB otherwise.
//! What talc got it keeps; allocations of [`LARGE`] and more bypass it and give their frames back when they are freed, so
//! that the heap does not grow by what was needed once.
//!
//! Lock order: heap, then frame allocator. Neither is taken in interrupt handlers (asserted in debug builds), and the
//! frame allocator itself uses no heap.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::PAGE_SIZE;
use lfmutex::Mutex;
use talc::base::Talc;
use talc::base::binning::{Binning, DefaultBinning};
use talc::source::Source;

use super::alloc::{self, Block};
use super::direct;

/// Bytes from which on an allocation gets frames of its own.
const LARGE: usize = 32 << 10;
/// Order of a growth step while less than [`PLENTY`] frames are free: 64 KiB.
const SMALL_STEP: u8 = 4;
/// Order of a growth step otherwise: 2 MiB.
const LARGE_STEP: u8 = 9;
/// Free frames from which on the heap grows by the large step: 128 MiB.
const PLENTY: u64 = 32 << 10;

/// Frames the heap has taken.
static HEAP_FRAMES: AtomicU64 = AtomicU64::new(0);

/// Frames the heap holds, for talc and for large objects.
pub(super) fn frames() -> u64 {
    HEAP_FRAMES.load(Ordering::Relaxed)
}

/// The allocator behind `alloc::alloc`.
pub(crate) struct Heap {
    small: Mutex<Talc<Grow, DefaultBinning>>,
}

#[cfg(target_os = "none")]
#[global_allocator]
static HEAP: Heap = Heap { small: Mutex::new(Talc::new(Grow { end: None })) };

/// Extends talc by blocks of frames.
#[derive(Debug)]
struct Grow {
    /// End of the last extension, where the next block may happen to follow.
    end: Option<NonNull<u8>>,
}

// SAFETY: `end` is an address, used only under the lock around talc.
unsafe impl Send for Grow {}

// SAFETY: `acquire` asks the frame allocator, which does not use the heap.
unsafe impl Source for Grow {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, _layout: Layout) -> Result<(), ()> {
        // One small step is enough for any request: large ones do not come here, and the first step also holds talc's
        // own tables.
        const { assert!(LARGE * 2 <= PAGE_SIZE << SMALL_STEP) };
        let plenty = alloc::free_frames() >= PLENTY;
        let block = if plenty { Block::new(LARGE_STEP) } else { None }.or_else(|| Block::new(SMALL_STEP)).ok_or(())?;
        let bytes = block.bytes();
        let start = direct::ptr(block.into_raw());
        HEAP_FRAMES.fetch_add((bytes / PAGE_SIZE) as u64, Ordering::Relaxed);
        talc.source.end = match talc.source.end {
            // SAFETY: `end` is the end of a heap of this talc, and the frames right behind it are talc's from now on.
            Some(end) if end.as_ptr() == start => Some(unsafe { talc.extend(end, start.wrapping_add(bytes)) }),
            // SAFETY: the block is mapped, unused, and talc's for good.
            _ => unsafe { talc.claim(start, bytes) },
        };
        talc.source.end.map(drop).ok_or(())
    }
}

/// The order of the block for a large allocation; `None` for what talc serves.
fn large_order(layout: Layout) -> Option<u8> {
    let bytes = layout.size().max(layout.align());
    (bytes >= LARGE).then(|| bytes.div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros() as u8)
}

// SAFETY: small objects come from talc under its lock, large ones from the frame allocator; a layout decides which, so
// `dealloc` finds the same one. Blocks are aligned to their size, which is at least the alignment asked for.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        super::assert_may_sleep();
        if let Some(order) = large_order(layout) {
            return Block::new(order).map_or(null_mut(), |block| {
                HEAP_FRAMES.fetch_add(1 << order, Ordering::Relaxed);
                direct::ptr(block.into_raw())
            });
        }
        // SAFETY: `GlobalAlloc`'s caller promises a layout of non-zero size.
        unsafe { self.small.lock().allocate(layout) }.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        super::assert_may_sleep();
        if let Some(order) = large_order(layout) {
            HEAP_FRAMES.fetch_sub(1 << order, Ordering::Relaxed);
            // SAFETY: `alloc` got this block for the same layout and gave up ownership.
            drop(unsafe { Block::from_raw(direct::frame_at(ptr), order) });
            return;
        }
        // SAFETY: allocated by `alloc` with the same layout, as `GlobalAlloc`'s caller promises.
        unsafe { self.small.lock().deallocate(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `GlobalAlloc`'s caller promises that the size is valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (large_order(layout), large_order(new)) {
            // SAFETY: `ptr` is talc's, with this layout.
            (None, None) if unsafe { self.small.lock().try_realloc_in_place(ptr, layout, new_size) } => return ptr,
            (Some(old), Some(new)) if old == new => return ptr,
            _ => {}
        }
        // SAFETY: `new` has a non-zero size; the two allocations are distinct, and as long as the copy assumes.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                core::ptr::copy_nonoverlapping(ptr, to, layout.size().min(new_size));
                self.dealloc(ptr, layout);
            }
            to
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_allocations_get_blocks_of_their_size_and_alignment() {
        let order = |size, align| large_order(Layout::from_size_align(size, align).unwrap());
        assert_eq!(order(LARGE - 1, 8), None);
        assert_eq!(order(LARGE, 8), Some(3));
        assert_eq!(order(LARGE + 1, 8), Some(4));
        assert_eq!(order(64, 2 << 20), Some(9));
        assert_eq!(order(2 << 20, 4096), Some(9));
    }
}
