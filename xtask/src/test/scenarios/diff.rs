//! Programs of system calls on Linux and on Skerry (`cargo xtask diff`): those that the
//! specification asks for and random ones of the same seed in each run, so that what fails is what
//! changed; and ones that nobody has run before, whose seed is told, on Skerry alone.

use anyhow::{Result, bail, ensure};

use crate::diff::{Found, LinuxAnswers, Options, Pair};
use crate::fuzz;
use crate::test::{Check, Setting};

/// The areas whose programs do the same on both kernels, or differ in what is known. The others run
/// by name (`cargo xtask diff`, `long/diff`).
const STEADY: [&str; 18] = [
    "files",
    "events",
    "ipc",
    "time",
    "sockets",
    "signals",
    "processes",
    "memory",
    "sched",
    "credentials",
    "limits",
    "names",
    "exec",
    "system",
    "mounts",
    "numa",
    "futex",
    "peers",
];
/// Whether `machine/diff` runs the directed programs of an area.
pub fn is_steady(area: &str) -> bool {
    STEADY.contains(&area)
}

/// Random programs of each area that are the same in each run, and their seed.
const PROGRAMS: u64 = 16;
const SEED: u64 = 9;
/// Time for new programs in each run of the tests, in seconds.
const SHORT: u64 = 20;
/// Time for new programs if the test is run by name, in seconds.
const LONG: u64 = 3600;

/// The runs of programs that are the same in each run of the tests: random ones of a seed, and
/// those that the specification asks for.
pub fn fixed_programs() -> [Options; 2] {
    let random = Options {
        programs: Some(PROGRAMS),
        linux: LinuxAnswers::Kept,
        ..options(SEED, SHORT)
    };
    // One step at a time, so a second CPU would only make the machines slower: twice as slow, most
    // of all Linux'.
    let directed = Options {
        directed: true,
        programs: Some(0),
        cpus: 1,
        areas: random.areas.clone(),
        ..random
    };
    [random, directed]
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let [random, directed] = fixed_programs();
    let mut pair = Pair::new(&random, &|name| setting.machine(name))?;
    if let Some(trial) = setting.kernel.trial() {
        return pair.against_mutants(trial, &random);
    }
    let found = explore(&mut pair, &random);
    let goes_on = found.is_ok();
    let mut checks = vec![Check::new(
        format!("programs of system calls do on Skerry what they do on Linux (seed {SEED})"),
        found.and_then(clean),
    )];
    // Of two machines of which one was given up, the other still has answers that nobody waits for.
    if !goes_on {
        return Ok(checks);
    }
    // What a new seed finds was there before the change that is tested, so only a kernel that dies
    // fails, and Linux is not asked: `cargo xtask diff --seed` does that.
    let new = Options {
        linux: LinuxAnswers::NotAsked,
        ..options(fuzz::random_seed(), SHORT)
    };
    let found = explore(&mut pair, &new).and_then(|(found, differences)| {
        let told = format!("seed {}: {} programs", found.seed, found.programs);
        ensure!(found.is_clean(), "{told}\n{differences}");
        Ok(told)
    });
    checks.push(Check::new(
        "new programs of system calls do not end the kernel",
        found,
    ));
    drop(pair);
    let found = Pair::new(&directed, &|name| setting.machine(name))
        .and_then(|mut pair| explore(&mut pair, &directed));
    let name = "the programs of system calls that the specification asks for \
     do on Skerry what they do on Linux";
    checks.push(Check::new(name, found.and_then(clean)));
    Ok(checks)
}

pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let options = Options {
        areas: Vec::new(),
        minimised: true,
        ..options(fuzz::random_seed(), LONG)
    };
    let mut pair = Pair::new(&options, &|name| setting.machine(name))?;
    let found = explore(&mut pair, &options).and_then(clean);
    Ok(vec![Check::new(
        "an hour of new programs of system calls do on Skerry what they do on Linux",
        found,
    )])
}

/// Random programs for so many seconds, shown as they are if they differ.
fn options(seed: u64, seconds: u64) -> Options {
    let areas = STEADY.map(str::to_owned).into();
    Options {
        seconds,
        programs: None,
        seed,
        areas,
        cpus: 2,
        minimised: false,
        directed: false,
        linux: LinuxAnswers::Asked,
    }
}

/// Runs programs; what was found, and the programs that differ.
fn explore(pair: &mut Pair, options: &Options) -> Result<(Found, String)> {
    let mut differences = String::new();
    let found = pair.explore(options, &mut |line| differences.push_str(&line))?;
    Ok((found, differences))
}

/// The summary of a run that found nothing new.
fn clean((found, differences): (Found, String)) -> Result<String> {
    if found.is_clean() {
        Ok(found.summary())
    } else {
        bail!("{}\n{differences}", found.summary())
    }
}
