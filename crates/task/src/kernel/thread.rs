//! Threads as others see them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use guard::context::Context;
use guard::cpu::{CpuId, MAX_CPUS};
use guard::fpu::UserFpu;
use guard::stack::KernelStack;
use lfmutex::{Mutex, Once};

use super::slot::{self, Slot};
use super::{now_ns, sched};
use crate::{NoMemory, WaitQueue};

/// What is made current on a CPU before a thread's user code runs there.
pub trait UserSpace: Send + Sync {
    /// Makes this the CPU's user address space. Called with interrupts off.
    fn activate(&self);
}

/// A set of CPUs.
const MASK_WORDS: usize = MAX_CPUS / 64;

/// A kernel thread. It ends when its closure returns.
pub struct Thread {
    id: u64,
    name: Mutex<String>,
    slot: &'static Slot,
    interrupted: AtomicBool,
    dead: AtomicBool,
    joined: WaitQueue,
    allowed: [AtomicU64; MASK_WORDS],
    ran_ns: AtomicU64,
    /// Changed by the thread itself only; read by the switch, which finds it unlocked unless the thread was interrupted in
    /// the middle of a change.
    user: Mutex<Option<Arc<dyn UserSpace>>>,
    fpu: Mutex<Option<UserFpu>>,
    ext: Once<Arc<dyn Any + Send + Sync>>,
}

impl Thread {
    pub(super) fn new(name: &str, slot: &'static Slot, affinity: Option<CpuId>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let allowed = [const { AtomicU64::new(u64::MAX) }; MASK_WORDS];
        if let Some(cpu) = affinity {
            for (i, word) in allowed.iter().enumerate() {
                let bit = if cpu.0 as usize / 64 == i { 1 << (cpu.0 % 64) } else { 0 };
                word.store(bit, Ordering::Relaxed);
            }
        }
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: Mutex::new(name.into()),
            slot,
            interrupted: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            joined: WaitQueue::new(),
            allowed,
            ran_ns: AtomicU64::new(0),
            user: Mutex::new(None),
            fpu: Mutex::new(None),
            ext: Once::new(),
        })
    }

    /// A number no other thread has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.lock().clone()
    }

    /// Changes its name.
    pub fn set_name(&self, name: &str) {
        *self.name.lock() = name.into();
    }

    /// Gives it its permit: ends its sleep, or its next one. Callable from interrupt handlers.
    pub fn unpark(&self) {
        slot::unpark(self.slot);
    }

    /// Ends its interruptible sleeps, this one and further ones, until [`Self::clear_interrupt`].
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        self.unpark();
        // A thread in user mode must come into the kernel to notice.
        sched::kick(self.slot);
    }

    /// Lets interruptible sleeps sleep again.
    pub fn clear_interrupt(&self) {
        self.interrupted.store(false, Ordering::SeqCst);
    }

    /// True between [`Self::interrupt`] and [`Self::clear_interrupt`].
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// What [`Self::interrupted`] reads, for the way back to ring 3.
    #[must_use]
    pub fn interrupt_flag(&self) -> &AtomicBool {
        &self.interrupted
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

    /// The CPU it runs on or last ran on.
    #[must_use]
    pub fn cpu(&self) -> CpuId {
        CpuId(self.slot.cpu())
    }

    /// Waits for its end.
    pub fn join(&self) {
        self.joined.wait(|| self.is_dead().then_some(()));
    }

    /// Time it has run on CPUs, in nanoseconds.
    #[must_use]
    pub fn cpu_time_ns(&self) -> u64 {
        let ran = self.ran_ns.load(Ordering::Relaxed);
        if self.slot.context().is_running() { ran + sched::running_for(self.slot, now_ns()) } else { ran }
    }

    pub(super) fn add_time(&self, ns: u64) {
        self.ran_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Whether it may run on `cpu`.
    #[must_use]
    pub fn may_run_on(&self, cpu: CpuId) -> bool {
        self.allowed.get(cpu.0 as usize / 64).is_some_and(|w| w.load(Ordering::Relaxed) >> (cpu.0 % 64) & 1 != 0)
    }

    /// Lets it run only on the CPUs whose bit is set (word 0 holds CPUs 0 to 63). False, and no change, if that is none of
    /// this instance's. A thread that runs elsewhere at the moment moves when it next waits or its time slice ends.
    pub fn set_cpus(&self, mask: &[u64]) -> bool {
        let word = |i: usize| mask.get(i).copied().unwrap_or(0);
        if !(0..super::cpu_count()).any(|cpu| word(cpu / 64) >> (cpu % 64) & 1 != 0) {
            return false;
        }
        for (i, to) in self.allowed.iter().enumerate() {
            to.store(word(i), Ordering::Relaxed);
        }
        true
    }

    /// Sets the user address space this thread runs in, and makes it current. For the calling thread itself.
    pub fn set_user(&self, user: Option<Arc<dyn UserSpace>>) {
        let old = {
            let mut slot = self.user.lock();
            if let Some(user) = &user {
                guard::cpu::without_irqs(|| user.activate());
            }
            core::mem::replace(&mut *slot, user)
        };
        drop(old);
        // A switch in the middle found the lock taken and left the choice to us.
        guard::cpu::without_irqs(|| self.activate());
    }

    /// Gives this thread floating-point state of its own, saved and restored by the switch. For the calling thread itself.
    pub fn set_fpu(&self, fpu: Option<UserFpu>) {
        guard::cpu::without_irqs(|| {
            let mut slot = self.fpu.try_lock().expect("only its owner and the switch touch it, with interrupts off");
            if let Some(fpu) = &fpu {
                fpu.restore();
            }
            core::mem::replace(&mut *slot, fpu)
        });
    }

    /// Runs `f` with the up-to-date floating-point state of the calling thread, which continues with what `f` leaves. `f` runs
    /// with interrupts off: no user memory, no locks.
    pub fn with_fpu<R>(&self, f: impl FnOnce(&mut UserFpu) -> R) -> Option<R> {
        guard::cpu::without_irqs(|| {
            let mut slot = self.fpu.try_lock().expect("only its owner and the switch touch it, with interrupts off");
            let fpu = slot.as_mut()?;
            fpu.save();
            let result = f(fpu);
            fpu.restore();
            Some(result)
        })
    }

    /// The CPU is about to be given to another thread. Interrupts are off.
    pub(super) fn leave(&self) {
        if let Some(mut slot) = self.fpu.try_lock()
            && let Some(fpu) = slot.as_mut()
        {
            fpu.save();
        }
    }

    /// The CPU is this thread's again. Interrupts are off.
    pub(super) fn arrive(&self) {
        self.activate();
        if let Some(slot) = self.fpu.try_lock()
            && let Some(fpu) = slot.as_ref()
        {
            fpu.restore();
        }
    }

    fn activate(&self) {
        if let Some(slot) = self.user.try_lock()
            && let Some(user) = slot.as_ref()
        {
            user.activate();
        }
    }

    /// What the layer above keeps with it.
    #[must_use]
    pub fn ext(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.ext.get()
    }

    /// Sets [`Self::ext`].
    ///
    /// # Panics
    /// The second time.
    pub fn set_ext(&self, ext: Arc<dyn Any + Send + Sync>) {
        assert!(self.ext.set(ext).is_ok(), "a thread's extension is set once");
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({})", self.id)
    }
}

/// The calling thread.
#[must_use]
pub fn current() -> Arc<Thread> {
    sched::current_slot().thread.lock().clone().expect("what runs has a thread")
}

/// Slots whose thread has ended.
static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static NEXT_SLOT: AtomicU32 = AtomicU32::new(0);

/// A slot never used before.
pub(super) fn fresh_slot() -> Option<&'static Slot> {
    slot::create(NEXT_SLOT.fetch_add(1, Ordering::Relaxed))
}

/// Starts a thread that runs `f`, on `affinity` only if that is given.
///
/// # Errors
/// There is no memory for its stack.
pub fn spawn(name: &str, affinity: Option<CpuId>, f: impl FnOnce() + Send + 'static) -> Result<Arc<Thread>, NoMemory> {
    let recycled = FREE.lock().pop();
    let fresh = recycled.is_none();
    let slot = match recycled {
        Some(number) => slot::at(number),
        None => {
            let stack = KernelStack::new().ok_or(NoMemory)?;
            let slot = fresh_slot().ok_or(NoMemory)?;
            slot.set_context(Context::new(stack, run, slot.number() as usize));
            slot
        }
    };
    let thread = Thread::new(name, slot, affinity);
    *slot.thread.lock() = Some(thread.clone());
    if fresh {
        slot.set_cpu(sched::least_loaded(&thread).0);
    }
    // A recycled slot may still be on its way to sleep on the CPU it names: the wake-up decides where it goes on.
    *slot.job.lock() = Some(Box::new(f));
    slot::unpark(slot);
    Ok(thread)
}

/// What every slot's context does: one job after another.
fn run(number: usize) -> ! {
    let slot = slot::at(number as u32);
    sched::look_again();
    guard::cpu::enable_irqs();
    loop {
        let job = slot.job.lock().take();
        if let Some(job) = job {
            job();
            end(slot);
        }
        slot::park();
    }
}

fn end(slot: &'static Slot) {
    let thread = slot.thread.lock().clone().expect("it ran");
    thread.set_user(None);
    thread.set_fpu(None);
    thread.dead.store(true, Ordering::Release);
    thread.joined.wake_all();
    *slot.thread.lock() = None;
    drop(thread);
    FREE.lock().push(slot.number());
}
