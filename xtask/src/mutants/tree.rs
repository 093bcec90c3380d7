//! The copy of the tree that holds the mutants.
//!
//! All mutants of a run are in one program; a switch (`tools/mutant`) says which is in force. The
//! copy and what is built of it stay, and only what differs is written, so the next run builds
//! little.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::places::{self, Place};
use crate::paths;

/// The function that takes a host name: there a test says which part of it begins (`mutant::mark`).
const HOOK: (&str, &str) = (
    "crates/linux/src/system/sysinfo.rs",
    "fn set_name(which: &Mutex<Vec<u8>>, name: &[u8]) -> Result<(), Errno> {",
);
/// Code that is written behind that.
const HOOKED: &str = " if mutant::mark(name) { return Ok(()); }";
/// Line that is added to the dependencies of a crate with mutants.
const DEPENDENCY: &str = "[dependencies]\nmutant.workspace = true";

/// A mutant: a change and its number.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Number of the mutant, from 1.
    pub number: u32,
    /// Place of the change.
    pub place: Place,
}

/// Where each mutant is in the copy: file, lines (from 1), number.
pub type Written = Vec<(String, Range<usize>, u32)>;

/// A copy of the tree.
pub struct Tree {
    /// Where it is.
    pub root: PathBuf,
    /// Where it is built.
    pub target: PathBuf,
}

impl Tree {
    /// The copy of this name.
    pub fn new(name: &str) -> Self {
        let directory = paths::target().join("mutants");
        Self {
            root: directory.join(format!("{name}-tree")),
            target: directory.join(format!("{name}-build")),
        }
    }

    /// Makes the copy the tree as it is, uncommitted changes included, with these mutants in it; a
    /// kernel also gets the hook.
    ///
    /// # Errors
    /// When a file cannot be copied, or there is no place for the hook.
    pub fn write(&self, mutants: &[Mutant], kernel: bool) -> Result<Written> {
        let mut by_file: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
        for mutant in mutants {
            by_file.entry(&mutant.place.file).or_default().push(mutant);
        }
        let mut manifests: BTreeSet<String> = mutants
            .iter()
            .map(|mutant| format!("{}/Cargo.toml", places::directory(&mutant.place.package)))
            .collect();
        if kernel {
            manifests.insert("crates/linux/Cargo.toml".into());
        }
        let mut written = Vec::new();
        let mut files = BTreeSet::new();
        for name in listed()? {
            let from = paths::root().join(&name);
            if !from.is_file() {
                continue;
            }
            let mut contents =
                fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            if let Some(mutants) = by_file.get(name.as_str()) {
                let (text, places) = apply(&String::from_utf8(contents)?, mutants);
                contents = text.into_bytes();
                written.extend(
                    places
                        .into_iter()
                        .map(|(lines, number)| (name.clone(), lines, number)),
                );
            }
            if manifests.contains(&name) {
                let text = String::from_utf8(contents)?;
                let with = if text.contains("[dependencies]") {
                    text.replacen("[dependencies]", DEPENDENCY, 1)
                } else {
                    format!("{text}\n{DEPENDENCY}\n")
                };
                contents = with.into_bytes();
            }
            if kernel && name == HOOK.0 {
                contents = hooked(&String::from_utf8(contents)?)?.into_bytes();
            }
            let to = self.root.join(&name);
            write_if_different(&to, &contents)?;
            files.insert(to);
        }
        remove_others(&self.root.join("crates"), &files)?;
        remove_others(&self.root.join("kernel"), &files)?;
        Ok(written)
    }

    /// Takes back what proptest has kept of failures: the next mutant must not be tried with them.
    ///
    /// # Errors
    /// When a file cannot be removed or written.
    pub fn forget_failures(&self) -> Result<()> {
        let mut waiting = vec![self.root.join("crates")];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(&directory)
                .with_context(|| format!("cannot read {}", directory.display()))?
            {
                let path = entry?.path();
                let original = paths::root().join(path.strip_prefix(&self.root)?);
                if path.is_dir() {
                    waiting.push(path);
                } else if path.to_string_lossy().contains("regressions") {
                    match fs::read(&original) {
                        Ok(contents) => write_if_different(&path, &contents)?,
                        Err(_) => fs::remove_file(&path)
                            .with_context(|| format!("cannot remove {}", path.display()))?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// The files of the tree.
fn listed() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(paths::root())
        .output()
        .context("cannot run git")?;
    ensure!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// The text of the file that takes a host name, with the hook.
///
/// # Errors
/// When the function has another shape than this knows.
fn hooked(text: &str) -> Result<String> {
    let (file, function) = HOOK;
    ensure!(
        text.contains(function),
        "{file} has no `{function}`: xtask/src/mutants/tree.rs must know its new shape"
    );
    Ok(text.replacen(function, &format!("{function}{HOOKED}"), 1))
}

/// The text with all of its mutants, and the lines that each of them takes there.
fn apply(text: &str, mutants: &[&Mutant]) -> (String, Vec<(Range<usize>, u32)>) {
    let mut edits: Vec<(&Range<usize>, &str, u32)> = mutants
        .iter()
        .flat_map(|mutant| {
            mutant
                .place
                .edits
                .iter()
                .map(|(range, text)| (range, text.as_str(), mutant.number))
        })
        .collect();
    edits.sort_by_key(|(range, ..)| (range.start, range.end));
    let (mut result, mut done) = (String::new(), 0);
    let mut lines: BTreeMap<u32, Range<usize>> = BTreeMap::new();
    let line = |result: &str| result.matches('\n').count() + 1;
    for (range, edit, number) in edits {
        result.push_str(&text[done..range.start]);
        let first = line(&result);
        result.push_str(&edit.replace("{}", &number.to_string()));
        done = range.end;
        let place = lines.entry(number).or_insert(first..first);
        place.end = line(&result) + 1;
    }
    result.push_str(&text[done..]);
    (
        result,
        lines
            .into_iter()
            .map(|(number, lines)| (lines, number))
            .collect(),
    )
}

/// Files keep the time at which they were last different: by it, Cargo knows what it need not
/// build.
fn write_if_different(path: &Path, contents: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    let parent = path.parent().context("a file without a directory")?;
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, contents))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Removes what is no longer in the tree.
fn remove_others(directory: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, files)?;
        } else if !files.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::cfg::Build;
    use super::super::operators;
    use super::*;

    const TEXT: &str = "fn f(a: usize, b: usize) -> Result<(), Errno> {
    if a < LIMIT {
        return Err(Errno::EINVAL);
    }
    queue.wake_all();
    give()?;
    let c = a + 1;
    x = 1;
    y = x;
    z = 2;
    Ok(())
}
#[cfg(test)]
fn g() { h.wake_all(); }
";

    /// Each change by itself: the line as a developer would have written it wrongly, and that both
    /// fit into one program.
    #[test]
    fn changes_are_found_and_built_in() {
        let file = syn::parse_file(TEXT).expect("it is Rust");
        let changes = operators::places(&file, TEXT, Build::Kernel);
        let mut seen = Vec::new();
        for (index, change) in changes.into_iter().enumerate() {
            let (range, instead) = change.change.clone();
            let wrong = format!("{}{instead}{}", &TEXT[..range.start], &TEXT[range.end..]);
            syn::parse_file(&wrong).expect("the wrong program is one");
            let differs = wrong
                .lines()
                .zip(TEXT.lines())
                .find(|(a, b)| a != b)
                .map_or("", |(line, _)| line.trim());
            seen.push(format!("{}: {differs}", change.operator));
            let place = Place {
                package: "p".into(),
                file: "f".into(),
                line: 1,
                operator: change.operator,
                change: change.change,
                edits: change.edits,
                before: String::new(),
                after: String::new(),
            };
            let (both, lines) = apply(
                TEXT,
                &[&Mutant {
                    number: index as u32 + 1,
                    place,
                }],
            );
            syn::parse_file(&both).unwrap_or_else(|error| panic!("{error}: {both}"));
            assert!(both.contains(&format!("mutant::is({})", index + 1)) && lines.len() == 1);
        }
        seen.sort();
        let expected = [
            "check removed: ",
            "comparison: if a <= LIMIT {",
            "dropped error: let _ = give();",
            "dropped wake: ",
            "early return: return Ok(()); if a < LIMIT {",
            "off by one: if a < (LIMIT - 1) {",
            "off by one: let c = a + 0;",
            "stores exchanged: y = x; x = 1;",
            "wrong errno: return Err(Errno::EOPNOTSUPP);",
        ];
        assert_eq!(seen, expected);
    }

    /// Once the function had got another signature, and no mutant of the kernel could be tried.
    #[test]
    fn the_function_for_the_hook_is_there() {
        let text = fs::read_to_string(paths::root().join(HOOK.0)).expect("it is in the tree");
        hooked(&text).expect("its shape is known");
    }
}
