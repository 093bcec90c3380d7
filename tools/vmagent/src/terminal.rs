//! A command with the serial line as its controlling terminal.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{WaitOptions, ioctl_tiocsctty, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::termios::{Winsize, tcsetwinsize};
use vmagent::{Config, Kind};

use crate::line::{self, Line};
use crate::{command, reap, status_of_failed_start};

/// Makes the agent lead a new session on the terminal and become the command that follows.
pub const SESSION_OPTION: &str = "--session";

/// Runs the command to its end; `size` is rows and columns.
pub fn run(config: &Config, size: (u16, u16), line: &mut Line) -> io::Result<()> {
    line.send_raw(config.nonce.as_bytes())?;
    line.send(Kind::Ready, &[])?;
    line.make_terminal()?;
    let (ws_row, ws_col) = size;
    if let Err(error) = tcsetwinsize(
        &*line,
        Winsize {
            ws_row,
            ws_col,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    ) {
        eprintln!("vmagent: cannot set the terminal's size: {error}");
    }
    let child = Command::new(std::env::current_exe()?)
        .arg(SESSION_OPTION)
        .args(&config.command)
        .spawn()?;
    // Waiting for this child ends with its status: there is no other way out of a wait that blocks.
    let status = reap(child.id(), WaitOptions::empty())?.unwrap_or(255);
    // The end of a session hangs its terminal up, for everyone who has it open.
    *line = Line::open()?;
    line.send_raw(config.nonce.as_bytes())?;
    line.finish(status)
}

/// The child's half: does not return if the command starts.
pub fn lead_session(words: &[OsString]) -> ExitCode {
    let error = match become_command(words) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let name = words
        .first()
        .map(|word| word.display().to_string())
        .unwrap_or_default();
    eprintln!("vmagent: {name}: {error}");
    ExitCode::from(status_of_failed_start(&error) as u8)
}

fn become_command(words: &[OsString]) -> io::Result<std::convert::Infallible> {
    if words.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    setsid()?;
    let terminal = OpenOptions::new().read(true).write(true).open(line::PATH)?;
    // Opening a terminal as a session leader without one makes it the controlling one; asking again
    // does no harm.
    ioctl_tiocsctty(&terminal)?;
    dup2_stdin(&terminal)?;
    dup2_stdout(&terminal)?;
    dup2_stderr(&terminal)?;
    Err(command(words).env("TERM", "linux").exec())
}
