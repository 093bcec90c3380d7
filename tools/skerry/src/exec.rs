//! `exec`: a program beside the first one of a running instance, as if it ran here.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use abi::boot;
use abi::dev::{self, Exec, ExecControl, ExecState, Status};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGWINCH};
use zerocopy::IntoBytes;

use crate::device::{Device, Stream};
use crate::failure::{Context, Failure, Result, plain};
use crate::instances::{label, resolved_env};
use crate::run::{Stdio, check_terminal, enter_raw_mode};
use crate::streams::{Impatience, Signals, Sink, Streams, wait_readable};
use crate::terminal;

/// Interval between looks at an instance that has not answered.
const LOOK: Duration = Duration::from_secs(1);

/// Options of `skerry exec`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Do not wait.
    pub detach: bool,
    /// Pass standard input on.
    pub interactive: bool,
    /// Whether the program has a terminal.
    pub terminal: bool,
    /// More environment: `NAME=value`, or `NAME` for this process's value.
    pub env: Vec<String>,
    /// Working directory; the first program's without.
    pub directory: Option<String>,
    /// User and group.
    pub user: (u32, u32),
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// Reads a user as `docker exec` does, but for names.
///
/// # Errors
/// Says what a user looks like.
pub fn parse_user(text: &str) -> std::result::Result<(u32, u32), String> {
    let (user, group) = text.split_once(':').unwrap_or((text, "0"));
    match (user.parse(), group.parse()) {
        (Ok(user), Ok(group)) => Ok((user, group)),
        _ => Err("give numbers, UID or UID:GID: only the instance knows names".into()),
    }
}

/// The state of a program, as the device tells it.
struct Program<'a> {
    device: &'a dyn Device,
    id: u32,
    name: &'a str,
    options: &'a Options,
    handle: File,
    signals: Option<Signals>,
    impatience: Impatience,
    /// Whether the instance has said that it runs; until then signals are kept for it.
    runs: bool,
    early: Vec<i32>,
}

/// Runs a program in an instance; returns its status.
///
/// # Errors
/// Why it is not run, with the statuses of `docker exec`.
pub fn exec(
    device: &dyn Device,
    status: &Status,
    options: &Options,
    here: &mut Stdio<'_>,
) -> Result<u8> {
    let name = label(status);
    if status.state != dev::STATE_RUNNING {
        return Err(Failure::new(format!(
            "{name} is {}: a program can be run in a running instance only",
            dev::state_name(status.state)
        )));
    }
    let input = here.input.filter(|_| options.interactive);
    check_terminal(input, options.terminal)?;
    let signals = match here.signals {
        true => Some(Signals::new().context(|| "signals")?),
        false => None,
    };
    let mut call = Exec {
        id: status.id,
        flags: if options.detach {
            dev::EXEC_DETACHED
        } else {
            0
        },
        user: options.user.0,
        group: options.user.1,
        winsize: here_size(options),
        ..Exec::default()
    };
    let handle = device
        .exec(&mut call, &request(options))
        .map_err(|error| refused(name, &call, &error))?;
    let mut program = Program {
        device,
        id: status.id,
        name,
        options,
        handle: handle.into(),
        signals,
        impatience: Impatience::default(),
        runs: false,
        early: Vec::new(),
    };
    let first = program.next()?;
    match first.state {
        dev::EXEC_REFUSED => return Err(cannot_run(options, first.value)),
        dev::EXEC_STARTED if options.detach => return Ok(0),
        _ => program.deliver_early()?,
    }
    let open = |stream| {
        let opened = device.attach_exec(status.id, call.number, stream);
        opened.context(|| format!("cannot connect to {name}"))
    };
    let mut streams = Streams::new(&mut *here.out, &mut *here.err);
    streams.output(open(Stream::Stdout)?, Sink::Out);
    streams.output(open(Stream::Stderr)?, Sink::Err);
    let stdin = open(Stream::Stdin)?;
    match input {
        Some(input) => {
            let connected = streams.input(input, stdin);
            connected.context(|| format!("cannot connect to {name}"))?;
        }
        // Dropping the only writer is the end of input.
        None => drop(stdin),
    }
    let raw = enter_raw_mode(input.filter(|_| here.signals), options.terminal)?;
    let mut signals = program.signals.take();
    let moved = streams.run(signals.as_mut(), &mut |signal| program.pass_on(signal));
    program.signals = signals;
    moved.map_err(|error| left(name, &error))?;
    drop(streams);
    drop(raw);
    let mut last = first;
    while last.state != dev::EXEC_ENDED {
        last = program.next()?;
    }
    Ok(u8::try_from(last.value).unwrap_or(u8::MAX))
}

/// Size of the terminal here, for that of the program; 0 if there is none.
fn here_size(options: &Options) -> u32 {
    match options.terminal {
        true => terminal::size(io::stdout()).unwrap_or(0),
        false => 0,
    }
}

/// The request, as the instance's kernel reads it.
fn request(options: &Options) -> Vec<u8> {
    let inherited = |name: &str| std::env::var(name).ok();
    let variables = resolved_env(options.env.clone(), options.terminal, inherited);
    let mut request = Vec::new();
    let flags = match options.terminal {
        true => boot::FLAG_TERMINAL,
        false => 0,
    };
    boot::write(
        flags,
        options.directory.as_deref().unwrap_or_default(),
        "",
        options.command.iter().map(String::as_bytes),
        variables.iter().map(String::as_bytes),
        |bytes| request.extend_from_slice(bytes),
    );
    request
}

/// Failure for a program that was not asked for: the reason and the remedy.
fn refused(name: &str, call: &Exec, error: &io::Error) -> Failure {
    Failure::new(match call.reason {
        dev::REASON_PAUSED => format!("{name} is paused: `skerry unpause {name}` first"),
        dev::REASON_HUNG => format!(
            "{name} hangs: `skerry inspect {name}` shows where, `skerry stop --force {name}` ends it"
        ),
        dev::REASON_EXECS => format!(
            "as many programs are at work in {name} as may be beside its first one ({}): wait for \
             one to end",
            abi::exec::EXECS
        ),
        dev::REASON_BOOTING => {
            format!("the program of {name} has not begun: try again when it has")
        }
        _ if error.raw_os_error() == Some(libc::E2BIG) => format!(
            "the command and its environment are longer than {} bytes",
            abi::exec::REQUEST_BYTES
        ),
        _ if error.raw_os_error() == Some(libc::ESRCH) => {
            format!("{name} does not run: a program can be run in a running instance only")
        }
        _ => format!("cannot run a program in {name}: {}", plain(error)),
    })
}

/// Failure for a program that the instance could not execute.
fn cannot_run(options: &Options, errno: u32) -> Failure {
    let errno = i32::try_from(errno).unwrap_or(libc::EIO);
    let program = options.command.first().map_or("", String::as_str);
    let error = io::Error::from_raw_os_error(errno);
    Failure {
        message: format!("cannot run {program}: {}", plain(&error)),
        status: if errno == libc::ENOENT { 127 } else { 126 },
    }
}

/// Failure for a program that its user did not wait for.
fn left(name: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::Interrupted => Failure {
            message: format!("left the program in {name}, which is told so by SIGHUP"),
            status: 128 + SIGINT as u8,
        },
        _ => Failure::new(format!("lost the connection to {name}: {}", plain(error))),
    }
}

impl Program<'_> {
    /// Waits for its next state.
    fn next(&mut self) -> Result<ExecState> {
        loop {
            if let Some(signals) = &mut self.signals {
                for signal in signals.take() {
                    self.pass_on(signal)
                        .map_err(|error| left(self.name, &error))?;
                }
            }
            let lost = || format!("lost the connection to {}", self.name);
            if wait_readable(&self.handle, self.signals.as_ref(), LOOK).context(lost)? {
                let mut state = ExecState::default();
                let count = self.handle.read(state.as_mut_bytes()).context(lost)?;
                return match count {
                    0 => Err(Failure::new(format!("{} says no more", self.name))),
                    _ => Ok(state),
                };
            }
            let now = self.device.status(self.id).context(lost)?;
            if now.state == dev::STATE_RUNNING && now.health == dev::HEALTH_HUNG {
                return Err(Failure::new(format!(
                    "{0} hangs, and does not answer: `skerry inspect {0}` shows where",
                    self.name
                )));
            }
        }
    }

    /// Delivers what came before the program ran.
    fn deliver_early(&mut self) -> Result<()> {
        self.runs = true;
        let early = std::mem::take(&mut self.early);
        early
            .into_iter()
            .try_for_each(|signal| self.deliver(signal))
            .map_err(|error| left(self.name, &error))
    }

    /// Passes a signal on, unless it has the tool leave the program.
    fn pass_on(&mut self, signal: i32) -> io::Result<()> {
        if signal == SIGWINCH {
            return match here_size(self.options) {
                0 => Ok(()),
                winsize => self.tell(ExecControl { signal: 0, winsize }),
            };
        }
        if self.impatience.is_over_after(signal) || signal == SIGHUP {
            return Err(ErrorKind::Interrupted.into());
        }
        if !self.runs {
            self.early.push(signal);
            return Ok(());
        }
        self.deliver(signal)
    }

    fn deliver(&mut self, signal: i32) -> io::Result<()> {
        self.tell(ExecControl {
            signal: signal as u32,
            winsize: 0,
        })
    }

    fn tell(&mut self, control: ExecControl) -> io::Result<()> {
        match self.handle.write(control.as_bytes()) {
            // It has ended in this moment, or its instance does not listen.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ESRCH | libc::EAGAIN | libc::ENOENT)
                ) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{create, find, start};
    use crate::mock::{Mock, request as instance};

    fn in_box(mock: &Mock, options: &Options) -> (Result<u8>, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut here = Stdio {
            input: None,
            out: &mut out,
            err: &mut err,
            signals: false,
        };
        let result = exec(mock, &find(mock, "box").unwrap(), options, &mut here);
        (result, String::from_utf8(out).unwrap())
    }

    fn options(command: &[&str]) -> Options {
        Options {
            command: command.iter().map(|word| (*word).into()).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn statuses_are_dockers() {
        let mock = Mock::new(4, 1 << 30);
        let created = create(&mock, &instance("box", &["sleep", "9"]), SystemTime::now()).unwrap();
        let say = options(&["say", "x", "3"]);
        let (refused, _) = in_box(&mock, &say);
        let refused = refused.unwrap_err();
        assert!(refused.message.contains("box is created"), "{refused}");
        start(&mock, &created).unwrap();
        let (status, out) = in_box(&mock, &say);
        assert_eq!((status.unwrap(), out.as_str()), (3, "x"));
        let missing = in_box(&mock, &options(&["missing"])).0.unwrap_err();
        assert_eq!(missing.status, 127);
        assert_eq!(
            missing.message,
            "cannot run missing: No such file or directory"
        );
        crate::instances::pause(&mock, &find(&mock, "box").unwrap()).unwrap();
        let paused = in_box(&mock, &say).0.unwrap_err();
        assert_eq!(paused.message, "box is paused: `skerry unpause box` first");
        assert_eq!(paused.status, 1);
    }

    #[test]
    fn users_are_numbers() {
        assert_eq!(parse_user("7"), Ok((7, 0)));
        assert_eq!(parse_user("7:8"), Ok((7, 8)));
        for wrong in ["", "root", "7:", ":7", "-1", "7:8:9"] {
            assert!(parse_user(wrong).is_err(), "{wrong}");
        }
    }
}
