//! Every dependency is used, and `docs/architecture.md` says of every foreign one what it is for.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::paths;

/// Packages that name another only to turn a feature of it on: `syn` shows lines and columns if
/// `proc-macro2` has them.
const FOR_FEATURES: [(&str, &str); 1] = [("xtask", "proc-macro2")];
/// The page with the table of dependencies.
const PAGE: &str = "docs/architecture.md";

/// Checks the packages that `cargo metadata` tells of. `words` gives the identifiers in the sources
/// of a package's directory.
pub fn check(metadata: &Value, words: impl Fn(&str) -> Result<BTreeSet<String>>) -> Result<String> {
    let page = read(PAGE)?;
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for package in metadata["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?
    {
        let name = text(&package["name"])?;
        let words = words(text(&package["manifest_path"])?.trim_end_matches("Cargo.toml"))?;
        for dependency in package["dependencies"]
            .as_array()
            .context("a package without dependencies")?
        {
            let dependency_name = text(&dependency["name"])?;
            let called = dependency["rename"]
                .as_str()
                .unwrap_or(dependency_name)
                .replace('-', "_");
            if !words.contains(&called) && !FOR_FEATURES.contains(&(name, dependency_name)) {
                wrong.push(format!("{name} does not use `{dependency_name}`"));
            }
            if dependency["path"].is_null() && !page.contains(&format!("`{dependency_name}`")) {
                wrong.push(format!(
                    "{PAGE} does not say what `{dependency_name}` is for"
                ));
            }
            used.insert(dependency_name.to_owned());
        }
    }
    let manifest = read("Cargo.toml")?;
    let unused = declared(&manifest)
        .filter(|name| !used.contains(*name))
        .map(|name| format!("no package uses `{name}`"));
    wrong.extend(unused);
    wrong.sort();
    wrong.dedup();
    if wrong.is_empty() {
        Ok(format!("{} of them", used.len()))
    } else {
        bail!("{}", wrong.join("\n        "))
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(paths::root().join(path)).with_context(|| format!("cannot read {path}"))
}

fn text(value: &Value) -> Result<&str> {
    value
        .as_str()
        .context("cargo metadata: no text where there should be one")
}

/// The names below `[workspace.dependencies]`.
fn declared(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest
        .split("[workspace.dependencies]")
        .nth(1)
        .unwrap_or("");
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" ="))
        .map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_ends_with_the_next_one() {
        let manifest = "[a]\nx = 1\n[workspace.dependencies]\n# why\nlog = \"1\"\nrand-core = { version = \"2\" }\n\n[b]\ny = 2\n";
        assert_eq!(declared(manifest).collect::<Vec<_>>(), ["log", "rand-core"]);
    }
}
