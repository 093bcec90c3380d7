//! Calls that have to do with each other.

/// Calls that have to do with each other: a thread makes more of one of these groups.
#[rustfmt::skip]
pub const THEMES: [&[&str]; 8] = [
    &[
        "socket", "socketpair", "bind", "listen", "connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg",
        "sendmmsg", "recvmmsg", "shutdown", "setsockopt", "getsockopt", "getsockname", "getpeername", "read", "write", "close",
        "dup", "poll",
    ],
    &[
        "epoll_ctl", "epoll_wait", "epoll_pwait2", "poll", "ppoll", "select", "eventfd2", "timerfd_settime", "signalfd4", "read",
        "write", "close", "dup2", "inotify_add_watch", "kill", "fcntl",
    ],
    &[
        "mmap", "munmap", "mprotect", "mremap", "madvise", "mlock", "mlock2", "munlock", "msync", "mincore", "brk", "ftruncate",
        "fallocate", "process_vm_readv", "process_vm_writev", "process_madvise", "shmget", "shmat", "shmdt", "shmctl", "fork",
        "read", "write", "mseal",
    ],
    &[
        "fork", "vfork", "clone", "clone3", "wait4", "waitid", "kill", "tkill", "tgkill", "rt_sigqueueinfo", "pidfd_open",
        "pidfd_send_signal", "ptrace", "ptrace", "prctl", "setpgid", "setsid", "rt_sigaction", "rt_sigprocmask",
        "rt_sigtimedwait", "sigaltstack", "pause",
    ],
    &[
        "futex", "futex", "futex_wait", "futex_wake", "futex_waitv", "futex_requeue", "set_robust_list", "nanosleep",
        "clock_nanosleep", "timer_create", "timer_settime", "timer_delete", "setitimer", "sched_setscheduler",
        "sched_setaffinity", "sched_yield", "clone", "membarrier",
    ],
    &[
        "openat", "openat2", "close", "close_range", "dup3", "renameat2", "linkat", "symlinkat", "unlinkat", "mkdirat",
        "getdents64", "fcntl", "flock", "splice", "tee", "vmsplice", "sendfile", "copy_file_range", "fallocate", "preadv2",
        "pwritev2", "statx", "utimensat",
    ],
    &[
        "setxattr", "getxattr", "listxattr", "removexattr", "fsetxattr", "fgetxattr", "flistxattr", "fremovexattr", "fchmodat",
        "fchownat", "chmod", "open", "mount", "umount2", "chdir", "name_to_handle_at", "open_by_handle_at", "inotify_add_watch",
        "ioctl", "unlink",
    ],
    &[
        "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_timedsend",
        "mq_timedreceive", "mq_notify", "mq_getsetattr", "mq_unlink", "shmget", "shmat", "shmdt", "shmctl", "fork", "kill",
    ],
];
