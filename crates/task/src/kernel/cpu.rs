//! Per-CPU state of the scheduler: the part that only the CPU itself touches, with interrupts off,
//! and the part that others may touch.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use fair::{Room, RunQueue};
use guard::context::Context;
use guard::cpu::{self, CpuId, CpuLocal, MAX_CPUS};
use guard::fpu::UserFpu;
use guard::timer::now_ns;
use guard::usage::CpuUsage;
use ring::{CpuSet, WakeQueues};
use topology::Topology;

use super::perturb;
use super::slot::{self, CPU_WORDS, RUNNING, Slot};
use super::thread::{Thread, UserSpace, allocate_slot};
use super::trace_events;
use crate::fifo::Fifo;
use crate::idle_polling::IdlePolling;

/// Waiting threads that a run queue has room for at first.
const INITIAL_CAPACITY: usize = 64;

/// Address space and floating-point state of the running thread, with the thread itself; on its
/// stack while it does not run. Nobody else touches it, so there is no lock.
pub(super) struct RunContext {
    pub(super) thread: Arc<Thread>,
    pub(super) user: Option<Arc<dyn UserSpace>>,
    pub(super) fpu: Option<UserFpu>,
}

/// Scheduler state that only the CPU itself touches.
pub(super) struct Cpu {
    pub(super) id: CpuId,
    pub(super) shared: &'static Shared,
    pub(super) current: Cell<Option<&'static Slot>>,
    pub(super) idle: Cell<Option<&'static Slot>>,
    pub(super) run_context: RefCell<Option<Box<RunContext>>>,
    pub(super) queue: RefCell<RunQueue>,
    /// A thread that was woken and can wait until the current one sleeps or its hysteresis is over,
    /// so that nothing needs to be weighed up: not in the queue yet.
    pub(super) deferred: Cell<Option<&'static Slot>>,
    /// Runnable threads that the queue had no room for.
    pub(super) overflow: RefCell<Fifo>,
    /// A thread that may not stay on this CPU, and goes on as soon as its stack is free.
    pub(super) evicted: Cell<Option<&'static Slot>>,
    /// Time at which the current thread got the CPU.
    pub(super) running_since: Cell<u64>,
    /// Time at which it stood still last, because the instance was paused.
    pub(super) paused_since: Cell<u64>,
    /// Something changed: look for another thread at the next opportunity.
    pub(super) reschedule: Cell<bool>,
    pub(super) preempt_depth: Cell<u32>,
    /// Sleeping threads that want to be woken, the latest deadline first.
    pub(super) sleepers: RefCell<Vec<(u64, u32)>>,
    /// Time at which the timer will fire, at the latest.
    pub(super) timer_deadline: Cell<u64>,
    /// The CPU is in `LOADED`.
    pub(super) loaded: Cell<bool>,
    /// The CPU whose load it compared with its own last.
    pub(super) last_balanced: Cell<u32>,
    /// Whether it polls when it has nothing to do.
    pub(super) polling: Cell<IdlePolling>,
    /// State of the generator of pseudo-random numbers.
    pub(super) random: Cell<u64>,
}

pub(super) static CPUS: CpuLocal<Cpu> = CpuLocal::new(|cpu| Cpu {
    id: cpu,
    shared: SHARED.of(cpu),
    current: Cell::new(None),
    idle: Cell::new(None),
    run_context: RefCell::new(None),
    queue: RefCell::new(empty_queue(cpu)),
    deferred: Cell::new(None),
    overflow: RefCell::new(Fifo::new()),
    evicted: Cell::new(None),
    running_since: Cell::new(0),
    paused_since: Cell::new(0),
    reschedule: Cell::new(false),
    preempt_depth: Cell::new(0),
    sleepers: RefCell::new(Vec::with_capacity(32)),
    timer_deadline: Cell::new(u64::MAX),
    loaded: Cell::new(false),
    last_balanced: Cell::new(0),
    polling: Cell::new(IdlePolling::new()),
    random: Cell::new(perturb::initial_state(cpu)),
});

fn empty_queue(cpu: CpuId) -> RunQueue {
    let mut queue = RunQueue::new(cpu.0);
    queue.enlarge(&mut Room::new(INITIAL_CAPACITY));
    queue
}

/// Scheduler state that other CPUs may touch.
#[repr(align(64))]
pub(super) struct Shared {
    /// Word for other CPUs of how to announce a thread to this one: see the top of `wake`. In a
    /// line of its own, which an idle CPU may watch.
    pub(super) wake_state: CacheAligned<AtomicU32>,
    /// Threads that other CPUs woke and want to run here.
    pub(super) wake_queues: WakeQueues<MAX_CPUS, CPU_WORDS>,
    /// Flag: where or how threads of this CPU run was changed; look at all of them.
    pub(super) recheck: AtomicBool,
    /// An idle CPU that asks for work.
    pub(super) work_requester: AtomicU32,
    pub(super) started: AtomicBool,
    /// Flag: no thread is sent here any more, and the CPU leaves as soon as it has none.
    pub(super) closed: AtomicBool,
    /// Number of the next CPU of the same core, going round: itself if the core has no other.
    pub(super) sibling: AtomicU32,
    /// Slot of its idle thread, made before the CPU starts.
    idle_slot: AtomicU32,
    /// Threads running or queued, and since when the current one runs. Written by the CPU itself.
    pub(super) load: AtomicU32,
    pub(super) running_since: AtomicU64,
    /// Since when threads wait here for the CPU; 0 if none does. Written by the CPU itself.
    pub(super) stalled_since: AtomicU64,
    pub(super) counters: Counters,
    /// Times of the CPU, and its number of switches.
    pub(super) usage: &'static CpuUsage,
}

impl Shared {
    /// Notes whether threads wait for this CPU. On the CPU itself, with interrupts off.
    #[inline]
    pub(super) fn note_stall(&self, waits: bool, now: u64) {
        let since = self.stalled_since.load(Ordering::Relaxed);
        if waits == (since != 0) {
            return;
        }
        if !waits {
            self.counters.stalled_ns.add(now.saturating_sub(since));
        }
        self.stalled_since
            .store(if waits { now.max(1) } else { 0 }, Ordering::Relaxed);
    }
}

/// Whether a CPU runs threads, and takes interrupts: CPU 0 does before it says so.
#[inline]
pub(super) fn is_started(cpu: CpuId) -> bool {
    cpu.0 == 0 || shared(cpu).started.load(Ordering::Relaxed)
}

/// A value with a cache line to itself.
#[repr(align(64))]
pub(super) struct CacheAligned<T>(pub(super) T);

/// Counters of a CPU, each changed by itself alone.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) wakes: Counter,
    pub(super) remote_wakes: Counter,
    pub(super) ipis: Counter,
    pub(super) ipis_saved: Counter,
    pub(super) steals: Counter,
    pub(super) polls: Counter,
    pub(super) sleeps: Counter,
    pub(super) stalled_ns: Counter,
}

/// A count that one CPU changes, with interrupts off, and anybody reads: no locked operations are
/// needed.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Made when the CPUs are known, so that what a machine does not have costs nothing.
static SHARED: CpuLocal<Shared> = CpuLocal::new(|cpu| Shared {
    wake_state: CacheAligned(AtomicU32::new(super::wake::SEND_IPI)),
    wake_queues: WakeQueues::new(),
    recheck: AtomicBool::new(false),
    work_requester: AtomicU32::new(ring::NIL),
    started: AtomicBool::new(false),
    closed: AtomicBool::new(false),
    sibling: AtomicU32::new(cpu.0),
    idle_slot: AtomicU32::new(ring::NIL),
    load: AtomicU32::new(0),
    running_since: AtomicU64::new(0),
    stalled_since: AtomicU64::new(0),
    counters: Counters::default(),
    usage: guard::usage::of(cpu),
});

/// Notes which CPUs are siblings. The ring of a core's CPUs is closed at any moment, for who goes
/// round it meanwhile: a new one, whose number is higher, is tied to the others first, and one that
/// has left stays tied to them.
pub(super) fn note_siblings(topology: &Topology) {
    for own in (0..topology.places().len()).rev() {
        let mut core = topology.core(own);
        let next = core
            .clone()
            .find(|&other| other > own)
            .or_else(|| core.next());
        shared(CpuId(own as u32))
            .sibling
            .store(next.unwrap_or(own) as u32, Ordering::Relaxed);
    }
}

#[inline]
pub(super) fn shared(cpu: CpuId) -> &'static Shared {
    SHARED.of(cpu)
}

/// CPUs on which threads may be put, started or not: all but those that leave. Who looks does so
/// with interrupts off until the thread is where it goes, so that a grace period after a change
/// nobody acts by what was before.
static ACTIVE: [AtomicU64; CPU_WORDS] = [const { AtomicU64::new(0) }; CPU_WORDS];

/// A word of the CPUs on which threads may be put.
#[inline]
pub(super) fn active(word: usize) -> u64 {
    ACTIVE[word].load(Ordering::Relaxed)
}

/// Whether threads may be put on a CPU.
#[inline]
pub(super) fn is_active(cpu: CpuId) -> bool {
    active(cpu.0 as usize / 64) >> (cpu.0 % 64) & 1 != 0
}

/// Lets threads go to a CPU, or keeps them from it.
pub(super) fn set_active(cpu: CpuId, on: bool) {
    let (word, bit) = (&ACTIVE[cpu.0 as usize / 64], 1 << (cpu.0 % 64));
    if on {
        word.fetch_or(bit, Ordering::SeqCst);
    } else {
        word.fetch_and(!bit, Ordering::SeqCst);
    }
}

/// CPUs without a thread.
pub(super) static IDLE: CpuSet<CPU_WORDS> = CpuSet::new();
/// CPUs that had threads waiting when they last chose.
pub(super) static LOADED: CpuSet<CPU_WORDS> = CpuSet::new();

/// Slot of the thread that runs on this CPU.
#[inline]
pub(super) fn current_slot() -> &'static Slot {
    CPUS.with(Cpu::current)
}

impl Cpu {
    #[inline]
    pub(super) fn current(&self) -> &'static Slot {
        self.current.get().expect("a CPU that runs has a thread")
    }

    #[inline]
    pub(super) fn idle(&self) -> &'static Slot {
        self.idle.get().expect("a CPU that runs has an idle thread")
    }
}

/// Makes what a CPU needs before it starts: one that comes up has no thread yet and must not wait
/// for a lock. What was made before stays. False if there is no slot for its idle thread.
pub(super) fn prepare(cpu: CpuId) -> bool {
    CPUS.prepare(cpu);
    SHARED.prepare(cpu);
    let idle_slot = &shared(cpu).idle_slot;
    if idle_slot.load(Ordering::Acquire) != ring::NIL {
        return true;
    }
    let Some(slot) = allocate_slot() else {
        return false;
    };
    slot.set_cpu(cpu);
    slot.state.store(RUNNING, Ordering::Relaxed);
    trace_events::trace_spawn(slot, "idle");
    idle_slot.store(slot.number(), Ordering::Release);
    true
}

/// Makes what runs on this CPU, on the stack it came up on, its idle thread; the same as before if
/// the CPU was here before.
pub(super) fn init_idle() {
    let slot = slot::by_number(shared(cpu::current()).idle_slot.load(Ordering::Acquire));
    // First of all: who takes a lock is asked who it is.
    let is_back = CPUS.with(|c| {
        c.current.set(Some(slot));
        c.running_since.set(now_ns());
        c.idle.replace(Some(slot)).is_some()
    });
    if is_back {
        slot.context().adopt_again();
    } else {
        slot.set_context(Context::boot());
    }
}

impl Cpu {
    /// Whether no thread is here but the idle one, which runs, and none is about to come.
    pub(super) fn is_empty(&self) -> bool {
        core::ptr::eq(self.current(), self.idle())
            && self.shared.wake_queues.is_empty()
            && !self.shared.recheck.load(Ordering::SeqCst)
            && !self.reschedule.get()
            && self.queue.borrow().waiting() == 0
            && self.overflow.borrow().is_empty()
            && self.deferred.get().is_none()
            && self.evicted.get().is_none()
    }

    /// The CPU is there, without a thread.
    pub(super) fn open(&self) {
        let now = now_ns();
        self.note_running_since(now);
        self.shared.usage.come(now);
    }

    /// Notes since when the current thread has the CPU.
    #[inline]
    pub(super) fn note_running_since(&self, since: u64) {
        self.running_since.set(since);
        self.shared.running_since.store(since, Ordering::Relaxed);
    }

    /// The CPU, which has no thread any more, leaves: nothing of it is to be seen but its counters.
    pub(super) fn close(&self) {
        let (number, now) = (self.id.0 as usize, now_ns());
        let shared = self.shared;
        IDLE.remove(number);
        LOADED.remove(number);
        self.loaded.set(false);
        self.timer_deadline.set(u64::MAX);
        self.running_since.set(now);
        shared.note_stall(false, now);
        shared.load.store(0, Ordering::Relaxed);
        shared.work_requester.store(ring::NIL, Ordering::Relaxed);
        shared
            .wake_state
            .0
            .store(super::wake::SEND_IPI, Ordering::Relaxed);
        shared.started.store(false, Ordering::Relaxed);
        shared.usage.go(now);
    }
}
