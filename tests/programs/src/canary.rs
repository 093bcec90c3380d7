//! Memory that changes its owner: one instance, or a kernel before this one, fills its own with a
//! pattern; the next looks for it, in what it is given and, by its kernel (`/proc/skerry/search`),
//! in every frame as it is.

use std::hint::black_box;
use std::io::Write as _;
use std::process::ExitCode;
use std::{fs, io};

/// The pattern with its bits inverted: the program itself must not hold it, or it would be found in
/// the next instance.
const INVERTED: u64 = !u64::from_le_bytes(*b"\x8ecanary\x5a");
/// Factor by which the kernel multiplies words when it searches (`guard::faults::SEARCH_FACTOR`).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Memory that is written and looked through, in bytes.
const LENGTH: usize = 192 << 20;

/// `machine-tests canary` with `write` and `scan` in instances, `leave MIB` on the kernel before,
/// and `fresh` on a supervisor, which does not search.
pub fn run(arguments: &[&str]) -> ExitCode {
    let outcome = match arguments {
        ["write"] => write(),
        ["scan"] => search().map(|frames| tell(frames != 0 || fresh_memory_holds_it())),
        ["fresh"] => Ok(tell(fresh_memory_holds_it())),
        ["leave", mib] => leave(mib),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    match outcome {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("canary: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fills memory of the process, and a file in memory. That the kernel's search finds it here shows
/// that it would there.
fn write() -> io::Result<&'static str> {
    let pattern = !black_box(INVERTED);
    let memory = vec![pattern; LENGTH / 8];
    let bytes: Vec<u8> = memory[..memory.len() / 4]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    fs::write("/tmp/canary", bytes)?;
    if !memory.iter().rev().step_by(16).all(|&word| word == pattern) {
        return Ok("lost");
    }
    let frames = search()?;
    drop(black_box(memory));
    Ok(if frames > LENGTH / 4096 {
        "written, and found by the kernel"
    } else {
        "written, and not found"
    })
}

/// Fills a file in memory, which stays, with so many MiB of the pattern.
fn leave(mib: &str) -> io::Result<&'static str> {
    let mib: usize = mib.parse().map_err(io::Error::other)?;
    let piece: Vec<u8> = std::iter::repeat_n((!black_box(INVERTED)).to_le_bytes(), (1 << 20) / 8)
        .flatten()
        .collect();
    let mut file = fs::File::create("/canary")?;
    (0..mib).try_for_each(|_| file.write_all(&piece))?;
    Ok("left")
}

/// Looks through as much memory as was written, before anything is written to it.
fn fresh_memory_holds_it() -> bool {
    // The allocator takes zeroed memory for this straight from the kernel and does not write to it.
    let memory = vec![0u64; LENGTH / 8];
    memory.iter().any(|&word| !word == black_box(INVERTED))
}

fn tell(found: bool) -> &'static str {
    if found {
        "found the canary"
    } else {
        "no trace"
    }
}

/// In how many frames of this instance the kernel finds the pattern.
fn search() -> io::Result<usize> {
    const FILE: &str = "/proc/skerry/search";
    let product = (!black_box(INVERTED)).wrapping_mul(FACTOR);
    fs::write(FILE, format!("{product:x}"))?;
    let said = fs::read_to_string(FILE)?;
    let frames = said
        .strip_prefix("found in ")
        .and_then(|rest| rest.split(' ').next()?.parse().ok());
    frames.ok_or_else(|| io::Error::other(said))
}
