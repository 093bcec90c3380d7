//! Threads as others see them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use fair::{Group, Params, Policy, Room};
use guard::context::Context;
use guard::cpu::{CpuId, IrqsOff};
use guard::fpu::UserFpu;
use guard::stack::KernelStack;
use guard::timer;
use lfmutex::{Mutex, Once};

use super::cpu::{CPUS, RunContext, active};
use super::slot::{self, Job, Slot};
use super::{now_ns, switch, trace_events, wake};
use crate::cpu_time::CpuTime;
use crate::{ContextSwitches, NoMemory, WaitQueue};

/// An address space that is made current on a CPU before a thread's user code runs there.
pub trait UserSpace: Send + Sync {
    /// Makes this the CPU's user address space. Called with interrupts off.
    fn activate(&self);
}

/// Bits of what keeps a thread from going on in ring 3: interruptible sleeps end.
const SIGNAL_PENDING: u8 = 1;
/// The thread was moved to another CPU, or lost its CPU against its will.
const RSEQ_EVENT: u8 = 2;
/// The thread is to look again at what is asked of its calls. Sleeps go on: a call that ended early
/// because of that would show its caller that somebody looks on.
const NOTIFY_RESUME: u8 = 4;
/// No work of the kernel is being measured.
const IN_USER: u64 = 0;
/// Work of the kernel is being measured, but the thread has no CPU.
const OFF_CPU: u64 = 1;

/// The most that the first sample of a thread counts for, in nanoseconds.
const FIRST_SAMPLE_NS: u64 = 2_000;

/// Adds to what only one CPU changes at a time.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

/// A kernel thread. It ends when its closure returns. The host's double (`host/mod.rs`) has an
/// example, which runs.
pub struct Thread {
    _counted: census::KernelThread,
    id: u64,
    name: Mutex<String>,
    slot: &'static Slot,
    /// Pending work before a return to ring 3: [`SIGNAL_PENDING`], [`RSEQ_EVENT`] and
    /// [`NOTIFY_RESUME`].
    pending_work: AtomicU8,
    /// Whether [`RSEQ_EVENT`] is noted.
    rseq_tracking: AtomicBool,
    /// The thread has left its CPU, of its own accord or not.
    descheduled: AtomicBool,
    /// The thread waits for memory.
    in_reclaim: AtomicBool,
    /// The CPU on which it was last.
    last_cpu: AtomicU32,
    dead: AtomicBool,
    exit_waiters: WaitQueue,
    run_time: CpuTime,
    /// Since when the kernel is at work in it, by the TSC; [`IN_USER`], or [`OFF_CPU`].
    kernel_entry_tsc: AtomicU64,
    system_ns: AtomicU64,
    /// Average duration of sampled work, in nanoseconds; 0 before the first sample.
    sampled_ns: AtomicU64,
    /// Context switches away from the thread; `involuntary_switches`: those for which others were
    /// to run.
    switches: AtomicU64,
    involuntary_switches: AtomicU64,
    ext: Once<Arc<dyn Any + Send + Sync>>,
}

impl Thread {
    fn new(name: &str, slot: &'static Slot) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            _counted: census::KernelThread::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: Mutex::new(name.into()),
            slot,
            pending_work: AtomicU8::new(0),
            rseq_tracking: AtomicBool::new(false),
            descheduled: AtomicBool::new(false),
            in_reclaim: AtomicBool::new(false),
            last_cpu: AtomicU32::new(u32::MAX),
            dead: AtomicBool::new(false),
            exit_waiters: WaitQueue::new(),
            run_time: CpuTime::default(),
            // What it does before its program begins is the kernel's, and all of a kernel thread.
            kernel_entry_tsc: AtomicU64::new(OFF_CPU),
            system_ns: AtomicU64::new(0),
            sampled_ns: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            involuntary_switches: AtomicU64::new(0),
            ext: Once::new(),
        })
    }

    /// A number no other thread has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Name of the thread.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.lock().clone()
    }

    /// Changes the thread's name.
    pub fn set_name(&self, name: &str) {
        trace_events::trace_rename(self.slot, name);
        *self.name.lock() = name.into();
    }

    /// Gives it its permit: ends its sleep, or its next one. Callable from interrupt handlers.
    pub fn unpark(&self) {
        wake::unpark(self.slot);
    }

    /// Ends its interruptible sleeps, this one and further ones, until
    /// [`Self::clear_signal_pending`].
    pub fn set_signal_pending(&self) {
        self.pending_work.fetch_or(SIGNAL_PENDING, Ordering::SeqCst);
        self.unpark();
        // A thread in user mode must come into the kernel to notice.
        wake::kick(self.slot);
    }

    /// Makes the thread find [`Self::take_notify_resume`] before it goes on in ring 3. Ends no
    /// sleep.
    pub fn set_notify_resume(&self) {
        self.pending_work.fetch_or(NOTIFY_RESUME, Ordering::SeqCst);
        wake::kick(self.slot);
    }

    /// Whether [`Self::set_notify_resume`] was called since the last time.
    #[inline]
    pub fn take_notify_resume(&self) -> bool {
        self.pending_work.load(Ordering::Relaxed) & NOTIFY_RESUME != 0
            && self
                .pending_work
                .fetch_and(!NOTIFY_RESUME, Ordering::SeqCst)
                & NOTIFY_RESUME
                != 0
    }

    /// Shows which functions it waits in, from the innermost outwards, each with the distance from
    /// its start. Nothing while it runs.
    pub fn backtrace(&self, show: impl FnMut(&str, u32)) {
        self.slot.context().backtrace(show);
    }

    /// Says that it is thread `thread` of process `process` of the Linux personality, for records.
    pub fn set_ids(&self, process: u32, thread: u32) {
        trace_events::trace_set_ids(self.slot, process, thread);
    }

    /// Lets interruptible sleeps sleep again.
    pub fn clear_signal_pending(&self) {
        self.pending_work
            .fetch_and(!SIGNAL_PENDING, Ordering::SeqCst);
    }

    /// True between [`Self::set_signal_pending`] and [`Self::clear_signal_pending`].
    #[must_use]
    pub fn is_signal_pending(&self) -> bool {
        self.pending_work.load(Ordering::SeqCst) & SIGNAL_PENDING != 0
    }

    /// Not 0 while the thread is not to go on in ring 3 ([`Self::is_signal_pending`],
    /// [`Self::take_rseq_event`], [`Self::take_notify_resume`]).
    #[must_use]
    pub fn pending_work(&self) -> &AtomicU8 {
        &self.pending_work
    }

    /// Notes moves of the thread for rseq(2) from now on, or no more. The first time counts as a
    /// move.
    pub fn set_rseq_tracking(&self, on: bool) {
        self.rseq_tracking.store(on, Ordering::Relaxed);
        if on {
            self.set_rseq_event();
        } else {
            self.pending_work.fetch_and(!RSEQ_EVENT, Ordering::SeqCst);
        }
    }

    /// Has a thread that uses rseq believe that it was moved. It is told on its way back to ring
    /// 3; if it is in ring 3 it goes on there, until something interrupts it.
    pub fn set_rseq_event(&self) {
        if self.rseq_tracking.load(Ordering::Relaxed) {
            self.pending_work.fetch_or(RSEQ_EVENT, Ordering::SeqCst);
        }
    }

    /// Whether the thread, which uses rseq, was moved to another CPU or lost its own against its
    /// will since the last time.
    #[inline]
    pub fn take_rseq_event(&self) -> bool {
        self.pending_work.load(Ordering::Relaxed) & RSEQ_EVENT != 0
            && self.pending_work.fetch_and(!RSEQ_EVENT, Ordering::SeqCst) & RSEQ_EVENT != 0
    }

    /// Whether the thread, which uses rseq, was off its CPU since the last time, for whatever
    /// reason.
    #[inline]
    pub fn take_descheduled(&self) -> bool {
        self.descheduled.load(Ordering::Relaxed) && self.descheduled.swap(false, Ordering::Relaxed)
    }

    /// Says whether the thread itself is at making memory free, so that what it allocates
    /// meanwhile waits for none. Returns what was said before.
    pub fn set_in_reclaim(&self, on: bool) -> bool {
        self.in_reclaim.swap(on, Ordering::Relaxed)
    }

    /// Called when the thread leaves its CPU.
    pub(super) fn sched_out(&self, against_its_will: bool) {
        if self.rseq_tracking.load(Ordering::Relaxed) {
            self.descheduled.store(true, Ordering::Relaxed);
            if against_its_will {
                self.set_rseq_event();
            }
        }
    }

    /// Called when the thread begins to run on this CPU.
    pub(super) fn sched_in(&self, cpu: CpuId) {
        if self.rseq_tracking.load(Ordering::Relaxed)
            && self.last_cpu.swap(cpu.0, Ordering::Relaxed) != cpu.0
        {
            self.set_rseq_event();
        }
    }

    /// True once its closure has returned.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// True while it sleeps. A snapshot.
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.slot.is_parked()
    }

    /// True while it sleeps for a lock of the kernel, which nothing keeps it from getting. A
    /// snapshot.
    #[must_use]
    pub fn is_blocked_on_lock(&self) -> bool {
        self.slot.is_parked() && self.slot.blocked_on_lock.load(Ordering::Relaxed)
    }

    /// The CPU it runs on or last ran on.
    #[must_use]
    pub fn cpu(&self) -> CpuId {
        self.slot.cpu()
    }

    /// Waits for its end.
    pub fn join(&self) {
        self.exit_waiters.wait(|| self.is_dead().then_some(()));
    }

    /// Time it has run on CPUs, in nanoseconds.
    #[must_use]
    pub fn cpu_time_ns(&self) -> u64 {
        self.run_time.read(now_ns)
    }

    /// Begins system time: the program asked the kernel for something. Called by the thread itself.
    #[inline(always)]
    pub fn begin_system_time(&self) {
        self.kernel_entry_tsc
            .store(timer::tsc_unordered(), Ordering::Relaxed);
    }

    /// Ends system time. Called by the thread itself.
    #[inline(always)]
    pub fn end_system_time(&self) {
        self.account_system_time(IN_USER);
    }

    /// Ends system time that stands for `calls` calls like this one, of which the others were not
    /// measured; not if the end of a part of it has been told. One that took much longer than those
    /// before, because something came in between, stands for itself, and for others as long as four
    /// of those.
    pub fn end_sampled_system_time(&self, calls: u64) {
        let before = self.system_ns.load(Ordering::Relaxed);
        if self.kernel_entry_tsc.load(Ordering::Relaxed) != IN_USER {
            self.end_system_time();
            let one = self.system_ns.load(Ordering::Relaxed) - before;
            let typical = self.sampled_ns.load(Ordering::Relaxed);
            let counted = one.min(if typical == 0 {
                FIRST_SAMPLE_NS
            } else {
                4 * typical
            });
            self.sampled_ns.store(
                if typical == 0 {
                    counted
                } else {
                    (7 * typical + counted).div_ceil(8)
                },
                Ordering::Relaxed,
            );
            self.add_system_ns(counted * (calls - 1));
        }
    }

    /// Adds what the kernel did since `kernel_entry_tsc`, if it was at work, and puts another word
    /// there. In this order: nobody sees both.
    #[inline(always)]
    fn account_system_time(&self, next: u64) {
        let kernel_entry_tsc = self.kernel_entry_tsc.load(Ordering::Relaxed);
        if kernel_entry_tsc != IN_USER {
            self.kernel_entry_tsc.store(next, Ordering::Relaxed);
            self.add_system_ns(timer::ticks_to_ns(
                timer::tsc_unordered().saturating_sub(kernel_entry_tsc),
            ));
        }
    }

    /// Adds time of the kernel's to what the thread has had, and to what its CPU has done.
    #[inline(always)]
    fn add_system_ns(&self, ns: u64) {
        add(&self.system_ns, ns);
        guard::usage::add_system_ns(ns);
    }

    /// The part of its time between [`Self::begin_system_time`] and [`Self::end_system_time`], in
    /// nanoseconds.
    #[must_use]
    pub fn system_time_ns(&self) -> u64 {
        let done = self.system_ns.load(Ordering::Relaxed);
        match self.kernel_entry_tsc.load(Ordering::Relaxed) {
            IN_USER | OFF_CPU => done,
            kernel_entry_tsc => {
                done + timer::ticks_to_ns(timer::tsc().saturating_sub(kernel_entry_tsc))
            }
        }
    }

    /// Context switches away from the thread so far.
    #[must_use]
    pub fn context_switches(&self) -> ContextSwitches {
        let involuntary = self.involuntary_switches.load(Ordering::Relaxed);
        ContextSwitches {
            voluntary: self
                .switches
                .load(Ordering::Relaxed)
                .saturating_sub(involuntary),
            involuntary,
        }
    }

    /// Counts an involuntary switch: others are to run. Called by the thread's CPU.
    pub(super) fn count_preemption(&self) {
        add(&self.involuntary_switches, 1);
    }

    /// Ends the thread's CPU time at a time. Called by the CPU it ran on.
    #[inline(always)]
    pub(super) fn stop_cpu_clock(&self, now_ns: u64) {
        add(&self.switches, 1);
        self.pause_cpu_clock(now_ns);
    }

    /// The same, of a thread that keeps its CPU, which stands still.
    #[inline(always)]
    pub(super) fn pause_cpu_clock(&self, now_ns: u64) {
        self.run_time.end(now_ns);
        self.account_system_time(OFF_CPU);
    }

    /// Begins the thread's CPU time. Called by the CPU it gets.
    #[inline(always)]
    pub(super) fn start_cpu_clock(&self, now_ns: u64) {
        self.run_time.begin(now_ns);
        if self.kernel_entry_tsc.load(Ordering::Relaxed) == OFF_CPU {
            self.begin_system_time();
        }
    }

    /// Does something to the slot if the thread still lives there, and tells the CPU that has it.
    fn update_slot(&self, change: impl FnOnce(&Slot)) {
        {
            let thread_id = self.slot.thread_id.lock();
            if *thread_id != self.id {
                return;
            }
            change(self.slot);
        }
        wake::policy_changed(self.slot);
    }

    /// Lets it run only on the CPUs whose bit is set (word 0 holds CPUs 0 to 63). False, and no
    /// change, if that is none of this instance's. A thread that runs elsewhere at the moment is
    /// moved at once, the caller before this returns.
    pub fn set_affinity(&self, mask: &[u64]) -> bool {
        let word = |i: usize| mask.get(i).copied().unwrap_or(0);
        if (0..slot::CPU_WORDS).all(|i| word(i) & active(i) == 0) {
            return false;
        }
        self.update_slot(|slot| slot.set_allowed(word));
        true
    }

    /// Whether all CPUs have left that [`Self::set_affinity`] named last, when the thread was to
    /// run: since then it may run on any, also when those are back.
    #[must_use]
    pub fn is_unbound(&self) -> bool {
        self.slot.is_unbound()
    }

    /// Sets how it is scheduled from now on, wherever it is.
    pub fn set_policy(&self, policy: Policy) {
        self.change_params(|params| params.policy = policy);
    }

    /// Puts it into a scheduling group from now on, wherever it is.
    pub fn set_group(&self, group: Group) {
        self.change_params(|params| params.group = group);
    }

    fn change_params(&self, change: impl FnOnce(&mut Params)) {
        self.update_slot(|slot| {
            slot.change_params(change);
            slot.policy_changed.store(true, Ordering::SeqCst);
        });
    }

    /// Sets the user address space this thread runs in, and makes it current. For the calling
    /// thread itself.
    pub fn set_user(&self, user: Option<Arc<dyn UserSpace>>) {
        let old = self.with_run_context(|own, _| {
            if let Some(user) = &user {
                user.activate();
            }
            core::mem::replace(&mut own.user, user)
        });
        drop(old);
    }

    /// Gives this thread floating-point state of its own, saved and restored by the switch. For the
    /// calling thread itself.
    pub fn set_fpu(&self, fpu: Option<UserFpu>) {
        let old = self.with_run_context(|own, irqs| {
            if let Some(old) = &mut own.fpu {
                old.disarm(irqs);
            }
            if let Some(fpu) = &fpu {
                fpu.restore(irqs);
            }
            core::mem::replace(&mut own.fpu, fpu)
        });
        drop(old);
    }

    /// Runs `f` with the up-to-date floating-point state of the calling thread, which continues
    /// with what `f` leaves. `f` runs with interrupts off: no user memory, no locks.
    pub fn with_fpu<R>(&self, f: impl FnOnce(&mut UserFpu) -> R) -> Option<R> {
        self.with_run_context(|own, irqs| {
            let fpu = own.fpu.as_mut()?;
            fpu.save(irqs);
            let result = f(fpu);
            fpu.restore(irqs);
            Some(result)
        })
    }

    /// Runs `f` while the floating-point registers of the calling thread are in the CPU, which is
    /// all that is up to date. `f` runs with interrupts off: no locks.
    pub fn with_loaded_fpu<R>(&self, f: impl FnOnce(&mut UserFpu, IrqsOff<'_>) -> R) -> Option<R> {
        self.with_run_context(|own, irqs| own.fpu.as_mut().map(|fpu| f(fpu, irqs)))
    }

    /// Runs `f` with the run context of the calling thread, which is this one. Interrupts are off
    /// meanwhile.
    fn with_run_context<R>(&self, f: impl FnOnce(&mut RunContext, IrqsOff<'_>) -> R) -> R {
        CPUS.with_irqs_off(|c, irqs| {
            let mut own = c.run_context.borrow_mut();
            let own = own
                .as_mut()
                .expect("a thread that runs has its things with it");
            assert!(
                own.thread.id == self.id,
                "only a thread itself changes what it has with it"
            );
            f(own, irqs)
        })
    }

    /// Data that the layer above keeps with the thread.
    #[must_use]
    pub fn ext(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.ext.get()
    }

    /// Sets [`Self::ext`]; a second call panics.
    ///
    /// # Panics
    /// The second time.
    pub fn set_ext(&self, ext: Arc<dyn Any + Send + Sync>) {
        assert!(
            self.ext.set(ext).is_ok(),
            "a thread's extension is set once"
        );
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({})", self.id)
    }
}

/// Handle of the calling thread.
///
/// # Panics
/// On a CPU's idle thread, which is none.
#[must_use]
pub fn current() -> Arc<Thread> {
    CPUS.with(|c| {
        c.run_context
            .borrow()
            .as_ref()
            .map(|own| own.thread.clone())
    })
    .expect("what runs is a thread")
}

/// Handle of the calling thread; `None` while a thread begins or ends, and on a CPU's idle thread.
#[must_use]
pub fn try_current() -> Option<Arc<Thread>> {
    CPUS.with(|c| Some(c.run_context.try_borrow().ok()?.as_ref()?.thread.clone()))
}

/// The calling thread is raised while this exists ([`raise`]).
#[derive(Debug)]
#[must_use = "the thread has its own policy again as soon as this is dropped"]
pub struct Raised {
    before: u8,
    /// Only the thread itself may drop it.
    not_send: PhantomData<*mut ()>,
}

/// Schedules the calling thread as a `SCHED_FIFO` one of `priority` until the result is dropped,
/// or higher if it is raised higher already; its policy stays what it is. Programs have priorities
/// up to 99. To be dropped in the reverse order.
pub fn raise(priority: u8) -> Raised {
    let before = change_raised(|before| priority.max(before));
    Raised {
        before,
        not_send: PhantomData,
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        change_raised(|_| self.before);
    }
}

/// Changes the priority of the kernel's work that the calling thread does; returns the one before.
fn change_raised(change: impl FnOnce(u8) -> u8) -> u8 {
    let slot = super::cpu::current_slot();
    let before = {
        let _thread_id = slot.thread_id.lock();
        let before = slot.raised();
        let after = change(before);
        if before == after {
            return before;
        }
        slot.set_raised(after)
    };
    switch::own_policy_changed();
    before
}

/// Has the calling thread look after memory before it goes on in ring 3, where it holds no lock.
pub(super) fn on_low_memory() {
    CPUS.with(|c| {
        // Not while a thread begins or ends.
        if let Ok(running) = c.run_context.try_borrow()
            && let Some(own) = running.as_ref()
        {
            own.thread.set_notify_resume();
        }
    });
}

/// Slots whose thread has ended.
static FREE_SLOTS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static NEXT_SLOT: AtomicU32 = AtomicU32::new(0);

/// Makes room for one more slot in the list of free ones: a thread that ends takes no memory.
fn reserve_free_slot() -> Result<(), NoMemory> {
    let slots = NEXT_SLOT.load(Ordering::Relaxed) as usize + 1;
    let mut free = FREE_SLOTS.lock();
    let more = slots.saturating_sub(free.len());
    free.try_reserve(more).map_err(|_| NoMemory)
}

/// A slot never used before.
pub(super) fn allocate_slot() -> Option<&'static Slot> {
    slot::create(NEXT_SLOT.fetch_add(1, Ordering::Relaxed))
}

/// Starts a thread that runs `f`, on `affinity` only if that is given, in the caller's scheduling
/// group.
///
/// # Errors
/// There is no memory for its stack.
pub fn spawn(
    name: &str,
    affinity: Option<CpuId>,
    f: impl FnOnce() + Send + 'static,
) -> Result<Arc<Thread>, NoMemory> {
    let allowed = |word| match affinity {
        None => u64::MAX,
        Some(cpu) if cpu.0 as usize / 64 == word => 1 << (cpu.0 % 64),
        Some(_) => 0,
    };
    spawn_on(name, Policy::default(), allowed, f)
}

/// The same with a policy, on the CPUs whose bit in `cpus` is set only (none given: on all). It has
/// both from the first: it goes nowhere else, and before nobody it may not go before.
///
/// # Errors
/// There is no memory for its stack.
pub fn spawn_scheduled(
    name: &str,
    policy: Policy,
    cpus: &[u64],
    f: impl FnOnce() + Send + 'static,
) -> Result<Arc<Thread>, NoMemory> {
    let allowed = |word| match cpus {
        [] => u64::MAX,
        cpus => cpus.get(word).copied().unwrap_or(0),
    };
    spawn_on(name, policy, allowed, f)
}

/// Takes a slot whose thread has ended and left its stack. One that is still on its way to sleep
/// would go on where it is, which may be a CPU that the next thread may not run on.
fn take_free_slot() -> Option<&'static Slot> {
    let mut free = FREE_SLOTS.lock();
    let at = free.iter().rposition(|&number| {
        let slot = slot::by_number(number);
        slot.is_parked() && !slot.on_cpu()
    })?;
    Some(slot::by_number(free.swap_remove(at)))
}

fn spawn_on(
    name: &str,
    policy: Policy,
    allowed: impl Fn(usize) -> u64,
    f: impl FnOnce() + Send + 'static,
) -> Result<Arc<Thread>, NoMemory> {
    let recycled = take_free_slot();
    let fresh = recycled.is_none();
    let slot = match recycled {
        Some(slot) => slot,
        None => {
            let stack = KernelStack::new().ok_or(NoMemory)?;
            reserve_free_slot()?;
            let slot = allocate_slot().ok_or(NoMemory)?;
            slot.set_context(Context::new(stack, slot_main, slot.number() as usize));
            slot
        }
    };
    let thread = Thread::new(name, slot);
    trace_events::trace_spawn(slot, name);
    let group = super::cpu::current_slot().group();
    {
        let mut thread_id = slot.thread_id.lock();
        *thread_id = thread.id;
        slot.set_raised(0);
        slot.change_params(|params| *params = Params { policy, group });
        slot.set_allowed(allowed);
    }
    if fresh {
        slot.set_cpu(wake::least_loaded(slot));
    }
    *slot.job.lock() = Some(Job {
        thread: thread.clone(),
        body: Box::new(f),
    });
    wake::unpark(slot);
    Ok(thread)
}

/// Main function of every slot's context: runs one job after another.
extern "sysv64" fn slot_main(number: usize) -> ! {
    let slot = slot::by_number(number as u32);
    switch::finish_switch(None);
    guard::cpu::enable_irqs();
    loop {
        let job = slot.job.lock().take();
        if let Some(Job { thread, body }) = job {
            let own = Box::new(RunContext {
                thread,
                user: None,
                fpu: None,
            });
            CPUS.with(|c| {
                own.thread.start_cpu_clock(now_ns());
                *c.run_context.borrow_mut() = Some(own);
            });
            reserve_run_queue();
            body();
            guard::stack::note_depth();
            thread_exit(slot);
        }
        switch::park();
    }
}

/// Sees to it that the run queue of this CPU has room for more threads than it holds. Here, because
/// every thread that may have to wait on a CPU has started somewhere, and because this may
/// allocate.
fn reserve_run_queue() {
    let (waiting, room) = CPUS.with(|c| {
        let queue = c.queue.borrow();
        (
            queue.waiting() + c.overflow.borrow().len() as usize,
            queue.capacity(),
        )
    });
    if waiting * 2 < room {
        return;
    }
    // Without it, threads that find no room wait in another queue.
    let Ok(mut larger) = Room::try_new(waiting * 4) else {
        return;
    };
    // Perhaps of another CPU by now, which is all right.
    CPUS.with(|c| c.queue.borrow_mut().enlarge(&mut larger));
}

fn thread_exit(slot: &'static Slot) {
    let thread = current();
    thread.set_user(None);
    thread.set_fpu(None);
    *slot.thread_id.lock() = 0;
    trace_events::trace_exit(slot);
    thread.dead.store(true, Ordering::Release);
    thread.exit_waiters.wake_all();
    let own = CPUS.with(|c| {
        thread.stop_cpu_clock(now_ns());
        c.run_context.take()
    });
    drop((own, thread));
    FREE_SLOTS.lock().push(slot.number());
}
