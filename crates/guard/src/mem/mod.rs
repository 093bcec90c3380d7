//! Memory of this instance (`docs/memory.md`).
//!
//! | file | subject |
//! |---|---|
//! | `frame`, `phys` | frame numbers; what they are physically, which only page tables need to know |
//! | `direct` | the direct map |
//! | `added` | memory that came after the start |
//! | `early` | frames before there is an allocator |
//! | `leaving` | memory that leaves |
//! | `alloc` | the frame allocator |
//! | `percpu` | per-CPU caches of free memory |
//! | `refcount`, `page`, `large` | reference counts; pages of programs, 512 of them in a row |
//! | `heap` | the kernel heap |
//! | `pieces` | objects of several pages where memory is in pieces |
//! | `reclaim` | memory back from caches when it is short |
//! | `high_mark` | the most memory that the kernel takes for unprivileged programs |
//! | `shortage` | what the kernel's allocations do when its share is nearly used up |
//! | `grant` | memory on its way to another instance and back |

mod added;
pub(crate) mod alloc;
pub(crate) mod direct;
pub(crate) mod early;
pub(crate) mod frame;
pub(crate) mod grant;
pub(crate) mod heap;
pub(crate) mod high_mark;
#[cfg(not(target_os = "none"))]
#[cfg_attr(not(test), allow(dead_code, reason = "set up by tests only"))]
pub(crate) mod host;
pub(crate) mod large;
pub(crate) mod leaving;
pub(crate) mod page;
pub(crate) mod percpu;
pub(crate) mod phys;
mod pieces;
mod reclaim;
mod refcount;
pub(crate) mod shortage;

pub(crate) use alloc::{empty_share, retire, retired_frames, shares_of, supervisors_reserve};
pub use alloc::{
    has_pages, has_room, min_free_bytes, scrub_ahead, set_low_memory_handler, set_min_free_bytes,
    take_shortage, zero_page_ahead,
};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ::frames::{AtomicU64 as Word, Frames};
use abi::Descriptor;
use abi::descriptor::{FLAG_X2APIC, MemRange};
use abi::layout::{GRANULE_FRAMES, PAGE_SIZE};
use added::Added;
use early::{Bump, Holes};
pub use frame::Frame;
pub use grant::{Scrub, Scrubbing};
pub use heap::heap_objects;
pub use high_mark::has_kernel_room;
pub use large::LargePage;
pub use leaving::{leaving_frames, leaving_index};
pub use page::Page;
use phys::PhysAddr;
pub(crate) use reclaim::reclaim_all;
pub use reclaim::{calls as reclaim_calls, pressure, reclaim_low, set_others_run, shrinkers};
pub use shortage::{Shortage, is_reserve_touched, set_shortage_handlers};

use crate::paging::build::{self, ImageLayout, Plan, Run, Shared};
use crate::paging::{TableView, kernel};
use crate::{role, stack};

/// Page tables in force when `init` is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// The boot code's tables, which map physical memory below `reach` at `base`. The real ones are
    /// built from within.
    Boot {
        /// Address at which physical address 0 is mapped.
        base: usize,
        /// End of the memory that the map covers.
        reach: u64,
    },
    /// The real tables, built by the supervisor.
    Loaded,
}

/// Frames of the instance, in numbers. Granted and leaked frames are part of no other number than
/// `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemStats {
    /// All frames of the descriptor.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Pages of programs and files.
    pub user: u64,
    /// The kernel: image, tables, stacks, heap, what was reserved at boot. Memory on its way to or
    /// from another instance is in none of these numbers but `total`.
    pub kernel: u64,
    /// The heap's part of `kernel`.
    pub heap: u64,
    /// The kernel stacks' part of `kernel`, those kept for reuse included.
    pub stacks: u64,
    /// The part of `kernel` that is page tables of programs.
    pub tables: u64,
    /// The number that `kernel` is to stay below, for all that unprivileged programs ask for.
    pub kernel_mark: u64,
    /// Granted to other instances (supervisor only).
    pub granted: u64,
    /// Lost for good, because another instance may still use them (supervisor only).
    pub leaked: u64,
}

/// Numbers of CPUs of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuCounts {
    /// At its start.
    pub(crate) first: usize,
    /// At most.
    pub(crate) most: usize,
}

/// Sizes of the allocator's own tables, which lie in a row.
struct OwnTables {
    word_bytes: usize,
    added_bytes: usize,
    word_pages: u64,
    local_pages: u64,
    reference_pages: u64,
}

impl OwnTables {
    /// For frames and CPUs as there are at first, and as there may be.
    fn new(end: u64, limit: u64, cpus: &CpuCounts) -> Self {
        let pages = |bytes: usize| bytes.div_ceil(PAGE_SIZE) as u64;
        let word_bytes = ::frames::words_needed(limit, cpus.most) * size_of::<u64>();
        let granules = first_addable(limit) - first_addable(end);
        let added_bytes = added::words_needed(granules) * size_of::<u64>();
        Self {
            word_bytes,
            added_bytes,
            word_pages: pages(word_bytes + added_bytes),
            local_pages: pages(percpu::bytes(cpus.first)),
            reference_pages: pages(refcount::bytes(end)),
        }
    }
}

/// Number of the first granule behind frames `0..end`.
fn first_addable(end: u64) -> u64 {
    end.div_ceil(GRANULE_FRAMES)
}

/// Frames in a row that an instance with frames `0..end`, which may become `0..limit`, and so many
/// CPUs needs for the tables of its memory management, before it has an allocator.
pub(crate) fn table_frames(end: u64, limit: u64, cpus: &CpuCounts) -> u64 {
    let tables = OwnTables::new(end, limit, cpus);
    tables.word_pages + tables.local_pages + tables.reference_pages
}

static TOTAL: AtomicU64 = AtomicU64::new(0);

/// Use of the frames at the moment. The numbers are read one after another while they change.
#[must_use]
pub fn stats() -> MemStats {
    let total = total_frames();
    let (free, user) = (alloc::free_frames(), refcount::pages());
    let (granted, leaked) = grant::counts();
    MemStats {
        total,
        free,
        user,
        kernel: high_mark::kernel_frames(free),
        heap: heap::frames(),
        stacks: stack::frames(),
        tables: high_mark::tables(),
        kernel_mark: high_mark::mark(),
        granted,
        leaked,
    }
}

/// Frames of the instance, as in [`MemStats::total`].
#[inline]
#[must_use]
pub fn total_frames() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

/// Sets up everything of this module, and the kernel half of the address space (with the local
/// APIC's registers, in xAPIC mode). Once, on the first CPU, before anything uses the heap.
/// `shared` is what the supervisor's own tables map beside memory and image; an instance's tables
/// are complete already.
///
/// # Panics
/// If the memory does not suffice for the tables.
///
/// # Safety
/// `descriptor` is validated and tells the truth: its ranges are this instance's memory, nobody
/// uses what is not in its `reserved` table (or initramfs or boot blob), `image` is the running
/// kernel, and `start` is right.
pub(crate) unsafe fn init(
    descriptor: &Descriptor,
    start: Start,
    image: &ImageLayout,
    shared: &[Shared],
) {
    // The per-CPU area comes first: memory is allocated by CPU.
    crate::arch::cpu::install_area(crate::cpu::CpuId(0));
    let map = phys::init(descriptor.ranges());
    TOTAL.store(descriptor.total_frames(), Ordering::Relaxed);
    let mut holes = Holes::of(descriptor);

    let root = match start {
        Start::Loaded => Frame(descriptor.root_table_frame),
        Start::Boot { base, reach } => {
            let frames = map.ranges().iter().map(|r| r.count).sum();
            let pages = (image.data.end - image.text.start) / PAGE_SIZE;
            let needed = build::max_tables(frames, map.ranges().len(), pages) as u64;
            let mut bump = Bump::new(map.ranges(), &holes, reach, needed);
            let mut runs = arrayvec::ArrayVec::<Run, { abi::descriptor::MAX_RANGES }>::new();
            runs.extend(map.ranges().iter().map(|r| Run {
                first: r.first_frame,
                at: Frame(r.first_frame),
                count: r.count,
            }));
            let plan = Plan {
                runs: &runs,
                image_first: descriptor.image_frame,
                image,
                shared,
            };
            // SAFETY: the frames are free by the descriptor, below `reach`, and handed out once.
            let root = unsafe { build::build(&plan, TableView::Boot(base), &mut || bump.take(1)) };
            let root =
                root.unwrap_or_else(|error| panic!("cannot build the page tables: {error:?}"));
            // SAFETY: the new tables map the running image where it is, with its stack and data, so
            // execution goes on.
            unsafe { kernel::load_first(root) };
            crate::keep::use_direct_map();
            holes.add(bump.taken());
            root
        }
    };
    kernel::init(root);

    // Everything is in the direct map now. The allocator's own memory: the references last, because
    // they are long and all but the lowest frames' are not touched for a long time.
    let end = map.end();
    let cpus = CpuCounts {
        first: descriptor.cpus().len(),
        most: descriptor.cpu_limit(),
    };
    let limit = descriptor.frame_limit();
    let OwnTables {
        word_bytes,
        added_bytes,
        word_pages,
        local_pages,
        reference_pages,
    } = OwnTables::new(end, limit, &cpus);
    let needed = table_frames(end, limit, &cpus);
    let mut bump = Bump::new(map.ranges(), &holes, u64::MAX, needed);
    let mut table = |pages| {
        bump.take(pages)
            .unwrap_or_else(|| panic!("no run of {pages} frames is free for memory management"))
    };
    let (words, locals, references) = (
        table(word_pages),
        table(local_pages),
        table(reference_pages),
    );
    holes.add(bump.taken());
    // SAFETY: just taken, as long as asked for.
    unsafe { refcount::init(references, end) };
    // SAFETY: just taken, and next to each other; in the direct map, page-aligned, never used for
    // anything else, and any bits are an `u64`.
    let words = unsafe {
        direct::zero(direct::ptr(words), (word_pages + local_pages) as usize);
        percpu::init(direct::ptr(locals), cpus.first);
        core::slice::from_raw_parts(
            direct::ptr(words).cast::<Word>(),
            (word_bytes + added_bytes) / size_of::<u64>(),
        )
    };
    let (words, added) = words.split_at(word_bytes / size_of::<u64>());
    let (from, to) = (first_addable(end), first_addable(limit));
    added::init(Added::new(from, to, added));
    if descriptor
        .cmdline()
        .split_whitespace()
        .any(|word| word == "debug=poison")
    {
        // SAFETY: no frame is free yet, and no slab made; the frames are filled below.
        unsafe { slab::poison::enable() };
        percpu::all().for_each(|local| local.magazines.close());
    }
    let frames = Frames::new(limit, end, cpus.most, words);
    for range in map.ranges() {
        holes.between(range.first_frame..range.first_frame + range.count, |run| {
            // SAFETY: nobody has these frames yet.
            unsafe {
                slab::poison::fill(
                    direct::ptr(Frame(run.start)),
                    (run.end - run.start) as usize * PAGE_SIZE,
                );
            };
            frames.add(run.start, run.end - run.start, 0);
        });
    }
    high_mark::init(descriptor, frames.free_frames());
    alloc::init(frames);
    reclaim::init();
    fallible::set_shortage_probe(is_reserve_touched);
    if !descriptor.has(FLAG_X2APIC) {
        kernel::map_local_apic(PhysAddr(descriptor.lapic_phys))
            .expect("no frame to map the local APIC");
    }
}

/// Physical address of the granule that begins at a frame that was added; `None` if it was not.
pub(crate) fn added_granule(first: Frame) -> Option<u64> {
    added::tables()?.phys(first).map(|at| at.0)
}

/// Adds ranges of memory, which go on where the frame numbers end: makes them known, maps them, and
/// gives them to the allocator, but for the frames that hold their reference counts. One at a time.
///
/// # Errors
/// There is no frame for a page table; nothing was changed.
///
/// # Safety
/// The ranges are whole granules of memory that is this instance's from now on and of which it had
/// nothing before, within what the descriptor says is the most.
pub(crate) unsafe fn grow(
    ranges: impl Iterator<Item = MemRange> + Clone,
) -> Result<(), kernel::NoMemory> {
    let tables = added::tables().expect("memory added before mem::init");
    kernel::prepare_granules(ranges.clone().flat_map(granules))?;
    for range in ranges {
        let counts = Frame(range.first_frame);
        for (part, first) in (0..).zip(granules(range)) {
            let phys = range.phys + part * abi::layout::GRANULE_SIZE as u64;
            // The first granules have those frames: a range has a count for each of its own.
            let held = added::count_frames(range.count / GRANULE_FRAMES)
                .saturating_sub(part * GRANULE_FRAMES)
                .min(GRANULE_FRAMES);
            tables.insert(first, phys, counts, part, held);
        }
        // SAFETY: the caller's promise; nobody knows the frames yet.
        unsafe { kernel::map_granules(granules(range)) };
        let usable = range.first_frame + added::count_frames(range.count / GRANULE_FRAMES);
        // SAFETY: likewise; they are mapped now, and the counts' frames are left out.
        unsafe { alloc::donate(usable..range.first_frame + range.count) };
        TOTAL.fetch_add(range.count, Ordering::Relaxed);
    }
    Ok(())
}

/// First frames of a range's granules.
fn granules(range: MemRange) -> impl Iterator<Item = Frame> + Clone {
    (0..range.count / GRANULE_FRAMES)
        .map(move |granule| Frame(range.first_frame + granule * GRANULE_FRAMES))
}

/// All frames of this instance, the added ones included.
pub(crate) fn all_frames() -> impl Iterator<Item = Frame> {
    let first = phys::map().ranges().iter();
    let first = first.flat_map(|range| range.first_frame..range.first_frame + range.count);
    let added = first_addable(phys::map().end()) * GRANULE_FRAMES;
    let is_there = |frame: &u64| added_granule(Frame(*frame)).is_some();
    first.chain((added..).take_while(is_there)).map(Frame)
}

/// Allocation may have to wait for a lock, and an interrupt handler cannot: it might have
/// interrupted the holder.
#[track_caller]
fn assert_may_sleep() {
    debug_assert!(
        lfmutex::scheduler().may_block(),
        "memory allocated or freed where the caller must not sleep"
    );
}

/// The archive given at boot. Its frames are freed as it is consumed, and at the latest when this
/// is dropped, unless the supervisor is to start again in place.
#[derive(Debug)]
pub struct Initramfs {
    first: Frame,
    /// Flag: all of it stays, for a supervisor that starts again in place.
    is_kept: bool,
    /// The bytes, counted from `first`, that are not consumed yet.
    unread: core::ops::Range<usize>,
}

/// The archive given at boot, if there is one and nobody took it before.
#[must_use]
pub fn take_initramfs() -> Option<Initramfs> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let descriptor = role::descriptor();
    if descriptor.initramfs_len == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    Some(Initramfs {
        first: Frame(descriptor.initramfs_frame),
        is_kept: crate::keep::notes().is_some(),
        unread: 0..descriptor.initramfs_len as usize,
    })
}

impl Initramfs {
    /// The bytes not consumed yet.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the descriptor's initramfs is reserved until `consume` or `drop` give it away,
        // which need `&mut`; it is contiguous in frame numbers, in the direct map, and nobody
        // writes to it.
        unsafe {
            core::slice::from_raw_parts(
                direct::ptr(self.first).add(self.unread.start),
                self.unread.len(),
            )
        }
    }

    /// Forgets the next `count` bytes, and frees the frames that hold nothing else.
    pub fn consume(&mut self, count: usize) {
        let before = self.unread.start / PAGE_SIZE;
        self.unread.start = self.unread.end.min(self.unread.start.saturating_add(count));
        self.free_frames(before, self.unread.start / PAGE_SIZE);
    }

    /// Takes the next page of bytes where it lies, if the unread bytes begin on a page boundary and
    /// there is a whole page of them.
    pub fn take_page(&mut self) -> Option<Page> {
        let at = self.unread.start;
        if self.is_kept || !at.is_multiple_of(PAGE_SIZE) || self.unread.len() < PAGE_SIZE {
            return None;
        }
        self.unread.start += PAGE_SIZE;
        // SAFETY: the frame was reserved for the archive; it is behind what is unread from here on,
        // so neither `bytes` shows it nor `consume` or `drop` free it.
        Some(Page::adopt(unsafe {
            alloc::adopt(self.first.add((at / PAGE_SIZE) as u64))
        }))
    }

    fn free_frames(&mut self, from: usize, to: usize) {
        if from < to && !self.is_kept {
            // SAFETY: these frames were reserved for the archive, and no reference to their bytes
            // can be left: `bytes` borrows `self`, and shows no byte before `unread.start` (or, in
            // `drop`, none at all any more).
            unsafe { alloc::donate(self.first.0 + from as u64..self.first.0 + to as u64) };
        }
    }
}

impl Drop for Initramfs {
    fn drop(&mut self) {
        self.free_frames(
            self.unread.start / PAGE_SIZE,
            self.unread.end.div_ceil(PAGE_SIZE),
        );
    }
}
