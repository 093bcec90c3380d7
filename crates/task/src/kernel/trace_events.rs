//! Trace events of the scheduler (`docs/observability.md`): the identity of threads, switches and
//! wake-ups, and waits for locks by their place in the source.

use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};

use guard::cpu::CpuId;
pub use guard::trace::Site;
use guard::trace::{self, Kind, Note, Sites, THREAD_ENDS, THREAD_IS, THREAD_NAME};
use lfmutex::Wait;

use super::now_ns;
use super::slot::{self, Slot};

static SITES: Sites = Sites::new();

/// The places in the source where somebody has waited for a lock.
pub fn lock_sites() -> impl Iterator<Item = Site> {
    SITES.all()
}

/// Identity of a thread in records: read and written without locks, so a reader may see half of a
/// new name.
#[derive(Default)]
pub(super) struct Label {
    name: [AtomicU64; 2],
    /// Number of the thread in the Linux personality, and above it that of its process; 0 for a
    /// thread of the kernel.
    ids: AtomicU64,
}

impl Label {
    fn ids(&self) -> Note {
        let ids = self.ids.load(Ordering::Relaxed);
        Note {
            detail: THREAD_IS,
            a: ids & u64::from(u32::MAX),
            b: ids >> 32,
        }
    }

    fn name(&self) -> Note {
        let [a, b] = &self.name;
        Note {
            detail: THREAD_NAME,
            a: a.load(Ordering::Relaxed),
            b: b.load(Ordering::Relaxed),
        }
    }

    fn set_name(&self, name: &str) {
        let mut bytes = [0; 16];
        // The last one stays 0.
        bytes
            .iter_mut()
            .zip(name.bytes().take(15))
            .for_each(|(to, byte)| *to = byte);
        let word = u128::from_le_bytes(bytes);
        self.name[0].store(word as u64, Ordering::Relaxed);
        self.name[1].store((word >> 64) as u64, Ordering::Relaxed);
    }
}

/// Whether anything is recorded. Threads come into the records with whatever is.
fn is_recording() -> bool {
    trace::wants(Kind::Thread)
}

/// Another thread lives in the slot from now on.
pub(super) fn trace_spawn(slot: &Slot, name: &str) {
    slot.label.ids.store(0, Ordering::Relaxed);
    slot.label.set_name(name);
    if is_recording() {
        trace_identity(slot);
    }
}

/// Records a new name of the slot's thread.
pub(super) fn trace_rename(slot: &Slot, name: &str) {
    slot.label.set_name(name);
    if is_recording() {
        trace::about_thread(slot.number(), Kind::Thread, slot.label.name());
    }
}

/// Records the Linux personality's numbers of the slot's thread.
pub(super) fn trace_set_ids(slot: &Slot, process: u32, thread: u32) {
    slot.label.ids.store(
        u64::from(process) << 32 | u64::from(thread),
        Ordering::Relaxed,
    );
    if is_recording() {
        trace_identity(slot);
    }
}

/// Records the end of the slot's thread.
pub(super) fn trace_exit(slot: &Slot) {
    slot.label.name[0].store(0, Ordering::Relaxed);
    if is_recording() {
        trace::about_thread(slot.number(), Kind::Thread, Note::detail(THREAD_ENDS));
    }
}

#[cold]
fn trace_identity(slot: &Slot) {
    trace::about_thread(slot.number(), Kind::Thread, slot.label.ids());
    trace::about_thread(slot.number(), Kind::Thread, slot.label.name());
}

/// Records events of these classes (`trace::Class`), and first who the threads are.
///
/// # Errors
/// There is no memory for the rings.
pub fn start_recording(classes: u32) -> Result<(), trace::NoRings> {
    trace::start(classes)?;
    let named = |slot: &&Slot| slot.label.name[0].load(Ordering::Relaxed) != 0;
    (0..)
        .map_while(slot::get)
        .filter(named)
        .for_each(trace_identity);
    Ok(())
}

pub(super) fn trace_contention_begin(site: &'static Location<'static>) -> Wait {
    let wait = Wait {
        site: SITES.number(site),
        since_ns: now_ns(),
    };
    trace::event(Kind::LockBegin, || Note::two(wait.site as u64, 0));
    wait
}

pub(super) fn trace_contention_end(wait: Wait) {
    SITES.add(wait.site, now_ns().saturating_sub(wait.since_ns));
    trace::event(Kind::LockEnd, || Note::two(wait.site as u64, 0));
}

/// The CPU goes from `prev` to `next`.
#[inline(always)]
pub(super) fn trace_switch(prev: &Slot, next: &Slot) {
    if trace::wants(Kind::Switch) {
        trace::about_thread(
            prev.number(),
            Kind::Switch,
            Note::two(u64::from(next.number()), 0),
        );
    }
}

/// Means by which a CPU learns of a thread that was woken for it: `trace::WAKE_DETAILS`.
#[derive(Clone, Copy)]
pub(super) enum WakeMethod {
    /// The woken thread is for the waker's own CPU.
    Here = 0,
    /// An interrupt told the CPU.
    Interrupt = 1,
    /// A store told the CPU, which polls.
    Polls = 2,
    /// The CPU had been told already.
    Already = 3,
    /// The CPU looks in time by itself.
    InTime = 4,
}

/// The running thread woke this one, for that CPU.
#[inline(always)]
pub(super) fn trace_wakeup(slot: &Slot, target: CpuId, told: WakeMethod) {
    trace::event(Kind::Wake, || Note {
        detail: told as u8,
        a: u64::from(slot.number()),
        b: u64::from(target.0),
    });
}

/// A waiting thread goes to an idle CPU.
#[inline(always)]
pub(super) fn trace_migrate(slot: &Slot, target: CpuId) {
    trace::event(Kind::Steal, || {
        Note::two(u64::from(slot.number()), u64::from(target.0))
    });
}
