//! Pressure stall information: `/proc/pressure`, and triggers.

use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use libc::{POLLERR, POLLPRI, c_short, pollfd};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("pressure-files-can-be-read", files_can_be_read),
    (
        "pressure-bad-triggers-are-refused",
        bad_triggers_are_refused,
    ),
    ("pressure-trigger-tells", trigger_tells),
];

fn total(resource: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/pressure/{resource}"))?;
    let (some, full) = text.trim_end().split_once('\n').context("not two lines")?;
    for (line, name) in [(some, "some"), (full, "full")] {
        let words: Vec<&str> = line.split(' ').collect();
        let names = ["avg10=", "avg60=", "avg300=", "total="];
        ensure!(words.len() == 5 && words[0] == name, "{line}");
        ensure!(
            words[1..].iter().zip(names).all(|(word, name)| word
                .strip_prefix(name)
                .is_some_and(|n| n.parse::<f64>().is_ok())),
            "{line}"
        );
    }
    Ok(some.rsplit_once('=').context("no total")?.1.parse()?)
}

fn files_can_be_read() -> Result<()> {
    for resource in ["cpu", "memory", "io"] {
        total(resource).context(resource)?;
    }
    Ok(())
}

fn bad_triggers_are_refused() -> Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/pressure/cpu")?;
    for text in ["often", "some 1000000 1", "some 1", "half 100000 1000000"] {
        ensure!(
            file.write(text.as_bytes())
                .err()
                .and_then(|e| e.raw_os_error())
                == Some(libc::EINVAL),
            "{text} is accepted"
        );
    }
    file.write_all(b"some 1000000 2000000\0")?;
    let again = file
        .write(b"some 1000000 2000000\0")
        .err()
        .and_then(|e| e.raw_os_error());
    ensure!(again == Some(libc::EBUSY), "a second trigger: {again:?}");
    Ok(())
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Wants a processor until told otherwise.
fn work() {
    let mut n = 0u64;
    while !STOP.load(Ordering::Relaxed) {
        n = black_box(n + 1);
    }
}

/// More threads than processors want to run: half of them wait all the time.
fn trigger_tells() -> Result<()> {
    let before = total("cpu")?;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/pressure/cpu")?;
    file.write_all(b"some 50000 2000000\0")?;
    let threads: Vec<_> = (0..2 * thread::available_parallelism()?.get())
        .map(|_| thread::spawn(work))
        .collect();
    let mut poll = pollfd {
        fd: file.as_raw_fd(),
        events: POLLPRI as c_short,
        revents: 0,
    };
    // SAFETY: one structure, as it says.
    let found = checked(unsafe { libc::poll(&mut poll, 1, 20_000) });
    STOP.store(true, Ordering::Relaxed);
    for thread in threads {
        thread
            .join()
            .map_err(|_| io::Error::other("a thread failed"))?;
    }
    ensure!(
        found? == 1 && poll.revents & POLLPRI != 0 && poll.revents & POLLERR == 0,
        "poll said {:#x}",
        poll.revents
    );
    let stalled = total("cpu")? - before;
    ensure!(stalled >= 50_000, "{stalled} us of stall");
    Ok(())
}
