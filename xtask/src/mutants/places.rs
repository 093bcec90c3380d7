//! Where a crate could be changed: its files as its root names them, each looked through by the
//! operators.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cfg::Build;
use super::operators::{self, Operator};
use crate::paths;

/// One change that could be made to the source.
#[derive(Clone, Debug)]
pub struct Place {
    /// The directory's name in `crates`, or `kernel`.
    pub package: String,
    /// The file, from the root of the tree.
    pub file: String,
    /// Where the change is, from 1.
    pub line: usize,
    /// The operator that makes the change.
    pub operator: Operator,
    /// The mistake as a developer would have written it: this part of the file would read so.
    pub change: (Range<usize>, String),
    /// Edits that build both into one program: in order, without overlaps; `{}` stands for the
    /// mutant's number.
    pub edits: Vec<(Range<usize>, String)>,
    /// The lines as they are and as they would be.
    pub before: String,
    /// The same with the change.
    pub after: String,
}

impl Place {
    /// Whether both can be built into one program.
    pub fn goes_with(&self, other: &Self) -> bool {
        let meets = |(a, _): &(Range<usize>, String), (b, _): &(Range<usize>, String)| match (
            a.is_empty(),
            b.is_empty(),
        ) {
            (true, true) => a.start == b.start,
            _ => a.start < b.end.max(b.start + 1) && b.start < a.end.max(a.start + 1),
        };
        self.file != other.file
            || !self
                .edits
                .iter()
                .any(|a| other.edits.iter().any(|b| meets(a, b)))
    }
}

/// The directory of a package, from the root of the tree.
pub fn directory(package: &str) -> String {
    if package == "kernel" {
        package.to_owned()
    } else {
        format!("crates/{package}")
    }
}

/// Everything that could be changed in a package.
///
/// # Errors
/// When a file cannot be read, or is no Rust.
pub fn of(package: &str, build: Build) -> Result<Vec<Place>> {
    let directory = paths::root().join(directory(package)).join("src");
    let root = ["lib.rs", "main.rs"]
        .map(|name| directory.join(name))
        .into_iter()
        .find(|path| path.is_file());
    let mut found = Vec::new();
    let mut waiting = vec![(
        root.with_context(|| format!("{package} has no root"))?,
        directory,
    )];
    while let Some((path, below)) = waiting.pop() {
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let file =
            syn::parse_file(&text).with_context(|| format!("{} is no Rust", path.display()))?;
        for name in operators::modules(&file, build) {
            waiting.extend(module(&below, &name));
        }
        let relative = path
            .strip_prefix(paths::root())
            .unwrap_or(&path)
            .to_string_lossy()
            .into_owned();
        found.extend(
            operators::places(&file, &text, build)
                .into_iter()
                .map(|change| Place {
                    package: package.to_owned(),
                    file: relative.clone(),
                    line: text[..change.change.0.start].matches('\n').count() + 1,
                    operator: change.operator,
                    before: lines(&text, &change.change.0, None),
                    after: lines(&text, &change.change.0, Some(&change.change.1)),
                    change: change.change,
                    edits: change.edits,
                }),
        );
    }
    found.sort_by(|a, b| (&a.file, a.change.0.start).cmp(&(&b.file, b.change.0.start)));
    Ok(found)
}

/// The file of a module, and the directory of its own modules.
fn module(directory: &Path, name: &str) -> Option<(PathBuf, PathBuf)> {
    let below = directory.join(name);
    [directory.join(format!("{name}.rs")), below.join("mod.rs")]
        .into_iter()
        .find(|path| path.is_file())
        .map(|path| (path, below))
}

/// The whole lines of which `range` is a part, with `instead` in its place.
fn lines(text: &str, range: &Range<usize>, instead: Option<&str>) -> String {
    let start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[range.end..]
        .find('\n')
        .map_or(text.len(), |at| range.end + at);
    let middle = instead.unwrap_or(&text[range.clone()]);
    format!(
        "{}{middle}{}",
        &text[start..range.start],
        &text[range.end..end]
    )
}
