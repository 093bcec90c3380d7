//! `cargo xtask pages`: what pages say that is made from the source: the table of system calls
//! ([`crate::abi`]), and parts of pages that stand between `<!-- NAME -->` and `<!-- end -->`.
//!
//! A number in a page that is written by hand is wrong with the next commit that changes it, and
//! nobody notices: README said 299 system calls when there were 316.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use differential::directed;
use differential::interruptions;
use differential::spec::Spec;

use crate::test::scenarios;
use crate::{abi, device_calls, paths};

/// The end of a part.
const END: &str = "<!-- end -->";

/// A part of pages: its name, and how its text is made.
type Part = (&'static str, fn() -> Result<String>);

const PARTS: [Part; 5] = [
    ("system calls", || Ok(grouped(abi::there()?))),
    ("calls of /dev/skerry", device_calls::table),
    ("directed programs", || Ok(grouped(programs(|_| true)))),
    ("directed programs of machine/diff", || {
        Ok(grouped(programs(scenarios::is_steady)))
    }),
    ("programs of signals to who waits", || {
        let waits = Spec::builtin()
            .areas
            .iter()
            .map(|area| area.waits.len())
            .sum::<usize>();
        Ok(grouped(waits * interruptions::PER_WAIT))
    }),
];

/// The directed programs of the areas with such a name.
fn programs(wanted: impl Fn(&str) -> bool) -> usize {
    let spec = Spec::builtin();
    let areas = spec.areas.iter().filter(|area| wanted(&area.name));
    areas
        .map(|area| directed::programs(&spec, area).count())
        .sum()
}

/// A number with a comma before each three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, tail) = digits.split_at(first);
    let groups = tail.as_bytes().chunks(3).map(String::from_utf8_lossy);
    let all = (!head.is_empty())
        .then(|| head.into())
        .into_iter()
        .chain(groups);
    all.collect::<Vec<_>>().join(",")
}

/// The page as it must be; each part is made by `make`.
fn filled(page: &str, make: impl Fn(&str) -> Option<Result<String>>) -> Result<String> {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("<!-- ") {
        let (name, after) = after
            .split_once(" -->")
            .context("a comment that does not end")?;
        text.push_str(before);
        text.push_str(&format!("<!-- {name} -->"));
        rest = after;
        let Some(made) = make(name) else { continue };
        let (_, after) = rest
            .split_once(END)
            .with_context(|| format!("no `{END}` after `<!-- {name} -->`"))?;
        text.push_str(&made.with_context(|| format!("cannot make the part `{name}`"))?);
        text.push_str(END);
        rest = after;
    }
    Ok(text + rest)
}

/// README and the pages, with what they must be.
fn pages() -> Result<Vec<(PathBuf, String, String)>> {
    let mut paths = vec![paths::root().join("README.md")];
    for entry in fs::read_dir(paths::root().join("docs"))? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    paths.sort();
    let page = |path: PathBuf| {
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let part = |name: &str| {
            PARTS
                .iter()
                .find(|part| part.0 == name)
                .map(|part| part.1())
        };
        let made = if path.ends_with(abi::PAGE) {
            abi::page()
        } else {
            filled(&text, part).with_context(|| format!("in {}", path.display()))
        };
        Ok((path, text, made?))
    };
    paths.into_iter().map(page).collect()
}

/// Writes the pages anew.
pub fn write() -> Result<()> {
    for (path, text, made) in pages()? {
        if text != made {
            fs::write(&path, made).with_context(|| format!("cannot write {}", path.display()))?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// Whether the pages say what the source says.
pub fn check() -> Result<String> {
    let pages = pages()?;
    let stale = pages.iter().filter(|(_, text, made)| text != made);
    let names: Vec<_> = stale
        .map(|(path, _, _)| path.display().to_string())
        .collect();
    ensure!(
        names.is_empty(),
        "{} not what the source says; `cargo xtask pages` makes it so",
        names.join(", ")
    );
    Ok(format!("{} parts", PARTS.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_made_and_the_rest_stays() {
        let make = |name: &str| (name == "n").then(|| Ok("7".to_owned()));
        let page = "a <!-- n -->old<!-- end --> b <!-- remark --> <!-- n --><!-- end -->";
        let made = "a <!-- n -->7<!-- end --> b <!-- remark --> <!-- n -->7<!-- end -->";
        assert_eq!(filled(page, make).unwrap(), made);
        assert_eq!(filled(made, make).unwrap(), made);
        assert!(filled("<!-- n -->7", make).is_err());
    }

    #[test]
    fn large_numbers_are_grouped() {
        let numbers = [0, 12, 999, 1000, 5215, 123_456, 1_234_567].map(grouped);
        let expected = ["0", "12", "999", "1,000", "5,215", "123,456", "1,234,567"];
        assert_eq!(numbers, expected);
    }
}
