//! The kernel's own allocations when its share of memory is nearly used up.
//!
//! The last quarter of the share is the *reserve*, for who frees memory: threads of programs that
//! end, process 1, and the kernel's own threads. All others wait for memory before they take some
//! of it, with whatever locks they hold; so the wait is bounded, and who has waited takes its
//! memory all the same. Requests that can be refused are refused instead.
//!
//! An object of up to [`SURE_BYTES`] is had for certain: where there is nothing at all, its
//! allocation is tried again until there is. `alloc`'s collections cannot be told otherwise, and a
//! failure would end the instance.

use core::sync::atomic::{AtomicBool, Ordering};

use fallible::inject;
use lfmutex::scheduler;

use super::{alloc, reclaim};
use crate::BootToken;
use crate::irq::Hook;

/// Objects of up to so many bytes are waited for. Larger ones must lie in a row: they may not be
/// had while there is memory, and whoever asks for them is refused.
pub(super) const SURE_BYTES: usize = 256 << 10;

/// Whether larger requests than [`SURE_BYTES`] were refused since the start: for the log.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Shortage that a thread meets when the kernel needs memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Only the reserve is left.
    Reserve,
    /// No memory is left.
    Nothing,
}

static MAY_USE_RESERVE: Hook<fn() -> bool> = Hook::new();
static MAY_PASS_MARK: Hook<fn() -> bool> = Hook::new();
static WAIT: Hook<fn(Shortage) -> bool> = Hook::new();

/// Sets what threads do while memory is short; before that nobody waits. The functions are called
/// with locks held.
///
/// `may_use_reserve`: whether the calling thread may take from the reserve. `may_pass_mark`:
/// whether the kernel may take memory for it beyond its high mark. `wait`: has memory freed and
/// waits for it, for a bounded time; `false` if waiting is of no use, or not for this thread.
pub fn set_shortage_handlers(
    _: &BootToken,
    may_use_reserve: fn() -> bool,
    may_pass_mark: fn() -> bool,
    wait: fn(Shortage) -> bool,
) {
    MAY_USE_RESERVE.set(may_use_reserve);
    MAY_PASS_MARK.set(may_pass_mark);
    WAIT.set(wait);
}

/// Whether nothing but the reserve is left of the kernel's share, or less.
#[must_use]
pub fn is_reserve_touched() -> bool {
    alloc::free_frames() < alloc::kernels_share() / 4
}

/// Counts frames that the kernel is about to take and cannot be refused. A thread that must leave
/// the reserve alone waits first.
#[inline]
pub(super) fn admit(frames: u64) {
    if !alloc::charge_kernel(frames) {
        admit_slowly();
    }
}

#[cold]
#[inline(never)]
fn admit_slowly() {
    if is_reserve_touched() && scheduler().may_block() && !may_use_reserve() {
        wait(Shortage::Reserve);
    }
}

/// Whether the kernel may take so many frames for something that it can refuse; counts them. A
/// thread that must leave the reserve alone waits first, and is refused if nothing came of it.
#[inline]
pub(crate) fn may_take(frames: u64) -> bool {
    !inject::fails() && (alloc::charge_kernel(frames) || may_take_slowly())
}

#[cold]
#[inline(never)]
fn may_take_slowly() -> bool {
    admit_slowly();
    !is_reserve_touched() || may_use_reserve()
}

fn may_use_reserve() -> bool {
    MAY_USE_RESERVE.get().is_none_or(|may| may())
}

pub(super) fn may_pass_mark() -> bool {
    MAY_PASS_MARK.get().is_none_or(|may| may())
}

fn wait(shortage: Shortage) -> bool {
    WAIT.get()
        .is_some_and(|wait| reclaim::stall(|| wait(shortage)))
}

/// Tries `take` again and again until it gives something. `None` only where the caller must not
/// sleep, or waiting is of no use.
pub(super) fn insist<T>(take: impl Fn() -> Option<T>) -> Option<T> {
    loop {
        let taken = take();
        if taken.is_some() || !scheduler().may_block() || !wait(Shortage::Nothing) {
            return taken;
        }
    }
}

/// Notes that a large object was refused, and says so the first time.
pub(super) fn refuse(bytes: usize) {
    if !REFUSED.swap(true, Ordering::Relaxed) {
        log::warn!("no {} KiB in a row for the kernel", bytes >> 10);
    }
}
