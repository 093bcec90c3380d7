//! Names that were given up for the field's standard ones (`docs/retired-names.list`) do not come
//! back.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::{paths, source};

/// Where the list is, from the root of the repository.
const LIST: &str = "docs/retired-names.list";
/// Keywords that stand before the name of an item where it is defined.
const DEFINES: [&str; 9] = [
    "fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod",
];

/// One line of the list: `CRATE OLD NEW REASON`.
struct Retired<'a> {
    /// Directory of the crate below `crates/`.
    package: &'a str,
    /// A file, from the crate's sources on, or the name of an item.
    old: &'a str,
    new: &'a str,
}

impl<'a> Retired<'a> {
    fn parse(line: &'a str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let mut word = || {
            words
                .next()
                .with_context(|| format!("{LIST}: `{line}` is not `CRATE OLD NEW REASON`"))
        };
        let this = Self {
            package: word()?,
            old: word()?,
            new: word()?,
        };
        word()?;
        Ok(this)
    }

    /// Whether the source defines the item again.
    fn is_defined_in(&self, text: &str) -> bool {
        let mut before = "";
        source::code_words(text)
            .any(|word| DEFINES.contains(&std::mem::replace(&mut before, word)) && word == self.old)
    }
}

/// Checks the list against the sources, each given with its path from the root.
pub fn check(sources: &[(std::path::PathBuf, String)]) -> Result<String> {
    let list = paths::root().join(LIST);
    let list = std::fs::read_to_string(&list)
        .with_context(|| format!("cannot read {}", list.display()))?;
    let lines: Vec<_> = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let mut back = Vec::new();
    for line in &lines {
        let retired = Retired::parse(line)?;
        let folder = Path::new("crates").join(retired.package);
        ensure!(
            paths::root().join(&folder).is_dir(),
            "{LIST}: there is no {}",
            folder.display()
        );
        let own = sources.iter().filter(|(path, _)| path.starts_with(&folder));
        for (path, text) in own {
            if path == &folder.join("src").join(retired.old) || retired.is_defined_in(text) {
                back.push(format!(
                    "{}: `{}` is called `{}` now",
                    path.display(),
                    retired.old,
                    retired.new
                ));
            }
        }
    }
    if back.is_empty() {
        Ok(format!("{} names", lines.len()))
    } else {
        bail!("{}", back.join("\n        "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_definitions_count() {
        let retired = Retired::parse("fs Source PollQueue BSD's selinfo").unwrap();
        assert!(retired.is_defined_in("pub struct Source { x: u8 }"));
        assert!(retired.is_defined_in("pub(crate) trait\n    Source: Sized {}"));
        assert!(!retired.is_defined_in("let source: other::Source = PollQueue; struct Sources;"));
        assert!(!retired.is_defined_in("// struct Source\nlet text = \"type Source\";"));
        assert!(Retired::parse("fs Source PollQueue").is_err(), "no reason");
    }
}
