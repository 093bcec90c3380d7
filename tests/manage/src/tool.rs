//! Running the tool: who reads its output, who kills it, and how long that may take.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::model::Observed;
use crate::spec::Reader;

/// The tool.
const TOOL: &str = "/bin/skerry";
/// Time limit for a tool, on a machine that is emulated and busy. No threshold: a tool that takes
/// longer does not end.
const PATIENCE: Duration = Duration::from_secs(150);
/// Nobody.
const NOBODY: u32 = 65534;
/// A slow reader's pause.
const PAUSE: Duration = Duration::from_millis(2);

/// A tool that runs.
pub(crate) struct Tool {
    what: String,
    pid: Pid,
    out: JoinHandle<Vec<u8>>,
    err: JoinHandle<Vec<u8>>,
    status: Receiver<u8>,
    /// Status, if the tool had ended when somebody looked.
    ended: Cell<Option<u8>>,
    /// Lets a late reader begin.
    go: Sender<()>,
    /// Told once the reader has so much.
    progress: Receiver<()>,
    reader: Reader,
}

/// Options for running a tool.
pub(crate) struct Options<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) reader: Reader,
    pub(crate) nobody: bool,
    /// The reader tells when it has so many bytes.
    pub(crate) tell_after: usize,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            input: &[],
            reader: Reader::Fast,
            nobody: false,
            tell_after: 0,
        }
    }
}

impl Tool {
    /// Starts it.
    pub(crate) fn start(arguments: &[String], options: Options<'_>) -> Result<Self> {
        let what = arguments.join(" ");
        let mut command = Command::new(TOOL);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if options.nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {TOOL}"))?;
        let pid = Pid::from_child(&child);
        let stdin = child.stdin.take().context("no input")?;
        let input = options.input.to_vec();
        thread::spawn(move || {
            // Who does not read its input may leave: that is no error.
            let _ = { stdin }.write_all(&input);
        });
        let (tell, progress) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let (from, reader) = (
            child.stdout.take().context("no output")?,
            options.reader.clone(),
        );
        let out = thread::spawn(move || {
            if reader == Reader::Late {
                // An error is that the tool was given up.
                let _ = gone.recv();
            }
            read(from, &reader, options.tell_after, || {
                // Who started the tool may not want to know.
                let _ = tell.send(());
            })
        });
        let from = child.stderr.take().context("no error output")?;
        let err = thread::spawn(move || read(from, &Reader::Fast, 0, || ()));
        let (tell, status) = mpsc::channel();
        thread::spawn(move || {
            let _ = tell.send(wait(child));
        });
        Ok(Self {
            what,
            pid,
            out,
            err,
            status,
            ended: Cell::new(None),
            go,
            progress,
            reader: options.reader,
        })
    }

    /// Waits until its reader has as much as was asked for, or its output has ended.
    pub(crate) fn await_progress(&self) -> Result<()> {
        match self.progress.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("`skerry {}` writes nothing any more", self.what)
            }
            _ => Ok(()),
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        if let Ok(status) = self.status.try_recv() {
            self.ended.set(Some(status));
        }
        self.ended.get().is_some()
    }

    /// Kills it after this time.
    pub(crate) fn kill_after(&self, time: Duration) {
        thread::sleep(time);
        self.send(Signal::KILL);
    }

    /// Waits for its end, or kills it when its time is over.
    pub(crate) fn finish_within(self, time: Duration) -> Result<Observed> {
        match self.status.recv_timeout(time) {
            Ok(status) => self.ended.set(Some(status)),
            Err(_) => self.send(Signal::KILL),
        }
        self.finish()
    }

    /// Stops and continues it, if its reader is of that kind.
    pub(crate) fn stop_and_go(&self) {
        let Reader::Stopped(times) = self.reader else {
            return;
        };
        for _ in 0..times {
            self.send(Signal::STOP);
            thread::sleep(PAUSE * 4);
            self.send(Signal::CONT);
            thread::sleep(PAUSE * 4);
        }
    }

    /// Waits for its end, which is never a panic of the tool: nobody's archive, no instance and no
    /// other tool brings that about.
    pub(crate) fn finish(self) -> Result<Observed> {
        self.stop_and_go();
        // A reader that is not late does not listen.
        let _ = self.go.send(());
        let Ok(status) = self
            .ended
            .get()
            .map_or_else(|| self.status.recv_timeout(PATIENCE), Ok)
        else {
            self.send(Signal::KILL);
            bail!("`skerry {}` does not end", self.what);
        };
        let bytes = |thread: JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
        let seen = Observed {
            status,
            out: bytes(self.out),
            err: bytes(self.err),
        };
        let said = String::from_utf8_lossy(&seen.err);
        ensure!(
            !(said.contains("thread '") && said.contains("panicked at")),
            "`skerry {}` panicked: {said}",
            self.what
        );
        Ok(seen)
    }

    fn send(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process(self.pid, signal);
    }
}

/// Runs it to its end.
pub(crate) fn run(arguments: &[String]) -> Result<Observed> {
    Tool::start(arguments, Options::default())?.finish()
}

fn wait(mut child: Child) -> u8 {
    let Ok(status) = child.wait() else {
        return u8::MAX;
    };
    let signal = status.signal().map(|signal| 128 + signal);
    status
        .code()
        .or(signal)
        .and_then(|status| u8::try_from(status).ok())
        .unwrap_or(u8::MAX)
}

/// Reads to the end, as `reader` does.
fn read(
    mut from: impl Read,
    reader: &Reader,
    tell_after: usize,
    mut tell: impl FnMut(),
) -> Vec<u8> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let (piece, mut pauses, most) = match reader {
        Reader::Fast | Reader::Late | Reader::Stopped(_) => (buffer.len(), 0, usize::MAX),
        Reader::Slow { piece, pauses } => (*piece, *pauses, usize::MAX),
        Reader::Dies(after) => (*after, 0, *after),
    };
    let mut told = tell_after == 0;
    while bytes.len() < most {
        let size = if pauses > 0 {
            piece
        } else {
            buffer.len().min(most - bytes.len())
        };
        match from.read(&mut buffer[..size]) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if !told && bytes.len() >= tell_after {
            told = true;
            tell();
        }
        if pauses > 0 {
            pauses -= 1;
            thread::sleep(PAUSE);
        }
    }
    bytes
}
