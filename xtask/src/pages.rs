//! Names in pages: each file, function, type and module between backquotes exists, and so does each
//! link's target. Rust code in pages is a piece of a source, which the compiler has seen.
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
    /// The code of all Rust sources, as [`squeezed`] leaves it.
    code: String,
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
        for (number, piece) in rust_pieces(&text) {
            names += 1;
            if !tree.code.contains(&squeezed(&piece)) {
                wrong.push(format!("{page}:{number}: this code is in no source"));
            }
        }
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

/// The lines that are neither in a block of code nor written from a measurement, with their
/// numbers. A measured profile names the functions of the kernel that was measured.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut in_code, mut in_profiles) = (false, false);
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        in_profiles = !line.contains("<!-- end profiles -->")
            && (in_profiles || line.contains("<!-- begin profiles -->"));
        (!in_code && !fence && !in_profiles).then_some((index + 1, line))
    })
}

/// The pieces of the blocks of Rust code, each with the number of its first line. Lines that hold
/// `…` alone stand for what is left out between two pieces.
fn rust_pieces(text: &str) -> Vec<(usize, String)> {
    let mut pieces: Vec<(usize, String)> = Vec::new();
    let (mut inside, mut goes_on) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let words = line.trim();
        if words.starts_with("```") {
            inside = words == "```rust";
            goes_on = false;
        } else if inside && words == "…" {
            goes_on = false;
        } else if inside {
            if !goes_on {
                pieces.push((index + 1, String::new()));
            }
            let (_, piece) = pieces.last_mut().expect("one was added");
            piece.push_str(line);
            piece.push('\n');
            goes_on = true;
        }
    }
    pieces
}

/// Code without white space, and without what makes a line one of a comment: a piece of a page is
/// found whatever its indentation, in examples of the documentation, too.
fn squeezed(code: &str) -> String {
    let lines = code.lines().map(|line| {
        let line = line.trim_start();
        let plain = line.strip_prefix("//!").or(line.strip_prefix("///"));
        plain.unwrap_or(line)
    });
    lines
        .flat_map(|line| line.chars().filter(|char| !char.is_whitespace()))
        .collect()
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
            code: String::new(),
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
            self.code.push_str(&squeezed(&text));
            self.code.push('\n');
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
            code: squeezed("fn connect() {\n    send(1);\n    //! send(2);\n}"),
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
    fn rust_code_is_taken_from_a_source() {
        let text = "```rust\nfn connect() {\n  send(1);\n…\n  send(2);\n```\n```sh\nno\n```\n";
        let pieces = rust_pieces(text);
        assert_eq!(pieces.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [2, 5]);
        let code = tree().code;
        assert!(
            pieces
                .iter()
                .all(|(_, piece)| code.contains(&squeezed(piece)))
        );
        assert!(!code.contains(&squeezed("send(3);")));
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
