//! Reclaim when memory is short: asks the registered caches (`shrink`) for some, before a request
//! is refused.
//!
//! A shrinker is called by whoever is short, with whatever locks that thread holds; so it waits for
//! no lock under which memory is allocated, and allocates nothing itself. If it does all the same,
//! that allocation is refused instead of asking again.

use core::sync::atomic::{AtomicU64, Ordering};

use ::alloc::sync::Arc;
use abi::layout::PAGE_SIZE;
use lfmutex::{Mutex, scheduler};
use psi::Pressure;
use shrink::{Round, Shrinker, Shrinkers, Ticket, Urgency};

use super::{alloc, heap};
use crate::irq::Hook;
use crate::{BootToken, timer};

static SHRINKERS: Shrinkers = Shrinkers::new();
/// The reclaim call in progress; made at the start, since a call must not allocate.
static ROUND: Mutex<Option<Arc<Round>>> = Mutex::new(None);
/// The thread that makes the call, plus one.
static CALLER: AtomicU64 = AtomicU64::new(0);
/// Calls so far.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Time that threads wait for memory to be given back.
static PRESSURE: Mutex<Pressure> = Mutex::new(Pressure::new());
/// Whether threads run on while one waits for memory.
static OTHERS: Hook<fn() -> bool> = Hook::new();

/// Sets how to learn whether threads run beside the calling one. Without it the answer is yes.
pub fn set_others_run(_: &BootToken, others: fn() -> bool) {
    OTHERS.set(others);
}

/// Looks at the time that threads have waited for memory; `look` gets it and the time now.
pub fn pressure<R>(look: impl FnOnce(&mut Pressure, u64) -> R) -> R {
    let mut pressure = PRESSURE.lock();
    look(&mut pressure, timer::now_ns())
}

/// The registry of the kernel's caches.
#[must_use]
pub fn shrinkers() -> &'static Shrinkers {
    &SHRINKERS
}

/// Number of requests that had to wait for memory that caches gave back.
#[must_use]
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Registers the caches of the guard; once, when there is a heap.
pub(super) fn init() {
    *ROUND.lock() = Some(Arc::default());
    SHRINKERS.register(Arc::new(Zeroed));
    SHRINKERS.register(Arc::new(SmallObjects));
}

/// Counts the time that `wait` takes as the time of a thread that waits for memory.
pub(super) fn stall<R>(wait: impl FnOnce() -> R) -> R {
    let others = OTHERS.get().is_none_or(|others| others());
    pressure(|pressure, now| pressure.begin(now, others));
    let result = wait();
    pressure(|pressure, now| pressure.end(now, others));
    result
}

/// Tries to have `bytes` given back. `false` if nothing was, or where the caller must not sleep.
pub(super) fn reclaim(bytes: u64) -> bool {
    if !scheduler().may_block() {
        return alloc::give_back_zeroed() > 0;
    }
    let me = scheduler().current().into_raw() as u64 + 1;
    if CALLER.load(Ordering::Relaxed) == me {
        return false;
    }
    let round = ROUND.lock();
    let Some(round) = round.as_ref() else {
        return false;
    };
    CALLER.store(me, Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
    let freed = stall(|| {
        // More than is missing, so that the next request does not come here again.
        SHRINKERS.reclaim(round, bytes.max(64 * PAGE_SIZE as u64), Urgency::Critical);
        round.wait()
    });
    CALLER.store(0, Ordering::Relaxed);
    freed > 0
}

/// Has caches give up all that they can; false if that was nothing. Sleeps; the caller holds no
/// lock.
pub(crate) fn reclaim_all() -> bool {
    reclaim(super::total_frames() * PAGE_SIZE as u64)
}

/// Has caches give memory back if the kernel uses up its share. Sleeps; the caller holds no lock.
pub fn reclaim_low() {
    if alloc::is_low() {
        reclaim(alloc::kernels_share() * PAGE_SIZE as u64);
    }
}

/// Pages zeroed ahead.
struct Zeroed;

impl Shrinker for Zeroed {
    fn name(&self) -> &'static str {
        "zeroed pages"
    }
    fn reclaimable(&self, _: Urgency) -> u64 {
        alloc::zeroed_ahead() * PAGE_SIZE as u64
    }
    fn shrink(&self, _: u64, _: Urgency, ticket: Ticket) {
        ticket.freed(alloc::give_back_zeroed() * PAGE_SIZE as u64);
    }
}

/// Free objects in the CPUs' magazines. How much of it makes whole slabs is seen only when it is
/// put back.
struct SmallObjects;

impl Shrinker for SmallObjects {
    fn name(&self) -> &'static str {
        "small objects"
    }
    fn reclaimable(&self, urgency: Urgency) -> u64 {
        if urgency >= Urgency::High {
            heap::kept()
        } else {
            0
        }
    }
    fn shrink(&self, _: u64, _: Urgency, ticket: Ticket) {
        let before = heap::frames();
        heap::shrink();
        ticket.freed(before.saturating_sub(heap::frames()) * PAGE_SIZE as u64);
    }
}
