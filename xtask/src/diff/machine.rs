//! A machine that runs programs of system calls: commands go in as lines, answers come out as lines
//! up to one that is a dot.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use crate::vm::{Addition, Machine, Streams, last_lines};

/// Where the executor is in the machine.
const EXECUTOR: &str = "/bin/diff-executor";
/// Time limit of an answer; a program that does not come to rest is given up by the executor long
/// before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(180);
/// Lines of the kernel's log that are shown when the machine dies.
const LOG_LINES: usize = 40;

/// A machine with an executor.
pub struct Runner {
    /// The kernel's name, for messages.
    pub name: &'static str,
    machine: Machine,
    executor: std::path::PathBuf,
    running: Option<Running>,
}

struct Running {
    commands: Sender<Vec<u8>>,
    lines: Receiver<String>,
}

impl Runner {
    /// A machine that is booted at the first command.
    pub fn new(name: &'static str, machine: Machine, executor: &Path) -> Self {
        Self {
            name,
            machine,
            executor: executor.to_owned(),
            running: None,
        }
    }

    /// The kernel's log.
    pub fn log(&self) -> &Path {
        &self.machine.log
    }

    /// Sends a command.
    pub fn send(&mut self, command: &str) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(self.boot()?);
        }
        let sent = self
            .running
            .as_ref()
            .map(|running| running.commands.send(format!("{command}\n").into_bytes()));
        if !matches!(sent, Some(Ok(()))) {
            bail!("{}", self.death());
        }
        Ok(())
    }

    /// The next line of an answer; `None` at its end.
    ///
    /// # Errors
    /// When the machine died or stood still; the next command boots a new one.
    pub fn line(&mut self) -> Result<Option<String>> {
        let Some(running) = &self.running else {
            bail!("the machine with {} does not run", self.name)
        };
        match running.lines.recv_timeout(ANSWER_TIMEOUT) {
            Ok(line) if line == "." => Ok(None),
            Ok(line) => Ok(Some(line)),
            Err(error) => {
                let still = error == RecvTimeoutError::Timeout;
                let death = self.death();
                bail!("{}{death}", if still { "it stood still: " } else { "" })
            }
        }
    }

    /// One line for each of `count` programs, as far as they came, and what kept the others back.
    pub fn answers(&mut self, count: u64) -> (Vec<String>, Result<()>) {
        let mut answers = Vec::new();
        let end = loop {
            match self.line() {
                Ok(Some(line)) => answers.push(line),
                Ok(None) if answers.len() as u64 == count => break Ok(()),
                Ok(None) => {
                    let (name, given) = (self.name, answers.len());
                    break Err(anyhow!("{name} gave {given} answers to {count} programs"));
                }
                Err(error) => break Err(error),
            }
        };
        (answers, end)
    }

    /// The lines of an answer that are not read yet.
    pub fn answer(&mut self) -> Result<String> {
        let mut lines = String::new();
        while let Some(line) = self.line()? {
            lines += &line;
            lines.push('\n');
        }
        Ok(lines)
    }

    /// A command and its whole answer.
    pub fn ask(&mut self, command: &str) -> Result<String> {
        self.send(command)?;
        self.answer()
    }

    /// Forgets the machine, which ends with its input; says how it ended.
    fn death(&mut self) -> String {
        self.running = None;
        format!(
            "the machine with {} died; its log ends:\n{}",
            self.name,
            last_lines(&self.machine.log, LOG_LINES)
        )
    }

    fn boot(&self) -> Result<Running> {
        let mut machine = self.machine.clone();
        machine.additions.push(Addition {
            host: self.executor.clone(),
            guest: EXECUTOR.into(),
        });
        machine.command = vec![EXECUTOR.into()];
        machine.timeout = None;
        let (commands, input) = mpsc::channel();
        let (output, lines) = mpsc::channel();
        // What fails here shows as an answer that does not come, with the log.
        thread::spawn(move || {
            let mut output = Lines {
                partial: Vec::new(),
                lines: output,
            };
            let mut complaints = Vec::new();
            let streams = Streams {
                input: Box::new(Input {
                    commands: input,
                    left: Vec::new(),
                }),
                output: &mut output,
                error: &mut complaints,
            };
            if let Err(error) = machine.run(streams) {
                eprintln!("xtask: {error:#}");
            }
            if !complaints.is_empty() {
                eprintln!("{}", String::from_utf8_lossy(&complaints));
            }
        });
        Ok(Running { commands, lines })
    }
}

/// Commands as a stream of bytes, which ends when nobody can send any more.
struct Input {
    commands: Receiver<Vec<u8>>,
    left: Vec<u8>,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.is_empty() {
            let Ok(command) = self.commands.recv() else {
                return Ok(0);
            };
            self.left = command;
        }
        let length = buffer.len().min(self.left.len());
        buffer[..length].copy_from_slice(&self.left[..length]);
        self.left.drain(..length);
        Ok(length)
    }
}

/// Takes bytes and passes on lines.
struct Lines {
    partial: Vec<u8>,
    lines: Sender<String>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            // Nobody listens any more: the machine ends by the end of its input.
            self.lines
                .send(line)
                .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
