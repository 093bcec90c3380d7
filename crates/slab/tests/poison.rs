//! `debug=poison`, in a program of its own: the mode is the program's.

use std::alloc::{Layout, alloc, dealloc};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use slab::{Magazines, Pages, Slabs, class_of, poison};

struct Host;

fn layout(order: u8) -> Layout {
    Layout::from_size_align(4096 << order, 4096 << order).unwrap()
}

// SAFETY: the layout says what is asked for. Slabs have their ordinary size, as there is memory.
unsafe impl Pages for Host {
    fn take(&self, order: u8) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size.
        NonNull::new(unsafe { alloc(layout(order)) })
    }
    unsafe fn give(&self, block: NonNull<u8>, order: u8) {
        // SAFETY: from `take`, by the caller's promise.
        unsafe { dealloc(block.as_ptr(), layout(order)) };
    }
    fn order_at(&self, _: usize) -> u8 {
        2
    }
}

#[test]
fn objects_written_to_while_free_are_found_and_others_are_not() {
    // SAFETY: there are no slabs yet.
    unsafe { poison::enable() };
    let slabs = Slabs::new(Host);
    let magazines = Magazines::default();
    magazines.close();
    for size in [16, 64, 200, 2048] {
        let class = class_of(Layout::from_size_align(size, 8).unwrap()).unwrap();
        // SAFETY: the magazines belong to these slabs.
        let take = || unsafe { slabs.alloc(&magazines, class) }.unwrap();
        let objects: Vec<_> = (0..100).map(|_| take()).collect();
        for object in &objects {
            // SAFETY: the object is that long, and ours.
            let bytes = unsafe { std::slice::from_raw_parts_mut(object.as_ptr(), size) };
            assert!(
                bytes[8..].iter().all(|byte| *byte == poison::PATTERN),
                "{size}"
            );
            bytes.fill(1);
        }
        for object in objects {
            // SAFETY: taken above.
            unsafe { slabs.free(&magazines, object, class) };
        }
        let late = take();
        // SAFETY: taken just now; the write behind the release is what is looked for, and the block
        // stays allocated.
        unsafe {
            let other = take();
            slabs.free(&magazines, late, class);
            late.as_ptr().add(size - 1).write(7);
            slabs.free(&magazines, other, class);
        }
        let take_all = || {
            for _ in 0..100 {
                take();
            }
        };
        let said = catch_unwind(AssertUnwindSafe(take_all)).unwrap_err();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(
            said.contains(&format!("{:p}", late.as_ptr().wrapping_add(8)))
                && said.contains("a free object"),
            "{said}"
        );
    }
}
