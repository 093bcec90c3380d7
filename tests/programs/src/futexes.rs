//! Futexes beyond the plain ones: robust, with priority inheritance, several at once, and the newer
//! calls.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{io, ptr, thread};

use anyhow::{Context, Result, ensure};

use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("futexes-robust-over-a-death", || {
        robust(libc::PTHREAD_PRIO_NONE)
    }),
    ("futexes-robust-and-inheriting", || {
        robust(libc::PTHREAD_PRIO_INHERIT)
    }),
    ("futexes-robust-with-a-waiter", || {
        robust_with_waiter(libc::PTHREAD_PRIO_NONE)
    }),
    ("futexes-inheriting-with-a-waiter", || {
        robust_with_waiter(libc::PTHREAD_PRIO_INHERIT)
    }),
    ("futexes-inheriting-mutex", inheriting_mutex),
    ("futexes-inheritance", inheritance),
    ("futexes-lock-by-hand", lock_by_hand),
    ("futexes-move-to-a-lock", move_to_a_lock),
    (
        "futexes-plain-waiter-is-not-moved",
        plain_waiter_is_not_moved,
    ),
    ("futexes-wait-for-several", wait_for_several),
    ("futexes-newer-calls", newer_calls),
    ("futexes-timeout-outlasts-a-stop", timeout_outlasts_a_stop),
];

/// Memory that a child of this process shares with it.
struct Shared<T>(*mut T);

impl<T> Shared<T> {
    fn new(value: T) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<T>(),
                prot,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        ensure!(at != libc::MAP_FAILED, "no memory");
        let at = at.cast::<T>();
        // SAFETY: it is there, and large enough.
        unsafe { at.write(value) };
        Ok(Self(at))
    }
}

/// The C library's mutex.
struct CMutex(*mut libc::pthread_mutex_t);

// SAFETY: it is made to be used by several threads.
unsafe impl Send for CMutex {}
// SAFETY: likewise.
unsafe impl Sync for CMutex {}

impl CMutex {
    fn new(protocol: i32, robust: bool) -> Result<Self> {
        let memory = Shared::new(libc::PTHREAD_MUTEX_INITIALIZER)?;
        let mut attr = MaybeUninit::uninit();
        // SAFETY: the attributes are made first, and the memory is there.
        unsafe {
            libc::pthread_mutexattr_init(attr.as_mut_ptr());
            ensure!(
                libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED)
                    == 0,
                "not shared"
            );
            ensure!(
                libc::pthread_mutexattr_setprotocol(attr.as_mut_ptr(), protocol) == 0,
                "no such protocol"
            );
            if robust {
                ensure!(
                    libc::pthread_mutexattr_setrobust(
                        attr.as_mut_ptr(),
                        libc::PTHREAD_MUTEX_ROBUST
                    ) == 0,
                    "not robust"
                );
            }
            ensure!(
                libc::pthread_mutex_init(memory.0, attr.as_ptr()) == 0,
                "no mutex"
            );
        }
        Ok(Self(memory.0))
    }

    fn lock(&self) -> i32 {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_mutex_lock(self.0) }
    }

    fn try_lock(&self) -> i32 {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_mutex_trylock(self.0) }
    }

    fn lock_for(&self, span: Duration) -> i32 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the time is valid, the mutex initialised.
        unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &mut time);
            let nanoseconds = time.tv_nsec + i64::from(span.subsec_nanos());
            time.tv_sec += span.as_secs() as i64 + nanoseconds / 1_000_000_000;
            time.tv_nsec = nanoseconds % 1_000_000_000;
            libc::pthread_mutex_timedlock(self.0, &time)
        }
    }

    fn unlock(&self) -> i32 {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_mutex_unlock(self.0) }
    }

    fn make_consistent(&self) -> i32 {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_mutex_consistent(self.0) }
    }
}

/// Starts a child that does `work` and ends without a word.
fn fork(work: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: the child calls only what is safe after a fork of a program with one thread.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        let status = work();
        // SAFETY: the child ends here.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

fn wait(pid: i32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: the word is valid.
    checked(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    Ok(status)
}

fn robust(protocol: i32) -> Result<()> {
    let mutex = CMutex::new(protocol, true)?;
    let pid = fork(|| mutex.lock())?;
    ensure!(wait(pid)? == 0, "the child could not lock");
    let locked = mutex.lock();
    ensure!(
        locked == libc::EOWNERDEAD,
        "after its owner's death the lock is {locked}"
    );
    ensure!(
        mutex.make_consistent() == 0 && mutex.unlock() == 0,
        "it cannot be made good"
    );
    ensure!(
        mutex.lock() == 0 && mutex.unlock() == 0,
        "made good it does not lock"
    );
    // Not made good, it is of no use any more.
    let pid = fork(|| mutex.lock())?;
    ensure!(wait(pid)? == 0, "the second child could not lock");
    ensure!(
        mutex.lock() == libc::EOWNERDEAD && mutex.unlock() == 0,
        "the second death was not seen"
    );
    let locked = mutex.lock();
    ensure!(
        locked == libc::ENOTRECOVERABLE,
        "never made good the lock is {locked}"
    );
    Ok(())
}

fn robust_with_waiter(protocol: i32) -> Result<()> {
    let mutex = CMutex::new(protocol, true)?;
    let ready = Shared::new(AtomicU32::new(0))?;
    // SAFETY: it lives as long as the program.
    let ready = unsafe { &*ready.0 };
    let pid = fork(|| {
        let locked = mutex.lock();
        ready.store(1, Ordering::SeqCst);
        // Until somebody waits, or nearly: the bit of a word with waiters is the same for all
        // kinds. SAFETY: the mutex begins with its word.
        let word = unsafe { &*mutex.0.cast::<AtomicU32>() };
        while word.load(Ordering::SeqCst) & 1 << 31 == 0 {
            thread::yield_now();
        }
        if locked == 0 {
            // SAFETY: the process ends, by a signal.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        locked
    })?;
    while ready.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    let locked = mutex.lock();
    ensure!(locked == libc::EOWNERDEAD, "who waited got {locked}");
    ensure!(
        mutex.make_consistent() == 0 && mutex.unlock() == 0,
        "it cannot be made good"
    );
    ensure!(
        mutex.lock() == 0 && mutex.unlock() == 0,
        "made good it does not lock"
    );
    ensure!(wait(pid)? == libc::SIGKILL, "the child ended otherwise");
    Ok(())
}

fn inheriting_mutex() -> Result<()> {
    let mutex = CMutex::new(libc::PTHREAD_PRIO_INHERIT, false)?;
    let (value, turns) = (AtomicU32::new(0), 1000);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..turns {
                    assert_eq!(mutex.lock(), 0);
                    let seen = value.load(Ordering::Relaxed);
                    if turn % 64 == 0 {
                        thread::yield_now();
                    }
                    value.store(seen + 1, Ordering::Relaxed);
                    assert_eq!(mutex.unlock(), 0);
                }
            });
        }
    });
    ensure!(
        value.load(Ordering::Relaxed) == 4 * turns,
        "it does not exclude: {value:?}"
    );
    ensure!(mutex.lock() == 0, "it does not lock");
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let begin = Instant::now();
            let result = (mutex.try_lock(), mutex.lock_for(Duration::from_millis(100)));
            (result, begin.elapsed())
        });
        let (result, took) = other.join().expect("the thread ended well");
        ensure!(
            result == (libc::EBUSY, libc::ETIMEDOUT),
            "while it was held others got {result:?}"
        );
        ensure!(
            took >= Duration::from_millis(100),
            "the time limit was {took:?}"
        );
        Ok(())
    })?;
    ensure!(mutex.unlock() == 0, "it does not unlock");
    Ok(())
}

fn set_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: valid parameters, for the calling thread.
    checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) }).map(drop)
}

fn stay_on_cpu_0() -> io::Result<()> {
    // SAFETY: a valid set, for the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        checked(libc::sched_setaffinity(
            0,
            size_of::<libc::cpu_set_t>(),
            &set,
        ))
        .map(drop)
    }
}

/// One with a low priority holds a lock, one with a high priority wants it, and one between them
/// runs without end on the only processor: the first can only let go if it inherits.
fn inheritance() -> Result<()> {
    in_child(|| {
        stay_on_cpu_0()?;
        if set_fifo(40).is_err() {
            // Whoever runs this may not.
            return Ok(());
        }
        let mutex = Arc::new(CMutex::new(libc::PTHREAD_PRIO_INHERIT, false)?);
        let (held, go, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let pause = || thread::sleep(Duration::from_millis(5));
        let low = {
            let (mutex, held, go) = (mutex.clone(), held.clone(), go.clone());
            thread::spawn(move || -> io::Result<()> {
                set_fifo(10)?;
                assert_eq!(mutex.lock(), 0);
                held.store(true, Ordering::SeqCst);
                while !go.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(mutex.unlock(), 0);
                Ok(())
            })
        };
        while !held.load(Ordering::SeqCst) {
            pause();
        }
        let high = {
            let (mutex, done) = (mutex.clone(), done.clone());
            thread::spawn(move || -> io::Result<()> {
                set_fifo(30)?;
                assert_eq!(mutex.lock(), 0);
                done.store(true, Ordering::SeqCst);
                assert_eq!(mutex.unlock(), 0);
                Ok(())
            })
        };
        // SAFETY: the mutex begins with its word.
        let word = unsafe { &*mutex.0.cast::<AtomicU32>() };
        while word.load(Ordering::SeqCst) & 1 << 31 == 0 {
            pause();
        }
        let middle = {
            let (go, done) = (go.clone(), done.clone());
            thread::spawn(move || -> io::Result<()> {
                set_fifo(20)?;
                go.store(true, Ordering::SeqCst);
                // For ever, if the holder of the lock does not get to run.
                while !done.load(Ordering::SeqCst) {
                    std::hint::black_box(());
                }
                Ok(())
            })
        };
        middle.join().expect("the thread ended well")?;
        low.join().expect("the thread ended well")?;
        high.join().expect("the thread ended well")?;
        Ok(())
    })
}

const LOCK_PI: i32 = 6;
const UNLOCK_PI: i32 = 7;
const TRYLOCK_PI: i32 = 8;
const WAIT_REQUEUE_PI: i32 = 11;
const CMP_REQUEUE_PI: i32 = 12;
const PRIVATE: i32 = 128;

fn futex(
    word: &AtomicU32,
    operation: i32,
    value: u32,
    fourth: usize,
    other: *const AtomicU32,
    last: u32,
) -> io::Result<i32> {
    // SAFETY: the words live on; what the fourth is depends on the operation.
    checked(unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            fourth,
            other,
            last,
        )
    } as i32)
}

fn own_tid() -> u32 {
    // SAFETY: the call takes nothing.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}

fn expect(result: io::Result<i32>, errno: i32, what: &str) -> Result<()> {
    ensure!(
        result
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(errno)),
        "{what}: {result:?}"
    );
    Ok(())
}

fn lock_by_hand() -> Result<()> {
    let word = AtomicU32::new(0);
    let plain = |operation| futex(&word, operation | PRIVATE, 0, 0, ptr::null(), 0);
    plain(LOCK_PI)?;
    ensure!(
        word.load(Ordering::SeqCst) == own_tid(),
        "the word does not name its owner"
    );
    expect(plain(LOCK_PI), libc::EDEADLK, "locking twice")?;
    thread::scope(|scope| {
        let other = scope.spawn(|| (plain(TRYLOCK_PI), plain(UNLOCK_PI)));
        let (tried, unlocked) = other.join().expect("the thread ended well");
        expect(tried, libc::EAGAIN, "trying a lock that is held")?;
        expect(unlocked, libc::EPERM, "unlocking another's lock")
    })?;
    plain(UNLOCK_PI)?;
    ensure!(
        word.load(Ordering::SeqCst) == 0,
        "the word of a free lock is {word:?}"
    );
    plain(TRYLOCK_PI)?;
    plain(UNLOCK_PI)?;
    // A number nobody has.
    word.store(0x3fff_0000, Ordering::SeqCst);
    expect(plain(LOCK_PI), libc::ESRCH, "waiting for nobody")
}

fn move_to_a_lock() -> Result<()> {
    const WAITERS: usize = 3;
    let (word, lock, got) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    futex(&lock, LOCK_PI | PRIVATE, 0, 0, ptr::null(), 0)?;
    thread::scope(|scope| {
        let wait = || -> io::Result<()> {
            futex(&word, WAIT_REQUEUE_PI | PRIVATE, 0, 0, &lock, 0)?;
            assert_eq!(lock.load(Ordering::SeqCst) & 0x3fff_ffff, own_tid());
            got.fetch_add(1, Ordering::SeqCst);
            futex(&lock, UNLOCK_PI | PRIVATE, 0, 0, ptr::null(), 0)?;
            Ok(())
        };
        let waiters: Vec<_> = (0..WAITERS).map(|_| scope.spawn(wait)).collect();
        expect(
            futex(&word, CMP_REQUEUE_PI | PRIVATE, 1, 9, &lock, 7),
            libc::EAGAIN,
            "moving with another value",
        )?;
        expect(
            futex(&word, CMP_REQUEUE_PI | PRIVATE, 2, 9, &lock, 0),
            libc::EINVAL,
            "waking two",
        )?;
        let mut moved = 0;
        while moved < WAITERS {
            moved += futex(&word, CMP_REQUEUE_PI | PRIVATE, 1, 9, &lock, 0)? as usize;
            thread::yield_now();
        }
        ensure!(
            moved == WAITERS && got.load(Ordering::SeqCst) == 0,
            "{moved} were moved to a lock that is held"
        );
        futex(&lock, UNLOCK_PI | PRIVATE, 0, 0, ptr::null(), 0)?;
        for waiter in waiters {
            waiter.join().expect("the thread ended well")?;
        }
        Ok(())
    })?;
    ensure!(
        got.load(Ordering::SeqCst) == WAITERS as u32
            && lock.load(Ordering::SeqCst) & 0x3fff_ffff == 0,
        "{got:?} had it"
    );
    Ok(())
}

/// A thread that waits without having said for which lock (`FUTEX_WAIT`) would wake up as the owner
/// of one: it is not moved, and the call says so.
fn plain_waiter_is_not_moved() -> Result<()> {
    const WAIT: i32 = 0;
    const WAKE: i32 = 1;
    let (word, lock) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| futex(&word, WAIT | PRIVATE, 0, 0, ptr::null(), 0));
        let refused = loop {
            match futex(&word, CMP_REQUEUE_PI | PRIVATE, 1, 0, &lock, 0) {
                Ok(0) => thread::yield_now(),
                other => break other,
            }
        };
        let woken = futex(&word, WAKE | PRIVATE, 9, 0, ptr::null(), 0)?;
        waiter.join().expect("the thread ended well")?;
        expect(refused, libc::EINVAL, "moving who only waits")?;
        ensure!(woken == 1, "{woken} were woken");
        Ok(())
    })
}

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy)]
struct WaitV {
    value: u64,
    addr: u64,
    flags: u32,
    reserved: u32,
}

impl WaitV {
    fn new(word: &AtomicU32, value: u32) -> Self {
        Self {
            value: value.into(),
            addr: word.as_ptr() as u64,
            flags: 2 | PRIVATE as u32,
            reserved: 0,
        }
    }
}

fn monotonic_after(span: Duration) -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let nanoseconds = time.tv_nsec + i64::from(span.subsec_nanos());
    libc::timespec {
        tv_sec: time.tv_sec + nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    }
}

fn waitv(entries: &[WaitV], span: Option<Duration>) -> io::Result<i32> {
    let time = span.map(monotonic_after);
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: as many entries as it says, and a time or none.
    checked(unsafe {
        libc::syscall(
            449,
            entries.as_ptr(),
            entries.len(),
            0,
            time,
            libc::CLOCK_MONOTONIC,
        )
    } as i32)
}

fn wait_for_several() -> Result<()> {
    let words: Vec<AtomicU32> = (0..8).map(AtomicU32::new).collect();
    let entries: Vec<WaitV> = words
        .iter()
        .zip(0..)
        .map(|(word, value)| WaitV::new(word, value))
        .collect();
    if waitv(&entries, Some(Duration::from_millis(10)))
        .is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS))
    {
        return Ok(());
    }
    expect(
        waitv(&entries, Some(Duration::from_millis(20))),
        libc::ETIMEDOUT,
        "waiting for nothing",
    )?;
    expect(
        waitv(
            &[
                entries[0],
                WaitV {
                    value: 9,
                    ..entries[1]
                },
            ],
            None,
        ),
        libc::EAGAIN,
        "another value",
    )?;
    expect(
        waitv(
            &[WaitV {
                reserved: 1,
                ..entries[0]
            }],
            None,
        ),
        libc::EINVAL,
        "a reserved field",
    )?;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waitv(&entries, None));
        let mut woken = 0;
        while woken == 0 {
            woken = futex(&words[5], libc::FUTEX_WAKE | PRIVATE, 1, 0, ptr::null(), 0)?;
            thread::yield_now();
        }
        let index = waiter.join().expect("the thread ended well")?;
        ensure!(index == 5, "{index} was woken");
        Ok(())
    })?;
    let woken = futex(&words[0], libc::FUTEX_WAKE | PRIVATE, 9, 0, ptr::null(), 0)?;
    ensure!(woken == 0, "somebody still waits");
    Ok(())
}

fn newer_calls() -> Result<()> {
    const FLAGS: u32 = 2 | PRIVATE as u32;
    let (word, other) = (AtomicU32::new(3), AtomicU32::new(4));
    let wake = |word: &AtomicU32, count: i32| {
        // SAFETY: a word that lives on, and numbers.
        checked(
            unsafe { libc::syscall(454, word.as_ptr(), u64::from(u32::MAX), count, FLAGS) } as i32,
        )
    };
    let wait = |value: u64, time: *const libc::timespec| {
        let all = u64::from(u32::MAX);
        // SAFETY: a word that lives on, a time or none, and numbers.
        checked(unsafe {
            libc::syscall(
                455,
                word.as_ptr(),
                value,
                all,
                FLAGS,
                time,
                libc::CLOCK_MONOTONIC,
            )
        } as i32)
    };
    if wake(&word, 1).is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS)) {
        return Ok(());
    }
    expect(wait(4, ptr::null()), libc::EAGAIN, "another value")?;
    expect(
        wait(3, &monotonic_after(Duration::from_millis(10))),
        libc::ETIMEDOUT,
        "waiting for nothing",
    )?;
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| wait(3, ptr::null())))
            .collect();
        let pair = [WaitV::new(&word, 3), WaitV::new(&other, 0)];
        let mut moved = 0;
        while moved < 2 {
            // SAFETY: two entries, and numbers.
            moved += checked(unsafe { libc::syscall(456, pair.as_ptr(), 0, 0, 9) } as i32)?;
            thread::yield_now();
        }
        ensure!(
            wake(&word, 9)? == 0 && wake(&other, 9)? == 2,
            "they were not moved"
        );
        for waiter in waiters {
            waiter.join().expect("the thread ended well")?;
        }
        Ok(())
    })
}

fn timeout_outlasts_a_stop() -> Result<()> {
    // The emulator may take longer for the stops than the wait lasts: then the next one lasts
    // longer.
    for milliseconds in [400, 1600, 6400] {
        if stopped_while_it_waits(Duration::from_millis(milliseconds))? {
            return Ok(());
        }
    }
    anyhow::bail!("it was never stopped in time")
}

/// False if the wait was over before the stops were.
fn stopped_while_it_waits(time: Duration) -> Result<bool> {
    let pid = fork(|| {
        let word = AtomicU32::new(0);
        let span = libc::timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let begin = Instant::now();
        let result = futex(
            &word,
            libc::FUTEX_WAIT | PRIVATE,
            0,
            (&raw const span) as usize,
            ptr::null(),
            0,
        );
        let timed_out = result.is_err_and(|e| e.raw_os_error() == Some(libc::ETIMEDOUT));
        if !timed_out {
            return 1;
        }
        i32::from(begin.elapsed() < time) * 2
    })?;
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(50));
        let mut status = 0;
        // SAFETY: a child's number; the word is valid.
        unsafe {
            checked(libc::kill(pid, libc::SIGSTOP))?;
            checked(libc::waitpid(pid, &mut status, libc::WUNTRACED))?;
            if status == 0 {
                return Ok(false);
            }
            ensure!(libc::WIFSTOPPED(status), "it did not stop: {status:#x}");
            checked(libc::kill(pid, libc::SIGCONT)).context("going on")?;
        }
    }
    let status = wait(pid)?;
    ensure!(
        status == 0,
        "the wait ended {status:#x}: 100 is an error, 200 is too early"
    );
    Ok(true)
}
