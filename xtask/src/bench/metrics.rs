//! All metrics, and the figures to reach.

/// One metric.
#[derive(Clone, Copy)]
pub struct Metric {
    /// Name of the metric in the program, in tables and on the command line.
    pub name: &'static str,
    /// Method of measuring.
    pub how: How,
    /// Goal, an upper limit: instructions on one processor, without what `clears` says; of others
    /// than programs, in the unit of the metric.
    pub goal: Option<f64>,
    /// Goal as a part of the first other system's figure.
    pub share: Option<f64>,
    /// Whether the kernel must clear or copy pages in it. The loop that does so counts one
    /// instruction for each of its turns where it is a `rep` instruction, which says nothing about
    /// its time, so it is left out in a figure of its own, and that one is judged.
    pub clears: bool,
}

/// Method of measuring a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By the program in `bench/micro`, which explains it, in a machine of this many processors at
    /// least.
    Program(u32),
    /// By the same program, which runs programs of Debian's, in a machine with their packages.
    Workload,
    /// From power-on to the first instruction of the first process, all in.
    Boot,
    /// From power-on until the first process has run `bash -c true`, with bash's packages as the
    /// file system.
    BootShell,
    /// Size of the image that a loader reads.
    ImageSize,
    /// The smallest memory of a machine that reaches the first process.
    LeastMemory,
    /// Number of times that a processor is woken in ten seconds in which nothing is to be done.
    IdleWakeUps,
    /// By the program, in a machine with network cards and one processor, whose instructions are
    /// always counted.
    Network,
    /// The same, of which the figure is memory.
    NetworkMemory,
    /// As `IdleWakeUps`, with network cards.
    NetworkIdle,
    /// By the program, which runs a server of Debian's that clients of the host ask by a network
    /// card: all that the processor executes, the server's own instructions, too.
    Server,
    /// By the program, in a machine with disks and one processor, whose instructions are always
    /// counted.
    Disk,
}

impl How {
    /// The unit of its figures.
    pub fn unit(self, icount: bool) -> &'static str {
        match self {
            How::Program(_) | How::Workload | How::Boot | How::BootShell => {
                if icount {
                    "instructions"
                } else {
                    "ns"
                }
            }
            How::Network | How::Server | How::Disk => "instructions",
            How::ImageSize | How::NetworkMemory => "bytes",
            How::LeastMemory => "MiB",
            How::IdleWakeUps | How::NetworkIdle => "wake-ups",
        }
    }

    /// Devices that it is measured with; then it is measured only when it is named.
    pub fn devices(self) -> Option<Devices> {
        match self {
            Self::Network | Self::NetworkMemory | Self::NetworkIdle | Self::Server => {
                Some(Devices::Network)
            }
            Self::Disk => Some(Devices::Disks),
            _ => None,
        }
    }
}

/// Devices of a machine in which something is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Network cards.
    Network,
    /// Disks.
    Disks,
}

impl Devices {
    /// Name of their part of the page of figures.
    pub fn section(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Disks => "disk",
        }
    }
}

/// A metric of the program on one processor, with its goal in instructions, or 0.
const fn single(name: &'static str, goal: u32) -> Metric {
    Metric {
        name,
        how: How::Program(1),
        goal: if goal == 0 { None } else { Some(goal as f64) },
        share: None,
        clears: false,
    }
}

/// A metric of the program on some processors.
const fn on(cpus: u32, name: &'static str) -> Metric {
    Metric {
        how: How::Program(cpus),
        ..single(name, 0)
    }
}

const fn machine(name: &'static str, how: How, goal: Option<f64>) -> Metric {
    Metric {
        name,
        how,
        goal,
        share: None,
        clears: false,
    }
}

/// The metrics of one operation by 1, 2, 4, 8 workers.
macro_rules! scale {
    ($operation:literal) => {
        [
            on(9, concat!("scale-", $operation, "1")),
            on(9, concat!("scale-", $operation, "2")),
            on(9, concat!("scale-", $operation, "4")),
            on(9, concat!("scale-", $operation, "8")),
        ]
    };
}

/// Metrics of `bench/micro` that measure one operation at a time, and those of whole machines.
const ALONE: &[Metric] = &[
    single("null-call", 80),
    single("getppid", 0),
    single("read-byte", 150),
    single("write-byte", 0),
    single("open-close", 1500),
    single("stat", 1000),
    single("futex-wake", 130),
    single("clock", 0),
    single("futex-same", 1800),
    on(2, "futex-apart"),
    single("condvar-same", 3000),
    on(2, "condvar-apart"),
    single("pipe-same", 3000),
    on(2, "pipe-apart"),
    single("unix-same", 4500),
    on(2, "unix-apart"),
    single("tcp-same", 0),
    on(2, "tcp-apart"),
    single("tcp-stream", 0),
    single("yield-same", 0),
    single("thread-join", 15_000),
    single("mmap-4k", 2500),
    single("mmap-128m", 2500),
    single("fault-read", 500),
    Metric {
        clears: true,
        ..single("fault-write", 800)
    },
    Metric {
        clears: true,
        ..single("fault-large", 0)
    },
    single("fault-file", 0),
    single("mprotect", 1500),
    single("signal", 2000),
    single("fork-exit", 80_000),
    single("fork-exec", 150_000),
    single("epoll-add-del", 1500),
    single("epoll-1-of-1000", 1200),
    single("poll-1000", 0),
    single("poll-wake-1000", 0),
    on(4, "primes-tasks-1"),
    on(4, "primes-tasks-2"),
    on(4, "primes-tasks-4"),
    on(4, "primes-tasks-8"),
    on(4, "primes-threads-1"),
    on(4, "primes-threads-2"),
    on(4, "primes-threads-4"),
    on(4, "primes-threads-8"),
    on(4, "primes-processes-1"),
    on(4, "primes-processes-2"),
    on(4, "primes-processes-4"),
    on(4, "primes-processes-8"),
    single("timer-latency", 0),
    single("memory-read", 0),
    single("memory-write", 0),
    single("memory-copy", 0),
    machine("work-bash", How::Workload, None),
    machine("work-spawn", How::Workload, None),
    machine("work-find", How::Workload, None),
    machine("work-tar", How::Workload, None),
    machine("work-sqlite", How::Workload, None),
    machine("work-redis", How::Workload, None),
    machine("boot-first-process", How::Boot, Some(30e6)),
    machine("boot-bash", How::BootShell, None),
    machine("image-size", How::ImageSize, None),
    machine("least-memory", How::LeastMemory, None),
    machine("idle-wake-ups", How::IdleWakeUps, Some(0.0)),
];

/// A server, which is to answer twice as much per instruction as on Linux.
const fn server(name: &'static str) -> Metric {
    Metric {
        share: Some(0.5),
        ..machine(name, How::Server, None)
    }
}

/// A metric of a network card, which is to be this part of Linux' figure.
const fn network(name: &'static str, share: f64) -> Metric {
    Metric {
        share: Some(share),
        ..machine(name, How::Network, None)
    }
}

/// Metrics of networks. They are measured only when they are named.
const NETWORK: &[Metric] = &[
    machine("net-loop-accept", How::Network, None),
    network("net-frame-send", 0.7),
    network("net-udp-send", 0.7),
    network("net-udp-send-64", 0.7),
    network("net-udp-receive", 0.7),
    network("net-udp-receive-64", 0.7),
    network("net-tcp-send", 0.7),
    network("net-tcp-receive", 0.7),
    network("net-tcp-accept", 0.5),
    machine("net-segment-10", How::Network, None),
    machine("net-segment-1000", How::Network, None),
    machine("net-segment-10000", How::Network, None),
    machine("net-connection-bytes", How::NetworkMemory, None),
    machine("net-idle-10000", How::NetworkIdle, Some(0.0)),
    server("net-nginx"),
    server("net-redis"),
    // By its name alone: to open so many takes minutes.
    machine("segment-100000", How::Network, None),
    machine("quiet-segment-10", How::Network, None),
    machine("quiet-segment-1000", How::Network, None),
    machine("quiet-segment-100000", How::Network, None),
];

/// A metric of disks, which is to be this part of Linux' figure.
const fn disk(name: &'static str, share: f64) -> Metric {
    Metric {
        share: Some(share),
        ..machine(name, How::Disk, None)
    }
}

/// One in which a page is copied.
const fn copied(name: &'static str, share: f64) -> Metric {
    Metric {
        clears: true,
        ..disk(name, share)
    }
}

/// Metrics of disks, likewise.
const DISK: &[Metric] = &[
    disk("disk-virtio-read", 0.6),
    disk("disk-virtio-write", 0.6),
    disk("disk-virtio-read-32", 0.6),
    disk("disk-virtio-write-32", 0.6),
    disk("disk-nvme-read", 0.6),
    disk("disk-nvme-write", 0.6),
    disk("disk-nvme-read-32", 0.6),
    disk("disk-nvme-write-32", 0.6),
    copied("disk-ext4-read", 0.6),
    copied("disk-ext4-write", 0.6),
    disk("disk-ext4-fault", 0.6),
    disk("disk-ext4-fault-write", 0.6),
    disk("disk-ext4-create", 0.5),
    disk("disk-ext4-unlink", 0.5),
    disk("disk-ext4-rename", 0.5),
    disk("disk-ext4-fsync", 0.5),
    disk("disk-ext4-append", 0.5),
    disk("disk-ext4-mount", 0.5),
    disk("disk-ext4-untar", 0.5),
];

const SCALE: [[Metric; 4]; 13] = [
    scale!("getppid-p"),
    scale!("getppid-t"),
    scale!("open-p"),
    scale!("open-t"),
    scale!("mmap-p"),
    scale!("mmap-t"),
    scale!("fault-p"),
    scale!("fault-t"),
    scale!("futex-p"),
    scale!("futex-t"),
    scale!("pipe-p"),
    scale!("pipe-t"),
    scale!("malloc-t"),
];

/// All metrics, in the order in which they are shown.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    ALONE
        .iter()
        .chain(SCALE.as_flattened())
        .chain(NETWORK)
        .chain(DISK)
}
