//! What threads and processes have used: processor time, memory, transfers.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::SysResult;

/// What was used.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Usage {
    /// Processor time in user mode, nanoseconds.
    pub(crate) user_ns: u64,
    /// In the kernel. Brief calls are in it by samples (`entry::user_loop`), so that it is right in
    /// the long run.
    pub(crate) system_ns: u64,
    /// The most memory that was seen to be present, bytes.
    pub(crate) max_resident: u64,
    /// Page faults.
    pub(crate) faults: u64,
    /// Switches to another thread: because it had to wait, and because others were to run.
    pub(crate) switches: [u64; 2],
    /// Bytes read and written by `read(2)`, `write(2)` and their relatives, and how many such calls
    /// there were.
    pub(crate) bytes: [u64; 2],
    pub(crate) transfers: [u64; 2],
}

impl Usage {
    /// Processor time, nanoseconds.
    pub(crate) fn total_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }

    /// The sum; of memory the greater.
    pub(crate) fn add(&mut self, other: &Self) {
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
        self.max_resident = self.max_resident.max(other.max_resident);
        self.faults += other.faults;
        for (all, more) in [
            (&mut self.switches, other.switches),
            (&mut self.bytes, other.bytes),
            (&mut self.transfers, other.transfers),
        ] {
            all[0] += more[0];
            all[1] += more[1];
        }
    }
}

/// What a thread has read and written. Transfers of so few bytes that counting would cost more than
/// they do are in it by samples, as their time is.
#[derive(Default)]
pub(crate) struct IoAccounting {
    pub(crate) bytes: [AtomicU64; 2],
    pub(crate) calls: [AtomicU64; 2],
}

/// Places in [`IoAccounting`] and [`Usage`].
pub(crate) const READ: usize = 0;

pub(crate) const WRITTEN: usize = 1;

impl IoAccounting {
    /// Counts transfers that had this result. By the thread itself.
    pub(crate) fn count(&self, direction: usize, result: &SysResult, calls: u64) {
        let add = |counter: &AtomicU64, amount: u64| {
            counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed)
        };
        add(&self.calls[direction], calls);
        if let Ok(bytes) = *result {
            add(&self.bytes[direction], bytes as u64 * calls);
        }
    }
}

/// Times in user mode and in the kernel that a thread was told.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PrevCputime {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
}

impl PrevCputime {
    /// Splits the processor time into the kernel's, as it was measured, and the rest. A sample that
    /// counts for many calls can be more than there is, or than came since: neither part ever
    /// becomes less than it was.
    pub(crate) fn next(self, total_ns: u64, kernel_ns: u64) -> Self {
        let [system_ns, user_ns] = split([self.system_ns, self.user_ns], total_ns, kernel_ns);
        Self { user_ns, system_ns }
    }
}

/// Splits a total, of which `first` is said to be one part, into two of which neither is less than
/// `before`.
pub(crate) fn split(before: [u64; 2], total: u64, first: u64) -> [u64; 2] {
    let total = total.max(before[0] + before[1]);
    let first = first.clamp(before[0], total - before[1]);
    [first, total - first]
}
