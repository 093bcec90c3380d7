//! `cargo xtask fuzz manage` inside the machine (`docs/fuzzing.md`): the verbs of `skerry`, at
//! random, beside a model.
//!
//! `manage drive SEED SECONDS` runs on the supervisor, as do `manage archives SEED SECONDS` and
//! `manage storms SEED SECONDS`, which have no model; `manage guest …` is what runs in the
//! instances.
#![forbid(unsafe_code)]

mod archives;
mod driver;
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

use anyhow::bail;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["guest", words @ ..] => guest::run(words),
        ["drive", seed, seconds] => driver::run(seed, seconds),
        ["archives", seed, seconds] => archives::run(seed, seconds),
        ["storms", seed, seconds] => storms::run(seed, seconds),
        _ => (|| bail!("usage: manage drive|archives|storms SEED SECONDS"))(),
    };
    outcome.unwrap_or_else(|error| {
        println!("manage: {error:#}");
        ExitCode::from(99)
    })
}
