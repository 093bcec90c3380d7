//! Tests on the host: the source's own rules, and every crate's unit tests.

use std::process::Command;

use anyhow::{Context, Result};

use super::{Check, Place, Setting, Test};
use crate::{build, check};

/// The host's tests, in the order they run.
pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "host/source", place: Place::Host, run: source },
        Test { name: "host/unit", place: Place::Host, run: unit },
        Test { name: "host/loom", place: Place::Host, run: loom },
    ]
}

/// Formatting, lints, the rules of the house, documentation.
fn source(_: &Setting) -> Result<Vec<Check>> {
    Ok(check::all().into_iter().map(|(what, result)| Check::new(what, result)).collect())
}

/// Every unit test and property test of the crates that run on the host.
fn unit(_: &Setting) -> Result<Vec<Check>> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    for package in check::KERNEL_ONLY {
        cargo.args(["--exclude", package]);
    }
    cargo_tests(&mut cargo)
}

/// The models of the lock-free building blocks, over all interleavings that loom finds.
fn loom(_: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for package in check::LOOM_TESTED {
        let mut cargo = build::cargo();
        cargo.args(["test", "--release", "--no-fail-fast", "-p", package, "--lib", "--tests"]);
        cargo.arg("--target-dir").arg(crate::paths::target().join("loom"));
        cargo.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3");
        checks.extend(cargo_tests(&mut cargo)?);
    }
    Ok(checks)
}

/// Runs `cargo test` and reports each test that it lists.
fn cargo_tests(cargo: &mut Command) -> Result<Vec<Check>> {
    let output = cargo.output().context("cannot run cargo")?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut checks: Vec<_> = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.rsplit_once(" ... "))
        .filter(|(_, result)| *result != "ignored")
        .map(|(name, result)| Check {
            what: name.to_owned(),
            result: if result == "ok" { Ok(String::new()) } else { Err(failure(&stdout, name)) },
        })
        .collect();
    if !output.status.success() && checks.iter().all(|check| check.result.is_ok()) {
        checks
            .push(Check { what: "the tests can be built and run".into(), result: Err(format!("{cargo:?}\n{stdout}\n{stderr}")) });
    }
    Ok(checks)
}

/// What a failed test printed.
fn failure(output: &str, name: &str) -> String {
    let start = output.find(&format!("---- {name} stdout ----"));
    start.map_or_else(
        || "see above".to_owned(),
        |start| output[start..].lines().skip(1).take_while(|line| !line.starts_with("----")).collect::<Vec<_>>().join("\n"),
    )
}
