//! A machine whose command has a terminal: COM2 carries plain terminal bytes until the mark that
//! ends them.

use std::io::{self, Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use vmagent::{Decoder, Frame, Kind};

use super::{Ending, Machine, Outcome, nonce};
use crate::cleanup::{Child, Directory};

/// A terminal's rows and columns.
pub type Size = (u16, u16);

/// Event from the machine.
enum Event {
    /// Output of the command.
    Output(Vec<u8>),
    /// The command ended with this status.
    Exit(i32),
    /// The machine is gone, for this reason if one is known.
    Gone(Option<String>),
    /// The user wants the machine ended.
    Stop,
}

/// A machine that runs its command on a terminal.
pub struct Session {
    events: Receiver<Event>,
    sender: Sender<Event>,
    line: Line,
    seen: String,
    qemu: Child,
    _directory: Directory,
}

/// The keyboard's end of the terminal.
#[derive(Clone)]
struct Line(Arc<Mutex<ChildStdin>>);

impl Line {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .write_all(bytes)
    }
}

impl Session {
    /// Boots the machine.
    pub fn start(machine: &Machine, size: Size) -> Result<Self> {
        let nonce = nonce()?;
        let directory = Directory::create().context("cannot make a temporary directory")?;
        let mut qemu = machine.start(&directory, Some(size), &nonce)?;
        let stdout = qemu
            .process()
            .stdout
            .take()
            .expect("QEMU was started with pipes");
        let stdin = qemu
            .process()
            .stdin
            .take()
            .expect("QEMU was started with pipes");
        let (sender, events) = mpsc::channel();
        let reader = sender.clone();
        thread::spawn(move || {
            // Nobody listens once the run is over.
            let mut output = |bytes: &[u8]| drop(reader.send(Event::Output(bytes.to_vec())));
            let end = match read_terminal(stdout, &nonce, &mut output) {
                Ok(frame) => frame
                    .number()
                    .map_or(Event::Gone(None), |status| Event::Exit(status as i32)),
                Err(reason) => Event::Gone(reason),
            };
            drop(reader.send(end));
        });
        Ok(Self {
            events,
            sender,
            line: Line(Arc::new(Mutex::new(stdin))),
            seen: String::new(),
            qemu,
            _directory: directory,
        })
    }

    /// Types `text`.
    pub fn send(&mut self, text: &str) -> Result<()> {
        self.line
            .send(text.as_bytes())
            .context("cannot type: the machine is gone")
    }

    /// Waits until `text` has appeared, and returns what came before it. The next call looks at
    /// what comes after it.
    pub fn expect(&mut self, text: &str, time: Duration) -> Result<String> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_owned();
                self.seen.drain(..at + text.len());
                return Ok(before);
            }
            match self
                .events
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(Event::Output(bytes)) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Ok(Event::Exit(status)) => {
                    bail!(
                        "the command ended with status {status} instead of showing {text:?}; it showed {:?}",
                        self.seen
                    )
                }
                Ok(Event::Gone(_) | Event::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    bail!(
                        "the machine stopped instead of showing {text:?}; it showed {:?}",
                        self.seen
                    )
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "{text:?} did not appear within {} s; it showed {:?}",
                        time.as_secs(),
                        self.seen
                    )
                }
            }
        }
    }

    /// Waits for the command's end.
    pub fn wait(
        mut self,
        deadline: Option<Instant>,
        output: &mut dyn FnMut(&[u8]),
    ) -> Result<Outcome> {
        let ending = loop {
            let event = match deadline {
                None => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some(deadline) => self
                    .events
                    .recv_timeout(deadline.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(Event::Output(bytes)) => output(&bytes),
                Ok(Event::Exit(status)) => {
                    // The machine may be gone at this moment, and that is all right.
                    let _ = self.line.send(&Frame::new(Kind::Bye, []).encode());
                    break Ending::Exited(status);
                }
                Ok(Event::Gone(reason)) => break Ending::Died(reason.unwrap_or_default()),
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break Ending::Stopped,
                Err(RecvTimeoutError::Timeout) => break Ending::TimedOut,
            }
        };
        Machine::finish(&mut self.qemu, ending)
    }
}

/// Runs the machine on this process's terminal.
pub(super) fn run(machine: &Machine) -> Result<Outcome> {
    if !isatty(io::stdin()) {
        bail!("--tty needs a terminal on standard input");
    }
    let size = tcgetwinsize(io::stdin()).map_or((24, 80), |size| (size.ws_row, size.ws_col));
    let session = Session::start(machine, size)?;
    let terminal = RawTerminal::enter().context("cannot set up the terminal")?;
    let line = session.line.clone();
    let sender = session.sender.clone();
    thread::spawn(move || {
        if type_in(&line) {
            drop(sender.send(Event::Stop));
        }
    });
    let deadline = machine.timeout.map(|timeout| Instant::now() + timeout);
    // The screen's errors are not the machine's: it runs on without one.
    let mut show = |bytes: &[u8]| {
        let mut screen = io::stdout().lock();
        let _ = screen.write_all(bytes).and_then(|()| screen.flush());
    };
    let outcome = session.wait(deadline, &mut show);
    drop(terminal);
    outcome
}

/// The host's terminal in raw mode; back as it was when dropped.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // There is no one to tell.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Byte that is typed to end the machine: Ctrl-A, then x. Ctrl-A twice types one.
const ESCAPE: u8 = 0x01;

/// Passes keys on to the machine; true when the user wants it ended.
fn type_in(line: &Line) -> bool {
    let mut escaped = false;
    let mut key = [0];
    while matches!(io::stdin().read(&mut key), Ok(1)) {
        if escaped && key[0] == b'x' {
            return true;
        }
        let passed_on = escaped || key[0] != ESCAPE;
        escaped = !escaped && key[0] == ESCAPE;
        if passed_on && line.send(&key).is_err() {
            return false;
        }
    }
    false
}

/// The line's bytes, as a stream of whatever there is.
struct Stream(ChildStdout);

impl Stream {
    /// Appends what comes next to `buffer`; the error is why there is nothing more, if that is
    /// known.
    fn read_more(&mut self, buffer: &mut Vec<u8>) -> Result<(), Option<String>> {
        let mut bytes = [0; 4096];
        match self.0.read(&mut bytes) {
            Ok(0) => Err(None),
            Ok(read) => {
                buffer.extend_from_slice(&bytes[..read]);
                Ok(())
            }
            Err(error) => Err(Some(error.to_string())),
        }
    }

    /// The next frame, and what of the bytes after it has been read already.
    fn read_frame(&mut self, mut decoder: Decoder) -> Result<(Frame, Vec<u8>), Option<String>> {
        let mut held = Vec::new();
        loop {
            if let Some(frame) = decoder
                .next_frame()
                .map_err(|error| Some(error.to_string()))?
            {
                return Ok((frame, decoder.into_rest()));
            }
            self.read_more(&mut held)?;
            decoder.push(&held);
            held.clear();
        }
    }
}

/// Hands what the command writes to `output` until its end; returns the frame that tells it, or why
/// there is none.
fn read_terminal(
    stdout: ChildStdout,
    nonce: &str,
    output: &mut dyn FnMut(&[u8]),
) -> Result<Frame, Option<String>> {
    let mark = nonce.as_bytes();
    let mut stream = Stream(stdout);
    let (_ready, mut held) = stream.read_frame(Decoder::after(nonce))?;
    loop {
        if let Some(end) = held.windows(mark.len()).position(|window| window == mark) {
            output(&held[..end]);
            let mut decoder = Decoder::new();
            decoder.push(&held[end + mark.len()..]);
            return Ok(stream.read_frame(decoder)?.0);
        }
        let certain = held.len() - beginning_at_end(&held, mark);
        output(&held[..certain]);
        held.drain(..certain);
        stream.read_more(&mut held)?;
    }
}

/// The length of the longest end of `bytes` with which `mark` begins: it may be the mark or not,
/// the next bytes tell.
fn beginning_at_end(bytes: &[u8], mark: &[u8]) -> usize {
    (1..mark.len())
        .rev()
        .find(|&length| bytes.ends_with(&mark[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_mark_is_held_back() {
        assert_eq!(beginning_at_end(b"hello", b"mark"), 0);
        assert_eq!(beginning_at_end(b"hellom", b"mark"), 1);
        assert_eq!(beginning_at_end(b"mamar", b"mark"), 3);
        assert_eq!(beginning_at_end(b"", b"mark"), 0);
    }
}
