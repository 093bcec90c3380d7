//! Rare reasons to be woken: whoever waits is told by each of them, and what it waited with can be
//! used afterwards.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::credentials::in_child;

pub const CHECKS: &[(&str, Check)] = &[
    ("wake-reasons-of-requeued-futexes", of_requeued_futexes),
    (
        "wake-reasons-of-requeued-futexes-by-operations",
        of_requeued_by_operations,
    ),
    ("wake-reasons-counts-of-futexes", counts_of_futexes),
    ("wake-reasons-of-private-futexes", of_private_futexes),
    (
        "wake-reasons-futexes-of-memory-there-is-not",
        futexes_of_no_memory,
    ),
    ("wake-reasons-by-a-larger-pipe", by_a_larger_pipe),
    ("wake-reasons-by-the-other-end", by_the_other_end),
    ("wake-reasons-by-shutdown", by_shutdown),
    ("wake-reasons-by-a-larger-backlog", by_a_larger_backlog),
    ("wake-reasons-of-lock-waiters", of_lock_waiters),
    ("wake-reasons-of-ring-of-locks", of_ring_of_locks),
    ("wake-reasons-of-locks-that-touch", of_locks_that_touch),
    ("wake-reasons-by-datagrams", by_datagrams),
    ("wake-reasons-of-parents", of_parents),
    (
        "wake-reasons-of-who-waits-for-a-vfork",
        of_who_waits_for_a_vfork,
    ),
    ("wake-reasons-of-who-gets-orphans", of_who_gets_orphans),
];

const WAIT: i32 = 0;
const WAKE: i32 = 1;
const REQUEUE: i32 = 3;
const CMP_REQUEUE: i32 = 4;
const WAKE_OP: i32 = 5;
/// Words that only this process knows.
const PRIVATE: i32 = 128;

/// A thread of this process, and what the kernel says it is doing.
struct Waiting {
    tid: AtomicI32,
    result: AtomicI64,
}

/// Result of a call that has not returned yet.
const STILL: i64 = i64::MIN;

impl Waiting {
    const fn new() -> Self {
        Self {
            tid: AtomicI32::new(0),
            result: AtomicI64::new(STILL),
        }
    }

    /// Runs `wait` in the thread, and nothing else.
    fn run(&self, wait: impl FnOnce() -> i64) {
        self.tid.store(call!(SYS_gettid) as i32, Ordering::SeqCst);
        self.result.store(wait(), Ordering::SeqCst);
    }

    /// Returns when the thread sleeps.
    fn is_asleep(&self) -> Result<()> {
        loop {
            let tid = self.tid.load(Ordering::SeqCst);
            ensure!(
                self.result.load(Ordering::SeqCst) == STILL,
                "it did not wait: {}",
                self.result.load(Ordering::SeqCst)
            );
            if tid != 0 {
                let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"))?;
                if text
                    .rsplit(')')
                    .next()
                    .is_some_and(|rest| rest.starts_with(" S"))
                {
                    return Ok(());
                }
            }
            thread::yield_now();
        }
    }

    fn still_waits(&self) -> bool {
        self.result.load(Ordering::SeqCst) == STILL
    }

    /// Returns what the wait returned, when it has.
    fn returned(&self) -> i64 {
        while self.still_waits() {
            thread::yield_now();
        }
        self.result.load(Ordering::SeqCst)
    }
}

/// Runs `act` beside threads that each do one of `waits`, when all of them sleep.
fn beside<const N: usize>(
    waits: [&(dyn Fn() -> i64 + Sync); N],
    act: impl FnOnce(&[Waiting; N]) -> Result<()>,
) -> Result<()> {
    let waiting = [const { Waiting::new() }; N];
    thread::scope(|scope| {
        for (waiting, wait) in waiting.iter().zip(waits) {
            scope.spawn(move || waiting.run(wait));
            waiting.is_asleep()?;
        }
        act(&waiting)
    })
    // A wait that is never ended costs the check its time limit, which is what is to be seen.
}

fn futex(
    word: &AtomicU32,
    operation: i32,
    value: u32,
    value2: usize,
    other: Option<&AtomicU32>,
    value3: u32,
) -> i64 {
    call!(
        SYS_futex,
        word.as_ptr(),
        operation,
        value,
        value2,
        other.map_or(0, |other| other.as_ptr() as usize),
        value3
    )
}

fn wait_on(word: &AtomicU32, private: i32) -> i64 {
    futex(word, WAIT | private, 0, 0, None, 0)
}

/// Two words, in different pages.
#[repr(align(4096))]
struct Words([AtomicU32; 2048]);

static WORDS: Words = Words([const { AtomicU32::new(0) }; 2048]);

fn words() -> (&'static AtomicU32, &'static AtomicU32) {
    (&WORDS.0[0], &WORDS.0[1025])
}

fn of_requeued_futexes() -> Result<()> {
    let (first, second) = words();
    for private in [0, PRIVATE] {
        for operation in [REQUEUE, CMP_REQUEUE] {
            let wait = || wait_on(first, private);
            beside([&wait, &wait, &wait], |waiting| {
                // One goes on, one waits for the other word from now on, one stays.
                is(
                    futex(first, operation | private, 1, 1, Some(second), 0),
                    2,
                    "requeue",
                )?;
                is(waiting[0].returned(), 0, "the first waiter")?;
                ensure!(
                    waiting[1].still_waits() && waiting[2].still_waits(),
                    "too many were woken"
                );
                is(
                    futex(second, WAKE | private, 9, 0, None, 0),
                    1,
                    "waking at the new word",
                )?;
                is(waiting[1].returned(), 0, "the second waiter")?;
                is(
                    futex(second, WAKE | private, 9, 0, None, 0),
                    0,
                    "waking at the new word again",
                )?;
                is(
                    futex(first, WAKE | private, 9, 0, None, 0),
                    1,
                    "waking at the old word",
                )?;
                is(waiting[2].returned(), 0, "the third waiter")
            })
            .with_context(|| format!("operation {operation}, {private}"))?;
        }
    }
    // A signal or a time that comes after the move ends the wait as well.
    let span = [0i64, 200_000_000];
    let wait = || futex(first, WAIT | PRIVATE, 0, span.as_ptr() as usize, None, 0);
    beside([&wait], |waiting| {
        is(
            futex(first, REQUEUE | PRIVATE, 0, 1, Some(second), 0),
            1,
            "requeue",
        )?;
        fails(waiting[0].returned(), libc::ETIMEDOUT, "the waiter")?;
        is(
            futex(second, WAKE | PRIVATE, 9, 0, None, 0),
            0,
            "waking nobody",
        )
    })
}

/// The operation of `FUTEX_WAKE_OP` that sets the second word to `value` and also wakes there if it
/// was `was`.
const fn set_if(value: u32, was: u32) -> u32 {
    value << 12 | was
}

fn of_requeued_by_operations() -> Result<()> {
    let (first, second) = words();
    let wait = || wait_on(first, PRIVATE);
    // Moved twice, and woken as the second word of an operation on both.
    beside([&wait, &wait], |waiting| {
        is(
            futex(first, REQUEUE | PRIVATE, 0, 1, Some(second), 0),
            1,
            "requeue",
        )?;
        is(
            futex(second, CMP_REQUEUE | PRIVATE, 0, 1, Some(first), 0),
            1,
            "and back",
        )?;
        is(
            futex(first, REQUEUE | PRIVATE, 0, 1, Some(second), 0),
            1,
            "and forth",
        )?;
        is(
            futex(first, WAKE_OP | PRIVATE, 1, 1, Some(second), set_if(5, 0)),
            2,
            "FUTEX_WAKE_OP",
        )?;
        ensure!(
            second.swap(0, Ordering::SeqCst) == 5,
            "the second word was not set"
        );
        waiting
            .iter()
            .try_for_each(|waiting| is(waiting.returned(), 0, "a waiter"))
    })?;
    // And as the first word.
    beside([&wait], |waiting| {
        is(
            futex(first, REQUEUE | PRIVATE, 0, 1, Some(second), 0),
            1,
            "requeue",
        )?;
        is(
            futex(second, WAKE_OP | PRIVATE, 1, 1, Some(first), set_if(0, 1)),
            1,
            "FUTEX_WAKE_OP",
        )?;
        is(waiting[0].returned(), 0, "the waiter")
    })
}

fn counts_of_futexes() -> Result<()> {
    let (first, second) = words();
    let wait = || wait_on(first, PRIVATE);
    for count in [0u32, 1, u32::MAX] {
        beside([&wait], |waiting| {
            is(
                futex(first, WAKE | PRIVATE, count, 0, None, 0),
                1,
                &format!("waking {}", count as i32),
            )?;
            is(waiting[0].returned(), 0, "the waiter")
        })?;
    }
    for (wakes, moves) in [(u32::MAX, 0), (0, u32::MAX), (i32::MIN as u32, 1)] {
        for operation in [REQUEUE, CMP_REQUEUE] {
            let result = futex(
                first,
                operation | PRIVATE,
                wakes,
                moves as usize,
                Some(second),
                0,
            );
            fails(
                result,
                libc::EINVAL,
                &format!("requeue of {} and {}", wakes as i32, moves as i32),
            )?;
        }
    }
    beside([&wait, &wait, &wait], |waiting| {
        is(
            futex(first, REQUEUE | PRIVATE, 0, 0, Some(second), 0),
            0,
            "requeue of nobody",
        )?;
        is(
            futex(first, CMP_REQUEUE | PRIVATE, 0, 2, Some(second), 0),
            2,
            "requeue of two",
        )?;
        fails(
            futex(first, CMP_REQUEUE | PRIVATE, 0, 2, Some(second), 7),
            libc::EAGAIN,
            "requeue of another value",
        )?;
        is(
            futex(second, WAKE | PRIVATE, 1, 0, None, 0),
            1,
            "waking one of two",
        )?;
        is(
            futex(second, WAKE | PRIVATE, 7, 0, None, 0),
            1,
            "waking seven of one",
        )?;
        is(
            futex(first, WAKE | PRIVATE, 7, 0, None, 0),
            1,
            "waking who stayed",
        )?;
        waiting
            .iter()
            .try_for_each(|waiting| is(waiting.returned(), 0, "a waiter"))
    })
}

/// A word that is said to be private is another than the same word that is not, in memory of every
/// kind.
fn of_private_futexes() -> Result<()> {
    for kind in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_ANONYMOUS,
        );
        let memory = call!(SYS_mmap, 0, 4096, access, kind, -1i32, 0) as usize;
        // SAFETY: new memory, which is large enough and stays.
        let word = unsafe { &*(memory as *const AtomicU32) };
        for (waits, others) in [(PRIVATE, 0), (0, PRIVATE)] {
            let wait = || wait_on(word, waits);
            beside([&wait], |waiting| {
                is(
                    futex(word, WAKE | others, 9, 0, None, 0),
                    0,
                    "waking the other word's",
                )?;
                is(
                    futex(word, WAKE | waits, 9, 0, None, 0),
                    1,
                    "waking the word's own",
                )?;
                is(waiting[0].returned(), 0, "the waiter")
            })?;
        }
    }
    Ok(())
}

fn futexes_of_no_memory() -> Result<()> {
    let file = Fd::new(
        call!(SYS_memfd_create, c"futex".as_ptr(), 0),
        "memfd_create",
    )?;
    is(call!(SYS_ftruncate, file.0, 4096), 0, "ftruncate")?;
    let map = |len: usize, prot: i32, flags: i32, fd: i32| {
        call!(SYS_mmap, 0, len, prot, flags, fd, 0) as usize
    };
    let shared = map(
        8192,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED,
        file.0,
    );
    let nothing = map(
        4096,
        libc::PROT_NONE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
    );
    let gone = map(
        4096,
        libc::PROT_READ,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
    );
    is(call!(SYS_munmap, gone, 4096), 0, "munmap")?;
    is(
        call!(SYS_futex, shared, WAKE, 1, 0, 0, 0),
        0,
        "waking nobody",
    )?;
    for (address, what) in [
        (shared + 4096, "memory behind a file"),
        (nothing, "PROT_NONE"),
        (gone, "nothing"),
    ] {
        fails(
            call!(SYS_futex, address, WAKE, 1, 0, 0, 0),
            libc::EFAULT,
            &format!("waking in {what}"),
        )?;
        fails(
            call!(SYS_futex, address, WAIT, 0, 0, 0, 0),
            libc::EFAULT,
            &format!("waiting in {what}"),
        )?;
        fails(
            call!(SYS_futex, shared, REQUEUE, 1, 1, address, 0),
            libc::EFAULT,
            &format!("requeue to {what}"),
        )?;
        fails(
            call!(SYS_futex, address, REQUEUE, 1, 1, shared, 0),
            libc::EFAULT,
            &format!("requeue from {what}"),
        )?;
    }
    Ok(())
}

fn by_a_larger_pipe() -> Result<()> {
    for polled in [false, true] {
        let [reader, writer] = pipe(0)?;
        let full = vec![1u8; 65_536];
        is(
            call!(SYS_write, writer.0, full.as_ptr(), full.len()),
            65_536,
            "write",
        )?;
        let fd = writer.0;
        let wait = move || -> i64 {
            if polled {
                let mut entry = libc::pollfd {
                    fd,
                    events: libc::POLLOUT,
                    revents: 0,
                };
                call!(SYS_poll, &raw mut entry, 1, -1i32)
            } else {
                call!(SYS_write, fd, c"x".as_ptr(), 1)
            }
        };
        beside([&wait], |waiting| {
            is(
                call!(SYS_fcntl, reader.0, libc::F_SETPIPE_SZ, 1 << 17),
                1 << 17,
                "F_SETPIPE_SZ",
            )?;
            is(
                waiting[0].returned(),
                1,
                if polled { "poll" } else { "write" },
            )
        })?;
    }
    Ok(())
}

fn poll_one(fd: i32, events: i16) -> i64 {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let result = call!(SYS_poll, &raw mut entry, 1, -1i32);
    if result == 1 {
        entry.revents.into()
    } else {
        result
    }
}

fn by_the_other_end() -> Result<()> {
    // Who reads or polls a pipe hears of its last writer's end, who writes of its last reader's.
    let mut byte = [0u8; 1];
    let place = byte.as_mut_ptr() as usize;
    let [reader, writer] = pipe(0)?;
    let fd = reader.0;
    let (read, polls) = (
        || call!(SYS_read, fd, place, 1),
        || poll_one(fd, libc::POLLIN),
    );
    beside([&read, &polls], |waiting| {
        drop(writer);
        is(waiting[0].returned(), 0, "read")?;
        is(waiting[1].returned(), libc::POLLHUP.into(), "poll")
    })?;
    let [reader, writer] = pipe(0)?;
    let full = vec![1u8; 65_536];
    is(
        call!(SYS_write, writer.0, full.as_ptr(), full.len()),
        65_536,
        "write",
    )?;
    let fd = writer.0;
    let (write, polls) = (
        || call!(SYS_write, fd, full.as_ptr(), 1),
        || poll_one(fd, libc::POLLOUT),
    );
    beside([&write, &polls], |waiting| {
        drop(reader);
        fails(waiting[0].returned(), libc::EPIPE, "write")?;
        is(waiting[1].returned(), libc::POLLERR.into(), "poll")
    })?;
    // The same of sockets.
    let [near, far] = pair(libc::SOCK_STREAM)?;
    let fd = near.0;
    let (read, polls) = (
        || call!(SYS_read, fd, place, 1),
        || poll_one(fd, libc::POLLIN | libc::POLLRDHUP),
    );
    beside([&read, &polls], |waiting| {
        drop(far);
        is(waiting[0].returned(), 0, "read of a socket")?;
        is(
            waiting[1].returned(),
            (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP).into(),
            "poll of a socket",
        )
    })
}

/// A reader or poller of a socket without connections is woken by datagrams, and by an error.
fn by_datagrams() -> Result<()> {
    let to_itself = |ip: &str| -> Result<std::net::UdpSocket> {
        let socket = std::net::UdpSocket::bind((ip, 0))?;
        socket.connect(socket.local_addr()?)?;
        Ok(socket)
    };
    let sockets = (to_itself("127.0.0.1")?, to_itself("::1")?);
    let [near, far] = pair(libc::SOCK_DGRAM)?;
    let nobody = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
    let (v4, v6, message) = (sockets.0.as_raw_fd(), sockets.1.as_raw_fd(), [0u8; 8]);
    let length = message.len();
    for (what, receives, sends) in [
        ("UDP", v4, v4),
        ("UDP over IPv6", v6, v6),
        ("a pair", near.0, far.0),
    ] {
        let mut room = [0u8; 64];
        let place = room.as_mut_ptr() as usize;
        let (reads, polls) = (
            || call!(SYS_recvfrom, receives, place, 64, 0, 0, 0),
            || poll_one(receives, libc::POLLIN),
        );
        beside([&reads], |waiting| {
            is(
                call!(SYS_write, sends, message.as_ptr(), length),
                length as i64,
                what,
            )?;
            is(waiting[0].returned(), length as i64, what)
        })?;
        beside([&polls], |waiting| {
            is(
                call!(SYS_write, sends, message.as_ptr(), length),
                length as i64,
                what,
            )?;
            is(waiting[0].returned(), libc::POLLIN.into(), what)
        })?;
    }
    nobody.connect(("127.0.0.1", crate::inet_sockets::UNUSED_PORT))?;
    let receives = nobody.as_raw_fd();
    let reads = || call!(SYS_recvfrom, receives, 0, 0, 0, 0, 0);
    beside([&reads], |waiting| {
        is(
            call!(SYS_write, receives, message.as_ptr(), 1),
            1,
            "to nobody",
        )?;
        fails(waiting[0].returned(), libc::ECONNREFUSED, "nobody is there")
    })
}

fn by_shutdown() -> Result<()> {
    let mut byte = [0u8; 1];
    let place = byte.as_mut_ptr() as usize;
    // One's own, and the other's.
    for own in [true, false] {
        let [near, far] = pair(libc::SOCK_STREAM)?;
        let fd = near.0;
        let (read, polls) = (
            || call!(SYS_read, fd, place, 1),
            || poll_one(fd, libc::POLLIN),
        );
        beside([&read, &polls], |waiting| {
            let (fd, how) = if own {
                (near.0, libc::SHUT_RD)
            } else {
                (far.0, libc::SHUT_WR)
            };
            is(call!(SYS_shutdown, fd, how), 0, "shutdown")?;
            is(waiting[0].returned(), 0, "read")?;
            is(waiting[1].returned(), libc::POLLIN.into(), "poll")
        })?;
    }
    // Of a listening socket: who accepts is told so.
    let listener = Fd::new(
        call!(SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0),
        "socket",
    )?;
    is(call!(SYS_listen, listener.0, 1), 0, "listen")?;
    let fd = listener.0;
    let accept = || call!(SYS_accept, fd, 0, 0);
    beside([&accept], |waiting| {
        is(
            call!(SYS_shutdown, fd, libc::SHUT_RD),
            0,
            "shutdown of who listens",
        )?;
        fails(waiting[0].returned(), libc::EINVAL, "accept")
    })
}

/// A thread that waits to connect is woken when a listener takes more.
fn by_a_larger_backlog() -> Result<()> {
    let socket = || {
        Fd::new(
            call!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0),
            "socket",
        )
    };
    let listener = socket()?;
    // A name of the kernel's choice.
    let mut address = [0u8; 110];
    address[0] = libc::AF_UNIX as u8;
    is(call!(SYS_bind, listener.0, address.as_ptr(), 2), 0, "bind")?;
    let mut len = 110u32;
    is(
        call!(
            SYS_getsockname,
            listener.0,
            address.as_mut_ptr(),
            &raw mut len
        ),
        0,
        "getsockname",
    )?;
    is(call!(SYS_listen, listener.0, 0), 0, "listen")?;
    let (first, second) = (socket()?, socket()?);
    is(
        call!(SYS_connect, first.0, address.as_ptr(), len),
        0,
        "the one connection there is room for",
    )?;
    let (fd, place) = (second.0, address.as_ptr() as usize);
    let connect = || call!(SYS_connect, fd, place, len);
    beside([&connect], |waiting| {
        is(call!(SYS_listen, listener.0, 1), 0, "listen again")?;
        is(waiting[0].returned(), 0, "connect")
    })
}

/// A child that takes something, says so, and ends when `keeps` is closed.
fn holder(take: impl FnOnce() -> i64) -> Result<(i32, Fd)> {
    let [told, tells] = pipe(libc::O_CLOEXEC)?;
    let [waits, keeps] = pipe(libc::O_CLOEXEC)?;
    // SAFETY: this program has one thread when it forks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop((told, keeps));
        let taken = take();
        call!(SYS_write, tells.0, &raw const taken, 8);
        call!(SYS_read, waits.0, [0u8; 1].as_mut_ptr(), 1);
        // SAFETY: the child ends here.
        unsafe { libc::_exit(0) };
    }
    let mut taken = -1i64;
    is(
        call!(SYS_read, told.0, &raw mut taken, 8),
        8,
        "what the child says",
    )?;
    is(taken, 0, "what the child takes")?;
    Ok((pid, keeps))
}

fn of_lock_waiters() -> Result<()> {
    let path = c"/tmp/wakings-locks";
    let open = || {
        Fd::new(
            call!(SYS_open, path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600),
            "open",
        )
    };
    // SAFETY: all zeroes is a lock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    let at = &raw const lock as usize;
    let record = |fd: i32, wait: bool| {
        call!(
            SYS_fcntl,
            fd,
            if wait { libc::F_SETLKW } else { libc::F_SETLK },
            at
        )
    };
    let whole = |fd: i32| call!(SYS_flock, fd, libc::LOCK_EX);
    let mine = open()?;
    for kind in ["record", "whole"] {
        let take = || {
            let Ok(theirs) = open() else { return -1 };
            let taken = if kind == "record" {
                record(theirs.0, false)
            } else {
                whole(theirs.0)
            };
            // It stays open until the process ends.
            std::mem::forget(theirs);
            taken
        };
        let (child, keeps) = holder(take)?;
        let fd = mine.0;
        let wait = move || {
            if kind == "record" {
                record(fd, true)
            } else {
                whole(fd)
            }
        };
        beside([&wait], |waiting| {
            // It ends with the lock.
            drop(keeps);
            is(waiting[0].returned(), 0, "who waited for a process's lock")
        })
        .context(kind)?;
        is(call!(SYS_wait4, child, 0, 0, 0), child.into(), "wait4")?;
    }
    is(call!(SYS_unlink, path.as_ptr()), 0, "unlink")
}

/// Waits for a child's next change that `options` name: what `si_code` and `si_status` say of it.
fn next(pid: i32, options: i32) -> Result<(i32, i32)> {
    // SAFETY: all zeroes is a siginfo.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    is(
        call!(SYS_waitid, libc::P_PID, pid, &raw mut info, options, 0),
        0,
        "waitid",
    )?;
    // SAFETY: the call stored what there is about a child.
    Ok((info.si_code, unsafe { info.si_status() }))
}

fn of_parents() -> Result<()> {
    let (child, keeps) = holder(|| 0)?;
    let kill = |signal: i32| is(call!(SYS_kill, child, signal), 0, "kill");
    let all = libc::WSTOPPED | libc::WCONTINUED | libc::WEXITED;
    for _ in 0..3 {
        kill(libc::SIGSTOP)?;
        ensure!(
            next(child, all | libc::WNOWAIT)? == (libc::CLD_STOPPED, libc::SIGSTOP),
            "stopped, looked at"
        );
        ensure!(
            next(child, all)? == (libc::CLD_STOPPED, libc::SIGSTOP),
            "stopped"
        );
        is(
            call!(SYS_wait4, child, 0, libc::WNOHANG | libc::WUNTRACED, 0),
            0,
            "it is told once",
        )?;
        kill(libc::SIGCONT)?;
        ensure!(
            next(child, all)? == (libc::CLD_CONTINUED, libc::SIGCONT),
            "continued"
        );
    }
    drop(keeps);
    ensure!(next(child, all)? == (libc::CLD_EXITED, 0), "ended");
    in_child(|| {
        // Nobody is left to wait for.
        fails(call!(SYS_wait4, -1i32, 0, 0, 0), libc::ECHILD, "wait4")
    })
    .map_err(|error| anyhow!("{error}"))
}

/// A lock of the bytes from `start` on.
fn record(kind: i32, start: i64, len: i64) -> libc::flock {
    // SAFETY: all zeroes is a lock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, len);
    lock
}

/// Two processes that each wait for the other's lock: the second to wait is told so, and the first
/// goes on when that one ends.
fn of_ring_of_locks() -> Result<()> {
    let path = c"/tmp/wakings-ring";
    let open = || {
        Fd::new(
            call!(SYS_open, path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600),
            "open",
        )
    };
    let lock = |fd: i32, command: i32, start: i64| {
        let lock = record(libc::F_WRLCK, start, 1);
        call!(SYS_fcntl, fd, command, &raw const lock)
    };
    let mine = open()?;
    let fd = mine.0;
    for round in 0..3 {
        is(lock(fd, libc::F_SETLK, 0), 0, "the first lock")?;
        let [starts, start] = pipe(libc::O_CLOEXEC)?;
        let [told, tells] = pipe(libc::O_CLOEXEC)?;
        // SAFETY: this program has one thread when it forks.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop((start, told));
            let theirs = open()?;
            let taken = lock(theirs.0, libc::F_SETLK, 1);
            call!(SYS_write, tells.0, &raw const taken, 8);
            call!(SYS_read, starts.0, [0u8; 1].as_mut_ptr(), 1);
            let refused = lock(theirs.0, libc::F_SETLKW, 0);
            // SAFETY: the child ends here, and with it its lock.
            unsafe { libc::_exit(-refused as i32) };
        }
        drop((starts, tells));
        let mut result = -1i64;
        is(
            call!(SYS_read, told.0, &raw mut result, 8),
            8,
            "what the child says",
        )?;
        is(result, 0, "the child's lock")?;
        let wait = || lock(fd, libc::F_SETLKW, 1);
        beside([&wait], |waiting| {
            is(call!(SYS_write, start.0, c"x".as_ptr(), 1), 1, "write")?;
            let mut status = 0i32;
            is(
                call!(SYS_wait4, child, &raw mut status, 0, 0),
                child.into(),
                "wait4",
            )?;
            ensure!(
                libc::WEXITSTATUS(status) == libc::EDEADLK,
                "round {round}: the child ended with {status:#x}"
            );
            is(waiting[0].returned(), 0, "who waited first")
        })?;
        let all = record(libc::F_UNLCK, 0, 0);
        is(
            call!(SYS_fcntl, fd, libc::F_SETLK, &raw const all),
            0,
            "F_UNLCK",
        )?;
    }
    is(call!(SYS_unlink, path.as_ptr()), 0, "unlink")
}

/// Locks of one process that touch are shown as one, and the first of them first.
fn of_locks_that_touch() -> Result<()> {
    let path = c"/tmp/wakings-touch";
    let mine = Fd::new(
        call!(SYS_open, path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600),
        "open",
    )?;
    let set = |kind: i32, start: i64, len: i64| {
        let lock = record(kind, start, len);
        is(
            call!(SYS_fcntl, mine.0, libc::F_SETLK, &raw const lock),
            0,
            "F_SETLK",
        )
    };
    let seen = |start: i64| -> Result<[i64; 3]> {
        let [told, tells] = pipe(libc::O_CLOEXEC)?;
        in_child(|| {
            let mut lock = record(libc::F_WRLCK, start, 0);
            is(
                call!(SYS_fcntl, mine.0, libc::F_GETLK, &raw mut lock),
                0,
                "F_GETLK",
            )?;
            let found = [lock.l_type.into(), lock.l_start, lock.l_len];
            is(call!(SYS_write, tells.0, found.as_ptr(), 24), 24, "write")
        })?;
        let mut found = [0i64; 3];
        is(call!(SYS_read, told.0, found.as_mut_ptr(), 24), 24, "read")?;
        Ok(found)
    };
    let shows = |start: i64, expected: [i64; 3], what: &str| -> Result<()> {
        let found = seen(start)?;
        ensure!(found == expected, "{what}: {found:?}, not {expected:?}");
        Ok(())
    };
    let [read, write] = [libc::F_RDLCK, libc::F_WRLCK].map(i64::from);
    set(libc::F_WRLCK, 20, 10)?;
    set(libc::F_WRLCK, 0, 10)?;
    shows(0, [write, 0, 10], "the first of two")?;
    set(libc::F_WRLCK, 10, 10)?;
    shows(0, [write, 0, 30], "three that touch")?;
    set(libc::F_RDLCK, 5, 10)?;
    shows(0, [write, 0, 5], "before another kind")?;
    shows(5, [read, 5, 10], "the other kind")?;
    set(libc::F_UNLCK, 12, 2)?;
    shows(5, [read, 5, 7], "before a hole")?;
    shows(12, [read, 14, 1], "behind a hole")?;
    set(libc::F_WRLCK, 0, 0)?;
    shows(7, [write, 0, 0], "all of it")?;
    is(call!(SYS_unlink, path.as_ptr()), 0, "unlink")
}

/// An orphan that was made with another signal than `SIGCHLD` is an ordinary child of who gets it.
fn of_who_gets_orphans() -> Result<()> {
    in_child(|| {
        is(
            call!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),
            0,
            "prctl",
        )?;
        for signal in [0, libc::SIGUSR1] {
            let [told, tells] = pipe(0)?;
            let child = call!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if child == 0 {
                let grandchild = call!(SYS_clone, signal, 0, 0, 0, 0);
                if grandchild == 0 {
                    let mut byte = 0u8;
                    call!(SYS_close, tells.0);
                    call!(SYS_read, told.0, &raw mut byte, 1);
                }
                call!(SYS_exit_group, 0);
            }
            is(
                call!(SYS_wait4, child, 0, 0, 0),
                child,
                "wait4 for the child",
            )?;
            drop(tells);
            let orphan = call!(SYS_wait4, -1i32, 0, 0, 0);
            ensure!(
                orphan > 0 && orphan != child,
                "wait4 for the orphan: {orphan}"
            );
        }
        Ok(())
    })
}

/// A signal that comes while a parent waits for the child of vfork(2) waits, too, and is not lost.
fn of_who_waits_for_a_vfork() -> Result<()> {
    static HANDLED: AtomicI32 = AtomicI32::new(0);
    extern "C" fn handler(_: i32) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
    in_child(|| {
        // SAFETY: a handler that adds to a number.
        unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
        let parent = call!(SYS_getpid);
        // Without CLONE_VM: the child has memory of its own, and may do as it likes.
        let child = call!(SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0);
        if child == 0 {
            let mut bad = 0;
            for _ in 0..3 {
                bad |= call!(SYS_kill, parent, libc::SIGUSR1);
                call!(SYS_sched_yield);
            }
            call!(SYS_exit_group, i32::from(bad != 0));
        }
        ensure!(child > 0, "clone: {child}");
        ensure!(
            HANDLED.load(Ordering::SeqCst) > 0,
            "the signal is not handled"
        );
        let mut status = 0i32;
        is(
            call!(SYS_wait4, child, &raw mut status, 0, 0),
            child,
            "wait4",
        )?;
        ensure!(status == 0, "the child ended with {status:x}");
        Ok(())
    })
}
