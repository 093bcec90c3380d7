//! Resource usage of programs: `getrusage(2)`, `times(2)` and the like.

use std::time::Duration;
use std::{hint, mem, thread};

use anyhow::{Result, ensure};

use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("rusage-time-in-short-calls", time_in_short_calls),
    ("rusage-time-in-all-threads", all_threads),
];

/// Times in user mode and in the kernel.
fn times(who: i32) -> Result<[Duration; 2]> {
    // SAFETY: the structure is plain old data, and valid.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        checked(libc::getrusage(who, &mut usage))?;
        usage
    };
    Ok([usage.ru_utime, usage.ru_stime]
        .map(|t| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000)))
}

/// Repeats `work` for a third of a second of processor time, in a child; how much of it was the
/// kernel's.
fn share_of_kernel(mut work: impl FnMut()) -> Result<f64> {
    in_child(|| {
        let mut before = times(libc::RUSAGE_SELF)?;
        loop {
            for _ in 0..2000 {
                work();
            }
            let now = times(libc::RUSAGE_SELF)?;
            ensure!(
                now[0] >= before[0] && now[1] >= before[1],
                "time goes back: {before:?}, {now:?}"
            );
            before = now;
            if now[0] + now[1] > Duration::from_millis(330) {
                return Ok(());
            }
        }
    })?;
    let [user, system] = times(libc::RUSAGE_CHILDREN)?;
    Ok(system.as_secs_f64() / (user + system).as_secs_f64())
}

fn time_in_short_calls() -> Result<()> {
    let mut shares = [0.0; 3];
    // Each in a child, so that what its children used is its own question.
    for (place, share) in shares.iter_mut().enumerate() {
        let mut pipe = [0; 2];
        // SAFETY: the array has room for both.
        checked(unsafe { libc::pipe(pipe.as_mut_ptr()) })?;
        in_child(|| {
            let share = match place {
                0 => share_of_kernel(|| (0..100).for_each(|n| _ = hint::black_box(n)))?,
                // SAFETY: the call takes nothing.
                1 => share_of_kernel(|| _ = unsafe { libc::syscall(libc::SYS_getppid) })?,
                _ => {
                    // SAFETY: the names are strings.
                    let zero =
                        checked(unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY) })?;
                    let mut byte = 0u8;
                    // SAFETY: the byte is valid.
                    share_of_kernel(|| _ = unsafe { libc::read(zero, (&raw mut byte).cast(), 1) })?
                }
            };
            let bytes = share.to_ne_bytes();
            // SAFETY: the bytes are valid.
            checked(unsafe { libc::write(pipe[1], bytes.as_ptr().cast(), 8) as i32 })?;
            Ok(())
        })?;
        let mut bytes = [0; 8];
        // SAFETY: the bytes are valid; the descriptors are this function's.
        unsafe {
            checked(libc::read(pipe[0], bytes.as_mut_ptr().cast(), 8) as i32)?;
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        *share = f64::from_ne_bytes(bytes);
    }
    let [none, calls, reads] = shares;
    ensure!(
        calls > none && reads > none,
        "shares of the kernel: {none:.3} without calls, {calls:.3} and {reads:.3} with"
    );
    Ok(())
}

fn all_threads() -> Result<()> {
    in_child(|| {
        let spin = || {
            let mut own = [Duration::ZERO; 2];
            while own[0] + own[1] < Duration::from_millis(30) {
                own = times(libc::RUSAGE_THREAD)?;
            }
            Ok::<_, anyhow::Error>(own[0] + own[1])
        };
        let other = thread::spawn(spin).join().expect("the thread ended well")?;
        let mine = spin()?;
        let [user, system] = times(libc::RUSAGE_SELF)?;
        ensure!(
            user + system >= other + mine,
            "{user:?} and {system:?} are less than {other:?} and {mine:?}"
        );
        Ok(())
    })
}
