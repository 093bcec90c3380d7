//! `/init` of a test machine: runs the command that `cargo xtask vm` named and carries its standard
//! streams, its exit status and its terminal over COM2. It works the same on Skerry and on Linux,
//! and asks little of either: pipes, `poll`, `waitpid`, `SIGCHLD`, a serial line in raw mode.
#![forbid(unsafe_code)]

mod line;
mod pipes;
mod terminal;

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::{env, fs, io};

use rustix::mount::{MountFlags, mount};
use rustix::process::{WaitOptions, WaitStatus, wait};
use rustix::system::{RebootCommand, reboot};
use vmagent::config::{self, Config};

use crate::line::Line;

/// The environment every command starts with.
const ENVIRONMENT: [(&str, &str); 4] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
    ("USER", "root"),
    ("LANG", "C"),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().collect();
    if arguments
        .get(1)
        .is_some_and(|word| word == terminal::SESSION_OPTION)
    {
        return terminal::lead_session(&arguments[2..]);
    }
    let first_process = std::process::id() == 1;
    if first_process {
        mount_kernel_file_systems();
    }
    let outcome = serve();
    if let Err(error) = &outcome {
        eprintln!("vmagent: {error}");
    }
    if first_process {
        // Power is cut from here on: whatever the line still holds has been acknowledged by the
        // host.
        rustix::fs::sync();
        if let Err(error) = reboot(RebootCommand::PowerOff) {
            eprintln!("vmagent: cannot power off: {error}");
        }
    }
    if outcome.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Linux leaves these to the first process; Skerry has them mounted already, and then there is
/// nothing to do.
fn mount_kernel_file_systems() {
    for (kind, target, witness) in [
        ("proc", "/proc", "/proc/uptime"),
        ("sysfs", "/sys", "/sys/kernel"),
        ("devtmpfs", "/dev", "/dev/zero"),
    ] {
        if fs::metadata(witness).is_ok() {
            continue;
        }
        if let Err(error) = mount(kind, target, kind, MountFlags::NOSUID, c"") {
            eprintln!("vmagent: cannot mount {kind} on {target}: {error}");
        }
    }
}

fn serve() -> io::Result<()> {
    let config = fs::read(config::PATH).map_err(|error| named(config::PATH, error))?;
    let config = Config::decode(&config)
        .ok_or_else(|| io::Error::other(format!("{} makes no sense", config::PATH)))?;
    let mut line = Line::open()?;
    match config.terminal {
        None => pipes::run(&config, &mut line),
        Some(size) => terminal::run(&config, size, &mut line),
    }
}

/// A command that runs `words` in the environment of a test machine.
fn command(words: &[std::ffi::OsString]) -> Command {
    // Looked up here: a name without a path makes the standard library fork by way of a socket
    // pair, which the first kernel to be tested does not have yet.
    let mut command = Command::new(find(&words[0]));
    command
        .arg0(&words[0])
        .args(&words[1..])
        .env_clear()
        .envs(ENVIRONMENT);
    command
}

/// The program's file, looked for as a shell does; the name itself if there is none.
fn find(name: &OsStr) -> PathBuf {
    let search = ENVIRONMENT
        .iter()
        .find(|(key, _)| *key == "PATH")
        .map_or("", |(_, value)| value);
    let named = Path::new(name);
    if named.components().count() > 1 || named.has_root() {
        return named.into();
    }
    search
        .split(':')
        .map(|dir| Path::new(dir).join(name))
        .find(|file| file.exists())
        .unwrap_or_else(|| named.into())
}

/// The status a shell would report for a command that could not be started.
fn status_of_failed_start(error: &io::Error) -> i32 {
    if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}

/// Collects every child that has ended: as the first process, the agent inherits all orphans.
///
/// Returns the status of `child` if it was among them.
fn reap(child: u32, options: WaitOptions) -> io::Result<Option<i32>> {
    loop {
        match wait(options) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() as u32 == child => {
                return Ok(Some(shell_status(status)));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The exit status, or 128 + the signal.
fn shell_status(status: WaitStatus) -> i32 {
    let status = ExitStatus::from_raw(status.as_raw());
    status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(255)
}

/// `error`, with the name of what it happened to.
fn named(name: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}
