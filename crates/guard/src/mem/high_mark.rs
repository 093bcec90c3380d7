//! The high mark of the kernel's memory as a whole: beyond it what is made for an unprivileged
//! program is refused, so that the rest is left to pages of programs, to files and to the kernel.
//!
//! What the kernel has is what nobody else has, so nothing is counted for it one by one. It is
//! looked at whenever a CPU has used up its budget (`alloc`): between two looks each CPU takes at
//! most a budget of frames, by which the mark may be passed before anybody is refused.
//!
//! Memory that leaves, or goes to another instance, is nobody's for a while, out of the allocator
//! and being cleared or unmapped. It *passes* ([`pass`]), and is not the kernel's: when it was
//! counted so, a user got `ENFILE` while memory left. Memory that comes is free before it counts
//! at all.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::Descriptor;
use abi::layout::PAGE_SIZE;
use fallible::inject;

use super::{alloc, grant, percpu, refcount, shortage, total_frames};

/// Frames that the kernel had at its start: image, tables of memory management.
static AT_START: AtomicU64 = AtomicU64::new(0);
/// Whether the kernel had more than [`mark`] when somebody looked last.
static IS_ABOVE: AtomicBool = AtomicBool::new(false);

/// Notes what the kernel has at its start, when so many frames are free; once, from `mem::init`.
pub(super) fn init(descriptor: &Descriptor, free: u64) {
    // The archive's frames are files' before long.
    let archive = descriptor.initramfs_len.div_ceil(PAGE_SIZE as u64);
    let frames = descriptor.total_frames() - free - archive;
    AT_START.store(frames, Ordering::Relaxed);
}

/// Frames on their way between the allocator and another owner.
static PASSING: AtomicU64 = AtomicU64::new(0);

/// Counts frames as passing: before they leave the allocator, or cease to be counted as another's.
pub(super) fn pass(frames: u64) {
    PASSING.fetch_add(frames, Ordering::AcqRel);
}

/// Ends that: after they have come to the allocator, or are counted as another's.
pub(super) fn end_passing(frames: u64) {
    PASSING.fetch_sub(frames, Ordering::AcqRel);
}

/// Frames that were not given to other instances, and are not on their way.
fn own_frames() -> u64 {
    // Before the others: what has ceased to pass is another's by then.
    let passing = PASSING.load(Ordering::Acquire);
    let (granted, leaked) = grant::counts();
    total_frames().saturating_sub(granted + leaked + passing)
}

/// Frames that nobody but the kernel has, if so many are free.
pub(super) fn kernel_frames(free: u64) -> u64 {
    own_frames().saturating_sub(free + refcount::pages())
}

/// Frames that the kernel may have: those of its start, and half of the others.
pub(super) fn mark() -> u64 {
    mark_of(own_frames(), AT_START.load(Ordering::Relaxed))
}

fn mark_of(own: u64, at_start: u64) -> u64 {
    at_start + own.saturating_sub(at_start) / 2
}

/// Looks whether the kernel has passed its mark.
pub(super) fn look() -> bool {
    // Twice: the numbers are read one after another, and a CPU that stands still in between takes
    // what became free meanwhile for the kernel's.
    let is_above = || kernel_frames(alloc::free_frames()) > mark();
    let above = is_above() && is_above();
    // Written when it changes only: all CPUs read it.
    if IS_ABOVE.load(Ordering::Relaxed) != above {
        IS_ABOVE.store(above, Ordering::Relaxed);
    }
    above
}

/// Whether the kernel may take memory for one object more of the calling thread: it has not passed
/// its mark, or the thread may have it do so. A request for memory, which can be refused on
/// purpose.
#[inline]
#[must_use]
pub fn has_kernel_room() -> bool {
    (!IS_ABOVE.load(Ordering::Relaxed) || find_kernel_room()) && !inject::fails()
}

#[cold]
#[inline(never)]
fn find_kernel_room() -> bool {
    shortage::may_pass_mark() || !look()
}

/// Counts a page table of a program.
pub(crate) fn count_table() {
    percpu::mine().tables.fetch_add(1, Ordering::Relaxed);
}

/// Counts page tables of a program that are freed.
pub(crate) fn uncount_tables(count: u64) {
    percpu::mine().tables.fetch_sub(count, Ordering::Relaxed);
}

/// Frames that hold page tables of programs.
pub(super) fn tables() -> u64 {
    percpu::sum(|local| &local.tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_may_have_half_of_what_it_left_at_its_start() {
        assert_eq!(mark_of(1000, 200), 600);
        // All but a little was given to instances, and their frames' counts are the kernel's.
        assert_eq!(mark_of(210, 200), 205);
        assert_eq!(mark_of(150, 200), 200);
    }
}
