//! `cargo xtask fuzz`: random system calls with hostile arguments, in instances of a booted
//! machine; and the management of instances at random ([`manage`]; `docs/fuzzing.md`).

pub mod failures;
pub mod hunts;
pub mod manage;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use self::hunts::Hunt;
use crate::cleanup::Directory;
use crate::vm::{Addition, Ending, Machine, last_lines};
use crate::{abi, build, paths};

/// Do at random what may be done, and see whether what must hold does
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Random system calls; fails if the kernel panics, hangs, or does not get rid of a process
    Syscalls(Syscalls),
    /// System calls with one request for memory after the other refused; fails if the kernel
    /// panics, an error is one that does not say so, or something is left behind
    Failures(failures::Options),
    /// Random operations of `skerry`; fails if one does something else than a model of instances
    /// says, or something is lost
    Manage(manage::Options),
    /// Hostile work on the supervisor, while an instance beside it goes on
    #[command(flatten)]
    Hunt(Hunts),
}

#[derive(Subcommand)]
enum Hunts {
    /// Random system calls by nobody on the supervisor
    Supervisor(RandomWork),
    /// Instances from archives in which something was changed
    Archives(RandomWork),
    /// Executables in which something was changed, run in an instance
    Executables(RandomWork),
    /// Calls of `/dev/skerry` with hostile arguments
    Ioctls(RandomWork),
    /// Two `skerry` at a time, killed at any moment
    Storms(RandomWork),
}

impl Hunts {
    fn split(&self) -> (Hunt, &RandomWork) {
        match self {
            Self::Supervisor(options) => (Hunt::Supervisor, options),
            Self::Archives(options) => (Hunt::Archives, options),
            Self::Executables(options) => (Hunt::Executables, options),
            Self::Ioctls(options) => (Hunt::Ioctls, options),
            Self::Storms(options) => (Hunt::Storms, options),
        }
    }
}

/// Options of all random work.
#[derive(Args, Clone)]
pub struct RandomWork {
    /// How long, in seconds of the machine
    #[arg(long, default_value_t = 60, value_name = "N")]
    pub seconds: u64,
    /// Where what is done comes from; a random one if none is given
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl RandomWork {
    /// For this long, from a random seed.
    pub fn new(seconds: u64) -> Self {
        Self {
            seconds,
            seed: None,
            json: false,
        }
    }

    /// The seed that was given, or one that nobody chose.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(random_seed)
    }
}

/// Options for fuzzing system calls.
#[derive(Args, Clone)]
pub struct Syscalls {
    #[command(flatten)]
    work: RandomWork,
    /// Processors of the instance
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub cpus: u32,
    /// Only this round of the first instance of the seed, with each call shown before it is made
    #[arg(long, value_name = "R")]
    pub round: Option<u64>,
}

impl Syscalls {
    /// For this long on so many processors, from a random seed.
    pub fn new(seconds: u64, cpus: u32) -> Self {
        Self {
            work: RandomWork::new(seconds),
            cpus,
            round: None,
        }
    }
}

/// Work that was done.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Done {
    #[serde(default)]
    seed: u64,
    rounds: u64,
    calls: u64,
    succeeded: u64,
    calls_that_succeeded_once: u64,
    calls_that_never_did: BTreeSet<String>,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            seed,
            rounds,
            calls,
            succeeded,
            calls_that_succeeded_once: kinds,
            calls_that_never_did: others,
        } = self;
        write!(
            f,
            "seed {seed}: {rounds} rounds, {calls} calls, {succeeded} of them succeeded, of {kinds} different ones"
        )?;
        if !others.is_empty() {
            let names: Vec<_> = others.iter().map(String::as_str).collect();
            write!(f, "; none of {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// An instance lives this long: what the rounds leave in its file system goes with it.
const INSTANCE_SECONDS: u64 = 60;
/// Time limit for an instance to end after its time, in seconds, on a machine that is emulated and
/// busy.
const TIMEOUT: u64 = 200;
/// Lines of the kernel's log that are shown.
const LOG_LINES: usize = 60;
/// Calls that are shown of a round that ended with the kernel.
const CALLS_SHOWN: usize = 16;

/// Carries out `cargo xtask fuzz`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let log = paths::target().join(format!("fuzz-{}.log", std::process::id()));
    let new_machine = |_: &str| Machine {
        log: log.clone(),
        ..Machine::default()
    };
    let machine = new_machine("");
    match &arguments.what {
        What::Syscalls(options) => {
            report(syscalls(options, machine), Format::of(options.work.json))
        }
        What::Failures(options) => report(failures::failures(options, machine), Format::Text),
        What::Manage(options) => {
            let format = Format::of(options.work.json);
            report(manage::manage(options, new_machine), format)
        }
        What::Hunt(hunts) => {
            let (hunt, options) = hunts.split();
            report(
                hunts::hunt(&[hunt], options, machine),
                Format::of(options.json),
            )
        }
    }
}

/// Form of a report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

impl Format {
    /// The one that `--json`, given or not, asks for.
    fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// Prints what was done, or why not.
fn report(outcome: Result<impl Serialize + std::fmt::Display>, format: Format) -> Result<ExitCode> {
    match &outcome {
        Ok(done) if format == Format::Json => println!("{}", serde_json::to_string(done)?),
        Ok(done) => println!("{done}"),
        Err(error) => println!("{error:#}"),
    }
    Ok(ExitCode::from(u8::from(outcome.is_err())))
}

/// Fuzzes in this machine, one instance after the other.
///
/// # Errors
/// A panic, a hang, or that it could not be run; the text has the seed, the last calls, and the
/// log.
pub fn syscalls(options: &Syscalls, machine: Machine) -> Result<Done> {
    let directory = Directory::create()?;
    let table = directory.join("calls");
    fs::write(&table, abi::signatures()?)?;
    let mut fuzz = Fuzz {
        machine,
        program: build::test_programs()?.program("machine-tests"),
        table,
        cpus: options.cpus,
    };
    fuzz.machine.hardware.cpus = options.cpus + 1;
    let first = options.work.seed();
    let mut total = Done {
        seed: first,
        ..Done::default()
    };
    let mut seconds = options.work.seconds;
    while seconds > 0 {
        let (now, seed) = (
            seconds.min(INSTANCE_SECONDS),
            first.wrapping_add(total.rounds),
        );
        let done = match fuzz.instance(seed, now, options.round)? {
            Ok(done) => done,
            Err(failure) => return Err(fuzz.explain(seed, failure, options.round)),
        };
        total.calls += done.calls;
        total.succeeded += done.succeeded;
        total.calls_that_never_did = match total.rounds {
            0 => done.calls_that_never_did,
            _ => &total.calls_that_never_did & &done.calls_that_never_did,
        };
        total.calls_that_succeeded_once = total
            .calls_that_succeeded_once
            .max(done.calls_that_succeeded_once);
        total.rounds += done.rounds;
        seconds -= now;
        if options.round.is_some() {
            break;
        }
    }
    Ok(total)
}

/// A seed that nobody chose.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
        >> 32
}

struct Fuzz {
    machine: Machine,
    program: PathBuf,
    table: PathBuf,
    cpus: u32,
}

/// Output of an instance before it failed, and how the failure looks.
struct Failure {
    what: String,
    printed: String,
}

impl Fuzz {
    /// Boots a machine with one instance that fuzzes.
    fn instance(
        &self,
        seed: u64,
        seconds: u64,
        round: Option<u64>,
    ) -> Result<Result<Done, Failure>> {
        let mut machine = self.machine.clone();
        let limit = seconds + TIMEOUT;
        machine.timeout = Some(Duration::from_secs(limit + 60));
        for (host, guest) in [
            (&self.program, "/bin/machine-tests"),
            (&self.table, "/fuzz-calls"),
        ] {
            machine.additions.push(Addition {
                host: host.clone(),
                guest: guest.into(),
            });
        }
        let round = round.map_or(String::new(), |round| round.to_string());
        let memory = if seed.is_multiple_of(2) {
            "512M"
        } else {
            "80M"
        };
        let script = format!(
            "timeout -s KILL {limit} skerry run --name fuzz --cpus {} --mem {memory} -- machine-tests fuzz /fuzz-calls {seed} {seconds} {} {round} > /tmp/out 2>&1
             status=$?; tail -n 400 /tmp/out; [ $status = 0 ] && exit
             echo \"== status $status\"; skerry inspect fuzz --json; skerry logs --kernel fuzz | tail -n {LOG_LINES}; exit 1",
            self.cpus,
            self.cpus + 2
        );
        machine.command = ["/bin/sh", "-c", &script].map(OsString::from).to_vec();
        let run = machine.run_collected()?;
        let printed = run.output;
        let result = printed
            .lines()
            .find_map(|line| line.strip_prefix("fuzz-result "));
        if let (Ending::Exited(0), Some(result)) = (&run.ending, result) {
            return Ok(Ok(
                serde_json::from_str(result).context("the fuzzer's result makes no sense")?
            ));
        }
        let log = last_lines(&machine.log, LOG_LINES);
        let told = printed.split_once("== status").map_or("", |(_, rest)| rest);
        let said = printed
            .lines()
            .filter(|line| !line.starts_with("round "))
            .take_while(|line| !line.starts_with("== status"));
        let said: Vec<_> = said.collect();
        let what = format!(
            "{:?}\nthe fuzzer said: {}\nthe instance: status{told}\nthe supervisor's log ends:\n{log}",
            run.ending,
            said[said.len().saturating_sub(CALLS_SHOWN)..].join("\n")
        );
        Ok(Err(Failure { what, printed }))
    }

    /// Describes the failure, with the last calls of the round that did it, found by making each
    /// round that was going on again by itself.
    fn explain(&self, seed: u64, failure: Failure, round: Option<u64>) -> anyhow::Error {
        let mut text = format!("seed {seed}, {} processors: {}", self.cpus, failure.what);
        let started: Vec<u64> = failure
            .printed
            .lines()
            .filter_map(|line| line.strip_prefix("round ")?.parse().ok())
            .collect();
        let going_on = &started[started.len().saturating_sub(self.cpus as usize + 4)..];
        text += &format!(
            "\nthe last rounds: {going_on:?}; one of them by itself: cargo xtask fuzz syscalls --seed {seed} --cpus {} --round R",
            self.cpus
        );
        if round.is_none() {
            for &round in going_on.iter().rev() {
                match self.instance(seed, 1, Some(round)) {
                    Ok(Ok(_)) => {}
                    Ok(Err(alone)) => {
                        text += &format!("\nround {round} by itself: {}", alone.what);
                        break;
                    }
                    Err(error) => {
                        text += &format!("\nround {round} could not be run by itself: {error:#}");
                    }
                }
            }
        }
        anyhow::Error::msg(text)
    }
}
