//! Instances that are paused, and what they use: what `tests/cases/pause.cases` prints, judged.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::json::{self, number, part};
use crate::test::batch::{self, Judge, Step};

const PAUSE: &str = include_str!("../../../../tests/cases/pause.cases");
/// Times in a usage that make up the whole.
const PARTS: [&str; 4] = ["user_us", "system_us", "idle_us", "paused_us"];

/// The steps, for a machine of four CPUs.
pub fn steps() -> Result<Vec<Step>> {
    let judges: [(&str, Judge); 2] = [
        (
            "a paused instance does nothing, and goes on with no wrong answer",
            paused,
        ),
        (
            "what an instance uses is what its programs measure, and what the supervisor does for \
             it is its own",
            used,
        ),
    ];
    Ok(batch::steps(PAUSE, &judges)?
        .into_iter()
        .map(|step| step.limit(120))
        .collect())
}

/// The usage in a part that is an instance's.
fn usage(printed: &str, name: &str) -> Result<Value> {
    Ok(json::parse(part(printed, name)?)?["usage"].clone())
}

/// A time, in microseconds.
fn us(usage: &Value, field: &str) -> Result<f64> {
    let time = usage[field].as_f64();
    time.with_context(|| format!("{field} is no time in {usage}"))
}

/// Time of all CPUs.
fn whole(usage: &Value) -> Result<f64> {
    PARTS.iter().map(|part| us(usage, part)).sum()
}

fn paused(printed: &str) -> Result<String> {
    ensure!(!printed.contains("failed"), "a step failed");
    let told = part(printed, "messages")?;
    let wanted = [
        "paused already",
        "it is paused (`skerry unpause still`",
        "is paused: `skerry unpause still`",
        "is paused: `skerry unpause still` first",
    ];
    let lines: Vec<_> = told.lines().collect();
    let as_wanted = lines
        .iter()
        .zip(wanted)
        .all(|(line, words)| line.contains(words));
    ensure!(lines.len() == wanted.len() && as_wanted, "{told}");
    let entry = json::instance(part(printed, "ls")?, "still")?;
    ensure!(entry["state"] == "paused", "{entry}");
    let (before, after) = (usage(printed, "before")?, usage(printed, "after")?);
    for field in ["user_us", "system_us", "idle_us", "switches", "interrupts"] {
        let same = before[field] == after[field];
        ensure!(same, "{field} went on: {before}, then {after}");
    }
    let stood = us(&after, "paused_us")? - us(&before, "paused_us")?;
    ensure!(
        stood >= 3.0 * 2e6,
        "three CPUs stood still for {stood} us in two seconds"
    );
    let health = part(printed, "health")?;
    ensure!(health.starts_with('0'), "it counts as hung");
    ensure!(health.contains("still is not paused"), "{health}");
    let logs = part(printed, "logs")?;
    ensure!(logs == "ready\nchecked under load", "{logs}");
    let events = part(printed, "events")?;
    ensure!(events == "12\n12", "{events} events");
    Ok(String::new())
}

fn used(printed: &str) -> Result<String> {
    let logs = part(printed, "logs")?;
    let said = |name: &str| -> Result<f64> {
        let line = logs.lines().find_map(|line| line.strip_prefix(name));
        Ok(line
            .with_context(|| format!("no {name}: {logs}"))?
            .trim()
            .parse()?)
    };
    let (one, two, ended) = (
        usage(printed, "one")?,
        usage(printed, "two")?,
        usage(printed, "ended")?,
    );
    let (user, system) = (said("user")?, said("system")?);
    let busy = us(&one, "user_us")? + us(&one, "system_us")?;
    ensure!(
        busy >= user + system,
        "the program has used more than {one}"
    );
    ensure!(
        us(&one, "system_us")? >= system,
        "the program had more than {one}"
    );
    // Two CPUs for more than a second, all of it accounted for, and no more than there was.
    let passed = whole(&two)? - whole(&one)?;
    ensure!(passed >= 2e6, "{passed} us of two CPUs in a second");
    let instance = json::parse(part(printed, "two")?)?;
    let started = instance["started"].as_f64().context("it was not started")?;
    let time: f64 = part(printed, "time")?.parse()?;
    let most = 2.0 * (time + 1.0 - started) * 1e6;
    ensure!(whole(&two)? <= most, "{two} is more than {most}");
    let memory = number(&two, "memory_used")?;
    let has = number(&instance, "memory")?;
    ensure!(memory > 0 && memory <= has, "{memory} bytes of {has}");
    ensure!(number(&two, "threads")? >= 1, "{two}");
    for usages in [[&one, &two], [&two, &ended]] {
        let [before, after] = usages;
        for field in PARTS.iter().chain(&["supervisor_us"]) {
            let grows = us(before, field)? <= us(after, field)?;
            ensure!(grows, "{field} has become less: {before}, then {after}");
        }
        for field in ["switches", "interrupts", "messages", "log_bytes"] {
            let grows = number(before, field)? <= number(after, field)?;
            ensure!(grows, "{field} has become less: {before}, then {after}");
        }
    }
    ensure!(us(&one, "supervisor_us")? > 0.0, "{one}");
    ensure!(
        number(&one, "interrupts")? > 0 && number(&one, "switches")? > 0,
        "{one}"
    );
    let written = number(&ended, "output_bytes")?;
    ensure!(
        written == logs.len() as u64 + 1,
        "{written} bytes of {logs}"
    );
    ensure!(number(&ended, "messages")? == 1, "{ended}");
    let mut stats = part(printed, "stats")?.lines();
    let row = json::parse(stats.next().unwrap_or_default())?;
    let percent = row["cpu_percent"].as_f64().context("no percentage")?;
    ensure!(
        row["name"] == "busy" && (0.0..=210.0).contains(&percent),
        "{row}"
    );
    let heading = stats.next().unwrap_or_default();
    let wanted = "NAME CPU % MEM USAGE / LIMIT MEM % NET I/O STREAM I/O MESSAGES REFUSED \
                  INTERRUPTS SUPERVISOR THREADS";
    ensure!(heading == wanted, "{heading}");
    ensure!(
        part(printed, "metrics")? == "4",
        "not four times in the metrics"
    );
    let told = us(&one, "supervisor_us")? / 1e3;
    Ok(format!("{told:.1} ms of the supervisor's"))
}
