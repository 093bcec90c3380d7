//! Thread slots: what stays in one place for ever, so that a number is enough to name a thread anywhere, interrupt handlers
//! included. A slot has a stack and a context, made once; when its thread ends, the next one to be spawned continues there.
//! A permit given to a thread that is gone therefore hits an idle slot or a new thread, and is a spurious wake-up: harmless.
//!
//! A slot is RUNNING (on a CPU or queued for one), NOTIFIED (that, with a permit), or PARKED. Whoever moves it from PARKED to
//! RUNNING, and nobody else, puts it on a wake list.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use guard::context::Context;
use lfmutex::{Mutex, Once};
use ring::NIL;

use super::sched;
use super::thread::Thread;

const CHUNK: usize = 64;
const CHUNKS: usize = 512;

const RUNNING: u32 = 0;
const NOTIFIED: u32 = 1;
const PARKED: u32 = 2;

/// A thread's fixed part.
pub(super) struct Slot {
    number: u32,
    state: AtomicU32,
    /// Link in a wake list or run queue.
    next: AtomicU32,
    /// The CPU it runs on or last ran on, or is queued for.
    cpu: AtomicU32,
    context: Once<Context>,
    /// The thread that lives here. Locked for moments only, and never by an interrupt handler.
    pub(super) thread: Mutex<Option<Arc<Thread>>>,
    pub(super) job: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

static SLOTS: [Once<Box<[Slot]>>; CHUNKS] = [const { Once::new() }; CHUNKS];

/// The slot of a number that was handed out.
pub(super) fn get(number: u32) -> Option<&'static Slot> {
    let number = number as usize;
    SLOTS.get(number / CHUNK)?.get().map(|chunk| &chunk[number % CHUNK])
}

/// The slot of a number known to be good.
pub(super) fn at(number: u32) -> &'static Slot {
    get(number).expect("a number from a list of slots")
}

/// The link of a number known to be good, for lists.
pub(super) fn link(number: u32) -> &'static AtomicU32 {
    &at(number).next
}

/// Makes a slot exist. `None` if the table is full.
pub(super) fn create(number: u32) -> Option<&'static Slot> {
    let chunk = number as usize / CHUNK;
    SLOTS.get(chunk)?.call_once(|| (0..CHUNK).map(|i| Slot::new((chunk * CHUNK + i) as u32)).collect());
    get(number)
}

impl Slot {
    fn new(number: u32) -> Self {
        Self {
            number,
            state: AtomicU32::new(PARKED),
            next: AtomicU32::new(NIL),
            cpu: AtomicU32::new(0),
            context: Once::new(),
            thread: Mutex::new(None),
            job: Mutex::new(None),
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn cpu(&self) -> u32 {
        self.cpu.load(Ordering::Relaxed)
    }

    pub(super) fn set_cpu(&self, cpu: u32) {
        self.cpu.store(cpu, Ordering::Relaxed);
    }

    pub(super) fn set_context(&self, context: Context) {
        assert!(self.context.set(context).is_ok(), "a slot's context is set once");
    }

    /// The context; set before the slot is first used.
    pub(super) fn context(&self) -> &Context {
        self.context.get().expect("set when the slot was made")
    }

    /// Declares the slot running without a wake-up: for what already runs.
    pub(super) fn adopt(&self) {
        self.state.store(RUNNING, Ordering::Relaxed);
    }

    pub(super) fn is_parked(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PARKED
    }
}

/// Takes the calling thread's permit, or sleeps until there is one.
pub(super) fn park() {
    guard::cpu::without_irqs(|| {
        let me = sched::current_slot();
        if me.state.compare_exchange(RUNNING, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // From here on anybody may wake us: that puts us on this CPU's wake list, because our stack is in use until
            // the switch is done, and the list is looked at by nobody but this CPU.
            sched::reschedule(sched::Why::Parked);
        } else {
            me.state.store(RUNNING, Ordering::Release);
        }
    });
}

/// Gives a thread its permit. Callable anywhere.
pub(super) fn unpark(slot: &'static Slot) {
    let mut state = slot.state.load(Ordering::Acquire);
    loop {
        let next = match state {
            RUNNING => NOTIFIED,
            PARKED => RUNNING,
            _ => return,
        };
        match slot.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(PARKED) => return sched::make_runnable(slot),
            Ok(_) => return,
            Err(now) => state = now,
        }
    }
}
