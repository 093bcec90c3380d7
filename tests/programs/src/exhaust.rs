//! Memory until there is none: several processes at once take all there is, by several ways, and
//! afterwards as much is free as before. Not one of the ordinary checks: on other systems it would
//! take other programs with it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, ptr, thread};

use anyhow::{Context, Result, ensure};
use libc::{MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE, pid_t};

use crate::checked;

const PAGE: usize = 4096;
/// Rounds before the first look: until the kernel's own pools are as full as they get.
const WARM_UP: usize = 2;
const ROUNDS: usize = 3;
/// Tolerance for the kernel's pools against the first look, in KiB for each processor.
const SLACK: u64 = 256;

/// `machine-tests exhaust PROCESSES`.
pub fn run(processes: &str) -> ExitCode {
    let outcome = processes.parse().context("not a number").and_then(exhaust);
    match outcome {
        Ok(said) => {
            println!("ok exhaust: {said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("not ok exhaust: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn exhaust(processes: u64) -> Result<String> {
    let mut looks = Vec::with_capacity(WARM_UP + ROUNDS);
    the_heaviest_ends().context("one that takes all beside one that takes little")?;
    for _ in 0..WARM_UP + ROUNDS {
        in_children(processes, touch_until_killed, Some(libc::SIGKILL))
            .context("touching pages")?;
        in_children(processes, fill_a_file, None).context("filling files")?;
        in_children(processes, map_and_fork, None).context("forking")?;
        looks.push(Free::now()?);
    }
    let first = &looks[WARM_UP - 1];
    let slack = SLACK * processes;
    let mut last = Free::now()?;
    // Given back after a grace period or by a thread of the kernel is given back; lost is lost.
    let begin = Instant::now();
    while (last.pages > first.pages || last.free + slack < first.free)
        && begin.elapsed() < Duration::from_secs(20)
    {
        thread::sleep(Duration::from_millis(20));
        last = Free::now()?;
    }
    let pages: Vec<u64> = looks.iter().map(|look| look.pages).collect();
    ensure!(
        last.pages <= first.pages,
        "KiB of pages from round to round: {pages:?}, then {}",
        last.pages
    );
    ensure!(
        last.free + slack >= first.free,
        "{} KiB free before, {} after",
        first.free,
        last.free
    );
    Ok(format!(
        "{} KiB free before, {} after; {} KiB of pages before, {} after",
        first.free, last.free, first.pages, last.pages
    ))
}

/// Runs `what` in processes of their own, all at once, and sees how they end: by this signal, or
/// with status 0.
fn in_children(processes: u64, what: fn() -> Result<()>, signal: Option<i32>) -> Result<()> {
    let mut children: Vec<pid_t> = Vec::new();
    for _ in 0..processes {
        // SAFETY: this program has one thread; the child uses what it finds and ends without
        // returning.
        match checked(unsafe { libc::fork() })? {
            0 => {
                let status = match what() {
                    Ok(()) => 0,
                    Err(error) => {
                        println!("not ok: {error:#}");
                        1
                    }
                };
                // SAFETY: ends the child.
                unsafe { libc::_exit(status) }
            }
            child => children.push(child),
        }
    }
    for child in children {
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        checked(unsafe { libc::waitpid(child, &mut status, 0) })?;
        match signal {
            Some(signal) => {
                ensure!(
                    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal,
                    "a child ended with {status:#x}"
                );
            }
            None => ensure!(
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
                "a child ended with {status:#x}"
            ),
        }
    }
    Ok(())
}

/// The process that has taken most ends, not one that asks for a little while there is none.
fn the_heaviest_ends() -> Result<()> {
    const LITTLE: usize = 1 << 20;
    let (mut told, tells) = std::io::pipe()?;
    // SAFETY: this program has one thread; the children use what they find and end without
    // returning.
    let modest = checked(unsafe { libc::fork() })?;
    if modest == 0 {
        drop(tells);
        let mut status = 1;
        // SAFETY: the mapping is this child's; it is taken and given back again and again.
        unsafe {
            let mut set = libc::pollfd {
                fd: std::os::fd::AsRawFd::as_raw_fd(&told),
                events: libc::POLLIN,
                revents: 0,
            };
            while libc::poll(&raw mut set, 1, 0) == 0 {
                let Ok(at) = map(LITTLE) else { break };
                (0..LITTLE)
                    .step_by(PAGE)
                    .for_each(|offset| at.add(offset).write_volatile(1));
                libc::munmap(at.cast(), LITTLE);
            }
            if told.read(&mut [0]).is_ok() {
                status = 0;
            }
            libc::_exit(status);
        }
    }
    drop(told);
    in_children(1, touch_until_killed, Some(libc::SIGKILL)).context("the greedy one")?;
    drop(tells);
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    checked(unsafe { libc::waitpid(modest, &raw mut status, 0) })?;
    ensure!(status == 0, "the modest one ended with {status:#x}");
    // Asking for more than there is, without saying that it is not meant.
    let length = 2 * Free::now()?.total as usize * 1024;
    // SAFETY: a new mapping, which is not made.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    ensure!(at == libc::MAP_FAILED, "twice the memory was promised");
    Ok(())
}

/// Takes more pages than the machine has.
fn touch_until_killed() -> Result<()> {
    let length = 2 * Free::now()?.total as usize * 1024;
    let at = map(length).context("mapping twice the memory")?;
    for offset in (0..length).step_by(PAGE) {
        // SAFETY: within the mapping.
        unsafe { at.add(offset).write_volatile(1) };
    }
    Ok(())
}

/// Writes to a file until there is no room, and removes it.
fn fill_a_file() -> Result<()> {
    let name = format!("/tmp/exhaust-{}", std::process::id());
    let mut file = File::create(&name)?;
    let error = loop {
        if let Err(error) = file.write_all(&[7; 16 * PAGE]) {
            break error;
        }
    };
    fs::remove_file(&name)?;
    ensure!(
        matches!(
            error.kind(),
            ErrorKind::StorageFull | ErrorKind::OutOfMemory
        ),
        "{error}"
    );
    Ok(())
}

/// Shares pages with a child, which copies them.
fn map_and_fork() -> Result<()> {
    const LENGTH: usize = 4 << 20;
    let at = map(LENGTH)?;
    for round in 0..4 {
        for offset in (0..LENGTH).step_by(PAGE) {
            // SAFETY: within the mapping.
            unsafe { at.add(offset).write_volatile(round) };
        }
        // SAFETY: this program has one thread; the child writes to its copy and ends.
        match checked(unsafe { libc::fork() })? {
            0 => {
                for offset in (0..LENGTH).step_by(2 * PAGE) {
                    // SAFETY: within the mapping.
                    unsafe { at.add(offset).write_volatile(99) };
                }
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: a child of this process.
            child => checked(unsafe { libc::waitpid(child, ptr::null_mut(), 0) })?,
        };
        ensure!(
            // SAFETY: within the mapping.
            unsafe { at.read_volatile() } == round,
            "a child wrote to its parent's page"
        );
    }
    Ok(())
}

fn map(length: usize) -> Result<*mut u8> {
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
            -1,
            0,
        )
    };
    ensure!(
        at != libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    // Every second process asks for large pages.
    let advice = if std::process::id().is_multiple_of(2) {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    // SAFETY: says how it is to be filled.
    checked(unsafe { libc::madvise(at, length, advice) })?;
    Ok(at.cast())
}

/// Memory as the kernel counts it, in KiB.
struct Free {
    total: u64,
    free: u64,
    pages: u64,
}

impl Free {
    fn now() -> Result<Self> {
        // On the stack: a buffer that the C library grows and keeps for later would be counted as
        // the kernel's loss.
        let mut buffer = [0; 4096];
        let length = File::open("/proc/meminfo")?.read(&mut buffer)?;
        let text = std::str::from_utf8(&buffer[..length])?;
        let field = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .with_context(|| format!("no {name}"))?;
            line.trim_start_matches(':')
                .split_whitespace()
                .next()
                .context("no number")?
                .parse::<u64>()
                .context(name.to_owned())
        };
        Ok(Self {
            total: field("MemTotal")?,
            free: field("MemFree")?,
            pages: field("AnonPages")?,
        })
    }
}
