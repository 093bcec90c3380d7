//! What threads and processes have used: `getrusage(2)`, `times(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use vm::AddressSpace;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::process::Process;
use crate::time::{NS_PER_SEC, TimeVal};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

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
        self.switches[0] += other.switches[0];
        self.switches[1] += other.switches[1];
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
        let total_ns = total_ns.max(self.user_ns + self.system_ns);
        let system_ns = kernel_ns.clamp(self.system_ns, total_ns - self.user_ns);
        Self { user_ns: total_ns - system_ns, system_ns }
    }
}

impl Task {
    /// What this thread has used.
    pub(crate) fn usage(&self) -> Usage {
        let Some(thread) = self.started() else { return Usage::default() };
        let mut told = self.told_times.lock();
        *told = told.next(thread.cpu_time_ns(), thread.kernel_time_ns());
        Usage {
            user_ns: told.user_ns,
            system_ns: told.system_ns,
            max_resident: 0,
            faults: self.faults.load(Ordering::Relaxed),
            switches: thread.switches(),
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
