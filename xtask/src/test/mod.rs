//! `cargo xtask test`: checks of the source, tests on the host, and scenarios in booted machines.

mod batch;
mod host;
mod scenarios;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::paths;
use crate::vm::cli::parse_kernel;
use crate::vm::{Kernel, Machine};

/// Machines that run at the same time.
const MACHINES: usize = 2;

/// What the names of tests begin with that take minutes each: they are run when they are asked for.
const LONG: &str = "long/";

/// Run the tests.
#[derive(Args)]
pub struct Arguments {
    /// Only the tests whose name contains this; those called `long/…` run only then
    filter: Option<String>,
    /// The kernel of the machine tests: `skerry`, or `linux=VMLINUZ` for those that apply to it
    #[arg(long, default_value = "skerry", value_parser = parse_kernel, value_name = "KERNEL")]
    kernel: Kernel,
    /// List the tests' names
    #[arg(long)]
    list: bool,
}

/// One test: a name, and what it does. It reports each of the things it checks.
pub struct Test {
    /// Kind and subject: `host/ring`, `machine/busybox`.
    pub name: &'static str,
    /// Where it can run.
    pub place: Place,
    /// Runs it.
    pub run: fn(&Setting) -> Result<Vec<Check>>,
}

/// Where a test runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the host.
    Host,
    /// In a machine of either kernel: what it expects, Linux does too.
    AnyMachine,
    /// In a machine that runs Skerry.
    SkerryMachine,
}

/// What a test is given.
pub struct Setting {
    kernel: Kernel,
    logs: PathBuf,
    name: &'static str,
}

impl Setting {
    /// A machine of this run, with a log of its own that the name tells.
    pub fn machine(&self, name: &str) -> Machine {
        let log = self.logs.join(format!("{}-{name}.log", self.name.replace('/', "-")));
        Machine { kernel: self.kernel.clone(), log, ..Machine::default() }
    }
}

/// One thing that was checked.
pub struct Check {
    /// What holds, as a statement.
    pub what: String,
    /// Whether it does: what was seen, or what went wrong.
    pub result: Result<String, String>,
}

impl Check {
    /// A check with this outcome.
    pub fn new(what: impl Into<String>, result: Result<String>) -> Self {
        Self { what: what.into(), result: result.map_err(|error| format!("{error:#}")) }
    }
}

/// How many checks held, and how many did not.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

impl Tally {
    fn add(&mut self, test: &str, checks: Vec<Check>) {
        for Check { what, result } in checks {
            match result {
                Ok(_) => self.passed += 1,
                Err(why) => self.failed.push(format!("{test}: {what}: {why}")),
            }
        }
    }
}

/// Carries out `cargo xtask test`. The last line counts: `N passed, N failed`.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let wanted = |test: &Test| {
        arguments.filter.as_deref().map_or(!test.name.starts_with(LONG), |filter| test.name.contains(filter))
            && (arguments.kernel == Kernel::Skerry || test.place == Place::AnyMachine)
    };
    let tests: Vec<Test> = host::tests().into_iter().chain(scenarios::tests()).filter(wanted).collect();
    if arguments.list {
        tests.iter().for_each(|test| println!("{}", test.name));
        return Ok(ExitCode::SUCCESS);
    }
    let logs = paths::target().join("test-logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let (on_host, in_machines): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.place == Place::Host);
    let tally = Mutex::new(Tally::default());
    let run_one = |test: &Test| {
        let setting = Setting { kernel: arguments.kernel.clone(), logs: logs.clone(), name: test.name };
        let start = Instant::now();
        let checks = (test.run)(&setting).unwrap_or_else(|error| vec![Check::new("it could be run", Err(error))]);
        let mut tally = tally.lock().expect("reporting does not panic");
        report(test.name, &checks, start.elapsed());
        tally.add(test.name, checks);
    };
    // Host tests use all processors themselves.
    on_host.iter().for_each(run_one);
    let queue = Mutex::new(in_machines.into_iter().collect::<VecDeque<_>>());
    let next = || queue.lock().expect("taking does not panic").pop_front();
    thread::scope(|scope| {
        for _ in 0..MACHINES {
            scope.spawn(|| {
                while let Some(test) = next() {
                    run_one(&test);
                }
            });
        }
    });
    let tally = tally.into_inner().expect("reporting does not panic");
    if !tally.failed.is_empty() {
        println!("\nfailed (machine logs are in {}):", logs.display());
        tally.failed.iter().for_each(|failure| println!("  {failure}"));
    }
    println!("\n{} passed, {} failed", tally.passed, tally.failed.len());
    Ok(ExitCode::from(u8::from(!tally.failed.is_empty() || tally.passed == 0)))
}

fn report(name: &str, checks: &[Check], time: Duration) {
    println!("{name} ({:.1} s)", time.as_secs_f64());
    for Check { what, result } in checks {
        match result {
            Ok(seen) if seen.is_empty() => println!("  ok      {what}"),
            Ok(seen) => println!("  ok      {what}: {seen}"),
            Err(why) => println!("  FAILED  {what}: {why}"),
        }
    }
}
