//! The kernel heap behind `alloc`: slabs with per-CPU magazines (`slab`) up to 2 KiB, runs of
//! frames beyond, or up to 256 KiB single ones (`pieces`).
//!
//! Allocating and freeing a small object takes no lock unless the CPU's magazine is empty or full;
//! a larger one takes none at all. The thread may be moved or interrupted anywhere in between.
//! Slabs without objects go back to the frame allocator, and so does what the magazines hold when
//! memory is short.
//!
//! Not for interrupt handlers (asserted in debug builds): the slabs behind the magazines are under
//! sleeping locks, which are never held while frames are asked for.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering;

use ::alloc::boxed::Box;
use ::alloc::vec::Vec;
use abi::layout::PAGE_SIZE;
use fallible::inject;
use slab::{Pages, Slabs, class_of};
use zerocopy::FromZeros;

use super::alloc::{Block, Run};
use super::shortage::{self, SURE_BYTES};
use super::{direct, percpu, pieces, refcount};

/// Frames the heap holds, for slabs and for large objects.
pub(super) fn frames() -> u64 {
    percpu::sum(|local| &local.heap)
}

/// Gives back what the CPUs keep for small objects. Sleeps.
pub(super) fn shrink() {
    percpu::all().for_each(shrink_share);
}

/// The same for what one of them keeps.
pub(super) fn shrink_share(local: &percpu::CpuCache) {
    // SAFETY: the instance's magazines are used with `HEAP` only.
    unsafe { HEAP.small.drain(&local.magazines) };
}

/// Bytes of free objects that the CPUs keep.
pub(super) fn kept() -> u64 {
    percpu::all()
        .map(|local| local.magazines.bytes() as u64)
        .sum()
}

/// The sizes of small objects, and how many of each are in use.
pub fn heap_objects() -> impl Iterator<Item = (usize, usize)> {
    HEAP.small
        .in_use(percpu::all().map(|local| &local.magazines))
}

/// The allocator behind `alloc::alloc`.
pub(crate) struct Heap {
    small: Slabs<Blocks>,
}

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: Heap = Heap {
    small: Slabs::new(Blocks),
};

/// Slabs are blocks of frames.
struct Blocks;

// SAFETY: blocks are aligned to their size, and owned until they are dropped; so long nobody else
// notes anything with their frames.
unsafe impl Pages for Blocks {
    fn take(&self, order: u8) -> Option<NonNull<u8>> {
        shortage::admit(1 << order);
        // There are smaller slabs: only for the smallest are others to give memory back.
        let block = if order == 0 {
            shortage::insist(|| Block::new(0))?
        } else {
            Block::at_hand(order)?
        };
        for frame in 0..1 << order {
            refcount::note(block.first().add(frame), order.into());
        }
        percpu::mine().heap.fetch_add(1 << order, Ordering::Relaxed);
        NonNull::new(direct::ptr(block.into_raw()))
    }

    unsafe fn give(&self, block: NonNull<u8>, order: u8) {
        percpu::mine().heap.fetch_sub(1 << order, Ordering::Relaxed);
        // SAFETY: `take` took the block apart, and nobody uses it.
        drop(unsafe { Block::from_raw(direct::frame_at(block.as_ptr()), order) });
    }

    fn order_at(&self, address: usize) -> u8 {
        let address = core::ptr::with_exposed_provenance::<u8>(address & !(PAGE_SIZE - 1));
        refcount::noted(direct::frame_at(address)) as u8
    }
}

/// Frames of an object that is too large for slabs.
fn pages(layout: Layout) -> u64 {
    layout.size().div_ceil(PAGE_SIZE) as u64
}

/// Whether an object is one that is waited for, and may lie in pieces.
fn is_sure(layout: Layout) -> bool {
    layout.size() <= SURE_BYTES && layout.align() <= PAGE_SIZE
}

#[inline(never)]
fn take_pages(layout: Layout) -> *mut u8 {
    let count = pages(layout);
    let in_a_row = |run: Run| direct::ptr(run.into_raw());
    let new = || Run::new(count, layout.align()).map(in_a_row);
    shortage::admit(count);
    let object = if is_sure(layout) {
        shortage::insist(|| match count {
            1 => new(),
            _ => Run::at_hand(count, layout.align())
                .map(in_a_row)
                .or_else(|| pieces::take(count as usize)),
        })
    } else if inject::fails() {
        None
    } else {
        new()
    };
    let Some(object) = object else {
        shortage::refuse(layout.size());
        return null_mut();
    };
    percpu::mine().heap.fetch_add(count, Ordering::Relaxed);
    object
}

/// # Safety
/// `ptr` came from [`take_pages`] with the same layout, and nobody uses the object.
#[inline(never)]
unsafe fn give_pages(ptr: *mut u8, layout: Layout) {
    let count = pages(layout);
    percpu::mine().heap.fetch_sub(count, Ordering::Relaxed);
    if pieces::contain(ptr) {
        // SAFETY: by the caller's promise; `take_pages` got it there.
        unsafe { pieces::give(ptr, count as usize) };
    } else {
        // SAFETY: `take_pages` gave up ownership of this run.
        drop(unsafe { Run::from_raw(direct::frame_at(ptr), count) });
    }
}

// SAFETY: small objects come from slabs, larger ones from the frame allocator; a layout decides
// which, so `dealloc` finds the same one. Classes suit their layouts, and blocks are aligned to
// their size, which is at least the alignment asked for.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        super::assert_may_sleep();
        match class_of(layout) {
            // SAFETY: the instance's magazines are used with `HEAP` only, which is the one global
            // allocator.
            Some(class) => unsafe { self.small.alloc(&percpu::mine().magazines, class) }
                .map_or(null_mut(), NonNull::as_ptr),
            None => take_pages(layout),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        super::assert_may_sleep();
        match (class_of(layout), NonNull::new(ptr)) {
            // SAFETY: allocated by `alloc` with the same layout, as `GlobalAlloc`'s caller
            // promises; otherwise as there.
            (Some(class), Some(object)) => unsafe {
                self.small.free(&percpu::mine().magazines, object, class);
            },
            // SAFETY: `alloc` got this for the same layout.
            _ => unsafe { give_pages(ptr, layout) },
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `GlobalAlloc`'s caller promises that the size is valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (class_of(layout), class_of(new)) {
            (Some(old), Some(new)) if old == new => return ptr,
            (None, None) if pages(layout) == pages(new) => return ptr,
            _ => {}
        }
        // SAFETY: `new` has a non-zero size; the two allocations are distinct, and as long as the
        // copy assumes.
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

/// A box around `value`; `None` if memory is short.
pub(crate) fn try_box<T>(value: T) -> Option<Box<T>> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).ok()?;
    one.push(value);
    // SAFETY: the list of one is a box with the layout of a `T`, and nobody else's.
    Some(unsafe { Box::from_raw(Box::into_raw(one.into_boxed_slice()).cast()) })
}

/// A box of zeroes, made in place; `None` if memory is short.
pub(crate) fn try_zeroed_box<T: FromZeros>() -> Option<Box<T>> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the layout has a size.
    let at = NonNull::new(unsafe { ::alloc::alloc::alloc_zeroed(Layout::new::<T>()) })?;
    // SAFETY: allocated with the layout of a `T`, of which zeroes are one, and nobody else's.
    Some(unsafe { Box::from_raw(at.as_ptr().cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{alloc::free_frames, host};

    #[test]
    fn objects_of_every_size_come_and_go() {
        host::set_up();
        let layouts: Vec<Layout> = [
            (1, 1),
            (8, 8),
            (200, 8),
            (2048, 64),
            (2049, 8),
            (4096, 4096),
            (70_000, 16),
            (64, 8192),
        ]
        .iter()
        .map(|(size, align)| Layout::from_size_align(*size, *align).unwrap())
        .collect();
        for layout in layouts {
            // SAFETY: the layout has a size; the object is written within it, grown to what is
            // written, and freed.
            unsafe {
                let object = HEAP.alloc(layout);
                assert!(
                    !object.is_null() && object.addr().is_multiple_of(layout.align()),
                    "{layout:?}"
                );
                object.write_bytes(7, layout.size());
                let object = HEAP.realloc(object, layout, layout.size() * 3);
                assert!((0..layout.size()).all(|at| *object.add(at) == 7));
                let layout = Layout::from_size_align(layout.size() * 3, layout.align()).unwrap();
                object.write_bytes(8, layout.size());
                HEAP.dealloc(object, layout);
            }
        }
        let layout = Layout::from_size_align(9 * PAGE_SIZE - 100, 8).unwrap();
        assert_eq!(pages(layout), 9);
        // SAFETY: allocated, and freed.
        unsafe {
            let object = HEAP.alloc(layout);
            assert_eq!(
                HEAP.realloc(object, layout, layout.size() + 90),
                object,
                "the same frames"
            );
            HEAP.dealloc(object, layout);
        }
        shrink();
        assert!(free_frames() > 0);
    }
}
