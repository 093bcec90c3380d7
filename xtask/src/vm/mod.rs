//! A machine that runs one command: boot, the agent's line, standard streams, time limit, result.

pub mod cli;
pub mod terminal;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vmagent::{Config, Decoder, Frame, Kind, MAX_PAYLOAD, STDIN_WINDOW};

use crate::build::{self, Tools};
use crate::cleanup::{Child, Directory};
use crate::initramfs::{self, Archive};
use crate::iso::{self, Protocol};
use crate::mutants::trial::{self, Trial};
use crate::qemu::{self, Board, Boot, Firmware, Hardware};

/// Time limit for the machine to power off once the command has ended.
const POWER_OFF_TIME: Duration = Duration::from_secs(10);

/// The kernel a machine boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The one of this repository.
    Skerry,
    /// A Linux image.
    Linux(PathBuf),
    /// One with mutants in it.
    Mutant(Trial),
}

impl Kernel {
    /// The trial, for a kernel with mutants.
    pub fn trial(&self) -> Option<&Trial> {
        match self {
            Self::Mutant(trial) => Some(trial),
            _ => None,
        }
    }
}

/// A file or folder of the host and its place in the machine.
#[derive(Clone, Debug)]
pub struct Addition {
    /// The path on the host.
    pub host: PathBuf,
    /// The absolute path in the machine.
    pub guest: String,
}

/// A machine and the command it runs.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The kernel.
    pub kernel: Kernel,
    /// The hardware.
    pub hardware: Hardware,
    /// Files of the initial RAM file system besides busybox and the tools.
    pub additions: Vec<Addition>,
    /// Appended to the kernel command line.
    pub append: String,
    /// From power-on to the command's end.
    pub timeout: Option<Duration>,
    /// Where COM1 is written.
    pub log: PathBuf,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Boot from an ISO image through firmware and boot loader.
    pub firmware: Option<Firmware>,
}

/// Ending of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The command ended with this status (128 + signal if it was killed).
    Exited(i32),
    /// The time limit passed.
    TimedOut,
    /// The user ended the machine.
    Stopped,
    /// The machine stopped before the command ended: a panic, a reset, or QEMU could not run it.
    /// QEMU's own words follow.
    Died(String),
}

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Ending of the run.
    pub ending: Ending,
    /// Whether the machine powered itself off afterwards.
    pub powered_off: bool,
}

/// A run with what its command wrote.
#[derive(Debug)]
pub struct Collected {
    /// Ending of the run.
    pub ending: Ending,
    /// Whether the machine powered itself off afterwards.
    pub powered_off: bool,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub complaints: String,
}

/// The command's standard streams.
pub struct Streams<'a> {
    /// Standard input; read in a thread of its own, which is left to itself when the command ends
    /// first.
    pub input: Box<dyn Read + Send>,
    /// Standard output.
    pub output: &'a mut (dyn Write + Send),
    /// Standard error.
    pub error: &'a mut (dyn Write + Send),
}

enum Event {
    Frame(Frame),
    /// QEMU closed its end of the line; in place of a frame it may have sent nonsense.
    Closed(Option<String>),
}

impl Machine {
    /// Boots the machine, runs the command, and powers off.
    ///
    /// # Errors
    /// When the machine could not be built or started, or an output could not be written.
    pub fn run(&self, streams: Streams<'_>) -> Result<Outcome> {
        let nonce = nonce()?;
        let directory = Directory::create().context("cannot make a temporary directory")?;
        let mut qemu = self.start(&directory, None, &nonce)?;
        let (sender, events) = mpsc::channel();
        let stdout = qemu
            .process()
            .stdout
            .take()
            .expect("QEMU was started with pipes");
        thread::spawn(move || read_frames(stdout, &nonce, &sender));
        let line = Arc::new(HostLine::new(
            qemu.process()
                .stdin
                .take()
                .expect("QEMU was started with pipes"),
        ));
        let deadline = self.limit().map(|timeout| Instant::now() + timeout);
        let ending = serve(&events, &line, deadline, streams)?;
        Self::finish(&mut qemu, ending)
    }

    /// Boots the machine, runs the command without input, and powers off; keeps what it writes.
    ///
    /// # Errors
    /// When the machine could not be built or started.
    pub fn run_collected(&self) -> Result<Collected> {
        let (mut output, mut complaints) = (Vec::new(), Vec::new());
        let Outcome {
            ending,
            powered_off,
        } = self.run(Streams {
            input: Box::new(io::empty()),
            output: &mut output,
            error: &mut complaints,
        })?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Collected {
            ending,
            powered_off,
            output: text(output),
            complaints: text(complaints),
        })
    }

    /// From power-on to the command's end. With mutants, tests run on hosts that have other things
    /// to do, for hours.
    fn limit(&self) -> Option<Duration> {
        match self.kernel.trial() {
            Some(trial) => trial
                .limit
                .or(self.timeout.map(|timeout| timeout * trial::TIME_FACTOR)),
            None => self.timeout,
        }
    }

    /// Builds what the machine starts from, so that starting it takes no time, and empties its log.
    pub fn prepare(&self) -> Result<()> {
        build::tools()?;
        if self.kernel == Kernel::Skerry {
            build::kernel()?;
        }
        File::create(&self.log)
            .map(drop)
            .with_context(|| format!("cannot write {}", self.log.display()))
    }

    /// Boots the machine with the command on this process's terminal.
    pub fn run_on_terminal(&self) -> Result<Outcome> {
        terminal::run(self)
    }

    /// Boots the machine with `init` as its first process and nothing but what `more` adds beside
    /// it, and waits until it powers off; returns the log.
    ///
    /// # Errors
    /// When the machine could not be started, or did not power off in time.
    pub fn run_without_agent(
        &self,
        init: &Path,
        more: impl FnOnce(&mut Archive) -> Result<()>,
    ) -> Result<String> {
        let directory = Directory::create().context("cannot make a temporary directory")?;
        let mut archive = Archive::new();
        archive.device("/dev/console", 0o600, 5, 1);
        archive.host(init, "/init")?;
        more(&mut archive)?;
        let mut qemu = self.launch(&directory, &archive.finish())?;
        let ended = qemu.wait(self.limit().unwrap_or(Duration::from_secs(3600)))?;
        ensure!(
            ended.is_some_and(|status| status.success()),
            "the machine did not power off; the log ends:\n{}",
            last_lines(&self.log, 25)
        );
        Ok(String::from_utf8_lossy(&fs::read(&self.log)?).into_owned())
    }

    /// Builds the initial RAM file system and starts QEMU.
    fn start(
        &self,
        directory: &Directory,
        terminal: Option<terminal::Size>,
        nonce: &str,
    ) -> Result<Child> {
        let initramfs = self.initramfs(&build::tools()?, terminal, nonce)?;
        self.launch(directory, &initramfs)
    }

    /// Starts QEMU.
    fn launch(&self, directory: &Directory, initramfs: &[u8]) -> Result<Child> {
        let boot = self.boot(directory, initramfs)?;
        // An old log must not be taken for this machine's.
        File::create(&self.log).with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = qemu::command(&self.hardware, &boot, &self.log);
        if self.kernel.trial().is_some() {
            command
                .arg("-debugcon")
                .arg(format!("file:{}", trial::told(&self.log).display()));
        }
        Child::spawn(&mut command)
            .context("cannot start QEMU through `setpriv` (packages qemu-system-x86 and util-linux; `make setup` installs them)")
    }

    fn initramfs(
        &self,
        tools: &Tools,
        terminal: Option<terminal::Size>,
        nonce: &str,
    ) -> Result<Vec<u8>> {
        let mut archive = Archive::new();
        initramfs::add_base(&mut archive)?;
        archive.host(&tools.program("vmagent"), "/init")?;
        archive.host(&tools.program("skerry"), "/bin/skerry")?;
        let config = Config {
            terminal,
            nonce: nonce.to_owned(),
            command: self.command.clone(),
        };
        archive.file(vmagent::config::PATH, 0o644, &config.encode());
        for Addition { host, guest } in &self.additions {
            archive.host(host, guest)?;
        }
        Ok(archive.finish())
    }

    fn boot(&self, directory: &Directory, initramfs: &[u8]) -> Result<Boot> {
        let (kernel, protocol, fixed) = match &self.kernel {
            Kernel::Skerry => (build::kernel()?, Protocol::Multiboot2, "console=ttyS0"),
            Kernel::Mutant(trial) => (trial.image.clone(), Protocol::Multiboot2, "console=ttyS0"),
            Kernel::Linux(image) => {
                if !image.is_file() {
                    bail!(
                        "no Linux kernel at {} (package linux-image-amd64 has one in /boot)",
                        image.display()
                    );
                }
                // Without a mouse and keyboard controller, looking for one takes Linux a second. On
                // a busy host it would take the emulated timer for a broken one.
                (
                    image.clone(),
                    Protocol::Linux,
                    "console=ttyS0 panic=-1 rdinit=/init i8042.noaux i8042.nokbd no_timer_check",
                )
            }
        };
        // A kernel that panics here has failed, and is looked at: it is not to start again.
        let own = match self.kernel {
            Kernel::Skerry | Kernel::Mutant(_) if !self.append.contains("supervisor_panic=") => {
                " supervisor_panic=reset"
            }
            _ => "",
        };
        let command_line = format!("{fixed}{own} {}", self.append).trim().to_owned();
        if let Some(firmware) = self.firmware {
            let image = directory.join("machine.iso");
            iso::make(&image, (&kernel, protocol), initramfs, &command_line)?;
            return Ok(Boot::Iso { image, firmware });
        }
        let path = directory.join("initramfs.cpio");
        fs::write(&path, initramfs).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Boot::Kernel {
            kernel,
            initramfs: path,
            command_line,
        })
    }

    /// Waits for the machine to power off, and looks at how QEMU ended where that says something.
    fn finish(qemu: &mut Child, ending: Ending) -> Result<Outcome> {
        // Where the machine stops by itself, QEMU closes the line and then exits; anything else it
        // is made to do.
        let stops = match ending {
            Ending::Exited(_) => POWER_OFF_TIME,
            Ending::Died(_) => Duration::from_secs(2),
            Ending::TimedOut | Ending::Stopped => Duration::ZERO,
        };
        let Some(status) = qemu.wait(stops)? else {
            qemu.end()?;
            return Ok(Outcome {
                ending,
                powered_off: false,
            });
        };
        let Ending::Died(mut reason) = ending else {
            return Ok(Outcome {
                ending,
                powered_off: status.success(),
            });
        };
        if let Some(stderr) = &mut qemu.process().stderr {
            stderr.read_to_string(&mut reason)?;
        }
        if reason.is_empty() && !status.success() {
            reason = format!("QEMU: {status}");
        }
        Ok(Outcome {
            ending: Ending::Died(reason.trim().to_owned()),
            powered_off: status.success(),
        })
    }
}

/// The first lines of a machine for everybody: four processors, 2 GiB, two minutes.
impl Default for Machine {
    fn default() -> Self {
        Self {
            kernel: Kernel::Skerry,
            hardware: Hardware {
                board: Board::Q35,
                cpus: 4,
                threads: 1,
                memory: "2G".into(),
                icount: false,
                disks: Vec::new(),
                iommu: None,
                networks: Vec::new(),
                gdb: false,
                extra: Vec::new(),
            },
            additions: Vec::new(),
            append: String::new(),
            timeout: Some(Duration::from_secs(120)),
            log: crate::paths::target().join("vm.log"),
            command: Vec::new(),
            firmware: None,
        }
    }
}

/// The last `count` lines of a log.
pub fn last_lines(log: &Path, count: usize) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Random text that marks where frames begin on the agent's line.
fn nonce() -> Result<String> {
    let mut bytes = [0; 12];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn read_frames(mut stdout: ChildStdout, nonce: &str, events: &Sender<Event>) {
    let mut decoder = Decoder::after(nonce);
    let mut buffer = [0; 65536];
    let nonsense = loop {
        let read = match stdout.read(&mut buffer) {
            Ok(0) => break None,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => break Some(format!("cannot read the agent's line: {error}")),
        };
        decoder.push(&buffer[..read]);
        loop {
            match decoder.next_frame() {
                // Nobody listens once the run is over.
                Ok(Some(frame)) => drop(events.send(Event::Frame(frame))),
                Ok(None) => break,
                Err(error) => {
                    drop(events.send(Event::Closed(Some(error.to_string()))));
                    return;
                }
            }
        }
    };
    drop(events.send(Event::Closed(nonsense)));
}

/// Passes frames on until the command or the machine ends, or the time is over.
fn serve(
    events: &Receiver<Event>,
    line: &Arc<HostLine>,
    deadline: Option<Instant>,
    streams: Streams<'_>,
) -> Result<Ending> {
    let mut input = Some(streams.input);
    loop {
        let event = match deadline {
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
        };
        let frame = match event {
            Ok(Event::Frame(frame)) => frame,
            Ok(Event::Closed(reason)) => return Ok(Ending::Died(reason.unwrap_or_default())),
            Err(RecvTimeoutError::Timeout) => return Ok(Ending::TimedOut),
            Err(RecvTimeoutError::Disconnected) => bail!("the reader of the agent's line is gone"),
        };
        match (frame.kind, frame.number()) {
            (Kind::Ready, _) => {
                if let Some(input) = input.take() {
                    let line = Arc::clone(line);
                    thread::spawn(move || line.pass_on(input));
                }
            }
            (Kind::Stdout, _) => write_out(streams.output, &frame.payload)
                .context("cannot write the command's output")?,
            (Kind::Stderr, _) => write_out(streams.error, &frame.payload)
                .context("cannot write the command's standard error")?,
            (Kind::Credit, Some(bytes)) => line.credit(bytes as usize),
            (Kind::Exit, Some(status)) => {
                line.close();
                // The machine may be gone at this moment, and that is all right.
                let _ = line.send(&Frame::new(Kind::Bye, []));
                return Ok(Ending::Exited(status as i32));
            }
            (kind, _) => {
                return Ok(Ending::Died(format!(
                    "the agent sent a frame of kind {kind:?} that makes no sense"
                )));
            }
        }
    }
}

fn write_out(to: &mut (dyn Write + Send), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// The host's end of the agent's line, with its account of standard input that is under way.
struct HostLine {
    state: Mutex<LineState>,
    changed: Condvar,
}

struct LineState {
    stdin: ChildStdin,
    under_way: usize,
    closed: bool,
}

impl HostLine {
    fn new(stdin: ChildStdin) -> Self {
        Self {
            state: Mutex::new(LineState {
                stdin,
                under_way: 0,
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LineState> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn send(&self, frame: &Frame) -> io::Result<()> {
        self.lock().stdin.write_all(&frame.encode())
    }

    fn credit(&self, bytes: usize) {
        let mut state = self.lock();
        state.under_way = state.under_way.saturating_sub(bytes);
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Passes `input` on to the command until it ends, never more than the window ahead of it.
    fn pass_on(&self, mut input: Box<dyn Read + Send>) {
        let mut buffer = [0; if STDIN_WINDOW < MAX_PAYLOAD {
            STDIN_WINDOW
        } else {
            MAX_PAYLOAD
        }];
        loop {
            let read = match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let state = self.lock();
            let mut state = self
                .changed
                .wait_while(state, |state| {
                    !state.closed && state.under_way + read > STDIN_WINDOW
                })
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if state.closed {
                return;
            }
            state.under_way += read;
            if state
                .stdin
                .write_all(&Frame::new(Kind::Stdin, &buffer[..read]).encode())
                .is_err()
            {
                return;
            }
        }
        // The machine may be gone by now.
        let _ = self.send(&Frame::new(Kind::StdinEof, []));
    }
}
