//! Grace periods.

use alloc::vec::Vec;
use core::mem;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};

use lfmutex::{Mutex, MutexGuard};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Number of retired values that one grace period waits for, at most.
pub const BATCH: usize = 32;
/// When so many more wait and it is not over, CPUs are asked for it.
const KICK_THRESHOLD: usize = 2 * BATCH;
/// At most so many wait for the next one. Who retires one more sleeps until the present grace
/// period is over.
pub const LIMIT: usize = 16 * BATCH;

/// CPUs, as grace periods see them: read-side critical sections and quiescent states.
///
/// # Safety
/// After a full fence by the calling thread, [`Self::quiescent_states`] must have changed, or
/// [`Self::is_idle`] be true, only if the CPU was outside every [`Self::read_section`] some time
/// after that fence, and sections that begin there later see what was stored before it. A counter
/// that is increased at such a time, with a full fence after it, satisfies that.
pub unsafe trait Cpus: Sync {
    /// Number of CPUs.
    fn count(&self) -> usize;
    /// Changes with each quiescent state of a CPU.
    fn quiescent_states(&self, cpu: usize) -> u64;
    /// Whether it is in one now.
    fn is_idle(&self, cpu: usize) -> bool;
    /// The calling thread is in none: lets its CPU pass one.
    fn quiescent_state(&self);
    /// Makes a CPU pass one soon.
    fn kick(&self, cpu: usize);
    /// Makes all pass one, and sleeps until `over` says that they have.
    fn sleep_until(&self, over: &dyn Fn() -> bool);
    /// Runs a reader's section: the CPU passes no quiescent state in it.
    fn read_section<R>(&self, section: impl FnOnce() -> R) -> R;
}

struct Waiting<G> {
    /// Retired since the grace period under way began.
    next: Vec<G>,
    /// Freed when it is over; empty if none is under way.
    now: Vec<G>,
    /// The CPUs' counters at its beginning.
    marks: Vec<u64>,
}

/// CPUs, and what waits for them to pass quiescent states. `G` is dropped after a grace period.
pub struct Domain<C, G> {
    cpus: C,
    waiting: Mutex<Waiting<G>>,
    periods: AtomicU64,
}

impl<C: Cpus, G> Domain<C, G> {
    /// A domain in which nothing waits.
    #[cfg(not(loom))]
    pub const fn new(cpus: C) -> Self {
        let waiting = Waiting {
            next: Vec::new(),
            now: Vec::new(),
            marks: Vec::new(),
        };
        Self {
            cpus,
            waiting: Mutex::new(waiting),
            periods: AtomicU64::new(0),
        }
    }

    /// A domain in which nothing waits.
    #[cfg(loom)]
    pub fn new(cpus: C) -> Self {
        let waiting = Waiting {
            next: Vec::new(),
            now: Vec::new(),
            marks: Vec::new(),
        };
        Self {
            cpus,
            waiting: Mutex::new(waiting),
            periods: AtomicU64::new(0),
        }
    }

    /// The CPUs of this domain.
    pub fn cpus(&self) -> &C {
        &self.cpus
    }

    /// Number of grace periods that are over.
    pub fn periods(&self) -> u64 {
        self.periods.load(Ordering::Relaxed)
    }

    /// Drops `garbage` after a grace period; it has been unlinked. May free what waited before.
    /// Thread context only, outside of sections; sleeps if too much waits, or there is no memory
    /// to note it in.
    pub fn retire(&self, garbage: G) {
        let mut waiting = self.waiting.lock();
        if waiting.next.try_reserve(1).is_err() {
            drop(waiting);
            self.synchronize();
            return drop(garbage);
        }
        waiting.next.push(garbage);
        if !waiting.now.is_empty() || waiting.next.len() >= BATCH {
            self.advance(waiting);
        }
    }

    /// Sleeps until every CPU has passed a quiescent state since the call. Needs no memory.
    #[cold]
    fn synchronize(&self) {
        // One caller sleeps at a time.
        let _waiting = self.waiting.lock();
        self.pass_all();
    }

    /// Frees all that was retired before the call: sleeps until nobody can look at it any more.
    /// Needs no memory. Thread context only, outside of sections.
    pub fn drain(&self) {
        let mut waiting = self.waiting.lock();
        let garbage = (mem::take(&mut waiting.now), mem::take(&mut waiting.next));
        self.pass_all();
        self.periods.fetch_add(1, Ordering::Relaxed);
        drop(waiting);
        // Not under the lock: dropping may take long.
        drop(garbage);
    }

    /// Sleeps until every CPU has passed a quiescent state. The caller holds the lock.
    fn pass_all(&self) {
        // Unlinked before the counters are read.
        fence(Ordering::SeqCst);
        for cpu in 0..self.cpus.count() {
            let mark = self.cpus.quiescent_states(cpu);
            let over = || self.has_passed(cpu, mark);
            if !over() {
                self.cpus.sleep_until(&over);
            }
        }
    }

    /// Frees what has waited long enough, and begins a grace period if enough waits for one.
    #[inline(never)]
    fn advance(&self, mut waiting: MutexGuard<'_, Waiting<G>>) {
        let mut freed = Vec::new();
        if !waiting.now.is_empty() {
            self.cpus.quiescent_state();
        }
        if !waiting.now.is_empty() && self.is_over(&waiting.marks) {
            freed = mem::take(&mut waiting.now);
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
        if waiting.next.len() >= BATCH {
            if waiting.now.is_empty() {
                self.begin(&mut waiting);
            } else if waiting.next.len() >= LIMIT {
                let marks = mem::take(&mut waiting.marks);
                // Others that retire wait for the lock meanwhile, which keeps them from retiring
                // more.
                self.cpus.sleep_until(&|| self.is_over(&marks));
                waiting.marks = marks;
                // Nothing was freed above: what waits now did not wait long enough then.
                freed = mem::take(&mut waiting.now);
                self.periods.fetch_add(1, Ordering::Relaxed);
                self.begin(&mut waiting);
            } else if waiting.next.len().is_multiple_of(KICK_THRESHOLD) {
                self.lagging(&waiting.marks)
                    .for_each(|cpu| self.cpus.kick(cpu));
            }
        }
        drop(waiting);
        // Not under the lock: dropping may take long.
        drop(freed);
    }

    /// Begins a grace period for what was retired so far; later, if there is no memory to note the
    /// counters in.
    fn begin(&self, waiting: &mut Waiting<G>) {
        let cpus = self.cpus.count();
        waiting.marks.clear();
        if waiting.marks.try_reserve(cpus).is_err() {
            return;
        }
        mem::swap(&mut waiting.now, &mut waiting.next);
        // Unlinked before the counters are read.
        fence(Ordering::SeqCst);
        waiting
            .marks
            .extend((0..cpus).map(|cpu| self.cpus.quiescent_states(cpu)));
    }

    /// CPUs that may still be in the section they were in at the beginning.
    fn lagging<'a>(&'a self, marks: &'a [u64]) -> impl Iterator<Item = usize> + 'a {
        marks
            .iter()
            .enumerate()
            .filter(|&(cpu, &mark)| !self.has_passed(cpu, mark))
            .map(|(cpu, _)| cpu)
    }

    /// Whether a CPU has passed a quiescent state since its counter was `mark`.
    fn has_passed(&self, cpu: usize, mark: u64) -> bool {
        self.cpus.quiescent_states(cpu) != mark || self.cpus.is_idle(cpu)
    }

    fn is_over(&self, marks: &[u64]) -> bool {
        self.lagging(marks).next().is_none()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use core::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::Mutex as StdMutex;

    use super::*;

    /// Two CPUs that pass quiescent states when they are told to, and keep what they are asked.
    #[derive(Default)]
    struct Told {
        passed: [AtomicU64; 2],
        idle: [AtomicBool; 2],
        here: AtomicUsize,
        slept: AtomicUsize,
        nudged: StdMutex<Vec<usize>>,
    }

    // SAFETY: there are no sections.
    unsafe impl Cpus for &Told {
        fn count(&self) -> usize {
            2
        }
        fn quiescent_states(&self, cpu: usize) -> u64 {
            self.passed[cpu].load(Ordering::SeqCst)
        }
        fn is_idle(&self, cpu: usize) -> bool {
            self.idle[cpu].load(Ordering::SeqCst)
        }
        fn quiescent_state(&self) {
            self.here.fetch_add(1, Ordering::SeqCst);
        }
        fn kick(&self, cpu: usize) {
            self.nudged.lock().unwrap().push(cpu);
        }
        fn sleep_until(&self, over: &dyn Fn() -> bool) {
            assert!(!over());
            self.slept.fetch_add(1, Ordering::SeqCst);
            self.pass(0);
            self.pass(1);
            assert!(over());
        }
        fn read_section<R>(&self, section: impl FnOnce() -> R) -> R {
            section()
        }
    }

    impl Told {
        fn pass(&self, cpu: usize) {
            self.passed[cpu].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Counts those that were freed.
    struct Garbage<'a>(&'a AtomicUsize);
    impl Drop for Garbage<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_waits_is_freed_when_every_cpu_has_passed() {
        let (cpus, freed) = (Told::default(), AtomicUsize::new(0));
        let domain = Domain::new(&cpus);
        let retire = |count: usize| {
            (0..count).for_each(|_| domain.retire(Garbage(&freed)));
            (freed.load(Ordering::SeqCst), domain.periods())
        };
        // Nothing begins before a batch is full: what CPUs passed before that does not count.
        assert_eq!(retire(BATCH - 1), (0, 0));
        cpus.pass(0);
        cpus.pass(1);
        assert_eq!((retire(1), retire(1)), ((0, 0), (0, 0)));
        assert_eq!(
            cpus.here.load(Ordering::SeqCst),
            1,
            "the CPU that retires is in no section"
        );
        cpus.pass(0);
        assert_eq!(retire(1), (0, 0), "the other one may be in one");
        cpus.pass(1);
        assert_eq!(retire(1), (BATCH, 1));
        // The next one needs a batch again. A CPU that is idle has passed.
        assert_eq!(retire(BATCH - 4), (BATCH, 1));
        assert_eq!((retire(1), retire(1)), ((BATCH, 1), (BATCH, 1)));
        cpus.pass(1);
        cpus.idle[0].store(true, Ordering::SeqCst);
        assert_eq!(retire(1), (2 * BATCH, 2));
        assert_eq!(
            (
                cpus.slept.load(Ordering::SeqCst),
                cpus.nudged.lock().unwrap().len()
            ),
            (0, 0)
        );
    }

    #[test]
    fn who_lags_is_nudged_and_in_the_end_waited_for() {
        let (cpus, freed) = (Told::default(), AtomicUsize::new(0));
        let domain = Domain::new(&cpus);
        let retire = |count: usize| {
            (0..count).for_each(|_| domain.retire(Garbage(&freed)));
            freed.load(Ordering::SeqCst)
        };
        retire(BATCH);
        cpus.pass(0);
        assert_eq!(retire(KICK_THRESHOLD - 1), 0);
        assert!(cpus.nudged.lock().unwrap().is_empty());
        retire(1);
        assert_eq!(
            *cpus.nudged.lock().unwrap(),
            [1],
            "only the one that has not passed"
        );
        retire(KICK_THRESHOLD - 1);
        assert_eq!(cpus.nudged.lock().unwrap().len(), 1);
        retire(1);
        assert_eq!(*cpus.nudged.lock().unwrap(), [1, 1]);
        // As many as may wait: one more waits itself.
        assert_eq!(
            (
                retire(LIMIT - 2 * KICK_THRESHOLD - 1),
                cpus.slept.load(Ordering::SeqCst)
            ),
            (0, 0)
        );
        assert_eq!(
            (
                retire(1),
                cpus.slept.load(Ordering::SeqCst),
                domain.periods()
            ),
            (BATCH, 1, 1)
        );
        // Those wait for the next grace period, which began then.
        assert_eq!(retire(1), BATCH);
        cpus.pass(0);
        cpus.pass(1);
        assert_eq!((retire(1), domain.periods()), (BATCH + LIMIT, 2));
    }

    #[test]
    fn a_drain_frees_all_that_waits_when_every_cpu_has_passed() {
        let (cpus, freed) = (Told::default(), AtomicUsize::new(0));
        let domain = Domain::new(&cpus);
        // One batch waits for its grace period, the rest for one to begin.
        (0..BATCH + 3).for_each(|_| domain.retire(Garbage(&freed)));
        cpus.idle[1].store(true, Ordering::SeqCst);
        domain.drain();
        assert_eq!(freed.load(Ordering::SeqCst), BATCH + 3);
        assert_eq!(
            cpus.slept.load(Ordering::SeqCst),
            1,
            "once for the CPU that is not idle"
        );
        // What is retired from then on waits as ever.
        (0..BATCH).for_each(|_| domain.retire(Garbage(&freed)));
        assert_eq!(freed.load(Ordering::SeqCst), BATCH + 3);
    }

    #[test]
    fn a_grace_period_begins_with_a_whole_batch() {
        let (cpus, freed) = (Told::default(), AtomicUsize::new(0));
        let domain = Domain::new(&cpus);
        let retire = |count: usize| {
            (0..count).for_each(|_| domain.retire(Garbage(&freed)));
            freed.load(Ordering::SeqCst)
        };
        let pass = || (0..2).for_each(|cpu| cpus.pass(cpu));
        retire(BATCH);
        retire(BATCH - 2);
        pass();
        // The first batch is over; what has been retired since is one less than a batch.
        assert_eq!(retire(1), BATCH);
        pass();
        assert_eq!(retire(1), BATCH, "theirs begins only now");
        pass();
        assert_eq!(retire(1), 2 * BATCH);
        assert_eq!(domain.periods(), 2);
    }
}
