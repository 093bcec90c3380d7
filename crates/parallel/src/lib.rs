//! Tasks spread over the CPUs of the kernel, without preemption among them: multicore IncludeOS, section III.
//!
//! There is a worker thread for each CPU, pinned there, made when it is first needed, and asleep until there is work, so that its
//! CPU halts. [`run`] wakes as many as there are tasks for; each takes one task after the other and runs it to its end.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use lfmutex::{Mutex, Once, Semaphore};
use task::{CpuId, NoMemory};

/// Something to do for every worker that is woken.
trait Work: Send + Sync {
    fn work(self: Arc<Self>, slot: usize);
}

struct Worker {
    /// One permit for each run it is to take part in.
    wanted: Semaphore,
    work: Mutex<Option<Arc<dyn Work>>>,
}

/// The workers, by CPU; a place is empty until its worker is first needed.
struct Pool {
    workers: Box<[Once<Arc<Worker>>]>,
    /// Held during a run.
    one_at_a_time: Mutex<()>,
}

/// What one CPU's tasks returned, with their numbers.
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

/// Runs `task` for each number below `n`, each to its end on one of the CPUs, and returns the results in order. A single task is
/// run by the caller, and so are all where there is one CPU, or no memory for workers. One run at a time; tasks may not run
/// tasks. Thread context only.
pub fn run<R: Send + 'static>(n: usize, task: impl Fn(usize) -> R + Send + Sync + 'static) -> Vec<R> {
    static POOL: Once<Pool> = Once::new();
    POOL.call_once(|| Pool::new(task::cpu_count())).run(n, task)
}

impl Pool {
    fn new(cpus: usize) -> Self {
        Self { workers: (0..cpus).map(|_| Once::new()).collect(), one_at_a_time: Mutex::new(()) }
    }

    fn run<R: Send + 'static>(&self, n: usize, task: impl Fn(usize) -> R + Send + Sync + 'static) -> Vec<R> {
        let cpus = self.workers.len();
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
        for worker in (0..n.min(cpus)).map_while(|cpu| self.worker(cpu).ok()) {
            *worker.work.lock() = Some(run.clone());
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
        let mut results: Vec<_> = run.slots.iter().flat_map(|slot| core::mem::take(&mut *slot.lock())).collect();
        results.sort_unstable_by_key(|(i, _)| *i);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// The worker of a CPU. A run is under way.
    fn worker(&self, cpu: usize) -> Result<&Arc<Worker>, NoMemory> {
        if self.workers[cpu].get().is_none() {
            let worker = Arc::new(Worker { wanted: Semaphore::new(0), work: Mutex::new(None) });
            let me = worker.clone();
            task::spawn(&format!("tasks/{cpu}"), Some(CpuId(cpu as u32)), move || {
                loop {
                    me.wanted.acquire();
                    let work = me.work.lock().take();
                    if let Some(work) = work {
                        work.work(cpu);
                    }
                }
            })?;
            return Ok(self.workers[cpu].call_once(|| worker));
        }
        self.workers[cpu].get().ok_or(NoMemory)
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;
    use std::collections::HashSet;
    use std::thread;

    #[test]
    fn each_task_runs_once_on_one_of_the_workers() {
        let pool = Pool::new(3);
        for n in [0, 1, 2, 3, 500] {
            let results = pool.run(n, |i| (i, thread::current().id()));
            assert!(results.iter().map(|result| result.0).eq(0..n));
            assert!(results.into_iter().map(|result| result.1).collect::<HashSet<_>>().len() <= 3);
        }
    }

    #[test]
    fn callers_take_turns() {
        static POOL: lfmutex::Once<Pool> = lfmutex::Once::new();
        thread::scope(|scope| {
            for caller in 0..3 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        let results = POOL.call_once(|| Pool::new(2)).run(5, move |i| i + caller);
                        assert_eq!(results, (caller..caller + 5).collect::<Vec<_>>());
                    }
                });
            }
        });
    }
}
