//! `/sys`: what C libraries and language run-times read to count CPUs, size caches and find out about huge pages.

use crate::proc::place;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::Write;
use fs::pseudo::{self, Attr, PseudoFs, StaticDir};
use guard::{cpu, mem};
use raw_cpuid::{CacheType, CpuId};

const MAGIC: u64 = 0x6265_6572;

/// A set of CPUs as a list: `0-3`.
pub(crate) fn cpu_list(count: usize) -> String {
    if count == 1 { "0".into() } else { format!("0-{}", count - 1) }
}

/// A set of CPUs as a mask: words of 32 bits, the highest first.
fn cpu_mask(cpus: core::ops::Range<usize>, count: usize) -> String {
    let words = (0..count.div_ceil(32))
        .rev()
        .map(|word| (0..32).filter(|bit| cpus.contains(&(word * 32 + bit))).fold(0u32, |mask, bit| mask | 1 << bit));
    let words: alloc::vec::Vec<String> = words.map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// A new sysfs.
#[must_use]
pub fn new() -> Arc<PseudoFs> {
    PseudoFs::new("sysfs", MAGIC, |dev| {
        let root = StaticDir::new(dev);
        let count = cpu::count();
        let add = |path: &str, text: String| place(&root, path, pseudo::constant(dev, text));
        let all = format!("{}\n", cpu_list(count));
        for name in ["online", "possible", "present"] {
            add(&format!("devices/system/cpu/{name}"), all.clone());
        }
        for name in ["offline", "isolated"] {
            add(&format!("devices/system/cpu/{name}"), "\n".into());
        }
        add("devices/system/cpu/kernel_max", format!("{}\n", cpu::MAX_CPUS - 1));
        add("devices/system/cpu/smt/active", "0\n".into());
        add("devices/system/cpu/smt/control", "notsupported\n".into());
        for index in 0..count {
            add_cpu(&add, index, count);
        }
        for name in ["online", "possible", "has_cpu", "has_memory", "has_normal_memory"] {
            add(&format!("devices/system/node/{name}"), "0\n".into());
        }
        let node = "devices/system/node/node0";
        add(&format!("{node}/cpulist"), all.clone());
        add(&format!("{node}/cpumap"), format!("{}\n", cpu_mask(0..count, count)));
        add(&format!("{node}/distance"), "10\n".into());
        place(&root, &format!("{node}/meminfo"), pseudo::file(Attr::new(dev, 0o444), || Ok(node_memory().into_bytes())));
        for index in 0..count {
            let _ = root.subdir(&format!("{node}/cpu{index}"));
        }
        add("devices/system/clocksource/clocksource0/current_clocksource", "tsc\n".into());
        add("devices/system/clocksource/clocksource0/available_clocksource", "tsc\n".into());
        let huge = "kernel/mm/transparent_hugepage";
        add(&format!("{huge}/enabled"), "always madvise [never]\n".into());
        add(&format!("{huge}/defrag"), "always defer defer+madvise madvise [never]\n".into());
        add(&format!("{huge}/shmem_enabled"), "always within_size advise [never] deny force\n".into());
        add(&format!("{huge}/use_zero_page"), "0\n".into());
        add(&format!("{huge}/hpage_pmd_size"), "2097152\n".into());
        for name in ["nr", "free", "resv", "surplus", "nr_overcommit"] {
            add(&format!("kernel/mm/hugepages/hugepages-2048kB/{name}_hugepages"), "0\n".into());
        }
        // Where programs expect mount points and listings.
        for empty in ["fs/cgroup", "kernel/debug", "class", "block", "bus", "dev/char", "dev/block", "module"] {
            let _ = root.subdir(empty);
        }
        root
    })
}

/// One CPU: a core of its own in the one package there is.
fn add_cpu(add: &impl Fn(&str, String), index: usize, count: usize) {
    let cpu = format!("devices/system/cpu/cpu{index}");
    if index > 0 {
        add(&format!("{cpu}/online"), "1\n".into());
    }
    add(&format!("{cpu}/topology/core_id"), format!("{index}\n"));
    for name in ["physical_package_id", "die_id"] {
        add(&format!("{cpu}/topology/{name}"), "0\n".into());
    }
    let sets = [
        (&["core_cpus", "thread_siblings"][..], index..index + 1, format!("{index}\n")),
        (&["package_cpus", "core_siblings", "die_cpus"][..], 0..count, format!("{}\n", cpu_list(count))),
    ];
    for (names, cpus, list) in sets {
        for name in names {
            add(&format!("{cpu}/topology/{name}"), format!("{}\n", cpu_mask(cpus.clone(), count)));
            add(&format!("{cpu}/topology/{name}_list"), list.clone());
        }
    }
    let Some(caches) = CpuId::new().get_cache_parameters() else { return };
    for (number, cache) in caches.enumerate() {
        let kind = match cache.cache_type() {
            CacheType::Data => "Data",
            CacheType::Instruction => "Instruction",
            CacheType::Unified => "Unified",
            _ => continue,
        };
        let dir = format!("{cpu}/cache/index{number}");
        let (ways, line, sets) = (cache.associativity(), cache.coherency_line_size(), cache.sets());
        let partitions = cache.physical_line_partitions();
        // What is below the last level is a core's; the last is everybody's.
        let shared = if cache.level() >= 3 { 0..count } else { index..index + 1 };
        let list = if cache.level() >= 3 { cpu_list(count) } else { format!("{index}") };
        for (name, text) in [
            ("level", format!("{}", cache.level())),
            ("type", kind.into()),
            ("size", format!("{}K", ways * partitions * line * sets / 1024)),
            ("coherency_line_size", format!("{line}")),
            ("ways_of_associativity", format!("{ways}")),
            ("number_of_sets", format!("{sets}")),
            ("physical_line_partition", format!("{partitions}")),
            ("shared_cpu_map", cpu_mask(shared, count)),
            ("shared_cpu_list", list),
        ] {
            add(&format!("{dir}/{name}"), format!("{text}\n"));
        }
    }
}

fn node_memory() -> String {
    let stats = mem::stats();
    let total = stats.total - stats.granted - stats.leaked;
    let rows = [("MemTotal", total), ("MemFree", stats.free), ("MemUsed", total - stats.free), ("AnonPages", stats.user)];
    rows.iter().fold(String::new(), |mut text, (name, frames)| {
        let _ = writeln!(text, "Node 0 {:<16}{:>8} kB", format!("{name}:"), frames * 4);
        text
    })
}
