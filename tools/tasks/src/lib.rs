//! Tasks spread over the processors, without preemption: as in multicore IncludeOS (section III),
//! for programs.
//!
//! ```
//! let squares = tasks::run(100, |i| i * i);
//! assert_eq!(squares[7], 49);
//! ```
//!
//! There is a worker for each processor that the process may use, pinned there and asleep, so that
//! its processor halts. A run wakes as many as there are tasks for; each takes one task after the
//! other and runs it to its end, and sleeps again.
//!
//! It is the C library next to it (`tasks.h`) with closures and results.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

unsafe extern "C" {
    fn tasks_slots() -> c_uint;
    fn tasks_set_policy(policy: c_int);
    fn tasks_run(
        n: c_uint,
        task: unsafe extern "C" fn(c_uint, c_uint, *mut c_void),
        argument: *mut c_void,
    ) -> c_int;
}

/// Results of one processor's tasks, with the tasks' numbers; in cache lines of its own.
#[repr(align(128))]
struct Slot<R>(UnsafeCell<Vec<(usize, R)>>);

// SAFETY: the library runs one task at a time in a slot, and the slots are read after all tasks
// have ended.
unsafe impl<R: Send> Sync for Slot<R> {}

struct Run<'a, F, R> {
    task: &'a F,
    slots: &'a [Slot<R>],
    panic: &'a Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

unsafe extern "C" fn one<F: Fn(usize) -> R + Sync, R: Send>(
    i: c_uint,
    slot: c_uint,
    run: *mut c_void,
) {
    // SAFETY: `run` below passes a `Run` of these types, and waits for the end of all tasks.
    let run = unsafe { &*run.cast::<Run<'_, F, R>>() };
    let i = i as usize;
    match catch_unwind(AssertUnwindSafe(|| (run.task)(i))) {
        // SAFETY: the library runs one task at a time in a slot. A run within a task has slots of
        // its own.
        Ok(result) => unsafe { (*run.slots[slot as usize].0.get()).push((i, result)) },
        Err(panic) => {
            *run.panic
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(panic);
        }
    }
}

/// Order of processors where two are siblings of one core (`enum tasks_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Siblings {
    /// One of each core first: fastest.
    #[default]
    Last,
    /// Whole cores first: the others stay asleep.
    First,
}

/// Says which processors are used first; to be called before anything else here.
pub fn prefer(siblings: Siblings) {
    // SAFETY: the enumeration has the same values; what it sets is read once, by the first other
    // call.
    unsafe { tasks_set_policy(siblings as c_int) }
}

/// Number of processors that tasks are spread over.
#[must_use]
pub fn processors() -> usize {
    // SAFETY: may be called at any time.
    unsafe { tasks_slots() as usize }
}

/// Runs `task` for each number below `n`, each to its end on one of the processors, and returns the
/// results in order. A single task is run by the caller, and so are those that a task runs itself.
/// One run at a time: others wait.
///
/// # Panics
/// When a task does, after all have ended; when there is no memory for a single worker; for 2^32
/// tasks and more.
pub fn run<R: Send>(n: usize, task: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let count = c_uint::try_from(n).expect("fewer than 2^32 tasks");
    let slots: Vec<Slot<R>> = (0..processors())
        .map(|_| Slot(UnsafeCell::new(Vec::new())))
        .collect();
    let panic = Mutex::new(None);
    let run = Run {
        task: &task,
        slots: &slots,
        panic: &panic,
    };
    // SAFETY: `one` gets the types it was made for, by the pointer to a value that outlives the
    // call; `task` may be called from several threads (`Sync`), and results go from thread to
    // thread (`Send`).
    let error = unsafe { tasks_run(count, one_for(&run), (&raw const run).cast_mut().cast()) };
    assert!(error == 0, "no worker could be made (errno {error})");
    if let Some(panic) = panic
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        resume_unwind(panic);
    }
    let mut results: Vec<(usize, R)> = slots
        .into_iter()
        .flat_map(|slot| slot.0.into_inner())
        .collect();
    results.sort_unstable_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The function that reads a run of these types.
fn one_for<F: Fn(usize) -> R + Sync, R: Send>(
    _: &Run<'_, F, R>,
) -> unsafe extern "C" fn(c_uint, c_uint, *mut c_void) {
    one::<F, R>
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::run;

    #[test]
    fn each_task_runs_once_and_results_are_in_order() {
        for n in [0, 1, 2, 3, 1000] {
            assert_eq!(
                run(n, |i| i.to_string()),
                (0..n).map(|i| i.to_string()).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn there_are_no_more_threads_than_processors() {
        let threads: HashSet<_> = run(500, |_| thread::current().id()).into_iter().collect();
        assert!(threads.len() <= super::processors());
    }

    #[test]
    fn a_task_may_run_tasks() {
        for n in [1, 4] {
            assert_eq!(
                run(n, |i| run(3, |j| i * j).iter().sum::<usize>()),
                [0, 3, 6, 9][..n]
            );
        }
    }

    #[test]
    fn callers_take_turns() {
        thread::scope(|scope| {
            for caller in 0..4 {
                scope.spawn(move || {
                    for _ in 0..100 {
                        assert_eq!(
                            run(5, |i| i + caller),
                            (caller..caller + 5).collect::<Vec<_>>()
                        );
                    }
                });
            }
        });
    }
}
