//! `/sys/fs/cgroup`: the one control group there is, version 2, as programs in a container see
//! theirs.
//!
//! The group is the instance: its limits are the instance's processors and memory, which
//! container-aware run-times read to choose how many threads they start and how much memory they
//! use. Nothing can be changed through it, and no groups can be made.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::Display;

use fs::pseudo::{self, PseudoAttr, PseudoFs, StaticDir};
use guard::{cpu, mem};
use task::{CpuId, stats};

use crate::kernfs::sysfs::cpu_list;
use crate::mm::oom;
use crate::process::process_table;
use crate::procfs::{add_at_path, resource_pressure};

const MAGIC: u64 = 0x6367_7270;
/// The period of `cpu.max`, in microseconds.
const PERIOD_US: usize = 100_000;
const FRAME: u64 = 4096;

/// Makes a file's text.
type Text = fn() -> String;

/// A new cgroup2 file system.
#[must_use]
pub fn new() -> Arc<PseudoFs> {
    PseudoFs::new("cgroup2", MAGIC, |dev| {
        let root = StaticDir::new(dev);
        let texts: [(&str, Text); 35] = [
            ("cgroup.controllers", || "cpuset cpu memory pids\n".into()),
            ("cgroup.subtree_control", || "\n".into()),
            ("cgroup.type", || "domain\n".into()),
            ("cgroup.events", || "populated 1\nfrozen 0\n".into()),
            ("cgroup.stat", || {
                "nr_descendants 0\nnr_dying_descendants 0\n".into()
            }),
            ("cgroup.max.depth", || "0\n".into()),
            ("cgroup.max.descendants", || "0\n".into()),
            ("cgroup.freeze", || "0\n".into()),
            ("cgroup.procs", || lines(process_table::pids())),
            ("cgroup.threads", threads),
            ("cpu.max", || {
                format!("{} {PERIOD_US}\n", cpu::count() * PERIOD_US)
            }),
            ("cpu.max.burst", || "0\n".into()),
            ("cpu.weight", || "100\n".into()),
            ("cpu.weight.nice", || "0\n".into()),
            ("cpu.stat", cpu_stat),
            ("cpuset.cpus", || format!("{}\n", cpu_list(0..cpu::count()))),
            ("cpuset.cpus.effective", || {
                format!("{}\n", cpu_list(0..cpu::count()))
            }),
            ("cpuset.cpus.partition", || "member\n".into()),
            ("cpuset.mems", || "0\n".into()),
            ("cpuset.mems.effective", || "0\n".into()),
            ("memory.max", || format!("{}\n", total())),
            ("memory.high", || "max\n".into()),
            ("memory.low", || "0\n".into()),
            ("memory.min", || "0\n".into()),
            ("memory.oom.group", || "0\n".into()),
            ("memory.current", || format!("{}\n", used())),
            ("memory.events", memory_events),
            ("memory.events.local", memory_events),
            ("memory.stat", memory_stat),
            ("memory.swap.max", || "0\n".into()),
            ("memory.swap.current", || "0\n".into()),
            ("memory.swap.high", || "max\n".into()),
            ("pids.max", || "32768\n".into()),
            ("pids.current", || {
                format!("{}\n", process_table::thread_count())
            }),
            ("io.stat", String::new),
        ];
        for (name, text) in texts {
            root.add(
                name,
                pseudo::file(PseudoAttr::new(dev, 0o444), move || Ok(text().into_bytes())),
            );
        }
        for name in ["cpu", "memory", "io"] {
            add_at_path(
                &root,
                &format!("{name}.pressure"),
                resource_pressure(name, dev),
            );
        }
        root
    })
}

fn lines(numbers: impl IntoIterator<Item = impl Display>) -> String {
    numbers
        .into_iter()
        .map(|number| format!("{number}\n"))
        .collect()
}

fn threads() -> String {
    let of_process = |pid| {
        process_table::find(pid)
            .map(|process| process.snapshot().threads)
            .unwrap_or_default()
    };
    lines(process_table::pids().into_iter().flat_map(of_process))
}

/// The instance's memory, in bytes: without what other instances were given.
fn total() -> u64 {
    let stats = mem::stats();
    (stats.total - stats.granted - stats.leaked) * FRAME
}

fn used() -> u64 {
    total().saturating_sub(mem::stats().free * FRAME)
}

fn memory_events() -> String {
    let kills = oom::kills();
    format!("low 0\nhigh 0\nmax 0\noom {kills}\noom_kill {kills}\n")
}

fn memory_stat() -> String {
    let stats = mem::stats();
    format!(
        "anon {}\nfile 0\nkernel {}\nkernel_stack {}\npagetables {}\nslab {}\n",
        stats.user * FRAME,
        stats.kernel * FRAME,
        stats.stacks * FRAME,
        stats.tables * FRAME,
        stats.heap * FRAME
    )
}

fn cpu_stat() -> String {
    let busy = |n| stats::cpu(CpuId(n)).busy_ns();
    let usage: u64 = (0..cpu::most() as u32).map(busy).sum::<u64>() / 1000;
    // Time in user mode and in the kernel is not told apart.
    format!(
        "usage_usec {usage}\nuser_usec {usage}\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"
    )
}
