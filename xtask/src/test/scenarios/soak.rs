//! Debian's programs mixed at random (`cargo xtask soak`).

use anyhow::Result;

use crate::soak::{self, Root};
use crate::test::{Check, Setting};

/// Seconds on each number of processors.
const SECONDS: u64 = 120;

/// On one to eight processors.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let root = Root::make()?;
    let check = |cpus: u32| {
        let done = soak::soak(setting.machine(&format!("{cpus}")), &root, cpus, SECONDS, 1);
        Check::new(
            format!(
                "programs side by side have the right results and leave \
                 nothing, on {cpus} processors"
            ),
            done,
        )
    };
    Ok([1, 2, 4, 8].map(check).into())
}
