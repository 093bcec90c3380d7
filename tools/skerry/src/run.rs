//! `run`, `start -a` and `attach`: an instance's program as if it ran here.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::SystemTime;

use abi::dev::{self, Status};
use signal_hook::consts::signal::SIGWINCH;

use crate::device::{Device, Stream};
use crate::failure::{Context, Failure, Result, STATUS_TOOL_FAILED};
use crate::instances::{self, CreateOptions, label};
use crate::restart::Policy;
use crate::state::Store;
use crate::streams::{Impatience, Signals, Sink, Streams};
use crate::terminal::{self, RawMode};
use crate::{logs, managed, monitor};

/// Lines of the kernel log shown when an instance panics.
const PANIC_LOG_LINES: usize = 12;
/// Text with which an instance's kernel logs that a program could not be executed, before the
/// program's name and the reason.
const COULD_NOT_RUN: &str = ": cannot run ";
/// Text with which an instance's kernel logs that the archive is no root file system, before the
/// reason.
const BAD_ROOT: &str = ": cannot use the root file system: ";
/// Status of a program whose instance was halted: killed by `SIGKILL`.
const STATUS_KILLED: u8 = 128 + 9;

/// The tool's own streams.
pub struct Stdio<'a> {
    /// Standard input; `None`: the instance gets none.
    pub input: Option<BorrowedFd<'a>>,
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
    /// Whether signals are passed on and terminals made raw.
    pub signals: bool,
}

/// Options of `skerry run`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Do not wait.
    pub detach: bool,
    /// Remove the instance when it has ended.
    pub remove: bool,
    /// Whether the program has a terminal.
    pub terminal: bool,
    /// Show its system calls.
    pub trace: bool,
    /// Policy for its end.
    pub restart: Policy,
}

/// Creates, starts and accompanies an instance; returns its program's status.
///
/// # Errors
/// If Skerry fails; its own status is then 125.
pub fn run(
    device: &dyn Device,
    store: &Store,
    request: &CreateOptions,
    options: Options,
    asked: SystemTime,
    mut here: Stdio<'_>,
) -> Result<u8> {
    let created =
        managed::create(device, store, request, options.restart, asked).map_err(Failure::ours)?;
    let watched = match monitor::is_needed(request, options.restart) {
        true => monitor::ensure(store),
        false => Ok(()),
    };
    let started = watched.and_then(|()| {
        if !options.detach {
            return attach_until_end(device, &created, options, Join::Start, &mut here);
        }
        instances::start(device, &created)?;
        writeln!(here.out, "{}", label(&created))
            .context(|| "standard output")
            .map(|()| 0)
    });
    let remove = options.remove && !options.detach;
    let never_ran = started.is_err()
        && device
            .status(created.id)
            .is_ok_and(|now| now.state == dev::STATE_CREATED);
    if remove || never_ran {
        // Its end is known by now; what cannot be removed is shown by `ls`.
        if device.control(dev::DESTROY, created.id, 0).is_ok() {
            store.remove(created.id);
        }
    }
    started.map_err(Failure::ours)
}

/// Connects to a running instance until it ends; returns its program's status.
///
/// # Errors
/// If it does not run.
pub fn attach(
    device: &dyn Device,
    status: &Status,
    options: Options,
    mut here: Stdio<'_>,
) -> Result<u8> {
    match status.state {
        dev::STATE_RUNNING if status.paused != dev::PAUSED_NO => Err(Failure::new(format!(
            "{0} is paused: `skerry unpause {0}` has it go on",
            label(status)
        ))),
        dev::STATE_RUNNING => attach_until_end(device, status, options, Join::Running, &mut here),
        dev::STATE_CREATED => Err(Failure::new(format!(
            "{0} was not started: use `skerry start {0}`",
            label(status)
        ))),
        state => Err(Failure::new(format!(
            "{0} has {1}: `skerry logs {0}` shows its output",
            label(status),
            dev::state_name(state)
        ))),
    }
}

/// Moment at which one connects to an instance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Before it starts: it is started then.
    Start,
    /// While it runs.
    Running,
}

/// Connects to an instance, starts it if it is to be, and stays until its end.
///
/// # Errors
/// If Skerry fails.
pub fn attach_until_end(
    device: &dyn Device,
    status: &Status,
    options: Options,
    join: Join,
    here: &mut Stdio<'_>,
) -> Result<u8> {
    let (id, name) = (status.id, label(status));
    check_terminal(here.input, options.terminal)?;
    let cannot = || format!("cannot connect to {name}");
    let output = dev::ATTACH_FOLLOW
        | dev::ATTACH_PRESSURE
        | match join {
            Join::Start => dev::ATTACH_FROM_START,
            Join::Running => 0,
        };
    let mut signals = if here.signals {
        Some(Signals::new().context(cannot)?)
    } else {
        None
    };
    let mut streams = Streams::new(&mut *here.out, &mut *here.err);
    streams.output(
        device.attach(id, Stream::Stdout, output).context(cannot)?,
        Sink::Out,
    );
    streams.output(
        device.attach(id, Stream::Stderr, output).context(cannot)?,
        Sink::Err,
    );
    if options.trace {
        streams.output(
            device
                .attach(id, Stream::Klog, output & !dev::ATTACH_PRESSURE)
                .context(cannot)?,
            Sink::Err,
        );
    }
    let stdin = device.attach(id, Stream::Stdin, 0).context(cannot)?;
    match here.input {
        Some(input) => streams.input(input, stdin).context(cannot)?,
        // Dropping the only writer is the end of input.
        None => drop(stdin),
    }
    let raw = enter_raw_mode(here.input.filter(|_| here.signals), options.terminal)?;
    let tell_size = || {
        if options.terminal
            && let Some(size) = terminal::size(io::stdout().as_fd())
        {
            // Its terminal keeps the size it has: nothing else depends on it.
            let _ = device.control(dev::WINSIZE, id, size);
        }
    };
    // First, so that the program finds it whenever it looks.
    tell_size();
    if join == Join::Start {
        instances::start(device, status)?;
    }
    let mut impatience = Impatience::default();
    let mut on_signal = |signal: i32| {
        if signal == SIGWINCH {
            tell_size();
            return Ok(());
        }
        let passed = if impatience.is_over_after(signal) {
            device.control(dev::HALT, id, 0)
        } else {
            device.control(dev::SIGNAL, id, signal as u32)
        };
        match passed {
            // It has ended in this moment, or does not listen: the next signal may be the last.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EAGAIN)) => {
                Ok(())
            }
            other => other,
        }
    };
    streams
        .run(signals.as_mut(), &mut on_signal)
        .context(|| format!("lost the connection to {name}"))?;
    drop(streams);
    drop(raw);
    device
        .wait(id, None)
        .context(|| format!("cannot wait for {name}"))?;
    let ended = device
        .status(id)
        .context(|| format!("cannot look at {name}"))?;
    exit_status(device, &ended, here.err)
}

/// Refuses to give a program a terminal whose input here is none.
///
/// # Errors
/// Says so.
pub(crate) fn check_terminal(input: Option<BorrowedFd<'_>>, terminal: bool) -> Result<()> {
    if terminal && input.is_some_and(|input| !input.is_terminal()) {
        return Err(Failure::new(
            "standard input is not a terminal: leave --tty out",
        ));
    }
    Ok(())
}

/// Makes the terminal here raw for a program that has one of its own.
pub(crate) fn enter_raw_mode(
    input: Option<BorrowedFd<'_>>,
    terminal: bool,
) -> Result<Option<RawMode<'_>>> {
    match input.filter(|_| terminal) {
        Some(input) => RawMode::enter(input).context(|| "the terminal"),
        None => Ok(None),
    }
}

/// Text of the last line of an instance's kernel log with `mark` in it, from behind that on.
fn last_log_text(device: &dyn Device, id: u32, mark: &str) -> Option<String> {
    let log = logs::read(device, id, Stream::Klog).unwrap_or_default();
    String::from_utf8_lossy(&log)
        .lines()
        .rev()
        .find_map(|line| line.split_once(mark).map(|(_, why)| why.to_owned()))
}

/// Exit status of the tool for the way an instance ended; explains anything but its program's own
/// end.
///
/// # Errors
/// If that was no end of its program.
pub fn exit_status(device: &dyn Device, ended: &Status, err: &mut dyn Write) -> Result<u8> {
    let name = label(ended);
    match ended.state {
        dev::STATE_EXITED
            if ended.start_to_user_ns == 0 && matches!(ended.exit_code, 126 | 127) =>
        {
            let why = last_log_text(device, ended.id, COULD_NOT_RUN);
            Err(Failure {
                message: format!(
                    "cannot run {}",
                    why.unwrap_or_else(|| format!("the program of {name}"))
                ),
                status: ended.exit_code as u8,
            })
        }
        dev::STATE_EXITED
            if ended.start_to_user_ns == 0 && ended.exit_code == i32::from(STATUS_TOOL_FAILED) =>
        {
            let why = last_log_text(device, ended.id, BAD_ROOT);
            Err(Failure {
                message: why.map_or_else(
                    || format!("{name} could not be set up"),
                    |why| format!("the root file system of {name} cannot be used: {why}"),
                ),
                status: STATUS_TOOL_FAILED,
            })
        }
        dev::STATE_EXITED => Ok(u8::try_from(ended.exit_code).unwrap_or(STATUS_TOOL_FAILED)),
        dev::STATE_HALTED => Ok(STATUS_KILLED),
        dev::STATE_PANICKED => {
            let log = logs::read(device, ended.id, Stream::Klog).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            let lines: Vec<_> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(PANIC_LOG_LINES)..] {
                let _ = writeln!(err, "{line}");
            }
            Err(Failure {
                message: format!("{name} panicked; the last lines of its kernel log are above"),
                status: STATUS_TOOL_FAILED,
            })
        }
        state => {
            let detail = dev::text(&ended.detail).unwrap_or_default();
            Err(Failure {
                message: format!("{name} has {}: {detail}", dev::state_name(state)),
                status: STATUS_TOOL_FAILED,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Mock, TestDirectory, request};

    fn run_here(mock: &Mock, command: &[&str], options: Options) -> (Result<u8>, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let here = Stdio {
            input: None,
            out: &mut out,
            err: &mut err,
            signals: false,
        };
        let directory = TestDirectory::new();
        let result = run(
            mock,
            &Store::at(&directory.0, "boot").unwrap(),
            &request("box", command),
            options,
            SystemTime::now(),
            here,
        );
        (
            result,
            String::from_utf8(out).unwrap(),
            String::from_utf8(err).unwrap(),
        )
    }

    #[test]
    fn output_and_status_are_the_programs() {
        let mock = Mock::new(4, 1 << 30);
        let (status, out, err) = run_here(
            &mock,
            &["say", "hello", "7"],
            Options {
                remove: true,
                ..Options::default()
            },
        );
        assert_eq!(
            (status.unwrap(), out.as_str(), err.as_str()),
            (7, "hello", "errors of hello")
        );
        assert!(mock.list().unwrap().is_empty(), "--rm");
        let (status, ..) = run_here(&mock, &["say", "hello", "0"], Options::default());
        assert_eq!((status.unwrap(), mock.list().unwrap().len()), (0, 1));
    }

    #[test]
    fn a_panic_is_ours_and_shows_the_log() {
        let mock = Mock::new(4, 1 << 30);
        let (status, _, err) = run_here(&mock, &["panic"], Options::default());
        let failure = status.unwrap_err();
        assert_eq!(failure.status, 125);
        assert!(
            failure.message.contains("panicked") && err.contains("last words"),
            "{failure}, {err}"
        );
    }

    #[test]
    fn detached_only_tells_the_name() {
        let mock = Mock::new(4, 1 << 30);
        let (status, out, _) = run_here(
            &mock,
            &["sleep", "9"],
            Options {
                detach: true,
                ..Options::default()
            },
        );
        assert_eq!((status.unwrap(), out.as_str()), (0, "box\n"));
        assert_eq!(
            instances::find(&mock, "box").unwrap().state,
            dev::STATE_RUNNING
        );
    }

    #[test]
    fn a_shortage_is_status_125() {
        let mock = Mock::new(1, 1 << 30);
        let (status, ..) = run_here(&mock, &["true"], Options::default());
        assert_eq!(status.unwrap_err().status, 125);
    }
}
