//! Thread slots: what stays in one place for ever, so that a number is enough to name a thread
//! anywhere, interrupt handlers included. A slot has a stack and a context, made once; when its
//! thread ends, the next one to be spawned continues there. A permit given to a thread that is gone
//! therefore hits an idle slot or a new thread, and is a spurious wake-up: harmless.
//!
//! All that wake-ups and switches need of a thread is here, in atomics, so that they take no lock.
//! What belongs to the run queue (`history`, `migrated`) is written by the CPU that has the thread,
//! and passes to the next one with the wake queue.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use fair::{Group, History, Params, Policy, Recent};
use guard::context::Context;
use guard::cpu::{CpuId, MAX_CPUS};
use lfmutex::{Mutex, Once};
use ring::NIL;

use super::cpu::active;
use super::thread::Thread;
use super::trace_events::Label;

const CHUNK: usize = 64;
const CHUNKS: usize = 512;
/// Words of a set of CPUs.
pub(super) const CPU_WORDS: usize = MAX_CPUS / 64;

/// State: on a CPU, or queued for one.
pub(super) const RUNNING: u32 = 0;
/// The same, with a permit.
pub(super) const NOTIFIED: u32 = 1;
/// Asleep. Whoever moves a slot from here to `RUNNING`, and nobody else, queues it.
pub(super) const PARKED: u32 = 2;

/// The thread that a slot runs next, with its function.
pub(super) struct Job {
    pub(super) thread: Arc<Thread>,
    pub(super) body: Box<dyn FnOnce() + Send>,
}

/// A thread's fixed part.
pub(super) struct Slot {
    number: u32,
    pub(super) state: AtomicU32,
    /// Link in a wake queue.
    next: AtomicU32,
    /// The CPU it runs on or last ran on, or is queued for.
    cpu: AtomicU32,
    /// Policy and group it is scheduled by: as `raised` says if it is not 0, else `own_params`.
    params: AtomicU32,
    own_params: AtomicU32,
    /// Priority of the kernel's work that the thread does now, or 0.
    raised: AtomicU8,
    /// The policy is not the one its run queue knows.
    pub(super) policy_changed: AtomicBool,
    /// The thread comes from another run queue, not from sleep.
    pub(super) migrated: AtomicBool,
    /// The thread sleeps for a lock, if it sleeps.
    pub(super) blocked_on_lock: AtomicBool,
    history: [AtomicU64; History::WORDS],
    allowed: [AtomicU64; CPU_WORDS],
    /// Number of times that `allowed` was set.
    allowed_changes: AtomicU32,
    /// The value of `allowed_changes` for which the thread runs anywhere, because no CPU was left
    /// of those that it may run on.
    unbound: AtomicU32,
    pub(super) label: Label,
    context: Once<Context>,
    /// Id of the thread that lives here. Locked while somebody changes where and how that runs, so
    /// that a late change does not hit the next one.
    pub(super) thread_id: Mutex<u64>,
    pub(super) job: Mutex<Option<Job>>,
}

static SLOTS: [Once<Box<[Slot]>>; CHUNKS] = [const { Once::new() }; CHUNKS];

/// The slot of a number that was handed out.
#[inline]
pub(super) fn get(number: u32) -> Option<&'static Slot> {
    let number = number as usize;
    SLOTS
        .get(number / CHUNK)?
        .get()
        .map(|chunk| &chunk[number % CHUNK])
}

/// The slot of a number known to be good.
#[inline]
pub(super) fn by_number(number: u32) -> &'static Slot {
    get(number).expect("a number from a list of slots")
}

/// The link of a number known to be good, for lists.
#[inline]
pub(super) fn next_link(number: u32) -> &'static AtomicU32 {
    &by_number(number).next
}

/// Makes a slot exist. `None` if the table is full.
pub(super) fn create(number: u32) -> Option<&'static Slot> {
    let chunk = number as usize / CHUNK;
    SLOTS.get(chunk)?.call_once(|| {
        (0..CHUNK)
            .map(|i| Slot::new((chunk * CHUNK + i) as u32))
            .collect()
    });
    get(number)
}

impl Slot {
    fn new(number: u32) -> Self {
        Self {
            number,
            state: AtomicU32::new(PARKED),
            next: AtomicU32::new(NIL),
            cpu: AtomicU32::new(0),
            params: AtomicU32::new(encode(Policy::default().into())),
            own_params: AtomicU32::new(encode(Policy::default().into())),
            raised: AtomicU8::new(0),
            policy_changed: AtomicBool::new(false),
            migrated: AtomicBool::new(false),
            blocked_on_lock: AtomicBool::new(false),
            history: History::default().to_words().map(AtomicU64::new),
            allowed: [const { AtomicU64::new(u64::MAX) }; CPU_WORDS],
            allowed_changes: AtomicU32::new(0),
            unbound: AtomicU32::new(u32::MAX),
            label: Label::default(),
            context: Once::new(),
            thread_id: Mutex::new(0),
            job: Mutex::new(None),
        }
    }

    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    #[inline]
    pub(super) fn cpu(&self) -> CpuId {
        CpuId(self.cpu.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn set_cpu(&self, cpu: CpuId) {
        self.cpu.store(cpu.0, Ordering::Relaxed);
    }

    pub(super) fn set_context(&self, context: Context) {
        assert!(
            self.context.set(context).is_ok(),
            "a slot's context is set once"
        );
    }

    /// The context; set before the slot is first used.
    #[inline]
    pub(super) fn context(&self) -> &Context {
        self.context.get().expect("set when the slot was made")
    }

    /// Whether a CPU is on its stack.
    #[inline]
    pub(super) fn on_cpu(&self) -> bool {
        self.context().is_running()
    }

    pub(super) fn is_parked(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PARKED
    }

    #[inline]
    pub(super) fn policy(&self) -> Policy {
        self.params().policy
    }

    #[inline]
    pub(super) fn params(&self) -> Params {
        decode(self.params.load(Ordering::Relaxed))
    }

    /// The scheduling group of the thread, which counts while it is not raised.
    pub(super) fn group(&self) -> Group {
        decode(self.own_params.load(Ordering::Relaxed)).group
    }

    /// Sets the thread's own policy and group to what `change` makes of them. `thread_id` is
    /// locked.
    pub(super) fn change_params(&self, change: impl FnOnce(&mut Params)) {
        let mut params = decode(self.own_params.load(Ordering::Relaxed));
        change(&mut params);
        self.own_params.store(encode(params), Ordering::Relaxed);
        self.set_raised(self.raised.load(Ordering::Relaxed));
    }

    /// Priority of the kernel's work that the thread does now, or 0.
    pub(super) fn raised(&self) -> u8 {
        self.raised.load(Ordering::Relaxed)
    }

    /// Sets the priority that stands in for the thread's own policy, or (0) lets that hold again;
    /// returns the one before. `thread_id` is locked.
    pub(super) fn set_raised(&self, priority: u8) -> u8 {
        let params = match priority {
            0 => self.own_params.load(Ordering::Relaxed),
            priority => encode(Policy::Fifo(priority).into()),
        };
        self.params.store(params, Ordering::Relaxed);
        self.raised.swap(priority, Ordering::Relaxed)
    }

    /// The history kept when a run queue gave the thread up.
    #[inline]
    pub(super) fn history(&self) -> History {
        History::from_words(core::array::from_fn(|i| {
            self.history[i].load(Ordering::Relaxed)
        }))
    }

    /// Keeps the history of a thread that will be queued where it was.
    #[inline]
    pub(super) fn save_history(&self, history: &History) {
        self.store_history(history);
        self.migrated.store(false, Ordering::Relaxed);
    }

    /// Keeps the history of a thread that goes to another queue.
    #[inline]
    pub(super) fn save_history_migrated(&self, history: &History) {
        self.store_history(history);
        self.migrated.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn store_history(&self, history: &History) {
        for (to, word) in self.history.iter().zip(history.to_words()) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Recent CPU use of the thread; the first words of its history.
    #[inline]
    pub(super) fn recent(&self) -> Recent {
        Recent::from_words(core::array::from_fn(|i| {
            self.history[i].load(Ordering::Relaxed)
        }))
    }

    /// Remembers that of a thread that is owed nothing and has handed its CPU over.
    #[inline]
    pub(super) fn save_neutral_history(&self, recent: Recent) {
        let [usage, stamp_ns] = recent.to_words();
        for (to, word) in self.history.iter().zip([usage, stamp_ns, 0]) {
            to.store(word, Ordering::Relaxed);
        }
        self.migrated.store(false, Ordering::Relaxed);
    }

    /// A word of the CPUs it may run on, of those that there are and stay.
    #[inline]
    pub(super) fn allowed(&self, word: usize) -> u64 {
        let allowed = self.allowed[word].load(Ordering::Relaxed);
        let allowed = if self.is_unbound() { u64::MAX } else { allowed };
        allowed & active(word)
    }

    /// Sets the CPUs that it may run on. `thread_id` is locked.
    pub(super) fn set_allowed(&self, word: impl Fn(usize) -> u64) {
        for (i, to) in self.allowed.iter().enumerate() {
            to.store(word(i), Ordering::Relaxed);
        }
        // Afterwards: who finds no CPU in the old words does not undo the new ones.
        self.allowed_changes.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(super) fn may_run_on(&self, cpu: CpuId) -> bool {
        self.allowed(cpu.0 as usize / 64) >> (cpu.0 % 64) & 1 != 0
    }

    /// Lets the thread run anywhere, until somebody sets its CPUs again, if none is left of those
    /// that it may run on.
    pub(super) fn unbind(&self) {
        let changes = self.allowed_changes.load(Ordering::Acquire);
        if (0..CPU_WORDS).all(|word| self.allowed(word) == 0) {
            self.unbound.store(changes, Ordering::Relaxed);
        }
    }

    /// Whether the thread runs anywhere because no CPU was left of those that it may run on.
    #[inline]
    pub(super) fn is_unbound(&self) -> bool {
        self.unbound.load(Ordering::Relaxed) == self.allowed_changes.load(Ordering::Relaxed)
    }
}

/// Policy and group in a word: the kind of the policy, above it the priority or nice level, above
/// that the group.
fn encode(Params { policy, group }: Params) -> u32 {
    let (kind, value) = match policy {
        Policy::Other(nice) => (0, nice.cast_unsigned()),
        Policy::Batch(nice) => (1, nice.cast_unsigned()),
        Policy::Idle => (2, 0),
        Policy::Fifo(priority) => (3, priority),
        Policy::Rr(priority) => (4, priority),
    };
    kind | u32::from(value) << 8 | (group as u32) << 16
}

#[inline]
fn decode(word: u32) -> Params {
    let value = (word >> 8) as u8;
    let policy = match word & 0xff {
        0 => Policy::Other(value.cast_signed()),
        1 => Policy::Batch(value.cast_signed()),
        2 => Policy::Idle,
        3 => Policy::Fifo(value),
        _ => Policy::Rr(value),
    };
    let group = match word >> 16 {
        0 => Group::Programs,
        _ => Group::Management,
    };
    Params { policy, group }
}
