//! The trusted base: every package that may hold `unsafe`, what it is trusted for, and how much of
//! it there may be (`docs/trusted-base.list`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::paths;
use crate::source::Counts;

/// Where the list is, from the root of the repository.
const LIST: &str = "docs/trusted-base.list";
/// Where the parts are explained.
const PAGE: &str = "docs/trusted-base.md";
/// Lines of code that can be read in an afternoon.
const LINES_PER_AFTERNOON: usize = 3000;

/// A source file of a package, and what it holds.
pub struct Source {
    pub package: String,
    /// Path of the file from the package's `src` on.
    pub file: PathBuf,
    pub counts: Counts,
}

/// One line of the list: `PACKAGE FILES UNSAFE PUBLIC PURPOSE`.
#[derive(Debug, PartialEq, Eq)]
pub struct Part<'a> {
    pub package: &'a str,
    /// Files and folders below `src`; all of them if there are none.
    files: Vec<&'a str>,
    unsafe_limit: Option<usize>,
    /// None where the kernel does not rest on the package.
    public_limit: Option<usize>,
    purpose: &'a str,
}

impl<'a> Part<'a> {
    fn parse(line: &'a str) -> Result<Self> {
        let malformed = || format!("{LIST}: `{line}` is not `PACKAGE FILES UNSAFE PUBLIC PURPOSE`");
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest
                .trim_start()
                .split_once(char::is_whitespace)
                .with_context(malformed)?;
            rest = after;
            Ok::<_, anyhow::Error>(word)
        };
        let (package, files, unsafe_code, public) = (word()?, word()?, word()?, word()?);
        let purpose = rest.trim();
        ensure!(!purpose.is_empty(), malformed());
        let files = if files == "*" {
            Vec::new()
        } else {
            files.split(',').collect()
        };
        let limit = |text: &str| {
            if text == "-" {
                Ok(None)
            } else {
                text.parse().map(Some).with_context(malformed)
            }
        };
        Ok(Self {
            package,
            files,
            unsafe_limit: limit(unsafe_code)?,
            public_limit: limit(public)?,
            purpose,
        })
    }

    /// Parses the list, in which `#` begins a comment.
    pub fn parse_all(list: &'a str) -> Result<Vec<Self>> {
        list.lines()
            .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
            .map(Self::parse)
            .collect()
    }

    /// Whether the kernel rests on it.
    pub fn is_of_the_kernel(&self) -> bool {
        self.public_limit.is_some()
    }

    fn holds(&self, source: &Source) -> bool {
        source.package == self.package
            && (self.files.is_empty()
                || self.files.iter().any(|file| source.file.starts_with(file)))
    }

    /// Sum over the part's sources.
    fn counts(&self, sources: &[Source]) -> Counts {
        sources
            .iter()
            .filter(|source| self.holds(source))
            .map(|source| source.counts)
            .sum()
    }

    fn name(&self) -> String {
        if self.files.is_empty() {
            self.package.to_owned()
        } else {
            format!("{} {}", self.package, self.files.join(","))
        }
    }
}

/// The list's text.
pub fn list() -> Result<String> {
    let path = paths::root().join(LIST);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Checks the sources of all packages against the list.
pub fn check(sources: &[Source]) -> Result<String> {
    let list = list()?;
    let parts = Part::parse_all(&list)?;
    let page = std::fs::read_to_string(paths::root().join(PAGE))
        .with_context(|| format!("cannot read {PAGE}"))?;
    let mut wrong = violations(&parts, sources);
    let unexplained = parts
        .iter()
        .filter(|part| !page.contains(&format!("`{}`", part.package)));
    wrong.extend(unexplained.map(|part| format!("{PAGE} does not name `{}`", part.package)));
    if !wrong.is_empty() {
        bail!(
            "{}\n        `cargo xtask unsafe` shows the counts",
            wrong.join("\n        ")
        );
    }
    let total: Counts = parts
        .iter()
        .filter(|part| part.is_of_the_kernel())
        .map(|part| part.counts(sources))
        .sum();
    Ok(format!(
        "{} lines of code, {} of them unsafe, {} public items",
        total.code, total.unsafe_code, total.public
    ))
}

/// Violations of the list by the sources.
fn violations(parts: &[Part<'_>], sources: &[Source]) -> Vec<String> {
    let listed: BTreeSet<&str> = parts.iter().map(|part| part.package).collect();
    let mut wrong = Vec::new();
    for source in sources {
        let file = source.file.display();
        let holders = parts.iter().filter(|part| part.holds(source)).count();
        if !listed.contains(source.package.as_str()) {
            if source.counts.unsafe_code > 0 {
                wrong.push(format!(
                    "`{}` holds `unsafe` in {file} and is not in {LIST}",
                    source.package
                ));
            }
        } else if holders != 1 {
            wrong.push(format!(
                "{LIST}: {file} of `{}` is in {holders} parts",
                source.package
            ));
        }
    }
    for package in listed {
        if !sources
            .iter()
            .any(|source| source.package == package && source.counts.unsafe_code > 0)
        {
            wrong.push(format!(
                "{LIST}: `{package}` holds no `unsafe`; let it say #![forbid(unsafe_code)]"
            ));
        }
    }
    for part in parts {
        for file in &part.files {
            let is_there = |source: &Source| {
                source.package == part.package && source.file.starts_with(Path::new(file))
            };
            if !sources.iter().any(is_there) {
                wrong.push(format!("{LIST}: `{}` has no {file}", part.package));
            }
        }
        wrong.extend(part.excess(part.counts(sources)));
    }
    wrong
}

impl Part<'_> {
    /// Counts that are above their limits.
    fn excess(&self, counts: Counts) -> Vec<String> {
        let afternoon = self.is_of_the_kernel().then_some(LINES_PER_AFTERNOON);
        [
            ("unsafe lines", counts.unsafe_code, self.unsafe_limit),
            ("public items", counts.public, self.public_limit),
            ("lines of code", counts.code, afternoon),
        ]
        .into_iter()
        .filter_map(|(what, count, limit)| {
            Some((what, count, limit.filter(|limit| count > *limit)?))
        })
        .map(|(what, count, limit)| {
            format!("`{}` has {count} {what}; its limit is {limit}", self.name())
        })
        .collect()
    }
}

/// Prints the parts with their counts and limits.
pub fn print(sources: &[Source]) -> Result<()> {
    let list = list()?;
    println!(
        "{:>6} {:>6} {:>6} {:>6} {:>6}",
        "code", "unsafe", "limit", "public", "limit"
    );
    for part in Part::parse_all(&list)? {
        let Counts {
            code,
            unsafe_code,
            public,
        } = part.counts(sources);
        let limit = |limit: Option<usize>| limit.map_or(String::new(), |limit| limit.to_string());
        let (unsafe_limit, public_limit) = (limit(part.unsafe_limit), limit(part.public_limit));
        println!(
            "{code:>6} {unsafe_code:>6} {unsafe_limit:>6} {public:>6} {public_limit:>6}  {}: {}",
            part.name(),
            part.purpose
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: &str = "# PACKAGE FILES UNSAFE PUBLIC PURPOSE\n\ncore low,main.rs 3 2 the lower half\ncore high 0 1 the upper half\n\
                         tool * - - a program\n";

    fn source(package: &str, file: &str, code: usize, unsafe_code: usize, public: usize) -> Source {
        Source {
            package: package.to_owned(),
            file: file.into(),
            counts: Counts {
                code,
                unsafe_code,
                public,
            },
        }
    }

    fn sources() -> Vec<Source> {
        vec![
            source("core", "main.rs", 10, 1, 1),
            source("core", "low/a.rs", 10, 2, 1),
            source("core", "high/mod.rs", LINES_PER_AFTERNOON, 0, 1),
            source("tool", "main.rs", 2 * LINES_PER_AFTERNOON, 500, 50),
            source("other", "lib.rs", 10, 0, 5),
        ]
    }

    fn wrong(sources: &[Source]) -> Vec<String> {
        violations(&Part::parse_all(PARTS).unwrap(), sources)
    }

    #[test]
    fn lines_of_the_list() {
        let parts = Part::parse_all(PARTS).unwrap();
        assert_eq!(parts.len(), 3);
        assert_eq!(
            (&parts[0].files[..], parts[0].purpose),
            (&["low", "main.rs"][..], "the lower half")
        );
        assert_eq!(
            (parts[0].unsafe_limit, parts[0].public_limit),
            (Some(3), Some(2))
        );
        assert_eq!(
            (
                parts[2].files.len(),
                parts[2].unsafe_limit,
                parts[2].public_limit
            ),
            (0, None, None)
        );
        let program = Part::parse("tool * 2 - a program").unwrap();
        assert_eq!(
            (program.unsafe_limit, program.is_of_the_kernel()),
            (Some(2), false)
        );
        for malformed in [
            "core",
            "core * 1 2",
            "core * 1 2 ",
            "core * one 2 text",
            "core * -1 2 text",
        ] {
            assert!(Part::parse_all(malformed).is_err(), "{malformed}");
        }
    }

    #[test]
    fn counts_at_their_limits_are_allowed() {
        assert!(wrong(&sources()).is_empty());
        assert_eq!(
            Part::parse("core low,main.rs 3 2 x")
                .unwrap()
                .counts(&sources())
                .unsafe_code,
            3
        );
    }

    #[test]
    fn one_more_is_too_many() {
        let mut more = sources();
        more[1].counts.unsafe_code += 1;
        more[2].counts.public += 1;
        assert_eq!(
            wrong(&more),
            [
                "`core low,main.rs` has 4 unsafe lines; its limit is 3",
                "`core high` has 2 public items; its limit is 1"
            ]
        );
        let mut long = sources();
        long[2].counts.code += 1;
        assert_eq!(
            wrong(&long),
            ["`core high` has 3001 lines of code; its limit is 3000"]
        );
    }

    #[test]
    fn the_list_and_the_packages_are_the_same() {
        let mut unlisted = sources();
        unlisted[4].counts.unsafe_code = 1;
        assert_eq!(
            wrong(&unlisted),
            [format!(
                "`other` holds `unsafe` in lib.rs and is not in {LIST}"
            )]
        );
        let mut safe = sources();
        safe[3].counts.unsafe_code = 0;
        assert_eq!(
            wrong(&safe),
            [format!(
                "{LIST}: `tool` holds no `unsafe`; let it say #![forbid(unsafe_code)]"
            )]
        );
        let mut new = sources();
        new.push(source("core", "new.rs", 1, 0, 0));
        assert_eq!(
            wrong(&new),
            [format!("{LIST}: new.rs of `core` is in 0 parts")]
        );
        let mut gone = sources();
        gone.remove(0);
        assert_eq!(wrong(&gone), [format!("{LIST}: `core` has no main.rs")]);
    }
}
