//! What threads and processes have used so far.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use vm::AddressSpace;

use crate::Task;
use crate::process::{Process, process_table};
use crate::state::usage::Usage;

/// User time of processes that have ended.
static ENDED_USER_NS: AtomicU64 = AtomicU64::new(0);

/// Adds the user time of a process that has ended to [`total_user_ns`].
pub(crate) fn account_exited_process(process: &Process) {
    ENDED_USER_NS.fetch_add(process.exited_usage.lock().user_ns, Ordering::Relaxed);
}

/// Time that all programs there are and were had in user mode, nanoseconds. One that ends at this
/// moment may be missing.
pub(crate) fn total_user_ns() -> u64 {
    let living = process_table::processes_where(|_, entry| entry.process.space().is_some());
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
        let mut told = self.prev_cputime.lock();
        *told = told.adjust(thread.cpu_time_ns(), thread.system_time_ns());
        Usage {
            user_ns: told.user_ns,
            system_ns: told.system_ns,
            max_rss: 0,
            faults: self.faults.load(Ordering::Relaxed),
            switches: thread.context_switches(),
            read: self.io_accounting.read.load(),
            written: self.io_accounting.written.load(),
            storage: self.io_accounting.storage.load(),
        }
    }
}

impl Process {
    /// Usage of all threads, those that have ended included.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = *self.exited_usage.lock();
        for task in self.tasks() {
            usage.add(&task.usage());
        }
        usage.max_rss = self.update_max_rss();
        usage
    }

    /// Records how much memory is present, before some is given back.
    pub(crate) fn update_hiwater_rss(&self, space: &AddressSpace) {
        let now = space.resident() as u64;
        if now > self.max_rss.load(Ordering::Relaxed) {
            self.max_rss.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Records how much memory is present now; returns the most that was seen, in bytes.
    pub(crate) fn update_max_rss(&self) -> u64 {
        let now = self.space().map_or(0, |space| space.resident() as u64);
        self.max_rss.fetch_max(now, Ordering::Relaxed).max(now)
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

/// Adds the usage of a child that was waited for to its parent's.
pub(crate) fn account_reaped_child(parent: &Process, child: &Arc<Process>) {
    let usage = child.usage_with_children();
    parent.children_usage.lock().add(&usage);
}
