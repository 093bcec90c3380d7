//! Orders for a machine that runs a kernel with mutants: which image, for how long, and which steps
//! of a test.
//!
//! A *step* is one script of those that a test runs in one boot (`test::batch`); it is known by the
//! name of the machine's log and its place among the steps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// One run of a kernel with mutants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The kernel.
    pub image: PathBuf,
    /// From power-on to the end; without it, the test's own limit, [`TIME_FACTOR`] times.
    pub limit: Option<Duration>,
    /// The steps that are run; without it, all.
    pub steps: Option<BTreeSet<StepId>>,
    /// Whether each step says that it begins.
    pub marks: bool,
}

/// Factor on its own time limit for a step, and for a test that is recorded: the host may have
/// other things to do, for hours.
pub const TIME_FACTOR: u32 = 4;

/// A machine's name and a place among its steps.
pub type StepId = (String, usize);

/// The name of a machine by its log.
pub fn machine(log: &Path) -> String {
    log.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Where a kernel tells which mutants it came by.
pub fn told(log: &Path) -> PathBuf {
    log.with_extension("told")
}

/// Where the names of a machine's steps are.
pub fn names(log: &Path) -> PathBuf {
    log.with_extension("steps")
}

impl Trial {
    /// Whether this step is run in the machine with this log.
    pub fn wants(&self, log: &Path, step: usize) -> bool {
        self.steps
            .as_ref()
            .is_none_or(|steps| steps.contains(&(machine(log), step)))
    }

    /// Text that comes before the script of a step.
    pub fn before(&self, step: usize) -> String {
        if self.marks {
            format!("hostname {}{step}\n", mutant::PREFIX)
        } else {
            String::new()
        }
    }

    /// Keeps the names of a machine's steps.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_names<'a>(&self, log: &Path, steps: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut text = String::new();
        for step in steps {
            writeln!(text, "{}", step.replace('\n', " ")).expect("a string takes all");
        }
        fs::write(names(log), text)
            .with_context(|| format!("cannot write beside {}", log.display()))
    }
}

/// Mutants that a machine came by while it was recorded.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Mutants come by at any time.
    pub all: BTreeSet<u32>,
    /// Mutants come by before the first step.
    pub boot: BTreeSet<u32>,
    /// Of each step: what was come by, and about how long it took.
    pub steps: BTreeMap<usize, (BTreeSet<u32>, Duration)>,
}

/// About how long a turn of the clock in the record is, on a processor of 2 GHz.
const CLOCK_TURN: Duration = Duration::from_micros(500);

impl Record {
    /// Reads what was told by the machine with this log.
    pub fn read(log: &Path) -> Self {
        let mut record = Self::default();
        let (mut step, mut since) = (None, None);
        for value in mutant::told(&fs::read(told(log)).unwrap_or_default()) {
            if value & mutant::MARK != 0 {
                step = Some((value % mutant::TIME) as usize);
            } else if value & mutant::TIME != 0 {
                let now = value % mutant::TIME;
                if let (Some(step), Some(since)) = (step, since) {
                    record.steps.entry(step).or_default().1 =
                        CLOCK_TURN * now.wrapping_sub(since).min(1 << 20);
                }
                since = Some(now);
            } else if value < mutant::MAX_CHANGES {
                record.all.insert(value);
                match step {
                    Some(step) => record.steps.entry(step).or_default().0.insert(value),
                    None => record.boot.insert(value),
                };
            }
        }
        record
    }
}
