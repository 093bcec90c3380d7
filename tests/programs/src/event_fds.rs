//! Descriptors of events: `timerfd`, `signalfd`, `pidfd`, `eventfd`.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::calls::{self, Fd, call, fails, is, pipe};
use crate::lost_wakeups::Number;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("event-fds-poll-stores-events-only", poll_stores_events),
    ("event-fds-timerfd", timerfd),
    ("event-fds-timerfd-errors", timerfd_errors),
    ("event-fds-signalfd", signalfd),
    ("event-fds-signalfd-of-a-child", signalfd_of_a_child),
    ("event-fds-without-waiting", without_waiting),
    ("event-fds-pidfd", pidfd),
    ("event-fds-pidfd-from-clone", pidfd_from_clone),
];

/// A new descriptor, as a file, from a call that returned its number.
fn file(fd: libc::c_int) -> io::Result<File> {
    // SAFETY: the kernel has just given this number to us.
    checked(fd).map(|fd| unsafe { File::from_raw_fd(fd) })
}

fn raw_call(number: libc::c_long, arguments: [usize; 4]) -> io::Result<i32> {
    let [a, b, c, d] = arguments;
    // SAFETY: the callers pass numbers and addresses of values that are alive.
    checked(unsafe { libc::syscall(number, a, b, c, d) } as libc::c_int)
}

fn polled(fd: &impl AsRawFd, timeout: libc::c_int) -> io::Result<bool> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, alive during the call.
    checked(unsafe { libc::poll(&raw mut entry, 1, timeout) })?;
    Ok(entry.revents == libc::POLLIN)
}

fn spec(value: Duration, interval: Duration) -> libc::itimerspec {
    let time = |d: Duration| libc::timespec {
        tv_sec: d.as_secs() as _,
        tv_nsec: d.subsec_nanos().into(),
    };
    libc::itimerspec {
        it_value: time(value),
        it_interval: time(interval),
    }
}

fn count(timer: &mut File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    timer.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn timerfd() -> Result<()> {
    const MS: Duration = Duration::from_millis(1);
    // SAFETY: plain system calls with structures that are alive.
    unsafe {
        let mut timer = file(libc::timerfd_create(
            libc::CLOCK_MONOTONIC,
            libc::TFD_CLOEXEC,
        ))?;
        ensure!(!polled(&timer, 0)?, "a timer that is not set has fired");
        let mut left = spec(Duration::ZERO, Duration::ZERO);
        checked(libc::timerfd_settime(
            timer.as_raw_fd(),
            0,
            &spec(3_600_000 * MS, Duration::ZERO),
            std::ptr::null_mut(),
        ))?;
        checked(libc::timerfd_gettime(timer.as_raw_fd(), &raw mut left))?;
        ensure!(
            (1..=3600).contains(&left.it_value.tv_sec),
            "{} s of an hour are left",
            left.it_value.tv_sec
        );
        let start = Instant::now();
        checked(libc::timerfd_settime(
            timer.as_raw_fd(),
            0,
            &spec(30 * MS, Duration::ZERO),
            std::ptr::null_mut(),
        ))?;
        ensure!(
            polled(&timer, 10_000)? && start.elapsed() >= 30 * MS,
            "it fired early, or never"
        );
        ensure!(count(&mut timer)? == 1, "it fired more than once");
        ensure!(!polled(&timer, 0)?, "it is ready after it was read");
        // Every 5 ms; two are waited for at least.
        checked(libc::timerfd_settime(
            timer.as_raw_fd(),
            0,
            &spec(5 * MS, 5 * MS),
            std::ptr::null_mut(),
        ))?;
        let mut fired = 0;
        while fired < 4 {
            fired += count(&mut timer)?;
        }
        let mut old = spec(Duration::ZERO, Duration::ZERO);
        checked(libc::timerfd_settime(
            timer.as_raw_fd(),
            0,
            &spec(Duration::ZERO, Duration::ZERO),
            &raw mut old,
        ))?;
        ensure!(
            old.it_interval.tv_nsec == 5_000_000,
            "the interval was {}",
            old.it_interval.tv_nsec
        );
        // A time that has passed, on the wall clock.
        let mut timer = file(libc::timerfd_create(libc::CLOCK_REALTIME, 0))?;
        let past = spec(Duration::from_secs(1), Duration::ZERO);
        checked(libc::timerfd_settime(
            timer.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &past,
            std::ptr::null_mut(),
        ))?;
        ensure!(count(&mut timer)? == 1, "the past has not come");
    }
    Ok(())
}

fn timerfd_errors() -> Result<()> {
    // SAFETY: plain system calls with structures that are alive.
    unsafe {
        let mut timer = file(libc::timerfd_create(
            libc::CLOCK_MONOTONIC,
            libc::TFD_NONBLOCK,
        ))?;
        let error = count(&mut timer).err().map(|e| e.kind());
        ensure!(
            error == Some(ErrorKind::WouldBlock),
            "reading gave {error:?}"
        );
        let error = timer.read(&mut [0; 7]).err().and_then(|e| e.raw_os_error());
        ensure!(error == Some(libc::EINVAL), "a short buffer gave {error:?}");
        let wrong = libc::itimerspec {
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: -1,
            },
            ..spec(Duration::ZERO, Duration::ZERO)
        };
        let set = checked(libc::timerfd_settime(
            timer.as_raw_fd(),
            0,
            &wrong,
            std::ptr::null_mut(),
        ));
        ensure!(
            set.is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)),
            "a negative time was set"
        );
        let null = File::open("/dev/null")?;
        let set = checked(libc::timerfd_settime(
            null.as_raw_fd(),
            0,
            &spec(Duration::ZERO, Duration::ZERO),
            std::ptr::null_mut(),
        ));
        ensure!(
            set.is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)),
            "/dev/null is a timer"
        );
        let made = file(libc::timerfd_create(77, 0));
        ensure!(
            made.is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)),
            "clock 77 ticks"
        );
    }
    Ok(())
}

/// A blocked set of signals, and a descriptor that reads them.
fn signals(wanted: &[libc::c_int]) -> io::Result<File> {
    // SAFETY: plain calls on a set that is alive.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        for &signal in wanted {
            libc::sigaddset(&raw mut set, signal);
        }
        checked(libc::sigprocmask(
            libc::SIG_BLOCK,
            &raw const set,
            std::ptr::null_mut(),
        ))?;
        file(libc::signalfd(
            -1,
            &raw const set,
            libc::SFD_NONBLOCK | libc::SFD_CLOEXEC,
        ))
    }
}

fn next_signal(from: &mut File) -> io::Result<libc::signalfd_siginfo> {
    let mut bytes = [0u8; 128];
    from.read_exact(&mut bytes)?;
    // SAFETY: a structure of numbers, of this size.
    Ok(unsafe { mem::transmute::<[u8; 128], libc::signalfd_siginfo>(bytes) })
}

fn signalfd() -> Result<()> {
    let mut descriptor = signals(&[libc::SIGUSR1, libc::SIGUSR2])?;
    let kind = next_signal(&mut descriptor).err().map(|e| e.kind());
    ensure!(kind == Some(ErrorKind::WouldBlock), "reading gave {kind:?}");
    // SAFETY: plain system calls.
    unsafe {
        ensure!(!polled(&descriptor, 0)?, "ready without a signal");
        checked(libc::kill(libc::getpid(), libc::SIGUSR2))?;
        ensure!(polled(&descriptor, 10_000)?, "not ready with a signal");
        let info = next_signal(&mut descriptor)?;
        ensure!(
            info.ssi_signo == libc::SIGUSR2 as u32
                && info.ssi_pid == libc::getpid().cast_unsigned(),
            "{}",
            info.ssi_signo
        );
        let value = libc::sigval {
            sival_ptr: std::ptr::without_provenance_mut(0x1234_5678_9abc),
        };
        checked(libc::sigqueue(libc::getpid(), libc::SIGUSR1, value))?;
        let info = next_signal(&mut descriptor)?;
        ensure!(
            info.ssi_code == libc::SI_QUEUE && info.ssi_ptr == 0x1234_5678_9abc,
            "{:x}",
            info.ssi_ptr
        );
        ensure!(!polled(&descriptor, 0)?, "a signal comes twice");
    }
    Ok(())
}

fn signalfd_of_a_child() -> Result<()> {
    let mut descriptor = signals(&[libc::SIGCHLD])?;
    // In a set of its own, as event loops have it.
    // SAFETY: plain system calls with structures that are alive; the child does nothing else.
    unsafe {
        let set = OwnedFd::from_raw_fd(checked(libc::epoll_create1(0))?);
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 5,
        };
        checked(libc::epoll_ctl(
            set.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            descriptor.as_raw_fd(),
            &raw mut event,
        ))?;
        let child = checked(libc::fork())?;
        if child == 0 {
            libc::_exit(3);
        }
        ensure!(
            checked(libc::epoll_wait(set.as_raw_fd(), &raw mut event, 1, 10_000))? == 1,
            "the set did not hear of it"
        );
        let info = next_signal(&mut descriptor)?;
        ensure!(
            info.ssi_pid == child.cast_unsigned() && info.ssi_status == 3,
            "{} ended with {}",
            info.ssi_pid,
            info.ssi_status
        );
        checked(libc::waitpid(child, std::ptr::null_mut(), 0))?;
    }
    Ok(())
}

fn pidfd() -> Result<()> {
    // SAFETY: plain system calls with structures that are alive; the child does nothing else.
    unsafe {
        let child = checked(libc::fork())?;
        if child == 0 {
            loop {
                libc::pause();
            }
        }
        let descriptor = file(raw_call(libc::SYS_pidfd_open, [child as usize, 0, 0, 0])?)?;
        let fd = descriptor.as_raw_fd() as usize;
        ensure!(!polled(&descriptor, 0)?, "it has not ended yet");
        raw_call(libc::SYS_pidfd_send_signal, [fd, 0, 0, 0])?;
        raw_call(
            libc::SYS_pidfd_send_signal,
            [fd, libc::SIGTERM as usize, 0, 0],
        )?;
        ensure!(polled(&descriptor, 10_000)?, "its end is not told");
        let mut info: libc::siginfo_t = mem::zeroed();
        checked(libc::waitid(
            libc::P_PIDFD,
            fd as libc::id_t,
            &raw mut info,
            libc::WEXITED,
        ))?;
        ensure!(
            info.si_pid() == child && info.si_status() == libc::SIGTERM,
            "{} by {}",
            info.si_pid(),
            info.si_status()
        );
        let dead = raw_call(libc::SYS_pidfd_send_signal, [fd, 0, 0, 0]);
        ensure!(
            dead.is_err_and(|e| e.raw_os_error() == Some(libc::ESRCH)),
            "the dead are sent signals"
        );
        let gone = raw_call(libc::SYS_pidfd_open, [child as usize, 0, 0, 0]);
        ensure!(
            gone.is_err_and(|e| e.raw_os_error() == Some(libc::ESRCH)),
            "the dead can be opened"
        );
        // Of oneself, and a descriptor through it.
        let me = file(raw_call(
            libc::SYS_pidfd_open,
            [libc::getpid() as usize, libc::O_NONBLOCK as usize, 0, 0],
        )?)?;
        let null = File::open("/dev/null")?;
        let copy = file(raw_call(
            libc::SYS_pidfd_getfd,
            [me.as_raw_fd() as usize, null.as_raw_fd() as usize, 0, 0],
        )?)?;
        ensure!((&copy).read(&mut [0; 4])? == 0, "it is another file");
    }
    Ok(())
}

fn pidfd_from_clone() -> Result<()> {
    let mut fd = -1i32;
    let mut arguments = [0u64; 8];
    arguments[0] = libc::CLONE_PIDFD as u64;
    arguments[1] = (&raw mut fd).addr() as u64;
    arguments[4] = libc::SIGCHLD as u64;
    // SAFETY: the child goes on where the parent does, in a copy of its memory, and only ends.
    unsafe {
        let child = raw_call(
            libc::SYS_clone3,
            [
                arguments.as_ptr().addr(),
                mem::size_of_val(&arguments),
                0,
                0,
            ],
        )?;
        if child == 0 {
            libc::_exit(7);
        }
        let descriptor = file(fd)?;
        ensure!(polled(&descriptor, 10_000)?, "its end is not told");
        let mut info: libc::siginfo_t = mem::zeroed();
        checked(libc::waitid(
            libc::P_PIDFD,
            fd as libc::id_t,
            &raw mut info,
            libc::WEXITED,
        ))?;
        ensure!(
            info.si_pid() == child && info.si_status() == 7,
            "{} ended with {}",
            info.si_pid(),
            info.si_status()
        );
    }
    Ok(())
}

/// While a thread polls, another one changes the descriptors it polls for: that stays, as only the
/// events are stored.
fn poll_stores_events() -> Result<()> {
    let [input, output] = pipe(0)?;
    let mut fds = [input.0, -1, -1].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 7,
    });
    let list = AtomicPtr::new(fds.as_mut_ptr());
    let poller = Number::default();
    let result = thread::scope(|scope| {
        let polls = scope.spawn(|| {
            poller.tell();
            crate::calls::call!(SYS_poll, list.load(Ordering::SeqCst), 3, -1i32)
        });
        poller.sleeps()?;
        let first = list.load(Ordering::SeqCst);
        for index in 0..3 {
            // SAFETY: of the array above; the kernel looks at it before and after.
            unsafe {
                let entry = first.add(index);
                (&raw mut (*entry).fd).write_volatile(100 + index as i32);
                (&raw mut (*entry).events).write_volatile(libc::POLLOUT);
            }
        }
        ensure!(
            crate::calls::call!(SYS_write, output.0, b"x".as_ptr(), 1) == 1,
            "write"
        );
        polls.join().map_err(|_| anyhow::anyhow!("it panicked"))
    })?;
    ensure!(result == 1, "poll: {result}");
    let seen = fds.map(|entry| (entry.fd, entry.events, entry.revents));
    let (asked, came) = (libc::POLLOUT, libc::POLLIN);
    ensure!(
        seen == [(100, asked, came), (101, asked, 0), (102, asked, 0)],
        "{seen:?}"
    );
    Ok(())
}

/// A counter that waits is read without waiting by a call that says so, and not written.
fn without_waiting() -> Result<()> {
    let counter = Fd::new(call!(SYS_eventfd2, 0, 0), "eventfd2")?;
    let mut value = 0u64;
    let buffer = libc::iovec {
        iov_base: (&raw mut value).cast(),
        iov_len: 8,
    };
    let transfer = |number: i64, offset: i64| {
        let buffer: *const libc::iovec = &raw const buffer;
        let arguments = [counter.0 as usize, buffer as usize, 1, offset as usize, 0];
        let flags = [libc::RWF_NOWAIT as usize];
        calls::make(number, &[&arguments[..], &flags[..]].concat())
    };
    let read = |offset| transfer(libc::SYS_preadv2, offset);
    fails(read(-1), libc::EAGAIN, "a read of a counter that is 0")?;
    fails(read(0), libc::ESPIPE, "a read at an offset")?;
    fails(
        transfer(libc::SYS_pwritev2, -1),
        libc::EOPNOTSUPP,
        "a write that does not wait",
    )?;
    is(
        call!(SYS_write, counter.0, &raw const FIVE, 8),
        8,
        "an ordinary write",
    )?;
    is(read(-1), 8, "a read of a counter that is 5")?;
    ensure!(value == FIVE, "the counter was {value}");
    fails(read(-1), libc::EAGAIN, "a second read")
}

static FIVE: u64 = 5;
