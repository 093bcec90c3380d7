//! Random work (`cargo xtask fuzz`), for as long as there is time here: system calls with hostile
//! arguments, and the management of instances.

use anyhow::Result;

use crate::fuzz::hunts::{self, Hunt};
use crate::fuzz::{self, RandomWork, Syscalls, manage};
use crate::test::{Check, Setting};

/// Seconds of each run.
const SECONDS: u64 = 20;
/// Operations of management in each run of the tests, and in the long one.
const STEPS: u64 = 100;
const LONG_STEPS: u64 = 1000;

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

fn managed(setting: &Setting, steps: u64) -> Vec<Check> {
    let done = manage::manage(&manage::Options::new(steps), |name| setting.machine(name));
    vec![Check::new(
        "whatever is done with instances: nothing is lost, no output, no status",
        done.map(|done| done.to_string()),
    )]
}

/// The verbs of the tool, beside a model.
pub fn manage(setting: &Setting) -> Result<Vec<Check>> {
    Ok(managed(setting, STEPS))
}

/// The same, ten times as many.
pub fn long_manage(setting: &Setting) -> Result<Vec<Check>> {
    Ok(managed(setting, LONG_STEPS))
}

/// Seconds of each hunt in each run of the tests, and of the long ones.
const HUNT_SECONDS: u64 = 6;
const LONG_HUNT_SECONDS: u64 = 600;
/// Hunts, in the order in which they are done, and what holds whatever they do.
const HUNTS: [(Hunt, &str); 5] = [
    (
        Hunt::Supervisor,
        "hostile system calls by nobody on the supervisor harm nobody else",
    ),
    (
        Hunt::Executables,
        "no executable harms anybody but its process",
    ),
    (
        Hunt::Ioctls,
        "whatever root asks of /dev/skerry, others go on, and everything comes back",
    ),
    (
        Hunt::Archives,
        "no archive makes a kernel panic, and what its instance had comes back",
    ),
    (
        Hunt::Storms,
        "tools that are killed leave nothing that the next one minds",
    ),
];

fn hunt(setting: &Setting, seconds: u64) -> Vec<Check> {
    let done = hunts::hunt(
        &HUNTS.map(|(hunt, _)| hunt),
        &RandomWork::new(seconds),
        setting.machine("hunts"),
    );
    match done {
        Ok(done) => HUNTS
            .iter()
            .zip(done.done)
            .map(|((_, claim), told)| Check::new(*claim, Ok(told)))
            .collect(),
        Err(error) => vec![Check::new("hostile work harms nobody else", Err(error))],
    }
}

/// Each hunt for some seconds.
pub fn short_hunts(setting: &Setting) -> Result<Vec<Check>> {
    Ok(hunt(setting, HUNT_SECONDS))
}

/// Each hunt for ten minutes.
pub fn long_hunts(setting: &Setting) -> Result<Vec<Check>> {
    Ok(hunt(setting, LONG_HUNT_SECONDS))
}
