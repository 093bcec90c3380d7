//! Processes, threads, memory, timers, objects of System V.

use super::*;

pub const PROCESSES: &[Deed] = &[
    ("fork and exit", || wait(child(|| {})?).map(drop)),
    ("fork and kill", || kill_waiting(child(pause)?)),
    ("a child's child that nobody waits for", || {
        wait(child(|| {
            let _ = child(|| {});
        })?)?;
        Ok(())
    }),
    ("a session with a child that is killed", || {
        let pid = child(|| {
            call!(SYS_setsid);
            let _ = child(pause);
            pause();
        })?;
        let kids = format!("/proc/{pid}/task/{pid}/children");
        let begin = Instant::now();
        let grandchild: i32 = loop {
            if let Ok(pid) = std::fs::read_to_string(&kids)?.trim().parse() {
                break pid;
            }
            ensure!(begin.elapsed() < PATIENCE, "no child");
        };
        is(call!(SYS_kill, grandchild, libc::SIGKILL), 0, "kill")?;
        kill_waiting(pid)
    }),
    ("exec", || {
        let pid = child(|| exec(c"/proc/self/exe"))?;
        ensure!(wait(pid)? != 0, "it had no arguments");
        Ok(())
    }),
    ("exec that fails", || {
        let file = Fd::new(
            call!(SYS_memfd_create, c"no program".as_ptr(), 0),
            "memfd_create",
        )?;
        is(
            call!(SYS_write, file.0, c"\x7fELF\x02\x01\x01".as_ptr(), 7),
            7,
            "write",
        )?;
        fails(
            call!(
                SYS_execveat,
                file.0,
                c"".as_ptr(),
                0,
                0,
                libc::AT_EMPTY_PATH
            ),
            libc::ENOEXEC,
            "no program",
        )?;
        let arguments = [c"a".as_ptr().addr(), NOWHERE, 0];
        fails(
            call!(
                SYS_execve,
                c"/proc/self/exe".as_ptr(),
                arguments.as_ptr(),
                0
            ),
            libc::EFAULT,
            "bad arguments",
        )
    }),
    ("clone that fails", || {
        for flags in [
            libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID,
            libc::CLONE_SIGHAND,
            libc::CLONE_THREAD,
        ] {
            let result = call!(SYS_clone, flags, 0, NOWHERE, 0, 0);
            ensure!(result < 0, "clone: {result}");
        }
        fails(
            call!(
                SYS_clone,
                libc::CLONE_PIDFD | libc::SIGCHLD,
                0,
                NOWHERE,
                0,
                0
            ),
            libc::EFAULT,
            "clone with a bad pidfd",
        )
    }),
    ("a descriptor of a process", || {
        let pid = child(pause)?;
        let fd = Fd::new(call!(SYS_pidfd_open, pid, 0), "pidfd_open")?;
        kill_waiting(pid)?;
        fails(
            call!(SYS_pidfd_send_signal, fd.0, libc::SIGTERM, 0, 0),
            libc::ESRCH,
            "pidfd_send_signal",
        )
    }),
    ("tracing a child that is killed", || {
        let pid = child(pause)?;
        is(
            call!(SYS_ptrace, libc::PTRACE_SEIZE, pid, 0, 0),
            0,
            "PTRACE_SEIZE",
        )?;
        is(call!(SYS_kill, pid, libc::SIGKILL), 0, "kill")?;
        wait(pid).map(drop)
    }),
    ("a tracer that is killed", || {
        let traced = child(pause)?;
        let tracer = child(|| {
            call!(SYS_ptrace, libc::PTRACE_SEIZE, traced, 0, 0);
            pause();
        })?;
        kill_waiting(tracer)?;
        kill_waiting(traced)
    }),
    ("filters of calls", || {
        let pid = child(|| {
            let allow = [libc::sock_filter {
                code: 6,
                jt: 0,
                jf: 0,
                k: 0x7fff_0000,
            }];
            let program = libc::sock_fprog {
                len: 1,
                filter: allow.as_ptr().cast_mut(),
            };
            call!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            call!(SYS_seccomp, 1, 0, &raw const program);
            call!(
                SYS_seccomp,
                1,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program
            );
            let _ = child(|| {});
        })?;
        wait(pid).map(drop)
    }),
    ("namespaces", || {
        let pid = child(|| {
            call!(
                SYS_unshare,
                libc::CLONE_NEWNS
                    | libc::CLONE_NEWUTS
                    | libc::CLONE_NEWIPC
                    | libc::CLONE_FS
                    | libc::CLONE_FILES
            );
            call!(
                SYS_mount,
                c"none".as_ptr(),
                c"/".as_ptr(),
                0,
                libc::MS_REC | libc::MS_PRIVATE,
                0
            );
            call!(
                SYS_mount,
                c"none".as_ptr(),
                c"/tmp".as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                0
            );
            call!(
                SYS_open,
                c"/tmp/left".as_ptr(),
                libc::O_CREAT | libc::O_RDWR,
                0o600
            );
            call!(SYS_shmget, libc::IPC_PRIVATE, 4096, 0o600 | libc::IPC_CREAT);
            call!(SYS_msgget, libc::IPC_PRIVATE, 0o600 | libc::IPC_CREAT);
        })?;
        wait(pid).map(drop)
    }),
];

fn pause() {
    call!(SYS_pause);
}

fn exec(program: &std::ffi::CStr) {
    let null = Fd::new(
        call!(SYS_open, c"/dev/null".as_ptr(), libc::O_RDWR, 0),
        "open",
    );
    if let Ok(null) = null {
        call!(SYS_dup2, null.0, 1);
        call!(SYS_dup2, null.0, 2);
    }
    let arguments = [c"nothing".as_ptr(), ptr::null()];
    call!(SYS_execve, program.as_ptr(), arguments.as_ptr(), 0);
}

pub const THREADS: &[Deed] = &[
    ("threads that end", || {
        // One that cannot be made is an error of the deed, not the end of its process.
        let threads: Vec<_> = (0..4)
            .map(|_| thread::Builder::new().spawn(thread::yield_now))
            .collect::<Result<_, _>>()?;
        threads
            .into_iter()
            .try_for_each(std::thread::JoinHandle::join)
            .map_err(|_| anyhow::anyhow!("a thread panicked"))
    }),
    ("a process that ends while its threads wait", || {
        let pid = child(waiting_threads)?;
        kill_waiting(pid)
    }),
    (
        "a thread that runs another program while others wait",
        || {
            let pid = child(|| {
                thread::spawn(|| exec(c"/proc/self/exe"));
                waiting_threads();
            })?;
            wait(pid).map(drop)
        },
    ),
    ("locks with inheritance whose owner is killed", || {
        let shared = Shared::new(4096)?;
        let word = shared.0;
        let owner = child(|| {
            call!(SYS_futex, word, libc::FUTEX_LOCK_PI, 0, 0, 0, 0);
            pause();
        })?;
        sleeps(owner)?;
        let waiter = child(|| _ = call!(SYS_futex, word, libc::FUTEX_LOCK_PI, 0, 0, 0, 0))?;
        kill_waiting(waiter)?;
        kill_waiting(owner)
    }),
    ("waits that end by time, by requeue and by death", || {
        let shared = Shared::new(4096)?;
        let word = shared.0;
        let soon = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1,
        };
        fails(
            call!(SYS_futex, word, libc::FUTEX_WAIT, 0, &raw const soon, 0, 0),
            libc::ETIMEDOUT,
            "FUTEX_WAIT",
        )?;
        let waiter = child(|| _ = call!(SYS_futex, word, libc::FUTEX_WAIT, 0, 0, 0, 0))?;
        sleeps(waiter)?;
        is(
            call!(SYS_futex, word, libc::FUTEX_CMP_REQUEUE, 0, 1, word + 64, 0),
            1,
            "FUTEX_CMP_REQUEUE",
        )?;
        kill_waiting(waiter)
    }),
];

/// Threads that wait in several ways, for ever.
fn waiting_threads() {
    let (Ok([reader, _writer]), Ok([near, _far])) = (pipe(0), pair(libc::SOCK_STREAM)) else {
        return;
    };
    let epoll = call!(SYS_epoll_create1, 0);
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    call!(
        SYS_epoll_ctl,
        epoll,
        libc::EPOLL_CTL_ADD,
        reader.0,
        &raw mut event
    );
    let (reader, near) = (reader.0, near.0);
    thread::spawn(move || {
        let mut byte = 0u8;
        call!(SYS_read, reader, &raw mut byte, 1);
    });
    thread::spawn(move || {
        let mut byte = 0u8;
        call!(SYS_recvfrom, near, &raw mut byte, 1, 0, 0, 0);
    });
    thread::spawn(move || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        call!(SYS_epoll_wait, epoll, &raw mut event, 1, -1i32);
    });
    thread::spawn(move || {
        let mut polled = [reader, near].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        call!(SYS_poll, polled.as_mut_ptr(), 2, -1i32);
    });
    thread::spawn(|| {
        let word = 0u32;
        call!(SYS_futex, &raw const word, libc::FUTEX_WAIT, 0, 0, 0, 0);
    });
    let long = libc::timespec {
        tv_sec: 10_000,
        tv_nsec: 0,
    };
    call!(SYS_nanosleep, &raw const long, 0);
}

/// Memory that children share, unmapped at the end.
struct Shared(usize, usize);

impl Shared {
    fn new(len: usize) -> Result<Self> {
        Ok(Self(
            map(len, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?,
            len,
        ))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        call!(SYS_munmap, self.0, self.1);
    }
}

fn map(len: usize, flags: i32, fd: i32) -> Result<usize> {
    let at = call!(
        SYS_mmap,
        0,
        len,
        libc::PROT_READ | libc::PROT_WRITE,
        flags,
        fd,
        0
    );
    ensure!(at > 0, "mmap: {at}");
    Ok(at as usize)
}

/// Writes to each page.
fn touch(at: usize, len: usize) {
    for offset in (0..len).step_by(PAGE) {
        // SAFETY: callers have mapped it.
        unsafe { ((at + offset) as *mut u8).write_volatile(1) };
    }
}

fn unmap(at: usize, len: usize) -> Result<()> {
    is(call!(SYS_munmap, at, len), 0, "munmap")
}

const PAGE: usize = 4096;
const LARGE: usize = 2 << 20;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

pub const MEMORY: &[Deed] = &[
    ("private memory, in pieces", || {
        let at = map(64 * PAGE, PRIVATE, -1)?;
        touch(at, 64 * PAGE);
        unmap(at + 3 * PAGE, 5 * PAGE)?;
        is(
            call!(SYS_mprotect, at + 10 * PAGE, 2 * PAGE, libc::PROT_READ),
            0,
            "mprotect",
        )?;
        is(
            call!(SYS_madvise, at + 20 * PAGE, 4 * PAGE, libc::MADV_DONTNEED),
            0,
            "madvise",
        )?;
        is(call!(SYS_mlock, at + 30 * PAGE, PAGE), 0, "mlock")?;
        let again = call!(
            SYS_mmap,
            at + 40 * PAGE,
            8 * PAGE,
            libc::PROT_READ,
            PRIVATE | libc::MAP_FIXED,
            -1i32,
            0
        );
        is(again, (at + 40 * PAGE) as i64, "mmap over it")?;
        unmap(at, 64 * PAGE)
    }),
    ("memory that moves, grows and shrinks", || {
        let at = map(16 * PAGE, PRIVATE, -1)?;
        touch(at, 16 * PAGE);
        let at = call!(
            SYS_mremap,
            at,
            16 * PAGE,
            64 * PAGE,
            libc::MREMAP_MAYMOVE,
            0
        );
        ensure!(at > 0, "mremap: {at}");
        touch(at as usize, 64 * PAGE);
        is(
            call!(SYS_mremap, at, 64 * PAGE, 4 * PAGE, 0, 0),
            at,
            "mremap to less",
        )?;
        unmap(at as usize, 4 * PAGE)
    }),
    ("shared memory and a child", || {
        let shared = Shared::new(32 * PAGE)?;
        touch(shared.0, 16 * PAGE);
        wait(child(|| touch(shared.0, 32 * PAGE))?)?;
        Ok(())
    }),
    ("a file's memory, private and shared", || {
        let file = Fd::new(
            call!(SYS_memfd_create, c"leaks".as_ptr(), 0),
            "memfd_create",
        )?;
        is(call!(SYS_ftruncate, file.0, 32 * PAGE), 0, "ftruncate")?;
        let [one, other] =
            [libc::MAP_SHARED, libc::MAP_PRIVATE].map(|flags| map(32 * PAGE, flags, file.0));
        let (one, other) = (one?, other?);
        touch(one, 16 * PAGE);
        touch(other, 32 * PAGE);
        is(
            call!(SYS_ftruncate, file.0, 8 * PAGE),
            0,
            "ftruncate to less",
        )?;
        is(
            call!(
                SYS_fallocate,
                file.0,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                0,
                PAGE
            ),
            0,
            "a hole",
        )?;
        unmap(one, 32 * PAGE)?;
        unmap(other, 32 * PAGE)
    }),
    ("large pages, split and shared with a child", || {
        let at = map(3 * LARGE, PRIVATE, -1)?;
        is(
            call!(SYS_madvise, at, 3 * LARGE, libc::MADV_HUGEPAGE),
            0,
            "madvise",
        )?;
        touch(at, 3 * LARGE);
        wait(child(|| touch(at, LARGE))?)?;
        touch(at, 3 * LARGE);
        is(
            call!(SYS_mprotect, at + LARGE, PAGE, libc::PROT_READ),
            0,
            "mprotect of a part",
        )?;
        is(
            call!(
                SYS_madvise,
                at + LARGE + LARGE / 2,
                LARGE,
                libc::MADV_DONTNEED
            ),
            0,
            "madvise of a part",
        )?;
        unmap(at, LARGE)?;
        unmap(at + LARGE, 2 * LARGE)
    }),
    (
        "a child that writes to what it shares, and is killed",
        || {
            let at = map(64 * PAGE, PRIVATE, -1)?;
            touch(at, 64 * PAGE);
            let pid = child(|| {
                touch(at, 32 * PAGE);
                pause();
            })?;
            kill_waiting(pid)?;
            unmap(at, 64 * PAGE)
        },
    ),
    ("mappings that fail", || {
        let at = map(4 * PAGE, PRIVATE, -1)?;
        fails(
            call!(
                SYS_mmap,
                at,
                PAGE,
                0,
                PRIVATE | libc::MAP_FIXED_NOREPLACE,
                -1i32,
                0
            ),
            libc::EEXIST,
            "MAP_FIXED_NOREPLACE",
        )?;
        fails(
            call!(
                SYS_mmap,
                0,
                usize::MAX >> 17,
                0,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1i32,
                0
            ),
            libc::ENOMEM,
            "too much",
        )?;
        fails(
            call!(SYS_mremap, at, PAGE, 8 * PAGE, 0, 0),
            libc::ENOMEM,
            "no room",
        )?;
        fails(
            call!(
                SYS_mremap,
                at,
                PAGE,
                PAGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                at
            ),
            libc::EINVAL,
            "over itself",
        )?;
        unmap(at, 4 * PAGE)
    }),
];

pub const TIMERS: &[Deed] = &[
    ("timers that are deleted", || {
        let mut id = 0i32;
        is(
            call!(SYS_timer_create, libc::CLOCK_MONOTONIC, 0, &raw mut id),
            0,
            "timer_create",
        )?;
        arm_timer(id, 1000)?;
        is(call!(SYS_timer_delete, id), 0, "timer_delete")
    }),
    ("timers of a process that ends", || {
        let pid = child(|| {
            for clock in [
                libc::CLOCK_MONOTONIC,
                libc::CLOCK_REALTIME,
                libc::CLOCK_PROCESS_CPUTIME_ID,
            ] {
                let mut id = 0i32;
                call!(SYS_timer_create, clock, 0, &raw mut id);
                let _ = arm_timer(id, 1000);
            }
            let long = libc::itimerval {
                it_value: libc::timeval {
                    tv_sec: 1000,
                    tv_usec: 0,
                },
                it_interval: libc::timeval {
                    tv_sec: 1,
                    tv_usec: 0,
                },
            };
            for which in 0..3 {
                call!(SYS_setitimer, which, &raw const long, 0);
            }
        })?;
        wait(pid).map(drop)
    }),
    ("a timer whose number cannot be told", || {
        fails(
            call!(SYS_timer_create, libc::CLOCK_MONOTONIC, 0, NOWHERE),
            libc::EFAULT,
            "timer_create",
        )
    }),
    ("descriptors of timers", || {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME] {
            let fd = Fd::new(call!(SYS_timerfd_create, clock, 0), "timerfd_create")?;
            let spec = spec(1_900_000_000);
            is(
                call!(SYS_timerfd_settime, fd.0, 1 | 2, &raw const spec, 0),
                0,
                "timerfd_settime",
            )?;
            fails(
                call!(SYS_timerfd_settime, fd.0, 0, NOWHERE, 0),
                libc::EFAULT,
                "a bad setting",
            )?;
        }
        Ok(())
    }),
    ("sleepers that are killed", || {
        let long = libc::timespec {
            tv_sec: 10_000,
            tv_nsec: 0,
        };
        kill_waiting(child(|| {
            _ = call!(
                SYS_clock_nanosleep,
                libc::CLOCK_REALTIME,
                0,
                &raw const long,
                0
            );
        })?)?;
        let mut polled = libc::pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        kill_waiting(child(|| {
            _ = call!(SYS_ppoll, &raw mut polled, 1, &raw const long, 0, 8);
        })?)
    }),
];

fn spec(seconds: i64) -> libc::itimerspec {
    let interval = libc::timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    libc::itimerspec {
        it_interval: interval,
        it_value: libc::timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        },
    }
}

fn arm_timer(id: i32, seconds: i64) -> Result<()> {
    let spec = spec(seconds);
    is(
        call!(SYS_timer_settime, id, 0, &raw const spec, 0),
        0,
        "timer_settime",
    )
}

const MINE: i32 = 0o600 | libc::IPC_CREAT;

pub const SYSTEM_V: &[Deed] = &[
    ("shared memory that is removed while it is mapped", || {
        let id = call!(SYS_shmget, libc::IPC_PRIVATE, 8 * PAGE, MINE);
        let at = call!(SYS_shmat, id, 0, 0);
        ensure!(id >= 0 && at > 0, "shmget {id}, shmat {at}");
        touch(at as usize, 8 * PAGE);
        is(call!(SYS_shmctl, id, libc::IPC_RMID, 0), 0, "shmctl")?;
        is(call!(SYS_shmdt, at), 0, "shmdt")
    }),
    ("shared memory of a process that is killed", || {
        let id = call!(SYS_shmget, libc::IPC_PRIVATE, 8 * PAGE, MINE);
        let pid = child(|| {
            touch(call!(SYS_shmat, id, 0, 0) as usize, 8 * PAGE);
            pause();
        })?;
        sleeps(pid)?;
        is(call!(SYS_shmctl, id, libc::IPC_RMID, 0), 0, "shmctl")?;
        kill_waiting(pid)
    }),
    ("semaphores that undo, and who waits is killed", || {
        let id = call!(SYS_semget, libc::IPC_PRIVATE, 2, MINE);
        ensure!(id >= 0, "semget {id}");
        let up = libc::sembuf {
            sem_num: 0,
            sem_op: 1,
            sem_flg: libc::SEM_UNDO as i16,
        };
        let down = libc::sembuf {
            sem_num: 1,
            sem_op: -1,
            sem_flg: libc::SEM_UNDO as i16,
        };
        let pid = child(|| {
            call!(SYS_semop, id, &raw const up, 1);
            call!(SYS_semop, id, &raw const down, 1);
        })?;
        kill_waiting(pid)?;
        is(
            call!(SYS_semctl, id, 0, libc::GETVAL),
            0,
            "the value was undone",
        )?;
        fails(
            call!(SYS_semop, id, NOWHERE, 1),
            libc::EFAULT,
            "semop of nothing",
        )?;
        is(call!(SYS_semctl, id, 0, libc::IPC_RMID), 0, "semctl")
    }),
    ("messages that nobody receives", || {
        let id = call!(SYS_msgget, libc::IPC_PRIVATE, MINE);
        ensure!(id >= 0, "msgget {id}");
        let message = [1u64; 8];
        for _ in 0..4 {
            is(call!(SYS_msgsnd, id, message.as_ptr(), 56, 0), 0, "msgsnd")?;
        }
        fails(
            call!(SYS_msgsnd, id, NOWHERE, 56, 0),
            libc::EFAULT,
            "msgsnd of nothing",
        )?;
        fails(
            call!(SYS_msgrcv, id, NOWHERE, 56, 0, 0),
            libc::EFAULT,
            "msgrcv to nowhere",
        )?;
        let mut got = [0u64; 8];
        let pid = child(|| _ = call!(SYS_msgrcv, id, got.as_mut_ptr(), 56, 77, 0))?;
        kill_waiting(pid)?;
        is(call!(SYS_msgctl, id, libc::IPC_RMID, 0), 0, "msgctl")
    }),
    ("queues of POSIX", || {
        let name = c"leaks".as_ptr();
        let fd = Fd::new(
            call!(SYS_mq_open, name, libc::O_CREAT | libc::O_RDWR, 0o600, 0),
            "mq_open",
        )?;
        is(
            call!(SYS_mq_timedsend, fd.0, c"text".as_ptr(), 4, 1, 0),
            0,
            "mq_timedsend",
        )?;
        fails(
            call!(SYS_mq_timedsend, fd.0, NOWHERE, 4, 1, 0),
            libc::EFAULT,
            "mq_timedsend of nothing",
        )?;
        let mut room = [0u8; 8192];
        let got = call!(
            SYS_mq_timedreceive,
            fd.0,
            room.as_mut_ptr(),
            room.len(),
            NOWHERE,
            0
        );
        fails(got, libc::EFAULT, "mq_timedreceive to nowhere")?;
        is(
            call!(SYS_mq_timedsend, fd.0, c"text".as_ptr(), 4, 1, 0),
            0,
            "mq_timedsend",
        )?;
        is(call!(SYS_mq_unlink, name), 0, "mq_unlink")
    }),
];
