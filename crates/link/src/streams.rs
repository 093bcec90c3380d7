//! Standard input, output and error as files over the window's rings.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::poll::{Events, PollQueue, PollTable};
use fs::{File, FileOps, OpenFlags, Result};
use ring::{Consumer, Producer};
use task::{Mutex, Once};

use crate::window;

/// A ring that this instance writes.
pub(crate) struct OutputStream {
    ring: Mutex<Producer<'static>>,
    /// Notified when the supervisor has read.
    pub(crate) writable: PollQueue,
}

/// The ring that this instance reads.
pub(crate) struct InputStream {
    pub(crate) ring: Mutex<Consumer<'static>>,
    /// Notified when the supervisor has written.
    readable: PollQueue,
}

static STDIN: Once<Arc<InputStream>> = Once::new();
static STDOUT: Once<Arc<OutputStream>> = Once::new();
static STDERR: Once<Arc<OutputStream>> = Once::new();

pub(crate) fn input() -> &'static Arc<InputStream> {
    STDIN.call_once(|| {
        let window = window();
        let ring = Consumer::new(&window.stdin, &window.stdin_area);
        ring.want_doorbell();
        Arc::new(InputStream {
            ring: Mutex::new(ring),
            readable: PollQueue::new(),
        })
    })
}

pub(crate) fn output() -> &'static Arc<OutputStream> {
    STDOUT.call_once(|| {
        let window = window();
        Arc::new(OutputStream::new(Producer::new(
            &window.stdout,
            &window.stdout_area,
        )))
    })
}

fn error_output() -> &'static Arc<OutputStream> {
    STDERR.call_once(|| {
        let window = window();
        Arc::new(OutputStream::new(Producer::new(
            &window.stderr,
            &window.stderr_area,
        )))
    })
}

/// Standard input: what the supervisor's writer sends, until it closes.
#[must_use]
pub fn stdin() -> Arc<File> {
    File::anonymous_fifo("stdin", input().clone(), OpenFlags::RDONLY)
}

/// Standard output. Waits while the supervisor does not read.
#[must_use]
pub fn stdout() -> Arc<File> {
    File::anonymous_fifo("stdout", output().clone(), OpenFlags::WRONLY)
}

/// Standard error, as [`stdout`].
#[must_use]
pub fn stderr() -> Arc<File> {
    File::anonymous_fifo("stderr", error_output().clone(), OpenFlags::WRONLY)
}

/// Notifies readers and writers of the streams that the supervisor rang.
pub(crate) fn notify_streams() {
    if let Some(input) = STDIN.get() {
        input.readable.notify();
    }
    for output in [STDOUT.get(), STDERR.get()].into_iter().flatten() {
        output.writable.notify();
    }
}

impl OutputStream {
    fn new(ring: Producer<'static>) -> Self {
        Self {
            ring: Mutex::new(ring),
            writable: PollQueue::new(),
        }
    }

    /// Sends what fits, and rings if the supervisor sleeps.
    pub(crate) fn push(&self, bytes: &[u8]) -> usize {
        let mut ring = self.ring.lock();
        let sent = ring.push(bytes);
        if sent > 0 && ring.take_wanted() {
            guard::ipi::ring_peer();
        }
        sent
    }

    pub(crate) fn has_room(&self) -> bool {
        self.ring.lock().free() > 0
    }
}

impl InputStream {
    /// Takes what is there; rings if the supervisor may wait for room. `None`: nothing yet.
    pub(crate) fn pop(&self, buf: &mut [u8]) -> Option<usize> {
        let mut ring = self.ring.lock();
        let count = ring.pop(buf);
        if ring.made_room(count) {
            guard::ipi::ring_peer();
        }
        if count > 0 {
            return Some(count);
        }
        if ring.is_at_end() {
            return Some(0);
        }
        // Asked for before the last look, which the caller's wait makes.
        ring.want_doorbell();
        let count = ring.pop(buf);
        if ring.made_room(count) {
            guard::ipi::ring_peer();
        }
        (count > 0 || ring.is_at_end()).then_some(count)
    }
}

impl FileOps for InputStream {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if file.is_nonblocking() {
            return self.pop(buf).ok_or(Errno::EAGAIN);
        }
        self.readable.wait(|| self.pop(buf))
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.readable);
        }
        let ring = self.ring.lock();
        ring.want_doorbell();
        let mut events = Events::empty();
        if !ring.is_empty() {
            events |= Events::READABLE;
        }
        if ring.is_at_end() {
            events |= Events::READABLE | Events::HUP;
        }
        events
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

impl FileOps for OutputStream {
    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let sent = self.push(&buf[done..]);
            done += sent;
            if sent > 0 {
                continue;
            }
            if file.is_nonblocking() {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::EAGAIN)
                };
            }
            match self.writable.wait(|| self.has_room().then_some(())) {
                Ok(()) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.writable);
        }
        if self.has_room() {
            Events::WRITABLE
        } else {
            Events::empty()
        }
    }

    fn is_pollable(&self) -> bool {
        true
    }
}
