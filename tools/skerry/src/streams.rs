//! Moving bytes between the tool's own streams and an instance's, with one `poll(2)` loop, and
//! telling of signals.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::signal::{
    SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};

use crate::{priority, terminal};

/// Signals that are passed on; `SIGWINCH` tells of the terminal's size.
const SIGNALS: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];
/// Size of the buffer between two descriptors, in bytes.
const BUFFER_LEN: usize = 32 << 10;

/// Number of `SIGINT` or `SIGTERM` after which a user does not wait for a program any more,
/// whatever it makes of them.
const SIGNALS_TO_LEAVE: u32 = 3;

/// Count of the signals that ask to end.
#[derive(Default)]
pub struct Impatience(u32);

impl Impatience {
    /// Counts a signal; true if the user waits no more.
    pub fn is_over_after(&mut self, signal: i32) -> bool {
        self.0 += u32::from(matches!(signal, SIGINT | SIGTERM));
        self.0 >= SIGNALS_TO_LEAVE
    }
}

/// Signals the tool has received, as a descriptor that becomes readable.
pub struct Signals {
    pipe: File,
    came: Vec<(i32, Arc<AtomicBool>)>,
}

impl Signals {
    /// From now on signals are collected here.
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut came = Vec::new();
        for signal in SIGNALS {
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: whoever reads the pipe's byte finds the flag.
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
            came.push((signal, flag));
        }
        Ok(Self {
            pipe: read.into(),
            came,
        })
    }

    /// Takes the signals that came since the last call.
    pub fn take(&mut self) -> Vec<i32> {
        let _ = self.pipe.read(&mut [0; 64]);
        self.came
            .iter()
            .filter(|(_, flag)| flag.swap(false, Ordering::SeqCst))
            .map(|(signal, _)| *signal)
            .collect()
    }

    /// Sleeps for `time`, or until a signal comes that asks to end: then true.
    pub fn wait(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // An error is a signal, which the pipe tells of.
            let _ = poll(
                &mut [PollFd::new(&self.pipe, PollFlags::IN)],
                Some(&timespec(left)),
            );
            if self.take().iter().any(|signal| *signal != SIGWINCH) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }
}

/// Standard input on its way to an instance.
struct Input<'a> {
    from: BorrowedFd<'a>,
    to: File,
    /// Read, not yet written.
    held: Vec<u8>,
}

/// Where a stream of an instance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// To standard output.
    Out,
    /// To standard error.
    Err,
}

/// The streams of one instance.
pub struct Streams<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    input: Option<Input<'a>>,
    outputs: Vec<(File, Sink)>,
}

impl<'a> Streams<'a> {
    /// No streams yet, and where they will go.
    pub fn new(out: &'a mut dyn Write, err: &'a mut dyn Write) -> Self {
        Self {
            out,
            err,
            input: None,
            outputs: Vec::new(),
        }
    }

    /// Copies `from` to the instance's standard input `to`; at the end of `from` that ends too.
    pub fn input(&mut self, from: BorrowedFd<'a>, to: OwnedFd) -> io::Result<()> {
        fcntl_setfl(&to, fcntl_getfl(&to)? | OFlags::NONBLOCK)?;
        self.input = Some(Input {
            from,
            to: to.into(),
            held: Vec::new(),
        });
        Ok(())
    }

    /// Copies the instance's stream `from` to `to`, until its end.
    pub fn output(&mut self, from: OwnedFd, to: Sink) {
        self.outputs.push((from.into(), to));
    }

    /// Where `sink` is.
    pub fn sink(&mut self, sink: Sink) -> &mut dyn Write {
        match sink {
            Sink::Out => self.out,
            Sink::Err => self.err,
        }
    }

    /// Moves bytes until all outputs have ended. `on_signal` is told what came, and of `SIGPIPE`
    /// when the reader of an output is gone; an error from it ends everything.
    pub fn run(
        &mut self,
        mut signals: Option<&mut Signals>,
        on_signal: &mut dyn FnMut(i32) -> io::Result<()>,
    ) -> io::Result<()> {
        priority::lower();
        while !self.outputs.is_empty() {
            let ready = self.wait(signals.as_deref())?;
            if ready.signal
                && let Some(signals) = &mut signals
            {
                signals.take().into_iter().try_for_each(&mut *on_signal)?;
            }
            if ready.input {
                self.move_input();
            }
            let mut readable = ready.outputs.into_iter();
            let (mut result, mut broken) = (Ok(()), false);
            let (out, err) = (&mut *self.out, &mut *self.err);
            self.outputs.retain_mut(|(from, sink)| {
                if !readable.next().unwrap_or(false) {
                    return true;
                }
                match copy_available(
                    from,
                    if *sink == Sink::Out {
                        &mut *out
                    } else {
                        &mut *err
                    },
                ) {
                    Ok(more) => more,
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                        broken = true;
                        false
                    }
                    Err(error) => {
                        result = Err(error);
                        false
                    }
                }
            });
            result?;
            if broken {
                on_signal(SIGPIPE)?;
            }
        }
        Ok(())
    }

    fn wait(&self, signals: Option<&Signals>) -> io::Result<Ready> {
        let mut fds: Vec<PollFd<'_>> = self
            .outputs
            .iter()
            .map(|(from, _)| PollFd::new(from, PollFlags::IN))
            .collect();
        let outputs = fds.len();
        if let Some(signals) = signals {
            fds.push(PollFd::new(&signals.pipe, PollFlags::IN));
        }
        let before_input = fds.len();
        if let Some(input) = &self.input {
            if !input.held.is_empty() {
                fds.push(PollFd::new(&input.to, PollFlags::OUT));
            } else if !terminal::is_background(input.from) {
                fds.push(PollFd::from_borrowed_fd(input.from, PollFlags::IN));
            }
        }
        loop {
            match poll(&mut fds, None) {
                Ok(_) => break,
                // The pipe tells which signal.
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let came = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(Ready {
            outputs: fds[..outputs].iter().map(came).collect(),
            signal: fds[outputs..before_input].iter().any(came),
            input: fds[before_input..].iter().any(came),
        })
    }

    /// One step of standard input.
    fn move_input(&mut self) {
        let Some(input) = &mut self.input else { return };
        if input.held.is_empty() {
            let mut buffer = vec![0; BUFFER_LEN];
            match rustix::io::read(input.from, &mut buffer) {
                Ok(count) if count > 0 => {
                    buffer.truncate(count);
                    input.held = buffer;
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return,
                // Its end, or ours to it: dropping the descriptor tells the instance.
                _ => {
                    self.input = None;
                    return;
                }
            }
        }
        match input.to.write(&input.held) {
            Ok(count) => drop(input.held.drain(..count)),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The instance has ended.
            Err(_) => self.input = None,
        }
    }
}

/// Descriptors that `poll(2)` found ready.
struct Ready {
    outputs: Vec<bool>,
    signal: bool,
    input: bool,
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Copies what can be read now; false at the end.
fn copy_available(from: &mut File, to: &mut dyn Write) -> io::Result<bool> {
    let mut buffer = [0; BUFFER_LEN];
    match from.read(&mut buffer) {
        Ok(0) => Ok(false),
        Ok(count) => {
            to.write_all(&buffer[..count])?;
            to.flush()?;
            Ok(true)
        }
        Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Waits until `from` can be read, a signal has come, or `time` is over; true if it can be read.
pub fn wait_readable(
    from: impl AsFd,
    signals: Option<&Signals>,
    time: Duration,
) -> io::Result<bool> {
    let mut fds = vec![PollFd::new(&from, PollFlags::IN)];
    fds.extend(signals.map(|signals| PollFd::new(&signals.pipe, PollFlags::IN)));
    match poll(&mut fds, Some(&timespec(time))) {
        // The pipe tells which signal.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(!fds[0].revents().is_empty()),
    }
}

/// Whether reading `from` would not block.
pub fn is_ready(from: impl AsFd) -> io::Result<bool> {
    wait_readable(from, None, Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_and_outputs_move_and_end() {
        let (stdin, mut ours) = pipe_with(PipeFlags::CLOEXEC)
            .map(|(r, w)| (r, File::from(w)))
            .unwrap();
        let (theirs, to) = pipe_with(PipeFlags::CLOEXEC)
            .map(|(r, w)| (File::from(r), w))
            .unwrap();
        let (out, mut writes) = pipe_with(PipeFlags::CLOEXEC)
            .map(|(r, w)| (r, File::from(w)))
            .unwrap();
        let program = std::thread::spawn(move || {
            let mut theirs = theirs;
            let mut text = String::new();
            theirs.read_to_string(&mut text).unwrap();
            writes.write_all(text.to_uppercase().as_bytes()).unwrap();
        });
        ours.write_all(&b"word ".repeat(50_000)[..60_000]).unwrap();
        drop(ours);
        let mut printed = Vec::new();
        let mut nothing = Vec::new();
        let mut streams = Streams::new(&mut printed, &mut nothing);
        streams.input(stdin.as_fd(), to).unwrap();
        streams.output(out, Sink::Out);
        streams.run(None, &mut |_| Ok(())).unwrap();
        drop(streams);
        program.join().unwrap();
        assert_eq!(printed.len(), 60_000);
        assert!(printed.starts_with(b"WORD WORD"));
    }
}
