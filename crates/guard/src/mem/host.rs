//! Memory of a pretended instance, for unit tests on the host: 16 MiB, with real page tables that
//! no processor uses.

use std::alloc::{Layout, alloc};
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, Once};
use std::vec::Vec;

use abi::descriptor::MemRange;
use abi::layout::{GRANULE_FRAMES, GRANULE_SIZE, IMAGE, PAGE_SIZE};

use super::frame::Frame;
use super::{TOTAL, alloc as allocator, percpu, phys, refcount};
use crate::paging::build::{self, ImageLayout, Plan, Run};
use crate::paging::{TableView, isolated, kernel};

/// Frames of the instance.
pub(crate) const FRAMES: u64 = 8 * GRANULE_FRAMES;
/// Physical address that frame 0 pretends to have.
pub(crate) const PHYS: u64 = 0x20_0000;

static MEMORY: LazyLock<usize> = LazyLock::new(|| {
    let layout =
        Layout::from_size_align(FRAMES as usize * PAGE_SIZE, GRANULE_SIZE).expect("constants");
    // SAFETY: the layout has a size. Never freed.
    let memory = unsafe { alloc(layout) };
    // Real memory holds something, too.
    // SAFETY: just allocated, of that size.
    unsafe { memory.write_bytes(0xa5, layout.size()) };
    memory.expose_provenance()
});

/// Start of the direct map.
pub(super) fn base() -> usize {
    *MEMORY
}

/// Gives the memory to the allocator; only the first call does anything.
pub(crate) fn set_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let range = MemRange {
            first_frame: 0,
            phys: PHYS,
            count: FRAMES,
        };
        phys::init(&[range]);
        let mut used = 0..GRANULE_FRAMES;
        let part = |pages: usize| IMAGE + pages * PAGE_SIZE;
        let image = ImageLayout {
            text: part(0)..part(1),
            rodata: part(1)..part(2),
            data: part(2)..part(3),
        };
        let runs = [Run {
            first: 0,
            at: Frame(0),
            count: FRAMES,
        }];
        let plan = Plan {
            runs: &runs,
            image_first: 0,
            image: &image,
            shared: &[],
        };
        used.start = 16;
        // SAFETY: frames of the first granule, each taken once.
        let root =
            unsafe { build::build(&plan, TableView::Direct, &mut || used.next().map(Frame)) }
                .expect("tables");
        kernel::init(root);
        // SAFETY: frames of the first granule, which nobody else takes.
        unsafe { refcount::init(Frame(used.start), FRAMES) };
        let bytes = percpu::bytes(1);
        let layout = Layout::from_size_align(bytes, PAGE_SIZE).expect("constants");
        // SAFETY: the layout has a size; zeroed, and never freed.
        unsafe { percpu::init(std::alloc::alloc_zeroed(layout), 1) };
        let words = (0..frames::words_needed(FRAMES, 1))
            .map(|_| frames::AtomicU64::new(0))
            .collect();
        let frames = frames::Frames::new(FRAMES, FRAMES, 1, Vec::leak(words));
        frames.add(GRANULE_FRAMES, FRAMES - GRANULE_FRAMES, 0);
        allocator::init(frames);
        TOTAL.store(FRAMES, Ordering::Relaxed);
        isolated::init().expect("tables");
    });
}

#[cfg(test)]
pub(crate) use heap::without_heap;

/// The host's heap, which can be short.
#[cfg(test)]
mod heap {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;
    use std::ptr::null_mut;

    std::thread_local! {
        static NOTHING_LEFT: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `f` while the calling thread gets nothing from the heap.
    pub(crate) fn without_heap<R>(f: impl FnOnce() -> R) -> R {
        NOTHING_LEFT.set(true);
        let result = f();
        NOTHING_LEFT.set(false);
        result
    }

    struct Heap;

    #[global_allocator]
    static HEAP: Heap = Heap;

    // SAFETY: the host's allocator, or nothing.
    unsafe impl GlobalAlloc for Heap {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if NOTHING_LEFT.get() {
                null_mut()
            } else {
                // SAFETY: passed on.
                unsafe { System.alloc(layout) }
            }
        }
        unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
            // SAFETY: passed on.
            unsafe { System.dealloc(ptr, layout) };
        }
    }
}
