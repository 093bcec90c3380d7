//! What threads and processes have used so far.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use vm::AddressSpace;

use crate::Task;
use crate::process::{Process, process_table};
use crate::state::usage::Usage;

/// User time of processes that have ended.
static ENDED_USER_NS: AtomicU64 = AtomicU64::new(0);

/// A process has ended: its threads and its memory are gone.
pub(crate) fn note_end(process: &Process) {
    ENDED_USER_NS.fetch_add(process.ended_usage.lock().user_ns, Ordering::Relaxed);
}

/// Time that all programs there are and were had in user mode, nanoseconds. One that ends at this
/// moment may be missing.
pub(crate) fn user_of_all() -> u64 {
    let living = process_table::processes_where(|_, node| node.process.space().is_some());
    living
        .iter()
        .map(|process| process.usage().user_ns)
        .sum::<u64>()
        + ENDED_USER_NS.load(Ordering::Relaxed)
}

impl Task {
    /// Usage of this thread.
    pub(crate) fn usage(&self) -> Usage {
        let Some(thread) = self.started_thread() else {
            return Usage::default();
        };
        let mut told = self.told_times.lock();
        *told = told.next(thread.cpu_time_ns(), thread.system_time_ns());
        Usage {
            user_ns: told.user_ns,
            system_ns: told.system_ns,
            max_resident: 0,
            faults: self.faults.load(Ordering::Relaxed),
            switches: thread.context_switches(),
            read: self.transferred.read.load(),
            written: self.transferred.written.load(),
        }
    }
}

impl Process {
    /// Usage of all threads, those that have ended included.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = *self.ended_usage.lock();
        for task in self.tasks() {
            usage.add(&task.usage());
        }
        usage.max_resident = self.note_resident();
        usage
    }

    /// Looks how much memory is present before some is given back.
    pub(crate) fn note_peak(&self, space: &AddressSpace) {
        let now = space.resident() as u64;
        if now > self.max_resident.load(Ordering::Relaxed) {
            self.max_resident.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Looks how much memory is present now; returns the most that was seen, in bytes.
    pub(crate) fn note_resident(&self) -> u64 {
        let now = self.space().map_or(0, |space| space.resident() as u64);
        self.max_resident.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Usage of the process and the children it waited for, as its parent counts it.
    pub(crate) fn usage_with_children(&self) -> Usage {
        let mut usage = self.usage();
        usage.add(&self.children_usage.lock());
        usage
    }

    /// Processor time of its threads, those that have ended included, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.usage().total_ns()
    }
}

/// A child has been waited for.
pub(crate) fn add_child(parent: &Process, child: &Arc<Process>) {
    let usage = child.usage_with_children();
    parent.children_usage.lock().add(&usage);
}
