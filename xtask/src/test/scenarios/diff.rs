//! Programs of system calls on Linux and on Skerry (`cargo xtask diff`): the same ones in each run, so that what fails is what changed;
//! and, where there is an hour, ones that nobody has run before, whose seed is told.

use anyhow::{Result, bail};

use crate::diff::{Options, Pair};
use crate::fuzz;
use crate::test::{Check, Setting};

/// The areas whose programs do the same on both kernels, or differ in what is known. The others run by name (`cargo xtask diff`, `long/diff`).
const STEADY: [&str; 12] =
    ["files", "events", "ipc", "time", "sockets", "signals", "processes", "memory", "sched", "credentials", "limits", "names"];
/// Programs of each area from each of the seeds that are the same in each run.
const PROGRAMS: u64 = 16;
const SEEDS: [u64; 3] = [9, 101, 102];
/// How long new ones are run, in seconds.
const LONG: u64 = 3600;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut pair = Pair::new(&options(SEEDS[0], Some(PROGRAMS)), &|name| setting.machine(name))?;
    let mut checks = Vec::new();
    for seed in SEEDS {
        let name = format!("programs of system calls do on Skerry what they do on Linux (seed {seed})");
        let (check, goes_on) = explore(&mut pair, &name, &options(seed, Some(PROGRAMS)));
        checks.push(check);
        // Of two machines of which one was given up, the other still has answers that nobody waits for.
        if !goes_on {
            break;
        }
    }
    Ok(checks)
}

pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let options = options(fuzz::random_seed(), None);
    let mut pair = Pair::new(&options, &|name| setting.machine(name))?;
    Ok(vec![explore(&mut pair, "an hour of new programs of system calls do on Skerry what they do on Linux", &options).0])
}

/// `programs` of each area; `None`: for as long as there is time.
fn options(seed: u64, programs: Option<u64>) -> Options {
    let areas = programs.map_or(Vec::new(), |_| STEADY.map(str::to_owned).into());
    Options { seconds: LONG, programs, seed, areas, cpus: 2, minimised: programs.is_none(), directed: false }
}

/// Runs programs; says also whether the machines can be used again.
fn explore(pair: &mut Pair, name: &str, options: &Options) -> (Check, bool) {
    let mut differences = String::new();
    let found = pair.explore(options, &mut |line| differences.push_str(&line));
    let goes_on = found.is_ok();
    let judge =
        found.and_then(|found| if found.is_clean() { Ok(found.summary()) } else { bail!("{}\n{differences}", found.summary()) });
    (Check::new(name, judge), goes_on)
}
