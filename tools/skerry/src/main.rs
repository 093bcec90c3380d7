//! `skerry`: instances of the Skerry operating system, from the command line.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    skerry::cli::main()
}
