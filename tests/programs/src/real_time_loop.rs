//! A program that wants a processor for itself: it computes for ever at the highest real-time
//! priority.

use std::process::ExitCode;
use std::{hint, io};

/// `machine-tests real-time-loop`: until it is killed.
pub fn run() -> ExitCode {
    let highest = libc::sched_param { sched_priority: 99 };
    // SAFETY: the structure outlives the call, which only reads it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const highest) } != 0 {
        println!("real-time-loop: {}", io::Error::last_os_error());
        return ExitCode::FAILURE;
    }
    loop {
        hint::black_box(());
    }
}
