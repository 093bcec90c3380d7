//! `/sys`: what C libraries and language run-times read to count CPUs, size caches and find out
//! about huge pages.

use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::fmt::Write;
use core::sync::atomic::{AtomicU8, Ordering};

use abi::errno::Errno;
use fs::Inode;
use fs::pseudo::{self, PseudoAttr, PseudoFs, StaticDir};
use guard::speculation::{self, Vulnerability};
use guard::{cpu, mem};
use raw_cpuid::{CacheType, CpuId};
use task::{Mutex, Topology};
use vm::LargePages;

use crate::procfs::add_at_path;

const MAGIC: u64 = 0x6265_6572;

/// A set of CPUs, ascending, as a list: `0-3,6`.
pub(crate) fn cpu_list(cpus: impl IntoIterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let runs = runs.iter().map(|(first, last)| {
        if first == last {
            format!("{first}")
        } else {
            format!("{first}-{last}")
        }
    });
    runs.collect::<Vec<_>>().join(",")
}

/// A set of CPUs as a mask of all that there may be: words of 32 bits, the highest first.
fn cpu_mask(cpus: impl IntoIterator<Item = usize>) -> String {
    mask_text(cpus, cpu::limit())
}

/// A set of CPUs as a mask for `count` of them.
fn mask_text(cpus: impl IntoIterator<Item = usize>, count: usize) -> String {
    let mut words = vec![0u32; count.div_ceil(32)];
    for cpu in cpus {
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    words
        .iter()
        .rev()
        .map(|word| format!("{word:08x}"))
        .collect::<Vec<_>>()
        .join(",")
}

/// Makes a sysfs with its directories and files.
#[must_use]
pub fn new() -> Arc<PseudoFs> {
    PseudoFs::new("sysfs", MAGIC, |dev| {
        let root = StaticDir::new(dev);
        let add = |path: &str, text: String| add_at_path(&root, path, pseudo::constant(dev, text));
        let generate = |path: &str, text: fn() -> String| {
            let show = move || Ok(text().into_bytes());
            let file = pseudo::file(PseudoAttr::new(dev, 0o444), show);
            add_at_path(&root, path, file);
        };
        let all = || format!("{}\n", cpu_list(0..cpu::count()));
        for name in ["online", "present"] {
            generate(&format!("devices/system/cpu/{name}"), all);
        }
        add(
            "devices/system/cpu/possible",
            format!("{}\n", cpu_list(0..cpu::limit())),
        );
        generate("devices/system/cpu/offline", || {
            format!("{}\n", cpu_list(cpu::count()..cpu::limit()))
        });
        add("devices/system/cpu/isolated", "\n".into());
        add(
            "devices/system/cpu/kernel_max",
            format!("{}\n", cpu::MAX_CPUS - 1),
        );
        let (active, control) = if task::topology().has_siblings() {
            ("1\n", "on\n")
        } else {
            ("0\n", "notsupported\n")
        };
        add("devices/system/cpu/smt/active", active.into());
        add("devices/system/cpu/smt/control", control.into());
        let report = speculation::report();
        for vulnerability in Vulnerability::ALL {
            let line = report.line(vulnerability, task::topology().has_siblings());
            add(
                &format!(
                    "devices/system/cpu/vulnerabilities/{}",
                    vulnerability.name()
                ),
                format!("{line}\n"),
            );
        }
        {
            let mut roots = ROOTS.lock();
            roots.push((dev, Arc::downgrade(&root)));
            (0..cpu::count()).for_each(|index| add_cpu(&root, dev, index));
        }
        for name in [
            "online",
            "possible",
            "has_cpu",
            "has_memory",
            "has_normal_memory",
        ] {
            add(&format!("devices/system/node/{name}"), "0\n".into());
        }
        let node = NODE;
        generate(&format!("{node}/cpulist"), all);
        generate(&format!("{node}/cpumap"), || {
            format!("{}\n", cpu_mask(0..cpu::count()))
        });
        add(&format!("{node}/distance"), "10\n".into());
        add_at_path(
            &root,
            &format!("{node}/meminfo"),
            pseudo::file(PseudoAttr::new(dev, 0o444), || {
                Ok(node_memory().into_bytes())
            }),
        );
        add(
            "devices/system/clocksource/clocksource0/current_clocksource",
            "tsc\n".into(),
        );
        add(
            "devices/system/clocksource/clocksource0/available_clocksource",
            "tsc\n".into(),
        );
        let huge = "kernel/mm/transparent_hugepage";
        add_at_path(&root, &format!("{huge}/enabled"), transparent_hugepage(dev));
        add_at_path(
            &root,
            &format!("{huge}/defrag"),
            choice_setting(
                dev,
                &DEFRAG,
                &["always", "defer", "defer+madvise", "madvise", "never"],
            ),
        );
        // No file has any: of the choices there are on Linux, only those that say so can be made.
        add_at_path(
            &root,
            &format!("{huge}/shmem_enabled"),
            choice_setting(dev, &SHMEM, &["never", "deny"]),
        );
        add(&format!("{huge}/use_zero_page"), "0\n".into());
        add(&format!("{huge}/hpage_pmd_size"), "2097152\n".into());
        for name in ["nr", "free", "resv", "surplus", "nr_overcommit"] {
            add(
                &format!("kernel/mm/hugepages/hugepages-2048kB/{name}_hugepages"),
                "0\n".into(),
            );
        }
        // Where programs expect mount points and listings.
        for empty in [
            "fs/cgroup",
            "kernel/debug",
            "class",
            "bus",
            "dev/char",
            "module",
        ] {
            let _ = root.subdir(empty);
        }
        super::block::add(&root, dev);
        super::net::add(&root, dev);
        super::nvme::add(&root, dev);
        super::pci::add(&root, dev);
        root
    })
}

/// Whether a fault may wait for memory to be put together for a large page. It never does.
static DEFRAG: AtomicU8 = AtomicU8::new(3);
static SHMEM: AtomicU8 = AtomicU8::new(0);

/// The names of choices, the one that is made in brackets.
fn choices(names: &[&str], made: usize) -> Vec<u8> {
    let marked = names.iter().enumerate().map(|(n, name)| {
        if n == made {
            format!("[{name}]")
        } else {
            (*name).into()
        }
    });
    let mut line = marked.collect::<Vec<String>>().join(" ");
    line.push('\n');
    line.into_bytes()
}

/// Index of the name that was written; `EINVAL` for another text.
fn index_of_choice(names: &[&str], text: &[u8]) -> Result<usize, Errno> {
    names
        .iter()
        .position(|name| name.as_bytes() == text.trim_ascii())
        .ok_or(Errno::EINVAL)
}

/// A file in which one of `names` is chosen.
fn choice_setting(
    dev: u64,
    made: &'static AtomicU8,
    names: &'static [&'static str],
) -> Arc<dyn Inode> {
    let show = || Ok(choices(names, made.load(Ordering::Relaxed).into()));
    pseudo::setting_file(PseudoAttr::new(dev, 0o644), show, |text| {
        index_of_choice(names, text).map(|n| made.store(n as u8, Ordering::Relaxed))
    })
}

/// File that says what memory gets large pages (`transparent_hugepage/enabled`).
fn transparent_hugepage(dev: u64) -> Arc<dyn Inode> {
    const NAMES: [&str; 3] = ["always", "madvise", "never"];
    const ALL: [LargePages; 3] = [LargePages::Always, LargePages::Madvise, LargePages::Never];
    let show = || {
        Ok(choices(
            &NAMES,
            ALL.iter()
                .position(|one| *one == vm::large_pages())
                .unwrap_or_default(),
        ))
    };
    pseudo::setting_file(PseudoAttr::new(dev, 0o644), show, |text| {
        index_of_choice(&NAMES, text).map(|n| vm::set_large_pages(ALL[n]))
    })
}

/// All file systems of this kind, with their device numbers.
static ROOTS: Mutex<Vec<(u64, Weak<StaticDir>)>> = Mutex::new(Vec::new());

/// Adds the files of CPUs that have come since, and removes those of CPUs that have left.
pub fn update_cpus() {
    for (dev, root) in ROOTS.lock().iter() {
        if let Some(root) = root.upgrade() {
            (0..cpu::count())
                .filter(|index| !has_cpu(&root, *index))
                .for_each(|index| add_cpu(&root, *dev, index));
            for index in cpu::count()..cpu::most() {
                let name = format!("cpu{index}");
                root.subdir(CPUS).remove(&name);
                root.subdir(NODE).remove(&name);
            }
        }
    }
}

/// Directory of the CPUs.
const CPUS: &str = "devices/system/cpu";
/// Directory of the only memory node.
const NODE: &str = "devices/system/node/node0";

fn has_cpu(root: &Arc<StaticDir>, index: usize) -> bool {
    root.subdir(NODE)
        .lookup(format!("cpu{index}").as_bytes())
        .is_ok()
}

/// File of a CPU with a set of CPUs that depends on which there are. Who still has it open when the
/// CPU has left is told that.
fn cpu_set(
    dev: u64,
    index: usize,
    text: impl Fn(&Topology) -> String + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    pseudo::file(PseudoAttr::new(dev, 0o444), move || {
        let topology = task::topology();
        if index >= topology.places().len() {
            return Err(Errno::ENODEV);
        }
        Ok(format!("{}\n", text(&topology)).into_bytes())
    })
}

/// Adds the files of one CPU: its place among the instance's, and its caches.
fn add_cpu(root: &Arc<StaticDir>, dev: u64, index: usize) {
    let topology = task::topology();
    // It may have left meanwhile.
    let Some(place) = topology.places().get(index) else {
        return;
    };
    let add = |path: &str, text: String| add_at_path(root, path, pseudo::constant(dev, text));
    let _ = root.subdir(&format!("{NODE}/cpu{index}"));
    let cpu = format!("{CPUS}/cpu{index}");
    if index > 0 {
        add(&format!("{cpu}/online"), "1\n".into());
    }
    for (name, id) in [
        ("core_id", place.core),
        ("physical_package_id", place.package),
        ("die_id", place.die.unwrap_or(0)),
    ] {
        add(&format!("{cpu}/topology/{name}"), format!("{id}\n"));
    }
    type Set = fn(&Topology, usize) -> Vec<usize>;
    let sets: [(&[_], Set); 3] = [
        (&["core_cpus", "thread_siblings"], |topology, index| {
            topology.core(index).collect()
        }),
        (&["package_cpus", "core_siblings"], |topology, index| {
            topology.package(index).collect()
        }),
        (&["die_cpus"], |topology, index| {
            topology.die(index).collect()
        }),
    ];
    for (names, set) in sets {
        for name in names {
            let path = format!("{cpu}/topology/{name}");
            let mask = cpu_set(dev, index, move |topology| cpu_mask(set(topology, index)));
            add_at_path(root, &path, mask);
            let list = cpu_set(dev, index, move |topology| cpu_list(set(topology, index)));
            add_at_path(root, &format!("{path}_list"), list);
        }
    }
    let Some(caches) = CpuId::new().get_cache_parameters() else {
        return;
    };
    for (number, cache) in caches.enumerate() {
        let kind = match cache.cache_type() {
            CacheType::Data => "Data",
            CacheType::Instruction => "Instruction",
            CacheType::Unified => "Unified",
            _ => continue,
        };
        let dir = format!("{cpu}/cache/index{number}");
        let (ways, line, sets) = (
            cache.associativity(),
            cache.coherency_line_size(),
            cache.sets(),
        );
        let partitions = cache.physical_line_partitions();
        let most = cache.max_cores_for_cache();
        for (name, text) in [
            ("level", format!("{}", cache.level())),
            ("type", kind.into()),
            (
                "size",
                format!("{}K", ways * partitions * line * sets / 1024),
            ),
            ("coherency_line_size", format!("{line}")),
            ("ways_of_associativity", format!("{ways}")),
            ("number_of_sets", format!("{sets}")),
            ("physical_line_partition", format!("{partitions}")),
        ] {
            add(&format!("{dir}/{name}"), format!("{text}\n"));
        }
        let map = cpu_set(dev, index, move |all| cpu_mask(all.sharing(index, most)));
        add_at_path(root, &format!("{dir}/shared_cpu_map"), map);
        let list = cpu_set(dev, index, move |all| cpu_list(all.sharing(index, most)));
        add_at_path(root, &format!("{dir}/shared_cpu_list"), list);
    }
}

fn node_memory() -> String {
    let stats = mem::stats();
    let total = stats.total - stats.granted - stats.leaked;
    let rows = [
        ("MemTotal", total),
        ("MemFree", stats.free),
        ("MemUsed", total - stats.free),
        ("AnonPages", stats.user),
        ("KernelStack", stats.stacks),
        ("PageTables", stats.tables),
        ("Slab", stats.heap),
        ("SUnreclaim", stats.heap),
    ];
    rows.iter().fold(String::new(), |mut text, (name, frames)| {
        let _ = writeln!(
            text,
            "Node 0 {:<16}{:>8} kB",
            format!("{name}:"),
            frames * 4
        );
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{cpu_list, mask_text};

    #[test]
    fn sets_of_cpus_read_as_on_linux() {
        assert_eq!(
            ["0", "0-3", "1,3-4,7"],
            [cpu_list([0]), cpu_list(0..4), cpu_list([1, 3, 4, 7])]
                .each_ref()
                .map(|list| &**list)
        );
        assert_eq!(
            ["00000003", "00000001,80000001"],
            [mask_text(0..2, 4), mask_text([0, 31, 32], 33)]
                .each_ref()
                .map(|mask| &**mask)
        );
    }
}
