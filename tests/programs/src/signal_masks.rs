//! The signal mask of calls that exchange it while they wait: however the call ends, the mask is
//! afterwards what it was before, and a signal is handled under the mask that was given.

use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pipe};

pub const CHECKS: &[(&str, Check)] = &[
    ("signal-masks-after-a-signal", after_a_signal),
    ("signal-masks-after-an-event", after_an_event),
    ("signal-masks-after-a-time-out", after_a_time_out),
    ("signal-masks-after-an-error", after_an_error),
    ("signal-masks-of-nested-waits", of_nested_waits),
    ("signal-masks-a-thousand-times", a_thousand_times),
];

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);
/// The mask as the handler last saw it.
static INSIDE: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
    INSIDE.store(current(), Ordering::SeqCst);
}

/// The mask of this thread.
fn current() -> u64 {
    let mut mask = 0u64;
    call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut mask, 8);
    mask
}

fn set(mask: u64) {
    call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8);
}

fn handle(signal: i32) -> Result<()> {
    // SAFETY: the handler only makes a system call and touches atomics.
    let before = unsafe { libc::signal(signal, note as *const () as usize) };
    ensure!(before != libc::SIG_ERR, "signal {signal}");
    Ok(())
}

/// Signal mask outside of waiting calls: two signals, the first of which is let in while a call
/// waits.
const OUTSIDE: u64 = bit(libc::SIGUSR1) | bit(libc::SIGUSR2) | bit(34);
/// Signal mask while a call waits: another signal instead of the first.
static WAITING: u64 = bit(libc::SIGUSR2) | bit(libc::SIGWINCH);

/// Arguments of a waiting call: descriptors of pipes, of which the first can be read or not, and an
/// epoll set of both.
struct Things {
    pipe: [Fd; 2],
    set: Fd,
}

impl Things {
    fn new() -> Result<Self> {
        let pipe = pipe(0)?;
        let set = Fd::new(call!(SYS_epoll_create1, 0), "epoll_create1")?;
        let event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 1,
        };
        is(
            call!(
                SYS_epoll_ctl,
                set.0,
                libc::EPOLL_CTL_ADD,
                pipe[0].0,
                &raw const event
            ),
            0,
            "epoll_ctl",
        )?;
        Ok(Self { pipe, set })
    }

    fn make_readable(&self) -> Result<()> {
        is(
            call!(SYS_write, self.pipe[1].0, c"x".as_ptr(), 1),
            1,
            "write",
        )
    }

    fn empty(&self) -> Result<()> {
        let mut byte = 0u8;
        is(call!(SYS_read, self.pipe[0].0, &raw mut byte, 1), 1, "read")
    }
}

/// A call that exchanges the mask while it waits for a pipe. It is told the mask and after how many
/// nanoseconds it gives up.
type Wait = fn(&Things, &u64, Option<i64>) -> i64;

fn time(limit: Option<i64>, place: &mut [i64; 2]) -> *const i64 {
    match limit {
        Some(nanoseconds) => {
            *place = [0, nanoseconds];
            place.as_ptr()
        }
        None => ptr::null(),
    }
}

fn by_ppoll(things: &Things, mask: &u64, limit: Option<i64>) -> i64 {
    let mut polled = libc::pollfd {
        fd: things.pipe[0].0,
        events: libc::POLLIN,
        revents: 0,
    };
    call!(
        SYS_ppoll,
        &raw mut polled,
        1,
        time(limit, &mut [0; 2]),
        ptr::from_ref(mask),
        8
    )
}

fn by_pselect(things: &Things, mask: &u64, limit: Option<i64>) -> i64 {
    let mut read = [0u64; 16];
    read[things.pipe[0].0 as usize / 64] |= 1 << (things.pipe[0].0 % 64);
    let with = [ptr::from_ref(mask) as usize, 8];
    call!(
        SYS_pselect6,
        things.pipe[0].0 + 1,
        read.as_mut_ptr(),
        0,
        0,
        time(limit, &mut [0; 2]),
        with.as_ptr()
    )
}

fn by_epoll_pwait(things: &Things, mask: &u64, limit: Option<i64>) -> i64 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let milliseconds = limit.map_or(-1, |nanoseconds| nanoseconds / 1_000_000);
    call!(
        SYS_epoll_pwait,
        things.set.0,
        &raw mut event,
        1,
        milliseconds,
        ptr::from_ref(mask),
        8
    )
}

fn by_epoll_pwait2(things: &Things, mask: &u64, limit: Option<i64>) -> i64 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    call!(
        SYS_epoll_pwait2,
        things.set.0,
        &raw mut event,
        1,
        time(limit, &mut [0; 2]),
        ptr::from_ref(mask),
        8
    )
}

/// Waits in `rt_sigsuspend`, which ends by a signal only.
fn by_sigsuspend(_: &Things, mask: &u64, _: Option<i64>) -> i64 {
    call!(SYS_rt_sigsuspend, ptr::from_ref(mask), 8)
}

const POLLING: [(&str, Wait); 4] = [
    ("ppoll", by_ppoll),
    ("pselect6", by_pselect),
    ("epoll_pwait", by_epoll_pwait),
    ("epoll_pwait2", by_epoll_pwait2),
];

fn send(signal: i32) -> Result<()> {
    is(
        call!(SYS_tgkill, std::process::id(), call!(SYS_gettid), signal),
        0,
        "tgkill",
    )
}

/// One wait that a signal ends, which was sent before: it is handled under the mask of the call.
fn ended_by_a_signal(things: &Things, wait: Wait) -> Result<()> {
    let before = HANDLED.load(Ordering::SeqCst);
    set(OUTSIDE);
    send(libc::SIGUSR1)?;
    send(libc::SIGUSR2)?;
    fails(wait(things, &WAITING, None), libc::EINTR, "the wait")?;
    ensure!(
        HANDLED.load(Ordering::SeqCst) == before + 1,
        "{} signals were handled",
        HANDLED.load(Ordering::SeqCst) - before
    );
    let inside = INSIDE.load(Ordering::SeqCst);
    ensure!(
        inside == WAITING | bit(libc::SIGUSR1),
        "the handler ran under {inside:x}"
    );
    ensure!(
        current() == OUTSIDE,
        "afterwards the mask is {:x}",
        current()
    );
    // The other one waits until it is let in.
    set(0);
    ensure!(
        HANDLED.load(Ordering::SeqCst) == before + 2,
        "the blocked signal is lost"
    );
    Ok(())
}

fn after_a_signal() -> Result<()> {
    let things = Things::new()?;
    handle(libc::SIGUSR1)?;
    handle(libc::SIGUSR2)?;
    for (name, wait) in POLLING
        .into_iter()
        .chain([("rt_sigsuspend", by_sigsuspend as Wait)])
    {
        ended_by_a_signal(&things, wait).context(name)?;
    }
    Ok(())
}

/// One wait that must leave the mask alone and let no signal in that the call's mask lets in, too:
/// there is an event.
fn ended_otherwise(things: &Things, wait: Wait, limit: Option<i64>, expected: i64) -> Result<()> {
    set(OUTSIDE);
    is(wait(things, &WAITING, limit), expected, "the wait")?;
    ensure!(
        current() == OUTSIDE,
        "afterwards the mask is {:x}",
        current()
    );
    Ok(())
}

fn after_an_event() -> Result<()> {
    let things = Things::new()?;
    handle(libc::SIGUSR1)?;
    things.make_readable()?;
    for (name, wait) in POLLING {
        for limit in [None, Some(0), Some(5_000_000)] {
            ended_otherwise(&things, wait, limit, 1).context(name)?;
        }
        // An event that is there comes before a signal that is.
        let before = HANDLED.load(Ordering::SeqCst);
        send(libc::SIGUSR1)?;
        is(wait(&things, &WAITING, None), 1, name)?;
        ensure!(
            HANDLED.load(Ordering::SeqCst) == before,
            "{name} let the signal in"
        );
        ensure!(
            current() == OUTSIDE,
            "{name}: afterwards the mask is {:x}",
            current()
        );
        set(0);
        ensure!(
            HANDLED.load(Ordering::SeqCst) == before + 1,
            "{name}: the signal is lost"
        );
    }
    // From a thread, while the call waits.
    things.empty()?;
    for (name, wait) in POLLING {
        std::thread::scope(|scope| {
            let child = scope.spawn(|| things.make_readable());
            let result = ended_otherwise(&things, wait, None, 1).context(name);
            child
                .join()
                .map_err(|_| anyhow::anyhow!("the thread panicked"))??;
            result
        })?;
        things.empty()?;
    }
    Ok(())
}

fn after_a_time_out() -> Result<()> {
    let things = Things::new()?;
    for (name, wait) in POLLING {
        for limit in [0, 3_000_000] {
            ended_otherwise(&things, wait, Some(limit), 0)
                .with_context(|| format!("{name} of {limit} ns"))?;
        }
    }
    Ok(())
}

fn after_an_error() -> Result<()> {
    let things = Things::new()?;
    let mask = WAITING;
    set(OUTSIDE);
    let same = |name: &str| -> Result<()> {
        ensure!(
            current() == OUTSIDE,
            "after {name} the mask is {:x}",
            current()
        );
        Ok(())
    };
    fails(
        call!(SYS_ppoll, 1, 1, 0, &raw const mask, 8),
        libc::EFAULT,
        "ppoll of nothing",
    )?;
    same("ppoll of nothing")?;
    fails(
        call!(SYS_ppoll, 0, 0, [0i64, -1].as_ptr(), &raw const mask, 8),
        libc::EINVAL,
        "ppoll of no time",
    )?;
    same("ppoll of no time")?;
    fails(
        call!(SYS_ppoll, 0, 0, 0, &raw const mask, 4),
        libc::EINVAL,
        "ppoll with half a mask",
    )?;
    fails(
        call!(SYS_ppoll, 0, 0, 0, 1, 8),
        libc::EFAULT,
        "ppoll with no mask",
    )?;
    same("ppoll with no mask")?;
    let read = [u64::MAX; 16];
    let with = [&raw const mask as usize, 8];
    fails(
        call!(SYS_pselect6, 900, read.as_ptr(), 0, 0, 0, with.as_ptr()),
        libc::EBADF,
        "pselect6 of nothing",
    )?;
    same("pselect6 of nothing")?;
    fails(
        call!(SYS_pselect6, -1i32, 0, 0, 0, 0, with.as_ptr()),
        libc::EINVAL,
        "pselect6 of -1",
    )?;
    same("pselect6 of -1")?;
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let wait = |fd: i32, most: i32, event: *mut libc::epoll_event| {
        call!(SYS_epoll_pwait, fd, event, most, -1i32, &raw const mask, 8)
    };
    fails(
        wait(things.pipe[0].0, 1, &raw mut event),
        libc::EINVAL,
        "epoll_pwait of a pipe",
    )?;
    same("epoll_pwait of a pipe")?;
    fails(
        wait(-1, 1, &raw mut event),
        libc::EBADF,
        "epoll_pwait of nothing",
    )?;
    same("epoll_pwait of nothing")?;
    fails(
        wait(things.set.0, 0, &raw mut event),
        libc::EINVAL,
        "epoll_pwait for nothing",
    )?;
    same("epoll_pwait for nothing")?;
    things.make_readable()?;
    fails(
        wait(things.set.0, 1, ptr::without_provenance_mut(8)),
        libc::EFAULT,
        "epoll_pwait to nowhere",
    )?;
    same("epoll_pwait to nowhere")?;
    fails(
        call!(SYS_rt_sigsuspend, &raw const mask, 4),
        libc::EINVAL,
        "rt_sigsuspend with half a mask",
    )?;
    fails(
        call!(SYS_rt_sigsuspend, 1, 8),
        libc::EFAULT,
        "rt_sigsuspend without a mask",
    )?;
    same("rt_sigsuspend without a mask")
}

static INNER: AtomicU64 = AtomicU64::new(0);

extern "C" fn waits_again(_: i32) {
    let mask = !bit(libc::SIGUSR2);
    call!(
        SYS_tgkill,
        std::process::id(),
        call!(SYS_gettid),
        libc::SIGUSR2
    );
    call!(SYS_rt_sigsuspend, &raw const mask, 8);
    INNER.store(current(), Ordering::SeqCst);
}

/// A handler that waits itself: each wait gives back its own mask.
fn of_nested_waits() -> Result<()> {
    handle(libc::SIGUSR2)?;
    // SAFETY: the handler only makes system calls and touches atomics.
    unsafe { libc::signal(libc::SIGUSR1, waits_again as *const () as usize) };
    set(OUTSIDE);
    send(libc::SIGUSR1)?;
    fails(
        call!(SYS_rt_sigsuspend, &raw const WAITING, 8),
        libc::EINTR,
        "rt_sigsuspend",
    )?;
    ensure!(
        HANDLED.load(Ordering::SeqCst) == 1,
        "the inner signal was handled {} times",
        HANDLED.load(Ordering::SeqCst)
    );
    let inner = INNER.load(Ordering::SeqCst);
    ensure!(
        inner == WAITING | bit(libc::SIGUSR1),
        "the outer handler went on under {inner:x}"
    );
    ensure!(
        current() == OUTSIDE,
        "afterwards the mask is {:x}",
        current()
    );
    // SIGKILL and SIGSTOP cannot be kept out by a mask, and are not in it afterwards.
    set(u64::MAX);
    ensure!(
        current() == !(bit(libc::SIGKILL) | bit(libc::SIGSTOP)),
        "{:x}",
        current()
    );
    Ok(())
}

fn a_thousand_times() -> Result<()> {
    let things = Things::new()?;
    handle(libc::SIGUSR1)?;
    handle(libc::SIGUSR2)?;
    for _ in 0..200 {
        for (name, wait) in POLLING
            .into_iter()
            .chain([("rt_sigsuspend", by_sigsuspend as Wait)])
        {
            ended_by_a_signal(&things, wait).context(name)?;
        }
    }
    ensure!(current() == 0, "{:x}", current());
    Ok(())
}
