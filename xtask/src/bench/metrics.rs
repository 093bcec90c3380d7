//! What the program in `bench/micro` measures, and the figures to reach.

/// One metric.
pub struct Metric {
    /// Its name in the program, in tables and on the command line.
    pub name: &'static str,
    /// What it is to cost at most: instructions on one processor, without what `clears` says.
    pub goal: Option<f64>,
    /// Pages that the kernel must clear or copy in one operation. The loop that does so counts one instruction for each of its
    /// turns where it is a `rep` instruction, which says nothing about its time, so it is shown apart.
    pub clears: u32,
}

const fn metric(name: &'static str, goal: u32) -> Metric {
    Metric { name, goal: if goal == 0 { None } else { Some(goal as f64) }, clears: 0 }
}

/// All of them, in the order in which they run. `bench/micro` explains each.
pub const METRICS: &[Metric] = &[
    metric("null-call", 80),
    metric("read-byte", 150),
    metric("write-byte", 0),
    metric("open-close", 1500),
    metric("stat", 1000),
    metric("futex-wake", 130),
    metric("futex-same", 1800),
    metric("futex-apart", 0),
    metric("condvar-same", 3000),
    metric("condvar-apart", 0),
    metric("pipe-same", 3000),
    metric("pipe-apart", 0),
    metric("unix-same", 4500),
    metric("unix-apart", 0),
    metric("thread-join", 15_000),
    metric("mmap-4k", 2500),
    metric("mmap-128m", 2500),
    metric("fault-read", 500),
    Metric { clears: 1, ..metric("fault-write", 800) },
    metric("fault-file", 0),
    metric("mprotect", 1500),
    metric("signal", 2000),
    metric("fork-exit", 80_000),
    metric("fork-exec", 150_000),
    metric("epoll-add-del", 1500),
    metric("epoll-1-of-1000", 1200),
];
