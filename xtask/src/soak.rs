//! `cargo xtask soak`: Debian's programs mixed at random in instances, results checked, and nothing
//! left behind (`docs/programs.md`).

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cleanup::Directory;
use crate::vm::{Addition, Ending, Machine, last_lines};
use crate::{build, packages, paths, rootfs};

/// Time limit of a machine beyond its time, in seconds: to start, for the last tasks, on a host
/// that is busy.
const TIMEOUT: u64 = 600;

/// Mix programs at random in instances and check their results
#[derive(Args)]
pub struct Arguments {
    /// How long, all numbers of processors together
    #[arg(long, default_value_t = 8, value_name = "N")]
    minutes: u64,
    /// Numbers of processors, one instance after the other
    #[arg(
        long,
        default_value = "1,2,4,8",
        value_delimiter = ',',
        value_name = "LIST"
    )]
    cpus: Vec<u32>,
    /// Seed of the order in which tasks run
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
}

/// Carries out `cargo xtask soak`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!(
        !arguments.cpus.is_empty(),
        "--cpus names no number of processors"
    );
    let seconds = arguments.minutes * 60 / arguments.cpus.len() as u64;
    let root = Root::make()?;
    let mut failed = false;
    for &cpus in &arguments.cpus {
        let log = paths::target().join(format!("soak-{cpus}-{}.log", std::process::id()));
        match soak(
            Machine {
                log,
                ..Machine::default()
            },
            &root,
            cpus,
            seconds,
            arguments.seed,
        ) {
            Ok(done) => println!("{cpus} processors: {done}"),
            Err(error) => {
                println!("{cpus} processors, seed {}: {error:#}", arguments.seed);
                failed = true;
            }
        }
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// Root file system of the instances: Debian's packages, and programs of our own that are built as
/// everybody's are.
pub struct Root {
    debian: PathBuf,
    programs: PathBuf,
    _directory: Directory,
}

impl Root {
    /// Gathers it.
    pub fn make() -> Result<Self> {
        let lists = [
            packages::BASE,
            packages::DEVELOPMENT,
            packages::SERVERS,
            packages::STRESS,
            &["python3"],
            packages::NODE,
        ];
        let directory = Directory::create()?;
        let programs = directory.join("soak.tar");
        let mut archive = tar::Builder::new(File::create(&programs)?);
        for program in build::go_http()?
            .into_iter()
            .chain([build::dynamic_test_program()?])
        {
            let name = program.file_name().context("a program without a name")?;
            archive
                .append_path_with_name(&program, name)
                .with_context(|| format!("cannot read {}", program.display()))?;
        }
        archive.into_inner()?;
        Ok(Self {
            debian: rootfs::cached(&lists)?,
            programs,
            _directory: directory,
        })
    }
}

/// Soaks one instance; returns what it says at its end.
///
/// # Errors
/// A wrong result, a task that does not end, something left behind, or a machine that does not get
/// that far; with everything that was said.
pub fn soak(
    mut machine: Machine,
    root: &Root,
    cpus: u32,
    seconds: u64,
    seed: u64,
) -> Result<String> {
    machine.hardware.cpus = cpus + 1;
    machine.hardware.memory = "4G".into();
    machine.timeout = Some(Duration::from_secs(seconds + TIMEOUT + 60));
    for (host, guest) in [(&root.debian, "/debian.tar"), (&root.programs, "/soak.tar")] {
        machine.additions.push(Addition {
            host: host.clone(),
            guest: guest.into(),
        });
    }
    let outer = format!(
        "timeout -s KILL {} skerry run --name soak --cpus {cpus} --mem 1536M --rootfs /debian.tar -- bash -c \"$0\" soak {seed} {seconds} {} < /soak.tar
         status=$?; [ $status = 0 ] || skerry logs --kernel soak | tail -n 60; exit $status",
        seconds + TIMEOUT,
        cpus + 1
    );
    machine.command = ["/bin/sh", "-c", &outer, include_str!("soak.sh")]
        .map(OsString::from)
        .to_vec();
    let run = machine.run_collected()?;
    let last = run.output.lines().last().unwrap_or_default();
    ensure!(
        run.ending == Ending::Exited(0) && last.starts_with("done "),
        "{:?}\n{}{}\nthe supervisor's log ends:\n{}",
        run.ending,
        run.output,
        run.complaints,
        last_lines(&machine.log, 25)
    );
    Ok(last.to_owned())
}
