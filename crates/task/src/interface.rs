//! The interface that both bodies of this crate have: `kernel/`, and `host/` for unit tests.
//!
//! Callers use the functions and methods themselves, so that nothing is looked up at run time and
//! no trait has to be imported. The traits here state the signatures once, and are implemented
//! once, by the functions of whichever body is compiled: a body that lacks one of them, or has it
//! with other arguments, does not build. What only one of the bodies has stands in no trait:
//!
//! * in the kernel: `init`, `run_cpu` and `lock_sites`, for its start and its `/proc`;
//! * on the host: `Thread::policy`, for tests to read what a program set, and the crate `explore`.
#![expect(
    dead_code,
    reason = "the traits are there to be checked, not to be called"
)]
#![deny(unconditional_recursion)]

use alloc::string::String;
use alloc::sync::Arc;
use core::any::Any;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU8;

use fair::{Group, Policy, RtLimits};
use guard::cpu::IrqsOff;
use guard::fpu::UserFpu;
use topology::Topology;

use crate::cpu_stats::CpuStats;
use crate::platform::{self, stats};
use crate::{
    Condvar, ContextSwitches, CpuId, Deadline, Mutex, MutexGuard, NoMemory, Once, PreemptGuard,
    Raised, RcuArc, ReadGuard, RwLock, Thread, UserSpace, WriteGuard,
};

/// Functions of a body: the calling thread, the CPUs, the clock.
trait Platform {
    fn spawn(
        name: &str,
        affinity: Option<CpuId>,
        f: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Thread>, NoMemory>;
    fn spawn_scheduled(
        name: &str,
        policy: Policy,
        cpus: &[u64],
        f: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Thread>, NoMemory>;
    fn current() -> Arc<Thread>;
    fn try_current() -> Option<Arc<Thread>>;
    fn park();
    fn park_until(deadline: Deadline) -> bool;
    fn sleep_until(deadline: Deadline);
    fn yield_now();
    fn preempt_disable() -> PreemptGuard;
    fn raise(priority: u8) -> Raised;
    fn preemption_point();
    fn now_ns() -> u64;
    fn cpu_count() -> usize;
    fn cpu_limit() -> usize;
    fn topology() -> Arc<Topology>;
    fn cpu_stats(cpu: CpuId) -> CpuStats;
    fn runnable() -> u32;
    fn rt_limits() -> RtLimits;
    fn change_rt_limits<E>(change: impl FnOnce(RtLimits) -> Result<RtLimits, E>) -> Result<(), E>;
    fn start_recording(classes: u32) -> Result<(), guard::trace::NoRings>;
}

/// The body that is compiled.
struct Body;

impl Platform for Body {
    fn spawn(
        name: &str,
        affinity: Option<CpuId>,
        f: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Thread>, NoMemory> {
        platform::spawn(name, affinity, f)
    }
    fn spawn_scheduled(
        name: &str,
        policy: Policy,
        cpus: &[u64],
        f: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Thread>, NoMemory> {
        platform::spawn_scheduled(name, policy, cpus, f)
    }
    fn current() -> Arc<Thread> {
        platform::current()
    }
    fn try_current() -> Option<Arc<Thread>> {
        platform::try_current()
    }
    fn park() {
        platform::park();
    }
    fn park_until(deadline: Deadline) -> bool {
        platform::park_until(deadline)
    }
    fn sleep_until(deadline: Deadline) {
        platform::sleep_until(deadline);
    }
    fn yield_now() {
        platform::yield_now();
    }
    fn preempt_disable() -> PreemptGuard {
        platform::preempt_disable()
    }
    fn raise(priority: u8) -> Raised {
        platform::raise(priority)
    }
    fn preemption_point() {
        platform::preemption_point();
    }
    fn now_ns() -> u64 {
        platform::now_ns()
    }
    fn cpu_count() -> usize {
        platform::cpu_count()
    }
    fn cpu_limit() -> usize {
        platform::cpu_limit()
    }
    fn topology() -> Arc<Topology> {
        platform::topology()
    }
    fn cpu_stats(cpu: CpuId) -> CpuStats {
        stats::cpu(cpu)
    }
    fn runnable() -> u32 {
        stats::runnable()
    }
    fn rt_limits() -> RtLimits {
        platform::rt_limits()
    }
    fn change_rt_limits<E>(change: impl FnOnce(RtLimits) -> Result<RtLimits, E>) -> Result<(), E> {
        platform::change_rt_limits(change)
    }
    fn start_recording(classes: u32) -> Result<(), guard::trace::NoRings> {
        platform::start_recording(classes)
    }
}

/// States the methods of a type in a trait, and implements it by the type's own methods.
macro_rules! interface {
    ($(#[$doc:meta])* $name:ident of $type:ty {
        $(fn $method:ident $([$($generic:tt)*])? (&self $(, $argument:ident: $of:ty)*) $(-> $result:ty)?;)*
    }) => {
        $(#[$doc])*
        trait $name {
            $(fn $method $(<$($generic)*>)? (&self $(, $argument: $of)*) $(-> $result)?;)*
        }

        impl $name for $type {
            $(fn $method $(<$($generic)*>)? (&self $(, $argument: $of)*) $(-> $result)? {
                <$type>::$method(self $(, $argument)*)
            })*
        }
    };
}

interface! {
    /// Methods of threads: their names and ends.
    KernelThread of Thread {
        fn id(&self) -> u64;
        fn name(&self) -> String;
        fn set_name(&self, name: &str);
        fn backtrace(&self, show: impl FnMut(&str, u32));
        fn unpark(&self);
        fn is_dead(&self) -> bool;
        fn join(&self);
        fn ext(&self) -> Option<&Arc<dyn Any + Send + Sync>>;
        fn set_ext(&self, ext: Arc<dyn Any + Send + Sync>);
    }
}

interface! {
    /// Methods of threads that run a program: signals and other pending work.
    PendingWork of Thread {
        fn set_signal_pending(&self);
        fn clear_signal_pending(&self);
        fn is_signal_pending(&self) -> bool;
        fn set_notify_resume(&self);
        fn take_notify_resume(&self) -> bool;
        fn pending_work(&self) -> &AtomicU8;
        fn set_rseq_tracking(&self, on: bool);
        fn set_rseq_event(&self);
        fn take_rseq_event(&self) -> bool;
        fn take_descheduled(&self) -> bool;
        fn set_in_reclaim(&self, on: bool) -> bool;
    }
}

interface! {
    /// Methods of threads that run a program: accounting and state.
    Accounting of Thread {
        fn is_sleeping(&self) -> bool;
        fn is_blocked_on_lock(&self) -> bool;
        fn cpu(&self) -> CpuId;
        fn cpu_time_ns(&self) -> u64;
        fn begin_system_time(&self);
        fn end_system_time(&self);
        fn end_sampled_system_time(&self, calls: u64);
        fn system_time_ns(&self) -> u64;
        fn context_switches(&self) -> ContextSwitches;
    }
}

interface! {
    /// Methods of threads that run a program: where and how they run.
    UserThread of Thread {
        fn set_ids(&self, process: u32, thread: u32);
        fn set_affinity(&self, mask: &[u64]) -> bool;
        fn is_unbound(&self) -> bool;
        fn set_policy(&self, policy: Policy);
        fn set_group(&self, group: Group);
        fn set_user(&self, user: Option<Arc<dyn UserSpace>>);
        fn set_fpu(&self, fpu: Option<UserFpu>);
        fn with_fpu[R](&self, f: impl FnOnce(&mut UserFpu) -> R) -> Option<R>;
        fn with_loaded_fpu[R](&self, f: impl FnOnce(&mut UserFpu, IrqsOff<'_>) -> R) -> Option<R>;
    }
}

/// A mutex: `lock` sleeps until it has it; its guard gives it up.
trait Lock<T: ?Sized> {
    fn lock(&self) -> MutexGuard<'_, T>;
    fn try_lock(&self) -> Option<MutexGuard<'_, T>>;
    fn get_mut(&mut self) -> &mut T;
}

impl<T: ?Sized> Lock<T> for Mutex<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        Self::lock(self)
    }
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Self::try_lock(self)
    }
    fn get_mut(&mut self) -> &mut T {
        Self::get_mut(self)
    }
}

/// A lock of one writer or several readers.
trait SharedLock<T: ?Sized> {
    fn read(&self) -> ReadGuard<'_, T>;
    fn write(&self) -> WriteGuard<'_, T>;
    fn get_mut(&mut self) -> &mut T;
}

impl<T: ?Sized> SharedLock<T> for RwLock<T> {
    fn read(&self) -> ReadGuard<'_, T> {
        Self::read(self)
    }
    fn write(&self) -> WriteGuard<'_, T> {
        Self::write(self)
    }
    fn get_mut(&mut self) -> &mut T {
        Self::get_mut(self)
    }
}

/// A condition variable: notifying needs the mutex, as waiting does.
trait Condition {
    fn wait<'a, T: ?Sized>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T>;
    fn notify_one<T: ?Sized>(&self, held: &MutexGuard<'_, T>);
    fn notify_all<T: ?Sized>(&self, held: &MutexGuard<'_, T>);
}

impl Condition for Condvar {
    fn wait<'a, T: ?Sized>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        Self::wait(self, held)
    }
    fn notify_one<T: ?Sized>(&self, held: &MutexGuard<'_, T>) {
        Self::notify_one(self, held);
    }
    fn notify_all<T: ?Sized>(&self, held: &MutexGuard<'_, T>) {
        Self::notify_all(self, held);
    }
}

/// A value that is set once.
trait SetOnce<T> {
    fn get(&self) -> Option<&T>;
    fn call_once(&self, make: impl FnOnce() -> T) -> &T;
    fn set(&self, value: T) -> Result<(), T>;
}

impl<T> SetOnce<T> for Once<T> {
    fn get(&self) -> Option<&T> {
        Self::get(self)
    }
    fn call_once(&self, make: impl FnOnce() -> T) -> &T {
        Self::call_once(self, make)
    }
    fn set(&self, value: T) -> Result<(), T> {
        Self::set(self, value)
    }
}

/// A place for an `Arc` that is read without a lock.
trait ArcCell<T: Send + Sync> {
    fn load(&self) -> Option<Arc<T>>;
    fn swap(&self, new: Option<Arc<T>>) -> Option<Arc<T>>;
}

impl<T: Send + Sync> ArcCell<T> for RcuArc<T> {
    fn load(&self) -> Option<Arc<T>> {
        Self::load(self)
    }
    fn swap(&self, new: Option<Arc<T>>) -> Option<Arc<T>> {
        Self::swap(self, new)
    }
}

/// Checks, when it is compiled, what is used of types without being called: constructors that are
/// constant, and guards that lead to their value.
const _: () = {
    const fn leads_to<T: ?Sized, G: Deref<Target = T>>() {}
    const fn leads_to_mut<T: ?Sized, G: DerefMut<Target = T>>() {}
    leads_to_mut::<u8, MutexGuard<'_, u8>>();
    leads_to::<u8, ReadGuard<'_, u8>>();
    leads_to_mut::<u8, WriteGuard<'_, u8>>();
    let _ = (
        Mutex::<u8>::new,
        RwLock::<u8>::new,
        Condvar::new,
        Once::<u8>::new,
    );
    let _ = RcuArc::<u8>::empty;
};
