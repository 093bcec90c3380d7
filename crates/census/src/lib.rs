//! Counts of the objects that programs can leave behind: `/proc/skerry/objects`.
//!
//! Each type whose values are to be counted holds a value of one of the types here, which counts
//! itself at its creation and at its end. That is an addition to a counter of the class alone,
//! without an order: what is being made or dropped at the moment may be counted or not.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

/// A counter with a cache line of its own, because the classes have nothing to do with each other.
#[repr(align(64))]
struct Counter(AtomicU64);

macro_rules! classes {
    ($($class:ident $name:literal $what:literal,)*) => {
        enum Place { $($class,)* }

        const NAMES: &[&str] = &[$($name),*];

        static COUNTERS: [Counter; NAMES.len()] = [const { Counter(AtomicU64::new(0)) }; NAMES.len()];

        $(
            #[doc = concat!("Counts one of the ", $what, ".")]
            #[derive(Debug)]
            pub struct $class(());

            impl Default for $class {
                #[inline]
                fn default() -> Self {
                    COUNTERS[Place::$class as usize].0.fetch_add(1, Ordering::Relaxed);
                    Self(())
                }
            }

            impl $class {
                #[doc = concat!("Number of ", $what, ".")]
                #[inline]
                #[must_use]
                pub fn count() -> u64 {
                    COUNTERS[Place::$class as usize].0.load(Ordering::Relaxed)
                }
            }

            impl Drop for $class {
                #[inline]
                fn drop(&mut self) {
                    released(COUNTERS[Place::$class as usize].0.fetch_sub(1, Ordering::Relaxed), 1);
                }
            }
        )*
    };
}

classes! {
    Process "processes" "processes, and what is left of them while somebody refers to it",
    Task "threads" "threads of programs",
    KernelThread "kernel_threads" "threads of the kernel, on which those of programs run",
    FdTable "descriptor_tables" "tables of descriptors",
    File "open_files" "open files",
    Name "names" "names of files that are in use or remembered",
    Inode "inodes" "files of RAM file systems",
    Mount "mounts" "mounts",
    Super "file_systems" "file systems that were mounted",
    Pipe "pipes" "pipes",
    Epoll "epoll_sets" "epoll sets",
    EpollEntry "epoll_entries" "descriptors watched by epoll sets",
    EventFd "eventfds" "counters of events",
    Inotify "inotify_groups" "groups of inotify",
    Watch "inotify_watches" "watches of inotify",
    Terminal "terminals" "terminals",
    TimerFd "timerfds" "descriptors of timers",
    SignalFd "signalfds" "descriptors of signals",
    PidFd "pidfds" "descriptors of processes",
    Timer "timers" "timers",
    Socket "sockets" "open sockets",
    UnixPort "unix_sockets" "local sockets",
    Tcp "tcp_sockets" "sockets of TCP",
    Udp "udp_sockets" "sockets of UDP",
    Raw "raw_sockets" "raw sockets",
    Packets "packet_sockets" "packet sockets",
    Netlink "netlink_sockets" "sockets of netlink",
    Semaphores "semaphore_sets" "sets of System V semaphores",
    Messages "message_queues" "System V message queues",
    Segment "shared_segments" "segments of System V shared memory",
    Mqueue "posix_queues" "POSIX message queues",
    Filter "seccomp_filters" "filters of system calls",
    Space "address_spaces" "address spaces",
    SharedMemory "shared_memories" "memories without a file that several may map",
    Object "mapped_objects" "files and memories as mappings refer to them",
}

/// Passes on what a counter of uses was `before` so many were `given_back`. A kernel that checks
/// itself (debug assertions) panics when there were fewer: somebody gave back what he did not have,
/// and the counter is now far above what is in use.
#[inline]
#[track_caller]
pub fn released<N: PartialOrd + core::fmt::Display + Copy>(before: N, given_back: N) -> N {
    debug_assert!(
        before >= given_back,
        "{given_back} given back of a counter at {before}"
    );
    before
}

/// All classes, by name, with how many there are.
pub fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES
        .iter()
        .zip(&COUNTERS)
        .map(|(name, counter)| (*name, counter.0.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_was_taken_cannot_be_given_back() {
        assert_eq!(released(3_u32, 3), 3);
        assert!(
            std::panic::catch_unwind(|| released(2_u32, 3)).is_err() || !cfg!(debug_assertions)
        );
    }

    #[test]
    fn values_count_themselves() {
        let pipes = || counts().find(|(name, _)| *name == "pipes").unwrap().1;
        let (first, second) = (Pipe::default(), Pipe::default());
        assert_eq!((pipes(), Pipe::count()), (2, 2));
        drop(first);
        assert_eq!(pipes(), 1);
        drop(second);
        assert_eq!(pipes(), 0);
        assert!(counts().all(|(_, count)| count == 0));
    }
}
