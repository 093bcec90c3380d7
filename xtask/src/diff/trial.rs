//! Programs of system calls against a kernel with mutants (`cargo xtask mutants`): what Linux
//! answers is asked once, while the kernel is recorded without a mutant, and kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use differential::directed;

use super::{Batch, Options, Pair};
use crate::mutants::trial::Trial;
use crate::paths;
use crate::test::Check;

/// Programs of one step.
const LOT: u64 = 16;
/// Number of times that a program must answer otherwise than Linux did to count: some programs are
/// unsteady.
const TIMES: usize = 3;
/// After so many steps that failed the rest has nothing to add.
const MAX_FAILED_STEPS: usize = 3;
/// Stands for the answer to a program on which the two kernels did not agree without a mutant.
const LEFT_OUT: &str = "-";

/// Where Linux' answers are kept.
fn kept() -> PathBuf {
    paths::target().join("mutants/diff.answers")
}

impl Pair {
    /// Runs the directed programs of the areas and random ones of the seed: those steps that the
    /// trial wants. With [`Trial::marks`] beside Linux, whose answers are kept; otherwise beside
    /// what was kept.
    ///
    /// # Errors
    /// When a machine did not start, or there are no answers of Linux.
    pub fn against_mutants(&mut self, trial: &Trial, options: &Options) -> Result<Vec<Check>> {
        let mut lots = Vec::new();
        for area in super::areas(options)? {
            let directed = (None, directed::programs(super::spec(), area).count() as u64);
            let random = (Some(options.seed), options.programs.unwrap_or(0));
            for (seed, count) in [directed, random] {
                lots.extend(Batch::split(area, seed, count, LOT));
            }
        }
        let log = self.skerry.log().to_owned();
        trial.keep_names(
            &log,
            lots.iter()
                .map(Batch::command)
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str),
        )?;
        let wanted = lots
            .iter()
            .enumerate()
            .filter(|(step, _)| trial.wants(&log, *step));
        let checks = if trial.marks {
            self.recorded(wanted)
        } else {
            self.compared(wanted)
        };
        checks.map(|mut checks| {
            checks.push(Check::new("the machine ran to its end", Ok(String::new())));
            checks
        })
    }

    /// Runs lots on both kernels, each with its mark, and keeps what Linux answers.
    fn recorded<'a>(
        &mut self,
        lots: impl Iterator<Item = (usize, &'a Batch<'a>)>,
    ) -> Result<Vec<Check>> {
        let mut answers = String::new();
        let mut checks = Vec::new();
        for (step, lot) in lots {
            let command = lot.command();
            self.linux.send(&command)?;
            self.skerry.ask(&format!("mark {step}"))?;
            let ours = self.skerry.ask(&command)?;
            let theirs = self.linux.answer()?;
            let agreed = theirs
                .lines()
                .zip(ours.lines())
                .map(|(theirs, ours)| if theirs == ours { ours } else { LEFT_OUT });
            answers += &format!(
                "{command}:{}\n",
                agreed
                    .map(|answer| format!(" {answer}"))
                    .collect::<String>()
            );
            checks.push(Check::new(command, Ok(String::new())));
        }
        // The step that comes last has a time, too.
        self.skerry.ask(&format!("mark {}", mutant::TIME - 1))?;
        fs::write(kept(), answers).with_context(|| format!("cannot write {}", kept().display()))?;
        Ok(checks)
    }

    /// Runs lots and compares the answers with those that were kept.
    fn compared<'a>(
        &mut self,
        lots: impl Iterator<Item = (usize, &'a Batch<'a>)>,
    ) -> Result<Vec<Check>> {
        let text = fs::read_to_string(kept())
            .with_context(|| format!("cannot read {}", kept().display()))?;
        let answers: BTreeMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .collect();
        let mut checks = Vec::new();
        for (_, lot) in lots {
            let command = lot.command();
            let kept: Vec<&str> = answers
                .get(command.as_str())
                .context("no answer of Linux is kept")?
                .split_whitespace()
                .collect();
            let ours = match self.skerry.ask(&command) {
                Ok(ours) => ours,
                Err(death) => {
                    checks.push(Check::new("the machine ran to its end", Err(death)));
                    return Ok(checks);
                }
            };
            let others = ours.lines().zip(&kept).enumerate();
            let others = others
                .filter(|(_, (ours, theirs))| **theirs != LEFT_OUT && ours != *theirs)
                .map(|(index, _)| index);
            let mut judge = Ok(String::new());
            for index in others {
                if self.answers_otherwise(lot, index, kept[index])? {
                    judge = Err(anyhow::anyhow!("{}", lot.program(index as u64)?));
                    break;
                }
            }
            checks.push(Check::new(command, judge));
            if checks.iter().filter(|check| check.result.is_err()).count() == MAX_FAILED_STEPS {
                break;
            }
        }
        Ok(checks)
    }

    /// Whether a program that did not answer as on Linux does so each time.
    fn answers_otherwise(&mut self, lot: &Batch<'_>, index: usize, theirs: &str) -> Result<bool> {
        let alone = Batch {
            first: lot.first + index as u64,
            count: 1,
            ..*lot
        };
        for _ in 1..TIMES {
            let Ok(ours) = self.skerry.ask(&alone.command()) else {
                return Ok(true);
            };
            ensure!(
                ours.lines().count() == 1,
                "one program has one answer, not {ours:?}"
            );
            if ours.trim() == theirs {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
