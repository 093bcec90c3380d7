//! Tasks spread over the CPUs of the kernel, without preemption among them: multicore IncludeOS,
//! section III.
//!
//! There is a worker thread for each CPU, pinned there, made when it is first needed, and asleep
//! until there is work, so that its CPU halts. [`run`] wakes as many as there are tasks for; each
//! takes one task after the other and runs it to its end. Threads of one core share its units:
//! which CPUs are used first is a policy ([`prefer`]). CPUs may come and go: a run uses those that
//! there are when it begins, and the worker of one that leaves meanwhile goes on elsewhere.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lfmutex::{Mutex, Once, Semaphore};
use task::{CpuId, NoMemory};
pub use topology::Siblings;
use topology::Topology;

/// Something to do for every worker that is woken.
trait Work: Send + Sync {
    fn work(self: Arc<Self>, slot: usize);
}

struct Worker {
    /// One permit for each run it is to take part in.
    wanted: Semaphore,
    /// The run, and the slot of the worker's results.
    work: Mutex<Option<(Arc<dyn Work>, usize)>>,
}

/// The workers, by CPU; a place is empty until its worker is first needed.
struct Pool {
    workers: Box<[Once<Arc<Worker>>]>,
    siblings: Siblings,
    /// Held during a run.
    one_at_a_time: Mutex<()>,
}

/// Results of one worker's tasks, with the tasks' numbers.
type Slot<R> = Mutex<Vec<(usize, R)>>;

/// Tasks under way.
struct Run<F, R> {
    n: usize,
    task: F,
    /// The first task that nobody has taken.
    next: AtomicUsize,
    slots: Box<[Slot<R>]>,
    /// One permit for each worker that is done.
    done: Arc<Semaphore>,
}

impl<F: Fn(usize) -> R + Send + Sync, R: Send> Run<F, R> {
    fn take_tasks(&self, slot: usize) {
        // Nobody else is in this slot before the run's end.
        let mut results = self.slots[slot].lock();
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.n {
                return;
            }
            results.push((i, (self.task)(i)));
        }
    }
}

impl<F: Fn(usize) -> R + Send + Sync, R: Send> Work for Run<F, R> {
    fn work(self: Arc<Self>, slot: usize) {
        self.take_tasks(slot);
        let done = self.done.clone();
        // What the closure holds is gone when the caller goes on.
        drop(self);
        done.release(1);
    }
}

/// The wish of [`prefer`]: [`Siblings::First`].
static SIBLINGS_FIRST: AtomicBool = AtomicBool::new(false);

/// Says which CPUs are used first where two are siblings of one core: [`Siblings::Last`] unless
/// told. To be called before the first [`run`].
pub fn prefer(siblings: Siblings) {
    SIBLINGS_FIRST.store(siblings == Siblings::First, Ordering::Relaxed);
}

/// The order of CPUs that [`prefer`] set last.
fn preferred() -> Siblings {
    if SIBLINGS_FIRST.load(Ordering::Relaxed) {
        Siblings::First
    } else {
        Siblings::Last
    }
}

/// Runs `task` for each number below `n`, each to its end on one of the CPUs, and returns the
/// results in order. A single task is run by the caller, and so are all where there is one CPU, or
/// no memory for workers. One run at a time; tasks may not run tasks. Thread context only.
pub fn run<R: Send + 'static>(
    n: usize,
    task: impl Fn(usize) -> R + Send + Sync + 'static,
) -> Vec<R> {
    static POOL: Once<Pool> = Once::new();
    POOL.call_once(|| Pool::new(task::cpu_limit(), preferred()))
        .run(&task::topology(), n, task)
}

impl Pool {
    /// A pool for so many CPUs at most.
    fn new(limit: usize, siblings: Siblings) -> Self {
        Self {
            workers: (0..limit).map(|_| Once::new()).collect(),
            siblings,
            one_at_a_time: Mutex::new(()),
        }
    }

    fn run<R: Send + 'static>(
        &self,
        topology: &Topology,
        n: usize,
        task: impl Fn(usize) -> R + Send + Sync + 'static,
    ) -> Vec<R> {
        // Those first that are used first.
        let order = topology.order(self.siblings);
        let cpus = order.len();
        if n < 2 || cpus < 2 {
            return (0..n).map(task).collect();
        }
        let run = Arc::new(Run {
            n,
            task,
            next: AtomicUsize::new(0),
            slots: (0..cpus).map(|_| Mutex::new(Vec::new())).collect(),
            done: Arc::new(Semaphore::new(0)),
        });
        let alone = self.one_at_a_time.lock();
        let mut woken = 0;
        for worker in order.iter().take(n).map_while(|cpu| self.worker(*cpu).ok()) {
            *worker.work.lock() = Some((run.clone(), woken));
            worker.wanted.release(1);
            woken += 1;
        }
        if woken == 0 {
            run.take_tasks(0);
        }
        for _ in 0..woken {
            run.done.acquire();
        }
        drop(alone);
        let mut results: Vec<_> = run
            .slots
            .iter()
            .flat_map(|slot| core::mem::take(&mut *slot.lock()))
            .collect();
        results.sort_unstable_by_key(|(i, _)| *i);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// The worker of a CPU. A run is under way.
    fn worker(&self, cpu: usize) -> Result<&Arc<Worker>, NoMemory> {
        if self.workers[cpu].get().is_none() {
            let worker = Arc::new(Worker {
                wanted: Semaphore::new(0),
                work: Mutex::new(None),
            });
            let me = worker.clone();
            task::spawn(
                &format!("tasks/{cpu}"),
                Some(CpuId(cpu as u32)),
                move || {
                    loop {
                        me.wanted.acquire();
                        // Its CPU had left, and may be back.
                        let own = task::current();
                        if own.is_unbound() {
                            own.set_affinity(&mask_of(cpu));
                        }
                        let work = me.work.lock().take();
                        if let Some((work, slot)) = work {
                            work.work(slot);
                        }
                    }
                },
            )?;
            return Ok(self.workers[cpu].call_once(|| worker));
        }
        self.workers[cpu].get().ok_or(NoMemory)
    }
}

/// The mask of one CPU, for its worker.
fn mask_of(cpu: usize) -> Vec<u64> {
    let mut mask = vec![0; cpu / 64 + 1];
    mask[cpu / 64] = 1 << (cpu % 64);
    mask
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Arc, Barrier};
    use std::thread;

    use topology::{Levels, Topology};

    use super::{Pool, Siblings, prefer, preferred};

    /// A pool, and CPUs that are cores of their own.
    struct Alone(Pool, Topology);

    impl Alone {
        fn new(cpus: u32) -> Self {
            Self(
                Pool::new(8, Siblings::Last),
                Topology::new(Levels::NONE, 0..cpus),
            )
        }

        fn run<R: Send + 'static>(
            &self,
            n: usize,
            task: impl Fn(usize) -> R + Send + Sync + 'static,
        ) -> Vec<R> {
            self.0.run(&self.1, n, task)
        }
    }

    #[test]
    fn each_task_runs_once_on_one_of_the_workers() {
        let pool = Alone::new(3);
        for n in [0, 1, 2, 3, 500] {
            let results = pool.run(n, |i| (i, thread::current().id()));
            assert!(results.iter().map(|result| result.0).eq(0..n));
            assert!(
                results
                    .into_iter()
                    .map(|result| result.1)
                    .collect::<HashSet<_>>()
                    .len()
                    <= 3
            );
        }
    }

    #[test]
    fn the_caller_does_what_needs_no_worker() {
        let me = thread::current().id();
        assert_eq!(Alone::new(3).run(1, |_| thread::current().id()), [me]);
        assert_eq!(Alone::new(1).run(3, |_| thread::current().id()), [me; 3]);
        assert!(
            Alone::new(2)
                .run(2, |_| thread::current().id())
                .iter()
                .all(|worker| *worker != me)
        );
    }

    #[test]
    fn siblings_are_last_unless_told() {
        assert_eq!(preferred(), Siblings::Last);
        for wish in [Siblings::First, Siblings::Last] {
            prefer(wish);
            assert_eq!(preferred(), wish);
        }
    }

    #[test]
    fn callers_take_turns() {
        static POOL: lfmutex::Once<Alone> = lfmutex::Once::new();
        thread::scope(|scope| {
            for caller in 0..3 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        let results = POOL.call_once(|| Alone::new(2)).run(5, move |i| i + caller);
                        assert_eq!(results, (caller..caller + 5).collect::<Vec<_>>());
                    }
                });
            }
        });
    }

    #[test]
    fn a_run_uses_the_cpus_that_there_are() {
        let pool = Pool::new(8, Siblings::Last);
        let all_there = |cpus: u32| {
            let barrier = Arc::new(Barrier::new(cpus as usize));
            let wait = move |_| {
                barrier.wait();
                task::current().name()
            };
            let topology = Topology::new(Levels::NONE, 0..cpus);
            let names = pool.run(&topology, cpus as usize, wait);
            names.into_iter().collect::<HashSet<_>>().len()
        };
        assert_eq!([2, 5, 3, 8].map(all_there), [2, 5, 3, 8]);
    }

    /// The CPUs that `n` tasks at a time run on in a machine whose cores have two threads each,
    /// listed after one another.
    fn used(siblings: Siblings, n: usize) -> Vec<String> {
        // An Intel processor with a leaf 0xB: one bit for the thread, two for the core.
        let levels = Levels::read(|leaf, part| match (leaf, part) {
            (0, _) => [0xb, 0x756e_6547, 0, 0],
            (0xb, 0) => [1, 2, 1 << 8, 0],
            (0xb, 1) => [3, 8, 2 << 8, 0],
            _ => [0; 4],
        });
        let pool = Alone(Pool::new(8, siblings), Topology::new(levels, 0..8));
        let all_there = Arc::new(Barrier::new(n));
        let mut used = pool.run(n, move |_| {
            all_there.wait();
            task::current().name()
        });
        used.sort();
        used
    }

    #[test]
    fn siblings_are_used_last_or_first() {
        assert_eq!(used(Siblings::Last, 3), ["tasks/0", "tasks/2", "tasks/4"]);
        assert_eq!(used(Siblings::First, 3), ["tasks/0", "tasks/1", "tasks/2"]);
        assert_eq!(
            used(Siblings::Last, 6),
            [
                "tasks/0", "tasks/1", "tasks/2", "tasks/3", "tasks/4", "tasks/6"
            ]
        );
        assert_eq!(used(Siblings::Last, 8), used(Siblings::First, 8));
    }
}
