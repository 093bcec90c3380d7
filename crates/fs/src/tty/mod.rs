//! Terminals: `termios(3)`, line editing, job control.
//!
//! A [`Tty`] stands between a [`TtyDriver`] (a serial port, an instance's ring) and the open files
//! of its device node. What arrives goes through [`input::InputBuffer`] to readers; what programs
//! write goes through `output.rs` to the line. Locks, in order: `output` before `state`; neither is
//! held while a signal is sent or a source notified.

pub mod input;
mod ioctl;
pub mod job_control;
mod output;
pub mod pty;
mod termios;

use alloc::string::String;
use alloc::sync::Arc;

use abi::errno::Errno;
use input::InputBuffer;
use job_control::JobControlState;
pub(crate) use job_control::controlling_count;
pub use job_control::{CallerIds, JobControl, controlling, session_leader_exits, set_job_control};
use linux_raw_sys::general as sys;
use output::OutputState;
pub use output::TtyDriver;
use pty::PacketStatus;
use task::{Deadline, Mutex, Once};
pub use termios::{InputMode, Termios, Termios2, WinSize};

use crate::devfs::{self, CharDevice};
use crate::file::{FileOps, OpenFlags};
use crate::ioctl::IoctlRequest;
use crate::poll::{Events, PollQueue, PollTable};
use crate::{DeviceId, File, Result};

struct State {
    termios: Termios,
    /// Locked settings and control characters (`TIOCSLCKTRMIOS`): they stay as they are.
    locked: Termios,
    winsize: WinSize,
    input: InputBuffer,
    /// Output is stopped, by the stop character or `TCXONC`.
    stopped: bool,
    /// The driver was told that there is no room, and waits for [`TtyDriver::resume`].
    throttled: bool,
    exclusive: bool,
    /// Counts hang-ups: a file that was opened before the last one is dead.
    generation: u64,
}

impl State {
    fn input_mode(&self) -> InputMode {
        self.termios.input_mode()
    }

    fn readable(&self) -> bool {
        if self.input_mode().is_canonical() {
            return self.input.has_line();
        }
        let cc = &self.termios.cc;
        // With a timer, or no minimum, one byte is enough to say so.
        let least = if cc[sys::VTIME as usize] == 0 {
            usize::from(cc[sys::VMIN as usize]).max(1)
        } else {
            1
        };
        self.input.available(InputMode::Raw) >= least
    }
}

/// A terminal.
pub struct Tty {
    _counted: census::Terminal,
    name: String,
    id: DeviceId,
    driver: Arc<dyn TtyDriver>,
    state: Mutex<State>,
    output: Mutex<OutputState>,
    jobs: Mutex<JobControlState>,
    /// Notified when there is more to read, and at a hang-up.
    readable: PollQueue,
    /// Notified when stopped output goes on, and at a hang-up.
    writable: PollQueue,
}

impl Tty {
    /// A terminal on `line`. `name` is its node's name below `/dev`.
    #[must_use]
    pub fn new(name: &str, id: DeviceId, line: Arc<dyn TtyDriver>, termios: Termios) -> Arc<Self> {
        Arc::new(Self {
            _counted: census::Terminal::default(),
            name: name.into(),
            id,
            driver: line,
            state: Mutex::new(State {
                termios,
                locked: Termios::zero(),
                winsize: WinSize::default(),
                input: InputBuffer::default(),
                stopped: false,
                throttled: false,
                exclusive: false,
                generation: 0,
            }),
            output: Mutex::new(OutputState::default()),
            jobs: Mutex::new(JobControlState::default()),
            readable: PollQueue::new(),
            writable: PollQueue::new(),
        })
    }

    /// The node's name below `/dev`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device number.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The present settings.
    #[must_use]
    pub fn termios(&self) -> Termios {
        self.state.lock().termios
    }

    /// The window's size.
    #[must_use]
    pub fn winsize(&self) -> WinSize {
        self.state.lock().winsize
    }

    /// Sets the window's size; the foreground group hears `SIGWINCH` if it changed.
    pub fn set_winsize(&self, winsize: WinSize) {
        let old = core::mem::replace(&mut self.state.lock().winsize, winsize);
        if old != winsize {
            self.signal_foreground(sys::SIGWINCH);
        }
    }

    /// Bytes arrived on the line (the driver calls this, in a thread). Returns how many were taken;
    /// the driver keeps the rest until [`TtyDriver::resume`].
    pub fn receive(&self, bytes: &[u8]) -> usize {
        // A line that is not echoed does not care where the cursor is, and need not wait for
        // writers.
        let echoes = self.termios().local(sys::ECHO);
        let column = if echoes { self.output.lock().column } else { 0 };
        let (effects, termios) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let effects = state.input.receive(bytes, &state.termios, column);
            state.throttled |= effects.taken < bytes.len();
            if let Some(stopped) = effects.stopped {
                state.stopped = stopped;
            }
            (effects, state.termios)
        };
        match effects.stopped {
            Some(true) => self.driver.status(PacketStatus::STOP),
            Some(false) => {
                self.driver.status(PacketStatus::START);
                self.writable.notify();
            }
            None => {}
        }
        if !effects.echo.is_empty() {
            self.output
                .lock()
                .echo(&*self.driver, &effects.echo, &termios);
        }
        for signal in effects.signals {
            self.signal_foreground(signal);
        }
        if effects.readable {
            self.readable.notify();
        }
        effects.taken
    }

    /// The line is gone: readers see the end of file, writers `EIO`, the session `SIGHUP`. Openings
    /// made later work again.
    pub fn hang_up(&self) {
        // The signal first: who reads is to die of it, not to see the end of file and go on.
        self.signal_hangup();
        self.invalidate_files();
    }

    /// Makes the files that are open useless: end of file for readers, `EIO` for writers.
    fn invalidate_files(&self) {
        {
            let mut state = self.state.lock();
            state.generation += 1;
            state.input.flush();
            state.stopped = false;
        }
        self.readable.notify();
        self.writable.notify();
        self.after_read();
    }

    /// Opens the terminal.
    ///
    /// # Errors
    /// `EBUSY` while somebody has it for himself (`TIOCEXCL`).
    pub fn open(self: &Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
        let generation = {
            let state = self.state.lock();
            if state.exclusive {
                return Err(Errno::EBUSY);
            }
            state.generation
        };
        self.driver.opened()?;
        if !flags.contains(OpenFlags::NOCTTY) && flags.is_readable() {
            // A session leader without a terminal gets this one, if it is free; otherwise nothing
            // happens.
            let _ = self.set_controlling(false);
        }
        Ok(Arc::new(TtyFile {
            tty: self.clone(),
            generation,
        }))
    }

    /// Whether input would be taken now.
    fn takes_input(&self) -> bool {
        let state = self.state.lock();
        state.input.room(state.input_mode()) > 0
    }

    /// After bytes were read: lets a driver that holds input back go on.
    fn after_read(&self) {
        let resume = {
            let mut state = self.state.lock();
            let room = state.input.room(state.input_mode());
            // In steps, so that a slow reader does not make the driver go on for every byte.
            let enough = state.throttled && room >= input::LINE_MAX;
            if enough {
                state.throttled = false;
            }
            enough
        };
        if resume {
            self.driver.resume();
        }
    }

    fn flush_input(&self) {
        self.state.lock().input.flush();
        self.after_read();
    }
}

/// How much a writer sends before others, and echo, have their turn.
const WRITE_CHUNK: usize = 4096;

/// Operations of an open terminal.
pub struct TtyFile {
    tty: Arc<Tty>,
    generation: u64,
}

impl TtyFile {
    /// The terminal.
    #[must_use]
    pub fn tty(&self) -> &Arc<Tty> {
        &self.tty
    }

    fn hung_up(&self, state: &State) -> bool {
        state.generation != self.generation
    }

    /// Waits for what a canonical or plain raw read needs, then reads.
    fn read_ready(&self, buf: &mut [u8], least: usize) -> Option<usize> {
        let mut state = self.tty.state.lock();
        if self.hung_up(&state) {
            return Some(0);
        }
        let mode = state.input_mode();
        let ready = if mode.is_canonical() {
            state.input.has_line()
        } else {
            state.input.available(InputMode::Raw) >= least
        };
        ready.then(|| state.input.read(buf, mode))
    }
}

impl Drop for TtyFile {
    fn drop(&mut self) {
        self.tty.driver.closed();
    }
}

impl FileOps for TtyFile {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let tty = &self.tty;
        tty.check_foreground(sys::SIGTTIN)?;
        let (mode, min, timer) = {
            let state = tty.state.lock();
            let cc = &state.termios.cc;
            let timer = u64::from(cc[sys::VTIME as usize]) * 100_000_000;
            (
                state.input_mode(),
                usize::from(cc[sys::VMIN as usize]),
                timer,
            )
        };
        let result = if mode.is_canonical() || (timer == 0 && min > 0) {
            let least = min.min(buf.len());
            match self.read_ready(buf, if file.is_nonblocking() { 1 } else { least }) {
                Some(n) => Ok(n),
                None if file.is_nonblocking() => Err(Errno::EAGAIN),
                None => tty.readable.wait(|| self.read_ready(buf, least)),
            }
        } else {
            self.read_timed(file, buf, min, timer)
        };
        tty.after_read();
        result
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let tty = &self.tty;
        let termios = tty.termios();
        if termios.local(sys::TOSTOP) {
            tty.check_foreground(sys::SIGTTOU)?;
        }
        // Nothing is written also while output is stopped.
        if buf.is_empty() {
            let hung_up = self.hung_up(&tty.state.lock());
            return if hung_up { Err(Errno::EIO) } else { Ok(0) };
        }
        let nonblocking = file.is_nonblocking();
        let go = || {
            let state = tty.state.lock();
            if self.hung_up(&state) {
                Some(Err(Errno::EIO))
            } else {
                (!state.stopped).then_some(Ok(()))
            }
        };
        let mut done = 0;
        let result = loop {
            let ready = match go() {
                Some(ready) => ready,
                None if nonblocking => Err(Errno::EAGAIN),
                None => tty.writable.wait(go).flatten(),
            };
            if let Err(e) = ready {
                break Err(e);
            }
            // The lock is not held while this waits: echo must not stand behind a slow reader of
            // the line.
            let (accepted, all_sent) = {
                let mut out = tty.output.lock();
                let turn = (buf.len() - done).min(WRITE_CHUNK);
                (
                    out.write(&*tty.driver, &buf[done..][..turn], &termios),
                    out.flush(&*tty.driver),
                )
            };
            done += accepted;
            if done == buf.len() && (all_sent || nonblocking) {
                break Ok(());
            }
            if accepted == 0 || !all_sent {
                let waited = if nonblocking {
                    Err(Errno::EAGAIN)
                } else {
                    tty.driver.wait_writable()
                };
                if let Err(e) = waited {
                    break Err(e);
                }
            }
        };
        match result {
            Err(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    fn poll(&self, _: &File, mut table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table.as_mut() {
            table.poll_wait(&self.tty.readable);
            table.poll_wait(&self.tty.writable);
        }
        let writable = self.tty.driver.writable(table);
        let state = self.tty.state.lock();
        if self.hung_up(&state) {
            return Events::READABLE | Events::WRITABLE | Events::HUP | Events::ERR;
        }
        let mut events = Events::empty();
        events.set(Events::READABLE, state.readable());
        events.set(Events::WRITABLE, writable && !state.stopped);
        events
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        if self.hung_up(&self.tty.state.lock()) {
            return Err(Errno::EIO);
        }
        self.tty.handle_ioctl(request)
    }
}

impl TtyFile {
    /// A raw read with `VTIME`, or with `VMIN` 0.
    fn read_timed(&self, file: &File, buf: &mut [u8], min: usize, timer: u64) -> Result<usize> {
        let tty = &self.tty;
        if min == 0 {
            // What there is now, or the first that comes within the time.
            let timeout_ns = if file.is_nonblocking() { 0 } else { timer };
            return match self.read_ready(buf, 1) {
                Some(n) => Ok(n),
                None if timeout_ns == 0 => Ok(0),
                None => {
                    let deadline = Deadline::after_ns(timeout_ns);
                    Ok(tty
                        .readable
                        .wait_until(Some(deadline), || self.read_ready(buf, 1))?
                        .unwrap_or(0))
                }
            };
        }
        // The first byte without limit, every further one within the time after the one before.
        let least = min.min(buf.len());
        let mut have = 0;
        while have < least {
            let seen = have;
            let more = || {
                let state = tty.state.lock();
                let now = state.input.available(InputMode::Raw);
                (now > seen || self.hung_up(&state)).then_some(now)
            };
            let found = match more() {
                Some(now) => Some(now),
                None if file.is_nonblocking() && seen == 0 => return Err(Errno::EAGAIN),
                None if file.is_nonblocking() => None,
                None if seen == 0 => Some(tty.readable.wait(more)?),
                None => tty
                    .readable
                    .wait_until(Some(Deadline::after_ns(timer)), more)?,
            };
            match found {
                Some(now) if now > seen => have = now,
                _ => break,
            }
        }
        Ok(self.read_ready(buf, 0).unwrap_or(0))
    }
}

/// A terminal's device node.
struct TtyDevice {
    tty: Arc<Tty>,
}

impl CharDevice for TtyDevice {
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
        self.tty.open(flags)
    }

    fn id(&self) -> Option<DeviceId> {
        Some(self.tty.id)
    }

    fn mode(&self) -> u32 {
        0o620
    }
}

/// Registers a terminal's node.
///
/// # Errors
/// `EEXIST` if the name or number is taken.
pub fn register(tty: &Arc<Tty>) -> Result<()> {
    devfs::register(&tty.name, Arc::new(TtyDevice { tty: tty.clone() })).map(drop)
}

static CONSOLE: Once<Arc<Tty>> = Once::new();

/// Makes a terminal the console: what `/dev/console` opens. Only the first call counts.
pub fn set_console(tty: Arc<Tty>) {
    CONSOLE.call_once(|| tty);
}

/// The console, if there is one.
#[must_use]
pub fn console() -> Option<Arc<Tty>> {
    CONSOLE.get().cloned()
}

/// `/dev/tty`: the caller's controlling terminal.
struct CurrentTty;

impl CharDevice for CurrentTty {
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
        let session = job_control::caller().ok_or(Errno::ENXIO)?.session;
        controlling(session)
            .ok_or(Errno::ENXIO)?
            .open(flags | OpenFlags::NOCTTY)
    }

    fn id(&self) -> Option<DeviceId> {
        Some(DeviceId::new(5, 0))
    }

    fn mode(&self) -> u32 {
        0o666
    }
}

/// `/dev/console`. It never becomes a controlling terminal.
struct ConsoleDevice;

impl CharDevice for ConsoleDevice {
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
        console()
            .ok_or(Errno::ENODEV)?
            .open(flags | OpenFlags::NOCTTY)
    }

    fn id(&self) -> Option<DeviceId> {
        Some(DeviceId::new(5, 1))
    }
}

/// Registers `/dev/tty`, `/dev/console` and `/dev/ptmx`. Called once, at start-up.
///
/// # Errors
/// `EEXIST` when called twice.
pub fn register_standard() -> Result<()> {
    devfs::register("tty", Arc::new(CurrentTty))?;
    devfs::register("console", Arc::new(ConsoleDevice))?;
    pty::register()
}
