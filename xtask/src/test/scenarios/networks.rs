//! Networks of instances: who reaches whom, and what becomes of it when one ends.

use std::time::Duration;

use anyhow::Result;

use crate::test::{Check, Setting, batch};

const CASES: &str = include_str!("../../../../tests/cases/networks.cases");

/// Command line of the supervisor: it has a name server to tell of, and no card.
const COMMAND_LINE: &str = "ip=10.0.2.15::10.0.2.2:255.255.255.0::eth0:off:10.0.2.3";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("networks");
    machine.hardware.cpus = 4;
    machine.timeout = Some(Duration::from_secs(600));
    machine.append = COMMAND_LINE.into();
    let steps = batch::steps(CASES, &[])?;
    let steps: Vec<_> = steps.into_iter().map(|step| step.limit(240)).collect();
    batch::run(machine, &steps)
}
