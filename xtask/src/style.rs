//! What rustfmt and clippy do not see to: the order of imports, the width of comments and pages,
//! and first lines of documentation that stand alone.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Width of code (`rustfmt.toml`), comments and pages, in characters.
const WIDTH: usize = 100;
/// Words with which a first line turns to something else: an editor shows it without its
/// surroundings.
const PRONOUNS: [&str; 11] = [
    "Those", "Who", "Whom", "What", "It", "They", "And", "That", "Which", "Such", "Whose",
];

/// Where imports come from, in the order in which their groups stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Std,
    /// Other crates, and modules that the file itself declares.
    Others,
    ThisCrate,
}

/// One `use` of a file.
struct Import {
    /// Number of its first line, from 1.
    line: usize,
    origin: Origin,
    /// Whether a blank line stands before it.
    apart: bool,
    /// Whether only blank lines, attributes and comments stand between it and the `use` before it.
    follows: bool,
}

/// Checks the sources, each given with its path from the root.
pub fn check(sources: &[(PathBuf, String)]) -> Result<String> {
    let mut wrong = Vec::new();
    for (path, text) in sources {
        let found = ungrouped_imports(text)
            .into_iter()
            .map(|line| (line, "imports are not std, other crates, this crate"))
            .chain(wide_comments(text).map(|line| (line, "a comment is too wide")))
            .chain(
                pronoun_lines(text).map(|line| (line, "a first line that does not stand alone")),
            );
        wrong.extend(found.map(|(line, what)| describe(path, line, what)));
    }
    finish(wrong)
}

/// Checks the width of a page's prose. Tables, code and lines with a link cannot be broken
/// everywhere.
pub fn wide_prose<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> impl Iterator<Item = usize> {
    lines
        .filter(|(_, line)| is_wide(line) && !line.trim_start().starts_with('|'))
        .filter(|(_, line)| {
            !line.starts_with("    ") && !line.contains("](") && !line.contains("<!--")
        })
        .map(|(number, _)| number)
}

fn finish(wrong: Vec<String>) -> Result<String> {
    if wrong.is_empty() {
        Ok(String::new())
    } else {
        bail!("{}", wrong.join("\n        "))
    }
}

fn describe(path: &Path, line: usize, what: &str) -> String {
    format!("{}:{line}: {what}", path.display())
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > WIDTH
}

/// Lines, from 1, of imports that stand in the wrong group, or whose group does not stand apart.
fn ungrouped_imports(text: &str) -> Vec<usize> {
    let imports = imports(text);
    let pairs = imports.windows(2).filter(|pair| pair[1].follows);
    pairs
        .filter(|pair| {
            pair[1].origin < pair[0].origin || pair[1].apart != (pair[1].origin != pair[0].origin)
        })
        .map(|pair| pair[1].line)
        .collect()
}

/// The imports of a file, of all its modules.
fn imports(text: &str) -> Vec<Import> {
    let mut found = Vec::new();
    let (mut apart, mut follows, mut inside) = (false, false, false);
    for (index, line) in text.lines().enumerate() {
        let words = line.trim();
        if inside {
            inside = !words.ends_with(';');
        } else if let Some(path) = imported(words) {
            found.push(Import {
                line: index + 1,
                origin: origin(path),
                apart,
                follows,
            });
            (apart, follows) = (false, true);
            inside = !words.ends_with(';');
        } else if words.is_empty() {
            apart = true;
        } else if !words.starts_with("#[") && !words.starts_with("//") {
            (apart, follows) = (false, false);
        } else if words.starts_with("//") {
            // Imports below a comment are a group of their own.
            follows = false;
        }
    }
    found
}

/// The path of a line that begins an import.
fn imported(line: &str) -> Option<&str> {
    let visible = ["pub(crate) ", "pub(super) ", "pub "];
    let plain = visible
        .iter()
        .find_map(|word| line.strip_prefix(word))
        .unwrap_or(line);
    plain.strip_prefix("use ")
}

fn origin(path: &str) -> Origin {
    match path.split([':', ';', ' ', '{']).next() {
        Some("std" | "core" | "alloc") => Origin::Std,
        Some("crate" | "self" | "super") => Origin::ThisCrate,
        _ => Origin::Others,
    }
}

/// Lines, from 1, of comments that are too wide and could be broken.
fn wide_comments(text: &str) -> impl Iterator<Item = usize> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| is_wide(line))
        .filter_map(|(index, line)| {
            let comment = line.trim_start().strip_prefix("//")?;
            let words = comment.trim_start_matches(['/', '!']).trim_start();
            // A table's row is one line; so is an address.
            (!words.starts_with('|') && words.contains(' ')).then_some(index + 1)
        })
}

/// Lines, from 1, with which an item's documentation begins and that speak of something else.
fn pronoun_lines(text: &str) -> impl Iterator<Item = usize> {
    let mut inside = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let documentation = line.trim_start().strip_prefix("///");
        let begins = !std::mem::replace(&mut inside, documentation.is_some());
        let first = documentation?.split_whitespace().next()?;
        (begins && PRONOUNS.contains(&first)).then_some(index + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_in_three_groups_are_right() {
        let right = "use std::fs;\nuse std::io;\n\nuse abi::A;\npub use own::B;\n\nuse crate::c::{\n    \
                     d, e,\n};\n#[cfg(test)]\nuse super::f;\n";
        assert!(ungrouped_imports(right).is_empty());
    }

    #[test]
    fn what_stands_in_the_wrong_group_or_is_not_apart_is_found() {
        assert_eq!(ungrouped_imports("use abi::A;\n\nuse std::fs;\n"), [3]);
        assert_eq!(ungrouped_imports("use std::fs;\nuse abi::A;\n"), [2]);
        assert_eq!(ungrouped_imports("use abi::A;\n\nuse abi::B;\n"), [3]);
        assert_eq!(
            ungrouped_imports("use crate::{\n    a,\n    b,\n};\nuse abi::A;\n"),
            [5]
        );
    }

    #[test]
    fn imports_of_other_modules_do_not_count() {
        let two = "use crate::a;\n\nmod m {\n    use std::fs;\n}\n";
        assert!(ungrouped_imports(two).is_empty());
    }

    #[test]
    fn wide_comments_are_found_but_not_tables_and_addresses() {
        let long = "x".repeat(WIDTH);
        let text =
            format!("// a {long}\n    /// a {long}\n//! | {long} |\n// {long}\nlet a = 1;\n");
        assert_eq!(wide_comments(&text).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn first_lines_name_what_they_document() {
        let text = "/// What is so.\nfn a() {}\n/// A name.\n/// It counts.\nfn b() {}\n";
        assert_eq!(pronoun_lines(text).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn prose_is_wrapped_and_tables_are_not() {
        let long = format!("a {}", "x".repeat(WIDTH));
        let (table, link) = (format!("| {long}"), format!("[{long}](x)"));
        let lines = [(1, long.as_str()), (2, table.as_str()), (3, link.as_str())];
        assert_eq!(wide_prose(lines.into_iter()).collect::<Vec<_>>(), [1]);
    }
}
