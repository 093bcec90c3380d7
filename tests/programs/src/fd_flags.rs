//! Every call that makes a descriptor: whether it is closed on exec and whether it waits is as the
//! call says, and as `exec` does.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::ptr;

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::text_busy::Place;

pub const CHECKS: &[(&str, Check)] = &[
    (
        "fd-flags-have-the-flags-of-their-call",
        have_flags_of_their_call,
    ),
    ("fd-flags-are-closed-by-exec", are_closed_by_exec),
    ("fd-flags-change-their-flags", change_their_flags),
    ("fd-flags-of-a-thread-of-its-own", of_a_thread_of_its_own),
    ("fd-flags-tell-of-themselves", tell_of_themselves),
    ("fd-flags-take-the-lowest-number", take_the_lowest_number),
    (
        "fd-flags-copied-have-flags-of-their-own",
        copied_have_flags_of_their_own,
    ),
];

/// Ways in which a call tells a flag of the descriptor it makes.
#[derive(Clone, Copy, PartialEq)]
enum Says {
    /// The flag is off.
    Off,
    /// The flag is on.
    On,
    /// An argument decides.
    Argument,
}

use Says::{Argument, Off, On};

/// Something that makes a descriptor. It is told whether it is to be closed on exec and not to
/// wait.
struct Maker {
    name: &'static str,
    cloexec: Says,
    nonblock: Says,
    make: fn(&Place, bool, bool) -> Result<Fd>,
}

/// Flags of a call in which those of `open(2)` mean the two.
fn flags(cloexec: bool, nonblock: bool) -> i32 {
    (if cloexec { libc::O_CLOEXEC } else { 0 }) | (if nonblock { libc::O_NONBLOCK } else { 0 })
}

fn name(place: &Place, file: &str) -> Result<std::ffi::CString> {
    Ok(std::ffi::CString::new(
        place.0.join(file).as_os_str().as_bytes(),
    )?)
}

macro_rules! maker {
    ($name:literal, $cloexec:expr, $nonblock:expr, |$place:ident, $c:ident, $n:ident| $make:expr) => {
        Maker {
            name: $name,
            cloexec: $cloexec,
            nonblock: $nonblock,
            make: |$place, $c, $n| Fd::new($make, $name),
        }
    };
}

/// `struct open_how`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn files() -> Vec<Maker> {
    vec![
        maker!("open", Argument, Argument, |_place, c, n| call!(
            SYS_open,
            c"/dev/null".as_ptr(),
            libc::O_RDWR | flags(c, n),
            0
        )),
        maker!("openat of a file", Argument, Argument, |place, c, n| {
            call!(
                SYS_openat,
                libc::AT_FDCWD,
                name(place, "a")?.as_ptr(),
                libc::O_RDWR | libc::O_CREAT | flags(c, n),
                0o600
            )
        }),
        maker!("open of a place", Argument, Off, |_place, c, _n| call!(
            SYS_open,
            c"/".as_ptr(),
            libc::O_PATH | flags(c, false)
        )),
        maker!("open without a name", Argument, Argument, |place, c, n| {
            call!(
                SYS_open,
                name(place, "")?.as_ptr(),
                libc::O_RDWR | libc::O_TMPFILE | flags(c, n),
                0o600
            )
        }),
        maker!("openat2", Argument, Argument, |_place, c, n| {
            let how = OpenHow {
                flags: flags(c, n) as u64,
                mode: 0,
                resolve: 0,
            };
            call!(
                SYS_openat2,
                libc::AT_FDCWD,
                c"/".as_ptr(),
                &raw const how,
                size_of::<OpenHow>()
            )
        }),
        maker!("creat", Off, Off, |place, _c, _n| call!(
            SYS_creat,
            name(place, "b")?.as_ptr(),
            0o600
        )),
        maker!("memfd_create", Argument, Off, |_place, c, _n| {
            call!(
                SYS_memfd_create,
                c"m".as_ptr(),
                if c { libc::MFD_CLOEXEC } else { 0 }
            )
        }),
        maker!("mq_open", On, Argument, |_place, c, n| {
            let made = call!(
                SYS_mq_open,
                c"descriptors".as_ptr(),
                libc::O_RDWR | libc::O_CREAT | flags(c, n),
                0o600,
                0
            );
            call!(SYS_mq_unlink, c"descriptors".as_ptr());
            made
        }),
        maker!("open_by_handle_at", Argument, Argument, |_place, c, n| {
            let mut handle = [0u32; 34];
            handle[0] = 128;
            let mut mount = 0i32;
            let named = call!(
                SYS_name_to_handle_at,
                libc::AT_FDCWD,
                c"/tmp".as_ptr(),
                handle.as_mut_ptr(),
                &raw mut mount,
                0
            );
            is(named, 0, "name_to_handle_at")?;
            let tree = Fd::new(call!(SYS_open, c"/tmp".as_ptr(), libc::O_RDONLY), "open")?;
            call!(SYS_open_by_handle_at, tree.0, handle.as_ptr(), flags(c, n))
        }),
        maker!(
            "the other side of a terminal",
            Argument,
            Argument,
            |_place, c, n| {
                let master = terminal()?;
                call!(
                    SYS_ioctl,
                    master.0,
                    libc::TIOCGPTPEER,
                    libc::O_RDWR | libc::O_NOCTTY | flags(c, n)
                )
            }
        ),
        maker!("fsopen", Argument, Off, |_place, c, _n| call!(
            SYS_fsopen,
            c"tmpfs".as_ptr(),
            i32::from(c)
        )),
        maker!("fspick", Argument, Off, |_place, c, _n| call!(
            SYS_fspick,
            libc::AT_FDCWD,
            c"/proc".as_ptr(),
            i32::from(c)
        )),
        maker!("fsmount", Argument, Off, |_place, c, _n| {
            let context = Fd::new(call!(SYS_fsopen, c"tmpfs".as_ptr(), 1), "fsopen")?;
            is(call!(SYS_fsconfig, context.0, 6, 0, 0, 0), 0, "fsconfig")?;
            call!(SYS_fsmount, context.0, i32::from(c), 0)
        }),
        maker!("open_tree", Argument, Off, |_place, c, _n| {
            call!(
                SYS_open_tree,
                libc::AT_FDCWD,
                c"/proc".as_ptr(),
                flags(c, false)
            )
        }),
    ]
}

/// The controlling side of a new terminal, whose other side may be opened.
fn terminal() -> Result<Fd> {
    let master = Fd::new(
        call!(
            SYS_open,
            c"/dev/ptmx".as_ptr(),
            libc::O_RDWR | libc::O_NOCTTY
        ),
        "/dev/ptmx",
    )?;
    let unlocked = 0i32;
    is(
        call!(SYS_ioctl, master.0, libc::TIOCSPTLCK, &raw const unlocked),
        0,
        "TIOCSPTLCK",
    )?;
    Ok(master)
}

/// The first of two descriptors that a call stored, if it did well.
fn first(result: i64, fds: [i32; 2], which: usize) -> i64 {
    if result < 0 {
        return result;
    }
    drop(Fd(fds[1 - which]));
    fds[which].into()
}

fn sockets() -> Vec<Maker> {
    vec![
        maker!(
            "a pipe's reading end",
            Argument,
            Argument,
            |_place, c, n| {
                let mut fds = [-1; 2];
                first(call!(SYS_pipe2, fds.as_mut_ptr(), flags(c, n)), fds, 0)
            }
        ),
        maker!(
            "a pipe's writing end",
            Argument,
            Argument,
            |_place, c, n| {
                let mut fds = [-1; 2];
                first(call!(SYS_pipe2, fds.as_mut_ptr(), flags(c, n)), fds, 1)
            }
        ),
        maker!("pipe", Off, Off, |_place, _c, _n| {
            let mut fds = [-1; 2];
            first(call!(SYS_pipe, fds.as_mut_ptr()), fds, 1)
        }),
        maker!("socket AF_UNIX", Argument, Argument, |_place, c, n| {
            call!(SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM | flags(c, n), 0)
        }),
        maker!("socket AF_INET", Argument, Argument, |_place, c, n| {
            call!(
                SYS_socket,
                libc::AF_INET,
                libc::SOCK_STREAM | flags(c, n),
                0
            )
        }),
        maker!("socket AF_INET6", Argument, Argument, |_place, c, n| {
            call!(
                SYS_socket,
                libc::AF_INET6,
                libc::SOCK_DGRAM | flags(c, n),
                0
            )
        }),
        maker!("socket AF_NETLINK", Argument, Argument, |_place, c, n| {
            call!(
                SYS_socket,
                libc::AF_NETLINK,
                libc::SOCK_RAW | flags(c, n),
                0
            )
        }),
        maker!("one of a pair", Argument, Argument, |_place, c, n| {
            let mut fds = [-1; 2];
            first(
                call!(
                    SYS_socketpair,
                    libc::AF_UNIX,
                    libc::SOCK_STREAM | flags(c, n),
                    0,
                    fds.as_mut_ptr()
                ),
                fds,
                0,
            )
        }),
        maker!("the other of a pair", Argument, Argument, |_place, c, n| {
            let mut fds = [-1; 2];
            first(
                call!(
                    SYS_socketpair,
                    libc::AF_UNIX,
                    libc::SOCK_SEQPACKET | flags(c, n),
                    0,
                    fds.as_mut_ptr()
                ),
                fds,
                1,
            )
        }),
        maker!("accept", Off, Off, |_place, _c, _n| accepted(
            |listener| call!(SYS_accept, listener, 0, 0)
        )?),
        maker!("accept4 of TCP", Argument, Argument, |_place, c, n| {
            accepted(|listener| {
                // The flags of who listens are not those of who is accepted.
                let (close, wait) = if c {
                    (0, libc::O_NONBLOCK)
                } else {
                    (libc::FD_CLOEXEC, 0)
                };
                call!(SYS_fcntl, listener, libc::F_SETFD, close);
                call!(SYS_fcntl, listener, libc::F_SETFL, wait);
                call!(SYS_accept4, listener, 0, 0, flags(c, n))
            })?
        }),
        maker!("accept4 of AF_UNIX", Argument, Argument, |place, c, n| {
            let path = place.0.join("socket");
            let _ = fs::remove_file(&path);
            let listener = std::os::unix::net::UnixListener::bind(&path)?;
            let _client = std::os::unix::net::UnixStream::connect(&path)?;
            call!(SYS_accept4, listener.as_raw_fd(), 0, 0, flags(c, n))
        }),
        maker!("SCM_RIGHTS", Argument, Off, |_place, c, _n| passed(c)?),
    ]
}

/// A connection that `accept` takes from a listening socket of TCP.
fn accepted(accept: impl Fn(i32) -> i64) -> Result<i64> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let _client = std::net::TcpStream::connect(listener.local_addr()?)?;
    Ok(accept(listener.as_raw_fd()))
}

/// A descriptor that came through a socket. What was sent has the opposite flag.
fn passed(cloexec: bool) -> Result<i64> {
    let [near, far] = pair(libc::SOCK_STREAM)?;
    let sent = Fd::new(
        call!(
            SYS_open,
            c"/dev/null".as_ptr(),
            libc::O_RDWR | flags(!cloexec, false)
        ),
        "open",
    )?;
    let mut byte = 1u8;
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // A head, one descriptor, and what makes it whole words.
    let mut control = [
        20u64,
        u64::from(libc::SOL_SOCKET as u32) | (libc::SCM_RIGHTS as u64) << 32,
        sent.0 as u64,
    ];
    // SAFETY: a message without anything is one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 24);
    is(
        call!(SYS_sendmsg, near.0, &raw const message, 0),
        1,
        "sendmsg",
    )?;
    control[2] = 0;
    message.msg_controllen = 24;
    is(
        call!(
            SYS_recvmsg,
            far.0,
            &raw mut message,
            if cloexec { libc::MSG_CMSG_CLOEXEC } else { 0 }
        ),
        1,
        "recvmsg",
    )?;
    ensure!(
        control[0] == 20 && control[2] != 0,
        "no descriptor came: {control:?}"
    );
    Ok((control[2] as i32).into())
}

fn events() -> Vec<Maker> {
    vec![
        maker!("epoll_create", Off, Off, |_place, _c, _n| call!(
            SYS_epoll_create,
            1
        )),
        maker!("epoll_create1", Argument, Off, |_place, c, _n| call!(
            SYS_epoll_create1,
            flags(c, false)
        )),
        maker!("eventfd", Off, Off, |_place, _c, _n| call!(SYS_eventfd, 0)),
        maker!("eventfd2", Argument, Argument, |_place, c, n| call!(
            SYS_eventfd2,
            0,
            flags(c, n)
        )),
        maker!("signalfd", Off, Off, |_place, _c, _n| call!(
            SYS_signalfd,
            -1i32,
            &raw const NOTHING,
            8
        )),
        maker!("signalfd4", Argument, Argument, |_place, c, n| {
            call!(SYS_signalfd4, -1i32, &raw const NOTHING, 8, flags(c, n))
        }),
        maker!("timerfd_create", Argument, Argument, |_place, c, n| {
            call!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, flags(c, n))
        }),
        maker!("inotify_init", Off, Off, |_place, _c, _n| call!(
            SYS_inotify_init
        )),
        maker!("inotify_init1", Argument, Argument, |_place, c, n| call!(
            SYS_inotify_init1,
            flags(c, n)
        )),
        maker!("pidfd_open", On, Argument, |_place, _c, n| call!(
            SYS_pidfd_open,
            std::process::id(),
            flags(false, n)
        )),
        maker!("pidfd_getfd", On, Off, |_place, _c, _n| {
            let own = Fd::new(call!(SYS_pidfd_open, std::process::id(), 0), "pidfd_open")?;
            let file = Fd::new(call!(SYS_open, c"/dev/null".as_ptr(), libc::O_RDWR), "open")?;
            call!(SYS_pidfd_getfd, own.0, file.0, 0)
        }),
        maker!("clone with a descriptor", On, Off, |_place, _c, _n| {
            let mut fd = -1i32;
            let child = call!(
                SYS_clone,
                libc::CLONE_PIDFD | libc::SIGCHLD,
                0,
                &raw mut fd,
                0,
                0
            );
            if child == 0 {
                // SAFETY: the child ends here.
                unsafe { libc::_exit(0) };
            }
            is(call!(SYS_wait4, child, 0, 0, 0), child, "wait4")?;
            fd.into()
        }),
        maker!("dup", Off, Off, |_place, _c, _n| {
            let file = Fd::new(
                call!(SYS_open, c"/dev/null".as_ptr(), flags(true, false)),
                "open",
            )?;
            call!(SYS_dup, file.0)
        }),
        maker!("dup2", Off, Off, |_place, _c, _n| {
            let file = Fd::new(
                call!(SYS_open, c"/dev/null".as_ptr(), flags(true, false)),
                "open",
            )?;
            let to = free_number()?;
            call!(SYS_dup2, file.0, to)
        }),
        maker!("dup3", Argument, Off, |_place, c, _n| {
            let file = Fd::new(
                call!(SYS_open, c"/dev/null".as_ptr(), flags(!c, false)),
                "open",
            )?;
            let to = free_number()?;
            call!(SYS_dup3, file.0, to, flags(c, false))
        }),
        maker!("F_DUPFD", Off, Off, |_place, _c, _n| {
            let file = Fd::new(
                call!(SYS_open, c"/dev/null".as_ptr(), flags(true, false)),
                "open",
            )?;
            call!(SYS_fcntl, file.0, libc::F_DUPFD, 20)
        }),
        maker!("F_DUPFD_CLOEXEC", On, Off, |_place, _c, _n| {
            let file = Fd::new(call!(SYS_open, c"/dev/null".as_ptr(), 0), "open")?;
            call!(SYS_fcntl, file.0, libc::F_DUPFD_CLOEXEC, 20)
        }),
    ]
}

/// No signals.
static NOTHING: u64 = 0;

/// A number that no descriptor has.
fn free_number() -> Result<i64> {
    let fd = call!(SYS_fcntl, 0, libc::F_DUPFD, 100);
    drop(Fd::new(fd, "F_DUPFD")?);
    Ok(fd)
}

fn makers() -> impl Iterator<Item = Maker> {
    files().into_iter().chain(sockets()).chain(events())
}

fn choices(says: Says) -> &'static [bool] {
    match says {
        Off => &[false],
        On => &[true],
        Argument => &[false, true],
    }
}

/// Calls `each` with every maker and every choice of flags.
fn for_all(mut each: impl FnMut(&Maker, bool, bool) -> Result<()>) -> Result<()> {
    for maker in makers() {
        for &cloexec in choices(maker.cloexec) {
            for &nonblock in choices(maker.nonblock) {
                each(&maker, cloexec, nonblock)
                    .with_context(|| format!("{} ({cloexec}, {nonblock})", maker.name))?;
            }
        }
    }
    Ok(())
}

/// Whether a descriptor is closed on exec, and whether it does not wait.
fn flags_of(fd: &Fd) -> Result<(bool, bool)> {
    let (own, file) = (
        call!(SYS_fcntl, fd.0, libc::F_GETFD),
        call!(SYS_fcntl, fd.0, libc::F_GETFL),
    );
    ensure!(
        own == 0 || own == i64::from(libc::FD_CLOEXEC),
        "F_GETFD: {own}"
    );
    ensure!(file >= 0, "F_GETFL: {file}");
    Ok((own != 0, file & i64::from(libc::O_NONBLOCK) != 0))
}

/// The same flags, as `/proc/self/fdinfo` shows them.
fn shown_flags(fd: &Fd) -> Result<(bool, bool)> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.0))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .context("no flags")?;
    let flags = i32::from_str_radix(line.trim(), 8)?;
    Ok((flags & libc::O_CLOEXEC != 0, flags & libc::O_NONBLOCK != 0))
}

fn have_flags_of_their_call() -> Result<()> {
    let place = Place::new("descriptors")?;
    for_all(|maker, cloexec, nonblock| {
        let fd = (maker.make)(&place, cloexec, nonblock)?;
        let (found, shown) = (flags_of(&fd)?, shown_flags(&fd)?);
        ensure!(found == (cloexec, nonblock), "it has {found:?}");
        ensure!(shown == found, "fdinfo shows {shown:?}");
        Ok(())
    })
}

/// Says which descriptors are open: this program after `exec`.
pub fn child() -> ExitCode {
    let open: Vec<String> = (3..1024)
        .filter(|fd| call!(SYS_fcntl, *fd, libc::F_GETFD) >= 0)
        .map(|fd: i32| fd.to_string())
        .collect();
    print!("{}", open.join(" "));
    ExitCode::SUCCESS
}

/// The descriptors that are open after an exec.
fn after_exec() -> Result<BTreeSet<i32>> {
    let [reader, writer] = pipe(libc::O_CLOEXEC)?;
    // SAFETY: the child executes or ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let arguments = [
            c"machine-tests".as_ptr(),
            c"descriptors-child".as_ptr(),
            ptr::null(),
        ];
        call!(SYS_dup2, writer.0, 1);
        call!(
            SYS_execve,
            c"/proc/self/exe".as_ptr(),
            arguments.as_ptr(),
            0
        );
        // SAFETY: the child ends here.
        unsafe { libc::_exit(1) };
    }
    drop(writer);
    let mut text = vec![0u8; 8192];
    let mut len = 0;
    loop {
        match call!(
            SYS_read,
            reader.0,
            text[len..].as_mut_ptr(),
            text.len() - len
        ) {
            0 => break,
            n => len += usize::try_from(n)?,
        }
    }
    is(call!(SYS_wait4, child, 0, 0, 0), child.into(), "wait4")?;
    Ok(std::str::from_utf8(&text[..len])?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?)
}

fn are_closed_by_exec() -> Result<()> {
    let place = Place::new("fd-flags-exec")?;
    let before = after_exec()?;
    let mut made = Vec::new();
    for_all(|maker, cloexec, nonblock| {
        made.push((
            maker.name,
            cloexec,
            (maker.make)(&place, cloexec, nonblock)?,
        ));
        Ok(())
    })?;
    let after = after_exec()?;
    for (name, cloexec, fd) in &made {
        ensure!(
            after.contains(&fd.0) != *cloexec,
            "{name} ({cloexec}): {}",
            if *cloexec { "kept" } else { "closed" }
        );
    }
    let kept = made.iter().filter(|(_, cloexec, _)| !cloexec).count();
    ensure!(
        after.len() == before.len() + kept,
        "{after:?} are open, {before:?} were, and {kept} were to be kept"
    );
    Ok(())
}

fn change_their_flags() -> Result<()> {
    let fd = Fd::new(call!(SYS_eventfd2, 0, 0), "eventfd2")?;
    let (on, off) = (1i32, 0i32);
    let change = |result: i64, expected: (bool, bool), what: &str| -> Result<()> {
        is(result, 0, what)?;
        let found = flags_of(&fd)?;
        ensure!(
            found == expected && shown_flags(&fd)? == expected,
            "{what}: {found:?}"
        );
        Ok(())
    };
    change(
        call!(SYS_ioctl, fd.0, libc::FIOCLEX),
        (true, false),
        "FIOCLEX",
    )?;
    change(
        call!(SYS_ioctl, fd.0, libc::FIONBIO, &raw const on),
        (true, true),
        "FIONBIO",
    )?;
    change(
        call!(SYS_ioctl, fd.0, libc::FIONCLEX),
        (false, true),
        "FIONCLEX",
    )?;
    change(
        call!(SYS_fcntl, fd.0, libc::F_SETFD, libc::FD_CLOEXEC),
        (true, true),
        "F_SETFD",
    )?;
    change(
        call!(SYS_ioctl, fd.0, libc::FIONBIO, &raw const off),
        (true, false),
        "FIONBIO off",
    )?;
    change(
        call!(SYS_fcntl, fd.0, libc::F_SETFL, libc::O_NONBLOCK),
        (true, true),
        "F_SETFL",
    )?;
    change(
        call!(SYS_fcntl, fd.0, libc::F_SETFD, 0),
        (false, true),
        "F_SETFD off",
    )?;
    // Only the lowest bit means anything.
    change(
        call!(SYS_fcntl, fd.0, libc::F_SETFD, 2),
        (false, true),
        "F_SETFD of another bit",
    )?;
    change(
        call!(SYS_fcntl, fd.0, libc::F_SETFL, 0),
        (false, false),
        "F_SETFL off",
    )?;
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    change(
        call!(SYS_close_range, fd.0, fd.0, CLOSE_RANGE_CLOEXEC),
        (true, false),
        "close_range",
    )
}

/// Copies share whether they wait, and not whether they are closed on exec.
fn copied_have_flags_of_their_own() -> Result<()> {
    let first = Fd::new(call!(SYS_eventfd2, 0, 0), "eventfd2")?;
    let second = Fd::new(
        call!(SYS_fcntl, first.0, libc::F_DUPFD_CLOEXEC, 0),
        "F_DUPFD_CLOEXEC",
    )?;
    ensure!(
        flags_of(&first)? == (false, false) && flags_of(&second)? == (true, false),
        "after the copy"
    );
    is(
        call!(SYS_fcntl, second.0, libc::F_SETFL, libc::O_NONBLOCK),
        0,
        "F_SETFL",
    )?;
    ensure!(
        flags_of(&first)? == (false, true) && flags_of(&second)? == (true, true),
        "after F_SETFL"
    );
    is(
        call!(SYS_fcntl, first.0, libc::F_SETFD, libc::FD_CLOEXEC),
        0,
        "F_SETFD",
    )?;
    is(call!(SYS_fcntl, second.0, libc::F_SETFD, 0), 0, "F_SETFD")?;
    ensure!(
        flags_of(&first)? == (true, true) && flags_of(&second)? == (false, true),
        "after F_SETFD"
    );
    Ok(())
}

/// Calls that tell of a descriptor do so through that descriptor.
fn tell_of_themselves() -> Result<()> {
    let null = Fd::new(
        call!(
            SYS_openat,
            libc::AT_FDCWD,
            c"/dev/null".as_ptr(),
            libc::O_RDONLY
        ),
        "openat",
    )?;
    let path = std::ffi::CString::new(format!("/proc/self/fdinfo/{}", null.0))?;
    let info = Fd::new(
        call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY),
        "openat",
    )?;
    is(call!(SYS_dup2, info.0, null.0), null.0.into(), "dup2")?;
    let mut text = [0u8; 100];
    let len = call!(SYS_read, info.0, text.as_mut_ptr(), text.len());
    ensure!(len > 0 && text.starts_with(b"pos:\t0\n"), "read: {len}");
    let position = String::from_utf8_lossy(&text[..len as usize]).into_owned();
    is(
        call!(SYS_pread64, info.0, text.as_mut_ptr(), text.len(), 0),
        len + (len.to_string().len() - 1) as i64,
        "pread64",
    )?;
    ensure!(
        text.starts_with(format!("pos:\t{len}\n").as_bytes()),
        "after {position:?}: {:?}",
        String::from_utf8_lossy(&text)
    );
    Ok(())
}

fn take_the_lowest_number() -> Result<()> {
    // More than one word of the table's bits, and then holes at both ends of a word.
    let (null, most) = (
        Fd::new(
            call!(SYS_open, c"/dev/null".as_ptr(), libc::O_RDONLY),
            "open",
        )?,
        200,
    );
    let copy = |least: i64| call!(SYS_fcntl, null.0, libc::F_DUPFD, least);
    let base = 10;
    let mut copies: Vec<Fd> = Vec::new();
    let mut expected: Vec<i64> = (base..most)
        .filter(|fd| call!(SYS_fcntl, *fd, libc::F_GETFD) < 0)
        .collect();
    for number in &expected {
        copies.push(Fd::new(copy(base), "F_DUPFD")?);
        is(
            i64::from(copies.last().map_or(-1, |fd| fd.0)),
            *number,
            "the lowest number that is free",
        )?;
    }
    expected.retain(|number| [63, 64, 127, 128, most - 1].contains(number));
    copies.retain(|fd| !expected.contains(&i64::from(fd.0)));
    for least in [base, 64, 65, 128] {
        let number = copy(least);
        let free = expected
            .iter()
            .find(|number| **number >= least)
            .context("there is one")?;
        is(number, *free, "the lowest number from one on")?;
        drop(Fd::new(number, "F_DUPFD")?);
    }
    Ok(())
}

fn of_a_thread_of_its_own() -> Result<()> {
    let [reader, writer] = pipe(0)?;
    let (reader, writer) = (reader.0, writer.0);
    let mine = std::thread::spawn(move || {
        is(call!(SYS_unshare, libc::CLONE_FILES), 0, "unshare")?;
        is(call!(SYS_close, writer), 0, "close of the thread's own")?;
        fails(
            call!(SYS_write, writer, c"x".as_ptr(), 1),
            libc::EBADF,
            "write to what was closed",
        )?;
        let new = call!(SYS_dup, reader);
        ensure!(new >= 0, "dup: {new}");
        Ok(new)
    });
    let new = mine.join().expect("the thread ended well")?;
    is(
        call!(SYS_write, writer, c"x".as_ptr(), 1),
        1,
        "write to what another thread has closed for itself",
    )?;
    if new != i64::from(writer) {
        fails(
            call!(SYS_fcntl, new, libc::F_GETFD),
            libc::EBADF,
            "a descriptor that another thread has made for itself",
        )?;
    }
    Ok(())
}
