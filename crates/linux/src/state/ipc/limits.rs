//! Limits of System V objects and POSIX queues (`/proc/sys/kernel`, `/proc/sys/fs/mqueue`). Each
//! namespace has its own, with the same values at its beginning.

use core::sync::atomic::{AtomicU64, Ordering};

use super::shm::MAX_BYTES;

/// A limit that the superuser changes.
pub(crate) struct Limit(AtomicU64);

impl Limit {
    const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The limit as a size or count.
    pub(crate) fn size(&self) -> usize {
        usize::try_from(self.get()).unwrap_or(usize::MAX)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The limits of a namespace.
pub(crate) struct IpcLimits {
    /// Largest message of a System V queue, in bytes (`msgmax`).
    pub(crate) message: Limit,
    /// Bytes that a new queue holds, and the most to which its owner raises that (`msgmnb`).
    pub(crate) queue: Limit,
    /// The most queues (`msgmni`): at first fewer than on Linux, as what is in them is the
    /// kernel's memory.
    pub(crate) queues: Limit,
    /// Most semaphores of one set, of all sets, operations of one call, and sets, in the order of
    /// `/proc/sys/kernel/sem` (Linux' `SEMMSL`, `SEMMNS`, `SEMOPM`, `SEMMNI`). At first there are
    /// fewer sets than on Linux: all of them are the kernel's memory.
    pub(crate) semaphores: [Limit; 4],
    /// Largest segment, in bytes (`shmmax`).
    pub(crate) segment: Limit,
    /// Pages that all segments have together, touched or not (`shmall`).
    pub(crate) segment_pages: Limit,
    /// The most segments (`shmmni`).
    pub(crate) segments: Limit,
    /// The most POSIX queues of callers without `CAP_SYS_RESOURCE` (`mqueue/queues_max`).
    pub(crate) posix_queues: Limit,
    /// Messages of a POSIX queue of such a caller, the most and if nothing is said (`msg_max`,
    /// `msg_default`).
    pub(crate) posix_messages: Limit,
    pub(crate) posix_default_messages: Limit,
    /// Bytes of a message of it, likewise (`msgsize_max`, `msgsize_default`).
    pub(crate) posix_size: Limit,
    pub(crate) posix_default_size: Limit,
}

impl IpcLimits {
    pub(crate) const fn new() -> Self {
        Self {
            message: Limit::new(8192),
            queue: Limit::new(16_384),
            queues: Limit::new(1024),
            semaphores: [
                Limit::new(32_000),
                Limit::new(32_000 * 512),
                Limit::new(500),
                Limit::new(512),
            ],
            segment: Limit::new(MAX_BYTES),
            segment_pages: Limit::new(MAX_BYTES),
            segments: Limit::new(4096),
            posix_queues: Limit::new(256),
            posix_messages: Limit::new(10),
            posix_default_messages: Limit::new(10),
            posix_size: Limit::new(8192),
            posix_default_size: Limit::new(8192),
        }
    }
}
