//! Pipes, anonymous and named: `pipe(7)`.
//!
//! A pipe holds 64 KiB. A write of at most `PIPE_BUF` bytes goes in whole or not at all, so lines
//! of several writers never mix. Readers and writers wait on a [`PollQueue`] each; whoever changes
//! the buffer tells the other side.

mod splice;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::errno::Errno;
use task::Mutex;

use crate::charge::{self, Charge, Resource};
use crate::file::{Blocking, FileOps, OpenFlags};
use crate::ioctl::IoctlRequest;
use crate::poll::{Events, PollQueue, PollTable};
use crate::{File, FileType, Path, Result};

/// Writes up to this size are atomic.
pub const PIPE_BUF: usize = 4096;
/// Bytes that a new pipe holds.
pub const CAPACITY: usize = 65_536;
/// Bytes that a new pipe of a user holds whose pipes hold much.
const SMALL_CAPACITY: usize = 2 * PIPE_BUF;
/// The most that `F_SETPIPE_SZ` grants to everybody (`/proc/sys/fs/pipe-max-size`).
pub static MAX_SIZE: AtomicUsize = AtomicUsize::new(1 << 20);
/// The most that it grants at all; Linux has no memory for the descriptions of more pages.
const HARD_MAX_CAPACITY: usize = 1 << 28;

/// Capacity of a pipe that is to hold so many bytes: a power of two of pages.
fn round_size(bytes: usize) -> usize {
    bytes.max(PIPE_BUF).next_power_of_two()
}

/// Sets [`MAX_SIZE`], to at least `bytes`.
///
/// # Errors
/// `EINVAL` for what no pipe can hold.
pub fn set_max_size(bytes: usize) -> Result<()> {
    if bytes > 1 << 31 {
        return Err(Errno::EINVAL);
    }
    MAX_SIZE.store(round_size(bytes), Ordering::Relaxed);
    Ok(())
}

struct State {
    data: VecDeque<u8>,
    capacity: usize,
    /// Room that is kept for bytes on their way here.
    reserved: usize,
    /// Charge of the user for the capacity; none for named pipes, and for the kernel's own.
    charge: Option<Charge>,
    readers: usize,
    writers: usize,
    /// How often each side was opened, so that an opener that waits for the other side sees one
    /// that has already gone again.
    reader_opens: u64,
    writer_opens: u64,
}

impl State {
    /// How many bytes can be put in.
    fn room(&self) -> usize {
        self.capacity
            .saturating_sub(self.data.len() + self.reserved)
    }

    /// Makes sure that so many bytes can be put in beside those whose room is kept.
    fn grow(&mut self, bytes: usize) -> Result<()> {
        let more = self.reserved + bytes;
        if self.data.capacity() - self.data.len() < more && !vm::has_kernel_room() {
            return Err(Errno::ENOMEM);
        }
        let reserved = self.data.try_reserve(more);
        reserved.map_err(|_| Errno::ENOMEM)
    }

    /// How often readers (or writers) opened the pipe.
    fn open_count(&self, readers: bool) -> u64 {
        if readers {
            self.reader_opens
        } else {
            self.writer_opens
        }
    }
}

/// A pipe, without its ends.
pub struct Pipe {
    _counted: census::Pipe,
    state: Mutex<State>,
    /// Notified when there is more to read, or no writer any more.
    readable: PollQueue,
    /// Notified when there is more room, or no reader any more.
    writable: PollQueue,
}

impl Pipe {
    /// An empty pipe without ends.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with(CAPACITY, None)
    }

    fn with(capacity: usize, charge: Option<Charge>) -> Arc<Self> {
        Arc::new(Self {
            _counted: census::Pipe::default(),
            state: Mutex::new(State {
                data: VecDeque::new(),
                capacity,
                reserved: 0,
                charge,
                readers: 0,
                writers: 0,
                reader_opens: 0,
                writer_opens: 0,
            }),
            readable: PollQueue::new(),
            writable: PollQueue::new(),
        })
    }

    /// Adds an end for who reads, writes or both. Also returns how the other side stood at that
    /// moment: how many ends it has, and how often it was opened.
    fn add_end(self: &Arc<Self>, flags: OpenFlags) -> (PipeEnd, usize, u64) {
        let (reads, writes) = (flags.is_readable(), flags.is_writable());
        let mut state = self.state.lock();
        if reads {
            state.readers += 1;
            state.reader_opens += 1;
        }
        if writes {
            state.writers += 1;
            state.writer_opens += 1;
        }
        let (partners, seen) = if reads {
            (state.writers, state.writer_opens)
        } else {
            (state.readers, state.reader_opens)
        };
        drop(state);
        // Whoever waits for this side to be opened.
        if reads {
            self.writable.notify();
        }
        if writes {
            self.readable.notify();
        }
        (
            PipeEnd {
                pipe: self.clone(),
                reads,
                writes,
            },
            partners,
            seen,
        )
    }

    /// Writes what there is room for, if that is at least `needed`; `None` if the caller shall
    /// wait. Inlined where nobody waits, which is what most calls come to.
    #[inline(always)]
    fn try_write(&self, buf: &[u8], needed: usize, blocking: Blocking) -> Option<Result<usize>> {
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Some(Err(Errno::EPIPE));
        }
        let room = state.room();
        if room < needed {
            return blocking.would_block();
        }
        let n = room.min(buf.len());
        Some(state.grow(n).map(|()| {
            state.data.extend(&buf[..n]);
            n
        }))
    }

    #[inline(never)]
    fn wait_and_write(&self, buf: &[u8], needed: usize) -> Result<usize> {
        self.writable
            .wait(|| self.try_write(buf, needed, Blocking::Wait))?
    }

    fn read(&self, buf: &mut [u8], blocking: Blocking) -> Result<usize> {
        let attempt = || {
            let mut state = self.state.lock();
            if state.data.is_empty() {
                return if state.writers == 0 {
                    Some(Ok(0))
                } else {
                    blocking.would_block()
                };
            }
            let n = drain_into(&mut state.data, buf);
            Some(Ok(n))
        };
        let n = self.readable.wait(attempt)??;
        if n > 0 {
            self.writable.notify_events(Events::WRITABLE);
        }
        Ok(n)
    }

    fn write(&self, buf: &[u8], blocking: Blocking) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &buf[done..];
            // What must go in before a part is worth it: all of a small write, anything of a large
            // one.
            let needed = if buf.len() <= PIPE_BUF { rest.len() } else { 1 };
            let attempt = self.try_write(rest, needed, blocking);
            match attempt.unwrap_or_else(|| self.wait_and_write(rest, needed)) {
                Ok(n) => done += n,
                Err(e) => return if done > 0 { Ok(done) } else { Err(e) },
            }
            self.readable.notify_events(Events::READABLE);
        }
        Ok(done)
    }
}

/// Moves the front of a queue into a buffer.
pub(crate) fn drain_into(data: &mut VecDeque<u8>, buf: &mut [u8]) -> usize {
    let n = data.len().min(buf.len());
    let (front, back) = data.as_slices();
    if n <= front.len() {
        buf[..n].copy_from_slice(&front[..n]);
    } else {
        buf[..front.len()].copy_from_slice(front);
        buf[front.len()..n].copy_from_slice(&back[..n - front.len()]);
    }
    if n == data.len() {
        // The ordinary case, and a fraction of the work.
        data.clear();
    } else {
        data.drain(..n);
    }
    n
}

/// An open end of a pipe: the reading end, the writing end, or (a named pipe opened `O_RDWR`) both.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
}

impl PipeEnd {
    /// Bytes that the pipe holds at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pipe.state.lock().capacity
    }

    /// Reads what is there now, without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if nothing is there and somebody may still write.
    pub fn try_read(&self, buf: &mut [u8]) -> Result<usize> {
        self.pipe.read(buf, Blocking::Fail)
    }

    /// Puts back the end of what was read, which nobody got.
    pub fn unread(&self, bytes: &[u8]) {
        self.pipe.put_back(bytes);
    }

    /// Sets the capacity, rounded up to a power of two of pages (`F_SETPIPE_SZ`). Who grows it
    /// beyond [`MAX_SIZE`], or beyond what users' pipes may hold, must be allowed to have `any`.
    ///
    /// # Errors
    /// `EINVAL` for what no pipe can hold, `EPERM`, `ENOMEM`, `EBUSY` if more is in the pipe.
    pub fn set_capacity(&self, bytes: usize, any: bool) -> Result<usize> {
        if bytes > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let bytes = round_size(bytes);
        let mut state = self.pipe.state.lock();
        if bytes > state.capacity && bytes > MAX_SIZE.load(Ordering::Relaxed) && !any {
            return Err(Errno::EPERM);
        }
        if state.data.len() > bytes {
            return Err(Errno::EBUSY);
        }
        if bytes > HARD_MAX_CAPACITY {
            return Err(Errno::ENOMEM);
        }
        let most = if any { usize::MAX } else { most_pages() };
        if let Some(charge) = &mut state.charge
            && !charge.resize(bytes / PIPE_BUF, most)
        {
            return Err(Errno::EPERM);
        }
        state.capacity = bytes;
        drop(state);
        self.pipe.writable.notify();
        Ok(bytes)
    }
}

impl FileOps for PipeEnd {
    fn memory(&self) -> usize {
        self.pipe.state.lock().data.capacity()
    }

    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        self.pipe.read(buf, file.blocking())
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        self.pipe.write(buf, file.blocking())
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            if self.reads {
                table.poll_wait(&self.pipe.readable);
            }
            if self.writes {
                table.poll_wait(&self.pipe.writable);
            }
        }
        let state = self.pipe.state.lock();
        let mut events = Events::empty();
        if self.reads {
            if !state.data.is_empty() {
                events |= Events::READABLE;
            }
            // A named pipe that never had a writer is not hung up, only empty.
            if state.writers == 0 && state.writer_opens > 0 {
                events |= Events::HUP;
            }
        }
        if self.writes {
            if state.room() >= PIPE_BUF {
                events |= Events::WRITABLE;
            }
            if state.readers == 0 {
                events |= Events::ERR;
            }
        }
        events
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        match request.command {
            linux_raw_sys::ioctl::FIONREAD => {
                let n = self.pipe.state.lock().data.len();
                request.write(&i32::try_from(n).unwrap_or(i32::MAX))?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let leftover;
        {
            let mut state = self.pipe.state.lock();
            state.readers -= usize::from(self.reads);
            state.writers -= usize::from(self.writes);
            // Nobody can read what is left once both sides are closed; a named pipe starts empty
            // again.
            leftover = (state.readers == 0 && state.writers == 0)
                .then(|| core::mem::take(&mut state.data));
        }
        drop(leftover);
        if self.reads {
            self.pipe.writable.notify();
        }
        if self.writes {
            self.pipe.readable.notify();
        }
    }
}

/// Pages that a user's pipes may hold to grow further.
fn most_pages() -> usize {
    let limits = [&charge::PIPE_USER_PAGES_SOFT, &charge::PIPE_USER_PAGES_HARD];
    let set = limits.map(charge::Limit::get).into_iter();
    set.filter(|pages| *pages != 0).min().unwrap_or(usize::MAX)
}

/// A new pipe's reading and writing end, of which `user` is charged for what it may hold: little if
/// the user's pipes may hold much already, unless he may have `any`. `flags` as for [`pipe`].
///
/// # Errors
/// `ENFILE` if the user has as much as there may be.
pub fn pipe_for(user: u32, any: bool, flags: OpenFlags) -> Result<(Arc<File>, Arc<File>)> {
    let new = |bytes: usize, most: usize| {
        let charge = Charge::new(user, Resource::PipePages, bytes / PIPE_BUF, most)?;
        Some((bytes, charge))
    };
    let hard = match charge::PIPE_USER_PAGES_HARD.get() {
        0 => usize::MAX,
        pages => pages,
    };
    let most = if any { usize::MAX } else { most_pages() };
    let made = new(CAPACITY, most).or_else(|| new(SMALL_CAPACITY, hard));
    let (capacity, charge) = made.ok_or(Errno::ENFILE)?;
    Ok(ends(&Pipe::with(capacity, Some(charge)), flags))
}

/// A new pipe's reading and writing end. `flags` may hold `O_NONBLOCK`, `O_DIRECT` (accepted).
#[must_use]
pub fn pipe(flags: OpenFlags) -> (Arc<File>, Arc<File>) {
    ends(&Pipe::new(), flags)
}

fn ends(pipe: &Arc<Pipe>, flags: OpenFlags) -> (Arc<File>, Arc<File>) {
    let again = Arc::downgrade(pipe);
    // Opening it again does not wait for the other side, which may have gone for good.
    let path = Path::anonymous("pipe:", FileType::Fifo, 0o600, move |flags| {
        let pipe = again.upgrade().ok_or(Errno::ENXIO)?;
        Ok(Arc::new(pipe.add_end(flags).0))
    });
    let reader = File::new(
        path.clone(),
        Arc::new(pipe.add_end(OpenFlags::RDONLY).0),
        flags - OpenFlags::DIRECT,
    );
    let writer = File::new(
        path,
        Arc::new(pipe.add_end(OpenFlags::WRONLY).0),
        flags | OpenFlags::WRONLY,
    );
    (reader, writer)
}

/// Opens a named pipe (`fifo(7)`): waits for the other side unless `O_NONBLOCK` or `O_RDWR`.
///
/// # Errors
/// `ENXIO` for a non-blocking writer without a reader, `EINVAL` for who neither reads nor writes,
/// `ERESTARTSYS` when interrupted.
pub(crate) fn open_fifo(pipe: &Arc<Pipe>, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
    let nonblocking = flags.contains(OpenFlags::NONBLOCK);
    let (reads, writes) = (flags.is_readable(), flags.is_writable());
    if !reads && !writes {
        return Err(Errno::EINVAL);
    }
    if writes && !reads && nonblocking && pipe.state.lock().readers == 0 {
        return Err(Errno::ENXIO);
    }
    let (end, partners, seen) = pipe.add_end(flags);
    if reads != writes && !nonblocking && partners == 0 {
        // A partner that came and went again in the meantime counts: its file is closed, and so is
        // this one's wait.
        let came = || pipe.state.lock().open_count(writes) != seen;
        let source = if reads {
            &pipe.readable
        } else {
            &pipe.writable
        };
        source.wait(|| came().then_some(()))?;
    }
    Ok(Arc::new(end))
}
