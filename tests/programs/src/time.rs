//! Clocks and sleeping.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};

use crate::Check;
use crate::credentials::in_child;

pub const CHECKS: &[(&str, Check)] = &[
    ("time-never-goes-back", never_goes_back),
    ("time-sleeps-long-enough", sleeps_long_enough),
    ("time-of-day", time_of_day),
    ("time-of-the-processor", time_of_the_processor),
    ("time-timers-of-the-processor", timers_of_the_processor),
    ("time-timers-by-any-clock", timers_by_any_clock),
    ("time-user-and-system", user_and_system_time),
    ("time-limit-of-the-processor", limit_of_processor_time),
    ("limits-are-kept", limits_are_kept),
    ("time-clock-is-set", clock_is_set),
    ("time-clock-is-not-for-all", clock_is_not_for_all),
    (
        "time-counter-can-be-kept-from-a-thread",
        counter_can_be_kept,
    ),
];

fn never_goes_back() -> Result<()> {
    let check = || {
        let mut last = Instant::now();
        for _ in 0..20_000 {
            let now = Instant::now();
            if now < last {
                return false;
            }
            last = now;
        }
        true
    };
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(check)).collect();
    let right = threads
        .into_iter()
        .all(|thread| thread.join().expect("the thread ended well"));
    ensure!(right, "the monotonic clock went back");
    Ok(())
}

fn sleeps_long_enough() -> Result<()> {
    for milliseconds in [0, 1, 10, 100] {
        let wanted = Duration::from_millis(milliseconds);
        let start = Instant::now();
        thread::sleep(wanted);
        let slept = start.elapsed();
        ensure!(slept >= wanted, "a sleep of {wanted:?} took {slept:?}");
    }
    Ok(())
}

fn time_of_day() -> Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    ensure!(
        since > Duration::from_secs(1_750_000_000),
        "it is {} s after 1970",
        since.as_secs()
    );
    // The day's clock is read between two looks at the other one, however long the emulator takes
    // from one to the next.
    let (before, day, after) = (Instant::now(), SystemTime::now(), Instant::now());
    thread::sleep(Duration::from_millis(200));
    let (least, passed, most) = (after.elapsed(), day.elapsed()?, before.elapsed());
    let slack = Duration::from_millis(1);
    ensure!(
        passed + slack >= least && passed <= most + slack,
        "the clocks disagree: {least:?} to {most:?}, {passed:?}"
    );
    Ok(())
}

pub(crate) fn clock_time(clock: libc::clockid_t) -> Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is valid.
    crate::checked(unsafe { libc::clock_gettime(clock, &mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn processor_time() -> Result<Duration> {
    clock_time(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn time_of_the_processor() -> Result<()> {
    // What the host takes from the machine while the thread has the processor counts as the
    // thread's: some sleep is cheap.
    let cheap = || -> Result<bool> {
        let (start, begin) = (processor_time()?, Instant::now());
        thread::sleep(Duration::from_millis(50));
        Ok((processor_time()? - start) * 2 < begin.elapsed())
    };
    while !cheap()? {}
    let start = processor_time()?;
    ensure!(
        work_until(|| processor_time().is_ok_and(|now| now - start >= Duration::from_millis(20))),
        "work costs nothing"
    );
    Ok(())
}

extern "C" fn count_signal(_: i32) {
    COUNT.fetch_add(1, Ordering::SeqCst);
}

static COUNT: AtomicU32 = AtomicU32::new(0);

fn on_signal(signal: i32) {
    COUNT.store(0, Ordering::SeqCst);
    // SAFETY: the handler only counts.
    unsafe { libc::signal(signal, count_signal as *const () as usize) };
}

/// Works until `done`, but not for ever.
fn work_until(done: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    let mut value = 1u64;
    while !done() && begin.elapsed() < Duration::from_secs(20) {
        for _ in 0..1000 {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
    }
    done()
}

fn timers_of_the_processor() -> Result<()> {
    for (which, signal) in [
        (libc::ITIMER_VIRTUAL, libc::SIGVTALRM),
        (libc::ITIMER_PROF, libc::SIGPROF),
    ] {
        on_signal(signal);
        let tick = libc::timeval {
            tv_sec: 0,
            tv_usec: 20_000,
        };
        let new = libc::itimerval {
            it_interval: tick,
            it_value: tick,
        };
        let before = processor_time()?;
        // SAFETY: valid structures.
        crate::checked(unsafe { libc::setitimer(which, &new, std::ptr::null_mut()) })?;
        ensure!(
            work_until(|| COUNT.load(Ordering::SeqCst) >= 3),
            "timer {which} does not fire: {COUNT:?}"
        );
        let used = processor_time()? - before;
        ensure!(
            used >= Duration::from_millis(55),
            "timer {which} fired three times within {used:?}"
        );
        // SAFETY: likewise.
        let left = unsafe {
            let mut left: libc::itimerval = std::mem::zeroed();
            crate::checked(libc::getitimer(which, &mut left))?;
            crate::checked(libc::setitimer(
                which,
                &std::mem::zeroed(),
                std::ptr::null_mut(),
            ))?;
            left
        };
        ensure!(
            left.it_interval.tv_usec == 20_000 && left.it_value.tv_sec == 0,
            "timer {which} has another interval"
        );
    }
    Ok(())
}

fn timers_by_any_clock() -> Result<()> {
    for clock in [
        libc::CLOCK_PROCESS_CPUTIME_ID,
        libc::CLOCK_THREAD_CPUTIME_ID,
    ] {
        on_signal(libc::SIGUSR1);
        // SAFETY: valid structures; the timer is deleted.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGUSR1);
            let mut timer: libc::timer_t = std::mem::zeroed();
            crate::checked(libc::timer_create(clock, &mut event, &mut timer))?;
            let mut setting: libc::itimerspec = std::mem::zeroed();
            setting.it_value.tv_nsec = 30_000_000;
            let start = clock_time(clock)?;
            crate::checked(libc::timer_settime(
                timer,
                0,
                &setting,
                std::ptr::null_mut(),
            ))?;
            thread::sleep(Duration::from_millis(60));
            crate::checked(libc::timer_gettime(timer, &mut setting))?;
            let (left, fired) = (setting.it_value.tv_nsec, COUNT.load(Ordering::SeqCst));
            // It is the clock that counts, which goes on if the host stops the machine just then.
            if clock_time(clock)? - start < Duration::from_millis(30) {
                ensure!(fired == 0, "clock {clock} goes on in sleep");
                ensure!(left > 0 && left <= 30_000_000, "{left} ns are left");
            }
            ensure!(
                work_until(|| COUNT.load(Ordering::SeqCst) == 1),
                "the timer of clock {clock} does not fire"
            );
            crate::checked(libc::timer_delete(timer))?;
        }
    }
    Ok(())
}

fn usage(who: i32) -> Result<libc::rusage> {
    // SAFETY: a valid structure.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        crate::checked(libc::getrusage(who, &mut usage))?;
        Ok(usage)
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
}

fn user_and_system_time() -> Result<()> {
    let before = usage(libc::RUSAGE_SELF)?;
    let (mut zeros, bytes) = (std::fs::File::open("/dev/zero")?, 1 << 20);
    let mut buffer = vec![0u8; bytes];
    // Long enough in the kernel to be seen by one that only looks from time to time.
    let in_system = || {
        usage(libc::RUSAGE_SELF)
            .map(|now| duration(now.ru_stime) - duration(before.ru_stime))
            .unwrap_or_default()
    };
    let begin = Instant::now();
    while in_system() < Duration::from_millis(50) && begin.elapsed() < Duration::from_secs(20) {
        for _ in 0..20 {
            std::io::Read::read_exact(&mut zeros, &mut buffer)?;
        }
    }
    ensure!(
        in_system() >= Duration::from_millis(50),
        "reading takes {:?} of the kernel",
        in_system()
    );
    let middle = usage(libc::RUSAGE_SELF)?;
    let in_user = || {
        usage(libc::RUSAGE_SELF)
            .map(|now| duration(now.ru_utime) - duration(middle.ru_utime))
            .unwrap_or_default()
    };
    ensure!(
        work_until(|| in_user() >= Duration::from_millis(50)),
        "work takes {:?} of user time",
        in_user()
    );
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(2));
    }
    let fresh = vec![1u8; 1 << 22];
    let after = usage(libc::RUSAGE_SELF)?;
    // A wait that is over before anybody else runs is no switch.
    ensure!(
        after.ru_nvcsw > before.ru_nvcsw,
        "sleeping five times is no switch"
    );
    ensure!(
        after.ru_minflt > before.ru_minflt && after.ru_maxrss > 4096,
        "{} faults, {} KiB",
        after.ru_minflt,
        after.ru_maxrss
    );
    drop(std::hint::black_box(fresh));
    let children = usage(libc::RUSAGE_CHILDREN)?;
    in_child(|| {
        let begin = processor_time()?;
        ensure!(
            work_until(
                || processor_time().is_ok_and(|now| now - begin >= Duration::from_millis(60))
            ),
            "no time passes"
        );
        Ok(())
    })?;
    let now = usage(libc::RUSAGE_CHILDREN)?;
    let used = duration(now.ru_utime) + duration(now.ru_stime)
        - duration(children.ru_utime)
        - duration(children.ru_stime);
    ensure!(
        used >= Duration::from_millis(50),
        "a child's 60 ms are {used:?} to its parent"
    );
    Ok(())
}

fn set_limit(which: u32, soft: u64, hard: u64) -> Result<()> {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: a valid structure.
    crate::checked(unsafe { libc::setrlimit(which as _, &limit) })?;
    Ok(())
}

fn limit_of_processor_time() -> Result<()> {
    // SAFETY: the child counts signals and works.
    let pid = crate::checked(unsafe { libc::fork() })?;
    if pid == 0 {
        on_signal(libc::SIGXCPU);
        let status = match set_limit(libc::RLIMIT_CPU, 1, 2) {
            Ok(()) if work_until(|| COUNT.load(Ordering::SeqCst) > 0) => {
                work_until(|| false);
                1
            }
            _ => 2,
        };
        // SAFETY: the child ends here.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the word is valid.
    crate::checked(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    ensure!(
        status == libc::SIGKILL,
        "it ended with {status:#x}; 100 is too late, 200 is without SIGXCPU"
    );
    Ok(())
}

fn limits_are_kept() -> Result<()> {
    let name = format!("/tmp/limits.{}", std::process::id());
    std::fs::write(&name, [0; 3000])?;
    let result = in_child(|| {
        use std::io::Write;
        use std::os::fd::{AsRawFd, FromRawFd};
        use std::os::unix::fs::FileExt;
        on_signal(libc::SIGXFSZ);
        set_limit(libc::RLIMIT_FSIZE, 1000, 1000)?;
        let refused = |result: std::io::Result<()>, what: &str| {
            let right = result
                .as_ref()
                .is_err_and(|e| e.raw_os_error() == Some(libc::EFBIG));
            ensure!(
                right && COUNT.swap(0, Ordering::SeqCst) == 1,
                "{what}: {result:?}"
            );
            Ok(())
        };
        let mut file = std::fs::File::options().write(true).open(&name)?;
        file.set_len(2000)?;
        file.set_len(0)?;
        ensure!(
            file.write(&[1; 600])? == 600 && file.write(&[1; 600])? == 400,
            "the limit does not cut a write"
        );
        refused(file.write(&[1]).map(drop), "writing beyond the limit")?;
        refused(
            file.write_at(&[1; 100], 5000).map(drop),
            "writing far beyond the limit",
        )?;
        refused(file.set_len(2000), "making it longer")?;
        file.set_len(500)?;
        // SAFETY: a string; the descriptor is this function's.
        let memory = unsafe {
            std::fs::File::from_raw_fd(crate::checked(libc::memfd_create(c"limits".as_ptr(), 0))?)
        };
        // SAFETY: numbers.
        let allocate = |mode, offset, len| match unsafe {
            libc::fallocate(memory.as_raw_fd(), mode, offset, len)
        } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        allocate(0, 0, 1000)?;
        allocate(
            libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
            0,
            5000,
        )?;
        refused(allocate(0, 0, 1001), "allocating beyond the limit")?;
        refused(
            allocate(libc::FALLOC_FL_KEEP_SIZE, 500, 600),
            "allocating beyond the limit and the end",
        )?;
        set_limit(libc::RLIMIT_NOFILE, 8, 8)?;
        let files: Vec<_> = (0..20)
            .map_while(|_| std::fs::File::open("/dev/null").ok())
            .collect();
        ensure!(files.len() < 8, "{} files were opened", files.len());
        drop(files);
        set_limit(libc::RLIMIT_NPROC, 3, 3)?;
        // SAFETY: numbers; children end at once.
        unsafe {
            crate::checked(libc::setresuid(4321, 4321, 4321))?;
            let mut made = 0;
            while made < 10 {
                match libc::fork() {
                    -1 => break,
                    0 => libc::_exit(0),
                    _ => made += 1,
                }
            }
            ensure!(made == 2, "beside one process {made} were made of three");
            while libc::wait(std::ptr::null_mut()) > 0 {}
        }
        Ok(())
    });
    std::fs::remove_file(&name)?;
    result?;
    in_child(|| {
        set_limit(libc::RLIMIT_SIGPENDING, 4, 4)?;
        // SAFETY: numbers, and a set that is made first; the signal is blocked.
        unsafe {
            crate::checked(libc::setresuid(4321, 4321, 4321))?;
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGRTMIN());
            crate::checked(libc::sigprocmask(
                libc::SIG_BLOCK,
                &set,
                std::ptr::null_mut(),
            ))?;
            let value = libc::sigval {
                sival_ptr: std::ptr::null_mut(),
            };
            let mut sent = 0;
            while sent < 50 && libc::sigqueue(libc::getpid(), libc::SIGRTMIN(), value) == 0 {
                sent += 1;
            }
            ensure!(
                sent == 4 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN),
                "{sent} signals were queued"
            );
        }
        Ok(())
    })
}

/// The wall clock, moved for as long as this lives.
struct Moved {
    forward: Duration,
}

impl Moved {
    fn forward(forward: Duration) -> Result<Self> {
        set_clock(clock_time(libc::CLOCK_REALTIME)? + forward)?;
        Ok(Self { forward })
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        let back = clock_time(libc::CLOCK_REALTIME).map(|now| now - self.forward);
        back.and_then(|back| Ok(set_clock(back)?))
            .expect("the clock can be set back");
    }
}

pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

fn set_clock(time: Duration) -> std::io::Result<()> {
    // SAFETY: the structure is valid.
    crate::checked(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &timespec(time)) }).map(drop)
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A timer that is read, set to an hour from now.
fn timer_in_an_hour(flags: i32) -> Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new.
    let timer = unsafe {
        let fd = crate::checked(libc::timerfd_create(
            libc::CLOCK_REALTIME,
            libc::TFD_NONBLOCK,
        ))?;
        OwnedFd::from_raw_fd(fd)
    };
    let nothing = timespec(Duration::ZERO);
    let new = libc::itimerspec {
        it_interval: nothing,
        it_value: timespec(clock_time(libc::CLOCK_REALTIME)? + HOUR),
    };
    // SAFETY: the structure is valid.
    crate::checked(unsafe {
        libc::timerfd_settime(
            timer.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME | flags,
            &new,
            std::ptr::null_mut(),
        )
    })?;
    Ok(timer)
}

/// Number of expirations that reading the timer gives at once.
fn expirations(timer: &OwnedFd) -> Result<u64, i32> {
    let mut count = 0u64;
    // SAFETY: eight bytes.
    let read = unsafe { libc::read(timer.as_raw_fd(), (&raw mut count).cast(), 8) };
    if read == 8 {
        Ok(count)
    } else {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

fn clock_is_set() -> Result<()> {
    let end = timespec(clock_time(libc::CLOCK_REALTIME)? + HOUR);
    let sleeper = thread::spawn(move || {
        // SAFETY: the structure is valid.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_REALTIME,
                libc::TIMER_ABSTIME,
                &end,
                std::ptr::null_mut(),
            )
        }
    });
    let waiter = thread::spawn(move || {
        let word = AtomicU32::new(0);
        let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME;
        // SAFETY: the word and the time live until the call is over.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                operation,
                0,
                &end,
                std::ptr::null::<u32>(),
                libc::FUTEX_BITSET_MATCH_ANY,
            )
        };
        (result, std::io::Error::last_os_error().raw_os_error())
    });
    let (due, later) = (
        timer_in_an_hour(0)?,
        timer_in_an_hour(libc::TFD_TIMER_CANCEL_ON_SET)?,
    );
    ensure!(expirations(&due) == Err(libc::EAGAIN), "an hour has passed");
    let start = (
        clock_time(libc::CLOCK_REALTIME)?,
        clock_time(libc::CLOCK_MONOTONIC)?,
    );
    let moved = Moved::forward(2 * HOUR)?;
    let passed = (
        clock_time(libc::CLOCK_REALTIME)? - start.0,
        clock_time(libc::CLOCK_MONOTONIC)? - start.1,
    );
    ensure!(
        passed.0 >= 2 * HOUR && passed.1 < HOUR,
        "the clocks went on by {passed:?}"
    );
    let mut day = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    // SAFETY: the structure is valid; the call itself, without the vDSO.
    crate::checked(unsafe {
        libc::syscall(libc::SYS_gettimeofday, &mut day, std::ptr::null::<u8>()) as i32
    })?;
    ensure!(
        day.tv_sec as u64 >= (start.0 + 2 * HOUR).as_secs(),
        "the kernel's clock shows {} s",
        day.tv_sec
    );
    let slept = sleeper.join().expect("the thread ended well");
    ensure!(slept == 0, "clock_nanosleep: {slept}");
    let waited = waiter.join().expect("the thread ended well");
    ensure!(waited == (-1, Some(libc::ETIMEDOUT)), "futex: {waited:?}");
    let mut ready = libc::pollfd {
        fd: due.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure.
    crate::checked(unsafe { libc::poll(&mut ready, 1, -1) })?;
    ensure!(expirations(&due) == Ok(1), "the timer did not fire");
    ensure!(
        expirations(&later) == Err(libc::ECANCELED),
        "the timer was not cancelled"
    );
    let ahead = timer_in_an_hour(0)?;
    drop(moved);
    ensure!(
        expirations(&ahead) == Err(libc::EAGAIN),
        "set back, the timer fired"
    );
    let zone = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: valid structures; the monotonic clock is nobody's to set.
    let refused = unsafe { libc::clock_settime(libc::CLOCK_MONOTONIC, &zone) };
    ensure!(
        refused == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL),
        "monotonic: {refused}"
    );
    Ok(())
}

fn clock_is_not_for_all() -> Result<()> {
    let now = clock_time(libc::CLOCK_REALTIME)?;
    in_child(|| {
        // SAFETY: no pointers.
        crate::checked(unsafe { libc::setuid(1000) })?;
        let refused = set_clock(now).err().and_then(|error| error.raw_os_error());
        ensure!(refused == Some(libc::EPERM), "user 1000: {refused:?}");
        Ok(())
    })
}

fn counter_can_be_kept() -> Result<()> {
    let ends = |reads: bool| -> Result<i32> {
        // SAFETY: the child makes no calls but these, and leaves.
        let child = crate::checked(unsafe { libc::fork() })?;
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                let mut mode = 0;
                let kept = libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) == 0;
                let told = libc::prctl(libc::PR_GET_TSC, &raw mut mode) == 0
                    && mode == libc::PR_TSC_SIGSEGV;
                if reads {
                    std::hint::black_box(std::arch::x86_64::_rdtsc());
                }
                libc::_exit(i32::from(!kept || !told));
            }
        }
        let mut status = 0;
        // SAFETY: `status` is this thread's.
        crate::checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
        Ok(status)
    };
    ensure!(ends(false)? == 0, "it is not kept, or not told");
    let status = ends(true)?;
    ensure!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
        "reading it: status {status:#x}"
    );
    // SAFETY: this process may.
    std::hint::black_box(unsafe { std::arch::x86_64::_rdtsc() });
    Ok(())
}
