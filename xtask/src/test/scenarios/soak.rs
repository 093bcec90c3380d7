//! Debian's programs mixed at random (`cargo xtask soak`).

use anyhow::Result;

use crate::soak::{self, Root};
use crate::test::{Check, Setting};

/// A short one, on as many processors as it takes for something to go wrong.
pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &[4], 30)
}

/// Two minutes on each number of processors.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &[1, 2, 4, 8], 120)
}

fn run(setting: &Setting, cpus: &[u32], seconds: u64) -> Result<Vec<Check>> {
    let root = Root::make()?;
    let check = |&cpus: &u32| {
        let done = soak::soak(setting.machine(&format!("{cpus}")), &root, cpus, seconds, 1);
        Check::new(format!("programs side by side have the right results and leave nothing, on {cpus} processors"), done)
    };
    Ok(cpus.iter().map(check).collect())
}
