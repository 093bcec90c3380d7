//! Lists that kernel objects hold, and what keeps each from ending the kernel: `docs/growing.list`.
//!
//! A `Vec`, `VecDeque`, `String` or `HashMap` takes its memory in one piece. Beyond 256 KiB that
//! may not be had (`docs/memory.md`), and an allocation that cannot be refused ends the kernel. So
//! each field and static of such a type in the crates that serve programs has a row that says why
//! it stays small, or how it asks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

const LIST: &str = "docs/growing.list";
/// Crates whose objects a program makes.
const CRATES: [&str; 5] = ["linux", "fs", "net", "task", "vm"];
/// Types whose memory is in one piece.
const TYPES: [&str; 4] = ["Vec", "VecDeque", "String", "HashMap"];
/// Calls that grow a list, and cannot be refused.
const GROWING: [&str; 9] = [
    "push(",
    "push_back(",
    "push_front(",
    "push_str(",
    "extend(",
    "extend_from_slice(",
    "append(",
    "resize(",
    "resize_with(",
];
/// Words of a call by which memory is asked for.
const ASKING: [&str; 3] = ["fallible::", "try_reserve", "try_extend"];
/// Lines within which a list grows for which was asked.
const NEAR: usize = 30;

/// Reason that a row gives for a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum How {
    /// Asks for what it grows by, where it grows.
    Asks,
    /// The function of this name makes room, in the same crate.
    Room(String),
    /// Made with its length, and does not grow.
    Once,
    /// Stays below 256 KiB.
    Few,
    /// Only the superuser makes it grow.
    Root,
}

/// A list that an object holds.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Field {
    /// Crate, and `Type.field` or the name of the static.
    name: (String, String),
    /// Name of the field alone.
    short: String,
    file: PathBuf,
}

/// Checks that each list has a row, that each row is some list's, and that those which ask do.
///
/// # Errors
/// What is missing, or is too much.
pub fn check(sources: &[(PathBuf, String)]) -> Result<String> {
    let list = std::fs::read_to_string(paths::root().join(LIST))
        .with_context(|| format!("cannot read {LIST}"))?;
    let kernel: Vec<(&str, &Path, Vec<&str>)> = sources
        .iter()
        .filter_map(|(path, text)| Some((crate_of(path)?, path.as_path(), without_tests(text))))
        .collect();
    let fields: Vec<Field> = kernel
        .iter()
        .flat_map(|(package, path, lines)| fields(package, path, lines))
        .collect();
    let wrong = compare(&rows(&list)?, &fields, &kernel);
    if wrong.is_empty() {
        Ok(format!("{} lists", fields.len()))
    } else {
        bail!("{}", wrong.join("\n        "))
    }
}

/// The crate that a source of a kernel belongs to; `None` for tests and doubles of the hardware.
fn crate_of(path: &Path) -> Option<&str> {
    let mut words = path.iter().map(|word| word.to_str().unwrap_or_default());
    let (crates, package, src) = (words.next()?, words.next()?, words.next()?);
    let rest: Vec<&str> = words.collect();
    let is_double = rest.first().is_some_and(|first| first.starts_with("host"));
    let is_test = rest.iter().any(|word| word.contains("tests"));
    let counts = crates == "crates" && src == "src" && CRATES.contains(&package);
    (counts && !is_double && !is_test).then_some(package)
}

/// The lines before the file's own tests; comments are empty.
fn without_tests(text: &str) -> Vec<&str> {
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let mut lines: Vec<&str> = text
        .lines()
        .map(|line| if is_comment(line) { "" } else { line })
        .collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    lines.truncate(tests.unwrap_or(lines.len()));
    lines
}

/// Whether a type is, or has in it, one in one piece.
fn is_in_one_piece(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|word| TYPES.contains(&word))
}

/// A line without `pub` and what is behind that in parentheses.
fn without_visibility(line: &str) -> &str {
    let line = line.trim_start();
    let Some(rest) = line.strip_prefix("pub") else {
        return line;
    };
    match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((_, rest)) => rest.trim_start(),
        None => rest.strip_prefix(' ').unwrap_or(line),
    }
}

/// The name at the beginning of a text, and what is behind it.
fn name_of(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    text.split_at(end)
}

fn fields(package: &str, path: &Path, lines: &[&str]) -> Vec<Field> {
    let mut found = Vec::new();
    let mut add = |of: Option<&str>, short: &str| {
        let name = of.map_or_else(|| short.to_owned(), |of| format!("{of}.{short}"));
        found.push(Field {
            name: (package.to_owned(), name),
            short: short.to_owned(),
            file: path.to_owned(),
        });
    };
    // The type whose fields follow, and how far it is indented.
    let mut inside: Option<(&str, usize)> = None;
    for line in lines {
        let text = without_visibility(line);
        let indent = line.len() - line.trim_start().len();
        if let Some(rest) = text.strip_prefix("static ") {
            let (name, rest) = name_of(rest);
            if is_in_one_piece(rest.split('=').next().unwrap_or_default()) {
                add(None, name);
            }
        } else if let Some(rest) = ["struct ", "enum "]
            .iter()
            .find_map(|keyword| text.strip_prefix(keyword))
        {
            let (name, rest) = name_of(rest);
            if rest.contains('(') && is_in_one_piece(rest) {
                add(Some(name), "0");
            }
            inside = line.ends_with('{').then_some((name, indent));
        } else if let Some((of, at)) = inside {
            let (name, rest) = name_of(text);
            if text == "}" && indent == at {
                inside = None;
            } else if (rest.starts_with(": ") || rest.starts_with('('))
                && !name.is_empty()
                && is_in_one_piece(rest)
            {
                add(Some(of), name);
            }
        }
    }
    found
}

fn rows(list: &str) -> Result<BTreeMap<(String, String), How>> {
    let mut rows = BTreeMap::new();
    for line in list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [package, name, how, why @ ..] = &words[..] else {
            bail!("{LIST}: `{line}` is not `CRATE NAME HOW WHY`");
        };
        let how = match *how {
            "asks" => How::Asks,
            "room" => How::Room((*why.first().unwrap_or(&"")).to_owned()),
            "once" => How::Once,
            "few" => How::Few,
            "root" => How::Root,
            _ => bail!("{LIST}: `{line}`: asks, room, once, few or root"),
        };
        ensure!(
            how == How::Asks || !why.is_empty(),
            "{LIST}: `{line}` does not say why"
        );
        let key = ((*package).to_owned(), (*name).to_owned());
        ensure!(rows.insert(key, how).is_none(), "{LIST}: `{line}` again");
    }
    Ok(rows)
}

fn compare(
    rows: &BTreeMap<(String, String), How>,
    fields: &[Field],
    kernel: &[(&str, &Path, Vec<&str>)],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for field in fields {
        let (package, name) = &field.name;
        let at = field.file.display();
        let of_crate = kernel.iter().filter(|(of, ..)| of == package);
        match rows.get(&field.name) {
            None => wrong.push(format!("{at}: {package} {name} has no row in {LIST}")),
            Some(How::Asks) => {
                let own = of_crate.filter(|(_, path, _)| *path == field.file);
                let unasked = own.flat_map(|(.., lines)| unasked(lines, &field.short));
                wrong.extend(unasked.map(|line| {
                    format!("{at}:{line}: {name} grows, and nothing is asked for before")
                }));
            }
            Some(How::Room(maker)) => {
                let call = format!("{maker}(");
                let mut lines = of_crate.flat_map(|(.., lines)| lines);
                if !lines.any(|line| line.contains(&call)) {
                    wrong.push(format!("{LIST}: {package} {name}: there is no {maker}"));
                }
            }
            Some(How::Once | How::Few | How::Root) => {}
        }
    }
    for (package, name) in rows.keys() {
        if !fields
            .iter()
            .any(|f| f.name.0 == *package && f.name.1 == *name)
        {
            wrong.push(format!("{LIST}: there is no {package} {name}"));
        }
    }
    wrong
}

/// Numbers of the lines where a field grows without that anything was asked for shortly before.
fn unasked(lines: &[&str], field: &str) -> Vec<usize> {
    let grows = |line: &str| {
        line.match_indices(field).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let is_whole = !before.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let rest = &line[at + field.len()..];
            let rest = rest.strip_prefix(".lock()").unwrap_or(rest);
            let call = rest.strip_prefix('.');
            is_whole && call.is_some_and(|call| GROWING.iter().any(|grow| call.starts_with(grow)))
        })
    };
    let asks = |line: &&str| ASKING.iter().any(|word| line.contains(word));
    (0..lines.len())
        .filter(|&at| grows(lines[at]))
        .filter(|&at| !lines[at.saturating_sub(NEAR)..=at].iter().any(asks))
        .map(|at| at + 1)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "pub(crate) struct Queue {\n    /// A `Vec`.\n    items: Mutex<VecDeque<u8>>,\n    count: usize,\n}\n\
        struct Bits(Vec<u64>);\nstatic ALL: Mutex<Vec<u8>> = Mutex::new(Vec::new());\n\
        fn make(items: Vec<u8>) {\n    items.push(1);\n}\n";

    #[test]
    fn lists_are_found_in_types_and_statics() {
        let path = Path::new("crates/fs/src/queue.rs");
        let found = fields("fs", path, &without_tests(SOURCE));
        let names: Vec<_> = found.iter().map(|field| field.name.1.as_str()).collect();
        assert_eq!(names, ["Queue.items", "Bits.0", "ALL"]);
        assert_eq!(crate_of(path), Some("fs"));
        for other in [
            "crates/fs/tests/a.rs",
            "crates/vm/src/host.rs",
            "crates/ring/src/lib.rs",
        ] {
            assert_eq!(crate_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_list_needs_a_row_and_what_asks_must_ask() {
        let path = Path::new("crates/fs/src/queue.rs");
        let lines = without_tests(SOURCE);
        let found = fields("fs", path, &lines);
        let kernel = [("fs", path, lines)];
        let said = |list: &str| compare(&rows(list).unwrap(), &found, &kernel);
        let both = "fs Bits.0 few a bit each\nfs ALL root of its namespace\n";
        assert!(said(&format!("{both}fs Queue.items few of them\n")).is_empty());
        assert!(said(both)[0].contains("Queue.items has no row"));
        let asks = said(&format!("{both}fs Queue.items asks\n"));
        assert!(asks[0].contains("queue.rs:9"), "{asks:?}");
        assert!(said(&format!("{both}fs Queue.items room make\n")).is_empty());
        assert!(said(&format!("{both}fs Queue.items room nobody\n"))[0].contains("no nobody"));
        assert!(
            said(&format!(
                "{both}fs Queue.items few\u{20}x\nfs Gone.x few x\n"
            ))[0]
                .contains("Gone")
        );
        assert!(rows("fs Queue.items few\n").is_err() && rows("fs Queue.items many x\n").is_err());
    }

    #[test]
    fn what_was_asked_for_shortly_before_may_grow() {
        let asked = ["queue.try_reserve(1)?;", "self.items.lock().push_back(1);"];
        assert!(unasked(&asked, "items").is_empty());
        assert_eq!(unasked(&asked[1..], "items"), [1]);
        assert!(unasked(&["other_items.push(1)", "items.pop()"], "items").is_empty());
    }
}
