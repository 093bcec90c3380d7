//! Building: the kernel image, and the static programs that go into a machine.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::{frames, ksyms, paths};

/// The target of programs that run in a machine.
const MACHINE_TARGET: &str = "x86_64-unknown-linux-gnu";

/// The target of the kernel.
pub const KERNEL_TARGET: &str = "x86_64-unknown-none";

/// Static Linux programs of the workspace, built for the inside of a machine.
pub struct Tools {
    directory: PathBuf,
}

impl Tools {
    /// The program `name`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Builds everything a machine needs.
pub fn everything() -> Result<()> {
    tools()?;
    let kernel = kernel()?;
    println!("{}", kernel.display());
    Ok(())
}

/// The environment variable that names the Cargo profile of the kernel; `release` where it is not
/// set. `quick` builds in seconds.
const PROFILE_VARIABLE: &str = "SKERRY_PROFILE";
/// The profile of programs that test.
pub const TESTS_PROFILE: &str = "tests";
/// The profile of a kernel that checks itself; a feature of the kernel goes with it.
const CHECKED_PROFILE: &str = "checked";

/// Builds the kernel image with its symbol table; returns its path.
pub fn kernel() -> Result<PathBuf> {
    // Two scenarios that begin at the same time must not both write the file by which it is
    // replaced.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let target = paths::target();
    let profile = env::var(PROFILE_VARIABLE).unwrap_or_else(|_| "release".to_owned());
    let mut cargo = cargo();
    cargo.args([
        "build",
        "--quiet",
        "--profile",
        &profile,
        "-p",
        "skerry-kernel",
        "--target",
        KERNEL_TARGET,
    ]);
    if profile == CHECKED_PROFILE {
        cargo.args(["--features", "checked"]);
    }
    run(cargo.arg("--target-dir").arg(&target))?;
    let linked = target
        .join(KERNEL_TARGET)
        .join(&profile)
        .join("skerry-kernel");
    let mut image =
        fs::read(&linked).with_context(|| format!("cannot read {}", linked.display()))?;
    if profile == "release" {
        frames::check(&image)?;
    }
    ksyms::fill(&mut image)?;
    let finished = target.join("skerry.elf");
    // Another machine may be starting from the image at this moment: it is replaced whole, and only
    // by a different one.
    if fs::read(&finished).is_ok_and(|old| old == image) {
        return Ok(finished);
    }
    let fresh = target.join(format!("skerry.elf.{}", std::process::id()));
    fs::write(&fresh, image)
        .and_then(|()| fs::rename(&fresh, &finished))
        .with_context(|| format!("cannot write {}", finished.display()))?;
    Ok(finished)
}

/// Builds the static tools: `vmagent` and `skerry`.
pub fn tools() -> Result<Tools> {
    programs(&["vmagent", "skerry"], "release")
}

/// Builds the test program in Rust.
pub fn test_programs() -> Result<Tools> {
    programs(&["machine-tests"], TESTS_PROFILE)
}

/// Builds the program that `cargo xtask diff` runs in machines; returns its path.
pub fn diff_executor() -> Result<PathBuf> {
    Ok(programs(&["differential"], TESTS_PROFILE)?.program("diff-executor"))
}

/// Builds the programs that test disks.
pub fn disk_tests() -> Result<Tools> {
    programs(&["disk-tests"], TESTS_PROFILE)
}

/// Builds the tests of file systems by others, `pjdfstest`, unless they are there.
pub fn pjdfstest() -> Result<PathBuf> {
    const VERSION: &str = "0.2.2";
    let root = paths::target().join(format!("pjdfstest-{VERSION}"));
    let program = root.join("bin/pjdfstest");
    if !program.exists() {
        let mut cargo = cargo();
        cargo.args(["install", "--quiet", "--locked", "pjdfstest", "--version"]);
        run(cargo.arg(format!("={VERSION}")).arg("--root").arg(&root))?;
    }
    Ok(program)
}

/// Builds the program that drives the tool at random.
pub fn manage_program() -> Result<Tools> {
    programs(&["manage"], TESTS_PROFILE)
}

/// Builds the programs that benchmarks run.
pub fn bench_programs() -> Result<Tools> {
    programs(
        &["first-instruction", "hotplug", "messages", "requests"],
        "release",
    )
}

/// Builds the benchmark of `bench/micro`: the first process that measures, and the program that it
/// executes.
pub fn micro() -> Result<(PathBuf, PathBuf)> {
    let source = paths::root().join("bench/micro");
    let nothing = compile(
        "nothing",
        &["-static", "-nostdlib"],
        &[source.join("nothing.c")],
    )?;
    let mut files = Vec::new();
    for entry in
        fs::read_dir(&source).with_context(|| format!("cannot read {}", source.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c")
            && !path.ends_with("nothing.c")
        {
            files.push(path);
        }
    }
    files.sort();
    let tasks = paths::root().join("tools/tasks");
    files.push(tasks.join("tasks.c"));
    Ok((
        compile(
            "micro",
            &["-static", "-pthread", "-I", &tasks.to_string_lossy()],
            &files,
        )?,
        nothing,
    ))
}

/// Builds the plugin of `bench/profile` that counts each instruction; returns its path.
pub fn profile_plugin() -> Result<PathBuf> {
    plugin("profile.so", "bench/profile/plugin.c")
}

/// Builds the plugin of `bench/profile` that counts what a processor executes between marks;
/// returns its path.
pub fn samples_plugin() -> Result<PathBuf> {
    plugin("samples.so", "bench/profile/samples.c")
}

fn plugin(name: &str, source: &str) -> Result<PathBuf> {
    compile(name, &["-fPIC", "-shared"], &[paths::root().join(source)])
}

/// Builds the program of `bench/isolation`; returns its path.
pub fn isolation_program() -> Result<PathBuf> {
    let source = paths::root().join("bench/isolation/main.c");
    compile("isolation", &["-static"], &[source])
}

/// Compiles C files into one program of the target directory, which is replaced whole, because
/// another xtask may be reading it.
fn compile(name: &str, flags: &[&str], files: &[PathBuf]) -> Result<PathBuf> {
    let target = paths::target().join("machine");
    fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()))?;
    let (program, fresh) = (
        target.join(name),
        target.join(format!("{name}.{}", std::process::id())),
    );
    run(Command::new("cc")
        .args(["-std=gnu17", "-O2", "-Wall", "-Wextra"])
        .args(flags)
        .arg("-o")
        .arg(&fresh)
        .args(files))
    .context("the C compiler (package gcc; `make setup` installs it)")?;
    fs::rename(&fresh, &program).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}

/// Builds the test program in Go; returns its path.
pub fn go_test_program() -> Result<PathBuf> {
    go("go-tests", "tests/programs/go", Cgo::Off)
}

/// Builds Go's HTTP server and clients twice: without the C library, and linked with it
/// dynamically; returns the paths.
pub fn go_http() -> Result<[PathBuf; 2]> {
    Ok([
        go("http-static", "tests/cases/debian/http", Cgo::Off)?,
        go("http-cgo", "tests/cases/debian/http", Cgo::On)?,
    ])
}

/// Use of the C library by a program in Go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cgo {
    On,
    Off,
}

fn go(name: &str, source: &str, cgo: Cgo) -> Result<PathBuf> {
    let program = paths::target().join("machine").join(name);
    run(Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg("main.go")
        .current_dir(paths::root().join(source))
        .envs([
            ("CGO_ENABLED", if cgo == Cgo::On { "1" } else { "0" }),
            ("GOFLAGS", ""),
            ("GO111MODULE", "off"),
        ]))
    .context("a test program in Go (package golang-go; `make setup` installs it)")?;
    Ok(program)
}

/// Builds the test program in Rust as distributions would, linked with the host's C library
/// dynamically; returns its path.
pub fn dynamic_test_program() -> Result<PathBuf> {
    let directory = paths::target().join("dynamic");
    run(cargo()
        .args([
            "build",
            "--quiet",
            "--profile",
            TESTS_PROFILE,
            "--target",
            MACHINE_TARGET,
            "-p",
            "machine-tests",
            "--target-dir",
        ])
        .arg(&directory)
        .env_remove("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS"))?;
    Ok(directory
        .join(MACHINE_TARGET)
        .join(TESTS_PROFILE)
        .join("machine-tests"))
}

/// Builds programs of the workspace as static Linux programs, with a profile of Cargo.toml.
fn programs(names: &[&str], profile: &str) -> Result<Tools> {
    let directory = paths::target().join("machine");
    let mut cargo = cargo();
    cargo
        .args([
            "build",
            "--quiet",
            "--profile",
            profile,
            "--target",
            MACHINE_TARGET,
        ])
        .arg("--target-dir")
        .arg(&directory);
    for name in names {
        cargo.args(["-p", name]);
    }
    cargo.env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
        "-Ctarget-feature=+crt-static -Crelocation-model=static",
    );
    run(&mut cargo)?;
    Ok(Tools {
        directory: directory.join(MACHINE_TARGET).join(profile),
    })
}

/// The Cargo that runs xtask.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::root());
    cargo
}

/// Runs a command to a successful end.
pub fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name} failed ({status}): {command:?}");
    Ok(())
}
