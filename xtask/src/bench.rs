//! `cargo xtask bench`: figures, each beside Linux's in the same run. `docs/measuring.md` says what they mean.

mod boot;
mod instance;
mod metrics;
mod micro;
pub mod profile;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::vm::Kernel;
use crate::vm::cli::parse_kernel;
use metrics::{METRICS, Metric};
use micro::Outcome;
use table::Table;

/// Measure, and print a table with both systems' figures.
#[derive(Args)]
pub struct Arguments {
    /// What to measure: metrics' names, or `boot` for boot, instances and sizes [default: all metrics]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The kernel to compare with [default: the newest Linux in /boot]
    #[arg(long, value_parser = parse_kernel, value_name = "linux=VMLINUZ")]
    against: Option<Kernel>,
    /// Processors
    #[arg(long, default_value_t = 1, value_name = "N")]
    cpus: u32,
    /// Count instructions instead of time; with one processor the same to the digit every time
    #[arg(long)]
    icount: bool,
    /// How often each figure is measured, both systems in turn [default: 5, or 1 where instructions are counted]
    #[arg(long, value_name = "K")]
    runs: Option<usize>,
    /// Measure one of the systems only, `Skerry` or `Linux`
    #[arg(long, value_name = "SYSTEM")]
    only: Option<String>,
    /// Write the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Milliseconds of a clock that counts instructions, one a nanosecond: what remains of a time when the emulator's own work
/// (translating code, making memory) is left out.
const COUNTED_MS: &str = "ms counted";

/// A system and its kernel.
struct System {
    name: &'static str,
    kernel: Kernel,
}

/// Carries out `cargo xtask bench`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let linux = match &arguments.against {
        Some(kernel) => kernel.clone(),
        None => Kernel::Linux(newest_linux()?),
    };
    let mut systems = vec![System { name: "Skerry", kernel: Kernel::Skerry }, System { name: "Linux", kernel: linux }];
    if let Some(only) = &arguments.only {
        systems.retain(|system| system.name.eq_ignore_ascii_case(only));
        if systems.is_empty() {
            bail!("no system is called {only:?}");
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
    table.print();
    if let Some(path) = &arguments.json {
        fs::write(path, table.json()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The metrics with these names; all for no names.
fn chosen(names: &[String]) -> Result<Vec<&'static Metric>> {
    if names.is_empty() {
        return Ok(METRICS.iter().collect());
    }
    names
        .iter()
        .filter(|&name| name != "boot")
        .map(|name| {
            METRICS.iter().find(|metric| metric.name == name).with_context(|| {
                let known: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
                format!("no metric {name:?}; there are boot, {}", known.join(", "))
            })
        })
        .collect()
}

/// Runs the metrics on all systems in turn.
fn measure(arguments: &Arguments, systems: &[System], metrics: &[&'static Metric], table: &mut Table) -> Result<()> {
    let setup = micro::Setup { cpus: arguments.cpus, icount: arguments.icount };
    let (unit, runs) = if setup.icount { ("instructions", 1) } else { ("ns", 5) };
    let mut rounds = Vec::new();
    for _ in 0..arguments.runs.unwrap_or(runs) {
        for system in systems {
            rounds.push((system, micro::run(&system.kernel, setup, metrics)?));
        }
    }
    for metric in metrics {
        for system in systems {
            let outcomes =
                rounds.iter().filter(|(of, _)| of.name == system.name).filter_map(|(_, results)| results.get(metric.name));
            let (mut values, mut reason) = (Vec::new(), None);
            for outcome in outcomes {
                match outcome {
                    Outcome::Value { median, .. } => values.push(*median),
                    Outcome::NotAvailable(why) => reason = Some(why.clone()),
                }
            }
            let goal = metric.goal.filter(|_| setup.icount && system.kernel == Kernel::Skerry);
            match reason {
                Some(reason) => table.add_not_available(metric.name, system.name, unit, goal, reason),
                None => table.add(metric.name, system.name, unit, goal, values.clone()),
            }
            if metric.clears > 0 && setup.icount {
                let clearing = f64::from(metric.clears * system.clearing());
                let rest = values.iter().map(|value| value - clearing).collect();
                table.add(format!("{} less the clearing", metric.name), system.name, unit, goal, rest);
            }
        }
    }
    Ok(())
}

impl System {
    /// The instructions that QEMU counts for clearing a page: `rep stosq` on Skerry, on Linux `rep stosb`, as its choice is on
    /// processors that say these are fast; one for each turn.
    fn clearing(&self) -> u32 {
        if self.kernel == Kernel::Skerry { 512 } else { 4096 }
    }
}

/// The newest Linux image of this machine.
fn newest_linux() -> Result<PathBuf> {
    let mut images: Vec<_> = fs::read_dir("/boot")
        .context("cannot read /boot")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
        .collect();
    images.sort();
    images.pop().context("no Linux kernel in /boot (package linux-image-amd64; `make setup` installs it)")
}
