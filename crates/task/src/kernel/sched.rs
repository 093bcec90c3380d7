//! The scheduler of a CPU.
//!
//! A run queue is touched by its own CPU only, with interrupts off. Others put threads on the CPU's wake list and kick it with
//! an interrupt, at most one under way at a time. There are two queues: threads that were just woken go before those that
//! have used up a slice, so that who mostly sleeps is served at once; a thread that has waited for [`PATIENCE_NS`] goes
//! before them all the same. The timer is armed for the first sleeper and, only while somebody waits for the CPU, for the
//! end of the slice. A CPU without threads halts; one whose neighbours have too many is given some of theirs.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use guard::context::{self, Context};
use guard::cpu::{self, CpuId, CpuLocal, MAX_CPUS};
use guard::timer::{self, now_ns};
use ring::WakeList;

use super::slot::{self, Slot};
use super::thread::{Thread, fresh_slot};
use crate::fifo::Fifo;

/// How long a thread runs while others that have run too wait.
const SLICE_NS: u64 = 10_000_000;
/// How long a thread runs before one that was just woken may take its place.
const GRANULARITY_NS: u64 = 1_000_000;
/// How long a thread that used its slice waits behind those just woken.
const PATIENCE_NS: u64 = 20_000_000;

/// What only the CPU itself touches.
struct Cpu {
    current: Cell<u32>,
    idle: Cell<u32>,
    woken: RefCell<Fifo>,
    waiting: RefCell<Fifo>,
    /// When the current thread got the CPU.
    since: Cell<u64>,
    /// When a thread from `waiting` last ran, or the queue was empty.
    patience_from: Cell<u64>,
    /// Sleeping threads that want to be woken, the latest deadline first.
    sleepers: RefCell<Vec<(u64, u32)>>,
    preempt_depth: Cell<u32>,
    armed: Cell<u64>,
}

static CPUS: CpuLocal<Cpu> = CpuLocal::new(|_| Cpu {
    current: Cell::new(ring::NIL),
    idle: Cell::new(ring::NIL),
    woken: RefCell::new(Fifo::new()),
    waiting: RefCell::new(Fifo::new()),
    since: Cell::new(0),
    patience_from: Cell::new(0),
    sleepers: RefCell::new(Vec::with_capacity(32)),
    preempt_depth: Cell::new(0),
    armed: Cell::new(u64::MAX),
});

/// What others may touch.
struct Shared {
    wake: WakeList,
    /// An interrupt is under way, or the CPU will look at its wake list anyway.
    kicked: AtomicBool,
    reschedule: AtomicBool,
    idle: AtomicBool,
    started: AtomicBool,
    /// Slot of its idle thread, made before the CPU starts.
    idle_slot: AtomicU32,
    load: AtomicU32,
    since: AtomicU64,
    switches: AtomicU64,
    wakes: AtomicU64,
    ipis: AtomicU64,
    idle_ns: AtomicU64,
}

static SHARED: [Shared; MAX_CPUS] = [const {
    Shared {
        wake: WakeList::new(),
        kicked: AtomicBool::new(false),
        reschedule: AtomicBool::new(false),
        idle: AtomicBool::new(false),
        started: AtomicBool::new(false),
        idle_slot: AtomicU32::new(ring::NIL),
        load: AtomicU32::new(0),
        since: AtomicU64::new(0),
        switches: AtomicU64::new(0),
        wakes: AtomicU64::new(0),
        ipis: AtomicU64::new(0),
        idle_ns: AtomicU64::new(0),
    }
}; MAX_CPUS];

fn shared(cpu: CpuId) -> &'static Shared {
    &SHARED[cpu.0 as usize]
}

/// Why the CPU looks for another thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The current thread sleeps; whoever wakes it queues it.
    Parked,
    /// It lets others go first.
    Yield,
    /// Something changed; it goes on unless somebody has a better claim.
    Preempt,
}

/// What runs on this CPU.
pub(super) fn current_slot() -> &'static Slot {
    slot::at(CPUS.with(|c| c.current.get()))
}

/// Whether the current thread may lose the CPU against its will.
pub(super) fn may_preempt() -> bool {
    CPUS.with(|c| c.preempt_depth.get() == 0)
}

/// Makes what the CPUs need before they start: a CPU that comes up has no thread yet and must not wait for a lock.
pub(super) fn prepare_cpus() {
    for cpu in (0..super::cpu_count() as u32).map(CpuId) {
        CPUS.prepare(cpu);
        let slot = fresh_slot().expect("the first slots of all");
        slot.set_cpu(cpu.0);
        slot.adopt();
        *slot.thread.lock() = Some(Thread::new("idle", slot, Some(cpu)));
        shared(cpu).idle_slot.store(slot.number(), Ordering::Release);
    }
}

/// Makes what runs on this CPU, on the stack it came up on, its idle thread.
pub(super) fn adopt_cpu() {
    let slot = slot::at(shared(cpu::current()).idle_slot.load(Ordering::Acquire));
    slot.set_context(Context::boot());
    CPUS.with(|c| {
        c.current.set(slot.number());
        c.idle.set(slot.number());
        c.since.set(now_ns());
    });
}

pub(super) fn install_hooks() {
    guard::irq::set_timer_handler(on_timer);
    guard::irq::set_reschedule_handler(on_kick);
    guard::irq::set_irq_exit_hook(on_irq_exit);
}

/// Runs threads on this CPU from now on. The first CPU comes here when the system is set up, each further one when it is
/// started.
pub fn start_cpu() -> ! {
    let me = cpu::current();
    if CPUS.with(|c| c.current.get()) == ring::NIL {
        adopt_cpu();
    }
    shared(me).started.store(true, Ordering::Release);
    loop {
        cpu::without_irqs(|| reschedule(Why::Preempt));
        // Pages are zeroed ahead until somebody is woken.
        while shared(me).wake.is_empty() && guard::mem::idle_step() {}
        // No wake-up is lost: whoever puts a thread on the list after this look kicks, and that ends the halt.
        cpu::idle_wait(|| shared(me).wake.is_empty());
    }
}

/// Lets other threads of this CPU go first.
pub fn yield_now() {
    cpu::without_irqs(|| reschedule(Why::Yield));
}

/// Keeps the CPU to the calling thread while it exists: nobody else runs here, and the thread does not move. It must not
/// sleep meanwhile.
#[derive(Debug)]
#[must_use = "preemption is allowed again as soon as the guard is dropped"]
pub struct PreemptGuard(core::marker::PhantomData<*mut ()>);

/// See [`PreemptGuard`].
pub fn preempt_disable() -> PreemptGuard {
    CPUS.with(|c| c.preempt_depth.set(c.preempt_depth.get() + 1));
    PreemptGuard(core::marker::PhantomData)
}

impl Drop for PreemptGuard {
    fn drop(&mut self) {
        let last = CPUS.with(|c| {
            c.preempt_depth.set(c.preempt_depth.get() - 1);
            c.preempt_depth.get() == 0
        });
        if last && cpu::irqs_enabled() && shared(cpu::current()).reschedule.load(Ordering::Relaxed) {
            cpu::without_irqs(|| reschedule(Why::Preempt));
        }
    }
}

/// Looks for the thread to run here, and switches to it. Interrupts are off.
pub(super) fn reschedule(why: Why) {
    let (prev, next) = CPUS.with(|c| c.choose(why));
    if prev == next {
        return;
    }
    let (prev, next) = (slot::at(prev), slot::at(next));
    leave(prev);
    context::switch(prev.context(), next.context());
    // Some time later, perhaps on another CPU.
    arrive(prev);
    look_again();
}

/// Right after a switch: deals with what was left to the other side of it.
pub(super) fn look_again() {
    if shared(cpu::current()).reschedule.load(Ordering::Relaxed) && may_preempt() {
        reschedule(Why::Preempt);
    }
}

fn leave(slot: &Slot) {
    if let Some(thread) = slot.thread.try_lock().as_deref().and_then(Option::as_ref) {
        thread.leave();
    }
}

fn arrive(slot: &Slot) {
    if let Some(thread) = slot.thread.try_lock().as_deref().and_then(Option::as_ref) {
        thread.arrive();
    }
}

impl Cpu {
    /// Takes in who was woken, and decides who runs. Returns who ran and who will.
    fn choose(&self, why: Why) -> (u32, u32) {
        let me = cpu::current();
        let shared = shared(me);
        let now = now_ns();
        shared.reschedule.store(false, Ordering::Relaxed);
        // Before the list is emptied, so that who comes later kicks again.
        shared.kicked.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (mut woken, mut waiting) = (self.woken.borrow_mut(), self.waiting.borrow_mut());
        shared.wake.drain(slot::link, |n| {
            let slot = slot::at(n);
            match elsewhere(slot, me) {
                Some(target) if !slot.context().is_running() => put(slot, target),
                _ => woken.push_back(n, slot::link),
            }
        });
        if waiting.is_empty() {
            self.patience_from.set(now);
        }

        let (prev, idle) = (self.current.get(), self.idle.get());
        let ran = now.saturating_sub(self.since.get());
        let prev_goes_on = why != Why::Parked && prev != idle;
        let patient = !waiting.is_empty() && now.saturating_sub(self.patience_from.get()) >= PATIENCE_NS;
        let keep = prev_goes_on
            && why == Why::Preempt
            && elsewhere(slot::at(prev), me).is_none()
            && (woken.is_empty() || ran < GRANULARITY_NS)
            && (waiting.is_empty() || ran < SLICE_NS)
            && !(patient && ran >= GRANULARITY_NS);
        let next = if keep {
            prev
        } else {
            if prev_goes_on {
                if elsewhere(slot::at(prev), me).is_some() {
                    // It is no longer allowed here, but its stack is in use until the switch is done: the next look at the
                    // wake list sends it on.
                    shared.wake.push(prev, slot::link);
                    shared.reschedule.store(true, Ordering::Relaxed);
                } else if ran >= SLICE_NS || why == Why::Yield {
                    waiting.push_back(prev, slot::link);
                } else {
                    // It was preempted by who was just woken: it goes on with its slice after them.
                    waiting.push_front(prev, slot::link);
                }
            }
            let from_waiting = patient || woken.is_empty();
            let next = if from_waiting { waiting.pop(slot::link) } else { woken.pop(slot::link) };
            if from_waiting {
                self.patience_from.set(now);
            }
            next.unwrap_or(idle)
        };

        let ran_thread = next != prev || now.saturating_sub(self.since.get()) >= SLICE_NS;
        if ran_thread {
            self.account(prev, ran, shared);
            self.since.set(now);
            shared.since.store(now, Ordering::Relaxed);
        }
        if next != prev {
            self.current.set(next);
            slot::at(next).set_cpu(me.0);
            shared.switches.fetch_add(1, Ordering::Relaxed);
        }
        share_surplus(&mut waiting, &mut woken, next != idle);
        let queued = woken.len() + waiting.len();
        shared.load.store(queued + u32::from(next != idle), Ordering::Relaxed);
        shared.idle.store(next == idle, Ordering::Relaxed);
        let slice_end = match (woken.is_empty(), waiting.is_empty()) {
            _ if next == idle => u64::MAX,
            (true, true) => u64::MAX,
            (false, _) => self.since.get() + GRANULARITY_NS,
            (true, false) => self.since.get() + SLICE_NS,
        };
        drop((woken, waiting));
        self.arm(slice_end);
        (prev, next)
    }

    fn account(&self, prev: u32, ran: u64, shared: &Shared) {
        if prev == self.idle.get() {
            shared.idle_ns.fetch_add(ran, Ordering::Relaxed);
        } else if let Some(thread) = slot::at(prev).thread.try_lock().as_deref().and_then(Option::as_ref) {
            thread.add_time(ran);
        }
    }

    /// Arms the timer for the first sleeper or `slice_end`, whichever is first.
    fn arm(&self, slice_end: u64) {
        let first = self.sleepers.borrow().last().map_or(u64::MAX, |s| s.0);
        let deadline = first.min(slice_end);
        if deadline == self.armed.get() {
            return;
        }
        self.armed.set(deadline);
        if deadline == u64::MAX {
            timer::disarm();
        } else {
            timer::arm(deadline);
        }
    }
}

/// Where a thread must go that is not allowed on the CPU `me`; `None` if it may stay.
fn elsewhere(slot: &Slot, me: CpuId) -> Option<CpuId> {
    let thread = slot.thread.try_lock();
    let thread = thread.as_deref().and_then(Option::as_ref)?;
    (!thread.may_run_on(me)).then(|| least_loaded(thread))
}

/// Gives queued threads to CPUs that have none.
fn share_surplus(waiting: &mut Fifo, woken: &mut Fifo, busy: bool) {
    let mut spare = (waiting.len() + woken.len()).saturating_sub(u32::from(!busy));
    for number in 0..super::cpu_count() {
        if spare == 0 {
            return;
        }
        let cpu = CpuId(number as u32);
        if cpu == cpu::current() || !shared(cpu).idle.load(Ordering::Relaxed) || !shared(cpu).wake.is_empty() {
            continue;
        }
        let queue = if waiting.is_empty() { &mut *woken } else { &mut *waiting };
        let Some(candidate) = queue.pop(slot::link) else { return };
        let slot = slot::at(candidate);
        let allowed = slot.thread.try_lock().as_deref().and_then(Option::as_ref).is_some_and(|t| t.may_run_on(cpu));
        if allowed && !slot.context().is_running() {
            put(slot, cpu);
            spare -= 1;
        } else {
            queue.push_front(candidate, slot::link);
        }
    }
}

/// The allowed CPU with the fewest threads.
pub(super) fn least_loaded(thread: &alloc::sync::Arc<Thread>) -> CpuId {
    (0..super::cpu_count() as u32)
        .map(CpuId)
        .filter(|&cpu| thread.may_run_on(cpu) && (shared(cpu).started.load(Ordering::Relaxed) || cpu.0 == 0))
        .min_by_key(|&cpu| (shared(cpu).load.load(Ordering::Relaxed), !shared(cpu).idle.load(Ordering::Relaxed)))
        .unwrap_or(CpuId(0))
}

/// A thread was woken: decides where it runs, and queues it there.
pub(super) fn make_runnable(slot: &'static Slot) {
    let home = CpuId(slot.cpu());
    let target = if slot.context().is_running() {
        // It is still on its way to sleep there, and its stack in use.
        home
    } else if let Some(thread) = slot.thread.try_lock().as_deref().and_then(Option::as_ref) {
        place(thread, home)
    } else {
        home
    };
    put(slot, target);
}

/// Where a woken thread runs: where it ran last, unless that is busy and another allowed CPU idles.
fn place(thread: &alloc::sync::Arc<Thread>, home: CpuId) -> CpuId {
    let home_allowed = thread.may_run_on(home);
    if home_allowed && shared(home).idle.load(Ordering::Relaxed) {
        return home;
    }
    let idle =
        (0..super::cpu_count() as u32).map(CpuId).find(|&cpu| shared(cpu).idle.load(Ordering::Relaxed) && thread.may_run_on(cpu));
    idle.unwrap_or_else(|| if home_allowed { home } else { least_loaded(thread) })
}

/// Puts a runnable thread on a CPU's wake list, and sees to it that the CPU looks.
fn put(slot: &'static Slot, target: CpuId) {
    slot.set_cpu(target.0);
    let shared = shared(target);
    shared.wakes.fetch_add(1, Ordering::Relaxed);
    let here = cpu::without_irqs(|| {
        shared.wake.push(slot.number(), slot::link);
        shared.reschedule.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if target == cpu::current() {
            return true;
        }
        if !shared.kicked.swap(true, Ordering::SeqCst) {
            shared.ipis.fetch_add(1, Ordering::Relaxed);
            guard::ipi::reschedule(target);
        }
        false
    });
    // In thread context the choice is made at once; in a handler, and where interrupts are off, at the next opportunity.
    if here && cpu::irqs_enabled() && may_preempt() {
        cpu::without_irqs(|| reschedule(Why::Preempt));
    }
}

/// Brings the CPU a thread runs on into the kernel, if that is another one.
pub(super) fn kick(slot: &Slot) {
    cpu::without_irqs(|| {
        let target = CpuId(slot.cpu());
        if target != cpu::current() && slot.context().is_running() {
            guard::ipi::reschedule(target);
        }
    });
}

/// How long the thread in `slot` has had its CPU.
pub(super) fn running_for(slot: &Slot, now: u64) -> u64 {
    now.saturating_sub(shared(CpuId(slot.cpu())).since.load(Ordering::Relaxed))
}

/// Runs `sleep` with the calling thread registered to be woken at `deadline_ns`.
pub(super) fn with_sleeper(deadline_ns: u64, sleep: impl FnOnce()) {
    let me = current_slot().number();
    add_sleeper(deadline_ns, me);
    sleep();
    // Gone if it came from the timer; left behind if the thread has moved, where it ends as a spurious wake-up.
    CPUS.with(|c| {
        c.sleepers.borrow_mut().retain(|s| *s != (deadline_ns, me));
    });
}

fn add_sleeper(deadline_ns: u64, me: u32) {
    loop {
        // Nothing may be allocated with interrupts off: room is made before.
        let full = CPUS.with(|c| {
            let mut sleepers = c.sleepers.borrow_mut();
            if sleepers.len() == sleepers.capacity() {
                return Some(sleepers.capacity());
            }
            let at = sleepers.partition_point(|s| s.0 >= deadline_ns);
            sleepers.insert(at, (deadline_ns, me));
            drop(sleepers);
            if deadline_ns < c.armed.get() {
                c.armed.set(deadline_ns);
                timer::arm(deadline_ns);
            }
            None
        });
        let Some(capacity) = full else { return };
        let mut larger = Vec::with_capacity(capacity * 2);
        let smaller = CPUS.with(|c| {
            let mut sleepers = c.sleepers.borrow_mut();
            // Perhaps another CPU's by now: then it was not full, or is as small.
            if sleepers.len() < larger.capacity() && sleepers.capacity() < larger.capacity() {
                larger.extend_from_slice(&sleepers);
                core::mem::replace(&mut *sleepers, larger)
            } else {
                larger
            }
        });
        drop(smaller);
    }
}

/// The timer: wakes sleepers whose time has come; the end of a slice is dealt with at the handler's end.
fn on_timer() {
    let now = now_ns();
    loop {
        let due = CPUS.with(|c| {
            let mut sleepers = c.sleepers.borrow_mut();
            match sleepers.last() {
                Some(s) if s.0 <= now => sleepers.pop(),
                _ => None,
            }
        });
        let Some((_, number)) = due else { break };
        slot::unpark(slot::at(number));
    }
    CPUS.with(|c| c.armed.set(u64::MAX));
    shared(cpu::current()).reschedule.store(true, Ordering::Relaxed);
}

fn on_kick() {
    shared(cpu::current()).reschedule.store(true, Ordering::Relaxed);
}

/// The end of every interrupt: the place where a thread loses the CPU against its will.
fn on_irq_exit() {
    look_again();
}

/// Counters of the scheduler.
pub mod stats {
    use super::{CpuId, Ordering, now_ns, shared};

    /// What one CPU has done since the instance started.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct CpuStats {
        /// Context switches.
        pub switches: u64,
        /// Threads made runnable there.
        pub wakes: u64,
        /// Interrupts sent to it for that.
        pub ipis: u64,
        /// Nanoseconds without a thread.
        pub idle_ns: u64,
        /// Threads running or queued at this moment.
        pub runnable: u32,
    }

    /// The counters of a CPU.
    #[must_use]
    pub fn cpu(cpu: CpuId) -> CpuStats {
        let s = shared(cpu);
        let idle_now = if s.idle.load(Ordering::Relaxed) { now_ns().saturating_sub(s.since.load(Ordering::Relaxed)) } else { 0 };
        CpuStats {
            switches: s.switches.load(Ordering::Relaxed),
            wakes: s.wakes.load(Ordering::Relaxed),
            ipis: s.ipis.load(Ordering::Relaxed),
            idle_ns: s.idle_ns.load(Ordering::Relaxed) + idle_now,
            runnable: s.load.load(Ordering::Relaxed),
        }
    }

    /// Threads running or queued on all CPUs.
    #[must_use]
    pub fn runnable() -> u32 {
        (0..crate::cpu_count() as u32).map(|n| cpu(CpuId(n)).runnable).sum()
    }
}
