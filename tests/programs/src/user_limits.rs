//! Limits of what a user has, whatever number of processes: pages of pipes, instances of inotify,
//! descriptors under way.

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::credentials::{become_user, in_child};
use crate::scm_rights::{rights, send_with};

pub const CHECKS: &[(&str, Check)] = &[
    ("limits-of-users-pipes", of_pipes),
    ("limits-of-users-inotify", of_inotify),
    ("limits-of-users-descriptors-under-way", of_descriptors),
];

/// Ordinary users, each of one check: what they have is counted.
const PIPES_USER: u32 = 54_331;
const INOTIFY_USER: u32 = 54_332;
const DESCRIPTORS_USER: u32 = 54_333;

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
    let text = std::fs::read_to_string(format!("/proc/sys/fs/{name}"))?;
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
