//! `skerry trace` and `skerry top`, on the supervisor and in an instance (`docs/observability.md`).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::json::part;
use crate::paths;
use crate::test::batch;
use crate::test::{Check, Setting};
use crate::vm::Addition;

const CASES: &str = include_str!("../../../../tests/cases/observe.cases");

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("all");
    machine.hardware.cpus = 4;
    machine.timeout = Some(Duration::from_secs(200));
    machine.additions.push(Addition {
        host: paths::root().join("tests/cases/ping-pong.sh"),
        guest: "/ping-pong.sh".into(),
    });
    let steps = batch::steps(
        CASES,
        &[
            (
                "/proc/PID/stack and wchan show where a thread waits",
                |printed| {
                    ensure!(
                        printed.starts_with("linux::time::"),
                        "it waits in {printed:?}"
                    );
                    Ok(String::new())
                },
            ),
            (
                "a ping-pong over pipes is traced: begins have ends, \
                 and the CPU goes to and fro between the two",
                |printed| traced(printed, 20),
            ),
            ("the same inside an instance with two CPUs", |printed| {
                traced(printed, 1)
            }),
            (
                "two CPUs that wake each other send interrupts or save them, \
                 and both are counted",
                counted,
            ),
            ("top shows pictures as text and as JSON", |printed| {
                ensure!(
                    printed.matches("BUSY%").count() == 2 && printed.contains("INSTANCE"),
                    "two pictures are not there"
                );
                let picture: Value = serde_json::from_str(part(printed, "json")?)?;
                ensure!(
                    picture["cpus"][0]["rates"]["switches"].is_number()
                        && picture["instances"].is_array(),
                    "{picture}"
                );
                Ok(String::new())
            }),
        ],
    )?;
    batch::run(machine, &batch::limit(steps, &[30, 60, 90, 60, 30, 30])?)
}

/// The trace is whole, and has at least so many switches from `ping` or `pong` right to the other
/// one.
fn traced(printed: &str, least: usize) -> Result<String> {
    let trace: Value =
        serde_json::from_str(part(printed, "trace")?).context("the trace is no JSON")?;
    let events = trace["traceEvents"].as_array().context("no events")?;
    let mut open: BTreeMap<(u64, u64), i64> = BTreeMap::new();
    for event in events {
        let track = (
            event["pid"].as_u64().context("no pid")?,
            event["tid"].as_u64().unwrap_or(0),
        );
        let depth = open.entry(track).or_default();
        *depth += match event["ph"].as_str() {
            Some("B") => 1,
            Some("E") => -1,
            _ => 0,
        };
        ensure!(*depth >= 0, "an end without a begin: {event}");
    }
    ensure!(
        open.values().all(|depth| *depth == 0),
        "begins without ends: {open:?}"
    );
    ensure!(
        events.iter().any(|e| e["ph"] == "B" && e["name"] == "read"),
        "no read(2) is in it"
    );
    let woken = events
        .iter()
        .filter(|e| e["ph"] == "i" && e["args"]["how"].is_string())
        .count();
    ensure!(woken != 0, "no wake-up is in it");
    // Who was blocked in a read of the other's line ran in turn with it.
    let wakes: Vec<(u64, u64)> = events
        .iter()
        .filter(|e| e["ph"] == "i")
        .filter_map(|e| Some((e["tid"].as_u64()?, e["args"]["thread"].as_u64()?)))
        .collect();
    let mutual = |a: u64, b: u64| {
        wakes
            .iter()
            .filter(|w| **w == (a, b))
            .count()
            .min(wakes.iter().filter(|w| **w == (b, a)).count())
    };
    let (a, b) = *wakes
        .iter()
        .max_by_key(|(a, b)| mutual(*a, *b))
        .context("no wake-ups")?;
    ensure!(
        mutual(a, b) >= least,
        "threads {a} and {b} woke each other {} times only",
        mutual(a, b)
    );
    let ran = |thread: u64| {
        events
            .iter()
            .filter(|e| e["ph"] == "X" && e["args"]["tid"] == thread)
            .count()
    };
    ensure!(
        ran(a) >= least && ran(b) >= least,
        "they ran {} and {} times only",
        ran(a),
        ran(b)
    );
    Ok(format!(
        "{} events, {} lost; {a} and {b} woke each other {} times",
        events.len(),
        trace["otherData"]["lost_records"],
        mutual(a, b)
    ))
}

/// Column `name` of the `nth` table of CPUs, summed over all of them.
fn sum(printed: &str, nth: usize, name: &str) -> Result<u64> {
    let mut lines = printed
        .lines()
        .skip_while(|line| !line.starts_with("cpu switches"));
    if nth == 1 {
        lines.next();
    }
    let mut lines = lines.skip_while(|line| !line.starts_with("cpu switches"));
    let column = lines
        .next()
        .context("no table")?
        .split(' ')
        .position(|word| word == name)
        .context("no such column")?;
    let rows = lines.map_while(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        words.first()?.parse::<u32>().ok()?;
        words.get(column)?.parse::<u64>().ok()
    });
    Ok(rows.sum())
}

fn counted(printed: &str) -> Result<String> {
    let grown =
        |name: &str| Ok::<_, anyhow::Error>(sum(printed, 1, name)? - sum(printed, 0, name)?);
    let (switches, wakes, told) = (
        grown("switches")?,
        grown("wakes")?,
        grown("ipis")? + grown("ipis_saved")?,
    );
    // Who finds the other's line there already does not sleep.
    ensure!(
        switches > 0 && wakes > 0,
        "{switches} switches and {wakes} wake-ups"
    );
    ensure!(
        told > 0 && grown("remote_wakes")? > 0,
        "nobody was woken on another CPU"
    );
    ensure!(sum(printed, 1, "ipis")? > 0, "no interrupt was sent");
    ensure!(
        printed
            .lines()
            .any(|line| line.ends_with(|c: char| c.is_ascii_digit())
                && line.contains(" reschedule ")),
        "no such interrupt was taken"
    );
    Ok(format!(
        "{switches} switches, {wakes} wake-ups, {} interrupts sent, {} saved",
        grown("ipis")?,
        grown("ipis_saved")?
    ))
}
