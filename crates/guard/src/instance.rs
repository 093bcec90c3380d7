//! Calls of an instance about itself: its window, its boot blob, changes of what it has, its end.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::Window;
use abi::descriptor::MemRange;
use abi::layout::{ANSWERS, LIVE, PAGE_SIZE};
use abi::live::{self, Answer, Answers, Holdings, Live, MAX_ENTRIES, Refusal, Verdict};
use abi::window::State;
use lfmutex::Mutex;
use ring::epoch::{Copied, Table, WORDS};

use crate::arch::{self, timer};
use crate::mem::direct;
use crate::mem::frame::Frame;
use crate::{faults, heartbeat, ipi, mem, park, role};

/// The window shared with the supervisor.
///
/// # Panics
/// In the supervisor.
#[must_use]
pub fn window() -> &'static Window {
    role::window().expect("the supervisor has no window")
}

/// The boot blob: the command to run, as put together by the tool that created the instance
/// (`abi::boot`).
#[must_use]
pub fn boot_blob() -> &'static [u8] {
    let descriptor = role::descriptor();
    let len = descriptor.boot_blob_len as usize;
    if len == 0 {
        return &[];
    }
    // SAFETY: the descriptor validated, so the frames are the instance's and contiguous; they stay
    // reserved for ever and nobody writes to them.
    unsafe { core::slice::from_raw_parts(direct::ptr(Frame(descriptor.boot_blob_frame)), len) }
}

/// Outcome of a look at the dynamic part of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epoch {
    /// The same as at the last look.
    Same,
    /// One that is being written: whoever writes it rings when that is done.
    Torn,
    /// A new one, adopted as a whole.
    Taken {
        /// Number of the epoch.
        epoch: u64,
        /// Frames that the instance has by it.
        frames: u64,
    },
    /// A new one, of which nothing was adopted.
    Refused {
        /// Number of the epoch.
        epoch: u64,
        /// The first thing that is wrong with it.
        refusal: Refusal,
    },
}

/// The last epoch that was looked at; held while one is adopted.
static LAST_EPOCH: Mutex<u64> = Mutex::new(0);

/// The possessions of this instance.
struct Own;

impl Holdings for Own {
    fn first_memory(&self) -> &[MemRange] {
        role::descriptor().ranges()
    }
    fn frames(&self) -> u64 {
        mem::total_frames()
    }
    fn limit(&self) -> u64 {
        role::descriptor().frame_limit()
    }
    fn granule(&self, first_frame: u64) -> Option<u64> {
        mem::added_granule(Frame(first_frame))
    }
}

/// Looks at the dynamic part of the descriptor, adopts what is new or refuses it, and answers. In
/// the supervisor, which has none, it is always the same.
pub fn adopt_epoch() -> Epoch {
    if role::is_supervisor() {
        return Epoch::Same;
    }
    let mut last = LAST_EPOCH.lock();
    // SAFETY: an instance's tables map the dynamic part there for as long as it runs; it consists
    // of atomics.
    let live: &Live = unsafe { &*core::ptr::with_exposed_provenance(LIVE) };
    // SAFETY: as above, the page of answers.
    let answers: &Answers = unsafe { &*core::ptr::with_exposed_provenance(ANSWERS) };
    let table = Table::new(&live.counter, &live.count, &live.entries);
    if table.epoch() == Some(*last) {
        return Epoch::Same;
    }
    let mut copy = Vec::new();
    let room = copy.try_reserve_exact(MAX_ENTRIES);
    copy.resize(room.map_or(0, |()| MAX_ENTRIES), [0; WORDS]);
    let Copied::Whole { epoch, count } = table.read(&mut copy) else {
        return Epoch::Torn;
    };
    *last = epoch;
    let result = match usize::try_from(count) {
        _ if copy.is_empty() || faults::refuses_epochs() => Err(Refusal::NoMemory),
        Ok(count @ ..=MAX_ENTRIES) => adopt(&copy[..count]),
        _ => Err(Refusal::Count),
    };
    let (verdict, outcome) = match result {
        Ok(frames) => (Verdict::Taken, Epoch::Taken { epoch, frames }),
        Err(refusal) => (Verdict::Refused(refusal), Epoch::Refused { epoch, refusal }),
    };
    let answer = Answer {
        epoch: epoch as u32,
        verdict,
    };
    answers.last.store(answer.to_word(), Ordering::Release);
    drop(last);
    ipi::ring_peer();
    outcome
}

/// Adopts a whole epoch; returns the frames that the instance has by it.
fn adopt(entries: &[live::Entry]) -> Result<u64, Refusal> {
    let frames = live::check(entries, &Own)?;
    let has = mem::total_frames();
    // Of each range the part that is new.
    let new = entries.iter().map(live::range).filter_map(move |range| {
        let known = has.saturating_sub(range.first_frame);
        (known < range.count).then(|| MemRange {
            first_frame: range.first_frame + known,
            phys: range.phys + known * PAGE_SIZE as u64,
            count: range.count - known,
        })
    });
    // SAFETY: checked: whole granules that go on where the numbers end, within the limit, and no
    // memory that this instance has already. The supervisor has let go of them; the lock is held.
    match unsafe { mem::grow(new) } {
        Ok(()) => Ok(frames),
        Err(_) => Err(Refusal::NoMemory),
    }
}

/// Notes the moment at which the first program begins, once, and tells the supervisor that the
/// instance runs.
pub fn mark_first_user() {
    let window = window();
    let first = &window.status.first_user_tsc;
    if first
        .compare_exchange(0, timer::tsc(), Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        window.set_running();
        heartbeat::wake();
        ipi::ring_peer();
    }
}

/// Ends this instance: its status is `code`, and all its CPUs go to the park page.
pub fn exit(code: u32) -> ! {
    arch::stop_other_cpus();
    if let Some(window) = role::window() {
        window.status.exit_code.store(code, Ordering::Relaxed);
        window.set_state(State::Exited);
        ipi::ring_peer();
    }
    park::enter()
}
