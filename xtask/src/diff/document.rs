//! `docs/coverage.md`: which errors, flags and edges of each call have been seen on both kernels,
//! and which have not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result};
use differential::coverage::{self, Item, Subject};
use differential::errno;
use differential::spec::{Area, Spec};

use crate::{abi, paths};

/// Names of what was seen, and of what was not.
#[derive(Default)]
struct Count {
    seen: Vec<String>,
    missing: Vec<String>,
}

impl Count {
    fn add(&mut self, seen: bool, name: String) {
        if seen {
            &mut self.seen
        } else {
            &mut self.missing
        }
        .push(name);
    }

    fn extend(&mut self, other: Self) {
        self.seen.extend(other.seen);
        self.missing.extend(other.missing);
    }

    fn all(&self) -> usize {
        self.seen.len() + self.missing.len()
    }

    fn share(&self) -> String {
        format!("{} of {}", self.seen.len(), self.all())
    }

    fn percentage(&self) -> f64 {
        100.0 * self.seen.len() as f64 / self.all().max(1) as f64
    }
}

/// Items of coverage of some calls.
#[derive(Default)]
struct Counts {
    errors: Count,
    flags: Count,
    edges: Count,
    /// Ways in which signals met the call while it waited.
    signals: Count,
}

impl Counts {
    fn extend(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.flags.extend(other.flags);
        self.edges.extend(other.edges);
        self.signals.extend(other.signals);
    }
}

/// Writes the page; returns its first figures.
pub fn write(spec: &Spec, seen: &BTreeSet<usize>) -> Result<String> {
    let path = paths::root().join("docs/coverage.md");
    let page = Page {
        spec,
        seen,
        items: coverage::items(spec),
        full: abi::full()?,
    };
    std::fs::write(&path, page.text())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(page.figures())
}

struct Page<'a> {
    spec: &'a Spec,
    seen: &'a BTreeSet<usize>,
    items: Vec<Item>,
    /// The calls that docs/linux-abi.md calls full, by number.
    full: BTreeMap<u32, String>,
}

impl Page<'_> {
    fn text(&self) -> String {
        let mut text = format!(
            "# What differential execution has seen of each call\n\n\
             Made by `cargo xtask diff --document` from the specification in `tests/differential/spec` ([differential.md](differential.md)).\n\
             An error counts as seen when a call returned it on Linux 6.1 and on Skerry, not always in one program; a flag when a call that had it succeeded on both, or,\n\
             where it is there to be refused, was made on both; an edge (of memory or a length, a value without a name, an ordinary user as\n\
             the caller) when a call that had it was made on both; a way in which a signal meets a call that waits when it was sent while the call waited, on both. One system call may have several lines, for commands with arguments of their own.\n\n\
             {}\n\n| area | calls | errors | flags | edges | signals |\n|---|---:|---:|---:|---:|---:|\n",
            self.figures()
        );
        let mut details = String::new();
        for area in &self.spec.areas {
            let mut sum = Counts::default();
            // Writing to a string does not fail.
            let _ = writeln!(details, "\n## {}\n", area.name);
            for &call in self.own(area) {
                let counts = self.count(call);
                self.detail(call, &counts, &mut details);
                sum.extend(counts);
            }
            let calls = self.own(area).count();
            let _ = writeln!(
                text,
                "| {} | {calls} | {} | {} | {} | {} |",
                area.name,
                sum.errors.share(),
                sum.flags.share(),
                sum.edges.share(),
                sum.signals.share()
            );
        }
        text + &self.left_out() + &details
    }

    /// Figures of the calls that are said to be full.
    fn figures(&self) -> String {
        let is_full =
            |number: i64| u32::try_from(number).is_ok_and(|number| self.full.contains_key(&number));
        let specified: BTreeSet<i64> = self
            .spec
            .calls
            .iter()
            .map(|call| call.number)
            .filter(|&number| is_full(number))
            .collect();
        let excluded = self
            .full
            .values()
            .filter(|name| self.is_excluded(name))
            .count();
        let without: Vec<_> = self
            .full
            .iter()
            .filter(|(number, name)| {
                !specified.contains(&i64::from(**number)) && !self.is_excluded(name)
            })
            .map(|(_, name)| name.as_str())
            .collect();
        let mut sum = Counts::default();
        for call in (0..self.spec.calls.len()).filter(|&call| is_full(self.spec.calls[call].number))
        {
            sum.extend(self.count(call));
        }
        let mut both = Count::default();
        // Of a call without a specification nothing is known to be seen: it counts as one thing
        // that is not.
        without
            .iter()
            .for_each(|name| both.missing.push((*name).to_owned()));
        let share = format!(
            "{} errors and {} flags",
            sum.errors.share(),
            sum.flags.share()
        );
        both.extend(sum.errors);
        both.extend(sum.flags);
        let unreachable: usize = self
            .spec
            .unreachable
            .iter()
            .map(|error| error.calls.len())
            .sum();
        let strict = 100.0 * both.seen.len() as f64 / (both.all() + unreachable).max(1) as f64;
        format!(
            "Of the {} calls that [linux-abi.md](linux-abi.md) calls full, {} have a specification, {excluded} are left out, and {} have none{}.\n\
             Of what can be caused in a test machine, {share} of full calls were seen: **{:.1} %**. With the {unreachable} errors of the manual that\n\
             cannot be caused there it is {strict:.1} %. Edges: {} ({:.1} %). Signals to who waits: {}.",
            self.full.len(),
            specified.len(),
            without.len(),
            if without.is_empty() {
                String::new()
            } else {
                format!(" ({})", without.join(", "))
            },
            both.percentage(),
            sum.edges.share(),
            sum.edges.percentage(),
            sum.signals.share()
        )
    }

    fn is_excluded(&self, name: &str) -> bool {
        self.spec.excluded.iter().any(|(call, _)| call == name)
    }

    /// The system calls of an area's file.
    fn own<'a>(&'a self, area: &'a Area) -> impl Iterator<Item = &'a usize> {
        area.calls[..area.own]
            .iter()
            .filter(|&&call| self.spec.calls[call].number >= 0)
    }

    fn count(&self, call: usize) -> Counts {
        let mut counts = Counts::default();
        let arguments = &self.spec.calls[call].arguments;
        for (index, item) in self
            .items
            .iter()
            .enumerate()
            .filter(|(_, item)| item.call == call)
        {
            let was = self.seen.contains(&index);
            match &item.subject {
                Subject::Error(error) => counts.errors.add(was, errno::name(*error).to_owned()),
                Subject::Value(member) if member.is_number() => counts
                    .edges
                    .add(was, format!("{}={}", member.path, member.label)),
                Subject::Value(member) => counts
                    .flags
                    .add(was, format!("{}={}", member.path, member.label)),
                Subject::Boundary(at, edge) => counts
                    .edges
                    .add(was, format!("{} {}", arguments[*at].0, edge.name())),
                Subject::Ordinary => counts.edges.add(was, "ordinary user".to_owned()),
                Subject::Met(way) => counts.signals.add(was, way.name().to_owned()),
            }
        }
        counts
    }

    fn detail(&self, call: usize, counts: &Counts, text: &mut String) {
        let call = &self.spec.calls[call];
        let full = u32::try_from(call.number).is_ok_and(|number| self.full.contains_key(&number));
        let _ = writeln!(
            text,
            "**`{}`** ({}{})",
            call.name,
            call.number,
            if full { "" } else { ", not full" }
        );
        let of_signals = ("signals while it waits", &counts.signals);
        for (what, count) in [
            ("errors", &counts.errors),
            ("flags", &counts.flags),
            ("edges", &counts.edges),
            of_signals,
        ] {
            if count.all() > 0 {
                let seen = if what == "edges" {
                    String::new()
                } else {
                    format!(": {}", grouped(&count.seen))
                };
                let missing = if count.missing.is_empty() {
                    String::new()
                } else {
                    format!("; **not seen**: {}", grouped(&count.missing))
                };
                let _ = writeln!(text, "* {what} {}{seen}{missing}", count.share());
            }
        }
        text.push('\n');
    }

    /// Items that cannot be seen, with the reasons.
    fn left_out(&self) -> String {
        let mut text = String::from("\n## Left out\n\n");
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (call, reason) in &self.spec.excluded {
            reasons.entry(reason).or_default().push(call);
        }
        for (reason, calls) in reasons {
            let _ = writeln!(text, "* `{}`: {reason}.", calls.join("`, `"));
        }
        text.push_str("\nErrors of the manual that cannot be caused in a test machine:\n\n");
        for error in &self.spec.unreachable {
            let _ = writeln!(
                text,
                "* {} of {}: {}.",
                errno::name(error.error),
                error.calls.join(", "),
                error.reason
            );
        }
        text
    }
}

/// Names with what stands before `=` only once.
fn grouped(names: &[String]) -> String {
    let mut text = String::new();
    let mut before = "";
    for name in names {
        let (path, label) = name.split_once('=').unwrap_or(("", name));
        match () {
            () if path.is_empty() => {
                let _ = write!(text, "{}{label}", if text.is_empty() { "" } else { ", " });
            }
            () if path == before => {
                let _ = write!(text, " {label}");
            }
            () => {
                let _ = write!(
                    text,
                    "{}{path} {label}",
                    if text.is_empty() { "" } else { ", " }
                );
            }
        }
        before = path;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_full_call_has_a_specification_or_a_reason_to_have_none() {
        let (spec, full) = (Spec::builtin(), abi::full().expect("the table can be read"));
        let has = |number: u32| {
            spec.calls
                .iter()
                .any(|call| call.number == i64::from(number))
        };
        let reason = |name: &str| spec.excluded.iter().any(|(call, _)| call == name);
        let neither: Vec<_> = full
            .iter()
            .filter(|(number, name)| !has(**number) && !reason(name))
            .collect();
        assert!(
            neither.is_empty(),
            "without a line in tests/differential/spec: {neither:?}"
        );
        let both: Vec<_> = full
            .iter()
            .filter(|(number, name)| has(**number) && reason(name))
            .collect();
        assert!(
            both.is_empty(),
            "left out although they have a line: {both:?}"
        );
    }

    #[test]
    fn what_is_not_seen_counts_as_not_seen() {
        let spec = Spec::parse(&[(
            "area",
            "flags f = A:1\n1 f(a: f) ! EPERM\n2 g()\n-1 own(a: f)",
        )])
        .expect("it is right");
        let full = BTreeMap::from([(1, "f".to_owned()), (3, "h".to_owned())]);
        let page = |seen: &BTreeSet<usize>| {
            Page {
                spec: &spec,
                seen,
                items: coverage::items(&spec),
                full: full.clone(),
            }
            .figures()
        };
        let none = page(&BTreeSet::new());
        assert!(
            none.contains("0 of 1 errors and 0 of 1 flags")
                && none.contains("**0.0 %**")
                && none.contains("1 have none (h)"),
            "{none}"
        );
        assert!(page(&BTreeSet::from([0, 1, 2, 3])).contains("**66.7 %**"));
    }
}
