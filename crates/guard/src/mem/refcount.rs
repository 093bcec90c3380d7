//! Reference counts of pages: four bytes for each frame, in which the heap notes the sizes of its
//! slabs where the frame holds no page.
//!
//! The table is not initialised at boot. A count means something only while its frame holds a
//! [`super::Page`], and allocating one stores 1 before anybody else can see it; so the table costs
//! no boot time, whatever the size of memory. Frames that are added bring theirs (`added`).

use core::sync::atomic::{AtomicU32, Ordering};

use abi::layout::GRANULE_FRAMES;
use lfmutex::Once;

use super::frame::Frame;
use super::{added, direct, percpu};

static REFERENCES: Once<&'static [AtomicU32]> = Once::new();

/// References beyond this are a leak that would end in a use after free.
const MAX_REFERENCES: u32 = u32::MAX / 2;

/// Bit of a count that holds what [`note`] has noted.
const NOTED: u32 = 1 << 31;

const _: () = assert!(MAX_REFERENCES < NOTED);

/// Bytes of the table for frames `0..end`.
pub(super) const fn bytes(end: u64) -> usize {
    end as usize * size_of::<AtomicU32>()
}

/// Puts the table for frames `0..end` at `at`.
///
/// # Safety
/// `bytes(end)` bytes from `at` on are in the direct map, and the table's for good.
pub(super) unsafe fn init(at: Frame, end: u64) {
    REFERENCES.call_once(|| {
        // SAFETY: by the caller's promise; page-aligned; any bit pattern is an `AtomicU32`.
        unsafe { core::slice::from_raw_parts(direct::ptr(at).cast::<AtomicU32>(), end as usize) }
    });
}

#[inline]
fn count(frame: Frame) -> &'static AtomicU32 {
    let first = REFERENCES.get().expect("page used before mem::init");
    match first.get(frame.0 as usize) {
        Some(count) => count,
        None => &added_counts(frame)[0],
    }
}

/// The counts of an added frame and of those behind it in its granule.
#[cold]
fn added_counts(frame: Frame) -> &'static [AtomicU32] {
    let place = added::tables().and_then(|added| added.count(frame));
    let (holder, index) = place.expect("a page that is not this instance's");
    let rest = (GRANULE_FRAMES - frame.0 % GRANULE_FRAMES) as usize;
    // SAFETY: `mem::grow` has set aside the frames that hold a granule's counts, for good, before
    // anybody could learn of it; they are in the direct map, and the granule's all lie in one of
    // them. Any bit pattern is an `AtomicU32`.
    unsafe { core::slice::from_raw_parts(direct::ptr(holder).cast::<AtomicU32>().add(index), rest) }
}

/// A frame becomes a page with one reference.
pub(super) fn first_reference(frame: Frame) {
    count(frame).store(1, Ordering::Relaxed);
    percpu::mine().pages.fetch_add(1, Ordering::Relaxed);
}

/// Keeps a number below 2^31 with a frame that is no page, until it becomes one.
pub(super) fn note(frame: Frame, number: u32) {
    count(frame).store(number | NOTED, Ordering::Relaxed);
}

/// The number kept with a frame by [`note`].
pub(super) fn noted(frame: Frame) -> u32 {
    count(frame).load(Ordering::Relaxed) & !NOTED
}

/// Whether an added frame that is in use holds a page, at this moment. (Of the first memory's
/// frames it is not known what their counts were when the instance began.)
pub(super) fn is_page(frame: Frame) -> bool {
    let count = count(frame).load(Ordering::Relaxed);
    count != 0 && count & NOTED == 0
}

/// The frames of a granule become pages with one reference each.
pub(super) fn first_references(first: Frame) {
    granule(first)
        .iter()
        .for_each(|count| count.store(1, Ordering::Relaxed));
    percpu::mine()
        .pages
        .fetch_add(GRANULE_FRAMES, Ordering::Relaxed);
}

/// References to the pages in a granule, at this moment; once for each there are is the least.
pub(super) fn sum_of_references(first: Frame) -> u64 {
    granule(first)
        .iter()
        .map(|count| u64::from(count.load(Ordering::Acquire)))
        .sum()
}

/// A granule's pages, with one reference each, are gone, and the frames are the caller's to free.
pub(super) fn drop_granule(first: Frame) {
    granule(first)
        .iter()
        .for_each(|count| count.store(0, Ordering::Relaxed));
    percpu::mine()
        .pages
        .fetch_sub(GRANULE_FRAMES, Ordering::Relaxed);
}

fn granule(first: Frame) -> &'static [AtomicU32] {
    let counts = REFERENCES.get().expect("page used before mem::init");
    match counts.get(first.0 as usize..) {
        Some(counts) if !counts.is_empty() => &counts[..GRANULE_FRAMES as usize],
        _ => added_counts(first),
    }
}

/// Counts one more reference.
#[inline]
pub(super) fn add_reference(frame: Frame) {
    // Relaxed, as in `Arc`: whoever adds one already holds one.
    if count(frame).fetch_add(1, Ordering::Relaxed) >= MAX_REFERENCES {
        overflow(frame);
    }
}

#[cold]
fn overflow(frame: Frame) -> ! {
    panic!("too many references to {frame:?}")
}

/// Counts one reference less; `true` if that was the last one, and the frame is the caller's to
/// free.
pub(super) fn drop_reference(frame: Frame) -> bool {
    // Release and acquire, as in `Arc`: all uses of the page happen before it is freed.
    let before = count(frame).fetch_sub(1, Ordering::Release);
    debug_assert_ne!(before, 0, "{frame:?} is given back more often than taken");
    if before != 1 {
        return false;
    }
    core::sync::atomic::fence(Ordering::Acquire);
    percpu::mine().pages.fetch_sub(1, Ordering::Relaxed);
    true
}

/// References to the page in a frame, at this moment.
pub(super) fn references(frame: Frame) -> u32 {
    count(frame).load(Ordering::Acquire)
}

/// Frames that hold pages.
pub(super) fn pages() -> u64 {
    percpu::sum(|local| &local.pages)
}
