//! Texts about the machine: `/proc/cpuinfo`, `/proc/meminfo`, `/proc/stat` and their neighbours.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use ::task::Mutex;
use abi::errno::Errno;
use fs::block::{Disk, disks};
use fs::lock;
use fs::pseudo::{self, PseudoAttr, StaticDir};
use guard::{cpu, irq, isolation, mem, role, speculation, timer};
use task::cpu_stats::CpuStats;
use task::{CpuId, stats};

use super::add_at_path;
use crate::files::filesystems;
use crate::ipc::{msg, sem, shm};
use crate::mm::{mmap, oom};
use crate::process::{accounting, process_table};
use crate::state::usage::CpuTimes;
use crate::system::sysinfo;

/// A clock tick as `/proc` counts time: 10 ms.
pub(super) const NS_PER_TICK: u64 = 10_000_000;

/// Makes a file's text.
pub(super) type Text = fn() -> String;
/// Makes a text with lines for objects of programs.
type List = fn() -> Result<String, Errno>;

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let texts: [(&str, Text); 21] = [
        ("cpuinfo", cpuinfo),
        ("meminfo", meminfo),
        ("stat", stat),
        ("loadavg", loadavg),
        ("uptime", uptime),
        ("version", version),
        ("filesystems", filesystems),
        ("cmdline", || format!("{}\n", role::cmdline())),
        ("interrupts", interrupts),
        ("devices", devices),
        ("swaps", || {
            "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n".into()
        }),
        ("vmstat", vmstat),
        ("zoneinfo", zoneinfo),
        ("softirqs", softirqs),
        ("buddyinfo", buddyinfo),
        ("diskstats", diskstats),
        ("partitions", partitions),
        // There are no modules or miscellaneous devices with fixed numbers.
        ("modules", String::new),
        ("misc", String::new),
        ("tty/drivers", tty_drivers),
        ("cgroups", || {
            ["cpuset", "cpu", "memory", "pids"].iter().fold(
                "#subsys_name\thierarchy\tnum_cgroups\tenabled\n".into(),
                |text, name| format!("{text}{name}\t0\t1\t1\n"),
            )
        }),
    ];
    for (name, text) in texts {
        add_at_path(
            dir,
            name,
            pseudo::file(PseudoAttr::new(dev, 0o444), move || Ok(text().into_bytes())),
        );
    }
    let lists: [(&str, List); 4] = [
        ("locks", || {
            lock::proc_text().map(fallible::Text::into_string)
        }),
        ("sysvipc/msg", msg::proc_text),
        ("sysvipc/sem", sem::proc_text),
        ("sysvipc/shm", shm::proc_text),
    ];
    for (name, text) in lists {
        let file = pseudo::file(PseudoAttr::new(dev, 0o444), move || {
            text().map(String::into_bytes)
        });
        add_at_path(dir, name, file);
    }
    dir.add(
        "sysrq-trigger",
        pseudo::writable_file(PseudoAttr::new(dev, 0o200), || Ok(Vec::new()), sysrq),
    );
}

/// Requests to this kernel by a letter, of which it knows one, the crash. Linux takes the first
/// letter only, and says in its log what there is when it does not know it.
fn sysrq(text: &[u8]) -> Result<(), Errno> {
    if text.starts_with(b"c") {
        panic!("sysrq triggered crash");
    }
    log::info!("sysrq: HELP : crash(c)");
    Ok(())
}

/// Disks, each before its partitions.
fn all_disks() -> impl Iterator<Item = Arc<Disk>> {
    let whole = disks().into_iter().filter(|disk| disk.number() == 0);
    whole.flat_map(|disk| {
        let parts = disk.partitions();
        core::iter::once(disk).chain(parts)
    })
}

/// Disks and partitions with something on them, in KiB.
fn partitions() -> String {
    let head = "major minor  #blocks  name\n\n".to_owned();
    all_disks()
        .filter(|disk| disk.device().capacity() > 0)
        .fold(head, |mut text, disk| {
            let (id, kib) = (disk.id(), disk.device().capacity() / 1024);
            let _ = writeln!(
                text,
                "{:4}  {:7} {kib:10} {}",
                id.major,
                id.minor,
                disk.name()
            );
            text
        })
}

fn diskstats() -> String {
    all_disks().fold(String::new(), |mut text, disk| {
        let id = disk.id();
        let _ = write!(text, "{:4} {:7} {}", id.major, id.minor, disk.name());
        for column in disk.statistics() {
            let _ = write!(text, " {column}");
        }
        text.push('\n');
        text
    })
}

fn cpuinfo() -> String {
    let brand = cpu::brand();
    let report = speculation::report();
    let isolated = isolation::is_on().then_some("pti");
    let flags = brand
        .flags()
        .chain(report.processor.flags())
        .chain(isolated);
    let flags = flags.collect::<Vec<_>>().join(" ");
    let bugs = report.bugs.names().collect::<Vec<_>>().join(" ");
    let mhz = timer::tsc_hz() / 1000;
    let topology = task::topology();
    topology.places().iter().enumerate().fold(String::new(), |mut text, (index, place)| {
        let _ = write!(
            text,
            "processor\t: {index}\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: {}\nstepping\t: {}\n\
             cpu MHz\t\t: {}.{:03}\nphysical id\t: {}\nsiblings\t: {}\ncore id\t\t: {}\ncpu cores\t: {}\n\
             apicid\t\t: {apic_id}\ninitial apicid\t: {apic_id}\nfpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: 13\nwp\t\t: yes\nflags\t\t: {flags}\n\
             bugs\t\t: {bugs}\nbogomips\t: {}.{:02}\nclflush size\t: 64\ncache_alignment\t: 64\n\
             address sizes\t: 40 bits physical, 48 bits virtual\n\n",
            brand.vendor(),
            brand.family,
            brand.model,
            brand.name(),
            brand.stepping,
            mhz / 1000,
            mhz % 1000,
            place.package,
            topology.package(index).count(),
            place.core,
            topology.cores_in_package(index),
            mhz / 500,
            mhz / 5 % 100,
            apic_id = place.apic_id,
        );
        text
    })
}

fn meminfo() -> String {
    let stats = mem::stats();
    let kib = |frames: u64| frames * 4;
    // What other instances were given is not this machine's memory any more.
    let (total, free) = (
        kib(stats.total - stats.granted - stats.leaked),
        kib(stats.free),
    );
    // No swap. Files in memory are shared memory in Linux' words; pages of devices and of files on
    // them are given back when they are clean.
    let files = kib(fs::ramfs::pages_in_files().min(stats.user));
    let rest = kib(stats.user) - files;
    let buffers = kib(fs::block::writeback::device_pages()).min(rest);
    let cached = kib(fs::block::writeback::file_pages()).min(rest - buffers);
    let dirty = kib(fs::block::writeback::dirty_pages()).min(buffers + cached);
    let anonymous = rest - buffers - cached;
    let rows = [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free + buffers + cached - dirty),
        ("Buffers", buffers),
        ("Cached", files + cached),
        ("SwapCached", 0),
        ("Active", anonymous),
        ("Inactive", files + cached),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", dirty),
        ("Writeback", 0),
        ("AnonPages", anonymous),
        ("Mapped", 0),
        ("Shmem", files),
        ("KReclaimable", 0),
        ("Slab", kib(stats.heap)),
        ("SReclaimable", 0),
        ("SUnreclaim", kib(stats.heap)),
        ("KernelStack", kib(stats.stacks)),
        ("PageTables", kib(stats.tables)),
        ("SecPageTables", 0),
        ("CommitLimit", mmap::strict_commit_limit() as u64 / 1024),
        ("Committed_AS", mmap::committed() as u64 / 1024),
        ("AnonHugePages", guard::paging::large_pages() * 2048),
        ("ShmemHugePages", 0),
        ("ShmemPmdMapped", 0),
        ("FileHugePages", 0),
        ("FilePmdMapped", 0),
    ];
    let mut text = rows.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{:<16}{value:>8} kB", format!("{name}:"));
        text
    });
    for name in ["Total", "Free", "Rsvd", "Surp"] {
        let _ = writeln!(text, "HugePages_{name}: {:>7}", 0);
    }
    text.push_str("Hugepagesize:       2048 kB\nHugetlb:               0 kB\n");
    text
}

/// Times of one CPU since it started, in ticks of [`NS_PER_TICK`].
#[derive(Clone, Copy, Default)]
struct CpuTicks {
    busy: CpuTimes,
    idle: u64,
    /// Time in which it stood still, which is stolen from a program's point of view.
    steal: u64,
}

/// Time of each CPU that there was, in ticks: programs in user mode, the rest of what it did, idle.
fn cpu_ticks() -> Vec<CpuTicks> {
    /// Ticks that were reported last: no part ever becomes less.
    static LAST_REPORTED: Mutex<Vec<CpuTicks>> = Mutex::new(Vec::new());
    let user_ns = accounting::total_user_ns();
    let mut told = LAST_REPORTED.lock();
    told.resize(cpu::most(), CpuTicks::default());
    let times: Vec<_> = (0..told.len())
        .map(|n| stats::cpu(CpuId(n as u32)))
        .collect();
    let busy_ns: u64 = times.iter().map(CpuStats::busy_ns).sum();
    for (told, stats) in told.iter_mut().zip(times) {
        let busy = stats.busy_ns();
        // How user and system time are shared out is known for all CPUs together only.
        let user = (u128::from(busy) * u128::from(user_ns) / u128::from(busy_ns.max(1))) as u64;
        let busy_ticks = busy / NS_PER_TICK;
        told.busy = told
            .busy
            .next(busy_ticks, busy_ticks - user.min(busy) / NS_PER_TICK);
        told.idle = told.idle.max(stats.idle_ns / NS_PER_TICK);
        told.steal = told.steal.max(stats.paused_ns / NS_PER_TICK);
    }
    told.clone()
}

fn stat() -> String {
    let cpus = cpu_ticks();
    let sum = |part: fn(&CpuTicks) -> u64| cpus.iter().map(part).sum::<u64>();
    let mut text = format!(
        "cpu  {} 0 {} {} 0 0 0 {} 0 0\n",
        sum(|cpu| cpu.busy.user),
        sum(|cpu| cpu.busy.system),
        sum(|cpu| cpu.idle),
        sum(|cpu| cpu.steal)
    );
    for (index, CpuTicks { busy, idle, steal }) in cpus.iter().enumerate().take(cpu::count()) {
        let _ = writeln!(
            text,
            "cpu{index} {} 0 {} {idle} 0 0 0 {steal} 0 0",
            busy.user, busy.system
        );
    }
    let switches: u64 = (0..cpu::most())
        .map(|n| stats::cpu(CpuId(n as u32)).switches)
        .sum();
    let interrupts: u64 = (0..cpu::most() as u32)
        .flat_map(|n| (0..=u8::MAX).map(move |vector| irq::count(CpuId(n), vector)))
        .sum();
    let boot = (timer::wall_ns().saturating_sub(timer::now_ns())) / 1_000_000_000;
    let _ = write!(
        text,
        "intr {interrupts}\nctxt {switches}\nbtime {boot}\nprocesses {}\nprocs_running {}\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        process_table::last_pid(),
        stats::runnable().max(1),
    );
    text
}

fn loadavg() -> String {
    let [one, five, fifteen] = sysinfo::load_average();
    let running = stats::runnable().max(1);
    let threads = process_table::thread_count();
    format!(
        "{one} {five} {fifteen} {running}/{threads} {}\n",
        process_table::last_pid()
    )
}

fn uptime() -> String {
    let now = timer::now_ns();
    let idle: u64 = (0..cpu::most())
        .map(|n| stats::cpu(CpuId(n as u32)).idle_ns)
        .sum();
    let seconds = |ns: u64| format!("{}.{:02}", ns / 1_000_000_000, ns / NS_PER_TICK % 100);
    format!("{} {}\n", seconds(now), seconds(idle))
}

fn version() -> String {
    let u = sysinfo::uname();
    format!(
        "{} version {} ({}) {}\n",
        u.sysname, u.release, u.machine, u.version
    )
}

fn filesystems() -> String {
    filesystems::FILE_SYSTEM_TYPES
        .iter()
        .map(|name| {
            let nodev = if filesystems::needs_disk(name) {
                ""
            } else {
                "nodev"
            };
            format!("{nodev}\t{name}\n")
        })
        .collect()
}

fn interrupts() -> String {
    let cpus = cpu::count();
    let mut text = String::from("    ");
    for n in 0..cpus {
        let _ = write!(text, "       CPU{n:<4}");
    }
    text.push('\n');
    for vector in 0..=u8::MAX {
        let counts = (0..cpus as u32).map(|n| irq::count(CpuId(n), vector));
        if counts.clone().all(|count| count == 0) {
            continue;
        }
        let _ = write!(text, "{vector:>3x}:");
        for count in counts {
            let _ = write!(text, " {count:>10}   ");
        }
        let name = match vector {
            irq::TIMER_VECTOR => "local timer",
            irq::RESCHEDULE_VECTOR => "reschedule",
            irq::TLB_VECTOR => "TLB shootdown",
            irq::DOORBELL_VECTOR => "doorbell",
            irq::PEER_VECTOR => "peer doorbell",
            irq::SPURIOUS_VECTOR => "spurious",
            0x30..0x40 => "ISA line",
            _ => "",
        };
        let _ = writeln!(text, " {name}");
    }
    text
}

fn devices() -> String {
    "Character devices:\n  1 mem\n  4 ttyS\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n 10 misc\n136 pts\n\nBlock devices:\n"
        .into()
}

fn vmstat() -> String {
    let stats = mem::stats();
    let large = vm::large_page_counts();
    let (lent, returned) = vm::lent_pages();
    let (mapped, splits) = (guard::paging::large_pages(), guard::paging::splits());
    format!(
        "nr_free_pages {}\nnr_anon_pages {}\nnr_anon_transparent_hugepages {mapped}\npgpgin 0\npgpgout 0\npswpin 0\npswpout 0\n\
         nr_foll_pin_acquired {lent}\nnr_foll_pin_released {returned}\n\
         pgmigrate_success {}\nthp_fault_alloc {}\nthp_fault_fallback {}\nthp_collapse_alloc {}\nthp_split_pmd {splits}\n\
         oom_kill {}\n",
        stats.free,
        stats.user,
        vm::moved_pages(),
        large.fault_alloc,
        large.fault_fallback,
        large.collapse_alloc,
        oom::kills()
    )
}

/// Contents of `/proc/tty/drivers`, by which `ps` names the terminals of processes.
fn tty_drivers() -> String {
    "/dev/tty             /dev/tty        5       0 system:/dev/tty\n\
     /dev/console         /dev/console    5       1 system:console\n\
     /dev/ptmx            /dev/ptmx       5       2 system\n\
     serial               /dev/ttyS       4 64-95 serial\n\
     pty_slave            /dev/pts      136 0-1048575 pty:slave\n"
        .into()
}

/// All memory is one zone.
fn zoneinfo() -> String {
    let stats = mem::stats();
    let (managed, free) = (stats.total - stats.granted - stats.leaked, stats.free);
    format!(
        "Node 0, zone   Normal\n  pages free     {free}\n        min      0\n        low      0\n        high     0\n\
         \u{20}       spanned  {managed}\n        present  {managed}\n        managed  {managed}\n  start_pfn:           0\n"
    )
}

/// Free memory by order; how it lies is the allocator's own.
fn buddyinfo() -> String {
    let mut text = format!("Node 0, zone   Normal {:>6}", mem::stats().free);
    for _ in 1..11 {
        text.push_str("      0");
    }
    text.push('\n');
    text
}

/// There are none: interrupts only wake threads.
fn softirqs() -> String {
    let mut text = String::from("                    ");
    for n in 0..cpu::count() {
        let _ = write!(text, "CPU{n:<8}");
    }
    text.push('\n');
    text
}
