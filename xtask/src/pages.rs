//! Names in pages: each file, function, type and module between backquotes exists, and so does each
//! link's target.
//!
//! A page is read by who does not know the code yet; a name in it that was changed or removed sends
//! him looking for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{paths, source, style};

/// Folders that hold no sources of ours.
const SKIPPED: [&str; 3] = ["target", ".git", ".toolchain"];
/// Pages that a program writes from what exists.
const GENERATED: [&str; 2] = ["docs/coverage.md", "docs/linux-abi.md"];
/// Endings by which a name is one of a file.
const FILE_ENDINGS: [&str; 9] = [
    ".rs", ".md", ".s", ".S", ".spec", ".list", ".toml", ".cases", ".ld",
];

/// Everything a page may name.
struct Tree {
    files: Vec<String>,
    /// The identifiers of each Rust source, by its path.
    words: BTreeMap<String, BTreeSet<String>>,
}

/// Checks every page.
pub fn check() -> Result<String> {
    let tree = Tree::read(&paths::root())?;
    let mut wrong = Vec::new();
    let pages = tree
        .files
        .iter()
        .filter(|file| file.ends_with(".md") && !GENERATED.contains(&file.as_str()));
    let mut names = 0;
    for page in pages {
        let text = fs::read_to_string(paths::root().join(page))
            .with_context(|| format!("cannot read {page}"))?;
        let wide = style::wide_prose(prose(&text));
        wrong.extend(wide.map(|number| format!("{page}:{number}: a line that is too wide")));
        for (number, line) in prose(&text) {
            for span in spans(line) {
                names += 1;
                if !tree.has(span) {
                    wrong.push(format!("{page}:{number}: `{span}`"));
                }
            }
            for target in links(line) {
                let beside = Path::new(page)
                    .parent()
                    .unwrap_or(Path::new(""))
                    .join(target);
                if !paths::root().join(&beside).exists() {
                    wrong.push(format!("{page}:{number}: a link to {target}"));
                }
            }
        }
    }
    if wrong.is_empty() {
        Ok(format!("{names} names"))
    } else {
        bail!("{}", wrong.join("\n        "))
    }
}

/// The lines that are not in a block of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((index + 1, line))
    })
}

/// Texts between backquotes.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Files of this repository that a line links to.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target);
    targets
        .filter(|target| !target.contains("://"))
        .map(|target| target.split('#').next().unwrap_or(""))
        .filter(|t| !t.is_empty())
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || char == '_')
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let mut tree = Self {
            files: Vec::new(),
            words: BTreeMap::new(),
        };
        let mut waiting = vec![PathBuf::new()];
        while let Some(folder) = waiting.pop() {
            let path = root.join(&folder);
            for entry in
                fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?
            {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if entry.file_type()?.is_dir() {
                    if !SKIPPED.contains(&name.as_str()) {
                        waiting.push(folder.join(name));
                    }
                } else {
                    tree.add(root, folder.join(name))?;
                }
            }
        }
        tree.files.sort();
        Ok(tree)
    }

    fn add(&mut self, root: &Path, file: PathBuf) -> Result<()> {
        let name = file.to_string_lossy().into_owned();
        if name.ends_with(".rs") {
            let text = fs::read_to_string(root.join(&file))
                .with_context(|| format!("cannot read {name}"))?;
            self.words.insert(
                name.clone(),
                source::words(&text).map(str::to_owned).collect(),
            );
        }
        self.files.push(name);
        Ok(())
    }

    /// Whether what a page calls by this name exists. What does not look like a name of ours is
    /// none.
    fn has(&self, span: &str) -> bool {
        if !span.contains(char::is_whitespace)
            && FILE_ENDINGS.iter().any(|ending| span.ends_with(ending))
            && !span.contains(['*', '$'])
        {
            return self.has_file(span);
        }
        let name = span.strip_suffix("()").unwrap_or(span);
        let parts: Vec<&str> = name.split("::").collect();
        if !parts.iter().all(|part| is_identifier(part)) {
            return true;
        }
        match parts[..] {
            [.., above, last] => self
                .words
                .iter()
                .any(|(file, words)| is_of(file, words, last) && is_of(file, words, above)),
            [name] if span.ends_with("()") => self.words.values().any(|words| words.contains(name)),
            _ => true,
        }
    }

    fn has_file(&self, name: &str) -> bool {
        let name = name.trim_start_matches("./");
        name.starts_with('/')
            || self.files.iter().any(|file| {
                file.strip_suffix(name)
                    .is_some_and(|before| before.is_empty() || before.ends_with('/'))
            })
    }
}

/// Whether a file is the module or crate `name`, in it, or has a type of that name.
fn is_of(file: &str, words: &BTreeSet<String>, name: &str) -> bool {
    words.contains(name)
        || file
            .split(['/', '.'])
            .any(|part| part == name || part.replace('-', "_") == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        Tree {
            files: vec!["crates/net/src/unix/mod.rs".into(), "docs/net.md".into()],
            words: BTreeMap::from([(
                "crates/net/src/unix/mod.rs".into(),
                words("Stream connect send"),
            )]),
        }
    }

    #[test]
    fn names_are_those_of_the_tree() {
        let tree = tree();
        for good in [
            "unix/mod.rs",
            "net::unix",
            "unix::connect",
            "Stream::send",
            "send()",
            "a line of code()",
            "-x",
            "*.rs",
        ] {
            assert!(tree.has(good), "{good}");
        }
        for bad in [
            "nix/mod.rs",
            "unix/more.rs",
            "unix::listen",
            "Stream::receive",
            "receive()",
            "Packet::send",
        ] {
            assert!(!tree.has(bad), "{bad}");
        }
    }

    #[test]
    fn code_is_not_prose() {
        let text = "a `b`\n```sh\n`c`\n```\n[d](e.md#f) [g](https://h) `i`, `j`";
        let found: Vec<_> = prose(text)
            .flat_map(|(number, line)| spans(line).map(move |span| (number, span)))
            .collect();
        assert_eq!(found, [(1, "b"), (5, "i"), (5, "j")]);
        assert_eq!(
            prose(text)
                .flat_map(|(_, line)| links(line))
                .collect::<Vec<_>>(),
            ["e.md"]
        );
    }
}
