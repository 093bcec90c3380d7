//! Memory that leaves this instance while it runs (`docs/descriptor.md`): the last of its added
//! granules.
//!
//! They are isolated first, so that nothing more of them is handed out, and taken out when all of
//! them are free. Until then anybody who finds no memory ends that ([`cancel`]): nobody is to be
//! refused, or killed, for a change that can be refused itself.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use abi::layout::GRANULE_FRAMES;
use abi::live::Refusal;
use lfmutex::Mutex;

use super::frame::Frame;
use super::{TOTAL, added, alloc, heap, high_mark, refcount, total_frames};
use crate::paging::kernel;
use crate::{rcu, stack};

/// Nothing is to leave.
const NONE: u32 = 0;
/// Granules are isolated, and whoever is short of memory may end that.
const LEAVING: u32 = 1;
/// Somebody was short of memory.
const CANCELLED: u32 = 2;
/// All that is isolated goes, if it is free.
const TAKING: u32 = 3;

static PHASE: AtomicU32 = AtomicU32::new(NONE);
/// Frames that are to leave, whole granules.
static FROM: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// Held while memory leaves, and by whoever needs all of it to stay.
static STAYS: Mutex<()> = Mutex::new(());

/// Runs `f` while no memory leaves this instance.
pub(crate) fn while_all_stays<R>(f: impl FnOnce() -> R) -> R {
    let _stays = STAYS.lock();
    f()
}

/// How often it is looked whether all is free, each time after everything that is kept in stock was
/// given back, and but for the first time after pages were moved: a page is not moved while
/// somebody is about to use it.
const ROUNDS: usize = 9;

/// Whether memory is on its way out.
pub(super) fn is_under_way() -> bool {
    // What the caller has put into stock is seen by who empties stocks after having set this, or
    // the caller sees this.
    fence(Ordering::SeqCst);
    PHASE.load(Ordering::SeqCst) != NONE
}

/// Somebody found no memory: what is isolated is so no more, and the change will be refused. True
/// if it is worth asking again. Takes no lock.
#[cold]
pub(super) fn cancel() -> bool {
    let _ = PHASE.compare_exchange(LEAVING, CANCELLED, Ordering::SeqCst, Ordering::SeqCst);
    let cancelled = PHASE.load(Ordering::SeqCst) == CANCELLED;
    if cancelled {
        // By everybody who comes here, as nobody waits for another one.
        let leaving = FROM.load(Ordering::Relaxed)..END.load(Ordering::Relaxed);
        alloc::isolate(leaving, false);
    }
    cancelled
}

/// Number of frames that are to leave and are isolated, at this moment.
#[must_use]
pub fn leaving_frames() -> usize {
    match PHASE.load(Ordering::SeqCst) {
        LEAVING => (END.load(Ordering::Relaxed) - FROM.load(Ordering::Relaxed)) as usize,
        _ => 0,
    }
}

/// Number of a frame among those that are to leave; `None` of all others, and once nothing is to
/// leave any more.
#[must_use]
pub fn leaving_index(frame: Frame) -> Option<usize> {
    let index = frame.0.checked_sub(FROM.load(Ordering::Relaxed))? as usize;
    (index < leaving_frames()).then_some(index)
}

/// Granules that are isolated until this is dropped.
struct Isolated(Range<u64>);

impl Isolated {
    fn new(frames: Range<u64>) -> Self {
        FROM.store(frames.start, Ordering::Relaxed);
        END.store(frames.end, Ordering::Relaxed);
        // Before the first one is isolated: else who finds nothing because of it would not know.
        PHASE.store(LEAVING, Ordering::SeqCst);
        alloc::isolate(frames.clone(), true);
        Self(frames)
    }

    /// Number of frames.
    fn count(&self) -> u64 {
        self.0.end - self.0.start
    }

    /// Frames of each granule that the allocator has: all but those that hold reference counts.
    fn usable(&self) -> impl Iterator<Item = Range<u64>> {
        let granules = self.0.clone().step_by(GRANULE_FRAMES as usize);
        granules.map(|first| first + added::held(Frame(first))..first + GRANULE_FRAMES)
    }

    /// Whether so much is free elsewhere as there is in use here, and programs need besides.
    fn check_room(&self) -> Result<(), Refusal> {
        let leaving: u64 = self.usable().map(|range| range.end - range.start).sum();
        let left = total_frames() - self.count();
        let needed = leaving + alloc::shares_of(left);
        let missing = needed.saturating_sub(alloc::free_frames());
        (missing == 0)
            .then_some(())
            .ok_or(Refusal::short_of(missing))
    }

    /// Takes all of it out of the allocator, if all of it is free; then it passes.
    fn take(&self) -> bool {
        if PHASE
            .compare_exchange(LEAVING, TAKING, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            return false;
        }
        high_mark::pass(self.count());
        for (taken, range) in self.usable().enumerate() {
            if !alloc::take_out(range) {
                self.usable().take(taken).for_each(alloc::put_back);
                high_mark::end_passing(self.count());
                // Isolated as before, and perhaps it is all free the next time.
                alloc::isolate(self.0.clone(), true);
                PHASE.store(LEAVING, Ordering::SeqCst);
                return false;
            }
        }
        true
    }

    /// The reason for which it cannot leave; none if all of it is free at this moment.
    fn refusal(&self) -> Option<Refusal> {
        let (mut kernels, mut pages) = (0, 0);
        for frame in self
            .usable()
            .flatten()
            .filter(|frame| !alloc::is_free(*frame))
        {
            match refcount::is_page(Frame(frame)) {
                true => pages += 1,
                false => kernels += 1,
            }
        }
        match (kernels, pages) {
            (0, 0) => None,
            (0, _) => Some(Refusal::pages_of_programs(pages)),
            _ => Some(Refusal::pages_of_kernel(kernels)),
        }
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        alloc::isolate(self.0.clone(), false);
        PHASE.store(NONE, Ordering::SeqCst);
    }
}

/// Gives back what is kept ready of memory, by every CPU.
fn empty_stocks() {
    // Whoever was zeroing a page ahead when memory was isolated has put it into stock.
    rcu::drain();
    alloc::give_back_zeroed();
    stack::shrink();
    heap::shrink();
}

/// Has the last added granules leave, so that frames `0..to` are left: takes them out of the
/// allocator, of the direct map of all CPUs, and of the tables. `move_pages` is to move the pages
/// in them of which [`leaving_index`] has a number. By one caller at a time. Sleeps.
///
/// # Errors
/// Why they cannot leave; nothing was changed.
///
/// # Panics
/// If `to` is no number of whole granules, or that would take some of the first memory.
pub(crate) fn shrink(to: u64, move_pages: fn()) -> Result<(), Refusal> {
    let _leave = STAYS.lock();
    let has = total_frames();
    let tables = added::tables().expect("memory leaves before mem::init");
    assert!(
        to.is_multiple_of(GRANULE_FRAMES) && to >= tables.first_frame() && to <= has,
        "frames {to}..{has} cannot leave"
    );
    let isolated = Isolated::new(to..has);
    let mut round = 0;
    loop {
        round += 1;
        isolated.check_room()?;
        empty_stocks();
        if isolated.take() {
            let granules = || (to..has).step_by(GRANULE_FRAMES as usize).map(Frame);
            // SAFETY: whole granules, out of the allocator with every frame that it had of them;
            // the others hold reference counts of frames that leave with them.
            unsafe { kernel::unmap_granules(granules()) };
            granules().for_each(|first| tables.remove(first));
            TOTAL.fetch_sub(has - to, Ordering::Relaxed);
            high_mark::end_passing(has - to);
            // Nothing is there to be handed out any more.
            core::mem::forget(isolated);
            PHASE.store(NONE, Ordering::SeqCst);
            return Ok(());
        }
        if PHASE.load(Ordering::SeqCst) == CANCELLED {
            return Err(Refusal::short_of(1));
        }
        // If all of it is free by now, it is worth another round, but not for ever.
        let refusal = (round >= ROUNDS).then(|| isolated.refusal()).flatten();
        if refusal.is_some() || round >= 2 * ROUNDS {
            return Err(refusal.unwrap_or(Refusal::pages_of_programs(1)));
        }
        move_pages();
    }
}
