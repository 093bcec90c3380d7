//! Instances that are resized while they run: what `tests/cases/resize.cases` prints, judged.

use anyhow::{Result, ensure};

use super::json::{self, part};
use crate::test::batch::{self, Judge, Step};

const RESIZE: &str = include_str!("../../../../tests/cases/resize.cases");
const MIB: u64 = 1 << 20;

/// The steps, for a machine of four CPUs.
pub fn steps() -> Result<Vec<Step>> {
    let judges: [(&str, Judge); 14] = [
        (
            "memory grows in a hundred steps under a load, is used to the last word, and comes back",
            grown,
        ),
        ("memory that is refused comes back at once", refused),
        (
            "an instance that does not answer keeps what it was given, until its end",
            mute,
        ),
        (
            "CPUs come one after another under a load, and with memory, and go back at the end",
            more_cpus,
        ),
        (
            "CPUs that are refused, or were not adopted, come back and go to the next",
            refused_cpus,
        ),
        (
            "a CPU leaves and comes back, and what was bound to it goes on",
            leaving_cpu,
        ),
        (
            "CPUs come and go in many rounds under a load, and work for others in between",
            changing_cpus,
        ),
        (
            "instances that end or hang while CPUs leave give all back",
            unfinished,
        ),
        (
            "memory comes and goes in many rounds, and holds nothing for its next owner",
            shrunk,
        ),
        (
            "memory that does not leave is named, and what is refused changes nothing",
            held,
        ),
        (
            "caches keep memory from leaving, and give it up when they have to",
            caches,
        ),
        (
            "instances that end or hang while memory leaves give all back",
            unfinished_memory,
        ),
        (
            "pages of all kinds are moved from under a program that checks them",
            moved,
        ),
        (
            "users are refused nothing while memory comes, leaves, and is made ready for another instance",
            unrefused,
        ),
    ];
    Ok(batch::steps(RESIZE, &judges)?
        .into_iter()
        .map(|step| step.limit(240))
        .collect())
}

/// Resources of a part.
fn resources(printed: &str, name: &str) -> Result<json::Resources> {
    json::resources(part(printed, name)?)
}

/// The messages, one a line.
fn messages<'a>(printed: &'a str, wanted: &[&str]) -> Result<&'a str> {
    let told = part(printed, "messages")?;
    let lines: Vec<_> = told.lines().collect();
    ensure!(lines.len() == wanted.len(), "{told}");
    for (line, words) in lines.iter().zip(wanted) {
        ensure!(line.contains(words), "{line}");
    }
    Ok(told)
}

fn grown(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    ensure!(!printed.contains("failed"), "a step failed");
    messages(printed, &["created with 64 MiB", "at most", "grow"])?;
    let same = json::parse(part(printed, "same")?)?;
    ensure!(
        same["epoch"].is_null() && same["memory"] == 264 * MIB,
        "{same}"
    );
    let entry = json::instance(part(printed, "ls")?, "grow")?;
    ensure!(entry["memory"] == 264 * MIB, "{entry}");
    let logs = part(printed, "logs")?;
    let wanted = "ready\nchecked 201 MiB\n149946368";
    ensure!(logs == wanted, "{logs}");
    let epochs: u64 = part(printed, "epochs")?.parse()?;
    ensure!(epochs == 100, "{epochs} epochs were adopted");
    Ok(format!("{epochs} epochs"))
}

fn refused(printed: &str) -> Result<String> {
    let told = messages(printed, &["has refused the change"; 3])?;
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    let entry = json::instance(part(printed, "ls")?, "no")?;
    ensure!(
        entry["state"] == "running" && entry["memory"] == 64 * MIB,
        "{entry}"
    );
    Ok(told.lines().next().unwrap_or("").to_owned())
}

fn mute(printed: &str) -> Result<String> {
    messages(
        printed,
        &["not answered yet", "not answered the last change"],
    )?;
    let all = ["before", "pending", "after"].map(|name| resources(printed, name));
    let [before, pending, after] = all;
    let (before, pending, after) = (before?, pending?, after?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    ensure!(
        pending.memory_in_use == before.memory_in_use + 128 * MIB,
        "{before:?}, then {pending:?}"
    );
    let inspected = json::parse(part(printed, "inspect")?)?;
    ensure!(
        inspected["reclaim"]["scrubbed_bytes"] == 128 * MIB,
        "{inspected}"
    );
    Ok(String::new())
}

fn more_cpus(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    ensure!(!printed.contains("failed"), "a step failed");
    let told = [
        "3 CPUs at most",
        "other",
        "could have 0 more",
        "other",
        "cpus",
    ];
    messages(printed, &told)?;
    let change = json::parse(part(printed, "change")?)?;
    ensure!(
        change["cpus_before"] == 2 && change["cpus"] == 3 && change["memory"] == 96 * MIB,
        "{change}"
    );
    let entry = json::instance(part(printed, "ls")?, "cpus")?;
    ensure!(entry["cpus"] == 3 && entry["memory"] == 96 * MIB, "{entry}");
    let same = json::parse(part(printed, "same")?)?;
    ensure!(same["epoch"].is_null() && same["cpus"] == 3, "{same}");
    for round in 1..=4 {
        let logs = part(printed, &format!("logs {round}"))?;
        ensure!(logs == "ready\nchecked 3 processors", "{logs}");
    }
    Ok(String::new())
}

fn refused_cpus(printed: &str) -> Result<String> {
    let refusal = "has refused the change";
    let told = messages(
        printed,
        &[
            refusal,
            refusal,
            refusal,
            "no",
            "not answered yet",
            "mute",
            "3",
        ],
    )?;
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    Ok(told.lines().next().unwrap_or("").to_owned())
}

fn leaving_cpu(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    messages(
        printed,
        &["invalid value '0'", "created with 64 MiB", "leave"],
    )?;
    let entry = json::instance(part(printed, "ls")?, "leave")?;
    ensure!(entry["cpus"] == 3 && entry["memory"] == 64 * MIB, "{entry}");
    let change = json::parse(part(printed, "change")?)?;
    ensure!(
        change["cpus_before"] == 3 && change["cpus"] == 2 && change["memory"] == 66 * MIB,
        "{change}"
    );
    let other = part(printed, "other")?;
    ensure!(other == "1\n0", "{other}");
    let logs = part(printed, "logs")?;
    ensure!(logs == "ready\nleft\nchecked processor 2", "{logs}");
    let events = part(printed, "events")?;
    ensure!(events == "2 CPUs, 66 MiB)\n3 CPUs, 66 MiB)", "{events}");
    Ok(String::new())
}

fn changing_cpus(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    ensure!(!printed.contains("failed"), "a step failed");
    let others = part(printed, "others")?;
    ensure!(others == "1\n2\n2", "{others}");
    let entry = json::instance(part(printed, "ls")?, "load")?;
    ensure!(entry["cpus"] == 1, "{entry}");
    let logs = part(printed, "logs")?;
    ensure!(logs == "ready\nchecked under load", "{logs}");
    Ok(String::new())
}

fn unfinished(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    let told = [
        "not answered yet",
        "not answered the last change",
        "\"cpus\":2",
        "mute",
        "3",
    ];
    messages(printed, &told)?;
    Ok(String::new())
}

fn shrunk(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    ensure!(!printed.contains("failed"), "a step failed");
    let canaries = part(printed, "canaries")?;
    let wanted = "written, and found by the kernel\nno trace";
    ensure!(canaries == wanted, "{canaries}");
    let entry = json::instance(part(printed, "ls")?, "shrink")?;
    ensure!(entry["memory"] == 68 * MIB, "{entry}");
    let total = part(printed, "total")?;
    ensure!(total == "MemTotal:          69632 kB", "{total}");
    let events: u64 = part(printed, "events")?.parse()?;
    ensure!((23..=29).contains(&events), "{events} changes");
    Ok(format!("{events} changes"))
}

fn held(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    let told = [
        "full",
        "created with 64 MiB",
        "KiB too little: give --force-reclaim, end programs in it, or give more --mem",
        "pages of its kernel are in what is to leave",
        "has no memory for tables",
    ];
    let told = messages(printed, &told)?;
    let entry = json::instance(part(printed, "ls")?, "full")?;
    ensure!(entry["memory"] == 256 * MIB, "{entry}");
    Ok(told.lines().nth(3).unwrap_or("").to_owned())
}

fn caches(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    let told = messages(printed, &["KiB too little: give --force-reclaim"])?;
    let tried = json::instance(part(printed, "tried")?, "caches")?;
    ensure!(tried["memory"] == 256 * MIB, "{tried}");
    let forced = part(printed, "forced")?;
    ensure!(forced == "caches\nsame", "{forced}");
    let entry = json::instance(part(printed, "ls")?, "caches")?;
    ensure!(entry["memory"] == 66 * MIB, "{entry}");
    Ok(told.to_owned())
}

fn unfinished_memory(printed: &str) -> Result<String> {
    let all = ["before", "pending", "after"].map(|name| resources(printed, name));
    let [before, pending, after] = all;
    let (before, pending, after) = (before?, pending?, after?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    ensure!(!printed.contains("failed"), "a step failed");
    messages(
        printed,
        &["not answered yet", "not answered the last change"],
    )?;
    ensure!(
        pending.memory_in_use == before.memory_in_use + 192 * MIB,
        "{before:?}, then {pending:?}"
    );
    let inspected = json::parse(part(printed, "inspect")?)?;
    ensure!(
        inspected["reclaim"]["scrubbed_bytes"] == 192 * MIB,
        "{inspected}"
    );
    Ok(String::new())
}

fn moved(printed: &str) -> Result<String> {
    let (before, after) = (resources(printed, "before")?, resources(printed, "after")?);
    ensure!(before.is_as(&after), "{before:?} became {after:?}");
    ensure!(!printed.contains("failed"), "a step failed");
    let told = part(printed, "told")?;
    ensure!(told == "tried", "{told}");
    let entry = json::instance(part(printed, "ls")?, "moved")?;
    ensure!(entry["memory"] == 68 * MIB, "{entry}");
    let logs = part(printed, "logs")?;
    ensure!(logs == "waiting\nready\nchecked all kinds", "{logs}");
    let pages: u64 = part(printed, "moved")?.parse()?;
    ensure!(pages > 1000, "{pages} pages were moved");
    Ok(format!("{pages} pages"))
}

fn unrefused(printed: &str) -> Result<String> {
    for name in ["here", "there"] {
        let told = part(printed, name)?;
        ensure!(told == "ready\nnothing was refused", "{name}: {told}");
    }
    // Used frames may lie in the way of one or the other change.
    let failed = part(printed, "failed")?;
    let failed = failed.lines().count();
    ensure!(failed < 5, "{failed} changes failed");
    Ok(format!("15 rounds, {failed} changes that could not be"))
}
