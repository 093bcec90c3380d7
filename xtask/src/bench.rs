//! `cargo xtask bench`: figures, each beside Linux's in the same run. `docs/measuring.md` says what
//! they mean.

mod autoscale;
mod boot;
mod document;
mod elastic;
mod instance;
mod isolation;
pub mod load;
mod metrics;
mod micro;
pub mod profile;
mod table;
mod whole;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use metrics::{Devices, How, Metric};
use micro::{Outcome, Results};
use table::Table;

use crate::vm::{Ending, Kernel, Machine, last_lines};
use crate::{linux, paths};

/// Measure, and print a table with all systems' figures.
#[derive(Args)]
pub struct Arguments {
    /// Metrics to measure: their names, or how they begin, or `boot` for all about boots and
    /// instances; or alone `elastic`, how long instances take to change, `isolation`, what they
    /// notice of each other, or `autoscale`, CPUs that move by latency [default: all metrics but
    /// `net` and `disk`, those of networks and disks]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// A kernel to compare with, and what it is called in the table; more than one may be given
    /// [default: linux, the newest in /boot; and tiny, if `make linux` has built it]
    #[arg(long, value_parser = parse_peer, value_name = "linux=VMLINUZ")]
    against: Vec<System>,
    /// Processors, where a metric does not need more
    #[arg(long, default_value_t = 1, value_name = "N")]
    cpus: u32,
    /// Count instructions instead of time; with one processor the same to the digit every time
    #[arg(long)]
    icount: bool,
    /// More for the command lines of the kernels, such as `mitigations=off`
    #[arg(long, default_value = "", value_name = "ARGS")]
    append: String,
    /// How often each figure is measured, the systems in turn [default: 5, or 1 where instructions
    /// are counted; of `elastic` 100 and 20]
    #[arg(long, value_name = "K")]
    runs: Option<usize>,
    /// Measure one of the systems only: `skerry`, or what the others are called
    #[arg(long, value_name = "SYSTEM")]
    only: Option<String>,
    /// Show beside them what an earlier run wrote as JSON, of the systems that are not measured now
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Write the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the figures into docs/performance.md, with a chart of the ratios
    #[arg(long)]
    document: bool,
}

/// Milliseconds of a clock that counts instructions, one a nanosecond: what remains of a time when
/// the emulator's own work (translating code, making memory) is left out.
const COUNTED_MS: &str = "ms counted";

/// Measures the systems, and tells of it as the arguments say.
type Benchmark = fn(&Arguments, &[System]) -> Result<()>;

/// Benchmarks that stand alone, by name.
const ALONE: [(&str, Benchmark); 3] = [
    ("autoscale", autoscale::run),
    ("elastic", elastic::run),
    ("isolation", isolation::run),
];

/// Name of Skerry in tables and JSON.
const SKERRY: &str = "skerry";

/// A system and its kernel.
#[derive(Clone)]
struct System {
    name: String,
    kernel: Kernel,
}

/// A system that is not Skerry, from the command line.
fn parse_peer(text: &str) -> Result<System, String> {
    match text.split_once('=') {
        Some((name, image))
            if !name.is_empty() && !image.is_empty() && !name.eq_ignore_ascii_case(SKERRY) =>
        {
            Ok(System {
                name: name.into(),
                kernel: Kernel::Linux(image.into()),
            })
        }
        _ => Err("expected NAME=VMLINUZ, with a name for the table, such as linux".into()),
    }
}

/// The systems that are measured unless told otherwise.
fn peers() -> Result<Vec<System>> {
    let mut peers = vec![System {
        name: "linux".into(),
        kernel: Kernel::Linux(newest_linux()?),
    }];
    let tiny = linux::image();
    if tiny.exists() {
        peers.push(System {
            name: "tiny".into(),
            kernel: Kernel::Linux(tiny),
        });
    }
    Ok(peers)
}

/// Carries out `cargo xtask bench`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut systems = vec![System {
        name: SKERRY.into(),
        kernel: Kernel::Skerry,
    }];
    systems.extend(if arguments.against.is_empty() {
        peers()?
    } else {
        arguments.against.clone()
    });
    if let Some(only) = &arguments.only {
        systems.retain(|system| system.name.eq_ignore_ascii_case(only));
        if systems.is_empty() {
            bail!("no system is called {only:?}");
        }
    }
    for (name, run) in ALONE {
        if arguments.names.iter().any(|given| given == name) {
            run(arguments, &systems)?;
            discard_scratch();
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut table = Table::default();
    if arguments.names.iter().any(|name| name == "boot") {
        boot::measure(arguments, &systems, &mut table)?;
        if systems.iter().any(|system| system.kernel == Kernel::Skerry) {
            instance::measure(arguments.runs.unwrap_or(5), &mut table)?;
        }
    }
    let metrics = chosen(&arguments.names)?;
    if !metrics.is_empty() {
        measure(arguments, &systems, &metrics, &mut table)?;
    }
    if let Some(path) = &arguments.with {
        let failed = || format!("cannot read {}", path.display());
        table
            .add_earlier(&fs::read_to_string(path).with_context(failed)?)
            .with_context(failed)?;
    }
    table.print();
    if let Some(path) = &arguments.json {
        fs::write(path, table.json()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.document {
        document::write(
            &table,
            if let Some(devices) = devices_of_all(&metrics) {
                devices.section()
            } else if arguments.icount {
                "instructions"
            } else {
                "time"
            },
        )?;
    }
    discard_scratch();
    Ok(ExitCode::SUCCESS)
}

/// The metrics with these names, or whose names begin so; all for no names.
fn chosen(names: &[String]) -> Result<Vec<&'static Metric>> {
    if names.is_empty() {
        return Ok(metrics::all()
            .filter(|metric| metric.how.devices().is_none())
            .collect());
    }
    let mut chosen = Vec::new();
    for name in names.iter().filter(|&name| name != "boot") {
        let before = chosen.len();
        let exact = metrics::all().any(|metric| metric.name == name);
        chosen.extend(metrics::all().filter(|metric| {
            if exact {
                metric.name == name
            } else {
                metric.name.starts_with(name)
            }
        }));
        if chosen.len() == before {
            let known: Vec<_> = metrics::all().map(|metric| metric.name).collect();
            bail!(
                "no metric {name:?}; there are boot, elastic, isolation, {}",
                known.join(", ")
            );
        }
    }
    Ok(chosen)
}

/// The devices that all of the metrics need, if they do.
fn devices_of_all(metrics: &[&'static Metric]) -> Option<Devices> {
    let devices = metrics.first()?.how.devices();
    let same = |metric: &&Metric| metric.how.devices() == devices;
    devices.filter(|_| metrics.iter().all(same))
}

/// One round: each metric once on one system. What takes only one machine in all is measured in the
/// first round.
fn round(
    setup: micro::Setup<'_>,
    kernel: &Kernel,
    metrics: &[&'static Metric],
    first: bool,
) -> Result<Results> {
    let mut results = Results::new();
    let mut programs: BTreeMap<(bool, u32), Vec<&'static Metric>> = BTreeMap::new();
    let mut networked: Vec<&'static Metric> = Vec::new();
    let mut with_disks: Vec<&'static Metric> = Vec::new();
    for metric in metrics {
        let outcome = match metric.how {
            How::Program(least) => {
                programs
                    .entry((false, least.max(setup.cpus)))
                    .or_default()
                    .push(metric);
                continue;
            }
            How::Workload => {
                programs.entry((true, setup.cpus)).or_default().push(metric);
                continue;
            }
            How::Disk => {
                with_disks.push(*metric);
                continue;
            }
            How::Network | How::NetworkMemory => {
                networked.push(*metric);
                continue;
            }
            How::Boot => whole::boot_time(kernel, setup),
            How::BootShell => whole::boot_time(
                kernel,
                micro::Setup {
                    packages: true,
                    ..setup
                },
            ),
            How::Server => profile::served(kernel, metric),
            How::ImageSize if first => whole::image_size(kernel),
            How::LeastMemory if first => whole::least_memory(kernel),
            How::IdleWakeUps | How::NetworkIdle if first => whole::idle_wake_ups(kernel, metric),
            _ => continue,
        };
        results.insert(
            metric.name,
            outcome.unwrap_or_else(|error| Outcome::NotAvailable(format!("{error:#}"))),
        );
    }
    let setup_network = micro::Setup {
        cpus: 1,
        icount: true,
        devices: Some(Devices::Network),
        ..setup
    };
    // What is left of many connections would be in the way of as many others.
    let (memory, others): (Vec<_>, Vec<_>) = networked
        .iter()
        .partition(|metric| metric.how == How::NetworkMemory);
    for metrics in [others, memory] {
        if !metrics.is_empty() {
            results.extend(micro::run(kernel, setup_network, &metrics)?);
        }
    }
    if !with_disks.is_empty() {
        let setup = micro::Setup {
            devices: Some(Devices::Disks),
            ..setup_network
        };
        results.extend(micro::run(kernel, setup, &with_disks)?);
    }
    for ((packages, cpus), metrics) in programs {
        results.extend(micro::run(
            kernel,
            micro::Setup {
                cpus,
                packages,
                ..setup
            },
            &metrics,
        )?);
    }
    Ok(results)
}

/// The figures of a kernel's networks, of metrics in their order.
///
/// # Errors
/// When there is no such metric, or it has no figure.
pub fn network_figures<const N: usize>(kernel: &Kernel, names: [&str; N]) -> Result<[f64; N]> {
    let metrics = chosen(&names.map(String::from))?;
    let setup = micro::Setup {
        cpus: 1,
        icount: true,
        packages: false,
        devices: Some(Devices::Network),
        append: "",
    };
    let results = round(setup, kernel, &metrics, true)?;
    discard_scratch();
    let mut figures = [0.0; N];
    for (figure, name) in figures.iter_mut().zip(names) {
        *figure = match results.get(name) {
            Some(Outcome::Value { median, .. }) => *median,
            Some(Outcome::NotAvailable(why)) => bail!("{name}: {why}"),
            None => bail!("{name} was not measured"),
        };
    }
    Ok(figures)
}

/// Runs the metrics on all systems in turn.
fn measure(
    arguments: &Arguments,
    systems: &[System],
    metrics: &[&'static Metric],
    table: &mut Table,
) -> Result<()> {
    let counted = arguments.icount || devices_of_all(metrics).is_some();
    let runs = arguments.runs.unwrap_or(if counted { 1 } else { 5 });
    let mut rounds = Vec::new();
    let setup = micro::Setup {
        cpus: arguments.cpus,
        icount: arguments.icount,
        packages: false,
        devices: None,
        append: &arguments.append,
    };
    for number in 0..runs {
        for system in systems {
            eprintln!("xtask: measuring {}, {} of {runs}", system.name, number + 1);
            rounds.push((system, round(setup, &system.kernel, metrics, number == 0)?));
        }
    }
    for metric in metrics {
        let unit = metric.how.unit(arguments.icount);
        for system in systems {
            let outcomes = rounds
                .iter()
                .filter(|(of, _)| of.name == system.name)
                .filter_map(|(_, results)| results.get(metric.name));
            let (mut values, mut reason) = (Vec::new(), None);
            for outcome in outcomes {
                match outcome {
                    Outcome::Value { median, .. } => values.push(*median),
                    Outcome::NotAvailable(why) => reason = Some(why.clone()),
                }
            }
            let is_idle = matches!(metric.how, How::IdleWakeUps | How::NetworkIdle);
            let counted = counted || is_idle;
            let goal = metric
                .goal
                .filter(|_| counted && system.kernel == Kernel::Skerry);
            // What the clearing is part of is judged without it.
            let whole = if metric.clears { None } else { goal };
            match reason {
                Some(reason) if values.is_empty() => {
                    table.add_not_available(metric.name, &system.name, unit, whole, reason);
                }
                _ => table.add(metric.name, &system.name, unit, whole, values.clone()),
            }
            if metric.clears && counted {
                let name = less_the_rep(metric);
                match profile::repeated(&system.kernel, metric) {
                    Ok(turns) => table.add(
                        name,
                        &system.name,
                        unit,
                        goal,
                        values.iter().map(|value| value - turns).collect(),
                    ),
                    Err(error) => table.add_not_available(
                        &name,
                        &system.name,
                        unit,
                        goal,
                        format!("{error:#}"),
                    ),
                }
            }
        }
        if let Some(share) = metric.share {
            let name = if metric.clears {
                less_the_rep(metric)
            } else {
                metric.name.to_owned()
            };
            table.set_share_as_goal(&name, share);
        }
    }
    Ok(())
}

/// Name of a metric's figure without the turns of `rep` instructions.
fn less_the_rep(metric: &Metric) -> String {
    let part = match metric.how {
        How::Disk => "copying",
        _ => "clearing",
    };
    format!("{} less the {part}", metric.name)
}

/// A file in the target directory that this process has for itself.
fn scratch(kind: &str) -> PathBuf {
    paths::target().join(format!("bench-{}.{kind}", std::process::id()))
}

/// Removes such files; they stay when something failed.
fn discard_scratch() {
    for kind in ["log", "counts"].iter().chain(&micro::DISKS) {
        drop(fs::remove_file(scratch(kind)));
    }
}

/// Runs a machine whose command has to end well; returns what that printed.
fn output_of(machine: &Machine) -> Result<String> {
    let run = machine.run_collected()?;
    ensure!(
        run.ending == Ending::Exited(0),
        "{:?}: {}\n{}\n{}",
        run.ending,
        run.output,
        run.complaints,
        last_lines(&machine.log, 25)
    );
    Ok(run.output)
}

/// The newest Linux image of this machine.
pub fn newest_linux() -> Result<PathBuf> {
    let mut images: Vec<_> = fs::read_dir("/boot")
        .context("cannot read /boot")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .collect();
    images.sort();
    images
        .pop()
        .context("no Linux kernel in /boot (package linux-image-amd64; `make setup` installs it)")
}
