//! Programs of system calls on Linux and on Skerry (`cargo xtask diff`): some that are the same in each run, where what fails is what
//! changed, and some that nobody has run before, whose seed is told.

use anyhow::{Result, bail};

use crate::diff::{Options, Pair};
use crate::fuzz;
use crate::test::{Check, Setting};

/// Programs of each area that are the same in each run, and where they come from.
const FIXED: u64 = 16;
const SEED: u64 = 9;
/// Programs of each area that are new in each run.
const NEW: u64 = 32;
/// How long new ones are run when there is time, in seconds.
const LONG: u64 = 3600;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let fixed = options(SEED, Some(FIXED));
    let mut pair = Pair::new(&fixed, &|name| setting.machine(name))?;
    Ok(vec![
        explore(&mut pair, "the same programs of system calls do on Skerry what they do on Linux", &fixed),
        explore(&mut pair, "new programs of system calls do, too", &options(fuzz::random_seed(), Some(NEW))),
    ])
}

pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let options = options(fuzz::random_seed(), None);
    let mut pair = Pair::new(&options, &|name| setting.machine(name))?;
    Ok(vec![explore(&mut pair, "an hour of new programs of system calls do on Skerry what they do on Linux", &options)])
}

/// `programs` of each area; `None`: for as long as there is time.
fn options(seed: u64, programs: Option<u64>) -> Options {
    Options { seconds: LONG, programs, seed, areas: Vec::new(), cpus: 2, minimised: programs.is_none() }
}

fn explore(pair: &mut Pair, name: &str, options: &Options) -> Check {
    let mut differences = String::new();
    let found = pair.explore(options, &mut |line| differences.push_str(&line));
    let judge =
        found.and_then(|found| if found.is_clean() { Ok(found.summary()) } else { bail!("{}\n{differences}", found.summary()) });
    Check::new(name, judge)
}
