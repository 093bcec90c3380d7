//! POSIX message queues as files.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Seek};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, ensure};

use crate::calls::{Fd, call, fails, is, pipe};
use crate::text_busy::Place;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("mqueue-tell-what-is-in-them", tell_what_is_in_them),
    ("mqueue-are-files", are_files),
    ("mqueue-tell-a-thread", tell_a_thread),
];

/// A queue by its name, removed when dropped.
struct Queue {
    name: CString,
    fd: i32,
}

impl Queue {
    fn new(name: &str) -> Result<Self> {
        let name = CString::new(format!("/{name}-{}", std::process::id()))?;
        // SAFETY: the name ends with NUL; no attributes.
        let fd = checked(unsafe {
            libc::mq_open(
                name.as_ptr(),
                libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
                0o640,
                std::ptr::null_mut::<libc::mq_attr>(),
            )
        })?;
        Ok(Self { name, fd })
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: as many bytes as it says.
        checked(unsafe { libc::mq_send(self.fd, bytes.as_ptr().cast(), bytes.len(), 0) }).map(drop)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's.
        unsafe {
            libc::mq_close(self.fd);
            libc::mq_unlink(self.name.as_ptr());
        }
    }
}

/// The words of a queue's text: name and number.
fn words(text: &str) -> Result<Vec<(String, u32)>> {
    let word = |word: &str| -> Result<(String, u32)> {
        let (name, rest) = word.split_once(':').context("no colon")?;
        Ok((name.to_owned(), rest.parse()?))
    };
    ensure!(
        text.ends_with('\n') && text.len() == 60,
        "{} bytes: {text:?}",
        text.len()
    );
    text.split_whitespace().map(word).collect()
}

fn tell_what_is_in_them() -> Result<()> {
    let queue = Queue::new("told")?;
    // SAFETY: a descriptor of its own.
    let mut file = unsafe { fs::File::from_raw_fd(checked(libc::dup(queue.fd))?) };
    let mut tell = || -> Result<Vec<u32>> {
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        let words = words(&text)?;
        let names: Vec<&str> = words.iter().map(|word| word.0.as_str()).collect();
        ensure!(
            names == ["QSIZE", "NOTIFY", "SIGNO", "NOTIFY_PID"],
            "{text}"
        );
        Ok(words.into_iter().map(|word| word.1).collect())
    };
    ensure!(tell()? == [0, 0, 0, 0], "an empty queue: {:?}", tell()?);
    // SAFETY: a structure of numbers.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGWINCH);
    // SAFETY: a valid structure.
    checked(unsafe { libc::mq_notify(queue.fd, &event) })?;
    ensure!(
        tell()? == [0, 0, libc::SIGWINCH as u32, std::process::id()],
        "who is to be told: {:?}",
        tell()?
    );
    queue.send(b"12345")?;
    queue.send(b"678")?;
    ensure!(tell()? == [8, 0, 0, 0], "two messages: {:?}", tell()?);
    let meta = file.metadata()?;
    ensure!(
        meta.is_file() && meta.len() == 80 && meta.mode() & 0o777 == 0o640,
        "{meta:?}"
    );
    Ok(())
}

/// The file system, mounted until dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Ok(name) = CString::new(self.0.as_os_str().as_bytes()) {
            // SAFETY: the name ends with NUL.
            unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn are_files() -> Result<()> {
    let place = Place::new("queues")?;
    let target = CString::new(place.0.as_os_str().as_bytes())?;
    // SAFETY: all names end with NUL.
    checked(unsafe {
        libc::mount(
            c"none".as_ptr(),
            target.as_ptr(),
            c"mqueue".as_ptr(),
            0,
            std::ptr::null(),
        )
    })?;
    let _mounted = Mounted(&place.0);
    ensure!(
        fs::metadata(&place.0)?.mode() & 0o7777 == 0o1777,
        "others cannot make queues"
    );
    let queue = Queue::new("file")?;
    queue.send(b"1234")?;
    let name = queue.name.to_str()?.trim_start_matches('/').to_owned();
    let listed = || -> io::Result<Vec<String>> {
        fs::read_dir(&place.0)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    ensure!(listed()?.contains(&name), "it is not listed");
    let path = place.0.join(&name);
    ensure!(
        fs::read_to_string(&path)?.starts_with("QSIZE:4 "),
        "its text is another"
    );
    fs::remove_file(&path)?;
    // SAFETY: the name ends with NUL.
    let gone = checked(unsafe { libc::mq_open(queue.name.as_ptr(), libc::O_RDWR) });
    ensure!(
        gone.is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT)),
        "its name is still there"
    );
    queue.send(b"who has it open keeps it")?;
    // And the other way.
    fs::File::create(&path)?;
    // SAFETY: the name ends with NUL, and the structure is filled.
    let attributes = unsafe {
        let fd = checked(libc::mq_open(queue.name.as_ptr(), libc::O_RDWR))?;
        let mut attributes: libc::mq_attr = std::mem::zeroed();
        checked(libc::mq_getattr(fd, &mut attributes))?;
        libc::mq_close(fd);
        attributes
    };
    ensure!(
        (attributes.mq_maxmsg, attributes.mq_msgsize) == (10, 8192),
        "{} {}",
        attributes.mq_maxmsg,
        attributes.mq_msgsize
    );
    Ok(())
}

/// `struct sigevent`, as far as it matters.
#[repr(C)]
struct Event {
    value: usize,
    signal: i32,
    kind: i32,
    rest: [u64; 6],
}

/// A C library that is to run a function passes a netlink socket, and bytes that come out of it
/// with one of them changed: 1 for a message, 2 if there will be none.
fn tell_a_thread() -> Result<()> {
    const WOKEN: u8 = 1;
    const REMOVED: u8 = 2;
    let queue = Queue::new("mqueue-thread")?;
    let netlink = || {
        Fd::new(
            call!(SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, 0),
            "a netlink socket",
        )
    };
    let socket = netlink()?;
    let cookie: [u8; 32] = std::array::from_fn(|at| at as u8 + 100);
    let asks = |fd: i32, cookie: *const u8, queue: i32| {
        let event = Event {
            value: cookie.expose_provenance(),
            signal: fd,
            kind: libc::SIGEV_THREAD,
            rest: [0; 6],
        };
        call!(SYS_mq_notify, queue, &raw const event)
    };
    let told = |what: &str, event: u8| -> Result<()> {
        let mut bytes = [0u8; 64];
        let got = call!(
            SYS_recvfrom,
            socket.0,
            bytes.as_mut_ptr(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            0,
            0
        );
        is(got, 32, what)?;
        ensure!(
            bytes[..31] == cookie[..31] && bytes[31] == event,
            "{what}: {bytes:?}"
        );
        Ok(())
    };
    let [end, _other] = pipe(0)?;
    let datagrams = Fd::new(
        call!(SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM, 0),
        "socket",
    )?;
    let good = cookie.as_ptr();
    for (fd, place, errno) in [
        (socket.0, ptr::without_provenance(64), libc::EFAULT),
        (-1, ptr::without_provenance(64), libc::EFAULT),
        (-1, good, libc::EBADF),
        (end.0, good, libc::ENOTSOCK),
        (datagrams.0, good, libc::EINVAL),
    ] {
        fails(asks(fd, place, queue.fd), errno, "mq_notify")?;
    }
    fails(asks(socket.0, good, end.0), libc::EBADF, "of a pipe")?;
    is(asks(socket.0, good, queue.fd), 0, "mq_notify")?;
    fails(
        asks(socket.0, good, queue.fd),
        libc::EBUSY,
        "mq_notify again",
    )?;
    // SAFETY: the descriptor is duplicated for it.
    let mut file = unsafe { fs::File::from_raw_fd(checked(libc::dup(queue.fd))?) };
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let pid = std::process::id();
    ensure!(
        words(&text)?
            == [
                ("QSIZE", 0),
                ("NOTIFY", 2),
                ("SIGNO", 0),
                ("NOTIFY_PID", pid)
            ]
            .map(|(name, number)| (name.to_owned(), number)),
        "{text}"
    );
    queue.send(b"first")?;
    told("a message", WOKEN)?;
    queue.send(b"second")?;
    fails(
        call!(
            SYS_recvfrom,
            socket.0,
            [0u8; 64].as_mut_ptr(),
            64,
            libc::MSG_DONTWAIT,
            0,
            0
        ),
        libc::EAGAIN,
        "a second message",
    )?;
    is(asks(socket.0, good, queue.fd), 0, "mq_notify")?;
    is(call!(SYS_mq_notify, queue.fd, 0), 0, "mq_notify of nothing")?;
    told("given up", REMOVED)?;
    is(asks(socket.0, good, queue.fd), 0, "mq_notify")?;
    drop(file);
    told("a descriptor closed", REMOVED)?;
    // Nobody hears it.
    let closed = netlink()?;
    is(asks(closed.0, good, queue.fd), 0, "mq_notify")?;
    drop(closed);
    is(call!(SYS_mq_notify, queue.fd, 0), 0, "mq_notify of nothing")
}
