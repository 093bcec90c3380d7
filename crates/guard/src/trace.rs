//! Recording what the kernel does, while somebody wants to know (`docs/observability.md`).
//!
//! A record goes into the ring of the CPU it is made on. While nobody records, an event costs one
//! load and a branch that is never taken.

use core::sync::atomic::{AtomicU32, Ordering};

pub use ::trace::{
    Class, Kind, Note, RECORD_BYTES, Record, Site, Sites, THREAD_ENDS, THREAD_IS, THREAD_NAME,
};
use lfmutex::{Mutex, Once};
use trace::Ring;

use crate::cpu::{self, CpuId, MAX_CPUS};
use crate::irq::Hook;
use crate::{BootToken, mem, timer};

/// The classes of events that are recorded at the moment (`trace::Class`).
static WANTED: AtomicU32 = AtomicU32::new(0);
/// Made when first needed, and kept: somebody may still be writing when recording ends.
static RINGS: [Once<Ring>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];
static THREAD: Hook<fn() -> u32> = Hook::new();
/// Held while a ring is read.
static READER: Mutex<()> = Mutex::new(());

/// The part of the memory that all rings together may take, one in so many.
const SHARE: u64 = 128;
/// Fewest and most records of a ring.
const MIN_RECORDS: u64 = 1 << 10;
const MAX_RECORDS: u64 = 1 << 16;

/// Sets what tells the number of the running thread; it is called with interrupts off, by NMI
/// handlers too, on a CPU that has adopted a context.
pub fn set_thread_source(_: &BootToken, source: fn() -> u32) {
    THREAD.set(source);
}

/// The number of the running thread, if there is one that is known by a number.
pub(crate) fn running_thread() -> Option<u32> {
    THREAD.get().map(|source| source())
}

/// Whether events of this kind are recorded.
#[inline(always)]
#[must_use]
pub fn wants(kind: Kind) -> bool {
    WANTED.load(Ordering::Relaxed) & kind.classes() != 0
}

/// Records an event, if somebody wants to know; `note` is called only then. From anywhere but NMI
/// handlers.
#[inline(always)]
pub fn event(kind: Kind, note: impl FnOnce() -> Note) {
    if wants(kind) {
        record(kind, note());
    }
}

#[cold]
#[inline(never)]
fn record(kind: Kind, note: Note) {
    record_for(None, kind, note);
}

/// Records something about another thread than the one that runs. The caller has asked [`wants`].
#[cold]
#[inline(never)]
pub fn about_thread(thread: u32, kind: Kind, note: Note) {
    record_for(Some(thread), kind, note);
}

fn record_for(thread: Option<u32>, kind: Kind, note: Note) {
    cpu::without_irqs(|| {
        let me = cpu::current();
        let thread = thread.or_else(running_thread).unwrap_or(u32::MAX);
        if let Some(ring) = RINGS[me.0 as usize].get() {
            ring.push(&Record::new(
                timer::now_ns(),
                me.0 as u16,
                thread,
                kind,
                note,
            ));
        }
    });
}

/// Error: no memory for the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRings;

/// Records these classes of events from now on; what an earlier recording left unread is dropped.
///
/// # Errors
/// [`NoRings`]; then nothing is recorded.
pub fn start(classes: u32) -> Result<(), NoRings> {
    let cpus = cpu::most() as u64;
    let records = (mem::stats().total * 4096 / SHARE / cpus / size_of::<Record>() as u64)
        .clamp(MIN_RECORDS, MAX_RECORDS);
    for ring in &RINGS[..cpus as usize] {
        if ring.get().is_none() {
            // Rounded up, hence half.
            let made = Ring::new((records / 2 + 1) as usize).ok_or(NoRings)?;
            // Whoever was faster made one of the same size.
            drop(ring.set(made));
        }
    }
    stop();
    (0..cpus as u32)
        .map(CpuId)
        .for_each(|cpu| take(cpu, |_| true));
    WANTED.store(classes, Ordering::SeqCst);
    Ok(())
}

/// Records nothing more. What is in the rings can still be taken.
pub fn stop() {
    WANTED.store(0, Ordering::SeqCst);
}

/// Takes records of a CPU, oldest first, until `each` wants no more; it is also told how many were
/// lost. Thread context only.
pub fn take(cpu: CpuId, mut each: impl FnMut(Record) -> bool) {
    let Some(ring) = RINGS.get(cpu.0 as usize).and_then(Once::get) else {
        return;
    };
    let _reader = READER.lock();
    let lost = ring.take_lost();
    let mut more = lost == 0
        || each(Record::new(
            timer::now_ns(),
            cpu.0 as u16,
            u32::MAX,
            Kind::Lost,
            Note::two(lost, 0),
        ));
    while more {
        match ring.pop() {
            Some(record) => more = each(record),
            None => return,
        }
    }
}
