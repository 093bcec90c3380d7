//! Being told that a descriptor is ready: by signals, and by one of several epoll sets.

use std::io::{self, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("sigio-by-signal", by_signal),
    ("sigio-of-exclusive-sets", of_exclusive_sets),
    ("sigio-refuses-mixtures", refuses_mixtures),
];

pub const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
/// A thread is the owner.
const OWNER_THREAD: i32 = 0;

fn by_signal() -> Result<()> {
    let signal = libc::SIGRTMIN() + 3;
    // SAFETY: the set is made before it is used, and the calls get valid pointers.
    let set = unsafe {
        let mut set = zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    let (reader, mut writer) = io::pipe()?;
    let fd = reader.as_raw_fd();
    // SAFETY: the call takes nothing.
    let owner = [OWNER_THREAD, unsafe { libc::gettid() }];
    let mut found = [-1; 2];
    // SAFETY: arguments are numbers, or valid pairs of numbers.
    unsafe {
        checked(libc::fcntl(fd, F_SETOWN_EX, owner.as_ptr()))?;
        checked(libc::fcntl(fd, F_GETOWN_EX, found.as_mut_ptr()))?;
        checked(libc::fcntl(fd, F_SETSIG, signal))?;
        checked(libc::fcntl(
            fd,
            libc::F_SETFL,
            libc::O_ASYNC | libc::O_NONBLOCK,
        ))?;
    }
    ensure!(found == owner, "the owner is {found:?}");
    writer.write_all(b"x")?;
    let patience = libc::timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    // SAFETY: all zeroes is a valid `siginfo_t`, and the pointers are valid.
    let mut info: libc::siginfo_t = unsafe { zeroed() };
    // SAFETY: as above.
    let got = checked(unsafe { libc::sigtimedwait(&set, &mut info, &patience) })?;
    ensure!(got == signal, "signal {got} came");
    // SAFETY: a `siginfo_t` is 128 bytes.
    let words: [i32; 32] = unsafe { std::mem::transmute(info) };
    let (code, band, from) = (words[2], words[4], words[6]);
    ensure!(
        from == fd && band & i32::from(libc::POLLIN) != 0,
        "code {code}, band {band:#x}, descriptor {from} instead of {fd}"
    );
    // Without the flag there is silence.
    // SAFETY: the arguments are numbers.
    checked(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) })?;
    writer.write_all(b"y")?;
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointers are valid.
    let late = checked(unsafe { libc::sigtimedwait(&set, &mut info, &none) });
    ensure!(
        late.is_err_and(|e| e.raw_os_error() == Some(libc::EAGAIN)),
        "a signal comes without O_ASYNC"
    );
    Ok(())
}

fn set() -> Result<OwnedFd> {
    // SAFETY: the call takes flags only.
    let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn control(set: &OwnedFd, operation: i32, fd: RawFd, events: i32) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: events.cast_unsigned(),
        u64: 0,
    };
    // SAFETY: the event is valid.
    checked(unsafe { libc::epoll_ctl(set.as_raw_fd(), operation, fd, &mut event) }).map(drop)
}

fn of_exclusive_sets() -> Result<()> {
    const EVENTS: usize = 2000;
    const END: usize = EVENTS + 1;
    // SAFETY: the call takes numbers only.
    let counter = checked(unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK) })?;
    let taken = Arc::new(AtomicUsize::new(0));
    let (ended, mut end) = io::pipe()?;
    let ended = Arc::new(ended);
    let mut threads = Vec::new();
    for _ in 0..3 {
        let (taken, ended, set) = (taken.clone(), ended.clone(), set()?);
        control(
            &set,
            libc::EPOLL_CTL_ADD,
            counter,
            libc::EPOLLIN | libc::EPOLLEXCLUSIVE,
        )?;
        control(&set, libc::EPOLL_CTL_ADD, ended.as_raw_fd(), libc::EPOLLIN)?;
        threads.push(thread::spawn(move || -> io::Result<()> {
            loop {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: there is room for one event.
                checked(unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, -1) })?;
                let mut value = 0u64;
                // SAFETY: the buffer has 8 bytes.
                if unsafe { libc::read(counter, (&raw mut value).cast(), 8) } == 8 {
                    taken.fetch_add(1, Ordering::SeqCst);
                } else if taken.load(Ordering::SeqCst) >= END {
                    return Ok(());
                }
            }
        }));
    }
    for n in 0..END {
        let one = 1u64;
        ensure!(
            // SAFETY: the buffer has 8 bytes.
            unsafe { libc::write(counter, (&raw const one).cast(), 8) } == 8,
            "the counter does not take a number"
        );
        // One after the other: nothing else would wake whom a lost event left waiting.
        while taken.load(Ordering::SeqCst) <= n {
            thread::yield_now();
        }
    }
    end.write_all(b"x")?;
    for thread in threads {
        thread.join().expect("the thread ended well")?;
    }
    // SAFETY: nobody uses the descriptor any more.
    checked(unsafe { libc::close(counter) })?;
    Ok(())
}

fn refuses_mixtures() -> Result<()> {
    let (reader, _writer) = io::pipe()?;
    let (one, other) = (set()?, set()?);
    let code = |result: io::Result<()>| result.err().and_then(|e| e.raw_os_error());
    let oneshot = libc::EPOLLIN | libc::EPOLLEXCLUSIVE | libc::EPOLLONESHOT;
    let fd = reader.as_raw_fd();
    ensure!(
        code(control(&one, libc::EPOLL_CTL_ADD, fd, oneshot)) == Some(libc::EINVAL),
        "EPOLLONESHOT goes with it"
    );
    let exclusive = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;
    let nested = control(&one, libc::EPOLL_CTL_ADD, other.as_raw_fd(), exclusive);
    ensure!(code(nested) == Some(libc::EINVAL), "a set in a set");
    control(&one, libc::EPOLL_CTL_ADD, fd, exclusive)?;
    ensure!(
        code(control(&one, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN)) == Some(libc::EINVAL),
        "it can be changed"
    );
    Ok(())
}
