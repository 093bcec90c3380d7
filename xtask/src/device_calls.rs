//! The table of the calls of `/dev/skerry`, for `docs/partitions.md`, made from what kernel and
//! tool are compiled from.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

use crate::paths;

const SOURCE: &str = "crates/abi/src/dev.rs";

/// The table as Markdown, with a line before and after it.
pub fn table() -> Result<String> {
    let source = fs::read_to_string(paths::root().join(SOURCE))
        .with_context(|| format!("cannot read {SOURCE}"))?;
    parse(&source).with_context(|| format!("in {SOURCE}"))
}

fn parse(source: &str) -> Result<String> {
    let (calls, _) = source
        .split_once("\ncalls! {\n")
        .and_then(|(_, rest)| rest.split_once("\n}\n"))
        .context("no table of calls")?;
    let mut table = String::from("\n| call | argument | effect |\n|---|---|---|\n");
    let mut effect = Vec::new();
    for line in calls.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            effect.push(text.trim());
            continue;
        }
        let (name, rest) = line
            .split_once(" = ")
            .with_context(|| format!("cannot read the line `{line}`"))?;
        let argument = rest
            .split_once(", ")
            .and_then(|(_, argument)| argument.strip_suffix(';'))
            .with_context(|| format!("no argument in the line `{line}`"))?;
        let effect = std::mem::take(&mut effect)
            .join(" ")
            .replace(['[', ']'], "");
        let effect = effect.trim_end_matches('.');
        // Writing to a string does not fail.
        let _ = writeln!(table, "| {name} | `{argument}` | {effect} |");
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_and_shown() {
        let source =
            "\ncalls! {\n    /// Gives all,\n    /// see [`Info`].\n    INFO = 1, Info;\n}\n";
        let table = parse(source).unwrap();
        assert!(
            table.ends_with("| INFO | `Info` | Gives all, see `Info` |\n"),
            "{table}"
        );
        assert!(parse(&source.replace(", Info;", "")).is_err());
    }
}
