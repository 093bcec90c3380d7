//! Limits of what a process may use (`getrlimit(2)`): soft and hard limit of each resource.

use core::ops::{Index, IndexMut};
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::state::fdtable::DEFAULT_LIMIT;

/// Number of limited resources (`RLIM_NLIMITS`).
pub(crate) const RESOURCES: usize = sys::RLIM_NLIMITS as usize;

/// Limit without an end (`RLIM_INFINITY`).
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// Soft and hard limit of one resource (`struct rlimit64`), in the unit of [`LIMIT_NAMES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Rlimit {
    /// The limit in force (`rlim_cur`).
    pub soft: u64,
    /// The most that the soft limit can be raised to (`rlim_max`).
    pub hard: u64,
}

impl Rlimit {
    /// A limit of which soft and hard value are the same.
    pub(crate) const fn both(value: u64) -> Self {
        Self {
            soft: value,
            hard: value,
        }
    }

    /// The soft limit as a size or count; [`usize::MAX`] for none.
    pub(crate) fn soft_size(self) -> usize {
        usize::try_from(self.soft).unwrap_or(usize::MAX)
    }
}

/// A limited resource (`RLIMIT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    Cpu = sys::RLIMIT_CPU as isize,
    FileSize = sys::RLIMIT_FSIZE as isize,
    Data = sys::RLIMIT_DATA as isize,
    Stack = sys::RLIMIT_STACK as isize,
    Core = sys::RLIMIT_CORE as isize,
    ResidentSet = sys::RLIMIT_RSS as isize,
    Processes = sys::RLIMIT_NPROC as isize,
    OpenFiles = sys::RLIMIT_NOFILE as isize,
    LockedMemory = sys::RLIMIT_MEMLOCK as isize,
    AddressSpace = sys::RLIMIT_AS as isize,
    FileLocks = sys::RLIMIT_LOCKS as isize,
    PendingSignals = sys::RLIMIT_SIGPENDING as isize,
    MessageQueues = sys::RLIMIT_MSGQUEUE as isize,
    Nice = sys::RLIMIT_NICE as isize,
    RealtimePriority = sys::RLIMIT_RTPRIO as isize,
    RealtimeTime = sys::RLIMIT_RTTIME as isize,
}

impl Resource {
    /// All resources, each at the index that is its number.
    const ALL: [Self; RESOURCES] = [
        Self::Cpu,
        Self::FileSize,
        Self::Data,
        Self::Stack,
        Self::Core,
        Self::ResidentSet,
        Self::Processes,
        Self::OpenFiles,
        Self::LockedMemory,
        Self::AddressSpace,
        Self::FileLocks,
        Self::PendingSignals,
        Self::MessageQueues,
        Self::Nice,
        Self::RealtimePriority,
        Self::RealtimeTime,
    ];

    /// The resource of a number that a program passed.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub(crate) fn new(number: u32) -> Result<Self, Errno> {
        Self::ALL.get(number as usize).copied().ok_or(Errno::EINVAL)
    }
}

/// The limits of a process, by resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rlimits([Rlimit; RESOURCES]);

impl Rlimits {
    /// The limits in the order of their resources' numbers.
    pub(crate) fn values(self) -> impl Iterator<Item = Rlimit> {
        self.0.into_iter()
    }
}

impl Index<Resource> for Rlimits {
    type Output = Rlimit;

    fn index(&self, resource: Resource) -> &Rlimit {
        &self.0[resource as usize]
    }
}

impl IndexMut<Resource> for Rlimits {
    fn index_mut(&mut self, resource: Resource) -> &mut Rlimit {
        &mut self.0[resource as usize]
    }
}

/// Names and units, as `/proc/<pid>/limits` has them.
pub(crate) const LIMIT_NAMES: [(&str, &str); RESOURCES] = [
    ("Max cpu time", "seconds"),
    ("Max file size", "bytes"),
    ("Max data size", "bytes"),
    ("Max stack size", "bytes"),
    ("Max core file size", "bytes"),
    ("Max resident set", "bytes"),
    ("Max processes", "processes"),
    ("Max open files", "files"),
    ("Max locked memory", "bytes"),
    ("Max address space", "bytes"),
    ("Max file locks", "locks"),
    ("Max pending signals", "signals"),
    ("Max msgqueue size", "bytes"),
    ("Max nice priority", ""),
    ("Max realtime priority", ""),
    ("Max realtime timeout", "us"),
];

/// Most threads there may be for want of numbers.
const THREAD_NUMBERS: usize = 32_767;
/// Threads that there may be on the smallest machine.
const MIN_THREADS: usize = 128;
/// Bytes of a thread's kernel stack and what else the kernel has for it, as Linux estimates them
/// for `threads-max`.
const THREAD_BYTES: usize = 16 << 10;

/// Most threads there may be (`/proc/sys/kernel/threads-max`); 0 until the superuser has set it.
static MAX_THREADS: AtomicUsize = AtomicUsize::new(0);
/// The highest number of them that can be set: Linux' `FUTEX_TID_MASK`.
pub(crate) const HIGHEST_MAX_THREADS: usize = 0x3fff_ffff;

/// Most threads there may be: unless somebody says otherwise they take an eighth of memory.
pub(crate) fn max_threads() -> usize {
    match MAX_THREADS.load(Ordering::Relaxed) {
        0 => default_max_threads(),
        most => most,
    }
}

/// Changes the most threads there may be. Those beyond it stay.
pub(crate) fn set_max_threads(most: usize) {
    MAX_THREADS.store(most, Ordering::Relaxed);
}

fn default_max_threads() -> usize {
    let memory = guard::mem::total_frames() as usize * vm::PAGE_SIZE;
    (memory / 8 / THREAD_BYTES).clamp(MIN_THREADS, THREAD_NUMBERS)
}

/// Bytes in a user's POSIX message queues, as on Linux.
pub(crate) const DEFAULT_QUEUES: u64 = 819_200;
/// Bytes that who lacks `CAP_IPC_LOCK` may lock, as on Linux.
pub(crate) const DEFAULT_LOCKED: u64 = 8 << 20;

/// The limits of process 1.
pub(crate) fn default_limits() -> Rlimits {
    let mut limits = Rlimits([Rlimit::both(UNLIMITED); RESOURCES]);
    limits[Resource::Stack].soft = 8 << 20;
    limits[Resource::Core].soft = 0;
    limits[Resource::Processes] = Rlimit::both(max_threads() as u64 / 2);
    // As on Linux, as many of them.
    limits[Resource::PendingSignals] = limits[Resource::Processes];
    limits[Resource::MessageQueues] = Rlimit::both(DEFAULT_QUEUES);
    limits[Resource::LockedMemory] = Rlimit::both(DEFAULT_LOCKED);
    limits[Resource::Nice] = Rlimit::both(0);
    limits[Resource::RealtimePriority] = Rlimit::both(0);
    limits[Resource::OpenFiles] = Rlimit {
        soft: DEFAULT_LIMIT as u64,
        hard: 1 << 20,
    };
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_the_resource_that_has_it() {
        for number in 0..RESOURCES as u32 {
            assert_eq!(Resource::new(number).unwrap() as u32, number);
        }
        assert_eq!(Resource::new(RESOURCES as u32), Err(Errno::EINVAL));
        assert_eq!(Resource::new(u32::MAX), Err(Errno::EINVAL));
    }
}
