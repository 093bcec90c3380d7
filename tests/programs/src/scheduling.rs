//! Scheduling: policies and what they mean, processors threads may run on, and wake-ups under
//! stress.
//!
//! All pass on Linux, for the superuser. The calls are made directly: some C libraries have empty
//! ones.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libc::{c_int, c_long};

use crate::Check;
use crate::calls::{call, fails};

pub const CHECKS: &[(&str, Check)] = &[
    ("scheduling-policies", policies),
    ("scheduling-attributes", attributes),
    ("scheduling-inheritance", inheritance),
    ("scheduling-nice", nice),
    ("scheduling-weights", weights),
    ("scheduling-fifo-goes-first", fifo_goes_first),
    (
        "scheduling-real-time-leaves-a-part",
        real_time_leaves_a_part,
    ),
    ("scheduling-real-time-has-a-limit", real_time_has_a_limit),
    (
        "scheduling-round-robin-takes-turns",
        round_robin_takes_turns,
    ),
    ("scheduling-affinity", affinity),
    ("scheduling-yielding-is-no-claim", yielding_is_no_claim),
];

/// Checks that run longer; in machines of several sizes.
pub const STRESS: &[(&str, Check)] = &[
    ("scheduling-no-lost-wake-up", no_lost_wake_up),
    ("scheduling-affinity-churn", affinity_churn),
    ("scheduling-soak", soak),
];

const RESET_ON_FORK: c_int = 0x4000_0000;
const DEADLINE: c_int = 6;

fn result(value: c_long) -> Result<c_long, c_int> {
    if value < 0 {
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(value)
    }
}

fn set_scheduler(tid: c_int, policy: c_int, priority: c_int) -> Result<(), c_int> {
    // SAFETY: the parameter is one readable integer.
    result(unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            tid,
            policy,
            &raw const priority,
        )
    })
    .map(drop)
}

fn get_scheduler(tid: c_int) -> Result<c_int, c_int> {
    // SAFETY: no pointers.
    result(unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) })
        .map(|policy| policy as c_int)
}

fn get_priority_of(tid: c_int) -> Result<c_int, c_int> {
    let mut priority: c_int = -1;
    // SAFETY: the parameter is one writable integer.
    result(unsafe { libc::syscall(libc::SYS_sched_getparam, tid, &raw mut priority) })?;
    Ok(priority)
}

fn this_thread() -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_gettid) as c_int }
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Lets a thread (0: the caller) run on one processor only.
fn pin(tid: c_int, cpu: usize) -> Result<()> {
    set_processors(tid, 1 << cpu)
}

fn set_processors(tid: c_int, mask: u64) -> Result<()> {
    // SAFETY: eight readable bytes.
    result(unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, 8, &raw const mask) })
        .map(drop)
        .map_err(|e| anyhow::anyhow!("sched_setaffinity to {mask:#x}: error {e}"))
}

fn processor() -> usize {
    let mut cpu: u32 = 0;
    // SAFETY: one writable integer; the other pointers may be null.
    unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, 0usize, 0usize) };
    cpu as usize
}

/// Processor time of the calling thread.
fn own_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `f` in a thread of its own, so that what it changes of itself ends with it.
fn apart(f: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    thread::scope(|scope| scope.spawn(f).join().expect("the thread ended well"))
}

fn policies() -> Result<()> {
    apart(|| {
        ensure!(
            get_scheduler(0) == Ok(libc::SCHED_OTHER),
            "the policy at first is {:?}",
            get_scheduler(0)
        );
        for (policy, priority) in [
            (libc::SCHED_BATCH, 0),
            (libc::SCHED_IDLE, 0),
            (libc::SCHED_OTHER, 0),
            (libc::SCHED_FIFO, 1),
            (libc::SCHED_RR, 99),
            (libc::SCHED_FIFO | RESET_ON_FORK, 50),
        ] {
            set_scheduler(0, policy, priority)
                .map_err(|e| anyhow::anyhow!("policy {policy}: error {e}"))?;
            let now = (get_scheduler(0), get_priority_of(this_thread()));
            ensure!(
                now == (Ok(policy), Ok(priority)),
                "policy {policy} {priority} became {now:?}"
            );
        }
        for (policy, priority, error) in [
            (libc::SCHED_FIFO, 0, libc::EINVAL),
            (libc::SCHED_RR, 100, libc::EINVAL),
            (libc::SCHED_OTHER, 1, libc::EINVAL),
            (libc::SCHED_IDLE, -1, libc::EINVAL),
            (DEADLINE, 0, libc::EINVAL),
            (7, 0, libc::EINVAL),
            (-1, 0, libc::EINVAL),
        ] {
            let got = set_scheduler(0, policy, priority);
            ensure!(
                got == Err(error),
                "policy {policy} with priority {priority}: {got:?}"
            );
        }
        ensure!(
            get_scheduler(0) == Ok(libc::SCHED_FIFO | RESET_ON_FORK),
            "a refused change changed something"
        );
        ensure!(
            set_scheduler(-1, 0, 0) == Err(libc::EINVAL) && get_scheduler(-1) == Err(libc::EINVAL),
            "thread -1"
        );
        ensure!(
            set_scheduler(0x3fff_ffff, 0, 0) == Err(libc::ESRCH),
            "a thread that is not there"
        );
        // SAFETY: the kernel refuses the null pointers.
        let null = result(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, 0, 0usize) });
        ensure!(null == Err(libc::EINVAL), "no parameters: {null:?}");
        for (policy, range) in [
            (libc::SCHED_FIFO, (1, 99)),
            (libc::SCHED_RR, (1, 99)),
            (libc::SCHED_BATCH, (0, 0)),
            (libc::SCHED_DEADLINE, (0, 0)),
        ] {
            // SAFETY: no pointers.
            let got = unsafe {
                (
                    libc::sched_get_priority_min(policy),
                    libc::sched_get_priority_max(policy),
                )
            };
            ensure!(got == range, "priorities of {policy}: {got:?}");
        }
        let interval = |policy, priority| {
            let mut time = libc::timespec {
                tv_sec: -1,
                tv_nsec: -1,
            };
            set_scheduler(0, policy, priority)
                .map_err(|e| anyhow::anyhow!("policy {policy}: error {e}"))?;
            // SAFETY: a writable timespec.
            let done = unsafe { libc::syscall(libc::SYS_sched_rr_get_interval, 0, &raw mut time) };
            ensure!(
                done == 0,
                "sched_rr_get_interval: {}",
                io::Error::last_os_error()
            );
            Ok((time.tv_sec, time.tv_nsec))
        };
        ensure!(
            interval(libc::SCHED_FIFO, 5)? == (0, 0),
            "SCHED_FIFO has a quantum"
        );
        ensure!(
            interval(libc::SCHED_RR, 5)? == (0, 100_000_000),
            "the quantum of SCHED_RR is another"
        );
        ensure!(
            interval(libc::SCHED_OTHER, 0)?.0 == 0,
            "the slice of SCHED_OTHER is very long"
        );
        Ok(())
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    deadline: [u64; 3],
    more: [u64; 2],
}

fn set_attr(attr: &mut Attr) -> Result<(), c_int> {
    // SAFETY: as many bytes as its size says; the kernel may write that.
    result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_mut(attr), 0) })
        .map(drop)
}

fn get_attr(size: u32) -> Result<Attr, c_int> {
    let mut attr = Attr::default();
    // SAFETY: the structure is larger than the sizes asked for.
    result(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) })?;
    Ok(attr)
}

fn attributes() -> Result<()> {
    const KEEP_ALL: u64 = 0x18;
    apart(|| {
        let mut batch = Attr {
            size: 48,
            policy: 3,
            nice: 7,
            ..Attr::default()
        };
        ensure!(set_attr(&mut batch) == Ok(()), "SCHED_BATCH with nice 7");
        let now = get_attr(48).map_err(|e| anyhow::anyhow!("sched_getattr: error {e}"))?;
        ensure!(
            (now.policy, now.nice, now.priority, now.flags) == (3, 7, 0, 0),
            "it became {now:?}"
        );
        let mut round_robin = Attr {
            size: 56,
            policy: 2,
            priority: 9,
            flags: 1,
            ..Attr::default()
        };
        ensure!(
            set_attr(&mut round_robin) == Ok(()),
            "SCHED_RR with priority 9"
        );
        let mut keep = Attr {
            size: 48,
            flags: KEEP_ALL | 1,
            ..Attr::default()
        };
        ensure!(set_attr(&mut keep) == Ok(()), "keeping everything");
        let now = get_attr(48).map_err(|e| anyhow::anyhow!("sched_getattr: error {e}"))?;
        ensure!(
            (now.policy, now.priority, now.flags) == (2, 9, 1),
            "it became {now:?}"
        );
        let mut unknown = Attr {
            size: 72,
            policy: 0,
            more: [0, 1],
            ..Attr::default()
        };
        ensure!(
            set_attr(&mut unknown) == Err(libc::E2BIG) && unknown.size >= 48,
            "attributes nobody knows"
        );
        let mut short = Attr {
            size: 40,
            ..Attr::default()
        };
        ensure!(
            set_attr(&mut short) == Err(libc::E2BIG),
            "a structure that is too short"
        );
        ensure!(
            get_attr(40) == Err(libc::EINVAL),
            "a buffer that is too short"
        );
        let mut bad = Attr {
            size: 48,
            flags: 1 << 40,
            ..Attr::default()
        };
        ensure!(
            set_attr(&mut bad) == Err(libc::EINVAL),
            "a flag nobody knows"
        );
        for (byte, errno) in [(1, libc::E2BIG), (0, libc::EFAULT)] {
            fails(set_cut_off(byte), errno, "attributes that end in a hole")?;
        }
        Ok(())
    })
}

/// Sets attributes that say that they have a page's bytes, of which there is one more than are
/// known: what it says counts before what is not there.
fn set_cut_off(byte: u8) -> i64 {
    const PAGE: usize = 4096;
    const KNOWN: usize = 56;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let pages = call!(SYS_mmap, 0, 2 * PAGE, access, flags, -1i32, 0) as usize;
    call!(SYS_munmap, pages + PAGE, PAGE);
    let at = pages + PAGE - KNOWN - 1;
    let place = std::ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: a page of this function's own.
    unsafe {
        place.cast::<u32>().write_unaligned(PAGE as u32);
        place.add(KNOWN).write(byte);
    }
    let result = call!(SYS_sched_setattr, 0, at, 0);
    call!(SYS_munmap, pages, PAGE);
    result
}

/// Policy that a child finds after the calling thread has forked.
fn policy_of_child() -> Result<c_int> {
    // SAFETY: the child does nothing but make two system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let policy = get_scheduler(0).unwrap_or(99);
        // SAFETY: ends the child.
        unsafe { libc::_exit(policy & 0xff) };
    }
    let mut status = 0;
    ensure!(
        // SAFETY: the status is writable.
        unsafe { libc::waitpid(child, &raw mut status, 0) } == child,
        "waitpid: {}",
        io::Error::last_os_error()
    );
    Ok(libc::WEXITSTATUS(status))
}

fn inheritance() -> Result<()> {
    apart(|| {
        for (policy, priority, child) in [
            (libc::SCHED_RR, 3, libc::SCHED_RR),
            (libc::SCHED_RR | RESET_ON_FORK, 3, libc::SCHED_OTHER),
            (libc::SCHED_BATCH, 0, libc::SCHED_BATCH),
        ] {
            set_scheduler(0, policy, priority)
                .map_err(|e| anyhow::anyhow!("policy {policy}: error {e}"))?;
            let got = policy_of_child()?;
            ensure!(got == child, "a child of {policy:#x} has {got}");
        }
        let in_thread = thread::scope(|scope| {
            scope
                .spawn(|| get_scheduler(0))
                .join()
                .expect("the thread ended well")
        });
        ensure!(
            in_thread == Ok(libc::SCHED_BATCH),
            "a new thread has {in_thread:?}"
        );
        Ok(())
    })
}

fn set_nice(which: c_int, who: c_int, nice: c_int) -> Result<(), c_int> {
    // SAFETY: no pointers.
    result(unsafe { libc::syscall(libc::SYS_setpriority, which, who, nice) }).map(drop)
}

/// Twenty minus the nice level.
fn get_nice(which: c_int, who: c_int) -> Result<c_long, c_int> {
    // SAFETY: no pointers.
    result(unsafe { libc::syscall(libc::SYS_getpriority, which, who) })
}

fn nice() -> Result<()> {
    const PROCESS: c_int = 0;
    const GROUP: c_int = 1;
    apart(|| {
        ensure!(
            get_nice(PROCESS, 0) == Ok(20),
            "the level at first is {:?}",
            get_nice(PROCESS, 0)
        );
        for (asked, got) in [(5, 15), (19, 1), (100, 1), (-3, 23), (-100, 40)] {
            ensure!(
                set_nice(PROCESS, 0, asked) == Ok(()),
                "level {asked} is refused"
            );
            ensure!(
                get_nice(PROCESS, this_thread()) == Ok(got),
                "level {asked} became {:?}",
                get_nice(PROCESS, 0)
            );
        }
        ensure!(
            get_nice(GROUP, 0).is_ok_and(|best| best == 40),
            "the best of the group is {:?}",
            get_nice(GROUP, 0)
        );
        ensure!(
            get_nice(3, 0) == Err(libc::EINVAL) && set_nice(-1, 0, 0) == Err(libc::EINVAL),
            "which is checked"
        );
        ensure!(
            get_nice(PROCESS, 0x3fff_ffff) == Err(libc::ESRCH),
            "a thread that is not there"
        );
        ensure!(
            set_nice(PROCESS, 0x3fff_ffff, 0) == Err(libc::ESRCH),
            "a thread that is not there"
        );
        Ok(())
    })
}

/// A real-time thread that never sleeps does not keep its processor from another one for ever.
fn real_time_leaves_a_part() -> Result<()> {
    for policy in [libc::SCHED_FIFO, libc::SCHED_RR] {
        apart(|| {
            pin(0, 0)?;
            let (alone, ran) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !alone.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                    ran.store(true, Ordering::SeqCst);
                });
                let changed = set_scheduler(0, policy, 1);
                alone.store(true, Ordering::SeqCst);
                while !ran.load(Ordering::SeqCst) {
                    std::hint::black_box(());
                }
                ensure!(changed == Ok(()), "policy {policy}: {changed:?}");
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// The settings by which they do not: what is written is read again, and what makes no sense
/// changes nothing.
fn real_time_has_a_limit() -> Result<()> {
    const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
    const PERIOD: &str = "/proc/sys/kernel/sched_rt_period_us";
    let read = |path: &str| std::fs::read_to_string(path);
    let refused = |path: &str, text: &str| match std::fs::write(path, text) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => bail!("{text:?} in {path}: {other:?}"),
    };
    let (runtime, period) = (read(RUNTIME)?, read(PERIOD)?);
    ensure!(
        (&*runtime, &*period) == ("950000\n", "1000000\n"),
        "at first they are {runtime:?} and {period:?}"
    );
    for bad in ["1000001", "-2", "4294967296"] {
        refused(RUNTIME, bad)?;
    }
    for bad in ["0", "-1", "949999"] {
        refused(PERIOD, bad)?;
    }
    ensure!(
        read(RUNTIME)? == runtime && read(PERIOD)? == period,
        "what is refused changes nothing"
    );
    for (path, text, other) in [
        (RUNTIME, "-1\n", PERIOD),
        (PERIOD, "500000\n", RUNTIME),
        (RUNTIME, "500000\n", PERIOD),
    ] {
        let before = read(other)?;
        std::fs::write(path, text)?;
        ensure!(
            read(path)? == text && read(other)? == before,
            "{text:?} in {path}: {:?}",
            read(path)?
        );
    }
    std::fs::write(PERIOD, &period)?;
    std::fs::write(RUNTIME, &runtime)?;
    ensure!(
        read(RUNTIME)? == runtime && read(PERIOD)? == period,
        "it is as it was"
    );
    Ok(())
}

/// Two threads of one processor: the second, ten levels nicer, runs for much less. What the host
/// takes from the machine counts as run by who has the processor, and is made up for later: so both
/// run until it is as it should be, but not for ever.
fn weights() -> Result<()> {
    const LEAST: Duration = Duration::from_millis(300);
    const MOST: Duration = Duration::from_secs(10);
    let (ready, done, nicer) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let meet = || {
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
    };
    let (ran, nicer) = thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(0, 0)?;
            ensure!(set_nice(0, 0, 10) == Ok(()), "setpriority");
            meet();
            let start = own_time();
            while !done.load(Ordering::Relaxed) {
                nicer.store((own_time() - start).as_nanos() as u64, Ordering::Relaxed);
            }
            Ok(())
        });
        pin(0, 0)?;
        meet();
        let start = own_time();
        let both = || {
            (
                own_time() - start,
                Duration::from_nanos(nicer.load(Ordering::Relaxed)),
            )
        };
        // Linux's weights are 1024 and 110.
        let both = loop {
            let (ran, nicer) = both();
            if ran >= MOST || ran >= LEAST && nicer <= ran / 4 {
                break (ran, nicer);
            }
        };
        done.store(true, Ordering::Relaxed);
        set_processors(0, u64::MAX)?;
        other.join().expect("the thread ended well").map(|()| both)
    })?;
    ensure!(
        nicer <= ran / 4,
        "level 10 ran for {nicer:?} while level 0 ran for {ran:?}"
    );
    Ok(())
}

/// While a `SCHED_FIFO` thread runs, an ordinary one of its processor does not; once it sleeps, it
/// does.
fn fifo_goes_first() -> Result<()> {
    let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(0, 0)?;
            while !stop.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let first = scope.spawn(|| {
            pin(0, 0)?;
            set_scheduler(0, libc::SCHED_FIFO, 10)
                .map_err(|e| anyhow::anyhow!("SCHED_FIFO: error {e}"))?;
            // The other one is there and would run.
            while count.load(Ordering::Relaxed) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let before = count.load(Ordering::Relaxed);
            let start = own_time();
            while own_time() - start < Duration::from_millis(50) {}
            let meanwhile = count.load(Ordering::Relaxed) - before;
            while count.load(Ordering::Relaxed) == before + meanwhile {
                thread::sleep(Duration::from_millis(1));
            }
            ensure!(
                meanwhile == 0,
                "an ordinary thread ran {meanwhile} rounds beside SCHED_FIFO"
            );
            Ok(())
        });
        let result = first.join().expect("the thread ended well");
        stop.store(true, Ordering::Relaxed);
        other.join().expect("the thread ended well").and(result)
    })
}

/// Two `SCHED_RR` threads of one priority and processor that never sleep: each gets its turns.
fn round_robin_takes_turns() -> Result<()> {
    let turns = [AtomicU64::new(0), AtomicU64::new(0)];
    // Three times: run until the other one has run as well.
    let take_turns = |mine: usize| {
        for _ in 0..3 {
            turns[mine].fetch_add(1, Ordering::SeqCst);
            let seen = turns[1 - mine].load(Ordering::SeqCst);
            while seen < 3 && turns[1 - mine].load(Ordering::SeqCst) == seen {
                std::hint::black_box(());
            }
        }
        turns[mine].store(3, Ordering::SeqCst);
    };
    let (second_id, start) = (AtomicU32::new(0), Permits(AtomicU32::new(0)));
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            second_id.store(this_thread() as u32, Ordering::SeqCst);
            start.take();
            take_turns(1);
        });
        let first = scope.spawn(|| -> Result<()> {
            while second_id.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            // Both are set up here: the second could not run to do it as soon as the first has its
            // policy.
            for tid in [second_id.load(Ordering::SeqCst) as c_int, 0] {
                pin(tid, 0)?;
                set_scheduler(tid, libc::SCHED_RR, 1)
                    .map_err(|e| anyhow::anyhow!("SCHED_RR: error {e}"))?;
            }
            start.give();
            take_turns(0);
            Ok(())
        });
        let result = first.join().expect("the thread ended well");
        if result.is_err() {
            turns[0].store(3, Ordering::SeqCst);
            start.give();
        }
        second.join().expect("the thread ended well");
        result
    })
}

/// Two threads that do nothing but yield let each other go on, and keep nobody from the processor
/// they share: neither one that sleeps now and then nor one that computes.
fn yielding_is_no_claim() -> Result<()> {
    let (yields, stop) = (
        [AtomicU64::new(0), AtomicU64::new(0)],
        AtomicBool::new(false),
    );
    let seen = || yields.each_ref().map(|count| count.load(Ordering::Relaxed));
    thread::scope(|scope| {
        let stop = &stop;
        let others = yields.each_ref().map(|count| {
            scope.spawn(move || -> Result<()> {
                pin(0, 0)?;
                while !stop.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                    thread::yield_now();
                }
                Ok(())
            })
        });
        let meanwhile = scope.spawn(|| {
            pin(0, 0)?;
            for _ in 0..20 {
                let before = seen();
                thread::sleep(Duration::from_millis(1));
                while seen()
                    .iter()
                    .zip(before)
                    .any(|(now, before)| *now <= before + 2)
                {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            let start = own_time();
            while own_time() - start < Duration::from_millis(20) {}
            Ok(())
        });
        let result = meanwhile.join().expect("the thread ended well");
        stop.store(true, Ordering::Relaxed);
        for other in others {
            other.join().expect("the thread ended well")?;
        }
        result
    })
}

fn affinity() -> Result<()> {
    apart(|| {
        for cpu in (0..processors()).chain((0..processors()).rev()) {
            pin(0, cpu)?;
            ensure!(
                processor() == cpu,
                "allowed on {cpu}, it runs on {}",
                processor()
            );
        }
        let nowhere: u64 = 0;
        // SAFETY: eight readable bytes.
        let got =
            result(unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, 8, &raw const nowhere) });
        ensure!(got == Err(libc::EINVAL), "no processor at all: {got:?}");
        Ok(())
    })
}

/// A counter that threads sleep for: `sem_post` and `sem_wait` on a bare futex.
struct Permits(AtomicU32);

impl Permits {
    fn give(&self) {
        if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
            // SAFETY: wakes one waiter of a word that lives.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    1,
                )
            };
        }
    }

    fn take(&self) {
        loop {
            let seen = self.0.load(Ordering::SeqCst);
            if seen == 0 {
                let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                // SAFETY: sleeps while the word is 0; no deadline.
                unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), wait, 0, 0usize) };
            } else if self
                .0
                .compare_exchange(seen, seen - 1, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                return;
            }
        }
    }
}

/// A ring of threads that pass tokens on: a lost wake-up stops the ring for ever.
pub fn wake_ups(count: u32) -> Result<()> {
    const TOKENS: usize = 3;
    let threads = 2 * processors() + 1;
    let rounds = count.div_ceil(threads as u32);
    let ring: Vec<Permits> = (0..threads)
        .map(|n| Permits(AtomicU32::new(u32::from(n < TOKENS))))
        .collect();
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for n in 0..threads {
            let (ring, passed) = (&ring, &passed);
            scope.spawn(move || {
                for _ in 0..rounds {
                    ring[n].take();
                    ring[(n + 1) % threads].give();
                }
                passed.fetch_add(u64::from(rounds), Ordering::Relaxed);
            });
        }
    });
    let passed = passed.load(Ordering::Relaxed);
    ensure!(passed >= u64::from(count), "only {passed} were passed on");
    let left: u32 = ring
        .iter()
        .map(|permits| permits.0.load(Ordering::Relaxed))
        .sum();
    ensure!(left == TOKENS as u32, "{left} tokens are left of {TOKENS}");
    Ok(())
}

fn no_lost_wake_up() -> Result<()> {
    wake_ups(400_000)
}

/// Threads that are moved about, by themselves and by others, while they sleep and run.
fn affinity_churn() -> Result<()> {
    const ROUNDS: u32 = 300;
    let threads = processors() + 2;
    let ids: Vec<AtomicU32> = (0..threads).map(|_| AtomicU32::new(0)).collect();
    let permits: Vec<Permits> = (0..threads).map(|_| Permits(AtomicU32::new(0))).collect();
    let all = if processors() >= 64 {
        u64::MAX
    } else {
        (1 << processors()) - 1
    };
    let churn = |n: usize| -> Result<()> {
        ids[n].store(this_thread() as u32, Ordering::SeqCst);
        let mut random = n as u64 + 1;
        for round in 0..ROUNDS {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let cpu = (random >> 33) as usize % processors();
            let next = (n + 1) % threads;
            let other = ids[next].load(Ordering::SeqCst) as c_int;
            if round % 3 == 0 && other != 0 {
                // It may have ended by now.
                let _ = pin(other, cpu);
            }
            set_processors(0, 1 << cpu)?;
            permits[next].give();
            if permits[n].0.load(Ordering::SeqCst) != 0 {
                permits[n].take();
            }
            set_processors(0, all)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let churn = &churn;
        let threads: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || churn(n)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread ended well"))
    })
}

/// Everything at once: threads that compute, sleep, pass turns, change policies, come and go; and
/// processes.
fn soak() -> Result<()> {
    const ROUNDS: u64 = 20;
    let policies = [
        (libc::SCHED_OTHER, 0),
        (libc::SCHED_BATCH, 0),
        (libc::SCHED_IDLE, 0),
        (libc::SCHED_RR, 1),
        (libc::SCHED_FIFO, 2),
    ];
    let permits = Permits(AtomicU32::new(0));
    let work = |n: usize| -> Result<()> {
        let mut ran = own_time();
        for round in 0..ROUNDS {
            let before = std::mem::replace(&mut ran, own_time());
            ensure!(
                ran >= before,
                "the thread's time went back from {before:?} to {ran:?}"
            );
            let (policy, priority) = policies[(n + round as usize) % policies.len()];
            set_scheduler(0, policy, priority)
                .map_err(|e| anyhow::anyhow!("policy {policy}: error {e}"))?;
            match (n as u64 + round) % 5 {
                0 => thread::sleep(Duration::from_micros(300)),
                1 => {
                    let sum: u64 = std::hint::black_box(
                        (0..20_000u64).fold(0, |sum, k| sum ^ k.wrapping_mul(k)),
                    );
                    ensure!(sum != 1, "arithmetic failed");
                }
                2 => {
                    permits.give();
                    permits.take();
                }
                3 => thread::scope(|scope| scope.spawn(thread::yield_now).join())
                    .ok()
                    .context("a thread failed")?,
                _ => {
                    if policy_of_child()? != policy {
                        bail!("a child has another policy than {policy}");
                    }
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..3 * processors() + 2)
            .map(|n| scope.spawn(move || work(n)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread ended well"))
    })
}
