//! What threads and processes have used: processor time, memory, transfers.

use core::sync::atomic::{AtomicU64, Ordering};

use ::task::ContextSwitches;

use crate::SysResult;

/// Resources that a thread or process has used.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Usage {
    /// Processor time in user mode, nanoseconds.
    pub(crate) user_ns: u64,
    /// In the kernel. Brief calls are in it by samples (`entry::user_loop`), so that it is right in
    /// the long run.
    pub(crate) system_ns: u64,
    /// The most memory that was seen to be present, bytes.
    pub(crate) max_rss: u64,
    /// Number of page faults.
    pub(crate) faults: u64,
    pub(crate) switches: ContextSwitches,
    /// Transfers by `read(2)` and its relatives.
    pub(crate) read: Transfers,
    /// Transfers by `write(2)` and its relatives.
    pub(crate) written: Transfers,
    /// Transfers between memory and disks.
    pub(crate) storage: Storage,
}

impl Usage {
    /// Processor time in user and kernel mode, in nanoseconds.
    pub(crate) fn total_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }

    /// The sum; of memory the greater.
    pub(crate) fn add(&mut self, other: &Self) {
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
        self.max_rss = self.max_rss.max(other.max_rss);
        self.faults += other.faults;
        self.switches.voluntary += other.switches.voluntary;
        self.switches.involuntary += other.switches.involuntary;
        self.read.add(other.read);
        self.written.add(other.written);
        self.storage.add(other.storage);
    }
}

/// Transfers in one direction, between a program and files.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Transfers {
    pub(crate) bytes: u64,
    pub(crate) calls: u64,
}

impl Transfers {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.calls += other.calls;
    }
}

/// Bytes between memory and disks.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Storage {
    /// Bytes that were read from disks.
    pub(crate) read: u64,
    /// Bytes in memory that were changed, so that they are written to disks.
    pub(crate) written: u64,
    /// Bytes of those that were given up before.
    pub(crate) cancelled: u64,
}

impl Storage {
    fn add(&mut self, other: Self) {
        self.read += other.read;
        self.written += other.written;
        self.cancelled += other.cancelled;
    }
}

/// The counters of [`Storage`] of one thread, which counts itself.
#[derive(Default)]
pub(crate) struct StorageCounters {
    pub(crate) read: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) cancelled: AtomicU64,
}

impl StorageCounters {
    /// The counts so far.
    pub(crate) fn load(&self) -> Storage {
        Storage {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            cancelled: self.cancelled.load(Ordering::Relaxed),
        }
    }
}

/// The direction of a transfer, as the program sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The counters of [`Transfers`] of one thread.
#[derive(Default)]
pub(crate) struct TransferCounters {
    bytes: AtomicU64,
    calls: AtomicU64,
}

impl TransferCounters {
    /// The counts so far.
    pub(crate) fn load(&self) -> Transfers {
        Transfers {
            bytes: self.bytes.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
        }
    }
}

/// The transfers of a thread. Those of so few bytes that counting would cost more than
/// they do are in it by samples, as their time is.
#[derive(Default)]
pub(crate) struct IoAccounting {
    pub(crate) read: TransferCounters,
    pub(crate) written: TransferCounters,
    pub(crate) storage: StorageCounters,
}

impl IoAccounting {
    /// Counts transfers that had this result. By the thread itself.
    pub(crate) fn count(&self, direction: Direction, result: &SysResult, calls: u64) {
        let add = |counter: &AtomicU64, amount: u64| {
            counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
        };
        let counters = match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.written,
        };
        add(&counters.calls, calls);
        if let Ok(bytes) = *result {
            add(&counters.bytes, bytes as u64 * calls);
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
    pub(crate) fn adjust(self, total_ns: u64, kernel_ns: u64) -> Self {
        let before = CpuTimes {
            user: self.user_ns,
            system: self.system_ns,
        };
        let CpuTimes { user, system } = before.next(total_ns, kernel_ns);
        Self {
            user_ns: user,
            system_ns: system,
        }
    }
}

/// Times in user mode and in the kernel, in one unit of the caller's choice.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct CpuTimes {
    pub(crate) user: u64,
    pub(crate) system: u64,
}

impl CpuTimes {
    /// Splits a total, of which `system` is said to be the kernel's part, so that neither part is
    /// less than it was.
    pub(crate) fn next(self, total: u64, system: u64) -> Self {
        let total = total.max(self.user + self.system);
        let system = system.clamp(self.system, total - self.user);
        Self {
            user: total - system,
            system,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_part_of_a_time_ever_shrinks() {
        let times = |user, system| CpuTimes { user, system };
        assert_eq!(times(0, 0).next(10, 3), times(7, 3));
        assert_eq!(times(7, 3).next(12, 2), times(9, 3));
        assert_eq!(times(7, 3).next(12, 9), times(7, 5));
        // A total that went back.
        assert_eq!(times(7, 3).next(8, 0), times(7, 3));
    }
}
