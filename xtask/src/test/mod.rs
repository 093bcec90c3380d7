//! `cargo xtask test`: checks of the source, tests on the host, and scenarios in booted machines.

mod batch;
mod cases;
mod host;
mod host_requests;
mod left;
pub mod scenarios;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::paths;
use crate::vm::cli::parse_kernel;
use crate::vm::{Kernel, Machine};

/// Tests that run at the same time: a machine that waits, or a compiler at its end, leaves a
/// processor to the other.
const WORKERS: usize = 3;

/// Characters of a failure in the last line.
const EXCERPT: usize = 300;

/// Prefix of the names of tests that take minutes each: they are run when they are asked for.
const LONG: &str = "long/";

/// Tests of `--quick`: the source's rules, the host's tests, and a short scenario of each kind
/// (boot, memory, instances and their end, Debian's programs, watching, a terminal, many CPUs).
const QUICK: [&str; 9] = [
    "host/source",
    "host/unit",
    "machine/boot",
    "machine/memory",
    "machine/life",
    "machine/busybox",
    "machine/observe",
    "machine/terminal",
    "machine/64-processors",
];

/// Run the tests.
#[derive(Args)]
pub struct Arguments {
    /// Only tests whose names contain one of these; those called `long/…` run only then
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Only what is wanted before each commit: the source's rules, the host's tests, a short
    /// scenario of each kind; minutes
    #[arg(long, conflicts_with = "filters")]
    quick: bool,
    /// The kernel of the machine tests: `skerry`, or `linux=VMLINUZ` for those that apply to it
    #[arg(long, default_value = "skerry", value_parser = parse_kernel, value_name = "KERNEL")]
    kernel: Kernel,
    /// How often a test that fails is run once more, alone, after all others. If it holds then it
    /// counts as passed, and the end says what did not hold before
    #[arg(long, default_value_t = 0, value_name = "N")]
    retries: u32,
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

/// Environment of a test: the kernel, the directory of its logs, its name.
pub struct Setting {
    kernel: Kernel,
    logs: PathBuf,
    name: &'static str,
}

impl Setting {
    /// For one test of this name.
    pub fn new(kernel: Kernel, logs: PathBuf, name: &'static str) -> Self {
        Self { kernel, logs, name }
    }

    /// A machine of this run, with a log of its own that the name tells.
    pub fn machine(&self, name: &str) -> Machine {
        let log = self
            .logs
            .join(format!("{}-{name}.log", self.name.replace('/', "-")));
        Machine {
            kernel: self.kernel.clone(),
            log,
            ..Machine::default()
        }
    }
}

/// One thing that was checked.
pub struct Check {
    /// Statement that holds.
    pub what: String,
    /// Whether it does: what was seen, or what went wrong.
    pub result: Result<String, String>,
}

impl Check {
    /// A check with this outcome.
    pub fn new(what: impl Into<String>, result: Result<String>) -> Self {
        Self {
            what: what.into(),
            result: result.map_err(|error| format!("{error:#}")),
        }
    }
}

/// Results of the tests.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    /// Names of the tests in which that was.
    failed_tests: BTreeSet<&'static str>,
    /// Checks that failed, and held in a later attempt.
    unsteady: Vec<String>,
}

impl Tally {
    /// Counts a test that will not be run again, after what failed in its attempts before.
    fn add(&mut self, test: &'static str, checks: Vec<Check>, before: Vec<String>) {
        let failures = failures(test, &checks);
        self.passed += checks.len() - failures.len();
        if failures.is_empty() {
            self.unsteady.extend(before);
        } else {
            self.failed_tests.insert(test);
        }
        self.failed.extend(failures);
    }

    /// Tells what failed, and the command that repeats it, as `again` makes it of names; the last
    /// line counts: `N passed, N failed`.
    fn print(&self, logs: &Path, again: impl Fn(&mut dyn Iterator<Item = &'static str>) -> String) {
        let list = |title: &str, failures: &[String]| {
            if !failures.is_empty() {
                println!("\n{title} (machine logs are in {}):", logs.display());
                failures.iter().for_each(|failure| println!("  {failure}"));
            }
        };
        list("failed at first, held when run again", &self.unsteady);
        list("failed", &self.failed);
        if !self.failed_tests.is_empty() {
            println!(
                "\nto repeat: {}",
                again(&mut self.failed_tests.iter().copied())
            );
        }
        println!("\n{}", self.last_line());
    }

    fn last_line(&self) -> String {
        let mut last = format!("{} passed, {} failed", self.passed, self.failed.len());
        if !self.unsteady.is_empty() {
            write!(last, ", {} unsteady", self.unsteady.len()).expect("a string takes all");
        }
        // Of a long output, often the end is all that is kept.
        if let Some(failure) = self.failed.first().or(self.unsteady.first()) {
            write!(last, " ({})", excerpt(failure)).expect("a string takes all");
        }
        last
    }
}

/// The beginning of a text, on one line.
fn excerpt(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The checks of a test that did not hold, a line each.
fn failures(test: &str, checks: &[Check]) -> Vec<String> {
    let failure = |check: &Check| {
        check
            .result
            .as_ref()
            .err()
            .map(|why| format!("{test}: {}: {why}", check.what))
    };
    checks.iter().filter_map(failure).collect()
}

impl Arguments {
    /// Whether a test of this name is asked for.
    fn wants(&self, name: &str) -> bool {
        if self.quick {
            QUICK.contains(&name)
        } else if self.filters.is_empty() {
            !name.starts_with(LONG)
        } else {
            self.filters
                .iter()
                .any(|filter| name.contains(filter.as_str()))
        }
    }

    /// The command that runs these tests again.
    fn again<'a>(&self, names: impl Iterator<Item = &'a str>) -> String {
        let mut command = String::from("cargo xtask test");
        if let Kernel::Linux(image) = &self.kernel {
            write!(command, " --kernel linux={}", image.display()).expect("a string takes all");
        }
        names.for_each(|name| command.extend([" ", name]));
        command
    }
}

/// All tests in the order in which they begin: the source's rules, what does not need cargo's lock
/// while they hold it (the models have a target directory of their own, the longest scenario builds
/// little), the host's tests, all other scenarios.
fn all() -> Vec<Test> {
    let mut scenarios = scenarios::tests().into_iter();
    let mut tests = vec![host::SOURCE, host::LOOM];
    tests.extend(scenarios.next());
    tests.push(host::UNIT);
    tests.extend(scenarios);
    tests
}

/// Carries out `cargo xtask test`.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let wanted = |test: &Test| {
        arguments.wants(test.name)
            && (arguments.kernel == Kernel::Skerry || test.place == Place::AnyMachine)
    };
    let tests: Vec<Test> = all().into_iter().filter(wanted).collect();
    if arguments.list {
        tests.iter().for_each(|test| println!("{}", test.name));
        return Ok(ExitCode::SUCCESS);
    }
    let logs = paths::target().join("test-logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let tally = Mutex::new(Tally::default());
    let again = Mutex::new(VecDeque::new());
    let attempt = |Attempt { test, left, before }| {
        let setting = Setting::new(arguments.kernel.clone(), logs.clone(), test.name);
        let start = Instant::now();
        let checks = (test.run)(&setting)
            .unwrap_or_else(|error| vec![Check::new("it could be run", Err(error))]);
        let mut tally = tally.lock().expect("reporting does not panic");
        report(test.name, &checks, start.elapsed());
        let failures = failures(test.name, &checks);
        if left == 0 || failures.is_empty() {
            tally.add(test.name, checks, before);
        } else {
            let before = before.into_iter().chain(failures).collect();
            again
                .lock()
                .expect("storing does not panic")
                .push_back(Attempt {
                    test,
                    left: left - 1,
                    before,
                });
        }
    };
    let first = |test| Attempt {
        test,
        left: arguments.retries,
        before: Vec::new(),
    };
    let queue = Mutex::new(tests.iter().map(first).collect::<VecDeque<_>>());
    let next =
        |queue: &Mutex<VecDeque<_>>| queue.lock().expect("taking does not panic").pop_front();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(test) = next(&queue) {
                    attempt(test);
                }
            });
        }
    });
    while let Some(test) = next(&again) {
        attempt(test);
    }
    let tally = tally.into_inner().expect("reporting does not panic");
    tally.print(&logs, |names| arguments.again(names));
    Ok(ExitCode::from(u8::from(
        !tally.failed.is_empty() || tally.passed == 0,
    )))
}

/// A test to be run.
struct Attempt<'a> {
    test: &'a Test,
    /// Attempts left after this one.
    left: u32,
    /// Checks that failed in the attempts before.
    before: Vec<String>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(results: [Result<(), &str>; 2]) -> Vec<Check> {
        let check = |result: Result<(), &str>| Check {
            what: "it".into(),
            result: result.map(|()| String::new()).map_err(str::to_owned),
        };
        results.into_iter().map(check).collect()
    }

    fn arguments(filters: &[&str], quick: bool) -> Arguments {
        let filters = filters.iter().map(|&filter| filter.to_owned()).collect();
        Arguments {
            filters,
            quick,
            kernel: Kernel::Skerry,
            retries: 0,
            list: false,
        }
    }

    #[test]
    fn tests_are_chosen_by_name() {
        let all = arguments(&[], false);
        assert!(all.wants("host/unit") && !all.wants("long/soak"));
        let some = arguments(&["boot", "soak"], false);
        assert!(some.wants("machine/boot") && some.wants("long/soak") && !some.wants("host/unit"));
        assert_eq!(
            some.again(["machine/boot", "long/soak"].into_iter()),
            "cargo xtask test machine/boot long/soak"
        );
    }

    #[test]
    fn what_is_quick_is_there() {
        let quick = arguments(&[], true);
        let there = all().iter().filter(|test| quick.wants(test.name)).count();
        assert_eq!(there, QUICK.len());
    }

    #[test]
    fn the_last_line_counts_and_names_a_failure() {
        let mut tally = Tally::default();
        tally.add("a", checks([Ok(()), Ok(())]), vec![]);
        assert_eq!(tally.last_line(), "2 passed, 0 failed");
        tally.add(
            "b",
            checks([Ok(()), Ok(())]),
            vec!["b: it: was late".into()],
        );
        assert_eq!(
            tally.last_line(),
            "4 passed, 0 failed, 1 unsteady (b: it: was late)"
        );
        tally.add(
            "c",
            checks([Ok(()), Err("two\nlines")]),
            vec!["c: it: other".into()],
        );
        assert_eq!(
            tally.last_line(),
            "5 passed, 1 failed, 1 unsteady (c: it: two lines)"
        );
        assert_eq!(
            tally.failed_tests.iter().copied().collect::<Vec<_>>(),
            ["c"]
        );
        tally.failed[0] = "é".repeat(EXCERPT + 1);
        assert!(
            tally
                .last_line()
                .ends_with(&format!("({}…)", "é".repeat(EXCERPT)))
        );
    }
}
