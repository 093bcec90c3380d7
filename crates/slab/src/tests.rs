use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

/// Counts the blocks that are out; the host has enough of them, up to a limit.
struct Host {
    out: AtomicUsize,
    most: usize,
    /// Has single pages only every other time.
    in_pieces: bool,
    /// Orders of the pages that are out.
    orders: Mutex<BTreeMap<usize, u8>>,
}

fn layout(order: u8) -> Layout {
    Layout::from_size_align(PAGE << order, PAGE << order).unwrap()
}

// SAFETY: the layout says what is asked for.
unsafe impl Pages for &Host {
    fn take(&self, order: u8) -> Option<NonNull<u8>> {
        let out = self.out.fetch_add(1, Ordering::Relaxed);
        if out >= self.most || self.in_pieces && order > 0 && out.is_multiple_of(2) {
            self.out.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        // SAFETY: the layout has a size.
        let block = NonNull::new(unsafe { alloc(layout(order)) })?;
        let first = block.addr().get() / PAGE;
        let pages = first..first + (1 << order);
        let mut orders = self.orders.lock();
        orders.extend(pages.map(|page| (page, order)));
        Some(block)
    }
    unsafe fn give(&self, block: NonNull<u8>, order: u8) {
        self.out.fetch_sub(1, Ordering::Relaxed);
        assert_eq!(self.order_at(block.addr().get()), order);
        // SAFETY: from `take`, by the caller's promise.
        unsafe { dealloc(block.as_ptr(), layout(order)) };
    }
    fn order_at(&self, address: usize) -> u8 {
        self.orders.lock()[&(address / PAGE)]
    }
}

const fn host(most: usize) -> Host {
    Host {
        out: AtomicUsize::new(0),
        most,
        in_pieces: false,
        orders: Mutex::new(BTreeMap::new()),
    }
}

/// An object filled with a pattern, so that overlaps are noticed.
struct Held {
    object: NonNull<u8>,
    class: usize,
    pattern: u8,
}

impl Held {
    fn new(object: NonNull<u8>, class: usize, pattern: u8) -> Self {
        assert!(
            object
                .as_ptr()
                .addr()
                .is_multiple_of(1 << SIZES[class].trailing_zeros())
        );
        // SAFETY: the object is as long as its class says, and ours.
        unsafe { object.as_ptr().write_bytes(pattern, SIZES[class]) };
        Self {
            object,
            class,
            pattern,
        }
    }

    fn check(&self) {
        // SAFETY: ours, written before.
        let bytes = unsafe { core::slice::from_raw_parts(self.object.as_ptr(), SIZES[self.class]) };
        assert!(
            bytes.iter().all(|byte| *byte == self.pattern),
            "an object of class {} was overwritten",
            self.class
        );
    }
}

proptest! {
    #[test]
    fn objects_are_apart_and_slabs_come_back(steps in prop::collection::vec((0usize..3 * CLASSES, 0usize..2, any::<prop::sample::Index>()), 1..600), in_pieces: bool) {
        let host = Host { in_pieces, ..host(usize::MAX) };
        let slabs = Slabs::new(&host);
        let magazines = [Magazines::default(), Magazines::default()];
        let mut held: Vec<Held> = Vec::new();
        for (n, (what, cpu, index)) in steps.into_iter().enumerate() {
            if what < 2 * CLASSES {
                let class = what % CLASSES;
                // SAFETY: the magazines belong to these slabs.
                let object = unsafe { slabs.alloc(&magazines[cpu], class) }.unwrap();
                held.push(Held::new(object, class, n as u8));
            } else if !held.is_empty() {
                let gone = held.swap_remove(index.index(held.len()));
                gone.check();
                // SAFETY: allocated above, and forgotten.
                unsafe { slabs.free(&magazines[cpu], gone.object, gone.class) };
            }
        }
        for (class, (size, count)) in slabs.in_use(magazines.iter()).enumerate() {
            prop_assert_eq!((size, count), (SIZES[class], held.iter().filter(|held| held.class == class).count()));
        }
        for gone in held {
            gone.check();
            // SAFETY: as above.
            unsafe { slabs.free(&magazines[0], gone.object, gone.class) };
        }
        for magazines in &magazines {
            // SAFETY: as above.
            unsafe { slabs.drain(magazines) };
        }
        // At most the spare slab of each class is left.
        prop_assert!(host.out.load(Ordering::Relaxed) <= CLASSES * SPARE);
    }
}

/// As long as there is a page, there is an object of each size.
#[test]
fn where_memory_is_in_pieces_a_page_is_a_slab() {
    let host = Host {
        in_pieces: true,
        ..host(CLASSES)
    };
    let slabs = Slabs::new(&host);
    let magazines = Magazines::default();
    for class in 0..CLASSES {
        // SAFETY: the magazines belong to these slabs.
        assert!(unsafe { slabs.alloc(&magazines, class) }.is_some());
    }
    let orders: Vec<u8> = host.orders.lock().values().copied().collect();
    assert!(orders.contains(&0) && orders.contains(&2));
}

#[test]
fn short_memory_is_an_answer() {
    let host = host(2);
    let slabs = Slabs::new(&host);
    let magazines = Magazines::default();
    let class = class_of(Layout::new::<[u64; 8]>()).unwrap();
    // SAFETY: the magazines belong to these slabs.
    let held: Vec<_> = core::iter::from_fn(|| unsafe { slabs.alloc(&magazines, class) }).collect();
    assert_eq!(held.len(), 2 * per_slab(class, order(class)));
    for object in held {
        // SAFETY: allocated above.
        unsafe { slabs.free(&magazines, object, class) };
    }
    // SAFETY: as above.
    assert!(unsafe { slabs.alloc(&magazines, class) }.is_some());
}

#[test]
fn threads_share_a_magazine() {
    let host = host(usize::MAX);
    let slabs = Slabs::new(&host);
    let magazines = Magazines::default();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (slabs, magazines) = (&slabs, &magazines);
            scope.spawn(move || {
                let mut held: Vec<Held> = Vec::new();
                for n in 0..if cfg!(miri) { 400 } else { 20_000_usize } {
                    let class = (n * 7 + thread) % 5 + if n % 50 == 0 { SMALL } else { 0 };
                    // SAFETY: the magazines belong to these slabs.
                    held.push(Held::new(
                        unsafe { slabs.alloc(magazines, class) }.unwrap(),
                        class,
                        thread as u8,
                    ));
                    if held.len() > 100 {
                        for gone in held.drain(n % 60..) {
                            gone.check();
                            // SAFETY: allocated above.
                            unsafe { slabs.free(magazines, gone.object, gone.class) };
                        }
                    }
                }
                for gone in held {
                    gone.check();
                    // SAFETY: allocated above.
                    unsafe { slabs.free(magazines, gone.object, gone.class) };
                }
            });
        }
    });
    // SAFETY: as above.
    unsafe { slabs.drain(&magazines) };
    assert!(host.out.load(Ordering::Relaxed) <= CLASSES * SPARE);
}

/// Magazines exchange halves with the slabs, and count small and large objects meanwhile.
#[test]
fn magazines_are_filled_and_emptied_by_halves() {
    let host = host(usize::MAX);
    let slabs = Slabs::new(&host);
    let magazines = Magazines::default();
    for (class, rounds) in [
        (0, SMALL_ROUNDS),
        (1, SMALL_ROUNDS),
        (SMALL, LARGE_ROUNDS),
        (SMALL + 1, LARGE_ROUNDS),
    ] {
        // SAFETY: the magazines belong to these slabs.
        let take = || unsafe { slabs.alloc(&magazines, class) }.unwrap();
        // SAFETY: taken from these slabs, and forgotten.
        let give = |object| unsafe { slabs.free(&magazines, object, class) };
        let used = || slabs.in_use([&magazines].into_iter()).nth(class).unwrap();
        assert_eq!((used(), magazines.bytes()), ((SIZES[class], 0), 0));
        let first = take();
        assert_eq!(
            (used(), magazines.len(class)),
            ((SIZES[class], 1), rounds / 2 - 1)
        );
        assert_eq!(magazines.bytes(), (rounds / 2 - 1) * SIZES[class]);
        let others: Vec<_> = (1..=rounds).map(|_| take()).collect();
        assert_eq!(used().1, rounds + 1);
        // Those that were in use fill it up; the one that finds it full takes half of them along.
        let kept = magazines.len(class);
        for (there, object) in (kept + 1..).zip(others.into_iter().chain([first])) {
            give(object);
            match there {
                _ if there <= rounds => assert_eq!(magazines.len(class), there),
                _ if there == rounds + 1 => assert_eq!(magazines.len(class), rounds / 2 + 1),
                _ => {}
            }
        }
        assert_eq!(used().1, 0);
        let left = magazines.len(class);
        assert!((1..=rounds).contains(&left));
        assert_eq!(
            (
                // SAFETY: as above.
                unsafe { slabs.drain(&magazines) },
                magazines.bytes(),
                used().1
            ),
            (left, 0, 0)
        );
    }
    // A spare slab of each, and none more.
    assert_eq!(host.out.load(Ordering::Relaxed), 4 * SPARE);
}

#[test]
fn a_closed_magazine_keeps_nothing() {
    for class in [0, SMALL - 1, SMALL, CLASSES - 1] {
        let host = host(usize::MAX);
        let slabs = Slabs::new(&host);
        let magazines = Magazines::default();
        magazines.close();
        // SAFETY: the magazines belong to these slabs.
        let held: Vec<_> = (0..3 * per_slab(class, order(class)))
            .map(|_| unsafe { slabs.alloc(&magazines, class) }.unwrap())
            .collect();
        assert_eq!(
            (magazines.bytes(), host.out.load(Ordering::Relaxed)),
            (0, 3),
            "three slabs, to the last object"
        );
        for object in held {
            // SAFETY: taken above.
            unsafe { slabs.free(&magazines, object, class) };
        }
        assert_eq!(
            (magazines.bytes(), host.out.load(Ordering::Relaxed)),
            (0, SPARE)
        );
        // The spare one is used before another is taken.
        for _ in 0..per_slab(class, order(class)) {
            // SAFETY: as above.
            assert!(unsafe { slabs.alloc(&magazines, class) }.is_some());
        }
        assert_eq!(host.out.load(Ordering::Relaxed), 1);
    }
}
