//! Mutants of the kernel: what a machine without a mutant comes by, and then a machine for each.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::image::Image;
use super::killers::{self, KILLERS};
use super::report::{Fate, Kill};
use super::tree::Mutant;
use super::trial::{self, Record, StepId, Trial};
use crate::paths;
use crate::test::{Check, Setting, Test, scenarios};
use crate::vm::{Kernel, last_lines};

/// Steps of the first machine of a mutant: those that come by fewest others.
const FIRST: usize = 8;
/// Seconds that every machine may take besides four times what its steps took without a mutant: the
/// host may have other things to do.
const MARGIN: u64 = 45;
/// Of the checks of a test, so many may fail without a mutant on a busy host; they are left out.
const UNSTEADY: usize = 20;

/// A test, as it went without a mutant.
struct Recorded {
    test: Test,
    machines: Vec<Machine>,
    /// Duration of all of it.
    time: Duration,
    /// Names of the checks that failed.
    failed: BTreeSet<String>,
}

struct Machine {
    name: String,
    record: Record,
    /// Of its steps; empty where it has none.
    names: Vec<String>,
}

/// Tries mutants against the tests near to them.
pub struct Bench {
    image: Image,
    tests: Vec<Recorded>,
    logs: PathBuf,
    /// Steps tried against each mutant in one machine, at most.
    most_steps: usize,
}

impl Bench {
    /// Runs the tests near to the mutants, all or some, without any mutant, and keeps what they
    /// come by.
    ///
    /// # Errors
    /// When a test fails without a mutant.
    pub fn new(
        image: Image,
        mutants: &[Mutant],
        most_steps: usize,
        only: &[String],
    ) -> Result<Self> {
        let logs = paths::target().join("mutants/logs");
        let mut bench = Self {
            image,
            tests: Vec::new(),
            logs,
            most_steps,
        };
        let recorder = bench.image.with(mutant::RECORD)?;
        for killer in KILLERS
            .iter()
            .filter(|killer| only.is_empty() || only.iter().any(|name| name == killer.test))
        {
            if !mutants.iter().any(|mutant| {
                killers::near(&mutant.place.file).any(|near| near.test == killer.test)
            }) {
                continue;
            }
            let test = scenarios::tests()
                .into_iter()
                .find(|test| test.name == killer.test);
            let test = test.with_context(|| {
                format!(
                    "there is no test {}; see xtask/src/mutants/killers.rs",
                    killer.test
                )
            })?;
            let trial = Trial {
                image: recorder.0.clone(),
                limit: None,
                steps: None,
                marks: true,
            };
            let start = std::time::Instant::now();
            let ran = bench.run(&test, "without", trial)?;
            let failed: BTreeSet<String> = ran.failed().map(|check| check.what.clone()).collect();
            for check in ran.failed() {
                eprintln!(
                    "xtask: without a mutant {} fails: {}: {:?}",
                    test.name, check.what, check.result
                );
            }
            ensure!(
                !ran.died() && failed.len() * UNSTEADY <= ran.checks.len(),
                "{} fails without a mutant: {} of {} checks; the machines' logs are in {}",
                test.name,
                failed.len(),
                ran.checks.len(),
                ran.logs.display()
            );
            let machines = ran.machines()?;
            let told: BTreeSet<u32> = machines
                .iter()
                .flat_map(|machine| &machine.record.all)
                .copied()
                .collect();
            let time = start.elapsed();
            eprintln!(
                "xtask: {} comes by {} of {} mutants ({} s)",
                test.name,
                told.len(),
                mutants.len(),
                time.as_secs()
            );
            bench.tests.push(Recorded {
                test,
                machines,
                time,
                failed,
            });
        }
        Ok(bench)
    }

    /// Tries a mutant.
    ///
    /// # Errors
    /// When a machine could not be built or started.
    pub fn judge(&self, mutant: &Mutant) -> Result<Fate> {
        let number = mutant.number;
        let image = self.image.with(number)?;
        let near: Vec<&Recorded> = self
            .tests
            .iter()
            .filter(|recorded| {
                killers::near(&mutant.place.file).any(|killer| killer.test == recorded.test.name)
            })
            .filter(|recorded| {
                recorded
                    .machines
                    .iter()
                    .any(|machine| machine.record.all.contains(&number))
            })
            .collect();
        if near.is_empty() {
            return Ok(Fate::NotReached);
        }
        for steps in self.plan(&near, number) {
            for recorded in &near {
                let own: BTreeSet<StepId> = steps
                    .iter()
                    .filter(|step| recorded.has(step))
                    .cloned()
                    .collect();
                if !own.is_empty()
                    && let Some(kill) = self.attempt(recorded, mutant, &image.0, Some(own))?
                {
                    return Ok(Fate::Killed(kill));
                }
            }
        }
        for recorded in near.iter().filter(|recorded| {
            recorded
                .machines
                .iter()
                .all(|machine| machine.names.is_empty())
        }) {
            if let Some(kill) = self.attempt(recorded, mutant, &image.0, None)? {
                return Ok(Fate::Killed(kill));
            }
        }
        Ok(Fate::Survived)
    }

    /// The steps to try, in two lots: the ones that come by little else, then more of them and some
    /// of all kinds.
    fn plan(&self, near: &[&Recorded], number: u32) -> Vec<Vec<StepId>> {
        let mut steps: Vec<(usize, Duration, StepId)> = near
            .iter()
            .flat_map(|recorded| recorded.steps(number))
            .collect();
        steps.sort();
        let mut steps: Vec<StepId> = steps.into_iter().map(|(.., step)| step).collect();
        let mut rest = steps.split_off(steps.len().min(FIRST));
        let left = self.most_steps.saturating_sub(FIRST);
        if rest.len() > left {
            let others = rest.split_off(left / 2);
            let every = others.len().div_ceil(left.div_ceil(2).max(1)).max(1);
            rest.extend(others.into_iter().step_by(every));
        }
        vec![steps, rest]
    }

    /// Runs steps of a test, or all of it, against a mutant; what kills it must not fail without
    /// it.
    fn attempt(
        &self,
        recorded: &Recorded,
        mutant: &Mutant,
        image: &std::path::Path,
        steps: Option<BTreeSet<StepId>>,
    ) -> Result<Option<Kill>> {
        let limit = Some(recorded.limit(steps.as_ref()));
        let name = mutant.number.to_string();
        let ran = self.run(
            &recorded.test,
            &name,
            Trial {
                image: image.to_owned(),
                limit,
                steps: steps.clone(),
                marks: false,
            },
        )?;
        let failed: Vec<&Check> = ran
            .failed()
            .filter(|check| !recorded.failed.contains(&check.what))
            .collect();
        let Some(first) = failed.first() else {
            return Ok(None);
        };
        let log = ran.log();
        if let Some(panic) = log
            .lines()
            .find(|line| ran.died() && line.contains("panic"))
        {
            return Ok(Some(Kill {
                test: recorded.test.name.into(),
                check: panic.trim().to_owned(),
                how: "panic",
            }));
        }
        let how = if ran.died()
            || first
                .result
                .as_ref()
                .is_err_and(|why| why.contains("did not end"))
        {
            "hang"
        } else {
            "check"
        };
        let again = self.image.with(0)?;
        // All of the same steps: one that fails after another may hold alone.
        let without = self.run(
            &recorded.test,
            &format!("{name}-without"),
            Trial {
                image: again.0.clone(),
                limit,
                steps,
                marks: false,
            },
        )?;
        let same = |check: &&&Check| !without.failed().any(|other| other.what == check.what);
        let Some(proof) = failed.iter().find(same) else {
            return Ok(None);
        };
        Ok(Some(Kill {
            test: recorded.test.name.into(),
            check: proof.what.clone(),
            how,
        }))
    }

    fn run(&self, test: &Test, name: &str, trial: Trial) -> Result<Ran> {
        let logs = self.logs.join(name);
        // What an earlier run left must not be taken for this one's.
        if logs.exists() {
            fs::remove_dir_all(&logs)
                .with_context(|| format!("cannot remove {}", logs.display()))?;
        }
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let setting = Setting::new(Kernel::Mutant(trial), logs.clone(), test.name);
        let checks = (test.run)(&setting)
            .unwrap_or_else(|error| vec![Check::new(COULD_NOT_RUN, Err(error))]);
        Ok(Ran { checks, logs })
    }
}

/// Text for a test that did not come to its checks.
const COULD_NOT_RUN: &str = "it could be run";

impl Recorded {
    fn has(&self, (name, _): &StepId) -> bool {
        self.machines.iter().any(|machine| machine.name == *name)
    }

    /// The steps that come by a mutant, with how many others they come by and how long they take.
    /// One that only the boot comes by may show in any step.
    fn steps(&self, number: u32) -> impl Iterator<Item = (usize, Duration, StepId)> {
        self.machines.iter().flat_map(move |machine| {
            let steady = machine.record.steps.iter().filter(|(index, _)| {
                machine
                    .names
                    .get(**index)
                    .is_some_and(|name| !self.failed.contains(name))
            });
            let all: Vec<_> = steady
                .map(|(index, (told, time))| (told, *time, (machine.name.clone(), *index)))
                .collect();
            let own: Vec<_> = all
                .iter()
                .filter(|(told, ..)| told.contains(&number))
                .cloned()
                .collect();
            let steps = if own.is_empty() && machine.record.boot.contains(&number) {
                all
            } else {
                own
            };
            steps
                .into_iter()
                .map(|(told, time, step)| (told.len(), time, step))
        })
    }

    /// Time limit of a machine with these steps.
    fn limit(&self, steps: Option<&BTreeSet<StepId>>) -> Duration {
        let time = |steps: &BTreeSet<StepId>| {
            let of = |(name, step): &StepId| {
                let machine = self.machines.iter().find(|machine| machine.name == *name)?;
                machine.record.steps.get(step).map(|(_, time)| *time)
            };
            steps.iter().filter_map(of).sum::<Duration>()
        };
        steps.map_or(self.time, time) * 4 + Duration::from_secs(MARGIN)
    }
}

/// Result of a test.
struct Ran {
    checks: Vec<Check>,
    logs: PathBuf,
}

impl Ran {
    fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.result.is_err())
    }

    /// Whether a machine did not come to its end.
    fn died(&self) -> bool {
        let ends = |check: &Check| {
            check.what == COULD_NOT_RUN || check.what.starts_with("the machine ran to its end")
        };
        self.failed().any(ends)
    }

    /// The ends of the machines' logs.
    fn log(&self) -> String {
        let logs = fs::read_dir(&self.logs)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.map(|path| last_lines(&path, 200) + "\n").collect()
    }

    fn machines(&self) -> Result<Vec<Machine>> {
        let mut machines = Vec::new();
        for entry in fs::read_dir(&self.logs)? {
            let log = entry?.path();
            if log.extension().is_some_and(|extension| extension == "log") {
                let names = fs::read_to_string(trial::names(&log)).unwrap_or_default();
                let names = names.lines().map(str::to_owned).collect();
                machines.push(Machine {
                    name: trial::machine(&log),
                    record: Record::read(&log),
                    names,
                });
            }
        }
        Ok(machines)
    }
}
