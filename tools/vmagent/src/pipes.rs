//! A command with pipes for its standard streams: one loop that waits for whatever can move next
//! and never blocks on the command.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group};
use signal_hook::consts::SIGCHLD;
use vmagent::{Config, Kind, MAX_PAYLOAD};

use crate::line::Line;
use crate::{command, reap, status_of_failed_start};

/// Runs the command to its end. All it wrote is with the host when this returns.
pub fn run(config: &Config, line: &mut Line) -> io::Result<()> {
    let child_ended = watch_children()?;
    line.send_raw(config.nonce.as_bytes())?;
    line.send(Kind::Ready, &[])?;
    let started = command(&config.command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            let complaint = format!("vmagent: {}: {error}\n", config.command[0].display());
            line.send(Kind::Stderr, complaint.as_bytes())?;
            return line.finish(status_of_failed_start(&error));
        }
    };
    let status = Run::new(child)?.serve(line, &child_ended)?;
    line.finish(status)
}

/// The read end of a pipe that becomes readable when a child ends.
fn watch_children() -> io::Result<OwnedFd> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    signal_hook::low_level::pipe::register(SIGCHLD, write)?;
    Ok(read)
}

/// One of the command's output streams, until its end.
struct Output {
    kind: Kind,
    pipe: Option<Box<dyn ReadFd>>,
}

trait ReadFd: Read + AsFd {}
impl<T: Read + AsFd> ReadFd for T {}

impl Output {
    fn new(kind: Kind, pipe: impl ReadFd + 'static) -> io::Result<Self> {
        set_nonblocking(&pipe)?;
        Ok(Self {
            kind,
            pipe: Some(Box::new(pipe)),
        })
    }

    /// Passes on one buffer of output; false when there is none for now, or none ever again.
    fn pass_on(&mut self, line: &mut Line) -> io::Result<bool> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(false);
        };
        let mut buffer = [0; MAX_PAYLOAD];
        match pipe.read(&mut buffer) {
            Ok(0) => {
                self.pipe = None;
                Ok(false)
            }
            Ok(read) => line.send(self.kind, &buffer[..read]).map(|()| true),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// The command's standard input: what the host has sent and the command has not read yet.
struct Input {
    pipe: Option<ChildStdin>,
    waiting: VecDeque<u8>,
    ended: bool,
}

impl Input {
    /// Hands on as much as the pipe takes and credits the host with it.
    fn pass_on(&mut self, line: &mut Line) -> io::Result<()> {
        if let Some(pipe) = &mut self.pipe
            && !self.waiting.is_empty()
        {
            match pipe.write(self.waiting.make_contiguous()) {
                Ok(written) => {
                    self.waiting.drain(..written);
                    credit(line, written)?;
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                // The command closed its end: it will never read the rest.
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() && !self.waiting.is_empty() {
            let dropped = self.waiting.len();
            self.waiting.clear();
            credit(line, dropped)?;
        }
        if self.ended && self.waiting.is_empty() {
            self.pipe = None;
        }
        Ok(())
    }
}

fn credit(line: &mut Line, bytes: usize) -> io::Result<()> {
    line.send(Kind::Credit, &(bytes as u32).to_le_bytes())
}

/// A command that runs.
struct Run {
    child: u32,
    input: Input,
    outputs: [Output; 2],
}

impl Run {
    fn new(mut child: Child) -> io::Result<Self> {
        const PIPED: &str = "the command was started with pipes";
        let stdin = child.stdin.take().expect(PIPED);
        set_nonblocking(&stdin)?;
        Ok(Self {
            child: child.id(),
            input: Input {
                pipe: Some(stdin),
                waiting: VecDeque::new(),
                ended: false,
            },
            outputs: [
                Output::new(Kind::Stdout, child.stdout.take().expect(PIPED))?,
                Output::new(Kind::Stderr, child.stderr.take().expect(PIPED))?,
            ],
        })
    }

    /// Serves the streams until the command has ended; returns its status.
    ///
    /// What it left running in the background does not count: once it has ended, only what the
    /// pipes hold is passed on.
    fn serve(mut self, line: &mut Line, child_ended: &OwnedFd) -> io::Result<i32> {
        loop {
            let (from_host, ended) = self.wait(line, child_ended)?;
            if from_host {
                self.obey(line)?;
            }
            self.input.pass_on(line)?;
            for output in &mut self.outputs {
                output.pass_on(line)?;
            }
            if ended {
                let mut buffer = [0; 64];
                while rustix::io::read(child_ended, &mut buffer)
                    .is_ok_and(|read| read == buffer.len())
                {}
                if let Some(status) = reap(self.child, WaitOptions::NOHANG)? {
                    for output in &mut self.outputs {
                        while output.pass_on(line)? {}
                    }
                    return Ok(status);
                }
            }
        }
    }

    /// Waits until something can move. Returns whether the host has sent something, and whether a
    /// child has ended.
    fn wait(&self, line: &Line, child_ended: &OwnedFd) -> io::Result<(bool, bool)> {
        let mut fds = vec![
            PollFd::new(line, PollFlags::IN),
            PollFd::new(child_ended, PollFlags::IN),
        ];
        for pipe in self
            .outputs
            .iter()
            .filter_map(|output| output.pipe.as_deref())
        {
            fds.push(PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN));
        }
        if let Some(pipe) = &self.input.pipe
            && !self.input.waiting.is_empty()
        {
            fds.push(PollFd::new(pipe, PollFlags::OUT));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |index: usize| fds[index].revents().contains(PollFlags::IN);
        Ok((ready(0), ready(1)))
    }

    /// Does what the host has asked for.
    fn obey(&mut self, line: &mut Line) -> io::Result<()> {
        for frame in line.receive()? {
            match frame.kind {
                Kind::Stdin => self.input.waiting.extend(frame.payload),
                Kind::StdinEof => self.input.ended = true,
                Kind::Signal => {
                    let signal = frame
                        .number()
                        .and_then(|number| Signal::from_named_raw(number as i32));
                    if let (Some(signal), Some(group)) = (signal, Pid::from_raw(self.child as i32))
                    {
                        // The group may have ended a moment ago; then the signal has no one to
                        // reach.
                        kill_process_group(group, signal).or_else(|error| match error {
                            rustix::io::Errno::SRCH => Ok(()),
                            other => Err(other),
                        })?;
                    }
                }
                Kind::Bye
                | Kind::Ready
                | Kind::Stdout
                | Kind::Stderr
                | Kind::Exit
                | Kind::Credit => {}
            }
        }
        Ok(())
    }
}

fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}
