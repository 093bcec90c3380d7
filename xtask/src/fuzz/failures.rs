//! `cargo xtask fuzz failures`: system calls with one request for memory after the other refused
//! (`tests/programs/src/failures.rs`).

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::build;
use crate::vm::{Addition, Ending, Machine, last_lines};

/// Options for refusing requests for memory.
#[derive(Args)]
pub struct Options {
    /// Processors of the machine
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub cpus: u32,
    /// Only calls and deeds whose names contain this
    #[arg(default_value = "")]
    pub name: String,
}

/// Time limit of the machine.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Lines of the kernel's log that are shown.
const LOG_LINES: usize = 60;

/// Does it on a supervisor; what was done.
///
/// # Errors
/// A panic, a wrong error, something left, or that it could not be run.
pub fn failures(options: &Options, mut machine: Machine) -> Result<String> {
    machine.timeout = Some(TIMEOUT);
    machine.hardware.cpus = options.cpus;
    machine.append = format!("supervisor_cpus={}", options.cpus);
    machine.additions.push(Addition {
        host: build::test_programs()?.program("machine-tests"),
        guest: "/bin/machine-tests".into(),
    });
    machine.command = ["/bin/machine-tests", "failures", &options.name]
        .map(OsString::from)
        .into();
    let run = machine.run_collected()?;
    ensure!(
        run.ending == Ending::Exited(0) && run.output.ends_with("ok failures\n"),
        "{:?}: {}{}; the log ends:\n{}",
        run.ending,
        run.output,
        run.complaints,
        last_lines(&machine.log, LOG_LINES)
    );
    Ok(run.output)
}
