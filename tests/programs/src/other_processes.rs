//! Every call that names another process: what an ordinary user may do to another user's process,
//! to one of its own, and to one that is not there.

use std::ffi::CString;
use std::ptr;

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, is, pipe};
use crate::credentials::{OTHER, become_user, in_child};

pub const CHECKS: &[(&str, Check)] = &[
    ("other-processes-calls-are-refused", calls_are_refused),
    (
        "other-processes-own-calls-are-allowed",
        own_calls_are_allowed,
    ),
    (
        "other-processes-missing-are-not-found",
        missing_are_not_found,
    ),
    ("other-processes-threads-are-refused", threads_are_refused),
    ("other-processes-files-are-refused", files_are_refused),
    (
        "other-processes-nobody-is-his-own-other",
        nobody_is_his_own_other,
    ),
    ("other-processes-negative-numbers", negative_numbers),
    (
        "other-processes-what-nobody-has-is-shared",
        what_nobody_has_is_shared,
    ),
];

const USER: u32 = 1000;

/// A child that runs as a user, with two threads, until it is ended.
struct Victim {
    pid: i32,
    /// Number of the second thread.
    tid: i32,
    _keeps: Fd,
}

impl Victim {
    fn start(uid: u32) -> Result<Self> {
        let [told, tells] = pipe(libc::O_CLOEXEC)?;
        let [waits, keeps] = pipe(libc::O_CLOEXEC)?;
        // SAFETY: this program has one thread when it forks.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let end = waits.0;
            drop((told, keeps));
            let run = || -> Result<()> {
                become_user(uid)?;
                is(
                    call!(SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0),
                    0,
                    "PR_SET_DUMPABLE",
                )?;
                let second = std::thread::spawn(move || {
                    let tid = call!(SYS_gettid) as i32;
                    call!(SYS_write, tells.0, &raw const tid, 4);
                    let mut byte = 0u8;
                    call!(SYS_read, end, &raw mut byte, 1);
                });
                second
                    .join()
                    .map_err(|_| anyhow::anyhow!("the thread panicked"))
            };
            let status = i32::from(run().is_err());
            // SAFETY: the child ends here.
            unsafe { libc::_exit(status) };
        }
        drop((tells, waits));
        let mut tid = 0i32;
        is(
            call!(SYS_read, told.0, &raw mut tid, 4),
            4,
            "what the child says",
        )?;
        Ok(Self {
            pid,
            tid,
            _keeps: keeps,
        })
    }

    /// Processors, nice value, scheduling policy and first limit of the process, which nobody is to
    /// have changed.
    fn state(&self) -> [i64; 5] {
        let mut mask = [0u64; 16];
        call!(
            SYS_sched_getaffinity,
            self.pid,
            size_of_val(&mask),
            mask.as_mut_ptr()
        );
        let mut limit = [0u64; 2];
        call!(
            SYS_prlimit64,
            self.pid,
            libc::RLIMIT_CORE,
            0,
            limit.as_mut_ptr()
        );
        let nice = call!(SYS_getpriority, libc::PRIO_PROCESS, self.pid);
        [
            mask[0] as i64,
            nice,
            call!(SYS_sched_getscheduler, self.pid),
            limit[0] as i64,
            call!(SYS_ioprio_get, 1, self.pid),
        ]
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        call!(SYS_kill, self.pid, libc::SIGKILL);
        call!(SYS_wait4, self.pid, 0, 0, 0);
    }
}

/// A call that names a process.
struct Named {
    name: &'static str,
    call: fn(i32) -> i64,
    /// The error about another user's process, or 0.
    foreign: i32,
    /// Result of the call about a process that there is not.
    missing: i32,
    /// Whether a number of a thread that is not its process's first will do, too.
    threads: bool,
}

const fn named(name: &'static str, call: fn(i32) -> i64, foreign: i32, missing: i32) -> Named {
    Named {
        name,
        call,
        foreign,
        missing,
        threads: false,
    }
}

/// The same, and it takes threads' numbers.
const fn thread(name: &'static str, call: fn(i32) -> i64, foreign: i32) -> Named {
    Named {
        name,
        call,
        foreign,
        missing: libc::ESRCH,
        threads: true,
    }
}

fn queued(signal: i32) -> libc::siginfo_t {
    // SAFETY: all zeroes is a siginfo.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    (info.si_signo, info.si_code) = (signal, libc::SI_QUEUE);
    info
}

/// Something done with a descriptor of a process.
fn by_descriptor(pid: i32, what: impl Fn(i32) -> i64) -> i64 {
    let fd = call!(SYS_pidfd_open, pid, 0);
    if fd < 0 {
        return fd;
    }
    what(Fd(fd as i32).0)
}

fn transfer(number: i64, pid: i32) -> i64 {
    let mut word = 0u64;
    // Its stack is where this one's is: the child is a copy.
    let mine = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 8,
    };
    let theirs = libc::iovec {
        iov_base: ptr::from_ref(&WORD).cast_mut().cast(),
        iov_len: 8,
    };
    crate::calls::make(
        number,
        &[
            pid as usize,
            &raw const mine as usize,
            1,
            &raw const theirs as usize,
            1,
            0,
        ],
    )
    .min(0)
}

static WORD: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);

/// `struct sched_attr` of an ordinary thread.
static ORDINARY: [u64; 7] = [48, 0, 0, 0, 0, 0, 0];
static ALL: [u64; 2] = [1, 0];
static PRIORITY: i32 = 0;

const EPERM: i32 = libc::EPERM;
const ESRCH: i32 = libc::ESRCH;
/// `IOPRIO_WHO_PROCESS`.
const PROCESS: i32 = 1;
/// Best effort, 7.
const IDLE: i32 = 2 << 13 | 7;

const CALLS: &[Named] = &[
    thread("kill with nothing", |pid| call!(SYS_kill, pid, 0), EPERM),
    thread("kill", |pid| call!(SYS_kill, pid, libc::SIGURG), EPERM),
    thread(
        "kill with SIGCONT",
        |pid| call!(SYS_kill, pid, libc::SIGCONT),
        0,
    ),
    thread("tkill", |pid| call!(SYS_tkill, pid, libc::SIGURG), EPERM),
    named(
        "tgkill",
        |pid| call!(SYS_tgkill, pid, pid, libc::SIGURG),
        EPERM,
        ESRCH,
    ),
    thread(
        "rt_sigqueueinfo",
        |pid| {
            call!(
                SYS_rt_sigqueueinfo,
                pid,
                libc::SIGURG,
                &raw const *Box::new(queued(libc::SIGURG))
            )
        },
        EPERM,
    ),
    named(
        "rt_tgsigqueueinfo",
        |pid| {
            call!(
                SYS_rt_tgsigqueueinfo,
                pid,
                pid,
                libc::SIGURG,
                &raw const *Box::new(queued(libc::SIGURG))
            )
        },
        EPERM,
        ESRCH,
    ),
    named("pidfd_open", |pid| by_descriptor(pid, |_| 0), 0, ESRCH),
    named(
        "pidfd_send_signal",
        |pid| {
            by_descriptor(pid, |fd| {
                call!(SYS_pidfd_send_signal, fd, libc::SIGURG, 0, 0)
            })
        },
        EPERM,
        ESRCH,
    ),
    named(
        "pidfd_getfd",
        |pid| by_descriptor(pid, |fd| call!(SYS_pidfd_getfd, fd, 0, 0).min(0)),
        EPERM,
        ESRCH,
    ),
    thread(
        "sched_setaffinity",
        |pid| call!(SYS_sched_setaffinity, pid, 16, ALL.as_ptr()),
        EPERM,
    ),
    thread(
        "sched_getaffinity",
        |pid| call!(SYS_sched_getaffinity, pid, 128, [0u64; 16].as_mut_ptr()).min(0),
        0,
    ),
    thread(
        "sched_setscheduler",
        |pid| {
            call!(
                SYS_sched_setscheduler,
                pid,
                libc::SCHED_OTHER,
                &raw const PRIORITY
            )
        },
        EPERM,
    ),
    thread(
        "sched_getscheduler",
        |pid| call!(SYS_sched_getscheduler, pid),
        0,
    ),
    thread(
        "sched_setparam",
        |pid| call!(SYS_sched_setparam, pid, &raw const PRIORITY),
        EPERM,
    ),
    thread(
        "sched_getparam",
        |pid| call!(SYS_sched_getparam, pid, [0i32; 1].as_mut_ptr()),
        0,
    ),
    thread(
        "sched_setattr",
        |pid| call!(SYS_sched_setattr, pid, ORDINARY.as_ptr(), 0),
        EPERM,
    ),
    thread(
        "sched_getattr",
        |pid| call!(SYS_sched_getattr, pid, [0u64; 7].as_mut_ptr(), 56, 0),
        0,
    ),
    thread(
        "sched_rr_get_interval",
        |pid| call!(SYS_sched_rr_get_interval, pid, [0i64; 2].as_mut_ptr()),
        0,
    ),
    thread(
        "setpriority",
        |pid| call!(SYS_setpriority, libc::PRIO_PROCESS, pid, 5),
        EPERM,
    ),
    thread(
        "getpriority",
        |pid| call!(SYS_getpriority, libc::PRIO_PROCESS, pid).min(0),
        0,
    ),
    thread(
        "ioprio_set",
        |pid| call!(SYS_ioprio_set, PROCESS, pid, IDLE),
        EPERM,
    ),
    thread(
        "ioprio_get",
        |pid| call!(SYS_ioprio_get, PROCESS, pid).min(0),
        0,
    ),
    thread(
        "prlimit64",
        |pid| {
            call!(
                SYS_prlimit64,
                pid,
                libc::RLIMIT_CORE,
                0,
                [0u64; 2].as_mut_ptr()
            )
        },
        EPERM,
    ),
    thread(
        "prlimit64 that sets",
        |pid| call!(SYS_prlimit64, pid, libc::RLIMIT_CORE, [0u64; 2].as_ptr(), 0),
        EPERM,
    ),
    thread(
        "PTRACE_ATTACH",
        |pid| call!(SYS_ptrace, libc::PTRACE_ATTACH, pid, 0, 0),
        EPERM,
    ),
    thread(
        "PTRACE_SEIZE",
        |pid| call!(SYS_ptrace, libc::PTRACE_SEIZE, pid, 0, 0),
        EPERM,
    ),
    thread(
        "process_vm_readv",
        |pid| transfer(libc::SYS_process_vm_readv, pid),
        EPERM,
    ),
    thread(
        "process_vm_writev",
        |pid| transfer(libc::SYS_process_vm_writev, pid),
        EPERM,
    ),
    thread(
        "migrate_pages",
        |pid| call!(SYS_migrate_pages, pid, 64, ALL.as_ptr(), ALL.as_ptr()),
        EPERM,
    ),
    thread(
        "move_pages",
        |pid| call!(SYS_move_pages, pid, 0, 0, 0, 0, 0),
        EPERM,
    ),
    thread(
        "kcmp",
        |pid| call!(SYS_kcmp, std::process::id(), pid, 1, 0, 0).min(0),
        EPERM,
    ),
    thread(
        "get_robust_list",
        |pid| {
            call!(
                SYS_get_robust_list,
                pid,
                [0u64; 1].as_mut_ptr(),
                [0u64; 1].as_mut_ptr()
            )
        },
        EPERM,
    ),
    named("getpgid", |pid| call!(SYS_getpgid, pid).min(0), 0, ESRCH),
    named("getsid", |pid| call!(SYS_getsid, pid).min(0), 0, ESRCH),
    named("capget", capget, 0, ESRCH),
];

/// Calls that nobody may make about a process that is no child, whoever runs it.
const STRANGERS: &[Named] = &[
    named("setpgid", |pid| call!(SYS_setpgid, pid, 0), ESRCH, ESRCH),
    named(
        "wait4",
        |pid| call!(SYS_wait4, pid, 0, libc::WNOHANG, 0),
        libc::ECHILD,
        libc::ECHILD,
    ),
    named(
        "PTRACE_CONT",
        |pid| call!(SYS_ptrace, libc::PTRACE_CONT, pid, 0, 0),
        ESRCH,
        ESRCH,
    ),
    named(
        "PTRACE_DETACH",
        |pid| call!(SYS_ptrace, libc::PTRACE_DETACH, pid, 0, 0),
        ESRCH,
        ESRCH,
    ),
    named("capset", capset, EPERM, EPERM),
];

/// Advice on another's memory, which needs two rights, asked for one after the other.
const MADVISE: Named = named(
    "process_madvise",
    |pid| by_descriptor(pid, process_madvise),
    libc::EACCES,
    ESRCH,
);

fn process_madvise(fd: i32) -> i64 {
    let page = ptr::from_ref(&WORD).addr() & !4095;
    let range = [page, 4096];
    call!(
        SYS_process_madvise,
        fd,
        range.as_ptr(),
        1,
        libc::MADV_WILLNEED,
        0
    )
    .min(0)
}

fn capget(pid: i32) -> i64 {
    call!(
        SYS_capget,
        [0x2008_0522, pid as u32].as_mut_ptr(),
        [0u32; 6].as_mut_ptr()
    )
}

fn capset(pid: i32) -> i64 {
    call!(
        SYS_capset,
        [0x2008_0522, pid as u32].as_mut_ptr(),
        [0u32; 6].as_ptr()
    )
}

/// Checks that each call of a table comes out as expected.
fn all<'a>(
    calls: impl IntoIterator<Item = &'a Named>,
    pid: i32,
    expected: impl Fn(&Named) -> i32,
) -> Result<()> {
    calls
        .into_iter()
        .try_for_each(|named| is((named.call)(pid), -i64::from(expected(named)), named.name))
}

fn calls_are_refused() -> Result<()> {
    for uid in [USER, 0] {
        let victim = Victim::start(uid)?;
        let before = victim.state();
        in_child(|| {
            become_user(OTHER)?;
            all(CALLS, victim.pid, |named| named.foreign)?;
            all([&MADVISE], victim.pid, |named| named.foreign)?;
            all(STRANGERS, victim.pid, |named| named.foreign)
        })
        .with_context(|| format!("a process of user {uid}"))?;
        ensure!(
            victim.state() == before,
            "it was {before:?} and is {:?}",
            victim.state()
        );
    }
    Ok(())
}

fn own_calls_are_allowed() -> Result<()> {
    for (uid, madvise) in [(USER, EPERM), (0, 0)] {
        let become_caller = || if uid == 0 { Ok(()) } else { become_user(uid) };
        // One at a time, as a process that is traced is stopped.
        for named in CALLS {
            let victim = Victim::start(USER)?;
            in_child(|| {
                become_caller()?;
                all([named], victim.pid, |_| 0)
            })
            .with_context(|| format!("by user {uid}"))?;
        }
        let victim = Victim::start(USER)?;
        in_child(|| {
            become_caller()?;
            all([&MADVISE], victim.pid, |_| madvise)?;
            all(STRANGERS, victim.pid, |named| named.foreign)
        })
        .with_context(|| format!("by user {uid}"))?;
    }
    Ok(())
}

fn missing_are_not_found() -> Result<()> {
    let pid = Victim::start(USER)?.pid;
    all(CALLS, pid, |named| named.missing)?;
    all(STRANGERS, pid, |named| named.missing)?;
    in_child(|| {
        become_user(OTHER)?;
        all(CALLS, pid, |named| named.missing)
    })
}

fn threads_are_refused() -> Result<()> {
    let victim = Victim::start(USER)?;
    in_child(|| {
        become_user(OTHER)?;
        all(
            CALLS.iter().filter(|named| named.threads),
            victim.tid,
            |named| named.foreign,
        )
    })?;
    let wrong = call!(SYS_tgkill, std::process::id(), victim.tid, 0);
    is(
        wrong,
        -i64::from(ESRCH),
        "tgkill of another process's thread",
    )?;
    is(
        call!(SYS_pidfd_open, victim.tid, 0),
        -i64::from(libc::EINVAL),
        "pidfd_open of a thread that is not the first",
    )
}

/// A file below `/proc/PID`, how it is opened, and the error: 0 if it may be.
const FILES: &[(&str, i32, i32)] = &[
    ("status", libc::O_RDONLY, 0),
    ("stat", libc::O_RDONLY, 0),
    ("cmdline", libc::O_RDONLY, 0),
    ("comm", libc::O_RDONLY, 0),
    ("limits", libc::O_RDONLY, 0),
    ("task", libc::O_RDONLY, 0),
    ("mounts", libc::O_RDONLY, 0),
    ("comm", libc::O_WRONLY, libc::EACCES),
    ("oom_score_adj", libc::O_WRONLY, libc::EACCES),
    ("mem", libc::O_RDONLY, libc::EACCES),
    ("mem", libc::O_RDWR, libc::EACCES),
    ("environ", libc::O_RDONLY, libc::EACCES),
    ("auxv", libc::O_RDONLY, libc::EACCES),
    ("maps", libc::O_RDONLY, libc::EACCES),
    ("smaps", libc::O_RDONLY, libc::EACCES),
    ("io", libc::O_RDONLY, libc::EACCES),
    ("personality", libc::O_RDONLY, libc::EACCES),
    ("fd", libc::O_RDONLY, libc::EACCES),
    ("exe", libc::O_RDONLY, libc::EACCES),
    ("cwd", libc::O_RDONLY, libc::EACCES),
    ("root", libc::O_RDONLY, libc::EACCES),
    ("ns/mnt", libc::O_RDONLY, libc::EACCES),
];

fn files_are_refused() -> Result<()> {
    let victim = Victim::start(USER)?;
    let open = |file: &str, flags: i32| -> Result<i64> {
        let name = CString::new(format!("/proc/{}/{file}", victim.pid))?;
        let fd = call!(SYS_open, name.as_ptr(), flags, 0);
        if fd >= 0 {
            drop(Fd(fd as i32));
        }
        Ok(fd.min(0))
    };
    for &(file, flags, errno) in FILES {
        in_child(|| {
            become_user(OTHER)?;
            is(
                open(file, flags)?,
                -i64::from(errno),
                &format!("{file} ({flags})"),
            )
        })?;
        in_child(|| {
            become_user(USER)?;
            is(
                open(file, flags)?,
                0,
                &format!("{file} of the user's own ({flags})"),
            )
        })?;
    }
    in_child(|| {
        become_user(OTHER)?;
        for file in ["exe", "cwd", "root", "ns/mnt", "fd/0"] {
            let name = CString::new(format!("/proc/{}/{file}", victim.pid))?;
            let read = call!(SYS_readlink, name.as_ptr(), [0u8; 64].as_mut_ptr(), 64);
            is(
                read,
                -i64::from(libc::EACCES),
                &format!("readlink of {file}"),
            )?;
        }
        Ok(())
    })
}

/// A process that others of the same user may not look into may look into itself. Advice on memory
/// takes a right whoever's it is.
fn nobody_is_his_own_other() -> Result<()> {
    in_child(|| {
        become_user(USER)?;
        is(
            call!(SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0),
            0,
            "PR_SET_DUMPABLE",
        )?;
        let own = std::process::id();
        Fd::new(
            call!(SYS_open, c"/proc/self/ns/uts".as_ptr(), libc::O_RDONLY, 0),
            "a namespace of its own",
        )?;
        let list = call!(
            SYS_get_robust_list,
            own,
            [0u64; 1].as_mut_ptr(),
            [0u64; 1].as_mut_ptr()
        );
        is(list, 0, "get_robust_list of itself")?;
        let itself = Fd::new(call!(SYS_pidfd_open, own, 0), "pidfd_open of itself")?;
        is(
            process_madvise(itself.0),
            -i64::from(EPERM),
            "process_madvise of itself",
        )?;
        // Nor are the threads of a process others to each other.
        let by_thread = std::thread::spawn(move || {
            for id in [own, call!(SYS_gettid) as u32] {
                is(
                    call!(SYS_migrate_pages, id, 64, ALL.as_ptr(), ALL.as_ptr()),
                    0,
                    "migrate_pages of a thread of its own",
                )?;
                is(
                    call!(SYS_move_pages, id, 0, 0, 0, 0, 0),
                    0,
                    "move_pages of a thread of its own",
                )?;
            }
            Ok(())
        });
        by_thread
            .join()
            .map_err(|_| anyhow::anyhow!("the thread panicked"))?
    })
}

fn negative_numbers() -> Result<()> {
    let mut mask = [0u64; 16];
    is(
        call!(SYS_sched_getaffinity, -1i32, 128, mask.as_mut_ptr()),
        -i64::from(ESRCH),
        "sched_getaffinity",
    )?;
    is(
        call!(SYS_sched_setaffinity, -1i32, 128, mask.as_mut_ptr()),
        -i64::from(ESRCH),
        "sched_setaffinity",
    )?;
    is(
        call!(SYS_sched_getscheduler, -1i32),
        -i64::from(libc::EINVAL),
        "sched_getscheduler",
    )?;
    is(
        call!(SYS_sched_getparam, -1i32, mask.as_mut_ptr()),
        -i64::from(libc::EINVAL),
        "sched_getparam",
    )?;
    is(
        call!(SYS_sched_rr_get_interval, -1i32, mask.as_mut_ptr()),
        -i64::from(libc::EINVAL),
        "sched_rr_get_interval",
    )?;
    is(call!(SYS_getpgid, -1i32), -i64::from(ESRCH), "getpgid")?;
    is(call!(SYS_getsid, -1i32), -i64::from(ESRCH), "getsid")?;
    is(
        call!(SYS_tkill, -1i32, 0),
        -i64::from(libc::EINVAL),
        "tkill",
    )?;
    is(
        call!(SYS_tgkill, -1i32, 1, 0),
        -i64::from(libc::EINVAL),
        "tgkill",
    )?;
    is(
        call!(SYS_tkill, 0, 0),
        -i64::from(libc::EINVAL),
        "tkill of 0",
    )?;
    // The first process has a number like any other.
    is(call!(SYS_tkill, 1, 0), 0, "tkill of 1")?;
    is(call!(SYS_tgkill, 1, 1, 0), 0, "tgkill of 1")?;
    is(
        call!(SYS_pidfd_open, -1i32, 0),
        -i64::from(libc::EINVAL),
        "pidfd_open",
    )?;
    is(
        call!(SYS_prlimit64, -1i32, 0, 0, 0),
        -i64::from(ESRCH),
        "prlimit64",
    )?;
    is(call!(SYS_kill, i32::MIN, 0), -i64::from(ESRCH), "kill")
}

/// `kcmp(2)` of what neither process has says that it is the same.
fn what_nobody_has_is_shared() -> Result<()> {
    const IO: usize = 5;
    const SYSVSEM: usize = 6;
    let (one, other) = (Victim::start(USER)?, Victim::start(USER)?);
    let same = call!(SYS_kcmp, one.pid, other.pid, IO, 0, 0);
    is(same, 0, "contexts of input and output")?;
    // Threads of a process have a list of what is to be undone together.
    let lists = call!(SYS_kcmp, one.pid, other.pid, SYSVSEM, 0, 0);
    ensure!(
        matches!(lists, 1 | 2),
        "lists of processes with threads: {lists}"
    );
    in_child(|| {
        // SAFETY: this process has one thread; the child waits to be killed.
        let child = crate::checked(unsafe { libc::fork() })?;
        if child == 0 {
            loop {
                call!(SYS_pause);
            }
        }
        let same = call!(SYS_kcmp, std::process::id(), child, SYSVSEM, 0, 0);
        call!(SYS_kill, child, libc::SIGKILL);
        call!(SYS_wait4, child, 0, 0, 0);
        is(same, 0, "lists of processes without threads")
    })?;
    // What they have is different: in an order that is the same from the other side.
    let files = [(one.pid, other.pid), (other.pid, one.pid)]
        .map(|(one, other)| call!(SYS_kcmp, one, other, 2, 0, 0));
    ensure!(files == [1, 2] || files == [2, 1], "descriptors: {files:?}");
    is(call!(SYS_kcmp, one.pid, one.tid, 2, 0, 0), 0, "of threads")
}
