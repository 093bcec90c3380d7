//! The checks of `tests/programs` while free memory is filled and checked (`debug=poison`, see
//! `docs/debugging.md`): a write to what was given back is a panic that names it.

use anyhow::Result;

use super::programs::{Family, choose};
use crate::test::{Check, Setting};

/// All checks, alternating between the supervisor and an instance.
pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let sides = setting.sides();
    let chosen = choose(|index, _| Some(sides[index % sides.len()]))?;
    Family {
        cpus: 2,
        append: ["debug=poison"; 2].map(str::to_owned),
    }
    .run(setting, chosen)
}
