//! Limits, exactly: how much fits, how many there may be, and that one more is refused, again and
//! again.

use std::ffi::CString;

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::credentials::{become_user, in_child};
use crate::text_busy::Place;

pub const CHECKS: &[(&str, Check)] = &[
    ("limits-of-connections", of_connections),
    ("limits-of-bytes-in-pipes", of_bytes_in_pipes),
    ("limits-of-eventfd", of_eventfd),
    ("limits-of-events-asked-for", of_events_asked_for),
    (
        "limits-of-pages-of-a-file-system",
        of_pages_of_a_file_system,
    ),
    ("limits-of-descriptors", of_descriptors),
    ("limits-of-processes", of_processes),
    ("limits-of-locked-bytes", of_locked_bytes),
    ("limits-of-queued-signals", of_queued_signals),
    ("limits-of-semaphores", of_semaphores),
    ("limits-of-messages", of_messages),
    ("limits-of-buffers-and-names", of_buffers_and_names),
    ("limits-of-arguments-of-clone3", of_clone3),
    ("limits-of-timers-and-priorities", of_timers_and_priorities),
    ("limits-of-modes-in-group-directories", of_modes),
];

/// Ordinary users, each of one check of those that count what a user has: checks run side by side.
const PROCESSES_USER: u32 = 54_321;
const LOCKED_USER: u32 = 54_322;
const SIGNALS_USER: u32 = 54_323;
/// Ordinary users whose processes nobody counts.
const USERS: [u32; 2] = [54_324, 54_325];

fn unix_socket(flags: i32) -> Result<Fd> {
    Fd::new(
        call!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | flags, 0),
        "socket",
    )
}

fn of_events_asked_for() -> Result<()> {
    // In the program's own data: behind it there is room for as many events as can be asked for, as
    // addresses go.
    static ROOM: [u64; 2] = [0; 2];
    const MOST: i32 = i32::MAX / size_of::<libc::epoll_event>() as i32;
    let set = Fd::new(call!(SYS_epoll_create1, 0), "epoll_create1")?;
    let wait = |most: i32| call!(SYS_epoll_wait, set.0, ROOM.as_ptr(), most, 0);
    for most in [1, MOST] {
        is(wait(most), 0, &format!("epoll_wait for {most} events"))?;
    }
    for most in [i32::MIN, -1, 0, MOST + 1, i32::MAX] {
        fails(
            wait(most),
            libc::EINVAL,
            &format!("epoll_wait for {most} events"),
        )?;
    }
    Ok(())
}

fn of_connections() -> Result<()> {
    for backlog in [0usize, 1, 3] {
        // A name of the kernel's choice.
        let listener = unix_socket(0)?;
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
        is(call!(SYS_listen, listener.0, backlog), 0, "listen")?;
        let connect = || -> Result<(Fd, i64)> {
            let socket = unix_socket(libc::SOCK_NONBLOCK)?;
            let result = call!(SYS_connect, socket.0, address.as_ptr(), len);
            Ok((socket, result))
        };
        let mut waiting = Vec::new();
        for number in 0..=backlog {
            let (socket, result) = connect()?;
            is(
                result,
                0,
                &format!("connection {number} of a backlog of {backlog}"),
            )?;
            waiting.push(socket);
        }
        for _ in 0..3 {
            fails(
                connect()?.1,
                libc::EAGAIN,
                &format!("one more than a backlog of {backlog}"),
            )?;
            drop(Fd::new(call!(SYS_accept4, listener.0, 0, 0, 0), "accept4")?);
            let (socket, result) = connect()?;
            is(result, 0, "the place of who was accepted")?;
            waiting.push(socket);
        }
    }
    Ok(())
}

fn of_bytes_in_pipes() -> Result<()> {
    let [reader, writer] = pipe(libc::O_NONBLOCK)?;
    let size = |bytes: usize| call!(SYS_fcntl, reader.0, libc::F_SETPIPE_SZ, bytes);
    is(
        call!(SYS_fcntl, writer.0, libc::F_GETPIPE_SZ),
        65_536,
        "F_GETPIPE_SZ",
    )?;
    let full = vec![0u8; 1 << 21];
    let put = |len: usize| call!(SYS_write, writer.0, full.as_ptr(), len);
    let take = |len: usize| call!(SYS_read, reader.0, full.as_ptr(), len);
    for (wanted, granted) in [
        (0, 4096),
        (1, 4096),
        (4097, 8192),
        (65_536, 65_536),
        (70_000, 131_072),
        (1 << 20, 1 << 20),
    ] {
        is(size(wanted), granted, &format!("F_SETPIPE_SZ of {wanted}"))?;
        is(
            call!(SYS_fcntl, writer.0, libc::F_GETPIPE_SZ),
            granted,
            "F_GETPIPE_SZ",
        )?;
        is(
            put(1 << 21),
            granted,
            &format!("what goes into a pipe of {granted}"),
        )?;
        fails(put(1), libc::EAGAIN, "one more byte")?;
        is(take(1 << 21), granted, "what comes out")?;
        fails(take(1), libc::EAGAIN, "one more")?;
    }
    is(put(8193), 8193, "write")?;
    fails(size(8192), libc::EBUSY, "a pipe smaller than what is in it")?;
    is(
        call!(SYS_fcntl, writer.0, libc::F_GETPIPE_SZ),
        1 << 20,
        "its size afterwards",
    )?;
    in_child(|| {
        become_user(USERS[0])?;
        fails(
            size((1 << 20) + 1),
            libc::EPERM,
            "an ordinary user's large pipe",
        )?;
        is(size(1 << 20), 1 << 20, "the largest")
    })
}

/// A file system takes as many pages as it was told, again and again, however they are given back.
fn of_pages_of_a_file_system() -> Result<()> {
    let place = Place::new("pages")?;
    let path = CString::new(place.0.as_os_str().as_encoded_bytes())?;
    let name = CString::new(place.0.join("file").as_os_str().as_encoded_bytes())?;
    in_child(|| {
        is(call!(SYS_unshare, libc::CLONE_NEWNS), 0, "unshare")?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        is(
            call!(SYS_mount, c"none".as_ptr(), c"/".as_ptr(), 0, private, 0),
            0,
            "a tree of its own",
        )?;
        let (kind, size) = (c"tmpfs".as_ptr(), c"size=64k".as_ptr());
        is(
            call!(SYS_mount, kind, path.as_ptr(), kind, 0, size),
            0,
            "mount",
        )?;
        let data = vec![1u8; 65_536];
        for way in ["unlink", "truncate", "a hole", "unlink"] {
            let flags = libc::O_RDWR | libc::O_CREAT;
            let file = Fd::new(
                call!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, 0o600),
                "openat",
            )?;
            is(
                call!(SYS_pwrite64, file.0, data.as_ptr(), data.len(), 0),
                65_536,
                &format!("all of it, before {way}"),
            )?;
            fails(
                call!(SYS_pwrite64, file.0, data.as_ptr(), 1, 65_536),
                libc::ENOSPC,
                "one more page",
            )?;
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let gone = match way {
                "unlink" => call!(SYS_unlink, name.as_ptr()),
                "truncate" => call!(SYS_ftruncate, file.0, 0),
                _ => call!(SYS_fallocate, file.0, hole, 0, data.len()),
            };
            is(gone, 0, way)?;
        }
        Ok(())
    })
}

fn of_eventfd() -> Result<()> {
    for semaphore in [false, true] {
        let flags = libc::O_NONBLOCK | i32::from(semaphore);
        let fd = Fd::new(call!(SYS_eventfd2, 3, flags), "eventfd2")?;
        let put = |value: u64| call!(SYS_write, fd.0, &raw const value, 8);
        let take = || {
            let mut value = 0u64;
            (call!(SYS_read, fd.0, &raw mut value, 8), value)
        };
        let ready = || {
            let mut entry = libc::pollfd {
                fd: fd.0,
                events: libc::POLLIN | libc::POLLOUT,
                revents: 0,
            };
            call!(SYS_poll, &raw mut entry, 1, 0);
            entry.revents
        };
        fails(put(u64::MAX), libc::EINVAL, "the number there is not")?;
        is(put(u64::MAX - 4), 8, "as much as there is room for")?;
        ensure!(ready() == libc::POLLIN, "full: {:x}", ready());
        fails(put(1), libc::EAGAIN, "one more")?;
        is(put(0), 8, "none more")?;
        ensure!(
            take() == (8, if semaphore { 1 } else { u64::MAX - 1 }),
            "the number"
        );
        ensure!(ready() & libc::POLLOUT != 0, "not full: {:x}", ready());
        is(put(1), 8, "one more, for which there is room now")?;
        let mut small = 0u32;
        fails(
            call!(SYS_read, fd.0, &raw mut small, 4),
            libc::EINVAL,
            "half a number",
        )?;
        fails(
            call!(SYS_write, fd.0, &raw const small, 4),
            libc::EINVAL,
            "writing half a number",
        )?;
        ensure!(take() == (8, 1), "what was put last, or one");
    }
    Ok(())
}

/// Sets a limit, both that counts and that may be set.
fn limit(resource: u32, value: u64) -> Result<()> {
    is(
        call!(SYS_prlimit64, 0, resource, [value; 2].as_ptr(), 0),
        0,
        "prlimit64",
    )
}

/// Number of open descriptors below a number.
fn open_descriptors(below: u64) -> usize {
    (0..below)
        .filter(|fd| call!(SYS_fcntl, *fd, libc::F_GETFD) >= 0)
        .count()
}

fn of_descriptors() -> Result<()> {
    in_child(|| {
        let [near, far] = pair(libc::SOCK_DGRAM)?;
        let most = 40;
        limit(libc::RLIMIT_NOFILE, most)?;
        for _ in 0..3 {
            let mut made = Vec::new();
            loop {
                let fd = call!(SYS_eventfd2, 0, 0);
                if fd < 0 {
                    fails(fd, libc::EMFILE, "one more descriptor")?;
                    break;
                }
                made.push(Fd(fd as i32));
            }
            ensure!(
                made.iter().map(|fd| fd.0).max() == Some(most as i32 - 1),
                "the last number is another"
            );
            ensure!(
                open_descriptors(most) as u64 == most,
                "{} are open",
                open_descriptors(most)
            );
            fails(call!(SYS_dup, near.0), libc::EMFILE, "dup")?;
            fails(
                call!(SYS_fcntl, near.0, libc::F_DUPFD, 0),
                libc::EMFILE,
                "F_DUPFD",
            )?;
            fails(
                call!(SYS_fcntl, near.0, libc::F_DUPFD, most),
                libc::EINVAL,
                "F_DUPFD from the limit on",
            )?;
            fails(
                call!(SYS_dup2, near.0, most),
                libc::EBADF,
                "dup2 to the limit",
            )?;
            let last = made.pop();
            let number = last.as_ref().map_or(-1, |last| last.0);
            is(
                call!(SYS_dup2, near.0, number),
                number.into(),
                "dup2 below the limit",
            )?;
            drop(last);
            // One place is free, and two are needed.
            let mut fds = [-1i32; 2];
            for _ in 0..3 {
                fails(call!(SYS_pipe2, fds.as_mut_ptr(), 0), libc::EMFILE, "pipe2")?;
                let made = call!(
                    SYS_socketpair,
                    libc::AF_UNIX,
                    libc::SOCK_STREAM,
                    0,
                    fds.as_mut_ptr()
                );
                fails(made, libc::EMFILE, "socketpair")?;
                ensure!(
                    open_descriptors(most) as u64 == most - 1,
                    "{} are open",
                    open_descriptors(most)
                );
            }
            ensure!(
                received(&near, &far)? == (1, true),
                "of two that were sent one has a place"
            );
        }
        Ok(())
    })
}

/// Sends two descriptors: how many arrive, and whether the rest is told to be missing.
fn received(near: &Fd, far: &Fd) -> Result<(usize, bool)> {
    let mut byte = 1u8;
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let rights = u64::from(libc::SOL_SOCKET as u32) | (libc::SCM_RIGHTS as u64) << 32;
    let mut control = [24u64, rights, near.0 as u64 | (near.0 as u64) << 32];
    // SAFETY: a message without anything is one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 24);
    is(
        call!(SYS_sendmsg, near.0, &raw const message, 0),
        1,
        "sendmsg",
    )?;
    is(call!(SYS_recvmsg, far.0, &raw mut message, 0), 1, "recvmsg")?;
    let count = (control[0] as usize - 16) / 4;
    for fd in [control[2] as i32, (control[2] >> 32) as i32]
        .into_iter()
        .take(count)
    {
        drop(Fd(fd));
    }
    Ok((count, message.msg_flags & libc::MSG_CTRUNC != 0))
}

/// A child that waits to be ended, or the error. It does not outlive its parent, whose pipe for
/// what failed it has open, too.
fn child() -> i64 {
    let parent = call!(SYS_getpid);
    let pid = call!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
    if pid == 0 {
        call!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if call!(SYS_getppid) != parent {
            // It ended before.
            call!(SYS_exit_group, 1);
        }
        loop {
            call!(SYS_pause);
        }
    }
    pid
}

fn end(child: i64) -> Result<()> {
    is(call!(SYS_kill, child, libc::SIGKILL), 0, "kill")?;
    is(call!(SYS_wait4, child, 0, 0, 0), child, "wait4")
}

fn of_processes() -> Result<()> {
    in_child(|| {
        become_user(PROCESSES_USER)?;
        limit(libc::RLIMIT_NPROC, 3)?;
        for round in 0..5 {
            let (first, second) = (child(), child());
            ensure!(first > 0 && second > 0, "round {round}: {first}, {second}");
            fails(child(), libc::EAGAIN, "one more process")?;
            // One that has ended counts until it is waited for.
            is(call!(SYS_kill, first, libc::SIGKILL), 0, "kill")?;
            let options = libc::WEXITED | libc::WNOWAIT;
            is(
                call!(SYS_waitid, libc::P_PID, first, 0, options, 0),
                0,
                "waitid",
            )?;
            fails(child(), libc::EAGAIN, "one more beside one that has ended")?;
            is(call!(SYS_wait4, first, 0, 0, 0), first, "wait4")?;
            let third = child();
            ensure!(third > 0, "one more after one that was waited for: {third}");
            end(second)?;
            end(third)?;
        }
        Ok(())
    })
}

fn of_locked_bytes() -> Result<()> {
    in_child(|| {
        become_user(LOCKED_USER)?;
        limit(libc::RLIMIT_MEMLOCK, 2 * 4096)?;
        let map = |flags: i32| {
            let (prot, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            );
            call!(SYS_mmap, 0, 4 * 4096, prot, flags, -1i32, 0)
        };
        let area = map(0);
        ensure!(area > 0, "mmap: {area}");
        for _ in 0..5 {
            is(call!(SYS_mlock, area, 8192), 0, "as much as may be")?;
            is(
                call!(SYS_mlock, area + 4096, 4096),
                0,
                "what is locked already",
            )?;
            fails(
                call!(SYS_mlock, area + 8192, 1),
                libc::ENOMEM,
                "one more page",
            )?;
            fails(
                map(libc::MAP_LOCKED),
                libc::EAGAIN,
                "a mapping of four more",
            )?;
            is(call!(SYS_munlock, area, 4096), 0, "munlock")?;
            is(
                call!(SYS_mlock, area + 8192, 4096),
                0,
                "another page instead",
            )?;
            is(call!(SYS_munlock, area, 4 * 4096), 0, "munlock")?;
        }
        limit(libc::RLIMIT_MEMLOCK, 0)?;
        fails(call!(SYS_mlock, area, 1), libc::EPERM, "anything")
    })
}

/// The line `SigQ` of the calling process: how many there are, and how many there may be.
fn sigq() -> Result<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("SigQ:\t"));
    let (there, most) = line
        .and_then(|line| line.split_once('/'))
        .context("no SigQ")?;
    Ok((there.parse()?, most.parse()?))
}

fn of_queued_signals() -> Result<()> {
    in_child(|| {
        become_user(SIGNALS_USER)?;
        limit(libc::RLIMIT_SIGPENDING, 4)?;
        let signal = 40;
        let set = 1u64 << (signal - 1) | 1 << (libc::SIGUSR1 - 1) | 1 << (libc::SIGALRM - 1);
        is(
            call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, 0, 8),
            0,
            "rt_sigprocmask",
        )?;
        // SAFETY: all zeroes is a siginfo.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        info.si_code = libc::SI_QUEUE;
        let own = std::process::id();
        let send = |to: i64| call!(SYS_rt_sigqueueinfo, to, signal, &raw const info);
        let none = [0i64; 2];
        let take = |info: *mut libc::siginfo_t| {
            call!(SYS_rt_sigtimedwait, &raw const set, info, none.as_ptr(), 8)
        };
        for round in 0..5 {
            for number in 0..4 {
                ensure!(sigq()? == (number, 4), "{number}: {:?}", sigq()?);
                let sent = send(own.into());
                is(sent, 0, &format!("round {round}, signal {number}"))?;
            }
            fails(send(own.into()), libc::EAGAIN, "one more signal")?;
            for _ in 0..4 {
                is(take(std::ptr::null_mut()), signal, "taking one")?;
            }
            fails(take(std::ptr::null_mut()), libc::EAGAIN, "taking one more")?;
        }

        // All processes of the user count, and so do ordinary signals and timers.
        let other = child();
        ensure!(other > 0, "a child: {other}");
        is(send(other), 0, "a signal that another process has")?;
        is(send(other), 0, "a second one")?;
        is(call!(SYS_kill, own, libc::SIGUSR1), 0, "an ordinary one")?;
        is(call!(SYS_kill, own, libc::SIGUSR1), 0, "the same again")?;
        ensure!(sigq()? == (3, 4), "{:?}", sigq()?);
        let mut timer = 0i32;
        let create = |timer: &mut i32| {
            call!(
                SYS_timer_create,
                libc::CLOCK_MONOTONIC,
                0,
                std::ptr::from_mut(timer)
            )
        };
        is(create(&mut timer), 0, "a timer")?;
        ensure!(sigq()? == (4, 4), "{:?}", sigq()?);
        fails(create(&mut 0), libc::EAGAIN, "one more timer")?;
        fails(send(own.into()), libc::EAGAIN, "one more signal")?;
        // Of one that has no place the number arrives.
        is(call!(SYS_kill, own, signal), 0, "kill of one more")?;
        is(call!(SYS_kill, own, libc::SIGALRM), 0, "an ordinary one")?;
        is(call!(SYS_timer_delete, timer), 0, "timer_delete")?;
        end(other)?;
        let taken = || -> Result<(i64, i32, i32)> {
            // SAFETY: all zeroes is a siginfo.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            let signal = take(&raw mut info);
            // SAFETY: the number of the sender, of which both of these codes tell.
            Ok((signal, info.si_code, unsafe { info.si_pid() }))
        };
        let own = own as i32;
        for expected in [
            (libc::SIGUSR1.into(), libc::SI_USER, own),
            (libc::SIGALRM.into(), libc::SI_USER, own),
            (signal, libc::SI_USER, 0),
        ] {
            let taken = taken()?;
            ensure!(taken == expected, "{taken:?}, not {expected:?}");
        }
        ensure!(sigq()? == (0, 4), "{:?}", sigq()?);
        is(send(own.into()), 0, "a place again")
    })
}

fn of_semaphores() -> Result<()> {
    let make = |count: usize| call!(SYS_semget, libc::IPC_PRIVATE, count, 0o600);
    fails(make(32_001), libc::EINVAL, "a set of 32,001")?;
    fails(make(0), libc::EINVAL, "an empty set")?;
    let id = make(2);
    ensure!(id >= 0, "semget: {id}");
    let value = |value: i32| call!(SYS_semctl, id, 0, libc::SETVAL, value);
    let change = |by: i16, flags: i16| {
        let operation = libc::sembuf {
            sem_num: 0,
            sem_op: by,
            sem_flg: libc::IPC_NOWAIT as i16 | flags,
        };
        call!(SYS_semop, id, &raw const operation, 1)
    };
    fails(value(32_768), libc::ERANGE, "SETVAL beyond the most")?;
    fails(value(-1), libc::ERANGE, "SETVAL below 0")?;
    is(value(32_766), 0, "SETVAL")?;
    is(change(1, 0), 0, "up to the most")?;
    fails(change(1, 0), libc::ERANGE, "beyond the most")?;
    is(change(-32_767, 0), 0, "down to nothing")?;
    fails(change(-1, 0), libc::EAGAIN, "below nothing")?;
    is(change(0, 0), 0, "waiting for nothing")?;
    let operations = [libc::sembuf {
        sem_num: 0,
        sem_op: 0,
        sem_flg: 0,
    }; 501];
    is(
        call!(SYS_semop, id, operations.as_ptr(), 500),
        0,
        "500 operations",
    )?;
    fails(
        call!(SYS_semop, id, operations.as_ptr(), 501),
        libc::E2BIG,
        "501 operations",
    )?;
    fails(
        call!(SYS_semop, id, operations.as_ptr(), 0),
        libc::EINVAL,
        "no operation",
    )?;
    let beyond = libc::sembuf {
        sem_num: 2,
        sem_op: 1,
        sem_flg: 0,
    };
    fails(
        call!(SYS_semop, id, &raw const beyond, 1),
        libc::EFBIG,
        "a semaphore there is not",
    )?;
    // All or none: the first is not done if the second cannot be.
    let both = [
        libc::sembuf {
            sem_num: 0,
            sem_op: 1,
            sem_flg: 0,
        },
        libc::sembuf {
            sem_num: 1,
            sem_op: -1,
            sem_flg: 0o4000,
        },
    ];
    fails(
        call!(SYS_semop, id, both.as_ptr(), 2),
        libc::EAGAIN,
        "two operations",
    )?;
    is(
        call!(SYS_semctl, id, 0, libc::GETVAL),
        0,
        "the first semaphore",
    )?;
    is(call!(SYS_semctl, id, 0, libc::IPC_RMID), 0, "IPC_RMID")
}

fn of_messages() -> Result<()> {
    let id = call!(SYS_msgget, libc::IPC_PRIVATE, 0o600);
    ensure!(id >= 0, "msgget: {id}");
    let message = [1u64; 1100];
    let send = |len: usize| call!(SYS_msgsnd, id, message.as_ptr(), len, libc::IPC_NOWAIT);
    let mut place = [0u64; 1100];
    let mut take = || {
        call!(
            SYS_msgrcv,
            id,
            place.as_mut_ptr(),
            8192,
            0,
            libc::IPC_NOWAIT
        )
    };
    fails(
        send(8193),
        libc::EINVAL,
        "a message longer than the longest",
    )?;
    for _ in 0..3 {
        is(send(8192), 0, "the longest message")?;
        is(send(8191), 0, "one a little shorter")?;
        is(send(1), 0, "the last byte")?;
        fails(send(1), libc::EAGAIN, "one more byte")?;
        is(take(), 8192, "the first")?;
        is(take(), 8191, "the second")?;
        is(take(), 1, "the third")?;
        fails(take(), libc::ENOMSG, "one more")?;
    }
    is(call!(SYS_msgctl, id, libc::IPC_RMID, 0), 0, "IPC_RMID")?;

    // POSIX: as many and as long as was asked for.
    let attributes = [0i64, 3, 16, 0, 0, 0, 0, 0];
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NONBLOCK;
    let queue = Fd::new(
        call!(
            SYS_mq_open,
            c"numbers".as_ptr(),
            flags,
            0o600,
            attributes.as_ptr()
        ),
        "mq_open",
    )?;
    is(call!(SYS_mq_unlink, c"numbers".as_ptr()), 0, "mq_unlink")?;
    let text = [0u8; 32];
    let send = |len: usize, priority: u32| {
        call!(SYS_mq_timedsend, queue.0, text.as_ptr(), len, priority, 0)
    };
    for _ in 0..3 {
        fails(
            send(17, 0),
            libc::EMSGSIZE,
            "a message longer than was asked for",
        )?;
        fails(send(1, 32_768), libc::EINVAL, "a priority there is not")?;
        is(send(16, 32_767), 0, "the first")?;
        is(send(0, 0), 0, "the second")?;
        is(send(1, 5), 0, "the third")?;
        fails(send(1, 0), libc::EAGAIN, "the fourth")?;
        let mut priority = 0u32;
        let mut take = |len: usize| {
            call!(
                SYS_mq_timedreceive,
                queue.0,
                text.as_ptr(),
                len,
                &raw mut priority,
                0
            )
        };
        fails(take(15), libc::EMSGSIZE, "a place that is too small")?;
        is(take(16), 16, "the first")?;
        is(take(16), 1, "the third")?;
        is(take(16), 0, "the second")?;
        fails(take(16), libc::EAGAIN, "one more")?;
    }
    Ok(())
}

fn of_buffers_and_names() -> Result<()> {
    let file = Fd::new(
        call!(SYS_memfd_create, c"numbers".as_ptr(), 0),
        "memfd_create",
    )?;
    let byte = 1u8;
    let buffers = vec![
        libc::iovec {
            iov_base: (&raw const byte).cast_mut().cast(),
            iov_len: 1
        };
        1025
    ];
    is(
        call!(SYS_writev, file.0, buffers.as_ptr(), 1024),
        1024,
        "1,024 buffers",
    )?;
    fails(
        call!(SYS_writev, file.0, buffers.as_ptr(), 1025),
        libc::EINVAL,
        "1,025 buffers",
    )?;
    fails(
        call!(SYS_writev, file.0, buffers.as_ptr(), -1i32),
        libc::EINVAL,
        "-1 buffers",
    )?;
    is(call!(SYS_writev, file.0, 0, 0), 0, "no buffers")?;

    let place = Place::new("numbers")?;
    let open = |name: &str| -> Result<i64> {
        let name = CString::new(format!("{}/{name}", place.0.display()))?;
        let fd = call!(SYS_open, name.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
        if fd >= 0 {
            drop(Fd(fd as i32));
        }
        Ok(fd.min(0))
    };
    is(open(&"n".repeat(255))?, 0, "the longest name")?;
    fails(open(&"n".repeat(256))?, libc::ENAMETOOLONG, "a longer name")?;
    let directory = place.0.display().to_string().len() + 1;
    let path = |len: usize| {
        "./".repeat((len - directory) / 2 - 1)
            + if (len - directory).is_multiple_of(2) {
                "ab"
            } else {
                "abc"
            }
    };
    is(open(&path(4095))?, 0, "the longest path")?;
    fails(open(&path(4096))?, libc::ENAMETOOLONG, "a longer path")?;
    // A chain of links.
    std::fs::write(place.0.join("link0"), "")?;
    for number in 1..=41 {
        std::os::unix::fs::symlink(
            format!("link{}", number - 1),
            place.0.join(format!("link{number}")),
        )?;
    }
    is(open("link40")?, 0, "40 links")?;
    fails(open("link41")?, libc::ELOOP, "41 links")
}

fn of_clone3() -> Result<()> {
    // `struct clone_args` of 88 bytes, and what a later kernel may know.
    let mut args = [0u64; 512 + 1];
    args[4] = libc::SIGCHLD as u64;
    let clone = |args: &[u64], size: usize| -> Result<i64> {
        let pid = call!(SYS_clone3, args.as_ptr(), size);
        if pid == 0 {
            // SAFETY: the child ends here.
            unsafe { libc::_exit(0) };
        }
        if pid > 0 {
            is(call!(SYS_wait4, pid, 0, 0, 0), pid, "wait4")?;
        }
        Ok(pid.min(0))
    };
    for size in [64, 80, 88, 96, 200, 4096] {
        is(clone(&args, size)?, 0, &format!("{size} bytes"))?;
    }
    fails(clone(&args, 63)?, libc::EINVAL, "63 bytes")?;
    fails(clone(&args, 4097)?, libc::E2BIG, "4,097 bytes")?;
    args[11] = 1;
    is(clone(&args, 88)?, 0, "what is behind the end")?;
    fails(clone(&args, 96)?, libc::E2BIG, "what nobody knows")?;
    fails(call!(SYS_clone3, 8, 88), libc::EFAULT, "nowhere")?;
    let refused = |flags: i32, place: u64, what: &str| {
        let mut args = [0u64; 11];
        (args[0], args[1], args[3]) = (flags as u64, place, place);
        fails(call!(SYS_clone3, args.as_ptr(), 88), libc::EINVAL, what)
    };
    refused(libc::CLONE_DETACHED, 0, "a flag that was given up")?;
    let mut place = 0u64;
    refused(
        libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID,
        (&raw mut place).addr() as u64,
        "two numbers at one place",
    )?;
    fails(
        call!(SYS_clone3, 8, 120),
        libc::EFAULT,
        "nowhere, and longer",
    )
}

fn of_timers_and_priorities() -> Result<()> {
    // The notice that a library makes a thread of is a signal to the kernel.
    let mut event = [0u64; 8];
    event[1] = u64::from(34u32) | (libc::SIGEV_THREAD as u64) << 32;
    let mut timer = 0i32;
    let make = |event: &[u64; 8], timer: &mut i32| {
        call!(
            SYS_timer_create,
            libc::CLOCK_MONOTONIC,
            event.as_ptr(),
            std::ptr::from_mut(timer)
        )
    };
    let set = 1u64 << 33;
    is(
        call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, 0, 8),
        0,
        "rt_sigprocmask",
    )?;
    is(
        make(&event, &mut timer),
        0,
        "timer_create with SIGEV_THREAD",
    )?;
    let once = [0i64, 0, 0, 1];
    is(
        call!(SYS_timer_settime, timer, 0, once.as_ptr(), 0),
        0,
        "timer_settime",
    )?;
    is(
        call!(SYS_rt_sigtimedwait, &raw const set, 0, 0, 8),
        34,
        "its signal",
    )?;
    fails(
        call!(SYS_timer_settime, timer, 0, 0, 0),
        libc::EINVAL,
        "timer_settime to nothing",
    )?;
    is(call!(SYS_timer_delete, timer), 0, "timer_delete")?;
    event[1] = u64::from(65u32) | (libc::SIGEV_THREAD as u64) << 32;
    fails(
        make(&event, &mut timer),
        libc::EINVAL,
        "a signal there is not",
    )?;
    event[1] = u64::from(34u32) | 3 << 32;
    fails(
        make(&event, &mut timer),
        libc::EINVAL,
        "a notice there is not",
    )?;

    in_child(|| {
        let set = |priority: i32| call!(SYS_ioprio_set, 1, 0, priority);
        let get = || call!(SYS_ioprio_get, 1, 0);
        is(get(), 0, "the priority of input at first")?;
        is(set(2 << 13 | 3), 0, "ioprio_set")?;
        is(get(), 2 << 13 | 3, "ioprio_get")?;
        is(set(0), 0, "ioprio_set to none")?;
        is(get(), 0, "ioprio_get of none")
    })
    .context("priorities of input")
}

fn of_modes() -> Result<()> {
    let place = Place::new("limits-modes")?;
    std::os::unix::fs::chown(&place.0, Some(USERS[0]), Some(100))?;
    let path = CString::new(place.0.display().to_string())?;
    is(call!(SYS_chmod, path.as_ptr(), 0o2777), 0, "chmod")?;
    let mode = |name: &str| -> Result<u32> {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(place.0.join(name))?;
        ensure!(meta.gid() == 100, "it is of group {}", meta.gid());
        Ok(meta.mode() & 0o7777)
    };
    let make = |name: &str| -> Result<u32> {
        let path = CString::new(format!("{}/{name}", place.0.display()))?;
        call!(SYS_umask, 0);
        drop(Fd::new(
            call!(
                SYS_open,
                path.as_ptr(),
                libc::O_RDWR | libc::O_CREAT,
                0o2755
            ),
            "open",
        )?);
        mode(name)
    };
    ensure!(make("root")? == 0o2755, "the superuser's");
    in_child(|| {
        become_user(USERS[0])?;
        ensure!(
            make("stranger")? == 0o755,
            "who is not of the group keeps the bit"
        );
        let path = CString::new(format!("{}/directory", place.0.display()))?;
        is(call!(SYS_mkdir, path.as_ptr(), 0o755), 0, "mkdir")?;
        ensure!(mode("directory")? == 0o2755, "a directory");
        let path = CString::new(format!("{}/node", place.0.display()))?;
        is(
            call!(SYS_mknod, path.as_ptr(), libc::S_IFIFO | 0o2755, 0),
            0,
            "mknod",
        )?;
        ensure!(mode("node")? == 0o755, "a pipe");
        Ok(())
    })?;
    in_child(|| {
        is(call!(SYS_setgroups, 1, [100u32].as_ptr()), 0, "setgroups")?;
        is(
            call!(SYS_setresuid, USERS[1], USERS[1], USERS[1]),
            0,
            "setresuid",
        )?;
        ensure!(make("member")? == 0o2755, "who is of the group");
        Ok(())
    })
}
