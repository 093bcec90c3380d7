//! System calls that somebody else decides about: `SECCOMP_RET_USER_NOTIF`.

use std::sync::atomic::{AtomicI32, Ordering};
use std::{io, mem, thread};

use anyhow::{Result, ensure};

use crate::credentials::in_child;
use crate::seccomp::{for_call, no_new_privileges};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("seccomp-notify-answer-for-a-call", answers),
    ("seccomp-notify-give-descriptors", gives_descriptors),
    ("seccomp-notify-come-and-go", come_and_go),
    ("seccomp-notify-restarts-and-sizes", restarts_and_sizes),
    ("seccomp-notify-is-not-interrupted", is_not_interrupted),
];

const NEW_LISTENER: u32 = 8;
const WAIT_KILLABLE: u32 = 32;
const USER_NOTIF: u32 = 0x7fc0_0000;
const RECEIVE: u64 = 0xc050_2100;
const SEND: u64 = 0xc018_2101;
const IS_VALID: u64 = 0x4008_2102;
const ADD: u64 = 0x4018_2103;
const CONTINUE: u32 = 1;

#[repr(C)]
#[derive(Default, Debug)]
struct Notification {
    id: u64,
    tid: u32,
    flags: u32,
    number: i32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Addition {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

fn install(flags: u32) -> io::Result<i32> {
    let filter = for_call(libc::SYS_getppid, USER_NOTIF);
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: a valid program; it is copied.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, 1, flags, &raw const program) } as i32)
}

fn call(arg: usize) -> io::Result<i64> {
    // SAFETY: the call takes nothing, and does not look at its registers.
    let result = unsafe { libc::syscall(libc::SYS_getppid, arg) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn ioctl<T>(fd: i32, request: u64, value: &mut T) -> io::Result<i32> {
    // SAFETY: each request gets the structure it is made for.
    checked(unsafe { libc::ioctl(fd, request, std::ptr::from_mut(value)) })
}

fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: i32, what: &str) -> Result<()> {
    ensure!(
        result
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(errno)),
        "{what}: {result:?}"
    );
    Ok(())
}

fn events(fd: i32, wanted: i16, timeout: i32) -> Result<i16> {
    let mut entry = libc::pollfd {
        fd,
        events: wanted,
        revents: 0,
    };
    // SAFETY: one valid entry.
    checked(unsafe { libc::poll(&mut entry, 1, timeout) })?;
    Ok(entry.revents)
}

/// A thread with a filter that makes `calls`, and what listens to it.
fn with_listener<R: Send>(
    calls: impl FnOnce() -> R + Send,
    listen: impl FnOnce(i32) -> Result<()>,
) -> Result<R> {
    with_listener_of(NEW_LISTENER, calls, listen)
}

/// The same with a filter that has these flags.
fn with_listener_of<R: Send>(
    flags: u32,
    calls: impl FnOnce() -> R + Send,
    listen: impl FnOnce(i32) -> Result<()>,
) -> Result<R> {
    let (listener, number) = (AtomicI32::new(0), AtomicI32::new(0));
    thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<R> {
            no_new_privileges()?;
            // SAFETY: the call takes nothing.
            number.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let fd = install(flags).inspect_err(|_| listener.store(-1, Ordering::SeqCst))?;
            listener.store(fd, Ordering::SeqCst);
            Ok(calls())
        });
        while listener.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let fd = listener.load(Ordering::SeqCst);
        let listened = if fd > 0 { listen(fd) } else { Ok(()) };
        if listened.is_err() {
            // SAFETY: nobody uses it any more; calls that wait end by that.
            unsafe { libc::close(fd) };
        }
        let result = thread.join().expect("the thread ended well");
        listened?;
        result
    })
}

fn receive(fd: i32) -> Result<Notification> {
    let mut notification = Notification::default();
    ioctl(fd, RECEIVE, &mut notification)?;
    Ok(notification)
}

fn answers() -> Result<()> {
    // SAFETY: the call takes nothing.
    let parent = i64::from(unsafe { libc::getppid() });
    let calls = || [call(7), call(8), call(9)];
    let results = with_listener(calls, |fd| {
        ensure!(
            events(fd, libc::POLLIN, 10_000)? == libc::POLLIN,
            "nothing to read"
        );
        refused(
            ioctl(
                fd,
                RECEIVE,
                &mut Notification {
                    id: 1,
                    ..Notification::default()
                },
            ),
            libc::EINVAL,
            "a place that is not empty",
        )?;
        let first = receive(fd)?;
        let own = format!("/proc/self/task/{}", first.tid);
        ensure!(
            first.number == libc::SYS_getppid as i32
                && first.args[0] == 7
                && first.arch == 0xc000_003e,
            "{first:?}"
        );
        ensure!(
            first.ip != 0 && std::fs::exists(&own)?,
            "{own} is not there"
        );
        ensure!(
            events(fd, libc::POLLIN | libc::POLLOUT, 0)? == libc::POLLOUT,
            "an answer is not wanted"
        );
        let mut id = first.id;
        ioctl(fd, IS_VALID, &mut id)?;
        refused(
            ioctl(fd, IS_VALID, &mut (id + 100)),
            libc::ENOENT,
            "another call",
        )?;
        let mut answer = Response {
            id,
            value: 4321,
            ..Response::default()
        };
        refused(
            ioctl(fd, SEND, &mut Response { flags: 2, ..answer }),
            libc::EINVAL,
            "another flag",
        )?;
        refused(
            ioctl(
                fd,
                SEND,
                &mut Response {
                    flags: CONTINUE,
                    ..answer
                },
            ),
            libc::EINVAL,
            "two answers in one",
        )?;
        refused(
            ioctl(
                fd,
                SEND,
                &mut Response {
                    id: id + 100,
                    ..answer
                },
            ),
            libc::ENOENT,
            "an answer for nobody",
        )?;
        ioctl(fd, SEND, &mut answer)?;
        ensure!(ioctl(fd, SEND, &mut answer).is_err(), "two answers");
        let id = receive(fd)?.id;
        ioctl(
            fd,
            SEND,
            &mut Response {
                id,
                error: -libc::EXDEV,
                ..Response::default()
            },
        )?;
        let id = receive(fd)?.id;
        ioctl(
            fd,
            SEND,
            &mut Response {
                id,
                flags: CONTINUE,
                ..Response::default()
            },
        )?;
        Ok(())
    })?;
    let [first, second, third] = results;
    ensure!(first? == 4321 && third? == parent, "the answers are others");
    refused(second, libc::EXDEV, "an error")
}

fn gives_descriptors() -> Result<()> {
    let results = with_listener(
        || [call(0), call(0)],
        |fd| {
            let id = receive(fd)?.id;
            let addition = Addition {
                id,
                source: fd as u32,
                ..Addition::default()
            };
            refused(
                ioctl(
                    fd,
                    ADD,
                    &mut Addition {
                        flags: 4,
                        ..addition
                    },
                ),
                libc::EINVAL,
                "another flag",
            )?;
            refused(
                ioctl(
                    fd,
                    ADD,
                    &mut Addition {
                        number: 50,
                        ..addition
                    },
                ),
                libc::EINVAL,
                "a number without its flag",
            )?;
            refused(
                ioctl(
                    fd,
                    ADD,
                    &mut Addition {
                        source: 999,
                        ..addition
                    },
                ),
                libc::EBADF,
                "no descriptor",
            )?;
            refused(
                ioctl(
                    fd,
                    ADD,
                    &mut Addition {
                        id: id + 100,
                        ..addition
                    },
                ),
                libc::ENOENT,
                "another call",
            )?;
            let mut wanted = Addition {
                flags: 1,
                number: 77,
                number_flags: libc::O_CLOEXEC as u32,
                ..addition
            };
            ensure!(ioctl(fd, ADD, &mut wanted)? == 77, "another number");
            ensure!(
                // SAFETY: numbers.
                unsafe { libc::fcntl(77, libc::F_GETFD) } == libc::FD_CLOEXEC,
                "it is not closed on exec"
            );
            ioctl(
                fd,
                SEND,
                &mut Response {
                    id,
                    value: 1,
                    ..Response::default()
                },
            )?;
            let id = receive(fd)?.id;
            let mut and_send = Addition {
                id,
                flags: 2,
                source: fd as u32,
                ..Addition::default()
            };
            ensure!(ioctl(fd, ADD, &mut and_send)? > 2, "no number");
            Ok(())
        },
    )?;
    let [first, second] = results;
    // SAFETY: numbers.
    let there = second.is_ok_and(|fd| unsafe { libc::fcntl(fd as i32, libc::F_GETFD) } == 0);
    ensure!(first? == 1 && there, "the result is not the descriptor");
    Ok(())
}

fn come_and_go() -> Result<()> {
    let mut sizes = [0u16; 3];
    // SAFETY: the array is as large as the answer.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, 3, 0, sizes.as_mut_ptr()) } as i32)?;
    ensure!(
        sizes == [mem::size_of::<Notification>() as u16, 24, 64],
        "{sizes:?}"
    );
    // Two listeners of one thread, and a filter's thread that ends.
    let mut left = 0;
    with_listener(
        || refused(install(NEW_LISTENER), libc::EBUSY, "a second listener"),
        |fd| {
            left = fd;
            Ok(())
        },
    )??;
    ensure!(
        events(left, 0, 10_000)? & libc::POLLHUP != 0,
        "it is not told that all threads have ended"
    );
    in_child(|| {
        let result = with_listener(
            || [call(0), call(0)],
            |fd| {
                receive(fd)?;
                // SAFETY: this function's.
                checked(unsafe { libc::close(fd) })?;
                Ok(())
            },
        )?;
        for error in result {
            refused(error, libc::ENOSYS, "without a listener")?;
        }
        no_new_privileges()?;
        refused(
            install(NEW_LISTENER | 1),
            libc::EINVAL,
            "a thread's number or a descriptor",
        )?;
        refused(install(32), libc::EINVAL, "waiting for no listener")
    })
}

/// An answer that would have the call made anew is shown to who has no signal to handle before; an
/// addition may be longer than it is known to be, if the rest is zero.
fn restarts_and_sizes() -> Result<()> {
    const RESTART: i32 = 512;
    let size = |bytes: u64| ADD & !(0x3fff << 16) | bytes << 16;
    let result = with_listener(
        || call(0),
        |fd| {
            let id = receive(fd)?.id;
            let mut addition = [0u64; 6];
            addition[0] = id;
            addition[1] = u64::from(fd as u32) << 32;
            refused(
                ioctl(fd, size(16), &mut addition),
                libc::EINVAL,
                "a short addition",
            )?;
            refused(
                ioctl(fd, size(4096), &mut addition),
                libc::EINVAL,
                "an addition of a page",
            )?;
            addition[5] = 1;
            refused(
                ioctl(fd, size(48), &mut addition),
                libc::E2BIG,
                "an addition that says more",
            )?;
            addition[5] = 0;
            let added = ioctl(fd, size(48), &mut addition)?;
            // SAFETY: nobody else knows of the descriptor.
            checked(unsafe { libc::close(added) })?;
            ioctl(
                fd,
                SEND,
                &mut Response {
                    id,
                    error: -RESTART,
                    ..Response::default()
                },
            )?;
            Ok(())
        },
    )?;
    refused(result, RESTART, "an answer that restarts")
}

static HANDLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn count_signal(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// A call that was told of, of a filter that asks for that, waits on when a signal comes, and is
/// shown as such; the signal is handled when it is over.
fn is_not_interrupted() -> Result<()> {
    // SAFETY: the handler counts; there is no flag that begins calls again.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = count_signal as *const () as usize;
        checked(libc::sigaction(
            libc::SIGUSR1,
            &raw const action,
            std::ptr::null_mut(),
        ))?;
    }
    let calls = || call(1);
    let result = with_listener_of(NEW_LISTENER | WAIT_KILLABLE, calls, |fd| {
        let told = receive(fd)?;
        let wait_for = |letter: char| -> Result<()> {
            let stat = format!("/proc/self/task/{}/stat", told.tid);
            while !std::fs::read_to_string(&stat)?.contains(&format!(") {letter} ")) {
                thread::yield_now();
            }
            Ok(())
        };
        wait_for('S')?;
        // SAFETY: the call takes numbers.
        checked(unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), told.tid, libc::SIGUSR1) as i32
        })?;
        wait_for('D')?;
        let handled = HANDLED.load(Ordering::SeqCst);
        ensure!(handled == 0, "the handler ran while the call waited");
        let mut answer = Response {
            id: told.id,
            value: 4321,
            ..Response::default()
        };
        ioctl(fd, SEND, &mut answer)?;
        Ok(())
    })?;
    ensure!(matches!(result, Ok(4321)), "{result:?}");
    let handled = HANDLED.load(Ordering::SeqCst);
    ensure!(handled == 1, "the handler ran {handled} times");
    Ok(())
}
