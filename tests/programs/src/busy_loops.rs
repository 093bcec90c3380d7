//! Programs that want a processor for themselves: they compute for ever.

use std::process::ExitCode;
use std::{hint, io};

use crate::checked;

/// `machine-tests real-time-loop`: at the highest real-time priority, until it is killed.
pub fn real_time() -> ExitCode {
    let highest = libc::sched_param { sched_priority: 99 };
    // SAFETY: the structure outlives the call, which only reads it.
    let set = checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const highest) });
    compute("real-time-loop", set.map(drop))
}

/// `machine-tests ordinary-loop`: as a user without rights, until it is killed.
pub fn ordinary() -> ExitCode {
    const NOBODY: libc::uid_t = 65_534;
    // SAFETY: the call takes a number.
    let set = checked(unsafe { libc::setuid(NOBODY) });
    compute("ordinary-loop", set.map(drop))
}

fn compute(name: &str, set: io::Result<()>) -> ExitCode {
    if let Err(error) = set {
        println!("{name}: {error}");
        return ExitCode::FAILURE;
    }
    loop {
        hint::black_box(());
    }
}
