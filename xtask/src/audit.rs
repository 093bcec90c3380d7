//! The audit of the trusted base (`docs/guard-audit.md`): each item that safe code can name is in
//! one of the page's tables, so that a new one is asked the page's questions before it is merged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::paths;
use crate::source::{self, Interface};

/// Where the tables are, from the root of the repository.
const PAGE: &str = "docs/guard-audit.md";

/// Items of a package that safe code can name: types and functions, and the functions of each type.
#[derive(Debug, Default, PartialEq, Eq)]
struct Items {
    types: BTreeSet<String>,
    functions: BTreeSet<String>,
    methods: BTreeMap<String, BTreeSet<String>>,
}

/// Checks that the page has every item of these packages, whose sources are given.
pub fn check(packages: &BTreeSet<&str>, sources: &[(PathBuf, String)]) -> Result<String> {
    let page = std::fs::read_to_string(paths::root().join(PAGE))
        .with_context(|| format!("cannot read {PAGE}"))?;
    let rows: Vec<Row<'_>> = page.lines().filter_map(Row::parse).collect();
    let (mut missing, mut count) = (Vec::new(), 0);
    for package in packages {
        let items = Items::of(&Path::new("crates").join(package).join("src"), sources);
        ensure!(items.count() > 0, "no public item of `{package}` was found");
        count += items.count();
        let wrong = items.missing(&rows);
        missing.extend(wrong.into_iter().map(|name| format!("{package}: {name}")));
    }
    ensure!(
        missing.is_empty(),
        "{PAGE} says nothing of\n        {}",
        missing.join("\n        ")
    );
    Ok(format!("{count} items"))
}

/// A row of a table: what it is about, and all names in it.
struct Row<'a> {
    about: BTreeSet<&'a str>,
    names: BTreeSet<&'a str>,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let cells = line.strip_prefix('|')?;
        let first = cells.split('|').next()?;
        let spans = |text: &'a str| text.split('`').skip(1).step_by(2);
        // Of a path the last name; of a call or a generic type the name before it.
        let last = |span: &'a str| {
            let path = span.split(['(', '<']).next().unwrap_or(span);
            path.rsplit("::").next().unwrap_or(path)
        };
        Some(Self {
            about: spans(first).map(last).collect(),
            names: spans(cells).flat_map(source::words).collect(),
        })
    }
}

impl Items {
    /// Items of the package whose root module is in the folder `root`.
    fn of(root: &Path, sources: &[(PathBuf, String)]) -> Self {
        let mut all = Vec::new();
        let find = |file: &Path| sources.iter().find(|(path, _)| path == file);
        let mut next = vec![(root.join("lib.rs"), root.to_owned(), true)];
        while let Some((file, folder, public)) = next.pop() {
            let Some((_, text)) = find(&file) else {
                continue;
            };
            let interface = source::interface(text);
            for (module, declared) in &interface.modules {
                let flat = folder.join(format!("{module}.rs"));
                let below = folder.join(module);
                let file = if find(&flat).is_some() {
                    flat
                } else {
                    below.join("mod.rs")
                };
                next.push((file, below, public && *declared));
            }
            all.push((interface, public));
        }
        Self::visible(&all)
    }

    /// Items that these modules declare for all, or give out again by `pub use`.
    fn visible(modules: &[(Interface<'_>, bool)]) -> Self {
        let exported: BTreeSet<&str> = modules
            .iter()
            .filter(|(_, public)| *public)
            .flat_map(|(interface, _)| interface.exported.iter().copied())
            .collect();
        let mut items = Self::default();
        for (interface, public) in modules {
            let visible = |name: &&&str| *public || exported.contains(**name);
            let names = |list: &[&str]| -> Vec<String> {
                list.iter()
                    .filter(visible)
                    .map(|n| (*n).to_owned())
                    .collect()
            };
            items.types.extend(names(&interface.types));
            items.functions.extend(names(&interface.functions));
        }
        for (interface, _) in modules {
            for (of, method) in &interface.methods {
                if items.types.contains(*of) {
                    let methods = items.methods.entry((*of).to_owned()).or_default();
                    methods.insert((*method).to_owned());
                }
            }
        }
        items
    }

    fn count(&self) -> usize {
        let methods: usize = self.methods.values().map(BTreeSet::len).sum();
        self.types.len() + self.functions.len() + methods
    }

    /// Items that no row is about.
    fn missing(&self, rows: &[Row<'_>]) -> Vec<String> {
        let about = |name: &str| rows.iter().any(|row| row.about.contains(name));
        let mut missing: Vec<String> = self
            .types
            .iter()
            .chain(&self.functions)
            .filter(|name| !about(name))
            .cloned()
            .collect();
        for (of, methods) in &self.methods {
            let named = |method: &&String| {
                rows.iter()
                    .any(|row| row.about.contains(&**of) && row.names.contains(&***method))
            };
            let unnamed = methods.iter().filter(|method| !named(method));
            missing.extend(unnamed.map(|method| format!("{of}::{method}")));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(files: &[(&str, &str)]) -> Items {
        let sources: Vec<(PathBuf, String)> = files
            .iter()
            .map(|(file, text)| (Path::new("src").join(file), (*text).to_owned()))
            .collect();
        Items::of(Path::new("src"), &sources)
    }

    #[test]
    fn what_is_in_private_modules_is_found_only_if_it_is_given_out() {
        let items = items(&[
            (
                "lib.rs",
                "pub mod open;\nmod closed;\npub use closed::{Given, given as taken};\n",
            ),
            (
                "open.rs",
                "mod deep;\npub struct T<'a>(&'a u8);\nimpl<'a> T<'a> {\n    pub const fn make() {}\n    fn own() {}\n}\n\
                 pub unsafe fn f() {}\npub(crate) fn g() {}\nimpl Drop for T<'_> { fn drop(&mut self) {} }\n",
            ),
            (
                "open/deep.rs",
                "pub fn hidden() {}\nimpl super::T<'_> { pub fn more() {} }\n",
            ),
            (
                "closed/mod.rs",
                "pub trait Given {}\npub enum Kept {}\nimpl Kept { pub fn k() {} }\npub fn taken() {}\n",
            ),
        ]);
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        assert_eq!(
            items,
            Items {
                types: set(&["Given", "T"]),
                functions: set(&["f", "taken"]),
                methods: [("T".to_owned(), set(&["make", "more"]))].into(),
            }
        );
        assert_eq!(items.count(), 6);
    }

    #[test]
    fn a_row_is_about_its_first_cell() {
        let rows: Vec<Row<'_>> = [
            "| `open::T` | `make`, `more` |",
            "| `f(x)` | as `taken` |",
            "no row: `Given`",
        ]
        .into_iter()
        .filter_map(Row::parse)
        .collect();
        let items = items(&[(
            "lib.rs",
            "pub struct T;\nimpl T { pub fn make() {} pub fn less() {} }\npub fn f() {}\npub fn taken() {}\npub trait Given {}\n",
        )]);
        assert_eq!(items.missing(&rows), ["Given", "taken", "T::less"]);
    }
}
