//! Instances: from the command to their first user instruction, their end, and the least memory one
//! runs in.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{SKERRY, Table};
use crate::vm::{Ending, Machine, last_lines};

/// Starts instances one after the other and shows each one's times; then finds the least memory.
const SCRIPT: &str = r#"
mkdir -p /tmp/r/bin; cp /bin/busybox /tmp/r/bin/
tar cf /tmp/r.tar -C /tmp/r .
n=0
while [ $n -lt RUNS ]; do
    skerry run --name b$n --cpus 1 --mem 64M --rootfs /tmp/r.tar -- /bin/busybox true || exit 1
    skerry inspect b$n --json | tr -d '\n'; echo
    skerry rm b$n >/dev/null
    n=$((n + 1))
done
for memory in 2 3 4 5 6 7 8 10 12 16 24 32; do
    if skerry run --rm --cpus 1 --mem ${memory}M --rootfs /tmp/r.tar -- /bin/busybox true 2>/dev/null; then
        echo "least $memory"
        break
    fi
done
"#;

/// The times in what `skerry inspect --json` prints: field, what it is, the goal in milliseconds.
const TIMES: [(&str, &str, Option<f64>); 3] = [
    (
        "/run_us",
        "skerry run to the instance's first user instruction",
        Some(50.0),
    ),
    (
        "/boot_us",
        "start of the instance to its first user instruction",
        Some(10.0),
    ),
    (
        "/reclaim/total_us",
        "end of the instance to its resources free, with scrubbing",
        None,
    ),
];

/// Measures in machines of four processors: one whose clock is the host's, and one whose clock
/// counts instructions.
pub fn measure(runs: usize, table: &mut Table) -> Result<()> {
    let output = run(4 * runs, Clock::Host)?;
    times(&output, "ms", table)?;
    times(&run(2, Clock::Instructions)?, super::COUNTED_MS, table)?;
    let least = output
        .lines()
        .find_map(|line| line.strip_prefix("least "))
        .context("no memory was enough for `busybox true`")?;
    table.add(
        "least memory in which an instance runs `busybox true`",
        SKERRY,
        "MiB",
        Some(8.0),
        vec![least.parse()?],
    );
    Ok(())
}

/// Clock of a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    Host,
    /// Time passes with the instructions of the emulated machine.
    Instructions,
}

/// Runs the script; returns what it printed.
fn run(instances: usize, clock: Clock) -> Result<String> {
    let script = SCRIPT.replace("RUNS", &instances.to_string());
    let mut machine = Machine {
        append: "quiet".into(),
        timeout: Some(Duration::from_secs(300)),
        log: super::scratch("log"),
        command: ["/bin/sh", "-c", &script].map(OsString::from).to_vec(),
        ..Machine::default()
    };
    machine.hardware.icount = clock == Clock::Instructions;
    let run = machine.run_collected()?;
    ensure!(
        run.ending == Ending::Exited(0),
        "{:?}: {}\n{}",
        run.ending,
        run.complaints,
        last_lines(&machine.log, 25)
    );
    Ok(run.output)
}

/// Adds what the instances of one run told.
fn times(output: &str, unit: &'static str, table: &mut Table) -> Result<()> {
    let inspected: Vec<Value> = output
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let milliseconds = |field: &str| {
        inspected
            .iter()
            .filter_map(|entry| Some(entry.pointer(field)?.as_f64()? / 1000.0))
            .collect()
    };
    for (field, what, goal) in TIMES {
        table.add(what, SKERRY, unit, goal, milliseconds(field));
    }
    let apart = inspected
        .iter()
        .filter_map(|entry| {
            Some(
                (entry.pointer("/reclaim/total_us")?.as_f64()?
                    - entry.pointer("/reclaim/scrub_us")?.as_f64()?)
                    / 1000.0,
            )
        })
        .collect();
    table.add(
        "end of the instance to its resources free, scrubbing apart",
        SKERRY,
        unit,
        None,
        apart,
    );
    Ok(())
}
