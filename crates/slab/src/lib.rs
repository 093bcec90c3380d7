//! Small objects: slabs with per-CPU magazines, after Bonwick and Adams ("Magazines and Vmem",
//! USENIX ATC 2001).
//!
//! Each size has *slabs*, blocks cut into objects of that size, kept in a list under a sleeping
//! lock; a slab whose objects are all free goes back. In front of them each CPU has a *magazine*
//! per size, a [`Stash`] of free objects: allocating and freeing take from and put into it without
//! a lock, wherever the thread happens to run. Only an empty or full magazine goes to the slabs,
//! for many objects at once.
//!
//! Where memory is in pieces and there is no block of a slab's ordinary size, a smaller one makes a
//! slab, too, so that a small object can be had as long as there is a free page.
//!
//! A free object's first word links it to the next one of its slab; nothing else of it is written,
//! but with [`poison`].
#![cfg_attr(not(test), no_std)]

mod class;
pub mod poison;

use core::ptr::{self, NonNull};

pub use class::{CLASSES, LARGEST, class_of};
use class::{SIZES, SMALL, order};
use frames::Stash;
use lfmutex::Mutex;

const PAGE: usize = 4096;
/// Objects of a size that a CPU keeps.
const SMALL_ROUNDS: usize = 64;
const LARGE_ROUNDS: usize = 8;
/// Most objects that go to or come from the slabs at once.
const BATCH: usize = SMALL_ROUNDS / 2;
/// Slabs without objects in use that a class keeps.
const SPARE: usize = 1;

/// Where slabs come from.
///
/// # Safety
/// `take` returns `2^order` pages, aligned to their size, that are the caller's until `give`, and
/// so long `order_at` of each address in them is `order`.
pub unsafe trait Pages: Sync {
    /// A block; `None` if memory is short.
    fn take(&self, order: u8) -> Option<NonNull<u8>>;
    /// Gives a block back.
    ///
    /// # Safety
    /// It came from `take` with the same order, once, and nobody uses it.
    unsafe fn give(&self, block: NonNull<u8>, order: u8);
    /// Order of the block that an address is in. Only asked where it is not known otherwise.
    fn order_at(&self, address: usize) -> u8;
}

/// The free objects that one CPU keeps. All-zero bytes are an empty one.
#[derive(Debug, Default)]
pub struct Magazines {
    small: [Stash<SMALL_ROUNDS>; SMALL],
    large: [Stash<LARGE_ROUNDS>; CLASSES - SMALL],
}

impl Magazines {
    /// Bytes of all objects in them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (small, large) = (
            self.small.iter().map(Stash::len),
            self.large.iter().map(Stash::len),
        );
        small
            .chain(large)
            .zip(SIZES)
            .map(|(count, size)| count * size)
            .sum()
    }

    /// From now on it keeps nothing: each object comes from the slabs and goes there. Only before
    /// it is used.
    pub fn close(&self) {
        self.small.iter().for_each(Stash::close);
        self.large.iter().for_each(Stash::close);
    }

    fn len(&self, class: usize) -> usize {
        if class < SMALL {
            self.small[class].len()
        } else {
            self.large[class - SMALL].len()
        }
    }

    #[inline]
    fn pop(&self, class: usize) -> Option<usize> {
        if class < SMALL {
            self.small[class].pop()
        } else {
            self.large[class - SMALL].pop()
        }
    }

    #[inline]
    fn push(&self, class: usize, object: usize) -> bool {
        if class < SMALL {
            self.small[class].push(object)
        } else {
            self.large[class - SMALL].push(object)
        }
    }
}

/// At the start of each slab; its objects lie at the end.
struct Slab {
    next: *mut Slab,
    prev: *mut Slab,
    /// Objects that were in use and are free.
    free: *mut Free,
    /// Objects that never were in use: the last ones.
    fresh: usize,
    /// Objects that are not here.
    out: usize,
    /// Its size: `2^order` pages.
    order: u8,
}

struct Free {
    next: *mut Free,
}

/// The slabs of one size that have something to give.
struct Class {
    partial: *mut Slab,
    /// Number of slabs that have all their objects.
    spare: usize,
    /// Objects that are not in slabs.
    out: usize,
}

// SAFETY: the pointers lead to slabs, which only the holder of the lock around this looks at.
unsafe impl Send for Class {}

/// The slabs of all sizes.
///
/// ```
/// # use std::alloc::{Layout, alloc, dealloc};
/// # struct Host;
/// # fn layout(order: u8) -> Layout {
/// #     Layout::from_size_align(4096 << order, 4096 << order).unwrap()
/// # }
/// # // SAFETY: the layout says what is asked for.
/// # unsafe impl slab::Pages for Host {
/// #     fn take(&self, order: u8) -> Option<std::ptr::NonNull<u8>> {
/// #         std::ptr::NonNull::new(unsafe { alloc(layout(order)) })
/// #     }
/// #     unsafe fn give(&self, block: std::ptr::NonNull<u8>, order: u8) {
/// #         unsafe { dealloc(block.as_ptr(), layout(order)) }
/// #     }
/// #     fn order_at(&self, _: usize) -> u8 {
/// #         unreachable!("objects of 100 bytes lie in single pages")
/// #     }
/// # }
/// let slabs = slab::Slabs::new(Host);
/// let magazines = slab::Magazines::default(); // of one CPU
/// let class = slab::class_of(Layout::new::<[u8; 100]>()).unwrap();
/// // SAFETY: the magazines are used with these slabs only, and the object goes back once.
/// unsafe {
///     let object = slabs.alloc(&magazines, class).unwrap();
///     object.write_bytes(0xff, 100);
///     assert_eq!(slabs.in_use([&magazines].into_iter()).map(|(_, n)| n).sum::<usize>(), 1);
///     slabs.free(&magazines, object, class);
///     slabs.drain(&magazines);
/// }
/// assert!(slabs.in_use([&magazines].into_iter()).all(|(_, objects)| objects == 0));
/// ```
pub struct Slabs<P> {
    pages: P,
    classes: [Mutex<Class>; CLASSES],
}

/// Objects under way between a magazine and the slabs.
struct Batch {
    objects: [usize; BATCH],
    count: usize,
}

fn per_slab(class: usize, order: u8) -> usize {
    ((PAGE << order) - size_of::<Slab>()) / SIZES[class]
}

impl<P: Pages> Slabs<P> {
    /// Without any slab.
    #[must_use]
    pub const fn new(pages: P) -> Self {
        Self {
            pages,
            classes: [const {
                Mutex::new(Class {
                    partial: ptr::null_mut(),
                    spare: 0,
                    out: 0,
                })
            }; CLASSES],
        }
    }

    /// An object of a class, its content undefined; `None` if memory is short.
    ///
    /// # Safety
    /// `magazines` are used with these slabs only.
    #[inline]
    pub unsafe fn alloc(&self, magazines: &Magazines, class: usize) -> Option<NonNull<u8>> {
        match magazines.pop(class) {
            Some(object) => NonNull::new(ptr::with_exposed_provenance_mut(object)),
            None => self.refill(magazines, class),
        }
    }

    /// Gives an object back.
    ///
    /// # Safety
    /// It came from `alloc` of these slabs with the same class, once, and nobody uses it. As for
    /// `alloc`.
    #[inline]
    pub unsafe fn free(&self, magazines: &Magazines, object: NonNull<u8>, class: usize) {
        let object = object.as_ptr().expose_provenance();
        if !magazines.push(class, object) {
            self.flush(magazines, class, object);
        }
    }

    /// The sizes, and how many objects of each are in use: neither in slabs nor in these magazines,
    /// which are all that there are. While others take and give, about as many.
    pub fn in_use<'a>(
        &self,
        magazines: impl Iterator<Item = &'a Magazines> + Clone,
    ) -> impl Iterator<Item = (usize, usize)> {
        SIZES.iter().enumerate().map(move |(class, size)| {
            let kept: usize = magazines
                .clone()
                .map(|magazines| magazines.len(class))
                .sum();
            (*size, self.classes[class].lock().out.saturating_sub(kept))
        })
    }

    /// Gives back what a CPU keeps of all sizes. Returns how many objects it was.
    ///
    /// # Safety
    /// As for `alloc`.
    pub unsafe fn drain(&self, magazines: &Magazines) -> usize {
        let mut count = 0;
        for class in 0..CLASSES {
            let mut batch = Batch {
                objects: [0; BATCH],
                count: 0,
            };
            let mut put = |object| {
                count += 1;
                batch.objects[batch.count] = object;
                batch.count += 1;
                if batch.count == BATCH {
                    self.put(class, &batch);
                    batch.count = 0;
                }
            };
            if class < SMALL {
                magazines.small[class].drain().for_each(&mut put);
            } else {
                magazines.large[class - SMALL].drain().for_each(&mut put);
            }
            if batch.count > 0 {
                self.put(class, &batch);
            }
        }
        count
    }

    #[cold]
    #[inline(never)]
    fn refill(&self, magazines: &Magazines, class: usize) -> Option<NonNull<u8>> {
        let mut batch = Batch {
            objects: [0; BATCH],
            count: 0,
        };
        let wanted = match class {
            _ if poison::on() => 1,
            0..SMALL => BATCH,
            _ => LARGE_ROUNDS / 2,
        };
        self.classes[class].lock().take(class, &mut batch, wanted);
        if batch.count == 0 {
            // Not under the lock: making room may need to put objects back.
            let sizes = (0..=order(class)).rev();
            let (block, order) = sizes
                .filter_map(|order| Some((self.pages.take(order)?, order)))
                .next()?;
            let slab = block.as_ptr().cast::<Slab>();
            // SAFETY: a block of pages, ours, aligned far beyond what a slab needs.
            unsafe {
                poison::fill(block.as_ptr(), PAGE << order);
                slab.write(Slab {
                    next: ptr::null_mut(),
                    prev: ptr::null_mut(),
                    free: ptr::null_mut(),
                    fresh: per_slab(class, order),
                    out: 0,
                    order,
                });
            }
            let mut list = self.classes[class].lock();
            // SAFETY: the slab is in no list yet.
            unsafe { list.link(slab) };
            list.spare += 1;
            list.take(class, &mut batch, wanted);
        }
        let (mine, others) = batch.objects[..batch.count]
            .split_last()
            .expect("the list has a slab with objects");
        for (n, object) in others.iter().enumerate() {
            if !magazines.push(class, *object) {
                // Another thread of this CPU filled it meanwhile.
                let mut rest = Batch {
                    objects: [0; BATCH],
                    count: others.len() - n,
                };
                rest.objects[..rest.count].copy_from_slice(&others[n..]);
                self.put(class, &rest);
                break;
            }
        }
        NonNull::new(ptr::with_exposed_provenance_mut(*mine))
    }

    /// Makes room in a full magazine, and puts one more object back.
    #[cold]
    #[inline(never)]
    fn flush(&self, magazines: &Magazines, class: usize, object: usize) {
        let mut batch = Batch {
            objects: [0; BATCH],
            count: 1,
        };
        batch.objects[0] = object;
        let most = if class < SMALL {
            BATCH
        } else {
            LARGE_ROUNDS / 2
        };
        while batch.count < most
            && let Some(object) = magazines.pop(class)
        {
            batch.objects[batch.count] = object;
            batch.count += 1;
        }
        self.put(class, &batch);
    }

    /// Puts objects back into their slabs.
    fn put(&self, class: usize, batch: &Batch) {
        let mut unused: *mut Slab = ptr::null_mut();
        let mut list = self.classes[class].lock();
        for object in &batch.objects[..batch.count] {
            let order = match order(class) {
                0 => 0,
                _ => self.pages.order_at(*object),
            };
            // SAFETY: the object is one of this class that is in no magazine any more, so it is put
            // back once; it lies in a block of this order.
            if let Some(slab) = unsafe { list.put(class, order, *object) } {
                // SAFETY: the slab was taken out of the list, and is ours.
                unsafe { (*slab).next = unused };
                unused = slab;
            }
        }
        drop(list);
        while let Some(slab) = NonNull::new(unused) {
            // SAFETY: ours, as above; none of its objects is in use.
            unsafe {
                unused = (*slab.as_ptr()).next;
                self.pages.give(slab.cast(), (*slab.as_ptr()).order);
            }
        }
    }
}

impl Class {
    /// Takes up to `wanted` objects.
    fn take(&mut self, class: usize, batch: &mut Batch, wanted: usize) {
        while batch.count < wanted && !self.partial.is_null() {
            let slab = self.partial;
            // SAFETY: slabs in the list are valid and, under the lock, ours alone; free objects are
            // part of them.
            unsafe {
                if (*slab).out == 0 {
                    self.spare -= 1;
                }
                while batch.count < wanted && ((*slab).fresh > 0 || !(*slab).free.is_null()) {
                    batch.objects[batch.count] = if (*slab).free.is_null() {
                        let end = slab.byte_add(PAGE << (*slab).order).cast::<u8>();
                        let object = end.sub((*slab).fresh * SIZES[class]);
                        (*slab).fresh -= 1;
                        object.expose_provenance()
                    } else {
                        let object = (*slab).free;
                        (*slab).free = (*object).next;
                        object.expose_provenance()
                    };
                    let object: *const u8 =
                        ptr::with_exposed_provenance(batch.objects[batch.count]);
                    poison::check(
                        object.add(size_of::<Free>()),
                        SIZES[class] - size_of::<Free>(),
                        "the rest of a free object",
                    );
                    batch.count += 1;
                    (*slab).out += 1;
                    self.out += 1;
                }
                if (*slab).out == per_slab(class, (*slab).order) {
                    self.unlink(slab);
                }
            }
        }
    }

    /// Puts an object back. Returns its slab if that has all its objects and is not needed: it is
    /// out of the list then.
    ///
    /// # Safety
    /// The object is of this class, in a slab of this order, and was taken and not put back yet.
    unsafe fn put(&mut self, class: usize, order: u8, object: usize) -> Option<*mut Slab> {
        let object: *mut Free = ptr::with_exposed_provenance_mut(object);
        let slab: *mut Slab = object
            .map_addr(|address| address & !((PAGE << order) - 1))
            .cast();
        // SAFETY: the slab an object lies in starts at the next lower multiple of its size, and
        // exists as long as the object is out; the object has room for a link, and nobody uses it.
        unsafe {
            if (*slab).out == per_slab(class, order) {
                self.link(slab);
            }
            poison::fill(object.cast(), SIZES[class]);
            object.write(Free { next: (*slab).free });
            (*slab).free = object;
            (*slab).out -= 1;
            self.out -= 1;
            if (*slab).out > 0 {
                return None;
            }
            if self.spare < SPARE {
                self.spare += 1;
                return None;
            }
            self.unlink(slab);
            Some(slab)
        }
    }

    /// Puts a slab into the list.
    ///
    /// # Safety
    /// It is valid, of this class, and in no list.
    unsafe fn link(&mut self, slab: *mut Slab) {
        // SAFETY: by the caller's promise; the first slab of the list is valid.
        unsafe {
            (*slab).prev = ptr::null_mut();
            (*slab).next = self.partial;
            if !self.partial.is_null() {
                (*self.partial).prev = slab;
            }
        }
        self.partial = slab;
    }

    /// Takes a slab out of the list.
    ///
    /// # Safety
    /// It is in the list.
    unsafe fn unlink(&mut self, slab: *mut Slab) {
        // SAFETY: by the caller's promise, so its neighbours are valid too.
        unsafe {
            let (next, prev) = ((*slab).next, (*slab).prev);
            if prev.is_null() {
                self.partial = next;
            } else {
                (*prev).next = next;
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
        }
    }
}

#[cfg(test)]
mod tests;
