//! Random work (`cargo xtask fuzz`), for as long as there is time here: system calls with hostile
//! arguments, and the management of instances.

use anyhow::Result;

use crate::fuzz::{self, Syscalls, manage};
use crate::test::{Check, Setting};

/// Seconds of each run.
const SECONDS: u64 = 30;
/// Of the long one.
const LONG_SECONDS: u64 = 1800;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let check = |cpus: u32| {
        let done = fuzz::syscalls(
            &Syscalls::new(SECONDS, cpus),
            setting.machine(&format!("{cpus}")),
        );
        Check::new(
            format!("hostile system calls harm nobody but their process, on {cpus} processors"),
            done.map(|done| done.to_string()),
        )
    };
    Ok([1, 3].map(check).into())
}

/// The verbs of the tool, beside a model.
pub fn manage(setting: &Setting) -> Result<Vec<Check>> {
    let done = manage::manage(
        &manage::Options::new(LONG_SECONDS),
        setting.machine("manage"),
    );
    let check = Check::new(
        "whatever is done with instances: nothing is lost, no output, no status",
        done.map(|done| done.to_string()),
    );
    Ok(vec![check])
}
