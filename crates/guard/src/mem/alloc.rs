//! The frame allocator of the instance: `frames::Frames` over all of its memory, and each CPU's
//! stock of zeroed pages.
//!
//! No lock is taken: frames may be allocated and freed anywhere, interrupt handlers included.
//!
//! A CPU with nothing to do zeroes pages ahead ([`zero_page_ahead`]), one at a time, until it has
//! 64 of them or memory is scarce. What is in these stocks counts as free, and goes back before a
//! request is refused.
//!
//! For each granule one bit says whether any of it was handed out since it was last scrubbed, at
//! first yes. It saves zeroing memory twice before it is granted to another instance (`grant`).

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::layout::{GRANULE_FRAMES, PAGE_SIZE};
use abi::window::BadFrames;
use arrayvec::ArrayVec;
use fallible::inject;
use frames::Frames;
use lfmutex::Once;
use slab::poison;

use super::frame::Frame;
use super::percpu::CpuCache;
use super::{TOTAL, added, direct, heap, high_mark, leaving, percpu, reclaim};
use crate::BootToken;
use crate::cpu::CpuId;
use crate::irq::Hook;

/// Order of a block of one granule.
pub(crate) const GRANULE_ORDER: u8 = frames::AREA_ORDER;
/// Order of the largest blocks: 1 GiB.
pub(super) const MAX_ORDER: u8 = frames::MAX_ORDER;
/// Pages are zeroed ahead, and large pages made, only while more than this part of memory is free:
/// one sixteenth.
const SCARCE_PART: u64 = 16;

const _: () = assert!(frames::AREA_FRAMES == GRANULE_FRAMES);

static ALLOCATOR: Once<Frames<'static>> = Once::new();

/// Starts the allocator; once, from `mem::init`. All frames that `frames` has free are reachable
/// through the direct map and used by nobody. All granules count as used: what is in them may be
/// what was there before a restart, which does not clear memory.
pub(super) fn init(frames: Frames<'static>) {
    ALLOCATOR.call_once(|| frames);
}

#[inline]
fn allocator() -> &'static Frames<'static> {
    ALLOCATOR.get().expect("frames asked for before mem::init")
}

/// Takes a block by `take`; if there is none, what is kept ready goes back first.
#[inline(never)]
fn take(order: u8, take: impl Fn(&Frames<'static>) -> Option<u64>) -> Option<Block> {
    let allocator = allocator();
    let at_once =
        || take(allocator).or_else(|| leaving::cancel().then(|| take(allocator)).flatten());
    let first = at_once().or_else(|| {
        reclaim::reclaim((PAGE_SIZE as u64) << order);
        at_once()
    });
    if first.is_none() && order <= COSTLY_ORDER {
        if !FAILED.swap(true, Ordering::Relaxed) {
            let kib = |frames: u64| frames * (PAGE_SIZE as u64 >> 10);
            log::warn!(
                "no block of {} KiB; {} KiB are free",
                kib(1 << order),
                kib(free_frames())
            );
        }
        run_low_handler();
    }
    let first = first?;
    Some(
        Block {
            first: Frame(first),
            order,
        }
        .checked(),
    )
}

/// Frames of a machine in which 1 MiB would be too much to set aside: 16 MiB.
const SMALL: u64 = 4096;

/// Frames that pages of programs and files leave to the kernel: 1/32 of memory, at least 1 MiB
/// unless the machine is [`SMALL`], at most 16 MiB.
/// Without it a program could take the last frame, and the kernel would find none for what cannot
/// fail.
pub(super) fn kernels_share() -> u64 {
    kernels_share_of(TOTAL.load(Ordering::Relaxed))
}

/// The same, of so many frames.
fn kernels_share_of(total: u64) -> u64 {
    let least = if total < SMALL { 0 } else { 256 };
    let share = (total / 32).clamp(least, 4096);
    share.max(MIN_FREE.load(Ordering::Relaxed).min(total / 2))
}

/// Frames that the superuser wants free at least; 0 unless he has said so.
static MIN_FREE: AtomicU64 = AtomicU64::new(0);

/// Bytes that programs leave to the kernel (Linux' `min_free_kbytes`).
#[must_use]
pub fn min_free_bytes() -> u64 {
    kernels_share() * PAGE_SIZE as u64
}

/// Sets how many bytes programs leave to the kernel: not less than it needs, nor more than half of
/// memory.
pub fn set_min_free_bytes(bytes: u64) {
    MIN_FREE.store(bytes / PAGE_SIZE as u64, Ordering::Relaxed);
}

/// Frames that instances leave to the supervisor, so that its programs and its kernel go on when
/// all memory that may be given away is: beside the kernel's share a sixteenth of memory, 8 MiB (or
/// an eighth, if that is less) to 64 MiB.
pub(crate) fn supervisors_reserve() -> u64 {
    let total = TOTAL.load(Ordering::Relaxed);
    kernels_share() + (total / 16).clamp((total / 8).min(2048), 16384)
}

/// Blocks up to this order (32 KiB) are what the kernel cannot do without. Larger
/// ones may be missing while there is memory, in pieces: who asks for them is refused (Linux:
/// `PAGE_ALLOC_COSTLY_ORDER`).
const COSTLY_ORDER: u8 = 3;

/// Whether a block that the kernel cannot do without was not to be had since somebody asked.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel has used up a quarter of its share: memory is short, whoever asks next.
pub(super) fn is_low() -> bool {
    free_frames() < kernels_share() / 4 * 3
}

/// Whether memory must be given back, since the kernel has used up a quarter of its share, or found
/// no memory since this was asked last.
#[must_use]
pub fn take_shortage() -> bool {
    FAILED.swap(false, Ordering::Relaxed) || is_low()
}

/// Frames that what outlives a process leaves to programs, beside the kernel's share: 1/32 of
/// memory, at most 32 MiB. The OOM killer takes nothing from a file, so without it files that use
/// all memory would end one program after the other, at last process 1.
fn programs_share() -> u64 {
    programs_share_of(TOTAL.load(Ordering::Relaxed))
}

/// The same, of so many frames.
fn programs_share_of(total: u64) -> u64 {
    (total / 32).min(8192)
}

/// Frames that must be free of so many, or else no file can be made, nor anything else that
/// outlives a process.
pub(crate) fn shares_of(total: u64) -> u64 {
    kernels_share_of(total) + programs_share_of(total)
}

/// Whether so many bytes may be taken for what outlives the process that asks: files, names,
/// queues.
#[inline]
#[must_use]
pub fn has_room(bytes: usize) -> bool {
    let frames = bytes.div_ceil(PAGE_SIZE) as u64;
    let budget = percpu::mine().budget.load(Ordering::Relaxed);
    frames < budget && budget <= MAX_BUDGET || find_room(frames)
}

#[cold]
#[inline(never)]
fn find_room(frames: u64) -> bool {
    let above = || free_frames() > kernels_share() + programs_share() + frames;
    above() || reclaim::reclaim((frames + MAX_BUDGET) * PAGE_SIZE as u64) && above()
}

/// Called when the kernel takes memory for itself while [`is_low`], or finds none.
static LOW_HANDLER: Hook<fn()> = Hook::new();

/// Sets what the thread does that makes the kernel take memory while memory is low. It is called
/// with locks held and must not allocate: it can have the thread look later, where it holds none.
pub fn set_low_memory_handler(_: &BootToken, handler: fn()) {
    LOW_HANDLER.set(handler);
}

/// Counts frames that the kernel takes for itself, and calls the handler if memory is low. `true`
/// if it is plenty.
#[inline]
pub(super) fn charge_kernel(frames: u64) -> bool {
    let budget = &percpu::mine().budget;
    let left = budget.load(Ordering::Relaxed);
    if frames < left && left <= MAX_BUDGET {
        // Not one step, as in `may_make_page`.
        budget.store(left - frames, Ordering::Relaxed);
        true
    } else {
        !check_low(budget)
    }
}

#[cold]
#[inline(never)]
fn check_low(budget: &AtomicU64) -> bool {
    refill_budget(budget);
    let low = is_low();
    if low {
        run_low_handler();
    }
    low
}

fn run_low_handler() {
    if let Some(handler) = LOW_HANDLER.get() {
        handler();
    }
}

/// Whether one more page may be made for programs and files. Most of the time this looks at the
/// CPU's own budget only.
#[inline]
pub(super) fn may_make_page() -> bool {
    let budget = &percpu::mine().budget;
    let left = budget.load(Ordering::Relaxed);
    // Not one step: a thread that is moved or interrupted here may count a page once too little.
    budget.store(left.wrapping_sub(1), Ordering::Relaxed);
    (left.wrapping_sub(1) < MAX_BUDGET || new_budget(budget)) && !inject::fails()
}

/// Whether there are pages for programs: who found none may try again.
#[must_use]
pub fn has_pages() -> bool {
    free_frames() > kernels_share() + MAX_BUDGET
}

/// Most pages a CPU makes before it looks again. It has none while there is not room for files, and
/// then looks for each page.
const MAX_BUDGET: u64 = 64;

#[cold]
#[inline(never)]
fn new_budget(budget: &AtomicU64) -> bool {
    if refill_budget(budget) > 0 {
        return true;
    }
    reclaim::reclaim(MAX_BUDGET * PAGE_SIZE as u64);
    refill_budget(budget) > 0
}

/// Gives a CPU a new budget. Returns the frames that are free above the kernel's share.
fn refill_budget(budget: &AtomicU64) -> u64 {
    let free = allocator().free_frames();
    high_mark::look();
    let above = free.saturating_sub(kernels_share());
    // All CPUs' budgets together are less than what there is.
    let pages = above.saturating_sub(programs_share()) / (2 * percpu::all().len() as u64);
    budget.store(pages.min(MAX_BUDGET), Ordering::Relaxed);
    above
}

/// Gives the pages that were zeroed ahead back to the allocator; how many it were.
pub(super) fn give_back_zeroed() -> u64 {
    percpu::all().map(give_back_zeroed_of).sum()
}

/// The same for those of one CPU.
fn give_back_zeroed_of(local: &CpuCache) -> u64 {
    let mut count = 0;
    for name in local.zeroed.drain() {
        // SAFETY: `zero_page_ahead` took the block apart.
        drop(unsafe { Block::from_raw(Frame(name as u64 - 1), 0) });
        count += 1;
    }
    count
}

/// Gives what a CPU that has left keeps back to the allocator. Sleeps. A thread that was about to
/// use the CPU's share when it was moved may still put something there: it is found by whoever is
/// short of memory, and by the next call.
pub(crate) fn empty_share(cpu: CpuId) {
    if let Some(local) = percpu::of(cpu) {
        heap::shrink_share(local);
        give_back_zeroed_of(local);
        allocator().end_reservation(cpu.0 as usize);
    }
}

/// Pages zeroed ahead and not used yet.
pub(super) fn zeroed_ahead() -> u64 {
    percpu::all().map(|local| local.zeroed.len() as u64).sum()
}

/// Work for a CPU that has nothing to do: zeroes one page ahead. `false` if there is nothing left
/// to do. The caller calls it again as long as it stays idle, and may be taken off the CPU
/// meanwhile.
pub fn zero_page_ahead() -> bool {
    let zeroed = &percpu::mine().zeroed;
    if zeroed.looks_full()
        || allocator().free_frames() < TOTAL.load(Ordering::Relaxed) / SCARCE_PART
        || leaving::is_under_way()
    {
        return false;
    }
    // Not taken off the CPU in between: memory that is to leave waits for what is in no stock yet.
    let kept = without_irqs(|| {
        let block = Block::movable_at_hand()?;
        // SAFETY: the block is ours, and free frames are in the direct map.
        unsafe { direct::zero(block.ptr(), 1) };
        let kept = zeroed.push(block.first.0 as usize + 1);
        if kept {
            block.into_raw();
        }
        kept.then_some(())
    });
    kept.is_some()
}

/// Runs `f` with interrupts off, so that the end of a grace period is not before its end.
fn without_irqs<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_os = "none")]
    {
        crate::cpu::without_irqs(f)
    }
    #[cfg(not(target_os = "none"))]
    {
        f()
    }
}

/// `2^order` consecutive frames that belong to whoever holds this; dropping it frees them.
#[derive(Debug)]
pub(crate) struct Block {
    first: Frame,
    order: u8,
}

impl Block {
    /// Allocates a block, aligned to its size, its content undefined; `None` if there is none of
    /// that size.
    #[inline]
    pub(crate) fn new(order: u8) -> Option<Self> {
        if order == 0
            && let Some(first) = allocator().alloc_one(percpu::cpu())
        {
            return Some(
                Self {
                    first: Frame(first),
                    order,
                }
                .checked(),
            );
        }
        take(order, |frames| frames.alloc(percpu::cpu(), order))
    }

    /// Allocates a block of one frame, its content undefined, for what can be moved.
    #[inline]
    pub(super) fn movable() -> Option<Self> {
        Self::movable_at_hand().or_else(|| take(0, |frames| frames.alloc_movable(percpu::cpu())))
    }

    /// Allocates a block as [`Block::movable`], but nobody is asked to give anything back for it.
    #[inline]
    fn movable_at_hand() -> Option<Self> {
        let first = allocator().alloc_movable(percpu::cpu())?;
        Some(
            Self {
                first: Frame(first),
                order: 0,
            }
            .checked(),
        )
    }

    /// Allocates a block of one frame of zeroes, for what can be moved.
    pub(super) fn movable_zeroed() -> Option<Self> {
        if let Some(name) = percpu::mine().zeroed.pop() {
            return Some(Self {
                first: Frame(name as u64 - 1),
                order: 0,
            });
        }
        let block = Self::movable()?;
        // SAFETY: the block is ours, and free frames are in the direct map.
        unsafe { direct::zero(block.ptr(), 1) };
        Some(block)
    }

    /// Allocates a block as [`Block::new`], but nobody is asked to give anything back for it.
    pub(super) fn at_hand(order: u8) -> Option<Self> {
        let take = || allocator().alloc(percpu::cpu(), order);
        let needed = order <= COSTLY_ORDER;
        let first = take().or_else(|| (needed && leaving::cancel()).then(take).flatten())?;
        Some(
            Self {
                first: Frame(first),
                order,
            }
            .checked(),
        )
    }

    /// Allocates a block of one frame of zeroes as [`Block::at_hand`].
    pub(crate) fn zeroed_at_hand() -> Option<Self> {
        let block = Self::at_hand(0)?;
        // SAFETY: the block is ours, and free frames are in the direct map.
        unsafe { direct::zero(block.ptr(), 1) };
        Some(block)
    }

    /// Allocates a granule for a large page, its content undefined, if there is one at hand and
    /// memory is plenty without it: nobody is asked to give anything back for it.
    pub(super) fn of_large_page() -> Option<Self> {
        let frames = allocator();
        let rest = kernels_share() + TOTAL.load(Ordering::Relaxed) / SCARCE_PART;
        let plenty = frames.free_frames() >= rest + GRANULE_FRAMES;
        let first = plenty.then(|| frames.alloc_area(percpu::cpu())).flatten()?;
        Some(
            Self {
                first: Frame(first),
                order: GRANULE_ORDER,
            }
            .checked(),
        )
    }

    /// Allocates a block of whole granules that is meant for another instance: it does not count as
    /// used yet. Its content may be this instance's own until [`clean`].
    pub(super) fn of_granules(order: u8) -> Option<Self> {
        take(order, |frames| frames.alloc_untouched(percpu::cpu(), order))
    }

    /// Allocates a block of zeroes.
    pub(crate) fn zeroed(order: u8) -> Option<Self> {
        // What was zeroed ahead is for what can be moved, once there is memory that may leave.
        if order == 0
            && !added::is_any_there()
            && let Some(name) = percpu::mine().zeroed.pop()
        {
            return Some(Self {
                first: Frame(name as u64 - 1),
                order,
            });
        }
        let block = Self::new(order)?;
        // SAFETY: the block is ours, and free frames are in the direct map.
        unsafe { direct::zero(block.ptr(), 1 << order) };
        Some(block)
    }

    /// Checks that nobody has written to a free block since it was freed.
    #[inline]
    fn checked(self) -> Self {
        // SAFETY: the block is ours, free frames are in the direct map, and all that frees one
        // fills it.
        unsafe { poison::check(self.ptr(), self.bytes(), "a free block of frames") };
        self
    }

    /// First frame of the block.
    pub(crate) fn first(&self) -> Frame {
        self.first
    }

    /// Whether a frame is in the block.
    pub(crate) fn contains(&self, frame: Frame) -> bool {
        (self.first.0..self.first.0 + (1 << self.order)).contains(&frame.0)
    }

    /// Address of the block in the direct map.
    pub(crate) fn ptr(&self) -> *mut u8 {
        direct::ptr(self.first)
    }

    /// Size of the block in bytes.
    pub(crate) fn bytes(&self) -> usize {
        PAGE_SIZE << self.order
    }

    /// Gives up ownership: the block is freed by [`Block::from_raw`] or never.
    pub(crate) fn into_raw(self) -> Frame {
        let first = self.first;
        core::mem::forget(self);
        first
    }

    /// Cuts it where its first `count` frames end, whole granules, into smaller blocks, ascending;
    /// `each` is told whether one is before that place.
    pub(super) fn cut(self, count: u64, each: &mut impl FnMut(Self, bool)) {
        let all = 1 << self.order;
        if count == 0 || count >= all {
            return each(self, count > 0);
        }
        let order = self.order - 1;
        let first = self.into_raw();
        for (first, before) in [(first, 0), (first.add(all / 2), all / 2)] {
            Self { first, order }.cut(count.saturating_sub(before), each);
        }
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
        // SAFETY: the block is ours, in the direct map, and goes.
        unsafe { poison::fill(self.ptr(), self.bytes()) };
        allocator().free(percpu::cpu(), self.first.0, self.order);
    }
}

/// Any number of consecutive frames that belong to whoever holds this; dropping it frees them.
#[derive(Debug)]
pub(super) struct Run {
    first: Frame,
    count: u64,
}

impl Run {
    /// Allocates frames, aligned to `align` bytes, their content undefined; `None` if there are not
    /// as many in a row.
    pub(super) fn new(count: u64, align: usize) -> Option<Self> {
        Self::of(count, align, Block::new)
    }

    /// Allocates frames as [`Run::new`], but nobody is asked to give anything back for them.
    pub(super) fn at_hand(count: u64, align: usize) -> Option<Self> {
        Self::of(count, align, Block::at_hand)
    }

    fn of(count: u64, align: usize, block: fn(u8) -> Option<Block>) -> Option<Self> {
        let size = count.next_power_of_two().max((align / PAGE_SIZE) as u64);
        let first = block(size.trailing_zeros() as u8)?.into_raw();
        if size > count {
            allocator().free_run(percpu::cpu(), first.0 + count, size - count);
        }
        Some(Self { first, count })
    }

    /// Gives up ownership, until [`Run::from_raw`].
    pub(super) fn into_raw(self) -> Frame {
        let first = self.first;
        core::mem::forget(self);
        first
    }

    /// Takes up ownership again.
    ///
    /// # Safety
    /// `first` came from `into_raw` of a run of the same length, once for each `from_raw`.
    pub(super) unsafe fn from_raw(first: Frame, count: u64) -> Self {
        Self { first, count }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: the frames are ours, in the direct map, and go.
        unsafe { poison::fill(direct::ptr(self.first), self.count as usize * PAGE_SIZE) };
        allocator().free_run(percpu::cpu(), self.first.0, self.count);
    }
}

/// Gives frames to the allocator that it has not managed so far.
///
/// # Safety
/// The frames are this instance's, in the direct map, and used by nobody from now on.
pub(crate) unsafe fn donate(frames: Range<u64>) {
    // SAFETY: by the caller's promise.
    unsafe {
        poison::fill(
            direct::ptr(Frame(frames.start)),
            (frames.end - frames.start) as usize * PAGE_SIZE,
        );
    };
    allocator().add(frames.start, frames.end - frames.start, 0);
}

/// Isolates whole granules, or ends that: meanwhile nobody gets anything of them.
pub(super) fn isolate(frames: Range<u64>, isolated: bool) {
    for first in frames.step_by(GRANULE_FRAMES as usize) {
        allocator().isolate(first, isolated);
    }
}

/// Takes a run of frames out of the allocator: all of it, or nothing (false) if some is not free.
pub(super) fn take_out(frames: Range<u64>) -> bool {
    allocator().remove(percpu::cpu(), frames.start, frames.end - frames.start)
}

/// Gives what [`take_out`] took back to the allocator.
pub(super) fn put_back(frames: Range<u64>) {
    allocator().add(frames.start, frames.end - frames.start, 0);
}

/// Whether a frame is free, at this moment.
pub(super) fn is_free(frame: u64) -> bool {
    allocator().is_free(frame)
}

/// Makes a block of one frame that the allocator has not managed so far; dropping it gives it to
/// the allocator.
///
/// # Safety
/// As for [`donate`].
pub(super) unsafe fn adopt(frame: Frame) -> Block {
    allocator().set_touched(
        frame.0 / GRANULE_FRAMES * GRANULE_FRAMES,
        GRANULE_ORDER,
        true,
    );
    Block {
        first: frame,
        order: 0,
    }
}

/// Has the allocator know of a granule of which nothing was ever added, and that others have used:
/// it would not be found when it is free.
fn open(first: Frame) {
    allocator().set_touched(first.0, GRANULE_ORDER, true);
    allocator().isolate(first.0, false);
}

/// Makes a block of a granule that the allocator has not managed so far, and that others have used;
/// dropping it gives it to the allocator.
///
/// # Safety
/// As for [`donate`], but for the direct map.
pub(crate) unsafe fn adopt_granule(first: Frame) -> Block {
    open(first);
    Block {
        first,
        order: GRANULE_ORDER,
    }
}

/// Number of whole granules that are free for instances.
pub(crate) fn free_granules() -> u64 {
    give_back_zeroed();
    let beyond = free_frames().saturating_sub(supervisors_reserve());
    allocator().free_areas().min(beyond / GRANULE_FRAMES)
}

/// Number of free frames, those zeroed ahead included.
pub(super) fn free_frames() -> u64 {
    allocator().free_frames() + zeroed_ahead()
}

/// Makes sure that a block of granules holds nothing of this instance's, and counts it as used from
/// now on. Costs nothing where it was scrubbed before.
pub(super) fn clean(block: &Block) {
    for granule in 0..1 << (block.order - GRANULE_ORDER) {
        let first = block.first.add(granule * GRANULE_FRAMES);
        if allocator().is_touched(first.0) {
            // SAFETY: the granule is part of the caller's block, and in the direct map.
            unsafe { direct::zero(direct::ptr(first), GRANULE_FRAMES as usize) };
        }
    }
    allocator().set_touched(block.first.0, block.order, true);
}

/// Zeroes the first free granule from the `*next`th on that was used, and moves `*next` behind it:
/// work for a thread that has nothing better to do. Returns whether there was one.
pub fn scrub_ahead(next: &mut u64) -> bool {
    let allocator = allocator();
    let granules = allocator.frames().div_ceil(GRANULE_FRAMES);
    while *next < granules {
        let first = *next * GRANULE_FRAMES;
        *next += 1;
        if allocator.is_touched(first) && allocator.alloc_untouched_at(percpu::cpu(), first) {
            let block = Block {
                first: Frame(first),
                order: GRANULE_ORDER,
            };
            scrub(&block, 0, &[]);
            return true;
        }
    }
    false
}

/// Frames taken out of use.
static RETIRED: AtomicU64 = AtomicU64::new(0);

/// Number of frames that [`retire`] took.
pub(crate) fn retired_frames() -> u64 {
    RETIRED.load(Ordering::Relaxed)
}

/// Takes a frame out of use for good, if it is free.
pub(crate) fn retire(frame: Frame) -> bool {
    give_back_zeroed();
    let taken = allocator().remove(percpu::cpu(), frame.0, 1);
    RETIRED.fetch_add(u64::from(taken), Ordering::Relaxed);
    taken
}

/// Frees a block but for these frames, which are out of use from now on.
pub(super) fn free_without(block: Block, bad: &[Frame]) {
    if !bad.iter().any(|frame| block.contains(*frame)) {
        return;
    }
    let order = block.order;
    let first = block.into_raw();
    let Some(order) = order.checked_sub(1) else {
        RETIRED.fetch_add(1, Ordering::Relaxed);
        log::warn!("a page with an uncorrected error is not used any more");
        return;
    };
    for first in [first, first.add(1 << order)] {
        free_without(Block { first, order }, bad);
    }
}

/// Zeroes one granule of a block, which nobody else does at the same time, but for these frames,
/// and counts it as unused.
pub(super) fn scrub(block: &Block, granule: u64, bad: &[Frame]) {
    assert!(
        granule < 1 << (block.order - GRANULE_ORDER),
        "a granule beyond the block"
    );
    let first = block.first.add(granule * GRANULE_FRAMES);
    let is_bad = |frame: &Frame| (first.0..first.0 + GRANULE_FRAMES).contains(&frame.0);
    // By lengths of nothing but good frames.
    let mut ends: ArrayVec<u64, { BadFrames::CAPACITY + 1 }> = bad
        .iter()
        .filter(|frame| is_bad(frame))
        .map(|frame| frame.0)
        .collect();
    ends.sort_unstable();
    ends.push(first.0 + GRANULE_FRAMES);
    let mut from = first.0;
    for end in ends {
        // SAFETY: frames of the granule, which is part of the caller's block; in the direct map.
        unsafe { direct::zero(direct::ptr(Frame(from)), (end - from) as usize) };
        from = end + 1;
    }
    allocator().set_touched(first.0, GRANULE_ORDER, false);
}
