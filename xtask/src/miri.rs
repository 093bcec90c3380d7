//! `cargo xtask miri`: the host tests of the trusted base, interpreted by Miri, which sees
//! undefined behaviour and data races that no run shows.
//!
//! Miri is part of a nightly Rust, which nothing else here needs, and compiles the standard library
//! for itself. Its source comes with the toolchain (`rust-src`), or, where rustup has none, from
//! Debian's package of the same version (`tools/setup.sh miri`).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::paths;

/// Crates whose tests are interpreted, with arguments of their test programs: those of the trusted
/// base. Where `unsafe` is forbidden Miri has nothing to find.
const CRATES: &[(&str, &[&str])] = &[
    ("lfmutex", &[]),
    ("rcu", &[]),
    ("slab", &[]),
    // The tests of sites leak the places they make up.
    ("trace", &["--skip", "sites"]),
    // The others go through megabytes byte by byte, or through thousands of schedules: hours.
    (
        "guard",
        &[
            "arch",
            "irq",
            "mem::direct",
            "mem::early",
            "mem::heap",
            "mem::phys",
        ],
    ),
];

/// Interpret the host tests of the trusted base with Miri
#[derive(Args)]
pub struct Arguments {
    /// Crates to test, and not all
    #[arg(value_name = "CRATE")]
    crates: Vec<String>,
    /// Rust that has Miri, as rustup names it
    #[arg(long, default_value = "nightly", value_name = "NAME")]
    toolchain: String,
}

/// Carries out `cargo xtask miri`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let name = &arguments.toolchain;
    let names: Vec<_> = CRATES.iter().map(|(name, _)| *name).collect();
    for wanted in &arguments.crates {
        ensure!(
            names.contains(&wanted.as_str()),
            "{wanted} is none of the crates that Miri is used for: {}",
            names.join(", ")
        );
    }
    let library = library(name)?;
    let mut failed = Vec::new();
    for (one, choice) in CRATES {
        if !arguments.crates.is_empty() && !arguments.crates.iter().any(|chosen| chosen == one) {
            continue;
        }
        println!("miri: {one}");
        let status = Command::new("cargo")
            .arg(format!("+{name}"))
            .args(["miri", "test", "--lib", "--package", one, "--"])
            .args(*choice)
            .current_dir(paths::root())
            // The compiler that started this program would be taken for Miri's.
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("RUSTC")
            .env_remove("CARGO")
            .env("MIRI_LIB_SRC", &library)
            // The kernel makes pointers of physical addresses; the clock is the host's.
            .env(
                "MIRIFLAGS",
                "-Zmiri-permissive-provenance -Zmiri-disable-isolation",
            )
            .env("PROPTEST_CASES", "2")
            .env("CARGO_TARGET_DIR", paths::target().join("miri"))
            .env("VDSO_RUSTC", pinned_rustc()?)
            .status()
            .context("cannot start cargo")?;
        if !status.success() {
            failed.push(*one);
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("miri: failed: {}", failed.join(", "));
    println!("repeat with: cargo xtask miri {}", failed.join(" "));
    Ok(ExitCode::FAILURE)
}

/// Source of the standard library of the Rust that rustup calls `name`.
fn library(name: &str) -> Result<PathBuf> {
    let sysroot = output(
        Command::new("rustup").args(["run", name, "rustc", "--print", "sysroot"]),
        &format!("rustup has no Rust named {name}, which Miri is part of"),
    )?;
    output(
        Command::new("rustup").args(["run", name, "cargo", "miri", "--version"]),
        &format!("{name} has no Miri: `rustup component add miri rust-src --toolchain {name}`"),
    )?;
    let own = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
    let debian = paths::target().join("miri-src/library");
    match [own, debian].into_iter().find(|one| one.is_dir()) {
        Some(found) => Ok(found),
        None => bail!(
            "no source of {name}'s standard library: `rustup component add rust-src --toolchain \
             {name}`, or `tools/setup.sh miri`, which takes Debian's"
        ),
    }
}

/// The compiler that builds everything else, which knows how to make code for programs' memory.
fn pinned_rustc() -> Result<PathBuf> {
    let sysroot = output(
        Command::new("rustc")
            .args(["--print", "sysroot"])
            .current_dir(paths::root()),
        "the pinned Rust is not there: `make setup`",
    )?;
    Ok(Path::new(&sysroot).join("bin/rustc"))
}

/// Output of a command; `failure` says what is wrong if it fails.
fn output(command: &mut Command, failure: &str) -> Result<String> {
    let output = command.output().with_context(|| failure.to_owned())?;
    ensure!(output.status.success(), "{failure}");
    Ok(String::from_utf8(output.stdout)
        .context("a name that is not text")?
        .trim()
        .to_owned())
}
