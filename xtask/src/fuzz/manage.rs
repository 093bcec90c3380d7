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
    /// Do so many steps, however long that takes
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Begin with this step of the seed
    #[arg(long, default_value_t = 0, value_name = "N", requires = "steps")]
    pub first: u64,
}

impl Options {
    /// So many steps, from a random seed.
    pub fn new(steps: u64) -> Self {
        Self {
            // The time limit is for what does not end.
            work: RandomWork::new(TIMEOUT + steps * STEP_TIMEOUT),
            cpus: 6,
            steps: Some(steps),
            first: 0,
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
/// The same for a step, when they are counted.
const STEP_TIMEOUT: u64 = 10;
/// Steps that are shown when one went wrong.
const STEPS_SHOWN: usize = 15;

/// Steps that fail, from an empty machine on.
#[derive(Clone, Copy, Deserialize)]
struct Failed {
    first: u64,
    steps: u64,
}

/// The outcome of a run in a machine.
enum Outcome {
    Done(Done),
    Failed {
        /// The last steps, and the logs.
        report: String,
        steps: Option<Failed>,
    },
}

/// Drives in machines that `machine` makes, of this name each. If that fails, the steps that led to
/// it are made again by themselves.
///
/// # Errors
/// What went otherwise than the model says, or that it could not be run; the text has the seed, the
/// last steps, and the log.
pub fn manage(options: &Options, machine: impl Fn(&str) -> Machine) -> Result<Done> {
    let seed = options.work.seed();
    let (report, steps) = match drive(options, seed, machine("manage"))? {
        Outcome::Done(done) => return Ok(done),
        Outcome::Failed { report, steps } => (report, steps),
    };
    let cpus = options.cpus;
    let again = format!("again: cargo xtask fuzz manage --seed {seed} --cpus {cpus}");
    let Some(Failed { first, steps }) = steps else {
        bail!("{report}\n{again}");
    };
    let alone = Options {
        steps: Some(steps),
        first,
        ..options.clone()
    };
    let verdict = match drive(&alone, seed, machine("manage-again"))? {
        Outcome::Done(_) => "which do not fail each time".into(),
        Outcome::Failed { steps: None, .. } => "which fail by themselves, otherwise".into(),
        Outcome::Failed {
            steps: Some(failed),
            ..
        } => format!(
            "which fail by themselves, at step {}",
            failed.first + failed.steps - 1
        ),
    };
    bail!(
        "{report}\nthe machine was empty before step {first}: what led to it are {steps} steps, \
         {verdict}\n{again} --first {first} --steps {steps}"
    )
}

fn drive(options: &Options, seed: u64, mut machine: Machine) -> Result<Outcome> {
    machine.hardware.cpus = options.cpus;
    machine.timeout = Some(Duration::from_secs(options.work.seconds + TIMEOUT));
    machine.additions.push(Addition {
        host: build::manage_program()?.program("manage"),
        guest: "/bin/manage".into(),
    });
    let mut words = ["/bin/manage", "drive"].map(OsString::from).to_vec();
    let numbers = [seed, options.work.seconds];
    let counted = options.steps.map(|steps| [steps, options.first]);
    let numbers = numbers.into_iter().chain(counted.into_iter().flatten());
    words.extend(numbers.map(|number| number.to_string().into()));
    machine.command = words;
    let run = machine.run_collected()?;
    let printed = run.output;
    let told = |mark| printed.lines().find_map(|line| line.strip_prefix(mark));
    if let (Ending::Exited(0), Some(result)) = (&run.ending, told("manage-result ")) {
        let done = serde_json::from_str(result).context("the driver's result makes no sense")?;
        return Ok(Outcome::Done(done));
    }
    let lines: Vec<&str> = printed.lines().collect();
    let shown: Vec<usize> = (0..lines.len())
        .filter(|at| lines[*at].starts_with("step "))
        .collect();
    let from = shown
        .get(shown.len().saturating_sub(STEPS_SHOWN))
        .copied()
        .unwrap_or(0);
    let report = format!(
        "{:?}\n{}\n{}\nthe supervisor's log ends:\n{}",
        run.ending,
        lines[from..].join("\n"),
        run.complaints,
        last_lines(&machine.log, LOG_LINES),
    );
    let steps = told("manage-failure ").and_then(|steps| serde_json::from_str(steps).ok());
    Ok(Outcome::Failed { report, steps })
}
