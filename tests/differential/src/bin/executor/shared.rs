//! Memory that all processes of a program share with the one that watches them.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64};

use differential::layout::{ACTORS, STEPS};

/// Bytes of text that a step has for the memory it changed.
const STEP_TEXT: usize = 2048;
/// Bytes of text for what is left at the end.
const LEFT_TEXT: usize = 16384;
/// Signals that are noted.
const SIGNALS: usize = 64;

/// Text that one process writes and another reads later.
pub struct Text<const N: usize> {
    length: AtomicU32,
    bytes: [AtomicU8; N],
}

impl<const N: usize> Text<N> {
    /// Appends as much as fits.
    pub fn push(&self, text: &str) {
        let start = self.length.load(SeqCst) as usize;
        let room = self.bytes.get(start..).unwrap_or(&[]);
        // The length, stored after them, publishes them.
        for (place, byte) in room.iter().zip(text.bytes()) {
            place.store(byte, Relaxed);
        }
        self.length
            .store((start + text.len().min(room.len())) as u32, SeqCst);
    }

    /// All of it.
    pub fn read(&self) -> String {
        let length = (self.length.load(SeqCst) as usize).min(N);
        let bytes: Vec<u8> = self.bytes[..length]
            .iter()
            .map(|byte| byte.load(Relaxed))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn clear(&self) {
        self.length.store(0, SeqCst);
    }
}

/// An actor as it is seen from outside.
pub struct ActorState {
    /// Limit of the steps that the actor may take; [`END`] for coming to an end.
    pub turn: AtomicU32,
    /// One of the constants below.
    pub state: AtomicU32,
    /// The step it is in, while its state is [`CALL`].
    pub step: AtomicU32,
    /// How often its thread had gone to sleep when it made that call.
    pub switches: AtomicU64,
    /// Number of the actor's process.
    pub process: AtomicI32,
    /// Number of the actor's thread.
    pub thread: AtomicI32,
}

/// The turn after all steps.
pub const END: u32 = u32::MAX;
/// The actor has not begun.
pub const NEW: u32 = 0;
/// The actor waits for its turn.
pub const IDLE: u32 = 1;
/// The actor is in a system call.
pub const CALL: u32 = 2;
/// The actor works on its own account and will come to another state.
pub const BUSY: u32 = 3;
/// The actor has ended.
pub const DONE: u32 = 4;

/// Outcome of a step.
pub struct StepState {
    /// Whether it has been made.
    pub done: AtomicU32,
    /// Result of the call.
    pub result: AtomicI64,
    /// Two descriptors that it wrote.
    pub parts: [AtomicI32; 2],
    /// Lines on the memory it changed.
    pub text: Text<STEP_TEXT>,
}

/// A signal that a handler was called for.
pub struct Noted {
    /// The step the actor was in, or had taken last.
    pub step: AtomicU32,
    /// The signal, `si_code`, `si_pid`, `si_value`.
    pub what: [AtomicI32; 4],
    /// The signals that were blocked while the handler ran.
    pub mask: AtomicU64,
}

/// Everything; only atomics, so that any process may read and write it at any time.
pub struct Shared {
    /// Changes whenever an actor's state does.
    pub event: AtomicU32,
    /// The actors.
    pub actors: [ActorState; ACTORS],
    /// The steps.
    pub steps: [StepState; STEPS],
    /// State left at the end, as text, told by the first actor.
    pub left: Text<LEFT_TEXT>,
    signals: AtomicU32,
    noted: [Noted; SIGNALS],
}

impl Shared {
    /// Maps it, zeroed.
    pub fn map() -> &'static Self {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping of that size; zeros are valid atomics. It is never unmapped.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Self>(),
                access,
                flags,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED, "no memory to share");
            &*at.cast::<Self>()
        }
    }

    /// Makes it as it was when it was new.
    pub fn clear(&self) {
        for actor in &self.actors {
            actor.turn.store(0, SeqCst);
            actor.state.store(NEW, SeqCst);
            actor.step.store(0, SeqCst);
            actor.process.store(0, SeqCst);
            actor.thread.store(0, SeqCst);
        }
        for step in &self.steps {
            step.done.store(0, SeqCst);
            step.result.store(-1, SeqCst);
            step.parts.iter().for_each(|part| part.store(-1, SeqCst));
            step.text.clear();
        }
        self.left.clear();
        self.signals.store(0, SeqCst);
    }

    /// Notes a signal; called by handlers.
    pub fn note(&self, step: u32, what: [i32; 4], mask: u64) {
        let Some(place) = self.noted.get(self.signals.fetch_add(1, SeqCst) as usize) else {
            return;
        };
        place.step.store(step, SeqCst);
        place
            .what
            .iter()
            .zip(what)
            .for_each(|(place, what)| place.store(what, SeqCst));
        place.mask.store(mask, SeqCst);
    }

    /// The signals noted.
    pub fn noted(&self) -> &[Noted] {
        &self.noted[..(self.signals.load(SeqCst) as usize).min(SIGNALS)]
    }

    /// Says that something changed.
    pub fn announce(&self) {
        self.event.fetch_add(1, SeqCst);
        crate::sys::futex_wake(&self.event);
    }
}
