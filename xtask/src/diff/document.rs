//! `docs/coverage.md`: which errors and flags of each call have been seen on both kernels, and which have not.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use differential::coverage::{self, Item, Subject};
use differential::errno;
use differential::spec::Spec;

use crate::paths;

/// Errors and values: how many there are, how many were seen, the names of those that were not.
#[derive(Default)]
struct Count {
    all: usize,
    seen: usize,
    missing: Vec<String>,
}

impl Count {
    fn add(&mut self, seen: bool, name: impl FnOnce() -> String) {
        self.all += 1;
        self.seen += usize::from(seen);
        if !seen {
            self.missing.push(name());
        }
    }

    fn share(&self) -> String {
        format!("{} of {}", self.seen, self.all)
    }
}

/// Writes the page.
pub fn write(spec: &Spec, seen: &BTreeSet<usize>) -> Result<()> {
    let path = paths::root().join("docs/coverage.md");
    std::fs::write(&path, page(spec, seen)).with_context(|| format!("cannot write {}", path.display()))
}

fn page(spec: &Spec, seen: &BTreeSet<usize>) -> String {
    let items = coverage::items(spec);
    let mut text = String::from(
        "# What differential execution has seen of each call\n\n\
         Made by `cargo xtask diff --seconds N --document`, from the specification in `tests/differential/spec` ([differential.md](differential.md)).\n\
         An error counts as seen when a call returned it on Linux 6.1 and on Skerry, a flag or value when a call that had it was made on both.\n\n\
         | area | calls | errors seen | flags and values seen |\n|---|---:|---:|---:|\n",
    );
    let mut details = String::new();
    for area in &spec.areas {
        let own: Vec<usize> = area.calls.iter().copied().filter(|&call| first_area(spec, call) == area.name).collect();
        let (errors, values) = count(spec, &items, seen, &own);
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {} | {} | {} | {} |", area.name, own.len(), errors.share(), values.share());
        let _ = write!(
            details,
            "\n## {}\n\n| call | errors | not seen | flags and values | not seen |\n|---|---:|---|---:|---|\n",
            area.name
        );
        for call in own {
            let (errors, values) = count(spec, &items, seen, &[call]);
            let _ = writeln!(
                details,
                "| `{}` | {} | {} | {} | {} |",
                spec.calls[call].name,
                errors.share(),
                errors.missing.join(" "),
                values.share(),
                values.missing.join(" ")
            );
        }
    }
    text + &details
}

/// The area whose file has the call; others only use it.
fn first_area(spec: &Spec, call: usize) -> &str {
    spec.areas.iter().find(|area| area.calls.contains(&call)).map_or("", |area| &area.name)
}

fn count(spec: &Spec, items: &[Item], seen: &BTreeSet<usize>, calls: &[usize]) -> (Count, Count) {
    let (mut errors, mut values) = (Count::default(), Count::default());
    for (index, item) in items.iter().enumerate().filter(|(_, item)| calls.contains(&item.call)) {
        let was = seen.contains(&index);
        match &item.subject {
            Subject::Error(error) => errors.add(was, || errno::name(*error).to_owned()),
            Subject::Value { path, label, .. } => values.add(was, || {
                let call = &spec.calls[item.call].name;
                if calls.len() == 1 { format!("{path}={label}") } else { format!("{call} {path}={label}") }
            }),
        }
    }
    (errors, values)
}
