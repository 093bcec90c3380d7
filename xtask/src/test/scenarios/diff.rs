//! Programs of system calls on Linux and on Skerry (`cargo xtask diff`): the same ones in each run, so that what fails is what changed.
//! New seeds are tried by name.

use anyhow::{Result, bail};

use crate::diff::{Options, Pair};
use crate::test::{Check, Setting};

/// Programs of each area.
const PROGRAMS: u64 = 64;
/// Where they come from.
const SEED: u64 = 9;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let options = Options {
        seconds: 0,
        programs: Some(PROGRAMS),
        seed: SEED,
        areas: Vec::new(),
        cpus: 2,
        minimised: false,
        directed: false,
    };
    let mut differences = String::new();
    let found = Pair::new(&options, &|name| setting.machine(name))?.explore(&options, &mut |line| differences.push_str(&line));
    let judge = found.and_then(|found| if found.is_clean() { Ok(found.summary()) } else { bail!("{differences}") });
    Ok(vec![Check::new("programs of system calls do on Skerry what they do on Linux", judge)])
}
