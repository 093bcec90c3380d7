//! Memory until there is none, and back: nothing is lost, and the kernel lives on.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::build;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Ending, Streams, last_lines};

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let program = build::test_programs()?.program("machine-tests");
    let check = |cpus: u32| {
        let addition = Addition {
            host: program.clone(),
            guest: "/bin/machine-tests".into(),
        };
        Check::new(
            format!("all memory is taken and given back on {cpus} processors"),
            exhaust(setting, cpus, addition),
        )
    };
    Ok([1, 4, 8].map(check).into())
}

fn exhaust(setting: &Setting, cpus: u32, program: Addition) -> Result<String> {
    let mut machine = setting.machine(&format!("memory-{cpus}"));
    machine.hardware.cpus = cpus;
    machine.hardware.memory = "160M".into();
    machine.append = format!("supervisor_cpus={cpus}");
    machine.timeout = Some(Duration::from_secs(300));
    machine.additions.push(program);
    machine.command = ["/bin/machine-tests", "exhaust", &cpus.to_string()]
        .map(OsString::from)
        .to_vec();
    let (mut output, mut complaints) = (Vec::new(), Vec::new());
    let streams = Streams {
        input: Box::new(std::io::empty()),
        output: &mut output,
        error: &mut complaints,
    };
    let outcome = machine.run(streams)?;
    let said = String::from_utf8_lossy(&output).into_owned();
    let told = || {
        format!(
            "{said}{}; the log ends:\n{}",
            String::from_utf8_lossy(&complaints),
            last_lines(&machine.log, 25)
        )
    };
    ensure!(
        outcome.ending == Ending::Exited(0),
        "{:?}: {}",
        outcome.ending,
        told()
    );
    ensure!(outcome.powered_off, "it did not power off: {}", told());
    let log = std::fs::read_to_string(&machine.log)?;
    ensure!(
        log.contains("Out of memory: Killed process") && log.contains("(machine-tests)"),
        "nobody is named: {}",
        told()
    );
    Ok(said.trim().trim_start_matches("ok exhaust: ").to_owned())
}
