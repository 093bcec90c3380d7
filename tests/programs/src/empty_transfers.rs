//! Reads and writes of no bytes: what each kind of file says of them.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair, pipe};
use crate::sockets::polled;

pub const CHECKS: &[(&str, Check)] = &[
    ("empty-transfers-of-devices", devices),
    ("empty-transfers-of-pipes", pipes),
    ("empty-transfers-of-sockets", sockets),
    ("empty-transfers-of-terminals", terminals),
    ("empty-transfers-of-events", events),
    ("empty-transfers-of-settings", settings),
    ("empty-transfers-of-files", files),
];

fn open(path: &str, flags: i32) -> Result<Fd> {
    let name = std::ffi::CString::new(path)?;
    Fd::new(
        call!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags),
        path,
    )
}

/// Outcome of a write of no bytes, from memory that is not there.
fn write(fd: &Fd) -> i64 {
    call!(SYS_write, fd.0, 0, 0)
}

fn read(fd: &Fd) -> i64 {
    call!(SYS_read, fd.0, 0, 0)
}

fn writev(fd: &Fd) -> i64 {
    let none = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; 2];
    call!(SYS_writev, fd.0, none.as_ptr(), none.len())
}

fn devices() -> Result<()> {
    for name in ["null", "zero", "random", "urandom"] {
        let device = open(&format!("/dev/{name}"), libc::O_RDWR)?;
        is(write(&device), 0, name)?;
        is(read(&device), 0, name)?;
    }
    let full = open("/dev/full", libc::O_RDWR)?;
    fails(write(&full), libc::ENOSPC, "a write to /dev/full")?;
    fails(
        call!(SYS_pwrite64, full.0, 0, 0, 5),
        libc::ENOSPC,
        "a write at an offset",
    )?;
    is(writev(&full), 0, "a vector of nothing to /dev/full")?;
    is(read(&full), 0, "a read of /dev/full")?;
    let log = open("/dev/kmsg", libc::O_RDONLY | libc::O_NONBLOCK)?;
    is(
        call!(SYS_lseek, log.0, 0, libc::SEEK_SET),
        0,
        "the log's first line",
    )?;
    fails(read(&log), libc::EINVAL, "a line of the log")
}

fn pipes() -> Result<()> {
    let [reader, writer] = pipe(0)?;
    is(read(&reader), 0, "a read of an empty pipe")?;
    is(write(&writer), 0, "a write to a pipe")?;
    drop(reader);
    is(write(&writer), 0, "a write to a pipe without a reader")
}

fn sockets() -> Result<()> {
    let [a, b] = pair(libc::SOCK_DGRAM)?;
    is(writev(&a), 0, "a vector of nothing as a message")?;
    ensure!(
        polled(&b.0)? & libc::POLLIN == 0,
        "a vector of nothing was a message"
    );
    is(write(&a), 0, "an empty message")?;
    ensure!(
        polled(&b.0)? & libc::POLLIN != 0,
        "an empty write was no message"
    );
    is(read(&b), 0, "a read of no bytes")?;
    ensure!(
        polled(&b.0)? & libc::POLLIN != 0,
        "a read of no bytes took a message"
    );
    let [a, b] = pair(libc::SOCK_STREAM)?;
    is(read(&b), 0, "a read of an empty stream")?;
    is(write(&a), 0, "an empty write to a stream")?;
    ensure!(
        polled(&b.0)? & libc::POLLIN == 0,
        "an empty write to a stream was seen"
    );
    is(
        call!(SYS_shutdown, a.0, libc::SHUT_WR),
        0,
        "an end of sending",
    )?;
    // SAFETY: nothing of this program is called at a signal that is ignored.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    fails(write(&a), libc::EPIPE, "an empty write after the end")?;
    is(writev(&a), 0, "a vector of nothing after the end")
}

fn terminals() -> Result<()> {
    let master = open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY)?;
    let unlocked = 0i32;
    is(
        call!(SYS_ioctl, master.0, libc::TIOCSPTLCK, &raw const unlocked),
        0,
        "TIOCSPTLCK",
    )?;
    let flags = libc::O_RDWR | libc::O_NOCTTY;
    let slave = Fd::new(
        call!(SYS_ioctl, master.0, libc::TIOCGPTPEER, flags),
        "TIOCGPTPEER",
    )?;
    for (fd, name) in [(&master, "the master"), (&slave, "the slave")] {
        is(write(fd), 0, name)?;
        is(read(fd), 0, name)?;
    }
    // Output that is held back holds back nothing of nothing.
    is(
        call!(SYS_ioctl, slave.0, libc::TCXONC, libc::TCOOFF),
        0,
        "TCOOFF",
    )?;
    is(write(&slave), 0, "a write to a terminal that is stopped")?;
    drop(master);
    fails(write(&slave), libc::EIO, "a write to nobody's terminal")
}

fn events() -> Result<()> {
    let counter = Fd::new(call!(SYS_eventfd2, 0, 0), "eventfd2")?;
    fails(write(&counter), libc::EINVAL, "a write to a counter")?;
    fails(read(&counter), libc::EINVAL, "a read of a counter")?;
    is(writev(&counter), 0, "a vector of nothing to a counter")?;
    let timer = Fd::new(
        call!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0),
        "timerfd_create",
    )?;
    fails(write(&timer), libc::EINVAL, "a write to a timer")?;
    let watched = Path::new("watched");
    fs::write(watched, "")?;
    let marks = Fd::new(call!(SYS_inotify_init1, libc::IN_NONBLOCK), "inotify_init1")?;
    let added = call!(
        SYS_inotify_add_watch,
        marks.0,
        c"watched".as_ptr(),
        libc::IN_OPEN
    );
    ensure!(added > 0, "no watch");
    fails(read(&marks), libc::EAGAIN, "a read of no events")?;
    drop(File::open(watched)?);
    fails(read(&marks), libc::EINVAL, "a read of an event")
}

fn settings() -> Result<()> {
    let name = || fs::read_to_string("/proc/sys/kernel/hostname");
    let before = name()?;
    let setting = open("/proc/sys/kernel/hostname", libc::O_RDWR)?;
    is(write(&setting), 0, "a write to a setting")?;
    ensure!(name()? == before, "the setting has changed");
    let setting = open("/proc/self/oom_score_adj", libc::O_RDWR)?;
    fails(write(&setting), libc::EINVAL, "a write that is no number")?;
    is(writev(&setting), 0, "a vector of nothing")?;
    is(read(&setting), 0, "a read")?;
    let comm = format!("/proc/self/task/{}/comm", call!(SYS_gettid));
    let old = fs::read_to_string(&comm)?;
    is(write(&open(&comm, libc::O_RDWR)?), 0, "a write to a name")?;
    let new = fs::read_to_string(&comm)?;
    fs::write(&comm, old.trim_end())?;
    ensure!(new == "\n", "the name is {new:?}");
    let memory = open("/proc/self/mem", libc::O_RDWR)?;
    is(write(&memory), 0, "a write to memory")
}

/// Sets the length beyond which this process writes to no file.
fn limit_size(most: libc::rlim_t) -> Result<()> {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: libc::RLIM_INFINITY,
    };
    is(
        call!(SYS_setrlimit, libc::RLIMIT_FSIZE, &raw const limit),
        0,
        "setrlimit",
    )
}

fn files() -> Result<()> {
    let file = File::create("file")?;
    file.set_len(10)?;
    let changed = file.metadata()?.modified()?;
    let fd = Fd::new(call!(SYS_dup, file.as_raw_fd()), "dup")?;
    limit_size(5)?;
    is(call!(SYS_lseek, fd.0, 0, libc::SEEK_END), 10, "lseek")?;
    is(write(&fd), 0, "a write behind the limit")?;
    is(
        call!(SYS_pwrite64, fd.0, 0, 0, 20),
        0,
        "a write at an offset",
    )?;
    // What the check says may go to a file.
    limit_size(libc::RLIM_INFINITY)?;
    let meta = file.metadata().context("no metadata")?;
    ensure!(
        meta.len() == 10 && meta.modified()? == changed,
        "a write of nothing has changed the file"
    );
    let directory = open(".", libc::O_RDONLY | libc::O_DIRECTORY)?;
    fails(read(&directory), libc::EISDIR, "a read of a directory")?;
    let epoll = Fd::new(call!(SYS_epoll_create1, 0), "epoll_create1")?;
    fails(read(&epoll), libc::EINVAL, "a read of an epoll set")
}
