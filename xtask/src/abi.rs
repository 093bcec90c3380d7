//! The table of system calls in the documentation, made from the kernel's own table
//! (`cargo xtask pages`).
//!
//! A line of `crates/linux/src/entry/syscall_table.rs` without a remark is a call that does what
//! Linux' manual says. What is missing follows it as `// partial: what`, and a call that only
//! pretends says why that does no harm, as `// stub: why`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

const SOURCE: &str = "crates/linux/src/entry/syscall_table.rs";
/// The page, from the top of the tree.
pub const PAGE: &str = "docs/linux-abi.md";

/// Completeness of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Full,
    Partial,
    Stub,
    Missing,
}

impl State {
    const ALL: [Self; 4] = [Self::Full, Self::Partial, Self::Stub, Self::Missing];

    const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial => "partial",
            Self::Stub => "harmless stub",
            Self::Missing => "ENOSYS",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Call {
    name: String,
    /// Of its arguments.
    kinds: Vec<String>,
    state: State,
    /// The module and function.
    place: String,
    remark: String,
}

/// All calls of the table, by number.
fn parse(table: &str) -> Result<BTreeMap<u32, Call>> {
    let mut calls = BTreeMap::new();
    let mut enter = |number: u32, call: Call| {
        let name = call.name.clone();
        ensure!(
            calls.insert(number, call).is_none(),
            "system call {number} ({name}) is there twice"
        );
        Ok(())
    };
    let there = table
        .split_once("\ncalls! {\n")
        .and_then(|(_, rest)| rest.split_once("\n}\n"))
        .context("no table of calls")?;
    for line in there.0.lines() {
        let entry = || -> Option<(u32, Call)> {
            let (number, rest) = line.trim().split_once(' ')?;
            let (name, rest) = rest.split_once('(')?;
            let (kinds, rest) = rest.split_once(')')?;
            let kinds = kinds
                .split(", ")
                .filter(|kind| !kind.is_empty())
                .map(str::to_owned)
                .collect();
            let (function, rest) = rest.split_once("= [")?.1.split_once("];")?;
            let place = function
                .strip_prefix("regs ")
                .unwrap_or(function)
                .replace("::", ".rs: ");
            let (state, remark) = match rest
                .trim()
                .strip_prefix("// ")
                .map(|remark| remark.split_once(": "))
            {
                None if rest.trim().is_empty() => (State::Full, ""),
                Some(Some(("partial", what))) => (State::Partial, what),
                Some(Some(("stub", why))) => (State::Stub, why),
                _ => return None,
            };
            let call = Call {
                name: name.to_owned(),
                kinds,
                state,
                place,
                remark: remark.to_owned(),
            };
            Some((number.parse().ok()?, call))
        };
        let (number, call) =
            entry().with_context(|| format!("cannot read the line `{}`", line.trim()))?;
        enter(number, call)?;
    }
    let missing = there
        .1
        .split_once("UNIMPLEMENTED")
        .and_then(|(_, rest)| rest.split_once("&[\n"))
        .context("no list of missing calls")?;
    for pair in missing.1.split('(').skip(1) {
        let Some((number, name)) = pair
            .split_once(')')
            .and_then(|(pair, _)| pair.split_once(", "))
        else {
            bail!("cannot read `{pair}`")
        };
        let name = name.trim_matches('"').to_owned();
        let call = Call {
            name,
            kinds: Vec::new(),
            state: State::Missing,
            place: String::new(),
            remark: String::new(),
        };
        enter(number.parse()?, call)?;
    }
    Ok(calls)
}

fn text(calls: &BTreeMap<u32, Call>) -> String {
    let mut text = String::from(
        "# The system calls of x86-64 Linux\n\nMade from `crates/linux/src/entry/syscall_table.rs` by `cargo xtask pages`; `cargo xtask check` says when it is out of date. \
         *Full* is what the manual\nof Linux 6.1 says of a kernel configured without the namespaces of process numbers, networks, users, control groups and time, block\n\
         devices, access control lists, handling of failing memory, protection keys, eBPF, SCTP, MPTCP, VSOCK, AF_ALG and more of netlink than routes, devices, taskstats and lists of sockets; such a kernel, too, tells\n\
         who asks for them (`EINVAL`, `EAFNOSUPPORT`, …). *Partial* says what is missing; a *harmless stub* says why programs do not notice;\n\
         `ENOSYS` is what the others return, once noted in the log by name. The functions are in `crates/linux/src`.\n\n| state | calls |\n|---|---:|\n",
    );
    // Writing to a string does not fail.
    for state in State::ALL {
        let _ = writeln!(
            text,
            "| {} | {} |",
            state.name(),
            calls.values().filter(|call| call.state == state).count()
        );
    }
    text.push_str("\n| number | call | state | function | remark |\n|---:|---|---|---|---|\n");
    for (
        number,
        Call {
            name,
            state,
            place,
            remark,
            ..
        },
    ) in calls
    {
        let place = if place.is_empty() {
            String::new()
        } else {
            format!("`{place}`")
        };
        let _ = writeln!(
            text,
            "| {number} | `{name}` | {} | {place} | {remark} |",
            state.name()
        );
    }
    text
}

fn calls() -> Result<BTreeMap<u32, Call>> {
    let table = fs::read_to_string(paths::root().join(SOURCE))
        .with_context(|| format!("cannot read {SOURCE}"))?;
    parse(&table).with_context(|| format!("in {SOURCE}"))
}

/// The page as the table wants it.
pub fn page() -> Result<String> {
    Ok(text(&calls()?))
}

/// Number of calls that are full, partial or stubs.
pub fn there() -> Result<usize> {
    let calls = calls()?;
    Ok(calls
        .values()
        .filter(|call| call.state != State::Missing)
        .count())
}

/// The calls that there are, as lines `NUMBER NAME KIND…` with the kinds of the arguments
/// (`linux::entry::dispatch::Kind`).
pub fn signatures() -> Result<String> {
    let mut text = String::new();
    for (number, call) in calls()?
        .iter()
        .filter(|(_, call)| call.state != State::Missing)
    {
        let _ = writeln!(text, "{number} {} {}", call.name, call.kinds.join(" "));
    }
    Ok(text)
}

/// The numbers and names of the calls that are full.
pub fn full() -> Result<BTreeMap<u32, String>> {
    let full = calls()?
        .into_iter()
        .filter(|(_, call)| call.state == State::Full);
    Ok(full.map(|(number, call)| (number, call.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\ncalls! {\n    0 read(Fd) = [file::sys_read];\n    56 clone(Hex) = [regs clone::sys_clone]; // partial: no namespaces\n}\n\
                         \npub static UNIMPLEMENTED: &[(u16, &str)] = &[\n    (1, \"write\"), (2, \"open\"),\n];\n";

    #[test]
    fn a_table_is_read_and_shown() {
        let calls = parse(TABLE).unwrap();
        let states: Vec<_> = calls
            .iter()
            .map(|(number, call)| (*number, call.state))
            .collect();
        assert_eq!(
            states,
            [
                (0, State::Full),
                (1, State::Missing),
                (2, State::Missing),
                (56, State::Partial)
            ]
        );
        let text = text(&calls);
        assert!(text.contains("| ENOSYS | 2 |\n"));
        assert!(
            text.contains("| 56 | `clone` | partial | `clone.rs: sys_clone` | no namespaces |\n")
        );
    }

    #[test]
    fn a_number_twice_or_a_strange_remark_is_an_error() {
        assert!(parse(&TABLE.replace("(1, ", "(0, ")).is_err());
        assert!(parse(&TABLE.replace("partial", "perhaps")).is_err());
    }
}
