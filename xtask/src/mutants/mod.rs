//! `cargo xtask mutants`: changes of the source in the style of tired developers, and whether a
//! test notices them (`docs/testing.md`).

mod cfg;
mod compile;
mod errnos;
mod host;
mod image;
mod kernel;
mod killers;
mod operators;
mod places;
mod report;
mod sample;
mod tree;
pub mod trial;

use std::collections::VecDeque;
use std::fs;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use cfg::Build;
use clap::Args;
use image::Image;
use places::Place;
use report::{Fate, Verdict};
use tree::{Mutant, Tree};

use crate::paths;

/// Directories in which kernel mutants are made.
const KERNEL: &[&str] = &[
    "linux", "futex", "fs", "net", "vm", "task", "node", "link", "guard", "drivers", "kernel",
];
/// Only these parts of the guard: in the rest most changes end the machine at once, or are the
/// hardware's business.
const GUARD: &[&str] = &[
    "crates/guard/src/partition",
    "crates/guard/src/mem",
    "crates/guard/src/instance",
];
/// Crates in which host mutants are made: those that have tests on the host.
const HOST: &[&str] = &[
    "abi",
    "acpi",
    "bpf",
    "fair",
    "frames",
    "fs",
    "futex",
    "kmsg",
    "lfmutex",
    "mitigations",
    "net",
    "parallel",
    "psi",
    "rcu",
    "ring",
    "shrink",
    "slab",
    "task",
    "tcp",
    "topology",
    "trace",
    "virtio",
    "virtqueue",
    "vm",
];
/// Crates in which kernel mutants are made and that have tests on the host.
const BOTH: &[&str] = &["linux", "futex", "fs", "net", "vm", "task", "node", "guard"];
/// The test that runs those, as `cargo xtask test --list` has it.
const HOST_TEST: &str = "host/unit";
/// For each mutant that is wanted, so many are built in: some turn out to be no Rust.
const SPARE: f64 = 1.25;

/// Change the source and see what the tests notice
#[derive(Args)]
pub struct Arguments {
    /// Mutants of what is tested on the host, by the tests there; without it, of the kernel, by
    /// tests in machines, too
    #[arg(long)]
    host: bool,
    /// Only in these crates, or in files whose path contains this
    #[arg(long = "crate", value_name = "X")]
    only: Vec<String>,
    /// Number of mutants
    #[arg(long, default_value_t = 60, value_name = "N")]
    sample: usize,
    /// Seed of the sample
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Only this one of the sample; may be repeated
    #[arg(long, value_name = "K")]
    number: Vec<u32>,
    /// Steps of tests that are tried against a kernel mutant, at most
    #[arg(long, default_value_t = 60, value_name = "N")]
    steps: usize,
    /// Only these of the tests that are near to a mutant of the kernel
    #[arg(long = "test", value_name = "TEST")]
    tests: Vec<String>,
    /// List the sample
    #[arg(long)]
    list: bool,
    /// Mutants tried at the same time
    #[arg(long, default_value_t = 1, value_name = "N")]
    jobs: usize,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Carries out `cargo xtask mutants`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (build, packages) = if arguments.host {
        (Build::Host, HOST)
    } else {
        (Build::Kernel, KERNEL)
    };
    let mut all: Vec<Place> = Vec::new();
    for package in packages {
        all.extend(places::of(package, build)?);
    }
    all.retain(|place| {
        place.package != "guard" || GUARD.iter().any(|part| place.file.starts_with(part))
    });
    if !arguments.only.is_empty() {
        all.retain(|place| {
            arguments.only.iter().any(|only| {
                place.package == *only || only.contains('/') && place.file.contains(only.as_str())
            })
        });
    }
    let possible = all.len();
    ensure!(possible > 0, "there is nothing to change there");
    let wanted = (arguments.sample as f64 * SPARE) as usize;
    let chosen = sample::choose(all, wanted, arguments.seed);
    eprintln!(
        "xtask: {} of {possible} possible changes, seed {}",
        arguments.sample.min(chosen.len()),
        arguments.seed
    );
    let mutants: Vec<Mutant> = chosen
        .into_iter()
        .enumerate()
        .map(|(index, place)| Mutant {
            number: index as u32 + 1,
            place,
        })
        .collect();
    ensure!(
        mutants.len() < mutant::MAX_CHANGES as usize,
        "at most {} mutants fit into one program",
        mutant::MAX_CHANGES
    );
    if arguments.list {
        for mutant in &mutants {
            let Place {
                file,
                line,
                operator,
                before,
                after,
                ..
            } = &mutant.place;
            println!(
                "{:>4} {file}:{line} {operator}\n  - {}\n  + {}",
                mutant.number,
                before.trim(),
                after.trim()
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    let verdicts = if arguments.host {
        on_host(arguments, mutants)?
    } else {
        in_machines(arguments, mutants)?
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&verdicts)?);
    } else {
        println!("{}", report::text(&verdicts));
    }
    Ok(ExitCode::SUCCESS)
}

fn in_machines(arguments: &Arguments, mutants: Vec<Mutant>) -> Result<Vec<Verdict>> {
    let (image, mutants) = Image::build(&Tree::new("kernel"), mutants)?;
    let mutants = arguments.tried(mutants);
    let host = arguments.host_bench(&mutants)?;
    let bench = kernel::Bench::new(image, &mutants, arguments.steps, &arguments.tests)?;
    judge_all(arguments, &mutants, |mutant| {
        // First those of the host, which take seconds.
        let on_host = host
            .as_ref()
            .map_or(Ok(Fate::NotReached), |host| host.judge(mutant))?;
        if matches!(on_host, Fate::Killed(_)) {
            return Ok(on_host);
        }
        let in_machines = bench.judge(mutant)?;
        Ok(if matches!(in_machines, Fate::NotReached) {
            on_host
        } else {
            in_machines
        })
    })
}

fn on_host(arguments: &Arguments, mutants: Vec<Mutant>) -> Result<Vec<Verdict>> {
    let (bench, mutants) = host::Bench::build(Tree::new("host"), mutants)?;
    judge_all(arguments, &arguments.tried(mutants), |mutant| {
        bench.judge(mutant)
    })
}

impl Arguments {
    /// Mutants that are tried, of those that were built.
    fn tried(&self, mut mutants: Vec<Mutant>) -> Vec<Mutant> {
        mutants.truncate(self.sample);
        mutants.retain(|mutant| self.number.is_empty() || self.number.contains(&mutant.number));
        mutants
    }

    /// The tests of the host for those of the kernel's mutants that they are near to, if they are
    /// asked for.
    fn host_bench(&self, mutants: &[Mutant]) -> Result<Option<host::Bench>> {
        let near: Vec<Mutant> = mutants
            .iter()
            .filter(|mutant| BOTH.contains(&mutant.place.package.as_str()))
            .cloned()
            .collect();
        let wanted = self.tests.is_empty() || self.tests.iter().any(|test| test == HOST_TEST);
        if near.is_empty() || !wanted {
            return Ok(None);
        }
        Ok(Some(host::Bench::build(Tree::new("host"), near)?.0))
    }
}

/// Judges the mutants, some at a time; tells each result when it is known, and keeps them in a
/// file.
fn judge_all(
    arguments: &Arguments,
    mutants: &[Mutant],
    judge: impl Fn(&Mutant) -> Result<Fate> + Sync,
) -> Result<Vec<Verdict>> {
    let equivalent = report::equivalent()?;
    let queue = Mutex::new(mutants.iter().collect::<VecDeque<_>>());
    let verdicts = Mutex::new(Vec::new());
    let kept = paths::target().join(if arguments.host {
        "mutants/host.json"
    } else {
        "mutants/kernel.json"
    });
    let worker = || -> Result<()> {
        loop {
            let Some(mutant) = queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front()
            else {
                return Ok(());
            };
            let fate = if report::is_equivalent(mutant, &equivalent) {
                Fate::Equivalent
            } else {
                judge(mutant)?
            };
            let verdict = Verdict::new(mutant, fate);
            eprintln!("{}", verdict.line());
            let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            verdicts.push(verdict);
            fs::write(&kept, serde_json::to_string_pretty(&*verdicts)?)
                .with_context(|| format!("cannot write {}", kept.display()))?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.jobs.max(1))
            .map(|_| scope.spawn(worker))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("judging does not panic"))
    })?;
    Ok(verdicts
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}
