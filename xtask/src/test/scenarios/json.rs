//! Output of the `skerry` tool with `--json`.

use anyhow::{Context, Result};
use serde_json::Value;

/// `skerry resources --json`; memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// All processors of the machine.
    pub cpus_total: u64,
    /// CPUs that are parked.
    pub cpus_free: u64,
    /// CPUs that did not start, or did not come back.
    pub cpus_lost: u64,
    /// Memory that a new instance may have.
    pub memory_free: u64,
    /// Memory that instances have.
    pub memory_in_use: u64,
    /// Memory that did not come back.
    pub memory_leaked: u64,
}

/// Tolerance for the supervisor's own use of memory from one moment to the next.
const SUPERVISORS_OWN: u64 = 4 << 20;

impl Resources {
    /// Whether instances have, and have lost, as much in both.
    pub fn is_as(&self, other: &Self) -> bool {
        let exact = Self {
            memory_free: other.memory_free,
            ..*self
        };
        exact == *other && self.memory_free.abs_diff(other.memory_free) <= SUPERVISORS_OWN
    }
}

/// Reads what `skerry resources --json` printed.
pub fn resources(text: &str) -> Result<Resources> {
    let value: Value = parse(text)?;
    let number =
        |part: &str, field: &str| number(&value[part], field).with_context(|| format!("in {part}"));
    Ok(Resources {
        cpus_total: number("cpus", "total")?,
        cpus_free: number("cpus", "free")?,
        cpus_lost: number("cpus", "lost")? + number("cpus", "quarantined")?,
        memory_free: number("memory", "free")?,
        memory_in_use: number("memory", "in_use")?,
        memory_leaked: number("memory", "leaked")? + number("memory", "quarantined")?,
    })
}

/// Reads a document.
pub fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text.trim()).with_context(|| format!("no JSON: {text:?}"))
}

/// The entry of the instance `name` in what `skerry ls --json` printed.
pub fn instance(list: &str, name: &str) -> Result<Value> {
    let list = parse(list)?;
    let entries = list
        .as_array()
        .context("`skerry ls --json` printed no list")?;
    let entry = entries
        .iter()
        .find(|entry| entry["name"] == name)
        .with_context(|| format!("{name} is not listed: {list}"))?;
    Ok(entry.clone())
}

/// A field that is a whole number.
pub fn number(value: &Value, field: &str) -> Result<u64> {
    value[field]
        .as_u64()
        .with_context(|| format!("{field} is no number in {value}"))
}

/// The output of a script by the parts it announced with lines `== NAME`.
pub fn part<'a>(printed: &'a str, name: &str) -> Result<&'a str> {
    let head = format!("== {name}\n");
    let start = printed
        .find(&head)
        .with_context(|| format!("no part {name:?}"))?
        + head.len();
    let rest = &printed[start..];
    Ok(rest[..rest.find("\n== ").unwrap_or(rest.len())].trim())
}
