//! Output of the listing commands: aligned tables for people, JSON with a stable schema
//! (`docs/cli.md`) for programs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use abi::dev::{self, Info, Stats, Status};
use serde::Serialize;

use crate::autoscale::Loan;
use crate::instances::{has_ended, label};
use crate::loans::{Class, CpuRange};
use crate::root_disk::RootDisk;
use crate::state::Record;
use crate::stats::Usage;
use crate::{devices, networks, peers, ports, resize, size};

/// An instance in `ls --json`. Memory in bytes, points in time in seconds since 1970.
#[derive(Debug, Serialize)]
pub struct Instance<'a> {
    /// Name of the instance.
    pub name: &'a str,
    /// Number of the instance.
    pub id: u32,
    /// `created`, `running`, `paused`, `exited`, `panicked`, `halted` or `failed`.
    pub state: &'static str,
    /// `good`, `unresponsive` or `hung`.
    pub health: &'static str,
    /// Exit code of the program, once it has exited.
    pub exit_code: Option<i32>,
    /// Number of CPUs that the instance has, or had.
    pub cpus: u32,
    /// Memory that the instance has, or had.
    pub memory: u64,
    /// PCI functions that the instance has, or had.
    pub devices: Vec<String>,
    /// Whether nothing confines what these read and write.
    pub unsafe_dma: bool,
    /// Times that these were refused memory that is not the instance's, at least.
    pub dma_faults: u32,
    /// Disk that is its root file system, if it is known that one is.
    pub root: Option<RootDisk>,
    /// Network of the instance, if it has one.
    pub network: Option<networks::Shown>,
    /// Ports of the machine that lead to it, or did.
    pub ports: Vec<String>,
    /// Trust mode of the instance.
    pub mode: &'static str,
    /// When it was created.
    pub created: f64,
    /// When it was started.
    pub started: Option<f64>,
    /// When everything was back.
    pub ended: Option<f64>,
    /// Reason for the state, in words.
    pub detail: &'a str,
}

/// An instance in `inspect --json`. Durations in microseconds, `null` while they are not known.
#[derive(Debug, Serialize)]
pub struct Inspected<'a> {
    /// Fields of `ls`.
    #[serde(flatten)]
    pub instance: Instance<'a>,
    /// From the request to CPUs and memory being taken.
    pub create_us: Option<f64>,
    /// From the start to the first instruction in user space.
    pub boot_us: Option<f64>,
    /// From the request to the first instruction in user space.
    pub run_us: Option<f64>,
    /// Reclaim of CPUs and memory.
    pub reclaim: Option<Reclaim>,
    /// Policy for its end, if it is known how it was created.
    pub restart: Option<String>,
    /// Number of restarts by that policy since somebody started it.
    pub restarts: Option<u32>,
    /// Somebody has stopped it: no policy starts it again.
    pub stopped: Option<bool>,
    /// Why its restart has failed last.
    pub restart_error: Option<&'a str>,
    /// Number of the instance whose place it took.
    pub previous: Option<u32>,
    /// The declared set that it belongs to.
    pub project: Option<&'a str>,
    /// Loans of CPUs to it, by the names of the lenders.
    pub borrowed: Option<&'a BTreeMap<String, Loan>>,
    /// Rank when CPUs are short.
    pub class: Option<Class>,
    /// Numbers of CPUs that it is content with.
    pub cpu_range: Option<CpuRange>,
    /// Numbers of CPUs that others have of it by their class, by their names.
    pub lent: Option<&'a BTreeMap<String, u32>>,
    /// Instances with which it exchanges messages.
    pub peers: Vec<peers::Shown>,
    /// Figures of what it has used so far.
    pub usage: Usage,
}

/// Reclaim of an instance's CPUs and memory.
#[derive(Debug, Serialize)]
pub struct Reclaim {
    /// Duration of the reclaim in microseconds.
    pub total_us: f64,
    /// Part of it that was zeroing, in microseconds.
    pub scrub_us: f64,
    /// Memory scrubbed.
    pub scrubbed_bytes: u64,
    /// CPUs that had to be reset.
    pub reset_cpus: u32,
    /// CPUs that have not come back: they are in quarantine.
    pub lost_cpus: u32,
    /// Devices that did not prove that they were reset, likewise.
    pub lost_devices: u32,
    /// Memory that is in quarantine with them.
    pub leaked_bytes: u64,
}

/// `resources --json`. Memory in bytes.
#[derive(Debug, Serialize)]
pub struct Resources {
    /// CPUs.
    pub cpus: CpuShare,
    /// Cores.
    pub cores: Share<u32>,
    /// Memory.
    pub memory: MemoryShare,
    /// Units that confine what devices of instances read and write.
    pub iommus: u32,
    /// Instances there are, in whatever state.
    pub instances: usize,
}

/// Numbers of CPUs by owner, and of those that have none and are not free.
#[derive(Debug, Serialize)]
pub struct CpuShare {
    /// Numbers by owner.
    #[serde(flatten)]
    pub by_owner: Share<u32>,
    /// Given to nobody, because another thread of the core has an owner.
    pub withheld: u32,
}

/// Numbers of CPUs or cores by owner.
#[derive(Debug, Serialize)]
pub struct Share<T> {
    /// All of them.
    pub total: T,
    /// The supervisor's own.
    pub supervisor: T,
    /// With instances.
    pub in_use: T,
    /// Free.
    pub free: T,
    /// Did not start.
    pub lost: T,
    /// Did not come back from an instance yet.
    pub quarantined: T,
}

/// Bytes of memory by owner.
#[derive(Debug, Serialize)]
pub struct MemoryShare {
    /// All of it.
    pub total: u64,
    /// The supervisor's own.
    pub supervisor: u64,
    /// With instances.
    pub in_use: u64,
    /// Free.
    pub free: u64,
    /// Unusable until the machine restarts.
    pub leaked: u64,
    /// CPUs in quarantine may still use it.
    pub quarantined: u64,
}

fn seconds(ns: u64) -> Option<f64> {
    (ns != 0).then_some(ns as f64 / 1e9)
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl<'a> Instance<'a> {
    /// From the device's record.
    #[must_use]
    pub fn new(status: &'a Status) -> Self {
        Self {
            name: label(status),
            id: status.id,
            state: state_name(status),
            health: dev::health_name(status.health),
            exit_code: (status.state == dev::STATE_EXITED).then_some(status.exit_code),
            cpus: status.cpus,
            memory: status.mem,
            devices: devices::addresses(status).collect(),
            unsafe_dma: devices::is_unsafe(status),
            dma_faults: status.dma_faults,
            root: None,
            network: networks::shown(status),
            ports: ports::all(status).map(String::from).collect(),
            mode: "cooperative",
            created: seconds(status.created_ns).unwrap_or(0.0),
            started: seconds(status.started_ns),
            ended: seconds(status.ended_ns),
            detail: dev::text(&status.detail).unwrap_or_default(),
        }
    }
}

impl<'a> Inspected<'a> {
    /// From the device's record.
    #[must_use]
    pub fn new(status: &'a Status, record: Option<&'a Record>, used: &Stats) -> Self {
        let asked = status.requested_ns;
        let since_asked = |ns: u64| (asked != 0 && ns >= asked).then(|| microseconds(ns - asked));
        let booted = status.start_to_user_ns != 0;
        Self {
            instance: Instance {
                root: record.and_then(|record| record.options.root.clone()),
                ..Instance::new(status)
            },
            create_us: since_asked(status.created_ns),
            boot_us: booted.then(|| microseconds(status.start_to_user_ns)),
            run_us: since_asked(status.started_ns + status.start_to_user_ns).filter(|_| booted),
            reclaim: (has_ended(status) && status.ended_ns != 0).then(|| Reclaim {
                total_us: microseconds(status.reclaim_ns + status.scrub_ns),
                scrub_us: microseconds(status.scrub_ns),
                scrubbed_bytes: status.scrubbed_bytes,
                reset_cpus: status.reset_cpus,
                lost_cpus: status.lost_cpus,
                lost_devices: status.lost_devices,
                leaked_bytes: status.leaked,
            }),
            restart: record.map(|record| record.restart.to_string()),
            restarts: record.map(|record| record.restarts),
            stopped: record.map(|record| record.stopped),
            restart_error: record.and_then(|record| record.error.as_deref()),
            previous: record.and_then(|record| record.previous),
            project: record.and_then(|record| record.project.as_deref()),
            borrowed: record.map(|record| &record.borrowed),
            class: record.and_then(|record| record.options.class),
            cpu_range: record.and_then(|record| record.options.cpu_range),
            lent: record.map(|record| &record.lent),
            peers: Vec::new(),
            usage: Usage::new(used),
        }
    }
}

impl Resources {
    /// From the device's record.
    #[must_use]
    pub fn new(info: &Info, instances: usize) -> Self {
        let cpus_known = info.cpus_supervisor
            + info.cpus_free
            + info.cpus_lost
            + info.cpus_quarantined
            + info.cpus_withheld;
        let cores_known =
            info.cores_supervisor + info.cores_free + info.cores_lost + info.cores_quarantined;
        Self {
            cpus: CpuShare {
                by_owner: Share {
                    total: info.cpus_total,
                    supervisor: info.cpus_supervisor,
                    in_use: info.cpus_total.saturating_sub(cpus_known),
                    free: info.cpus_free,
                    lost: info.cpus_lost,
                    quarantined: info.cpus_quarantined,
                },
                withheld: info.cpus_withheld,
            },
            cores: Share {
                total: info.cores_total,
                supervisor: info.cores_supervisor,
                in_use: info.cores_total.saturating_sub(cores_known),
                free: info.cores_free,
                lost: info.cores_lost,
                quarantined: info.cores_quarantined,
            },
            memory: MemoryShare {
                total: info.mem_total,
                supervisor: info.mem_total.saturating_sub(
                    info.mem_free + info.mem_granted + info.mem_quarantined + info.mem_leaked,
                ),
                in_use: info.mem_granted,
                free: info.mem_free,
                leaked: info.mem_leaked,
                quarantined: info.mem_quarantined,
            },
            iommus: info.iommus,
            instances,
        }
    }
}

/// Prints a document.
///
/// # Errors
/// Those of `out`.
pub fn json(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Prints rows in columns; the first row is the heading.
///
/// # Errors
/// Those of `out`.
pub fn table(rows: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        writeln!(out, "{}", cells.join("   ").trim_end())?;
    }
    Ok(())
}

/// State of an instance: as the kernel has it, or `paused` when all CPUs of one that runs stand
/// still.
#[must_use]
pub fn state_name(status: &Status) -> &'static str {
    if status.state == dev::STATE_RUNNING && status.paused == dev::PAUSED_YES {
        "paused"
    } else {
        dev::state_name(status.state)
    }
}

/// State for people: that of one that runs and is not well says so.
pub fn state(status: &Status) -> String {
    let name = state_name(status);
    if status.state == dev::STATE_RUNNING && status.health != dev::HEALTH_GOOD {
        format!("{name} ({})", dev::health_name(status.health))
    } else {
        name.into()
    }
}

/// `ls` as a table, of instances with the disks that are their roots.
///
/// # Errors
/// Those of `out`.
pub fn instances(
    all: &[(&Status, &Option<RootDisk>)],
    now: SystemTime,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (all, roots): (Vec<&Status>, Vec<_>) = all.iter().copied().unzip();
    let now = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let mut rows = vec![
        [
            "NAME", "STATE", "CPUS", "MEMORY", "MODE", "CREATED", "DETAIL",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for status in &all {
        let instance = Instance::new(status);
        rows.push(vec![
            instance.name.into(),
            state(status),
            instance.cpus.to_string(),
            size::format(instance.memory),
            instance.mode.into(),
            ago(now.saturating_sub(status.created_ns) / 1_000_000_000),
            instance.detail.into(),
        ]);
    }
    // Columns of their own where there is something in them.
    if all.iter().any(|status| networks::address(status).is_some()) {
        let shown = all.iter().map(|status| {
            networks::address(status).map_or_else(String::new, |address| address.to_string())
        });
        let heading = std::iter::once("ADDRESS".into());
        for (row, cell) in rows.iter_mut().zip(heading.chain(shown)) {
            row.insert(4, cell);
        }
    }
    if all.iter().any(|status| status.port_count > 0) {
        let heading = std::iter::once("PORTS".into());
        let shown = all.iter().map(|status| ports::shown(status));
        for (row, cell) in rows.iter_mut().zip(heading.chain(shown)) {
            row.insert(5, cell);
        }
    }
    if roots.iter().any(|root| root.is_some()) {
        let heading = std::iter::once("ROOT".into());
        let shown = roots.iter().map(|root| shown_root(root));
        for (row, cell) in rows.iter_mut().zip(heading.chain(shown)) {
            row.insert(4, cell);
        }
    }
    if all.iter().any(|status| status.device_count > 0) {
        let shown = all.iter().map(|status| devices::shown(status));
        let heading = std::iter::once("DEVICES".into());
        for (row, cell) in rows.iter_mut().zip(heading.chain(shown)) {
            row.insert(4, cell);
        }
    }
    table(&rows, out)
}

/// The disk that is an instance's root, for people; empty without.
fn shown_root(root: &Option<RootDisk>) -> String {
    root.as_ref().map_or_else(String::new, RootDisk::to_string)
}

/// `resources` as a table.
///
/// # Errors
/// Those of `out`.
pub fn resources(r: &Resources, out: &mut dyn Write) -> io::Result<()> {
    let head = [
        "",
        "TOTAL",
        "SUPERVISOR",
        "INSTANCES",
        "FREE",
        "LOST",
        "QUARANTINED",
    ];
    let memory = &r.memory;
    let counts = |share: &Share<u32>| {
        [
            share.total,
            share.supervisor,
            share.in_use,
            share.free,
            share.lost,
            share.quarantined,
        ]
        .map(|count| count.to_string())
    };
    let memory = [
        memory.total,
        memory.supervisor,
        memory.in_use,
        memory.free,
        memory.leaked,
        memory.quarantined,
    ]
    .map(size::format);
    let row = |name: &str, cells: [String; 6]| {
        std::iter::once(name.to_owned())
            .chain(cells)
            .collect::<Vec<_>>()
    };
    let mut rows = vec![
        head.map(String::from).to_vec(),
        row("CPUs", counts(&r.cpus.by_owner)),
        row("memory", memory),
    ];
    if r.cores.total != r.cpus.by_owner.total {
        rows.insert(1, row("cores", counts(&r.cores)));
    }
    table(&rows, out)?;
    if r.iommus > 0 {
        let units = if r.iommus == 1 { "unit" } else { "units" };
        writeln!(
            out,
            "{} IOMMU {units}: devices of instances reach these instances' memory only",
            r.iommus
        )?;
    }
    match r.cpus.withheld {
        0 => Ok(()),
        1 => writeln!(
            out,
            "1 CPU is withheld: another thread of its core is in use, and threads of a core go to \
             one owner"
        ),
        count => writeln!(
            out,
            "{count} CPUs are withheld: other threads of their cores are in use, and threads of a \
             core go to one owner"
        ),
    }
}

/// `inspect` for people: a line per field.
///
/// # Errors
/// Those of `out`.
pub fn inspected(all: &Inspected<'_>, status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let time = |us: Option<f64>| us.map_or_else(|| "-".into(), |us| format!("{:.3} ms", us / 1e3));
    let mut rows = vec![
        ("name", all.instance.name.into()),
        ("number", all.instance.id.to_string()),
        ("state", state(status)),
        ("detail", all.instance.detail.into()),
        ("CPUs", all.instance.cpus.to_string()),
        ("memory", size::format(all.instance.memory)),
        ("devices", devices::shown(status)),
        ("DMA faults", devices::faults(status)),
        ("root", shown_root(&all.instance.root)),
        ("ports", ports::shown(status)),
        ("trust mode", all.instance.mode.into()),
        ("request to CPUs and memory taken", time(all.create_us)),
        ("start to first user instruction", time(all.boot_us)),
        ("request to first user instruction", time(all.run_us)),
    ];
    rows.extend(all.instance.network.iter().flat_map(networks::Shown::lines));
    rows.extend(all.peers.iter().map(|peer| ("peer", peer.to_string())));
    let usage = &all.usage;
    let seconds = |us: f64| format!("{:.3} s", us / 1e6);
    rows.extend([
        ("CPU time of programs", seconds(usage.user_us)),
        ("CPU time of its kernel", seconds(usage.system_us)),
        ("CPU time idle", seconds(usage.idle_us)),
        ("CPU time paused", seconds(usage.paused_us)),
        (
            "CPU time of the supervisor for it",
            seconds(usage.supervisor_us),
        ),
        (
            "memory in use",
            usage.memory_used.map(size::format).unwrap_or_default(),
        ),
    ]);
    if let Some(reclaim) = &all.reclaim {
        rows.push(("end to resources free", time(Some(reclaim.total_us))));
        rows.push((
            "of which scrubbing",
            format!(
                "{} ({})",
                time(Some(reclaim.scrub_us)),
                size::format(reclaim.scrubbed_bytes)
            ),
        ));
        if reclaim.lost_cpus > 0 || reclaim.leaked_bytes > 0 {
            rows.push((
                "in quarantine",
                format!(
                    "{} CPUs, {} devices, {}",
                    reclaim.lost_cpus,
                    reclaim.lost_devices,
                    size::format(reclaim.leaked_bytes)
                ),
            ));
        }
    }
    if let Some((policy, restarts)) = all.restart.as_ref().zip(all.restarts) {
        let stopped = match all.stopped {
            Some(true) => ", stopped by hand",
            _ => "",
        };
        rows.push((
            "restart policy",
            format!("{policy} ({restarts} restarts{stopped})"),
        ));
    }
    rows.push((
        "last restart failed",
        all.restart_error.unwrap_or_default().into(),
    ));
    rows.push(("project", all.project.unwrap_or_default().into()));
    if let Some(class) = all.class {
        let range = all.cpu_range.map(|range| format!(", {range} CPUs"));
        rows.push(("class", format!("{class}{}", range.unwrap_or_default())));
    }
    for (to, count) in all.lent.into_iter().flatten() {
        rows.push(("lends", format!("{} to {to}", resize::cpus_text(*count))));
    }
    for (from, loan) in all.borrowed.into_iter().flatten() {
        let text = format!(
            "CPUs of {from}; before, that had {} and this {}",
            loan.from_had, loan.to_had
        );
        rows.push(("borrows", text));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter()
        .filter(|(_, value)| !value.is_empty())
        .try_for_each(|(name, value)| writeln!(out, "{name:width$}   {value}"))
}

/// Text for a time in the past.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let mut status: Status = dev::zeroed();
        status.label = dev::field("box").unwrap();
        (status.id, status.cpus, status.mem) = (3, 2, 64 << 20);
        status.state = dev::STATE_RUNNING;
        (status.requested_ns, status.created_ns, status.started_ns) =
            (1_000_000_000, 1_002_000_000, 1_010_000_000);
        status.start_to_user_ns = 5_000_000;
        status
    }

    fn value(text: &[u8]) -> serde_json::Value {
        serde_json::from_slice(text).unwrap()
    }

    #[test]
    fn json_of_an_instance() {
        let mut out = Vec::new();
        let mut status = status();
        json(&Inspected::new(&status, None, &Stats::default()), &mut out).unwrap();
        let shown = value(&out);
        assert_eq!(
            (&shown["name"], &shown["state"], &shown["memory"]),
            (&"box".into(), &"running".into(), &(64 << 20).into())
        );
        assert!(shown["exit_code"].is_null() && shown["reclaim"].is_null());
        assert_eq!(
            (shown["create_us"].as_f64(), shown["boot_us"].as_f64()),
            (Some(2000.0), Some(5000.0))
        );
        assert_eq!(shown["run_us"].as_f64(), Some(15_000.0));
        (status.state, status.exit_code, status.ended_ns) = (dev::STATE_EXITED, 7, 2_000_000_000);
        (status.reclaim_ns, status.scrub_ns, status.scrubbed_bytes) = (3000, 4000, 64 << 20);
        out.clear();
        json(&Inspected::new(&status, None, &Stats::default()), &mut out).unwrap();
        let shown = value(&out);
        assert_eq!(
            (
                shown["exit_code"].as_i64(),
                shown["reclaim"]["total_us"].as_f64()
            ),
            (Some(7), Some(7.0))
        );
        assert_eq!(shown["reclaim"]["lost_cpus"], 0);
    }

    #[test]
    fn who_hangs_is_shown_to_hang_while_it_runs() {
        let mut hung = status();
        hung.health = dev::HEALTH_HUNG;
        hung.set_detail("CPU 1 hangs");
        let (mut people, mut details, mut programs) = (Vec::new(), Vec::new(), Vec::new());
        instances(&[(&hung, &None)], UNIX_EPOCH, &mut people).unwrap();
        inspected(
            &Inspected::new(&hung, None, &Stats::default()),
            &hung,
            &mut details,
        )
        .unwrap();
        json(&Instance::new(&hung), &mut programs).unwrap();
        for shown in [people, details] {
            assert!(String::from_utf8(shown).unwrap().contains("running (hung)"));
        }
        let shown = value(&programs);
        assert_eq!(
            (&shown["state"], &shown["health"]),
            (&"running".into(), &"hung".into())
        );
        hung.state = dev::STATE_HALTED;
        assert_eq!(state(&hung), "halted");
        assert_eq!(state(&status()), "running");
    }

    #[test]
    fn json_of_resources() {
        let info = Info {
            cpus_total: 4,
            cpus_supervisor: 1,
            cpus_free: 2,
            mem_total: 100,
            mem_free: 60,
            mem_granted: 30,
            ..Info::default()
        };
        let mut out = Vec::new();
        json(&Resources::new(&info, 1), &mut out).unwrap();
        let shown = value(&out);
        assert_eq!(
            (
                &shown["cpus"]["in_use"],
                &shown["cpus"]["free"],
                &shown["memory"]["supervisor"]
            ),
            (&1.into(), &2.into(), &10.into())
        );
    }

    #[test]
    fn cores_are_shown_where_they_have_threads() {
        let shown = |info: &Info| {
            let mut out = Vec::new();
            resources(&Resources::new(info, 1), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let mut info = Info {
            cpus_total: 4,
            cpus_supervisor: 1,
            cpus_free: 3,
            cores_total: 4,
            cores_supervisor: 1,
            cores_free: 3,
            ..Info::default()
        };
        let text = shown(&info);
        assert!(
            !text.contains("cores") && !text.contains("withheld"),
            "{text}"
        );
        (info.cores_total, info.cores_free) = (2, 1);
        (info.cpus_free, info.cpus_withheld) = (2, 1);
        let text = shown(&info);
        let cells = |name: &str| -> Vec<String> {
            let row = text.lines().find(|line| line.starts_with(name)).unwrap();
            row.split_whitespace().skip(1).map(String::from).collect()
        };
        assert_eq!(cells("cores"), ["2", "1", "0", "1", "0", "0"]);
        assert_eq!(cells("CPUs"), ["4", "1", "0", "2", "0", "0"]);
        assert!(text.contains("1 CPU is withheld"), "{text}");
        info.cpus_withheld = 2;
        assert!(shown(&info).contains("2 CPUs are withheld"));
    }

    #[test]
    fn tables_are_aligned() {
        let mut out = Vec::new();
        let now = UNIX_EPOCH + std::time::Duration::from_secs(61);
        instances(&[(&status(), &None)], now, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "NAME   STATE     CPUS   MEMORY   MODE          CREATED    DETAIL\n\
             box    running   2      64 MiB   cooperative   59 s ago\n"
        );
        let mut out = Vec::new();
        let root = "/dev/vda:ro".parse().ok();
        instances(&[(&status(), &root)], now, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("MEMORY   ROOT          MODE"), "{text}");
        assert!(text.contains("64 MiB   /dev/vda:ro   coop"), "{text}");
    }
}
