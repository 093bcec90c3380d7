//! Sleeping locks that are lock-free inside (decision 003).
//!
//! The mutex is OSv's (Kivity et al., USENIX ATC 2014, section 2.1; the hand-off protocol is
//! Gidenstam and Papatriantafilou's "LFthreads", 2007) with bounded barging: an uncontended lock
//! and unlock are one atomic each, a loser puts itself on a lock-free list and sleeps, and nobody
//! ever spins, so a lock holder that is preempted costs others nothing but the wait.
//! `docs/locks.md` has guarantee and cost of each lock.
//!
//! What is needed of the world is the [`Scheduler`] trait: who am I, sleep, wake. The kernel's
//! threads implement it; on the host, the standard library's threads do, so that everything built
//! on these locks runs in ordinary unit tests.
#![cfg_attr(target_os = "none", no_std)]

mod condvar;
mod fifo;
#[cfg(all(test, loom))]
mod model;
mod mutex;
mod once;
mod order;
mod raw;
mod rwlock;
mod scheduler;
mod semaphore;
mod sync;

pub use condvar::Condvar;
pub use mutex::{Mutex, MutexGuard};
pub use once::Once;
pub use raw::RawMutex;
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use scheduler::{Scheduler, Token, Wait, scheduler, set_scheduler};
pub use semaphore::Semaphore;
