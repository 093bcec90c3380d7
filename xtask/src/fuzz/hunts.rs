//! `cargo xtask fuzz supervisor|archives|executables|ioctls|storms`: hostile work on the supervisor
//! itself, or of which the instances are made, while an instance that has nothing to do with it
//! goes on.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::RandomWork;
use crate::cleanup::Directory;
use crate::vm::{Addition, Ending, Machine, last_lines};
use crate::{abi, build};

/// A kind of hostile work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hunt {
    /// Random system calls by nobody on the supervisor.
    Supervisor,
    /// Instances from archives in which something was changed.
    Archives,
    /// Executables in which something was changed, run in an instance.
    Executables,
    /// Calls of `/dev/skerry` with hostile arguments.
    Ioctls,
    /// Two `skerry` at a time, killed at any moment.
    Storms,
}

/// Work that was done.
#[derive(Debug, Serialize)]
pub struct Done {
    seed: u64,
    /// Results in the order of the hunts.
    pub done: Vec<String>,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.done.join("; "))
    }
}

/// Time limit beyond that of the hunt, in seconds, on a machine that is emulated and busy.
const TIMEOUT: u64 = 300;
/// Processors of the machine.
const CPUS: u32 = 4;
/// Lines of the output and of the kernel's log that are shown.
const LINES: usize = 60;
/// Beside it an instance counts, and nobody is to disturb it.
const BESIDE: &str = "skerry run -d --name beside --cpus 1 --mem 64M -- \
    sh -c 'i=0; while :; do i=$((i+1)); [ $((i % 100000)) = 0 ] && echo $i; done'";
/// The number of that instance.
const NUMBER: &str =
    "beside=$(skerry inspect beside --json | grep -o '\"id\": *[0-9]*' | grep -o '[0-9]*$')";
/// Looks afterwards: it runs, and counts on; another instance starts; all can be removed.
const AFTERWARDS: &str = "state() { skerry inspect beside --json | grep -o '\"state\": *\"[a-z]*\"'; }
    count() { skerry logs beside | tail -n 1; }
    state | grep -q running || { state; skerry logs --kernel beside | tail -n 40; exit 1; }
    first=$(count); until [ \"$(count)\" != \"$first\" ]; do :; done
    [ \"$(skerry run --rm --cpus 1 --mem 64M -- echo hello)\" = hello ] || { echo no other; exit 1; }
    skerry rm --force beside; skerry prune";

impl Hunt {
    /// The command of the hunt itself, on the supervisor, beside the other instance.
    fn command(self, seed: u64, seconds: u64) -> String {
        match self {
            Self::Supervisor => {
                format!("machine-tests fuzz --nobody /fuzz-calls {seed} {seconds} 4")
            }
            Self::Executables => format!(
                "skerry run --name executables --cpus 1 --mem 256M -- \
                 machine-tests fuzz-executables {seed} {seconds}"
            ),
            // The number is that of the instance beside it.
            Self::Ioctls => format!("machine-tests fuzz-ioctls {seed} {seconds} $beside"),
            Self::Archives => format!("manage archives {seed} {seconds}"),
            Self::Storms => format!("manage storms {seed} {seconds}"),
        }
    }

    /// Whether it removes all instances there are, so that none can be beside it.
    fn removes_all(self) -> bool {
        matches!(self, Self::Archives | Self::Storms)
    }
}

/// Does these in one machine, one after the other, each for so long: those beside which an instance
/// can be first.
///
/// # Errors
/// What does not hold, or that it could not be run; the text has the seed and the log.
pub fn hunt(hunts: &[Hunt], work: &RandomWork, mut machine: Machine) -> Result<Done> {
    let seed = work.seed();
    machine.hardware.cpus = CPUS;
    machine.append = "supervisor_cpus=2".into();
    let time = work.seconds * hunts.len() as u64;
    machine.timeout = Some(Duration::from_secs(time + TIMEOUT));
    let directory = Directory::create()?;
    let table = directory.join("calls");
    fs::write(&table, abi::signatures()?)?;
    for (host, guest) in [
        (
            build::test_programs()?.program("machine-tests"),
            "/bin/machine-tests",
        ),
        (build::manage_program()?.program("manage"), "/bin/manage"),
        (table, "/fuzz-calls"),
    ] {
        machine.additions.push(Addition {
            host,
            guest: guest.into(),
        });
    }
    let script = script(hunts, seed, work.seconds);
    machine.command = ["/bin/sh", "-c", &script].map(OsString::from).to_vec();
    let run = machine.run_collected()?;
    let printed = run.output;
    let done: Vec<String> = printed
        .lines()
        .filter_map(|line| {
            let whole = line
                .strip_prefix("fuzz-result ")
                .map(|result| serde_json::from_str::<super::Done>(result).map(|d| d.to_string()));
            whole
                .transpose()
                .ok()?
                .or_else(|| line.strip_prefix("hunt-result ").map(str::to_owned))
        })
        .collect();
    let lines: Vec<&str> = printed.lines().collect();
    ensure!(
        run.ending == Ending::Exited(0) && done.len() == hunts.len(),
        "seed {seed}: {:?}\n{}\n{}\nthe supervisor's log ends:\n{}",
        run.ending,
        lines[lines.len().saturating_sub(LINES)..].join("\n"),
        run.complaints,
        last_lines(&machine.log, LINES)
    );
    Ok(Done { seed, done })
}

/// The script for the supervisor.
fn script(hunts: &[Hunt], seed: u64, seconds: u64) -> String {
    let (alone, beside): (Vec<Hunt>, Vec<Hunt>) = hunts.iter().partition(|hunt| hunt.removes_all());
    let commands = |hunts: Vec<Hunt>| -> String {
        hunts
            .into_iter()
            .map(|hunt| format!("{} || exit\n", hunt.command(seed, seconds)))
            .collect()
    };
    let mut script = String::new();
    if !beside.is_empty() {
        script += &format!(
            "{BESIDE} || exit\n{NUMBER}\n{}{AFTERWARDS}\n",
            commands(beside)
        );
    }
    script + &commands(alone)
}
