//! Limits of what a user has, whatever number of processes: pages of pipes, instances of inotify,
//! descriptors under way, pages of sockets.

use std::fs;
use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::credentials::{become_user, in_child};
use crate::scm_rights::{rights, send_with};

pub const CHECKS: &[(&str, Check)] = &[
    ("limits-of-users-pipes", of_pipes),
    ("limits-of-users-inotify", of_inotify),
    ("limits-of-users-descriptors-under-way", of_descriptors),
    ("limits-of-users-sockets", of_sockets),
];

/// Ordinary users, each of one check: what they have is counted.
const PIPES_USER: u32 = 54_331;
const INOTIFY_USER: u32 = 54_332;
const DESCRIPTORS_USER: u32 = 54_333;
const SOCKETS_USER: u32 = 54_334;

const PAGE: i64 = 4096;

/// Runs a check as an ordinary user who has nothing, with so many descriptors at most.
fn as_user(user: u32, descriptors: u64, check: impl FnOnce() -> Result<()>) -> Result<()> {
    in_child(|| {
        let limit = libc::rlimit {
            rlim_cur: descriptors,
            rlim_max: descriptors,
        };
        let nothing = std::ptr::null_mut::<u8>();
        let limit = &raw const limit;
        is(
            call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limit, nothing),
            0,
            "prlimit",
        )?;
        become_user(user)?;
        check()
    })
}

fn setting(name: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/sys/fs/{name}"))?;
    text.trim().parse().context("a setting is a number")
}

fn of_pipes() -> Result<()> {
    let pages = setting("pipe-user-pages-soft")?;
    ensure!(pages == 16_384, "{pages} pages of pipes for each user");
    as_user(PIPES_USER, 4096, || {
        let capacity = |pipe: &[Fd; 2]| call!(SYS_fcntl, pipe[0].0, libc::F_GETPIPE_SZ);
        let set =
            |pipe: &[Fd; 2], bytes: i64| call!(SYS_fcntl, pipe[0].0, libc::F_SETPIPE_SZ, bytes);
        // Half of all pages, and with pipes of 16 pages the other half.
        let first: Vec<_> = (0..32)
            .map(|_| {
                let pipe = pipe(0)?;
                is(set(&pipe, 1 << 20), 1 << 20, "a larger pipe")?;
                Ok(pipe)
            })
            .collect::<Result<_>>()?;
        let mut others = Vec::new();
        for n in 0..512 {
            let pipe = pipe(0)?;
            is(capacity(&pipe), 16 * PAGE, &format!("pipe {n}"))?;
            others.push(pipe);
        }
        let small = pipe(0)?;
        is(capacity(&small), 2 * PAGE, "a pipe beyond the limit")?;
        fails(set(&small, 4 * PAGE), libc::EPERM, "growing it")?;
        is(set(&small, PAGE), PAGE, "making it smaller")?;
        drop(small);
        others.pop();
        let last = pipe(0)?;
        is(capacity(&last), 16 * PAGE, "a pipe after one was closed")?;
        fails(set(&first[0], 1 << 21), libc::EPERM, "more than for all")
    })
}

fn of_inotify() -> Result<()> {
    let most = setting("inotify/max_user_instances")?;
    as_user(INOTIFY_USER, 1024, || {
        let make = || call!(SYS_inotify_init1, 0);
        let mut instances = Vec::new();
        for n in 0..most {
            instances.push(Fd::new(make(), &format!("instance {n}"))?);
        }
        fails(make(), libc::EMFILE, "one more")?;
        instances.pop();
        instances.push(Fd::new(make(), "an instance after one was closed")?);
        fails(make(), libc::EMFILE, "one more again")
    })
}

fn of_descriptors() -> Result<()> {
    const MOST: u64 = 20;
    as_user(DESCRIPTORS_USER, MOST, || {
        let [to, from] = pair(libc::SOCK_STREAM)?;
        let send = |n: u64| {
            send_with(&from.0, b"x", &rights(&[from.0])).with_context(|| format!("descriptor {n}"))
        };
        // As many as he may have descriptors, and the one that goes beyond that.
        for n in 0..=MOST {
            send(n)?;
        }
        let error = send(MOST + 1).err().context("too many were sent")?;
        let error = error.downcast::<std::io::Error>()?;
        ensure!(
            error.raw_os_error() == Some(libc::ETOOMANYREFS),
            "too many: {error}"
        );
        let mut byte = 0u8;
        is(
            call!(SYS_read, to.0, &raw mut byte, 1),
            1,
            "taking one without its descriptor",
        )?;
        send(MOST + 2).map(drop)
    })
}

fn of_sockets() -> Result<()> {
    const SETTING: &str = "/proc/sys/net/core/socket_user_pages";
    // Linux has no such limit.
    let Ok(before) = fs::read_to_string(SETTING) else {
        return Ok(());
    };
    fs::write(SETTING, "64")?;
    let result = as_user(SOCKETS_USER, 1024, || fill_sockets(64));
    fs::write(SETTING, before)?;
    result
}

/// Fills sockets of all kinds up to the pages that their user may have.
fn fill_sockets(pages: usize) -> Result<()> {
    const PAIRS: usize = 30;
    const NOW: i32 = libc::MSG_DONTWAIT;
    let bytes = vec![1u8; 1 << 16];
    let send = |to: &Fd, len: usize| {
        let none = std::ptr::null::<u8>();
        call!(SYS_sendto, to.0, bytes.as_ptr(), len, NOW, none, 0)
    };
    let receive = |from: &Fd| {
        let mut room = vec![0u8; 1 << 16];
        let none = std::ptr::null_mut::<u8>();
        call!(
            SYS_recvfrom,
            from.0,
            room.as_mut_ptr(),
            room.len(),
            NOW,
            none,
            none
        )
    };
    let mut streams = Vec::new();
    let mut sent = 0;
    for n in 0..PAIRS {
        let [to, from] = pair(libc::SOCK_STREAM)?;
        let mut of_pair = 0;
        while let Ok(count @ 1..) = usize::try_from(send(&from, bytes.len())) {
            of_pair += count;
        }
        fails(send(&from, 1), libc::EAGAIN, "one byte more")?;
        ensure!(of_pair > 0, "nothing went into pair {n}");
        sent += of_pair;
        streams.push([to, from]);
    }
    let page = PAGE as usize;
    ensure!(sent <= (pages + PAIRS) * page, "{sent} bytes were sent");
    ensure!(sent >= pages * page, "{sent} bytes were sent, no more");

    let messages = [pair(libc::SOCK_DGRAM)?, pair(libc::SOCK_SEQPACKET)?];
    for [to, from] in &messages {
        fails(send(from, 8000), libc::ENOBUFS, "a message of two pages")?;
        is(send(from, 1500), 1500, "a message of one")?;
        fails(send(from, 1500), libc::EAGAIN, "another one")?;
        is(receive(to), 1500, "the message")?;
    }
    let receiver = UdpSocket::bind("127.0.0.1:0")?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    receiver.set_nonblocking(true)?;
    for _ in 0..2 {
        sender.send_to(&bytes[..3000], receiver.local_addr()?)?;
    }
    let mut room = [0; 4000];
    ensure!(receiver.recv(&mut room)? == 3000, "a datagram");
    ensure!(receiver.recv(&mut room).is_err(), "a second one");

    // What is received makes room again, for this socket and for others.
    let [to, from] = &streams[0];
    while receive(to) > 0 {}
    ensure!(send(from, bytes.len()) > PAGE, "room of what was received");
    drop(streams);
    for [to, from] in &messages {
        is(send(from, 8000), 8000, "a message of two pages later")?;
        is(receive(to), 8000, "it")?;
    }
    Ok(())
}
