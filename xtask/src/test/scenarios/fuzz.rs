//! Random system calls with hostile arguments (`cargo xtask fuzz`), for as long as there is time here.

use anyhow::Result;

use crate::fuzz::{self, Syscalls};
use crate::test::{Check, Setting};

/// Seconds of each run.
const SECONDS: u64 = 60;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let check = |cpus: u32| {
        let done = fuzz::syscalls(&Syscalls::new(SECONDS, cpus), setting.machine(&format!("{cpus}")));
        Check::new(
            format!("hostile system calls harm nobody but their process, on {cpus} processors"),
            done.map(|done| done.to_string()),
        )
    };
    Ok([1, 3].map(check).into())
}
