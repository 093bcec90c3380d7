//! Boots a machine whose first process is the program of `bench/micro`, and reads what it tells on the console.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::metrics::Metric;
use crate::vm::{Kernel, Machine, last_lines};
use crate::{build, paths};

/// How long one machine may take: emulated, and counting, Linux alone needs a minute or two to boot.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// What one run of a metric gave.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It ran.
    Value {
        /// The median of its batches.
        median: f64,
        /// How many operations there were in each batch.
        operations: u64,
    },
    /// The system cannot run it: the errno's name and what failed.
    NotAvailable(String),
}

/// How the machine is made.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Its processors.
    pub cpus: u32,
    /// Whether the clock counts instructions.
    pub icount: bool,
}

/// Runs each of `metrics` once. A machine that dies or hangs costs the metric under way; the rest runs in another one.
///
/// # Errors
/// When no machine can be started at all.
pub fn run(kernel: &Kernel, setup: Setup, metrics: &[&Metric]) -> Result<BTreeMap<&'static str, Outcome>> {
    let mut results = BTreeMap::new();
    loop {
        let left: Vec<_> = metrics.iter().filter(|metric| !results.contains_key(metric.name)).collect();
        let Some(first) = left.first() else { return Ok(results) };
        let names: Vec<_> = left.iter().map(|metric| metric.name).collect();
        let machine = machine(kernel, setup);
        let ended = boot(&machine, setup, &names);
        let log = String::from_utf8_lossy(&std::fs::read(&machine.log)?).into_owned();
        ensure!(log.contains("bench: start"), "the program did not start; the log ends:\n{}", last_lines(&machine.log, 25));
        results.extend(left.iter().filter_map(|metric| Some((metric.name, outcome(&log, metric.name)?))));
        if let Err(error) = ended {
            // The first without a result is the one the machine died of.
            if let Some(metric) = left.iter().find(|metric| !results.contains_key(metric.name)) {
                eprintln!("xtask: {}: {error:#}", metric.name);
                results.insert(metric.name, Outcome::NotAvailable("the machine died".into()));
            }
        } else {
            // A name the program does not know would be asked for again without end.
            results.entry(first.name).or_insert_with(|| Outcome::NotAvailable("not reported".into()));
        }
    }
}

/// A machine for the program.
pub fn machine(kernel: &Kernel, setup: Setup) -> Machine {
    let mut machine = Machine {
        kernel: kernel.clone(),
        append: "quiet nokaslr".into(),
        log: paths::target().join("bench.log"),
        timeout: Some(TIME_LIMIT),
        ..Machine::default()
    };
    (machine.hardware.cpus, machine.hardware.icount) = (setup.cpus, setup.icount);
    machine
}

/// Boots the machine with the program and these metrics to run; returns the log.
pub fn boot(machine: &Machine, setup: Setup, names: &[&str]) -> Result<String> {
    let (program, nothing) = build::micro()?;
    let clock = if setup.icount { "instructions" } else { "nanoseconds" };
    let conf = names.iter().fold(format!("{clock}\n"), |conf, name| conf + name + "\n");
    machine.run_without_agent(&program, |archive| {
        for directory in ["/proc", "/tmp"] {
            archive.directory(directory, 0o755);
        }
        archive.device("/dev/null", 0o666, 1, 3);
        archive.device("/dev/zero", 0o666, 1, 5);
        archive.file("/bench.conf", 0o644, conf.as_bytes());
        archive.host(&nothing, "/nothing")
    })
}

/// What the log tells of one metric: `bench: NAME MEDIAN LEAST MOST OPERATIONS`, or `bench: NAME n/a ERRNO CALL`.
pub fn outcome(log: &str, name: &str) -> Option<Outcome> {
    let rest = log.lines().find_map(|line| line.split_once("bench: ")?.1.strip_prefix(name)?.strip_prefix(' '))?;
    match rest.strip_prefix("n/a ") {
        Some(reason) => Some(Outcome::NotAvailable(reason.trim().to_owned())),
        None => {
            let words: Vec<_> = rest.split_whitespace().collect();
            Some(Outcome::Value { median: words.first()?.parse().ok()?, operations: words.get(3)?.parse().ok()? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, outcome};

    #[test]
    fn values_and_refusals_are_told_apart() {
        let log = "\nbench: start\r\nbench: stat 1000.5 1000.0 1001.0 9\r\nbench: epoll n/a ENOSYS epoll_create1(0)\r\n";
        assert_eq!(outcome(log, "stat"), Some(Outcome::Value { median: 1000.5, operations: 9 }));
        assert_eq!(outcome(log, "epoll"), Some(Outcome::NotAvailable("ENOSYS epoll_create1(0)".into())));
        assert_eq!(outcome(log, "sta"), None);
    }
}
