//! Hostile calls of `/dev/skerry`, from a seed, by three threads at once: whatever root passes, the
//! supervisor goes on, what was made can be removed, and then everything is back. An instance that
//! is none of theirs does not notice.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use abi::dev;
use anyhow::{Context, Result, bail, ensure};

use super::Random;
use super::round::{interrupt_often, nothing};
use crate::checked;

/// Threads that make calls.
const THREADS: u64 = 3;
/// Time limit for what was made to go.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the longest argument, which the calls' codes tell, and then some: the kernel overwrote
/// what was behind when an argument had grown beyond a number that stood here.
const ROOM: usize = {
    let (mut longest, mut n) = (0, 0);
    while n < dev::CALLS.len() {
        let bytes = (dev::CALLS[n] >> 16 & 0x3fff) as usize;
        if bytes > longest {
            longest = bytes;
        }
        n += 1;
    }
    longest.next_multiple_of(8) + 64
};

/// Parts of archives and descriptions of programs: bytes that are neither.
static BYTES: [u8; 8192] = [b'0'; 8192];

/// An argument of a call.
#[repr(C, align(8))]
struct Argument([u8; ROOM]);

/// `machine-tests fuzz-ioctls SEED SECONDS SPARED`: `SPARED` is the number of the instance that is
/// not theirs.
pub fn run(arguments: &[&str]) -> ExitCode {
    crate::report("fuzz-ioctls", hunt(arguments))
}

fn call(device: &File, request: u32, argument: *mut Argument) -> i32 {
    // SAFETY: the kernel checks the argument; it writes no more than the structure there.
    unsafe { libc::ioctl(device.as_raw_fd(), u64::from(request), argument) }
}

fn known(device: &File, request: u32, argument: &mut Argument) -> Result<i32> {
    checked(call(device, request, argument)).with_context(|| format!("call {}", request & 0xff))
}

fn hunt(arguments: &[&str]) -> Result<()> {
    let [seed, seconds, spared] = arguments else {
        bail!("usage: fuzz-ioctls SEED SECONDS SPARED")
    };
    let (seed, spared): (u64, u32) = (seed.parse()?, spared.parse()?);
    let time = Duration::from_secs(seconds.parse()?);
    nobody_has_none()?;
    let device = File::options().read(true).write(true).open("/dev/skerry")?;
    all_are_known(&device)?;
    let free = free(&device)?;
    // SAFETY: the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
    }
    let (made, succeeded) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (device, made, succeeded) = (&device, &made, &succeeded);
            scope.spawn(move || {
                interrupt_often();
                let mut random = Random::new(seed, thread, 0);
                while start.elapsed() < time {
                    let done = make_one(device, &mut random, spared);
                    made.fetch_add(1, Ordering::Relaxed);
                    succeeded.fetch_add(u64::from(done), Ordering::Relaxed);
                }
            });
        }
    });
    remove_all(&device, spared, free)?;
    println!(
        "hunt-result {} calls, {} of them succeeded",
        made.into_inner(),
        succeeded.into_inner()
    );
    Ok(())
}

/// Checks that a user who is not root does not get the device.
fn nobody_has_none() -> Result<()> {
    use std::os::unix::process::CommandExt;
    let status = Command::new("/bin/sh")
        .args(["-c", ": < /dev/skerry"])
        .uid(super::round::NOBODY)
        .stderr(std::process::Stdio::null())
        .status()?;
    ensure!(!status.success(), "nobody can open the device");
    Ok(())
}

/// Checks that each call is one that the kernel has: otherwise none of them would be tried.
fn all_are_known(device: &File) -> Result<()> {
    for &request in dev::CALLS {
        let result = checked(call(device, request, std::ptr::null_mut()));
        let errno = result.err().and_then(|error| error.raw_os_error());
        ensure!(
            errno == Some(libc::EFAULT),
            "call {request:#x}, with no argument: {errno:?}"
        );
    }
    Ok(())
}

/// CPUs and memory that are free, and what is lost or in quarantine.
fn free(device: &File) -> Result<[u64; 4]> {
    let mut argument = Argument([0; ROOM]);
    known(device, dev::INFO, &mut argument)?;
    let word = |at: usize| {
        let bytes = argument.0[at..].first_chunk().copied().unwrap_or_default();
        u64::from(u32::from_ne_bytes(bytes))
    };
    let granted = |at: usize| word(at) | word(at + 4) << 32;
    // Free, lost and quarantined CPUs; memory with instances.
    Ok([word(8), word(12), word(16), granted(64)])
}

/// One call; whether it succeeded.
fn make_one(device: &File, random: &mut Random, spared: u32) -> bool {
    let mut argument = Argument([0; ROOM]);
    let request = random.pick(dev::CALLS);
    fill(random, request, &mut argument, spared);
    let mut code = request;
    if random.below(20) == 0 {
        let (flipped, any) = (code ^ 1 << random.below(32), random.next() as u32);
        code = random.pick(&[flipped, any]);
        // Not one of the others, whose number of an instance was not looked at.
        if code & 0xffff != request & 0xffff && code & 0xff00 == request & 0xff00 {
            return false;
        }
    }
    let place = match random.below(30) {
        0 => std::ptr::null_mut(),
        1 => std::ptr::without_provenance_mut(1 << 47),
        2 => std::ptr::without_provenance_mut(usize::MAX - 7),
        _ => &raw mut argument,
    };
    let result = call(device, code, place);
    if matches!(request, dev::ATTACH | dev::EVENTS | dev::EXEC) && result >= 0 {
        // SAFETY: the call made it, and nobody else has it.
        unsafe { libc::close(result) };
    }
    result >= 0
}

/// An argument of which some parts make sense.
fn fill(random: &mut Random, request: u32, argument: &mut Argument, spared: u32) {
    let bytes = &mut argument.0;
    for word in bytes.chunks_exact_mut(4) {
        if random.below(8) == 0 {
            let any = random.next() as u32;
            let value = random.pick(&[
                0,
                1,
                2,
                3,
                64,
                4096,
                u32::MAX,
                1 << 31,
                i32::MAX as u32,
                any,
            ]);
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }
    let mut put = |at: usize, value: u64, len: usize| {
        bytes[at..at + len].copy_from_slice(&value.to_ne_bytes()[..len]);
    };
    let pointer = random.pick(&[
        (&raw const BYTES).expose_provenance() as u64,
        0,
        1 << 47,
        u64::MAX - 4095,
    ]);
    if request == dev::CREATE {
        put(
            0,
            u64::from_ne_bytes(*b"hostile0") + (random.below(40) << 56),
            8,
        );
        put(8, 0, 8);
        put(64, random.pick(&[1, 1, 1, 2, 0, 77, u64::MAX]), 4);
        put(68, random.pick(&[0, 0, 1, 2, u64::MAX]), 4);
        let any = random.next();
        put(
            72,
            random.pick(&[
                48 << 20,
                48 << 20,
                64 << 20,
                0,
                4096,
                1 << 40,
                u64::MAX,
                any,
            ]),
            8,
        );
        return;
    }
    // The instances there may be, but not that one.
    let id = match spared + 1 + random.below(40) as u32 {
        id if random.below(10) != 0 => id,
        _ => random.pick(&[0, u32::MAX, 1 << 31]),
    };
    put(0, u64::from(id), 4);
    match request {
        dev::LOAD => {
            put(4, random.pick(&[1, 2, 2, 0, 3, u64::MAX]), 4);
            put(24, pointer, 8);
            let lengths = [0, 1, 16, 4096, 8192, 8193, 1 << 30, u64::MAX];
            put(8, random.pick(&lengths), 8);
            put(16, random.pick(&[0, 0, 0, 1, 4096, u64::MAX]), 8);
            put(32, random.pick(&lengths), 8);
        }
        dev::LIST => {
            // Where it goes is memory of nobody's: what the list is written to may be anything.
            put(8, random.pick(&[0, 8, 1 << 47, u64::MAX - 4095]), 8);
        }
        dev::WAIT => put(4, random.below(3), 4),
        dev::RESIZE => {
            put(4, random.pick(&[0, 0, 0, 1, 2, u64::MAX]), 4);
            put(12, random.pick(&[0, 1, 2, 3, u64::MAX]), 4);
            let any = random.next();
            put(
                16,
                random.pick(&[0, 0, 64 << 20, 72 << 20, 4096, u64::MAX, any]),
                8,
            );
        }
        dev::RENAME => {
            put(4, random.pick(&[0, 1, 1, 2, u64::MAX]), 4);
            let name = u64::from_ne_bytes(*b"hostile0") + (random.below(40) << 56);
            put(8, name, 8);
            put(16, 0, 8);
        }
        dev::STATS => put(4, random.pick(&[0, 1, 2, u64::MAX]), 4),
        dev::SETTLE => {
            put(4, random.below(3), 4);
            put(8, random.below(4), 8);
        }
        dev::EXEC => {
            put(4, random.pick(&[0, 1, u64::MAX]), 4);
            put(8, pointer, 8);
            put(16, random.pick(&[0, 1, 16, 4096, 8193, u64::MAX]), 8);
        }
        // There are a host bridge and the functions of the board, which cannot be given.
        dev::ADD_DEVICE | dev::REMOVE_DEVICE => {
            put(4, random.pick(&[0, 1, 1, 2, 3, 4, 6, u64::MAX]), 4);
            put(8, random.pick(&[0, 0xf8, 0xfa, 0xfb, u64::MAX]), 4);
        }
        _ => {}
    }
}

/// Removes what the calls have made.
fn remove_all(device: &File, spared: u32, before: [u64; 4]) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut numbers = [0u32; 256];
        let mut list = Argument([0; ROOM]);
        list.0[..4].copy_from_slice(&256u32.to_ne_bytes());
        let place = (&raw mut numbers).expose_provenance();
        list.0[8..16].copy_from_slice(&place.to_ne_bytes());
        known(device, dev::LIST, &mut list)?;
        let count = u32::from_ne_bytes([list.0[4], list.0[5], list.0[6], list.0[7]]) as usize;
        for id in &numbers[..count.min(256)] {
            if *id == spared {
                continue;
            }
            for request in [dev::HALT, dev::DESTROY] {
                let mut target = Argument([0; ROOM]);
                target.0[..4].copy_from_slice(&id.to_ne_bytes());
                // It may not run, or run still: the next look tells.
                let _ = known(device, request, &mut target);
            }
        }
        let now = free(device)?;
        if count <= 1 && now == before {
            return Ok(());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "{count} instances are left, of {before:?} there is {now:?}"
        );
        thread::yield_now();
    }
}
