//! Explores the schedules of a few threads: all with at most so many pre-emptions, then random ones
//! (`docs/locks.md`).
//!
//! A *model* is a closure that makes what it is about, [`spawn`]s threads and says by assertions
//! what must hold. [`Model::check`] runs it again and again. Its threads are real ones, but one at
//! a time has the turn; at each *decision point* (before a lock is taken, an atomic is touched, a
//! thread is woken, and where one sleeps) the explorer decides who goes on. What it decides it
//! enumerates depth first, first without pre-emptions, then with one, then with two ("context
//! bounding": Musuvathi and Qadeer, "Iterative context bounding for systematic testing of
//! multithreaded programs", PLDI 2007), and then draws at random by priorities that change at
//! random points ("PCT": Burckhardt et al., "A randomized scheduler with probabilistic guarantees
//! of finding bugs", ASPLOS 2010).
//!
//! A failure is a panic in a thread, a deadlock (all sleep, or wait for locks), a thread that slept
//! until its deadline although its condition was true, or a schedule without end. It is reported
//! with the schedule, which [`SCHEDULE`] replays, and with each thread's last steps.
//!
//! Time stands still while anybody runs; that it passes up to the next deadline is one of the
//! decisions.
//!
//! Locks and sleeping are those of whoever uses this: the host double of `task` asks [`is_active`]
//! and calls the functions below. They are to be called by threads of a model only.
#![forbid(unsafe_code)]

mod model;
mod plan;
mod run;

use std::any::Any;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

pub use model::{Model, PREEMPTIONS, RANDOM, Report, SCHEDULE, SEED};
use run::{Run, Wait};

/// Thread-local data of a model's thread, of whatever type the crate that drives the explorer wants
/// ([`kept`]).
pub type Kept = Arc<dyn Any + Send + Sync>;

/// A place in a run: which run, and which of its threads.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) run: Arc<Run>,
    pub(crate) me: usize,
}

thread_local! {
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

/// Gives the calling thread its place, or none.
pub(crate) fn sit(seat: Option<Seat>) {
    SEAT.with(|mine| *mine.borrow_mut() = seat);
}

fn seat() -> Option<Seat> {
    SEAT.with(|mine| mine.borrow().clone())
}

fn my_seat() -> Seat {
    seat().expect("only threads of a model call this")
}

/// Whether the calling thread is one of a model.
#[inline]
#[must_use]
pub fn is_active() -> bool {
    SEAT.with(|mine| mine.borrow().is_some())
}

/// The calling thread's number, if it is one of a model; the first is 0.
#[must_use]
pub fn number() -> Option<usize> {
    seat().map(|seat| seat.me)
}

/// A decision point, before the caller does `what`. Of a thread outside of models: nothing.
#[inline]
#[track_caller]
pub fn point(what: &'static str) {
    if is_active() {
        let seat = my_seat();
        seat.run.point(seat.me, what, Location::caller());
    }
}

/// Lets others go first, if any can. A thread that yields until something happens is thus no
/// endless loop.
#[track_caller]
pub fn yield_now() {
    let seat = my_seat();
    seat.run.yields(seat.me, Location::caller());
}

/// Mode in which a lock is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// Nobody else has the lock.
    Exclusive,
    /// Others may have it in the same mode.
    Shared,
}

impl LockMode {
    /// Name of taking a lock in this mode, for a trace.
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Exclusive => "lock",
            Self::Shared => "lock shared",
        }
    }
}

/// Takes a lock, named by its address; waits while that cannot be. The caller then takes the real
/// lock, which no other thread of the model has against the mode.
#[track_caller]
pub fn acquire(lock: usize, mode: LockMode) {
    let seat = my_seat();
    seat.run.acquire(seat.me, lock, mode, Location::caller());
}

/// Takes a lock if nobody has it.
#[track_caller]
pub fn try_acquire(lock: usize) -> bool {
    let seat = my_seat();
    seat.run.try_acquire(seat.me, lock, Location::caller())
}

/// Gives a lock up. The caller has given up the real one.
pub fn release(lock: usize) {
    let seat = my_seat();
    seat.run.release(seat.me, lock);
}

/// Takes the calling thread's permit, or sleeps until there is one or the clock shows
/// `deadline_ns`.
#[track_caller]
pub fn park(deadline_ns: Option<u64>) {
    let seat = my_seat();
    seat.run.park(seat.me, deadline_ns, Location::caller());
}

/// Gives a thread, by its number, its permit.
#[track_caller]
pub fn unpark(thread: usize) {
    let seat = my_seat();
    seat.run.unpark(seat.me, thread, Location::caller());
}

/// Gives up a lock that the caller has, sleeps at the address `queue` until notified, and takes the
/// lock again: a condition variable. The real lock is not held meanwhile.
#[track_caller]
pub fn wait_at(queue: usize, lock: usize) {
    let seat = my_seat();
    seat.run.wait_at(seat.me, queue, lock, Location::caller());
}

/// Ends the sleep of the first `most` that wait at an address.
#[track_caller]
pub fn notify_at(queue: usize, most: usize) {
    let seat = my_seat();
    seat.run.notify_at(seat.me, queue, most, Location::caller());
}

/// The model's clock.
#[must_use]
pub fn now_ns() -> u64 {
    my_seat().run.now_ns()
}

/// Notes that a wait found its condition true: a failure if what ended its sleep was the deadline,
/// nothing else could have happened, and so nobody would have woken it.
pub fn wait_satisfied() {
    if let Some(seat) = seat() {
        seat.run.wait_satisfied(seat.me);
    }
}

/// The calling thread's local data. The first call in a thread makes it by `make`, which is given
/// the thread's number.
///
/// # Panics
/// Outside of a model.
pub fn kept(make: impl FnOnce(usize) -> Kept) -> Kept {
    let seat = my_seat();
    if let Some(kept) = seat.run.kept(seat.me) {
        return kept;
    }
    let kept = make(seat.me);
    seat.run.keep(seat.me, kept.clone());
    kept
}

/// A thread of a model.
#[derive(Debug)]
pub struct Handle(usize);

impl Handle {
    /// Waits for its end.
    #[track_caller]
    pub fn join(self) {
        let seat = my_seat();
        seat.run
            .sleep(seat.me, Wait::End(self.0), "join", Location::caller());
    }
}

/// Starts a thread in the calling thread's model.
#[track_caller]
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Handle {
    spawn_with(name, |_| None, body)
}

/// The same for a thread that begins with what `kept` makes of its number.
#[track_caller]
pub fn spawn_with(
    name: &str,
    kept: impl FnOnce(usize) -> Option<Kept>,
    body: impl FnOnce() + Send + 'static,
) -> Handle {
    let seat = my_seat();
    let number = seat.run.begin(name);
    if let Some(kept) = kept(number) {
        seat.run.keep(number, kept);
    }
    model::start(&seat.run, number, body);
    seat.run.point(seat.me, "spawn", Location::caller());
    Handle(number)
}
