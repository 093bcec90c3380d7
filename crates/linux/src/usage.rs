//! What threads and processes have used: `getrusage(2)`, `times(2)`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use vm::AddressSpace;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::process::Process;
use crate::time::{NS_PER_SEC, TimeVal};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, process_table as processes};

/// Clock ticks per second, as programs count them (`sysconf(_SC_CLK_TCK)`).
const TICKS: u64 = 100;

/// What was used.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Usage {
    /// Processor time in user mode, nanoseconds.
    pub(crate) user_ns: u64,
    /// In the kernel. Brief calls are in it by samples (`run`), so that it is right in the long run.
    pub(crate) system_ns: u64,
    /// The most memory that was seen to be present, bytes.
    pub(crate) max_resident: u64,
    /// Page faults.
    pub(crate) faults: u64,
    /// Switches to another thread: because it had to wait, and because others were to run.
    pub(crate) switches: [u64; 2],
    /// Bytes read and written by `read(2)`, `write(2)` and their relatives, and how many such calls there were.
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
        for (all, more) in
            [(&mut self.switches, other.switches), (&mut self.bytes, other.bytes), (&mut self.transfers, other.transfers)]
        {
            all[0] += more[0];
            all[1] += more[1];
        }
    }
}

/// What a thread has read and written. Transfers of so few bytes that counting would cost more than they do are in it by samples, as
/// their time is.
#[derive(Default)]
pub(crate) struct Transferred {
    bytes: [AtomicU64; 2],
    calls: [AtomicU64; 2],
}

/// Places in [`Transferred`] and [`Usage`].
pub(crate) const READ: usize = 0;
pub(crate) const WRITTEN: usize = 1;

impl Transferred {
    /// Counts transfers that had this result. By the thread itself.
    pub(crate) fn count(&self, direction: usize, result: &SysResult, calls: u64) {
        let add = |counter: &AtomicU64, amount: u64| counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
        add(&self.calls[direction], calls);
        if let Ok(bytes) = *result {
            add(&self.bytes[direction], bytes as u64 * calls);
        }
    }
}

/// Times in user mode and in the kernel that a thread was told.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Times {
    user_ns: u64,
    system_ns: u64,
}

impl Times {
    /// Splits the processor time into the kernel's, as it was measured, and the rest. A sample that counts for many calls can be more
    /// than there is, or than came since: neither part ever becomes less than it was.
    fn next(self, total_ns: u64, kernel_ns: u64) -> Self {
        let [system_ns, user_ns] = split([self.system_ns, self.user_ns], total_ns, kernel_ns);
        Self { user_ns, system_ns }
    }
}

/// Splits a total, of which `first` is said to be one part, into two of which neither is less than `before`.
pub(crate) fn split(before: [u64; 2], total: u64, first: u64) -> [u64; 2] {
    let total = total.max(before[0] + before[1]);
    let first = first.clamp(before[0], total - before[1]);
    [first, total - first]
}

/// User time of processes that have ended.
static ENDED_USER_NS: AtomicU64 = AtomicU64::new(0);

/// A process has ended: its threads and its memory are gone.
pub(crate) fn note_end(process: &Process) {
    ENDED_USER_NS.fetch_add(process.ended_usage.lock().user_ns, Ordering::Relaxed);
}

/// Time that all programs there are and were had in user mode, nanoseconds. One that ends at this moment may be missing.
pub(crate) fn user_of_all() -> u64 {
    let living = processes::select(|_, node| node.process.space().is_some());
    living.iter().map(|process| process.usage().user_ns).sum::<u64>() + ENDED_USER_NS.load(Ordering::Relaxed)
}

impl Task {
    /// What this thread has used.
    pub(crate) fn usage(&self) -> Usage {
        let Some(thread) = self.started() else { return Usage::default() };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut told = self.told_times.lock();
        *told = told.next(thread.cpu_time_ns(), thread.kernel_time_ns());
        Usage {
            user_ns: told.user_ns,
            system_ns: told.system_ns,
            max_resident: 0,
            faults: self.faults.load(Ordering::Relaxed),
            switches: thread.switches(),
            bytes: self.transferred.bytes.each_ref().map(load),
            transfers: self.transferred.calls.each_ref().map(load),
        }
    }
}

impl Process {
    /// What its threads have used, those that have ended included.
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

    /// What it and the children it waited for have used, for its parent.
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

/// `struct rusage`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RUsage {
    user: TimeVal,
    system: TimeVal,
    max_resident_kib: i64,
    sizes: [i64; 3],
    minor_faults: i64,
    major_faults: i64,
    rest: [i64; 6],
    voluntary_switches: i64,
    involuntary_switches: i64,
}

const _: () = assert!(size_of::<RUsage>() == 144);

impl RUsage {
    /// As programs see it. All pages are in memory, so that every fault is a minor one.
    pub(crate) fn of(usage: &Usage) -> Self {
        Self {
            user: TimeVal::from_ns(usage.user_ns),
            system: TimeVal::from_ns(usage.system_ns),
            max_resident_kib: (usage.max_resident >> 10).cast_signed(),
            minor_faults: usage.faults.cast_signed(),
            voluntary_switches: usage.switches[0].cast_signed(),
            involuntary_switches: usage.switches[1].cast_signed(),
            ..Self::new_zeroed()
        }
    }
}

/// `getrusage(2)`
pub fn sys_getrusage(task: &Task, who: i32, to: UserPtr<RUsage>) -> SysResult {
    const SELF: i32 = sys::RUSAGE_SELF as i32;
    const THREAD: i32 = sys::RUSAGE_THREAD as i32;
    let process = task.process();
    let usage = match who {
        sys::RUSAGE_CHILDREN => *process.children_usage.lock(),
        SELF => process.usage(),
        THREAD => Usage { max_resident: process.note_resident(), ..task.usage() },
        _ => return Err(Errno::EINVAL),
    };
    to.write(&RUsage::of(&usage))?;
    Ok(0)
}

/// `times(2)`
pub fn sys_times(task: &Task, times: UserPtr<[u64; 4]>) -> SysResult {
    let ticks = |ns: u64| ns / (NS_PER_SEC / TICKS);
    let process = task.process();
    let (own, children) = (process.usage(), *process.children_usage.lock());
    times.write_optional(&[own.user_ns, own.system_ns, children.user_ns, children.system_ns].map(ticks))?;
    Ok(ticks(::task::now_ns()) as usize)
}
