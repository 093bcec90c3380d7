//! Requests for memory that are refused: a system call is made again and again, and each time one
//! request further on the kernel has no memory for it (`/proc/skerry/fail-nth`). The call succeeds
//! all the same or fails with an error that says so, and leaves nothing behind. On a system without
//! that file the calls are only made.
//!
//! `machine-tests failures NAME` does it with the deeds of the checks for leaks, too: those whose
//! names contain the name.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::process::ExitCode;
use std::ptr;

use anyhow::{Context, Result, bail, ensure};

use crate::Check;
use crate::calls::call;
use crate::leaks::{self, Objects};

pub const CHECKS: &[(&str, Check)] = &[("requests-for-memory-that-fail", || {
    CALLS
        .iter()
        .try_for_each(|(name, run)| sweep(name, &|countdown| judge(run(countdown))).map(drop))
})];

/// Where a countdown of the calling thread is written.
const FILE: &str = "/proc/skerry/fail-nth";
/// Errors that say that there is no memory, or not enough of something made of it.
const ERRORS: [i32; 6] = [
    libc::ENOMEM,
    libc::EAGAIN,
    libc::ENOBUFS,
    libc::ENFILE,
    libc::ENOSPC,
    libc::ENOLCK,
];
/// Requests of one call that are refused, one at a time: none has as many.
const MOST: u32 = 2000;
/// Passes of which each leaves something if there is a leak.
const PASSES: usize = 8;
const PAGE: usize = 4096;
static BYTES: [u8; 1 << 16] = [b'x'; 1 << 16];

/// Countdown of the thread to the request that is refused.
pub struct Countdown {
    file: Option<File>,
    n: u32,
    /// Whether a request was refused, once that was asked.
    refused: Cell<Option<bool>>,
}

impl Countdown {
    fn open(n: u32) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(FILE).ok();
        Self {
            file,
            n,
            refused: Cell::new(None),
        }
    }

    /// Begins: the requests from now on count.
    pub fn begin(&self) {
        if let Some(mut file) = self.file.as_ref() {
            let mut text = [0u8; 12];
            let mut rest = &mut text[..];
            let _ = write!(rest, "{}", self.n);
            let len = 12 - rest.len();
            file.write_all(&text[..len])
                .expect("a countdown can be begun");
        }
    }

    /// Whether a request was refused. Ends the countdown the first time.
    fn was_refused(&self) -> bool {
        self.refused.get().unwrap_or_else(|| {
            let refused = self.file.as_ref().is_some_and(|mut file| {
                let mut text = [0u8; 12];
                let _ = file.rewind();
                // What is refused now was left over.
                let refused = file.read(&mut text).is_ok_and(|n| n > 0 && text[0] == b'0');
                let _ = file.write_all(b"0");
                refused
            });
            self.refused.set(Some(refused));
            refused
        })
    }
}

/// Judges the result of a call that was refused memory: wrong is an error that does not say so.
fn judge(result: i64) -> Result<()> {
    let error = (-result) as i32;
    ensure!(
        result >= 0 || ERRORS.contains(&error),
        "{}",
        std::io::Error::from_raw_os_error(error)
    );
    Ok(())
}

/// Runs something in processes of its own, with one request after the other refused; how many it
/// were.
fn sweep(name: &str, run: &dyn Fn(&Countdown) -> Result<()>) -> Result<u32> {
    for n in 1..MOST {
        // SAFETY: this process has one thread; the child ends without returning.
        let pid = crate::checked(unsafe { libc::fork() })?;
        if pid == 0 {
            let countdown = Countdown::open(n);
            let result = run(&countdown);
            let refused = countdown.was_refused();
            if let Err(error) = &result {
                let which = if refused { n } else { 0 };
                eprintln!("{name}: with request {which} refused: {error:#}");
            }
            call!(
                SYS_exit_group,
                i32::from(refused) + 2 * i32::from(result.is_err())
            );
        }
        let mut status = 0;
        let waited = call!(SYS_wait4, pid, &raw mut status, 0, 0);
        ensure!(waited == i64::from(pid), "{name}: wait4: {waited}");
        end_orphans();
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => return Ok(n - 1),
            (true, 1) => {}
            (true, 2) => bail!("{name}: it fails with no request refused"),
            (true, _) => bail!("{name}: with request {n} refused the error is another one"),
            (false, _) => bail!("{name}: with request {n} refused it was killed, {status:#x}"),
        }
    }
    bail!("{name}: it has more than {MOST} requests")
}

/// Ends what a process has left that was to end it and could not: this process inherits it.
fn end_orphans() {
    let list = format!("/proc/self/task/{}/children", std::process::id());
    loop {
        let waited = call!(SYS_wait4, -1i32, 0, libc::WNOHANG, 0);
        if waited == -i64::from(libc::ECHILD) {
            return;
        }
        for pid in std::fs::read_to_string(&list)
            .unwrap_or_default()
            .split(' ')
        {
            if let Ok(pid) = pid.parse::<i32>() {
                call!(SYS_kill, pid, libc::SIGKILL);
            }
        }
    }
}

/// Gives the calling process files and objects of its own, which go with it: also the files that a
/// deed which failed half way has left where it was.
fn unshare() {
    call!(SYS_unshare, libc::CLONE_NEWIPC | libc::CLONE_NEWNS);
    let kind = c"tmpfs".as_ptr();
    call!(SYS_mount, kind, c"/tmp".as_ptr(), kind, 0, 0);
    call!(SYS_chdir, c"/tmp".as_ptr());
}

/// Does the calls and the deeds of the checks for leaks with each request refused once, and sees
/// that nothing is left.
pub fn run(name: &str) -> ExitCode {
    match run_all(name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("not ok failures: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(only: &str) -> Result<()> {
    call!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    leaks::fill_tables();
    let mut wrong = Vec::new();
    let mut look = |name: &str, run: &dyn Fn(&Countdown) -> Result<()>| -> Result<()> {
        if !name.contains(only) {
            return Ok(());
        }
        // Once without a look: caches and tables take what they keep. What they take now and then
        // is no leak either: a leak is there after each pass.
        let mut swept = sweep(name, run);
        let mut left = Vec::new();
        // Of small objects there may be some more after a pass, but not after each.
        let mut growing: Option<BTreeSet<String>> = None;
        for _ in 0..PASSES {
            let before = Objects::now()?;
            swept = swept.and(sweep(name, run));
            let Some(before) = &before else {
                break;
            };
            left = before.left()?;
            let now = Objects::now()?.context("the counts went away")?;
            let more = now.more_small_ones(before);
            growing = Some(growing.map_or_else(|| more.clone(), |all| &all & &more));
            if left.is_empty() && growing.as_ref().is_none_or(BTreeSet::is_empty) {
                break;
            }
        }
        left.extend(growing.into_iter().flatten());
        let wrong_now = match swept {
            Ok(requests) if left.is_empty() => {
                println!("ok {name}: {requests} requests");
                return Ok(());
            }
            Ok(_) => format!("{name} leaves {}", left.join(", ")),
            Err(error) => format!("{error:#}"),
        };
        println!("not ok {wrong_now}");
        wrong.push(wrong_now);
        Ok(())
    };
    for (name, run) in CALLS {
        look(name, &|countdown| judge(run(countdown)))?;
    }
    for (name, deed) in leaks::all_deeds() {
        // What a deed is told when a call fails is not compared: it says what it did not expect.
        look(name, &|countdown| {
            unshare();
            countdown.begin();
            let result = deed();
            if countdown.was_refused() {
                Ok(())
            } else {
                result
            }
        })?;
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("ok failures");
    Ok(())
}

/// A call, or a few, with what they need made before the countdown begins.
type Call = fn(&Countdown) -> i64;

fn path(name: &str) -> std::ffi::CString {
    // One of each process: what is left of one that failed is not in the next one's way.
    let name = format!("/tmp/failures-{name}-{}", std::process::id());
    std::ffi::CString::new(name).expect("no zeros in it")
}

/// Makes a call of a file that is removed behind it.
fn with_path(name: &str, act: impl FnOnce(*const libc::c_char) -> i64) -> i64 {
    let path = path(name);
    let result = act(path.as_ptr());
    call!(SYS_unlink, path.as_ptr());
    call!(SYS_rmdir, path.as_ptr());
    result
}

/// The first error of several results, or the last result.
fn all<const N: usize>(results: [i64; N]) -> i64 {
    results
        .into_iter()
        .find(|result| *result < 0)
        .unwrap_or(results[N - 1])
}

fn pair(kind: i32) -> [i32; 2] {
    let mut ends = [-1; 2];
    call!(
        SYS_socketpair,
        libc::AF_UNIX,
        kind | libc::SOCK_NONBLOCK,
        0,
        ends.as_mut_ptr()
    );
    ends
}

fn pipe() -> [i32; 2] {
    let mut ends = [-1; 2];
    call!(SYS_pipe2, ends.as_mut_ptr(), libc::O_NONBLOCK);
    ends
}

fn map(length: usize) -> i64 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    call!(SYS_mmap, 0, length, access, flags, -1i32, 0)
}

/// A loopback address with any port.
fn loopback() -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
        },
        sin_zero: [0; 8],
    }
}

fn socket(kind: i32) -> i64 {
    call!(SYS_socket, libc::AF_INET, kind | libc::SOCK_NONBLOCK, 0)
}

/// Binds a socket to any port, and stores its address.
fn bind(fd: i64, at: &mut libc::sockaddr_in) -> i64 {
    let mut len = size_of_val(at) as u32;
    let bound = call!(SYS_bind, fd, ptr::from_ref(at), len);
    call!(SYS_getsockname, fd, ptr::from_mut(at), &raw mut len);
    bound
}

fn read_all(path: &std::ffi::CStr) -> i64 {
    let mut buffer = [0u8; PAGE];
    let fd = call!(SYS_open, path.as_ptr(), libc::O_RDONLY);
    if fd < 0 {
        return fd;
    }
    loop {
        let n = call!(SYS_read, fd, buffer.as_mut_ptr(), PAGE);
        if n <= 0 {
            call!(SYS_close, fd);
            return n;
        }
    }
}

fn list(path: &std::ffi::CStr) -> i64 {
    let mut buffer = [0u8; PAGE];
    let fd = call!(SYS_open, path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
    loop {
        let n = call!(SYS_getdents64, fd, buffer.as_mut_ptr(), PAGE);
        if n <= 0 {
            return if fd < 0 { fd } else { n };
        }
    }
}

const CALLS: &[(&str, Call)] = &[
    ("pipe2", |countdown| {
        let mut ends = [0; 2];
        countdown.begin();
        call!(SYS_pipe2, ends.as_mut_ptr(), 0)
    }),
    ("write to a pipe", |countdown| {
        let [_, end] = pipe();
        countdown.begin();
        call!(SYS_write, end, BYTES.as_ptr(), BYTES.len())
    }),
    ("splice and tee", |countdown| {
        let ([from, fill], [_, to], [_, other]) = (pipe(), pipe(), pipe());
        call!(SYS_write, fill, BYTES.as_ptr(), PAGE);
        countdown.begin();
        all([
            call!(SYS_tee, from, other, PAGE, 0),
            call!(SYS_splice, from, 0, to, 0, PAGE, 0),
        ])
    }),
    ("socketpair", |countdown| {
        let mut ends = [0; 2];
        countdown.begin();
        call!(
            SYS_socketpair,
            libc::AF_UNIX,
            libc::SOCK_STREAM,
            0,
            ends.as_mut_ptr()
        )
    }),
    ("write to a stream", |countdown| {
        let [_, end] = pair(libc::SOCK_STREAM);
        countdown.begin();
        call!(SYS_write, end, BYTES.as_ptr(), BYTES.len())
    }),
    ("send a datagram", |countdown| {
        let [_, end] = pair(libc::SOCK_DGRAM);
        countdown.begin();
        call!(SYS_write, end, BYTES.as_ptr(), BYTES.len() / 2)
    }),
    ("send and receive on the loopback", |countdown| {
        let (from, to) = (socket(libc::SOCK_DGRAM), socket(libc::SOCK_DGRAM));
        let (mut at, mut buffer) = (loopback(), [0u8; PAGE]);
        bind(to, &mut at);
        let len = size_of_val(&at);
        countdown.begin();
        let sent = call!(
            SYS_sendto,
            from,
            BYTES.as_ptr(),
            PAGE,
            0,
            &raw const at,
            len
        );
        if sent < 0 {
            return sent;
        }
        call!(SYS_read, to, buffer.as_mut_ptr(), PAGE)
    }),
    ("connect and accept", |countdown| {
        let mut at = loopback();
        let len = size_of_val(&at);
        countdown.begin();
        let (listener, client) = (socket(libc::SOCK_STREAM), socket(libc::SOCK_STREAM));
        let made = all([listener, client, bind(listener, &mut at)]);
        if made < 0 {
            return made;
        }
        let listens = call!(SYS_listen, listener, 5);
        let connected = call!(SYS_connect, client, &raw const at, len);
        if listens < 0 || connected < 0 && connected != -i64::from(libc::EINPROGRESS) {
            return all([listens, connected]);
        }
        let accepted = call!(SYS_accept4, listener, 0, 0, libc::SOCK_NONBLOCK);
        if accepted < 0 {
            return accepted;
        }
        call!(SYS_write, accepted, BYTES.as_ptr(), BYTES.len())
    }),
    ("attach a filter", |countdown| {
        let fd = socket(libc::SOCK_DGRAM);
        let mut pass = libc::sock_filter {
            code: 6,
            jt: 0,
            jf: 0,
            k: u32::MAX,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut pass,
        };
        let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        countdown.begin();
        call!(
            SYS_setsockopt,
            fd,
            level,
            option,
            &raw const program,
            size_of_val(&program)
        )
    }),
    ("epoll", |countdown| {
        let [readable, _] = pipe();
        let mut event = libc::epoll_event { events: 1, u64: 0 };
        countdown.begin();
        let set = call!(SYS_epoll_create1, 0);
        if set < 0 {
            return set;
        }
        let added = call!(
            SYS_epoll_ctl,
            set,
            libc::EPOLL_CTL_ADD,
            readable,
            &raw const event
        );
        all([
            added,
            call!(SYS_epoll_pwait, set, &raw mut event, 1, 0, 0, 8),
        ])
    }),
    ("poll and select", |countdown| {
        let [readable, _] = pipe();
        let mut fds = [libc::pollfd {
            fd: readable,
            events: libc::POLLIN,
            revents: 0,
        }; 300];
        let mut set = [0u64; 16];
        let mut zero = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        countdown.begin();
        all([
            call!(SYS_poll, fds.as_mut_ptr(), fds.len(), 0),
            call!(SYS_select, 200, set.as_mut_ptr(), 0, 0, &raw mut zero),
        ])
    }),
    ("counters and timers", |countdown| {
        let mask = 0u64;
        countdown.begin();
        all([
            call!(SYS_eventfd2, 0, 0),
            call!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0),
            call!(SYS_signalfd4, -1i32, &raw const mask, 8, 0),
        ])
    }),
    ("a file in memory", |countdown| {
        countdown.begin();
        let fd = call!(SYS_memfd_create, c"failures".as_ptr(), 0);
        if fd < 0 {
            return fd;
        }
        call!(SYS_write, fd, BYTES.as_ptr(), BYTES.len())
    }),
    ("inotify", |countdown| {
        let mask = libc::IN_ALL_EVENTS;
        countdown.begin();
        let fd = call!(SYS_inotify_init1, libc::IN_NONBLOCK);
        if fd < 0 {
            return fd;
        }
        let watch = call!(SYS_inotify_add_watch, fd, c"/tmp".as_ptr(), mask);
        all([
            watch,
            with_path("event", |path| call!(SYS_mkdir, path, 0o700)),
        ])
    }),
    ("make and write a file", |countdown| {
        with_path("file", |path| {
            countdown.begin();
            let fd = call!(SYS_open, path, libc::O_CREAT | libc::O_RDWR, 0o600);
            if fd < 0 {
                return fd;
            }
            call!(SYS_write, fd, BYTES.as_ptr(), BYTES.len())
        })
    }),
    ("names", |countdown| {
        with_path("directory", |path| {
            with_path("link", |link| {
                countdown.begin();
                all([
                    call!(SYS_mkdir, path, 0o700),
                    call!(SYS_symlink, path, link),
                ])
            })
        })
    }),
    ("a hard link and a new name", |countdown| {
        with_path("first", |first| {
            with_path("second", |second| {
                with_path("third", |third| {
                    call!(SYS_close, call!(SYS_creat, first, 0o600));
                    countdown.begin();
                    all([
                        call!(SYS_link, first, second),
                        call!(SYS_rename, second, third),
                    ])
                })
            })
        })
    }),
    ("an attribute", |countdown| {
        with_path("attribute", |path| {
            call!(SYS_close, call!(SYS_creat, path, 0o600));
            let (name, mut value) = (c"trusted.failures".as_ptr(), [0u8; PAGE]);
            countdown.begin();
            all([
                call!(SYS_setxattr, path, name, BYTES.as_ptr(), PAGE, 0),
                call!(SYS_getxattr, path, name, value.as_mut_ptr(), PAGE),
                call!(SYS_listxattr, path, value.as_mut_ptr(), PAGE),
            ])
        })
    }),
    ("locks", |countdown| {
        with_path("locks", |path| {
            let fd = call!(SYS_creat, path, 0o600);
            let mut lock = libc::flock {
                l_type: libc::F_WRLCK as i16,
                l_whence: 0,
                l_start: 10,
                l_len: 5,
                l_pid: 0,
            };
            countdown.begin();
            let first = call!(SYS_fcntl, fd, libc::F_SETLK, &raw const lock);
            (lock.l_type, lock.l_start, lock.l_len) = (libc::F_UNLCK as i16, 12, 1);
            let split = call!(SYS_fcntl, fd, libc::F_SETLK, &raw const lock);
            all([first, split, call!(SYS_flock, fd, libc::LOCK_EX)])
        })
    }),
    ("mappings", |countdown| {
        countdown.begin();
        let at = map(64 * PAGE);
        if at < 0 {
            return at;
        }
        let middle = at as usize + 8 * PAGE;
        all([
            call!(SYS_mprotect, middle, PAGE, libc::PROT_READ),
            call!(SYS_munmap, middle + 8 * PAGE, PAGE),
            call!(SYS_madvise, middle, PAGE, libc::MADV_DONTFORK),
            call!(SYS_mremap, at, 4 * PAGE, 128 * PAGE, libc::MREMAP_MAYMOVE),
        ])
    }),
    ("touching pages", |countdown| {
        let at = map(64 * PAGE);
        countdown.begin();
        for page in 0..64 {
            // SAFETY: just mapped.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(at as usize + page * PAGE).write(1) };
        }
        0
    }),
    ("locked memory", |countdown| {
        let at = map(16 * PAGE);
        countdown.begin();
        call!(SYS_mlock, at, 16 * PAGE)
    }),
    ("fork", |countdown| {
        countdown.begin();
        let child = call!(SYS_fork);
        if child == 0 {
            call!(SYS_exit_group, 0);
        }
        if child > 0 {
            call!(SYS_wait4, child, 0, 0, 0);
        }
        child
    }),
    ("fork and exec", |countdown| {
        let arguments = [c"machine-tests".as_ptr(), c"list".as_ptr(), ptr::null()];
        countdown.begin();
        let child = call!(SYS_fork);
        if child == 0 {
            // Nobody reads what it prints.
            let nowhere = call!(SYS_open, c"/dev/null".as_ptr(), libc::O_WRONLY);
            call!(SYS_dup2, nowhere, 1);
            call!(
                SYS_execve,
                c"/proc/self/exe".as_ptr(),
                arguments.as_ptr(),
                0
            );
            call!(SYS_exit_group, 0);
        }
        if child > 0 {
            call!(SYS_wait4, child, 0, 0, 0);
        }
        child
    }),
    ("shared memory of System V", |countdown| {
        countdown.begin();
        let id = call!(SYS_shmget, libc::IPC_PRIVATE, 4 * PAGE, 0o600);
        if id < 0 {
            return id;
        }
        let at = call!(SYS_shmat, id, 0, 0);
        call!(SYS_shmctl, id, libc::IPC_RMID, 0);
        at
    }),
    ("messages of System V", |countdown| {
        countdown.begin();
        let id = call!(SYS_msgget, libc::IPC_PRIVATE, 0o600);
        if id < 0 {
            return id;
        }
        let sent = call!(SYS_msgsnd, id, BYTES.as_ptr(), PAGE, libc::IPC_NOWAIT);
        call!(SYS_msgctl, id, libc::IPC_RMID, 0);
        sent
    }),
    ("semaphores of System V", |countdown| {
        let step = libc::sembuf {
            sem_num: 3,
            sem_op: 1,
            sem_flg: libc::SEM_UNDO as i16,
        };
        countdown.begin();
        let id = call!(SYS_semget, libc::IPC_PRIVATE, 8, 0o600);
        if id < 0 {
            return id;
        }
        let done = call!(SYS_semop, id, &raw const step, 1);
        call!(SYS_semctl, id, 0, libc::IPC_RMID, 0);
        done
    }),
    ("a POSIX message queue", |countdown| {
        let name = c"failures".as_ptr();
        countdown.begin();
        let fd = call!(SYS_mq_open, name, libc::O_CREAT | libc::O_RDWR, 0o600, 0);
        if fd < 0 {
            return fd;
        }
        call!(SYS_mq_unlink, name);
        call!(SYS_mq_timedsend, fd, BYTES.as_ptr(), PAGE, 0, 0)
    }),
    ("a timer and a queued signal", |countdown| {
        // SAFETY: all zeros is a set and a signal without anything.
        let (mut set, mut info): (libc::sigset_t, libc::siginfo_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the set is one.
        unsafe { libc::sigfillset(&raw mut set) };
        call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, 0, 8);
        info.si_code = libc::SI_QUEUE;
        let mut timer = 0i32;
        countdown.begin();
        let made = call!(SYS_timer_create, libc::CLOCK_MONOTONIC, 0, &raw mut timer);
        let pid = std::process::id();
        all([made, call!(SYS_rt_sigqueueinfo, pid, 40, &raw const info)])
    }),
    ("texts of /proc", |countdown| {
        countdown.begin();
        all([
            read_all(c"/proc/self/maps"),
            read_all(c"/proc/self/status"),
            read_all(c"/proc/meminfo"),
            read_all(c"/proc/net/tcp"),
            read_all(c"/proc/self/mountinfo"),
        ])
    }),
    ("directories", |countdown| {
        countdown.begin();
        all([list(c"/proc"), list(c"/proc/self/fd"), list(c"/tmp")])
    }),
    ("a mount", |countdown| {
        with_path("mount", |path| {
            call!(SYS_mkdir, path, 0o700);
            let kind = c"tmpfs".as_ptr();
            countdown.begin();
            let mounted = call!(SYS_mount, kind, path, kind, 0, 0);
            call!(SYS_umount2, path, libc::MNT_DETACH);
            mounted
        })
    }),
    ("names of its own", |countdown| {
        countdown.begin();
        call!(
            SYS_unshare,
            libc::CLONE_NEWNS | libc::CLONE_FILES | libc::CLONE_FS
        )
    }),
    ("many descriptors", |countdown| {
        let limit = libc::rlimit {
            rlim_cur: 4096,
            rlim_max: 4096,
        };
        call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, 0);
        countdown.begin();
        call!(SYS_dup2, 0, 3000)
    }),
    ("a filter of system calls", |countdown| {
        let mut allow = libc::sock_filter {
            code: 6,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut allow,
        };
        countdown.begin();
        call!(
            SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program
        )
    }),
];
