//! Requests of a machine's script to the host: lines on its file descriptor 3.
//!
//! | line | effect |
//! |---|---|
//! | `monitor COMMAND` | QEMU's monitor carries out the command |
//! | `in-program NUMBER COMMAND` | likewise, at a moment at which that processor runs a program |
//! | `stop SEED` | from now on processors of the machine stand still now and then (`machine-tests stop-threads`) |
//! | `hold NUMBER` | that processor of the machine stands still |
//! | `leave` | they run again |

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, mem, thread};

use anyhow::{Context, Result, bail, ensure};

use crate::build;
use crate::cleanup::{Child, Directory};
use crate::vm::Machine;

/// Time limit of a monitor's command.
const MONITOR: Duration = Duration::from_secs(60);
/// Time limit of its answer while a processor is held.
const HOLD_ANSWER: Duration = Duration::from_secs(3);
/// Moments at which a processor is looked at until it is in a program.
const IN_PROGRAM_TRIES: u32 = 1000;
/// Attempts to hold a processor.
const HOLD_TRIES: u32 = 20;

/// The host's side; what is written to it are the script's lines.
pub struct HostRequests {
    directory: Directory,
    /// The beginning of a line.
    line: Vec<u8>,
    stopper: Option<Child>,
}

impl HostRequests {
    /// Has `machine` be one whose requests can be served.
    pub fn new(machine: &mut Machine) -> Result<Self> {
        let requests = Self {
            directory: Directory::create()?,
            line: Vec::new(),
            stopper: None,
        };
        let socket = format!(
            "socket,id=monitor,server=on,wait=off,path={}",
            requests.socket().display()
        );
        let pid_file = requests.pid_file();
        machine.hardware.extra.extend(
            ["-name", "machine,debug-threads=on", "-chardev", &socket]
                .into_iter()
                .chain(["-mon", "chardev=monitor,mode=readline", "-pidfile"])
                .map(Into::into)
                .chain([pid_file.into_os_string()]),
        );
        Ok(requests)
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("monitor")
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("pid")
    }

    fn serve(&mut self, line: &str) -> Result<()> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("monitor", command) => self.monitor(command),
            ("in-program", rest) => {
                let (number, command) = rest.split_once(' ').context("a number and a command")?;
                self.in_program(number, command)
            }
            ("stop", seed) => self.stop(seed),
            ("hold", number) => self.hold(number),
            ("leave", "") => {
                self.stopper = None;
                Ok(())
            }
            // What else there is on standard error is for people.
            _ => Ok(()),
        }
    }

    /// Has QEMU's monitor carry out a command.
    pub fn monitor(&self, command: &str) -> Result<()> {
        self.command(command, MONITOR).map(drop)
    }

    /// Has the monitor carry out a command while the machine stands still and processor `number` is
    /// in a program.
    fn in_program(&self, number: &str, command: &str) -> Result<()> {
        for _ in 0..IN_PROGRAM_TRIES {
            self.monitor("stop")?;
            let registers = self.command("info registers -a", MONITOR)?;
            let is_in_program = registers
                .split("CPU#")
                .any(|one| one.lines().next() == Some(number) && one.contains("CPL=3"));
            if is_in_program {
                self.monitor(command)?;
            }
            self.monitor("cont")?;
            if is_in_program {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("processor {number} is never in a program")
    }

    /// Sends a command to the monitor, and returns what it says.
    fn command(&self, command: &str, limit: Duration) -> Result<String> {
        let mut stream =
            UnixStream::connect(self.socket()).context("cannot reach QEMU's monitor")?;
        stream.set_read_timeout(Some(limit))?;
        let mut answers = BufReader::new(stream.try_clone()?);
        let mut prompt = || -> Result<String> {
            let mut said = Vec::new();
            while !said.ends_with(b"(qemu) ") {
                let read = answers.read_until(b' ', &mut said)?;
                ensure!(read > 0, "QEMU's monitor hung up");
            }
            Ok(String::from_utf8_lossy(&said).into_owned())
        };
        prompt()?;
        writeln!(stream, "{command}")?;
        let said = prompt()?;
        ensure!(
            ![
                "unknown command",
                "Try \"help",
                "invalid",
                "support",
                "disabled",
                "triple"
            ]
            .iter()
            .any(|complaint| said.contains(complaint)),
            "QEMU's monitor says {said:?}"
        );
        Ok(said)
    }

    /// Starts the program that stops processors.
    fn stopper(&self, what: &str, argument: &str) -> Result<Child> {
        let process = fs::read_to_string(self.pid_file()).context("QEMU wrote no pid file")?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(build::test_programs()?.program("machine-tests"))
            .args([what, process.trim(), argument])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(Child::spawn(&mut command)?)
    }

    fn stop(&mut self, seed: &str) -> Result<()> {
        self.stopper = Some(self.stopper("stop-threads", seed)?);
        Ok(())
    }

    /// Holds a processor, not where it holds the lock of all of QEMU: the monitor must answer.
    fn hold(&mut self, number: &str) -> Result<()> {
        for _ in 0..HOLD_TRIES {
            let mut stopper = self.stopper("hold-thread", number)?;
            let said = stopper.process().stdout.take().expect("a pipe");
            let mut line = String::new();
            BufReader::new(said).read_line(&mut line)?;
            ensure!(line == "held\n", "{line}");
            if self.command("info status", HOLD_ANSWER).is_ok() {
                self.stopper = Some(stopper);
                return Ok(());
            }
        }
        bail!("processor {number} could not be held")
    }
}

impl Write for HostRequests {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            self.serve(line.trim())
                .map_err(|error| io::Error::other(format!("{line:?}: {error:#}")))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
