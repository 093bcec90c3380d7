//! Executables in which something was changed, from a seed: each is run by nobody, in a process of
//! its own. It may do whatever it does; the kernel goes on, and the process ends when it is killed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Random;
use super::round::NOBODY;
use crate::checked;

/// Where the executables are.
const DIRECTORY: &str = "/tmp/executables";
/// Programs that are changed: static ones, each of another linker.
const ORIGINALS: [&str; 2] = ["/bin/busybox", "/proc/self/exe"];
/// Bytes of ELF's header and of one of a program header.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Program headers that are changed.
const PROGRAM_HEADERS: u64 = 10;
/// Time that a program has, milliseconds.
const LIFE: i32 = 300;
/// Time limit for a killed process to end, on a machine that is emulated and busy.
const DEATH: Duration = Duration::from_secs(60);

/// `machine-tests fuzz-executables SEED SECONDS`
pub fn run(arguments: &[&str]) -> ExitCode {
    crate::report("fuzz-executables", hunt(arguments))
}

fn hunt(arguments: &[&str]) -> Result<()> {
    let [seed, seconds] = arguments else {
        bail!("usage: fuzz-executables SEED SECONDS")
    };
    let (seed, time) = (seed.parse()?, Duration::from_secs(seconds.parse()?));
    fs::create_dir_all(DIRECTORY)?;
    let originals = ORIGINALS
        .map(fs::read)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let (mut tried, mut began) = (0, 0);
    while start.elapsed() < time {
        let mut random = Random::new(seed, tried, 0);
        let original = &originals[random.below(2) as usize];
        let began_now = execute(&change(&mut random, original))
            .with_context(|| format!("executable {tried} of seed {seed}"))?;
        began += u64::from(began_now);
        tried += 1;
    }
    println!("hunt-result {tried} executables, {began} of them began");
    Ok(())
}

/// Runs it, and kills it when its time is over; whether it began.
fn execute(program: &[u8]) -> Result<bool> {
    let path = format!("{DIRECTORY}/changed");
    let mut file = File::create(&path)?;
    file.write_all(program)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    drop(file);
    let spawned = Command::new(&path)
        .arg("x")
        .current_dir(DIRECTORY)
        .uid(NOBODY)
        .gid(NOBODY)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = spawned else {
        fs::remove_file(&path)?;
        return Ok(false);
    };
    let pid = child.id() as i32;
    // SAFETY: numbers, and a structure that lives as long as the call.
    let ended = unsafe {
        let fd = checked(libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32)?;
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        libc::poll(&raw mut poll, 1, LIFE);
        libc::kill(-pid, libc::SIGKILL);
        libc::kill(pid, libc::SIGKILL);
        let ended = libc::poll(&raw mut poll, 1, DEATH.as_millis() as i32);
        libc::close(fd);
        ended
    };
    ensure!(
        ended == 1,
        "HUNG: it is killed and does not end\n{}",
        crate::runner::waits(pid)
    );
    child.wait()?;
    fs::remove_file(&path)?;
    Ok(true)
}

/// A program with a few changes, most of them in its headers.
fn change(random: &mut Random, original: &[u8]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..=random.below(4) {
        let header = HEADER + PROGRAM_HEADER * random.below(PROGRAM_HEADERS) as usize;
        // A field of a program header, or of the header of all.
        let field = match random.below(3) {
            0 => 4 * random.below(HEADER as u64 / 4) as usize,
            _ => header + 8 * random.below(PROGRAM_HEADER as u64 / 8) as usize,
        };
        let value = random.next();
        let value = random.pick(&[
            0,
            1,
            2,
            3,
            0x7fff_ffff_ffff_f000,
            0xffff_8000_0000_0000,
            u64::MAX,
            u64::MAX - 0xfff,
            1 << 47,
            (1 << 47) - 0x1000,
            0x1000,
            0xfff,
            1 << 31,
            1 << 32,
            value,
        ]);
        match random.below(8) {
            0 => bytes.truncate(random.below(1 << 13) as usize),
            1 => {
                if let Some(byte) = bytes.get_mut(random.below(1 << 12) as usize) {
                    *byte = value as u8;
                }
            }
            2 => {
                let at = random.below(bytes.len().max(1) as u64) as usize;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            3 => {
                if let Some(place) = bytes.get_mut(field..field + 4) {
                    place.copy_from_slice(&(value as u32).to_ne_bytes());
                }
            }
            4 => {
                if let Some(place) = bytes.get_mut(field..field + 2) {
                    place.copy_from_slice(&(value as u16).to_ne_bytes());
                }
            }
            _ => {
                if let Some(place) = bytes.get_mut(field..field + 8) {
                    place.copy_from_slice(&value.to_ne_bytes());
                }
            }
        }
    }
    bytes
}
