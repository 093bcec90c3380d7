//! `cargo xtask bench isolation`: what a program's operations cost while others storm beside it, in
//! another instance, and under one Linux pinned to other processors.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::{Arguments, System, document};
use crate::build;
use crate::vm::{Addition, Kernel, Machine};

/// Limit for one machine.
const LIMIT: Duration = Duration::from_secs(3600);
/// Processors: the supervisor's or Linux' first, one for who is measured, two for the others.
const CPUS: u32 = 4;

/// Operations, in the order of their numbers in `bench/isolation`: those of a program alone have
/// the numbers from 1 on, those of one beside others come behind them.
const OPERATIONS: [&str; 4] = ["spin", "file", "memory", "process"];
/// The operation in which nothing but the program's own loop is executed.
const SPIN: &str = OPERATIONS[0];

/// Starts one instance after the other with the program that is measured, the second one beside
/// one that storms.
const SCRIPT: &str = "
measure() { skerry run --rm --name work --cpus 1 --mem 256M --on-hang ignore -- /bin/isolation work $1 0 || exit 1; }
measure alone
skerry run -d --name storm --cpus 2 --mem 256M -- /bin/isolation storm 0 1 >/dev/null
until skerry logs storm | grep -q storming; do sleep 0.1; done
measure beside
skerry rm --force storm >/dev/null
";

/// The same in one system.
const LINUX_SCRIPT: &str = "
[ -d /tmp ] || mkdir /tmp; mount -t tmpfs tmpfs /tmp
isolation work alone 1 || exit 1
isolation storm 2 3 >/tmp/said &
until grep -q storming /tmp/said; do sleep 0.1; done
isolation work beside 1
";

/// Instructions of one operation, over all of its turns.
#[derive(Debug, PartialEq, Serialize)]
struct Figure {
    /// Name of the system.
    system: String,
    /// Name of the operation.
    operation: &'static str,
    /// Whether others stormed beside it.
    beside: bool,
    n: usize,
    mean: f64,
    p50: u64,
    #[serde(rename = "p99.9")]
    p999: u64,
    max: u64,
    /// Turns in which more was executed than in the least.
    longer: usize,
}

/// Measures the systems, prints the table, and writes the figures where the arguments say.
pub fn run(arguments: &Arguments, systems: &[System]) -> Result<()> {
    if arguments.names.len() != 1 || arguments.with.is_some() || arguments.runs.is_some() {
        bail!("`bench isolation` stands alone: no other metrics, no --with, no --runs");
    }
    let mut figures = Vec::new();
    for System { name, kernel } in systems {
        let samples = samples(arguments, kernel)?;
        figures.extend(read(name, &samples)?);
    }
    let rows = rows(&figures);
    println!("{rows}");
    if let Some(path) = &arguments.json {
        fs::write(path, serde_json::to_string_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.document {
        let kind = if arguments.icount {
            "lockstep"
        } else {
            "apart"
        };
        document::replace(&format!("isolation-{kind}"), &format!("{rows}\n"))?;
    }
    Ok(())
}

/// Runs one system; returns what the plugin wrote.
fn samples(arguments: &Arguments, kernel: &Kernel) -> Result<String> {
    let counts = super::scratch("counts");
    // Nothing old may be taken for this run's.
    drop(fs::remove_file(&counts));
    let script = match kernel {
        Kernel::Linux(_) => LINUX_SCRIPT,
        Kernel::Skerry | Kernel::Mutant(_) => SCRIPT,
    };
    let plugin = build::samples_plugin()?;
    let mut machine = Machine {
        kernel: kernel.clone(),
        append: format!("quiet {}", arguments.append),
        timeout: Some(LIMIT),
        log: super::scratch("log"),
        command: ["/bin/sh", "-c", script].map(OsString::from).to_vec(),
        additions: vec![Addition {
            host: build::isolation_program()?,
            guest: "/bin/isolation".into(),
        }],
        ..Machine::default()
    };
    (machine.hardware.cpus, machine.hardware.memory) = (CPUS, "2G".into());
    machine.hardware.icount = arguments.icount;
    let plugin = format!("{},out={}", plugin.display(), counts.display());
    machine.hardware.extra = vec!["-plugin".into(), plugin.into()];
    super::output_of(&machine)?;
    fs::read_to_string(&counts).with_context(|| format!("no {}", counts.display()))
}

/// Reads lines of `KIND COUNT`.
fn read(system: &str, samples: &str) -> Result<Vec<Figure>> {
    let mut by_kind = BTreeMap::<usize, Vec<u64>>::new();
    for line in samples.lines() {
        let (kind, count) = line.split_once(' ').unwrap_or_default();
        let wrong = || format!("the plugin wrote {line:?}");
        let kind: usize = kind.parse().with_context(wrong)?;
        let count = count.parse().with_context(wrong)?;
        by_kind.entry(kind).or_default().push(count);
    }
    let mut figures = Vec::new();
    for (at, operation) in OPERATIONS.iter().enumerate() {
        for beside in [false, true] {
            let kind = at + 1 + if beside { OPERATIONS.len() } else { 0 };
            let samples = by_kind.remove(&kind);
            let samples = samples.with_context(|| format!("{system}: nothing of {operation}"))?;
            figures.push(figure(system, operation, beside, samples));
        }
    }
    Ok(figures)
}

/// The figure of one operation, of which there are some samples.
fn figure(system: &str, operation: &'static str, beside: bool, mut samples: Vec<u64>) -> Figure {
    samples.sort_unstable();
    // The least sample that so many thousandths of all do not exceed.
    let percentile = |thousandths: usize| {
        let rank = (samples.len() * thousandths).div_ceil(1000).max(1);
        samples[rank - 1]
    };
    Figure {
        system: system.to_owned(),
        operation,
        beside,
        n: samples.len(),
        mean: samples.iter().sum::<u64>() as f64 / samples.len() as f64,
        p50: percentile(500),
        p999: percentile(999),
        max: percentile(1000),
        longer: samples.iter().filter(|&&one| one > samples[0]).count(),
    }
}

/// A row for each operation of each system: alone, beside others, and how much more that is.
fn rows(figures: &[Figure]) -> String {
    let mut text = String::from(
        "| operation | system | alone: mean | p99.9 | max | beside: mean | p99.9 | max | more in the mean | more in p99.9 |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let more = |beside: f64, alone: f64| format!("{:+.2} %", (beside / alone - 1.0) * 100.0);
    for operation in OPERATIONS {
        let of_operation = figures
            .iter()
            .filter(|figure| figure.operation == operation);
        let (alone, beside): (Vec<_>, Vec<_>) = of_operation.partition(|figure| !figure.beside);
        for (alone, beside) in alone.iter().zip(&beside) {
            let numbers = |figure: &Figure| {
                [figure.mean, figure.p999 as f64, figure.max as f64]
                    .map(document::number)
                    .join(" | ")
            };
            writeln!(
                text,
                "| {operation} | {} | {} | {} | {} | {} |",
                alone.system,
                numbers(alone),
                numbers(beside),
                more(beside.mean, alone.mean),
                more(beside.p999 as f64, alone.p999 as f64),
            )
            .expect("a string");
        }
    }
    for figure in figures.iter().filter(|figure| figure.operation == SPIN) {
        writeln!(
            text,
            "\n{}, {}: {} detours in {} turns of {}.",
            figure.system,
            if figure.beside {
                "beside others"
            } else {
                "alone"
            },
            figure.longer,
            figure.n,
            SPIN
        )
        .expect("a string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of all operations, alone and beside: the number of the kind, and one that is larger.
    fn written() -> String {
        (1..=8)
            .map(|kind| format!("{kind} 1000\n{kind} {}\n", 1000 + 10 * (kind / 5)))
            .collect()
    }

    #[test]
    fn samples_become_rows() {
        let figures = read("skerry", &written()).unwrap();
        assert_eq!(figures.len(), 8);
        assert_eq!(
            (figures[0].n, figures[0].mean, figures[0].longer),
            (2, 1000.0, 0)
        );
        assert_eq!(
            (figures[1].p50, figures[1].p999, figures[1].longer),
            (1000, 1010, 1)
        );
        let rows = rows(&figures);
        assert!(rows.contains("| +0.50 % | +1.00 % |"), "{rows}");
        assert!(
            rows.contains("skerry, beside others: 1 detours in 2 turns"),
            "{rows}"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let without: String = written()
            .lines()
            .filter(|line| !line.starts_with('7'))
            .map(|line| format!("{line}\n"))
            .collect();
        let error = read("linux", &without).unwrap_err();
        assert!(
            error.to_string().contains("linux: nothing of memory"),
            "{error}"
        );
        read("linux", "nonsense").unwrap_err();
    }
}
