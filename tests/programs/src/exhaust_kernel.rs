//! Kernel memory until there is none: unprivileged processes make objects of one kind until the
//! kernel refuses them or kills their makers, and when they have gone the kernel works as before.
//! Not one of the ordinary checks: on other systems it would take other programs with it.
//!
//! `machine-tests exhaust-kernel` goes through all kinds, `machine-tests exhaust-kernel KIND…`
//! through these. It runs as root in a machine that has nothing else to do.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::Duration;
use std::{fs, io, ptr, thread};

use anyhow::{Context, Result, ensure};
use libc::pid_t;

use crate::calls::{call, make};
use crate::checked;

/// An ordinary user who has no other processes.
const NOBODY: u32 = 65534;
/// Processes of one kind: with fewer, a limit on descriptors would end it before the memory does.
const MAX_PROCESSES: usize = 8;
/// Objects of one process, if nothing refuses them.
const MAX_OBJECTS: usize = 1 << 20;
/// Kinds that take pages of programs and files, or page tables, which are not refused at the
/// kernel's high mark: somebody may be killed for them.
const TAKE_PAGES: [&str; 9] = [
    "memfd",
    "processes",
    "threads",
    "page-tables-2m",
    "page-tables-1g",
    "mappings",
    "contents-of-files",
    "exec-strings",
    "seccomp-filters",
];
/// Pages by which the kernel may pass its mark: what each processor takes between two looks, and an
/// object or two.
const PASSED_BY: u64 = 512;
/// Everybody may make files here.
const DIRECTORY: &str = "/exhaust";
const PAGE: usize = 4096;
/// Contents of messages, and names that are too long for a name stored in place.
static BYTES: [u8; 1 << 16] = [b'x'; 1 << 16];

/// Makes object number `n` of a process; the result of the call that did, or the negated error.
type Make = fn(n: usize) -> i64;

const KINDS: &[(&str, Make)] = &[
    ("pipes", |_| {
        let mut ends = [0; 2];
        let made = call!(SYS_pipe2, ends.as_mut_ptr(), libc::O_NONBLOCK);
        call!(SYS_fcntl, ends[1], libc::F_SETPIPE_SZ, 1 << 20);
        fill(made, ends[1])
    }),
    ("stream-sockets", |_| socket_pair(libc::SOCK_STREAM)),
    ("datagram-sockets", |_| socket_pair(libc::SOCK_DGRAM)),
    ("descriptors-under-way", |_| descriptors_under_way()),
    ("tcp", |_| tcp(Accept::Yes)),
    ("backlog", |_| tcp(Accept::No)),
    ("udp", |_| udp()),
    ("netlink", |_| {
        call!(SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, 0)
    }),
    ("socket-filters", |_| socket_filter()),
    ("epoll", |_| epoll()),
    ("eventfd", |_| call!(SYS_eventfd2, 0, 0)),
    ("timerfd", |_| {
        call!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0)
    }),
    ("signalfd", |_| {
        call!(SYS_signalfd4, -1i32, BYTES.as_ptr(), 8, 0)
    }),
    ("memfd", |_| {
        let fd = call!(SYS_memfd_create, c"exhaust".as_ptr(), 0);
        after(fd, || call!(SYS_write, fd, BYTES.as_ptr(), 1))
    }),
    ("inotify", |_| inotify()),
    ("inotify-watches", inotify_watch),
    ("open-files", |_| {
        call!(SYS_open, c"/dev/null".as_ptr(), libc::O_RDONLY)
    }),
    ("proc-files", |_| {
        let fd = call!(SYS_open, c"/proc/self/maps".as_ptr(), libc::O_RDONLY);
        let mut byte = 0u8;
        after(fd, || call!(SYS_read, fd, &raw mut byte, 1))
    }),
    ("pseudo-terminals", |_| {
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK;
        let fd = call!(SYS_open, c"/dev/ptmx".as_ptr(), flags);
        // What finds no room in a line is thrown away: it would take bytes for ever.
        after(fd, || call!(SYS_write, fd, BYTES.as_ptr(), PAGE))
    }),
    ("processes", |_| fork_and_pause()),
    ("threads", |_| {
        let thread = thread::Builder::new().stack_size(4 * PAGE);
        match thread.spawn(pause) {
            Ok(_) => 0,
            Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EAGAIN)),
        }
    }),
    ("page-tables-2m", |n| page_table(n, 21)),
    ("page-tables-1g", |n| page_table(n, 30)),
    ("mappings", |n| {
        let access = if n % 2 == 0 {
            libc::PROT_READ
        } else {
            libc::PROT_NONE
        };
        map(ptr::null_mut(), PAGE, access, 0)
    }),
    ("inodes", |n| {
        let fd = with_name(n, |name| {
            call!(SYS_open, name, libc::O_CREAT | libc::O_EXCL, 0o600)
        });
        after(fd, || call!(SYS_close, fd))
    }),
    ("contents-of-files", |n| {
        let fd = with_name(n, |name| {
            call!(SYS_open, name, libc::O_CREAT | libc::O_WRONLY, 0o600)
        });
        let made = after(fd, || call!(SYS_write, fd, BYTES.as_ptr(), BYTES.len()));
        after(made, || call!(SYS_close, fd))
    }),
    ("directories", |n| {
        with_name(n, |name| call!(SYS_mkdir, name, 0o700))
    }),
    ("symbolic-links", |n| {
        let mut target = BYTES[..PAGE].to_vec();
        target[PAGE - 1] = 0;
        with_name(n, |name| call!(SYS_symlink, target.as_ptr(), name))
    }),
    ("hard-links", |n| {
        let first = format!("{DIRECTORY}/{}\0", std::process::id());
        if n == 0 {
            let fd = call!(SYS_creat, first.as_ptr(), 0o600);
            return after(fd, || call!(SYS_close, fd));
        }
        with_name(n, |name| call!(SYS_link, first.as_ptr(), name))
    }),
    ("extended-attributes", |n| {
        with_name(n, |name| {
            let fd = call!(SYS_creat, name, 0o600);
            after(fd, || call!(SYS_close, fd));
            let attribute = c"user.exhaust".as_ptr();
            call!(
                SYS_setxattr,
                name,
                attribute,
                BYTES.as_ptr(),
                BYTES.len(),
                0
            )
        })
    }),
    ("names-that-do-not-exist", |n| {
        with_name(n, |name| call!(SYS_access, name, 0));
        if n < 1 << 17 {
            0
        } else {
            -i64::from(libc::ENOENT)
        }
    }),
    ("record-locks", record_lock),
    ("exec-strings", |n| {
        // Children are killed for it, not the one that makes more of them.
        if n < 256 {
            exec_with_long_arguments()
        } else {
            -i64::from(libc::ECHILD)
        }
    }),
    ("posix-timers", |_| {
        let mut id = 0;
        let event = ptr::null::<libc::sigevent>();
        call!(SYS_timer_create, libc::CLOCK_MONOTONIC, event, &raw mut id)
    }),
    ("queued-signals", |_| queue_signal()),
    ("messages", |_| message()),
    ("semaphores", |_| {
        call!(SYS_semget, libc::IPC_PRIVATE, 32000, 0o600)
    }),
    ("shared-memory", |_| {
        call!(SYS_shmget, libc::IPC_PRIVATE, PAGE, 0o600)
    }),
    ("message-queues", |n| {
        let name = format!("exhaust-{}-{n}\0", std::process::id());
        let flags = libc::O_CREAT | libc::O_RDWR;
        let made = call!(SYS_mq_open, name.as_ptr(), flags, 0o600, 0);
        call!(SYS_mq_unlink, name.as_ptr());
        made
    }),
    ("seccomp-filters", |_| seccomp_filter()),
];

pub fn run(wanted: &[&str]) -> ExitCode {
    let mut ending = ExitCode::SUCCESS;
    if let Err(error) = prepare() {
        println!("not ok exhaust-kernel: {error:#}");
        return ExitCode::FAILURE;
    }
    for (kind, make) in KINDS {
        if !wanted.is_empty() && !wanted.contains(kind) {
            continue;
        }
        let expect = if TAKE_PAGES.contains(kind) {
            Expect::Kill
        } else {
            Expect::Refusal
        };
        match exhaust(*make, expect) {
            Ok(said) => println!("ok {kind}: {said}"),
            Err(error) => {
                println!("not ok {kind}: {error:#}");
                ending = ExitCode::FAILURE;
            }
        }
    }
    ending
}

/// Protects this process from being chosen, and makes the directory.
fn prepare() -> Result<()> {
    fs::write("/proc/self/oom_score_adj", "-1000").context("oom_score_adj")?;
    if !fs::exists(DIRECTORY)? {
        fs::create_dir(DIRECTORY)?;
    }
    fs::set_permissions(DIRECTORY, fs::Permissions::from_mode(0o777))?;
    Ok(())
}

/// End of the objects of a kind, if nothing else ends them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// A maker may be killed for want of memory.
    Kill,
    /// Each maker is refused further ones, and nobody is killed.
    Refusal,
}

/// Processes make objects, one after the other, until one is killed or there are enough.
fn exhaust(make: Make, expect: Expect) -> Result<String> {
    // Of the kind before, some is freed only after its makers have ended.
    while kernel_pages().is_some_and(|(has, mark)| has > mark) {
        thread::sleep(Duration::from_millis(10));
    }
    let kills = kills()?;
    let mut children: Vec<pid_t> = Vec::new();
    let mut said = Vec::new();
    let mut is_killed = false;
    while !is_killed && children.len() < MAX_PROCESSES {
        let (child, report) = match start(make) {
            Ok(started) => started,
            Err(error) if !children.is_empty() => {
                said.push(format!("no further process: {error}"));
                break;
            }
            Err(error) => return Err(error).context("a process"),
        };
        children.push(child);
        is_killed = report.is_none();
        said.push(report.unwrap_or_else(|| "killed".into()));
    }
    let mut checked = Ok(());
    if let Some((has, mark)) = kernel_pages() {
        said.push(format!("{has} pages of the kernel's {mark}"));
        checked = check_mark(expect, has, mark, kills);
    }
    end(&children)?;
    checked.with_context(|| said.join(", "))?;
    said.dedup();
    said.truncate(4);
    // The kernel still does what it did before.
    let (child, report) = start(|_| -1).context("a process afterwards")?;
    end(&[child])?;
    ensure!(report.is_some(), "a process afterwards was killed");
    Ok(format!("{} processes: {}", children.len(), said.join(", ")))
}

/// Checks that the kernel has kept to its mark, has killed nobody who was refused, and works on for
/// the superuser.
fn check_mark(expect: Expect, has: u64, mark: u64, kills_before: u64) -> Result<()> {
    if expect == Expect::Refusal {
        ensure!(has <= mark + PASSED_BY, "the kernel passed its mark");
        ensure!(kills()? == kills_before, "somebody was killed");
        superuser_works().context("the superuser's objects")?;
    }
    Ok(())
}

/// Pages that the kernel has, and its mark; `None` on a system that has none.
fn kernel_pages() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/skerry/memory").ok()?;
    let mut words = text.split_whitespace();
    let mut after = |name| {
        words.find(|word| *word == name)?;
        words.next()?.parse().ok()
    };
    Some((after("kernel")?, after("mark")?))
}

/// Processes that were killed for want of memory so far.
fn kills() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    Ok(count.context("no oom_kill in /proc/vmstat")?.parse()?)
}

/// Makes a few objects of the kinds that ordinary users are refused.
fn superuser_works() -> Result<()> {
    let (reader, mut writer) = io::pipe().context("a pipe")?;
    writer
        .write_all(&BYTES[..PAGE])
        .context("bytes in a pipe")?;
    let (mut one, two) = UnixStream::pair().context("a pair of sockets")?;
    one.write_all(&BYTES).context("bytes in a socket")?;
    let name = format!("{DIRECTORY}/superuser");
    fs::write(&name, b"x").context("a file")?;
    fs::remove_file(&name)?;
    let child = fork_and_pause();
    ensure!(child > 0, "a process: {child}");
    call!(SYS_kill, child, libc::SIGKILL);
    call!(
        SYS_wait4,
        child,
        ptr::null_mut::<i32>(),
        0,
        ptr::null_mut::<u8>()
    );
    drop((reader, two));
    Ok(())
}

/// Last words of a process, in a page of its own: at the kernel's mark an ordinary user gets no
/// bytes into a pipe.
struct Report(*mut Ended);

/// The objects of a process, and the error that ended them; none at first.
struct Ended {
    count: AtomicI64,
    error: AtomicI32,
}

impl Report {
    fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let report = Self(at.cast());
        report.ended().count.store(-1, Ordering::Relaxed);
        Ok(report)
    }

    fn ended(&self) -> &Ended {
        // SAFETY: mapped by `new`, until this is dropped; zeros are one.
        unsafe { &*self.0 }
    }

    /// In words; `None` if the process has said nothing.
    fn text(&self) -> Option<String> {
        let count = self.ended().count.load(Ordering::Acquire);
        let error = self.ended().error.load(Ordering::Relaxed);
        let error = io::Error::from_raw_os_error(error);
        (count >= 0).then(|| format!("{count} objects, {error}"))
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast(), PAGE) };
    }
}

/// Has a process make objects, say why it does not go on, and wait to be killed. What it has said;
/// `None` if it was killed before.
fn start(make: Make) -> io::Result<(pid_t, Option<String>)> {
    let report = Report::new()?;
    let (mut alive, lives) = io::pipe()?;
    // SAFETY: this process has one thread; the child ends without returning.
    let child = checked(unsafe { libc::fork() })?;
    if child == 0 {
        drop(alive);
        let (count, error) = grow(make);
        let ended = report.ended();
        ended.error.store(error, Ordering::Relaxed);
        ended.count.store(count as i64, Ordering::Release);
        drop(lives);
        pause()
    }
    drop(lives);
    alive.read_to_end(&mut Vec::new())?;
    Ok((child, report.text()))
}

/// Makes objects as an ordinary user; how many it were, and the error that ended it.
fn grow(make: Make) -> (usize, i32) {
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is one, and the calls change this process only.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        libc::setgid(NOBODY);
        libc::setuid(NOBODY);
    }
    for n in 0..MAX_OBJECTS {
        let result = make(n);
        if result < 0 {
            return (n, -result as i32);
        }
    }
    (MAX_OBJECTS, 0)
}

/// Removes the objects of System V, which outlive their makers. By their places in the tables: the
/// lists in `/proc` may take more memory than there is.
fn remove_ipc_objects() {
    const PLACES: i32 = 4096;
    const STAT_BY_PLACE: [(i64, i32); 2] = [(libc::SYS_msgctl, 11), (libc::SYS_shmctl, 13)];
    const SEM_STAT: i32 = 18;
    let mut stat = [0u64; 32];
    for place in 0..PLACES {
        for (control, command) in STAT_BY_PLACE {
            let at = stat.as_mut_ptr() as usize;
            let id = make(control, &[place as usize, command as usize, at]);
            if id >= 0 {
                make(control, &[id as usize, libc::IPC_RMID as usize, 0]);
            }
        }
        let id = call!(SYS_semctl, place, 0, SEM_STAT, stat.as_mut_ptr());
        if id >= 0 {
            call!(SYS_semctl, id, 0, libc::IPC_RMID, 0);
        }
    }
}

/// Ends all processes of the user, and removes what they have made.
fn end(children: &[pid_t]) -> Result<()> {
    // SAFETY: this process has one thread; the child ends without returning.
    let killer = checked(unsafe { libc::fork() }).context("a process that kills")?;
    if killer == 0 {
        // SAFETY: changes this process only, which then ends with all others of that user.
        unsafe {
            libc::setuid(NOBODY);
            libc::kill(-1, libc::SIGKILL);
            libc::_exit(0)
        }
    }
    for child in children.iter().chain([&killer]) {
        // SAFETY: a child of this process; its status is not asked for.
        checked(unsafe { libc::waitpid(*child, ptr::null_mut(), 0) })?;
    }
    remove_ipc_objects();
    for entry in fs::read_dir(DIRECTORY)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn pause() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

/// `made` if it is an error, and otherwise what `then` gives.
fn after(made: i64, then: impl FnOnce() -> i64) -> i64 {
    if made < 0 { made } else { then() }
}

/// Writes into what was made until it takes no more, which is no error.
fn fill(made: i64, fd: i32) -> i64 {
    if made >= 0 {
        while call!(SYS_write, fd, BYTES.as_ptr(), PAGE) > 0 {}
    }
    made
}

fn with_name(n: usize, f: impl FnOnce(*const u8) -> i64) -> i64 {
    f(format!("{DIRECTORY}/{}-{n}\0", std::process::id()).as_ptr())
}

fn socket_pair(kind: i32) -> i64 {
    let mut ends = [0; 2];
    let kind = kind | libc::SOCK_NONBLOCK;
    let made = call!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
    fill(fill(made, ends[0]), ends[1])
}

/// Sends sockets through sockets that only the message still holds.
fn descriptors_under_way() -> i64 {
    const COUNT: usize = 250;
    /// Header and descriptors of a control message.
    #[repr(C)]
    struct Rights {
        header: libc::cmsghdr,
        fds: [i32; COUNT],
    }
    let mut ends = [0; 2];
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
    let made = call!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
    if made < 0 {
        return made;
    }
    let eventfd = call!(SYS_eventfd2, 0, 0);
    if eventfd < 0 {
        return eventfd;
    }
    let rights = Rights {
        header: libc::cmsghdr {
            cmsg_len: size_of::<Rights>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        fds: [eventfd as i32; COUNT],
    };
    let mut part = libc::iovec {
        iov_base: BYTES.as_ptr().cast_mut().cast(),
        iov_len: 1,
    };
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw const rights).cast_mut().cast();
    message.msg_controllen = size_of::<Rights>();
    let sent = call!(SYS_sendmsg, ends[0], &raw const message, 0);
    call!(SYS_close, eventfd);
    if sent == -i64::from(libc::ETOOMANYREFS) {
        0
    } else {
        sent
    }
}

#[derive(PartialEq)]
enum Accept {
    Yes,
    No,
}

/// Connects to this process's listening socket, and fills what is accepted.
fn tcp(accept: Accept) -> i64 {
    static LISTENER: AtomicI32 = AtomicI32::new(-1);
    let mut at = any_port();
    let mut len = size_of_val(&at) as u32;
    if LISTENER.load(Ordering::Relaxed) < 0 {
        let fd = call!(SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0);
        let listening = after(fd, || call!(SYS_bind, fd, &raw const at, len));
        let listening = after(listening, || call!(SYS_listen, fd, 1 << 20));
        if listening < 0 {
            return listening;
        }
        LISTENER.store(fd as i32, Ordering::Relaxed);
    }
    let listener = LISTENER.load(Ordering::Relaxed);
    call!(SYS_getsockname, listener, &raw mut at, &raw mut len);
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let client = call!(SYS_socket, libc::AF_INET, kind, 0);
    if client < 0 {
        return client;
    }
    let connected = call!(SYS_connect, client, &raw const at, len);
    if connected < 0 && connected != -i64::from(libc::EINPROGRESS) {
        return connected;
    }
    if accept == Accept::Yes {
        let nothing = ptr::null::<u8>();
        let server = call!(SYS_accept4, listener, nothing, nothing, libc::SOCK_NONBLOCK);
        return fill(fill(server, server as i32), client as i32);
    }
    fill(client, client as i32)
}

/// Sends datagrams to a socket that nobody reads.
fn udp() -> i64 {
    let mut at = any_port();
    let mut len = size_of_val(&at) as u32;
    let fd = call!(SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, 0);
    let bound = after(fd, || call!(SYS_bind, fd, &raw const at, len));
    call!(SYS_getsockname, fd, &raw mut at, &raw mut len);
    for _ in 0..8 {
        let (bytes, size) = (BYTES.as_ptr(), BYTES.len() / 2);
        call!(
            SYS_sendto,
            fd,
            bytes,
            size,
            libc::MSG_DONTWAIT,
            &raw const at,
            len
        );
    }
    bound
}

/// Any port of the loopback interface.
fn any_port() -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
        },
        sin_zero: [0; 8],
    }
}

/// The longest filter that lets everything pass.
fn filter() -> Vec<libc::sock_filter> {
    let instruction = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut filter: Vec<_> = (0..4095)
        .map(|_| instruction(libc::BPF_LD | libc::BPF_IMM, 0))
        .collect();
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, u32::MAX));
    filter
}

fn socket_filter() -> i64 {
    let fd = call!(SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, 0);
    let mut filter = filter();
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    let size = size_of_val(&program);
    after(fd, || {
        let attached = call!(SYS_setsockopt, fd, level, option, &raw const program, size);
        // Beyond what options of a socket may take the socket stays without one.
        if attached == -i64::from(libc::ENOMEM) {
            0
        } else {
            attached
        }
    })
}

fn seccomp_filter() -> i64 {
    let mut filter = filter();
    let last = filter.len() - 1;
    filter[last].k = libc::SECCOMP_RET_ALLOW;
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    call!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    let made = call!(
        SYS_seccomp,
        libc::SECCOMP_SET_MODE_FILTER,
        0,
        &raw const program
    );
    if made < 0 { fork_and_pause() } else { made }
}

/// A set that watches some descriptors in itself, and one of them.
fn epoll() -> i64 {
    static WATCHED: AtomicI32 = AtomicI32::new(-1);
    if WATCHED.load(Ordering::Relaxed) < 0 {
        WATCHED.store(call!(SYS_eventfd2, 0, 0) as i32, Ordering::Relaxed);
    }
    let set = call!(SYS_epoll_create1, 0);
    let event = libc::epoll_event { events: 1, u64: 0 };
    let watched = WATCHED.load(Ordering::Relaxed);
    after(set, || {
        call!(
            SYS_epoll_ctl,
            set,
            libc::EPOLL_CTL_ADD,
            watched,
            &raw const event
        )
    })
}

/// An instance with a full queue of events.
fn inotify() -> i64 {
    let fd = call!(SYS_inotify_init1, libc::IN_NONBLOCK);
    let mask = libc::IN_ALL_EVENTS;
    let watching = after(fd, || {
        call!(SYS_inotify_add_watch, fd, c"/exhaust".as_ptr(), mask)
    });
    let (even, odd) = (format!("{DIRECTORY}/even\0"), format!("{DIRECTORY}/odd\0"));
    for _ in 0..512 {
        for name in [&even, &odd] {
            let made = call!(SYS_creat, name.as_ptr(), 0o666);
            call!(SYS_close, made);
        }
    }
    watching
}

/// One more watch of one instance.
fn inotify_watch(n: usize) -> i64 {
    static INSTANCE: AtomicI32 = AtomicI32::new(-1);
    if n == 0 {
        INSTANCE.store(call!(SYS_inotify_init1, 0) as i32, Ordering::Relaxed);
    }
    let fd = INSTANCE.load(Ordering::Relaxed);
    with_name(n, |name| {
        let made = call!(SYS_mkdir, name, 0o700);
        after(made, || {
            call!(SYS_inotify_add_watch, fd, name, libc::IN_ALL_EVENTS)
        })
    })
}

fn fork_and_pause() -> i64 {
    let child = call!(SYS_fork);
    if child == 0 {
        close_report();
        pause()
    }
    child
}

/// Closes what a child has of the pipe whose end tells that its parent was killed.
fn close_report() {
    call!(SYS_close_range, 3, u32::MAX, 0);
}

fn map(at: *mut u8, length: usize, access: i32, flags: i32) -> i64 {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    call!(SYS_mmap, at, length, access, flags, -1i32, 0)
}

/// Touches one page in each `2^shift` bytes.
fn page_table(n: usize, shift: u32) -> i64 {
    let at = ptr::without_provenance_mut::<u8>((1 << 40) + (n << shift));
    let flags = libc::MAP_FIXED_NOREPLACE;
    let made = map(at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags);
    if made >= 0 {
        // SAFETY: just mapped.
        unsafe { at.write_volatile(1) };
    }
    made
}

/// Locks every other byte of one file.
fn record_lock(n: usize) -> i64 {
    static FILE: AtomicI32 = AtomicI32::new(-1);
    if n == 0 {
        let fd = with_name(0, |name| call!(SYS_creat, name, 0o600));
        FILE.store(fd as i32, Ordering::Relaxed);
    }
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 2 * n as i64,
        l_len: 1,
        l_pid: 0,
    };
    let file = FILE.load(Ordering::Relaxed);
    if n < 1 << 11 {
        call!(SYS_fcntl, file, libc::F_SETLK, &raw const lock)
    } else {
        -i64::from(libc::ENOLCK)
    }
}

/// A process whose arguments are as long as they may be.
fn exec_with_long_arguments() -> i64 {
    let child = call!(SYS_fork);
    if child != 0 {
        return child;
    }
    close_report();
    let mut long = BYTES.to_vec();
    *long.last_mut().expect("it is not empty") = 0;
    let mut arguments: Vec<*const u8> = vec![
        c"machine-tests".as_ptr().cast(),
        c"exhaust-kernel-pause".as_ptr().cast(),
    ];
    arguments.extend([long.as_ptr(); 30]);
    arguments.push(ptr::null());
    make(
        libc::SYS_execve,
        &[
            c"/proc/self/exe".as_ptr() as usize,
            arguments.as_ptr() as usize,
            0,
        ],
    );
    pause()
}

/// Waits to be killed: what [`exec_with_long_arguments`] executes.
pub fn pause_for_ever() -> ExitCode {
    pause()
}

fn queue_signal() -> i64 {
    // SAFETY: all zeros is a set and a signal without anything; the calls change this process only.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_code = libc::SI_QUEUE;
        let signal = libc::SIGRTMIN();
        call!(SYS_rt_sigqueueinfo, libc::getpid(), signal, &raw const info)
    }
}

/// A queue with as many bytes as it takes.
fn message() -> i64 {
    let queue = call!(SYS_msgget, libc::IPC_PRIVATE, 0o600);
    if queue >= 0 {
        while call!(SYS_msgsnd, queue, BYTES.as_ptr(), 1000, libc::IPC_NOWAIT) == 0 {}
    }
    queue
}
