//! Tests on the host against mutants: the programs of tests are built once, and run with each
//! mutant that they come by.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::compile::{self, Program};
use super::report::{Fate, Kill};
use super::tree::{Mutant, Tree};
use crate::cleanup::Child;
use crate::paths;

/// Seconds that a program may take besides four times what it took without a mutant.
const MARGIN: u64 = 20;

/// Tries mutants against the tests of the host.
pub struct Bench {
    tree: Tree,
    programs: Vec<Recorded>,
}

/// A program of tests, and what it came by without a mutant.
struct Recorded {
    program: Program,
    told: BTreeSet<u32>,
    time: Duration,
}

impl Bench {
    /// Builds the tests of the crates that are changed, and runs them without a change.
    ///
    /// # Errors
    /// When the tests cannot be built or run.
    pub fn build(tree: Tree, mutants: Vec<Mutant>) -> Result<(Self, Vec<Mutant>)> {
        let packages: BTreeSet<String> = mutants
            .iter()
            .map(|mutant| mutant.place.package.clone())
            .collect();
        let built = compile::compile(&tree, mutants, false, |cargo| {
            cargo.args(["test", "--no-run", "--no-fail-fast", "--lib", "--tests"]);
            for package in &packages {
                cargo.args(["-p", package]);
            }
        })?;
        let mut programs = Vec::new();
        for program in built.programs {
            let told = paths::target().join(format!("mutants/{}.told", std::process::id()));
            drop(fs::remove_file(&told));
            let start = Instant::now();
            let ran = run(
                &program,
                &[
                    ("MUTANT", "record".into()),
                    ("MUTANT_TOLD", told.display().to_string()),
                ],
                None,
            )?;
            if let Some(failed) = ran {
                // Some count instructions, of which a mutant costs a few.
                eprintln!(
                    "xtask: left out, because it fails without a mutant: {}: {failed}",
                    program.name
                );
                continue;
            }
            let told = mutant::told(&fs::read(&told).unwrap_or_default()).collect();
            programs.push(Recorded {
                program,
                told,
                time: start.elapsed(),
            });
        }
        // The shortest first.
        programs.sort_by_key(|recorded| recorded.time);
        Ok((Self { tree, programs }, built.mutants))
    }

    /// Tries a mutant.
    ///
    /// # Errors
    /// When a program cannot be run.
    pub fn judge(&self, mutant: &Mutant) -> Result<Fate> {
        let mut fate = Fate::NotReached;
        // The crate's own tests come first: they are nearest.
        let own =
            |recorded: &&Recorded| !recorded.program.directory.ends_with(&mutant.place.package);
        let mut near: Vec<&Recorded> = self
            .programs
            .iter()
            .filter(|recorded| recorded.told.contains(&mutant.number))
            .collect();
        near.sort_by_key(own);
        for recorded in near {
            let limit = recorded.time * 4 + Duration::from_secs(MARGIN);
            if let Some(check) = run(
                &recorded.program,
                &[("MUTANT", mutant.number.to_string())],
                Some(limit),
            )? {
                self.tree.forget_failures()?;
                let how = if check == ENDLESS { "hang" } else { "check" };
                return Ok(Fate::Killed(Kill {
                    test: format!("host {}", recorded.program.name),
                    check,
                    how,
                }));
            }
            fate = Fate::Survived;
        }
        Ok(fate)
    }
}

/// Text for tests that did not end in time.
const ENDLESS: &str = "it does not end";

/// Runs a program of tests; what failed.
fn run(
    program: &Program,
    variables: &[(&str, String)],
    limit: Option<Duration>,
) -> Result<Option<String>> {
    let output = paths::target().join(format!(
        "mutants/{}-{:?}.out",
        std::process::id(),
        std::thread::current().id()
    ));
    let file =
        fs::File::create(&output).with_context(|| format!("cannot write {}", output.display()))?;
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&program.path)
        .current_dir(&program.directory);
    // A failing property is a failure: making it small helps nobody.
    command
        .envs([("PROPTEST_MAX_SHRINK_ITERS", "0"), ("RUST_BACKTRACE", "0")])
        .envs(variables.iter().map(|(name, value)| (name, value)));
    command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(Stdio::null());
    let mut child = Child::spawn(&mut command)
        .with_context(|| format!("cannot run {}", program.path.display()))?;
    let status = child.wait(limit.unwrap_or(Duration::from_secs(900)))?;
    child.end()?;
    let said = fs::read(&output).unwrap_or_default();
    drop(fs::remove_file(&output));
    let said = String::from_utf8_lossy(&said);
    let failed = said
        .lines()
        .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    Ok(match status {
        None => Some(ENDLESS.to_owned()),
        Some(status) if status.success() => None,
        Some(status) => {
            Some(failed.map_or_else(|| format!("the program ended: {status}"), str::to_owned))
        }
    })
}
