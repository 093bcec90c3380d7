//! A user's program that asks the kernel for objects all the while, none of which may be refused.

use std::fs::File;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{io, path::Path, ptr, thread};

use anyhow::{Context, Result, ensure};
use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_POPULATE, MAP_PRIVATE, PROT_READ, PROT_WRITE};

use crate::checked;
use crate::leaving_cpus::told;

/// Bytes that a round maps and gives back: more pages than a CPU hands out without looking at what
/// the kernel has.
const BYTES: usize = 1 << 20;

/// `machine-tests unrefused FILE`: as a user without rights, says `ready`, and until the file is
/// there opens files and pipes, starts threads and processes, and maps memory.
pub fn run(done: &str) -> ExitCode {
    told("unrefused", ask_until(done))
}

fn ask_until(done: &str) -> Result<String> {
    const NOBODY: libc::uid_t = 65_534;
    // SAFETY: the call takes a number.
    checked(unsafe { libc::setuid(NOBODY) })?;
    println!("ready");
    let mut rounds = 0;
    while !Path::new(done).exists() {
        ask().with_context(|| format!("round {rounds}"))?;
        rounds += 1;
    }
    ensure!(rounds > 0, "nothing was asked for");
    Ok("nothing was refused".into())
}

fn ask() -> Result<()> {
    let protection = PROT_READ | PROT_WRITE;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    // SAFETY: a place of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    ensure!(at != MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    let _null = File::open("/dev/null").context("a file")?;
    let _pipe = io::pipe().context("a pipe")?;
    let idle = || thread::sleep(Duration::from_micros(1));
    let thread = thread::Builder::new().spawn(idle).context("a thread")?;
    let ended = Command::new("/bin/true").status().context("a process")?;
    ensure!(ended.success(), "/bin/true: {ended}");
    thread.join().ok().context("the thread panicked")?;
    // SAFETY: mapped above, and nothing refers to it.
    checked(unsafe { libc::munmap(at, BYTES) })?;
    Ok(())
}
