//! The scheduler under stress, and at rest, in machines of four processors, by name of one and
//! sixteen, and with processors that sleep by MWAIT. The program is in `tests/programs`.
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Ending, Machine, last_lines};

const GUEST: &str = "/bin/machine-tests";

/// Check in which many processors at once change what all of them look at; it takes seconds where
/// the rest takes minutes.
const CHURN: &str = "scheduling-affinity-churn";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let program = build::test_programs()?.program("machine-tests");
    let mut checks = all(setting, &[4])?;
    checks.extend(batch::run(
        machine(setting, &program, 16, ""),
        &[step(CHURN, "16 processors")],
    )?);
    // In the emulator MWAIT returns at once, so that the machine never rests: one check shows that
    // it works.
    let machine = machine(setting, &program, 2, "idle=mwait");
    checks.extend(batch::run(
        machine,
        &[step(CHURN, "processors that sleep by MWAIT")],
    )?);
    Ok(checks)
}

/// All of it on one, where few things meet, and on sixteen, which two of the host take minutes to
/// emulate.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    all(setting, &[1, 16])
}

fn all(setting: &Setting, numbers: &[u32]) -> Result<Vec<Check>> {
    let program = build::test_programs()?.program("machine-tests");
    let output = Command::new(&program)
        .arg("stress")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let names: Vec<String> = String::from_utf8(output.stdout)?
        .lines()
        .map(str::to_owned)
        .collect();
    let mut checks = Vec::new();
    for &cpus in numbers {
        let machine = machine(setting, &program, cpus, "");
        let steps: Vec<Step> = names
            .iter()
            .map(|name| step(name, &format!("{cpus} processors")))
            .collect();
        checks.extend(batch::run(machine, &steps)?);
        let result = quiet(setting, &program, cpus).map_err(|error| format!("{error:#}"));
        checks.push(Check {
            what: format!("quiet, {cpus} processors"),
            result,
        });
    }
    Ok(checks)
}

fn machine(setting: &Setting, program: &Path, cpus: u32, more: &str) -> Machine {
    let mut machine = setting.machine(&format!("{cpus}-cpus"));
    machine.hardware.cpus = cpus;
    machine.append = format!("supervisor_cpus={cpus} {more}");
    machine.timeout = Some(Duration::from_secs(600));
    machine.additions.push(Addition {
        host: program.to_owned(),
        guest: GUEST.into(),
    });
    machine
}

fn step(name: &str, note: &str) -> Step {
    let accepted = |printed: &str| {
        ensure!(
            printed.starts_with("ok ") && !printed.contains('\n'),
            "it does not say ok"
        );
        Ok(String::new())
    };
    Step::new(
        format!("{name}, {note}"),
        format!("{GUEST} {name}"),
        Expect::Accepted(accepted),
    )
    .limit(240)
}

/// Counts interrupts while there is nothing else in the machine, not even a program that watches
/// the time.
fn quiet(setting: &Setting, program: &Path, cpus: u32) -> Result<String> {
    let mut machine = machine(setting, program, cpus, "");
    machine.command = [GUEST, "quiet"].map(OsString::from).to_vec();
    let run = machine.run_collected()?;
    ensure!(
        run.ending == Ending::Exited(0),
        "{:?}: {}; the log ends:\n{}",
        run.ending,
        run.output,
        last_lines(&machine.log, 25)
    );
    Ok("no interrupts in 10 s of computing, none but the alarm in 10 s of sleep".into())
}
