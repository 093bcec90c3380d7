//! `cargo xtask`: everything there is to do with Skerry on the host. `cargo xtask help` lists it.
#![forbid(unsafe_code)]

mod abi;
mod audit;
mod bench;
mod build;
mod check;
mod cleanup;
mod demo;
mod dependencies;
mod device_calls;
mod diff;
mod frames;
mod fuzz;
mod generated;
mod growth;
mod initramfs;
mod iso;
mod ksyms;
mod layers;
mod linux;
mod miri;
mod mutants;
mod packages;
mod pages;
mod paths;
mod qemu;
mod retired;
mod rootfs;
mod soak;
mod source;
mod style;
mod test;
mod trusted;
mod vm;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, boots, tests and measures Skerry.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the kernel image and the static tools that go into a machine
    Build,
    /// Boot a machine and run one command in it
    Vm(Box<vm::cli::Arguments>),
    /// Join two machines by a wire that can be made to lose, repeat, reorder and damage frames
    Wire(wire::Arguments),
    /// Boot a machine and show what Skerry does; this is `make run`
    Demo,
    /// Make a root file system of Debian packages: an archive, or the image of a disk
    Rootfs(rootfs::Arguments),
    /// Make a bootable image for BIOS and UEFI
    Iso,
    /// Build a Linux as small as it gets, for `bench` to compare with, from Debian's source
    Linux,
    /// Run the tests: the source's rules, the host's tests, scenarios in booted machines
    Test(test::Arguments),
    /// Run random programs of system calls on Linux and on Skerry, and show what differs
    Diff(diff::Arguments),
    /// Make random system calls with hostile arguments in an instance, or manage instances at
    /// random
    Fuzz(fuzz::Arguments),
    /// Mix programs at random in instances and check their results
    Soak(soak::Arguments),
    /// Change the source at random places and see which changes the tests notice
    Mutants(mutants::Arguments),
    /// Interpret the host tests of the trusted base with Miri
    Miri(miri::Arguments),
    /// Measure, beside Linux
    Bench(bench::Arguments),
    /// Show where the kernel's instructions go in one operation of a benchmark
    Profile(bench::profile::Arguments),
    #[command(name = bench::load::TASK, hide = true)]
    Load(bench::load::Arguments),
    /// Check formatting, lints, the rules of the house and the documentation
    Check,
    /// Write what the pages say that is made from the source: tables of calls, numbers
    Pages,
    /// Show the trusted base with its limits, and count the lines of each package
    Unsafe,
}

fn main() -> ExitCode {
    cleanup::install();
    let outcome = match Cli::parse().task {
        Task::Build => build::everything().map(|()| ExitCode::SUCCESS),
        Task::Vm(arguments) => return vm::cli::run(*arguments),
        Task::Wire(arguments) => wire::run(&arguments),
        Task::Demo => demo::run(),
        Task::Rootfs(arguments) => rootfs::run(&arguments),
        Task::Linux => linux::build().map(|image| {
            println!("{}", image.display());
            ExitCode::SUCCESS
        }),
        Task::Iso => iso::default_image().map(|image| {
            println!("{}", image.display());
            ExitCode::SUCCESS
        }),
        Task::Test(arguments) => test::run(arguments),
        Task::Diff(arguments) => diff::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Soak(arguments) => soak::run(&arguments),
        Task::Mutants(arguments) => mutants::run(&arguments),
        Task::Miri(arguments) => miri::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Profile(arguments) => bench::profile::run(&arguments),
        Task::Load(arguments) => bench::load::run(&arguments),
        Task::Check => return check::run(),
        Task::Pages => generated::write().map(|()| ExitCode::SUCCESS),
        Task::Unsafe => check::report_unsafe().map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
