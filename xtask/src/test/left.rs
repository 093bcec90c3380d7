//! Leaks of a scenario in its machine: objects, descriptors, frames (`/proc/skerry/objects`),
//! processors and memory of instances (`skerry resources`), before its first step and after its
//! last one.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::Check;

/// Classes of which there may be more or fewer afterwards, by how their names begin, and why.
const IGNORED: &[(&str, &str)] = &[
    (
        "names ",
        "names used lately are remembered, until memory is short",
    ),
    ("heap_", "tables and caches that grew keep their room"),
    (
        "frames_user ",
        "page tables' and programs' pages that a shell keeps; what files have is counted by itself",
    ),
    ("frames_heap ", "as with small objects"),
    (
        "frames_kernel ",
        "stacks of threads that ended are kept for the next ones",
    ),
    (
        "large_pages ",
        "memory that a shell has is collected into large pages when it likes",
    ),
    (
        "resources.memory.free ",
        "what the supervisor has more or less; instances have theirs in `in_use`",
    ),
    ("resources.memory.supervisor ", "as with frames"),
    (
        "alarms ",
        "one that a closed socket had set comes for nothing when its time is over",
    ),
    (
        "processes ",
        "those of the look before are freed after a grace period; who is in the table \
         is counted by itself, and leaks-… checks count these",
    ),
    ("threads ", "the same"),
    (
        "descriptor_tables ",
        "one is given back with those retired before and after it, in lots (docs/locks.md, RCU)",
    ),
    (
        "kernel_threads ",
        "one that looks after pressure, or erases memory, begins when it is needed and stays",
    ),
];

/// Class of a member of an object that `skerry resources --json` prints, as the names of both.
fn member_of_resources(beginning: &str) -> Option<(&str, &str)> {
    let (object, member) = beginning
        .strip_prefix("resources.")?
        .trim_end()
        .split_once('.')?;
    Some((object, member))
}

/// The beginnings of lines of `/proc/skerry/objects` that are not compared, for `grep -f`.
pub fn ignored_lines() -> String {
    IGNORED
        .iter()
        .filter(|(beginning, _)| member_of_resources(beginning).is_none())
        .map(|(beginning, _)| format!("^{beginning}\n"))
        .collect()
}

/// A script for `sed` that removes what is not compared from the lines of `skerry resources
/// --json`. (As long as it stayed in, two looks never agreed, and each machine waited in vain for
/// 20 seconds.)
pub fn ignored_resources() -> String {
    IGNORED
        .iter()
        .filter_map(|(beginning, _)| member_of_resources(beginning))
        .map(|(object, member)| {
            format!("/^  \"{object}\": {{/,/^  }}/{{\n/^    \"{member}\":/d\n}}\n")
        })
        .collect()
}

/// Compares what the output says of each place (a kernel) before and after; a check for each of
/// which both are there.
pub fn behind(output: &str, mark: &str) -> Vec<Check> {
    let mut before = BTreeMap::new();
    let mut checks = Vec::new();
    for part in output.split(&format!("{mark} objects ")).skip(1) {
        let (head, rest) = part.split_once('\n').unwrap_or((part, ""));
        let text = rest.split(mark).next().unwrap_or_default();
        match head.trim().split_once(' ') {
            Some(("before", place)) => _ = before.insert(place, text),
            Some(("after", place)) => {
                let what = if place == "machine" {
                    String::new()
                } else {
                    format!(", {place}")
                };
                let result = before
                    .get(place)
                    .context("there was no look before")
                    .and_then(|before| compare(before, text));
                checks.push(Check::new(format!("nothing is left behind{what}"), result));
            }
            _ => {}
        }
    }
    checks
}

fn compare(before: &str, after: &str) -> Result<String> {
    let (before, after) = (counts(before)?, counts(after)?);
    let of = |counts: &BTreeMap<String, i64>, name: &str| {
        counts.get(name).map_or("none".to_owned(), i64::to_string)
    };
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name));
    let differ: Vec<_> = differ
        .map(|name| format!("{name} {} → {}", of(&before, name), of(&after, name)))
        .collect();
    ensure!(differ.is_empty(), "{}", differ.join(", "));
    Ok(format!("{} classes", before.len()))
}

/// Lines of a name and a number each, then perhaps what `skerry resources --json` says, which
/// becomes several.
fn counts(text: &str) -> Result<BTreeMap<String, i64>> {
    let mut counts = BTreeMap::new();
    let (lines, json) = text.split_at(text.find('{').unwrap_or(text.len()));
    if !json.is_empty() {
        flatten(
            "resources",
            &serde_json::from_str(json).with_context(|| format!("{json:?}"))?,
            &mut counts,
        );
    }
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, count) = line
            .split_once(' ')
            .with_context(|| format!("{line:?} is no class and its count"))?;
        counts.insert(
            name.to_owned(),
            count.parse().with_context(|| format!("{line:?}"))?,
        );
    }
    counts.retain(|name, _| {
        !IGNORED
            .iter()
            .any(|(beginning, _)| format!("{name} ").starts_with(beginning))
    });
    Ok(counts)
}

fn flatten(name: &str, value: &serde_json::Value, counts: &mut BTreeMap<String, i64>) {
    match value {
        serde_json::Value::Object(members) => {
            for (member, value) in members {
                flatten(&format!("{name}.{member}"), value, counts);
            }
        }
        serde_json::Value::Array(all) => _ = counts.insert(name.to_owned(), all.len() as i64),
        value => {
            _ = value
                .as_i64()
                .map(|number| counts.insert(name.to_owned(), number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(after: &str) -> Vec<(String, Result<String, String>)> {
        let json = "{\"cpus\":{\"free\":2},\"instances\":[]}";
        let output = format!(
            "@@ objects before machine\npipes 1\nnames 7\n{json}\n@@ objects end\n\
             @@ begin 0\nx\n@@ end 0\n@@ objects after machine\n{after}\n@@ objects end\n"
        );
        behind(&output, "@@")
            .into_iter()
            .map(|check| (check.what, check.result))
            .collect()
    }

    /// Names that no two looks agree in are taken out of what the tool prints, and no others.
    #[test]
    fn what_is_not_compared_is_not_waited_for() {
        let resources = serde_json::json!({
            "cpus": {"total": 4, "supervisor": 1, "free": 3},
            "memory": {"total": 9, "supervisor": 1, "in_use": 0, "free": 8, "leaked": 0},
            "instances": 0,
        });
        let printed = serde_json::to_string_pretty(&resources).unwrap();
        let directory = crate::cleanup::Directory::create().unwrap();
        let file = directory.join("resources");
        std::fs::write(&file, printed).unwrap();
        let output = std::process::Command::new("sed")
            .args(["-e", &ignored_resources()])
            .arg(file)
            .output()
            .unwrap();
        let left: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = serde_json::json!({
            "cpus": {"total": 4, "supervisor": 1, "free": 3},
            "memory": {"total": 9, "in_use": 0, "leaked": 0},
            "instances": 0,
        });
        assert_eq!(left, expected);
        assert!(!ignored_lines().contains("resources"));
    }

    #[test]
    fn a_difference_names_the_class_and_both_counts() {
        let same = said("pipes 1\nnames 9\n{\"cpus\":{\"free\":2},\"instances\":[]}");
        assert_eq!(
            same,
            [(
                "nothing is left behind".to_owned(),
                Ok("3 classes".to_owned())
            )]
        );
        let other = said("pipes 3\n{\"cpus\":{\"free\":1},\"instances\":[]}");
        let why = other[0].1.as_ref().unwrap_err();
        assert!(
            why.contains("pipes 1 → 3")
                && why.contains("resources.cpus.free 2 → 1")
                && !why.contains("names"),
            "{why}"
        );
    }
}
