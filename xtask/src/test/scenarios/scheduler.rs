//! The scheduler under stress, and at rest, in machines of one, four and sixteen processors, and with processors that sleep by
//! MWAIT. The program is in `tests/programs`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::Addition;

const GUEST: &str = "/bin/machine-tests";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let program = build::test_programs()?.program("machine-tests");
    let output = Command::new(&program).arg("stress").output().with_context(|| format!("cannot run {}", program.display()))?;
    let names: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    let mut checks = Vec::new();
    // In the emulator MWAIT returns at once: it is shown to work, on two processors.
    for (cpus, more) in [(1, ""), (4, ""), (16, ""), (2, " idle=mwait")] {
        let mut machine = setting.machine(&format!("{cpus}-cpus"));
        machine.hardware.cpus = cpus;
        machine.append = format!("supervisor_cpus={cpus}{more}");
        machine.timeout = Some(Duration::from_secs(900));
        machine.additions.push(Addition { host: program.clone(), guest: GUEST.into() });
        let step = |name: &str| {
            let what = format!("{name}, {cpus} processors");
            Step::new(what, format!("{GUEST} {name}"), Expect::Accepted(says_ok))
        };
        let mut steps: Vec<Step> = names.iter().map(|name| step(name).limit(240)).collect();
        if more.is_empty() {
            steps.push(step("quiet").limit(120));
        }
        checks.extend(batch::run(machine, &steps)?);
    }
    Ok(checks)
}

fn says_ok(printed: &str) -> Result<String> {
    ensure!(printed.starts_with("ok ") && !printed.contains('\n'), "it does not say ok");
    Ok(String::new())
}
