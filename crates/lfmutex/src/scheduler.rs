//! Interface between the locks and the scheduler: sleeping, waking, statistics.

use core::panic::Location;

/// Names a thread to [`Scheduler::unpark`]. A plain number: waking a thread that is gone must be
/// harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(usize);

impl Token {
    /// A token from the number its scheduler made it of.
    #[must_use]
    pub const fn from_raw(raw: usize) -> Self {
        Self(raw)
    }

    /// The number, to be kept in an atomic.
    #[must_use]
    pub const fn into_raw(self) -> usize {
        self.0
    }
}

/// A wait for a lock, as [`Scheduler::wait_begins`] describes it to [`Scheduler::wait_ends`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait {
    /// Number of the place in the source that waits.
    pub site: usize,
    /// Since when, in nanoseconds.
    pub since_ns: u64,
}

/// Sleeping and waking, with the permit semantics of `std::thread::park`: a wake-up that comes
/// before the sleep is not lost, two of them count as one, and a sleep may end for no reason.
pub trait Scheduler: Sync {
    /// The calling thread.
    fn current(&self) -> Token;

    /// Sleeps until the calling thread's permit is there, and takes it. Thread context only.
    fn park(&self);

    /// Gives the thread its permit. May be called anywhere, interrupt handlers included. A thread
    /// that has ended in the meantime is left alone.
    fn unpark(&self, thread: Token);

    /// The calling thread begins to wait for a lock that code at `site` wants; the answer goes to
    /// [`Self::wait_ends`]. For statistics.
    fn wait_begins(&self, site: &'static Location<'static>) -> Wait {
        let _ = site;
        Wait::default()
    }

    /// The calling thread has the lock, after the wait that [`Self::wait_begins`] described.
    fn wait_ends(&self, wait: Wait) {
        let _ = wait;
    }

    /// False where the caller must not sleep (interrupt handlers, preemption disabled); for
    /// assertions.
    fn may_block(&self) -> bool;
}

#[cfg(any(target_os = "none", loom))]
mod imp {
    use super::{Scheduler, Token};

    /// Before threads exist there is one flow of control on one CPU: nothing is ever waited for.
    struct NoThreads;

    impl Scheduler for NoThreads {
        fn current(&self) -> Token {
            Token(0)
        }
        fn park(&self) {
            panic!("a lock is contended before there are threads");
        }
        fn unpark(&self, _: Token) {}
        fn may_block(&self) -> bool {
            true
        }
    }

    static NO_THREADS: NoThreads = NoThreads;
    static SCHEDULER: super::cell::WriteOnce = super::cell::WriteOnce::new();

    /// The scheduler in force.
    #[cfg(not(loom))]
    #[inline]
    pub fn scheduler() -> &'static dyn Scheduler {
        SCHEDULER.get().unwrap_or(&NO_THREADS)
    }

    /// Under the model checker, loom's own threads.
    #[cfg(loom)]
    pub fn scheduler() -> &'static dyn Scheduler {
        let _ = (&NO_THREADS, &SCHEDULER);
        &super::model::LOOM
    }

    /// Installs the scheduler.
    ///
    /// # Panics
    /// When called twice.
    pub fn set_scheduler(scheduler: &'static dyn Scheduler) {
        SCHEDULER.set(scheduler);
    }
}

#[cfg(any(target_os = "none", loom))]
mod cell {
    use core::cell::UnsafeCell;
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::Scheduler;

    const EMPTY: u8 = 0;
    const WRITING: u8 = 1;
    const SET: u8 = 2;

    /// A wide pointer written once and read by everybody after.
    pub(super) struct WriteOnce {
        state: AtomicU8,
        value: UnsafeCell<Option<&'static dyn Scheduler>>,
    }

    // SAFETY: `value` is written only by the one caller that moved `state` from EMPTY to WRITING,
    // and read only after SET was seen with acquire order, after which it is never written again.
    unsafe impl Sync for WriteOnce {}

    impl WriteOnce {
        pub(super) const fn new() -> Self {
            Self {
                state: AtomicU8::new(EMPTY),
                value: UnsafeCell::new(None),
            }
        }

        #[cfg_attr(loom, expect(dead_code, reason = "loom's threads stand in"))]
        pub(super) fn get(&self) -> Option<&'static dyn Scheduler> {
            if self.state.load(Ordering::Acquire) != SET {
                return None;
            }
            // SAFETY: SET was seen, so the value is complete and never changes again.
            unsafe { *self.value.get() }
        }

        pub(super) fn set(&self, value: &'static dyn Scheduler) {
            let first = self
                .state
                .compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
            assert!(first, "the scheduler is set once");
            // SAFETY: this caller alone moved the state to WRITING; nobody reads before SET.
            unsafe { *self.value.get() = Some(value) };
            self.state.store(SET, Ordering::Release);
        }
    }
}

#[cfg(not(any(target_os = "none", loom)))]
mod imp {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex};
    use std::thread::{self, Thread};

    use super::{Scheduler, Token};

    /// Host threads, found by a number of ours.
    static THREADS: LazyLock<Mutex<HashMap<usize, Thread>>> = LazyLock::new(Mutex::default);

    struct Registered(usize);

    impl Registered {
        fn new() -> Self {
            static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
            let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            THREADS
                .lock()
                .expect("no panic holds this lock")
                .insert(id, thread::current());
            Self(id)
        }
    }

    impl Drop for Registered {
        fn drop(&mut self) {
            THREADS
                .lock()
                .expect("no panic holds this lock")
                .remove(&self.0);
        }
    }

    std::thread_local! {
        static ME: Registered = Registered::new();
    }

    struct HostThreads;

    impl Scheduler for HostThreads {
        fn current(&self) -> Token {
            Token(ME.with(|me| me.0))
        }
        fn park(&self) {
            thread::park();
        }
        fn unpark(&self, thread: Token) {
            let thread = THREADS
                .lock()
                .expect("no panic holds this lock")
                .get(&thread.0)
                .cloned();
            if let Some(thread) = thread {
                thread.unpark();
            }
        }
        fn may_block(&self) -> bool {
            true
        }
    }

    /// The scheduler in force: the host's threads.
    pub fn scheduler() -> &'static dyn Scheduler {
        &HostThreads
    }

    /// On the host the standard library's threads are built in; there is nothing to set.
    pub fn set_scheduler(_: &'static dyn Scheduler) {}
}

#[cfg(loom)]
pub(crate) mod model {
    use loom::thread::{self, Thread};

    use super::{Scheduler, Token};

    pub(super) struct Loom;
    pub(super) static LOOM: Loom = Loom;

    loom::lazy_static! {
        static ref THREADS: loom::sync::Mutex<Vec<Thread>> = loom::sync::Mutex::new(Vec::new());
    }
    loom::thread_local! {
        static ME: std::cell::Cell<Option<usize>> = std::cell::Cell::new(None);
    }

    impl Scheduler for Loom {
        fn current(&self) -> Token {
            Token(ME.with(|me| {
                me.get().unwrap_or_else(|| {
                    let mut threads = THREADS.lock().expect("loom's lock is not poisoned");
                    threads.push(thread::current());
                    me.set(Some(threads.len() - 1));
                    threads.len() - 1
                })
            }))
        }
        fn park(&self) {
            thread::park();
        }
        fn unpark(&self, thread: Token) {
            let thread = THREADS.lock().expect("loom's lock is not poisoned")[thread.0].clone();
            thread.unpark();
        }
        fn may_block(&self) -> bool {
            true
        }
    }
}

pub use imp::{scheduler, set_scheduler};
