//! Wake-ups with rare causes, and wake-ups that come as their thread gives up waiting: nobody
//! sleeps for ever beside what it waits for.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::{ptr, thread};

use anyhow::{Context, Result, anyhow, ensure};
use libc::{c_int, c_void};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("lost-wakeups-writers-of-a-pipe-that-grows", pipe_that_grows),
    ("lost-wakeups-waiters-that-were-moved", moved_waiters),
    (
        "lost-wakeups-go-on-from-readers-of-a-pipe",
        readers_of_a_pipe,
    ),
    (
        "lost-wakeups-go-on-from-readers-of-an-event",
        readers_of_an_event,
    ),
    (
        "lost-wakeups-go-on-from-readers-of-a-socket",
        readers_of_a_socket,
    ),
    (
        "lost-wakeups-go-on-from-readers-of-a-message-queue",
        readers_of_a_queue,
    ),
];

const PAGE: usize = 4096;
const ROUNDS: usize = 20;

/// A thread's number, once it has one.
#[derive(Default)]
pub struct Number(AtomicI32);

impl Number {
    /// The calling thread's is this one.
    pub fn tell(&self) {
        // SAFETY: no arguments.
        self.0.store(unsafe { libc::gettid() }, Ordering::Release);
    }

    /// Waits until the thread sleeps, in whatever call it makes.
    pub fn sleeps(&self) -> Result<()> {
        loop {
            let number = self.0.load(Ordering::Acquire);
            if number != 0 {
                let stat = fs::read_to_string(format!("/proc/self/task/{number}/stat"))
                    .context("the thread ended")?;
                if stat
                    .rsplit_once(')')
                    .is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
                {
                    return Ok(());
                }
            }
            thread::yield_now();
        }
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

fn pipe() -> Result<[OwnedFd; 2]> {
    let mut fds = [0; 2];
    // SAFETY: room for two; nothing else has the descriptors.
    checked(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: nothing else has the descriptors.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn write(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the bytes are there.
    let written = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

fn read(fd: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: there is so much room.
    let read = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// A writer of a full pipe goes on when the pipe becomes larger.
fn pipe_that_grows() -> Result<()> {
    let [_reader, writer] = pipe()?;
    let size = |bytes: usize| {
        // SAFETY: numbers only.
        checked(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, bytes as c_int) })
    };
    ensure!(
        size(PAGE)? as usize == PAGE && write(&writer, &[1; PAGE])? == PAGE,
        "the pipe is not full"
    );
    for room in [2, 4, 8] {
        let (number, bytes) = (Number::default(), vec![2; room * PAGE / 2]);
        thread::scope(|scope| {
            let slow = scope.spawn(|| {
                number.tell();
                Ok(write(&writer, &bytes)?)
            });
            number.sleeps()?;
            size(room * PAGE)?;
            ensure!(joined(slow)? == room * PAGE / 2, "the writer wrote less");
            Ok(())
        })?;
    }
    Ok(())
}

fn futex(
    word: &AtomicU32,
    operation: c_int,
    value: u32,
    more: usize,
    other: *const AtomicU32,
) -> io::Result<i64> {
    // SAFETY: both words are there as long as the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            ptr::from_ref(word),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            more as *const c_void,
            other,
            0,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A waiter that was moved to another word is woken there, once, and nowhere else; alone or with
/// others.
fn moved_waiters() -> Result<()> {
    const WAITERS: u32 = 4;
    for round in 0..ROUNDS {
        let (from, to, awake) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            let (from, awake) = (&from, &awake);
            let wait = move || {
                futex(from, libc::FUTEX_WAIT, 0, 0, ptr::null())?;
                awake.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            let waiters: Vec<_> = (0..WAITERS).map(|_| scope.spawn(wait)).collect();
            let mut moved = 0;
            while moved < i64::from(WAITERS) {
                moved += futex(from, libc::FUTEX_REQUEUE, 0, i32::MAX as usize, &to)?;
                thread::yield_now();
            }
            let mut found = vec![
                moved,
                futex(from, libc::FUTEX_WAKE, i32::MAX as u32, 0, ptr::null())?,
            ];
            let most = if round % 2 == 0 { 1 } else { 2 };
            for _ in 0..WAITERS / most {
                found.push(futex(&to, libc::FUTEX_WAKE, most, 0, ptr::null())?);
            }
            found.push(futex(&to, libc::FUTEX_WAKE, 1, 0, ptr::null())?);
            let mut wanted = vec![i64::from(WAITERS), 0];
            wanted.extend((0..WAITERS / most).map(|_| i64::from(most)));
            wanted.push(0);
            ensure!(
                found == wanted,
                "round {round}: moved, woken where they were, woken where they are: {found:?}"
            );
            waiters.into_iter().try_for_each(joined)
        })?;
        ensure!(
            awake.load(Ordering::SeqCst) == WAITERS,
            "round {round}: not all of them woke up"
        );
    }
    Ok(())
}

type Give = fn(&OwnedFd, &[u8]) -> io::Result<usize>;
type Take = fn(&OwnedFd, &mut [u8]) -> io::Result<usize>;

extern "C" fn nothing(_: c_int) {}

/// Two threads wait for one thing. One of them is interrupted as the thing comes: then it has it,
/// or the other one gets it.
fn go_on(make: fn() -> Result<[OwnedFd; 2]>, give: Give, take: Take, thing: &[u8]) -> Result<()> {
    // SAFETY: a handler that does nothing, and does not have calls begun anew.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        checked(libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut()))?;
    }
    for round in 0..ROUNDS {
        let [reader, writer] = make()?;
        let (numbers, over) = (
            [Number::default(), Number::default()],
            AtomicBool::new(false),
        );
        let hasty = round % 2;
        let wait = |number: &Number| {
            number.tell();
            take(&reader, &mut vec![0; thing.len()])
        };
        thread::scope(|scope| {
            // The one that is interrupted waits before the other, or behind it.
            let early = scope.spawn(|| Ok(wait(&numbers[0])));
            numbers[0].sleeps()?;
            let late = scope.spawn(|| Ok(wait(&numbers[1])));
            numbers[1].sleeps()?;
            let interrupter = scope.spawn(|| {
                let number = numbers[hasty].0.load(Ordering::Acquire);
                while !over.load(Ordering::Acquire) {
                    // SAFETY: numbers only. The thread may have ended.
                    unsafe {
                        libc::syscall(libc::SYS_tgkill, libc::getpid(), number, libc::SIGUSR1)
                    };
                    thread::yield_now();
                }
                Ok(())
            });
            let given = give(&writer, thing);
            let mut threads = [Some(early), Some(late)];
            let interrupted = joined(threads[hasty].take().context("it is there")?)?;
            over.store(true, Ordering::Release);
            joined(interrupter)?;
            given?;
            match interrupted {
                Ok(_) => drop(give(&writer, thing)?),
                Err(error) => ensure!(
                    error.kind() == io::ErrorKind::Interrupted,
                    "round {round}: {error}"
                ),
            }
            let other = joined(threads[1 - hasty].take().context("it is there")?)?;
            ensure!(
                other.with_context(|| format!("round {round}"))? == thing.len(),
                "round {round}: it got less"
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn readers_of_a_pipe() -> Result<()> {
    go_on(pipe, write, read, b"x")
}

fn readers_of_an_event() -> Result<()> {
    let make = || {
        // SAFETY: numbers only; nothing else has the descriptor.
        let event = unsafe {
            OwnedFd::from_raw_fd(checked(libc::eventfd(
                0,
                libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC,
            ))?)
        };
        Ok([event.try_clone()?, event])
    };
    go_on(make, write, read, &1_u64.to_ne_bytes())
}

fn readers_of_a_socket() -> Result<()> {
    let make = || {
        let mut fds = [0; 2];
        // SAFETY: room for two; nothing else has the descriptors.
        checked(unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
                0,
                fds.as_mut_ptr(),
            )
        })?;
        // SAFETY: nothing else has the descriptors.
        Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
    };
    go_on(make, write, read, b"datagram")
}

fn readers_of_a_queue() -> Result<()> {
    let make = || {
        let name = std::ffi::CString::new(format!("/wakes-{}", std::process::id()))?;
        // SAFETY: the name ends with a zero byte, and the attributes are there; nothing else has
        // the descriptor.
        let queue = unsafe {
            let mut attributes: libc::mq_attr = std::mem::zeroed();
            (attributes.mq_maxmsg, attributes.mq_msgsize) = (2, 8);
            let fd = checked(libc::mq_open(
                name.as_ptr(),
                libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
                0o600,
                &mut attributes,
            ))?;
            checked(libc::mq_unlink(name.as_ptr()))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok([queue.try_clone()?, queue])
    };
    let give: Give = |queue, bytes| {
        // SAFETY: the bytes are there.
        let sent =
            unsafe { libc::mq_send(queue.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        checked(sent).map(|_| bytes.len())
    };
    let take: Take = |queue, bytes| {
        // SAFETY: there is so much room.
        let received = unsafe {
            libc::mq_receive(
                queue.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    };
    go_on(make, give, take, b"messages")
}
