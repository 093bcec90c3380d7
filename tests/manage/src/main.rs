//! `cargo xtask fuzz manage` inside the machine (`docs/fuzzing.md`): the verbs of `skerry`, at
//! random, beside a model.
//!
//! `manage drive SEED SECONDS [STEPS FIRST]` runs on the supervisor, as do `manage archives SEED
//! SECONDS` and `manage storms SEED SECONDS`, which have no model; `manage guest …` is what runs in
//! the instances.
#![forbid(unsafe_code)]

mod archives;
mod driver;
mod events;
mod generator;
mod guest;
mod model;
mod numbered_lines;
mod random;
mod rootfs;
mod spec;
mod storms;
mod tool;
mod untouched;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["guest", words @ ..] => guest::run(words),
        ["drive", seed, seconds, rest @ ..] => drive(seed, seconds, rest),
        ["archives", seed, seconds] => archives::run(seed, seconds),
        ["storms", seed, seconds] => storms::run(seed, seconds),
        _ => (|| bail!("usage: manage drive|archives|storms SEED SECONDS"))(),
    };
    outcome.unwrap_or_else(|error| {
        println!("manage: {error:#}");
        ExitCode::from(99)
    })
}

/// Drives for so long; or so many steps from one on.
fn drive(seed: &str, seconds: &str, rest: &[&str]) -> Result<ExitCode> {
    let (steps, first) = match rest {
        [] => (None, 0),
        [steps, first] => (Some(steps.parse()?), first.parse()?),
        _ => bail!("give both the number of steps and the first one, or none"),
    };
    driver::run(driver::Work {
        seed: seed.parse()?,
        first,
        steps,
        time: Duration::from_secs(seconds.parse()?),
    })
}
