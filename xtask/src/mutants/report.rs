//! Report on mutants: a line each, tables, and those that nobody noticed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use super::places::Place;
use super::tree::Mutant;
use crate::paths;

/// Fate of a mutant.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// A test noticed it.
    Killed(Kill),
    /// Tests came by it and noticed nothing.
    Survived,
    /// No test came by it.
    NotReached,
    /// The mutant does the same as the original, for a reason that stands in the list.
    Equivalent,
}

/// Evidence that a mutant was noticed.
#[derive(Clone, Debug, Serialize)]
pub struct Kill {
    /// The test.
    pub test: String,
    /// The check that did not hold, or the panic.
    pub check: String,
    /// `check`, `panic` or `hang`.
    pub how: &'static str,
}

/// One mutant's result.
#[derive(Serialize)]
pub struct Verdict {
    number: u32,
    package: String,
    file: String,
    line: usize,
    operator: String,
    before: String,
    after: String,
    fate: Fate,
}

impl Verdict {
    /// A report on a mutant.
    pub fn new(mutant: &Mutant, fate: Fate) -> Self {
        let place = &mutant.place;
        Self {
            number: mutant.number,
            package: place.package.clone(),
            file: place.file.clone(),
            line: place.line,
            operator: place.operator.to_string(),
            before: place.before.clone(),
            after: place.after.clone(),
            fate,
        }
    }

    /// The line that is printed when it is known.
    pub fn line(&self) -> String {
        let fate = match &self.fate {
            Fate::Killed(kill) => format!("killed ({}) by {}: {}", kill.how, kill.test, kill.check),
            Fate::Survived => "SURVIVED".into(),
            Fate::NotReached => "NOT REACHED".into(),
            Fate::Equivalent => "equivalent".into(),
        };
        let fate: String = fate.chars().take(160).collect();
        format!(
            "{:>4} {}:{} {}: {fate}",
            self.number, self.file, self.line, self.operator
        )
    }

    fn difference(&self) -> String {
        let mut text = format!("{}:{} {}\n", self.file, self.line, self.operator);
        for (mark, lines) in [('-', &self.before), ('+', &self.after)] {
            for line in lines.lines().filter(|line| !line.trim().is_empty()) {
                writeln!(text, "  {mark} {}", line.trim_end()).expect("a string takes all");
            }
        }
        text
    }
}

/// The mutants that are known to be equivalent:
/// `FILE | OPERATOR | LINES AS THEY WOULD BE | REASON`. Of lines of which nothing would be left it
/// has the lines themselves, after `- `.
pub const EQUIVALENT: &str = "tests/mutants/equivalent.list";

/// Mutants of the list `equivalent`: file, operator, the changed line without white space around
/// it.
pub fn equivalent() -> Result<Vec<(String, String, String)>> {
    let path = paths::root().join(EQUIVALENT);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut list = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        // The lines may have such a bar, too.
        let parts = line.split_once(" | ").and_then(|(file, rest)| {
            let (operator, rest) = rest.split_once(" | ")?;
            rest.rsplit_once(" | ")
                .map(|(after, reason)| (file, operator, after, reason))
        });
        let (file, operator, after, reason) =
            parts.with_context(|| format!("{EQUIVALENT}: {line:?} has no four parts"))?;
        anyhow::ensure!(
            !reason.trim().is_empty(),
            "{EQUIVALENT}: {line:?} has no reason"
        );
        anyhow::ensure!(
            paths::root().join(file).exists(),
            "{EQUIVALENT}: there is no {file}"
        );
        list.push((file.to_owned(), operator.to_owned(), squeezed(after)));
    }
    Ok(list)
}

/// Whether a mutant stands in the list.
pub fn is_equivalent(mutant: &Mutant, list: &[(String, String, String)]) -> bool {
    list.contains(&entry(&mutant.place))
}

/// A change as an entry of the list.
fn entry(place: &Place) -> (String, String, String) {
    let lines = match squeezed(&place.after) {
        none if none.is_empty() => format!("- {}", squeezed(&place.before)),
        lines => lines,
    };
    (place.file.clone(), place.operator.to_string(), lines)
}

/// A text with one blank for each run of white space.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Counts of fates.
#[derive(Default)]
struct Row {
    killed: usize,
    survived: usize,
    missed: usize,
    equivalent: usize,
}

/// The tables, and what nobody noticed.
pub fn text(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let unnoticed = verdicts
        .iter()
        .filter(|verdict| matches!(verdict.fate, Fate::Survived | Fate::NotReached));
    for verdict in unnoticed {
        let what = if matches!(verdict.fate, Fate::Survived) {
            "survived"
        } else {
            "not reached"
        };
        write!(text, "\n{what}: {}", verdict.difference()).expect("a string takes all");
    }
    type Key = fn(&Verdict) -> String;
    for (title, key) in [
        ("crate", (|verdict| verdict.package.clone()) as Key),
        ("operator", |verdict| verdict.operator.clone()),
    ] {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for verdict in verdicts {
            for name in [key(verdict), "~".into()] {
                let row = rows.entry(name).or_default();
                match verdict.fate {
                    Fate::Killed(_) => row.killed += 1,
                    Fate::Survived => row.survived += 1,
                    Fate::NotReached => row.missed += 1,
                    Fate::Equivalent => row.equivalent += 1,
                }
            }
        }
        write!(text, "\n| {title} | killed | survived | not reached | equivalent | share |\n|---|---|---|---|---|---|\n")
            .expect("a string takes all");
        for (
            name,
            Row {
                killed,
                survived,
                missed,
                equivalent,
            },
        ) in rows
        {
            let name = if name == "~" { "all".into() } else { name };
            let share = 100 * killed / (killed + survived + missed).max(1);
            writeln!(
                text,
                "| {name} | {killed} | {survived} | {missed} | {equivalent} | {share} % |"
            )
            .expect("a string takes all");
        }
    }
    let mut tests: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for verdict in verdicts {
        if let Fate::Killed(kill) = &verdict.fate {
            *tests.entry((&kill.test, kill.how)).or_default() += 1;
        }
    }
    text += "\n| noticed by | as | mutants |\n|---|---|---|\n";
    for ((test, how), count) in tests {
        writeln!(text, "| {test} | {how} | {count} |").expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::mutants::cfg::Build;
    use crate::mutants::places;

    /// A change that the sources do not allow any more would never be met.
    #[test]
    fn each_mutant_of_the_list_can_be_made() {
        let list = equivalent().unwrap();
        let packages: BTreeSet<&str> = list
            .iter()
            .map(|(file, ..)| match file.strip_prefix("crates/") {
                Some(rest) => rest.split('/').next().unwrap(),
                None => "kernel",
            })
            .collect();
        let mut possible = BTreeSet::new();
        for package in packages {
            for build in [Build::Host, Build::Kernel] {
                possible.extend(places::of(package, build).unwrap().iter().map(entry));
            }
        }
        let dead: Vec<_> = list
            .iter()
            .filter(|entry| !possible.contains(*entry))
            .collect();
        assert!(dead.is_empty(), "{dead:#?}");
    }
}
