//! `cargo xtask fuzz manage`: the verbs of `skerry` at random, beside a model of instances
//! (`tests/manage`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::{LOG_LINES, random_seed};
use crate::build;
use crate::vm::{Addition, Ending, Machine, Streams, last_lines};

/// Options for driving the management of instances.
#[derive(Args, Clone)]
pub struct Options {
    /// How long, in seconds of the machine
    #[arg(long, default_value_t = 60, value_name = "N")]
    pub seconds: u64,
    /// Where the operations come from; a random one if none is given
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Processors of the machine; the first is the supervisor's
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub cpus: u32,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl Options {
    /// For this long, from a random seed.
    pub fn new(seconds: u64) -> Self {
        Self {
            seconds,
            seed: None,
            cpus: 6,
            json: false,
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
    let seed = options.seed.unwrap_or_else(random_seed);
    machine.hardware.cpus = options.cpus;
    machine.timeout = Some(Duration::from_secs(options.seconds + TIMEOUT));
    machine.additions.push(Addition {
        host: build::manage_program()?.program("manage"),
        guest: "/bin/manage".into(),
    });
    let words = [
        "/bin/manage",
        "drive",
        &seed.to_string(),
        &options.seconds.to_string(),
    ];
    machine.command = words.map(OsString::from).to_vec();
    let (mut output, mut complaints) = (Vec::new(), Vec::new());
    let streams = Streams {
        input: Box::new(std::io::empty()),
        output: &mut output,
        error: &mut complaints,
    };
    let outcome = machine.run(streams)?;
    let printed = String::from_utf8_lossy(&output).into_owned();
    let result = printed
        .lines()
        .find_map(|line| line.strip_prefix("manage-result "));
    if let (Ending::Exited(0), Some(result)) = (&outcome.ending, result) {
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
        outcome.ending,
        lines[from..].join("\n"),
        String::from_utf8_lossy(&complaints),
        last_lines(&machine.log, LOG_LINES),
        options.cpus
    )
}
