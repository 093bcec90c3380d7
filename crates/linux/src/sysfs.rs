//! `/sys`: the few files that C libraries and language run-times read to count CPUs and size caches.

use crate::proc::place;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use fs::pseudo::{self, PseudoFs, StaticDir};
use guard::cpu;

const MAGIC: u64 = 0x6265_6572;

/// A new sysfs.
#[must_use]
pub fn new() -> Arc<PseudoFs> {
    PseudoFs::new("sysfs", MAGIC, |dev| {
        let root = StaticDir::new(dev);
        let count = cpu::count();
        let add = |path: &str, text: String| place(&root, path, pseudo::constant(dev, text));
        let all = if count == 1 { "0\n".into() } else { format!("0-{}\n", count - 1) };
        for name in ["online", "possible", "present"] {
            add(&format!("devices/system/cpu/{name}"), all.clone());
        }
        add("devices/system/cpu/offline", "\n".into());
        add("devices/system/cpu/kernel_max", format!("{}\n", cpu::MAX_CPUS - 1));
        for index in 0..count {
            let topology = format!("devices/system/cpu/cpu{index}/topology");
            add(&format!("{topology}/core_id"), format!("{index}\n"));
            add(&format!("{topology}/physical_package_id"), "0\n".into());
            add(&format!("{topology}/core_siblings_list"), all.clone());
            add(&format!("{topology}/thread_siblings_list"), format!("{index}\n"));
            if index > 0 {
                add(&format!("devices/system/cpu/cpu{index}/online"), "1\n".into());
            }
        }
        add("devices/system/node/online", "0\n".into());
        add("devices/system/node/possible", "0\n".into());
        add("devices/system/node/node0/cpulist", all.clone());
        add("devices/system/clocksource/clocksource0/current_clocksource", "tsc\n".into());
        add("devices/system/clocksource/clocksource0/available_clocksource", "tsc\n".into());
        add("kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n".into());
        add("kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n".into());
        // Where programs expect mount points and listings.
        for empty in ["fs/cgroup", "kernel/debug", "kernel/mm/hugepages", "class", "block", "bus", "dev"] {
            let _ = root.subdir(empty);
        }
        root
    })
}
