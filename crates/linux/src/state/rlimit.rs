//! Limits of what a process may use (`getrlimit(2)`): soft and hard limit of each resource.

use linux_raw_sys::general as sys;

use crate::state::fdtable::{DEFAULT_LIMIT, MAX_LIMIT};

/// How many resources are limited.
pub(crate) const RESOURCES: usize = 16;
/// Soft and hard limit of each resource.
pub(crate) type Rlimits = [[u64; 2]; RESOURCES];

/// Index of the limit of files' sizes.
pub(crate) const FSIZE: usize = sys::RLIMIT_FSIZE as usize;
pub(crate) const CPU: usize = sys::RLIMIT_CPU as usize;
/// Index of the limit of a user's threads.
pub(crate) const NPROC: usize = sys::RLIMIT_NPROC as usize;
/// Index of the limit of bytes in a user's message queues.
pub(crate) const MSGQUEUE: usize = sys::RLIMIT_MSGQUEUE as usize;
/// Index of the limit of signals that wait.
pub(crate) const SIGPENDING: usize = sys::RLIMIT_SIGPENDING as usize;
/// Index of the heap's limit.
pub(crate) const DATA: usize = sys::RLIMIT_DATA as usize;
/// Index of the stack's limit.
pub(crate) const STACK: usize = sys::RLIMIT_STACK as usize;
/// Index of the limit of memory that is present.
pub(crate) const RSS: usize = sys::RLIMIT_RSS as usize;
pub(crate) const NOFILE: usize = sys::RLIMIT_NOFILE as usize;
pub(crate) const MEMLOCK: usize = sys::RLIMIT_MEMLOCK as usize;
pub(crate) const SPACE: usize = sys::RLIMIT_AS as usize;
pub(crate) const CORE: usize = sys::RLIMIT_CORE as usize;
/// Index of the limit of nice levels.
pub(crate) const NICE: usize = sys::RLIMIT_NICE as usize;
/// Index of the limit of priorities.
pub(crate) const RTPRIO: usize = sys::RLIMIT_RTPRIO as usize;

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

/// A user's threads, which numbers limit anyway, and real-time signals that wait for a process or
/// thread.
pub(crate) const DEFAULT_THREADS: u64 = 32_767;
pub(crate) const DEFAULT_SIGNALS: u64 = 16_384;
/// Bytes in a user's POSIX message queues, as on Linux.
pub(crate) const DEFAULT_QUEUES: u64 = 819_200;
/// Bytes that who lacks `CAP_IPC_LOCK` may lock, as on Linux.
pub(crate) const DEFAULT_LOCKED: u64 = 8 << 20;

/// The limits of process 1.
pub(crate) fn default_limits() -> Rlimits {
    let mut limits = [[u64::MAX; 2]; RESOURCES];
    limits[STACK][0] = 8 << 20;
    limits[CORE][0] = 0;
    limits[NPROC] = [DEFAULT_THREADS; 2];
    limits[SIGPENDING] = [DEFAULT_SIGNALS; 2];
    limits[MSGQUEUE] = [DEFAULT_QUEUES; 2];
    limits[MEMLOCK] = [DEFAULT_LOCKED; 2];
    limits[NICE] = [0; 2];
    limits[RTPRIO] = [0; 2];
    limits[NOFILE] = [DEFAULT_LIMIT as u64, MAX_LIMIT as u64];
    limits
}
