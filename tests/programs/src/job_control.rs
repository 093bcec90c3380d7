//! Children that stop, go on and end; signals that queue; running programs in unusual ways.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io, mem, ptr, thread};

use anyhow::{Context, Result, ensure};

use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("job-control-looking-before-waiting", looking_before_waiting),
    ("job-control-what-a-signal-tells", what_a_signal_tells),
    ("job-control-all-threads-stop", all_threads_stop),
    ("job-control-a-poll-outlasts-stops", a_poll_outlasts_stops),
    (
        "job-control-children-nobody-waits-for",
        children_nobody_waits_for,
    ),
    ("job-control-no-news-of-stops", no_news_of_stops),
    ("job-control-the-signal-of-an-end", the_signal_of_an_end),
    ("job-control-death-of-a-parent", death_of_a_parent),
    ("job-control-groups-and-sessions", groups_and_sessions),
    (
        "job-control-groups-that-are-orphans-anyway",
        groups_that_are_orphans_anyway,
    ),
    ("job-control-exec-from-a-thread", exec_from_a_thread),
    ("job-control-exec-of-a-descriptor", exec_of_a_descriptor),
    ("job-control-spawn", spawn),
    ("signals-queue-in-order", queue_in_order),
    ("signals-flags-of-actions", flags_of_actions),
];

/// A child that does `work` and ends with what that returns.
fn fork(work: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: the program has one thread, or the child only calls what is safe after a fork.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        let status = work();
        // SAFETY: the child ends here.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: the word is valid.
    checked(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    Ok(status)
}

fn waitid(kind: u32, id: i32, options: i32) -> io::Result<libc::siginfo_t> {
    // SAFETY: a valid structure.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        checked(libc::waitid(kind, id as u32, &mut info, options))?;
        Ok(info)
    }
}

/// Code, process, user and status of a `siginfo_t` about a child.
fn told(info: &libc::siginfo_t) -> (i32, i32, u32, i32) {
    // SAFETY: it is about a child, or zero.
    unsafe { (info.si_code, info.si_pid(), info.si_uid(), info.si_status()) }
}

fn refused<T>(result: io::Result<T>, errno: i32, what: &str) -> Result<()> {
    match result {
        Err(e) if e.raw_os_error() == Some(errno) => Ok(()),
        Err(e) => Err(e).with_context(|| what.to_owned()),
        Ok(_) => Err(anyhow::anyhow!("{what} was allowed")),
    }
}

fn looking_before_waiting() -> Result<()> {
    let mut pipe = [0; 2];
    // SAFETY: room for two.
    checked(unsafe { libc::pipe(pipe.as_mut_ptr()) })?;
    let pid = fork(|| {
        // SAFETY: its own descriptors, and one byte.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], [0u8].as_mut_ptr().cast(), 1);
        }
        7
    })?;
    let none = waitid(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG)?;
    ensure!(
        told(&none).1 == 0 && none.si_signo == 0,
        "a child that runs is news"
    );
    // SAFETY: numbers.
    let descriptor = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32)?;
    // SAFETY: its own descriptors.
    unsafe {
        libc::close(pipe[1]);
        libc::close(pipe[0]);
    }
    let wanted = (libc::CLD_EXITED, pid, 0, 7);
    for _ in 0..2 {
        let seen = waitid(libc::P_PID, pid, libc::WEXITED | libc::WNOWAIT)?;
        ensure!(
            told(&seen) == wanted && seen.si_signo == libc::SIGCHLD,
            "looking shows {:?}",
            told(&seen)
        );
    }
    let mut poll = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    ensure!(
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut poll, 1, 0) } == 1,
        "the descriptor of an ended child is not ready"
    );
    let seen = waitid(libc::P_PIDFD, descriptor, libc::WEXITED)?;
    ensure!(told(&seen) == wanted, "waiting shows {:?}", told(&seen));
    refused(
        waitid(libc::P_PIDFD, descriptor, libc::WEXITED),
        libc::ECHILD,
        "waiting twice",
    )?;
    refused(
        waitid(libc::P_PID, pid, 0),
        libc::EINVAL,
        "waiting for nothing",
    )?;
    // SAFETY: its own descriptor.
    unsafe { libc::close(descriptor) };
    Ok(())
}

static TOLD: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];

extern "C" fn note_child(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure about a child.
    let (code, pid, uid, status) = told(unsafe { &*info });
    for (place, value) in TOLD.iter().zip([code, pid, uid as i32, status]) {
        place.store(value, Ordering::SeqCst);
    }
}

/// Sets an action; returns nothing.
fn act(signal: i32, handler: usize, flags: i32) -> Result<()> {
    // SAFETY: a valid structure, whose handler is a function or a number that means none.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        checked(libc::sigaction(signal, &action, ptr::null_mut()))?;
    }
    Ok(())
}

fn what_a_signal_tells() -> Result<()> {
    in_child(|| {
        act(
            libc::SIGCHLD,
            note_child as *const () as usize,
            libc::SA_SIGINFO | libc::SA_RESTART,
        )?;
        let seen = || {
            TOLD.iter()
                .map(|place| place.load(Ordering::SeqCst))
                .collect::<Vec<_>>()
        };
        let pid = fork(|| 9)?;
        ensure!(wait(pid)? == 9 << 8, "another status");
        ensure!(
            seen() == [libc::CLD_EXITED, pid, 0, 9],
            "the end was told as {:?}",
            seen()
        );
        let pid = fork(|| {
            loop {
                // SAFETY: the call takes nothing.
                unsafe { libc::pause() };
            }
        })?;
        let kill = |signal: i32| {
            // SAFETY: a child's number.
            checked(unsafe { libc::kill(pid, signal) })
        };
        for (signal, option, code, status) in [
            (
                libc::SIGSTOP,
                libc::WSTOPPED,
                libc::CLD_STOPPED,
                libc::SIGSTOP,
            ),
            (
                libc::SIGCONT,
                libc::WCONTINUED,
                libc::CLD_CONTINUED,
                libc::SIGCONT,
            ),
            (
                libc::SIGKILL,
                libc::WEXITED,
                libc::CLD_KILLED,
                libc::SIGKILL,
            ),
        ] {
            kill(signal)?;
            let info = waitid(libc::P_PID, pid, option)?;
            ensure!(
                told(&info) == (code, pid, 0, status),
                "waiting tells {:?}",
                told(&info)
            );
            while seen()[0] != code {
                thread::yield_now();
            }
            ensure!(
                seen() == [code, pid, 0, status],
                "the signal tells {:?}",
                seen()
            );
        }
        Ok(())
    })
}

/// A `poll(2)` that is stopped again and again still ends at its time: it goes on with what is
/// left, and does not begin anew.
fn a_poll_outlasts_stops() -> Result<()> {
    // SAFETY: there are no entries.
    let pid = fork(|| unsafe { libc::poll(ptr::null_mut(), 0, 300) })?;
    loop {
        // Back in its wait, or it would stop again before it could look at the time.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        match stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next())
        {
            Some('S') => {}
            Some('Z') => break,
            _ => {
                thread::yield_now();
                continue;
            }
        }
        let mut status = 0;
        // SAFETY: a child's number; the word is valid.
        unsafe {
            checked(libc::kill(pid, libc::SIGSTOP))?;
            checked(libc::waitpid(pid, &mut status, libc::WUNTRACED))?;
        }
        if !libc::WIFSTOPPED(status) {
            ensure!(status == 0, "it ended {status:#x}");
            return Ok(());
        }
        // SAFETY: a child's number.
        checked(unsafe { libc::kill(pid, libc::SIGCONT) })?;
    }
    let status = wait(pid)?;
    ensure!(status == 0, "it ended {status:#x}");
    Ok(())
}

fn all_threads_stop() -> Result<()> {
    // SAFETY: new memory, shared with the child.
    let counters = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let at = libc::mmap(
            ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        ensure!(at != libc::MAP_FAILED, "no memory");
        std::slice::from_raw_parts(at.cast::<AtomicU32>(), 3)
    };
    let pid = fork(|| {
        thread::scope(|scope| {
            for counter in counters {
                scope.spawn(|| {
                    loop {
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        0
    })?;
    let values = || {
        counters
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .collect::<Vec<_>>()
    };
    let all_moved = |before: &[u32]| {
        values()
            .iter()
            .zip(before)
            .all(|(now, before)| now != before)
    };
    for _ in 0..3 {
        let before = values();
        while !all_moved(&before) {
            thread::yield_now();
        }
        // SAFETY: a child's number.
        checked(unsafe { libc::kill(pid, libc::SIGSTOP) })?;
        waitid(libc::P_PID, pid, libc::WSTOPPED)?;
        // Those that are in the middle of something come to their stop.
        let mut last = values();
        loop {
            thread::sleep(Duration::from_millis(100));
            let before = std::mem::replace(&mut last, values());
            if before == last {
                break;
            }
        }
        // SAFETY: likewise.
        checked(unsafe { libc::kill(pid, libc::SIGCONT) })?;
        waitid(libc::P_PID, pid, libc::WCONTINUED)?;
    }
    // SAFETY: likewise.
    checked(unsafe { libc::kill(pid, libc::SIGKILL) })?;
    ensure!(wait(pid)? == libc::SIGKILL, "it ended otherwise");
    Ok(())
}

fn children_nobody_waits_for() -> Result<()> {
    for (handler, flags) in [(libc::SIG_IGN, 0), (libc::SIG_DFL, libc::SA_NOCLDWAIT)] {
        in_child(|| {
            act(libc::SIGCHLD, handler, flags)?;
            let pid = fork(|| 0)?;
            // Waits for the last, and finds none.
            refused(
                wait(pid),
                libc::ECHILD,
                "waiting for a child that goes by itself",
            )
        })?;
    }
    Ok(())
}

/// A parent that is told by `wait(2)` that a child has ended has been sent `SIGCHLD`: two views of
/// one event, which one that asks all the time must not see apart.
fn the_signal_of_an_end() -> Result<()> {
    const ROUNDS: usize = 300;
    // SAFETY: a set on the stack, which is blocked in this thread.
    let chld = unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        checked(libc::pthread_sigmask(
            libc::SIG_BLOCK,
            &set,
            ptr::null_mut(),
        ))?;
        set
    };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    for _ in 0..ROUNDS {
        let pid = fork(|| 3)?;
        let mut status = 0;
        // SAFETY: the word is valid.
        while checked(unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) })? == 0 {
            // Where there is one processor only, the child needs it.
            thread::yield_now();
        }
        ensure!(status == 3 << 8, "status {status:#x} of an end");
        // SAFETY: a set, no information, a time.
        let signal = unsafe { libc::sigtimedwait(&chld, ptr::null_mut(), &now) };
        ensure!(
            signal == libc::SIGCHLD,
            "a child was waited for, and its signal is not there"
        );
    }
    Ok(())
}

fn no_news_of_stops() -> Result<()> {
    in_child(|| {
        act(
            libc::SIGCHLD,
            note_child as *const () as usize,
            libc::SA_SIGINFO | libc::SA_NOCLDSTOP | libc::SA_RESTART,
        )?;
        let pid = fork(|| {
            loop {
                // SAFETY: the call takes nothing.
                unsafe { libc::pause() };
            }
        })?;
        // SAFETY: a child's number.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        waitid(libc::P_PID, pid, libc::WSTOPPED)?;
        // SAFETY: likewise.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        wait(pid)?;
        let first = TOLD[0].load(Ordering::SeqCst);
        ensure!(
            first == libc::CLD_KILLED,
            "the last that was told is {first}"
        );
        Ok(())
    })
}

fn death_of_a_parent() -> Result<()> {
    in_child(|| {
        // SAFETY: numbers.
        checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })?;
        let mut pipe = [0; 2];
        // SAFETY: room for two.
        checked(unsafe { libc::pipe(pipe.as_mut_ptr()) })?;
        let middle = fork(|| {
            let grandchild = fork(|| {
                // SAFETY: numbers, and one byte.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1);
                    libc::write(pipe[1], [1u8].as_ptr().cast(), 1);
                    loop {
                        libc::pause();
                    }
                }
            });
            // SAFETY: one byte.
            unsafe { libc::read(pipe[0], [0u8].as_mut_ptr().cast(), 1) };
            i32::from(grandchild.is_err())
        })?;
        ensure!(wait(middle)? == 0, "no grandchild");
        ensure!(wait(-1)? == libc::SIGUSR1, "the grandchild ended otherwise");
        Ok(())
    })
}

fn groups_and_sessions() -> Result<()> {
    in_child(|| {
        // SAFETY: numbers only.
        unsafe {
            let own = checked(libc::setsid())?;
            ensure!(
                own == libc::getpid() && libc::getsid(0) == own && libc::getpgrp() == own,
                "no session of its own"
            );
            refused(checked(libc::setsid()), libc::EPERM, "a second session")?;
            refused(
                checked(libc::setpgid(0, 0)),
                libc::EPERM,
                "a leader's new group",
            )?;
            let pid = fork(|| {
                loop {
                    libc::pause();
                }
            })?;
            checked(libc::setpgid(pid, 0))?;
            ensure!(libc::getpgid(pid) == pid, "it has no group of its own");
            refused(
                checked(libc::setpgid(pid, 1)),
                libc::EPERM,
                "a group of another session",
            )?;
            checked(libc::kill(-pid, libc::SIGTERM))?;
            ensure!(
                wait(0).is_err() && wait(-pid)? == libc::SIGTERM,
                "waiting by group"
            );
            refused(
                checked(libc::kill(-pid, 0)),
                libc::ESRCH,
                "a signal to nobody",
            )
        }
    })
}

fn exec_from_a_thread() -> Result<()> {
    let pid = fork(|| {
        // SAFETY: the number of this process.
        let own = unsafe { libc::getpid() }.to_string();
        let waits = thread::spawn(|| {
            loop {
                thread::park();
            }
        });
        let runs = thread::spawn(move || {
            let arguments = ["/proc/self/exe", "child", "number", &own]
                .map(|text| CString::new(text).expect("no NUL"));
            let mut pointers: Vec<_> = arguments.iter().map(|text| text.as_ptr()).collect();
            pointers.push(ptr::null());
            // SAFETY: a list of strings that ends.
            unsafe { libc::execv(pointers[0], pointers.as_ptr()) }
        });
        let _ = (runs.join(), waits.join());
        1
    })?;
    let status = wait(pid)?;
    ensure!(status == 5 << 8, "the new program ended with {status:#x}");
    Ok(())
}

fn exec_of_a_descriptor() -> Result<()> {
    // SAFETY: a name and flags.
    let memory = checked(unsafe { libc::memfd_create(c"program".as_ptr(), 0) })?;
    let image = fs::read("/proc/self/exe")?;
    let mut done = 0;
    while done < image.len() {
        // SAFETY: what is left of the image.
        let written =
            unsafe { libc::write(memory, image[done..].as_ptr().cast(), image.len() - done) };
        done += checked(written as i32)? as usize;
    }
    let directory = fs::File::open("/proc/self")?;
    let run = |dirfd: i32, name: &std::ffi::CStr, flags: i32| {
        let status = fork(|| {
            let arguments = [c"program", c"child", c"exit", c"6"].map(std::ffi::CStr::as_ptr);
            let arguments = [
                arguments[0],
                arguments[1],
                arguments[2],
                arguments[3],
                ptr::null(),
            ];
            let environment = [ptr::null::<libc::c_char>()];
            // SAFETY: lists of strings that end.
            unsafe {
                libc::syscall(
                    libc::SYS_execveat,
                    dirfd,
                    name.as_ptr(),
                    &arguments,
                    &environment,
                    flags,
                )
            };
            io::Error::last_os_error().raw_os_error().unwrap_or(255)
        });
        status.and_then(|pid| wait(pid).map_err(Into::into))
    };
    let status = run(memory, c"", libc::AT_EMPTY_PATH)?;
    ensure!(
        status == 6 << 8,
        "a program in memory ended with {status:#x}"
    );
    let status = run(directory.as_raw_fd(), c"exe", 0)?;
    ensure!(
        status == 6 << 8,
        "a program below a directory ended with {status:#x}"
    );
    let status = run(memory, c"", 0)?;
    ensure!(
        status == libc::ENOENT << 8,
        "without a name the error is {status:#x}"
    );
    let status = run(directory.as_raw_fd(), c"exe", libc::AT_SYMLINK_NOFOLLOW)?;
    ensure!(status == libc::ELOOP << 8, "a symbolic link is {status:#x}");
    // SAFETY: its own descriptor.
    unsafe { libc::close(memory) };
    Ok(())
}

fn spawn() -> Result<()> {
    let arguments = [c"/proc/self/exe", c"child", c"exit", c"0"]
        .map(std::ffi::CStr::as_ptr)
        .map(<*const _>::cast_mut);
    let arguments = [
        arguments[0],
        arguments[1],
        arguments[2],
        arguments[3],
        ptr::null_mut(),
    ];
    let environment = [ptr::null_mut()];
    // SAFETY: attributes that are made first, lists that end, valid words.
    unsafe {
        let mut attributes: libc::posix_spawnattr_t = mem::zeroed();
        libc::posix_spawnattr_init(&mut attributes);
        let flags = libc::POSIX_SPAWN_SETPGROUP
            | libc::POSIX_SPAWN_SETSIGDEF
            | libc::POSIX_SPAWN_SETSIGMASK;
        libc::posix_spawnattr_setflags(&mut attributes, flags as i16);
        let mut pid = 0;
        let error = libc::posix_spawn(
            &mut pid,
            arguments[0],
            ptr::null(),
            &attributes,
            arguments.as_ptr(),
            environment.as_ptr(),
        );
        ensure!(error == 0, "posix_spawn: error {error}");
        ensure!(libc::getpgid(pid) == pid, "it has no group of its own");
        ensure!(wait(pid)? == 0, "it ended otherwise");
        let error = libc::posix_spawn(
            &mut pid,
            c"/no/such/program".as_ptr(),
            ptr::null(),
            &attributes,
            arguments.as_ptr(),
            environment.as_ptr(),
        );
        ensure!(
            error == libc::ENOENT,
            "a program that is not there: error {error}"
        );
        libc::posix_spawnattr_destroy(&mut attributes);
    }
    refused(wait(-1), libc::ECHILD, "waiting for what was never made")
}

fn queue_in_order() -> Result<()> {
    in_child(|| {
        // SAFETY: sets that are made first, and numbers.
        unsafe {
            let (low, high) = (libc::SIGRTMIN() + 1, libc::SIGRTMIN() + 2);
            let mut set: libc::sigset_t = mem::zeroed();
            for signal in [low, high, libc::SIGUSR1] {
                libc::sigaddset(&mut set, signal);
            }
            checked(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()))?;
            for (signal, value) in [
                (high, 1),
                (low, 2),
                (low, 3),
                (libc::SIGUSR1, 4),
                (libc::SIGUSR1, 5),
                (high, 6),
                (low, 7),
            ] {
                let value = libc::sigval {
                    sival_ptr: value as *mut libc::c_void,
                };
                checked(libc::sigqueue(libc::getpid(), signal, value))?;
            }
            let mut came = Vec::new();
            let now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            loop {
                let mut info: libc::siginfo_t = mem::zeroed();
                let signal = libc::sigtimedwait(&set, &mut info, &now);
                if signal < 0 {
                    break;
                }
                ensure!(
                    info.si_code == libc::SI_QUEUE && info.si_pid() == libc::getpid(),
                    "from nobody: {}",
                    info.si_code
                );
                came.push((signal, info.si_value().sival_ptr as usize));
            }
            let wanted = [
                (libc::SIGUSR1, 4),
                (low, 2),
                (low, 3),
                (low, 7),
                (high, 1),
                (high, 6),
            ];
            ensure!(came == wanted, "{came:?}");
        }
        Ok(())
    })
}

static DEPTH: AtomicU32 = AtomicU32::new(0);
static DEEPEST: AtomicU32 = AtomicU32::new(0);

extern "C" fn raise_again(signal: i32) {
    let depth = DEPTH.fetch_add(1, Ordering::SeqCst) + 1;
    DEEPEST.fetch_max(depth, Ordering::SeqCst);
    if depth < 3 {
        // SAFETY: raising is allowed in handlers.
        unsafe { libc::raise(signal) };
    }
    DEPTH.fetch_sub(1, Ordering::SeqCst);
}

fn flags_of_actions() -> Result<()> {
    in_child(|| {
        // SAFETY: the handlers only count and raise.
        let raise = |signal: i32| unsafe { libc::raise(signal) };
        act(
            libc::SIGUSR1,
            raise_again as *const () as usize,
            libc::SA_NODEFER,
        )?;
        raise(libc::SIGUSR1);
        ensure!(
            DEEPEST.swap(0, Ordering::SeqCst) == 3,
            "a handler is not interrupted by its own signal"
        );
        act(
            libc::SIGUSR1,
            raise_again as *const () as usize,
            libc::SA_RESETHAND | libc::SA_NODEFER,
        )?;
        let status = fork(|| {
            raise(libc::SIGUSR1);
            0
        })?;
        ensure!(
            wait(status)? == libc::SIGUSR1,
            "an action for once came twice"
        );
        // Blocked while it runs, a signal comes when it is over, not within.
        act(libc::SIGUSR2, raise_once_more as *const () as usize, 0)?;
        raise(libc::SIGUSR2);
        ensure!(
            DEEPEST.load(Ordering::SeqCst) == 1,
            "it was interrupted: {DEEPEST:?}"
        );
        Ok(())
    })
}

extern "C" fn raise_once_more(signal: i32) {
    static LEFT: AtomicU32 = AtomicU32::new(1);
    let depth = DEPTH.fetch_add(1, Ordering::SeqCst) + 1;
    DEEPEST.fetch_max(depth, Ordering::SeqCst);
    if LEFT.swap(0, Ordering::SeqCst) != 0 {
        // SAFETY: raising is allowed in handlers.
        unsafe { libc::raise(signal) };
    }
    DEPTH.fetch_sub(1, Ordering::SeqCst);
}

/// In a group that nobody outside could continue to begin with, nothing changes when a member ends
/// while another one is stopped.
fn groups_that_are_orphans_anyway() -> Result<()> {
    let leader = fork(|| {
        // SAFETY: calls that are safe after a fork; a hang-up would end the process.
        unsafe {
            libc::setsid();
            let stopped = libc::fork();
            if stopped == 0 {
                libc::raise(libc::SIGSTOP);
                libc::_exit(7);
            }
            let mut status = 0;
            let stops = libc::waitpid(stopped, &raw mut status, libc::WUNTRACED) == stopped
                && libc::WIFSTOPPED(status);
            let ending = libc::fork();
            if ending == 0 {
                libc::_exit(0);
            }
            let ended = libc::waitpid(ending, &raw mut status, 0) == ending && status == 0;
            let goes_on = libc::waitpid(stopped, &raw mut status, libc::WCONTINUED | libc::WNOHANG)
                == stopped;
            libc::kill(stopped, libc::SIGCONT);
            let last = libc::waitpid(stopped, &raw mut status, 0) == stopped
                && libc::WEXITSTATUS(status) == 7;
            i32::from(!stops)
                | i32::from(!ended) << 1
                | i32::from(goes_on) << 2
                | i32::from(!last) << 3
        }
    })?;
    let status = wait(leader)?;
    ensure!(
        status == 0,
        "the group was told that it is an orphan: status {status:#x}"
    );
    Ok(())
}
