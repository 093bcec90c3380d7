//! `cargo xtask fuzz manage`: the verbs of `skerry` at random, beside a model of instances
//! (`tests/manage`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::{LOG_LINES, RandomWork};
use crate::build;
use crate::vm::{Addition, Ending, Machine, last_lines};

/// Options for driving the management of instances.
#[derive(Args, Clone)]
pub struct Options {
    /// How long, and where the operations come from
    #[command(flatten)]
    pub work: RandomWork,
    /// Processors of the machine; the first is the supervisor's
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub cpus: u32,
}

impl Options {
    /// For this long, from a random seed.
    pub fn new(seconds: u64) -> Self {
        Self {
            work: RandomWork::new(seconds),
            cpus: 6,
        }
    }
}

/// Work that was done.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {
    seed: u64,
    steps: u64,
    tools: u64,
    verbs: BTreeMap<String, u64>,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            seed,
            steps,
            tools,
            verbs,
        } = self;
        let verbs: Vec<_> = verbs
            .iter()
            .map(|(verb, count)| format!("{verb} {count}"))
            .collect();
        write!(
            f,
            "seed {seed}: {steps} steps, {tools} tools: {}",
            verbs.join(", ")
        )
    }
}

/// Time limit of the last step and the clearing up, in seconds, on a machine that is emulated and
/// busy.
const TIMEOUT: u64 = 600;
/// Steps that are shown when one went wrong.
const STEPS_SHOWN: usize = 15;

/// Drives in this machine.
///
/// # Errors
/// What went otherwise than the model says, or that it could not be run; the text has the seed, the
/// last steps, and the log.
pub fn manage(options: &Options, mut machine: Machine) -> Result<Done> {
    let seed = options.work.seed();
    machine.hardware.cpus = options.cpus;
    machine.timeout = Some(Duration::from_secs(options.work.seconds + TIMEOUT));
    machine.additions.push(Addition {
        host: build::manage_program()?.program("manage"),
        guest: "/bin/manage".into(),
    });
    let words = [
        "/bin/manage",
        "drive",
        &seed.to_string(),
        &options.work.seconds.to_string(),
    ];
    machine.command = words.map(OsString::from).to_vec();
    let run = machine.run_collected()?;
    let printed = run.output;
    let result = printed
        .lines()
        .find_map(|line| line.strip_prefix("manage-result "));
    if let (Ending::Exited(0), Some(result)) = (&run.ending, result) {
        return serde_json::from_str(result).context("the driver's result makes no sense");
    }
    let lines: Vec<&str> = printed.lines().collect();
    let steps: Vec<usize> = (0..lines.len())
        .filter(|at| lines[*at].starts_with("step "))
        .collect();
    let from = steps
        .get(steps.len().saturating_sub(STEPS_SHOWN))
        .copied()
        .unwrap_or(0);
    bail!(
        "{:?}\n{}\n{}\nthe supervisor's log ends:\n{}\nagain: cargo xtask fuzz manage --seed {seed} --cpus {}",
        run.ending,
        lines[from..].join("\n"),
        run.complaints,
        last_lines(&machine.log, LOG_LINES),
        options.cpus
    )
}
