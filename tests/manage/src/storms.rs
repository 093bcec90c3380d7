//! Two tools at a time, on the same few instances, that are killed at some moment: whatever they
//! leave half done, the next tool works, and nothing is lost.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::random::Random;
use crate::tool::{Options, Tool};
use crate::untouched::{Untouched, entries, words};

/// Names of the instances.
const NAMES: [&str; 3] = ["one", "two", "three"];
/// Storms from one empty machine to the next.
const SETTLE: u64 = 12;
/// The longest time a tool has, in microseconds: some end before, most do not.
const LIFE: u64 = 60_000;
/// One tool of so many has more time, in which all end that do not wait for a program.
const SPARED: u64 = 4;
const SPARED_LIFE: u64 = 2_000_000;
/// Status of a tool that was killed.
const KILLED: u8 = 137;

/// Storms for so long.
pub(crate) fn run(seed: &str, seconds: &str) -> Result<ExitCode> {
    let (seed, time) = (seed.parse()?, Duration::from_secs(seconds.parse()?));
    let untouched = Untouched::now()?;
    let start = Instant::now();
    let (mut storms, mut killed) = (0u64, 0);
    while start.elapsed() < time {
        let mut random = Random::new(seed, storms);
        let verbs = [verb(&mut random), verb(&mut random)];
        let context = || format!("storm {storms} of seed {seed}: {verbs:?}");
        killed += storm(&mut random, &verbs).with_context(context)?;
        entries().with_context(context)?;
        if storms % SETTLE == SETTLE - 1 {
            untouched.is_again().with_context(context)?;
        }
        storms += 1;
    }
    untouched.is_again()?;
    println!("hunt-result {storms} storms, {killed} tools killed");
    Ok(ExitCode::SUCCESS)
}

/// Starts the tools, and kills most; how many were.
fn storm(random: &mut Random, verbs: &[Vec<String>]) -> Result<u64> {
    let tools = verbs
        .iter()
        .map(|verb| Tool::start(verb, Options::default()))
        .collect::<Result<Vec<_>>>()?;
    let mut killed = 0;
    for tool in tools {
        let life = if random.once_in(SPARED) {
            SPARED_LIFE
        } else {
            random.below(LIFE)
        };
        killed += u64::from(tool.finish_within(Duration::from_micros(life))?.status == KILLED);
    }
    Ok(killed)
}

/// One use of the tool.
fn verb(random: &mut Random) -> Vec<String> {
    let name = random.pick(&NAMES);
    let memory = random.pick(&["48M", "64M", "200M"]);
    let create = ["--name", name, "--mem", memory, "--"];
    let program: &[&str] = random.pick(&[
        &["true"][..],
        &["sh", "-c", "while :; do :; done"],
        &["sh", "-c", "while :; do echo line; done"],
        &["sleep", "1"],
    ]);
    match random.below(12) {
        0 => words(&[&["create"], &create[..], program].concat()),
        1 => words(&[&["run"], &create[..], program].concat()),
        2 => words(&[&["run", "-d"], &create[..], program].concat()),
        3 => words(&[&["run", "--rm"], &create[..], program].concat()),
        4 => words(&["start", name]),
        5 => words(&["stop", "--force", name]),
        6 => words(&["kill", name]),
        7 => words(&["rm", "--force", name]),
        8 => words(&["rm", name]),
        9 => words(&["logs", name]),
        10 => words(&["inspect", name]),
        _ => words(&["prune"]),
    }
}
