//! Programs that the supervisor asks for beside the first one (`abi::exec`): their slots in the
//! window, and their streams as files.
//!
//! A thread of its own runs each program and waits for its end. From the answer that a program has
//! ended, or was hung up, its streams lead nowhere, whoever still has them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use abi::boot::{self, Boot};
use abi::errno::Errno;
use abi::exec::{Answer, EXECS, ExecSlot, REQUEST_BYTES, STREAMS, Verdict};
use fs::poll::{Events, PollQueue, PollTable};
use fs::tty::Tty;
use fs::{File, FileOps, OpenFlags, Result};
use ring::{Consumer, Producer};
use task::Mutex;

use crate::exec_terminal::{self, Terminal};
use crate::window;

/// A program that was asked for and runs.
pub trait ExecProgram: Send + Sync {
    /// Delivers a signal to it.
    fn signal(&self, signal: u32);
    /// Tells it that its user has gone away.
    fn hang_up(&self);
    /// Waits for its end; returns its status as shells show it.
    fn wait(&self) -> u8;
}

/// A program that is asked for.
pub struct ExecRequest<'a> {
    /// Arguments, and variables and working directory beside those of the first program.
    pub boot: Boot<'a>,
    /// User of the program.
    pub user: u32,
    /// Group of the program.
    pub group: u32,
    /// Standard streams: descriptors 0 to 2.
    pub stdio: ExecStdio,
}

/// Descriptors 0 to 2 of a program that is asked for.
pub enum ExecStdio {
    /// Files that lead nowhere.
    Nowhere,
    /// A stream each.
    Streams([Arc<File>; STREAMS]),
    /// A terminal, which controls the program's session.
    Terminal(Arc<Tty>),
}

/// Runs a program that is asked for; an error is that of `execve(2)`.
pub type RunProgram = fn(&ExecRequest<'_>) -> Result<Arc<dyn ExecProgram>>;

/// Status of a program whose user has gone away, as that of one which SIGHUP ended.
const HUNG_UP: u8 = 128 + 1;

/// A way to answer that is none, for tests of the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExecFault {
    /// No answer.
    Never = 1,
    /// Words that are no answers, or answers to something else.
    Nonsense,
    /// More after the last word.
    Twice,
}

static FAULT: AtomicU8 = AtomicU8::new(0);

impl ExecFault {
    const ALL: [Self; 3] = [Self::Never, Self::Nonsense, Self::Twice];

    /// The fault of this name, as tests write it to `/proc/skerry/fault`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "exec-never" => Self::Never,
            "exec-nonsense" => Self::Nonsense,
            "exec-twice" => Self::Twice,
            _ => return None,
        })
    }

    /// Has this instance answer like this from now on.
    pub fn inject(self) {
        FAULT.store(self as u8, Ordering::Relaxed);
    }

    fn now() -> Option<Self> {
        let now = FAULT.load(Ordering::Relaxed);
        Self::ALL.into_iter().find(|fault| *fault as u8 == now)
    }
}

/// A slot as this side has it.
struct Slot {
    /// The last number that was asked for.
    seen: AtomicU32,
    /// Innermost of all locks here.
    current: Mutex<Option<Current>>,
    /// Notified when the supervisor rang, and when the slot is left.
    changed: PollQueue,
}

/// The program that uses a slot.
struct Current {
    number: u32,
    input: Consumer<'static>,
    outputs: [Producer<'static>; STREAMS - 1],
    program: Option<Arc<dyn ExecProgram>>,
    terminal: Option<Arc<Terminal>>,
}

static SLOTS: [Slot; EXECS] = [const {
    Slot {
        seen: AtomicU32::new(0),
        current: Mutex::new(None),
        changed: PollQueue::new(),
    }
}; EXECS];

fn shared(at: usize) -> &'static ExecSlot {
    &window().execs[at]
}

/// The terminal of the program of a slot.
pub(crate) fn terminal(at: usize) -> Option<Arc<Terminal>> {
    SLOTS[at].current.lock().as_ref()?.terminal.clone()
}

/// Gives the program of this number its terminal; the ring of standard error is at its end then.
/// The terminal is gone when the program is.
pub(crate) fn set_terminal(at: usize, number: u32, terminal: Arc<Terminal>) {
    let mut current = SLOTS[at].current.lock();
    if let Some(current) = current.as_mut().filter(|current| current.number == number) {
        current.outputs[1].close();
        current.terminal = Some(terminal);
    }
}

/// Does what the supervisor asks for, and tells the users of streams to look again.
pub(crate) fn look_at_slots(run: RunProgram) {
    for (at, slot) in SLOTS.iter().enumerate() {
        let asked = shared(at).asked.load(Ordering::Acquire);
        if asked != slot.seen.swap(asked, Ordering::Relaxed) {
            begin(at, asked, run);
        }
        hang_up(at);
        exec_terminal::receive_input(at);
        slot.changed.notify();
    }
}

/// A request, copied before the slot is answered for: afterwards the supervisor may write the next
/// one there.
struct Asked {
    request: Vec<u8>,
    user: u32,
    group: u32,
    winsize: u32,
    detached: bool,
}

impl Asked {
    fn read(shared: &ExecSlot) -> Result<Self> {
        let len = shared.request_len.load(Ordering::Relaxed) as usize;
        let mut request = fallible::with_capacity(len.min(REQUEST_BYTES))?;
        let bytes = shared.request.iter().take(len);
        request.extend(bytes.map(|byte| byte.load(Ordering::Relaxed)));
        Ok(Self {
            request,
            user: shared.user.load(Ordering::Relaxed),
            group: shared.group.load(Ordering::Relaxed),
            winsize: shared.winsize.load(Ordering::Relaxed),
            detached: shared.detached.load(Ordering::Relaxed) != 0,
        })
    }
}

/// Takes a slot for a program, and has a thread run it.
fn begin(at: usize, number: u32, run: RunProgram) {
    let shared = shared(at);
    let producer = |stream: usize| Producer::new(&shared.rings[stream], &shared.areas[stream]);
    let before = SLOTS[at].current.lock().replace(Current {
        number,
        input: Consumer::new(&shared.rings[0], &shared.areas[0]),
        outputs: [producer(1), producer(2)],
        program: None,
        terminal: None,
    });
    drop(before);
    let served = Asked::read(shared).and_then(|asked| {
        let body = move || serve(at, number, &asked, run);
        task::spawn("exec", None, body).map_err(|_| Errno::ENOMEM)
    });
    if let Err(error) = served {
        leave(at, number, refused(error));
    }
}

fn refused(error: Errno) -> Verdict {
    Verdict::Refused(error.raw() as u16)
}

/// Main function of the thread of a program.
fn serve(at: usize, number: u32, asked: &Asked, run: RunProgram) {
    let program = match start(at, number, asked, run) {
        Ok(program) => program,
        Err(error) => return leave(at, number, refused(error)),
    };
    if asked.detached {
        return leave(at, number, Verdict::Started);
    }
    let attended = {
        let mut current = SLOTS[at].current.lock();
        let current = current.as_mut().filter(|current| current.number == number);
        current.map(|current| {
            current.program = Some(program.clone());
            // Before anybody can hang it up: an answer after the last one would take its place, and
            // the slot would never be free.
            answer(at, number, Verdict::Started);
        })
    };
    if attended.is_none() {
        // Its user went away before it ran.
        return program.hang_up();
    }
    let status = program.wait();
    leave(at, number, Verdict::Ended(status));
}

fn start(at: usize, number: u32, asked: &Asked, run: RunProgram) -> Result<Arc<dyn ExecProgram>> {
    let boot = Boot::parse(&asked.request).map_err(|_| Errno::EINVAL)?;
    let stream = |stream: usize, name, flags| {
        let ops = Arc::new(ExecStream { at, number, stream });
        File::anonymous_fifo(name, ops, flags)
    };
    let stdio = if asked.detached {
        ExecStdio::Nowhere
    } else if boot.flags & boot::FLAG_TERMINAL != 0 {
        let owner = (asked.user, asked.group);
        ExecStdio::Terminal(exec_terminal::open(at, number, owner, asked.winsize)?)
    } else {
        ExecStdio::Streams([
            stream(0, "stdin", OpenFlags::RDONLY),
            stream(1, "stdout", OpenFlags::WRONLY),
            stream(2, "stderr", OpenFlags::WRONLY),
        ])
    };
    run(&ExecRequest {
        boot,
        user: asked.user,
        group: asked.group,
        stdio,
    })
}

/// Tells the supervisor what became of a program.
fn answer(at: usize, number: u32, verdict: Verdict) {
    let say = |word: u64| {
        shared(at).answer.store(word, Ordering::Release);
        guard::ipi::ring_peer();
    };
    let right = Answer { number, verdict }.to_word();
    match ExecFault::now() {
        None => say(right),
        Some(ExecFault::Never) => {}
        Some(ExecFault::Nonsense) => {
            let other = Answer {
                number: number + 1,
                verdict,
            };
            let unknown = right & !0xffff_ffff | 9 << 16;
            [other.to_word(), u64::MAX, unknown]
                .into_iter()
                .for_each(say);
        }
        Some(ExecFault::Twice) => {
            say(right);
            if verdict.is_final() {
                let again = [Verdict::Started, Verdict::Ended(99), Verdict::Refused(2)];
                let again = again.map(|verdict| Answer { number, verdict }.to_word());
                again.into_iter().for_each(say);
            }
        }
    }
}

/// Uses a slot no more, unless that was said before, and says so.
fn leave(at: usize, number: u32, verdict: Verdict) {
    let mut current = SLOTS[at].current.lock();
    let gone = current.take_if(|current| current.number == number);
    if gone.is_some() {
        // While nobody can write to the rings any more, and none begins anew.
        answer(at, number, verdict);
    }
    drop(current);
    drop(gone);
    SLOTS[at].changed.notify();
}

/// Leaves a slot whose program's user has gone away, and tells the program.
fn hang_up(at: usize) {
    let hung_up = shared(at).hung_up.load(Ordering::Acquire);
    let gone = {
        let mut current = SLOTS[at].current.lock();
        let gone = current.take_if(|current| current.number == hung_up);
        if gone.is_some() {
            answer(at, hung_up, Verdict::Ended(HUNG_UP));
        }
        gone
    };
    // Its terminal is hung up when it is dropped, which takes the lock.
    if let Some(program) = gone.and_then(|gone| gone.program) {
        program.hang_up();
    }
}

/// Has `get` look for something of the program of this number.
fn find<R>(number: u32, get: impl Fn(&Current) -> Option<R>) -> Option<R> {
    SLOTS.iter().find_map(|slot| {
        let current = slot.current.lock();
        current
            .as_ref()
            .filter(|current| current.number == number)
            .and_then(&get)
    })
}

/// Delivers a signal to the program of this number.
pub(crate) fn signal(number: u32, signal: u32) {
    if let Some(program) = find(number, |current| current.program.clone()) {
        program.signal(signal);
    }
}

/// Tells the terminal of the program of this number its size.
pub(crate) fn resize(number: u32, winsize: u32) {
    if let Some(terminal) = find(number, |current| current.terminal.clone()) {
        terminal.resize(winsize);
    }
}

/// A standard stream of a program that was asked for.
pub(crate) struct ExecStream {
    pub(crate) at: usize,
    pub(crate) number: u32,
    pub(crate) stream: usize,
}

impl ExecStream {
    pub(crate) fn changed(&self) -> &'static PollQueue {
        &SLOTS[self.at].changed
    }

    /// Does something with the rings; `None` if the stream leads nowhere any more.
    fn with<R>(&self, act: impl FnOnce(&mut Current) -> R) -> Option<R> {
        let mut current = SLOTS[self.at].current.lock();
        current
            .as_mut()
            .filter(|current| current.number == self.number)
            .map(act)
    }

    /// Takes what is there. `None`: nothing yet.
    pub(crate) fn pop(&self, buf: &mut [u8]) -> Option<usize> {
        let popped = self.with(|current| {
            let ring = &mut current.input;
            let mut count = ring.pop(buf);
            if count == 0 {
                // Asked for before the last look, which the caller's wait makes.
                ring.want_doorbell();
                count = ring.pop(buf);
            }
            if ring.made_room(count) {
                guard::ipi::ring_peer();
            }
            (count > 0 || ring.is_at_end()).then_some(count)
        });
        popped.unwrap_or(Some(0))
    }

    /// Whether [`Self::push`] would send something, or fail.
    pub(crate) fn has_room(&self) -> bool {
        self.with(|current| current.outputs[self.stream - 1].free() > 0)
            .unwrap_or(true)
    }

    /// Sends what fits. `None`: nothing does.
    pub(crate) fn push(&self, bytes: &[u8]) -> Option<Result<usize>> {
        let pushed = self.with(|current| {
            let ring = &mut current.outputs[self.stream - 1];
            let sent = ring.push(bytes);
            if sent > 0 && ring.take_wanted() {
                guard::ipi::ring_peer();
            }
            (sent > 0).then_some(Ok(sent))
        });
        pushed.unwrap_or(Some(Err(Errno::EPIPE)))
    }
}

impl FileOps for ExecStream {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if file.is_nonblocking() {
            return self.pop(buf).ok_or(Errno::EAGAIN);
        }
        self.changed().wait(|| self.pop(buf))
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let sent = if file.is_nonblocking() {
                self.push(&buf[done..]).unwrap_or(Err(Errno::EAGAIN))
            } else {
                let sent = self.changed().wait(|| self.push(&buf[done..]));
                sent.and_then(|sent| sent)
            };
            match sent {
                Ok(count) => done += count,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(self.changed());
        }
        let events = self.with(|current| {
            let mut events = Events::empty();
            if self.stream > 0 {
                events.set(
                    Events::WRITABLE,
                    current.outputs[self.stream - 1].free() > 0,
                );
                return events;
            }
            current.input.want_doorbell();
            if !current.input.is_empty() {
                events |= Events::READABLE;
            }
            if current.input.is_at_end() {
                events |= Events::READABLE | Events::HUP;
            }
            events
        });
        events.unwrap_or(match self.stream {
            0 => Events::READABLE | Events::HUP,
            _ => Events::WRITABLE | Events::ERR,
        })
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

impl Drop for ExecStream {
    fn drop(&mut self) {
        let closed = self.with(|current| match self.stream {
            0 => false,
            stream => {
                current.outputs[stream - 1].close();
                true
            }
        });
        if closed == Some(true) {
            guard::ipi::ring_peer();
        }
    }
}
