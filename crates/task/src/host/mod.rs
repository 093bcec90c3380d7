//! The interface of `kernel/` on the standard library's threads, for unit tests on the host.
//!
//! In a thread of a model that is explored ([`crate::explore`]), who runs, sleeps and wakes, and
//! what the clock shows, is decided there.

mod lock;
pub mod stats;
pub mod sync;
mod user;

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use fair::Policy;
pub use guard::cpu::CpuId;
use lfmutex::{Token, scheduler};
use topology::{Levels, Topology};

pub use self::lock::{Condvar, Mutex, MutexGuard, Once, ReadGuard, RwLock, WriteGuard};
use self::user::OfUser;
pub use self::user::{change_rt_limits, rt_limits, start_recording};
use crate::{Deadline, NoMemory};

/// Does nothing: a point where the kernel's scheduler may be perturbed.
pub(crate) fn preemption_point() {}

/// An address space that is made current on a CPU before a thread's user code runs there.
pub trait UserSpace: Send + Sync {
    /// Makes this the CPU's user address space.
    fn activate(&self);
}

/// A place that holds an `Arc<T>` or nothing.
#[derive(Debug)]
pub struct RcuArc<T>(std::sync::Mutex<Option<Arc<T>>>);

impl<T: Send + Sync> RcuArc<T> {
    /// A place with nothing in it.
    pub const fn empty() -> Self {
        Self(std::sync::Mutex::new(None))
    }
    /// The value that is there, if any.
    pub fn load(&self) -> Option<Arc<T>> {
        self.0.lock().expect("not poisoned").clone()
    }
    /// Puts `new` there, and returns what was there.
    pub fn swap(&self, new: Option<Arc<T>>) -> Option<Arc<T>> {
        std::mem::replace(&mut *self.0.lock().expect("not poisoned"), new)
    }
}

/// A kernel thread, which stands on one of the standard library's here. It ends when its closure
/// returns.
///
/// ```
/// use std::sync::Arc;
/// use task::{Mutex, WaitQueue};
///
/// let shared = Arc::new((Mutex::new(Vec::new()), WaitQueue::new()));
/// let thread = {
///     let shared = shared.clone();
///     task::spawn("worker", None, move || {
///         shared.0.lock().push(42);
///         shared.1.wake_all();
///     })?
/// };
/// let got = shared.1.wait(|| shared.0.lock().pop()); // sleeps until there is one
/// thread.join();
/// assert!(got == 42 && thread.is_dead());
/// # Ok::<(), task::NoMemory>(())
/// ```
pub struct Thread {
    id: u64,
    name: std::sync::Mutex<String>,
    token: Token,
    signal_pending: sync::AtomicBool,
    dead: sync::AtomicBool,
    exit_waiters: crate::WaitQueue,
    ext: OnceLock<Arc<dyn Any + Send + Sync>>,
    user: OfUser,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Thread>>> = const { RefCell::new(None) };
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The calling thread, to [`unpark`]: in a model the number it has there.
pub(crate) fn current_token() -> Token {
    explore::number().map_or_else(|| scheduler().current(), Token::from_raw)
}

/// Gives a thread its permit.
#[track_caller]
pub(crate) fn unpark(thread: Token) {
    if explore::is_active() {
        explore::unpark(thread.into_raw());
    } else {
        scheduler().unpark(thread);
    }
}

/// A wait has found its condition true.
pub(crate) fn wait_satisfied() {
    explore::wait_satisfied();
}

fn new_thread(name: &str, token: Token) -> Arc<Thread> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Arc::new(Thread {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        name: std::sync::Mutex::new(name.into()),
        token,
        signal_pending: sync::AtomicBool::new(false),
        dead: sync::AtomicBool::new(false),
        exit_waiters: crate::WaitQueue::new(),
        ext: OnceLock::new(),
        user: OfUser::default(),
    })
}

impl Thread {
    /// A number no other thread has or had.
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Name of the thread.
    pub fn name(&self) -> String {
        self.name.lock().expect("not poisoned").clone()
    }
    /// Shows nothing: its stack is not ours.
    pub fn backtrace(&self, _: impl FnMut(&str, u32)) {}
    /// Changes the thread's name.
    pub fn set_name(&self, name: &str) {
        *self.name.lock().expect("not poisoned") = name.into();
    }
    /// Gives it its permit: ends its sleep, or its next one.
    #[track_caller]
    pub fn unpark(&self) {
        unpark(self.token);
    }
    /// Ends its interruptible sleeps until [`Self::clear_signal_pending`].
    pub fn set_signal_pending(&self) {
        self.signal_pending.store(true, Ordering::SeqCst);
        self.unpark();
    }
    /// Lets interruptible sleeps sleep again.
    pub fn clear_signal_pending(&self) {
        self.signal_pending.store(false, Ordering::SeqCst);
    }
    /// True between the two.
    pub fn is_signal_pending(&self) -> bool {
        self.signal_pending.load(Ordering::SeqCst)
    }
    /// True once its closure has returned.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
    /// Waits for its end.
    pub fn join(&self) {
        self.exit_waiters.wait(|| self.is_dead().then_some(()));
    }
    /// Time it has run.
    pub fn cpu_time_ns(&self) -> u64 {
        0
    }
    /// Data that the layer above keeps with the thread.
    pub fn ext(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.ext.get()
    }
    /// Sets [`Self::ext`]; a second call panics.
    pub fn set_ext(&self, ext: Arc<dyn Any + Send + Sync>) {
        assert!(
            self.ext.set(ext).is_ok(),
            "a thread's extension is set once"
        );
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({} {:?})", self.id, self.name())
    }
}

/// Starts a thread that runs `body`.
///
/// # Errors
/// Never on the host.
pub fn spawn(
    name: &str,
    _affinity: Option<CpuId>,
    f: impl FnOnce() + Send + 'static,
) -> Result<Arc<Thread>, NoMemory> {
    let (give, take) = std::sync::mpsc::channel();
    let run = |me: &Thread| {
        f();
        me.dead.store(true, Ordering::Release);
        me.exit_waiters.wake_all();
    };
    if explore::is_active() {
        let begin = |number: usize| {
            let thread = new_thread(name, Token::from_raw(number));
            give.send(thread.clone()).expect("taken below");
            Some(thread as explore::Kept)
        };
        explore::spawn_with(name, begin, || run(&current()));
    } else {
        let name = name.to_owned();
        std::thread::spawn(move || {
            let me = new_thread(&name, current_token());
            CURRENT.with(|slot| *slot.borrow_mut() = Some(me.clone()));
            give.send(me.clone()).expect("spawn waits");
            run(&me);
        });
    }
    Ok(take.recv().expect("the thread sends first"))
}

/// Starts a thread that runs `body`, with a policy that is kept for tests to read.
///
/// # Errors
/// Never on the host.
pub fn spawn_scheduled(
    name: &str,
    policy: Policy,
    _cpus: &[u64],
    body: impl FnOnce() + Send + 'static,
) -> Result<Arc<Thread>, NoMemory> {
    let thread = spawn(name, None, body)?;
    thread.set_policy(policy);
    Ok(thread)
}

/// Handle of the calling thread.
pub fn current() -> Arc<Thread> {
    if explore::is_active() {
        let kept = explore::kept(|number| new_thread("model", Token::from_raw(number)));
        return kept.downcast().expect("nobody else keeps anything there");
    }
    CURRENT.with(|slot| {
        slot.borrow_mut()
            .get_or_insert_with(|| new_thread("host", current_token()))
            .clone()
    })
}

/// Handle of the calling thread: every thread of the host has one.
#[must_use]
pub fn try_current() -> Option<Arc<Thread>> {
    Some(current())
}

/// Sleeps until the calling thread's permit is there. May return early.
#[track_caller]
pub fn park() {
    if explore::is_active() {
        explore::park(None);
    } else {
        scheduler().park();
    }
}

/// Sleeps like [`park`], but only until `deadline`; false if that passed.
#[track_caller]
pub fn park_until(deadline: Deadline) -> bool {
    if deadline.has_passed() {
        return false;
    }
    if explore::is_active() {
        explore::park(Some(deadline.as_ns()));
    } else {
        std::thread::park_timeout(Duration::from_nanos(deadline.remaining_ns()));
    }
    !deadline.has_passed()
}

/// Lets other threads run first.
pub fn yield_now() {
    if explore::is_active() {
        explore::yield_now();
    } else {
        std::thread::yield_now();
    }
}

/// Sleeps until the clock passes `deadline`.
pub fn sleep_until(deadline: Deadline) {
    while park_until(deadline) {}
}

/// Nanoseconds since some time before.
pub fn now_ns() -> u64 {
    if explore::is_active() {
        explore::now_ns()
    } else {
        START.elapsed().as_nanos() as u64
    }
}

/// Number of CPUs that threads run on.
pub fn cpu_count() -> usize {
    1
}

/// The most CPUs that there may be.
pub fn cpu_limit() -> usize {
    1
}

/// Each CPU is a core of its own.
pub fn topology() -> Arc<Topology> {
    Arc::new(Topology::new(Levels::NONE, 0..cpu_count() as u32))
}

/// Keeps the CPU to the calling thread while it exists (on the host: does nothing).
#[derive(Debug)]
pub struct PreemptGuard(());

/// Forbids preemption until the [`PreemptGuard`] is dropped.
pub fn preempt_disable() -> PreemptGuard {
    PreemptGuard(())
}

/// Stands for the raised priority, which the host does not have.
#[derive(Debug)]
pub struct Raised(());

/// Raises the calling thread until the [`Raised`] is dropped.
pub fn raise(_: u8) -> Raised {
    Raised(())
}
