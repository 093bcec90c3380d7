//! A host that lets virtual processors stand still: stops single threads of a process for a while,
//! from a seed. It runs beside the machine, on the host.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context, Result, ensure};

use crate::fuzz::Random;

/// Prefix of the names that QEMU gives to its threads that are processors.
const PROCESSOR: &str = "CPU ";

/// `machine-tests stop-threads PID SEED`: until the process ends.
pub fn run([process, seed]: [&str; 2]) -> ExitCode {
    match stop(process, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("stop-threads: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `machine-tests hold-thread PID NUMBER`: stops that processor, says so, and holds it until this
/// program is ended, or the processor's thread is.
pub fn hold([process, number]: [&str; 2]) -> ExitCode {
    let name = format!("{PROCESSOR}{number}/");
    let held = || -> Result<i32> {
        let threads = threads(
            process.parse().context("not the number of a process")?,
            &name,
        );
        let thread = *threads.first().context("there is no such thread")?;
        seize(thread)?;
        Ok(thread)
    };
    match held() {
        Ok(thread) => {
            println!("held");
            reap(thread);
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("hold-thread: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn stop(process: &str, seed: &str) -> Result<()> {
    let process: i32 = process.parse().context("not the number of a process")?;
    let mut random = Random::new(seed.parse().context("not a seed")?, 0, 0);
    let start = Instant::now();
    let mut stops = 0u32;
    loop {
        let threads = threads(process, PROCESSOR);
        if threads.is_empty() {
            ensure!(
                stops > 0,
                "process {process} has no threads called {PROCESSOR:?}"
            );
            println!("{stops} stops in {:.0} s", start.elapsed().as_secs_f64());
            return Ok(());
        }
        thread::sleep(Duration::from_millis(random.below(300)));
        // One, or all of them: in each of both cases somebody is late.
        let all = random.below(8) == 0;
        let chosen = random.below(threads.len() as u64) as usize;
        let stopped: Vec<i32> = threads
            .iter()
            .enumerate()
            .filter(|(index, thread)| (all || *index == chosen) && seize(**thread).is_ok())
            .map(|(_, thread)| *thread)
            .collect();
        stops += 1;
        thread::sleep(Duration::from_millis(match random.below(100) {
            0..70 => random.below(50),
            70..97 => random.below(800),
            _ => random.below(8000),
        }));
        for thread in stopped {
            // It may have ended, with its process.
            if ptrace(libc::PTRACE_DETACH, thread).is_err() {
                reap(thread);
            }
        }
    }
}

/// The threads of a process whose names begin so; none when it has ended.
fn threads(process: i32, prefix: &str) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let wanted = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        name.starts_with(prefix)
            .then(|| task.file_name().to_str()?.parse().ok())?
    };
    let mut threads: Vec<i32> = tasks.flatten().filter_map(wanted).collect();
    threads.sort_unstable();
    threads
}

/// Waits for the end of a thread that this program traces. Who traces a thread has to: until then
/// the thread stays, and with it its whole process, for whose end the parent waits in vain: a run
/// of all tests did, for a machine that was killed while one of its processors was held.
fn reap(thread: i32) {
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call, which writes to nothing else.
        let failed = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } == -1;
        if failed || libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            return;
        }
    }
}

/// Stops a thread until it is detached, or this program ends.
fn seize(thread: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE, thread)?;
    ptrace(libc::PTRACE_INTERRUPT, thread)?;
    let mut status = 0;
    // SAFETY: `status` outlives the call, which writes to nothing else.
    match unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn ptrace(request: libc::c_uint, thread: i32) -> io::Result<()> {
    // SAFETY: the three requests used here read and write no memory.
    match unsafe { libc::syscall(libc::SYS_ptrace, request, thread, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
