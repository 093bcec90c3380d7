//! Tests on the host: the source's own rules, and every crate's unit tests.

use std::process::Command;

use anyhow::{Context, Result};

use super::{Check, Place, Setting, Test};
use crate::{build, check};

/// Formatting, lints, the rules of the house, documentation.
pub const SOURCE: Test = Test {
    name: "host/source",
    place: Place::Host,
    run: source,
};
/// The unit tests of all crates.
pub const UNIT: Test = Test {
    name: "host/unit",
    place: Place::Host,
    run: unit,
};
/// The models of what is lock-free.
pub const LOOM: Test = Test {
    name: "host/loom",
    place: Place::Host,
    run: loom,
};

fn source(_: &Setting) -> Result<Vec<Check>> {
    Ok(check::all()
        .into_iter()
        .map(|(what, result)| Check::new(what, result))
        .collect())
}

/// Every unit test and property test of the crates that run on the host.
fn unit(_: &Setting) -> Result<Vec<Check>> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    // The tests of these do not reach what the hardware drives.
    for package in check::KERNEL_ONLY
        .iter()
        .filter(|package| !["drivers", "guard", "node"].contains(package))
    {
        cargo.args(["--exclude", package]);
    }
    let mut checks = cargo_tests(&mut cargo)?;
    // What a kernel has that checks the order of its locks.
    checks.extend(cargo_tests(build::cargo().args([
        "test",
        "-p",
        "lfmutex",
        "--features",
        "order",
        "--lib",
    ]))?);
    Ok(checks)
}

/// The models of the lock-free building blocks, over all interleavings that loom finds.
fn loom(_: &Setting) -> Result<Vec<Check>> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--profile", build::TESTS_PROFILE, "--no-fail-fast"]);
    cargo.args(["--lib", "--tests"]);
    for package in check::LOOM_TESTED {
        cargo.args(["-p", package]);
    }
    cargo
        .arg("--target-dir")
        .arg(crate::paths::target().join("loom"))
        .env("RUSTFLAGS", "--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", "3");
    cargo_tests(&mut cargo)
}

/// Seconds a program of tests may take; most take less than one. Then it is ended, and what had not
/// ended is named.
const LIMIT: u32 = 600;

/// Runs `cargo test` and reports each test that it lists.
fn cargo_tests(cargo: &mut Command) -> Result<Vec<Check>> {
    let runner =
        format!("target.'cfg(unix)'.runner=['timeout', '--foreground', '-s', 'KILL', '{LIMIT}']");
    let output = cargo
        .args(["--config", &runner])
        .output()
        .context("cannot run cargo")?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let mut checks = results(&stdout);
    if !output.status.success() && checks.iter().all(|check| check.result.is_ok()) {
        checks.push(Check {
            what: "the tests can be built and run".into(),
            result: Err(format!("{cargo:?}\n{stdout}\n{stderr}")),
        });
    }
    Ok(checks)
}

/// Results of tests by the harness's output: a result, or that it takes long and then nothing more,
/// or, where tests run one by one, only its name.
fn results(stdout: &str) -> Vec<Check> {
    let said = |line| str::strip_prefix(line, "test ");
    let ended: Vec<(&str, &str)> = stdout
        .lines()
        .filter_map(|line| said(line)?.rsplit_once(" ... "))
        .collect();
    let slow = stdout
        .lines()
        .filter_map(|line| said(line)?.split_once(" has been running for over "));
    let hung: Vec<&str> = slow
        .map(|(name, _)| name)
        .filter(|name| ended.iter().all(|(other, _)| other != name))
        .collect();
    let check = |(name, result): &(&str, &str)| Check {
        what: (*name).to_owned(),
        result: match *result {
            "ok" => Ok(String::new()),
            "" => Err(did_not_end()),
            _ => Err(failure(stdout, name)),
        },
    };
    let ended = ended
        .iter()
        // With the reason behind it, if there is one.
        .filter(|(_, result)| !result.starts_with("ignored"))
        .map(check);
    ended
        .chain(hung.into_iter().map(|name| Check {
            what: name.to_owned(),
            result: Err(did_not_end()),
        }))
        .collect()
}

fn did_not_end() -> String {
    format!("it had not ended when its program was ended, after {LIMIT} s")
}

/// Output of a failed test.
fn failure(output: &str, name: &str) -> String {
    let start = output.find(&format!("---- {name} stdout ----"));
    start.map_or_else(
        || "see above".to_owned(),
        |start| {
            output[start..]
                .lines()
                .skip(1)
                .take_while(|line| !line.starts_with("----"))
                .collect::<Vec<_>>()
                .join("\n")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_does_not_end_is_named() {
        let said = "test quick ... ok\ntest left_out ... ignored\n\
                    test long ... ignored, takes minutes\n\
                    test slow has been running for over 60 seconds\n\
                    test hung has been running for over 60 seconds\n\
                    test slow ... ok\ntest wrong ... FAILED\ntest alone ... \n\
                    ---- wrong stdout ----\nexpected\n";
        let found: Vec<_> = results(said)
            .into_iter()
            .map(|check| (check.what, check.result.err()))
            .collect();
        let expected = [
            ("quick", None),
            ("slow", None),
            ("wrong", Some("expected".to_owned())),
            ("alone", Some(did_not_end())),
            ("hung", Some(did_not_end())),
        ];
        assert!(
            found
                .iter()
                .map(|(what, why)| (what.as_str(), why.clone()))
                .eq(expected),
            "{found:?}"
        );
    }
}
